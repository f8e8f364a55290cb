//! When nobody can be looking at something any more.
//!
//! A reader says from time to time that it holds on to nothing that it has found ([`Reader::pass`]): a worker does so
//! between batches. What was taken out of a table before all readers have said so is not used anew. Nobody waits: what
//! is not yet free is free at a later look. (The scheme is that of quiescent states: McKenney and Slingwine, "Read-copy
//! update", PDCS 1998.)

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;

/// All readers of something, and the time that they share.
#[derive(Debug)]
pub(super) struct Readers {
    now: CachePadded<AtomicU64>,
    seen: Mutex<Vec<Arc<CachePadded<AtomicU64>>>>,
}

/// One reader. Dropped, it reads no more.
#[derive(Debug)]
pub(super) struct Reader(Arc<CachePadded<AtomicU64>>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::Release);
    }
}

impl Readers {
    pub(super) fn new() -> Self {
        Self { now: CachePadded::new(AtomicU64::new(1)), seen: Mutex::new(Vec::new()) }
    }

    /// A further reader.
    pub(super) fn join(&self) -> Reader {
        let seen = Arc::new(CachePadded::new(AtomicU64::new(self.now.load(Ordering::Acquire))));
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen.clone());
        Reader(seen)
    }

    /// The reader holds on to nothing that it has found so far.
    #[inline]
    pub(super) fn pass(&self, reader: &Reader) {
        reader.0.store(self.now.load(Ordering::Acquire), Ordering::Release);
    }

    /// Nobody has begun to look at anything. Only before any reader is at work: what it finds then it may lose.
    pub(super) fn rest(&self) {
        let now = self.now.load(Ordering::Acquire);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for seen in seen.iter().filter(|seen| seen.load(Ordering::Acquire) != u64::MAX) {
            seen.store(now, Ordering::Release);
        }
    }

    /// Lets time go on. Returns the new time, and a time before which whatever was taken out is seen by nobody.
    pub(super) fn advance(&self) -> (u64, u64) {
        let now = self.now.fetch_add(1, Ordering::AcqRel) + 1;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|seen| seen.load(Ordering::Acquire) != u64::MAX);
        let quiet = seen.iter().map(|seen| seen.load(Ordering::Acquire)).min().unwrap_or(now);
        (now, quiet)
    }
}
