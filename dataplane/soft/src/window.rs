//! The table of memory windows. A bind request opens a part of a memory region to the peer, and an invalidation closes
//! this part again.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::numbers::Identity;
use dataplane_core::units::{Lkey, Rkey};
use dataplane_core::verbs::{Access, MwKind, Remote};

/// The bits of a window's key that change with every binding.
pub(super) const BIND_BITS: u32 = 0xff;

/// The part of a region that a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundRange {
    pub(super) lkey: Lkey,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) access: Access,
}

/// A posted bind request.
#[derive(Clone, Copy, Debug)]
pub(super) struct BindRequest {
    /// The window's key after the binding. All bits except [`BIND_BITS`] are equal to the bits of the window's current
    /// key.
    pub(super) rkey: Rkey,
    pub(super) to: BoundRange,
}

#[derive(Debug)]
struct Window {
    rkey: Rkey,
    kind: MwKind,
    pd: Identity,
    bound: Option<BoundRange>,
    /// The queue pair that bound the window. A type 2 window is usable only through that queue pair.
    qp: Option<Identity>,
}

/// The memory windows of a device.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<Vec<Window>>);

impl Windows {
    fn lock(&self) -> MutexGuard<'_, Vec<Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, rkey: Rkey, work: impl FnOnce(&mut Window) -> R) -> Option<R> {
        self.lock().iter_mut().find(|window| is_same(window.rkey, rkey)).map(work)
    }

    /// Adds a window.
    pub(super) fn add(&self, rkey: Rkey, kind: MwKind, pd: Identity) {
        self.lock().push(Window { rkey, kind, pd, bound: None, qp: None });
    }

    /// Returns whether a window has this key. Ignores [`BIND_BITS`], which change with every binding.
    pub(super) fn contains(&self, rkey: Rkey) -> bool {
        self.with(rkey, |_| ()).is_some()
    }

    /// Removes a window.
    pub(super) fn remove(&self, rkey: Rkey) {
        self.lock().retain(|window| !is_same(window.rkey, rkey));
    }

    /// Returns the L_Key of the region that a request of the peer accesses through a window. The request arrives at
    /// queue pair `qp` of protection domain `pd`.
    pub(super) fn through(
        &self,
        remote: Remote,
        length: u64,
        access: Access,
        pd: Identity,
        qp: Identity,
    ) -> Option<Lkey> {
        self.with(remote.rkey, |window| {
            let bound = window.bound.filter(|_| window.rkey == remote.rkey)?;
            let owner = match window.kind {
                MwKind::Type1 => window.pd == pd,
                MwKind::Type2 => window.qp == Some(qp),
            };
            let from = remote.addr.checked_sub(bound.addr)?;
            let inside = from.checked_add(length)? <= bound.length;
            (owner && inside && bound.access.contains(access)).then_some(bound.lkey)
        })?
    }

    /// Returns whether a bound window has this key.
    pub(super) fn is_bound(&self, rkey: Rkey) -> bool {
        self.with(rkey, |window| window.bound.is_some() && window.rkey == rkey).unwrap_or(false)
    }

    /// Binds a window. The caller has checked that the region allows the binding. Returns `false` if the window does
    /// not allow the binding.
    pub(super) fn bind(&self, binding: &BindRequest, pd: Identity, qp: Identity) -> bool {
        let open = binding.to.length > 0;
        let bound = self.with(binding.rkey, |window| {
            // A type 2 window must be invalidated before it is bound again, and cannot be bound with length 0.
            let ready = window.kind == MwKind::Type1 || (window.bound.is_none() && open);
            if !ready || window.pd != pd {
                return false;
            }
            (window.rkey, window.qp) = (binding.rkey, Some(qp));
            window.bound = open.then_some(binding.to);
            true
        });
        bound == Some(true)
    }

    /// Invalidates a key. Returns `true` if queue pair `qp` had bound a type 2 window under this key. Otherwise changes
    /// nothing and returns `false`.
    pub(super) fn invalidate(&self, rkey: Rkey, qp: Identity) -> bool {
        let ended = self.with(rkey, |window| {
            let own = window.rkey == rkey && window.kind == MwKind::Type2 && window.qp == Some(qp);
            own && window.bound.take().is_some()
        });
        ended == Some(true)
    }
}

/// Returns whether two keys are keys of the same window.
fn is_same(one: Rkey, other: Rkey) -> bool {
    (one.0 ^ other.0) & !BIND_BITS == 0
}
