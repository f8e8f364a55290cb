//! `doctor --watch`: watches the host around a running program, and prints what changes.

mod parse;
mod sample;
#[cfg(test)]
mod tests;
mod text;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::super::console::{self, CommandError};
use super::super::{args, stats};
use dataplane_control::rows::{LinkRow, WorkerRow};
use dataplane_control::{Client, Error, Page, Show};
use dataplane_soft::doctor::Roots;
use sample::{HostSample, Interval, Subject, WatchedPort};

/// A command line for the error message if several programs run.
const EXAMPLE: &str = "dataplane doctor --watch --process PROCESS";

pub(super) fn watch(args: &args::Doctor) -> Result<(), CommandError> {
    let mut client = stats::connect(args.socket.as_deref(), args.process, EXAMPLE)?;
    let roots = Roots::real();
    let stopped = stop_signals()?;
    let Some(mut subject) = subject(&mut client)? else { return Ok(()) };
    let (mut before, mut begin) = (HostSample::read(&roots, &subject), Instant::now());
    if !args.json {
        console::print(&text::heading(&subject, &before.unavailable))?;
    }
    let mut count = 0u64;
    while args.samples.is_none_or(|samples| count < samples) {
        match stopped.recv_timeout(args.every.saturating_sub(begin.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            // Either a signal has arrived, or the thread that waits for signals has ended.
            _ => return Ok(()),
        }
        // A change of the config can add ports and workers.
        let Some(now) = self::subject(&mut client)? else { return Ok(()) };
        subject = now;
        let after = HostSample::read(&roots, &subject);
        let interval = Interval::between(&subject, &before, &after, begin.elapsed().as_secs_f64());
        begin = Instant::now();
        if args.json {
            let line = serde_json::to_string(&interval).map_err(|error| CommandError::Failed(error.to_string()))?;
            console::print(&(line + "\n"))?;
        } else {
            console::print(&text::lines(&interval, count == 0))?;
        }
        before = after;
        count += 1;
    }
    Ok(())
}

/// Returns a channel that receives a message when a signal asks the command to end. The second signal ends the command
/// at once.
fn stop_signals() -> Result<mpsc::Receiver<()>, CommandError> {
    let failed = |error| CommandError::Failed(format!("cannot handle signals: {error}"));
    let (sender, receiver) = mpsc::channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let wait = move || {
        for (number, signal) in signals.forever().enumerate() {
            if number > 0 {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            let _ = sender.send(());
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(receiver)
}

/// Asks the program for its workers and ports. Returns `None` if the program has ended.
fn subject(client: &mut Client) -> Result<Option<Subject>, CommandError> {
    match ask(client) {
        Ok(subject) => Ok(Some(subject)),
        Err(Error::Ended(_)) => {
            console::write_line("the program has ended");
            Ok(None)
        }
        Err(error) => Err(stats::failed(error, EXAMPLE)),
    }
}

fn ask(client: &mut Client) -> Result<Subject, Error> {
    let process = client.hello()?.pid;
    let cores = rows::<WorkerRow>(client, "workers")?.into_iter().map(|row| row.core).collect();
    let port = |row: LinkRow| {
        let LinkRow { port, device, device_port, interface, .. } = row;
        WatchedPort { port, device, device_port, interface }
    };
    let ports = rows(client, "links")?.into_iter().map(port).collect();
    Ok(Subject { process, cores, ports })
}

fn rows<T: serde::de::DeserializeOwned>(client: &mut Client, what: &str) -> Result<Vec<T>, Error> {
    let pages: Vec<Page> = client.show(Show { what: what.to_owned(), ..Show::default() }).collect::<Result<_, _>>()?;
    // A row of another version of the program is skipped.
    Ok(pages.iter().flat_map(|page| &page.rows).filter_map(|row| serde_json::from_str(row.get()).ok()).collect())
}
