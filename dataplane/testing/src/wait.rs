//! Waits for a condition in tests.

use std::time::{Duration, Instant};

/// The time limit of a wait. A correct test reaches its condition much earlier, even on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` returns `true`.
///
/// # Panics
/// With a message that contains `what`, if the condition does not become true within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "still waiting after {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}
