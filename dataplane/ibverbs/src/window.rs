//! Memory windows, which give a peer access to a part of a memory region.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use ibverbs_sys::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw};

use super::context::check_destroyed;
use super::domain::{VerbsMr, VerbsPd};
use super::ffi;
use dataplane_core::error::VerbError;
use dataplane_core::units::Rkey;
use dataplane_core::verbs::{MemoryWindow, MwKind};

/// A memory window of a device.
pub struct VerbsMw {
    raw: NonNull<ibv_mw>,
    kind: MwKind,
    /// The regions of all posted binds. A bind may be flushed or fail, and the window then stays bound to the region of
    /// an earlier bind. A region must stay registered while the window may be bound to the region, so every region stays
    /// registered until the window is freed.
    bound: Vec<VerbsMr>,
    pd: VerbsPd,
}

// SAFETY: only the owner changes the window, through `&mut`.
unsafe impl Send for VerbsMw {}

impl Drop for VerbsMw {
    fn drop(&mut self) {
        // SAFETY: this is the only owner. The regions are dropped after the window.
        check_destroyed(unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) }, &self.pd.context().name);
    }
}

impl VerbsMw {
    pub(super) fn alloc(pd: &VerbsPd, kind: MwKind) -> Result<Self, VerbError> {
        let raw_kind = match kind {
            MwKind::Type1 => IBV_MW_TYPE_1,
            MwKind::Type2 => IBV_MW_TYPE_2,
        };
        // SAFETY: the protection domain is valid.
        let raw = unsafe { ffi::ibv_alloc_mw(pd.raw(), raw_kind) }?;
        Ok(Self { raw, kind, bound: Vec::new(), pd: pd.clone() })
    }

    pub(super) fn raw(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &VerbsPd {
        &self.pd
    }

    /// Keeps a region registered until the window is freed. Call this function after a bind to the region was posted.
    pub(super) fn keep(&mut self, region: &VerbsMr) {
        if !self.bound.iter().any(|bound| bound.is(region)) {
            self.bound.push(region.clone());
        }
    }

    /// Returns the remote key for the next binding of a window of type 2, as `ibv_inc_rkey(3)` does. Each binding
    /// increments the low byte of the key.
    pub(super) fn next_rkey(&self) -> u32 {
        let now = self.rkey().0;
        now & !0xff | now.wrapping_add(1) & 0xff
    }

    pub(super) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: the window is valid, and no other code uses it.
        unsafe { (*self.raw.as_ptr()).rkey = rkey };
    }
}

impl fmt::Debug for VerbsMw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsMw").field("kind", &self.kind).field("rkey", &self.rkey()).finish_non_exhaustive()
    }
}

impl MemoryWindow for VerbsMw {
    fn kind(&self) -> MwKind {
        self.kind
    }

    fn rkey(&self) -> Rkey {
        // SAFETY: the window is valid. Only the methods of this type change the key.
        Rkey(unsafe { (*self.raw.as_ptr()).rkey })
    }
}
