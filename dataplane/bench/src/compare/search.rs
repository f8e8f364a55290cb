//! Compares two searches of the highest rate.
//!
//! A difference needs bounds that do not overlap: the upper bound of one result (the worse device) is at most the lower
//! bound of the other result (the better device). The test uses trials between these two bounds: the trials of the
//! worse device up to the middle load, and the trials of the better device from the middle load.
//!
//! Assume that both devices are equally good, and that failures are more likely at higher loads. The trials of the
//! worse device then fail at most as often as the trials of the better device, because their loads are lower. Fisher's
//! exact test returns the probability that the trials of the worse device fail so much more often by chance.

use super::metric::{MetricTest, compare_keys, differ};
use super::statistics::fisher_greater;
use crate::report::{
    BoundReport, GoalReport, Pps, Rfc2544Report, SearchReport, StreamSetup, ThroughputReport, TrialReport,
};
use crate::search::CONFIDENCE;

/// A trial counts as a full-length trial if it lasts at least this share of the requested duration.
const FULL: f64 = 0.99;

/// Returns the tests of all goals. If the results cannot be compared, adds the causes to `reasons`.
pub(super) fn tests(a: &SearchReport, b: &SearchReport, tolerance: f64, reasons: &mut Vec<String>) -> Vec<MetricTest> {
    compare_streams(&a.streams, &b.streams, reasons);
    let names = |report: &SearchReport| report.goals.iter().map(|goal| goal.name.clone()).collect::<Vec<_>>();
    if names(a) != names(b) {
        reasons.push(format!("the goals differ: {} and {}", names(a).join(", "), names(b).join(", ")));
        return Vec::new();
    }
    let pairs = a.goals.iter().zip(&b.goals);
    pairs.map(|(first, second)| test((first, &a.trials), (second, &b.trials), "", tolerance, reasons)).collect()
}

/// Returns the tests of the throughput of all frame sizes. If the results cannot be compared, adds the causes to
/// `reasons`.
pub(super) fn rfc2544_tests(
    a: &Rfc2544Report,
    b: &Rfc2544Report,
    tolerance: f64,
    reasons: &mut Vec<String>,
) -> Vec<MetricTest> {
    compare_streams(&a.streams, &b.streams, reasons);
    let sizes = |report: &Rfc2544Report| report.sizes.iter().map(|size| size.size).collect::<Vec<_>>();
    if sizes(a) != sizes(b) {
        reasons.push(format!("the frame sizes differ: {:?} and {:?}", sizes(a), sizes(b)));
        return Vec::new();
    }
    let throughputs = |report: &Rfc2544Report| report.sizes.iter().filter_map(|size| size.throughput.clone()).count();
    if throughputs(a) != a.sizes.len() || throughputs(b) != b.sizes.len() {
        reasons.push("a result has no throughput".to_owned());
        return Vec::new();
    }
    let pairs = a.sizes.iter().zip(&b.sizes);
    let pairs = pairs.filter_map(|(a, b)| Some((a.size, a.throughput.as_ref()?, b.throughput.as_ref()?)));
    let test = |(size, a, b): (u16, &ThroughputReport, &ThroughputReport)| {
        test((&a.goal, &a.trials), (&b.goal, &b.trials), &format!(" of {size} bytes"), tolerance, reasons)
    };
    pairs.map(test).collect()
}

/// If the streams of two searches cannot be compared, adds the causes to `reasons`.
pub(super) fn compare_streams(a: &[StreamSetup], b: &[StreamSetup], reasons: &mut Vec<String>) {
    if a.len() != b.len() {
        reasons.push(format!("the numbers of streams differ: {} and {}", a.len(), b.len()));
        return;
    }
    for (a, b) in a.iter().zip(b) {
        let name = &a.name;
        if *name != b.name {
            reasons.push(format!("the names of the streams differ: `{name}` and `{}`", b.name));
            continue;
        }
        if (a.from, a.to) != (b.from, b.to) {
            reasons.push(format!("the stream `{name}` uses different ports"));
        }
        if differ(a.share, b.share) {
            reasons.push(format!("the stream `{name}` has different shares of the load: {} and {}", a.share, b.share));
        }
        compare_keys(name, &a.keys, &b.keys, reasons);
    }
}

/// Compares the results of one goal. `suffix` is added to the name of the metric.
pub(super) fn test(
    (a, a_trials): (&GoalReport, &[TrialReport]),
    (b, b_trials): (&GoalReport, &[TrialReport]),
    suffix: &str,
    tolerance: f64,
    reasons: &mut Vec<String>,
) -> MetricTest {
    let name = format!("{}{suffix}", a.name);
    for (what, a, b) in [
        ("the loss ratio", a.loss_ratio, b.loss_ratio),
        ("the ratio of --exceed", a.exceed_ratio, b.exceed_ratio),
        ("the duration of a trial", a.trial_s, b.trial_s),
    ] {
        if differ(a, b) {
            reasons.push(format!("{what} of {name} differs: {a} and {b}"));
        }
    }
    let load = |bound: &Option<BoundReport>| bound.as_ref().map(|bound| bound.pps);
    let (before, after) = (load(&a.lower), load(&b.lower));
    let metric = |change: f64, test: String, p_value: Option<f64>| MetricTest {
        name: name.clone(),
        unit: "pps",
        values: [before, after],
        change,
        tolerance,
        test,
        p_value,
    };
    // A device without a lower bound carries no load of the search. The change is then -1 or 1.
    let change = before.zip(after).map(|(before, after)| after / before - 1.0);
    let is_worse = load(&b.upper).zip(before).filter(|(failed, passed)| failed <= passed);
    let is_better = load(&a.upper).zip(after).filter(|(failed, passed)| failed <= passed);
    match (is_worse, is_better) {
        (Some(loads), _) => {
            let (test, p_value) = evidence("B", (b, b_trials), "A", (a, a_trials), loads);
            metric(change.unwrap_or(-1.0), test, Some(p_value))
        }
        (None, Some(loads)) => {
            let (test, p_value) = evidence("A", (a, a_trials), "B", (b, b_trials), loads);
            metric(change.unwrap_or(1.0), test, Some(p_value))
        }
        (None, None) if a.upper.is_none() && b.upper.is_none() && before.is_some() => {
            metric(0.0, "none: both devices carry the highest rate; help: use a higher --max".to_owned(), None)
        }
        (None, None) => metric(0.0, "none: the bounds of the results overlap".to_owned(), None),
    }
}

/// Tests whether one device is worse. Returns the description of the test and the two-sided probability. `low` is the
/// upper bound of the worse device, and `high` is the lower bound of the better device.
fn evidence(
    worse_name: &str,
    (worse, worse_trials): (&GoalReport, &[TrialReport]),
    better_name: &str,
    (better, better_trials): (&GoalReport, &[TrialReport]),
    (low, high): (f64, f64),
) -> (String, f64) {
    let middle = (low * high).sqrt();
    // A rounded middle must not exclude the bounds.
    let slack = middle * 1e-9;
    // Short trials prove less than full-length trials, so they do not count.
    let counts = |goal: &GoalReport, trials: &[TrialReport], from: f64, to: f64| {
        let is_used = |trial: &&TrialReport| {
            let is_full = trial.duration_s >= goal.trial_s * FULL;
            is_full && !trial.ignored && trial.pps >= from - slack && trial.pps <= to + slack
        };
        let used = trials.iter().filter(is_used);
        let failed = used.clone().filter(|trial| trial.loss_ratio > goal.loss_ratio).count() as u64;
        (failed, used.count() as u64)
    };
    let (failed, tried) = counts(worse, worse_trials, low, middle);
    let (better_failed, better_tried) = counts(better, better_trials, middle, high);
    let p_value = (2.0 * fisher_greater((better_failed, failed), (better_tried, tried))).min(1.0);
    let text = format!(
        "Fisher's exact test: {failed} of {tried} trials of {worse_name} from {} to {} exceed the loss ratio of the goal, \
         and {better_failed} of {better_tried} trials of {better_name} up to {}{}",
        Pps(low),
        Pps(middle),
        Pps(high),
        if p_value > 1.0 - CONFIDENCE { " (help: measure again with more trials)" } else { "" }
    );
    (text, p_value)
}
