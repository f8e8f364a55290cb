//! Address handles.

use std::sync::Arc;

use dataplane_core::verbs::{AddressHandle, Path};

/// An address handle of a software device.
#[derive(Clone, Debug)]
pub struct SoftAh(Arc<(u32, Path)>);

impl SoftAh {
    pub(super) fn new(pd: u32, path: Path) -> Self {
        Self(Arc::new((pd, path)))
    }

    /// Returns the number of the protection domain.
    pub(super) fn pd(&self) -> u32 {
        self.0.0
    }
}

impl AddressHandle for SoftAh {
    fn path(&self) -> &Path {
        &self.0.1
    }
}
