//! Tests of the calls that a device receives. The man pages define the expected calls.

use proptest::prelude::*;

use super::super::fake::flow::FakeFlow;
use super::super::fake::{Call, Fake, Recv};
use super::super::flow::encode_flow_rule;
use super::super::tests::strategies::header_match;
use super::*;
use dataplane_core::verbs::{EthernetMatch, Ipv4Match, PortsMatch};

const CAPS: RssCaps = RssCaps { max_tables: 64, max_table_size: 512, max_work_queues: 64, fields: 0xff };

fn caps() -> RawPacketCaps {
    RawPacketCaps { vlan_strip: true, scatter_fcs: true, delay_drop: true, rss: Some(CAPS), ..Default::default() }
}

/// Creates `count` work queues of a fake device, each with its own completion queue.
fn queues(fake: &Fake, count: usize, receive: RawReceive) -> (Vec<NonNull<ibv_cq>>, Vec<WorkQueue>) {
    // SAFETY: the objects belong to the same device and are destroyed before it.
    unsafe {
        let cq = |_| ffi::ibv_create_cq(fake.context(), 8, ptr::null_mut(), ptr::null_mut(), 0).unwrap();
        let cqs: Vec<NonNull<ibv_cq>> = (0..count).map(cq).collect();
        let spec = WorkQueueSpec { depth: 100, sges: 2, receive };
        let wq = |cq: &NonNull<ibv_cq>| {
            WorkQueue::create(fake.context(), fake.pd().as_ptr(), cq.as_ptr(), spec, &caps()).unwrap()
        };
        let wqs = cqs.iter().map(wq).collect();
        (cqs, wqs)
    }
}

#[test]
fn work_queue_is_created_posted_to_and_reset() {
    let fake = Fake::new(|_| {});
    let receive = RawReceive { vlan_strip: true, scatter_fcs: false, delay_drop: true };
    let (cqs, mut wqs) = queues(&fake, 1, receive);
    let mut wq = wqs.remove(0);
    assert_eq!(wq.spec(), WorkQueueSpec { depth: 128, sges: 2, receive });
    wq.set_state(WqState::Ready).unwrap();
    let mut sge = ibv_sge { addr: 4096, length: 2048, lkey: 9 };
    let mut wr = ibv_recv_wr { wr_id: 77, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
    let mut bad = ptr::null_mut();
    // SAFETY: the fake device moves no data, so no memory is accessed.
    unsafe {
        ffi::ibv_post_wq_recv(wq.as_ptr().as_ptr(), &mut wr, &mut bad).unwrap();
        fake.refuse("ibv_post_wq_recv", libc::ENOMEM);
        let posted = ffi::ibv_post_wq_recv(wq.as_ptr().as_ptr(), &mut wr, &mut bad);
        assert_eq!(posted, Err(VerbError::new("ibv_post_wq_recv", libc::ENOMEM)));
    }
    assert_eq!(bad, &raw mut wr);
    wq.set_state(WqState::Reset).unwrap();
    drop(wq);
    let list = vec![Recv { wr_id: 77, sges: vec![(4096, 2048, 9)] }];
    let modify = |state| Call::ModifyWq { wq: 1, mask: 1, state, current: 0, flags: 0, flags_mask: 0 };
    assert_eq!(
        fake.calls()[1..],
        [
            // The kind 0 is the type RQ. The `comp_mask` marks the flags as valid.
            Call::CreateWq { kind: 0, max_wr: 100, max_sge: 2, cq: 1, comp_mask: 1, flags: 5 },
            modify(1),
            Call::PostWqRecv { wq: 1, list: list.clone() },
            Call::PostWqRecv { wq: 1, list },
            modify(0),
            Call::DestroyWq(1),
        ]
    );
    // SAFETY: the completion queue belongs to this device.
    unsafe { ffi::ibv_destroy_cq(cqs[0].as_ptr()).unwrap() };
    assert_eq!(fake.live(), 0);
}

#[test]
fn each_traffic_class_hashes_its_own_fields() {
    let all: Vec<u64> = TrafficClass::ALL.iter().map(|class| class.hashed(RssFields::ALL)).collect();
    assert_eq!(all, [1 + 2 + 16 + 32, 1 + 2 + 64 + 128, 4 + 8 + 16 + 32, 4 + 8 + 64 + 128, 1 + 2, 4 + 8, 0]);
    let few = RssFields { ipv4: false, ipv6: true, tcp: true, udp: false };
    let few: Vec<u64> = TrafficClass::ALL.iter().map(|class| class.hashed(few)).collect();
    assert_eq!(few, [16 + 32, 0, 4 + 8 + 16 + 32, 4 + 8, 0, 4 + 8, 0]);
}

/// Distributes all frames over three queues with seven queue pairs, each with one rule. Each queue pair with
/// hashed fields uses the table that lists all queues.
#[test]
fn all_frames_are_distributed_over_three_queues() {
    let fake = Fake::new(|_| {});
    let (cqs, wqs) = queues(&fake, 3, RawReceive::default());
    let list: Vec<NonNull<ibv_wq>> = wqs.iter().map(WorkQueue::as_ptr).collect();
    fake.calls();
    let rules = [FlowRule { tag: Some(5), priority: 2, ..FlowRule::new(FlowTraffic::ANY_HEADERS) }];
    // SAFETY: the objects belong to the same device. The work queues are destroyed after the RSS group and before the
    // device.
    let rss_group =
        unsafe { RssGroup::create(fake.context(), fake.pd().as_ptr(), &list, &RssSpec::STANDARD, &rules, &caps()) }
            .unwrap();
    let calls = fake.calls();
    let filled: Vec<u32> = (0..128).map(|at| at % 3 + 1).collect();
    assert_eq!(calls[0], Call::CreateTable { log_size: 7, wqs: filled, comp_mask: 0 });
    assert_eq!(calls[1], Call::CreateTable { log_size: 0, wqs: vec![1], comp_mask: 0 });
    let key = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa";
    let key: Vec<u8> = (0..40).map(|at| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).unwrap()).collect();
    for (at, fields) in [51, 195, 60, 204, 3, 12, 0].into_iter().enumerate() {
        let table = if fields == 0 { 2 } else { 1 };
        // The kind is `RAW_PACKET`. The `comp_mask` contains PD, IND_TABLE and RX_HASH. The function is Toeplitz.
        let wanted =
            Call::CreateHashQp { kind: 8, comp_mask: 1 | 16 | 32, table, function: 1, key: key.clone(), fields };
        assert_eq!(calls[2 + at], wanted);
    }
    // The types of the flow specs (`enum ibv_flow_spec_type`) and the priority of each rule. A rule with more headers
    // has a smaller priority number, so it wins.
    let specs: [(&[u32], u16); 7] = [
        (&[0x30, 0x40, 0x1000], 6),
        (&[0x30, 0x41, 0x1000], 6),
        (&[0x31, 0x40, 0x1000], 6),
        (&[0x31, 0x41, 0x1000], 6),
        (&[0x30, 0x1000], 7),
        (&[0x31, 0x1000], 7),
        (&[0x20, 0x1000], 8),
    ];
    for (at, (kinds, priority)) in specs.into_iter().enumerate() {
        let Call::CreateFlow { qp, bytes } = &calls[9 + at] else { panic!("{:?}", calls[9 + at]) };
        assert_eq!(*qp as usize, at + 1);
        assert_eq!(u16::from_ne_bytes([bytes[10], bytes[11]]), priority);
        let mut found = Vec::new();
        let mut place = 20;
        while place < bytes.len() {
            found.push(u32::from_ne_bytes(bytes[place..place + 4].try_into().unwrap()));
            place += usize::from(u16::from_ne_bytes([bytes[place + 4], bytes[place + 5]]));
        }
        assert_eq!(found, kinds);
    }
    assert_eq!(calls.len(), 16);
    drop(rss_group);
    let ends = fake.calls();
    let order = |call: &Call| match call {
        Call::DestroyFlow(_) => 0,
        Call::DestroyQp(_) => 1,
        Call::DestroyTable(_) => 2,
        other => panic!("{other:?}"),
    };
    assert!(ends.is_sorted_by_key(order) && ends.len() == 16, "{ends:?}");
    drop(wqs);
    // SAFETY: the completion queues belong to this device.
    cqs.iter().for_each(|cq| unsafe { ffi::ibv_destroy_cq(cq.as_ptr()).unwrap() });
    assert_eq!(fake.live(), 0);
}

#[test]
fn narrow_rule_is_split_only_into_matching_classes() {
    let outer = |ip, transport| {
        let ethernet = Some(EthernetMatch { vlan_tag: EthernetMatch::vlan(7), ..EthernetMatch::default() });
        FlowRule::new(FlowTraffic::Headers { outer: HeaderMatch { ethernet, ip, transport }, tunnel: None })
    };
    let classes =
        |rule: &FlowRule| -> Vec<TrafficClass> { parts(rule).unwrap().into_iter().map(|(class, _)| class).collect() };
    let v4 = IpMatch::V4(Ipv4Match { dst: MaskedValue::exact([10, 0, 0, 1]), ..Ipv4Match::default() });
    let udp = TransportMatch::Udp(PortsMatch { dst: 53.into(), ..PortsMatch::default() });
    assert_eq!(classes(&outer(None, None)), TrafficClass::ALL);
    assert_eq!(classes(&outer(Some(v4), None)), [TrafficClass::Ipv4Tcp, TrafficClass::Ipv4Udp, TrafficClass::Ipv4]);
    assert_eq!(classes(&outer(Some(v4), Some(udp))), [TrafficClass::Ipv4Udp]);
    assert!(parts(&outer(None, Some(udp))).is_err(), "a match of ports needs an IP header");
    assert_eq!(classes(&FlowRule::new(FlowTraffic::Sniffer)), [TrafficClass::Other]);
    let (_, part) = &parts(&outer(Some(v4), Some(udp))).unwrap()[0];
    let FlowTraffic::Headers { outer: header, .. } = part.traffic else { panic!("{part:?}") };
    assert_eq!((header.ip, header.transport), (Some(v4), Some(udp)), "the matches of the rule are kept");
    assert!(header.ethernet.is_some());
    let last = FlowRule { priority: 21844, ..outer(None, None) };
    assert_eq!(parts(&last).unwrap()[6].1.priority, 65534);
    assert!(parts(&FlowRule { priority: 21845, ..last }).is_err());
}

#[test]
fn table_size_is_a_power_of_two_and_holds_every_queue() {
    let size = |queues, max_table_size| table_size(queues, &RssCaps { max_table_size, ..CAPS }).ok();
    assert_eq!((size(1, 512), size(3, 512), size(64, 128)), (Some(128), Some(128), Some(128)));
    assert_eq!((size(3, 100), size(3, 5), size(3, 2)), (Some(64), Some(4), None));
    assert_eq!((size(0, 512), size(65, 512), size(1, 0)), (None, None, Some(1)));
}

#[test]
fn unsupported_rss_is_refused_before_any_object_is_created() {
    let fake = Fake::new(|_| {});
    let (cqs, wqs) = queues(&fake, 2, RawReceive::default());
    let list: Vec<NonNull<ibv_wq>> = wqs.iter().map(WorkQueue::as_ptr).collect();
    fake.calls();
    let rules = [FlowRule::new(FlowTraffic::ANY_HEADERS)];
    let create = |rss: &RssCaps| {
        let caps = RawPacketCaps { rss: Some(*rss), ..caps() };
        // SAFETY: the objects belong to the same device. The work queues are destroyed after the RSS group and before
        // the device.
        unsafe { RssGroup::create(fake.context(), fake.pd().as_ptr(), &list, &RssSpec::STANDARD, &rules, &caps) }
    };
    for (caps, wanted) in [
        (RssCaps { max_table_size: 1, ..CAPS }, "number of RSS queues: 2 is not in the range 1 to 1"),
        (RssCaps { max_tables: 1, ..CAPS }, "number of indirection tables: 2 is not in the range"),
        (RssCaps { fields: 0x3f, ..CAPS }, "use fewer of"),
    ] {
        let error = create(&caps).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    assert_eq!(fake.calls(), []);
    // If a verb fails in the middle, all objects that were created before are destroyed.
    let live = fake.live();
    for verb in ["ibv_create_rwq_ind_table", "ibv_create_qp_ex", "ibv_create_flow"] {
        fake.refuse(verb, libc::ENOMEM);
        let error = create(&CAPS).unwrap_err().to_string();
        assert!(error.contains(verb), "{error}");
        assert_eq!(fake.live(), live, "{verb}");
        fake.refuse(verb, 0);
    }
    drop(wqs);
    // SAFETY: the completion queues belong to this device.
    cqs.iter().for_each(|cq| unsafe { ffi::ibv_destroy_cq(cq.as_ptr()).unwrap() });
    assert_eq!(fake.live(), 0);
}

/// A class that contradicts the rule gets no part, because no frame can match both.
#[test]
fn classes_that_contradict_the_rule_get_no_part() {
    use TrafficClass::{Ipv4, Ipv4Tcp, Ipv4Udp, Other};
    let of = |outer: HeaderMatch, tunnel: Option<TunnelMatch>| {
        let tunnel = tunnel.map(|tunnel| (tunnel, HeaderMatch::default()));
        FlowRule::new(FlowTraffic::Headers { outer, tunnel })
    };
    let kind = |ether_type| HeaderMatch {
        ethernet: Some(EthernetMatch { ether_type, ..EthernetMatch::default() }),
        ..HeaderMatch::default()
    };
    let v4 = |protocol| HeaderMatch {
        ip: Some(IpMatch::V4(Ipv4Match { protocol, ..Ipv4Match::default() })),
        ..HeaderMatch::default()
    };
    let gre = Some(TunnelMatch::Gre { flags: MaskedValue::ANY, protocol: 0x0800.into(), key: MaskedValue::ANY });
    let mpls = Some(TunnelMatch::Mpls { label: MaskedValue::ANY });
    let udp = Some(TransportMatch::Udp(PortsMatch::default()));
    for (rule, expected) in [
        (of(kind(0x88cc.into()), None), &[Other][..]),
        (of(kind(0x0800.into()), None), &[Ipv4Tcp, Ipv4Udp, Ipv4, Other]),
        // A mask of the upper byte: IPv4, but also ARP.
        (of(kind(MaskedValue::masked([8, 0], [0xff, 0])), None), &[Ipv4Tcp, Ipv4Udp, Ipv4, Other]),
        (of(v4(89.into()), None), &[Ipv4]),
        (of(v4(17.into()), None), &[Ipv4Udp, Ipv4]),
        (of(v4(MaskedValue::masked([1], [1])), None), &[Ipv4Udp, Ipv4]),
        (of(v4(MaskedValue::ANY), gre), &[Ipv4]),
        (of(HeaderMatch::default(), mpls), &[Other]),
        (of(v4(MaskedValue::ANY), mpls), &[Ipv4]),
        (of(HeaderMatch { transport: udp, ..v4(MaskedValue::ANY) }, mpls), &[Ipv4Udp]),
    ] {
        let parts = parts(&rule).unwrap();
        let classes: Vec<TrafficClass> = parts.iter().map(|(class, _)| *class).collect();
        assert_eq!(classes, expected, "{rule:?}");
        for (class, part) in parts {
            let kernel = FakeFlow::new(&encode_flow_rule(&part).unwrap());
            assert!(kernel.is_ok(), "{class:?}: {part:?}");
        }
    }
    let invalid = of(HeaderMatch { transport: udp, ..v4(6.into()) }, None);
    assert!(matches!(parts(&invalid), Err(FlowError::Protocol { .. })), "an invalid rule is an error, not empty");
}

proptest! {
    /// If the device accepts a rule for one queue, the device accepts the parts of the rule for several queues.
    #[test]
    fn every_accepted_rule_has_accepted_parts(
        outer in header_match(), inner in header_match(),
        tunnel in prop::option::of(prop_oneof![
            Just(TunnelMatch::Vxlan { vni: MaskedValue::ANY }),
            Just(TunnelMatch::Gre { flags: MaskedValue::ANY, protocol: MaskedValue::ANY, key: MaskedValue::ANY }),
            Just(TunnelMatch::Mpls { label: MaskedValue::ANY }),
        ]),
    ) {
        let traffic = FlowTraffic::Headers { outer, tunnel: tunnel.map(|tunnel| (tunnel, inner)) };
        let rule = FlowRule::new(traffic);
        let Ok(bytes) = encode_flow_rule(&rule) else { return Ok(()) };
        prop_assume!(FakeFlow::new(&bytes).is_ok());
        let parts = parts(&rule).unwrap();
        prop_assert!(!parts.is_empty());
        for (class, part) in parts {
            let kernel = encode_flow_rule(&part).map(|bytes| FakeFlow::new(&bytes).map(drop));
            prop_assert!(matches!(kernel, Ok(Ok(()))), "{:?}: {:?}: {:?}", class, part, kernel);
        }
    }
}
