//! The statistics that the screen shows: the last answer of the running program to a request for statistics, and a
//! history of rates.

use std::collections::{BTreeMap, VecDeque};

use dataplane_core::telemetry::{LiveStatistics, Recent, Report, StageReport};

/// The number of samples in the history.
const HISTORY: usize = 240;

/// The last values of a rate or of a latency, the oldest value first.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<u64>);

impl History {
    fn push(&mut self, value: f64) {
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        self.0.push_back(value.max(0.0) as u64);
    }

    /// Returns the last `count` values.
    pub(super) fn last(&self, count: usize) -> Vec<u64> {
        self.0.iter().skip(self.0.len().saturating_sub(count)).copied().collect()
    }
}

/// The statistics of the program.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The last answer. The rates in `recent` are the changes since `earlier`.
    live: Option<LiveStatistics>,
    earlier: Option<Report>,
    /// The first answer of the connection.
    first: Option<LiveStatistics>,
    pub(super) received: History,
    pub(super) sent: History,
    pub(super) dropped: History,
    /// The 99th percentile of the latency in nanoseconds.
    pub(super) latency: History,
    stages: BTreeMap<String, History>,
}

impl Model {
    /// Takes the first answer of a connection. The rates of the next answer are computed from this answer. `recent` of
    /// the first answer covers the time since the start of the run, so the screen does not show the first answer.
    pub(super) fn connect(&mut self, live: LiveStatistics) {
        let is_same =
            |before: &LiveStatistics| before.pid == live.pid && before.report.duration_s <= live.report.duration_s;
        // A new run starts a new history.
        if !self.live.as_ref().is_some_and(is_same) {
            *self = Self::default();
        }
        self.first = Some(live);
    }

    /// Replaces the last answer by `live`, and adds the rates of `live` to the histories.
    pub(super) fn update(&mut self, mut live: LiveStatistics) {
        let Some(before) = self.first.take().or_else(|| self.live.take()) else { return self.connect(live) };
        // `recent` of the answer covers the time since the previous answer on this connection. Compute the rates from the
        // reports of `before` and `live` instead, so that these rates and the rates of the stages cover the same time.
        // `latency_ns` and `costs` cannot be computed from reports.
        let Recent { latency_ns, costs, .. } = live.recent;
        live.recent = Recent { latency_ns, costs, ..Recent::between(Some(&before.report), &live.report) };
        self.earlier = Some(before.report);
        self.live = Some(live);
        let Some(live) = &self.live else { return };
        self.received.push(live.recent.rates.rate_rx_mpps * 1e6);
        self.sent.push(live.recent.rates.rate_mpps * 1e6);
        self.latency.push(live.recent.latency_ns.p99 as f64);
        self.dropped.push(per_second(live.recent.drops.values().sum(), live.recent.duration_s));
        for stage in &live.report.stages {
            let rate = self.rate(|report| find(report, &stage.name).map_or(0, |stage| stage.packets));
            self.stages.entry(stage.name.clone()).or_default().push(rate);
        }
    }

    /// Returns the last answer.
    pub(super) fn live(&self) -> Option<&LiveStatistics> {
        self.live.as_ref()
    }

    /// Returns the history of the packet rate of a stage.
    pub(super) fn stage_history(&self, stage: &str) -> Option<&History> {
        self.stages.get(stage)
    }

    /// Returns the report of a stage in the previous answer.
    pub(super) fn earlier_stage(&self, stage: &str) -> Option<&StageReport> {
        find(self.earlier.as_ref()?, stage)
    }

    /// Returns the time between the previous answer and the last answer, in seconds. After a pause of the screen, this
    /// time is longer than the interval of the samples.
    pub(super) fn seconds(&self) -> f64 {
        let now = self.live.as_ref().map_or(0.0, |live| live.report.duration_s);
        now - self.earlier.as_ref().map_or(0.0, |report| report.duration_s)
    }

    /// Returns the change per second since the previous answer. `value` returns the value in a report.
    pub(super) fn rate(&self, value: impl Fn(&Report) -> u64) -> f64 {
        let Some(live) = &self.live else { return 0.0 };
        let before = self.earlier.as_ref().map_or(0, &value);
        per_second(value(&live.report).saturating_sub(before), self.seconds())
    }
}

/// Returns the packets per second, or 0 if no time has passed.
pub(super) fn per_second(packets: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { packets as f64 / seconds } else { 0.0 }
}

pub(super) fn find<'r>(report: &'r Report, stage: &str) -> Option<&'r StageReport> {
    report.stages.iter().find(|found| found.name == stage)
}
