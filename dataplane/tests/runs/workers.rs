//! Several workers: flows keep their worker and their order, nothing is lost between them.

use std::collections::BTreeMap;

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};
use dataplane::telemetry::Report;
use dataplane::testing::frame;

use crate::common::{Folder, assembled_with, assert_good, captures, counter, drops, frames_of};

/// A port that plays a capture, and one that what `stages` make of it is written by.
fn config(workers: u32, input: &str, more: &str) -> String {
    format!(
        r#"
        [runtime]
        workers = {workers}
        burst = 16
        hugepages = "none"
        [[port]]
        name = "in"
        device = "soft"
        rx_depth = 64
        link = {{ kind = "pcap", input = "{input}" }}
        [[port]]
        name = "out"
        device = "soft"
        link = {{ kind = "pcap", output = "out.pcap" }}
        [pipeline]
        input = ["in"]
        {more}
        [[pipeline.stage]]
        use = "tx"
        port = "out"
        "#
    )
}

#[test]
fn generated_flows_are_shared_out_without_loss() {
    for (protocol, count) in [("udp4", 100_000), ("tcp4", 99_999), ("udp6", 1)] {
        let text = format!(
            r#"
            [runtime]
            workers = 2
            hugepages = "none"
            [[port]]
            name = "p"
            device = "soft"
            link = {{ kind = "generator", flows = 1000, count = {count}, size = 80, protocol = "{protocol}" }}
            [pipeline]
            input = ["p"]
            [[pipeline.stage]]
            use = "parse"
            [[pipeline.stage]]
            use = "tx"
            port = "p"
            "#
        );
        let report = Folder::new().run(&text);
        assert_good(&report);
        assert_eq!((report.packets.rx, report.packets.tx), (count, count), "{report}");
        assert_eq!(report.workers.len(), 2);
        if count > 1 {
            // Half of the flows each, or not far from it.
            for worker in &report.workers {
                assert!(worker.ledger.rx > count / 4, "{report}");
            }
            let parts: Vec<&str> = report.costs.iter().map(|cost| cost.part.as_str()).collect();
            assert_eq!(parts, ["reap", "receive", "parse", "tx", "transmit", "refill", "all"], "{report}");
            assert!(report.costs.iter().all(|cost| cost.bursts >= 1 && cost.burst >= 1.0), "{report}");
        }
    }
}

/// The ends of a flow and where its number is, of frames that this file builds.
fn flow(frame: &[u8]) -> (Vec<u8>, u32) {
    (frame[26..38].to_vec(), u32::from_be_bytes(frame[42..46].try_into().unwrap()))
}

#[test]
fn a_flow_keeps_its_worker_and_its_order() {
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
    // Each worker's stage counts for itself; what differs between workers is only which flows they see.
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
        // Whole flows: were one on both workers, neither would have a multiple of what a flow has.
        assert_eq!(worker.ledger.rx % u64::from(EACH), 0, "{report}");
    }
}

#[test]
fn real_traffic_is_shared_out_without_loss() {
    let folder = Folder::new();
    for input in captures() {
        let frames = frames_of(&input);
        for times in [1, 20] {
            let text = config(2, &format!("{}\", loop = {times}, pace = \"fast", input.display()), "");
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

/// What one worker sends on one end of a cable another may receive at the other end.
#[test]
fn ports_are_joined_across_workers() {
    for workers in [1, 2] {
        let folder = Folder::new();
        let text = format!(
            r#"
            [runtime]
            workers = {workers}
            burst = 32
            hugepages = "none"
            [[port]]
            name = "source"
            device = "soft"
            link = {{ kind = "generator", flows = 100, rate = 100_000 }}
            [[port]]
            name = "left"
            device = "soft"
            link = {{ kind = "loopback", peer = "right" }}
            rss = {{ key = "symmetric" }}
            [[port]]
            name = "right"
            device = "soft"
            link = {{ kind = "loopback", peer = "left" }}
            [pipeline]
            input = ["source", "right"]
            [[pipeline.stage]]
            use = "parse"
            [[pipeline.stage]]
            use = "ttl"
            [[pipeline.stage]]
            use = "acl"
            default = "permit"
            rules = []
            [[pipeline.stage]]
            name = "out"
            use = "tx"
            port = "left"
            "#
        );
        // A machine with other work to do may start a worker late: then more packets are asked for.
        let shared = (0..8).map(|times| joined(&folder, &text, 20_000 << times)).any(|report| {
            assert_eq!(report.workers.len(), workers);
            report.workers.iter().all(|worker| worker.ledger.rx > 0)
        });
        assert!(shared, "a worker of {workers} got nothing");
    }
}

/// What goes in at one end has come out, or the device says that it was lost, or it was still under way.
fn joined(folder: &Folder, text: &str, packets: u64) -> Report {
    let report = folder.run_until(text, Options { packets: Some(packets), ..Options::default() });
    assert_good(&report);
    let [source, left, right] = &report.ports[..] else { panic!("{report}") };
    assert_eq!((left.packets.rx, right.packets.tx, source.packets.tx), (0, 0, 0), "{report}");
    assert_eq!(right.packets.rx, counter(&report, 2, "rx_packets"), "{report}");
    assert!(right.packets.rx > 0 && right.packets.rx <= left.packets.tx, "{report}");
    assert_eq!(left.packets.tx + drops(&report, "left.tx_full") + drops(&report, "ttl.expired"), report.packets.rx);
    report
}

/// With two workers, one of which gets nothing, a number of packets is still reached, and not exceeded.
#[test]
fn a_number_of_packets_is_reached_whoever_gets_them() {
    for packets in [1, 10, 1000] {
        let text = r#"
            [runtime]
            workers = 2
            burst = 64
            hugepages = "none"
            [[port]]
            name = "g"
            device = "soft"
            link = { kind = "generator", flows = 1, rate = 1_000_000 }
            [[port]]
            name = "quiet"
            device = "soft"
            link = { kind = "loopback" }
            [pipeline]
            input = ["g", "quiet"]
            [[pipeline.stage]]
            use = "tx"
            port = "g"
            "#;
        for _ in 0..10 {
            let report = Folder::new().run_until(text, Options { packets: Some(packets), ..Options::default() });
            assert_good(&report);
            assert_eq!(report.packets.rx, packets, "{report}");
        }
    }
}

/// Panics on the second worker.
#[derive(serde::Deserialize)]
struct Trap {}

impl Stage for Trap {
    fn process(&mut self, ctx: &Ctx, _batch: &mut Batch) {
        assert!(ctx.worker == 0, "the trap has sprung");
    }
}

#[test]
fn a_worker_that_panics_ends_the_run_and_is_named() {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<Trap>("trap");
    let text = r#"
        [runtime]
        workers = 2
        hugepages = "none"
        [[port]]
        name = "p"
        device = "soft"
        link = { kind = "generator", flows = 100 }
        [pipeline]
        input = ["p"]
        [[pipeline.stage]]
        use = "trap"
        [[pipeline.stage]]
        use = "tx"
        port = "p"
        "#;
    let assembly = assembled_with(&Source::new("trap.toml", text, &[]), &registry).unwrap();
    let error = Run::start(assembly, Options::default()).unwrap().join().unwrap_err().to_string();
    assert!(error.contains("worker 1") && error.contains("the trap has sprung"), "{error}");
}
