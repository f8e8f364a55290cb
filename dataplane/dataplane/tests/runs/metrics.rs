//! Tests of the health checks of the metrics server in two cases: a worker makes no progress, and a run stops.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::prelude::*;
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;

use crate::common::Folder;

/// A stage that blocks its worker while `CLOSED` is set.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Barrier {}

static CLOSED: AtomicBool = AtomicBool::new(true);

impl Stage for Barrier {
    fn process(&mut self, _: &Ctx, _: &mut Batch) {
        while CLOSED.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// Requests a page. Returns the response, or `None` if nobody listens.
fn get(socket: &Path, page: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    write!(stream, "GET {page} HTTP/1.1\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    Some(response)
}

#[test]
fn worker_without_progress_is_neither_healthy_nor_ready() {
    let folder = Folder::new();
    let socket = folder.file("m.sock");
    // The sandbox would also limit the other tests of this process.
    let config = Config::new()
        .runtime("control = 'none'\nmetrics = 'unix:m.sock'\nsandbox = false\nwatchdog = '2s'")
        .port("wire", "kind = 'generator', size = 64")
        .stage("barrier", "")
        .stage("tx", "name = 'out'\nport = 'wire'");
    let path = folder.write("x.toml", config.to_string());
    // Once the barrier is open, the run ends after 1,000,000 packets.
    let args =
        ["dataplane", "run", path.to_str().unwrap(), "--packets", "1000000", "--report", "json"].map(str::to_owned);
    let run = std::thread::spawn(|| App::new().stage::<Barrier>("barrier").exit_status_of(args));
    for page in ["/healthz", "/readyz"] {
        let mut response = String::new();
        wait_until("the worker is reported", || {
            response = get(&socket, page).unwrap_or_default();
            response.ends_with("\r\n\r\nworker 0 makes no progress in stage barrier\n")
        });
        assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    }
    let metrics = get(&socket, "/metrics").unwrap();
    for line in ["dataplane_worker_up{worker=\"0\"} 0\n", "dataplane_run_ready 0\n", "dataplane_run_errors 1\n"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    wait_until("the watchdog reports the worker", || {
        let metrics = get(&socket, "/metrics").unwrap();
        metrics.contains("dataplane_worker_stalls_total{worker=\"0\"} 1\n")
    });
    CLOSED.store(false, Ordering::Relaxed);
    assert_eq!(run.join().unwrap(), 0);
    assert!(get(&socket, "/healthz").is_none());
}

/// A stage that blocks its worker while `HELD` is set.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Slow {}

static HELD: AtomicBool = AtomicBool::new(true);

impl Stage for Slow {
    fn process(&mut self, _: &Ctx, _: &mut Batch) {
        while HELD.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn run_that_stops_is_healthy_but_not_ready() {
    let folder = Folder::new();
    let socket = folder.file("m.sock");
    // The worker is stuck, so the run cannot end.
    let config = Config::new()
        .runtime("control = 'none'\nmetrics = 'unix:m.sock'\nsandbox = false")
        .port("wire", "kind = 'generator', size = 64")
        .stage("slow", "")
        .stage("tx", "name = 'out'\nport = 'wire'");
    let path = folder.write("x.toml", config.to_string());
    let args = ["dataplane", "run", path.to_str().unwrap(), "--for", "1ms", "--report", "json"].map(str::to_owned);
    let run = std::thread::spawn(|| App::new().stage::<Slow>("slow").exit_status_of(args));
    for (page, expected) in
        [("/healthz", "HTTP/1.1 200 OK|stopping\n"), ("/readyz", "HTTP/1.1 503 Service Unavailable|the run stops\n")]
    {
        let (head, body) = expected.split_once('|').unwrap();
        wait_until("the run stops", || {
            let response = get(&socket, page).unwrap_or_default();
            response.starts_with(head) && response.ends_with(&format!("\r\n\r\n{body}"))
        });
    }
    HELD.store(false, Ordering::Relaxed);
    assert_eq!(run.join().unwrap(), 0);
}
