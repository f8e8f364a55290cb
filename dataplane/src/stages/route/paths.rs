//! Equal-cost paths: which of them a flow takes.
//!
//! A prefix with several paths has a table of [`BUCKETS`] buckets, each of which is one path's. A flow falls into a
//! bucket by its hash. Which path has a bucket is decided by rendezvous hashing (Thaler and Ravishankar, "A name-based
//! mapping scheme for rendezvous", 1996): every path draws a number for the bucket, from its own name alone and once
//! per unit of weight, and the highest has it. So taking a path out moves only the flows it had, adding one moves only
//! those it gets, and neither the order of the config nor the host matters.

use std::collections::HashMap;

/// How many buckets a prefix with several paths has.
pub(in crate::stages) const BUCKETS: usize = 256;

/// The greatest weight of a path.
pub(in crate::stages) const MAX_WEIGHT: u16 = 64;

/// A path, as the worker needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The number of the next hop; 0: the destination itself.
    pub(super) next_hop: u32,
    /// The port.
    pub(super) egress: u8,
    /// What becomes of packets.
    pub(super) fate: Fate,
}

/// What becomes of packets on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Forward,
    Drop,
    /// They are for this host.
    Local,
}

/// All paths, and the groups of them that prefixes point to.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: Vec<Path>,
    /// What each path is called: for people, and the seed of its draws.
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    groups: Vec<Group>,
    /// The paths of all buckets of all groups, by number.
    buckets: Vec<u32>,
    known: HashMap<Vec<(u32, u16)>, u32>,
}

/// The paths that a prefix points to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    first: u32,
    /// One below the number of buckets, which is a power of two.
    mask: u32,
    /// Where there is no other: the path.
    only: Path,
    /// Whether that is so, and it sends on.
    sends: bool,
}

impl Group {
    /// Its only path, if that sends on.
    #[inline]
    pub(super) fn sends(&self) -> Option<&Path> {
        self.sends.then_some(&self.only)
    }
}

impl Paths {
    /// The number of a path; two with the same name are one.
    pub(super) fn path(&mut self, name: &str, path: Path) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.paths.len() as u32;
        self.paths.push(path);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Whether flows are told apart anywhere.
    pub(super) fn split(&self) -> bool {
        self.groups.iter().any(|group| group.mask > 0)
    }

    /// Whether a path drops.
    pub(super) fn drops(&self, path: u32) -> bool {
        self.paths.get(path as usize).is_some_and(|path| path.fate == Fate::Drop)
    }

    /// The name of a path.
    pub(super) fn name(&self, path: u32) -> &str {
        self.names.get(path as usize).map_or("", String::as_str)
    }

    /// The number of the group of these paths with their weights, which are sorted.
    pub(super) fn group(&mut self, members: &[(u32, u16)]) -> u32 {
        if let Some(group) = self.known.get(members) {
            return *group;
        }
        let first = self.buckets.len() as u32;
        match members {
            [(only, _)] => self.buckets.push(*only),
            _ => {
                let seeds: Vec<u64> = members.iter().map(|(path, _)| seed(self.name(*path))).collect();
                self.buckets.extend((0..BUCKETS as u64).map(|bucket| winner(bucket, members, &seeds)));
            }
        }
        let group = self.groups.len() as u32;
        let only = self.paths[self.buckets[first as usize] as usize];
        let mask = self.buckets.len() as u32 - first - 1;
        self.groups.push(Group { first, mask, only, sends: mask == 0 && only.fate == Fate::Forward });
        self.known.insert(members.to_vec(), group);
        group
    }

    /// The number of the path that a flow takes; `None`: there is no such group.
    #[inline]
    pub(super) fn number(&self, group: u32, flow_hash: u32) -> Option<u32> {
        let Group { first, mask, .. } = *self.groups.get(group as usize)?;
        // The hash may have been used to choose the worker: mixed, its low bits are no longer the same for all here.
        let bucket = (flow_hash.wrapping_mul(0x9e37_79b1) >> 24) & mask;
        self.buckets.get((first + bucket) as usize).copied()
    }

    /// All groups, by number.
    #[inline]
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The path that a flow takes; `None`: there is no such group.
    #[inline]
    pub(super) fn choose(&self, group: u32, flow_hash: u32) -> Option<Path> {
        match self.groups.get(group as usize)? {
            Group { mask: 0, only, .. } => Some(*only),
            _ => self.paths.get(self.number(group, flow_hash)? as usize).copied(),
        }
    }

    /// How many paths a group has.
    pub(super) fn members(&self, group: u32) -> usize {
        let Some(Group { first, mask, .. }) = self.groups.get(group as usize) else { return 0 };
        let mut all = self.buckets[*first as usize..=(first + mask) as usize].to_vec();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): the same on every host.
pub(in crate::stages) fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The path with the highest draw for a bucket.
pub(in crate::stages) fn winner(bucket: u64, members: &[(u32, u16)], seeds: &[u64]) -> u32 {
    let draws = members.iter().zip(seeds).map(|((path, weight), seed)| {
        let draws = (0..u64::from(*weight)).map(|turn| mix(seed ^ mix(bucket << 16 | turn)));
        (draws.max(), *seed, *path)
    });
    draws.max().map_or(0, |(_, _, path)| path)
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the input.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The path of every bucket, by name, for paths in this order.
    fn table(members: &[(String, u16)]) -> Vec<String> {
        let mut paths = Paths::default();
        let add = |(at, (name, weight)): (usize, &(String, u16))| {
            (paths.path(name, Path { next_hop: at as u32 + 1, egress: 0, fate: Fate::Forward }), *weight)
        };
        let members: Vec<(u32, u16)> = members.iter().enumerate().map(add).collect();
        let group = paths.group(&members);
        assert_eq!(group, paths.group(&members));
        let mut reached = vec![None; BUCKETS];
        for hash in 0..1u32 << 16 {
            let bucket = (hash.wrapping_mul(0x9e37_79b1) >> 24) as usize;
            reached[bucket] = paths.number(group, hash).map(|path| paths.name(path).to_owned());
        }
        reached.into_iter().map(|name| name.expect("every bucket is reached")).collect()
    }

    fn names() -> impl Strategy<Value = Vec<(String, u16)>> {
        let names = prop::sample::subsequence((1..40).map(|i| format!("192.0.2.{i} on wan")).collect::<Vec<_>>(), 2..9);
        (names, prop::collection::vec(1..5u16, 9)).prop_map(|(names, weights)| names.into_iter().zip(weights).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn taking_a_path_out_moves_only_its_own_flows(members in names(), at in any::<prop::sample::Index>()) {
            let gone = at.index(members.len());
            let before = table(&members);
            let mut fewer = members.clone();
            fewer.remove(gone);
            for (before, after) in before.iter().zip(table(&fewer)) {
                prop_assert!(*before == after || *before == members[gone].0);
            }
            let mut turned = members;
            turned.reverse();
            prop_assert_eq!(before, table(&turned));
        }

        #[test]
        fn a_greater_weight_takes_from_the_others_only(members in names(), at in any::<prop::sample::Index>()) {
            let heavy = at.index(members.len());
            let before = table(&members);
            let mut heavier = members.clone();
            heavier[heavy].1 += 3;
            for (before, after) in before.iter().zip(table(&heavier)) {
                prop_assert!(*before == after || after == members[heavy].0);
            }
        }
    }

    #[test]
    fn shares_follow_weights() {
        let members: Vec<(String, u16)> =
            [1, 2, 1].iter().enumerate().map(|(i, w)| (format!("path {i}"), *w)).collect();
        let table = table(&members);
        let share = |name: &str| table.iter().filter(|path| *path == name).count();
        // 64, 128 and 64 of 256; five standard deviations are 35 and 40.
        assert!((29..=99).contains(&share("path 0")), "{}", share("path 0"));
        assert!((88..=168).contains(&share("path 1")), "{}", share("path 1"));
        assert!((29..=99).contains(&share("path 2")), "{}", share("path 2"));
    }

    #[test]
    fn a_single_path_takes_all_and_an_unknown_group_none() {
        let mut paths = Paths::default();
        let path = Path { next_hop: 3, egress: 1, fate: Fate::Forward };
        let only = paths.path("only", path);
        let group = paths.group(&[(only, 7)]);
        assert_eq!((paths.choose(group, 0), paths.choose(group, u32::MAX)), (Some(path), Some(path)));
        assert_eq!((paths.members(group), paths.choose(group + 1, 0)), (1, None));
        assert_eq!(paths.choose(super::super::MISS, 0), None);
    }
}
