//! Clocks: what a tick is, where it comes from, and what a difference of two is in nanoseconds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::units::{Nanos, Ticks};

/// Where a stamp comes from. Every latency that is reported names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClockSource {
    /// The device's own counter, read with the completion.
    DeviceTicks,
    /// The device's wall clock, read with the completion.
    DeviceWallclock,
    /// The processor's time stamp counter, read once a burst.
    Software,
    /// A clock that a test moves by hand.
    Virtual,
    /// None: nothing was stamped.
    None,
}

impl fmt::Display for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeviceTicks => "device_ticks",
            Self::DeviceWallclock => "device_wallclock",
            Self::Software => "software",
            Self::Virtual => "virtual",
            Self::None => "none",
        })
    }
}

/// A moment of a clock, with the clock that it was read from: stamps of different sources do not compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The count.
    pub ticks: Ticks,
    /// Whose.
    pub source: ClockSource,
}

/// How the ticks of a clock become nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timebase {
    /// Whose ticks.
    pub source: ClockSource,
    /// The bits that the counter has: it wraps to 0 after this value.
    pub mask: u64,
    multiplier: u64,
}

impl Timebase {
    const SHIFT: u32 = 32;

    /// A counter of `khz` thousand ticks a second that wraps after `mask`. 0 kHz: no clock.
    pub fn new(source: ClockSource, khz: u64, mask: u64) -> Self {
        let multiplier = (1_000_000u64 << Self::SHIFT).checked_div(khz).unwrap_or(0);
        Self { source: if multiplier == 0 { ClockSource::None } else { source }, mask, multiplier }
    }

    /// No clock: every difference is 0.
    pub const NONE: Self = Self { source: ClockSource::None, mask: u64::MAX, multiplier: 0 };

    /// The time from one tick to a later one, across at most one wrap of the counter. A difference of more than half
    /// the counter's range means that `to` is the earlier: 0.
    #[inline]
    pub fn between(&self, from: Ticks, to: Ticks) -> Nanos {
        let delta = to.0.wrapping_sub(from.0) & self.mask;
        if delta > self.mask / 2 {
            return Nanos(0);
        }
        Nanos(((u128::from(delta) * u128::from(self.multiplier)) >> Self::SHIFT) as u64)
    }

    /// How many ticks there are in a span.
    pub fn ticks(&self, span: Nanos) -> Ticks {
        match self.multiplier {
            0 => Ticks(0),
            multiplier => Ticks(((u128::from(span.0) << Self::SHIFT) / u128::from(multiplier)) as u64),
        }
    }
}

/// A clock of the host: the time stamp counter, or one that a test moves.
#[derive(Clone, Debug)]
pub struct HostClock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Counter(quanta::Clock, Timebase),
    Virtual(Arc<AtomicU64>),
}

impl HostClock {
    /// The processor's counter, or what the system has where it has none. Reading it is no system call.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        // What a good second of ticks is in nanoseconds tells the frequency to nine digits.
        const SPAN: u64 = 1 << 32;
        let nanos = clock.delta_as_nanos(0, SPAN).max(1);
        let khz = (u128::from(SPAN) * 1_000_000 / u128::from(nanos)) as u64;
        Self(Kind::Counter(clock, Timebase::new(ClockSource::Software, khz, u64::MAX)))
    }

    /// A clock that stands still until its [`HostClock::advance`] is called. One tick is one nanosecond.
    pub fn manual() -> Self {
        Self(Kind::Virtual(Arc::default()))
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Ticks {
        match &self.0 {
            Kind::Counter(clock, _) => Ticks(clock.raw()),
            Kind::Virtual(ticks) => Ticks(ticks.load(Ordering::Relaxed)),
        }
    }

    /// Moves a manual clock, and all its clones, forward. Does nothing to the processor's.
    pub fn advance(&self, by: Nanos) {
        if let Kind::Virtual(ticks) = &self.0 {
            ticks.fetch_add(by.0, Ordering::Relaxed);
        }
    }

    /// How its ticks become nanoseconds.
    pub fn timebase(&self) -> Timebase {
        match &self.0 {
            Kind::Counter(_, timebase) => *timebase,
            Kind::Virtual(_) => Timebase::new(ClockSource::Virtual, 1_000_000, u64::MAX),
        }
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wrap_is_crossed_and_a_step_back_is_zero() {
        let base = Timebase::new(ClockSource::DeviceTicks, 1_000_000, 0xffff);
        assert_eq!(base.between(Ticks(0xfff0), Ticks(0x10)), Nanos(0x20));
        assert_eq!(base.between(Ticks(0x10), Ticks(0xfff0)), Nanos(0));
    }

    #[test]
    fn without_a_frequency_there_is_no_clock() {
        let base = Timebase::new(ClockSource::DeviceTicks, 0, u64::MAX);
        assert_eq!((base.source, base.between(Ticks(1), Ticks(1000))), (ClockSource::None, Nanos(0)));
    }

    #[test]
    fn a_manual_clock_moves_by_hand_with_its_clones() {
        let clock = HostClock::manual();
        let other = clock.clone();
        let before = clock.now();
        other.advance(Nanos(1_500));
        assert_eq!(clock.timebase().between(before, clock.now()), Nanos(1_500));
    }

    proptest! {
        /// Against exact arithmetic: the multiplier loses less than one part in a million.
        #[test]
        fn nanoseconds_are_right(khz in 1_000u64..10_000_000, delta in 0u64..1 << 52) {
            let base = Timebase::new(ClockSource::DeviceTicks, khz, u64::MAX);
            let exact = u128::from(delta) * 1_000_000 / u128::from(khz);
            let got = u128::from(base.between(Ticks(5), Ticks(5 + delta)).0);
            prop_assert!(got.abs_diff(exact) <= exact / 1_000_000 + 1, "{got} and not {exact}");
        }
    }
}
