//! Tests of the raw-packet settings.

use proptest::prelude::*;

use super::*;

fn headers(outer: HeaderMatch) -> FlowTraffic {
    FlowTraffic::Headers { outer, tunnel: None }
}

fn ip4() -> Option<IpMatch> {
    Some(IpMatch::V4(Ipv4Match::default()))
}

#[test]
fn invalid_combinations_are_refused_with_the_reason() {
    let good = || FlowRule::new(headers(HeaderMatch { ip: ip4(), ..HeaderMatch::default() }));
    let with = |header: HeaderMatch| FlowRule::new(headers(header));
    let tunnelled = |outer: HeaderMatch, tunnel, inner| {
        FlowRule::new(FlowTraffic::Headers { outer, tunnel: Some((tunnel, inner)) })
    };
    let v6 = Some(IpMatch::V6(Ipv6Match::default()));
    let eth = |ether_type: u16| Some(EthernetMatch { ether_type: ether_type.into(), ..EthernetMatch::default() });
    let udp = Some(TransportMatch::Udp(PortsMatch::default()));
    let tcp = Some(TransportMatch::Tcp(PortsMatch::default()));
    let none = HeaderMatch::default();
    let proto = |protocol: u8| Some(IpMatch::V4(Ipv4Match { protocol: protocol.into(), ..Ipv4Match::default() }));
    let gre = TunnelMatch::Gre { flags: MaskedValue::ANY, protocol: MaskedValue::ANY, key: MaskedValue::ANY };
    let vxlan = |vni: u32| TunnelMatch::Vxlan { vni: vni.into() };
    let label = Some(IpMatch::V6(Ipv6Match { flow_label: 0x10_0000.into(), ..Ipv6Match::default() }));
    for (rule, wanted) in [
        (FlowRule { port: 0, ..good() }, "ports start at 1"),
        (with(HeaderMatch { transport: tcp, ..none }), "a match of TCP ports needs an IP header"),
        (tunnelled(none, vxlan(1), HeaderMatch { transport: udp, ..none }), "a match of UDP ports needs an IP header"),
        (
            with(HeaderMatch { ethernet: eth(0x0806), ip: ip4(), ..none }),
            "ether_type 0x0806 contradicts the IPv4 header",
        ),
        (with(HeaderMatch { ethernet: eth(0x0800), ip: v6, ..none }), "ether_type 0x0800 contradicts the IPv6 header"),
        (with(HeaderMatch { ip: proto(17), transport: tcp, ..none }), "IP protocol 17 contradicts the TCP header"),
        (
            tunnelled(HeaderMatch { ip: ip4(), transport: tcp, ..none }, vxlan(1), none),
            "TCP cannot carry VXLAN; help: use UDP",
        ),
        (tunnelled(HeaderMatch { ip: ip4(), transport: udp, ..none }, gre, none), "UDP cannot carry GRE; help: use IP"),
        (tunnelled(none, vxlan(1 << 24), none), "vni 0x1000000 does not fit in 24 bits"),
        (with(HeaderMatch { ip: label, ..none }), "flow_label 0x100000 does not fit in 20 bits"),
        (FlowRule { tag: Some(1 << 24), ..good() }, "tag 0x1000000 does not fit in 24 bits"),
        (FlowRule { tag: Some(1), ..FlowRule::new(FlowTraffic::Sniffer) }, "a default or sniffer rule cannot have tag"),
        (
            FlowRule { drop: true, ..FlowRule::new(FlowTraffic::AllDefault) },
            "a default or sniffer rule cannot have drop",
        ),
        (FlowRule { dont_trap: true, ..FlowRule::new(FlowTraffic::MulticastDefault) }, "rule cannot have dont_trap"),
        (FlowRule { tag: Some(1), drop: true, ..good() }, "drop cannot be combined with a tag"),
        (FlowRule { dont_trap: true, drop: true, ..good() }, "drop cannot be combined with dont_trap"),
    ] {
        let error = rule.check().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    assert!(FlowRule { tag: Some((1 << 24) - 1), ..good() }.check().is_ok());
    assert!(with(HeaderMatch { ethernet: eth(0x0800), ip: proto(6), transport: tcp }).check().is_ok());
    assert!(tunnelled(HeaderMatch { ip: v6, transport: udp, ..none }, vxlan(1), none).check().is_ok());
}

#[test]
fn error_names_the_missing_receive_offload() {
    let caps = RawPacketCaps { vlan_strip: true, scatter_fcs: true, delay_drop: true, ..RawPacketCaps::default() };
    let all = RawReceive { vlan_strip: true, scatter_fcs: true, delay_drop: true };
    assert_eq!(all.check(&caps), Ok(()));
    assert!(all.check_single_queue().unwrap_err().to_string().contains("use more than one worker"));
    assert_eq!(RawReceive::default().check(&RawPacketCaps::default()), Ok(()));
    for (receive, wanted) in [
        (RawReceive { vlan_strip: true, ..RawReceive::default() }, "VLAN stripping"),
        (RawReceive { scatter_fcs: true, ..RawReceive::default() }, "frame check sequence"),
        (RawReceive { delay_drop: true, ..RawReceive::default() }, "delay drop"),
    ] {
        let error = receive.check(&RawPacketCaps::default()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn frame_length_excludes_frame_check_sequence() {
    assert_eq!((frame_length(64, true), frame_length(64, false)), (60, 64));
    assert_eq!(frame_length(3, true), 0, "the device reports a length shorter than the frame check sequence");
}

proptest! {
    #[test]
    fn prefix_mask_has_as_many_leading_ones_as_its_length(value: [u8; 16], length in 0_u8..=140) {
        let ones: u32 = MaskedValue::prefix(value, length).mask().iter().map(|byte| byte.count_ones()).sum();
        prop_assert_eq!(ones, u32::from(length.min(128)));
        let mask = u128::from_be_bytes(*MaskedValue::prefix(value, length).mask());
        prop_assert_eq!(mask.leading_ones(), ones);
    }
}
