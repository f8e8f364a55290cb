//! The handle of a memory window.

use std::sync::Arc;

use crate::memory::Keys;
use crate::numbers::Identity;
use crate::window::BIND_BITS;
use dataplane_core::units::Rkey;
use dataplane_core::verbs::{MemoryWindow, MwKind};

/// A memory window of a software device.
#[derive(Debug)]
pub struct SoftMw {
    keys: Arc<Keys>,
    kind: MwKind,
    rkey: Rkey,
}

impl SoftMw {
    /// Creates a window. Returns `None` if all keys are in use.
    pub(super) fn alloc(keys: &Arc<Keys>, kind: MwKind, pd: Identity) -> Option<Self> {
        keys.with_new_key(|key| {
            let rkey = Rkey(key);
            keys.windows.add(rkey, kind, pd);
            Self { keys: keys.clone(), kind, rkey }
        })
    }

    /// Returns the key that the window has after the next bind request.
    pub(super) fn next_key(&self) -> Rkey {
        Rkey(self.rkey.0 & !BIND_BITS | self.rkey.0.wrapping_add(1) & BIND_BITS)
    }

    /// Sets the key after a bind request was posted.
    pub(super) fn set_key(&mut self, rkey: Rkey) {
        self.rkey = rkey;
    }

    /// Returns whether the window belongs to the device with these keys.
    pub(super) fn is_of(&self, keys: &Arc<Keys>) -> bool {
        Arc::ptr_eq(&self.keys, keys)
    }
}

impl Drop for SoftMw {
    fn drop(&mut self) {
        self.keys.windows.remove(self.rkey);
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
