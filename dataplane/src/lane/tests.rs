//! Lanes on devices that fail: errors, flushes, recovery, and every slot accounted for.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::clock::{ClockSource, ClockSync, Clocks, HostClock, Stamp};
use crate::mem::{PageKind, Region, RegionSpec, SlotLayout};
use crate::provider::Device;
use crate::provider::soft::{
    CounterEvent, CounterSpec, FaultSpec, GeneratorSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec,
};
use crate::units::Nanos;

const SLOTS: usize = 256;
const BURST: usize = 32;

/// What a worker has: a pool, and lanes on devices of their own.
struct Bench {
    devices: Vec<SoftDevice>,
    lanes: Vec<Box<dyn Lane>>,
    batch: Box<Batch>,
    pool: Pool,
}

impl Bench {
    fn new(devices: Vec<(LinkSpec, FaultSpec)>) -> Self {
        let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let pool = Pool::new(Arc::new(Region::allocate(spec).unwrap().0), layout).unwrap();
        let (mut pool, mut made) = (pool, Vec::new());
        let lane = |(place, (link, faults)): (usize, (LinkSpec, FaultSpec))| -> Box<dyn Lane> {
            let device = SoftDevice::new(SoftSpec { faults, ..SoftSpec::new("s", link) }).unwrap();
            made.push(device.clone());
            let pd = device.alloc_pd().unwrap();
            // Only the first is received from.
            let recv_depth = if place == 0 { 64 } else { 0 };
            let kind = QpType::RawPacket;
            let spec =
                LaneSpec { kind, queue: (0, 1), recv_depth, send_depth: 48, stamps: Stamping::Device, sleeps: false };
            let wiring = Box::new(RawWiring { port: 1 });
            let clocks = Clocks::default();
            Box::new(VerbsLane::open(&device, &pd, &mut pool, spec, wiring, Arc::default(), &clocks).unwrap())
        };
        let lanes = devices.into_iter().enumerate().map(lane).collect();
        Self { devices: made, lanes, batch: Batch::new(&pool), pool }
    }

    fn refill(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.refill(&mut self.pool).unwrap());
    }

    /// Once round a worker's loop: what comes in by the first lane goes out by the last.
    fn round(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.reap(&mut self.pool, &mut NoSink).unwrap());
        self.lanes[0].receive(&mut self.pool, &mut self.batch, BURST).unwrap();
        if let Some(lane) = self.lanes.last_mut() {
            lane.transmit(&mut self.pool, &mut self.batch);
        }
        self.refill();
    }

    /// Stops, and takes everything back. Returns the counters of the lanes.
    fn finish(mut self) -> Vec<LaneCounters> {
        self.lanes.iter_mut().for_each(|lane| lane.stop().unwrap());
        while self.lanes.iter_mut().any(|lane| lane.drain(&mut self.pool).unwrap() > 0) {}
        let counters = self.end();
        assert_eq!(counters.iter().map(|it| it.stale).sum::<u64>(), 0, "{counters:?}");
        counters
    }

    /// The same with devices that do not give everything back: it is taken.
    fn end(mut self) -> Vec<LaneCounters> {
        for lane in &mut self.lanes {
            // One that cannot be stopped or polled any more is ended all the same.
            let _ = lane.stop();
            let _ = lane.drain(&mut self.pool);
            lane.abandon(&mut self.pool);
        }
        assert_eq!(self.pool.available(), SLOTS);
        let counters: Vec<LaneCounters> = self.lanes.iter().map(|lane| lane.counters().clone()).collect();
        let sum = |of: fn(&LaneCounters) -> u64| counters.iter().map(of).sum::<u64>();
        let gone = sum(|it| it.tx + it.tx_full + it.tx_errors + it.stopped);
        assert_eq!(sum(|it| it.rx), gone, "{counters:?}");
        counters
    }
}

fn generator() -> LinkSpec {
    LinkSpec::Generator(GeneratorSpec::default())
}

#[test]
fn traffic_goes_on_after_every_error() {
    for (faults, status) in [
        (FaultSpec { rx_error: 0.01, ..FaultSpec::default() }, WcStatus::GeneralErr),
        (FaultSpec { tx_error: 0.01, tx_status: WcStatus::LocProtErr, ..FaultSpec::default() }, WcStatus::LocProtErr),
    ] {
        let mut bench = Bench::new(vec![(generator(), faults)]);
        bench.refill();
        let mut moved = 0;
        for recoveries in 1..=50 {
            while bench.lanes[0].counters().recoveries < recoveries {
                bench.round();
            }
            let counters = bench.lanes[0].counters();
            moved += u64::from(counters.tx > moved) * (counters.tx - moved);
        }
        let counters = bench.finish().remove(0);
        assert!(counters.tx >= moved && counters.tx > 50, "{counters:?}");
        assert_eq!(counters.first_error, Some(status));
        let errors = if faults.rx_error > 0.0 { counters.rx_errors } else { counters.tx_errors };
        assert!(errors >= 50, "{counters:?}");
    }
}

/// A lane that only sends never runs dry under load: what is sent into a stopped queue pair must not keep it stopped.
#[test]
fn a_lane_that_only_sends_recovers_under_load() {
    let faults = FaultSpec { tx_error: 0.01, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), FaultSpec::default()), (generator(), faults)]);
    bench.refill();
    (0..10_000).for_each(|_| bench.round());
    let counters = bench.finish();
    assert!(counters[1].recoveries > 100 && counters[1].tx > 10_000, "{counters:?}");
    assert_eq!((counters[0].recoveries, counters[0].rx), (0, 10_000 * BURST as u64));
}

/// A completion queue that cannot be polled any more costs what was posted and sent through it, and no slot.
#[test]
fn lost_queues_are_made_anew() {
    let faults = FaultSpec { poll_error: 0.01, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), faults)]);
    bench.refill();
    while bench.lanes[0].counters().rebuilds < 20 {
        bench.round();
    }
    let counters = bench.end().remove(0);
    assert!(counters.tx > 0 && counters.abandoned > 0, "{counters:?}");
}

/// The second lane has 10 sends outstanding, and the one that was to tell of them was refused.
fn with_a_silent_tail() -> Bench {
    let source = LinkSpec::Generator(GeneratorSpec { count: Some(43), ..GeneratorSpec::default() });
    let faults = FaultSpec { post_error_at: 43, post_errno: libc::ENOMEM, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(source, FaultSpec::default()), (generator(), faults)]);
    bench.refill();
    (0..10).for_each(|_| bench.round());
    assert_eq!((bench.lanes[1].sending(), bench.lanes[1].counters().tx), (10, 32));
    bench
}

/// Of a run that was accepted in part no send is signalled. Without another that tells of them, a marker does.
#[test]
fn sends_that_nobody_tells_of_come_back() {
    let mut bench = with_a_silent_tail();
    while bench.lanes[1].sending() > 0 {
        bench.round();
        bench.lanes[1].attend(&mut bench.pool).unwrap();
    }
    let counters = bench.finish().remove(1);
    assert_eq!((counters.tx, counters.tx_errors, counters.recoveries), (42, 1, 1), "{counters:?}");
    assert_eq!((counters.abandoned, counters.stale), (0, 0), "{counters:?}");
}

/// The same where the lane is stopped: nothing waits for a deadline.
#[test]
fn a_marker_tells_of_them_when_a_lane_is_stopped() {
    let mut bench = with_a_silent_tail();
    bench.lanes[1].stop().unwrap();
    assert_eq!(bench.lanes[1].drain(&mut bench.pool).unwrap(), 0);
    let counters = bench.finish().remove(1);
    assert_eq!((counters.tx, counters.tx_errors, counters.stopped), (42, 1, 0), "{counters:?}");
}

/// With another send behind them it tells of them, and nothing is reset.
#[test]
fn sends_that_a_later_one_tells_of_come_back_with_it() {
    let faults = FaultSpec { post_error_at: 43, post_errno: libc::ENOMEM, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), FaultSpec::default()), (generator(), faults)]);
    bench.refill();
    for _ in 0..1_000 {
        bench.round();
        bench.lanes[1].attend(&mut bench.pool).unwrap();
    }
    let counters = bench.finish().remove(1);
    assert_eq!((counters.tx_errors, counters.recoveries), (22, 0), "{counters:?}");
}

/// A queue pair that never flushes is reset at the deadline, and goes on.
#[test]
fn what_is_never_flushed_is_taken_back() {
    let faults = FaultSpec { rx_error: 0.05, mute: true, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), faults)]);
    bench.refill();
    while bench.lanes[0].counters().recoveries < 2 {
        bench.round();
    }
    let counters = bench.end().remove(0);
    assert!(counters.abandoned > 0 && counters.rx_errors > 0, "{counters:?}");
}

/// Completions of nothing that was posted, with statuses and opcodes that do not exist.
#[test]
fn garbage_is_counted_and_touches_nothing() {
    let faults = FaultSpec { garbage: 0.05, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), faults)]);
    bench.refill();
    (0..2_000).for_each(|_| bench.round());
    let counters = bench.end().remove(0);
    assert!(counters.stale > 0 && counters.tx > 1_000, "{counters:?}");
}

/// A device that is gone is an error, and no endless repair.
#[test]
fn a_device_that_is_gone_is_left() {
    let mut bench = Bench::new(vec![(generator(), FaultSpec::default())]);
    bench.refill();
    bench.round();
    bench.devices[0].remove();
    let lane = &mut bench.lanes[0];
    assert!(lane.receive(&mut bench.pool, &mut bench.batch, BURST).is_err());
    assert_eq!(lane.counters().rebuilds, 0);
}

/// Counts spans by their clock, and those that are not as long as they should be.
#[derive(Default)]
struct Spans {
    expected: u64,
    right: std::collections::BTreeMap<ClockSource, u64>,
    wrong: u64,
    apart: u64,
}

impl LatencySink for Spans {
    fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {
        match to.since(from) {
            Some(span) if span.0.abs_diff(self.expected) < 300 => {
                *self.right.entry(to.source()).or_default() += packets;
            }
            Some(_) => self.wrong += packets,
            None => self.apart += packets,
        }
    }
}

/// A counter that freezes and goes on: the host stamps meanwhile, and each span says which clock it is of.
#[test]
fn a_clock_that_fails_is_replaced_and_comes_back() {
    const MS: u64 = 1_000_000;
    let host = HostClock::manual();
    host.advance(Nanos(MS));
    let events = vec![(Nanos(2_000 * MS), CounterEvent::Freeze), (Nanos(4_000 * MS), CounterEvent::Resume)];
    let counter = CounterSpec { khz: 156_250, drift_ppb: 50_000, events, ..CounterSpec::default() };
    let spec = SoftSpec { clock: host.clone(), counter: Some(counter), ..SoftSpec::new("s", generator()) };
    let device = SoftDevice::new(SoftSpec { timestamp_mask: (1 << 48) - 1, ..spec }).unwrap();
    let mut sync = ClockSync::new(device.timebase());
    sync.step(&host, || device.raw_clock());
    let clocks = Clocks { host: host.clone(), device: vec![sync.clock()] };
    let mut bench = Bench::new(Vec::new());
    let spec = LaneSpec {
        kind: QpType::RawPacket,
        queue: (0, 1),
        recv_depth: 64,
        send_depth: 48,
        stamps: Stamping::Device,
        sleeps: false,
    };
    let (pd, wiring) = (device.alloc_pd().unwrap(), Box::new(RawWiring { port: 1 }));
    let lane = VerbsLane::open(&device, &pd, &mut bench.pool, spec, wiring, Arc::default(), &clocks).unwrap();
    bench.lanes.push(Box::new(lane));
    bench.refill();
    let mut spans = Spans { expected: 5_000, ..Spans::default() };
    let mut seen = Vec::new();
    for round in 0..8_000 {
        if round % 50 == 0 {
            sync.step(&host, || device.raw_clock());
        }
        let Bench { lanes, batch, pool, .. } = &mut bench;
        lanes[0].receive(pool, batch, BURST).unwrap();
        host.advance(Nanos(5_000));
        lanes[0].transmit(pool, batch);
        lanes[0].reap(pool, &mut spans).unwrap();
        host.advance(Nanos(MS - 5_000));
        bench.refill();
        if round % 2_000 == 1_999 {
            seen.push(std::mem::take(&mut spans.right));
        }
    }
    let (device, host, burst) = (ClockSource::DeviceTicks, ClockSource::Virtual, BURST as u64);
    let sources: Vec<Vec<ClockSource>> = seen.iter().map(|right| right.keys().copied().collect()).collect();
    // What is in between the two, when it freezes and when it comes back, takes a burst or three.
    assert_eq!(sources, [vec![device], vec![host], vec![device, host], vec![device]], "{seen:?}");
    assert!(seen.iter().all(|right| right.values().sum::<u64>() >= 1_990 * burst), "{seen:?}");
    assert!(seen[2][&host] < 110 * burst, "{seen:?}");
    assert!(spans.wrong + spans.apart <= 6 * burst, "{} wrong, {} apart", spans.wrong, spans.apart);
    bench.finish();
}

proptest! {
    /// Whatever fails, and whenever it stops.
    #[test]
    fn slots_are_conserved(
        seed: u64,
        odds in [0.0..0.05f64, 0.0..0.05f64, 0.0..0.2f64, 0.0..0.2f64, 0.0..0.2f64, 0.0..0.02f64],
        rounds in 0..300usize,
        lanes in 1..=3usize,
        reflects: bool,
    ) {
        let [rx_error, tx_error, loss, duplicate, reorder, flap] = odds;
        let faults = FaultSpec { seed, rx_error, tx_error, loss, duplicate, reorder, flap, ..FaultSpec::default() };
        let mut devices = vec![(generator(), faults); lanes];
        if reflects && lanes > 1 {
            devices[lanes - 1].0 = LinkSpec::Loopback(LoopbackLink::reflect());
        }
        let mut bench = Bench::new(devices);
        bench.refill();
        (0..rounds).for_each(|_| bench.round());
        bench.finish();
    }
}
