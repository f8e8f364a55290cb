//! Longest-prefix-match lookup of IPv4 and IPv6 addresses.

use dataplane::tables::lpm::{Lpm4, Lpm6};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{Table, fail, file};

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Prefix4 {
    address: u32,
    len: u32,
    value: u32,
}

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Prefix6 {
    address: [u8; 16],
    len: u32,
    value: u32,
}

pub(crate) struct V4 {
    table: Lpm4,
    addresses: Vec<u32>,
}

impl V4 {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (prefixes, addresses) = file::read::<Prefix4, u32>(bytes);
        let prefixes: Vec<_> = prefixes.iter().map(|it| (it.address, it.len as u8, it.value)).collect();
        let table = Lpm4::build(&prefixes).unwrap_or_else(|error| fail(&error.to_string()));
        Self { table, addresses }
    }
}

impl Table for V4 {
    fn lookup_count(&self) -> usize {
        self.addresses.len()
    }

    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]) {
        self.table.lookup_batch(&self.addresses[range], values);
    }
}

pub(crate) struct V6 {
    table: Lpm6,
    addresses: Vec<u128>,
}

impl V6 {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (prefixes, addresses) = file::read::<Prefix6, [u8; 16]>(bytes);
        let prefixes: Vec<_> =
            prefixes.iter().map(|it| (u128::from_be_bytes(it.address), it.len as u8, it.value)).collect();
        let table = Lpm6::build(&prefixes).unwrap_or_else(|error| fail(&error.to_string()));
        Self { table, addresses: addresses.into_iter().map(u128::from_be_bytes).collect() }
    }
}

impl Table for V6 {
    fn lookup_count(&self) -> usize {
        self.addresses.len()
    }

    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]) {
        self.table.lookup_batch(&self.addresses[range], values);
    }
}
