//! The page of a result of `bench soak`.

use super::chart::{Axis, Chart, Mark, Scale, Series, Unit};
use super::document::Page;
use super::rate::{self, LATENCY, TIME};
use crate::report::{SoakCounts, SoakInterval, SoakReport};

/// The name of a value, and the function that reads the value.
type Named = (&'static str, fn(&SoakCounts) -> u64);

pub(super) fn add(page: &mut Page, report: &SoakReport) {
    let (started, intervals) = (&report.start.started, &report.intervals);
    let lossy: Vec<&SoakInterval> = intervals.iter().filter(|interval| interval.lost() > 0).collect();
    let (count, length) = (intervals.len(), report.start.interval_s);
    page.text(&format!("Started at {started}. {} of {count} intervals of {length} s have losses.", lossy.len()));
    if !lossy.is_empty() {
        let sent = |interval: &SoakInterval| interval.streams.iter().map(|stream| stream.sent).sum::<u64>();
        let row = |interval: &&SoakInterval| {
            vec![format!("{:.3} s", interval.start_s), sent(interval).to_string(), interval.lost().to_string()]
        };
        /// The maximum number of rows of the table.
        const SHOWN: usize = 50;
        page.table(&["start of the interval", "sent", "lost"], &lossy.iter().take(SHOWN).map(row).collect::<Vec<_>>());
    }
    let packets = Axis { label: "packets of an interval", unit: Unit::Count, scale: Scale::Linear };
    let chart = |y: Axis, kinds: &[Named]| {
        let mut series = Vec::new();
        for (number, stream) in report.start.streams.iter().enumerate() {
            for (name, of) in kinds {
                let point = |interval: &SoakInterval| {
                    let value = of(interval.streams.get(number)?) as f64;
                    // A logarithmic axis has no 0.
                    (y.scale == Scale::Linear || value > 0.0).then_some((interval.start_s, value))
                };
                let points = intervals.iter().filter_map(point).collect();
                series.push(Series { name: format!("{} {name}", stream.name), mark: Mark::Line, points });
            }
        }
        Chart { x: TIME, y, series, lines: Vec::new(), ranges: Vec::new() }
    };
    page.chart("Lost packets over time", &chart(packets.clone(), &[("lost", |it| it.lost)]));
    page.chart("Sent packets over time", &chart(packets, &[("sent", |it| it.sent)]));
    let latencies: [Named; 2] = [("mean", |it| it.latency_mean_ns), ("maximum", |it| it.latency_max_ns)];
    page.chart("Latency over time", &chart(LATENCY, &latencies));
    if let Some(end) = &report.end {
        page.heading("The whole run");
        rate::tables(page, end);
    }
    let streams: Vec<_> = report.start.streams.iter().map(|stream| (stream.name.as_str(), &stream.keys)).collect();
    page.streams(&streams);
}
