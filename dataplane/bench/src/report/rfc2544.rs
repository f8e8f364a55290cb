//! The result of `bench rfc2544`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::parts::{GoalReport, StreamSetup, TrialReport};
use super::times::Times;
use super::units::{Nanoseconds, Percent, Pps};

/// The report of `bench rfc2544`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Rfc2544Report {
    /// The command: `rfc2544`.
    pub method: String,
    /// The host and the program of the trials.
    pub environment: Environment,
    /// Whether the run was stopped before its end.
    pub stopped: bool,
    /// The differences between the run and RFC 2544, such as shorter trials.
    pub deviations: Vec<String>,
    /// The streams of the config. The tests replace the sizes in `keys` and `mean_size` by the sizes of `sizes`.
    pub streams: Vec<StreamSetup>,
    /// The results of each frame size.
    pub sizes: Vec<SizeReport>,
    /// The reasons why the result may show a limit of the tester instead of the device under test.
    pub tester_limits: Vec<String>,
}

/// The results of a frame size. A test that did not run is absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SizeReport {
    /// The size of the frames in bytes, with the frame check sequence.
    pub size: u16,
    /// The highest rate of the tests in packets per second, summed over all streams.
    pub highest_pps: f64,
    /// The number of bits of a packet on the line, with preamble and gap.
    pub line_bits: f64,
    /// Throughput (RFC 2544, section 26.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput: Option<ThroughputReport>,
    /// Latency (section 26.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyReport>,
    /// Frame loss rate (section 26.3).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frame_loss: Vec<LossStep>,
    /// Back-to-back frames (section 26.4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_to_back: Option<BackToBackReport>,
    /// System recovery (section 26.5).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryReport>,
    /// Reset (section 26.6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<ResetReport>,
}

/// The highest rate without loss.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ThroughputReport {
    /// The bounds. The lower bound is the throughput.
    pub goal: GoalReport,
    /// All trials, in order.
    pub trials: Vec<TrialReport>,
}

impl ThroughputReport {
    /// Returns the throughput in packets per second, or `None` if the device lost packets at the lowest rate.
    pub fn pps(&self) -> Option<f64> {
        self.goal.lower.as_ref().map(|bound| bound.pps)
    }
}

/// The latency at the throughput.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LatencyReport {
    /// The rate in packets per second.
    pub pps: f64,
    /// The duration of a trial in seconds.
    pub trial_s: f64,
    /// The number of trials.
    pub trials: u64,
    /// The mean of the mean latencies of the trials, in nanoseconds.
    pub mean_of_trials_ns: f64,
    /// The latencies of all packets of all trials and streams. RFC 2544 measures only one packet of each trial.
    pub latency_ns: Times,
    /// The loss ratio of all trials.
    pub loss_ratio: f64,
}

/// The loss at a rate.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LossStep {
    /// The rate as a share of the highest rate.
    pub share: f64,
    /// The rate in packets per second.
    pub pps: f64,
    /// The packets that were sent.
    pub sent: u64,
    /// The loss ratio.
    pub loss_ratio: f64,
    /// The reasons why the trial shows a limit or a disturbance of the tester.
    pub limits: Vec<String>,
}

/// The longest burst without loss, at the highest rate.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BackToBackReport {
    /// The number of packets of the longest burst without loss: the mean of all repetitions.
    pub packets: f64,
    /// The shortest and the longest result of the repetitions.
    pub range: [u64; 2],
    /// The number of repetitions.
    pub trials: u64,
    /// Whether no burst had a loss. `packets` is then only a lower bound.
    pub is_lower_bound: bool,
    /// The buffer time of the device in seconds (RFC 9004, section 6.4): the duration of the burst, less the part that
    /// the device forwards while the burst arrives. `null` without a throughput, or if `is_lower_bound` is `true`.
    pub buffer_s: Option<f64>,
}

/// The time until losses end after an overload.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryReport {
    /// The rate of the overload in packets per second: 110 % of the throughput, or the highest rate.
    pub overload_pps: f64,
    /// The duration of the overload in seconds.
    pub overload_s: f64,
    /// The rate after the overload: half of the rate of the overload.
    pub after_pps: f64,
    /// The time from the end of the overload until no more packets are lost, in seconds. `null` if the device did not
    /// recover.
    pub recovery_s: Option<f64>,
    /// The resolution of `recovery_s`, in seconds.
    pub resolution_s: f64,
    /// The number of packets lost during the overload. If no packet was lost, the rate did not overload the device.
    pub lost_in_overload: u64,
}

/// The time without packets after a reset.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ResetReport {
    /// The command that resets the device.
    pub command: String,
    /// Whether the command was successful.
    pub is_successful: bool,
    /// The rate in packets per second.
    pub pps: f64,
    /// The start of the command in seconds since the start of the trial.
    pub command_at_s: f64,
    /// The longest gap after the start of the command, in seconds. A gap is a time without arrivals that is longer than
    /// the limit (`--gap`). `null` if there is no gap, or if `is_recovered` is `false`.
    pub recovery_s: Option<f64>,
    /// Whether packets arrived again before the end of the trial. `false` if a gap lasts until the end.
    pub is_recovered: bool,
    /// The packets that were lost in the trial.
    pub lost: u64,
}

/// Returns the text of a table cell: the value, or a dash without a value.
fn cell<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

impl SizeReport {
    /// Returns the names and the values of the most important results, for tables.
    pub fn cells(&self) -> [(&'static str, String); 8] {
        let pps = self.throughput.as_ref().map(ThroughputReport::pps);
        let latency = self.latency.as_ref().map(|latency| &latency.latency_ns);
        let burst =
            |burst: &BackToBackReport| format!("{}{:.0}", if burst.is_lower_bound { ">= " } else { "" }, burst.packets);
        let time = |seconds: f64| Nanoseconds((seconds * 1e9) as u64).to_string();
        [
            ("size", self.size.to_string()),
            ("throughput", cell(pps, |pps| pps.map_or("none".to_owned(), |pps| Pps(pps).to_string()))),
            ("of highest", cell(pps.flatten(), |pps| Percent(pps / self.highest_pps).to_string())),
            ("latency p50", cell(latency, |latency| Nanoseconds(latency.p50).to_string())),
            ("latency p99", cell(latency, |latency| Nanoseconds(latency.p99).to_string())),
            ("loss at highest", cell(self.frame_loss.first(), |step| Percent(step.loss_ratio).to_string())),
            ("back-to-back", cell(self.back_to_back.as_ref(), burst)),
            ("recovery", cell(self.recovery.as_ref(), |it| it.recovery_s.map_or("none".to_owned(), time))),
        ]
    }
}

impl fmt::Display for Rfc2544Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.sizes.iter().map(SizeReport::cells).collect();
        let header = SizeReport::default().cells().map(|(name, _)| name);
        let width = |column: usize| {
            let values = rows.iter().map(|row| row[column].1.chars().count());
            values.chain([header[column].len()]).max().unwrap_or(0)
        };
        let mut line = |cells: &[&str]| {
            let cells: Vec<_> =
                cells.iter().enumerate().map(|(at, cell)| format!("{cell:>width$}", width = width(at))).collect();
            writeln!(f, "{}", cells.join("  "))
        };
        line(&header)?;
        rows.iter().try_for_each(|row| line(&row.each_ref().map(|(_, value)| value.as_str())))?;
        for reset in self.sizes.iter().filter_map(|size| size.reset.as_ref()) {
            let time = match (reset.is_recovered, reset.recovery_s) {
                (false, _) => "the device did not recover".to_owned(),
                (true, None) => "no time without arrivals".to_owned(),
                (true, Some(seconds)) => format!("{seconds:.3} s without arrivals"),
            };
            let failed = if reset.is_successful { "" } else { ", and the command failed" };
            writeln!(f, "reset by `{}`: {time}, {} packets lost{failed}", reset.command, reset.lost)?;
        }
        self.deviations.iter().try_for_each(|deviation| writeln!(f, "NOT RFC 2544: {deviation}"))?;
        self.environment.note_calibration(f)?;
        if self.stopped {
            writeln!(f, "INCOMPLETE: stopped before the end")?;
        }
        /// The maximum number of limits in the text. The JSON has all limits.
        const SHOWN: usize = 3;
        self.tester_limits.iter().take(SHOWN).try_for_each(|limit| writeln!(f, "TESTER LIMIT: {limit}"))?;
        match self.tester_limits.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "TESTER LIMIT: {more} more, listed with --json"),
        }
    }
}
