//! The outstanding receives of a lane, in the order in which they were posted. A queue pair completes receives in the
//! order of posting.

use crate::verbs::WrId;

/// A ring of slots (packet buffers) with the depth of the receive queue. A slot belongs to the device as long as the
/// slot is in the ring, even if a faulty device returns a wrong completion.
#[derive(Debug)]
pub(super) struct PostedReceives {
    slots: Box<[u32]>,
    depth: usize,
    head: usize,
    len: usize,
}

impl PostedReceives {
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
    fn ring_index(&self, index: usize) -> usize {
        (self.head + index) & (self.slots.len() - 1)
    }

    /// Appends slots. The ring must have space for all of these slots.
    #[inline]
    pub(super) fn extend(&mut self, slots: &[u32]) {
        let at = self.ring_index(self.len);
        let (first, second) = slots.split_at(slots.len().min(self.slots.len() - at));
        self.slots[at..at + first.len()].copy_from_slice(first);
        if !second.is_empty() {
            self.slots[..second.len()].copy_from_slice(second);
        }
        self.len += slots.len();
    }

    /// Returns the oldest `n` slots in order, as two slices: the slots up to the end of the ring, and the slots from
    /// the start of the ring. The ring must hold at least `n` slots.
    #[inline]
    pub(super) fn oldest(&self, n: usize) -> [&[u32]; 2] {
        let n = n.min(self.len);
        let before_end = n.min(self.slots.len() - self.head);
        [&self.slots[self.head..self.head + before_end], &self.slots[..n - before_end]]
    }

    /// Removes the oldest `n` slots.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.head = self.ring_index(n);
        self.len -= n;
    }

    /// Removes the receive whose slot is in `id`, at any position of the ring. Returns `None` if this slot is not
    /// posted, or if the tag of `id` is not `tag`.
    #[cold]
    pub(super) fn remove(&mut self, id: WrId, tag: u64) -> Option<u32> {
        let matches_id =
            |&index: &usize| u64::from(self.slots[self.ring_index(index)]) == id.number() && id.tag() == tag;
        let index = (0..self.len).find(matches_id)?;
        let slot = self.slots[self.ring_index(index)];
        for later in (0..index).rev() {
            self.slots[self.ring_index(later + 1)] = self.slots[self.ring_index(later)];
        }
        self.advance(1);
        Some(slot)
    }

    /// Removes and returns the oldest slot.
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
    use crate::verbs::WrKind;

    proptest! {
        /// Compares the ring with a queue of the standard library.
        #[test]
        fn ring_matches_a_standard_queue(depth in 1..20usize, steps in proptest::collection::vec((0..4u8, 0..24u32), 0..200)) {
            let mut posted = PostedReceives::new(depth);
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
                        prop_assert_eq!(posted.oldest(n).concat(), oldest);
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
