//! Log messages on standard error. During a run, messages pass through a bounded queue. A separate thread writes the
//! messages, so that a worker never waits for a slow terminal or pipe. If the queue is full, the message is lost and
//! counted.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use super::console::{CLEAR_LINE, is_coloured, is_watched};

/// The number of messages that the queue holds.
const MESSAGES: usize = 1024;

/// The queue of the run.
static QUEUE: OnceLock<NonBlocking> = OnceLock::new();
/// Whether messages go to the queue.
static IS_QUEUED: AtomicBool = AtomicBool::new(false);

/// Sends log messages to standard error. The level is warn, info with one `-v`, or debug with two. The environment
/// variable `RUST_LOG` overrides the level.
pub(super) fn start(verbose: u8) {
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let writer = || -> Box<dyn Write> {
        match QUEUE.get().filter(|_| IS_QUEUED.load(Ordering::Acquire)) {
            Some(queue) => Box::new(queue.clone()),
            None => Box::new(Stderr),
        }
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(is_coloured());
    // `try_init` fails if the app has already set up logging. The app then keeps its own logger. Errors while writing a
    // log line are ignored.
    let _ = logs.without_time().with_target(false).log_internal_errors(false).try_init();
}

/// Standard error. Clears the progress line before each message.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if is_watched() {
            stderr.write_all(CLEAR_LINE.as_bytes())?;
        }
        stderr.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The queue between the threads that log and the thread that writes. Dropping this value writes the remaining
/// messages, but waits at most about a second if the reader of standard error is stuck. Later messages go to standard
/// error directly.
pub(super) struct LogQueue {
    lost: ErrorCounter,
    _writer: WorkerGuard,
}

impl LogQueue {
    /// Starts to queue the messages of all threads.
    pub(super) fn start() -> Self {
        let (queue, log_queue) = Self::to(Stderr);
        // `set` fails for a second run in the same process. The messages of that run go to standard error directly.
        IS_QUEUED.store(QUEUE.set(queue).is_ok(), Ordering::Release);
        log_queue
    }

    /// Returns the sending end of a queue. A new thread writes the messages of the queue to `writer`.
    fn to(writer: impl Write + Send + 'static) -> (NonBlocking, Self) {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MESSAGES).thread_name("logs");
        let (queue, writer) = builder.finish(writer);
        let lost = queue.error_counter();
        (queue, Self { lost, _writer: writer })
    }

    /// Returns the number of messages that were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.dropped_lines() as u64
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        IS_QUEUED.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn stuck_reader_loses_messages_and_never_blocks_the_sender() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (mut queue, log_queue) = LogQueue::to(writer);
        // A pipe holds 64 KiB, so a direct write would block.
        let message = [b'x'; 1023];
        for _ in 0..10_000 {
            queue.write_all(&message).unwrap();
            queue.write_all(b"\n").unwrap();
        }
        let lost = log_queue.lost();
        assert!(lost >= 2 * 10_000 - (MESSAGES as u64 + 2 * 64 + 2), "{lost}");
        drop(queue);
        let rest = std::thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            text.len()
        });
        drop(log_queue);
        // Every message was written whole or lost.
        assert!(rest.join().unwrap() > 0);
    }
}
