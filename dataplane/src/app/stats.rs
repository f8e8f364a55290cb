//! `stats`: what a program that runs is doing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::args;
use super::console::{self, Stop};
use super::control::{Answer, Connection, Found, folders};
use crate::telemetry::Live;

pub(super) fn stats(args: &args::Stats) -> Result<(), Stop> {
    let mut connection = match (&args.socket, args.process) {
        (Some(path), _) => at(path)?,
        (None, Some(process)) => of(process)?,
        (None, None) => only()?,
    };
    let mut is_first = true;
    loop {
        let asked = Instant::now();
        let Some(answer) = connection.stats().map_err(Stop::Failed)? else {
            return match is_first {
                true => Err(Stop::Failed("the program ended before it answered".to_owned())),
                false => {
                    console::say("the program has ended");
                    Ok(())
                }
            };
        };
        match args.json {
            true => console::print(&answer.line)?,
            false => console::print(&format!("{}{}", if is_first { "" } else { "\n" }, live(answer)?))?,
        }
        let Some(every) = args.every else { return Ok(()) };
        is_first = false;
        thread::sleep(every.saturating_sub(asked.elapsed()));
    }
}

fn live(answer: Answer) -> Result<Live, Stop> {
    let foreign = |error| Stop::Failed(format!("an answer that this version cannot read; --json shows it: {error}"));
    serde_json::from_value(answer.value).map_err(foreign)
}

/// The program that listens at a socket.
fn at(path: &Path) -> Result<Connection, Stop> {
    Connection::open(path).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => "no program listens there".to_owned(),
            ErrorKind::WouldBlock => "the program has too many clients".to_owned(),
            // It names the path by itself.
            ErrorKind::InvalidFilename => {
                return Stop::Usage(format!("{error}: go to its folder, and name it from there"));
            }
            _ => error.to_string(),
        };
        Stop::Failed(format!("{}: {why}", path.display()))
    })
}

/// The program that is this process.
fn of(process: u32) -> Result<Connection, Stop> {
    // What others call so may be anything.
    let there = Found::within(&folders()).own.into_iter().find(|(found, _)| *found == process);
    let none = || {
        Stop::Failed(format!(
            "process {process} has no socket of this user here; one that its config names, or of another user, is found \
             by --socket PATH"
        ))
    };
    at(&there.ok_or_else(none)?.1)
}

/// The program that runs, if it is one.
fn only() -> Result<Connection, Stop> {
    let Found { own, others } = Found::within(&folders());
    // Sockets of programs that were killed answer nothing.
    let open = |(process, path): &(u32, PathBuf)| Connection::open(path).ok().map(|connection| (*process, connection));
    let mut running: Vec<(u32, Connection)> = own.iter().filter_map(open).collect();
    match (running.len(), running.pop()) {
        (1, Some((_, connection))) => Ok(connection),
        (_, Some(last)) => {
            running.push(last);
            let line = |(process, mut connection): (u32, Connection)| {
                let live = connection.stats().ok().flatten().and_then(|answer| live(answer).ok());
                let what = live.map_or("does not answer".to_owned(), |live| {
                    format!("{}, for {:.0} s", live.config, live.report.duration_s)
                });
                format!("  {process}  {what}")
            };
            let lines: Vec<String> = running.into_iter().map(line).collect();
            Err(Stop::Usage(format!("several programs run: say which, as in `stats PROCESS`\n{}", lines.join("\n"))))
        }
        (_, None) => {
            let others = match others {
                0 => String::new(),
                others => format!("; of other users there are {others}: ask as that user, or as root by --socket PATH"),
            };
            Err(Stop::Failed(format!("no program runs that can be asked{others}")))
        }
    }
}
