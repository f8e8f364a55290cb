//! A batch: the descriptors and metadata of up to 256 packets.

use crate::clock::Stamp;
use crate::mem::desc::Desc;
use crate::mem::label::{Edge, HoldState, NEXT, Verdict};
use crate::mem::meta::Meta;
use crate::mem::pool::{BatchMemory, Pool, SlotMemory, SlotState};
use crate::mem::run::{Run, Stamps};
use crate::mem::vector::{self, Bounds, ReceivedLayout};

/// Maximum number of packets in a batch.
pub const BATCH: usize = 256;

/// Up to [`BATCH`] packets on their way through the graph of stages.
///
/// Each packet is in a slot (packet buffer) that only this batch owns. Only a lane (one worker's queues on one port)
/// adds received packets. Only the graph moves packets to another batch.
///
/// A batch is an unsized type, so code with two `&mut Batch` cannot swap them. A batch in a graph therefore always
/// contains packets of the graph's pool.
#[derive(Debug)]
pub struct Batch<Unsized: ?Sized = [()]> {
    pub(super) memory: SlotMemory,
    /// The number of packets, at most [`BATCH`]. In `labels` and `copies`, the entries from index `len` on are always
    /// `NEXT` (no label). In the remaining arrays, these entries have no meaning.
    len: usize,
    /// The index of the port that received the packets. Each batch in the graph has packets from only one port.
    pub(super) ingress: u8,
    /// Whether the current stage has held the packets before, and whether their maximum holding time has passed.
    pub(super) hold_state: HoldState,
    /// Bounds on the lengths and positions of all packets. Valid only while `bounds_known` is set.
    bounds: Bounds,
    bounds_known: bool,
    /// `true` if every packet is plain IPv4 (see [`Batch::is_plain_ipv4`]). `false` means unknown.
    pub(super) plain: bool,
    /// The receive timestamp that all packets share. While this field is set, `stamps` has no meaning. `None` if each
    /// packet has its own timestamp in `stamps`.
    pub(super) stamp: Option<Stamp>,
    /// `false` if no packet is labelled and no copy is requested. `true` means unknown.
    maybe_labelled: bool,
    /// Free slots, taken from the pool in advance, for packets that a stage generates.
    pub(super) spares: Vec<u32>,
    /// The number of leading packets whose entry in `starts` is valid. Code that changes a descriptor sets this number
    /// to 0.
    starts_known: usize,
    pub(super) descs: [Desc; BATCH],
    /// Offsets of the packets from the start of the first slot, in bytes.
    pub(super) starts: [usize; BATCH],
    pub(super) stamps: [Stamp; BATCH],
    pub(super) metas: [Meta; BATCH],
    /// The label of each packet: the decision of the current stage, or `NEXT` if the stage has made none.
    pub(super) labels: [u8; BATCH],
    /// The output to which the current stage sends a copy of each packet, encoded like a label. `NEXT` means no copy.
    pub(super) copies: [u8; BATCH],
    /// A field without bytes that makes the batch an unsized type.
    _unsized: Unsized,
}

impl Batch {
    /// Creates an empty batch for buffers of this pool.
    pub fn new(pool: &Pool) -> Box<Self> {
        Self::in_memory(&pool.batch_memory())
    }

    /// Creates an empty batch for buffers in this memory.
    pub fn in_memory(memory: &BatchMemory) -> Box<Self> {
        Box::new(Batch {
            memory: memory.0.clone(),
            len: 0,
            ingress: 0,
            hold_state: HoldState::Fresh,
            bounds: Bounds::NONE,
            bounds_known: false,
            plain: false,
            stamp: None,
            maybe_labelled: false,
            spares: Vec::with_capacity(BATCH),
            starts_known: 0,
            descs: [Desc::default(); BATCH],
            starts: [0; BATCH],
            stamps: [Stamp::NONE; BATCH],
            metas: [Meta::default(); BATCH],
            labels: [NEXT; BATCH],
            copies: [NEXT; BATCH],
            _unsized: [(); 0],
        })
    }

    /// Checks that the slots of the batch belong to this pool.
    ///
    /// # Panics
    /// Panics if the packets belong to another pool.
    #[inline]
    pub(crate) fn check_pool(&self, pool: &Pool) {
        assert!(self.memory.is(pool.memory()), "the packets of this batch belong to another pool");
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        // `len` never exceeds `BATCH`. The `min` lets the compiler drop bounds checks in the loops.
        self.len.min(BATCH)
    }

    /// Returns whether the batch has no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the index of the port that received the packets. Packets that a stage generates count as received on this
    /// port.
    #[inline]
    pub fn set_ingress(&mut self, port: u8) {
        self.ingress = port;
    }

    /// Returns whether the current stage has held the packets before.
    #[inline]
    pub(crate) fn hold_state(&self) -> HoldState {
        self.hold_state
    }

    /// Returns the index of the port that received the packets.
    #[inline]
    pub fn ingress(&self) -> u8 {
        self.ingress
    }

    /// Sets whether the current stage has held the packets before.
    #[inline]
    pub(crate) fn set_hold_state(&mut self, state: HoldState) {
        self.hold_state = state;
    }

    /// Returns the number of packets that can still be added.
    #[inline]
    pub(crate) fn space(&self) -> usize {
        BATCH - self.len()
    }

    /// Returns `true` if every packet is plain IPv4. `false` means unknown. A loop over the heads (first bytes) of the
    /// packets of a plain batch can skip the check of each packet.
    ///
    /// A plain IPv4 packet has no VLAN tag, has an IPv4 header of 20 bytes at byte 14, and is not a fragment. The
    /// metadata must agree: [`Meta::is_untagged_ipv4`] is `true`, and [`MetaFlags`] has neither `VLAN` nor `FRAGMENT`.
    /// The stage `parse` marks batches as plain. The batch loses the mark when packets are added, and when packets are
    /// borrowed with [`Batch::iter_mut`], [`Batch::iter_mut_from`], [`Batch::get_mut`] or [`Batch::heads_mut`].
    /// [`Batch::heads_keeping_plain_ipv4`] and [`Batch::located_heads`] keep the mark, so a stage that uses these
    /// methods must keep every packet plain.
    ///
    /// Memory safety does not depend on the mark. If a stage breaks this rule, later stages read or write wrong header
    /// fields, but access no byte outside the head.
    ///
    /// ```
    /// # use dataplane_core::mem::{Batch, Head};
    /// # fn process(batch: &mut Batch, sources: &mut [u32; 256]) {
    /// let plain = batch.is_plain_ipv4();
    /// let collect = |(head, source): (Head<'_, 34>, &mut u32)| {
    ///     *source = u32::from_be_bytes([head.bytes[26], head.bytes[27], head.bytes[28], head.bytes[29]]);
    ///     (plain || head.meta.is_untagged_ipv4()).then_some(())
    /// };
    /// let collected = batch.located_heads().zip(sources).map_while(collect).count();
    /// # }
    /// ```
    ///
    /// [`MetaFlags`]: crate::mem::MetaFlags
    #[inline]
    pub fn is_plain_ipv4(&self) -> bool {
        self.plain
    }

    /// Marks every packet in the batch as plain IPv4. The caller must have checked the conditions of
    /// [`Batch::is_plain_ipv4`].
    #[inline]
    pub fn set_plain_ipv4(&mut self) {
        self.plain = true;
    }

    /// Returns the total length of all packets, in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        let bytes = if self.bounds_known { self.bounds.bytes } else { vector::bytes(Desc::words(self.descs())) };
        u64::from(bytes)
    }

    /// Returns whether the length of every packet is from `shortest` to `longest` bytes, inclusive.
    #[inline]
    pub fn lengths_are_within(&mut self, shortest: u16, longest: u16) -> bool {
        let bounds = self.bounds();
        bounds.shortest >= shortest.into() && bounds.longest <= longest.into()
    }

    /// Returns the bounds on all packets. Computes the bounds first if they are unknown.
    #[inline]
    pub(crate) fn bounds(&mut self) -> &Bounds {
        if !self.bounds_known {
            self.bounds = vector::bounds(Desc::words(self.descs()));
            self.bounds_known = true;
        }
        &self.bounds
    }

    /// Removes the packets from index `len` on, without freeing their slots. The caller must free or move these slots.
    #[inline]
    fn shorten(&mut self, len: usize) {
        self.len = self.len().min(len);
        self.starts_known = self.starts_known.min(len);
    }

    /// Computes `starts` for every packet whose entry is not valid yet. Later loops then reuse the result.
    #[inline]
    pub(super) fn locate(&mut self) {
        let n = self.len();
        if self.starts_known < n {
            vector::starts(&mut self.starts[..n], Desc::words(&self.descs[..n]), self.memory.layout.stride);
            self.starts_known = n;
        }
    }

    /// Updates `bounds` and `plain` for packets that are being added. `more` has the bounds of these packets, and is
    /// valid only if `known` is `true`.
    #[inline]
    fn join(&mut self, more: &Bounds, known: bool) {
        self.bounds_known &= known;
        self.plain = false;
        if self.bounds_known {
            self.bounds.join(more);
        }
    }

    /// Returns all packets as a run to send, and their receive timestamps.
    #[inline]
    pub(crate) fn run(&mut self) -> (Run<'_>, Stamps<'_>) {
        self.bounds();
        (Run::known(self.descs(), &self.bounds), self.stamps())
    }

    /// Invalidates the cached properties of the packets, because the caller borrows packets and can change or label
    /// them.
    #[inline]
    pub(super) fn borrow_packets(&mut self) {
        (self.bounds_known, self.plain) = (false, false);
        (self.maybe_labelled, self.starts_known) = (true, 0);
    }

    #[inline]
    pub(crate) fn descs(&self) -> &[Desc] {
        &self.descs[..self.len()]
    }

    #[inline]
    pub(crate) fn stamps(&self) -> Stamps<'_> {
        match self.stamp {
            Some(stamp) => Stamps::Alike(stamp),
            None => Stamps::Each(&self.stamps[..self.len()]),
        }
    }

    /// Sets the receive timestamps of `n` packets that are being added.
    #[inline]
    fn add_stamps(&mut self, stamps: Stamps<'_>, n: usize) {
        let at = self.len();
        match (stamps, self.stamp) {
            (Stamps::Alike(stamp), _) if at == 0 => return self.stamp = Some(stamp),
            (Stamps::Alike(stamp), Some(known)) if stamp == known => return,
            (_, Some(known)) => self.stamps[..at].fill(known),
            _ => {}
        }
        self.stamp = None;
        match stamps {
            Stamps::Alike(stamp) => self.stamps[at..at + n].fill(stamp),
            Stamps::Each(stamps) => self.stamps[at..at + n].copy_from_slice(stamps),
        }
    }

    /// Adds packets that were received into these slots at `offset`. Each length includes `prefix` bytes, which are not
    /// part of the packet. All slices, including the timestamps, have the same length. Returns the total length of the
    /// added packets, in bytes.
    ///
    /// Returns `None` and adds nothing if a packet is not inside a slot or the batch has no space.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        slots: &[u32],
        lengths: &[u32],
        prefix: u16,
        offset: u16,
        stamps: Stamps<'_>,
    ) -> Option<u64> {
        let layout = self.memory.layout;
        let (at, n) = (self.len(), slots.len());
        let descs = self.descs.get_mut(at..at + n).filter(|_| lengths.len() == n)?;
        let room = layout.limit().checked_sub(offset.into())?;
        let pairs = Desc::pairs_mut(descs);
        let received = ReceivedLayout { prefix: prefix.into(), offset, count: layout.count, room };
        let mut more = Bounds::NONE;
        let bounds = if at == 0 { &mut self.bounds } else { &mut more };
        if !vector::write_descs(pairs, slots, lengths, &received, bounds) {
            self.bounds_known &= at > 0;
            return None;
        }
        let bytes = bounds.bytes;
        match at {
            0 => (self.bounds_known, self.plain) = (true, false),
            _ => self.join(&more, true),
        }
        self.add_stamps(stamps, n);
        self.len = at + n;
        Some(bytes.into())
    }

    /// Adds `n` packets whose descriptors the caller has written after the last packet. `more` has the bounds of these
    /// packets. All packets get the same timestamp.
    #[inline]
    pub(super) fn add_written(&mut self, n: usize, more: &Bounds, stamp: Stamp) {
        let at = self.len();
        match at {
            0 => (self.bounds, self.bounds_known, self.plain) = (*more, true, false),
            _ => self.join(more, true),
        }
        self.add_stamps(Stamps::Alike(stamp), n);
        self.len = at + n;
    }

    /// Adds a packet. Returns `false` if the packet is not inside a slot or the batch has no space.
    pub(crate) fn push(&mut self, desc: Desc, stamp: Stamp) -> bool {
        let at = self.len();
        if at == BATCH || !self.memory.layout.admits(desc) {
            return false;
        }
        self.descs[at] = desc;
        self.add_stamps(Stamps::Alike(stamp), 1);
        (self.bounds_known, self.plain) = (false, false);
        self.len = at + 1;
        true
    }

    /// Moves all packets out of the batch `from`, which must use the same pool. This batch must have space for all
    /// these packets.
    #[inline]
    pub(crate) fn append(&mut self, from: &mut Self) {
        debug_assert!(self.memory.is(&from.memory) && self.space() >= from.len());
        let (at, n) = (self.len(), from.len().min(self.space()));
        self.descs[at..at + n].copy_from_slice(&from.descs[..n]);
        self.add_stamps(from.stamps().part(0, n), n);
        match at {
            0 => (self.bounds, self.bounds_known, self.plain) = (from.bounds, from.bounds_known, from.plain),
            _ => self.join(&from.bounds, from.bounds_known),
        }
        self.metas[at..at + n].copy_from_slice(&from.metas[..n]);
        self.len = at + n;
        self.ingress = from.ingress;
        from.bounds_known = false;
        from.shorten(0);
    }

    /// Adds the packet at `index` in the batch `from`. Returns `false` if this batch has no space. The caller must
    /// remove the packet from the batch `from` afterwards.
    #[inline]
    pub(crate) fn push_from(&mut self, from: &Self, index: usize) -> bool {
        debug_assert!(self.memory.is(&from.memory));
        let at = self.len();
        if at == BATCH || index >= BATCH {
            return false;
        }
        self.descs[at] = from.descs[index];
        self.add_stamps(Stamps::Alike(from.stamps().at(index)), 1);
        (self.bounds_known, self.plain) = (false, false);
        self.metas[at] = from.metas[index];
        self.ingress = from.ingress;
        self.len = at + 1;
        true
    }

    /// Returns whether any packet is labelled or has a copy request.
    #[inline]
    pub(crate) fn is_labelled(&mut self) -> bool {
        if self.maybe_labelled {
            let len = self.len();
            let any = |labels: &[u8]| labels.iter().fold(0, |any, label| any | label);
            const { assert!(NEXT == 0) };
            self.maybe_labelled = any(&self.labels[..len]) | any(&self.copies[..len]) != NEXT;
        }
        self.maybe_labelled
    }

    /// Returns the stage's decision for a packet.
    #[inline]
    pub(crate) fn verdict(&self, index: usize) -> Verdict {
        Verdict::from_label(self.labels[index])
    }

    /// Returns the edge (index of an output) on which the stage requested a copy of this packet.
    #[inline]
    pub(crate) fn copy_wanted(&self, index: usize) -> Option<Edge> {
        (self.copies[index] != NEXT).then(|| Edge::from_label(self.copies[index]))
    }

    /// Frees the packets for which `keep` returns `false` and closes the gaps. Returns the number of freed packets. No
    /// packet may be labelled.
    #[cold]
    pub(crate) fn retain_into(&mut self, pool: &mut Pool, keep: impl Fn(&Desc) -> bool) -> usize {
        let (before, mut kept) = (self.len(), 0);
        (self.bounds_known, self.starts_known) = (false, 0);
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
        self.shorten(kept);
        before - kept
    }

    /// Clears all labels and copy requests. Call this function after the labels are handled, and before the packets
    /// move on or are removed, because adding packets to a batch does not reset labels.
    #[inline]
    pub(crate) fn clear_labels(&mut self) {
        let len = self.len();
        self.labels[..len].fill(NEXT);
        self.copies[..len].fill(NEXT);
        self.maybe_labelled = false;
    }

    /// Removes all packets without freeing their slots. The caller then owns the slots. No packet may be labelled.
    #[inline]
    pub(crate) fn forget(&mut self) {
        debug_assert!(!self.is_labelled());
        self.bounds_known = false;
        self.shorten(0);
    }

    /// Removes the first `n` packets without freeing their slots. The caller then owns these slots. The remaining
    /// packets keep their labels.
    #[cold]
    pub(crate) fn forget_first(&mut self, n: usize) {
        let len = self.len();
        let n = n.min(len);
        self.descs.copy_within(n..len, 0);
        self.stamps.copy_within(n..len, 0);
        self.metas.copy_within(n..len, 0);
        for labels in [&mut self.labels, &mut self.copies] {
            labels.copy_within(n..len, 0);
            labels[len - n..len].fill(NEXT);
        }
        (self.bounds_known, self.starts_known) = (false, 0);
        self.shorten(len - n);
    }

    /// Moves the packet at index `from` to index `to`, which is at most `from`. If the indices differ, the caller must
    /// first free or move the packet at `to`.
    #[cold]
    pub(crate) fn move_within(&mut self, from: usize, to: usize) {
        self.descs[to] = self.descs[from];
        self.stamps[to] = self.stamps[from];
        self.metas[to] = self.metas[from];
        (self.bounds_known, self.starts_known) = (false, 0);
    }

    /// Removes the packets from index `len` on, without freeing their slots. The caller must free or move these slots.
    #[cold]
    pub(crate) fn forget_from(&mut self, len: usize) {
        self.bounds_known = false;
        self.shorten(len);
    }

    /// Sets the egress port in a packet's metadata.
    #[cold]
    pub(crate) fn set_egress(&mut self, index: usize, port: u8) {
        self.metas[index].egress = port;
    }

    /// Returns the egress port in a packet's metadata.
    #[inline]
    pub(crate) fn egress(&self, index: usize) -> u8 {
        self.metas[index].egress
    }

    /// Returns the egress port that all packets share, or `None` if the ports differ or the batch is empty.
    #[inline]
    pub(crate) fn common_egress(&self) -> Option<u8> {
        let metas = &self.metas[..self.len()];
        let first = metas.first()?.egress;
        let is_first = |meta: &Meta| meta.egress == first;
        let (eights, rest) = metas.as_chunks::<8>();
        (eights.iter().all(|eight| eight.iter().all(is_first)) && rest.iter().all(is_first)).then_some(first)
    }

    /// Returns the slot of one packet to the pool. The caller must remove the packet from the batch.
    #[inline]
    pub(crate) fn free_one(&self, index: usize, pool: &mut Pool) {
        debug_assert!(self.memory.is(pool.memory()));
        pool.put(&[self.descs[index].slot], SlotState::Batched);
    }

    /// Returns the slots of the packets from `index` on to the pool. The caller must remove these packets from the
    /// batch.
    #[inline]
    pub(crate) fn free_from(&self, index: usize, pool: &mut Pool) {
        for at in index..self.len() {
            self.free_one(at, pool);
        }
    }

    /// Returns the slots of the packets from index `len` on to the pool, and removes those packets.
    #[cold]
    pub(crate) fn truncate(&mut self, len: usize, pool: &mut Pool) {
        self.free_from(len, pool);
        self.shorten(len);
        self.bounds_known = false;
    }

    /// Returns all slots to their pool.
    ///
    /// # Panics
    /// Panics if the packets belong to another pool.
    #[inline]
    pub fn free_into(&mut self, pool: &mut Pool) {
        self.check_pool(pool);
        if self.maybe_labelled {
            self.clear_labels();
        }
        pool.put_descs(self.descs(), SlotState::Batched);
        self.bounds_known = false;
        self.shorten(0);
    }
}

#[cfg(test)]
mod tests;
