//! Results that are stored in files.

use std::io;
use std::path::Path;

use dataplane::{Error, Result};
use dataplane_core::file;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::report::{
    CalibrationReport, CounterReport, Environment, LatencyStep, LatencyStepsReport, RateReport, Rfc2544Report,
    SearchReport, SoakReport,
};

/// The maximum size of a file with a result, in bytes.
const MAX_RESULT: u64 = 1 << 30;

/// Reads a regular text file of at most `most` bytes.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String> {
    let bytes = file::read_text(path, most);
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    text.map_err(|source| Error::File { path: path.to_owned(), source })
}

/// A result in the form in which files store it.
#[derive(Clone, Debug)]
pub enum Stored {
    /// The result of `rate`.
    Rate(Box<RateReport>),
    /// The result of `ndr` and `pdr`.
    Search(Box<SearchReport>),
    /// The result of `calibrate`.
    Calibration(Box<CalibrationReport>),
    /// The result of `rfc2544`.
    Rfc2544(Box<Rfc2544Report>),
    /// The result of `latency`.
    Latency(Box<LatencyStepsReport>),
    /// The result of `soak`.
    Soak(Box<SoakReport>),
}

/// The reason why a text is no [`Stored`].
enum Unreadable {
    /// The text is a result of this method, which `bench html` and `bench compare` do not support.
    Method(String),
    /// The text is not a result.
    NoResult(String),
}

impl Stored {
    /// Reads a result from a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a result.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path, MAX_RESULT)?;
        Self::parse(&text).map_err(|why| {
            let path = path.display();
            Error::Config(match why {
                Unreadable::Method(method) => format!(
                    "{path} is a result of `bench {method}`, which `bench html` and `bench compare` do not support; help: read the JSON"
                ),
                Unreadable::NoResult(why) => format!(
                    "{path} is not a result of `bench`: {why}; help: create a result with dataplane bench METHOD --json > result.json"
                ),
            })
        })
    }

    fn parse(text: &str) -> Result<Self, Unreadable> {
        if text.starts_with("{\"line\":") {
            return SoakReport::parse(text).map(Box::new).map(Self::Soak).map_err(Unreadable::NoResult);
        }
        let value: Value = serde_json::from_str(text).map_err(|error| Unreadable::NoResult(error.to_string()))?;
        fn read<T: DeserializeOwned>(value: Value) -> Result<Box<T>, Unreadable> {
            serde_json::from_value(value).map(Box::new).map_err(|error| Unreadable::NoResult(error.to_string()))
        }
        match value.get("method").and_then(Value::as_str) {
            Some("rate") => read(value).map(Self::Rate),
            Some("ndr" | "pdr") => read(value).map(Self::Search),
            Some("rfc2544") => read(value).map(Self::Rfc2544),
            Some("latency") => read(value).map(Self::Latency),
            None if value.get("calibration").is_some() => read(value).map(Self::Calibration),
            None => Err(Unreadable::NoResult("it has no key `method`".to_owned())),
            Some(method @ ("flows" | "verbs")) => Err(Unreadable::Method(method.to_owned())),
            Some(other) => Err(Unreadable::NoResult(format!("the method `{other}` is unknown"))),
        }
    }

    /// Returns the name of the method.
    pub fn method(&self) -> &str {
        match self {
            Self::Rate(report) => &report.method,
            Self::Search(report) => &report.method,
            Self::Calibration(_) => "calibrate",
            Self::Rfc2544(_) => "rfc2544",
            Self::Latency(_) => "latency",
            Self::Soak(_) => "soak",
        }
    }

    /// Returns the host and the program of the trials.
    pub fn environment(&self) -> &Environment {
        match self {
            Self::Rate(report) => &report.environment,
            Self::Search(report) => &report.environment,
            Self::Calibration(report) => &report.max.environment,
            Self::Rfc2544(report) => &report.environment,
            Self::Latency(report) => &report.environment,
            Self::Soak(report) => &report.start.environment,
        }
    }

    /// Returns the reasons why the result cannot be used.
    pub fn defects(&self) -> Vec<String> {
        let mut defects = Vec::new();
        let (stopped, unaccounted) = match self {
            Self::Rate(report) => (report.stopped, report.unaccounted),
            Self::Search(report) => (report.stopped, 0),
            Self::Rfc2544(report) => (report.stopped, 0),
            Self::Latency(report) => {
                (report.stopped, report.steps.iter().map(|step| step.trial.unaccounted.abs()).sum())
            }
            Self::Soak(report) => match &report.end {
                Some(end) => (end.stopped, end.unaccounted),
                None => (true, 0),
            },
            Self::Calibration(report) => (
                report.max.stopped || report.half.stopped,
                report.max.unaccounted.abs() + report.half.unaccounted.abs(),
            ),
        };
        if stopped {
            defects.push("was stopped before its end".to_owned());
        }
        if unaccounted != 0 {
            defects.push(format!("has counters that do not balance: {unaccounted} packets are unaccounted"));
        }
        let trials: Vec<&RateReport> = match self {
            Self::Rate(report) => vec![report],
            Self::Calibration(report) => vec![&report.max, &report.half],
            Self::Latency(report) => report.steps.iter().map(|step| &step.trial).collect(),
            Self::Soak(report) => report.end.iter().map(|end| &**end).collect(),
            Self::Search(_) | Self::Rfc2544(_) => Vec::new(),
        };
        let mut ports: Vec<&str> = trials.iter().flat_map(|trial| trial.ports_with_link_down()).collect();
        ports.dedup();
        defects.extend(ports.iter().map(|port| format!("was measured while the link of the port `{port}` was down")));
        if let Self::Search(report) = self {
            let incomplete = report.goals.iter().filter(|goal| !goal.complete);
            defects.extend(incomplete.map(|goal| format!("has an incomplete result of {}", goal.name)));
        }
        defects
    }

    /// Returns the reasons why the result may show a limit or a disturbance of the tester.
    pub fn doubts(&self) -> Vec<String> {
        match self {
            Self::Rate(report) => {
                let changed = report.by_counters.map(|counters| {
                    let CounterReport { sent, arrived, .. } = counters;
                    format!(
                        "no packet arrived with its signature; by the counters, {arrived} of {sent} packets arrived"
                    )
                });
                let notes = [&report.tester.limits[..], &report.tester.disturbances].concat();
                changed.into_iter().chain(notes).collect()
            }
            Self::Search(report) => {
                // Only the trials at the bounds decide the result.
                let bounds = report.goals.iter().flat_map(|goal| [&goal.lower, &goal.upper]).flatten();
                let loads: Vec<f64> = bounds.map(|bound| bound.pps).collect();
                let near = |trial: &&crate::report::TrialReport| loads.contains(&trial.pps) && !trial.ignored;
                let doubtful = report.trials.iter().filter(near).filter(|trial| !trial.limits.is_empty()).count();
                match doubtful {
                    0 => Vec::new(),
                    1 => vec!["the tester was the limit or was disturbed in 1 trial at a bound".to_owned()],
                    _ => vec![format!("the tester was the limit or was disturbed in {doubtful} trials at the bounds")],
                }
            }
            Self::Calibration(_) => Vec::new(),
            Self::Rfc2544(report) => report.tester_limits.clone(),
            Self::Latency(report) => {
                let of = |step: &LatencyStep| {
                    let notes = [&step.trial.tester.limits[..], &step.trial.tester.disturbances].concat();
                    notes
                        .into_iter()
                        .map(|note| format!("at {:.0} % load: {note}", step.share * 100.0))
                        .collect::<Vec<_>>()
                };
                report.steps.iter().flat_map(of).collect()
            }
            Self::Soak(report) => {
                let end = report.end.iter();
                end.flat_map(|end| [&end.tester.limits[..], &end.tester.disturbances].concat()).collect()
            }
        }
    }
}
