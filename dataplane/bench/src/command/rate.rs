//! The test methods `rate` and `calibrate` of `dataplane bench`.

use clap::Args;
use dataplane::units::Period;
use dataplane::{Error, Result};

use super::opened::{Opened, TrafficArgs, verdict};
use super::output::{output, write_page};
use super::progress::TrialProgress;
use crate::rate::Rate;
use crate::report::{Calibration, CalibrationReport};
use crate::setup;
use crate::stored::Stored;
use crate::stream::Stream;

#[derive(Debug, Args)]
pub(super) struct RateArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The rate of each port that sends: 10kpps, 1Gbps, 50% or max. Default: the rates of the streams
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// The time in which packets are sent
    #[arg(long = "for", value_name = "TIME", default_value = "10s")]
    duration: Period,
}

#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The duration of each trial
    #[arg(long = "for", value_name = "TIME", default_value = "3s")]
    duration: Period,
}

pub(super) fn rate(args: &RateArgs) -> Result<()> {
    let traffic = &args.traffic;
    let wanted = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, args.rate, lines);
    let mut opened = Opened::new(traffic, wanted)?;
    setup::check_times(opened.tester.streams(), args.duration.0)?;
    let rates = wanted(opened.tester.streams(), &opened.lines)?;
    let progress = TrialProgress::start("rate".to_owned(), args.duration.0 + traffic.settle.0);
    let outcome = opened.tester.trial(&rates, args.duration.0)?;
    drop(progress);
    let report = opened.report("rate", &rates, &outcome);
    output(&report, traffic.json)?;
    write_page(traffic.html.as_deref(), || Stored::Rate(Box::new(report.clone())))?;
    opened.tester.close()?;
    verdict(&[&report])
}

pub(super) fn calibrate(args: &CalibrateArgs) -> Result<()> {
    let traffic = &args.traffic;
    let mut opened = Opened::new(traffic, |streams, _| Ok(vec![None; streams.len()]))?;
    let count = opened.tester.streams().len();
    let trial = args.duration.0 + traffic.settle.0;
    let progress = TrialProgress::start("calibrate at the highest rate".to_owned(), trial * 2 + trial / 10);
    // Run a short trial first: it fills the caches and starts the threads of the kernel.
    opened.tester.trial(&vec![None; count], args.duration.0 / 10)?;
    let outcome = opened.tester.trial(&vec![None; count], args.duration.0)?;
    drop(progress);
    let max = opened.report("calibrate", &vec![None; count], &outcome);
    let max_pps = max.total.received_pps;
    if max_pps <= 0.0 {
        output(&max, false)?;
        return Err(Error::Wire(
            "no packet returned, so the tester cannot be calibrated; help: connect the two ports directly".to_owned(),
        ));
    }
    let rates = setup::rates(opened.tester.streams(), Some(Rate::Packets(1.0)), &opened.lines)?;
    let sum = rates.iter().flatten().sum::<f64>();
    let rates: Vec<_> = rates.iter().map(|rate| rate.map(|rate| rate / sum * max_pps / 2.0)).collect();
    let progress = TrialProgress::start("calibrate at half of the highest rate".to_owned(), trial);
    let outcome = opened.tester.trial(&rates, args.duration.0)?;
    drop(progress);
    let half = opened.report("calibrate", &rates, &outcome);
    let calibration = Calibration {
        max_pps,
        rate_error: half.total.sent_pps / (max_pps / 2.0) - 1.0,
        loss_ratio: half.total.loss_ratio,
        latency_ns: half.streams.first().map(|stream| stream.latency_ns).unwrap_or_default(),
        pacing_ns: half.streams.first().map(|stream| stream.pacing_ns).unwrap_or_default(),
    };
    let report = CalibrationReport { calibration, max, half };
    output(&report, traffic.json)?;
    write_page(traffic.html.as_deref(), || Stored::Calibration(Box::new(report.clone())))?;
    opened.tester.close()?;
    verdict(&[&report.max, &report.half])
}
