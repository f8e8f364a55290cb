//! Tests of the state changes of a queue pair from RESET to RTS and back, on the software device.

use std::time::{Duration, Instant};

use dataplane::connect::{
    ConnectError, Connector, EndpointError, EndpointParameters, NegotiatedParameters, PreparedQueuePair,
    QpModification, QueuePairEndpoint, RemoteBuffer, connect_pair,
};
use dataplane::lane::message::{Buffer, MessageDomain, MessageQueuePair, poll};
use dataplane::soft::{SoftCq, SoftDevice};
use dataplane::units::{QpNum, Rkey};
use dataplane::verbs::{
    Access, CqSpec, Destination, Device, ProtectionDomain, QpAttributes, QpCaps, QpSpec, QpState, QpType, QueuePair,
    RecvRequest, SendFlags, SendOp, SendRequest, SrqSpec, WcStatus,
};

use super::{cabled, prepared};

const KINDS: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

#[test]
fn handshake_takes_both_sides_to_rts() {
    for kind in KINDS {
        let devices = cabled();
        let [one, two] =
            devices.each_ref().map(|device| prepared(device, kind, EndpointParameters::default()).unwrap());
        let (mut one, _pd1, _cq1) = one;
        let (two, _pd2, _cq2) = two;
        let (first, second) = (one.endpoint(), two.endpoint());
        assert_eq!(first.gid, devices[0].gid());
        assert_eq!((first.transport, first.path_mtu, first.generation, first.receive_depth), (kind, 3, 0, 16));
        one.initialise().unwrap();
        assert_eq!(one.queue_pair_mut().state(), QpState::Init);
        one.initialise().unwrap();
        assert_eq!(QueuePairEndpoint::from_bytes(&second.to_bytes()), Ok(second));
        let one = one.connect(&second).unwrap();
        let two = two.connect(&first).unwrap();
        for (side, remote) in [(&one, second), (&two, first)] {
            assert_eq!(side.queue_pair().state(), QpState::Rts);
            assert_eq!(side.negotiated().remote, remote);
            assert_eq!(side.destination().map(|to| to.qp), (kind == QpType::Ud).then_some(remote.qpn));
        }
    }
}

/// A peer sends nothing to a queue pair whose endpoint has the depth 0.
#[test]
fn endpoint_has_the_depth_of_the_shared_receive_queue() {
    let devices = cabled();
    let pd = devices[0].alloc_pd().unwrap();
    let (cq, _) = devices[0].create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None).unwrap();
    let srq = pd.create_srq(&SrqSpec { depth: 32, sges: 1 }).unwrap();
    let caps = QpCaps { send_depth: 16, recv_depth: 0, send_sges: 1, recv_sges: 1, inline: 0 };
    let spec = QpSpec::new(QpType::Rc, caps);
    let parameters = EndpointParameters::default();
    let one = PreparedQueuePair::new(&devices[0], &pd, &spec, (&cq, &cq), Some(&srq), parameters.clone()).unwrap();
    assert_eq!(one.endpoint().receive_depth, 32);
    let (two, _pd, _cq) = prepared(&devices[1], QpType::Rc, parameters).unwrap();
    let (one, two) = connect_pair(one, two).unwrap();
    assert_eq!(two.negotiated().remote.receive_depth, 32);
    assert_eq!(one.reset().unwrap().endpoint().receive_depth, 32);
}

#[test]
fn reset_queue_pair_reconnects_with_new_packet_numbers() {
    for kind in KINDS {
        let devices = cabled();
        let side = |at: usize| prepared(&devices[at], kind, EndpointParameters::default()).unwrap();
        let ((one, _pd1, _cq1), (two, _pd2, _cq2)) = (side(0), side(1));
        let (mut first, mut second) = connect_pair(one, two).unwrap();
        for generation in 1..4 {
            let before = first.negotiated().remote;
            let (one, two) = (first.reset().unwrap(), second.reset().unwrap());
            let endpoint = two.endpoint();
            assert_eq!((endpoint.generation, endpoint.qpn), (generation, before.qpn));
            assert_ne!(endpoint.psn, before.psn);
            (first, second) = connect_pair(one, two).unwrap();
            assert_eq!(first.negotiated().remote, endpoint);
            assert_eq!(second.queue_pair().state(), QpState::Rts);
        }
    }
}

#[test]
fn rejected_peer_leaves_no_queue_pair() {
    let devices = cabled();
    type Change = fn(&mut QueuePairEndpoint);
    let cases: [(Change, EndpointError); 4] = [
        (|it| it.qpn = QpNum(1 << 24), EndpointError::QpNumber(1 << 24)),
        (|it| it.version = 7, EndpointError::Version(7)),
        (|it| it.queue = 5, EndpointError::Queue { own: 0, peer: 5 }),
        (|it| it.transport = QpType::Rc, EndpointError::Transport { own: QpType::Ud, peer: QpType::Rc }),
    ];
    for (change, expected) in cases {
        let (one, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
        let mut remote = prepared(&devices[1], QpType::Ud, EndpointParameters::default()).unwrap().0.endpoint();
        change(&mut remote);
        match one.connect(&remote) {
            Err(ConnectError::Endpoint(error)) => assert_eq!(error, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(devices[0].queue_counters(), [], "the rejected peer left queue pairs");
    let (own, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
    let itself = own.endpoint();
    assert!(matches!(own.connect(&itself), Err(ConnectError::Endpoint(EndpointError::PeerIsSelf))));
    let allowed = EndpointParameters { allow_self: true, ..EndpointParameters::default() };
    let (own, _pd, _cq) = prepared(&devices[0], QpType::Ud, allowed).unwrap();
    let itself = own.endpoint();
    assert_eq!(own.connect(&itself).unwrap().queue_pair().state(), QpState::Rts);
}

#[test]
fn device_error_names_the_device_and_the_state_change() {
    let devices = cabled();
    let (one, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
    let remote = prepared(&devices[1], QpType::Ud, EndpointParameters::default()).unwrap().0.endpoint();
    devices[0].remove();
    let error = one.connect(&remote).unwrap_err().to_string();
    assert!(error.starts_with("one: ibv_modify_qp (RESET to INIT) failed: "), "{error}");
}

#[test]
fn endpoint_contains_queue_and_buffer() {
    let [device, _] = cabled();
    let buffer = RemoteBuffer { addr: 4096, rkey: Rkey(7), len: 64 };
    let (one, _pd, _cq) = prepared(&device, QpType::Ud, EndpointParameters::default()).unwrap();
    let endpoint = one.queue(3).buffer(buffer).endpoint();
    assert_eq!((endpoint.queue, endpoint.buffer), (3, Some(buffer)));
}

/// One side of a connection that carries messages.
struct Side {
    connector: Connector,
    qp: MessageQueuePair<SoftDevice>,
    cq: SoftCq,
    buffer: Buffer<SoftDevice>,
    domain: MessageDomain<SoftDevice>,
}

impl Side {
    fn new(device: &SoftDevice, kind: QpType) -> Self {
        let domain = MessageDomain::new(device).unwrap();
        let cq = device.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None).unwrap().0;
        let caps = QpCaps { send_depth: 16, recv_depth: 16, send_sges: 1, recv_sges: 1, inline: 0 };
        let qp = domain.create_qp(&QpSpec::new(kind, caps), &cq, &cq, None).unwrap();
        let buffer = domain.buffer(4096, Access::LOCAL_WRITE).unwrap();
        let connector = Connector::new(device, kind, EndpointParameters::default()).unwrap();
        Self { connector, qp, cq, buffer, domain }
    }

    fn local_endpoint(&self) -> QueuePairEndpoint {
        self.connector.endpoint_for(self.qp.number(), self.qp.caps().recv_depth)
    }

    fn modify(&mut self, (attributes, mask): QpModification) {
        self.qp.modify(&attributes, mask).unwrap();
    }

    /// Moves the queue pair to INIT and posts a receive.
    fn begin(&mut self) {
        self.modify(self.connector.init());
        self.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[self.buffer.sge(0..2048)] }]).unwrap();
    }

    fn connect(&mut self, remote: &QueuePairEndpoint) -> NegotiatedParameters {
        let agreed = self.connector.negotiate(&self.local_endpoint(), remote).unwrap();
        self.modify(self.connector.rtr(&agreed));
        self.modify(self.connector.rts(&agreed));
        agreed
    }

    fn send(&mut self, agreed: &NegotiatedParameters, text: &[u8]) {
        self.buffer.write(2048, text);
        let ah = self.domain.create_ah(&agreed.path).unwrap();
        let remote = &agreed.remote;
        let to = Destination { ah: &ah, qp: remote.qpn, qkey: remote.qkey };
        let to = (remote.transport == QpType::Ud).then_some(to);
        let sges = [self.buffer.sge(2048..2048 + text.len())];
        let request = SendRequest { wr_id: 2, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to };
        self.qp.post_send(&[request]).unwrap();
    }
}

/// Messages arrive after the first handshake, and after each handshake that follows a reset.
#[test]
fn messages_arrive_in_every_generation() {
    for kind in KINDS {
        let devices = cabled();
        let mut sides = devices.each_ref().map(|device| Side::new(device, kind));
        for generation in 0..3u8 {
            sides.iter_mut().for_each(Side::begin);
            let endpoint = sides.each_ref().map(Side::local_endpoint);
            let [one, two] = &mut sides;
            let agreed = [one.connect(&endpoint[1]), two.connect(&endpoint[0])];
            let texts = [[generation + 1; 300], [generation + 101; 300]];
            one.send(&agreed[0], &texts[0]);
            two.send(&agreed[1], &texts[1]);
            let mut found: [Vec<(u64, WcStatus)>; 2] = Default::default();
            let deadline = Instant::now() + Duration::from_secs(30);
            while found.iter().any(|found| found.len() < 2) {
                for (side, found) in [&mut *one, &mut *two].into_iter().zip(&mut found) {
                    let mut polled = Vec::new();
                    poll(&mut side.cq, &mut polled, 16).unwrap();
                    found.extend(polled.iter().map(|completion| (completion.wr_id, completion.status)));
                }
                assert!(Instant::now() < deadline, "{kind}: {found:?}");
            }
            for (side, (found, text)) in sides.iter_mut().zip(found.iter_mut().zip([texts[1], texts[0]])) {
                found.sort_by_key(|(wr_id, _)| *wr_id);
                assert_eq!(found[..], [(1, WcStatus::Success), (2, WcStatus::Success)], "{kind}");
                // The payload of a datagram starts after the 40-byte global route header.
                let start = if kind == QpType::Ud { 40 } else { 0 };
                assert_eq!(side.buffer.to_vec(start..start + 300), text, "{kind} {generation}");
                side.modify(QpAttributes::to(QpState::Reset));
                side.connector.start_next_generation();
            }
        }
    }
}

/// After a connection, a query of the queue pair returns every attribute that the parameters set.
#[test]
fn queried_attributes_equal_the_parameters() {
    let devices = cabled();
    let parameters = EndpointParameters {
        path_mtu: Some(512),
        access: Access::REMOTE_READ,
        hop_limit: 7,
        traffic_class: 9,
        flow_label: 11,
        service_level: 3,
        sq_psn: 4711,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 5,
        min_rnr_timer: 13,
        timeout: 15,
        retry_count: 3,
        rnr_retry: 2,
        ..EndpointParameters::default()
    };
    let side = |at: usize| prepared(&devices[at], QpType::Rc, parameters.clone()).unwrap();
    let ((one, _pd1, _cq1), (two, _pd2, _cq2)) = (side(0), side(1));
    let (_, remote) = (one.endpoint(), two.endpoint());
    let (one, _two) = connect_pair(one, two).unwrap();
    let has = one.queue_pair().query().unwrap();
    assert_eq!((has.state, has.port, has.pkey_index, has.access), (QpState::Rts, 1, 0, Access::REMOTE_READ));
    assert_eq!((has.path_mtu, has.dest_qp, has.rq_psn, has.sq_psn), (2, remote.qpn, remote.psn, 4711));
    assert_eq!((has.max_rd_atomic, has.max_dest_rd_atomic, has.min_rnr_timer), (4, 5, 13));
    assert_eq!((has.timeout, has.retry_count, has.rnr_retry), (15, 3, 2));
    assert_eq!(has.path, one.negotiated().path);
    let path = has.path;
    assert_eq!((path.gid, path.hop_limit, path.traffic_class), (remote.gid, 7, 9));
    assert_eq!((path.flow_label, path.service_level), (11, 3));
}
