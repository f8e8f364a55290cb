//! Tests of lanes on the fake driver, with failures that the software device cannot produce.

use std::sync::Arc;

use super::raw::test_device;
use crate::fake::{Call, Poll};
use dataplane_core::clock::Clocks;
use dataplane_core::lane::{Lane, LaneSpec, NoSink, QueueLane, RawWiring, Stamping};
use dataplane_core::mem::{Batch, PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane_core::verbs::{Device, QpType};

const SLOTS: usize = 64;

/// If a queue pair cannot be destroyed, the device may still write to the posted slots. The lane does not reuse these
/// slots, and ends.
#[test]
fn slots_of_an_undestroyed_queue_pair_are_not_reused() {
    for refused in [0, libc::EBUSY] {
        let test = test_device();
        let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
        let mut batch = Batch::new(&pool);
        let pd = test.device.alloc_pd().unwrap();
        let kind = QpType::RawPacket;
        let spec =
            LaneSpec { kind, queue: (0, 1), recv_depth: 16, send_depth: 8, stamps: Stamping::None, sleeps: false };
        let wiring = Box::new(RawWiring { port: 1 });
        let mut lane =
            QueueLane::open(&test.device, &pd, &mut pool, spec, wiring, Arc::default(), &Clocks::default()).unwrap();
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16));
        // The receive completion queue is created last.
        test.fake.polls(test.fake.last("cq"), [Poll::ReturnCode(libc::EIO)]);
        test.fake.refuse("ibv_destroy_qp", refused);
        test.fake.calls();
        let received = lane.receive(&mut pool, &mut batch, 8);
        assert!(test.fake.calls().iter().any(|call| matches!(call, Call::DestroyQp(_))));
        if refused == 0 {
            assert_eq!((received, lane.counters().rebuilds, lane.counters().abandoned), (Ok(0), 1, 16));
            continue;
        }
        assert_eq!(received.map_err(|error| (error.verb, error.errno)), Err(("ibv_destroy_qp", refused)));
        test.fake.refuse("ibv_destroy_qp", 0);
        // Same steps as in a worker that ends its lanes.
        lane.reap(&mut pool, &mut NoSink).unwrap();
        // The queue pair that replaced the old one is still in RESET, so it refuses to be stopped.
        let _ = lane.stop();
        assert_eq!(lane.drain(&mut pool), Ok(0), "no completion is outstanding");
        lane.abandon(&mut pool);
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16), "the slots are missing in the report");
        assert_eq!((lane.counters().rebuilds, lane.counters().abandoned), (0, 0));
    }
}
