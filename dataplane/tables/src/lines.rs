//! The memory of a trie: numbered cache lines, allocated singly or in aligned groups of two, four or eight. The
//! allocator is a buddy allocator (Knowlton, "A fast storage allocator", CACM 1965). The allocator splits a group into
//! halves when a smaller group is needed. When both halves are free again, the allocator joins them.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use super::form::{Line, WORDS};
use super::{TableError, zeroed};

/// The maximum number of lines. The interpreter Miri needs many times more memory, so the tests use small tables there.
pub(super) const LINES: usize = if cfg!(miri) { 1 << 12 } else { 1 << 22 };

/// The number of group sizes: 1, 2, 4 and 8 lines.
pub(super) const SIZES: usize = 4;

/// The number of lines in the largest group.
const GROUP: usize = 1 << (SIZES - 1);

static ZERO_LINE: Line = [const { AtomicU64::new(0) }; WORDS];

/// The lines. Any thread may read the lines.
pub(super) struct Lines {
    words: Box<[AtomicU64]>,
    /// The index of the first word of the first line.
    first: usize,
}

impl Lines {
    /// Creates `lines` lines. Pages are mapped on first write.
    ///
    /// # Errors
    /// Returns [`TableError::Memory`] if there is not enough memory.
    pub(super) fn new(lines: usize) -> Result<Self, TableError> {
        // This function aligns the lines itself. If the function requested memory with an alignment of 64 bytes, the
        // memory allocator would write zeros to the memory, instead of using pages that the kernel has zeroed. These
        // writes would map all pages.
        let words: Box<[AtomicU64]> = zeroed((lines + 1) * WORDS)?;
        let first = words.as_ptr().align_offset(64).min(WORDS);
        Ok(Self { words, first })
    }

    /// Returns a line, or a line of zeros if the number is out of range.
    #[inline(always)]
    pub(super) fn line(&self, number: usize) -> &Line {
        self.words.get(self.first + number * WORDS..).and_then(|words| words.first_chunk()).unwrap_or(&ZERO_LINE)
    }
}

/// The allocator of lines. Only one thread uses the allocator.
pub(super) struct Allocator {
    /// Free groups, by size.
    free: [BTreeSet<usize>; SIZES],
    /// Count of the lines that are in use or in a free group. These are the lines 0 to `made` - 1. All other lines were
    /// never used.
    made: usize,
    /// The maximum number of lines.
    most: usize,
}

impl Allocator {
    /// Creates an allocator of `most` lines (but at most [`LINES`]), rounded up to whole groups of the largest size.
    pub(super) fn new(most: usize) -> Self {
        Self { free: Default::default(), made: 0, most: most.min(LINES).next_multiple_of(GROUP) }
    }

    /// Returns whether the given number of groups of each size is available.
    pub(super) fn has(&self, needed: &[usize; SIZES]) -> bool {
        let mut whole = (self.most - self.made) / GROUP;
        self.free.iter().zip(needed).rev().all(|(free, needed)| {
            let available = free.len() + whole;
            whole = 2 * available.saturating_sub(*needed);
            available >= *needed
        })
    }

    /// Takes a group of 2^`size` lines. The caller must have checked [`Allocator::has`].
    pub(super) fn take(&mut self, size: usize) -> usize {
        let free = (size..SIZES).find_map(|of| self.free[of].pop_first().map(|group| (group, of)));
        let (group, of) = free.unwrap_or_else(|| {
            let group = self.made;
            self.made += GROUP;
            (group, SIZES - 1)
        });
        for half in size..of {
            self.free[half].insert(group + (1 << half));
        }
        group
    }

    /// Frees a group that no reader uses any more.
    pub(super) fn give(&mut self, mut group: usize, mut size: usize) {
        while size < SIZES - 1 && self.free[size].remove(&(group ^ (1 << size))) {
            group &= !(1 << size);
            size += 1;
        }
        self.free[size].insert(group);
    }

    /// Returns how many lines are in use or in a free group.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// Returns the largest number of lines.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Returns how many lines are in free groups.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.iter().enumerate().map(|(size, free)| free.len() << size).sum()
    }
}
