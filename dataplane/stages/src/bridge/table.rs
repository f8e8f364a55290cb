//! The table of MAC addresses.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use dataplane_core::header::MacAddr;

/// The table of MAC addresses that all workers share. The table has buckets of four 64-bit words, and each word holds
/// one MAC address.
///
/// The MAC address and the VLAN id make a 60-bit key. The word stores the upper 46 bits of the key as a tag, the port
/// in 7 bits, and the time of the last frame in 11 bits. The unit of time is four seconds. The bucket number is the
/// lower 14 bits of the key, XORed with a hash of the tag. So the bucket number and the tag identify the key. The hash
/// is random for each table and strongly universal (Dietzfelbinger, "Universal hashing and k-wise independent random
/// variables via integer arithmetic without primes", 1996). Any two addresses that a host chooses therefore share a
/// bucket with a probability of about 2^-14. Some factors put many addresses with equal distances in few buckets. The
/// table does not use these factors (`spreads`).
///
/// One word holds a complete entry, so each load and store is atomic. After two concurrent stores, the entry is one of
/// the two stored entries. The exact-match table of `dataplane-tables` is not used, because only one thread can change
/// that table.
pub(super) struct BridgeTable {
    pub(super) words: Box<[AtomicU64]>,
    /// The random factor and summand of the hash.
    pub(super) seeds: [u64; 2],
    /// The time at the last housekeeping of a worker, for readers that are not workers.
    pub(super) now: AtomicU64,
    /// Number of entries that were replaced because their bucket was full.
    pub(super) evicted: AtomicU64,
    /// The number of entries, and the largest number of entries so far. Signed, because a worker can count a removed
    /// entry before the worker that added the entry has counted it.
    learned: AtomicI64,
    learned_max: AtomicI64,
}

/// An entry of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MacEntry {
    pub(super) mac: MacAddr,
    pub(super) vlan: u16,
    pub(super) port: u8,
    /// The age in units of time.
    pub(super) age: u64,
}

pub(super) const BUCKET_BITS: u32 = 14;
const WAYS: usize = 4;
const TIME_BITS: u32 = 11;
pub(super) const TIME: u64 = (1 << TIME_BITS) - 1;
const PORT_BITS: u32 = 7;
/// The length of one unit of time in seconds. The time in a word wraps after more than two hours.
pub(super) const UNIT: u64 = 4;
/// The largest difference between the clocks of two workers that the table tolerates, in units of time. The clocks
/// differ, because each worker reads the clock at another time.
const AHEAD: u64 = 16;
/// The version of the format of a saved table, and the number of bytes of an entry in this format.
const STATE_VERSION: u8 = 1;
const STATE_ENTRY: usize = 11;
/// The number of buckets that one call of `sweep` searches.
pub(super) const SWEPT: usize = 16;

impl std::fmt::Debug for BridgeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl BridgeTable {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let factor = (0..).map(|seed| random.hash_one(seed)).find(|factor| spreads(*factor)).unwrap_or_default();
        let words = (0..WAYS << BUCKET_BITS).map(|_| AtomicU64::new(0)).collect();
        let seeds = [factor, random.hash_one("summand")];
        let (now, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { words, seeds, now, evicted, learned: AtomicI64::new(0), learned_max: AtomicI64::new(0) }
    }

    /// Returns the number of entries, including aged entries that are not removed yet, and the largest number of
    /// entries so far.
    pub(super) fn learned(&self) -> (u64, u64) {
        let [learned, max] =
            [&self.learned, &self.learned_max].map(|count| count.load(Ordering::Relaxed).max(0) as u64);
        (learned, max)
    }

    /// Counts a new entry.
    fn count_entry(&self) {
        let learned = self.learned.fetch_add(1, Ordering::Relaxed) + 1;
        self.learned_max.fetch_max(learned, Ordering::Relaxed);
    }

    /// Returns the bucket of a MAC address, and the tag that identifies the address in the bucket.
    #[inline]
    pub(super) fn place(&self, mac: MacAddr, vlan: u16) -> (&[AtomicU64], u64) {
        let [a, b, c, d, e, f] = mac.0;
        let key = u64::from_be_bytes([0, 0, a, b, c, d, e, f]) << 12 | u64::from(vlan & 0xfff);
        let tag = key >> BUCKET_BITS;
        let bucket = mix(tag, key, self.seeds) as usize * WAYS;
        (self.words.get(bucket..bucket + WAYS).unwrap_or_default(), tag)
    }

    /// Returns the entry of the word with this index, if the word has an entry.
    pub(super) fn entry(&self, index: usize, now: u64) -> Option<MacEntry> {
        let word = self.words.get(index)?.load(Ordering::Relaxed);
        let tag = word >> (PORT_BITS + TIME_BITS);
        let key = tag << BUCKET_BITS | mix(tag, (index / WAYS) as u64, self.seeds);
        let [_, _, mac @ ..] = (key >> 12).to_be_bytes();
        let age = age(word, now);
        let port = (word >> TIME_BITS & ((1 << PORT_BITS) - 1)) as u8;
        (word != 0).then(|| MacEntry { mac: MacAddr(mac), vlan: (key & 0xfff) as u16, port: port.wrapping_sub(1), age })
    }

    /// Returns the port of a MAC address, or `None` if the address is unknown or its entry is too old.
    #[inline]
    pub(super) fn find(&self, mac: MacAddr, vlan: u16, now: u64, ageing: u64) -> Option<u8> {
        let (ways, tag) = self.place(mac, vlan);
        let words = ways.iter().map(|way| way.load(Ordering::Relaxed));
        let word = words.into_iter().find(|word| *word != 0 && word >> (PORT_BITS + TIME_BITS) == tag)?;
        is_fresh(word, now, ageing).then_some(((word >> TIME_BITS) as u8 & 0x7f) - 1)
    }

    /// Records the port and the time at which a MAC address was seen. Stores the word only if the word changes, so that
    /// workers do not contend for the cache line.
    #[inline]
    pub(super) fn learn(&self, mac: MacAddr, vlan: u16, port: u8, now: u64) {
        let (ways, tag) = self.place(mac, vlan);
        let word = tag << (PORT_BITS + TIME_BITS) | u64::from(port + 1) << TIME_BITS | now & TIME;
        for way in ways {
            let known = way.load(Ordering::Relaxed);
            if known == word {
                return;
            }
            if known != 0 && known >> (PORT_BITS + TIME_BITS) == tag {
                return self.update(way, word);
            }
        }
        self.add(ways, word, now);
    }

    /// Updates an entry.
    #[cold]
    fn update(&self, way: &AtomicU64, word: u64) {
        // If another worker has just removed the aged entry, this worker adds the entry again.
        if way.swap(word, Ordering::Relaxed) == 0 {
            self.count_entry();
        }
    }

    /// Adds an entry to a bucket. In a full bucket, the new entry replaces the oldest entry of the same port. If the
    /// bucket has no entry of this port, the new entry replaces the oldest entry. So a host that invents addresses
    /// evicts at most one entry of other ports per bucket.
    #[cold]
    fn add(&self, ways: &[AtomicU64], word: u64, now: u64) {
        let port = |word: u64| word >> TIME_BITS & ((1 << PORT_BITS) - 1);
        let rank = |way: &&AtomicU64| match way.load(Ordering::Relaxed) {
            0 => (2, 0),
            known => (u64::from(port(known) == port(word)), age(known, now)),
        };
        if let Some(way) = ways.iter().max_by_key(rank) {
            match way.swap(word, Ordering::Relaxed) {
                0 => self.count_entry(),
                _ => _ = self.evicted.fetch_add(1, Ordering::Relaxed),
            }
        }
    }

    /// Returns all entries in the format that [`BridgeTable::load`] reads: the version of the format, and for each entry
    /// the MAC address, the VLAN id, the port and the age.
    pub(super) fn save(&self) -> Vec<u8> {
        let now = self.now.load(Ordering::Relaxed);
        let mut state = vec![STATE_VERSION];
        for entry in (0..self.words.len()).filter_map(|index| self.entry(index, now)) {
            state.extend(entry.mac.0);
            state.extend(entry.vlan.to_be_bytes());
            state.push(entry.port);
            state.extend((entry.age as u16).to_be_bytes());
        }
        state
    }

    /// Adds the entries of another table, with their ages at the start of the run. Ignores the entries of ports that
    /// `is_port` does not accept.
    pub(super) fn load(&self, state: &[u8], is_port: impl Fn(u8) -> bool) -> Result<(), String> {
        let Some((&STATE_VERSION, entries)) = state.split_first() else {
            return Err("the saved MAC addresses have an unknown version".to_owned());
        };
        let (entries, rest) = entries.as_chunks::<STATE_ENTRY>();
        if !rest.is_empty() {
            return Err("the saved MAC addresses are damaged".to_owned());
        }
        for &[a, b, c, d, e, f, vlan_high, vlan_low, port, age_high, age_low] in entries {
            let age = u64::from(u16::from_be_bytes([age_high, age_low]));
            if is_port(port) {
                let vlan = u16::from_be_bytes([vlan_high, vlan_low]);
                // The time of the run starts at 0. The time of an entry wraps.
                self.learn(MacAddr([a, b, c, d, e, f]), vlan, port, 0_u64.wrapping_sub(age));
            }
        }
        Ok(())
    }

    /// Removes the aged entries of `SWEPT` buckets, starting at bucket `from`.
    pub(super) fn sweep(&self, from: usize, now: u64, ageing: u64) {
        for way in self.words.iter().skip(from * WAYS).take(SWEPT * WAYS) {
            let word = way.load(Ordering::Relaxed);
            // The exchange fails if another worker has just updated the entry.
            if word != 0
                && !is_fresh(word, now, ageing)
                && way.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                self.learned.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Converts the low bits of a key to the number of its bucket, or the number of a bucket to the low bits of the key.
/// Both conversions XOR `bits` with the hash of the tag.
#[inline]
fn mix(tag: u64, bits: u64, [factor, summand]: [u64; 2]) -> u64 {
    let hash = tag.wrapping_mul(factor).wrapping_add(summand) >> (u64::BITS - BUCKET_BITS);
    (bits ^ hash) & ((1 << BUCKET_BITS) - 1)
}

/// Returns whether a factor of the hash spreads MAC addresses with equal distances over enough buckets. The tested
/// distances are 1, 2^8 and 2^16. More than half of all factors pass.
fn spreads(factor: u64) -> bool {
    const WORDS: u64 = (WAYS << BUCKET_BITS) as u64;
    // A random function would store at least 0.95 of the addresses if there are at most `WORDS / 2` addresses, and 0.80
    // of `WORDS` addresses. With twice as many addresses as words, a random function would fill 0.98 of the words.
    let wanted = |addresses: u64| match addresses {
        ..WORDS => addresses / 8 * 7,
        WORDS => WORDS / 4 * 3,
        _ => WORDS / 16 * 15,
    };
    [1 << 0, 1 << 8, 1 << 16].into_iter().all(|distance: u64| {
        let (mut used, mut stored) = (vec![0; 1 << BUCKET_BITS], 0);
        (1..=2 * WORDS).all(|number| {
            let key = (number * distance) << 12;
            let used = &mut used[mix(key >> BUCKET_BITS, key, [factor, 0]) as usize];
            if *used < WAYS {
                *used += 1;
                stored += 1;
            }
            !number.is_power_of_two() || number < 1 << 10 || stored >= wanted(number)
        })
    })
}

/// Returns the age of an entry in units of time. If another worker has stored a later time than `now`, the age is 0.
fn age(word: u64, now: u64) -> u64 {
    (now.wrapping_add(AHEAD).wrapping_sub(word) & TIME).saturating_sub(AHEAD)
}

/// Returns whether the age of an entry is at most `ageing`.
#[inline]
fn is_fresh(word: u64, now: u64, ageing: u64) -> bool {
    now.wrapping_add(AHEAD).wrapping_sub(word) & TIME <= ageing + AHEAD
}
