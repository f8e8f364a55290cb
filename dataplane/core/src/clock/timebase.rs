//! Conversion of ticks to nanoseconds.

use crate::clock::ClockSource;
use crate::units::{Nanos, Ticks};

/// The conversion from the ticks of a clock to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timebase {
    /// The clock that the ticks come from.
    pub source: ClockSource,
    /// The mask of the counter's bits. The counter wraps to 0 after this value.
    pub mask: u64,
    /// Nanoseconds per tick, in units of 2^-32.
    pub(super) multiplier: u64,
}

/// The number of fractional bits of a multiplier.
pub(super) const SHIFT: u32 = 32;

impl Timebase {
    /// Returns the timebase of a counter with a frequency of `khz` that wraps after `mask`. If `khz` is 0, the source
    /// is [`ClockSource::None`].
    pub fn new(source: ClockSource, khz: u64, mask: u64) -> Self {
        let multiplier = (1_000_000u64 << SHIFT).checked_div(khz).unwrap_or(0);
        Self { source: if multiplier == 0 { ClockSource::None } else { source }, mask, multiplier }
    }

    /// The timebase that stands for no clock. Every difference is 0.
    pub const NONE: Self = Self { source: ClockSource::None, mask: u64::MAX, multiplier: 0 };

    /// Returns the time between two ticks, across at most one wrap of the counter. A difference of more than half of
    /// the counter's range means that `to` is earlier than `from`. The result is then 0.
    #[inline]
    pub fn between(&self, from: Ticks, to: Ticks) -> Nanos {
        let delta = to.0.wrapping_sub(from.0) & self.mask;
        if delta > self.mask / 2 {
            return Nanos(0);
        }
        self.nanos(Ticks(delta))
    }

    /// Converts a number of ticks to nanoseconds. The result saturates.
    #[inline]
    pub fn nanos(&self, ticks: Ticks) -> Nanos {
        let nanos = (u128::from(ticks.0) * u128::from(self.multiplier)) >> SHIFT;
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Converts a time span to ticks.
    pub fn ticks(&self, span: Nanos) -> Ticks {
        match self.multiplier {
            0 => Ticks(0),
            multiplier => Ticks(((u128::from(span.0) << SHIFT) / u128::from(multiplier)) as u64),
        }
    }

    /// Returns the time after which the counter repeats. The result saturates.
    pub fn period(&self) -> Nanos {
        let nanos = ((u128::from(self.mask) + 1) * u128::from(self.multiplier)) >> SHIFT;
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
