//! Exact match: bucketised cuckoo hashing with two choices (Pagh and Rodler, "Cuckoo hashing", ESA 2001; Dietzfelbinger
//! and Weidling, "Balanced allocation and dictionaries with tightly packed constant size bins", ICALP 2005), and twelve bits
//! of every key's hash beside its place, so that hardly another key is ever read.
//!
//! A key lies in one of two groups of five places. A group is one word of tags: twelve bits for each place, 0 where it is
//! free, and four that count the keys of this group that had to go to their other one. While that is 0 a key which is
//! not here is nowhere. The words of a million keys are 2 MB and stay in a near cache; behind them lie the keys, of
//! which a lookup that hits reads one and a lookup that misses none, but for one of 800: each such read waits for memory
//! longer than a whole batch takes beside it.
//!
//! The hash is the NH of UMAC (Black, Halevi, Krawczyk, Krovetz and Rogaway, CRYPTO 1999; RFC 4418): products of 32 bits, of
//! which a processor makes several at a time.

use std::hash::{BuildHasher, RandomState};

use multiversion::multiversion;
use zerocopy::FromZeros;

use super::{MAX_VALUE, MISS, TableError, zeroed};
use crate::mem::prefetch;

/// Places of a group, and the bits of a tag: a word, but for the bits that count.
const PLACES: usize = 5;
const TAG_BITS: usize = 12;
const TAG: u64 = (1 << TAG_BITS) - 1;

/// A one in every place of a word.
const ONES: u64 = 0x0001_0010_0100_1001;

/// How many keys have gone elsewhere, in a word; at its greatest it stays.
const GONE_AT: usize = PLACES * TAG_BITS;
const GONE_MOST: u64 = u64::MAX >> GONE_AT;

/// Of the places this part is used, so that a way to a free one is short.
const LOAD: (usize, usize) = (4, 5);

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
    tags: Box<[u64]>,
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

/// Where a key may lie, and its tag in every place of a word.
#[derive(Clone, Copy)]
struct Home {
    groups: [u32; 2],
    tags: u64,
}

/// Where up to [`WAYS`] keys may lie. By parts, so that those of several keys are made at once.
struct Homes {
    first: [u32; WAYS],
    second: [u32; WAYS],
    tags: [u64; WAYS],
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
        Self::with_seeds(most, std::array::from_fn(|word| random.hash_one(word) as u32))
    }

    fn with_seeds(most: usize, seeds: [u32; WORDS]) -> Self {
        let most = most.min(1 << 30);
        let groups = (most * LOAD.1).div_ceil(LOAD.0 * PLACES).max(2);
        Self { tags: zeroed(groups), entries: zeroed(groups * PLACES), seeds, len: 0, most }
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
            self.lookup_ways(keys, values);
        }
    }

    /// At most [`WAYS`], as many keys as values. Each step is one for all keys and has hardly a branch that they decide, so that
    /// the processor waits for the cache misses of a step together: what is found of a key is a bit of a word.
    #[inline(never)]
    fn lookup_ways(&self, keys: &[[u32; WORDS]], values: &mut [u32]) {
        let n = keys.len().min(WAYS);
        let mut homes = Homes { first: [0; WAYS], second: [0; WAYS], tags: [0; WAYS] };
        locate(keys, &self.seeds, self.tags.len() as u64, &mut homes);
        let Homes { first, second, tags } = &homes;
        let tags_at = |group: u32| self.tags.as_ptr().wrapping_add(group as usize);
        first[..n].iter().for_each(|group| prefetch(tags_at(*group)));
        let mut places = [0; WAYS];
        let mut fetch = |at: usize, group: u32, matches: u64| {
            let place = index((group as usize, first_place(matches)));
            prefetch(self.entries.as_ptr().wrapping_add(place));
            places[at] = place as u32;
        };
        let (mut found, mut gone) = (0, 0);
        for at in 0..n {
            let word = self.word(first[at]);
            let matches = matches(word, tags[at]);
            // A branch after all: what is fetched this early is waited for least.
            if matches != 0 {
                fetch(at, first[at], matches);
            }
            found |= u32::from(matches != 0) << at;
            gone |= u32::from(word >> GONE_AT != 0) << at;
        }
        // The other group counts only for those that are not in the first, while a key of that is elsewhere.
        let elsewhere = gone & !found;
        ones(elsewhere).for_each(|at| prefetch(tags_at(second[at])));
        for at in ones(elsewhere) {
            let matches = matches(self.word(second[at]), tags[at]);
            fetch(at, second[at], matches);
            found |= u32::from(matches != 0) << at;
        }
        values.fill(MISS);
        for at in ones(found) {
            if let (Some(key), Some(value)) = (keys.get(at), values.get_mut(at)) {
                *value = match self.entries.get(places[at] as usize) {
                    Some(entry) if same(&entry.key, key) => entry.value,
                    // Another key has the same tag: it is looked for alone, and seldom.
                    _ => self.lookup(key).unwrap_or(MISS),
                };
            }
        }
    }

    /// Adds a key, or changes its value, and gives the value it had.
    ///
    /// # Errors
    ///
    /// A value above [`MAX_VALUE`], or no room: the table is unchanged then. It may be full a little below what it was made
    /// for, where keys happen to share their groups; at four fifths, as it is made, that is very rare.
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
        home(hash(key, &self.seeds), self.tags.len() as u64)
    }

    #[inline]
    fn word(&self, group: u32) -> u64 {
        self.tags.get(group as usize).copied().unwrap_or(0)
    }

    #[inline]
    fn find(&self, key: &[u32; WORDS], home: Home) -> Option<Place> {
        let [first, second] = home.groups;
        let word = self.word(first);
        self.find_in(key, first, matches(word, home.tags)).or_else(|| {
            if word >> GONE_AT == 0 {
                return None;
            }
            self.find_in(key, second, matches(self.word(second), home.tags))
        })
    }

    #[inline]
    fn find_in(&self, key: &[u32; WORDS], group: u32, mut candidates: u64) -> Option<Place> {
        while candidates != 0 {
            let place = (group as usize, first_place(candidates));
            if self.entries.get(index(place)).is_some_and(|entry| entry.key == *key) {
                return Some(place);
            }
            candidates &= candidates - 1;
        }
        None
    }

    fn free_in(&self, group: u32) -> Option<Place> {
        let word = self.word(group);
        (0..PLACES).find(|place| word >> (TAG_BITS * place) & TAG == 0).map(|place| (group as usize, place))
    }

    /// Writes an entry where nothing is.
    fn put(&mut self, (group, place): Place, entry: Entry<WORDS>, home: Home) {
        self.entries[index((group, place))] = entry;
        self.tags[group] |= (home.tags & TAG) << (TAG_BITS * place);
        if group != home.groups[0] as usize {
            self.gone(home.groups[0], true);
        }
    }

    fn take(&mut self, (group, place): Place, home: Home) {
        self.tags[group] &= !(TAG << (TAG_BITS * place));
        if group != home.groups[0] as usize {
            self.gone(home.groups[0], false);
        }
    }

    /// One more or one less of the keys of a group is elsewhere.
    fn gone(&mut self, group: u32, more: bool) {
        let word = &mut self.tags[group as usize];
        // A count that was too great to be kept stays so: lookups then read a word for nothing.
        if *word >> GONE_AT != GONE_MOST {
            *word = if more { *word + (1 << GONE_AT) } else { *word - (1 << GONE_AT) };
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

/// Where keys may lie. At most [`WAYS`].
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn locate<const WORDS: usize>(keys: &[[u32; WORDS]], seeds: &[u32; WORDS], groups: u64, homes: &mut Homes) {
    let Homes { first, second, tags } = homes;
    for (((key, first), second), tags) in keys.iter().zip(first).zip(second).zip(tags) {
        let home = home(hash(key, seeds), groups);
        ([*first, *second], *tags) = (home.groups, home.tags);
    }
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
    // 0 is free. The low bits of the upper half hardly count for the group, where there are not millions.
    let tag = (hash >> 32 & TAG).max(1);
    Home { groups: [first, second], tags: tag * ONES }
}

/// The places that have a tag, which is in every place of `tags`: the highest bit of each. None but those: what was taken out
/// of a place that is free still lies there.
#[inline(always)]
fn matches(word: u64, tags: u64) -> u64 {
    const LOW: u64 = (TAG >> 1) * ONES;
    let differ = word ^ tags;
    // No place's sum reaches the next.
    !(((differ & LOW) + LOW) | differ | LOW) & (ONES << (TAG_BITS - 1))
}

/// The first of the places that match.
#[inline]
fn first_place(matches: u64) -> usize {
    matches.trailing_zeros() as usize / TAG_BITS
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

    /// A table with room for every key says what a map says, whatever is asked how.
    fn is_a_map<const WORDS: usize>(most: usize, seed: u64, changes: Vec<Change>) -> Result<(), TestCaseError> {
        let seeds = std::array::from_fn(|word| seed.rotate_left(7 * word as u32) as u32);
        let (mut table, mut model) = (Exact::<WORDS>::with_seeds(most, seeds), HashMap::new());
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
        fn it_is_a_map(most in 0usize..120, seed in any::<u64>(), changes in changes(150)) {
            is_a_map::<4>(most, seed, changes.clone())?;
            is_a_map::<10>(most, seed, changes.clone())?;
            is_a_map::<1>(most, seed, changes)?;
        }

        #[test]
        fn a_tag_matches_where_it_is(word in any::<u64>(), at in 0..PLACES, by in 0u64..3) {
            let tag_at = |place: usize| word >> (TAG_BITS * place) & TAG;
            let tag = (tag_at(at) ^ by).max(1);
            let expected = (0..PLACES).filter(|place| tag_at(*place) == tag);
            let expected = expected.fold(0, |all, place| all | 1 << (TAG_BITS * (place + 1) - 1));
            prop_assert_eq!(matches(word, tag * ONES), expected);
        }

        #[test]
        fn the_groups_of_a_key_are_two(hash in any::<u64>(), groups in prop_oneof![2..9u64, 2..1u64 << 30]) {
            let Home { groups: [first, second], tags } = home(hash, groups);
            prop_assert!(first != second && u64::from(first.max(second)) < groups && tags & TAG != 0);
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
        assert!(table.is_empty() && table.tags.iter().all(|word| word & (ONES * TAG) == 0));
    }

    #[test]
    fn a_value_that_says_miss_is_refused() {
        let mut table = Exact::<1>::new(1);
        assert_eq!(table.insert([1], MISS), Err(TableError::Value(MISS)));
        assert!(table.is_empty());
    }
}
