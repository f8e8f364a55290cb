//! A batch: the descriptors of up to 256 packets, and what is known of each.

use crate::clock::Stamp;
use crate::mem::packet::{CONSUMED, DROPPED, HELD, NEXT, Wait};
use crate::mem::pool::{SlotMemory, SlotState};
use crate::mem::run::{Run, Stamps};
use crate::mem::vector::{self, Extent, Received, Word};
use crate::mem::{Edge, Heads, Meta, Packet, Packets, Pool, Reason};

/// The most packets in a batch.
pub const BATCH: usize = 256;

/// Where a packet's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Desc {
    /// The slot.
    pub slot: u32,
    /// From the start of the slot to the first byte of the packet.
    pub offset: u16,
    /// Bytes of the packet.
    pub len: u16,
}

impl Desc {
    /// Descriptors as words. In this form a loop over them is vectorised well.
    #[inline]
    pub(crate) fn words(descs: &[Self]) -> &[Word] {
        const { assert!(size_of::<Self>() == 8 && align_of::<Self>() >= align_of::<Word>()) };
        // SAFETY: of the same size, as just seen, hence without padding, and aligned; every bit pattern is a word.
        unsafe { std::slice::from_raw_parts(descs.as_ptr().cast(), descs.len()) }
    }

    /// The same in halves, to be written: the slot, and the place in it.
    #[inline]
    pub(crate) fn pairs_mut(descs: &mut [Self]) -> &mut [[u32; 2]] {
        const { assert!(align_of::<Self>() >= align_of::<[u32; 2]>()) };
        // SAFETY: as for `words`; and the other way, every two words of 32 bits are a descriptor.
        unsafe { std::slice::from_raw_parts_mut(descs.as_mut_ptr().cast(), descs.len()) }
    }

    /// The second half. Of the length, the low 16 bits count.
    #[inline]
    pub(crate) const fn place(offset: u16, len: u32) -> u32 {
        match cfg!(target_endian = "little") {
            true => offset as u32 | len << 16,
            false => (offset as u32) << 16 | len & 0xffff,
        }
    }

    /// The slot, the offset and the length in a word.
    #[inline]
    pub(crate) const fn of_word(word: Word) -> (u32, u32, u32) {
        let (low, high) = (word as u32, (word >> 32) as u32);
        if cfg!(target_endian = "little") { (low, high & 0xffff, high >> 16) } else { (high, low >> 16, low & 0xffff) }
    }
}

/// Up to [`BATCH`] packets on their way through the graph.
///
/// Each packet is a slot that this batch alone owns. There is no public way to make one: the worker does, and
/// [`crate::testing`].
#[derive(Debug)]
pub struct Batch {
    pub(super) memory: SlotMemory,
    /// At most [`BATCH`]. What is beyond in the arrays means nothing, but labels there are always `NEXT`.
    len: usize,
    /// The port that the packets were received on: all of those that are in the graph at one time came by one.
    pub(super) ingress: u8,
    /// Whether they have waited in the stage that they are in.
    pub(super) wait: Wait,
    /// What is so of all packets, if that is known: some may have changed since.
    extent: Extent,
    known: bool,
    /// Whether all packets are as [`Batch::is_plain`] says; if not, some may be.
    plain: bool,
    /// The stamp that all packets have, and then `stamps` means nothing; `None`: each has its own.
    pub(super) stamp: Option<Stamp>,
    /// Whether a packet may have been labelled, or a copy of it asked for.
    touched: bool,
    /// Slots for the packets that a stage makes.
    spares: Vec<u32>,
    /// Of how many packets `starts` says where they start, no more than there are: who changes a descriptor says 0.
    located: usize,
    pub(super) descs: [Desc; BATCH],
    /// In bytes from the start of the first slot.
    pub(super) starts: [usize; BATCH],
    pub(super) stamps: [Stamp; BATCH],
    pub(super) metas: [Meta; BATCH],
    pub(super) labels: [u8; BATCH],
    pub(super) copies: [u8; BATCH],
}

impl Batch {
    pub(crate) fn new(pool: &Pool) -> Box<Self> {
        Box::new(Self {
            memory: pool.memory().clone(),
            len: 0,
            ingress: 0,
            wait: Wait::Fresh,
            extent: Extent::NONE,
            known: false,
            plain: false,
            stamp: None,
            touched: false,
            spares: Vec::with_capacity(BATCH),
            located: 0,
            descs: [Desc::default(); BATCH],
            starts: [0; BATCH],
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

    /// Says which port the packets were received on: those that a stage makes of nothing count as received on it.
    #[inline]
    pub fn set_ingress(&mut self, port: u8) {
        self.ingress = port;
    }

    /// Whether the packets have waited.
    #[inline]
    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    /// The port that the packets were received on.
    #[inline]
    pub(crate) fn ingress(&self) -> u8 {
        self.ingress
    }

    /// Says whether the packets have waited.
    #[inline]
    pub(crate) fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// Takes so many slots from which a stage may make packets, as far as there are slots and as they fit.
    pub(crate) fn stock(&mut self, wanted: usize, pool: &mut Pool) {
        // There are none, and there is room for as many as fit into a batch: nothing is allocated.
        let wanted = wanted.min(self.space());
        self.spares.extend_from_slice(pool.take(wanted, SlotState::Batched));
    }

    /// Gives back what the stage did not need.
    pub(crate) fn unstock(&mut self, pool: &mut Pool) {
        pool.put(&self.spares, SlotState::Batched);
        self.spares.clear();
    }

    /// Makes a packet behind all others, of two parts of one that is there: bytes from its start. It is known of it what is
    /// known of that one. `None`: there is no such packet or part, no slot for it, or it is longer than a slot. A stage that
    /// makes packets says so by `Stage::makes`.
    pub fn make_from(&mut self, index: usize, parts: [std::ops::Range<usize>; 2]) -> Option<Packet<'_>> {
        let (from, at, layout) = (*self.descs().get(index)?, self.len(), self.memory.layout);
        let within = |part: &std::ops::Range<usize>| part.start <= part.end && part.end <= usize::from(from.len);
        let len = parts.iter().map(std::iter::ExactSizeIterator::len).sum::<usize>();
        if at == BATCH || !parts.iter().all(within) || len > layout.room() as usize {
            return None;
        }
        let slot = self.spares.pop()?;
        self.push(Desc { slot, offset: layout.headroom, len: len as u16 }, self.stamps().at(index));
        self.metas[at] = self.metas[index];
        let mut to = usize::from(layout.headroom);
        for part in parts {
            // SAFETY: both slots are owned by this batch and are not the same; the part lies in the packet that it is of,
            // which lies in its slot, and all parts together fit behind the headroom of the other.
            unsafe {
                let source = self.memory.slot(from.slot).add(usize::from(from.offset) + part.start);
                self.memory.slot(slot).add(to).copy_from_nonoverlapping(source, part.len());
            }
            to += part.len();
        }
        Some(Packet::at(self, at))
    }

    /// Makes a packet of these bytes behind all others, of which nothing is known yet. `None`: there is no slot for it, or it
    /// is longer than a slot. A stage that makes packets says so by `Stage::makes` or `Stage::emits`.
    pub fn make(&mut self, bytes: &[u8]) -> Option<Packet<'_>> {
        let (at, layout) = (self.len(), self.memory.layout);
        if at == BATCH || bytes.len() > layout.room() as usize {
            return None;
        }
        let slot = self.spares.pop()?;
        self.push(Desc { slot, offset: layout.headroom, len: bytes.len() as u16 }, Stamp::NONE);
        self.metas[at] = Meta::default();
        let mut packet = Packet::at(self, at);
        packet.data_mut().copy_from_slice(bytes);
        Some(packet)
    }

    /// How many more would fit.
    #[inline]
    pub(crate) fn space(&self) -> usize {
        BATCH - self.len()
    }

    /// The packets, in order.
    #[inline]
    pub fn iter_mut(&mut self) -> Packets<'_> {
        Packets::from(self, 0)
    }

    /// The first `N` bytes of every packet, with what is known of it; of no packet where one is shorter. A loop over them costs
    /// less than one over [`Batch::iter_mut`], as it cannot label packets: a stage goes over the packets that are as usual in
    /// this way, up to the first that is not, and on from there in the other.
    ///
    /// ```
    /// # use dataplane::mem::Batch;
    /// # fn process(batch: &mut Batch) {
    /// let usual = batch.heads_mut::<14>().take_while(|head| head.bytes[12..] == [8, 0]).count();
    /// for packet in batch.iter_mut_from(usual) {
    ///     // One that is not of IPv4, or comes behind one that is not.
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn heads_mut<const N: usize>(&mut self) -> Heads<'_, N> {
        self.plain = false;
        Heads::new(self)
    }

    /// The same, for a stage that does not change what [`Batch::is_plain`] is about.
    #[inline]
    pub(crate) fn heads_keeping_plain<const N: usize>(&mut self) -> Heads<'_, N> {
        Heads::new(self)
    }

    /// The same again, for a stage that mostly is one of several which do so one after another: where packets start is written
    /// down by the first.
    #[inline]
    pub(crate) fn located_heads<const N: usize>(&mut self) -> Heads<'_, N, true> {
        Heads::new(self)
    }

    /// Whether `parse` has found every packet to be of IPv4 without a tag, options or a fragment, and nobody may have changed one
    /// since: the header is behind that of Ethernet, and the metadata say so. A loop over many need not ask each of them.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Says that it has.
    #[inline]
    pub(crate) fn set_plain(&mut self) {
        self.plain = true;
    }

    /// The packets from an index on, in order.
    #[inline]
    pub fn iter_mut_from(&mut self, index: usize) -> Packets<'_> {
        Packets::from(self, index)
    }

    /// One packet.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<Packet<'_>> {
        (index < self.len()).then(|| Packet::at(self, index))
    }

    /// All bytes of all packets.
    #[inline]
    pub fn bytes(&self) -> u64 {
        let bytes = if self.known { self.extent.bytes } else { vector::bytes(Desc::words(self.descs())) };
        u64::from(bytes)
    }

    /// Whether every packet has at least `shortest` and at most `longest` bytes.
    #[inline]
    pub fn lengths_are_within(&mut self, shortest: u16, longest: u16) -> bool {
        let extent = self.extent();
        extent.shortest >= shortest.into() && extent.longest <= longest.into()
    }

    /// What is so of all packets.
    #[inline]
    pub(crate) fn extent(&mut self) -> &Extent {
        if !self.known {
            self.extent = vector::extent(Desc::words(self.descs()));
            self.known = true;
        }
        &self.extent
    }

    /// Forgets the packets from an index on.
    #[inline]
    fn shorten(&mut self, len: usize) {
        self.len = self.len().min(len);
        self.located = self.located.min(len);
    }

    /// Sees to it that `starts` is right of every packet. Loops over them one after another need not each go by the descriptors.
    #[inline]
    pub(super) fn locate(&mut self) {
        let n = self.len();
        if self.located < n {
            vector::starts(&mut self.starts[..n], Desc::words(&self.descs[..n]), self.memory.layout.stride);
            self.located = n;
        }
    }

    /// What is so of all packets is so of others too, which are added.
    #[inline]
    fn join(&mut self, more: &Extent, known: bool) {
        self.known &= known;
        self.plain = false;
        if self.known {
            self.extent.join(more);
        }
    }

    /// All packets, to be sent, and their stamps.
    #[inline]
    pub(crate) fn run(&mut self) -> (Run<'_>, Stamps<'_>) {
        self.extent();
        (Run::known(self.descs(), &self.extent), self.stamps())
    }

    /// Packets are borrowed: what is known of all of them, and that they have no labels, may not be so behind that.
    #[inline]
    pub(super) fn borrow_packets(&mut self) {
        (self.known, self.plain) = (false, false);
        (self.touched, self.located) = (true, 0);
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

    /// Sets the stamps of so many packets behind all others.
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

    /// Adds packets that were received into these slots, at `offset`, with so many bytes each, less `prefix`. All slices
    /// are of one length, and so are the stamps. Returns their bytes.
    ///
    /// `None`: one of them does not lie in a slot, or there is no space; nothing was added.
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
        let received = Received { prefix: prefix.into(), offset, count: layout.count, room };
        let mut more = Extent::NONE;
        let extent = if at == 0 { &mut self.extent } else { &mut more };
        if !vector::write_descs(pairs, slots, lengths, &received, extent) {
            self.known &= at > 0;
            return None;
        }
        let bytes = extent.bytes;
        match at {
            0 => (self.known, self.plain) = (true, false),
            _ => self.join(&more, true),
        }
        self.add_stamps(stamps, n);
        self.len = at + n;
        Some(bytes.into())
    }

    /// Adds a packet. `false`: it does not lie in a slot, or there is no space.
    pub(crate) fn push(&mut self, desc: Desc, stamp: Stamp) -> bool {
        let at = self.len();
        if at == BATCH || !self.memory.layout.admits(desc) {
            return false;
        }
        self.descs[at] = desc;
        self.add_stamps(Stamps::Alike(stamp), 1);
        (self.known, self.plain) = (false, false);
        self.len = at + 1;
        true
    }

    /// Takes everything from `from`, which must be of the same pool and fit.
    #[inline]
    pub(crate) fn append(&mut self, from: &mut Self) {
        debug_assert!(self.memory.is(&from.memory) && self.space() >= from.len());
        let (at, n) = (self.len(), from.len().min(self.space()));
        self.descs[at..at + n].copy_from_slice(&from.descs[..n]);
        self.add_stamps(from.stamps().part(0, n), n);
        match at {
            0 => (self.extent, self.known, self.plain) = (from.extent, from.known, from.plain),
            _ => self.join(&from.extent, from.known),
        }
        self.metas[at..at + n].copy_from_slice(&from.metas[..n]);
        self.len = at + n;
        self.ingress = from.ingress;
        from.known = false;
        from.shorten(0);
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
        self.add_stamps(Stamps::Alike(from.stamps().at(index)), 1);
        (self.known, self.plain) = (false, false);
        self.metas[at] = from.metas[index];
        self.ingress = from.ingress;
        self.len = at + 1;
        true
    }

    /// Adds a copy of a packet of `from` in a fresh slot. `false`: there was no slot, or no space.
    #[inline]
    pub(crate) fn push_copy(&mut self, from: &mut Self, index: usize, pool: &mut Pool) -> bool {
        if self.space() == 0 || index >= from.len() {
            return false;
        }
        let Some(slot) = pool.take_one(SlotState::Batched) else { return false };
        self.push_from(from, index);
        let at = self.len() - 1;
        self.descs[at].slot = slot;
        Packet::at(self, at).data_mut().copy_from_slice(Packet::at(from, index).data());
        true
    }

    /// Adds a packet with these bytes in a fresh slot. `false`: no slot, no space, or longer than a slot.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], stamp: Stamp, pool: &mut Pool) -> bool {
        let layout = self.memory.layout;
        let Ok(len) = u16::try_from(bytes.len()) else { return false };
        if self.space() == 0 || u32::from(len) > layout.room() {
            return false;
        }
        let Some(slot) = pool.take_one(SlotState::Batched) else { return false };
        let at = self.len();
        self.push(Desc { slot, offset: layout.headroom, len }, stamp);
        self.metas[at] = Meta::default();
        Packet::at(self, at).data_mut().copy_from_slice(bytes);
        true
    }

    /// Whether any packet was labelled, or a copy of it asked for.
    #[inline]
    pub(crate) fn is_labelled(&mut self) -> bool {
        if self.touched {
            let len = self.len();
            let any = |labels: &[u8]| labels.iter().fold(0, |any, label| any | label);
            const { assert!(NEXT == 0) };
            self.touched = any(&self.labels[..len]) | any(&self.copies[..len]) != NEXT;
        }
        self.touched
    }

    /// Where a packet is to go.
    #[inline]
    pub(crate) fn fate(&self, index: usize) -> Fate {
        match self.labels[index] {
            NEXT => Fate::Next,
            CONSUMED => Fate::Consumed,
            HELD => Fate::Held,
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
        (self.known, self.located) = (false, 0);
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

    /// Forgets the labels. Whoever has looked at them does this before the packets go on or are forgotten: a batch is
    /// filled without touching them.
    #[inline]
    pub(crate) fn clear_labels(&mut self) {
        let len = self.len();
        self.labels[..len].fill(NEXT);
        self.copies[..len].fill(NEXT);
        self.touched = false;
    }

    /// Forgets all packets, which have no labels: their slots are the caller's now.
    #[inline]
    pub(crate) fn forget(&mut self) {
        debug_assert!(!self.is_labelled());
        self.known = false;
        self.shorten(0);
    }

    /// The port that a packet names.
    #[inline]
    pub(crate) fn egress(&self, index: usize) -> u8 {
        self.metas[index].egress
    }

    /// The port that all packets name; `None`: they name several, or there are none.
    #[inline]
    pub(crate) fn common_egress(&self) -> Option<u8> {
        let metas = &self.metas[..self.len()];
        let first = metas.first()?.egress;
        let is_first = |meta: &Meta| meta.egress == first;
        let (eights, rest) = metas.as_chunks::<8>();
        (eights.iter().all(|eight| eight.iter().all(is_first)) && rest.iter().all(is_first)).then_some(first)
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

    /// Gives the slots of the packets from an index on back, and forgets those packets.
    #[cold]
    pub(crate) fn truncate(&mut self, len: usize, pool: &mut Pool) {
        self.free_from(len, pool);
        self.shorten(len);
        self.known = false;
    }

    /// Gives all slots back, of packets without labels, to the pool that they came from.
    #[inline]
    pub(crate) fn free_into(&mut self, pool: &mut Pool) {
        debug_assert!(self.memory.is(pool.memory()) && !self.is_labelled());
        pool.put_descs(self.descs(), SlotState::Batched);
        self.known = false;
        self.shorten(0);
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
    /// It waits in the stage.
    Held,
}

#[cfg(test)]
mod tests;
