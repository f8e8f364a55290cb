//! Longest prefix match for IPv6: a multibit trie whose first level takes 20 bits, and whose nodes take four
//! and fill one cache line.

use super::TableError;
use super::trie::Trie;

/// A table of IPv6 prefixes. A lookup is one load for prefixes up to /20 and one more for every four bits behind.
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
#[derive(Clone)]
pub struct Lpm6(Trie<{ 1 << 20 }, 16>);

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
    /// A length above 128, or a value above [`super::MAX_VALUE`]; the table is unchanged then.
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
        self.0.lookup(left(address))
    }

    /// Looks up as many addresses as both slices have, [`super::MISS`] for none. Faster than one by one, as the
    /// memory accesses of a batch overlap.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u128], values: &mut [u32]) {
        self.0.lookup_batch(addresses, values, left);
    }
}

/// The address at the left end of 128 bits.
#[inline]
fn left(address: u128) -> u128 {
    address
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stages::table::{MAX_VALUE, MISS};

    /// Every prefix is tried.
    #[derive(Default)]
    struct Model(Vec<(u128, u8, u32)>);

    impl Model {
        fn mask(len: u8) -> u128 {
            u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
        }

        fn insert(&mut self, address: u128, len: u8, value: u32) -> Option<u32> {
            let old = self.remove(address, len);
            self.0.push((address & Self::mask(len), len, value));
            old
        }

        fn remove(&mut self, address: u128, len: u8) -> Option<u32> {
            let at = self.0.iter().position(|p| (p.0, p.1) == (address & Self::mask(len), len))?;
            Some(self.0.swap_remove(at).2)
        }

        fn lookup(&self, address: u128) -> Option<u32> {
            let covers = |p: &&(u128, u8, u32)| address & Self::mask(p.1) == p.0;
            self.0.iter().filter(covers).max_by_key(|p| p.1).map(|p| p.2)
        }
    }

    /// Addresses that share their front, so that prefixes nest.
    fn address() -> impl Strategy<Value = u128> {
        prop_oneof![
            any::<u128>(),
            (0..128u32, 0..4u8).prop_map(|(shift, low)| u128::MAX / 5 ^ (u128::from(low) << shift.min(128 - 2))),
        ]
    }

    fn changes() -> impl Strategy<Value = Vec<(bool, u128, u8, u32)>> {
        let len = prop_oneof![3 => 8..=128u8, 1 => Just(0u8), 1 => Just(128)];
        prop::collection::vec((prop::bool::weighted(0.7), address(), len, 0..=MAX_VALUE), 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_table_is_its_model(changes in changes(), probes in prop::collection::vec(address(), 70)) {
            let (mut table, mut model) = (Lpm6::new(), Model::default());
            for (add, address, len, value) in changes {
                if add {
                    prop_assert_eq!(table.insert(address, len, value), Ok(model.insert(address, len, value)));
                } else if let Some((address, len, _)) = model.0.get(value as usize % model.0.len().max(1)).copied() {
                    prop_assert_eq!(table.remove(address, len), model.remove(address, len));
                } else {
                    prop_assert_eq!(table.remove(address, len), None);
                }
                prop_assert_eq!(table.len(), model.0.len());
                prop_assert_eq!(table.lookup(address), model.lookup(address));
            }
            // The last address of every prefix and the one behind it are where a wrong expansion shows.
            let edges = model.0.iter().flat_map(|p| {
                let last = p.0 | !Model::mask(p.1);
                [p.0, last, last.wrapping_add(1), p.0.wrapping_sub(1)]
            });
            let probes: Vec<u128> = edges.chain(probes).collect();
            let mut values = vec![7; probes.len()];
            table.lookup_batch(&probes, &mut values);
            for (probe, value) in probes.iter().zip(values) {
                let expected = model.lookup(*probe);
                prop_assert_eq!(table.lookup(*probe), expected);
                prop_assert_eq!(value, expected.unwrap_or(MISS));
            }
            let built = Lpm6::build(&model.0).unwrap();
            for probe in probes {
                prop_assert_eq!(built.lookup(probe), model.lookup(probe));
            }
            for (address, len, value) in model.0 {
                prop_assert_eq!(table.get(address, len), Some(value));
                prop_assert_eq!(table.remove(address, len), Some(value));
                prop_assert_eq!(table.get(address, len), None);
            }
            prop_assert!(table.is_empty() && table.0.is_clear());
        }
    }

    #[test]
    fn what_cannot_be_stored_is_refused() {
        let mut table = Lpm6::new();
        assert_eq!(table.insert(0, 128 + 1, 0), Err(TableError::PrefixLength { len: 128 + 1, max: 128 }));
        assert_eq!(table.insert(0, 8, MAX_VALUE + 1), Err(TableError::Value(MAX_VALUE + 1)));
        assert_eq!((table.remove(0, 128 + 1), table.get(0, 255), table.len()), (None, None, 0));
        assert_eq!(table.insert(0, 0, MAX_VALUE), Ok(None));
        assert_eq!(table.lookup(u128::MAX), Some(MAX_VALUE));
    }
}
