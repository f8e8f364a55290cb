//! The state that a queue pair shares with its completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::counters::Counting;
use crate::numbers::{Identity, Number};
use crate::shared::Shared;
use dataplane_core::units::QpNum;
use dataplane_core::verbs::{QpState, QpType};

/// The state that the owner of a queue pair shares with its completion queues.
#[derive(Debug)]
pub(super) struct QpShared {
    pub(super) number: QpNum,
    /// Reserves `number` while this value exists.
    pub(super) _number: Number,
    pub(super) identity: Identity,
    pub(super) kind: QpType,
    pub(super) state: AtomicU32,
    /// The number of sends since RESET whose queue entries are free, because their completion or a later completion was
    /// polled.
    pub(super) released: AtomicU64,
    /// The number of receives since RESET whose completion was polled. Used only on a fabric.
    pub(super) polled: AtomicU64,
    /// Whether sends wait for a rate limit, so that they complete some time after they are posted.
    pub(super) paced: bool,
    pub(super) counts: Counting,
    pub(super) device: Arc<Shared>,
}

impl QpShared {
    #[inline]
    pub(super) fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Relaxed))
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state.raw(), Ordering::Relaxed);
    }

    /// Moves to ERR from any state except RESET. Returns whether the state changed.
    pub(super) fn fail(&self) -> bool {
        let changes = !matches!(self.state(), QpState::Reset | QpState::Err);
        if changes {
            self.set_state(QpState::Err);
        }
        changes
    }
}
