//! What is looked up in: see [`super::trie`].

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use super::form::{Form, cell};
use super::lines::Lines;
use super::{MISS, zeroed};
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

/// As many lookups in the first level are written out one after another.
const UNROLLED: usize = 8;

/// What is looked up in. `SLOTS` is a power of two.
pub(super) struct Cells<F, const SLOTS: usize> {
    pub(super) first: Box<[AtomicU32; SLOTS]>,
    pub(super) lines: Lines,
    pub(super) default: AtomicU32,
    form: PhantomData<F>,
}

impl<F: Form, const SLOTS: usize> Cells<F, SLOTS> {
    const FIRST_BITS: u32 = SLOTS.ilog2();

    /// Of so many lines.
    pub(super) fn new(lines: usize) -> Self {
        Self { first: boxed(zeroed(SLOTS)), lines: Lines::new(lines), default: AtomicU32::new(0), form: PhantomData }
    }

    #[inline]
    pub(super) fn lookup(&self, address: F::Address) -> Option<u32> {
        let mut value = [MISS];
        self.lookup_batch(&[address], &mut value);
        (value[0] != MISS).then_some(value[0])
    }

    /// Looks up as many addresses as both slices have. All go down level by level together, so that the processor
    /// waits for their cache misses at the same time.
    #[inline]
    pub(super) fn lookup_batch(&self, addresses: &[F::Address], values: &mut [u32]) {
        let both = addresses.len().min(values.len());
        let (addresses, values) = (&addresses[..both], &mut values[..both]);
        loop {
            let default = self.default.load(Ordering::Acquire);
            for (addresses, values) in addresses.chunks(WAYS).zip(values.chunks_mut(WAYS)) {
                let done = if default == 0 {
                    self.in_first(addresses, values, |entry| entry)
                } else {
                    self.in_first(addresses, values, |entry| if entry == 0 { default } else { entry })
                };
                if done {
                    continue;
                }
                self.descend(addresses, values);
                for entry in values {
                    *entry = if *entry == 0 { default } else { *entry }.wrapping_sub(1);
                }
            }
            // A table that had no default before and no cell after may have had either at all times.
            if self.default.load(Ordering::Acquire) == default {
                return;
            }
        }
    }

    /// The values of addresses that all end in the first level, with `or_default` for cells that say none. `false`: one goes on.
    ///
    /// What waits for a load that misses the caches takes a place in the processor from loads that could be under way
    /// meanwhile. So nothing waits for the first look at a cell, and little for the second: whether it leads on is a branch, and
    /// what was written is not read again.
    #[inline(always)]
    fn in_first(&self, addresses: &[F::Address], values: &mut [u32], or_default: impl Fn(u32) -> u32) -> bool {
        let look = |address: &F::Address, value: &mut u32| {
            let entry = self.first[Self::slot(*address)].load(Ordering::Acquire);
            *value = or_default(entry).wrapping_sub(1);
            entry & LINE == 0
        };
        for address in addresses {
            prefetch(self.first.as_ptr().wrapping_add(Self::slot(*address)));
        }
        let ((some, rest), (into, into_rest)) = (addresses.as_chunks::<UNROLLED>(), values.as_chunks_mut::<UNROLLED>());
        let whole =
            some.iter().zip(into).all(|(some, into)| some.iter().zip(into).all(|(one, value)| look(one, value)));
        whole && rest.iter().zip(into_rest).all(|(one, value)| look(one, value))
    }

    /// Which cell of the first level an address is in.
    #[inline(always)]
    fn slot(address: F::Address) -> usize {
        (F::half(address, 0) >> (64 - Self::FIRST_BITS)) as usize & (SLOTS - 1)
    }

    /// What the last cell on the way of each of up to [`WAYS`] addresses says.
    #[inline]
    fn descend(&self, addresses: &[F::Address], entries: &mut [u32]) {
        let mut pending = 0;
        for (address, entry) in addresses.iter().zip(entries.iter_mut()) {
            *entry = self.first[Self::slot(*address)].load(Ordering::Acquire);
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
        let (mut shift, this) = if half == 0 { (Self::FIRST_BITS, LINE) } else { (0, LINE | LOW) };
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

/// An array made from a slice on the heap, never on the stack. The slice is one for which the allocator was asked for pages
/// that are zero already, and are mapped when they are touched.
pub(super) fn boxed<T, const N: usize>(slice: Box<[T]>) -> Box<[T; N]> {
    slice.try_into().unwrap_or_else(|_| unreachable!("made with as many elements"))
}
