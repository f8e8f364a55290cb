//! Ownership of a queue by one thread, for state that is accessed without a lock.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of a thread that has not claimed a queue yet. No queue has an owner with this number.
const UNNUMBERED: u64 = u64::MAX;

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(UNNUMBERED) };
    static END: ThreadEnd = const { ThreadEnd(Cell::new(UNNUMBERED)) };
}

/// Returns the number of this thread, from 1. Numbers are never reused.
#[inline]
fn this_thread() -> u64 {
    NUMBER.with(|number| if number.get() == UNNUMBERED { number_thread(number) } else { number.get() })
}

/// Gives this thread a number.
#[cold]
fn number_thread(number: &Cell<u64>) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    number.set(NEXT.fetch_add(1, Ordering::Relaxed));
    running().insert(number.get());
    // If this thread is already ending, nothing removes its number, and the thread never counts as ended.
    let _ = END.try_with(|end| end.0.set(number.get()));
    number.get()
}

/// The numbers of the threads that have a number and have not ended.
fn running() -> MutexGuard<'static, BTreeSet<u64>> {
    static RUNNING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the number of a thread from the running threads when the thread ends.
struct ThreadEnd(Cell<u64>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // If a later destructor of this thread claims a queue, the thread gets a new number, which is never removed.
        NUMBER.with(|number| number.set(UNNUMBERED));
        running().remove(&self.0.get());
    }
}

/// How long the claim of a thread on a queue lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Until the guard is dropped. Then any other thread may claim the queue.
    Temporary,
    /// Permanently: no other thread may access the queue until [`QueueOwner::release`].
    Permanent,
}

/// The thread that owns a queue. A completion queue and its queue pairs belong to one worker and need no lock. But each
/// of these objects is a separate handle, and a program can move a handle to another thread. This type detects an
/// access from another thread. Unsafe code of the providers relies on this guarantee: at most one thread at a time has
/// a claim on an exclusive queue.
#[derive(Debug)]
pub struct QueueOwner {
    /// The number of the owner thread. 0 while the queue has no owner.
    thread: AtomicU64,
    /// Whether only one thread may use the queue, because the queue has no lock.
    exclusive: bool,
}

impl QueueOwner {
    /// Creates the owner of a queue. With `exclusive` set to `false`, every claim of every thread succeeds.
    pub const fn new(exclusive: bool) -> Self {
        Self { thread: AtomicU64::new(0), exclusive }
    }

    /// Returns whether only one thread may use the queue.
    pub const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// Claims the queue for this thread permanently. Returns `false` if another thread owns the queue. Polls call this
    /// method, because it returns no guard that must be dropped. For a queue with a lock, a call costs one comparison.
    #[inline]
    pub fn claim_permanently(&self) -> bool {
        if !self.exclusive {
            return true;
        }
        let me = this_thread();
        self.thread.load(Ordering::Relaxed) == me
            || self.thread.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Claims the queue for this thread. Returns `None` if another thread owns the queue. The drop of the guard ends a
    /// temporary claim, also during a panic. The guard has no effect if this thread already owned the queue. If a
    /// thread has several guards, only the first guard can end a temporary claim. After the drop of the first guard,
    /// the thread must not access the queue, even if the thread still has other guards.
    #[inline]
    pub fn claim(&self, kind: Claim) -> Option<ClaimGuard<'_>> {
        // The usual case is checked first, because it only needs the comparison of two numbers.
        let is_owner = NUMBER.with(|number| self.thread.load(Ordering::Relaxed) == number.get());
        if is_owner || !self.exclusive {
            return Some(ClaimGuard(None, PhantomData));
        }
        // This form lets the compiler see that the guard of a permanent claim has nothing to drop.
        self.become_owner().then(|| ClaimGuard((kind == Claim::Temporary).then_some(&self.thread), PhantomData))
    }

    /// Makes this thread the owner of an exclusive queue. Returns `false` if another thread owns the queue.
    #[cold]
    fn become_owner(&self) -> bool {
        self.thread.compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Removes the owner, because the queue is not polled any more. Returns `false`, and keeps the owner, if the owner
    /// is another thread that has not ended, because the owner may be using the queue at the moment.
    pub fn release(&self) -> bool {
        let owner = self.thread.load(Ordering::Relaxed);
        let is_unused = owner == 0 || owner == this_thread() || !running().contains(&owner);
        // The exchange fails if the owner has changed since the load: another thread claimed a queue without an owner,
        // or released a queue whose owner has ended.
        is_unused && self.thread.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The access of a thread to a queue. The guard cannot move to another thread.
///
/// ```compile_fail,E0277
/// use dataplane_core::verbs::ClaimGuard;
///
/// fn send<T: Send>() {}
/// send::<ClaimGuard<'static>>();
/// ```
#[derive(Debug)]
pub struct ClaimGuard<'a>(Option<&'a AtomicU64>, PhantomData<*const ()>);

/// Ends a temporary claim of this thread. Changes nothing if this thread is not the owner any more: the claim was
/// released, and another thread may own the queue now.
#[cold]
fn end_claim(thread: &AtomicU64) {
    let _ = thread.compare_exchange(this_thread(), 0, Ordering::Release, Ordering::Relaxed);
}

impl Drop for ClaimGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(thread) = self.0 {
            end_claim(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn can(owner: &QueueOwner, kind: Claim) -> bool {
        owner.claim(kind).is_some()
    }

    #[test]
    fn permanent_claim_excludes_other_threads_until_the_release() {
        let owner = QueueOwner::new(true);
        assert!(can(&owner, Claim::Temporary));
        assert!(can(&owner, Claim::Permanent) && can(&owner, Claim::Permanent) && can(&owner, Claim::Temporary));
        thread::scope(|scope| {
            scope.spawn(|| assert!(!can(&owner, Claim::Permanent) && !can(&owner, Claim::Temporary)));
        });
        assert!(owner.release());
        thread::scope(|scope| {
            scope.spawn(|| assert!(can(&owner, Claim::Temporary) && can(&owner, Claim::Permanent)));
        });
        assert!(!can(&owner, Claim::Permanent));
    }

    #[test]
    fn other_thread_releases_only_a_queue_whose_owner_has_ended() {
        let owner = QueueOwner::new(true);
        assert!(can(&owner, Claim::Permanent));
        thread::scope(|scope| {
            scope.spawn(|| assert!(!owner.release() && !can(&owner, Claim::Temporary)));
        });
        assert!(can(&owner, Claim::Temporary) && owner.release());
        // `join` waits until the thread has ended, unlike the end of a scope.
        let owner = std::sync::Arc::new(owner);
        let shared = owner.clone();
        thread::spawn(move || assert!(can(&shared, Claim::Permanent))).join().unwrap();
        assert!(!can(&owner, Claim::Temporary));
        assert!(owner.release() && can(&owner, Claim::Temporary));
    }

    #[test]
    fn temporary_claim_ends_with_its_guard() {
        let owner = QueueOwner::new(true);
        let guard = owner.claim(Claim::Temporary);
        thread::scope(|scope| {
            scope.spawn(|| assert!(!can(&owner, Claim::Temporary) && !can(&owner, Claim::Permanent)));
        });
        drop(guard);
        thread::scope(|scope| {
            scope.spawn(|| assert!(can(&owner, Claim::Temporary)));
        });
    }

    #[test]
    fn guard_does_not_end_the_claim_of_another_thread() {
        let owner = QueueOwner::new(true);
        let guard = owner.claim(Claim::Temporary);
        assert!(owner.release());
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(can(&owner, Claim::Permanent));
                thread::scope(|inner| {
                    inner.spawn(|| assert!(!can(&owner, Claim::Temporary)));
                });
            });
        });
        drop(guard);
        assert!(!can(&owner, Claim::Temporary), "the other thread still owns the queue");
    }

    #[test]
    fn queue_with_lock_is_open_to_every_thread() {
        let owner = QueueOwner::new(false);
        assert!(can(&owner, Claim::Permanent));
        thread::scope(|scope| {
            scope.spawn(|| assert!(can(&owner, Claim::Permanent) && can(&owner, Claim::Temporary)));
        });
    }
}
