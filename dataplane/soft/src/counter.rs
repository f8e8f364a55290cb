//! The device counter, from which timestamps are read, and its simulated faults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use dataplane_core::clock::{ClockSource, HostClock, Timebase};
use dataplane_core::error::VerbError;
use dataplane_core::units::{Nanos, Offset, Period, Ticks, within, within_signed};

/// A simulated clock for a port with the device `"soft"` or `"host"`, to test the effects of clock errors. The clock is
/// a free-running counter. The device timestamps completions with the values of the counter.
///
/// ```toml
/// [[port]]
/// name   = "a"
/// device = "soft"
/// link   = { kind = "loopback" }
///
/// [port.clock]
/// khz         = 156_250
/// reports_khz = true
/// bits        = 48
/// drift_ppb   = -20_000
/// start       = 281_474_976_000_000
/// wall_ahead  = "1ms"
/// events      = [
///     { at = "1s", kind = "jump", value = 5_000 },
///     { at = "2s", kind = "freeze" },
///     { at = "3s", kind = "resume" },
/// ]
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CounterSpec {
    /// The nominal frequency in kHz.
    #[serde(deserialize_with = "within::<_, u64, 1, 10000000>")]
    #[schemars(range(min = 1, max = 10000000))]
    pub khz: u64,
    /// Whether the device reports the frequency of the counter. If `false`, the device reports the frequency 0. The
    /// program then uses the system clock instead of the counter.
    #[schemars(extend("x-previous-name" = "says_khz"))]
    pub reports_khz: bool,
    /// The width of the counter in bits. After the value 2^`bits` - 1, the counter continues at 0.
    #[serde(deserialize_with = "within::<_, u32, 1, 64>")]
    #[schemars(range(min = 1, max = 64))]
    pub bits: u32,
    /// The deviation of the real frequency from the nominal frequency `khz`, in parts per billion. With a positive
    /// value, the counter runs faster.
    #[serde(deserialize_with = "within_signed::<_, -1000000, 1000000>")]
    #[schemars(range(min = -1000000, max = 1000000))]
    pub drift_ppb: i64,
    /// The value of the counter when the device is opened.
    pub start: u64,
    /// The time by which the device's wall clock is ahead of the system's wall clock, such as `"37s"`. With a negative
    /// value, such as `"-5ms"`, the device's wall clock is behind.
    pub wall_ahead: Offset,
    /// Events that change the counter at given times, such as jumps.
    pub events: Vec<CounterEvent>,
}

impl Default for CounterSpec {
    fn default() -> Self {
        Self {
            khz: 1_000_000,
            reports_khz: true,
            bits: 64,
            drift_ppb: 0,
            start: 0,
            wall_ahead: Offset(0),
            events: Vec::new(),
        }
    }
}

impl CounterSpec {
    /// Returns the valid bits of the counter.
    pub fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits.clamp(1, 64))
    }
}

/// An event of the simulated counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CounterEvent {
    /// The time between the opening of the device and the event. At most `"365d"`.
    pub at: Period,
    /// The kind of the event. `"jump"` adds `value` ticks to the counter. `"set"` sets the counter to `value`.
    /// `"freeze"` stops the counter. After `"resume"`, the counter continues. `"drift"` sets the deviation from the
    /// nominal frequency to `value` parts per billion. After `"fail_reads"`, reading the counter fails with the
    /// errno `value`, but completions still have timestamps. After `"allow_reads"`, the counter can be read again.
    pub kind: CounterEventKind,
    /// The parameter of the event. The meaning depends on `kind`.
    #[serde(default)]
    pub value: i64,
}

/// A kind of event of the simulated counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CounterEventKind {
    /// The counter jumps by a number of ticks.
    Jump,
    /// The counter is set to a value.
    Set,
    /// The counter stops.
    Freeze,
    /// The counter continues from its current value.
    Resume,
    /// The deviation from the nominal frequency changes.
    Drift,
    /// Reading the counter fails.
    FailReads,
    /// The counter can be read again.
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
    pub(super) fn new(host: &HostClock, spec: Option<&CounterSpec>) -> Self {
        let timebase = spec.map_or_else(
            || host.timebase(),
            |spec| Timebase::new(ClockSource::DeviceTicks, if spec.reports_khz { spec.khz } else { 0 }, spec.mask()),
        );
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
    let mut events = spec.events.clone();
    events.sort_by_key(|event| event.at);
    for CounterEvent { at, kind, value } in events {
        let from = at.as_nanos().max(last.from);
        last = CounterSegment { from, ticks: last.at(from), ..last };
        match kind {
            CounterEventKind::Jump => last.ticks = last.ticks.wrapping_add_signed(value),
            CounterEventKind::Set => last.ticks = value as u64,
            CounterEventKind::Freeze => last.rate = 0,
            CounterEventKind::Resume => last.rate = running_rate,
            CounterEventKind::Drift => (last.rate, running_rate) = (rate(value), rate(value)),
            CounterEventKind::FailReads => last.mute = Some(i32::try_from(value).unwrap_or(libc::EIO)),
            CounterEventKind::AllowReads => last.mute = None,
        }
        all.push(last);
    }
    all
}
