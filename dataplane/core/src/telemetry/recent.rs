//! The activity of a running program between two requests for statistics.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::telemetry::{BitsPerSecond, CostReport, Latency, LatencyReport, PacketsPerSecond, Report, Totals};

/// Packet and bit rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Million packets sent per second.
    pub rate_mpps: f64,
    /// Million packets received per second.
    pub rate_rx_mpps: f64,
    /// Billion bits of frames sent per second, without preamble and frame check sequence.
    pub rate_gbps: f64,
    /// Billion bits of frames received per second, without preamble and frame check sequence.
    pub rate_rx_gbps: f64,
}

/// The rates of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortRates {
    /// The name of the port in the config.
    pub name: String,
    /// The rates of the port.
    #[serde(flatten)]
    pub rates: Rates,
    /// Packets lost before they were received.
    #[serde(default)]
    pub rx_lost: u64,
}

/// The rates of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerRates {
    /// The core that the worker is pinned to.
    pub core: u32,
    /// The rates of the worker.
    #[serde(flatten)]
    pub rates: Rates,
    /// Loops executed.
    pub loops: u64,
    /// Loops in which no packet was received.
    pub idle_loops: u64,
}

/// The activity since an earlier request for statistics, or since the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recent {
    /// The duration in seconds.
    pub duration_s: f64,
    /// The total rates.
    #[serde(flatten)]
    pub rates: Rates,
    /// The rates of each port.
    pub ports: Vec<PortRates>,
    /// The rates of each worker.
    pub workers: Vec<WorkerRates>,
    /// Drops by `stage.reason`.
    pub drops: BTreeMap<String, u64>,
    /// The latency of the packets that were sent.
    pub latency_ns: LatencyReport,
    /// The time per packet in each part of the loop.
    pub costs: Vec<CostReport>,
}

impl Recent {
    /// Computes the difference between two reports of one run. Without an earlier report, the result covers the time
    /// since the start of the run. The latency and the costs stay empty, because they cannot be computed from two
    /// reports.
    pub fn between(earlier: Option<&Report>, now: &Report) -> Self {
        let seconds = now.duration_s - earlier.map_or(0.0, |earlier| earlier.duration_s);
        let rates = |was: Option<(Totals, Totals)>, (packets, bytes): (Totals, Totals)| {
            let (packets_then, bytes_then) = was.unwrap_or_default();
            let rate = |was: u64, now: u64, unit: f64| match seconds {
                seconds if seconds > 0.0 => now.saturating_sub(was) as f64 / seconds / unit,
                _ => 0.0,
            };
            Rates {
                rate_mpps: rate(packets_then.tx, packets.tx, 1e6),
                rate_rx_mpps: rate(packets_then.rx, packets.rx, 1e6),
                rate_gbps: rate(bytes_then.tx, bytes.tx, 1e9 / 8.0),
                rate_rx_gbps: rate(bytes_then.rx, bytes.rx, 1e9 / 8.0),
            }
        };
        let ports = now.ports.iter().map(|port| {
            // A change of the pipeline may have added or removed ports, or changed their order, so compare the ports by
            // name.
            let mut known = earlier.iter().flat_map(|earlier| earlier.ports.iter().chain(&earlier.removed_ports));
            let was = known.find(|known| known.name == port.name);
            PortRates {
                name: port.name.clone(),
                rates: rates(was.map(|was| (was.packets, was.bytes)), (port.packets, port.bytes)),
                rx_lost: port.rx_lost.saturating_sub(was.map_or(0, |was| was.rx_lost)),
            }
        });
        let workers = now.workers.iter().enumerate().map(|(at, worker)| {
            let was = earlier.and_then(|earlier| earlier.workers.get(at));
            let packets = |ledger: &super::Ledger| Totals { rx: ledger.rx, tx: ledger.tx };
            let (loops, idle) = was.map_or((0, 0), |was| (was.loops, was.idle_loops));
            WorkerRates {
                core: worker.core,
                rates: rates(was.map(|was| (packets(&was.ledger), was.bytes)), (packets(&worker.ledger), worker.bytes)),
                loops: worker.loops.saturating_sub(loops),
                idle_loops: worker.idle_loops.saturating_sub(idle),
            }
        });
        let drops = now.ledger.drops.iter().filter_map(|(name, &packets)| {
            let was = earlier.and_then(|earlier| earlier.ledger.drops.get(name)).copied().unwrap_or(0);
            (packets > was).then(|| (name.clone(), packets - was))
        });
        Self {
            duration_s: seconds,
            rates: rates(earlier.map(|earlier| (earlier.packets, earlier.bytes)), (now.packets, now.bytes)),
            ports: ports.collect(),
            workers: workers.collect(),
            drops: drops.collect(),
            latency_ns: Latency::new().report(),
            costs: Vec::new(),
        }
    }
}

/// The statistics of a running program.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveStatistics {
    /// The process id.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// The path of the config.
    pub config: String,
    /// The report since the start.
    #[serde(flatten)]
    pub report: Report,
    /// The activity since the previous request on the same connection, or since the start.
    pub recent: Recent,
}

impl fmt::Display for LiveStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, version, config, report, recent } = self;
        writeln!(f, "{config} · process {pid}, version {version}, running for {:.3} s", report.duration_s)?;
        let first = format!("last {:.3} s", recent.duration_s);
        let ports: Vec<String> = recent.ports.iter().map(|port| format!("port {}", port.name)).collect();
        let drops = recent.drops.keys().map(String::len);
        let names = recent.costs.iter().map(|cost| cost.part.len()).chain(ports.iter().map(String::len)).chain(drops);
        let names = names.max().unwrap_or(0).max(22) + 2;
        writeln!(f, "\n{first:<names$}{:>12}{:>12}{:>12}{:>12}", "packets in", "bits in", "packets out", "bits out")?;
        let rates = |f: &mut fmt::Formatter<'_>, name: &str, rates: &Rates| {
            let Rates { rate_mpps, rate_rx_mpps, rate_gbps, rate_rx_gbps } = rates;
            let [rx, tx] = [rate_rx_mpps, rate_mpps].map(|rate| PacketsPerSecond(rate * 1e6));
            let [rx_bits, tx_bits] = [rate_rx_gbps, rate_gbps].map(|rate| BitsPerSecond(rate * 1e9));
            write!(f, "{name:<names$}{rx:>12}{rx_bits:>12}{tx:>12}{tx_bits:>12}")
        };
        for (name, port) in ports.iter().zip(&recent.ports) {
            rates(f, name, &port.rates)?;
            match port.rx_lost {
                0 => writeln!(f)?,
                lost => writeln!(f, "  {lost} lost before the pipeline")?,
            }
        }
        for (number, worker) in recent.workers.iter().enumerate() {
            rates(f, &format!("worker {number} on core {}", worker.core), &worker.rates)?;
            let idle = worker.idle_loops as f64 / worker.loops.max(1) as f64 * 100.0;
            writeln!(f, "  {} loops, {idle:.1} % idle", worker.loops)?;
        }
        rates(f, "all", &recent.rates)?;
        writeln!(f)?;
        if !recent.costs.is_empty() {
            writeln!(f)?;
            super::report::costs(f, &recent.costs, names)?;
        }
        super::report::latency(f, &recent.latency_ns)?;
        if !recent.drops.is_empty() {
            writeln!(f, "\n{:<names$}{:>11}", "dropped", "packets")?;
        }
        for (name, packets) in &recent.drops {
            writeln!(f, "{name:<names$}{packets:>11}")?;
        }
        write!(f, "\nsince start: {}", report.ledger)?;
        super::report::lost(f, report.ports.iter().chain(&report.removed_ports))?;
        for error in &report.errors {
            writeln!(f, "error: {error}")?;
        }
        Ok(())
    }
}
