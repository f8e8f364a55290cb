//! A cell for state that one thread owns and accesses without a lock.
//!
//! A queue pair and its completion queues change each other's state. A post to the queue pair adds a completion to the
//! completion queue. A poll of the completion queue takes frames from the link, and fills the posted receives of the
//! queue pair. The queue pair and the completion queue belong to the same worker, so no lock is needed. A
//! [`ThreadCell`] refuses the access of any other thread.

use std::cell::RefCell;

use dataplane_core::verbs::{Claim, QueueOwner};

/// A cell that belongs to the first thread that claims it with [`Claim::Permanent`], until this thread releases the
/// cell. Any thread may drop the cell.
pub(super) struct ThreadCell<T> {
    owner: QueueOwner,
    value: RefCell<T>,
}

// SAFETY: `value` is accessed only in `with`, during a claim of `owner`. At most one thread has a claim at a time, and
// the claims of different threads are ordered by acquire and release. So two threads never access `value` at the same
// time. `T` moves between threads, hence the bound `Send`.
unsafe impl<T: Send> Sync for ThreadCell<T> {}

/// Prints only `owner`, because any thread may print the cell, but only the owner may read the value.
impl<T> std::fmt::Debug for ThreadCell<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadCell").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<T> ThreadCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self { owner: QueueOwner::new(true), value: RefCell::new(value) }
    }

    /// Runs `work` on the state. Returns `None` if another thread owns the state, or if this thread is already
    /// accessing the state.
    #[inline]
    pub(super) fn with<R>(&self, kind: Claim, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        // The function has only one call of `work`, so that the compiler inlines `work`.
        let _guard = self.owner.claim(kind)?;
        self.value.try_borrow_mut().ok().map(|mut value| work(&mut value))
    }

    /// Removes the owner if the owner is this thread or has ended, so that another thread can claim the cell. Does
    /// nothing while this thread accesses the state: the claim must last until the access ends.
    pub(super) fn release(&self) {
        let is_unused = match self.owner.claim(Claim::Temporary) {
            Some(_guard) => self.value.try_borrow_mut().is_ok(),
            None => true,
        };
        if is_unused {
            // If another running thread owns the cell, `QueueOwner::release` returns `false` and changes nothing.
            let _ = self.owner.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn temporary_claims_exclude_each_other() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let cell = ThreadCell::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut done = 0;
                    while done < EACH {
                        done += u64::from(cell.with(Claim::Temporary, |value| *value += 1).is_some());
                    }
                });
            }
        });
        assert_eq!(cell.with(Claim::Temporary, |value| *value), Some(4 * EACH));
    }

    #[test]
    fn release_during_an_access_keeps_the_owner() {
        for claim in [Claim::Permanent, Claim::Temporary] {
            let cell = ThreadCell::new(());
            let other = || thread::scope(|scope| scope.spawn(|| cell.with(Claim::Temporary, |()| ())).join().unwrap());
            let during = cell.with(claim, |()| {
                cell.release();
                other()
            });
            assert_eq!(during, Some(None), "{claim:?}");
            cell.release();
            assert_eq!(other(), Some(()), "{claim:?}");
        }
    }

    #[test]
    fn nested_access_from_one_thread_is_refused() {
        let cell = ThreadCell::new(());
        assert_eq!(cell.with(Claim::Permanent, |()| cell.with(Claim::Temporary, |()| ())), Some(None));
    }
}
