//! The lookup: all packets of a batch go down the trees together.

use multiversion::multiversion;

use super::cell::{Cell, WAYS};
use super::leaf::NO_RANK;
use super::tree::{Forest, ROOTS};

/// The maximum number of pending nodes or leaves of all packets together.
const LIST_CAPACITY: usize = ROOTS * WAYS;

/// Writes the rank of the first matching rule of each packet to `ranks`.
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
    let mut nodes = [Cell::EMPTY; LIST_CAPACITY];
    let mut leaves = [0u32; LIST_CAPACITY];
    // `any` is the union of the bits of all cells. The union shows whether any cell leads to a list of leaves.
    let (mut open, mut found, mut any) = (0, 0, Cell::EMPTY);
    let mut reach = |nodes: &mut [Cell; LIST_CAPACITY], open: &mut usize, from: Cell, key: u32, packet: usize| {
        let cell = forest.cells.get(from.child(key)).copied().unwrap_or(Cell::EMPTY);
        nodes[*open % LIST_CAPACITY] = cell.with_packet(packet);
        *open += usize::from(cell.is_node());
        leaves[found % LIST_CAPACITY] = (cell.base() * WAYS + packet) as u32;
        found += usize::from(cell.is_leaf());
        any = any.or(cell);
    };
    for root in &forest.roots {
        let word = root.word();
        if root.is_node() {
            for (packet, key) in keys.iter().enumerate() {
                reach(&mut nodes, &mut open, *root, key.get(word).copied().unwrap_or(0), packet);
            }
        }
    }
    while open > 0 {
        let mut remaining = 0;
        for at in 0..open.min(LIST_CAPACITY) {
            let cell = nodes[at];
            let key = keys.get(cell.packet()).and_then(|key| key.get(cell.word())).copied().unwrap_or(0);
            reach(&mut nodes, &mut remaining, cell, key, cell.packet());
        }
        open = remaining;
    }
    for root in &forest.roots {
        if root.is_leaf() {
            for packet in 0..keys.len() {
                leaves[found % LIST_CAPACITY] = (root.base() * WAYS + packet) as u32;
                found += 1;
            }
            any = any.or(*root);
        }
    }
    *ranks = [NO_RANK; WAYS];
    while found > 0 {
        let mut remaining = 0;
        for at in 0..found.min(LIST_CAPACITY) {
            let (leaf, packet) = (leaves[at] as usize / WAYS, leaves[at] as usize % WAYS);
            let (Some(leaf), Some(key)) = (forest.leaves.get(leaf), keys.get(packet)) else { continue };
            let matches = multiversion::target::match_target! {
                "x86_64+avx2" => leaf.matches_avx2(key),
                _ => leaf.matches(key),
            };
            let best = &mut ranks[packet];
            *best = leaf.first(matches).min(*best);
            if any.is_long() {
                // Ranks ascend along a list of leaves. So the next leaf matters only if its first rank is less than the
                // best rank.
                let next = forest.leaves.get(leaf.next as usize).map_or(NO_RANK, |next| next.least());
                leaves[remaining] = leaf.next * WAYS as u32 + packet as u32;
                remaining += usize::from(next < *best);
            }
        }
        found = remaining;
    }
}

/// Returns the leaf of each packet if the forest is a single tree, each packet passes at most one node, and no reached
/// leaf has a next leaf. Returns `None` otherwise. Usually, only a forest with few rules has this shape.
#[inline(always)]
fn shallow<const W: usize>(forest: &Forest<W>, keys: &[[u32; W]]) -> Option<[u32; WAYS]> {
    let [root, others @ ..] = &forest.roots;
    if others.iter().any(|root| *root != Cell::EMPTY) {
        return None;
    }
    // An empty cell leads to leaf 0, which has no rules.
    let (mut reached, mut any) = ([root.base() as u32; WAYS], *root);
    if root.is_node() {
        let (node, word) = (forest.cells.from(root.base()), root.word().min(W - 1));
        any = Cell::EMPTY;
        for (reached, key) in reached.iter_mut().zip(keys) {
            let cell = node.get(root.child_offset(key[word])).copied().unwrap_or(Cell::EMPTY);
            *reached = cell.base() as u32;
            any = any.or(cell);
        }
    }
    (!any.is_node() && !any.is_long()).then_some(reached)
}
