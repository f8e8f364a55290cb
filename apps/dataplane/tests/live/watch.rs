//! Tests of `doctor --watch`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use dataplane_testing::program::RunningProgram;

use crate::common::{RuntimeFolder, json};

#[test]
fn watch_reports_the_cores_and_workers_of_a_running_program() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let line = format!("doctor --watch --every 100ms -n 2 --process {}", running.pid());
    let (status, out, err) = folder.dataplane(&format!("{line} --json"));
    assert_eq!((status, err.as_str()), (0, ""));
    let intervals: Vec<_> = out.lines().map(json).collect();
    assert_eq!(intervals.len(), 2, "{out}");
    for interval in &intervals {
        assert_eq!(interval["process"], running.pid());
        let worker = &interval["workers"][0];
        assert_eq!(worker["core"], interval["cores"][0]["core"], "{interval}");
        // The worker polls, so it has used its core.
        assert!(worker["ran_ns"].as_u64().unwrap() > 0, "{interval}");
        let lacks = interval["unavailable"].as_array().unwrap().iter();
        assert!(lacks.map(|lack| &lack["what"]).any(|what| what == "errors of port wire"), "{interval}");
    }
    let (status, out, err) = folder.dataplane(&line);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.starts_with(&format!("process {}, workers on cores ", running.pid())), "{out}");
    assert_eq!(out.matches("\nafter ").count(), 2, "{out}");
}

#[test]
fn watch_ends_with_status_0_by_an_interrupt_and_at_the_end_of_the_program() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let watch = || {
        let mut command = folder.command(&format!("doctor --watch --every 20ms --process {}", running.pid()));
        let mut watch = RunningProgram::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut out = BufReader::new(watch.stdout.take().unwrap()).lines();
        // The command handles signals before it prints the first interval.
        assert!(out.any(|line| line.unwrap().starts_with("after ")));
        (watch, out)
    };
    let (interrupted, out) = watch();
    interrupted.signal("-INT");
    out.for_each(drop);
    assert_eq!(interrupted.end(), (0, String::new(), String::new()));
    let (watching, out) = watch();
    running.end("-TERM");
    out.for_each(drop);
    assert_eq!(watching.end(), (0, String::new(), "the program has ended\n".to_owned()));
}

#[test]
fn watch_refuses_a_config_and_needs_a_running_program() {
    let folder = RuntimeFolder::new();
    let (status, _, err) = folder.dataplane("doctor --watch @/x.toml");
    assert!(status == 2 && err.contains("cannot be used with"), "{err}");
    let (status, _, err) = folder.dataplane("doctor --watch");
    assert!(status == 1 && err.contains("no running program"), "{err}");
}
