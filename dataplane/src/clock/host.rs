//! The clock of the host, which all time is told by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{ClockSource, Timebase};
use crate::units::{Nanos, Ticks};

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

    /// Now, in nanoseconds on the line of time that all stamps are on. It begins when the machine did, or the manual
    /// clock.
    #[inline]
    pub fn nanos(&self) -> Nanos {
        match &self.0 {
            Kind::Counter(clock, timebase) => timebase.nanos(Ticks(clock.raw())),
            Kind::Virtual(ticks) => Nanos(ticks.load(Ordering::Relaxed)),
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
