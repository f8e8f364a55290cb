//! Lanes on failing devices: errors, flushes, recovery, and slot conservation.

use std::sync::Arc;

use proptest::prelude::*;

use dataplane_core::clock::{ClockSource, ClockSync, Clocks, HostClock, Stamp};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{self, *};
use dataplane_core::mem::{Batch, Pool, RecvFields, RecvFlags, RecvInfo};
use dataplane_core::mem::{PageKind, Region, RegionSpec, SlotLayout};
use dataplane_core::units::{Nanos, Period};
use dataplane_core::verbs::{Device, FlowRule, FlowTraffic, RawDevice, RawSpec};
use dataplane_core::verbs::{QpType, WcStatus};
use dataplane_soft::{
    CounterEvent, CounterEventKind, CounterSpec, FaultSpec, GeneratorSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec,
};

const SLOTS: usize = 256;
const BURST: usize = 32;

/// The parts of a worker: a pool, and lanes on separate devices.
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
        let pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
        let (mut pool, mut created) = (pool, Vec::new());
        let lane = |(place, (link, faults)): (usize, (LinkSpec, FaultSpec))| -> Box<dyn Lane> {
            let device = SoftDevice::new(SoftSpec { faults, ..SoftSpec::new("s", link) }).unwrap();
            created.push(device.clone());
            let pd = device.alloc_pd().unwrap();
            // Only the first lane receives.
            let recv_depth = if place == 0 { 64 } else { 0 };
            let kind = QpType::RawPacket;
            let spec = LaneSpec {
                kind,
                queue: (0, 1),
                recv_depth,
                send_depth: 48,
                stamps: Stamping::Device,
                recv_fields: RecvFields::empty(),
                sleeps: false,
            };
            let wiring = Box::new(RawWiring { port: 1 });
            let clocks = Clocks::default();
            lane::open(&device, &pd, &mut pool, spec, wiring, Arc::default(), &clocks).unwrap()
        };
        let lanes = devices.into_iter().enumerate().map(lane).collect();
        Self { devices: created, lanes, batch: Batch::new(&pool), pool }
    }

    fn refill(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.refill(&mut self.pool).unwrap());
    }

    /// Runs one round of the worker loop. The last lane sends the packets that the first lane receives.
    fn round(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.reap(&mut self.pool, &mut NoSink).unwrap());
        self.lanes[0].receive(&mut self.pool, &mut self.batch, BURST).unwrap();
        if let Some(lane) = self.lanes.last_mut() {
            lane.transmit(&mut self.pool, &mut self.batch);
        }
        self.refill();
    }

    /// Stops the lanes and drains all slots. Returns the lanes' counters.
    fn finish(mut self) -> Vec<LaneCounters> {
        self.lanes.iter_mut().for_each(|lane| lane.stop().unwrap());
        while self.lanes.iter_mut().any(|lane| lane.drain(&mut self.pool).unwrap() > 0) {}
        let counters = self.end();
        assert_eq!(counters.iter().map(|it| it.unmatched_completions).sum::<u64>(), 0, "{counters:?}");
        counters
    }

    /// Stops the lanes and takes back the slots that the devices do not return. Returns the lanes' counters.
    fn end(mut self) -> Vec<LaneCounters> {
        for lane in &mut self.lanes {
            // Errors are ignored, because `abandon` also returns the slots of a lane that can no longer be stopped or
            // polled.
            let _ = lane.stop();
            let _ = lane.drain(&mut self.pool);
            lane.reset_and_reclaim(&mut self.pool);
        }
        assert_eq!(self.pool.available(), SLOTS);
        let counters: Vec<LaneCounters> = self.lanes.iter().map(|lane| lane.counters().clone()).collect();
        let sum = |of: fn(&LaneCounters) -> u64| counters.iter().map(of).sum::<u64>();
        let ended = sum(|it| it.tx + it.tx_full + it.tx_errors + it.dropped_at_stop);
        assert_eq!(sum(|it| it.rx), ended, "{counters:?}");
        counters
    }
}

fn generator() -> LinkSpec {
    LinkSpec::Generator(GeneratorSpec::default())
}

/// A wiring of a device that writes `.0` bytes before each packet.
#[derive(Debug)]
struct PrefixWiring(u16);

impl Wiring<SoftDevice> for PrefixWiring {
    fn initialise(&mut self, qp: &mut LaneQueuePair<'_, SoftDevice>) -> Result<(), VerbError> {
        RawWiring { port: 1 }.initialise(qp)
    }

    fn connect(&mut self, _: &mut LaneQueuePair<'_, SoftDevice>) -> Result<bool, VerbError> {
        Ok(false)
    }

    fn is_stale(&self) -> bool {
        false
    }

    fn prefix(&self) -> u16 {
        self.0
    }

    fn longest(&self) -> u16 {
        0
    }
}

#[test]
fn prefix_longer_than_a_buffer_is_refused() {
    let device = SoftDevice::new(SoftSpec::new("s", generator())).unwrap();
    let pd = device.alloc_pd().unwrap();
    let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
    let room = u16::try_from(layout.room()).unwrap();
    for (prefix, opens) in [(0, true), (room, true), (room + 1, false), (u16::MAX, false)] {
        let spec = LaneSpec {
            kind: QpType::RawPacket,
            queue: (0, 1),
            recv_depth: 16,
            send_depth: 16,
            stamps: Stamping::None,
            recv_fields: RecvFields::empty(),
            sleeps: false,
        };
        let (wiring, clocks) = (Box::new(PrefixWiring(prefix)), Clocks::default());
        let opened = lane::open(&device, &pd, &mut pool, spec, wiring, Arc::default(), &clocks);
        match opened {
            Ok(mut lane) => {
                lane.reset_and_reclaim(&mut pool);
                assert!(opens, "{prefix}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(!opens && text.contains(&format!("{prefix} bytes before a packet")), "{prefix}: {text}");
            }
        }
    }
}

#[test]
fn traffic_continues_after_every_error() {
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

/// Under load, a send-only lane always has more packets to send. These packets must not delay the recovery of a stopped
/// queue pair indefinitely.
#[test]
fn send_only_lane_recovers_under_load() {
    let faults = FaultSpec { tx_error: 0.01, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), FaultSpec::default()), (generator(), faults)]);
    bench.refill();
    (0..10_000).for_each(|_| bench.round());
    let counters = bench.finish();
    assert!(counters[1].recoveries > 100 && counters[1].tx > 10_000, "{counters:?}");
    assert_eq!((counters[0].recoveries, counters[0].rx), (0, 10_000 * BURST as u64));
}

/// If a poll of a completion queue fails, the lane creates its queues again. The posted receives and the outstanding
/// sends are lost, but no slot is lost.
#[test]
fn lost_queues_are_recreated() {
    let faults = FaultSpec { poll_error: 0.01, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), faults)]);
    bench.refill();
    while bench.lanes[0].counters().rebuilds < 20 {
        bench.round();
    }
    let counters = bench.end().remove(0);
    assert!(counters.tx > 0 && counters.timed_out > 0, "{counters:?}");
}

/// Returns a bench whose second lane has 10 unsignalled sends outstanding, because the device refused the signalled
/// send after them.
fn with_unsignalled_tail() -> Bench {
    let source = LinkSpec::Generator(GeneratorSpec { count: Some(43), ..GeneratorSpec::default() });
    let faults = FaultSpec { post_error_at: 43, post_errno: libc::ENOMEM, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(source, FaultSpec::default()), (generator(), faults)]);
    bench.refill();
    (0..10).for_each(|_| bench.round());
    assert_eq!((bench.lanes[1].sending(), bench.lanes[1].counters().tx), (10, 32));
    bench
}

/// Only the last send of a run is signalled (a run is a list of packets that is posted in one call). The injected fault
/// refuses this send, so none of the accepted sends is signalled. If no later send completes, the lane posts a marker:
/// a send without a packet, whose completion also completes all earlier sends.
#[test]
fn unsignalled_sends_come_back_after_a_marker() {
    let mut bench = with_unsignalled_tail();
    while bench.lanes[1].sending() > 0 {
        bench.round();
        bench.lanes[1].housekeep(&mut bench.pool).unwrap();
    }
    let counters = bench.finish().remove(1);
    assert_eq!((counters.tx, counters.tx_errors, counters.recoveries), (42, 1, 1), "{counters:?}");
    assert_eq!((counters.timed_out, counters.unmatched_completions), (0, 0), "{counters:?}");
}

/// Stopping the lane also posts a marker. The slots of the unsignalled sends therefore return before the deadline.
#[test]
fn stopping_a_lane_returns_unsignalled_sends_by_a_marker() {
    let mut bench = with_unsignalled_tail();
    bench.lanes[1].stop().unwrap();
    assert_eq!(bench.lanes[1].drain(&mut bench.pool).unwrap(), 0);
    let counters = bench.finish().remove(1);
    assert_eq!((counters.tx, counters.tx_errors, counters.dropped_at_stop), (42, 1, 0), "{counters:?}");
}

/// The completion of a later send also completes the unsignalled sends, so the lane does not reset the queue pair.
#[test]
fn unsignalled_sends_come_back_with_a_later_completion() {
    let faults = FaultSpec { post_error_at: 43, post_errno: libc::ENOMEM, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), FaultSpec::default()), (generator(), faults)]);
    bench.refill();
    for _ in 0..1_000 {
        bench.round();
        bench.lanes[1].housekeep(&mut bench.pool).unwrap();
    }
    let counters = bench.finish().remove(1);
    assert_eq!((counters.tx_errors, counters.recoveries), (22, 0), "{counters:?}");
}

/// A queue pair that never reports flush completions is reset at the deadline, and traffic continues.
#[test]
fn unflushed_slots_are_reclaimed_at_the_deadline() {
    let faults = FaultSpec { rx_error: 0.05, no_flush: true, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), faults)]);
    bench.refill();
    while bench.lanes[0].counters().recoveries < 2 {
        bench.round();
    }
    let counters = bench.end().remove(0);
    assert!(counters.timed_out > 0 && counters.rx_errors > 0, "{counters:?}");
}

/// The device generates completions for requests that were never posted, with invalid statuses and opcodes.
#[test]
fn invalid_completions_are_counted_as_stale() {
    let faults = FaultSpec { bogus_completion: 0.05, ..FaultSpec::default() };
    let mut bench = Bench::new(vec![(generator(), faults)]);
    bench.refill();
    (0..2_000).for_each(|_| bench.round());
    let counters = bench.end().remove(0);
    assert!(counters.unmatched_completions > 0 && counters.tx > 1_000, "{counters:?}");
}

/// A removed device causes an error, and the lane makes no attempt to recover.
#[test]
fn removed_device_causes_an_error_and_no_recovery() {
    let mut bench = Bench::new(vec![(generator(), FaultSpec::default())]);
    bench.refill();
    bench.round();
    bench.devices[0].remove();
    let lane = &mut bench.lanes[0];
    assert!(lane.receive(&mut bench.pool, &mut bench.batch, BURST).is_err());
    assert_eq!(lane.counters().rebuilds, 0);
}

/// Counts correct latencies (within 300 ns of `expected`) by clock, wrong latencies, and stamp pairs without a common
/// clock.
#[derive(Default)]
struct LatencyCounts {
    expected: u64,
    right: std::collections::BTreeMap<ClockSource, u64>,
    wrong: u64,
    apart: u64,
}

impl LatencySink for LatencyCounts {
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

/// The device counter freezes and resumes. While the counter is frozen, the stamps come from the system clock. Each
/// latency names its clock.
#[test]
fn frozen_device_clock_is_replaced_until_it_resumes() {
    const MS: u64 = 1_000_000;
    let host = HostClock::manual();
    host.advance(Nanos(MS));
    let events = [(2, CounterEventKind::Freeze), (4, CounterEventKind::Resume)];
    let event = |(seconds, kind)| CounterEvent { at: Period::from_secs(seconds), kind, value: 0 };
    let events = events.map(event).to_vec();
    let counter = CounterSpec { khz: 156_250, bits: 48, drift_ppb: 50_000, events, ..CounterSpec::default() };
    let spec = SoftSpec { clock: host.clone(), counter: Some(counter), ..SoftSpec::new("s", generator()) };
    let device = SoftDevice::new(spec).unwrap();
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
        recv_fields: RecvFields::empty(),
        sleeps: false,
    };
    let (pd, wiring) = (device.alloc_pd().unwrap(), Box::new(RawWiring { port: 1 }));
    let lane = lane::open(&device, &pd, &mut bench.pool, spec, wiring, Arc::default(), &clocks).unwrap();
    bench.lanes.push(lane);
    bench.refill();
    let mut spans = LatencyCounts { expected: 5_000, ..LatencyCounts::default() };
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
    // Each switch between the clocks affects one to three bursts.
    assert_eq!(sources, [vec![device], vec![host], vec![device, host], vec![device]], "{seen:?}");
    assert!(seen.iter().all(|right| right.values().sum::<u64>() >= 1_990 * burst), "{seen:?}");
    assert!(seen[2][&host] < 110 * burst, "{seen:?}");
    assert!(
        spans.wrong + spans.apart <= 6 * burst,
        "{} wrong latencies, {} stamp pairs without a common clock",
        spans.wrong,
        spans.apart
    );
    bench.finish();
}

/// A latency sink that panics after this many records.
struct PanickingSink(usize);

impl LatencySink for PanickingSink {
    fn record(&mut self, _: Stamp, _: Stamp, _: u64) {
        self.0 = self.0.checked_sub(1).expect("the sink accepts one more record");
    }
}

#[test]
fn all_slots_return_after_a_panic_of_the_latency_sink() {
    for (records, bursts, rounds) in [(0, 1, 0), (0, 3, 0), (1, 3, 0), (2, 3, 0), (1, 3, 20)] {
        let mut bench = Bench::new(vec![(generator(), FaultSpec::default())]);
        bench.refill();
        let Bench { lanes, batch, pool, .. } = &mut bench;
        for _ in 0..bursts {
            lanes[0].receive(pool, batch, 8).unwrap();
            lanes[0].transmit(pool, batch);
        }
        let mut sink = PanickingSink(records);
        let reap = std::panic::AssertUnwindSafe(|| (0..2).try_for_each(|_| lanes[0].reap(pool, &mut sink)));
        assert!(std::panic::catch_unwind(reap).is_err());
        // The lane continues to work after the panic, and `end` checks that all slots return.
        (0..rounds).for_each(|_| bench.round());
        bench.end();
    }
}

proptest! {
    /// All slots return to the pool, for any injected failures and any number of rounds before the stop.
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

/// A slot holds the receive information of its packet only. Packets of a lane without receive information, and packets
/// that no device received, have no receive information, even if an earlier packet in the slot had receive information.
#[test]
fn receive_information_stays_with_its_packet() {
    let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap().with_recv_info();
    let rules = vec![FlowRule { tag: Some(9), ..FlowRule::new(FlowTraffic::ANY_HEADERS) }];
    let device = SoftDevice::new(SoftSpec::new("s", generator())).unwrap();
    let device = device.with_raw(RawSpec { rules, ..RawSpec::default() });
    let mut batch = Batch::new(&pool);
    let both = RecvFields::FLOW_TAG | RecvFields::CHECKSUM;
    for (fields, tag, flags) in [
        (both, 9, RecvFlags::CHECKSUM_OK),
        (RecvFields::FLOW_TAG, 9, RecvFlags::empty()),
        (RecvFields::empty(), 0, RecvFlags::empty()),
        (both, 9, RecvFlags::CHECKSUM_OK),
    ] {
        let spec = LaneSpec {
            kind: QpType::RawPacket,
            queue: (0, 1),
            recv_depth: 128,
            send_depth: 128,
            stamps: Stamping::Device,
            recv_fields: fields,
            sleeps: false,
        };
        let (pd, wiring) = (device.alloc_pd().unwrap(), Box::new(RawWiring { port: 1 }));
        let clocks = Clocks::default();
        let lane = lane::open(&device, &pd, &mut pool, spec, wiring, Arc::default(), &clocks);
        let mut lane = lane.unwrap();
        lane.refill(&mut pool).unwrap();
        for _ in 0..20 {
            assert!(lane.receive(&mut pool, &mut batch, BURST).unwrap() > 0);
            assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut pool));
            let generated = batch.len() - 1;
            for at in 0..generated {
                let info = batch.get_mut(at).unwrap().recv_info();
                assert_eq!((info.flow_tag, info.flags, info.vlan, info.hash), (tag, flags, 0, 0));
            }
            assert_eq!(batch.get_mut(generated).unwrap().recv_info(), RecvInfo::NONE);
            lane.transmit(&mut pool, &mut batch);
            lane.reap(&mut pool, &mut NoSink).unwrap();
            lane.refill(&mut pool).unwrap();
        }
        lane.stop().unwrap();
        while lane.drain(&mut pool).unwrap() > 0 {}
        assert_eq!(pool.available(), SLOTS);
    }
}
