//! The properties of the run that no snapshot contains, and the reasons why packets cannot pass.

use std::path::Path;

use tracing_appender::non_blocking::ErrorCounter;

use crate::config::Plan;
use crate::runtime::{Snapshot, WorkerState};

/// The properties of the run that no snapshot contains.
pub(in crate::app) struct Facts {
    pub(super) config: String,
    pub(super) buffer_size: u64,
    pub(super) stage_memory: Vec<(String, u64)>,
    /// Whether each port is an input.
    inputs: Vec<bool>,
    pub(super) logs_lost: ErrorCounter,
}

impl Facts {
    pub(in crate::app) fn of(plan: &Plan, config: &Path, logs_lost: ErrorCounter) -> Self {
        Self {
            config: config.display().to_string(),
            buffer_size: plan.runtime.buffer_size.into(),
            stage_memory: plan.stage_memory.iter().map(|(stage, bytes)| (stage.clone(), *bytes)).collect(),
            inputs: plan.ports.iter().map(|port| port.input).collect(),
            logs_lost,
        }
    }

    /// Returns the reasons why packets cannot pass: a worker makes no progress or has ended, or the link of an input
    /// port is down.
    pub(super) fn unready(&self, snapshot: &Snapshot) -> Vec<String> {
        let ports = snapshot.report().ports.iter().zip(&self.inputs);
        let down = ports.filter(|(port, input)| **input && port.link_up == Some(false));
        problems(snapshot)
            .into_iter()
            .chain(down.map(|(port, _)| format!("the link of port {} is down", port.name)))
            .collect()
    }
}

/// Returns a message for each worker that makes no progress or has ended.
pub(super) fn problems(snapshot: &Snapshot) -> Vec<String> {
    let why = |(number, state): (usize, &WorkerState)| match state {
        WorkerState::Running => None,
        WorkerState::Late => Some(format!("worker {number} makes no progress")),
        WorkerState::Ended => Some(format!("worker {number} has ended")),
    };
    snapshot.workers().iter().enumerate().filter_map(why).collect()
}
