//! New packets in a batch: from bytes, from parts of packets, and as copies.

use crate::clock::Stamp;
use crate::mem::batch::{BATCH, Batch};
use crate::mem::desc::Desc;
use crate::mem::meta::Meta;
use crate::mem::packet::Packet;
use crate::mem::pool::{Pool, SlotState};
use crate::mem::vector::Bounds;

/// The length of a cache line, in bytes. Frames up to this length are copied as one line, because a copy with a constant
/// length needs no call and no branch.
const LINE: usize = 64;

impl Batch {
    /// Takes up to `wanted` spare slots (packet buffers) from the pool for packets that a stage adds. Takes fewer slots
    /// if the pool has fewer free slots or the batch has less space.
    pub(crate) fn take_spares(&mut self, wanted: usize, pool: &mut Pool) {
        // `spares` is empty here and has the capacity of a full batch, so the call below does not allocate.
        let wanted = wanted.min(self.space());
        self.spares.extend_from_slice(pool.take_new(wanted));
    }

    /// Returns the unused spare slots to the pool.
    pub(crate) fn return_spares(&mut self, pool: &mut Pool) {
        pool.put(&self.spares, SlotState::Batched);
        self.spares.clear();
    }

    /// Appends a new packet that is the concatenation of two byte ranges of the packet at `index`. The new packet gets
    /// a copy of that packet's metadata and stamp.
    ///
    /// Returns `None` if the packet or a range does not exist, no spare slot is left, or the new packet does not fit
    /// into a slot. A stage that calls this method must declare the number of new packets with `Contract::splits`.
    pub fn split_from(&mut self, index: usize, parts: [std::ops::Range<usize>; 2]) -> Option<Packet<'_>> {
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
            // SAFETY: this batch owns both slots, so both indexes are below the number of slots, and the slots are
            // different. Each range lies in its packet (checked above), which lies in its slot. All ranges together fit
            // behind the headroom of the new slot.
            unsafe {
                let source = self.memory.slot(from.slot).add(usize::from(from.offset) + part.start);
                self.memory.slot(slot).add(to).copy_from_nonoverlapping(source, part.len());
            }
            to += part.len();
        }
        Some(Packet::at(self, at))
    }

    /// Returns the maximum length of the packets that [`Batch::generate`] creates, in bytes.
    #[inline]
    pub fn max_generated_len(&self) -> usize {
        self.memory.layout.room() as usize
    }

    /// Appends a new packet with these bytes and default metadata.
    ///
    /// Returns `None` if no spare slot is left or the bytes do not fit into a slot. A stage that calls this method must
    /// declare the number of new packets with `Contract::splits` or `Contract::generates`.
    pub fn generate(&mut self, bytes: &[u8]) -> Option<Packet<'_>> {
        let (at, layout) = (self.len(), self.memory.layout);
        if at == BATCH || bytes.len() > self.max_generated_len() {
            return None;
        }
        let slot = self.spares.pop()?;
        self.push(Desc { slot, offset: layout.headroom, len: bytes.len() as u16 }, Stamp::NONE);
        self.metas[at] = Meta::default();
        let mut packet = Packet::at(self, at);
        packet.data_mut().copy_from_slice(bytes);
        Some(packet)
    }

    /// Adds a copy of a packet of the batch `from` in a newly taken slot. Returns `false` if no slot is free, this
    /// batch has no space, or `from` has no packet with this index.
    #[inline]
    pub(crate) fn push_copy(&mut self, from: &mut Self, index: usize, pool: &mut Pool) -> bool {
        if self.space() == 0 || index >= from.len() {
            return false;
        }
        let Some(slot) = pool.take_new(1).first().copied() else { return false };
        self.push_from(from, index);
        let at = self.len() - 1;
        self.descs[at].slot = slot;
        Packet::at(self, at).data_mut().copy_from_slice(Packet::at(from, index).data());
        true
    }

    /// Adds a packet with these bytes in a newly taken slot. Returns `false` if no slot is free, this batch has no
    /// space, or the bytes do not fit into a slot.
    ///
    /// # Panics
    /// Panics if the packets of this batch belong to another pool.
    pub fn push_bytes(&mut self, bytes: &[u8], stamp: Stamp, pool: &mut Pool) -> bool {
        self.check_pool(pool);
        let layout = self.memory.layout;
        let Ok(len) = u16::try_from(bytes.len()) else { return false };
        if self.space() == 0 || u32::from(len) > layout.room() {
            return false;
        }
        let Some(slot) = pool.take_new(1).first().copied() else { return false };
        let at = self.len();
        self.push(Desc { slot, offset: layout.headroom, len }, stamp);
        self.metas[at] = Meta::default();
        Packet::at(self, at).data_mut().copy_from_slice(bytes);
        true
    }

    /// Adds up to `count` copies of a frame in newly taken slots, and calls `edit` with the index and the bytes of each
    /// copy, in order. Returns the number of added packets. This number is lower than `count` if fewer slots are free or
    /// the batch has less space, and 0 if the frame does not fit into a slot.
    ///
    /// The metadata of the new packets has no meaning until a stage sets the metadata.
    ///
    /// # Panics
    /// Panics if the packets of this batch belong to another pool.
    // `always`: `edit` runs once per packet, and the caller may need vector instructions of its own target.
    #[inline(always)]
    pub fn push_copies(
        &mut self,
        frame: &[u8],
        count: usize,
        stamp: Stamp,
        pool: &mut Pool,
        mut edit: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        self.check_pool(pool);
        let (layout, len) = (self.memory.layout, frame.len());
        let Some(packed) = u16::try_from(len).ok().filter(|len| u32::from(*len) <= layout.room()) else { return 0 };
        let slots = pool.take_new(count.min(self.space()));
        let (at, added) = (self.len(), slots.len());
        if added == 0 {
            return 0;
        }
        for (desc, slot) in self.descs[at..at + added].iter_mut().zip(slots) {
            *desc = Desc { slot: *slot, offset: layout.headroom, len: packed };
        }
        let more = Bounds {
            bytes: added as u32 * u32::from(packed),
            shortest: packed.into(),
            longest: packed.into(),
            last: layout.count - 1,
            end: u32::from(layout.headroom) + u32::from(packed),
        };
        self.add_written(added, &more, stamp);
        // Copying a whole line also writes bytes after the frame. These bytes are in the slot and belong to no packet.
        // The line ends before the guard of the slot, so the line does not reach the receive information.
        let mut line = [0; LINE];
        let is_short = len <= LINE && LINE <= layout.room() as usize;
        if is_short {
            line[..len].copy_from_slice(frame);
        }
        for (index, desc) in self.descs[at..at + added].iter().enumerate() {
            // SAFETY: the slot is a slot of the pool, whose memory is the memory of this batch (checked above), so the
            // slot exists. The headroom and `len` bytes fit into the slot, and if `is_short`, a whole line does. The
            // slots of a batch are distinct, and only the batch owns them, so `frame` and the bytes of other packets do
            // not overlap this slot. The kernel zeroed the memory, so the bytes are initialised.
            let data = unsafe {
                let start = self.memory.slot(desc.slot).add(usize::from(layout.headroom));
                match is_short {
                    true => start.cast::<[u8; LINE]>().write_unaligned(line),
                    false => start.copy_from_nonoverlapping(std::ptr::NonNull::from(frame).cast(), len),
                }
                std::slice::from_raw_parts_mut(start.as_ptr(), len)
            };
            edit(index, data);
        }
        added
    }
}
