//! Neighbour discovery for IPv6, RFC 4861: a solicitation becomes an advertisement, and what both say of their senders.

use std::net::IpAddr;

use zerocopy::{FromBytes, IntoBytes};

use super::{NO_TAILROOM, Verdict, layers};
use crate::header::checksum::Sum;
use crate::header::ipv6::Ipv6;
use crate::header::ndp::{
    ALL_NODES, HOP_LIMIT, LinkAddress, Neighbor, OVERRIDE, ROUTER, SOLICITED, SOURCE_LINK_ADDRESS, TARGET_LINK_ADDRESS,
    group_mac, link_address, solicited_node,
};
use crate::header::{Header, MacAddr, U16, U32, icmp, protocol};
use crate::mem::Packet;
use crate::stages::resolution::{Claim, Word};
use crate::stages::responder::is_host;

const UNSPECIFIED: [u8; 16] = [0; 16];

/// Turns a valid solicitation for an address of this host into its answer.
pub(super) fn advertise(packet: &mut Packet<'_>, mac: MacAddr, router: bool) -> Option<Verdict> {
    let message_len = layers::<Ipv6>(packet)?.2.len();
    const LEN: usize = Neighbor::LEN + LinkAddress::LEN;
    // The answer has one option, whatever the question had.
    let end = usize::from(packet.meta().end) - message_len + LEN;
    let missing = end.saturating_sub(packet.len());
    if missing > 0 && packet.append(missing).is_none() {
        return Some(Verdict::Refused(NO_TAILROOM));
    }
    packet.truncate(end);
    packet.meta_mut().end = end as u16;
    let (link, ip, bytes) = layers::<Ipv6>(packet)?;
    let (front, option) = Neighbor::mut_from_prefix(bytes).ok()?;
    let target = front.target;
    let mut flags = OVERRIDE | if router { ROUTER } else { 0 };
    // Who checks whether an address is free has none yet: all are told (section 7.2.4).
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
    Some(Verdict::Answered)
}

/// What a solicitation says of its sender, by the checks of section 7.1.1 but that of the checksum. `None`: it is to be
/// discarded. `Some(None)`: nothing.
pub(super) fn solicitation(ip: &Ipv6, message: &[u8]) -> Option<Option<Word>> {
    let (front, options) = Neighbor::ref_from_prefix(message).ok()?;
    let source = link_address(options, SOURCE_LINK_ADDRESS)?;
    let from_nobody = ip.source == UNSPECIFIED;
    let valid = front.code == 0
        && ip.hop_limit == HOP_LIMIT
        && (from_nobody || is_host(ip.source_addr().into()))
        && !(from_nobody && (source.is_some() || ip.destination != solicited_node(&front.target)));
    let address = IpAddr::V6(ip.source.into());
    let word = source.map(|mac| Word { address, mac: Some(mac), claim: Claim::Asks, overrides: true });
    valid.then_some(word)
}

/// What an advertisement says of its target, by the checks of section 7.1.2 but that of the checksum. `None`: it is to be
/// discarded.
pub(super) fn advertisement(ip: &Ipv6, message: &[u8]) -> Option<Word> {
    let (front, options) = Neighbor::ref_from_prefix(message).ok()?;
    let mac = link_address(options, TARGET_LINK_ADDRESS)?;
    let (flags, to_all) = (front.flags.get(), ip.destination_addr().is_multicast());
    let solicited = flags & SOLICITED != 0;
    let target = std::net::Ipv6Addr::from(front.target);
    let valid = front.code == 0 && ip.hop_limit == HOP_LIMIT && !target.is_multicast() && !(to_all && solicited);
    let claim = if solicited { Claim::Answer } else { Claim::Announces };
    valid.then_some(Word { address: target.into(), mac, claim, overrides: flags & OVERRIDE != 0 })
}
