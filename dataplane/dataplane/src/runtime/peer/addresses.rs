//! The addresses of a port with a peer. The event thread of the device queries the addresses. All lanes of the port use
//! the result.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dataplane_core::connect::{Connector, EndpointParameters, QpModification};
use dataplane_core::error::Result;
use dataplane_core::verbs::{Device, QpType};

/// The addresses of a port with a peer. The lanes do not query the device, so a lane and the event thread cannot see
/// different addresses.
#[derive(Debug)]
pub(crate) struct PortAddresses {
    kind: QpType,
    parameters: EndpointParameters,
    /// The result of the last query that succeeded.
    known: Mutex<Option<Connector>>,
    /// Incremented when the addresses change. A thread must lock `known` before it writes this field. 0 while the
    /// addresses are unknown.
    changes: AtomicU32,
}

impl PortAddresses {
    /// The addresses are unknown until the first query.
    pub(crate) fn new(kind: QpType, parameters: EndpointParameters) -> Self {
        Self { kind, parameters, known: Mutex::default(), changes: AtomicU32::new(0) }
    }

    fn known(&self) -> MutexGuard<'_, Option<Connector>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the parameters against the device, and queries the addresses. Call `query` after each event of the port.
    ///
    /// # Errors
    /// Same as [`EndpointParameters::resolve`], for example while the port is down. On an error, the known addresses do
    /// not change.
    pub(crate) fn query<D: Device>(&self, device: &D) -> Result<()> {
        // Lock before the query, so that the result of the latest query is written last.
        let mut known = self.known();
        let now = Connector::new(device, self.kind, self.parameters.clone())?;
        if known.as_ref().map(Connector::local) != Some(now.local()) {
            *known = Some(now);
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns how often the addresses have changed. Returns 0 while the addresses are unknown.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns a connector with the known addresses, and how often the addresses have changed. Returns `None` while the
    /// addresses are unknown.
    pub(crate) fn connector(&self) -> Option<(Connector, u32)> {
        let known = self.known();
        known.clone().map(|connector| (connector, self.changes()))
    }

    /// Returns the index of the local GID in the GID table of the port. Returns `None` while the addresses are unknown.
    pub(crate) fn gid_index(&self) -> Option<u8> {
        self.known().as_ref().map(|connector| connector.local().gid_index)
    }

    /// Returns the type of the queue pairs.
    pub(crate) fn kind(&self) -> QpType {
        self.kind
    }

    /// Returns the change of a queue pair from RESET to INIT. This change does not depend on the addresses.
    pub(crate) fn init(&self) -> QpModification {
        self.parameters.init(self.kind)
    }
}
