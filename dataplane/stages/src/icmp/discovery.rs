//! IPv6 neighbor discovery (RFC 4861): answers solicitations, and extracts the information about neighbours from
//! messages.

use std::net::IpAddr;

use zerocopy::{FromBytes, IntoBytes};

use super::answer::{IcmpVerdict, NO_TAILROOM, layers};
use crate::resolution::{NeighborInfo, NeighborMessageKind};
use crate::responder::is_host;
use dataplane_core::header::checksum::Sum;
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::header::ndp::{
    ALL_NODES, HOP_LIMIT, LinkAddress, Neighbor, OVERRIDE, ROUTER, SOLICITED, SOURCE_LINK_ADDRESS, TARGET_LINK_ADDRESS,
    group_mac, link_address, solicited_node,
};
use dataplane_core::header::{Header, MacAddr, U16, U32, icmp, protocol};
use dataplane_core::mem::Packet;

const UNSPECIFIED: [u8; 16] = [0; 16];

/// Turns a valid solicitation for an address of this host into an advertisement.
pub(super) fn advertise(packet: &mut Packet<'_>, mac: MacAddr, router: bool) -> Option<IcmpVerdict> {
    let message_len = layers::<Ipv6>(packet)?.2.len();
    const LEN: usize = Neighbor::LEN + LinkAddress::LEN;
    // The advertisement always has one option, so its length may differ from the length of the solicitation.
    let end = usize::from(packet.meta().end) - message_len + LEN;
    let missing = end.saturating_sub(packet.len());
    if missing > 0 && packet.append(missing).is_none() {
        return Some(IcmpVerdict::Refused(NO_TAILROOM));
    }
    packet.truncate(end);
    packet.meta_mut().end = end as u16;
    let (link, ip, bytes) = layers::<Ipv6>(packet)?;
    let (front, option) = Neighbor::mut_from_prefix(bytes).ok()?;
    let target = front.target;
    let mut flags = OVERRIDE | if router { ROUTER } else { 0 };
    // A node that checks for duplicate addresses has no address yet, so the reply goes to all nodes (section 7.2.4).
    if ip.source == UNSPECIFIED {
        (ip.destination, link.destination) = (ALL_NODES, group_mac(&ALL_NODES));
    } else {
        (ip.destination, link.destination) = (ip.source, link.source);
        flags |= SOLICITED;
    }
    (ip.source, link.source) = (target, mac);
    ip.hop_limit = HOP_LIMIT;
    ip.payload_length.set(LEN as u16);
    let kind = icmp::V6_NEIGHBOR_ADVERTISEMENT;
    *front = Neighbor { kind, code: 0, checksum: U16::new(0), flags: U32::new(flags), target };
    let link_address = LinkAddress { kind: TARGET_LINK_ADDRESS, length: 1, mac };
    option.copy_from_slice(link_address.as_bytes());
    let sum = Sum::default().pseudo_ipv6(&ip.source, &ip.destination, protocol::ICMPV6, LEN as u32);
    let sum = sum.bytes(front.as_bytes()).bytes(option).checksum();
    front.checksum.set(sum);
    Some(IcmpVerdict::Answered)
}

/// Returns the information about the sender of a solicitation. Makes the checks of RFC 4861, section 7.1.1, except for
/// the checksum. Returns `None` if the message is invalid, and `Some(None)` if the message has no such information.
pub(super) fn solicitation(ip: &Ipv6, message: &[u8]) -> Option<Option<NeighborInfo>> {
    let (front, options) = Neighbor::ref_from_prefix(message).ok()?;
    let source = link_address(options, SOURCE_LINK_ADDRESS)?;
    let is_unspecified = ip.source == UNSPECIFIED;
    let valid = front.code == 0
        && ip.hop_limit == HOP_LIMIT
        && (is_unspecified || is_host(ip.source_addr().into()))
        && !(is_unspecified && (source.is_some() || ip.destination != solicited_node(&front.target)));
    let address = IpAddr::V6(ip.source.into());
    let observation =
        source.map(|mac| NeighborInfo { address, mac: Some(mac), kind: NeighborMessageKind::Request, overrides: true });
    valid.then_some(observation)
}

/// Returns the information about the target of an advertisement. Makes the checks of RFC 4861, section 7.1.2, except
/// for the checksum. Returns `None` if the message is invalid.
pub(super) fn advertisement(ip: &Ipv6, message: &[u8]) -> Option<NeighborInfo> {
    let (front, options) = Neighbor::ref_from_prefix(message).ok()?;
    let mac = link_address(options, TARGET_LINK_ADDRESS)?;
    let (flags, to_all) = (front.flags.get(), ip.destination_addr().is_multicast());
    let solicited = flags & SOLICITED != 0;
    let target = std::net::Ipv6Addr::from(front.target);
    let valid = front.code == 0 && ip.hop_limit == HOP_LIMIT && !target.is_multicast() && !(to_all && solicited);
    let kind = if solicited { NeighborMessageKind::Reply } else { NeighborMessageKind::Announcement };
    valid.then_some(NeighborInfo { address: target.into(), mac, kind, overrides: flags & OVERRIDE != 0 })
}
