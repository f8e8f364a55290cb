//! The results as JSON and as text.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rate::{FCS, LINE_OVERHEAD};
use crate::search::{Bound, GoalResult};
use crate::stream::Stream;
use crate::tester::{Outcome, StreamOutcome};

/// A rate error above this ratio is a limit of the tester.
const MAX_RATE_ERROR: f64 = 0.01;
/// A result above this share of the tester's own maximum is a limit of the tester.
const MAX_OWN_SHARE: f64 = 0.9;
/// A trial is disturbed if the tester waited for a core for more than this share of the trial.
const MAX_WAIT: f64 = 0.01;

/// The result of one trial.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RateReport {
    /// The command: `rate` or `calibrate`.
    pub method: String,
    /// Where the trial ran.
    pub environment: Environment,
    /// The time in which packets were sent, in seconds.
    pub duration_s: f64,
    /// Whether the trial was stopped before its end.
    pub stopped: bool,
    /// The sums of all streams.
    pub total: Traffic,
    /// The streams.
    pub streams: Vec<StreamReport>,
    /// The ports.
    pub ports: Vec<PortReport>,
    /// The tester itself.
    pub tester: TesterReport,
    /// The difference between the counters of the ports and the counters of the streams. Must be 0.
    pub unaccounted: i64,
}

/// Where a trial ran.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// The version of the program.
    pub version: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The model of the processor.
    pub processor: String,
    /// The number of online cores.
    pub cores: u32,
    /// The core of the tester.
    pub core: Option<u32>,
}

/// Packets that were sent, and their fate.
///
/// `received + corrupted + late + lost` is `sent`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// The requested rate in packets per second. Absent if the rate was not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_pps: Option<f64>,
    /// The rate at which packets were sent, in packets per second.
    pub sent_pps: f64,
    /// The rate at which packets arrived with the right content until the last transmission. Packets that arrived later
    /// are not part of the rate.
    pub received_pps: f64,
    /// The bits per second of the packets of `received_pps`, with their frame check sequences.
    pub received_bps: f64,
    /// The bits per second of the packets of `received_pps`, with preambles and gaps.
    pub received_line_bps: f64,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were due, but that the tester could not send in time. The packets are not part of `sent`.
    pub missed: u64,
    /// Packets that arrived in time with the right content, without duplicates.
    pub received: u64,
    /// Packets of `received` that arrived after the last transmission.
    #[serde(default)]
    pub drained: u64,
    /// Packets of `drained` that a queue of the device held longer than the time for draining. A search counts these
    /// packets as lost.
    #[serde(default)]
    pub held: u64,
    /// Packets that arrived with a wrong content.
    pub corrupted: u64,
    /// Packets that arrived after the limit.
    pub late: u64,
    /// Packets that did not arrive.
    pub lost: u64,
    /// `corrupted + late + lost`, as a ratio of `sent`.
    pub loss_ratio: f64,
    /// Further copies of packets that had already arrived.
    pub duplicated: u64,
    /// Packets that arrived after a packet that was sent later (RFC 4737).
    pub reordered: u64,
    /// Packets that arrived after the window of the judge had passed them. The packets also count as lost.
    pub too_old: u64,
    /// Packets with a sequence number that was not sent.
    pub unsent: u64,
}

/// A stream.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StreamReport {
    /// The name.
    pub name: String,
    /// The port that sends.
    pub from: String,
    /// The port that receives.
    pub to: String,
    /// The mean length of the frames in bytes, without the frame check sequence.
    pub mean_size: f64,
    /// The packets.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// The longest reordering extent in packets (RFC 4737, section 4.2).
    pub max_reordering_extent: u64,
    /// The mean reordering extent of the reordered packets.
    pub mean_reordering_extent: f64,
    /// The time from sending to receiving, in nanoseconds.
    pub latency_ns: Times,
    /// The difference of the latencies of two consecutive packets, without its sign, in nanoseconds (RFC 3393).
    pub jitter_ns: Times,
    /// The number of times without arrivals that are longer than the limit.
    pub gap_count: u64,
    /// The longest times without arrivals.
    pub gaps: Vec<GapReport>,
}

/// A time without arrivals.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GapReport {
    /// The start in seconds since the start of the trial.
    pub start_s: f64,
    /// The duration in seconds.
    pub length_s: f64,
}

/// A distribution of times. The error of each value is at most 0.1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    /// The number of measured times.
    pub count: u64,
    /// The shortest time.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p99_9: u64,
    /// The 99.99th percentile.
    pub p99_99: u64,
    /// The 99.999th percentile.
    pub p99_999: u64,
    /// The longest time.
    pub max: u64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            count: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            p99_999: at(0.99999),
            max: histogram.max(),
        }
    }
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PortReport {
    /// The name.
    pub name: String,
    /// The device.
    pub device: String,
    /// Packets that the device sent.
    pub tx: u64,
    /// Packets that the device did not send.
    pub tx_failed: u64,
    /// Packets that the device received.
    pub rx: u64,
    /// Received packets without a signature of this trial, such as ARP requests of other hosts.
    pub foreign: u64,
    /// Packets that the device lost because the tester received too slowly.
    pub overrun: u64,
    /// Whether the link is up at the end of the trial. Absent if the device does not report the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_up: Option<bool>,
    /// The counters of the device that changed in the trial.
    pub counters: BTreeMap<String, u64>,
}

/// The tester itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TesterReport {
    /// The reasons why the result may show a limit of the tester instead of the device under test.
    pub limits: Vec<String>,
    /// The reasons why the trial may be disturbed, so that its latencies and losses may be caused by the tester's host.
    pub disturbances: Vec<String>,
    /// The clock of the receive times. The transmit times are from the system clock, read before a burst is sent.
    pub clock: String,
    /// The longest time between two iterations of the tester's loop while it was sending, in nanoseconds.
    pub longest_pause_ns: u64,
    /// The time in which the tester was ready to run but had no core, in nanoseconds.
    pub waited_ns: u64,
}

/// The limits of the tester, from `bench calibrate`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// The highest rate that the tester sends and judges port to port, in packets per second.
    pub max_pps: f64,
    /// The relative difference between the requested and the actual rate, at half of the highest rate.
    pub rate_error: f64,
    /// The loss ratio at half of the highest rate.
    pub loss_ratio: f64,
    /// The latency port to port at half of the highest rate, in nanoseconds.
    pub latency_ns: Times,
}

/// The report of `bench calibrate`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CalibrationReport {
    /// The limits of the tester.
    pub calibration: Calibration,
    /// The trial at the highest rate.
    pub max: RateReport,
    /// The trial at half of the highest rate.
    pub half: RateReport,
}

/// The report of `bench ndr` and `bench pdr`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SearchReport {
    /// The command: `ndr` or `pdr`.
    pub method: String,
    /// Where the trials ran.
    pub environment: Environment,
    /// Whether the search was stopped before its end.
    pub stopped: bool,
    /// The goals and their results.
    pub goals: Vec<GoalReport>,
    /// All trials, in order.
    pub trials: Vec<TrialReport>,
    /// The reasons why the result may show a limit of the tester instead of the device under test.
    pub tester_limits: Vec<String>,
}

/// The result of a goal of a search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GoalReport {
    /// The name.
    pub name: String,
    /// The highest loss ratio of a good trial.
    pub loss_ratio: f64,
    /// The share of the trials at a load that may exceed the loss ratio.
    pub exceed_ratio: f64,
    /// The duration of a full-length trial in seconds.
    pub trial_s: f64,
    /// The total duration of the trials that decide about a load, in seconds.
    pub duration_sum_s: f64,
    /// The maximum relative distance between the bounds.
    pub width: f64,
    /// The highest load at which the device fulfils the goal.
    pub lower: Option<BoundReport>,
    /// The lowest load at which the device does not fulfil the goal.
    pub upper: Option<BoundReport>,
    /// The load of the lower bound in packets per second, less the loss at this load.
    pub conditional_throughput_pps: Option<f64>,
    /// Whether the bounds are as close as the goal requires, or at the limit of the range.
    pub complete: bool,
}

/// A bound of a search result.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BoundReport {
    /// The load in packets per second, summed over all streams.
    pub pps: f64,
    /// The load in bits per second, with frame check sequences.
    pub bps: f64,
    /// The load in bits per second, with preambles and gaps.
    pub line_bps: f64,
    /// The number of full-length trials.
    pub trials: u64,
    /// The number of full-length trials with a higher loss ratio than the goal.
    pub exceeded: u64,
    /// The number of shorter trials. A single short trial with loss can make a load an upper bound.
    pub short_trials: u64,
    /// The number of shorter trials with a higher loss ratio than the goal.
    pub short_exceeded: u64,
    /// The limits of the nominal 95 % confidence interval of the probability that a full-length trial exceeds the loss
    /// ratio. The interval is for a fixed number of trials, but the search stops when the trials decide.
    pub exceed_probability: [f64; 2],
    /// The number of trials at this load that the search ignored, because the tester was the limit or was disturbed.
    pub ignored: u64,
}

/// A trial of a search.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TrialReport {
    /// The load in packets per second.
    pub pps: f64,
    /// The duration in seconds.
    pub duration_s: f64,
    /// Packets that were sent.
    pub sent: u64,
    /// `corrupted + late + lost`, and the packets that a queue of the device held at the end of the trial.
    pub lost: u64,
    /// The part of `lost` that a queue of the device held at the end of the trial.
    pub held: u64,
    /// Whether the search ignores the trial, because the tester was the limit or was disturbed.
    pub ignored: bool,
    /// The reasons why the trial shows a limit or a disturbance of the tester.
    pub limits: Vec<String>,
}

/// Returns the properties of this host.
pub fn environment(core: Option<u32>) -> Environment {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        processor: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.to_owned()),
        cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count() as u32,
        core,
    }
}

/// Returns the report of a trial. `rates` are the requested rates of the streams.
pub fn rate_report(
    method: &str,
    streams: &[Stream],
    rates: &[Option<f64>],
    names: &[(String, String)],
    outcome: &Outcome,
    calibration: Option<&Calibration>,
    core: Option<u32>,
) -> RateReport {
    let seconds = outcome.duration as f64 / 1e9;
    let start = |gap: u64| gap as f64 / 1e9;
    let mut total = Traffic::default();
    let (mut bits, mut line_bits) = (0.0, 0.0);
    let name = |port: usize| names.get(port).map_or_else(String::new, |(name, _)| name.clone());
    let mut reports = Vec::new();
    for ((stream, outcome), rate) in streams.iter().zip(&outcome.streams).zip(rates) {
        let traffic = traffic(stream, outcome, *rate, seconds);
        bits += traffic.received_bps;
        line_bits += traffic.received_line_bps;
        add(&mut total, &traffic);
        let (judgement, counts) = (&outcome.judgement, outcome.judgement.counts);
        reports.push(StreamReport {
            name: stream.name.clone(),
            from: name(stream.from),
            to: name(stream.to),
            mean_size: stream.mean_size,
            max_reordering_extent: counts.max_extent,
            mean_reordering_extent: counts.extents as f64 / counts.reordered.max(1) as f64,
            latency_ns: Times::of(&judgement.latency),
            jitter_ns: Times::of(&judgement.jitter),
            gap_count: judgement.gap_count,
            gaps: judgement
                .gaps
                .iter()
                .map(|gap| GapReport { start_s: start(gap.start), length_s: start(gap.length) })
                .collect(),
            traffic,
        });
    }
    total.requested_pps = rates.iter().copied().sum::<Option<f64>>();
    total.loss_ratio = ratio(total.corrupted + total.late + total.lost, total.sent);
    (total.received_bps, total.received_line_bps) = (bits, line_bits);
    let ports: Vec<PortReport> = outcome
        .ports
        .iter()
        .zip(names)
        .map(|(port, (name, device))| PortReport {
            name: name.clone(),
            device: device.clone(),
            tx: port.tx,
            tx_failed: port.tx_failed,
            rx: port.rx,
            foreign: port.foreign,
            overrun: port.overrun,
            link_up: port.link_up,
            counters: port.device.clone(),
        })
        .collect();
    let mut limits = trial_limits(outcome, names);
    limits.extend(calibration.map_or_else(Vec::new, |own| calibration_limits(&total, &reports, own)));
    RateReport {
        method: method.to_owned(),
        environment: environment(core),
        duration_s: seconds,
        stopped: outcome.stopped,
        total,
        streams: reports,
        ports,
        tester: TesterReport {
            limits,
            disturbances: disturbances(outcome),
            clock: outcome.clock.clone(),
            longest_pause_ns: outcome.longest_pause,
            waited_ns: outcome.waited,
        },
        unaccounted: unaccounted(outcome),
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn traffic(stream: &Stream, outcome: &StreamOutcome, rate: Option<f64>, seconds: f64) -> Traffic {
    let counts = outcome.judgement.counts;
    let per_second = |packets: u64| if seconds > 0.0 { packets as f64 / seconds } else { 0.0 };
    let received_pps = per_second(counts.received - counts.drained);
    Traffic {
        requested_pps: rate,
        sent_pps: per_second(outcome.sent),
        received_pps,
        received_bps: received_pps * (stream.mean_size + FCS) * 8.0,
        received_line_bps: received_pps * (stream.mean_size + LINE_OVERHEAD) * 8.0,
        sent: outcome.sent,
        missed: outcome.missed,
        received: counts.received,
        drained: counts.drained,
        held: counts.held,
        corrupted: counts.corrupted,
        late: counts.late,
        lost: counts.lost,
        loss_ratio: ratio(counts.corrupted + counts.late + counts.lost, outcome.sent),
        duplicated: counts.duplicated,
        reordered: counts.reordered,
        too_old: counts.too_old,
        unsent: counts.unsent,
    }
}

fn add(total: &mut Traffic, traffic: &Traffic) {
    total.sent_pps += traffic.sent_pps;
    total.received_pps += traffic.received_pps;
    total.sent += traffic.sent;
    total.missed += traffic.missed;
    total.received += traffic.received;
    total.drained += traffic.drained;
    total.held += traffic.held;
    total.corrupted += traffic.corrupted;
    total.late += traffic.late;
    total.lost += traffic.lost;
    total.duplicated += traffic.duplicated;
    total.reordered += traffic.reordered;
    total.too_old += traffic.too_old;
    total.unsent += traffic.unsent;
}

/// Returns the difference between the counters of the ports and the counters of the streams.
fn unaccounted(outcome: &Outcome) -> i64 {
    let sum = |values: &mut dyn Iterator<Item = u64>| values.sum::<u64>() as i64;
    let streams = || outcome.streams.iter();
    let ports = || outcome.ports.iter();
    let sent = sum(&mut ports().map(|port| port.tx + port.tx_failed)) - sum(&mut streams().map(|stream| stream.sent));
    let arrived = sum(&mut streams().map(|stream| stream.judgement.counts.arrived()));
    let received = sum(&mut ports().map(|port| port.rx - port.foreign)) - arrived;
    let missing = |stream: &StreamOutcome| {
        let counts = stream.judgement.counts;
        (counts.received + counts.corrupted + counts.late + counts.lost).abs_diff(stream.sent)
    };
    sent.abs() + received.abs() + sum(&mut streams().map(missing))
}

/// Returns the reasons why a trial shows a limit of the tester.
pub fn trial_limits(outcome: &Outcome, names: &[(String, String)]) -> Vec<String> {
    let (sent, missed) =
        outcome.streams.iter().fold((0, 0), |sums, stream| (sums.0 + stream.sent, sums.1 + stream.missed));
    let mut limits = Vec::new();
    if ratio(missed, sent + missed) > MAX_RATE_ERROR {
        limits.push(format!("the tester sent only {sent} of {} packets in time", sent + missed));
    }
    for (port, (name, _)) in outcome.ports.iter().zip(names) {
        if port.tx_failed > 0 {
            limits.push(format!("the port `{name}` did not send {} packets", port.tx_failed));
        }
        if port.overrun > 0 {
            limits.push(format!("the tester was too slow to receive {} packets from the port `{name}`", port.overrun));
        }
        if port.link_up == Some(false) {
            limits.push(format!("the link of the port `{name}` is down"));
        }
    }
    limits
}

/// Returns the reasons why a result is near the limits of the tester.
fn calibration_limits(total: &Traffic, streams: &[StreamReport], own: &Calibration) -> Vec<String> {
    let mut limits = Vec::new();
    if total.sent_pps > own.max_pps * MAX_OWN_SHARE {
        let share = total.sent_pps / own.max_pps * 100.0;
        limits.push(format!("the rate is {share:.0} % of the tester's own maximum of {}", Pps(own.max_pps)));
    }
    let near = streams.iter().filter(|it| it.latency_ns.count > 0 && it.latency_ns.p50 < 2 * own.latency_ns.p50);
    limits.extend(near.map(|stream| {
        format!(
            "the median latency of the stream `{}` is {}, and the tester's own median latency is {}",
            stream.name,
            Nanoseconds(stream.latency_ns.p50),
            Nanoseconds(own.latency_ns.p50)
        )
    }));
    limits
}

/// Returns the reasons why a trial may be disturbed.
pub fn disturbances(outcome: &Outcome) -> Vec<String> {
    let share = outcome.waited as f64 / outcome.elapsed.max(1) as f64;
    match share > MAX_WAIT {
        true => vec![format!(
            "the tester waited for a core for {:.1} % of the trial, and paused for up to {}",
            share * 100.0,
            Nanoseconds(outcome.longest_pause)
        )],
        false => Vec::new(),
    }
}

/// Returns the report of a bound. `mean` is the mean length of the frames, and `trials` are all trials of the search.
pub fn bound_report(bound: &Bound, mean: f64, trials: &[TrialReport]) -> BoundReport {
    BoundReport {
        pps: bound.load,
        bps: bound.load * (mean + FCS) * 8.0,
        line_bps: bound.load * (mean + LINE_OVERHEAD) * 8.0,
        trials: bound.trials,
        exceeded: bound.exceeded,
        short_trials: bound.short_trials,
        short_exceeded: bound.short_exceeded,
        exceed_probability: [bound.exceed_probability.0, bound.exceed_probability.1],
        ignored: trials.iter().filter(|trial| trial.pps == bound.load && trial.ignored).count() as u64,
    }
}

/// Returns the report of a goal. `trials` are all trials of the search.
pub fn goal_report(goal: &crate::search::Goal, result: &GoalResult, mean: f64, trials: &[TrialReport]) -> GoalReport {
    GoalReport {
        name: goal.name.clone(),
        loss_ratio: goal.loss_ratio,
        exceed_ratio: goal.exceed_ratio,
        trial_s: goal.final_duration,
        duration_sum_s: goal.duration_sum,
        width: goal.width,
        lower: result.lower.as_ref().map(|bound| bound_report(bound, mean, trials)),
        upper: result.upper.as_ref().map(|bound| bound_report(bound, mean, trials)),
        conditional_throughput_pps: result.conditional_throughput,
        complete: result.complete,
    }
}

/// Packets per second, for display.
pub struct Pps(pub f64);

impl fmt::Display for Pps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, "pps")
    }
}

/// Bits per second, for display.
pub struct Bps(pub f64);

impl fmt::Display for Bps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, "bps")
    }
}

fn scaled(f: &mut fmt::Formatter<'_>, value: f64, unit: &str) -> fmt::Result {
    let (scale, prefix) = match value {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e3.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    f.pad(&format!("{:.3} {prefix}{unit}", value / scale))
}

/// Nanoseconds, for display.
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        f.pad(&match self.0 {
            1_000_000_000.. => format!("{:.3} s", value / 1e9),
            1_000_000.. => format!("{:.3} ms", value / 1e6),
            1_000.. => format!("{:.1} us", value / 1e3),
            _ => format!("{value} ns"),
        })
    }
}

/// A ratio in percent, for display.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0.0 => f.write_str("0 %"),
            ratio if ratio < 1e-4 => write!(f, "{:.2e}", ratio),
            ratio => write!(f, "{:.3} %", ratio * 100.0),
        }
    }
}

impl fmt::Display for RateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, streams, ports, tester, .. } = self;
        let requested = total.requested_pps.map_or_else(|| "max".to_owned(), |rate| Pps(rate).to_string());
        writeln!(f, "rate      {requested} requested, {} sent for {:.3} s", Pps(total.sent_pps), self.duration_s)?;
        writeln!(
            f,
            "received  {}, {} with FCS, {} on the line",
            Pps(total.received_pps),
            Bps(total.received_bps),
            Bps(total.received_line_bps)
        )?;
        writeln!(
            f,
            "loss      {} ({} of {})",
            Percent(total.loss_ratio),
            total.corrupted + total.late + total.lost,
            total.sent
        )?;
        if total.held > 0 {
            let (held, share) = (total.held, Percent(ratio(total.held, total.sent)));
            writeln!(f, "queue     the device still held {held} packets ({share}) after the last transmission")?;
        }
        let width = streams.iter().map(|stream| stream.name.chars().count()).max().unwrap_or(0).max(6);
        writeln!(
            f,
            "\n{:width$} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6}",
            "stream", "sent", "received", "lost", "late", "corrupt", "dup", "reordered", "extent"
        )?;
        for stream in streams {
            let Traffic { sent, received, lost, late, corrupted, duplicated, reordered, .. } = &stream.traffic;
            writeln!(
                f,
                "{:width$} {sent:>10} {received:>10} {lost:>8} {late:>8} {corrupted:>8} {duplicated:>8} {reordered:>9} {:>6}",
                stream.name, stream.max_reordering_extent
            )?;
        }
        writeln!(
            f,
            "\n{:width$} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "latency", "min", "p50", "p90", "p99", "p99.9", "p99.999", "max"
        )?;
        for (label, of) in [("", (|it| &it.latency_ns) as fn(&StreamReport) -> &Times), ("jitter", |it| &it.jitter_ns)]
        {
            if !label.is_empty() {
                writeln!(f, "{label}")?;
            }
            for stream in streams {
                let times = of(stream);
                write!(f, "{:width$}", stream.name)?;
                for value in [times.min, times.p50, times.p90, times.p99, times.p99_9, times.p99_999, times.max] {
                    write!(f, " {:>10}", Nanoseconds(value))?;
                }
                writeln!(f)?;
            }
        }
        for stream in streams.iter().filter(|stream| stream.gap_count > 0) {
            let mut text = String::new();
            for gap in stream.gaps.iter().take(4) {
                let _ = write!(text, ", {:.3} s at {:.3} s", gap.length_s, gap.start_s);
            }
            writeln!(f, "\n{}: {} gaps{text}", stream.name, stream.gap_count)?;
        }
        writeln!(f)?;
        for port in ports {
            let PortReport { name, device, tx, rx, foreign, .. } = port;
            writeln!(f, "port {name} ({device}): tx {tx}, rx {rx}, of these {foreign} without a signature")?;
        }
        let pause = Nanoseconds(tester.longest_pause_ns);
        writeln!(f, "tester: clock {}, longest pause {pause}, unaccounted {}", tester.clock, self.unaccounted)?;
        notes(f, self.stopped, &tester.limits, &tester.disturbances)
    }
}

fn notes(f: &mut fmt::Formatter<'_>, stopped: bool, limits: &[String], disturbances: &[String]) -> fmt::Result {
    if stopped {
        writeln!(f, "INCOMPLETE: stopped before the end")?;
    }
    limits.iter().try_for_each(|limit| writeln!(f, "TESTER LIMIT: {limit}"))?;
    disturbances.iter().try_for_each(|note| writeln!(f, "DISTURBED: {note}"))
}

impl fmt::Display for CalibrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calibration { max_pps, rate_error, loss_ratio, latency_ns } = &self.calibration;
        writeln!(f, "maximum        {}", Pps(*max_pps))?;
        writeln!(f, "at half of the maximum:")?;
        writeln!(f, "  rate error   {:+.4} %", rate_error * 100.0)?;
        writeln!(f, "  loss         {}", Percent(*loss_ratio))?;
        writeln!(
            f,
            "  latency      min {}, p50 {}, p99 {}, max {}",
            Nanoseconds(latency_ns.min),
            Nanoseconds(latency_ns.p50),
            Nanoseconds(latency_ns.p99),
            Nanoseconds(latency_ns.max)
        )?;
        let tester = &self.half.tester;
        notes(f, self.max.stopped || self.half.stopped, &tester.limits, &tester.disturbances)
    }
}

impl fmt::Display for SearchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for goal in &self.goals {
            writeln!(f, "{}: loss ratio at most {}", goal.name, Percent(goal.loss_ratio))?;
            let bound = |bound: &Option<BoundReport>, none: &str| match bound {
                None => none.to_owned(),
                Some(it) => {
                    let trials = match it.trials {
                        0 => format!("{} of {} short trials exceed the loss ratio", it.short_exceeded, it.short_trials),
                        trials => format!(
                            "{} of {trials} trials exceed the loss ratio (nominal 95 % interval of the probability: {:.0} to {:.0} %)",
                            it.exceeded,
                            it.exceed_probability[0] * 100.0,
                            it.exceed_probability[1] * 100.0
                        ),
                    };
                    let ignored = match it.ignored {
                        0 => String::new(),
                        ignored => format!("; {ignored} more trials ignored"),
                    };
                    format!("{}, {} with FCS; {trials}{ignored}", Pps(it.pps), Bps(it.bps))
                }
            };
            writeln!(
                f,
                "  lower bound  {}",
                bound(&goal.lower, "none: the device does not fulfil the goal at the lowest rate")
            )?;
            writeln!(
                f,
                "  upper bound  {}",
                bound(&goal.upper, "none: the device fulfils the goal at the highest rate")
            )?;
            if let Some(throughput) = goal.conditional_throughput_pps {
                writeln!(f, "  conditional throughput  {}", Pps(throughput))?;
            }
            if !goal.complete {
                writeln!(f, "  INCOMPLETE: the bounds are not as close as requested")?;
            }
        }
        let seconds: f64 = self.trials.iter().map(|trial| trial.duration_s).sum();
        let ignored = self.trials.iter().filter(|trial| trial.ignored).count();
        writeln!(
            f,
            "trials: {} in {seconds:.0} s of traffic, {ignored} ignored because the tester was the limit or was disturbed",
            self.trials.len()
        )?;
        /// The maximum number of limits in the text. The JSON has all limits.
        const SHOWN: usize = 3;
        let (shown, rest) = self.tester_limits.split_at(self.tester_limits.len().min(SHOWN));
        notes(f, self.stopped, shown, &[])?;
        match rest.len() {
            0 => Ok(()),
            more => writeln!(f, "TESTER LIMIT: {more} more, listed with --json"),
        }
    }
}
