//! The multibit trie behind both longest-prefix-match tables.
//!
//! A first level indexed by the leading bits of the address, then nodes of `FAN` cells. A cell holds a value or the
//! number of a node; prefixes are expanded to the cells they cover, so that a lookup never goes back. Beside every
//! cell lies the length of the prefix that it came from, which only changes read.
//!
//! Addresses are left-aligned in 128 bits. Both levels are allocated zeroed and untouched pages stay unmapped; the
//! prefix of length 0 is held apart, or it would touch them all.

use std::collections::HashMap;

use super::{MAX_VALUE, TableError};

/// In a cell: the other bits are the number of a node. Without: they are a value plus one, or 0 for none.
const NODE: u32 = 1 << 31;

/// How many lookups of a batch are under way at once.
const WAYS: usize = 32;

#[derive(Clone, Copy)]
enum Place {
    First(usize),
    Node(usize, usize),
}

#[derive(Clone, Copy)]
struct Cell {
    entry: u32,
    depth: u8,
}

/// See the module. `SLOTS` and `FAN` are powers of two.
#[derive(Clone)]
pub(super) struct Trie<const SLOTS: usize, const FAN: usize> {
    first: Box<[u32; SLOTS]>,
    first_depths: Box<[u8; SLOTS]>,
    nodes: Vec<[u32; FAN]>,
    depths: Vec<[u8; FAN]>,
    free: Vec<usize>,
    default: u32,
    rules: HashMap<(u128, u8), u32>,
}

impl<const SLOTS: usize, const FAN: usize> Trie<SLOTS, FAN> {
    const FIRST_BITS: u32 = SLOTS.ilog2();
    const NODE_BITS: u32 = FAN.ilog2();

    pub(super) fn new() -> Self {
        Self {
            first: boxed(vec![0; SLOTS]),
            first_depths: boxed(vec![0; SLOTS]),
            nodes: Vec::new(),
            depths: Vec::new(),
            free: Vec::new(),
            default: 0,
            rules: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether every cell is as in a new trie and every node free.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        let clear = self.first.iter().all(|entry| *entry == 0) && self.first_depths.iter().all(|depth| *depth == 0);
        clear && self.default == 0 && self.free.len() == self.nodes.len()
    }

    pub(super) fn reserve(&mut self, rules: usize) {
        self.rules.reserve(rules);
    }

    pub(super) fn get(&self, address: u128, len: u8) -> Option<u32> {
        self.rules.get(&(prefix(address, len), len)).copied()
    }

    pub(super) fn insert(&mut self, address: u128, len: u8, value: u32) -> Result<Option<u32>, TableError> {
        if value > MAX_VALUE {
            return Err(TableError::Value(value));
        }
        let key = prefix(address, len);
        let old = self.rules.insert((key, len), value);
        self.paint(key, len, Cell { entry: value + 1, depth: len });
        Ok(old)
    }

    pub(super) fn remove(&mut self, address: u128, len: u8) -> Option<u32> {
        let key = prefix(address, len);
        let old = self.rules.remove(&(key, len))?;
        let parent = (1..len).rev().find_map(|depth| {
            let value = self.rules.get(&(prefix(key, depth), depth))?;
            Some(Cell { entry: value + 1, depth })
        });
        let path = self.paint(key, len, parent.unwrap_or(Cell { entry: 0, depth: 0 }));
        self.collapse(&path);
        Some(old)
    }

    #[inline]
    pub(super) fn lookup(&self, address: u128) -> Option<u32> {
        let mut entry = self.first_entry(address);
        let mut rest = address << Self::FIRST_BITS;
        while entry & NODE != 0 {
            entry = self.node_entry(entry, rest);
            rest <<= Self::NODE_BITS;
        }
        self.or_default(entry).checked_sub(1)
    }

    /// Looks up as many addresses as both slices have. All go down level by level together, so that the processor
    /// waits for their cache misses at the same time.
    #[inline]
    pub(super) fn lookup_batch<A: Copy>(&self, addresses: &[A], values: &mut [u32], left: impl Fn(A) -> u128) {
        for (addresses, values) in addresses.chunks(WAYS).zip(values.chunks_mut(WAYS)) {
            let mut pending = 0;
            for (address, entry) in addresses.iter().zip(values.iter_mut()) {
                *entry = self.first_entry(left(*address));
                pending |= *entry;
            }
            let mut shift = Self::FIRST_BITS;
            while pending & NODE != 0 {
                pending = 0;
                for (address, entry) in addresses.iter().zip(values.iter_mut()) {
                    if *entry & NODE != 0 {
                        *entry = self.node_entry(*entry, left(*address) << shift);
                        pending |= *entry;
                    }
                }
                shift += Self::NODE_BITS;
            }
            for (_, entry) in addresses.iter().zip(values.iter_mut()) {
                *entry = self.or_default(*entry).wrapping_sub(1);
            }
        }
    }

    #[inline]
    fn first_entry(&self, address: u128) -> u32 {
        self.first[(address >> (128 - Self::FIRST_BITS)) as usize & (SLOTS - 1)]
    }

    /// The cell of a node that the leading bits of `rest` select.
    #[inline]
    fn node_entry(&self, entry: u32, rest: u128) -> u32 {
        let at = (rest >> (128 - Self::NODE_BITS)) as usize & (FAN - 1);
        self.nodes.get((entry & !NODE) as usize).map_or(0, |node| node[at])
    }

    #[inline]
    fn or_default(&self, entry: u32) -> u32 {
        if entry == 0 { self.default } else { entry }
    }

    fn cell(&self, place: Place) -> Cell {
        match place {
            Place::First(slot) => Cell { entry: self.first[slot], depth: self.first_depths[slot] },
            Place::Node(node, at) => Cell { entry: self.nodes[node][at], depth: self.depths[node][at] },
        }
    }

    fn set(&mut self, place: Place, cell: Cell) {
        match place {
            Place::First(slot) => (self.first[slot], self.first_depths[slot]) = (cell.entry, cell.depth),
            Place::Node(node, at) => (self.nodes[node][at], self.depths[node][at]) = (cell.entry, cell.depth),
        }
    }

    /// The node that hangs below a cell; makes one that says what the cell said.
    fn node_below(&mut self, place: Place) -> usize {
        let Cell { entry, depth } = self.cell(place);
        if entry & NODE != 0 {
            return (entry & !NODE) as usize;
        }
        let node = self.free.pop().unwrap_or_else(|| {
            self.nodes.push([0; FAN]);
            self.depths.push([0; FAN]);
            self.nodes.len() - 1
        });
        self.nodes[node] = [entry; FAN];
        self.depths[node] = [depth; FAN];
        self.set(place, Cell { entry: NODE | node as u32, depth: 0 });
        node
    }

    /// Writes `cell` wherever the prefix is the longest that covers: on insertion over shorter ones, on removal over
    /// itself, as nothing shorter is left below it. Gives the cells above the one where it ended, each with the bits
    /// that lead to it.
    fn paint(&mut self, key: u128, len: u8, cell: Cell) -> Vec<(Place, u32)> {
        if len == 0 {
            self.default = cell.entry;
            return Vec::new();
        }
        let (bits, mut path) = (u32::from(len), Vec::new());
        let slot = (key >> (128 - Self::FIRST_BITS)) as usize;
        if bits <= Self::FIRST_BITS {
            for slot in slot..slot + (1 << (Self::FIRST_BITS - bits)) {
                self.paint_below(Place::First(slot), len, cell);
            }
            return path;
        }
        let (mut place, mut used) = (Place::First(slot), Self::FIRST_BITS);
        loop {
            let node = self.node_below(place);
            path.push((place, used));
            used += Self::NODE_BITS;
            let at = (key >> (128 - used)) as usize & (FAN - 1);
            if bits <= used {
                for at in at..at + (1 << (used - bits)) {
                    self.paint_below(Place::Node(node, at), len, cell);
                }
                return path;
            }
            place = Place::Node(node, at);
        }
    }

    /// Writes `cell` over what is no longer than `len` at a place and below it.
    fn paint_below(&mut self, place: Place, len: u8, cell: Cell) {
        let Cell { entry, depth } = self.cell(place);
        if entry & NODE != 0 {
            for at in 0..FAN {
                self.paint_below(Place::Node((entry & !NODE) as usize, at), len, cell);
            }
        } else if depth <= len {
            self.set(place, cell);
        }
    }

    /// Takes out the nodes on a path that no longer tell addresses apart.
    fn collapse(&mut self, path: &[(Place, u32)]) {
        for (place, used) in path.iter().rev() {
            let node = (self.cell(*place).entry & !NODE) as usize;
            // Cells from prefixes that end above the node are all from the same one.
            let alike = self.depths[node].iter().all(|depth| u32::from(*depth) <= *used)
                && self.nodes[node].iter().all(|entry| entry & NODE == 0);
            if !alike {
                return;
            }
            self.set(*place, self.cell(Place::Node(node, 0)));
            self.free.push(node);
        }
    }
}

/// An array made from a slice on the heap, never on the stack. The slice comes from `vec![0; N]`, which asks the
/// allocator for pages that are zero already and are mapped when they are touched.
fn boxed<T, const N: usize>(slice: Vec<T>) -> Box<[T; N]> {
    slice.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("made with as many elements"))
}

/// The leading `len` bits of an address, the others zero.
fn prefix(address: u128, len: u8) -> u128 {
    match len {
        0 => 0,
        len => address & (u128::MAX << (128 - u32::from(len.min(128)))),
    }
}
