//! The sends that have not completed, in the order in which they were posted.

use crate::clock::Stamp;
use crate::lane::LatencySink;
use crate::mem::{Desc, Pool, SlotState, vector};
use crate::provider::{RUN, WrId};

/// A ring as deep as the send queue. Sends are counted from 0 for ever; the count's low bits are in their `wr_id`.
#[derive(Debug)]
pub(super) struct InFlight {
    descs: Box<[Desc]>,
    stamps: Box<[Stamp]>,
    depth: usize,
    posted: u64,
    reclaimed: u64,
}

impl InFlight {
    pub(super) fn new(depth: u32) -> Self {
        let capacity = (depth.max(1) as usize).next_power_of_two();
        Self {
            descs: vec![Desc::default(); capacity].into(),
            stamps: vec![Stamp::NONE; capacity].into(),
            depth: depth as usize,
            posted: 0,
            reclaimed: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.posted - self.reclaimed) as usize
    }

    #[inline]
    pub(super) fn space(&self) -> usize {
        self.depth - self.len()
    }

    /// The number of the next send.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.posted
    }

    /// The newest.
    #[cold]
    pub(super) fn last(&self) -> Option<Desc> {
        (self.len() > 0).then(|| self.descs[self.place(self.posted - 1).0])
    }

    /// How many sends are outstanding before the one with this number; `None`: it is not outstanding.
    #[inline]
    pub(super) fn position(&self, number: u64) -> Option<usize> {
        let behind = number.wrapping_sub(self.reclaimed) & WrId::NUMBER;
        (behind < self.len() as u64).then_some(behind as usize)
    }

    /// The ring's place of a count, and how many follow it before the end of the ring.
    #[inline]
    fn place(&self, count: u64) -> (usize, usize) {
        let at = count as usize & (self.descs.len() - 1);
        (at, self.descs.len() - at)
    }

    /// Adds sends; there must be space.
    #[inline]
    pub(super) fn extend(&mut self, descs: &[Desc], stamps: &[Stamp]) {
        let (at, before_end) = self.place(self.posted);
        let first = descs.len().min(before_end);
        self.descs[at..at + first].copy_from_slice(&descs[..first]);
        self.stamps[at..at + first].copy_from_slice(&stamps[..first]);
        if first < descs.len() {
            self.descs[..descs.len() - first].copy_from_slice(&descs[first..]);
            self.stamps[..descs.len() - first].copy_from_slice(&stamps[first..]);
        }
        self.posted += descs.len() as u64;
    }

    /// Gives the slots of the oldest `n` sends back to the pool; with a stamp of their completion, records how long
    /// they took. Returns their bytes.
    #[inline]
    pub(super) fn reclaim(
        &mut self,
        mut n: usize,
        pool: &mut Pool,
        completed: Stamp,
        latency: &mut dyn LatencySink,
    ) -> u64 {
        let mut bytes = 0;
        while n > 0 {
            let (at, before_end) = self.place(self.reclaimed);
            let part = n.min(before_end).min(RUN);
            let descs = &self.descs[at..at + part];
            bytes += u64::from(vector::bytes(Desc::words(descs)));
            pool.put_descs(descs, SlotState::Sending);
            if completed != Stamp::NONE {
                for alike in self.stamps[at..at + part].chunk_by(|a, b| a == b) {
                    latency.record(alike[0], completed, alike.len() as u64);
                }
            }
            self.reclaimed += part as u64;
            n -= part;
        }
        bytes
    }
}
