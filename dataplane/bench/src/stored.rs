//! Results that are stored in files.

use std::path::Path;

use dataplane::{Error, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::report::{CalibrationReport, Environment, RateReport, SearchReport};

/// A result that was read from a file.
#[derive(Clone, Debug)]
pub enum Stored {
    /// The result of `rate`.
    Rate(Box<RateReport>),
    /// The result of `ndr` and `pdr`.
    Search(Box<SearchReport>),
    /// The result of `calibrate`.
    Calibration(Box<CalibrationReport>),
}

impl Stored {
    /// Reads a result.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a result.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|why| {
            let path = path.display();
            Error::Config(format!(
                "{path} is not a result of `bench`: {why}; help: create a result with dataplane bench METHOD --json > {path}"
            ))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        fn read<T: DeserializeOwned>(value: Value) -> Result<Box<T>, String> {
            serde_json::from_value(value).map(Box::new).map_err(|error| error.to_string())
        }
        match value.get("method").and_then(Value::as_str) {
            Some("rate") => read(value).map(Self::Rate),
            Some("ndr" | "pdr") => read(value).map(Self::Search),
            None if value.get("calibration").is_some() => read(value).map(Self::Calibration),
            None => Err("it has no key `method`".to_owned()),
            Some(other) => Err(format!("the method `{other}` is unknown")),
        }
    }

    /// Returns the name of the method.
    pub fn method(&self) -> &str {
        match self {
            Self::Rate(report) => &report.method,
            Self::Search(report) => &report.method,
            Self::Calibration(_) => "calibrate",
        }
    }

    /// Returns where the trials ran.
    pub fn environment(&self) -> &Environment {
        match self {
            Self::Rate(report) => &report.environment,
            Self::Search(report) => &report.environment,
            Self::Calibration(report) => &report.max.environment,
        }
    }

    /// Returns the reasons why the result cannot be used.
    pub fn defects(&self) -> Vec<String> {
        let mut defects = Vec::new();
        let (stopped, unaccounted) = match self {
            Self::Rate(report) => (report.stopped, report.unaccounted),
            Self::Search(report) => (report.stopped, 0),
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
        if let Self::Search(report) = self {
            let incomplete = report.goals.iter().filter(|goal| !goal.complete);
            defects.extend(incomplete.map(|goal| format!("has an incomplete result of {}", goal.name)));
        }
        defects
    }

    /// Returns the reasons why the result may show a limit or a disturbance of the tester.
    pub fn doubts(&self) -> Vec<String> {
        match self {
            Self::Rate(report) => [&report.tester.limits[..], &report.tester.disturbances].concat(),
            Self::Search(report) => {
                // The trials at the bounds decide.
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
        }
    }
}
