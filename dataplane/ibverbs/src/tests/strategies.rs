//! Random matches of header fields.

use proptest::prelude::*;

use dataplane_core::verbs::{
    EthernetMatch, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue, PortsMatch, TransportMatch,
};

pub(crate) fn bits<const N: usize>() -> impl Strategy<Value = MaskedValue<N>> {
    prop_oneof![
        Just(MaskedValue::ANY),
        any::<[u8; N]>().prop_map(MaskedValue::exact),
        any::<([u8; N], [u8; N])>().prop_map(|(value, mask)| MaskedValue::masked(value, mask)),
    ]
}

pub(crate) fn header_match() -> impl Strategy<Value = HeaderMatch> {
    let ethernet = (bits(), bits(), bits(), bits()).prop_map(|(dst, src, ether_type, vlan_tag)| EthernetMatch {
        dst,
        src,
        ether_type,
        vlan_tag,
    });
    let v4 = (bits(), bits(), bits(), bits(), bits(), bits())
        .prop_map(|(src, dst, protocol, tos, ttl, flags)| Ipv4Match { src, dst, protocol, tos, ttl, flags });
    let v6 = (bits(), bits(), bits(), bits(), bits(), bits()).prop_map(
        |(src, dst, flow_label, next_header, traffic_class, hop_limit)| Ipv6Match {
            src,
            dst,
            flow_label,
            next_header,
            traffic_class,
            hop_limit,
        },
    );
    let ip = prop_oneof![v4.prop_map(IpMatch::V4), v6.prop_map(IpMatch::V6)];
    let transport = (bits(), bits(), any::<bool>()).prop_map(|(src, dst, tcp)| {
        let ports = PortsMatch { src, dst };
        if tcp { TransportMatch::Tcp(ports) } else { TransportMatch::Udp(ports) }
    });
    (prop::option::of(ethernet), prop::option::of(ip), prop::option::of(transport))
        .prop_map(|(ethernet, ip, transport)| HeaderMatch { ethernet, ip, transport })
}
