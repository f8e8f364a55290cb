use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::*;
use dataplane_core::clock::Stamper;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Batch, PageKind, Region, RegionSpec, SlotLayout};
use dataplane_core::verbs::CqGranted;

/// A lane of a device that keeps all its buffers.
struct GoneLane {
    posted: usize,
    sending: usize,
    counters: LaneCounters,
}

impl Lane for GoneLane {
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
        Err(VerbError::new("ibv_start_poll", libc::EIO))
    }

    fn reset_and_reclaim(&mut self, _: &mut Pool) {}

    fn release_claim(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
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

#[test]
fn buffers_that_a_removed_device_keeps_stay_posted() {
    let layout = SlotLayout::new(64, 2048, 16).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
    let lane: Box<dyn Lane> = Box::new(GoneLane { posted: 4, sending: 2, counters: LaneCounters::default() });
    let retired = RetiringLane::new("gone", lane).into_retired();
    let mut closing = ClosingLanes::default();
    closing.add(&retired);
    assert_eq!((closing.lanes, closing.posted), (1, 4));
    let mut slots = retired.close(&pool.batch_memory(), Duration::ZERO);
    assert_eq!((slots.receives, slots.sends), (0, 0));
    closing.take(&mut slots, &mut pool);
    assert_eq!((closing.lanes, closing.posted), (0, 4));
}
