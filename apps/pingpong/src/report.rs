//! The report of a run.

use std::fmt;

use dataplane::telemetry::LatencyReport;
use serde::Serialize;

use crate::address::Address;
use crate::args::{Plan, Type};
use crate::check::Findings;
use crate::traffic::{Outcome, Role};

/// The report of one side.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// `client` or `server`.
    pub(crate) role: &'static str,
    /// The name of the device.
    pub(crate) device: String,
    /// The transport type.
    #[serde(rename = "type")]
    pub(crate) kind: Type,
    /// The address of the first local queue pair.
    pub(crate) local: String,
    /// The address of the first queue pair of the peer.
    pub(crate) remote: String,
    /// The message size in bytes.
    pub(crate) size: u32,
    /// The number of messages that each side should send.
    pub(crate) iterations: u64,
    /// The number of queue pairs.
    pub(crate) queue_pairs: u32,
    /// The number of messages in flight on each queue pair.
    pub(crate) window: u32,
    /// Whether the side slept on completion events instead of polling.
    pub(crate) events: bool,
    /// The number of messages sent.
    pub(crate) sent: u64,
    /// The number of messages received.
    pub(crate) received: u64,
    /// The number of received messages of the wrong size.
    pub(crate) wrong_size: u64,
    /// The results of the message check, with `--check`.
    pub(crate) check: Option<Findings>,
    /// The round-trip time in nanoseconds. `None` on the server, because only the client measures this time.
    pub(crate) latency_ns: Option<LatencyReport>,
    /// The duration of the exchange of messages in seconds.
    pub(crate) seconds: f64,
    /// The reason why the run failed.
    pub(crate) failure: Option<String>,
}

impl Report {
    /// Creates the report from the results of a run.
    pub(crate) fn new(
        plan: &Plan,
        role: Role,
        device: &str,
        local: Address,
        remote: Address,
        outcome: Outcome,
    ) -> Self {
        let is_client = role == Role::Client;
        let failure = outcome.failure.clone().or_else(|| verdict(plan, &outcome));
        Self {
            role: if is_client { "client" } else { "server" },
            device: device.to_owned(),
            kind: plan.kind,
            local: local.to_string(),
            remote: remote.to_string(),
            size: plan.size,
            iterations: plan.iterations,
            queue_pairs: plan.queue_pairs,
            window: plan.window,
            events: plan.events,
            sent: outcome.sent,
            received: outcome.received,
            wrong_size: outcome.wrong_size,
            check: outcome.findings,
            latency_ns: is_client.then(|| outcome.latency.report()),
            seconds: outcome.elapsed.as_secs_f64(),
            failure,
        }
    }
}

/// Returns the reason why a completed run counts as failed, or `None` if it is successful.
fn verdict(plan: &Plan, outcome: &Outcome) -> Option<String> {
    if outcome.wrong_size > 0 {
        let count = outcome.wrong_size;
        return Some(format!(
            "received messages with a length other than {} bytes: {count}; help: set the same --size on both sides",
            plan.size
        ));
    }
    let found = outcome.findings.as_ref().filter(|findings| findings.are_bad(plan.kind != Type::Ud))?;
    let hint = if found.good == 0 { "; help: use --check on both sides" } else { "" };
    let Findings { lost, duplicated, reordered, corrupt, .. } = found;
    Some(format!("messages: {lost} lost, {duplicated} duplicated, {reordered} reordered, {corrupt} corrupt{hint}"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, device, sent, received, size, seconds, .. } = self;
        let mode = if self.events { "events" } else { "polling" };
        writeln!(f, "{role} on {device}, {}, {mode}", self.kind)?;
        writeln!(f, "  local   {}", self.local)?;
        writeln!(f, "  remote  {}", self.remote)?;
        let rate = |amount: f64| if *seconds > 0.0 { amount / seconds } else { 0.0 };
        let bits = rate((sent + received) as f64 * f64::from(*size) * 8.0) / 1e6;
        writeln!(f, "  {sent} messages of {size} bytes sent, {received} received in {seconds:.3} s: {bits:.2} Mbit/s")?;
        if let Some(findings) = &self.check {
            let Findings { good, lost, duplicated, reordered, corrupt } = findings;
            writeln!(
                f,
                "  checked: {good} good, {lost} lost, {duplicated} duplicated, {reordered} reordered, {corrupt} corrupt"
            )?;
        }
        if let Some(LatencyReport { p50, p90, p99, p999, max, source, .. }) = &self.latency_ns {
            writeln!(
                f,
                "  round trip in ns, {source} clock: p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}"
            )?;
        }
        if let Some(failure) = &self.failure {
            writeln!(f, "  FAILED: {failure}")?;
        }
        Ok(())
    }
}
