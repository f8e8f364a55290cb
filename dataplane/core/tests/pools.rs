//! A slot of one pool must never get into another pool, for any arguments that safe code passes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dataplane_core::clock::{Clocks, Stamp};
use dataplane_core::lane::{self, Lane, LaneSpec, NoSink, RawWiring, Stamping};
use dataplane_core::mem::{Batch, PageKind, Pool, RecvFields, Region, RegionSpec, SlotLayout};
use dataplane_core::pipeline::{Ctx, Graph, NoObserver, NodeSpec, OnPanic, Program, Stage, StageInfo, Target};
use dataplane_core::units::Nanos;
use dataplane_core::upgrade;
use dataplane_core::verbs::{Device, QpType};
use dataplane_soft::{GeneratorSpec, LinkSpec, SoftDevice, SoftSpec};

const SLOTS: usize = 64;
const CTX: Ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };

fn pool() -> Pool {
    let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
}

fn lane(pool: &mut Pool) -> Box<dyn Lane> {
    let device = SoftDevice::new(SoftSpec::new("s", LinkSpec::Generator(GeneratorSpec::default()))).unwrap();
    let pd = device.alloc_pd().unwrap();
    let kind = QpType::RawPacket;
    let spec = LaneSpec {
        kind,
        queue: (0, 1),
        recv_depth: 16,
        send_depth: 16,
        stamps: Stamping::None,
        recv_fields: RecvFields::empty(),
        sleeps: false,
    };
    lane::open(&device, &pd, pool, spec, Box::new(RawWiring { port: 1 }), Default::default(), &Clocks::default())
        .unwrap()
}

/// Runs code that must panic with this message.
fn panics<T>(message: &str, code: impl FnOnce() -> T) {
    let panic = catch_unwind(AssertUnwindSafe(code)).map(|_| ()).expect_err(message);
    assert_eq!(panic.downcast_ref::<&str>(), Some(&message));
}

struct PassOn;

impl Stage for PassOn {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
}

fn graph(pool: &Pool) -> Graph {
    let node = NodeSpec {
        name: "pass_on".to_owned(),
        kind: "pass_on".to_owned(),
        stage: Box::new(PassOn),
        next: Target::Port(0),
        outputs: Vec::new(),
        reasons: Vec::new(),
        info: StageInfo::new(),
        on_panic: OnPanic::Stop,
        drop_observer: None,
    };
    Graph::new(Program::new(vec![node]), 1, pool)
}

#[test]
fn batch_refuses_another_pool() {
    let (mut own, mut other) = (pool(), pool());
    let mut batch = Batch::new(&own);
    assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut own));
    panics("the packets of this batch belong to another pool", || {
        batch.push_bytes(&[0; 60], Stamp::NONE, &mut other);
    });
    panics("the packets of this batch belong to another pool", || batch.free_into(&mut other));
    batch.free_into(&mut own);
    assert_eq!((own.available(), other.available()), (SLOTS, SLOTS));
}

#[test]
fn graph_refuses_another_pool() {
    let (mut own, mut other) = (pool(), pool());
    let mut graph = graph(&own);
    assert!(graph.entry(0).push_bytes(&[0; 60], Stamp::NONE, &mut own));
    let message = "the graph was created for another pool";
    panics(message, || graph.walk(&CTX, &mut other, &mut NoObserver));
    panics(message, || graph.process_held_or_generate(&CTX, &mut other, &mut NoObserver));
    panics(message, || graph.drop_held(&mut other));
    graph.walk(&CTX, &mut own, &mut NoObserver);
    panics("the packets of this batch belong to another pool", || graph.outbox(0).free_into(&mut other));
    graph.outbox(0).free_into(&mut own);
    assert_eq!((own.available(), other.available()), (SLOTS, SLOTS));
}

#[test]
fn lane_refuses_another_pool() {
    let (mut own, mut other) = (pool(), pool());
    let mut lane = lane(&mut own);
    let (mut batch, mut foreign) = (Batch::new(&own), Batch::new(&other));
    assert!(foreign.push_bytes(&[0; 60], Stamp::NONE, &mut other));
    assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut own));
    let wrong_pool = "the lane was opened with another pool";
    let wrong_batch = "the packets of this batch belong to another pool";
    panics(wrong_pool, || lane.transmit(&mut other, &mut foreign));
    panics(wrong_batch, || lane.transmit(&mut own, &mut foreign));
    panics(wrong_pool, || lane.refill(&mut other));
    panics(wrong_batch, || lane.receive(&mut own, &mut foreign, 4));
    panics(wrong_pool, || lane.receive(&mut other, &mut batch, 4));
    lane.transmit(&mut own, &mut batch);
    // A lane may skip a reap directly after a transmit, so the reap is repeated.
    panics(wrong_pool, || while lane.sending() > 0 && lane.reap(&mut other, &mut NoSink).is_ok() {});
    panics(wrong_pool, || lane.reset_and_reclaim(&mut other));
    foreign.free_into(&mut other);
    assert_eq!(other.available(), SLOTS);
}

#[test]
fn layout_whose_slot_size_overflows_is_refused() {
    for (headroom, room) in [(128, usize::MAX), (usize::MAX, 128), (128, usize::MAX - 128), (0, usize::MAX - 64)] {
        let error = SlotLayout::new(headroom, room, 1).unwrap_err().to_string();
        assert!(error.contains("the slot size limit is 64K"), "{error}");
    }
}

/// A control thread opens a lane without slots, and closes the lane after the worker has used the lane.
#[test]
fn lane_moves_between_threads_with_a_detached_pool() {
    let mut own = pool();
    let memory = own.batch_memory();
    let opened = std::thread::spawn(move || lane(&mut Pool::detached(&memory)));
    let mut lane = opened.join().unwrap();
    assert_eq!((lane.posted(), own.available()), (0, SLOTS));
    lane.refill(&mut own).unwrap();
    assert_eq!((lane.posted(), own.available()), (16, SLOTS - 16));
    let mut batch = Batch::new(&own);
    assert_eq!(lane.receive(&mut own, &mut batch, 4).unwrap(), 4);
    lane.transmit(&mut own, &mut batch);
    while lane.sending() > 0 {
        lane.reap(&mut own, &mut NoSink).unwrap();
    }
    // Until the release, the queues belong to this thread.
    lane.release_claim();
    let memory = own.batch_memory();
    let closed = std::thread::spawn(move || {
        let mut detached = Pool::detached(&memory);
        lane.stop().unwrap();
        while lane.drain(&mut detached).unwrap() > 0 {}
        (detached, lane.counters().clone())
    });
    let (mut detached, counters) = closed.join().unwrap();
    assert_eq!((counters.rx, counters.tx, counters.unmatched_completions, detached.available()), (4, 4, 0, 12));
    panics("the detached pool has the memory of another pool", || pool().absorb(&mut detached));
    own.absorb(&mut detached);
    assert_eq!((own.available(), detached.available()), (SLOTS, 0));
    own.absorb(&mut detached);
    assert_eq!(own.available(), SLOTS);
}

#[test]
fn slots_of_another_program_are_taken_over_once() {
    let layout = SlotLayout::new(64, 1024, 8).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let other = Pool::new(Region::allocate_shared(spec).unwrap().0, layout).unwrap();
    let memory = other.batch_memory();
    let descriptor = || upgrade::region_descriptor(&memory).unwrap().try_clone_to_owned().unwrap();
    let kept = descriptor();
    assert!(upgrade::continue_pool(descriptor(), layout, PageKind::Normal).is_err(), "two pools have the same memory");
    drop((other, memory));
    let mut pool = upgrade::continue_pool(kept, layout, PageKind::Normal).unwrap();
    assert_eq!(pool.available(), 0);
    assert!(pool.take_over(&[5, 2]));
    assert_eq!(pool.available(), 2);
    // A slot that is twice in the list, and a slot that does not exist.
    assert!(!pool.take_over(&[2]) && !pool.take_over(&[8]));
    assert_eq!(pool.available(), 2);
    pool.take_over_rest();
    assert_eq!(pool.available(), 8);
    pool.take_over_rest();
    assert_eq!(pool.available(), 8);
}
