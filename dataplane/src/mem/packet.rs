//! One packet, borrowed from a batch.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use bitflags::bitflags;

use crate::clock::Stamp;
use crate::mem::pool::SlotMemory;
use crate::mem::{BATCH, Batch, Desc, GUARD, Reason};

/// Labels: what a stage decided for a packet, one byte each.
pub(super) const NEXT: u8 = 0;
pub(super) const HELD: u8 = 126;
pub(super) const CONSUMED: u8 = 127;
pub(super) const DROPPED: u8 = 128;

/// An output of a stage: an index into what its `Stage::outputs` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge(u8);

impl Edge {
    /// The most outputs that a stage may have.
    pub const MOST: usize = 32;

    /// The output with this index.
    ///
    /// # Panics
    /// The index is [`Edge::MOST`] or more; in a constant this is an error of compilation.
    pub const fn new(index: u8) -> Self {
        assert!((index as usize) < Self::MOST, "a stage has at most 32 outputs");
        Self(index)
    }

    /// The index of the output.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub(super) const fn label(self) -> u8 {
        self.0 + 1
    }

    #[inline]
    pub(super) const fn from_label(label: u8) -> Self {
        Self((label - 1) % Self::MOST as u8)
    }
}

bitflags! {
    /// What `parse` found in a packet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MetaFlags: u8 {
        /// An IPv4 header at `l3`.
        const IPV4 = 1;
        /// An IPv6 header at `l3`.
        const IPV6 = 1 << 1;
        /// An ARP packet at `l3`.
        const ARP = 1 << 2;
        /// A fragment, the first included.
        const FRAGMENT = 1 << 3;
        /// The first fragment of several.
        const FIRST_FRAGMENT = 1 << 4;
        /// The whole header of TCP, UDP, ICMP or ICMPv6 is at `l4`.
        const L4 = 1 << 5;
        /// One VLAN tag or more.
        const VLAN = 1 << 6;
        /// Two VLAN tags.
        const QINQ = 1 << 7;
    }
}

/// The colour that a meter gave a packet (RFC 2697, RFC 2698).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Colour {
    /// Within the committed rate.
    #[default]
    Green,
    /// Above the committed rate, within the excess.
    Yellow,
    /// Above both.
    Red,
}

/// What the stages know of a packet. A field means something only after a stage that sets it: see `Facts`, by which the
/// graph is checked.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Meta {
    /// From the start of the packet to its network header, in bytes.
    pub l3: u16,
    /// From the start of the packet to its transport header, in bytes; 0: none was found.
    pub l4: u16,
    /// The EtherType after all VLAN tags.
    pub ether_type: u16,
    /// The tag control information of the outer VLAN tag, if [`MetaFlags::VLAN`].
    pub vlan: u16,
    /// From the start of the packet to the end of the datagram, in bytes: what follows is padding.
    pub end: u16,
    /// What was found.
    pub flags: MetaFlags,
    /// The IP protocol after all extension headers.
    pub protocol: u8,
    /// The port to send it on, as an index.
    pub egress: u8,
    /// What a meter said.
    pub colour: Colour,
    /// Room for stages of an app.
    pub user: u16,
    /// The next hop: a number from `Setup::next_hop`; 0: the destination itself.
    pub next_hop: u32,
    /// A hash of addresses and ports, equal for all packets of a flow.
    pub flow_hash: u32,
}

/// Whether a packet has waited in the stage that it is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It comes for the first time.
    #[default]
    Fresh,
    /// The stage has held it.
    Held,
    /// The stage has held it as long as it may.
    Overdue,
}

/// One packet of a batch.
///
/// Its bytes are `data()`. `headroom()` bytes before and `tailroom()` bytes after can be claimed with `prepend` and
/// `append`. A packet that is not labelled goes on to the next stage.
#[derive(Debug)]
pub struct Packet<'b> {
    /// The batch, and an index below its length that no other packet has: what this one is made of is nobody else's while
    /// it lives. Of the rest of the batch it only reads, and nobody writes that meanwhile.
    batch: NonNull<Batch>,
    index: usize,
    life: PhantomData<&'b mut Batch>,
}

/// The entry of an array of a batch at an index.
///
/// # Safety
/// The array is there, and the index below [`BATCH`].
#[inline(always)]
unsafe fn entry<T>(array: *mut [T; BATCH], index: usize) -> *mut T {
    // SAFETY: so says the caller.
    unsafe { array.cast::<T>().add(index) }
}

impl<'b> Packet<'b> {
    /// The packet at an index below the batch's length.
    #[inline]
    pub(super) fn at(batch: &'b mut Batch, index: usize) -> Self {
        assert!(index < batch.len());
        batch.borrow_packets();
        Self { batch: NonNull::from(batch), index, life: PhantomData }
    }

    #[inline]
    fn memory(&self) -> &SlotMemory {
        // SAFETY: the batch lives as long as `life` says, and no packet writes what this is.
        unsafe { &(*self.batch.as_ptr()).memory }
    }

    #[inline]
    fn desc(&self) -> Desc {
        // SAFETY: in bounds, and this packet's own.
        unsafe { *entry(&raw mut (*self.batch.as_ptr()).descs, self.index) }
    }

    #[inline]
    fn desc_mut(&mut self) -> &mut Desc {
        // SAFETY: in bounds, and this packet's own, which `&mut self` borrows alone.
        unsafe { &mut *entry(&raw mut (*self.batch.as_ptr()).descs, self.index) }
    }

    #[inline]
    fn set_label(&mut self, label: u8) {
        // SAFETY: in bounds, and this packet's own.
        unsafe { *entry(&raw mut (*self.batch.as_ptr()).labels, self.index) = label }
    }

    /// The first byte of the packet.
    #[inline]
    fn start(&self) -> NonNull<u8> {
        let desc = self.desc();
        // SAFETY: the descriptor lies in its slot (`SlotLayout::admits` when it entered the batch, and every change of
        // it below keeps that), hence in one allocation.
        unsafe { self.memory().slot(desc.slot).add(usize::from(desc.offset)) }
    }

    /// Bytes of the packet.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "an empty packet is one of length 0, nothing special")]
    pub fn len(&self) -> usize {
        usize::from(self.desc().len)
    }

    /// The bytes.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the descriptor lies in its slot as in `start`, slots of a batch are distinct and owned by it, and the
        // memory was zeroed by the kernel, so it is initialised. The borrow of the packet bounds the borrow of the bytes.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// The bytes, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`; `&mut self` makes it the only borrow.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    /// Where the packet may end in its slot.
    #[inline]
    fn limit(&self) -> usize {
        self.memory().layout.limit() as usize
    }

    /// Free bytes before the packet.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.desc().offset)
    }

    /// Free bytes after the packet.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.limit() - usize::from(self.desc().offset) - self.len()
    }

    /// Puts `bytes` in front, and moves what the metadata says of offsets. Returns the new front, to be written whole;
    /// `None`: there is no such headroom, and nothing has changed.
    #[inline]
    pub fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let by = u16::try_from(bytes).ok().filter(|by| *by <= self.desc().offset)?;
        let len = self.desc().len.checked_add(by)?;
        let desc = self.desc_mut();
        (desc.offset, desc.len) = (desc.offset - by, len);
        self.shift_meta(i32::from(by));
        self.data_mut().get_mut(..bytes)
    }

    /// Cuts `bytes` off the front. `false`: it has not so many, and nothing has changed.
    #[inline]
    pub fn trim_front(&mut self, bytes: usize) -> bool {
        let Some(by) = u16::try_from(bytes).ok().filter(|by| *by <= self.desc().len) else { return false };
        let desc = self.desc_mut();
        (desc.offset, desc.len) = (desc.offset + by, desc.len - by);
        self.shift_meta(-i32::from(by));
        true
    }

    /// Cuts the packet to its first `len` bytes, if it has more.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let len = self.len().min(len) as u16;
        self.desc_mut().len = len;
        let meta = self.meta_mut();
        meta.end = meta.end.min(len);
    }

    /// Adds `bytes` at the end. Returns them, to be written whole; `None`: there is no such tailroom.
    #[inline]
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.tailroom() {
            return None;
        }
        let len = self.len();
        // It fits: the sum is at most the slot's size, which is below 64 KiB.
        self.desc_mut().len = (len + bytes) as u16;
        self.data_mut().get_mut(len..)
    }

    /// The front moved by `by` bytes: offsets follow. Those cut away become 0.
    #[inline]
    fn shift_meta(&mut self, by: i32) {
        let shift = |offset: u16| u16::try_from(i32::from(offset) + by).unwrap_or(0);
        let meta = self.meta_mut();
        meta.l3 = shift(meta.l3);
        meta.l4 = if meta.l4 == 0 { 0 } else { shift(meta.l4) };
        meta.end = shift(meta.end);
    }

    /// The first 12 bytes of its slot's rest: of a shorter packet some are not its own.
    #[inline]
    fn front(&mut self) -> &mut [u8; 12] {
        const { assert!(GUARD >= 12) };
        // SAFETY: a packet ends GUARD bytes before the end of its slot at the latest, so 12 bytes from its start are in
        // the slot whatever its length; the rest as in `data_mut`.
        unsafe { self.start().cast().as_mut() }
    }

    /// The destination and the source address of the Ethernet header. Of a frame shorter than 12 bytes the missing ones
    /// are zeros that the packet does not contain.
    #[inline]
    pub fn ethernet_addresses_mut(&mut self) -> (&mut [u8; 6], &mut [u8; 6]) {
        let len = self.len();
        let front = self.front();
        if len < 12 {
            front[len..].fill(0);
        }
        let (destination, source) = front.split_at_mut(6);
        (destination.try_into().expect("half of 12 bytes is 6"), source.try_into().expect("half of 12 bytes is 6"))
    }

    /// Writes the destination and the source address of the Ethernet header, one behind the other. A frame shorter than 12
    /// bytes gets as many as it has.
    #[inline]
    pub fn set_ethernet_addresses(&mut self, both: [u8; 12]) {
        *self.front() = both;
    }

    /// What the stages before have found.
    #[inline]
    pub fn meta(&self) -> &Meta {
        // SAFETY: in bounds, and this packet's own.
        unsafe { &*entry(&raw mut (*self.batch.as_ptr()).metas, self.index) }
    }

    /// The same, to write.
    #[inline]
    pub fn meta_mut(&mut self) -> &mut Meta {
        // SAFETY: in bounds, and this packet's own, which `&mut self` borrows alone.
        unsafe { &mut *entry(&raw mut (*self.batch.as_ptr()).metas, self.index) }
    }

    /// When it was received, and by which clock (`Ctx::nanos` is the time since the run began).
    #[inline]
    pub fn stamp(&self) -> Stamp {
        let batch = self.batch.as_ptr();
        // SAFETY: the batch lives as long as `life` says, no packet writes its stamps, and the index is in bounds.
        unsafe { (*batch).stamp.unwrap_or_else(|| *entry(&raw mut (*batch).stamps, self.index)) }
    }

    /// The port that it was received on, as an index.
    #[inline]
    pub fn ingress(&self) -> u8 {
        // SAFETY: as for `memory`.
        unsafe { (*self.batch.as_ptr()).ingress }
    }

    /// Sends it out by an output.
    #[inline]
    pub fn steer(&mut self, edge: Edge) {
        self.set_label(edge.label());
    }

    /// Drops it.
    #[inline]
    pub fn drop(&mut self, reason: Reason) {
        self.set_label(DROPPED + reason.code());
    }

    /// Ends it here: the stage has taken what it needs. The ledger counts it as consumed.
    #[inline]
    pub fn consume(&mut self) {
        self.set_label(CONSUMED);
    }

    /// Lets it wait in the stage, which says by `Stage::holds` that it does so: it comes again at a later look at slow
    /// things, among packets of its port. Where no more can wait it is dropped as `queue_full`.
    #[inline]
    pub fn hold(&mut self) {
        self.set_label(HELD);
    }

    /// Whether it has waited in this stage.
    #[inline]
    pub fn wait(&self) -> Wait {
        // SAFETY: as for `memory`.
        unsafe { (*self.batch.as_ptr()).wait }
    }

    /// Asks for a copy of it, as it is when the stage is done with the batch, on an output. At most one a stage.
    #[inline]
    pub fn copy_to(&mut self, edge: Edge) {
        // SAFETY: in bounds, and this packet's own.
        unsafe { *entry(&raw mut (*self.batch.as_ptr()).copies, self.index) = edge.label() }
    }
}

/// The packets of a batch, in order.
#[derive(Debug)]
pub struct Packets<'b> {
    batch: NonNull<Batch>,
    next: usize,
    end: usize,
    life: PhantomData<&'b mut Batch>,
}

impl<'b> Packets<'b> {
    /// Those from an index on.
    #[inline]
    pub(super) fn from(batch: &'b mut Batch, index: usize) -> Self {
        let end = batch.len();
        if index < end {
            batch.borrow_packets();
        }
        Self { next: index.min(end), end, batch: NonNull::from(batch), life: PhantomData }
    }
}

impl<'b> Iterator for Packets<'b> {
    type Item = Packet<'b>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'b>> {
        let index = self.next;
        // Below the batch's length, and each once.
        (index < self.end).then(|| {
            self.next += 1;
            Packet { batch: self.batch, index, life: PhantomData }
        })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Packets<'_> {}
