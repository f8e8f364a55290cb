//! What messages of the kernel say, in our words.

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

use crate::header::MacAddr;
use crate::stages::forwarding::{Kind, Resolved};

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: u32,
    /// Whether it is up, and has a carrier.
    pub(super) up: (bool, bool),
    /// The index of the device that it belongs to.
    pub(super) master: Option<u32>,
    /// The table of a VRF.
    pub(super) table: Option<u32>,
}

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    /// Whether it is of more than the link.
    pub(super) global: bool,
    /// Whether it is not the first of its subnet.
    pub(super) secondary: bool,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbor {
    pub(super) index: u32,
    pub(super) address: IpAddr,
    pub(super) resolved: Resolved,
    /// Whether it is to be asked whether it is still there, once it is used.
    pub(super) stale: bool,
}

/// A next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    pub(super) index: u32,
    pub(super) via: Option<IpAddr>,
    pub(super) weight: u16,
    /// Whether packets get other headers on this way, which is left to the host.
    pub(super) wrapped: bool,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    To(Box<[NextHop]>),
    Only(Kind),
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) table: u32,
    pub(super) prefix: IpNet,
    pub(super) metric: u32,
    pub(super) leads: Leads,
}

/// A message that says something to us.
#[derive(Debug)]
pub(super) enum News {
    Link(Link),
    NoLink(u32),
    Address(Address),
    NoAddress(Address),
    Neighbor(Neighbor),
    NoNeighbor(Neighbor),
    Route(Route),
    NoRoute(Route),
}

/// What a message says; `None`: nothing to us.
pub(super) fn read(message: RouteNetlinkMessage) -> Option<News> {
    Some(match message {
        RouteNetlinkMessage::NewLink(message) => News::Link(link(message)?),
        RouteNetlinkMessage::DelLink(message) => {
            // A bridge lets go of a port by such a message: the link itself stays.
            if u8::from(message.header.interface_family) != u8::from(AddressFamily::Unspec) {
                return None;
            }
            News::NoLink(message.header.index)
        }
        RouteNetlinkMessage::NewAddress(message) => News::Address(address(&message)?),
        RouteNetlinkMessage::DelAddress(message) => News::NoAddress(address(&message)?),
        RouteNetlinkMessage::NewNeighbour(message) => News::Neighbor(neighbor(&message)?),
        RouteNetlinkMessage::DelNeighbour(message) => News::NoNeighbor(neighbor(&message)?),
        RouteNetlinkMessage::NewRoute(message) => News::Route(route(&message)?),
        RouteNetlinkMessage::DelRoute(message) => News::NoRoute(route(&message)?),
        _ => return None,
    })
}

fn link(message: LinkMessage) -> Option<Link> {
    if u8::from(message.header.interface_family) != u8::from(AddressFamily::Unspec) {
        return None;
    }
    let flags = message.header.flags;
    let up = (flags.contains(LinkFlags::Up), flags.contains(LinkFlags::LowerUp));
    let index = message.header.index;
    let mut link = Link { index, name: String::new(), mac: None, mtu: 0, up, master: None, table: None };
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

fn address(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    Some(Address {
        index: message.header.index,
        // IPv6 and links without a peer say one of the two alone.
        address: local.or(peer)?,
        global: message.header.scope == AddressScope::Universe,
        secondary: message.header.flags.contains(AddressHeaderFlags::Secondary),
    })
}

fn neighbor(message: &NeighbourMessage) -> Option<Neighbor> {
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
        (NeighbourState::Failed, _) => Resolved::Failed,
        (NeighbourState::Incomplete | NeighbourState::None, _) | (_, None) => Resolved::Unknown,
        (_, Some(mac)) => Resolved::At(mac),
    };
    let stale = message.header.state == NeighbourState::Stale;
    Some(Neighbor { index: message.header.ifindex, address: address?, resolved, stale })
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

/// Whether packets get another header by it, or other labels: `RTA_ENCAP`, `RTA_NEWDST`.
fn wraps(attribute: &RouteAttribute) -> bool {
    use RouteAttribute::{Encap, EncapType, NewDestination, NewDestinationAddress};
    matches!(attribute, Encap(_) | EncapType(_) | NewDestination(_) | NewDestinationAddress(_))
}

fn hop_of(hop: &RouteNextHop) -> Option<NextHop> {
    // The kernel says one less than the weight.
    let weight = u16::from(hop.hops) + 1;
    let alive = !hop.flags.contains(RouteNextHopFlags::Dead);
    let via = hop.attributes.iter().find_map(via);
    let wrapped = hop.attributes.iter().any(wraps);
    alive.then_some(NextHop { index: hop.interface_index, via, weight, wrapped })
}

fn route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    // Routes by source address, by type of service, and copies in the cache are none of ours.
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
    let wrapped = message.attributes.iter().any(wraps);
    let leads = match header.kind {
        RouteType::Unicast => Leads::To(match (many, index) {
            (Some(hops), _) => hops,
            (None, Some(_)) if header.flags.contains(RouteFlags::Dead) => Box::default(),
            (None, Some(index)) => Box::new([NextHop { index, via: gateway, weight: 1, wrapped }]),
            (None, None) => Box::default(),
        }),
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => Leads::Only(Kind::Local),
        RouteType::BlackHole => Leads::Only(Kind::Blackhole),
        RouteType::Unreachable => Leads::Only(Kind::Unreachable),
        RouteType::Prohibit => Leads::Only(Kind::Prohibit),
        RouteType::Throw => Leads::Only(Kind::Throw),
        _ => return None,
    };
    Some(Route { table, prefix: prefix.trunc(), metric, leads })
}
