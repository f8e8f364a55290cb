//! Tests of the metrics: the list in the documentation, and the values.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::facts::{Facts, unready};
use super::families::{self, FAMILIES, Family};
use super::request::Format;
use crate::config::MetricsRules;
use crate::runtime::{Snapshot, WorkerState};
use dataplane_core::clock::{ClockSource, Stamp};
use dataplane_core::telemetry::{CounterKind, Latency, Report};
use dataplane_core::units::Nanos;

/// The lines around the list in `docs/metrics.md`.
const MARKS: [&str; 2] = ["<!-- begin metrics -->\n\n", "\n<!-- end metrics -->"];

fn table() -> String {
    let mut text = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for family in FAMILIES {
        let Family { kind, labels, help, .. } = family;
        let labels = match labels {
            [] => "–".to_owned(),
            labels => labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
        };
        let help = help.trim_end_matches('.');
        writeln!(text, "| `{}` | {} | {labels} | {help} |", family.full_name(), kind.name()).unwrap();
    }
    text
}

/// To write the list, run the test with `DATAPLANE_UPDATE=1`.
#[test]
fn list_of_metrics_in_the_documentation_is_complete() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (list, after) = rest.split_once(MARKS[1]).unwrap();
    if std::env::var_os("DATAPLANE_UPDATE").is_some() {
        std::fs::write(&path, [before, MARKS[0], &table(), MARKS[1], after].concat()).unwrap();
        return;
    }
    assert_eq!(list, table(), "help: DATAPLANE_UPDATE=1 cargo test --package dataplane --lib metrics");
}

#[test]
fn names_are_unique_and_follow_the_conventions() {
    let names: std::collections::BTreeSet<String> = FAMILIES.iter().map(Family::full_name).collect();
    assert_eq!(names.len(), FAMILIES.len());
    for family in FAMILIES {
        assert!(!family.name.ends_with("_total") && family.help.len() <= 100, "{}", family.name);
        // promtool refuses such a name.
        assert!(!family.name.split('_').any(|word| word == family.kind.name()), "{}", family.name);
    }
}

/// Returns a report in which every counter has a different value.
fn report() -> Report {
    let mut next = 100_u64;
    let mut number = || {
        next += 1;
        next
    };
    let mut object = |fields: &str| {
        let fields = fields.split(' ').map(|field| (field.to_owned(), number().into()));
        serde_json::Value::Object(fields.collect())
    };
    let totals = |rx: u64, tx: u64| serde_json::json!({ "rx": rx, "tx": tx });
    let mut ledger = |drops: [&str; 2]| {
        let mut ledger = object("rx generated copied tx dropped consumed held unaccounted");
        ledger["drops"] = object(&drops.join(" "));
        ledger
    };
    let (sum, mut own) = (ledger(["edge.denied", "wan.tx_full"]), ledger(["edge.denied", "wan.tx_full"]));
    own["unaccounted"] = (-7).into();
    let mut port = object(
        "rx_errors tx_full tx_errors tx_too_long tx_not_connected stale recoveries rebuilds abandoned rx_lost tx_lost \
         stamps_implausible",
    );
    port["name"] = "wan".into();
    port["device"] = "host packet".into();
    port["link_up"] = true.into();
    (port["packets"], port["bytes"]) = (totals(11, 12), totals(13, 14));
    port["device_counters"] = object("kernel_rx_dropped faults");
    port["stamps"] = object("software device_ticks");
    let mut clock = object("error_ns drift_ppb offset_ns steps missed jumps freezes");
    (clock["source"], clock["state"]) = ("device_ticks".into(), "synced".into());
    port["clocks"] = serde_json::json!([clock]);
    let mut stage = object("packets batches consumed copied generated copies_missed panics quarantined");
    (stage["name"], stage["use"]) = ("edge".into(), "acl".into());
    (stage["outputs"], stage["drops"]) = (object("reply"), object("denied"));
    stage["counters"] = object("default rules web deny_any");
    let mut worker = object("core loops idle_loops slots slots_missing");
    (worker["bytes"], worker["ledger"], worker["pages"]) = (totals(15, 16), own, "2 MiB".into());
    worker["granted"] = serde_json::json!({});
    worker["sleeps"] = object("sleeps slept_s wakeups wakeup_s wakeup_max_ns");
    let mut report = object("rate_mpps rate_rx_mpps logs_lost");
    (report["duration_s"], report["packets"], report["bytes"]) = (17.5.into(), totals(18, 19), totals(20, 21));
    report["ledger"] = sum;
    report["latency_ns"] = object("count p50 p90 p99 p999 max unmeasured");
    report["latency_ns"]["source"] = "software".into();
    report["latency_ns"]["by_source"] = object("software");
    (report["costs"], report["errors"]) = (serde_json::json!([]), serde_json::json!(["an error", "another error"]));
    (report["ports"], report["stages"]) = (serde_json::json!([port]), serde_json::json!([stage]));
    report["workers"] = serde_json::json!([worker]);
    let mut report: Report = serde_json::from_value(report).unwrap();
    report.stages[0].counter_kinds = BTreeMap::from([
        ("rules".to_owned(), CounterKind::Gauge),
        ("web".to_owned(), CounterKind::NamedEntry),
        ("deny_any".to_owned(), CounterKind::Entry),
    ]);
    report
}

fn snapshot() -> Snapshot {
    let mut latency = Latency::new();
    let stamp = |nanos: u64| Stamp::new(Nanos(1_000 + nanos), ClockSource::Software);
    latency.record(stamp(0), stamp(150), 3);
    latency.record(stamp(0), stamp(1_500), 4);
    let mut snapshot = Snapshot::of_report(report(), latency, 22, &[(23, 22), (24, 22), (25, 26), (27, 22), (28, 22)]);
    snapshot.ports[0].unconnected = 29;
    snapshot.ports[0].counters = vec!["faults", "tx_lost"];
    snapshot.stages[0].drops = ["denied", "requested"].map(str::to_owned).into();
    snapshot.stages[0].outputs = ["reply", "other"].map(str::to_owned).into();
    snapshot.stage_memory = vec![("edge".to_owned(), 30)];
    snapshot
}

fn facts(rules: MetricsRules) -> Arc<Facts> {
    let (buffer_size, burst, drain_timeout) = (31, 32, Duration::from_secs(5));
    Arc::new(Facts { config: "edge.toml".to_owned(), buffer_size, burst, rules, drain_timeout })
}

fn text(format: Format, rules: MetricsRules) -> String {
    families::text(&Arc::new(snapshot()), &facts(rules), false, format)
}

/// The values of the report are all different, so two values that are swapped change the text. To write the text, run
/// the test with `DATAPLANE_UPDATE=1`, and compare each value with the report.
#[test]
fn every_value_of_the_report_is_in_its_metric() {
    let written = text(Format::OpenMetrics, MetricsRules::All);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/app/metrics/expected.txt");
    if std::env::var_os("DATAPLANE_UPDATE").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    assert_eq!(written, std::fs::read_to_string(&path).unwrap());
    let samples = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let parsed = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            // The formats write the bounds of buckets differently: `1.0` or `1`.
            let series = match series.split_once("{le=\"") {
                Some((name, bound)) => format!("{name}{}", bound.trim_end_matches("\"}").parse::<f64>().unwrap()),
                None => series.to_owned(),
            };
            (series, value.parse::<f64>().unwrap().to_string())
        });
        parsed.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(samples(&written), samples(&text(Format::Prometheus, MetricsRules::All)));
}

#[test]
fn config_selects_the_rules_in_the_metrics_and_their_number_is_limited() {
    let rules = |rules| {
        let text = text(Format::OpenMetrics, rules);
        ["rule=\"web\"", "rule=\"deny_any\"", "rules_omitted{stage=\"edge\"} 0", "rules_omitted{stage=\"edge\"} 1"]
            .map(|part| text.contains(part))
    };
    assert_eq!(rules(MetricsRules::All), [true, true, true, false]);
    assert_eq!(rules(MetricsRules::Named), [true, false, false, true]);
    assert!(text(Format::OpenMetrics, MetricsRules::None).contains("rules_omitted{stage=\"edge\"} 2"));
    let mut many = snapshot();
    for number in 0..2_000_u64 {
        let name = format!("rule {number}");
        many.report.stages[0].counters.insert(name.clone(), number);
        many.report.stages[0].counter_kinds.insert(name, CounterKind::Entry);
    }
    let text = families::text(&Arc::new(many), &facts(MetricsRules::All), false, Format::OpenMetrics);
    assert_eq!(text.matches("stage_rule_packets_total{").count(), 1000);
    assert!(text.contains("rules_omitted{stage=\"edge\"} 1002") && text.contains("rule=\"web\""), "{text}");
}

#[test]
fn every_port_that_the_pipeline_uses_must_have_a_link_and_a_peer() {
    let ready = |change: fn(&mut Snapshot)| {
        let mut snapshot = snapshot();
        snapshot.ports[0].unconnected = 0;
        change(&mut snapshot);
        unready(&snapshot)
    };
    assert_eq!(ready(|_| {}), [""; 0]);
    assert_eq!(ready(|snapshot| snapshot.report.ports[0].link_up = Some(false)), ["the link of port wan is down"]);
    // A device that does not report the state of its link.
    assert_eq!(ready(|snapshot| snapshot.report.ports[0].link_up = None), [""; 0]);
    let unconnected = "port wan has no connection to its peer: 1 of 1 queue pairs";
    assert_eq!(ready(|snapshot| snapshot.ports[0].unconnected = 1), [unconnected]);
    let exempt = |change: fn(&mut Snapshot)| {
        let mut snapshot = snapshot();
        snapshot.report.ports[0].link_up = Some(false);
        change(&mut snapshot);
        unready(&snapshot)
    };
    assert_eq!(exempt(|snapshot| snapshot.ports[0].is_used = false), [""; 0]);
    assert_eq!(exempt(|snapshot| snapshot.ports[0].is_required = false), [""; 0]);
    assert_eq!(ready(|snapshot| snapshot.workers[0] = WorkerState::Late), ["worker 0 makes no progress"]);
}
