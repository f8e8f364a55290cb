//! The memory of a trie: cache lines by number, singly or in groups of two, four or eight that begin at a multiple of
//! that. They are handed out as buddies (Knowlton, "A fast storage allocator", CACM 1965): a group is halved when a smaller one is
//! asked for, and joined with its other half again when both are free.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use super::form::{Line, WORDS};
use super::zeroed;

/// The most lines.
pub(super) const LINES: usize = 1 << 22;

/// The sizes of groups: 1 to 8 lines.
pub(super) const SIZES: usize = 4;

/// Lines of the greatest group.
const GROUP: usize = 1 << (SIZES - 1);

static NOTHING: Line = [const { AtomicU64::new(0) }; WORDS];

/// The lines, which any thread reads.
pub(super) struct Lines {
    words: Box<[AtomicU64]>,
    /// Where the first line begins.
    first: usize,
}

impl Lines {
    /// So many. They are mapped when they are written to.
    pub(super) fn new(lines: usize) -> Self {
        // Aligned by hand: of memory that is to be aligned otherwise the allocator writes the zeros itself, and so maps it all.
        let words: Box<[AtomicU64]> = zeroed((lines + 1) * WORDS);
        let first = words.as_ptr().align_offset(64).min(WORDS);
        Self { words, first }
    }

    /// A line; one of zeros, where there is none.
    #[inline(always)]
    pub(super) fn line(&self, number: usize) -> &Line {
        self.words.get(self.first + number * WORDS..).and_then(|words| words.first_chunk()).unwrap_or(&NOTHING)
    }
}

/// Which lines are in use. One thread has it.
pub(super) struct Allocator {
    /// Groups that are free, by size.
    free: [BTreeSet<usize>; SIZES],
    /// Lines that were ever handed out.
    made: usize,
    /// The most lines.
    most: usize,
}

impl Allocator {
    /// At most so many lines: rounded up to whole groups of the greatest size.
    pub(super) fn new(most: usize) -> Self {
        Self { free: Default::default(), made: 0, most: most.min(LINES).next_multiple_of(GROUP) }
    }

    /// Whether there are so many groups of each size.
    pub(super) fn has(&self, needed: &[usize; SIZES]) -> bool {
        let mut whole = (self.most - self.made) / GROUP;
        self.free.iter().zip(needed).rev().all(|(free, needed)| {
            let there = free.len() + whole;
            whole = 2 * there.saturating_sub(*needed);
            there >= *needed
        })
    }

    /// Takes a group of two to the `size` lines. [`Allocator::has`] has said that there is one.
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

    /// Gives a group back that nobody looks at any more.
    pub(super) fn give(&mut self, mut group: usize, mut size: usize) {
        while size < SIZES - 1 && self.free[size].remove(&(group ^ (1 << size))) {
            group &= !(1 << size);
            size += 1;
        }
        self.free[size].insert(group);
    }

    /// How many lines were ever handed out.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// The most lines.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// How many of those that were handed out are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.iter().enumerate().map(|(size, free)| free.len() << size).sum()
    }
}
