//! How a node of a tree divides the packets: by some bits of one word.

use super::words::{Entry, PORTS};

/// The most bits of a cut.
pub(super) const MOST_BITS: u8 = 12;

/// So many rules are looked at when a cut is chosen.
const SAMPLE: usize = 256;

/// Some bits of a word, each value of which leads to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) word: u8,
    pub(super) shift: u8,
    pub(super) bits: u8,
}

/// The ports that come to a node; of the destination, then of the source: the least, and how many bits behind those that all
/// have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space([(u16, u8); 2]);

impl Space {
    pub(super) const ALL: Self = Self([(0, 16); 2]);

    /// What comes to one of a node's children.
    pub(super) fn child(mut self, cut: Cut, child: usize) -> Self {
        if usize::from(cut.word) == PORTS {
            let (least, open) = &mut self.0[usize::from(cut.shift / 16)];
            *least |= (child << (cut.shift % 16)) as u16;
            *open -= cut.bits;
        }
        self
    }
}

/// The children that a rule belongs to: from the first to the last, each with any of some bits.
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
        // All subsets of the bits, the empty one first and all of them last.
        let next = move |subset: &usize| (*subset != any).then(|| subset.wrapping_sub(any) & any);
        std::iter::successors(Some(0), next).flat_map(move |subset| (first..=last).map(move |child| child | subset))
    }
}

impl Cut {
    /// How many children there are.
    pub(super) fn children(self) -> usize {
        1 << self.bits
    }

    fn span<const W: usize>(self, entry: &Entry<W>, space: &Space) -> Span {
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

    /// How many children a rule belongs to.
    pub(super) fn copies<const W: usize>(self, entry: &Entry<W>, space: &Space) -> usize {
        self.span(entry, space).len()
    }

    /// The children that a rule belongs to.
    pub(super) fn of<const W: usize>(self, entry: &Entry<W>, space: &Space) -> impl Iterator<Item = usize> + use<W> {
        self.span(entry, space).children()
    }

    /// The cut that leaves the fewest rules to a packet, where packets come as rules do. Every rule may have `allowed` copies
    /// on average, and `limit` at the most: one with more counts as put aside. `None`: no cut is worth its node.
    pub(super) fn best<const W: usize>(
        entries: &[Entry<W>],
        space: &Space,
        allowed: f64,
        limit: usize,
    ) -> Option<Self> {
        let sample: Vec<&Entry<W>> = entries.iter().step_by(entries.len().div_ceil(SAMPLE).max(1)).collect();
        let most = ((entries.len() * 2).max(1).ilog2() as u8).clamp(1, MOST_BITS);
        // Few nodes have many rules, and those that are hard to divide take few bits.
        let least = if entries.len() > SAMPLE { 1 } else { most.saturating_sub(3).max(1) };
        let differing = differing(&sample);
        let mut sizes = Vec::new();
        let mut best = (entries.len() as f64 * WORTH, None);
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
                let tree = if aside > 0.0 { TREE } else { 0.0 };
                let cost = met + tree + aside * ASIDE + copies * COPY + cells * CELL;
                if cost < best.0 {
                    best = (cost, Some(cut));
                }
            }
        }
        best.1
    }

    /// Whether it lies in one word, of the ports in one port, and there in the first bits that are not common to all.
    fn is_possible(self, space: &Space) -> bool {
        let (half, end) = (self.shift / 16, self.shift + self.bits);
        usize::from(self.word) != PORTS || space.0[usize::from(half)].1 == end - half * 16
    }
}

/// The bits that are set in some rules and not in others, word by word.
fn differing<const W: usize>(entries: &[&Entry<W>]) -> [u32; W] {
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
    // The words of the ports are bounds, which differ in any bit.
    differing[PORTS] = u32::MAX;
    differing
}

// What a cut costs, in rules that a packet meets.
/// One more tree, for rules put aside.
const TREE: f64 = 4.0;
/// A rule put aside.
const ASIDE: f64 = 0.5;
/// A copy of every rule.
const COPY: f64 = 1.0;
/// A cell for every rule.
const CELL: f64 = 0.05;
/// A node is worth it where it leaves less than this part of the rules.
const WORTH: f64 = 0.8;
