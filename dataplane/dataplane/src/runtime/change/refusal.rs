//! The reasons why the program refuses a change.

use crate::config::{Diagnostics, Level, Record};
use dataplane_control::change::ConfigMistake;
use dataplane_control::{ErrorCode, Refusal};
use dataplane_core::units::CoreId;

/// Returns the refusal of a config with mistakes.
pub(super) fn wrong_config(diagnostics: &Diagnostics) -> Refusal {
    let mistakes = mistakes(diagnostics);
    let errors = mistakes.iter().filter(|mistake| mistake.level == "error").count();
    let words = if errors == 1 { "1 mistake".to_owned() } else { format!("{errors} mistakes") };
    let message = format!("{words} in {}", diagnostics.source().path().display());
    let mut refusal = Refusal::new(ErrorCode::WrongConfig, message, "fix the config; nothing has changed");
    refusal.mistakes = mistakes.into();
    refusal
}

/// Returns the mistakes of a config, as records for clients.
pub(super) fn mistakes(diagnostics: &Diagnostics) -> Vec<ConfigMistake> {
    let mistake = |record: Record| {
        let Record { level, file, line, column, message, help } = record;
        let level = if level == Level::Error { "error" } else { "warning" };
        ConfigMistake { level: level.to_owned(), file, line, column, message, help }
    };
    diagnostics.records().into_iter().map(mistake).collect()
}

/// Returns the refusal of a change that this host cannot carry out.
pub(super) fn failed(error: &dataplane_core::error::Error) -> Refusal {
    Refusal::new(ErrorCode::Failed, error.to_string(), "the program runs the same config as before")
}

/// Returns the refusal of a change that panicked.
pub(super) fn panicked(message: &str) -> Refusal {
    Refusal::new(
        ErrorCode::Failed,
        format!("a stage panicked: {message}"),
        "the program runs the same config as before",
    )
}

/// Returns the refusal of a change whose added ports cannot be opened.
pub(super) fn not_opened(error: &dataplane_core::error::Error) -> Refusal {
    unchanged("an added port cannot be opened", error)
}

/// Returns the refusal of a change because an added worker cannot be started.
pub(super) fn not_started(error: &dataplane_core::error::Error) -> Refusal {
    unchanged("an added worker cannot be started", error)
}

fn unchanged(what: &str, error: &dataplane_core::error::Error) -> Refusal {
    let error = error.to_string();
    let unchanged = "the program runs the same config as before";
    let (why, help) = match error.split_once("; help: ") {
        Some((why, help)) => (why, format!("{help}; {unchanged}")),
        None => (&*error, unchanged.to_owned()),
    };
    Refusal::new(ErrorCode::Failed, format!("{what}: {why}"), help)
}

/// Returns the refusal of a change because a worker cannot run on a core.
pub(super) fn not_moved(worker: usize, core: CoreId, error: &dyn std::error::Error) -> Refusal {
    let message = format!("worker {worker} cannot move to core {core}: {error}");
    let help =
        "the program runs the same config as before; name a core that is online and in the cpuset of the program";
    Refusal::new(ErrorCode::Failed, message, help)
}

pub(super) fn busy(message: impl Into<String>, help: &str) -> Refusal {
    Refusal::new(ErrorCode::Busy, message, help)
}

pub(super) fn nothing_unconfirmed() -> Refusal {
    let help = "`dataplane history` lists the changes of the run";
    Refusal::new(ErrorCode::Failed, "no change waits for a confirmation", help)
}

/// Returns the refusal of a change because the run is ending.
pub(super) fn ending() -> Refusal {
    Refusal::new(ErrorCode::Failed, "the run is stopping", "start the program with the new config")
}

/// Returns the refusal of a change because a worker does not answer.
pub(super) fn silent(worker: usize) -> Refusal {
    let message = format!("worker {worker} does not answer, so nothing has changed");
    let help = "try again; if the worker never answers, a stage waits or blocks, so restart the program";
    Refusal::new(ErrorCode::Failed, message, help)
}
