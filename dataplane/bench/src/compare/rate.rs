//! Compares two results of `bench rate`: loss and latency of each stream.
//!
//! Each trial is divided into parts of equal length. The Mann-Whitney U test compares the loss ratios of the parts, and
//! the mean latencies of the parts.

use super::metric::{MetricTest, compare_keys, differ};
use super::statistics::{FEWEST, mann_whitney};
use crate::report::{RateReport, SeriesReport, StreamReport};

/// The maximum number of parts. The test assumes independent parts, and long parts depend less on each other.
const PARTS: usize = 30;
/// Differences of the loss ratio up to this value do not count.
const LOSS_TOLERANCE: f64 = 1e-6;

/// Returns the tests of all streams. If the results cannot be compared, adds the causes to `reasons`.
pub(super) fn tests(a: &RateReport, b: &RateReport, tolerance: f64, reasons: &mut Vec<String>) -> Vec<MetricTest> {
    if a.streams.len() != b.streams.len() {
        reasons.push(format!("the numbers of streams differ: {} and {}", a.streams.len(), b.streams.len()));
        return Vec::new();
    }
    let mut tests = Vec::new();
    for (a, b) in a.streams.iter().zip(&b.streams) {
        if a.name != b.name {
            reasons.push(format!("the names of the streams differ: `{}` and `{}`", a.name, b.name));
            continue;
        }
        compare_keys(&a.name, &a.keys, &b.keys, reasons);
        match (a.traffic.requested_pps, b.traffic.requested_pps) {
            (Some(a), Some(b)) if !differ(a, b) => {}
            (None, None) => {}
            (rate_a, rate_b) => {
                let show = |rate: Option<f64>| rate.map_or("max".to_owned(), |rate| format!("{rate:.1} pps"));
                reasons.push(format!(
                    "the requested rates of the stream `{}` differ: {} and {}",
                    a.name,
                    show(rate_a),
                    show(rate_b)
                ));
            }
        }
        tests.push(loss(a, b));
        tests.push(latency(a, b, tolerance));
    }
    tests
}

/// The loss ratio and the mean latency of a part of a trial.
struct Part {
    loss_ratio: f64,
    /// `None` if no packet arrived.
    latency: Option<f64>,
}

/// Divides a series into at most [`PARTS`] parts of equal length.
fn parts(series: &SeriesReport) -> Vec<Part> {
    let length = series.sent.len().div_ceil(PARTS).max(1);
    let part = |from: usize| {
        let of = |values: &[u64]| values.get(from..from + length).unwrap_or(&[]).to_vec();
        let (sent, lost, latency) = (of(&series.sent), of(&series.lost), of(&series.latency_mean_ns));
        let not_sent = |number: usize| series.tx_failed.get(from + number).copied().unwrap_or(0);
        let received = || {
            let counts = sent.iter().zip(&lost).enumerate();
            counts.map(|(number, (sent, lost))| sent.saturating_sub(lost + not_sent(number)) as f64)
        };
        let (all, arrived) = (sent.iter().sum::<u64>(), received().sum::<f64>());
        let sum: f64 = received().zip(&latency).map(|(received, mean)| received * *mean as f64).sum();
        (all > 0).then(|| Part {
            loss_ratio: lost.iter().sum::<u64>() as f64 / all as f64,
            latency: (arrived > 0.0).then(|| sum / arrived),
        })
    };
    // Leave out the last intervals if they are fewer than a part needs.
    (0..series.sent.len() / length).filter_map(|number| part(number * length)).collect()
}

fn describe(first: usize, second: usize) -> String {
    match first.min(second) {
        ..FEWEST => format!("none: only {first} and {second} parts with packets; help: use a longer --for"),
        _ => format!("Mann-Whitney U test of {first} and {second} parts of the trials"),
    }
}

fn loss(a: &StreamReport, b: &StreamReport) -> MetricTest {
    let of = |stream: &StreamReport| parts(&stream.series).iter().map(|part| part.loss_ratio).collect::<Vec<_>>();
    let (first, second) = (of(a), of(b));
    let values = [a.traffic.loss_ratio, b.traffic.loss_ratio];
    MetricTest {
        name: format!("loss ratio of {}", a.name),
        unit: "ratio",
        values: values.map(Some),
        change: values[0] - values[1],
        tolerance: LOSS_TOLERANCE,
        test: describe(first.len(), second.len()),
        p_value: two_sided(&first, &second),
    }
}

fn latency(a: &StreamReport, b: &StreamReport, tolerance: f64) -> MetricTest {
    let of = |stream: &StreamReport| parts(&stream.series).iter().filter_map(|part| part.latency).collect::<Vec<_>>();
    let (first, second) = (of(a), of(b));
    let (before, after) = (median(&first), median(&second));
    MetricTest {
        name: format!("latency of {} (median of the means of the parts)", a.name),
        unit: "ns",
        values: [before, after],
        change: before.zip(after).map_or(0.0, |(before, after)| 1.0 - after / before),
        tolerance,
        test: describe(first.len(), second.len()),
        p_value: two_sided(&first, &second),
    }
}

fn two_sided(first: &[f64], second: &[f64]) -> Option<f64> {
    mann_whitney(first, second).map(|(greater, smaller)| (2.0 * greater.min(smaller)).min(1.0))
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
