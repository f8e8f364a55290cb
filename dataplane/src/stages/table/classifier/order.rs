//! The order of rules, as numbers that leave room between them.
//!
//! A rank has the place of a rule, from the top, and its number, in the bits below: of two rules the first has the lower
//! rank, and a rule that comes between them needs no new rank of theirs, until there is no place left.

use std::ops::Range;

/// Bits of a rule's number.
const NUMBER: u32 = 24;
/// The most rules: each has a number.
pub(super) const MOST: usize = 1 << NUMBER;
/// Behind all places.
const END: u64 = 1 << (64 - NUMBER - 1);
/// Room that is left for each rule where there was none.
const ROOM: u64 = 1 << 8;

/// The ranks of all rules, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Order(Vec<u64>);

/// The number of the rule that has a rank.
#[inline]
pub(super) fn number(rank: u64) -> u32 {
    rank as u32 & (MOST as u32 - 1)
}

impl Order {
    /// Of rules with these numbers.
    pub(super) fn new(numbers: impl ExactSizeIterator<Item = u32>) -> Self {
        let step = END / (numbers.len() as u64 + 1);
        Self(numbers.zip(1..).map(|(number, at)| (at * step) << NUMBER | u64::from(number)).collect())
    }

    pub(super) fn ranks(&self) -> &[u64] {
        &self.0
    }

    /// Adds a rule at a position, those from there on come behind it; `None`: there is no place between its neighbours.
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

    /// Takes out the rule at a position.
    pub(super) fn remove(&mut self, at: usize) -> u64 {
        self.0.remove(at)
    }

    /// The fewest positions around one that have room for new places.
    pub(super) fn crowd(&self, at: usize) -> Range<usize> {
        let mut reach = 1;
        loop {
            let crowd = at.saturating_sub(reach)..(at + reach).min(self.0.len());
            let (before, behind) = self.around(crowd.clone());
            if crowd.len() == self.0.len() || behind - before > (crowd.len() as u64 + 1) * ROOM {
                return crowd;
            }
            reach *= 2;
        }
    }

    /// Gives new places to those at some positions, with as much room between all.
    pub(super) fn spread(&mut self, crowd: Range<usize>) {
        let (before, behind) = self.around(crowd.clone());
        let step = (behind - before) / (crowd.len() as u64 + 1);
        for (rank, at) in self.0[crowd].iter_mut().zip(1..) {
            *rank = (before + at * step) << NUMBER | u64::from(number(*rank));
        }
    }

    /// The places before and behind some positions.
    fn around(&self, positions: Range<usize>) -> (u64, u64) {
        let place = |at: usize| self.0.get(at).map(|rank| rank >> NUMBER);
        (positions.start.checked_sub(1).and_then(place).unwrap_or(0), place(positions.end).unwrap_or(END))
    }
}
