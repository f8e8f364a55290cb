//! The bit layout of a trie entry. Each cell of the trie holds one entry. An entry is a value, or a reference to lines:
//! the cache lines behind the first level. A line is a node (an array of 16 cells) or a bucket (the boundaries of
//! address ranges, and a cell for each range). See [`super::trie`].

/// Set if the entry leads to lines. If this bit is clear, the other bits are a value plus one, or 0 for no value.
pub(super) const LINE: u32 = 1 << 31;
/// Set if the lines are buckets, and clear if the line is a node.
pub(super) const BUCKET: u32 = 1 << 30;
/// Set if the lines distinguish addresses by their second 64 bits.
pub(super) const LOW: u32 = 1 << 29;
/// The lowest bit of a two-bit field. If the entry leads to several buckets, the field is the number of address bits
/// that select one of these buckets.
pub(super) const CHOICE: u32 = 26;
/// The mask of the number of the first line.
pub(super) const NUMBER: u32 = (1 << 24) - 1;

/// Returns the number of the line that an entry leads to. `next` contains the address bits that no earlier cell has
/// used, aligned to the left. The first bits of `next` select one of several buckets.
#[inline(always)]
pub(super) fn line_of(entry: u32, next: u64) -> usize {
    let bits = size_of_group(entry) as u32;
    // Shift in two steps, because the number of bits may be 0.
    (entry & NUMBER) as usize + (next >> 1 >> (u64::BITS - 1 - bits)) as usize
}

/// Returns the base-2 logarithm of the number of buckets that an entry leads to.
#[inline(always)]
pub(super) fn size_of_group(entry: u32) -> usize {
    (entry >> CHOICE & 3) as usize
}
