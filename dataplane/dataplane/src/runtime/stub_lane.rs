//! A lane for tests, without queues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dataplane_core::clock::Stamper;
use dataplane_core::error::VerbError;
use dataplane_core::lane::{Lane, LaneCounters, LatencySink};
use dataplane_core::mem::{Batch, Pool};
use dataplane_core::verbs::CqGranted;

/// A lane of a device that keeps its posted buffers and its sends.
#[derive(Default)]
pub(crate) struct StubLane {
    pub(crate) posted: usize,
    pub(crate) sending: usize,
    /// The number of flushed buffers. Each call of [`Lane::drain`] releases one.
    pub(crate) flushed: usize,
    pub(crate) waker: Option<OwnedFd>,
    /// The number of calls of [`Lane::arm`].
    pub(crate) arms: Arc<AtomicU32>,
    pub(crate) counters: LaneCounters,
}

impl Lane for StubLane {
    fn receive(&mut self, _: &mut Pool, _: &mut Batch, _: usize) -> Result<usize, VerbError> {
        unreachable!()
    }

    fn transmit(&mut self, _: &mut Pool, _: &mut Batch) {}

    fn reap(&mut self, _: &mut Pool, _: &mut dyn LatencySink) -> Result<(), VerbError> {
        Err(VerbError::new("ibv_start_poll", libc::EIO))
    }

    fn refill(&mut self, _: &mut Pool) -> Result<(), VerbError> {
        Ok(())
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn housekeep(&mut self, _: &mut Pool) -> Result<(), VerbError> {
        Ok(())
    }

    fn stop(&mut self) -> Result<(), VerbError> {
        Err(VerbError::new("ibv_modify_qp", libc::EBUSY))
    }

    fn drain(&mut self, _: &mut Pool) -> Result<usize, VerbError> {
        self.flushed = self.flushed.saturating_sub(1);
        Ok(self.flushed)
    }

    fn reset_and_reclaim(&mut self, _: &mut Pool) {}

    fn release_claim(&mut self) {}

    fn arm(&mut self) -> bool {
        self.arms.fetch_add(1, Ordering::Relaxed);
        self.waker.is_some()
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(AsFd::as_fd)
    }

    fn clear_wakeups(&mut self) {}

    fn posted(&self) -> usize {
        self.posted
    }

    fn sending(&self) -> usize {
        self.sending
    }

    fn source_ended(&self) -> bool {
        false
    }

    fn counters(&self) -> &LaneCounters {
        &self.counters
    }

    fn stampers(&self) -> [&Stamper; 2] {
        unreachable!()
    }

    fn granted(&self) -> &CqGranted {
        unreachable!()
    }
}
