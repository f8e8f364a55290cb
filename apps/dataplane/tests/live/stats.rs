//! End-to-end tests of the command `stats`, and of the control socket that `stats` connects to.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::{Terminal, skip, wait_until};
use serde_json::Value;

use crate::common::{LINK, RuntimeFolder, STEADY, TIMEOUT, config, json, line, number};

fn parts(stats: &Value) -> Vec<&str> {
    stats["costs"].as_array().unwrap().iter().map(|cost| cost["part"].as_str().unwrap()).collect()
}

#[test]
fn stats_show_counters_and_costs_of_a_running_program() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let about = fs::symlink_metadata(&running.socket).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let shown = |more: &str| {
        let (status, out, err) = folder.dataplane(&format!("stats {}{more}", running.pid()));
        assert_eq!((status, err.as_str()), (0, ""));
        out
    };
    // On a loaded machine, it can happen that the worker does not run for a second. Repeat until the worker answers in
    // time.
    let answered = || loop {
        let stats = json(&shown(" --json"));
        if !stats["errors"].to_string().contains("worker 0 does not answer") {
            break stats;
        }
    };
    // Repeat until the time measurement has sampled a burst.
    let first = loop {
        let first = answered();
        if !parts(&first).is_empty() {
            break first;
        }
    };
    let second = answered();
    for stats in [&first, &second] {
        let ledger = &stats["ledger"];
        let sum = |of: &[&str]| -> u64 { of.iter().map(|key| number(&ledger[key])).sum() };
        assert_eq!(sum(&["rx", "generated", "copied"]), sum(&["tx", "dropped", "consumed", "held"]), "{ledger}");
        assert_eq!(ledger["unaccounted"], 0);
        assert_eq!(ledger["drops"]["edge.denied"], ledger["dropped"]);
        assert_eq!(stats["errors"], Value::Array(Vec::new()));
        assert_eq!(stats["latency_ns"]["count"], ledger["tx"]);
        assert_eq!(stats["pid"], running.pid());
        assert!(stats["config"].as_str().unwrap().ends_with("x.toml"));
        assert_eq!(parts(stats), ["reap", "receive", "parse", "edge", "out", "transmit", "refill", "all"]);
        for list in ["ports", "workers"] {
            assert!(stats["recent"][list][0]["rate_mpps"].as_f64().unwrap() > 0.0, "{stats}");
        }
    }
    for key in ["rx", "tx", "dropped"] {
        assert!(number(&second["ledger"][key]) > number(&first["ledger"][key]), "{key}: {second}");
    }
    assert!(number(&second["workers"][0]["loops"]) > number(&first["workers"][0]["loops"]));
    let table = shown("");
    for part in
        ["port wire", "worker 0 on core", "packets in", "\nparse ", "\nedge ", "\ntransmit ", "edge.denied", "ledger"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let report = running.end("-TERM");
    assert_eq!(report["ledger"]["unaccounted"], 0);
    assert!(number(&report["packets"]["rx"]) >= number(&second["packets"]["rx"]));
    // The live statistics have every field of the final report.
    for key in report.as_object().unwrap().keys() {
        assert!(second.get(key).is_some(), "{key}");
    }
}

/// Returns a field of `/proc/PID/status`.
fn status_of(pid: &str, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{status}")).trim().to_owned()
}

/// Standard error is a full pipe that nobody reads. The program still reloads its rules, passes packets and stops.
#[test]
fn traffic_passes_with_few_privileges_and_a_full_standard_error() {
    const O_NONBLOCK: i32 = 0o4000;
    const CAP_DAC_READ_SEARCH: u64 = 1 << 2;
    let folder = RuntimeFolder::new();
    folder.0.write("rules.toml", "rules = []");
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1027' }]";
    folder.0.write("x.toml", config(LINK).replace(rules, "file = 'rules.toml'"));
    let (reader, writer) = io::pipe().unwrap();
    let mut command = folder.command("run @/x.toml --json -v");
    command.stdout(Stdio::piped()).stderr(writer.try_clone().unwrap());
    let running = folder.start(&mut command, None);
    drop(command);
    // Open the pipe again, so that `O_NONBLOCK` applies only to this descriptor, not to the standard error of the
    // program.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut pipe = File::options().write(true).custom_flags(O_NONBLOCK).open(path).unwrap();
    for size in [4096, 1] {
        while pipe.write(&vec![b'.'; size]).is_ok() {}
    }
    for _ in 0..3 {
        running.program.signal("-HUP");
        // The program answers requests although it cannot print its messages.
        let before = running.ask().unwrap();
        let rx = |stats: &Value| number(&stats["packets"]["rx"]);
        wait_until("packets pass", || rx(&running.ask().unwrap()) > rx(&before));
    }
    let pid = running.pid().to_string();
    let held = |pid: &str| u64::from_str_radix(&status_of(pid, "CapPrm"), 16).unwrap();
    match held("self") {
        0 => skip("this process has no capabilities that the program could give up"),
        // The program keeps this capability, because a reload of rules may read files of other users.
        all => assert_eq!(held(&pid), all & CAP_DAC_READ_SEARCH),
    }
    // `Seccomp` is 2 if a filter is active (proc_pid_status(5)).
    assert_eq!((status_of(&pid, "NoNewPrivs"), status_of(&pid, "Seccomp")), ("1".to_owned(), "2".to_owned()));
    let report = running.end("-INT");
    assert_eq!(report["ledger"]["unaccounted"], 0);
    drop(reader);
}

#[test]
fn packets_lost_before_the_pipeline_are_counted_by_port() {
    let folder = RuntimeFolder::new();
    // No worker can generate packets at this rate.
    fs::write(folder.path("x.toml"), config(&format!("{LINK}, rate = 1000000000"))).unwrap();
    let running = folder.run("", None);
    let begin = Instant::now();
    let lost = |stats: &Value| number(&stats["ports"][0]["rx_lost"]);
    let mut stats = running.ask().unwrap();
    while lost(&stats) == 0 {
        assert!(begin.elapsed() < TIMEOUT, "{stats}");
        stats = running.ask().unwrap();
    }
    assert_eq!(stats["ports"][0]["device_counters"]["rx_out_of_buffer"], stats["ports"][0]["rx_lost"]);
    assert_eq!(stats["recent"]["ports"][0]["rx_lost"], stats["ports"][0]["rx_lost"]);
    assert_eq!(stats["ledger"]["unaccounted"], 0);
    let (_, table, _) = folder.dataplane(&format!("stats {}", running.pid()));
    for part in ["lost before the pipeline\n", "before the pipeline, at port wire\n"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(lost(&running.end("-TERM")) >= lost(&stats));
}

#[test]
fn each_line_covers_the_time_since_the_previous_line() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut stats = folder.command(&format!("stats {} --every 10ms --json", running.pid()));
    let mut stats = RunningProgram::start(stats.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut lines = BufReader::new(stats.stdout.take().unwrap());
    let [first, second, third] = [(); 3].map(|()| line(&mut lines).unwrap());
    assert_eq!(first["recent"]["duration_s"], first["duration_s"]);
    for (was, is) in [(&first, &second), (&second, &third)] {
        let grown = |of: fn(&Value) -> &Value| number(of(is)) - number(of(was));
        assert!(grown(|stats| &stats["packets"]["tx"]) > 0, "{is}");
        assert_eq!(number(&is["recent"]["latency_ns"]["count"]), grown(|stats| &stats["packets"]["tx"]), "{is}");
        assert_eq!(number(&is["recent"]["drops"]["edge.denied"]), grown(|stats| &stats["ledger"]["dropped"]), "{is}");
        assert_eq!(number(&is["recent"]["workers"][0]["loops"]), grown(|stats| &stats["workers"][0]["loops"]), "{is}");
    }
    running.end("-INT");
    while line(&mut lines).is_some() {}
    let (status, _, err) = stats.end();
    assert_eq!((status, err.as_str()), (0, "the program has ended\n"));
}

#[test]
fn two_running_programs_are_distinguished() {
    let folder = RuntimeFolder::new();
    let [one, two] = [folder.run("", None), folder.run("", None)];
    let (status, out, err) = folder.dataplane("stats");
    assert_eq!((status, out.as_str()), (2, ""));
    for running in [&one, &two] {
        assert!(err.contains(&format!("  {}  ", running.pid())) && err.contains("x.toml"), "{err}");
        let (status, out, err) = folder.dataplane(&format!("stats {} -j", running.pid()));
        assert_eq!((status, err.as_str()), (0, ""));
        assert_eq!(json(&out)["pid"], running.pid());
    }
    one.end("-TERM");
    // The other program continues.
    assert_eq!(two.ask().unwrap()["pid"], two.pid());
    two.end("-TERM");
}

#[test]
fn only_the_socket_of_a_killed_program_is_replaced() {
    let folder = RuntimeFolder::new();
    let settings = " --set runtime.control=edge.sock";
    let mut first = folder.run(settings, Some("edge.sock"));
    let (status, out, err) = folder.dataplane(&format!("run @/x.toml --packets 1{settings}"));
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("runtime.control") && err.contains("another program listens on"), "{err}");
    // The config sets the path of the socket, so `stats` does not find the socket by process ID.
    let (status, _, err) = folder.dataplane(&format!("stats {}", first.pid()));
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("--socket"), "{err}");
    first.program.kill().unwrap();
    first.program.wait().unwrap();
    assert!(first.socket.exists());
    let (status, _, err) = folder.dataplane("stats --socket @/edge.sock");
    assert_eq!((status, err.contains("no program listens on this socket")), (1, true), "{err}");
    // A second program replaces the socket of the killed program, even while another process holds a lock on the
    // folder.
    let common = File::open(folder.0.path()).unwrap();
    common.lock().unwrap();
    let second = folder.run(settings, Some("edge.sock"));
    assert_eq!(fs::symlink_metadata(folder.path("edge.sock.lock")).unwrap().permissions().mode() & 0o777, 0o600);
    // A further program does not replace the socket of the running program.
    let (status, _, err) = folder.dataplane(&format!("run @/x.toml --packets 1{settings}"));
    assert_eq!((status, err.contains("another program listens on")), (1, true), "{err}");
    assert!(err.contains("help: stop that program, or set another path in `runtime.control`"), "{err}");
    let (status, out, _) = folder.dataplane("stats --socket @/edge.sock -j");
    assert_eq!((status, &json(&out)["pid"]), (0, &second.pid().into()));
    second.end("-TERM");
    assert!(!folder.path("edge.sock.lock").exists());
    // A killed program leaves its socket in the default folder. The next program removes this socket.
    let mut third = folder.run("", None);
    third.program.kill().unwrap();
    third.program.wait().unwrap();
    assert!(third.socket.exists());
    let fourth = folder.run("", None);
    assert!(!third.socket.exists());
    assert!(!folder.path(&format!(".dataplane-{}", fourth.pid())).exists());
    fourth.end("-TERM");
}

#[test]
fn group_may_use_the_control_socket_only_if_the_config_names_the_group() {
    let folder = RuntimeFolder::new();
    let folder_about = fs::metadata(folder.path("")).unwrap();
    // Only root can give a file to any group.
    let group = if folder_about.uid() == 0 { 12_345 } else { folder_about.gid() };
    let socket = format!(" --set runtime.control={}", folder.path("edge.sock").display());
    for (settings, name) in [("", None), (&*socket, Some("edge.sock"))] {
        for (setting, mode, group) in [
            (String::new(), 0o600, folder_about.gid()),
            (format!(" --set runtime.control_group=\"{group}\""), 0o660, group),
        ] {
            let running = folder.run(&format!("{settings}{setting}"), name);
            let about = fs::metadata(&running.socket).unwrap();
            assert_eq!((about.mode() & 0o7777, about.gid()), (mode, group), "{settings}{setting}");
            running.end("-TERM");
        }
    }
    let (status, _, err) = folder.dataplane("check @/x.toml --set runtime.control_group=nobodies-group");
    assert_eq!(status, 2);
    assert!(err.contains("there is no group `nobodies-group`") && err.contains("or the number of a group"), "{err}");
}

#[test]
fn impossible_socket_path_is_reported_and_other_files_are_kept() {
    let folder = RuntimeFolder::new();
    fs::write(folder.path("mine"), "precious").unwrap();
    let whole = |bytes: usize| "x".repeat(bytes - folder.path("").as_os_str().len());
    let text = fs::read_to_string(folder.path("x.toml")).unwrap();
    for (path, why, fix) in [
        ("missing/edge.sock", "missing does not exist", "run `mkdir -p "),
        ("mine", "mine exists and is not a socket", "name a path that does not exist yet"),
        ("mine/edge.sock", "mine/edge.sock", "help: name"),
        (&whole(108), "has 108 bytes, more than the maximum of 107", "name a shorter path"),
        ("", "the path is empty", "write \"auto\", \"none\", or the path"),
    ] {
        let config = text.replace("[runtime]\n", &format!("[runtime]\ncontrol = \"{path}\"\n"));
        fs::write(folder.path("y.toml"), &config).unwrap();
        let line = config.lines().position(|line| line.starts_with("control")).unwrap() + 1;
        for command in ["run @/y.toml --packets 1", "check @/y.toml", "doctor @/y.toml"] {
            let (status, out, err) = folder.dataplane(command);
            assert_eq!((status, out.as_str()), (2, ""), "{err}");
            for part in [&format!("y.toml:{line}:11"), why, fix] {
                assert!(err.contains(part), "{command}: {part:?} is not in: {err}");
            }
        }
    }
    // A file at the path of the lock file is not changed either.
    let pipe = folder.path("edge.sock.lock");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(folder.path("other.sock.lock"), "precious too").unwrap();
    symlink(folder.path("mine"), folder.path("link.sock.lock")).unwrap();
    let not_a_lock = "the path exists and is not a lock file; help: remove the file";
    let link = "the path is a symbolic link; help: remove the file";
    for (path, why) in [("edge.sock", not_a_lock), ("other.sock", not_a_lock), ("link.sock", link)] {
        let (status, _, err) = folder.dataplane(&format!("run @/x.toml --packets 1 --set runtime.control={path}"));
        assert_eq!((status, err.contains(&format!("{path}.lock: "))), (1, true), "{err}");
        assert!(err.contains(why), "{err}");
    }
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(fs::read_to_string(folder.path("other.sock.lock")).unwrap(), "precious too");
    assert_eq!(fs::read_to_string(folder.path("mine")).unwrap(), "precious");
    // A path of the maximum length works.
    let longest = whole(107);
    let running = folder.run(&format!(" --set runtime.control={longest}"), Some(&longest));
    let (status, out, err) = folder.dataplane(&format!("stats --socket @/{longest} -j"));
    assert_eq!((status, &json(&out)["pid"]), (0, &running.pid().into()), "{err}");
    running.end("-TERM");
    let (status, _, err) = folder.dataplane(&format!("stats --socket @/{longest}x"));
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("has 108 bytes, more than the maximum of 107; help: change to the folder of"), "{err}");
    // With `control = "auto"` and a missing runtime directory, the program uses another folder or runs without a
    // socket.
    let line = "run @/x.toml --packets 1 --json";
    let Output { status, stdout, .. } =
        folder.command(line).env("XDG_RUNTIME_DIR", folder.path("missing")).output().unwrap();
    assert!(status.success());
    json(&String::from_utf8(stdout).unwrap());
    let (status, _, err) = folder.dataplane("run @/x.toml --packets 1 --set runtime.control=none");
    assert_eq!((status, err.as_str()), (0, ""));
    for line in ["stats 0", "stats --socket @/missing.sock", "stats --socket @/mine"] {
        let (status, out, err) = folder.dataplane(line);
        assert_eq!((status, out.as_str()), (1, ""), "{line}");
        assert!(err.starts_with("error: "), "{line}: {err}");
    }
    for line in ["stats x", "stats 1 --socket @/mine", "stats --every 0s"] {
        assert_eq!(folder.dataplane(line).0, 2, "{line}");
    }
}

#[test]
fn socket_or_folder_of_another_user_is_refused_and_the_program_of_the_other_user_continues() {
    let folder = RuntimeFolder::new();
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip("only root can start a program as another user");
    }
    let program = folder.path("dataplane");
    fs::copy(env!("CARGO_BIN_EXE_dataplane"), &program).unwrap();
    for (name, mode) in [("", 0o755), ("theirs", 0o755), ("shared", 0o1777)] {
        fs::create_dir_all(folder.path(name)).unwrap();
        fs::set_permissions(folder.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let running = folder.run(&format!(" --set runtime.control=shared/x.sock{STEADY}"), Some("shared/x.sock"));
    // This socket has no lock file.
    let _unlocked = UnixListener::bind(folder.path("shared/unlocked.sock")).unwrap();
    for (path, status, why, fix) in [
        ("theirs/new.sock", 2, "cannot create the socket", "name a path in a writable folder"),
        ("shared/x.sock", 1, "x.sock.lock: Permission denied", "set another path in `runtime.control`"),
        (
            "shared/unlocked.sock",
            1,
            "on the existing socket: Permission denied",
            "set another path in `runtime.control`",
        ),
    ] {
        let before = number(&running.ask().unwrap()["packets"]["rx"]);
        let mut command = Command::new(&program);
        command.args(["run", "x.toml", "--packets", "1", "--set"]).arg(format!("runtime.control={path}"));
        let other = command.env_remove("RUST_LOG").current_dir(folder.path("")).uid(65534).gid(65534);
        let (ended, out, err) = run(other);
        assert_eq!((ended, out.as_str()), (status, ""), "{err}");
        assert!(err.contains(path) && err.contains(why) && err.contains(&format!("help: {fix}")), "{path}: {err}");
        wait_until("the traffic goes on", || number(&running.ask().unwrap()["packets"]["rx"]) > before);
    }
    assert!(folder.path("shared/unlocked.sock").exists());
    let report = running.end("-TERM");
    assert_eq!((&report["ledger"]["unaccounted"], &report["ports"][0]["rx_lost"]), (&0.into(), &0.into()));
}

#[test]
fn only_own_sockets_are_found_by_process_id() {
    let folder = RuntimeFolder::new();
    // No process has this process ID.
    let (process, path) = (u32::MAX, folder.path(&format!("dataplane-{}.sock", u32::MAX)));
    let listener = UnixListener::bind(folder.path("foreign.sock")).unwrap();
    let is_asked = || {
        let (status, out, err) = folder.dataplane(&format!("stats {process} --json"));
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("no control socket of this user"), "{err}");
        listener.accept().is_ok()
    };
    listener.set_nonblocking(true).unwrap();
    symlink(folder.path("foreign.sock"), &path).unwrap();
    assert!(!is_asked(), "the program followed a symbolic link");
    fs::rename(folder.path("foreign.sock"), &path).unwrap();
    match lchown(&path, Some(65534), None) {
        Ok(()) => assert!(!is_asked(), "the program used a socket of another user"),
        Err(error) => skip(format!("cannot create a socket of another user: {error}")),
    }
}

#[test]
fn answer_of_a_foreign_program_is_reported() {
    let folder = RuntimeFolder::new();
    let answer = |text: &'static str| {
        let path = folder.path("foreign.sock");
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut stream = BufReader::new(stream);
            stream.read_line(&mut String::new()).unwrap();
            stream.get_mut().write_all(text.as_bytes()).unwrap();
        })
    };
    for (text, why) in [
        (
            "{\"id\":1,\"error\":{\"code\":\"x\",\"message\":\"bu\\u001bsy\",\"help\":\"wait\"}}\n",
            "bu\u{fffd}sy; help: wait",
        ),
        ("{\"id\":1,\"result\":{\"pid\": 1}}\n", "so use --json"),
        ("{\"id\":2,\"result\":{}}\n", "the answer is for another request"),
        ("{\"id\":1}\n", "the answer is for another request"),
        ("hello\n", "cannot read"),
        ("{\"pid\":", "closed the connection before it answered"),
        ("", "closed the connection before it answered"),
    ] {
        let there = answer(text);
        let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock");
        assert_eq!((status, out.as_str()), (1, ""), "{text}");
        assert!(err.contains(why), "{text}: {err}");
        there.join().unwrap();
    }
    // `--json` also replaces control characters, because standard output may be a terminal.
    let there = answer("{\"id\":1,\"result\":{\"pid\": \"\u{9b}2J\\u001b\"}}\n");
    let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock --json");
    assert_eq!((status, out.as_str(), err.as_str()), (0, "{\"pid\": \" 2J\\u001b\"}\n", ""));
    there.join().unwrap();
    for text in ["\u{1b}[2J\n", "{\"id\":1,\"result\":{\"pid\": \"\u{1b}[2J\"}}\n"] {
        let there = answer(text);
        let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock --json");
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("cannot read") && !err.contains('\u{1b}'), "{err}");
        there.join().unwrap();
    }
    // A server may send an error before it closes the connection.
    let there = answer(concat!(
        "{\"id\":1,\"result\":{\"pid\": 1}}\n",
        "{\"id\":null,\"error\":{\"code\":\"too_many_clients\",\"message\":\"too many clients\",\"help\":\"wait\"}}\n"
    ));
    let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock --json --every 1ms");
    assert_eq!((status, out.as_str()), (1, "{\"pid\": 1}\n"));
    assert!(err.contains("too many clients"), "{err}");
    there.join().unwrap();
    assert!(Path::new(&folder.path("foreign.sock")).exists());
}

#[test]
fn terminal_that_takes_no_output_does_not_stop_the_control() {
    let folder = RuntimeFolder::new();
    folder.0.write("x.toml", config(LINK));
    let mut terminal = Terminal::new();
    let mut command = folder.command("run @/x.toml --json");
    let running = folder.start(command.stdout(Stdio::piped()).stderr(terminal.stream()), None);
    // The progress line comes twice per second.
    terminal.wait_for_output();
    terminal.stop();
    let begin = Instant::now();
    wait_until("the next progress lines are due", || {
        running.ask().unwrap();
        begin.elapsed() > Duration::from_secs(2)
    });
    running.end("-TERM");
}

/// Sends SIGTERM until the program ends. Returns its exit status.
fn end_by_signals(program: &mut RunningProgram) -> Option<i32> {
    let mut status = None;
    wait_until("the program ends", || {
        program.signal("-TERM");
        status = program.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

#[test]
fn stop_signal_ends_a_run_whose_terminal_takes_no_error() {
    let folder = RuntimeFolder::new();
    let mut terminal = Terminal::new();
    let mut command = folder.command("run @/x.toml --json");
    let mut running = folder.start(command.stdout(Stdio::piped()).stderr(terminal.stream()), None);
    terminal.wait_for_output();
    terminal.stop();
    // A report that cannot be printed is an error.
    drop(running.program.stdout.take());
    running.program.signal("-TERM");
    let threads = format!("/proc/{}/task", running.pid());
    let names = || {
        fs::read_dir(&threads).unwrap().filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok())
    };
    wait_until("the run is over", || {
        !running.socket.exists() && names().all(|name| !["logs", "signals"].contains(&name.trim()))
    });
    assert_eq!(end_by_signals(&mut running.program), Some(1));
}

#[test]
fn stop_signal_ends_a_start_whose_terminal_takes_no_mistakes() {
    let folder = RuntimeFolder::new();
    let terminal = Terminal::new();
    terminal.stop();
    let mut command = folder.command("run @/x.toml --set runtime.wrong=1");
    let mut program = RunningProgram::start(command.stderr(terminal.stream()));
    let status = format!("/proc/{}/status", program.id());
    wait_until("the program handles SIGTERM", || {
        let text = fs::read_to_string(&status).unwrap();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << 14 != 0
    });
    assert_eq!(end_by_signals(&mut program), Some(1));
}
