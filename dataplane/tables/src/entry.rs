//! The layout of an entry: a value, or a reference to lines. Lines are the cache lines behind the first level. Cells
//! hold entries. See [`super::trie`].

/// The entry leads to lines. Without this bit, the other bits are a value plus one, or 0 for no value.
pub(super) const LINE: u32 = 1 << 31;
/// The lines are buckets, not a node.
pub(super) const BUCKET: u32 = 1 << 30;
/// The lines distinguish addresses by their second half.
pub(super) const LOW: u32 = 1 << 29;
/// Shift of the field that contains the number of address bits that select one of the buckets.
pub(super) const CHOICE: u32 = 26;
/// Mask of the number of the first line.
pub(super) const NUMBER: u32 = (1 << 24) - 1;

/// Returns the number of the line that an entry leads to. For buckets, the next bits of the address select the line.
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
