//! A batch: the descriptors of up to 256 packets, and what is known of each.

use crate::clock::Stamp;
use crate::mem::packet::{CONSUMED, DROPPED, NEXT};
use crate::mem::pool::{SlotMemory, SlotState};
use crate::mem::{Edge, Meta, Packet, Packets, Pool, Reason};

/// The most packets in a batch.
pub const BATCH: usize = 256;

/// Where a packet's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Desc {
    /// The slot.
    pub slot: u32,
    /// From the start of the slot to the first byte of the packet.
    pub offset: u16,
    /// Bytes of the packet.
    pub len: u16,
}

/// Up to [`BATCH`] packets on their way through the graph.
///
/// Each packet is a slot that this batch alone owns. There is no public way to make one: the worker does, and
/// [`crate::testing`].
#[derive(Debug)]
pub struct Batch {
    memory: SlotMemory,
    /// At most [`BATCH`]. What is beyond in the arrays means nothing, but labels there are always `NEXT`.
    len: usize,
    /// The port that the packets were received on: all of those that are in the graph at one time came by one.
    pub(super) ingress: u8,
    descs: [Desc; BATCH],
    stamps: [Stamp; BATCH],
    metas: [Meta; BATCH],
    labels: [u8; BATCH],
    copies: [u8; BATCH],
}

impl Batch {
    pub(crate) fn new(pool: &Pool) -> Box<Self> {
        Box::new(Self {
            memory: pool.memory().clone(),
            len: 0,
            ingress: 0,
            descs: [Desc::default(); BATCH],
            stamps: [Stamp::NONE; BATCH],
            metas: [Meta::default(); BATCH],
            labels: [NEXT; BATCH],
            copies: [NEXT; BATCH],
        })
    }

    /// How many packets.
    #[inline]
    pub fn len(&self) -> usize {
        // Never more; saying so here lets the compiler drop the checks in the loops.
        self.len.min(BATCH)
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Says which port the packets were received on.
    #[inline]
    pub(crate) fn set_ingress(&mut self, port: u8) {
        self.ingress = port;
    }

    /// How many more would fit.
    #[inline]
    pub(crate) fn space(&self) -> usize {
        BATCH - self.len()
    }

    /// The packets, in order.
    #[inline]
    pub fn iter_mut(&mut self) -> Packets<'_> {
        Packets::new(self)
    }

    /// One packet.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<Packet<'_>> {
        (index < self.len()).then(|| Packet::at(self, index))
    }

    /// All bytes of all packets.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.descs().iter().map(|desc| u64::from(desc.len)).sum()
    }

    /// Bytes of the shortest and of the longest packet; `usize::MAX` and 0 when there is none.
    #[inline]
    pub fn lengths(&self) -> (usize, usize) {
        let both = |(shortest, longest): (u16, u16), desc: &Desc| (shortest.min(desc.len), longest.max(desc.len));
        let (shortest, longest) = self.descs().iter().fold((u16::MAX, 0), both);
        (if self.is_empty() { usize::MAX } else { shortest.into() }, longest.into())
    }

    /// What the packets of a batch borrow, cut to its length.
    #[inline]
    #[allow(clippy::type_complexity, reason = "named once, taken apart at once")]
    pub(super) fn parts(&mut self) -> (&SlotMemory, &mut [Desc], &mut [Meta], &mut [u8], &mut [u8], &[Stamp]) {
        let len = self.len();
        (
            &self.memory,
            &mut self.descs[..len],
            &mut self.metas[..len],
            &mut self.labels[..len],
            &mut self.copies[..len],
            &self.stamps[..len],
        )
    }

    #[inline]
    pub(crate) fn descs(&self) -> &[Desc] {
        &self.descs[..self.len()]
    }

    #[inline]
    pub(crate) fn stamps(&self) -> &[Stamp] {
        &self.stamps[..self.len()]
    }

    /// Adds packets at these places. They must be in bounds: the first that is not ends the call.
    ///
    /// Returns how many were added, and their bytes; the slots of the others are still the caller's.
    #[inline]
    pub(crate) fn extend(&mut self, descs: impl ExactSizeIterator<Item = Desc>, stamps: &[Stamp]) -> (usize, u64) {
        let len = self.len();
        let n = descs.len().min(BATCH - len).min(stamps.len());
        let layout = self.memory.layout;
        // Maxima and sums, not a branch a packet: the compiler makes vectors of this loop.
        let (mut slot, mut end, mut bytes) = (0, 0, 0);
        for (into, desc) in self.descs[len..len + n].iter_mut().zip(descs) {
            *into = desc;
            slot = desc.slot.max(slot);
            end = (u32::from(desc.offset) + u32::from(desc.len)).max(end);
            bytes += u32::from(desc.len);
        }
        let (mut n, mut bytes) = (n, u64::from(bytes));
        if slot >= layout.count || end > layout.limit() {
            n = self.descs[len..len + n].iter().take_while(|desc| layout.admits(**desc)).count();
            bytes = self.descs[len..len + n].iter().map(|desc| u64::from(desc.len)).sum();
        }
        self.stamps[len..len + n].copy_from_slice(&stamps[..n]);
        self.len = len + n;
        (n, bytes)
    }

    /// Takes everything from `from`, which must be of the same pool and fit.
    #[inline]
    pub(crate) fn append(&mut self, from: &mut Self) {
        debug_assert!(self.memory.is(&from.memory) && self.space() >= from.len());
        let (at, n) = (self.len(), from.len().min(self.space()));
        self.descs[at..at + n].copy_from_slice(&from.descs[..n]);
        self.stamps[at..at + n].copy_from_slice(&from.stamps[..n]);
        self.metas[at..at + n].copy_from_slice(&from.metas[..n]);
        self.len = at + n;
        self.ingress = from.ingress;
        from.len = 0;
    }

    /// Takes one packet of `from`, which keeps its own entry: the caller forgets it there.
    #[inline]
    pub(crate) fn push_from(&mut self, from: &Self, index: usize) -> bool {
        debug_assert!(self.memory.is(&from.memory));
        let at = self.len();
        if at == BATCH || index >= BATCH {
            return false;
        }
        self.descs[at] = from.descs[index];
        self.stamps[at] = from.stamps[index];
        self.metas[at] = from.metas[index];
        self.ingress = from.ingress;
        self.len = at + 1;
        true
    }

    /// Adds a copy of a packet of `from` in a fresh slot. `false`: there was no slot, or no space.
    #[inline]
    pub(crate) fn push_copy(&mut self, from: &mut Self, index: usize, pool: &mut Pool) -> bool {
        let mut slot = [0];
        if self.space() == 0 || index >= from.len() || pool.take(&mut slot, SlotState::Batched) == 0 {
            return false;
        }
        self.push_from(from, index);
        let at = self.len() - 1;
        self.descs[at].slot = slot[0];
        Packet::at(self, at).data_mut().copy_from_slice(Packet::at(from, index).data());
        true
    }

    /// Adds a packet with these bytes in a fresh slot. `false`: no slot, no space, or longer than a slot.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], stamp: Stamp, pool: &mut Pool) -> bool {
        let layout = self.memory.layout;
        let mut slot = [0];
        let Ok(len) = u16::try_from(bytes.len()) else { return false };
        if self.space() == 0 || u32::from(len) > layout.room() || pool.take(&mut slot, SlotState::Batched) == 0 {
            return false;
        }
        let at = self.len();
        self.extend([Desc { slot: slot[0], offset: layout.headroom, len }].into_iter(), &[stamp]);
        self.metas[at] = Meta::default();
        Packet::at(self, at).data_mut().copy_from_slice(bytes);
        true
    }

    /// Whether any packet was labelled.
    #[inline]
    pub(crate) fn is_steered(&self) -> bool {
        self.labels[..self.len()].iter().fold(0, |any, label| any | label) != NEXT
    }

    /// Whether a copy of any packet was asked for.
    #[inline]
    pub(crate) fn wants_copies(&self) -> bool {
        self.copies[..self.len()].iter().fold(0, |any, edge| any | edge) != NEXT
    }

    /// Where a packet is to go.
    #[inline]
    pub(crate) fn fate(&self, index: usize) -> Fate {
        match self.labels[index] {
            NEXT => Fate::Next,
            CONSUMED => Fate::Consumed,
            label if label >= DROPPED => Fate::Dropped(Reason::from_code(label - DROPPED)),
            edge => Fate::Edge(Edge::from_label(edge)),
        }
    }

    /// The edge that a copy of this packet was asked for on.
    #[inline]
    pub(crate) fn copy_wanted(&self, index: usize) -> Option<Edge> {
        (self.copies[index] != NEXT).then(|| Edge::from_label(self.copies[index]))
    }

    /// Frees the packets that `keep` does not want; the others close up. Returns how many were freed. There are no
    /// labels.
    #[cold]
    pub(crate) fn retain_into(&mut self, pool: &mut Pool, keep: impl Fn(&Desc) -> bool) -> usize {
        let (before, mut kept) = (self.len(), 0);
        for index in 0..before {
            if keep(&self.descs[index]) {
                self.descs[kept] = self.descs[index];
                self.stamps[kept] = self.stamps[index];
                self.metas[kept] = self.metas[index];
                kept += 1;
            } else {
                pool.put_one(self.descs[index].slot, SlotState::Batched);
            }
        }
        self.len = kept;
        before - kept
    }

    /// Forgets the labels. Whoever has looked at them does this before the packets go on or are forgotten: a batch is
    /// filled without touching them.
    #[inline]
    pub(crate) fn clear_labels(&mut self) {
        let len = self.len();
        self.labels[..len].fill(NEXT);
        self.copies[..len].fill(NEXT);
    }

    /// Forgets all packets, which have no labels: their slots are the caller's now.
    #[inline]
    pub(crate) fn forget(&mut self) {
        debug_assert!(!self.is_steered() && !self.wants_copies());
        self.len = 0;
    }

    /// The port that a packet names.
    #[inline]
    pub(crate) fn egress(&self, index: usize) -> u8 {
        self.metas[index].egress
    }

    /// Gives the slot of one packet back; the caller forgets its entry.
    #[inline]
    pub(crate) fn free_one(&self, index: usize, pool: &mut Pool) {
        debug_assert!(self.memory.is(pool.memory()));
        pool.put(&[self.descs[index].slot], SlotState::Batched);
    }

    /// Gives the slots of the packets from an index on back; the caller forgets their entries.
    #[inline]
    pub(crate) fn free_from(&self, index: usize, pool: &mut Pool) {
        for at in index..self.len() {
            self.free_one(at, pool);
        }
    }

    /// Gives all slots back, of packets without labels, to the pool that they came from.
    #[inline]
    pub(crate) fn free_into(&mut self, pool: &mut Pool) {
        debug_assert!(self.memory.is(pool.memory()) && !self.is_steered() && !self.wants_copies());
        let len = self.len();
        let mut slots = [0; BATCH];
        for (slot, desc) in slots.iter_mut().zip(&self.descs[..len]) {
            *slot = desc.slot;
        }
        pool.put(&slots[..len], SlotState::Batched);
        self.len = 0;
    }
}

/// What a stage decided for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing: it goes on to the next stage.
    Next,
    /// It leaves by this output.
    Edge(Edge),
    /// It is dropped.
    Dropped(Reason),
    /// The stage has taken what it needs; the packet ends here.
    Consumed,
}
