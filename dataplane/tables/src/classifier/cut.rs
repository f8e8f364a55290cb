//! The cut of a tree node: the bits of one 32-bit word of the lookup key that select the child for a packet.

use super::words::{PORTS, RuleEntry};

/// The maximum number of bits of a cut.
pub(super) const MAX_CUT_BITS: u8 = 12;

/// The number of rules that are sampled to choose a cut.
const SAMPLE_SIZE: usize = 256;

/// Adjacent bits of one word of the lookup key. Each value of these bits leads to one child of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) word: u8,
    pub(super) shift: u8,
    pub(super) bits: u8,
}

/// The ranges of the destination ports and of the source ports of the packets that reach a node. For each range, the
/// pair contains the lowest port, and the number of low bits in which the ports differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space([(u16, u8); 2]);

impl Space {
    pub(super) const ALL: Self = Self([(0, 16); 2]);

    /// Returns the ranges of ports of a child.
    pub(super) fn child(mut self, cut: Cut, child: usize) -> Self {
        if usize::from(cut.word) == PORTS {
            let (least, open) = &mut self.0[usize::from(cut.shift / 16)];
            *least |= (child << (cut.shift % 16)) as u16;
            *open -= cut.bits;
        }
        self
    }
}

/// The children that a rule belongs to: the children from `first` to `last`, each combined with every value of the bits
/// in `any`.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: usize,
    last: usize,
    any: usize,
}

impl Span {
    fn len(self) -> usize {
        (self.last - self.first + 1) << self.any.count_ones()
    }

    fn children(self) -> impl Iterator<Item = usize> {
        let Self { first, last, any } = self;
        // Iterates over all subsets of the bits, from the empty set to the full set.
        let next = move |subset: &usize| (*subset != any).then(|| subset.wrapping_sub(any) & any);
        std::iter::successors(Some(0), next).flat_map(move |subset| (first..=last).map(move |child| child | subset))
    }
}

impl Cut {
    /// Returns the number of children.
    pub(super) fn children(self) -> usize {
        1 << self.bits
    }

    fn span<const W: usize>(self, entry: &RuleEntry<W>, space: &Space) -> Span {
        let (word, most) = (usize::from(self.word), self.children() - 1);
        let (least, greatest) = (entry.values[word], entry.masks[word]);
        if word != PORTS {
            let value = (least >> self.shift) as usize & most;
            return Span { first: value, last: value, any: !(greatest >> self.shift) as usize & most };
        }
        let half = self.shift / 16;
        let (from, open) = space.0[usize::from(half)];
        let to = from | ((1u32 << open) - 1) as u16;
        let child = |port: u32| usize::from(((port >> (half * 16)) as u16).clamp(from, to) >> (self.shift % 16)) & most;
        Span { first: child(least), last: child(greatest), any: 0 }
    }

    /// Returns the number of children that a rule belongs to.
    pub(super) fn copies<const W: usize>(self, entry: &RuleEntry<W>, space: &Space) -> usize {
        self.span(entry, space).len()
    }

    /// Returns the children that a rule belongs to.
    pub(super) fn of<const W: usize>(
        self,
        entry: &RuleEntry<W>,
        space: &Space,
    ) -> impl Iterator<Item = usize> + use<W> {
        self.span(entry, space).children()
    }

    /// Returns the cut with the lowest estimated lookup cost. The estimate assumes that packets are distributed like
    /// the rules. The mean number of copies of the rules is at most `allowed`. A rule that would have more than `limit`
    /// copies is put aside for another tree. Returns `None` if no cut is clearly cheaper than comparing a packet with
    /// all rules.
    pub(super) fn best<const W: usize>(
        entries: &[RuleEntry<W>],
        space: &Space,
        allowed: f64,
        limit: usize,
    ) -> Option<Self> {
        let sample: Vec<&RuleEntry<W>> = entries.iter().step_by(entries.len().div_ceil(SAMPLE_SIZE).max(1)).collect();
        let most = ((entries.len() * 2).max(1).ilog2() as u8).clamp(1, MAX_CUT_BITS);
        // Rules that are hard to divide need cuts of few bits. The search includes such cuts only for nodes with many
        // rules. Few nodes have many rules, so the slower search takes little time in total.
        let least = if entries.len() > SAMPLE_SIZE { 1 } else { most.saturating_sub(3).max(1) };
        let differing = differing(&sample);
        let mut sizes = Vec::new();
        let mut best = (entries.len() as f64 * MAX_REMAINING, None);
        for bits in least..=most {
            for (word, shift) in (0..W as u8).flat_map(|word| (0..=32 - bits).map(move |shift| (word, shift))) {
                let cut = Self { word, shift, bits };
                let differs = differing[usize::from(word)] >> shift & (cut.children() - 1) as u32 != 0;
                if !differs || !cut.is_possible(space) {
                    continue;
                }
                let spans = sample.iter().map(|entry| cut.span(*entry, space)).filter(|span| span.len() <= limit);
                let (kept, copies) = spans.clone().fold((0, 0), |(kept, copies), span| (kept + 1, copies + span.len()));
                if kept == 0 || copies as f64 > kept as f64 * allowed {
                    continue;
                }
                sizes.clear();
                sizes.resize(cut.children(), 0u64);
                spans.flat_map(Span::children).for_each(|child| sizes[child] += 1);
                let scale = entries.len() as f64 / sample.len() as f64;
                let squares: u64 = sizes.iter().map(|size| size * size).sum();
                let met = squares as f64 / copies as f64 * scale;
                let aside = (sample.len() - kept) as f64 * scale;
                let copies = copies as f64 / kept as f64;
                let cells = cut.children() as f64 / entries.len() as f64;
                let tree = if aside > 0.0 { TREE_COST } else { 0.0 };
                let cost = met + tree + aside * ASIDE_COST + copies * COPY_COST + cells * CELL_COST;
                if cost < best.0 {
                    best = (cost, Some(cut));
                }
            }
        }
        best.1
    }

    /// Returns whether the node can use the cut. A cut of the word with the ports must lie within the source port or
    /// within the destination port. The highest bit of the cut must be the highest bit in which the ports that reach
    /// the node differ.
    fn is_possible(self, space: &Space) -> bool {
        let (half, end) = (self.shift / 16, self.shift + self.bits);
        usize::from(self.word) != PORTS || space.0[usize::from(half)].1 == end - half * 16
    }
}

/// Returns, for each word, the bits that are set in some rules and clear in others.
fn differing<const W: usize>(entries: &[&RuleEntry<W>]) -> [u32; W] {
    let (mut ones, mut zeros) = ([0; W], [0; W]);
    for entry in entries {
        let bits = entry.values.iter().zip(&entry.masks);
        for ((ones, zeros), (value, mask)) in ones.iter_mut().zip(&mut zeros).zip(bits) {
            *ones |= value & mask;
            *zeros |= !value & mask;
        }
    }
    let mut differing = ones;
    differing.iter_mut().zip(zeros).for_each(|(differing, zeros)| *differing &= zeros);
    // The port words of a rule are the limits of a range, so any bit may differ.
    differing[PORTS] = u32::MAX;
    differing
}

// Costs of a cut. The unit is the comparison of a packet with one rule.
/// The cost of one more tree for rules that are put aside.
const TREE_COST: f64 = 4.0;
/// The cost of a rule that is put aside.
const ASIDE_COST: f64 = 0.5;
/// The cost of one copy of each rule.
const COPY_COST: f64 = 1.0;
/// The cost of one cell per rule.
const CELL_COST: f64 = 0.05;
/// A cut is only used if its cost is below this fraction of the number of rules.
const MAX_REMAINING: f64 = 0.8;
