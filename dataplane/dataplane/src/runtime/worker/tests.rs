use std::time::Duration;

use super::*;
use crate::runtime::stub_lane::StubLane;
use dataplane_core::mem::{PageKind, Region, RegionSpec, SlotLayout};

fn pool() -> Pool {
    let layout = SlotLayout::new(64, 2048, 16).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
}

#[test]
fn lanes_get_time_to_release_buffers_after_slow_sends() {
    let mut pool = pool();
    let mut lane: Box<dyn Lane> = Box::new(StubLane { flushed: 3, ..StubLane::default() });
    // The sends have used up the time.
    flush(&mut [&mut lane], &mut pool, Instant::now(), false);
    assert_eq!(lane.drain(&mut pool), Ok(0));
}

#[test]
fn buffers_that_a_removed_device_keeps_stay_posted() {
    let mut pool = pool();
    let lane: Box<dyn Lane> = Box::new(StubLane { posted: 4, sending: 2, ..StubLane::default() });
    let retired = RetiringLane::new("gone", lane).into_retired();
    let mut closing = ClosingLanes::default();
    closing.add(&retired);
    assert_eq!((closing.lanes, closing.posted), (1, 4));
    let mut slots = retired.close(&pool.batch_memory(), Duration::ZERO);
    assert_eq!((slots.receives, slots.sends), (0, 0));
    closing.take(&mut slots, &mut pool);
    assert_eq!((closing.lanes, closing.posted), (0, 4));
}
