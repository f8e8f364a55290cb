//! Standard output, standard error, and the errors of commands.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

use annotate_snippets::normalize_untrusted_str;
use serde::Serialize;

use super::{args, control, metrics};
use crate::config::{self, Diagnostics, Level, Loaded, Mistake, Source};
use crate::runtime::{Assembly, assemble, assemble_offline};
use dataplane_core::error::{Error, THREAD_REMEDY};
use dataplane_core::pipeline::Registry;
use dataplane_core::stderr;
use dataplane_core::topology::Topology;

/// The reason why a command ended early.
#[derive(Debug)]
pub(super) enum CommandError {
    /// The command line or the config is wrong.
    Usage(String),
    /// The command failed.
    Failed(String),
    /// The reader of standard output closed the pipe.
    Pipe,
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(message) => Self::Usage(message),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// Writes to standard output.
pub(super) fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CommandError::Pipe,
        _ => CommandError::Failed(format!("standard output: {error}")),
    })
}

/// Returns the error of an output file that cannot be written. If the disk is full, the file may contain a part of the
/// output.
pub(super) fn not_written(file: impl Display, error: &io::Error) -> CommandError {
    let help = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; help: the file is not complete; make room on the disk, or name a file on another disk"
        }
        _ => "",
    };
    CommandError::Failed(format!("{file}: {error}{help}"))
}

/// Returns the error of a thread that cannot be started.
pub(super) fn no_thread(error: io::Error) -> CommandError {
    CommandError::Failed(format!("cannot start a thread: {error}; help: {THREAD_REMEDY}"))
}

/// Writes to standard output as JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CommandError::Failed(error.to_string()))?;
    print(&(text + "\n"))
}

/// Writes a line to standard error.
pub(super) fn write_line(line: &str) {
    stderr::write(&format!("{line}\n"));
}

/// Returns `true` if standard error is a terminal.
pub(super) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Returns `true` if the process still has a terminal on a standard stream.
pub(super) fn has_terminal() -> bool {
    io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal()
}

/// Returns `true` if output to standard error may use colours (<https://no-color.org>).
pub(super) fn is_coloured() -> bool {
    is_watched() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The escape sequence that clears the progress line before other output.
pub(super) const CLEAR_LINE: &str = "\r\x1b[2K";

/// Prints the mistakes of a config.
pub(super) fn show(diagnostics: &Diagnostics) {
    stderr::write(&diagnostics.render(is_coloured()));
}

/// Returns the path of the config without control characters, which a terminal could execute.
fn shown(diagnostics: &Diagnostics) -> String {
    normalize_untrusted_str(&diagnostics.source().path().display().to_string())
}

/// Returns the number of mistakes in words, with a note that further checks run after these mistakes are fixed.
fn count(diagnostics: &Diagnostics) -> String {
    let mistakes = diagnostics.mistakes();
    let errors = mistakes.iter().filter(|mistake| mistake.level == Level::Error).count();
    let words = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let warnings = match mistakes.len() - errors {
        0 => String::new(),
        warnings => format!(" and {}", words(warnings, "warning")),
    };
    let (file, errors) = (shown(diagnostics), words(errors, "mistake"));
    format!("{errors}{warnings} in {file} (further checks run after these are fixed)")
}

/// Returns the error for a config that cannot be run. If this host lacks a resource, the config is not wrong, and the
/// error is a failure of the command.
pub(super) fn refusal(diagnostics: &Diagnostics) -> CommandError {
    match diagnostics.has_host_problem() {
        true => CommandError::Failed(format!("{} cannot be read", shown(diagnostics))),
        false => CommandError::Usage(count(diagnostics)),
    }
}

/// Reads a config file. Returns the mistake if the file cannot be read.
pub(super) fn source(config: &args::Config) -> Result<Source, Diagnostics> {
    Source::read(&config.path, &config.settings)
}

/// Reads and checks a config for this host. Prints the mistakes in the config.
///
/// `source` is the text of the config, if it does not come from the file.
pub(super) fn assembly(
    config: &args::Config,
    source: Option<Source>,
    registry: &Registry,
    topology: Topology,
) -> Result<Assembly, CommandError> {
    checked(config, source, |source, diagnostics| assemble_here(source, registry, topology, diagnostics))
}

/// Checks a config for this host, and checks its sockets. Returns `None` if the config has mistakes.
pub(super) fn assemble_here(
    source: &Source,
    registry: &Registry,
    topology: Topology,
    diagnostics: &mut Diagnostics,
) -> Result<Option<Assembly>, Error> {
    let Some(assembly) = assemble(source, registry, topology, diagnostics)? else { return Ok(None) };
    let problem = control::problem(&assembly.plan.runtime.control).map(|problem| ("runtime.control", problem));
    let problem = problem.or_else(|| Some(("runtime.metrics", metrics::problem(&assembly.plan.runtime.metrics)?)));
    let problem = problem.or_else(|| Some(("runtime.control_group", control::group_problem(&assembly.plan.runtime)?)));
    let Some((key, (what, fix))) = problem else { return Ok(Some(assembly)) };
    diagnostics.push(Mistake::error(loaded(source).locate(key), what).help(fix));
    Ok(None)
}

/// Loads a config again, to find the positions of its keys. The mistakes of the config have already been reported.
pub(super) fn loaded(source: &Source) -> Loaded<'_> {
    config::load(source, &mut Diagnostics::new(source))
}

/// Reads and checks a config for a command that does not run the config. The check does not depend on this host. Prints
/// the mistakes in the config.
pub(super) fn offline_assembly(config: &args::Config, registry: &Registry) -> Result<Assembly, CommandError> {
    checked(config, None, |source, diagnostics| assemble_offline(source, registry, diagnostics))
}

fn checked(
    config: &args::Config,
    source: Option<Source>,
    assemble: impl FnOnce(&Source, &mut Diagnostics) -> Result<Option<Assembly>, Error>,
) -> Result<Assembly, CommandError> {
    let source = source.map_or_else(|| self::source(config), Ok);
    let source = source.map_err(|mistake| {
        show(&mistake);
        refusal(&mistake)
    })?;
    let mut diagnostics = Diagnostics::new(&source);
    let assembly = assemble(&source, &mut diagnostics);
    show(&diagnostics);
    assembly?.ok_or_else(|| refusal(&diagnostics))
}
