//! Lookup tables of the stages: data structures that do not depend on packets, configs or clocks.
//!
//! A change of a table may allocate memory, so only the control path changes tables. Lookups never allocate, lock or
//! panic.

pub mod bucket;
mod cells;
pub mod classifier;
mod entry;
pub mod exact;
mod first;
mod form;
mod lines;
pub mod lpm;
#[cfg(test)]
mod lpm_tests;
mod runs;
mod tags;
mod trie;

use zerocopy::FromZeros;

use dataplane_core::mem::advise_huge_pages;

/// The result of a batch lookup for an address or a key without a match.
pub const MISS: u32 = u32::MAX;

/// The largest value that a prefix table can store.
pub const MAX_VALUE: u32 = (1 << 31) - 2;

/// The reason why a table refused an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The prefix is longer than the address.
    #[error("prefix length {len} is above {max}, the number of bits of an address")]
    PrefixLength {
        /// The given length.
        len: u8,
        /// The largest valid length.
        max: u8,
    },
    /// The value is above [`MAX_VALUE`].
    #[error("value {0} is above {MAX_VALUE}, the largest that a table can store")]
    Value(u32),
    /// The table has no free cache line. Retired lines count as used until they are reclaimed.
    #[error("the prefix needs more cache lines than the {0} of the table")]
    Full(usize),
    /// The table holds the largest number of keys already.
    #[error("the table has room for only {0} keys")]
    Keys(usize),
}

/// Returns a slice of zeroed elements. Pages are mapped on first touch, as huge pages if possible.
fn zeroed<T: FromZeros>(len: usize) -> Box<[T]> {
    // The call only fails if an allocation fails, which always ends the program.
    let all = FromZeros::new_box_zeroed_with_elems(len).unwrap_or_else(|_| panic!("no memory for {len} entries"));
    advise_huge_pages(&all);
    all
}
