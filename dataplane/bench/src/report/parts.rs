//! The parts of results. The field names are the keys of the JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::{Calibration, Environment};
use super::times::Times;
use crate::series::{Intervals, Point};

/// The result of one trial.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RateReport {
    /// The command: `rate`, `calibrate`, `latency` or `soak`.
    pub method: String,
    /// The host and the program of the trial.
    pub environment: Environment,
    /// The time in which packets were sent, in seconds.
    pub duration_s: f64,
    /// Whether the trial was stopped before its end.
    pub stopped: bool,
    /// The sums of all streams.
    pub total: Traffic,
    /// The packets that the ports counted. Only present if packets arrived, but no packet arrived with its signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_counters: Option<CounterReport>,
    /// The streams.
    pub streams: Vec<StreamReport>,
    /// The ports.
    pub ports: Vec<PortReport>,
    /// The behaviour of the tester.
    pub tester: TesterReport,
    /// The difference between the counters of the ports and the counters of the streams. Must be 0.
    pub unaccounted: i64,
}

impl RateReport {
    /// Returns the names of the ports that a stream uses, and whose link was down during the trial. A link that is down
    /// can cause losses that the device did not cause.
    pub fn ports_with_link_down(&self) -> Vec<&str> {
        let is_used =
            |port: &&PortReport| self.streams.iter().any(|stream| [&stream.from, &stream.to].contains(&&port.name));
        let was_down = |port: &&PortReport| port.link_downs > 0 || port.link_up == Some(false);
        self.ports.iter().filter(is_used).filter(was_down).map(|port| port.name.as_str()).collect()
    }
}

/// The packets of a trial, from the counters of the ports. The device has changed the payload, so no packet arrived
/// with its signature. The counters also count the packets of other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CounterReport {
    /// Packets that the ports sent.
    pub sent: u64,
    /// Packets that arrived at the ports that receive, until the traffic had settled.
    pub arrived: u64,
    /// The share of `sent` that did not arrive, without the packets that the tester was too slow to receive.
    pub loss_ratio: f64,
}

/// The packets that were sent, and the results of these packets.
///
/// `received + corrupted + late + lost + overrun + tx_failed` is `sent`.
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
    /// Packets that the tester passed to its ports. The packets of `tx_failed` are part of `sent`.
    pub sent: u64,
    /// Packets of a capture that were sent without a signature, because the packets have no room for a signature. The
    /// tester cannot judge these packets. The packets are part of `sent_pps`, but not of `sent` or of the other rates.
    #[serde(default)]
    pub unsigned: u64,
    /// Packets that were due, but that the tester could not send in time. The packets are not part of `sent`.
    pub missed: u64,
    /// Packets that arrived in time with the right content, without duplicates.
    pub received: u64,
    /// Packets of `received` that arrived after the last transmission.
    #[serde(default)]
    pub drained: u64,
    /// Packets of `drained` that a queue of the device still held at a given time after the last transmission: 1/200 of
    /// the duration of the trial, or 1 ms in a short trial. A search counts these packets as lost.
    #[serde(default)]
    pub held: u64,
    /// Packets that arrived with a wrong content.
    pub corrupted: u64,
    /// Packets that arrived with a latency above the limit.
    pub late: u64,
    /// Packets that did not arrive, without the packets of `overrun` and `tx_failed`.
    pub lost: u64,
    /// Packets that the receiving port of the tester lost, because the tester was too slow to receive them. A port does not
    /// know the streams of these packets. If several streams arrive at a port, these packets are divided in proportion to
    /// the packets of each stream that did not arrive.
    #[serde(default)]
    pub overrun: u64,
    /// Packets that the sending port of the tester did not send. If several streams send from a port, these packets are
    /// divided like the packets of `overrun`, but separately for each interval.
    #[serde(default)]
    pub tx_failed: u64,
    /// `corrupted + late + lost`, as a ratio of `sent`.
    pub loss_ratio: f64,
    /// The limits of the 95 % confidence interval of the probability that the device loses a packet (Wilson). The
    /// interval assumes that the device loses each packet independently of the other packets.
    #[serde(default)]
    pub loss_interval: [f64; 2],
    /// Further copies of packets that had already arrived.
    pub duplicated: u64,
    /// Packets that arrived after a packet that was sent later (RFC 4737).
    pub reordered: u64,
    /// Packets that arrived so late that the tester no longer stored their sequence numbers. The packets also count as
    /// lost.
    pub too_old: u64,
    /// Packets with a sequence number that was not sent.
    pub unsent: u64,
}

impl Traffic {
    /// Returns the number of packets that the tester lost itself.
    pub fn lost_by_tester(&self) -> u64 {
        self.overrun + self.tx_failed
    }

    /// Returns the number of packets that the device lost, corrupted or delayed for too long.
    pub fn lost_by_device(&self) -> u64 {
        self.corrupted + self.late + self.lost
    }
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
    /// The values of the keys that define the packets.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The packets.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// The longest reordering extent in packets (RFC 4737, section 4.2).
    pub max_reordering_extent: u64,
    /// The mean reordering extent of the reordered packets.
    pub mean_reordering_extent: f64,
    /// The time from sending to receiving, in nanoseconds.
    pub latency_ns: Times,
    /// The absolute difference between the latencies of two consecutive packets, in nanoseconds (RFC 3393).
    pub jitter_ns: Times,
    /// The pacing error: the time from the planned to the actual transmission, in nanoseconds. If the tester sends several
    /// packets at once, all these packets have the error of the first packet, which is the largest. Empty if the rate is
    /// not limited.
    #[serde(default)]
    pub pacing_ns: Times,
    /// The number of gaps. A gap is a time without arrivals that is longer than the limit.
    pub gap_count: u64,
    /// The longest gaps.
    pub gaps: Vec<GapReport>,
    /// The counts and latencies of the packets that were sent in each interval.
    #[serde(default)]
    pub series: SeriesReport,
}

/// The counts and latencies of the packets that were sent in each interval. Each list has one value for each interval.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SeriesReport {
    /// The length of an interval in seconds. The last interval can be shorter.
    pub interval_s: f64,
    /// Packets that were sent in the interval.
    pub sent: Vec<u64>,
    /// Packets of the interval that were lost, late or corrupted. The packets of `tx_failed` are not part of `lost`. The
    /// packets of `overrun` are part of `lost`, because the tester does not know their intervals.
    pub lost: Vec<u64>,
    /// Packets of the interval that the port of the tester did not send.
    #[serde(default)]
    pub tx_failed: Vec<u64>,
    /// The mean latency of the received packets of the interval in nanoseconds, or 0 without received packets.
    pub latency_mean_ns: Vec<u64>,
    /// The highest latency of the received packets of the interval in nanoseconds.
    pub latency_max_ns: Vec<u64>,
}

impl SeriesReport {
    /// Returns the lists of a series.
    pub fn of(points: &[Point], intervals: Intervals) -> Self {
        Self {
            interval_s: intervals.length as f64 / 1e9,
            sent: points.iter().map(|point| point.sent).collect(),
            lost: points.iter().map(Point::lost).collect(),
            tx_failed: points.iter().map(|point| point.tx_failed).collect(),
            latency_mean_ns: points.iter().map(Point::latency_mean).collect(),
            latency_max_ns: points.iter().map(|point| point.latency_max).collect(),
        }
    }
}

/// A stream of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamSetup {
    /// The name.
    pub name: String,
    /// The number of the port that sends.
    pub from: usize,
    /// The number of the port that receives.
    pub to: usize,
    /// The share of the load that the stream sends.
    pub share: f64,
    /// The mean length of the frames in bytes, without the frame check sequence.
    pub mean_size: f64,
    /// The values of the keys that define the packets.
    pub keys: BTreeMap<String, String>,
}

/// A gap: a time without arrivals.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GapReport {
    /// The start in seconds since the start of the trial.
    pub start_s: f64,
    /// The duration in seconds.
    pub length_s: f64,
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
    /// How often the link went down in the trial.
    #[serde(default)]
    pub link_downs: u64,
    /// The clock of the receive times. The transmit times are from the system clock, which the tester reads before it
    /// sends a burst.
    #[serde(default)]
    pub clock: String,
    /// The maximum error in nanoseconds of the conversion of a receive time to the system clock, at the end of the
    /// trial. `null` if the error is unknown. The error is 0 for the clock `software`, because such a receive time is the
    /// time at which the tester polled the packet, from the system clock.
    #[serde(default)]
    pub clock_error_ns: Option<u64>,
    /// The counters of the device that changed in the trial. Each value is the increase in the trial.
    pub counters: BTreeMap<String, u64>,
}

/// The behaviour of the tester in a trial.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TesterReport {
    /// The reasons why the result may show a limit of the tester instead of the device under test.
    pub limits: Vec<String>,
    /// The reasons why the host of the tester may have disturbed the trial. The host may then have caused some losses
    /// and high latencies.
    pub disturbances: Vec<String>,
    /// The longest time between two iterations of the tester's loop while it was sending, in nanoseconds.
    pub longest_pause_ns: u64,
    /// The time in which the tester was ready to run but had no core, in nanoseconds.
    pub waited_ns: u64,
    /// The time in which the hypervisor ran something else on the core of the tester, in nanoseconds. A lower limit,
    /// because the kernel counts this time in steps of 10 ms.
    #[serde(default)]
    pub stolen_ns: u64,
    /// The busy time of the busiest other thread of the physical core of the tester, in nanoseconds. A lower limit, as
    /// for `stolen_ns`.
    #[serde(default)]
    pub neighbour_ns: u64,
    /// The frequency of the core of the tester at the start and at the end of the trial, in MHz. `null` without
    /// cpufreq, as in most virtual machines.
    #[serde(default)]
    pub core_mhz: Option<[f64; 2]>,
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
    /// The host and the program of the trials.
    pub environment: Environment,
    /// Whether the search was stopped before its end.
    pub stopped: bool,
    /// The streams.
    #[serde(default)]
    pub streams: Vec<StreamSetup>,
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
    /// The limit of the loss ratio.
    pub loss_ratio: f64,
    /// The share of the trials at a load that may exceed the loss ratio.
    pub exceed_ratio: f64,
    /// The duration of a full-length trial in seconds.
    pub trial_s: f64,
    /// The total duration of the trials that decide about a load, in seconds.
    pub duration_sum_s: f64,
    /// The maximum relative distance between the bounds.
    pub width: f64,
    /// Whether the trials decided about at least one load. If not, the search ended too early, and both bounds are `null`.
    #[serde(default = "default_measured")]
    pub measured: bool,
    /// The highest load at which the device fulfils the goal. If the result is complete, `null` means that the device does
    /// not fulfil the goal at the lowest load. Otherwise, `null` means that the bound was not measured.
    pub lower: Option<BoundReport>,
    /// The lowest load at which the device does not fulfil the goal. If the result is complete, `null` means that the
    /// device fulfils the goal at the highest load. Otherwise, `null` means that the bound was not measured.
    pub upper: Option<BoundReport>,
    /// The load of the lower bound in packets per second, less the loss at this load.
    pub conditional_throughput_pps: Option<f64>,
    /// Whether the bounds are as close as the goal requires, or at the limit of the range.
    pub complete: bool,
}

/// Returns the value of `measured` for results of versions without this key.
fn default_measured() -> bool {
    true
}

impl GoalReport {
    /// Returns the text for a bound that is `None`. `none` is the text if the result is complete.
    pub(crate) fn missing_bound<'a>(&self, none: &'a str) -> &'a str {
        if self.complete { none } else { NOT_MEASURED }
    }
}

/// The text for a bound that the search did not find, because the search ended too early.
const NOT_MEASURED: &str = "not measured";

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
    /// ratio. The interval is only approximate, because it is for a fixed number of trials: the search stops as soon as
    /// the trials decide about the load.
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
    /// Packets that the tester was too slow to receive, or that the ports of the tester did not send.
    #[serde(default)]
    pub lost_by_tester: u64,
    /// The part of `lost` that a queue of the device held at the end of the trial.
    pub held: u64,
    /// `(lost + lost_by_tester + missed) / (sent + missed)`. `missed` is the number of packets that the tester could not send
    /// in time.
    #[serde(default)]
    pub loss_ratio: f64,
    /// Whether `lost` is from the counters of the ports, because no packet arrived with its signature.
    #[serde(default)]
    pub by_counters: bool,
    /// Whether the search ignores the trial, because the tester was the limit or was disturbed.
    pub ignored: bool,
    /// The reasons why the trial shows a limit or a disturbance of the tester.
    pub limits: Vec<String>,
}
