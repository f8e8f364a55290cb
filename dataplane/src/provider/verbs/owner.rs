//! Which thread has a completion queue that its driver does not lock.

use std::cell::Cell;
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

/// The thread that polls a queue. What a driver does not lock it may touch from other calls too: posting to a queue pair
/// of that queue, changing it, destroying it. So these belong to the same thread, and this finds out whether they do.
#[derive(Debug)]
pub(super) struct Owner {
    /// 0: none yet, and who calls is alone for that long.
    thread: AtomicU64,
    /// Whether it matters: the driver has no lock.
    alone: bool,
}

impl Owner {
    /// Of a queue with a lock, or without.
    pub(super) const fn new(alone: bool) -> Self {
        Self { thread: AtomicU64::new(0), alone }
    }

    /// Whether it matters.
    pub(super) const fn is_alone(&self) -> bool {
        self.alone
    }

    /// Makes the queue this thread's for good. `false`: it is another's.
    #[inline]
    pub(super) fn claim(&self) -> bool {
        if !self.alone {
            return true;
        }
        let me = this_thread();
        self.thread.load(Ordering::Relaxed) == me
            || self.thread.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Lets this thread in until the guard is dropped. `None`: the queue is another thread's.
    #[inline]
    pub(super) fn visit(&self) -> Option<Visit<'_>> {
        if !self.alone {
            return Some(Visit(None));
        }
        let me = this_thread();
        if self.thread.load(Ordering::Relaxed) == me {
            return Some(Visit(None));
        }
        self.thread.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Visit(Some(&self.thread)))
    }

    /// Nobody will poll any more.
    pub(super) fn release(&self) {
        self.thread.store(0, Ordering::Release);
    }
}

/// A thread is in.
pub(super) struct Visit<'a>(Option<&'a AtomicU64>);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(thread) = self.0 {
            thread.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_queue_without_a_lock_is_one_threads() {
        let owner = Owner::new(true);
        assert!(owner.visit().is_some());
        assert!(owner.claim() && owner.claim() && owner.visit().is_some());
        thread::scope(|scope| {
            scope.spawn(|| assert!(!owner.claim() && owner.visit().is_none()));
        });
        owner.release();
        thread::scope(|scope| {
            scope.spawn(|| assert!(owner.visit().is_some() && owner.claim()));
        });
        assert!(!owner.claim());
    }

    #[test]
    fn a_visitor_keeps_others_out_while_it_is_in() {
        let owner = Owner::new(true);
        let visit = owner.visit();
        thread::scope(|scope| {
            scope.spawn(|| assert!(owner.visit().is_none() && !owner.claim()));
        });
        drop(visit);
        thread::scope(|scope| {
            scope.spawn(|| assert!(owner.visit().is_some()));
        });
    }

    #[test]
    fn a_queue_with_a_lock_is_anybodys() {
        let owner = Owner::new(false);
        assert!(owner.claim());
        thread::scope(|scope| {
            scope.spawn(|| assert!(owner.claim() && owner.visit().is_some()));
        });
    }
}
