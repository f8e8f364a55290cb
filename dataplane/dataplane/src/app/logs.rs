//! Log messages: as text or JSON on standard error, or as entries of the journal of systemd. During a run, messages
//! pass through a bounded queue to a separate thread, which writes the messages. A worker therefore never waits for a
//! slow terminal, a slow pipe or the journal. If the queue is full, a message is lost and counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::os::linux::fs::MetadataExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::panic::{self, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Once, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use dataplane_control::is_terminal_control;
use dataplane_core::stderr;

use super::args::LogFormat;
use super::console::{self, CLEAR_LINE, CommandError, is_coloured, is_watched};
use super::log_level::{self, Filter};

/// The number of messages that the queue holds.
const MESSAGES: usize = 1024;

/// The socket of the journal of systemd for entries with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// The maximum time that an entry waits while the socket of the journal is full. After this time, the program writes
/// the message to standard error.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Values that the text of the message names too. Formats without fields leave these values out.
const NAMED: [&str; 3] = ["worker", "port", "stage"];

/// The maximum time that the end of a run waits until the messages of the queue are written.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The sending end of the queue. `None` if messages go to standard error directly.
static QUEUE: RwLock<Option<QueueWriter>> = RwLock::new(None);

/// The arguments `format` and `has_time` of the first call of [`start`].
static WANTED: OnceLock<(LogFormat, bool)> = OnceLock::new();

/// The style of all messages of the process.
static STYLE: RwLock<Style> = RwLock::new(Style::Text { has_time: false, is_coloured: false });

/// The journal, after the first selection of [`Style::Journal`].
static OPENED: OnceLock<Journal> = OnceLock::new();

/// The style of log messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Lines for people.
    Text { has_time: bool, is_coloured: bool },
    /// Lines with the prefix `<PRIORITY>` (sd-daemon(3)). The journal adds the time.
    Lines,
    /// Entries of the journal: JSON objects whose keys are fields of the journal. [`Journal`] sends the entries.
    Journal,
    /// One JSON object per line.
    Json,
}

impl Style {
    fn of(format: LogFormat, has_time: bool) -> Self {
        match format {
            LogFormat::Auto if is_journal() => Self::journal(),
            LogFormat::Auto | LogFormat::Text => Self::Text { has_time, is_coloured: is_coloured() },
            LogFormat::Journal => Self::journal(),
            LogFormat::Json => Self::Json,
        }
    }

    /// Returns the style for the journal. Entries need the socket of the journal. Without this socket, or if standard
    /// error is not the journal, the program writes lines.
    fn journal() -> Self {
        let is_socket = |path: &str| std::fs::metadata(path).is_ok_and(|about| about.file_type().is_socket());
        match is_journal() && is_socket("/proc/self/fd/2") && is_socket(JOURNAL) {
            true => Self::Journal,
            false => Self::Lines,
        }
    }

    /// Returns the style of the process.
    fn current() -> Self {
        *STYLE.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a message in this style.
    fn text(self, level: Level, message: &str) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, &Record::new(level, message.to_owned()));
        text
    }

    /// Writes a message to `out`.
    fn write(self, out: &mut dyn fmt::Write, record: &Record) -> fmt::Result {
        let level = record.level;
        match self {
            Self::Text { has_time, is_coloured } => {
                let [dimmed, end] = if is_coloured { ["\x1b[2m", "\x1b[0m"] } else { [""; 2] };
                if has_time {
                    write!(out, "{dimmed}{}{end} ", now())?;
                }
                let colour = if is_coloured { colour(level) } else { "" };
                writeln!(out, "{colour}{:>5}{end} {}", level.as_str(), record.text())
            }
            Self::Lines => write_lines(out, &priority(level).to_string(), &record.text()),
            Self::Journal => writeln!(out, "{}", Value::Object(record.entry())),
            Self::Json => {
                let mut object = Map::new();
                object.insert("time".to_owned(), now().into());
                object.insert("level".to_owned(), level.as_str().to_lowercase().into());
                object.insert("message".to_owned(), plain(&record.message).into());
                if let Some(thread) = thread::current().name() {
                    object.insert("thread".to_owned(), thread.into());
                }
                if !record.fields.is_empty() {
                    object.insert("fields".to_owned(), record.fields.clone().into());
                }
                writeln!(out, "{}", Value::Object(object))
            }
        }
    }
}

/// Writes each line of a message with its priority, because a line without a prefix would have the default priority.
fn write_lines(out: &mut dyn fmt::Write, priority: &str, message: &str) -> fmt::Result {
    message.lines().try_for_each(|line| writeln!(out, "<{priority}>{line}"))
}

/// Escapes control characters and bidirectional control characters, because a terminal would interpret the characters.
/// A message may contain text from a file or from a peer. Line breaks and tabs stay.
fn plain(text: &str) -> Cow<'_, str> {
    let is_bad = |char: char| is_terminal_control(char) && !matches!(char, '\n' | '\t');
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

/// Formats events in the style that the function returns.
struct Formatter(fn() -> Style);

impl<S, N> FormatEvent<S, N> for Formatter
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut record = Record::new(*event.metadata().level(), String::new());
        record.source = Some(event.metadata());
        event.record(&mut record);
        (self.0)().write(&mut out, &record)
    }
}

/// A log message.
struct Record {
    level: Level,
    message: String,
    fields: Map<String, Value>,
    /// The place in the source code.
    source: Option<&'static Metadata<'static>>,
}

impl Record {
    fn new(level: Level, message: String) -> Self {
        Self { level, message, fields: Map::new(), source: None }
    }

    fn add(&mut self, field: &Field, value: Value) {
        // The crate `tracing-log` adds fields about the source of a message.
        if !field.name().starts_with("log.") {
            self.fields.insert(field.name().to_owned(), value);
        }
    }

    /// Returns the message and the fields that the message does not name.
    fn text(&self) -> String {
        let mut text = plain(&self.message).into_owned();
        for (name, value) in self.fields.iter().filter(|(name, _)| !NAMED.contains(&name.as_str())) {
            text += &format!(" {name}={}", plain(&value_text(value)));
        }
        text
    }

    /// Returns the fields of the message in the journal (systemd.journal-fields(7)).
    fn entry(&self) -> Map<String, Value> {
        let mut entry = Map::new();
        let mut add = |name: &str, value: String| drop(entry.insert(name.to_owned(), value.into()));
        add("MESSAGE", self.text());
        add("PRIORITY", priority(self.level).to_string());
        let program = std::env::args_os().next().unwrap_or_default();
        if let Some(program) = Path::new(&program).file_name() {
            add("SYSLOG_IDENTIFIER", program.to_string_lossy().into_owned());
        }
        if let Some(thread) = thread::current().name() {
            add("DATAPLANE_THREAD", thread.to_owned());
        }
        if let Some(source) = self.source {
            add("TARGET", source.target().to_owned());
            if let Some((file, line)) = source.file().zip(source.line()) {
                add("CODE_FILE", file.to_owned());
                add("CODE_LINE", line.to_string());
            }
        }
        for (name, value) in &self.fields {
            // The journal accepts only these characters.
            let name = name.to_ascii_uppercase().replace(|char: char| !char.is_ascii_alphanumeric(), "_");
            add(&format!("DATAPLANE_{name}"), plain(&value_text(value)).into_owned());
        }
        entry
    }
}

/// Returns the text of a value, without the quotes of JSON.
fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
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

/// The socket of the journal.
#[derive(Debug)]
struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    fn open(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(JOURNAL_TIMEOUT))?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Sends an entry. The socket is not connected, because the journal may restart.
    fn send(&self, entry: &Map<String, Value>) -> io::Result<()> {
        self.socket.send_to(&datagram(entry), &self.path).map(drop)
    }
}

/// Returns an entry in the native protocol of the journal: before a value with line breaks, the entry has the length of
/// the value in 8 bytes, little-endian.
fn datagram(entry: &Map<String, Value>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in entry {
        let value = value_text(value);
        bytes.extend(name.as_bytes());
        if value.contains('\n') {
            bytes.push(b'\n');
            bytes.extend((value.len() as u64).to_le_bytes());
        } else {
            bytes.push(b'=');
        }
        bytes.extend(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// Sends log messages to standard error. `verbose` is the number of `-v` flags: 0 for the level warn, 1 for info, 2 or
/// more for debug. The environment variable `RUST_LOG` overrides the level. If `has_time` is `true`, messages in the
/// text format start with the time.
pub(super) fn start(verbose: u8, format: LogFormat, has_time: bool) {
    let _ = WANTED.set((format, has_time));
    select_style();
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let writer = || -> Box<dyn Write> {
        match queue() {
            Some(queue) => Box::new(queue),
            None => Box::new(Output(&OPENED)),
        }
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    let logs = logs.log_internal_errors(false).event_format(Formatter(Style::current)).with_filter_reloading();
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

/// Selects the style of the next messages. Call this function after a change of standard error.
pub(super) fn select_style() {
    let Some(&(format, has_time)) = WANTED.get() else { return };
    let mut style = Style::of(format, has_time);
    if style == Style::Journal && OPENED.get().is_none() {
        match Journal::open(Path::new(JOURNAL)) {
            Ok(journal) => drop(OPENED.set(journal)),
            Err(_) => style = Style::Lines,
        }
    }
    *STYLE.write().unwrap_or_else(PoisonError::into_inner) = style;
}

/// Returns the queue of the run, if messages go to the queue.
fn queue() -> Option<QueueWriter> {
    QUEUE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns a message in the style of the process.
fn styled(level: Level, message: &str) -> String {
    Style::current().text(level, message)
}

/// Logs a message regardless of the level of the log, even if the level is `off`.
pub(super) fn notice(level: Level, message: &str) {
    let text = styled(level, message);
    // A write to the queue does not fail. Without the queue, ignore a failed write.
    let _ = match queue() {
        Some(mut queue) => queue.write_all(text.as_bytes()),
        None => Output(&OPENED).write_all(text.as_bytes()),
    };
}

/// Prints the error that ends a command, unless the message is empty. Returns the exit status.
pub(super) fn fail(message: &str, status: i32) -> i32 {
    if !message.is_empty() {
        match Style::current() {
            Style::Text { .. } => stderr::write(&failure(message)),
            // Ignore a failed write.
            _ => drop(Output(&OPENED).write_all(styled(Level::ERROR, message.trim_end()).as_bytes())),
        }
    }
    status
}

/// Prints the error that ends a command, unless writing would block.
pub(super) fn fail_unless_full(message: &str) {
    stderr::write_unless_full(&failure(message));
}

/// Returns the error that ends a command, as text for standard error.
fn failure(message: &str) -> String {
    let message = message.trim_end();
    match Style::current() {
        Style::Text { .. } => format!("error: {}\n", plain(message)),
        // Standard error takes lines, but no entries of the journal.
        Style::Journal => Style::Lines.text(Level::ERROR, message),
        style => style.text(Level::ERROR, message),
    }
}

/// The destination of messages in the style of the process: the journal, or standard error without a journal. Each
/// write is one message.
struct Output(&'static OnceLock<Journal>);

impl Write for Output {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        // A message may be older than the selection of the journal. Such a message is no entry.
        let entry = self.0.get().and_then(|journal| Some((journal, serde_json::from_slice(message).ok()?)));
        let Some::<(_, Map<String, Value>)>((journal, entry)) = entry else {
            return Stderr.write_all(message).map(|()| message.len());
        };
        if journal.send(&entry).is_err() {
            // The journal is gone, the socket is full, or the entry is too long. The stream of standard error may still
            // work.
            let [priority, text] =
                ["PRIORITY", "MESSAGE"].map(|name| entry.get(name).map(value_text).unwrap_or_default());
            let mut lines = String::new();
            // Writing to a string does not fail.
            let _ = write_lines(&mut lines, &priority, &text);
            Stderr.write_all(lines.as_bytes())?;
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Stderr.flush()
    }
}

/// Standard error. Clears the progress line before each message.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_message(&mut io::stderr(), is_watched(), bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Writes a message in one call, because the thread of the progress line does not wait for the lock of standard error.
/// The progress line could come between two calls.
fn write_message(out: &mut impl Write, is_terminal: bool, message: &[u8]) -> io::Result<()> {
    match is_terminal {
        true => out.write_all(&[CLEAR_LINE.as_bytes(), message].concat()),
        false => out.write_all(message),
    }
}

/// The counts of a queue.
#[derive(Debug, Default)]
pub(super) struct LogCounts {
    /// The lost messages: the queue was full, or the run ended before the thread wrote the message.
    lost: AtomicU64,
    /// The messages that are in the queue, or that the thread of the queue is writing.
    waiting: AtomicU64,
    /// `true` after the queue has ended. The thread then writes no further message.
    is_over: AtomicBool,
}

impl LogCounts {
    /// Returns the number of messages that were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The sending end of a queue. Each write is one message. The queue accepts every message or counts it as lost.
#[derive(Clone)]
struct QueueWriter {
    messages: SyncSender<Vec<u8>>,
    counts: Arc<LogCounts>,
}

impl Write for QueueWriter {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        if self.messages.try_send(message.to_vec()).is_err() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The queue between the threads that log and the thread that writes. Dropping this value ends the queue like
/// [`LogQueue::end`].
pub(super) struct LogQueue {
    counts: Arc<LogCounts>,
    /// Whether [`QUEUE`] is the sending end of this queue.
    is_current: bool,
    /// Disconnected after the thread has ended.
    ended: Receiver<()>,
}

impl LogQueue {
    /// Starts to queue the messages of all threads.
    pub(super) fn start() -> Result<Self, CommandError> {
        static HOOK: Once = Once::new();
        let (queue, mut log_queue) = Self::to(thread::Builder::new(), Output(&OPENED)).map_err(console::no_thread)?;
        let mut current = QUEUE.write().unwrap_or_else(PoisonError::into_inner);
        // A second run in the same process writes its messages to the queue of the first run.
        log_queue.is_current = current.is_none();
        current.get_or_insert(queue);
        drop(current);
        HOOK.call_once(|| {
            let direct = panic::take_hook();
            panic::set_hook(Box::new(move |info| report_panic(info, &direct)));
        });
        Ok(log_queue)
    }

    /// Returns the sending end of a queue. The new thread writes the messages of the queue to `writer`.
    fn to(thread: thread::Builder, mut writer: impl Write + Send + 'static) -> io::Result<(QueueWriter, Self)> {
        let (messages, received) = sync_channel::<Vec<u8>>(MESSAGES);
        let (end, ended) = sync_channel(0);
        let counts = Arc::new(LogCounts::default());
        let shared = counts.clone();
        let write = move || {
            let _end: SyncSender<()> = end;
            for message in received {
                if shared.is_over.load(Ordering::Relaxed) {
                    break;
                }
                // There is no other place to report an error.
                let _ = writer.write_all(&message);
                shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        };
        thread.name("logs".to_owned()).spawn(write)?;
        Ok((QueueWriter { messages, counts: counts.clone() }, Self { counts, is_current: false, ended }))
    }

    /// Returns the counts of the queue.
    pub(super) fn counts(&self) -> Arc<LogCounts> {
        self.counts.clone()
    }

    /// Ends the queue. Waits at most [`END_TIMEOUT`] until the remaining messages are written, because standard error may
    /// take no output. Later messages go to standard error directly. Returns the number of lost messages, including the
    /// messages that remain in the queue.
    pub(super) fn end(self) -> u64 {
        let counts = self.counts();
        drop(self);
        counts.lost()
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        if self.is_current {
            *QUEUE.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            self.counts.is_over.store(true, Ordering::Relaxed);
            self.counts.lost.fetch_add(self.counts.waiting.load(Ordering::Relaxed), Ordering::Relaxed);
        }
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
    // A write to the queue does not fail.
    let _ = queue.write_all(styled(Level::ERROR, message.trim_end()).as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
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
            let log_queue = LogQueue::start().unwrap();
            for _ in 0..2 * MESSAGES {
                // A pipe holds 64 KiB, so direct writes would block.
                assert!(thread::spawn(|| panic!("{}", "x".repeat(100))).join().is_err());
            }
            println!("lost {}", log_queue.end());
            std::process::exit(0);
        }
        let name = "app::logs::tests::panic_does_not_wait_for_the_reader_of_standard_error";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(PANICS, "1").env("RUST_BACKTRACE", "0");
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        dataplane_testing::wait_until("the child ends", || child.try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let [out, text] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{text}");
        // The other line is from the test harness. A program with `--json` prints only its report to standard output.
        assert_eq!(out.lines().filter(|line| !line.is_empty()).count(), 2, "{out}");
        let written = text.matches("ERROR thread `unnamed`: panicked at").count();
        assert!(written > 0 && out.ends_with(&format!("lost {}\n", 2 * MESSAGES - written)), "{written} {out}");
    }

    #[test]
    fn messages_have_the_style_of_their_reader() {
        let mut record = Record::new(Level::WARN, "port `wan`: the link is down\nsince today".to_owned());
        record.fields.extend([("port".to_owned(), "wan".into()), ("count".to_owned(), 3.into())]);
        let written = |style: Style| {
            let mut text = String::new();
            style.write(&mut text, &record).unwrap();
            text
        };
        let text = |has_time, is_coloured| written(Style::Text { has_time, is_coloured });
        // The text of the message names the port.
        assert_eq!(text(false, false), " WARN port `wan`: the link is down\nsince today count=3\n");
        assert_eq!(text(false, true), "\x1b[33m WARN\x1b[0m port `wan`: the link is down\nsince today count=3\n");
        let timed = text(true, false);
        let (time, rest) = timed.split_once(' ').unwrap();
        assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{timed}");
        assert_eq!(rest, text(false, false));
        assert_eq!(written(Style::Lines), "<4>port `wan`: the link is down\n<4>since today count=3\n");
        let json = written(Style::Json);
        assert!(json.ends_with("}\n") && json.lines().count() == 1, "{json}");
        let record: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&record["level"], &record["message"], &record["fields"]),
            (
                &"warn".into(),
                &"port `wan`: the link is down\nsince today".into(),
                &serde_json::json!({"count": 3, "port": "wan"})
            )
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut record = Record::new(Level::INFO, "a\x1b[2J\u{9b}b\tc\nd\u{202e}".to_owned());
        record.fields.insert("peer".to_owned(), "\x1b]0;x\x07".into());
        for style in [Style::Text { has_time: false, is_coloured: false }, Style::Lines, Style::Journal, Style::Json] {
            let mut text = String::new();
            style.write(&mut text, &record).unwrap();
            assert!(!text.contains(|char| is_terminal_control(char) && !matches!(char, '\n' | '\t')), "{text:?}");
            assert!(text.contains("[2J") && text.contains("u{9b}b"), "{text:?}");
        }
    }

    /// Reads an entry in the native protocol of the journal.
    fn read_entry(mut bytes: &[u8]) -> BTreeMap<String, String> {
        let mut entry = BTreeMap::new();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|&byte| byte == b'\n').unwrap();
            let (line, rest) = (std::str::from_utf8(&bytes[..end]).unwrap(), &bytes[end + 1..]);
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => {
                    bytes = rest;
                    (name, value)
                }
                None => {
                    let (length, rest) = rest.split_first_chunk().unwrap();
                    let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
                    bytes = rest.strip_prefix(b"\n").unwrap();
                    (line, std::str::from_utf8(value).unwrap())
                }
            };
            entry.insert(name.to_owned(), value.to_owned());
        }
        entry
    }

    #[test]
    fn journal_gets_the_values_of_a_message_as_fields() {
        let folder = dataplane_testing::Folder::new();
        let path = folder.file("socket");
        let received = UnixDatagram::bind(&path).unwrap();
        let journal: &OnceLock<Journal> = Box::leak(Box::new(Journal::open(&path).unwrap().into()));
        let (queue, log_queue) = LogQueue::to(thread::Builder::new(), Output(journal)).unwrap();
        let logs = tracing_subscriber::fmt().with_writer(move || queue.clone());
        let logs = logs.event_format(Formatter(|| Style::Journal)).finish();
        tracing::subscriber::with_default(logs, || {
            tracing::error!(worker = 3, stage = "acl", lost = 7, "worker 3: stage `acl` panicked\nat the packet");
        });
        drop(log_queue);
        let mut bytes = [0; 4096];
        let length = received.recv(&mut bytes).unwrap();
        let mut entry = read_entry(&bytes[..length]);
        assert!(entry.remove("CODE_FILE").unwrap().ends_with("src/app/logs.rs"));
        assert!(entry.remove("CODE_LINE").unwrap().parse::<u32>().is_ok());
        assert!(entry.remove("DATAPLANE_THREAD").is_some() && entry.remove("SYSLOG_IDENTIFIER").is_some());
        let expected = [
            ("DATAPLANE_LOST", "7"),
            ("DATAPLANE_STAGE", "acl"),
            ("DATAPLANE_WORKER", "3"),
            ("MESSAGE", "worker 3: stage `acl` panicked\nat the packet lost=7"),
            ("PRIORITY", "3"),
            ("TARGET", "dataplane::app::logs::tests"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(entry, expected.into());
    }

    #[test]
    fn stuck_reader_loses_messages_and_never_blocks_the_sender() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (mut queue, log_queue) = LogQueue::to(thread::Builder::new(), writer).unwrap();
        // A pipe holds 64 KiB, so a direct write would block.
        let message = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..10_000 {
            queue.write_all(&message).unwrap();
        }
        assert!(log_queue.counts().lost() >= 10_000 - (MESSAGES as u64 + 64 + 1));
        drop(queue);
        let lost = log_queue.end();
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        // `end` counts the message that the thread was writing as lost. The thread wrote no further message.
        assert_eq!(text.len() as u64, (10_000 - lost + 1) * message.len() as u64);
    }

    #[test]
    fn progress_line_cannot_come_between_the_start_and_the_end_of_a_message() {
        struct Calls(Vec<Vec<u8>>);
        impl Write for Calls {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (is_terminal, expected) in [(true, &b"\r\x1b[2Kmessage\n"[..]), (false, b"message\n")] {
            let mut calls = Calls(Vec::new());
            write_message(&mut calls, is_terminal, b"message\n").unwrap();
            assert_eq!(calls.0, [expected]);
        }
    }

    #[test]
    fn queue_whose_thread_cannot_be_started_is_an_error() {
        // No address space has room for this stack.
        assert!(LogQueue::to(thread::Builder::new().stack_size(usize::MAX / 4), io::sink()).is_err());
    }
}
