//! Builds the frames that request neighbours and announce this host: ARP (RFC 826, RFC 5227) and neighbour discovery
//! (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use zerocopy::IntoBytes;

use crate::responder::{broadcast_addresses, is_host};
use dataplane_core::header::arp::{Arp, REQUEST};
use dataplane_core::header::checksum::Sum;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::header::ndp::{
    ALL_NODES, HOP_LIMIT, LinkAddress, Neighbor, OVERRIDE, ROUTER, SOURCE_LINK_ADDRESS, TARGET_LINK_ADDRESS, group_mac,
    is_link_local, solicited_node,
};
use dataplane_core::header::{Header, MacAddr, U16, U32, ether_type, icmp, protocol};
use dataplane_core::mem::{Batch, MetaFlags};
use dataplane_core::pipeline::{NextHop, PortInfo};

const MESSAGE: usize = Neighbor::LEN + LinkAddress::LEN;
/// The size of the longest frame, in bytes.
const MAX_FRAME_BYTES: usize = Ethernet::LEN + Ipv6::LEN + MESSAGE;
/// The size of the shortest Ethernet frame, in bytes, without the frame check sequence.
const MIN_FRAME_BYTES: usize = 60;

/// A frame that a worker sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GeneratedFrame {
    port: u8,
    /// Size up to the end of the message, in bytes. `len` is the size of the whole frame, including padding.
    end: u16,
    len: u16,
    v6: bool,
    bytes: [u8; MAX_FRAME_BYTES],
}

impl GeneratedFrame {
    fn new(port: u8, v6: bool, parts: [&[u8]; 3]) -> Self {
        let (mut bytes, mut end) = ([0; MAX_FRAME_BYTES], 0);
        for part in parts {
            bytes[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        Self { port, end: end as u16, len: end.max(MIN_FRAME_BYTES) as u16, v6, bytes }
    }

    /// Adds a packet with the content of the frame to a batch, and sets its egress port. Returns `false` if there is no
    /// free slot.
    pub(crate) fn generate(&self, batch: &mut Batch) -> bool {
        let Some(mut packet) = self.bytes.get(..usize::from(self.len)).and_then(|bytes| batch.generate(bytes)) else {
            return false;
        };
        let meta = packet.meta_mut();
        (meta.l3, meta.end, meta.egress) = (Ethernet::LEN as u16, self.end, self.port);
        if self.v6 {
            (meta.ether_type, meta.protocol) = (ether_type::IPV6, protocol::ICMPV6);
            (meta.flags, meta.l4) = (MetaFlags::IPV6 | MetaFlags::L4, (Ethernet::LEN + Ipv6::LEN) as u16);
        } else {
            (meta.ether_type, meta.flags) = (ether_type::ARP, MetaFlags::ARP);
        }
        true
    }
}

/// Returns the source address of a port for messages to a neighbour. Prefers an address with the same prefix as the
/// neighbour, then an address of the same scope, then the first address of the family.
pub(super) fn source_address(port: &PortInfo, to: IpAddr) -> Option<IpAddr> {
    let same_kind = || port.addresses.iter().filter(|own| own.addr().is_ipv4() == to.is_ipv4());
    let on_link = same_kind().find(|own| own.contains(&to));
    let scope = |address: IpAddr| matches!(address, IpAddr::V6(address) if is_link_local(address));
    let of_scope = || same_kind().find(|own| scope(own.addr()) == scope(to));
    on_link.or_else(of_scope).or_else(|| same_kind().next()).map(ipnet::IpNet::addr)
}

/// Builds the request for a neighbour: a unicast frame if `at` is given, and a multicast or broadcast frame otherwise.
/// Returns `None` if the port has no source address.
pub(super) fn request(port: &PortInfo, hop: NextHop, at: Option<MacAddr>) -> Option<GeneratedFrame> {
    let mac = MacAddr(port.mac);
    Some(match (source_address(port, hop.address)?, hop.address) {
        (IpAddr::V4(own), IpAddr::V4(asked)) => {
            let message = Arp::new(REQUEST, (mac, own), (MacAddr::ZERO, asked));
            arp(hop.port, at.unwrap_or(MacAddr::BROADCAST), &message)
        }
        (IpAddr::V6(own), IpAddr::V6(asked)) => {
            let group = solicited_node(&asked.octets());
            let (to_mac, to) = at.map_or((group_mac(&group), group), |at| (at, asked.octets()));
            let kind = (icmp::V6_NEIGHBOR_SOLICITATION, 0, SOURCE_LINK_ADDRESS);
            discovery(hop.port, (mac, own), (to_mac, to), kind, asked)
        }
        _ => return None,
    })
}

/// Builds the frame that announces an address of this host to all hosts on the link.
pub(super) fn announcement(number: u8, port: &PortInfo, own: IpAddr, router: bool) -> GeneratedFrame {
    let mac = MacAddr(port.mac);
    match own {
        IpAddr::V4(own) => arp(number, MacAddr::BROADCAST, &Arp::new(REQUEST, (mac, own), (MacAddr::ZERO, own))),
        IpAddr::V6(own) => {
            let flags = OVERRIDE | if router { ROUTER } else { 0 };
            let kind = (icmp::V6_NEIGHBOR_ADVERTISEMENT, flags, TARGET_LINK_ADDRESS);
            discovery(number, (mac, own), (group_mac(&ALL_NODES), ALL_NODES), kind, own)
        }
    }
}

fn link(source: MacAddr, destination: MacAddr, ether_type: u16) -> Ethernet {
    Ethernet { destination, source, ether_type: U16::new(ether_type) }
}

fn arp(port: u8, to: MacAddr, message: &Arp) -> GeneratedFrame {
    let link = link(message.sender_mac, to, ether_type::ARP);
    GeneratedFrame::new(port, false, [link.as_bytes(), message.as_bytes(), &[]])
}

/// Builds a neighbour discovery message of the given type and flags. The message has an option with the sender's MAC
/// address.
fn discovery(
    port: u8,
    from: (MacAddr, Ipv6Addr),
    to: (MacAddr, [u8; 16]),
    (kind, flags, option): (u8, u32, u8),
    target: Ipv6Addr,
) -> GeneratedFrame {
    let ip = Ipv6 {
        version_class_flow: U32::new(6 << 28),
        payload_length: U16::new(MESSAGE as u16),
        next_header: protocol::ICMPV6,
        hop_limit: HOP_LIMIT,
        source: from.1.octets(),
        destination: to.1,
    };
    let target = target.octets();
    let mut message = Neighbor { kind, code: 0, checksum: U16::new(0), flags: U32::new(flags), target };
    let option = LinkAddress { kind: option, length: 1, mac: from.0 };
    let sum = Sum::default().pseudo_ipv6(&ip.source, &ip.destination, protocol::ICMPV6, MESSAGE as u32);
    message.checksum.set(sum.bytes(message.as_bytes()).bytes(option.as_bytes()).checksum());
    let mut bytes = [0; MESSAGE];
    bytes[..Neighbor::LEN].copy_from_slice(message.as_bytes());
    bytes[Neighbor::LEN..].copy_from_slice(option.as_bytes());
    let link = link(from.0, to.0, ether_type::IPV6);
    GeneratedFrame::new(port, true, [link.as_bytes(), ip.as_bytes(), &bytes])
}

/// Returns whether an address can belong to a neighbour on the link of its port. Addresses of this host and broadcast
/// addresses cannot belong to a neighbour.
pub(super) fn is_askable(ports: &[PortInfo], hop: NextHop) -> bool {
    let own = ports.iter().flat_map(|port| &port.addresses).any(|own| own.addr() == hop.address);
    let Some(port) = ports.get(usize::from(hop.port)) else { return false };
    let is_broadcast = port.addresses.iter().filter_map(broadcast_addresses).flatten().any(|all| hop.address == all);
    !own && !is_broadcast && is_host(hop.address) && source_address(port, hop.address).is_some()
}
