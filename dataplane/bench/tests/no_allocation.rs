//! Tests that the loop of a trial does not allocate memory. A counting allocator compares a short and a long trial.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use dataplane::clock::HostClock;
use dataplane::runtime::PortLanes;
use dataplane_bench::setup::{self, Sources};
use dataplane_bench::tester::{Tester, TesterOptions};
use dataplane_testing::Folder;

struct CountingAllocator;

thread_local! {
    /// The number of allocations by this thread.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The counter of a thread is not available while the thread ends.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
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
        // SAFETY: the caller upholds the contract of `dealloc`, and the arguments are passed on unchanged.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn number_of_allocations_does_not_depend_on_the_number_of_packets() {
    let folder = Folder::new();
    let config = "[runtime]\nworkers = 1\nhugepages = 'none'\n\
                  [[port]]\nname = 'left'\ndevice = 'soft'\nlink = { kind = 'loopback', peer = 'right' }\n\
                  [[port]]\nname = 'right'\ndevice = 'soft'\nlink = { kind = 'loopback', peer = 'left' }\n\
                  [[stream]]\nsize = 'imix'\nspacing = 'poisson'\nsrc_port = { first = 1, count = 99, random = true }\n";
    let sources = Sources { config: Some(folder.write("bench.toml", config)), ..Sources::default() };
    let (assembly, set) = setup::load(&sources).unwrap();
    let streams = set.streams(None).unwrap();
    let clock = HostClock::new();
    let lanes = PortLanes::open(assembly, &clock, || false).unwrap();
    // With this short limit, each pause of the tester is a gap. The loop then also stores gaps.
    let (gap, settle) = (Duration::from_micros(1), Duration::from_millis(10));
    let options = TesterOptions { gap, settle, ..TesterOptions::default() };
    let mut tester = Tester::new(lanes, clock, streams, &[None], options, Arc::default());
    let mut trial = |duration| {
        let before = CALLS.get();
        let outcome = tester.trial(&[None], Duration::from_millis(duration)).unwrap();
        (CALLS.get() - before, outcome.streams[0].sent)
    };
    trial(10);
    let (few, _) = trial(1);
    let (many, packets) = trial(300);
    assert!(packets > 5_000, "{packets}");
    // The number of counters and gaps in the result may differ.
    assert!(many.abs_diff(few) < 100, "{few} and {many} allocations");
}
