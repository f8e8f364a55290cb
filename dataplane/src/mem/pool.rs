//! The slots of one region, and which of them are free.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mem::{Desc, Region, vector};

/// Bytes at the end of every slot that no packet uses. They let fixed-size views at any offset stay in the slot.
pub const GUARD: usize = 64;

/// How a region is cut into slots. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// From the start of one slot to the start of the next; a multiple of 64.
    pub(crate) stride: u32,
    /// Where a received packet starts in its slot.
    pub(crate) headroom: u16,
    /// How many slots there are.
    pub(crate) count: u32,
}

impl SlotLayout {
    /// A layout whose slots hold `headroom + room` bytes and the guard.
    ///
    /// # Errors
    /// The slot would be too large for 16-bit offsets, or there are no slots.
    pub fn new(headroom: usize, room: usize, count: usize) -> Result<Self> {
        let stride = (headroom + room + GUARD).next_multiple_of(64);
        let fits = stride <= usize::from(u16::MAX) && (1..=1 << 24).contains(&count);
        match (u16::try_from(headroom), u32::try_from(count)) {
            (Ok(headroom), Ok(count)) if fits => Ok(Self { stride: stride as u32, headroom, count }),
            _ => Err(Error::Memory(format!(
                "{count} slots of {headroom} + {room} bytes: a slot is at most 64K and there are 1 to 16,777,216"
            ))),
        }
    }

    /// Bytes that a received packet may have.
    #[inline]
    pub const fn room(&self) -> u32 {
        self.limit() - self.headroom as u32
    }

    /// Bytes of the whole region.
    pub const fn bytes(&self) -> usize {
        self.stride as usize * self.count as usize
    }

    /// Where a packet may end in its slot, in bytes.
    #[inline]
    pub(crate) const fn limit(&self) -> u32 {
        self.stride - GUARD as u32
    }

    /// Whether a descriptor names bytes of a slot.
    #[inline]
    pub(crate) const fn admits(&self, desc: Desc) -> bool {
        desc.slot < self.count && desc.offset as u32 + desc.len as u32 <= self.limit()
    }
}

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// In the pool.
    Free,
    /// With a receive queue: the device may write it.
    Posted,
    /// In a batch: stages may read and write it.
    Batched,
    /// With a send queue: the device may read it.
    Sending,
}

/// The bytes that slots stand for. Cloned once a batch, never once a packet.
#[derive(Clone, Debug)]
pub(crate) struct SlotMemory {
    /// Where the region begins: one load for each packet, not two.
    base: NonNull<u8>,
    region: Arc<Region>,
    pub(crate) layout: SlotLayout,
}

// SAFETY: the pointer is that of the region, which is Send and Sync and kept alive beside it.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    fn new(region: Arc<Region>, layout: SlotLayout) -> Self {
        const fn is_shared<T: Send + Sync>() {}
        is_shared::<Region>();
        Self { base: region.base(), region, layout }
    }

    /// The first byte of a slot. The caller has seen to it that the slot is below the layout's count.
    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> NonNull<u8> {
        debug_assert!(slot < self.layout.count);
        // SAFETY: slot < count, so the result is inside the mapping, which the region keeps alive and whose length is
        // at least count * stride.
        unsafe { self.base.add(slot as usize * self.layout.stride as usize) }
    }

    /// Whether both stand for the same bytes.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }
}

/// The slots of one region. It belongs to one worker; its lanes share it, one after the other, without atomics.
#[derive(Debug)]
pub struct Pool {
    memory: SlotMemory,
    free: Box<[u32]>,
    available: usize,
    #[cfg(debug_assertions)]
    states: Box<[SlotState]>,
}

impl Pool {
    /// Cuts a region into free slots.
    ///
    /// # Errors
    /// The region is smaller than the layout.
    pub(crate) fn new(region: Arc<Region>, layout: SlotLayout) -> Result<Self> {
        if region.len() < layout.bytes() {
            return Err(Error::Memory(format!("a region of {} bytes is too small for {layout:?}", region.len())));
        }
        Ok(Self {
            memory: SlotMemory::new(region, layout),
            // The lowest slots on top: a pool that is little used touches little memory.
            free: (0..layout.count).rev().collect(),
            available: layout.count as usize,
            #[cfg(debug_assertions)]
            states: vec![SlotState::Free; layout.count as usize].into(),
        })
    }

    /// The region that the slots are cut from.
    pub fn region(&self) -> &Arc<Region> {
        &self.memory.region
    }

    /// How it is cut.
    #[inline]
    pub fn layout(&self) -> SlotLayout {
        self.memory.layout
    }

    #[inline]
    pub(crate) fn memory(&self) -> &SlotMemory {
        &self.memory
    }

    /// How many slots are free.
    #[inline]
    pub fn available(&self) -> usize {
        self.available
    }

    /// Takes up to `most` free slots, the last freed first: their bytes are still in the cache. They are now in state
    /// `to`.
    #[inline]
    pub(crate) fn take(&mut self, most: usize, to: SlotState) -> &[u32] {
        let end = self.available;
        self.available -= most.min(end);
        #[cfg(debug_assertions)]
        for at in self.available..end {
            self.moved(&[self.free[at]], SlotState::Free, to);
        }
        #[cfg(not(debug_assertions))]
        let _ = to;
        &self.free[self.available..end]
    }

    /// Takes a free slot, if there is one. It is now in state `to`.
    #[inline]
    pub(crate) fn take_one(&mut self, to: SlotState) -> Option<u32> {
        self.take(1, to).first().copied()
    }

    /// Takes slots back from state `from`.
    #[inline]
    pub(crate) fn put(&mut self, slots: &[u32], from: SlotState) {
        self.moved(slots, from, SlotState::Free);
        self.free[self.available..self.available + slots.len()].copy_from_slice(slots);
        self.available += slots.len();
    }

    /// Takes back the slots of descriptors from state `from`.
    #[inline]
    pub(crate) fn put_descs(&mut self, descs: &[Desc], from: SlotState) {
        self.moved_descs(descs, from, SlotState::Free);
        let into = &mut self.free[self.available..self.available + descs.len()];
        vector::copy_slots(into, Desc::words(descs));
        self.available += descs.len();
    }

    /// Takes back one slot from state `from`.
    #[inline]
    pub(crate) fn put_one(&mut self, slot: u32, from: SlotState) {
        self.put(&[slot], from);
    }

    /// Notes a change of state, and in debug builds checks that it is one.
    #[inline]
    pub(crate) fn moved(&mut self, slots: &[u32], from: SlotState, to: SlotState) {
        #[cfg(debug_assertions)]
        for &slot in slots {
            let state = &mut self.states[slot as usize];
            assert_eq!(*state, from, "slot {slot} was to go from {from:?} to {to:?}");
            *state = to;
        }
        #[cfg(not(debug_assertions))]
        let _ = (slots, from, to);
    }

    /// The same for the slots of descriptors.
    #[inline]
    pub(crate) fn moved_descs(&mut self, descs: &[Desc], from: SlotState, to: SlotState) {
        #[cfg(debug_assertions)]
        for desc in descs {
            self.moved(&[desc.slot], from, to);
        }
        #[cfg(not(debug_assertions))]
        let _ = (descs, from, to);
    }
}
