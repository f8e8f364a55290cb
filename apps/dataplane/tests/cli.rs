//! End-to-end tests of the `dataplane` program: its exit statuses, standard output and standard error.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use dataplane_testing::config::Config;
use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::{Folder, capture};
use serde_json::Value;

const CONFIG: &str = r#"
[runtime]
workers = 1
hugepages = "none"

[[port]]
name = "wan"
device = "soft"
link = { kind = "pcap", input = "in.pcap", output = "wan.pcapng" }

[[port]]
name = "lan"
device = "soft"
link = { kind = "pcap", output = "lan.pcapng" }

[pipeline]
input = ["wan"]

[[pipeline.stage]]
use = "parse"
outputs = { arp = "noise" }

[[pipeline.stage]]
name = "edge"
use = "acl"
default = "permit"
rules = [{ action = "deny", protocol = "icmp", src = "192.0.2.1/32" }]
drops = "denied"

[[pipeline.stage]]
name = "swap"
use = "mac_swap"

[[pipeline.stage]]
name = "out"
use = "tx"
port = "lan"

[[pipeline.stage]]
name = "noise"
use = "drop"

[[pipeline.stage]]
name = "denied"
use = "capture"
file = "denied.pcapng"
next = "drop"
"#;

/// Returns a folder that contains a config and the capture that the config reads.
fn folder_with_config() -> Folder {
    let folder = Folder::new();
    folder.write("x.toml", CONFIG);
    fs::copy(capture("arp-and-ping.pcap"), folder.file("in.pcap")).unwrap();
    folder
}

fn command<T: AsRef<OsStr>>(args: &[T]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
    command.args(args).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Runs the program with the arguments in `line`, where `@` stands for the path of the folder. Returns the exit status,
/// standard output and standard error.
fn dataplane(folder: &Folder, line: &str) -> (i32, String, String) {
    let args: Vec<String> = line.split(' ').map(|arg| arg.replace('@', &folder.path().display().to_string())).collect();
    run(&mut command(&args))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn exit_status_is_2_for_a_wrong_command_line_and_0_for_help() {
    let folder = folder_with_config();
    for line in ["", "fly", "run", "run @/x.toml --for soon", "run @/x.toml --set burst", "graph @/x.toml --format gif"]
    {
        let (status, out, err) = dataplane(&folder, line);
        assert_eq!((status, out.as_str()), (2, ""), "{line}");
        assert!(err.contains("Usage") || err.contains("--help"), "{line}: {err}");
    }
    let (status, out, err) = dataplane(&folder, "--help");
    assert_eq!((status, err.as_str()), (0, ""));
    for command in ["run", "stats", "check", "graph", "explain", "stages", "devices", "topology"] {
        assert!(out.contains(&format!("  {command} ")), "{command}: {out}");
    }
}

#[test]
fn check_prints_the_plan_of_a_config_without_mistakes() {
    let folder = folder_with_config();
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert_eq!((status, err.as_str()), (0, ""));
    for part in ["workers   1", "wan: soft pcap", "parse: → edge, arp → noise, other → drop", "swap (mac_swap): → out"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (status, out, _) = dataplane(&folder, "check -j @/x.toml --set runtime.burst=32 --set runtime.idle=sleep");
    let plan = json(&out);
    assert_eq!((status, &plan["runtime"]["burst"], &plan["runtime"]["idle"]), (0, &32.into(), &"sleep".into()));
    assert_eq!(plan["nodes"][3]["use"], "tx");
}

#[test]
fn check_shows_every_mistake_with_its_position() {
    let folder = folder_with_config();
    let mut text = CONFIG.replace("workers = 1", "wrkers = 1").replace("use = \"mac_swap\"", "use = \"mac_swop\"");
    text = text
        .replace("\"deny\"", "\"dney\"")
        .replace("name = \"out\"\nuse = \"tx\"\nport = \"lan\"", "use = \"tx\"\nport = \"lam\"");
    folder.write("x.toml", text);
    let expected = [
        (3, "unknown key `wrkers`", "did you mean `workers`?"),
        (27, "unknown value `dney`", "did you mean `deny`?"),
        (32, "unknown stage kind `mac_swop`", "did you mean `mac_swap`?"),
        (36, "stage `tx`: there is no port `lam`", "did you mean `lan`?"),
    ];
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert_eq!((status, out.as_str()), (2, ""));
    for (line, message, help) in expected {
        assert!(
            err.contains(&format!("x.toml:{line}:")) && err.contains(message) && err.contains(help),
            "{message}: {err}"
        );
    }
    let last = format!("error: 4 mistakes in {} (further checks run", folder.file("x.toml").display());
    assert!(err.contains(&last), "{err}");
    assert!(!err.contains('\x1b'), "the output has colours although standard error is not a terminal");

    let (status, out, err) = dataplane(&folder, "check --json @/x.toml");
    assert_eq!((status, err.as_str()), (2, ""));
    let records = json(&out);
    let records = records.as_array().unwrap();
    assert_eq!(records.len(), expected.len(), "{out}");
    for (record, (line, message, _)) in records.iter().zip(expected) {
        assert_eq!(record["line"], line, "{record}");
        assert!(record["message"].as_str().unwrap().contains(message), "{record}");
    }
    // Every command that reads a config reports the same mistakes.
    for line in ["run @/x.toml", "graph @/x.toml", "explain @/x.toml @/in.pcap", "topology @/x.toml"] {
        let (status, out, err) = dataplane(&folder, line);
        assert_eq!((status, out.as_str()), (2, ""), "{line}");
        assert!(err.contains("unknown stage kind `mac_swop`"), "{line}: {err}");
    }
}

#[test]
fn missing_capture_and_device_are_reported_at_their_config_lines() {
    let folder = folder_with_config();
    for (input, why) in
        [("absent.pcap", "No such file"), (".", "a folder"), ("x.toml", "not a capture"), ("short", "not a capture")]
    {
        folder.write("short", [0xd4]);
        folder.write("x.toml", CONFIG.replace("input = \"in.pcap\"", &format!("input = \"{input}\"")));
        for command in ["check", "run", "doctor"] {
            let (status, out, err) = dataplane(&folder, &format!("{command} @/x.toml"));
            assert_eq!((status, out.as_str()), (2, ""), "{command} {input}");
            assert!(err.contains("x.toml:9:33") && err.contains(why), "{command} {input}: {err}");
        }
    }
    // `graph` does not open the inputs of the config, so an invalid input is no error.
    assert_eq!(dataplane(&folder, "graph @/x.toml").0, 0);

    let port = "name = \"a\"\ndevice = \"none_such\"\n";
    let stage = "use = \"tx\"\nport = \"a\"\n";
    let text =
        format!("[runtime]\nworkers = 1\n[[port]]\n{port}[pipeline]\ninput = [\"a\"]\n[[pipeline.stage]]\n{stage}");
    folder.write("x.toml", text);
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert!(status == 0 && out.contains("a: none_such"), "{out} {err}");
    assert!(err.contains("x.toml:5:10") && err.contains("warning: this host has no RDMA device `none_such`"), "{err}");
    let (status, out, _) = dataplane(&folder, "doctor @/x.toml");
    assert!(status == 1 && out.contains("fails: this host has no RDMA device `none_such`"), "{out}");
}

#[test]
fn doctor_prints_the_privileges_that_the_links_of_the_run_need() {
    let folder = folder_with_config();
    let pcap = "device = \"soft\"\nlink = { kind = \"pcap\", output = \"lan.pcapng\" }";
    let packet = "device = \"host\"\nmtu = 1500\nlink = { kind = \"packet\", interface = \"lo\" }";
    for (link, needs_raw_sockets) in [(pcap, false), (packet, true)] {
        folder.write("x.toml", CONFIG.replace(pcap, link));
        let (_, out, err) = dataplane(&folder, "doctor @/x.toml");
        let section = out.split_once("privileges of the run").unwrap_or_else(|| panic!("{out}{err}")).1;
        let line = |start: &str| section.lines().find_map(|line| line.trim().strip_prefix(start)).unwrap().to_owned();
        // Search only the line that must not contain `net_raw`: without privileges, both lines are empty.
        let wrong =
            if needs_raw_sockets { line("gives up the capabilities:") } else { line("keeps the capabilities:") };
        assert!(!wrong.contains("net_raw"), "{link}: {section}");
        assert_eq!(line("writes only:").trim(), folder.path().display().to_string(), "{link}: {section}");
    }
}

#[test]
fn strict_check_fails_on_problems_that_prevent_the_start_of_a_run() {
    let folder = Folder::new();
    let (port, end) = ("[[port]]\nname = \"a\"\n", "[pipeline]\ninput = [\"a\"]\n[[pipeline.stage]]\nuse = \"drop\"\n");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (keys, place, message) in [
        ("device = \"none_such\"".to_owned(), "x.toml:5:10", "this host has no RDMA device `none_such`".to_owned()),
        (
            "device = \"host\"\nlink = { kind = \"packet\", interface = \"no-such\" }".to_owned(),
            "x.toml:6:8",
            "there is no interface `no-such` in this network namespace".to_owned(),
        ),
        (
            format!(
                "device = \"soft\"\nqp = \"rc\"\nlink = {{ kind = \"loopback\" }}\nconnection = {{ listen = \"{address}\" }}"
            ),
            "x.toml:8:25",
            format!("cannot listen on {address}"),
        ),
    ] {
        folder.write("x.toml", format!("[runtime]\nworkers = 1\n{port}{keys}\n{end}"));
        let (status, _, err) = dataplane(&folder, "check @/x.toml");
        assert!(status == 0 && err.contains(&format!("warning: {message}")), "{err}");
        let (status, out, err) = dataplane(&folder, "check --strict @/x.toml");
        assert_eq!((status, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(&format!("error: {message}")) && err.contains(place) && err.contains("help: "), "{err}");
        let (status, out, _) = dataplane(&folder, "check --strict -j @/x.toml");
        assert!(status == 2 && json(&out)[0]["level"] == "error", "{out}");
    }
}

#[test]
fn strict_check_fails_on_a_control_socket_that_is_in_use() {
    let folder = folder_with_config();
    let path = folder.file("control.sock");
    let _taken = UnixListener::bind(&path).unwrap();
    folder.write("x.toml", CONFIG.replace("[runtime]", &format!("[runtime]\ncontrol = \"{}\"", path.display())));
    let message = format!("another program listens on the control socket {}", path.display());
    let (status, _, err) = dataplane(&folder, "check @/x.toml");
    assert!(status == 0 && err.contains(&format!("warning: {message}")), "{err}");
    let (status, out, err) = dataplane(&folder, "check --strict @/x.toml");
    assert_eq!((status, out.as_str()), (2, ""), "{err}");
    assert!(err.contains(&format!("error: {message}")) && err.contains("x.toml:3:11"), "{err}");
    assert!(err.contains("help: end the other program, or name another path"), "{err}");
}

#[test]
fn exit_status_is_2_for_an_unreadable_config() {
    let folder = folder_with_config();
    let (status, out, err) = dataplane(&folder, "check @/y.toml");
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("y.toml:1:1") && err.contains("No such file"), "{err}");
    let (status, out, _) = dataplane(&folder, "check -j @/y.toml");
    let mistakes: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &mistakes[0]["line"], &mistakes[0]["column"]), (2, &1.into(), &1.into()), "{out}");
    let (status, _, err) = dataplane(&folder, "check @/x.toml --set runtime.burst=0");
    assert_eq!(status, 2);
    assert!(err.contains("--set runtime.burst=0"), "{err}");
}

#[test]
fn run_prints_only_the_report_to_standard_output() {
    let folder = folder_with_config();
    let (status, out, err) = dataplane(&folder, "run @/x.toml --report json");
    assert_eq!(status, 0, "{err}");
    let report = json(&out);
    let ledger = &report["ledger"];
    let packets = report["packets"]["rx"].as_u64().unwrap();
    let dropped = ledger["dropped"].as_u64().unwrap();
    assert!(packets > 0 && dropped > 0, "{ledger}");
    assert_eq!(ledger["unaccounted"], 0);
    assert_eq!(report["packets"]["tx"], packets - dropped);
    assert!(ledger["drops"]["edge.denied"].as_u64().unwrap() > 0, "{ledger}");
    assert!(ledger["drops"]["noise.requested"].as_u64().unwrap() > 0, "{ledger}");
    for key in ["duration_s", "bytes", "rate_mpps", "latency_ns", "costs", "ports", "stages", "workers"] {
        assert!(!report[key].is_null(), "{key}");
    }
    for file in ["lan.pcapng", "denied.pcapng"] {
        assert!(fs::metadata(folder.file(file)).unwrap().len() > 0, "{file}");
    }

    let (status, out, _) = dataplane(&folder, "run @/x.toml --packets 3");
    assert_eq!(status, 0);
    assert!(out.contains("received 3 packets") && out.contains("unaccounted 0"), "{out}");
}

#[test]
fn exit_status_is_1_for_a_failed_run() {
    let folder = folder_with_config();
    let held = fs::File::create(folder.file("wan.pcapng")).unwrap();
    held.lock().unwrap();
    let (status, out, err) = dataplane(&folder, "run @/x.toml");
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("wan.pcapng: another port, stage or program uses this file"), "{err}");
    drop(held);

    // The capture is truncated within its last packet. All earlier packets are processed and reported.
    let whole = fs::read(capture("arp-and-ping.pcap")).unwrap();
    folder.write("in.pcap", &whole[..whole.len() - 5]);
    let (status, out, err) = dataplane(&folder, "run @/x.toml -j");
    assert_eq!(status, 1, "{err}");
    let report = json(&out);
    assert!(report["packets"]["rx"].as_u64().unwrap() > 0);
    assert_eq!(report["ledger"]["unaccounted"], 0);
    assert!(err.contains("in.pcap") && err.contains("byte"), "{err}");
}

/// Starts a run that ends only on a signal. Returns when the program logs that the pipeline runs.
fn endless(folder: &Folder) -> RunningProgram {
    let mut running = start_endless(folder, CONFIG);
    let mut lines = BufReader::new(running.stderr.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("running")), "the program ended before the pipeline ran");
    running
}

fn start_endless(folder: &Folder, config: &str) -> RunningProgram {
    RunningProgram::start(&mut endless_command(folder, config))
}

fn endless_command(folder: &Folder, config: &str) -> Command {
    let config =
        config.replace("kind = \"pcap\", input = \"in.pcap\", output = \"wan.pcapng\"", "kind = \"generator\"");
    let config = config.replace("kind = \"pcap\", output = \"lan.pcapng\"", "kind = \"generator\"");
    let path = folder.write("endless.toml", config);
    let mut run = command(&[OsStr::new("run"), path.as_os_str(), OsStr::new("-jv")]);
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    run
}

/// Waits for the end of a run that was stopped by a signal, and returns its report.
fn report(stopped: RunningProgram) -> Value {
    let (status, out, _) = stopped.end();
    assert_eq!(status, 0);
    let report = json(&out);
    assert_eq!(report["ledger"]["unaccounted"], 0);
    report
}

#[test]
fn stop_signal_ends_the_run_with_a_report() {
    let folder = folder_with_config();
    for signal in ["-INT", "-TERM", "-USR1", "-USR2", "-ALRM"] {
        let running = endless(&folder);
        running.signal(signal);
        report(running);
    }
}

/// Waits until the pipeline runs, and repeats a stop signal until the program ends. Returns the rest of standard error.
fn abort(mut running: RunningProgram) -> String {
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.contains("running")), "the program ended before the pipeline ran");
    while running.try_wait().unwrap().is_none() {
        running.signal("-INT");
    }
    assert_eq!(running.wait().unwrap().code(), Some(128 + 2));
    lines.collect()
}

/// Returns a config whose port sends 1,000 bits per second, so that a run drains for longer than a test.
fn draining_config() -> String {
    let config = CONFIG.replace("hugepages = \"none\"", "hugepages = \"none\"\ndrain_timeout = \"1h\"");
    let slow = "output = \"lan.pcapng\" }\nqp = \"raw_packet\"\nrate_limit = { rate = \"1kbps\" }";
    config.replace("output = \"lan.pcapng\" }", slow)
}

#[test]
fn repeated_stop_signal_ends_a_run_that_drains() {
    let folder = folder_with_config();
    let running = start_endless(&folder, &draining_config());
    assert!(abort(running).contains("aborted: packets in processing are lost, and there is no report"));
}

/// A destructor of a C library may wait for a thread that is stuck.
#[test]
fn repeated_stop_signal_runs_no_destructors_of_c_libraries() {
    let folder = folder_with_config();
    let source = "long write(int, const void *, unsigned long);
        __attribute__((destructor)) static void end(void) { if (write(2, \"destructor\\n\", 11) < 0) return; }\n";
    let (source, library) = (folder.write("ended.c", source), folder.file("ended.so"));
    // Rust links programs with `cc`, so every host that builds the tests has this compiler.
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(built.success());
    let (_, _, err) = run(command(&["--version"]).env("LD_PRELOAD", &library));
    assert!(err.contains("destructor"), "the program does not load the library: {err}");

    let mut endless = endless_command(&folder, &draining_config());
    let err = abort(RunningProgram::start(endless.env("LD_PRELOAD", &library)));
    assert!(err.contains("aborted: packets") && !err.contains("destructor"), "{err}");
}

/// The reader of the report does not read, and another writer keeps the pipe full.
#[test]
fn repeated_stop_signal_ends_a_run_that_cannot_print_its_report() {
    let folder = folder_with_config();
    let path = folder.write("x.toml", CONFIG);
    let (reader, mut filler) = std::io::pipe().unwrap();
    let mut command = command(&[OsStr::new("run"), path.as_os_str(), OsStr::new("-jv")]);
    let running = RunningProgram::start(command.stdout(filler.try_clone().unwrap()).stderr(Stdio::piped()));
    let fill = thread::spawn(move || while filler.write(&[0; 4096]).is_ok() {});
    abort(running);
    // Close the read end of the pipe. The filler thread then ends, because its write fails.
    drop((command, reader));
    fill.join().unwrap();
}

/// A terminal would execute an escape sequence in a message.
#[test]
fn control_characters_of_a_path_are_not_printed() {
    let folder = Folder::new();
    folder.write("\u{1b}[31mred.toml", "[runtime]\nburst = 0\n");
    let wrong = folder.file("\u{1b}[31mred.toml").to_str().unwrap().to_owned();
    let missing = folder.file("\u{1b}[31mblue.toml").to_str().unwrap().to_owned();
    for args in [&["check", &wrong][..], &["check", &missing], &["check", &wrong, "--set", "runtime.\u{1b}[31m=5"]] {
        let (status, _, err) = run(&mut command(args));
        assert_eq!(status, 2, "{err}");
        assert!(err.contains("[31m") && !err.contains('\u{1b}'), "{err:?}");
    }
}

#[test]
fn failed_output_is_logged_while_the_run_continues() {
    let folder = folder_with_config();
    let mut running = start_endless(&folder, &CONFIG.replace("lan.pcapng", "/dev/full"));
    let mut lines = BufReader::new(running.stderr.as_mut().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains("/dev/full: No space left")),
        "the program did not log the error of the output"
    );
    assert!(running.try_wait().unwrap().is_none());
    running.signal("-TERM");
    assert_eq!(running.wait().unwrap().code(), Some(1));
}

/// The test closes the read end of standard error, as if the terminal of the program were closed.
#[test]
fn run_with_closed_standard_error_ends_normally() {
    let folder = folder_with_config();
    let mut running = endless(&folder);
    drop(running.stderr.take());
    running.signal("-HUP");
    running.signal("-TERM");
    report(running);
}

#[test]
fn sighup_reloads_the_rules_of_an_acl() {
    let folder = folder_with_config();
    folder.write("rules.toml", "rules = []");
    let from = "rules = [{ action = \"deny\", protocol = \"icmp\", src = \"192.0.2.1/32\" }]";
    let mut running = start_endless(&folder, &CONFIG.replace(from, "file = \"rules.toml\""));
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    let mut expect = |part: &str| {
        let found = lines.by_ref().map(|line| line.unwrap()).find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("`{part}` was not printed"))
    };
    expect("running");
    folder.write("rules.toml", "rules = [{ action = \"deny\" }]");
    running.signal("-HUP");
    expect("reload: renew stage edge: hitless: the stage reads ");
    folder.write("rules.toml", "rules = [\n  { action = \"deny\", dst_prot = 1 },\n]");
    running.signal("-HUP");
    expect("reload refused: 1 mistake in ");
    let line = expect("rules.toml:2:");
    assert!(line.contains("unknown key `dst_prot`; help: did you mean `dst_port`?"), "{line}");
    running.signal("-INT");
    let report = report(running);
    let edge = report["stages"].as_array().unwrap().iter().find(|stage| stage["name"] == "edge").unwrap();
    assert_eq!(edge["counters"]["rules"], 1);
}

/// The first SIGHUP starts a reload that compiles 99,999 rules, which takes a while. During the reload, SIGINT stops
/// the run, and a second SIGHUP has no effect.
#[test]
fn stop_does_not_wait_for_a_reload() {
    let folder = folder_with_config();
    folder.write("rules.toml", "rules = []");
    let from = "rules = [{ action = \"deny\", protocol = \"icmp\", src = \"192.0.2.1/32\" }]";
    let mut running = start_endless(&folder, &CONFIG.replace(from, "file = \"rules.toml\""));
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.contains("running")));
    let rule = |at: u32| {
        let [_, a, b, c] = at.to_be_bytes();
        format!("{{ action = \"deny\", src = \"10.{a}.{b}.{c}\", dst = \"172.{a}.{b}.{c}\" }},\n")
    };
    folder.write("rules.toml", format!("rules = [\n{}]", (0..99_999).map(rule).collect::<String>()));
    running.signal("-HUP");
    assert!(lines.any(|line| line.contains("reloading files")));
    running.signal("-INT");
    running.signal("-HUP");
    assert!(lines.any(|line| line.contains("reload abandoned")), "the run waited for the reload");
    report(running);
}

/// `ulimit -f` limits the file size. A write beyond the limit fails with an error, and the program continues.
#[test]
fn file_size_limit_does_not_end_the_run() {
    let folder = folder_with_config();
    let config = Config::new()
        .port("in", "kind = 'generator', size = 100")
        .stage(
            "capture",
            "file = 'all.pcapng'
lossless = true
rotate_bytes = 100_000",
        )
        .stage("drop", "");
    let config = folder.write("limited.toml", config.to_string());
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 8; exec \"$0\" run \"$1\" -j --packets 5000", env!("CARGO_BIN_EXE_dataplane")]);
    let (status, out, err) = run(limited.arg(config));
    assert_eq!(status, 1, "{err}");
    assert_eq!(err.matches("packets are not written").count(), 1, "{err}");
    assert!(err.contains("File too large"), "{err}");
    let report = json(&out);
    assert_eq!((&report["packets"]["rx"], &report["ledger"]["unaccounted"]), (&5000.into(), &0.into()));
    // Every file is complete. Together, the files contain all packets that the stage took and did not lose.
    let mut packets = 0;
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.to_string_lossy().contains("all_")) {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            packets += u64::from(word(0) == 6);
            rest = &rest[word(4) as usize..];
        }
    }
    let capture = report["stages"].as_array().unwrap().iter().find(|stage| stage["name"] == "capture").unwrap();
    let counted = |name: &str| capture["counters"][name].as_u64().unwrap();
    assert_eq!(counted("taken") - counted("lost"), packets);
    assert!(packets > 0);
}

/// Returns the number of frames in a little-endian capture file, or `None` if the file ends within a frame.
fn frames(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let is_ng = word(0) == Some(0x0a0d_0d0a);
    let (mut at, mut frames) = (if is_ng { 0 } else { bytes.len().min(24) }, 0);
    while at < bytes.len() {
        frames += u64::from(!is_ng || word(at)? == 6);
        at += if is_ng { word(at + 4)? } else { 16 + word(at + 8)? };
    }
    (at == bytes.len()).then_some(frames)
}

/// `ulimit -f` acts like a full disk. The file ends with a complete packet. The program reports how many sent packets
/// are missing in the file.
#[test]
fn failed_output_keeps_whole_packets_and_reports_lost_ones() {
    let folder = folder_with_config();
    for (output, limit) in [("a.pcap", 0), ("b.pcap", 1), ("c.pcapng", 77), ("d.pcap", 600), ("e.pcapng", 777)] {
        let config = Config::new()
            .port("in", "kind = 'generator', size = 101, count = 5000")
            .port("out", &format!("kind = 'pcap', output = '{output}'"))
            .stage("tx", "port = 'out'");
        let config = folder.write("full.toml", config.to_string());
        let limited = |form: &str| {
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -f $3; exec \"$0\" run \"$1\" --report $2", env!("CARGO_BIN_EXE_dataplane")]);
            run(limited.arg(&config).arg(form).arg(limit.to_string()))
        };
        let (status, out, err) = limited("json");
        assert_eq!(status, 1, "{err}");
        let report = json(&out);
        let (ledger, port) = (&report["ledger"], &report["ports"][1]);
        assert_eq!((&ledger["rx"], &ledger["unaccounted"]), (&5000.into(), &0.into()));
        let number = |value: &Value| value.as_u64().unwrap();
        let (sent, lost) = (number(&port["packets"]["tx"]), number(&port["tx_lost"]));
        assert_eq!(sent + ledger["drops"]["out.tx_error"].as_u64().unwrap_or(0), 5000);
        assert_eq!(lost, number(&port["device_counters"]["tx_lost"]));
        assert!(
            err.contains(&format!(
                "{output}: File too large (os error 27): {lost} sent packets are missing in the file"
            )),
            "{err}"
        );
        assert_eq!(err.matches("further packets are dropped").count(), 1, "{err}");
        let bytes = fs::read(folder.file(output)).unwrap();
        assert_eq!(frames(&bytes), Some(sent - lost), "{output}: {} bytes", bytes.len());
        assert!(lost > 0 && bytes.len() <= limit * 512, "{output}: {lost} lost, {} bytes", bytes.len());
        // The file ends less than 200 bytes below the limit.
        assert!(bytes.len() + 200 > limit * 512, "{output}: {} bytes", bytes.len());

        let (_, out, _) = limited("human");
        assert!(out.contains("sent, but missing from the file of port out"), "{out}");
    }
}

#[test]
fn graph_has_every_stage_and_port() {
    let folder = folder_with_config();
    for (format, first, last) in
        [("svg", "<svg", "</svg>\n"), ("dot", "digraph", "}\n"), ("mermaid", "flowchart", "\n")]
    {
        let (status, out, err) = dataplane(&folder, &format!("graph @/x.toml --format {format}"));
        assert_eq!((status, err.as_str()), (0, ""));
        assert!(out.starts_with(first) && out.ends_with(last), "{out}");
        for name in ["wan", "lan", "parse", "edge", "swap", "out", "noise", "arp", "drop: other", "drop → denied"] {
            assert!(out.contains(name), "{format}: {name}");
        }
    }
    let (_, svg, _) = dataplane(&folder, "graph @/x.toml");
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    let (status, out, _) = dataplane(&folder, "graph @/x.toml -o @/x.dot");
    assert_eq!((status, out.as_str()), (0, ""));
    assert!(fs::read_to_string(folder.file("x.dot")).unwrap().starts_with("digraph"));
    let (status, _, err) = dataplane(&folder, "graph @/x.toml -o @/none/x.svg");
    assert_eq!(status, 1);
    assert!(err.contains("none/x.svg"), "{err}");

    // `graph` must not overwrite the config or any input or output of the config, even through a symbolic link.
    std::os::unix::fs::symlink(folder.file("x.toml"), folder.file("link.svg")).unwrap();
    folder.write("denied.pcapng", "kept");
    let before = ["x.toml", "in.pcap", "denied.pcapng"].map(|name| fs::read(folder.file(name)).unwrap());
    for (output, what) in [
        ("x.toml", "the config itself"),
        ("link.svg", "the config itself"),
        ("in.pcap", "the input of port"),
        ("denied.pcapng", "the file that stage `denied` writes"),
    ] {
        let (status, _, err) = dataplane(&folder, &format!("graph @/x.toml -o @/{output}"));
        assert_eq!(status, 1, "{err}");
        assert!(err.contains(what) && err.contains("name another file"), "{err}");
    }
    assert!(["x.toml", "in.pcap", "denied.pcapng"].map(|name| fs::read(folder.file(name)).unwrap()) == before);
}

#[test]
fn quickstart_diagram_is_up_to_date() {
    let folder = folder_with_config();
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let (status, out, _) = dataplane(&folder, &format!("graph {repository}/configs/quickstart.toml"));
    assert_eq!(status, 0);
    let drawn = fs::read_to_string(format!("{repository}/docs/quickstart.svg")).unwrap();
    assert!(
        drawn == out,
        "outdated, run: target/release/dataplane graph configs/quickstart.toml -o docs/quickstart.svg"
    );
}

#[test]
fn explain_shows_the_path_of_every_packet() {
    let folder = folder_with_config();
    let (status, out, err) = dataplane(&folder, "explain @/x.toml @/in.pcap");
    assert_eq!((status, err.as_str()), (0, ""));
    let ping = "icmp echo request 1  98 bytes\n  parse → edge (no rule matches: permit) → swap → out lan\n  changed: \
                ethernet.destination 02:00:00:00:00:02 → 02:00:00:00:00:01, ethernet.source 02:00:00:00:00:01 → \
                02:00:00:00:00:02\n  sent on lan\n";
    assert!(out.contains(ping), "{out}");
    assert!(out.contains("  parse [arp] → noise\n  dropped: noise.requested\n"), "{out}");
    assert!(out.contains("\n  dropped: edge.denied\n"), "{out}");
    let written = ["lan.pcapng", "wan.pcapng", "denied.pcapng"].map(|name| folder.file(name).exists());
    assert_eq!(written, [false; 3], "explain wrote an output file");

    let (status, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap --packets 2");
    assert_eq!(status, 0);
    let packets = json(&out);
    assert_eq!(packets.as_array().unwrap().len(), 2);
    assert_eq!((&packets[1]["number"], &packets[1]["path"][0]["stage"]), (&2.into(), &"parse".into()));
    let (_, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap --packets 0");
    assert_eq!(json(&out), Value::Array(Vec::new()));
}

#[test]
fn explain_names_the_stage_that_holds_a_packet() {
    let folder = folder_with_config();
    let neighbor = "[[pipeline.stage]]\nname = \"way\"\nuse = \"route\"\ntable = [{ prefix = \"0.0.0.0/0\", via = \
                    \"203.0.113.9\", port = \"lan\" }]\n[[pipeline.stage]]\nname = \"find\"\nuse = \"neighbor\"\nsource \
                    = \"resolve\"\n";
    let text = CONFIG.replace("[[pipeline.stage]]\nname = \"swap\"\nuse = \"mac_swap\"\n", neighbor);
    let text = text.replace("name = \"lan\"", "name = \"lan\"\naddresses = [\"203.0.113.1/24\"]");
    let text = text.replace("name = \"noise\"\nuse = \"drop\"", "name = \"noise\"\nuse = \"arp\"\nnext = \"drop\"");
    folder.write("x.toml", text);
    let (status, out, err) = dataplane(&folder, "explain @/x.toml @/in.pcap");
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("\n  held by find\n"), "{out}");
    let (_, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap");
    assert!(json(&out).as_array().unwrap().iter().any(|packet| packet["fate"] == "held"), "{out}");
}

/// `explain` reports what happened to each packet. The numbers of sent and dropped packets equal the numbers in the
/// ledger (the packet accounting) of a run.
#[test]
fn explain_agrees_with_a_run() {
    let folder = folder_with_config();
    for name in fs::read_dir(capture("")).unwrap().map(|entry| entry.unwrap().path()) {
        if !name.extension().is_some_and(|end| end == "pcap" || end == "pcapng") {
            continue;
        }
        fs::copy(&name, folder.file("in.pcap")).unwrap();
        let (_, out, _) = dataplane(&folder, "explain -j @/x.toml @/in.pcap");
        let packets = json(&out);
        let packets = packets.as_array().unwrap();
        let (_, out, _) = dataplane(&folder, "run -j @/x.toml");
        let report = json(&out);
        let sent = packets.iter().filter(|packet| packet["fate"] == "sent").count();
        assert_eq!(report["packets"]["tx"], sent, "{}", name.display());
        for (reason, count) in report["ledger"]["drops"].as_object().unwrap() {
            let dropped = packets.iter().filter(|packet| packet["detail"] == reason.as_str()).count();
            assert_eq!(*count, dropped, "{}: {reason}", name.display());
        }
    }
}

#[test]
fn explain_shows_the_packets_before_damage() {
    let folder = folder_with_config();
    let whole = fs::read(capture("arp-and-ping.pcap")).unwrap();
    folder.write("in.pcap", &whole[..whole.len() - 5]);
    let (status, out, err) = dataplane(&folder, "explain -j @/x.toml @/in.pcap");
    assert_eq!(status, 1);
    let count = json(&out).as_array().unwrap().len();
    assert!(count > 0);
    assert!(
        err.contains("damaged at byte") && err.contains(&format!("all packets before the damage are shown: {count}")),
        "{err}"
    );

    folder.write("in.pcap", "this is no capture, but long enough to be one");
    let (status, out, err) = dataplane(&folder, "explain @/x.toml @/in.pcap");
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("in.pcap: not a capture"), "{err}");
    let (status, _, err) = dataplane(&folder, "explain @/x.toml @/in.pcap --port lan");
    assert_eq!(status, 2);
    assert!(err.contains("`lan` is not an input"), "{err}");
}

#[test]
fn command_with_a_closed_output_pipe_succeeds() {
    let folder = folder_with_config();
    let args = ["explain".into(), folder.file("x.toml"), capture("mixed.pcap")];
    let mut running = RunningProgram::start(command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop(running.stdout.take());
    let (status, _, err) = running.end();
    assert_eq!((status, err.as_str()), (0, ""));
}

/// If standard output is closed, a run fails, because its report is lost. A command that prints a list succeeds.
#[test]
fn run_whose_report_cannot_be_written_fails() {
    let folder = folder_with_config();
    for format in ["json", "human"] {
        let args = ["run".into(), folder.file("x.toml"), "--report".into(), format.into()];
        let mut running = RunningProgram::start(command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()));
        drop(running.stdout.take());
        let (status, _, err) = running.end();
        assert_eq!(status, 1, "{format}: {err}");
        assert!(err.ends_with("error: the report is lost: standard output is closed\n"), "{err}");
    }
}

#[test]
fn config_must_be_a_regular_file_or_standard_input() {
    let folder = folder_with_config();
    assert!(Command::new("mkfifo").arg(folder.file("fifo")).status().unwrap().success());
    for arguments in ["check @/fifo", "run @/fifo", "graph @/fifo", "doctor @/fifo"] {
        let (status, _, err) = dataplane(&folder, arguments);
        assert_eq!(status, 2, "{arguments}: {err}");
        assert!(err.contains("the config cannot be read: a pipe, not a regular file"), "{err}");
        assert!(err.contains("= help: name a regular file, or write `-` to read the config"), "{err}");
    }
    let config = fs::File::open(folder.file("x.toml")).unwrap();
    let args = [PathBuf::from("check"), "-".into()];
    let mut check = command(&args);
    check.current_dir(folder.path()).stdin(config).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (status, out, err) = RunningProgram::start(&mut check).end();
    assert_eq!(status, 0, "{err}");
    assert!(out.starts_with("workers "), "{out}");
}

#[test]
fn explained_capture_is_a_regular_file_or_standard_input() {
    let folder = folder_with_config();
    assert!(Command::new("mkfifo").arg(folder.file("fifo")).status().unwrap().success());
    for (file, kind) in [(folder.file("fifo"), "a pipe"), ("/dev/zero".into(), "a device")] {
        let mut explain = command(&["explain".into(), folder.file("x.toml"), file]);
        let (status, _, err) = RunningProgram::start(explain.stdout(Stdio::piped()).stderr(Stdio::piped())).end();
        assert!(status == 1 && err.contains(&format!("{kind}, not a regular file")), "{status}: {err}");
    }
    let input = fs::File::open(capture("mixed.pcap")).unwrap();
    let mut explain = command(&["explain".into(), folder.file("x.toml"), "-".into()]);
    explain.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (status, out, err) = RunningProgram::start(&mut explain).end();
    assert!(status == 0 && out.starts_with("#1  "), "{out}{err}");
}

/// Two ports of a bridge are the ends of one cable, so each flooded frame would circulate indefinitely.
#[test]
fn looped_port_of_a_bridge_is_shut() {
    let folder = Folder::new();
    let port = |name: &str, link: &str| format!("[[port]]\nname = \"{name}\"\ndevice = \"soft\"\nlink = {link}\n");
    let config = [
        "[runtime]\nworkers = 1\nburst = 32\n".to_owned(),
        port("source", "{ kind = \"generator\" }"),
        port("one", "{ kind = \"loopback\", peer = \"two\" }"),
        port("two", "{ kind = \"loopback\", peer = \"one\" }"),
        "[pipeline]\ninput = [\"source\", \"one\", \"two\"]\n[[pipeline.stage]]\nuse = \"bridge\"\nloop_shut = \"1h\"\n\
         storm_control = { unknown_unicast = \"1kpps\" }\n[[pipeline.stage]]\nuse = \"tx\"\n"
            .to_owned(),
    ];
    folder.write("x.toml", config.concat());
    let (status, out, err) = dataplane(&folder, "run @/x.toml --packets 200000 --json");
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("bridge `bridge`: port `two` is shut") && !err.contains("port `one` is shut"), "{err}");
    let report = json(&out);
    assert_eq!(report["ledger"]["unaccounted"], 0);
    let drops = report["ledger"]["drops"].to_string();
    assert!(drops.contains("bridge.probe") && drops.contains("bridge.unknown_storm"), "{drops}");
}

#[test]
fn check_prints_the_memory_of_stages() {
    let folder = folder_with_config();
    let capture = "[[pipeline.stage]]\nname = \"tap\"\nuse = \"capture\"\nfile = \"tap.pcapng\"\nbuffers = 16\n";
    folder.write("x.toml", CONFIG.replacen("[[pipeline.stage]]", &format!("{capture}[[pipeline.stage]]"), 1));
    let (status, out, err) = dataplane(&folder, "check @/x.toml");
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("\n          1.0 MiB in stage `tap`\n"), "{out}");
    let (_, out, _) = dataplane(&folder, "check --json @/x.toml");
    assert!(json(&out)["stage_memory"]["tap"].as_u64().is_some_and(|bytes| bytes > 1_000_000), "{out}");
}

#[test]
fn stages_are_listed_and_described() {
    let folder = folder_with_config();
    let (status, out, err) = dataplane(&folder, "stages");
    assert_eq!((status, err.as_str()), (0, ""));
    let (_, listed, _) = dataplane(&folder, "stages --json");
    for stage in json(&listed).as_array().unwrap() {
        let name = stage["name"].as_str().unwrap();
        assert!(out.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        assert!(stage["summary"].as_str().unwrap().ends_with('.'), "{name}");
        let (status, described, _) = dataplane(&folder, &format!("stages {name}"));
        assert_eq!(status, 0);
        for row in stage["parameters"].as_array().unwrap() {
            assert!(described.contains(row["key"].as_str().unwrap()), "{name}: {row}");
        }
    }
    // The description lists the built-in drop reasons that the stage uses.
    let (_, described, _) = dataplane(&folder, "stages acl");
    assert!(
        described.ends_with("\ndrop reasons\n  denied  a rule, or the default action, denies the packet\n"),
        "{described}"
    );
    let (status, out, err) = dataplane(&folder, "stages prase");
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(err.contains("did you mean `parse`?"), "{err}");
}

#[test]
fn devices_and_topology_describe_the_host() {
    let folder = folder_with_config();
    let (status, out, _) = dataplane(&folder, "devices");
    assert_eq!(status, 0);
    for part in ["verbs devices\n", "(device = \"host\")", "(device = \"soft\")", "packet", "loopback", "pcap"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (_, out, _) = dataplane(&folder, "devices -j");
    let devices = json(&out);
    let none = devices["verbs"]["devices"].as_array().unwrap().is_empty();
    assert_eq!(none, devices["verbs"]["note"].is_string(), "{devices}");

    let (status, out, _) = dataplane(&folder, "topology @/x.toml");
    assert_eq!(status, 0);
    assert!(out.contains("\nworkers of this config\n  0: core "), "{out}");
    let (_, out, _) = dataplane(&folder, "topology -j @/x.toml");
    let topology = json(&out);
    assert_eq!(topology["workers"].as_array().unwrap().len(), 1);
    assert!(!topology["cores"].as_array().unwrap().is_empty());
}

#[test]
fn capacity_predicts_from_a_measurement_and_writes_no_capture() {
    let folder = folder_with_config();
    let quick = "--measure 100ms --rounds 1";
    let (status, _, err) = dataplane(&folder, &format!("plan --capacity @/x.toml --rate 10G {quick}"));
    assert!(status == 2 && err.contains("denied.pcapng; help: let the stage write to /dev/null"), "{err}");
    let quick = &format!("{quick} --set pipeline.stage.denied.file=/dev/null");
    let (status, out, err) = dataplane(&folder, &format!("plan --capacity @/x.toml --rate 10G {quick} --json"));
    assert_eq!((status, err.as_str()), (0, ""));
    let prediction = json(&out);
    let number = |key: &str| prediction[key].as_f64().unwrap_or_else(|| panic!("{key}: {prediction}"));
    // At the measured cost per packet, the predicted number of cores carries the target rate.
    assert!(number("cores") * number("core_pps") >= number("target_pps"), "{prediction}");
    assert!((number("core_pps") * number("ns_per_packet") / 1e9 - 1.0).abs() < 1e-6, "{prediction}");
    let line_bits = (number("frame_bytes") + 24.0) * 8.0;
    assert!((number("target_pps") * line_bits / 10e9 - 1.0).abs() < 1e-6, "{prediction}");
    let shares = prediction["parts"].as_array().unwrap().iter().map(|part| part["share_percent"].as_f64().unwrap());
    assert!((shares.sum::<f64>() - 100.0).abs() < 1.0, "{prediction}");
    for output in ["wan.pcapng", "lan.pcapng", "denied.pcapng"] {
        assert!(!folder.file(output).exists(), "{output} was written");
    }

    let (status, out, err) = dataplane(&folder, "plan --capacity --rate 1kpps --size 128 --measure 100ms --rounds 1");
    assert_eq!((status, err.lines().filter(|line| !line.contains("WARN")).count()), (0, 0), "{err}");
    for part in [
        "frames of 128 bytes, 100.0 % sent",
        "\ntarget    1.00 kpps",
        "\ncores     1 with a load of",
        "\nlimit     the part `",
    ] {
        assert!(out.contains(part), "{part:?}: {out}");
    }
    let (status, _, err) = dataplane(&folder, "plan --capacity --rate 100");
    assert!(status == 2 && err.contains("`100` is not a rate; help: write 100G or"), "{err}");
    let (status, _, err) = dataplane(&folder, "plan --capacity @/none.toml --rate 1Gbps");
    assert!(status == 2 && err.contains("none.toml"), "{status} {err}");
    for (line, part) in [
        ("plan --capacity @/x.toml", "`--capacity` needs a rate; help: add the rate"),
        ("plan --capacity @/x.toml @/y.toml --rate 1Gbps", "predicts for one config, but two are given; help: run"),
        ("plan @/x.toml --rate 1Gbps", "--capacity"),
        ("plan --capacity --rate 1Gbps --process 7", "cannot be used with"),
    ] {
        let (status, _, err) = dataplane(&folder, line);
        assert!(status == 2 && err.contains(part), "{line}: {status} {err}");
    }
}

#[test]
fn config_reference_is_up_to_date() {
    let folder = Folder::new();
    let (status, _, err) = dataplane(&folder, "reference --output @");
    assert_eq!(status, 0, "{err}");
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let pages = |folder: &Path| -> BTreeMap<PathBuf, String> {
        let config = fs::read_dir(folder.join("config")).unwrap().map(|entry| entry.unwrap().path());
        let all = config.chain([folder.join("config-reference.md")]);
        all.map(|path| (path.strip_prefix(folder).unwrap().to_owned(), fs::read_to_string(&path).unwrap())).collect()
    };
    let help = "outdated, run: rm -r docs/config && cargo run -p dataplane-runner -- reference";
    assert!(pages(docs) == pages(folder.path()), "{help}");
}

#[test]
fn config_schema_is_up_to_date() {
    let folder = Folder::new();
    let (status, out, _) = dataplane(&folder, "schema");
    assert_eq!(status, 0);
    let written = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.schema.json");
    let written = fs::read_to_string(written).unwrap();
    assert!(written == out, "outdated, run: cargo run -p dataplane-runner -- schema > docs/config.schema.json");
}

/// `ulimit -f` acts like a full disk.
#[test]
fn drawing_that_cannot_be_written_leaves_the_old_drawing() {
    let folder = folder_with_config();
    assert_eq!(dataplane(&folder, "graph @/x.toml -o @/x.svg").0, 0);
    let before = fs::read(folder.file("x.svg")).unwrap();
    let files = || fs::read_dir(folder.path()).unwrap().count();
    let count = files();
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "trap '' XFSZ; ulimit -f 1; exec \"$0\" graph \"$1\" -o \"$2\"",
        env!("CARGO_BIN_EXE_dataplane"),
    ]);
    let (status, _, err) = run(limited.args([folder.file("x.toml"), folder.file("x.svg")]));
    assert_eq!((status, err.contains("x.svg: File too large")), (1, true), "{err}");
    assert!(fs::read(folder.file("x.svg")).unwrap() == before, "the old drawing was replaced");
    assert_eq!(files(), count, "a temporary file is left");
    std::os::unix::fs::symlink("x.svg", folder.file("link.svg")).unwrap();
    assert_eq!(dataplane(&folder, "graph @/x.toml -o @/link.svg").0, 0);
    assert!(folder.file("link.svg").is_symlink() && fs::read(folder.file("x.svg")).unwrap() == before);
}

/// `ulimit -v` limits the address space. The first level of an IPv4 table takes 112 MiB.
#[test]
fn exit_status_is_1_if_a_table_does_not_fit_into_memory() {
    let folder = folder_with_config();
    let route = "[[pipeline.stage]]\nuse = \"route\"\ntable = [{ prefix = \"0.0.0.0/0\", port = \"lan\" }]\n";
    let config =
        CONFIG.replace("[[pipeline.stage]]\nname = \"swap\"", &format!("{route}\n[[pipeline.stage]]\nname = \"swap\""));
    folder.write("route.toml", config);
    assert_eq!(dataplane(&folder, "check @/route.toml").0, 0);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 110000; exec \"$0\" check \"$1\"", env!("CARGO_BIN_EXE_dataplane")]);
    let (status, _, err) = run(limited.arg(folder.file("route.toml")));
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("stage `route`") && err.contains("cannot allocate") && err.contains("help: raise"), "{err}");
}

/// The program opens few files, so a run succeeds with a limit of 40 file descriptors. The test starts at a limit of 4,
/// because the dynamic loader needs one descriptor besides the three standard streams.
#[test]
fn too_few_file_descriptors_are_not_reported_as_a_config_mistake() {
    let folder = folder_with_config();
    let mut refused = Vec::new();
    for limit in 4..40 {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n $2; exec \"$0\" run \"$1\" --packets 100", env!("CARGO_BIN_EXE_dataplane")]);
        match run(limited.args([folder.file("x.toml"), limit.to_string().into()])) {
            (0, ..) => break,
            (status, _, err) => {
                assert!(status == 1 && err.contains("Too many open files"), "limit {limit}, status {status}: {err}");
                refused.push(err);
            }
        }
    }
    let config = refused.iter().find(|err| err.contains("the config cannot be read"));
    let config = config.expect("no limit prevented the program from reading the config");
    assert!(config.contains("help: raise the limit on open files"), "{config}");
}

/// Returns the names of the commands that the help lists.
fn listed_commands() -> Vec<String> {
    let (_, help, _) = run(&mut command(&["--help"]));
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.trim().split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_manual_page_and_pages_are_reproducible() {
    let folder = Folder::new();
    let (first, second) = (folder.file("first"), folder.file("second"));
    for pages in [&first, &second] {
        assert_eq!(run(&mut command(&["manual".as_ref(), pages.as_os_str()])), (0, String::new(), String::new()));
    }
    let read = |pages: &Path| -> BTreeMap<String, String> {
        let entries = fs::read_dir(pages).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
            .collect()
    };
    let pages = read(&first);
    assert_eq!(pages, read(&second));
    let run_page = &pages["dataplane-run.1"];
    assert!(run_page.contains(".SH SYNOPSIS") && run_page.contains("dataplane run"), "{run_page}");
    assert!(pages["dataplane.1"].contains("dataplane 0.1.0"));
    assert!(pages.contains_key("dataplane-log-level.1"));
    assert!(!pages.contains_key("dataplane-reference.1"), "the page of a hidden command was written");
    let commands = listed_commands();
    assert!(commands.len() > 10, "{commands:?}");
    for name in commands {
        assert!(pages.contains_key(&format!("dataplane-{name}.1")), "{name}");
    }
    let (status, _, err) = run(&mut command(&["manual".as_ref(), folder.write("file", "").as_os_str()]));
    assert!(status == 1 && err.contains("file: "), "{err}");
}

#[test]
fn completions_contain_every_command_for_each_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (status, script, err) = run(&mut command(&["completions", shell]));
        assert_eq!((status, err.as_str()), (0, ""));
        for name in listed_commands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
    }
    let (status, _, err) = run(&mut command(&["completions", "csh"]));
    assert!(status == 2 && err.contains("possible values: bash"), "{err}");
}

#[test]
fn bash_accepts_the_completions_and_completes_a_command() {
    let script = "source <(\"$0\" completions bash); COMP_WORDS=(dataplane che); COMP_CWORD=1; \
        _dataplane dataplane che dataplane; echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, env!("CARGO_BIN_EXE_dataplane")]);
    assert_eq!(run(&mut bash), (0, "check\n".to_owned(), String::new()));
}
