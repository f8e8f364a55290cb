//! The multibit trie behind both longest-prefix-match tables.
//!
//! A first level indexed by the leading bits of the address, then nodes of `FAN` cells. A cell holds a value or the
//! number of a node; prefixes are expanded to the cells they cover, so that a lookup never goes back. Beside every
//! cell lies the length of the prefix that it came from, which only changes read.
//!
//! Addresses are left-aligned in 128 bits. Both levels are allocated zeroed and untouched pages stay unmapped; the
//! prefix of length 0 is held apart, or it would touch them all.
//!
//! One thread changes the trie while any number look up in its cells, which are atomics: a change writes a new node
//! before it links it, and every cell that it does not mean says the same before, during and after. A node that was
//! taken out is used anew only when its owner says that nobody can be looking at it any more ([`Trie::reclaim`]).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::{MAX_VALUE, MISS, TableError, zeroed};

/// In a cell: the other bits are the number of a node. Without: they are a value plus one, or 0 for none.
const NODE: u32 = 1 << 31;

/// The cell of a node that is not there.
static NOTHING: AtomicU32 = AtomicU32::new(0);

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

/// Bytes of nodes that are allocated at once: most of them lie in whole huge pages. Pages that are not used are not mapped.
const CHUNK_BYTES: usize = 32 << 20;

/// The most nodes: one for every cell of the first level of IPv4.
const NODES: usize = 1 << 24;

const LINE: usize = 64 / size_of::<AtomicU32>();

/// Nodes, each of which is a cache line or several.
struct Chunk<const FAN: usize> {
    cells: Box<[AtomicU32]>,
    /// Where the first line begins.
    first: usize,
}

impl<const FAN: usize> Chunk<FAN> {
    const NODES: usize = CHUNK_BYTES / (FAN * size_of::<AtomicU32>());

    fn new() -> Self {
        // Aligned by hand: of memory that is to be aligned otherwise the allocator writes the zeros itself, and so maps it all,
        // before it is advised to use huge pages.
        let cells: Box<[AtomicU32]> = zeroed(Self::NODES * FAN + LINE);
        let first = cells.as_ptr().align_offset(64).min(LINE);
        Self { cells, first }
    }

    #[inline]
    fn node(&self, node: usize) -> Option<&[AtomicU32; FAN]> {
        self.cells.get(self.first + node * FAN..)?.first_chunk()
    }
}

/// What is looked up in. `SLOTS` and `FAN` are powers of two.
pub(super) struct Cells<const SLOTS: usize, const FAN: usize> {
    first: Box<[AtomicU32; SLOTS]>,
    nodes: Box<[OnceLock<Chunk<FAN>>]>,
    default: AtomicU32,
}

/// See the module.
pub(super) struct Trie<const SLOTS: usize, const FAN: usize> {
    cells: Arc<Cells<SLOTS, FAN>>,
    first_depths: Box<[u8; SLOTS]>,
    depths: Vec<[u8; FAN]>,
    free: Vec<usize>,
    /// Nodes that were taken out, each with the time of that, as the owner counts it.
    retired: VecDeque<(u64, usize)>,
    time: u64,
    /// The most nodes.
    most: usize,
    rules: HashMap<(u128, u8), u32>,
}

impl<const SLOTS: usize, const FAN: usize> Cells<SLOTS, FAN> {
    const FIRST_BITS: u32 = SLOTS.ilog2();
    const NODE_BITS: u32 = FAN.ilog2();

    fn new() -> Self {
        // What selects a cell of a node lies in one half of an address.
        const { assert!(Self::FIRST_BITS.is_multiple_of(Self::NODE_BITS) && 64 % Self::NODE_BITS == 0) };
        Self {
            first: boxed(zeroed(SLOTS)),
            nodes: (0..NODES / Chunk::<FAN>::NODES).map(|_| OnceLock::new()).collect(),
            default: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn lookup(&self, address: u128) -> Option<u32> {
        let mut value = [MISS];
        self.lookup_batch(&[address], &mut value, |address| address);
        (value[0] != MISS).then_some(value[0])
    }

    /// Looks up as many addresses as both slices have. All go down level by level together, so that the processor
    /// waits for their cache misses at the same time.
    #[inline]
    pub(super) fn lookup_batch<A: Copy>(&self, addresses: &[A], values: &mut [u32], left: impl Fn(A) -> u128) {
        loop {
            let default = self.default.load(Ordering::Acquire);
            for (addresses, values) in addresses.chunks(WAYS).zip(values.chunks_mut(WAYS)) {
                self.descend(addresses, values, &left);
                for (_, entry) in addresses.iter().zip(values.iter_mut()) {
                    *entry = if *entry == 0 { default } else { *entry }.wrapping_sub(1);
                }
            }
            // A table that had no default before and no cell after may have had either at all times.
            if self.default.load(Ordering::Acquire) == default {
                return;
            }
        }
    }

    /// What the last cell on the way of each of up to [`WAYS`] addresses says.
    #[inline]
    fn descend<A: Copy>(&self, addresses: &[A], entries: &mut [u32], left: impl Fn(A) -> u128) {
        let mut pending = 0;
        for (address, entry) in addresses.iter().zip(entries.iter_mut()) {
            let at = (left(*address) >> (128 - Self::FIRST_BITS)) as usize & (SLOTS - 1);
            *entry = self.first[at].load(Ordering::Acquire);
            pending |= *entry;
        }
        let mut shift = Self::FIRST_BITS;
        while pending & NODE != 0 {
            // First where the cells are, then what they say: so all these loads are under way at once.
            let mut cells = [&NOTHING; WAYS];
            let down = 64 - Self::NODE_BITS - shift % 64;
            for ((address, entry), cell) in addresses.iter().zip(entries.iter()).zip(&mut cells) {
                if *entry & NODE != 0 {
                    let half = if shift < 64 { left(*address) >> 64 } else { left(*address) } as u64;
                    let node = self.node((entry & !NODE) as usize);
                    *cell = node.map_or(&NOTHING, |node| &node[(half >> down) as usize & (FAN - 1)]);
                }
            }
            pending = 0;
            for (entry, cell) in entries.iter_mut().zip(cells) {
                if *entry & NODE != 0 {
                    *entry = cell.load(Ordering::Acquire);
                    pending |= *entry;
                }
            }
            shift += Self::NODE_BITS;
        }
    }

    #[inline]
    fn node(&self, node: usize) -> Option<&[AtomicU32; FAN]> {
        self.nodes.get(node / Chunk::<FAN>::NODES)?.get()?.node(node % Chunk::<FAN>::NODES)
    }

    fn place(&self, place: Place) -> Option<&AtomicU32> {
        match place {
            Place::First(slot) => self.first.get(slot),
            Place::Node(node, at) => self.node(node)?.get(at),
        }
    }
}

impl<const SLOTS: usize, const FAN: usize> Trie<SLOTS, FAN> {
    const FIRST_BITS: u32 = SLOTS.ilog2();
    const NODE_BITS: u32 = FAN.ilog2();

    pub(super) fn new() -> Self {
        Self::with_nodes(NODES)
    }

    /// A trie of at most so many nodes.
    pub(super) fn with_nodes(most: usize) -> Self {
        Self {
            cells: Arc::new(Cells::new()),
            first_depths: boxed(vec![0; SLOTS].into()),
            depths: Vec::new(),
            free: Vec::new(),
            retired: VecDeque::new(),
            time: 0,
            most: most.min(NODES),
            rules: HashMap::new(),
        }
    }

    /// What to look up in, also from other threads.
    pub(super) fn cells(&self) -> &Arc<Cells<SLOTS, FAN>> {
        &self.cells
    }

    /// Says what time it is for nodes that are taken out from now on. Those that were taken out before `quiet` nobody
    /// looks at any more.
    pub(super) fn reclaim(&mut self, time: u64, quiet: u64) {
        self.time = time;
        while let Some((_, node)) = self.retired.pop_front_if(|(retired, _)| *retired < quiet) {
            self.free.push(node);
        }
    }

    /// Every prefix with its value.
    pub(super) fn rules(&self) -> impl Iterator<Item = (u128, u8, u32)> + '_ {
        self.rules.iter().map(|((key, len), value)| (*key, *len, *value))
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether every cell is as in a new trie and every node free.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        let first = &self.cells.first;
        let clear = first.iter().all(|entry| entry.load(Ordering::Relaxed) == 0)
            && self.first_depths.iter().all(|depth| *depth == 0);
        clear
            && self.cells.default.load(Ordering::Relaxed) == 0
            && self.free.len() + self.retired.len() == self.depths.len()
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
        if self.room() < self.missing(key, len) {
            return Err(TableError::Full(self.most));
        }
        let old = self.rules.insert((key, len), value);
        self.paint(key, len, Cell { entry: value + 1, depth: len });
        Ok(old)
    }

    /// How many nodes may still be taken.
    fn room(&self) -> usize {
        self.free.len() + self.most - self.depths.len()
    }

    /// How many nodes a prefix needs that are not there.
    fn missing(&self, key: u128, len: u8) -> usize {
        let levels = (u32::from(len).saturating_sub(Self::FIRST_BITS)).div_ceil(Self::NODE_BITS);
        let (mut place, mut used) = (Place::First((key >> (128 - Self::FIRST_BITS)) as usize), Self::FIRST_BITS);
        for there in 0..levels {
            let Cell { entry, .. } = self.cell(place);
            if entry & NODE == 0 {
                return (levels - there) as usize;
            }
            used += Self::NODE_BITS;
            place = Place::Node((entry & !NODE) as usize, (key >> (128 - used)) as usize & (FAN - 1));
        }
        0
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

    fn cell(&self, place: Place) -> Cell {
        let depth = match place {
            Place::First(slot) => self.first_depths[slot],
            Place::Node(node, at) => self.depths[node][at],
        };
        // This thread alone writes.
        Cell { entry: self.cells.place(place).map_or(0, |cell| cell.load(Ordering::Relaxed)), depth }
    }

    fn set(&mut self, place: Place, cell: Cell) {
        match place {
            Place::First(slot) => self.first_depths[slot] = cell.depth,
            Place::Node(node, at) => self.depths[node][at] = cell.depth,
        }
        if let Some(to) = self.cells.place(place) {
            // Who sees the number of a node sees what was written to it.
            to.store(cell.entry, Ordering::Release);
        }
    }

    /// The node that hangs below a cell; makes one that says what the cell said.
    fn node_below(&mut self, place: Place) -> usize {
        let Cell { entry, depth } = self.cell(place);
        if entry & NODE != 0 {
            return (entry & !NODE) as usize;
        }
        let node = self.free.pop().unwrap_or_else(|| {
            self.depths.push([0; FAN]);
            self.depths.len() - 1
        });
        // `insert` has seen to it that there is room.
        if let Some(chunk) = self.cells.nodes.get(node / Chunk::<FAN>::NODES) {
            chunk.get_or_init(Chunk::new);
        }
        self.cells.node(node).into_iter().flatten().for_each(|cell| cell.store(entry, Ordering::Relaxed));
        self.depths[node] = [depth; FAN];
        self.set(place, Cell { entry: NODE | node as u32, depth: 0 });
        node
    }

    /// Writes `cell` wherever the prefix is the longest that covers: on insertion over shorter ones, on removal over
    /// itself, as nothing shorter is left below it. Gives the cells above the one where it ended, each with the bits
    /// that lead to it.
    fn paint(&mut self, key: u128, len: u8, cell: Cell) -> Vec<(Place, u32)> {
        if len == 0 {
            self.cells.default.store(cell.entry, Ordering::Release);
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
                && (0..FAN).all(|at| self.cell(Place::Node(node, at)).entry & NODE == 0);
            if !alike {
                return;
            }
            self.set(*place, self.cell(Place::Node(node, 0)));
            self.retired.push_back((self.time, node));
        }
    }
}

/// An array made from a slice on the heap, never on the stack. The slice is one for which the allocator was asked for pages
/// that are zero already, and are mapped when they are touched.
fn boxed<T, const N: usize>(slice: Box<[T]>) -> Box<[T; N]> {
    slice.try_into().unwrap_or_else(|_| unreachable!("made with as many elements"))
}

/// The leading `len` bits of an address, the others zero.
fn prefix(address: u128, len: u8) -> u128 {
    match len {
        0 => 0,
        len => address & (u128::MAX << (128 - u32::from(len.min(128)))),
    }
}
