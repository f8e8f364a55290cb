//! The data structures for changes of the trie: runs of addresses, and their layout in the cache lines of the trie. A
//! run is a range of addresses that share one cell. A boundary is the last address of a run. For nodes and buckets, the
//! two kinds of lines, see [`super::trie`].

use super::cells::NODE_BITS;
use super::entry::{BUCKET, LINE, LOW, NUMBER};
use super::form::{AddressFamily, CELLS};
use super::lines::SIZES;

/// The number of bits of one half of an address. Addresses are left-aligned in 128 bits.
pub(super) const HALF: u32 = u64::BITS;

/// An entry, and the length of the prefix that wrote the entry. The length is 0 for an empty entry, and for an entry
/// that leads to lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) entry: u32,
    pub(super) depth: u8,
}

impl Cell {
    pub(super) const NONE: Self = Self { entry: 0, depth: 0 };
}

/// The location of a cell.
#[derive(Clone, Copy)]
pub(super) enum CellLocation {
    /// In the first level.
    First(usize),
    /// In a line: the number of the line, and the index of the cell.
    Line(usize, usize),
}

/// A range of addresses: all addresses with the same leading `bits` bits in one 64-bit half.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) half: usize,
    pub(super) bits: u32,
    pub(super) first: u64,
}

impl Span {
    /// Returns the last address.
    pub(super) fn last(self) -> u64 {
        self.first | u64::MAX.checked_shr(self.bits).unwrap_or(0)
    }

    /// Returns the span of a single address.
    pub(super) fn at(self, address: u64) -> Self {
        Self { bits: HALF, first: address, ..self }
    }

    /// All values of the second half of an address, whatever the first half is.
    pub(super) const LOW: Self = Self { half: 1, bits: 0, first: 0 };

    /// Returns this span if it belongs to the second half, otherwise [`Span::LOW`].
    pub(super) fn low(self) -> Self {
        if self.half == 0 { Self::LOW } else { self }
    }

    /// Divides the span into 2^`more` equal parts, and returns the part with the index `at`.
    pub(super) fn part(self, more: u32, at: usize) -> Self {
        let bits = self.bits + more;
        Self { bits, first: self.first | (at as u64).checked_shl(HALF - bits).unwrap_or(0), ..self }
    }

    /// Returns the location of a node's child, and the span that the child covers.
    pub(super) fn child(self, node: Cell, at: usize) -> (CellLocation, Self) {
        (CellLocation::Line((node.entry & NUMBER) as usize, at), self.part(NODE_BITS, at))
    }

    /// Returns the index of the child for an address.
    pub(super) fn choice_of(self, key: u64) -> usize {
        (key << self.bits >> (HALF - NODE_BITS)) as usize
    }

    /// Returns whether a cell that covers this span leads to a node of this half.
    pub(super) fn is_node(self, cell: Cell) -> bool {
        cell.entry & (LINE | BUCKET | LOW) == LINE | self.tag()
    }

    /// Returns whether a cell that covers this span leads to buckets of this half.
    pub(super) fn is_buckets(self, cell: Cell) -> bool {
        cell.entry & (LINE | BUCKET | LOW) == LINE | BUCKET | self.tag()
    }

    fn tag(self) -> u32 {
        if self.half == 0 { 0 } else { LOW }
    }

    /// Returns the boundaries inside this span that separate a range of addresses from the addresses before and after
    /// the range.
    pub(super) fn boundaries(self, (first, last): (u64, u64)) -> impl Iterator<Item = u64> {
        let before = first.checked_sub(1).filter(|before| *before >= self.first);
        before.into_iter().chain(Some(last).filter(|last| *last < self.last()))
    }

    /// Returns the first and the last address of a prefix, within this half.
    pub(super) fn ends_of(self, key: u128, len: u8) -> (u64, u64) {
        let bits = u32::from(len).saturating_sub(self.half as u32 * HALF);
        let rest = u64::MAX.checked_shr(bits).unwrap_or(0);
        let first = half_of(key, self.half) & !rest;
        (first, first | rest)
    }
}

/// Returns a half of an address.
pub(super) fn half_of(key: u128, half: usize) -> u64 {
    (if half == 0 { key >> HALF } else { key }) as u64
}

/// A run: the addresses after the previous run, up to `last`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) last: u64,
    pub(super) cell: Cell,
}

impl Run {
    /// Appends the run to `runs`, or extends the last run of `runs` if both runs come from the same prefix.
    pub(super) fn join(self, runs: &mut Vec<Self>, half: usize) {
        match runs.last_mut() {
            Some(before) if before.is_of_same_prefix_as(self, half) => before.last = self.last,
            _ => runs.push(self),
        }
    }

    fn is_of_same_prefix_as(self, other: Self, half: usize) -> bool {
        let bits = u32::from(self.cell.depth).saturating_sub(half as u32 * HALF);
        let same = (self.last ^ other.last).checked_shr(HALF - bits.min(HALF)).unwrap_or(0) == 0;
        self.cell == other.cell && self.cell.entry & LINE == 0 && same
    }
}

/// Splits the runs of a span at the start and at the end of a range of addresses. A start or an end outside the span
/// needs no split. The entries of the addresses do not change.
pub(super) fn divide(runs: &mut Vec<Run>, span: Span, ends: (u64, u64)) {
    for boundary in span.boundaries(ends) {
        let at = runs.partition_point(|run| run.last < boundary);
        if let Some(run) = runs.get(at).copied().filter(|run| run.last != boundary) {
            runs.insert(at, Run { last: boundary, ..run });
        }
    }
}

/// The planned replacement of a cell.
pub(super) enum Plan {
    /// A single cell with a value, or with the entry that was already there.
    Cell(Cell),
    /// One, two, four or eight buckets, each with its runs.
    Buckets(Vec<Vec<Run>>),
    Node(Vec<Plan>),
}

impl Plan {
    /// Plans the layout of the runs of a span.
    pub(super) fn of<F: AddressFamily>(runs: &[Run], span: Span) -> Self {
        if let [run] = runs {
            return Self::Cell(run.cell);
        }
        // The recursion ends, because a span with few addresses has few runs.
        let parts = || (0..CELLS).map(|at| span.part(NODE_BITS, at));
        for size in 0..SIZES as u32 {
            let buckets: Vec<Vec<Run>> = (0..1 << size).map(|at| within(runs, span.part(size, at))).collect();
            if buckets.iter().all(|runs| runs.len() <= F::RUNS) {
                return Self::Buckets(buckets);
            }
            // Prefer a single node line to two or more bucket lines.
            if span.bits + NODE_BITS <= HALF && parts().all(|part| within(runs, part).len() == 1) {
                break;
            }
        }
        Self::Node(parts().map(|part| Self::of::<F>(&within(runs, part), part)).collect())
    }

    /// Adds the number of line groups of each size that the plan needs.
    pub(super) fn count(&self, groups: &mut [usize; SIZES]) {
        match self {
            Self::Cell(_) => {}
            Self::Buckets(buckets) => groups[buckets.len().ilog2() as usize] += 1,
            Self::Node(children) => {
                groups[0] += 1;
                children.iter().for_each(|child| child.count(groups));
            }
        }
    }

    /// Returns the number of buckets and the number of runs of a [`Plan::Buckets`]. Returns zeros for every other plan.
    pub(super) fn size(&self) -> (usize, usize) {
        match self {
            Self::Buckets(buckets) => (buckets.len(), buckets.iter().map(Vec::len).sum()),
            _ => (0, 0),
        }
    }
}

/// Returns the runs inside a part of the span. The last run ends at the end of the part.
fn within(runs: &[Run], part: Span) -> Vec<Run> {
    let last = part.last();
    let from = runs.partition_point(|run| run.last < part.first);
    let to = runs.partition_point(|run| run.last < last);
    runs[from..=to].iter().map(|run| Run { last: run.last.min(last), ..*run }).collect()
}
