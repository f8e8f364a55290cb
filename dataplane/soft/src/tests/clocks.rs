//! Tests of device counters with faults, and of the timestamps (stamps) that the clock synchronization computes from
//! the counters.

use super::*;
use dataplane_core::clock::{ClockFault, ClockSource, ClockState, ClockSync, Stamp, Stamper};
use dataplane_core::units::{Offset, Period};

const SECOND: u64 = 1_000_000_000;

/// A device that sends frames to itself, and the synchronization of the device's counter with the system clock.
struct Watched {
    rig: Rig,
    sync: ClockSync,
    stamper: Stamper,
    last: Stamp,
    /// The time of the next step of the synchronization, in nanoseconds.
    due: u64,
    made: u64,
}

impl Watched {
    fn new(counter: CounterSpec, bits: u32) -> Self {
        let spec = SoftSpec { counter: Some(CounterSpec { bits, ..counter }), ..reflecting() };
        let rig = Rig::new(spec).ready();
        let sync = ClockSync::new(rig.device.timebase());
        let stamper = Stamper::new(ClockSource::DeviceTicks, &rig.clock, Some(&sync.clock()));
        let made = rig.clock.nanos().0;
        Self { rig, sync, stamper, last: Stamp::NONE, due: 0, made }
    }

    /// Advances the time in steps of one millisecond, up to `seconds` after the creation of the device. Performs each
    /// synchronization step when the step is due.
    fn until(&mut self, seconds: f64) -> ClockState {
        let end = self.made + (seconds * SECOND as f64) as u64;
        while self.rig.clock.nanos().0 < end {
            if self.rig.clock.nanos().0 >= self.due {
                let device = &self.rig.device;
                self.sync.step(&self.rig.clock, || device.raw_clock());
                self.due = self.rig.clock.nanos().0 + self.sync.interval().0;
            }
            self.rig.clock.advance(Nanos(1_000_000));
        }
        self.sync.state()
    }

    /// Sends and receives a frame, and returns its stamp. Checks that the stamp is not before the previous stamp.
    fn stamp(&mut self) -> Stamp {
        let rig = &mut self.rig;
        rig.post_recv_run(&[0]).unwrap();
        let desc = rig.put(1, &frame(1, 60));
        rig.post_send_run(&[desc], 5).unwrap();
        assert_eq!(rig.received().len(), 1);
        let mut stamp = [Stamp::NONE];
        self.stamper.stamp(&rig.run.ticks[..1], &mut stamp);
        rig.sent();
        assert!(stamp[0].nanos() >= self.last.nanos());
        self.last = stamp[0];
        stamp[0]
    }

    /// Checks that stamps come from the device's clock, and that their error is at most `most` nanoseconds.
    fn assert_right(&mut self, most: u64) {
        let (stamp, now) = (self.stamp(), self.rig.clock.nanos().0);
        assert_eq!(stamp.source(), ClockSource::DeviceTicks, "{:?}", self.sync);
        assert!(stamp.nanos().0.abs_diff(now) <= most, "{stamp:?} at {now} ns: {:?}", self.sync);
    }

    /// Checks that stamps come from the system clock, and not from the device's clock.
    fn assert_downgraded(&mut self) {
        let (stamp, now) = (self.stamp(), self.rig.clock.nanos());
        assert_eq!((stamp.source(), stamp.nanos()), (ClockSource::Virtual, now), "{:?}", self.sync);
    }
}

fn at(seconds: u64, kind: CounterEventKind, value: i64) -> CounterEvent {
    CounterEvent { at: Period::from_secs(seconds), kind, value }
}

#[test]
fn simulated_counter_reports_its_nominal_frequency() {
    let spec = |reports_khz| SoftSpec {
        counter: Some(CounterSpec {
            khz: 156_250,
            reports_khz,
            drift_ppb: 1_000_000,
            start: 40,
            bits: 24,
            ..CounterSpec::default()
        }),
        ..reflecting()
    };
    let rig = Rig::new(spec(true));
    let can = rig.device.capabilities();
    assert_eq!((can.clock_khz, can.timestamp_mask), (156_250, 0xff_ffff));
    assert_eq!(rig.device.raw_clock(), Ok(Ticks(40)));
    rig.clock.advance(Nanos(SECOND + 1));
    // The counter is 0.1 % faster than nominal, and its values have 24 bits.
    assert_eq!(rig.device.raw_clock(), Ok(Ticks((40 + 156_406_250) & 0xff_ffff)));
    let silent = Rig::new(spec(false));
    assert_eq!(silent.device.capabilities().clock_khz, 0);
    assert_eq!(silent.device.timebase().source, ClockSource::None);
    rig.device.remove();
    assert_eq!(rig.device.raw_clock().unwrap_err().errno, libc::EIO);
    let refused = SoftSpec { disabled_capabilities: vec![Capability::Timestamps], ..spec(true) };
    assert_eq!(Rig::new(refused).device.raw_clock().unwrap_err().errno, libc::EOPNOTSUPP);
}

#[test]
fn device_without_counter_uses_the_system_clock() {
    let rig = Rig::new(reflecting());
    rig.clock.advance(Nanos(123));
    assert_eq!((rig.device.raw_clock(), rig.device.timebase()), (Ok(rig.clock.now()), rig.clock.timebase()));
}

#[test]
fn drifting_counters_of_all_widths_are_synchronized() {
    for bits in [16, 24, 32, 48, 63, 64] {
        for drift_ppb in [-90_000, 0, 90_000] {
            let counter = CounterSpec { khz: 156_250, drift_ppb, start: 0xfff0, ..CounterSpec::default() };
            let mut it = Watched::new(counter, bits);
            it.until(0.001);
            it.assert_right(1_000);
            assert_eq!(it.until(12.0), ClockState::Synced, "{bits} bits");
            for part in 1..40 {
                it.until(12.0 + f64::from(part) / 17.0);
                it.assert_right(300);
            }
            assert!(it.sync.report().drift_ppb.abs_diff(drift_ppb) < 100, "{:?}", it.sync.report());
        }
    }
}

#[test]
fn jumps_and_resets_are_detected_and_recovered() {
    let counter = CounterSpec {
        khz: 1_000_000,
        start: 1 << 40,
        events: vec![
            at(20, CounterEventKind::Jump, -5_000_000_000),
            at(40, CounterEventKind::Jump, 7_000_000_000),
            at(60, CounterEventKind::Set, 0),
        ],
        ..CounterSpec::default()
    };
    let mut it = Watched::new(counter, 48);
    for jumps in 1..=3 {
        let when = 20.0 * f64::from(jumps);
        assert_eq!(it.until(when - 0.001), ClockState::Synced);
        it.assert_right(1_000);
        it.rig.clock.advance(Nanos(1_000_000));
        // The next synchronization step is not yet due, but the stamper already finds implausible timestamps.
        it.assert_downgraded();
        // The clock is invalid from the synchronization step that detects the jump until a later step confirms the new
        // values.
        let seen = (1..=260).find(|&ms| it.until(when + f64::from(ms) / 1e3) == ClockState::Invalid);
        assert!(seen.is_some(), "{:?}", it.sync);
        it.assert_downgraded();
        assert!(matches!(it.sync.fault(), Some(ClockFault::Jumped(_))));
        assert_eq!(it.sync.report().jumps, jumps as u64);
        it.until(when + 0.4);
        it.assert_right(20_000);
        assert_eq!(it.until(when + 12.0), ClockState::Synced);
        it.assert_right(1_000);
    }
    assert!(it.stamper.counts().implausible >= 3, "{:?}", it.stamper.counts());
}

#[test]
fn stopped_counter_is_detected_and_recovered() {
    for bits in [16, 32, 64] {
        let counter = CounterSpec {
            khz: 500_000,
            drift_ppb: 20_000,
            events: vec![at(20, CounterEventKind::Freeze, 0), at(23, CounterEventKind::Resume, 0)],
            ..CounterSpec::default()
        };
        let mut it = Watched::new(counter, bits);
        assert_eq!(it.until(19.9), ClockState::Synced);
        it.assert_right(1_000);
        // The stop is detected after at most one long synchronization interval.
        assert_eq!(it.until(20.3), ClockState::Invalid);
        it.assert_downgraded();
        assert_eq!(it.until(22.9), ClockState::Invalid);
        it.assert_downgraded();
        assert_eq!(it.sync.fault(), Some(ClockFault::Frozen));
        assert_eq!(it.until(36.0), ClockState::Synced);
        it.assert_right(1_000);
        assert_eq!(it.sync.report().freezes, 1);
    }
}

#[test]
fn unreadable_counter_is_extrapolated_then_invalid() {
    let counter = CounterSpec {
        drift_ppb: -40_000,
        events: vec![
            at(20, CounterEventKind::FailReads, libc::EIO.into()),
            at(25, CounterEventKind::AllowReads, 0),
            at(40, CounterEventKind::FailReads, libc::EIO.into()),
            at(60, CounterEventKind::AllowReads, 0),
        ],
        ..CounterSpec::default()
    };
    let mut it = Watched::new(counter, 63);
    assert_eq!(it.until(24.9), ClockState::FreeRunning);
    it.assert_right(5_000);
    assert_eq!(it.until(39.0), ClockState::Synced);
    assert_eq!(it.until(55.0), ClockState::Invalid);
    it.assert_downgraded();
    assert!(matches!(it.sync.fault(), Some(ClockFault::Query(error)) if error.errno == libc::EIO));
    assert_eq!(it.until(62.0), ClockState::Synced);
    it.assert_right(1_000);
}

#[test]
fn changed_drift_is_measured_again() {
    let counter = CounterSpec { events: vec![at(20, CounterEventKind::Drift, 80_000)], ..CounterSpec::default() };
    let mut it = Watched::new(counter, 64);
    assert_eq!(it.until(19.9), ClockState::Synced);
    assert_eq!(it.until(40.0), ClockState::Synced);
    it.assert_right(1_000);
    assert!(it.sync.report().drift_ppb.abs_diff(80_000) < 100, "{:?}", it.sync.report());
}

#[test]
fn counter_without_frequency_gives_no_device_stamps() {
    let mut it = Watched::new(CounterSpec { reports_khz: false, ..CounterSpec::default() }, 64);
    assert_eq!(it.until(1.0), ClockState::Invalid);
    it.assert_downgraded();
    assert_eq!(it.sync.fault(), Some(ClockFault::NoFrequency));
}

#[test]
fn wall_clock_of_the_device_may_be_ahead_of_the_system_clock() {
    let plan = Plan { fields: PollFields::STANDARD | PollFields::WALLCLOCK, ..Plan::default() };
    let counter = CounterSpec { wall_ahead: Offset(37), ..CounterSpec::default() };
    let mut rig = Rig::with(SoftSpec { counter: Some(counter), ..reflecting() }, plan).ready();
    rig.clock.advance(Nanos(1_000));
    rig.post_recv_run(&[0]).unwrap();
    let desc = rig.put(1, &frame(1, 60));
    rig.post_send_run(&[desc], 5).unwrap();
    assert_eq!(rig.received().len(), 1);
    assert_eq!(rig.run.ticks[0], Ticks(1_037));
}
