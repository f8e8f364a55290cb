//! Address handles.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::ibv_ah;

use super::attr::ah_attr;
use super::context::check_destroyed;
use super::domain::VerbsPd;
use super::ffi;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{AddressHandle, Path};

/// An address handle of a device. All clones share one handle. The caller keeps a clone until all requests with the
/// handle have completed: see ibv_post_send(3).
#[derive(Clone)]
pub struct VerbsAh(Arc<AhHandle>);

struct AhHandle {
    raw: NonNull<ibv_ah>,
    path: Path,
    pd: VerbsPd,
}

// SAFETY: a handle does not change between its creation and its destruction, and posting only reads it.
unsafe impl Send for AhHandle {}
// SAFETY: same as above.
unsafe impl Sync for AhHandle {}

impl Drop for AhHandle {
    fn drop(&mut self) {
        // SAFETY: the last clone is being dropped, so nothing else uses the handle.
        check_destroyed(unsafe { ffi::ibv_destroy_ah(self.raw.as_ptr()) }, &self.pd.context().name);
    }
}

impl VerbsAh {
    pub(super) fn create(pd: &VerbsPd, path: &Path) -> Result<Self, VerbError> {
        let ports = pd.context().limits.attr.orig_attr.phys_port_cnt;
        if !(1..=ports).contains(&path.port) || path.flow_label >> 20 != 0 {
            return Err(VerbError::new("ibv_create_ah", libc::EINVAL));
        }
        // SAFETY: the protection domain is valid, and the attributes contain what the man page requires.
        let raw = unsafe { ffi::ibv_create_ah(pd.raw(), &mut ah_attr(path)) }?;
        Ok(Self(Arc::new(AhHandle { raw, path: *path, pd: pd.clone() })))
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut ibv_ah {
        self.0.raw.as_ptr()
    }

    #[inline]
    pub(super) fn pd(&self) -> &VerbsPd {
        &self.0.pd
    }
}

impl fmt::Debug for VerbsAh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsAh").field("path", &self.0.path).finish_non_exhaustive()
    }
}

impl AddressHandle for VerbsAh {
    fn path(&self) -> &Path {
        &self.0.path
    }
}
