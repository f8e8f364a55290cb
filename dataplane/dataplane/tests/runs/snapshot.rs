//! Tests of snapshots, the statistics of a running pipeline.

use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run, Snapshot};
use dataplane::telemetry::Report;
use dataplane_testing::config::Config;

use crate::common::{Folder, assembled_with};

/// Returns a config that generates packets on a port, and sends the packets back through a stage of the kind `kind`
/// with the keys `keys`.
fn config(workers: usize, kind: &str, keys: &str) -> String {
    Config::new()
        .workers(workers)
        .port("wire", "kind = 'generator', size = 64, flows = 16")
        .stage("parse", "")
        .stage(kind, keys)
        .stage("tx", "name = 'out'\nport = 'wire'")
        .to_string()
}

fn snapshot(run: &Run) -> Snapshot {
    loop {
        if let Some(snapshot) = run.snapshot() {
            return snapshot;
        }
        std::thread::yield_now();
    }
}

/// Returns a snapshot for which all workers answered in time.
fn complete(run: &Run) -> Snapshot {
    let complete = |snapshot: &Snapshot| snapshot.report().errors.is_empty();
    std::iter::repeat_with(|| snapshot(run)).take(60).find(complete).expect("a worker did not answer")
}

/// Returns a snapshot in which the run has measured the costs of at least `bursts` bursts. A run measures only some of
/// its bursts.
fn snapshot_after_bursts(run: &Run, bursts: u64) -> Snapshot {
    loop {
        let snapshot = complete(run);
        if measured_bursts(snapshot.report()) >= bursts {
            return snapshot;
        }
    }
}

/// Returns the number of bursts whose costs the run has measured.
fn measured_bursts(report: &Report) -> u64 {
    report.costs.last().map_or(0, |cost| cost.bursts)
}

#[test]
fn snapshots_balance_and_do_not_disturb_the_run() {
    let folder = Folder::new();
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1027' }]";
    let config = config(1, "acl", &format!("default = 'permit'\n{rules}"));
    let run = Run::start(folder.assemble(&config).unwrap(), Options::default()).unwrap();
    let first = snapshot_after_bursts(&run, 1);
    let second = snapshot_after_bursts(&run, measured_bursts(first.report()) + 2);
    let third = snapshot_after_bursts(&run, measured_bursts(second.report()) + 2);
    for snapshot in [&first, &second, &third] {
        let report = snapshot.report();
        assert_eq!(report.ledger.unaccounted, 0, "{report}");
        assert!(report.ledger.dropped > 0 && report.ledger.drops.contains_key("acl.denied"), "{report}");
        // The counters of a stage are from the same moment as the ledger.
        let rule = "deny udp src_port 1024-1027";
        let counters = &report.stages[1].counters;
        assert_eq!(counters[rule], report.ledger.dropped, "{report}");
        assert_eq!(counters[rule] + counters["default"], report.stages[1].packets, "{report}");
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
    assert_eq!(recent.costs.last().unwrap().bursts, measured_bursts(is) - measured_bursts(was));
    run.stop();
    let report = run.join().unwrap();
    assert!(report.is_good(), "{report}");
    assert!(measured_bursts(&report) >= measured_bursts(is), "{report}");
    assert_eq!(report.latency_ns.count, report.packets.tx, "{report}");
}

/// A stage that blocks the second worker while `CLOSED` is set.
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
fn unresponsive_worker_is_reported_without_blocking() {
    let folder = Folder::new();
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<Gate>("gate");
    let source = Source::new(folder.file("test.toml"), config(2, "gate", ""), &[]);
    let run = Run::start(assembled_with(&source, &registry).unwrap(), Options::default()).unwrap();
    let before = complete(&run);
    CLOSED.store(true, Ordering::Relaxed);
    while !INSIDE.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    // The first snapshot may still contain an answer that worker 1 sent before it blocked. On a busy host, worker 0 may
    // answer too late.
    let only_worker_0_answers = || loop {
        let late = snapshot(&run);
        if matches!(&late.report().errors[..], [error] if error.starts_with("worker 1 does not answer")) {
            break late;
        }
    };
    let [late, again] = [only_worker_0_answers(), only_worker_0_answers()];
    for report in [late.report(), again.report()] {
        assert_eq!(report.workers.len(), 2, "{report}");
        assert!(report.workers[1].loops >= before.report().workers[1].loops, "{report}");
        assert_eq!(report.ledger.unaccounted, 0, "{report}");
    }
    assert!(again.report().workers[0].loops > late.report().workers[0].loops, "{}", again.report());
    CLOSED.store(false, Ordering::Relaxed);
    // The worker answers again.
    complete(&run);
    run.stop();
    let report = run.join().unwrap();
    assert!(report.is_good(), "{report}");
    assert_eq!(report.latency_ns.count, report.packets.tx, "{report}");
}
