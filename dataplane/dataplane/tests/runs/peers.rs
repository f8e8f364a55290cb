//! Tests of ports with peers: pipelines over connections and datagrams of the software device.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use dataplane::config::Source;
use dataplane::connect::{Listener, Offer, QueuePairEndpoint, VERSION, WaitLimits};
use dataplane::runtime::{Options, Run};
use dataplane::units::QpNum;
use dataplane::verbs::{GidKind, LinkLayer, QpType};
use dataplane_testing::config::Config;
use dataplane_testing::skip;

use crate::common::{assembled, assert_good, counter, drops};

/// Returns a config in which packets from `source` are sent on `left`, arrive at `right`, and are sent on `left` again
/// until their TTL of 64 expires.
fn config(kind: &str, workers: usize, faults: &str) -> String {
    let lines = |peer: &str| {
        format!(
            "qp = '{kind}'\n\
             connection = {{ peer = '{peer}', deadline = '60s', step_deadline = '60s' }}\n\
             {faults}"
        )
    };
    Config::new()
        .workers(workers)
        .runtime("burst = 32")
        .port("source", "kind = 'generator', size = 64, flows = 16, count = 100")
        .port_with("left", "kind = 'loopback', peer = 'right'", &lines("right"))
        .port_with("right", "kind = 'loopback', peer = 'left'", &lines("left"))
        .input(&["source", "right"])
        .stage("parse", "outputs = { arp = 'drop', other = 'drop' }")
        .stage("ttl", "")
        .stage("tx", "name = 'out'\nport = 'left'")
        .to_string()
}

/// The number of times that a packet with a TTL of 64 is sent before the drop.
const HOPS: u64 = 63;

fn run(config: &str, packets: u64) -> dataplane::telemetry::Report {
    let source = Source::new(Path::new("peers.toml"), config, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let options = Options { packets: Some(packets), duration: Some(Duration::from_secs(120)) };
    Run::start(assembly, options).unwrap().join().unwrap()
}

#[test]
fn packets_circulate_over_every_queue_pair_type() {
    for kind in ["rc", "uc", "ud"] {
        // Each packet is received once from `source` and 63 times at `right`. The stage `ttl` drops the packet when its
        // TTL expires.
        let report = run(&config(kind, 1, ""), 100 * (HOPS + 1));
        assert_good(&report);
        assert_eq!(report.packets.rx, 100 * (HOPS + 1), "{kind}: {report}");
        assert_eq!(drops(&report, "ttl.expired"), 100, "{kind}: {report}");
        let left = report.ports.iter().find(|port| port.name == "left").unwrap();
        assert_eq!((left.packets.tx, left.recoveries, left.tx_not_connected), (100 * HOPS, 0, 0), "{kind}: {report}");
    }
}

/// A packet of the default `mtu` fits into one datagram.
#[test]
fn datagrams_carry_the_longest_packets() {
    let report = run(&config("ud", 1, "").replace("size = 64", "size = 1514"), 100 * (HOPS + 1));
    assert_good(&report);
    assert_eq!(drops(&report, "ttl.expired"), 100, "{report}");
}

/// The peer of `right` posts no receives, because `left` is not an input. A message would end the connection.
#[test]
fn packets_to_a_peer_without_receives_do_not_end_the_connection() {
    let report = run(&config("rc", 1, "").replace("port = 'left'", "port = 'right'"), 100);
    assert_good(&report);
    assert_eq!(drops(&report, "right.not_connected"), 100, "{report}");
    assert!(report.ports.iter().all(|port| port.recoveries == 0), "{report}");
}

/// Some RDMA providers, such as qedr, mana and erdma, have connections but no address handles.
#[test]
fn connection_needs_no_address_handle() {
    for kind in ["rc", "uc"] {
        let report = run(&config(kind, 1, "refuse = ['datagram']"), 100 * (HOPS + 1));
        assert_good(&report);
        assert_eq!(drops(&report, "ttl.expired"), 100, "{kind}: {report}");
    }
}

/// A reliable connection delivers every packet once and in order, despite loss, duplication and reordering on the wire.
#[test]
fn reliable_connection_recovers_from_wire_faults() {
    let faults = "faults = { seed = 7, loss = 0.02, duplicate = 0.05, reorder = 0.05 }";
    let report = run(&config("rc", 1, faults), 100 * (HOPS + 1));
    assert_good(&report);
    assert_eq!(drops(&report, "ttl.expired"), 100, "{report}");
    let faults: u64 = [1, 2].into_iter().map(|port| counter(&report, port, "faults")).sum();
    assert!(faults > 0, "{report}");
}

/// Lost datagrams are not retransmitted, and the ledger still balances.
#[test]
fn lost_datagrams_are_accounted_for() {
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

/// Each of two workers has its own connection, and the packets of both workers arrive.
#[test]
fn each_worker_has_its_own_connection() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return skip("two workers need two cores");
    }
    let report = run(&config("rc", 2, ""), 100 * (HOPS + 1));
    assert_good(&report);
    assert_eq!(drops(&report, "ttl.expired"), 100, "{report}");
    assert_eq!(report.workers.len(), 2);
}

/// If the peer does not connect before the deadline, the error names the waiting port.
#[test]
fn missing_peer_is_an_error_at_the_deadline() {
    let connection = "{ listen = '127.0.0.1:28515', deadline = '200ms', step_deadline = '100ms' }";
    let lines = format!("qp = 'rc'\nconnection = {connection}");
    let text = Config::new().port_with("lonely", "kind = 'loopback'", &lines).stage("drop", "").to_string();
    let source = Source::new(Path::new("peers.toml"), &text, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let error = Run::start(assembly, Options::default()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("lonely") && error.contains("deadline"), "{error}");
}

/// A port with `required = false` does not delay the start of a run. While the peer is absent, the packets of the port
/// are dropped.
#[test]
fn run_starts_without_the_peer_of_a_port_that_is_not_required() {
    let connection = "{ to = '127.0.0.1:1', deadline = '200ms', step_deadline = '100ms' }";
    let text = |required: bool| {
        let lines = format!("qp = 'rc'\nconnection = {connection}\nrequired = {required}");
        let pair = |peer: &str| format!("qp = 'rc'\nconnection = {{ peer = '{peer}', deadline = '60s' }}");
        Config::new()
            .runtime("burst = 32")
            .port("source", "kind = 'generator', size = 64, flows = 16, count = 100")
            .port_with("left", "kind = 'loopback', peer = 'right'", &pair("right"))
            .port_with("right", "kind = 'loopback', peer = 'left'", &pair("left"))
            .port_with("spare", "kind = 'loopback'", &lines)
            .input(&["source", "right"])
            .stage("parse", "outputs = { arp = 'drop', other = 'drop' }")
            .stage("ttl", "outputs = { expired = 'lost' }")
            .stage("tx", "name = 'out'\nport = 'left'")
            .stage("tx", "name = 'lost'\nport = 'spare'")
            .to_string()
    };
    let report = run(&text(false), 100 * (HOPS + 1));
    assert_good(&report);
    assert_eq!(drops(&report, "spare.not_connected"), 100, "{report}");
    let left = report.ports.iter().find(|port| port.name == "left").unwrap();
    assert_eq!((left.packets.tx, left.tx_not_connected), (100 * HOPS, 0), "{report}");

    let source = text(true);
    let source = Source::new(Path::new("peers.toml"), &source, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let error = Run::start(assembly, Options::default()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("spare") && error.contains("deadline"), "{error}");
}

/// A port with `required = false` connects after the start of the run, when its peer appears.
#[test]
fn port_that_is_not_required_connects_during_the_run() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let connection = format!("{{ to = '{}', step_deadline = '60s' }}", listener.address().unwrap());
    let lines = format!("qp = 'rc'\nconnection = {connection}\nrequired = false");
    let text = Config::new().port_with("caller", "kind = 'loopback'", &lines).stage("drop", "").to_string();
    let source = Source::new(Path::new("peers.toml"), &text, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    // The start does not wait, so the peer can answer afterwards on this thread.
    let run = Run::start(assembly, Options::default()).unwrap();
    let limits = WaitLimits::new(Duration::from_secs(100), Duration::from_secs(60));
    let offer = Offer { endpoints: &[unconnected_endpoint()], allow_self: false };
    let lifeline = listener.accept(&offer, &limits).unwrap().confirm(&limits).unwrap();
    run.stop();
    assert_good(&run.join().unwrap());
    drop(lifeline);
}

/// Returns a valid endpoint without a queue pair behind it.
fn unconnected_endpoint() -> QueuePairEndpoint {
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

/// Returns a config with a port that connects to a peer at the address `address`.
fn caller(address: SocketAddr) -> String {
    let connection = format!("{{ to = '{address}', deadline = '60m', step_deadline = '60s' }}");
    let lines = format!("qp = 'rc'\nconnection = {connection}");
    Config::new().port_with("caller", "kind = 'loopback'", &lines).stage("drop", "").to_string()
}

/// If a peer disconnects after the exchange of the endpoints, but before the peer confirms, the port restarts the
/// handshake with the next peer. At that time, the queue pair of the port may already be in RTS.
#[test]
fn handshake_restarts_after_a_peer_disconnects() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let text = caller(listener.address().unwrap());
    let peer = thread::spawn(move || {
        let limits = WaitLimits::new(Duration::from_secs(100), Duration::from_secs(60));
        let offer = Offer { endpoints: &[unconnected_endpoint()], allow_self: false };
        let first = listener.accept(&offer, &limits).unwrap();
        let before = first.remotes[0].generation;
        drop(first);
        let second = listener.accept(&offer, &limits).unwrap();
        let after = second.remotes[0].generation;
        (before, after, second.confirm(&limits).unwrap())
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

/// While the start of a run waits for a peer, it calls `cancelled` repeatedly. The start fails once `cancelled` returns
/// `true`.
#[test]
fn waiting_start_can_be_cancelled() {
    // The listener accepts TCP connections, but sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = caller(silent.local_addr().unwrap());
    let source = Source::new(Path::new("peers.toml"), &text, &[]);
    let assembly = assembled(&source).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let mut asked = 0;
    let cancelled = || {
        asked += 1;
        asked == 2
    };
    let error = Run::start_unless(assembly, Options::default(), cancelled).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("stopped before"), "{error}");
    // `cancelled` is not called again after it has returned `true`.
    assert_eq!(asked, 2);
}
