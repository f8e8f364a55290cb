//! How addresses of IPv4 and of IPv6 are looked up in a cache line of the trie.

use std::sync::atomic::{AtomicU64, Ordering};

use super::first::{First, Narrow, Wide};

/// A cache line, as words. It is a node: 16 cells of 32 bits, two a word, the first in the low bits. Or it is a bucket:
/// boundaries in front, cells behind.
pub(super) type Line = [AtomicU64; WORDS];

/// Words of a line.
pub(super) const WORDS: usize = 8;

/// Cells that a line would have, if it had nothing else.
pub(super) const CELLS: usize = 16;

/// One kind of addresses. They are left-aligned in 128 bits, and taken in halves of 64.
///
/// A bucket divides what it covers into runs of addresses. Of each run but the last it has the last address: the
/// boundary. The cell of an address is that behind as many others as there are boundaries below the address.
pub(super) trait Form {
    /// As callers have them.
    type Address: Copy;
    /// Their first level.
    type First: First;
    /// How many halves can differ.
    const HALVES: usize;
    /// Runs of a bucket, at the most. Their cells end where the line does.
    const RUNS: usize;
    /// The first cell of a bucket.
    const FIRST: usize = CELLS - Self::RUNS;

    /// A half of an address.
    fn half(address: Self::Address, half: usize) -> u64;

    /// How many boundaries are below an address, of which this is the half.
    fn below(line: &Line, key: u64) -> usize;

    /// A boundary. `None`: there are fewer. `near` is an address that the bucket covers.
    fn boundary(line: &Line, at: usize, near: u64) -> Option<u64>;

    /// The words in front of a bucket, what is not of boundaries zero.
    fn words(boundaries: &[u64]) -> [u64; WORDS];
}

/// IPv4: boundaries of 16 bits, ten of them. What a line covers has no more than 15 bits.
pub(super) struct V4;

/// A bit in each place of four.
const ONES: u64 = 0x0001_0001_0001_0001;

/// The bits that tell addresses of a bucket apart; as a boundary: none, as no address is above.
const OFFSET: u64 = 0x7fff;

/// The bits behind an address of IPv4, in its half.
const BEHIND: u32 = 32;

impl Form for V4 {
    type Address = u32;
    type First = Narrow;
    const HALVES: usize = 1;
    const RUNS: usize = 11;

    #[inline(always)]
    fn half(address: u32, _: usize) -> u64 {
        u64::from(address) << BEHIND
    }

    #[inline(always)]
    fn below(line: &Line, key: u64) -> usize {
        let [first, second, third, ..] = line;
        // Four at once. The top bit of a place stays where the offset is above the boundary; no place borrows of the next.
        let key = ((key >> BEHIND & OFFSET) + OFFSET) * ONES;
        let above = |word: &AtomicU64| key.wrapping_sub(word.load(Ordering::Relaxed)) >> 15 & ONES;
        // Behind the third word's two boundaries lies a cell: what comes of it is left out, and what it borrows goes up.
        let sum =
            above(first) + above(second) + (key.wrapping_sub(third.load(Ordering::Relaxed)) >> 15 & ONES & 0xffff_ffff);
        (sum.wrapping_mul(ONES) >> 48) as usize
    }

    fn boundary(line: &Line, at: usize, near: u64) -> Option<u64> {
        let offset = line[at / 4].load(Ordering::Relaxed) >> (16 * (at % 4)) & 0xffff;
        let rest = ((OFFSET + 1) << BEHIND) - 1;
        (offset != OFFSET).then_some(near & !rest | offset << BEHIND | ((1 << BEHIND) - 1))
    }

    fn words(boundaries: &[u64]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for at in 0..Self::RUNS - 1 {
            let offset = boundaries.get(at).map_or(OFFSET, |last| last >> BEHIND & OFFSET);
            words[at / 4] |= offset << (16 * (at % 4));
        }
        words
    }
}

/// IPv6: boundaries of 64 bits, five of them.
pub(super) struct V6;

impl Form for V6 {
    type Address = u128;
    type First = Wide;
    const HALVES: usize = 2;
    const RUNS: usize = 6;

    #[inline(always)]
    fn half(address: u128, half: usize) -> u64 {
        (if half == 0 { address >> 64 } else { address }) as u64
    }

    #[inline(always)]
    fn below(line: &Line, key: u64) -> usize {
        let [first, second, third, fourth, fifth, ..] = line;
        [first, second, third, fourth, fifth].iter().map(|word| usize::from(word.load(Ordering::Relaxed) < key)).sum()
    }

    fn boundary(line: &Line, at: usize, _: u64) -> Option<u64> {
        // No address is above the greatest, so that it is none.
        Some(line[at].load(Ordering::Relaxed)).filter(|last| *last != u64::MAX)
    }

    fn words(boundaries: &[u64]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate().take(Self::RUNS - 1) {
            *word = boundaries.get(at).copied().unwrap_or(u64::MAX);
        }
        words
    }
}

/// The cell at a place of a line.
#[inline(always)]
pub(super) fn cell(line: &Line, at: usize) -> u32 {
    // Below 16.
    let at = at % CELLS;
    (line[at / 2].load(Ordering::Acquire) >> (32 * (at % 2))) as u32
}

/// Writes it. One thread alone does.
pub(super) fn set_cell(line: &Line, at: usize, entry: u32) {
    let (word, shift) = (&line[at / 2], 32 * (at % 2));
    let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
    // Who sees the number of a line sees what was written to that.
    word.store(others | u64::from(entry) << shift, Ordering::Release);
}
