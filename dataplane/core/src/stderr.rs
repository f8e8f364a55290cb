//! Writes to standard error. The functions ignore errors, because there is no other place to report an error. `eprint!`
//! would panic if the terminal of a program in the background is closed.

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes to standard error.
pub fn write(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes text to standard error, unless writing would block. Does not wait for a thread that is writing to standard
/// error.
pub fn write_unless_full(text: &str) {
    let stderr = rustix::stdio::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A pipe that is ready accepts at least 4096 bytes (pipe(7)). A terminal that is stopped is not ready.
    if poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0) {
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
}
