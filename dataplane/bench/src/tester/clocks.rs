//! Compares the clocks of the host during a trial. A step of a clock would change the latencies and the rates of the
//! trial unnoticed.

use dataplane::clock::HostClock;
use rustix::time::{ClockId, clock_gettime};

/// Two clocks may differ by this time between two readings, in nanoseconds.
const TOLERANCE: u64 = 1_000_000;
/// In addition, two clocks may differ by the time between the readings, divided by this number. NTP changes the
/// frequency of `CLOCK_MONOTONIC` by up to 1/2000, and the frequency of the TSC is measured.
const DRIFT: u64 = 1_000;
/// The time between two readings during a trial, in nanoseconds.
const INTERVAL: u64 = 1_000_000_000;
/// The number of attempts of a reading.
const ATTEMPTS: usize = 8;

/// The times of the clocks of the host at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// The system clock, from which the transmit times are.
    pub system: u64,
    /// `CLOCK_MONOTONIC`, which never steps.
    pub monotonic: u64,
    /// The wall clock (`CLOCK_REALTIME`), from which timestamps of the kernel are.
    pub wall: u64,
}

impl HostTimes {
    /// Reads the clocks. Of several attempts, uses the attempt that took the shortest time, because the thread may have
    /// paused in the others.
    pub fn read(clock: &HostClock) -> Self {
        let nanos = |id| {
            let time = clock_gettime(id);
            time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
        };
        let attempt = |_| {
            let before = clock.nanos().0;
            let (monotonic, wall) = (nanos(ClockId::Monotonic), nanos(ClockId::Realtime));
            let width = clock.nanos().0.saturating_sub(before);
            (width, Self { system: before + width / 2, monotonic, wall })
        };
        (0..ATTEMPTS).map(attempt).min_by_key(|(width, _)| *width).map(|(_, times)| times).unwrap_or_default()
    }
}

/// The largest step of each clock in a trial, in nanoseconds. A step forward is positive. 0 means no step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockSteps {
    /// The step of the system clock.
    pub system: i64,
    /// The step of the wall clock.
    pub wall: i64,
}

/// Detects steps: compares the changes of the clocks between two readings with the change of `CLOCK_MONOTONIC`.
pub(super) struct ClockWatch<'a> {
    read: &'a mut dyn FnMut() -> HostTimes,
    last: HostTimes,
    steps: ClockSteps,
}

impl<'a> ClockWatch<'a> {
    /// Reads the clocks for the first time.
    pub(super) fn start(read: &'a mut dyn FnMut() -> HostTimes) -> Self {
        let last = read();
        Self { read, last, steps: ClockSteps::default() }
    }

    /// Compares the clocks if the last reading is long ago. `now` is the time of the system clock.
    #[inline]
    pub(super) fn check_at(&mut self, now: u64) {
        if now.wrapping_sub(self.last.system) > INTERVAL {
            self.check();
        }
    }

    /// Compares the clocks. Returns the largest steps so far.
    pub(super) fn check(&mut self) -> ClockSteps {
        let (now, last) = ((self.read)(), self.last);
        let elapsed = now.monotonic.saturating_sub(last.monotonic);
        let allowed = TOLERANCE + elapsed / DRIFT;
        let step = |now: u64, last: u64, largest: &mut i64| {
            let step = now.wrapping_sub(last).wrapping_sub(elapsed).cast_signed();
            if step.unsigned_abs() > allowed.max(largest.unsigned_abs()) {
                *largest = step;
            }
        };
        step(now.system, last.system, &mut self.steps.system);
        step(now.wall, last.wall, &mut self.steps.wall);
        self.last = now;
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns the steps of a trial with these readings. Each reading has the times of the system clock, of
    /// `CLOCK_MONOTONIC` and of the wall clock.
    fn steps(readings: &[[u64; 3]]) -> ClockSteps {
        let mut readings = readings.iter().map(|[system, monotonic, wall]| HostTimes {
            system: *system,
            monotonic: *monotonic,
            wall: *wall,
        });
        let count = readings.len();
        let mut read = || readings.next().unwrap();
        let mut watch = ClockWatch::start(&mut read);
        (1..count).map(|_| watch.check()).last().unwrap()
    }

    #[test]
    fn step_of_a_clock_is_found_with_its_direction() {
        let start = [100, 50, 1_700_000_000 * SECOND];
        let later = |by: u64| start.map(|time| time + by);
        assert_eq!(steps(&[start, later(SECOND)]), ClockSteps::default());
        let [system, monotonic, wall] = later(SECOND);
        let expected = ClockSteps { system: 37 * SECOND as i64, wall: 0 };
        assert_eq!(steps(&[start, [system + 37 * SECOND, monotonic, wall]]), expected);
        let expected = ClockSteps { system: 0, wall: -5_000_000 };
        assert_eq!(steps(&[start, [system, monotonic, wall - 5_000_000]]), expected);
        // A step during a trial is also found if the clock steps back before the end.
        let expected = ClockSteps { system: -(SECOND as i64), wall: 0 };
        assert_eq!(steps(&[later(SECOND), [start[0], monotonic, wall], later(SECOND)]), expected);
    }

    /// NTP changes the frequency of a clock slowly. This is no step.
    #[test]
    fn drift_is_no_step() {
        let start = [0; 3];
        let hour = 3_600 * SECOND;
        let ntp = hour + hour / 2_000;
        assert_eq!(steps(&[start, [hour, ntp, ntp]]), ClockSteps::default());
        // Two readings that take up to a millisecond.
        assert_eq!(steps(&[start, [1_000_000, 0, 1_000_000]]), ClockSteps::default());
        assert_eq!(steps(&[start, [1_000_001, 0, 0]]), ClockSteps { system: 1_000_001, wall: 0 });
    }

    #[test]
    fn clocks_of_this_host_are_read() {
        let clock = HostClock::new();
        let mut read = || HostTimes::read(&clock);
        let mut watch = ClockWatch::start(&mut read);
        let first = watch.last;
        // No reading is due before the interval has passed.
        watch.check_at(first.system + INTERVAL);
        assert_eq!(watch.last, first);
        watch.check_at(first.system + INTERVAL + 1);
        assert!(watch.last.monotonic > first.monotonic && watch.last.wall > SECOND, "{:?}", watch.last);
    }
}
