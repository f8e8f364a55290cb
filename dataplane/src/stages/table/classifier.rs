//! Ordered 5-tuple rules, the first that matches wins: bit-vector intersection (Lakshman and Stiliadis,
//! "High-speed policy-based packet forwarding using efficient multi-dimensional range matching", SIGCOMM 1998).
//!
//! Every field cuts its range of values at the edges of the rules; each piece knows the set of rules that take it.
//! A lookup finds one piece a field and intersects the sets, lowest rule first. A set has a summary of one bit for every
//! 64 rules, so words that are empty in any of them are not read, and its words in chunks of 64, which sets share:
//! neighbouring pieces differ in few rules, and so in few chunks.
//!
//! Memory: a piece takes at most 4 bytes for every 1,000 rules and a chunk of 512 bytes for each rule that begins or ends
//! there. 10,000 rules that all differ in a field take about 5 MiB for it, 100,000 about 90 MiB.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// A rule: every field that is named must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The identifier of the outer VLAN tag.
    pub vlan: Option<u16>,
    /// The flags of TCP; `None` for everything else.
    pub tcp_flags: Option<u8>,
}

/// Stands for a port, a VLAN or TCP flags that the packet does not have: above all values they can have.
const ABSENT: u32 = 1 << 16;

/// Rules, compiled for lookup.
///
/// ```
/// use dataplane::stages::table::classifier::{Classifier, Key, Rule};
///
/// let rules = [
///     Rule { destination_ports: Some(22..=22), ..Rule::default() },
///     Rule { source: Some("10.0.0.0/8".parse()?), ..Rule::default() },
/// ];
/// let classifier = Classifier::new(&rules);
/// let addresses = ("10.1.2.3".parse::<std::net::Ipv4Addr>()?, "192.0.2.1".parse()?).into();
/// let mut key = Key { addresses, protocol: 6, ports: Some((4000, 22)), vlan: None, tcp_flags: Some(0x02) };
/// assert_eq!(classifier.lookup(&key), Some(0));
/// key.ports = Some((4000, 80));
/// assert_eq!(classifier.lookup(&key), Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Classifier {
    rules: usize,
    /// Chunks of a set.
    chunks: usize,
    /// Sets and chunks, one behind the other; equal ones are kept once. A set has a word of summary for each chunk, and
    /// behind those, for each of them, where it lies.
    words: Vec<u64>,
    source_v4: Field<u32>,
    destination_v4: Field<u32>,
    source_v6: Field<u128>,
    destination_v6: Field<u128>,
    protocol: Field<u32>,
    source_port: Field<u32>,
    destination_port: Field<u32>,
    vlan: Field<u32>,
    tcp_flags: Field<u32>,
}

/// The pieces of a field's range.
#[derive(Clone, Debug)]
struct Field<T> {
    /// Where each piece begins, ascending; the first at 0.
    starts: Vec<T>,
    /// Where the set of each piece begins in [`Classifier::words`].
    sets: Vec<u32>,
}

impl<T: Ord> Field<T> {
    #[inline]
    fn set(&self, value: T) -> usize {
        let piece = self.starts.partition_point(|start| *start <= value);
        self.sets.get(piece.wrapping_sub(1)).map_or(0, |set| *set as usize)
    }
}

impl Classifier {
    /// Compiles rules; their index is their rank, the first before all others.
    pub fn new(rules: &[Rule]) -> Self {
        let mut sets = Sets { rules: rules.len(), words: Vec::new(), known: HashMap::new() };
        Self {
            source_v4: sets.field(rules, |rule| v4_range(rule.source)),
            destination_v4: sets.field(rules, |rule| v4_range(rule.destination)),
            source_v6: sets.field(rules, |rule| v6_range(rule.source)),
            destination_v6: sets.field(rules, |rule| v6_range(rule.destination)),
            protocol: sets.field(rules, |rule| values(rule.protocol.map(|p| p.into()..=p.into()))),
            source_port: sets.field(rules, |rule| values(rule.source_ports.clone())),
            destination_port: sets.field(rules, |rule| values(rule.destination_ports.clone())),
            vlan: sets.field(rules, |rule| values(rule.vlan.map(|id| id..=id))),
            tcp_flags: sets.flags(rules),
            rules: rules.len(),
            chunks: sets.chunks(),
            words: sets.words,
        }
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rules == 0
    }

    /// The index of the first rule that matches.
    #[inline]
    pub fn lookup(&self, key: &Key) -> Option<u32> {
        let (source, destination) = match key.addresses {
            Addresses::V4(source, destination) => (self.source_v4.set(source), self.destination_v4.set(destination)),
            Addresses::V6(source, destination) => (self.source_v6.set(source), self.destination_v6.set(destination)),
        };
        let (source_port, destination_port) =
            key.ports.map_or((ABSENT, ABSENT), |(source, destination)| (source.into(), destination.into()));
        let sets = [
            source,
            destination,
            self.destination_port.set(destination_port),
            self.source_port.set(source_port),
            self.protocol.set(key.protocol.into()),
            self.vlan.set(key.vlan.map_or(ABSENT, u32::from)),
            self.tcp_flags.set(key.tcp_flags.map_or(ABSENT, u32::from)),
        ]
        .map(|start| self.words.get(start..start + 2 * self.chunks).unwrap_or(&[]));
        for chunk in 0..self.chunks {
            let mut filled = sets.iter().fold(u64::MAX, |filled, set| filled & set.get(chunk).unwrap_or(&0));
            if filled == 0 {
                continue;
            }
            let place = |set: &[u64]| set.get(self.chunks + chunk).map_or(0, |place| *place as usize);
            let chunks = sets.map(|set| self.words.get(place(set)..).unwrap_or(&[]));
            while filled != 0 {
                let word = filled.trailing_zeros() as usize;
                let rules = chunks.iter().fold(u64::MAX, |rules, chunk| rules & chunk.get(word).unwrap_or(&0));
                if rules != 0 {
                    return Some(((chunk * CHUNK + word) * 64) as u32 + rules.trailing_zeros());
                }
                filled &= filled - 1;
            }
        }
        None
    }
}

/// Words of a chunk: those that one word of summary is of.
const CHUNK: usize = 64;

/// The sets while they are collected.
struct Sets {
    rules: usize,
    words: Vec<u64>,
    known: HashMap<Vec<u64>, u32>,
}

/// A set while it changes.
struct Changing {
    words: Vec<u64>,
    /// What is kept of it: the summaries, and where the chunks lie.
    kept: Vec<u64>,
    /// The chunks that have changed since.
    changed: Vec<usize>,
}

impl Changing {
    fn flip(&mut self, rule: usize) {
        self.words[rule / 64] ^= 1 << (rule % 64);
        let chunk = rule / 64 / CHUNK;
        // Rules that begin or end at a place come in their order.
        if self.changed.last() != Some(&chunk) {
            self.changed.push(chunk);
        }
    }
}

impl Sets {
    fn chunks(&self) -> usize {
        self.rules.div_ceil(64 * CHUNK)
    }

    fn empty(&self) -> Changing {
        let chunks = self.chunks();
        let words = vec![0; self.rules.div_ceil(64)];
        Changing { words, kept: vec![0; 2 * chunks], changed: (0..chunks).collect() }
    }

    /// Cuts a field where the ranges of any rule begin or end. Ranges of one rule do not overlap.
    fn field<T: TryFrom<u128>>(&mut self, rules: &[Rule], range: fn(&Rule) -> Option<(u128, u128)>) -> Field<T> {
        let mut edges = Vec::new();
        for (place, rule) in rules.iter().enumerate() {
            let Some((first, last)) = range(rule) else { continue };
            edges.push((first, place));
            // A range up to the end of all numbers has no edge behind it.
            edges.extend(last.checked_add(1).map(|behind| (behind, place)));
        }
        edges.sort_unstable();
        let (mut starts, mut sets) = (Vec::new(), Vec::new());
        let mut current = self.empty();
        let mut edges = edges.into_iter().peekable();
        let mut at = Some(0);
        while let Some(position) = at {
            while let Some((_, rule)) = edges.next_if(|(edge, _)| *edge == position) {
                // The edges of a rule take turns: in, out.
                current.flip(rule);
            }
            // An edge behind the greatest value of the field begins nothing.
            let Ok(start) = T::try_from(position) else { break };
            starts.push(start);
            sets.push(self.keep(&mut current));
            at = edges.peek().map(|(edge, _)| *edge);
        }
        Field { starts, sets }
    }

    /// The field of TCP flags: few values, of which a rule takes many that are apart.
    fn flags(&mut self, rules: &[Rule]) -> Field<u32> {
        let starts: Vec<u32> = (0..=u8::MAX).map(u32::from).chain([ABSENT]).collect();
        let mut sets = Vec::new();
        for flags in &starts {
            let mut current = self.empty();
            for (place, rule) in rules.iter().enumerate() {
                let takes = |FlagMatch { mask, value }| *flags != ABSENT && *flags as u8 & mask == value;
                if rule.tcp_flags.is_none_or(takes) {
                    current.flip(place);
                }
            }
            sets.push(self.keep(&mut current));
        }
        Field { starts, sets }
    }

    /// Where a set lies as it is now.
    fn keep(&mut self, set: &mut Changing) -> u32 {
        let chunks = self.chunks();
        for chunk in set.changed.drain(..) {
            let end = set.words.len().min((chunk + 1) * CHUNK);
            let words = &set.words[chunk * CHUNK..end];
            set.kept[chunk] = words.iter().enumerate().fold(0, |bits, (at, word)| bits | u64::from(*word != 0) << at);
            set.kept[chunks + chunk] = self.intern(words).into();
        }
        self.intern(&set.kept)
    }

    /// Where words lie.
    fn intern(&mut self, words: &[u64]) -> u32 {
        if let Some(start) = self.known.get(words) {
            return *start;
        }
        let start = self.words.len() as u32;
        self.words.extend(words);
        self.known.insert(words.to_vec(), start);
        start
    }
}

fn v4_range(prefix: Option<IpNet>) -> Option<(u128, u128)> {
    match prefix {
        None => Some((0, u32::MAX.into())),
        Some(IpNet::V4(net)) => Some((u32::from(net.network()).into(), u32::from(net.broadcast()).into())),
        Some(IpNet::V6(_)) => None,
    }
}

fn v6_range(prefix: Option<IpNet>) -> Option<(u128, u128)> {
    match prefix {
        None => Some((0, u128::MAX)),
        Some(IpNet::V6(net)) => Some((net.network().into(), net.broadcast().into())),
        Some(IpNet::V4(_)) => None,
    }
}

/// Everything, "absent" included, unless a range is named; an empty range takes nothing.
fn values(range: Option<RangeInclusive<u16>>) -> Option<(u128, u128)> {
    match range {
        None => Some((0, ABSENT.into())),
        Some(range) if range.is_empty() => None,
        Some(range) => Some(((*range.start()).into(), (*range.end()).into())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: one rule after another, one field after another.
    fn first_match(rules: &[Rule], key: &Key) -> Option<u32> {
        let (source, destination): (std::net::IpAddr, std::net::IpAddr) = match key.addresses {
            Addresses::V4(a, b) => (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into()),
            Addresses::V6(a, b) => (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into()),
        };
        let matches = |rule: &Rule| {
            rule.source.is_none_or(|net| net.contains(&source))
                && rule.destination.is_none_or(|net| net.contains(&destination))
                && rule.protocol.is_none_or(|protocol| protocol == key.protocol)
                && rule.source_ports.as_ref().is_none_or(|r| key.ports.is_some_and(|p| r.contains(&p.0)))
                && rule.destination_ports.as_ref().is_none_or(|r| key.ports.is_some_and(|p| r.contains(&p.1)))
                && rule.vlan.is_none_or(|vlan| key.vlan == Some(vlan))
                && rule.tcp_flags.is_none_or(|m| key.tcp_flags.is_some_and(|flags| flags & m.mask == m.value))
        };
        rules.iter().position(matches).map(|index| index as u32)
    }

    /// Numbers close together and at the ends, so that rules and packets meet.
    fn number(max: u128) -> impl Strategy<Value = u128> {
        prop_oneof![6 => 0..6u128, 1 => (0..3u128).prop_map(move |below| max - below), 1 => 0..=max]
    }

    fn net() -> impl Strategy<Value = IpNet> {
        let len = prop_oneof![1 => Just(0u8), 3 => 28..=32u8];
        let v4 = (number(u32::MAX.into()), len.clone())
            .prop_map(|(a, len)| ipnet::Ipv4Net::new_assert(Ipv4Addr::from(a as u32), len).into());
        let v6 = (number(u128::MAX), len).prop_map(|(a, len)| {
            ipnet::Ipv6Net::new_assert(Ipv6Addr::from(a), if len == 0 { 0 } else { len + 96 }).into()
        });
        prop_oneof![v4, v6]
    }

    fn ports() -> impl Strategy<Value = RangeInclusive<u16>> {
        (number(65_535), number(65_535)).prop_map(|(a, b)| a as u16..=b as u16)
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let rarely = |p| prop::option::weighted(p, (0u8..4, any::<u8>()));
        (
            prop::option::of(net()),
            prop::option::of(net()),
            prop::option::of(0u8..3),
            (prop::option::weighted(0.3, ports()), prop::option::weighted(0.3, ports())),
            prop::option::weighted(0.2, number(4095)),
            rarely(0.2),
        )
            .prop_map(|(source, destination, protocol, (source_ports, destination_ports), vlan, flags)| Rule {
                source,
                destination,
                protocol,
                source_ports,
                destination_ports,
                vlan: vlan.map(|vlan| vlan as u16),
                tcp_flags: flags.map(|(mask, value)| FlagMatch { mask, value: value & 3 }),
            })
    }

    fn key() -> impl Strategy<Value = Key> {
        let v4 =
            (number(u32::MAX.into()), number(u32::MAX.into())).prop_map(|(a, b)| Addresses::V4(a as u32, b as u32));
        let v6 = (number(u128::MAX), number(u128::MAX)).prop_map(|(a, b)| Addresses::V6(a, b));
        (
            prop_oneof![v4, v6],
            0u8..4,
            prop::option::of((number(65_535), number(65_535))),
            prop::option::of(number(4095)),
            prop::option::of(0u8..8),
        )
            .prop_map(|(addresses, protocol, ports, vlan, tcp_flags)| Key {
                addresses,
                protocol,
                ports: ports.map(|(a, b)| (a as u16, b as u16)),
                vlan: vlan.map(|vlan| vlan as u16),
                tcp_flags,
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn the_first_match_is_found(
            rules in prop::collection::vec(rule(), 0..150),
            keys in prop::collection::vec(key(), 60),
        ) {
            let classifier = Classifier::new(&rules);
            prop_assert_eq!(classifier.len(), rules.len());
            for key in &keys {
                prop_assert_eq!(classifier.lookup(key), first_match(&rules, key));
            }
            // Rank by rank: without the rules that match first, the later ones are found.
            let mut rest = rules;
            while let Some(index) = keys.iter().find_map(|key| first_match(&rest, key)) {
                rest.drain(..=index as usize);
                let classifier = Classifier::new(&rest);
                for key in keys.iter().take(4) {
                    prop_assert_eq!(classifier.lookup(key), first_match(&rest, key));
                }
                if rest.len() < 100 { break }
            }
        }
    }

    #[test]
    fn among_many_rules_each_finds_its_own() {
        // Beyond 64 * 64 rules a set has more than one chunk.
        let rules: Vec<Rule> = (0..9_000u32)
            .map(|i| Rule {
                source: Some(ipnet::Ipv4Net::new_assert(Ipv4Addr::from(i << 8), 24).into()),
                ..Rule::default()
            })
            .collect();
        let classifier = Classifier::new(&rules);
        let key =
            |source| Key { addresses: Addresses::V4(source, 1), protocol: 6, ports: None, vlan: None, tcp_flags: None };
        for i in 0..9_000u32 {
            assert_eq!(classifier.lookup(&key(i << 8 | i & 0xff)), Some(i));
        }
        assert_eq!(classifier.lookup(&key(9_000 << 8)), None);
        // The square would be 20 MiB.
        assert!(classifier.words.len() < 1 << 20, "{} words", classifier.words.len());
    }

    #[test]
    fn no_rules_match_nothing() {
        let classifier = Classifier::new(&[]);
        assert!(classifier.is_empty());
        let addresses = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED).into();
        let key = Key { addresses, protocol: 0, ports: None, vlan: None, tcp_flags: None };
        assert_eq!(classifier.lookup(&key), None);
    }
}
