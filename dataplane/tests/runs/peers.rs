//! Ports with peers: pipelines over connections and datagrams of the software device.

use std::path::Path;
use std::time::Duration;

use dataplane::config::Source;
use dataplane::runtime::{Options, Run};

use crate::common::{assembled, assert_good, counter, drops};

/// Packets of `source` go from `left` to `right` and round again, until their TTL of 64 is used up.
fn config(kind: &str, workers: u32, faults: &str) -> String {
    let port = |name: &str, peer: &str| {
        format!(
            r#"
            [[port]]
            name = "{name}"
            device = "soft"
            qp = "{kind}"
            link = {{ kind = "loopback", peer = "{peer}" }}
            connection = {{ peer = "{peer}", deadline = "60s", step_deadline = "60s" }}
            {faults}
            "#
        )
    };
    format!(
        r#"
        [runtime]
        workers = {workers}
        burst = 32
        hugepages = "none"
        [[port]]
        name = "source"
        device = "soft"
        link = {{ kind = "generator", size = 64, flows = 16, count = 100 }}
        {}
        {}
        [pipeline]
        input = ["source", "right"]
        [[pipeline.stage]]
        use = "parse"
        outputs = {{ arp = "drop", other = "drop" }}
        [[pipeline.stage]]
        use = "ttl"
        [[pipeline.stage]]
        name = "out"
        use = "tx"
        port = "left"
        "#,
        port("left", "right"),
        port("right", "left")
    )
}

/// Sent so often by a TTL of 64, and then dropped.
const HOPS: u64 = 63;

fn run(config: &str, packets: u64) -> dataplane::telemetry::Report {
    let source = Source::new(Path::new("peers.toml"), config, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let options = Options { packets: Some(packets), duration: Some(Duration::from_secs(120)) };
    Run::start(assembly, options).unwrap().join().unwrap()
}

#[test]
fn packets_go_round_over_every_type_of_queue_pair() {
    for kind in ["rc", "uc", "ud"] {
        // The last time that a packet comes in it is dropped: that it is, the counters of the stage tell.
        let report = run(&config(kind, 1, ""), 100 * (HOPS + 1));
        assert_good(&report);
        assert_eq!(report.packets.rx, 100 * (HOPS + 1), "{kind}: {report}");
        assert_eq!(drops(&report, "ttl.expired"), 100, "{kind}: {report}");
        let left = report.ports.iter().find(|port| port.name == "left").unwrap();
        assert_eq!((left.packets.tx, left.recoveries, left.tx_not_connected), (100 * HOPS, 0, 0), "{kind}: {report}");
    }
}

/// What the wire loses, doubles and mixes up, a reliable connection brings all the same: once, and in order.
#[test]
fn a_reliable_connection_mends_its_wire() {
    let faults = "faults = { seed = 7, loss = 0.02, duplicate = 0.05, reorder = 0.05 }";
    let report = run(&config("rc", 1, faults), 100 * (HOPS + 1));
    assert_good(&report);
    assert_eq!(drops(&report, "ttl.expired"), 100, "{report}");
    let faults: u64 = [1, 2].into_iter().map(|port| counter(&report, port, "faults")).sum();
    assert!(faults > 0, "{report}");
}

/// Datagrams that are lost are lost; the ledger adds up all the same.
#[test]
fn datagrams_are_lost_and_accounted_for() {
    let source = config("ud", 1, "faults = { seed = 7, loss = 0.1 }");
    let source = Source::new(Path::new("peers.toml"), &source, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let options = Options { packets: None, duration: Some(Duration::from_millis(500)) };
    let report = Run::start(assembly, options).unwrap().join().unwrap();
    assert_good(&report);
    let sent = report.ports.iter().find(|port| port.name == "left").unwrap().packets.tx;
    let came = report.ports.iter().find(|port| port.name == "right").unwrap().packets.rx;
    assert!(came < sent && drops(&report, "ttl.expired") < 100, "{report}");
}

/// Each worker has a connection of its own.
#[test]
fn several_workers_have_several_connections() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        println!("skipped: two workers want two cores");
        return;
    }
    let report = run(&config("rc", 2, ""), 100 * (HOPS + 1));
    assert_good(&report);
    assert_eq!(drops(&report, "ttl.expired"), 100, "{report}");
    assert_eq!(report.workers.len(), 2);
}

/// A peer that does not come is said at the deadline, with the port that waits.
#[test]
fn a_peer_that_does_not_come_is_an_error() {
    let text = r#"
        [runtime]
        workers = 1
        hugepages = "none"
        [[port]]
        name = "lonely"
        device = "soft"
        qp = "rc"
        link = { kind = "loopback" }
        connection = { listen = "127.0.0.1:28515", deadline = "200ms", step_deadline = "100ms" }
        [pipeline]
        input = ["lonely"]
        [[pipeline.stage]]
        use = "drop"
        "#;
    let source = Source::new(Path::new("peers.toml"), text, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let error = Run::start(assembly, Options::default()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("lonely") && error.contains("deadline"), "{error}");
}
