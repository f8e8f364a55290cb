//! The counters of the workers that changes have removed.

use std::collections::BTreeMap;

use crate::runtime::sums::{MAX_NAMES, add_counters, add_lane, add_stage, lane_sum, port_of};
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::lane::LaneCounters;
use dataplane_core::telemetry::{RemovedWorkersReport, Report, SleepReport, StageReport, WorkerReport};

/// The sums of the counters of the workers that changes have removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemovedWorkers {
    report: RemovedWorkersReport,
    /// The counters of the lanes, by the name of the port.
    lanes: BTreeMap<String, LaneCounters>,
    stages: Vec<StageReport>,
}

impl RemovedWorkers {
    /// Adds a worker that has ended. `info` has the properties of the worker.
    pub(crate) fn add<'l>(
        &mut self,
        info: &WorkerInfo,
        worker: &WorkerReport,
        lanes: impl Iterator<Item = (&'l str, &'l LaneCounters)>,
        stages: &[StageReport],
    ) {
        let report = &mut self.report;
        report.workers += 1;
        report.loops += worker.loops;
        report.idle_loops += worker.idle_loops;
        report.bytes.rx += worker.bytes.rx;
        report.bytes.tx += worker.bytes.tx;
        report.ledger.add(&worker.ledger);
        if let Some(sleeps) = worker.sleeps {
            let sum = report.sleeps.get_or_insert_default();
            *sum = SleepReport {
                sleeps: sum.sleeps + sleeps.sleeps,
                slept_s: sum.slept_s + sleeps.slept_s,
                wakeups: sum.wakeups + sleeps.wakeups,
                wakeup_s: sum.wakeup_s + sleeps.wakeup_s,
                wakeup_max_ns: sum.wakeup_max_ns.max(sleeps.wakeup_max_ns),
            };
        }
        for (port, counters) in lanes {
            add_counters(lane_sum(&mut self.lanes, port), counters, |sum, value| sum + value);
        }
        for (stage, of_stage) in stages.iter().zip(&info.stages_info) {
            let mut stage = StageReport { quarantined: 0, ..stage.clone() };
            // Remove the counters that can decrease, such as the size of a table: the table no longer exists.
            stage.counters.retain(|name, _| !of_stage.info.gauges.contains(&name.as_str()));
            stage.counter_kinds.clear();
            let is_full = self.stages.len() >= MAX_NAMES;
            match self.stages.iter_mut().find(|sum| (&sum.name, &sum.kind) == (&stage.name, &stage.kind)) {
                Some(sum) => add_stage(sum, &stage),
                None if !is_full => self.stages.push(stage),
                // The packets of the stage are only in the ledger of the worker.
                None => {}
            }
        }
    }

    /// Adds the counters of the removed workers to the totals of a report. `report` has the ports and stages of the
    /// workers that run, and no totals of packets and bytes yet.
    pub(crate) fn add_to(&self, report: &mut Report) {
        if self.report.workers == 0 {
            return;
        }
        for (port, counters) in &self.lanes {
            add_lane(port_of(report, port), counters);
        }
        for stage in &self.stages {
            let of_stage = |now: &&mut StageReport| (&now.name, &now.kind) == (&stage.name, &stage.kind);
            if let Some(now) = report.stages.iter_mut().find(of_stage) {
                let mut stage = stage.clone();
                // The report may leave out the counters of stages, or the counter of a table entry (such as an ACL rule)
                // that no longer exists.
                stage.counters.retain(|name, _| now.counters.contains_key(name));
                add_stage(now, &stage);
            }
        }
        report.ledger.add(&self.report.ledger);
        report.removed_workers = Some(self.report.clone());
    }
}
