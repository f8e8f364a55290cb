//! The groups of paths that prefixes refer to. A group has one path or several paths, and each flow takes one path of
//! the group. One thread writes the groups, and workers read them.
//!
//! Each group has a number. A group of one path is stored in one atomic word. A group of several paths has a block of
//! [`BUCKETS`] entries, and each entry is the number of a group of one path. The algorithm of the equal-cost routes of
//! the config (`route::paths`) fills the block, so every host with the same paths makes the same choice. Numbers and
//! blocks are reused when no reader can still read them (see `readers`).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::route::paths::{BUCKETS, MAX_WEIGHT, seed, winner};
use dataplane_core::pipeline::NextHop;

/// The maximum number of groups. Each path needs a group of one path, even if the path is only in groups of several
/// paths.
const MAX_GROUPS: usize = 1 << 16;
/// The maximum number of groups of several paths.
const MAX_BLOCKS: usize = 1 << 12;
/// The maximum number of paths in a group. With this limit, each path gets a few of the [`BUCKETS`].
pub(super) const MAX_MEMBERS: usize = 64;

/// The action of a route for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RouteKind {
    /// Sends the packet.
    Forward = 1,
    /// Delivers the packet to this host.
    Local = 2,
    /// Drops the packet silently.
    Blackhole = 3,
    /// Rejects the packet with an ICMP error: host unreachable.
    Unreachable = 4,
    /// Rejects the packet with an ICMP error: administratively prohibited.
    Prohibit = 5,
    /// Handles the packet as if there were no route.
    Throw = 6,
}

/// Value of the kind byte for a group of several paths. The word then contains the number of the group's block.
const SEVERAL_PATHS: u8 = 7;

/// The path of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The action for the packet.
    pub kind: RouteKind,
    /// The egress port.
    pub egress: u8,
    /// The number of the next hop. 0 means that the destination itself is the next hop.
    pub next_hop: u32,
}

impl Path {
    #[inline]
    fn of(word: u64) -> Option<Self> {
        let kind = match word as u8 {
            1 => RouteKind::Forward,
            2 => RouteKind::Local,
            3 => RouteKind::Blackhole,
            4 => RouteKind::Unreachable,
            5 => RouteKind::Prohibit,
            6 => RouteKind::Throw,
            _ => return None,
        };
        Some(Self { kind, egress: (word >> 8) as u8, next_hop: (word >> 16) as u32 })
    }
}

type Block = [AtomicU32; BUCKETS];

/// The groups that workers read.
pub(super) struct Groups {
    words: Box<[AtomicU64]>,
    blocks: Box<[OnceLock<Box<Block>>]>,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

impl Groups {
    /// Returns the path of a flow, or `None` if the group does not exist.
    #[inline]
    pub(super) fn choose(&self, group: u32, flow_hash: u32) -> Option<Path> {
        let word = self.words.get(group as usize)?.load(Ordering::Acquire);
        if word as u8 != SEVERAL_PATHS {
            return Path::of(word);
        }
        let block = self.blocks.get((word >> 16) as usize)?.get()?;
        // The hash may already have selected the worker, so its low bits may be equal for all packets here. The
        // multiplication mixes the bits.
        let bucket = flow_hash.wrapping_mul(0x9e37_79b1) >> 24;
        let only = block.get(bucket as usize)?.load(Ordering::Acquire);
        Path::of(self.words.get(only as usize)?.load(Ordering::Acquire))
    }
}

/// A path of a group, as the writer stores it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupPath {
    pub(super) name: String,
    pub(super) kind: u8,
    pub(super) egress: u8,
    pub(super) next_hop: u32,
    /// The neighbour whose entry is released when the path is removed.
    pub(super) hop: Option<HeldHop>,
}

/// A neighbour that a path uses. The path keeps one reference to the neighbour's entry until the path is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldHop(pub(super) NextHop);

impl PartialOrd for HeldHop {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeldHop {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.address, self.0.port).cmp(&(other.0.address, other.0.port))
    }
}

/// Sorted paths with their weights.
pub(super) type GroupKey = Vec<(GroupPath, u16)>;

#[derive(Debug)]
struct StoredGroup {
    /// The number of prefixes and groups of several paths that refer to this group.
    users: u32,
    key: GroupKey,
    block: Option<usize>,
    /// For a group of several paths: for each path, the number of the group that has only this path. Otherwise empty.
    singles: Vec<u32>,
}

/// The writer of the groups.
#[derive(Debug)]
pub(super) struct GroupWriter {
    cells: Arc<Groups>,
    known: HashMap<GroupKey, u32>,
    groups: HashMap<u32, StoredGroup>,
    free: Vec<u32>,
    next: u32,
    free_blocks: Vec<usize>,
    next_block: usize,
    /// Removed groups that a reader may still use: the epoch of the removal, the group's number and its block.
    retired: VecDeque<(u64, u32, Option<usize>)>,
}

impl GroupWriter {
    pub(super) fn new() -> Self {
        let cells = Groups {
            words: (0..MAX_GROUPS).map(|_| AtomicU64::new(0)).collect(),
            blocks: (0..MAX_BLOCKS).map(|_| OnceLock::new()).collect(),
        };
        Self {
            cells: Arc::new(cells),
            known: HashMap::new(),
            groups: HashMap::new(),
            free: Vec::new(),
            next: 0,
            free_blocks: Vec::new(),
            next_block: 0,
            retired: VecDeque::new(),
        }
    }

    pub(super) fn cells(&self) -> &Arc<Groups> {
        &self.cells
    }

    /// Returns the number of the group of these paths, and adds one user to the group. Creates the group if necessary.
    /// Returns `None` if there are too many groups.
    pub(super) fn acquire(&mut self, key: &GroupKey) -> Option<u32> {
        if let Some(number) = self.known.get(key) {
            if let Some(group) = self.groups.get_mut(number) {
                group.users += 1;
            }
            return Some(*number);
        }
        let (mut singles, mut block) = (Vec::new(), None);
        let word = match &key[..] {
            [] => return None,
            [(path, _)] => u64::from(path.next_hop) << 16 | u64::from(path.egress) << 8 | u64::from(path.kind),
            many => {
                let number = self.block()?;
                for (path, _) in many {
                    match self.acquire(&vec![(path.clone(), 1)]) {
                        Some(single) => singles.push(single),
                        None => {
                            self.free_blocks.push(number);
                            // No reader has seen the paths of the new group, so the numbers of the paths can be reused
                            // immediately. Epoch 0 is before every epoch of a reader.
                            singles.iter().for_each(|single| _ = self.release(*single, 0));
                            return None;
                        }
                    }
                }
                self.fill(number, many, &singles);
                block = Some(number);
                (number as u64) << 16 | u64::from(SEVERAL_PATHS)
            }
        };
        let number = self.free.pop().or_else(|| {
            let fresh = self.next;
            self.next += 1;
            ((fresh as usize) < MAX_GROUPS).then_some(fresh)
        });
        let Some(number) = number else {
            self.next = MAX_GROUPS as u32;
            self.free_blocks.extend(block);
            singles.iter().for_each(|single| _ = self.release(*single, 0));
            return None;
        };
        self.cells.words[number as usize].store(word, Ordering::Release);
        self.known.insert(key.clone(), number);
        self.groups.insert(number, StoredGroup { users: 1, key: key.clone(), block, singles });
        Some(number)
    }

    fn block(&mut self) -> Option<usize> {
        self.free_blocks.pop().or_else(|| {
            let fresh = self.next_block;
            (fresh < MAX_BLOCKS).then(|| {
                self.next_block += 1;
                fresh
            })
        })
    }

    fn fill(&self, block: usize, many: &[(GroupPath, u16)], singles: &[u32]) {
        let block = self.cells.blocks[block].get_or_init(|| Box::new([const { AtomicU32::new(0) }; BUCKETS]));
        let seeds: Vec<u64> = many.iter().map(|(path, _)| seed(&path.name)).collect();
        let weighed = many.iter().zip(singles).map(|((_, weight), single)| (*single, (*weight).clamp(1, MAX_WEIGHT)));
        let members: Vec<(u32, u16)> = weighed.collect();
        for (bucket, cell) in (0..).zip(block.iter()) {
            cell.store(winner(bucket, &members, &seeds), Ordering::Release);
        }
    }

    /// Removes one user of a group. A group without users is removed, and its number is reused when all readers have
    /// passed the current epoch `now`. Returns the neighbours that the removed paths used.
    pub(super) fn release(&mut self, number: u32, now: u64) -> Vec<NextHop> {
        let Some(group) = self.groups.get_mut(&number) else { return Vec::new() };
        group.users -= 1;
        if group.users > 0 {
            return Vec::new();
        }
        let Some(group) = self.groups.remove(&number) else { return Vec::new() };
        self.known.remove(&group.key);
        self.retired.push_back((now, number, group.block));
        let mut hops: Vec<NextHop> = match &group.key[..] {
            [(path, _)] => path.hop.iter().map(|held| held.0).collect(),
            _ => Vec::new(),
        };
        for single in group.singles {
            hops.extend(self.release(single, now));
        }
        hops
    }

    /// Returns whether a group has users.
    pub(super) fn is_used(&self, number: u32) -> bool {
        self.groups.contains_key(&number)
    }

    /// Returns whether a group of only this path exists.
    pub(super) fn contains(&self, path: &GroupPath) -> bool {
        self.known.contains_key(&vec![(path.clone(), 1)])
    }

    /// Frees the numbers and blocks of the groups that were removed before the epoch `quiet`. No reader can still use
    /// these groups.
    pub(super) fn reclaim(&mut self, quiet: u64) {
        while let Some((_, number, block)) = self.retired.pop_front_if(|(time, ..)| *time < quiet) {
            self.free.push(number);
            self.free_blocks.extend(block);
        }
    }
}
