//! End-to-end tests of the log: its formats, and its level during a run.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::common::{LINK, Running, RuntimeFolder, config, json};

/// Returns a folder with a config whose rules can be reloaded.
fn folder() -> RuntimeFolder {
    let folder = RuntimeFolder::new();
    folder.0.write("rules.toml", "rules = []");
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1027' }]";
    folder.0.write("x.toml", config(LINK).replace(rules, "file = 'rules.toml'"));
    folder
}

fn start(folder: &RuntimeFolder, command: &mut Command) -> (Running, BufReader<ChildStderr>) {
    let mut running = folder.start(command.stdout(Stdio::piped()).stderr(Stdio::piped()), None);
    let stderr = BufReader::new(running.program.stderr.take().unwrap());
    (running, stderr)
}

/// Reads the next line of the log.
fn next(log: &mut BufReader<ChildStderr>) -> String {
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    line
}

/// Returns a line without the time at its start.
fn without_time(line: &str) -> &str {
    let (time, rest) = line.split_once(' ').unwrap();
    let form: String = time.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    assert_eq!(form, "0000-00-00T00:00:00.000000Z", "{line}");
    rest
}

#[test]
fn level_changes_during_a_run() {
    let folder = folder();
    let (running, mut log) = start(&folder, &mut folder.command("run @/x.toml --json"));
    let level = |more: &str| {
        let (status, out, err) = folder.dataplane(&format!("log level{more} --process {}", running.pid()));
        assert_eq!((status, err.as_str()), (0, ""));
        out
    };
    assert_eq!(level(""), "warn\n");
    // The level `warn` hides the message about the start of a reload, but not the result of the reload.
    running.program.signal("-HUP");
    let reloaded = next(&mut log);
    assert!(without_time(&reloaded).starts_with(" INFO reload: renew stage edge: "), "{reloaded}");
    assert_eq!(level(" info"), "info (before: warn)\n");
    assert_eq!(without_time(&next(&mut log)), " INFO the level of the log is now info\n");
    running.program.signal("-HUP");
    assert_eq!(without_time(&next(&mut log)), " INFO reloading files\n");
    assert!(without_time(&next(&mut log)).starts_with(" INFO reload: renew stage edge: "));
    let answer = json(&level(" off --json"));
    assert_eq!((&answer["level"], &answer["previous"]), (&"off".into(), &"info".into()));
    running.program.signal("-HUP");
    assert!(without_time(&next(&mut log)).starts_with(" INFO reload: renew stage edge: "));
    let (status, _, err) = folder.dataplane("log level loud");
    assert_eq!((status, err.contains("[possible values: off, error, warn, info, debug, trace]")), (2, true), "{err}");
    running.end("-TERM");
    assert_eq!(next(&mut log), "");
}

#[test]
fn unknown_level_is_refused_and_the_level_stays() {
    use dataplane::control::{Call, Client, Error, ErrorCode, Log, LogLevel};
    let folder = folder();
    let running = folder.run("", None);
    let mut client = Client::connect(&running.socket).unwrap();
    let refused = client.call(&Call::Log(Log { level: Some("loud\u{1b}".to_owned()) }));
    let Err(Error::Refused(_, refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!((refusal.code, refusal.message.as_str()), (ErrorCode::BadField, "there is no level `loud\\u{1b}`"));
    assert_eq!(refusal.help, "the levels are off, error, warn, info, debug, trace");
    let level: LogLevel = client.call(&Call::Log(Log::default())).unwrap().parse().unwrap();
    assert_eq!((level.level.as_str(), level.previous.as_str()), ("warn", "warn"));
    running.end("-TERM");
}

#[test]
fn every_line_of_a_json_log_is_an_object() {
    let folder = folder();
    let mut command = folder.command("run @/x.toml --json -v --log-format json");
    let (running, mut log) = start(&folder, &mut command);
    folder.0.write("rules.toml", "rules = [\n  { action = 'deny', dst_prot = 1 },\n]");
    running.program.signal("-HUP");
    let mut records: Vec<Value> = Vec::new();
    while records.last().is_none_or(|record| record["level"] != "warn") {
        records.push(json(&next(&mut log)));
    }
    let refused = records.pop().unwrap();
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("reload refused: 1 mistake in ") && message.contains("rules.toml:2:"), "{message}");
    let messages: Vec<&str> = records.iter().map(|record| record["message"].as_str().unwrap()).collect();
    assert_eq!(messages.last(), Some(&"reloading files"));
    assert!(messages.contains(&"running"), "{messages:?}");
    for record in records {
        assert_eq!((&record["level"], &record["thread"]), (&"info".into(), &"main".into()));
        assert_eq!(without_time(&format!("{} x", record["time"].as_str().unwrap())), "x");
    }
    running.end("-TERM");
    // The error that ends a command is an object too.
    let (status, _, err) = folder.dataplane("run @/x.toml --set runtime.workers=[4000] --log-format json");
    let last = json(err.lines().last().unwrap());
    assert_eq!((status, &last["level"]), (2, &"error".into()), "{err}");
    assert!(last["message"].as_str().unwrap().contains(" mistakes in "), "{err}");
}

#[test]
fn lines_in_the_journal_have_priorities_and_no_time() {
    let folder = folder();
    let path = folder.0.write("journal", "");
    let about = path.metadata().unwrap();
    let journal = || File::options().append(true).open(&path).unwrap();
    // systemd sets this variable to the device and the inode of the stream.
    let stream = format!("{}:{}", about.dev(), about.ino());
    let mut command = folder.command("run @/x.toml --json -v");
    command.stdout(Stdio::piped()).stderr(journal()).env("JOURNAL_STREAM", &stream);
    let running = folder.start(&mut command, None);
    running.end("-TERM");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.lines().any(|line| line == "<6>running"), "{text}");
    assert!(text.lines().all(|line| line.starts_with("<6>") || line.starts_with("<4>")), "{text}");
    // A command whose standard error is another stream ignores the variable.
    let mut command = folder.command("stats 0");
    let (status, _, err) = dataplane_testing::program::run(command.env("JOURNAL_STREAM", &stream));
    assert_eq!((status, err.starts_with("error: ")), (1, true), "{err}");
    // Every line of a message has the priority.
    let (status, _, err) = folder.dataplane("run @/x.toml --log-format journal --set port.wire.link.kind=\"x\"");
    assert_eq!((status, err.lines().last().unwrap().starts_with("<3>")), (2, true), "{err}");
}
