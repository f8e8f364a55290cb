//! The files: two counts of 32 bits, then as many entries of the table, then as many lookups; the numbers in the byte
//! order of x86.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{BATCH, fail};

/// The entries and the lookups of a file. The lookups fill whole batches.
pub(crate) fn read<E, L>(bytes: &[u8]) -> (Vec<E>, Vec<L>)
where
    E: FromBytes + Immutable + KnownLayout + Copy,
    L: FromBytes + Immutable + KnownLayout + Copy,
{
    let bad = || fail("the file is cut short");
    let (counts, rest) = <[u32; 2]>::read_from_prefix(bytes).unwrap_or_else(|_| bad());
    let (entries, lookups) = counts.map(|count| count as usize).into();
    let mut rest = rest;
    let entries = (0..entries).map(|_| take(&mut rest)).collect();
    let lookups: Vec<L> = (0..lookups).map(|_| take(&mut rest)).collect();
    if !rest.is_empty() || lookups.is_empty() || !lookups.len().is_multiple_of(BATCH) {
        bad();
    }
    (entries, lookups)
}

fn take<T: FromBytes>(rest: &mut &[u8]) -> T {
    let (one, behind) = T::read_from_prefix(rest).unwrap_or_else(|_| fail("the file is cut short"));
    *rest = behind;
    one
}
