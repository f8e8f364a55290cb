//! `stats`: shows live statistics of a running program.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::args;
use super::console::{self, CommandError};
use super::control::{Answer, Connection, Found, folders};
use dataplane_core::telemetry::Live;

pub(super) fn stats(args: &args::Stats) -> Result<(), CommandError> {
    let mut connection = match (&args.socket, args.process) {
        (Some(path), _) => at(path)?,
        (None, Some(process)) => of(process)?,
        (None, None) => only()?,
    };
    let mut is_first = true;
    loop {
        let asked = Instant::now();
        let Some(answer) = connection.stats().map_err(CommandError::Failed)? else {
            return match is_first {
                true => Err(CommandError::Failed("the program ended before it answered".to_owned())),
                false => {
                    console::write_line("the program has ended");
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

fn live(answer: Answer) -> Result<Live, CommandError> {
    let foreign = |error| {
        CommandError::Failed(format!(
            "cannot parse the answer: {error}; help: the program may have another version, so use --json"
        ))
    };
    serde_json::from_value(answer.value).map_err(foreign)
}

/// Connects to the program that listens on a socket.
fn at(path: &Path) -> Result<Connection, CommandError> {
    Connection::open(path).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => "no program listens on this socket".to_owned(),
            ErrorKind::WouldBlock => "the program has too many clients".to_owned(),
            // The error message already contains the path.
            ErrorKind::InvalidFilename => {
                return CommandError::Usage(format!(
                    "{error}; help: change to the folder of the socket and use a relative path"
                ));
            }
            _ => error.to_string(),
        };
        CommandError::Failed(format!("{}: {why}", path.display()))
    })
}

/// Connects to the program with this process id.
fn of(process: u32) -> Result<Connection, CommandError> {
    // Ignore sockets of other users, because any user can create a file with such a name.
    let there = Found::within(&folders()).own.into_iter().find(|(found, _)| *found == process);
    let none = || {
        CommandError::Failed(format!(
            "process {process} has no control socket of this user in the default folders; help: use --socket PATH \
             for a socket that the config names or that another user owns"
        ))
    };
    at(&there.ok_or_else(none)?.1)
}

/// Connects to the only running program.
fn only() -> Result<Connection, CommandError> {
    let Found { own, others } = Found::within(&folders());
    // Sockets of killed programs do not accept connections.
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
            Err(CommandError::Usage(format!(
                "several programs are running; help: choose a program with `dataplane stats PROCESS`\n{}",
                lines.join("\n")
            )))
        }
        (_, None) => {
            let others = match others {
                0 => String::new(),
                others => {
                    format!(", but {others} of other users; help: run as the other user, or as root with --socket PATH")
                }
            };
            Err(CommandError::Failed(format!("no running program of this user{others}")))
        }
    }
}
