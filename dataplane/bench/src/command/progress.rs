//! Progress on standard error, if it is a terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

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
            eprint!("\r\x1b[K{part}{separator}{detail}, about {left} left");
        }
    }

    /// Removes the progress line.
    pub(super) fn clear(&self) {
        if self.is_watched {
            eprint!("\r\x1b[K");
        }
    }
}
