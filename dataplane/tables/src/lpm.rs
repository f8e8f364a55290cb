//! Longest prefix match.

use std::sync::Arc;

use super::TableError;
use super::cells::Cells;
use super::form::{AddressFamily, V4, V6};
use super::lines::LINES;
use super::trie::Trie;

/// A table of IPv4 prefixes. The first level uses 24 bits, as in DIR-24-8 (Gupta, Lin and McKeown, "Routing lookups in
/// hardware at memory access speeds", INFOCOM 1998). Values below 65,534 take two bytes in the first level. Prefixes
/// with more than 24 bits continue in cache lines behind the first level.
///
/// A lookup takes one load for prefixes up to /24 with values below 65,534, and two loads for prefixes up to /24 with
/// larger values. For longer prefixes, a lookup takes three or more loads. A batch is looked up in groups of 32
/// addresses. If one address of a group needs more than one load, the whole group takes the slower path, which takes up
/// to twice the time.
///
/// ```
/// use dataplane_tables::lpm::Lpm4;
///
/// let mut table = Lpm4::new()?;
/// let address = |text: &str| u32::from(text.parse::<std::net::Ipv4Addr>().unwrap());
/// table.insert(address("10.0.0.0"), 8, 1)?;
/// table.insert(address("10.1.0.0"), 16, 2)?;
/// assert_eq!(table.lookup(address("10.1.2.3")), Some(2));
/// assert_eq!(table.lookup(address("10.2.2.3")), Some(1));
/// assert_eq!(table.lookup(address("192.0.2.1")), None);
/// # Ok::<(), dataplane_tables::TableError>(())
/// ```
pub type Lpm4 = Lpm<V4>;

/// A table of IPv6 prefixes. The first level uses 20 bits. Longer prefixes continue in cache lines behind the first
/// level. A line divides the addresses that it covers into ranges, and stores the boundaries between the ranges. A line
/// therefore covers more address bits where there are fewer prefixes.
///
/// A lookup takes one load for prefixes up to /20, and usually two loads for prefixes up to /64. Where many prefixes
/// are near each other, a lookup takes one load for every four bits in which the prefixes differ.
///
/// ```
/// use dataplane_tables::lpm::Lpm6;
///
/// let mut table = Lpm6::new()?;
/// let address = |text: &str| u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
/// table.insert(address("2001:db8::"), 32, 1)?;
/// table.insert(address("2001:db8:1::"), 48, 2)?;
/// assert_eq!(table.lookup(address("2001:db8:1::3")), Some(2));
/// assert_eq!(table.lookup(address("2001:db8:2::3")), Some(1));
/// assert_eq!(table.lookup(address("2001:db9::1")), None);
/// # Ok::<(), dataplane_tables::TableError>(())
/// ```
pub type Lpm6 = Lpm<V6>;

/// The number of cache lines that [`Lpm::build`] reserves for each prefix. Most prefixes take at most one line.
const LINES_OF_PREFIX: usize = 4;

/// The minimum number of cache lines that [`Lpm::build`] reserves: 8 MiB, so that most lines are on huge pages.
const MIN_LINES: usize = if cfg!(miri) { 1 << 10 } else { 1 << 17 };

/// A table of the prefixes of an address family: [`Lpm4`] or [`Lpm6`].
pub struct Lpm<F: AddressFamily>(Trie<F>);

/// A read-only view for lookups while another thread changes the table. Lookups see every change immediately.
/// [`Lpm::reclaim`] makes memory reusable. All lookups that may read this memory must end before that call.
pub struct LpmView<F: AddressFamily>(Arc<Cells<F>>);

/// A view of a [`Lpm4`].
pub type View4 = LpmView<V4>;

/// A view of a [`Lpm6`].
pub type View6 = LpmView<V6>;

impl<F: AddressFamily> Clone for LpmView<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: AddressFamily> std::fmt::Debug for LpmView<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LpmView").finish_non_exhaustive()
    }
}

impl<F: AddressFamily> LpmView<F> {
    /// Returns the value of the longest prefix that covers the address.
    #[inline]
    pub fn lookup(&self, address: F::Address) -> Option<u32> {
        self.0.lookup(address)
    }

    /// Does the same as [`Lpm::lookup_batch`].
    #[inline]
    pub fn lookup_batch(&self, addresses: &[F::Address], values: &mut [u32]) {
        self.0.lookup_batch(addresses, values);
    }
}

impl<F: AddressFamily> std::fmt::Debug for Lpm<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lpm").field("prefixes", &self.len()).finish_non_exhaustive()
    }
}

impl<F: AddressFamily> Lpm<F> {
    /// Creates a table without prefixes, with the largest possible number of cache lines: 2^22.
    ///
    /// # Errors
    ///
    /// Returns [`TableError::Memory`] if the address space for 2^22 cache lines is not available.
    pub fn new() -> Result<Self, TableError> {
        Self::with_max_cache_lines(LINES)
    }

    /// Creates a table with at most `max` cache lines behind its first level. A prefix that ends in the first level
    /// takes no line. Any other prefix usually takes at most one line, and neighbouring prefixes share lines. An IPv6
    /// prefix longer than /64 takes up to two lines. Retired lines count until they are reclaimed ([`Lpm::reclaim`]).
    ///
    /// # Errors
    ///
    /// Returns [`TableError::Memory`] if there is not enough memory.
    pub fn with_max_cache_lines(max: usize) -> Result<Self, TableError> {
        Trie::with_max_lines(max).map(Self)
    }

    /// Returns a view for lookups, also from other threads.
    pub fn view(&self) -> LpmView<F> {
        LpmView(self.0.cells().clone())
    }

    /// Makes retired memory reusable. A change of the table retires the cache lines that it replaces, and marks these
    /// lines with the time of the table. The time of the table starts at 0, and this method sets the time to `time`.
    /// The method then frees the lines whose mark is below `no_lookups_before`.
    ///
    /// The caller guarantees that no lookup is in progress that began while the time of the table was below
    /// `no_lookups_before`. The caller chooses the unit of the times. Times must not decrease.
    pub fn reclaim(&mut self, time: u64, no_lookups_before: u64) {
        self.0.reclaim(time, no_lookups_before);
    }

    /// Returns all prefixes as address, length and value, in no particular order.
    pub fn prefixes(&self) -> impl Iterator<Item = (F::Address, u8, u32)> + '_ {
        self.0.rules().map(|(key, len, value)| (F::from_left_aligned(key), len, value))
    }

    /// Builds a table from prefixes: address, length, value. If a prefix occurs twice, the last value counts. Bits
    /// after the length are ignored. The table reserves memory for about four times as many prefixes as `prefixes`
    /// contains. Use [`Lpm::new`] for a table that can grow to the largest possible number of cache lines.
    ///
    /// # Errors
    ///
    /// The first error of [`Lpm::insert`], or [`TableError::Memory`] if there is not enough memory.
    pub fn build(prefixes: &[(F::Address, u8, u32)]) -> Result<Self, TableError> {
        // The largest table takes 256 MiB of address space, which the system may limit. So try a smaller table first.
        let lines = (prefixes.len() * LINES_OF_PREFIX).clamp(MIN_LINES, LINES);
        match Self::build_with_lines(lines, prefixes) {
            Err(TableError::NoFreeLines(_)) if lines < LINES => Self::build_with_lines(LINES, prefixes),
            built => built,
        }
    }

    fn build_with_lines(lines: usize, prefixes: &[(F::Address, u8, u32)]) -> Result<Self, TableError> {
        let mut table = Self::with_max_cache_lines(lines)?;
        table.0.reserve(prefixes.len());
        for (address, len, value) in prefixes {
            table.insert(*address, *len, *value)?;
            // The table has no readers yet.
            table.0.reclaim(0, u64::MAX);
        }
        Ok(table)
    }

    /// Returns the number of prefixes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the table has no prefixes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a prefix, or changes its value. Returns the old value. Bits after the length are ignored.
    ///
    /// # Errors
    ///
    /// Fails if the length is above the number of bits of an address, the value is above [`super::MAX_VALUE`], or there
    /// are too few free cache lines. The table is then unchanged.
    pub fn insert(&mut self, address: F::Address, len: u8, value: u32) -> Result<Option<u32>, TableError> {
        if len > F::BITS {
            return Err(TableError::PrefixLength { len, max: F::BITS });
        }
        self.0.insert(F::left_align(address), len, value)
    }

    /// Removes a prefix and returns its value, or `None` if the table does not have the prefix.
    pub fn remove(&mut self, address: F::Address, len: u8) -> Option<u32> {
        if len > F::BITS { None } else { self.0.remove(F::left_align(address), len) }
    }

    /// Returns the value of exactly this prefix, regardless of longer and shorter prefixes.
    pub fn get(&self, address: F::Address, len: u8) -> Option<u32> {
        if len > F::BITS { None } else { self.0.get(F::left_align(address), len) }
    }

    /// Returns the value of the longest prefix that covers the address.
    #[inline]
    pub fn lookup(&self, address: F::Address) -> Option<u32> {
        self.0.cells().lookup(address)
    }

    /// Looks up the addresses of a batch. If the slices have different lengths, the shorter length counts. Writes
    /// [`super::MISS`] for an address without a match. A batch is faster than single lookups, because the memory
    /// accesses of its lookups overlap.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[F::Address], values: &mut [u32]) {
        self.0.cells().lookup_batch(addresses, values);
    }
}

#[cfg(test)]
mod tests_v4 {
    crate::lpm_tests::lpm_tests!(Lpm4, u32, 32);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Looks up batches of any length. Some lookups end in the first level and some do not. Values after the length
        /// of the shorter slice stay unchanged.
        #[test]
        fn batch_lookup_agrees_with_single_lookups(
            prefixes in prop::collection::vec((address(), 8..=24u8, value()), 0..30),
            default in prop::option::of(value()),
            long in prop::option::of(address()),
            probes in prop::collection::vec(address(), 0..100),
            values in 0..100usize,
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

    /// Each change of a value also changes whether the value fits in two bytes. Readers always see an old or a new
    /// value.
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
    fn million_prefixes_are_found() {
        let million: Vec<(u32, u8, u32)> = (0..1_000_000u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b1), 16 + (i % 9) as u8 + (i % 50 == 0) as u8 * 4, i))
            .collect();
        let table = Lpm4::build(&million).unwrap();
        assert!(table.len() > 900_000);
        for (address, len, _) in million.iter().step_by(1009) {
            // A longer prefix can also cover the first address of this prefix. The lookup returns the value of the
            // longest prefix that covers the address.
            let longer = (*len..=32).rev().find_map(|len| table.get(*address, len));
            assert!(longer.is_some());
            assert_eq!(table.lookup(*address), longer);
        }
    }
}

#[cfg(test)]
mod tests_v6 {
    crate::lpm_tests::lpm_tests!(Lpm6, u128, 128);

    /// If adjacent prefixes have different values, one line covers about sixteen of these prefixes, regardless of the
    /// order of insertion.
    #[test]
    fn adjacent_prefixes_share_cache_lines() {
        for (len, key) in [(64, 64), (128, 0)] {
            let mut table = Lpm6::new().unwrap();
            for at in 0..4096u32 {
                table.insert(0x2001_0db8 << 96 | u128::from(at.reverse_bits() >> 20) << key, len, at).unwrap();
            }
            table.reclaim(1, 1);
            assert!(table.0.used() < 4096 / 16 * 6 / 5, "/{len}: {}", table.0.used());
        }
    }

    /// A single prefix takes no line if it ends in the first level. Otherwise, the prefix takes one line for each half
    /// of the address that the prefix reaches.
    #[test]
    fn single_prefix_takes_at_most_one_cache_line_for_each_half_of_the_address() {
        for (len, lines) in [(20, 0), (21, 1), (48, 1), (63, 1), (64, 1), (65, 2), (127, 2), (128, 2)] {
            let mut table = Lpm6::new().unwrap();
            table.insert(0x2001_0db8 << 96 | 0xf00f, len, 1).unwrap();
            assert_eq!(table.0.used(), lines, "/{len}");
        }
        // A prefix at the first or last address of a half needs only one boundary.
        let mut table = Lpm6::new().unwrap();
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
