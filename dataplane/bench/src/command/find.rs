//! The test methods `ndr` and `pdr` of `dataplane bench`.

use std::io::{self, IsTerminal};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;
use dataplane::units::Period;
use dataplane::{Error, Result};
use dataplane_core::stderr;

use super::opened::{Opened, TrafficArgs};
use super::output::{output, write_page};
use super::progress::time_left;
use super::ratios::{percent, width};
use super::trials::{Ended, PortTrials};
use crate::rate::Rate;
use crate::report::{self, Pps, SearchReport, StreamSetup};
use crate::search::{Goal, search};
use crate::setup;
use crate::stored::Stored;
use crate::stream::Stream;
use crate::tester::stopped;

/// The default lowest rate of a search, as a share of the highest rate.
const LOWEST: f64 = 0.001;
/// The number of full-length trials that confirm an upper bound.
const CONFIRMATIONS: u64 = 5;

#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The lowest rate of each port that sends. Default: a thousandth of the highest rate
    #[arg(long, value_name = "RATE")]
    min: Option<Rate>,
    /// The highest rate of each port that sends. Default: the highest rate at which the tester can send
    #[arg(long, value_name = "RATE", default_value = "max")]
    max: Rate,
    /// The duration of a full-length trial
    #[arg(long, value_name = "TIME", default_value = "1s")]
    trial: Period,
    /// The duration of the first trials, which find the region of the result
    #[arg(long, value_name = "TIME", default_value = "250ms")]
    first_trial: Period,
    /// The total duration of the trials that decide about a rate
    #[arg(long, value_name = "TIME", default_value = "10s")]
    sum: Period,
    /// The maximum distance between the lower and the upper bound
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", value_parser = width)]
    width: f64,
}

#[derive(Debug, Args)]
pub(super) struct NdrArgs {
    #[command(flatten)]
    pub(super) search: SearchArgs,
    /// The share of the trials at a rate that may have loss
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    pub(super) exceed: f64,
}

#[derive(Debug, Args)]
pub(super) struct PdrArgs {
    #[command(flatten)]
    pub(super) search: SearchArgs,
    /// The limits of the loss ratio, separated by commas. One search finds the results of all ratios
    #[arg(long, value_name = "PERCENT", default_value = "0.1%", value_delimiter = ',', value_parser = percent)]
    pub(super) loss: Vec<f64>,
    /// The share of the trials at a rate that may exceed the loss ratio
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = percent)]
    pub(super) exceed: f64,
}

pub(super) fn find(method: &str, args: &SearchArgs, losses: &[f64], exceed_ratio: f64) -> Result<()> {
    let traffic = &args.traffic;
    let highest = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, Some(args.max), lines);
    let mut opened = Opened::new(traffic, highest)?;
    let (streams, lines) = (opened.tester.streams().to_vec(), opened.lines.clone());
    let sum = |rates: &[Option<f64>]| rates.iter().copied().sum::<Option<f64>>();
    let shares = setup::shares(&streams, &lines)?;
    let highest = match sum(&highest(&streams, &lines)?) {
        Some(highest) => highest,
        // Measure the highest rate at which the tester can send.
        None => {
            let outcome = opened.tester.trial(&vec![None; streams.len()], args.trial.0)?;
            opened.report(method, &vec![None; streams.len()], &outcome).total.sent_pps
        }
    };
    let lowest = match args.min {
        None => highest * LOWEST,
        Some(min) => sum(&setup::rates(&streams, Some(min), &lines)?).unwrap_or(highest),
    };
    if !(lowest > 0.0 && lowest < highest) {
        return Err(Error::Config(format!(
            "the lowest rate is {} and the highest rate is {}; help: set --min below --max",
            Pps(lowest),
            Pps(highest)
        )));
    }
    let goals: Vec<Goal> = losses
        .iter()
        .map(|&loss_ratio| Goal {
            name: if loss_ratio == 0.0 { "NDR".to_owned() } else { format!("PDR {}%", loss_ratio * 100.0) },
            loss_ratio,
            exceed_ratio,
            initial_duration: args.first_trial.0.as_secs_f64().min(args.trial.0.as_secs_f64()),
            final_duration: args.trial.0.as_secs_f64(),
            duration_sum: args.sum.0.max(args.trial.0).as_secs_f64(),
            width: args.width,
            confirmations: CONFIRMATIONS,
        })
        .collect();
    let mean = streams.iter().zip(&shares).map(|(stream, share)| stream.mean_size * share).sum::<f64>();
    let is_watched = io::stderr().is_terminal();
    let (begin, expected) = (Instant::now(), expected(args, goals.len()));
    let mut show = |text: &str| {
        if is_watched {
            let left = time_left(expected, begin.elapsed(), args.trial.0 + traffic.settle.0);
            stderr::write_unless_full(&format!("{text}, about {} left\n", humantime::format_duration(left)));
        }
    };
    let mut trials = PortTrials {
        opened: &mut opened,
        shares: shares.clone(),
        reports: Vec::new(),
        rest: Duration::ZERO,
        flows: None,
        show: &mut show,
    };
    let (results, ended) = match search(&goals, (lowest, highest), &mut trials) {
        Ok(results) => (results, None),
        Err((ended, results)) => (results, Some(ended)),
    };
    let reports = trials.reports;
    let mut tester_limits: Vec<String> = Vec::new();
    for trial in reports.iter().filter(|trial| !trial.ignored) {
        tester_limits.extend(trial.limits.iter().map(|limit| format!("at {}: {limit}", Pps(trial.pps))));
    }
    let report = SearchReport {
        method: method.to_owned(),
        environment: opened.environment.clone(),
        stopped: matches!(ended, Some(Ended::Stopped)) || opened.stop.load(Ordering::Relaxed),
        streams: stream_setups(&streams, &shares),
        goals: goals
            .iter()
            .zip(&results)
            .map(|(goal, result)| report::goal_report(goal, result, mean, &reports))
            .collect(),
        trials: reports,
        tester_limits,
    };
    output(&report, traffic.json)?;
    write_page(traffic.html.as_deref(), || Stored::Search(Box::new(report.clone())))?;
    match ended {
        Some(Ended::Failed(error)) => return Err(error),
        Some(Ended::Stopped) => return Err(stopped()),
        None => {}
    }
    opened.tester.close()
}

/// Returns the approximate time of a search: short trials that find the region of the result, and the trials that decide
/// about three rates for each goal.
fn expected(args: &SearchArgs, goals: usize) -> Duration {
    let settle = args.traffic.settle.0;
    let full = args.sum.0.as_secs_f64().max(args.trial.0.as_secs_f64()) / args.trial.0.as_secs_f64().max(0.001);
    (args.first_trial.0 + settle) * 10 + (args.trial.0 + settle).mul_f64(3.0 * full * goals as f64)
}

/// Returns the streams, in the form in which a result lists them.
pub(super) fn stream_setups(streams: &[Stream], shares: &[f64]) -> Vec<StreamSetup> {
    let of = |(stream, share): (&Stream, &f64)| StreamSetup {
        name: stream.name.clone(),
        from: stream.from,
        to: stream.to,
        share: *share,
        mean_size: stream.mean_size,
        keys: stream.keys().clone(),
    };
    streams.iter().zip(shares).map(of).collect()
}
