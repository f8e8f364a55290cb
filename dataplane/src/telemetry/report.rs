//! The report of a run: one object, for people and for machines.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::{ClockReport, ClockSource};
use crate::telemetry::{CostReport, Ledger};

/// Received and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Received.
    pub rx: u64,
    /// Sent.
    pub tx: u64,
}

/// Percentiles of the time from receive stamp to send completion stamp, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// How many packets were measured.
    pub count: u64,
    /// Half took no longer.
    pub p50: u64,
    /// Nine in ten took no longer.
    pub p90: u64,
    /// 99 in 100 took no longer.
    pub p99: u64,
    /// 999 in 1,000 took no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// The clock of both stamps; `mixed` where it was not the same for all packets.
    pub source: ClockSource,
    /// How many packets were measured by each clock.
    pub by_source: BTreeMap<ClockSource, u64>,
    /// How many were not, because their two stamps are of different clocks.
    pub unmeasured: u64,
}

/// A port, over all workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortReport {
    /// Its name in the config.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Packets.
    pub packets: Totals,
    /// Bytes, without preamble and checksum of the frame.
    pub bytes: Totals,
    /// Receives that completed with an error.
    pub rx_errors: u64,
    /// Dropped because the send queue was full.
    pub tx_full: u64,
    /// Dropped because sending failed.
    pub tx_errors: u64,
    /// Dropped because they are longer than a message of the connection may be.
    pub tx_too_long: u64,
    /// Dropped because there was no connection to a peer.
    pub tx_not_connected: u64,
    /// Completions of no request of its lanes.
    pub stale: u64,
    /// How often a queue pair was reset after an error, or because its peer began anew.
    pub recoveries: u64,
    /// How often its queues were made anew because a completion queue was lost.
    pub rebuilds: u64,
    /// Requests that a queue pair did not give back in time.
    pub abandoned: u64,
    /// The first error status of a completion, with its likely cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Lost before they were received, and so in no ledger: [`PortReport::LOSSES`] of the device together.
    #[serde(default)]
    pub rx_lost: u64,
    /// Lost after they were sent, which the ledger has as such: they are not in the capture file, which has failed.
    #[serde(default)]
    pub tx_lost: u64,
    /// The device's own counters.
    pub device_counters: BTreeMap<String, u64>,
    /// How many completions were stamped by each clock.
    pub stamps: BTreeMap<ClockSource, u64>,
    /// Stamps of the device that could not be right, and were replaced by the host's.
    pub stamps_implausible: u64,
    /// The clocks of the device, where they are not the host's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ClockReport>,
}

impl PortReport {
    /// The counters of a device that are of packets that came to it and were never received: nobody had posted a receive,
    /// or fetched what was there, in time.
    pub const LOSSES: [&str; 4] = ["rx_out_of_buffer", "rx_missed", "kernel_rx_dropped", "kernel_rx_ring_full"];
}

/// A stage, over all workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StageReport {
    /// Its name in the config.
    pub name: String,
    /// Its kind.
    #[serde(rename = "use")]
    pub kind: String,
    /// Packets that came in.
    pub packets: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// Packets that left by each output.
    pub outputs: BTreeMap<String, u64>,
    /// Packets that it dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Packets that ended here.
    pub consumed: u64,
    /// Copies made.
    pub copied: u64,
    /// Packets made of others, such as fragments.
    pub made: u64,
    /// Copies not made, for want of a free slot.
    pub copies_missed: u64,
    /// Its own counters.
    pub counters: BTreeMap<String, u64>,
}

/// A worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The core it was pinned to.
    pub core: u32,
    /// Times round the loop.
    pub loops: u64,
    /// Times round the loop with nothing received.
    pub idle_loops: u64,
    /// Bytes, without preamble and checksum of the frame.
    pub bytes: Totals,
    /// Its ledger.
    pub ledger: Ledger,
    /// Slots of its pool.
    pub slots: u64,
    /// Slots that had not come back at the end.
    pub slots_missing: u64,
    /// What pages its memory has.
    pub pages: String,
    /// What its completion queues were granted, by port.
    pub granted: BTreeMap<String, String>,
    /// Why it stopped before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Seconds from the start of the workers' loops to their end.
    pub duration_s: f64,
    /// Packets.
    pub packets: Totals,
    /// Bytes.
    pub bytes: Totals,
    /// Million packets sent a second.
    pub rate_mpps: f64,
    /// Million packets received a second.
    pub rate_rx_mpps: f64,
    /// Where all packets went.
    pub ledger: Ledger,
    /// How long those that were sent took.
    pub latency_ns: LatencyReport,
    /// Where the time of a packet went, part by part of the loop, and in all: by bursts that were timed, one loop in about
    /// a thousand.
    pub costs: Vec<CostReport>,
    /// By port.
    pub ports: Vec<PortReport>,
    /// By stage, in the order of the pipeline.
    pub stages: Vec<StageReport>,
    /// By worker.
    pub workers: Vec<WorkerReport>,
    /// Why the run is not a good one: damaged input, output that could not be written, a worker that stopped.
    pub errors: Vec<String>,
}

impl Report {
    /// Whether nothing failed and the ledger balances.
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
            "{:.3} s · received {} packets, {} bytes · sent {} packets, {} bytes · {:.3} Mpps",
            self.duration_s, self.packets.rx, self.bytes.rx, self.packets.tx, self.bytes.tx, self.rate_mpps
        )?;
        // As wide as the longest name, and two spaces.
        let width = |names: &mut dyn Iterator<Item = &String>| names.map(|name| name.len() + 2).max().unwrap_or(0);
        let names = width(&mut self.ports.iter().map(|port| &port.name)).max(16);
        writeln!(f, "\n{:<names$}{:>14}{:>14}  device", "port", "received", "sent")?;
        for port in &self.ports {
            writeln!(f, "{:<names$}{:>14}{:>14}  {}", port.name, port.packets.rx, port.packets.tx, port.device)?;
            let trouble = [
                ("receives failed", port.rx_errors),
                ("send queue full", port.tx_full),
                ("sends failed", port.tx_errors),
                ("too long to send", port.tx_too_long),
                ("not connected", port.tx_not_connected),
                ("stale completions", port.stale),
                ("recoveries", port.recoveries),
                ("queues made anew", port.rebuilds),
                ("requests abandoned", port.abandoned),
                ("stamps not believed", port.stamps_implausible),
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
        writeln!(f, "\n{:<names$}{:<kinds$}{:>12}  where to", "stage", "use", "packets")?;
        for stage in &self.stages {
            let words = |counts: &BTreeMap<String, u64>, mark: &str| -> Vec<String> {
                counts.iter().map(|(name, packets)| format!("{mark}{name} {packets}")).collect()
            };
            let mut ways = words(&stage.outputs, "");
            ways.extend(words(&stage.drops, "drop:"));
            for (name, packets) in [
                ("consumed", stage.consumed),
                ("copied", stage.copied),
                ("made", stage.made),
                ("copies missed", stage.copies_missed),
            ] {
                if packets > 0 {
                    ways.push(format!("{name} {packets}"));
                }
            }
            writeln!(f, "{:<names$}{:<kinds$}{:>12}  {}", stage.name, stage.kind, stage.packets, ways.join(", "))?;
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
        }
        write!(f, "\n{}", self.ledger)?;
        lost(f, &self.ports)?;
        for error in &self.errors {
            writeln!(f, "error: {error}")?;
        }
        Ok(())
    }
}

/// A table of costs; the first column is so wide.
pub(super) fn costs(f: &mut fmt::Formatter<'_>, costs: &[CostReport], names: usize) -> fmt::Result {
    writeln!(f, "{:<names$} {:>11} {:>11} {:>7} {:>9}", "a packet's time", "ticks", "ns", "burst", "bursts")?;
    for CostReport { part, ticks, ns, burst, bursts } in costs {
        writeln!(f, "{part:<names$} {ticks:>11.1} {ns:>11.2} {burst:>7.1} {bursts:>9}")?;
    }
    Ok(())
}

/// Beside the ledger: what was lost before it begins, and behind its end.
pub(super) fn lost(f: &mut fmt::Formatter<'_>, ports: &[PortReport]) -> fmt::Result {
    for PortReport { name, rx_lost, .. } in ports.iter().filter(|port| port.rx_lost > 0) {
        writeln!(f, "  lost    {rx_lost:>12}  before the pipeline, at port {name}")?;
    }
    for PortReport { name, tx_lost, .. } in ports.iter().filter(|port| port.tx_lost > 0) {
        writeln!(f, "  lost    {tx_lost:>12}  of those that were sent: not in the file of port {name}")?;
    }
    Ok(())
}

/// Nanoseconds in the unit that suits them, with three digits that matter.
struct Readable(u64);

impl fmt::Display for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Where it would be rounded to a thousand it is one of the next unit.
        let (unit, name) = match self.0 {
            0..1_000 => return write!(f, "{} ns", self.0),
            1_000..999_500 => (1e3, "µs"),
            999_500..999_500_000 => (1e6, "ms"),
            _ => (1e9, "s"),
        };
        let value = self.0 as f64 / unit;
        let digits = match value {
            value if value < 9.995 => 2,
            value if value < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {name}")
    }
}

/// A line of percentiles, if there are any.
pub(super) fn latency(f: &mut fmt::Formatter<'_>, latency: &LatencyReport) -> fmt::Result {
    if latency.count > 0 {
        let [p50, p90, p99, p999, max] =
            [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(Readable);
        let source = latency.source;
        writeln!(f, "\nlatency (clock: {source}): p50 {p50} · p90 {p90} · p99 {p99} · p99.9 {p999} · max {max}")?;
        if latency.by_source.len() > 1 {
            let counts: Vec<String> =
                latency.by_source.iter().map(|(source, packets)| format!("{source} {packets}")).collect();
            writeln!(f, "  packets by clock: {}", counts.join(" · "))?;
        }
    }
    if latency.unmeasured > 0 {
        writeln!(f, "not timed, received by one clock and sent by another: {} packets", latency.unmeasured)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_unit_that_suits_them() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 µs"),
            (9_996, "10.0 µs"),
            (16_105_471, "16.1 ms"),
            (999_400_000, "999 ms"),
            (61_000_000_000, "61.0 s"),
        ] {
            assert_eq!(Readable(ns).to_string(), text);
        }
    }
}
