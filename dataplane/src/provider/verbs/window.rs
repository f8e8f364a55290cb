//! Memory windows.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use ibverbs_sys::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw};

use super::context::ended;
use super::domain::{VerbsMr, VerbsPd};
use super::ffi;
use crate::error::VerbError;
use crate::provider::{MemoryWindow, MwKind};
use crate::units::Rkey;

/// A memory window of a device.
pub struct VerbsMw {
    raw: NonNull<ibv_mw>,
    kind: MwKind,
    /// What it was bound to last: a region cannot end before the windows on it.
    pub(super) bound: Option<VerbsMr>,
    pd: VerbsPd,
}

// SAFETY: it is changed by its owner alone, by `&mut`.
unsafe impl Send for VerbsMw {}

impl Drop for VerbsMw {
    fn drop(&mut self) {
        // SAFETY: this is the only owner. What it is bound to goes afterwards.
        ended(unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) }, &self.pd.context().name);
    }
}

impl VerbsMw {
    pub(super) fn alloc(pd: &VerbsPd, kind: MwKind) -> Result<Self, VerbError> {
        let raw_kind = match kind {
            MwKind::Type1 => IBV_MW_TYPE_1,
            MwKind::Type2 => IBV_MW_TYPE_2,
        };
        // SAFETY: the domain is alive.
        let raw = unsafe { ffi::ibv_alloc_mw(pd.raw(), raw_kind) }?;
        Ok(Self { raw, kind, bound: None, pd: pd.clone() })
    }

    pub(super) fn raw(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &VerbsPd {
        &self.pd
    }

    /// The key that the next binding of a window of type 2 gives it: `ibv_inc_rkey(3)`. The low byte is the program's.
    pub(super) fn next_rkey(&self) -> u32 {
        let now = self.rkey().0;
        now & !0xff | now.wrapping_add(1) & 0xff
    }

    pub(super) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: the window is alive and this is its only user.
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
        // SAFETY: the window is alive; only this type's methods change it.
        Rkey(unsafe { (*self.raw.as_ptr()).rkey })
    }
}
