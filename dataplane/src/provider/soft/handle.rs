//! Address handles, and what this device does not have yet of the other handles.

use std::sync::Arc;

use crate::error::VerbError;
use crate::provider::{
    AddressHandle, CompletionChannel, MemoryWindow, MwKind, Path, PostError, RecvRequest, SharedReceiveQueue,
};
use crate::units::Rkey;

/// An address handle of a software device.
#[derive(Clone, Debug)]
pub struct SoftAh(Arc<(u32, Path)>);

impl SoftAh {
    pub(super) fn new(pd: u32, path: Path) -> Self {
        Self(Arc::new((pd, path)))
    }

    /// The protection domain that it is of.
    pub(super) fn pd(&self) -> u32 {
        self.0.0
    }
}

impl AddressHandle for SoftAh {
    fn path(&self) -> &Path {
        &self.0.1
    }
}

/// A memory window: none can be made.
#[derive(Debug)]
pub enum SoftMw {}

impl MemoryWindow for SoftMw {
    fn kind(&self) -> MwKind {
        match *self {}
    }

    fn rkey(&self) -> Rkey {
        match *self {}
    }
}

/// A completion channel: none can be made.
#[derive(Clone, Debug)]
pub enum SoftChannel {}

impl CompletionChannel for SoftChannel {
    fn wait(&self, _: std::time::Duration) -> Result<Option<u32>, VerbError> {
        match *self {}
    }
}

/// A shared receive queue: none can be made.
#[derive(Clone, Debug)]
pub enum SoftSrq {}

#[allow(unsafe_code, reason = "the trait's")]
impl SharedReceiveQueue for SoftSrq {
    fn number(&self) -> u32 {
        match *self {}
    }

    fn depth(&self) -> u32 {
        match *self {}
    }

    unsafe fn post_recv(&mut self, _: &[RecvRequest<'_>]) -> Result<(), PostError> {
        match *self {}
    }

    fn arm_limit(&mut self, _: u32) -> Result<(), VerbError> {
        match *self {}
    }

    fn limit(&self) -> Result<u32, VerbError> {
        match *self {}
    }

    fn resize(&mut self, _: u32) -> Result<(), VerbError> {
        match *self {}
    }
}
