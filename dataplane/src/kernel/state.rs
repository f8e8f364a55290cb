//! What the kernel has said so far, and how it is written to the tables of the stages.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::messages::{self, Address, Leads, Link, Neighbor, News};
use super::rib::{LOCAL, MAIN, Rib};
use super::socket::{Message, Requests};
use crate::header::MacAddr;
use crate::pipeline::{NextHop, PortInfo};
use crate::stages::forwarding::{Count, Forwarding, Hop, Kind, Mark, TABLES, Target, Writer};

/// The most neighbours that are asked for at a time.
const ASKED_AT_ONCE: usize = 32;

/// See the module.
pub(super) struct State {
    tables: Arc<Forwarding>,
    writer: Box<Writer>,
    ports: Vec<PortInfo>,
    links: HashMap<u32, Link>,
    /// Ports by the index of their interface.
    numbers: HashMap<u32, u8>,
    /// The kernel's number of each of our tables.
    opened: Vec<u32>,
    rib: Rib,
    addresses: Vec<Address>,
    /// Something may have changed that was not told.
    doubt: bool,
    /// How many neighbours there were when one was not taken. That may be fewer than there can be, as its place must be near to
    /// where it hashes.
    left_out: Option<usize>,
    /// Routes that were not taken.
    refused: HashSet<(usize, IpNet)>,
    /// Whether workers may be at work.
    is_read: bool,
    warned: HashSet<&'static str>,
}

impl State {
    pub(super) fn new(tables: Arc<Forwarding>, mut writer: Box<Writer>, ports: &[PortInfo]) -> Self {
        writer.open(&tables, 0);
        Self {
            tables,
            writer,
            ports: ports.to_vec(),
            links: HashMap::new(),
            numbers: HashMap::new(),
            opened: vec![MAIN],
            rib: Rib::default(),
            addresses: Vec::new(),
            doubt: false,
            left_out: None,
            refused: HashSet::new(),
            is_read: false,
            warned: HashSet::new(),
        }
    }

    pub(super) fn tables(&self) -> &Forwarding {
        &self.tables
    }

    /// Whether all is to be read anew; asked, it is forgotten.
    pub(super) fn take_doubt(&mut self) -> bool {
        std::mem::take(&mut self.doubt)
    }

    /// Whether neighbours that were not taken may have room now, and are to be read anew; asked, it is forgotten.
    pub(super) fn take_left_out(&mut self) -> bool {
        self.left_out.take_if(|then| self.writer.neighbors_known() < *then).is_some()
    }

    pub(super) fn publish(&mut self) {
        match self.is_read {
            true => self.writer.publish(&self.tables),
            false => self.writer.publish_unread(&self.tables),
        }
    }

    /// From now on workers may be at work.
    pub(super) fn begin(&mut self) {
        self.is_read = true;
    }

    /// Lets workers ask again for what is not resolved.
    pub(super) fn ask_again(&self) {
        self.writer.watch_unresolved();
    }

    /// Takes a change in.
    pub(super) fn apply(&mut self, message: Message) {
        let flags = message.flags;
        let Some(news) = messages::read(message.inner) else { return };
        match news {
            News::Link(link) => {
                if self.links.get(&link.index) != Some(&link) {
                    let concerns = self.concerns(&link);
                    self.links.insert(link.index, link);
                    if concerns {
                        self.settle_links();
                        // IPv4 routes of an interface that went down are gone without a word.
                        self.doubt = true;
                    }
                }
            }
            News::NoLink(index) => {
                if let Some(link) = self.links.remove(&index)
                    && self.concerns(&link)
                {
                    self.settle_links();
                    self.doubt = true;
                }
            }
            News::Address(address) => {
                self.addresses.retain(|known| (known.index, known.address) != (address.index, address.address));
                self.addresses.push(address);
                self.settle_addresses();
            }
            News::NoAddress(address) => {
                self.addresses.retain(|known| (known.index, known.address) != (address.index, address.address));
                self.settle_addresses();
                // So are those that had it as their source.
                self.doubt = true;
            }
            News::Neighbor(neighbor) => self.set_neighbor(&neighbor),
            News::NoNeighbor(neighbor) => {
                if let Some(hop) = self.hop(&neighbor) {
                    self.writer.unset_neighbor(hop);
                    self.tables.add(Count::Changes, 1);
                }
            }
            News::Route(route) => {
                let key = (route.table, route.prefix);
                if self.table(key.0).is_some() {
                    let wide = self.rib.wide().len();
                    self.rib.add(route, flags);
                    self.route_changed(key, wide);
                }
            }
            News::NoRoute(route) => {
                let wide = self.rib.wide().len();
                self.rib.remove(&route);
                self.route_changed((route.table, route.prefix), wide);
            }
        }
    }

    fn route_changed(&mut self, (table, prefix): (u32, IpNet), wide: usize) {
        // Own addresses that hide other prefixes have changed.
        self.doubt |= self.rib.wide().len() != wide;
        if let Some(table) = self.table(table) {
            self.write(table, prefix);
        }
    }

    /// Whether a link is a port, or the master of one.
    fn concerns(&self, link: &Link) -> bool {
        let is_port = |name: &str| self.ports.iter().any(|port| port.interface.as_deref() == Some(name));
        let was = self.links.get(&link.index).is_some_and(|known| is_port(&known.name));
        is_port(&link.name) || was || link.table.is_some()
    }

    /// Our number of a table of the kernel.
    fn table(&self, table: u32) -> Option<usize> {
        let table = if table == LOCAL { MAIN } else { table };
        self.opened.iter().position(|opened| *opened == table)
    }

    /// Works out which interface each port is, and tells stages of it.
    fn settle_links(&mut self) {
        self.numbers.clear();
        for number in 0..self.ports.len() {
            let port = &self.ports[number];
            let Some(name) = &port.interface else { continue };
            let Some(link) = self.links.values().find(|link| link.name == *name) else { continue };
            let number = number as u8;
            self.numbers.insert(link.index, number);
            let mtu = link.mtu.min(u32::from(port.mtu));
            self.tables.set_link(number, link.mac.unwrap_or(MacAddr(port.mac)), mtu);
            let vrf = link.master.and_then(|master| self.links.get(&master)?.table);
            let table = match vrf {
                None => 0,
                Some(table) => self.table(table).unwrap_or_else(|| self.open(table)),
            };
            self.tables.set_table(number, table);
        }
    }

    /// Begins to follow a table.
    fn open(&mut self, table: u32) -> usize {
        let number = self.opened.len();
        if self.writer.open(&self.tables, number) {
            self.opened.push(table);
            self.doubt = true;
        } else {
            self.tables.add(Count::Refused, 1);
            self.warn("tables", format!("table {table} is not followed: there may be {TABLES}"));
        }
        number
    }

    fn warn(&mut self, what: &'static str, message: String) {
        if self.warned.insert(what) {
            tracing::warn!("kernel: {message}");
        }
    }

    /// Works out with which address each port speaks.
    fn settle_addresses(&mut self) {
        for (index, number) in &self.numbers {
            let (mut v4, mut v6, mut v6_of_link) = (None, None, None);
            for address in self.addresses.iter().filter(|address| address.index == *index) {
                match address.address {
                    IpAddr::V4(address4) if !address.secondary => v4 = v4.or(Some(address4)),
                    IpAddr::V6(address6) if address.global => v6 = v6.or(Some(address6)),
                    IpAddr::V6(address6) => v6_of_link = v6_of_link.or(Some(address6)),
                    IpAddr::V4(_) => {}
                }
            }
            let v6 = v6.or(v6_of_link).unwrap_or(Ipv6Addr::UNSPECIFIED);
            self.tables.set_addresses(*number, v4.unwrap_or(Ipv4Addr::UNSPECIFIED), v6);
        }
    }

    fn hop(&self, neighbor: &Neighbor) -> Option<NextHop> {
        let port = *self.numbers.get(&neighbor.index)?;
        Some(NextHop { address: neighbor.address, port })
    }

    fn set_neighbor(&mut self, neighbor: &Neighbor) {
        let Some(hop) = self.hop(neighbor) else { return };
        let mark = if neighbor.stale { Mark::Watched } else { Mark::Quiet };
        match self.writer.set_neighbor(hop, neighbor.resolved, mark) {
            Ok(()) => self.tables.add(Count::Changes, 1),
            Err(refused) => {
                self.left_out = Some(self.writer.neighbors_known());
                self.tables.add(Count::Refused, 1);
                self.warn("neighbors", format!("{} is not taken: {refused}", neighbor.address));
            }
        }
    }

    /// Where a route leads in our words; `None`: nowhere that is up.
    fn target(&self, leads: &Leads) -> Option<Target> {
        let hops = match leads {
            Leads::Only(kind) => return Some(Target::Only(*kind)),
            // One that is wrapped leaves the choice among all to the host.
            Leads::To(hops) if hops.iter().any(|hop| hop.wrapped) => return Some(Target::Only(Kind::Local)),
            Leads::To(hops) => hops,
        };
        let ours = hops.iter().filter_map(|hop| {
            let port = *self.numbers.get(&hop.index)?;
            Some(Hop { port, via: hop.via, weight: hop.weight })
        });
        let ours: Vec<Hop> = ours.collect();
        match (hops.is_empty(), ours.is_empty()) {
            (true, _) => None,
            // By an interface that is no port: the host knows the way.
            (_, true) => Some(Target::Only(Kind::Local)),
            _ => Some(Target::Paths(ours)),
        }
    }

    /// Writes what counts for a prefix.
    fn write(&mut self, table: usize, prefix: IpNet) {
        let target = self.rib.best(self.opened[table], prefix).and_then(|leads| self.target(leads));
        self.tables.add(Count::Changes, 1);
        self.refused.remove(&(table, prefix));
        match target {
            Some(target) => {
                let mut put = self.writer.set_route(table, prefix, &target);
                if put.is_err() {
                    // What was taken out since the last look may be free by now.
                    self.publish();
                    put = self.writer.set_route(table, prefix, &target);
                }
                if let Err(refused) = put {
                    self.refused.insert((table, prefix));
                    self.tables.add(Count::Refused, 1);
                    self.warn("routes", format!("the route to {prefix} is not taken: {refused}"));
                }
            }
            None => {
                self.writer.remove_route(table, prefix);
            }
        }
        // In a long run of changes there is memory to be had back in between.
        if self.tables.count(Count::Changes).is_multiple_of(1024) {
            self.publish();
        }
    }

    /// Reads all there is, and writes what is not as it was.
    pub(super) fn read_anew(&mut self, requests: &mut Requests) -> io::Result<()> {
        let before = self.numbers.clone();
        // A table that links name is opened first, so that its routes are taken. And links are read under the kernel's lock: what it
        // has told of before it did it, such as a route that goes, is done by then.
        let mut links = Vec::new();
        dump(requests, RouteNetlinkMessage::GetLink(LinkMessage::default()), &mut links, |news| match news {
            News::Link(link) => Some(link),
            _ => None,
        })?;
        self.links = links.into_iter().map(|link| (link.index, link)).collect();
        self.settle_links();
        let mut addresses = Vec::new();
        let what = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        dump(requests, what, &mut addresses, |news| match news {
            News::Address(address) => Some(address),
            _ => None,
        })?;
        self.addresses = addresses;
        self.settle_addresses();
        self.read_routes(requests, before != self.numbers)?;
        self.read_neighbors(requests)?;
        self.doubt = false;
        self.publish();
        Ok(())
    }

    fn read_routes(&mut self, requests: &mut Requests, other_ports: bool) -> io::Result<()> {
        let mut rib = Rib::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut what = RouteMessage::default();
            what.header.address_family = family;
            let rib = std::cell::RefCell::new(&mut rib);
            // What comes again replaces itself.
            requests.dump(
                &RouteNetlinkMessage::GetRoute(what),
                || {},
                |message| {
                    if let Some(News::Route(route)) = messages::read(message.inner)
                        && self.table(route.table).is_some()
                    {
                        // Of one metric the first counts, and those behind are appended to it.
                        rib.borrow_mut().add(route, netlink_packet_core::NLM_F_APPEND);
                    }
                },
            )?;
        }
        let all = other_ports || rib.wide() != self.rib.wide();
        let old = std::mem::replace(&mut self.rib, rib);
        let mut changed = std::mem::take(&mut self.refused);
        for (table, prefix) in old.prefixes().chain(self.rib.prefixes()) {
            let Some(table) = self.table(table) else { continue };
            let number = self.opened[table];
            if all || old.best(number, prefix) != self.rib.best(number, prefix) {
                changed.insert((table, prefix));
            }
        }
        drop(old);
        for (table, prefix) in changed {
            self.write(table, prefix);
        }
        if self.rib.refused > 0 {
            let refused = std::mem::take(&mut self.rib.refused);
            self.tables.add(Count::Refused, refused);
            self.warn("routes", format!("{refused} routes are not taken: there are too many"));
        }
        Ok(())
    }

    pub(super) fn read_neighbors(&mut self, requests: &mut Requests) -> io::Result<()> {
        let mut neighbors = Vec::new();
        let what = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        dump(requests, what, &mut neighbors, |news| match news {
            News::Neighbor(neighbor) => Some(neighbor),
            _ => None,
        })?;
        let there: HashSet<NextHop> = neighbors.iter().filter_map(|neighbor| self.hop(neighbor)).collect();
        for hop in self.writer.listed_neighbors() {
            if !there.contains(&hop) {
                self.writer.unset_neighbor(hop);
            }
        }
        neighbors.iter().for_each(|neighbor| self.set_neighbor(neighbor));
        Ok(())
    }

    /// Asks the kernel to find the neighbours that workers need.
    pub(super) fn answer(&mut self, requests: &mut Requests) {
        for _ in 0..ASKED_AT_ONCE {
            let Some(hop) = self.tables.question() else { return };
            let index = self.numbers.iter().find(|(_, number)| **number == hop.port).map(|(index, _)| *index);
            let Some(index) = index else { continue };
            // It has a place from now on, so that nobody asks again before the kernel has had its time.
            if self.writer.note_neighbor(hop).is_err() {
                self.tables.add(Count::Refused, 1);
                self.warn("neighbors", format!("{} is not asked for: there are too many neighbours", hop.address));
                continue;
            }
            self.tables.add(Count::Asked, 1);
            let mut message = NeighbourMessage::default();
            let (family, address) = match hop.address {
                IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
                IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
            };
            message.header.family = family;
            message.header.ifindex = index;
            // As if the host itself had a packet for it.
            message.header.flags = NeighbourFlags::Use;
            message.attributes.push(NeighbourAttribute::Destination(address));
            if let Err(error) = requests.tell(RouteNetlinkMessage::NewNeighbour(message)) {
                self.writer.unset_neighbor(hop);
                self.warn("asking", format!("cannot ask for {}: {error} (it needs CAP_NET_ADMIN)", hop.address));
            }
        }
    }
}

/// Reads all entries of a kind.
fn dump<T>(
    requests: &mut Requests,
    what: RouteNetlinkMessage,
    into: &mut Vec<T>,
    want: impl Fn(News) -> Option<T>,
) -> io::Result<()> {
    let found = std::cell::RefCell::new(into);
    requests.dump(
        &what,
        || found.borrow_mut().clear(),
        |message| {
            found.borrow_mut().extend(messages::read(message.inner).and_then(&want));
        },
    )
}
