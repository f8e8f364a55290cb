//! Lanes on a driver that fails as no software device does.

use std::sync::Arc;

use super::raw::bed;
use crate::clock::Clocks;
use crate::lane::{Lane, LaneSpec, NoSink, RawWiring, Stamping, VerbsLane};
use crate::mem::{Batch, PageKind, Pool, Region, RegionSpec, SlotLayout};
use crate::provider::verbs::fake::{Call, Poll};
use crate::provider::{Device, QpType};

const SLOTS: usize = 64;

/// A queue pair that cannot be ended may still be written to: its slots are nobody else's, and the lane has ended.
#[test]
fn slots_of_a_queue_pair_that_does_not_end_stay_away() {
    for refused in [0, libc::EBUSY] {
        let bed = bed();
        let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let mut pool = Pool::new(Arc::new(Region::allocate(spec).unwrap().0), layout).unwrap();
        let mut batch = Batch::new(&pool);
        let pd = bed.device.alloc_pd().unwrap();
        let kind = QpType::RawPacket;
        let spec =
            LaneSpec { kind, queue: (0, 1), recv_depth: 16, send_depth: 8, stamps: Stamping::None, sleeps: false };
        let wiring = Box::new(RawWiring { port: 1 });
        let mut lane =
            VerbsLane::open(&bed.device, &pd, &mut pool, spec, wiring, Arc::default(), &Clocks::default()).unwrap();
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16));
        // The queue for receives is made last.
        bed.fake.polls(bed.fake.last("cq"), [Poll::Answer(libc::EIO)]);
        bed.fake.refuse("ibv_destroy_qp", refused);
        bed.fake.calls();
        let received = lane.receive(&mut pool, &mut batch, 8);
        assert!(bed.fake.calls().iter().any(|call| matches!(call, Call::DestroyQp(_))));
        if refused == 0 {
            assert_eq!((received, lane.counters().rebuilds, lane.counters().abandoned), (Ok(0), 1, 16));
            continue;
        }
        assert_eq!(received.map_err(|error| (error.verb, error.errno)), Err(("ibv_destroy_qp", refused)));
        bed.fake.refuse("ibv_destroy_qp", 0);
        // As a worker ends its lanes.
        lane.reap(&mut pool, &mut NoSink).unwrap();
        // The new queue pair is in RESET, and refuses.
        let _ = lane.stop();
        assert_eq!(lane.drain(&mut pool), Ok(0), "nothing is waited for");
        lane.abandon(&mut pool);
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16), "they are missing in the report");
        assert_eq!((lane.counters().rebuilds, lane.counters().abandoned), (0, 0));
    }
}
