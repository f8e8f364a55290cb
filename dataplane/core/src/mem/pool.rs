//! The slots (packet buffers) of one region, and the list of free slots.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::mem::desc::Desc;
use crate::mem::{PageKind, Region, vector};

/// The number of bytes at the end of every slot that no packet occupies. A view of up to `GUARD` bytes at the start of
/// any packet therefore stays inside the slot, even if the packet is shorter.
pub const GUARD: usize = 64;

/// The layout of the slots of a region. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    /// Distance from the start of one slot to the start of the next. A multiple of 64.
    pub(crate) stride: u32,
    /// Offset of a received packet from the start of its slot.
    pub(crate) headroom: u16,
    /// The number of slots.
    pub(crate) count: u32,
}

impl SlotLayout {
    /// Creates a layout whose slots hold `headroom + room` bytes and the [`GUARD`] bytes.
    ///
    /// # Errors
    /// Fails if the slot is too large for 16-bit offsets, or if the number of slots is out of range.
    pub fn new(headroom: usize, room: usize, count: usize) -> Result<Self> {
        // If the sum saturates, the sum is larger than `u16::MAX`, and the layout is refused below. For the same
        // reason, `next_multiple_of` cannot overflow.
        let bytes = headroom.saturating_add(room).saturating_add(GUARD);
        let stride = if bytes <= usize::from(u16::MAX) { bytes.next_multiple_of(64) } else { usize::MAX };
        let fits = stride <= usize::from(u16::MAX) && (1..=1 << 24).contains(&count);
        match (u16::try_from(headroom), u32::try_from(count)) {
            (Ok(headroom), Ok(count)) if fits => Ok(Self { stride: stride as u32, headroom, count }),
            _ => Err(Error::Memory(format!(
                "cannot create {count} slots of {headroom} + {room} bytes: the slot size limit is 64K, and the number \
                 of slots must be 1 to 16777216"
            ))),
        }
    }

    /// Returns the maximum length of a received packet, in bytes.
    #[inline]
    pub const fn room(&self) -> u32 {
        self.limit() - self.headroom as u32
    }

    /// Returns the distance from the start of one slot to the start of the next, in bytes. A multiple of 64.
    #[inline]
    pub const fn stride(&self) -> u32 {
        self.stride
    }

    /// Returns the offset of a received packet from the start of its slot, in bytes.
    #[inline]
    pub const fn headroom(&self) -> u16 {
        self.headroom
    }

    /// Returns the number of slots.
    #[inline]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the total size of all slots, in bytes.
    pub const fn bytes(&self) -> usize {
        self.stride as usize * self.count as usize
    }

    /// Returns the maximum offset of a packet's end from the start of its slot, in bytes.
    #[inline]
    pub const fn limit(&self) -> u32 {
        self.stride - GUARD as u32
    }

    /// Returns whether the slot of a descriptor exists and contains all bytes of the packet.
    #[inline]
    pub const fn admits(&self, desc: Desc) -> bool {
        desc.slot < self.count && desc.offset as u32 + desc.len as u32 <= self.limit()
    }
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Free, in the pool.
    Free,
    /// Posted to a receive queue: the device may write it.
    Posted,
    /// In a batch: stages may read and write it.
    Batched,
    /// Posted to a send queue: the device may read it.
    Sending,
}

/// The memory of the slots. This value is cloned once per batch, never per packet.
#[derive(Clone, Debug)]
pub(crate) struct SlotMemory {
    /// Start of the region. A copy of the region's pointer saves one load per packet.
    base: NonNull<u8>,
    region: Arc<Region>,
    pub(crate) layout: SlotLayout,
    /// Whether the last bytes of each slot, within the [`GUARD`] bytes, contain the receive information of the packet.
    pub(super) keeps_received: bool,
}

// SAFETY: `base` points into the region, which is Send and Sync. The `Arc` in this struct keeps the region alive.
unsafe impl Send for SlotMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for SlotMemory {}

/// The memory of the buffers of a pool, without the list of free buffers. Any thread can use this value to create empty
/// batches for the worker that owns the pool.
#[derive(Clone, Debug)]
pub struct BatchMemory(pub(super) SlotMemory);

impl BatchMemory {
    /// Returns the region of the buffers.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// Returns the layout of the slots.
    pub fn layout(&self) -> SlotLayout {
        self.0.layout
    }

    /// Returns the pages that back the region.
    pub fn pages(&self) -> PageKind {
        self.0.region.pages()
    }
}

impl SlotMemory {
    fn new(region: Arc<Region>, layout: SlotLayout) -> Self {
        const fn is_shared<T: Send + Sync>() {}
        is_shared::<Region>();
        Self { base: region.base(), region, layout, keeps_received: false }
    }

    /// Returns a pointer to the first byte of a slot.
    ///
    /// # Safety
    /// `slot` must be below `layout.count`.
    #[inline]
    pub(crate) unsafe fn slot(&self, slot: u32) -> NonNull<u8> {
        debug_assert!(slot < self.layout.count);
        // SAFETY: the caller guarantees slot < count, and the length of the region is at least count * stride, so the
        // result is inside the mapping. `region` keeps the mapping alive.
        unsafe { self.base.add(slot as usize * self.layout.stride as usize) }
    }

    /// Returns whether both values refer to the same region.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }
}

/// The free slots of one region. The pool belongs to one worker, or to another thread if it is a detached pool
/// ([`Pool::detached`]). Only one lane of this thread uses the pool at a time, so the pool needs no atomics.
#[derive(Debug)]
pub struct Pool {
    pub(super) memory: SlotMemory,
    pub(super) free: Box<[u32]>,
    available: usize,
    /// For each slot, whether another program still has the slot. Empty unless the pool continues the pool of another
    /// program.
    foreign: Box<[bool]>,
    /// The state of each slot. `None` for a detached pool, because only the owner of the slots knows their states.
    #[cfg(debug_assertions)]
    states: Option<Box<[SlotState]>>,
}

impl Pool {
    /// Divides a region into free slots. The pool takes ownership of the region, so no other pool and no memory
    /// registration of other code can use the same memory. Only detached pools of this pool share the memory.
    ///
    /// # Errors
    /// Fails if the region is smaller than the layout.
    pub fn new(region: Region, layout: SlotLayout) -> Result<Self> {
        if region.len() < layout.bytes() {
            return Err(Error::Memory(format!(
                "a region of {} bytes is too small for layout {layout:?}",
                region.len()
            )));
        }
        Ok(Self {
            memory: SlotMemory::new(Arc::new(region), layout),
            // The free list is a stack. The lowest slots are on top, so a pool with few slots in use touches little
            // memory.
            free: (0..layout.count).rev().collect(),
            available: layout.count as usize,
            foreign: Box::default(),
            #[cfg(debug_assertions)]
            states: Some(vec![SlotState::Free; layout.count as usize].into()),
        })
    }

    /// Creates a detached pool: a pool with the memory of a worker's pool, but without free slots. With a detached
    /// pool, another thread can open or close a lane of the worker. A lane that is opened with a detached pool posts no
    /// receives. A lane that is closed with a detached pool gives its slots to the detached pool. The worker then takes
    /// these slots with [`Pool::absorb`].
    pub fn detached(memory: &BatchMemory) -> Self {
        Self {
            memory: memory.0.clone(),
            free: vec![0; memory.0.layout.count as usize].into(),
            available: 0,
            foreign: Box::default(),
            #[cfg(debug_assertions)]
            states: None,
        }
    }

    /// Creates a pool that continues the pool of another program in a shared region
    /// ([`continue_pool`](crate::upgrade::continue_pool)).
    ///
    /// # Errors
    /// Fails if the region is smaller than the layout.
    pub(crate) fn continued(region: Region, layout: SlotLayout) -> Result<Self> {
        let mut pool = Self::new(region, layout)?;
        pool.available = 0;
        pool.foreign = vec![true; layout.count as usize].into();
        #[cfg(debug_assertions)]
        {
            pool.states = Some(vec![SlotState::Posted; layout.count as usize].into());
        }
        Ok(pool)
    }

    /// Takes over slots from the other program ([`continue_pool`](crate::upgrade::continue_pool)). The slots are then
    /// free. Returns `false`, and takes no further slots, at a slot that does not exist or that the pool has taken over
    /// before.
    ///
    /// The caller must give slots that a queue of the other program has posted to the lane that continues this queue,
    /// before any other code uses the pool.
    #[must_use]
    pub fn take_over(&mut self, slots: &[u32]) -> bool {
        slots.iter().all(|slot| {
            let is_foreign = self.foreign.get_mut(*slot as usize).is_some_and(std::mem::take);
            if is_foreign {
                self.put_one(*slot, SlotState::Posted);
            }
            is_foreign
        })
    }

    /// Takes over all other slots from the other program.
    pub fn take_over_rest(&mut self) {
        for slot in (0..self.layout().count()).rev() {
            // The pool has taken over some slots before.
            let _ = self.take_over(&[slot]);
        }
    }

    /// Moves all free slots of a detached pool to this pool. Neither allocates nor frees memory.
    ///
    /// # Panics
    /// Panics if `detached` is not a detached pool with the memory of this pool.
    pub fn absorb(&mut self, detached: &mut Self) {
        assert!(self.memory.is(&detached.memory), "the detached pool has the memory of another pool");
        let slots = &detached.free[..detached.available];
        assert!(slots.len() <= self.free.len() - self.available, "the detached pool has too many slots");
        #[cfg(debug_assertions)]
        for &slot in slots {
            if let Some(state) = self.states.as_mut().and_then(|states| states.get_mut(slot as usize)) {
                assert_ne!(*state, SlotState::Free, "slot {slot} is free twice");
                *state = SlotState::Free;
            }
        }
        self.free[self.available..self.available + slots.len()].copy_from_slice(slots);
        self.available += slots.len();
        detached.available = 0;
    }

    /// Returns the region that contains the slots. This method is not public, because a caller could register the
    /// region, and a device could then write to the slots.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.memory.region
    }

    /// Returns the memory of the slots.
    pub fn batch_memory(&self) -> BatchMemory {
        BatchMemory(self.memory.clone())
    }

    /// Returns the layout of the slots.
    #[inline]
    pub fn layout(&self) -> SlotLayout {
        self.memory.layout
    }

    #[inline]
    pub(crate) fn memory(&self) -> &SlotMemory {
        &self.memory
    }

    /// Returns the number of free slots.
    #[inline]
    pub fn available(&self) -> usize {
        self.available
    }

    /// Takes up to `most` free slots and moves them to state `to`. The slots that were freed last are taken first,
    /// because their bytes are still in the cache.
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

    /// Returns slots to the pool. The slots must be in state `from`.
    #[inline]
    pub(crate) fn put(&mut self, slots: &[u32], from: SlotState) {
        self.moved(slots, from, SlotState::Free);
        self.free[self.available..self.available + slots.len()].copy_from_slice(slots);
        self.available += slots.len();
    }

    /// Returns the slots of these descriptors to the pool. The slots must be in state `from`.
    #[inline]
    pub(crate) fn put_descs(&mut self, descs: &[Desc], from: SlotState) {
        self.moved_descs(descs, from, SlotState::Free);
        let into = &mut self.free[self.available..self.available + descs.len()];
        vector::copy_slots(into, Desc::words(descs));
        self.available += descs.len();
    }

    /// Returns one slot to the pool. The slot must be in state `from`.
    #[inline]
    pub(crate) fn put_one(&mut self, slot: u32, from: SlotState) {
        self.put(&[slot], from);
    }

    /// Records a change of state. Debug builds check that the slots are in state `from`.
    #[inline]
    pub(crate) fn moved(&mut self, slots: &[u32], from: SlotState, to: SlotState) {
        #[cfg(debug_assertions)]
        if let Some(states) = &mut self.states {
            for &slot in slots {
                let state = &mut states[slot as usize];
                assert_eq!(*state, from, "slot {slot} is not in state {from:?} and cannot move to {to:?}");
                *state = to;
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = (slots, from, to);
    }

    /// Does the same as [`Pool::moved`] for the slots of these descriptors.
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
