//! The format of the input files: the number of entries, the number of lookups, the table entries, and the lookups. The
//! two counts have 32 bits. All numbers are little-endian.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{BATCH, fail};

/// Returns the entries and the lookups of a file. The number of lookups is a multiple of the batch size.
pub(crate) fn read<E, L>(bytes: &[u8]) -> (Vec<E>, Vec<L>)
where
    E: FromBytes + Immutable + KnownLayout + Copy,
    L: FromBytes + Immutable + KnownLayout + Copy,
{
    let mut rest = bytes;
    let (entries, lookups) = take::<[u32; 2]>(&mut rest).map(|count| count as usize).into();
    let entries = (0..entries).map(|_| take(&mut rest)).collect();
    let lookups: Vec<L> = (0..lookups).map(|_| take(&mut rest)).collect();
    if !rest.is_empty() || lookups.is_empty() || !lookups.len().is_multiple_of(BATCH) {
        fail("the file has extra bytes, or its lookups do not fill whole batches");
    }
    (entries, lookups)
}

fn take<T: FromBytes>(rest: &mut &[u8]) -> T {
    let (value, remainder) = T::read_from_prefix(rest).unwrap_or_else(|_| fail("the file is truncated"));
    *rest = remainder;
    value
}
