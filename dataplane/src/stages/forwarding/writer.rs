//! Writes routes and neighbours.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::groups::{self, Groups, Held, Key, Kind, Leg};
use super::neighbors::{self, Neighbors};
use super::{Count, Forwarding, Mark, Resolved, TABLES, Views};
use crate::pipeline::NextHop;
use crate::stages::table::lpm4::Lpm4;
use crate::stages::table::lpm6::Lpm6;

/// The most routes, over all tables.
pub const ROUTES: usize = 1 << 20;
/// Cache lines of a table, which prefixes need that are longer than 24 bits, of 80 bytes each: 20 MiB.
const LINES_V4: usize = 1 << 18;
/// Cache lines of a table, which prefixes need that are longer than 20 bits, of 80 bytes each: 320 MiB.
const LINES_V6: usize = 1 << 22;

/// Destinations that are never routed, whatever a table says: groups, all stations, and those of one link.
const OF_ONE_LINK: [&str; 4] = ["224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8"];

/// One path of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The port.
    pub port: u8,
    /// The gateway; without one the destinations are neighbours.
    pub via: Option<IpAddr>,
    /// The share of this path among all: 1 to 64.
    pub weight: u16,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nowhere, as the kind says.
    Only(Kind),
    /// Along these paths, one or more.
    Paths(Vec<Hop>),
}

/// There are as many routes, paths or neighbours as there may be, or no memory of the tables is free at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for more routes, paths or neighbours")]
pub struct Refused;

/// Writes routes and neighbours, from one thread.
#[derive(Debug)]
pub struct Writer {
    tables: [Option<Table>; TABLES],
    groups: groups::Writer,
    neighbors: neighbors::Writer,
    /// What the ports are called.
    names: Vec<String>,
    time: u64,
}

#[derive(Debug)]
struct Table {
    v4: Lpm4,
    v6: Lpm6,
}

impl Writer {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self {
            tables: std::array::from_fn(|_| None),
            groups: groups::Writer::new(),
            neighbors: neighbors::Writer::new(),
            names,
            time: 1,
        }
    }

    pub(super) fn groups(&self) -> &Arc<Groups> {
        self.groups.cells()
    }

    pub(super) fn neighbors(&self) -> &Arc<Neighbors> {
        self.neighbors.cells()
    }

    /// Makes a table that can be looked in. `false`: its number is [`TABLES`] or more.
    pub fn open(&mut self, shared: &Forwarding, table: usize) -> bool {
        let Some(entry) = self.tables.get_mut(table) else { return false };
        if entry.is_none() {
            let mut made = Table { v4: Lpm4::with_lines(LINES_V4), v6: Lpm6::with_lines(LINES_V6) };
            // What is taken out before the next publication is of this time, in which readers may have begun to look.
            made.v4.reclaim(self.time, 0);
            made.v6.reclaim(self.time, 0);
            let views = Views { v4: made.v4.view(), v6: made.v6.view() };
            *entry = Some(made);
            for prefix in OF_ONE_LINK.iter().filter_map(|text| text.parse().ok()) {
                // The first of a table: there is room.
                let _ = self.put(table, prefix, &Target::Only(Kind::Local));
            }
            // Nobody but the writer sets it, once a table.
            let _ = shared.tables[table].set(views);
        }
        true
    }

    /// How many routes there are.
    pub fn routes(&self) -> usize {
        let tables = self.tables.iter().flatten();
        tables.map(|table| table.v4.len() + table.v6.len() - OF_ONE_LINK.len()).sum()
    }

    /// Adds a route, or changes where it leads. Routes of groups and of a link's own addresses are left out: such
    /// packets are for this host.
    ///
    /// # Errors
    /// There are too many: the prefix has no route now.
    pub fn set_route(&mut self, table: usize, prefix: IpNet, target: &Target) -> Result<(), Refused> {
        if is_of_one_link(prefix) {
            return Ok(());
        }
        let known = self.tables.get(table).and_then(Option::as_ref).is_some_and(|table| table.get(prefix).is_some());
        let put = if !known && self.routes() >= ROUTES { Err(Refused) } else { self.put(table, prefix, target) };
        if put.is_err() {
            self.remove_route(table, prefix);
        }
        put
    }

    fn put(&mut self, table: usize, prefix: IpNet, target: &Target) -> Result<(), Refused> {
        let group = self.group(target)?;
        let entry = self.tables.get_mut(table).and_then(Option::as_mut).ok_or(Refused)?;
        match entry.insert(prefix, group) {
            Ok(Some(old)) => self.let_go(old),
            Ok(None) => {}
            Err(Refused) => {
                self.let_go(group);
                return Err(Refused);
            }
        }
        Ok(())
    }

    /// Takes a route out; whether it was there.
    pub fn remove_route(&mut self, table: usize, prefix: IpNet) -> bool {
        let entry = self.tables.get_mut(table).and_then(Option::as_mut);
        let old = entry.filter(|_| !is_of_one_link(prefix)).and_then(|entry| entry.remove(prefix));
        old.map(|group| self.let_go(group)).is_some()
    }

    /// The group of a target, which has one user more.
    fn group(&mut self, target: &Target) -> Result<u32, Refused> {
        let hops = match target {
            Target::Only(kind) => {
                let leg = Leg { name: format!("{kind:?}"), kind: *kind as u8, egress: 0, next_hop: 0, hop: None };
                return self.groups.take(&vec![(leg, 1)]).ok_or(Refused);
            }
            Target::Paths(hops) => hops,
        };
        let mut key: Key = Vec::new();
        let mut refused = hops.is_empty();
        for hop in hops.iter().take(groups::MEMBERS) {
            let held = hop.via.map(|address| NextHop { address, port: hop.port });
            let next_hop = match held.map(|held| self.neighbors.hold(held)) {
                Some(None) => {
                    refused = true;
                    break;
                }
                Some(Some(number)) => number,
                None => 0,
            };
            // As that of a path of a config: it is the seed of the share.
            let port = self.names.get(usize::from(hop.port)).map_or("", String::as_str);
            let name = match hop.via {
                Some(via) => format!("via {via} on {port}"),
                None => format!("on {port}"),
            };
            let kind = Kind::Forward as u8;
            key.push((Leg { name, kind, egress: hop.port, next_hop, hop: held.map(Held) }, hop.weight.max(1)));
        }
        let held: Vec<(Leg, bool)> = key.iter().map(|(leg, _)| (leg.clone(), self.groups.knows(leg))).collect();
        key.sort();
        key.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(next.1);
            }
            same
        });
        // A path alone has all, whatever its weight.
        if let [(_, weight)] = &mut key[..] {
            *weight = 1;
        }
        let taken = if refused { None } else { self.groups.take(&key) };
        // A single path holds its neighbour once, from when it is made.
        let mut made: Vec<Leg> = Vec::new();
        for (leg, known) in held {
            let keeps = !known && !made.contains(&leg) && self.groups.knows(&leg);
            if let Some(Held(hop)) = leg.hop.filter(|_| !keeps) {
                self.neighbors.release(hop, self.time);
            }
            if keeps {
                made.push(leg);
            }
        }
        taken.ok_or(Refused)
    }

    fn let_go(&mut self, group: u32) {
        for hop in self.groups.drop_one(group, self.time) {
            self.neighbors.release(hop, self.time);
        }
    }

    /// Says what is known of a neighbour, and what is to be told of it. The next use is told by [`Forwarding::question`].
    ///
    /// # Errors
    /// There are too many.
    pub fn set_neighbor(&mut self, hop: NextHop, resolved: Resolved, mark: Mark) -> Result<(), Refused> {
        if self.neighbors.set(hop, resolved, mark) { Ok(()) } else { Err(Refused) }
    }

    /// The number of a next hop that a route of the config goes by: it has a place from now on.
    ///
    /// # Errors
    /// There are too many.
    pub fn number(&mut self, hop: NextHop) -> Result<u32, Refused> {
        self.neighbors.hold(hop).ok_or(Refused)
    }

    /// A neighbour was asked for: it has an entry from now on, if it had none.
    ///
    /// # Errors
    /// There are too many.
    pub fn note_neighbor(&mut self, hop: NextHop) -> Result<(), Refused> {
        if self.neighbors.knows(hop) { Ok(()) } else { self.set_neighbor(hop, Resolved::Unknown, Mark::Quiet) }
    }

    /// Nothing is known of a neighbour any more.
    pub fn unset_neighbor(&mut self, hop: NextHop) {
        self.neighbors.unset(hop, self.time);
    }

    /// The neighbours of which something was said.
    pub fn listed_neighbors(&self) -> Vec<NextHop> {
        self.neighbors.listed().collect()
    }

    /// How many neighbours there are, those that routes go by among them.
    pub fn neighbors_known(&self) -> usize {
        self.neighbors.len()
    }

    /// Workers are to tell again when they need a neighbour that is not resolved: to be called once a second or so.
    pub fn watch_unresolved(&self) {
        self.neighbors.watch_unresolved();
    }

    /// The same while no reader is at work yet, so that what was taken out may be used anew at once. A table that is filled
    /// takes many lines out.
    pub fn publish_unread(&mut self, shared: &Forwarding) {
        self.publish(shared);
        shared.readers.rest();
        self.publish(shared);
    }

    /// Ends a run of changes: what they took out may be used anew when no reader can be looking at it.
    pub fn publish(&mut self, shared: &Forwarding) {
        let (now, quiet) = shared.readers.advance();
        self.time = now;
        for table in self.tables.iter_mut().flatten() {
            table.v4.reclaim(now, quiet);
            table.v6.reclaim(now, quiet);
        }
        self.groups.reclaim(quiet);
        self.neighbors.reclaim(quiet);
        shared.set(Count::Routes, self.routes() as u64);
        shared.set(Count::Neighbors, self.neighbors.len() as u64);
    }
}

impl Table {
    fn get(&self, prefix: IpNet) -> Option<u32> {
        match prefix {
            IpNet::V4(net) => self.v4.get(net.network().into(), net.prefix_len()),
            IpNet::V6(net) => self.v6.get(net.network().into(), net.prefix_len()),
        }
    }

    fn insert(&mut self, prefix: IpNet, group: u32) -> Result<Option<u32>, Refused> {
        let inserted = match prefix {
            IpNet::V4(net) => self.v4.insert(net.network().into(), net.prefix_len(), group),
            IpNet::V6(net) => self.v6.insert(net.network().into(), net.prefix_len(), group),
        };
        inserted.map_err(|_| Refused)
    }

    fn remove(&mut self, prefix: IpNet) -> Option<u32> {
        match prefix {
            IpNet::V4(net) => self.v4.remove(net.network().into(), net.prefix_len()),
            IpNet::V6(net) => self.v6.remove(net.network().into(), net.prefix_len()),
        }
    }
}

/// Whether a prefix lies in what is never routed.
fn is_of_one_link(prefix: IpNet) -> bool {
    match prefix {
        IpNet::V4(net) => net.network().is_multicast() && net.prefix_len() >= 4 || net.network().is_broadcast(),
        IpNet::V6(net) => {
            let first = net.network().segments()[0];
            first & 0xffc0 == 0xfe80 && net.prefix_len() >= 10 || first & 0xff00 == 0xff00 && net.prefix_len() >= 8
        }
    }
}
