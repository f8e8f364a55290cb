//! Functions for threads other than the thread of the tester: run on all cores, and run a shell command.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

use rustix::thread::{CpuSet, sched_setaffinity};

/// Allows the current thread to run on all cores. A new thread would otherwise run only on the core of the tester,
/// because the thread inherits the affinity of its creator.
pub(super) fn use_all_cores() {
    let mut cores = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| cores.set(core));
    // If this fails, the thread shares the core with the tester.
    let _ = sched_setaffinity(None, &cores);
}

/// Runs a command with a shell, and discards the output of the command. The command runs on the cores of the current
/// thread.
pub(super) fn run_with_shell(command: &str) -> io::Result<ExitStatus> {
    Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::null()).status()
}
