//! The tables behind the stages: data structures alone, with no packet, no config and no clock in them.
//!
//! Changing a table may allocate and is for the control path. Looking up never allocates, locks or panics.

pub mod bucket;
mod cells;
pub mod classifier;
pub mod exact;
mod first;
mod form;
mod lines;
pub mod lpm4;
pub mod lpm6;
#[cfg(test)]
mod lpm_tests;
mod runs;
mod tags;
mod trie;

use zerocopy::FromZeros;

use crate::mem::advise_huge_pages;

/// What a batch lookup writes where nothing matched.
pub const MISS: u32 = u32::MAX;

/// The greatest value that a prefix table stores.
pub const MAX_VALUE: u32 = (1 << 31) - 2;

/// Why a table refused an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A prefix longer than the address.
    #[error("a prefix length of {len} is above {max}, the bits of an address")]
    PrefixLength {
        /// The length given.
        len: u8,
        /// The greatest there is.
        max: u8,
    },
    /// A value above [`MAX_VALUE`].
    #[error("the value {0} is above {MAX_VALUE}, the greatest a table stores")]
    Value(u32),
    /// The table has as many cache lines as it may have. Those that were taken out count until they are reclaimed.
    #[error("the prefix needs more than the {0} cache lines that the table may have")]
    Full(usize),
    /// The table has as many keys as it takes.
    #[error("the table has room for no more than {0} keys")]
    Keys(usize),
}

/// As many elements that are zero, in pages that are mapped when they are touched: huge ones, where there are such.
fn zeroed<T: FromZeros>(len: usize) -> Box<[T]> {
    // It fails only as an allocation does, which ends the program wherever it fails.
    let all = FromZeros::new_box_zeroed_with_elems(len).unwrap_or_else(|_| panic!("no memory for {len} entries"));
    advise_huge_pages(&all);
    all
}
