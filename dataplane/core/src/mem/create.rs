//! New packets in a batch: from bytes, from parts of packets, and as copies.

use crate::clock::Stamp;
use crate::mem::batch::{BATCH, Batch};
use crate::mem::desc::Desc;
use crate::mem::meta::Meta;
use crate::mem::packet::Packet;
use crate::mem::pool::{Pool, SlotState};

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
}
