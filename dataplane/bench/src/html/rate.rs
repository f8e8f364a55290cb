//! The page of one trial: packets and latency over time, and the percentiles of the latency.

use super::chart::{Axis, Chart, Mark, Scale, Series, Unit};
use super::document::Page;
use crate::report::{Nanoseconds, Percent, Pps, RateReport, StreamReport, Times};

pub(super) const TIME: Axis = Axis { label: "time since the start", unit: Unit::Seconds, scale: Scale::Linear };
pub(super) const LATENCY: Axis = Axis { label: "latency", unit: Unit::Nanoseconds, scale: Scale::Log };

pub(super) fn add(page: &mut Page, report: &RateReport) {
    tables(page, report);
    let ranges = report.streams.iter().flat_map(|stream| stream.gaps.iter());
    let ranges: Vec<_> = ranges.map(|gap| (gap.start_s, gap.start_s + gap.length_s)).collect();
    let gaps = if ranges.is_empty() { "" } else { " (marked: times without arrivals)" };
    let duration = report.duration_s;
    page.chart(&format!("Packets over time{gaps}"), &packets_over_time(&report.streams, duration, ranges));
    page.chart("Lost packets over time", &lost_over_time(&report.streams));
    page.chart("Latency over time", &latency_over_time(&report.streams));
    page.chart("Percentiles of the latency", &percentiles(&report.streams));
    let streams: Vec<_> = report.streams.iter().map(|stream| (stream.name.as_str(), &stream.keys)).collect();
    page.streams(&streams);
}

/// Adds the tables of the packets and of the latencies.
pub(super) fn tables(page: &mut Page, report: &RateReport) {
    let total = &report.total;
    let requested = total.requested_pps.map_or_else(|| "the highest rate".to_owned(), |rate| Pps(rate).to_string());
    page.text(&format!(
        "Requested {requested}, sent {} for {:.3} s, received {}, loss {}.",
        Pps(total.sent_pps),
        report.duration_s,
        Pps(total.received_pps),
        Percent(total.loss_ratio)
    ));
    let row = |stream: &StreamReport| {
        let traffic = &stream.traffic;
        let counts = [
            traffic.sent,
            traffic.received,
            traffic.lost,
            traffic.lost_by_tester(),
            traffic.late,
            traffic.corrupted,
            traffic.duplicated,
            traffic.reordered,
        ];
        [stream.name.clone()].into_iter().chain(counts.map(|count| count.to_string())).collect()
    };
    let rows: Vec<_> = report.streams.iter().map(row).collect();
    page.table(
        &["stream", "sent", "received", "lost", "lost by the tester", "late", "corrupt", "duplicated", "reordered"],
        &rows,
    );
    latency_table(page, "latency", &report.streams, |stream| &stream.latency_ns);
    latency_table(page, "jitter", &report.streams, |stream| &stream.jitter_ns);
    latency_table(page, "pacing error", &report.streams, |stream| &stream.pacing_ns);
}

/// Adds a table of percentiles.
fn latency_table(page: &mut Page, name: &str, streams: &[StreamReport], of: impl Fn(&StreamReport) -> &Times) {
    let row = |stream: &StreamReport| {
        let times = of(stream);
        let values = [times.min, times.p50, times.p90, times.p99, times.p99_9, times.p99_99, times.max];
        let texts = values.map(|value| if times.count == 0 { "–".to_owned() } else { Nanoseconds(value).to_string() });
        [stream.name.clone()].into_iter().chain(texts).collect()
    };
    let rows: Vec<_> = streams.iter().map(row).collect();
    page.table(&[name, "min", "p50", "p90", "p99", "p99.9", "p99.99", "max"], &rows);
}

/// Returns a point for each interval of a stream: the middle of the interval, and the result of `of`. Leaves out the
/// intervals for which `of` returns `None`.
fn over_time<'a>(
    stream: &'a StreamReport,
    values: &'a [u64],
    of: impl Fn(usize, u64) -> Option<f64> + 'a,
) -> Vec<(f64, f64)> {
    let middle = |number: usize| (number as f64 + 0.5) * stream.series.interval_s;
    values.iter().enumerate().filter_map(|(number, value)| Some((middle(number), of(number, *value)?))).collect()
}

fn packets_over_time(streams: &[StreamReport], duration: f64, ranges: Vec<(f64, f64)>) -> Chart {
    let mut series = Vec::new();
    for stream in streams {
        let lists = &stream.series;
        let length = |number: usize| (duration - number as f64 * lists.interval_s).min(lists.interval_s);
        let rate = |number: usize, packets: u64| {
            let length = length(number);
            (length > lists.interval_s * 0.1).then(|| packets as f64 / length)
        };
        let received = |number: usize, lost: u64| {
            // Results of earlier versions have no `tx_failed`.
            let not_sent = lists.tx_failed.get(number).copied().unwrap_or(0);
            rate(number, lists.sent.get(number)?.saturating_sub(lost + not_sent))
        };
        for (name, mark, points) in [
            ("sent", Mark::Band, over_time(stream, &lists.sent, rate)),
            ("received", Mark::Line, over_time(stream, &lists.lost, received)),
        ] {
            series.push(Series { name: format!("{} {name}", stream.name), mark, points });
        }
    }
    let y = Axis { label: "packets per second", unit: Unit::Pps, scale: Scale::Linear };
    Chart { x: TIME, y, series, lines: Vec::new(), ranges }
}

fn lost_over_time(streams: &[StreamReport]) -> Chart {
    let lossy = streams.iter().filter(|stream| stream.series.lost.iter().any(|lost| *lost > 0));
    let of = |stream: &StreamReport| Series {
        name: stream.name.clone(),
        mark: Mark::Line,
        points: over_time(stream, &stream.series.lost, |_, lost| Some(lost as f64)),
    };
    let y = Axis { label: "lost packets per interval", unit: Unit::Count, scale: Scale::Linear };
    Chart { x: TIME, y, series: lossy.map(of).collect(), lines: Vec::new(), ranges: Vec::new() }
}

fn latency_over_time(streams: &[StreamReport]) -> Chart {
    let mut series = Vec::new();
    for stream in streams {
        let lists = &stream.series;
        let positive = |_, value: u64| (value > 0).then_some(value as f64);
        for (name, values) in [("mean", &lists.latency_mean_ns), ("maximum", &lists.latency_max_ns)] {
            let points = over_time(stream, values, positive);
            series.push(Series { name: format!("{} {name}", stream.name), mark: Mark::Line, points });
        }
    }
    Chart { x: TIME, y: LATENCY, series, lines: Vec::new(), ranges: Vec::new() }
}

/// Returns the points of a curve of percentiles. At the horizontal value N, one of N packets has a
/// higher latency than the vertical value.
pub(super) fn percentile_points(times: &Times) -> Vec<(f64, f64)> {
    if times.count == 0 {
        return Vec::new();
    }
    let known = [
        (1.0, times.min),
        (2.0, times.p50),
        (10.0, times.p90),
        (100.0, times.p99),
        (1e3, times.p99_9),
        (1e4, times.p99_99),
        (1e5, times.p99_999),
    ];
    // A point for one of N packets needs more than N packets. With N packets or fewer, the value of the point would be
    // the maximum, which is the last point.
    let count = times.count as f64;
    let known = known.into_iter().filter(|(packets, _)| *packets < count);
    known.chain([(count, times.max)]).map(|(packets, value)| (packets, value as f64)).collect()
}

fn percentiles(streams: &[StreamReport]) -> Chart {
    let of = |stream: &StreamReport| Series {
        name: stream.name.clone(),
        mark: Mark::Line,
        points: percentile_points(&stream.latency_ns),
    };
    let x = Axis { label: "percentile", unit: Unit::Percentile, scale: Scale::Log };
    let series = streams.iter().map(of).collect();
    Chart { x, y: LATENCY, series, lines: Vec::new(), ranges: Vec::new() }
}
