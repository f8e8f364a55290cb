//! A compared metric and its verdict.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::{Nanoseconds, Percent, Pps};
use crate::search::CONFIDENCE;

/// The verdict about the second result, compared with the first result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second result is better.
    Better,
    /// The second result is worse.
    Worse,
    /// The results do not show a difference. A difference may still exist.
    NoDifferenceShown,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::NoDifferenceShown => "no difference shown",
        })
    }
}

/// A compared metric.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MetricReport {
    /// The name.
    pub name: String,
    /// The unit of the values: `pps`, `ns` or `ratio`.
    pub unit: String,
    /// The value of the first result.
    pub a: Option<f64>,
    /// The value of the second result.
    pub b: Option<f64>,
    /// The verdict about the second result.
    pub verdict: Verdict,
    /// The statistical test, and the numbers that it used.
    pub test: String,
    /// The two-sided probability that chance alone causes a difference of this size, multiplied by the number of tests
    /// (correction of Bonferroni).
    pub p_value: Option<f64>,
    /// `1 - p_value`.
    pub confidence: Option<f64>,
}

/// Compares the keys of a stream in the two results. Adds a reason for each key whose two values differ.
pub(super) fn compare_keys(
    name: &str,
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
    reasons: &mut Vec<String>,
) {
    let none = "not set".to_owned();
    let mut keys: Vec<_> = a.keys().chain(b.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let (a, b) = (a.get(key).unwrap_or(&none), b.get(key).unwrap_or(&none));
        if a != b {
            reasons.push(format!("the stream `{name}` has different values of `{key}`: {a} and {b}"));
        }
    }
}

/// Returns whether two positive numbers differ by more than 0.1 %. Rounding causes smaller differences.
pub(super) fn differ(a: f64, b: f64) -> bool {
    (a - b).abs() > 0.001 * a.abs().max(b.abs())
}

/// A test of a metric, before the correction for the number of tests.
pub(super) struct MetricTest {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) values: [Option<f64>; 2],
    /// The change of the metric, positive if the second result is better: the difference of two loss ratios, or the
    /// relative change of another metric.
    pub(super) change: f64,
    /// Changes up to this value do not count.
    pub(super) tolerance: f64,
    pub(super) test: String,
    /// The two-sided probability that chance alone causes a difference of this size.
    pub(super) p_value: Option<f64>,
}

impl MetricTest {
    /// Returns the report. `count` is the number of all tests (correction of Bonferroni).
    pub(super) fn report(self, count: f64) -> MetricReport {
        let Self { name, unit, values: [a, b], change, tolerance, test, p_value } = self;
        let p_value = p_value.map(|p_value| (p_value * count).min(1.0));
        let verdict = verdict(change, tolerance, p_value);
        let confidence = p_value.map(|p_value| 1.0 - p_value);
        MetricReport { name, unit: unit.to_owned(), a, b, verdict, test, p_value, confidence }
    }
}

/// Returns the verdict of a test. `change` is positive if the second result is better.
fn verdict(change: f64, tolerance: f64, p_value: Option<f64>) -> Verdict {
    if p_value.is_none_or(|p_value| p_value > 1.0 - CONFIDENCE) || change.abs() <= tolerance {
        return Verdict::NoDifferenceShown;
    }
    if change > 0.0 { Verdict::Better } else { Verdict::Worse }
}

fn value(metric: &MetricReport, value: Option<f64>) -> String {
    match (value, metric.unit.as_str()) {
        (None, _) => "none".to_owned(),
        (Some(value), "pps") => Pps(value).to_string(),
        (Some(value), "ns") => Nanoseconds(value as u64).to_string(),
        (Some(value), _) => Percent(value).to_string(),
    }
}

impl fmt::Display for MetricReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = match (self.a, self.b) {
            (Some(a), Some(b)) if a > 0.0 && self.unit != "ratio" => format!(" ({:+.2} %)", (b / a - 1.0) * 100.0),
            _ => String::new(),
        };
        let (a, b) = (value(self, self.a), value(self, self.b));
        writeln!(f, "{}: {}\n  A {a}, B {b}{change}", self.name, self.verdict)?;
        match self.confidence {
            Some(confidence) => writeln!(f, "  {}; confidence {:.2} %", self.test, confidence * 100.0),
            None => writeln!(f, "  test: {}", self.test),
        }
    }
}
