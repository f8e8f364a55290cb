//! Timestamps with their clock source.

use std::cmp::Ordering;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// The source of a stamp. Every reported latency names its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClockSource {
    /// No stamp was taken.
    None,
    /// The device's counter, read with the completion.
    DeviceTicks,
    /// The device's wall clock, read with the completion.
    DeviceWallclock,
    /// The system clock: the processor's time stamp counter, or `CLOCK_MONOTONIC` if there is no usable counter.
    Software,
    /// A virtual clock that a test advances.
    Virtual,
    /// Several sources. Only reports use this value, never a stamp.
    Mixed,
}

impl ClockSource {
    /// The sources that a stamp can have.
    pub const ALL: [Self; 5] = [Self::None, Self::DeviceTicks, Self::DeviceWallclock, Self::Software, Self::Virtual];

    /// Returns the name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::DeviceTicks => "device_ticks",
            Self::DeviceWallclock => "device_wallclock",
            Self::Software => "software",
            Self::Virtual => "virtual",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for ClockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A time of the system clock in nanoseconds, and the clock that took the original timestamp. Both values are packed
/// into 64 bits. Comparing or subtracting stamps of different sources returns `None`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The number of low bits for the source. The other bits hold the nanoseconds, enough for 73 years.
    const SOURCE_BITS: u32 = 3;
    const SOURCE: u64 = (1 << Self::SOURCE_BITS) - 1;

    /// The value for a missing stamp.
    pub const NONE: Self = Self(0);

    /// Creates a stamp. [`ClockSource::Mixed`] gives [`Stamp::NONE`].
    #[inline]
    pub const fn new(nanos: Nanos, source: ClockSource) -> Self {
        match source {
            ClockSource::None | ClockSource::Mixed => Self::NONE,
            _ => Self(nanos.0 << Self::SOURCE_BITS | source as u64),
        }
    }

    /// Returns the time in nanoseconds of the system clock, independent of the source. 0 if no stamp was taken.
    #[inline]
    pub const fn nanos(self) -> Nanos {
        Nanos(self.0 >> Self::SOURCE_BITS)
    }

    /// Returns the clock source.
    #[inline]
    pub fn source(self) -> ClockSource {
        ClockSource::ALL[((self.0 & Self::SOURCE) as usize).min(ClockSource::ALL.len() - 1)]
    }

    /// Returns the time since an earlier stamp of the same source, or 0 if `earlier` is the later stamp. Returns `None`
    /// if the sources differ or no stamp was taken.
    #[inline]
    pub const fn since(self, earlier: Self) -> Option<Nanos> {
        if (self.0 ^ earlier.0) & Self::SOURCE != 0 || self.0 & Self::SOURCE == 0 {
            return None;
        }
        Some(Nanos(self.0.saturating_sub(earlier.0) >> Self::SOURCE_BITS))
    }
}

impl Default for Stamp {
    fn default() -> Self {
        Self::NONE
    }
}

impl PartialOrd for Stamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        ((self.0 ^ other.0) & Self::SOURCE == 0).then(|| self.0.cmp(&other.0))
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns ({})", self.nanos(), self.source())
    }
}
