//! `stats`: shows live statistics of a running program.

use std::path::Path;
use std::thread;
use std::time::Instant;

use super::args;
use super::console::{self, CommandError};
use dataplane_control::{Call, Client, Error};
use dataplane_core::telemetry::LiveStatistics;

pub(super) fn stats(args: &args::Stats) -> Result<(), CommandError> {
    let mut client = connect(args.program.socket.as_deref(), args.program.process, "dataplane stats PROCESS")?;
    let mut is_first = true;
    loop {
        let asked = Instant::now();
        let answer = match client.call(&Call::Stats {}) {
            Err(Error::Ended(_)) if !is_first => {
                console::write_line("the program has ended");
                return Ok(());
            }
            answer => answer.map_err(|error| failed(error, ""))?,
        };
        if args.json {
            console::print(&format!("{}\n", answer.json()))?;
        } else {
            let live: LiveStatistics = answer.parse().map_err(|error| {
                CommandError::Failed(format!("{error}; help: the program may have another version, so use --json"))
            })?;
            console::print(&format!("{}{live}", if is_first { "" } else { "\n" }))?;
        }
        let Some(every) = args.every else { return Ok(()) };
        is_first = false;
        thread::sleep(every.saturating_sub(asked.elapsed()));
    }
}

/// Connects to the program that the arguments select. `example` is a command line that selects one of several programs.
pub(super) fn connect(socket: Option<&Path>, process: Option<u32>, example: &str) -> Result<Client, CommandError> {
    let client = match (socket, process) {
        (Some(path), _) => Client::connect(path),
        (None, Some(process)) => Client::of_process(process),
        (None, None) => Client::only(),
    };
    client.map_err(|error| failed(error, example))
}

/// Adds the options of the command line that fix an error.
pub(super) fn failed(error: Error, example: &str) -> CommandError {
    let help = match &error {
        Error::Several(_) => return CommandError::Usage(several(example)),
        Error::Path(_) => {
            return CommandError::Usage(format!(
                "{error}; help: change to the folder of the socket and use a relative path"
            ));
        }
        Error::NoProcess(_) => "use --socket PATH for a socket that the config names or that another user owns",
        Error::NotRunning { others } if *others > 0 => "run as the other user, or as root with --socket PATH",
        Error::NotRunning { .. } => {
            "start one with `dataplane run CONFIG`, or use --socket PATH if its config has a path in `runtime.control`"
        }
        _ => return CommandError::Failed(error.to_string()),
    };
    CommandError::Failed(format!("{error}; help: {help}"))
}

/// Returns the message that lists the running programs.
fn several(example: &str) -> String {
    let line = |(process, mut client): (u32, Client)| {
        let what = client
            .hello()
            .map_or("does not answer".to_owned(), |hello| format!("{}, for {:.0} s", hello.config, hello.running_s));
        format!("  {process}  {what}")
    };
    let lines: Vec<String> = Client::all().0.into_iter().map(line).collect();
    format!("several programs are running; help: choose a program with `{example}`\n{}", lines.join("\n"))
}
