//! Support for the tests of the workspace: configs, temporary folders, skipped tests, network namespaces, programs,
//! terminals, strategies for property tests, guards for threads, recorded captures, and the inputs of the fuzzer.

pub mod config;
pub mod corpus;
mod folder;
pub mod namespace;
pub mod program;
mod skip;
pub mod strategies;
mod terminal;
mod wait;

pub use folder::Folder;
pub use skip::{SKIPS, report_skip, skip};
pub use terminal::Terminal;
pub use wait::{PATIENCE, wait_until};

/// Returns the path of a recorded capture file.
#[must_use]
pub fn capture(name: &str) -> std::path::PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "captures", name].iter().collect()
}

/// A guard that sets a stop flag for other threads when a test ends, even by a panic. Without the guard, a scope that
/// joins these threads would never return after a panic.
pub struct StopOnDrop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
