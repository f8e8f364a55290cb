//! A FIFO queue in a ring buffer.

/// A FIFO queue of `Copy` items. Unlike in `VecDeque`, the capacity is always a power of two, so indexing needs no
/// branch. Any number of the oldest items can be read as at most two slices.
#[derive(Debug)]
pub(super) struct Ring<T> {
    entries: Box<[T]>,
    /// The index of the oldest item. Each removed item increments the index, which wraps around after `usize::MAX`. The
    /// low bits of the index are the position in `entries`.
    first: usize,
    /// The index of the next item to add. Each added item increments the index, which wraps around like `first`.
    next: usize,
}

impl<T: Copy> Ring<T> {
    /// Creates an empty queue with a capacity of at least `entries`. `empty` fills unused entries.
    pub(super) fn new(entries: usize, empty: T) -> Self {
        Self { entries: vec![empty; entries.max(1).next_power_of_two()].into(), first: 0, next: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.next.wrapping_sub(self.first)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.first
    }

    /// Adds an item at the end.
    #[inline(always)]
    pub(super) fn push(&mut self, it: T) {
        if self.len() == self.entries.len() {
            self.grow(it);
        }
        let mask = self.entries.len() - 1;
        self.entries[self.next & mask] = it;
        self.next = self.next.wrapping_add(1);
    }

    /// Doubles the capacity.
    #[cold]
    fn grow(&mut self, empty: T) {
        let [first, rest] = self.front(self.len());
        let mut entries = [first, rest].concat();
        (self.first, self.next) = (0, entries.len());
        entries.resize(2 * entries.len(), empty);
        self.entries = entries.into();
    }

    /// Returns the oldest `n` items, or all items if there are fewer, as two slices: up to the end of the ring, and
    /// from the start of the ring.
    #[inline]
    pub(super) fn front(&self, n: usize) -> [&[T]; 2] {
        let (n, at) = (n.min(self.len()), self.first & (self.entries.len() - 1));
        let before_end = n.min(self.entries.len() - at);
        [&self.entries[at..at + before_end], &self.entries[..n - before_end]]
    }

    /// Removes the oldest `n` items. There must be at least `n` items.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        self.first = self.first.wrapping_add(n);
    }

    /// Removes and returns the oldest item.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        let oldest = *self.front(1)[0].first()?;
        self.advance(1);
        Some(oldest)
    }

    /// Keeps the items for which `keep` is true, in order.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for _ in 0..self.len() {
            if let Some(it) = self.pop().filter(&keep) {
                self.push(it);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the ring with the queue of the standard library.
        #[test]
        fn ring_behaves_like_the_standard_queue(entries in 0..20usize, steps in proptest::collection::vec((0..4u8, 0..24u32), 0..200)) {
            let (mut ring, mut model) = (Ring::new(entries, 0), VecDeque::new());
            for (step, amount) in steps {
                match step {
                    0 => (0..amount).for_each(|it| {
                        ring.push(it);
                        model.push_back(it);
                    }),
                    1 => {
                        let n = (amount as usize).min(model.len());
                        let oldest: Vec<u32> = model.drain(..n).collect();
                        prop_assert_eq!(ring.front(n).concat(), oldest);
                        ring.advance(n);
                    }
                    2 => prop_assert_eq!(ring.pop(), model.pop_front()),
                    _ => {
                        ring.retain(|it| it % 7 != amount % 7);
                        model.retain(|it| it % 7 != amount % 7);
                    }
                }
                let all = model.make_contiguous();
                prop_assert_eq!((ring.front(usize::MAX).concat(), ring.len(), ring.is_empty()), (all.to_vec(), all.len(), all.is_empty()));
            }
        }
    }
}
