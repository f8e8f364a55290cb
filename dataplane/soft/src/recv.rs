//! A receive queue: a ring of slot indexes. Requests with scatter/gather lists are stored in arrays next to the ring.

use dataplane_core::mem::vector;
use dataplane_core::verbs::{RecvRequest, Sge};

/// The mark of an entry whose request has a scatter/gather list. The arrays `wr_ids`, `sges` and `sge_counts` hold the
/// request at the same position.
const GENERAL: u32 = 1 << 31;

/// The posted receives, in order.
#[derive(Debug)]
pub(super) struct RecvQueue {
    entries: Box<[u32]>,
    depth: usize,
    head: usize,
    len: usize,
    /// The number of entries with the [`GENERAL`] mark.
    general: usize,
    wr_ids: Box<[u64]>,
    sges: Box<[Sge]>,
    sge_counts: Box<[u8]>,
    max_sges: usize,
}

/// The oldest posted receive.
pub(super) enum PostedRecv<'a> {
    Slot(u32),
    General { wr_id: u64, sges: &'a [Sge] },
}

impl RecvQueue {
    pub(super) fn new(depth: u32, max_sges: u32) -> Self {
        let depth = depth as usize;
        let none = Sge { addr: 0, length: 0, lkey: Default::default() };
        Self {
            entries: vec![0; depth.next_power_of_two()].into(),
            depth,
            head: 0,
            len: 0,
            general: 0,
            wr_ids: vec![0; depth.next_power_of_two()].into(),
            sges: vec![none; depth.next_power_of_two() * max_sges as usize].into(),
            sge_counts: vec![0; depth.next_power_of_two()].into(),
            max_sges: max_sges as usize,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn space(&self) -> usize {
        self.depth - self.len
    }

    /// Returns whether all entries are slots, so that no entry has a scatter/gather list.
    #[inline]
    pub(super) fn is_slots(&self) -> bool {
        self.general == 0
    }

    #[inline]
    fn index_of(&self, index: usize) -> usize {
        (self.head + index) & (self.entries.len() - 1)
    }

    /// Adds either all slots or none, and returns whether the slots were added. Adds none if the queue has too little
    /// space, or if a slot index is not less than `below`. `below` is at most [`GENERAL`]. If `below` is 0, no slot
    /// index is valid.
    #[inline]
    pub(super) fn push_slots(&mut self, slots: &[u32], below: u32) -> bool {
        if slots.len() > self.space() || below == 0 {
            return false;
        }
        let at = self.index_of(self.len);
        let (first, second) = slots.split_at(slots.len().min(self.entries.len() - at));
        let fit = vector::copy_below(&mut self.entries[at..at + first.len()], first, below)
            && (second.is_empty() || vector::copy_below(&mut self.entries[..second.len()], second, below));
        if fit {
            self.len += slots.len();
        }
        fit
    }

    /// Adds a request. The caller checks that there is space, and that the request does not have too many elements.
    pub(super) fn push(&mut self, request: &RecvRequest<'_>) {
        let at = self.index_of(self.len);
        self.entries[at] = GENERAL;
        self.wr_ids[at] = request.wr_id;
        self.sge_counts[at] = request.sges.len() as u8;
        let first = at * self.max_sges;
        self.sges[first..first + request.sges.len()].copy_from_slice(request.sges);
        self.len += 1;
        self.general += 1;
    }

    /// Returns the oldest `n` slots as two slices: up to the end of the ring, and from the start of the ring. The queue
    /// must have `n` entries, and [`RecvQueue::is_slots`] must be true.
    #[inline]
    pub(super) fn front(&self, n: usize) -> [&[u32]; 2] {
        let n = n.min(self.len);
        let before_end = n.min(self.entries.len() - self.head);
        [&self.entries[self.head..self.head + before_end], &self.entries[..n - before_end]]
    }

    /// Removes the oldest `n` entries, which must be slots.
    #[inline]
    pub(super) fn advance(&mut self, n: usize) {
        self.head = self.index_of(n);
        self.len -= n;
    }

    /// Removes and returns the oldest entry.
    pub(super) fn pop(&mut self) -> Option<PostedRecv<'_>> {
        if self.len == 0 {
            return None;
        }
        let at = self.head;
        self.advance(1);
        if self.entries[at] & GENERAL == 0 {
            return Some(PostedRecv::Slot(self.entries[at]));
        }
        self.general -= 1;
        let first = at * self.max_sges;
        let sges = &self.sges[first..first + usize::from(self.sge_counts[at])];
        Some(PostedRecv::General { wr_id: self.wr_ids[at], sges })
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        (self.head, self.len, self.general) = (0, 0, 0);
    }
}
