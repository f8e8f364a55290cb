//! The headers of a frame, as flow rules match them.
//!
//! A flow rule treats a header that is not complete within the frame as absent, and also treats all headers after such
//! a header as absent.

use dataplane_core::header::{ether_type, protocol, tunnel, vlan};

/// The EtherTypes of MPLS: unicast and multicast.
const MPLS: [u16; 2] = [0x8847, 0x8848];
/// The UDP port of MPLS (RFC 7510).
const MPLS_PORT: u16 = 6635;
/// The EtherType of an Ethernet frame in GRE.
const TRANSPARENT_ETHERNET: u16 = 0x6558;
/// The maximum number of VLAN tags that are parsed.
const MAX_TAGS: usize = 2;

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ethernet<'a> {
    pub(super) dst: &'a [u8; 6],
    pub(super) src: &'a [u8; 6],
    /// The EtherType after the last tag.
    pub(super) ether_type: u16,
    /// The tag control information of the outer VLAN tag.
    pub(super) tag: Option<u16>,
}

/// The fixed part of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ip<'a> {
    V4(&'a [u8; 20]),
    V6(&'a [u8; 40]),
}

/// The kind of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportKind {
    Tcp,
    Udp,
}

/// The source and destination ports of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) kind: TransportKind,
    pub(super) src: u16,
    pub(super) dst: u16,
}

/// The headers of a frame outside all tunnels, or the headers inside a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Headers<'a> {
    pub(super) ethernet: Option<Ethernet<'a>>,
    pub(super) ip: Option<Ip<'a>>,
    pub(super) transport: Option<Transport>,
}

/// A tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tunnel<'a> {
    Vxlan { vni: u32 },
    Gre { flags: u16, protocol: u16, key: Option<&'a [u8; 4]> },
    Mpls { entry: &'a [u8; 4] },
}

/// The bytes after the parsed headers.
enum Payload<'a> {
    None,
    /// The payload of an Ethernet frame with this EtherType.
    Ethernet(u16, &'a [u8]),
    Gre(&'a [u8]),
    Udp(u16, &'a [u8]),
}

/// Parses the outer headers and the first tunnel. Returns the outer headers, and the tunnel with the inner headers.
pub(super) fn parse(frame: &[u8]) -> (Headers<'_>, Option<(Tunnel<'_>, Headers<'_>)>) {
    let (outer, payload) = ethernet(frame);
    (outer, tunnelled(payload))
}

fn ethernet(frame: &[u8]) -> (Headers<'_>, Payload<'_>) {
    let Some((header, mut rest)) = frame.split_first_chunk::<14>() else {
        return (Headers::default(), Payload::None);
    };
    let [dst, src] = [0, 6].map(|at| header[at..].first_chunk::<6>());
    let (Some(dst), Some(src)) = (dst, src) else { return (Headers::default(), Payload::None) };
    let (mut kind, mut tag) = (word(header, 12), None);
    for _ in 0..MAX_TAGS {
        let Some((bytes, behind)) = rest.split_first_chunk::<4>().filter(|_| vlan::is_tag(kind)) else { break };
        tag = tag.or(Some(word(bytes, 0)));
        (kind, rest) = (word(bytes, 2), behind);
    }
    let ethernet = Some(Ethernet { dst, src, ether_type: kind, tag });
    let (ip, transport, payload) = network(kind, rest);
    (Headers { ethernet, ip, transport }, payload)
}

/// Parses the layers after an EtherType.
fn network(kind: u16, rest: &[u8]) -> (Option<Ip<'_>>, Option<Transport>, Payload<'_>) {
    let (ip, number, behind) = match kind {
        ether_type::IPV4 => {
            let Some(header) = rest.first_chunk::<20>().filter(|header| header[0] >> 4 == 4) else {
                return (None, None, Payload::None);
            };
            let length = usize::from(header[0] & 0xf) * 4;
            let Some(behind) = rest.get(length..).filter(|_| length >= header.len()) else {
                return (None, None, Payload::None);
            };
            // Only the first fragment has a header after the IP header.
            let first = word(header, 6) & 0x1fff == 0;
            (Ip::V4(header), header[9], if first { behind } else { &[] })
        }
        ether_type::IPV6 => {
            let Some((header, behind)) = rest.split_first_chunk::<40>().filter(|(header, _)| header[0] >> 4 == 6)
            else {
                return (None, None, Payload::None);
            };
            (Ip::V6(header), header[6], behind)
        }
        _ => return (None, None, Payload::Ethernet(kind, rest)),
    };
    let kind = match number {
        protocol::TCP => TransportKind::Tcp,
        protocol::UDP => TransportKind::Udp,
        protocol::GRE => return (Some(ip), None, Payload::Gre(behind)),
        _ => return (Some(ip), None, Payload::None),
    };
    let Some(ports) = behind.first_chunk::<4>() else { return (Some(ip), None, Payload::None) };
    let transport = Transport { kind, src: word(ports, 0), dst: word(ports, 2) };
    let payload = match behind.get(8..).filter(|_| kind == TransportKind::Udp) {
        Some(payload) => Payload::Udp(transport.dst, payload),
        None => Payload::None,
    };
    (Some(ip), Some(transport), payload)
}

fn tunnelled(payload: Payload<'_>) -> Option<(Tunnel<'_>, Headers<'_>)> {
    match payload {
        Payload::None => None,
        Payload::Ethernet(kind, rest) if MPLS.contains(&kind) => mpls(rest),
        Payload::Ethernet(..) => None,
        Payload::Udp(tunnel::VXLAN_PORT, rest) => {
            let (header, frame) = rest.split_first_chunk::<8>()?;
            let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
            Some((Tunnel::Vxlan { vni }, ethernet(frame).0))
        }
        Payload::Udp(MPLS_PORT, rest) => mpls(rest),
        Payload::Udp(..) => None,
        Payload::Gre(rest) => {
            let (header, mut rest) = rest.split_first_chunk::<4>()?;
            let (flags, protocol) = (word(header, 0), word(header, 2));
            let mut field = |flag: u16| {
                let (field, behind) = rest.split_first_chunk::<4>().filter(|_| flags & flag != 0)?;
                rest = behind;
                Some(field)
            };
            field(tunnel::GRE_CHECKSUM);
            let key = field(tunnel::GRE_KEY);
            field(tunnel::GRE_SEQUENCE);
            let inner = match protocol {
                TRANSPARENT_ETHERNET => ethernet(rest).0,
                _ => {
                    let (ip, transport, _) = network(protocol, rest);
                    Headers { ethernet: None, ip, transport }
                }
            };
            // For MPLS in GRE, a device matches rules with the MPLS label instead of the GRE header.
            match mpls(rest).filter(|_| MPLS.contains(&protocol)) {
                Some(inner) => Some(inner),
                None => Some((Tunnel::Gre { flags, protocol, key }, inner)),
            }
        }
    }
}

/// Parses an MPLS label stack, and the IP packet after the stack.
fn mpls(stack: &[u8]) -> Option<(Tunnel<'_>, Headers<'_>)> {
    let (entry, mut rest) = stack.split_first_chunk::<4>()?;
    let mut last = entry;
    while last[2] & 1 == 0
        && let Some((next, behind)) = rest.split_first_chunk::<4>()
    {
        (last, rest) = (next, behind);
    }
    let kind = match rest.first().filter(|_| last[2] & 1 == 1) {
        Some(first) if first >> 4 == 4 => ether_type::IPV4,
        Some(first) if first >> 4 == 6 => ether_type::IPV6,
        _ => return Some((Tunnel::Mpls { entry }, Headers::default())),
    };
    let (ip, transport, _) = network(kind, rest);
    Some((Tunnel::Mpls { entry }, Headers { ethernet: None, ip, transport }))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
