//! The order of the rules of a classifier. Each rule has a 64-bit rank, and a rule that comes before another rule has
//! the lower rank.
//!
//! The upper bits of a rank are a position value, and the lower bits are the number of the rule. There are gaps between
//! the position values. An inserted rule gets a value from the gap between its neighbours, so all other ranks stay
//! unchanged. If that gap is used up, the rules nearby get new position values with equal gaps.

use std::ops::Range;

/// The number of bits of a rank that hold the number of the rule.
const NUMBER: u32 = 24;
/// The maximum number of rules.
pub(super) const MAX_RULES: usize = 1 << NUMBER;
/// Upper limit of all position values.
const END: u64 = 1 << (64 - NUMBER - 1);
/// The smallest gap between position values after [`Order::spread`]. A range that contains all rules may have smaller
/// gaps.
const GAP: u64 = 1 << 8;

/// The ranks of all rules, in ascending order.
#[derive(Clone, Debug, Default)]
pub(super) struct Order(Vec<u64>);

/// Returns the number of the rule with a rank.
#[inline]
pub(super) fn number(rank: u64) -> u32 {
    rank as u32 & (MAX_RULES as u32 - 1)
}

impl Order {
    /// Creates the order of rules with these numbers.
    pub(super) fn new(numbers: impl ExactSizeIterator<Item = u32>) -> Self {
        let step = END / (numbers.len() as u64 + 1);
        Self(numbers.zip(1..).map(|(number, at)| (at * step) << NUMBER | u64::from(number)).collect())
    }

    pub(super) fn ranks(&self) -> &[u64] {
        &self.0
    }

    /// Inserts a rule at the index `at`. Returns the rank of the rule, or `None` if there is no gap between its
    /// neighbours.
    pub(super) fn insert(&mut self, at: usize, number: u32) -> Option<u64> {
        let (before, behind) = self.around(at..at);
        let place = before + (behind - before) / 2;
        if place == before {
            return None;
        }
        let rank = place << NUMBER | u64::from(number);
        self.0.insert(at, rank);
        Some(rank)
    }

    /// Removes the rule at the index `at`, and returns its rank.
    pub(super) fn remove(&mut self, at: usize) -> u64 {
        self.0.remove(at)
    }

    /// Returns a range of indexes around `at` whose rules can get position values with gaps of at least [`GAP`]. The
    /// search starts with a small range and doubles it, at most until the range contains all rules.
    pub(super) fn crowd(&self, at: usize) -> Range<usize> {
        let mut reach = 1;
        loop {
            let crowd = at.saturating_sub(reach)..(at + reach).min(self.0.len());
            let (before, behind) = self.around(crowd.clone());
            if crowd.len() == self.0.len() || behind - before > (crowd.len() as u64 + 1) * GAP {
                return crowd;
            }
            reach *= 2;
        }
    }

    /// Gives the rules in a range of indexes new, evenly spaced position values.
    pub(super) fn spread(&mut self, crowd: Range<usize>) {
        let (before, behind) = self.around(crowd.clone());
        let step = (behind - before) / (crowd.len() as u64 + 1);
        for (rank, at) in self.0[crowd].iter_mut().zip(1..) {
            *rank = (before + at * step) << NUMBER | u64::from(number(*rank));
        }
    }

    /// Returns the position values of the two rules directly before and after a range of indexes. A missing rule counts
    /// as 0 before the range, and as [`END`] after the range.
    fn around(&self, positions: Range<usize>) -> (u64, u64) {
        let place = |at: usize| self.0.get(at).map(|rank| rank >> NUMBER);
        (positions.start.checked_sub(1).and_then(place).unwrap_or(0), place(positions.end).unwrap_or(END))
    }
}
