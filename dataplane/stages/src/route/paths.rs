//! Equal-cost paths, and the choice of a path for each flow.
//!
//! A prefix with several paths has a table of [`BUCKETS`] buckets, and each bucket belongs to one path. The flow hash
//! selects the bucket. Rendezvous hashing decides which path owns a bucket (Thaler and Ravishankar, "A name-based
//! mapping scheme for rendezvous", 1996). For each bucket, each path gets one pseudo-random number per unit of its
//! weight. The numbers depend only on the bucket and the path's name. The path with the highest number owns the bucket.
//! Removing a path therefore moves only the flows of this path, and adding a path moves flows only to the new path. The
//! result depends neither on the order of the paths in the config nor on the host.

use std::collections::HashMap;

/// The number of buckets of a prefix with several paths.
pub(crate) const BUCKETS: usize = 256;

/// The maximum weight of a path.
pub(crate) const MAX_WEIGHT: u16 = 64;

/// A path, with the data that workers need to forward a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoutePath {
    /// The number of the next hop. 0 means that the destination itself is the next hop.
    pub(super) next_hop: u32,
    /// The egress port.
    pub(super) egress: u8,
    /// The action for packets on the path.
    pub(super) action: PathAction,
}

/// The action for packets on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathAction {
    Forward,
    Drop,
    /// Delivers the packets to this host.
    Local,
}

/// All paths, and the groups of paths that prefixes refer to.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: Vec<RoutePath>,
    /// The name of each path, for messages and as the seed of the path's pseudo-random numbers.
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    groups: Vec<PathGroup>,
    /// For each bucket of all groups, the number of the path that owns the bucket.
    buckets: Vec<u32>,
    known: HashMap<Vec<(u32, u16)>, u32>,
    /// For each group, the numbers and the weights of its paths.
    members_of: Vec<Vec<(u32, u16)>>,
}

/// The paths of a prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathGroup {
    first: u32,
    /// The number of buckets minus 1. The number of buckets is a power of two.
    mask: u32,
    /// The only path, if the group has one path.
    only: RoutePath,
    /// Whether the group has one path, and that path forwards.
    is_forwarding: bool,
}

impl PathGroup {
    /// Returns the only path of the group, if the group has one path and that path forwards.
    #[inline]
    pub(super) fn forwarding_path(&self) -> Option<&RoutePath> {
        self.is_forwarding.then_some(&self.only)
    }
}

impl Paths {
    /// Returns the number of a path, and adds the path if its name is new. Two paths with the same name are the same
    /// path.
    pub(super) fn path(&mut self, name: &str, path: RoutePath) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.paths.len() as u32;
        self.paths.push(path);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Returns whether any group has several paths, so that a flow hash is needed.
    pub(super) fn splits_flows(&self) -> bool {
        self.groups.iter().any(|group| group.mask > 0)
    }

    /// Returns whether a path drops packets.
    pub(super) fn drops(&self, path: u32) -> bool {
        self.paths.get(path as usize).is_some_and(|path| path.action == PathAction::Drop)
    }

    /// Returns the name of a path.
    pub(super) fn name(&self, path: u32) -> &str {
        self.names.get(path as usize).map_or("", String::as_str)
    }

    /// Returns the number of the group with these paths and weights, and adds the group if it is new. `members` must be
    /// sorted.
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
        self.groups.push(PathGroup {
            first,
            mask,
            only,
            is_forwarding: mask == 0 && only.action == PathAction::Forward,
        });
        self.known.insert(members.to_vec(), group);
        self.members_of.push(members.to_vec());
        group
    }

    /// Returns the number of the path that a flow takes, or `None` if the group does not exist.
    #[inline]
    pub(super) fn number(&self, group: u32, flow_hash: u32) -> Option<u32> {
        let PathGroup { first, mask, .. } = *self.groups.get(group as usize)?;
        // The hash may already have selected the worker, so its low bits may be equal for all packets here. The
        // multiplication mixes the bits.
        let bucket = (flow_hash.wrapping_mul(0x9e37_79b1) >> 24) & mask;
        self.buckets.get((first + bucket) as usize).copied()
    }

    /// Returns all groups, by number.
    #[inline]
    pub(super) fn groups(&self) -> &[PathGroup] {
        &self.groups
    }

    /// Returns the path that a flow takes, or `None` if the group does not exist.
    #[inline]
    pub(super) fn choose(&self, group: u32, flow_hash: u32) -> Option<RoutePath> {
        match self.groups.get(group as usize)? {
            PathGroup { mask: 0, only, .. } => Some(*only),
            _ => self.paths.get(self.number(group, flow_hash)? as usize).copied(),
        }
    }

    /// Returns the paths of a group with their weights.
    pub(super) fn of_group(&self, group: u32) -> impl Iterator<Item = (RoutePath, u16)> + '_ {
        let members = self.members_of.get(group as usize).map_or(&[][..], Vec::as_slice);
        members.iter().filter_map(|(path, weight)| Some((*self.paths.get(*path as usize)?, *weight)))
    }

    /// Returns how many paths a group has.
    pub(super) fn members(&self, group: u32) -> usize {
        let Some(PathGroup { first, mask, .. }) = self.groups.get(group as usize) else { return 0 };
        let mut all = self.buckets[*first as usize..=(first + mask) as usize].to_vec();
        all.sort_unstable();
        all.dedup();
        all.len()
    }
}

/// Returns the 64-bit FNV-1a hash of a name (draft-eastlake-fnv). The hash is equal on every host.
pub(crate) fn seed(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the path with the highest pseudo-random number for a bucket.
pub(crate) fn winner(bucket: u64, members: &[(u32, u16)], seeds: &[u64]) -> u32 {
    let draws = members.iter().zip(seeds).map(|((path, weight), seed)| {
        let draws = (0..u64::from(*weight)).map(|turn| mix(seed ^ mix(bucket << 16 | turn)));
        (draws.max(), *seed, *path)
    });
    draws.max().map_or(0, |(_, _, path)| path)
}

/// Mixes the bits with the finaliser of SplitMix64: every bit of the result depends on every bit of the input.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the name of the path of every bucket, for paths in this order.
    fn table(members: &[(String, u16)]) -> Vec<String> {
        let mut paths = Paths::default();
        let add = |(at, (name, weight)): (usize, &(String, u16))| {
            (paths.path(name, RoutePath { next_hop: at as u32 + 1, egress: 0, action: PathAction::Forward }), *weight)
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
        fn removing_a_path_moves_only_its_own_flows(members in names(), at in any::<prop::sample::Index>()) {
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
        fn greater_weight_only_moves_flows_to_that_path(members in names(), at in any::<prop::sample::Index>()) {
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
        // The expected values are 64, 128 and 64 of 256. The bounds are five standard deviations away: 35 for the first
        // and third value, 40 for the second.
        assert!((29..=99).contains(&share("path 0")), "{}", share("path 0"));
        assert!((88..=168).contains(&share("path 1")), "{}", share("path 1"));
        assert!((29..=99).contains(&share("path 2")), "{}", share("path 2"));
    }

    #[test]
    fn single_path_gets_all_flows_and_unknown_group_has_no_path() {
        let mut paths = Paths::default();
        let path = RoutePath { next_hop: 3, egress: 1, action: PathAction::Forward };
        let only = paths.path("only", path);
        let group = paths.group(&[(only, 7)]);
        assert_eq!((paths.choose(group, 0), paths.choose(group, u32::MAX)), (Some(path), Some(path)));
        assert_eq!((paths.members(group), paths.choose(group + 1, 0)), (1, None));
        assert_eq!(paths.choose(super::super::MISS, 0), None);
    }
}
