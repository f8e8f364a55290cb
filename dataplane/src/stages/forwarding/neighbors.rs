//! Neighbours that one thread writes and workers read: address and port to link address.
//!
//! A hash table of fixed size whose entries never move, so that the place of one is the number of a next hop. An entry
//! lies in one of [`WINDOW`] places from where its hash points. Its address is written before the word that says that it
//! is there, and a place is used anew only when nobody can be reading it.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::header::MacAddr;
use crate::pipeline::NextHop;

/// The most neighbours.
pub(super) const MOST: usize = 1 << 14;
/// Places: four for every neighbour, so that a window is hardly ever full.
const PLACES: usize = MOST * 4;
/// In how many places an entry may lie.
const WINDOW: usize = 32;
/// How long the number of a next hop that is gone is not given to another: packets may be held that have it.
const REST: Duration = Duration::from_secs(6);

const MAC: u64 = (1 << 48) - 1;
/// The link address is known.
const KNOWN: u64 = 1 << 48;
/// There is an entry.
const USED: u64 = 1 << 49;
/// The neighbour did not answer.
const FAILED: u64 = 1 << 50;
/// There was an entry: lookups go on behind.
const GONE: u64 = 1 << 51;
/// Whoever uses the entry next says so.
const WATCHED: u64 = 1 << 52;
const V6: u64 = 1 << 53;
/// It was asked, and its answer is waited for.
const ASKED: u64 = 1 << 54;
const PORT: u32 = 56;
/// What must agree beside the address.
const KIND: u64 = USED | V6 | 0xff << PORT;

#[derive(Debug, Default)]
struct Place {
    high: AtomicU64,
    low: AtomicU64,
    word: AtomicU64,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Its link address.
    At(MacAddr),
    /// Nothing yet.
    Unknown,
    /// It did not answer.
    Failed,
}

/// What workers are to tell of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Quiet,
    /// Its next use.
    Watched,
    /// What it answers.
    Asked,
}

/// What workers read.
#[derive(Debug)]
pub(super) struct Neighbors {
    places: Box<[Place]>,
    /// Unknown to who might choose addresses that collide.
    seeds: [u64; 2],
}

fn bits(address: IpAddr) -> (u128, u64) {
    match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 0),
        IpAddr::V6(address) => (u128::from(address), V6),
    }
}

impl Neighbors {
    fn new() -> Self {
        let random = RandomState::new();
        let seeds = [random.hash_one(0), random.hash_one(1)];
        Self { places: (0..PLACES).map(|_| Place::default()).collect(), seeds }
    }

    #[inline]
    fn window(&self, address: u128, kind: u64) -> impl Iterator<Item = usize> + use<> {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product >> 64) as u64 ^ product as u64
        };
        let [first, second] = self.seeds;
        let front = fold((address >> 64) as u64 ^ kind ^ first, 0x9e37_79b9_7f4a_7c15);
        let start = fold(address as u64 ^ front, second | 1) as usize;
        (0..WINDOW).map(move |step| start.wrapping_add(step) % PLACES)
    }

    /// The place of a neighbour.
    #[inline]
    pub(super) fn find(&self, hop: NextHop) -> Option<usize> {
        let (address, v6) = bits(hop.address);
        let kind = USED | v6 | u64::from(hop.port) << PORT;
        for at in self.window(address, kind) {
            let place = &self.places[at];
            let word = place.word.load(Ordering::Acquire);
            if word == 0 {
                return None;
            }
            let there = (place.high.load(Ordering::Relaxed), place.low.load(Ordering::Relaxed));
            if word & KIND == kind && there == ((address >> 64) as u64, address as u64) {
                return Some(at);
            }
        }
        None
    }

    /// Whether the answer of the neighbour at a place is waited for.
    pub(super) fn is_asked(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|place| place.word.load(Ordering::Relaxed) & ASKED != 0)
    }

    /// What is known of the neighbour at a place, and whether its use is to be told.
    #[inline]
    pub(super) fn at(&self, place: usize) -> (Resolved, bool) {
        let Some(place) = self.places.get(place) else { return (Resolved::Unknown, false) };
        let word = place.word.load(Ordering::Acquire);
        let resolved = match word & (USED | KNOWN | FAILED) {
            known if known == USED | KNOWN => {
                let [mac @ .., _, _] = (word & MAC).to_le_bytes();
                Resolved::At(MacAddr(mac))
            }
            failed if failed == USED | FAILED => Resolved::Failed,
            _ => Resolved::Unknown,
        };
        (resolved, word & WATCHED != 0)
    }

    /// Takes the wish to be told of the next use; whether it was this call that took it.
    pub(super) fn unwatch(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|place| place.word.fetch_and(!WATCHED, Ordering::AcqRel) & WATCHED != 0)
    }

    /// The neighbour at a place.
    pub(super) fn hop(&self, place: usize) -> Option<NextHop> {
        let cell = self.places.get(place)?;
        let word = cell.word.load(Ordering::Relaxed);
        let address =
            u128::from(cell.high.load(Ordering::Relaxed)) << 64 | u128::from(cell.low.load(Ordering::Relaxed));
        let address = if word & V6 == 0 { IpAddr::V4((address as u32).into()) } else { IpAddr::V6(address.into()) };
        (word & USED != 0).then_some(NextHop { address, port: (word >> PORT) as u8 })
    }
}

/// An entry as the writer knows it.
#[derive(Debug)]
struct Entry {
    place: usize,
    /// Routes that go by it.
    routes: u32,
    /// Whether it is known beside that.
    listed: bool,
}

/// Writes neighbours.
#[derive(Debug)]
pub(super) struct Writer {
    cells: Arc<Neighbors>,
    entries: HashMap<NextHop, Entry>,
    /// Places of entries that are gone, and since when.
    retired: VecDeque<(u64, Instant, usize)>,
    /// Places that may be used anew: those that are not here and were used before may not.
    resting: Vec<bool>,
}

impl Writer {
    pub(super) fn new() -> Self {
        let cells = Arc::new(Neighbors::new());
        Self { cells, entries: HashMap::new(), retired: VecDeque::new(), resting: vec![false; PLACES] }
    }

    pub(super) fn cells(&self) -> &Arc<Neighbors> {
        &self.cells
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place of a neighbour, which gets one. `None`: there are too many.
    fn enter(&mut self, hop: NextHop) -> Option<&mut Entry> {
        if !self.entries.contains_key(&hop) {
            if self.entries.len() >= MOST {
                return None;
            }
            let (address, v6) = bits(hop.address);
            let kind = USED | v6 | u64::from(hop.port) << PORT;
            let free =
                |at: &usize| self.cells.places[*at].word.load(Ordering::Relaxed) & USED == 0 && !self.resting[*at];
            let place = self.cells.window(address, kind).find(free)?;
            let cell = &self.cells.places[place];
            cell.high.store((address >> 64) as u64, Ordering::Relaxed);
            cell.low.store(address as u64, Ordering::Relaxed);
            // Who sees this sees the address.
            cell.word.store(kind | WATCHED, Ordering::Release);
            self.entries.insert(hop, Entry { place, routes: 0, listed: false });
        }
        self.entries.get_mut(&hop)
    }

    /// Takes an entry out that nothing asks for.
    fn leave(&mut self, hop: NextHop, now: u64) {
        if let Some(entry) = self.entries.get(&hop)
            && entry.routes == 0
            && !entry.listed
        {
            let place = entry.place;
            self.cells.places[place].word.store(GONE, Ordering::Release);
            self.resting[place] = true;
            self.retired.push_back((now, Instant::now(), place));
            self.entries.remove(&hop);
        }
    }

    /// A route goes by this neighbour: the number of the next hop, from 1. `None`: there are too many.
    pub(super) fn hold(&mut self, hop: NextHop) -> Option<u32> {
        let entry = self.enter(hop)?;
        entry.routes += 1;
        Some(entry.place as u32 + 1)
    }

    /// A route goes by it no more.
    pub(super) fn release(&mut self, hop: NextHop, now: u64) {
        if let Some(entry) = self.entries.get_mut(&hop) {
            entry.routes = entry.routes.saturating_sub(1);
        }
        self.leave(hop, now);
    }

    /// Says what is known of a neighbour. `false`: there are too many.
    pub(super) fn set(&mut self, hop: NextHop, resolved: Resolved, mark: Mark) -> bool {
        let Some(entry) = self.enter(hop) else { return false };
        entry.listed = true;
        let place = entry.place;
        self.write(hop, place, resolved, mark);
        true
    }

    fn write(&self, hop: NextHop, place: usize, resolved: Resolved, mark: Mark) {
        let (_, v6) = bits(hop.address);
        let state = match resolved {
            Resolved::At(MacAddr([a, b, c, d, e, f])) => KNOWN | u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            Resolved::Failed => FAILED,
            Resolved::Unknown => 0,
        };
        let mark = match mark {
            Mark::Quiet => 0,
            Mark::Watched => WATCHED,
            Mark::Asked => ASKED,
        };
        let word = USED | v6 | u64::from(hop.port) << PORT | state | mark;
        self.cells.places[place].word.store(word, Ordering::Release);
    }

    /// Nothing is known of a neighbour any more.
    pub(super) fn unset(&mut self, hop: NextHop, now: u64) {
        let Some(entry) = self.entries.get_mut(&hop) else { return };
        entry.listed = false;
        let place = entry.place;
        self.write(hop, place, Resolved::Unknown, Mark::Watched);
        self.leave(hop, now);
    }

    /// Whether there is an entry.
    pub(super) fn knows(&self, hop: NextHop) -> bool {
        self.entries.contains_key(&hop)
    }

    /// Those of which something is known.
    pub(super) fn listed(&self) -> impl Iterator<Item = NextHop> + '_ {
        self.entries.iter().filter(|(_, entry)| entry.listed).map(|(hop, _)| *hop)
    }

    /// Those that nobody has resolved are to tell their next use again.
    pub(super) fn watch_unresolved(&self) {
        for entry in self.entries.values() {
            let word = &self.cells.places[entry.place].word;
            if word.load(Ordering::Relaxed) & KNOWN == 0 {
                word.fetch_or(WATCHED, Ordering::Release);
            }
        }
    }

    /// Lets places be used anew that nobody has looked at since `quiet`.
    pub(super) fn reclaim(&mut self, quiet: u64) {
        while let Some((_, _, place)) =
            self.retired.pop_front_if(|(time, since, _)| *time < quiet && since.elapsed() >= REST)
        {
            self.resting[place] = false;
        }
    }
}
