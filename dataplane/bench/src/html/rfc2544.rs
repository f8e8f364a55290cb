//! The page of the tests of RFC 2544.

use super::chart::{Axis, Chart, Mark, Scale, Series, Unit};
use super::document::Page;
use super::rate::LATENCY;
use super::search::loss_over_rate;
use crate::report::{LatencyReport, Rfc2544Report, SizeReport, ThroughputReport};

const SIZE: Axis = Axis { label: "frame size in bytes", unit: Unit::Count, scale: Scale::Linear };

pub(super) fn add(page: &mut Page, report: &Rfc2544Report) {
    let deviations = report.deviations.iter().map(|deviation| format!("Not as in RFC 2544: {deviation}."));
    page.notes("soft", "differences to RFC 2544", &deviations.collect::<Vec<_>>());
    let rows: Vec<_> = report.sizes.iter().map(|size| size.cells().map(|(_, value)| value).to_vec()).collect();
    let header = SizeReport::default().cells().map(|(name, _)| name);
    page.table(&header, &rows);
    let pps = |size: &SizeReport| size.throughput.as_ref().and_then(ThroughputReport::pps);
    let series = |name: &str, of: &dyn Fn(&SizeReport) -> Option<f64>| {
        let points = report.sizes.iter().filter_map(|size| Some((f64::from(size.size), of(size)?))).collect();
        Series { name: name.to_owned(), mark: Mark::Line, points }
    };
    let chart = |label, unit, series| {
        let y = Axis { label, unit, scale: Scale::Linear };
        Chart { x: SIZE, y, series, lines: Vec::new(), ranges: Vec::new() }
    };
    let throughput =
        vec![series("throughput", &pps), series("highest rate of the tests", &|size| Some(size.highest_pps))];
    page.chart("Throughput by frame size, in packets per second", &chart("packets per second", Unit::Pps, throughput));
    let bits = vec![
        series("throughput", &|size| pps(size).map(|pps| pps * size.line_bits)),
        series("highest rate of the tests", &|size| Some(size.highest_pps * size.line_bits)),
    ];
    page.chart("Throughput by frame size, in bits per second on the line", &chart("bits per second", Unit::Bps, bits));
    page.chart("Frame loss by rate", &frame_loss(&report.sizes));
    let latency =
        |of: fn(&LatencyReport) -> u64| move |size: &SizeReport| size.latency.as_ref().map(|it| of(it) as f64);
    let lines = vec![
        series("p50", &latency(|it| it.latency_ns.p50)),
        series("p99", &latency(|it| it.latency_ns.p99)),
        series("maximum", &latency(|it| it.latency_ns.max)),
    ];
    let over_size = Chart { x: SIZE, y: LATENCY, series: lines, lines: Vec::new(), ranges: Vec::new() };
    page.chart("Latency by frame size, at the rate of the throughput", &over_size);
    for size in &report.sizes {
        if let Some(throughput) = &size.throughput {
            let line = throughput.pps().map(|pps| (pps, "throughput".to_owned()));
            let chart = loss_over_rate(&throughput.trials, line.into_iter().collect());
            page.chart(&format!("Search for the throughput of {} bytes", size.size), &chart);
        }
    }
    let streams: Vec<_> = report.streams.iter().map(|stream| (stream.name.as_str(), &stream.keys)).collect();
    page.streams(&streams);
}

fn frame_loss(sizes: &[SizeReport]) -> Chart {
    let of = |size: &SizeReport| Series {
        name: format!("{} bytes", size.size),
        mark: Mark::Line,
        points: size.frame_loss.iter().map(|step| (step.share, step.loss_ratio)).collect(),
    };
    let x = Axis { label: "share of the highest rate of the tests", unit: Unit::Ratio, scale: Scale::Linear };
    let y = Axis { label: "loss ratio", unit: Unit::Ratio, scale: Scale::Linear };
    let series = sizes.iter().filter(|size| !size.frame_loss.is_empty()).map(of).collect();
    Chart { x, y, series, lines: Vec::new(), ranges: Vec::new() }
}
