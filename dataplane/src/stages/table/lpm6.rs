//! Longest prefix match for IPv6: a first level of 20 bits, and cache lines behind it, of which each takes as many of the
//! bits that are left as it has room for their boundaries.

use std::sync::Arc;

use super::TableError;
use super::cells::Cells;
use super::form::V6;
use super::trie::Trie;

/// A table of IPv6 prefixes. A lookup is one load for prefixes up to /20 and mostly one more for longer ones, up to /64;
/// where many are near each other, one for every four bits in which they differ.
///
/// ```
/// use dataplane::stages::table::lpm6::Lpm6;
///
/// let mut table = Lpm6::new();
/// let address = |text: &str| u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
/// table.insert(address("2001:db8::"), 32, 1)?;
/// table.insert(address("2001:db8:1::"), 48, 2)?;
/// assert_eq!(table.lookup(address("2001:db8:1::3")), Some(2));
/// assert_eq!(table.lookup(address("2001:db8:2::3")), Some(1));
/// assert_eq!(table.lookup(address("2001:db9::1")), None);
/// # Ok::<(), dataplane::stages::table::TableError>(())
/// ```
pub struct Lpm6(Trie<V6>);

/// What is looked up in while another thread changes the table: it sees every change when it is made. A lookup that
/// was begun before [`Lpm6::reclaim`] was told of it must not go on behind that.
#[derive(Clone)]
pub struct View6(Arc<Cells<V6>>);

impl std::fmt::Debug for View6 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View6").finish_non_exhaustive()
    }
}

impl View6 {
    /// The value of the longest prefix that covers the address.
    #[inline]
    pub fn lookup(&self, address: u128) -> Option<u32> {
        self.0.lookup(address)
    }

    /// As [`Lpm6::lookup_batch`].
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u128], values: &mut [u32]) {
        self.0.lookup_batch(addresses, values);
    }
}

impl Default for Lpm6 {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Lpm6 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lpm6").field("prefixes", &self.len()).finish_non_exhaustive()
    }
}

impl Lpm6 {
    /// A table without prefixes.
    pub fn new() -> Self {
        Self(Trie::new())
    }

    /// A table that has at most so many cache lines behind its first level. A prefix longer than that level takes one line or less where
    /// few others are near; longer than /64, two.
    pub fn with_lines(most: usize) -> Self {
        Self(Trie::with_lines(most))
    }

    /// What to look up in, also from other threads.
    pub fn view(&self) -> View6 {
        View6(self.0.cells().clone())
    }

    /// Says what time it is, in any unit: memory that is taken out of use from now on is of that time, and before
    /// the first call of time 0. What was taken out before `quiet` may be used anew, as every lookup that was under way then has ended.
    pub fn reclaim(&mut self, time: u64, quiet: u64) {
        self.0.reclaim(time, quiet);
    }

    /// Every prefix, by address, length and value, in no order.
    pub fn prefixes(&self) -> impl Iterator<Item = (u128, u8, u32)> + '_ {
        self.0.rules().map(|(key, len, value)| (unleft(key), len, value))
    }

    /// A table of many prefixes: address, length, value. Of a prefix that comes twice the last counts. Bits behind
    /// the length are ignored.
    ///
    /// # Errors
    ///
    /// The first that [`Lpm6::insert`] refuses.
    pub fn build(prefixes: &[(u128, u8, u32)]) -> Result<Self, TableError> {
        let mut table = Self::new();
        table.0.reserve(prefixes.len());
        for (address, len, value) in prefixes {
            table.insert(*address, *len, *value)?;
            // Nobody looks into it yet.
            table.0.reclaim(0, u64::MAX);
        }
        Ok(table)
    }

    /// How many prefixes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a prefix, or changes its value, and gives the value it had. Bits behind the length are ignored.
    ///
    /// # Errors
    ///
    /// A length above 128, a value above [`super::MAX_VALUE`], or no memory: the table is unchanged then.
    pub fn insert(&mut self, address: u128, len: u8, value: u32) -> Result<Option<u32>, TableError> {
        if len > 128 {
            return Err(TableError::PrefixLength { len, max: 128 });
        }
        self.0.insert(left(address), len, value)
    }

    /// Takes a prefix out and gives its value; `None` when there was none.
    pub fn remove(&mut self, address: u128, len: u8) -> Option<u32> {
        if len > 128 { None } else { self.0.remove(left(address), len) }
    }

    /// The value of exactly this prefix, whatever longer or shorter ones there are.
    pub fn get(&self, address: u128, len: u8) -> Option<u32> {
        if len > 128 { None } else { self.0.get(left(address), len) }
    }

    /// The value of the longest prefix that covers the address.
    #[inline]
    pub fn lookup(&self, address: u128) -> Option<u32> {
        self.0.cells().lookup(address)
    }

    /// Looks up as many addresses as both slices have, [`super::MISS`] for none. Faster than one by one, as the
    /// memory accesses of a batch overlap.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u128], values: &mut [u32]) {
        self.0.cells().lookup_batch(addresses, values);
    }
}

/// The address at the left end of 128 bits.
fn left(address: u128) -> u128 {
    address
}

/// The address that is at the left end of 128 bits.
fn unleft(key: u128) -> u128 {
    key
}

#[cfg(test)]
mod tests {
    crate::stages::table::lpm_tests::lpm_tests!(Lpm6, u128, 128);

    /// Where every address has its own, a line says sixteen, in whatever order they came.
    #[test]
    fn prefixes_side_by_side_take_few_lines() {
        for (len, key) in [(64, 64), (128, 0)] {
            let mut table = Lpm6::new();
            for at in 0..4096u32 {
                table.insert(0x2001_0db8 << 96 | u128::from(at.reverse_bits() >> 20) << key, len, at).unwrap();
            }
            table.reclaim(1, 1);
            assert!(table.0.used() < 4096 / 16 * 6 / 5, "/{len}: {}", table.0.used());
        }
    }

    /// What is alone costs a line for each half of an address, whatever its length.
    #[test]
    fn a_lone_prefix_takes_few_lines() {
        for (len, lines) in [(20, 0), (21, 1), (48, 1), (63, 1), (64, 1), (65, 2), (127, 2), (128, 2)] {
            let mut table = Lpm6::new();
            table.insert(0x2001_0db8 << 96 | 0xf00f, len, 1).unwrap();
            assert_eq!(table.0.used(), lines, "/{len}");
        }
        // The ends of a half need no boundary.
        let mut table = Lpm6::new();
        table.insert(u128::MAX, 128, 1).unwrap();
        table.insert(0, 128, 2).unwrap();
        table.insert(0x1234 << 64 | u128::from(u64::MAX), 128, 3).unwrap();
        table.insert(0x1235 << 64, 128, 4).unwrap();
        for (address, value) in [
            (0, Some(2)),
            (1, None),
            (0x1234 << 64, None),
            ((0x1235 << 64) - 2, None),
            ((0x1235 << 64) - 1, Some(3)),
            (0x1235 << 64, Some(4)),
            ((0x1235 << 64) + 1, None),
            (u128::MAX - 1, None),
            (u128::MAX, Some(1)),
        ] {
            assert_eq!(table.lookup(address), value, "{address:x}");
        }
    }
}
