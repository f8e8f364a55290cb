//! Writes to standard error. The functions ignore errors, because there is no other place to report an error. `eprint!`
//! would panic if the terminal of a program in the background is closed.

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes to standard error.
pub fn write(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes text to standard error. Discards the text if standard error is not ready, for example a full pipe or a stopped
/// terminal. A text of more than 4096 bytes can block. Does not wait for a thread that is writing to standard error.
///
/// Returns whether the text was written.
pub fn write_unless_full(text: &str) -> bool {
    let stderr = rustix::stdio::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A pipe that is ready accepts at least 4096 bytes (pipe(7)). A terminal that is stopped is not ready.
    poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0) && rustix::io::write(stderr, text.as_bytes()).is_ok()
}
