//! The system clock of the program, which is the reference for all times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{ClockSource, Timebase};
use crate::units::{Nanos, Ticks};

/// The system clock: the time stamp counter (TSC) of the processor, or `CLOCK_MONOTONIC` if there is no usable TSC. In
/// a test, the system clock can be a virtual clock that the test advances.
#[derive(Clone, Debug)]
pub struct HostClock(HostClockKind);

#[derive(Clone, Debug)]
enum HostClockKind {
    Counter(quanta::Clock, Timebase),
    Virtual(Arc<AtomicU64>),
}

impl HostClock {
    /// Creates a clock that reads the TSC, or `CLOCK_MONOTONIC` if there is no usable TSC. Reading the TSC needs no
    /// system call.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        // Convert a large number of ticks, so that the frequency has nine significant digits.
        const SPAN: u64 = 1 << 32;
        let nanos = clock.delta_as_nanos(0, SPAN).max(1);
        let khz = (u128::from(SPAN) * 1_000_000 / u128::from(nanos)) as u64;
        Self(HostClockKind::Counter(clock, Timebase::new(ClockSource::Software, khz, u64::MAX)))
    }

    /// Creates a virtual clock that only [`HostClock::advance`] moves. One tick is one nanosecond.
    pub fn manual() -> Self {
        Self(HostClockKind::Virtual(Arc::default()))
    }

    /// Returns the current ticks.
    #[inline]
    pub fn now(&self) -> Ticks {
        match &self.0 {
            HostClockKind::Counter(clock, _) => Ticks(clock.raw()),
            HostClockKind::Virtual(ticks) => Ticks(ticks.load(Ordering::Relaxed)),
        }
    }

    /// Returns the current time in nanoseconds since the start of the machine, or since the creation of a virtual
    /// clock. All stamps use this time.
    #[inline]
    pub fn nanos(&self) -> Nanos {
        match &self.0 {
            HostClockKind::Counter(clock, timebase) => timebase.nanos(Ticks(clock.raw())),
            HostClockKind::Virtual(ticks) => Nanos(ticks.load(Ordering::Relaxed)),
        }
    }

    /// Advances a virtual clock and all its clones. Has no effect on other clocks.
    pub fn advance(&self, by: Nanos) {
        if let HostClockKind::Virtual(ticks) = &self.0 {
            ticks.fetch_add(by.0, Ordering::Relaxed);
        }
    }

    /// Returns the conversion from ticks to nanoseconds.
    pub fn timebase(&self) -> Timebase {
        match &self.0 {
            HostClockKind::Counter(_, timebase) => *timebase,
            HostClockKind::Virtual(_) => Timebase::new(ClockSource::Virtual, 1_000_000, u64::MAX),
        }
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self::new()
    }
}
