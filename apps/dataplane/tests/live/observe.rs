//! Tests of the commands `capture` and `trace`, and of the requests `capture`, `trace` and `packets`.

use std::fs::File;
use std::process::Stdio;

use dataplane::control::observe::{Capture, Captured, Position, TraceFate, TracePackets, Traced};
use dataplane::control::{Call, Client, Error, ErrorCode};
use dataplane_testing::config::Config;
use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::wait_until;
use serde_json::Value;

use crate::common::{LINK, Running, RuntimeFolder, json, number};

/// A generator with 16 flows from the UDP ports 1024 to 1039 that needs little CPU time.
const SLOW: &str = "kind = 'generator', size = 64, flows = 16, rate = '2kpps'";

/// Starts a program: the stage `edge` denies the UDP ports 1024 to 1027. The stage `even` passes port 1030 to the next
/// stage, and sends all other ports by its output `other` to the stage `out`. The stage `out` sends on the port `wire`.
fn start(folder: &RuntimeFolder, link: &str, more: &str) -> Running {
    folder.0.write("x.toml", pipeline(link, more));
    folder.run("", None)
}

fn pipeline(link: &str, more: &str) -> String {
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1027', name = 'low' }]";
    let config = Config::new()
        .port("wire", link)
        .stage("parse", "")
        .stage("acl", &format!("name = 'edge'\ndefault = 'permit'\n{rules}"))
        .stage("filter", "name = 'even'\nexpression = 'udp src port 1030'\noutputs = { other = 'out' }");
    let config = if more.is_empty() { config } else { config.stage("count", &format!("name = '{more}'")) };
    config.stage("tx", "name = 'out'\nport = 'wire'").to_string()
}

impl RuntimeFolder {
    /// Runs a command whose arguments may contain spaces. Returns the exit status, standard output and standard error.
    fn words(&self, running: &Running, words: &[&str]) -> (i32, String, String) {
        let process = running.pid().to_string();
        let mut command = self.command(words[0]);
        run(command.args(&words[1..]).args(["--process", &process]))
    }
}

/// Returns the UDP source port of a frame.
fn source_port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

fn bytes(packet: &Value) -> Vec<u8> {
    let digits = packet["bytes"].as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Returns the frames of a pcapng file.
fn frames(path: &std::path::Path) -> Vec<Vec<u8>> {
    let capture = dataplane::soft::Capture::load(&File::open(path).unwrap()).unwrap();
    assert!(capture.damage.is_none(), "{:?}", capture.damage);
    (0..capture.len()).map(|at| capture.frame(at).to_vec()).collect()
}

#[test]
fn packets_are_captured_at_a_stage_an_output_and_a_port() {
    let folder = RuntimeFolder::new();
    let running = start(&folder, SLOW, "");
    let file = folder.path("a.pcapng");
    let name = file.display().to_string();
    for (options, ports, direction) in [
        // 1024 to 1027 are denied before the stage `even`.
        (vec!["--at", "even"], 1028..=1039, 0),
        (vec!["--at", "even.other", "--filter", "udp src portrange 1029-1031"], 1029..=1031, 0),
        (vec!["--filter", "udp src port 1025"], 1025..=1025, 1),
        (vec!["--at", "port:wire", "--filter", "udp src port 1030"], 1030..=1030, 0),
        (vec!["--drops"], 1024..=1027, 0),
        (vec!["--drops", "--at", "edge"], 1024..=1027, 0),
    ] {
        let words = [&["capture", "-w", &name, "-n", "40"], &options[..]].concat();
        let (status, out, err) = folder.words(&running, &words);
        assert_eq!((status, out.as_str(), err.as_str()), (0, "", "captured 40 packets, lost 0\n"), "{options:?}");
        let found = frames(&file);
        assert_eq!(found.len(), 40);
        let seen: Vec<u16> = found.iter().map(|frame| source_port(frame)).collect();
        assert!(seen.iter().all(|port| ports.contains(port)), "{options:?}: {seen:?}");
        let text = std::fs::read(&file).unwrap();
        let has = |part: &[u8]| text.windows(part.len()).any(|at| at == part);
        assert_eq!(has(b"edge.denied"), options.contains(&"--drops"), "{options:?}");
        assert!(has(b"time stamps: software"));
        // The bytes of the option epb_flags with the direction inbound.
        assert!(direction == 0 || has(&[2, 0, 4, 0, 1, 0, 0, 0]), "{options:?}");
    }
    // The output `other` never has packets from port 1030, although the stage receives such packets.
    let (_, out, _) = folder.words(&running, &["capture", "--at", "even.other", "-n", "64", "--json"]);
    let packets: Vec<Value> = out.lines().map(json).collect();
    assert_eq!(packets.len(), 64);
    assert!(packets.iter().all(|packet| source_port(&bytes(packet)) != 1030 && packet["name"] == "even.other"));
    // Without a file, the command prints a line for each packet.
    let (_, out, _) = folder.words(&running, &["capture", "--drops", "-n", "2", "--snaplen", "42"]);
    assert_eq!(out.matches("  dropped by edge.denied  ").count(), 2, "{out}");
    assert!(out.lines().all(|line| line.ends_with("  64 bytes") && line.contains(" udp 102")), "{out}");
    let report = running.end("-TERM");
    assert_eq!(report["ledger"]["unaccounted"], 0);
}

#[test]
fn capture_to_standard_output_ends_with_the_program() {
    let folder = RuntimeFolder::new();
    let running = start(&folder, SLOW, "");
    let mut command = folder.command(&format!("capture -w - --process {}", running.pid()));
    let file = folder.path("a.pcapng");
    let output = command.stdout(File::create(&file).unwrap()).stderr(Stdio::null());
    let capture = RunningProgram::start(output);
    wait_until("packets are in the file", || file.metadata().unwrap().len() > 10_000);
    let (status, out, err) = folder.words(&running, &["trace"]);
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("another client captures or traces packets; help: end the other"), "{err}");
    running.end("-TERM");
    let (status, ..) = capture.end();
    assert_eq!(status, 0);
    assert!(frames(&file).len() > 10);
}

#[test]
fn wrong_requests_are_refused_with_a_fix() {
    let folder = RuntimeFolder::new();
    let running = start(&folder, SLOW, "");
    for (words, status, part) in [
        (
            vec!["capture", "--at", "fly"],
            1,
            "no stage, output or port `fly`; help: the stages are parse, edge, even, out; the ports are wire",
        ),
        (
            vec!["capture", "--at", "even.fly"],
            1,
            "stage `even` has no output `fly`; help: the outputs of stage `even` are other",
        ),
        (vec!["capture", "--at", "parse.x"], 1, "stage `parse` has no output `x`"),
        (vec!["capture", "--at", "stage:wire"], 1, "no stage, output or port `stage:wire`"),
        (vec!["capture", "--filter", "udp prot 53"], 2, "--filter: `udp prot 53`: "),
        (vec!["capture", "-w", "/nonexistent/a.pcapng"], 1, "/nonexistent/a.pcapng: "),
        (vec!["trace", "--filter", "udp prot 53"], 2, "--filter: `udp prot 53`: "),
        (vec!["trace", "-n", "0"], 2, "0 is not in 1..=1000"),
    ] {
        let (found, out, err) = folder.words(&running, &words);
        assert_eq!((found, out.as_str()), (status, ""), "{words:?}: {err}");
        assert!(err.contains(part), "{words:?}: {err}");
    }
    let mut client = Client::of_process_in(&running);
    let code = |refused: Result<_, Error>| match refused {
        Err(Error::Refused(_, refusal)) => refusal.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(client.call(&Call::Packets {})), ErrorCode::Failed);
    let capture = Capture { filter: Some("4 1 2".to_owned()), ..Capture::default() };
    assert_eq!(code(client.call(&Call::Capture(capture))), ErrorCode::BadField);
    let trace = TracePackets { packets: Some(1001), ..TracePackets::default() };
    assert_eq!(code(client.call(&Call::Trace(trace))), ErrorCode::BadField);
    // A second client is refused until the first client has disconnected.
    client.call(&Call::Capture(Capture::default())).unwrap();
    let mut second = Client::of_process_in(&running);
    assert_eq!(code(second.call(&Call::Trace(TracePackets::default()))), ErrorCode::Busy);
    // The first client can start another capture on its connection.
    client.call(&Call::Capture(Capture { drops: true, ..Capture::default() })).unwrap();
    drop(client);
    wait_until("the capture ends", || second.call(&Call::Trace(TracePackets::default())).is_ok());
    running.end("-TERM");
}

/// A way to connect to a program of these tests.
trait OfRunning {
    fn of_process_in(running: &Running) -> Self;
}

impl OfRunning for Client {
    fn of_process_in(running: &Running) -> Self {
        Self::connect(&running.socket).unwrap()
    }
}

/// A client that requests no packets loses packets of its capture. The traffic goes on.
#[test]
fn client_that_reads_nothing_loses_only_captured_packets() {
    let folder = RuntimeFolder::new();
    let running = start(&folder, LINK, "");
    let mut client = Client::of_process_in(&running);
    client.call(&Call::Capture(Capture { at: Some("edge".to_owned()), ..Capture::default() })).unwrap();
    let before = running.ask().unwrap();
    // Wait until the program has received more packets than the program keeps for the client.
    wait_until("the traffic goes on", || {
        number(&running.ask().unwrap()["packets"]["rx"]) > number(&before["packets"]["rx"]) + 100_000
    });
    let (mut packets, mut lost) = (0, 0);
    wait_until("the waiting packets arrive", || {
        let captured: Captured = client.call(&Call::Packets {}).unwrap().parse().unwrap();
        assert!(captured.packets.iter().all(|packet| packet.position == Position::Entered && packet.name == "edge"));
        packets += captured.packets.len() as u64;
        lost = captured.lost;
        packets > 16_384
    });
    assert!(lost > 0);
    drop(client);
    let report = running.end("-TERM");
    assert_eq!((&report["ledger"]["unaccounted"], &report["errors"]), (&0.into(), &Value::Array(Vec::new())));
}

#[test]
fn trace_shows_the_path_of_live_packets() {
    let folder = RuntimeFolder::new();
    let running = start(&folder, SLOW, "");
    let (status, out, err) = folder.words(&running, &["trace", "-n", "3", "--filter", "udp src port 1025"]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(out.matches("  parse → edge (low: deny udp").count(), 3, "{out}");
    assert_eq!(out.matches("\n  dropped: edge.denied\n").count(), 3, "{out}");
    assert!(out.starts_with("#1  wire  ") && out.contains("\n#3  wire  "), "{out}");
    let (status, out, _) = folder.words(&running, &["trace", "-n", "32", "--json"]);
    let packets: Vec<Value> = out.lines().map(json).collect();
    assert_eq!((status, packets.len()), (0, 32));
    for packet in &packets {
        let path: Vec<&str> =
            packet["path"].as_array().unwrap().iter().map(|step| step["stage"].as_str().unwrap()).collect();
        match packet["fate"].as_str().unwrap() {
            "dropped" => assert_eq!((path, &packet["detail"]), (vec!["parse", "edge"], &"edge.denied".into())),
            "sent" => assert_eq!((path, &packet["detail"]), (vec!["parse", "edge", "even", "out"], &"wire".into())),
            other => panic!("{other}"),
        }
        assert_eq!((&packet["port"], &packet["bytes"], &packet["worker"]), (&"wire".into(), &64.into(), &0.into()));
    }
    running.end("-TERM");
}

/// A worker without packets ends immediately, because its part of the file is empty. The other worker continues.
#[test]
fn capture_works_after_one_worker_has_ended() {
    let folder = RuntimeFolder::new();
    let header = [0xa1b2_c3d4_u32.to_le_bytes(), [2, 0, 4, 0], [0; 4], [0; 4], [0xff, 0xff, 0, 0], [1, 0, 0, 0]];
    let record = [[0; 4], [0; 4], [60, 0, 0, 0], [60, 0, 0, 0]];
    folder.0.write("in.pcap", [&header.concat()[..], &record.concat(), &[1; 60]].concat());
    let link = "kind = 'pcap', input = 'in.pcap', loop = true, pace = 'fast'";
    let config = Config::new().workers(2).port("p", link).stage("count", "").stage("tx", "port = 'p'");
    folder.0.write("x.toml", config.to_string());
    let running = folder.run("", None);
    wait_until("packets pass", || number(&running.ask().unwrap()["packets"]["rx"]) > 10_000);
    for (words, lines) in [(["capture", "--json", "-n", "5"], 5), (["trace", "--json", "-n", "5"], 5)] {
        let (status, out, err) = folder.words(&running, &words);
        assert_eq!((status, out.lines().count()), (0, lines), "{err}");
    }
    running.end("-TERM");
}

/// After a change of the pipeline, the capture continues at the stage with the same name.
#[test]
fn capture_continues_after_a_change_and_ends_if_the_stage_is_removed() {
    let folder = RuntimeFolder::new();
    let running = start(&folder, SLOW, "first");
    let mut client = Client::of_process_in(&running);
    client.call(&Call::Capture(Capture { at: Some("first".to_owned()), ..Capture::default() })).unwrap();
    let mut next = || -> Captured { client.call(&Call::Packets {}).unwrap().parse().unwrap() };
    let arrives = |next: &mut dyn FnMut() -> Captured| {
        // The first answers may still contain packets from before the change.
        for _ in 0..3 {
            wait_until("packets arrive", || {
                let captured = next();
                assert!(!captured.is_over, "{captured:?}");
                !captured.packets.is_empty()
            });
        }
    };
    arrives(&mut next);
    let apply = |text: &str| {
        folder.0.write("y.toml", text);
        let (status, _, err) = folder.dataplane(&format!("apply @/y.toml --process {}", running.pid()));
        assert_eq!(status, 0, "{err}");
    };
    // The stage `first` has another index in the new pipeline.
    let text = pipeline(SLOW, "first");
    apply(&text.replacen(
        "[[pipeline.stage]]",
        "[[pipeline.stage]]\nname = 'new'\nuse = 'count'\n\n[[pipeline.stage]]",
        1,
    ));
    arrives(&mut next);
    apply(&pipeline(SLOW, "second"));
    let mut last = Captured::default();
    wait_until("the capture ends", || {
        last = next();
        last.is_over
    });
    assert!(last.reason.unwrap().contains("no stage, output or port `first`"));
    // The connection can start a trace. The trace has whole paths.
    client.call(&Call::Trace(TracePackets { packets: Some(1), ..TracePackets::default() })).unwrap();
    let mut traced = Traced::default();
    wait_until("a packet is traced", || {
        traced = client.call(&Call::Packets {}).unwrap().parse().unwrap();
        traced.is_over
    });
    let path = &traced.packets[0].paths[0];
    assert!(matches!(path.fate, TraceFate::Sent | TraceFate::Dropped), "{path:?}");
    running.end("-TERM");
}
