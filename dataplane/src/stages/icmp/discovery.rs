//! Neighbour discovery for IPv6, RFC 4861: a solicitation becomes an advertisement.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BAD_SOLICITATION, NO_TAILROOM, Verdict, layers};
use crate::header::checksum::Sum;
use crate::header::ipv6::Ipv6;
use crate::header::{Header, MacAddr, U16, U32, icmp, protocol};
use crate::mem::Packet;

/// A neighbour solicitation or advertisement (sections 4.3 and 4.4): 24 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Front {
    kind: u8,
    code: u8,
    checksum: U16,
    flags: U32,
    target: [u8; 16],
}

impl Header for Front {}

/// A link-layer address option (section 4.6.1): 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LinkAddress {
    kind: u8,
    /// In units of 8 bytes.
    length: u8,
    mac: MacAddr,
}

impl Header for LinkAddress {}

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const ROUTER: u32 = 1 << 31;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;

/// The hop limit of what has not passed a router.
const HOP_LIMIT: u8 = 255;
const UNSPECIFIED: [u8; 16] = [0; 16];
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The link address of [`ALL_NODES`] (RFC 2464, section 7).
const ALL_NODES_MAC: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

/// Turns a solicitation for an address of this host, with a right checksum, into its answer.
pub(super) fn advertise(packet: &mut Packet<'_>, mac: MacAddr, router: bool) -> Verdict {
    let Some(message_len) = layers::<Ipv6>(packet).filter(|(_, ip, message)| is_valid(ip, message)).map(|l| l.2.len())
    else {
        return Verdict::Refused(BAD_SOLICITATION);
    };
    const LEN: usize = Front::LEN + LinkAddress::LEN;
    // The answer has one option, whatever the question had.
    let end = usize::from(packet.meta().end) - message_len + LEN;
    let missing = end.saturating_sub(packet.len());
    if missing > 0 && packet.append(missing).is_none() {
        return Verdict::Refused(NO_TAILROOM);
    }
    packet.truncate(end);
    packet.meta_mut().end = end as u16;
    let Some((link, ip, bytes)) = layers::<Ipv6>(packet) else { return Verdict::Refused(BAD_SOLICITATION) };
    let Ok((front, option)) = Front::mut_from_prefix(bytes) else { return Verdict::Refused(BAD_SOLICITATION) };
    let target = front.target;
    let mut flags = OVERRIDE | if router { ROUTER } else { 0 };
    // Who checks whether an address is free has none yet: all are told (section 7.2.4).
    if ip.source == UNSPECIFIED {
        (ip.destination, link.destination) = (ALL_NODES, ALL_NODES_MAC);
    } else {
        (ip.destination, link.destination) = (ip.source, link.source);
        flags |= SOLICITED;
    }
    (ip.source, link.source) = (target, mac);
    ip.hop_limit = HOP_LIMIT;
    ip.payload_length.set(LEN as u16);
    let kind = icmp::V6_NEIGHBOR_ADVERTISEMENT;
    *front = Front { kind, code: 0, checksum: U16::new(0), flags: U32::new(flags), target };
    let link_address = LinkAddress { kind: TARGET_LINK_ADDRESS, length: 1, mac };
    option.copy_from_slice(link_address.as_bytes());
    let sum = Sum::default().pseudo_ipv6(&ip.source, &ip.destination, protocol::ICMPV6, LEN as u32);
    let sum = sum.bytes(front.as_bytes()).bytes(option).checksum();
    front.checksum.set(sum);
    Verdict::Answered
}

/// The checks of section 7.1.1 but that of the checksum.
fn is_valid(ip: &Ipv6, message: &[u8]) -> bool {
    let Ok((front, mut options)) = Front::ref_from_prefix(message) else { return false };
    let mut names_source = false;
    while let [kind, length, ..] = *options {
        let Some(behind) = options.get(usize::from(length) * 8..).filter(|_| length > 0) else { return false };
        names_source |= kind == SOURCE_LINK_ADDRESS;
        options = behind;
    }
    // The solicited-node group of the address that is asked for (RFC 4291, section 2.7.1).
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&front.target[13..]);
    let from_nobody = ip.source == UNSPECIFIED;
    options.is_empty()
        && front.code == 0
        && ip.hop_limit == HOP_LIMIT
        && !ip.source_addr().is_multicast()
        && !(from_nobody && (names_source || ip.destination != group))
}
