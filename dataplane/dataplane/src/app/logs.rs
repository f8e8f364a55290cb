//! Log messages on standard error. During a run, messages pass through a bounded queue. A separate thread writes the
//! messages, so that a worker never waits for a slow terminal or pipe. If the queue is full, the message is lost and
//! counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use super::console::{self, CLEAR_LINE, is_coloured, is_watched};

/// The number of messages that the queue holds.
const MESSAGES: usize = 1024;

/// The queue of the run.
static QUEUE: OnceLock<NonBlocking> = OnceLock::new();
/// Whether messages go to the queue.
static IS_QUEUED: AtomicBool = AtomicBool::new(false);

/// Sends log messages to standard error. The level is warn. With one `-v`, the level is info, and with two, debug. The
/// environment variable `RUST_LOG` overrides the level.
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

/// Writes a line to standard error, through the queue if there is one.
pub(super) fn write_line(line: &str) {
    match QUEUE.get().filter(|_| IS_QUEUED.load(Ordering::Acquire)) {
        // The queue accepts every line or counts it as lost.
        Some(queue) => _ = queue.clone().write_all(format!("{line}\n").as_bytes()),
        None => console::write_line(line),
    }
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
        let is_first = QUEUE.set(queue).is_ok();
        if is_first {
            let direct = panic::take_hook();
            panic::set_hook(Box::new(move |info| report_panic(info, &direct)));
        }
        IS_QUEUED.store(is_first, Ordering::Release);
        log_queue
    }

    /// Returns the sending end of a queue. A new thread writes the messages of the queue to `writer`.
    fn to(writer: impl Write + Send + 'static) -> (NonBlocking, Self) {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MESSAGES).thread_name("logs");
        let (queue, writer) = builder.finish(writer);
        let lost = queue.error_counter();
        (queue, Self { lost, _writer: writer })
    }

    /// Returns the counter of lost messages.
    pub(super) fn lost_counter(&self) -> ErrorCounter {
        self.lost.clone()
    }

    /// Returns the number of messages that were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.dropped_lines() as u64
    }
}

/// Reports a panic through the queue, because a direct write could block a worker. Without the queue, calls `direct`.
fn report_panic(info: &PanicHookInfo<'_>, direct: &dyn Fn(&PanicHookInfo<'_>)) {
    let Some(mut queue) = QUEUE.get().filter(|_| IS_QUEUED.load(Ordering::Acquire)).cloned() else {
        return direct(info);
    };
    let thread = thread::current();
    let trace = match Backtrace::capture() {
        trace if trace.status() == BacktraceStatus::Captured => format!("stack backtrace:\n{trace}"),
        _ => String::new(),
    };
    let name = thread.name().unwrap_or("unnamed");
    // The queue accepts every message or counts it as lost.
    let _ = queue.write_all(format!("ERROR thread `{name}`: {info}\n{trace}").as_bytes());
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        IS_QUEUED.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set in the environment of the process that panics.
    const PANICS: &str = "DATAPLANE_TEST_PANICS";

    /// The child process runs this test, with standard error to a pipe that nobody reads.
    #[test]
    fn panic_does_not_wait_for_the_reader_of_standard_error() {
        if std::env::var_os(PANICS).is_some() {
            let log_queue = LogQueue::start();
            for _ in 0..2 * MESSAGES {
                // A pipe holds 64 KiB, so direct writes would block.
                assert!(thread::spawn(|| panic!("{}", "x".repeat(100))).join().is_err());
            }
            assert!(log_queue.lost() > 0);
            return;
        }
        let name = "app::logs::tests::panic_does_not_wait_for_the_reader_of_standard_error";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(PANICS, "1").env("RUST_BACKTRACE", "0");
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        dataplane_testing::wait_until("the child ends", || child.try_wait().unwrap().is_some());
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        assert!(text.contains("ERROR thread `unnamed`: panicked at"), "{text}");
    }

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
