//! Combines the outcomes of the workers into one report. A lane is one worker's queue pair and completion queues on one
//! port.

use std::collections::BTreeMap;

use crate::runtime::removed_workers::RemovedWorkers;
use crate::runtime::sample::{Scope, SleepCounters, Stamps, Times, WorkerCounters};
use crate::runtime::stopwatch::Stopwatch;
use crate::runtime::sums::{MAX_NAMES, add_counters, add_lane, add_stage, lane_sum, port_of};
use crate::runtime::worker_info::{ReportedStage, WorkerInfo};
use dataplane_core::clock::{ClockSource, Timebase};
use dataplane_core::error::Error;
use dataplane_core::lane::LaneCounters;
use dataplane_core::mem::Reason;
use dataplane_core::pipeline::{NodeCounters, Target};
use dataplane_core::telemetry::{
    CostReport, Costs, CounterKind, Ledger, PortReport, Report, SleepReport, StageReport, Totals, WorkerReport,
};
use dataplane_core::units::Ticks;

/// The results of one worker: the final results, or the results up to a snapshot.
pub(crate) struct Outcome {
    pub(crate) report: WorkerReport,
    pub(crate) lanes: Vec<LaneOutcome>,
    pub(crate) stages: Vec<StageReport>,
    pub(crate) started: Ticks,
    pub(crate) ended: Ticks,
    pub(crate) errors: Vec<Error>,
}

/// The results of a lane of one worker.
pub(crate) struct LaneOutcome {
    /// The name of the port.
    pub(crate) port: String,
    pub(crate) counters: LaneCounters,
    pub(crate) is_connected: bool,
    /// The number of timestamps from each clock.
    stamps: BTreeMap<ClockSource, u64>,
    /// The number of rejected device timestamps.
    implausible: u64,
}

impl LaneOutcome {
    /// Creates the results of a lane that has retired.
    fn retired(port: &str, counters: &LaneCounters) -> Self {
        let (port, counters, stamps) = (port.to_owned(), counters.clone(), BTreeMap::new());
        Self { port, counters, is_connected: true, stamps, implausible: 0 }
    }
}

impl Outcome {
    /// Converts the counters of a worker to the worker's part of the report, in which every counter has a name. `scope`
    /// states which counters are up to date. The report leaves out the other counters.
    pub(crate) fn new(info: &WorkerInfo, counters: &WorkerCounters, scope: Scope) -> Self {
        let mut stages: Vec<StageReport> = info.stages_info.iter().zip(&counters.nodes).map(stage_report).collect();
        for ((report, own), stage) in stages.iter_mut().zip(&counters.stages).zip(&info.stages_info) {
            if scope < Scope::All {
                break;
            }
            for (name, kind, value) in own.iter() {
                let is_gauge = kind == CounterKind::Total && stage.info.gauges.contains(&name);
                let kind = if is_gauge { CounterKind::Gauge } else { kind };
                if kind != CounterKind::Total {
                    report.counter_kinds.insert(name.to_owned(), kind);
                }
                report.counters.insert(name.to_owned(), value);
            }
        }
        let retiring = || counters.retiring.iter().map(|(port, counters)| (&**port, counters));
        let named: Vec<(&str, &LaneCounters)> =
            info.ports.iter().map(String::as_str).zip(&counters.lanes).chain(retiring()).collect();
        let ledger = ledger(&stages, &named, (counters.out - counters.posted.min(counters.out)) as u64);
        let bytes = |of: fn(&LaneCounters) -> u64| named.iter().map(|(_, counters)| of(counters)).sum();
        let report = WorkerReport {
            core: info.core.0,
            loops: counters.counts.loops,
            idle_loops: counters.counts.idle_loops,
            sleeps: sleeps(&counters.counts.sleeps),
            bytes: Totals { rx: bytes(|lane| lane.rx_bytes), tx: bytes(|lane| lane.tx_bytes) },
            ledger,
            slots: u64::from(info.slots),
            slots_missing: 0,
            pages: info.pages.to_string(),
            granted: info.granted.clone(),
            error: None,
        };
        let lane = |(at, (port, counters_of)): (usize, (&String, &LaneCounters))| {
            let (stamps, implausible) = counters.stamps.get(at).map(stamps).unwrap_or_default();
            let is_connected = counters.connected.get(at).copied().unwrap_or(true);
            LaneOutcome { port: port.clone(), counters: counters_of.clone(), is_connected, stamps, implausible }
        };
        let lanes = info.ports.iter().zip(&counters.lanes).enumerate().map(lane);
        let lanes = lanes.chain(retiring().map(|(port, counters)| LaneOutcome::retired(port, counters))).collect();
        Self { report, lanes, stages, started: counters.counts.started, ended: counters.at, errors: Vec::new() }
    }
}

/// Returns the sleeps of a worker, or `None` if the worker never slept.
fn sleeps(of: &SleepCounters) -> Option<SleepReport> {
    let SleepCounters { sleeps, slept, wakeups, wakeup_sum, wakeup_max } = *of;
    (sleeps > 0).then_some(SleepReport {
        sleeps,
        slept_s: slept.as_secs_f64(),
        wakeups,
        wakeup_s: wakeup_sum.as_secs_f64(),
        wakeup_max_ns: wakeup_max.as_nanos() as u64,
    })
}

/// The packets that earlier graphs of a worker have counted. If a removed stage or port whose counts are kept separately
/// is added again, the counts continue.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlierCounts {
    /// The counts of stages, in the order in which the stages were added.
    stages: Vec<StageReport>,
    /// The sum of the counts of all removed stages that exceed [`MAX_NAMES`].
    removed: Ledger,
    /// The counters of the lanes that have retired, by the name of the port.
    lanes: BTreeMap<String, LaneCounters>,
    /// The buffers of closed lanes that came back after the worker had ended.
    pub(crate) late: LateSlots,
}

/// Buffers that came back after their worker had ended. The last counters of the worker include these buffers as
/// missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LateSlots {
    /// The buffers of receives.
    pub(crate) receives: u64,
    /// The buffers of sends. The last counters of the worker include the packets of these sends as held.
    pub(crate) sends: u64,
}

impl EarlierCounts {
    /// Returns the names of the ports of the lanes that have retired.
    #[cfg(test)]
    pub(crate) fn ports(&self) -> impl Iterator<Item = &str> {
        self.lanes.keys().map(String::as_str)
    }

    /// Adds the counters `later` of a lane that has retired. The sum already includes the earlier counters `before` of
    /// this lane.
    pub(crate) fn add_lane(&mut self, port: &str, before: &LaneCounters, later: &LaneCounters) {
        let sum = lane_sum(&mut self.lanes, port);
        add_counters(sum, later, |sum, value| sum + value);
        add_counters(sum, before, |sum, value| sum - value);
    }

    /// Adds the counters of an earlier graph that the worker has handed back. `before` has the stages of the earlier
    /// graph, and `after` has the stages of the current graph.
    pub(crate) fn add(
        &mut self,
        before: &WorkerInfo,
        counters: impl Iterator<Item = NodeCounters>,
        after: &WorkerInfo,
    ) {
        for (stage, counters) in before.stages_info.iter().zip(counters) {
            let report = StageReport { quarantined: 0, ..stage_report((stage, &counters)) };
            match self.stages.iter_mut().find(|known| (&known.name, &known.kind) == (&report.name, &report.kind)) {
                Some(known) => add_stage(known, &report),
                None => self.stages.push(report),
            }
        }
        let exists = |stage: &StageReport| {
            after.stages_info.iter().any(|now| (&now.name, &now.kind) == (&stage.name, &stage.kind))
        };
        let mut surplus = self.stages.iter().filter(|stage| !exists(stage)).count().saturating_sub(MAX_NAMES);
        let is_surplus = |stage: &mut StageReport| {
            let is_surplus = surplus > 0 && !exists(stage);
            surplus -= usize::from(is_surplus);
            is_surplus
        };
        let removed: Vec<StageReport> = self.stages.extract_if(.., is_surplus).collect();
        self.removed.add(&ledger(&removed, &[], 0));
    }
}

impl Outcome {
    /// Adds the packets that earlier graphs of the worker have counted.
    pub(crate) fn add_earlier(&mut self, earlier: &EarlierCounts) {
        for stage in &mut self.stages {
            let of_stage = |before: &&StageReport| (&before.name, &before.kind) == (&stage.name, &stage.kind);
            if let Some(before) = earlier.stages.iter().find(of_stage) {
                add_stage(stage, before);
            }
        }
        let lanes: Vec<(&str, &LaneCounters)> =
            earlier.lanes.iter().map(|(port, counters)| (port.as_str(), counters)).collect();
        for (port, counters) in &lanes {
            self.report.bytes.rx += counters.rx_bytes;
            self.report.bytes.tx += counters.tx_bytes;
            self.lanes.push(LaneOutcome::retired(port, counters));
        }
        let LateSlots { receives, sends } = earlier.late;
        self.report.slots_missing = self.report.slots_missing.saturating_sub(receives + sends);
        let ledger = &mut self.report.ledger;
        ledger.held = ledger.held.saturating_sub(sends);
        ledger.add(&self::ledger(&earlier.stages, &lanes, 0));
        ledger.add(&earlier.removed);
        ledger.balance();
    }
}

/// Converts the counters of a stage to the report of the stage, in which every output and drop reason has a name.
fn stage_report((stage, counters): (&ReportedStage, &NodeCounters)) -> StageReport {
    let mut report = StageReport {
        name: stage.name.clone(),
        kind: stage.kind.clone(),
        packets: counters.packets,
        batches: counters.batches,
        consumed: counters.consumed,
        copied: counters.copied,
        generated: counters.generated,
        copies_missed: counters.copies_missed,
        panics: counters.panics,
        quarantined: counters.is_quarantined.into(),
        ..StageReport::default()
    };
    let codes = counters.drops.iter().enumerate().filter(|(_, packets)| **packets > 0);
    for (code, &packets) in codes {
        report.drops.insert(Reason::from_code(code as u8).name(&stage.reasons), packets);
    }
    for ((output, target), &packets) in stage.outputs.iter().zip(&counters.outputs).filter(|(_, packets)| **packets > 0)
    {
        match target {
            Target::Drop => *report.drops.entry(output.clone()).or_default() += packets,
            _ => *report.outputs.entry(output.clone()).or_default() += packets,
        }
    }
    if counters.dropped_next > 0 {
        *report.drops.entry(Reason::Requested.name(&[])).or_default() += counters.dropped_next;
    }
    report
}

/// Returns the ledger of one worker, from its stages, its lanes and the slots that are still in use.
fn ledger(stages: &[StageReport], lanes: &[(&str, &LaneCounters)], held: u64) -> Ledger {
    let mut ledger = Ledger { held, ..Ledger::default() };
    for stage in stages {
        ledger.copied += stage.copied;
        ledger.generated += stage.generated;
        ledger.consumed += stage.consumed;
        for (reason, &packets) in &stage.drops {
            ledger.add_drops(&stage.name, reason, packets);
        }
    }
    for (port, counters) in lanes {
        ledger.rx += counters.rx;
        ledger.tx += counters.tx;
        ledger.add_drops(port, &Reason::TxFull.name(&[]), counters.tx_full);
        ledger.add_drops(port, &Reason::TxError.name(&[]), counters.tx_errors);
        ledger.add_drops(port, &Reason::TooLong.name(&[]), counters.tx_too_long);
        ledger.add_drops(port, &Reason::NotConnected.name(&[]), counters.tx_not_connected);
        ledger.add_drops(port, &Reason::Stopped.name(&[]), counters.dropped_at_stop);
    }
    ledger.balance();
    ledger
}

/// Returns the number of timestamps of a lane from each clock, and the number of rejected device timestamps.
fn stamps(of: &[Stamps; 2]) -> (BTreeMap<ClockSource, u64>, u64) {
    let (mut stamps, mut implausible) = (BTreeMap::new(), 0);
    for Stamps { source, host, counts } in *of {
        for (source, count) in [(source, counts.device), (host, counts.host)] {
            if count > 0 {
                *stamps.entry(source).or_default() += count;
            }
        }
        implausible += counts.implausible;
    }
    (stamps, implausible)
}

/// Builds the report of the whole run. `times` has the latencies and loop costs of all workers. `ports` and `removed`
/// contain the name, the device and the device counters of each port and of each removed port.
pub(crate) fn report(
    outcomes: Vec<Outcome>,
    removed_workers: &RemovedWorkers,
    times: &Times,
    ports: Vec<PortReport>,
    removed: Vec<PortReport>,
    errors: Vec<String>,
    timebase: &Timebase,
) -> Report {
    // Skip workers that have not yet answered a request for their counters. Their start and end are 0.
    let started_workers = || outcomes.iter().filter(|outcome| outcome.ended > Ticks(0));
    let first = started_workers().map(|outcome| outcome.started).min();
    let last = started_workers().map(|outcome| outcome.ended).max();
    let mut report = Report {
        duration_s: 0.0,
        packets: Totals::default(),
        bytes: Totals::default(),
        rate_mpps: 0.0,
        rate_rx_mpps: 0.0,
        ledger: Ledger::default(),
        latency_ns: times.latency.report(),
        costs: Vec::new(),
        ports,
        removed_ports: removed,
        stages: Vec::new(),
        workers: Vec::new(),
        removed_workers: None,
        errors,
        logs_lost: 0,
    };
    for outcome in outcomes {
        for lane in outcome.lanes {
            let port = port_of(&mut report, &lane.port);
            add_lane(port, &lane.counters);
            lane.stamps.into_iter().for_each(|(source, count)| *port.stamps.entry(source).or_default() += count);
            port.stamps_implausible += lane.implausible;
        }
        for stage in outcome.stages {
            match report.stages.iter_mut().find(|sum| (&sum.name, &sum.kind) == (&stage.name, &stage.kind)) {
                Some(sum) => add_stage(sum, &stage),
                None => report.stages.push(stage),
            }
        }
        report.ledger.add(&outcome.report.ledger);
        report.errors.extend(outcome.errors.iter().map(Error::to_string));
        report.errors.extend(outcome.report.error.clone());
        report.workers.push(outcome.report);
    }
    removed_workers.add_to(&mut report);
    for port in report.ports.iter().chain(&report.removed_ports) {
        report.packets.rx += port.packets.rx;
        report.packets.tx += port.packets.tx;
        report.bytes.rx += port.bytes.rx;
        report.bytes.tx += port.bytes.tx;
    }
    report.costs = costs(&times.costs, &report.stages, timebase);
    if let (Some(first), Some(last)) = (first, last) {
        report.duration_s = timebase.between(first, last).0 as f64 / 1e9;
    }
    let rate = |packets: u64| if report.duration_s > 0.0 { packets as f64 / report.duration_s / 1e6 } else { 0.0 };
    (report.rate_mpps, report.rate_rx_mpps) = (rate(report.packets.tx), rate(report.packets.rx));
    report
}

/// Returns the costs of each part of the loop. `stages` has the stages of a report.
pub(crate) fn costs(costs: &Costs, stages: &[StageReport], timebase: &Timebase) -> Vec<CostReport> {
    let per_tick = timebase.nanos(Ticks(1_000_000_000)).0 as f64 / 1e9;
    costs.report(Stopwatch::parts(measured_stages(costs, stages)), per_tick)
}

/// Returns the names of the stages that the costs contain: the stages of the first worker. A report has these stages
/// first. A worker that is late or has ended may have other stages, which follow in the report.
pub(crate) fn measured_stages<'a>(costs: &Costs, stages: &'a [StageReport]) -> impl Iterator<Item = &'a str> {
    stages.iter().map(|stage| stage.name.as_str()).take(Stopwatch::stages_of(costs))
}
