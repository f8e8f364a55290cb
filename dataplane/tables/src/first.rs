//! The first level of a trie: one cell for each value of an address's leading bits.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::entry::LINE;
use super::{TableError, zeroed};
use dataplane_core::mem::prefetch_l2;

/// The value of a two-byte cell whose entry is in the second array.
const IN_WIDE: u16 = u16::MAX;

/// The cells of the first level. One thread writes the cells, and any number of threads read them.
pub trait FirstLevel {
    /// The number of leading address bits that select a cell.
    const BITS: u32;

    /// The bit of [`FirstLevel::continue_bits`] that is set if the lookup must continue.
    const CONTINUE_BIT: u32;

    /// Creates empty cells.
    ///
    /// # Errors
    /// Returns [`TableError::Memory`] if there is not enough memory.
    fn new() -> Result<Self, TableError>
    where
        Self: Sized;

    /// Returns the value of a cell in the first array: the entry, or a marker that the entry is in the second array.
    /// Only [`Narrow`] has a second array. The load is relaxed, so that the load does not delay other loads. A caller
    /// that accesses other memory because of the result must execute an acquire fence first.
    fn entry_or_marker(&self, slot: usize) -> u32;

    /// Returns a number in which the bit [`FirstLevel::CONTINUE_BIT`] is set if the lookup must continue. The other
    /// bits have no meaning. The lookup must continue if the result of [`FirstLevel::entry_or_marker`] is a marker, or
    /// refers to a cache line.
    fn continue_bits(entry_or_marker: u32) -> u32;

    /// Returns the full entry of a cell. The entry may contain the number of a cache line. A reader that loads this
    /// number also sees the contents of the line.
    fn cell(&self, slot: usize) -> u32;

    /// Sets the entry of a cell.
    fn set_cell(&self, slot: usize, entry: u32);

    /// Prefetches the cell for [`FirstLevel::entry_or_marker`].
    fn fetch(&self, slot: usize);
}

/// 2^24 cells of two bytes, for IPv4. Most lookups touch only these cells. Cells of two bytes occupy half as many cache
/// lines as cells of four bytes. An entry that does not fit in two bytes is in a second array: a large value, or a
/// reference to cache lines behind the first level. The pages of the second array are mapped on first use.
pub struct Narrow {
    cells: Box<[AtomicU16; 1 << Self::BITS]>,
    wide: Box<[AtomicU32; 1 << Self::BITS]>,
}

impl FirstLevel for Narrow {
    // The interpreter Miri needs many times more memory, so the tests use small tables there.
    const BITS: u32 = if cfg!(miri) { 16 } else { 24 };
    const CONTINUE_BIT: u32 = IN_WIDE as u32 + 1;

    fn new() -> Result<Self, TableError> {
        Ok(Self { cells: boxed(zeroed(1 << Self::BITS)?), wide: boxed(zeroed(1 << Self::BITS)?) })
    }

    #[inline(always)]
    fn entry_or_marker(&self, slot: usize) -> u32 {
        self.cells[slot % (1 << Self::BITS)].load(Ordering::Relaxed).into()
    }

    #[inline(always)]
    fn continue_bits(entry_or_marker: u32) -> u32 {
        entry_or_marker + 1
    }

    #[inline(always)]
    fn cell(&self, slot: usize) -> u32 {
        let slot = slot % (1 << Self::BITS);
        match self.cells[slot].load(Ordering::Acquire) {
            // The second array holds the entry that was current when the cell was read, or a later entry.
            IN_WIDE => self.wide[slot].load(Ordering::Acquire),
            cell => cell.into(),
        }
    }

    fn set_cell(&self, slot: usize, entry: u32) {
        let fits = u16::try_from(entry).unwrap_or(IN_WIDE);
        if fits == IN_WIDE {
            // This store comes first, so that a reader that sees the marker also sees the entry.
            self.wide[slot].store(entry, Ordering::Release);
        }
        self.cells[slot].store(fits, Ordering::Release);
    }

    #[inline(always)]
    fn fetch(&self, slot: usize) {
        prefetch_l2(self.cells.as_ptr().wrapping_add(slot));
    }
}

/// 2^20 cells of four bytes, for IPv6. Most of the cells in use refer to cache lines behind the first level.
pub struct Wide(Box<[AtomicU32; 1 << Self::BITS]>);

impl FirstLevel for Wide {
    const BITS: u32 = if cfg!(miri) { 16 } else { 20 };
    const CONTINUE_BIT: u32 = LINE;

    fn new() -> Result<Self, TableError> {
        Ok(Self(boxed(zeroed(1 << Self::BITS)?)))
    }

    #[inline(always)]
    fn entry_or_marker(&self, slot: usize) -> u32 {
        self.0[slot % (1 << Self::BITS)].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn continue_bits(entry_or_marker: u32) -> u32 {
        entry_or_marker
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
        prefetch_l2(self.0.as_ptr().wrapping_add(slot));
    }
}

/// Converts a slice to an array on the heap, without a copy on the stack. The allocator provides the slice as zeroed
/// pages that are mapped on first touch.
fn boxed<T, const N: usize>(slice: Box<[T]>) -> Box<[T; N]> {
    slice.try_into().unwrap_or_else(|_| unreachable!("the slice has N elements"))
}
