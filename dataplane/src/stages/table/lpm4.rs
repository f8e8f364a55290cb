//! Longest prefix match for IPv4: a first level of 24 bits, as in DIR-24-8 (Gupta, Lin and McKeown, "Routing lookups in hardware at
//! memory access speeds", INFOCOM 1998), of two bytes for what is small, and cache lines behind it.

use std::sync::Arc;

use super::TableError;
use super::cells::Cells;
use super::form::V4;
use super::trie::Trie;

/// A table of IPv4 prefixes. A lookup is one load for prefixes up to /24 with values below 65,534, two for greater values, and
/// three or more for longer prefixes. All that are looked up together with one of these go that way, which takes up to twice the time.
///
/// ```
/// use dataplane::stages::table::lpm4::Lpm4;
///
/// let mut table = Lpm4::new();
/// let address = |text: &str| u32::from(text.parse::<std::net::Ipv4Addr>().unwrap());
/// table.insert(address("10.0.0.0"), 8, 1)?;
/// table.insert(address("10.1.0.0"), 16, 2)?;
/// assert_eq!(table.lookup(address("10.1.2.3")), Some(2));
/// assert_eq!(table.lookup(address("10.2.2.3")), Some(1));
/// assert_eq!(table.lookup(address("192.0.2.1")), None);
/// # Ok::<(), dataplane::stages::table::TableError>(())
/// ```
pub struct Lpm4(Trie<V4>);

/// What is looked up in while another thread changes the table: it sees every change when it is made. A lookup that
/// was begun before [`Lpm4::reclaim`] was told of it must not go on behind that.
#[derive(Clone)]
pub struct View4(Arc<Cells<V4>>);

impl std::fmt::Debug for View4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View4").finish_non_exhaustive()
    }
}

impl View4 {
    /// The value of the longest prefix that covers the address.
    #[inline]
    pub fn lookup(&self, address: u32) -> Option<u32> {
        self.0.lookup(address)
    }

    /// As [`Lpm4::lookup_batch`].
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u32], values: &mut [u32]) {
        self.0.lookup_batch(addresses, values);
    }
}

impl Default for Lpm4 {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Lpm4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lpm4").field("prefixes", &self.len()).finish_non_exhaustive()
    }
}

impl Lpm4 {
    /// A table without prefixes.
    pub fn new() -> Self {
        Self(Trie::new())
    }

    /// A table that has at most so many cache lines behind its first level. A prefix longer than that level takes one line or less where
    /// few others are near, and what a change takes out counts until it is reclaimed.
    pub fn with_lines(most: usize) -> Self {
        Self(Trie::with_lines(most))
    }

    /// What to look up in, also from other threads.
    pub fn view(&self) -> View4 {
        View4(self.0.cells().clone())
    }

    /// Says what time it is, in any unit: memory that is taken out of use from now on is of that time, and before
    /// the first call of time 0. What was taken out before `quiet` may be used anew, as every lookup that was under way then has ended.
    pub fn reclaim(&mut self, time: u64, quiet: u64) {
        self.0.reclaim(time, quiet);
    }

    /// Every prefix, by address, length and value, in no order.
    pub fn prefixes(&self) -> impl Iterator<Item = (u32, u8, u32)> + '_ {
        self.0.rules().map(|(key, len, value)| (unleft(key), len, value))
    }

    /// A table of many prefixes: address, length, value. Of a prefix that comes twice the last counts. Bits behind
    /// the length are ignored.
    ///
    /// # Errors
    ///
    /// The first that [`Lpm4::insert`] refuses.
    pub fn build(prefixes: &[(u32, u8, u32)]) -> Result<Self, TableError> {
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
    /// A length above 32, a value above [`super::MAX_VALUE`], or no memory: the table is unchanged then.
    pub fn insert(&mut self, address: u32, len: u8, value: u32) -> Result<Option<u32>, TableError> {
        if len > 32 {
            return Err(TableError::PrefixLength { len, max: 32 });
        }
        self.0.insert(left(address), len, value)
    }

    /// Takes a prefix out and gives its value; `None` when there was none.
    pub fn remove(&mut self, address: u32, len: u8) -> Option<u32> {
        if len > 32 { None } else { self.0.remove(left(address), len) }
    }

    /// The value of exactly this prefix, whatever longer or shorter ones there are.
    pub fn get(&self, address: u32, len: u8) -> Option<u32> {
        if len > 32 { None } else { self.0.get(left(address), len) }
    }

    /// The value of the longest prefix that covers the address.
    #[inline]
    pub fn lookup(&self, address: u32) -> Option<u32> {
        self.0.cells().lookup(address)
    }

    /// Looks up as many addresses as both slices have, [`super::MISS`] for none. Faster than one by one, as the
    /// memory accesses of a batch overlap.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u32], values: &mut [u32]) {
        self.0.cells().lookup_batch(addresses, values);
    }
}

/// The address at the left end of 128 bits.
fn left(address: u32) -> u128 {
    u128::from(address) << 96
}

/// The address that is at the left end of 128 bits.
fn unleft(key: u128) -> u32 {
    (key >> 96) as u32
}

#[cfg(test)]
mod tests {
    crate::stages::table::lpm_tests::lpm_tests!(Lpm4, u32, 32);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Batches of any length, of addresses that end in the first level, and of some that do not; what is behind the shorter
        /// of both slices stays.
        #[test]
        fn batches_are_their_lookups(
            prefixes in prop::collection::vec((address(), 8..=24u8, value()), 0..30), default in prop::option::of(value()),
            long in prop::option::of(address()), probes in prop::collection::vec(address(), 0..100), values in 0..100usize,
        ) {
            let long = long.map(|address| (address, 30, 1));
            let all: Vec<_> = prefixes.into_iter().chain(default.map(|value| (0, 0, value))).chain(long).collect();
            let table = Lpm4::build(&all).unwrap();
            let mut model = Model::default();
            for (address, len, value) in all {
                model.insert(address, len, value);
            }
            let mut found = vec![7; values];
            table.lookup_batch(&probes, &mut found);
            let expected = probes.iter().map(|probe| model.lookup(*probe).unwrap_or(MISS)).chain(std::iter::repeat(7));
            prop_assert_eq!(found, expected.take(values).collect::<Vec<_>>());
        }
    }

    /// While the values of cells come to need four bytes and two again, who looks sees one that was or is.
    #[test]
    fn readers_see_values_of_any_width() {
        const VALUES: [u32; 4] = [1, MAX_VALUE, 2, 1 << 16];
        const PREFIXES: u32 = 64;
        let prefix = |at: u32| 10 << 24 | at << 12;
        let mut table = Lpm4::build(&(0..PREFIXES).map(|at| (prefix(at), 20, VALUES[0])).collect::<Vec<_>>()).unwrap();
        let (view, looked) = (table.view(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let addresses: Vec<u32> = (0..PREFIXES).map(|at| prefix(at) | 77).collect();
                let mut values = vec![0; addresses.len()];
                while looked.fetch_add(1, Ordering::Relaxed) < 20_000 {
                    view.lookup_batch(&addresses, &mut values);
                    assert!(values.iter().all(|value| VALUES.contains(value)), "{values:?}");
                }
            });
            let mut round = 0;
            while !reader.is_finished() {
                round += 1;
                for at in 0..PREFIXES {
                    table.insert(prefix(at), 20, VALUES[round % VALUES.len()]).unwrap();
                }
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_million_prefixes() {
        let million: Vec<(u32, u8, u32)> = (0..1_000_000u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b1), 16 + (i % 9) as u8 + (i % 50 == 0) as u8 * 4, i))
            .collect();
        let table = Lpm4::build(&million).unwrap();
        assert!(table.len() > 900_000);
        for (address, len, _) in million.iter().step_by(1009) {
            // A longer one may cover the first address, but none can be missing.
            let longer = (*len..=32).rev().find_map(|len| table.get(*address, len));
            assert!(longer.is_some());
            assert_eq!(table.lookup(*address), longer);
        }
    }
}
