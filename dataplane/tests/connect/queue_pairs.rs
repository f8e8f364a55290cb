//! The way from RESET to RTS and back, on the software device.

use dataplane::provider::connect::{
    ConnectError, EndpointError, EndpointParameters, QueuePairEndpoint, RemoteBuffer, join,
};
use dataplane::provider::{Capability, Device, QpState, QpType, QueuePair};
use dataplane::units::{QpNum, Rkey};

use super::{cabled, prepared};

/// The types that the software device has.
fn kinds() -> Vec<QpType> {
    let [device, _] = cabled();
    let has = |capability| device.capabilities().has.contains(&capability);
    let all = [(QpType::Ud, Capability::Datagram), (QpType::Rc, Capability::Rc), (QpType::Uc, Capability::Uc)];
    let kinds: Vec<_> = all.into_iter().filter(|(_, capability)| has(*capability)).map(|(kind, _)| kind).collect();
    assert!(kinds.contains(&QpType::Ud));
    kinds
}

#[test]
fn two_sides_become_peers() {
    for kind in kinds() {
        let devices = cabled();
        let [one, two] =
            devices.each_ref().map(|device| prepared(device, kind, EndpointParameters::default()).unwrap());
        let (mut one, _pd1, _cq1) = one;
        let (two, _pd2, _cq2) = two;
        let (first, second) = (one.endpoint(), two.endpoint());
        assert_eq!(first.gid, devices[0].gid());
        assert_eq!((first.transport, first.path_mtu, first.generation, first.receive_depth), (kind, 3, 0, 16));
        one.initialise().unwrap();
        assert_eq!(one.queue_pair().state(), QpState::Init);
        one.initialise().unwrap();
        assert_eq!(QueuePairEndpoint::from_bytes(&second.to_bytes()), Ok(second));
        let one = one.handshake(&second).unwrap();
        let two = two.handshake(&first).unwrap();
        for (side, remote) in [(&one, second), (&two, first)] {
            assert_eq!(side.queue_pair().state(), QpState::Rts);
            assert_eq!(side.agreed().remote, remote);
            assert_eq!(side.destination().map(|to| to.qp), (kind == QpType::Ud).then_some(remote.qpn));
        }
    }
}

#[test]
fn a_reset_queue_pair_is_connected_anew_with_other_numbers() {
    for kind in kinds() {
        let devices = cabled();
        let side = |at: usize| prepared(&devices[at], kind, EndpointParameters::default()).unwrap();
        let ((one, _pd1, _cq1), (two, _pd2, _cq2)) = (side(0), side(1));
        let (mut first, mut second) = join(one, two).unwrap();
        for generation in 1..4 {
            let before = first.agreed().remote;
            let (one, two) = (first.reset().unwrap(), second.reset().unwrap());
            let told = two.endpoint();
            assert_eq!((told.generation, told.qpn), (generation, before.qpn));
            assert_ne!(told.psn, before.psn);
            (first, second) = join(one, two).unwrap();
            assert_eq!(first.agreed().remote, told);
            assert_eq!(second.queue_pair().state(), QpState::Rts);
        }
    }
}

#[test]
fn who_cannot_be_the_peer_is_refused_and_leaves_no_queue_pair() {
    let devices = cabled();
    type Change = fn(&mut QueuePairEndpoint);
    let cases: [(Change, EndpointError); 4] = [
        (|it| it.qpn = QpNum(1 << 24), EndpointError::Number(1 << 24)),
        (|it| it.version = 7, EndpointError::Version(7)),
        (|it| it.queue = 5, EndpointError::Queue { own: 0, peer: 5 }),
        (|it| it.transport = QpType::Rc, EndpointError::Transport { own: QpType::Ud, peer: QpType::Rc }),
    ];
    for (change, expected) in cases {
        let (one, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
        let mut remote = prepared(&devices[1], QpType::Ud, EndpointParameters::default()).unwrap().0.endpoint();
        change(&mut remote);
        match one.handshake(&remote) {
            Err(ConnectError::Endpoint(error)) => assert_eq!(error, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(devices[0].queue_counters(), [], "queue pairs are left");
    let (own, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
    let itself = own.endpoint();
    assert!(matches!(own.handshake(&itself), Err(ConnectError::Endpoint(EndpointError::Own))));
    let allowed = EndpointParameters { allow_self: true, ..EndpointParameters::default() };
    let (own, _pd, _cq) = prepared(&devices[0], QpType::Ud, allowed).unwrap();
    let itself = own.endpoint();
    assert_eq!(own.handshake(&itself).unwrap().queue_pair().state(), QpState::Rts);
}

#[test]
fn a_device_that_refuses_is_named_with_the_change() {
    let devices = cabled();
    let (one, _pd, _cq) = prepared(&devices[0], QpType::Ud, EndpointParameters::default()).unwrap();
    let remote = prepared(&devices[1], QpType::Ud, EndpointParameters::default()).unwrap().0.endpoint();
    devices[0].remove();
    let error = one.handshake(&remote).unwrap_err().to_string();
    assert!(error.starts_with("one: ibv_modify_qp (RESET to INIT) failed: "), "{error}");
}

#[test]
fn queues_and_buffers_are_told() {
    let [device, _] = cabled();
    let buffer = RemoteBuffer { addr: 4096, rkey: Rkey(7), len: 64 };
    let (one, _pd, _cq) = prepared(&device, QpType::Ud, EndpointParameters::default()).unwrap();
    let told = one.queue(3).buffer(buffer).endpoint();
    assert_eq!((told.queue, told.buffer), (3, Some(buffer)));
}
