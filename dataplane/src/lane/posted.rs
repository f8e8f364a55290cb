//! The receives that have not completed, in the order in which they were posted, which is the order in which a queue
//! pair completes them.

use crate::provider::WrId;

/// A ring as deep as the receive queue. What is in it is the device's, whatever the device says.
#[derive(Debug)]
pub(super) struct Posted {
    slots: Box<[u32]>,
    depth: usize,
    head: usize,
    len: usize,
}

impl Posted {
    pub(super) fn new(depth: usize) -> Self {
        Self { slots: vec![0; depth.max(1).next_power_of_two()].into(), depth, head: 0, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn space(&self) -> usize {
        self.depth - self.len
    }

    #[inline]
    fn place(&self, index: usize) -> usize {
        (self.head + index) & (self.slots.len() - 1)
    }

    /// Adds slots, for which there must be space.
    #[inline]
    pub(super) fn extend(&mut self, slots: &[u32]) {
        let at = self.place(self.len);
        let (first, second) = slots.split_at(slots.len().min(self.slots.len() - at));
        self.slots[at..at + first.len()].copy_from_slice(first);
        if !second.is_empty() {
            self.slots[..second.len()].copy_from_slice(second);
        }
        self.len += slots.len();
    }

    /// The oldest `n`, of which there must be as many, in their order: what is before the end of the ring, and the rest.
    #[inline]
    pub(super) fn front(&self, n: usize) -> [&[u32]; 2] {
        let n = n.min(self.len);
        let before_end = n.min(self.slots.len() - self.head);
        [&self.slots[self.head..self.head + before_end], &self.slots[..n - before_end]]
    }

    /// Takes the oldest `n` off.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.head = self.place(n);
        self.len -= n;
    }

    /// Takes the slot of a receive off, wherever it is. `None`: no receive of this tag and slot is posted.
    #[cold]
    pub(super) fn remove(&mut self, id: WrId, tag: u64) -> Option<u32> {
        let is_it = |&index: &usize| u64::from(self.slots[self.place(index)]) == id.number() && id.tag() == tag;
        let index = (0..self.len).find(is_it)?;
        let slot = self.slots[self.place(index)];
        for later in (0..index).rev() {
            self.slots[self.place(later + 1)] = self.slots[self.place(later)];
        }
        self.advance(1);
        Some(slot)
    }

    /// Takes the oldest off.
    #[cold]
    pub(super) fn pop(&mut self) -> Option<u32> {
        let slot = self.slots[self.head];
        let had = self.len > 0;
        self.advance(1);
        had.then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::provider::WrKind;

    proptest! {
        /// Against a queue of the standard library.
        #[test]
        fn it_is_a_queue(depth in 1..20usize, steps in proptest::collection::vec((0..4u8, 0..24u32), 0..200)) {
            let mut posted = Posted::new(depth);
            let mut model = VecDeque::new();
            let mut next = 0;
            for (step, amount) in steps {
                match step {
                    0 => {
                        let slots: Vec<u32> = (next..next + amount.min(posted.space() as u32)).collect();
                        next += slots.len() as u32;
                        posted.extend(&slots);
                        model.extend(slots);
                    }
                    1 => {
                        let n = (amount as usize).min(model.len());
                        let oldest: Vec<u32> = model.drain(..n).collect();
                        prop_assert_eq!(posted.front(n).concat(), oldest);
                        posted.advance(n);
                    }
                    2 => {
                        let at = model.iter().position(|slot| *slot == amount);
                        let id = WrId::new(WrKind::Receive, 3, amount.into());
                        prop_assert_eq!(posted.remove(id, id.tag() ^ 1 << 50), None);
                        prop_assert_eq!(posted.remove(id, id.tag()), at.map(|_| amount));
                        at.map(|at| model.remove(at));
                    }
                    _ => prop_assert_eq!(posted.pop(), model.pop_front()),
                }
                prop_assert_eq!((posted.len(), posted.space()), (model.len(), depth - model.len()));
            }
        }
    }
}
