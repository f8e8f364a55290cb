//! What the workers leave behind becomes one report.

use std::collections::BTreeMap;

use crate::clock::{ClockSource, Timebase};
use crate::error::Error;
use crate::lane::LaneCounters;
use crate::mem::Reason;
use crate::pipeline::{NodeCounters, Target};
use crate::runtime::sample::{Stamps, Times};
use crate::runtime::stopwatch::Stopwatch;
use crate::telemetry::{CostReport, Costs, Ledger, PortReport, Report, StageReport, Totals, WorkerReport};
use crate::units::Ticks;

/// What one worker has done, or has done so far.
pub(crate) struct Outcome {
    pub(crate) report: WorkerReport,
    pub(crate) lanes: Vec<LaneCounters>,
    pub(crate) stages: Vec<StageReport>,
    /// By lane: how many stamps there were of each clock, and how many of a device were not believed.
    pub(crate) stamps: Vec<(BTreeMap<ClockSource, u64>, u64)>,
    pub(crate) started: Ticks,
    pub(crate) ended: Ticks,
    pub(crate) errors: Vec<Error>,
}

/// A stage's counters in words. `outputs` are its outputs with their targets, `next` where unlabelled packets go.
pub(crate) fn stage_report(
    (name, kind): (&str, &str),
    counters: &NodeCounters,
    outputs: &[(String, Target)],
    reasons: &[&'static str],
) -> StageReport {
    let mut report = StageReport {
        name: name.to_owned(),
        kind: kind.to_owned(),
        packets: counters.packets,
        batches: counters.batches,
        consumed: counters.consumed,
        copied: counters.copied,
        made: counters.made,
        copies_missed: counters.copies_missed,
        ..StageReport::default()
    };
    let codes = counters.drops.iter().enumerate().filter(|(_, packets)| **packets > 0);
    for (code, &packets) in codes {
        report.drops.insert(Reason::from_code(code as u8).name(reasons), packets);
    }
    for ((output, target), &packets) in outputs.iter().zip(&counters.outputs).filter(|(_, packets)| **packets > 0) {
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

/// The ledger of one worker, from its stages and lanes and the slots that are still out.
pub(crate) fn ledger(stages: &[StageReport], lanes: &[(&str, &LaneCounters)], held: u64) -> Ledger {
    let mut ledger = Ledger { held, ..Ledger::default() };
    for stage in stages {
        ledger.copied += stage.copied;
        ledger.generated += stage.made;
        ledger.consumed += stage.consumed;
        for (reason, &packets) in &stage.drops {
            ledger.drop(&stage.name, reason, packets);
        }
    }
    for (port, counters) in lanes {
        ledger.rx += counters.rx;
        ledger.tx += counters.tx;
        ledger.drop(port, &Reason::TxFull.name(&[]), counters.tx_full);
        ledger.drop(port, &Reason::TxError.name(&[]), counters.tx_errors);
        ledger.drop(port, &Reason::TooLong.name(&[]), counters.tx_too_long);
        ledger.drop(port, &Reason::NotConnected.name(&[]), counters.tx_not_connected);
        ledger.drop(port, &Reason::Stopped.name(&[]), counters.stopped);
    }
    ledger.balance();
    ledger
}

/// How many stamps a lane took from each clock, and how many of the device's it did not believe.
pub(crate) fn stamps(of: &[Stamps; 2]) -> (BTreeMap<ClockSource, u64>, u64) {
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

/// The whole run. `times` are those of all workers, `ports` has name, device and the device's own counters.
pub(crate) fn report(
    outcomes: Vec<Outcome>,
    times: &Times,
    ports: Vec<PortReport>,
    errors: Vec<String>,
    timebase: &Timebase,
) -> Report {
    // One that has not told anything yet has neither.
    let told = || outcomes.iter().filter(|outcome| outcome.ended > Ticks(0));
    let first = told().map(|outcome| outcome.started).min();
    let last = told().map(|outcome| outcome.ended).max();
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
        stages: Vec::new(),
        workers: Vec::new(),
        errors,
    };
    for outcome in outcomes {
        for (port, lane) in report.ports.iter_mut().zip(&outcome.lanes) {
            add_lane(port, lane);
        }
        for (port, (stamps, implausible)) in report.ports.iter_mut().zip(outcome.stamps) {
            stamps.into_iter().for_each(|(source, count)| *port.stamps.entry(source).or_default() += count);
            port.stamps_implausible += implausible;
        }
        if report.stages.is_empty() {
            report.stages = outcome.stages;
        } else {
            report.stages.iter_mut().zip(&outcome.stages).for_each(|(sum, stage)| add_stage(sum, stage));
        }
        report.ledger.add(&outcome.report.ledger);
        report.errors.extend(outcome.errors.iter().map(Error::to_string));
        report.errors.extend(outcome.report.error.clone());
        report.workers.push(outcome.report);
    }
    for port in &report.ports {
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

/// The costs of the parts of a loop with these stages.
pub(crate) fn costs(costs: &Costs, stages: &[StageReport], timebase: &Timebase) -> Vec<CostReport> {
    let per_tick = timebase.nanos(Ticks(1_000_000_000)).0 as f64 / 1e9;
    costs.report(Stopwatch::parts(stages.iter().map(|stage| stage.name.as_str())), per_tick)
}

fn add_lane(port: &mut PortReport, lane: &LaneCounters) {
    port.packets.rx += lane.rx;
    port.packets.tx += lane.tx;
    port.bytes.rx += lane.rx_bytes;
    port.bytes.tx += lane.tx_bytes;
    port.rx_errors += lane.rx_errors;
    port.tx_full += lane.tx_full;
    port.tx_errors += lane.tx_errors;
    port.stale += lane.stale;
    port.tx_too_long += lane.tx_too_long;
    port.tx_not_connected += lane.tx_not_connected;
    port.recoveries += lane.recoveries;
    port.rebuilds += lane.rebuilds;
    port.abandoned += lane.abandoned;
    if let Some(status) = lane.first_error {
        let text = || format!("{status} ({}): {}", status.description(), status.likely_cause());
        port.first_error.get_or_insert_with(text);
    }
}

fn add_stage(sum: &mut StageReport, stage: &StageReport) {
    sum.packets += stage.packets;
    sum.batches += stage.batches;
    sum.consumed += stage.consumed;
    sum.copied += stage.copied;
    sum.made += stage.made;
    sum.copies_missed += stage.copies_missed;
    let add = |sum: &mut BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
        for (name, value) in other {
            *sum.entry(name.clone()).or_default() += value;
        }
    };
    add(&mut sum.outputs, &stage.outputs);
    add(&mut sum.drops, &stage.drops);
    add(&mut sum.counters, &stage.counters);
}
