//! What changes of the trie reckon with: runs of addresses, and how they are to be laid out in lines.

use super::cells::{BUCKET, LINE, LOW, NODE_BITS, NUMBER};
use super::form::{CELLS, Form};
use super::lines::SIZES;

/// Bits of a half of an address.
pub(super) const HALF: u32 = u64::BITS;

/// What a cell says, and the length of the prefix that it is from: 0 for none and of what leads to lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) entry: u32,
    pub(super) depth: u8,
}

impl Cell {
    pub(super) const NONE: Self = Self { entry: 0, depth: 0 };
}

/// Where a cell is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// In the first level.
    First(usize),
    /// A line, and a cell of it.
    Line(usize, usize),
}

/// The addresses that begin with the same bits of a half.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) half: usize,
    pub(super) bits: u32,
    pub(super) first: u64,
}

impl Span {
    /// The last address.
    pub(super) fn last(self) -> u64 {
        self.first | u64::MAX.checked_shr(self.bits).unwrap_or(0)
    }

    /// A single address.
    pub(super) fn at(self, address: u64) -> Self {
        Self { bits: HALF, first: address, ..self }
    }

    /// All of the second half, whichever the first is.
    pub(super) const LOW: Self = Self { half: 1, bits: 0, first: 0 };

    /// This, if it is of the second half.
    pub(super) fn low(self) -> Self {
        if self.half == 0 { Self::LOW } else { self }
    }

    /// One of two to the `more` parts.
    pub(super) fn part(self, more: u32, at: usize) -> Self {
        let bits = self.bits + more;
        Self { bits, first: self.first | (at as u64).checked_shl(HALF - bits).unwrap_or(0), ..self }
    }

    /// Of a node, where a child is and what it covers.
    pub(super) fn child(self, node: Cell, at: usize) -> (Place, Self) {
        (Place::Line((node.entry & NUMBER) as usize, at), self.part(NODE_BITS, at))
    }

    /// The child for an address.
    pub(super) fn choice_of(self, key: u64) -> usize {
        (key << self.bits >> (HALF - NODE_BITS)) as usize
    }

    /// Whether a cell that covers this leads to a node of this half.
    pub(super) fn is_node(self, cell: Cell) -> bool {
        cell.entry & (LINE | BUCKET | LOW) == LINE | self.tag()
    }

    /// Whether it leads to buckets of this half.
    pub(super) fn is_buckets(self, cell: Cell) -> bool {
        cell.entry & (LINE | BUCKET | LOW) == LINE | BUCKET | self.tag()
    }

    fn tag(self) -> u32 {
        if self.half == 0 { 0 } else { LOW }
    }

    /// The last addresses of the runs that two ends need in this span.
    pub(super) fn boundaries(self, (first, last): (u64, u64)) -> impl Iterator<Item = u64> {
        let before = first.checked_sub(1).filter(|before| *before >= self.first);
        before.into_iter().chain(Some(last).filter(|last| *last < self.last()))
    }

    /// First and last address of a prefix, as far as this half goes.
    pub(super) fn ends_of(self, key: u128, len: u8) -> (u64, u64) {
        let bits = u32::from(len).saturating_sub(self.half as u32 * HALF);
        let rest = u64::MAX.checked_shr(bits).unwrap_or(0);
        let first = half_of(key, self.half) & !rest;
        (first, first | rest)
    }
}

/// A half of an address.
pub(super) fn half_of(key: u128, half: usize) -> u64 {
    (if half == 0 { key >> HALF } else { key }) as u64
}

/// Addresses behind those of the run before, up to the last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) last: u64,
    pub(super) cell: Cell,
}

impl Run {
    /// Goes behind the others: as one with the last of them, where both are from the same prefix.
    pub(super) fn join(self, runs: &mut Vec<Self>, half: usize) {
        match runs.last_mut() {
            Some(before) if before.is_of_prefix_of(self, half) => before.last = self.last,
            _ => runs.push(self),
        }
    }

    fn is_of_prefix_of(self, other: Self, half: usize) -> bool {
        let bits = u32::from(self.cell.depth).saturating_sub(half as u32 * HALF);
        let same = (self.last ^ other.last).checked_shr(HALF - bits.min(HALF)).unwrap_or(0) == 0;
        self.cell == other.cell && self.cell.entry & LINE == 0 && same
    }
}

/// Has a prefix end where runs do, as far as it lies in their span. What those say is the same before and after.
pub(super) fn divide(runs: &mut Vec<Run>, span: Span, ends: (u64, u64)) {
    for boundary in span.boundaries(ends) {
        let at = runs.partition_point(|run| run.last < boundary);
        if let Some(run) = runs.get(at).copied().filter(|run| run.last != boundary) {
            runs.insert(at, Run { last: boundary, ..run });
        }
    }
}

/// What is to be in place of a cell.
pub(super) enum Plan {
    /// A value, or what was there.
    Cell(Cell),
    /// Each with its runs; one, two, four or eight.
    Buckets(Vec<Vec<Run>>),
    Node(Vec<Plan>),
}

impl Plan {
    /// How the runs of a span are laid out.
    pub(super) fn of<F: Form>(runs: &[Run], span: Span) -> Self {
        if let [run] = runs {
            return Self::Cell(run.cell);
        }
        // Few runs are in few addresses: there are bits to choose by where they are too many.
        let parts = || (0..CELLS).map(|at| span.part(NODE_BITS, at));
        for size in 0..SIZES as u32 {
            let buckets: Vec<Vec<Run>> = (0..1 << size).map(|at| within(runs, span.part(size, at))).collect();
            if buckets.iter().all(|runs| runs.len() <= F::RUNS) {
                return Self::Buckets(buckets);
            }
            // One line that says it all is better than two.
            if span.bits + NODE_BITS <= HALF && parts().all(|part| within(runs, part).len() == 1) {
                break;
            }
        }
        Self::Node(parts().map(|part| Self::of::<F>(&within(runs, part), part)).collect())
    }

    /// Adds how many groups of lines of each size it takes.
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

    /// How many buckets there are, and runs in them.
    pub(super) fn size(&self) -> (usize, usize) {
        match self {
            Self::Buckets(buckets) => (buckets.len(), buckets.iter().map(Vec::len).sum()),
            _ => (0, 0),
        }
    }
}

/// The runs of a part.
fn within(runs: &[Run], part: Span) -> Vec<Run> {
    let last = part.last();
    let from = runs.partition_point(|run| run.last < part.first);
    let to = runs.partition_point(|run| run.last < last);
    runs[from..=to].iter().map(|run| Run { last: run.last.min(last), ..*run }).collect()
}
