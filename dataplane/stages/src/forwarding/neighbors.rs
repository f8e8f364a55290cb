//! The neighbour table, which maps an IP address and a port to a MAC address. One thread writes the table, and workers
//! read it.
//!
//! The table is a hash table of fixed size whose entries never move, so the slot of an entry serves as the number of a
//! next hop. The hash of an entry selects a window of [`WINDOW`] adjacent slots, and the entry is in one of these
//! slots. The writer stores the address before the word that marks the slot as used. The slot of a removed next hop is
//! reused for another next hop only when no reader can still read the slot. The removed next hop itself can take its
//! slot back at any time.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::refused::Refused;
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{HoldTime, NextHop};

/// The maximum number of neighbours.
pub const MAX_NEIGHBORS: usize = 1 << 14;
/// The number of slots: four per neighbour, so that a window is rarely full.
const SLOTS: usize = MAX_NEIGHBORS * 4;
/// The number of slots in which an entry may lie.
const WINDOW: usize = 32;
/// The number of a removed next hop is reused for another next hop after this time plus the hold times of all stages.
/// Until then, a stage may still hold packets with this number. A held packet leaves its stage only at the
/// housekeeping after its hold time.
const REUSE_MARGIN: Duration = Duration::from_secs(2);

const MAC: u64 = (1 << 48) - 1;
/// The MAC address is known.
const KNOWN: u64 = 1 << 48;
/// The slot has an entry.
const USED: u64 = 1 << 49;
/// The neighbour did not answer.
const FAILED: u64 = 1 << 50;
/// The entry of the slot was removed. A lookup must continue with the next slot.
const REMOVED: u64 = 1 << 51;
/// The next use of the entry must be reported.
const WATCHED: u64 = 1 << 52;
const V6: u64 = 1 << 53;
/// A request was sent to the neighbour, and its answer is awaited.
const ASKED: u64 = 1 << 54;
const PORT: u32 = 56;
/// The bits of the word that must match in a lookup, in addition to the address.
const KEY_BITS: u64 = USED | V6 | 0xff << PORT;

#[derive(Debug, Default)]
struct Slot {
    high: AtomicU64,
    low: AtomicU64,
    word: AtomicU64,
}

/// The resolution state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolutionState {
    /// Resolved, with the MAC address.
    At(MacAddr),
    /// Not resolved yet.
    Unknown,
    /// Failed: the neighbour did not answer.
    Failed,
}

/// The events that workers report to the writer for a neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedEvent {
    /// No events.
    None,
    /// The next packet that uses the entry.
    NextUse,
    /// An answer from the neighbour.
    Answer,
}

/// The entries that workers read.
#[derive(Debug)]
pub(super) struct Neighbors {
    slots: Box<[Slot]>,
    /// Random seeds, so that nobody can choose addresses that collide.
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
        Self { slots: (0..SLOTS).map(|_| Slot::default()).collect(), seeds }
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
        (0..WINDOW).map(move |step| start.wrapping_add(step) % SLOTS)
    }

    /// Returns the slot of a neighbour.
    #[inline]
    pub(super) fn find(&self, hop: NextHop) -> Option<usize> {
        let (address, v6) = bits(hop.address);
        let kind = USED | v6 | u64::from(hop.port) << PORT;
        for at in self.window(address, kind) {
            let slot = &self.slots[at];
            let word = slot.word.load(Ordering::Acquire);
            if word == 0 {
                return None;
            }
            let stored = (slot.high.load(Ordering::Relaxed), slot.low.load(Ordering::Relaxed));
            if word & KEY_BITS == kind && stored == ((address >> 64) as u64, address as u64) {
                return Some(at);
            }
        }
        None
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether the answer of the neighbour in a slot is awaited.
    pub(super) fn is_asked(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.word.load(Ordering::Relaxed) & ASKED != 0)
    }

    /// Returns the state of the neighbour in a slot, and whether the use of the entry must be reported.
    #[inline]
    pub(super) fn at(&self, slot: usize) -> (ResolutionState, bool) {
        let Some(slot) = self.slots.get(slot) else { return (ResolutionState::Unknown, false) };
        let word = slot.word.load(Ordering::Acquire);
        let resolved = match word & (USED | KNOWN | FAILED) {
            known if known == USED | KNOWN => {
                let [mac @ .., _, _] = (word & MAC).to_le_bytes();
                ResolutionState::At(MacAddr(mac))
            }
            failed if failed == USED | FAILED => ResolutionState::Failed,
            _ => ResolutionState::Unknown,
        };
        (resolved, word & WATCHED != 0)
    }

    /// Ends the watch of the entry in a slot. Returns `true` to only one caller, which must report the use.
    pub(super) fn unwatch(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.word.fetch_and(!WATCHED, Ordering::AcqRel) & WATCHED != 0)
    }

    /// Returns the neighbour in a slot.
    pub(super) fn hop(&self, slot: usize) -> Option<NextHop> {
        let cell = self.slots.get(slot)?;
        let word = cell.word.load(Ordering::Relaxed);
        let address =
            u128::from(cell.high.load(Ordering::Relaxed)) << 64 | u128::from(cell.low.load(Ordering::Relaxed));
        let address = if word & V6 == 0 { IpAddr::V4((address as u32).into()) } else { IpAddr::V6(address.into()) };
        (word & USED != 0).then_some(NextHop { address, port: (word >> PORT) as u8 })
    }
}

/// An entry, as the writer tracks it.
#[derive(Debug)]
struct WrittenNeighbor {
    slot: usize,
    /// The number of routes that use the neighbour.
    routes: u32,
    /// Whether [`NeighborWriter::set`] has set a state that [`NeighborWriter::unset`] has not cleared.
    has_state: bool,
}

/// A removed entry whose slot must not be reused for another next hop yet.
#[derive(Debug)]
struct RetiredEntry {
    hop: NextHop,
    slot: usize,
    /// Epoch and time of the removal.
    epoch: u64,
    since: Instant,
}

/// The writer of the neighbour table.
#[derive(Debug)]
pub(super) struct NeighborWriter {
    cells: Arc<Neighbors>,
    entries: HashMap<NextHop, WrittenNeighbor>,
    /// Retired entries in the order of their removal. The key is the number of the removal.
    retired: BTreeMap<u64, RetiredEntry>,
    /// For each retired next hop, its key in `retired`.
    retired_hops: HashMap<NextHop, u64>,
    /// For each slot, whether its entry is retired.
    retired_slots: Vec<bool>,
    /// The number of removals so far.
    removals: u64,
    /// The number of retired slots that became free so far.
    freed: u64,
    /// The time for which stages may hold a packet.
    hold_time: HoldTime,
}

impl NeighborWriter {
    pub(super) fn new(hold_time: HoldTime) -> Self {
        let (cells, retired_slots) = (Arc::new(Neighbors::new()), vec![false; SLOTS]);
        let (entries, retired, retired_hops) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self { cells, entries, retired, retired_hops, retired_slots, removals: 0, freed: 0, hold_time }
    }

    pub(super) fn cells(&self) -> &Arc<Neighbors> {
        &self.cells
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of slots of removed neighbours that became free for other neighbours so far.
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns the entry of a neighbour, and creates it if necessary.
    fn find_or_insert(&mut self, hop: NextHop) -> Result<&mut WrittenNeighbor, Refused> {
        if !self.entries.contains_key(&hop) {
            if self.entries.len() >= MAX_NEIGHBORS {
                return Err(Refused::Full);
            }
            let slot = self.take_back(hop).map_or_else(|| self.free_slot(hop), Ok)?;
            let (address, v6) = bits(hop.address);
            let cell = &self.cells.slots[slot];
            cell.high.store((address >> 64) as u64, Ordering::Relaxed);
            cell.low.store(address as u64, Ordering::Relaxed);
            // A reader that sees this word also sees the address.
            cell.word.store(USED | v6 | u64::from(hop.port) << PORT | WATCHED, Ordering::Release);
            self.entries.insert(hop, WrittenNeighbor { slot, routes: 0, has_state: false });
        }
        self.entries.get_mut(&hop).ok_or(Refused::Full)
    }

    /// Takes the slot of a removed next hop back, if the slot is still retired. Readers and held packets may still use
    /// the slot, but only for this next hop.
    fn take_back(&mut self, hop: NextHop) -> Option<usize> {
        let RetiredEntry { slot, .. } = self.retired.remove(&self.retired_hops.remove(&hop)?)?;
        self.retired_slots[slot] = false;
        Some(slot)
    }

    /// Returns a free slot for a next hop.
    fn free_slot(&self, hop: NextHop) -> Result<usize, Refused> {
        let (address, v6) = bits(hop.address);
        let unused = |at: &usize| self.cells.slots[*at].word.load(Ordering::Relaxed) & USED == 0;
        let mut refused = Refused::Full;
        for slot in self.cells.window(address, USED | v6 | u64::from(hop.port) << PORT).filter(unused) {
            if !self.retired_slots[slot] {
                return Ok(slot);
            }
            refused = Refused::Retired;
        }
        Err(refused)
    }

    /// Removes an entry that is no longer in use.
    fn remove_if_unused(&mut self, hop: NextHop, now: u64) {
        if let Some(entry) = self.entries.get(&hop)
            && entry.routes == 0
            && !entry.has_state
        {
            let slot = entry.slot;
            self.cells.slots[slot].word.store(REMOVED, Ordering::Release);
            self.entries.remove(&hop);
            self.retire(hop, slot, now);
        }
    }

    fn retire(&mut self, hop: NextHop, slot: usize, epoch: u64) {
        self.removals += 1;
        self.retired.insert(self.removals, RetiredEntry { hop, slot, epoch, since: Instant::now() });
        self.retired_hops.insert(hop, self.removals);
        self.retired_slots[slot] = true;
    }

    /// Adds a route that uses this neighbour. Returns the number of the next hop, counted from 1.
    pub(super) fn add_route(&mut self, hop: NextHop) -> Result<u32, Refused> {
        let entry = self.find_or_insert(hop)?;
        entry.routes += 1;
        Ok(entry.slot as u32 + 1)
    }

    /// Removes a route that uses this neighbour.
    pub(super) fn remove_route(&mut self, hop: NextHop, now: u64) {
        if let Some(entry) = self.entries.get_mut(&hop) {
            entry.routes = entry.routes.saturating_sub(1);
        }
        self.remove_if_unused(hop, now);
    }

    /// Sets the state of a neighbour.
    pub(super) fn set(&mut self, hop: NextHop, resolved: ResolutionState, event: ReportedEvent) -> Result<(), Refused> {
        let entry = self.find_or_insert(hop)?;
        entry.has_state = true;
        let slot = entry.slot;
        self.write(hop, slot, resolved, event);
        Ok(())
    }

    fn write(&self, hop: NextHop, slot: usize, resolved: ResolutionState, event: ReportedEvent) {
        let (_, v6) = bits(hop.address);
        let state = match resolved {
            ResolutionState::At(MacAddr([a, b, c, d, e, f])) => KNOWN | u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            ResolutionState::Failed => FAILED,
            ResolutionState::Unknown => 0,
        };
        let event = match event {
            ReportedEvent::None => 0,
            ReportedEvent::NextUse => WATCHED,
            ReportedEvent::Answer => ASKED,
        };
        let word = USED | v6 | u64::from(hop.port) << PORT | state | event;
        self.cells.slots[slot].word.store(word, Ordering::Release);
    }

    /// Clears the state of a neighbour.
    pub(super) fn unset(&mut self, hop: NextHop, now: u64) {
        let Some(entry) = self.entries.get_mut(&hop) else { return };
        entry.has_state = false;
        let slot = entry.slot;
        self.write(hop, slot, ResolutionState::Unknown, ReportedEvent::NextUse);
        self.remove_if_unused(hop, now);
    }

    /// Returns whether the neighbour has an entry.
    pub(super) fn contains(&self, hop: NextHop) -> bool {
        self.entries.contains_key(&hop)
    }

    /// Returns whether a route uses the neighbour.
    pub(super) fn has_routes(&self, hop: NextHop) -> bool {
        self.entries.get(&hop).is_some_and(|entry| entry.routes > 0)
    }

    /// Returns the neighbours that have a state from [`NeighborWriter::set`].
    pub(super) fn with_state(&self) -> impl Iterator<Item = NextHop> + '_ {
        self.entries.iter().filter(|(_, entry)| entry.has_state).map(|(hop, _)| *hop)
    }

    /// Watches the entries of all unresolved neighbours again, so that workers report the next use of each entry.
    pub(super) fn watch_unresolved(&self) {
        for entry in self.entries.values() {
            let word = &self.cells.slots[entry.slot].word;
            if word.load(Ordering::Relaxed) & KNOWN == 0 {
                word.fetch_or(WATCHED, Ordering::Release);
            }
        }
    }

    /// Frees the slots that were retired before the epoch `quiet`, and that no held packet refers to at the time `now`.
    pub(super) fn reclaim(&mut self, quiet: u64, now: Instant) {
        let delay = self.hold_time.get().saturating_add(REUSE_MARGIN);
        while let Some(oldest) = self.retired.first_entry() {
            let RetiredEntry { hop, slot, epoch, since } = oldest.get();
            if *epoch >= quiet || now.saturating_duration_since(*since) < delay {
                return;
            }
            self.retired_slots[*slot] = false;
            self.retired_hops.remove(hop);
            self.freed += 1;
            oldest.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::units::Nanos;

    fn hop(number: u32) -> NextHop {
        NextHop { address: std::net::Ipv4Addr::from(10 << 24 | number).into(), port: 0 }
    }

    fn window(writer: &NeighborWriter, hop: NextHop) -> impl Iterator<Item = usize> + use<> {
        writer.cells.window(bits(hop.address).0, USED)
    }

    /// Returns another next hop that takes this slot if the slot is free.
    fn hop_for_slot(writer: &NeighborWriter, slot: usize) -> NextHop {
        (100..1 << 24).map(hop).find(|hop| window(writer, *hop).next() == Some(slot)).unwrap()
    }

    #[test]
    fn number_of_a_next_hop_is_not_reused_while_stages_may_hold_its_packets() {
        let hold_time = HoldTime::default();
        let mut writer = NeighborWriter::new(hold_time.clone());
        hold_time.set([4, 30].map(|seconds| Nanos(seconds * 1_000_000_000)));
        let slot = writer.add_route(hop(1)).unwrap() as usize - 1;
        writer.remove_route(hop(1), 1);
        let other = hop_for_slot(&writer, slot);
        for (seconds, is_free) in [(0, false), (33, false), (37, true)] {
            writer.reclaim(2, Instant::now() + Duration::from_secs(seconds));
            assert_eq!(writer.free_slot(other) == Ok(slot), is_free, "{seconds}");
        }
        assert_eq!((writer.retired.len(), writer.retired_hops.len(), writer.freed()), (0, 0, 1));
    }

    /// The neighbour is removed and added more often than its window has slots.
    #[test]
    fn neighbour_that_comes_and_goes_keeps_its_slot() {
        let mut writer = NeighborWriter::new(HoldTime::default());
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut slots = Vec::new();
        for change in 0..40 {
            assert_eq!(writer.set(hop(1), ResolutionState::At(mac), ReportedEvent::None), Ok(()), "change {change}");
            let slot = writer.cells.find(hop(1)).unwrap();
            assert_eq!(writer.cells.at(slot).0, ResolutionState::At(mac));
            slots.push(slot);
            writer.unset(hop(1), change);
            assert_eq!((writer.cells.find(hop(1)), writer.retired.len()), (None, 1));
        }
        slots.dedup();
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn slot_of_a_neighbour_that_came_back_is_reserved_from_its_latest_removal() {
        let mut writer = NeighborWriter::new(HoldTime::default());
        let slot = writer.add_route(hop(1)).unwrap() as usize - 1;
        writer.remove_route(hop(1), 1);
        assert_eq!(writer.add_route(hop(1)), Ok(slot as u32 + 1));
        writer.remove_route(hop(1), 5);
        let other = hop_for_slot(&writer, slot);
        for (quiet, is_free) in [(3, false), (6, true)] {
            writer.reclaim(quiet, Instant::now() + REUSE_MARGIN);
            assert_eq!(writer.free_slot(other) == Ok(slot), is_free, "{quiet}");
        }
    }

    #[test]
    fn refusal_distinguishes_retired_slots_from_a_full_table() {
        let mut writer = NeighborWriter::new(HoldTime::default());
        for (number, slot) in (100..).zip(window(&writer, hop(1))) {
            writer.retire(hop(number), slot, 1);
        }
        assert_eq!(writer.set(hop(1), ResolutionState::Unknown, ReportedEvent::None), Err(Refused::Retired));
        writer.reclaim(2, Instant::now() + REUSE_MARGIN);
        assert_eq!(writer.set(hop(1), ResolutionState::Unknown, ReportedEvent::None), Ok(()));
        let refused = (1000..40_000).find_map(|number| writer.add_route(hop(number)).err());
        assert_eq!(refused, Some(Refused::Full));
    }
}
