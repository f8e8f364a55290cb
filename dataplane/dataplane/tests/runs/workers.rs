//! Tests of runs with several workers: one worker processes all packets of a flow in order, and no packet is lost
//! between the device and the workers.

use std::collections::BTreeMap;

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};
use dataplane::telemetry::Report;
use dataplane::testing::frame;
use dataplane_testing::config::Config;

use crate::common::{Folder, assembled_with, assert_good, captures, counter, drops, frames_of};

/// Returns a config that plays a capture through `stages` and writes the result to another port.
fn config(workers: usize, input: &str, more: &str) -> String {
    Config::new()
        .workers(workers)
        .runtime("burst = 16")
        .port_with("in", &format!("kind = 'pcap', input = '{input}'"), "rx_depth = 64")
        .port("out", "kind = 'pcap', output = 'out.pcap'")
        .stages(more)
        .stage("tx", "port = 'out'")
        .to_string()
}

#[test]
fn generated_flows_are_distributed_without_loss() {
    for (protocol, count) in [("udp4", 100_000), ("tcp4", 99_999), ("udp6", 1)] {
        let link = format!("kind = 'generator', flows = 1000, count = {count}, size = 80, protocol = '{protocol}'");
        let text = Config::new().workers(2).port("p", &link).stage("parse", "").stage("tx", "port = 'p'").to_string();
        let report = Folder::new().run(&text);
        assert_good(&report);
        assert_eq!((report.packets.rx, report.packets.tx), (count, count), "{report}");
        assert_eq!(report.workers.len(), 2);
        if count > 1 {
            // Each worker receives about half of the flows.
            for worker in &report.workers {
                assert!(worker.ledger.rx > count / 4, "{report}");
            }
            let parts: Vec<&str> = report.costs.iter().map(|cost| cost.part.as_str()).collect();
            assert_eq!(parts, ["reap", "receive", "parse", "tx", "transmit", "refill", "all"], "{report}");
            assert!(report.costs.iter().all(|cost| cost.bursts >= 1 && cost.burst >= 1.0), "{report}");
        }
    }
}

/// In each loop, the worker receives at most one burst from each port. So a port that always has packets does not delay
/// the packets of another port.
#[test]
fn flooded_port_does_not_delay_another_port() {
    let text = Config::new()
        .workers(1)
        .runtime("burst = 16")
        .port("flood", "kind = 'generator', copy = false")
        .port("calm", "kind = 'generator', count = 16000, copy = false")
        .port("out", "kind = 'generator', copy_out = false")
        .input(&["flood", "calm"])
        .stage("tx", "port = 'out'")
        .to_string();
    // If both ports get equal shares, the worker receives the last packet of the port `calm` at the end of the run.
    let report = Folder::new().run_until(&text, Options { packets: Some(32_000), ..Options::default() });
    assert_good(&report);
    let received: Vec<u64> = report.ports.iter().take(2).map(|port| port.packets.rx).collect();
    let difference = received[0].abs_diff(received[1]);
    assert!(difference <= 16 && received[0] + received[1] == 32_000, "{received:?}");
}

/// Returns the addresses and ports of a flow and the packet's sequence number, for frames that this file builds.
fn flow(frame: &[u8]) -> (Vec<u8>, u32) {
    (frame[26..38].to_vec(), u32::from_be_bytes(frame[42..46].try_into().unwrap()))
}

#[test]
fn flow_stays_on_one_worker_and_in_order() {
    const FLOWS: u32 = 200;
    const EACH: u32 = 50;
    let folder = Folder::new();
    let frames = (0..FLOWS * EACH).map(|number| {
        let (flow, number) = (number % FLOWS, number / FLOWS);
        let source = [10, 0, (flow / 250) as u8, (flow % 250 + 1) as u8];
        let payload = number.to_be_bytes();
        frame().ipv4(source.into(), [192, 0, 2, 1].into()).udp(1000 + flow as u16, 9).payload(&payload).build()
    });
    folder.capture("in.pcap", frames);
    let report = folder.run(&config(2, "in.pcap", "[[pipeline.stage]]\nuse = 'parse'"));
    assert_good(&report);
    assert_eq!(report.packets.tx, u64::from(FLOWS * EACH), "{report}");
    let mut next: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for frame in frames_of(&folder.file("out.pcap")) {
        let (flow, number) = flow(&frame);
        let expected = next.entry(flow).or_default();
        assert_eq!(number, *expected);
        *expected += 1;
    }
    assert!(next.len() == FLOWS as usize && next.values().all(|&seen| seen == EACH));
    for worker in &report.workers {
        assert!(worker.ledger.rx > 0, "{report}");
        // A worker receives all packets of each of its flows, so its number of packets is a multiple of `EACH`.
        assert_eq!(worker.ledger.rx % u64::from(EACH), 0, "{report}");
    }
}

#[test]
fn captured_traffic_is_distributed_without_loss() {
    let folder = Folder::new();
    for input in captures() {
        let frames = frames_of(&input);
        for times in [1, 20] {
            let text = config(2, &format!("{}', loop = {times}, pace = 'fast", input.display()), "");
            let report = folder.run(&text);
            assert_good(&report);
            let mut out = frames_of(&folder.file("out.pcap"));
            let mut expected: Vec<_> = frames.iter().cycle().take(out.len()).cloned().collect();
            assert_eq!(out.len(), frames.len() * times, "{}", input.display());
            out.sort();
            expected.sort();
            assert!(out == expected, "{}", input.display());
        }
    }
}

/// One worker may send packets at one end of a cable, and another worker may receive these packets at the other end.
#[test]
fn connected_ports_work_across_workers() {
    for workers in [1, 2] {
        let folder = Folder::new();
        let text = Config::new()
            .workers(workers)
            .runtime("burst = 32")
            .port("source", "kind = 'generator', flows = 100, rate = 100_000")
            .port_with("left", "kind = 'loopback', peer = 'right'", "rss = { key = 'symmetric' }")
            .port("right", "kind = 'loopback', peer = 'left'")
            .input(&["source", "right"])
            .stage("parse", "")
            .stage("ttl", "")
            .stage("acl", "default = 'permit'\nrules = []")
            .stage("tx", "name = 'out'\nport = 'left'")
            .to_string();
        // On a busy machine a worker may start late, so the test repeats with more packets.
        let shared = (0..8).map(|times| run_connected(&folder, &text, 20_000 << times)).any(|report| {
            assert_eq!(report.workers.len(), workers);
            report.workers.iter().all(|worker| worker.ledger.rx > 0)
        });
        assert!(shared, "in every run, one of the {workers} workers received nothing");
    }
}

/// Runs the config until the workers have received `packets` packets, and checks the counters of the ports.
fn run_connected(folder: &Folder, text: &str, packets: u64) -> Report {
    let report = folder.run_until(text, Options { packets: Some(packets), ..Options::default() });
    assert_good(&report);
    let [source, left, right] = &report.ports[..] else { panic!("{report}") };
    assert_eq!((left.packets.rx, right.packets.tx, source.packets.tx), (0, 0, 0), "{report}");
    assert_eq!(right.packets.rx, counter(&report, 2, "rx_packets"), "{report}");
    assert!(right.packets.rx > 0 && right.packets.rx <= left.packets.tx, "{report}");
    assert_eq!(left.packets.tx + drops(&report, "left.tx_full") + drops(&report, "ttl.expired"), report.packets.rx);
    report
}

/// With two workers, one of which receives nothing, the run stops at exactly the requested number of packets.
#[test]
fn packet_limit_is_exact_with_an_idle_worker() {
    for packets in [1, 10, 1000] {
        let text = Config::new()
            .workers(2)
            .runtime("burst = 64")
            .port("g", "kind = 'generator', flows = 1, rate = 1_000_000")
            .port("quiet", "kind = 'loopback'")
            .input(&["g", "quiet"])
            .stage("tx", "port = 'g'")
            .to_string();
        for _ in 0..10 {
            let report = Folder::new().run_until(&text, Options { packets: Some(packets), ..Options::default() });
            assert_good(&report);
            assert_eq!(report.packets.rx, packets, "{report}");
        }
    }
}

/// A stage that panics at the place `place`. `batch` is the 5th batch of the second worker. `tick` is the housekeeping
/// of the second worker. `finish` is the end of the stage on any worker.
#[derive(serde::Deserialize)]
struct Trap {
    place: String,
    #[serde(default)]
    batches: u32,
}

impl Stage for Trap {
    fn process(&mut self, ctx: &Ctx, _batch: &mut Batch) {
        self.batches += 1;
        assert!(ctx.worker == 0 || self.place != "batch" || self.batches < 5, "panic of the test");
    }

    fn tick(&mut self, ctx: &Ctx) {
        assert!(ctx.worker == 0 || self.place != "tick", "panic of the test");
    }

    fn finish(&mut self) -> dataplane::Result<()> {
        assert!(self.place != "finish", "panic at the end");
        Ok(())
    }
}

/// Runs two workers with the stage [`Trap`] until the stage panics. With the place `finish`, the run ends after 1,000
/// packets, because the stage panics only at the end of the run.
fn run_with_trap(place: &str) -> Report {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<Trap>("trap");
    let text = Config::new()
        .workers(2)
        .runtime("buffers = 4096")
        .port("p", "kind = 'generator', flows = 100, size = 100")
        .stage("parse", "")
        .stage("trap", &format!("place = '{place}'"))
        .stage("tx", "port = 'p'")
        .to_string();
    let assembly = assembled_with(&Source::new("trap.toml", text, &[]), &registry).unwrap();
    let options = Options { packets: (place == "finish").then_some(1000), ..Options::default() };
    Run::start(assembly, options).unwrap().join().unwrap()
}

#[test]
fn panic_of_a_stage_is_reported_with_its_packets_and_lost_buffers() {
    let report = run_with_trap("batch");
    let error = report.workers[1].error.as_deref().unwrap();
    let parts: Vec<&str> = error.split("; ").collect();
    assert!(parts[0].starts_with("worker 1 stopped: stage `trap` panicked (packets in the batch: "), "{error}");
    assert!(parts[0].ends_with("): panic of the test"), "{error}");
    // A generated frame starts with its destination MAC address. Its EtherType is IPv4.
    let bytes = parts[1].strip_prefix("first packet (64 of 100 bytes): ").unwrap();
    assert_eq!((bytes.len(), &bytes[24..28]), (128, "0800"), "{error}");
    let [good, bad] = &report.workers[..] else { panic!("{report}") };
    assert!(bad.slots_missing > 0 && good.slots_missing == 0, "{report}");
    assert_eq!(parts[2], format!("lost buffers: {}", bad.slots_missing));
    assert!(parts[0].contains(&format!("(packets in the batch: {})", bad.slots_missing)), "{error}");
    // Four batches of the worker went through the stage before the panic.
    assert!(bad.ledger.tx > 0 && bad.ledger.held == bad.slots_missing && bad.ledger.unaccounted == 0, "{report}");
    assert!(report.errors.iter().any(|text| text == error) && !report.is_good(), "{report}");
}

#[test]
fn panic_in_housekeeping_names_the_stage_and_loses_no_packet() {
    let report = run_with_trap("tick");
    let error = report.workers[1].error.as_deref().unwrap();
    let expected =
        "worker 1 stopped: stage `trap` panicked (packets in the batch: 0): panic of the test; lost buffers: 0";
    assert_eq!(error, expected);
    assert_eq!((report.ledger.unaccounted, report.ledger.held), (0, 0), "{report}");
}

#[test]
fn panic_at_the_end_of_a_stage_keeps_the_report() {
    let report = run_with_trap("finish");
    assert_eq!((report.packets.rx, report.ledger.unaccounted), (1000, 0), "{report}");
    assert!(report.errors.iter().any(|error| error.contains("stage `trap` panicked at its end: panic at the end")));
}
