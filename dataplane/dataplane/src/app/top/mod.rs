//! `top`: watches a running program on a screen.

mod model;
mod screen;
mod tables;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::args;
use super::console::{self, CommandError};
use super::stats;
use dataplane_control::{Answer, Call, Client, Error};
use dataplane_core::telemetry::Live;
use screen::{Connection, Screen};

/// The maximum time to wait for a key, before the loop checks for new samples and signals.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
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
    let sampler = Sampler { socket: program.socket.clone(), process: program.process, every: args.every };
    let spawned = thread::Builder::new().name("samples".to_owned()).spawn(move || sampler.run(client, &sender));
    spawned.map_err(|error| CommandError::Failed(format!("cannot start a thread: {error}")))?;
    let failed = |error: std::io::Error| CommandError::Failed(format!("the terminal: {error}"));
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register_usize(number, signal.clone(), number as usize).map_err(failed)?;
    }
    // From here on, a panic restores the terminal too.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = watch(&mut terminal, &samples, &signal);
    ratatui::restore();
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

/// A message from the thread that requests the statistics to the screen.
enum Sample {
    Live(Box<Live>),
    /// The program does not answer, for this reason. The thread connects again.
    Lost(String),
    /// The reason why the command ends: the selected process has ended, or the answer has another format.
    Over(String),
}

/// Draws the screen until a key or a signal ends the command, or until there is nothing to watch any more. Returns the
/// reason in the last case.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    samples: &Receiver<Sample>,
    signal: &AtomicUsize,
) -> std::io::Result<Option<String>> {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut screen = Screen::new(has_colours);
    let mut is_changed = true;
    while signal.load(Ordering::Relaxed) == 0 {
        loop {
            match samples.try_recv() {
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Ok(Some("the thread that requests samples has ended".to_owned()));
                }
                Ok(Sample::Live(_)) if screen.is_paused() => continue,
                Ok(Sample::Live(live)) => {
                    screen.model.update(*live);
                    screen.connection = Connection::Open;
                }
                Ok(Sample::Lost(why)) => screen.connection = Connection::Lost(why),
                Ok(Sample::Over(why)) => return Ok(Some(why)),
            }
            is_changed = true;
        }
        if std::mem::take(&mut is_changed) {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        if event::poll(POLL_INTERVAL)? {
            match event::read()? {
                Event::Key(key) if !screen.press(key) => return Ok(None),
                _ => is_changed = true,
            }
        }
    }
    Ok(None)
}

/// The thread that requests the statistics.
struct Sampler {
    socket: Option<std::path::PathBuf>,
    process: Option<u32>,
    every: Duration,
}

impl Sampler {
    /// Requests statistics until the receiver of the samples is dropped.
    fn run(&self, mut client: Client, sender: &SyncSender<Sample>) {
        loop {
            let begin = Instant::now();
            let sample = match client.call(&Call::Stats {}).and_then(|answer: Answer| answer.parse()) {
                Ok(live) => Sample::Live(Box::new(live)),
                Err(error) => match self.reconnect(&error, sender) {
                    Some(again) => {
                        client = again;
                        continue;
                    }
                    None => return,
                },
            };
            match sender.try_send(sample) {
                // The screen has not taken the previous sample yet, so it misses this sample.
                Ok(()) | Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return,
            }
            thread::sleep(self.every.saturating_sub(begin.elapsed()));
        }
    }

    /// Connects again after an error. Returns `None` if the command ends: the receiver is dropped, the selected process
    /// has ended, or the answer has another format.
    fn reconnect(&self, error: &Error, sender: &SyncSender<Sample>) -> Option<Client> {
        let why = match error {
            Error::Ended(_) => "the program has ended".to_owned(),
            Error::Answer(..) => {
                let help = "the program may have another version, so use `dataplane stats --json`";
                let _ = sender.send(Sample::Over(format!("{error}; help: {help}")));
                return None;
            }
            error => error.to_string(),
        };
        if let Some(process) = self.process
            && matches!(error, Error::Ended(_))
        {
            let _ = sender.send(Sample::Over(format!("process {process} has ended")));
            return None;
        }
        loop {
            sender.send(Sample::Lost(format!("{why}: waiting for it to start again (q quits)"))).ok()?;
            thread::sleep(RECONNECT_INTERVAL);
            let client = match &self.socket {
                Some(path) => Client::connect(path),
                None => self.process.map_or_else(Client::only, Client::of_process),
            };
            if let Ok(client) = client {
                return Some(client);
            }
        }
    }
}
