//! Tests of raw-packet queue pairs. The tests call the traits and check the calls that the driver receives.

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{ibv_device_attr_ex, ibv_packet_pacing_caps, ibv_rss_caps, ibv_tso_caps};

use crate::context::Context;
use crate::fake::{Call, Completion, Fake, Op, Poll};
use crate::ffi::Wc;
use crate::{SelfTest, VerbsCq, VerbsDevice, VerbsQp, encode_flow_rule};
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Desc, PageKind, Region, RegionSpec, RunSource, SlotLayout};
use dataplane_core::verbs::{
    Access, CompletionQueue, Completions, CqApi, CqSpec, Cursor, Device, EthernetMatch, FlowCount, FlowRule,
    FlowTraffic, GidKind, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue, MemoryRegion, PollFields,
    ProtectionDomain, QpAttributes, QpCaps, QpSpec, QpState, QpType, QueuePair, RateLimit, RawDevice, RawReceive,
    RawSpec, RecvRequest, SendApi, SendFlags, SendOp, SendRequest, Sge, TunnelMatch,
};

/// A `VerbsDevice` and the fake device below it. The `VerbsDevice` is dropped first.
pub(super) struct TestDevice {
    pub(super) device: VerbsDevice,
    pub(super) fake: Fake,
}

/// Creates a device that supports all offloads except checksums.
pub(super) fn test_device() -> TestDevice {
    test_device_with(1 | 2 | 8)
}

/// Creates a device with the raw-packet capabilities `caps` (`IBV_RAW_PACKET_CAP_*`).
fn test_device_with(caps: u32) -> TestDevice {
    test_device_of("fake", caps, |_| {})
}

/// Creates a device of the driver `driver`. `prepare` changes the fake device before the device is opened.
pub(super) fn test_device_of(driver: &str, caps: u32, prepare: impl FnOnce(&Fake)) -> TestDevice {
    let raw = 1 << QpType::RawPacket.raw();
    let mut attr = ibv_device_attr_ex {
        raw_packet_caps: caps,
        tso_caps: ibv_tso_caps { max_tso: 65_536, supported_qpts: raw },
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: 10,
            qp_rate_limit_max: 1000,
            supported_qpts: raw,
        },
        rss_caps: ibv_rss_caps {
            supported_qpts: raw,
            max_rwq_indirection_tables: 8,
            max_rwq_indirection_table_size: 128,
            rx_hash_fields_mask: 0xff,
            rx_hash_function: 1,
        },
        max_wq_type_rq: 16,
        ..Default::default()
    };
    attr.orig_attr.phys_port_cnt = 1;
    attr.orig_attr.max_qp_wr = 1024;
    attr.orig_attr.max_sge = 4;
    attr.orig_attr.max_cqe = 4096;
    (attr.orig_attr.max_qp_rd_atom, attr.orig_attr.max_qp_init_rd_atom) = (16, 16);
    let fake = Fake::with_attributes(attr, |_| {});
    prepare(&fake);
    let context = NonNull::new(fake.context()).unwrap();
    // SAFETY: the fake outlives the device. Closing a fake device has no effect.
    let context = unsafe { Context::with_driver(context, "fake".to_owned(), driver.to_owned()) }.unwrap();
    let device = VerbsDevice::of(context);
    fake.calls();
    TestDevice { device, fake }
}

impl TestDevice {
    pub(super) fn set_raw(&mut self, spec: RawSpec) {
        self.device = self.device.clone().with_raw(spec);
    }
}

fn queue(test: &TestDevice, of: (u16, u16), send_api: SendApi) -> (VerbsCq, VerbsQp) {
    let fields = PollFields::STANDARD | PollFields::FLOW_TAG;
    let (cq, granted) = test.device.create_cq(&CqSpec { depth: 64, fields, ..CqSpec::default() }, None).unwrap();
    assert_eq!((granted.api, granted.refused.len()), (CqApi::Extended, 0), "{granted}");
    let caps = QpCaps { send_depth: 16, recv_depth: 16, send_sges: 2, recv_sges: 1, inline: 0 };
    let spec = QpSpec { queue: of, send_api, ..QpSpec::new(QpType::RawPacket, caps) };
    let pd = test.device.alloc_pd().unwrap();
    let qp = pd.create_qp(&spec, &cq, &cq, None).unwrap();
    (cq, qp)
}

fn try_to(qp: &mut VerbsQp, state: QpState) -> Result<(), VerbError> {
    let (attributes, mask) = match state {
        QpState::Init => QpAttributes::init(QpType::RawPacket, 1, 0),
        other => QpAttributes::to(other),
    };
    qp.modify(&attributes, mask)
}

fn to(qp: &mut VerbsQp, state: QpState) {
    try_to(qp, state).unwrap();
}

fn started(test: &TestDevice, of: (u16, u16), send_api: SendApi) -> (VerbsCq, VerbsQp) {
    try_start(test, of, send_api).unwrap()
}

pub(super) fn try_start(test: &TestDevice, of: (u16, u16), send_api: SendApi) -> Result<(VerbsCq, VerbsQp), VerbError> {
    let (cq, mut qp) = queue(test, of, send_api);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        try_to(&mut qp, state)?;
    }
    Ok((cq, qp))
}

fn flows(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::CreateFlow { .. })).count()
}

#[test]
fn self_test_passes_and_rss_is_granted() {
    let test = test_device();
    assert!(matches!(test.device.self_test(), SelfTest::Passed), "{:?}", test.device.self_test());
    let has = &test.device.capabilities().has;
    assert!(
        has.contains(&dataplane_core::verbs::Capability::Rss)
            && has.contains(&dataplane_core::verbs::Capability::RawPacket)
    );
    assert_eq!(test.device.raw_caps().pacing, Some((10, 1000)));
}

/// Drivers on which some verbs behave differently than on mlx5 still pass the self-test of batch polling. On efa, a
/// receive without elements never completes. On irdma, a failed queue pair accepts the change to RESET, but stays in
/// ERR and then refuses the change to INIT.
#[test]
fn self_test_passes_on_drivers_that_restrict_receives_and_resets() {
    for prepare in [Fake::ignores_empty_receives as fn(&Fake), Fake::keeps_reset_qps_in_err] {
        let test = test_device_of("fake", 0, prepare);
        assert_eq!(test.device.self_test(), &SelfTest::Passed);
        assert!(test.device.capabilities().has.contains(&dataplane_core::verbs::Capability::ExtendedCq));
    }
}

/// A device may refuse the fields of the InfiniBand path. irdma does not know the field `DLID_PATH_BITS`. mlx4 refuses
/// the fields `SLID` and `SL` together with timestamps. Neither refusal hides another capability.
#[test]
fn refused_path_fields_hide_no_capability() {
    use dataplane_core::verbs::Capability::{self, ExtendedCq, Timestamps};
    let path = (PollFields::SLID | PollFields::SL).bits();
    let irdma = |fake: &Fake| fake.lacks(PollFields::DLID_PATH_BITS.bits(), 0, libc::EOPNOTSUPP);
    // The completion queues of mlx4 have no wall clock, flow tag, VLAN tag or tag matching.
    let mlx4 = |fake: &Fake| {
        let unknown = PollFields::WALLCLOCK | PollFields::FLOW_TAG | PollFields::CVLAN | PollFields::TM_INFO;
        fake.lacks(unknown.bits(), 2, libc::EOPNOTSUPP);
        fake.lacks_together(path, PollFields::TIMESTAMP.bits(), libc::EOPNOTSUPP);
    };
    for (name, prepare) in [("irdma", &irdma as &dyn Fn(&Fake)), ("mlx4", &mlx4)] {
        let test = test_device_of(name, 0, prepare);
        let has: &[Capability] = &test.device.capabilities().has;
        assert!(has.contains(&ExtendedCq) && has.contains(&Timestamps), "{name}: {has:?}");
        // The queue is requested with all standard fields and with timestamps. The device grants all of these fields
        // except the fields of the path. Each completion contains the granted fields.
        let spec = CqSpec { depth: 4, fields: PollFields::STANDARD | PollFields::TIMESTAMP, ..CqSpec::default() };
        let (mut cq, granted) = test.device.create_cq(&spec, None).unwrap();
        let lost = PollFields::SLID | PollFields::SL | PollFields::DLID_PATH_BITS;
        assert_eq!((granted.api, granted.fields), (CqApi::Extended, spec.fields - lost), "{name}");
        assert_eq!(granted.refused, []);
        assert!(granted.why.iter().any(|line| line.contains("slid, sl and dlid_path_bits")), "{:?}", granted.why);
        let wc = Wc { wr_id: 1, opcode: 128, byte_len: 60, sl: 6, slid: 5, dlid_path_bits: 7, ..Wc::default() };
        test.fake.polls(test.fake.last("cq"), [Poll::Wc(Completion { wc, ticks: 9, ..Completion::default() })]);
        let cursor = cq.start_poll().unwrap().unwrap();
        let got = cursor.get();
        assert_eq!((got.byte_len(), got.slid(), got.sl(), got.dlid_path_bits()), (Some(60), None, None, None));
        assert!(got.ticks().is_some());
    }
    // A device that refuses no fields has all standard fields.
    let test = test_device();
    let spec = CqSpec { depth: 4, fields: PollFields::STANDARD, ..CqSpec::default() };
    let (_cq, granted) = test.device.create_cq(&spec, None).unwrap();
    assert_eq!(granted.fields, PollFields::STANDARD);
}

/// If no receive of the self-test completes, the result of the self-test is unknown. The provider then still polls the
/// device in batches.
#[test]
fn self_test_without_any_completion_is_inconclusive() {
    let test = test_device_of("fake", 0, Fake::ignores_receives);
    assert!(matches!(test.device.self_test(), SelfTest::Unknown(_)), "{:?}", test.device.self_test());
    assert!(test.device.capabilities().has.contains(&dataplane_core::verbs::Capability::ExtendedCq));
}

/// The library of mlx4 refuses segmented sends, although the kernel reports segmentation.
#[test]
fn mlx4_reports_no_segmentation() {
    use dataplane_core::verbs::Capability::Tso;
    for (driver, max_tso) in [("mlx4", 0), ("mlx5", 65_536)] {
        let test = test_device_of(driver, 0, |_| {});
        assert_eq!(test.device.raw_caps().max_tso, max_tso, "{driver}");
        assert_eq!(test.device.capabilities().has.contains(&Tso), max_tso > 0, "{driver}");
    }
}

/// Returns the error of `check_raw` for a rule on mlx4, or an empty string.
fn refused_by_mlx4(rule: FlowRule) -> String {
    let test = test_device_of("mlx4", 0, |_| {});
    let checked = test.device.check_raw(&RawSpec { rules: vec![rule], ..RawSpec::default() }, 1);
    checked.err().map_or_else(String::new, |error| error.to_string())
}

/// The mlx4 driver of the kernel creates a rule with these fields, but the rule ignores the fields. The port would then
/// take all frames of the host.
#[test]
fn field_that_mlx4_ignores_is_refused() {
    let dst = MaskedValue::exact([2, 0, 0, 0, 0, 1]);
    let only_dst = EthernetMatch { dst, vlan_tag: EthernetMatch::vlan(7), ..EthernetMatch::default() };
    for (ethernet, field) in [
        (EthernetMatch { ether_type: 0x88f7.into(), ..only_dst }, "ether_type"),
        (EthernetMatch { src: dst, ..only_dst }, "ethernet src"),
    ] {
        let outer = HeaderMatch { ethernet: Some(ethernet), ..HeaderMatch::default() };
        let error = refused_by_mlx4(FlowRule::new(FlowTraffic::Headers { outer, tunnel: None }));
        assert!(error.contains(&format!("mlx4 cannot match {field}; help: ")), "{error}");
    }
    let outer = HeaderMatch { ethernet: Some(only_dst), ..HeaderMatch::default() };
    assert_eq!(refused_by_mlx4(FlowRule::new(FlowTraffic::Headers { outer, tunnel: None })), "");
}

/// The mlx4 driver refuses these rules with `EINVAL`, so the provider must name the unsupported part of the rule.
#[test]
fn header_or_action_that_mlx4_lacks_is_named() {
    let any = FlowRule::new(FlowTraffic::ANY_HEADERS);
    let of = |ip, tunnel| {
        let outer = HeaderMatch { ip: Some(ip), ..HeaderMatch::default() };
        FlowRule::new(FlowTraffic::Headers { outer, tunnel })
    };
    let ipv4 = IpMatch::V4(Ipv4Match::default());
    let (key, protocol) = (MaskedValue::ANY, MaskedValue::ANY);
    let gre = TunnelMatch::Gre { flags: MaskedValue::ANY, protocol, key };
    let other = test_device();
    let counters = other.device.create_flow_counters().unwrap();
    for (rule, message) in [
        (of(IpMatch::V6(Ipv6Match::default()), None), "mlx4 cannot match IPv6 headers; help: "),
        (of(ipv4, Some((gre, HeaderMatch::default()))), "mlx4 cannot match GRE headers; help: "),
        (FlowRule { tag: Some(5), ..any.clone() }, "mlx4 does not support the action `tag`; help: "),
        (FlowRule { drop: true, ..any.clone() }, "mlx4 does not support the action `drop`; help: "),
        (FlowRule { count: Some(counters), ..any.clone() }, "mlx4 does not support the action `count`; help: "),
    ] {
        let error = refused_by_mlx4(rule);
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(refused_by_mlx4(of(ipv4, None)), "");
    assert_eq!(refused_by_mlx4(any), "");
}

#[test]
fn port_speed_and_single_gids_are_queried() {
    let test = test_device();
    let port = test.device.port(1).unwrap();
    // The fake reports EDR (25 Gbit/s) on 4 lanes.
    assert_eq!((port.lanes, port.lane_speed, port.speed()), (4, 25_000_000_000, 100_000_000_000));
    let entry = test.device.gid(1, 3).unwrap();
    assert_eq!((entry.index, entry.kind, entry.interface), (3, GidKind::RoceV2, 7));
    assert_eq!(&entry.gid.0[12..], &[192, 0, 2, 1]);
    for (port, index, errno) in [(1, 4, libc::ENODATA), (2, 3, libc::EINVAL)] {
        assert_eq!(test.device.gid(port, index).unwrap_err(), VerbError::new("ibv_query_gid_ex", errno));
    }
}

/// If a port has a single queue, the queue pair strips VLAN tags, and the flow rule is created at RTR.
#[test]
fn single_queue_receives_on_its_queue_pair() {
    let mut test = test_device();
    let receive = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let rules = vec![FlowRule { tag: Some(7), ..FlowRule::new(FlowTraffic::ANY_HEADERS) }];
    test.set_raw(RawSpec { receive, rules: rules.clone(), ..RawSpec::default() });
    let (cq, mut qp) = started(&test, (0, 1), SendApi::Classic);
    let calls = test.fake.calls();
    let number = test.fake.last("qp");
    let created =
        Call::CreateQp { kind: 8, send: 16, recv: 16, comp_mask: 1 | 4, flags: 1 << 9, send_ops: 0, max_tso_header: 0 };
    assert!(calls.contains(&created), "{calls:?}");
    let rule = Call::CreateFlow { qp: number, bytes: encode_flow_rule(&rules[0]).unwrap() };
    assert_eq!(calls.iter().filter(|call| **call == rule).count(), 1, "{calls:?}");
    // SAFETY: the request refers to no memory.
    unsafe { qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }.unwrap();
    assert!(matches!(test.fake.calls()[..], [Call::PostRecv(_)]));
    drop(qp);
    let calls = test.fake.calls();
    assert!(matches!(calls[..], [Call::DestroyFlow(_), Call::DestroyQp(_)]), "{calls:?}");
    drop(cq);
}

/// Two queues share a port. Flow rules exist only while both queues are ready, and receives are posted to work queues.
#[test]
fn several_queues_receive_on_work_queues() {
    let test = test_device();
    let (_cq0, mut first) = started(&test, (0, 2), SendApi::Classic);
    assert_eq!(flows(&test.fake.calls()), 0, "one queue is not ready");
    let (_cq1, second) = started(&test, (1, 2), SendApi::Classic);
    let calls = test.fake.calls();
    assert_eq!(flows(&calls), 7);
    let sends_only =
        Call::CreateQp { kind: 8, send: 16, recv: 0, comp_mask: 0, flags: 0, send_ops: 0, max_tso_header: 0 };
    assert!(calls.contains(&sends_only), "{calls:?}");
    assert_eq!((first.caps().recv_depth, first.caps().recv_sges), (16, 1));
    // SAFETY: the request refers to no memory.
    unsafe { first.post_recv(&[RecvRequest { wr_id: 5, sges: &[] }]) }.unwrap();
    let posted = test.fake.calls();
    assert!(matches!(&posted[..], [Call::PostWqRecv { wq: 1, list }] if list[0].wr_id == 5), "{posted:?}");
    to(&mut first, QpState::Err);
    let calls = test.fake.calls();
    assert!(calls.iter().any(|call| matches!(call, Call::DestroyFlow(_))), "{calls:?}");
    assert!(calls.iter().any(|call| matches!(call, Call::ModifyWq { wq: 1, state: 2, .. })), "{calls:?}");
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&mut first, state);
    }
    assert_eq!(flows(&test.fake.calls()), 7);
    drop((first, second));
    assert!(!test.fake.calls().iter().any(|call| matches!(call, Call::Misuse(_))));
}

/// A queue pair with an unsupported setting is refused. Queue index 2 is out of range for 2 queues.
#[test]
fn invalid_raw_queues_are_refused() {
    let mut test = test_device();
    let (cq, _) = queue(&test, (0, 1), SendApi::Classic);
    let pd = test.device.alloc_pd().unwrap();
    let caps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline: 0 };
    let create = |kind, queue| pd.create_qp(&QpSpec { queue, ..QpSpec::new(kind, caps) }, &cq, &cq, None);
    assert_eq!(create(QpType::RawPacket, (2, 2)).unwrap_err().errno, libc::EINVAL);
    assert_eq!(create(QpType::Ud, (0, 2)).unwrap_err().errno, libc::EOPNOTSUPP);
    let receive = RawReceive { delay_drop: true, ..RawReceive::default() };
    test.set_raw(RawSpec { receive, ..RawSpec::default() });
    let pd = test.device.alloc_pd().unwrap();
    let create = |kind, queue| pd.create_qp(&QpSpec { queue, ..QpSpec::new(kind, caps) }, &cq, &cq, None);
    assert_eq!(
        create(QpType::RawPacket, (0, 1)).unwrap_err().errno,
        libc::EOPNOTSUPP,
        "only work queues support delay drop"
    );
    assert!(create(QpType::RawPacket, (0, 2)).is_ok());
    test.fake.refuse("ibv_create_wq", libc::ENOMEM);
    assert_eq!(create(QpType::RawPacket, (0, 2)).unwrap_err().errno, libc::ENOMEM);
}

/// In the completion of a receive, the flow tag and the queue pair number share a field. If the field contains a flow
/// tag, `qp_num` returns `None`.
#[test]
fn flow_tag_replaces_the_queue_pair_number() {
    let test = test_device();
    let (mut cq, _qp) = started(&test, (0, 1), SendApi::Classic);
    let receive = Wc { wr_id: 1, opcode: 128, byte_len: 60, qp_num: 0xabc, ..Wc::default() };
    let send = Wc { wr_id: 2, opcode: 0, qp_num: 0xabc, ..Wc::default() };
    let tagged = Completion { wc: receive, flow_tag: 0xabc, ..Completion::default() };
    let number = test.fake.last("cq");
    test.fake.polls(number, [Poll::Wc(tagged), Poll::Wc(Completion { wc: send, ..Completion::default() })]);
    let mut cursor = cq.start_poll().unwrap().unwrap();
    assert_eq!((cursor.get().flow_tag(), cursor.get().qp_num().map(|qp| qp.0)), (Some(0xabc), None));
    assert!(cursor.advance().unwrap());
    assert_eq!(cursor.get().qp_num().map(|qp| qp.0), Some(0xabc));
    drop(cursor);
    assert_eq!(cq.poll_run(&mut Completions::new(), 4), Ok(0));
}

/// The completion of a failed receive contains the number of the receive queue instead of the queue pair number. The
/// provider therefore sets the state of every raw-packet queue pair of the completion queue to ERR, and does not query
/// the device first.
#[test]
fn failed_raw_receive_stops_all_raw_queue_pairs_of_the_cq() {
    for of in [(0, 1), (0, 2)] {
        for run in [false, true] {
            let test = test_device();
            let (mut cq, qp) = started(&test, of, SendApi::Classic);
            assert_eq!((qp.state(), qp.work_queue().is_some()), (QpState::Rts, of.1 > 1));
            let failed = |status| {
                let wc = Wc { wr_id: 1, status, qp_num: 0xabc, ..Wc::default() };
                Poll::Wc(Completion { wc, ..Completion::default() })
            };
            let mut poll = |status| {
                test.fake.polls(test.fake.last("cq"), [failed(status)]);
                match run {
                    true => assert_eq!(cq.poll_run(&mut Completions::new(), 4), Ok(1)),
                    false => drop(cq.start_poll().unwrap().unwrap()),
                }
            };
            // Status 5 is a flush error. The flushed request may have been posted before the last reset, so the queue
            // pair keeps its state.
            poll(5);
            assert_eq!((qp.state(), qp.query().unwrap().state), (QpState::Rts, QpState::Rts));
            poll(4);
            let queried = qp.query().unwrap();
            assert_eq!((queried.state, queried.port, qp.state()), (QpState::Err, 1, QpState::Err));
            assert!(!test.fake.calls().iter().any(|call| matches!(call, Call::Misuse(_))));
        }
    }
}

/// Unsupported segmented sends and checksums are refused before they are posted, with both send interfaces.
#[test]
fn unsupported_send_offloads_are_refused() {
    for api in [SendApi::Classic, SendApi::Extended] {
        let mut test = test_device();
        test.set_raw(RawSpec { max_tso_header: 64, ..RawSpec::default() });
        let (_cq, mut qp) = started(&test, (0, 1), api);
        let spec = RegionSpec { bytes: 4096, pages: PageKind::Normal, strict: false, node: None };
        let region = Arc::new(Region::allocate(spec).unwrap().0);
        let pd = test.device.alloc_pd().unwrap();
        let mr = pd.register(region.clone(), Access::LOCAL_WRITE).unwrap();
        let sges = [Sge { addr: region.base().as_ptr().addr() as u64, length: 4096, lkey: mr.lkey() }];
        test.fake.calls();
        let header = [0xaa; 54];
        let mut send = |op, flags| {
            // SAFETY: the device moves no data.
            unsafe { qp.post_send(&[SendRequest { wr_id: 3, op, flags, sges: &sges, to: None }]) }
        };
        let tso = |header, mss| SendOp::Tso { header, mss };
        assert_eq!(send(tso(&header[..13], 1448), SendFlags::empty()).unwrap_err().error.errno, libc::EINVAL);
        assert_eq!(send(tso(&[0; 65], 1448), SendFlags::empty()).unwrap_err().error.errno, libc::EINVAL);
        assert_eq!(send(tso(&header, 0), SendFlags::empty()).unwrap_err().error.errno, libc::EINVAL);
        // This device does not support checksum offload for raw packets.
        assert_eq!(send(SendOp::Send, SendFlags::IP_CSUM).unwrap_err().error.errno, libc::EOPNOTSUPP);
        assert_eq!(test.fake.calls(), []);
        send(tso(&header, 1448), SendFlags::SIGNALED).unwrap();
        let calls = test.fake.calls();
        let built = Call::Wr { wr_id: 3, flags: 2, op: Op::Tso { header: header.to_vec(), mss: 1448 } };
        match api {
            SendApi::Extended => assert!(calls.contains(&built), "{calls:?}"),
            // The opcode 10 is `IBV_WR_TSO`.
            SendApi::Classic => {
                assert!(matches!(&calls[..], [Call::PostSend(list)] if list[0].opcode == 10), "{calls:?}");
            }
        }
        let limit = RateLimit { kbps: 500, burst: 9000, typical_packet_size: 0 };
        qp.set_rate_limit(limit).unwrap();
        let number = test.fake.last("qp");
        let set = Call::RateLimit { qp: number, rate_limit: 500, burst: 9000, packet: 0, comp_mask: 0 };
        assert_eq!(test.fake.calls(), [set]);
        assert_eq!(qp.set_rate_limit(RateLimit { kbps: 5, ..limit }).unwrap_err().errno, libc::EINVAL);
        to(&mut qp, QpState::Err);
        assert_eq!(qp.set_rate_limit(limit).unwrap_err().errno, libc::EINVAL);
    }
}

/// Returns an Ethernet frame with an IPv4 header and 20 bytes of payload.
fn ipv4_frame(protocol: u8, fragment: u16, payload: [u8; 20]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend(payload);
    frame
}

/// Returns an Ethernet frame with an IPv6 header and 20 bytes of payload.
fn ipv6_frame(next_header: u8, payload: [u8; 20]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, next_header, 64]);
    frame.extend([0x20; 32]);
    frame.extend(payload);
    frame
}

/// Returns a UDP header with this checksum, and 12 bytes of payload.
fn udp(checksum: u16) -> [u8; 20] {
    let mut udp = [0; 20];
    udp[..6].copy_from_slice(&[0x12, 0xb5, 0x12, 0xb5, 0, 20]);
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    udp
}

/// Returns a TCP header without options.
fn tcp() -> [u8; 20] {
    let mut tcp = [0; 20];
    tcp[12] = 5 << 4;
    tcp
}

/// `post_send_run` sets the checksum flag of a frame only if the device can compute the checksums of the frame. Each
/// change to RTS sets the rate limit.
#[test]
fn send_runs_use_checksum_offload_and_rate_limit() {
    const CSUM: u32 = 1 << 4;
    const SIGNALED: u32 = 1 << 1;
    for api in [SendApi::Classic, SendApi::Extended] {
        let mut test = test_device_with(4);
        let rate = RateLimit { kbps: 500, burst: 9000, typical_packet_size: 64 };
        let spec = RawSpec { checksum: true, rate: Some(rate), ..RawSpec::default() };
        test.device.check_raw(&spec, 1).unwrap();
        test.set_raw(spec);
        let (_cq, mut qp) = started(&test, (0, 1), api);
        let set = Call::RateLimit { qp: test.fake.last("qp"), rate_limit: 500, burst: 9000, packet: 64, comp_mask: 0 };
        assert_eq!(test.fake.calls().last(), Some(&set));
        for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
            to(&mut qp, state);
        }
        assert_eq!(test.fake.calls().last(), Some(&set));
        let layout = SlotLayout::new(128, 1600, 16).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let frames = [
            (ipv4_frame(6, 0, tcp()), true),
            (ipv4_frame(17, 0, udp(0x1234)), true),
            // A UDP checksum of 0 means that the packet has no checksum.
            (ipv4_frame(17, 0, udp(0)), false),
            // The first and a later fragment: the TCP or UDP checksum covers all fragments.
            (ipv4_frame(17, 0x2000, udp(0x1234)), false),
            (ipv4_frame(17, 0x0003, [0xff; 20]), false),
            (ipv4_frame(1, 0, [8; 20]), false),
            (ipv6_frame(6, tcp()), true),
            (ipv6_frame(17, udp(0)), false),
            (ipv6_frame(44, [17; 20]), false),
            (vec![0; 60], false),
            (vec![0; 10], false),
            (ipv4_frame(6, 0, tcp()), true),
        ];
        let region = Region::allocate(spec).unwrap().0;
        for (slot, (frame, _)) in frames.iter().enumerate() {
            // SAFETY: the slot is in the region, and nothing else accesses the region.
            unsafe {
                let at = region.base().as_ptr().add(slot * layout.stride() as usize + 128);
                at.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            }
        }
        let region = Arc::new(region);
        let pd = test.device.alloc_pd().unwrap();
        let mr = pd.register(region, Access::LOCAL_WRITE).unwrap();
        qp.bind_slots(&mr, layout, 0).unwrap();
        let desc = |(slot, (frame, _)): (usize, &(Vec<u8>, bool))| Desc {
            slot: slot as u32,
            offset: 128,
            len: frame.len() as u16,
        };
        let run: Vec<Desc> = frames.iter().enumerate().map(desc).collect();
        let mut expected: Vec<u32> = frames.iter().map(|(_, computed)| if *computed { CSUM } else { 0 }).collect();
        *expected.last_mut().unwrap() |= SIGNALED;
        for _ in 0..2 {
            test.fake.calls();
            // SAFETY: the device moves no data.
            unsafe { qp.post_send_run(&RunSource::new(&run).run(), 7) }.unwrap();
            let calls = test.fake.calls();
            let flags: Vec<u32> = calls
                .iter()
                .flat_map(|call| match call {
                    Call::PostSend(list) => list.iter().map(|send| send.flags).collect(),
                    Call::Wr { flags, .. } => vec![*flags],
                    _ => Vec::new(),
                })
                .collect();
            assert_eq!(flags, expected, "{api:?}: {calls:?}");
        }
    }
}

/// `check_raw` reports an unsupported setting before any object is created.
#[test]
fn raw_settings_are_checked_before_a_queue_is_created() {
    let usual = RawSpec::default;
    let strip = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let delay_drop = RawReceive { delay_drop: true, ..RawReceive::default() };
    let rate = |kbps| Some(RateLimit { kbps, ..RateLimit::default() });
    let wide = FlowRule { tag: Some(1 << 24), ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
    for (caps, queues, spec, expected) in [
        (
            0,
            1,
            RawSpec { receive: strip, ..usual() },
            "fake: the device does not support VLAN stripping; help: remove ",
        ),
        (
            0,
            1,
            RawSpec { checksum: true, ..usual() },
            "fake: the device does not support checksums of raw packets; help: remove \"checksum\"",
        ),
        (8, 1, RawSpec { receive: delay_drop, ..usual() }, "use more than one worker"),
        (0, 1, RawSpec { rate: rate(5), ..usual() }, "fake: rate in kbit/s: 5 is not in the range 10 to 1000"),
        (0, 1, RawSpec { rules: vec![wide], ..usual() }, "fake: tag 0x1000000 does not fit in 24 bits"),
    ] {
        let test = test_device_with(caps);
        let error = test.device.check_raw(&spec, queues).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(test.fake.calls(), []);
        test.device.check_raw(&usual(), queues).unwrap();
    }
}

/// If the device could not create a raw-packet queue pair when it was opened, `check_raw` returns the reason. The
/// device may be able to create a raw-packet queue pair later. `check_raw` still refuses the settings of the port,
/// because such a queue pair would receive frames without these settings.
#[test]
fn raw_settings_are_refused_with_the_reason_if_raw_packets_are_missing() {
    for (errno, reason) in [
        (libc::EOPNOTSUPP, "ibv_create_qp failed: Operation not supported"),
        (libc::EPERM, "ibv_create_qp failed: Operation not permitted (os error 1); help: run `setcap "),
    ] {
        let test = test_device_of("fake", 0, |fake| fake.refuse("ibv_create_qp", errno));
        test.fake.refuse("ibv_create_qp", 0);
        let has = &test.device.capabilities().has;
        assert!(!has.contains(&dataplane_core::verbs::Capability::RawPacket), "{has:?}");
        let error = test.device.check_raw(&RawSpec::default(), 1).unwrap_err().to_string();
        assert!(error.starts_with(&format!("fake: the device creates no raw-packet queue pairs: {reason}")), "{error}");
        assert_eq!(test.fake.calls(), []);
    }
}

/// If the device was opened without enough lockable memory, `check_raw` returns the remedy.
#[test]
fn error_of_missing_raw_packet_support_names_the_remedy_for_locked_memory() {
    let test = test_device_of("fake", 0, |fake| {
        for verb in ["ibv_create_cq_ex", "ibv_create_cq"] {
            fake.refuse(verb, libc::ENOMEM);
        }
    });
    let error = test.device.check_raw(&RawSpec::default(), 1).unwrap_err().to_string();
    assert!(error.contains("Cannot allocate memory") && error.contains("; help: "), "{error}");
}

/// A completion queue with a completion channel may be refused, although a channel can be created. The device then has
/// no events.
#[test]
fn events_need_a_completion_queue_with_a_channel() {
    use dataplane_core::verbs::Capability::Events;
    assert!(test_device().device.capabilities().has.contains(&Events));
    let test = test_device_of("efa", 0, Fake::refuses_channels);
    test.device.create_channel().unwrap();
    let missing = &test.device.probed().missing;
    let why = missing.iter().find(|missing| missing.capability == Events).map(|missing| missing.why.as_str());
    assert!(why.is_some_and(|why| why.contains("Operation not supported")), "{missing:?}");
}

/// An iWARP device creates queue pairs of type rc, but cannot connect them without rdma_cm.
#[test]
fn iwarp_device_has_no_reliable_connections() {
    use dataplane_core::connect::EndpointParameters;
    use dataplane_core::verbs::Capability::{RawPacket, Rc, Timestamps};
    let test = test_device_of("irdma", 0, Fake::uses_iwarp);
    let has = &test.device.capabilities().has;
    assert!(!has.contains(&Rc) && has.contains(&RawPacket) && has.contains(&Timestamps), "{has:?}");
    let error = EndpointParameters::default().resolve(&test.device, QpType::Rc).unwrap_err().to_string();
    assert!(error.contains("type IBV_QPT_RC: the device uses iWARP"), "{error}");
}

/// The driver of ionic accepts the flag `IGNORE_OVERRUN` of a completion queue, but ignores this flag.
#[test]
fn ionic_does_not_support_ignore_overrun() {
    use dataplane_core::verbs::Capability::IgnoreOverrun;
    assert!(test_device().device.capabilities().has.contains(&IgnoreOverrun));
    let test = test_device_of("ionic", 0, |_| {});
    assert!(!test.device.capabilities().has.contains(&IgnoreOverrun));
    assert!(test.device.missing_reason(IgnoreOverrun).is_some_and(|why| why.contains("ionic ignores")));
}

/// mlx4 reports RSS, but refuses every indirection table that contains a work queue more than once.
#[test]
fn mlx4_has_no_rss_for_several_workers() {
    use dataplane_core::verbs::Capability::Rss;
    let test = test_device_of("mlx4", 0, |_| {});
    assert!(!test.device.capabilities().has.contains(&Rss));
    let error = test.device.check_raw(&RawSpec::default(), 2).unwrap_err().to_string();
    assert!(error.ends_with("does not support RSS for raw packets; help: set workers = 1 in [runtime]"), "{error}");
    assert_eq!(test.fake.calls(), []);
    test.device.check_raw(&RawSpec::default(), 1).unwrap();
}

/// If the queue pair was created with an inline size, `post_send_run` sends each frame that fits within this size
/// inline.
#[test]
fn short_frames_of_a_run_are_sent_inline() {
    const INLINE: u32 = 1 << 3;
    const SIGNALED: u32 = 1 << 1;
    for (api, inline) in [(SendApi::Classic, 0), (SendApi::Classic, 64), (SendApi::Extended, 64)] {
        let test = test_device();
        let (cq, _) = test.device.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None).unwrap();
        let caps = QpCaps { send_depth: 16, recv_depth: 16, send_sges: 1, recv_sges: 1, inline };
        let pd = test.device.alloc_pd().unwrap();
        let spec = QpSpec { send_api: api, ..QpSpec::new(QpType::RawPacket, caps) };
        let mut qp = pd.create_qp(&spec, &cq, &cq, None).unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            to(&mut qp, state);
        }
        let layout = SlotLayout::new(128, 1600, 16).unwrap();
        let region = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let mr = pd.register(Arc::new(Region::allocate(region).unwrap().0), Access::LOCAL_WRITE).unwrap();
        qp.bind_slots(&mr, layout, 0).unwrap();
        let run = [60, 64, 65, 1500, 60].map(|len| Desc { slot: u32::from(len % 16), offset: 128, len });
        test.fake.calls();
        // SAFETY: the device moves no data.
        unsafe { qp.post_send_run(&RunSource::new(&run).run(), 7) }.unwrap();
        let calls = test.fake.calls();
        let flags: Vec<u32> = calls
            .iter()
            .flat_map(|call| match call {
                Call::PostSend(list) => list.iter().map(|send| send.flags).collect(),
                Call::Wr { flags, .. } => vec![*flags],
                _ => Vec::new(),
            })
            .collect();
        let short = if inline > 0 { INLINE } else { 0 };
        assert_eq!(flags, [short, short, 0, 0, short | SIGNALED], "{calls:?}");
        if api == SendApi::Extended {
            let copied = calls.iter().filter(|call| matches!(call, Call::WrInline(bytes) if bytes.len() <= 64));
            assert_eq!(copied.count(), 3, "{calls:?}");
        }
    }
}

/// Counters belong to the device that created them. On another device, the same handle would identify other counters.
#[test]
fn counters_of_another_device_are_refused() {
    let other = test_device();
    let counters = other.device.create_flow_counters().unwrap();
    for queues in [1, 2] {
        let mut test = test_device();
        let rule = FlowRule { count: Some(counters.clone()), ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
        test.set_raw(RawSpec { rules: vec![rule], ..RawSpec::default() });
        let (cq, _) = test.device.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None).unwrap();
        let caps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline: 0 };
        let spec = QpSpec { queue: (0, queues), ..QpSpec::new(QpType::RawPacket, caps) };
        test.fake.calls();
        let error = test.device.alloc_pd().unwrap().create_qp(&spec, &cq, &cq, None).map(drop).unwrap_err();
        assert_eq!((error.verb, error.errno), ("ibv_create_flow", libc::EINVAL));
        assert!(!test.fake.calls().iter().any(|call| matches!(call, Call::CreateQp { .. } | Call::CreateWq { .. })));
    }
}

/// `FlowCounters` keeps the counts of a destroyed rule, although the device no longer reports them.
#[test]
fn counts_of_destroyed_rules_are_kept() {
    let mut test = test_device();
    let counters = test.device.create_flow_counters().unwrap();
    let rule = FlowRule { count: Some(counters.clone()), ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
    test.set_raw(RawSpec { rules: vec![rule.clone(), FlowRule { drop: true, ..rule }], ..RawSpec::default() });
    let (cq, qp) = started(&test, (0, 1), SendApi::Classic);
    test.fake.counts(&[3, 180]);
    drop(qp);
    let calls = test.fake.calls();
    let at = |wanted: fn(&Call) -> bool| calls.iter().position(wanted).unwrap();
    assert!(at(|call| matches!(call, Call::ReadCounters { .. })) < at(|call| matches!(call, Call::DestroyFlow(_))));
    test.fake.counts(&[0, 0]);
    assert_eq!(counters.read().unwrap(), FlowCount { packets: 3, bytes: 180 });
    drop((cq, counters));
    test.set_raw(RawSpec::default());
    assert_eq!(test.fake.calls().last(), Some(&Call::DestroyCounters));
}
