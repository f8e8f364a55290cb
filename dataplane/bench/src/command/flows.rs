//! The test method `flows` of `dataplane bench`: the capacity of a stateful device, and the highest rate of new flows
//! (the set-up rate).

use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Args, ValueEnum};
use dataplane::units::Period;
use dataplane::{Error, Result};

use super::find::stream_setups;
use super::opened::{Opened, TrafficArgs, verdict};
use super::output::output;
use super::progress::Progress;
use super::ratios::{percent, width};
use super::trials::{self, Ended, NewFlows, PortTrials};
use crate::rate::Rate;
use crate::report::{self, CapacityReport, FlowTrialReport, FlowsReport, Pps};
use crate::search::{Goal, search};
use crate::setup;
use crate::stream::Stream;
use crate::tester::stopped;

/// The lowest rate of new flows, as a share of the highest rate.
const LOWEST: f64 = 0.001;
/// The share of the capacity that a trial of the set-up rate may fill with flows.
const FILL: f64 = 0.9;
/// The number of full-length trials that confirm an upper bound of the set-up rate.
const CONFIRMATIONS: u64 = 3;
/// The shortest trial of the set-up rate, in seconds.
const SHORTEST: f64 = 0.01;

#[derive(Debug, Args)]
pub(super) struct FlowsArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The command that removes all flows from the device before each trial. A shell runs the command
    #[arg(long, value_name = "COMMAND", conflicts_with = "expire", required_unless_present = "expire")]
    flush: Option<String>,
    /// The time in which the device removes idle flows. The tester waits this time before each trial
    #[arg(long, value_name = "TIME")]
    expire: Option<Period>,
    /// The tests. Default: both tests
    #[arg(long, value_name = "TEST", value_delimiter = ',', default_values_t = [Test::Capacity, Test::Rate], value_enum)]
    tests: Vec<Test>,
    /// The largest number of flows of the test `capacity`
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(2..))]
    max_flows: u64,
    /// In the test `capacity`, the rate at which the flows are opened and checked
    #[arg(long, value_name = "RATE", default_value = "10kpps")]
    rate: Rate,
    /// The highest rate of new flows in the test `rate`. Default: the highest rate at which the tester can send
    #[arg(long, value_name = "RATE", default_value = "max")]
    max: Rate,
    /// The limit of the loss ratio
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    loss: f64,
    /// The duration of a full-length trial of the test `rate`. The trials are shorter if they would fill the device
    #[arg(long, value_name = "TIME", default_value = "1s")]
    trial: Period,
    /// The total duration of the trials that decide about a rate
    #[arg(long, value_name = "TIME", default_value = "3s")]
    sum: Period,
    /// The maximum distance between the lower and the upper bound
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = width)]
    width: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// The number of concurrent flows
    Capacity,
    /// The rate of new flows
    Rate,
}

/// Checks that there is one stream, and that the stream has at least `max_flows` flows.
fn check(streams: &[Stream], max_flows: u64) -> Result<()> {
    let [stream] = streams else {
        return Err(Error::Config(format!(
            "`bench flows` uses one stream, and there are {}; help: remove the other streams",
            streams.len()
        )));
    };
    let flows = stream.flows().map_err(|why| Error::Config(format!("{}: {why}", stream.place)))?;
    if flows < max_flows {
        return Err(Error::Config(format!(
            "{}: the stream has {flows} flows, and --max-flows is {max_flows}; help: vary \
             several header fields, with counts that have no common divisor, such as \
             src_ip = {{ first = \"198.18.0.1\", count = 251 }}, src_port = {{ first = 1024, count = 64000 }}, \
             or reduce --max-flows",
            stream.place
        )));
    }
    Ok(())
}

pub(super) fn flows(args: &FlowsArgs) -> Result<()> {
    let traffic = &args.traffic;
    if traffic.html.is_some() {
        return Err(Error::Config("`bench flows` has no HTML page; help: remove --html, and use --json".to_owned()));
    }
    let highest = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, Some(args.max), lines);
    let mut opened = Opened::new(traffic, highest)?;
    let streams = opened.tester.streams().to_vec();
    check(&streams, args.max_flows)?;
    let shares = setup::shares(&streams, &opened.lines)?;
    let rate = setup::rates(&streams, Some(args.rate), &opened.lines)?.iter().copied().sum::<Option<f64>>();
    let Some(rate) = rate else {
        return Err(Error::Config("--rate is max; help: use a rate such as 10kpps".to_owned()));
    };
    let fastest = highest(&streams, &opened.lines)?.iter().copied().sum::<Option<f64>>();
    let mut report = FlowsReport {
        method: "flows".to_owned(),
        environment: opened.environment.clone(),
        stopped: false,
        streams: stream_setups(&streams, &shares),
        loss_ratio: args.loss,
        capacity: None,
        capacity_trials: Vec::new(),
        set_up_rate: None,
        rate_trials: Vec::new(),
        tester_limits: Vec::new(),
    };
    let progress = Progress::new(args.max_flows as f64 / rate * 8.0 + 20.0 * args.trial.0.as_secs_f64());
    let new_flows = NewFlows::new(args.flush.clone(), args.expire.map(|Period(time)| time));
    let mut run = Run { args, opened: &mut opened, flows: new_flows, progress };
    let ended = run.all(rate, fastest, &shares, &mut report).err();
    run.progress.clear();
    report.stopped = matches!(ended, Some(Ended::Stopped)) || opened.stop.load(Ordering::Relaxed);
    output(&report, traffic.json)?;
    match ended {
        Some(Ended::Failed(error)) => Err(error),
        Some(Ended::Stopped) => Err(stopped()),
        None => opened.tester.close(),
    }
}

struct Run<'a> {
    args: &'a FlowsArgs,
    opened: &'a mut Opened,
    flows: NewFlows,
    progress: Progress,
}

impl Run<'_> {
    fn all(&mut self, rate: f64, fastest: Option<f64>, shares: &[f64], report: &mut FlowsReport) -> Result<(), Ended> {
        if self.args.tests.contains(&Test::Capacity) {
            let result = self.capacity(rate, &mut report.capacity_trials);
            report.capacity = CapacityReport::of(&report.capacity_trials);
            result?;
        }
        for trial in &report.capacity_trials {
            report
                .tester_limits
                .extend(trial.limits.iter().map(|limit| format!("with {} flows: {limit}", trial.flows)));
        }
        if !self.args.tests.contains(&Test::Rate) {
            return Ok(());
        }
        let fastest = match fastest {
            Some(fastest) => fastest,
            // Measure the highest rate at which the tester can send.
            None => {
                self.flows.prepare(self.opened, 0)?;
                let outcome = self.opened.tester.trial(&[None], self.args.trial.0 / 4).map_err(Ended::Failed)?;
                self.flows.next += outcome.streams.iter().map(|stream| stream.sent).sum::<u64>();
                self.opened.report("flows", &[None], &outcome).total.sent_pps
            }
        };
        let trial = self.args.trial.0.as_secs_f64();
        let room =
            report.capacity.as_ref().and_then(|capacity| capacity.flows).map(|flows| flows as f64 * FILL / fastest);
        let trial = room.map_or(trial, |room| trial.min(room)).max(SHORTEST);
        let goal = Goal {
            name: "set-up rate".to_owned(),
            loss_ratio: self.args.loss,
            exceed_ratio: 0.5,
            initial_duration: trial / 4.0,
            final_duration: trial,
            duration_sum: self.args.sum.0.as_secs_f64().max(trial),
            width: self.args.width,
            confirmations: CONFIRMATIONS,
        };
        let progress = &self.progress;
        let mut show = |text: &str| progress.show(text);
        let mut trials = PortTrials {
            opened: self.opened,
            shares: shares.to_vec(),
            reports: Vec::new(),
            rest: Duration::ZERO,
            flows: Some(&mut self.flows),
            show: &mut show,
        };
        let (results, ended) = match search(std::slice::from_ref(&goal), (fastest * LOWEST, fastest), &mut trials) {
            Ok(results) => (results, None),
            Err((ended, results)) => (results, Some(ended)),
        };
        report.rate_trials = trials.reports;
        for trial in report.rate_trials.iter().filter(|trial| !trial.ignored) {
            report.tester_limits.extend(trial.limits.iter().map(|limit| format!("at {}: {limit}", Pps(trial.pps))));
        }
        let mean = report.streams.iter().map(|stream| stream.mean_size).sum::<f64>();
        report.set_up_rate =
            results.first().map(|result| report::goal_report(&goal, result, mean, &report.rate_trials));
        ended.map_or(Ok(()), Err)
    }

    /// Searches for the largest number of concurrent flows with which the loss ratio does not exceed its limit.
    fn capacity(&mut self, rate: f64, trials: &mut Vec<FlowTrialReport>) -> Result<(), Ended> {
        let (mut lower, mut upper) = (0, self.args.max_flows + 1);
        let mut next = self.args.max_flows;
        // Whether `next` is the number of flows that the device carried in the previous trial.
        let mut is_estimate = false;
        while lower + 1 < upper && (upper - lower) as f64 > self.args.width * upper as f64 {
            self.progress.start(format!("{next} flows"));
            let trial = self.flow_trial(next, rate)?;
            let (exceeded, carried) = (trial.exceeded, next.saturating_sub(trial.lost));
            trials.push(trial);
            if exceeded {
                upper = next
            } else {
                lower = next
            }
            // The number of flows that the device carried in this trial is probably the capacity. Test this number, and
            // then a number that is larger by the width.
            let above = lower + ((lower as f64 * self.args.width) as u64).max(1);
            (next, is_estimate) = match exceeded {
                true if lower < carried && carried < upper => (carried, true),
                false if is_estimate && above < upper => (above, false),
                _ => (lower + (upper - lower) / 2, false),
            };
        }
        Ok(())
    }

    /// Opens `flows` new flows, and then sends one more packet of each flow.
    fn flow_trial(&mut self, flows: u64, rate: f64) -> Result<FlowTrialReport, Ended> {
        self.flows.prepare(self.opened, flows)?;
        let duration = Duration::from_secs_f64(flows as f64 / rate);
        // All flows must be opened, even if the tester is late.
        self.opened.tester.set_catch_up(Duration::MAX);
        let mut lost = [0; 2];
        let mut limits = Vec::new();
        for lost in &mut lost {
            let outcome = self.opened.tester.trial(&[Some(rate)], duration).map_err(Ended::Failed)?;
            if outcome.stopped {
                return Err(Ended::Stopped);
            }
            let report = self.opened.report("flows", &[Some(rate)], &outcome);
            verdict(&[&report]).map_err(Ended::Failed)?;
            let total = &report.total;
            let lost_packets = match &report.by_counters {
                None => total.lost_by_device() + total.lost_by_tester(),
                Some(counters) => counters.sent.saturating_sub(counters.arrived),
            };
            // Packets that the tester lost or could not send count as lost, so that the capacity is not too high.
            *lost = lost_packets + total.missed;
            limits.extend(trials::limits(&report));
        }
        self.opened.tester.set_catch_up(self.args.traffic.catch_up.0);
        let [lost_set_up, lost] = lost;
        let loss_ratio = lost as f64 / flows as f64;
        let exceeded = loss_ratio > self.args.loss;
        Ok(FlowTrialReport { flows, lost_set_up, lost, loss_ratio, exceeded, limits })
    }
}
