//! Converts the lookup keys of packets and the rules to 32-bit words.
//!
//! The first word contains both ports. The second word contains the protocol, the TCP flags and the VLAN (the short
//! fields). The other words contain the addresses.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::rule::{FlagMatch, Key, Rule};

/// The number of words of an IPv4 packet.
pub(super) const V4: usize = 4;
/// The number of words of an IPv6 packet.
pub(super) const V6: usize = 10;

/// The index of the word with the ports: source, then destination. For a rule, there are two such words: the lowest
/// ports and the highest ports.
pub(super) const PORTS: usize = 0;
/// The index of the word with protocol, TCP flags and VLAN, at the bit offsets below.
pub(super) const SHORT: usize = 1;

const FLAGS: u32 = 8;
const VLAN: u32 = 16;
/// The largest VLAN identifier.
const VLAN_MAX: u16 = 0xfff;
const HAS_PORTS: u32 = 1 << 28;
const HAS_VLAN: u32 = 1 << 29;
const HAS_FLAGS: u32 = 1 << 30;
/// A bit that no packet sets. A leaf of the decision tree has room for eight rules. The unused places of a leaf require
/// this bit, so these places match no packet.
pub(super) const NO_PACKET: u32 = 1 << 31;

/// A rule. For the ports, `values` has the lowest and `masks` the highest values. For the other words, `masks` has the
/// bits to compare, and `values` their required values.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleEntry<const W: usize> {
    pub(super) values: [u32; W],
    pub(super) masks: [u32; W],
    /// Rank of the rule. The matching rule with the lowest rank takes precedence.
    pub(super) rank: u64,
}

#[inline]
fn ports(source: u16, destination: u16) -> u32 {
    u32::from(source) << 16 | u32::from(destination)
}

/// Returns the words of the ports and of the short fields.
#[inline]
fn first_words(key: &Key) -> (u32, u32) {
    let (source, destination) = key.ports.unwrap_or_default();
    let mut short = u32::from(key.protocol);
    short |= if key.ports.is_some() { HAS_PORTS } else { 0 };
    short |= key.vlan.map_or(0, |vlan| HAS_VLAN | u32::from(vlan & VLAN_MAX) << VLAN);
    short |= key.tcp_flags.map_or(0, |flags| HAS_FLAGS | u32::from(flags) << FLAGS);
    (ports(source, destination), short)
}

/// Returns the words of an IPv4 packet: ports, short fields, source, destination.
#[inline]
pub(super) fn v4(key: &Key, source: u32, destination: u32) -> [u32; V4] {
    let (ports, short) = first_words(key);
    [ports, short, source, destination]
}

/// Returns the words of an IPv6 packet: like IPv4, with four words per address.
#[inline]
pub(super) fn v6(key: &Key, source: u128, destination: u128) -> [u32; V6] {
    let (ports, short) = first_words(key);
    let ([a, b, c, d], [e, f, g, h]) = (split(source), split(destination));
    [ports, short, a, b, c, d, e, f, g, h]
}

#[inline]
fn split(address: u128) -> [u32; 4] {
    [(address >> 96) as u32, (address >> 64) as u32, (address >> 32) as u32, address as u32]
}

impl Rule {
    /// Returns the words of the rule for IPv4, or `None` if the rule matches no IPv4 packet.
    pub(super) fn v4(&self, rank: u64) -> Option<RuleEntry<V4>> {
        let address = |prefix: Option<IpNet>| match prefix {
            None => Some([0, 0]),
            Some(IpNet::V4(net)) => Some([net.network().into(), net.netmask().into()]),
            Some(IpNet::V6(_)) => None,
        };
        let (source, destination) = (address(self.source)?, address(self.destination)?);
        let [ports, short] = self.first_words()?;
        let words = [ports, short, source, destination];
        Some(RuleEntry { values: words.map(|word| word[0]), masks: words.map(|word| word[1]), rank })
    }

    /// Returns the words of the rule for IPv6, or `None` if the rule matches no IPv6 packet.
    pub(super) fn v6(&self, rank: u64) -> Option<RuleEntry<V6>> {
        let address = |prefix: Option<IpNet>| match prefix {
            None => Some([[0; 4]; 2]),
            Some(IpNet::V6(net)) => Some([split(net.network().into()), split(net.netmask().into())]),
            Some(IpNet::V4(_)) => None,
        };
        let (source, destination) = (address(self.source)?, address(self.destination)?);
        let [ports, short] = self.first_words()?;
        let words = |side: usize| {
            let ([a, b, c, d], [e, f, g, h]) = (source[side], destination[side]);
            [ports[side], short[side], a, b, c, d, e, f, g, h]
        };
        Some(RuleEntry { values: words(0), masks: words(1), rank })
    }

    /// Returns the words of the ports and of the short fields, or `None` if the rule matches no packet.
    fn first_words(&self) -> Option<[[u32; 2]; 2]> {
        let (mut value, mut mask) = (0, 0);
        let mut must = |has: u32, bits: u32, of: u32| {
            mask |= has | bits;
            value |= has | of;
        };
        if self.source_ports.is_some() || self.destination_ports.is_some() {
            must(HAS_PORTS, 0, 0);
        }
        if let Some(protocol) = self.protocol {
            must(0, 0xff, protocol.into());
        }
        if let Some(vlan) = self.vlan {
            if vlan > VLAN_MAX {
                return None;
            }
            must(HAS_VLAN, u32::from(VLAN_MAX) << VLAN, u32::from(vlan) << VLAN);
        }
        if let Some(FlagMatch { mask, value }) = self.tcp_flags {
            if value & !mask != 0 {
                return None;
            }
            must(HAS_FLAGS, u32::from(mask) << FLAGS, u32::from(value) << FLAGS);
        }
        let range = |range: &Option<RangeInclusive<u16>>| match range {
            None => Some((0, u16::MAX)),
            Some(range) => (!range.is_empty()).then_some((*range.start(), *range.end())),
        };
        let (source, destination) = (range(&self.source_ports)?, range(&self.destination_ports)?);
        Some([[ports(source.0, destination.0), ports(source.1, destination.1)], [value, mask]])
    }
}
