//! The metric families: their names, their labels, and the functions that compute their values from a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::facts::{Facts, unready};
use super::request::Format;
use crate::config::MetricsRules;
use crate::runtime::{Snapshot, SnapshotStage, WorkerState};
use dataplane_core::clock::ClockReport;
use dataplane_core::mem::Reason;
use dataplane_core::telemetry::{CostSum, CounterKind, Latency, PortReport, Report, StageReport, WorkerReport};

/// The start of the name of every metric.
pub(super) const PREFIX: &str = "dataplane";

/// The upper bounds of the buckets of the latency in nanoseconds: 1, 2 and 5 of each power of ten, from 100 ns to 1 s.
const BOUNDS: [u64; 22] = {
    let (mut bounds, mut at, mut power) = ([0; 22], 0, 100);
    while at < bounds.len() {
        bounds[at] = [1, 2, 5][at % 3] * power;
        if at % 3 == 2 {
            power *= 10;
        }
        at += 1;
    }
    bounds
};

/// The value of a sample.
enum Value {
    Whole(u64),
    Signed(i64),
    Real(f64),
    /// The packets of each bucket, the number of packets, and the sum of their latencies in seconds.
    Buckets(Vec<(f64, u64)>, u64, f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// A sample: the values of the labels, and the value of the metric.
type MetricSample<'a> = (Vec<&'a str>, Value);

/// The source of the values.
struct View<'a> {
    snapshot: &'a Snapshot,
    report: &'a Report,
    facts: &'a Facts,
    is_stopping: bool,
    /// The numbers of the workers as text.
    numbers: &'a [String],
    /// The cores of the workers as text.
    cores: &'a [String],
    /// The names of all drop reasons that are known, as `stage.reason`.
    drops: &'a BTreeSet<String>,
    costs: &'a [(&'a str, bool, CostSum, f64)],
}

/// A metric family: a metric with its labels.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: FamilyKind,
    pub(super) unit: Option<Unit>,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
    samples: for<'a> fn(&View<'a>) -> Vec<MetricSample<'a>>,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

impl FamilyKind {
    const fn of_client(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Histogram => MetricType::Histogram,
        }
    }

    #[cfg(test)]
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Family {
    const fn new(
        name: &'static str,
        kind: FamilyKind,
        unit: Option<Unit>,
        labels: &'static [&'static str],
        help: &'static str,
        samples: for<'a> fn(&View<'a>) -> Vec<MetricSample<'a>>,
    ) -> Self {
        Self { name, kind, unit, labels, help, samples }
    }

    /// Returns the name of the samples, such as `dataplane_port_receive_packets_total`.
    #[cfg(test)]
    pub(super) fn full_name(&self) -> String {
        let unit = self.unit.as_ref().map_or(String::new(), |unit| format!("_{}", unit.as_str()));
        let end = if self.kind == FamilyKind::Counter { "_total" } else { "" };
        format!("{PREFIX}_{}{unit}{end}", self.name)
    }
}

fn one<'a>(value: impl Into<Value>) -> Vec<MetricSample<'a>> {
    vec![(Vec::new(), value.into())]
}

fn ports<'a, V: Into<Value>>(view: &View<'a>, value: impl Fn(&PortReport) -> V) -> Vec<MetricSample<'a>> {
    view.report.ports.iter().map(|port| (vec![port.name.as_str()], value(port).into())).collect()
}

fn stages<'a>(view: &View<'a>, value: impl Fn(&StageReport) -> u64) -> Vec<MetricSample<'a>> {
    view.report.stages.iter().map(|stage| (vec![stage.name.as_str()], value(stage).into())).collect()
}

fn workers<'a, V: Into<Value>>(view: &View<'a>, value: impl Fn(&WorkerReport) -> V) -> Vec<MetricSample<'a>> {
    let named = view.numbers.iter().zip(&view.report.workers);
    named.map(|(number, worker)| (vec![number.as_str()], value(worker).into())).collect()
}

fn clocks<'a, V: Into<Value>>(view: &View<'a>, value: impl Fn(&ClockReport) -> V) -> Vec<MetricSample<'a>> {
    let clocks = view.report.ports.iter().flat_map(|port| port.clocks.iter().map(move |clock| (port, clock)));
    clocks.map(|(port, clock)| (vec![port.name.as_str(), clock.source.name()], value(clock).into())).collect()
}

fn costs<'a, V: Into<Value>>(view: &View<'a>, value: impl Fn(&CostSum, f64) -> V) -> Vec<MetricSample<'a>> {
    let costs = view.costs.iter().filter(|(.., sum, _)| sum.packets > 0);
    costs
        .map(|(part, is_stage, sum, seconds)| {
            let kind = match (*is_stage, *part) {
                (true, _) => "stage",
                (false, "all") => "total",
                (false, _) => "loop",
            };
            (vec![kind, part], value(sum, *seconds).into())
        })
        .collect()
}

/// Returns a sample for each name of `known` and of `counts`, with the value 0 for a name that is not in `counts`. The
/// value 0 is needed because Prometheus computes a rate from two samples: if a counter first appeared with its first
/// event, the rate would miss this event.
fn counts<'a>(
    owner: &'a str,
    known: impl IntoIterator<Item = &'a str>,
    counts: &'a BTreeMap<String, u64>,
) -> impl Iterator<Item = MetricSample<'a>> {
    let mut all: BTreeMap<&str, u64> = known.into_iter().map(|name| (name, 0)).collect();
    all.extend(counts.iter().map(|(name, value)| (name.as_str(), *value)));
    all.into_iter().map(move |(name, value)| (vec![owner, name], value.into()))
}

/// Returns the values of one kind that stages define.
fn stage_values<'a>(view: &View<'a>, kind: CounterKind) -> Vec<MetricSample<'a>> {
    let of_stage = |stage: &'a StageReport| {
        let values = stage.counters.iter().filter(move |(name, _)| stage.counter_kind(name) == kind);
        values.map(move |(name, value)| (vec![&*stage.name, &**name], Value::from(*value)))
    };
    view.report.stages.iter().flat_map(of_stage).collect()
}

/// The maximum number of entries of a stage in the metrics.
const MAX_ENTRIES: usize = 1000;

/// Returns the counters of the entries (such as rules) of a stage. Contains only the entries that the config selects
/// for the metrics. Also returns the number of omitted entries.
fn entries_of<'a>(stage: &'a StageReport, rules: MetricsRules) -> (Vec<(&'a str, u64)>, usize) {
    let is_entry = |kind| matches!(kind, CounterKind::NamedEntry | CounterKind::Entry);
    let is_included = |kind| match rules {
        MetricsRules::None => false,
        MetricsRules::Named => kind == CounterKind::NamedEntry,
        MetricsRules::All => is_entry(kind),
    };
    let kinds = || stage.counter_kinds.iter().filter(|(_, kind)| is_entry(**kind));
    // Named entries come first, so that many entries without a name do not displace named entries.
    let named = kinds().filter(|(_, kind)| is_included(**kind) && **kind == CounterKind::NamedEntry);
    let unnamed = kinds().filter(|(_, kind)| is_included(**kind) && **kind == CounterKind::Entry);
    let value = |(name, _): (&'a String, _)| (name.as_str(), stage.counters.get(name).copied().unwrap_or_default());
    let included: Vec<_> = named.chain(unnamed).map(value).take(MAX_ENTRIES).collect();
    let omitted = kinds().count() - included.len();
    (included, omitted)
}

/// The drop reasons of a port.
const PORT_DROPS: [&str; 5] = ["tx_full", "tx_error", "too_long", "not_connected", "stopped"];

/// Returns the drops of the ports.
fn port_drops<'a>(view: &View<'a>) -> Vec<MetricSample<'a>> {
    let mut samples = Vec::new();
    for port in &view.report.ports {
        // The report of a port has no field for packets that the worker dropped because the run was stopped. The ledger
        // has their number.
        let name = |reason: Reason| format!("{}.{}", port.name, reason.name(&[]));
        let of_ledger = view.report.ledger.drops.get(&name(Reason::Stopped)).copied().unwrap_or(0);
        let packets = [port.tx_full, port.tx_errors, port.tx_too_long, port.tx_not_connected, of_ledger];
        for (reason, packets) in PORT_DROPS.into_iter().zip(packets) {
            samples.push((vec![port.name.as_str(), reason], packets.into()));
        }
    }
    samples
}

fn latency<'a>(latency: &Latency) -> Vec<MetricSample<'a>> {
    let buckets = latency.buckets(&BOUNDS);
    let bounds = BOUNDS.iter().map(|nanos| *nanos as f64 / 1e9).chain([f64::INFINITY]);
    let count = buckets.iter().sum();
    one(Value::Buckets(bounds.zip(buckets).collect(), count, latency.sum() / 1e9))
}

/// All metric families.
pub(super) const FAMILIES: &[Family] = &[
    Family::new(
        "run_info",
        FamilyKind::Gauge,
        None,
        &["version", "config"],
        "The version of the program and the path of the config; always 1.",
        |view| vec![(vec![env!("CARGO_PKG_VERSION"), &view.facts.config], Value::Whole(1))],
    ),
    Family::new(
        "run_duration",
        FamilyKind::Gauge,
        Some(Unit::Seconds),
        &[],
        "The time since the workers started.",
        |view| one(view.report.duration_s),
    ),
    Family::new(
        "run_burst_packets",
        FamilyKind::Gauge,
        None,
        &[],
        "The maximum number of packets that a worker receives from a port in one loop (`runtime.burst`).",
        |view| one(view.facts.burst),
    ),
    Family::new(
        "run_ready",
        FamilyKind::Gauge,
        None,
        &[],
        "1 if packets can pass: all workers make progress, and all required ports have a link and a peer.",
        |view| one(!view.is_stopping && unready(view.snapshot).is_empty()),
    ),
    Family::new(
        "run_errors",
        FamilyKind::Gauge,
        None,
        &[],
        "The number of reasons why the run has failed so far.",
        |view| one(view.report.errors.len()),
    ),
    Family::new(
        "log_messages_lost",
        FamilyKind::Counter,
        None,
        &[],
        "Log messages that were lost because standard error was too slow.",
        |view| one(view.report.logs_lost),
    ),
    Family::new("ledger_receive_packets", FamilyKind::Counter, None, &[], "Packets received.", |view| {
        one(view.report.ledger.rx)
    }),
    Family::new("ledger_generated_packets", FamilyKind::Counter, None, &[], "Packets generated by stages.", |view| {
        one(view.report.ledger.generated)
    }),
    Family::new(
        "ledger_copied_packets",
        FamilyKind::Counter,
        None,
        &[],
        "Packets created as copies of other packets.",
        |view| one(view.report.ledger.copied),
    ),
    Family::new("ledger_transmit_packets", FamilyKind::Counter, None, &[], "Packets sent.", |view| {
        one(view.report.ledger.tx)
    }),
    Family::new(
        "ledger_dropped_packets",
        FamilyKind::Counter,
        None,
        &[],
        "Packets dropped, for all reasons together.",
        |view| one(view.report.ledger.dropped),
    ),
    Family::new("ledger_consumed_packets", FamilyKind::Counter, None, &[], "Packets consumed by stages.", |view| {
        one(view.report.ledger.consumed)
    }),
    Family::new("ledger_held_packets", FamilyKind::Gauge, None, &[], "Packets inside the pipeline.", |view| {
        one(view.report.ledger.held)
    }),
    Family::new(
        "ledger_unaccounted_packets",
        FamilyKind::Gauge,
        None,
        &[],
        "The difference between the two sides of the ledger, which must be 0.",
        |view| one(view.report.ledger.unaccounted),
    ),
    Family::new(
        "port_info",
        FamilyKind::Gauge,
        None,
        &["port", "device"],
        "The device of the port; always 1.",
        |view| view.report.ports.iter().map(|port| (vec![&*port.name, &*port.device], Value::Whole(1))).collect(),
    ),
    Family::new(
        "port_up",
        FamilyKind::Gauge,
        None,
        &["port"],
        "1 if the link is up. Missing if the device does not report the state of the link.",
        |view| {
            let known = view.report.ports.iter().filter_map(|port| Some((&*port.name, port.link_up?)));
            known.map(|(port, is_up)| (vec![port], is_up.into())).collect()
        },
    ),
    Family::new("port_receive_packets", FamilyKind::Counter, None, &["port"], "Packets received.", |view| {
        ports(view, |port| port.packets.rx)
    }),
    Family::new(
        "port_receive_bytes",
        FamilyKind::Counter,
        None,
        &["port"],
        "Bytes received, without preamble and frame check sequence.",
        |view| ports(view, |port| port.bytes.rx),
    ),
    Family::new("port_transmit_packets", FamilyKind::Counter, None, &["port"], "Packets sent.", |view| {
        ports(view, |port| port.packets.tx)
    }),
    Family::new(
        "port_transmit_bytes",
        FamilyKind::Counter,
        None,
        &["port"],
        "Bytes sent, without preamble and frame check sequence.",
        |view| ports(view, |port| port.bytes.tx),
    ),
    Family::new(
        "port_receive_lost_packets",
        FamilyKind::Counter,
        None,
        &["port"],
        "Packets lost before the program received them. The ledger does not include these packets.",
        |view| ports(view, |port| port.rx_lost),
    ),
    Family::new(
        "port_transmit_lost_packets",
        FamilyKind::Counter,
        None,
        &["port"],
        "Packets counted as sent by a `pcap` link, but missing from the file of the link.",
        |view| ports(view, |port| port.tx_lost),
    ),
    Family::new(
        "port_dropped_packets",
        FamilyKind::Counter,
        None,
        &["port", "reason"],
        "Packets dropped at the port instead of being sent.",
        port_drops,
    ),
    Family::new(
        "port_receive_errors",
        FamilyKind::Counter,
        None,
        &["port"],
        "Receive requests that completed with an error.",
        |view| ports(view, |port| port.rx_errors),
    ),
    Family::new(
        "port_stale_completions",
        FamilyKind::Counter,
        None,
        &["port"],
        "Completions that match no request.",
        |view| ports(view, |port| port.stale),
    ),
    Family::new(
        "port_recoveries",
        FamilyKind::Counter,
        None,
        &["port"],
        "Resets of a queue pair after an error or a restart of the peer.",
        |view| ports(view, |port| port.recoveries),
    ),
    Family::new(
        "port_rebuilds",
        FamilyKind::Counter,
        None,
        &["port"],
        "Times that a worker created its queues again: a completion queue was lost, or a reset failed.",
        |view| ports(view, |port| port.rebuilds),
    ),
    Family::new(
        "port_abandoned_requests",
        FamilyKind::Counter,
        None,
        &["port"],
        "Requests whose completion did not arrive in time.",
        |view| ports(view, |port| port.abandoned),
    ),
    Family::new(
        "port_unconnected_queue_pairs",
        FamilyKind::Gauge,
        None,
        &["port"],
        "Queue pairs of workers that have no connection to their peer.",
        |view| {
            let ports = view.report.ports.iter().zip(&view.snapshot.ports);
            ports.map(|(port, state)| (vec![&*port.name], state.unconnected.into())).collect()
        },
    ),
    Family::new(
        "port_device_statistic",
        FamilyKind::Counter,
        None,
        &["port", "counter"],
        "The counters of the device.",
        |view| {
            let ports = view.report.ports.iter().zip(&view.snapshot.ports);
            ports
                .flat_map(|(port, state)| counts(&port.name, state.counters.iter().copied(), &port.device_counters))
                .collect()
        },
    ),
    Family::new(
        "port_timestamps",
        FamilyKind::Counter,
        None,
        &["port", "clock"],
        "Completions with a timestamp of the clock.",
        |view| {
            let ports = view.report.ports.iter();
            let stamps =
                ports.flat_map(|port| port.stamps.iter().map(move |(clock, stamps)| (port, clock.name(), stamps)));
            stamps.map(|(port, clock, stamps)| (vec![&*port.name, clock], (*stamps).into())).collect()
        },
    ),
    Family::new(
        "port_implausible_timestamps",
        FamilyKind::Counter,
        None,
        &["port"],
        "Device timestamps that the program replaced with times of the system clock.",
        |view| ports(view, |port| port.stamps_implausible),
    ),
    Family::new(
        "port_clock_error",
        FamilyKind::Gauge,
        Some(Unit::Seconds),
        &["port", "clock"],
        "The maximum error of a timestamp of the device clock.",
        |view| clocks(view, |clock| clock.error_ns as f64 / 1e9),
    ),
    Family::new(
        "port_clock_drift",
        FamilyKind::Gauge,
        Some(Unit::Ratios),
        &["port", "clock"],
        "The deviation of the device clock from its nominal frequency.",
        |view| clocks(view, |clock| clock.drift_ppb as f64 / 1e9),
    ),
    Family::new(
        "port_clock_offset",
        FamilyKind::Gauge,
        Some(Unit::Seconds),
        &["port", "clock"],
        "The offset that the program adds to the wall clock of the device.",
        |view| clocks(view, |clock| clock.offset_ns as f64 / 1e9),
    ),
    Family::new(
        "port_clock_steps",
        FamilyKind::Counter,
        None,
        &["port", "clock"],
        "Comparisons of the device clock with the system clock.",
        |view| clocks(view, |clock| clock.steps),
    ),
    Family::new(
        "port_clock_missed_steps",
        FamilyKind::Counter,
        None,
        &["port", "clock"],
        "Comparisons in which the device clock could not be read.",
        |view| clocks(view, |clock| clock.missed),
    ),
    Family::new(
        "port_clock_jumps",
        FamilyKind::Counter,
        None,
        &["port", "clock"],
        "Jumps of the device clock.",
        |view| clocks(view, |clock| clock.jumps),
    ),
    Family::new(
        "port_clock_freezes",
        FamilyKind::Counter,
        None,
        &["port", "clock"],
        "Stops of the device clock.",
        |view| clocks(view, |clock| clock.freezes),
    ),
    Family::new(
        "stage_info",
        FamilyKind::Gauge,
        None,
        &["stage", "use"],
        "The kind of the stage (key `use` in the config); always 1.",
        |view| view.report.stages.iter().map(|stage| (vec![&*stage.name, &*stage.kind], Value::Whole(1))).collect(),
    ),
    Family::new("stage_packets", FamilyKind::Counter, None, &["stage"], "Packets that entered the stage.", |view| {
        stages(view, |stage| stage.packets)
    }),
    Family::new("stage_batches", FamilyKind::Counter, None, &["stage"], "Batches that entered the stage.", |view| {
        stages(view, |stage| stage.batches)
    }),
    Family::new(
        "stage_output_packets",
        FamilyKind::Counter,
        None,
        &["stage", "output"],
        "Packets that left by the output.",
        |view| {
            let stages = view.report.stages.iter().zip(&view.snapshot.stages);
            stages
                .flat_map(|(stage, names)| {
                    counts(&stage.name, names.outputs.iter().map(String::as_str), &stage.outputs)
                })
                .collect()
        },
    ),
    Family::new(
        "stage_dropped_packets",
        FamilyKind::Counter,
        None,
        &["stage", "reason"],
        "Packets that the stage dropped.",
        |view| {
            let stages = view.report.stages.iter().zip(&view.snapshot.stages);
            stages
                .flat_map(|(stage, names)| counts(&stage.name, names.drops.iter().map(String::as_str), &stage.drops))
                .collect()
        },
    ),
    Family::new(
        "stage_consumed_packets",
        FamilyKind::Counter,
        None,
        &["stage"],
        "Packets that the stage consumed.",
        |view| stages(view, |stage| stage.consumed),
    ),
    Family::new("stage_copied_packets", FamilyKind::Counter, None, &["stage"], "Copies that the stage made.", |view| {
        stages(view, |stage| stage.copied)
    }),
    Family::new(
        "stage_generated_packets",
        FamilyKind::Counter,
        None,
        &["stage"],
        "Packets that the stage generated.",
        |view| stages(view, |stage| stage.generated),
    ),
    Family::new(
        "stage_missed_copies",
        FamilyKind::Counter,
        None,
        &["stage"],
        "Copies that the stage requested, but did not get.",
        |view| stages(view, |stage| stage.copies_missed),
    ),
    Family::new(
        "stage_panics",
        FamilyKind::Counter,
        None,
        &["stage"],
        "Panics of the stage after which the run continued.",
        |view| stages(view, |stage| stage.panics),
    ),
    Family::new(
        "stage_quarantined_workers",
        FamilyKind::Gauge,
        None,
        &["stage"],
        "The number of workers on which the stage is quarantined after a panic.",
        |view| stages(view, |stage| stage.quarantined),
    ),
    Family::new(
        "stage_statistic",
        FamilyKind::Counter,
        None,
        &["stage", "counter"],
        "The counters that the stage defines.",
        |view| stage_values(view, CounterKind::Total),
    ),
    Family::new(
        "stage_value",
        FamilyKind::Gauge,
        None,
        &["stage", "gauge"],
        "Values of the stage that can also decrease, such as the size of a table.",
        |view| stage_values(view, CounterKind::Gauge),
    ),
    Family::new(
        "stage_rule_packets",
        FamilyKind::Counter,
        None,
        &["stage", "rule"],
        "Packets that matched a rule. The key `runtime.metrics_rules` selects the rules.",
        |view| {
            let of_stage = |stage| (stage, entries_of(stage, view.facts.rules).0);
            let stages = view.report.stages.iter().map(of_stage);
            stages
                .flat_map(|(stage, rules)| {
                    rules.into_iter().map(|(rule, packets)| (vec![stage.name.as_str(), rule], packets.into()))
                })
                .collect()
        },
    ),
    Family::new(
        "stage_rules_omitted",
        FamilyKind::Gauge,
        None,
        &["stage"],
        "Rules of the stage that have no series in `dataplane_stage_rule_packets_total`.",
        |view| {
            let stages = view.report.stages.iter().filter(|stage| !stage.counter_kinds.is_empty());
            stages.map(|stage| (vec![&*stage.name], entries_of(stage, view.facts.rules).1.into())).collect()
        },
    ),
    Family::new(
        "stage_memory",
        FamilyKind::Gauge,
        Some(Unit::Bytes),
        &["stage"],
        "The memory of the tables of the stage.",
        |view| view.snapshot.stage_memory.iter().map(|(stage, bytes)| (vec![&**stage], (*bytes).into())).collect(),
    ),
    Family::new(
        "worker_info",
        FamilyKind::Gauge,
        None,
        &["worker", "core", "pages"],
        "The core and the kind of memory pages of the worker; always 1.",
        |view| {
            let numbered = view.numbers.iter().zip(view.cores).zip(&view.report.workers);
            numbered
                .map(|((number, core), worker)| (vec![&**number, &**core, &*worker.pages], Value::Whole(1)))
                .collect()
        },
    ),
    Family::new("worker_up", FamilyKind::Gauge, None, &["worker"], "1 if the worker makes progress.", |view| {
        let states = view.numbers.iter().zip(view.snapshot.workers());
        states.map(|(number, state)| (vec![&**number], (*state == WorkerState::Running).into())).collect()
    }),
    Family::new(
        "worker_stalls",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Times that the watchdog reported the worker, because the worker made no progress.",
        |view| {
            let stalls = view.numbers.iter().zip(&view.snapshot.stalls);
            stalls.map(|(number, stalls)| (vec![&**number], (*stalls).into())).collect()
        },
    ),
    Family::new("worker_loops", FamilyKind::Counter, None, &["worker"], "Loops executed.", |view| {
        workers(view, |worker| worker.loops)
    }),
    Family::new(
        "worker_idle_loops",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Loops in which no packet was received.",
        |view| workers(view, |worker| worker.idle_loops),
    ),
    Family::new("worker_sleeps", FamilyKind::Counter, None, &["worker"], "Sleeps of the worker.", |view| {
        workers(view, |worker| worker.sleeps.unwrap_or_default().sleeps)
    }),
    Family::new(
        "worker_slept",
        FamilyKind::Counter,
        Some(Unit::Seconds),
        &["worker"],
        "The time that the worker slept.",
        |view| workers(view, |worker| worker.sleeps.unwrap_or_default().slept_s),
    ),
    Family::new(
        "worker_wakeups_measured",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Sleeps in which the time of the wake-up was measured.",
        |view| workers(view, |worker| worker.sleeps.unwrap_or_default().wakeups),
    ),
    Family::new(
        "worker_wakeup",
        FamilyKind::Counter,
        Some(Unit::Seconds),
        &["worker"],
        "The sum of the measured times from the end of a sleep until the worker ran.",
        |view| workers(view, |worker| worker.sleeps.unwrap_or_default().wakeup_s),
    ),
    Family::new(
        "worker_wakeup_max",
        FamilyKind::Gauge,
        Some(Unit::Seconds),
        &["worker"],
        "The longest measured time from the end of a sleep until the worker ran.",
        |view| workers(view, |worker| worker.sleeps.unwrap_or_default().wakeup_max_ns as f64 / 1e9),
    ),
    Family::new("worker_receive_packets", FamilyKind::Counter, None, &["worker"], "Packets received.", |view| {
        workers(view, |worker| worker.ledger.rx)
    }),
    Family::new(
        "worker_receive_bytes",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Bytes received, without preamble and frame check sequence.",
        |view| workers(view, |worker| worker.bytes.rx),
    ),
    Family::new("worker_transmit_packets", FamilyKind::Counter, None, &["worker"], "Packets sent.", |view| {
        workers(view, |worker| worker.ledger.tx)
    }),
    Family::new(
        "worker_transmit_bytes",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Bytes sent, without preamble and frame check sequence.",
        |view| workers(view, |worker| worker.bytes.tx),
    ),
    Family::new(
        "worker_generated_packets",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Packets generated by stages.",
        |view| workers(view, |worker| worker.ledger.generated),
    ),
    Family::new(
        "worker_copied_packets",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Packets created as copies of other packets.",
        |view| workers(view, |worker| worker.ledger.copied),
    ),
    Family::new(
        "worker_dropped_packets",
        FamilyKind::Counter,
        None,
        &["worker", "owner", "reason"],
        "Packets dropped, by the stage or port that dropped the packets.",
        |view| {
            let workers = view.numbers.iter().zip(&view.report.workers);
            let drops = workers.flat_map(|(number, worker)| {
                counts(number, view.drops.iter().map(String::as_str), &worker.ledger.drops)
            });
            // The text after the last dot is a drop reason, or the name of an output that leads to a drop. Neither
            // contains a dot.
            drops
                .filter_map(|(labels, value)| {
                    let [worker, drop] = labels[..] else { return None };
                    let (owner, reason) = drop.rsplit_once('.')?;
                    Some((vec![worker, owner, reason], value))
                })
                .collect()
        },
    ),
    Family::new(
        "worker_consumed_packets",
        FamilyKind::Counter,
        None,
        &["worker"],
        "Packets consumed by stages.",
        |view| workers(view, |worker| worker.ledger.consumed),
    ),
    Family::new("worker_held_packets", FamilyKind::Gauge, None, &["worker"], "Packets inside the pipeline.", |view| {
        workers(view, |worker| worker.ledger.held)
    }),
    Family::new(
        "worker_unaccounted_packets",
        FamilyKind::Gauge,
        None,
        &["worker"],
        "The difference between the two sides of the ledger, which must be 0.",
        |view| workers(view, |worker| worker.ledger.unaccounted),
    ),
    Family::new("worker_buffers", FamilyKind::Gauge, None, &["worker"], "Packet buffers in the pool.", |view| {
        workers(view, |worker| worker.slots)
    }),
    Family::new(
        "worker_memory",
        FamilyKind::Gauge,
        Some(Unit::Bytes),
        &["worker"],
        "The memory of the packet buffers.",
        |view| workers(view, |worker| worker.slots * view.facts.buffer_size),
    ),
    Family::new(
        "latency",
        FamilyKind::Histogram,
        Some(Unit::Seconds),
        &[],
        "The time from the receive timestamp to the send timestamp of a packet.",
        |view| latency(view.snapshot.latency()),
    ),
    Family::new(
        "latency_max",
        FamilyKind::Gauge,
        Some(Unit::Seconds),
        &[],
        "The highest latency since the start of the run.",
        |view| one(view.report.latency_ns.max as f64 / 1e9),
    ),
    Family::new(
        "latency_measured_packets",
        FamilyKind::Counter,
        None,
        &["clock"],
        "Packets in the histogram of the latency, by the clock of their timestamps.",
        |view| {
            let clocks = view.report.latency_ns.by_source.iter();
            clocks.map(|(clock, packets)| (vec![clock.name()], (*packets).into())).collect()
        },
    ),
    Family::new(
        "latency_unmeasured_packets",
        FamilyKind::Counter,
        None,
        &[],
        "Packets whose two timestamps are from different clocks.",
        |view| one(view.report.latency_ns.unmeasured),
    ),
    Family::new(
        "packet_cost",
        FamilyKind::Counter,
        Some(Unit::Seconds),
        &["kind", "part"],
        "The time that the measured loops spent in a part of the loop.",
        |view| costs(view, |_, seconds| seconds),
    ),
    Family::new(
        "packet_cost_packets",
        FamilyKind::Counter,
        None,
        &["kind", "part"],
        "The packets that entered the part in the measured loops.",
        |view| costs(view, |sum, _| sum.packets),
    ),
    Family::new(
        "packet_cost_bursts",
        FamilyKind::Counter,
        None,
        &["kind", "part"],
        "The measured loops in which packets entered the part.",
        |view| costs(view, |sum, _| sum.bursts),
    ),
];

/// Writes all metric families.
struct Families {
    snapshot: Arc<Snapshot>,
    facts: Arc<Facts>,
    is_stopping: bool,
}

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Families").finish_non_exhaustive()
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let report = self.snapshot.report();
        let numbers: Vec<String> = (0..report.workers.len()).map(|number| number.to_string()).collect();
        let cores: Vec<String> = report.workers.iter().map(|worker| worker.core.to_string()).collect();
        let of_stage = |(stage, names): (&StageReport, &SnapshotStage)| {
            names.drops.iter().map(|reason| format!("{}.{reason}", stage.name)).collect::<Vec<_>>()
        };
        let mut drops: BTreeSet<String> = report.stages.iter().zip(&self.snapshot.stages).flat_map(of_stage).collect();
        for port in &report.ports {
            drops.extend(PORT_DROPS.iter().map(|reason| format!("{}.{reason}", port.name)));
        }
        let costs = self.snapshot.cost_sums();
        let view = View {
            snapshot: &self.snapshot,
            report,
            facts: &self.facts,
            is_stopping: self.is_stopping,
            numbers: &numbers,
            cores: &cores,
            drops: &drops,
            costs: &costs,
        };
        for family in FAMILIES {
            let samples = (family.samples)(&view);
            if samples.is_empty() {
                continue;
            }
            let kind = family.kind.of_client();
            let mut metric = encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), kind)?;
            for (values, value) in samples {
                let labels: Vec<(&str, &str)> = family.labels.iter().copied().zip(values).collect();
                let mut metric = metric.encode_family(&labels)?;
                match (family.kind, value) {
                    (_, Value::Buckets(buckets, count, sum)) => {
                        metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?
                    }
                    (FamilyKind::Counter, Value::Whole(value)) => {
                        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?
                    }
                    (FamilyKind::Counter, Value::Real(value)) => {
                        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?
                    }
                    (_, Value::Whole(value)) => metric.encode_gauge(&value)?,
                    (_, Value::Signed(value)) => metric.encode_gauge(&value)?,
                    (_, Value::Real(value)) => metric.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

/// Returns the metrics of a snapshot as text.
pub(super) fn text(snapshot: &Arc<Snapshot>, facts: &Arc<Facts>, is_stopping: bool, format: Format) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families { snapshot: snapshot.clone(), facts: facts.clone(), is_stopping }));
    let mut text = String::new();
    let written = match format {
        Format::OpenMetrics => text::encode(&mut text, &registry),
        Format::Prometheus => prometheus_text::encode(&mut text, &registry),
    };
    // Writing to a string cannot fail.
    debug_assert!(written.is_ok());
    text
}
