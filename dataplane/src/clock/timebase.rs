//! How ticks become nanoseconds.

use crate::clock::ClockSource;
use crate::units::{Nanos, Ticks};

/// How the ticks of a clock become nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timebase {
    /// Whose ticks.
    pub source: ClockSource,
    /// The bits that the counter has: it wraps to 0 after this value.
    pub mask: u64,
    /// Nanoseconds of a tick, in units of 2^-32.
    pub(super) multiplier: u64,
}

/// The binary places of a multiplier.
pub(super) const SHIFT: u32 = 32;

impl Timebase {
    /// A counter of `khz` thousand ticks a second that wraps after `mask`. 0 kHz: no clock.
    pub fn new(source: ClockSource, khz: u64, mask: u64) -> Self {
        let multiplier = (1_000_000u64 << SHIFT).checked_div(khz).unwrap_or(0);
        Self { source: if multiplier == 0 { ClockSource::None } else { source }, mask, multiplier }
    }

    /// A counter that runs as this one does, and is another: it has these bits.
    #[must_use]
    pub const fn masked(self, source: ClockSource, mask: u64) -> Self {
        Self { source, mask, ..self }
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
        self.nanos(Ticks(delta))
    }

    /// What so many ticks are; at most what 64 bits can say.
    #[inline]
    pub fn nanos(&self, ticks: Ticks) -> Nanos {
        let nanos = (u128::from(ticks.0) * u128::from(self.multiplier)) >> SHIFT;
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How many ticks there are in a span.
    pub fn ticks(&self, span: Nanos) -> Ticks {
        match self.multiplier {
            0 => Ticks(0),
            multiplier => Ticks(((u128::from(span.0) << SHIFT) / u128::from(multiplier)) as u64),
        }
    }

    /// After what time the counter shows the same again; at most what 64 bits can say.
    pub fn period(&self) -> Nanos {
        let nanos = ((u128::from(self.mask) + 1) * u128::from(self.multiplier)) >> SHIFT;
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
