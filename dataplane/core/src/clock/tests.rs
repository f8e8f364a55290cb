//! Tests with clocks that drift, wrap, jump and stop, compared with an exact model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::error::VerbError;
use crate::units::{Nanos, Ticks};
use dataplane_testing::StopOnDrop;

const SECOND: u64 = 1_000_000_000;

#[test]
fn time_between_ticks_is_correct_across_a_wrap_and_zero_for_earlier_ticks() {
    let base = Timebase::new(ClockSource::DeviceTicks, 1_000_000, 0xffff);
    assert_eq!(base.between(Ticks(0xfff0), Ticks(0x10)), Nanos(0x20));
    assert_eq!(base.between(Ticks(0x10), Ticks(0xfff0)), Nanos(0));
}

#[test]
fn counter_without_frequency_is_never_used() {
    let base = Timebase::new(ClockSource::DeviceTicks, 0, u64::MAX);
    assert_eq!((base.source, base.between(Ticks(1), Ticks(1000))), (ClockSource::None, Nanos(0)));
    let mut sync = ClockSync::new(base);
    let host = HostClock::manual();
    assert_eq!(sync.step(&host, || Ok(Ticks(7))), ClockState::Invalid);
    assert!(sync.is_unusable());
    assert_eq!(sync.fault(), Some(ClockFault::NoFrequency));
}

#[test]
fn virtual_clock_advances_together_with_its_clones() {
    let clock = HostClock::manual();
    let other = clock.clone();
    let before = clock.now();
    other.advance(Nanos(1_500));
    assert_eq!(clock.timebase().between(before, clock.now()), Nanos(1_500));
}

#[test]
fn system_clock_is_monotonic_and_advances() {
    let clock = HostClock::new();
    let times: Vec<u64> = (0..1_000).map(|_| clock.nanos().0).collect();
    assert!(times.is_sorted() && times[999] > times[0]);
    assert_eq!(clock.timebase().source, ClockSource::Software);
}

#[test]
fn stamps_of_different_sources_cannot_be_compared() {
    for source in ClockSource::ALL {
        let (early, late) = (Stamp::new(Nanos(5), source), Stamp::new(Nanos(12), source));
        assert_eq!(early.source(), source);
        if source == ClockSource::None {
            assert_eq!((early, early.since(late)), (Stamp::NONE, None));
            continue;
        }
        assert_eq!((late.nanos(), late.since(early), early.since(late)), (Nanos(12), Some(Nanos(7)), Some(Nanos(0))));
        assert!(early < late);
        for other in ClockSource::ALL.into_iter().filter(|other| *other != source) {
            let other = Stamp::new(Nanos(12), other);
            assert_eq!((late.since(other), late.partial_cmp(&other), late == other), (None, None, false));
        }
    }
    assert_eq!(Stamp::new(Nanos(5), ClockSource::Mixed), Stamp::NONE);
}

/// A virtual system clock, a simulated device counter with known properties, and the synchronization under test.
struct Bench {
    host: HostClock,
    khz: u64,
    mask: u64,
    /// The drift: how much faster than `khz` the counter runs, in parts per billion.
    ppb: i64,
    /// The reference point: a time and the count at that time.
    from: (u64, u64),
    frozen: bool,
    /// The duration of a reading in nanoseconds, and the time from the start of the reading to the sample of the
    /// counter, in 1/256 of the duration.
    read: (u64, u64),
    sync: ClockSync,
    stampers: Vec<Stamper>,
    /// The time of the last stamp of each queue, in nanoseconds.
    last: Vec<u64>,
}

impl Bench {
    fn new(khz: u64, mask: u64, ppb: i64, start: u64) -> Self {
        let host = HostClock::manual();
        host.advance(Nanos(77 * SECOND));
        let sync = ClockSync::new(Timebase::new(ClockSource::DeviceTicks, khz, mask));
        let clock = sync.clock();
        let stamper = || Stamper::new(ClockSource::DeviceTicks, &host, Some(&clock));
        let stampers = vec![stamper(), stamper()];
        let from = (host.nanos().0, start);
        Self { host, khz, mask, ppb, from, frozen: false, read: (800, 128), sync, stampers, last: vec![0; 2] }
    }

    fn now(&self) -> u64 {
        self.host.nanos().0
    }

    /// Returns the exact count at a time, extended to 64 bits.
    fn count(&self, time: u64) -> u64 {
        if self.frozen {
            return self.from.1;
        }
        let hertz = i128::from(self.khz) * i128::from(1_000_000_000 + self.ppb);
        let passed = i128::from(time) - i128::from(self.from.0);
        (i128::from(self.from.1) + (passed * hertz).div_euclid(1_000_000_000_000_000)) as u64
    }

    fn ticks(&self, time: u64) -> Ticks {
        Ticks(self.count(time) & self.mask)
    }

    /// Changes a property of the counter. The count continues from its current value.
    fn change(&mut self, with: impl FnOnce(&mut Self)) {
        self.from = (self.now(), self.count(self.now()));
        with(self);
    }

    fn jump(&mut self, ticks: i64) {
        self.change(|bench| bench.from.1 = bench.from.1.wrapping_add_signed(ticks));
    }

    /// Performs a step of the synchronization: takes eight readings, and passes the readings to `sync`. The field
    /// `read` has the duration of each reading.
    fn step(&mut self) -> ClockState {
        let (takes, at) = self.read;
        let readings: Vec<Reading> = (0..8)
            .map(|_| {
                let before = self.host.nanos();
                let look = before.0 + takes * at / 256;
                self.host.advance(Nanos(takes));
                let reading = Reading { before, ticks: self.ticks(look), after: self.host.nanos() };
                self.host.advance(Nanos(50));
                reading
            })
            .collect();
        self.sync.observe(&readings)
    }

    /// Waits until the next step is due.
    fn wait(&mut self) {
        self.host.advance(self.sync.interval());
    }

    /// Performs `steps` steps, each when it is due.
    fn follow(&mut self, steps: usize) -> ClockState {
        for _ in 1..steps {
            self.step();
            self.wait();
        }
        self.step()
    }

    /// Stamps a burst of completions with the given ages in nanoseconds, oldest first. Returns the maximum error of the
    /// stamps, or `None` if the stamps are from the system clock.
    fn poll(&mut self, queue: usize, ages: &[u64]) -> Option<u64> {
        let now = self.now();
        let ticks: Vec<Ticks> = ages.iter().map(|age| self.ticks(now - age)).collect();
        let mut stamps = vec![Stamp::NONE; ticks.len()];
        self.stampers[queue].stamp(&ticks, &mut stamps);
        for stamp in &stamps {
            assert!(stamp.nanos().0 >= self.last[queue], "{stamp:?} after {} ns", self.last[queue]);
            assert!(stamp.nanos().0 <= now, "{stamp:?} at {now} ns");
            self.last[queue] = stamp.nanos().0;
        }
        let off = |(stamp, age): (&Stamp, &u64)| stamp.nanos().0.abs_diff(now - age);
        match stamps[0].source() {
            ClockSource::DeviceTicks => stamps.iter().zip(ages).map(off).max(),
            source => {
                assert_eq!(source, ClockSource::Virtual);
                assert!(stamps.iter().all(|stamp| *stamp == Stamp::new(Nanos(now), source)));
                None
            }
        }
    }
}

#[test]
fn counter_is_coarse_after_one_step_and_synced_later() {
    let mut bench = Bench::new(156_250, (1 << 48) - 1, 40_000, 1 << 47);
    assert_eq!(bench.poll(0, &[100]), None);
    assert_eq!(bench.step(), ClockState::Coarse);
    assert!(bench.poll(0, &[100]).unwrap() < 1_000);
    assert_eq!(bench.follow(100), ClockState::Synced);
    let report = bench.sync.report();
    assert!(report.drift_ppb.abs_diff(40_000) < 200, "{report:?}");
    assert_eq!((report.jumps, report.freezes, report.missed, report.fault), (0, 0, 0, None));
    let counts = bench.stampers[0].counts();
    assert_eq!(counts, StampCounts { device: 1, host: 1, implausible: 0 });
}

#[test]
fn jump_invalidates_the_clock_until_two_steps_agree() {
    for seconds in [-3_600, -30, -1, 1, 30, 3_600] {
        let mut bench = Bench::new(1_000_000, u64::MAX >> 1, -20_000, 5_000 * SECOND);
        assert_eq!(bench.follow(100), ClockState::Synced);
        assert!(bench.poll(0, &[900, 800]).is_some());
        bench.jump(seconds * SECOND as i64);
        // No step has detected the jump yet, but the stamper of this queue finds the stamp implausible.
        assert_eq!(bench.poll(0, &[100]), None, "{seconds}");
        assert_eq!(bench.stampers[0].counts().implausible, 1);
        assert_eq!(bench.step(), ClockState::Invalid);
        assert_eq!(bench.poll(0, &[100]), None);
        assert!(
            matches!(bench.sync.fault(), Some(ClockFault::Jumped(by)) if by.abs_diff(seconds * SECOND as i64) < SECOND / 10)
        );
        bench.wait();
        assert_eq!(bench.step(), ClockState::Coarse);
        assert!(bench.poll(0, &[100]).is_some());
        assert_eq!(bench.follow(100), ClockState::Synced);
        assert!(bench.poll(0, &[900, 800]).unwrap() < 1_000);
        assert_eq!(bench.sync.report().jumps, 1);
    }
}

#[test]
fn stopped_counter_is_detected_and_recovers() {
    for mask in [0xffff, u64::MAX] {
        let mut bench = Bench::new(1_000_000, mask, 0, 99);
        assert_eq!(bench.follow(100), ClockState::Synced);
        bench.change(|bench| bench.frozen = true);
        for _ in 0..20 {
            bench.wait();
            assert_eq!(bench.step(), ClockState::Invalid);
            assert_eq!(bench.poll(0, &[10]), None);
        }
        assert_eq!((bench.sync.fault(), bench.sync.report().freezes), (Some(ClockFault::Frozen), 1));
        bench.change(|bench| bench.frozen = false);
        // The counter continues from its old value. Relative to the system clock, it has jumped backwards.
        bench.wait();
        bench.step();
        bench.wait();
        bench.step();
        assert_eq!(bench.follow(100), ClockState::Synced);
        assert!(bench.poll(0, &[10]).unwrap() < 1_000);
    }
}

#[test]
fn unreadable_clock_is_extrapolated_for_ten_seconds() {
    let mut bench = Bench::new(1_000_000, u64::MAX, 30_000, 0);
    assert_eq!(bench.follow(100), ClockState::Synced);
    let error = VerbError::new("ibv_query_rt_values_ex", libc::EIO);
    let host = bench.host.clone();
    for _ in 0..9 {
        bench.host.advance(Nanos(SECOND));
        assert_eq!(bench.sync.step(&host, || Err(error)), ClockState::FreeRunning);
        assert!(bench.poll(0, &[100]).unwrap() < 10_000);
    }
    assert_eq!(bench.sync.fault(), Some(ClockFault::Query(error)));
    bench.host.advance(Nanos(2 * SECOND));
    // The stamper detects that the mapping is too old, even if no further step runs.
    assert_eq!(bench.poll(0, &[100]), None);
    assert_eq!(bench.sync.step(&host, || Err(error)), ClockState::Invalid);
    assert_eq!(bench.poll(0, &[100]), None);
    assert!(!bench.sync.is_unusable());
    // The extrapolated clock was right.
    assert_eq!(bench.step(), ClockState::Synced);
    assert!(bench.poll(0, &[100]).unwrap() < 1_000);
    assert_eq!(bench.sync.report().missed, 10);
}

#[test]
fn device_clock_that_cannot_be_read_is_never_used() {
    let mut bench = Bench::new(1_000_000, u64::MAX, 0, 0);
    let host = bench.host.clone();
    let error = VerbError::new("ibv_query_rt_values_ex", libc::EOPNOTSUPP);
    assert_eq!(bench.sync.step(&host, || Err(error)), ClockState::Invalid);
    assert!(bench.sync.is_unusable());
    assert_eq!(bench.poll(0, &[100]), None);
    let report = serde_json::to_value(bench.sync.report()).unwrap();
    assert_eq!((&report["state"], &report["source"]), (&"invalid".into(), &"device_ticks".into()));
    assert!(report["fault"].as_str().unwrap().contains("ibv_query_rt_values_ex"), "{report}");
}

#[test]
fn counter_with_too_short_period_is_not_used() {
    let mut bench = Bench::new(1_000_000, 0xfff, 0, 0);
    assert_eq!(bench.follow(3), ClockState::Invalid);
    assert_eq!((bench.sync.fault(), bench.poll(0, &[100])), (Some(ClockFault::WrapsTooFast), None));
}

#[test]
fn interrupted_readings_are_ignored() {
    let mut bench = Bench::new(1_000_000, u64::MAX, 30_000, 0);
    assert_eq!(bench.follow(100), ClockState::Synced);
    // Each reading of the step takes 30 ms, as if an interrupt paused the reading.
    bench.read = (30_000_000, 3);
    bench.wait();
    assert_eq!(bench.step(), ClockState::FreeRunning);
    assert_eq!(bench.sync.fault(), Some(ClockFault::Interrupted));
    assert!(bench.poll(0, &[100]).unwrap() < 1_000);
    // No step runs for five seconds. The system clock and the device counter continue.
    bench.host.advance(Nanos(5 * SECOND));
    bench.read = (800, 128);
    assert_eq!(bench.step(), ClockState::Synced);
    assert!(bench.poll(0, &[100]).unwrap() < 1_000);
    assert_eq!(bench.sync.report().jumps, 0);
}

#[test]
fn permanently_slow_reads_are_accepted() {
    let mut bench = Bench::new(1_000_000, u64::MAX, 0, 0);
    assert_eq!(bench.follow(100), ClockState::Synced);
    bench.read = (60_000, 128);
    bench.follow(10);
    assert_ne!(bench.sync.state(), ClockState::FreeRunning);
    assert!(bench.poll(0, &[100]).unwrap() < 60_000);
}

/// The first mapping uses the nominal frequency. When a later mapping corrects the first mapping, the stamps approach
/// the later mapping without a jump.
#[test]
fn corrections_of_the_mapping_are_slewed() {
    let mut bench = Bench::new(1_000_000, u64::MAX, 200_000, 0);
    bench.step();
    // A deviation of 200 parts per million causes an error of 40,000 ns in 200 ms.
    bench.host.advance(Nanos(200_000_000));
    let off = bench.poll(0, &[0]).unwrap();
    let mut before = (bench.now(), bench.last[0]);
    bench.follow(4);
    assert!(off <= 40_000 + 2_000);
    for _ in 0..1_000 {
        bench.host.advance(Nanos(1_000_000));
        bench.poll(0, &[0]).unwrap();
        let (real, shown) = (bench.now() - before.0, bench.last[0] - before.1);
        // The limit of an eighth of a percent is larger than the sum of the slew and the drift.
        assert!(real.abs_diff(shown) <= real / 800 + 1_000, "{shown} ns in {real} ns");
        before = (bench.now(), bench.last[0]);
    }
    assert!(bench.poll(0, &[0]).unwrap() < 1_000);
}

/// The system's and the device's wall clock count nanoseconds. The measured offset must equal the time of the system's
/// wall clock minus the time of the device's wall clock.
#[test]
fn offset_of_a_foreign_wall_clock_is_measured() {
    const EPOCH: u64 = 1_700_000_000 * SECOND;
    // The device's wall clock is ahead by the TAI offset, correct, slightly behind, or far behind.
    for ahead in [37 * SECOND as i64, 0, -250_000_000, -3_600 * SECOND as i64] {
        let host = HostClock::manual();
        host.advance(Nanos(10_000 * SECOND));
        let wall = {
            let host = host.clone();
            move || EPOCH + host.nanos().0
        };
        let mut sync = ClockSync::new(Timebase::new(ClockSource::DeviceWallclock, 1_000_000, u64::MAX));
        let clock = sync.clock();
        let mut stamper = Stamper::new(ClockSource::DeviceWallclock, &host, Some(&clock));
        let mut off = 0;
        for burst in 0..4_000 {
            if burst % 200 == 0 {
                sync.step(&host, || Ok(Ticks(wall())));
            }
            host.advance(Nanos(1_000_000));
            let ages = [3_000 + burst % 7 * 100, 2_000];
            let ticks = ages.map(|age| Ticks((wall() - age).wrapping_add_signed(ahead)));
            let mut stamps = [Stamp::NONE; 2];
            stamper.stamp(&ticks, &mut stamps);
            assert_eq!(stamps[0].source(), ClockSource::DeviceWallclock, "ahead by {ahead}");
            assert_eq!(stamps[1].since(stamps[0]).unwrap().0, ages[0] - ages[1]);
            off = host.nanos().0.abs_diff(stamps[1].nanos().0 + ages[1]);
        }
        assert!(off <= 5_000, "{off} ns when ahead by {ahead}");
        assert!(sync.report().offset_ns.abs_diff(-ahead) <= 5_000, "{:?}", sync.report());
    }
}

/// Concurrent readers always see complete mappings.
#[test]
fn readers_never_see_a_partly_written_mapping() {
    let line = |number: u64| Mapping {
        error: Nanos(number),
        ..Mapping::new(Timebase::new(ClockSource::DeviceTicks, number, u64::MAX), Ticks(number), Nanos(number))
    };
    let clock = DeviceClock::new(&line(1));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut seen, mut last) = (0, 0);
                    while !ended.load(Ordering::Relaxed) || last < 100_000 {
                        if let Some(mapping) = clock.read(&mut seen) {
                            let number = mapping.ticks.0;
                            assert_eq!(mapping, line(number));
                            assert!(number > last);
                            last = number;
                        }
                    }
                })
            })
            .collect();
        (2..=100_000).for_each(|number| clock.publish(&line(number)));
        ended.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

/// A new stamper has a mapping at once, even if a mapping is being published when the stamper is created.
#[test]
fn new_stamper_uses_the_device_clock_during_concurrent_publications() {
    let line = Mapping {
        state: ClockState::Coarse,
        ..Mapping::new(Timebase::new(ClockSource::DeviceTicks, 1_000_000, u64::MAX), Ticks(1), Nanos(1))
    };
    let clock = Arc::new(DeviceClock::new(&line));
    let host = HostClock::manual();
    host.advance(Nanos(100));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = StopOnDrop(&ended);
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                clock.publish(&line);
            }
        });
        for time in 0..100_000 {
            let mut stamper = Stamper::new(ClockSource::DeviceTicks, &host, Some(&clock));
            let stamp = stamper.stamp_all(Ticks(70), 1);
            assert_eq!((stamp.source(), stamp.nanos()), (ClockSource::DeviceTicks, Nanos(70)), "time {time}");
        }
    });
}

/// An event of a simulated clock.
#[derive(Clone, Copy, Debug)]
enum ClockEvent {
    Jump(i64),
    Freeze(u64),
    Unreadable(u64),
    /// The host is suspended for this many nanoseconds.
    Pause(u64),
}

fn events() -> impl Strategy<Value = Vec<(usize, ClockEvent)>> {
    let event = prop_oneof![
        (-(1i64 << 44)..1 << 44).prop_map(ClockEvent::Jump),
        (1u64..3_000_000_000).prop_map(ClockEvent::Freeze),
        (1u64..20_000_000_000).prop_map(ClockEvent::Unreadable),
        (1u64..20_000_000_000).prop_map(ClockEvent::Pause),
    ];
    proptest::collection::vec((0usize..60, event), 0..4)
}

proptest! {
    /// The conversion differs from exact arithmetic by at most one millionth plus 1 ns.
    #[test]
    fn conversion_error_of_ticks_is_at_most_one_millionth(khz in 1_000u64..10_000_000, delta in 0u64..1 << 52) {
        let base = Timebase::new(ClockSource::DeviceTicks, khz, u64::MAX);
        let exact = u128::from(delta) * 1_000_000 / u128::from(khz);
        let got = u128::from(base.between(Ticks(5), Ticks(5 + delta)).0);
        prop_assert!(got.abs_diff(exact) <= exact / 1_000_000 + 1, "the conversion returned {got} ns instead of {exact} ns");
    }

    /// The error of a synced clock is at most the sum of half the duration of a reading, two ticks, 2 ns and one
    /// millionth of the time since the last step. This holds for every width, drift and start value of the counter,
    /// and does not depend on the moment in a reading at which the counter is read.
    #[test]
    fn error_of_a_synced_clock_is_bounded(
        bits in 16u32..=64,
        khz in 100_000u64..1_200_000,
        ppb in -200_000i64..200_000,
        start: u64,
        takes in 100u64..1_000,
        asymmetry in proptest::collection::vec(0u64..=256, 8),
    ) {
        let mask = u64::MAX >> (64 - bits);
        let mut bench = Bench::new(khz, mask, ppb, start);
        let period = bench.sync.mapping().timebase.period().0;
        let age = 20_000.min(period / 2);
        for step in 0..160 {
            bench.read = (takes, asymmetry[step % asymmetry.len()]);
            bench.step();
            // Poll the queues four times between two steps.
            let rest = bench.sync.interval().0;
            for part in 1..=4 {
                bench.host.advance(Nanos(rest / 4));
                let off = bench.poll(0, &[age, age / 2, age / 3]);
                bench.poll(1, &[age / 4; 5]);
                prop_assert!(off.is_some());
                if step > 120 {
                    let max_error = takes / 2 + 2_000_000 / khz + 2 + rest / 4 * part / 1_000_000;
                    prop_assert!(off.unwrap() <= max_error, "{off:?} ns is over {max_error} ns at step {step}");
                }
            }
        }
        prop_assert_eq!(bench.sync.state(), ClockState::Synced);
        let report = bench.sync.report();
        prop_assert_eq!((report.jumps, report.freezes, report.missed), (0, 0, 0));
        prop_assert!(report.drift_ppb.abs_diff(ppb) < 1_000, "{:?}", report);
    }

    /// After any sequence of events, no stamp of a queue goes backwards (`poll` checks this). A synced clock keeps its
    /// error bound. In the end, the clock is synced again.
    #[test]
    fn clock_recovers_from_any_sequence_of_events(
        bits in 16u32..=64,
        khz in 100_000u64..1_200_000,
        ppb in -100_000i64..100_000,
        start: u64,
        events in events(),
    ) {
        let mask = u64::MAX >> (64 - bits);
        let mut bench = Bench::new(khz, mask, ppb, start);
        let error = VerbError::new("ibv_query_rt_values_ex", libc::EIO);
        for round in 0..60 {
            for (_, event) in events.iter().filter(|(when, _)| *when == round) {
                match *event {
                    ClockEvent::Jump(ticks) => bench.jump(ticks),
                    ClockEvent::Freeze(nanos) => {
                        bench.change(|bench| bench.frozen = true);
                        let end = bench.now() + nanos;
                        while bench.now() < end {
                            bench.wait();
                            bench.step();
                            bench.poll(0, &[0]);
                        }
                        bench.change(|bench| bench.frozen = false);
                    }
                    ClockEvent::Unreadable(nanos) => {
                        let (end, host) = (bench.now() + nanos, bench.host.clone());
                        while bench.now() < end {
                            bench.wait();
                            bench.sync.step(&host, || Err(error));
                            bench.poll(0, &[0]);
                        }
                    }
                    ClockEvent::Pause(nanos) => bench.host.advance(Nanos(nanos)),
                }
            }
            bench.poll(0, &[1_000, 0]);
            if bench.step() == ClockState::Synced {
                let (now, mapping) = (bench.now(), bench.sync.mapping());
                // The mapping may map recent ticks to a time slightly after `now`, so the upper limit is `soon`, which
                // is later than `now`.
                let soon = Nanos(now + 10_000.min(mapping.timebase.period().0 / 4));
                let off = mapping.host(bench.ticks(now - 500), soon).0.abs_diff(now - 500);
                prop_assert!(off <= mapping.error.0 + 1_000, "{off} ns: {:?}", bench.sync);
            }
            bench.poll(1, &[500, 500]);
            bench.wait();
        }
        prop_assert_eq!(bench.follow(160), ClockState::Synced);
        // In one of 65,536 cases, a 16-bit counter has the same value as at the last burst. The stamper then treats the
        // counter as stopped for this burst.
        let off = bench.poll(0, &[1_000, 0]).or_else(|| {
            bench.host.advance(Nanos(1_000));
            bench.poll(0, &[1_000, 0])
        });
        prop_assert!(off.is_some_and(|off| off <= 1_000 + 2_000_000 / khz), "{off:?}");
    }
}
