//! Names the header fields of a frame, and finds the differences between two frames.

use std::fmt;
use std::net::Ipv4Addr;

use serde::Serialize;

use dataplane_core::header::arp::{self, Arp};
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::icmp::{self, Icmp};
use dataplane_core::header::ipv4::Ipv4;
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::header::parse::{Dissection, Flags, dissect};
use dataplane_core::header::tcp::{self, Tcp};
use dataplane_core::header::udp::Udp;
use dataplane_core::header::{Header, protocol, vlan};

/// A field whose value has changed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct FieldChange {
    field: &'static str,
    /// `None` if the field is new.
    before: Option<String>,
    /// `None` if the field was removed.
    after: Option<String>,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{} {before} → {after}", self.field),
            (Some(before), None) => write!(f, "{} {before} removed", self.field),
            (None, Some(after)) => write!(f, "{} {after} added", self.field),
            (None, None) => f.write_str(self.field),
        }
    }
}

type Field = (&'static str, String);

/// Returns the differences between a frame before and after the pipeline, in the order of the headers.
pub(super) fn changes(before: &[u8], after: &[u8]) -> Vec<FieldChange> {
    if before == after {
        return Vec::new();
    }
    let (old, new) = (fields(before), fields(after));
    let value =
        |fields: &[Field], name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    let mut names: Vec<&'static str> = new.iter().map(|(name, _)| *name).collect();
    names.extend(old.iter().map(|(name, _)| *name).filter(|name| value(&new, name).is_none()));
    let changed =
        names.into_iter().map(|field| FieldChange { field, before: value(&old, field), after: value(&new, field) });
    let mut changes: Vec<FieldChange> = changed.filter(|change| change.before != change.after).collect();
    if changes.is_empty() || rest(before) != rest(after) {
        changes.push(FieldChange { field: "other bytes", before: None, after: None });
    }
    changes
}

/// Returns the bytes after the headers that `fields` names.
fn rest(frame: &[u8]) -> &[u8] {
    let Ok(found) = dissect(frame) else { return frame.get(Ethernet::LEN..).unwrap_or_default() };
    let start = match (found.l4, found.protocol) {
        (0, _) if found.flags.contains(Flags::ARP) => usize::from(found.l3) + Arp::LEN,
        (0, _) => frame.len(),
        (l4, protocol::TCP) => usize::from(l4) + Tcp::LEN,
        (l4, protocol::UDP | protocol::ICMP | protocol::ICMPV6) => usize::from(l4) + Udp::LEN,
        (l4, _) => usize::from(l4),
    };
    frame.get(start..).unwrap_or_default()
}

fn at<H: Header>(frame: &[u8], offset: u16) -> Option<&H> {
    H::view(frame.get(usize::from(offset)..)?).ok()
}

fn fields(frame: &[u8]) -> Vec<Field> {
    let mut fields = vec![("length", frame.len().to_string())];
    if let Ok(ethernet) = Ethernet::view(frame) {
        fields.push(("ethernet.destination", ethernet.destination.to_string()));
        fields.push(("ethernet.source", ethernet.source.to_string()));
    }
    let Ok(found) = dissect(frame) else { return fields };
    // With two tags, the inner tag is the customer tag. The fields of the inner tag have the names of the fields of a
    // single tag.
    let (outer, inner) = match found.vlan_tags {
        0 => (None, None),
        1 => (None, Some(found.outer_tci)),
        _ => (Some(found.outer_tci), Some(found.inner_tci)),
    };
    if let Some(tci) = outer {
        fields.push(("vlan.outer.id", vlan::id(tci).to_string()));
        fields.push(("vlan.outer.priority", vlan::priority(tci).to_string()));
    }
    if let Some(tci) = inner {
        fields.push(("vlan.id", vlan::id(tci).to_string()));
        fields.push(("vlan.priority", vlan::priority(tci).to_string()));
    }
    fields.push(("ethernet.type", format!("{:#06x}", found.ether_type)));
    network(frame, &found, &mut fields);
    if found.flags.contains(Flags::L4_OK) {
        transport(frame, &found, &mut fields);
    }
    fields
}

fn network(frame: &[u8], found: &Dissection, fields: &mut Vec<Field>) {
    if found.flags.contains(Flags::IPV4)
        && let Some(ip) = at::<Ipv4>(frame, found.l3)
    {
        fields.extend([
            ("ipv4.source", ip.source_addr().to_string()),
            ("ipv4.destination", ip.destination_addr().to_string()),
            ("ipv4.tos", format!("{:#04x}", ip.tos)),
            ("ipv4.length", ip.total_length.to_string()),
            ("ipv4.identification", ip.identification.to_string()),
            ("ipv4.fragment", format!("{:#06x}", ip.fragment.get())),
            ("ipv4.ttl", ip.ttl.to_string()),
            ("ipv4.protocol", ip.protocol.to_string()),
            ("ipv4.checksum", format!("{:#06x}", ip.checksum.get())),
        ]);
    }
    if found.flags.contains(Flags::IPV6)
        && let Some(ip) = at::<Ipv6>(frame, found.l3)
    {
        fields.extend([
            ("ipv6.source", ip.source_addr().to_string()),
            ("ipv6.destination", ip.destination_addr().to_string()),
            ("ipv6.class", format!("{:#04x}", ip.traffic_class())),
            ("ipv6.flow_label", format!("{:#07x}", ip.flow_label())),
            ("ipv6.payload_length", ip.payload_length.to_string()),
            ("ipv6.hop_limit", ip.hop_limit.to_string()),
            ("ipv6.next_header", ip.next_header.to_string()),
        ]);
    }
    if found.flags.contains(Flags::ARP)
        && let Some(arp) = at::<Arp>(frame, found.l3)
    {
        fields.extend([
            ("arp.operation", arp.operation.to_string()),
            ("arp.sender_mac", arp.sender_mac.to_string()),
            ("arp.sender_ip", Ipv4Addr::from(arp.sender_ip).to_string()),
            ("arp.target_mac", arp.target_mac.to_string()),
            ("arp.target_ip", Ipv4Addr::from(arp.target_ip).to_string()),
        ]);
    }
}

fn transport(frame: &[u8], found: &Dissection, fields: &mut Vec<Field>) {
    match found.protocol {
        protocol::TCP => {
            if let Some(tcp) = at::<Tcp>(frame, found.l4) {
                fields.extend([
                    ("tcp.source", tcp.source.to_string()),
                    ("tcp.destination", tcp.destination.to_string()),
                    ("tcp.sequence", tcp.sequence.to_string()),
                    ("tcp.acknowledgement", tcp.acknowledgement.to_string()),
                    ("tcp.flags", format!("{:#04x}", tcp.flags)),
                    ("tcp.window", tcp.window.to_string()),
                    ("tcp.checksum", format!("{:#06x}", tcp.checksum.get())),
                ]);
            }
        }
        protocol::UDP => {
            if let Some(udp) = at::<Udp>(frame, found.l4) {
                fields.extend([
                    ("udp.source", udp.source.to_string()),
                    ("udp.destination", udp.destination.to_string()),
                    ("udp.length", udp.length.to_string()),
                    ("udp.checksum", format!("{:#06x}", udp.checksum.get())),
                ]);
            }
        }
        protocol::ICMP | protocol::ICMPV6 => {
            if let Some(icmp) = at::<Icmp>(frame, found.l4) {
                fields.extend([
                    ("icmp.type", icmp.kind.to_string()),
                    ("icmp.code", icmp.code.to_string()),
                    ("icmp.checksum", format!("{:#06x}", icmp.checksum.get())),
                    ("icmp.identifier", icmp.identifier.to_string()),
                    ("icmp.sequence", icmp.sequence.to_string()),
                ]);
            }
        }
        _ => {}
    }
}

/// Returns a short description of a frame: source, destination and content.
pub(in crate::app) fn summary(frame: &[u8]) -> String {
    let found = match dissect(frame) {
        Ok(found) => found,
        Err(malformed) => return format!("malformed ({malformed})"),
    };
    let tags = match found.vlan_tags {
        0 => String::new(),
        1 => format!("vlan {} ", vlan::id(found.outer_tci)),
        _ => format!("vlan {} {} ", vlan::id(found.outer_tci), vlan::id(found.inner_tci)),
    };
    let ends = if found.flags.contains(Flags::IPV4) {
        at::<Ipv4>(frame, found.l3).map(|ip| (ip.source_addr().to_string(), ip.destination_addr().to_string()))
    } else if found.flags.contains(Flags::IPV6) {
        at::<Ipv6>(frame, found.l3).map(|ip| (ip.source_addr().to_string(), ip.destination_addr().to_string()))
    } else {
        Ethernet::view(frame).ok().map(|frame| (frame.source.to_string(), frame.destination.to_string()))
    };
    let (from, to) = ends.unwrap_or_default();
    format!("{tags}{from} → {to} {}", what(frame, &found))
}

fn what(frame: &[u8], found: &Dissection) -> String {
    if found.flags.contains(Flags::ARP) {
        let Some(message) = at::<Arp>(frame, found.l3) else { return "arp".to_owned() };
        return match message.operation.get() {
            arp::REQUEST => {
                format!("arp who has {} tell {}", Ipv4Addr::from(message.target_ip), Ipv4Addr::from(message.sender_ip))
            }
            arp::REPLY => format!("arp {} is at {}", Ipv4Addr::from(message.sender_ip), message.sender_mac),
            other => format!("arp operation {other}"),
        };
    }
    if !found.flags.intersects(Flags::IPV4 | Flags::IPV6) {
        return format!("ethertype {:#06x}", found.ether_type);
    }
    let fragment = if found.flags.contains(Flags::FRAGMENT) { "fragment " } else { "" };
    format!("{fragment}{}", payload(frame, found))
}

fn payload(frame: &[u8], found: &Dissection) -> String {
    let name = match found.protocol {
        protocol::TCP => "tcp",
        protocol::UDP => "udp",
        protocol::ICMP => "icmp",
        protocol::ICMPV6 => "icmpv6",
        other => return format!("protocol {other}"),
    };
    let detail = match found.protocol {
        _ if !found.flags.contains(Flags::L4_OK) => None,
        protocol::TCP => {
            at::<Tcp>(frame, found.l4).map(|tcp| format!("{}→{} {}", tcp.source, tcp.destination, tcp_flags(tcp.flags)))
        }
        protocol::UDP => at::<Udp>(frame, found.l4).map(|udp| format!("{}→{}", udp.source, udp.destination)),
        _ => at::<Icmp>(frame, found.l4).map(|message| icmp_kind(message, found.protocol)),
    };
    detail.map_or_else(|| name.to_owned(), |detail| format!("{name} {detail}"))
}

fn tcp_flags(flags: u8) -> String {
    let names = [(tcp::SYN, "syn"), (tcp::FIN, "fin"), (tcp::RST, "rst"), (tcp::PSH, "psh"), (tcp::ACK, "ack")];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    set.join(",")
}

fn icmp_kind(message: &Icmp, protocol: u8) -> String {
    match (protocol, message.kind) {
        (protocol::ICMP, icmp::ECHO_REQUEST) | (_, icmp::V6_ECHO_REQUEST) => {
            format!("echo request {}", message.sequence)
        }
        (protocol::ICMP, icmp::ECHO_REPLY) | (_, icmp::V6_ECHO_REPLY) => format!("echo reply {}", message.sequence),
        (protocol::ICMP, icmp::UNREACHABLE) | (protocol::ICMPV6, icmp::V6_UNREACHABLE) => "unreachable".to_owned(),
        (protocol::ICMP, icmp::TIME_EXCEEDED) | (protocol::ICMPV6, icmp::V6_TIME_EXCEEDED) => {
            "time exceeded".to_owned()
        }
        (protocol::ICMPV6, icmp::V6_PACKET_TOO_BIG) => "packet too big".to_owned(),
        (_, icmp::V6_ROUTER_SOLICITATION) => "router solicitation".to_owned(),
        (_, icmp::V6_ROUTER_ADVERTISEMENT) => "router advertisement".to_owned(),
        (_, icmp::V6_NEIGHBOR_SOLICITATION) => "neighbor solicitation".to_owned(),
        (_, icmp::V6_NEIGHBOR_ADVERTISEMENT) => "neighbor advertisement".to_owned(),
        (_, kind) => format!("type {kind} code {}", message.code),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::frame;

    fn datagram() -> Vec<u8> {
        frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1, 53).payload(b"query").build()
    }

    fn shown(before: &[u8], after: &[u8]) -> Vec<String> {
        changes(before, after).iter().map(FieldChange::to_string).collect()
    }

    #[test]
    fn summary_has_addresses_and_protocol() {
        assert_eq!(summary(&datagram()), "192.0.2.1 → 192.0.2.2 udp 1→53");
        assert_eq!(summary(&datagram()[..20]), "malformed (truncated_ipv4)");
        assert_eq!(summary(&[0; 60]), "00:00:00:00:00:00 → 00:00:00:00:00:00 ethertype 0x0000");
    }

    #[test]
    fn every_changed_field_is_named() {
        let before = datagram();
        assert!(shown(&before, &before).is_empty());
        let mut after = before.clone();
        after[5] = 9;
        after[22] = 63;
        let ttl = before[22];
        let expected =
            ["ethernet.destination 02:00:00:00:00:02 → 02:00:00:00:00:09".to_owned(), format!("ipv4.ttl {ttl} → 63")];
        assert_eq!(shown(&before, &after), expected);
        let mut payload = before.clone();
        payload[42] ^= 1;
        assert_eq!(shown(&before, &payload), ["other bytes"]);
    }

    #[test]
    fn added_and_removed_vlan_tag_is_shown() {
        let plain = datagram();
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x81, 0, 0x20, 10]);
        let length = plain.len();
        let longer = length + 4;
        assert_eq!(
            shown(&plain, &tagged),
            [format!("length {length} → {longer}"), "vlan.id 10 added".into(), "vlan.priority 1 added".into()]
        );
        assert_eq!(
            shown(&tagged, &plain),
            [format!("length {longer} → {length}"), "vlan.id 10 removed".into(), "vlan.priority 1 removed".into()]
        );
    }

    proptest! {
        /// For any two frames that differ, `changes` returns at least one difference.
        #[test]
        fn every_change_is_found(
            before in proptest::collection::vec(any::<u8>(), 1..120),
            at in any::<prop::sample::Index>(),
        ) {
            let mut after = before.clone();
            let at = at.index(after.len());
            after[at] ^= 0x10;
            prop_assert!(!changes(&before, &after).is_empty());
            summary(&before);
        }
    }
}
