//! The decision trees of the classifier. An inner node selects a child by a few bits of the lookup key. A leaf holds up
//! to eight rules.
//!
//! Each rule belongs to one tree, and is copied to every leaf that its packets can reach. A rule that would be copied
//! to too many leaves goes to the next tree. The last tree takes all remaining rules. Rules that the last tree cannot
//! divide are in long leaves, which are lists of leaves. The number of copies, and therefore the memory, is bounded for
//! any rules.

use super::cell::Cell;
use super::cut::{Cut, MAX_CUT_BITS, Space};
use super::leaf::{LANES, Leaf};
use super::pages::Pages;
use super::words::RuleEntry;

/// The maximum number of trees.
const MAX_TREES: usize = 3;
/// The number of roots: one per tree, and one for a list of leaves. The list contains the rules that were added after
/// the compilation and would be in too many leaves of any tree.
pub(super) const ROOTS: usize = MAX_TREES + 1;

/// The maximum average number of copies of a rule in the leaves of a tree, at compilation.
const MAX_COPIES: f64 = 16.0;
/// The maximum average number of copies when a leaf is divided later.
const MAX_COPIES_LATER: f64 = 4.0;
/// The limit of the stored copies of rules: the first value times the number of rules, plus the second value. At or
/// above this limit, no leaf is divided.
const MAX_STORED: (usize, usize) = (32, 4096);
/// The maximum number of leaves that a rule is copied to when it is added after the compilation.
const MAX_LEAVES_PER_RULE: usize = 64;
/// When a root is divided, one rule is copied to at most this number of children. The first limit is for small rule
/// sets, and the second limit is for large rule sets. The last tree has no limit.
const FIRST_COPIES: (usize, usize) = (64, 4);
/// For rule sets of medium size, the limit is between the two limits of [`FIRST_COPIES`]: this number divided by the
/// number of rules.
const FIRST_CELLS: usize = 4096;

/// The trees of all rules of one address family.
#[derive(Clone, Debug)]
pub(super) struct Forest<const W: usize> {
    pub(super) roots: [Cell; ROOTS],
    pub(super) cells: Pages<Cell, { 1 << MAX_CUT_BITS }>,
    pub(super) leaves: Pages<Leaf<W>, 32>,
    /// Unused leaves.
    free: Vec<u32>,
    rules: usize,
    /// The number of copies of rules in leaves.
    stored: usize,
}

impl<const W: usize> Forest<W> {
    /// Compiles rules, given in order of precedence. Calls `placed` with each rule and the index of its tree.
    pub(super) fn new(entries: Vec<RuleEntry<W>>, mut placed: impl FnMut(&RuleEntry<W>, u8)) -> Self {
        let (roots, rules) = ([Cell::EMPTY; ROOTS], entries.len());
        let mut this =
            Self { roots, cells: Pages::default(), leaves: Pages::default(), free: Vec::new(), rules, stored: 0 };
        // The first leaf stays empty. Its number 0 marks the end of every list of leaves.
        this.leaves.grow(1, &Leaf::EMPTY);
        let mut rest = entries;
        for tree in 0..MAX_TREES {
            let (few, many) = FIRST_COPIES;
            let limit =
                if tree + 1 < MAX_TREES { (FIRST_CELLS / rest.len().max(1)).clamp(many, few) } else { usize::MAX };
            let cut = this.cut(&rest, &Space::ALL, MAX_COPIES, limit);
            let is_kept = |entry: &RuleEntry<W>| cut.is_none_or(|cut| cut.copies(entry, &Space::ALL) <= limit);
            // If there is no good cut, the tree is a single leaf with all rules, even if this leaf is long.
            let (kept, aside): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_kept);
            kept.iter().for_each(|entry| placed(entry, tree as u8));
            this.roots[tree] = match cut {
                Some(cut) => this.node(cut, &kept, Space::ALL, MAX_COPIES),
                None => this.leaf(&kept),
            };
            rest = aside;
        }
        this
    }

    /// Adds a rule, and returns the index of its tree.
    pub(super) fn insert(&mut self, entry: &RuleEntry<W>) -> u8 {
        let fits = |root: &Cell| self.subtract_leaves(MAX_LEAVES_PER_RULE, *root, entry, Space::ALL).is_some();
        let tree = self.roots[..MAX_TREES].iter().position(fits).unwrap_or(MAX_TREES);
        self.rules += 1;
        self.roots[tree] = self.add_below(self.roots[tree], entry, Space::ALL, tree < MAX_TREES);
        tree as u8
    }

    /// Removes a rule from its tree.
    pub(super) fn remove(&mut self, entry: &RuleEntry<W>, tree: u8) {
        let tree = usize::from(tree) % ROOTS;
        self.rules -= 1;
        self.roots[tree] = self.remove_below(self.roots[tree], entry, Space::ALL);
    }

    fn cut(&self, entries: &[RuleEntry<W>], space: &Space, allowed: f64, limit: usize) -> Option<Cut> {
        let may = entries.len() > LANES && self.stored < self.rules * MAX_STORED.0 + MAX_STORED.1;
        let cut = if may { Cut::best(entries, space, allowed, limit) } else { None };
        cut.filter(|cut| {
            let copies = entries.iter().map(|entry| cut.copies(entry, space)).filter(|copies| *copies <= limit);
            // The cut was chosen by a sample, so check it with all rules.
            copies.sum::<usize>() as f64 <= entries.len() as f64 * allowed * 2.0
        })
    }

    /// Builds a subtree of rules in their order, and returns its cell.
    fn build(&mut self, entries: &[RuleEntry<W>], space: Space, allowed: f64) -> Cell {
        match self.cut(entries, &space, allowed, usize::MAX) {
            Some(cut) => self.node(cut, entries, space, allowed),
            None => self.leaf(entries),
        }
    }

    fn node(&mut self, cut: Cut, entries: &[RuleEntry<W>], space: Space, allowed: f64) -> Cell {
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

    /// Creates a list of leaves for the rules, and returns its cell.
    fn leaf(&mut self, entries: &[RuleEntry<W>]) -> Cell {
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
        // `get_mut` copies a shared page, so call `get_mut` only if the cell changes.
        if self.cells.get(at) != Some(&to) {
            self.cells.get_mut(at).into_iter().for_each(|cell| *cell = to);
        }
    }

    fn cell(&self, at: usize) -> Cell {
        self.cells.get(at).copied().unwrap_or(Cell::EMPTY)
    }

    /// Counts the leaves that would contain the rule if `entry` were inserted below `cell`. Returns `limit` minus this
    /// number, or `None` if the number is above `limit`.
    fn subtract_leaves(&self, limit: usize, cell: Cell, entry: &RuleEntry<W>, space: Space) -> Option<usize> {
        if !cell.is_node() {
            return limit.checked_sub(1);
        }
        let cut = cell.cut();
        cut.of(entry, &space).try_fold(limit, |limit, child| {
            self.subtract_leaves(limit, self.cell(cell.base() + child), entry, space.child(cut, child))
        })
    }

    /// Returns the rules of a leaf and of the leaves that follow in its list.
    fn entries(&self, cell: Cell) -> Vec<RuleEntry<W>> {
        let first = cell.is_leaf().then(|| cell.base() as u32);
        self.chain(first).flat_map(Leaf::entries).collect()
    }

    fn chain(&self, first: Option<u32>) -> impl Iterator<Item = &Leaf<W>> {
        std::iter::successors(first.and_then(|leaf| self.leaves.get(leaf as usize)), |leaf| {
            (leaf.next != 0).then(|| self.leaves.get(leaf.next as usize)).flatten()
        })
    }

    /// Frees a leaf and the leaves that follow in its list.
    fn release(&mut self, cell: Cell) {
        let first = cell.is_leaf().then(|| cell.base() as u32);
        let mut leaves: Vec<u32> = self.chain(first).map(|leaf| leaf.next).filter(|next| *next != 0).collect();
        self.stored -= self.chain(first).map(|leaf| leaf.entries().count()).sum::<usize>();
        // The first leaf is reused next. A rewritten leaf thus keeps its number, and its cell does not change.
        leaves.extend(first);
        self.free.append(&mut leaves);
    }

    /// Adds a rule below a cell, and returns the new cell.
    fn add_below(&mut self, cell: Cell, entry: &RuleEntry<W>, space: Space, may_divide: bool) -> Cell {
        if cell.is_node() {
            let cut = cell.cut();
            for child in cut.of(entry, &space) {
                let at = cell.base() + child;
                let now = self.add_below(self.cell(at), entry, space.child(cut, child), may_divide);
                self.set(at, now);
            }
            return cell;
        }
        let mut entries = self.entries(cell);
        let at = entries.partition_point(|other| other.rank < entry.rank);
        entries.insert(at, *entry);
        self.release(cell);
        // Searching for a cut is slow, so a long leaf searches again only when its number of rules has doubled.
        match entries.len() > LANES && (entries.len() - 1).is_power_of_two() && may_divide {
            true => self.build(&entries, space, MAX_COPIES_LATER),
            false => self.leaf(&entries),
        }
    }

    /// Removes a rule below a cell, and returns the new cell.
    fn remove_below(&mut self, cell: Cell, entry: &RuleEntry<W>, space: Space) -> Cell {
        if cell.is_node() {
            let cut = cell.cut();
            for child in cut.of(entry, &space) {
                let at = cell.base() + child;
                let now = self.remove_below(self.cell(at), entry, space.child(cut, child));
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

    /// Returns the memory in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes() + self.leaves.bytes()
    }

    /// Returns the number of pages that are not shared with another forest.
    #[cfg(test)]
    pub(super) fn differing(&self, other: &Self) -> usize {
        self.cells.differing(&other.cells) + self.leaves.differing(&other.leaves)
    }
}
