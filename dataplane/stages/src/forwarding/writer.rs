//! The writer of routes and neighbours.

use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;

use super::groups::{self, GroupKey, GroupPath, HeldHop, RouteKind};
use super::listing::{Listing, RouteTarget};
use super::neighbors;
use super::refused::Refused;
use super::{Forwarding, MAX_TABLES, ReportedEvent, ResolutionState, TableCount, TableViews};
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{HoldTime, NextHop, PortInfo};
use dataplane_tables::TableError;
use dataplane_tables::lpm::{Lpm4, Lpm6};

/// The maximum number of routes over all tables.
pub const MAX_ROUTES: usize = 1 << 20;
/// The number of cache lines that a table has for its prefixes longer than 24 bits. A line takes 80 bytes with its
/// bookkeeping, so all lines take 20 MiB.
const LINES_V4: usize = 1 << 18;
/// The number of cache lines that a table has for its prefixes longer than 20 bits. A line takes 80 bytes with its
/// bookkeeping, so all lines take 320 MiB.
const LINES_V6: usize = 1 << 22;

/// Destinations that are never forwarded, whatever a table contains: multicast, broadcast and IPv6 link-local
/// addresses.
const NEVER_FORWARDED: [&str; 4] = ["224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8"];

/// Writes routes and neighbours to its tables. Each set of tables has exactly one writer.
#[derive(Debug)]
pub struct ForwardingWriter {
    tables: [Option<PrefixTables>; MAX_TABLES],
    groups: groups::GroupWriter,
    listing: Arc<Listing>,
    neighbors: neighbors::NeighborWriter,
    /// The names of the ports.
    port_names: Vec<String>,
    epoch: u64,
}

#[derive(Debug)]
struct PrefixTables {
    v4: Lpm4,
    v6: Lpm6,
}

impl ForwardingWriter {
    /// Creates empty tables for ports with these names, and the writer of the tables. The number of a removed next hop
    /// is not reused for the time `hold`, because a stage may still hold packets with this number.
    pub fn with_tables(port_names: Vec<String>, hold: HoldTime) -> (Arc<Forwarding>, Box<Self>) {
        let writer = Self {
            tables: std::array::from_fn(|_| None),
            groups: groups::GroupWriter::new(),
            listing: Arc::default(),
            neighbors: neighbors::NeighborWriter::new(hold),
            port_names,
            epoch: 1,
        };
        let (groups, neighbors) = (writer.groups.cells().clone(), writer.neighbors.cells().clone());
        let shared = Forwarding::new(writer.port_names.len(), groups, writer.listing.clone(), neighbors);
        (Arc::new(shared), Box::new(writer))
    }

    /// Creates empty tables for these ports, and the writer of the tables. Stores the MAC address and MTU of each port.
    pub fn for_ports(ports: &[PortInfo], hold: HoldTime) -> (Arc<Forwarding>, Box<Self>) {
        let (shared, writer) = Self::with_tables(ports.iter().map(|port| port.name.clone()).collect(), hold);
        for (number, port) in (0..=u8::MAX).zip(ports) {
            shared.set_link(number, MacAddr(port.mac), u32::from(port.mtu));
        }
        (shared, writer)
    }

    /// Opens a table for lookups. Returns `false` if its number is [`MAX_TABLES`] or more.
    ///
    /// # Errors
    /// Returns [`TableError::Memory`] if there is not enough memory.
    pub fn open(&mut self, shared: &Forwarding, table: usize) -> Result<bool, TableError> {
        let Some(entry) = self.tables.get_mut(table) else { return Ok(false) };
        if entry.is_none() {
            let mut created =
                PrefixTables { v4: Lpm4::with_max_cache_lines(LINES_V4)?, v6: Lpm6::with_max_cache_lines(LINES_V6)? };
            // Readers may use the table before the next call of `publish`, and adding the first routes already retires
            // cache lines. So set the epoch before the first lines are retired.
            created.v4.reclaim(self.epoch, 0);
            created.v6.reclaim(self.epoch, 0);
            let views = TableViews { v4: created.v4.view(), v6: created.v6.view() };
            *entry = Some(created);
            for prefix in NEVER_FORWARDED.iter().filter_map(|text| text.parse().ok()) {
                // A new table has room for these prefixes, so `write_route` cannot fail.
                let _ = self.write_route(table, prefix, &RouteTarget::Special(RouteKind::Local));
            }
            // Only the writer sets the views, and only once per table, so `set` cannot fail.
            let _ = shared.tables[table].set(views);
        }
        Ok(true)
    }

    /// Returns the number of routes.
    pub fn routes(&self) -> usize {
        let tables = self.tables.iter().flatten();
        tables.map(|table| table.v4.len() + table.v6.len() - NEVER_FORWARDED.len()).sum()
    }

    /// Adds a route, or changes its target. Ignores routes to multicast, broadcast and IPv6 link-local addresses,
    /// because packets to these addresses are never forwarded.
    ///
    /// # Errors
    /// The tables are full, or the table is not open. The prefix then keeps its old route.
    pub fn set_route(&mut self, table: usize, prefix: IpNet, target: &RouteTarget) -> Result<(), Refused> {
        if is_never_forwarded(prefix) {
            return Ok(());
        }
        let open = self.tables.get(table).and_then(Option::as_ref).ok_or(Refused::Full)?;
        if open.get(prefix).is_none() && self.routes() >= MAX_ROUTES {
            return Err(Refused::Full);
        }
        self.write_route(table, prefix, target)
    }

    fn write_route(&mut self, table: usize, prefix: IpNet, target: &RouteTarget) -> Result<(), Refused> {
        let group = self.group(target)?;
        let entry = self.tables.get_mut(table).and_then(Option::as_mut).ok_or(Refused::Full)?;
        match entry.insert(prefix, group) {
            Ok(old) => {
                if !is_never_forwarded(prefix) {
                    self.listing.set(table, prefix, group, target);
                }
                old.into_iter().for_each(|old| self.release_group(old));
            }
            Err(refused) => {
                self.release_group(group);
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Removes a route. Returns whether the route existed.
    pub fn remove_route(&mut self, table: usize, prefix: IpNet) -> bool {
        let entry = self.tables.get_mut(table).and_then(Option::as_mut);
        let old = entry.filter(|_| !is_never_forwarded(prefix)).and_then(|entry| entry.remove(prefix));
        let removed = old.is_some();
        if let Some(group) = old {
            self.listing.remove(table, prefix);
            self.release_group(group);
        }
        removed
    }

    /// Returns the number of the group for a target, and adds one user to the group.
    fn group(&mut self, target: &RouteTarget) -> Result<u32, Refused> {
        let hops = match target {
            RouteTarget::Special(kind) => {
                let path =
                    GroupPath { name: format!("{kind:?}"), kind: *kind as u8, egress: 0, next_hop: 0, hop: None };
                return self.groups.acquire(&vec![(path, 1)]).ok_or(Refused::Full);
            }
            RouteTarget::Paths(hops) => hops,
        };
        let mut key: GroupKey = Vec::new();
        let mut refused = hops.is_empty().then_some(Refused::Full);
        for hop in hops.iter().take(groups::MAX_MEMBERS) {
            let held = hop.via.map(|address| NextHop { address, port: hop.port });
            let next_hop = match held.map(|held| self.neighbors.add_route(held)) {
                Some(Err(error)) => {
                    refused = Some(error);
                    break;
                }
                Some(Ok(number)) => number,
                None => 0,
            };
            // The name of a path decides which flows take the path. These names have the same form as the names of
            // paths from the config. Routes from the kernel and from the config therefore choose the same paths.
            let port = self.port_names.get(usize::from(hop.port)).map_or("", String::as_str);
            let name = match hop.via {
                Some(via) => format!("via {via} on {port}"),
                None => format!("on {port}"),
            };
            let kind = RouteKind::Forward as u8;
            key.push((GroupPath { name, kind, egress: hop.port, next_hop, hop: held.map(HeldHop) }, hop.weight.max(1)));
        }
        let held: Vec<(GroupPath, bool)> =
            key.iter().map(|(path, _)| (path.clone(), self.groups.contains(path))).collect();
        key.sort();
        key.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(next.1);
            }
            same
        });
        // A single path gets all packets, whatever its weight.
        if let [(_, weight)] = &mut key[..] {
            *weight = 1;
        }
        let taken = refused.map_or_else(|| self.groups.acquire(&key).ok_or(Refused::Full), Err);
        // Each path keeps one reference to its neighbour, which is added when the path is created. Release all other
        // references.
        let mut created: Vec<GroupPath> = Vec::new();
        for (path, known) in held {
            let keeps = !known && !created.contains(&path) && self.groups.contains(&path);
            if let Some(HeldHop(hop)) = path.hop.filter(|_| !keeps) {
                self.neighbors.remove_route(hop, self.epoch);
            }
            if keeps {
                created.push(path);
            }
        }
        taken
    }

    fn release_group(&mut self, group: u32) {
        for hop in self.groups.release(group, self.epoch) {
            self.neighbors.remove_route(hop, self.epoch);
        }
        if !self.groups.is_used(group) {
            self.listing.remove_group(group);
        }
    }

    /// Sets the state of a neighbour, and the events that workers report for this neighbour. If `event` is
    /// [`ReportedEvent::NextUse`], [`Forwarding::next_request`] returns the neighbour after a packet uses its entry.
    ///
    /// # Errors
    /// There are too many neighbours, or the slots for the neighbour are not free yet.
    pub fn set_neighbor(&mut self, hop: NextHop, state: ResolutionState, event: ReportedEvent) -> Result<(), Refused> {
        self.neighbors.set(hop, state, event)
    }

    /// Returns the number of a next hop that a route of the config uses, and reserves its entry.
    ///
    /// # Errors
    /// There are too many neighbours, or the slots for the neighbour are not free yet.
    pub fn reserve_next_hop(&mut self, hop: NextHop) -> Result<u32, Refused> {
        self.neighbors.add_route(hop)
    }

    /// Releases the entry of a next hop that [`ForwardingWriter::reserve_next_hop`] has reserved.
    pub fn release(&mut self, hop: NextHop) {
        self.neighbors.remove_route(hop, self.epoch);
    }

    /// Creates an entry for a requested neighbour if it has no entry.
    ///
    /// # Errors
    /// There are too many neighbours, or the slots for the neighbour are not free yet.
    pub fn add_neighbor(&mut self, hop: NextHop) -> Result<(), Refused> {
        if self.neighbors.contains(hop) {
            Ok(())
        } else {
            self.set_neighbor(hop, ResolutionState::Unknown, ReportedEvent::None)
        }
    }

    /// Clears the state of a neighbour.
    pub fn unset_neighbor(&mut self, hop: NextHop) {
        self.neighbors.unset(hop, self.epoch);
    }

    /// Returns the neighbours whose state was set.
    pub fn listed_neighbors(&self) -> Vec<NextHop> {
        self.neighbors.with_state().collect()
    }

    /// Returns the number of neighbour entries, including the entries of next hops of routes.
    pub fn neighbors_known(&self) -> usize {
        self.neighbors.len()
    }

    /// Returns the number of slots of removed neighbours that became free for other neighbours so far.
    pub fn neighbor_slots_freed(&self) -> u64 {
        self.neighbors.freed()
    }

    /// Returns whether a neighbour is the next hop of a route.
    pub fn has_routes(&self, hop: NextHop) -> bool {
        self.neighbors.has_routes(hop)
    }

    /// Lets workers request unresolved neighbours again. Call this function about once a second.
    pub fn allow_requests_again(&self) {
        self.neighbors.watch_unresolved();
    }

    /// Publishes changes while no reader runs, so that retired memory can be reused immediately. Filling a table
    /// retires many cache lines.
    pub fn publish_without_readers(&mut self, shared: &Forwarding) {
        self.publish(shared);
        shared.readers.mark_all_quiescent();
        self.publish(shared);
    }

    /// Ends a series of changes. The memory that the changes retired is reused when no reader can still use it.
    pub fn publish(&mut self, shared: &Forwarding) {
        let (now, quiet) = shared.readers.advance();
        self.epoch = now;
        for table in self.tables.iter_mut().flatten() {
            table.v4.reclaim(now, quiet);
            table.v6.reclaim(now, quiet);
        }
        self.groups.reclaim(quiet);
        self.neighbors.reclaim(quiet, Instant::now());
        shared.set(TableCount::Routes, self.routes() as u64);
        let neighbors = self.neighbors.len() as u64;
        shared.set(TableCount::Neighbors, neighbors);
        shared.set(TableCount::MaxNeighbors, shared.count(TableCount::MaxNeighbors).max(neighbors));
    }
}

impl PrefixTables {
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
        inserted.map_err(|_| Refused::Full)
    }

    fn remove(&mut self, prefix: IpNet) -> Option<u32> {
        match prefix {
            IpNet::V4(net) => self.v4.remove(net.network().into(), net.prefix_len()),
            IpNet::V6(net) => self.v6.remove(net.network().into(), net.prefix_len()),
        }
    }
}

/// Returns whether all addresses of a prefix are in [`NEVER_FORWARDED`].
fn is_never_forwarded(prefix: IpNet) -> bool {
    match prefix {
        IpNet::V4(net) => net.network().is_multicast() && net.prefix_len() >= 4 || net.network().is_broadcast(),
        IpNet::V6(net) => {
            let first = net.network().segments()[0];
            first & 0xffc0 == 0xfe80 && net.prefix_len() >= 10 || first & 0xff00 == 0xff00 && net.prefix_len() >= 8
        }
    }
}
