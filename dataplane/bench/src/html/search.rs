//! The page of a search: a chart with the loss ratio and the rate of each trial, and a chart with the rates in the order
//! of the trials.

use super::chart::{Axis, Chart, Mark, Scale, Series, Unit};
use super::document::Page;
use crate::report::{BoundReport, Bps, GoalReport, Pps, SearchReport, TrialReport};

const RATE: &str = "rate of the trial";

pub(super) fn add(page: &mut Page, report: &SearchReport) {
    goals(page, &report.goals);
    let bounds: Vec<_> = report.goals.iter().flat_map(|goal| lines(goal, &goal.name)).collect();
    page.chart("Loss ratio and rate of each trial", &loss_over_rate(&report.trials, bounds));
    page.chart("Rates in the order of the trials", &order(&report.trials));
    let ignored = report.trials.iter().filter(|trial| trial.ignored).count();
    // `sum` of an empty iterator is -0, and the page would have `-0 s`.
    let seconds = report.trials.iter().fold(0.0, |sum, trial| sum + trial.duration_s);
    page.text(&format!(
        "{} trials in {seconds:.0} s of traffic. The search ignored {ignored} trials because the tester was the limit or was \
         disturbed.",
        report.trials.len()
    ));
    let streams: Vec<_> = report.streams.iter().map(|stream| (stream.name.as_str(), &stream.keys)).collect();
    page.streams(&streams);
}

/// Adds the table of the results.
pub(super) fn goals(page: &mut Page, goals: &[GoalReport]) {
    let bound = |goal: &GoalReport, bound: &Option<BoundReport>| match bound {
        None => vec![goal.missing_bound("none").to_owned(), String::new(), String::new()],
        Some(it) => {
            let trials = format!("{} of {}", it.exceeded + it.short_exceeded, it.trials + it.short_trials);
            vec![Pps(it.pps).to_string(), Bps(it.bps).to_string(), trials]
        }
    };
    let mut rows = Vec::new();
    for goal in goals {
        for (name, of) in [("lower bound", &goal.lower), ("upper bound", &goal.upper)] {
            rows.push([vec![format!("{}: {name}", goal.name)], bound(goal, of)].concat());
        }
    }
    page.table(&["goal", "packets", "bits with FCS", "trials with too much loss"], &rows);
}

/// Returns the vertical lines of the bounds of a goal.
pub(super) fn lines(goal: &GoalReport, name: &str) -> Vec<(f64, String)> {
    let line = |bound: &Option<BoundReport>, what: &str| {
        bound.as_ref().map(|bound| (bound.pps, format!("{name} {what} {}", Pps(bound.pps))))
    };
    [line(&goal.lower, "lower"), line(&goal.upper, "upper")].into_iter().flatten().collect()
}

pub(super) fn loss_over_rate(trials: &[TrialReport], lines: Vec<(f64, String)>) -> Chart {
    let point = |trial: &TrialReport| (trial.pps, trial.loss_ratio);
    let of = |wanted: bool| trials.iter().filter(move |trial| trial.ignored == wanted).map(point).collect();
    let mut series = vec![Series { name: "trials".to_owned(), mark: Mark::Dots, points: of(false) }];
    if trials.iter().any(|trial| trial.ignored) {
        series.push(Series { name: "ignored trials".to_owned(), mark: Mark::Rings, points: of(true) });
    }
    // The scale is logarithmic, because many rates are close to the result, and the first rate can be far away.
    let x = Axis { label: RATE, unit: Unit::Pps, scale: Scale::Log };
    let y = Axis { label: "loss ratio", unit: Unit::Ratio, scale: Scale::Log };
    Chart { x, y, series, lines, ranges: Vec::new() }
}

fn order(trials: &[TrialReport]) -> Chart {
    let points = trials.iter().enumerate().map(|(number, trial)| (number as f64 + 1.0, trial.pps)).collect();
    let series = vec![Series { name: "trial".to_owned(), mark: Mark::Line, points }];
    let x = Axis { label: "number of the trial", unit: Unit::Count, scale: Scale::Linear };
    let y = Axis { label: RATE, unit: Unit::Pps, scale: Scale::Linear };
    Chart { x, y, series, lines: Vec::new(), ranges: Vec::new() }
}
