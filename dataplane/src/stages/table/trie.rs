//! The trie behind both longest-prefix-match tables.
//!
//! A first level is indexed by the leading bits of the address. Behind it lie cache lines of two kinds. A *bucket* has the
//! boundaries between runs of addresses, and a cell for each run ([`Form`]); where there are too many for one, there are two,
//! four or eight side by side, of which the next bits of the address choose one. Where they are too many for those, there is a *node*: 16
//! cells, of which the next four bits choose. A cell holds a value, or says where lines are. So what is sparse costs
//! one line, however long its prefixes are, and what is dense four bits a line.
//!
//! Addresses are left-aligned in 128 bits and told apart one half after the other: a cell for a single first half leads
//! to lines for the second. Prefixes are expanded to the cells they cover, so that a lookup never goes back. Beside
//! every cell lies the length of the prefix that it came from, which only changes read. Neighbouring runs are one only
//! if they came from the same prefix: so the ends of every prefix that there is are boundaries, and it is taken out
//! in place. All memory is allocated zeroed and untouched pages stay unmapped; the prefix of length 0 is held apart, or it would
//! touch them all.
//!
//! One thread changes the trie while any number look up in its cells, which are atomics. Boundaries never change: a
//! change that needs others writes new lines, which say what the old ones said, before it links them. Then it writes the
//! cells that it means, in place; every other says the same before, during and after. Lines that were taken out are used anew
//! only when the owner says that nobody can be looking at them any more ([`Trie::reclaim`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cells::{BUCKET, CHOICE, Cells, LINE, LOW, NUMBER, line_of, size_of_group};
use super::first::First;
use super::form::{CELLS, Form, WORDS, cell, set_cell};
use super::lines::{Allocator, LINES, SIZES};
use super::runs::{Cell, HALF, Place, Plan, Run, Span, divide, half_of};
use super::{MAX_VALUE, TableError};

/// See the module.
pub(super) struct Trie<F: Form> {
    cells: Arc<Cells<F>>,
    /// Of the cells of the first level.
    first_depths: Vec<u8>,
    /// Of the cells of every line.
    depths: Vec<[u8; CELLS]>,
    lines: Allocator,
    /// Groups of lines that were taken out, with their size and the time of that, as the owner counts it.
    retired: VecDeque<(u64, usize, usize)>,
    time: u64,
    rules: HashMap<(u128, u8), u32>,
}

impl<F: Form> Trie<F> {
    pub(super) fn new() -> Self {
        Self::with_lines(LINES)
    }

    /// A trie of at most so many lines.
    pub(super) fn with_lines(most: usize) -> Self {
        let lines = Allocator::new(most);
        Self {
            cells: Arc::new(Cells::new(lines.most())),
            first_depths: vec![0; 1 << F::First::BITS],
            depths: Vec::new(),
            lines,
            retired: VecDeque::new(),
            time: 0,
            rules: HashMap::new(),
        }
    }

    /// What to look up in, also from other threads.
    pub(super) fn cells(&self) -> &Arc<Cells<F>> {
        &self.cells
    }

    /// Says what time it is for lines that are taken out from now on. Those that were taken out before `quiet` nobody
    /// looks at any more.
    pub(super) fn reclaim(&mut self, time: u64, quiet: u64) {
        self.time = time;
        while let Some((_, group, size)) = self.retired.pop_front_if(|(retired, ..)| *retired < quiet) {
            self.lines.give(group, size);
        }
    }

    /// Every prefix with its value.
    pub(super) fn rules(&self) -> impl Iterator<Item = (u128, u8, u32)> + '_ {
        self.rules.iter().map(|((key, len), value)| (*key, *len, *value))
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether every cell is as in a new trie and every line free.
    #[cfg(test)]
    pub(super) fn is_clear(&self) -> bool {
        let first = &self.cells.first;
        // Without optimisation an iterator over so many costs more than all else of a test.
        let (mut clear, mut slot) = (self.first_depths[..] == vec![0; self.first_depths.len()], 0);
        while clear && slot < self.first_depths.len() {
            clear = first.cell(slot) == 0;
            slot += 1;
        }
        let retired: usize = self.retired.iter().map(|(_, _, size)| 1 << size).sum();
        clear && self.cells.default.load(Ordering::Relaxed) == 0 && self.lines.free() + retired == self.lines.made()
    }

    /// Lines that are in use, those that were taken out among them.
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
        if !self.rules.contains_key(&(key, len)) && !self.bound(key, len) {
            return Err(TableError::Full(self.lines.most()));
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
        self.tidy(key);
        Some(old)
    }

    fn cell(&self, place: Place) -> Cell {
        // This thread alone writes.
        match place {
            Place::First(slot) => Cell { entry: self.cells.first.cell(slot), depth: self.first_depths[slot] },
            Place::Line(line, at) => {
                Cell { entry: cell(self.cells.lines.line(line), at), depth: self.depths[line][at] }
            }
        }
    }

    fn set(&mut self, place: Place, cell: Cell) {
        match place {
            Place::First(slot) => {
                self.first_depths[slot] = cell.depth;
                self.cells.first.set_cell(slot, cell.entry);
            }
            Place::Line(line, at) => {
                self.depths[line][at] = cell.depth;
                set_cell(self.cells.lines.line(line), at, cell.entry);
            }
        }
    }

    /// Has the ends of a prefix be boundaries, or ends of cells. What the cells say is the same before and after.
    /// `false`: there are too few lines, and nothing has changed.
    fn bound(&mut self, key: u128, len: u8) -> bool {
        if u32::from(len) <= F::First::BITS {
            return true;
        }
        let slot = Self::slot(key);
        let (mut place, mut span) = (Place::First(slot), Self::span(slot));
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
                    // Only of what leads to the second half there is more to see.
                    if !below {
                        return true;
                    }
                    (place, span) = self.run_of(cell, span, first);
                } else {
                    let mut runs = self.runs(cell, span);
                    divide(&mut runs, span, (first, last));
                    // One more for the second half.
                    if !self.rewrite(place, span, &Plan::of::<F>(&runs, span), usize::from(below)) {
                        return false;
                    }
                }
            }
        }
    }

    /// Writes `new` wherever the prefix is the longest that covers: on insertion over shorter ones, on removal over
    /// itself, as nothing shorter is left below it.
    fn paint(&mut self, key: u128, len: u8, new: Cell) {
        if len == 0 {
            return self.cells.default.store(new.entry, Ordering::Release);
        }
        let first = Self::slot(key);
        for slot in first..first + (1 << F::First::BITS.saturating_sub(len.into())) {
            self.paint_below(Place::First(slot), Self::span(slot), (key, len), new);
        }
    }

    /// The same at a place, which the prefix covers unless it leads to lines, and below it.
    fn paint_below(&mut self, place: Place, mut span: Span, of: (u128, u8), new: Cell) {
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

    /// Takes out the boundaries and the lines on the way of an address that no longer tell addresses apart, as long as there
    /// are lines for what is to be there instead.
    fn tidy(&mut self, key: u128) {
        let slot = Self::slot(key);
        let (mut place, mut span, mut way) = (Place::First(slot), Self::span(slot), Vec::new());
        loop {
            let cell = self.cell(place);
            if cell.entry & LINE == 0 {
                break;
            }
            if cell.entry & LOW != 0 {
                span = span.low();
            }
            way.push((place, span));
            let key = half_of(key, span.half);
            (place, span) =
                if span.is_node(cell) { span.child(cell, span.choice_of(key)) } else { self.run_of(cell, span, key) };
        }
        for (place, span) in way.into_iter().rev() {
            let cell = self.cell(place);
            let is_node = span.is_node(cell);
            let is_node_above = |(place, child): (Place, Span)| child.is_node(self.cell(place));
            if is_node && (0..CELLS).any(|at| is_node_above(span.child(cell, at))) {
                continue;
            }
            let runs = self.runs(cell, span);
            // A node stays until there are clearly fewer runs than it was made for.
            if is_node && runs.len() > F::RUNS / 2 {
                continue;
            }
            let plan = Plan::of::<F>(&runs, span);
            if is_node || plan.size() != (1 << size_of_group(cell.entry), self.stored(cell, span).len()) {
                self.rewrite(place, span, &plan, 0);
            }
        }
    }

    /// Puts what is planned at a place, if there are lines for it and so many more.
    fn rewrite(&mut self, place: Place, span: Span, plan: &Plan, more: usize) -> bool {
        let mut needed = [0; SIZES];
        plan.count(&mut needed);
        needed[0] += more;
        if !self.lines.has(&needed) {
            return false;
        }
        let old = self.cell(place);
        let new = self.make(plan, span.half);
        self.set(place, new);
        self.retire(old, span.half);
        true
    }

    /// Makes the lines of a plan, and gives the cell that leads there.
    fn make(&mut self, plan: &Plan, half: usize) -> Cell {
        let of_half = LINE | if half == 0 { 0 } else { LOW };
        match plan {
            Plan::Cell(cell) => *cell,
            Plan::Node(children) => {
                let cells: Vec<Cell> = children.iter().map(|child| self.make(child, half)).collect();
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
                    self.write(line, F::words(lasts.split_last().map_or(&[], |(_, lasts)| lasts)), F::FIRST, &cells);
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

    /// Writes a line that nobody sees yet.
    fn write(&mut self, line: usize, mut words: [u64; WORDS], first: usize, cells: &[Cell]) {
        for (at, cell) in (first..CELLS).zip(cells) {
            words[at / 2] |= u64::from(cell.entry) << (32 * (at % 2));
            self.depths[line][at] = cell.depth;
        }
        for (to, word) in self.cells.lines.line(line).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// The lines that a cell led to are out of use, but for those of the second half that it led to by way of the first.
    fn retire(&mut self, cell: Cell, half: usize) {
        if cell.entry & (LINE | LOW) != LINE | if half == 0 { 0 } else { LOW } {
            return;
        }
        let line = (cell.entry & NUMBER) as usize;
        if cell.entry & BUCKET == 0 {
            for at in 0..CELLS {
                self.retire(self.cell(Place::Line(line, at)), half);
            }
        }
        self.retired.push_back((self.time, line, size_of_group(cell.entry)));
    }

    /// The runs of what a cell covers, as few as there can be.
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

    /// The runs as they are stored in buckets.
    fn stored(&self, cell: Cell, span: Span) -> Vec<(Place, Run)> {
        let size = size_of_group(cell.entry) as u32;
        let mut stored = Vec::new();
        for (number, part) in (line_of(cell.entry, 0)..).zip((0..1 << size).map(|at| span.part(size, at))) {
            let line = self.cells.lines.line(number);
            for at in 0..F::RUNS {
                let boundary = if at + 1 < F::RUNS { F::boundary(line, at, span.first) } else { None };
                let place = Place::Line(number, F::FIRST + at);
                stored.push((place, Run { last: boundary.unwrap_or(part.last()), cell: self.cell(place) }));
                if boundary.is_none() {
                    break;
                }
            }
        }
        stored
    }

    /// Where the cell of an address is in buckets.
    fn run_of(&self, cell: Cell, span: Span, key: u64) -> (Place, Span) {
        let line = line_of(cell.entry, key << span.bits);
        (Place::Line(line, F::FIRST + F::below(self.cells.lines.line(line), key)), span.at(key))
    }

    fn slot(key: u128) -> usize {
        (key >> (u128::BITS - F::First::BITS)) as usize
    }

    fn span(slot: usize) -> Span {
        Span { half: 0, bits: F::First::BITS, first: (slot as u64) << (HALF - F::First::BITS) }
    }
}

/// The leading `len` bits of an address, the others zero.
fn prefix(address: u128, len: u8) -> u128 {
    match len {
        0 => 0,
        len => address & (u128::MAX << (128 - u32::from(len.min(128)))),
    }
}
