//! Ordered 5-tuple rules, the first that matches wins: decision trees whose nodes divide the packets by a few bits of one
//! field (Gupta and McKeown, "Packet classification using hierarchical intelligent cuttings", Hot Interconnects 1999; bits of
//! any place as in Daly and Torng, "ByteCuts: fast packet classification by interior bit extraction", INFOCOM 2018), and whose
//! leaves hold eight rules against a packet at once.
//!
//! A rule that names little of what a node divides by belongs to many of its children. Instead of being copied to them all it
//! is put aside, into a further tree that divides by what these rules do name: rules of a source prefix come to one tree, those
//! of any source to another. A packet goes down each tree; of what it finds, the rule of the lowest rank counts. A leaf that
//! cannot be divided is a list of leaves in the order of the rules, which is left at the first that can have nothing better.
//!
//! The packets of a batch go down together, level by level, as lists of what is still to be looked at, so that their loads are
//! under way at once and no branch depends on a packet.
//!
//! All of it lies in pages that copies share. Adding or removing a rule changes the leaves that it belongs to, in pages of its
//! own, so a copy is what somebody looks up in while the original changes. After as many changes as half of the rules all are
//! compiled anew, as trees that only grow become worse.
//!
//! Memory: 384 bytes for a leaf of IPv4, 768 of IPv6, and 8 bytes for each cell of a node. A rule has about 32 copies on average at
//! the most, whatever the rules are, and less than two in most sets: 10,000 rules of a usual access list take 2 MiB.

mod cut;
mod difference;
mod leaf;
mod order;
mod pages;
mod search;
#[cfg(test)]
mod tests;
mod tree;
mod words;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::MISS;
use leaf::NO_RANK;
use order::Order;
use pages::Pages;
use search::WAYS;
use tree::Forest;

/// A rule: every field that is named must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The source address is in this prefix, and of its family.
    pub source: Option<IpNet>,
    /// The destination address is in this prefix, and of its family.
    pub destination: Option<IpNet>,
    /// The protocol behind IP.
    pub protocol: Option<u8>,
    /// The packet has ports, and its source port is one of these.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The packet has ports, and its destination port is one of these.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// The packet has an outer VLAN tag with this identifier.
    pub vlan: Option<u16>,
    /// The packet is TCP with these flags.
    pub tcp_flags: Option<FlagMatch>,
}

/// Which TCP flags must be set and which must not: the flags under `mask` are as in `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlagMatch {
    /// The flags that count.
    pub mask: u8,
    /// What they are.
    pub value: u8,
}

/// The addresses of a packet, source then destination, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4.
    V4(u32, u32),
    /// IPv6.
    V6(u128, u128),
}

impl From<(Ipv4Addr, Ipv4Addr)> for Addresses {
    fn from((source, destination): (Ipv4Addr, Ipv4Addr)) -> Self {
        Self::V4(source.into(), destination.into())
    }
}

impl From<(Ipv6Addr, Ipv6Addr)> for Addresses {
    fn from((source, destination): (Ipv6Addr, Ipv6Addr)) -> Self {
        Self::V6(source.into(), destination.into())
    }
}

/// What a packet is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Source and destination address.
    pub addresses: Addresses,
    /// The protocol behind IP.
    pub protocol: u8,
    /// Source and destination port; `None` where there are none to be read.
    pub ports: Option<(u16, u16)>,
    /// The identifier of the outer VLAN tag, of 12 bits.
    pub vlan: Option<u16>,
    /// The flags of TCP; `None` for everything else.
    pub tcp_flags: Option<u8>,
}

/// What an IPv4 packet is looked up by, as [`v4_key`] has it.
pub type V4Key = [u32; words::V4];

/// What an IPv4 packet is looked up by that shows its ports and has no VLAN tag.
#[inline]
pub fn v4_key(addresses: (u32, u32), protocol: u8, ports: (u16, u16), tcp_flags: Option<u8>) -> V4Key {
    let (source, destination) = addresses;
    let addresses = Addresses::V4(source, destination);
    let key = Key { addresses, protocol, ports: Some(ports), vlan: None, tcp_flags };
    words::v4(&key, source, destination)
}

/// Rules, compiled for lookup. Each has a number, by which it is found.
///
/// A copy shares memory with the original, and stays as it is when that changes.
///
/// ```
/// use dataplane::stages::table::classifier::{Classifier, Key, Rule};
///
/// let rules = [
///     Rule { destination_ports: Some(22..=22), ..Rule::default() },
///     Rule { source: Some("10.0.0.0/8".parse()?), ..Rule::default() },
/// ];
/// let mut classifier = Classifier::new(&rules);
/// let addresses = ("10.1.2.3".parse::<std::net::Ipv4Addr>()?, "192.0.2.1".parse()?).into();
/// let mut key = Key { addresses, protocol: 6, ports: Some((4000, 22)), vlan: None, tcp_flags: Some(0x02) };
/// assert_eq!(classifier.lookup(&key), Some(0));
/// key.ports = Some((4000, 80));
/// assert_eq!(classifier.lookup(&key), Some(1));
/// // Before all others.
/// let number = classifier.insert(0, Rule { protocol: Some(6), ..Rule::default() });
/// assert_eq!(classifier.lookup(&key), Some(number));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Classifier {
    v4: Forest<{ words::V4 }>,
    v6: Forest<{ words::V6 }>,
    order: Order,
    /// By number.
    rules: Pages<Placed, 64>,
    /// Numbers that no rule has.
    free: Vec<u32>,
    /// How many rules there were when all were compiled, and the changes since.
    compiled: usize,
    changes: usize,
}

/// A rule, and the tree of either family that it is in.
#[derive(Clone, Debug, Default)]
struct Placed {
    rule: Rule,
    v4: u8,
    v6: u8,
}

/// So many changes are made at least before all is compiled anew.
const FEW_CHANGES: usize = 32;
/// Of so many rules one may be changed alone.
const MANY: usize = 8;

impl Classifier {
    /// Compiles rules, the first before all others. Their numbers are their positions.
    ///
    /// # Panics
    ///
    /// If there are more than 2^24.
    pub fn new(rules: &[Rule]) -> Self {
        let mut all = Pages::default();
        for rule in rules {
            let number = all.grow(1, &Placed::default());
            all.get_mut(number).into_iter().for_each(|it| it.rule.clone_from(rule));
        }
        Self::compile(Order::new(0..rules.len() as u32), all, Vec::new())
    }

    fn compile(order: Order, mut rules: Pages<Placed, 64>, free: Vec<u32>) -> Self {
        assert!(rules.len() <= order::MOST, "{} rules, but {} have numbers", rules.len(), order::MOST);
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for rank in order.ranks() {
            let Some(Placed { rule, .. }) = rules.get(order::number(*rank) as usize) else { continue };
            v4.extend(rule.v4(*rank));
            v6.extend(rule.v6(*rank));
        }
        let mut place = |rank, set: fn(&mut Placed, u8), tree| {
            rules.get_mut(order::number(rank) as usize).into_iter().for_each(|rule| set(rule, tree));
        };
        let v4 = Forest::new(v4, |entry, tree| place(entry.rank, |rule, tree| rule.v4 = tree, tree));
        let v6 = Forest::new(v6, |entry, tree| place(entry.rank, |rule, tree| rule.v6 = tree, tree));
        let compiled = order.ranks().len();
        Self { v4, v6, order, rules, free, compiled, changes: 0 }
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.order.ranks().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rules in their order, each with its number.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &Rule)> {
        let numbers = self.order.ranks().iter().map(|rank| order::number(*rank));
        numbers.filter_map(|number| Some((number, &self.rules.get(number as usize)?.rule)))
    }

    /// All numbers are below this.
    pub fn numbers(&self) -> usize {
        self.rules.len()
    }

    /// Adds a rule at a position, 0 for before all others; those that were there or behind come behind it. Gives its number:
    /// that of a rule that is no more, or the lowest that none has had.
    ///
    /// # Panics
    ///
    /// If the position is above [`Classifier::len`], or there are 2^24 rules.
    pub fn insert(&mut self, at: usize, rule: Rule) -> u32 {
        assert!(at <= self.len(), "position {at} of {} rules", self.len());
        let number = self.free.pop().unwrap_or_else(|| self.rules.grow(1, &Placed::default()) as u32);
        assert!((number as usize) < order::MOST, "no more than {} rules have numbers", order::MOST);
        if let Some(placed) = self.rules.get_mut(number as usize) {
            placed.rule = rule;
        }
        let rank = self.order.insert(at, number).or_else(|| {
            let crowd = self.order.crowd(at);
            let ranks = self.order.ranks()[crowd.clone()].to_vec();
            ranks.into_iter().for_each(|rank| self.take_out(rank));
            self.order.spread(crowd.clone());
            let ranks = self.order.ranks()[crowd].to_vec();
            ranks.into_iter().for_each(|rank| self.put_in(rank));
            self.order.insert(at, number)
        });
        rank.into_iter().for_each(|rank| self.put_in(rank));
        self.has_changed();
        number
    }

    /// Takes out the rule at a position, and gives its number.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn remove(&mut self, at: usize) -> u32 {
        assert!(at < self.len(), "position {at} of {} rules", self.len());
        let rank = self.order.remove(at);
        self.take_out(rank);
        self.free.push(order::number(rank));
        self.has_changed();
        order::number(rank)
    }

    /// Has other rules, by taking out those that are no more and adding those that are new; where many differ, all are compiled
    /// anew. A rule that stays may have another number.
    ///
    /// # Panics
    ///
    /// If there are more than 2^24.
    pub fn update(&mut self, rules: &[Rule]) {
        let before: Vec<&Rule> = self.rules().map(|(_, rule)| rule).collect();
        let old = before.len();
        let mut common = difference::common(&before, rules);
        if old + rules.len() - 2 * common.len() > FEW_CHANGES + rules.len() / MANY {
            *self = Self::new(rules);
            return;
        }
        // Behind all.
        common.push((old, rules.len()));
        let (mut gone, mut at) = (0, 0);
        for (stays, to) in common {
            (gone..stays).for_each(|_| _ = self.remove(at));
            for rule in &rules[at..to] {
                self.insert(at, rule.clone());
                at += 1;
            }
            (gone, at) = (stays + 1, to + 1);
        }
    }

    fn put_in(&mut self, rank: u64) {
        let Some(placed) = self.rules.get_mut(order::number(rank) as usize) else { return };
        if let Some(entry) = placed.rule.v4(rank) {
            placed.v4 = self.v4.insert(&entry);
        }
        if let Some(entry) = placed.rule.v6(rank) {
            placed.v6 = self.v6.insert(&entry);
        }
    }

    fn take_out(&mut self, rank: u64) {
        let Some(placed) = self.rules.get(order::number(rank) as usize) else { return };
        if let Some(entry) = placed.rule.v4(rank) {
            self.v4.remove(&entry, placed.v4);
        }
        if let Some(entry) = placed.rule.v6(rank) {
            self.v6.remove(&entry, placed.v6);
        }
    }

    fn has_changed(&mut self) {
        self.changes += 1;
        if self.changes > self.compiled / 2 + FEW_CHANGES {
            let (rules, free) = (std::mem::take(&mut self.rules), std::mem::take(&mut self.free));
            let order = Order::new(self.order.ranks().iter().map(|rank| order::number(*rank)));
            *self = Self::compile(order, rules, free);
        }
    }

    /// The number of the first rule that matches.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<u32> {
        let mut number = [MISS];
        self.lookup_batch(&mut number, |_| Some(*key));
        (number[0] != MISS).then_some(number[0])
    }

    /// Looks up as many packets as there are numbers, each by the key of its place: [`MISS`] where no rule matches, and where there
    /// is no key. Faster than one by one, as the memory accesses of up to 32 overlap. A key may be asked for twice.
    #[inline]
    pub fn lookup_batch(&self, numbers: &mut [u32], mut key: impl FnMut(usize) -> Option<Key>) {
        for (numbers, first) in numbers.chunks_mut(WAYS).zip((0..).step_by(WAYS)) {
            let mut is_v6 = false;
            self.v4.look_up(numbers, |place| match key(first + place) {
                Some(key) => match key.addresses {
                    Addresses::V4(source, destination) => Some(words::v4(&key, source, destination)),
                    Addresses::V6(..) => {
                        is_v6 = true;
                        None
                    }
                },
                None => None,
            });
            if is_v6 {
                let mut v6 = [MISS; WAYS];
                self.v6.look_up(&mut v6[..numbers.len()], |place| {
                    let key = key(first + place)?;
                    let Addresses::V6(source, destination) = key.addresses else { return None };
                    Some(words::v6(&key, source, destination))
                });
                // A packet is of one family.
                numbers.iter_mut().zip(v6).for_each(|(number, v6)| *number = (*number).min(v6));
            }
        }
    }
}

impl Classifier {
    /// Looks up IPv4 packets: for each key its number, [`MISS`] where no rule matches. Less than [`Classifier::lookup_batch`]
    /// takes, which asks of each packet what it is.
    #[inline]
    pub fn lookup_v4(&self, keys: &[V4Key], numbers: &mut [u32]) {
        for (keys, numbers) in keys.chunks(WAYS).zip(numbers.chunks_mut(WAYS)) {
            let mut ranks = [NO_RANK; WAYS];
            search::search(&self.v4, keys, &mut ranks);
            numbers.iter_mut().zip(ranks).for_each(|(number, rank)| *number = number_at(rank));
        }
    }
}

/// The number of the rule of a rank, [`MISS`] of none.
#[inline]
fn number_at(rank: u64) -> u32 {
    if rank == NO_RANK { MISS } else { order::number(rank) }
}

impl<const W: usize> Forest<W> {
    /// Looks up the packets of a batch that have words.
    #[inline]
    fn look_up(&self, numbers: &mut [u32], mut words: impl FnMut(usize) -> Option<[u32; W]>) {
        let (mut keys, mut places, mut count) = ([[0; W]; WAYS], [0u8; WAYS], 0);
        for (place, number) in numbers.iter_mut().enumerate() {
            *number = MISS;
            if let Some(words) = words(place) {
                keys[count % WAYS] = words;
                places[count % WAYS] = place as u8;
                count += 1;
            }
        }
        let mut ranks = [NO_RANK; WAYS];
        search::search(self, &keys[..count.min(WAYS)], &mut ranks);
        for (place, rank) in places.iter().zip(&ranks).take(count) {
            if let Some(number) = numbers.get_mut(usize::from(*place)) {
                *number = number_at(*rank);
            }
        }
    }
}
