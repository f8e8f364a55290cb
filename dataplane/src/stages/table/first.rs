//! The first level of a trie: a cell for each value of an address's leading bits.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::cells::LINE;
use super::zeroed;
use crate::mem::prefetch_afar;

/// In a cell of two bytes: what it says does not fit there.
const ELSEWHERE: u16 = u16::MAX;

/// Cells by number. One thread writes, any number read.
pub(super) trait First {
    /// How many bits of an address choose a cell.
    const BITS: u32;

    /// The bit of [`First::goes_on`].
    const ON: u32;

    /// Cells that say nothing.
    fn new() -> Self;

    /// What a cell says, as far as is to be had at once. Relaxed, so that no load is held up for another: who goes on by what it says
    /// has a fence between.
    fn near(&self, slot: usize) -> u32;

    /// Whether that is not a value, as the cell leads on or says more: then [`First::ON`] is set. Other bits mean nothing.
    fn goes_on(near: u32) -> u32;

    /// All that a cell says. Who sees the number of a line sees what was written to that.
    fn cell(&self, slot: usize) -> u32;

    /// Has it say something else.
    fn set_cell(&self, slot: usize, entry: u32);

    /// Has the processor fetch what [`First::near`] will look at.
    fn fetch(&self, slot: usize);
}

/// 2 to the 24 cells, for IPv4, of two bytes: lookups see no more than those, half of the lines of the cache. A cell that leads on, or
/// says a value that does not fit, is in another array, whose pages are mapped where there are such.
pub(super) struct Narrow {
    cells: Box<[AtomicU16; 1 << Self::BITS]>,
    wide: Box<[AtomicU32; 1 << Self::BITS]>,
}

impl First for Narrow {
    const BITS: u32 = 24;
    const ON: u32 = ELSEWHERE as u32 + 1;

    fn new() -> Self {
        Self { cells: boxed(zeroed(1 << Self::BITS)), wide: boxed(zeroed(1 << Self::BITS)) }
    }

    #[inline(always)]
    fn near(&self, slot: usize) -> u32 {
        self.cells[slot % (1 << Self::BITS)].load(Ordering::Relaxed).into()
    }

    #[inline(always)]
    fn goes_on(near: u32) -> u32 {
        near + 1
    }

    #[inline(always)]
    fn cell(&self, slot: usize) -> u32 {
        let slot = slot % (1 << Self::BITS);
        match self.cells[slot].load(Ordering::Acquire) {
            // The other array still has what was said when the cell was read, or has what was said since or is being said.
            ELSEWHERE => self.wide[slot].load(Ordering::Acquire),
            cell => cell.into(),
        }
    }

    fn set_cell(&self, slot: usize, entry: u32) {
        let fits = u16::try_from(entry).unwrap_or(ELSEWHERE);
        if fits == ELSEWHERE {
            // First, so that who sees the cell say so sees it.
            self.wide[slot].store(entry, Ordering::Release);
        }
        self.cells[slot].store(fits, Ordering::Release);
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
    const ON: u32 = LINE;

    fn new() -> Self {
        Self(boxed(zeroed(1 << Self::BITS)))
    }

    #[inline(always)]
    fn near(&self, slot: usize) -> u32 {
        self.0[slot % (1 << Self::BITS)].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn goes_on(near: u32) -> u32 {
        near
    }

    #[inline(always)]
    fn cell(&self, slot: usize) -> u32 {
        self.0[slot % (1 << Self::BITS)].load(Ordering::Acquire)
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
