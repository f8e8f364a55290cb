//! Sums of counters over workers, lanes and earlier graphs.

use std::collections::BTreeMap;

use dataplane_core::lane::LaneCounters;
use dataplane_core::telemetry::{PortReport, Report, StageReport};

/// The maximum number of port names, and the maximum number of stage names, under which the counts of earlier graphs
/// and of removed workers are kept.
pub(crate) const MAX_NAMES: usize = 1024;
/// The name in the report for all ports that exceed [`MAX_NAMES`], counted together.
const OTHER_PORTS: &str = "(other ports)";

/// Returns the sum for the lanes of a port. If `lanes` is full and lacks the port, returns the sum for [`OTHER_PORTS`].
pub(crate) fn lane_sum<'s>(lanes: &'s mut BTreeMap<String, LaneCounters>, port: &str) -> &'s mut LaneCounters {
    let is_full = lanes.len() >= MAX_NAMES && !lanes.contains_key(port);
    let port = if is_full { OTHER_PORTS } else { port };
    lanes.entry(port.to_owned()).or_default()
}

/// Sets each counter of `sum` to the result of `combine` for this counter and the same counter of `other`. If `sum`
/// already has a first error, keeps this error.
pub(crate) fn add_counters(sum: &mut LaneCounters, other: &LaneCounters, combine: fn(u64, u64) -> u64) {
    let LaneCounters {
        rx,
        rx_bytes,
        rx_errors,
        tx,
        tx_bytes,
        tx_full,
        tx_errors,
        tx_too_long,
        tx_not_connected,
        dropped_at_stop: stopped,
        unmatched_completions: stale,
        recoveries,
        rebuilds,
        timed_out: abandoned,
        first_error,
    } = other;
    sum.rx = combine(sum.rx, *rx);
    sum.rx_bytes = combine(sum.rx_bytes, *rx_bytes);
    sum.rx_errors = combine(sum.rx_errors, *rx_errors);
    sum.tx = combine(sum.tx, *tx);
    sum.tx_bytes = combine(sum.tx_bytes, *tx_bytes);
    sum.tx_full = combine(sum.tx_full, *tx_full);
    sum.tx_errors = combine(sum.tx_errors, *tx_errors);
    sum.tx_too_long = combine(sum.tx_too_long, *tx_too_long);
    sum.tx_not_connected = combine(sum.tx_not_connected, *tx_not_connected);
    sum.dropped_at_stop = combine(sum.dropped_at_stop, *stopped);
    sum.unmatched_completions = combine(sum.unmatched_completions, *stale);
    sum.recoveries = combine(sum.recoveries, *recoveries);
    sum.rebuilds = combine(sum.rebuilds, *rebuilds);
    sum.timed_out = combine(sum.timed_out, *abandoned);
    sum.first_error = sum.first_error.or(*first_error);
}

/// Adds the counters of a lane to the counters of its port.
pub(crate) fn add_lane(port: &mut PortReport, lane: &LaneCounters) {
    port.packets.rx += lane.rx;
    port.packets.tx += lane.tx;
    port.bytes.rx += lane.rx_bytes;
    port.bytes.tx += lane.tx_bytes;
    port.rx_errors += lane.rx_errors;
    port.tx_full += lane.tx_full;
    port.tx_errors += lane.tx_errors;
    port.stale += lane.unmatched_completions;
    port.tx_too_long += lane.tx_too_long;
    port.tx_not_connected += lane.tx_not_connected;
    port.recoveries += lane.recoveries;
    port.rebuilds += lane.rebuilds;
    port.abandoned += lane.timed_out;
    if let Some(status) = lane.first_error {
        let text = || format!("{status} ({}): {}", status.description(), status.likely_cause());
        port.first_error.get_or_insert_with(text);
    }
}

/// Adds the counters of a stage on one worker, or of an earlier graph, to the sum of the stage.
pub(crate) fn add_stage(sum: &mut StageReport, stage: &StageReport) {
    sum.packets += stage.packets;
    sum.batches += stage.batches;
    sum.consumed += stage.consumed;
    sum.copied += stage.copied;
    sum.generated += stage.generated;
    sum.copies_missed += stage.copies_missed;
    sum.panics += stage.panics;
    sum.quarantined += stage.quarantined;
    let add = |sum: &mut BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
        for (name, value) in other {
            *sum.entry(name.clone()).or_default() += value;
        }
    };
    add(&mut sum.outputs, &stage.outputs);
    add(&mut sum.drops, &stage.drops);
    add(&mut sum.counters, &stage.counters);
    sum.counter_kinds.extend(stage.counter_kinds.iter().map(|(name, kind)| (name.clone(), *kind)));
}

/// Returns the port with this name. If the report has no such port, returns the removed port with this name. Adds the
/// removed port if it is missing.
pub(crate) fn port_of<'r>(report: &'r mut Report, name: &str) -> &'r mut PortReport {
    let Report { ports, removed_ports, .. } = report;
    if let Some(port) = ports.iter_mut().find(|port| port.name == name) {
        return port;
    }
    let at = removed_ports.iter().position(|port| port.name == name).unwrap_or_else(|| {
        removed_ports.push(PortReport { name: name.to_owned(), ..PortReport::default() });
        removed_ports.len() - 1
    });
    &mut removed_ports[at]
}
