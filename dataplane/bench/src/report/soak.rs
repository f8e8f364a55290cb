//! The result of `bench soak`: a file with one JSON object per line. The first line is the start, each interval has a line,
//! and the last line is the end. A run that was killed has no end.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::parts::{RateReport, StreamSetup};
use super::units::{Nanoseconds, Pps};
use crate::tester::IntervalCounts;

/// A line of the file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum SoakLine {
    /// The first line.
    Start(Box<SoakStart>),
    /// An interval. The line is written when each packet of the interval has arrived or is late, or at the end of the
    /// run.
    Interval(SoakInterval),
    /// The last line: the result of the whole run.
    End(Box<RateReport>),
}

/// The start of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SoakStart {
    /// The command: `soak`.
    pub method: String,
    /// The host and the program of the run.
    pub environment: Environment,
    /// The time of the start in RFC 3339 format.
    pub started: String,
    /// The requested duration in seconds.
    pub requested_s: f64,
    /// The length of an interval in seconds.
    pub interval_s: f64,
    /// The requested rate in packets per second. `null` if the rate is not limited.
    pub requested_pps: Option<f64>,
    /// The streams.
    pub streams: Vec<StreamSetup>,
}

/// An interval.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SoakInterval {
    /// The number of the interval, from 0.
    pub interval: usize,
    /// The start in seconds since the start of the run.
    pub start_s: f64,
    /// The streams, in the order of the first line.
    pub streams: Vec<SoakCounts>,
}

/// The packets of a stream that were sent in an interval.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SoakCounts {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were lost, late or corrupted. The packets of `tx_failed` are not part of `lost`. The packets of
    /// `overrun` are part of `lost`, because the tester does not know their intervals.
    pub lost: u64,
    /// Packets that the port of the tester did not send.
    #[serde(default)]
    pub tx_failed: u64,
    /// The mean latency of the received packets in nanoseconds, or 0 without received packets.
    pub latency_mean_ns: u64,
    /// The highest latency of the received packets in nanoseconds.
    pub latency_max_ns: u64,
    /// The number of duplicates since the start of the run.
    pub duplicated: u64,
    /// The number of reordered packets since the start of the run.
    pub reordered: u64,
}

impl SoakInterval {
    /// Returns the line of an interval of `length_s` seconds.
    pub fn of(counts: &IntervalCounts, length_s: f64) -> Self {
        let of = |(point, counts): (&crate::series::Point, &crate::judge::Counts)| SoakCounts {
            sent: point.sent,
            lost: point.lost(),
            tx_failed: point.tx_failed,
            latency_mean_ns: point.latency_mean(),
            latency_max_ns: point.latency_max,
            duplicated: counts.duplicated,
            reordered: counts.reordered,
        };
        let streams = counts.streams.iter().zip(&counts.counts).map(of).collect();
        Self { interval: counts.index, start_s: counts.index as f64 * length_s, streams }
    }

    /// Returns the number of packets of all streams that were lost, late or corrupted.
    pub fn lost(&self) -> u64 {
        self.streams.iter().map(|stream| stream.lost).sum()
    }
}

/// The lines of a run.
#[derive(Clone, Debug)]
pub struct SoakReport {
    /// The first line.
    pub start: SoakStart,
    /// The intervals.
    pub intervals: Vec<SoakInterval>,
    /// The last line, or `None` if the run was killed.
    pub end: Option<Box<RateReport>>,
}

impl SoakReport {
    /// Reads the lines of a file. The last line may be incomplete.
    ///
    /// # Errors
    /// Returns the reason if a line is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut start, mut intervals, mut end) = (None, Vec::new(), None);
        for (number, line) in text.lines().enumerate() {
            match serde_json::from_str(line) {
                Ok(SoakLine::Start(line)) => start = Some(*line),
                Ok(SoakLine::Interval(line)) => intervals.push(line),
                Ok(SoakLine::End(report)) => end = Some(report),
                // The run was killed while it wrote the last line.
                Err(_) if !text.ends_with('\n') && number + 1 == text.lines().count() => {}
                Err(error) => return Err(format!("line {}: {error}", number + 1)),
            }
        }
        let start = start.ok_or("the line of the start is missing")?;
        Ok(Self { start, intervals, end })
    }
}

/// The intervals of a run. The text shows only the intervals with losses.
pub struct Losses<'a>(pub &'a [SoakInterval]);

impl fmt::Display for Losses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The maximum number of intervals in the text. The file has all intervals.
        const SHOWN: usize = 20;
        let lossy: Vec<_> = self.0.iter().filter(|interval| interval.lost() > 0).collect();
        writeln!(f, "\n{} of {} intervals have losses", lossy.len(), self.0.len())?;
        for interval in lossy.iter().take(SHOWN) {
            let sent: u64 = interval.streams.iter().map(|stream| stream.sent).sum();
            writeln!(f, "  at {:.3} s: {} of {sent} packets", interval.start_s, interval.lost())?;
        }
        match lossy.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more intervals, listed in the file"),
        }
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.end {
            Some(report) => write!(f, "{report}")?,
            None => writeln!(f, "INCOMPLETE: the file has no end")?,
        }
        write!(f, "{}", Losses(&self.intervals))
    }
}

/// Returns the progress of a run, for display.
pub fn progress(interval: &SoakInterval, length_s: f64) -> String {
    let sum = |of: fn(&SoakCounts) -> u64| interval.streams.iter().map(of).sum::<u64>();
    let longest = interval.streams.iter().map(|stream| stream.latency_max_ns).max().unwrap_or(0);
    let rate = Pps(sum(|it| it.sent) as f64 / length_s);
    format!("{rate}, {} lost, latency up to {}", sum(|it| it.lost), Nanoseconds(longest))
}
