//! Changes of a running program.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of [`Call::Plan`](crate::Call::Plan).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangePlan {
    /// The digest of the config that the program uses.
    pub base: String,
    /// The digest of the new config.
    pub digest: String,
    /// The operations that change the program to the new config. Empty if no operation is necessary.
    pub operations: Vec<Operation>,
    /// Warnings about the new config.
    pub warnings: Vec<ConfigMistake>,
}

/// The result of [`Call::Apply`](crate::Call::Apply), [`Call::Confirm`](crate::Call::Confirm),
/// [`Call::Rollback`](crate::Call::Rollback) and [`Call::Reload`](crate::Call::Reload).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// The number of the change. See [`HistoryRow::number`].
    pub number: u64,
    /// The digest of the config that the program uses after the change.
    pub digest: String,
    /// The operations that the program has carried out.
    pub operations: Vec<Operation>,
    /// The time in seconds after which the change reverts, unless a client confirms the change. `None` if the change
    /// does not revert.
    pub confirm_s: Option<u64>,
    /// Warnings about the config, and about workers that do not answer.
    pub warnings: Vec<ConfigMistake>,
}

/// One step of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// The kind of the operation.
    pub operation: OperationKind,
    /// The name of the stage or port, the number of the worker, or the key of `[runtime]`.
    pub name: String,
    /// The keys that change.
    pub keys: Vec<String>,
    /// Whether the running program can carry out the operation without loss.
    pub hitless: bool,
    /// The reason why the operation is hitless, or why it needs a restart.
    pub why: String,
    /// The effect of the operation on the state of a stage. `None` unless the operation removes, replaces, renews or
    /// connects a stage without a restart.
    pub state: Option<String>,
}

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OperationKind {
    /// Adds a stage.
    AddStage,
    /// Removes a stage.
    RemoveStage,
    /// Replaces a stage by a stage with the same name and kind and other parameters, such as other rules or routes.
    ReplaceStage,
    /// Prepares a stage with the same parameters again, because the stage reads a file again, or because a next hop or
    /// a shared object of the stage changes.
    RenewStage,
    /// Connects the outputs of a stage to other stages.
    ConnectStage,
    /// Changes the first stage of the pipeline.
    ChangeEntry,
    /// Adds a port.
    AddPort,
    /// Removes a port.
    RemovePort,
    /// Changes a port.
    ChangePort,
    /// Adds a worker.
    AddWorker,
    /// Removes a worker.
    RemoveWorker,
    /// Moves a worker to another core.
    MoveWorker,
    /// Changes the number of workers or of packet buffers. Needs a restart.
    RestartWorkers,
    /// Changes a key of `[runtime]`.
    ChangeRuntime,
    /// An operation of a later version.
    #[serde(other)]
    Other,
}

impl OperationKind {
    /// Returns the operation in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::AddStage => "add stage",
            Self::RemoveStage => "remove stage",
            Self::ReplaceStage => "replace stage",
            Self::RenewStage => "renew stage",
            Self::ConnectStage => "connect stage",
            Self::ChangeEntry => "change entry",
            Self::AddPort => "add port",
            Self::RemovePort => "remove port",
            Self::ChangePort => "change port",
            Self::AddWorker => "add worker",
            Self::RemoveWorker => "remove worker",
            Self::MoveWorker => "move worker",
            Self::RestartWorkers => "restart workers because of",
            Self::ChangeRuntime => "change runtime",
            Self::Other => "other operation",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation.words(), self.name)?;
        if !self.keys.is_empty() {
            write!(f, " ({})", self.keys.join(", "))?;
        }
        write!(f, ": {}: {}", if self.hitless { "hitless" } else { "needs a restart" }, self.why)?;
        self.state.iter().try_for_each(|state| write!(f, "; {state}"))
    }
}

/// A mistake in a config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigMistake {
    /// `error` or `warning`.
    pub level: String,
    /// The name of the config, or an override on the command line, such as `--set runtime.burst=32`.
    pub file: String,
    /// The line, counted from 1. For a mistake in a file that a stage reads, `line` is 0, and `file` is the config key
    /// that names the file.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// The problem.
    pub message: String,
    /// The suggested fix.
    pub help: Option<String>,
}

impl fmt::Display for ConfigMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // For a mistake in a file of a stage, the message contains the position.
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message)?,
            line => write!(f, "{}:{line}:{}: {}: {}", self.file, self.column, self.level, self.message)?,
        }
        self.help.iter().try_for_each(|help| write!(f, "; help: {help}"))
    }
}

/// The start of the program or a change: a row of the result of [`Call::History`](crate::Call::History).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryRow {
    /// The number of the change. The start of the program has the number 0.
    pub number: u64,
    /// The time of the change, in seconds since 1970.
    pub time_s: u64,
    /// The digest of the config.
    pub digest: String,
    /// The number of operations.
    pub operations: u64,
    /// The origin of the change, such as `apply` or `reload`.
    pub cause: String,
    /// The state of the change.
    pub state: ChangeState,
}

/// The state of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeState {
    /// The program uses this config.
    InForce,
    /// The program uses this config, and reverts the change at its deadline, unless a client confirms the change.
    Unconfirmed,
    /// A later change replaced this config.
    Replaced,
    /// The change was reverted.
    Reverted,
}

/// The result of [`Call::History`](crate::Call::History).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// One row for the start of the program and one row for each of the last 31 changes, in the order of their numbers.
    pub changes: Vec<HistoryRow>,
}
