//! What a port is like just now, and what it has to say of it: shared by the device and whoever watches its link.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use crate::provider::{AsyncEvent, EventKind};
use crate::units::Gid;

/// Events that wait to be asked for.
const MOST_EVENTS: usize = 1024;
/// The one port of a device.
const PORT: u32 = 1;

/// The state of the port of a device, and its events.
#[derive(Debug)]
pub(super) struct Status {
    up: AtomicBool,
    /// The addresses of the port; zero where there is none.
    gids: RwLock<Vec<Gid>>,
    events: Mutex<VecDeque<AsyncEvent>>,
    /// There is an event more.
    raised: Condvar,
}

impl Status {
    /// A port that is up, with these addresses.
    pub(super) fn new(gids: Vec<Gid>) -> Self {
        let gids = RwLock::new(gids);
        Self { up: AtomicBool::new(true), gids, events: Mutex::default(), raised: Condvar::new() }
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// Takes the link down or up again: `PORT_ERR`, `PORT_ACTIVE`. Returns whether that is news.
    pub(super) fn set_link(&self, up: bool) -> bool {
        let news = self.up.swap(up, Ordering::Relaxed) != up;
        if news {
            self.raise(if up { EventKind::PortActive } else { EventKind::PortErr }, PORT);
        }
        news
    }

    /// The addresses of the port.
    pub(super) fn gids(&self) -> RwLockReadGuard<'_, Vec<Gid>> {
        self.gids.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes all addresses: `GID_CHANGE`.
    pub(super) fn set_gids(&self, gids: &[Gid]) {
        *self.gids.write().unwrap_or_else(PoisonError::into_inner) = gids.to_vec();
        self.raise(EventKind::GidChange, PORT);
    }

    /// Changes the address that is made from the MAC, which is the first: `GID_CHANGE`.
    pub(super) fn set_mac(&self, mac: [u8; 6]) {
        let mut gids = self.gids().clone();
        if let Some(first) = gids.first_mut() {
            *first = link_local(mac);
        }
        self.set_gids(&gids);
    }

    pub(super) fn raise(&self, kind: EventKind, element: u32) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody asks: what is old is of no use any more.
        if events.len() == MOST_EVENTS {
            events.pop_front();
        }
        events.push_back(AsyncEvent { kind, element });
        drop(events);
        self.raised.notify_one();
    }

    /// Waits for an event.
    pub(super) fn wait(&self, patience: Duration) -> Option<AsyncEvent> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.raised.wait_timeout_while(events, patience, |events| events.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.pop_front()
    }
}

/// The address that is made from a MAC as RFC 4291 has it (appendix A).
pub(super) fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
