//! Standard output and standard error, and how a command ends.

use std::io::{self, ErrorKind, IsTerminal, Write};

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use super::{args, control};
use crate::config::{self, Diagnostics, Level, Loaded, Mistake, Source};
use crate::error::Error;
use crate::pipeline::Registry;
use crate::runtime::{Assembly, assemble, assemble_offline};
use crate::topology::Topology;

/// Why a command ends before it is done.
#[derive(Debug)]
pub(super) enum Stop {
    /// The command line or the config is wrong.
    Usage(String),
    /// What was asked for could not be done.
    Failed(String),
    /// Nobody reads standard output any more.
    Pipe,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(message) => Self::Usage(message),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// Writes to standard output.
pub(super) fn print(text: &str) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Stop::Pipe,
        _ => Stop::Failed(format!("standard output: {error}")),
    })
}

/// Writes to standard output as JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Stop> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Stop::Failed(error.to_string()))?;
    print(&(text + "\n"))
}

/// Writes to standard error. That it cannot be written to is nothing that could be said.
pub(super) fn tell(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes a line to standard error.
pub(super) fn say(line: &str) {
    let clear = if is_watched() { CLEAR_LINE } else { "" };
    tell(&format!("{clear}{line}\n"));
}

/// Says why, if there is anything to say, and returns the status.
pub(super) fn fail(message: &str, status: i32) -> i32 {
    if !message.is_empty() {
        tell(&format!("error: {}\n", message.trim_end()));
    }
    status
}

/// Whether a person reads standard error.
pub(super) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Whether the process still has the terminal that it was started from, if it was from one.
pub(super) fn has_terminal() -> bool {
    io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal()
}

/// Whether colours are wanted on standard error (<https://no-color.org>).
fn is_coloured() -> bool {
    is_watched() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The escape sequence that takes back the line of progress, before anything else is written.
pub(super) const CLEAR_LINE: &str = "\r\x1b[2K";

/// Sends logs to standard error: warnings, or more.
pub(super) fn log(verbose: u8) {
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let writer = || {
        if is_watched() {
            tell(CLEAR_LINE);
        }
        io::stderr()
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(is_coloured());
    // An app that has set up logs of its own keeps them.
    // That nobody reads them is no reason to say so, nor to end.
    let _ = logs.without_time().with_target(false).log_internal_errors(false).try_init();
}

/// The mistakes of a config.
pub(super) fn show(diagnostics: &Diagnostics) {
    tell(&diagnostics.render(is_coloured()));
}

/// How many mistakes there are, in words. What rests on something that is wrong has not been checked.
pub(super) fn count(diagnostics: &Diagnostics) -> String {
    let mistakes = diagnostics.mistakes();
    let errors = mistakes.iter().filter(|mistake| mistake.level == Level::Error).count();
    let words = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let warnings = match mistakes.len() - errors {
        0 => String::new(),
        warnings => format!(" and {}", words(warnings, "warning")),
    };
    let (file, errors) = (diagnostics.source().path().display(), words(errors, "mistake"));
    format!("{errors}{warnings} in {file}; there may be more, which show once these are mended")
}

/// Reads a config file.
pub(super) fn source(config: &args::Config) -> Result<Source, Stop> {
    Source::read(&config.path, &config.settings).map_err(|error| Stop::Usage(error.to_string()))
}

/// Reads and checks a config for this machine; its mistakes are shown.
pub(super) fn assembly(config: &args::Config, registry: &Registry, topology: Topology) -> Result<Assembly, Stop> {
    checked(config, |source, diagnostics| assemble_here(source, registry, topology, diagnostics))
}

/// Checks a config for this machine, and where it wants to be asked.
pub(super) fn assemble_here(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Assembly> {
    let assembly = assemble(source, registry, topology, diagnostics)?;
    let Some((what, fix)) = control::flaw(&assembly.plan.runtime.control) else { return Some(assembly) };
    diagnostics.push(Mistake::error(loaded(source).locate("runtime.control"), what).help(fix));
    None
}

/// A config that has been checked, again: to find out where its keys are.
pub(super) fn loaded(source: &Source) -> Loaded<'_> {
    config::load(source, &mut Diagnostics::new(source))
}

/// Reads and checks a config to look at it, whatever machine it is for; its mistakes are shown.
pub(super) fn offline_assembly(config: &args::Config, registry: &Registry) -> Result<Assembly, Stop> {
    checked(config, |source, diagnostics| assemble_offline(source, registry, diagnostics))
}

fn checked(
    config: &args::Config,
    assemble: impl FnOnce(&Source, &mut Diagnostics) -> Option<Assembly>,
) -> Result<Assembly, Stop> {
    let source = source(config)?;
    let mut diagnostics = Diagnostics::new(&source);
    let assembly = assemble(&source, &mut diagnostics);
    show(&diagnostics);
    assembly.ok_or_else(|| Stop::Usage(count(&diagnostics)))
}
