//! The first level of a trie: a cell for each value of an address's leading bits.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use super::cells::LINE;
use super::zeroed;
use crate::mem::prefetch_afar;

/// In a cell of two bytes: what it says does not fit in the others.
const WIDE: u16 = 1 << 15;

/// Cells by number. One thread writes, any number read.
pub(super) trait First {
    /// How many bits of an address choose a cell.
    const BITS: u32;

    /// A bit of what [`First::near`] gives: the cell leads on, or says what only [`First::cell`] gives.
    const MORE: u32;

    /// Cells that say nothing.
    fn new() -> Self;

    /// What a cell says. Who sees the number of a line sees what was written to that.
    fn cell(&self, slot: usize) -> u32;

    /// The same, where it has no [`First::MORE`]: all that most lookups need.
    fn near(&self, slot: usize) -> u32;

    /// Has it say something else.
    fn set_cell(&self, slot: usize, entry: u32);

    /// Has the processor fetch what [`First::cell`] will look at.
    fn fetch(&self, slot: usize);
}

/// 2 to the 24 cells, for IPv4. What fits in 15 bits, as most values do, is kept in two bytes, and lookups see no more
/// than those: half of the lines of the cache. A cell that says more is in another array, whose pages are mapped where there
/// are such.
pub(super) struct Narrow {
    cells: Box<[AtomicU16; 1 << Self::BITS]>,
    wide: Box<[AtomicU32; 1 << Self::BITS]>,
}

impl First for Narrow {
    const BITS: u32 = 24;
    const MORE: u32 = WIDE as u32;

    fn new() -> Self {
        Self { cells: boxed(zeroed(1 << Self::BITS)), wide: boxed(zeroed(1 << Self::BITS)) }
    }

    #[inline(always)]
    fn cell(&self, slot: usize) -> u32 {
        let near = self.near(slot);
        if near & Self::MORE == 0 {
            return near;
        }
        // The other array still has what was said when the cell was read, or has what is being said now.
        fence(Ordering::Acquire);
        self.wide[slot % (1 << Self::BITS)].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn near(&self, slot: usize) -> u32 {
        // Behind a value there is nothing to be seen, so that nothing is held up for it.
        self.cells[slot % (1 << Self::BITS)].load(Ordering::Relaxed).into()
    }

    fn set_cell(&self, slot: usize, entry: u32) {
        let cell = u16::try_from(entry).ok().filter(|cell| cell & WIDE == 0);
        if cell.is_none() {
            self.wide[slot].store(entry, Ordering::Release);
        }
        self.cells[slot].store(cell.unwrap_or(WIDE), Ordering::Release);
    }

    #[inline(always)]
    fn fetch(&self, slot: usize) {
        prefetch_afar(self.cells.as_ptr().wrapping_add(slot));
    }
}

/// 2 to the 20 cells, for IPv6: most of those that say something lead on.
pub(super) struct Wide(Box<[AtomicU32; 1 << Self::BITS]>);

impl First for Wide {
    const BITS: u32 = 20;
    const MORE: u32 = LINE;

    fn new() -> Self {
        Self(boxed(zeroed(1 << Self::BITS)))
    }

    #[inline(always)]
    fn cell(&self, slot: usize) -> u32 {
        self.0[slot % (1 << Self::BITS)].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn near(&self, slot: usize) -> u32 {
        self.cell(slot)
    }

    fn set_cell(&self, slot: usize, entry: u32) {
        self.0[slot].store(entry, Ordering::Release);
    }

    #[inline(always)]
    fn fetch(&self, slot: usize) {
        prefetch_afar(self.0.as_ptr().wrapping_add(slot));
    }
}

/// An array made from a slice on the heap, never on the stack. The slice is one for which the allocator was asked for pages
/// that are zero already, and are mapped when they are touched.
fn boxed<T, const N: usize>(slice: Box<[T]>) -> Box<[T; N]> {
    slice.try_into().unwrap_or_else(|_| unreachable!("made with as many elements"))
}
