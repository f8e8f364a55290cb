//! The ledger: no packet disappears without a reason.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Where packets came from and where they went.
///
/// `rx + generated + copied = tx + dropped + consumed + held`; what is left of the difference is
/// [`Ledger::unaccounted`], which must be 0. `held` is counted from the slots that are neither free nor posted, all else
/// from events, so the two sides check each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Received.
    pub rx: u64,
    /// Made by a stage.
    pub generated: u64,
    /// Made as a copy of another.
    pub copied: u64,
    /// Sent: the device has said so.
    pub tx: u64,
    /// Dropped, for all reasons.
    pub dropped: u64,
    /// Ended in a stage that took what it needed.
    pub consumed: u64,
    /// Still in a slot.
    pub held: u64,
    /// What does not add up.
    pub unaccounted: i64,
    /// Drops by `stage.reason`.
    pub drops: BTreeMap<String, u64>,
}

impl Ledger {
    /// Counts drops under a name.
    pub fn drop(&mut self, stage: &str, reason: &str, packets: u64) {
        if packets > 0 {
            self.dropped += packets;
            *self.drops.entry(format!("{stage}.{reason}")).or_default() += packets;
        }
    }

    /// Works out what does not add up.
    pub fn balance(&mut self) {
        let came = self.rx + self.generated + self.copied;
        let went = self.tx + self.dropped + self.consumed + self.held;
        self.unaccounted = came.wrapping_sub(went) as i64;
    }

    /// Adds another, as of a second worker.
    pub fn add(&mut self, other: &Self) {
        self.rx += other.rx;
        self.generated += other.generated;
        self.copied += other.copied;
        self.tx += other.tx;
        self.dropped += other.dropped;
        self.consumed += other.consumed;
        self.held += other.held;
        self.unaccounted += other.unaccounted;
        for (name, packets) in &other.drops {
            *self.drops.entry(name.clone()).or_default() += packets;
        }
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ledger")?;
        writeln!(f, "  rx {} + generated {} + copied {}", self.rx, self.generated, self.copied)?;
        writeln!(f, "  = tx {} + dropped {} + consumed {} + held {}", self.tx, self.dropped, self.consumed, self.held)?;
        writeln!(f, "  unaccounted {}", self.unaccounted)?;
        for (name, packets) in &self.drops {
            writeln!(f, "  dropped {packets:>12}  {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_is_too_much_both_show() {
        let mut ledger = Ledger { rx: 10, copied: 2, tx: 7, consumed: 1, held: 1, ..Ledger::default() };
        ledger.drop("acl", "denied", 2);
        ledger.drop("acl", "denied", 0);
        ledger.balance();
        assert_eq!((ledger.dropped, ledger.unaccounted), (2, 1));
        ledger.drop("tx", "too_long", 2);
        ledger.balance();
        assert_eq!(ledger.unaccounted, -1);
        assert_eq!(ledger.drops.len(), 2);
    }

    #[test]
    fn the_sum_of_two_has_both() {
        let mut one = Ledger { rx: 3, tx: 1, ..Ledger::default() };
        one.drop("a", "b", 2);
        let mut two = one.clone();
        two.drop("c", "d", 1);
        one.balance();
        two.balance();
        one.add(&two);
        assert_eq!((one.rx, one.tx, one.dropped, one.unaccounted), (6, 2, 5, -1));
        assert_eq!(one.drops, BTreeMap::from([("a.b".to_owned(), 4), ("c.d".to_owned(), 1)]));
    }
}
