//! A moment, and the clock that said so.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Where a stamp comes from. Every latency that is reported names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClockSource {
    /// None: nothing was stamped.
    None,
    /// The device's own counter, read with the completion.
    DeviceTicks,
    /// The device's wall clock, read with the completion.
    DeviceWallclock,
    /// The processor's time stamp counter, read once a burst.
    Software,
    /// A clock that a test moves by hand.
    Virtual,
    /// Several of these. No stamp has it; a report may.
    Mixed,
}

impl ClockSource {
    /// Those that a stamp can have.
    pub const ALL: [Self; 5] = [Self::None, Self::DeviceTicks, Self::DeviceWallclock, Self::Software, Self::Virtual];

    /// The name that reports use.
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

/// A moment on the host's line of time, with the clock that it was read from, in 64 bits. Stamps of different sources
/// do not compare: neither is before the other, and there is no time between them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The low bits hold the source, the others the nanoseconds: enough for 73 years.
    const SOURCE_BITS: u32 = 3;
    const SOURCE: u64 = (1 << Self::SOURCE_BITS) - 1;

    /// No stamp was taken.
    pub const NONE: Self = Self(0);

    /// A moment of a clock. [`ClockSource::Mixed`] is none.
    #[inline]
    pub const fn new(nanos: Nanos, source: ClockSource) -> Self {
        match source {
            ClockSource::None | ClockSource::Mixed => Self::NONE,
            _ => Self(nanos.0 << Self::SOURCE_BITS | source as u64),
        }
    }

    /// When: nanoseconds on the host's line of time, whoever said so. 0 where nothing was stamped.
    #[inline]
    pub const fn nanos(self) -> Nanos {
        Nanos(self.0 >> Self::SOURCE_BITS)
    }

    /// Who said so.
    #[inline]
    pub fn source(self) -> ClockSource {
        ClockSource::ALL[((self.0 & Self::SOURCE) as usize).min(ClockSource::ALL.len() - 1)]
    }

    /// The time since an earlier stamp of the same source; 0 where that is the later one. `None`: the sources differ, or
    /// nothing was stamped.
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
