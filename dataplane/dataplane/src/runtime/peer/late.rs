//! The wiring of a lane on a port of a device that may not be active yet.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::messages::PortMessages;
use super::paths::PathCache;
use super::rendezvous::Rendezvous;
use super::wiring::{PeerWiring, prefix};
use dataplane_core::connect::{Connector, EndpointParameters};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{LaneQueuePair, Wiring};
use dataplane_core::verbs::{Device, QpType};

/// The wiring of one lane on a port with a peer, if the addresses of the device's port are not known yet. Until the
/// addresses are known, the queue pair stays in INIT, and the lane offers no endpoint. Afterwards, the wiring is a
/// [`PeerWiring`].
pub(crate) struct LateWiring<D: Device> {
    device: D,
    paths: Arc<PathCache<D::Pd>>,
    parameters: EndpointParameters,
    /// The type of the queue pair, the index of the queue, the size of a receive buffer in bytes, and whether the lane
    /// posts receives.
    lane: (QpType, u16, u32, bool),
    messages: PortMessages,
    rendezvous: Arc<Rendezvous>,
    /// Incremented when the addresses of the device's port change.
    addresses: Arc<AtomicU32>,
    seen: u32,
    wiring: Option<PeerWiring<D>>,
}

impl<D: Device> LateWiring<D> {
    pub(crate) fn new(
        (device, paths): (&D, &Arc<PathCache<D::Pd>>),
        parameters: EndpointParameters,
        lane: (QpType, u16, u32, bool),
        messages: PortMessages,
        rendezvous: Arc<Rendezvous>,
        addresses: Arc<AtomicU32>,
    ) -> Self {
        let seen = addresses.load(Ordering::Relaxed);
        let (device, paths) = (device.clone(), paths.clone());
        Self { device, paths, parameters, lane, messages, rendezvous, addresses, seen, wiring: None }
    }

    /// Returns the wiring to the peer, if the addresses of the device's port are known.
    fn wiring(&mut self) -> Option<&mut PeerWiring<D>> {
        if self.wiring.is_none() {
            // Read the count before the addresses, so that the lane notices every change after the query.
            self.seen = self.addresses.load(Ordering::Relaxed);
            // The event thread of the device logs the error.
            let connector = Connector::new(&self.device, self.lane.0, self.parameters.clone()).ok()?;
            let (messages, rendezvous, addresses) =
                (self.messages.clone(), self.rendezvous.clone(), self.addresses.clone());
            let shared = (&self.device, &self.paths);
            self.wiring = Some(PeerWiring::new(shared, connector, self.lane, messages, rendezvous, addresses));
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
        let (attributes, mask) = self.parameters.init(self.lane.0);
        qp.modify(&attributes, mask)
    }

    fn connect(&mut self, qp: &mut LaneQueuePair<'_, D>) -> Result<bool, VerbError> {
        self.wiring.as_mut().map_or(Ok(false), |wiring| wiring.connect(qp))
    }

    fn is_stale(&self) -> bool {
        let has_changed = || self.addresses.load(Ordering::Relaxed) != self.seen;
        self.wiring.as_ref().map_or_else(has_changed, PeerWiring::is_stale)
    }

    fn prefix(&self) -> u16 {
        prefix(self.lane.0)
    }

    fn longest(&self) -> u16 {
        self.wiring.as_ref().map_or(0, PeerWiring::longest)
    }
}
