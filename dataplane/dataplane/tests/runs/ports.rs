//! Tests of changes that add and remove ports of a running pipeline, while the other ports forward packets.

use std::thread;

use dataplane::control::ErrorCode;
use dataplane::control::change::OperationKind;
use dataplane::prelude::*;
use dataplane::runtime::ApplyOptions;
use dataplane::telemetry::{PortReport, Report};
use dataplane::topology::Topology;
use dataplane_testing::config::Config;
use dataplane_testing::{skip, wait_until};

use crate::change::{Changing, kinds};
use crate::common::{Folder, Latch, assert_conserved, drops, frames_of, stage};

/// The link of a port that receives only 20,000 packets per second. A worker with so few packets answers a change fast,
/// even on a busy machine.
const FAST: &str = "kind = 'generator', flows = 64, rate = 20000";

/// Returns a config that sends the packets of each port back to the port, with `lines` in `[runtime]`. `ports` has the
/// name and the link of each port.
fn reflecting(workers: usize, lines: &str, ports: &[(&str, &str)]) -> String {
    let config = Config::new().workers(workers).runtime("buffers = 16384\nburst = 64\nidle = 'sleep'").runtime(lines);
    let config = ports.iter().fold(config, |config, (name, link)| config.port_with(name, link, "rx_depth = 256"));
    let names: Vec<&str> = ports.iter().map(|(name, _)| *name).collect();
    let config = config.input(&names).stage("count", "");
    let choose = |config: Config, name: &&str| {
        config.stage(
            "ingress",
            &format!("name = 'from_{name}'\nports = ['{name}']\noutputs = {{ listed = 'to_{name}' }}"),
        )
    };
    let config = names.iter().fold(config, choose).stage("drop", "");
    let send = |config: Config, name: &&str| config.stage("tx", &format!("name = 'to_{name}'\nport = '{name}'"));
    names.iter().fold(config, send).to_string()
}

fn port<'r>(report: &'r Report, name: &str) -> &'r PortReport {
    let mut ports = report.ports.iter().chain(&report.removed_ports);
    ports.find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}\n{report}"))
}

/// Returns the names of the ports, and of the removed ports.
fn names(report: &Report) -> (Vec<&str>, Vec<&str>) {
    (
        report.ports.iter().map(|port| port.name.as_str()).collect(),
        report.removed_ports.iter().map(|port| port.name.as_str()).collect(),
    )
}

/// Waits until a port has received and sent more packets than at the time of the call.
fn wait_for_port(run: &Changing, name: &str) {
    let packets = |snapshot: &dataplane::runtime::Snapshot| {
        let found = snapshot.report().ports.iter().find(|port| port.name == name).map(|port| port.packets);
        found.unwrap_or_default()
    };
    let before = packets(&run.snapshot());
    wait_until(&format!("packets of port {name}"), || {
        let now = packets(&run.snapshot());
        now.rx > before.rx + 500 && now.tx > before.tx + 500
    });
}

/// Checks that no packet was lost: each received packet was sent or dropped for one of these reasons.
fn assert_lossless(report: &Report, allowed: &[&str]) {
    assert_conserved(report);
    assert_eq!(report.errors, Vec::<String>::new(), "{report}");
    let others: Vec<_> = report.ledger.drops.iter().filter(|(name, _)| !allowed.contains(&name.as_str())).collect();
    assert!(others.is_empty(), "{others:?}\n{report}");
    let totals = |of: fn(&PortReport) -> u64| -> u64 { report.ports.iter().chain(&report.removed_ports).map(of).sum() };
    assert_eq!(report.packets.rx, totals(|port| port.packets.rx), "{report}");
    assert_eq!((report.ledger.rx, report.ledger.tx), (report.packets.rx, report.packets.tx), "{report}");
}

#[test]
fn ports_are_added_and_removed_while_other_ports_forward() {
    for workers in [1, 2] {
        let one = reflecting(workers, "", &[("a", FAST)]);
        let two = reflecting(workers, "", &[("a", FAST), ("b", FAST)]);
        let run = Changing::start(&one);
        for round in 0..20 {
            let applied = run.apply(&two);
            let added = applied.operations.iter().find(|operation| operation.operation == OperationKind::AddPort);
            assert_eq!(added.map(|operation| (operation.name.as_str(), operation.hitless)), Some(("b", true)));
            if round % 5 == 0 {
                wait_for_port(&run, "b");
            }
            wait_for_port(&run, "a");
            let applied = run.apply(&one);
            assert!(kinds(&applied.operations).contains(&(OperationKind::RemovePort, "b")), "{applied:#?}");
            let snapshot = run.snapshot();
            assert_eq!(snapshot.report().ledger.unaccounted, 0, "{}", snapshot.report());
            assert_eq!(names(snapshot.report()), (vec!["a"], vec!["b"]));
        }
        let before = port(run.snapshot().report(), "b").packets;
        assert!(before.rx > 0 && before.tx == before.rx, "{before:?}");
        // The counters of a port that is added again continue.
        run.apply(&two);
        wait_for_port(&run, "b");
        let snapshot = run.snapshot();
        assert_eq!(names(snapshot.report()), (vec!["a", "b"], vec![]));
        assert!(port(snapshot.report(), "b").packets.rx >= before.rx + 500);
        run.apply(&one);
        wait_for_port(&run, "a");
        let report = run.end();
        assert_lossless(&report, &[]);
        assert_eq!(report.packets.rx, report.packets.tx, "{report}");
        let counted = stage(&report, "count").packets;
        assert_eq!(counted, port(&report, "a").packets.rx + port(&report, "b").packets.rx, "{report}");
    }
}

#[test]
fn ports_keep_forwarding_when_their_numbers_change() {
    let ports = [("a", FAST), ("b", FAST), ("c", FAST)];
    let run = Changing::start(&reflecting(1, "", &ports));
    for order in [vec![2, 0, 1], vec![1, 2], vec![2], vec![0, 1, 2], vec![1, 0]] {
        let ports: Vec<_> = order.iter().map(|&at| ports[at]).collect();
        run.apply(&reflecting(1, "", &ports));
        for (name, _) in &ports {
            wait_for_port(&run, name);
        }
        let snapshot = run.snapshot();
        assert_eq!(names(snapshot.report()).0, ports.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
    let report = run.end();
    assert_lossless(&report, &[]);
    for name in ["a", "b", "c"] {
        // Each packet leaves by the port that received the packet.
        let packets = port(&report, name).packets;
        assert_eq!(packets.rx, packets.tx, "{report}");
    }
}

#[test]
fn packets_in_flight_of_a_removed_port_are_sent_or_counted() {
    // The port `slow` sends about 150 packets per second, so its send queue is full.
    let slow = "kind = 'generator', flows = 8";
    let text = |drain: &str, has_slow: bool| {
        let config =
            Config::new().runtime("buffers = 16384\nidle = 'sleep'").runtime(&format!("drain_timeout = '{drain}'"));
        let config = config.port("a", FAST);
        let config = match has_slow {
            true => config.port_with("slow", slow, "tx_depth = 64\nrate_limit = { rate = '80kbps', burst = 1500 }"),
            false => config,
        };
        let config = config.input(&["a"]);
        let sample = "every = 100\noutputs = { sample = 'extra' }";
        let config = if has_slow { config.stage("sample", sample) } else { config };
        let config = config.stage("tx", "name = 'out'\nport = 'a'");
        let config = if has_slow { config.stage("tx", "name = 'extra'\nport = 'slow'") } else { config };
        config.to_string()
    };
    for (drain, is_sent) in [("20s", true), ("50ms", false)] {
        let run = Changing::start(&text(drain, true));
        wait_until("a full send queue", || drops(run.snapshot().report(), "slow.tx_full") > 0);
        run.apply(&text(drain, false));
        wait_until("the last packet of the removed port", || {
            let snapshot = run.snapshot();
            assert_eq!(snapshot.report().ledger.unaccounted, 0, "{}", snapshot.report());
            assert!(!run.run.is_finished());
            let slow = port(snapshot.report(), "slow");
            let stopped = drops(snapshot.report(), "slow.stopped");
            let entered = stage_outputs(snapshot.report());
            slow.packets.tx + slow.tx_full + stopped == entered
        });
        let report = run.end();
        let stopped = drops(&report, "slow.stopped");
        assert_eq!(stopped == 0, is_sent, "{drain}: {report}");
        assert!(names(&report).1 == ["slow"], "{report}");
    }
}

/// Returns the number of packets that went to the port `slow`: the copies that the stage `sample` made.
fn stage_outputs(report: &Report) -> u64 {
    report.ledger.copied
}

#[test]
fn ports_that_cannot_be_opened_leave_the_old_config_running() {
    let folder = Folder::new();
    let input = folder.capture("in.pcap", [[0u8; 60]]);
    let one = reflecting(1, "sandbox = false", &[("a", FAST)]);
    let run = Changing::start_in(folder, &one);
    // The check of the config reports that a file is missing.
    let missing = reflecting(1, "sandbox = false", &[("a", FAST), ("b", "kind = 'pcap', input = 'missing.pcap'")]);
    let refusal = run.refused(&missing);
    assert_eq!(refusal.code, ErrorCode::WrongConfig, "{refusal}");
    assert!(refusal.mistakes.iter().any(|mistake| mistake.message.contains("missing.pcap")), "{refusal:#?}");
    // The check does not detect that an interface is missing. The change fails when it opens the port.
    let link = "device = 'soft'\nlink = { kind = 'generator', flows = 8 }";
    let host = "device = 'host'\nlink = { kind = 'packet', interface = 'dataplane-no' }";
    let with_host =
        reflecting(1, "sandbox = false", &[("a", FAST), ("b", "kind = 'generator', flows = 8")]).replace(link, host);
    assert!(with_host.contains(host));
    let refusal = run.refused(&with_host);
    assert_eq!(refusal.code, ErrorCode::Failed, "{refusal}");
    let (message, help) = (&refusal.message, &refusal.help);
    assert!(message.contains("an added port cannot be opened") && message.contains("dataplane-no"), "{message}");
    assert!(
        help.starts_with("`ip link` lists") && help.ends_with("; the program runs the same config as before"),
        "{help}"
    );
    assert_eq!(run.run.source().text(), one);
    wait_for_port(&run, "a");
    // Two ports cannot use the same file.
    let twice = [("a", FAST), ("b", "kind = 'pcap', output = 'out.pcap'"), ("c", "kind = 'pcap', output = 'out.pcap'")];
    assert_eq!(run.refused(&reflecting(1, "sandbox = false", &twice)).code, ErrorCode::WrongConfig);
    let with_input = reflecting(
        1,
        "sandbox = false",
        &[("a", FAST), ("b", "kind = 'pcap', input = 'in.pcap', output = 'out.pcap'")],
    );
    run.apply(&with_input);
    wait_until("the packet of the capture", || port(run.snapshot().report(), "b").packets.tx == 1);
    run.apply(&one);
    wait_for_port(&run, "a");
    let Changing { folder, run, .. } = run;
    run.stop();
    assert_lossless(&run.join().unwrap(), &[]);
    assert_eq!(frames_of(&folder.file("out.pcap")), frames_of(&input));
}

#[test]
fn removed_port_has_written_its_file_before_another_port_writes_the_file() {
    let folder = Folder::new();
    folder.capture("in.pcap", [[1u8; 60], [2; 60]]);
    let with = |name| {
        reflecting(
            1,
            "sandbox = false",
            &[("a", FAST), (name, "kind = 'pcap', input = 'in.pcap', output = 'out.pcap'")],
        )
    };
    let run = Changing::start_in(folder, &with("b"));
    let plan = run.plan(&with("c"));
    let added = plan.iter().find(|operation| (operation.operation, &*operation.name) == (OperationKind::AddPort, "c"));
    assert!(
        added.is_some_and(|added| !added.hitless && added.why.contains("the removed port b uses the file")),
        "{plan:#?}"
    );
    assert_eq!(run.refused(&with("c")).code, ErrorCode::NeedsRestart);
    for round in 1..=5 {
        for name in ["b", "c"] {
            wait_until("the packets of the capture", || port(run.snapshot().report(), name).packets.tx == 2 * round);
            run.apply(&reflecting(1, "sandbox = false", &[("a", FAST)]));
            run.apply(&with(if name == "b" { "c" } else { "b" }));
        }
    }
    wait_until("the packets of the capture", || port(run.snapshot().report(), "b").packets.tx == 12);
    let Changing { folder, run, .. } = run;
    run.stop();
    assert_lossless(&run.join().unwrap(), &[]);
    assert_eq!(frames_of(&folder.file("out.pcap")).len(), 2);
}

#[test]
fn lost_packets_of_a_removed_port_stay_counted_until_its_device_is_closed() {
    static LATCH: Latch = Latch::new();

    /// A stage that does not end until `LATCH` is open.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct EndsLate {}
    impl Stage for EndsLate {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
        fn finish(&mut self) -> dataplane::Result<()> {
            LATCH.wait();
            Ok(())
        }
    }
    let mut registry = dataplane::stages::registry();
    registry.add::<EndsLate>("ends_late");
    let ends_late = |text: String| {
        text.replacen("[[pipeline.stage]]", "[[pipeline.stage]]\nuse = 'ends_late'\n\n[[pipeline.stage]]", 1)
    };
    // No worker can generate packets at this rate.
    let two = [("a", FAST), ("b", "kind = 'generator', flows = 64, rate = 1000000000")];
    let run = Changing::start_with(Folder::new(), registry, &ends_late(reflecting(1, "", &two)));
    wait_until("lost packets", || port(run.snapshot().report(), "b").rx_lost > 0);
    let before = port(run.snapshot().report(), "b").rx_lost;
    // The program closes the device after the end of the removed stage.
    run.apply(&reflecting(1, "", &[("a", FAST)]));
    let closing = run.snapshot();
    assert_eq!(names(closing.report()), (vec!["a"], vec!["b"]));
    assert!(port(closing.report(), "b").rx_lost >= before, "{}", closing.report());
    LATCH.open();
    let report = run.end();
    assert!(port(&report, "b").rx_lost >= port(closing.report(), "b").rx_lost, "{report}");
}

#[test]
fn unconfirmed_change_of_ports_reverts() {
    let folder = Folder::new();
    let bytes = std::fs::read(folder.capture("in.pcap", [[1u8; 60], [2; 60]])).unwrap();
    let with_b = reflecting(1, "", &[("a", FAST), ("b", FAST)]);
    let with_file = reflecting(1, "", &[("a", FAST), ("file", "kind = 'pcap', input = 'in.pcap', loop = true")]);
    let run = Changing::start_in(folder, &with_file);
    run.apply_unconfirmed(&with_b);
    wait_for_port(&run, "b");
    let reverted = run.rollback();
    let kinds = kinds(&reverted.operations);
    assert!(kinds.contains(&(OperationKind::RemovePort, "b")) && kinds.contains(&(OperationKind::AddPort, "file")));
    wait_for_port(&run, "file");
    // A port that cannot be opened again stops the revert. The program tries again.
    run.apply_unconfirmed(&with_b);
    std::fs::remove_file(run.folder.file("in.pcap")).unwrap();
    let refusal = run.changer().rollback(&run.registry).unwrap_err();
    assert!(refusal.message.contains("cannot be reverted"), "{refusal}");
    assert!(refusal.help.contains("tries again every 5 seconds"), "{refusal}");
    assert!(run.changer().is_unconfirmed());
    wait_for_port(&run, "b");
    run.folder.write("in.pcap", bytes);
    run.rollback();
    wait_for_port(&run, "file");
    assert_eq!(run.run.source().text(), with_file);
    assert_lossless(&run.end(), &[]);
}

#[test]
fn bridge_forgets_the_addresses_of_a_port_that_a_revert_removes() {
    let bridge = |ports: &[(&str, u8, u8)]| {
        let config = Config::new().workers(1).runtime("buffers = 16384\nidle = 'sleep'");
        let config = ports.iter().fold(config, |config, (name, from, to)| {
            let link = "kind = 'generator', rate = 20000";
            let macs = format!("src_mac = '02:00:00:00:00:{from:02x}', dst_mac = '02:00:00:00:00:{to:02x}'");
            config.port_with(name, &format!("{link}, {macs}"), "rx_depth = 256")
        });
        let names: Vec<&str> = ports.iter().map(|(name, ..)| *name).collect();
        config.input(&names).stage("bridge", "").stage("tx", "").to_string()
    };
    let (a, b, c) = (("a", 0x0a, 0x0c), ("b", 0x0b, 0x0c), ("c", 0x0c, 0x0a));
    let run = Changing::start(&bridge(&[a, b]));
    let flooded = || stage(run.snapshot().report(), "bridge").counters["flooded"];
    let wait_for_floods = || {
        let before = flooded();
        wait_until("flooded frames", || flooded() > before + 100);
    };
    wait_for_floods();
    run.apply_unconfirmed(&bridge(&[a, b, c]));
    wait_for_port(&run, "c");
    run.rollback();
    wait_for_floods();
    run.end();
}

#[test]
fn clients_that_add_ports_simultaneously_get_a_clear_answer() {
    let run = Changing::start(&reflecting(1, "", &[("a", FAST)]));
    let texts = ["b", "c"].map(|name| reflecting(1, "", &[("a", FAST), (name, FAST)]));
    for _ in 0..10 {
        let results = thread::scope(|scope| {
            let clients = texts.each_ref().map(|text| scope.spawn(|| run.apply_with(text, &ApplyOptions::default())));
            clients.map(|client| client.join().unwrap())
        });
        for refusal in results.iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(refusal.code, ErrorCode::Busy, "{refusal}");
        }
        assert!(results.iter().any(Result::is_ok));
        let source = run.run.source();
        let name = ["b", "c"][texts.iter().position(|text| text == source.text()).unwrap()];
        assert_eq!(names(run.snapshot().report()).0, ["a", name]);
    }
    assert_lossless(&run.end(), &[]);
}

#[test]
fn held_packets_of_a_removed_port_are_counted() {
    let text = |ports: &[&str]| {
        let config = Config::new().runtime("buffers = 16384\nidle = 'sleep'");
        let config = ports.iter().fold(config, |config, name| config.port(name, FAST));
        config.input(ports).stage("holds", "").stage("tx", "name = 'out'\nport = 'b'").to_string()
    };
    let run = Changing::start(&text(&["a", "b"]));
    wait_until("held packets", || run.snapshot().report().ledger.rx > 100);
    run.apply(&text(&["b"]));
    let before = run.snapshot().report().ledger.tx;
    wait_until("packets of the other port", || run.snapshot().report().ledger.tx > before + 100);
    let report = run.end();
    assert_lossless(&report, &["holds.stopped", "holds.queue_full"]);
    assert!(drops(&report, "holds.stopped") > 0, "{report}");
}

#[test]
fn plan_reports_ports_that_need_a_restart() {
    let text = |ports: &[(&str, &str)]| reflecting(1, "", ports).replace("buffers = 16384\n", "");
    let run = Changing::start(&text(&[("a", FAST)]));
    // Without `buffers`, the packet memory has no room for another port of this size.
    let plan = run.plan(&text(&[("a", FAST), ("b", FAST)]));
    let restart = plan.iter().find(|operation| !operation.hitless).unwrap();
    assert_eq!((restart.operation, &*restart.name), (OperationKind::RestartWorkers, "buffers"));
    assert!(restart.why.contains("set buffers in [runtime] to at least"), "{restart}");
    let refusal = run.refused(&text(&[("a", FAST), ("b", FAST)]));
    assert_eq!(refusal.code, ErrorCode::NeedsRestart, "{refusal}");
    // The program cannot change the link of an open port.
    let plan = run.plan(&text(&[("a", "kind = 'generator', flows = 9")]));
    let [changed] = &plan[..] else { panic!("{plan:#?}") };
    assert_eq!((changed.operation, &*changed.name, changed.hitless), (OperationKind::ChangePort, "a", false));
    assert!(changed.why.contains("remove the port with one change"), "{changed}");
    // A generator divides its frames among the workers when the port is opened.
    let plan = run.plan(&text(&[("a", FAST)]).replace("workers = 1", "workers = 2"));
    let [workers] = &plan[..] else { panic!("{plan:#?}") };
    assert_eq!((workers.operation, &*workers.name), (OperationKind::RestartWorkers, "workers"));
    assert!(
        !workers.hitless && workers.why.starts_with("port a: its frames are divided among the workers"),
        "{workers}"
    );
    run.end();
}

#[test]
fn workers_move_to_other_cores_while_they_forward() {
    let topology = Topology::discover().unwrap();
    let allowed: Vec<_> = topology.cores().iter().filter(|core| core.allowed).collect();
    let pair = allowed.iter().find_map(|one| {
        let other = allowed.iter().find(|other| other.id != one.id && other.node == one.node)?;
        Some([one.id.0, other.id.0])
    });
    let Some(pair) = pair else { return skip("this test needs two cores of one NUMA node") };
    let text = |core: u32| reflecting(1, "", &[("a", FAST)]).replace("workers = 1", &format!("workers = [{core}]"));
    let run = Changing::start(&text(pair[0]));
    for round in 1..=20 {
        let core = pair[round % 2];
        let applied = run.apply(&text(core));
        let [moved] = &applied.operations[..] else { panic!("{applied:#?}") };
        assert_eq!((moved.operation, &*moved.name, moved.hitless), (OperationKind::MoveWorker, "0", true));
        wait_for_port(&run, "a");
        assert_eq!(run.snapshot().report().workers[0].core, core);
    }
    assert_lossless(&run.end(), &[]);
}
