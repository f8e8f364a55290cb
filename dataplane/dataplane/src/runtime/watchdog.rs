//! The watchdog: notices workers that make no progress, and describes what their threads do.

use std::fs;
use std::time::{Duration, Instant};

/// The unit of processor times in `/proc`: `USER_HZ`, which is 100 on x86-64 and aarch64.
const TICKS_PER_SECOND: f64 = 100.0;

/// A worker that the watchdog watches.
struct Watched {
    /// The number of loops at the last progress.
    loops: u64,
    /// The time of the last progress.
    since: Instant,
    /// The processor time of the thread, read when the worker had made no progress for half of the limit, and the time
    /// of this reading.
    middle: Option<(Duration, Instant)>,
    is_stalled: bool,
}

/// Notices workers that publish no new number of loops for a time.
pub(crate) struct Watchdog {
    limit: Duration,
    workers: Vec<Watched>,
}

/// A change that the watchdog has noticed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchdogEvent {
    /// The worker with this number has made no progress for this time.
    Stalled(usize, Duration),
    /// The worker with this number makes progress again, after this time without progress.
    Resumed(usize, Duration),
}

impl Watchdog {
    /// Creates a watchdog for a number of workers, with the maximum time without progress.
    pub(crate) fn new(limit: Duration, workers: usize, now: Instant) -> Self {
        let watched = |_| Watched { loops: 0, since: now, middle: None, is_stalled: false };
        Self { limit, workers: (0..workers).map(watched).collect() }
    }

    /// Compares the number of loops of each worker with the number at the last call. `loops` has `None` for each worker
    /// that has left its loop. The watchdog does not watch such a worker. `thread` returns the thread of a worker.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        loops: impl Iterator<Item = Option<u64>>,
        thread: impl Fn(usize) -> i32,
    ) -> Vec<WatchdogEvent> {
        let mut events = Vec::new();
        for (number, (watched, loops)) in self.workers.iter_mut().zip(loops).enumerate() {
            let Some(loops) = loops else {
                *watched = Watched { loops: watched.loops, since: now, middle: None, is_stalled: false };
                continue;
            };
            let waited = now.saturating_duration_since(watched.since);
            if loops != watched.loops {
                if watched.is_stalled {
                    events.push(WatchdogEvent::Resumed(number, waited));
                }
                *watched = Watched { loops, since: now, middle: None, is_stalled: false };
            } else if !watched.is_stalled && waited >= self.limit {
                watched.is_stalled = true;
                events.push(WatchdogEvent::Stalled(number, waited));
            } else if watched.middle.is_none() && waited >= self.limit / 2 {
                watched.middle = processor_time(thread(number)).map(|time| (time, now));
            }
        }
        events
    }

    /// Describes the state of the thread of a worker that makes no progress.
    pub(crate) fn describe(&self, worker: usize, thread: i32) -> String {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok();
        let state = read("stat").and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
        let mut text = match state {
            Some('R') => format!("thread {thread} runs"),
            Some(state @ ('D' | 'S')) => format!("thread {thread} waits in the kernel (state {state})"),
            Some(state) => format!("thread {thread} has the state {state}"),
            None => return format!("thread {thread} has no state in /proc"),
        };
        let middle = self.workers.get(worker).and_then(|watched| watched.middle);
        if let Some(((before, at), used)) = middle.zip(processor_time(thread)) {
            let (used, passed) = (used.saturating_sub(before), at.elapsed());
            text += &format!("; {:.1} s of processor time in {:.1} s", used.as_secs_f64(), passed.as_secs_f64());
        }
        // The kernel shows the function only to privileged users, and only if the thread waits.
        if let Some(function) = read("wchan").filter(|function| !function.is_empty() && function != "0") {
            text += &format!("; it waits in {function}");
        }
        let frames = read("stack").unwrap_or_default();
        let frames: Vec<&str> = frames.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        if !frames.is_empty() {
            text += &format!("; kernel stack: {}", frames.join(" < "));
        }
        text
    }
}

/// Returns the processor time that a thread of this process has used, from `/proc`.
fn processor_time(thread: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // The name of the thread may contain spaces. The fields after the name start with the state, which is field 3.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let (user, system) = (ticks(14)?, ticks(15)?);
    Some(Duration::from_secs_f64((user + system) as f64 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stall_and_its_end_are_reported_once() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut watchdog = Watchdog::new(second * 10, 2, start);
        let mut check =
            |at: u32, loops: [u64; 2]| watchdog.check(start + second * at, loops.into_iter().map(Some), |_| 0);
        assert_eq!(check(5, [1, 1]), []);
        assert_eq!(check(14, [1, 2]), []);
        assert_eq!(check(15, [1, 3]), [WatchdogEvent::Stalled(0, second * 10)]);
        assert_eq!(check(30, [1, 4]), []);
        assert_eq!(check(31, [2, 4]), [WatchdogEvent::Resumed(0, second * 26)]);
        assert_eq!(check(40, [3, 4]), [WatchdogEvent::Stalled(1, second * 10)]);
    }

    #[test]
    fn worker_that_has_left_its_loop_is_not_stalled() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut watchdog = Watchdog::new(second * 10, 2, start);
        let mut check =
            |at: u32, loops: [Option<u64>; 2]| watchdog.check(start + second * at, loops.into_iter(), |_| 0);
        assert_eq!(check(9, [None, Some(0)]), []);
        assert_eq!(check(10, [None, Some(0)]), [WatchdogEvent::Stalled(1, second * 10)]);
        // If a stalled worker ends, the watchdog does not report that the worker has resumed.
        assert_eq!(check(30, [None, None]), []);
    }

    #[test]
    fn running_thread_is_described() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(2), 1, start);
        watchdog.check(start + Duration::from_secs(1), [Some(0)].into_iter(), |_| thread);
        let text = watchdog.describe(0, thread);
        assert!(
            text.starts_with(&format!("thread {thread} runs; 0.")) && text.contains(" s of processor time in "),
            "{text}"
        );
        assert_eq!(watchdog.describe(0, 0), "thread 0 has no state in /proc");
    }
}
