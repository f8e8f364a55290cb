//! Quiescent-state-based reclamation: finds out when no reader can still use a retired object.
//!
//! A reader calls [`Readers::pass`] whenever it keeps no result of an earlier lookup. A worker calls `pass` between
//! batches. An object that was removed from a table is reused only after all readers have called `pass`. No thread
//! waits for this: the writer checks retired objects again later. Source: McKenney and Slingwine, "Read-copy update",
//! PDCS 1998.

use std::sync::PoisonError;

use crossbeam_utils::CachePadded;
use dataplane_core::sync::{Arc, AtomicU64, Mutex, Ordering};

/// All readers of the tables, and their shared epoch.
#[derive(Debug)]
pub(super) struct Readers {
    epoch: CachePadded<AtomicU64>,
    seen: Mutex<Vec<Arc<CachePadded<AtomicU64>>>>,
}

/// One reader. A dropped reader no longer delays the reuse of objects.
#[derive(Debug)]
pub(super) struct EpochReader(Arc<CachePadded<AtomicU64>>);

impl Drop for EpochReader {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::Release);
    }
}

impl Readers {
    pub(super) fn new() -> Self {
        Self { epoch: CachePadded::new(AtomicU64::new(1)), seen: Mutex::new(Vec::new()) }
    }

    /// Adds a reader.
    pub(super) fn join(&self) -> EpochReader {
        let seen = Arc::new(CachePadded::new(AtomicU64::new(self.epoch.load(Ordering::Acquire))));
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen.clone());
        EpochReader(seen)
    }

    /// Marks the reader as quiescent: the reader keeps no result of an earlier lookup.
    #[inline]
    pub(super) fn pass(&self, reader: &EpochReader) {
        reader.0.store(self.epoch.load(Ordering::Acquire), Ordering::Release);
    }

    /// Marks all readers as quiescent. Only valid before any reader runs, because a running reader could lose an object
    /// in use.
    pub(super) fn mark_all_quiescent(&self) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for seen in seen.iter().filter(|seen| seen.load(Ordering::Acquire) != u64::MAX) {
            seen.store(epoch, Ordering::Release);
        }
    }

    /// Starts a new epoch. Returns the new epoch, and an epoch `quiet`: no reader can use an object that was retired
    /// before `quiet`.
    pub(super) fn advance(&self) -> (u64, u64) {
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|seen| seen.load(Ordering::Acquire) != u64::MAX);
        let quiet = seen.iter().map(|seen| seen.load(Ordering::Acquire)).min().unwrap_or(epoch);
        (epoch, quiet)
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;

    /// The number in `link` selects an object. The writer replaces object 0 by object 1, and poisons object 0 as soon as
    /// no reader can use it.
    #[test]
    fn object_is_reused_only_when_no_reader_can_use_it() {
        const POISON: u64 = u64::MAX;
        /// The epoch in which the writer retires object 0.
        const RETIRED: u64 = 1;
        loom::model(|| {
            let readers = Arc::new(Readers::new());
            let link = Arc::new(AtomicU64::new(0));
            let objects = Arc::new([AtomicU64::new(10), AtomicU64::new(11)]);
            let reader = readers.join();
            let worker = {
                let (readers, link, objects) = (readers.clone(), link.clone(), objects.clone());
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        let found = link.load(Ordering::Acquire) as usize;
                        assert_ne!(objects[found].load(Ordering::Relaxed), POISON);
                        readers.pass(&reader);
                    }
                })
            };
            link.store(1, Ordering::Release);
            for _ in 0..2 {
                let (_, quiet) = readers.advance();
                if RETIRED < quiet {
                    objects[0].store(POISON, Ordering::Relaxed);
                }
            }
            worker.join().unwrap();
        });
    }
}
