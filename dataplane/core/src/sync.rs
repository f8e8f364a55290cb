//! The atomics, locks and queues of the algorithms that loom checks.
//!
//! Without `cfg(loom)`, every name is the type of the standard library or of crossbeam, so the algorithms have no extra
//! instructions. With `cfg(loom)`, the names are the types of [loom](https://docs.rs/loom), which runs the models
//! (`tools/verify loom`) with all orders of the threads' steps, up to a number of preemptions.

#[cfg(not(loom))]
pub use crossbeam_queue::ArrayQueue;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(loom)]
pub use queue::ArrayQueue;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Arc, Mutex, MutexGuard};

/// A queue with the behaviour of crossbeam's `ArrayQueue`, which does not use loom's atomics. The models check the users
/// of the queue, not the queue.
#[cfg(loom)]
mod queue {
    use std::collections::VecDeque;

    use super::Mutex;

    /// A queue of fixed capacity.
    #[derive(Debug)]
    pub struct ArrayQueue<T> {
        entries: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        /// Creates an empty queue.
        pub fn new(capacity: usize) -> Self {
            Self { entries: Mutex::new(VecDeque::new()), capacity }
        }

        /// Adds an entry at the end.
        ///
        /// # Errors
        /// Returns the entry if the queue is full.
        pub fn push(&self, entry: T) -> Result<(), T> {
            let mut entries = self.entries.lock().unwrap();
            if entries.len() == self.capacity {
                return Err(entry);
            }
            entries.push_back(entry);
            Ok(())
        }

        /// Adds an entry at the end. If the queue is full, removes and returns the first entry.
        pub fn force_push(&self, entry: T) -> Option<T> {
            let mut entries = self.entries.lock().unwrap();
            let first = if entries.len() == self.capacity { entries.pop_front() } else { None };
            entries.push_back(entry);
            first
        }

        /// Removes and returns the first entry.
        pub fn pop(&self) -> Option<T> {
            self.entries.lock().unwrap().pop_front()
        }
    }
}
