//! Progress on standard error, if it is a terminal. While a terminal takes no output, for example after Ctrl-S,
//! the progress is left out, so the measurement is not delayed.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dataplane_core::stderr;

use super::threads::use_all_cores;

/// The progress of a run with several parts.
pub(super) struct Progress {
    is_watched: bool,
    begin: Instant,
    /// The sum of the expected times of the parts that are not done, in seconds.
    left: f64,
    /// The sum of the expected times of the parts that are done, in seconds.
    done: f64,
    /// The name of the current part.
    part: String,
}

impl Progress {
    /// Creates the progress of a run that takes about `expected` seconds.
    pub(super) fn new(expected: f64) -> Self {
        let is_watched = io::stderr().is_terminal();
        Self { is_watched, begin: Instant::now(), left: expected, done: 0.0, part: String::new() }
    }

    /// Starts a part.
    pub(super) fn start(&mut self, part: String) {
        self.part = part;
        self.show("");
    }

    /// Ends a part, which was expected to take `expected` seconds.
    pub(super) fn end(&mut self, expected: f64) {
        self.done += expected;
        self.left = (self.left - expected).max(0.0);
    }

    /// Returns the time that is left: the expected times of the parts that are not done, multiplied by a factor. The
    /// factor shows how much slower or faster than expected the finished parts were.
    fn remaining(&self) -> Duration {
        let scale = if self.done > 0.0 { self.begin.elapsed().as_secs_f64() / (self.done + 1.0) } else { 1.0 };
        Duration::from_secs_f64((self.left * scale.clamp(0.2, 20.0)).round())
    }

    /// Replaces the progress line.
    pub(super) fn show(&self, detail: &str) {
        if self.is_watched {
            let (part, left) = (&self.part, humantime::format_duration(self.remaining()));
            let separator = if detail.is_empty() { "" } else { ": " };
            stderr::write_unless_full(&format!("\r\x1b[K{part}{separator}{detail}, about {left} left"));
        }
    }

    /// Removes the progress line.
    pub(super) fn clear(&self) {
        if self.is_watched {
            stderr::write_unless_full("\r\x1b[K");
        }
    }
}

/// Returns the remaining time of a run that takes about `expected` in total, in whole seconds. The result is at least
/// `least`.
pub(super) fn time_left(expected: Duration, elapsed: Duration, least: Duration) -> Duration {
    Duration::from_secs_f64(expected.saturating_sub(elapsed).max(least).as_secs_f64().ceil())
}

/// The progress of one trial, which a thread shows until this value is dropped. The thread of the tester prints nothing
/// during a trial.
pub(super) struct TrialProgress(Option<(Sender<()>, JoinHandle<()>)>);

impl TrialProgress {
    /// Shows the progress. `part` describes the trial, and `expected` is the time until the end of the run.
    pub(super) fn start(part: String, expected: Duration) -> Self {
        /// The time between two updates of the line.
        const UPDATE: Duration = Duration::from_millis(500);
        if !io::stderr().is_terminal() {
            return Self(None);
        }
        let (end, ended) = channel();
        let show = move || {
            use_all_cores();
            let begin = Instant::now();
            loop {
                let left = humantime::format_duration(time_left(expected, begin.elapsed(), Duration::ZERO));
                stderr::write_unless_full(&format!("\r\x1b[K{part}, about {left} left"));
                if ended.recv_timeout(UPDATE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            stderr::write_unless_full("\r\x1b[K");
        };
        Self(Some((end, thread::spawn(show))))
    }
}

impl Drop for TrialProgress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // The thread only prints, so its failure does not matter.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_never_shorter_than_the_next_trial() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(time_left(seconds(10.0), seconds(2.5), seconds(1.0)), seconds(8.0));
        assert_eq!(time_left(seconds(10.0), seconds(12.0), seconds(1.0)), seconds(1.0));
        assert_eq!(time_left(seconds(10.0), seconds(10.0), Duration::ZERO), Duration::ZERO);
    }
}
