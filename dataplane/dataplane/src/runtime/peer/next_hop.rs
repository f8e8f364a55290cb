//! The MAC address of the next hop to a peer.
//!
//! For RoCE, the device sends each packet of a queue pair to the MAC address that the kernel found when the address
//! handle was created, or when the queue pair moved to RTR. Neither the kernel nor the device updates this address.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane_core::connect::QueuePairEndpoint;
use dataplane_core::header::MacAddr;
use dataplane_core::verbs::{Device, GidEntry, QpType};

use super::addresses::PortAddresses;

/// The interval between two lookups of the next hop.
pub(super) const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the MAC address of the next hop from a local endpoint to the endpoint of its peer. Returns `None` if the
/// kernel does not know the address.
pub(crate) type NextHopLookup = Box<dyn Fn(&QueuePairEndpoint, &QueuePairEndpoint) -> Option<MacAddr> + Send>;

/// Returns a function that looks up next hops in the kernel's routes and neighbours. `port` is the number of the port
/// on the device, from 1.
pub(crate) fn kernel_lookup<D: Device>(device: D, port: u8, addresses: Arc<PortAddresses>) -> NextHopLookup {
    Box::new(move |own, peer| {
        let gid_index = addresses.gid_index()?;
        let interface = interface_of(&device.gids(port).ok()?, own, gid_index)?;
        let [source, destination] = [own.gid, peer.gid].map(|gid| Ipv6Addr::from(gid.0).to_canonical());
        dataplane_soft::next_hop(interface, source, destination).map(MacAddr)
    })
}

/// Returns the index of the interface that has the GID of an endpoint at an index of the GID table. Returns `None` for a
/// port of InfiniBand or of the software device, because such a port has no interface.
fn interface_of(gids: &[GidEntry], own: &QueuePairEndpoint, gid_index: u8) -> Option<u32> {
    // A VLAN interface usually has the link-local address of its base interface. The GID table then has this GID once
    // for each of the interfaces, so the GID alone does not select the entry. The GID is compared because the addresses
    // may have changed since the offer.
    let is_used =
        |entry: &&GidEntry| entry.index == u32::from(gid_index) && entry.gid == own.gid && entry.kind == own.gid_kind;
    gids.iter().find(is_used).map(|entry| entry.interface).filter(|&interface| interface != 0)
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
    /// Looks up the next hop for the first time. Returns `None` for a reliable connection. If such a connection loses
    /// its next hop, its retries fail, and the kernel resolves the path again for the next connection.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::peer::exchange::tests::endpoint;
    use dataplane_core::units::Gid;
    use dataplane_core::verbs::GidKind;

    #[test]
    fn interface_is_taken_from_the_gid_entry_of_the_connection() {
        let gid = Gid(Ipv6Addr::LOCALHOST.octets());
        let own = QueuePairEndpoint { gid, ..endpoint(QpType::Ud, 1) };
        let entry = |index, kind, interface| GidEntry { index, gid, kind, interface };
        // Interface 2, its VLAN interface 3, and a port without an interface (0).
        let gids = [
            entry(0, GidKind::RoceV1, 2),
            entry(1, GidKind::RoceV2, 2),
            entry(2, GidKind::RoceV1, 3),
            entry(3, GidKind::RoceV2, 3),
            entry(4, GidKind::RoceV2, 0),
        ];
        for (index, interface) in [(1, Some(2)), (3, Some(3)), (4, None), (2, None)] {
            assert_eq!(interface_of(&gids, &own, index), interface, "{index}");
        }
    }
}
