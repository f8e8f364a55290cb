//! The trie of both longest-prefix-match tables.
//!
//! The first level is indexed by the leading bits of the address. Behind the first level are cache lines of two kinds.
//! A *bucket* has the boundaries between runs of addresses, and a cell for each run ([`AddressFamily`]). A run is a
//! range of addresses that share one cell. If there are too many boundaries for one bucket, there are two, four or
//! eight adjacent buckets, and the next bits of the address select a bucket. If there are too many boundaries for eight
//! buckets, there is a *node* of 16 cells, and the next four bits of the address select a cell. A cell holds a value,
//! or leads to further lines. Sparse prefixes therefore take one line, however long they are. Dense prefixes take one
//! line per four bits.
//!
//! Addresses are left-aligned in 128 bits. The trie first distinguishes addresses by their first 64 bits (the first
//! half), and then by the second half. If all addresses of a cell have the same first half, the cell can lead to lines
//! that distinguish the addresses by their second half. A prefix is written to all cells that it covers, so that a
//! lookup never backtracks. The prefix length of each cell is stored separately, because only insertions and removals
//! read this length. Adjacent runs are only merged if they come from the same prefix. The ends of every prefix are
//! therefore boundaries, and a prefix can be removed in place. All memory is allocated zeroed, and untouched pages stay
//! unmapped. The prefix of length 0 is stored separately, because its cells would touch all pages.
//!
//! One thread changes the trie while any number of threads read the cells, which are atomics. The boundaries of a line
//! in use never change. If a change needs other boundaries, the change first writes new lines with the old entries, and
//! then links these lines. The change then writes the new entries in place. The entries of all other addresses stay
//! unchanged. Retired lines are reused only when the owner states that no reader uses them any more
//! ([`Trie::reclaim`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cells::Cells;
use super::entry::{BUCKET, CHOICE, LINE, LOW, NUMBER, line_of, size_of_group};
use super::first::FirstLevel;
use super::form::{AddressFamily, CELLS, WORDS, cell, set_cell};
use super::lines::{Allocator, SIZES};
use super::runs::{Cell, CellLocation, HALF, Plan, Run, Span, divide, half_of};
use super::{MAX_VALUE, TableError, zeroed};

/// The trie. See the module documentation.
pub(super) struct Trie<F: AddressFamily> {
    cells: Arc<Cells<F>>,
    /// Prefix lengths of the cells of the first level.
    first_depths: Box<[u8]>,
    /// Prefix lengths of the cells of every line.
    depths: Vec<[u8; CELLS]>,
    lines: Allocator,
    /// Retired groups of lines: the time of retirement, the first line, and the size. The owner defines the time.
    retired: VecDeque<(u64, usize, usize)>,
    time: u64,
    rules: HashMap<(u128, u8), u32>,
}

impl<F: AddressFamily> Trie<F> {
    /// Creates a trie with at most `max` lines.
    ///
    /// # Errors
    /// Returns [`TableError::Memory`] if there is not enough memory.
    pub(super) fn with_max_lines(max: usize) -> Result<Self, TableError> {
        let lines = Allocator::new(max);
        Ok(Self {
            cells: Arc::new(Cells::new(lines.most())?),
            first_depths: zeroed(1 << F::FirstLevel::BITS)?,
            depths: Vec::new(),
            lines,
            retired: VecDeque::new(),
            time: 0,
            rules: HashMap::new(),
        })
    }

    /// Returns the cells for lookups, also from other threads.
    pub(super) fn cells(&self) -> &Arc<Cells<F>> {
        &self.cells
    }

    /// Sets the retirement time of lines that are retired after this call to `time`. Frees the lines that were retired
    /// before the time `no_lookups_before`, because these lines have no readers any more.
    pub(super) fn reclaim(&mut self, time: u64, no_lookups_before: u64) {
        self.time = time;
        while let Some((_, group, size)) = self.retired.pop_front_if(|(retired, ..)| *retired < no_lookups_before) {
            self.lines.give(group, size);
        }
    }

    /// Returns all prefixes with their values.
    pub(super) fn rules(&self) -> impl Iterator<Item = (u128, u8, u32)> + '_ {
        self.rules.iter().map(|((key, len), value)| (*key, *len, *value))
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether every cell has the value of a new trie, and every line is free or retired.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        let first = &self.cells.first;
        // Without optimisation, an iterator over so many cells would take most of the time of a test.
        let (mut clear, mut slot) = (self.first_depths[..] == vec![0; self.first_depths.len()], 0);
        while clear && slot < self.first_depths.len() {
            clear = first.cell(slot) == 0;
            slot += 1;
        }
        let retired: usize = self.retired.iter().map(|(_, _, size)| 1 << size).sum();
        clear && self.cells.default.load(Ordering::Relaxed) == 0 && self.lines.free() + retired == self.lines.made()
    }

    /// Returns the number of lines in use, including retired lines.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.lines.made() - self.lines.free()
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
        if !self.rules.contains_key(&(key, len)) && !self.add_boundaries(key, len) {
            return Err(TableError::NoFreeLines(self.lines.most()));
        }
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
        self.paint(key, len, parent.unwrap_or(Cell::NONE));
        self.simplify(key);
        Some(old)
    }

    fn cell(&self, place: CellLocation) -> Cell {
        // No other thread writes cells, because only the thread that changes the trie calls this function.
        match place {
            CellLocation::First(slot) => Cell { entry: self.cells.first.cell(slot), depth: self.first_depths[slot] },
            CellLocation::Line(line, at) => {
                Cell { entry: cell(self.cells.lines.line(line), at), depth: self.depths[line][at] }
            }
        }
    }

    fn set(&mut self, place: CellLocation, cell: Cell) {
        match place {
            CellLocation::First(slot) => {
                self.first_depths[slot] = cell.depth;
                self.cells.first.set_cell(slot, cell.entry);
            }
            CellLocation::Line(line, at) => {
                self.depths[line][at] = cell.depth;
                set_cell(self.cells.lines.line(line), at, cell.entry);
            }
        }
    }

    /// Ensures that the addresses of each cell are either all inside a prefix or all outside the prefix. Only cells
    /// that lead to lines may have addresses inside and outside. Adds boundaries at the ends of the prefix where
    /// needed. The entries of all addresses stay unchanged. Returns `false`, and changes nothing, if there are too few
    /// lines.
    fn add_boundaries(&mut self, key: u128, len: u8) -> bool {
        if u32::from(len) <= F::FirstLevel::BITS {
            return true;
        }
        let slot = Self::slot(key);
        let (mut place, mut span) = (CellLocation::First(slot), Self::span(slot));
        loop {
            let ((first, last), below) = (span.ends_of(key, len), span.half == 0 && u32::from(len) > HALF);
            let cell = self.cell(place);
            if first <= span.first && span.last() <= last {
                if !below {
                    return true;
                }
                span = Span::LOW;
            } else if span.is_node(cell) {
                (place, span) = span.child(cell, span.choice_of(half_of(key, span.half)));
            } else {
                let stored = if span.is_buckets(cell) { self.stored(cell, span) } else { Vec::new() };
                let is_there = |boundary| stored.iter().any(|(_, run)| run.last == boundary);
                if span.boundaries((first, last)).all(is_there) {
                    // All needed boundaries exist in this half. Only a prefix that reaches into the second half needs
                    // further boundaries.
                    if !below {
                        return true;
                    }
                    (place, span) = self.run_of(cell, span, first);
                } else {
                    let mut runs = self.runs(cell, span);
                    divide(&mut runs, span, (first, last));
                    // If the prefix reaches into the second half, one more line must be free, for the boundaries there.
                    if !self.rewrite(place, span, &Plan::of::<F>(&runs, span), usize::from(below)) {
                        return false;
                    }
                }
            }
        }
    }

    /// Writes `new` to all cells where the prefix is the longest match. An insertion overwrites shorter prefixes. A
    /// removal overwrites the removed prefix.
    fn paint(&mut self, key: u128, len: u8, new: Cell) {
        if len == 0 {
            return self.cells.default.store(new.entry, Ordering::Release);
        }
        let first = Self::slot(key);
        for slot in first..first + (1 << F::FirstLevel::BITS.saturating_sub(len.into())) {
            self.paint_below(CellLocation::First(slot), Self::span(slot), (key, len), new);
        }
    }

    /// Does the same as [`Trie::paint`] for one cell and all cells below. If the cell holds a value, the prefix must
    /// cover all addresses of the cell.
    fn paint_below(&mut self, place: CellLocation, mut span: Span, of: (u128, u8), new: Cell) {
        let cell = self.cell(place);
        if cell.entry & LINE == 0 {
            if cell.depth <= of.1 {
                self.set(place, new);
            }
            return;
        }
        if cell.entry & LOW != 0 {
            span = span.low();
        }
        let (first, last) = span.ends_of(of.0, of.1);
        if span.is_node(cell) {
            for at in 0..CELLS {
                let (place, child) = span.child(cell, at);
                if first <= child.last() && child.first <= last {
                    self.paint_below(place, child, of, new);
                }
            }
            return;
        }
        for (place, run) in self.stored(cell, span) {
            if first <= run.last && run.last <= last {
                self.paint_below(place, span.at(run.last), of, new);
            }
        }
    }

    /// Removes the unnecessary boundaries and lines on the path of an address, if there are free lines for their
    /// replacement. A boundary is unnecessary if the addresses on both sides belong to the same prefix, or to no
    /// prefix.
    fn simplify(&mut self, key: u128) {
        let slot = Self::slot(key);
        let (mut place, mut span, mut path) = (CellLocation::First(slot), Self::span(slot), Vec::new());
        loop {
            let cell = self.cell(place);
            if cell.entry & LINE == 0 {
                break;
            }
            if cell.entry & LOW != 0 {
                span = span.low();
            }
            path.push((place, span));
            let key = half_of(key, span.half);
            (place, span) =
                if span.is_node(cell) { span.child(cell, span.choice_of(key)) } else { self.run_of(cell, span, key) };
        }
        for (place, span) in path.into_iter().rev() {
            let cell = self.cell(place);
            let is_node = span.is_node(cell);
            let is_node_above = |(place, child): (CellLocation, Span)| child.is_node(self.cell(place));
            if is_node && (0..CELLS).any(|at| is_node_above(span.child(cell, at))) {
                continue;
            }
            let runs = self.runs(cell, span);
            // A node stays until its runs fill at most half of a bucket, so that repeated changes do not rewrite the
            // lines each time.
            if is_node && runs.len() > F::RUNS / 2 {
                continue;
            }
            let plan = Plan::of::<F>(&runs, span);
            if is_node || plan.size() != (1 << size_of_group(cell.entry), self.stored(cell, span).len()) {
                self.rewrite(place, span, &plan, 0);
            }
        }
    }

    /// Replaces a cell by a plan, if enough lines are free for the plan and for `more` additional lines. Returns
    /// whether the cell was replaced.
    fn rewrite(&mut self, place: CellLocation, span: Span, plan: &Plan, more: usize) -> bool {
        let mut needed = [0; SIZES];
        plan.count(&mut needed);
        needed[0] += more;
        if !self.lines.has(&needed) {
            return false;
        }
        let old = self.cell(place);
        let new = self.write_plan(plan, span.half);
        self.set(place, new);
        self.retire(old, span.half);
        true
    }

    /// Writes the lines of a plan, and returns the cell that leads to them.
    fn write_plan(&mut self, plan: &Plan, half: usize) -> Cell {
        let of_half = LINE | if half == 0 { 0 } else { LOW };
        match plan {
            Plan::Cell(cell) => *cell,
            Plan::Node(children) => {
                let cells: Vec<Cell> = children.iter().map(|child| self.write_plan(child, half)).collect();
                let line = self.take(0);
                self.write(line, [0; WORDS], 0, &cells);
                Cell { entry: of_half | line as u32, depth: 0 }
            }
            Plan::Buckets(buckets) => {
                let size = buckets.len().ilog2();
                let group = self.take(size as usize);
                for (line, runs) in (group..).zip(buckets) {
                    let lasts: Vec<u64> = runs.iter().map(|run| run.last).collect();
                    let cells: Vec<Cell> = runs.iter().map(|run| run.cell).collect();
                    self.write(
                        line,
                        F::bucket_words(lasts.split_last().map_or(&[], |(_, lasts)| lasts)),
                        F::FIRST_CELL,
                        &cells,
                    );
                }
                Cell { entry: of_half | BUCKET | size << CHOICE | group as u32, depth: 0 }
            }
        }
    }

    fn take(&mut self, size: usize) -> usize {
        let group = self.lines.take(size);
        self.depths.resize(self.lines.made(), [0; CELLS]);
        group
    }

    /// Writes a line that no reader sees yet.
    fn write(&mut self, line: usize, mut words: [u64; WORDS], first: usize, cells: &[Cell]) {
        for (at, cell) in (first..CELLS).zip(cells) {
            words[at / 2] |= u64::from(cell.entry) << (32 * (at % 2));
            self.depths[line][at] = cell.depth;
        }
        for (to, word) in self.cells.lines.line(line).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Retires the lines that a cell leads to. A cell of the first half may lead to lines for the second half. These
    /// lines stay in use, because the new cells also lead to them.
    fn retire(&mut self, cell: Cell, half: usize) {
        if cell.entry & (LINE | LOW) != LINE | if half == 0 { 0 } else { LOW } {
            return;
        }
        let line = (cell.entry & NUMBER) as usize;
        if cell.entry & BUCKET == 0 {
            for at in 0..CELLS {
                self.retire(self.cell(CellLocation::Line(line, at)), half);
            }
        }
        self.retired.push_back((self.time, line, size_of_group(cell.entry)));
    }

    /// Returns the runs that a cell covers, merged as far as possible.
    fn runs(&self, cell: Cell, span: Span) -> Vec<Run> {
        let mut runs = Vec::new();
        self.collect(cell, span, &mut runs);
        runs
    }

    fn collect(&self, cell: Cell, span: Span, runs: &mut Vec<Run>) {
        if span.is_node(cell) {
            for at in 0..CELLS {
                let (place, child) = span.child(cell, at);
                self.collect(self.cell(place), child, runs);
            }
        } else if span.is_buckets(cell) {
            self.stored(cell, span).into_iter().for_each(|(_, run)| run.join(runs, span.half));
        } else {
            Run { last: span.last(), cell }.join(runs, span.half);
        }
    }

    /// Returns the runs as the buckets store them, each with the location of its cell.
    fn stored(&self, cell: Cell, span: Span) -> Vec<(CellLocation, Run)> {
        let size = size_of_group(cell.entry) as u32;
        let mut stored = Vec::new();
        for (number, part) in (line_of(cell.entry, 0)..).zip((0..1 << size).map(|at| span.part(size, at))) {
            let line = self.cells.lines.line(number);
            for at in 0..F::RUNS {
                let boundary = if at + 1 < F::RUNS { F::boundary(line, at, span.first) } else { None };
                let place = CellLocation::Line(number, F::FIRST_CELL + at);
                stored.push((place, Run { last: boundary.unwrap_or(part.last()), cell: self.cell(place) }));
                if boundary.is_none() {
                    break;
                }
            }
        }
        stored
    }

    /// Finds an address in the buckets that `cell` leads to. Returns the location of the cell for the address, and the
    /// span that contains only the address.
    fn run_of(&self, cell: Cell, span: Span, key: u64) -> (CellLocation, Span) {
        let line = line_of(cell.entry, key << span.bits);
        (CellLocation::Line(line, F::FIRST_CELL + F::boundaries_below(self.cells.lines.line(line), key)), span.at(key))
    }

    fn slot(key: u128) -> usize {
        (key >> (u128::BITS - F::FirstLevel::BITS)) as usize
    }

    fn span(slot: usize) -> Span {
        Span { half: 0, bits: F::FirstLevel::BITS, first: (slot as u64) << (HALF - F::FirstLevel::BITS) }
    }
}

/// Returns the leading `len` bits of an address, with all other bits zero.
fn prefix(address: u128, len: u8) -> u128 {
    match len {
        0 => 0,
        len => address & (u128::MAX << (128 - u32::from(len.min(128)))),
    }
}
