//! Synchronization of a device counter with the system clock.
//!
//! A synchronization step takes several readings. A reading is a read of the counter between two reads of the system
//! clock. The step keeps the reading with the shortest time between the two reads of the system clock. A linear fit
//! through the latest readings gives the duration of a tick. If the counter has not advanced, the counter has stopped.
//! If no reading of a step matches the fit, the counter has jumped. In both cases, the synchronization starts over. All
//! sums are integers, so no rounding errors accumulate.
//!
//! Note the units: `hca_core_clock` of `ibv_query_device_ex(3)` is in kHz, and `raw_clock.tv_nsec` of
//! `ibv_query_rt_values_ex(3)` is in ticks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::timebase::SHIFT;
use crate::clock::{ClockSource, ClockState, DeviceClock, HostClock, Mapping, Timebase};
use crate::error::VerbError;
use crate::units::{Nanos, Ticks};

/// The number of readings per step.
const READINGS_PER_STEP: usize = 8;
/// The maximum number of readings for the fit. In the steady state, the readings cover the last eight seconds.
const WINDOW: usize = 32;
/// Half of the time between the first and the second step, in nanoseconds. The interval doubles with each step up to
/// [`FAST_INTERVAL`].
const FIRST_STEP: u64 = 5_000_000;
/// The interval between steps while the fit still improves, in nanoseconds.
const FAST_INTERVAL: u64 = 50_000_000;
/// The interval between steps in the steady state, in nanoseconds.
const SLOW_INTERVAL: u64 = 250_000_000;
/// The time for which the last mapping of an unreadable clock stays in use, in nanoseconds.
pub(super) const HOLD_TIME: u64 = 10_000_000_000;
/// The maximum deviation from the nominal frequency, in parts per billion. IEEE 802.3 allows 100 parts per million.
const MAX_DEVIATION_PPB: u64 = 250_000;
/// The maximum change of the frequency between two steps, in parts per billion.
const WANDER_PPB: u64 = 5_000;
/// The maximum frequency error of a synced clock, in parts per billion: one microsecond per second.
const SYNCED_PPB: u64 = 1_000;
/// The maximum half width of a usable reading, in nanoseconds. The half width is half of the time between the two reads
/// of the system clock.
const MAX_HALF_WIDTH: u64 = 50_000;
/// The tolerance in nanoseconds for the distance of a good reading from the fit, in addition to the known errors.
const TOLERANCE: u64 = 1_000;
/// The minimum period of a usable counter, in nanoseconds. With a shorter period, wraps could be missed.
const MIN_PERIOD: u64 = 8_000;
/// The number of ticks after which an unchanged counter counts as stopped.
const STOPPED_TICKS: u64 = 16;
/// A reading is wide if its half width exceeds `ClockSync::max_half_width`. After this number of consecutive steps with
/// only wide readings, the maximum no longer depends on the readings in the window.
const MAX_WIDE_STEPS: u32 = 8;

/// A read of a device counter between two reads of the system clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The system clock before the read.
    pub before: Nanos,
    /// The counter.
    pub ticks: Ticks,
    /// The system clock after the read.
    pub after: Nanos,
}

impl Reading {
    fn width(&self) -> u64 {
        self.after.0 - self.before.0
    }

    /// Returns the best estimate of the time of the read.
    fn middle(&self) -> u64 {
        self.before.0 + self.width() / 2
    }
}

/// The reason why the clock of a device is not used, or was not used for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFault {
    /// The device does not report a frequency.
    NoFrequency,
    /// The counter wraps too fast.
    WrapsTooFast,
    /// The counter cannot be read.
    Query(VerbError),
    /// Every read was interrupted on this host.
    Interrupted,
    /// The counter was not read for so long that the number of wraps is unknown.
    Lost,
    /// The counter has stopped.
    Frozen,
    /// The counter jumped by this number of nanoseconds. Positive means forward.
    Jumped(i64),
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFrequency => f.write_str("the device does not report its frequency"),
            Self::WrapsTooFast => write!(f, "the counter wraps in less than {} us", MIN_PERIOD / 1_000),
            Self::Query(error) => error.fmt(f),
            Self::Interrupted => f.write_str("every read of the counter was interrupted"),
            Self::Lost => f.write_str("the counter was not read for so long that wraps may have been missed"),
            Self::Frozen => f.write_str("the counter has stopped"),
            Self::Jumped(by) => write!(f, "the counter jumped by {by} ns"),
        }
    }
}

/// The state of a device's clock, for a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockReport {
    /// The source of the stamps.
    pub source: ClockSource,
    /// How far the clock can be trusted.
    pub state: ClockState,
    /// The latest fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The deviation from the nominal frequency, in parts per billion. Positive means faster.
    pub drift_ppb: i64,
    /// The maximum error of a stamp at the time of the latest step, in nanoseconds.
    pub error_ns: u64,
    /// The number of synchronization steps. Each step compares the clock with the system clock.
    pub steps: u64,
    /// The number of steps in which the clock could not be read, or only inaccurately.
    pub missed: u64,
    /// The number of jumps.
    pub jumps: u64,
    /// The number of stops.
    pub freezes: u64,
    /// The offset that is added to a device's own wall clock, in nanoseconds.
    pub offset_ns: i64,
}

impl fmt::Display for ClockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, drift {} ppb, error {} ns", self.source, self.state, self.drift_ppb, self.error_ns)?;
        let faults = [("missed", self.missed), ("jumps", self.jumps), ("freezes", self.freezes)];
        for (what, count) in faults.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, ", {what} {count}")?;
        }
        if self.offset_ns != 0 {
            write!(f, ", offset {} ns", self.offset_ns)?;
        }
        self.fault.iter().try_for_each(|fault| write!(f, "; last fault: {fault}"))
    }
}

/// An accepted reading.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// The ticks, extended to 64 bits.
    ticks: u64,
    host: u64,
    /// The maximum error of the time, in nanoseconds.
    half: u64,
}

/// Synchronizes the clock of a device and publishes the mapping to its workers. One thread that is not a worker owns
/// the `ClockSync`.
#[derive(Debug)]
pub struct ClockSync {
    nominal: Timebase,
    mapping: Mapping,
    clock: Arc<DeviceClock>,
    points: VecDeque<Point>,
    /// Whether the latest step started the synchronization over. The clock becomes valid again when the reading of the
    /// next step agrees with the reading of the latest step.
    unconfirmed: bool,
    /// The number of consecutive steps with only wide readings.
    wide_steps: u32,
    fault: Option<ClockFault>,
    steps: u64,
    missed: u64,
    jumps: u64,
    freezes: u64,
}

impl ClockSync {
    /// Creates the synchronization of a counter with the nominal frequency and the mask of `nominal`. The clock is
    /// invalid until the first step.
    pub fn new(nominal: Timebase) -> Self {
        let mapping = Mapping { rate_ppb: MAX_DEVIATION_PPB, ..Mapping::new(nominal, Ticks(0), Nanos(0)) };
        let fault = match () {
            () if nominal.source == ClockSource::None => Some(ClockFault::NoFrequency),
            () if nominal.period().0 < MIN_PERIOD => Some(ClockFault::WrapsTooFast),
            () => None,
        };
        Self {
            nominal,
            mapping,
            clock: Arc::new(DeviceClock::new(&mapping)),
            points: VecDeque::with_capacity(WINDOW + 1),
            unconfirmed: false,
            wide_steps: 0,
            fault,
            steps: 0,
            missed: 0,
            jumps: 0,
            freezes: 0,
        }
    }

    /// Marks the clock as the system's own wall clock. Such a clock needs no offset, and its stamps may be out of
    /// order.
    #[must_use]
    pub fn mark_as_system_wallclock(mut self) -> Self {
        // The `Arc` is not shared yet.
        if let Some(clock) = Arc::get_mut(&mut self.clock) {
            clock.set_system();
        }
        self
    }

    /// Returns the clock that workers read.
    pub fn clock(&self) -> Arc<DeviceClock> {
        self.clock.clone()
    }

    /// Returns the mapping that was published last.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// Returns how far the clock can be trusted.
    pub fn state(&self) -> ClockState {
        self.mapping.state
    }

    /// Returns the latest fault.
    pub fn fault(&self) -> Option<ClockFault> {
        self.fault
    }

    /// Returns whether the clock can never be used, so that further steps are useless.
    pub fn is_unusable(&self) -> bool {
        match self.fault {
            Some(ClockFault::NoFrequency | ClockFault::WrapsTooFast) => true,
            Some(ClockFault::Query(error)) => error.errno == libc::EOPNOTSUPP && self.points.is_empty(),
            _ => false,
        }
    }

    /// Returns the time from the last step to the next step.
    pub fn interval(&self) -> Nanos {
        let unreadable = self.state() == ClockState::Invalid && matches!(self.fault, Some(ClockFault::Query(_)));
        let settled = self.points.len() >= WINDOW || unreadable;
        // In the time `sure`, the frequency error causes a time error of at most an eighth of the counter's period.
        let sure = (self.nominal.period().0 / 8).saturating_mul(1_000_000_000 / (self.mapping.rate_ppb + WANDER_PPB));
        let step = match self.points.len() {
            _ if settled => SLOW_INTERVAL,
            // The first intervals are short, because the first mappings only use the nominal frequency.
            points => FAST_INTERVAL.min(FIRST_STEP << points.min(8)),
        };
        Nanos(sure.min(step).max(1_000_000))
    }

    /// Performs one synchronization step and publishes the mapping. `read` reads the counter. Returns the new state.
    pub fn step(&mut self, host: &HostClock, mut read: impl FnMut() -> Result<Ticks, VerbError>) -> ClockState {
        let mut readings = [Reading::default(); READINGS_PER_STEP];
        for reading in &mut readings {
            let before = host.nanos();
            match read() {
                Ok(ticks) => *reading = Reading { before, ticks, after: host.nanos() },
                Err(error) => return self.missed(host.nanos(), ClockFault::Query(error)),
            }
        }
        self.observe(&readings)
    }

    /// Records that the counter could not be read.
    pub fn missed(&mut self, now: Nanos, fault: ClockFault) -> ClockState {
        if self.is_unusable() {
            return self.state();
        }
        self.steps += 1;
        self.missed += 1;
        let since = now.0.saturating_sub(self.mapping.nanos.0);
        self.fault = Some(fault);
        let holds = since <= HOLD_TIME && self.max_deviation(since, 0) < self.nominal.period().0 / 4;
        self.mapping.state = match self.mapping.state {
            ClockState::Invalid => ClockState::Invalid,
            _ if holds => ClockState::FreeRunning,
            _ => ClockState::Invalid,
        };
        self.clock.publish(&self.mapping);
        self.state()
    }

    /// Processes the readings of one step, which were taken in sequence.
    pub fn observe(&mut self, readings: &[Reading]) -> ClockState {
        if self.is_unusable() {
            return self.state();
        }
        let limit = self.max_half_width();
        let close = readings.iter().filter(|it| it.after >= it.before && self.half(it) <= limit);
        let Some(best) = close.clone().min_by_key(|reading| reading.width()) else {
            self.wide_steps += 1;
            let now = readings.last().map_or(self.mapping.nanos, |reading| reading.after);
            return self.missed(now, ClockFault::Interrupted);
        };
        if self.points.is_empty() {
            return self.accept(best.ticks.0, best);
        }
        if self.has_stopped(readings, best) {
            return self.start_over(best, ClockFault::Frozen);
        }
        let elapsed = best.middle().saturating_sub(self.mapping.nanos.0);
        if self.max_deviation(elapsed, self.half(best)) >= self.nominal.period().0 / 4 {
            return self.start_over(best, ClockFault::Lost);
        }
        // A single reading that matches the fit shows that the counter is correct. The readings that do not match were
        // disturbed.
        let well = close.filter(|it| self.extend(it).1.unsigned_abs() <= self.max_deviation(elapsed, self.half(it)));
        match well.min_by_key(|reading| reading.width()) {
            Some(reading) => self.accept(self.extend(reading).0, reading),
            None => self.start_over(best, ClockFault::Jumped(self.extend(best).1)),
        }
    }

    /// Returns the state for a report.
    pub fn report(&self) -> ClockReport {
        let (nominal, is) = (i128::from(self.nominal.multiplier), i128::from(self.mapping.timebase.multiplier));
        ClockReport {
            source: self.nominal.source,
            state: self.state(),
            fault: self.fault.map(|fault| fault.to_string()),
            drift_ppb: if is == 0 { 0 } else { ((nominal - is) * 1_000_000_000 / is) as i64 },
            error_ns: self.mapping.error.0,
            steps: self.steps,
            missed: self.missed,
            jumps: self.jumps,
            freezes: self.freezes,
            offset_ns: self.clock.offset(),
        }
    }

    /// Returns the maximum error of a reading's time. The error includes one tick, because the counter resolves only
    /// whole ticks.
    fn half(&self, reading: &Reading) -> u64 {
        reading.width() / 2 + self.mapping.timebase.nanos(Ticks(1)).0 + 1
    }

    /// Returns the maximum half width of a usable reading. The maximum depends on the narrowest reading in the window.
    /// After [`MAX_WIDE_STEPS`] consecutive steps with only wide readings, the maximum no longer depends on the window.
    fn max_half_width(&self) -> u64 {
        let most = MAX_HALF_WIDTH.min(self.nominal.period().0 / 16).max(self.nominal.nanos(Ticks(2)).0);
        if self.wide_steps < MAX_WIDE_STEPS { most.min(self.usual_half_width()) } else { most }
    }

    /// Returns the maximum half width that follows from the narrowest reading in the window.
    fn usual_half_width(&self) -> u64 {
        self.points.iter().map(|point| 8 * point.half + 2 * TOLERANCE).min().unwrap_or(u64::MAX)
    }

    /// Returns the maximum distance of a good reading from the fit, `elapsed` nanoseconds after the reference point.
    fn max_deviation(&self, elapsed: u64, half: u64) -> u64 {
        let rate = u128::from(elapsed) * u128::from(self.mapping.rate_ppb + WANDER_PPB) / 1_000_000_000;
        half + self.mapping.error.0 + TOLERANCE + rate as u64
    }

    /// Returns the ticks extended to 64 bits, and the distance from the fit in nanoseconds. Positive means that the
    /// counter is ahead.
    fn extend(&self, reading: &Reading) -> (u64, i64) {
        let (mask, middle) = (self.nominal.mask, reading.middle());
        let (expected, when) = self.mapping.at(Nanos(middle));
        let ahead = reading.ticks.0.wrapping_sub(expected.0) & mask;
        let behind = expected.0.wrapping_sub(reading.ticks.0) & mask;
        let nanos = |ticks| self.mapping.timebase.nanos(Ticks(ticks)).0.min(1 << 62) as i64;
        // `at` rounds down to a whole tick, so the expected tick is slightly before the middle of the reading.
        let early = when.0 as i64 - middle as i64;
        match ahead <= behind {
            true => (expected.0.wrapping_add(ahead), early + nanos(ahead)),
            false => (expected.0.wrapping_sub(behind), early - nanos(behind)),
        }
    }

    /// Returns whether the counter should have moved within the step or since the last step, but did not.
    fn has_stopped(&self, readings: &[Reading], best: &Reading) -> bool {
        let Some(last) = self.points.back() else { return false };
        if readings.iter().any(|reading| reading.ticks != best.ticks) {
            return false;
        }
        let moves = |nanos: u64| self.nominal.ticks(Nanos(nanos)).0 >= STOPPED_TICKS;
        let within = match (readings.first(), readings.last()) {
            (Some(first), Some(last)) => last.before.0.saturating_sub(first.after.0),
            _ => 0,
        };
        let same = (last.ticks ^ best.ticks.0) & self.nominal.mask == 0;
        moves(within) || same && moves(best.before.0.saturating_sub(last.host + last.half))
    }

    /// Accepts a good reading and updates the fit.
    fn accept(&mut self, ticks: u64, reading: &Reading) -> ClockState {
        let half = self.half(reading);
        if half <= self.usual_half_width() {
            self.wide_steps = 0;
        }
        self.points.push_back(Point { ticks, host: reading.middle(), half });
        if self.points.len() > WINDOW {
            self.points.pop_front();
        }
        (self.steps, self.unconfirmed) = (self.steps + 1, false);
        let epoch = self.mapping.epoch;
        let fit = self.fit();
        let (timebase, nanos, rate_ppb, error) = match fit {
            Some(fit) if fit.ppb < MAX_DEVIATION_PPB => {
                (Timebase { multiplier: fit.multiplier, ..self.nominal }, fit.nanos, fit.ppb, 2 * fit.half)
            }
            _ => (self.nominal, reading.middle(), MAX_DEVIATION_PPB, half),
        };
        let state = if rate_ppb <= SYNCED_PPB { ClockState::Synced } else { ClockState::Coarse };
        let line = Mapping::new(timebase, Ticks(ticks), Nanos(nanos));
        self.mapping = Mapping { error: Nanos(error), rate_ppb, epoch, state, ..line };
        self.clock.publish(&self.mapping);
        state
    }

    /// Discards all earlier readings and starts over with `reading`. The clock is used again when the reading of the
    /// next step agrees with `reading`.
    fn start_over(&mut self, reading: &Reading, fault: ClockFault) -> ClockState {
        match fault {
            ClockFault::Jumped(_) => self.jumps += 1,
            ClockFault::Frozen if self.fault != Some(ClockFault::Frozen) || !self.unconfirmed => self.freezes += 1,
            _ => {}
        }
        (self.steps, self.unconfirmed, self.fault) = (self.steps + 1, true, Some(fault));
        self.points.clear();
        self.points.push_back(Point { ticks: reading.ticks.0, host: reading.middle(), half: self.half(reading) });
        let line = Mapping::new(self.nominal, reading.ticks, Nanos(reading.middle()));
        let epoch = self.mapping.epoch.wrapping_add(1);
        let error = Nanos(self.half(reading));
        self.mapping = Mapping { error, rate_ppb: MAX_DEVIATION_PPB, epoch, state: ClockState::Invalid, ..line };
        self.clock.publish(&self.mapping);
        ClockState::Invalid
    }

    /// Returns the least-squares line through the points, or `None` if there are fewer than three points or the line is
    /// implausible.
    fn fit(&self) -> Option<Fit> {
        let first = self.points.front().filter(|_| self.points.len() > 2)?;
        let n = self.points.len() as i128;
        let at = |point: &Point| {
            (i128::from(point.ticks.wrapping_sub(first.ticks)), i128::from(point.host) - i128::from(first.host))
        };
        let (mut x_sum, mut y_sum, mut xx_sum, mut xy_sum) = (0, 0, 0, 0);
        for (x, y) in self.points.iter().map(at) {
            x_sum += x;
            y_sum += y;
            xx_sum += x * x;
            xy_sum += x * y;
        }
        let spread = n * xx_sum - x_sum * x_sum;
        // A window covers minutes at most. With 2^40 ticks and 2^40 nanoseconds, the shifted numerator is below 2^125.
        let slope = ((n * xy_sum - x_sum * y_sum) << SHIFT).checked_div(spread)?;
        let multiplier = u64::try_from(slope).ok()?;
        let off = u128::from(multiplier.abs_diff(self.nominal.multiplier));
        if off * 1_000_000_000 > u128::from(self.nominal.multiplier) * u128::from(2 * MAX_DEVIATION_PPB) {
            return None;
        }
        let (x, _) = at(self.points.back()?);
        let y = ((y_sum << SHIFT) + slope * (n * x - x_sum)) / (n << SHIFT);
        // The error of a reading is at most the larger of two values: its half width, and its distance from the line.
        // The error of the slope assumes the worst case: all readings have the largest error, in the direction that
        // changes the slope most.
        let off = |point: &Point| {
            let (px, py) = at(point);
            (py - y + ((slope * (x - px)) >> SHIFT)).unsigned_abs() as u64
        };
        let half = self.points.iter().map(|point| point.half.max(off(point))).max()?;
        let away = |(_, y)| n * y - y_sum;
        let (far, square) =
            self.points.iter().map(at).map(away).fold((0, 0), |(far, square), d: i128| (far + d.abs(), square + d * d));
        let ppb = (i128::from(half) * 1_000_000_000 * n * far).checked_div(square)?;
        Some(Fit {
            multiplier,
            nanos: u64::try_from(i128::from(first.host) + y).ok()?,
            ppb: u64::try_from(ppb).ok()?,
            half,
        })
    }
}

/// A fitted line. `nanos` is the time at the ticks of the last point. `ppb` is the error of the slope in parts per
/// billion, and `half` is the maximum error of the points.
struct Fit {
    multiplier: u64,
    nanos: u64,
    ppb: u64,
    half: u64,
}
