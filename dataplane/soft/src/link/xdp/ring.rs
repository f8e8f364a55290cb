//! The rings that an AF_XDP socket shares with the kernel. This program produces into the fill and TX rings, and the
//! kernel consumes from these rings. In the RX and completion rings, the kernel produces and this program consumes.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapRaw;

/// Offsets in the mapping of a ring: `struct xdp_ring_offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

/// A ring whose entries are plain numbers.
#[derive(Debug)]
pub(super) struct Ring<T> {
    /// The mapping, into which all pointers below point.
    _map: MmapRaw,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// The index of the next entry that this program produces or consumes.
    own: u32,
    /// The kernel's index, as of the last time that this program read the index.
    other: u32,
}

// SAFETY: the pointers point into the mapping, which moves with the ring. The indices are atomics. This program
// accesses only the entries that it owns. Only one thread at a time accesses these entries, because the ring is not
// `Sync`.
unsafe impl<T: Send> Send for Ring<T> {}

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

impl<T: Copy> Ring<T> {
    /// Creates a ring of `size` entries, a power of two, in a mapping. Returns `None` if the ring does not fit.
    pub(super) fn new(map: MmapRaw, at: Offsets, size: u32) -> Option<Self> {
        let word = |offset: usize| {
            let fits = offset.is_multiple_of(align_of::<AtomicU32>()) && offset + size_of::<AtomicU32>() <= map.len();
            // SAFETY: the check above ensures that the offset is inside the mapping.
            fits.then(|| unsafe { NonNull::new(map.as_mut_ptr().add(offset).cast::<AtomicU32>()) }).flatten()
        };
        let bytes = size_of::<T>().checked_mul(size as usize)?;
        let fits = at.entries.is_multiple_of(align_of::<T>()) && at.entries.checked_add(bytes)? <= map.len();
        if !fits || !size.is_power_of_two() {
            return None;
        }
        let (producer, consumer, flags) = (word(at.producer)?, word(at.consumer)?, word(at.flags)?);
        // SAFETY: the check above ensures that the entries are inside the mapping.
        let entries = NonNull::new(unsafe { map.as_mut_ptr().add(at.entries).cast::<T>() })?;
        Some(Self { _map: map, producer, consumer, flags, entries, mask: size - 1, own: 0, other: 0 })
    }

    /// Continues a ring into which this program produces, at the index at which another program has stopped.
    pub(super) fn continue_producing(&mut self) {
        self.own = self.word(self.producer).load(Ordering::Acquire);
    }

    /// Continues a ring from which this program consumes, at the index at which another program has stopped.
    pub(super) fn continue_consuming(&mut self) {
        self.own = self.word(self.consumer).load(Ordering::Acquire);
        self.other = self.own;
    }

    /// Returns the number of entries of the ring.
    pub(super) fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Returns the submitted entries that the kernel has not consumed, oldest first.
    pub(super) fn unconsumed(&self) -> Vec<T> {
        let consumed = self.word(self.consumer).load(Ordering::Acquire);
        let count = self.own.wrapping_sub(consumed).min(self.entries());
        // `peek` counts from `own`, so the last submitted entry is at -1.
        (1..=count).rev().map(|back| self.peek(0_u32.wrapping_sub(back))).collect()
    }

    #[inline]
    fn word(&self, word: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: the word is in the mapping and aligned (see `new`). The kernel also accesses it atomically.
        unsafe { word.as_ref() }
    }

    /// Produces one entry, which the kernel sees after [`Ring::submit`]. The ring must have space.
    #[inline]
    pub(super) fn put(&mut self, value: T) {
        // SAFETY: the mask keeps the index inside the ring. This program owns the entry until the entry is submitted.
        unsafe { self.entries.add((self.own & self.mask) as usize).write(value) };
        self.own = self.own.wrapping_add(1);
    }

    /// Submits the produced entries to the kernel.
    #[inline]
    pub(super) fn submit(&mut self) {
        self.word(self.producer).store(self.own, Ordering::Release);
    }

    /// Returns whether the kernel has consumed all submitted entries.
    #[inline]
    pub(super) fn is_drained(&self) -> bool {
        self.word(self.consumer).load(Ordering::Relaxed) == self.own
    }

    /// Returns the number of entries that are ready to be consumed, which can be more than `wanted`. Reads the kernel's
    /// index only if the cached index shows fewer than `wanted` entries.
    #[inline]
    pub(super) fn ready(&mut self, wanted: u32) -> u32 {
        if self.other.wrapping_sub(self.own) < wanted {
            self.other = self.word(self.producer).load(Ordering::Acquire);
        }
        self.other.wrapping_sub(self.own).min(self.mask + 1)
    }

    /// Returns the entry that is `ahead` positions after the next entry to consume. The entry must be among the
    /// [`Ring::ready`] entries.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: the mask keeps the index inside the ring. The kernel has submitted the entry, and every bit pattern
        // is a valid `T`.
        unsafe { self.entries.add((self.own.wrapping_add(ahead) & self.mask) as usize).read() }
    }

    /// Returns `count` consumed entries to the kernel.
    #[inline]
    pub(super) fn release(&mut self, count: u32) {
        self.own = self.own.wrapping_add(count);
        self.word(self.consumer).store(self.own, Ordering::Release);
    }

    /// Returns whether the kernel needs a system call to continue with this ring.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;
    use proptest::prelude::*;

    use super::*;

    const AT: Offsets = Offsets { producer: 0, consumer: 64, flags: 128, entries: 192 };

    /// The kernel's side of a ring.
    struct KernelSide {
        memory: *mut u8,
    }

    impl KernelSide {
        fn word(&self, offset: usize) -> &AtomicU32 {
            // SAFETY: the offset is in the mapping of the test, which outlives this value.
            unsafe { &*self.memory.add(offset).cast() }
        }

        fn entry(&self, index: u32) -> *mut u64 {
            // SAFETY: the ring of the test has 8 entries.
            unsafe { self.memory.add(AT.entries).cast::<u64>().add((index & 7) as usize) }
        }
    }

    fn ring(start: u32) -> (Ring<u64>, KernelSide) {
        let map = MmapRaw::from(MmapMut::map_anon(4096).unwrap());
        let other = KernelSide { memory: map.as_mut_ptr() };
        other.word(AT.producer).store(start, Ordering::Relaxed);
        other.word(AT.consumer).store(start, Ordering::Relaxed);
        let mut ring = Ring::new(map, AT, 8).unwrap();
        (ring.own, ring.other) = (start, start);
        (ring, other)
    }

    proptest! {
        /// The kernel's side receives every submitted entry once and in order, even when the indices wrap.
        #[test]
        fn entries_arrive_once_and_in_order(near_wrap in any::<bool>(), steps in prop::collection::vec(1..9u32, 1..200)) {
            let start = if near_wrap { u32::MAX - 11 } else { 0 };
            let (mut ring, other) = ring(start);
            let (mut sent, mut seen) = (0u64, 0u64);
            for count in &steps {
                (0..*count).for_each(|at| ring.put(sent + u64::from(at)));
                prop_assert_eq!(other.word(AT.producer).load(Ordering::Acquire), start.wrapping_add(sent as u32));
                ring.submit();
                sent += u64::from(*count);
                let mut index = other.word(AT.consumer).load(Ordering::Relaxed);
                prop_assert!(!ring.is_drained());
                while index != other.word(AT.producer).load(Ordering::Acquire) {
                    // SAFETY: the entry is submitted, and nothing else accesses it.
                    prop_assert_eq!(unsafe { other.entry(index).read() }, seen);
                    seen += 1;
                    index = index.wrapping_add(1);
                }
                other.word(AT.consumer).store(index, Ordering::Release);
                prop_assert!(ring.is_drained());
            }
            prop_assert_eq!(sent, seen);
        }

        #[test]
        fn entries_of_the_kernel_are_consumed_once_and_in_order(near_wrap in any::<bool>(), steps in prop::collection::vec((1..9u32, 1..9u32), 1..200)) {
            let (mut ring, other) = ring(if near_wrap { u32::MAX - 11 } else { 0 });
            let (mut sent, mut seen) = (0u64, 0u64);
            for (put, take) in steps {
                let mut index = other.word(AT.producer).load(Ordering::Relaxed);
                for _ in 0..put.min(8 - (sent - seen) as u32) {
                    // SAFETY: the ring has space, so this side owns the entry.
                    unsafe { other.entry(index).write(sent) };
                    sent += 1;
                    index = index.wrapping_add(1);
                }
                other.word(AT.producer).store(index, Ordering::Release);
                let take = ring.ready(take).min(take);
                (0..take).for_each(|ahead| assert_eq!(ring.peek(ahead), seen + u64::from(ahead)));
                ring.release(take);
                seen += u64::from(take);
            }
            prop_assert_eq!(u64::from(ring.ready(8)), sent - seen);
        }
    }

    #[test]
    fn ring_that_does_not_fit_its_mapping_is_refused() {
        let map = || MmapRaw::from(MmapMut::map_anon(4096).unwrap());
        assert!(Ring::<u64>::new(map(), AT, 512).is_none(), "512 * 8 bytes and the offset exceed a page");
        assert!(Ring::<u64>::new(map(), AT, 3).is_none(), "not a power of two");
        assert!(Ring::<u64>::new(map(), Offsets { flags: 4096, ..AT }, 8).is_none());
        assert!(Ring::<u64>::new(map(), Offsets { producer: 2, ..AT }, 8).is_none());
        let (ring, other) = ring(0);
        assert!(!ring.needs_wakeup());
        other.word(AT.flags).store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(ring.needs_wakeup());
    }
}
