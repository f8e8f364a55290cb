//! Tests of the command `why`. Each test runs configs that drop or lose packets. The command must name the largest
//! cause first. The tests in `why_interfaces` need interfaces.

use dataplane::header::MacAddr;
use dataplane::header::build::Frame;
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;
use serde_json::Value;

use crate::common::{LINK, Running, RuntimeFolder, json, number};

/// The link of a port that receives few frames, so that the generator needs little CPU time. The destination MAC
/// address of the frames is the address of [`OWN`].
pub(crate) const SLOW: &str = "kind = 'generator', size = 64, flows = 16, rate = '2kpps'";

/// The MAC address of a port. The frames of [`SLOW`] and [`frame`] have this destination MAC address.
const OWN: &str = "mac = '02:00:00:00:00:02'";

/// The link of a port that receives at most one frame.
pub(crate) const SINK: &str = "kind = 'generator', count = 1";

/// The link of a port that receives the frames of `in.pcap`, one in each millisecond.
pub(crate) const REPLAY: &str = "kind = 'pcap', input = 'in.pcap', loop = true, pace = 'file'";

/// The maximum number of times that a test runs `why`. On a busy machine, it can happen that a worker does not run for
/// a second. `why` then has no examples, or reports further losses.
pub(crate) const ATTEMPTS: usize = 10;

/// A config that drops or loses packets, and the first cause that `why` must report.
struct Planted {
    name: &'static str,
    kind: &'static str,
    /// A part of the fix.
    fix: &'static str,
    /// A part of the output for the first cause, for example of the table entry, of an example or of the evidence.
    shows: &'static str,
    config: Config,
    /// The frames in `in.pcap`.
    frames: Vec<Vec<u8>>,
}

pub(crate) fn frame() -> Frame<'static> {
    Frame::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 9].into()).udp(5000, 53)
}

/// Returns a pcap file that repeats these frames. If `burst` is 1, the file has one frame in each millisecond.
/// Otherwise, the file has `burst` frames in each 20 milliseconds.
pub(crate) fn pcap(frames: &[Vec<u8>], burst: usize) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    let all: Vec<&Vec<u8>> = frames.iter().cycle().take(frames.len().max(50) * burst).collect();
    for (number, frame) in all.iter().enumerate() {
        let micros = if burst == 1 { number * 1000 } else { number / burst * 20_000 };
        let length = frame.len() as u32;
        file.extend(words(&[1_700_000_000 + (micros / 1_000_000) as u32, (micros % 1_000_000) as u32, length, length]));
        file.extend_from_slice(frame);
    }
    file
}

/// Runs `why`, and returns the causes.
pub(crate) fn why(folder: &RuntimeFolder, running: &Running, options: &str) -> Value {
    let (status, out, err) = folder.dataplane(&format!("why --json {options} --process {}", running.pid()));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    json(&out)
}

/// Starts each config, and checks the first cause that `why` names.
fn check(planted: Vec<Planted>) {
    let mut failures = Vec::new();
    for Planted { name, kind, fix, shows, config, frames } in planted {
        let folder = RuntimeFolder::new();
        folder.0.write("in.pcap", pcap(&frames, 1));
        folder.0.write("x.toml", config.to_string());
        let (status, _, mistakes) = folder.dataplane("check @/x.toml");
        assert_eq!(status, 0, "{name}: {mistakes}");
        let running = folder.run("", None);
        let lost = |report: &Value| {
            let ports = report["ports"].as_array().unwrap().iter();
            let lost =
                ports.map(|port| number(&port["rx_lost"]) + number(&port["tx_lost"]) + number(&port["rx_errors"]));
            number(&report["ledger"]["dropped"]) + lost.sum::<u64>()
        };
        wait_until(name, || lost(&running.ask().unwrap()) > 0);
        let mut last = String::new();
        let is_right = (0..ATTEMPTS).any(|_| {
            // Some causes are over before the command starts, so the second call covers the whole run.
            let found = ["--time 500ms", "--total"].map(|options| why(&folder, &running, options));
            let found = found.iter().find(|found| !found["causes"].as_array().unwrap().is_empty()).unwrap();
            last = format!("{found:#}");
            let first = &found["causes"][0];
            first["name"] == name
                && first["kind"] == kind
                && first["fix"].as_str().is_some_and(|text| text.contains(fix))
                && serde_json::to_string(first).unwrap().contains(shows)
                && number(&first["packets"]) > 0
                && !first["meaning"].as_str().unwrap().is_empty()
        });
        if !is_right {
            failures.push(format!("{name} ({kind}): {last}"));
        }
        // The report of a run with planted failures may contain errors.
        running.program.signal("-TERM");
        let (_, out, _) = running.program.end();
        assert_eq!(json(&out)["ledger"]["unaccounted"], 0, "{name}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn drops_of_rules_routes_and_neighbours_are_named_first() {
    let routed = |route: &str| {
        let config = Config::new().port_with("wire", SLOW, OWN).port("wan", SINK).input(&["wire"]);
        config.stage("parse", "").stage("route", &format!("name = 'fib'\n{route}"))
    };
    let default = "table = [{ prefix = '0.0.0.0/0', via = '203.0.113.1', port = 'wan' }]";
    let rules = "rules = [{ action = 'deny', protocol = 'udp', name = 'no_udp' }]";
    let addresses = format!("{OWN}\naddresses = ['203.0.113.2/24']");
    let burst = "kind = 'generator', size = 64, count = 4000";
    check(vec![
        Planted {
            name: "edge.denied",
            kind: "stage",
            fix: "dataplane set acl",
            shows: "no_udp: deny udp",
            config: Config::new()
                .port("wire", SLOW)
                .stage("parse", "")
                .stage("acl", &format!("name = 'edge'\ndefault = 'permit'\n{rules}"))
                .stage("tx", "port = 'wire'"),
            frames: vec![],
        },
        Planted {
            name: "fib.no_route",
            kind: "stage",
            fix: "dataplane set route add",
            shows: "no route to 198.19.0.1",
            config: routed("table = [{ prefix = '10.0.0.0/8', port = 'wan' }]").stage("tx", ""),
            frames: vec![],
        },
        Planted {
            name: "fib.blackhole",
            kind: "stage",
            fix: "remove `drop = true`",
            shows: "198.18.0.0/15",
            config: routed("table = [{ prefix = '198.18.0.0/15', drop = true }]").stage("tx", ""),
            frames: vec![],
        },
        Planted {
            name: "fib.not_for_us",
            kind: "stage",
            fix: "dataplane show links",
            shows: "another MAC address",
            config: Config::new()
                .port_with("wire", &format!("{SLOW}, dst_mac = '02:00:00:00:00:77'"), &addresses)
                .stage("parse", "")
                .stage("route", "name = 'fib'\ntable = [{ prefix = '0.0.0.0/0', port = 'wire' }]")
                .stage("tx", ""),
            frames: vec![],
        },
        Planted {
            name: "next.unresolved",
            kind: "stage",
            fix: "`table` of stage `next`",
            shows: "203.0.113.1",
            config: routed(default).stage("neighbor", "name = 'next'\nsource = 'config'\ntable = []").stage("tx", ""),
            frames: vec![],
        },
        Planted {
            name: "next.queue_full",
            kind: "stage",
            fix: "dataplane show neighbors",
            shows: "maximum number of packets",
            config: Config::new()
                .port_with("wire", burst, OWN)
                // The run ends when all inputs have ended, so this input sends slowly until the end of the test.
                .port_with("wan", "kind = 'generator', rate = 1", "addresses = ['203.0.113.2/24']")
                .input(&["wire", "wan"])
                .stage("parse", "outputs = { arp = 'answers' }")
                .stage("arp", "name = 'answers'\noutputs = { reply = 'out' }")
                .stage("icmp", "outputs = { reply = 'out' }")
                .stage("route", &format!("name = 'fib'\n{default}"))
                .stage("neighbor", "name = 'next'\nsource = 'resolve'")
                .stage("tx", "name = 'out'"),
            frames: vec![],
        },
    ]);
}

#[test]
fn drops_of_damaged_or_too_long_packets_are_named_first() {
    let replayed = || Config::new().port_with("wire", REPLAY, OWN).port("wan", SINK).input(&["wire"]);
    let parsed = || replayed().stage("parse", "");
    let sent = "port = 'wan'";
    let mut bad_checksum = frame().build();
    bad_checksum[24] ^= 0xff;
    let mut bad_version = frame().build();
    bad_version[14] = 0x65;
    let fragment = frame().fragment(0x2000).payload(&[7; 64]).build();
    check(vec![
        Planted {
            name: "parse.truncated",
            kind: "stage",
            fix: "dataplane capture --drops",
            shows: "past the end of the frame",
            config: parsed().stage("tx", sent),
            frames: vec![frame().build()[..30].to_vec()],
        },
        Planted {
            name: "parse.bad_checksum",
            kind: "stage",
            fix: "ethtool -K PEER tx off",
            shows: "198.51.100.9",
            config: parsed().stage("tx", sent),
            frames: vec![bad_checksum],
        },
        Planted {
            name: "parse.bad_version",
            kind: "stage",
            fix: "damages packets",
            shows: "version field",
            config: parsed().stage("tx", sent),
            frames: vec![bad_version],
        },
        Planted {
            name: "parse.other",
            kind: "stage",
            fix: "outputs = { other",
            shows: "neither ARP nor IPv4 nor IPv6",
            config: parsed().stage("tx", sent),
            frames: vec![Frame::new().ether_type(0x88cc).pad_to(60).build()],
        },
        Planted {
            name: "hop.expired",
            kind: "stage",
            fix: "icmp_error",
            shows: "192.0.2.1",
            config: parsed().stage("ttl", "name = 'hop'").stage("tx", sent),
            frames: vec![frame().ttl(1).build()],
        },
        Planted {
            name: "err.host_rate_exceeded",
            kind: "stage",
            fix: "per_host",
            shows: "too many errors",
            config: parsed()
                .stage("ttl", "name = 'hop'\noutputs = { expired = 'err' }")
                .stage("tx", "name = 'out'\nport = 'wan'")
                .stage(
                    "icmp_error",
                    "name = 'err'\nkind = 'time_exceeded'\naddresses = [{ port = 'wire', address = '192.0.2.254' }]\n\
                     outputs = { reply = 'out' }",
                ),
            frames: vec![frame().ttl(1).build()],
        },
        Planted {
            name: "untag.vlan_mismatch",
            kind: "stage",
            fix: "change the VLAN of the sender",
            shows: "VLAN",
            config: replayed().stage("vlan", "name = 'untag'\nop = 'pop'\nstrict = true").stage("tx", sent),
            frames: vec![frame().build()],
        },
        Planted {
            name: "out.too_long",
            kind: "stage",
            fix: "raise `mtu`",
            shows: "longer than the outgoing port accepts",
            config: Config::new()
                .port("wire", REPLAY)
                .port_with("wan", SINK, "mtu = 600")
                .input(&["wire"])
                .stage("tx", "name = 'out'\nport = 'wan'"),
            frames: vec![frame().payload(&[1; 1000]).build()],
        },
        Planted {
            name: "fit.too_big",
            kind: "stage",
            fix: "raise `mtu` of the outgoing port",
            shows: "must not be fragmented",
            config: Config::new()
                .runtime("burst = 32")
                .port_with("wire", REPLAY, OWN)
                .port_with("wan", SINK, "mtu = 600")
                .input(&["wire"])
                .stage("parse", "")
                .stage("route", "name = 'fib'\ntable = [{ prefix = '0.0.0.0/0', port = 'wan' }]")
                .stage("fragment", "name = 'fit'")
                .stage("tx", ""),
            frames: vec![frame().fragment(0x4000).payload(&[1; 1000]).build()],
        },
        Planted {
            name: "whole.duplicate",
            kind: "stage",
            fix: "duplicates packets",
            shows: "received before",
            config: parsed().stage("reassemble", "name = 'whole'").stage("tx", sent),
            frames: vec![fragment],
        },
        Planted {
            name: "wire.rx_too_long",
            kind: "not_accepted",
            fix: "buffer_size",
            shows: "longer than a packet buffer",
            config: Config::new().port_with("wire", REPLAY, "mtu = 1000").stage("tx", "port = 'wire'"),
            frames: vec![frame().payload(&[1; 4000]).build()],
        },
    ]);
}

#[test]
fn drops_of_rate_limits_ports_and_config_are_named_first() {
    let broadcast = Frame::new().ethernet(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([255; 6])).ether_type(0x88b6);
    let two = || Config::new().port("wire", SLOW).port("wan", SINK).input(&["wire"]);
    check(vec![
        Planted {
            name: "uplink.rate_exceeded",
            kind: "stage",
            fix: "dataplane set limit",
            shows: "exceeds the configured rate",
            config: two()
                .stage("limit", "name = 'uplink'\npackets_per_second = 10\nburst = 1")
                .stage("tx", "port = 'wan'"),
            frames: vec![],
        },
        Planted {
            name: "switch.broadcast_storm",
            kind: "stage",
            fix: "storm_control",
            shows: "ff:ff:ff:ff:ff:ff",
            config: Config::new()
                .port("wire", REPLAY)
                .port("wan", SINK)
                .stage("bridge", "name = 'switch'\nstorm_control = { broadcast = 1, burst = 1 }")
                .stage("tx", ""),
            frames: vec![broadcast.pad_to(60).build()],
        },
        Planted {
            name: "pairs.not_joined",
            kind: "stage",
            fix: "`pairs` of stage `pairs`",
            shows: "no pair",
            config: Config::new()
                .port("wire", SLOW)
                .port("a", SINK)
                .port("b", SINK)
                .stage("cross", "name = 'pairs'\npairs = [['a', 'b']]")
                .stage("tx", ""),
            frames: vec![],
        },
        Planted {
            name: "end.requested",
            kind: "stage",
            fix: "on purpose",
            shows: "sends the packet to `drop`",
            config: two().stage("drop", "name = 'end'"),
            frames: vec![],
        },
        Planted {
            name: "even.other",
            kind: "stage",
            fix: "outputs = { other = ",
            shows: "do not match the filter",
            config: two().stage("filter", "name = 'even'\nexpression = 'tcp'").stage("tx", "port = 'wan'"),
            frames: vec![],
        },
        Planted {
            name: "wan.tx_full",
            kind: "send",
            fix: "tx_depth",
            shows: "198.18.0.1",
            config: Config::new()
                .port("wire", "kind = 'generator', size = 64, rate = '5kpps'")
                .port_with("wan", SINK, "rate_limit = { rate = '100kbps' }\ntx_depth = 64")
                .input(&["wire"])
                .stage("tx", "port = 'wan'"),
            frames: vec![],
        },
        Planted {
            name: "wan.tx_error",
            kind: "file",
            fix: "free disk space",
            shows: "No space left on device",
            config: Config::new()
                .port("wire", SLOW)
                .port("wan", "kind = 'pcap', output = '/dev/full'")
                .input(&["wire"])
                .stage("tx", "port = 'wan'"),
            frames: vec![],
        },
        Planted {
            name: "wan.tx_error",
            kind: "send",
            fix: "first error",
            shows: "first error of the port",
            config: Config::new()
                .port("wire", SLOW)
                .port_with("wan", SINK, "faults = { tx_error = 0.2, seed = 7 }")
                .input(&["wire"])
                .stage("tx", "port = 'wan'"),
            frames: vec![],
        },
        Planted {
            name: "wire.rx_out_of_buffer",
            kind: "worker_saturated",
            fix: "set more `workers`",
            shows: "worker 0 on core",
            config: Config::new()
                .port("wire", "kind = 'generator', size = 1500, rate = '500Mpps'")
                .stage("parse", "")
                .stage("tx", "port = 'wire'"),
            frames: vec![],
        },
    ]);
}

#[test]
fn largest_cause_is_first_and_the_text_has_its_meaning_examples_and_fix() {
    let folder = RuntimeFolder::new();
    // The generator has 16 flows. One flow does not match the filter, and two flows are denied.
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1025', name = 'low' }]";
    let config = Config::new()
        .port("wire", SLOW)
        .stage("parse", "")
        .stage("acl", &format!("name = 'edge'\ndefault = 'permit'\n{rules}"))
        .stage("filter", "name = 'even'\nexpression = 'not udp src port 1030'")
        .stage("tx", "name = 'out'\nport = 'wire'");
    folder.0.write("x.toml", config.to_string());
    let running = folder.run("", None);
    let mut last = String::new();
    let is_right = (0..ATTEMPTS).any(|_| {
        let (status, out, err) = folder.dataplane(&format!("why --time 500ms -n 2 --process {}", running.pid()));
        assert_eq!((status, err.as_str()), (0, ""));
        last = out;
        let Some((first, second)) = last.split_once("\n2. even.other: ") else { return false };
        first.contains("\n1. edge.denied: ")
            && [
                " % of all\n   meaning   a rule, or the default action, denies the packet\n",
                "   entry     low: deny udp src_port 1024-1025 (16 of 16 traced packets)\n",
                "   example   from wire: 198.18.0.1 → 198.19.0.1 udp 102",
                "   fix       if the packets should pass, permit them: `dataplane set acl add permit … --stage edge`",
            ]
            .iter()
            .all(|part| first.contains(part))
            && second.contains("udp 1030→9, 64 bytes\n")
            && second.contains("the output `other` leads to no stage")
    });
    assert!(is_right, "{last}");
    let total = why(&folder, &running, "--total -n 0");
    assert!(number(&total["causes"][0]["packets"]) > number(&total["causes"][1]["packets"]), "{total:#}");
    assert_eq!(total["causes"][0]["examples"], Value::Array(Vec::new()));
    running.end("-TERM");
}

#[test]
fn why_works_during_a_capture_and_in_a_run_without_drops() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut client = dataplane::control::Client::connect(&running.socket).unwrap();
    let capture = dataplane::control::observe::Capture::default();
    client.call(&dataplane::control::Call::Capture(capture)).unwrap();
    let found = why(&folder, &running, "--time 100ms");
    assert_eq!(found["causes"][0]["name"], "edge.denied", "{found:#}");
    let note = found["notes"][0].as_str().unwrap();
    assert!(note.contains("no examples, because another client captures"), "{note}");
    running.end("-TERM");

    folder.0.write("x.toml", Config::new().port("wire", LINK).stage("tx", "port = 'wire'").to_string());
    let running = folder.run("", None);
    let (status, out, _) = folder.dataplane(&format!("why --time 100ms --process {}", running.pid()));
    assert_eq!(status, 0);
    assert!(out.ends_with("\nno packet was dropped or lost since the start of the program\n"), "{out}");
    let (status, out, err) = folder.dataplane(&format!("why --total --time 1s --process {}", running.pid()));
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("'--total' cannot be used with '--time <TIME>'"), "{err}");
    running.end("-TERM");
}
