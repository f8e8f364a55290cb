//! Ordered 5-tuple rules, where the first matching rule wins. The rules are compiled to decision trees. A node divides
//! the packets by a few bits of one field (Gupta and McKeown, "Packet classification using hierarchical intelligent
//! cuttings", Hot Interconnects 1999). The bits may be anywhere in the field (Daly and Torng, "ByteCuts: fast packet
//! classification by interior bit extraction", INFOCOM 2018). A leaf compares a packet with eight rules at once.
//!
//! A rule that accepts most values of a node's bits would belong to many of the node's children. The rule is then not
//! copied to all these children, but goes to another tree. The nodes of that tree divide by the fields that its rules
//! restrict. For example, rules with a source prefix are in one tree, and rules for any source are in another. A packet
//! is looked up in each tree, and the matching rule with the lowest rank wins. The ranks of the rules ascend in rule
//! order. If no bits separate a group of rules well, and the group does not fit in one leaf, the rules are in a list of
//! leaves, in rule order. The search of the list stops when all remaining rules have higher ranks than the best match.
//!
//! All packets of a batch descend the trees together, level by level, as lists of pending lookups. The memory loads of
//! different packets overlap, and the code has no conditional jump that depends on a single packet.
//!
//! All data is in pages, which a classifier shares with its copies. Adding or removing a rule changes the leaves that
//! the rule belongs to, and copies only the pages of these leaves. A copy of the classifier can therefore serve lookups
//! while the original changes. Changes do not rebuild the existing nodes, so the trees become less efficient over time.
//! After many changes, all rules are therefore compiled again.
//!
//! Memory: a leaf takes 384 bytes for IPv4 and 768 bytes for IPv6, and each cell of a node takes 8 bytes. The average
//! number of copies of a rule is below two for most rule sets, and at most about 32 for any rule set. 10,000 rules of a
//! typical access list take 2 MiB.

mod cell;
mod cut;
mod difference;
mod leaf;
mod order;
mod pages;
mod rule;
mod search;
#[cfg(test)]
mod tests;
mod tree;
mod words;

pub use rule::{Addresses, FlagMatch, Key, Rule};

use super::MISS;
use cell::WAYS;
use leaf::NO_RANK;
use order::Order;
use pages::Pages;
use tree::Forest;

/// The lookup key of an IPv4 packet, as built by [`v4_key`].
pub type V4Key = [u32; words::V4];

/// Returns the lookup key of an IPv4 packet with ports and without a VLAN tag.
#[inline]
pub fn v4_key(addresses: (u32, u32), protocol: u8, ports: (u16, u16), tcp_flags: Option<u8>) -> V4Key {
    let (source, destination) = addresses;
    let addresses = Addresses::V4(source, destination);
    let key = Key { addresses, protocol, ports: Some(ports), vlan: None, tcp_flags };
    words::v4(&key, source, destination)
}

/// Rules compiled for lookups. A lookup returns the number of a rule.
///
/// A copy shares memory with the original, and does not change when the original changes.
///
/// ```
/// use dataplane_tables::classifier::{Classifier, Key, Rule};
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
/// // Insert a rule before all other rules.
/// let number = classifier.insert(0, Rule { protocol: Some(6), ..Rule::default() });
/// assert_eq!(classifier.lookup(&key), Some(number));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Classifier {
    v4: Forest<{ words::V4 }>,
    v6: Forest<{ words::V6 }>,
    order: Order,
    /// Rules, by number.
    rules: Pages<Placed, 64>,
    /// Unused numbers.
    free: Vec<u32>,
    /// The number of rules at the last compilation.
    compiled: usize,
    /// The number of changes since the last compilation.
    changes: usize,
}

/// A rule, and the index of its tree for each address family.
#[derive(Clone, Debug, Default)]
struct Placed {
    rule: Rule,
    v4: u8,
    v6: u8,
}

/// The minimum number of changes before all rules are compiled again.
const MIN_CHANGES: usize = 32;
/// An update compiles all rules again if too many rules are added and removed. The limit is [`MIN_CHANGES`] plus a
/// fraction of the new list: its length divided by this constant.
const MAX_CHANGED_FRACTION: usize = 8;

impl Classifier {
    /// Compiles rules in order of precedence. The number of a rule is its position.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 2^24 rules.
    pub fn new(rules: &[Rule]) -> Self {
        let mut all = Pages::default();
        for rule in rules {
            let number = all.grow(1, &Placed::default());
            all.get_mut(number).into_iter().for_each(|it| it.rule.clone_from(rule));
        }
        Self::compile(Order::new(0..rules.len() as u32), all, Vec::new())
    }

    fn compile(order: Order, mut rules: Pages<Placed, 64>, free: Vec<u32>) -> Self {
        assert!(rules.len() <= order::MAX_RULES, "{} rules exceed the maximum of {}", rules.len(), order::MAX_RULES);
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

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.order.ranks().len()
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the rules in their order, each with its number.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &Rule)> {
        let numbers = self.order.ranks().iter().map(|rank| order::number(*rank));
        numbers.filter_map(|number| Some((number, &self.rules.get(number as usize)?.rule)))
    }

    /// Returns an upper bound: every rule number is below this bound. Use the bound as the length of an array that is
    /// indexed by rule number.
    pub fn rule_number_bound(&self) -> usize {
        self.rules.len()
    }

    /// Inserts a rule at position `at`. The rule that had this position, and all rules after it, move one position
    /// back. Position 0 is before all other rules, and position [`Classifier::len`] is after all other rules. Returns
    /// the number of the inserted rule, which may be the number of a removed rule.
    ///
    /// # Panics
    ///
    /// Panics if the position is above [`Classifier::len`], or if there are already 2^24 rules.
    pub fn insert(&mut self, at: usize, rule: Rule) -> u32 {
        assert!(at <= self.len(), "position {at} is above the number of rules, {}", self.len());
        let number = self.free.pop().unwrap_or_else(|| self.rules.grow(1, &Placed::default()) as u32);
        assert!((number as usize) < order::MAX_RULES, "at most {} rules are possible", order::MAX_RULES);
        if let Some(placed) = self.rules.get_mut(number as usize) {
            placed.rule = rule;
        }
        let rank = self.order.insert(at, number).or_else(|| {
            let crowded = self.order.crowd(at);
            let ranks = self.order.ranks()[crowded.clone()].to_vec();
            ranks.into_iter().for_each(|rank| self.remove_from_trees(rank));
            self.order.spread(crowded.clone());
            let ranks = self.order.ranks()[crowded].to_vec();
            ranks.into_iter().for_each(|rank| self.add_to_trees(rank));
            self.order.insert(at, number)
        });
        rank.into_iter().for_each(|rank| self.add_to_trees(rank));
        self.count_change();
        number
    }

    /// Removes the rule at a position, and returns its number.
    ///
    /// # Panics
    ///
    /// Panics if there is no rule at the position.
    pub fn remove(&mut self, at: usize) -> u32 {
        assert!(at < self.len(), "no rule has the position {at}: there are {} rules", self.len());
        let rank = self.order.remove(at);
        self.remove_from_trees(rank);
        self.free.push(order::number(rank));
        self.count_change();
        order::number(rank)
    }

    /// Replaces the rules with a new list. Removes the rules that are not in the new list, and adds the missing rules.
    /// If many rules differ, compiles all rules again. A rule that is in both lists may get another number.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 2^24 rules.
    pub fn update(&mut self, rules: &[Rule]) {
        let before: Vec<&Rule> = self.rules().map(|(_, rule)| rule).collect();
        let old = before.len();
        let mut common = difference::common(&before, rules);
        if old + rules.len() - 2 * common.len() > MIN_CHANGES + rules.len() / MAX_CHANGED_FRACTION {
            *self = Self::new(rules);
            return;
        }
        // This pair stands for the end of both lists.
        common.push((old, rules.len()));
        let (mut next_old, mut at) = (0, 0);
        for (stays, to) in common {
            (next_old..stays).for_each(|_| _ = self.remove(at));
            for rule in &rules[at..to] {
                self.insert(at, rule.clone());
                at += 1;
            }
            (next_old, at) = (stays + 1, to + 1);
        }
    }

    fn add_to_trees(&mut self, rank: u64) {
        let Some(placed) = self.rules.get_mut(order::number(rank) as usize) else { return };
        if let Some(entry) = placed.rule.v4(rank) {
            placed.v4 = self.v4.insert(&entry);
        }
        if let Some(entry) = placed.rule.v6(rank) {
            placed.v6 = self.v6.insert(&entry);
        }
    }

    fn remove_from_trees(&mut self, rank: u64) {
        let Some(placed) = self.rules.get(order::number(rank) as usize) else { return };
        if let Some(entry) = placed.rule.v4(rank) {
            self.v4.remove(&entry, placed.v4);
        }
        if let Some(entry) = placed.rule.v6(rank) {
            self.v6.remove(&entry, placed.v6);
        }
    }

    fn count_change(&mut self) {
        self.changes += 1;
        if self.changes > self.compiled / 2 + MIN_CHANGES {
            let (rules, free) = (std::mem::take(&mut self.rules), std::mem::take(&mut self.free));
            let order = Order::new(self.order.ranks().iter().map(|rank| order::number(*rank)));
            *self = Self::compile(order, rules, free);
        }
    }

    /// Returns the number of the first rule that matches.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<u32> {
        let mut number = [MISS];
        self.lookup_batch(&mut number, |_| Some(*key));
        (number[0] != MISS).then_some(number[0])
    }

    /// Looks up one packet for each element of `numbers`. `key` returns the key of the packet with the given index, or
    /// `None` for a packet without a key. `key` may be called twice for the same index. Writes [`MISS`] if no rule
    /// matches or the packet has no key. A batch is faster than single lookups, because the memory accesses of up to 32
    /// packets overlap.
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
                // A packet belongs to only one address family, so at least one of the two numbers is `MISS`, the
                // maximum.
                numbers.iter_mut().zip(v6).for_each(|(number, v6)| *number = (*number).min(v6));
            }
        }
    }
}

impl Classifier {
    /// Looks up IPv4 packets. Writes the number of the matching rule for each key, or [`MISS`]. Faster than
    /// [`Classifier::lookup_batch`], which determines the address family of each packet.
    #[inline]
    pub fn lookup_v4(&self, keys: &[V4Key], numbers: &mut [u32]) {
        for (keys, numbers) in keys.chunks(WAYS).zip(numbers.chunks_mut(WAYS)) {
            let mut ranks = [NO_RANK; WAYS];
            search::search(&self.v4, keys, &mut ranks);
            numbers.iter_mut().zip(ranks).for_each(|(number, rank)| *number = number_at(rank));
        }
    }
}

/// Returns the number of the rule with a rank, or [`MISS`] for no rule.
#[inline]
fn number_at(rank: u64) -> u32 {
    if rank == NO_RANK { MISS } else { order::number(rank) }
}

impl<const W: usize> Forest<W> {
    /// Looks up the packets of a batch for which `words` returns a key. All other packets get [`MISS`].
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
