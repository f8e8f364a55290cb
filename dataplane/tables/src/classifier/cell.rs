//! The cells of tree nodes. During a lookup, a cell also contains the index of the packet that reached the cell.

use super::cut::{Cut, MAX_CUT_BITS};

/// The number of packets that descend a tree together.
pub(super) const WAYS: usize = 32;

/// A cell of a node: empty, or a reference to a node or a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(u64);

// Layout from the top: kind, 3 bits. Index of a packet in its batch, 5 bits. The cut (the bits of the lookup key that
// select the child): index of the word of the key, 4 bits; shift, 5 bits; mask, 12 bits. First cell of the node or
// number of the leaf, 32 bits.
const NODE: u64 = 1 << 63;
const LEAF: u64 = 1 << 62;
const LONG: u64 = 1 << 61;
const PACKET: u32 = 56;
const WORD: u32 = 52;
const SHIFT: u32 = 47;
const MASK: u32 = 32;

impl Cell {
    /// An empty cell: no rule is below this cell.
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn node(first: usize, cut: Cut) -> Self {
        let mask = (cut.children() - 1) as u64;
        Self(NODE | u64::from(cut.word) << WORD | u64::from(cut.shift) << SHIFT | mask << MASK | first as u64)
    }

    pub(super) fn leaf(at: usize, long: bool) -> Self {
        Self(LEAF | if long { LONG } else { 0 } | at as u64)
    }

    /// Returns a copy of the cell that contains the index of a packet of a batch.
    #[inline]
    pub(super) fn with_packet(self, packet: usize) -> Self {
        Self(self.0 | (packet as u64) << PACKET)
    }

    /// Returns the union of the bits of both cells.
    #[inline]
    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the index of the packet.
    #[inline]
    pub(super) fn packet(self) -> usize {
        (self.0 >> PACKET) as usize % WAYS
    }

    #[inline]
    pub(super) fn is_node(self) -> bool {
        self.0 & NODE != 0
    }

    /// Returns whether the cell leads to a leaf with rules.
    #[inline]
    pub(super) fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// Returns whether further leaves follow the leaf.
    #[inline]
    pub(super) fn is_long(self) -> bool {
        self.0 & LONG != 0
    }

    /// Returns the index of the first child cell, or the number of the leaf.
    #[inline]
    pub(super) fn base(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    pub(super) fn word(self) -> usize {
        (self.0 >> WORD & 0xf) as usize
    }

    fn mask(self) -> u32 {
        (self.0 >> MASK) as u32 & ((1 << MAX_CUT_BITS) - 1)
    }

    /// Returns the index of the child cell. `word` is the word of the lookup key that the cut uses.
    #[inline]
    pub(super) fn child(self, word: u32) -> usize {
        self.base() + self.child_offset(word)
    }

    /// Returns the index of the child cell relative to the first child.
    #[inline]
    pub(super) fn child_offset(self, word: u32) -> usize {
        ((word >> (self.0 >> SHIFT & 31)) & self.mask()) as usize
    }

    pub(super) fn cut(self) -> Cut {
        Cut { word: self.word() as u8, shift: (self.0 >> SHIFT & 31) as u8, bits: self.mask().count_ones() as u8 }
    }
}
