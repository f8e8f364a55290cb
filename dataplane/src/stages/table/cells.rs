//! What is looked up in: see [`super::trie`].

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::MISS;
use super::first::First;
use super::form::{Form, cell};
use super::lines::Lines;
use crate::mem::prefetch;

/// In an entry: it says where lines are. Without: the other bits are a value plus one, or 0 for none.
pub(super) const LINE: u32 = 1 << 31;
/// The lines are buckets, not a node.
pub(super) const BUCKET: u32 = 1 << 30;
/// The lines tell addresses apart by the second half.
pub(super) const LOW: u32 = 1 << 29;
/// How many bits of an address choose among the buckets.
pub(super) const CHOICE: u32 = 26;
/// The number of the first line.
pub(super) const NUMBER: u32 = (1 << 24) - 1;

/// Bits that choose a cell of a node.
pub(super) const NODE_BITS: u32 = 4;

/// How many lookups of a batch are under way at once.
const WAYS: usize = 32;

/// So many cells of the first level are gone on with at once.
const TOGETHER: usize = 4;

/// What is looked up in.
pub(super) struct Cells<F: Form> {
    pub(super) first: F::First,
    pub(super) lines: Lines,
    pub(super) default: AtomicU32,
}

impl<F: Form> Cells<F> {
    /// Of so many lines.
    pub(super) fn new(lines: usize) -> Self {
        Self { first: F::First::new(), lines: Lines::new(lines), default: AtomicU32::new(0) }
    }

    #[inline]
    pub(super) fn lookup(&self, address: F::Address) -> Option<u32> {
        let mut value = [MISS];
        self.lookup_batch(&[address], &mut value);
        (value[0] != MISS).then_some(value[0])
    }

    /// Looks up as many addresses as both slices have.
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

    /// Looks up at most [`WAYS`] addresses, as many as values. All go down level by level together, so that the processor waits
    /// for their cache misses at the same time.
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
            // What the cells said was so before what is read behind: the default here, and all that values are numbers of.
            fence(Ordering::Acquire);
            // A table that had no default before and no cell after may have had either at all times. A default that went and came
            // back meanwhile is not noticed: that takes several changes while one batch is looked up.
            if self.default.load(Ordering::Acquire) == default {
                return;
            }
        }
    }

    /// The values of addresses that all end in the first level, with `or_default` for cells that say none. `false`: one goes on.
    ///
    /// What waits for a load that misses the caches takes a place in the processor from loads that could be under way
    /// meanwhile: every instruction counts, even those that take no time. So nothing waits for the first look at a cell, and of
    /// the second little, done with several at once; arrays need no loop, and a function of its own has all registers.
    #[inline(never)]
    fn in_first<A, V>(first: &F::First, addresses: &A, values: &mut V, or_default: impl Fn(u32) -> u32) -> bool
    where
        A: AsRef<[F::Address]> + ?Sized,
        V: AsMut<[u32]> + ?Sized,
    {
        for address in addresses.as_ref() {
            first.fetch(Self::slot(*address));
        }
        // As if it were another array, or what was made of each address would be written down to be read again.
        let addresses = std::hint::black_box(addresses).as_ref();
        let ((some, rest), (into, into_rest)) =
            (addresses.as_chunks::<TOGETHER>(), values.as_mut().as_chunks_mut::<TOGETHER>());
        let mut on = 0;
        for (addresses, values) in some.iter().zip(into) {
            let cells = addresses.map(|address| first.near(Self::slot(address)));
            *values = cells.map(|cell| or_default(cell).wrapping_sub(1));
            on |= cells.iter().fold(0, |on, cell| on | F::First::goes_on(*cell));
        }
        for (address, value) in rest.iter().zip(into_rest) {
            let cell = first.near(Self::slot(*address));
            *value = or_default(cell).wrapping_sub(1);
            on |= F::First::goes_on(cell);
        }
        on & F::First::ON == 0
    }

    /// Which cell of the first level an address is in.
    #[inline(always)]
    fn slot(address: F::Address) -> usize {
        (F::half(address, 0) >> (64 - F::First::BITS)) as usize
    }

    /// The values of up to [`WAYS`] addresses.
    #[inline(never)]
    fn descend(&self, addresses: &[F::Address], values: &mut [u32], default: u32) {
        self.last_cells(addresses, values);
        for entry in values {
            *entry = if *entry == 0 { default } else { *entry }.wrapping_sub(1);
        }
    }

    /// What the last cell on the way of each of up to [`WAYS`] addresses says.
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

    /// Goes on through the lines of one half. Gives the bits of what it comes to.
    #[inline]
    fn descend_half(&self, addresses: &[F::Address], entries: &mut [u32], half: usize) -> u32 {
        let (mut shift, this) = if half == 0 { (F::First::BITS, LINE) } else { (0, LINE | LOW) };
        // Those that have not come to a value, with no branch that they decide.
        let (mut lanes, mut keys, mut links, mut count) = ([0; WAYS], [0; WAYS], [0; WAYS], 0);
        for (lane, (address, entry)) in addresses.iter().zip(entries.iter()).enumerate() {
            (lanes[count % WAYS], keys[count % WAYS], links[count % WAYS]) = (lane, F::half(*address, half), *entry);
            count += usize::from(entry & (LINE | LOW) == this);
        }
        let mut pending = 0;
        while count > 0 && shift < u64::BITS {
            // First where the lines are, then what they say: so all these loads are under way at once.
            let mut lines = [self.lines.line(usize::MAX / 16); WAYS];
            for ((key, link), line) in keys.iter().zip(&links).zip(&mut lines).take(count) {
                *line = self.lines.line(line_of(*link, key << shift));
                prefetch(line.as_ptr());
            }
            let mut still = 0;
            for (at, line) in lines.iter().enumerate().take(count) {
                let (lane, key, link) = (lanes[at], keys[at], links[at]);
                let place = if link & BUCKET != 0 {
                    F::FIRST + F::below(line, key)
                } else {
                    (key << shift >> (u64::BITS - NODE_BITS)) as usize
                };
                let found = cell(line, place);
                pending |= found;
                if let Some(entry) = entries.get_mut(lane) {
                    *entry = found;
                }
                (lanes[still % WAYS], keys[still % WAYS], links[still % WAYS]) = (lane, key, found);
                still += usize::from(found & (LINE | LOW) == this);
            }
            count = still;
            shift += NODE_BITS;
        }
        pending
    }
}

/// The number of the line that an entry leads to: of the buckets, the next bits of the address choose one.
#[inline(always)]
pub(super) fn line_of(entry: u32, next: u64) -> usize {
    let bits = size_of_group(entry) as u32;
    // By two steps, as there may be no bit.
    (entry & NUMBER) as usize + (next >> 1 >> (u64::BITS - 1 - bits)) as usize
}

/// Two to this the buckets are that an entry leads to.
#[inline(always)]
pub(super) fn size_of_group(entry: u32) -> usize {
    (entry >> CHOICE & 3) as usize
}
