//! Ports with peers: pipelines over connections and datagrams of the software device.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dataplane::config::Source;
use dataplane::provider::connect::{Listener, Offer, Patience, QueuePairEndpoint, VERSION};
use dataplane::provider::{GidKind, LinkLayer, QpType};
use dataplane::runtime::{Options, Run};
use dataplane::units::QpNum;

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

/// What a peer may tell of a queue pair that is not there.
fn nobody() -> QueuePairEndpoint {
    QueuePairEndpoint {
        version: VERSION,
        transport: QpType::Rc,
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        gid: "2001:db8::1".parse().unwrap(),
        gid_kind: GidKind::RoceV2,
        qpn: QpNum(77),
        psn: 5,
        path_mtu: 3,
        max_dest_rd_atomic: 1,
        max_message: 1024,
        qkey: 0,
        generation: 0,
        queue: 0,
        receive_depth: 64,
        buffer: None,
    }
}

/// A port that goes to a peer at this address.
fn caller(address: SocketAddr) -> String {
    format!(
        r#"
        [runtime]
        workers = 1
        hugepages = "none"
        [[port]]
        name = "caller"
        device = "soft"
        qp = "rc"
        link = {{ kind = "loopback" }}
        connection = {{ to = "{address}", deadline = "60m", step_deadline = "60s" }}
        [pipeline]
        input = ["caller"]
        [[pipeline.stage]]
        use = "drop"
        "#
    )
}

/// A peer that goes away between the two steps of the handshake is not the last: the port, whose queue pair was in RTS
/// already, begins anew with the next.
#[test]
fn a_peer_that_goes_away_in_the_handshake_is_not_the_last() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let text = caller(listener.address().unwrap());
    let peer = thread::spawn(move || {
        let patience = Patience::new(Duration::from_secs(100), Duration::from_secs(60));
        let offer = Offer { endpoints: &[nobody()], allow_self: false };
        let first = listener.accept(&offer, &patience).unwrap();
        let before = first.remotes[0].generation;
        drop(first);
        let second = listener.accept(&offer, &patience).unwrap();
        let after = second.remotes[0].generation;
        (before, after, second.confirm(&patience).unwrap())
    });
    let source = Source::new(Path::new("peers.toml"), &text, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let begin = Instant::now();
    let late = || begin.elapsed() > Duration::from_secs(120);
    let run = Run::start_unless(assembly, Options::default(), late).unwrap();
    let (before, after, lifeline) = peer.join().unwrap();
    run.stop();
    assert_good(&run.join().unwrap());
    drop(lifeline);
    assert_eq!((before, after), (0, 1));
}

/// While its peer is waited for a start can be called off.
#[test]
fn a_start_that_waits_for_a_peer_can_be_called_off() {
    // Somebody listens there, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = caller(silent.local_addr().unwrap());
    let source = Source::new(Path::new("peers.toml"), &text, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let mut asked = 0;
    let called_off = || {
        asked += 1;
        asked == 2
    };
    let error = Run::start_unless(assembly, Options::default(), called_off).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("stopped before"), "{error}");
    // It is not asked again.
    assert_eq!(asked, 2);
}
