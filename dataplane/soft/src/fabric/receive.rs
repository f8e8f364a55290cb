//! A posted receive.

use dataplane_core::verbs::{RecvRequest, Sge};

/// A posted receive.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    pub(super) sges: Vec<Sge>,
}

impl Receive {
    pub(super) fn of(request: &RecvRequest<'_>) -> Self {
        Self { wr_id: request.wr_id, sges: request.sges.to_vec() }
    }

    /// Returns the capacity of the receive's buffers in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}
