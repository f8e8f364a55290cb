//! The test method `latency` of `dataplane bench`.

use clap::Args;
use dataplane::units::Period;
use dataplane::{Error, Result};

use super::opened::{Opened, TrafficArgs, verdict};
use super::output::{output, write_page};
use super::progress::Progress;
use super::ratios::load;
use crate::rate::Rate;
use crate::report::{LatencyStep, LatencyStepsReport, Pps};
use crate::setup;
use crate::stored::Stored;
use crate::stream::Stream;

#[derive(Debug, Args)]
pub(super) struct LatencyArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The highest rate of each port that sends. Default: the highest rate at which the tester can send
    #[arg(long, value_name = "RATE", default_value = "max")]
    max: Rate,
    /// The loads, as shares of the highest rate
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "10%,25%,50%,75%,90%", value_parser = load)]
    loads: Vec<f64>,
    /// The duration of the trial at each load
    #[arg(long = "for", value_name = "TIME", default_value = "10s")]
    duration: Period,
}

pub(super) fn latency(args: &LatencyArgs) -> Result<()> {
    let traffic = &args.traffic;
    let highest = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, Some(args.max), lines);
    let mut opened = Opened::new(traffic, highest)?;
    let shares = setup::shares(opened.tester.streams(), &opened.lines)?;
    let fastest = highest(opened.tester.streams(), &opened.lines)?;
    let highest_pps = match fastest.iter().copied().sum::<Option<f64>>() {
        Some(highest) => highest,
        None => {
            let outcome = opened.tester.trial(&fastest, args.duration.0 / 10)?;
            opened.report("latency", &fastest, &outcome).total.sent_pps
        }
    };
    let mut loads = args.loads.clone();
    loads.sort_by(f64::total_cmp);
    let seconds = args.duration.0.as_secs_f64() + traffic.settle.0.as_secs_f64();
    let mut progress = Progress::new(seconds * loads.len() as f64);
    let mut report = LatencyStepsReport {
        method: "latency".to_owned(),
        environment: opened.environment.clone(),
        stopped: false,
        highest_pps,
        steps: Vec::new(),
    };
    for share in loads {
        progress.start(format!("load {:.0} %, {}", share * 100.0, Pps(share * highest_pps)));
        let rates: Vec<_> = shares.iter().map(|part| Some(part * share * highest_pps)).collect();
        let outcome = opened.tester.trial(&rates, args.duration.0)?;
        let trial = opened.report("latency", &rates, &outcome);
        report.stopped = trial.stopped;
        report.steps.push(LatencyStep { share, trial });
        progress.end(seconds);
        if report.stopped {
            break;
        }
    }
    progress.clear();
    output(&report, traffic.json)?;
    write_page(traffic.html.as_deref(), || Stored::Latency(Box::new(report.clone())))?;
    opened.tester.close()?;
    if report.steps.is_empty() {
        return Err(Error::Config("there is no load; help: add --loads, such as --loads 50%,90%".to_owned()));
    }
    verdict(&report.steps.iter().map(|step| &step.trial).collect::<Vec<_>>())
}
