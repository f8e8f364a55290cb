//! `log level`: shows or sets the level of the log messages of a running program.

use super::args::{self, LogCommand};
use super::console::{self, CommandError};
use super::stats;
use dataplane_control::{Call, Log, LogLevel};

pub(super) fn log(args: &args::Log) -> Result<(), CommandError> {
    let LogCommand::Level(args) = &args.command;
    let example = "dataplane log level --process PROCESS";
    let mut client = stats::connect(args.socket.as_deref(), args.process, example)?;
    let call = Call::Log(Log { level: args.level.clone() });
    let answer = client.call(&call).map_err(|error| stats::failed(error, example))?;
    if args.json {
        return console::print(&format!("{}\n", answer.json()));
    }
    let LogLevel { level, previous } = answer.parse().map_err(|error| stats::failed(error, example))?;
    match level == previous {
        true => console::print(&format!("{level}\n")),
        false => console::print(&format!("{level} (before: {previous})\n")),
    }
}
