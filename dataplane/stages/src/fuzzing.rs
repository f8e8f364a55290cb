//! Targets of the fuzzer in `tools/fuzz`. A target panics if the tested code violates an invariant. The tests
//! run each target on the inputs of its corpus.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::MemfdFlags;

use crate::{acl, filter, kernel, route};

/// Runs a filter program on a packet, and compares the result with the result of a reference interpreter.
pub fn filter(input: &[u8]) {
    filter::fuzzing::program(input);
    filter::fuzzing::text(input);
}

/// Compiles a filter expression, and compares the result for a packet with the result of libpcap.
pub fn expression(input: &[u8]) {
    filter::fuzzing::expression(input);
}

/// Applies netlink messages to the mirror of the kernel's state.
pub fn kernel(input: &[u8]) {
    kernel::fuzz(input);
}

/// Loads a file with rules, and then another file with rules.
pub fn rules(input: &[u8]) {
    acl::fuzz(input);
}

/// Loads a file with routes.
pub fn routes(input: &[u8]) {
    route::fuzz(input);
}

/// Calls `run` with the path of a file that contains `bytes`.
pub(crate) fn with_file<T>(bytes: &[u8], run: impl FnOnce(&Path) -> T) -> T {
    let file = rustix::fs::memfd_create("input", MemfdFlags::CLOEXEC).expect("a file in memory");
    rustix::io::write(&file, bytes).expect("memory for the input");
    run(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
}

#[cfg(test)]
mod tests {
    use dataplane_testing::corpus;

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn targets_accept_their_corpora() {
        corpus::replay("filter", super::filter);
        corpus::replay("expression", super::expression);
        corpus::replay("kernel", super::kernel);
        corpus::replay("rules", super::rules);
        corpus::replay("routes", super::routes);
    }
}
