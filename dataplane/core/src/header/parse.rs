//! Parses a whole frame once and returns the positions of its layers, or the reason why the frame is malformed.

use std::fmt;

use super::checksum::Sum;
use super::{ether_type, ipv4, ipv6, protocol, vlan};

/// The maximum number of IPv6 extension headers of a frame. Legitimate traffic has only a few.
pub const MAX_EXTENSIONS: usize = 8;

bitflags::bitflags! {
    /// The layers and properties of a frame.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// An IPv4 header starts at [`Dissection::l3`].
        const IPV4 = 1 << 0;
        /// An IPv6 header starts at [`Dissection::l3`].
        const IPV6 = 1 << 1;
        /// An ARP message starts at [`Dissection::l3`].
        const ARP = 1 << 2;
        /// The packet is a fragment of a datagram, the first or a later one.
        const FRAGMENT = 1 << 3;
        /// The packet is the first fragment of a datagram.
        const FIRST_FRAGMENT = 1 << 4;
        /// The IPv4 header has options, or the IPv6 header has extension headers.
        const IP_OPTIONS = 1 << 5;
        /// The header of TCP (with its options), UDP, ICMP or ICMPv6 at [`Dissection::l4`] is complete.
        const L4_OK = 1 << 6;
    }
}

/// The positions of the layers of a frame, in bytes from the start of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dissection {
    /// The start of the layer after the Ethernet header and its VLAN tags.
    pub l3: u16,
    /// The start of the layer after IP. 0 if there is no such layer, or if this layer starts in another fragment.
    pub l4: u16,
    /// The end of the IP datagram or ARP message, computed from its length fields. Link-layer padding can follow. For
    /// other EtherTypes, this is the end of the frame.
    pub end: u16,
    /// The EtherType after the tags. The module [`ether_type`] has constants for common values. A value below 0x0600 is
    /// the length of an IEEE 802.3 frame.
    pub ether_type: u16,
    /// The tag control information of the outer VLAN tag, or 0 without a tag.
    pub outer_tci: u16,
    /// The tag control information of the inner VLAN tag, or 0 if the frame has fewer than two tags.
    pub inner_tci: u16,
    /// The number of VLAN tags: 0 to 2.
    pub vlan_tags: u8,
    /// The IP protocol after all extension headers that were parsed. The module [`protocol`] has constants for common
    /// values. 0 if the packet is not IP.
    pub protocol: u8,
    /// The layers and properties of the frame.
    pub flags: Flags,
}

impl Dissection {
    /// Returns the id of the outer VLAN tag, or `None` if the frame is untagged.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        (self.vlan_tags > 0).then_some(vlan::id(self.outer_tci))
    }
}

macro_rules! malformed {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// The reason why a frame is malformed. `Display` prints a short name in snake case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Malformed {
            $($(#[$doc])* $name,)*
        }

        impl Malformed {
            /// All reasons, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the short name, which is stable and in snake case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

malformed! {
    /// The frame is shorter than an Ethernet header: below 14 bytes.
    Runt = "runt",
    /// The frame is longer than 65,535 bytes.
    Oversize = "oversize",
    /// The frame ends within a VLAN tag.
    TruncatedVlan = "truncated_vlan",
    /// The frame has more than two VLAN tags.
    TooManyVlanTags = "too_many_vlan_tags",
    /// The frame ends within the ARP message.
    TruncatedArp = "truncated_arp",
    /// The frame ends within the IPv4 header or its options.
    TruncatedIpv4 = "truncated_ipv4",
    /// The EtherType is IPv4, but the version is not 4.
    BadIpv4Version = "bad_ipv4_version",
    /// The IPv4 header length is below 20 bytes.
    BadIpv4HeaderLength = "bad_ipv4_header_length",
    /// The IPv4 total length exceeds the frame.
    Ipv4LengthAboveFrame = "ipv4_length_above_frame",
    /// The IPv4 total length is below the header length.
    Ipv4LengthBelowHeader = "ipv4_length_below_header",
    /// The IPv4 header checksum is wrong. Only [`verify_ipv4_checksum`] returns this reason.
    BadIpv4Checksum = "bad_ipv4_checksum",
    /// The frame ends within the IPv6 header.
    TruncatedIpv6 = "truncated_ipv6",
    /// The EtherType is IPv6, but the version is not 6.
    BadIpv6Version = "bad_ipv6_version",
    /// The IPv6 payload length exceeds the frame.
    Ipv6LengthAboveFrame = "ipv6_length_above_frame",
    /// The datagram ends within an extension header.
    TruncatedIpv6Extension = "truncated_ipv6_extension",
    /// The frame has more than [`MAX_EXTENSIONS`] extension headers.
    TooManyIpv6Extensions = "too_many_ipv6_extensions",
    /// A hop-by-hop options header is not the first extension header, or an authentication header is shorter than its
    /// minimum of 12 bytes.
    BadIpv6Extension = "bad_ipv6_extension",
    /// The datagram ends within the fixed TCP header.
    TruncatedTcp = "truncated_tcp",
    /// The TCP data offset is below 20 bytes or beyond the end of the datagram.
    BadTcpDataOffset = "bad_tcp_data_offset",
    /// The datagram ends within the UDP header.
    TruncatedUdp = "truncated_udp",
    /// The UDP length is below 8 bytes or exceeds the datagram.
    BadUdpLength = "bad_udp_length",
    /// The datagram ends within the first 8 bytes of ICMP or ICMPv6.
    TruncatedIcmp = "truncated_icmp",
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Malformed {}

/// Parses a frame from the Ethernet header to layer 4. The function supports up to two VLAN tags, ARP, IPv4, IPv6 with
/// extension headers, TCP, UDP, ICMP and ICMPv6. If the next protocol is not in this list, parsing stops without an
/// error. The function does not allocate and does not change the frame.
///
/// A first fragment may end within its layer 4 header (RFC 1858 explains the risk). In that case, [`Flags::L4_OK`] is
/// not set. This function does not verify checksums.
///
/// # Errors
///
/// Returns the first error, from the outermost layer inwards.
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

/// The number of bytes that [`dissect_head`] needs: the length of Ethernet, IPv4 and TCP headers without options.
pub const USUAL_HEADERS_LEN: usize = 54;

/// Parses a frame of the most common kind, whose layers have fixed positions. Such a frame is untagged and contains an
/// unfragmented IPv4 packet without options that carries TCP or UDP. Returns the result of [`dissect`] for a valid
/// frame of this kind with at least [`USUAL_HEADERS_LEN`] bytes. Returns `None` for every other frame.
#[inline]
pub fn dissect_usual(frame: &[u8]) -> Option<Dissection> {
    dissect_head(frame.first_chunk()?, frame.len())
}

/// Parses a frame like [`dissect_usual`], but needs only the first bytes of the frame and its length `len`.
#[inline]
pub fn dissect_head(head: &[u8; USUAL_HEADERS_LEN], len: usize) -> Option<Dissection> {
    // The bits of the EtherType, the IPv4 version and the header length in the word at byte 12, and their expected
    // values.
    const WANTED: u64 = u64::from_be(0x0800_4500_0000_0000);
    const MASK: u64 = u64::from_be(0xffff_ff00_0000_0000);
    // Bits of the word at byte 20. Every fragment has at least one of these bits set.
    const FRAGMENT: u64 = u64::from_be(((ipv4::MORE_FRAGMENTS | ipv4::FRAGMENT_OFFSET) as u64) << 48);
    // Separate branches are faster here than one combined condition, because almost all packets take the same branches.
    let [first, second] = [0, 1].map(|at| u64::from_ne_bytes(head[12..].as_chunks().0[at]));
    if first & MASK != WANTED {
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
    // Check the length in the UDP or TCP header.
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

/// Verifies the IPv4 header checksum of a frame, with the result of [`dissect`]. Frames without IPv4 pass.
///
/// # Errors
///
/// Returns [`Malformed::BadIpv4Checksum`] if the checksum is wrong.
#[inline]
pub fn verify_ipv4_checksum(frame: &[u8], found: &Dissection) -> Result<(), Malformed> {
    if !found.flags.contains(Flags::IPV4) || frame.get(usize::from(found.l3)..).is_some_and(ipv4::checksum_ok) {
        Ok(())
    } else {
        Err(Malformed::BadIpv4Checksum)
    }
}

/// Returns the two parts that the checksum of a TCP or UDP packet covers: the sum of the pseudo header, and the bytes
/// of the TCP or UDP header and data. `found` is the result of [`dissect`]. The bytes include the checksum field. If
/// the checksum is correct, [`Sum::checksum`] of the sum of both parts is 0.
///
/// For UDP, the returned bytes end at the UDP length, even if the IP payload is longer.
///
/// Returns `None` for other protocols than TCP and UDP, for fragments, for packets with IPv6 extension headers, and for
/// a UDP checksum of 0 (no checksum).
#[inline]
pub fn checksummed<'f>(frame: &'f [u8], found: &Dissection) -> Option<(Sum, &'f [u8])> {
    /// The offsets of the length and the checksum in a UDP header.
    const LENGTH: usize = 4;
    const CHECKSUM: usize = 6;
    let is_ipv4 = found.flags.contains(Flags::IPV4);
    let has_extensions = !is_ipv4 && found.flags.contains(Flags::IP_OPTIONS);
    if has_extensions || found.flags.intersection(Flags::L4_OK | Flags::FRAGMENT) != Flags::L4_OK {
        return None;
    }
    let (l3, l4) = (usize::from(found.l3), usize::from(found.l4));
    let bytes = frame.get(l4..usize::from(found.end))?;
    let field = |at: usize| bytes.get(at..at + 2)?.first_chunk().map(|field| u16::from_be_bytes(*field));
    let bytes = match found.protocol {
        protocol::TCP => bytes,
        protocol::UDP if field(CHECKSUM)? != 0 => bytes.get(..usize::from(field(LENGTH)?))?,
        _ => return None,
    };
    let addresses = frame.get(if is_ipv4 { l3 + 12..l3 + 20 } else { l3 + 8..l3 + 40 })?;
    Some((Sum::default().bytes(addresses).u16(found.protocol.into()).u16(bytes.len() as u16), bytes))
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

/// Parses the IPv6 extension headers. `rest` starts at the first extension header and ends at the end of the datagram,
/// so every offset in `rest` fits in 16 bits.
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
                // An atomic fragment (RFC 6946) is a complete datagram. Its offset and its "more fragments" flag are 0.
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

/// Parses the layer after IP. `bytes` starts at this layer and ends at the end of the datagram.
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
                // The UDP length in a first fragment is the length of the whole UDP datagram, so it may exceed the
                // fragment.
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
