//! End-to-end tests of the metrics server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::iter;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use dataplane_testing::config::Config;
use dataplane_testing::{skip, wait_until};
use serde_json::Value;

use crate::common::{LINK, Running, RuntimeFolder, TIMEOUT, number};

/// Returns an address that no other test and no other process uses: a loopback address with the process id.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 128 | NEXT.fetch_add(1, Ordering::Relaxed), high, low], 9464))
}

/// A response: its status line and headers, and its body.
struct Response {
    head: String,
    body: String,
}

impl Response {
    fn of(mut stream: impl Read + Write, request: &[u8]) -> Self {
        stream.write_all(request).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
        let response = Self { head: head.to_owned(), body: body.to_owned() };
        if !request.starts_with(b"HEAD") {
            assert_eq!(response.header("content-length"), body.len().to_string());
        }
        response
    }

    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map_or("", |(_, value)| value)
    }

    fn status(&self) -> u16 {
        self.head[9..12].parse().unwrap()
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn request(address: SocketAddr, text: &str) -> Response {
    Response::of(connect(address), text.as_bytes())
}

fn get(address: SocketAddr, path: &str) -> Response {
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"))
}

const OPEN_METRICS: &str =
    "GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text; version=1.0.0,*/*;q=0.1\r\n\r\n";

/// The samples of a page of metrics, by name and sorted labels.
type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// Parses metrics strictly. Panics at every violation of the format.
fn samples(text: &str, is_open: bool) -> Samples {
    let lines: Vec<&str> = match (text.strip_suffix("# EOF\n"), is_open) {
        (Some(text), true) => text.lines().collect(),
        (None, false) => text.lines().collect(),
        _ => panic!("the end is wrong: {text}"),
    };
    assert!(text.ends_with('\n'));
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
    };
    let (mut samples, mut families) = (Samples::new(), BTreeSet::new());
    let (mut help, mut kind, mut is_after_type) = (String::new(), String::new(), false);
    for line in lines {
        assert!(!line.is_empty() && line.trim() == line, "{line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let words: Vec<&str> = rest.splitn(3, ' ').collect();
            let [what, name, value] = words[..] else { panic!("{line}") };
            match what {
                "HELP" => {
                    assert!(is_name(name) && families.insert(name.to_owned()), "{line}");
                    assert!(value.ends_with('.') || value.ends_with('1'), "{line}");
                    help = name.to_owned();
                }
                "TYPE" => {
                    assert_eq!(name, help);
                    let known = ["counter", "gauge", "histogram"];
                    assert!(known.contains(&value), "{line}");
                    assert_eq!(name.ends_with("_total"), value == "counter" && !is_open, "{line}");
                    kind = value.to_owned();
                }
                "UNIT" => {
                    assert_eq!((name, is_after_type), (help.as_str(), true));
                    assert!(name.ends_with(&format!("_{value}")), "{line}");
                }
                _ => panic!("{line}"),
            }
            is_after_type = what == "TYPE";
            continue;
        }
        is_after_type = false;
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, mut labels) = match series.split_once('{') {
            Some((name, labels)) => (name, parsed_labels(labels.strip_suffix('}').unwrap())),
            None => (series, BTreeMap::new()),
        };
        let ends: &[&str] = match kind.as_str() {
            "counter" if is_open => &["_total"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        assert!(ends.iter().any(|end| name == format!("{help}{end}")), "{line} is not of the family {help}");
        assert_eq!(labels.contains_key("le"), name.ends_with("_bucket"), "{line}");
        // The formats write numbers differently: `1.0` or `1`.
        labels.entry("le".to_owned()).and_modify(|bound| *bound = bound.parse::<f64>().unwrap().to_string());
        let number: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        if kind == "counter" {
            assert!(number >= 0.0 && (number.fract() == 0.0 || name.ends_with("_seconds_total")), "{line}");
        }
        assert!(samples.insert((name.to_owned(), labels), number).is_none(), "{line} occurs twice");
    }
    let buckets = samples.iter().filter(|((name, _), _)| name == "dataplane_latency_seconds_bucket");
    let mut buckets: Vec<(f64, f64)> =
        buckets.map(|((_, labels), count)| (labels["le"].parse().unwrap(), *count)).collect();
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    assert!(buckets.is_sorted_by(|one, other| one.1 <= other.1), "{buckets:?}");
    let count = samples[&("dataplane_latency_seconds_count".to_owned(), BTreeMap::new())];
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)));
    samples
}

/// Parses the labels between the braces.
fn parsed_labels(mut text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").unwrap();
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next().expect("a closing quote") {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    char @ ('\\' | '"') => char,
                    char => panic!("\\{char}"),
                }),
                (_, char) => value.push(char),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} occurs twice");
        text = &rest[end..];
        if let Some(rest) = text.strip_prefix(',') {
            assert!(!rest.is_empty());
            text = rest;
        } else {
            assert!(text.is_empty(), "{text}");
        }
    }
    labels
}

/// Statistics, and the samples that belong to their values. Each comparison takes a value out of `rest`, so at the end
/// `rest` has only the values without a metric.
struct Comparison {
    rest: Value,
    samples: Samples,
}

impl Comparison {
    /// Removes a value from the rest of the statistics, and returns the value.
    fn take(&mut self, path: &str) -> Value {
        let value = self.rest.pointer_mut(path).unwrap_or_else(|| panic!("the statistics have no {path}"));
        value.take()
    }

    /// Removes the sample of a metric from the samples, and returns its value.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: BTreeMap<_, _> = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let key = (format!("dataplane_{name}"), labels);
        self.samples.remove(&key).unwrap_or_else(|| panic!("there is no sample {key:?} in {:#?}", self.samples))
    }

    /// Compares a value with its sample. The sample must equal the value times `scale`.
    fn equal(&mut self, path: &str, name: &str, labels: &[(&str, &str)], scale: f64) {
        let (value, sample) = (self.take(path).as_f64().unwrap(), self.sample(name, labels));
        assert!((value * scale - sample).abs() <= 1e-9 * sample.abs(), "{path}: {value}, but {name} is {sample}");
    }

    /// Compares each drop of a worker with a sample that has the stage or port and the reason as labels.
    fn drops(&mut self, path: &str, worker: &str) {
        let Value::Object(drops) = self.take(path) else { panic!("{path} is no map") };
        for (drop, packets) in drops {
            let (owner, reason) = drop.rsplit_once('.').unwrap();
            let labels = [("worker", worker), ("owner", owner), ("reason", reason)];
            assert_eq!(number(&packets) as f64, self.sample("worker_dropped_packets_total", &labels), "{drop}");
        }
    }

    /// Compares each entry of a map with a sample that has the name of the entry as a label.
    fn entries(&mut self, path: &str, name: &str, owner: (&str, &str), label: &str) {
        let Value::Object(entries) = self.take(path) else { panic!("{path} is no map") };
        for (key, value) in entries {
            assert_eq!(number(&value) as f64, self.sample(name, &[owner, (label, &key)]), "{path}/{key}");
        }
    }

    /// Compares a value that may have increased before the sample was taken.
    fn not_less(&mut self, path: &str, name: &str, labels: &[(&str, &str)]) {
        let (value, sample) = (self.take(path).as_f64().unwrap(), self.sample(name, labels));
        assert!(sample >= value, "{path}: {value}, but {name} is {sample}");
    }
}

/// Returns the paths of all numbers that are not 0.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(number) if number.as_f64() != Some(0.0) => found.push(path.to_owned()),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(at, value)| numbers(value, &format!("{path}/{at}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| numbers(value, &format!("{path}/{name}"), found));
        }
        _ => {}
    }
}

/// Returns a config with two ports and three stages: one stage has outputs, one stage has drops and its own counter,
/// and one stage copies packets.
fn wide_config(count: u64) -> String {
    let rules =
        "rules = [{ name = \"a \\\\ \\\"b\\\"\", action = \"deny\", protocol = \"udp\", src_port = \"1024-1027\" }]";
    Config::new()
        .port("wire", &format!("{LINK}, count = {count}"))
        // The input of this link never ends, so the run continues after the last generated packet.
        .port("other", "kind = 'loopback'")
        .input(&["wire", "other"])
        .stage("mirror", "name = 'twice'\noutputs = { copy = 'away' }")
        .stage("parse", "outputs = { other = 'away' }")
        .stage("acl", &format!("name = 'edge'\ndefault = 'permit'\n{rules}"))
        .stage("tx", "name = 'out'\nport = 'wire'")
        .stage("drop", "name = 'away'")
        .to_string()
}

/// Waits until all generated packets have left the pipeline, and returns the statistics.
fn quiet(running: &Running, count: u64) -> Value {
    let mut stats = Value::Null;
    wait_until("all packets have left", || {
        stats = running.ask().unwrap();
        number(&stats["packets"]["rx"]) == count && number(&stats["ledger"]["held"]) == 0
    });
    stats
}

#[test]
fn every_number_of_the_statistics_is_a_metric_with_the_same_value() {
    const COUNT: u64 = 200_000;
    let (folder, address) = (RuntimeFolder::new(), free_address());
    folder.0.write("x.toml", wide_config(COUNT));
    let running = folder.run(&format!(" --set runtime.metrics={address}"), None);
    let stats = quiet(&running, COUNT);
    let response = request(address, OPEN_METRICS);
    assert_eq!(response.status(), 200);
    assert_eq!(response.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let old = get(address, "/metrics");
    assert_eq!(old.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let (open, old) = (samples(&response.body, true), samples(&old.body, false));
    assert!(open.keys().eq(old.keys()), "the formats have different metrics");

    let mut both = Comparison { rest: stats.clone(), samples: open };
    both.not_less("/duration_s", "run_duration_seconds", &[]);
    for (field, name) in [
        ("rx", "receive_packets_total"),
        ("generated", "generated_packets_total"),
        ("copied", "copied_packets_total"),
        ("tx", "transmit_packets_total"),
        ("consumed", "consumed_packets_total"),
        ("held", "held_packets"),
        ("unaccounted", "unaccounted_packets"),
    ] {
        both.equal(&format!("/ledger/{field}"), &format!("ledger_{name}"), &[], 1.0);
        both.equal(&format!("/workers/0/ledger/{field}"), &format!("worker_{name}"), &[("worker", "0")], 1.0);
    }
    both.equal("/ledger/dropped", "ledger_dropped_packets_total", &[], 1.0);
    both.drops("/workers/0/ledger/drops", "0");
    for (at, port) in ["wire", "other"].into_iter().enumerate() {
        let owner = ("port", port);
        for (field, name) in [
            ("packets/rx", "receive_packets_total"),
            ("packets/tx", "transmit_packets_total"),
            ("bytes/rx", "receive_bytes_total"),
            ("bytes/tx", "transmit_bytes_total"),
            ("rx_errors", "receive_errors_total"),
            ("rx_lost", "receive_lost_packets_total"),
            ("tx_lost", "transmit_lost_packets_total"),
            ("stale", "stale_completions_total"),
            ("recoveries", "recoveries_total"),
            ("rebuilds", "rebuilds_total"),
            ("abandoned", "abandoned_requests_total"),
            ("stamps_implausible", "implausible_timestamps_total"),
        ] {
            both.equal(&format!("/ports/{at}/{field}"), &format!("port_{name}"), &[owner], 1.0);
        }
        for (field, reason) in [
            ("tx_full", "tx_full"),
            ("tx_errors", "tx_error"),
            ("tx_too_long", "too_long"),
            ("tx_not_connected", "not_connected"),
        ] {
            let labels = [owner, ("reason", reason)];
            both.equal(&format!("/ports/{at}/{field}"), "port_dropped_packets_total", &labels, 1.0);
        }
        assert_eq!(both.sample("port_dropped_packets_total", &[owner, ("reason", "stopped")]), 0.0);
        both.entries(&format!("/ports/{at}/device_counters"), "port_device_statistic_total", owner, "counter");
        both.entries(&format!("/ports/{at}/stamps"), "port_timestamps_total", owner, "clock");
        assert_eq!((both.take(&format!("/ports/{at}/link_up")), both.sample("port_up", &[owner])), (true.into(), 1.0));
        both.sample("port_info", &[owner, ("device", stats["ports"][at]["device"].as_str().unwrap())]);
    }
    for (at, (stage, kind)) in
        [("twice", "mirror"), ("parse", "parse"), ("edge", "acl"), ("out", "tx"), ("away", "drop")]
            .into_iter()
            .enumerate()
    {
        let owner = ("stage", stage);
        for (field, name) in [
            ("packets", "packets_total"),
            ("batches", "batches_total"),
            ("consumed", "consumed_packets_total"),
            ("copied", "copied_packets_total"),
            ("generated", "generated_packets_total"),
            ("copies_missed", "missed_copies_total"),
        ] {
            both.equal(&format!("/stages/{at}/{field}"), &format!("stage_{name}"), &[owner], 1.0);
        }
        both.entries(&format!("/stages/{at}/outputs"), "stage_output_packets_total", owner, "output");
        both.entries(&format!("/stages/{at}/drops"), "stage_dropped_packets_total", owner, "reason");
        if stage == "edge" {
            // The only rule with a name.
            both.equal(
                "/stages/2/counters/a \\ \"b\"",
                "stage_rule_packets_total",
                &[owner, ("rule", "a \\ \"b\"")],
                1.0,
            );
            both.rest["stages"][2]["counters"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        }
        both.entries(&format!("/stages/{at}/counters"), "stage_statistic_total", owner, "counter");
        both.sample("stage_info", &[owner, ("use", kind)]);
    }
    let worker = [("worker", "0")];
    both.not_less("/workers/0/loops", "worker_loops_total", &worker);
    both.not_less("/workers/0/idle_loops", "worker_idle_loops_total", &worker);
    both.equal("/workers/0/bytes/rx", "worker_receive_bytes_total", &worker, 1.0);
    both.equal("/workers/0/bytes/tx", "worker_transmit_bytes_total", &worker, 1.0);
    both.equal("/workers/0/slots", "worker_buffers", &worker, 1.0);
    assert_eq!(both.sample("worker_up", &worker), 1.0);
    assert_eq!(both.sample("worker_memory_bytes", &worker), number(&stats["workers"][0]["slots"]) as f64 * 2048.0);
    let (core, pages) = (both.take("/workers/0/core").to_string(), stats["workers"][0]["pages"].as_str().unwrap());
    both.sample("worker_info", &[("worker", "0"), ("core", &core), ("pages", pages)]);
    both.equal("/latency_ns/count", "latency_seconds_count", &[], 1.0);
    both.equal("/latency_ns/max", "latency_max_seconds", &[], 1e-9);
    both.equal("/latency_ns/unmeasured", "latency_unmeasured_packets_total", &[], 1.0);
    assert_eq!(both.take("/latency_ns/by_source/software"), stats["latency_ns"]["count"]);
    assert_eq!(
        both.sample("latency_measured_packets_total", &[("clock", "software")]),
        number(&stats["latency_ns"]["count"]) as f64
    );
    // The percentiles of the statistics are between the bounds of the buckets.
    let count = number(&stats["latency_ns"]["count"]) as f64;
    let (mut below, mut bounds) = (0.0, Vec::new());
    for ((name, labels), packets) in std::mem::take(&mut both.samples) {
        match labels.get("le") {
            Some(bound) => bounds.push((bound.parse::<f64>().unwrap(), packets)),
            None => _ = both.samples.insert((name, labels), packets),
        }
    }
    bounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    let median = both.take("/latency_ns/p50").as_f64().unwrap() / 1e9;
    for (bound, packets) in bounds {
        assert!(packets / count <= 0.5 || median <= bound, "{median}");
        assert!(packets / count >= 0.5 || median > below, "{median}");
        below = bound;
    }
    let sum = both.sample("latency_seconds_sum", &[]);
    assert!(sum > 0.0 && sum <= count * number(&stats["latency_ns"]["max"]) as f64 / 1e9);
    let costs = stats["costs"].as_array().unwrap();
    assert!(!costs.is_empty());
    for (at, cost) in costs.iter().enumerate() {
        let name = cost["part"].as_str().unwrap();
        let kind = match (cost["is_stage"].as_bool().unwrap(), name) {
            (true, _) => "stage",
            (false, "all") => "total",
            (false, _) => "loop",
        };
        let part = [("kind", kind), ("part", name)];
        both.equal(&format!("/costs/{at}/bursts"), "packet_cost_bursts_total", &part, 1.0);
        let packets = both.sample("packet_cost_packets_total", &part);
        let burst = both.take(&format!("/costs/{at}/burst")).as_f64().unwrap();
        assert_eq!(packets, (burst * number(&cost["bursts"]) as f64).round(), "{name}");
        let (seconds, ns) = (both.sample("packet_cost_seconds_total", &part), both.take(&format!("/costs/{at}/ns")));
        let average = seconds * 1e9 / packets;
        // The average in the statistics excludes the slowest loops.
        assert!(average > 0.0 && (kind != "total" || average >= ns.as_f64().unwrap() * 0.999), "{average} ns, {ns} ns");
    }
    both.sample(
        "run_info",
        &[("version", stats["version"].as_str().unwrap()), ("config", stats["config"].as_str().unwrap())],
    );
    assert_eq!([both.sample("run_ready", &[]), both.sample("run_burst_packets", &[])], [1.0, 64.0]);
    both.equal("/logs_lost", "log_messages_lost_total", &[], 1.0);
    // Each sample of the family below has the memory of a stage. Counters exist before their first event.
    both.samples.retain(|(name, _), value| name != "dataplane_stage_memory_bytes" && *value != 0.0);
    let rest: Vec<_> = both.samples.keys().collect();
    assert!(rest.is_empty(), "metrics without a value in the statistics: {rest:?}");
    let mut left = Vec::new();
    numbers(&both.rest, "", &mut left);
    left.retain(|path| {
        // Each of these values follows from other values.
        let derived = ["/pid", "/rate_", "/packets/", "/bytes/", "/recent/", "/ledger/drops/", "/latency_ns/p"];
        !derived.iter().any(|start| path.starts_with(start))
            && !path.ends_with("/ticks")
            && path != "/workers/0/ledger/dropped"
    });
    assert!(left.is_empty(), "statistics without a metric: {left:?}");

    let report = running.end("-TERM");
    for key in ["packets", "bytes", "stages", "latency_ns"] {
        assert_eq!(report[key], stats[key], "the run has changed {key} after the comparison");
    }
}

#[test]
fn metrics_work_without_a_control_socket_and_with_few_privileges() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let mut command =
        folder.command(&format!("run @/x.toml --json --set runtime.control=none --set runtime.metrics={address}"));
    let program = dataplane_testing::program::RunningProgram::start(command.stdout(Stdio::piped()));
    wait_until("the server listens", || TcpStream::connect(address).is_ok());
    wait_until("the run is ready", || get(address, "/readyz").status() == 200);
    let count = || {
        samples(&request(address, OPEN_METRICS).body, true)
            [&("dataplane_ledger_receive_packets_total".to_owned(), BTreeMap::new())]
    };
    let before = count();
    wait_until("packets pass", || count() > before);
    // `Seccomp` is 2 if a filter is active (proc_pid_status(5)).
    let threads = fs::read_dir(format!("/proc/{}/task", program.id())).unwrap().map(|thread| thread.unwrap().path());
    let thread =
        threads.into_iter().find(|thread| fs::read_to_string(thread.join("comm")).unwrap() == "metrics\n").unwrap();
    let status = fs::read_to_string(thread.join("status")).unwrap();
    assert!(status.contains("\nSeccomp:\t2\n") && status.contains("\nCapEff:\t0000000000000000\n"), "{status}");
    program.signal("-TERM");
    assert_eq!(program.end().0, 0);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn metrics_are_served_on_a_unix_socket_and_the_socket_is_removed() {
    let folder = RuntimeFolder::new();
    let path = folder.path("metrics.sock");
    let running = folder.run(&format!(" --set runtime.metrics=unix:{}", path.display()), None);
    let about = fs::symlink_metadata(&path).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let response = Response::of(UnixStream::connect(&path).unwrap(), OPEN_METRICS.as_bytes());
    assert!(samples(&response.body, true).len() > 50);
    // Another program cannot use the same path.
    let (status, out, err) = folder.dataplane("run @/x.toml --packets 1 --set runtime.metrics=unix:metrics.sock");
    assert_eq!((status, out.as_str()), (1, ""));
    let expected = format!(
        "error: runtime.metrics: another program listens on {}; help: stop that program, or set another path in \
         `runtime.metrics`\n",
        path.display()
    );
    assert_eq!(err, expected);
    running.end("-TERM");
    assert!(!path.exists() && !folder.path("metrics.sock.lock").exists());
    // The socket of a killed program is replaced.
    let mut killed = folder.run(" --set runtime.metrics=unix:metrics.sock", None);
    killed.program.kill().unwrap();
    killed.program.wait().unwrap();
    assert!(path.exists());
    folder.run(" --set runtime.metrics=unix:metrics.sock", None).end("-TERM");
    assert!(!path.exists());
}

#[test]
fn group_that_the_config_names_may_use_the_unix_socket() {
    let folder = RuntimeFolder::new();
    let about = fs::metadata(folder.path("")).unwrap();
    // Only root can give a file to any group.
    let group = if about.uid() == 0 { 12_345 } else { about.gid() };
    let settings = format!(" --set runtime.metrics=unix:m.sock --set runtime.control_group=\"{group}\"");
    let running = folder.run(&settings, None);
    let about = fs::metadata(folder.path("m.sock")).unwrap();
    assert_eq!((about.mode() & 0o7777, about.gid()), (0o660, group));
    running.end("-TERM");
}

#[test]
fn address_that_cannot_be_used_is_reported_at_the_start() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let listener = TcpListener::bind(address).unwrap();
    let fails = |setting: &str, why: &str, fix: &str| {
        let (status, out, err) = folder.dataplane(&format!("run @/x.toml --packets 1 --set runtime.metrics={setting}"));
        assert_eq!((status, out.as_str()), (1, ""), "{err}");
        assert!(err.starts_with("error: runtime.metrics: "), "{err}");
        for part in [why, "help: ", fix] {
            assert!(err.contains(part), "{part:?} is not in: {err}");
        }
    };
    let in_use = format!("cannot listen on {address}: Address already in use");
    fails(&address.to_string(), &in_use, "run `ss -ltnp 'sport = 9464'` to find the program");
    fails("192.0.2.7:9464", "cannot listen on 192.0.2.7:9464: Cannot assign", "run `ip address`");
    let (status, _, err) = folder.dataplane(&format!("check --strict @/x.toml --set runtime.metrics={address}"));
    assert_eq!((status, err.contains(&in_use)), (2, true), "{err}");
    drop(listener);

    // This test listens on the socket, as another program would.
    fs::create_dir(folder.path("theirs")).unwrap();
    let theirs = folder.path("theirs/m.sock");
    let listener = UnixListener::bind(&theirs).unwrap();
    fails("unix:theirs/m.sock", "another program listens on", "set another path in `runtime.metrics`");
    drop(listener);
    for (path, why) in [("x.toml", "x.toml exists and is not a socket"), ("missing/m.sock", "missing does not exist")] {
        let (status, _, err) = folder.dataplane(&format!("run @/x.toml --packets 1 --set runtime.metrics=unix:{path}"));
        assert_eq!((status, err.contains(why)), (2, true), "{err}");
    }
    let (status, _, err) = folder.dataplane("check @/x.toml --set runtime.metrics=localhost:9464");
    assert_eq!(
        (status, err.contains("`localhost:9464` is neither an IP address with a port nor a Unix socket")),
        (2, true),
        "{err}"
    );

    let program = folder.path("dataplane");
    fs::copy(env!("CARGO_BIN_EXE_dataplane"), &program).unwrap();
    let owner = folder.path("theirs");
    if let Err(error) = lchown(&owner, Some(1), Some(1)).and_then(|()| lchown(folder.path(""), Some(65534), None)) {
        return skip(format!("cannot create a folder of another user: {error}"));
    }
    fs::set_permissions(folder.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |setting: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--bounding-set=-all",
            "--",
        ]);
        command.arg(&program).args(["run", "x.toml", "--packets", "1", "--set"]).arg(setting);
        dataplane_testing::program::run(command.current_dir(folder.path("")).env("XDG_RUNTIME_DIR", folder.path("")))
    };
    let (status, _, err) = as_nobody("runtime.metrics=127.0.0.1:80");
    assert_eq!(status, 1, "{err}");
    if err.contains("Permission denied") {
        assert!(err.contains("help: set a port of 1024 or above in `runtime.metrics`, or start"), "{err}");
    } else {
        // net.ipv4.ip_unprivileged_port_start may allow the port.
        assert!(err.contains("cannot listen on 127.0.0.1:80"), "{err}");
    }
    for path in ["unix:theirs/m.sock", "unix:theirs/n.sock"] {
        let (status, _, err) = as_nobody(&format!("runtime.metrics={path}"));
        assert_eq!((status, err.contains("Permission denied"), err.contains("help: ")), (2, true, true), "{err}");
    }
}

#[test]
fn wrong_requests_are_refused_and_do_not_disturb_others() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let running = folder.run(&format!(" --set runtime.metrics={address}"), None);
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    for (text, status, body) in [
        ("GET / HTTP/1.1\r\n\r\n", 404, "this server has the pages /metrics, /healthz and /readyz\n"),
        (
            "POST /metrics HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
            405,
            "this server supports the methods GET and HEAD\n",
        ),
        ("\u{0}\u{1}\u{2}garbage\r\n\r\n", 400, "this is not an HTTP request: "),
        ("version 1\n", 400, "this is not an HTTP request: "),
        (&long, 431, "a request has at most 8192 bytes\n"),
    ] {
        let response = request(address, text);
        assert_eq!((response.status(), response.header("connection")), (status, "close"), "{}", response.head);
        assert!(response.body.starts_with(body), "{}", response.body);
    }
    let head = request(address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!((head.status(), head.body.as_str()), (200, ""));
    assert!(head.header("content-length").parse::<usize>().unwrap() > 1000);
    // On a loaded machine, it can happen that the worker does not run for a second. The status is then 503.
    let is_late = |response: &Response| response.body.contains("makes no progress");
    let answered = |path| iter::repeat_with(|| get(address, path)).find(|response| !is_late(response)).unwrap();
    for (path, body) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let response = answered(path);
        assert_eq!((response.status(), response.body.as_str()), (200, body));
    }
    // These clients close their connections early.
    for _ in 0..50 {
        connect(address).write_all(OPEN_METRICS.as_bytes()).unwrap();
    }
    assert_eq!(answered("/healthz").status(), 200);
    running.end("-TERM");
}

#[test]
fn slow_clients_are_disconnected_and_200_clients_at_once_are_answered() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let running = folder.run(&format!(" --set runtime.metrics={address}"), None);
    // There are more of these clients than the server accepts at the same time. They never finish their requests.
    let mut slow: Vec<TcpStream> = (0..300).map(|_| connect(address)).collect();
    for stream in &mut slow {
        // A client that was already disconnected cannot send.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    assert_eq!(get(address, "/metrics").status(), 200);
    let first = thread::scope(|scope| {
        let ask = || samples(&request(address, OPEN_METRICS).body, true).len();
        let threads: Vec<_> = (0..200).map(|_| scope.spawn(ask)).collect();
        let counts: BTreeSet<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(counts.len() <= 2, "{counts:?}");
        counts.into_iter().next().unwrap()
    });
    assert!(first > 50);
    for mut stream in slow {
        // The server closes each connection, with or without a reset.
        let _ = stream.shutdown(Shutdown::Write);
        if let Err(error) = stream.read_to_end(&mut Vec::new()) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    // The traffic was not disturbed.
    let report = running.end("-TERM");
    assert_eq!(report["ledger"]["unaccounted"], 0);
}

/// Returns the value of a sample.
fn sample(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    samples.get(&(format!("dataplane_{name}"), labels)).copied()
}

#[test]
fn counters_exist_before_their_first_event() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    // No packet arrives.
    let config = Config::new()
        .port("wire", "kind = 'loopback'")
        .stage("parse", "")
        .stage("acl", "name = 'edge'\ndefault = 'deny'")
        .stage("ttl", "outputs = { expired = 'end' }")
        .stage("tx", "name = 'out'\nport = 'wire'")
        .stage("drop", "name = 'end'");
    folder.0.write("x.toml", config.to_string());
    let running = folder.run(&format!(" --set runtime.metrics={address}"), None);
    let found = samples(&request(address, OPEN_METRICS).body, true);
    for (name, labels) in [
        ("stage_dropped_packets_total", &[("stage", "edge"), ("reason", "denied")][..]),
        ("stage_dropped_packets_total", &[("stage", "parse"), ("reason", "bad_checksum")]),
        ("stage_dropped_packets_total", &[("stage", "parse"), ("reason", "bad_extension")]),
        // An output that is not connected.
        ("stage_dropped_packets_total", &[("stage", "parse"), ("reason", "arp")]),
        ("stage_dropped_packets_total", &[("stage", "end"), ("reason", "requested")]),
        ("stage_output_packets_total", &[("stage", "ttl"), ("output", "expired")]),
        ("worker_dropped_packets_total", &[("worker", "0"), ("owner", "edge"), ("reason", "denied")]),
        ("worker_dropped_packets_total", &[("worker", "0"), ("owner", "wire"), ("reason", "tx_full")]),
        ("port_device_statistic_total", &[("port", "wire"), ("counter", "tx_queue_full")]),
        ("stage_statistic_total", &[("stage", "edge"), ("counter", "default")]),
    ] {
        assert_eq!(sample(&found, name, labels), Some(0.0), "{name} {labels:?}");
    }
    running.end("-TERM");
}

#[test]
fn stage_with_the_name_of_a_part_of_the_loop_has_its_own_series() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let config = Config::new()
        .port("wire", LINK)
        .stage("count", "name = 'all'")
        .stage("count", "name = 'receive'")
        .stage("tx", "name = 'transmit'\nport = 'wire'");
    folder.0.write("x.toml", config.to_string());
    let running = folder.run(&format!(" --set runtime.metrics={address}"), None);
    // The parser refuses a sample that occurs twice.
    let part = |kind, part| {
        let found = samples(&request(address, OPEN_METRICS).body, true);
        sample(&found, "packet_cost_packets_total", &[("kind", kind), ("part", part)])
    };
    for (kind, name) in [
        ("stage", "transmit"),
        ("loop", "transmit"),
        ("stage", "receive"),
        ("loop", "receive"),
        ("stage", "all"),
        ("total", "all"),
    ] {
        wait_until("the part was measured", || part(kind, name).is_some_and(|packets| packets > 0.0));
    }
    running.end("-TERM");
}

#[test]
fn memory_of_the_stages_follows_a_change() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let config = |capture: &str| {
        let runtime = format!("sandbox = false\ncontrol = 'x.sock'\nmetrics = '{address}'");
        let config = Config::new().port("wire", &format!("{LINK}, rate = 1000")).runtime(&runtime);
        let config = config.stage("capture", &format!("name = '{capture}'\nfile = '{capture}.pcapng'"));
        config.stage("tx", "name = 'out'\nport = 'wire'").to_string()
    };
    folder.0.write("x.toml", config("before"));
    folder.0.write("new.toml", config("after"));
    let running = folder.run("", Some("x.sock"));
    let memory = |stage| {
        let found = samples(&request(address, OPEN_METRICS).body, true);
        sample(&found, "stage_memory_bytes", &[("stage", stage)])
    };
    assert!(memory("before").is_some_and(|bytes| bytes > 0.0) && memory("after").is_none());
    let (status, _, error) = folder.dataplane("apply @/new.toml --socket @/x.sock");
    assert_eq!(status, 0, "{error}");
    // The page may be up to a second old.
    wait_until("the memory of the new stage", || memory("after").is_some_and(|bytes| bytes > 0.0));
    assert_eq!(memory("before"), None);
    running.end("-TERM");
}

#[test]
fn error_of_a_link_counts_as_an_error_while_the_run_continues() {
    let (folder, address) = (RuntimeFolder::new(), free_address());
    let config = Config::new()
        .port("wire", LINK)
        .port("file", "kind = 'pcap', output = '/dev/full'")
        .stage("tx", "name = 'out'\nport = 'file'");
    folder.0.write("x.toml", config.to_string());
    let running = folder.run(&format!(" --set runtime.metrics={address}"), None);
    let count = |name, labels: &[_]| sample(&samples(&request(address, OPEN_METRICS).body, true), name, labels);
    wait_until("the error is counted", || count("run_errors", &[]).is_some_and(|errors| errors >= 1.0));
    let errors = running.ask().unwrap()["errors"].to_string();
    assert!(errors.contains("/dev/full: No space left on device"), "{errors}");
    running.program.signal("-TERM");
    assert_eq!(running.program.end().0, 1);
}
