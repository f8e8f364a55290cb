//! State that belongs to one thread, reached without a lock.
//!
//! A queue pair and its completion queues work on each other: a send posted to one makes an entry in the other, a poll
//! of one drives the other. All belong to one worker, so no lock is wanted; but the types are separate handles, and
//! nothing but care keeps a program from moving one of them to another thread. A [`Home`] turns the slip into an error.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of this thread; numbers are never used twice.
#[inline]
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| match number.get() {
        0 => {
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            number.set(fresh);
            fresh
        }
        known => known,
    })
}

/// What a thread does with the state: set it up, or live with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// For this call alone. Any thread may, until one has moved in.
    Visit,
    /// From now on: no other thread may any more.
    MoveIn,
}

/// A cell that the first thread to [`Use::MoveIn`] keeps. Dropping it is anybody's.
pub(super) struct Home<T> {
    /// The thread inside; 0: none.
    owner: AtomicU64,
    value: RefCell<T>,
}

// SAFETY: `value` is touched only in `with`, by the thread whose number is in `owner`. The number gets there by a
// compare-and-swap from 0 alone, and leaves by a release store of that same thread, which the next acquires. So two
// threads are never inside at once. `T` moves from thread to thread, hence `Send`.
unsafe impl<T: Send> Sync for Home<T> {}

/// Never looks inside: any thread may print, and only the owner may look.
impl<T> std::fmt::Debug for Home<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl<T> Home<T> {
    pub(super) fn new(value: T) -> Self {
        Self { owner: AtomicU64::new(0), value: RefCell::new(value) }
    }

    /// Lets `work` at the state. `None`: it is another thread's, or this thread is already at it.
    #[inline]
    pub(super) fn with<R>(&self, kind: Use, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let me = this_thread();
        // One call of the work below, and not one here and one there: it becomes a part of its caller.
        let _visit = if self.owner.load(Ordering::Relaxed) == me { None } else { Some(self.enter(kind, me)?) };
        self.value.try_borrow_mut().ok().map(|mut value| work(&mut value))
    }

    /// Comes from outside. `None`: another thread is there.
    #[cold]
    fn enter(&self, kind: Use, me: u64) -> Option<Visit<'_>> {
        self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Visit { owner: &self.owner, kind })
    }
}

/// One that came from outside. If for a visit it leaves when it is dropped, also when the work panics.
struct Visit<'a> {
    owner: &'a AtomicU64,
    kind: Use,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if self.kind == Use::Visit {
            self.owner.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn visits_are_free_until_a_thread_moves_in() {
        let home = Home::new(0);
        let add = |kind| home.with(kind, |value| *value += 1);
        assert_eq!(add(Use::Visit), Some(()));
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(add(Use::Visit), Some(())));
        });
        assert_eq!(add(Use::MoveIn), Some(()));
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!((add(Use::Visit), add(Use::MoveIn)), (None, None)));
        });
        assert_eq!(home.with(Use::Visit, |value| *value), Some(3));
    }

    #[test]
    fn visitors_exclude_each_other() {
        let home = Home::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut done = 0;
                    while done < 10_000 {
                        done += u64::from(home.with(Use::Visit, |value| *value += 1).is_some());
                    }
                });
            }
        });
        assert_eq!(home.with(Use::Visit, |value| *value), Some(40_000));
    }

    #[test]
    fn a_thread_does_not_meet_itself() {
        let home = Home::new(());
        assert_eq!(home.with(Use::MoveIn, |()| home.with(Use::Visit, |()| ())), Some(None));
    }
}
