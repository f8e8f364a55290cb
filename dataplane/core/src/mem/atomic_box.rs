//! A box that two threads exchange without a lock.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An optional box that threads exchange with one atomic operation. No thread ever waits for another thread.
///
/// `AtomicCell` of crossbeam exchanges the box as an integer, which loses the provenance of the pointer.
pub(crate) struct AtomicBox<T> {
    /// Null, or a pointer from `Box::into_raw` that only this field holds.
    pointer: AtomicPtr<T>,
    /// Makes `AtomicBox<T>` `Send` and `Sync` under the same conditions as `Mutex<Option<Box<T>>>`.
    owned: PhantomData<Mutex<Option<Box<T>>>>,
}

impl<T> AtomicBox<T> {
    /// Creates an empty `AtomicBox`.
    pub(crate) const fn new() -> Self {
        Self { pointer: AtomicPtr::new(ptr::null_mut()), owned: PhantomData }
    }

    /// Stores a box, and returns the previous box.
    pub(crate) fn replace(&self, value: Box<T>) -> Option<Box<T>> {
        self.exchange(Box::into_raw(value))
    }

    /// Removes the box.
    #[inline]
    pub(crate) fn take(&self) -> Option<Box<T>> {
        // The usual case is no box. A load is cheaper than an exchange, which locks the cache line.
        if self.pointer.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.exchange(ptr::null_mut())
    }

    /// Stores a pointer that is null or comes from `Box::into_raw`, and returns the previous box.
    #[inline]
    fn exchange(&self, pointer: *mut T) -> Option<Box<T>> {
        // The exchange acquires the bytes of the previous box and releases the bytes of the new box.
        let previous = self.pointer.swap(pointer, Ordering::AcqRel);
        // SAFETY: a pointer in the field is from `Box::into_raw`, and the exchange removed the only copy.
        (!previous.is_null()).then(|| unsafe { Box::from_raw(previous) })
    }
}

impl<T> Drop for AtomicBox<T> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn box_is_returned_once_and_dropped_with_its_owner() {
        let values = [0, 1].map(Arc::new);
        let shared = AtomicBox::new();
        assert!(shared.take().is_none());
        assert!(shared.replace(Box::new(values[0].clone())).is_none());
        assert_eq!(shared.replace(Box::new(values[1].clone())).as_deref(), Some(&values[0]));
        assert_eq!(shared.take().as_deref(), Some(&values[1]));
        assert!(shared.take().is_none());
        shared.replace(Box::new(values[0].clone()));
        drop(shared);
        assert_eq!(values.each_ref().map(Arc::strong_count), [1, 1]);
    }

    #[test]
    fn every_box_reaches_one_thread() {
        const VALUES: usize = if cfg!(miri) { 200 } else { 20_000 };
        let shared = AtomicBox::new();
        let total = std::thread::scope(|scope| {
            let sender = scope
                .spawn(|| (1..=VALUES).filter_map(|value| shared.replace(Box::new(value))).map(|value| *value).sum());
            let mut taken = 0;
            while !sender.is_finished() {
                taken += shared.take().map_or(0, |value| *value);
                std::thread::yield_now();
            }
            let replaced: usize = sender.join().unwrap();
            taken + replaced + shared.take().map_or(0, |value| *value)
        });
        assert_eq!(total, VALUES * (VALUES + 1) / 2);
    }
}
