//! Ownership of a queue by one thread, for state that is accessed without a lock.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::PoisonError;

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// The number of a thread that has not claimed a queue yet. No queue has an owner with this number.
const UNNUMBERED: u64 = u64::MAX;

#[cfg(not(loom))]
thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(UNNUMBERED) };
    static END: ThreadEnd = const { ThreadEnd(Cell::new(UNNUMBERED)) };
}

/// The numbers of the threads that have a number and have not ended.
#[cfg(not(loom))]
static RUNNING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

#[cfg(loom)]
loom::thread_local! {
    static NUMBER: Cell<u64> = Cell::new(UNNUMBERED);
    static END: ThreadEnd = ThreadEnd(Cell::new(UNNUMBERED));
}

#[cfg(loom)]
loom::lazy_static! {
    static ref RUNNING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
}

/// Returns the number of this thread, from 1. Numbers are never reused.
#[inline]
fn this_thread() -> u64 {
    NUMBER.with(|number| if number.get() == UNNUMBERED { number_thread(number) } else { number.get() })
}

/// Gives this thread a number.
#[cold]
fn number_thread(number: &Cell<u64>) -> u64 {
    // Numbers only have to be different, so loom does not have to see this counter.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    number.set(NEXT.fetch_add(1, Ordering::Relaxed));
    running().insert(number.get());
    // If this thread is already ending, nothing removes its number, and the thread never counts as ended.
    let _ = END.try_with(|end| end.0.set(number.get()));
    number.get()
}

fn running() -> MutexGuard<'static, BTreeSet<u64>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the number of a thread from the running threads when the thread ends.
struct ThreadEnd(Cell<u64>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        // If a later destructor of this thread claims a queue, the thread gets a new number, which is never removed.
        let _ = NUMBER.try_with(|number| number.set(UNNUMBERED));
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
    pub fn new(exclusive: bool) -> Self {
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

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::Arc;

    /// A queue that only its owner accesses. An access reads and writes `accesses` without an order of its own. If an
    /// access does not see all earlier accesses, the count is too low.
    struct Queue {
        owner: QueueOwner,
        accesses: AtomicU64,
    }

    impl Queue {
        fn access(&self) -> u64 {
            self.accesses.store(self.accesses.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            1
        }

        /// Accesses the queue under a temporary claim. Returns the number of accesses.
        fn try_access(&self) -> u64 {
            self.owner.claim(Claim::Temporary).map_or(0, |_guard| self.access())
        }
    }

    /// Runs two threads on one queue, and checks that every access saw all earlier accesses. The threads return the number of
    /// their accesses.
    fn check(first: fn(&Queue) -> u64, second: fn(&Queue) -> u64) {
        loom::model(move || {
            let queue = Arc::new(Queue { owner: QueueOwner::new(true), accesses: AtomicU64::new(0) });
            let threads = [first, second].map(|run| {
                let queue = queue.clone();
                loom::thread::spawn(move || run(&queue))
            });
            let accesses: u64 = threads.map(|thread| thread.join().unwrap()).into_iter().sum();
            // In loom, `join` does not wait for the destructors of the thread. These destructors need `RUNNING`, which loom
            // drops at the end of the model.
            while !running().is_empty() {
                loom::thread::yield_now();
            }
            assert_eq!(queue.accesses.load(Ordering::Relaxed), accesses);
        });
    }

    #[test]
    fn temporary_claims_never_overlap() {
        check(|queue| queue.try_access() + queue.try_access(), Queue::try_access);
    }

    #[test]
    fn permanent_claim_ends_with_the_release_by_its_thread() {
        check(
            |queue| {
                let mine = if queue.owner.claim_permanently() { queue.access() + queue.try_access() } else { 0 };
                queue.owner.release();
                mine
            },
            Queue::try_access,
        );
    }

    #[test]
    fn queue_of_a_running_thread_is_not_released_by_another_thread() {
        check(
            |queue| if queue.owner.claim_permanently() { queue.access() + queue.access() } else { 0 },
            |queue| {
                queue.owner.release();
                queue.try_access()
            },
        );
    }

    #[test]
    fn guard_of_a_released_claim_does_not_end_the_claim_of_another_thread() {
        check(
            |queue| {
                let Some(guard) = queue.owner.claim(Claim::Temporary) else { return 0 };
                let mine = queue.access();
                queue.owner.release();
                drop(guard);
                mine + queue.try_access()
            },
            Queue::try_access,
        );
    }
}
