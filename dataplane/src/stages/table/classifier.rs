//! Ordered 5-tuple rules, the first that matches wins: bit-vector intersection (Lakshman and Stiliadis,
//! "High-speed policy-based packet forwarding using efficient multi-dimensional range matching", SIGCOMM 1998).
//!
//! Every field cuts its range of values at the edges of the rules; each piece knows the set of rules that take it.
//! A lookup finds one piece a field and intersects the sets, lowest rule first. The sets begin with a summary of one
//! bit for every 64 rules, so words that are empty in any of them are not read.
//!
//! Memory grows with the square of the rules: about 200 KiB a field for 1,000 that all differ in it, 20 MiB for
//! 10,000.

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
    /// Words of the summary at the front of a set.
    summary: usize,
    /// Words of a set, summary included.
    stride: usize,
    /// The sets, one behind the other; equal ones are kept once.
    sets: Vec<u64>,
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
    /// Where the set of each piece begins in [`Classifier::sets`].
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
        let words = rules.len().div_ceil(64);
        let summary = words.div_ceil(64);
        let mut sets = Sets { words, all: Vec::new(), known: HashMap::new() };
        let every =
            |range: fn(&Rule) -> Vec<(u128, u128)>| -> Vec<Vec<(u128, u128)>> { rules.iter().map(range).collect() };
        Self {
            source_v4: sets.field(&every(|rule| v4_range(rule.source))),
            destination_v4: sets.field(&every(|rule| v4_range(rule.destination))),
            source_v6: sets.field(&every(|rule| v6_range(rule.source))),
            destination_v6: sets.field(&every(|rule| v6_range(rule.destination))),
            protocol: sets.field(&every(|rule| values(rule.protocol.map(|p| p.into()..=p.into())))),
            source_port: sets.field(&every(|rule| values(rule.source_ports.clone()))),
            destination_port: sets.field(&every(|rule| values(rule.destination_ports.clone()))),
            vlan: sets.field(&every(|rule| values(rule.vlan.map(|id| id..=id)))),
            tcp_flags: sets.field(&every(|rule| flag_ranges(rule.tcp_flags))),
            rules: rules.len(),
            summary,
            stride: summary + words,
            sets: sets.all,
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
        .map(|start| self.sets.get(start..start + self.stride).unwrap_or(&[]));
        let intersect = |word: usize| sets.iter().fold(u64::MAX, |rules, set| rules & set.get(word).unwrap_or(&0));
        for block in 0..self.summary {
            let mut words = intersect(block);
            while words != 0 {
                let word = block * 64 + words.trailing_zeros() as usize;
                let rules = intersect(self.summary + word);
                if rules != 0 {
                    return Some((word * 64) as u32 + rules.trailing_zeros());
                }
                words &= words - 1;
            }
        }
        None
    }
}

/// The sets while they are collected.
struct Sets {
    words: usize,
    all: Vec<u64>,
    known: HashMap<Vec<u64>, u32>,
}

impl Sets {
    /// Cuts a field where the ranges of any rule begin or end. Ranges of one rule do not overlap.
    fn field<T: TryFrom<u128>>(&mut self, rules: &[Vec<(u128, u128)>]) -> Field<T> {
        let mut edges = Vec::new();
        for (rule, ranges) in rules.iter().enumerate() {
            for (first, last) in ranges {
                edges.push((*first, rule));
                // A range up to the end of all numbers has no edge behind it.
                edges.extend(last.checked_add(1).map(|behind| (behind, rule)));
            }
        }
        edges.sort_unstable();
        let (mut starts, mut sets) = (Vec::new(), Vec::new());
        let mut current = vec![0u64; self.words];
        let mut edges = edges.into_iter().peekable();
        let mut at = Some(0);
        while let Some(position) = at {
            while let Some((_, rule)) = edges.next_if(|(edge, _)| *edge == position) {
                // The ranges of a rule are apart, so its edges take turns: in, out, in, out.
                current[rule / 64] ^= 1 << (rule % 64);
            }
            // An edge behind the greatest value of the field begins nothing.
            let Ok(start) = T::try_from(position) else { break };
            starts.push(start);
            sets.push(self.intern(&current));
            at = edges.peek().map(|(edge, _)| *edge);
        }
        Field { starts, sets }
    }

    /// Where a set lies, with its summary in front.
    fn intern(&mut self, set: &[u64]) -> u32 {
        if let Some(start) = self.known.get(set) {
            return *start;
        }
        let start = self.all.len() as u32;
        let summary = set
            .chunks(64)
            .map(|block| block.iter().enumerate().fold(0, |bits, (at, word)| bits | u64::from(*word != 0) << at));
        self.all.extend(summary);
        self.all.extend(set);
        self.known.insert(set.to_vec(), start);
        start
    }
}

fn v4_range(prefix: Option<IpNet>) -> Vec<(u128, u128)> {
    match prefix {
        None => vec![(0, u32::MAX.into())],
        Some(IpNet::V4(net)) => vec![(u32::from(net.network()).into(), u32::from(net.broadcast()).into())],
        Some(IpNet::V6(_)) => Vec::new(),
    }
}

fn v6_range(prefix: Option<IpNet>) -> Vec<(u128, u128)> {
    match prefix {
        None => vec![(0, u128::MAX)],
        Some(IpNet::V6(net)) => vec![(net.network().into(), net.broadcast().into())],
        Some(IpNet::V4(_)) => Vec::new(),
    }
}

/// Everything, "absent" included, unless a range is named; an empty range takes nothing.
fn values(range: Option<RangeInclusive<u16>>) -> Vec<(u128, u128)> {
    match range {
        None => vec![(0, ABSENT.into())],
        Some(range) if range.is_empty() => Vec::new(),
        Some(range) => vec![((*range.start()).into(), (*range.end()).into())],
    }
}

fn flag_ranges(flags: Option<FlagMatch>) -> Vec<(u128, u128)> {
    let Some(FlagMatch { mask, value }) = flags else { return vec![(0, ABSENT.into())] };
    (0..=u8::MAX).filter(|flags| flags & mask == value).map(|flags| (flags.into(), flags.into())).collect()
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
        // Beyond 64 * 64 rules the summary has more than one word.
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
