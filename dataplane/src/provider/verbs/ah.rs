//! Address handles.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::ibv_ah;

use super::attr::ah_attr;
use super::context::ended;
use super::domain::VerbsPd;
use super::ffi;
use crate::error::VerbError;
use crate::provider::{AddressHandle, Path};

/// An address handle of a device. Clones are the same handle. It is to be kept until the requests that it was used for
/// have completed: ibv_post_send(3).
#[derive(Clone)]
pub struct VerbsAh(Arc<Handle>);

struct Handle {
    raw: NonNull<ibv_ah>,
    path: Path,
    pd: VerbsPd,
}

// SAFETY: a handle does not change between its creation and its end, and posting only reads it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        ended(unsafe { ffi::ibv_destroy_ah(self.raw.as_ptr()) }, &self.pd.context().name);
    }
}

impl VerbsAh {
    pub(super) fn create(pd: &VerbsPd, path: &Path) -> Result<Self, VerbError> {
        let ports = pd.context().limits.attr.orig_attr.phys_port_cnt;
        if !(1..=ports).contains(&path.port) || path.flow_label >> 20 != 0 {
            return Err(VerbError::new("ibv_create_ah", libc::EINVAL));
        }
        // SAFETY: the domain is alive, and the attributes are what the man page wants.
        let raw = unsafe { ffi::ibv_create_ah(pd.raw(), &mut ah_attr(path)) }?;
        Ok(Self(Arc::new(Handle { raw, path: *path, pd: pd.clone() })))
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
