//! The options of trials, and the observers of a running trial.

use std::time::Duration;

use crate::judge::Counts;
use crate::series::Point;

/// The options of all trials.
#[derive(Clone, Copy, Debug)]
pub struct TesterOptions {
    /// A packet with a higher latency is late.
    pub late: Duration,
    /// A time without arrivals that is longer than this limit is a gap.
    pub gap: Duration,
    /// The trial ends when no packet has arrived for this time after the last transmission.
    pub settle: Duration,
    /// The maximum time by which the tester may send a packet after the packet was due. The tester does not send
    /// packets that would be later.
    pub catch_up: Duration,
    /// The length of the intervals in which packets are counted. If a trial has too many intervals, its intervals are
    /// longer.
    pub interval: Duration,
    /// Whether learning frames are sent before each trial. The receiving port of a stream sends a frame from the
    /// destination MAC address of the stream. Bridges then do not flood the packets of the stream.
    pub learn: bool,
}

impl Default for TesterOptions {
    fn default() -> Self {
        Self {
            late: Duration::from_secs(1),
            gap: Duration::from_millis(100),
            settle: Duration::from_millis(200),
            catch_up: Duration::from_millis(1),
            interval: Duration::from_millis(100),
            learn: false,
        }
    }
}

/// The rates and the duration of a trial.
#[derive(Clone, Copy, Debug)]
pub struct TrialPlan<'a> {
    /// The rate of each stream in packets per second, or `None` for the highest possible rate.
    pub rates: &'a [Option<f64>],
    /// The time in which packets are sent.
    pub duration: Duration,
    /// The time at which the rates change, and the rates after this time.
    pub change: Option<(Duration, &'a [Option<f64>])>,
}

/// The counts of an interval of a running trial. A packet of the interval that has not arrived yet is late or lost.
#[derive(Clone, Debug, Default)]
pub struct IntervalCounts {
    /// The number of the interval, from 0.
    pub index: usize,
    /// The packets of each stream that were sent in the interval.
    pub streams: Vec<Point>,
    /// The counts of each stream since the start of the trial. The lost packets are not known yet.
    pub counts: Vec<Counts>,
}

/// An observer of a running trial. The loop of the tester calls the functions of the observer, so the functions must be
/// short.
pub trait Observer {
    /// Handles the start of the transmission.
    fn start(&mut self) {}
    /// Handles the counts of an interval. The function is called for each interval, in order.
    fn interval(&mut self, _counts: &IntervalCounts) {}
}

impl Observer for () {}
