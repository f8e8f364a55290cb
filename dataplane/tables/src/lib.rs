//! Lookup tables for pipeline stages. The tables do not depend on packets, configs or clocks.
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

/// The result of a batch lookup for an address, a key or a packet without a match.
pub const MISS: u32 = u32::MAX;

/// The largest value that a prefix table or an exact match table can store.
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
    /// The table has too few free cache lines for the prefix. Retired lines count as used until they are reclaimed.
    #[error("the prefix does not fit: too few of the {0} cache lines of the table are free")]
    NoFreeLines(usize),
    /// The table already holds its maximum number of keys, or no free slot was found for the key.
    #[error("the table has room for only {0} keys")]
    TooManyKeys(usize),
    /// The memory of the table, in bytes, cannot be allocated.
    #[error("cannot allocate {} MiB of memory for a table", .0.div_ceil(1 << 20))]
    Memory(usize),
}

/// Returns a slice of zeroed elements. Pages are mapped on first touch, as huge pages if possible.
///
/// # Errors
/// Returns [`TableError::Memory`] if the memory cannot be allocated.
fn zeroed<T: FromZeros>(len: usize) -> Result<Box<[T]>, TableError> {
    let all = FromZeros::new_box_zeroed_with_elems(len)
        .map_err(|_| TableError::Memory(len.saturating_mul(size_of::<T>())))?;
    advise_huge_pages(&all);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_allocated_is_an_error_with_its_size() {
        // No processor has this much address space.
        let error = zeroed::<u64>(1 << 57).unwrap_err();
        assert_eq!(error, TableError::Memory(1 << 60));
        assert_eq!(error.to_string(), "cannot allocate 1099511627776 MiB of memory for a table");
    }
}
