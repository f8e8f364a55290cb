//! Finds the rules that two lists have in common, so that an update changes only the other rules.

use std::collections::{HashMap, VecDeque};

use super::rule::Rule;

/// Returns the rules that both lists contain in the same order, each as its position in `old` and in `new`. The
/// positions ascend in both lists.
pub(super) fn common(old: &[&Rule], new: &[Rule]) -> Vec<(usize, usize)> {
    let start = old.iter().zip(new).take_while(|(old, new)| **old == *new).count();
    let ends = old[start..].iter().rev().zip(new[start..].iter().rev());
    let end = ends.take_while(|(old, new)| **old == *new).count();
    let (old_end, new_end) = (old.len() - end, new.len() - end);

    let mut places: HashMap<&Rule, VecDeque<usize>> = HashMap::new();
    for (at, rule) in old.iter().enumerate().take(old_end).skip(start) {
        places.entry(*rule).or_default().push_back(at);
    }
    let between = new.iter().enumerate().take(new_end).skip(start);
    let same: Vec<(usize, usize)> =
        between.filter_map(|(at, rule)| Some((places.get_mut(rule)?.pop_front()?, at))).collect();
    let mut common: Vec<(usize, usize)> = (0..start).map(|at| (at, at)).collect();
    common.extend(ascending(&same));
    common.extend((0..end).map(|at| (old_end + at, new_end + at)));
    common
}

/// Returns a longest subsequence of pairs whose first numbers ascend: the longest increasing subsequence (Fredman, "On
/// computing the length of longest increasing subsequences", 1975).
fn ascending(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length, `ends` has the smallest last pair of an ascending sequence of that length. For each pair,
    // `before` has the predecessor in the longest ascending sequence that ends with the pair.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = Default::default();
    for (at, pair) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end: &usize| pairs[*end].0 < pair.0);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(at);
        } else {
            ends[length] = at;
        }
    }
    let mut found: Vec<_> = std::iter::successors(ends.last().copied(), |at| before[*at]).map(|at| pairs[at]).collect();
    found.reverse();
    found
}
