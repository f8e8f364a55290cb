//! The counters that a stage itself keeps.

/// Receives the counters of a stage ([`Stage::counters`](super::Stage::counters)).
///
/// A closure with the parameters `name: &str` and `value: u64` receives all counters, without their kinds and without
/// the version of the names.
pub trait CounterReport {
    /// Adds a counter.
    fn add(&mut self, name: &str, value: u64);

    /// Adds the counter of an entry of a table, such as the hits of a rule. `is_named` is `true` if the config chose
    /// the name of the entry, and `false` if the name is the text of the entry. The config can exclude these counters
    /// from the metrics, because a table can be large.
    fn add_entry(&mut self, name: &str, is_named: bool, value: u64) {
        let _ = is_named;
        self.add(name, value);
    }

    /// Sets the version of the names. The version must change whenever the names change, for example because the stage
    /// uses other rules. Without this call, the version is 0.
    fn set_version(&mut self, version: u64) {
        let _ = version;
    }
}

impl<F: FnMut(&str, u64)> CounterReport for F {
    fn add(&mut self, name: &str, value: u64) {
        self(name, value);
    }
}
