//! How the counter of a device is brought onto the host's line of time.
//!
//! A step reads the counter a few times, each time between two looks at the host's clock, and keeps the reading that
//! those hem in most closely. Of the last such readings the slope is fitted: what a tick is. A reading that is not where
//! the line says is looked at twice: the counter has stopped, or it jumped, and then all that was known of it is
//! forgotten. All sums are of integers, so nothing adds up that is not in the readings.
//!
//! The unit is a trap worth naming: `hca_core_clock` of `ibv_query_device_ex(3)` is in kHz, and what
//! `ibv_query_rt_values_ex(3)` calls `raw_clock.tv_nsec` is ticks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::timebase::SHIFT;
use crate::clock::{ClockSource, ClockState, DeviceClock, HostClock, Mapping, Timebase};
use crate::error::VerbError;
use crate::units::{Nanos, Ticks};

/// Readings of a step.
const READINGS: usize = 8;
/// Readings that the slope is fitted to: those of the last eight seconds, when all is well.
const WINDOW: usize = 32;
/// Half of the time from the first step to the second, in nanoseconds; from there to the third it is twice as long.
const FIRST: u64 = 5_000_000;
/// Between steps while there is still something to learn.
const FAST: u64 = 50_000_000;
/// Between steps when there is not.
const SLOW: u64 = 250_000_000;
/// How long a clock that cannot be read is taken to go on as it did.
pub(super) const HOLD: u64 = 10_000_000_000;
/// How far a crystal may be from what is written on it, in parts in a billion. IEEE 802.3 has 100 in a million.
const NOMINAL_PPB: u64 = 250_000;
/// How far the frequency of a crystal moves from one step to the next.
const WANDER_PPB: u64 = 5_000;
/// A measured frequency that is this sure makes a synced clock: less than a microsecond a second.
const SYNCED_PPB: u64 = 1_000;
/// Half of the time around a reading: more says nothing.
const MOST_HALF: u64 = 50_000;
/// A reading is where it should be if it is this close, and what is not known otherwise closer.
const CLOSE: u64 = 1_000;
/// A counter whose period is shorter cannot be told apart from itself a period later.
const SHORTEST_PERIOD: u64 = 8_000;
/// Ticks that a counter cannot miss.
const MOVES: u64 = 16;
/// Steps with nothing but wide readings, after which these are what there is.
const PATIENCE: u32 = 8;

/// The counter of a device, read between two looks at the host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Before.
    pub before: Nanos,
    /// What it showed.
    pub ticks: Ticks,
    /// After.
    pub after: Nanos,
}

impl Reading {
    fn width(&self) -> u64 {
        self.after.0 - self.before.0
    }

    /// When it was, at best knowledge.
    fn middle(&self) -> u64 {
        self.before.0 + self.width() / 2
    }
}

/// Why the clock of a device is not used, or was not for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFault {
    /// The device does not say how fast it is.
    NoFrequency,
    /// It wraps too soon to be followed.
    TooNarrow,
    /// It cannot be read.
    Query(VerbError),
    /// The host was interrupted each time it was read.
    Disturbed,
    /// It was not read for so long that nobody knows how often it has wrapped.
    Lost,
    /// It stands still.
    Frozen,
    /// It jumped by so many nanoseconds.
    Jumped(i64),
}

impl fmt::Display for ClockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFrequency => f.write_str("the device does not say its frequency"),
            Self::TooNarrow => write!(f, "it wraps in less than {} us", SHORTEST_PERIOD / 1_000),
            Self::Query(error) => error.fmt(f),
            Self::Disturbed => f.write_str("the host was interrupted each time it was read"),
            Self::Lost => f.write_str("it was not read for too long to know how often it wrapped"),
            Self::Frozen => f.write_str("it stands still"),
            Self::Jumped(by) => write!(f, "it jumped by {by} ns"),
        }
    }
}

/// What is known of the clock of a device, for a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// What its stamps count.
    pub source: ClockSource,
    /// How much it can be trusted.
    pub state: ClockState,
    /// The last that was wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How much faster it is than it says, in parts in a billion.
    pub drift_ppb: i64,
    /// How far its stamps may be off at the time they are read, in nanoseconds.
    pub error_ns: u64,
    /// How often it was read.
    pub steps: u64,
    /// How often it could not be read, or not well.
    pub missed: u64,
    /// How often it jumped.
    pub jumps: u64,
    /// How often it stood still.
    pub freezes: u64,
    /// What is added to a wall clock that is not the host's, in nanoseconds.
    pub offset_ns: i64,
}

impl fmt::Display for ClockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {} ppb fast, right to {} ns", self.source, self.state, self.drift_ppb, self.error_ns)?;
        let trouble = [("missed", self.missed), ("jumps", self.jumps), ("freezes", self.freezes)];
        for (what, count) in trouble.into_iter().filter(|(_, count)| *count > 0) {
            write!(f, ", {what} {count}")?;
        }
        if self.offset_ns != 0 {
            write!(f, ", {} ns added", self.offset_ns)?;
        }
        self.fault.iter().try_for_each(|fault| write!(f, "; last fault: {fault}"))
    }
}

/// A reading that is believed.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// As if the counter had 64 bits.
    ticks: u64,
    host: u64,
    /// How far off that may be.
    half: u64,
}

/// Follows the clock of a device, and tells its workers. One thread has it, and no worker is that thread.
#[derive(Debug)]
pub struct ClockSync {
    nominal: Timebase,
    mapping: Mapping,
    clock: Arc<DeviceClock>,
    points: VecDeque<Point>,
    /// Something was wrong: it is believed when two readings agree.
    doubt: bool,
    /// Steps in a row with nothing but wide readings.
    wide: u32,
    fault: Option<ClockFault>,
    steps: u64,
    missed: u64,
    jumps: u64,
    freezes: u64,
}

impl ClockSync {
    /// For a counter of this frequency and mask. Its clock is invalid until the first step.
    pub fn new(nominal: Timebase) -> Self {
        let mapping = Mapping { rate_ppb: NOMINAL_PPB, ..Mapping::new(nominal, Ticks(0), Nanos(0)) };
        let fault = match () {
            () if nominal.source == ClockSource::None => Some(ClockFault::NoFrequency),
            () if nominal.period().0 < SHORTEST_PERIOD => Some(ClockFault::TooNarrow),
            () => None,
        };
        Self {
            nominal,
            mapping,
            clock: Arc::new(DeviceClock::new(&mapping)),
            points: VecDeque::with_capacity(WINDOW + 1),
            doubt: false,
            wide: 0,
            fault,
            steps: 0,
            missed: 0,
            jumps: 0,
            freezes: 0,
        }
    }

    /// Says that it is the host's own wall clock: however old its stamps are, it is not another clock.
    #[must_use]
    pub fn of_host(mut self) -> Self {
        // Nobody else has it yet.
        if let Some(clock) = Arc::get_mut(&mut self.clock) {
            clock.set_hosts();
        }
        self
    }

    /// What workers read.
    pub fn clock(&self) -> Arc<DeviceClock> {
        self.clock.clone()
    }

    /// What was published last.
    pub fn mapping(&self) -> Mapping {
        self.mapping
    }

    /// How much the clock can be trusted.
    pub fn state(&self) -> ClockState {
        self.mapping.state
    }

    /// The last that was wrong.
    pub fn fault(&self) -> Option<ClockFault> {
        self.fault
    }

    /// Whether it never will be used.
    pub fn is_hopeless(&self) -> bool {
        match self.fault {
            Some(ClockFault::NoFrequency | ClockFault::TooNarrow) => true,
            Some(ClockFault::Query(error)) => error.errno == libc::EOPNOTSUPP && self.points.is_empty(),
            _ => false,
        }
    }

    /// When the next step is due, after the last.
    pub fn interval(&self) -> Nanos {
        let dumb = self.state() == ClockState::Invalid && matches!(self.fault, Some(ClockFault::Query(_)));
        let settled = self.points.len() >= WINDOW || dumb;
        // In this time the frequency's own uncertainty adds up to an eighth of the period, and no more.
        let sure = (self.nominal.period().0 / 8).saturating_mul(1_000_000_000 / (self.mapping.rate_ppb + WANDER_PPB));
        let step = match self.points.len() {
            _ if settled => SLOW,
            // The first lines are drawn with what is written on the crystal.
            points => FAST.min(FIRST << points.min(8)),
        };
        Nanos(sure.min(step).max(1_000_000))
    }

    /// Reads the counter and publishes what it is.
    pub fn step(&mut self, host: &HostClock, mut read: impl FnMut() -> Result<Ticks, VerbError>) -> ClockState {
        let mut readings = [Reading::default(); READINGS];
        for reading in &mut readings {
            let before = host.nanos();
            match read() {
                Ok(ticks) => *reading = Reading { before, ticks, after: host.nanos() },
                Err(error) => return self.missed(host.nanos(), ClockFault::Query(error)),
            }
        }
        self.observe(&readings)
    }

    /// The counter could not be read.
    pub fn missed(&mut self, now: Nanos, fault: ClockFault) -> ClockState {
        if self.is_hopeless() {
            return self.state();
        }
        self.steps += 1;
        self.missed += 1;
        let since = now.0.saturating_sub(self.mapping.nanos.0);
        self.fault = Some(fault);
        let holds = since <= HOLD && self.doubtful(since, 0) < self.nominal.period().0 / 4;
        self.mapping.state = match self.mapping.state {
            ClockState::Invalid => ClockState::Invalid,
            _ if holds => ClockState::FreeRunning,
            _ => ClockState::Invalid,
        };
        self.clock.publish(&self.mapping);
        self.state()
    }

    /// Takes in what a step has read, all in a row.
    pub fn observe(&mut self, readings: &[Reading]) -> ClockState {
        if self.is_hopeless() {
            return self.state();
        }
        let limit = self.widest();
        let close = readings.iter().filter(|it| it.after >= it.before && self.half(it) <= limit);
        let Some(best) = close.clone().min_by_key(|reading| reading.width()) else {
            self.wide += 1;
            let now = readings.last().map_or(self.mapping.nanos, |reading| reading.after);
            return self.missed(now, ClockFault::Disturbed);
        };
        if self.points.is_empty() {
            return self.believe(best.ticks.0, best);
        }
        if self.stands_still(readings, best) {
            return self.start_over(best, ClockFault::Frozen);
        }
        let elapsed = best.middle().saturating_sub(self.mapping.nanos.0);
        if self.doubtful(elapsed, self.half(best)) >= self.nominal.period().0 / 4 {
            return self.start_over(best, ClockFault::Lost);
        }
        // One reading where it should be is enough: the clock is well, and the others were disturbed.
        let well = close.filter(|it| self.place(it).1.unsigned_abs() <= self.doubtful(elapsed, self.half(it)));
        match well.min_by_key(|reading| reading.width()) {
            Some(reading) => self.believe(self.place(reading).0, reading),
            None => self.start_over(best, ClockFault::Jumped(self.place(best).1)),
        }
    }

    /// What is known, for a report.
    pub fn report(&self) -> ClockReport {
        let (said, is) = (i128::from(self.nominal.multiplier), i128::from(self.mapping.timebase.multiplier));
        ClockReport {
            source: self.nominal.source,
            state: self.state(),
            fault: self.fault.map(|fault| fault.to_string()),
            drift_ppb: if is == 0 { 0 } else { ((said - is) * 1_000_000_000 / is) as i64 },
            error_ns: self.mapping.error.0,
            steps: self.steps,
            missed: self.missed,
            jumps: self.jumps,
            freezes: self.freezes,
            offset_ns: self.clock.offset(),
        }
    }

    /// How far from its middle a reading may have been taken. A tick is not divided.
    fn half(&self, reading: &Reading) -> u64 {
        reading.width() / 2 + self.mapping.timebase.nanos(Ticks(1)).0 + 1
    }

    /// Readings that are less sure than this are left out; how sure they usually are counts until they have not been for
    /// long.
    fn widest(&self) -> u64 {
        let most = MOST_HALF.min(self.nominal.period().0 / 16).max(self.nominal.nanos(Ticks(2)).0);
        if self.wide < PATIENCE { most.min(self.usual()) } else { most }
    }

    /// The narrow readings of a calm time are the measure.
    fn usual(&self) -> u64 {
        self.points.iter().map(|point| 8 * point.half + 2 * CLOSE).min().unwrap_or(u64::MAX)
    }

    /// How far from the line a good reading may be, so long after the line's point.
    fn doubtful(&self, elapsed: u64, half: u64) -> u64 {
        let rate = u128::from(elapsed) * u128::from(self.mapping.rate_ppb + WANDER_PPB) / 1_000_000_000;
        half + self.mapping.error.0 + CLOSE + rate as u64
    }

    /// What the counter would show if it had 64 bits, and by how many nanoseconds that is ahead of the line.
    fn place(&self, reading: &Reading) -> (u64, i64) {
        let (mask, middle) = (self.nominal.mask, reading.middle());
        let (expected, when) = self.mapping.at(Nanos(middle));
        let ahead = reading.ticks.0.wrapping_sub(expected.0) & mask;
        let behind = expected.0.wrapping_sub(reading.ticks.0) & mask;
        let nanos = |ticks| self.mapping.timebase.nanos(Ticks(ticks)).0.min(1 << 62) as i64;
        // The tick that was expected is a little before the middle.
        let early = when.0 as i64 - middle as i64;
        match ahead <= behind {
            true => (expected.0.wrapping_add(ahead), early + nanos(ahead)),
            false => (expected.0.wrapping_sub(behind), early - nanos(behind)),
        }
    }

    /// Whether a counter that must have moved has not: within the step, or since the last.
    fn stands_still(&self, readings: &[Reading], best: &Reading) -> bool {
        let Some(last) = self.points.back() else { return false };
        if readings.iter().any(|reading| reading.ticks != best.ticks) {
            return false;
        }
        let moves = |nanos: u64| self.nominal.ticks(Nanos(nanos)).0 >= MOVES;
        let within = match (readings.first(), readings.last()) {
            (Some(first), Some(last)) => last.before.0.saturating_sub(first.after.0),
            _ => 0,
        };
        let same = (last.ticks ^ best.ticks.0) & self.nominal.mask == 0;
        moves(within) || same && moves(best.before.0.saturating_sub(last.host + last.half))
    }

    /// A good reading: the line is drawn anew.
    fn believe(&mut self, ticks: u64, reading: &Reading) -> ClockState {
        let half = self.half(reading);
        if half <= self.usual() {
            self.wide = 0;
        }
        self.points.push_back(Point { ticks, host: reading.middle(), half });
        if self.points.len() > WINDOW {
            self.points.pop_front();
        }
        (self.steps, self.doubt) = (self.steps + 1, false);
        let epoch = self.mapping.epoch;
        let fit = self.fit();
        let (timebase, nanos, rate_ppb, error) = match fit {
            Some(fit) if fit.ppb < NOMINAL_PPB => {
                (Timebase { multiplier: fit.multiplier, ..self.nominal }, fit.nanos, fit.ppb, 2 * fit.half)
            }
            _ => (self.nominal, reading.middle(), NOMINAL_PPB, half),
        };
        let state = if rate_ppb <= SYNCED_PPB { ClockState::Synced } else { ClockState::Coarse };
        let line = Mapping::new(timebase, Ticks(ticks), Nanos(nanos));
        self.mapping = Mapping { error: Nanos(error), rate_ppb, epoch, state, ..line };
        self.clock.publish(&self.mapping);
        state
    }

    /// What was known is not true any more: all begins with this reading, and when the next agrees it is used.
    fn start_over(&mut self, reading: &Reading, fault: ClockFault) -> ClockState {
        match fault {
            ClockFault::Jumped(_) => self.jumps += 1,
            ClockFault::Frozen if self.fault != Some(ClockFault::Frozen) || !self.doubt => self.freezes += 1,
            _ => {}
        }
        (self.steps, self.doubt, self.fault) = (self.steps + 1, true, Some(fault));
        self.points.clear();
        self.points.push_back(Point { ticks: reading.ticks.0, host: reading.middle(), half: self.half(reading) });
        let line = Mapping::new(self.nominal, reading.ticks, Nanos(reading.middle()));
        let epoch = self.mapping.epoch.wrapping_add(1);
        let error = Nanos(self.half(reading));
        self.mapping = Mapping { error, rate_ppb: NOMINAL_PPB, epoch, state: ClockState::Invalid, ..line };
        self.clock.publish(&self.mapping);
        ClockState::Invalid
    }

    /// The line of least squares through the points.
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
        // A window is minutes at most: with 2^40 ticks and as many nanoseconds this is below 2^125.
        let slope = ((n * xy_sum - x_sum * y_sum) << SHIFT).checked_div(spread)?;
        let multiplier = u64::try_from(slope).ok()?;
        let off = u128::from(multiplier.abs_diff(self.nominal.multiplier));
        if off * 1_000_000_000 > u128::from(self.nominal.multiplier) * u128::from(2 * NOMINAL_PPB) {
            return None;
        }
        let (x, _) = at(self.points.back()?);
        let y = ((y_sum << SHIFT) + slope * (n * x - x_sum)) / (n << SHIFT);
        // A reading may be as wrong as it is wide, and is as wrong as it is off the line. If all are so wrong as the
        // worst, in the worst way, then the slope is wrong by so much.
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

/// A line, of a slope that is sure to so many parts in a billion, through a time at the last point's ticks.
struct Fit {
    multiplier: u64,
    nanos: u64,
    ppb: u64,
    half: u64,
}
