//! Tables of routes and neighbours that change while workers read them.
//!
//! One thread writes the tables ([`ForwardingWriter`]). Each stage of each worker reads the tables through its own
//! [`ForwardingReader`]. A lookup only loads atomic words, so a lookup never locks, waits or allocates. A lookup sees
//! all earlier changes. A change never disturbs lookups of other entries. See `docs/router.md`.

mod groups;
mod listing;
mod neighbors;
mod readers;
mod refused;
mod rows;
#[cfg(test)]
mod tests;
mod writer;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use rtrb::Producer;

use crate::rings::FromWorkers;
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{CounterReport, NextHop};
use dataplane_tables::lpm::{View4, View6};

pub use groups::{Path, RouteKind};
pub use listing::{ListedRoute, RouteHop, RouteTarget};
pub use neighbors::{MAX_NEIGHBORS, ReportedEvent, ResolutionState};
pub use refused::Refused;
pub use rows::{ConfigNeighbors, NeighborRow, NeighborState, NeighborTable};
pub use writer::{ForwardingWriter, MAX_ROUTES};

/// The maximum number of routing tables: the main table and the tables of VRFs.
pub const MAX_TABLES: usize = 16;
/// The maximum number of queued neighbour requests from a stage of a worker.
const MAX_REQUESTS: usize = 1024;

/// The tables that workers and the writer share.
#[derive(Debug)]
pub struct Forwarding {
    ports: Box<[PortState]>,
    tables: [OnceLock<TableViews>; MAX_TABLES],
    groups: Arc<groups::Groups>,
    listing: Arc<listing::Listing>,
    neighbors: Arc<neighbors::Neighbors>,
    readers: readers::Readers,
    requests: FromWorkers<NextHop>,
    counts: [AtomicU64; TableCount::ALL.len()],
}

/// The routes of one routing table.
#[derive(Debug)]
struct TableViews {
    v4: View4,
    v6: View6,
}

/// The state of a port.
#[derive(Debug, Default)]
struct PortState {
    mac: AtomicU64,
    mtu: AtomicU32,
    table: AtomicU32,
    v4: AtomicU32,
    /// A sequence count, and the two words of the IPv6 address. The count is odd while the words are written.
    v6: [AtomicU64; 3],
}

/// The counters of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TableCount {
    /// Current number of routes.
    Routes,
    /// Current number of neighbours.
    Neighbors,
    /// The largest number of neighbours so far.
    MaxNeighbors,
    /// Changes of the tables.
    Changes,
    /// Routes and neighbours that were refused because the tables are full.
    Refused,
    /// Resyncs: how often the mirror read the kernel's whole state again. The mirror is the background task that copies
    /// the kernel's routes and neighbours into the tables.
    Resyncs,
    /// Neighbours that the mirror asked the kernel to resolve.
    Asked,
    /// Neighbour requests of workers that were lost because the queue was full.
    LostRequests,
}

impl TableCount {
    /// All counters, with their names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Routes, "routes"),
        (Self::Neighbors, "neighbors"),
        (Self::MaxNeighbors, "neighbors_max"),
        (Self::Changes, "changes"),
        (Self::Refused, "refused"),
        (Self::Resyncs, "resyncs"),
        (Self::Asked, "asked"),
        (Self::LostRequests, "requests_lost"),
    ];
}

impl Forwarding {
    /// Creates the shared tables for `ports` ports. A writer fills the tables.
    fn new(
        ports: usize,
        groups: Arc<groups::Groups>,
        listing: Arc<listing::Listing>,
        neighbors: Arc<neighbors::Neighbors>,
    ) -> Self {
        Self {
            ports: (0..ports).map(|_| PortState::default()).collect(),
            tables: std::array::from_fn(|_| OnceLock::new()),
            groups,
            listing,
            neighbors,
            readers: readers::Readers::new(),
            requests: FromWorkers::new(MAX_REQUESTS),
            counts: Default::default(),
        }
    }

    /// Adds a reader.
    pub fn register_reader(self: &Arc<Self>) -> ForwardingReader {
        ForwardingReader {
            reader: self.readers.join(),
            requests: RefCell::new(self.requests.join()),
            shared: self.clone(),
        }
    }

    /// Returns the number of ports.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Sets the MAC address and MTU of a port.
    pub fn set_link(&self, port: u8, mac: MacAddr, mtu: u32) {
        let Some(port) = self.ports.get(usize::from(port)) else { return };
        let [a, b, c, d, e, f] = mac.0;
        port.mac.store(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), Ordering::Relaxed);
        port.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Sets the table that is used for packets received on a port.
    pub fn set_table(&self, port: u8, table: usize) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.table.store(table as u32, Ordering::Release);
        }
    }

    /// Sets the source addresses of a port. The unspecified address means that the port has no address. Only one thread
    /// may call this function.
    pub fn set_addresses(&self, port: u8, v4: Ipv4Addr, v6: Ipv6Addr) {
        let Some(port) = self.ports.get(usize::from(port)) else { return };
        port.v4.store(v4.into(), Ordering::Relaxed);
        let [count, high, low] = &port.v6;
        let bits = u128::from(v6);
        // A reader that sees one of the new words also sees the odd count or a later count.
        count.fetch_add(1, Ordering::AcqRel);
        high.store((bits >> 64) as u64, Ordering::Release);
        low.store(bits as u64, Ordering::Release);
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the neighbour in a slot. The number of a slot is the number of its next hop minus 1.
    pub fn next_hop_at(&self, slot: usize) -> Option<NextHop> {
        self.neighbors.hop(slot)
    }

    /// Returns up to `limit` routes after a position (table and prefix), in the order of table and prefix.
    pub fn routes_after(&self, after: Option<(usize, IpNet)>, limit: usize) -> Vec<ListedRoute> {
        self.listing.page(after, limit)
    }

    /// Returns the route of a table with the longest prefix for an address.
    pub fn route_for(&self, table: usize, address: IpAddr) -> Option<ListedRoute> {
        self.listing.find(table, address)
    }

    /// Returns the number of slots for neighbours.
    pub fn neighbor_slots(&self) -> usize {
        self.neighbors.slots()
    }

    /// Returns the neighbour in a slot and its state. If the calling thread has no [`ForwardingReader`], the writer may
    /// give the slot to another neighbour during this call. The result is then only for display.
    pub fn neighbor_at(&self, slot: usize) -> Option<(NextHop, ResolutionState)> {
        Some((self.neighbors.hop(slot)?, self.neighbors.at(slot).0))
    }

    /// Returns the state of a neighbour, and whether an answer from the neighbour is awaited. If the calling thread has
    /// no [`ForwardingReader`], the writer may give the slot to another neighbour during this call. The result is then
    /// only a hint.
    pub fn neighbor_state(&self, hop: NextHop) -> Option<(ResolutionState, bool)> {
        let place = self.neighbors.find(hop)?;
        Some((self.neighbors.at(place).0, self.neighbors.is_asked(place)))
    }

    /// Returns the next neighbour that a worker requested.
    pub fn next_request(&self) -> Option<NextHop> {
        self.requests.pop()
    }

    /// Returns the current value of a counter.
    pub fn count(&self, count: TableCount) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Adds to a counter.
    pub fn add(&self, count: TableCount, by: u64) {
        self.counts[count as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Sets a counter.
    pub fn set(&self, count: TableCount, to: u64) {
        self.counts[count as usize].store(to, Ordering::Relaxed);
    }
}

/// A reader of the tables, for one stage of one worker.
#[derive(Debug)]
pub struct ForwardingReader {
    shared: Arc<Forwarding>,
    reader: readers::EpochReader,
    requests: RefCell<Producer<NextHop>>,
}

impl ForwardingReader {
    /// Marks a quiescent state: the stage keeps no result of an earlier lookup. The stage calls this function between
    /// batches.
    #[inline]
    pub fn mark_quiescent(&self) {
        self.shared.readers.pass(&self.reader);
    }

    /// Returns the shared tables.
    pub fn shared(&self) -> &Arc<Forwarding> {
        &self.shared
    }

    /// Returns the routes for packets received on a port.
    #[inline]
    pub fn routes(&self, ingress: u8) -> Option<(&View4, &View6)> {
        let table = self.shared.ports.get(usize::from(ingress))?.table.load(Ordering::Acquire);
        let views = self.shared.tables.get(table as usize)?.get()?;
        Some((&views.v4, &views.v6))
    }

    /// Returns the path of a flow. `group` is the result of the lookup of the flow's destination.
    #[inline]
    pub fn path(&self, group: u32, flow_hash: u32) -> Option<Path> {
        self.shared.groups.choose(group, flow_hash)
    }

    /// Returns the state of a next hop, given its number. Also requests the neighbour if its entry is watched (see
    /// [`ReportedEvent::NextUse`]).
    #[inline]
    pub fn next_hop_state(&self, next_hop: u32) -> ResolutionState {
        let Some(place) = next_hop.checked_sub(1) else { return ResolutionState::Unknown };
        let (resolved, watched) = self.shared.neighbors.at(place as usize);
        if watched {
            self.report_use(place as usize);
        }
        resolved
    }

    /// Returns the state of a neighbour, or `None` if the neighbour has no entry. Also requests the neighbour if its
    /// entry is watched (see [`ReportedEvent::NextUse`]), but requests no neighbour without an entry.
    #[inline]
    pub fn neighbor(&self, hop: NextHop) -> Option<ResolutionState> {
        let place = self.shared.neighbors.find(hop)?;
        let (resolved, watched) = self.shared.neighbors.at(place);
        if watched {
            self.report_use(place);
        }
        Some(resolved)
    }

    /// Requests the resolution of a neighbour.
    #[cold]
    pub fn request_resolution(&self, hop: NextHop) {
        // Nothing else borrows the queue during this call.
        let pushed = self.requests.try_borrow_mut().is_ok_and(|mut requests| requests.push(hop).is_ok());
        if !pushed {
            self.shared.add(TableCount::LostRequests, 1);
        }
    }

    /// Reports the use of a neighbour whose entry is watched, and ends the watch. If the queue of requests is full, the
    /// watch continues, so that a later packet reports the use.
    #[cold]
    fn report_use(&self, place: usize) {
        let is_full = self.requests.try_borrow().is_ok_and(|requests| requests.is_full());
        if !is_full
            && self.shared.neighbors.unwatch(place)
            && let Some(hop) = self.shared.neighbors.hop(place)
        {
            self.request_resolution(hop);
        }
    }

    /// Returns the MAC address of a port.
    #[inline]
    pub fn mac(&self, port: u8) -> Option<MacAddr> {
        let port = self.shared.ports.get(usize::from(port))?;
        let [mac @ .., _, _] = port.mac.load(Ordering::Relaxed).to_le_bytes();
        Some(MacAddr(mac))
    }

    /// Returns the MTU of a port: the largest packet in bytes, without the Ethernet header.
    #[inline]
    pub fn mtu(&self, port: u8) -> Option<u32> {
        Some(self.shared.ports.get(usize::from(port))?.mtu.load(Ordering::Relaxed))
    }

    /// Returns the source address of a port. Returns `None` if the port has no address, or if the writer changes the
    /// IPv6 address at this moment.
    pub fn address(&self, port: u8, v6: bool) -> Option<IpAddr> {
        let port = self.shared.ports.get(usize::from(port))?;
        let address = if v6 {
            let [count, high, low] = &port.v6;
            let before = count.load(Ordering::Acquire);
            let bits = u128::from(high.load(Ordering::Acquire)) << 64 | u128::from(low.load(Ordering::Acquire));
            if before % 2 == 1 || count.load(Ordering::Acquire) != before {
                return None;
            }
            IpAddr::V6(bits.into())
        } else {
            IpAddr::V4(port.v4.load(Ordering::Relaxed).into())
        };
        (!address.is_unspecified()).then_some(address)
    }

    /// Reports the counters of the tables. All stages share the counters, so only one stage of one worker reports them.
    pub fn counters(&self, report: &mut dyn CounterReport) {
        for (count, name) in TableCount::ALL {
            report.add(name, self.shared.count(count));
        }
    }
}
