//! Trees of cuts, with leaves of rules.
//!
//! A tree has every rule of it in all leaves that its packets can come to. A rule that would come to too many is left to the
//! next tree; the last tree takes all, and has long leaves where it cannot cut. So there is a bound on the memory, whatever the
//! rules.

use super::cut::{Cut, MOST_BITS, Space};
use super::leaf::{LANES, Leaf};
use super::pages::Pages;
use super::search::WAYS;
use super::words::Entry;

/// What a cell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(u64);

// From the top: what it is, 3 bits; room for the place of a packet in its batch, 5; the word, 4; the shift, 5; the mask, 12; where
// the cells of the node begin, or the leaf, 32.
const NODE: u64 = 1 << 63;
const LEAF: u64 = 1 << 62;
const LONG: u64 = 1 << 61;
const OF: u32 = 56;
const WORD: u32 = 52;
const SHIFT: u32 = 47;
const MASK: u32 = 32;

impl Cell {
    /// No rule comes here.
    pub(super) const EMPTY: Self = Self(0);

    fn node(first: usize, cut: Cut) -> Self {
        let mask = (cut.children() - 1) as u64;
        Self(NODE | u64::from(cut.word) << WORD | u64::from(cut.shift) << SHIFT | mask << MASK | first as u64)
    }

    fn leaf(at: usize, long: bool) -> Self {
        Self(LEAF | if long { LONG } else { 0 } | at as u64)
    }

    /// The same, for one packet of a batch.
    #[inline]
    pub(super) fn of(self, packet: usize) -> Self {
        Self(self.0 | (packet as u64) << OF)
    }

    /// What either says.
    #[inline]
    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// For which packet it is.
    #[inline]
    pub(super) fn packet(self) -> usize {
        (self.0 >> OF) as usize % WAYS
    }

    #[inline]
    pub(super) fn is_node(self) -> bool {
        self.0 & NODE != 0
    }

    /// A leaf that has rules.
    #[inline]
    pub(super) fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// More leaves are behind that.
    #[inline]
    pub(super) fn is_long(self) -> bool {
        self.0 & LONG != 0
    }

    #[inline]
    pub(super) fn base(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    pub(super) fn word(self) -> usize {
        (self.0 >> WORD & 0xf) as usize
    }

    fn mask(self) -> u32 {
        (self.0 >> MASK) as u32 & ((1 << MOST_BITS) - 1)
    }

    /// The cell that a word leads to.
    #[inline]
    pub(super) fn child(self, word: u32) -> usize {
        self.base() + self.place(word)
    }

    /// The same, from the first of the node's.
    #[inline]
    pub(super) fn place(self, word: u32) -> usize {
        ((word >> (self.0 >> SHIFT & 31)) & self.mask()) as usize
    }

    fn cut(self) -> Cut {
        Cut { word: self.word() as u8, shift: (self.0 >> SHIFT & 31) as u8, bits: self.mask().count_ones() as u8 }
    }
}

/// The most trees that are cut.
const TREES: usize = 3;
/// Behind those, a leaf of rules that were added later, and belong to too many leaves of any tree.
pub(super) const ROOTS: usize = TREES + 1;

/// Copies of a rule that the leaves of a tree have on average, at the most, when it is compiled.
const COPIES: f64 = 16.0;
/// The same where a leaf is divided later.
const COPIES_LATER: f64 = 4.0;
/// Copies for each rule, and beside those, up to which rules are divided.
const STORED: (usize, usize) = (32, 4096);
/// The most leaves that a rule is added to.
const LEAVES: usize = 64;
/// The most children of the first node that a rule of few rules is copied to, and one of many.
const FIRST_COPIES: (usize, usize) = (64, 4);
/// So many cells may be taken by copies in a first node.
const FIRST_CELLS: usize = 4096;

/// The trees over all rules of one family of addresses.
#[derive(Clone, Debug)]
pub(super) struct Forest<const W: usize> {
    pub(super) roots: [Cell; ROOTS],
    pub(super) cells: Pages<Cell, { 1 << MOST_BITS }>,
    pub(super) leaves: Pages<Leaf<W>, 32>,
    /// Leaves that are not used.
    free: Vec<u32>,
    rules: usize,
    /// Copies of them in leaves.
    stored: usize,
}

impl<const W: usize> Forest<W> {
    /// Of rules in their order; for each, which tree it is in.
    pub(super) fn new(entries: Vec<Entry<W>>, mut placed: impl FnMut(&Entry<W>, u8)) -> Self {
        let (roots, rules) = ([Cell::EMPTY; ROOTS], entries.len());
        let mut this =
            Self { roots, cells: Pages::default(), leaves: Pages::default(), free: Vec::new(), rules, stored: 0 };
        // The first leaf stays empty: it is behind all others.
        this.leaves.grow(1, &Leaf::EMPTY);
        let mut rest = entries;
        for tree in 0..TREES {
            let (few, many) = FIRST_COPIES;
            let limit = if tree + 1 < TREES { (FIRST_CELLS / rest.len().max(1)).clamp(many, few) } else { usize::MAX };
            let cut = this.cut(&rest, &Space::ALL, COPIES, limit);
            let is_kept = |entry: &Entry<W>| cut.is_none_or(|cut| cut.copies(entry, &Space::ALL) <= limit);
            // Without a cut this is one leaf; where that is long, a rest that may be cut is not kept from it.
            let (kept, aside): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_kept);
            kept.iter().for_each(|entry| placed(entry, tree as u8));
            this.roots[tree] = match cut {
                Some(cut) => this.node(cut, &kept, Space::ALL, COPIES),
                None => this.leaf(&kept),
            };
            rest = aside;
        }
        this
    }

    /// Adds a rule, and says to which tree.
    pub(super) fn insert(&mut self, entry: &Entry<W>) -> u8 {
        let fits = |root: &Cell| self.reach(*root, entry, Space::ALL, LEAVES).is_some();
        let tree = self.roots[..TREES].iter().position(fits).unwrap_or(TREES);
        self.rules += 1;
        self.roots[tree] = self.with(self.roots[tree], entry, Space::ALL, tree < TREES);
        tree as u8
    }

    /// Takes a rule out of its tree.
    pub(super) fn remove(&mut self, entry: &Entry<W>, tree: u8) {
        let tree = usize::from(tree) % ROOTS;
        self.rules -= 1;
        self.roots[tree] = self.without(self.roots[tree], entry, Space::ALL);
    }

    fn cut(&self, entries: &[Entry<W>], space: &Space, allowed: f64, limit: usize) -> Option<Cut> {
        let may = entries.len() > LANES && self.stored < self.rules * STORED.0 + STORED.1;
        let cut = if may { Cut::best(entries, space, allowed, limit) } else { None };
        cut.filter(|cut| {
            let copies = entries.iter().map(|entry| cut.copies(entry, space)).filter(|copies| *copies <= limit);
            // The choice was by some of the rules.
            copies.sum::<usize>() as f64 <= entries.len() as f64 * allowed * 2.0
        })
    }

    /// Puts rules, in their order, below a cell.
    fn build(&mut self, entries: &[Entry<W>], space: Space, allowed: f64) -> Cell {
        match self.cut(entries, &space, allowed, usize::MAX) {
            Some(cut) => self.node(cut, entries, space, allowed),
            None => self.leaf(entries),
        }
    }

    fn node(&mut self, cut: Cut, entries: &[Entry<W>], space: Space, allowed: f64) -> Cell {
        let mut children = vec![Vec::new(); cut.children()];
        let mut copies = 0;
        for entry in entries {
            cut.of(entry, &space).for_each(|child| children[child].push(*entry));
            copies += cut.copies(entry, &space);
        }
        let first = self.cells.grow(cut.children(), &Cell::EMPTY);
        let allowed = (allowed * entries.len() as f64 / copies.max(1) as f64).max(1.0);
        for (child, entries) in children.iter().enumerate() {
            let cell = self.build(entries, space.child(cut, child), allowed);
            self.set(first + child, cell);
        }
        Cell::node(first, cut)
    }

    /// As many leaves as rules need, one behind the other.
    fn leaf(&mut self, entries: &[Entry<W>]) -> Cell {
        self.stored += entries.len();
        let mut next = 0;
        for entries in entries.chunks(LANES).rev() {
            let leaf = self.free.pop().unwrap_or_else(|| self.leaves.grow(1, &Leaf::EMPTY) as u32);
            self.leaves.get_mut(leaf as usize).into_iter().for_each(|it| *it = Leaf::new(entries, next));
            next = leaf;
        }
        if next == 0 { Cell::EMPTY } else { Cell::leaf(next as usize, entries.len() > LANES) }
    }

    fn set(&mut self, at: usize, to: Cell) {
        // Not to copy a page for nothing.
        if self.cells.get(at) != Some(&to) {
            self.cells.get_mut(at).into_iter().for_each(|cell| *cell = to);
        }
    }

    fn cell(&self, at: usize) -> Cell {
        self.cells.get(at).copied().unwrap_or(Cell::EMPTY)
    }

    /// How many of some leaves are left when a rule has come to all that it belongs to; `None`: they are too few.
    fn reach(&self, cell: Cell, entry: &Entry<W>, space: Space, left: usize) -> Option<usize> {
        if !cell.is_node() {
            return left.checked_sub(1);
        }
        let cut = cell.cut();
        cut.of(entry, &space).try_fold(left, |left, child| {
            self.reach(self.cell(cell.base() + child), entry, space.child(cut, child), left)
        })
    }

    /// The rules of a leaf and of those behind it.
    fn entries(&self, cell: Cell) -> Vec<Entry<W>> {
        let first = cell.is_leaf().then(|| cell.base() as u32);
        self.chain(first).flat_map(Leaf::entries).collect()
    }

    fn chain(&self, first: Option<u32>) -> impl Iterator<Item = &Leaf<W>> {
        std::iter::successors(first.and_then(|leaf| self.leaves.get(leaf as usize)), |leaf| {
            (leaf.next != 0).then(|| self.leaves.get(leaf.next as usize)).flatten()
        })
    }

    /// A leaf, and those behind it, are not needed any more.
    fn release(&mut self, cell: Cell) {
        let first = cell.is_leaf().then(|| cell.base() as u32);
        let mut leaves: Vec<u32> = self.chain(first).map(|leaf| leaf.next).filter(|next| *next != 0).collect();
        self.stored -= self.chain(first).map(|leaf| leaf.entries().count()).sum::<usize>();
        // The first is taken next: a leaf that is written anew stays where it is.
        leaves.extend(first);
        self.free.append(&mut leaves);
    }

    /// What a cell has to say when a rule is added below it.
    fn with(&mut self, cell: Cell, entry: &Entry<W>, space: Space, may_divide: bool) -> Cell {
        if cell.is_node() {
            let cut = cell.cut();
            for child in cut.of(entry, &space) {
                let at = cell.base() + child;
                let now = self.with(self.cell(at), entry, space.child(cut, child), may_divide);
                self.set(at, now);
            }
            return cell;
        }
        let mut entries = self.entries(cell);
        let at = entries.partition_point(|other| other.rank < entry.rank);
        entries.insert(at, *entry);
        self.release(cell);
        // Where there was no cut that was worth it, another is looked for when there are twice as many.
        match entries.len() > LANES && (entries.len() - 1).is_power_of_two() && may_divide {
            true => self.build(&entries, space, COPIES_LATER),
            false => self.leaf(&entries),
        }
    }

    /// What a cell has to say when a rule below it is taken out.
    fn without(&mut self, cell: Cell, entry: &Entry<W>, space: Space) -> Cell {
        if cell.is_node() {
            let cut = cell.cut();
            for child in cut.of(entry, &space) {
                let at = cell.base() + child;
                let now = self.without(self.cell(at), entry, space.child(cut, child));
                self.set(at, now);
            }
            return cell;
        }
        let mut entries = self.entries(cell);
        let Ok(at) = entries.binary_search_by_key(&entry.rank, |other| other.rank) else { return cell };
        self.release(cell);
        entries.remove(at);
        self.leaf(&entries)
    }

    /// What it takes, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes() + self.leaves.bytes()
    }

    /// Pages that another does not share.
    #[cfg(test)]
    pub(super) fn differing(&self, other: &Self) -> usize {
        self.cells.differing(&other.cells) + self.leaves.differing(&other.leaves)
    }
}
