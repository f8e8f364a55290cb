//! The report of a run: one object, printed as text or as JSON.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::{ClockReport, ClockSource};
use crate::telemetry::{CostReport, Duration, Ledger, PacketsPerSecond};

/// Totals of received and sent packets or bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// The number of received packets or bytes.
    pub rx: u64,
    /// The number of sent packets or bytes.
    pub tx: u64,
}

/// Percentiles of the time from receive stamp to send completion stamp, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyReport {
    /// The number of measured packets.
    pub count: u64,
    /// The 50th percentile.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The maximum.
    pub max: u64,
    /// The clock of the stamps, `mixed` if packets were measured by different clocks, or `none` if no packet was
    /// measured.
    pub source: ClockSource,
    /// The number of packets measured by each clock.
    pub by_source: BTreeMap<ClockSource, u64>,
    /// The number of packets that were not measured, because their two stamps are from different clocks.
    pub unmeasured: u64,
}

/// The counters of a port, over all workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PortReport {
    /// The name of the port in the config.
    pub name: String,
    /// The name of the device.
    pub device: String,
    /// Whether the link is up. Missing if the device does not report the state of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_up: Option<bool>,
    /// The packet totals.
    pub packets: Totals,
    /// The byte totals, without preamble and frame check sequence.
    pub bytes: Totals,
    /// Receive requests that completed with an error.
    pub rx_errors: u64,
    /// Packets dropped because the send queue was full.
    pub tx_full: u64,
    /// Packets dropped because sending failed.
    pub tx_errors: u64,
    /// Packets dropped because they exceed the maximum message size of the connection.
    pub tx_too_long: u64,
    /// Packets dropped because no peer was connected.
    pub tx_not_connected: u64,
    /// Completions that match no request of the lanes.
    pub stale: u64,
    /// How often a queue pair was reset after an error, or because its peer restarted.
    pub recoveries: u64,
    /// How often a lane created all its queues again, because a completion queue or the reset of a queue pair failed.
    pub rebuilds: u64,
    /// Requests whose completion did not arrive in time.
    pub abandoned: u64,
    /// The first error status of a completion, with its likely cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Packets lost before the program received them: the sum of the device counters in [`PortReport::LOSSES`]. The
    /// ledger does not include these packets.
    #[serde(default)]
    pub rx_lost: u64,
    /// Packets that the ledger counts as sent but that are missing from the capture file, because a write to the file
    /// failed.
    #[serde(default)]
    pub tx_lost: u64,
    /// The counters of the device.
    pub device_counters: BTreeMap<String, u64>,
    /// The number of completions stamped by each clock.
    pub stamps: BTreeMap<ClockSource, u64>,
    /// Implausible device stamps, which were replaced by stamps of the system clock.
    pub stamps_implausible: u64,
    /// The clocks of the device, if they differ from the system clock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ClockReport>,
}

impl PortReport {
    /// The device counters of packets that reached the device but were never received. Either no receive request was
    /// posted, or the packets were not fetched in time, or a GSO packet was longer than the link accepts.
    pub const LOSSES: [&str; 5] =
        ["rx_out_of_buffer", "rx_missed", "rx_gso_too_long", "kernel_rx_dropped", "kernel_rx_ring_full"];
}

/// The counters of a stage, over all workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct StageReport {
    /// The name of the stage in the config.
    pub name: String,
    /// The kind of the stage.
    #[serde(rename = "use")]
    pub kind: String,
    /// Packets that entered the stage.
    pub packets: u64,
    /// Batches that entered the stage.
    pub batches: u64,
    /// Packets that left by each output.
    pub outputs: BTreeMap<String, u64>,
    /// Packets that the stage dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets that the stage consumed.
    pub consumed: u64,
    /// Copies that the stage made.
    pub copied: u64,
    /// Packets that the stage generated, such as fragments of other packets.
    pub generated: u64,
    /// Requested copies that were not made, because no packet buffer was free or the contract of the stage does not
    /// declare copies.
    pub copies_missed: u64,
    /// Panics of the stage after which the run continued.
    #[serde(default)]
    pub panics: u64,
    /// The number of workers on which the stage is quarantined after a panic.
    #[serde(default)]
    pub quarantined: u64,
    /// The counters that the stage defines.
    pub counters: BTreeMap<String, u64>,
    /// The kind of each value in `counters` that is not [`CounterKind::Total`].
    #[serde(skip)]
    pub counter_kinds: BTreeMap<String, CounterKind>,
}

/// The kind of a value in [`StageReport::counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterKind {
    /// A counter that only increases.
    #[default]
    Total,
    /// A value that can also decrease, such as the size of a table.
    Gauge,
    /// A counter of an entry of a table. The config chose the name of the entry.
    NamedEntry,
    /// A counter of an entry of a table. The name is the text of the entry.
    Entry,
}

impl StageReport {
    /// Returns the kind of a value in [`StageReport::counters`].
    pub fn counter_kind(&self, name: &str) -> CounterKind {
        self.counter_kinds.get(name).copied().unwrap_or_default()
    }
}

/// The sleeps of a worker that receives nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SleepReport {
    /// The number of sleeps.
    pub sleeps: u64,
    /// The time that the worker slept, in seconds.
    pub slept_s: f64,
    /// The number of measured wake-ups. With `idle = "adaptive"`, one in 65 sleeps is measured.
    pub wakeups: u64,
    /// The sum of the measured times, in seconds: from the end of the requested sleep until the worker ran.
    pub wakeup_s: f64,
    /// The longest measured time in nanoseconds.
    pub wakeup_max_ns: u64,
}

/// The counters of a worker.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WorkerReport {
    /// The core that the worker was pinned to.
    pub core: u32,
    /// Loops executed.
    pub loops: u64,
    /// Loops in which no packet was received.
    pub idle_loops: u64,
    /// The sleeps of the worker. Missing if the worker never slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<SleepReport>,
    /// The byte totals, without preamble and frame check sequence.
    pub bytes: Totals,
    /// The ledger of the worker.
    pub ledger: Ledger,
    /// The number of slots (packet buffers) in the pool.
    pub slots: u64,
    /// Slots that were not returned by the end of the run.
    pub slots_missing: u64,
    /// The page size and kind of the memory.
    pub pages: String,
    /// The granted properties of the completion queues, by port.
    pub granted: BTreeMap<String, String>,
    /// The error that stopped the worker early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The sums of the counters of the workers that changes of the running pipeline have removed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RemovedWorkersReport {
    /// The number of removed workers. A worker that is added again and removed again counts twice.
    pub workers: u64,
    /// Loops executed.
    pub loops: u64,
    /// Loops in which no packet was received.
    pub idle_loops: u64,
    /// The sleeps of the workers. Missing if these workers never slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<SleepReport>,
    /// The byte totals, without preamble and frame check sequence.
    pub bytes: Totals,
    /// The ledger of the workers.
    pub ledger: Ledger,
}

/// The report of a whole run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The duration in seconds, from the start of the worker loops to their end.
    pub duration_s: f64,
    /// The packet totals.
    pub packets: Totals,
    /// The byte totals.
    pub bytes: Totals,
    /// Million packets sent per second.
    pub rate_mpps: f64,
    /// Million packets received per second.
    pub rate_rx_mpps: f64,
    /// The ledger over all workers.
    pub ledger: Ledger,
    /// The latency of the packets that were sent.
    pub latency_ns: LatencyReport,
    /// The time per packet in each part of the loop, and in total. Only about one loop in a thousand is measured.
    pub costs: Vec<CostReport>,
    /// The counters of each port.
    pub ports: Vec<PortReport>,
    /// The counters of the ports that changes of the running pipeline have removed. The totals of the report include
    /// these counters. If a change adds a port with the same name again, the counters continue in `ports`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_ports: Vec<PortReport>,
    /// The counters of each stage, in the order of the pipeline.
    pub stages: Vec<StageReport>,
    /// The counters of each worker.
    pub workers: Vec<WorkerReport>,
    /// The counters of the workers that changes of the running pipeline have removed. The totals of the report, of its
    /// ports and of its stages include these counters. Missing if no worker was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_workers: Option<RemovedWorkersReport>,
    /// The reasons why the run failed, such as damaged input, output that could not be written, or a worker that
    /// stopped.
    pub errors: Vec<String>,
    /// Log messages that were lost because standard error was too slow.
    pub logs_lost: u64,
}

impl Report {
    /// Returns whether nothing failed and the ledger balances.
    pub fn is_good(&self) -> bool {
        self.errors.is_empty()
            && self.ledger.unaccounted == 0
            && self.ledger.held == 0
            && self.workers.iter().all(|worker| worker.slots_missing == 0 && worker.ledger.unaccounted == 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.3} s · received {} packets, {} bytes · sent {} packets, {} bytes · {}",
            self.duration_s,
            self.packets.rx,
            self.bytes.rx,
            self.packets.tx,
            self.bytes.tx,
            PacketsPerSecond(self.rate_mpps * 1e6)
        )?;
        // The width of the longest name plus two spaces.
        let width = |names: &mut dyn Iterator<Item = &String>| names.map(|name| name.len() + 2).max().unwrap_or(0);
        let ports = || self.ports.iter().chain(&self.removed_ports);
        let names = width(&mut ports().map(|port| &port.name)).max(16);
        writeln!(f, "\n{:<names$}{:>14}{:>14}  device", "port", "received", "sent")?;
        for (at, port) in ports().enumerate() {
            let removed = if at < self.ports.len() { "" } else { " (removed)" };
            let (name, rx, tx, device) = (&port.name, port.packets.rx, port.packets.tx, &port.device);
            writeln!(f, "{name:<names$}{rx:>14}{tx:>14}  {device}{removed}")?;
            let trouble = [
                ("failed receives", port.rx_errors),
                ("send queue full", port.tx_full),
                ("failed sends", port.tx_errors),
                ("too long to send", port.tx_too_long),
                ("not connected", port.tx_not_connected),
                ("stale completions", port.stale),
                ("recoveries", port.recoveries),
                ("queue rebuilds", port.rebuilds),
                ("abandoned requests", port.abandoned),
                ("implausible stamps", port.stamps_implausible),
            ];
            for (what, count) in trouble.into_iter().filter(|(_, count)| *count > 0) {
                writeln!(f, "  {what}: {count}")?;
            }
            let own = port
                .device_counters
                .iter()
                .filter(|(name, _)| !name.ends_with("_packets") && !name.ends_with("_bytes"));
            for (name, count) in own {
                writeln!(f, "  device {name}: {count}")?;
            }
            if let Some(error) = &port.first_error {
                writeln!(f, "  first error: {error}")?;
            }
            for clock in &port.clocks {
                writeln!(f, "  clock {clock}")?;
            }
        }
        let names = width(&mut self.stages.iter().map(|stage| &stage.name)).max(16);
        let kinds = width(&mut self.stages.iter().map(|stage| &stage.kind)).max(12);
        writeln!(f, "\n{:<names$}{:<kinds$}{:>12}  outputs and drops", "stage", "use", "packets")?;
        for stage in &self.stages {
            let counts_as_text = |counts: &BTreeMap<String, u64>, mark: &str| -> Vec<String> {
                counts.iter().map(|(name, packets)| format!("{mark}{name} {packets}")).collect()
            };
            let mut results = counts_as_text(&stage.outputs, "");
            results.extend(counts_as_text(&stage.drops, "drop:"));
            for (name, packets) in [
                ("consumed", stage.consumed),
                ("copied", stage.copied),
                ("generated", stage.generated),
                ("copies missed", stage.copies_missed),
                ("panics", stage.panics),
            ] {
                if packets > 0 {
                    results.push(format!("{name} {packets}"));
                }
            }
            writeln!(f, "{:<names$}{:<kinds$}{:>12}  {}", stage.name, stage.kind, stage.packets, results.join(", "))?;
            for (name, value) in &stage.counters {
                writeln!(f, "{:<1$}  {name} {value}", "", names + kinds + 12)?;
            }
        }
        if !self.costs.is_empty() {
            writeln!(f)?;
            costs(f, &self.costs, names)?;
        }
        latency(f, &self.latency_ns)?;
        for (at, worker) in self.workers.iter().enumerate() {
            writeln!(
                f,
                "worker {at} on core {}: {} loops, {} idle; {} slots in {}",
                worker.core, worker.loops, worker.idle_loops, worker.slots, worker.pages
            )?;
            if let Some(SleepReport { sleeps, slept_s, wakeups, wakeup_s, wakeup_max_ns }) = worker.sleeps {
                write!(f, "  {sleeps} sleeps, {slept_s:.3} s in total")?;
                if wakeups > 0 {
                    let [mean, max] = [wakeup_s * 1e9 / wakeups as f64, wakeup_max_ns as f64].map(Duration);
                    write!(f, "; wake-up: mean {mean}, max {max}")?;
                }
                writeln!(f)?;
            }
        }
        if let Some(removed) = &self.removed_workers {
            let RemovedWorkersReport { workers, loops, idle_loops, ledger, .. } = removed;
            let (rx, tx) = (ledger.rx, ledger.tx);
            let noun = if *workers == 1 { "worker" } else { "workers" };
            writeln!(f, "removed {noun}: {workers}; {loops} loops, {idle_loops} idle; received {rx}, sent {tx}")?;
        }
        write!(f, "\n{}", self.ledger)?;
        lost(f, ports())?;
        if self.logs_lost > 0 {
            writeln!(f, "log messages lost because standard error was too slow: {}", self.logs_lost)?;
        }
        for error in &self.errors {
            writeln!(f, "error: {error}")?;
        }
        Ok(())
    }
}

/// Writes a table of costs. `names` is the width of the first column.
pub(super) fn costs(f: &mut fmt::Formatter<'_>, costs: &[CostReport], names: usize) -> fmt::Result {
    writeln!(f, "{:<names$} {:>11} {:>11} {:>7} {:>9}", "time per packet", "ticks", "ns", "burst", "bursts")?;
    for CostReport { part, ticks, ns, burst, bursts, nearly_idle, few_bursts, .. } in costs {
        let mark = match (nearly_idle, few_bursts) {
            (false, false) => "",
            (true, false) => " *",
            (false, true) => " ~",
            (true, true) => " *~",
        };
        writeln!(f, "{part:<names$} {ticks:>11.1} {ns:>11.2} {burst:>7.1} {bursts:>9}{mark}")?;
    }
    if costs.iter().any(|cost| cost.nearly_idle) {
        let few = CostReport::NEARLY_IDLE;
        writeln!(
            f,
            "* fewer than {few} packets per burst: with cold caches, the time per packet is longer than under load"
        )?;
    }
    if costs.iter().any(|cost| cost.few_bursts) {
        let few = CostReport::FEW_BURSTS;
        writeln!(f, "~ fewer than {few} timed bursts: one interrupt can change the average")?;
    }
    Ok(())
}

/// Writes the packets that are lost outside the ledger: before they were received, or after they were sent.
pub(super) fn lost<'r>(f: &mut fmt::Formatter<'_>, ports: impl Iterator<Item = &'r PortReport> + Clone) -> fmt::Result {
    for PortReport { name, rx_lost, .. } in ports.clone().filter(|port| port.rx_lost > 0) {
        writeln!(f, "  lost    {rx_lost:>12}  before the pipeline, at port {name}")?;
    }
    for PortReport { name, tx_lost, .. } in ports.filter(|port| port.tx_lost > 0) {
        writeln!(f, "  lost    {tx_lost:>12}  sent, but missing from the file of port {name}")?;
    }
    Ok(())
}

/// Writes the percentiles if any packet was measured, and the number of unmeasured packets if there are any.
pub(super) fn latency(f: &mut fmt::Formatter<'_>, latency: &LatencyReport) -> fmt::Result {
    if latency.count > 0 {
        let [p50, p90, p99, p999, max] =
            [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(|ns| Duration(ns as f64));
        let source = latency.source;
        writeln!(f, "\nlatency (clock: {source}): p50 {p50} · p90 {p90} · p99 {p99} · p99.9 {p999} · max {max}")?;
        if latency.by_source.len() > 1 {
            let counts: Vec<String> =
                latency.by_source.iter().map(|(source, packets)| format!("{source} {packets}")).collect();
            writeln!(f, "  packets by clock: {}", counts.join(" · "))?;
        }
    }
    if latency.unmeasured > 0 {
        writeln!(
            f,
            "not measured: {} packets with receive and send timestamps of different clocks",
            latency.unmeasured
        )?;
    }
    Ok(())
}
