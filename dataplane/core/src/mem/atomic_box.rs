//! A box that two threads exchange without a lock.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Mutex;

use crate::sync::{AtomicPtr, Ordering};

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
    pub(crate) fn new() -> Self {
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

#[cfg(all(test, loom))]
mod loom_models {
    use loom::alloc::Track;
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::Arc;

    /// A value that loom watches. Loom reports unordered accesses to the value, and a value that is never dropped.
    struct Watched(Track<UnsafeCell<u32>>, u32);

    impl Watched {
        fn boxed(number: u32) -> Box<Self> {
            let value = Self(Track::new(UnsafeCell::new(number)), number);
            value.change();
            Box::new(value)
        }

        /// Accesses the value as its only owner.
        fn change(&self) {
            self.0.get_ref().with_mut(|_| {});
        }
    }

    /// Returns the numbers of these boxes, after an access to each value.
    fn numbers(boxes: impl IntoIterator<Item = Option<Box<Watched>>>) -> Vec<u32> {
        boxes.into_iter().flatten().inspect(|value| value.change()).map(|value| value.1).collect()
    }

    #[test]
    fn every_box_has_one_owner_at_a_time() {
        loom::model(|| {
            let shared = Arc::new(AtomicBox::new());
            let sender = {
                let shared = shared.clone();
                loom::thread::spawn(move || numbers([1, 2].map(|number| shared.replace(Watched::boxed(number)))))
            };
            let mut all = numbers((0..2).map(|_| shared.take()));
            all.extend(sender.join().unwrap());
            all.extend(numbers([shared.replace(Watched::boxed(3)), shared.take()]));
            all.sort_unstable();
            assert_eq!(all, [1, 2, 3]);
        });
    }

    #[test]
    fn box_that_nobody_takes_is_dropped_with_its_owner() {
        loom::model(|| {
            let shared = Arc::new(AtomicBox::new());
            let sender = {
                let shared = shared.clone();
                loom::thread::spawn(move || drop(shared.replace(Watched::boxed(1))))
            };
            drop(shared);
            sender.join().unwrap();
        });
    }
}
