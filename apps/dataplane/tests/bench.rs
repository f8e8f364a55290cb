//! Tests of the command `dataplane bench`, with a cable in memory.

use std::fs;
use std::process::{Command, Stdio};

use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::{Folder, wait_until};
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
    assert!(out.contains("B is compared with A: no difference shown"), "{out}");
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
fn page_that_cannot_be_written_is_an_error_after_the_result() {
    let folder = cable();
    let line = format!("rate lab.toml --rate 1kpps --for 10ms --html /dev/full {PATIENT}");
    let (status, out, err) = run(&mut bench(&folder, &line));
    assert!(status == 1 && out.contains("unaccounted 0"), "{out}{err}");
    assert!(err.contains("/dev/full") && err.contains("No space left on device"), "{err}");
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
