//! The command `bench`.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use dataplane::clock::HostClock;
use dataplane::runtime::PortLanes;
use dataplane::units::{BitRate, Period};
use dataplane::{Error, Result};
use serde::Serialize;

use crate::rate::Rate;
use crate::report::{
    self, Calibration, CalibrationReport, Nanoseconds, Pps, RateReport, SearchReport, TrialReport, rate_report,
};
use crate::search::{Goal, Measurement, Trials, is_ignored, search};
use crate::setup::{self, Sources};
use crate::stream::Stream;
use crate::tester::{Outcome, Tester, TesterOptions};

/// The default lowest rate of a search, as a share of the highest rate.
const LOWEST: f64 = 0.001;

/// Send streams of packets through a device under test, and judge the packets that return
#[derive(Debug, Parser)]
#[command(name = "bench", arg_required_else_help = true, after_help = STATUS)]
struct Bench {
    #[command(subcommand)]
    method: Method,
}

const STATUS: &str = "Exit status: 0 success, 1 a failed or incomplete run, 2 a wrong command line or config.";

#[derive(Debug, Subcommand)]
enum Method {
    /// Send at one rate, and report loss, duplicates, reordering, latency and jitter of each stream
    Rate(RateArgs),
    /// Search the highest rate without loss (no drop rate, MLRsearch)
    Ndr(NdrArgs),
    /// Search the highest rate with at most a loss ratio (partial drop rate, MLRsearch)
    Pdr(PdrArgs),
    /// Measure the tester itself on two ports that are directly connected
    Calibrate(CalibrateArgs),
    /// Print the JSON schema of a result
    Schema(SchemaArgs),
}

/// The ports, the streams and the limits of a trial.
#[derive(Debug, Args)]
struct TrafficArgs {
    /// A config with [[port]], [runtime] and [[stream]]
    #[arg(value_name = "CONFIG", conflicts_with = "ports")]
    config: Option<PathBuf>,
    /// The interfaces or RDMA devices, if there is no config
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    ports: Vec<String>,
    /// The kind of link of --ports: packet or xdp
    #[arg(long, value_name = "KIND", default_value = "packet", value_parser = ["packet", "xdp"])]
    link: String,
    /// The core of the tester, with --ports
    #[arg(long, value_name = "CORE", conflicts_with = "config")]
    core: Option<u32>,
    /// Add a stream: the keys of a [[stream]], such as 'size = 60, dst_port = 53'
    #[arg(long = "stream", value_name = "KEYS")]
    streams: Vec<String>,
    /// Override a value of the config, such as runtime.burst=32
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// The speed of the line, such as 10Gbps. Default: the speed that the kernel reports for a device
    #[arg(long, value_name = "SPEED")]
    line: Option<BitRate>,
    /// Packets with a higher latency are late, and count as loss
    #[arg(long, value_name = "TIME", default_value = "1s")]
    late: Period,
    /// Report times without arrivals that are longer
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    gap: Period,
    /// The time without arrivals after which the counters are read
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    settle: Period,
    /// Packets that the tester could not send for this time are skipped, instead of sent as a burst
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    catch_up: Period,
    /// The JSON result of `bench calibrate`, to mark results near the tester's own limits
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct RateArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The rate of each port that sends: 10kpps, 1Gbps, 50% or max. Default: the rates of the streams
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// The duration
    #[arg(long = "for", value_name = "TIME", default_value = "10s")]
    duration: Period,
}

#[derive(Debug, Args)]
struct SearchArgs {
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
struct NdrArgs {
    #[command(flatten)]
    search: SearchArgs,
    /// The share of the trials at a rate that may have loss
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    exceed: f64,
}

#[derive(Debug, Args)]
struct PdrArgs {
    #[command(flatten)]
    search: SearchArgs,
    /// The highest loss ratio. Several ratios share one search
    #[arg(long, value_name = "PERCENT", default_value = "0.1%", value_delimiter = ',', value_parser = percent)]
    loss: Vec<f64>,
    /// The share of the trials at a rate that may exceed the loss ratio
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = percent)]
    exceed: f64,
}

#[derive(Debug, Args)]
struct CalibrateArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// The duration of each trial
    #[arg(long = "for", value_name = "TIME", default_value = "3s")]
    duration: Period,
}

#[derive(Debug, Args)]
struct SchemaArgs {
    /// The result
    result: SchemaOf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SchemaOf {
    /// The result of `rate`
    Rate,
    /// The result of `ndr` and `pdr`
    Search,
    /// The result of `calibrate`
    Calibrate,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`; help: write KEY=VALUE"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Reads a ratio, such as `0.1%`. Returns the ratio as a number from 0 to below 1.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let ratio = number.map(|number| number / 100.0).filter(|ratio| (0.0..1.0).contains(ratio));
    ratio.ok_or_else(|| format!("`{text}` is not a ratio below 100 %; help: write a number and %, such as 0.1%"))
}

/// Reads the width of a search: a ratio of at least 0.01 %. Rates that are closer cannot be told apart.
fn width(text: &str) -> Result<f64, String> {
    let ratio = percent(text)?;
    let message = || format!("`{text}` is below the smallest width; help: write 0.01% or more");
    if ratio >= 0.0001 { Ok(ratio) } else { Err(message()) }
}

/// Returns the command for [`dataplane::app::App::command`].
pub fn command() -> clap::Command {
    <Bench as clap::CommandFactory>::command()
}

/// Runs the command.
///
/// # Errors
/// Returns [`Error::Config`] for a wrong command line or config, and another error for a failed run.
pub fn run(matches: &clap::ArgMatches) -> Result<()> {
    let bench = Bench::from_arg_matches(matches).map_err(|error| Error::Config(error.to_string()))?;
    match bench.method {
        Method::Rate(args) => rate(&args),
        Method::Ndr(NdrArgs { search, exceed }) => find("ndr", &search, &[0.0], exceed),
        Method::Pdr(PdrArgs { search, loss, exceed }) => find("pdr", &search, &loss, exceed),
        Method::Calibrate(args) => calibrate(&args),
        Method::Schema(args) => {
            let schema = match args.result {
                SchemaOf::Rate => schemars::schema_for!(RateReport),
                SchemaOf::Search => schemars::schema_for!(SearchReport),
                SchemaOf::Calibrate => schemars::schema_for!(CalibrationReport),
            };
            print_json(&schema)
        }
    }
}

/// The tester with its ports open, and the properties of its ports.
struct Opened {
    tester: Tester,
    /// The name and the device of each port.
    names: Vec<(String, String)>,
    lines: Vec<Option<u64>>,
    calibration: Option<Calibration>,
    core: Option<u32>,
    stop: Arc<AtomicBool>,
}

impl Opened {
    /// Opens the ports. `fastest` returns the highest rates of the streams.
    fn new(
        args: &TrafficArgs,
        fastest: impl FnOnce(&[Stream], &[Option<u64>]) -> Result<Vec<Option<f64>>>,
    ) -> Result<Self> {
        let calibration = args.calibration.as_ref().map(read_calibration).transpose()?;
        let sources = Sources {
            config: args.config.clone(),
            ports: args.ports.clone(),
            link: args.link.clone(),
            core: args.core,
            streams: args.streams.clone(),
            settings: args.settings.clone(),
        };
        let (assembly, mut streams) = setup::load(&sources)?;
        let lines = setup::line_speeds(&assembly, args.line.map(|BitRate(bits)| bits));
        setup::weigh_by_rates(&mut streams, &lines);
        let fastest = fastest(&streams, &lines)?;
        let stop = stop_flag()?;
        let clock = HostClock::new();
        let lanes = PortLanes::open(assembly, &clock, || stop.load(Ordering::Relaxed))?;
        let names = lanes.ports().iter().enumerate();
        let names = names.map(|(index, port)| (port.name.clone(), lanes.describe(index))).collect();
        let core = lanes.plan().cores.first().map(|core| core.0);
        let options =
            TesterOptions { late: args.late.0, gap: args.gap.0, settle: args.settle.0, catch_up: args.catch_up.0 };
        let tester = Tester::new(lanes, clock, streams, &fastest, options, stop.clone());
        Ok(Self { tester, names, lines, calibration, core, stop })
    }

    fn report(&self, method: &str, rates: &[Option<f64>], outcome: &Outcome) -> RateReport {
        let calibration = self.calibration.as_ref();
        rate_report(method, self.tester.streams(), rates, &self.names, outcome, calibration, self.core)
    }
}

/// Returns a flag that SIGINT and SIGTERM set. The second signal ends the process.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(|error| Error::Topology(format!("cannot install signal handlers: {error}")))?;
    }
    Ok(stop)
}

fn read_calibration(path: &PathBuf) -> Result<Calibration> {
    let text = std::fs::read(path).map_err(|source| Error::File { path: path.clone(), source })?;
    let report: CalibrationReport = serde_json::from_slice(&text).map_err(|error| {
        let path = path.display();
        Error::Config(format!(
            "{path} is not a calibration: {error}; help: create it with dataplane bench calibrate --json > {path}"
        ))
    })?;
    Ok(report.calibration)
}

/// Returns an error for a result that cannot be trusted, after the result was printed.
fn verdict(reports: &[&RateReport]) -> Result<()> {
    for report in reports {
        if report.unaccounted != 0 {
            let unaccounted = report.unaccounted;
            return Err(Error::Wire(format!("the counters do not balance: {unaccounted} packets are unaccounted")));
        }
        if report.stopped {
            return Err(Error::Topology("stopped before the end, so the result is incomplete".to_owned()));
        }
    }
    Ok(())
}

fn rate(args: &RateArgs) -> Result<()> {
    let traffic = &args.traffic;
    let wanted = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, args.rate, lines);
    let mut opened = Opened::new(traffic, wanted)?;
    let rates = wanted(opened.tester.streams(), &opened.lines)?;
    let outcome = opened.tester.trial(&rates, args.duration.0)?;
    let report = opened.report("rate", &rates, &outcome);
    output(&report, traffic.json)?;
    opened.tester.close()?;
    verdict(&[&report])
}

fn calibrate(args: &CalibrateArgs) -> Result<()> {
    let traffic = &args.traffic;
    let mut opened = Opened::new(traffic, |streams, _| Ok(vec![None; streams.len()]))?;
    let count = opened.tester.streams().len();
    // The first packets fill caches and start the kernel's threads.
    opened.tester.trial(&vec![None; count], args.duration.0 / 10)?;
    let outcome = opened.tester.trial(&vec![None; count], args.duration.0)?;
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
    let outcome = opened.tester.trial(&rates, args.duration.0)?;
    let half = opened.report("calibrate", &rates, &outcome);
    let calibration = Calibration {
        max_pps,
        rate_error: half.total.sent_pps / (max_pps / 2.0) - 1.0,
        loss_ratio: half.total.loss_ratio,
        latency_ns: half.streams.first().map(|stream| stream.latency_ns).unwrap_or_default(),
    };
    let report = CalibrationReport { calibration, max, half };
    output(&report, traffic.json)?;
    opened.tester.close()?;
    verdict(&[&report.max, &report.half])
}

/// Runs the trials of a search on the ports.
struct PortTrials {
    opened: Opened,
    /// The share of each stream of the load.
    shares: Vec<f64>,
    reports: Vec<TrialReport>,
    is_watched: bool,
}

/// The reason why a search ended early.
enum Ended {
    Stopped,
    Failed(Error),
}

impl Trials for PortTrials {
    type Error = Ended;

    fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, Ended> {
        let rates: Vec<_> = self.shares.iter().map(|share| Some(share * load)).collect();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let outcome = self.opened.tester.trial(&rates, Duration::from_secs_f64(duration)).map_err(Ended::Failed)?;
            if outcome.stopped {
                return Err(Ended::Stopped);
            }
            let report = self.opened.report("search", &rates, &outcome);
            if report.unaccounted != 0 {
                return Err(Ended::Failed(verdict(&[&report]).err().unwrap_or(Error::Wire(String::new()))));
            }
            let total = &report.total;
            // The device did not forward these packets in the trial, but stored them.
            let held = total.held;
            let lost = total.corrupted + total.late + total.lost + held;
            let mut limits = report.tester.limits;
            if total.missed > 0 && limits.is_empty() {
                // Even few packets decide whether the loss ratio of a goal is exceeded.
                limits.push(format!("the tester did not send {} packets in time", total.missed));
            }
            limits.extend(report.tester.disturbances);
            let ignored = is_ignored(!limits.is_empty(), attempt);
            // Packets that the tester could not send count as lost. The result is then too low, never too high.
            let loss_ratio = (lost + total.missed) as f64 / (total.sent + total.missed).max(1) as f64;
            if self.is_watched {
                let number = self.reports.len() + 1;
                let time = Nanoseconds(outcome.duration);
                let note = if ignored { ", repeated because the tester was the limit or was disturbed" } else { "" };
                eprintln!("trial {number}: {}, {time}: loss {:.4} %{note}", Pps(load), loss_ratio * 100.0);
            }
            let (sent, duration_s) = (total.sent, report.duration_s);
            self.reports.push(TrialReport { pps: load, duration_s, sent, lost, held, ignored, limits });
            if !ignored {
                return Ok(Measurement { duration: duration_s, loss_ratio });
            }
        }
    }
}

fn find(method: &str, args: &SearchArgs, losses: &[f64], exceed_ratio: f64) -> Result<()> {
    let traffic = &args.traffic;
    let highest = |streams: &[Stream], lines: &[Option<u64>]| setup::rates(streams, Some(args.max), lines);
    let mut opened = Opened::new(traffic, highest)?;
    let (streams, lines) = (opened.tester.streams().to_vec(), opened.lines.clone());
    let sum = |rates: &[Option<f64>]| rates.iter().copied().sum::<Option<f64>>();
    let shares = setup::rates(&streams, Some(Rate::Packets(1.0)), &lines)?;
    let whole = sum(&shares).unwrap_or(1.0);
    let shares: Vec<f64> = shares.iter().map(|share| share.unwrap_or(0.0) / whole).collect();
    let highest = match sum(&highest(&streams, &lines)?) {
        Some(highest) => highest,
        // Use the highest rate that the tester can send.
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
        })
        .collect();
    let mean = streams.iter().zip(&shares).map(|(stream, share)| stream.mean_size * share).sum::<f64>();
    let is_watched = io::stderr().is_terminal();
    let mut trials = PortTrials { opened, shares, reports: Vec::new(), is_watched };
    let (results, ended) = match search(&goals, (lowest, highest), &mut trials) {
        Ok(results) => (results, None),
        Err((ended, results)) => (results, Some(ended)),
    };
    let PortTrials { opened, reports, .. } = trials;
    let mut tester_limits: Vec<String> = Vec::new();
    for trial in reports.iter().filter(|trial| !trial.ignored) {
        tester_limits.extend(trial.limits.iter().map(|limit| format!("at {}: {limit}", Pps(trial.pps))));
    }
    let report = SearchReport {
        method: method.to_owned(),
        environment: report::environment(opened.core),
        stopped: matches!(ended, Some(Ended::Stopped)) || opened.stop.load(Ordering::Relaxed),
        goals: goals
            .iter()
            .zip(&results)
            .map(|(goal, result)| report::goal_report(goal, result, mean, &reports))
            .collect(),
        trials: reports,
        tester_limits,
    };
    output(&report, traffic.json)?;
    match ended {
        Some(Ended::Failed(error)) => return Err(error),
        Some(Ended::Stopped) => {
            return Err(Error::Topology("stopped before the end, so the result is incomplete".to_owned()));
        }
        None => {}
    }
    opened.tester.close()
}

/// Prints a result to standard output.
fn output(report: &(impl Serialize + ToString), json: bool) -> Result<()> {
    if json { print_json(report) } else { print(&report.to_string()) }
}

fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::Wire(error.to_string()))?;
    print(&(text + "\n"))
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader of standard output needs no more text.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::Wire(format!("standard output: {error}"))),
        _ => Ok(()),
    }
}
