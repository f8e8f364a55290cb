//! The current state of a port and its pending events. The device and the watcher of its link share this state.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use dataplane_core::units::Gid;
use dataplane_core::verbs::{AsyncEvent, EventKind};

/// The maximum number of pending events.
const MAX_EVENTS: usize = 1024;
/// The number of the device's only port.
const PORT: u32 = 1;

/// The state of a device's port, and its pending events.
#[derive(Debug)]
pub(super) struct Status {
    up: AtomicBool,
    /// The GID table of the port. Unused entries are zero.
    gids: RwLock<Vec<Gid>>,
    events: Mutex<VecDeque<AsyncEvent>>,
    /// Signalled for each new event.
    raised: Condvar,
}

impl Status {
    /// Creates the status of a port that is up and has these addresses.
    pub(super) fn new(gids: Vec<Gid>) -> Self {
        let gids = RwLock::new(gids);
        Self { up: AtomicBool::new(true), gids, events: Mutex::default(), raised: Condvar::new() }
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Takes the link down or up, and raises `PORT_ERR` or `PORT_ACTIVE`. Returns whether the state changed.
    pub(super) fn set_link(&self, up: bool) -> bool {
        let changed = self.up.swap(up, Ordering::Relaxed) != up;
        if changed {
            self.raise(if up { EventKind::PortActive } else { EventKind::PortErr }, PORT);
        }
        changed
    }

    /// Returns the GID table of the port.
    pub(super) fn gids(&self) -> RwLockReadGuard<'_, Vec<Gid>> {
        self.gids.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the whole GID table, and raises `GID_CHANGE`.
    pub(super) fn set_gids(&self, gids: &[Gid]) {
        *self.gids.write().unwrap_or_else(PoisonError::into_inner) = gids.to_vec();
        self.raise(EventKind::GidChange, PORT);
    }

    /// Changes the first address, which is derived from the MAC address, and raises `GID_CHANGE`.
    pub(super) fn set_mac(&self, mac: [u8; 6]) {
        let mut gids = self.gids().clone();
        if let Some(first) = gids.first_mut() {
            *first = link_local(mac);
        }
        self.set_gids(&gids);
    }

    pub(super) fn raise(&self, kind: EventKind, element: u32) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == MAX_EVENTS {
            // The queue is full because no program reads the events. Drop the oldest event.
            events.pop_front();
        }
        events.push_back(AsyncEvent { kind, element });
        drop(events);
        self.raised.notify_one();
    }

    /// Waits for the next event. Returns `None` if no event occurs within `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> Option<AsyncEvent> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.raised.wait_timeout_while(events, timeout, |events| events.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}

/// Returns the link-local address that is derived from a MAC address (RFC 4291, appendix A).
pub(super) fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
