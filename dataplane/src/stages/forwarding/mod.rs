//! Routes and neighbours that change while workers read them.
//!
//! One thread writes ([`Writer`]), and every stage of every worker that joined reads ([`Reader`]): what is read are
//! atomic words, so that nobody locks, waits or allocates. A change is seen by the next lookup; what a change does not
//! mean stays as it is at every moment. See `docs/router.md`.

mod groups;
mod neighbors;
mod readers;
#[cfg(test)]
mod tests;
mod writer;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam_queue::ArrayQueue;

use crate::header::MacAddr;
use crate::pipeline::{NextHop, Setup};
use crate::stages::table::lpm4::View4;
use crate::stages::table::lpm6::View6;

pub use groups::{Kind, Path};
pub use neighbors::{Mark, Resolved};
pub use writer::{Hop, ROUTES, Refused, Target, Writer};

/// The most tables: the main one and those of VRFs.
pub const TABLES: usize = 16;
/// The most questions of workers that wait for the writer.
const QUESTIONS: usize = 1024;

/// What workers and the writer share.
#[derive(Debug)]
pub struct Forwarding {
    ports: Box<[Port]>,
    tables: [OnceLock<Views>; TABLES],
    groups: Arc<groups::Groups>,
    neighbors: Arc<neighbors::Neighbors>,
    readers: readers::Readers,
    questions: ArrayQueue<NextHop>,
    writer: Mutex<Option<Box<Writer>>>,
    counts: [AtomicU64; Count::ALL.len()],
}

/// The routes of one table.
#[derive(Debug)]
struct Views {
    v4: View4,
    v6: View6,
}

/// What is known of a port.
#[derive(Debug, Default)]
struct Port {
    mac: AtomicU64,
    mtu: AtomicU32,
    table: AtomicU32,
    v4: AtomicU32,
    /// Both words of the address, and before them a count that is odd while they are written.
    v6: [AtomicU64; 3],
}

/// What is counted of the tables as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// Routes that there are.
    Routes,
    /// Neighbours that there are.
    Neighbors,
    /// Changes made.
    Changes,
    /// Routes and neighbours that were not taken, as there are too many.
    Refused,
    /// Times that all was read anew.
    Resyncs,
    /// Neighbours that were asked for.
    Asked,
    /// Questions of workers that found no room.
    Unasked,
}

impl Count {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Routes, "routes"),
        (Self::Neighbors, "neighbors"),
        (Self::Changes, "changes"),
        (Self::Refused, "refused"),
        (Self::Resyncs, "resyncs"),
        (Self::Asked, "asked"),
        (Self::Unasked, "unasked"),
    ];
}

impl Forwarding {
    /// Empty tables for ports of these names.
    pub fn new(ports: &[String]) -> Arc<Self> {
        let writer = Writer::new(ports.to_vec());
        let shared = Self {
            ports: ports.iter().map(|_| Port::default()).collect(),
            tables: std::array::from_fn(|_| OnceLock::new()),
            groups: writer.groups().clone(),
            neighbors: writer.neighbors().clone(),
            readers: readers::Readers::new(),
            questions: ArrayQueue::new(QUESTIONS),
            writer: Mutex::default(),
            counts: Default::default(),
        };
        let shared = Arc::new(shared);
        *shared.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(writer));
        shared
    }

    /// The tables that all stages of a run share.
    pub fn of(setup: &mut Setup<'_>) -> Arc<Self> {
        let ports = setup.ports().to_vec();
        setup.common(|| {
            let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
            let shared = Self::new(&names);
            for (number, port) in (0..).zip(&ports) {
                shared.set_link(number, MacAddr(port.mac), u32::from(port.mtu));
            }
            shared
        })
    }

    /// The one who writes; whoever asks first gets it.
    pub fn writer(&self) -> Option<Box<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A further reader.
    pub fn join(self: &Arc<Self>) -> Reader {
        Reader { reader: self.readers.join(), shared: self.clone() }
    }

    /// How many ports there are.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Says what link address and MTU a port has.
    pub fn set_link(&self, port: u8, mac: MacAddr, mtu: u32) {
        let Some(port) = self.ports.get(usize::from(port)) else { return };
        let [a, b, c, d, e, f] = mac.0;
        port.mac.store(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), Ordering::Relaxed);
        port.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Says which table the packets look in that come in by a port.
    pub fn set_table(&self, port: u8, table: usize) {
        if let Some(port) = self.ports.get(usize::from(port)) {
            port.table.store(table as u32, Ordering::Release);
        }
    }

    /// Says which addresses the port speaks with; the unspecified one: none. One thread does so.
    pub fn set_addresses(&self, port: u8, v4: Ipv4Addr, v6: Ipv6Addr) {
        let Some(port) = self.ports.get(usize::from(port)) else { return };
        port.v4.store(v4.into(), Ordering::Relaxed);
        let [count, high, low] = &port.v6;
        let bits = u128::from(v6);
        // Who sees one of the words sees the odd count, or a later one.
        count.fetch_add(1, Ordering::AcqRel);
        high.store((bits >> 64) as u64, Ordering::Release);
        low.store(bits as u64, Ordering::Release);
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// The neighbour that is at a place: the number of a next hop less 1.
    pub fn hop(&self, place: usize) -> Option<NextHop> {
        self.neighbors.hop(place)
    }

    /// What is known of a neighbour as a hint, and whether its answer is waited for. Whoever does not [join](Self::join) may
    /// be told of another that has just taken the place of this one.
    pub fn hint(&self, hop: NextHop) -> Option<(Resolved, bool)> {
        let place = self.neighbors.find(hop)?;
        Some((self.neighbors.at(place).0, self.neighbors.is_asked(place)))
    }

    /// The next neighbour that a worker needs to know.
    pub fn question(&self) -> Option<NextHop> {
        self.questions.pop()
    }

    /// A number, as it is now.
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Adds to a number.
    pub fn add(&self, count: Count, by: u64) {
        self.counts[count as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Sets a number.
    pub fn set(&self, count: Count, to: u64) {
        self.counts[count as usize].store(to, Ordering::Relaxed);
    }
}

/// Reads the tables: one stage of one worker.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Forwarding>,
    reader: readers::Reader,
}

impl Reader {
    /// Between batches: nothing that was found so far is held on to.
    #[inline]
    pub fn pass(&self) {
        self.shared.readers.pass(&self.reader);
    }

    /// What is shared.
    pub fn shared(&self) -> &Arc<Forwarding> {
        &self.shared
    }

    /// The routes for packets that come in by a port.
    #[inline]
    pub fn routes(&self, ingress: u8) -> Option<(&View4, &View6)> {
        let table = self.shared.ports.get(usize::from(ingress))?.table.load(Ordering::Acquire);
        let views = self.shared.tables.get(table as usize)?.get()?;
        Some((&views.v4, &views.v6))
    }

    /// The path of a flow, by the value that its destination has in the table.
    #[inline]
    pub fn path(&self, group: u32, flow_hash: u32) -> Option<Path> {
        self.shared.groups.choose(group, flow_hash)
    }

    /// What is known of a next hop by its number. Where that is nothing yet, it is asked for.
    #[inline]
    pub fn numbered(&self, next_hop: u32) -> Resolved {
        let Some(place) = next_hop.checked_sub(1) else { return Resolved::Unknown };
        let (resolved, watched) = self.shared.neighbors.at(place as usize);
        if watched {
            self.used(place as usize);
        }
        resolved
    }

    /// What is known of a neighbour. `None`: nothing, and it was not asked for.
    #[inline]
    pub fn neighbor(&self, hop: NextHop) -> Option<Resolved> {
        let place = self.shared.neighbors.find(hop)?;
        let (resolved, watched) = self.shared.neighbors.at(place);
        if watched {
            self.used(place);
        }
        Some(resolved)
    }

    /// Asks for a neighbour.
    #[cold]
    pub fn ask(&self, hop: NextHop) {
        if self.shared.questions.push(hop).is_err() {
            self.shared.add(Count::Unasked, 1);
        }
    }

    /// The writer wanted to know that this neighbour is used.
    #[cold]
    fn used(&self, place: usize) {
        if self.shared.neighbors.unwatch(place)
            && let Some(hop) = self.shared.neighbors.hop(place)
        {
            self.ask(hop);
        }
    }

    /// The link address of a port.
    #[inline]
    pub fn mac(&self, port: u8) -> Option<MacAddr> {
        let port = self.shared.ports.get(usize::from(port))?;
        let [mac @ .., _, _] = port.mac.load(Ordering::Relaxed).to_le_bytes();
        Some(MacAddr(mac))
    }

    /// The largest packet that a port sends, in bytes without its Ethernet header.
    #[inline]
    pub fn mtu(&self, port: u8) -> Option<u32> {
        Some(self.shared.ports.get(usize::from(port))?.mtu.load(Ordering::Relaxed))
    }

    /// The address that a port speaks with.
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

    /// Reports the numbers of the tables: for one stage of one worker, as all share them.
    pub fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        for (count, name) in Count::ALL {
            report(name, self.shared.count(count));
        }
    }
}
