//! The device counter, from which timestamps are read, and its simulated faults.

use dataplane_core::clock::{ClockSource, HostClock, Timebase};
use dataplane_core::error::VerbError;
use dataplane_core::units::{Nanos, Ticks};

/// A simulated counter with its own oscillator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSpec {
    /// The nominal frequency in kHz.
    pub khz: u64,
    /// Whether the device reports the frequency. If `false`, the device reports 0.
    pub reports_khz: bool,
    /// The deviation of the real frequency from the nominal frequency, in parts per billion. Positive means faster.
    pub drift_ppb: i64,
    /// The value when the device is created.
    pub start: u64,
    /// The events of the counter, in the order of their times. A time counts from the creation of the device.
    pub events: Vec<(Nanos, CounterEvent)>,
}

impl Default for CounterSpec {
    /// Returns a counter with exactly 1 GHz.
    fn default() -> Self {
        Self { khz: 1_000_000, reports_khz: true, drift_ppb: 0, start: 0, events: Vec::new() }
    }
}

/// An event of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterEvent {
    /// The value changes by this number of ticks.
    Jump(i64),
    /// The counter restarts at this value, as after a firmware reset.
    Set(u64),
    /// The counter stops.
    Freeze,
    /// The counter continues from its current value.
    Resume,
    /// The deviation from the nominal frequency changes to this value, in parts per billion.
    Drift(i64),
    /// Explicit reads of the counter fail with this `errno`. Completions still have timestamps.
    FailReads(i32),
    /// Explicit reads of the counter succeed again.
    AllowReads,
}

/// The behaviour of the counter between two events.
#[derive(Clone, Copy, Debug)]
struct CounterSegment {
    /// The start of the segment, in nanoseconds since the creation of the device.
    from: u64,
    /// The value of the counter at the start of the segment.
    ticks: u64,
    /// Ticks per nanosecond, in units of 2^-48.
    rate: u64,
    mute: Option<i32>,
}

const SHIFT: u32 = 48;

impl CounterSegment {
    fn at(&self, time: u64) -> u64 {
        let passed = u128::from(time - self.from) * u128::from(self.rate);
        self.ticks.wrapping_add((passed >> SHIFT) as u64)
    }
}

/// The counter of a device: a simulated counter, or the system's counter.
#[derive(Debug)]
pub(super) struct Counter {
    host: HostClock,
    timebase: Timebase,
    created_at: u64,
    /// The behaviour over time. Empty for the system's counter.
    segments: Vec<CounterSegment>,
}

impl Counter {
    pub(super) fn new(host: &HostClock, mask: u64, spec: Option<&CounterSpec>) -> Self {
        let timebase = match spec {
            Some(spec) => Timebase::new(ClockSource::DeviceTicks, if spec.reports_khz { spec.khz } else { 0 }, mask),
            None if mask == u64::MAX => host.timebase(),
            // A counter with fewer bits than the system's counter is a different clock source.
            None => host.timebase().masked(ClockSource::DeviceTicks, mask),
        };
        let segments = spec.map_or_else(Vec::new, segments);
        Self { host: host.clone(), timebase, created_at: host.nanos().0, segments }
    }

    /// Returns the frequency and the mask of the counter, as the device reports them.
    pub(super) fn timebase(&self) -> Timebase {
        self.timebase
    }

    fn segment(&self, time: u64) -> Option<&CounterSegment> {
        self.segments.iter().rfind(|segment| segment.from <= time)
    }

    /// Returns the timestamp of a completion.
    #[inline(always)]
    pub(super) fn now(&self) -> Ticks {
        let ticks = if self.segments.is_empty() { self.host.now().0 } else { self.segment_ticks() };
        Ticks(ticks & self.timebase.mask)
    }

    /// Returns the timestamp of a completion that arrived `elapsed` nanoseconds ago.
    pub(super) fn before(&self, elapsed: Nanos) -> Ticks {
        let time = (self.host.nanos().0.saturating_sub(self.created_at)).saturating_sub(elapsed.0);
        let ticks = match self.segment(time) {
            Some(segment) => segment.at(time),
            None => self.host.now().0.wrapping_sub(self.host.timebase().ticks(elapsed).0),
        };
        Ticks(ticks & self.timebase.mask)
    }

    /// Returns the value of the simulated counter.
    #[inline(never)]
    fn segment_ticks(&self) -> u64 {
        let time = self.host.nanos().0.saturating_sub(self.created_at);
        self.segment(time).map_or(0, |segment| segment.at(time))
    }

    /// Returns the result of an explicit read of the counter.
    pub(super) fn read(&self) -> Result<Ticks, VerbError> {
        let time = self.host.nanos().0.saturating_sub(self.created_at);
        match self.segment(time).and_then(|segment| segment.mute) {
            Some(errno) => Err(VerbError::new("ibv_query_rt_values_ex", errno)),
            None => Ok(self.now()),
        }
    }
}

/// Computes in advance how the counter behaves between its events. The value at a given time therefore does not depend
/// on earlier reads.
fn segments(spec: &CounterSpec) -> Vec<CounterSegment> {
    let rate = |ppb: i64| {
        let billionths = u128::from(1_000_000_000u64.saturating_add_signed(ppb));
        u64::try_from(((u128::from(spec.khz) * billionths) << SHIFT) / 1_000_000_000_000_000).unwrap_or(u64::MAX)
    };
    let mut last = CounterSegment { from: 0, ticks: spec.start, rate: rate(spec.drift_ppb), mute: None };
    let mut running_rate = last.rate;
    let mut all = vec![last];
    for (time, event) in &spec.events {
        let from = time.0.max(last.from);
        last = CounterSegment { from, ticks: last.at(from), ..last };
        match *event {
            CounterEvent::Jump(by) => last.ticks = last.ticks.wrapping_add_signed(by),
            CounterEvent::Set(to) => last.ticks = to,
            CounterEvent::Freeze => last.rate = 0,
            CounterEvent::Resume => last.rate = running_rate,
            CounterEvent::Drift(ppb) => (last.rate, running_rate) = (rate(ppb), rate(ppb)),
            CounterEvent::FailReads(errno) => last.mute = Some(errno),
            CounterEvent::AllowReads => last.mute = None,
        }
        all.push(last);
    }
    all
}
