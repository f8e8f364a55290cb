//! The MAC address of the next hop to a peer.
//!
//! For RoCE, the device sends each packet of a queue pair to the MAC address that the kernel found when the address
//! handle was created, or when the queue pair moved to RTR. Neither the kernel nor the device updates this address.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use dataplane_core::connect::QueuePairEndpoint;
use dataplane_core::header::MacAddr;
use dataplane_core::verbs::{Device, QpType};

/// The interval between two lookups of the next hop.
pub(super) const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the MAC address of the next hop from a local endpoint to the endpoint of its peer. Returns `None` if the
/// kernel does not know the address.
pub(crate) type NextHopLookup = Box<dyn Fn(&QueuePairEndpoint, &QueuePairEndpoint) -> Option<MacAddr> + Send>;

/// Returns a function that looks up next hops in the kernel's routes and neighbours. `port` is the number of the port on
/// the device, from 1.
pub(crate) fn kernel_lookup<D: Device>(device: D, port: u8) -> NextHopLookup {
    Box::new(move |own, peer| {
        let gids = device.gids(port).ok()?;
        let entry = gids.iter().find(|entry| entry.gid == own.gid && entry.kind == own.gid_kind)?;
        // Ports of InfiniBand and of the software device have no interface.
        if entry.interface == 0 {
            return None;
        }
        let [source, destination] = [own.gid, peer.gid].map(|gid| Ipv6Addr::from(gid.0).to_canonical());
        dataplane_soft::next_hop(entry.interface, source, destination).map(MacAddr)
    })
}

/// Watches the next hop from one endpoint to its peer.
pub(super) struct NextHopWatch<'a> {
    lookup: &'a NextHopLookup,
    own: QueuePairEndpoint,
    peer: QueuePairEndpoint,
    last: Option<MacAddr>,
    looked_up: Instant,
}

impl<'a> NextHopWatch<'a> {
    /// Looks up the next hop. Returns `None` for a reliable connection. If such a connection loses its next hop, its
    /// retries fail, and the kernel resolves the path again for the next connection.
    pub(super) fn new(lookup: &'a NextHopLookup, own: QueuePairEndpoint, peer: QueuePairEndpoint) -> Option<Self> {
        let looked_up = Instant::now();
        (own.transport != QpType::Rc).then(|| Self { lookup, own, peer, last: lookup(&own, &peer), looked_up })
    }

    /// Looks up the next hop again, at most once per [`LOOKUP_INTERVAL`]. Returns the previous and the new MAC address
    /// if the address has changed.
    pub(super) fn change(&mut self) -> Option<(MacAddr, MacAddr)> {
        if self.looked_up.elapsed() < LOOKUP_INTERVAL {
            return None;
        }
        self.looked_up = Instant::now();
        // While the kernel resolves the neighbour again, its MAC address is unknown.
        let now = (self.lookup)(&self.own, &self.peer)?;
        let before = self.last.replace(now)?;
        (before != now).then_some((before, now))
    }
}
