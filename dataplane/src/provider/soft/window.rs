//! Memory windows: parts of regions that are opened to the peer by work requests, and closed again.

use std::sync::{Arc, Mutex, PoisonError};

use crate::provider::soft::memory::Keys;
use crate::provider::{Access, MemoryWindow, MwKind, Remote};
use crate::units::{Lkey, QpNum, Rkey};

/// The bits of a key that its owner changes with every binding.
const OWN: u32 = 0xff;

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) lkey: Lkey,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) access: Access,
}

/// A binding, as it is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    /// The window's key as it will be; but for the low bits it is that of the window.
    pub(super) rkey: Rkey,
    pub(super) to: Bound,
}

#[derive(Debug)]
struct Window {
    rkey: Rkey,
    kind: MwKind,
    pd: u32,
    bound: Option<Bound>,
    /// The queue pair that bound it; of type 2 it is that one's alone.
    qp: QpNum,
}

/// The windows of a device.
#[derive(Debug, Default)]
pub(super) struct Windows(Mutex<Vec<Window>>);

impl Windows {
    fn with<R>(&self, rkey: Rkey, work: impl FnOnce(&mut Window) -> R) -> Option<R> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.iter_mut().find(|window| (window.rkey.0 ^ rkey.0) & !OWN == 0).map(work)
    }

    /// Makes a window.
    pub(super) fn add(keys: &Arc<Keys>, kind: MwKind, pd: u32) -> SoftMw {
        let rkey = Rkey(keys.key());
        let window = Window { rkey, kind, pd, bound: None, qp: QpNum(0) };
        keys.windows.0.lock().unwrap_or_else(PoisonError::into_inner).push(window);
        SoftMw { keys: keys.clone(), kind, rkey }
    }

    /// The region that a peer's request to queue pair `qp` of domain `pd` reaches through a window.
    pub(super) fn through(&self, remote: Remote, length: u64, access: Access, pd: u32, qp: QpNum) -> Option<Lkey> {
        self.with(remote.rkey, |window| {
            let bound = window.bound.filter(|_| window.rkey == remote.rkey)?;
            let owner = match window.kind {
                MwKind::Type1 => window.pd == pd,
                MwKind::Type2 => window.qp == qp,
            };
            let from = remote.addr.checked_sub(bound.addr)?;
            let inside = from.checked_add(length)? <= bound.length;
            (owner && inside && bound.access.contains(access)).then_some(bound.lkey)
        })?
    }

    /// Carries a binding out. `false`: it is not allowed.
    pub(super) fn bind(keys: &Keys, binding: &Binding, pd: u32, qp: QpNum) -> bool {
        let Bound { lkey, addr, length, access } = binding.to;
        let open = length > 0;
        let allowed = !open || keys.may_bind(lkey, pd, addr, length, access);
        let bound = keys.windows.with(binding.rkey, |window| {
            // A window of type 2 is invalidated before it is bound anew, and always to something.
            let ready = window.kind == MwKind::Type1 || (window.bound.is_none() && open);
            if !ready || !allowed || window.pd != pd {
                return false;
            }
            (window.rkey, window.qp) = (binding.rkey, qp);
            window.bound = open.then_some(binding.to);
            true
        });
        bound == Some(true)
    }

    /// Ends the life of a key. `false`: there is no window of type 2 that queue pair `qp` has bound under it.
    pub(super) fn invalidate(&self, rkey: Rkey, qp: QpNum) -> bool {
        let ended = self.with(rkey, |window| {
            let own = window.rkey == rkey && window.kind == MwKind::Type2 && window.qp == qp;
            own && window.bound.take().is_some()
        });
        ended == Some(true)
    }
}

/// A memory window of a software device.
#[derive(Debug)]
pub struct SoftMw {
    keys: Arc<Keys>,
    kind: MwKind,
    rkey: Rkey,
}

impl SoftMw {
    /// The key that the next binding gives it.
    pub(super) fn next_key(&self) -> Rkey {
        Rkey(self.rkey.0 & !OWN | self.rkey.0.wrapping_add(1) & OWN)
    }

    /// Takes the key of a binding that was posted.
    pub(super) fn set_key(&mut self, rkey: Rkey) {
        self.rkey = rkey;
    }

    /// Whether it is a window of this device.
    pub(super) fn is_of(&self, keys: &Arc<Keys>) -> bool {
        Arc::ptr_eq(&self.keys, keys)
    }
}

impl Drop for SoftMw {
    fn drop(&mut self) {
        let mut windows = self.keys.windows.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|window| (window.rkey.0 ^ self.rkey.0) & !OWN != 0);
    }
}

impl MemoryWindow for SoftMw {
    fn kind(&self) -> MwKind {
        self.kind
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }
}
