//! A ring with the interface of `rtrb`, for loom. Loom sees only its own atomics, and `rtrb` uses the atomics of the
//! standard library.
//!
//! The order between the two sides is as weak as in `rtrb`: a pushed value is released to the thread that pops the
//! value, and a slot is released to the thread that uses the slot again.

use std::fmt;

use crate::mem::AtomicBox;
use crate::sync::{Arc, AtomicBool, Ordering};

struct Slots<T> {
    slots: Vec<AtomicBox<T>>,
    /// Whether the producer was dropped.
    is_abandoned: AtomicBool,
}

pub(super) struct RingBuffer;

pub(super) struct Producer<T> {
    ring: Arc<Slots<T>>,
    /// The number of pushed values.
    pushed: usize,
}

pub(super) struct Consumer<T> {
    ring: Arc<Slots<T>>,
    /// The number of popped values.
    popped: usize,
}

impl RingBuffer {
    #[allow(clippy::new_ret_no_self, reason = "the interface is that of rtrb")]
    pub(super) fn new<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
        let slots = (0..capacity).map(|_| AtomicBox::new()).collect();
        let ring = Arc::new(Slots { slots, is_abandoned: AtomicBool::new(false) });
        (Producer { ring: ring.clone(), pushed: 0 }, Consumer { ring, popped: 0 })
    }
}

impl<T> Producer<T> {
    /// Pushes a value. If the ring is full, `rtrb` returns the value. This ring returns the oldest value, and the model
    /// fails.
    pub(super) fn push(&mut self, value: T) -> Result<(), Box<T>> {
        let slot = &self.ring.slots[self.pushed % self.ring.slots.len()];
        self.pushed += 1;
        slot.replace(Box::new(value)).map_or(Ok(()), Err)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.ring.is_abandoned.store(true, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    pub(super) fn pop(&mut self) -> Result<Box<T>, ()> {
        let value = self.ring.slots[self.popped % self.ring.slots.len()].take().ok_or(())?;
        self.popped += 1;
        Ok(value)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned.load(Ordering::Acquire)
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
