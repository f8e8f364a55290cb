//! Tests of `bench verbs` with peers that stop, that have other options, or that are not perftest.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;
use dataplane::soft::{LinkSpec, LoopbackLink, PortSpec, SoftDevice, SoftLimits, SoftQuirk, SoftSpec};
use dataplane_bench::verbs::{Exchange, Listener, Output, Plan, Session, SideReport, VerbsArgs, VerbsRow};

static RUNNING: AtomicBool = AtomicBool::new(false);

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: VerbsArgs,
}

fn plan(line: &str) -> Plan {
    let words = ["verbs", "--device", "soft"].into_iter().chain(line.split_whitespace());
    let plan = Program::parse_from(words).args.plan().unwrap();
    Plan { timeout: Duration::from_secs(60), ..plan }
}

/// Returns two connected devices, after `change` of their properties.
fn devices(change: impl Fn(&mut SoftSpec)) -> [SoftDevice; 2] {
    let (near, far) = LoopbackLink::pair();
    [("soft0", 1, near), ("soft1", 2, far)].map(|(name, last, link)| {
        let spec = SoftSpec::new(name, LinkSpec::Loopback(link));
        let mut spec = SoftSpec { mac: [2, 0, 0, 0, 0, last], ..spec };
        change(&mut spec);
        SoftDevice::new(spec).unwrap()
    })
}

/// Sets a flag when the run has the given number of results.
struct StopAfter<'s>(usize, &'s AtomicBool);

impl Output for StopAfter<'_> {
    fn connected(&mut self, _: &SideReport) {
        self.row_count(0);
    }

    fn row(&mut self, report: &SideReport, _: &VerbsRow) {
        self.row_count(report.results.len() + 1);
    }
}

impl StopAfter<'_> {
    fn row_count(&self, rows: usize) {
        if rows >= self.0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs a server and a client. The flag of the server is set after `stop_after` results of the server. Returns the
/// reports of the server and of the client.
fn run_both(server_plan: &Plan, client_plan: &Plan, stop_after: usize) -> [SideReport; 2] {
    run_on(devices(|_| {}), server_plan, client_plan, stop_after)
}

/// Does the same as [`run_both`], on these devices.
fn run_on(devices: [SoftDevice; 2], server_plan: &Plan, client_plan: &Plan, stop_after: usize) -> [SideReport; 2] {
    let [server, client] = devices;
    let (listener, address) = Listener::local().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let exchange = listener.accept(server_plan.timeout, &stop).unwrap();
            Session::new(&server, server_plan, exchange, &mut StopAfter(stop_after, &stop)).run().0
        });
        let exchange = Exchange::connect("127.0.0.1", address.port(), client_plan.timeout, &RUNNING).unwrap();
        let called = Session::new(&client, client_plan, exchange, &mut StopAfter(usize::MAX, &stop)).run().0;
        [serving.join().unwrap(), called]
    })
}

fn failure(report: &SideReport) -> &str {
    assert!(!report.complete);
    report.failure.as_deref().unwrap()
}

#[test]
fn different_options_of_two_programs_are_reported_by_both() {
    for (server, client, expected) in [
        (
            "send_bw",
            "send_lat",
            "TEST: this side has send_bw, and the peer has send_lat; help: use the same TEST on both sides",
        ),
        ("send_bw", "send_bw -t uc", "--type: this side has rc, and the peer has uc"),
        ("send_bw", "send_bw -s 1", "--size: this side has 65536, and the peer has 1"),
        ("send_bw -a", "send_bw", "--size: this side has all, and the peer has 65536"),
        ("send_bw -D 1s", "send_bw", "--duration: this side has 1s, and the peer has none"),
        ("write_bw -b", "write_bw", "--bidirectional: this side has yes, and the peer has no"),
        ("send_bw -q 4", "send_bw", "--queue-pairs: this side has 4, and the peer has 1"),
        ("send_bw", "send_bw -n 5", "--iterations: this side has 1000, and the peer has 5"),
    ] {
        let [server, client] = run_both(&plan(server), &plan(client), usize::MAX);
        assert!(failure(&server).starts_with(expected), "{server:?}");
        assert!(failure(&client).contains("this side has"), "{client:?}");
    }
}

#[test]
fn results_before_the_end_of_the_peer_are_kept() {
    for test in ["send_bw -a -n 500", "send_lat -a -n 500", "write_lat -a -n 500", "send_lat -t ud -a -n 500"] {
        let [server, client] = run_both(&plan(test), &plan(test), 3);
        assert!(failure(&server).contains("stopped before the end"), "{server:?}");
        assert!(failure(&client).contains("the peer closed the connection"), "{client:?}");
        assert!(client.results.len() >= 2 && client.results.len() < 11, "{client:?}");
        assert_eq!((client.results[0].bytes, client.results[0].iterations), (2, 500));
    }
}

#[test]
fn peer_that_stops_before_the_test_is_reported() {
    let [server, client] = run_both(&plan("write_lat -n 1000000"), &plan("write_lat -n 1000000"), 0);
    assert!(failure(&server).contains("stopped before the end"), "{server:?}");
    assert!(failure(&client).contains("the peer closed the connection"), "{client:?}");
}

#[test]
fn device_without_reads_and_atomics_is_refused() {
    let (link, _) = LoopbackLink::pair();
    let spec = SoftSpec::new("soft0", LinkSpec::Loopback(link));
    let limits = SoftLimits { max_rd_atomic: 0, ..SoftLimits::default() };
    let device = SoftDevice::new(SoftSpec { mac: [2, 0, 0, 0, 0, 1], limits, ..spec }).unwrap();
    let plan = plan("read_bw");
    let (listener, address) = Listener::local().unwrap();
    let _peer = TcpStream::connect(address).unwrap();
    let exchange = listener.accept(plan.timeout, &RUNNING).unwrap();
    let (report, _) = Session::new(&device, &plan, exchange, &mut StopAfter(usize::MAX, &RUNNING)).run();
    assert_eq!(failure(&report), "read_bw: soft0 permits no reads and atomics; help: use another device or test");
}

/// Runs a server with a peer that sends these bytes and then closes its side. Returns the failure of the server.
fn serve(sent: &[u8]) -> String {
    serve_plan(&plan("send_bw -s 64"), sent)
}

fn serve_plan(plan: &Plan, sent: &[u8]) -> String {
    let [device, _] = devices(|_| {});
    let (listener, address) = Listener::local().unwrap();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(sent).unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The answers of the server do not matter.
            let _ = peer.read_to_end(&mut Vec::new());
        });
        let exchange = listener.accept(plan.timeout, &RUNNING).unwrap();
        let (report, error) = Session::new(&device, plan, exchange, &mut StopAfter(usize::MAX, &RUNNING)).run();
        assert_eq!(error.unwrap().to_string(), failure(&report));
        failure(&report).to_owned()
    })
}

#[test]
fn peer_that_is_not_perftest_is_refused_with_the_reason() {
    let version = |text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(16, 0);
        bytes
    };
    let with = |parts: &[&[u8]]| [&version("6.06")[..], &parts.concat()].concat();
    let system: &[u8] = &[0, 0, 16, 0, 0, 0, 0, 64];
    for (sent, expected) in [
        (version("5.60"), "versions: the peer has version 5.60 of perftest, but this program (6.06) needs 5.70 or later; help: update"),
        (version("6.28"), "versions: the peer has version 6.28 of perftest, whose exchange works only with its own version; help: update perftest on the other side to 6.29"),
        (version("6.29"), "cycle buffer: the peer closed the connection; help:"),
        (b"GET / HTTP/1.1\r\n".to_vec(), "versions: the peer sent `GET / HTTP/1.1\\r\\n`, which is not a version of perftest; help: check HOST"),
        (version("6.06"), "cycle buffer: the peer closed the connection; help:"),
        (b"6.0".to_vec(), "versions: the peer closed the connection; help:"),
        (with(&[&[0xff; 8]]), "cycle buffer: the peer sent 4294967295, which is not in 1 to 16777216"),
        (with(&[system, b"9\0"]), "path MTU: the peer sent the code `9\\x00`, which is not in 1 to 5"),
        (with(&[system, b"3\0", &[b'x'; 108]]), "destinations: `xxx"),
        (
            with(&[system, b"3\0", b"0000:0001:000001:000000:00000000:0000000000000000:fe:80:00:00:00:00:00:00:00:00:00:00:00:00:00:01:00000000:\0"]),
            "the peer's queue pair number is 1, which is not in 2 to 16777215",
        ),
    ] {
        let found = serve(&sent);
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn peer_does_not_choose_the_memory_of_many_queue_pairs() {
    let plan = Plan { queue_pairs: 512, ..plan("write_bw -s 64") };
    let sent = |cycle: u32| {
        let mut bytes = b"6.06".to_vec();
        bytes.resize(16, 0);
        [&bytes[..], &cycle.to_be_bytes(), &64u32.to_be_bytes()].concat()
    };
    let found = serve_plan(&plan, &sent(1 << 24));
    assert!(
        found.starts_with("cycle buffer: the peer sent 16777216, which is not in 1 to 131072 for 512 queue pairs"),
        "{found}"
    );
    let found = serve_plan(&plan, &sent(1 << 16));
    assert!(found.starts_with("path MTU: the peer closed the connection"), "{found}");
}

/// Two messages of a datagram test are lost: the receiver reports the loss, and the run is complete.
#[test]
fn lost_datagrams_are_counted() {
    let plan = plan("send_bw -t ud -s 64 -n 400 --rx-depth 1 --cq-mod 1 --tx-depth 400");
    let [server, client] = run_both(&plan, &plan, usize::MAX);
    assert!(server.complete && client.complete, "{server:?}{client:?}");
    let (received, lost) = (server.results[0].iterations, server.results[0].lost.unwrap());
    assert_eq!((received + lost, client.results[0].iterations, client.results[0].lost), (400, 400, None));
    // With 2 queue pairs, twice as many messages are lost.
    let plan = Plan { queue_pairs: 2, ..plan };
    let lossy = devices(|spec| spec.faults.loss = 1.0);
    let [server, client] = run_on(lossy, &plan, &plan, usize::MAX);
    assert_eq!((server.results[0].lost, client.results[0].iterations), (Some(800), 800), "{server:?}");
}

#[test]
fn test_that_loses_all_messages_has_a_row() {
    let plan = plan("send_bw -t ud -s 64 -n 20");
    let lossy = devices(|spec| spec.faults.loss = 1.0);
    let [server, client] = run_on(lossy, &plan, &plan, usize::MAX);
    assert!(server.complete && client.complete, "{server:?}{client:?}");
    let row = &server.results[0];
    assert_eq!((row.iterations, row.lost), (0, Some(20)), "{server:?}");
}

#[test]
fn test_with_a_duration_fails_if_no_message_arrives() {
    let plan = plan("send_bw -t ud -s 64 -D 200ms");
    let lossy = devices(|spec| spec.faults.loss = 1.0);
    let [server, _] = run_on(lossy, &plan, &plan, usize::MAX);
    assert!(failure(&server).starts_with("no message arrived; help: "), "{server:?}");
}

/// Some ports are neither Ethernet nor InfiniBand ports, and have no local identifier.
#[test]
fn port_without_local_identifier_is_reached_by_its_gid() {
    let plan = plan("send_bw -t ud -s 64 -n 20");
    let unspecified = devices(|spec| spec.quirks = vec![SoftQuirk::UnspecifiedLinkLayer]);
    let [server, client] = run_on(unspecified, &plan, &plan, usize::MAX);
    assert!(server.complete && client.complete, "{server:?}{client:?}");
    assert!(!client.ethernet && client.gid.starts_with("fe80::"), "{client:?}");
}

/// On ports of virtual functions, the fabric routes packets by GID.
#[test]
fn infiniband_port_that_requires_a_grh_is_reached_by_its_gid() {
    for transport in ["rc", "uc", "ud"] {
        let plan = plan(&format!("send_bw -t {transport} -s 64 -n 20"));
        let devices = devices(|spec| {
            let lid = spec.mac[5].into();
            spec.port = PortSpec { lid, grh_required: true, ..PortSpec::default() };
        });
        let [server, client] = run_on(devices, &plan, &plan, usize::MAX);
        assert!(server.complete && client.complete, "{server:?}{client:?}");
    }
}

/// The link-local GID of a port may not be an address of the interface, so the peer may not reach this GID.
#[test]
fn default_gid_is_not_link_local() {
    let plan = plan("send_bw -s 64 -n 20");
    let devices = devices(|_| {});
    for (device, address) in devices.iter().zip(["2001:db8::1", "2001:db8::2"]) {
        device.set_gids(&[device.gid(), address.parse().unwrap()]);
    }
    let [server, client] = run_on(devices, &plan, &plan, usize::MAX);
    assert!(server.complete && client.complete, "{server:?}{client:?}");
    assert_eq!([server.gid, client.gid], ["2001:db8::1", "2001:db8::2"]);
}

/// Runs a test on devices with a property of a real NIC.
fn run_on_nics(quirk: SoftQuirk, line: &str) -> [SideReport; 2] {
    run_on(devices(|spec| spec.quirks = vec![quirk]), &plan(line), &plan(line), usize::MAX)
}

#[test]
fn device_that_refuses_unsignalled_sends_needs_a_completion_for_each_request() {
    let [_, client] = run_on_nics(SoftQuirk::RefusesUnsignalled, "send_bw -t ud -s 64 -n 20");
    let found = failure(&client);
    assert!(found.contains("Invalid argument") && found.ends_with("use --cq-mod 1"), "{found}");
    let [server, client] = run_on_nics(SoftQuirk::RefusesUnsignalled, "send_bw -t ud -s 64 -n 20 --cq-mod 1");
    assert!(server.complete && client.complete, "{server:?}{client:?}");
}

#[test]
fn inline_size_that_the_device_does_not_grant_is_refused() {
    let [_, client] = run_on_nics(SoftQuirk::GrantsLessInline, "send_lat -s 64 -n 20 --inline 64");
    assert_eq!(failure(&client), "--inline 64: soft1 grants at most 32 bytes; help: use --inline 32");
    let [server, client] = run_on_nics(SoftQuirk::GrantsLessInline, "send_lat -s 64 -n 20 --inline 32");
    assert!(server.complete && client.complete, "{server:?}{client:?}");
}
