//! Exact match: bucketised cuckoo hashing with two choices (Pagh and Rodler, "Cuckoo hashing", ESA 2001; Dietzfelbinger
//! and Weidling, "Balanced allocation and dictionaries with tightly packed constant size bins", ICALP 2005), and sixteen bits
//! of every key's hash beside its place, so that hardly another key is ever read.
//!
//! A key lies in one of two groups of 31 places, whose tags are one line of the cache. So many places are seldom all taken, and
//! only then a key has to go to its other group: while none of a group had to, a key that is not there is nowhere. Of a hundred
//! lookups that miss one has to look at a second line, so a batch of them mostly waits for memory once; where keys have come and
//! gone for long it is ten, as those that had to go elsewhere do not come back. The tags of a million keys are 3 MB.
//! Behind them lie the keys, with 30 MB where they are of four words: a lookup that hits reads one of them, and a lookup that misses
//! none, but for one of 3,000.
//!
//! The hash is the NH of UMAC (Black, Halevi, Krawczyk, Krovetz and Rogaway, CRYPTO 1999; RFC 4418): products of 32 bits, of
//! which a processor makes several at a time.

use std::hash::{BuildHasher, RandomState};

use multiversion::multiversion;
use multiversion::target::match_target;
use zerocopy::FromZeros;

use super::tags::{Group, PLACES};
use super::{MAX_VALUE, MISS, TableError, zeroed};
use crate::mem::{prefetch, prefetch_afar};

/// Of the places this part is used, so that few groups are full.
const LOAD: (usize, usize) = (2, 3);

/// How many groups are looked through for a free place before the table is full.
const SEARCH: usize = 1024;

/// How many lookups of a batch are under way at once: as many as a word has bits.
const WAYS: usize = u32::BITS as usize;

/// A table of keys of `WORDS` times 32 bits, such as the addresses, ports and protocol of a flow: 4 words for IPv4, 10 for
/// IPv6. It takes as many keys as it was made for, and does not grow.
///
/// ```
/// use dataplane::stages::table::exact::Exact;
///
/// let mut flows = Exact::<4>::new(1000);
/// let flow = [0xc0000201, 0xc6336407, 4000 << 16 | 443, 6];
/// flows.insert(flow, 7)?;
/// assert_eq!(flows.lookup(&flow), Some(7));
/// assert_eq!(flows.remove(&flow), Some(7));
/// assert_eq!(flows.lookup(&flow), None);
/// # Ok::<(), dataplane::stages::table::TableError>(())
/// ```
pub struct Exact<const WORDS: usize> {
    groups: Box<[Group]>,
    entries: Box<[Entry<WORDS>]>,
    seeds: [u32; WORDS],
    len: usize,
    most: usize,
}

#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Entry<const WORDS: usize> {
    key: [u32; WORDS],
    value: u32,
}

/// Where a key may lie, and its tag.
#[derive(Clone, Copy)]
struct Home {
    groups: [u32; 2],
    tag: u16,
}

/// Where up to [`WAYS`] keys may lie. By parts, so that those of several keys are made at once.
struct Homes {
    first: [u32; WAYS],
    second: [u32; WAYS],
    tags: [u16; WAYS],
}

/// A place: a group, and which of it.
type Place = (usize, usize);

impl<const WORDS: usize> std::fmt::Debug for Exact<WORDS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exact").field("keys", &self.len).field("most", &self.most).finish_non_exhaustive()
    }
}

impl<const WORDS: usize> Exact<WORDS> {
    /// A table for at most so many keys, a billion at the most. Memory for all of them is reserved now, and mapped as it is
    /// used. Which keys collide differs from table to table, so that nobody outside can choose keys that do.
    pub fn new(most: usize) -> Self {
        let random = RandomState::new();
        let most = most.min(1 << 30);
        let groups = (most * LOAD.1).div_ceil(LOAD.0 * PLACES).max(2);
        Self::with_groups(groups, most, std::array::from_fn(|word| random.hash_one(word) as u32))
    }

    fn with_groups(groups: usize, most: usize, seeds: [u32; WORDS]) -> Self {
        Self { groups: zeroed(groups), entries: zeroed(groups * PLACES), seeds, len: 0, most }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    #[inline]
    pub fn lookup(&self, key: &[u32; WORDS]) -> Option<u32> {
        let place = self.find(key, self.home(key))?;
        self.entries.get(index(place)).map(|entry| entry.value)
    }

    /// Looks up as many keys as both slices have, [`MISS`] for none. Faster than one by one, as the memory accesses of a
    /// batch overlap.
    #[inline]
    pub fn lookup_batch(&self, keys: &[[u32; WORDS]], values: &mut [u32]) {
        let both = keys.len().min(values.len());
        let (keys, values) = (&keys[..both], &mut values[..both]);
        for (keys, values) in keys.chunks(WAYS).zip(values.chunks_mut(WAYS)) {
            lookup_ways(self, keys, values);
        }
    }

    /// Adds a key, or changes its value, and gives the value it had.
    ///
    /// # Errors
    ///
    /// A value above [`MAX_VALUE`], or no room: the table is unchanged then. It may be full a little below what it was made
    /// for, where keys happen to share their groups; at two thirds, as it is made, that is very rare.
    pub fn insert(&mut self, key: [u32; WORDS], value: u32) -> Result<Option<u32>, TableError> {
        if value > MAX_VALUE {
            return Err(TableError::Value(value));
        }
        let home = self.home(&key);
        if let Some(place) = self.find(&key, home) {
            let old = std::mem::replace(&mut self.entries[index(place)].value, value);
            return Ok(Some(old));
        }
        if self.len >= self.most {
            return Err(TableError::Keys(self.most));
        }
        let (group, place) = self.make_room(home).ok_or(TableError::Keys(self.most))?;
        self.put((group, place), Entry { key, value }, home);
        self.len += 1;
        Ok(None)
    }

    /// Takes a key out and gives its value; `None` when there was none.
    pub fn remove(&mut self, key: &[u32; WORDS]) -> Option<u32> {
        let home = self.home(key);
        let place = self.find(key, home)?;
        self.take(place, home);
        self.len -= 1;
        Some(self.entries[index(place)].value)
    }

    #[inline]
    fn home(&self, key: &[u32; WORDS]) -> Home {
        home(hash(key, &self.seeds), self.groups.len() as u64)
    }

    #[inline]
    fn find(&self, key: &[u32; WORDS], home: Home) -> Option<Place> {
        let [first, second] = home.groups;
        let group = self.groups.get(first as usize)?;
        self.find_in(key, first, group.matches(home.tag)).or_else(|| {
            let other = self.groups.get(second as usize).filter(|_| group.is_left())?;
            self.find_in(key, second, other.matches(home.tag))
        })
    }

    #[inline]
    fn find_in(&self, key: &[u32; WORDS], group: u32, mut candidates: u32) -> Option<Place> {
        while candidates != 0 {
            let place = (group as usize, candidates.trailing_zeros() as usize);
            if self.entries.get(index(place)).is_some_and(|entry| entry.key == *key) {
                return Some(place);
            }
            candidates &= candidates - 1;
        }
        None
    }

    fn free_in(&self, group: u32) -> Option<Place> {
        self.groups[group as usize].free().map(|place| (group as usize, place))
    }

    /// Writes an entry where nothing is.
    fn put(&mut self, (group, place): Place, entry: Entry<WORDS>, home: Home) {
        self.entries[index((group, place))] = entry;
        self.groups[group].tags[place] = home.tag;
        if group != home.groups[0] as usize {
            self.groups[home.groups[0] as usize].leave();
        }
    }

    fn take(&mut self, (group, place): Place, home: Home) {
        self.groups[group].tags[place] = 0;
        if group != home.groups[0] as usize {
            self.groups[home.groups[0] as usize].come_back();
        }
    }

    /// A free place in one of the two groups of a key, for which others move to their other group: by the shortest way, which
    /// is found before anything moves. `None`: there is none near.
    fn make_room(&mut self, home: Home) -> Option<Place> {
        if let Some(place) = home.groups.iter().find_map(|group| self.free_in(*group)) {
            return Some(place);
        }
        // Groups that were reached, each with the place whose entry leads there and the step before.
        let mut steps: Vec<(u32, Place, usize)> = home.groups.map(|group| (group, (0, 0), usize::MAX)).to_vec();
        let mut at = 0;
        while at < steps.len() && steps.len() < SEARCH {
            let group = steps[at].0 as usize;
            for place in (0..PLACES).map(|place| (group, place)) {
                let there = self.home(&self.entries[index(place)].key);
                let [first, second] = there.groups;
                let other = if first as usize == group { second } else { first };
                if steps.iter().any(|(known, ..)| *known == other) {
                    continue;
                }
                steps.push((other, place, at));
                if let Some(free) = self.free_in(other) {
                    return Some(self.shift(&steps, free));
                }
            }
            at += 1;
        }
        None
    }

    /// Moves the entries of a way, the last first; gives the place that is free then.
    fn shift(&mut self, steps: &[(u32, Place, usize)], mut free: Place) -> Place {
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

/// At most [`WAYS`], as many keys as values. Each step is one for all keys and has hardly a branch that they decide, so that
/// the processor waits for the cache misses of a step together: what is found of a key is a bit of a word.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn lookup_ways<const WORDS: usize>(table: &Exact<WORDS>, keys: &[[u32; WORDS]], values: &mut [u32]) {
    let n = keys.len().min(WAYS);
    let mut homes = Homes { first: [0; WAYS], second: [0; WAYS], tags: [0; WAYS] };
    let slots = homes.first.iter_mut().zip(&mut homes.second).zip(&mut homes.tags);
    for (key, ((first, second), tag)) in keys.iter().zip(slots) {
        let home = home(hash(key, &table.seeds), table.groups.len() as u64);
        ([*first, *second], *tag) = (home.groups, home.tag);
    }
    let Homes { first, second, tags } = &homes;
    // They are likely in no cache that is near, and more of them can be under way to the second than to the first.
    let fetch_tags = |group: u32| prefetch_afar(table.groups.as_ptr().wrapping_add(group as usize));
    let mut places = [0; WAYS];
    let mut fetch = |at: usize, group: u32, matches: u32| {
        let place = index((group as usize, matches.trailing_zeros() as usize));
        let entry = table.entries.as_ptr().wrapping_add(place).cast::<u32>();
        // Its end may lie in another line than its beginning.
        prefetch(entry);
        prefetch(entry.wrapping_add(WORDS));
        places[at] = place as u32;
    };
    first[..n].iter().for_each(|group| fetch_tags(*group));
    let (mut found, mut left) = (0, 0);
    for at in 0..n {
        let Some(group) = table.groups.get(first[at] as usize) else { continue };
        let matches = match_target! {
            "x86_64+avx512bw" => group.matches_avx512(tags[at]),
            "x86_64+avx2" => group.matches_avx2(tags[at]),
            _ => group.matches(tags[at]),
        };
        // A branch after all: what is fetched this early is waited for least.
        if matches != 0 {
            fetch(at, first[at], matches);
        }
        found |= u32::from(matches != 0) << at;
        left |= u32::from(group.is_left()) << at;
    }
    // The other group counts only for those that are not in the first, while a key of that is in its other one.
    let elsewhere = left & !found;
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
            *value = match table.entries.get(places[at] as usize) {
                Some(entry) if same(&entry.key, key) => entry.value,
                // Another key has the same tag: it is looked for alone, and seldom.
                _ => table.lookup(key).unwrap_or(MISS),
            };
        }
    }
}

/// Whether two keys are the same, without a branch.
#[inline]
fn same<const WORDS: usize>(one: &[u32; WORDS], other: &[u32; WORDS]) -> bool {
    one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

/// Where an entry lies.
#[inline]
fn index((group, place): Place) -> usize {
    group * PLACES + place
}

/// Every bit of the upper half depends on all of the key, and every bit of the lower on nearly all.
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

/// Where a key of this hash may lie, in so many groups: two at the least, and below 2^32.
#[inline(always)]
fn home(hash: u64, groups: u64) -> Home {
    // A product of 32 bits by the number of groups: as fair as a remainder, and cheaper.
    let group = |bits: u64| ((bits * groups) >> 32) as u32;
    let (first, second) = (group(hash >> 32), group(hash & u64::from(u32::MAX)));
    // The two are never the same.
    let second = if first != second { second } else { first ^ 1 };
    let second = if u64::from(second) < groups { second } else { first - 1 };
    // Either group takes the upper bits of its half, as many as there are groups; so the tag takes the lowest eight of each. 0 is
    // free.
    let tag = u16::from_le_bytes([(hash >> 32) as u8, hash as u8]).max(1);
    Home { groups: [first, second], tag }
}

/// Which bits of a word are ones, from the lowest on.
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

    /// Keys that differ in one word alone, whichever.
    fn key<const WORDS: usize>(number: u32) -> [u32; WORDS] {
        let mut key = [7; WORDS];
        key[number as usize % WORDS] = number;
        key
    }

    /// A table says what a map says, whatever is asked how, until all of its places are taken.
    fn is_a_map<const WORDS: usize>(
        groups: usize,
        most: usize,
        seed: u64,
        changes: Vec<Change>,
    ) -> Result<(), TestCaseError> {
        let seeds = std::array::from_fn(|word| seed.rotate_left(7 * word as u32) as u32);
        let (mut table, mut model) = (Exact::<WORDS>::with_groups(groups, most, seeds), HashMap::new());
        for change in changes {
            match change {
                Change::Insert(number, value) => match table.insert(key(number), value) {
                    Ok(old) => prop_assert_eq!(old, model.insert(key::<WORDS>(number), value)),
                    Err(error) => {
                        prop_assert_eq!(error, TableError::Keys(most));
                        prop_assert!(!model.contains_key(&key::<WORDS>(number)));
                        // Few keys may share their groups, but not so few.
                        prop_assert!(model.len() >= most.min(2 * PLACES), "full with {} of {most}", model.len());
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
        fn it_is_a_map(groups in 2usize..5, most in 0usize..200, seed in any::<u64>(), changes in changes(150)) {
            is_a_map::<4>(groups, most, seed, changes.clone())?;
            is_a_map::<10>(groups, most, seed, changes.clone())?;
            is_a_map::<1>(groups, most, seed, changes)?;
        }

        #[test]
        fn the_groups_of_a_key_are_two(hash in any::<u64>(), groups in prop_oneof![2..9u64, 2..1u64 << 30]) {
            let Home { groups: [first, second], tag } = home(hash, groups);
            prop_assert!(first != second && u64::from(first.max(second)) < groups && tag != 0);
        }
    }

    #[test]
    fn it_takes_what_it_was_made_for() {
        let most = 20_000;
        let mut table = Exact::<4>::new(most);
        let key = |number: u32| [number, number >> 3, 6, 17];
        for number in 0..most as u32 {
            assert_eq!(table.insert(key(number), number), Ok(None), "key {number}");
        }
        assert_eq!(table.insert(key(most as u32), 0), Err(TableError::Keys(most)));
        // Many times as many come and go.
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
        assert!(table.is_empty() && table.groups.iter().all(|group| group.tags == [0; PLACES] && !group.is_left()));
    }

    #[test]
    fn a_value_that_says_miss_is_refused() {
        let mut table = Exact::<1>::new(1);
        assert_eq!(table.insert([1], MISS), Err(TableError::Value(MISS)));
        assert!(table.is_empty());
    }
}
