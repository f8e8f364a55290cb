//! What a worker lets others see while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use serde::Serialize;

/// A worker's numbers at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Received.
    pub rx: u64,
    /// Sent.
    pub tx: u64,
    /// Dropped.
    pub dropped: u64,
    /// Times round the loop.
    pub loops: u64,
}

/// Written by one worker every few hundred loops, read by anyone at any time. Reading disturbs the worker by a cache
/// line, and never makes it wait.
#[derive(Debug, Default)]
pub struct Board(CachePadded<[AtomicU64; 4]>);

impl Board {
    /// Shows new numbers.
    #[inline]
    pub fn publish(&self, progress: Progress) {
        let Progress { rx, tx, dropped, loops } = progress;
        for (place, value) in self.0.iter().zip([rx, tx, dropped, loops]) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// The last numbers; those of one moment may be a few loops apart.
    pub fn read(&self) -> Progress {
        let [rx, tx, dropped, loops] = std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed));
        Progress { rx, tx, dropped, loops }
    }
}
