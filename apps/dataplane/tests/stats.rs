//! `stats` and a program that runs, from outside.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const CONFIG: &str = r#"
[runtime]
workers = 1
hugepages = "none"

[[port]]
name = "wire"
device = "soft"
link = { kind = "generator", size = 64, flows = 16 }

[pipeline]
input = ["wire"]

[[pipeline.stage]]
use = "parse"

[[pipeline.stage]]
name = "edge"
use = "acl"
default = "permit"
rules = [{ action = "deny", protocol = "udp", src_port = "1024-1027" }]

[[pipeline.stage]]
name = "out"
use = "tx"
port = "wire"
"#;

/// How long is waited for what will come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of its own, with a config, that stands for the user's folder of sockets; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dataplane-stats-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("x.toml"), CONFIG).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
        command.args(line.split(' ').map(|arg| arg.replace('@', &self.0.display().to_string())));
        command.env_remove("RUST_LOG").env("XDG_RUNTIME_DIR", &self.0).stdin(Stdio::null());
        command
    }

    /// The exit status, standard output and standard error of a command line. `@` stands for the folder.
    fn dataplane(&self, line: &str) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.command(line).output().unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }

    /// A program that runs, and has answered at this socket.
    fn run(&self, settings: &str, socket: Option<&str>) -> Running {
        let mut command = self.command(&format!("run @/x.toml --json{settings}"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let name = socket.map_or_else(|| format!("dataplane-{}.sock", child.id()), str::to_owned);
        let mut running = Running { child, socket: self.path(&name) };
        let begin = Instant::now();
        while running.ask().is_none() {
            assert!(begin.elapsed() < PATIENCE && running.child.try_wait().unwrap().is_none(), "it does not run");
            thread::sleep(Duration::from_millis(5));
        }
        running
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that runs; killed if it still does at the end.
struct Running {
    child: Child,
    socket: PathBuf,
}

impl Running {
    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn connect(&self) -> Option<UnixStream> {
        let stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(stream)
    }

    /// Asks by the protocol itself.
    fn ask(&self) -> Option<Value> {
        let mut stream = self.connect()?;
        stream.write_all(b"stats\n").ok()?;
        Some(line(&mut BufReader::new(stream)).expect("it ends without an answer"))
    }

    /// Ends it by a signal, and returns its report.
    fn end(mut self, signal: &str) -> Value {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert!(!self.socket.exists());
        json(&out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A line of JSON. `None`: there is no more.
fn line(stream: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    (!line.is_empty()).then(|| json(&line))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn parts(stats: &Value) -> Vec<&str> {
    stats["costs"].as_array().unwrap().iter().map(|cost| cost["part"].as_str().unwrap()).collect()
}

#[test]
fn stats_show_where_packets_and_time_go_while_a_program_runs() {
    let folder = Folder::new("show");
    let running = folder.run("", None);
    let about = fs::symlink_metadata(&running.socket).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let shown = |more: &str| {
        let (status, out, err) = folder.dataplane(&format!("stats {}{more}", running.pid()));
        assert_eq!((status, err.as_str()), (0, ""));
        out
    };
    // Until a burst was timed.
    let first = loop {
        let first = json(&shown(" --json"));
        if !parts(&first).is_empty() {
            break first;
        }
    };
    let second = json(&shown(" --json"));
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
        ["port wire", "worker 0 on core", "Mpps in", "\nparse ", "\nedge ", "\ntransmit ", "edge.denied", "ledger"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let report = running.end("-TERM");
    assert_eq!(report["ledger"]["unaccounted"], 0);
    assert!(number(&report["packets"]["rx"]) >= number(&second["packets"]["rx"]));
    // The fields of the report are those that it has at the end.
    for key in report.as_object().unwrap().keys() {
        assert!(second.get(key).is_some(), "{key}");
    }
}

#[test]
fn what_is_lost_before_the_pipeline_is_said_by_port() {
    let folder = Folder::new("lost");
    // No worker takes that many.
    fs::write(folder.path("x.toml"), CONFIG.replace("flows = 16", "flows = 16, rate = 1000000000")).unwrap();
    let running = folder.run("", None);
    let begin = Instant::now();
    let lost = |stats: &Value| number(&stats["ports"][0]["rx_lost"]);
    let mut stats = running.ask().unwrap();
    while lost(&stats) == 0 {
        assert!(begin.elapsed() < PATIENCE, "{stats}");
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
fn every_line_has_what_came_since_the_one_before_until_the_program_ends() {
    let folder = Folder::new("every");
    let running = folder.run("", None);
    let mut stats = folder.command(&format!("stats {} --every 10ms --json", running.pid()));
    let mut stats = stats.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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
    let ended = stats.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b"the program has ended\n"[..]));
}

#[test]
fn two_programs_at_once_are_told_apart() {
    let folder = Folder::new("two");
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
    // The other one goes on.
    assert_eq!(two.ask().unwrap()["pid"], two.pid());
    two.end("-TERM");
}

#[test]
fn the_socket_of_a_killed_program_is_replaced_and_that_of_a_live_one_is_not() {
    let folder = Folder::new("stale");
    let settings = " --set runtime.control=edge.sock";
    let mut first = folder.run(settings, Some("edge.sock"));
    let (status, out, err) = folder.dataplane(&format!("run @/x.toml --packets 1{settings}"));
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.contains("runtime.control") && err.contains("another program listens there"), "{err}");
    // It is named by a path, so it is not found by its process.
    let (status, _, err) = folder.dataplane(&format!("stats {}", first.pid()));
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("--socket"), "{err}");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert!(first.socket.exists());
    let (status, _, err) = folder.dataplane("stats --socket @/edge.sock");
    assert_eq!((status, err.contains("no program listens there")), (1, true), "{err}");
    // Two at once do not take it from each other, and nobody else's lock is in the way.
    let common = File::open(&folder.0).unwrap();
    common.lock().unwrap();
    let second = folder.run(settings, Some("edge.sock"));
    assert_eq!(fs::symlink_metadata(folder.path("edge.sock.lock")).unwrap().permissions().mode() & 0o777, 0o600);
    let (status, _, err) = folder.dataplane(&format!("run @/x.toml --packets 1{settings}"));
    assert_eq!((status, err.contains("another program listens there")), (1, true), "{err}");
    let (status, out, _) = folder.dataplane("stats --socket @/edge.sock -j");
    assert_eq!((status, &json(&out)["pid"]), (0, &second.pid().into()));
    second.end("-TERM");
    assert!(!folder.path("edge.sock.lock").exists());
    // What a killed one leaves in the common folder, the next one takes away.
    let mut third = folder.run("", None);
    third.child.kill().unwrap();
    third.child.wait().unwrap();
    assert!(third.socket.exists());
    let fourth = folder.run("", None);
    assert!(!third.socket.exists());
    assert!(!folder.path(&format!(".dataplane-{}", fourth.pid())).exists());
    fourth.end("-TERM");
}

#[test]
fn a_socket_that_cannot_be_made_is_told_and_nothing_else_is_touched() {
    let folder = Folder::new("wrong");
    fs::write(folder.path("mine"), "precious").unwrap();
    let whole = |bytes: usize| "x".repeat(bytes - folder.path("").as_os_str().len());
    let text = fs::read_to_string(folder.path("x.toml")).unwrap();
    for (path, why, fix) in [
        ("missing/edge.sock", "missing: there is no such folder", "make it by `mkdir -p "),
        ("mine", "mine: there is something that is no socket", "name a path where there is nothing yet"),
        ("mine/edge.sock", "mine/edge.sock", "help: name"),
        (&whole(108), "has at most 107 bytes, and this one has 108", "name a shorter path"),
        ("", "an empty path", "write \"auto\", \"none\", or the path"),
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
    // What is beside the path is as little ours.
    let pipe = folder.path("edge.sock.lock");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(folder.path("other.sock.lock"), "precious too").unwrap();
    for path in ["edge.sock", "other.sock"] {
        let (status, _, err) = folder.dataplane(&format!("run @/x.toml --packets 1 --set runtime.control={path}"));
        assert_eq!((status, err.contains(&format!("{path}.lock: a file cannot be locked there"))), (1, true), "{err}");
        assert!(err.contains("there is something that is no lock: take it away"), "{err}");
    }
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(fs::read_to_string(folder.path("other.sock.lock")).unwrap(), "precious too");
    assert_eq!(fs::read_to_string(folder.path("mine")).unwrap(), "precious");
    // As long as a path may be, it is found.
    let longest = whole(107);
    let running = folder.run(&format!(" --set runtime.control={longest}"), Some(&longest));
    let (status, out, err) = folder.dataplane(&format!("stats --socket @/{longest} -j"));
    assert_eq!((status, &json(&out)["pid"]), (0, &running.pid().into()), "{err}");
    running.end("-TERM");
    let (status, _, err) = folder.dataplane(&format!("stats --socket @/{longest}x"));
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("has at most 107 bytes, and this one has 108: go to its folder"), "{err}");
    // By itself it goes elsewhere, or does without.
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

/// Writes until it is not taken any more. How many bytes were.
fn flood(stream: &mut UnixStream, piece: &[u8]) -> usize {
    let mut taken = 0;
    while taken < 1 << 30 {
        match stream.write(piece) {
            Ok(written) => taken += written,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
                break;
            }
        }
    }
    taken
}

#[test]
fn hostile_clients_are_cut_off_and_hold_nobody_up() {
    let folder = Folder::new("hostile");
    let running = folder.run("", None);
    let before = running.ask().unwrap();
    // Garbage is answered once.
    for garbage in [&b"fly\n"[..], b"\n", b"\xff\xfe\x00\n", b"stats stats\n", b"{\"do\":\"stats\"}\n"] {
        let mut stream = running.connect().unwrap();
        stream.write_all(garbage).unwrap();
        let mut stream = BufReader::new(stream);
        let error = line(&mut stream).unwrap();
        assert!(error["error"].as_str().unwrap().starts_with("no request `"), "{error}");
        assert!(line(&mut stream).is_none());
    }
    // A gigabyte of it, with and without the end of a line.
    for piece in [&[b'x'; 1 << 16], &[b'\n'; 1 << 16]] {
        let mut stream = running.connect().unwrap();
        let taken = flood(&mut stream, piece);
        assert!(taken < 16 << 20, "{taken} bytes were taken");
    }
    // Many requests at once are answered one after the other.
    let mut stream = running.connect().unwrap();
    stream.write_all(&b"stats\n".repeat(3)).unwrap();
    let mut stream = BufReader::new(stream);
    for _ in 0..3 {
        assert_eq!(line(&mut stream).unwrap()["pid"], running.pid());
    }
    // One that asks and does not read, many that say nothing, and half a word of each.
    let mut silent: Vec<UnixStream> = (0..40).map(|_| running.connect().unwrap()).collect();
    for stream in &mut silent {
        // Of so many the first have been cut off.
        let _ = stream.write_all(b"sta");
    }
    let mut deaf = running.connect().unwrap();
    deaf.write_all(&b"stats\n".repeat(40)).unwrap();
    let after = running.ask().unwrap();
    assert!(number(&after["packets"]["rx"]) > number(&before["packets"]["rx"]));
    let (status, _, err) = folder.dataplane(&format!("stats {}", running.pid()));
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(cut_off(&mut silent), 40, "those that do not go on are not waited for");
    let report = running.end("-TERM");
    assert_eq!(report["errors"], Value::Array(Vec::new()));
}

#[test]
fn of_too_many_clients_the_one_that_was_silent_longest_is_told_to_go() {
    let folder = Folder::new("many");
    let running = folder.run("", None);
    let ask = |client: &mut BufReader<UnixStream>| {
        client.get_mut().write_all(b"stats\n").unwrap();
        assert_eq!(line(client).unwrap()["pid"], running.pid());
    };
    let clients = std::iter::repeat_with(|| {
        let mut client = BufReader::new(running.connect().unwrap());
        ask(&mut client);
        client
    });
    let mut clients: Vec<_> = clients.take(17).collect();
    let first = &mut clients[0];
    assert_eq!(line(first).unwrap()["error"], "too many clients");
    assert!(line(first).is_none());
    clients[1..].iter_mut().for_each(ask);
}

/// How many of the connections are at their end, or come to it.
fn cut_off(streams: &mut [UnixStream]) -> usize {
    let is_over = |stream: &mut UnixStream| match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    streams.iter_mut().map(is_over).filter(|over| *over).count()
}

#[test]
fn by_its_process_only_a_socket_of_this_user_is_found() {
    let folder = Folder::new("own");
    // There is no such process.
    let (process, path) = (u32::MAX, folder.path(&format!("dataplane-{}.sock", u32::MAX)));
    let listener = UnixListener::bind(folder.path("foreign.sock")).unwrap();
    let is_asked = || {
        let (status, out, err) = folder.dataplane(&format!("stats {process} --json"));
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("no socket of this user"), "{err}");
        listener.accept().is_ok()
    };
    listener.set_nonblocking(true).unwrap();
    symlink(folder.path("foreign.sock"), &path).unwrap();
    assert!(!is_asked(), "through a link");
    fs::rename(folder.path("foreign.sock"), &path).unwrap();
    match lchown(&path, Some(65534), None) {
        Ok(()) => assert!(!is_asked(), "of another user"),
        Err(error) => println!("skipped: a socket of another user cannot be made: {error}"),
    }
}

#[test]
fn what_answers_but_is_no_program_of_ours_is_told() {
    let folder = Folder::new("foreign");
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
        ("{\"error\": \"bu\\u001bsy\"}\n", "bu\u{fffd}sy"),
        ("{\"pid\": 1}\n", "--json shows it"),
        ("hello\n", "cannot read"),
        ("{\"pid\":", "ended before it answered"),
        ("", "ended before it answered"),
    ] {
        let there = answer(text);
        let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock");
        assert_eq!((status, out.as_str()), (1, ""), "{text}");
        assert!(err.contains(why), "{text}: {err}");
        there.join().unwrap();
    }
    // What goes on to a program goes to a terminal too.
    let there = answer("{\"pid\": \"\u{9b}2J\\u001b\"}\n");
    let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock --json");
    assert_eq!((status, out.as_str(), err.as_str()), (0, "{\"pid\": \" 2J\\u001b\"}\n", ""));
    there.join().unwrap();
    for text in ["\u{1b}[2J\n", "{\"pid\": \"\u{1b}[2J\"}\n"] {
        let there = answer(text);
        let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock --json");
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("cannot read") && !err.contains('\u{1b}'), "{err}");
        there.join().unwrap();
    }
    // One that hangs up has said why.
    let there = answer("{\"pid\": 1}\n{\"error\": \"too many clients\"}\n");
    let (status, out, err) = folder.dataplane("stats --socket @/foreign.sock --json --every 1ms");
    assert_eq!((status, out.as_str()), (1, "{\"pid\": 1}\n"));
    assert!(err.contains("too many clients"), "{err}");
    there.join().unwrap();
    assert!(Path::new(&folder.path("foreign.sock")).exists());
}
