//! Looking up: all packets of a batch go down together.

use multiversion::multiversion;

use super::leaf::NO_RANK;
use super::tree::{Cell, Forest, ROOTS};

/// Packets that go down together.
pub(super) const WAYS: usize = 32;

const LISTS: usize = ROOTS * WAYS;

/// The ranks of the first rules that match.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
pub(super) fn search<const W: usize>(forest: &Forest<W>, keys: &[[u32; W]], ranks: &mut [u64; WAYS]) {
    let keys = keys.get(..WAYS).unwrap_or(keys);
    if let Some(reached) = shallow(forest, keys) {
        for ((rank, leaf), key) in ranks.iter_mut().zip(reached).zip(keys) {
            *rank = forest.leaves.get(leaf as usize).map_or(NO_RANK, |leaf| {
                leaf.first(multiversion::target::match_target! {
                    "x86_64+avx2" => leaf.matches_avx2(key),
                    _ => leaf.matches(key),
                })
            });
        }
        return;
    }
    let mut nodes = [Cell::EMPTY; LISTS];
    let mut leaves = [0u32; LISTS];
    // Of all cells together, whether any says it.
    let (mut open, mut found, mut any) = (0, 0, Cell::EMPTY);
    let mut reach = |nodes: &mut [Cell; LISTS], open: &mut usize, from: Cell, key: u32, of: usize| {
        let cell = forest.cells.get(from.child(key)).copied().unwrap_or(Cell::EMPTY);
        nodes[*open % LISTS] = cell.of(of);
        *open += usize::from(cell.is_node());
        leaves[found % LISTS] = (cell.base() * WAYS + of) as u32;
        found += usize::from(cell.is_leaf());
        any = any.or(cell);
    };
    for root in &forest.roots {
        let word = root.word();
        if root.is_node() {
            for (of, key) in keys.iter().enumerate() {
                reach(&mut nodes, &mut open, *root, key.get(word).copied().unwrap_or(0), of);
            }
        }
    }
    while open > 0 {
        let mut left = 0;
        for at in 0..open.min(LISTS) {
            let cell = nodes[at];
            let key = keys.get(cell.packet()).and_then(|key| key.get(cell.word())).copied().unwrap_or(0);
            reach(&mut nodes, &mut left, cell, key, cell.packet());
        }
        open = left;
    }
    for root in &forest.roots {
        if root.is_leaf() {
            for of in 0..keys.len() {
                leaves[found % LISTS] = (root.base() * WAYS + of) as u32;
                found += 1;
            }
            any = any.or(*root);
        }
    }
    *ranks = [NO_RANK; WAYS];
    while found > 0 {
        let mut left = 0;
        for at in 0..found.min(LISTS) {
            let (leaf, of) = (leaves[at] as usize / WAYS, leaves[at] as usize % WAYS);
            let (Some(leaf), Some(key)) = (forest.leaves.get(leaf), keys.get(of)) else { continue };
            let matches = multiversion::target::match_target! {
                "x86_64+avx2" => leaf.matches_avx2(key),
                _ => leaf.matches(key),
            };
            let best = &mut ranks[of];
            *best = leaf.first(matches).min(*best);
            if any.is_long() {
                // What is behind has greater ranks.
                let next = forest.leaves.get(leaf.next as usize).map_or(NO_RANK, |next| next.least());
                leaves[left] = leaf.next * WAYS as u32 + of as u32;
                left += usize::from(next < *best);
            }
        }
        found = left;
    }
}

/// The leaves that packets come to where few rules are: one tree, of a leaf or of one node over leaves, none of them long. `None`:
/// this is another.
#[inline(always)]
fn shallow<const W: usize>(forest: &Forest<W>, keys: &[[u32; W]]) -> Option<[u32; WAYS]> {
    let [root, others @ ..] = &forest.roots;
    if others.iter().any(|root| *root != Cell::EMPTY) {
        return None;
    }
    // Of what is empty too: the first leaf has no rules.
    let (mut reached, mut any) = ([root.base() as u32; WAYS], *root);
    if root.is_node() {
        let (node, word) = (forest.cells.from(root.base()), root.word().min(W - 1));
        any = Cell::EMPTY;
        for (reached, key) in reached.iter_mut().zip(keys) {
            let cell = node.get(root.place(key[word])).copied().unwrap_or(Cell::EMPTY);
            *reached = cell.base() as u32;
            any = any.or(cell);
        }
    }
    (!any.is_node() && !any.is_long()).then_some(reached)
}
