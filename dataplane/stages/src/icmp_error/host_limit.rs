//! The rate limit of errors to each host, in a table of fixed size.

use std::hash::{BuildHasher, RandomState};

/// The number of entries in a set.
const WAYS: usize = 4;
/// The number of sets. The table has 64 KiB.
const SETS: usize = 1024;

/// The limit of one host: the generic cell rate algorithm (ITU-T I.371), which stores a single timestamp per host.
#[derive(Clone, Copy, Debug, Default)]
struct HostEntry {
    key: u64,
    /// The time at which the host has its full burst again, in nanoseconds. An entry with a time in the past is free.
    full_at: u64,
}

/// The limits of all hosts. An address selects a set of four entries. If a set has no free entry, a new host replaces
/// the host that would have its full burst again soonest. The replaced host then starts with a full burst, so other
/// hosts never reduce the number of errors that a host gets.
#[derive(Debug)]
pub(super) struct HostLimit {
    random: RandomState,
    entries: Box<[HostEntry]>,
    /// The time between two errors at the rate of the limit, in nanoseconds.
    interval: u64,
    /// `interval` multiplied by the burst size, in nanoseconds.
    burst: u64,
    /// The time of the last call of [`HostLimit::permit`], in nanoseconds.
    last: u64,
}

impl HostLimit {
    /// Creates a limit of `rate` errors per second and `burst` errors at once.
    pub(super) fn new(rate: u64, burst: u64) -> Self {
        let interval = (1_000_000_000 / rate.max(1)).max(1);
        let entries = vec![HostEntry::default(); SETS * WAYS].into_boxed_slice();
        Self { random: RandomState::new(), entries, interval, burst: interval.saturating_mul(burst), last: 0 }
    }

    /// Takes over the limits of all hosts, if `earlier` has the same rate and burst.
    pub(super) fn take_over(&mut self, earlier: &mut Self) {
        if (self.interval, self.burst) == (earlier.interval, earlier.burst) {
            std::mem::swap(self, earlier);
        }
    }

    /// Returns the hosts that do not have their full burst: for each host, a key, and the time from the last call of
    /// [`HostLimit::permit`] to the full burst, in nanoseconds.
    pub(super) fn save(&self) -> impl Iterator<Item = [u64; 2]> {
        let used = self.entries.iter().filter(|entry| entry.full_at > self.last);
        used.map(|entry| [entry.key, entry.full_at - self.last])
    }

    /// Adds a host that another program has saved ([`HostLimit::save`]). The time of this program starts at 0.
    pub(super) fn load(&mut self, [key, time]: [u64; 2]) {
        let full_at = time.min(self.burst);
        if let Some(entry) = self.entry(key) {
            entry.full_at = full_at;
        }
    }

    /// Returns the entry of a host. Creates a missing entry with a full burst, which replaces another entry.
    fn entry(&mut self, key: u64) -> Option<&mut HostEntry> {
        let at = self.random.hash_one(key) as usize % SETS * WAYS;
        let set = self.entries.get_mut(at..at + WAYS)?;
        let entry = set.iter_mut().max_by_key(|entry| (entry.key == key, u64::MAX - entry.full_at))?;
        if entry.key != key {
            *entry = HostEntry { key, full_at: 0 };
        }
        Some(entry)
    }

    /// Returns a permit for an error to a host at the time `now`, in nanoseconds, or `None` if the limit is reached.
    /// `host` is an IPv4 address, or the first 64 bits of an IPv6 address, because one host may use all addresses of an
    /// IPv6 link.
    pub(super) fn permit(&mut self, v6: bool, host: u64, now: u64) -> Option<HostPermit<'_>> {
        // No host has an IPv6 prefix in ff00::/8, the multicast addresses, so these keys are free for IPv4 addresses.
        let key = if v6 { host } else { host | 0xff << 56 };
        let (interval, burst) = (self.interval, self.burst);
        self.last = now;
        let entry = self.entry(key)?;
        let full_at = entry.full_at.max(now).saturating_add(interval);
        (full_at - now <= burst).then_some(HostPermit { entry, full_at })
    }
}

/// The permission for one error to a host.
pub(super) struct HostPermit<'a> {
    entry: &'a mut HostEntry,
    full_at: u64,
}

impl HostPermit<'_> {
    /// Counts the error.
    pub(super) fn count(self) {
        self.entry.full_at = self.full_at;
    }
}
