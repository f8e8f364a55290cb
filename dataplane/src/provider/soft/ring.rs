//! A queue in a ring.

/// As the queue of the standard library, but of a length that is a power of two, and of what is copied: its places are found
/// without a branch, and runs of it are slices.
#[derive(Debug)]
pub(super) struct Ring<T> {
    places: Box<[T]>,
    /// Counted from the start of the first round, and on.
    first: usize,
    next: usize,
}

impl<T: Copy> Ring<T> {
    /// An empty one with places for so many; `empty` is in those that mean nothing.
    pub(super) fn new(places: usize, empty: T) -> Self {
        Self { places: vec![empty; places.max(1).next_power_of_two()].into(), first: 0, next: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.next.wrapping_sub(self.first)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.first
    }

    /// Adds one behind all others.
    #[inline(always)]
    pub(super) fn push(&mut self, it: T) {
        if self.len() == self.places.len() {
            self.grow(it);
        }
        let mask = self.places.len() - 1;
        self.places[self.next & mask] = it;
        self.next = self.next.wrapping_add(1);
    }

    /// Gets twice as many places.
    #[cold]
    fn grow(&mut self, empty: T) {
        let [first, rest] = self.front(self.len());
        let mut places = [first, rest].concat();
        (self.first, self.next) = (0, places.len());
        places.resize(2 * places.len(), empty);
        self.places = places.into();
    }

    /// The oldest `n`, or all where there are fewer: what is before the end of the ring, and the rest.
    #[inline]
    pub(super) fn front(&self, n: usize) -> [&[T]; 2] {
        let (n, at) = (n.min(self.len()), self.first & (self.places.len() - 1));
        let before_end = n.min(self.places.len() - at);
        [&self.places[at..at + before_end], &self.places[..n - before_end]]
    }

    /// Takes the oldest `n` off, of which there must be as many.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        debug_assert!(n <= self.len());
        self.first = self.first.wrapping_add(n);
    }

    /// Takes the oldest off.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        let oldest = *self.front(1)[0].first()?;
        self.advance(1);
        Some(oldest)
    }

    /// Keeps those that `keep` wants, in their order.
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
        /// Against the queue of the standard library.
        #[test]
        fn it_is_a_queue(places in 0..20usize, steps in proptest::collection::vec((0..4u8, 0..24u32), 0..200)) {
            let (mut ring, mut model) = (Ring::new(places, 0), VecDeque::new());
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
