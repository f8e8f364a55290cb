//! Tests with recorded statistics, and with stages that are slow, blocked or faulty.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::cause::CauseKind;
use super::observe::InterfaceCounters;
use super::*;
use crate::app::App;
use dataplane_control::Client;
use dataplane_core::mem::Batch;
use dataplane_core::pipeline::{Ctx, Stage};
use dataplane_core::telemetry::LiveStatistics;
use dataplane_testing::config::Config;
use dataplane_testing::{Folder, wait_until};

/// Returns an observation in which nothing was lost.
fn observed() -> Observed {
    let line = include_str!("../top/recorded.jsonl").lines().next().unwrap();
    let mut before: LiveStatistics = serde_json::from_str(line).unwrap();
    before.recent.workers.iter_mut().for_each(|worker| (worker.loops, worker.idle_loops) = (1000, 800));
    let mut after = before.clone();
    after.report.duration_s += 2.0;
    let (interfaces, rdma_ports, waits) = Default::default();
    Observed { before: Some(before), after, seconds: 2.0, interfaces, rdma_ports, waits }
}

impl Observed {
    /// Increases a counter of the device of the port `lan`.
    fn count(&mut self, counter: &str, packets: u64) {
        let counters = &mut self.after.report.ports[0].device_counters;
        *counters.entry(counter.to_owned()).or_default() += packets;
    }

    /// Increases a counter of the device of the port `lan`, and the losses of the port.
    fn lose(&mut self, counter: &str, packets: u64) {
        self.count(counter, packets);
        self.after.report.ports[0].rx_lost += packets;
    }

    fn drop(&mut self, name: &str, packets: u64) {
        let ledger = &mut self.after.report.ledger;
        *ledger.drops.entry(name.to_owned()).or_default() += packets;
        ledger.dropped += packets;
    }
}

/// Returns the first cause as `(name, kind, packets)`.
fn first(observed: &Observed) -> (String, CauseKind, Option<u64>) {
    let Diagnosis { mut causes, .. } = diagnose(&dataplane_stages::registry(), observed);
    let first = causes.remove(0);
    assert!(!first.meaning.is_empty() && !first.fix.is_empty(), "{first:?}");
    (first.name, first.kind, first.packets)
}

#[test]
fn cause_of_a_full_queue_depends_on_the_workers() {
    assert!(diagnose(&dataplane_stages::registry(), &observed()).causes.is_empty());
    for (kind, change) in [
        (CauseKind::Bursts, (|_| {}) as fn(&mut Observed)),
        (CauseKind::WorkerSaturated, |observed| observed.after.recent.workers[1].idle_loops = 40),
        (CauseKind::WorkerPreempted, |observed| _ = observed.waits.insert(1, Duration::from_millis(150))),
        // A worker that waited for its core most of the time is not blocked.
        (CauseKind::WorkerPreempted, |observed| {
            let error = "worker 1 does not answer, so its statistics are from its last answer";
            observed.after.report.errors.push(error.to_owned());
            observed.after.recent.workers[1].loops = 0;
            observed.waits.insert(1, Duration::from_millis(1900));
        }),
        (CauseKind::WorkerBlocked, |observed| {
            let error = "worker 1 does not answer, so its statistics are from its last answer";
            observed.after.report.errors.push(error.to_owned());
            observed.after.recent.workers[1].loops = 0;
        }),
        (CauseKind::Device, |observed| observed.after.report.ports[0].recoveries += 1),
    ] {
        let mut observed = observed();
        observed.lose("rx_missed", 70);
        observed.drop("rules.denied", 69);
        change(&mut observed);
        assert_eq!(first(&observed), ("lan.rx_missed".to_owned(), kind, Some(70)));
        // The cause with the most packets is first.
        observed.drop("rules.denied", 2);
        assert_eq!(first(&observed), ("rules.denied".to_owned(), CauseKind::Stage, Some(71)));
    }
}

/// Makes nine receives of the port `lan` fail.
fn fail_receives(observed: &mut Observed, first_error: &str) {
    let port = &mut observed.after.report.ports[0];
    port.rx_errors += 9;
    port.first_error = Some(first_error.to_owned());
}

#[test]
fn failed_receives_are_a_cause_only_if_frames_of_an_rdma_port_are_too_long() {
    for (is_rdma, first_error, count) in [
        (true, "IBV_WC_LOC_LEN_ERR (local length error)", 1),
        (true, "IBV_WC_LOC_PROT_ERR (local protection error)", 0),
        (false, "IBV_WC_LOC_LEN_ERR (local length error)", 0),
    ] {
        let mut observed = observed();
        fail_receives(&mut observed, first_error);
        observed.rdma_ports.extend(is_rdma.then(|| "lan".to_owned()));
        let causes = losses::losses(&observed);
        assert_eq!(causes.len(), count, "{first_error}");
        assert!(causes.iter().all(|cause| cause.fix.contains("set `mtu` of the port `lan`")), "{causes:?}");
    }
}

/// The stage `fragment` splits packets that are longer than `mtu`, so a larger `mtu` would not help.
#[test]
fn fix_of_too_long_packets_of_a_connection_is_a_smaller_mtu() {
    let mut observed = observed();
    observed.drop("lan.too_long", 9);
    let causes = drops::drops(&dataplane_stages::registry(), &observed);
    assert!(causes[0].fix.starts_with("set `mtu` of the port `lan` to at most the longest message"), "{causes:?}");
}

#[test]
fn counters_of_ports_and_interfaces_are_named() {
    for (name, kind, change) in [
        ("lan.not_connected", CauseKind::Send, (|observed| observed.drop("lan.not_connected", 9)) as fn(&mut Observed)),
        ("lan.too_long", CauseKind::Send, |observed| observed.drop("lan.too_long", 9)),
        ("lan.tx_full", CauseKind::LinkDown, |observed| {
            observed.after.report.ports[0].link_up = Some(false);
            observed.drop("lan.tx_full", 9);
        }),
        ("lan.tx_error", CauseKind::Send, |observed| {
            observed.count("tx_queue_full", 8);
            observed.count("tx_link_down", 1);
            observed.drop("lan.tx_error", 9);
        }),
        ("lan.rx_unmatched", CauseKind::NotAccepted, |observed| observed.count("rx_unmatched", 9)),
        ("lan.rx_errors", CauseKind::NotAccepted, |observed| {
            observed.rdma_ports.insert("lan".to_owned());
            fail_receives(observed, "IBV_WC_LOC_LEN_ERR (local length error): a raw frame longer than the receive");
        }),
        ("lan.tx_lost", CauseKind::File, |observed| observed.after.report.ports[0].tx_lost += 9),
        ("limit.copies_missed", CauseKind::Copies, |observed| observed.after.report.stages[2].copies_missed += 9),
        ("gone.denied", CauseKind::Stage, |observed| observed.drop("gone.denied", 9)),
        ("lan.interface_rx_missed", CauseKind::NicRing, |observed| {
            let counters = InterfaceCounters { drops: 9, missed: 9, ..Default::default() };
            observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
        }),
        ("lan.interface_rx_dropped", CauseKind::Kernel, |observed| {
            let counters = InterfaceCounters { drops: 11, missed: 2, ..Default::default() };
            observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
        }),
        ("lan.interface_rx_errors", CauseKind::LinkErrors, |observed| {
            let counters = InterfaceCounters { errors: 10, fifo: 1, ..Default::default() };
            observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
        }),
    ] {
        let mut observed = observed();
        change(&mut observed);
        assert_eq!(first(&observed), (name.to_owned(), kind, Some(9)));
    }
    // The driver also counts the frames that the AF_XDP socket did not accept.
    let mut observed = observed();
    let counters = InterfaceCounters { drops: 30, ..Default::default() };
    observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
    observed.lose("kernel_rx_dropped", 30);
    assert_eq!(diagnose(&dataplane_stages::registry(), &observed).causes.len(), 1);
}

/// In zero-copy mode, the NIC loses the frames that find no buffer of the AF_XDP socket, and the socket does not count
/// these frames.
#[test]
fn nic_of_a_zero_copy_port_without_posted_buffers_needs_a_deeper_queue() {
    let missed = |device: &str, is_saturated: bool| {
        let mut observed = observed();
        observed.after.report.ports[0].device = device.to_owned();
        observed.count("kernel_rx_no_buffer", 1_000);
        let counters = InterfaceCounters { drops: 30, missed: 30, ..Default::default() };
        observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
        if is_saturated {
            observed.after.recent.workers[1].idle_loops = 40;
        }
        let mut causes = diagnose(&dataplane_stages::registry(), &observed).causes;
        assert_eq!((causes.len(), &*causes[0].name, causes[0].packets), (1, "lan.interface_rx_missed", Some(30)));
        causes.remove(0)
    };
    let zero_copy = "host xdp eth1 (native, zero-copy)";
    let bursts = missed(zero_copy, false);
    assert_eq!((bursts.kind, bursts.is_lost), (CauseKind::Bursts, false));
    assert!(bursts.fix.contains("`rx_depth` of the port `lan`"), "{}", bursts.fix);
    for counter in
        ["rx_missed_errors and rx_fifo_errors of interface eth1", "kernel_rx_no_buffer of port lan: 0 → 1000"]
    {
        assert!(bursts.evidence.iter().any(|line| line.contains(counter)), "{:?}", bursts.evidence);
    }
    let saturated = missed(zero_copy, true);
    assert!(saturated.kind == CauseKind::WorkerSaturated && saturated.fix.contains("more `workers`"), "{saturated:?}");
    assert_eq!(missed("host xdp eth1 (native, copy)", false).kind, CauseKind::NicRing);
}

#[test]
fn device_counter_of_a_port_without_losses_is_no_cause() {
    let mut observed = observed();
    observed.count("rx_out_of_buffer", 16);
    assert!(losses::losses(&observed).is_empty());
    observed.after.report.ports[0].rx_lost += 16;
    assert_eq!(losses::losses(&observed)[0].name, "lan.rx_out_of_buffer");
}

#[test]
fn only_losses_of_the_report_are_counted_as_lost() {
    let mut observed = observed();
    observed.drop("rules.denied", 10);
    observed.lose("rx_missed", 20);
    observed.lose("rx_gso_too_long", 10);
    observed.after.report.ports[0].tx_lost += 10;
    observed.after.report.stages[2].copies_missed += 50;
    ["rx_unmatched", "rx_too_long"].iter().for_each(|counter| observed.count(counter, 60));
    let counters = InterfaceCounters { errors: 70, ..Default::default() };
    observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
    let diagnosis = diagnose(&dataplane_stages::registry(), &observed);
    assert_eq!((diagnosis.dropped, diagnosis.lost, diagnosis.causes.len()), (10, 40, 8));
    let text = diagnosis.to_string();
    let lines = [
        "lan.rx_missed: 20 packets, 10 pps, 40.0 % of all\n",
        "lan.rx_gso_too_long: 10 packets, 5 pps, 20.0 % of all\n",
        "limit.copies_missed: 50 packets, 25 pps\n",
    ];
    for line in lines {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn frames_of_the_kernel_are_no_losses_of_an_rdma_port() {
    let mut observed = observed();
    let counters = InterfaceCounters { errors: 4, drops: 9, missed: 5, fifo: 1 };
    observed.interfaces.insert("lan".to_owned(), ("eth1".to_owned(), counters));
    let names =
        |observed: &Observed| -> Vec<String> { losses::losses(observed).into_iter().map(|cause| cause.name).collect() };
    let errors = "lan.interface_rx_errors";
    assert_eq!(names(&observed), ["lan.interface_rx_missed", "lan.interface_rx_dropped", errors]);
    observed.rdma_ports.insert("lan".to_owned());
    assert_eq!(names(&observed), [errors]);
}

#[test]
fn stage_and_port_with_the_same_name_are_distinguished() {
    let mut observed = observed();
    observed.after.report.stages[1].name = "lan".to_owned();
    observed.drop("lan.tx_full", 3);
    assert_eq!(first(&observed), ("lan.tx_full".to_owned(), CauseKind::Send, Some(3)));
    observed.after.report.stages[1].drops.insert("denied".to_owned(), 4);
    observed.drop("lan.denied", 4);
    assert_eq!(first(&observed), ("lan.denied".to_owned(), CauseKind::Stage, Some(4)));
}

#[test]
fn guide_explains_every_kind_of_cause() {
    let guide = include_str!("../../../../../docs/why.md");
    let kinds = [
        CauseKind::Stage,
        CauseKind::Send,
        CauseKind::LinkDown,
        CauseKind::LinkErrors,
        CauseKind::Device,
        CauseKind::WorkerBlocked,
        CauseKind::WorkerSaturated,
        CauseKind::WorkerPreempted,
        CauseKind::Bursts,
        CauseKind::NicRing,
        CauseKind::Kernel,
        CauseKind::NotAccepted,
        CauseKind::Copies,
        CauseKind::File,
    ];
    for kind in kinds {
        let name = serde_json::to_value(kind).unwrap();
        let name = name.as_str().unwrap();
        assert!(guide.contains(&format!("\n| `{name}` | ")), "docs/why.md has no row for `{name}`");
    }
    assert_eq!(
        guide.lines().filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2).count(),
        kinds.len()
    );
}

/// A stage that is slow, blocks its worker, or panics.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Lame {
    fault: String,
}

/// Set when a stage has begun to block its worker.
static BLOCKS: AtomicBool = AtomicBool::new(false);
static IS_OVER: AtomicBool = AtomicBool::new(false);

impl Stage for Lame {
    fn process(&mut self, _: &Ctx, batch: &mut Batch) {
        match self.fault.as_str() {
            "slow" => {
                let end = Instant::now() + Duration::from_micros(10) * batch.len() as u32;
                while Instant::now() < end {}
            }
            "blocks" => {
                BLOCKS.store(true, Ordering::Release);
                while !IS_OVER.load(Ordering::Acquire) {
                    thread::park_timeout(Duration::from_millis(1));
                }
            }
            _ => panic!("fault of the test"),
        }
    }
}

#[test]
fn slow_blocked_and_faulty_stages_are_named() {
    for (fault, rate, name, kind, part) in [
        ("slow", "500kpps", "p.rx_out_of_buffer", CauseKind::WorkerSaturated, "simplify the stage `lame`"),
        ("blocks", "2kpps", "worker 0", CauseKind::WorkerBlocked, "does not answer"),
        ("panics", "2kpps", "lame.quarantined", CauseKind::Stage, "the stage is quarantined after a panic"),
    ] {
        let folder = Folder::new();
        let socket = folder.file("control.sock");
        // The sandbox of a run in this process would hinder the other tests of the process.
        let config = Config::new()
            .runtime(&format!("control = '{}'\nsandbox = false", socket.display()))
            .port_with("p", &format!("kind = 'generator', rate = '{rate}'"), "rx_depth = 64")
            .stage("lame", &format!("fault = '{fault}'\non_panic = 'drop'"))
            .stage("tx", "port = 'p'");
        let path = folder.write("x.toml", config.to_string());
        let app = App::new().stage::<Lame>("lame");
        let run =
            thread::spawn(move || app.exit_status_of(["dataplane", "run", path.to_str().unwrap(), "--for", "10s"]));
        wait_until("the program listens", || Client::connect(&socket).is_ok());
        if fault == "blocks" {
            wait_until("the stage blocks", || BLOCKS.load(Ordering::Acquire));
        }
        let target = args::Target { process: None, socket: Some(socket), json: true };
        let args = args::Why { time: Duration::from_secs(1), total: false, examples: 0, target };
        let mut found = None;
        wait_until("packets are lost", || {
            let observed = observe::observe(&args).unwrap();
            let mut registry = dataplane_stages::registry();
            registry.add::<Lame>("lame");
            let diagnosis = diagnose(&registry, &observed);
            // The program measures the time of only some loops. Before the first measured loop, the diagnosis does not
            // name the stage.
            let is_found = diagnosis.to_string().contains(part);
            found = Some(diagnosis);
            is_found
        });
        IS_OVER.store(fault == "blocks", Ordering::Release);
        let found = found.unwrap();
        let first = &found.causes[0];
        assert_eq!((first.name.as_str(), first.kind), (name, kind), "{found}");
        run.join().unwrap();
    }
}
