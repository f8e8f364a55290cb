//! One packet, borrowed from a batch.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use crate::clock::Stamp;
use crate::mem::Reason;
use crate::mem::batch::{BATCH, Batch};
use crate::mem::desc::Desc;
use crate::mem::label::{CONSUMED, DROPPED, Edge, HELD, HoldState};
use crate::mem::meta::Meta;
use crate::mem::pool::{GUARD, SlotMemory};

impl Batch {
    /// Returns an iterator over the packets, in order.
    #[inline]
    pub fn iter_mut(&mut self) -> Packets<'_> {
        Packets::from(self, 0)
    }

    /// Returns an iterator over the packets from `index` on, in order.
    #[inline]
    pub fn iter_mut_from(&mut self, index: usize) -> Packets<'_> {
        Packets::from(self, index)
    }

    /// Returns the bytes and the receive timestamp of each packet, in order. Unlike [`Batch::iter_mut`], this method
    /// keeps the cached properties of the packets, because the caller cannot change the packets.
    #[inline]
    pub fn contents(&self) -> impl ExactSizeIterator<Item = (&[u8], Stamp)> {
        let stamps = self.stamps();
        self.descs().iter().enumerate().map(move |(index, desc)| {
            // SAFETY: the slot exists, and the bytes that the descriptor describes are inside the slot, as in
            // `Packet::start`. Only the batch owns the slot, and the shared borrow of the batch excludes packets and
            // heads, so no code writes the bytes. The kernel zeroed the memory, so the bytes are initialised.
            let bytes = unsafe {
                let start = self.memory.slot(desc.slot).add(usize::from(desc.offset));
                slice::from_raw_parts(start.as_ptr(), usize::from(desc.len))
            };
            (bytes, stamps.at(index))
        })
    }

    /// Returns the packet at `index`, if there is one.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<Packet<'_>> {
        (index < self.len()).then(|| Packet::at(self, index))
    }
}

/// One packet of a batch.
///
/// `data()` returns the bytes of the packet. `prepend` adds up to `headroom()` bytes before the data, and `append` adds
/// up to `tailroom()` bytes after the data. The methods `steer`, `drop`, `consume` and `hold` label the packet with a
/// decision of the stage. A packet without a label goes to the next stage.
#[derive(Debug)]
pub struct Packet<'b> {
    /// The batch. `index` is below the length of the batch, and no other live packet has the same index. This packet
    /// has exclusive access to its slot and to its entries in the arrays of the batch. The packet only reads the
    /// remaining fields of the batch. No code writes these fields while the packet lives.
    batch: NonNull<Batch>,
    index: usize,
    life: PhantomData<&'b mut Batch>,
}

/// Returns a pointer to the entry of a batch array at `index`.
///
/// # Safety
/// `array` must be valid, and `index` must be below [`BATCH`].
#[inline(always)]
unsafe fn entry<T>(array: *mut [T; BATCH], index: usize) -> *mut T {
    // SAFETY: the caller guarantees that the array is valid and the index is in bounds.
    unsafe { array.cast::<T>().add(index) }
}

impl<'b> Packet<'b> {
    /// Returns the packet at `index`, which must be below the length of the batch.
    #[inline]
    pub(super) fn at(batch: &'b mut Batch, index: usize) -> Self {
        assert!(index < batch.len());
        batch.borrow_packets();
        Self { batch: NonNull::from(batch), index, life: PhantomData }
    }

    #[inline]
    pub(super) fn memory(&self) -> &SlotMemory {
        // SAFETY: the batch lives as long as `life`, and no packet writes this field.
        unsafe { &(*self.batch.as_ptr()).memory }
    }

    #[inline]
    fn desc(&self) -> Desc {
        // SAFETY: the index is in bounds, and the entry belongs to this packet.
        unsafe { *entry(&raw mut (*self.batch.as_ptr()).descs, self.index) }
    }

    #[inline]
    fn desc_mut(&mut self) -> &mut Desc {
        // SAFETY: the index is in bounds, and the entry belongs to this packet. `&mut self` makes the borrow exclusive.
        unsafe { &mut *entry(&raw mut (*self.batch.as_ptr()).descs, self.index) }
    }

    #[inline]
    fn set_label(&mut self, label: u8) {
        // SAFETY: the index is in bounds, and the entry belongs to this packet.
        unsafe { *entry(&raw mut (*self.batch.as_ptr()).labels, self.index) = label }
    }

    /// Returns a pointer to the first byte of the packet.
    #[inline]
    fn start(&self) -> NonNull<u8> {
        let desc = self.desc();
        // SAFETY: the slot exists, and the bytes that the descriptor describes are inside the slot, and so inside one
        // allocation. `SlotLayout::admits` checks both conditions when the packet enters the batch. Each function below
        // that changes the descriptor preserves both conditions.
        unsafe { self.memory().slot(desc.slot).add(usize::from(desc.offset)) }
    }

    /// Returns the length of the packet, in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a packet of length 0 needs no special handling")]
    pub fn len(&self) -> usize {
        usize::from(self.desc().len)
    }

    /// Returns the index of the packet's slot. No other packet of the pool has this slot.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.desc().slot
    }

    /// Returns the bytes of the packet.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the bytes that the descriptor describes are inside its slot, as in `start`. The slots of a batch are
        // distinct, and only the batch owns them. The kernel zeroed the memory, so the bytes are initialised. The
        // borrow of the bytes ends no later than the borrow of the packet.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len()) }
    }

    /// Returns the bytes of the packet, writable.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`. `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }

    /// Returns the maximum offset of the packet's end from the start of its slot.
    #[inline]
    fn limit(&self) -> usize {
        self.memory().layout.limit() as usize
    }

    /// Returns the number of free bytes before the packet.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.desc().offset)
    }

    /// Returns the number of free bytes after the packet.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.limit() - usize::from(self.desc().offset) - self.len()
    }

    /// Adds `bytes` bytes in front of the packet and adjusts the offsets in the metadata. Returns the new bytes. The
    /// caller must write all new bytes. Returns `None` and changes nothing if the headroom is too small.
    #[inline]
    pub fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let by = u16::try_from(bytes).ok().filter(|by| *by <= self.desc().offset)?;
        let len = self.desc().len.checked_add(by)?;
        let desc = self.desc_mut();
        (desc.offset, desc.len) = (desc.offset - by, len);
        self.shift_meta(i32::from(by));
        self.data_mut().get_mut(..bytes)
    }

    /// Removes the first `bytes` bytes of the packet and adjusts the offsets in the metadata. Returns `false` and
    /// changes nothing if the packet has fewer bytes.
    #[inline]
    pub fn trim_front(&mut self, bytes: usize) -> bool {
        let Some(by) = u16::try_from(bytes).ok().filter(|by| *by <= self.desc().len) else { return false };
        let desc = self.desc_mut();
        (desc.offset, desc.len) = (desc.offset + by, desc.len - by);
        self.shift_meta(-i32::from(by));
        true
    }

    /// Shortens the packet to its first `len` bytes. Does nothing if the packet has at most `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        let len = self.len().min(len) as u16;
        self.desc_mut().len = len;
        let meta = self.meta_mut();
        meta.end = meta.end.min(len);
    }

    /// Adds `bytes` bytes at the end of the packet. Returns the new bytes. The caller must write all new bytes. Returns
    /// `None` and changes nothing if the tailroom is too small.
    #[inline]
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.tailroom() {
            return None;
        }
        let len = self.len();
        // The cast is lossless: the sum is at most the slot size, which is below 64 KiB.
        self.desc_mut().len = (len + bytes) as u16;
        self.data_mut().get_mut(len..)
    }

    /// Adjusts the metadata to a moved start of the packet: adds `by` to each offset. Offsets of removed headers become
    /// 0.
    #[inline]
    fn shift_meta(&mut self, by: i32) {
        let shift = |offset: u16| u16::try_from(i32::from(offset) + by).unwrap_or(0);
        let meta = self.meta_mut();
        meta.l3 = shift(meta.l3);
        meta.l4 = if meta.l4 == 0 { 0 } else { shift(meta.l4) };
        meta.end = shift(meta.end);
    }

    /// Returns the first 12 bytes from the start of the packet. If the packet is shorter, the remaining bytes are not
    /// packet data.
    #[inline]
    fn front(&mut self) -> &mut [u8; 12] {
        const { assert!(GUARD >= 12) };
        // SAFETY: a packet ends at least GUARD bytes before the end of its slot. The first 12 bytes from the start of
        // the packet are therefore in the slot, even if the packet is shorter. Ownership and initialisation are as in
        // `data_mut`.
        unsafe { self.start().cast().as_mut() }
    }

    /// Returns the destination and source addresses of the Ethernet header. If the frame is shorter than 12 bytes, the
    /// missing bytes are zero and are not part of the packet.
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

    /// Writes the destination and source addresses of the Ethernet header, in this order. If the frame is shorter than
    /// 12 bytes, only the bytes inside the frame become packet data.
    #[inline]
    pub fn set_ethernet_addresses(&mut self, both: [u8; 12]) {
        *self.front() = both;
    }

    /// Returns the metadata that earlier stages wrote.
    #[inline]
    pub fn meta(&self) -> &Meta {
        // SAFETY: the index is in bounds, and the entry belongs to this packet.
        unsafe { &*entry(&raw mut (*self.batch.as_ptr()).metas, self.index) }
    }

    /// Returns the metadata, writable.
    #[inline]
    pub fn meta_mut(&mut self) -> &mut Meta {
        // SAFETY: the index is in bounds, and the entry belongs to this packet. `&mut self` makes the borrow exclusive.
        unsafe { &mut *entry(&raw mut (*self.batch.as_ptr()).metas, self.index) }
    }

    /// Returns the receive timestamp of the packet and its clock. `Ctx::nanos` converts the timestamp to the time since
    /// the start of the run.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        let batch = self.batch.as_ptr();
        // SAFETY: the batch lives as long as `life`, no packet writes its stamps, and the index is in bounds.
        unsafe { (*batch).stamp.unwrap_or_else(|| *entry(&raw mut (*batch).stamps, self.index)) }
    }

    /// Returns the index of the port that received the packet.
    #[inline]
    pub fn ingress(&self) -> u8 {
        // SAFETY: as for `memory`.
        unsafe { (*self.batch.as_ptr()).ingress }
    }

    /// Sends the packet to an output of the stage.
    #[inline]
    pub fn steer(&mut self, edge: Edge) {
        self.set_label(edge.label());
    }

    /// Drops the packet.
    #[inline]
    pub fn drop(&mut self, reason: Reason) {
        self.set_label(DROPPED + reason.code());
    }

    /// Removes the packet from the pipeline, because it needs no further processing. The ledger counts the packet as
    /// consumed.
    #[inline]
    pub fn consume(&mut self) {
        self.set_label(CONSUMED);
    }

    /// Holds the packet in the stage. The stage must declare the maximum holding time with `Contract::holds`. After a
    /// later housekeeping, the stage gets the packet again, together with other held packets that arrived on the same
    /// port. If the stage cannot hold more packets, the packet is dropped as `queue_full`.
    #[inline]
    pub fn hold(&mut self) {
        self.set_label(HELD);
    }

    /// Returns whether this stage has held the packet before, and whether the maximum holding time has passed.
    #[inline]
    pub fn hold_state(&self) -> HoldState {
        // SAFETY: as for `memory`.
        unsafe { (*self.batch.as_ptr()).hold_state }
    }

    /// Requests a copy of the packet on an output. The copy contains the bytes that the packet has when the stage
    /// finishes the batch. A stage can request at most one copy of a packet.
    #[inline]
    pub fn copy_to(&mut self, edge: Edge) {
        // SAFETY: the index is in bounds, and the entry belongs to this packet.
        unsafe { *entry(&raw mut (*self.batch.as_ptr()).copies, self.index) = edge.label() }
    }
}

/// Iterator over the packets of a batch, in order.
#[derive(Debug)]
pub struct Packets<'b> {
    batch: NonNull<Batch>,
    next: usize,
    end: usize,
    life: PhantomData<&'b mut Batch>,
}

impl<'b> Packets<'b> {
    /// Returns an iterator over the packets from `index` on.
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
        // The index is below the batch's length, and each index is used once.
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
