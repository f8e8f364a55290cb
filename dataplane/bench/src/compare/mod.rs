//! Compares two results of the same method: better, worse, or no difference shown.
//!
//! The verdicts `better` and `worse` need two conditions: the difference exceeds a tolerance, and a statistical test
//! shows that the difference is unlikely to be chance.

mod metric;
mod rate;
mod search;
mod statistics;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::metric::{MetricReport, Verdict};
use crate::report::{Environment, Pages};
use crate::stored::Stored;

/// The report of `bench compare`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CompareReport {
    /// The command that produced the results, such as `ndr`.
    pub method: String,
    /// The file of the first result.
    pub a: String,
    /// The file of the second result.
    pub b: String,
    /// The verdict about the second result: `worse` if at least one metric is worse.
    pub verdict: Verdict,
    /// The largest relative difference of rates and latencies that does not count.
    pub tolerance: f64,
    /// The compared metrics.
    pub metrics: Vec<MetricReport>,
    /// Differences of the hosts, and doubts about the results.
    pub notes: Vec<String>,
}

/// Compares two results. `files` are the names of the files. A relative difference of rates or latencies up to
/// `tolerance` does not count.
///
/// # Errors
/// Returns the reasons why the results cannot be compared.
pub fn compare(files: [&str; 2], a: &Stored, b: &Stored, tolerance: f64) -> Result<CompareReport, Vec<String>> {
    let mut reasons = Vec::new();
    for (file, result) in files.iter().zip([a, b]) {
        reasons.extend(result.defects().into_iter().map(|defect| format!("{file} {defect}")));
    }
    if a.method() != b.method() {
        reasons.push(format!("{} is a result of `{}`, and {} of `{}`", files[0], a.method(), files[1], b.method()));
        return Err(reasons);
    }
    let profiles = [a, b].map(|result| result.environment().profile.as_str());
    // A result of an earlier version does not have the profile.
    if profiles[0] != profiles[1] && !profiles.contains(&"") {
        let [a, b] = profiles;
        reasons.push(format!(
            "the program of one result is a `{a}` build, and the program of the other result is a `{b}` build; help: \
             measure both results with a release build"
        ));
    }
    let tests = match (a, b) {
        (Stored::Rate(a), Stored::Rate(b)) => rate::tests(a, b, tolerance, &mut reasons),
        (Stored::Search(a), Stored::Search(b)) => search::tests(a, b, tolerance, &mut reasons),
        (Stored::Rfc2544(a), Stored::Rfc2544(b)) => search::rfc2544_tests(a, b, tolerance, &mut reasons),
        _ => {
            reasons.push(format!("results of `{}` cannot be compared", a.method()));
            Vec::new()
        }
    };
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let count = tests.iter().filter(|test| test.p_value.is_some()).count() as f64;
    let metrics: Vec<MetricReport> = tests.into_iter().map(|test| test.report(count)).collect();
    let has = |verdict| metrics.iter().any(|metric| metric.verdict == verdict);
    let verdict = match (has(Verdict::Worse), has(Verdict::Better)) {
        (true, _) => Verdict::Worse,
        (false, true) => Verdict::Better,
        (false, false) => Verdict::NoDifferenceShown,
    };
    let method = a.method().to_owned();
    let mut notes = different_environments(a.environment(), b.environment());
    for (file, result) in files.iter().zip([a, b]) {
        notes.extend(result.doubts().into_iter().map(|doubt| format!("{file}: {doubt}")));
    }
    let [a, b] = files.map(str::to_owned);
    Ok(CompareReport { method, a, b, verdict, tolerance, metrics, notes })
}

/// Returns the differences of the hosts, the ports and the programs of two results.
fn different_environments(a: &Environment, b: &Environment) -> Vec<String> {
    let pages = |pages: &Option<Pages>| pages.as_ref().map_or_else(String::new, ToString::to_string);
    let core = |core: Option<u32>| core.map_or_else(String::new, |core| core.to_string());
    let mut pairs = vec![
        ("version".to_owned(), a.version.clone(), b.version.clone()),
        ("build".to_owned(), a.build.clone(), b.build.clone()),
        ("kernel".to_owned(), a.kernel.clone(), b.kernel.clone()),
        ("machine".to_owned(), a.machine.clone(), b.machine.clone()),
        ("processor".to_owned(), a.processor.clone(), b.processor.clone()),
        ("number of cores".to_owned(), a.cores.to_string(), b.cores.to_string()),
        ("core of the tester".to_owned(), core(a.core), core(b.core)),
        ("packet memory".to_owned(), pages(&a.pages), pages(&b.pages)),
        ("digest of the config".to_owned(), a.config_digest.clone(), b.config_digest.clone()),
    ];
    for (a, b) in a.ports.iter().zip(&b.ports) {
        pairs.push((format!("port {}", a.name), a.to_string(), b.to_string()));
    }
    // A result of an earlier version does not have all values.
    let different = pairs.into_iter().filter(|(_, a, b)| a != b && !a.is_empty() && !b.is_empty());
    different.map(|(name, a, b)| format!("the {name} differs: `{a}` and `{b}`")).collect()
}

impl fmt::Display for CompareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "A: {}\nB: {}\nVerdict about B, compared with A: {}\n", self.a, self.b, self.verdict)?;
        self.metrics.iter().try_for_each(|metric| metric.fmt(f))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
