//! Live counters that a worker publishes while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use serde::Serialize;

/// The counters of a worker at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Packets received.
    pub rx: u64,
    /// Packets sent.
    pub tx: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Loops executed.
    pub loops: u64,
}

/// Counters that one worker writes every few hundred loops and any thread can read. A read costs the worker at most one
/// cache miss, and never blocks the worker.
#[derive(Debug, Default)]
pub struct SharedProgress(CachePadded<[AtomicU64; 4]>);

impl SharedProgress {
    /// Publishes new counters.
    #[inline]
    pub fn publish(&self, progress: Progress) {
        let Progress { rx, tx, dropped, loops } = progress;
        for (place, value) in self.0.iter().zip([rx, tx, dropped, loops]) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the latest counters. If the worker publishes during the call, some values are older than others.
    pub fn read(&self) -> Progress {
        let [rx, tx, dropped, loops] = std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed));
        Progress { rx, tx, dropped, loops }
    }
}
