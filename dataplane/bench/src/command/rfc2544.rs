//! The test method `rfc2544` of `dataplane bench`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use dataplane::units::Period;
use dataplane::{Error, Result};
use hdrhistogram::Histogram;

use super::find::stream_setups;
use super::opened::{INTERVAL, Opened, TrafficArgs, verdict};
use super::output::{output, write_page};
use super::progress::Progress;
use super::ratios::width;
use super::reset::reset_test;
use super::trials::{Ended, PortTrials, rest};
use crate::rate::{LINE_OVERHEAD, Rate};
use crate::report::{
    self, BackToBackReport, LatencyReport, LossStep, Pps, RecoveryReport, Rfc2544Report, SizeReport, ThroughputReport,
    Times, Traffic, ratio,
};
use crate::search::{Goal, Trials, search};
use crate::series::Point;
use crate::setup;
use crate::stored::Stored;
use crate::stream::Stream;
use crate::tester::{Outcome, TrialPlan, stopped};

/// The lowest rate of the search for the throughput, as a share of the highest rate.
const LOWEST: f64 = 0.001;
/// The length of the intervals in which the recovery time is measured.
const RESOLUTION: Duration = Duration::from_millis(1);
/// The relative precision of the length of a burst.
const BURST_WIDTH: f64 = 0.02;
/// The duration of the shortest burst, in seconds.
const SHORTEST_BURST: f64 = 1e-5;
/// The maximum number of repetitions of a burst in which the tester could not send all packets in time.
const BURST_REPEATS: usize = 4;

#[derive(Debug, Args)]
pub(super) struct Rfc2544Args {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The frame sizes in bytes, with the frame check sequence. Default: the sizes of RFC 2544, section 9.1
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [64, 128, 256, 512, 1024, 1280, 1518])]
    sizes: Vec<u16>,
    /// The tests. Default: all tests, and `reset` if there is a --reset-command
    #[arg(long, value_name = "TEST", value_delimiter = ',')]
    tests: Vec<Test>,
    /// The highest rate of each port that sends. Default: the highest rate at which the tester can send
    #[arg(long, value_name = "RATE", default_value = "max")]
    max: Rate,
    /// Use trials of 1 s and few repetitions, which do not follow RFC 2544
    #[arg(long)]
    quick: bool,
    /// The duration of a trial of throughput and frame loss. Default: 60s, or 1s with --quick
    #[arg(long, value_name = "TIME")]
    trial: Option<Period>,
    /// The number of trials without loss that make a rate the throughput. RFC 2544 requires one trial
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    throughput_trials: u64,
    /// The duration of a trial of latency. Default: 120s, or 1s with --quick
    #[arg(long, value_name = "TIME")]
    latency_trial: Option<Period>,
    /// The number of trials of latency. Default: 20, or 1 with --quick
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1000))]
    latency_trials: Option<u64>,
    /// The duration of the longest burst. Default: 2s, or 200ms with --quick
    #[arg(long, value_name = "TIME")]
    burst: Option<Period>,
    /// The number of repetitions of back-to-back. Default: 50, or 3 with --quick
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1000))]
    bursts: Option<u64>,
    /// In the test `recovery`, the duration of the overload, and of the lower load after the overload. Default: 60s, or
    /// 1s with --quick
    #[arg(long, value_name = "TIME")]
    overload: Option<Period>,
    /// The time between two trials. Default: 5s, or 0s with --quick
    #[arg(long, value_name = "TIME")]
    rest: Option<Period>,
    /// The maximum distance between the lower and the upper bound of the throughput
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", value_parser = width)]
    width: f64,
    /// The command that resets the device, for the test `reset`. A shell runs the command
    #[arg(long, value_name = "COMMAND")]
    reset_command: Option<String>,
    /// The duration of the test `reset`. Default: 60s, or 10s with --quick
    #[arg(long, value_name = "TIME")]
    reset_trial: Option<Period>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    Throughput,
    Latency,
    Loss,
    BackToBack,
    Recovery,
    Reset,
}

/// The durations and the numbers of trials of a run.
struct Times2544 {
    trial: Duration,
    latency_trial: Duration,
    latency_trials: u64,
    burst: Duration,
    bursts: u64,
    overload: Duration,
    rest: Duration,
    reset_trial: Duration,
    settle: Duration,
}

impl Times2544 {
    /// Returns the durations and the numbers of trials, and the differences from RFC 2544.
    fn new(args: &Rfc2544Args) -> (Self, Vec<String>) {
        let seconds = Duration::from_secs_f64;
        let mut deviations = Vec::new();
        let mut time = |given: Option<Period>, standard: f64, quick: f64, what: &str| {
            let default = if args.quick { quick } else { standard };
            let time = given.map_or(seconds(default), |Period(time)| time);
            if time < seconds(standard) {
                deviations.push(format!("{what} is {} instead of {standard} s", humantime::format_duration(time)));
            }
            time
        };
        let trial = time(args.trial, 60.0, 1.0, "the duration of a trial");
        let latency_trial = time(args.latency_trial, 120.0, 1.0, "the duration of a trial of latency");
        let burst = time(args.burst, 2.0, 0.2, "the duration of the longest burst");
        let overload = time(args.overload, 60.0, 1.0, "the duration of the overload");
        let rest = time(args.rest, 5.0, 0.0, "the time between two trials");
        let settle = if args.quick { args.traffic.settle.0 } else { args.traffic.settle.0.max(seconds(2.0)) };
        let settle = time(Some(Period(settle)), 2.0, 0.2, "the time for the last packets");
        let reset_trial = args.reset_trial.map_or(seconds(if args.quick { 10.0 } else { 60.0 }), |Period(time)| time);
        let mut number = |given: Option<u64>, standard: u64, quick: u64, what: &str| {
            let number = given.unwrap_or(if args.quick { quick } else { standard });
            if number < standard {
                deviations.push(format!("the number of {what} is {number} instead of {standard}"));
            }
            number
        };
        let latency_trials = number(args.latency_trials, 20, 1, "trials of latency");
        let bursts = number(args.bursts, 50, 3, "repetitions of back-to-back");
        let times = Self { trial, latency_trial, latency_trials, burst, bursts, overload, rest, reset_trial, settle };
        (times, deviations)
    }

    /// Returns the approximate time that a test takes for one frame size, in seconds.
    fn expected(&self, test: Test) -> f64 {
        let pause = (self.settle + self.rest).as_secs_f64();
        let trials = |number: f64, time: Duration| number * (time.as_secs_f64() + pause);
        match test {
            Test::Throughput => trials(8.0, self.trial) + trials(8.0, self.trial / 8),
            Test::Latency => trials(self.latency_trials as f64, self.latency_trial),
            Test::Loss => trials(4.0, self.trial),
            Test::BackToBack => self.bursts as f64 * trials(5.0, self.burst / 4),
            Test::Recovery => trials(1.0, self.overload * 2),
            Test::Reset => trials(1.0, self.reset_trial),
        }
    }
}

pub(super) fn rfc2544(args: &Rfc2544Args) -> Result<()> {
    let mut tests = args.tests.clone();
    if tests.is_empty() {
        tests = vec![Test::Throughput, Test::Latency, Test::Loss, Test::BackToBack, Test::Recovery];
        tests.extend(args.reset_command.as_ref().map(|_| Test::Reset));
    }
    let after_throughput = [Test::Latency, Test::Recovery, Test::Reset];
    if tests.iter().any(|test| after_throughput.contains(test)) && !tests.contains(&Test::Throughput) {
        return Err(Error::Config(
            "the tests `latency`, `recovery` and `reset` use the throughput; help: add throughput to --tests"
                .to_owned(),
        ));
    }
    if tests.contains(&Test::Reset) && args.reset_command.is_none() {
        return Err(Error::Config(
            "the test `reset` needs a command; help: add --reset-command 'COMMAND', such as a command that restarts the \
             device"
                .to_owned(),
        ));
    }
    let (times, deviations) = Times2544::new(args);
    let traffic = &args.traffic;
    let highest = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, Some(args.max), lines);
    let sizes = args.sizes.iter().map(|size| Ok(frame(*size)?.to_string())).collect::<Result<_>>()?;
    let mut opened = Opened::with_sizes(traffic, Some(sizes), highest)?;
    opened.tester.set_settle(times.settle);
    // Check that all sizes fit before the first trial starts.
    for size in &args.sizes {
        let streams = opened.set.streams(Some(frame(*size)?))?;
        highest(&streams, &opened.lines)?;
    }
    let shares = setup::shares(opened.tester.streams(), &opened.lines)?;
    let mut report = Rfc2544Report {
        method: "rfc2544".to_owned(),
        environment: opened.environment.clone(),
        stopped: false,
        deviations,
        streams: stream_setups(opened.tester.streams(), &shares),
        sizes: Vec::new(),
        tester_limits: Vec::new(),
    };
    let expected: f64 = tests.iter().filter(|test| **test != Test::Reset).map(|test| times.expected(*test)).sum();
    let resets = if tests.contains(&Test::Reset) { times.expected(Test::Reset) } else { 0.0 };
    let mut progress = Progress::new(expected * args.sizes.len() as f64 + resets);
    let mut ended = None;
    for size in &args.sizes {
        let mut run = Run { opened: &mut opened, times: &times, args, progress: &mut progress, size: *size };
        let mut of_size = SizeReport { size: *size, ..SizeReport::default() };
        let result = run.all(&tests, &mut of_size, &mut report.tester_limits);
        report.sizes.push(of_size);
        if let Err(error) = result {
            ended = Some(error);
            break;
        }
    }
    progress.clear();
    report.stopped = matches!(ended, Some(Ended::Stopped));
    output(&report, traffic.json)?;
    write_page(traffic.html.as_deref(), || Stored::Rfc2544(Box::new(report.clone())))?;
    match ended {
        Some(Ended::Failed(error)) => Err(error),
        Some(Ended::Stopped) => Err(stopped()),
        None => opened.tester.close(),
    }
}

/// Returns the length of a frame without the frame check sequence.
fn frame(size: u16) -> Result<u16> {
    size.checked_sub(4).ok_or_else(|| Error::Config(format!("--sizes {size} is too small; help: use at least 64")))
}

/// The tests of one frame size.
struct Run<'a> {
    opened: &'a mut Opened,
    times: &'a Times2544,
    args: &'a Rfc2544Args,
    progress: &'a mut Progress,
    size: u16,
}

impl Run<'_> {
    fn all(&mut self, tests: &[Test], report: &mut SizeReport, limits: &mut Vec<String>) -> Result<(), Ended> {
        let lines = self.opened.lines.clone();
        let mut streams =
            frame(self.size).and_then(|size| self.opened.set.streams(Some(size))).map_err(Ended::Failed)?;
        setup::weigh_by_rates(&mut streams, &lines);
        let fastest = setup::rates(&streams, Some(self.args.max), &lines).map_err(Ended::Failed)?;
        let shares = setup::shares(&streams, &lines).map_err(Ended::Failed)?;
        let mean: f64 = streams.iter().zip(&shares).map(|(stream, share)| stream.mean_size * share).sum();
        report.line_bits = (mean + LINE_OVERHEAD) * 8.0;
        self.opened.tester.set_streams(streams, &fastest);
        report.highest_pps = match fastest.iter().copied().sum::<Option<f64>>() {
            Some(highest) => highest,
            None => {
                // Measure the highest rate at which the tester can send.
                let (outcome, _) =
                    self.trial(&vec![None; shares.len()], self.times.trial.min(Duration::from_secs(5)))?;
                outcome.streams.iter().map(|stream| stream.sent).sum::<u64>() as f64 * 1e9 / outcome.duration as f64
            }
        };
        let highest = report.highest_pps;
        let smallest = self.args.sizes.iter().min() == Some(&self.size);
        for test in tests.iter().copied().filter(|test| *test != Test::Reset || smallest) {
            let name = test.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
            self.progress.start(format!("{} bytes, {name}", self.size));
            let throughput = report.throughput.as_ref().and_then(ThroughputReport::pps);
            match (test, throughput) {
                (Test::Throughput, _) => report.throughput = Some(self.throughput(highest, mean, &shares, limits)?),
                (Test::Loss, _) => report.frame_loss = self.frame_loss(highest, &shares, limits)?,
                (Test::BackToBack, throughput) => {
                    report.back_to_back = Some(self.back_to_back(highest, throughput, &shares)?);
                }
                (Test::Latency, Some(throughput)) => report.latency = Some(self.latency(throughput, &shares)?),
                (Test::Recovery, Some(throughput)) => {
                    report.recovery = Some(self.recovery(highest, throughput, &shares)?);
                }
                (Test::Reset, Some(throughput)) => {
                    let rates: Vec<_> = shares.iter().map(|share| Some(share * throughput)).collect();
                    let command = self.args.reset_command.as_deref().unwrap_or_default();
                    let reset = reset_test(self.opened, &rates, self.times.reset_trial, command)?;
                    report.reset = Some(reset);
                    rest(self.opened, self.times.rest)?;
                }
                (Test::Latency | Test::Recovery | Test::Reset, None) => {}
            }
            self.progress.end(self.times.expected(test));
        }
        Ok(())
    }

    /// Runs a trial, and waits for the time between two trials.
    fn trial(&mut self, rates: &[Option<f64>], duration: Duration) -> Result<(Outcome, Traffic), Ended> {
        self.trial_with(&TrialPlan { rates, duration, change: None })
    }

    fn trial_with(&mut self, plan: &TrialPlan<'_>) -> Result<(Outcome, Traffic), Ended> {
        let outcome = self.opened.tester.trial_with(plan, &mut ()).map_err(Ended::Failed)?;
        if outcome.stopped {
            return Err(Ended::Stopped);
        }
        let report = self.opened.report("rfc2544", plan.rates, &outcome);
        verdict(&[&report]).map_err(Ended::Failed)?;
        rest(self.opened, self.times.rest)?;
        Ok((outcome, report.total))
    }

    /// Calls `work`, which runs trials. Returns the result of `work`, and the reports of its trials.
    fn with_trials<R>(
        &mut self,
        shares: &[f64],
        work: impl FnOnce(&mut PortTrials<'_>) -> R,
    ) -> (R, Vec<report::TrialReport>) {
        let progress = &*self.progress;
        let mut show = |text: &str| progress.show(text);
        let mut trials = PortTrials {
            opened: self.opened,
            shares: shares.to_vec(),
            reports: Vec::new(),
            rest: self.times.rest,
            flows: None,
            show: &mut show,
        };
        let result = work(&mut trials);
        (result, trials.reports)
    }

    fn throughput(
        &mut self,
        highest: f64,
        mean: f64,
        shares: &[f64],
        limits: &mut Vec<String>,
    ) -> Result<ThroughputReport, Ended> {
        let (trial, number) = (self.times.trial.as_secs_f64(), self.args.throughput_trials);
        let goal = Goal {
            name: "throughput".to_owned(),
            loss_ratio: 0.0,
            exceed_ratio: 0.0,
            initial_duration: (trial / 16.0).max(0.25).min(trial),
            final_duration: trial,
            duration_sum: trial * number as f64,
            width: self.args.width,
            confirmations: if number > 1 { number } else { 0 },
        };
        let (result, trials) =
            self.with_trials(shares, |trials| search(std::slice::from_ref(&goal), (highest * LOWEST, highest), trials));
        let results = result.map_err(|(ended, _)| ended)?;
        let result = results.first().ok_or(Ended::Stopped)?;
        let goal = report::goal_report(&goal, result, mean, &trials);
        let bounds: Vec<f64> = [&goal.lower, &goal.upper].into_iter().flatten().map(|bound| bound.pps).collect();
        for trial in trials.iter().filter(|trial| !trial.ignored && bounds.contains(&trial.pps)) {
            let at = |limit: &String| format!("{} bytes, at {}: {limit}", self.size, Pps(trial.pps));
            limits.extend(trial.limits.iter().map(at));
        }
        Ok(ThroughputReport { goal, trials })
    }

    fn frame_loss(&mut self, highest: f64, shares: &[f64], limits: &mut Vec<String>) -> Result<Vec<LossStep>, Ended> {
        let duration = self.times.trial.as_secs_f64();
        let mut steps: Vec<LossStep> = Vec::new();
        for tenths in (1..=10).rev() {
            let share = f64::from(tenths) / 10.0;
            let (result, trials) = self.with_trials(shares, |trials| trials.measure(highest * share, duration));
            result?;
            let Some(trial) = trials.into_iter().next_back() else { break };
            limits.extend(
                trial.limits.iter().map(|limit| format!("{} bytes, at {}: {limit}", self.size, Pps(trial.pps))),
            );
            let (loss_ratio, sent, pps) = (ratio(trial.lost, trial.sent), trial.sent, trial.pps);
            steps.push(LossStep { share, pps, sent, loss_ratio, limits: trial.limits });
            // RFC 2544, section 26.3: the test ends after two successive trials without loss.
            if steps.iter().rev().take(2).filter(|step| step.loss_ratio == 0.0).count() == 2 {
                break;
            }
        }
        Ok(steps)
    }

    /// Sends a burst. Returns the number of sent packets, and whether all packets were sent in time and arrived.
    fn burst(&mut self, rates: &[Option<f64>], seconds: f64) -> Result<(u64, bool), Ended> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (_, total) = self.trial(rates, Duration::from_secs_f64(seconds))?;
            let (sent, lost) = (total.sent, total.lost_by_device());
            // The tester did not send these packets, or does not know whether the device forwarded these packets.
            let by_tester = total.missed + total.lost_by_tester();
            self.progress.show(&format!("burst of {sent} packets, {lost} lost"));
            if by_tester == 0 || attempt > BURST_REPEATS {
                return Ok((sent, lost == 0 && by_tester == 0));
            }
        }
    }

    fn back_to_back(
        &mut self,
        highest: f64,
        throughput: Option<f64>,
        shares: &[f64],
    ) -> Result<BackToBackReport, Ended> {
        let rates: Vec<_> = shares.iter().map(|share| Some(share * highest)).collect();
        let longest = self.times.burst.as_secs_f64();
        let (mut results, mut is_lower_bound) = (Vec::new(), true);
        let mut guess = longest;
        for _ in 0..self.times.bursts {
            // The first repetition starts with the longest burst. Each later repetition starts near the previous
            // result.
            let (mut good, mut packets, mut bad) = (0.0, 0, longest * (1.0 + BURST_WIDTH));
            let mut next = (guess * (1.0 + 2.0 * BURST_WIDTH)).min(longest);
            while bad - good > BURST_WIDTH * bad && bad > SHORTEST_BURST && good < longest {
                let (sent, is_complete) = self.burst(&rates, next)?;
                if is_complete {
                    (good, packets) = (next, sent);
                } else {
                    bad = next;
                }
                let near = guess * (1.0 - 2.0 * BURST_WIDTH);
                next = if good == 0.0 && near < bad * (1.0 - BURST_WIDTH) && near > bad / 2.0 {
                    near
                } else {
                    f64::midpoint(good, bad).min(longest)
                };
            }
            is_lower_bound &= good >= longest;
            guess = if good > 0.0 { good } else { longest };
            results.push(packets);
        }
        let packets = results.iter().sum::<u64>() as f64 / results.len().max(1) as f64;
        let range = [results.iter().min(), results.iter().max()].map(|value| value.copied().unwrap_or(0));
        // RFC 9004, section 6.4: while the burst arrives, the device forwards a part of the burst. The buffer
        // holds the rest.
        let buffer = |throughput: f64| packets / highest * (1.0 - throughput / highest).max(0.0);
        let buffer_s = throughput.filter(|_| !is_lower_bound).map(buffer);
        Ok(BackToBackReport { packets, range, trials: self.times.bursts, is_lower_bound, buffer_s })
    }

    fn latency(&mut self, throughput: f64, shares: &[f64]) -> Result<LatencyReport, Ended> {
        let rates: Vec<_> = shares.iter().map(|share| Some(share * throughput)).collect();
        let (mut all, mut means): (Option<Histogram<u64>>, Vec<f64>) = (None, Vec::new());
        let (mut sent, mut lost) = (0, 0);
        for number in 1..=self.times.latency_trials {
            self.progress.show(&format!("trial {number} of {}: {}", self.times.latency_trials, Pps(throughput)));
            let (outcome, total) = self.trial(&rates, self.times.latency_trial)?;
            (sent, lost) = (sent + total.sent, lost + total.lost_by_device());
            let mut of_trial: Option<Histogram<u64>> = None;
            for stream in &outcome.streams {
                for sum in [&mut all, &mut of_trial] {
                    match sum {
                        None => *sum = Some(stream.judgement.latency.clone()),
                        // All histograms have the same bounds.
                        Some(sum) => _ = sum.add(&stream.judgement.latency),
                    }
                }
            }
            means.extend(of_trial.map(|histogram| histogram.mean()));
        }
        Ok(LatencyReport {
            pps: throughput,
            trial_s: self.times.latency_trial.as_secs_f64(),
            trials: self.times.latency_trials,
            mean_of_trials_ns: means.iter().sum::<f64>() / means.len().max(1) as f64,
            latency_ns: all.as_ref().map(Times::of).unwrap_or_default(),
            loss_ratio: ratio(lost, sent),
        })
    }

    fn recovery(&mut self, highest: f64, throughput: f64, shares: &[f64]) -> Result<RecoveryReport, Ended> {
        let overload = (throughput * 1.1).min(highest);
        let rates = |load: f64| shares.iter().map(|share| Some(share * load)).collect::<Vec<_>>();
        let (before, after) = (rates(overload), rates(overload / 2.0));
        let change = self.times.overload;
        let plan = TrialPlan { rates: &before, duration: change * 2, change: Some((change, &after)) };
        self.progress.show(&format!("overload with {}", Pps(overload)));
        self.opened.tester.set_interval(RESOLUTION);
        let result = self.trial_with(&plan);
        self.opened.tester.set_interval(self.args.traffic.interval(INTERVAL));
        let (outcome, _) = result?;
        let length = outcome.intervals.length as f64 / 1e9;
        let lost = |number: usize| {
            let points = outcome.streams.iter().filter_map(|stream| stream.series.get(number));
            points.map(Point::lost).sum::<u64>()
        };
        let count = outcome.streams.iter().map(|stream| stream.series.len()).max().unwrap_or(0);
        let first_after = (change.as_secs_f64() / length).round() as usize;
        let last_loss = (first_after..count).rev().find(|number| lost(*number) > 0);
        let recovery_s = match last_loss {
            None => Some(0.0),
            // The device still loses packets at the end.
            Some(number) if number + 2 >= count => None,
            Some(number) => Some((number + 1 - first_after) as f64 * length),
        };
        Ok(RecoveryReport {
            overload_pps: overload,
            overload_s: change.as_secs_f64(),
            after_pps: overload / 2.0,
            recovery_s,
            resolution_s: length,
            lost_in_overload: (0..first_after.min(count)).map(lost).sum(),
        })
    }
}
