//! Looking at a run that goes on.

use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run, Snapshot};
use dataplane::telemetry::Report;

use crate::common::{Folder, assembled_with};

const CONFIG: &str = r#"
[runtime]
workers = 1
hugepages = "none"

[[port]]
name = "wire"
device = "soft"
link = { kind = "generator", size = 64, flows = 16 }

[pipeline]
input = ["wire"]

[[pipeline.stage]]
use = "parse"

[[pipeline.stage]]
use = "acl"
default = "permit"
rules = [{ action = "deny", protocol = "udp", src_port = "1024-1027" }]

[[pipeline.stage]]
name = "out"
use = "tx"
port = "wire"
"#;

fn snapshot(run: &Run) -> Snapshot {
    loop {
        if let Some(snapshot) = run.snapshot() {
            return snapshot;
        }
        std::thread::yield_now();
    }
}

/// To which all workers answered in time.
fn complete(run: &Run) -> Snapshot {
    let complete = |snapshot: &Snapshot| snapshot.report().errors.is_empty();
    std::iter::repeat_with(|| snapshot(run)).take(60).find(complete).expect("a worker does not answer")
}

/// Until so many bursts were timed.
fn snapshot_with(run: &Run, bursts: u64) -> Snapshot {
    loop {
        let snapshot = complete(run);
        if all(snapshot.report()) >= bursts {
            return snapshot;
        }
    }
}

/// How many bursts were timed as a whole.
fn all(report: &Report) -> u64 {
    report.costs.last().map_or(0, |cost| cost.bursts)
}

#[test]
fn a_run_adds_up_at_every_moment_and_loses_nothing_by_being_looked_at() {
    let folder = Folder::new();
    let run = Run::start(folder.assemble(CONFIG).unwrap(), Options::default()).unwrap();
    let first = snapshot_with(&run, 1);
    let second = snapshot_with(&run, all(first.report()) + 2);
    let third = snapshot_with(&run, all(second.report()) + 2);
    for snapshot in [&first, &second, &third] {
        let report = snapshot.report();
        assert_eq!(report.ledger.unaccounted, 0, "{report}");
        assert!(report.ledger.dropped > 0 && report.ledger.drops.contains_key("acl.denied"), "{report}");
        assert_eq!(report.latency_ns.count, report.ledger.tx, "{report}");
    }
    let (start, recent) = (second.since(None), third.since(Some(&second)));
    let sent = |packets: u64, seconds: f64| packets as f64 / seconds / 1e6;
    let [was, is] = [&second, &third].map(|snapshot| snapshot.report());
    assert!((start.rates.rate_mpps - was.rate_mpps).abs() < 1e-6, "{start:?}");
    let passed = is.duration_s - was.duration_s;
    assert!((recent.rates.rate_mpps - sent(is.packets.tx - was.packets.tx, passed)).abs() < 1e-6, "{recent:?}");
    assert!((recent.ports[0].rates.rate_rx_gbps - recent.workers[0].rates.rate_rx_gbps).abs() < 1e-6, "{recent:?}");
    assert_eq!(recent.drops["acl.denied"], is.ledger.dropped - was.ledger.dropped);
    assert_eq!(recent.latency_ns.count, is.packets.tx - was.packets.tx);
    assert_eq!(recent.workers[0].loops, is.workers[0].loops - was.workers[0].loops);
    let parts: Vec<&str> = recent.costs.iter().map(|cost| cost.part.as_str()).collect();
    assert_eq!(parts, ["reap", "receive", "parse", "acl", "out", "transmit", "refill", "all"]);
    assert_eq!(recent.costs.last().unwrap().bursts, all(is) - all(was));
    run.stop();
    let report = run.join().unwrap();
    assert!(report.is_good(), "{report}");
    assert!(all(&report) >= all(is), "{report}");
    assert_eq!(report.latency_ns.count, report.packets.tx, "{report}");
}

/// While it is closed, the second worker stays in it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Gate {}

static CLOSED: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicBool = AtomicBool::new(false);

impl Stage for Gate {
    fn process(&mut self, ctx: &Ctx, _: &mut Batch) {
        while ctx.worker == 1 && CLOSED.load(Ordering::Relaxed) {
            INSIDE.store(true, Ordering::Relaxed);
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_worker_that_does_not_answer_is_told_of_and_not_waited_for() {
    let folder = Folder::new();
    let text =
        CONFIG.replace("workers = 1", "workers = 2").replace("use = \"acl\"\ndefault = \"permit\"", "use = \"gate\"");
    let text: String = text.lines().filter(|line| !line.starts_with("rules")).map(|line| format!("{line}\n")).collect();
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<Gate>("gate");
    let source = Source::new(folder.file("test.toml"), text, &[]);
    let run = Run::start(assembled_with(&source, &registry).unwrap(), Options::default()).unwrap();
    let before = complete(&run);
    CLOSED.store(true, Ordering::Relaxed);
    while !INSIDE.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    // What it said before it went in may still be on its way.
    let late = loop {
        let late = snapshot(&run);
        if !late.report().errors.is_empty() {
            break late;
        }
    };
    let again = snapshot(&run);
    for report in [late.report(), again.report()] {
        assert!(report.errors[0].starts_with("worker 1 does not answer"), "{report}");
        assert_eq!((report.errors.len(), report.workers.len()), (1, 2), "{report}");
        assert!(report.workers[1].loops >= before.report().workers[1].loops, "{report}");
        assert_eq!(report.ledger.unaccounted, 0, "{report}");
    }
    assert!(again.report().workers[0].loops > late.report().workers[0].loops, "{}", again.report());
    CLOSED.store(false, Ordering::Relaxed);
    // It catches up.
    complete(&run);
    run.stop();
    let report = run.join().unwrap();
    assert!(report.is_good(), "{report}");
    assert_eq!(report.latency_ns.count, report.packets.tx, "{report}");
}
