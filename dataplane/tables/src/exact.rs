//! Exact match by bucketised cuckoo hashing with two choices (Pagh and Rodler, "Cuckoo hashing", ESA 2001;
//! Dietzfelbinger and Weidling, "Balanced allocation and dictionaries with tightly packed constant size bins", ICALP
//! 2005). Sixteen bits of each key's hash are stored as a tag. A lookup reads a key only if the tag matches, so it
//! rarely reads a wrong key.
//!
//! A group has 31 slots, and the tags of a group share one cache line. The hash of a key selects two groups. A key goes
//! to its second group only if its first group is full, which is rare. Each group counts the keys that have this group
//! as their first group, but are stored in their second group. While the count is 0, a lookup reads only the first
//! group. Therefore, about 1 % of the lookups that miss read a second line, and most batches wait for tags only once.
//! After many insertions and removals, about a tenth of the lookups that miss read a second line, because moved keys do
//! not move back.
//!
//! The tags of a million keys take 3 MB. The keys are stored separately, and take 30 MB for keys of four words. A
//! lookup that hits reads one key. Of the lookups that miss, one in 3,000 reads a key.
//!
//! The hash is NH of UMAC (Black, Halevi, Krawczyk, Krovetz and Rogaway, CRYPTO 1999; RFC 4418). NH is a sum of
//! products of 32-bit numbers, so vector instructions compute several products at a time.

use std::hash::{BuildHasher, RandomState};

use multiversion::multiversion;
use multiversion::target::match_target;
use zerocopy::FromZeros;

use super::tags::{Group, SLOTS};
use super::{MAX_VALUE, MISS, TableError, zeroed};
use dataplane_core::mem::{prefetch, prefetch_l2};

/// The largest fraction of the slots that keys occupy, as numerator and denominator. At this fraction, few groups are
/// full.
const LOAD_FACTOR: (usize, usize) = (2, 3);

/// The number of groups that are searched for a free slot before the table counts as full.
const MAX_SEARCHED_GROUPS: usize = 1024;

/// The number of lookups of a batch that run at the same time: one per bit of a 32-bit mask.
const WAYS: usize = u32::BITS as usize;

/// A table of keys of `WORDS` times 32 bits, such as the addresses, ports and protocol of a flow: 4 words for IPv4, 10
/// for IPv6. The capacity is set at creation, and the table does not grow.
///
/// ```
/// use dataplane_tables::exact::Exact;
///
/// let mut flows = Exact::<4>::new(1000)?;
/// let flow = [0xc0000201, 0xc6336407, 4000 << 16 | 443, 6];
/// flows.insert(flow, 7)?;
/// assert_eq!(flows.lookup(&flow), Some(7));
/// assert_eq!(flows.remove(&flow), Some(7));
/// assert_eq!(flows.lookup(&flow), None);
/// # Ok::<(), dataplane_tables::TableError>(())
/// ```
pub struct Exact<const WORDS: usize> {
    groups: Box<[Group]>,
    entries: Box<[ExactEntry<WORDS>]>,
    seeds: [u32; WORDS],
    len: usize,
    capacity: usize,
}

#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct ExactEntry<const WORDS: usize> {
    key: [u32; WORDS],
    value: u32,
}

/// The two groups of a key, and its tag.
#[derive(Clone, Copy)]
struct KeyGroups {
    groups: [u32; 2],
    tag: u16,
}

/// The groups and tags of up to [`WAYS`] keys. With separate arrays, the compiler can compute the groups and tags of
/// several keys at once.
struct KeyGroupsBatch {
    first: [u32; WAYS],
    second: [u32; WAYS],
    tags: [u16; WAYS],
}

/// A slot: the group, and the index in the group.
type Slot = (usize, usize);

impl<const WORDS: usize> std::fmt::Debug for Exact<WORDS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exact").field("keys", &self.len).field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl<const WORDS: usize> Default for Exact<WORDS> {
    /// Creates a table that has room for no key.
    fn default() -> Self {
        let groups = (0..2).map(|_| Group::new_zeroed()).collect();
        let entries = (0..2 * SLOTS).map(|_| ExactEntry::new_zeroed()).collect();
        Self { groups, entries, seeds: [0; WORDS], len: 0, capacity: 0 }
    }
}

impl<const WORDS: usize> Exact<WORDS> {
    /// Creates a table for at most `capacity` keys, limited to 2^30. Memory for all keys is reserved now, and mapped
    /// when it is used. Each table has random hash seeds, so that a sender of packets cannot choose keys that collide.
    ///
    /// # Errors
    ///
    /// Returns [`TableError::Memory`] if there is not enough memory.
    pub fn new(capacity: usize) -> Result<Self, TableError> {
        let random = RandomState::new();
        let capacity = capacity.min(1 << 30);
        let groups = (capacity * LOAD_FACTOR.1).div_ceil(LOAD_FACTOR.0 * SLOTS).max(2);
        Self::with_groups(groups, capacity, std::array::from_fn(|word| random.hash_one(word) as u32))
    }

    fn with_groups(groups: usize, capacity: usize, seeds: [u32; WORDS]) -> Result<Self, TableError> {
        Ok(Self { groups: zeroed(groups)?, entries: zeroed(groups * SLOTS)?, seeds, len: 0, capacity })
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the table has no keys.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value of a key.
    #[inline]
    pub fn lookup(&self, key: &[u32; WORDS]) -> Option<u32> {
        let slot = self.find(key, self.home(key))?;
        self.entries.get(index(slot)).map(|entry| entry.value)
    }

    /// Looks up the keys of a batch. If the slices have different lengths, the shorter length counts. Writes [`MISS`]
    /// for a key that is not in the table. A batch is faster than single lookups, because the memory accesses of its
    /// lookups overlap.
    #[inline]
    pub fn lookup_batch(&self, keys: &[[u32; WORDS]], values: &mut [u32]) {
        let both = keys.len().min(values.len());
        let (keys, values) = (&keys[..both], &mut values[..both]);
        for (keys, values) in keys.chunks(WAYS).zip(values.chunks_mut(WAYS)) {
            lookup_ways(self, keys, values);
        }
    }

    /// Adds a key, or changes its value. Returns the old value.
    ///
    /// # Errors
    ///
    /// Fails if the value is above [`MAX_VALUE`], or if the table is full. The table is then unchanged. A table can be
    /// full below its capacity if many keys share their groups. This is very rare, because keys use at most two thirds
    /// of the slots.
    pub fn insert(&mut self, key: [u32; WORDS], value: u32) -> Result<Option<u32>, TableError> {
        if value > MAX_VALUE {
            return Err(TableError::Value(value));
        }
        let home = self.home(&key);
        if let Some(slot) = self.find(&key, home) {
            let old = std::mem::replace(&mut self.entries[index(slot)].value, value);
            return Ok(Some(old));
        }
        if self.len >= self.capacity {
            return Err(TableError::TooManyKeys(self.capacity));
        }
        let (group, slot) = self.make_room(home).ok_or(TableError::TooManyKeys(self.capacity))?;
        self.put((group, slot), ExactEntry { key, value }, home);
        self.len += 1;
        Ok(None)
    }

    /// Removes a key and returns its value, or `None` if the table does not have the key.
    pub fn remove(&mut self, key: &[u32; WORDS]) -> Option<u32> {
        let home = self.home(key);
        let slot = self.find(key, home)?;
        self.take(slot, home);
        self.len -= 1;
        Some(self.entries[index(slot)].value)
    }

    #[inline]
    fn home(&self, key: &[u32; WORDS]) -> KeyGroups {
        home(hash(key, &self.seeds), self.groups.len() as u64)
    }

    #[inline]
    fn find(&self, key: &[u32; WORDS], home: KeyGroups) -> Option<Slot> {
        let [first, second] = home.groups;
        let group = self.groups.get(first as usize)?;
        self.find_in(key, first, group.matches(home.tag)).or_else(|| {
            let other = self.groups.get(second as usize).filter(|_| group.has_overflow())?;
            self.find_in(key, second, other.matches(home.tag))
        })
    }

    #[inline]
    fn find_in(&self, key: &[u32; WORDS], group: u32, mut candidates: u32) -> Option<Slot> {
        while candidates != 0 {
            let slot = (group as usize, candidates.trailing_zeros() as usize);
            if self.entries.get(index(slot)).is_some_and(|entry| entry.key == *key) {
                return Some(slot);
            }
            candidates &= candidates - 1;
        }
        None
    }

    fn free_in(&self, group: u32) -> Option<Slot> {
        self.groups[group as usize].free().map(|slot| (group as usize, slot))
    }

    /// Writes an entry to a free slot.
    fn put(&mut self, (group, slot): Slot, entry: ExactEntry<WORDS>, home: KeyGroups) {
        self.entries[index((group, slot))] = entry;
        self.groups[group].tags[slot] = home.tag;
        if group != home.groups[0] as usize {
            self.groups[home.groups[0] as usize].add_overflow();
        }
    }

    fn take(&mut self, (group, slot): Slot, home: KeyGroups) {
        self.groups[group].tags[slot] = 0;
        if group != home.groups[0] as usize {
            self.groups[home.groups[0] as usize].remove_overflow();
        }
    }

    /// Returns a free slot in one of the two groups of a key. If both groups are full, a key in one of the groups moves
    /// to its other group. If that group is also full, one of its keys must move first, and so on. The search finds the
    /// shortest chain of moves before any key moves. Returns `None` if the search finds no free slot.
    fn make_room(&mut self, home: KeyGroups) -> Option<Slot> {
        if let Some(slot) = home.groups.iter().find_map(|group| self.free_in(*group)) {
            return Some(slot);
        }
        // The steps of the search. Each step has a group, the slot whose entry can move to this group, and the index of
        // the previous step.
        let mut steps: Vec<(u32, Slot, usize)> = home.groups.map(|group| (group, (0, 0), usize::MAX)).to_vec();
        let mut at = 0;
        while at < steps.len() && steps.len() < MAX_SEARCHED_GROUPS {
            let group = steps[at].0 as usize;
            for slot in (0..SLOTS).map(|slot| (group, slot)) {
                let groups = self.home(&self.entries[index(slot)].key);
                let [first, second] = groups.groups;
                let other = if first as usize == group { second } else { first };
                if steps.iter().any(|(known, ..)| *known == other) {
                    continue;
                }
                steps.push((other, slot, at));
                if let Some(free) = self.free_in(other) {
                    return Some(self.shift(&steps, free));
                }
            }
            at += 1;
        }
        None
    }

    /// Moves the entries of a chain, starting with the last entry. Returns the slot that is then free.
    fn shift(&mut self, steps: &[(u32, Slot, usize)], mut free: Slot) -> Slot {
        let mut step = steps.len() - 1;
        while steps[step].2 != usize::MAX {
            let (_, from, before) = steps[step];
            let entry = self.entries[index(from)];
            let home = self.home(&entry.key);
            self.put(free, entry, home);
            self.take(from, home);
            (free, step) = (from, before);
        }
        free
    }
}

/// Looks up at most [`WAYS`] keys. `keys` and `values` have the same length. Each step handles all keys and has almost
/// no branch that depends on a key, so the cache misses of a step overlap. The results of the steps are bit masks with
/// one bit per key.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn lookup_ways<const WORDS: usize>(table: &Exact<WORDS>, keys: &[[u32; WORDS]], values: &mut [u32]) {
    let n = keys.len().min(WAYS);
    let mut homes = KeyGroupsBatch { first: [0; WAYS], second: [0; WAYS], tags: [0; WAYS] };
    let homes_mut = homes.first.iter_mut().zip(&mut homes.second).zip(&mut homes.tags);
    for (key, ((first, second), tag)) in keys.iter().zip(homes_mut) {
        let home = home(hash(key, &table.seeds), table.groups.len() as u64);
        ([*first, *second], *tag) = (home.groups, home.tag);
    }
    let KeyGroupsBatch { first, second, tags } = &homes;
    // The tags are probably in neither the first-level nor the second-level cache. The processor can have more
    // outstanding prefetches to the second-level cache than to the first-level cache.
    let fetch_tags = |group: u32| prefetch_l2(table.groups.as_ptr().wrapping_add(group as usize));
    let mut slot_indexes = [0; WAYS];
    let mut fetch = |at: usize, group: u32, matches: u32| {
        let slot = index((group as usize, matches.trailing_zeros() as usize));
        let entry = table.entries.as_ptr().wrapping_add(slot).cast::<u32>();
        // The entry may cross a cache line.
        prefetch(entry);
        prefetch(entry.wrapping_add(WORDS));
        slot_indexes[at] = slot as u32;
    };
    first[..n].iter().for_each(|group| fetch_tags(*group));
    let (mut found, mut overflowed) = (0, 0);
    for at in 0..n {
        let Some(group) = table.groups.get(first[at] as usize) else { continue };
        let matches = match_target! {
            "x86_64+avx512bw" => group.matches_avx512(tags[at]),
            "x86_64+avx2" => group.matches_avx2(tags[at]),
            _ => group.matches(tags[at]),
        };
        // With this branch, the prefetch of the entry starts earlier, which saves more time than the branch costs.
        if matches != 0 {
            fetch(at, first[at], matches);
        }
        found |= u32::from(matches != 0) << at;
        overflowed |= u32::from(group.has_overflow()) << at;
    }
    // Read the second group only if the first group has no match and its overflow count is not 0.
    let elsewhere = overflowed & !found;
    ones(elsewhere).for_each(|at| fetch_tags(second[at]));
    for at in ones(elsewhere) {
        let matches = table.groups.get(second[at] as usize).map_or(0, |group| group.matches(tags[at]));
        if matches != 0 {
            fetch(at, second[at], matches);
            found |= 1 << at;
        }
    }
    values.fill(MISS);
    for at in ones(found) {
        if let (Some(key), Some(value)) = (keys.get(at), values.get_mut(at)) {
            *value = match table.entries.get(slot_indexes[at] as usize) {
                Some(entry) if same(&entry.key, key) => entry.value,
                // The entry belongs to another key with the same tag, which is rare. A single lookup compares all
                // candidates.
                _ => table.lookup(key).unwrap_or(MISS),
            };
        }
    }
}

/// Returns whether two keys are equal, without branches.
#[inline]
fn same<const WORDS: usize>(one: &[u32; WORDS], other: &[u32; WORDS]) -> bool {
    one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

/// Returns the index of a slot in the array of entries.
#[inline]
fn index((group, slot): Slot) -> usize {
    group * SLOTS + slot
}

/// Returns the hash of a key. Each bit of the upper half depends on the whole key. Each bit of the lower half depends
/// on nearly the whole key.
#[inline(always)]
fn hash<const WORDS: usize>(key: &[u32; WORDS], seeds: &[u32; WORDS]) -> u64 {
    let ((keys, last), (seeds, seed)) = (key.as_chunks::<2>(), seeds.as_chunks::<2>());
    let product =
        |([a, b], [c, d]): (&[u32; 2], &[u32; 2])| u64::from(a.wrapping_add(*c)) * u64::from(b.wrapping_add(*d));
    let sum = keys.iter().zip(seeds).map(product).fold(0, u64::wrapping_add);
    let sum = last.iter().zip(seed).fold(sum, |sum, (word, seed)| sum.wrapping_add(u64::from(word ^ seed)));
    // Two odd numbers without a pattern: the fractional parts of the golden ratio and of the square root of 3.
    let product = sum.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 32).wrapping_mul(0xbb67_ae85_84ca_a73b)
}

/// Returns the groups and the tag for a hash. `groups` must be at least 2 and below 2^32.
#[inline(always)]
fn home(hash: u64, groups: u64) -> KeyGroups {
    // Multiply-shift spreads the keys as evenly as the remainder of a division, and takes less time.
    let group = |bits: u64| ((bits * groups) >> 32) as u32;
    let (first, second) = (group(hash >> 32), group(hash & u64::from(u32::MAX)));
    // Change the second group if both groups are equal.
    let second = if first != second { second } else { first ^ 1 };
    let second = if u64::from(second) < groups { second } else { first - 1 };
    // The group numbers use the upper bits of each half of the hash. The tag uses the lowest eight bits of each half.
    // The tag 0 marks a free slot.
    let tag = u16::from_le_bytes([(hash >> 32) as u8, hash as u8]).max(1);
    KeyGroups { groups: [first, second], tag }
}

/// Returns the indexes of the bits that are set, from the lowest.
#[inline]
fn ones(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (at < WAYS).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u32, u32),
        Remove(u32),
    }

    fn changes(keys: u32) -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            3 => (0..keys, 0u32..1000).prop_map(|(key, value)| Change::Insert(key, value)),
            2 => (0..keys).prop_map(Change::Remove),
        ];
        prop::collection::vec(change, 0..600)
    }

    /// Returns a key with `number` in one word, and 7 in all other words.
    fn key<const WORDS: usize>(number: u32) -> [u32; WORDS] {
        let mut key = [7; WORDS];
        key[number as usize % WORDS] = number;
        key
    }

    /// Applies the changes to a table and to a `HashMap`. The results must be equal, except that the table may be full.
    fn check_against_map<const WORDS: usize>(
        groups: usize,
        most: usize,
        seed: u64,
        changes: Vec<Change>,
    ) -> Result<(), TestCaseError> {
        let seeds = std::array::from_fn(|word| seed.rotate_left(7 * word as u32) as u32);
        let (mut table, mut model) = (Exact::<WORDS>::with_groups(groups, most, seeds).unwrap(), HashMap::new());
        for change in changes {
            match change {
                Change::Insert(number, value) => match table.insert(key(number), value) {
                    Ok(old) => prop_assert_eq!(old, model.insert(key::<WORDS>(number), value)),
                    Err(error) => {
                        prop_assert_eq!(error, TableError::TooManyKeys(most));
                        prop_assert!(!model.contains_key(&key::<WORDS>(number)));
                        // A table may be full below its capacity if many keys share their groups. A table that refuses
                        // a key below its capacity has at least `2 * SLOTS` keys, because all slots of two groups are
                        // occupied.
                        prop_assert!(model.len() >= most.min(2 * SLOTS), "full with {} of {most}", model.len());
                    }
                },
                Change::Remove(number) => {
                    prop_assert_eq!(table.remove(&key(number)), model.remove(&key::<WORDS>(number)))
                }
            }
            prop_assert_eq!(table.len(), model.len());
        }
        let keys: Vec<[u32; WORDS]> = (0..200).map(key).collect();
        let mut values = vec![0; keys.len()];
        table.lookup_batch(&keys, &mut values);
        for (key, value) in keys.iter().zip(values) {
            prop_assert_eq!(table.lookup(key), model.get(key).copied());
            prop_assert_eq!(value, model.get(key).copied().unwrap_or(MISS));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn table_behaves_like_a_map(groups in 2usize..5, most in 0usize..200, seed in any::<u64>(), changes in changes(150)) {
            check_against_map::<4>(groups, most, seed, changes.clone())?;
            check_against_map::<10>(groups, most, seed, changes.clone())?;
            check_against_map::<1>(groups, most, seed, changes)?;
        }

        #[test]
        fn key_has_two_different_groups(hash in any::<u64>(), groups in prop_oneof![2..9u64, 2..1u64 << 30]) {
            let KeyGroups { groups: [first, second], tag } = home(hash, groups);
            prop_assert!(first != second && u64::from(first.max(second)) < groups && tag != 0);
        }
    }

    #[test]
    fn table_holds_its_capacity_after_many_changes() {
        let most = 20_000;
        let mut table = Exact::<4>::new(most).unwrap();
        let key = |number: u32| [number, number >> 3, 6, 17];
        for number in 0..most as u32 {
            assert_eq!(table.insert(key(number), number), Ok(None), "key {number}");
        }
        assert_eq!(table.insert(key(most as u32), 0), Err(TableError::TooManyKeys(most)));
        // Inserts and removes four times as many keys as the table can hold.
        for number in 0..4 * most as u32 {
            assert_eq!(table.remove(&key(number)), Some(number));
            assert_eq!(table.insert(key(number + most as u32), number + most as u32), Ok(None));
        }
        let from = 4 * most as u32;
        let keys: Vec<_> = (from - 1000..from + 1000).map(key).collect();
        let mut values = vec![0; keys.len()];
        table.lookup_batch(&keys, &mut values);
        for (number, value) in (from - 1000..).zip(values) {
            assert_eq!(value, if number < from { MISS } else { number });
        }
        for number in from..from + most as u32 {
            assert_eq!(table.remove(&key(number)), Some(number));
        }
        assert!(table.is_empty() && table.groups.iter().all(|group| group.tags == [0; SLOTS] && !group.has_overflow()));
    }

    #[test]
    fn default_table_refuses_every_key() {
        let mut table = Exact::<2>::default();
        assert_eq!((table.lookup(&[0; 2]), table.insert([0; 2], 1)), (None, Err(TableError::TooManyKeys(0))));
    }

    #[test]
    fn value_equal_to_the_constant_miss_is_refused() {
        let mut table = Exact::<1>::new(1).unwrap();
        assert_eq!(table.insert([1], MISS), Err(TableError::Value(MISS)));
        assert!(table.is_empty());
    }
}
