//! Address handles.

use std::sync::Arc;

use crate::numbers::Identity;
use dataplane_core::verbs::{AddressHandle, Path};

/// An address handle of a software device.
#[derive(Clone, Debug)]
pub struct SoftAh(Arc<(Identity, Path)>);

impl SoftAh {
    pub(super) fn new(pd: Identity, path: Path) -> Self {
        Self(Arc::new((pd, path)))
    }

    /// Returns the identity of the protection domain.
    pub(super) fn pd(&self) -> Identity {
        self.0.0
    }
}

impl AddressHandle for SoftAh {
    fn path(&self) -> &Path {
        &self.0.1
    }
}
