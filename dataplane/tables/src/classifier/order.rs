//! The order of rules. Each rule has a position value, and there are gaps between the position values.
//!
//! A rank consists of the position value of a rule in the upper bits, and the number of the rule in the lower bits. A
//! rule that comes before another rule has the lower rank. The insertion of a rule does not change the other ranks, as
//! long as there is a gap at its position.

use std::ops::Range;

/// Number of bits of a rule's number.
const NUMBER: u32 = 24;
/// Largest number of rules.
pub(super) const MAX_RULES: usize = 1 << NUMBER;
/// Upper limit of all position values.
const END: u64 = 1 << (64 - NUMBER - 1);
/// Smallest gap between two rules after the position values of a crowded range were spread, unless the range has all
/// rules.
const GAP: u64 = 1 << 8;

/// The ranks of all rules, in their order.
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

    /// Inserts a rule at a position. Returns its rank, or `None` if there is no gap between its neighbours.
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

    /// Removes the rule at a position, and returns its rank.
    pub(super) fn remove(&mut self, at: usize) -> u64 {
        self.0.remove(at)
    }

    /// Returns the smallest range of positions around `at` that has room for new position values.
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

    /// Gives new, evenly spaced position values to a range of positions.
    pub(super) fn spread(&mut self, crowd: Range<usize>) {
        let (before, behind) = self.around(crowd.clone());
        let step = (behind - before) / (crowd.len() as u64 + 1);
        for (rank, at) in self.0[crowd].iter_mut().zip(1..) {
            *rank = (before + at * step) << NUMBER | u64::from(number(*rank));
        }
    }

    /// Returns the position values before and after a range of positions.
    fn around(&self, positions: Range<usize>) -> (u64, u64) {
        let place = |at: usize| self.0.get(at).map(|rank| rank >> NUMBER);
        (positions.start.checked_sub(1).and_then(place).unwrap_or(0), place(positions.end).unwrap_or(END))
    }
}
