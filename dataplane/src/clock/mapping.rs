//! What the counter of a device is on the host's line of time, and how workers come to know.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};

use crate::clock::timebase::SHIFT;
use crate::clock::{ClockSource, Timebase};
use crate::units::{Nanos, Ticks};

/// How much the clock of a device can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockState {
    /// Not at all: its stamps are not used.
    Invalid,
    /// It was read, and its frequency is as the device says; a crystal may be 100 parts in a million away from that.
    Coarse,
    /// Its frequency was measured, to a part in a million.
    Synced,
    /// It could not be read the last time. It was well before, and goes on as it did.
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

/// A straight line from the ticks of a device to the host's nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Whose ticks, of how many bits, and what a tick is as far as was measured.
    pub timebase: Timebase,
    /// A count, as if the counter had 64 bits.
    pub ticks: Ticks,
    /// When that was.
    pub nanos: Nanos,
    /// How far from the truth that is at most.
    pub error: Nanos,
    /// How far from the truth its slope is at most, in parts in a billion.
    pub rate_ppb: u64,
    /// Changes where the counter starts anew, or jumps: stamps before and after have nothing to do with each other.
    pub epoch: u32,
    /// Whether to use it.
    pub state: ClockState,
    /// Ticks of a nanosecond, in units of 2^-32.
    pub(super) inverse: u64,
}

impl Mapping {
    /// A line through a point.
    pub(super) fn new(timebase: Timebase, ticks: Ticks, nanos: Nanos) -> Self {
        // 2^64 over a multiplier, in which a nanosecond is 2^32.
        let inverse = (1u128 << (2 * SHIFT)).checked_div(u128::from(timebase.multiplier)).unwrap_or(0);
        let inverse = u64::try_from(inverse).unwrap_or(u64::MAX);
        Self { timebase, ticks, nanos, error: Nanos(0), rate_ppb: 0, epoch: 0, state: ClockState::Invalid, inverse }
    }

    /// Where the counter is at a time not before the line's point, to a tick or so, and when exactly it is there.
    #[inline]
    pub(super) fn at(&self, now: Nanos) -> (Ticks, Nanos) {
        let passed = now.0.saturating_sub(self.nanos.0);
        let ticks = ((u128::from(passed) * u128::from(self.inverse)) >> SHIFT) as u64;
        let nanos = self.timebase.nanos(Ticks(ticks)).0;
        (Ticks(self.ticks.0.wrapping_add(ticks)), Nanos(self.nanos.0.wrapping_add(nanos)))
    }

    /// When the counter showed these ticks, given that it was not after `now` and less than a period before: ticks
    /// are told apart from those a period later by that alone.
    pub fn host(&self, ticks: Ticks, now: Nanos) -> Nanos {
        let (latest, when) = self.at(now);
        let age = latest.0.wrapping_sub(ticks.0) & self.timebase.mask;
        Nanos(when.0.saturating_sub(self.timebase.nanos(Ticks(age)).0))
    }
}

/// The clock of a device as its workers see it: one thread publishes what it is, any number read it. A reader neither
/// locks nor waits, but for its first line: where it comes at a bad moment it keeps what it has and looks again later.
#[derive(Debug)]
pub struct DeviceClock {
    source: ClockSource,
    mask: u64,
    /// Odd while the words change.
    version: CachePadded<AtomicU64>,
    /// Multiplier, ticks, nanoseconds, their errors, and epoch and state.
    words: [AtomicU64; 6],
    /// What is added to the ticks of a wall clock that is not the host's: see [`crate::clock::Stamper`].
    offset: AtomicI64,
    /// It is the host's own wall clock.
    hosts: bool,
}

impl DeviceClock {
    pub(super) fn new(mapping: &Mapping) -> Self {
        let clock = Self {
            source: mapping.timebase.source,
            mask: mapping.timebase.mask,
            version: CachePadded::new(AtomicU64::new(0)),
            words: Default::default(),
            offset: AtomicI64::new(0),
            hosts: false,
        };
        clock.publish(mapping);
        clock
    }

    /// What its stamps count where they can be used.
    pub fn source(&self) -> ClockSource {
        self.source
    }

    /// Says that it is the host's own wall clock: there is nothing to be added to it.
    pub(super) fn set_hosts(&mut self) {
        self.hosts = true;
    }

    /// Whether it is the host's own wall clock.
    #[inline]
    pub(super) fn is_hosts(&self) -> bool {
        self.hosts
    }

    /// What is added to the ticks of a wall clock that is not the host's.
    pub(super) fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    pub(super) fn set_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Called by one thread, the one that owns the [`crate::clock::ClockSync`].
    pub(super) fn publish(&self, mapping: &Mapping) {
        let words = [
            mapping.timebase.multiplier,
            mapping.ticks.0,
            mapping.nanos.0,
            mapping.error.0,
            mapping.rate_ppb,
            u64::from(mapping.epoch) << 8 | mapping.state as u64,
        ];
        // The seqlock of Boehm, "Can seqlocks get along with programming language memory models?" (2012).
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// What it is now, where that is not the version that was seen last. One try: it may come at a bad moment.
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
