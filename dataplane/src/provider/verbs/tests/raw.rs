//! Queue pairs of raw packets, from the traits down to what the driver is asked for.

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{ibv_device_attr_ex, ibv_packet_pacing_caps, ibv_rss_caps, ibv_tso_caps};

use crate::mem::{Desc, Loose, PageKind, Region, RegionSpec, SlotLayout};
use crate::provider::verbs::fake::{Call, Completion, Fake, Op, Poll};
use crate::provider::verbs::ffi::Wc;
use crate::provider::verbs::{
    FlowCount, FlowRule, FlowTraffic, RateLimit, RawReceive, RawSpec, SelfTest, VerbsCq, VerbsDevice, VerbsQp,
};
use crate::provider::{
    Access, CompletionQueue, Completions, CqApi, CqSpec, Cursor, Device, MemoryRegion, PollFields, ProtectionDomain,
    QpAttributes, QpCaps, QpSpec, QpState, QpType, QueuePair, RecvRequest, SendApi, SendFlags, SendOp, SendRequest,
    Sge,
};

/// A device with all offloads, and its fake. The device goes first.
pub(super) struct Bed {
    pub(super) device: VerbsDevice,
    pub(super) fake: Fake,
}

/// A device that has all but checksums.
pub(super) fn bed() -> Bed {
    bed_with(1 | 2 | 8)
}

/// `caps`: `IBV_RAW_PACKET_CAP_*`.
fn bed_with(caps: u32) -> Bed {
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
    let fake = Fake::with_attributes(attr, |_| {});
    let context = NonNull::new(fake.context()).unwrap();
    // SAFETY: the fake outlives the device, and closing it does nothing.
    let device = unsafe { VerbsDevice::new(context, "fake".to_owned()) }.unwrap();
    fake.calls();
    Bed { device, fake }
}

impl Bed {
    fn set_raw(&mut self, spec: RawSpec) {
        self.device = self.device.clone().with_raw(spec);
    }
}

fn queue(bed: &Bed, of: (u16, u16), send_api: SendApi) -> (VerbsCq, VerbsQp) {
    let fields = PollFields::STANDARD | PollFields::FLOW_TAG;
    let (cq, granted) = bed.device.create_cq(&CqSpec { depth: 64, fields, ..CqSpec::default() }, None).unwrap();
    assert_eq!((granted.api, granted.refused.len()), (CqApi::Extended, 0), "{granted}");
    let caps = QpCaps { send_depth: 16, recv_depth: 16, send_sges: 2, recv_sges: 1, inline: 0 };
    let spec = QpSpec { queue: of, send_api, ..QpSpec::new(QpType::RawPacket, caps) };
    let pd = bed.device.alloc_pd().unwrap();
    let qp = pd.create_qp(&spec, &cq, &cq, None).unwrap();
    (cq, qp)
}

fn to(qp: &mut VerbsQp, state: QpState) {
    let (attributes, mask) = match state {
        QpState::Init => QpAttributes::init(QpType::RawPacket, 1, 0),
        other => QpAttributes::to(other),
    };
    qp.modify(&attributes, mask).unwrap();
}

fn started(bed: &Bed, of: (u16, u16), send_api: SendApi) -> (VerbsCq, VerbsQp) {
    let (cq, mut qp) = queue(bed, of, send_api);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&mut qp, state);
    }
    (cq, qp)
}

fn flows(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::CreateFlow { .. })).count()
}

#[test]
fn the_self_test_passes_and_rss_is_granted() {
    let bed = bed();
    assert!(matches!(bed.device.self_test(), SelfTest::Passed), "{:?}", bed.device.self_test());
    let has = &bed.device.capabilities().has;
    assert!(has.contains(&crate::provider::Capability::Rss) && has.contains(&crate::provider::Capability::RawPacket));
    assert_eq!(bed.device.raw_caps().pacing, Some((10, 1000)));
}

/// A queue alone: its queue pair strips tags, and a rule of the port comes with RTR.
#[test]
fn a_queue_alone_receives_by_its_queue_pair() {
    let mut bed = bed();
    let receive = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let rules = vec![FlowRule { tag: Some(7), ..FlowRule::new(FlowTraffic::ALL) }];
    bed.set_raw(RawSpec { receive, rules: rules.clone(), ..RawSpec::default() });
    let (cq, mut qp) = started(&bed, (0, 1), SendApi::Classic);
    let calls = bed.fake.calls();
    let number = bed.fake.last("qp");
    let created =
        Call::CreateQp { kind: 8, send: 16, recv: 16, comp_mask: 1 | 4, flags: 1 << 9, send_ops: 0, max_tso_header: 0 };
    assert!(calls.contains(&created), "{calls:?}");
    let rule = Call::CreateFlow { qp: number, bytes: rules[0].encode().unwrap() };
    assert_eq!(calls.iter().filter(|call| **call == rule).count(), 1, "{calls:?}");
    // SAFETY: the request names no memory.
    unsafe { qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }.unwrap();
    assert!(matches!(bed.fake.calls()[..], [Call::PostRecv(_)]));
    drop(qp);
    let calls = bed.fake.calls();
    assert!(matches!(calls[..], [Call::DestroyFlow(_), Call::DestroyQp(_)]), "{calls:?}");
    drop(cq);
}

/// Queues that share a port: frames come when all are there, receives go to work queues, an error takes the rules away.
#[test]
fn queues_of_a_port_receive_by_work_queues() {
    let bed = bed();
    let (_cq0, mut first) = started(&bed, (0, 2), SendApi::Classic);
    assert_eq!(flows(&bed.fake.calls()), 0, "one is missing");
    let (_cq1, second) = started(&bed, (1, 2), SendApi::Classic);
    let calls = bed.fake.calls();
    assert_eq!(flows(&calls), 7);
    let sends_only =
        Call::CreateQp { kind: 8, send: 16, recv: 0, comp_mask: 0, flags: 0, send_ops: 0, max_tso_header: 0 };
    assert!(calls.contains(&sends_only), "{calls:?}");
    assert_eq!((first.caps().recv_depth, first.caps().recv_sges), (16, 1));
    // SAFETY: the request names no memory.
    unsafe { first.post_recv(&[RecvRequest { wr_id: 5, sges: &[] }]) }.unwrap();
    let posted = bed.fake.calls();
    assert!(matches!(&posted[..], [Call::PostWqRecv { wq: 1, list }] if list[0].wr_id == 5), "{posted:?}");
    to(&mut first, QpState::Err);
    let calls = bed.fake.calls();
    assert!(calls.iter().any(|call| matches!(call, Call::DestroyFlow(_))), "{calls:?}");
    assert!(calls.iter().any(|call| matches!(call, Call::ModifyWq { wq: 1, state: 2, .. })), "{calls:?}");
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&mut first, state);
    }
    assert_eq!(flows(&bed.fake.calls()), 7);
    drop((first, second));
    assert!(!bed.fake.calls().iter().any(|call| matches!(call, Call::Misuse(_))));
}

/// What is not there is refused by name, and a third queue of two is none.
#[test]
fn queues_that_cannot_be_are_refused() {
    let mut bed = bed();
    let (cq, _) = queue(&bed, (0, 1), SendApi::Classic);
    let pd = bed.device.alloc_pd().unwrap();
    let caps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline: 0 };
    let create = |kind, queue| pd.create_qp(&QpSpec { queue, ..QpSpec::new(kind, caps) }, &cq, &cq, None);
    assert_eq!(create(QpType::RawPacket, (2, 2)).unwrap_err().errno, libc::EINVAL);
    assert_eq!(create(QpType::Ud, (0, 2)).unwrap_err().errno, libc::EOPNOTSUPP);
    let receive = RawReceive { delay_drop: true, ..RawReceive::default() };
    bed.set_raw(RawSpec { receive, ..RawSpec::default() });
    let pd = bed.device.alloc_pd().unwrap();
    let create = |kind, queue| pd.create_qp(&QpSpec { queue, ..QpSpec::new(kind, caps) }, &cq, &cq, None);
    assert_eq!(create(QpType::RawPacket, (0, 1)).unwrap_err().errno, libc::EOPNOTSUPP, "of work queues only");
    assert!(create(QpType::RawPacket, (0, 2)).is_ok());
    bed.fake.refuse("ibv_create_wq", libc::ENOMEM);
    assert_eq!(create(QpType::RawPacket, (0, 2)).unwrap_err().errno, libc::ENOMEM);
}

/// The tag of a rule stands where a receive's queue pair is: that is not given out.
#[test]
fn a_flow_tag_takes_the_place_of_the_number() {
    let bed = bed();
    let (mut cq, _qp) = started(&bed, (0, 1), SendApi::Classic);
    let receive = Wc { wr_id: 1, opcode: 128, byte_len: 60, qp_num: 0xabc, ..Wc::default() };
    let send = Wc { wr_id: 2, opcode: 0, qp_num: 0xabc, ..Wc::default() };
    let tagged = Completion { wc: receive, flow_tag: 0xabc, ..Completion::default() };
    let number = bed.fake.last("cq");
    bed.fake.polls(number, [Poll::Wc(tagged), Poll::Wc(Completion { wc: send, ..Completion::default() })]);
    let mut cursor = cq.start_poll().unwrap().unwrap();
    assert_eq!((cursor.get().flow_tag(), cursor.get().qp_num().map(|qp| qp.0)), (Some(0xabc), Some(0)));
    assert!(cursor.advance().unwrap());
    assert_eq!(cursor.get().qp_num().map(|qp| qp.0), Some(0xabc));
    drop(cursor);
    assert_eq!(cq.poll_run(&mut Completions::new(), 4), Ok(0));
}

/// Segmented sends and checksums, by both interfaces: what the device cannot do is refused before it is posted.
#[test]
fn offloads_of_sends_are_checked() {
    for api in [SendApi::Classic, SendApi::Extended] {
        let mut bed = bed();
        bed.set_raw(RawSpec { tso_header: 64, ..RawSpec::default() });
        let (_cq, mut qp) = started(&bed, (0, 1), api);
        let spec = RegionSpec { bytes: 4096, pages: PageKind::Normal, strict: false, node: None };
        let region = Arc::new(Region::allocate(spec).unwrap().0);
        let pd = bed.device.alloc_pd().unwrap();
        let mr = pd.register(region.clone(), Access::LOCAL_WRITE).unwrap();
        let sges = [Sge { addr: region.base().as_ptr().addr() as u64, length: 4096, lkey: mr.lkey() }];
        bed.fake.calls();
        let header = [0xaa; 54];
        let mut send = |op, flags| {
            // SAFETY: the device moves no data.
            unsafe { qp.post_send(&[SendRequest { wr_id: 3, op, flags, sges: &sges, to: None }]) }
        };
        let tso = |header, mss| SendOp::Tso { header, mss };
        assert_eq!(send(tso(&header[..13], 1448), SendFlags::empty()).unwrap_err().error.errno, libc::EINVAL);
        assert_eq!(send(tso(&[0; 65], 1448), SendFlags::empty()).unwrap_err().error.errno, libc::EINVAL);
        assert_eq!(send(tso(&header, 0), SendFlags::empty()).unwrap_err().error.errno, libc::EINVAL);
        // This device has no checksums of raw packets.
        assert_eq!(send(SendOp::Send, SendFlags::IP_CSUM).unwrap_err().error.errno, libc::EOPNOTSUPP);
        assert_eq!(bed.fake.calls(), []);
        send(tso(&header, 1448), SendFlags::SIGNALED).unwrap();
        let calls = bed.fake.calls();
        let built = Call::Wr { wr_id: 3, flags: 2, op: Op::Tso { header: header.to_vec(), mss: 1448 } };
        match api {
            SendApi::Extended => assert!(calls.contains(&built), "{calls:?}"),
            // IBV_WR_TSO
            SendApi::Classic => {
                assert!(matches!(&calls[..], [Call::PostSend(list)] if list[0].opcode == 10), "{calls:?}");
            }
        }
        let limit = RateLimit { kbps: 500, burst: 9000, packet: 0 };
        qp.set_rate_limit(limit).unwrap();
        let number = bed.fake.last("qp");
        let set = Call::RateLimit { qp: number, rate_limit: 500, burst: 9000, packet: 0, comp_mask: 0 };
        assert_eq!(bed.fake.calls(), [set]);
        assert_eq!(qp.set_rate_limit(RateLimit { kbps: 5, ..limit }).unwrap_err().errno, libc::EINVAL);
        to(&mut qp, QpState::Err);
        assert_eq!(qp.set_rate_limit(limit).unwrap_err().errno, libc::EINVAL);
    }
}

/// What a port is to do to what it sends: every send of a run says so, and the rate is set each time that RTS is reached.
#[test]
fn runs_of_sends_get_checksums_and_a_rate() {
    const CSUM: u32 = 1 << 4;
    const SIGNALED: u32 = 1 << 1;
    for api in [SendApi::Classic, SendApi::Extended] {
        let mut bed = bed_with(4);
        let rate = RateLimit { kbps: 500, burst: 9000, packet: 64 };
        bed.set_raw(RawSpec { checksum: true, rate: Some(rate), ..RawSpec::default() });
        bed.device.check_raw(1).unwrap();
        let (_cq, mut qp) = started(&bed, (0, 1), api);
        let set = Call::RateLimit { qp: bed.fake.last("qp"), rate_limit: 500, burst: 9000, packet: 64, comp_mask: 0 };
        assert_eq!(bed.fake.calls().last(), Some(&set));
        for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts] {
            to(&mut qp, state);
        }
        assert_eq!(bed.fake.calls().last(), Some(&set));
        let layout = SlotLayout::new(128, 1600, 16).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let region = Arc::new(Region::allocate(spec).unwrap().0);
        let pd = bed.device.alloc_pd().unwrap();
        let mr = pd.register(region, Access::LOCAL_WRITE).unwrap();
        qp.bind_slots(&mr, layout, 0).unwrap();
        let run: Vec<Desc> = (0..3).map(|slot| Desc { slot, offset: 128, len: 60 }).collect();
        for _ in 0..2 {
            bed.fake.calls();
            // SAFETY: the device moves no data.
            unsafe { qp.post_send_run(&Loose::new(&run).run(), 7) }.unwrap();
            let calls = bed.fake.calls();
            let flags: Vec<u32> = calls
                .iter()
                .flat_map(|call| match call {
                    Call::PostSend(list) => list.iter().map(|send| send.flags).collect(),
                    Call::Wr { flags, .. } => vec![*flags],
                    _ => Vec::new(),
                })
                .collect();
            assert_eq!(flags, [CSUM, CSUM, CSUM | SIGNALED], "{api:?}: {calls:?}");
        }
    }
}

/// What a device cannot do is said before anything is made.
#[test]
fn a_wish_is_checked_before_a_queue_is_made() {
    let usual = RawSpec::default;
    let strip = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let patient = RawReceive { delay_drop: true, ..RawReceive::default() };
    let rate = |kbps| Some(RateLimit { kbps, ..RateLimit::default() });
    let wide = FlowRule { tag: Some(1 << 24), ..FlowRule::new(FlowTraffic::ALL) };
    for (caps, queues, spec, said) in [
        (0, 1, RawSpec { receive: strip, ..usual() }, "fake: the device has no VLAN stripping: leave it out"),
        (
            0,
            1,
            RawSpec { checksum: true, ..usual() },
            "fake: the device has no checksums of raw packets: leave them out",
        ),
        (8, 1, RawSpec { receive: patient, ..usual() }, "receive on more than one queue"),
        (0, 1, RawSpec { rate: rate(5), ..usual() }, "fake: kbit/s: 5 asked for, 10 to 1000 is possible"),
        (0, 1, RawSpec { rules: vec![wide], ..usual() }, "fake: tag 0x1000000: it has 24 bits"),
    ] {
        let mut bed = bed_with(caps);
        bed.set_raw(spec);
        let error = bed.device.check_raw(queues).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(bed.fake.calls(), []);
        bed.set_raw(usual());
        bed.device.check_raw(queues).unwrap();
    }
}

/// What a rule has counted is there after it has gone, though the device shows nothing of it any more.
#[test]
fn what_was_counted_is_kept() {
    let mut bed = bed();
    let counters = Arc::new(bed.device.create_flow_counters().unwrap());
    let rule = FlowRule { count: Some(counters.clone()), ..FlowRule::new(FlowTraffic::ALL) };
    bed.set_raw(RawSpec { rules: vec![rule.clone(), FlowRule { drop: true, ..rule }], ..RawSpec::default() });
    let (cq, qp) = started(&bed, (0, 1), SendApi::Classic);
    bed.fake.counts(&[3, 180]);
    drop(qp);
    let calls = bed.fake.calls();
    let at = |wanted: fn(&Call) -> bool| calls.iter().position(wanted).unwrap();
    assert!(at(|call| matches!(call, Call::ReadCounters { .. })) < at(|call| matches!(call, Call::DestroyFlow(_))));
    bed.fake.counts(&[0, 0]);
    assert_eq!(counters.read().unwrap(), FlowCount { packets: 3, bytes: 180 });
    drop((cq, counters));
    bed.set_raw(RawSpec::default());
    assert_eq!(bed.fake.calls().last(), Some(&Call::DestroyCounters));
}
