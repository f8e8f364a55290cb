//! Log messages on standard error: as text, as lines for the journal of systemd, or as JSON. During a run, messages
//! pass through a bounded queue to a separate thread, which writes the messages. A worker therefore never waits for a
//! slow terminal or pipe. If the queue is full, a message is lost and counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::os::linux::fs::MetadataExt as _;
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::args::LogFormat;
use super::console::{CLEAR_LINE, is_coloured, is_watched, write_stderr};
use super::log_level::{self, Filter};

/// The number of messages that the queue holds.
const MESSAGES: usize = 1024;

/// The queue of the run.
static QUEUE: OnceLock<NonBlocking> = OnceLock::new();
/// Whether messages go to the queue.
static IS_QUEUED: AtomicBool = AtomicBool::new(false);

/// The style of all messages of the process. The first call of [`start`] sets the style.
static STYLE: OnceLock<Style> = OnceLock::new();

/// The style of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Lines for people.
    Text { has_time: bool, is_coloured: bool },
    /// Lines with the prefix `<PRIORITY>` (sd-daemon(3)). The journal adds the time.
    Journal,
    /// One JSON object per line.
    Json,
}

impl Style {
    fn of(format: LogFormat, has_time: bool) -> Self {
        match format {
            LogFormat::Auto if is_journal() => Self::Journal,
            LogFormat::Auto | LogFormat::Text => Self::Text { has_time, is_coloured: is_coloured() },
            LogFormat::Journal => Self::Journal,
            LogFormat::Json => Self::Json,
        }
    }

    /// Returns the style of the process.
    fn current() -> Self {
        STYLE.get().copied().unwrap_or(Self::Text { has_time: false, is_coloured: false })
    }

    /// Writes a message and its fields to `out`.
    fn write(self, out: &mut dyn fmt::Write, level: Level, message: &str, fields: &Map<String, Value>) -> fmt::Result {
        let message = &*plain(message);
        match self {
            Self::Text { has_time, is_coloured } => {
                let [dimmed, end] = if is_coloured { ["\x1b[2m", "\x1b[0m"] } else { [""; 2] };
                if has_time {
                    write!(out, "{dimmed}{}{end} ", now())?;
                }
                let colour = if is_coloured { colour(level) } else { "" };
                write!(out, "{colour}{:>5}{end} {message}", level.as_str())?;
                write_fields(out, fields)?;
                writeln!(out)
            }
            Self::Journal => {
                let mut text = message.to_owned();
                write_fields(&mut text, fields)?;
                // A line without a prefix would have the default priority.
                text.lines().try_for_each(|line| writeln!(out, "<{}>{line}", priority(level)))
            }
            Self::Json => {
                let mut record = Map::new();
                record.insert("time".to_owned(), now().into());
                record.insert("level".to_owned(), level.as_str().to_lowercase().into());
                record.insert("message".to_owned(), message.into());
                if let Some(thread) = thread::current().name() {
                    record.insert("thread".to_owned(), thread.into());
                }
                if !fields.is_empty() {
                    record.insert("fields".to_owned(), fields.clone().into());
                }
                writeln!(out, "{}", Value::Object(record))
            }
        }
    }
}

fn write_fields(out: &mut dyn fmt::Write, fields: &Map<String, Value>) -> fmt::Result {
    fields.iter().try_for_each(|(name, value)| match value {
        Value::String(value) => write!(out, " {name}={}", plain(value)),
        value => write!(out, " {name}={value}"),
    })
}

/// Escapes control characters, because a terminal would interpret the characters, and a message may contain text from a
/// file or from a peer. Line breaks and tabs stay.
fn plain(text: &str) -> Cow<'_, str> {
    let is_bad = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
    if !text.contains(is_bad) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match is_bad(char) {
            true => plain.extend(char.escape_default()),
            false => plain.push(char),
        }
    }
    plain.into()
}

/// Returns the time in UTC, such as `2026-01-31T12:00:00.000000Z` (RFC 3339).
fn now() -> String {
    let mut time = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

/// Returns the escape sequence of the colour of a level.
fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        _ => "\x1b[35m",
    }
}

/// Returns the priority of a level (syslog(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Returns `true` if standard error is the journal of systemd. The environment variable `JOURNAL_STREAM` has the device
/// and the inode of the stream that systemd has connected to the journal (systemd.exec(5)).
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let about = std::fs::metadata("/proc/self/fd/2");
    about.is_ok_and(|about| stream == format!("{}:{}", about.st_dev(), about.st_ino()))
}

impl<S, N> FormatEvent<S, N> for Style
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut record = Record::default();
        event.record(&mut record);
        self.write(&mut out, *event.metadata().level(), &record.message, &record.fields)
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct Record {
    message: String,
    fields: Map<String, Value>,
}

impl Record {
    fn add(&mut self, field: &Field, value: Value) {
        // The crate `tracing-log` adds fields about the source of a message.
        if !field.name().starts_with("log.") {
            self.fields.insert(field.name().to_owned(), value);
        }
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            _ => self.add(field, value.into()),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

/// Sends log messages to standard error. `verbose` is the number of `-v` flags: 0 for the level warn, 1 for info, 2 or
/// more for debug. The environment variable `RUST_LOG` overrides the level. If `has_time` is `true`, messages in the
/// text format start with the time.
pub(super) fn start(verbose: u8, format: LogFormat, has_time: bool) {
    let style = Style::of(format, has_time);
    let _ = STYLE.set(style);
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let writer = || -> Box<dyn Write> {
        match queue() {
            Some(queue) => Box::new(queue),
            None => Box::new(Stderr),
        }
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    let logs = logs.log_internal_errors(false).event_format(style).with_filter_reloading();
    let (get, set) = (logs.reload_handle(), logs.reload_handle());
    // `try_init` fails if the app has already set up logging. The app then keeps its own logger. Errors while writing a
    // log line are ignored.
    if logs.try_init().is_ok() {
        log_level::keep(Filter {
            get: Box::new(move || get.with_current(EnvFilter::to_string).ok()),
            set: Box::new(move |filter| set.reload(filter).is_ok()),
        });
    }
}

/// Returns the queue of the run, if messages go to the queue.
fn queue() -> Option<NonBlocking> {
    QUEUE.get().filter(|_| IS_QUEUED.load(Ordering::Acquire)).cloned()
}

/// Returns a message in the style of the process.
fn styled(level: Level, message: &str) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = Style::current().write(&mut text, level, message, &Map::new());
    text
}

/// Logs a message regardless of the level of the log, even if the level is `off`.
pub(super) fn notice(level: Level, message: &str) {
    let text = styled(level, message);
    // The queue accepts the message or counts it as lost. Without the queue, ignore a failed write to standard error.
    let _ = match queue() {
        Some(mut queue) => queue.write_all(text.as_bytes()),
        None => Stderr.write_all(text.as_bytes()),
    };
}

/// Prints the error that ends a command, unless the message is empty. Returns the exit status.
pub(super) fn fail(message: &str, status: i32) -> i32 {
    if !message.is_empty() {
        let message = message.trim_end();
        write_stderr(&match Style::current() {
            Style::Text { .. } => format!("error: {message}\n"),
            Style::Journal | Style::Json => styled(Level::ERROR, message),
        });
    }
    status
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
/// messages. If the reader of standard error is stuck, the drop waits at most about a second. Later messages go to
/// standard error directly.
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
    let Some(mut queue) = queue() else { return direct(info) };
    let thread = thread::current();
    let trace = match Backtrace::capture() {
        trace if trace.status() == BacktraceStatus::Captured => format!("stack backtrace:\n{trace}"),
        _ => String::new(),
    };
    let name = thread.name().unwrap_or("unnamed");
    let message = format!("thread `{name}`: {info}\n{trace}");
    // The queue accepts every message or counts it as lost.
    let _ = queue.write_all(styled(Level::ERROR, message.trim_end()).as_bytes());
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

    /// The environment variable that is set only in the child process that panics.
    const PANICS: &str = "DATAPLANE_TEST_PANICS";

    /// Runs this test again in a child process, which panics. The parent does not read the standard error of the child
    /// until the child ends.
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
    fn messages_have_the_style_of_their_reader() {
        let fields: Map<String, Value> =
            [("port".to_owned(), "wan".into()), ("count".to_owned(), 3.into())].into_iter().collect();
        let written = |style: Style| {
            let mut text = String::new();
            style.write(&mut text, Level::WARN, "the link is down\nsince today", &fields).unwrap();
            text
        };
        let text = |has_time, is_coloured| written(Style::Text { has_time, is_coloured });
        assert_eq!(text(false, false), " WARN the link is down\nsince today count=3 port=wan\n");
        assert_eq!(text(false, true), "\x1b[33m WARN\x1b[0m the link is down\nsince today count=3 port=wan\n");
        let timed = text(true, false);
        let (time, rest) = timed.split_once(' ').unwrap();
        assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{timed}");
        assert_eq!(rest, text(false, false));
        assert_eq!(written(Style::Journal), "<4>the link is down\n<4>since today count=3 port=wan\n");
        let json = written(Style::Json);
        assert!(json.ends_with("}\n") && json.lines().count() == 1, "{json}");
        let record: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&record["level"], &record["message"], &record["fields"]["count"]),
            (&"warn".into(), &"the link is down\nsince today".into(), &3.into())
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let fields: Map<String, Value> = [("peer".to_owned(), "\x1b]0;x\x07".into())].into_iter().collect();
        for style in [Style::Text { has_time: false, is_coloured: false }, Style::Journal, Style::Json] {
            let mut text = String::new();
            style.write(&mut text, Level::INFO, "a\x1b[2J\u{9b}b\tc\nd", &fields).unwrap();
            assert!(!text.contains(|char: char| char.is_control() && !matches!(char, '\n' | '\t')), "{text:?}");
            assert!(text.contains("[2J") && text.contains("u{9b}b"), "{text:?}");
        }
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
