//! Tests of the control protocol with raw lines and with the client crate.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use dataplane::control::{Call, Client, Error, ErrorCode, LISTS, MAX_REQUEST, VERSION};
use dataplane_testing::program::run;
use dataplane_testing::{skip, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::common::{LINK, RuntimeFolder, STATS, STEADY, TIMEOUT, config, json, line, number};

/// A connection that sends raw lines.
struct RawClient(BufReader<UnixStream>);

impl RawClient {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> Value {
        line(&mut self.0).expect("the connection ended without an answer")
    }

    /// Sends a line. Returns the answer.
    fn ask(&mut self, request: impl AsRef<[u8]>) -> Value {
        self.send(request);
        self.send("\n");
        self.line()
    }

    /// Returns `true` if the server has closed the connection. If the server closes the connection before
    /// it has read all bytes, the client gets a connection reset.
    fn is_closed(&mut self) -> bool {
        match self.0.read_line(&mut String::new()) {
            Ok(read) => read == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn every_request_and_every_error_has_an_answer_on_one_connection() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut client = RawClient(BufReader::new(running.connect().unwrap()));
    let hello = client.ask(r#"{"version":1,"id":7,"request":"hello"}"#);
    assert_eq!(hello["id"], 7);
    let result = &hello["result"];
    assert_eq!((&result["pid"], &result["protocol_versions"]), (&json!(running.pid()), &json!([VERSION])));
    assert_eq!(result["requests"], json!(Call::NAMES));
    assert!(result["config"].as_str().unwrap().ends_with("x.toml"), "{hello}");
    let stats = client.ask(r#"{"version":1,"id":18446744073709551615,"request":"stats"}"#);
    assert_eq!((number(&stats["id"]), number(&stats["result"]["pid"])), (u64::MAX, running.pid().into()));
    for (request, id, code, parts) in [
        ("", Value::Null, "bad_json", ["not valid JSON", "{\"version\":1"]),
        ("stats", Value::Null, "bad_json", ["not valid JSON", "{\"version\":1"]),
        ("[]", Value::Null, "bad_json", ["not a JSON object", "{\"version\":1"]),
        (r#"{"version":1,"request":"stats"}"#, Value::Null, "bad_field", ["`id` is missing", "\"id\":1"]),
        (r#"{"id":1,"request":"stats"}"#, json!(1), "bad_field", ["`version` is missing", "\"version\":1"]),
        (r#"{"version":1,"id":1}"#, json!(1), "bad_field", ["`request` is missing", "\"request\":"]),
        (r#"{"version":2,"id":3,"request":"apply"}"#, json!(3), "unknown_version", ["version 2", "use version 1"]),
        (
            r#"{"version":1,"id":4,"request":"fly"}"#,
            json!(4),
            "unknown_request",
            ["`fly`", "hello, stats, show, get, log, plan"],
        ),
        (r#"{"version":1,"id":5,"request":"show"}"#, json!(5), "bad_field", ["missing field `what`", "schema control"]),
        (r#"{"version":1,"id":5,"request":"stats","every":1}"#, json!(5), "bad_field", ["`every`", "schema control"]),
    ] {
        let answer = client.ask(request);
        let error = &answer["error"];
        assert_eq!((&answer["id"], &error["code"]), (&id, &json!(code)), "{request}: {answer}");
        assert!(error["message"].as_str().unwrap().contains(parts[0]), "{request}: {answer}");
        assert!(error["help"].as_str().unwrap().contains(parts[1]), "{request}: {answer}");
        assert!(answer.get("result").is_none(), "{answer}");
    }
    // The connection is still usable, even for a client of a later version.
    assert_eq!(client.ask(r#"{"version":2,"id":8,"request":"hello"}"#)["result"]["pid"], running.pid());
    assert_eq!(client.ask("\u{fffd}")["error"]["code"], "bad_json");
    client.send(b"\xff\xfe\x00\n");
    assert_eq!(client.line()["error"]["code"], "bad_json");
    // The longest request, and a request that is one byte too long.
    let request = r#"{"version":1,"id":9,"request":"hello"}"#;
    let padded = |length: usize| format!("{request}{}", " ".repeat(length - request.len()));
    assert_eq!(client.ask(padded(MAX_REQUEST - 1))["id"], 9);
    client.send(padded(MAX_REQUEST) + "\n");
    let error = client.line();
    assert_eq!((&error["id"], &error["error"]["code"]), (&Value::Null, &json!("too_long")));
    assert!(client.is_closed());
}

#[test]
fn client_finds_its_program_and_reads_typed_answers() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut clients = [(); 2].map(|()| Client::connect(&running.socket).unwrap());
    for round in 0..3 {
        for client in &mut clients {
            let hello = client.hello().unwrap();
            assert_eq!((hello.pid, hello.protocol_versions), (running.pid(), vec![VERSION]), "{round}");
            let live: dataplane::telemetry::LiveStatistics = client.call(&Call::Stats {}).unwrap().parse().unwrap();
            assert_eq!((live.pid, live.report.ledger.unaccounted), (running.pid(), 0));
        }
    }
    let missing = Client::connect(&folder.path("missing.sock")).unwrap_err();
    assert!(matches!(missing, Error::NotListening(_)), "{missing}");
    running.end("-TERM");
    let ended = clients[0].hello().unwrap_err();
    assert!(matches!(ended, Error::Ended(_)), "{ended}");
}

#[test]
fn schema_describes_every_request_and_every_result() {
    let folder = RuntimeFolder::new();
    let (status, out, _) = folder.dataplane("schema control");
    let schema = json(&out);
    assert_eq!(status, 0);
    let results = schema["properties"]["results"]["properties"].as_object().unwrap();
    for name in Call::NAMES {
        assert!(out.contains(&format!("\"const\": \"{name}\"")), "{name}: {out}");
        assert!(results.contains_key(name), "{name}");
    }
    let rows = schema["properties"]["rows"]["properties"].as_object().unwrap();
    for name in LISTS.into_iter().chain(["acl", "bridge", "limits", "neighbors", "routes"]) {
        assert!(rows.contains_key(name), "{name}: {rows:?}");
    }
    // The live statistics have exactly the fields of the schema.
    let running = folder.run("", None);
    let stats = running.ask().unwrap();
    let live = schema["$defs"]["LiveStatistics"]["properties"].as_object().unwrap();
    for field in stats.as_object().unwrap().keys() {
        assert!(live.contains_key(field), "{field}");
    }
    let (_, config, _) = folder.dataplane("schema");
    assert_ne!(config, out);
    assert_eq!(folder.dataplane("schema config").1, config);
}

/// Checks that an answer has the form of a documented answer: every documented field exists with a value of the same
/// type. Texts of errors are equal.
fn assert_documented(documented: &Value, answer: &Value, place: &str) {
    match (documented, answer) {
        (Value::Object(documented), Value::Object(answer)) => {
            for (field, value) in documented {
                let place = format!("{place}.{field}");
                assert_documented(value, answer.get(field).unwrap_or_else(|| panic!("no {place}")), &place);
            }
        }
        (Value::String(text), Value::String(answer)) if place.contains(".error.") => {
            assert_eq!(text, answer, "{place}")
        }
        (documented, answer) => {
            let is_same = std::mem::discriminant(documented) == std::mem::discriminant(answer);
            assert!(is_same, "{place}: {documented} is documented, and the answer is {answer}");
        }
    }
}

#[test]
fn documented_examples_are_answered_as_documented() {
    let folder = RuntimeFolder::new();
    let route = "[[pipeline.stage]]\nuse = 'route'\nname = 'fib'\n\
                 table = [{ prefix = '10.0.0.0/8', via = '192.0.2.1', port = 'wire' }]\n";
    let last = "[[pipeline.stage]]\nuse = 'tx'";
    let with_routes = config(LINK).replace(last, &format!("{route}{last}"));
    folder.0.write("x.toml", with_routes);
    let running = folder.run(" --set runtime.black_box.folder=@", None);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control.md")).unwrap();
    let mut client = RawClient(BufReader::new(running.connect().unwrap()));
    let mut requests = Vec::new();
    for example in page.split("```json\n").skip(1) {
        let lines: Vec<&str> = example.lines().take_while(|line| *line != "```").collect();
        let [request, documented] = lines[..] else { panic!("no request and answer: {lines:?}") };
        let (answer, documented) = (client.ask(request), json(documented));
        assert_eq!(answer["id"], documented["id"], "{request}");
        assert_documented(&documented, &answer, request);
        requests.push(json(request)["request"].as_str().unwrap().to_owned());
    }
    for name in Call::NAMES {
        assert!(requests.iter().any(|request| request == name), "no example of {name}");
    }
    let documented = client.ask(r#"{"version":1,"id":1,"request":"hello"}"#)["result"]["requests"].to_string();
    assert_eq!(page.matches(&documented).count(), 2, "the examples of `hello` list all requests: {documented}");
}

/// Writes until the peer closes the connection. Returns the number of written bytes.
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
fn hostile_clients_are_disconnected_and_block_no_other_client() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let before = running.ask().unwrap();
    // Garbage without line ends, and garbage that consists of line ends. The client writes until the server closes the
    // connection, and at most 1 GiB.
    for piece in [&[b'x'; 1 << 16], &[b'\n'; 1 << 16]] {
        let mut stream = running.connect().unwrap();
        let taken = flood(&mut stream, piece);
        assert!(taken < 16 << 20, "{taken} bytes were taken");
    }
    // The server answers several requests in order.
    let mut client = RawClient(BufReader::new(running.connect().unwrap()));
    client.send(STATS.repeat(3));
    for _ in 0..3 {
        assert_eq!(client.line()["result"]["pid"], running.pid());
    }
    // 300 clients send half a request. Another client sends requests and reads no answer.
    let mut silent: Vec<UnixStream> = (0..300).map(|_| running.connect().unwrap()).collect();
    for stream in &mut silent {
        // The write may fail, because the server closes the connections that are idle longest if there are more than
        // 256 clients.
        let _ = stream.write_all(&STATS[..9]);
    }
    let mut deaf = running.connect().unwrap();
    deaf.write_all(&STATS.repeat(400)).unwrap();
    let after = running.ask().unwrap();
    assert!(number(&after["packets"]["rx"]) > number(&before["packets"]["rx"]));
    let (status, _, err) = folder.dataplane(&format!("stats {}", running.pid()));
    assert_eq!((status, err.as_str()), (0, ""));
    assert_eq!(cut_off(&mut silent), 300, "stalled clients are cut off");
    let report = running.end("-TERM");
    assert_eq!(report["errors"], Value::Array(Vec::new()));
}

/// Four clients may send large requests at a time. The memory of the program stays small, and other clients are served.
#[test]
fn large_requests_above_the_limit_are_refused() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut large: Vec<RawClient> = (0..5).map(|_| RawClient(BufReader::new(running.connect().unwrap()))).collect();
    let part = vec![b'x'; 100 << 10];
    for client in &mut large {
        client.send(&part);
        // The server reads from each client before it answers.
        for _ in 0..4 {
            Client::connect(&running.socket).unwrap().hello().unwrap();
        }
    }
    let refused = large[4].line();
    assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!("busy"), &Value::Null), "{refused}");
    assert!(large[4].is_closed());
    // When a large request is answered, the next client can send a large request.
    assert_eq!(large[0].ask("")["error"]["code"], "bad_json");
    let path = "x".repeat(5000);
    let mut client = RawClient(BufReader::new(running.connect().unwrap()));
    let answer = client.ask(format!(r#"{{"version":1,"id":1,"request":"plan","text":"","path":"{path}"}}"#));
    assert_eq!(answer["error"]["code"], "bad_field", "{answer}");
    for (seconds, text, code) in [(0, 1, "bad_field"), (86_401, 1, "bad_field"), (60, (1 << 20) + 1, "wrong_config")] {
        let text = "#".repeat(text);
        let request = format!(r#"{{"version":1,"id":1,"request":"apply","text":"{text}","confirm_s":{seconds}}}"#);
        let answer = client.ask(request);
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    running.end("-TERM");
}

/// Returns the number of connections that the server closes.
fn cut_off(streams: &mut [UnixStream]) -> usize {
    let is_over = |stream: &mut UnixStream| match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    streams.iter_mut().map(is_over).filter(|over| *over).count()
}

#[test]
fn new_client_above_the_limit_replaces_the_longest_idle_client() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut clients: Vec<Client> = (0..257)
        .map(|_| {
            let mut client = Client::connect(&running.socket).unwrap();
            client.hello().unwrap();
            client
        })
        .collect();
    match clients[0].hello().unwrap_err() {
        Error::Refused(_, refusal) => assert_eq!(refusal.code, ErrorCode::TooManyClients),
        error => panic!("{error}"),
    }
    let ended = clients[0].hello().unwrap_err();
    assert!(matches!(ended, Error::Ended(_)), "{ended}");
    for client in &mut clients[1..] {
        assert_eq!(client.hello().unwrap().pid, running.pid());
    }
}

#[test]
fn ten_thousand_connections_at_the_limit_lose_no_packet() {
    let folder = RuntimeFolder::new();
    let running = folder.run(STEADY, None);
    let before = running.ask().unwrap();
    let mut open = VecDeque::new();
    for number in 0..10_000 {
        open.push_back(running.connect().unwrap());
        // Each new connection is the 257th connection. The server or this test closes the oldest connection.
        if open.len() > 256 {
            open.pop_front();
        }
        if number % 1000 == 0 {
            assert_eq!(Client::connect(&running.socket).unwrap().hello().unwrap().pid, running.pid());
        }
    }
    wait_until("packets pass", || number(&running.ask().unwrap()["packets"]["rx"]) > number(&before["packets"]["rx"]));
    let report = running.end("-TERM");
    assert_eq!((&report["ledger"]["unaccounted"], &report["errors"]), (&json!(0), &json!([])));
    assert_eq!(report["ports"][0]["rx_lost"], 0);
}

/// Lets this process open a number of files. Returns the reason if the limit of the process is too low.
fn allow_open_files(files: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= files) {
        return Ok(());
    }
    // Only root can raise the second limit.
    let maximum = limit.maximum.map(|maximum| maximum.max(files));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum });
    raised.map_err(|error| format!("this process may not open {files} files: {error}"))
}

#[test]
fn ten_thousand_connections_at_once_are_answered_or_refused() {
    const CONNECTIONS: usize = 10_000;
    // The program gets its own limit, so raise the limit of this process after the start of the program.
    let folder = RuntimeFolder::new();
    let running = folder.run(STEADY, None);
    if let Err(reason) = allow_open_files(CONNECTIONS as u64 + 1000) {
        return skip(reason);
    }
    let before = running.ask().unwrap();
    let connect = |_| {
        let mut client = RawClient(BufReader::new(running.connect().unwrap()));
        client.send("{\"version\":1,\"id\":1,\"request\":\"hello\"}\n");
        client
    };
    let mut clients: Vec<RawClient> = (0..CONNECTIONS).map(connect).collect();
    // While all connections are open, the program serves a new client.
    assert_eq!(Client::connect(&running.socket).unwrap().hello().unwrap().pid, running.pid());
    let is_answered = |client: &mut RawClient| {
        let line = client.line();
        let (is_answer, is_refusal) =
            (line["result"]["pid"] == running.pid(), line["error"]["code"] == "too_many_clients");
        assert!(is_answer || is_refusal, "{line}");
        is_answer
    };
    let answered = clients.iter_mut().map(is_answered).filter(|answered| *answered).count();
    assert!(answered > 0);
    drop(clients);
    assert_eq!(Client::connect(&running.socket).unwrap().hello().unwrap().pid, running.pid());
    wait_until("packets pass", || number(&running.ask().unwrap()["packets"]["rx"]) > number(&before["packets"]["rx"]));
    let report = running.end("-TERM");
    assert_eq!((&report["ledger"]["unaccounted"], &report["errors"]), (&json!(0), &json!([])));
    assert_eq!(report["ports"][0]["rx_lost"], 0);
}

#[test]
fn ten_thousand_connections_in_turn_and_two_hundred_at_once_are_served() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    for _ in 0..10_000 {
        assert_eq!(Client::connect(&running.socket).unwrap().hello().unwrap().pid, running.pid());
    }
    let together = Barrier::new(200);
    thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| {
                together.wait();
                let mut client = Client::connect(&running.socket).unwrap();
                client.set_timeout(TIMEOUT).unwrap();
                let stats: Value = client.call(&Call::Stats {}).unwrap().parse().unwrap();
                assert_eq!((&stats["pid"], &stats["ledger"]["unaccounted"]), (&json!(running.pid()), &json!(0)));
                // No connection ends before all connections are served.
                together.wait();
            });
        }
    });
    let report = running.end("-TERM");
    assert_eq!((&report["ledger"]["unaccounted"], &report["errors"]), (&json!(0), &json!([])));
}

#[test]
fn user_without_access_gets_a_clear_error() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let path = running.socket.display().to_string();
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip("only root can start a program as another user");
    }
    // The other user must be able to enter the folder and to run the program.
    fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path("dataplane");
    fs::copy(env!("CARGO_BIN_EXE_dataplane"), &program).unwrap();
    let as_other_user = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).env("XDG_RUNTIME_DIR", folder.0.path()).uid(65534).gid(65534);
        run(&mut command)
    };
    let (status, out, err) = as_other_user(&["stats", "--socket", &path]);
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.contains(&path) && err.contains("Permission denied"), "{err}");
    // Without a path, the program names the sockets of other users.
    let (status, out, err) = as_other_user(&["stats"]);
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("of other users; help: run as the other user"), "{err}");
    running.end("-TERM");
}
