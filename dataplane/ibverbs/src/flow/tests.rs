//! Tests of the encoded rules. The expected bytes were written by hand from verbs.h and ibv_create_flow(3). The
//! expected bytes of host-order fields are little-endian, so the comparisons with expected bytes run only on
//! little-endian hosts.
#![allow(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::*;
use proptest::prelude::*;

use super::super::context::Context;
use super::super::fake::{Call, Fake};
use super::super::ffi;
use super::super::tests::strategies::{bits, header_match};
use super::object::Flow;
use super::*;
use dataplane_core::verbs::{
    EthernetMatch, FlowCount, FlowLimits, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match,
    MaskedValue, PortsMatch, TransportMatch, TunnelMatch,
};

/// Parses hexadecimal digits and ignores all other characters.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn headers(outer: HeaderMatch) -> FlowTraffic {
    FlowTraffic::Headers { outer, tunnel: None }
}

fn tcp(src: MaskedValue<2>, dst: MaskedValue<2>) -> Option<TransportMatch> {
    Some(TransportMatch::Tcp(PortsMatch { src, dst }))
}

fn ip4() -> Option<IpMatch> {
    Some(IpMatch::V4(Ipv4Match::default()))
}

#[cfg(target_endian = "little")]
#[test]
fn rule_with_all_layers_is_encoded() {
    let rule = FlowRule {
        port: 2,
        priority: 0x0103,
        tag: Some(0x00ab_cdef),
        ..FlowRule::new(headers(HeaderMatch {
            ethernet: Some(EthernetMatch {
                dst: [0x66, 0x11, 0x22, 0x33, 0x44, 0x55].into(),
                ether_type: 0x0800.into(),
                vlan_tag: EthernetMatch::vlan(0x0123),
                ..EthernetMatch::default()
            }),
            ip: Some(IpMatch::V4(Ipv4Match { src: Ipv4Addr::new(11, 134, 200, 6).into(), ..Ipv4Match::default() })),
            transport: tcp(MaskedValue::ANY, 443.into()),
        }))
    };
    let expected = hex(
        // comp_mask, NORMAL, size 112, priority, 4 specs, port 2, padding, flags.
        "00000000 00000000 7000 0301 04 02 0000 00000000
         20000000 2800 661122334455 000000000000 0800 0123 ffffffffffff 000000000000 ffff 0fff 0000
         30000000 1800 0000 0b86c806 00000000 ffffffff 00000000
         40000000 1000 01bb 0000 ffff 0000 0000
         00100000 0c00 0000 efcdab00",
    );
    assert_eq!(encode_flow_rule(&rule), Ok(expected));
    assert_eq!(rule.partial_masks(), [""; 0], "a mask of all bits of the VLAN identifier is not partial");
}

#[cfg(target_endian = "little")]
#[test]
fn ipv6_and_extended_ipv4_headers_are_encoded() {
    let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let ipv6 = FlowRule::new(headers(HeaderMatch {
        ip: Some(IpMatch::V6(Ipv6Match {
            dst: address.into(),
            flow_label: 0x000b_cdef.into(),
            traffic_class: 0x2e.into(),
            hop_limit: 64.into(),
            ..Ipv6Match::default()
        })),
        transport: Some(TransportMatch::Udp(PortsMatch { src: 53.into(), dst: MaskedValue::ANY })),
        ..HeaderMatch::default()
    }));
    let expected = hex("00000000 00000000 7c00 0000 02 01 0000 00000000
         31000000 5800 0000
         00000000000000000000000000000000 20010db8000000000000000000000001 000bcdef 00 2e 40 00
         00000000000000000000000000000000 ffffffffffffffffffffffffffffffff 000fffff 00 ff ff 00
         41000000 1000 0000 0035 0000 ffff 0000");
    assert_eq!(encode_flow_rule(&ipv6), Ok(expected));
    assert_eq!(ipv6.partial_masks(), [""; 0], "a mask of all 20 bits of the flow label is not partial");

    let extended = FlowRule::new(headers(HeaderMatch {
        ip: Some(IpMatch::V4(Ipv4Match {
            dst: Ipv4Addr::new(192, 0, 2, 1).into(),
            protocol: 47.into(),
            tos: 0xb8.into(),
            ttl: 1.into(),
            flags: 2.into(),
            ..Ipv4Match::default()
        })),
        ..HeaderMatch::default()
    }));
    let expected = hex("00000000 00000000 3400 0000 01 01 0000 00000000
         32000000 2000 0000 00000000 c0000201 2f b8 01 02 00000000 ffffffff ff ff ff ff");
    assert_eq!(encode_flow_rule(&extended), Ok(expected));
}

#[cfg(target_endian = "little")]
#[test]
fn tunnels_and_inner_headers_are_encoded() {
    let inner = HeaderMatch {
        ethernet: Some(EthernetMatch { src: [2, 0, 0, 0, 0, 1].into(), ..EthernetMatch::default() }),
        ip: ip4(),
        transport: tcp(1.into(), MaskedValue::ANY),
    };
    let inner_bytes = "
        20010000 2800 000000000000 020000000001 0000 0000 000000000000 ffffffffffff 0000 0000 0000
        30010000 1800 0000 00000000 00000000 00000000 00000000
        40010000 1000 0000 0001 0000 ffff 0000";
    for (tunnel, head, bytes) in [
        (TunnelMatch::Vxlan { vni: 0x0001_2345.into() }, "7400", "50000000 1000 0000 00012345 00ffffff"),
        (
            TunnelMatch::Gre { flags: 0x2000.into(), protocol: 0x6558.into(), key: 7.into() },
            "7c00",
            "51000000 1800 0000 2000 6558 00000007 ffff ffff ffffffff",
        ),
        (
            TunnelMatch::Mpls { label: MaskedValue::masked([0, 1, 0, 0], [0xff, 0xff, 0xf0, 0]) },
            "7400",
            "60000000 1000 0000 00010000 fffff000",
        ),
    ] {
        let traffic = FlowTraffic::Headers { outer: HeaderMatch::default(), tunnel: Some((tunnel, inner)) };
        let head = format!("00000000 00000000 {head} 0000 04 01 0000 00000000");
        assert_eq!(
            encode_flow_rule(&FlowRule::new(traffic)),
            Ok(hex(&format!("{head}{bytes}{inner_bytes}"))),
            "{tunnel:?}"
        );
    }
}

#[cfg(target_endian = "little")]
#[test]
fn rules_without_headers_are_encoded() {
    for (traffic, kind) in
        [(FlowTraffic::AllDefault, "01"), (FlowTraffic::MulticastDefault, "02"), (FlowTraffic::Sniffer, "03")]
    {
        let expected = hex(&format!("00000000 {kind}000000 1400 0000 00 01 0000 00000000"));
        assert_eq!(encode_flow_rule(&FlowRule::new(traffic)), Ok(expected), "{traffic:?}");
    }
}

/// A rule for frames with any headers has one specification: an Ethernet header with an empty mask.
#[cfg(target_endian = "little")]
#[test]
fn rule_for_any_headers_is_encoded_as_empty_ethernet_match() {
    let every_frame = FlowRule { dont_trap: true, ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
    let empty_match = "00".repeat(34);
    let expected = hex(&format!("00000000 00000000 3c00 0000 01 01 0000 02000000 20000000 2800 {empty_match}"));
    assert_eq!(encode_flow_rule(&every_frame), Ok(expected));
}

fn context_of(fake: &Fake) -> Arc<Context> {
    // SAFETY: the fake outlives the context, and closing the context has no effect.
    Arc::new(unsafe { Context::new(NonNull::new(fake.context()).unwrap(), "fake".to_owned()) }.unwrap())
}

#[test]
fn encoded_rule_reaches_the_driver_unchanged_and_is_destroyed_with_its_flow() {
    let fake = Fake::new(|_| {});
    fake.counts(&[5, 320]);
    let mut attr = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET, ..Default::default() };
    // SAFETY: the objects belong to the same device and are destroyed before it.
    unsafe {
        let qp = ffi::ibv_create_qp(fake.pd().as_ptr(), &mut attr).unwrap();
        let context = context_of(&fake);
        let counters = Arc::new(VerbsFlowCounters::create(&context).unwrap());
        assert_eq!(
            fake.calls()[1..],
            [
                Call::CreateCounters,
                Call::AttachCounters { description: IBV_COUNTER_PACKETS, index: 0, flow: false },
                Call::AttachCounters { description: IBV_COUNTER_BYTES, index: 1, flow: false },
            ]
        );
        let rule =
            FlowRule { drop: true, count: Some(counters.clone()), ..FlowRule::new(headers(HeaderMatch::default())) };
        let flow = Flow::create(qp, &rule, &FlowLimits::NONE).unwrap();
        let bytes = encode_flow_rule(&rule).unwrap();
        assert_eq!(fake.calls(), [Call::CreateFlow { qp: 1, bytes: bytes.clone() }]);
        let address = counters.counters.as_ptr().addr().to_ne_bytes();
        let actions = [&hex("03100000 1000 0000")[..], &address, &hex("01100000 0800 0000")].concat();
        if cfg!(target_endian = "little") {
            assert_eq!(bytes[60..], actions);
        }
        drop((rule, counters));
        assert_eq!(fake.calls(), [], "the flow rule keeps its counters");
        drop(flow);
        assert_eq!(
            fake.calls(),
            [Call::ReadCounters { count: 2, flags: 0 }, Call::DestroyFlow(1), Call::DestroyCounters]
        );
        ffi::ibv_destroy_qp(qp.as_ptr()).unwrap();
    }
    assert_eq!(fake.live(), 0);
}

/// The kernel refuses to read counters that no rule uses. But the program reads such counters in three cases: before
/// the rules exist, while the queues of a port recover, and for the final report of a run.
#[test]
fn counters_keep_their_counts_while_no_rule_uses_them() {
    let fake = Fake::new(|_| {});
    let mut attr = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET, ..Default::default() };
    let count = |packets, bytes| Ok(FlowCount { packets, bytes });
    // SAFETY: the objects belong to the same device and are destroyed before it.
    unsafe {
        let qp = ffi::ibv_create_qp(fake.pd().as_ptr(), &mut attr).unwrap();
        let counters = Arc::new(VerbsFlowCounters::create(&context_of(&fake)).unwrap());
        assert_eq!(counters.read(), count(0, 0), "no rule exists yet");
        let rule = FlowRule { count: Some(counters.clone()), ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
        for (packets, bytes) in [(5, 320), (7, 448)] {
            let flow = Flow::create(qp, &rule, &FlowLimits::NONE).unwrap();
            fake.counts(&[packets, bytes]);
            drop(flow);
            assert_eq!(counters.read(), count(packets, bytes), "the rule is destroyed");
        }
        let flow = Flow::create(qp, &rule, &FlowLimits::NONE).unwrap();
        fake.refuse("ibv_read_counters", libc::EIO);
        assert_eq!(counters.read().unwrap_err().errno, libc::EIO, "any other error is returned");
        drop((flow, rule, counters));
        ffi::ibv_destroy_qp(qp.as_ptr()).unwrap();
    }
    assert_eq!(fake.live(), 0);
}

#[test]
fn counters_are_destroyed_when_attaching_fails() {
    let fake = Fake::new(|_| {});
    fake.refuse("ibv_attach_counters_point_flow", libc::EOPNOTSUPP);
    let made = VerbsFlowCounters::create(&context_of(&fake));
    assert_eq!(made.unwrap_err().verb, "ibv_attach_counters_point_flow");
    assert_eq!(fake.live(), 0);
}

/// If the device refuses a rule with partial masks, the error names the partially matched fields.
#[test]
fn refused_partial_mask_is_named_in_the_error() {
    let subnet = MaskedValue::prefix([10, 1, 2, 3], 12);
    assert_eq!(subnet, MaskedValue::masked([10, 0, 0, 0], [255, 240, 0, 0]));
    let rule = FlowRule::new(headers(HeaderMatch {
        ip: Some(IpMatch::V4(Ipv4Match { src: subnet, ..Ipv4Match::default() })),
        transport: tcp(MaskedValue::ANY, MaskedValue::masked([0, 0x50], [0xff, 0xf0])),
        ..HeaderMatch::default()
    }));
    assert_eq!(rule.partial_masks(), vec!["ipv4 src", "dst port"]);
    let fake = Fake::new(|_| {});
    let mut attr = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET, ..Default::default() };
    // SAFETY: the objects belong to the same device and are destroyed before it.
    unsafe {
        let qp = ffi::ibv_create_qp(fake.pd().as_ptr(), &mut attr).unwrap();
        for (errno, wanted) in [
            (libc::EINVAL, "only a part of ipv4 src, dst port"),
            (libc::EPERM, "CAP_NET_RAW"),
            (libc::EOPNOTSUPP, "the device does not support this flow rule"),
        ] {
            fake.refuse("ibv_create_flow", errno);
            let error = Flow::create(qp, &rule, &FlowLimits::NONE).unwrap_err().to_string();
            assert!(error.starts_with("ibv_create_flow failed") && error.contains(wanted), "{error}");
        }
        fake.refuse("ibv_create_flow", 0);
        drop(Flow::create(qp, &rule, &FlowLimits::NONE).unwrap());
        ffi::ibv_destroy_qp(qp.as_ptr()).unwrap();
    }
    assert_eq!(fake.live(), 0);
    let bare = Fake::new(|verbs| verbs.ibv_create_flow = None);
    let mut qp = ibv_qp { context: bare.context(), ..Default::default() };
    // SAFETY: only the context of the queue pair is accessed.
    let error = unsafe { Flow::create(NonNull::from(&mut qp), &rule, &FlowLimits::NONE) }.unwrap_err();
    assert!(error.to_string().contains("ibv_create_flow"), "{error}");
}

proptest! {
    /// Every rule is either refused or well-formed: the sizes add up, the spec types are known, and no value has a bit
    /// outside its mask.
    #[test]
    fn every_rule_is_refused_or_well_formed(
        outer in header_match(), inner in header_match(), tunnel in any::<bool>(), vni in bits(),
        tag: Option<u32>, priority: u16, port: u8,
    ) {
        let tunnel = tunnel.then_some((TunnelMatch::Vxlan { vni }, inner));
        let traffic = FlowTraffic::Headers { outer, tunnel };
        let rule = FlowRule { tag, priority, port, ..FlowRule::new(traffic) };
        let Ok(bytes) = encode_flow_rule(&rule) else { return Ok(()) };
        let number = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        prop_assert_eq!(number(8), bytes.len());
        let (mut at, mut specs) = (20, 0);
        while at < bytes.len() {
            let kind = u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            let (size, value, filter) = match kind & !IBV_FLOW_SPEC_INNER {
                IBV_FLOW_SPEC_ETH => (40, 6, 16),
                IBV_FLOW_SPEC_IPV4 => (24, 8, 8),
                IBV_FLOW_SPEC_IPV4_EXT => (32, 8, 12),
                IBV_FLOW_SPEC_IPV6 => (88, 8, 40),
                IBV_FLOW_SPEC_TCP | IBV_FLOW_SPEC_UDP => (16, 6, 4),
                IBV_FLOW_SPEC_VXLAN_TUNNEL => (16, 8, 4),
                IBV_FLOW_SPEC_ACTION_TAG => (12, 8, 0),
                other => return Err(TestCaseError::fail(format!("type {other:#x}"))),
            };
            prop_assert_eq!(number(at + 4), size);
            let values = &bytes[at + value..at + value + filter];
            let masks = &bytes[at + value + filter..at + value + 2 * filter];
            prop_assert!(values.iter().zip(masks).all(|(value, mask)| value & !mask == 0));
            at += size;
            specs += 1;
        }
        prop_assert_eq!((at, specs), (bytes.len(), bytes[12]));
    }
}
