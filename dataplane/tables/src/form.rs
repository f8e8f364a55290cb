//! The layout of cache lines of the trie for IPv4 and IPv6, and the lookup in a line.

use std::sync::atomic::{AtomicU64, Ordering};

use super::first::{FirstLevel, Narrow, Wide};

/// A cache line, as words. A line is either a node or a bucket. A node is 16 cells of 32 bits, two per word. The first
/// of the two cells is in the low bits of the word. A bucket is the boundaries between ranges of addresses, followed by
/// a cell for each range.
pub(super) type Line = [AtomicU64; WORDS];

/// The number of words of a line.
pub(super) const WORDS: usize = 8;

/// The number of cells of a node.
pub(super) const CELLS: usize = 16;

/// The layout of the addresses and of the buckets of an address family, IPv4 or IPv6. Addresses are left-aligned in 128
/// bits, and handled in halves of 64 bits.
///
/// A bucket divides the addresses that it covers into ranges, called runs. The last address of a run is its boundary.
/// The bucket stores the boundary of each run except the final run. The index of the cell for an address is the number
/// of boundaries that are less than the address.
pub trait AddressFamily {
    /// The address type of callers.
    type Address: Copy;
    /// The number of bits of an address.
    const BITS: u8;
    /// The type of the first level of the trie for this family.
    type FirstLevel: FirstLevel;
    /// The number of halves that contain address bits.
    const HALVES: usize;
    /// The maximum number of runs of a bucket. The cells of the runs are at the end of the line.
    const RUNS: usize;
    /// The index of the first cell of a bucket.
    const FIRST_CELL: usize = CELLS - Self::RUNS;

    /// Converts an address to the same address, left-aligned in 128 bits.
    fn left_align(address: Self::Address) -> u128;

    /// Converts an address that is left-aligned in 128 bits to the address type of callers.
    fn from_left_aligned(aligned: u128) -> Self::Address;

    /// Returns a half of an address. Half 0 has the leading bits.
    fn half(address: Self::Address, half: usize) -> u64;

    /// Returns the number of boundaries of a bucket that are less than `key`. The key is one half of an address.
    fn boundaries_below(line: &Line, key: u64) -> usize;

    /// Returns the boundary with this index, or `None` if the bucket has fewer boundaries. `covered` is any address
    /// that the bucket covers.
    fn boundary(line: &Line, index: usize, covered: u64) -> Option<u64>;

    /// Returns the words of a bucket with these boundaries. If there are fewer boundaries than the bucket can have, the
    /// other boundaries get a value that means no boundary. The bits of the cells are zero.
    fn bucket_words(boundaries: &[u64]) -> [u64; WORDS];
}

/// IPv4: a bucket has up to ten boundaries of 16 bits, and distinguishes addresses by at most 15 bits.
pub struct V4;

/// The lowest bit of each of four 16-bit fields.
const ONES: u64 = 0x0001_0001_0001_0001;

/// The mask of the bits that distinguish addresses of a bucket. A boundary with this value means no boundary, because
/// no address of a bucket is above this value.
const OFFSET: u64 = 0x7fff;

/// The number of unused low bits of the half that holds an IPv4 address in its high bits.
const UNUSED: u32 = 32;

impl AddressFamily for V4 {
    type Address = u32;
    const BITS: u8 = 32;
    type FirstLevel = Narrow;
    const HALVES: usize = 1;
    const RUNS: usize = 11;

    fn left_align(address: u32) -> u128 {
        u128::from(address) << 96
    }

    fn from_left_aligned(aligned: u128) -> u32 {
        (aligned >> 96) as u32
    }

    #[inline(always)]
    fn half(address: u32, _: usize) -> u64 {
        u64::from(address) << UNUSED
    }

    #[inline(always)]
    fn boundaries_below(line: &Line, key: u64) -> usize {
        let [first, second, third, ..] = line;
        // Compares four boundaries at once. The top bit of a field is set if the offset is above the boundary. No field
        // borrows from the next field, because no boundary is above `OFFSET`.
        let key = ((key >> UNUSED & OFFSET) + OFFSET) * ONES;
        let above = |word: &AtomicU64| key.wrapping_sub(word.load(Ordering::Relaxed)) >> 15 & ONES;
        // The third word has two boundaries in its low half, and a cell in its high half. The mask removes the result
        // of the cell. The subtraction of the cell cannot change the low half.
        let sum =
            above(first) + above(second) + (key.wrapping_sub(third.load(Ordering::Relaxed)) >> 15 & ONES & 0xffff_ffff);
        (sum.wrapping_mul(ONES) >> 48) as usize
    }

    fn boundary(line: &Line, index: usize, covered: u64) -> Option<u64> {
        let offset = line[index / 4].load(Ordering::Relaxed) >> (16 * (index % 4)) & 0xffff;
        let rest = ((OFFSET + 1) << UNUSED) - 1;
        (offset != OFFSET).then_some(covered & !rest | offset << UNUSED | ((1 << UNUSED) - 1))
    }

    fn bucket_words(boundaries: &[u64]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for at in 0..Self::RUNS - 1 {
            let offset = boundaries.get(at).map_or(OFFSET, |last| last >> UNUSED & OFFSET);
            words[at / 4] |= offset << (16 * (at % 4));
        }
        words
    }
}

/// IPv6: a bucket has up to five boundaries of 64 bits.
pub struct V6;

impl AddressFamily for V6 {
    type Address = u128;
    const BITS: u8 = 128;
    type FirstLevel = Wide;
    const HALVES: usize = 2;
    const RUNS: usize = 6;

    fn left_align(address: u128) -> u128 {
        address
    }

    fn from_left_aligned(aligned: u128) -> u128 {
        aligned
    }

    #[inline(always)]
    fn half(address: u128, half: usize) -> u64 {
        (if half == 0 { address >> 64 } else { address }) as u64
    }

    #[inline(always)]
    fn boundaries_below(line: &Line, key: u64) -> usize {
        let [first, second, third, fourth, fifth, ..] = line;
        [first, second, third, fourth, fifth].iter().map(|word| usize::from(word.load(Ordering::Relaxed) < key)).sum()
    }

    fn boundary(line: &Line, index: usize, _: u64) -> Option<u64> {
        // No address is above the maximum, so the maximum means no boundary.
        Some(line[index].load(Ordering::Relaxed)).filter(|last| *last != u64::MAX)
    }

    fn bucket_words(boundaries: &[u64]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate().take(Self::RUNS - 1) {
            *word = boundaries.get(at).copied().unwrap_or(u64::MAX);
        }
        words
    }
}

/// Returns a cell of a line.
#[inline(always)]
pub(super) fn cell(line: &Line, at: usize) -> u32 {
    // The remainder keeps the index in the line without a bounds check.
    let at = at % CELLS;
    (line[at / 2].load(Ordering::Acquire) >> (32 * (at % 2))) as u32
}

/// Writes a cell. Only one thread writes.
pub(super) fn set_cell(line: &Line, at: usize, entry: u32) {
    let (word, shift) = (&line[at / 2], 32 * (at % 2));
    let others = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
    // An entry may contain the number of a line. With `Release`, a reader that loads this number also sees the contents
    // of that line.
    word.store(others | u64::from(entry) << shift, Ordering::Release);
}
