//! The causes of packets that are lost outside the ledger: before a worker receives the packets, or after a port
//! has sent the packets.

use super::cause::{Cause, CauseKind};
use super::fixes;
use super::observe::Observed;
use dataplane_core::telemetry::{CostReport, Duration, PortReport, WorkerRates};
use dataplane_core::verbs::WcStatus;

/// The device counters of packets that found no place in a queue (part of [`PortReport::LOSSES`]), with their meanings and the
/// names of the queues.
const QUEUES: [(&str, &str, &str); 4] = [
    ("rx_out_of_buffer", "the packets arrived while no receive buffer was posted", "receive queue"),
    ("rx_missed", "the ring of the port's socket was full, or a queue pair was reset", "ring"),
    (
        "kernel_rx_dropped",
        "the kernel found no posted receive buffer of the AF_XDP socket, or the frame was longer than a buffer",
        "receive queue",
    ),
    ("kernel_rx_ring_full", "the receive ring of the AF_XDP socket was full", "receive queue"),
];

/// The device counters of packets that a port does not accept, with their meanings.
const NOT_ACCEPTED: [(&str, &str); 5] = [
    ("rx_too_long", "the frame was longer than a packet buffer"),
    ("rx_gso_too_long", "the sender uses BIG TCP: the GSO packet was longer than 64 KiB"),
    ("rx_unmatched", "no flow rule of the port matches the frame"),
    ("qkey_violations", "the datagram has the wrong Q_Key"),
    ("pkey_violations", "the packet has another partition key than the queue pair"),
];

/// If a worker receives packets in at least this share of its loops, the worker counts as saturated.
const SATURATED: f64 = 0.95;

/// If a worker waits for its core for at least this share of the time, other programs count as the cause of the loss.
const PREEMPTED: f64 = 0.05;

/// The maximum number of workers in the evidence.
const SHOWN_WORKERS: usize = 4;

/// Returns the causes of the losses of all ports.
pub(super) fn losses(observed: &Observed) -> Vec<Cause> {
    let mut causes: Vec<Cause> =
        observed.after.report.ports.iter().flat_map(|port| port_losses(observed, port)).collect();
    if !causes.iter().any(|cause| cause.kind == CauseKind::WorkerBlocked) {
        causes.extend(blocked_workers(observed));
    }
    causes
}

/// Returns the causes of workers that do not answer. The number of lost packets is unknown, because some
/// devices do not count the packets that such a worker loses.
fn blocked_workers(observed: &Observed) -> impl Iterator<Item = Cause> {
    observed.blocked().map(|(number, message)| {
        let meaning = "the worker does not answer, so it receives and sends nothing";
        let mut cause = Cause::new(format!("worker {number}"), CauseKind::WorkerBlocked, None, meaning);
        cause.reason = Some(BLOCKED.to_owned());
        cause.evidence.push(message.clone());
        cause.fix = fixes::BLOCKED.to_owned();
        cause
    })
}

const BLOCKED: &str = "a stage of the worker waits or does not return";

fn port_losses(observed: &Observed, port: &PortReport) -> Vec<Cause> {
    let mut causes = Vec::new();
    // The counters of a device can grow although the port loses no packet. On a reliable connection, the peer sends the
    // packets again. A port that is not an input can share its device with other ports and programs.
    let loses = observed.port_growth(&port.name, |port| port.rx_lost) > 0;
    for (counter, meaning, queue) in QUEUES.into_iter().filter(|_| loses) {
        let packets = observed.device_growth(&port.name, counter);
        if packets > 0 {
            causes.push(queue_cause(observed, port, (counter, meaning, queue), packets));
        }
    }
    for (counter, meaning) in NOT_ACCEPTED {
        let packets = observed.device_growth(&port.name, counter);
        if packets > 0 {
            let mut cause = new(port, counter, CauseKind::NotAccepted, packets, meaning);
            cause.is_lost = PortReport::LOSSES.contains(&counter);
            cause.evidence.push(increase(observed, port, counter));
            cause.fix = fixes::of_port(&port.name, counter);
            causes.push(cause);
        }
    }
    causes.extend(failed_receives(observed, port));
    causes.extend(interface_causes(observed, port).into_iter().map(|cause| without_buffers(observed, port, cause)));
    let unwritten = observed.port_growth(&port.name, |port| port.tx_lost);
    if unwritten > 0 {
        let meaning = "the packets were sent, but writing the capture file of the port failed";
        let mut cause = new(port, "tx_lost", CauseKind::File, unwritten, meaning);
        cause.is_lost = true;
        cause.evidence = observed.failures().cloned().collect();
        cause.fix = fixes::of_port(&port.name, "tx_lost");
        causes.push(cause);
    }
    let sends_fail = observed.port_growth(&port.name, |port| port.tx_errors + port.tx_not_connected) > 0;
    // If sends fail because the link is down, another cause has the number of these packets.
    if port.link_up == Some(false) && !sends_fail {
        let name = format!("{}.link_down", port.name);
        let meaning = "the link is down, so the port receives and sends nothing";
        let mut cause = Cause::new(name, CauseKind::LinkDown, None, meaning);
        cause.port = Some(port.name.clone());
        cause.evidence.push(format!("the link of port {} is down", port.name));
        cause.fix = fixes::of_port(&port.name, "tx_link_down");
        causes.push(cause);
    }
    causes
}

fn new(port: &PortReport, counter: &str, kind: CauseKind, packets: u64, meaning: &str) -> Cause {
    let mut cause = Cause::new(format!("{}.{counter}", port.name), kind, Some(packets), meaning);
    cause.port = Some(port.name.clone());
    cause
}

/// Returns the cause of failed receives of an RDMA port if the first error of the port is a local length error. For all
/// other ports, the device counter `rx_too_long` counts these frames.
fn failed_receives(observed: &Observed, port: &PortReport) -> Option<Cause> {
    let packets = observed.port_growth(&port.name, |port| port.rx_errors);
    let error = port.first_error.as_ref().filter(|error| error.starts_with(&WcStatus::LocLenErr.to_string()))?;
    if packets == 0 || !observed.rdma_ports.contains(&port.name) {
        return None;
    }
    let meaning = "a receive completed with an error, without a packet";
    let mut cause = new(port, "rx_errors", CauseKind::NotAccepted, packets, meaning);
    cause.reason = Some("the frame was longer than a packet buffer".to_owned());
    cause.evidence.push(format!("failed receives of port {}: {packets}", port.name));
    cause.evidence.push(format!("the first error of the port: {error}"));
    cause.fix = fixes::of_port(&port.name, "rx_errors");
    Some(cause)
}

/// Returns the values of a device counter before and after the examined time, as evidence.
fn increase(observed: &Observed, port: &PortReport, counter: &str) -> String {
    let now = port.device_counters.get(counter).copied().unwrap_or(0);
    let before = now.saturating_sub(observed.device_growth(&port.name, counter));
    let seconds = Duration(observed.seconds * 1e9);
    format!("{counter} of port {}: {before} → {now} in {seconds}", port.name)
}

/// Returns the cause of packets that found no place in a queue of the port.
fn queue_cause(
    observed: &Observed,
    port: &PortReport,
    (counter, meaning, queue): (&str, &str, &str),
    packets: u64,
) -> Cause {
    let mut cause = new(port, counter, CauseKind::Bursts, packets, meaning);
    cause.is_lost = true;
    cause.evidence.push(increase(observed, port, counter));
    let restarts = observed.port_growth(&port.name, |port| port.recoveries + port.rebuilds);
    if restarts > 0 {
        cause.kind = CauseKind::Device;
        cause.reason = Some("the queues of the port were reset after an error".to_owned());
        cause.evidence.push(format!("queue resets of port {}: {restarts}", port.name));
        cause.evidence.extend(port.first_error.iter().map(|error| format!("the first error of the port: {error}")));
        cause.fix = fixes::DEVICE.to_owned();
        return cause;
    }
    let report = &observed.after.report;
    let blocked: Vec<_> = observed.blocked().collect();
    if !blocked.is_empty() {
        cause.kind = CauseKind::WorkerBlocked;
        cause.reason = Some(BLOCKED.to_owned());
        cause.evidence.extend(blocked.into_iter().map(|(_, message)| message.clone()));
        cause.fix = fixes::BLOCKED.to_owned();
        return cause;
    }
    let mut workers: Vec<(usize, &WorkerRates, f64)> = observed.workers().collect();
    workers.sort_by(|a, b| b.2.total_cmp(&a.2));
    let is_saturated = workers.iter().any(|(_, worker, busy)| worker.loops > 0 && *busy >= SATURATED);
    let granted = report.workers.iter().find_map(|worker| worker.granted.get(&port.name));
    cause.evidence.extend(granted.map(|granted| format!("queues of port {} on each worker: {granted}", port.name)));
    for (number, worker, busy) in workers.iter().take(SHOWN_WORKERS) {
        let bursts = worker.loops.saturating_sub(worker.idle_loops).max(1) as f64;
        let burst = observed.received_by(*number) as f64 / bursts;
        let share = busy * 100.0;
        cause.evidence.push(format!(
            "worker {number} on core {}: packets in {share:.1} % of {} loops, {burst:.1} packets in each of these \
                 loops",
            worker.core, worker.loops
        ));
    }
    let preempted = observed.waits.iter().max_by_key(|(_, wait)| **wait);
    let preempted = preempted.filter(|(_, wait)| wait.as_secs_f64() >= PREEMPTED * observed.seconds);
    if let Some((number, wait)) = preempted {
        let (wait, seconds) = (Duration(wait.as_nanos() as f64), Duration(observed.seconds * 1e9));
        cause
            .evidence
            .push(format!("worker {number} waited {wait} of {seconds} for its core, which other threads used"));
    }
    if is_saturated {
        cause.kind = CauseKind::WorkerSaturated;
        let slowest = slowest(observed);
        cause.reason = Some(match slowest {
            Some(cost) => {
                let part = &cost.part;
                format!("a worker cannot handle more packets, and the slowest part of its loop is `{part}`")
            }
            None => "a worker cannot handle more packets".to_owned(),
        });
        cause.evidence.extend(slowest.map(|cost| time_of(observed, cost)));
        // The fix names the slowest part only if the part is a stage, because the config cannot change the other parts.
        let stage = slowest.filter(|cost| cost.is_stage).map(|cost| cost.part.as_str());
        cause.fix = fixes::saturated(stage, preempted.is_some());
    } else if preempted.is_some() {
        cause.kind = CauseKind::WorkerPreempted;
        cause.reason = Some(format!("the {queue} filled up while other threads used the core of the worker"));
        cause.fix = fixes::preempted(&port.name, queue);
    } else {
        cause.reason = Some(format!("bursts exceed the {queue}, although the workers are idle between the bursts"));
        cause.fix = fixes::bursts(&port.name, queue);
    }
    cause
}

/// Returns the cause of frames that the NIC of an AF_XDP port in zero-copy mode lost, because no receive buffer was
/// posted. The socket counts how often the driver found no posted buffer, but not the lost frames. Returns all other
/// causes unchanged.
fn without_buffers(observed: &Observed, port: &PortReport, cause: Cause) -> Cause {
    let attempts = observed.device_growth(&port.name, "kernel_rx_no_buffer");
    let is_zero_copy = port.device.contains("zero-copy");
    let Some(packets) = cause.packets.filter(|_| cause.kind == CauseKind::NicRing && is_zero_copy && attempts > 0)
    else {
        return cause;
    };
    let meaning = "the NIC lost frames because no receive buffer of the AF_XDP socket was posted";
    let mut found = queue_cause(observed, port, ("kernel_rx_no_buffer", meaning, "receive queue"), packets);
    // `rx_lost` of the report does not contain these frames.
    (found.name, found.is_lost) = (cause.name, cause.is_lost);
    found.evidence.splice(0..0, cause.evidence);
    found
}

/// Returns the costs of the parts of the loop. The workers measure only about one loop in a thousand, so there may be
/// no recent costs. In this case, the function returns the costs since the start of the run.
fn costs(observed: &Observed) -> &[CostReport] {
    let (recent, report) = (&observed.after.recent, &observed.after.report);
    if recent.costs.is_empty() { &report.costs } else { &recent.costs }
}

/// Returns whether the cost is the total of all parts.
fn is_total(cost: &CostReport) -> bool {
    cost.part == "all" && !cost.is_stage
}

/// Returns the measured time of a part, in nanoseconds.
fn total_ns(cost: &CostReport) -> f64 {
    cost.ns * cost.burst * cost.bursts as f64
}

/// Returns the part of the loop that takes the most time.
fn slowest(observed: &Observed) -> Option<&CostReport> {
    let parts = costs(observed).iter().filter(|cost| !is_total(cost));
    parts.max_by(|a, b| total_ns(a).total_cmp(&total_ns(b)))
}

/// Returns the time of a part as evidence.
fn time_of(observed: &Observed, cost: &CostReport) -> String {
    let total = costs(observed).iter().find(|cost| is_total(cost));
    let share = total_ns(cost) * 100.0 / total.map_or(f64::INFINITY, |all| total_ns(all).max(1.0));
    format!("`{}` takes {} per packet, {share:.0} % of the measured time", cost.part, Duration(cost.ns))
}

/// Returns the causes that the counters of the kernel's interface show.
fn interface_causes(observed: &Observed, port: &PortReport) -> Vec<Cause> {
    let Some((interface, counters)) = observed.interfaces.get(&port.name) else { return Vec::new() };
    let growth = |counter: &str| observed.device_growth(&port.name, counter);
    // `rx_dropped` may include the frames that an AF_XDP socket did not accept. These frames have their own causes.
    let in_socket = growth("kernel_rx_dropped") + growth("kernel_rx_ring_full");
    let mut missed = counters.missed + counters.fifo;
    let mut dropped = (counters.drops - counters.missed.min(counters.drops)).saturating_sub(in_socket);
    // The frames of an RDMA port do not pass the queues of the kernel, so none of these frames was for the port.
    if observed.rdma_ports.contains(&port.name) {
        (missed, dropped) = (0, 0);
    }
    let seconds = Duration(observed.seconds * 1e9);
    let found = [
        (
            "interface_rx_missed",
            CauseKind::NicRing,
            missed,
            "the NIC lost frames because its ring was full",
            "rx_missed_errors and rx_fifo_errors",
        ),
        (
            "interface_rx_dropped",
            CauseKind::Kernel,
            dropped,
            "the kernel or the driver dropped frames before the port received them",
            "rx_dropped",
        ),
        (
            "interface_rx_errors",
            CauseKind::LinkErrors,
            counters.errors.saturating_sub(counters.fifo),
            "the frames were damaged on the link, or longer than the MTU of the interface",
            "rx_errors",
        ),
    ];
    let found = found.into_iter().filter(|(_, _, packets, ..)| *packets > 0);
    let cause = |(name, kind, packets, meaning, counter): (&str, CauseKind, u64, &str, &str)| {
        let mut cause = new(port, name, kind, packets, meaning);
        cause.evidence.push(format!("{counter} of interface {interface} increased by {packets} in {seconds}"));
        cause.fix = fixes::of_interface(interface, kind);
        cause
    };
    found.map(cause).collect()
}
