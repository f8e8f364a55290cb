//! Checks of flow rules, and the list of the fields that a rule matches.

use super::flow::{
    EthernetMatch, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, MaskedValue, PortsMatch, TransportMatch,
    TunnelMatch, VLAN_ID,
};

/// The width of a flow tag in bits.
const TAG_BITS: u8 = 24;
/// The bits of the 4 bytes of [`Ipv6Match::flow_label`](super::Ipv6Match::flow_label) that contain the flow label.
const FLOW_LABEL: [u8; 4] = [0, 0x0f, 0xff, 0xff];
/// The bits of the 4 bytes of [`TunnelMatch::Vxlan`] that contain the network identifier.
const VNI: [u8; 4] = [0, 0xff, 0xff, 0xff];

/// A header field that a flow rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedField {
    /// The name of the header and the field, such as `ipv4 src`.
    pub name: &'static str,
    /// Whether the mask does not cover the whole field. Many devices refuse such masks.
    pub partial: bool,
}

impl FlowRule {
    /// Returns the header fields that the rule matches, from the outer to the inner headers.
    pub fn matched_fields(&self) -> Vec<MatchedField> {
        let mut fields = Vec::new();
        if let FlowTraffic::Headers { outer, tunnel } = &self.traffic {
            add_headers(&mut fields, outer);
            if let Some((tunnel, inner)) = tunnel {
                add_tunnel(&mut fields, tunnel);
                add_headers(&mut fields, inner);
            }
        }
        fields
    }

    /// Returns the matched fields whose masks do not cover the whole field. Many devices refuse rules with such masks.
    pub fn partial_masks(&self) -> Vec<&'static str> {
        self.matched_fields().into_iter().filter(|field| field.partial).map(|field| field.name).collect()
    }

    /// Returns the names of the headers of the rule that some drivers cannot match.
    pub(super) fn limited_headers(&self) -> Vec<&'static str> {
        let FlowTraffic::Headers { outer, tunnel } = &self.traffic else { return Vec::new() };
        let inner = tunnel.as_ref().map(|(_, inner)| inner);
        let ip = [Some(outer), inner].into_iter().flatten().filter_map(|headers| headers.ip);
        let ipv6 = ip.filter(|ip| matches!(ip, IpMatch::V6(_))).map(|_| "IPv6");
        let tunnel = tunnel.iter().map(|(tunnel, _)| match tunnel {
            TunnelMatch::Vxlan { .. } => "VXLAN",
            TunnelMatch::Gre { .. } => "GRE",
            TunnelMatch::Mpls { .. } => "MPLS",
        });
        ipv6.chain(tunnel).collect()
    }

    /// Returns the names of the actions of the rule.
    pub(super) fn actions(&self) -> Vec<&'static str> {
        let all = [(self.tag.is_some(), "tag"), (self.drop, "drop"), (self.count.is_some(), "count")];
        all.into_iter().filter(|(there, _)| *there).map(|(_, name)| name).collect()
    }

    /// Checks that the rule is consistent.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn check(&self) -> Result<(), FlowError> {
        if self.port == 0 {
            return Err(FlowError::Port);
        }
        width("tag", self.tag.unwrap_or(0), TAG_BITS)?;
        if let FlowTraffic::Headers { outer, tunnel } = &self.traffic {
            check_headers(outer)?;
            if let Some((tunnel, inner)) = tunnel {
                check_tunnel(outer, tunnel)?;
                check_headers(inner)?;
            }
        } else {
            if let Some(action) = self.actions().into_iter().next() {
                return Err(FlowError::ActionWithoutHeaders(action));
            }
            if self.dont_trap {
                return Err(FlowError::DontTrapWithoutHeaders);
            }
        }
        let others = [(self.tag.is_some(), "a tag"), (self.dont_trap, "dont_trap")];
        match others.into_iter().find(|(there, _)| self.drop && *there) {
            Some((_, other)) => Err(FlowError::DropWith(other)),
            None => Ok(()),
        }
    }
}

fn width(field: &'static str, value: u32, bits: u8) -> Result<(), FlowError> {
    if value >> bits == 0 { Ok(()) } else { Err(FlowError::Width { field, value, bits }) }
}

/// Returns the number that a field must equal. Returns `None` if the mask does not cover the whole field.
fn whole<const N: usize>(bits: &MaskedValue<N>) -> Option<u32> {
    (*bits.mask() == [0xff; N]).then(|| bits.value().iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Checks that the value of a 4-byte field fits in its low `bits` bits.
fn low_width(field: &'static str, wanted: &MaskedValue<4>, bits: u8) -> Result<(), FlowError> {
    // `MaskedValue::from(u32)` sets all 32 bits of the mask, including the bits above the field. Such a mask is
    // allowed, so check only the value.
    width(field, u32::from_be_bytes(*wanted.value()), bits)
}

fn check_headers(headers: &HeaderMatch) -> Result<(), FlowError> {
    let (ip, ether_type, protocol) = match &headers.ip {
        Some(IpMatch::V4(ip)) => ("IPv4", 0x0800, ip.protocol),
        Some(IpMatch::V6(ip)) => {
            low_width("flow_label", &ip.flow_label, 20)?;
            ("IPv6", 0x86dd, ip.next_header)
        }
        None => ("", 0, MaskedValue::ANY),
    };
    if let (Some(ethernet), false) = (&headers.ethernet, ip.is_empty())
        && let Some(wanted) = whole(&ethernet.ether_type)
        && wanted != ether_type
    {
        return Err(FlowError::EtherType { ether_type: wanted as u16, ip });
    }
    let (inside, number) = match &headers.transport {
        Some(TransportMatch::Tcp(_)) => ("TCP", 6),
        Some(TransportMatch::Udp(_)) => ("UDP", 17),
        None => return Ok(()),
    };
    if ip.is_empty() {
        return Err(FlowError::TransportWithoutIp(inside));
    }
    match whole(&protocol) {
        Some(wanted) if wanted != number => Err(FlowError::Protocol { protocol: wanted as u8, inside }),
        _ => Ok(()),
    }
}

fn check_tunnel(outer: &HeaderMatch, tunnel: &TunnelMatch) -> Result<(), FlowError> {
    let transport = outer.transport.as_ref().map(|transport| match transport {
        TransportMatch::Tcp(_) => "TCP",
        TransportMatch::Udp(_) => "UDP",
    });
    let (name, wanted, bad) = match tunnel {
        TunnelMatch::Vxlan { vni } => {
            low_width("vni", vni, 24)?;
            ("VXLAN", "UDP", transport.filter(|over| *over != "UDP"))
        }
        TunnelMatch::Gre { .. } => ("GRE", "IP", transport),
        TunnelMatch::Mpls { .. } => ("MPLS", "Ethernet, GRE or UDP", transport.filter(|over| *over != "UDP")),
    };
    match bad {
        Some(over) => Err(FlowError::Tunnel { tunnel: name, over, wanted }),
        None => Ok(()),
    }
}

/// Adds a field to the list if the rule matches any of the field's bits. The field consists of the bits in `whole`.
fn add<const N: usize>(fields: &mut Vec<MatchedField>, name: &'static str, bits: &MaskedValue<N>, whole: [u8; N]) {
    let mask: [u8; N] = std::array::from_fn(|at| bits.mask()[at] & whole[at]);
    if mask != [0; N] {
        fields.push(MatchedField { name, partial: mask != whole });
    }
}

fn add_headers(fields: &mut Vec<MatchedField>, headers: &HeaderMatch) {
    if let Some(EthernetMatch { dst, src, ether_type, vlan_tag }) = &headers.ethernet {
        add(fields, "ethernet dst", dst, [0xff; 6]);
        add(fields, "ethernet src", src, [0xff; 6]);
        add(fields, "ether_type", ether_type, [0xff; 2]);
        // A match of the VLAN identifier alone is not partial.
        add(fields, "vlan_tag", vlan_tag, if *vlan_tag.mask() == VLAN_ID { VLAN_ID } else { [0xff; 2] });
    }
    match &headers.ip {
        Some(IpMatch::V4(ip)) => {
            add(fields, "ipv4 src", &ip.src, [0xff; 4]);
            add(fields, "ipv4 dst", &ip.dst, [0xff; 4]);
            add(fields, "ipv4 protocol", &ip.protocol, [0xff]);
            add(fields, "ipv4 tos", &ip.tos, [0xff]);
            add(fields, "ipv4 ttl", &ip.ttl, [0xff]);
            add(fields, "ipv4 flags", &ip.flags, [0xff]);
        }
        Some(IpMatch::V6(ip)) => {
            add(fields, "ipv6 src", &ip.src, [0xff; 16]);
            add(fields, "ipv6 dst", &ip.dst, [0xff; 16]);
            add(fields, "ipv6 flow_label", &ip.flow_label, FLOW_LABEL);
            add(fields, "ipv6 next_header", &ip.next_header, [0xff]);
            add(fields, "ipv6 traffic_class", &ip.traffic_class, [0xff]);
            add(fields, "ipv6 hop_limit", &ip.hop_limit, [0xff]);
        }
        None => {}
    }
    if let Some(TransportMatch::Tcp(PortsMatch { src, dst }) | TransportMatch::Udp(PortsMatch { src, dst })) =
        &headers.transport
    {
        add(fields, "dst port", dst, [0xff; 2]);
        add(fields, "src port", src, [0xff; 2]);
    }
}

fn add_tunnel(fields: &mut Vec<MatchedField>, tunnel: &TunnelMatch) {
    match tunnel {
        TunnelMatch::Vxlan { vni } => add(fields, "vni", vni, VNI),
        TunnelMatch::Gre { flags, protocol, key } => {
            add(fields, "gre flags", flags, [0xff; 2]);
            add(fields, "gre protocol", protocol, [0xff; 2]);
            add(fields, "gre key", key, [0xff; 4]);
        }
        TunnelMatch::Mpls { label } => add(fields, "mpls label", label, [0xff; 4]),
    }
}
