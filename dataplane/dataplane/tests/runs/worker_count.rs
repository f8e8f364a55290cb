//! Tests of changes that add and remove workers of a running pipeline, while packets circulate.

use dataplane::control::ErrorCode;
use dataplane::control::change::OperationKind;
use dataplane::runtime::Snapshot;
use dataplane::telemetry::Report;
use dataplane::topology::Topology;
use dataplane_testing::config::Config;
use dataplane_testing::namespace::{in_namespace, ip};
use dataplane_testing::{skip, wait_until};

use crate::change::{Changing, kinds};
use crate::common::stage;

/// The number of packets that circulate.
const PACKETS: u64 = 16;

/// The stages of a config that drops the packets.
const DROPS: &[(&str, &str)] = &[("drop", "")];

/// The stages of a config that sends a copy of each packet on the port `near`, and drops the copies at the port `far`.
/// The two ports are peers.
const COPIES: &[(&str, &str)] = &[
    ("ingress", "name = 'arrived'\nports = ['far']\noutputs = { listed = 'drop' }"),
    ("mirror", "outputs = { copy = 'to_near' }"),
];

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    Topology::discover().unwrap().cores().iter().filter(|core| core.allowed).count()
}

/// Returns a config in which packets circulate between the ports `left` and `right`, which are connected. `stages` come
/// before the stages that send. With `has_seed`, another port inserts [`PACKETS`] packets.
fn circulating(workers: usize, has_seed: bool, stages: &[(&str, &str)]) -> String {
    let config = Config::new().workers(workers).runtime("buffers = 16384\nburst = 32\nidle = 'adaptive'");
    let config = config.port_with("left", "kind = 'loopback', peer = 'right'", "rx_depth = 256");
    let config = config.port_with("right", "kind = 'loopback', peer = 'left'", "rx_depth = 256");
    let seed = format!("kind = 'generator', flows = 16, count = {PACKETS}");
    let config = if has_seed { config.port_with("seed", &seed, "rx_depth = 256") } else { config };
    let mut input = vec!["left", "right"];
    if has_seed {
        input.push("seed");
    }
    if stages == COPIES {
        input.push("far");
    }
    let peers = if stages == COPIES { &[("near", "far"), ("far", "near")][..] } else { &[] };
    let config = peers.iter().fold(config.input(&input), |config, (name, peer)| {
        let connection = format!("connection = {{ peer = '{peer}', deadline = '4s', step_deadline = '2s' }}");
        config.port_with(name, &format!("kind = 'loopback', peer = '{peer}'"), &format!("qp = 'rc'\n{connection}"))
    });
    let config = stages.iter().fold(config, |config, (kind, lines)| config.stage(kind, lines));
    if stages == DROPS {
        return config.to_string();
    }
    let choose = "name = 'choose'\nports = ['left']\noutputs = { listed = 'to_left' }";
    let config = config.stage("ingress", choose).stage("tx", "name = 'to_right'\nport = 'right'");
    let config = config.stage("tx", "name = 'to_left'\nport = 'left'");
    let config = if stages == COPIES { config.stage("tx", "name = 'to_near'\nport = 'near'") } else { config };
    config.to_string()
}

/// Starts a run with one worker, and inserts the packets.
fn start(stages: &[(&str, &str)]) -> Changing {
    let run = Changing::start(&circulating(1, true, stages));
    wait_until("the inserted packets", || rx(run.snapshot().report(), "seed") == PACKETS);
    run.apply(&circulating(1, false, stages));
    run
}

fn rx(report: &Report, name: &str) -> u64 {
    let mut ports = report.ports.iter().chain(&report.removed_ports);
    ports.find(|port| port.name == name).map_or(0, |port| port.packets.rx)
}

fn lost(report: &Report) -> u64 {
    report.ports.iter().map(|port| port.rx_lost).sum()
}

/// Waits until each worker has received more packets than at the time of the call.
fn wait_for_workers(run: &Changing, workers: usize) -> Snapshot {
    let received =
        |snapshot: &Snapshot| -> Vec<u64> { snapshot.report().workers.iter().map(|worker| worker.ledger.rx).collect() };
    let before = received(&run.snapshot());
    let mut last = None;
    wait_until("packets of each worker", || {
        let snapshot = run.snapshot();
        let now = received(&snapshot);
        let has_received = now.iter().zip(before.iter().chain(std::iter::repeat(&0))).all(|(now, before)| now > before);
        let is_done = now.len() == workers && has_received;
        last = Some(snapshot);
        is_done
    });
    last.unwrap()
}

#[test]
fn workers_are_added_and_removed_while_packets_circulate() {
    if cores() < 2 {
        return skip("this test needs two cores");
    }
    let run = start(&[("count", "")]);
    wait_for_workers(&run, 1);
    let mut received = 0;
    for round in 1..=10 {
        let applied = run.apply(&circulating(2, false, &[("count", "")]));
        assert_eq!(kinds(&applied.operations), [(OperationKind::AddWorker, "1")], "{applied:#?}");
        assert!(applied.warnings.is_empty(), "{applied:#?}");
        let snapshot = wait_for_workers(&run, 2);
        assert_eq!(snapshot.report().ledger.unaccounted, 0, "{}", snapshot.report());
        let applied = run.apply(&circulating(1, false, &[("count", "")]));
        assert_eq!(kinds(&applied.operations), [(OperationKind::RemoveWorker, "1")], "{applied:#?}");
        assert!(applied.warnings.is_empty(), "{applied:#?}");
        let snapshot = wait_for_workers(&run, 1);
        let report = snapshot.report();
        assert_eq!((report.ledger.unaccounted, report.workers.len()), (0, 1), "{report}");
        // The totals include the counters of the removed workers.
        let removed = report.removed_workers.as_ref().unwrap();
        assert_eq!((removed.workers, removed.ledger.unaccounted, removed.ledger.held), (round, 0, 0), "{report}");
        assert_eq!(report.ledger.rx, report.workers[0].ledger.rx + removed.ledger.rx, "{report}");
        assert_eq!(report.ledger.rx, report.packets.rx, "{report}");
        assert!(report.packets.rx > received && removed.ledger.rx > 0, "{report}");
        assert_eq!(stage(report, "count").packets, report.packets.rx, "{report}");
        assert!(run.run.progress().rx >= received);
        assert_eq!(run.run.loops().len(), 1);
        received = report.packets.rx;
        assert_eq!(lost(report), 0, "{report}");
    }
    // All packets still circulate: the stage `drop` drops each packet once.
    run.apply(&circulating(1, false, DROPS));
    wait_until("the dropped packets", || run.snapshot().report().ledger.dropped >= PACKETS);
    let report = run.end();
    assert_eq!(report.ledger.dropped, PACKETS, "{report}");
}

#[test]
fn unconfirmed_change_of_the_number_of_workers_reverts() {
    if cores() < 2 {
        return skip("this test needs two cores");
    }
    // The stage `limit` divides its rate among the workers.
    let stages = [("limit", "packets_per_second = 1000000\nburst = 100000"), ("count", "")];
    let run = start(&stages);
    for _ in 0..3 {
        let applied = run.apply_unconfirmed(&circulating(2, false, &stages));
        let operations = kinds(&applied.operations);
        let expected = [(OperationKind::AddWorker, "1"), (OperationKind::RenewStage, "limit")];
        assert_eq!(operations, expected, "{applied:#?}");
        wait_for_workers(&run, 2);
        run.rollback();
        wait_for_workers(&run, 1);
        // The revert of a removal adds the worker again.
        run.apply(&circulating(2, false, &stages));
        run.apply_unconfirmed(&circulating(1, false, &stages));
        wait_for_workers(&run, 1);
        run.rollback();
        wait_for_workers(&run, 2);
        run.apply(&circulating(1, false, &stages));
    }
    run.end();
}

/// The lanes of a port connect only when all workers have a lane on the port. An added worker must therefore start before
/// its lanes are connected.
#[test]
fn one_change_adds_a_worker_and_ports_with_peers() {
    if cores() < 2 {
        return skip("this test needs two cores");
    }
    let run = start(&[]);
    let applied = run.apply(&circulating(2, false, COPIES));
    let operations = kinds(&applied.operations);
    for expected in [(OperationKind::AddWorker, "1"), (OperationKind::AddPort, "near"), (OperationKind::AddPort, "far")]
    {
        assert!(operations.contains(&expected), "{applied:#?}");
    }
    wait_for_workers(&run, 2);
    wait_until("copies over the connection", || rx(run.snapshot().report(), "far") > 0);
    run.end();
}

#[test]
fn revert_restores_a_worker_and_ports_with_peers() {
    if cores() < 2 {
        return skip("this test needs two cores");
    }
    let run = start(&[]);
    run.apply(&circulating(2, false, &[]));
    run.apply(&circulating(2, false, COPIES));
    wait_until("copies over the connection", || rx(run.snapshot().report(), "far") > 0);
    run.apply_unconfirmed(&circulating(1, false, &[]));
    wait_for_workers(&run, 1);
    run.rollback();
    wait_for_workers(&run, 2);
    let before = rx(run.snapshot().report(), "far");
    wait_until("copies over the new connection", || rx(run.snapshot().report(), "far") > before);
    run.end();
}

#[test]
fn held_packets_of_a_removed_worker_are_passed_on_or_counted() {
    if cores() < 2 {
        return skip("this test needs two cores");
    }
    let run = start(&[]);
    run.apply(&circulating(2, false, &[]));
    wait_for_workers(&run, 2);
    // The stage holds each packet for some time.
    run.apply(&circulating(2, false, &[("holds", "")]));
    wait_until("held packets", || run.snapshot().report().workers.iter().all(|worker| worker.ledger.held > 0));
    run.apply(&circulating(1, false, &[("holds", "")]));
    assert_eq!(run.snapshot().report().ledger.unaccounted, 0);
    run.apply(&circulating(1, false, DROPS));
    wait_until("the dropped packets", || run.snapshot().report().ledger.dropped >= PACKETS);
    let report = run.end();
    assert_eq!(report.ledger.dropped, PACKETS, "{report}");
}

#[test]
fn worker_that_cannot_start_leaves_the_old_config_running() {
    if cores() < 2 {
        return skip("this test needs two cores");
    }
    in_namespace(|| {
        // A TAP with one queue.
        ip("tuntap add dev tap1 mode tap");
        let text = |workers| {
            let config = Config::new().workers(workers).runtime("buffers = 16384\nidle = 'sleep'\nsandbox = false");
            let config = config.port("tap", "kind = 'generator'").stage("tx", "port = 'tap'").to_string();
            let link = "device = 'host'\nlink = { kind = 'tap', name = 'tap1' }";
            config.replace("device = 'soft'\nlink = { kind = 'generator' }", link)
        };
        assert!(text(1).contains("tap1"), "{}", text(1));
        let run = Changing::start(&text(1));
        let plan = run.plan(&text(2));
        assert_eq!(kinds(&plan), [(OperationKind::AddWorker, "1")], "{plan:#?}");
        assert!(plan[0].hitless, "{plan:#?}");
        let refusal = run.refused(&text(2));
        assert_eq!(refusal.code, ErrorCode::Failed, "{refusal}");
        assert!(refusal.message.starts_with("an added worker cannot be started: "), "{refusal}");
        assert!(refusal.message.contains("`tap1` has one queue") && refusal.help.contains("multi_queue"), "{refusal}");
        assert_eq!(run.run.source().text(), text(1));
        assert_eq!(run.snapshot().report().workers.len(), 1);
        run.end();
    });
}

#[test]
fn plan_names_ports_that_divide_packets_only_at_opening() {
    let text = circulating(1, true, &[]);
    let run = Changing::start(&text);
    let plan = run.plan(&circulating(2, true, &[]));
    if cores() >= 2 {
        assert_eq!(kinds(&plan), [(OperationKind::RestartWorkers, "workers")], "{plan:#?}");
        let why = "port seed: its frames are divided among the workers only when the port is opened";
        assert!(!plan[0].hitless && plan[0].why == why, "{plan:#?}");
    }
    // A core that does not exist is a mistake in the config.
    let refusal = run.refused(&text.replace("workers = 1", "workers = [0, 9999]"));
    assert_eq!(refusal.code, ErrorCode::WrongConfig, "{refusal}");
    assert_eq!(run.run.source().text(), text);
    run.end();
}
