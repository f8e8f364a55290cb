//! Walks a whole frame once and says where its layers are, or why it is malformed.

use std::fmt;

use super::{ether_type, ipv4, ipv6, protocol, vlan};

/// The most IPv6 extension headers that a frame may have. More than a few are never seen in honest traffic.
pub const MAX_EXTENSIONS: usize = 8;

bitflags::bitflags! {
    /// What a frame is made of.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// IPv4 is at [`Dissection::l3`].
        const IPV4 = 1 << 0;
        /// IPv6 is at [`Dissection::l3`].
        const IPV6 = 1 << 1;
        /// ARP is at [`Dissection::l3`].
        const ARP = 1 << 2;
        /// A fragment of a datagram, whichever.
        const FRAGMENT = 1 << 3;
        /// The fragment that the datagram begins with.
        const FIRST_FRAGMENT = 1 << 4;
        /// The IPv4 header has options, or IPv6 has extension headers.
        const IP_OPTIONS = 1 << 5;
        /// The header of TCP (with its options), UDP, ICMP or ICMPv6 at [`Dissection::l4`] is completely there.
        const L4_OK = 1 << 6;
    }
}

/// Where the layers of a frame are. Offsets are in bytes from the first of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dissection {
    /// Where the layer behind Ethernet and its tags begins.
    pub l3: u16,
    /// Where the layer behind IP begins; 0 if there is none, or it is in another fragment.
    pub l4: u16,
    /// Where the IP datagram or the ARP message ends by its own length: what follows is padding of the link layer.
    /// For other EtherTypes the end of the frame.
    pub end: u16,
    /// The EtherType behind the tags, one of [`ether_type`]; below 0x0600 an IEEE 802.3 length.
    pub ether_type: u16,
    /// Tag control information of the outer VLAN tag; 0 without one.
    pub outer_tci: u16,
    /// Tag control information of the inner of two VLAN tags; 0 without.
    pub inner_tci: u16,
    /// How many VLAN tags there are: 0 to 2.
    pub vlan_tags: u8,
    /// The protocol at [`Dissection::l4`], one of [`protocol`]; 0 when this is not IP.
    pub protocol: u8,
    /// What the frame is made of.
    pub flags: Flags,
}

impl Dissection {
    /// The identifier of the outer VLAN tag, if the frame has one.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        (self.vlan_tags > 0).then_some(vlan::id(self.outer_tci))
    }
}

macro_rules! malformed {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// Why a frame is malformed. Displays as a short name in snake case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Malformed {
            $($(#[$doc])* $name,)*
        }

        impl Malformed {
            /// Every reason, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The short name: stable, in snake case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

malformed! {
    /// Shorter than an Ethernet header: below 14 bytes.
    Runt = "runt",
    /// Longer than 65,535 bytes.
    Oversize = "oversize",
    /// The frame ends in a VLAN tag.
    TruncatedVlan = "truncated_vlan",
    /// More than two VLAN tags.
    TooManyVlanTags = "too_many_vlan_tags",
    /// The frame ends in the ARP message.
    TruncatedArp = "truncated_arp",
    /// The frame ends in the IPv4 header or its options.
    TruncatedIpv4 = "truncated_ipv4",
    /// EtherType IPv4, but the version is another.
    BadIpv4Version = "bad_ipv4_version",
    /// The header length of IPv4 is below 20 bytes.
    BadIpv4HeaderLength = "bad_ipv4_header_length",
    /// The total length of IPv4 is above what the frame has.
    Ipv4LengthAboveFrame = "ipv4_length_above_frame",
    /// The total length of IPv4 is below its header length.
    Ipv4LengthBelowHeader = "ipv4_length_below_header",
    /// The checksum of the IPv4 header is wrong. Found by [`verify_ipv4_checksum`] alone.
    BadIpv4Checksum = "bad_ipv4_checksum",
    /// The frame ends in the IPv6 header.
    TruncatedIpv6 = "truncated_ipv6",
    /// EtherType IPv6, but the version is another.
    BadIpv6Version = "bad_ipv6_version",
    /// The payload length of IPv6 is above what the frame has.
    Ipv6LengthAboveFrame = "ipv6_length_above_frame",
    /// The datagram ends in an extension header.
    TruncatedIpv6Extension = "truncated_ipv6_extension",
    /// More than [`MAX_EXTENSIONS`] extension headers.
    TooManyIpv6Extensions = "too_many_ipv6_extensions",
    /// Hop-by-hop options that are not first, or an authentication header below its minimum.
    BadIpv6Extension = "bad_ipv6_extension",
    /// The datagram ends in the fixed TCP header.
    TruncatedTcp = "truncated_tcp",
    /// The data offset of TCP is below 20 bytes or behind the end of the datagram.
    BadTcpDataOffset = "bad_tcp_data_offset",
    /// The datagram ends in the UDP header.
    TruncatedUdp = "truncated_udp",
    /// The length of UDP is below 8 or above what the datagram has.
    BadUdpLength = "bad_udp_length",
    /// The datagram ends in the first 8 bytes of ICMP or ICMPv6.
    TruncatedIcmp = "truncated_icmp",
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Malformed {}

/// Walks Ethernet, up to two VLAN tags, and ARP, IPv4 or IPv6 with its extension headers up to TCP, UDP, ICMP or
/// ICMPv6. Other protocols end the walk without complaint. Nothing is allocated or changed.
///
/// A first fragment may end in its layer 4 header (RFC 1858 tells why to distrust it): then [`Flags::L4_OK`] is
/// missing. Checksums are not verified.
///
/// # Errors
///
/// The first flaw from the outside in.
#[inline]
pub fn dissect(frame: &[u8]) -> Result<Dissection, Malformed> {
    let Ok(end) = u16::try_from(frame.len()) else { return Err(Malformed::Oversize) };
    let Some((ethernet, mut rest)) = frame.split_first_chunk::<14>() else { return Err(Malformed::Runt) };
    let mut ether_type = u16::from_be_bytes([ethernet[12], ethernet[13]]);
    let mut found = Dissection { l3: 14, end, ..Dissection::default() };
    while vlan::is_tag(ether_type) {
        let Some((tag, behind)) = rest.split_first_chunk::<4>() else { return Err(Malformed::TruncatedVlan) };
        let tci = u16::from_be_bytes([tag[0], tag[1]]);
        match found.vlan_tags {
            0 => found.outer_tci = tci,
            1 => found.inner_tci = tci,
            _ => return Err(Malformed::TooManyVlanTags),
        }
        found.vlan_tags += 1;
        found.l3 += 4;
        ether_type = u16::from_be_bytes([tag[2], tag[3]]);
        rest = behind;
    }
    found.ether_type = ether_type;
    match ether_type {
        ether_type::IPV4 => dissect_ipv4(found, rest),
        ether_type::IPV6 => dissect_ipv6(found, rest),
        ether_type::ARP => dissect_arp(found, rest),
        _ => Ok(found),
    }
}

/// Bytes of the headers of a frame of the most usual kind: Ethernet, IPv4 and the longer of TCP and UDP.
pub const USUAL: usize = 54;

/// What [`dissect`] finds, if the frame is one of the most usual kind: untagged, IPv4 without options, not a fragment,
/// TCP or UDP, without a flaw, and of [`USUAL`] bytes or more. Everything is where it always is.
#[inline]
pub fn dissect_usual(frame: &[u8]) -> Option<Dissection> {
    dissect_head(frame.first_chunk()?, frame.len())
}

/// The same of the first bytes of a frame that has `len`.
#[inline]
pub(crate) fn dissect_head(head: &[u8; USUAL], len: usize) -> Option<Dissection> {
    // EtherType, version and length of the header.
    const WANTED: u64 = u64::from_be(0x0800_4500_0000_0000);
    const ASKED: u64 = u64::from_be(0xffff_ff00_0000_0000);
    // In the word behind that, what a fragment would have.
    const FRAGMENT: u64 = u64::from_be(((ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) as u64) << 48);
    // Branches that nearly all packets take in the same way cost less than conditions that are put together.
    let [first, second] = [0, 1].map(|at| u64::from_ne_bytes(head[12..].as_chunks().0[at]));
    if first & ASKED != WANTED {
        return None;
    }
    if second & FRAGMENT != 0 {
        return None;
    }
    let word = |at: usize| u32::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let (total, protocol) = (word(16), head[23]);
    let end = 14 + total;
    if end as usize > len || len > usize::from(u16::MAX) {
        return None;
    }
    // What it says of its length behind the header of IP.
    match protocol {
        protocol::UDP => {
            let length = word(38);
            if length < 8 || 20 + length > total {
                return None;
            }
        }
        protocol::TCP => {
            let length = u32::from(head[46] >> 4) * 4;
            if length < 20 || 20 + length > total {
                return None;
            }
        }
        _ => return None,
    }
    Some(Dissection {
        l3: 14,
        l4: 34,
        end: end as u16,
        ether_type: ether_type::IPV4,
        protocol,
        flags: Flags::IPV4 | Flags::L4_OK,
        ..Dissection::default()
    })
}

/// Verifies the IPv4 header checksum of a frame that was [dissected](dissect). Frames without IPv4 pass.
///
/// # Errors
///
/// [`Malformed::BadIpv4Checksum`].
#[inline]
pub fn verify_ipv4_checksum(frame: &[u8], found: &Dissection) -> Result<(), Malformed> {
    if !found.flags.contains(Flags::IPV4) || frame.get(usize::from(found.l3)..).is_some_and(ipv4::checksum_ok) {
        Ok(())
    } else {
        Err(Malformed::BadIpv4Checksum)
    }
}

fn dissect_arp(mut found: Dissection, message: &[u8]) -> Result<Dissection, Malformed> {
    let Some(front) = message.first_chunk::<8>() else { return Err(Malformed::TruncatedArp) };
    let len = front.len() + 2 * (usize::from(front[4]) + usize::from(front[5]));
    if len > message.len() {
        return Err(Malformed::TruncatedArp);
    }
    found.flags = Flags::ARP;
    found.end = found.l3 + len as u16;
    Ok(found)
}

#[inline]
fn dissect_ipv4(mut found: Dissection, rest: &[u8]) -> Result<Dissection, Malformed> {
    let Some(ip) = rest.first_chunk::<20>() else { return Err(Malformed::TruncatedIpv4) };
    if ip[0] >> 4 != 4 {
        return Err(Malformed::BadIpv4Version);
    }
    let header = usize::from(ip[0] & 0x0f) * 4;
    let total = u16::from_be_bytes([ip[2], ip[3]]);
    if header < ip.len() {
        return Err(Malformed::BadIpv4HeaderLength);
    }
    if header > rest.len() {
        return Err(Malformed::TruncatedIpv4);
    }
    let Some(datagram) = rest.get(..usize::from(total)) else { return Err(Malformed::Ipv4LengthAboveFrame) };
    let Some(payload) = datagram.get(header..) else { return Err(Malformed::Ipv4LengthBelowHeader) };
    found.flags = Flags::IPV4;
    found.flags.set(Flags::IP_OPTIONS, header > ip.len());
    found.end = found.l3 + total;
    found.protocol = ip[9];
    let fragment = u16::from_be_bytes([ip[6], ip[7]]);
    if fragment & (ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) != 0 {
        found.flags |= Flags::FRAGMENT;
        if fragment & ipv4::FRAGMENT_OFFSET != 0 {
            return Ok(found);
        }
        found.flags |= Flags::FIRST_FRAGMENT;
    }
    found.l4 = found.l3 + header as u16;
    dissect_l4(found, payload)
}

#[inline]
fn dissect_ipv6(mut found: Dissection, rest: &[u8]) -> Result<Dissection, Malformed> {
    let Some((ip, behind)) = rest.split_first_chunk::<40>() else { return Err(Malformed::TruncatedIpv6) };
    if ip[0] >> 4 != 6 {
        return Err(Malformed::BadIpv6Version);
    }
    let length = u16::from_be_bytes([ip[4], ip[5]]);
    let Some(payload) = behind.get(..usize::from(length)) else { return Err(Malformed::Ipv6LengthAboveFrame) };
    found.flags = Flags::IPV6;
    found.l4 = found.l3 + ip.len() as u16;
    found.end = found.l4 + length;
    found.protocol = ip[6];
    if ipv6::is_extension(found.protocol) { walk_extensions(found, payload) } else { dissect_l4(found, payload) }
}

/// The extension headers of IPv6. `rest` begins with the first and ends with the datagram, so that every offset in
/// it fits 16 bits.
fn walk_extensions(mut found: Dissection, mut rest: &[u8]) -> Result<Dissection, Malformed> {
    found.flags |= Flags::IP_OPTIONS;
    let mut count = 0;
    while ipv6::is_extension(found.protocol) {
        if count == MAX_EXTENSIONS {
            return Err(Malformed::TooManyIpv6Extensions);
        }
        let Some(front) = rest.first_chunk::<8>() else { return Err(Malformed::TruncatedIpv6Extension) };
        let mut len = (usize::from(front[1]) + 1) * 8;
        let mut later_fragment = false;
        match found.protocol {
            protocol::HOP_BY_HOP if count > 0 => return Err(Malformed::BadIpv6Extension),
            protocol::AH => {
                len = (usize::from(front[1]) + 2) * 4;
                if len < 12 {
                    return Err(Malformed::BadIpv6Extension);
                }
            }
            protocol::FRAGMENT => {
                len = 8;
                let word = u16::from_be_bytes([front[2], front[3]]);
                later_fragment = word & 0xfff8 != 0;
                // Neither an offset nor more to come: an atomic fragment is a whole datagram (RFC 6946).
                found.flags.set(Flags::FRAGMENT, word & 0xfff9 != 0);
                found.flags.set(Flags::FIRST_FRAGMENT, word & 0xfff9 == 1);
            }
            _ => {}
        }
        let Some(behind) = rest.get(len..) else { return Err(Malformed::TruncatedIpv6Extension) };
        found.protocol = front[0];
        found.l4 += len as u16;
        if later_fragment {
            found.l4 = 0;
            return Ok(found);
        }
        rest = behind;
        count += 1;
    }
    dissect_l4(found, rest)
}

/// The layer behind IP. `bytes` ends with the datagram.
#[inline]
fn dissect_l4(mut found: Dissection, bytes: &[u8]) -> Result<Dissection, Malformed> {
    let flaw = match found.protocol {
        protocol::TCP => match bytes.first_chunk::<20>() {
            None => Some(Malformed::TruncatedTcp),
            Some(tcp) => {
                let header = usize::from(tcp[12] >> 4) * 4;
                let outside = header < tcp.len() || header > bytes.len();
                outside.then_some(Malformed::BadTcpDataOffset)
            }
        },
        protocol::UDP => match bytes.first_chunk::<8>() {
            None => Some(Malformed::TruncatedUdp),
            Some(udp) => {
                let length = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
                // The length of a first fragment is that of the whole datagram.
                let above = length > bytes.len() && !found.flags.contains(Flags::FRAGMENT);
                (length < udp.len() || above).then_some(Malformed::BadUdpLength)
            }
        },
        protocol::ICMP | protocol::ICMPV6 => (bytes.len() < 8).then_some(Malformed::TruncatedIcmp),
        protocol::NO_NEXT_HEADER => {
            found.l4 = 0;
            return Ok(found);
        }
        _ => return Ok(found),
    };
    match flaw {
        None => found.flags |= Flags::L4_OK,
        Some(flaw) if !found.flags.contains(Flags::FRAGMENT) => return Err(flaw),
        Some(_) => {}
    }
    Ok(found)
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
