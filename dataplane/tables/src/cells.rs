//! The part of a trie that lookups read: the cells of the first level, and the cache lines (lines) that these cells
//! lead to. See [`super::trie`].

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::entry::{BUCKET, LINE, LOW, line_of};
use super::first::FirstLevel;
use super::form::{AddressFamily, cell};
use super::lines::Lines;
use super::{MISS, TableError};
use dataplane_core::mem::prefetch;

/// The number of address bits that select one of the 16 cells of a node. A node is one kind of line.
pub(super) const NODE_BITS: u32 = 4;

/// The number of lookups of a batch that run at the same time.
const WAYS: usize = 32;

/// The number of cells of the first level that are read at a time.
const CELLS_AT_ONCE: usize = 4;

/// The data that lookups read.
pub(super) struct Cells<F: AddressFamily> {
    pub(super) first: F::FirstLevel,
    pub(super) lines: Lines,
    /// The value of the prefix of length 0, plus one. 0 if the table does not have this prefix.
    pub(super) default: AtomicU32,
}

impl<F: AddressFamily> Cells<F> {
    /// Creates an empty first level, and `lines` lines behind the first level.
    ///
    /// # Errors
    /// Returns [`TableError::Memory`] if there is not enough memory.
    pub(super) fn new(lines: usize) -> Result<Self, TableError> {
        Ok(Self { first: F::FirstLevel::new()?, lines: Lines::new(lines)?, default: AtomicU32::new(0) })
    }

    #[inline]
    pub(super) fn lookup(&self, address: F::Address) -> Option<u32> {
        let mut value = [MISS];
        self.lookup_batch(&[address], &mut value);
        (value[0] != MISS).then_some(value[0])
    }

    /// Looks up a batch of addresses. If the slices have different lengths, the rest of the longer slice is ignored.
    #[inline]
    pub(super) fn lookup_batch(&self, addresses: &[F::Address], values: &mut [u32]) {
        let arrays = (<&[_; WAYS]>::try_from(addresses), <&mut [_; WAYS]>::try_from(&mut *values));
        let (Ok(addresses), Ok(values)) = arrays else { return self.lookup_any(addresses, values) };
        self.lookup_ways(addresses, values);
    }

    #[inline(never)]
    fn lookup_any(&self, addresses: &[F::Address], values: &mut [u32]) {
        let both = addresses.len().min(values.len());
        let (whole, rest) = addresses[..both].as_chunks::<WAYS>();
        let (into, into_rest) = values[..both].as_chunks_mut::<WAYS>();
        for (addresses, values) in whole.iter().zip(into) {
            self.lookup_ways(addresses, values);
        }
        if !rest.is_empty() {
            self.lookup_ways(rest, into_rest);
        }
    }

    /// Looks up at most [`WAYS`] addresses. `addresses` and `values` have the same length. All addresses descend
    /// together, level by level, so that their cache misses overlap.
    #[inline(always)]
    fn lookup_ways<A, V>(&self, addresses: &A, values: &mut V)
    where
        A: AsRef<[F::Address]> + ?Sized,
        V: AsMut<[u32]> + ?Sized,
    {
        loop {
            let default = self.default.load(Ordering::Acquire);
            let done = if default == 0 {
                Self::in_first(&self.first, addresses, values, |entry| entry)
            } else {
                Self::in_first(&self.first, addresses, values, |entry| if entry == 0 { default } else { entry })
            };
            if !done {
                self.descend(addresses.as_ref(), values.as_mut(), default);
            }
            // The fence orders the reads of the cells before two later loads: the load of the default below, and the
            // loads that the caller makes with the values.
            fence(Ordering::Acquire);
            // If the default changed during the lookup, an address could get no value although it always had a value.
            // The lookup then runs again. The check does not detect a default that was changed and restored during the
            // lookup. For that, the default must change at least twice during one batch.
            if self.default.load(Ordering::Acquire) == default {
                return;
            }
        }
    }

    /// Looks up addresses with one load per address. `or_default` replaces empty cells. Returns `false` if any address
    /// needs a further load. The value of such an address is not valid.
    ///
    /// Instructions that wait for a cache miss fill the reorder buffer of the processor and delay further loads. The
    /// function therefore uses few instructions per address, and converts several cells at once. Arrays of fixed size
    /// avoid loops. The function is not inlined, so that it can use all registers.
    #[inline(never)]
    fn in_first<A, V>(first: &F::FirstLevel, addresses: &A, values: &mut V, or_default: impl Fn(u32) -> u32) -> bool
    where
        A: AsRef<[F::Address]> + ?Sized,
        V: AsMut<[u32]> + ?Sized,
    {
        for address in addresses.as_ref() {
            first.fetch(Self::slot(*address));
        }
        // Hides from the compiler that the prefetches and the loads use the same array. Otherwise the compiler would
        // store intermediate results of each address and load them again.
        let addresses = std::hint::black_box(addresses).as_ref();
        let ((some, rest), (into, into_rest)) =
            (addresses.as_chunks::<CELLS_AT_ONCE>(), values.as_mut().as_chunks_mut::<CELLS_AT_ONCE>());
        let mut continues = 0;
        for (addresses, values) in some.iter().zip(into) {
            let cells = addresses.map(|address| first.entry_or_marker(Self::slot(address)));
            *values = cells.map(|cell| or_default(cell).wrapping_sub(1));
            continues |= cells.iter().fold(0, |continues, cell| continues | F::FirstLevel::continue_bits(*cell));
        }
        for (address, value) in rest.iter().zip(into_rest) {
            let cell = first.entry_or_marker(Self::slot(*address));
            *value = or_default(cell).wrapping_sub(1);
            continues |= F::FirstLevel::continue_bits(cell);
        }
        continues & F::FirstLevel::CONTINUE_BIT == 0
    }

    /// Returns the index of the cell of the first level for an address.
    #[inline(always)]
    fn slot(address: F::Address) -> usize {
        (F::half(address, 0) >> (64 - F::FirstLevel::BITS)) as usize
    }

    /// Looks up at most [`WAYS`] addresses through all levels.
    #[inline(never)]
    fn descend(&self, addresses: &[F::Address], values: &mut [u32], default: u32) {
        self.last_cells(addresses, values);
        for entry in values {
            *entry = if *entry == 0 { default } else { *entry }.wrapping_sub(1);
        }
    }

    /// Follows the path of each address from the first level to its last cell, and writes that cell to `entries`. Takes
    /// at most [`WAYS`] addresses.
    #[inline(always)]
    fn last_cells(&self, addresses: &[F::Address], entries: &mut [u32]) {
        let mut pending = 0;
        for (address, entry) in addresses.iter().zip(entries.iter_mut()) {
            *entry = self.first.cell(Self::slot(*address));
            pending |= *entry;
        }
        for half in 0..F::HALVES {
            if pending & LINE == 0 {
                return;
            }
            pending = self.descend_half(addresses, entries, half);
        }
    }

    /// Continues the paths of all addresses through the lines that the bits of one half (64 bits) of each address
    /// select. Returns the bitwise OR of all cells that were read.
    #[inline]
    fn descend_half(&self, addresses: &[F::Address], entries: &mut [u32], half: usize) -> u32 {
        let (mut shift, expected) = if half == 0 { (F::FirstLevel::BITS, LINE) } else { (0, LINE | LOW) };
        // Collect the addresses that have no value yet. No branch depends on an address.
        let (mut lanes, mut keys, mut links, mut count) = ([0; WAYS], [0; WAYS], [0; WAYS], 0);
        for (lane, (address, entry)) in addresses.iter().zip(entries.iter()).enumerate() {
            (lanes[count % WAYS], keys[count % WAYS], links[count % WAYS]) = (lane, F::half(*address, half), *entry);
            count += usize::from(entry & (LINE | LOW) == expected);
        }
        let mut pending = 0;
        while count > 0 && shift < u64::BITS {
            // The first loop prefetches all lines, and the second loop reads the lines, so that all loads overlap.
            let mut lines = [self.lines.line(usize::MAX / 16); WAYS];
            for ((key, link), line) in keys.iter().zip(&links).zip(&mut lines).take(count) {
                *line = self.lines.line(line_of(*link, key << shift));
                prefetch(line.as_ptr());
            }
            let mut remaining = 0;
            for (at, line) in lines.iter().enumerate().take(count) {
                let (lane, key, link) = (lanes[at], keys[at], links[at]);
                let place = if link & BUCKET != 0 {
                    F::FIRST_CELL + F::boundaries_below(line, key)
                } else {
                    (key << shift >> (u64::BITS - NODE_BITS)) as usize
                };
                let found = cell(line, place);
                pending |= found;
                if let Some(entry) = entries.get_mut(lane) {
                    *entry = found;
                }
                (lanes[remaining % WAYS], keys[remaining % WAYS], links[remaining % WAYS]) = (lane, key, found);
                remaining += usize::from(found & (LINE | LOW) == expected);
            }
            count = remaining;
            shift += NODE_BITS;
        }
        pending
    }
}
