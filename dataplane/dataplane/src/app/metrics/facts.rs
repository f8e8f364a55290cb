//! The properties of the run that no snapshot contains, and the reasons why packets cannot pass.

use std::path::Path;
use std::time::Duration;

use crate::config::{MetricsRules, Plan};
use crate::runtime::{Snapshot, WorkerState};

/// The properties of the run that no snapshot contains.
pub(in crate::app) struct Facts {
    pub(super) config: String,
    pub(super) buffer_size: u64,
    pub(super) burst: u64,
    pub(super) rules: MetricsRules,
    /// The maximum time that workers wait for packets in progress when the run stops.
    pub(super) drain_timeout: Duration,
}

impl Facts {
    pub(in crate::app) fn of(plan: &Plan, config: &Path) -> Self {
        Self {
            config: config.display().to_string(),
            buffer_size: plan.runtime.buffer_size.into(),
            burst: plan.runtime.burst.into(),
            rules: plan.runtime.metrics_rules,
            drain_timeout: plan.runtime.drain_timeout.0,
        }
    }
}

/// Returns the reasons why packets cannot pass: a worker makes no progress or has ended, or a required port that the
/// pipeline uses has no link or no peer.
pub(super) fn unready(snapshot: &Snapshot) -> Vec<String> {
    let mut reasons = problems(snapshot);
    let report = snapshot.report();
    for (port, state) in
        report.ports.iter().zip(&snapshot.ports).filter(|(_, state)| state.is_used && state.is_required)
    {
        if port.link_up == Some(false) {
            reasons.push(format!("the link of port {} is down", port.name));
        }
        if state.unconnected > 0 {
            let (name, lost, all) = (&port.name, state.unconnected, report.workers.len());
            reasons.push(format!("port {name} has no connection to its peer: {lost} of {all} queue pairs"));
        }
    }
    reasons
}

/// Returns a message for each worker that makes no progress or has ended.
pub(super) fn problems(snapshot: &Snapshot) -> Vec<String> {
    let why = |(number, state): (usize, &WorkerState)| match state {
        WorkerState::Running => None,
        WorkerState::Late => Some(match snapshot.at_work.get(number) {
            Some(Some(stage)) => format!("worker {number} makes no progress in stage {stage}"),
            _ => format!("worker {number} makes no progress"),
        }),
        WorkerState::Ended => Some(format!("worker {number} has ended")),
    };
    snapshot.workers().iter().enumerate().filter_map(why).collect()
}
