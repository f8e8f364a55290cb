//! `top`: watches a running program on a screen.

mod model;
mod screen;
mod tables;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::args;
use super::console::{self, CommandError};
use super::stats;
use dataplane_control::{Answer, Call, Client, Error};
use dataplane_core::telemetry::LiveStatistics;
use screen::{Connection, Screen};

/// The maximum time to wait for a key before the loop checks for new samples, signals and the end of the terminal.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum interval between the first two samples of a connection.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// The wait between two attempts to connect again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn top(args: &args::Top) -> Result<(), CommandError> {
    let example = "dataplane top PROCESS";
    let program = &args.program;
    let mut client = stats::connect(program.socket.as_deref(), program.process, example)?;
    if args.json {
        let failed = |error| stats::failed(error, example);
        // In the second answer, `recent` covers the time since the first answer.
        client.call(&Call::Stats {}).map_err(failed)?;
        thread::sleep(args.every);
        let answer = client.call(&Call::Stats {}).map_err(failed)?;
        return console::print(&format!("{}\n", answer.json()));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let help = "run `dataplane top` in a terminal, or use `dataplane top --json` or `dataplane stats --every 1s`";
        return Err(CommandError::Usage(format!("standard input or output is not a terminal; help: {help}")));
    }
    let (sender, samples) = mpsc::sync_channel(1);
    let is_paused = Arc::new(AtomicBool::new(false));
    let sampler = Sampler {
        socket: program.socket.clone(),
        process: program.process,
        every: args.every,
        is_paused: is_paused.clone(),
    };
    let spawned = thread::Builder::new().name("samples".to_owned()).spawn(move || sampler.run(client, &sender));
    spawned.map_err(console::no_thread)?;
    // `event::read` and `event::poll` do not return while an escape sequence is incomplete, or after the terminal has
    // closed. This thread runs until the process ends. While it reads, `Terminal::clear` fails.
    let (sender, events) = mpsc::sync_channel(1);
    let spawned =
        thread::Builder::new().name("terminal".to_owned()).spawn(move || while sender.send(event::read()).is_ok() {});
    spawned.map_err(console::no_thread)?;
    let failed = |error: std::io::Error| CommandError::Failed(format!("the terminal: {error}"));
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize).map_err(failed)?;
    }
    // From here on, a panic restores the terminal too.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = watch(&mut terminal, &samples, &events, &signal, &is_paused);
    // These calls fail if the terminal has closed.
    let _ = terminal.show_cursor();
    let _ = ratatui::try_restore();
    // The destructor panics if the terminal has closed, because the destructor cannot print an error.
    std::mem::forget(terminal);
    let number = signal.load(Ordering::Relaxed);
    if number != 0 {
        // End the process by the signal, so that the shell reports the signal.
        let _ = signal_hook::low_level::emulate_default_handler(number as i32);
    }
    match ended.map_err(failed)? {
        Some(why) => Err(CommandError::Failed(why)),
        None => Ok(()),
    }
}

/// A message to the screen, from the thread that requests the statistics.
enum StatisticsMessage {
    /// The first answer of a connection.
    First(Box<LiveStatistics>),
    Live(Box<LiveStatistics>),
    /// The program does not answer, for this reason. The thread connects again.
    Lost(String),
    /// The reason why the command ends: the selected process has ended, or the answer has another format.
    Over(String),
}

/// Draws the screen until a key, a signal, the end of the program or the end of the terminal ends the command. Returns
/// the reason if the program or the terminal has ended.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    samples: &Receiver<StatisticsMessage>,
    events: &Receiver<std::io::Result<Event>>,
    signal: &AtomicUsize,
    is_paused: &AtomicBool,
) -> std::io::Result<Option<String>> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let mut screen = Screen::new(variable("NO_COLOR").is_none(), is_utf8(variable));
    let mut is_changed = true;
    while signal.load(Ordering::Relaxed) == 0 {
        loop {
            match samples.try_recv() {
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Ok(Some("the thread that requests samples has ended".to_owned()));
                }
                Ok(StatisticsMessage::First(live)) => {
                    screen.model.connect(*live);
                    screen.connection = Connection::Open;
                }
                Ok(StatisticsMessage::Live(live)) => {
                    screen.model.update(*live);
                    screen.connection = Connection::Open;
                }
                Ok(StatisticsMessage::Lost(why)) => screen.connection = Connection::Lost(why),
                Ok(StatisticsMessage::Over(why)) => return Ok(Some(why)),
            }
            is_changed = true;
        }
        is_paused.store(screen.is_paused(), Ordering::Relaxed);
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        match events.recv_timeout(POLL_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Some("the thread that reads the terminal has ended".to_owned()));
            }
            Ok(event) => match event? {
                Event::Key(key) if !screen.press(key) => return Ok(None),
                _ => is_changed = true,
            },
        }
        if is_closed() {
            return Ok(Some("the terminal has closed".to_owned()));
        }
    }
    Ok(None)
}

/// Returns whether the terminal has closed. The program receives no SIGHUP if the terminal is not its controlling
/// terminal.
fn is_closed() -> bool {
    let stdin = rustix::stdio::stdin();
    // `poll` reports `POLLHUP`, `POLLERR` and `POLLNVAL` without a request.
    let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
    poll(&mut terminal, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Returns whether the terminal expects UTF-8, according to the variables of the locale. `variable` returns the value
/// of a variable that is set and not empty.
fn is_utf8(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).unwrap_or_default();
    let locale = locale.to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The thread that requests the statistics.
struct Sampler {
    socket: Option<std::path::PathBuf>,
    process: Option<u32>,
    every: Duration,
    /// Whether the screen is paused. During a pause, the thread requests no statistics, so that the first answer after
    /// the pause covers the pause.
    is_paused: Arc<AtomicBool>,
}

impl Sampler {
    /// Requests statistics until the receiver of the samples is dropped.
    fn run(&self, mut client: Client, sender: &SyncSender<StatisticsMessage>) {
        let mut is_first = true;
        loop {
            while !is_first && self.is_paused.load(Ordering::Relaxed) {
                thread::sleep(POLL_INTERVAL);
            }
            let begin = Instant::now();
            let sample = match client.call(&Call::Stats {}).and_then(|answer: Answer| answer.parse()) {
                Ok(live) if is_first => StatisticsMessage::First(Box::new(live)),
                Ok(live) => StatisticsMessage::Live(Box::new(live)),
                Err(error) => match self.reconnect(&error, sender) {
                    Some(again) => {
                        (client, is_first) = (again, true);
                        continue;
                    }
                    None => return,
                },
            };
            // Wait until the screen takes the sample. A lost sample would be a loss of data, because each sample has
            // only the latency and the costs since the previous sample.
            if sender.send(sample).is_err() {
                return;
            }
            // The screen shows nothing before the second answer, so do not wait long for this answer.
            let every = if std::mem::take(&mut is_first) { self.every.min(FIRST_INTERVAL) } else { self.every };
            thread::sleep(every.saturating_sub(begin.elapsed()));
        }
    }

    /// Connects again after an error. Returns `None` if the command ends: the receiver is dropped, the selected process
    /// has ended, or the answer has another format.
    fn reconnect(&self, error: &Error, sender: &SyncSender<StatisticsMessage>) -> Option<Client> {
        let why = match error {
            Error::Ended(_) => "the program has ended".to_owned(),
            Error::Answer(..) => {
                let help = "the program may have another version, so use `dataplane stats --json`";
                let _ = sender.send(StatisticsMessage::Over(format!("{error}; help: {help}")));
                return None;
            }
            error => error.to_string(),
        };
        if let Some(process) = self.process
            && matches!(error, Error::Ended(_))
        {
            let _ = sender.send(StatisticsMessage::Over(format!("process {process} has ended")));
            return None;
        }
        loop {
            sender
                .send(StatisticsMessage::Lost(format!("{why}: waiting for the program to answer again (q quits)")))
                .ok()?;
            thread::sleep(RECONNECT_INTERVAL);
            let client = match &self.socket {
                Some(path) => Client::connect(path),
                None => self.process.map_or_else(Client::only, Client::of_process),
            };
            if let (None, Some(process), Err(Error::NoProcess(_) | Error::NotListening(_))) =
                (&self.socket, self.process, &client)
            {
                let _ = sender.send(StatisticsMessage::Over(format!("process {process} has ended")));
                return None;
            }
            if let Ok(client) = client {
                return Some(client);
            }
        }
    }
}
