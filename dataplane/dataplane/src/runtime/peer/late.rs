//! The wiring of a lane on a port with a peer, also before the addresses of the port are known.

use std::fmt;
use std::sync::Arc;

use super::addresses::PortAddresses;
use super::messages::PortMessages;
use super::paths::PathCache;
use super::rendezvous::Rendezvous;
use super::wiring::{PeerWiring, prefix};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{LaneQueuePair, Wiring};
use dataplane_core::verbs::Device;

/// The wiring of one lane on a port with a peer. While the addresses of the port are unknown, the queue pair stays in
/// INIT, and the lane offers no endpoint. Afterwards, the wiring is a [`PeerWiring`].
pub(crate) struct LateWiring<D: Device> {
    paths: Arc<PathCache<D::Pd>>,
    /// The index of the queue, the size of a receive buffer in bytes, and whether the lane posts receives.
    lane: (u16, u32, bool),
    messages: PortMessages,
    rendezvous: Arc<Rendezvous>,
    addresses: Arc<PortAddresses>,
    wiring: Option<PeerWiring<D>>,
}

impl<D: Device> LateWiring<D> {
    pub(crate) fn new(
        paths: Arc<PathCache<D::Pd>>,
        lane: (u16, u32, bool),
        messages: PortMessages,
        rendezvous: Arc<Rendezvous>,
        addresses: Arc<PortAddresses>,
    ) -> Self {
        Self { paths, lane, messages, rendezvous, addresses, wiring: None }
    }

    /// Returns the wiring to the peer, if the addresses of the port are known.
    fn wiring(&mut self) -> Option<&mut PeerWiring<D>> {
        if self.wiring.is_none() {
            let (paths, addresses) = (self.paths.clone(), self.addresses.clone());
            let (messages, rendezvous) = (self.messages.clone(), self.rendezvous.clone());
            self.wiring = PeerWiring::new(paths, self.lane, messages, rendezvous, addresses);
        }
        self.wiring.as_mut()
    }
}

impl<D: Device> fmt::Debug for LateWiring<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateWiring").field("lane", &self.lane).field("wiring", &self.wiring).finish_non_exhaustive()
    }
}

impl<D: Device> Wiring<D> for LateWiring<D> {
    fn initialise(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<(), VerbError> {
        if let Some(wiring) = self.wiring() {
            return wiring.initialise(qp);
        }
        let (attributes, mask) = self.addresses.init();
        qp.modify(&attributes, mask)
    }

    fn connect(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<bool, VerbError> {
        self.wiring.as_mut().map_or(Ok(false), |wiring| wiring.connect(qp))
    }

    fn is_stale(&self) -> bool {
        self.wiring.as_ref().map_or_else(|| self.addresses.changes() > 0, PeerWiring::is_stale)
    }

    fn prefix(&self) -> u16 {
        prefix(self.addresses.kind())
    }

    fn longest(&self) -> u16 {
        self.wiring.as_ref().map_or(0, PeerWiring::longest)
    }
}
