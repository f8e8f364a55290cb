//! What prefixes lead to, as one thread writes it and workers read it: a path, or several of which a flow takes one.
//!
//! A path is one atomic word. A group of several has a block of [`BUCKETS`] numbers of single paths, filled as those of
//! the config are (`route::paths`), so that every host that has the same paths chooses alike. Numbers and blocks are used
//! anew when nobody can be reading them any more.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::pipeline::NextHop;
use crate::stages::route::paths::{BUCKETS, MAX_WEIGHT, seed, winner};

/// The most paths and groups.
const GROUPS: usize = 1 << 16;
/// The most groups of several paths.
const BLOCKS: usize = 1 << 12;
/// The most paths of a group: as many as leave each a few buckets.
pub(super) const MEMBERS: usize = 64;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// It is sent.
    Forward = 1,
    /// It is for this host.
    Local = 2,
    /// It is dropped without a word.
    Blackhole = 3,
    /// It is refused: ICMP says that the host cannot be reached.
    Unreachable = 4,
    /// It is refused: ICMP says that an administrator forbids it.
    Prohibit = 5,
    /// As if there were no route.
    Throw = 6,
}

/// Several paths: the word has the number of a block.
const MANY: u8 = 7;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// What becomes of it.
    pub kind: Kind,
    /// The port.
    pub egress: u8,
    /// The number of the next hop; 0: the destination itself.
    pub next_hop: u32,
}

impl Path {
    #[inline]
    fn of(word: u64) -> Option<Self> {
        let kind = match word as u8 {
            1 => Kind::Forward,
            2 => Kind::Local,
            3 => Kind::Blackhole,
            4 => Kind::Unreachable,
            5 => Kind::Prohibit,
            6 => Kind::Throw,
            _ => return None,
        };
        Some(Self { kind, egress: (word >> 8) as u8, next_hop: (word >> 16) as u32 })
    }
}

type Block = [AtomicU32; BUCKETS];

/// What workers read.
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
    #[inline]
    pub(super) fn choose(&self, group: u32, flow_hash: u32) -> Option<Path> {
        let word = self.words.get(group as usize)?.load(Ordering::Acquire);
        if word as u8 != MANY {
            return Path::of(word);
        }
        let block = self.blocks.get((word >> 16) as usize)?.get()?;
        // The hash may have been used to choose the worker: mixed, its low bits are no longer the same for all here.
        let bucket = flow_hash.wrapping_mul(0x9e37_79b1) >> 24;
        let only = block.get(bucket as usize)?.load(Ordering::Acquire);
        Path::of(self.words.get(only as usize)?.load(Ordering::Acquire))
    }
}

/// A path before it has numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Leg {
    pub(super) name: String,
    pub(super) kind: u8,
    pub(super) egress: u8,
    pub(super) next_hop: u32,
    /// To let the neighbour go when the leg goes.
    pub(super) hop: Option<Held>,
}

/// A neighbour that a leg holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held(pub(super) NextHop);

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.address, self.0.port).cmp(&(other.0.address, other.0.port))
    }
}

/// Legs with their weights, sorted.
pub(super) type Key = Vec<(Leg, u16)>;

#[derive(Debug)]
struct Group {
    users: u32,
    key: Key,
    block: Option<usize>,
    /// The groups of its single paths.
    singles: Vec<u32>,
}

/// Writes groups.
#[derive(Debug)]
pub(super) struct Writer {
    cells: Arc<Groups>,
    known: HashMap<Key, u32>,
    groups: HashMap<u32, Group>,
    free: Vec<u32>,
    next: u32,
    free_blocks: Vec<usize>,
    next_block: usize,
    retired: VecDeque<(u64, u32, Option<usize>)>,
}

impl Writer {
    pub(super) fn new() -> Self {
        let cells = Groups {
            words: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
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

    /// The group of these legs, which has one user more. `None`: there are too many.
    pub(super) fn take(&mut self, key: &Key) -> Option<u32> {
        if let Some(number) = self.known.get(key) {
            if let Some(group) = self.groups.get_mut(number) {
                group.users += 1;
            }
            return Some(*number);
        }
        let (mut singles, mut block) = (Vec::new(), None);
        let word = match &key[..] {
            [] => return None,
            [(leg, _)] => u64::from(leg.next_hop) << 16 | u64::from(leg.egress) << 8 | u64::from(leg.kind),
            many => {
                let number = self.block()?;
                for (leg, _) in many {
                    match self.take(&vec![(leg.clone(), 1)]) {
                        Some(single) => singles.push(single),
                        None => {
                            self.free_blocks.push(number);
                            // Those that were taken are let go at once: nobody has seen this group.
                            singles.iter().for_each(|single| _ = self.drop_one(*single, 0));
                            return None;
                        }
                    }
                }
                self.fill(number, many, &singles);
                block = Some(number);
                (number as u64) << 16 | u64::from(MANY)
            }
        };
        let number = self.free.pop().or_else(|| {
            let fresh = self.next;
            self.next += 1;
            ((fresh as usize) < GROUPS).then_some(fresh)
        });
        let Some(number) = number else {
            self.next = GROUPS as u32;
            self.free_blocks.extend(block);
            singles.iter().for_each(|single| _ = self.drop_one(*single, 0));
            return None;
        };
        self.cells.words[number as usize].store(word, Ordering::Release);
        self.known.insert(key.clone(), number);
        self.groups.insert(number, Group { users: 1, key: key.clone(), block, singles });
        Some(number)
    }

    fn block(&mut self) -> Option<usize> {
        self.free_blocks.pop().or_else(|| {
            let fresh = self.next_block;
            (fresh < BLOCKS).then(|| {
                self.next_block += 1;
                fresh
            })
        })
    }

    fn fill(&self, block: usize, many: &[(Leg, u16)], singles: &[u32]) {
        let block = self.cells.blocks[block].get_or_init(|| Box::new([const { AtomicU32::new(0) }; BUCKETS]));
        let seeds: Vec<u64> = many.iter().map(|(leg, _)| seed(&leg.name)).collect();
        let weighed = many.iter().zip(singles).map(|((_, weight), single)| (*single, (*weight).clamp(1, MAX_WEIGHT)));
        let members: Vec<(u32, u16)> = weighed.collect();
        for (bucket, cell) in (0..).zip(block.iter()) {
            cell.store(winner(bucket, &members, &seeds), Ordering::Release);
        }
    }

    /// A group has one user less. Returns the neighbours that are let go with it.
    pub(super) fn drop_one(&mut self, number: u32, now: u64) -> Vec<NextHop> {
        let Some(group) = self.groups.get_mut(&number) else { return Vec::new() };
        group.users -= 1;
        if group.users > 0 {
            return Vec::new();
        }
        let Some(group) = self.groups.remove(&number) else { return Vec::new() };
        self.known.remove(&group.key);
        self.retired.push_back((now, number, group.block));
        let mut hops: Vec<NextHop> = match &group.key[..] {
            [(leg, _)] => leg.hop.iter().map(|held| held.0).collect(),
            _ => Vec::new(),
        };
        for single in group.singles {
            hops.extend(self.drop_one(single, now));
        }
        hops
    }

    /// Whether a group of a single path is there.
    pub(super) fn knows(&self, leg: &Leg) -> bool {
        self.known.contains_key(&vec![(leg.clone(), 1)])
    }

    /// Lets be used anew what nobody has looked at since `quiet`.
    pub(super) fn reclaim(&mut self, quiet: u64) {
        while let Some((_, number, block)) = self.retired.pop_front_if(|(time, ..)| *time < quiet) {
            self.free.push(number);
            self.free_blocks.extend(block);
        }
    }
}
