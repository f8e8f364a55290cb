//! The level of the log, which `dataplane log level` can change during a run.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

/// The levels, from the fewest to the most messages.
pub(super) const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Access to the filter of the logger.
pub(super) struct Filter {
    /// Returns the filter as text. Returns `None` if the logger does not exist any more.
    pub(super) get: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// Replaces the filter. Returns `false` if the logger does not exist any more.
    pub(super) set: Box<dyn Fn(EnvFilter) -> bool + Send + Sync>,
}

static FILTER: OnceLock<Filter> = OnceLock::new();

/// Stores the filter of the logger. Only the first call has an effect, because a process has one logger.
pub(super) fn keep(filter: Filter) {
    let _ = FILTER.set(filter);
}

/// Returns the current level, or the filter if `RUST_LOG` has set a filter.
///
/// # Errors
/// Returns an error if the app has its own logger.
pub(super) fn level() -> Result<String, String> {
    FILTER.get().and_then(|filter| (filter.get)()).ok_or_else(|| "this app has its own logger".to_owned())
}

/// Sets the level, which is one of [`LEVELS`].
///
/// # Errors
/// Returns an error if the app has its own logger.
pub(super) fn set(level: &str) -> Result<(), String> {
    let done = FILTER.get().is_some_and(|filter| (filter.set)(EnvFilter::new(level)));
    if done { Ok(()) } else { Err("this app has its own logger".to_owned()) }
}
