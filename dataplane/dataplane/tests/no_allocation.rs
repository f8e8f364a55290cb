//! Tests that the worker loop does not allocate or free memory. A counting allocator counts the calls during 200,000
//! loops, while another thread requests snapshots continuously. Then the thread changes the pipeline 50 times.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use dataplane::config::{Diagnostics, Source};
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{ApplyOptions, Options, Run, Snapshot, assemble};
use dataplane::topology::Topology;

struct CountingAllocator;

static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread is a worker. The other threads may allocate.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if IS_WORKER.get() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stage that marks the thread of its worker.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MarksWorker {}

impl Stage for MarksWorker {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {
        IS_WORKER.set(true);
    }
}

// SAFETY: every call goes to the system allocator. CountingAllocator does not touch the allocated memory.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `alloc`, and the arguments are passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller upholds the contract of `dealloc`, and the arguments are passed on unchanged.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `realloc`, and the arguments are passed on unchanged.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A config with two ports, and with stages that keep state, copy packets and drop packets. If no buffer is free, the
/// stage `mirror` does not copy the packet.
const CONFIG: &str = r#"
[runtime]
workers = 1
burst = 32
hugepages = "none"

[[port]]
name = "a"
device = "soft"
link = { kind = "generator", size = 64, flows = 1000 }
clock = { khz = 156250, bits = 48, drift_ppb = 20000 }

[[port]]
name = "b"
device = "soft"
link = { kind = "loopback" }

[pipeline]
input = ["a", "b"]

[[pipeline.stage]]
use = "marks_worker"

[[pipeline.stage]]
use = "parse"

[[pipeline.stage]]
use = "acl"
default = "permit"
rules = [
  { action = "deny", protocol = "udp", src_port = "1024-1033" },
  { action = "permit", dst = "198.18.0.0/15" },
]

[[pipeline.stage]]
use = "filter"
# The filter expression `ip` as bytecode.
bytecode = "4 40 0 0 12 21 0 1 2048 6 0 0 65535 6 0 0 0"

[[pipeline.stage]]
use = "limit"
packets_per_second = 1000
burst = 100

[[pipeline.stage]]
use = "mirror"
outputs = { copy = "count" }

[[pipeline.stage]]
use = "route"
table = [ { prefix = "0.0.0.0/0", via = "192.0.2.1", port = "b" } ]

[[pipeline.stage]]
use = "ttl"

[[pipeline.stage]]
use = "neighbor"
table = [ { address = "192.0.2.1", mac = "02:00:00:00:00:99" } ]

[[pipeline.stage]]
name = "out"
use = "tx"

[[pipeline.stage]]
use = "count"
next = "drop"

[[pipeline.stage]]
use = "drop"
"#;

/// Runs without the test harness of Rust, because the harness allocates memory if a test takes long.
fn main() {
    check(&[], 200_000, 50);
    // The same checks for a run with a black box: recording bursts allocates no memory.
    let folder = std::env::temp_dir().join("dataplane-no-allocation");
    let settings = format!("{{ folder = {:?}, bursts = 4 }}", folder.display().to_string());
    check(&[("runtime.black_box".to_owned(), settings)], 20_000, 5);
}

/// Runs the config with these overrides, and counts the calls in a number of loops and in a number of changes.
fn check(settings: &[(String, String)], loops: u64, changes: usize) {
    const WARM: u64 = 10_000;
    let source = Source::new(Path::new("no_allocation.toml"), CONFIG, settings);
    let mut diagnostics = Diagnostics::new(&source);
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<MarksWorker>("marks_worker");
    let topology = Topology::discover().unwrap();
    let assembly = assemble(&source, &registry, topology, &mut diagnostics);
    let assembly = assembly.unwrap().unwrap_or_else(|| panic!("{}", diagnostics.render(false)));
    let run = Run::start(assembly, Options::default()).unwrap();
    // Waits until the worker has run `wanted` loops and has answered at least one request for a snapshot. Returns the
    // number of answered requests.
    let wait_for = |wanted: u64| {
        let mut answers = 0;
        while (run.progress().loops < wanted || answers == 0) && !run.is_finished() {
            let is_answer = |snapshot: Snapshot| snapshot.report().errors.is_empty();
            answers += u64::from(run.snapshot().is_some_and(is_answer));
            std::thread::yield_now();
        }
        answers
    };
    wait_for(WARM);
    let before = CALLS.load(Ordering::Relaxed);
    let answers = wait_for(WARM + loops);
    let after = CALLS.load(Ordering::Relaxed);
    // This config changes the parameters of `acl` and `limit`, connects the output of `mirror` to `drop`, and removes
    // `ttl` and `count`.
    let changed = CONFIG
        .replace("src_port = \"1024-1033\"", "src_port = \"1024-1050\"")
        .replace("packets_per_second = 1000", "packets_per_second = 2000")
        .replace("[[pipeline.stage]]\nuse = \"ttl\"\n", "")
        .replace("outputs = { copy = \"count\" }", "outputs = { copy = \"drop\" }")
        .replace("[[pipeline.stage]]\nuse = \"count\"\nnext = \"drop\"\n\n", "");
    let before_changes = CALLS.load(Ordering::Relaxed);
    let changer = run.changer();
    for round in 0..changes {
        let text = if round % 2 == 0 { changed.as_str() } else { CONFIG };
        let source = changer.source("changed.toml", text);
        let applied = changer.apply(&registry, &source, &ApplyOptions::default());
        let applied = applied.unwrap_or_else(|refusal| panic!("{refusal} {:?}", refusal.mistakes));
        assert!(applied.operations.len() > 4, "{applied:?}");
        wait_for(run.progress().loops + 1000);
    }
    let after_changes = CALLS.load(Ordering::Relaxed);
    run.stop();
    let report = run.join().unwrap();
    assert!(report.is_good(), "{report}");
    assert!(report.workers[0].loops >= WARM + loops, "{report}");
    assert!(report.packets.tx > 0 && report.ledger.dropped > 0 && report.ledger.copied > 0, "{report}");
    assert!(answers > 0, "no snapshot was answered");
    assert_eq!(after - before, 0, "allocator calls in {loops} loops");
    assert_eq!(after_changes - before_changes, 0, "allocator calls of the worker in {changes} changes");
    println!("no allocator calls in {loops} loops, {answers} snapshots and {changes} changes");
}
