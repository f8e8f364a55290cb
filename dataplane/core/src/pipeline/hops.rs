//! The numbers of next hops.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// A next hop: an address to resolve, and the port to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    /// The address of the gateway.
    pub address: IpAddr,
    /// The number of the port that leads to the gateway.
    pub port: u8,
}

/// The number that replaces the port of a next hop if a change has removed this port. A config has at most 255 ports,
/// so no port has this number.
const REMOVED_PORT: u8 = u8::MAX;

/// The numbers of next hops. A packet carries the four-byte number of its next hop instead of an address. All workers
/// share the numbers, both in stages that choose next hops and in stages that resolve next hops.
#[derive(Clone, Debug, Default)]
pub struct NextHops {
    numbers: HashMap<NextHop, u32>,
    pub(super) hops: Vec<NextHop>,
    /// The numbers of next hops that no stage uses any more.
    pub(super) free: BTreeSet<u32>,
    /// The numbers that the stage in preparation has requested.
    pub(super) requested: BTreeSet<u32>,
}

impl NextHops {
    /// Returns the number of a next hop, from 1. The number 0 means that the destination itself is the next hop.
    pub fn number(&mut self, hop: NextHop) -> u32 {
        let number = self.numbers.get(&hop).copied().unwrap_or_else(|| self.new_number(hop));
        self.free.remove(&number);
        self.requested.insert(number);
        number
    }

    fn new_number(&mut self, hop: NextHop) -> u32 {
        let number = self.free.pop_first().unwrap_or(self.hops.len() as u32 + 1);
        match self.hops.get_mut(number as usize - 1) {
            Some(unused) => _ = self.numbers.remove(&std::mem::replace(unused, hop)),
            None => self.hops.push(hop),
        }
        self.numbers.insert(hop, number);
        number
    }

    /// Replaces the port number in each next hop after a change. `ports[n]` is the new number of the port that had the
    /// number n, or `None` if the change removed the port.
    pub(super) fn renumber_ports(&mut self, ports: &[Option<u8>]) {
        self.numbers.clear();
        for (number, hop) in (1..).zip(&mut self.hops) {
            match ports.get(usize::from(hop.port)).copied().flatten() {
                Some(port) => {
                    hop.port = port;
                    self.numbers.insert(*hop, number);
                }
                None => hop.port = REMOVED_PORT,
            }
        }
    }

    /// Returns all next hops. The next hop with number n is at index n - 1. After a change of the pipeline, the list
    /// may contain next hops that no stage uses any more.
    pub fn all(&self) -> &[NextHop] {
        &self.hops
    }
}
