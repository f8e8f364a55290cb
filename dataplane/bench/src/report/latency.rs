//! The result of `bench latency`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::parts::RateReport;
use super::units::{Nanoseconds, Percent, Pps};

/// The report of `bench latency`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LatencyStepsReport {
    /// The command: `latency`.
    pub method: String,
    /// The host and the program of the trials.
    pub environment: Environment,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// The highest rate in packets per second, summed over all streams. The loads are shares of this rate.
    pub highest_pps: f64,
    /// The loads, from the lowest to the highest.
    pub steps: Vec<LatencyStep>,
}

/// The trial at a load.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LatencyStep {
    /// The load as a share of the highest rate.
    pub share: f64,
    /// The result of the trial.
    pub trial: RateReport,
}

impl fmt::Display for LatencyStepsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.steps.iter().flat_map(|step| step.trial.streams.iter()).map(|it| it.name.chars().count());
        let width = names.max().unwrap_or(0).max(6);
        let header = ["load", "sent", "loss", "min", "p50", "p90", "p99", "p99.9", "max"];
        write!(f, "{:width$}", "stream")?;
        header.iter().try_for_each(|name| write!(f, " {name:>12}"))?;
        writeln!(f)?;
        for LatencyStep { share, trial } in &self.steps {
            for stream in &trial.streams {
                let times = &stream.latency_ns;
                let values = [times.min, times.p50, times.p90, times.p99, times.p99_9, times.max];
                let (sent, loss) = (Pps(stream.traffic.sent_pps), Percent(stream.traffic.loss_ratio).to_string());
                write!(f, "{:width$} {:>10.0} % {sent:>12} {loss:>12}", stream.name, share * 100.0)?;
                values.iter().try_for_each(|value| write!(f, " {:>12}", Nanoseconds(*value)))?;
                writeln!(f)?;
            }
        }
        for LatencyStep { share, trial } in &self.steps {
            let at = |text: &String| format!("at {:.0} %: {text}", share * 100.0);
            trial.tester.limits.iter().try_for_each(|limit| writeln!(f, "TESTER LIMIT: {}", at(limit)))?;
            trial.tester.disturbances.iter().try_for_each(|note| writeln!(f, "DISTURBED: {}", at(note)))?;
        }
        self.environment.note_calibration(f)?;
        if self.stopped { writeln!(f, "INCOMPLETE: stopped before the end") } else { Ok(()) }
    }
}
