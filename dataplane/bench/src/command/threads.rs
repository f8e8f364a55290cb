//! Threads next to the thread of the tester.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Allows the current thread to run on all cores. A new thread of the tester runs only on the tester's core.
pub(super) fn use_all_cores() {
    let mut cores = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    // Without permission, the thread shares the core of the tester.
    let _ = sched_setaffinity(None, &cores);
}
