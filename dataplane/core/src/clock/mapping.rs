//! The mapping from a device counter to the system clock, and its publication to workers.

use std::fmt;

use crossbeam_utils::CachePadded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::timebase::SHIFT;
use crate::clock::{ClockSource, Timebase};
use crate::sync::{AtomicI64, AtomicU64, Ordering, fence};
use crate::units::{Nanos, Ticks};

/// How far the clock of a device can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClockState {
    /// The clock is not usable.
    Invalid,
    /// The clock was read, but the error of its frequency can be above one part per million. The first mappings use the
    /// nominal frequency, which may be wrong by 100 parts per million.
    Coarse,
    /// The frequency was measured with an error of at most one part per million.
    Synced,
    /// The latest reads have failed. The last good mapping is extrapolated.
    FreeRunning,
}

impl fmt::Display for ClockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid",
            Self::Coarse => "coarse",
            Self::Synced => "synced",
            Self::FreeRunning => "free_running",
        })
    }
}

/// A linear mapping from the ticks of a device to nanoseconds of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The source and the mask of the ticks, and the measured frequency.
    pub timebase: Timebase,
    /// The ticks at the reference point, extended to 64 bits.
    pub ticks: Ticks,
    /// The system clock at the reference point.
    pub nanos: Nanos,
    /// The maximum error of `nanos` at the reference point.
    pub error: Nanos,
    /// The maximum error of the rate (the slope of the mapping), in parts per billion.
    pub rate_ppb: u64,
    /// A number that changes when the synchronization starts over, for example after a jump of the counter. Stamps of
    /// different epochs must not be compared.
    pub epoch: u32,
    /// How far the mapping can be trusted.
    pub state: ClockState,
    /// Ticks per nanosecond, in units of 2^-32.
    pub(super) inverse: u64,
}

impl Mapping {
    /// Creates the mapping that passes through a reference point.
    pub(super) fn new(timebase: Timebase, ticks: Ticks, nanos: Nanos) -> Self {
        // The multiplier is in units of 2^-32 ns per tick, so the inverse in units of 2^-32 ticks per ns is 2^64 /
        // multiplier.
        let inverse = (1u128 << (2 * SHIFT)).checked_div(u128::from(timebase.multiplier)).unwrap_or(0);
        let inverse = u64::try_from(inverse).unwrap_or(u64::MAX);
        Self { timebase, ticks, nanos, error: Nanos(0), rate_ppb: 0, epoch: 0, state: ClockState::Invalid, inverse }
    }

    /// Returns the ticks at the time `now`, rounded down to a whole tick, and the time of this tick. `now` must not be
    /// before the reference point.
    #[inline]
    pub(super) fn at(&self, now: Nanos) -> (Ticks, Nanos) {
        let passed = now.0.saturating_sub(self.nanos.0);
        let ticks = ((u128::from(passed) * u128::from(self.inverse)) >> SHIFT) as u64;
        let nanos = self.timebase.nanos(Ticks(ticks)).0;
        (Ticks(self.ticks.0.wrapping_add(ticks)), Nanos(self.nanos.0.wrapping_add(nanos)))
    }

    /// Returns the time at which the counter showed `ticks`. This time must not be after `now`, and must be less than
    /// one counter period before `now`. After one period, the counter repeats its values.
    pub fn host(&self, ticks: Ticks, now: Nanos) -> Nanos {
        let (latest, when) = self.at(now);
        let age = latest.0.wrapping_sub(ticks.0) & self.timebase.mask;
        Nanos(when.0.saturating_sub(self.timebase.nanos(Ticks(age)).0))
    }
}

/// The mapping of a device's clock, shared with the workers. One thread publishes the mapping, and any number of
/// threads read it. A reader takes no lock. A reader waits only for its first mapping. If a read collides with a
/// publication, the reader keeps its old mapping and tries again later.
#[derive(Debug)]
pub struct DeviceClock {
    source: ClockSource,
    mask: u64,
    /// Odd while `words` is being changed.
    version: CachePadded<AtomicU64>,
    /// The fields of the mapping: `multiplier`, `ticks`, `nanos`, `error`, `rate_ppb`, and `epoch` together with
    /// `state`.
    words: [AtomicU64; 6],
    /// The offset that is added to the ticks. Only used for a wall clock that the device itself keeps. Such a clock may
    /// differ from the system's wall clock.
    offset: AtomicI64,
    /// Whether this clock is the system's own wall clock.
    is_system: bool,
}

impl DeviceClock {
    pub(super) fn new(mapping: &Mapping) -> Self {
        let clock = Self {
            source: mapping.timebase.source,
            mask: mapping.timebase.mask,
            version: CachePadded::new(AtomicU64::new(0)),
            words: Default::default(),
            offset: AtomicI64::new(0),
            is_system: false,
        };
        clock.publish(mapping);
        clock
    }

    /// Returns the source that stamps of this clock have while the clock is usable.
    pub fn source(&self) -> ClockSource {
        self.source
    }

    /// Marks the clock as the system's own wall clock, which needs no offset.
    pub(super) fn set_system(&mut self) {
        self.is_system = true;
    }

    /// Returns whether this clock is the system's own wall clock.
    #[inline]
    pub(super) fn is_system_clock(&self) -> bool {
        self.is_system
    }

    /// Returns the offset that is added to the ticks of a device's own wall clock.
    pub(super) fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    pub(super) fn set_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Publishes a mapping. Only the thread that owns the [`crate::clock::ClockSync`] calls this function.
    pub(super) fn publish(&self, mapping: &Mapping) {
        let words = [
            mapping.timebase.multiplier,
            mapping.ticks.0,
            mapping.nanos.0,
            mapping.error.0,
            mapping.rate_ppb,
            u64::from(mapping.epoch) << 8 | mapping.state as u64,
        ];
        // This is the seqlock of Boehm, "Can seqlocks get along with programming language memory models?" (2012).
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Returns the mapping if its version differs from `seen`, and stores the version in `seen`. Returns `None` if the
    /// version is equal, or if a publication is in progress.
    #[inline]
    pub fn read(&self, seen: &mut u64) -> Option<Mapping> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen || version % 2 == 1 {
            return None;
        }
        self.read_version(version, seen)
    }

    #[cold]
    fn read_version(&self, version: u64, seen: &mut u64) -> Option<Mapping> {
        let words = std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
        let [multiplier, ticks, nanos, error, rate_ppb, rest] = words;
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        *seen = version;
        let timebase = Timebase { source: self.source, mask: self.mask, multiplier };
        let state = match rest & 0xff {
            1 => ClockState::Coarse,
            2 => ClockState::Synced,
            3 => ClockState::FreeRunning,
            _ => ClockState::Invalid,
        };
        let line = Mapping::new(timebase, Ticks(ticks), Nanos(nanos));
        Some(Mapping { error: Nanos(error), rate_ppb, epoch: (rest >> 8) as u32, state, ..line })
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use std::sync::Arc;

    use super::*;

    /// Returns a mapping whose fields all have this value.
    fn uniform(value: u64) -> Mapping {
        let timebase = Timebase { source: ClockSource::Software, mask: u64::MAX, multiplier: value };
        let line = Mapping::new(timebase, Ticks(value), Nanos(value));
        Mapping { error: Nanos(value), rate_ppb: value, epoch: value as u32, state: ClockState::Synced, ..line }
    }

    #[test]
    fn reader_never_sees_parts_of_two_mappings() {
        loom::model(|| {
            let clock = Arc::new(DeviceClock::new(&uniform(1)));
            let writer = {
                let clock = clock.clone();
                loom::thread::spawn(move || clock.publish(&uniform(2)))
            };
            let mut seen = 0;
            for _ in 0..2 {
                if let Some(mapping) = clock.read(&mut seen) {
                    assert!([uniform(1), uniform(2)].contains(&mapping), "{mapping:?}");
                }
            }
            writer.join().unwrap();
            if seen < 4 {
                assert_eq!(clock.read(&mut seen), Some(uniform(2)));
            }
        });
    }
}
