//! Tests of the command `dataplane bench`, with a cable in memory.

use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::process::{Command, Stdio};

use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::{Folder, Terminal, skip, wait_until};
use serde_json::Value;

const CABLE: &str = r#"
[runtime]
workers = 1
hugepages = "none"
idle = "sleep"

[[port]]
name = "left"
device = "soft"
link = { kind = "loopback", peer = "right" }

[[port]]
name = "right"
device = "soft"
link = { kind = "loopback", peer = "left" }

[[stream]]
name = "there"
size = "imix"

[[stream]]
name = "back"
from = "right"
"#;

/// Returns the command `dataplane bench`, with the words of `line` and the config as arguments.
fn bench(folder: &Folder, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
    command.current_dir(folder.path()).arg("bench").args(line.split_whitespace());
    command
}

fn cable() -> Folder {
    let folder = Folder::new();
    folder.write("lab.toml", CABLE);
    folder
}

#[test]
fn files_that_are_not_regular_are_refused() {
    let folder = cable();
    assert!(Command::new("mkfifo").arg(folder.file("fifo")).status().unwrap().success());
    let traffic = "--rate 1kpps --for 10ms";
    for (file, kind) in [("fifo", "a pipe"), ("/dev/zero", "a device")] {
        for line in [
            format!("html {file}"),
            format!("compare {file} {file}"),
            format!("rate {file} {traffic}"),
            format!("rate lab.toml {traffic} --calibration {file}"),
            format!("rate lab.toml {traffic} --stream capture=\"{file}\""),
        ] {
            let (status, _, err) = run(&mut bench(&folder, &line));
            assert!(status != 0 && err.contains(&format!("{kind}, not a regular file")), "{line}: {status} {err}");
        }
    }
}

/// Options with which a busy host neither skips packets nor receives packets late.
const PATIENT: &str = "--catch-up 60s --late 60s --settle 50ms";

#[test]
fn rate_reports_each_stream_as_json_and_as_text() {
    let folder = cable();
    let (status, out, err) =
        run(&mut bench(&folder, &format!("rate lab.toml --rate 2kpps --for 500ms --json {PATIENT}")));
    assert_eq!(status, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    for (stream, name) in report["streams"].as_array().unwrap().iter().zip(["there", "back"]) {
        assert_eq!((&stream["name"], &stream["sent"], &stream["received"]), (&name.into(), &1000.into(), &1000.into()));
    }
    assert_eq!((&report["unaccounted"], &report["stopped"]), (&0.into(), &false.into()));
    let (status, out, err) = run(&mut bench(&folder, &format!("rate lab.toml --rate 1kpps --for 100ms {PATIENT}")));
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("loss      0 % (0 of 200)") && out.contains("unaccounted 0"), "{out}");
}

#[test]
fn schema_describes_every_key_of_a_result() {
    let folder = cable();
    let (status, out, _) = run(&mut bench(&folder, "schema rate"));
    assert_eq!(status, 0);
    let schema: Value = serde_json::from_str(&out).unwrap();
    let (_, out, _) = run(&mut bench(&folder, &format!("rate lab.toml --rate 1kpps --for 10ms --json {PATIENT}")));
    let report: Value = serde_json::from_str(&out).unwrap();
    let known = schema["properties"].as_object().unwrap();
    for key in report.as_object().unwrap().keys() {
        assert!(known.contains_key(key), "{key}");
    }
}

#[test]
fn search_finds_that_a_cable_carries_the_highest_rate() {
    let folder = cable();
    let options = "--max 2kpps --trial 100ms --first-trial 50ms --sum 200ms";
    let (status, out, err) = run(&mut bench(&folder, &format!("ndr lab.toml --json {options} {PATIENT}")));
    assert_eq!(status, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let goal = &report["goals"][0];
    assert_eq!(
        (&goal["lower"]["pps"], &goal["upper"], &goal["complete"]),
        (&4000.0.into(), &Value::Null, &true.into())
    );
}

#[test]
fn comparison_of_results_has_a_status_for_ci() {
    let folder = cable();
    let store = |name: &str, line: &str| {
        let (status, out, err) = run(&mut bench(&folder, &format!("{line} lab.toml --json {PATIENT}")));
        assert_eq!(status, 0, "{out}{err}");
        folder.write(name, out)
    };
    store("a.json", "rate --rate 1kpps --for 100ms --interval 5ms");
    store("other.json", "rate --rate 2kpps --for 100ms");
    let (status, out, err) = run(&mut bench(&folder, "compare a.json a.json"));
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains("Verdict about B, compared with A: no difference shown"), "{out}");
    // The result of a device that loses a third of the packets.
    let mut worse: Value = serde_json::from_str(&fs::read_to_string(folder.file("a.json")).unwrap()).unwrap();
    let series = &mut worse["streams"][0]["series"];
    series["lost"] = series["sent"].as_array().unwrap().iter().map(|sent| sent.as_u64().unwrap() / 3).collect();
    worse["streams"][0]["loss_ratio"] = 0.333.into();
    folder.write("worse.json", worse.to_string());
    let (status, out, err) = run(&mut bench(&folder, "compare --json a.json worse.json"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &report["verdict"]), (1, &"worse".into()), "{out}{err}");
    assert!(err.contains("worse.json is worse than a.json"), "{err}");
    let (status, out, err) = run(&mut bench(&folder, "compare --json a.json other.json"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &report["verdict"]), (2, &"unusable".into()), "{out}{err}");
    assert!(err.contains("the requested rates of the stream `there` differ"), "{err}");
    let (status, _, err) = run(&mut bench(&folder, "compare a.json lab.toml"));
    assert!(status == 2 && err.contains("lab.toml is not a result of `bench`"), "{err}");
}

#[test]
fn html_option_and_html_command_write_the_same_page() {
    let folder = cable();
    let line = format!("rate lab.toml --rate 1kpps --for 100ms --json --html page.html {PATIENT}");
    let (status, out, err) = run(&mut bench(&folder, &line));
    assert_eq!(status, 0, "{out}{err}");
    folder.write("page", out);
    let (status, out, _) = run(&mut bench(&folder, "html page"));
    assert_eq!(status, 0);
    assert!(out.starts_with("<!DOCTYPE html>") && out.contains("Packets over time"), "{out}");
    assert_eq!(out, fs::read_to_string(folder.file("page.html")).unwrap());
}

#[test]
fn result_without_a_page_is_refused_with_its_method() {
    let folder = cable();
    for method in ["flows", "verbs"] {
        folder.write("result.json", format!("{{\"method\": \"{method}\"}}"));
        for command in ["html result.json", "compare result.json result.json"] {
            let (status, _, err) = run(&mut bench(&folder, command));
            let wanted = format!(
                "result.json is a result of `bench {method}`, which `bench html` and `bench compare` do not support; help:"
            );
            assert!(status == 2 && err.contains(&wanted), "{err}");
        }
    }
}

#[test]
fn page_that_cannot_be_written_is_an_error_after_the_result() {
    let folder = cable();
    let line = format!("rate lab.toml --rate 1kpps --for 10ms --html /dev/full {PATIENT}");
    let (status, out, err) = run(&mut bench(&folder, &line));
    assert!(status == 1 && out.contains("unaccounted 0"), "{out}{err}");
    assert!(err.contains("/dev/full") && err.contains("No space left on device"), "{err}");
}

/// A result is not written through a symbolic link of another user.
#[test]
fn results_do_not_follow_links_of_other_users() {
    let folder = cable();
    folder.write("kept", "kept");
    let link = folder.file("link");
    symlink("kept", &link).unwrap();
    if let Err(error) = lchown(&link, Some(12_345), None) {
        return skip(format!("cannot change the owner of a link: {error}"));
    }
    for line in [
        "rate lab.toml --rate 1kpps --for 10ms --html link",
        "soak lab.toml --rate 1kpps --for 10ms --interval 10ms --output link",
    ] {
        let (status, out, err) = run(&mut bench(&folder, &format!("{line} {PATIENT}")));
        assert_eq!(status, 1, "{line}: {out}{err}");
        assert!(err.contains("the symbolic link link belongs to another user; help: use the path"), "{line}: {err}");
        assert_eq!(fs::read_to_string(folder.file("kept")).unwrap(), "kept", "{line}");
    }
}

/// Options with which the tests of RFC 2544 take about a second.
const SHORT: &str = "--quick --trial 100ms --latency-trial 50ms --burst 20ms --bursts 2 --overload 100ms --max 2kpps";

#[test]
fn rfc2544_runs_all_tests_for_all_sizes() {
    let folder = cable();
    let line = format!("rfc2544 lab.toml --json --sizes 64,1518 {SHORT} {PATIENT}");
    let (status, out, err) = run(&mut bench(&folder, &line));
    assert_eq!(status, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    for (size, bytes) in report["sizes"].as_array().unwrap().iter().zip([64, 1518]) {
        assert_eq!((&size["size"], &size["highest_pps"]), (&bytes.into(), &4000.0.into()));
        // A cable loses nothing at the highest rate.
        assert_eq!(size["throughput"]["goal"]["lower"]["pps"], 4000.0, "{size}");
        assert_eq!(
            (&size["latency"]["latency_ns"]["count"], &size["latency"]["loss_ratio"]),
            (&200.into(), &0.0.into())
        );
        let losses: Vec<_> = size["frame_loss"].as_array().unwrap().iter().map(|step| step["share"].as_f64()).collect();
        assert_eq!(losses, [Some(1.0), Some(0.9)]);
        let burst = &size["back_to_back"];
        assert_eq!((&burst["packets"], &burst["is_lower_bound"]), (&80.0.into(), &true.into()));
        assert_eq!((&size["recovery"]["recovery_s"], &size["recovery"]["lost_in_overload"]), (&0.0.into(), &0.into()));
        assert!(size["reset"].is_null());
    }
    let deviations = report["deviations"].to_string();
    assert!(deviations.contains("the duration of a trial is 100ms instead of 60 s"), "{deviations}");
    folder.write("a.json", &out);
    let (status, out, _) = run(&mut bench(&folder, "html a.json"));
    assert!(status == 0 && out.contains("Throughput by frame size") && out.contains("Frame loss by rate"), "{out}");
    let (status, out, err) = run(&mut bench(&folder, "compare a.json a.json"));
    assert!(status == 0 && out.contains("throughput of 1518 bytes: no difference shown"), "{out}{err}");
    let line = format!("rfc2544 lab.toml --json --tests throughput --sizes 64 {SHORT} {PATIENT}");
    folder.write("b.json", run(&mut bench(&folder, &line)).1);
    let (status, _, err) = run(&mut bench(&folder, "compare a.json b.json"));
    assert!(status == 2 && err.contains("the frame sizes differ: [64, 1518] and [64]"), "{err}");
}

#[test]
fn reset_command_runs_during_the_trial() {
    let folder = cable();
    let mut command =
        bench(&folder, &format!("rfc2544 lab.toml --sizes 128 {SHORT} {PATIENT} --tests throughput,reset"));
    let (status, out, err) = run(command.args(["--reset-trial", "300ms", "--reset-command", "touch reset; exit 3"]));
    assert_eq!(status, 0, "{out}{err}");
    assert!(
        out.contains(
            "reset by `touch reset; exit 3`: no time without arrivals, 0 packets lost, and the command failed"
        ),
        "{out}"
    );
    assert!(out.contains("NOT RFC 2544: "), "{out}");
    assert!(folder.file("reset").exists());
}

#[test]
fn latency_is_measured_at_each_load() {
    let folder = cable();
    folder.write(
        "slow.toml",
        CABLE.replace("peer = \"left\" }", "peer = \"left\" }\nfaults = { delay = 1.0, delay_by = \"5ms\" }"),
    );
    let line = format!("latency slow.toml --max 2kpps --loads 50%,25% --for 100ms --json --html a.html {PATIENT}");
    let (status, out, err) = run(&mut bench(&folder, &line));
    assert_eq!(status, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    for (step, (share, sent)) in report["steps"].as_array().unwrap().iter().zip([(0.25, 50), (0.5, 100)]) {
        let stream = &step["trial"]["streams"][0];
        assert_eq!((&step["share"], &stream["sent"]), (&share.into(), &sent.into()));
        // The receive time is the time at which a poll began. A packet that becomes due during the poll has a shorter latency.
        assert!(stream["latency_ns"]["p50"].as_u64().unwrap() >= 5_000_000, "{stream}");
    }
    assert!(fs::read_to_string(folder.file("a.html")).unwrap().contains("Latency over load"));
}

/// Returns the lines of the file that `soak` writes.
fn lines(folder: &Folder) -> Vec<Value> {
    let text = fs::read_to_string(folder.file("soak")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn soak_locates_losses_in_time() {
    let folder = cable();
    folder.write(
        "lossy.toml",
        CABLE.replace("peer = \"left\" }", "peer = \"left\" }\nfaults = { seed = 3, loss = 0.05 }"),
    );
    let line = "soak lossy.toml --rate 2kpps --for 500ms --interval 50ms --output soak --html a.html";
    let (status, out, err) = run(&mut bench(&folder, &format!("{line} {PATIENT}")));
    assert_eq!(status, 0, "{out}{err}");
    let lines = lines(&folder);
    let (start, end) = (lines.first().unwrap(), lines.last().unwrap());
    assert_eq!((&start["line"], &start["interval_s"], &end["line"]), (&"start".into(), &0.05.into(), &"end".into()));
    let lost = |line: &Value| line["streams"][0]["lost"].as_u64().unwrap();
    let intervals: Vec<&Value> = lines.iter().filter(|line| line["line"] == "interval").collect();
    assert!(intervals.len() >= 10 && lost(end) > 0, "{lines:?}");
    assert_eq!(intervals.iter().map(|line| lost(line)).sum::<u64>(), lost(end));
    assert!(out.contains("intervals have losses\n  at "), "{out}");
    let (status, page, _) = run(&mut bench(&folder, "html soak"));
    assert!(status == 0 && page.contains("Lost packets over time") && !page.contains("before its end"), "{page}");
}

#[test]
fn killed_soak_keeps_the_intervals_that_had_ended() {
    let folder = cable();
    let line = "soak lab.toml --rate 1kpps --for 90s --interval 50ms --output soak --settle 50ms --late 1ms";
    let mut program = bench(&folder, line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("four lines are on the disk", || lines(&folder).len() >= 4);
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(lines(&folder).iter().all(|line| line["line"] != "end"));
    let (status, page, err) = run(&mut bench(&folder, "html soak"));
    assert!(status == 0 && page.contains("The result was stopped before its end"), "{page}{err}");
}

#[test]
fn soak_writes_its_file_while_its_terminal_takes_no_output() {
    let folder = cable();
    let mut terminal = Terminal::new();
    let line = "soak lab.toml --rate 1kpps --for 1h --interval 50ms --output soak --settle 50ms --late 1ms";
    let _program = RunningProgram::start(bench(&folder, line).stdout(Stdio::null()).stderr(terminal.stream()));
    terminal.wait_for_output();
    terminal.stop();
    let before = lines(&folder).len();
    wait_until("further lines are on the disk", || lines(&folder).len() >= before + 4);
}

#[test]
fn full_disk_is_an_error_that_keeps_the_soak_running() {
    let folder = cable();
    let line = "soak lab.toml --rate 1kpps --for 300ms --interval 50ms --output /dev/full";
    let (status, out, err) = run(&mut bench(&folder, &format!("{line} {PATIENT}")));
    assert!(status == 1 && out.contains("loss      0 % (0 of 600)"), "{out}{err}");
    assert!(err.contains("No space left on device (os error 28); the run goes on"), "{err}");
    assert_eq!(err.matches("the run goes on").count(), 1, "{err}");
    assert!(err.contains("lines of the result were not written"), "{err}");
}

#[test]
fn interrupted_soak_marks_its_last_line_as_stopped() {
    let folder = cable();
    let line = "soak lab.toml --rate 1kpps --for 1h --interval 50ms --output soak --settle 50ms --late 1ms";
    let program = RunningProgram::start(bench(&folder, line).stdout(Stdio::piped()).stderr(Stdio::piped()));
    wait_until("four lines are on the disk", || lines(&folder).len() >= 4);
    program.signal("-INT");
    let (status, out, err) = program.end();
    assert!(status == 1 && out.contains("INCOMPLETE"), "{out}{err}");
    let lines = lines(&folder);
    let end = lines.last().unwrap();
    assert_eq!((&end["line"], &end["stopped"]), (&"end".into(), &true.into()));
}

#[test]
fn wrong_command_line_ends_with_status_2_and_a_fix() {
    let folder = cable();
    folder.write("wrong.toml", CABLE.replace("size = \"imix\"", "size = 20"));
    for (line, expected) in [
        ("rate lab.toml", "the stream `there` has no rate; help: add --rate RATE"),
        ("rate lab.toml --rate fast", "`fast` is not a rate above 0; help: write packets per second"),
        ("rate lab.toml --rate 10%", "help: add --line SPEED"),
        ("rate wrong.toml --rate 1kpps", "wrong.toml:17: `size` 20 does not fit"),
        ("rate --rate 1kpps", "no ports; help: add --ports A,B"),
        ("ndr lab.toml --max 1kpps --min 2kpps", "help: set --min below --max"),
        ("pdr lab.toml --loss 0.1", "`0.1` is not a ratio below 100 %; help: write a number and %"),
        ("rfc2544 lab.toml --sizes 64,9000", "`size` 8996 does not fit"),
        ("rfc2544 lab.toml --tests latency", "help: add throughput to --tests"),
        ("rfc2544 lab.toml --tests throughput,reset", "help: add --reset-command"),
        ("latency lab.toml --loads 0%", "`0%` is not a load"),
        (
            "soak lab.toml --rate 1kpps --for 40h --output soak",
            "--for 1day 16h is too long; help: use at most 1day 15h",
        ),
        ("rate lab.toml --rate 1kpps --calibration lab.toml", "lab.toml is not a calibration"),
    ] {
        let (status, out, err) = run(&mut bench(&folder, line));
        assert_eq!(status, 2, "{line}: {out}{err}");
        assert!(err.contains(expected) && out.is_empty(), "{line}: {out}{err}");
    }
}

#[test]
fn interrupted_trial_prints_an_incomplete_result() {
    let folder = cable();
    let mut command = bench(&folder, "rate lab.toml --rate 1kpps --for 1h --settle 50ms");
    let program = RunningProgram::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let status = format!("/proc/{}/status", program.id());
    let catches = |signal: u32| {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
        u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & 1 << (signal - 1) != 0)
    };
    // The program installs the handlers of SIGINT before the handlers of SIGTERM, which has the number 15.
    wait_until("the program handles SIGTERM", || catches(15));
    program.signal("-INT");
    let (status, out, err) = program.end();
    assert_eq!(status, 1, "{out}{err}");
    assert!(out.contains("INCOMPLETE") && err.contains("stopped before the end"), "{out}{err}");
}

#[test]
fn flows_that_the_tester_cannot_send_count_as_lost() {
    let folder = Folder::new();
    let (ports, _) = CABLE.split_once("[[stream]]").unwrap();
    folder.write("lab.toml", format!("{ports}[[stream]]\nsrc_port = {{ first = 1024, count = 50_000 }}\n"));
    // The tester cannot send 50,000 packets in 100 us.
    let line =
        "flows lab.toml --tests capacity --rate 500Mpps --max-flows 50000 --flush true --late 60s --settle 50ms --json";
    let (status, out, err) = run(&mut bench(&folder, line));
    assert_eq!(status, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let trial = &report["capacity_trials"][0];
    assert_eq!((&trial["flows"], &trial["exceeded"]), (&50_000.into(), &true.into()), "{out}");
    assert_ne!(trial["limits"], Value::from(Vec::<Value>::new()));
}
