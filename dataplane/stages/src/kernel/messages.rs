//! Conversion of netlink messages to the types of this module.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoData, InfoVrf, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags, RouteType, RouteVia,
};

use super::socket::Content;
use crate::forwarding::{ResolutionState, RouteKind};
use dataplane_core::header::MacAddr;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelLink {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: u32,
    /// Whether the link is administratively up, and whether it has a carrier.
    pub(super) up: (bool, bool),
    /// The index of the master device, such as a VRF.
    pub(super) master: Option<u32>,
    /// The routing table of the link, if the link is a VRF.
    pub(super) table: Option<u32>,
}

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelAddress {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    /// Whether the address has global scope.
    pub(super) global: bool,
    /// Whether the address is secondary: another address of its subnet was added before.
    pub(super) secondary: bool,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelNeighbor {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    pub(super) resolved: ResolutionState,
    /// Whether the kernel has to verify the neighbour at its next use.
    pub(super) stale: bool,
}

/// A next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelHop {
    pub(super) index: u32,
    pub(super) via: Option<IpAddr>,
    pub(super) weight: u16,
    /// Whether the next hop adds an encapsulation or labels. The host forwards the packets of such routes.
    pub(super) encapsulated: bool,
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelTarget {
    Hops(Box<[KernelHop]>),
    Special(RouteKind),
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelRoute {
    pub(super) table: u32,
    pub(super) prefix: IpNet,
    pub(super) metric: u32,
    pub(super) target: KernelTarget,
}

/// A change that a message reports, or an entry of a dump.
#[derive(Debug)]
pub(super) enum Update {
    Link(KernelLink),
    LinkRemoved(u32),
    Address(KernelAddress),
    AddressRemoved(KernelAddress),
    Neighbor(KernelNeighbor),
    NeighborRemoved(KernelNeighbor),
    Route(KernelRoute),
    RouteRemoved(KernelRoute),
    NexthopRemoved,
}

/// Converts a message. Returns `None` for a message that is not relevant.
pub(super) fn read(content: Content) -> Option<Update> {
    let message = match content {
        Content::Route(message) => message,
        Content::NexthopRemoved => return Some(Update::NexthopRemoved),
    };
    Some(match message {
        RouteNetlinkMessage::NewLink(message) => Update::Link(link(message)?),
        RouteNetlinkMessage::DelLink(message) => {
            // Only a message without an address family reports the removal of a link. A bridge, for example, sends a
            // message with its own family when it releases a port.
            if u8::from(message.header.interface_family) != u8::from(AddressFamily::Unspec) {
                return None;
            }
            Update::LinkRemoved(message.header.index)
        }
        RouteNetlinkMessage::NewAddress(message) => Update::Address(address(&message)?),
        RouteNetlinkMessage::DelAddress(message) => Update::AddressRemoved(address(&message)?),
        RouteNetlinkMessage::NewNeighbour(message) => Update::Neighbor(neighbor(&message)?),
        RouteNetlinkMessage::DelNeighbour(message) => Update::NeighborRemoved(neighbor(&message)?),
        RouteNetlinkMessage::NewRoute(message) => Update::Route(route(&message)?),
        RouteNetlinkMessage::DelRoute(message) => Update::RouteRemoved(route(&message)?),
        _ => return None,
    })
}

fn link(message: LinkMessage) -> Option<KernelLink> {
    if u8::from(message.header.interface_family) != u8::from(AddressFamily::Unspec) {
        return None;
    }
    let flags = message.header.flags;
    let up = (flags.contains(LinkFlags::Up), flags.contains(LinkFlags::LowerUp));
    let index = message.header.index;
    let mut link = KernelLink { index, name: String::new(), mac: None, mtu: 0, up, master: None, table: None };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Address(bytes) => link.mac = <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddr),
            LinkAttribute::Controller(master) => link.master = Some(master).filter(|master| *master != 0),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    let LinkInfo::Data(InfoData::Vrf(data)) = info else { continue };
                    let table = data.iter().find_map(|info| match info {
                        InfoVrf::TableId(table) => Some(*table),
                        _ => None,
                    });
                    link.table = table.or(link.table);
                }
            }
            _ => {}
        }
    }
    Some(link)
}

fn address(message: &AddressMessage) -> Option<KernelAddress> {
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    Some(KernelAddress {
        index: message.header.index,
        // `Local` is the address of the link, and `Address` is the address of the peer. Without a peer, an IPv6 address
        // has only `Address`.
        address: local.or(peer)?,
        global: message.header.scope == AddressScope::Universe,
        secondary: message.header.flags.contains(AddressHeaderFlags::Secondary),
    })
}

fn neighbor(message: &NeighbourMessage) -> Option<KernelNeighbor> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddr),
            _ => {}
        }
    }
    let resolved = match (message.header.state, mac) {
        (NeighbourState::Failed, _) => ResolutionState::Failed,
        (NeighbourState::Incomplete | NeighbourState::None, _) | (_, None) => ResolutionState::Unknown,
        (_, Some(mac)) => ResolutionState::At(mac),
    };
    let stale = message.header.state == NeighbourState::Stale;
    Some(KernelNeighbor { index: message.header.ifindex, address: address?, resolved, stale })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn via(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// Returns whether the attribute adds a header or changes labels: `RTA_ENCAP`, `RTA_NEWDST`.
fn encapsulates(attribute: &RouteAttribute) -> bool {
    use RouteAttribute::{Encap, EncapType, NewDestination, NewDestinationAddress};
    matches!(attribute, Encap(_) | EncapType(_) | NewDestination(_) | NewDestinationAddress(_))
}

fn hop_of(hop: &RouteNextHop) -> Option<KernelHop> {
    // `rtnh_hops` is the weight minus 1.
    let weight = u16::from(hop.hops) + 1;
    let alive = !hop.flags.contains(RouteNextHopFlags::Dead);
    let via = hop.attributes.iter().find_map(via);
    let encapsulated = hop.attributes.iter().any(encapsulates);
    alive.then_some(KernelHop { index: hop.interface_index, via, weight, encapsulated })
}

fn route(message: &RouteMessage) -> Option<KernelRoute> {
    let header = &message.header;
    // Skip routes that apply only to one type of service or to some source addresses, and copies in a cache.
    if header.tos != 0 || header.source_prefix_length != 0 || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut prefix = match header.address_family {
        AddressFamily::Inet => IpNet::new(IpAddr::from([0; 4]), 0).ok()?,
        AddressFamily::Inet6 => IpNet::new(IpAddr::from([0; 16]), 0).ok()?,
        _ => return None,
    };
    let (mut table, mut metric) = (u32::from(header.table), 0);
    let (mut index, mut gateway, mut many) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                prefix = IpNet::new(ip(address)?, header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(number) => index = Some(*number),
            RouteAttribute::MultiPath(hops) => many = Some(hops.iter().filter_map(hop_of).collect()),
            other => gateway = gateway.or(via(other)),
        }
    }
    let encapsulated = message.attributes.iter().any(encapsulates);
    let target = match header.kind {
        RouteType::Unicast => KernelTarget::Hops(match (many, index) {
            (Some(hops), _) => hops,
            (None, Some(_)) if header.flags.contains(RouteFlags::Dead) => Box::default(),
            (None, Some(index)) => Box::new([KernelHop { index, via: gateway, weight: 1, encapsulated }]),
            (None, None) => Box::default(),
        }),
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => {
            KernelTarget::Special(RouteKind::Local)
        }
        RouteType::BlackHole => KernelTarget::Special(RouteKind::Blackhole),
        RouteType::Unreachable => KernelTarget::Special(RouteKind::Unreachable),
        RouteType::Prohibit => KernelTarget::Special(RouteKind::Prohibit),
        RouteType::Throw => KernelTarget::Special(RouteKind::Throw),
        _ => return None,
    };
    Some(KernelRoute { table, prefix: prefix.trunc(), metric, target })
}
