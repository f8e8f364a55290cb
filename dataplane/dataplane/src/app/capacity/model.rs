//! Predicts cores, memory and the bottleneck from measured costs.
//!
//! A worker passes each burst through all stages before it receives the next burst, and shares nothing with other
//! workers on the packet path. The model is therefore linear: the packets per second of a worker are the inverse of the
//! time per packet, and N workers process N times as many packets as one worker.

use serde::Serialize;

use super::rate::Rate;
use dataplane_core::telemetry::CostReport;

/// The bytes of a frame on an Ethernet line that the frame size does not include: preamble, start delimiter, frame check
/// sequence and gap.
const LINE_OVERHEAD: f64 = 24.0;

/// One measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) core: u32,
    pub(super) seconds: f64,
    /// The processor time of the worker per received packet, if the kernel reports the time.
    pub(super) processor_ns: Option<f64>,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) sent: u64,
    pub(super) dropped: u64,
    /// The most frequent reason of the drops.
    pub(super) main_drop: Option<String>,
    pub(super) costs: Vec<CostReport>,
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) rounds: Vec<Round>,
}

/// The memory of a config.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// The number of packet buffers of a worker.
    pub(super) buffers: u64,
    /// The size of a buffer in bytes.
    pub(super) buffer_bytes: u64,
    /// The size of the tables of all stages with one worker, in bytes.
    pub(super) first_worker_tables: u64,
    /// The size of the tables that each further worker adds, in bytes.
    pub(super) further_worker_tables: u64,
    /// The number of receive buffers that a worker posts to all its ports.
    pub(super) receive_buffers: u64,
}

/// The properties of the machine and of the config that are not measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    /// The cores that the process may use.
    pub(super) cores: u64,
    /// The sum of the speeds of the ports that receive packets, in bits per second. `None` if a speed is unknown.
    pub(super) line: Option<u64>,
    pub(super) memory: Memory,
}

/// One part of the worker loop, with its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Part {
    pub(super) part: String,
    pub(super) is_stage: bool,
    /// The time in this part per received packet. A packet that does not enter the part counts as 0.
    pub(super) ns_per_packet: f64,
    /// The share of the part in the time of the whole loop.
    pub(super) share_percent: f64,
}

/// The bottleneck: what limits the rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Bottleneck {
    /// The ports are slower than the requested rate.
    Ports { line_bps: u64 },
    /// This process may use fewer cores than the rate needs.
    Cores { needed: u64, available: u64 },
    /// The cores are sufficient, and no port is known to be too slow. This part takes the largest share of the time of each
    /// core.
    Part { part: String, share_percent: f64 },
}

/// The prediction. If a value has a unit, the name of the field ends with the unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Prediction {
    /// The core on which the config was measured.
    pub(super) measured_core: u32,
    /// The sum of the times of all measurements.
    pub(super) measured_s: f64,
    /// The number of measurements.
    pub(super) rounds: usize,
    /// The time per received packet: the median of the measurements.
    pub(super) ns_per_packet: f64,
    pub(super) ns_per_packet_min: f64,
    pub(super) ns_per_packet_max: f64,
    /// Whether so few loops were measured that the time is uncertain.
    pub(super) few_bursts: bool,
    /// The mean size of the received frames, without frame check sequence.
    pub(super) frame_bytes: f64,
    pub(super) sent_percent: f64,
    pub(super) dropped_percent: f64,
    /// The most frequent reason of drops.
    pub(super) main_drop: Option<String>,
    /// The parts of the worker loop. The slowest part is first.
    pub(super) parts: Vec<Part>,
    /// The packets per second of one core.
    pub(super) core_pps: f64,
    /// The requested packets per second, over all ports.
    pub(super) target_pps: f64,
    /// The requested bits per second on the line, over all ports.
    pub(super) target_line_bps: f64,
    /// The cores that the rate needs, one for each worker.
    pub(super) cores: u64,
    pub(super) cores_available: u64,
    /// The load of the cores at the requested rate.
    pub(super) load_percent: f64,
    /// The size of the packet buffers of all workers.
    pub(super) buffers_bytes: u64,
    /// The size of the tables of all stages and workers.
    pub(super) tables_bytes: u64,
    /// How long all workers can pause at the requested rate before the receive queues overflow.
    pub(super) absorbed_pause_ns: f64,
    pub(super) bottleneck: Bottleneck,
}

impl Measured {
    /// Returns the measurement with the median time per packet.
    fn median(&self) -> Round {
        let mut rounds: Vec<&Round> = self.rounds.iter().collect();
        rounds.sort_by(|one, other| one.ns().total_cmp(&other.ns()));
        rounds.get(rounds.len() / 2).map_or_else(Round::default, |round| (*round).clone())
    }
}

impl Round {
    fn total(&self) -> Option<&CostReport> {
        self.costs.iter().find(|cost| !cost.is_stage && cost.part == "all")
    }

    /// Returns the time per received packet. The clock reads of the measured loops keep the processor from overlapping
    /// the parts of a loop, so the sum of the costs is too high for fast pipelines. The processor time has no such error.
    fn ns(&self) -> f64 {
        self.processor_ns.unwrap_or_else(|| self.total().map_or(0.0, |total| total.ns))
    }

    fn parts(&self) -> Vec<Part> {
        let Some(total) = self.total() else { return Vec::new() };
        // The mean burst multiplied by the number of bursts is the number of packets in the measured loops.
        let received = (total.burst * total.bursts as f64).max(1.0);
        let others = self.costs.iter().filter(|cost| cost.is_stage || cost.part != "all");
        // The measured costs give only the shares of the parts. The total is the time per packet from `ns`.
        let part = |cost: &CostReport| {
            let ns = cost.ns * cost.burst * cost.bursts as f64 / received;
            let share = ns / total.ns.max(f64::MIN_POSITIVE);
            let (part, is_stage) = (cost.part.clone(), cost.is_stage);
            Part { part, is_stage, ns_per_packet: share * self.ns(), share_percent: share * 100.0 }
        };
        let mut parts: Vec<Part> = others.map(part).collect();
        parts.sort_by(|one, other| other.ns_per_packet.total_cmp(&one.ns_per_packet));
        parts
    }
}

impl Prediction {
    pub(super) fn new(rate: Rate, measured: &Measured, machine: &Machine) -> Self {
        let round = measured.median();
        let ns = round.ns().max(f64::MIN_POSITIVE);
        let frame_bytes = round.received_bytes as f64 / round.received.max(1) as f64;
        let line_bits = (frame_bytes + LINE_OVERHEAD) * 8.0;
        let target_pps = match rate {
            Rate::Packets(packets) => packets as f64,
            Rate::Bits(bits) => bits as f64 / line_bits,
        };
        let needed = target_pps * ns / 1e9;
        let cores = (needed.ceil() as u64).max(1);
        let Memory { buffers, buffer_bytes, .. } = machine.memory;
        let tables = machine.memory.first_worker_tables + (cores - 1) * machine.memory.further_worker_tables;
        let parts = round.parts();
        let target_line_bps = target_pps * line_bits;
        let share = |packets: u64| packets as f64 / round.received.max(1) as f64 * 100.0;
        let each = || measured.rounds.iter().map(Round::ns);
        Self {
            measured_core: round.core,
            measured_s: measured.rounds.iter().map(|round| round.seconds).sum(),
            rounds: measured.rounds.len(),
            ns_per_packet: ns,
            ns_per_packet_min: each().fold(f64::INFINITY, f64::min),
            ns_per_packet_max: each().fold(0.0, f64::max),
            few_bursts: round.total().is_none_or(|total| total.few_bursts),
            frame_bytes,
            sent_percent: share(round.sent),
            dropped_percent: share(round.dropped),
            main_drop: round.main_drop.clone(),
            core_pps: 1e9 / ns,
            target_pps,
            target_line_bps,
            cores,
            cores_available: machine.cores,
            load_percent: needed / cores as f64 * 100.0,
            buffers_bytes: cores * buffers * buffer_bytes,
            tables_bytes: tables,
            absorbed_pause_ns: (cores * machine.memory.receive_buffers) as f64 / target_pps * 1e9,
            bottleneck: bottleneck(target_line_bps, cores, machine, parts.first()),
            parts,
        }
    }
}

fn bottleneck(target: f64, cores: u64, machine: &Machine, slowest: Option<&Part>) -> Bottleneck {
    match (machine.line, slowest) {
        (Some(line), _) if (line as f64) < target * (1.0 - 1e-9) => Bottleneck::Ports { line_bps: line },
        _ if cores > machine.cores => Bottleneck::Cores { needed: cores, available: machine.cores },
        (_, Some(part)) => Bottleneck::Part { part: part.part.clone(), share_percent: part.share_percent },
        (_, None) => Bottleneck::Part { part: "all".to_owned(), share_percent: 100.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(part: &str, is_stage: bool, ns: f64, burst: f64) -> CostReport {
        let (part, bursts) = (part.to_owned(), 1000);
        CostReport { part, is_stage, ticks: ns, ns, burst, bursts, nearly_idle: false, few_bursts: false }
    }

    /// Returns a measurement of 64-byte frames. Half of the frames enter the stage `rules`.
    fn round(all: f64) -> Round {
        let costs = vec![
            cost("receive", false, 10.0, 64.0),
            cost("rules", true, (all - 10.0) * 2.0, 32.0),
            cost("all", false, all, 64.0),
        ];
        let (received, received_bytes) = (1000, 64_000);
        let (processor_ns, main_drop) = (None, None);
        Round {
            core: 1,
            seconds: 1.0,
            processor_ns,
            received,
            received_bytes,
            sent: 400,
            dropped: 600,
            main_drop,
            costs,
        }
    }

    fn machine() -> Machine {
        let memory = Memory {
            buffers: 1000,
            buffer_bytes: 2048,
            first_worker_tables: 5000,
            further_worker_tables: 100,
            receive_buffers: 1024,
        };
        Machine { cores: 16, line: None, memory }
    }

    #[test]
    fn cores_and_memory_follow_from_the_median_cost() {
        let measured = Measured { rounds: vec![round(80.0), round(50.0), round(52.0)] };
        let predicted = Prediction::new(Rate::Bits(100_000_000_000), &measured, &machine());
        // A frame of 64 bytes needs 88 bytes on the line: 142 Mpps. At 52 ns, one core carries 19.2 Mpps.
        assert_eq!(predicted.target_pps.round(), 142_045_455.0);
        assert_eq!(
            (predicted.ns_per_packet, predicted.ns_per_packet_min, predicted.ns_per_packet_max),
            (52.0, 50.0, 80.0)
        );
        assert_eq!((predicted.cores, predicted.load_percent.round()), (8, 92.0));
        assert_eq!((predicted.buffers_bytes, predicted.tables_bytes), (8 * 1000 * 2048, 5000 + 7 * 100));
        assert_eq!(predicted.absorbed_pause_ns.round(), 57_672.0);
        assert_eq!((predicted.sent_percent, predicted.dropped_percent), (40.0, 60.0));
        // Only half of the packets enter the stage.
        let [rules, receive] = &predicted.parts[..] else { panic!("two parts") };
        assert_eq!((rules.part.as_str(), rules.ns_per_packet), ("rules", 42.0));
        assert_eq!((receive.part.as_str(), receive.ns_per_packet), ("receive", 10.0));
        let part = Bottleneck::Part { part: "rules".to_owned(), share_percent: 42.0 / 52.0 * 100.0 };
        assert_eq!(predicted.bottleneck, part);
    }

    #[test]
    fn processor_time_replaces_the_sum_of_the_costs_and_keeps_the_shares() {
        let measured = Measured { rounds: vec![Round { processor_ns: Some(26.0), ..round(52.0) }] };
        let predicted = Prediction::new(Rate::Packets(1_000_000), &measured, &machine());
        assert_eq!((predicted.ns_per_packet, predicted.cores), (26.0, 1));
        assert_eq!(predicted.parts.iter().map(|part| part.ns_per_packet).collect::<Vec<_>>(), [21.0, 5.0]);
        assert_eq!(predicted.parts[0].share_percent.round(), 81.0);
    }

    #[test]
    fn slow_ports_and_missing_cores_are_the_bottleneck_before_a_stage() {
        let measured = Measured { rounds: vec![round(50.0)] };
        let predict = |machine: Machine| Prediction::new(Rate::Packets(100_000_000), &measured, &machine).bottleneck;
        assert_eq!(predict(Machine { cores: 4, ..machine() }), Bottleneck::Cores { needed: 5, available: 4 });
        let line = |line| predict(Machine { cores: 4, line: Some(line), ..machine() });
        assert_eq!(line(25_000_000_000), Bottleneck::Ports { line_bps: 25_000_000_000 });
        assert_eq!(line(100_000_000_000), Bottleneck::Cores { needed: 5, available: 4 });
    }
}
