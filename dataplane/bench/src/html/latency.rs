//! The page of a result of `bench latency`: the latency at several loads.

use super::chart::{Axis, Chart, Mark, Scale, Series, Unit};
use super::document::Page;
use super::rate::{LATENCY, percentile_points};
use crate::report::{LatencyStep, LatencyStepsReport, Nanoseconds, Percent, Pps, Times};

pub(super) fn add(page: &mut Page, report: &LatencyStepsReport) {
    page.text(&format!("The loads are shares of {}.", Pps(report.highest_pps)));
    let mut rows = Vec::new();
    for step in &report.steps {
        for stream in &step.trial.streams {
            let times = &stream.latency_ns;
            let values = [times.min, times.p50, times.p90, times.p99, times.p99_9, times.max];
            let head = [
                stream.name.clone(),
                format!("{:.0} %", step.share * 100.0),
                Pps(stream.traffic.sent_pps).to_string(),
                Percent(stream.traffic.loss_ratio).to_string(),
            ];
            rows.push(head.into_iter().chain(values.map(|value| Nanoseconds(value).to_string())).collect());
        }
    }
    page.table(&["stream", "load", "sent", "loss", "min", "p50", "p90", "p99", "p99.9", "max"], &rows);
    page.chart("Latency over load", &over_load(&report.steps));
    page.chart("Percentiles of the latency by load", &percentiles(&report.steps));
    if let Some(step) = report.steps.first() {
        let streams: Vec<_> = step.trial.streams.iter().map(|stream| (stream.name.as_str(), &stream.keys)).collect();
        page.streams(&streams);
    }
}

fn over_load(steps: &[LatencyStep]) -> Chart {
    type Named = (&'static str, fn(&Times) -> u64);
    let percentiles: [Named; 4] =
        [("p50", |it| it.p50), ("p99", |it| it.p99), ("p99.9", |it| it.p99_9), ("maximum", |it| it.max)];
    let mut series = Vec::new();
    let streams = steps.first().map_or(0, |step| step.trial.streams.len());
    for number in 0..streams {
        for (name, of) in percentiles {
            let stream = |step: &LatencyStep| step.trial.streams.get(number).cloned();
            let point = |step: &LatencyStep| Some((step.share, of(&stream(step)?.latency_ns) as f64));
            let title = steps.first().and_then(stream).map_or_else(String::new, |stream| stream.name);
            let points = steps.iter().filter_map(point).collect();
            series.push(Series { name: format!("{title} {name}"), mark: Mark::Line, points });
        }
    }
    let x = Axis { label: "load", unit: Unit::Ratio, scale: Scale::Linear };
    Chart { x, y: LATENCY, series, lines: Vec::new(), ranges: Vec::new() }
}

fn percentiles(steps: &[LatencyStep]) -> Chart {
    let mut series = Vec::new();
    for step in steps {
        for stream in &step.trial.streams {
            let name = format!("{} at {:.0} %", stream.name, step.share * 100.0);
            series.push(Series { name, mark: Mark::Line, points: percentile_points(&stream.latency_ns) });
        }
    }
    let x = Axis { label: "percentile", unit: Unit::Percentile, scale: Scale::Log };
    Chart { x, y: LATENCY, series, lines: Vec::new(), ranges: Vec::new() }
}
