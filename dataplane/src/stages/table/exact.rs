//! Exact match: bucketised cuckoo hashing with two choices (Pagh and Rodler, "Cuckoo hashing", ESA 2001; Dietzfelbinger
//! and Weidling, "Balanced allocation and dictionaries with tightly packed constant size bins", ICALP 2005), and a byte
//! of every key's hash beside its place, so that few other keys are ever read.
//!
//! A key lies in one of two groups of seven places. A group is one word of tags: a byte for each place, 0 where it is
//! free, and a byte that counts the keys of this group that had to go to their other one. While that is 0 a key which is
//! not here is nowhere. The words of a million keys are 1.5 MB and stay in a near cache; behind them lie the keys, of
//! which a lookup that hits reads one and a lookup that misses mostly none.

use std::hash::{BuildHasher, RandomState};

use zerocopy::FromZeros;

use super::{MAX_VALUE, MISS, TableError, zeroed};
use crate::mem::prefetch;

/// Places of a group: as many bytes of a word, but for the one that counts.
const PLACES: usize = 7;

/// A byte of one in every place of a word.
const ONES: u64 = 0x0001_0101_0101_0101;

/// How many keys have gone elsewhere, in a word; at its greatest it stays.
const GONE_AT: u32 = 56;
const GONE_MOST: u64 = 0xff;

/// Of the places this part is used, so that a way to a free one is short.
const LOAD: (usize, usize) = (4, 5);

/// How many groups are looked through for a free place before the table is full.
const SEARCH: usize = 1024;

/// How many lookups of a batch are under way at once.
const WAYS: usize = 32;

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
    seeds: [u64; 2],
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
#[derive(Clone, Copy, Default)]
struct Home {
    groups: [u32; 2],
    tag: u64,
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
        Self::with_seeds(most, [random.hash_one(0), random.hash_one(1)])
    }

    fn with_seeds(most: usize, [start, factor]: [u64; 2]) -> Self {
        let most = most.min(1 << 30);
        let groups = (most * LOAD.1).div_ceil(LOAD.0 * PLACES).max(2);
        // Odd: a product with it loses no bit.
        let seeds = [start, factor | 1];
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
        self.value(key, self.home(key))
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

    /// At most [`WAYS`], as many keys as values. Each step is one for all keys and has no branch that they decide, but for the
    /// last, so that the processor waits for the cache misses of a step together.
    #[inline]
    fn lookup_ways(&self, keys: &[[u32; WORDS]], values: &mut [u32]) {
        let mut homes = [Home::default(); WAYS];
        for (home, key) in homes.iter_mut().zip(keys) {
            *home = self.home(key);
            home.groups.iter().for_each(|group| prefetch(self.tags.get(*group as usize)));
        }
        // The first candidate of each that has one.
        let (mut open, mut places, mut opened) = ([0; WAYS], [0; WAYS], 0);
        for (at, (home, value)) in homes.iter().zip(values.iter_mut()).enumerate() {
            let [first, second] = home.groups;
            let (word, other) = (self.word(first), self.word(second));
            let here = matches(word, home.tag);
            let there = if word >> GONE_AT == 0 { 0 } else { matches(other, home.tag) };
            let (group, candidates) = if here != 0 { (first, here) } else { (second, there) };
            let place = group as usize * PLACES + (candidates.trailing_zeros() / 8) as usize;
            // Where there is none, the first place of all stands in, which is always at hand.
            let place = if candidates == 0 { 0 } else { place };
            prefetch(self.entries.get(place));
            (open[opened % WAYS], places[opened % WAYS]) = (at, place);
            opened += usize::from(candidates != 0);
            *value = MISS;
        }
        for (at, place) in open.iter().zip(places).take(opened) {
            if let (Some(key), Some(home), Some(value)) = (keys.get(*at), homes.get(*at), values.get_mut(*at)) {
                *value = match self.entries.get(place) {
                    Some(entry) if same(&entry.key, key) => entry.value,
                    // Another key has the same tag: it is looked for alone, and seldom.
                    _ => self.value(key, *home).unwrap_or(MISS),
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
        let mut hash = self.seeds[0];
        let (pairs, last) = key.as_chunks::<2>();
        for [low, high] in pairs {
            hash = fold(hash ^ (u64::from(*low) | u64::from(*high) << 32), self.seeds[1]);
        }
        for word in last {
            hash = fold(hash ^ u64::from(*word), self.seeds[1]);
        }
        hash = fold(hash, 0x9e37_79b9_7f4a_7c15);
        // A product of 32 bits by the number of groups: as fair as a remainder, and cheaper.
        let group = |bits: u32| ((u64::from(bits) * self.tags.len() as u64) >> 32) as u32;
        let (first, second) = (group((hash >> 32) as u32), group((hash >> 8) as u32));
        // The two are never the same.
        let second = if first != second { second } else { first ^ 1 };
        let second = if (second as usize) < self.tags.len() { second } else { first - 1 };
        // 0 is free.
        Home { groups: [first, second], tag: (hash & 0xff).max(1) }
    }

    #[inline]
    fn word(&self, group: u32) -> u64 {
        self.tags.get(group as usize).copied().unwrap_or(0)
    }

    #[inline]
    fn value(&self, key: &[u32; WORDS], home: Home) -> Option<u32> {
        self.find(key, home).and_then(|place| self.entries.get(index(place))).map(|entry| entry.value)
    }

    #[inline]
    fn find(&self, key: &[u32; WORDS], home: Home) -> Option<Place> {
        let [first, second] = home.groups;
        let word = self.word(first);
        self.find_in(key, first, matches(word, home.tag)).or_else(|| {
            if word >> GONE_AT == 0 {
                return None;
            }
            self.find_in(key, second, matches(self.word(second), home.tag))
        })
    }

    #[inline]
    fn find_in(&self, key: &[u32; WORDS], group: u32, mut candidates: u64) -> Option<Place> {
        while candidates != 0 {
            let place = (group as usize, (candidates.trailing_zeros() / 8) as usize);
            if self.entries.get(index(place)).is_some_and(|entry| entry.key == *key) {
                return Some(place);
            }
            candidates &= candidates - 1;
        }
        None
    }

    fn free_in(&self, group: u32) -> Option<Place> {
        let word = self.word(group);
        (0..PLACES).find(|place| word >> (8 * place) & 0xff == 0).map(|place| (group as usize, place))
    }

    /// Writes an entry where nothing is.
    fn put(&mut self, (group, place): Place, entry: Entry<WORDS>, home: Home) {
        self.entries[index((group, place))] = entry;
        self.tags[group] |= home.tag << (8 * place);
        if group != home.groups[0] as usize {
            self.gone(home.groups[0], true);
        }
    }

    fn take(&mut self, (group, place): Place, home: Home) {
        self.tags[group] &= !(0xff << (8 * place));
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

/// The bits of a product of 64 by 64, upon each other.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The places that have this tag: the highest bit of their bytes. None but those: what was taken out of a place that is free
/// still lies there.
#[inline]
fn matches(word: u64, tag: u64) -> u64 {
    let (differ, low) = (word ^ (tag * ONES), 0x7f * ONES);
    // No byte's sum reaches the next.
    !(((differ & low) + low) | differ | low) & (ONES << 7)
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
    fn is_a_map<const WORDS: usize>(most: usize, seeds: [u64; 2], changes: Vec<Change>) -> Result<(), TestCaseError> {
        let (mut table, mut model) = (Exact::<WORDS>::with_seeds(most, seeds), HashMap::new());
        for change in changes {
            match change {
                Change::Insert(number, value) => match table.insert(key(number), value) {
                    Ok(old) => prop_assert_eq!(old, model.insert(key::<WORDS>(number), value)),
                    Err(error) => {
                        prop_assert_eq!(error, TableError::Keys(most));
                        prop_assert!(!model.contains_key(&key::<WORDS>(number)));
                        // Few keys may share their groups, but not so few.
                        prop_assert!(model.len() >= most.min(14), "full with {} of {most}", model.len());
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
        fn it_is_a_map(most in 0usize..120, seeds in any::<[u64; 2]>(), changes in changes(150)) {
            is_a_map::<4>(most, seeds, changes.clone())?;
            is_a_map::<10>(most, seeds, changes.clone())?;
            is_a_map::<1>(most, seeds, changes)?;
        }

        #[test]
        fn a_tag_matches_where_it_is(word in any::<[u8; 8]>(), at in 0usize..7, by in 0u8..3) {
            let tag = (word[at] ^ by).max(1);
            let found = matches(u64::from_le_bytes(word), tag.into()).to_le_bytes();
            for place in 0..8 {
                prop_assert_eq!(found[place] == 0x80, place < PLACES && word[place] == tag);
                prop_assert!(found[place] & 0x7f == 0);
            }
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
        assert!(table.is_empty() && table.tags.iter().all(|word| word << 8 == 0));
    }

    #[test]
    fn a_value_that_says_miss_is_refused() {
        let mut table = Exact::<1>::new(1);
        assert_eq!(table.insert([1], MISS), Err(TableError::Value(MISS)));
        assert!(table.is_empty());
    }
}
