//! Packets and rules as words of 32 bits.
//!
//! The first word has both ports, the second all that is short, the others the addresses.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::{FlagMatch, Key, Rule};

/// Words of an IPv4 packet.
pub(super) const V4: usize = 4;
/// Words of an IPv6 packet.
pub(super) const V6: usize = 10;

/// The word of the ports: source, then destination. Of it a rule has the least and the greatest.
pub(super) const PORTS: usize = 0;
/// The word of protocol, TCP flags and VLAN, each at the bits below.
pub(super) const SHORT: usize = 1;

const FLAGS: u32 = 8;
const VLAN: u32 = 16;
/// The greatest identifier of a VLAN.
const VLAN_MAX: u16 = 0xfff;
const HAS_PORTS: u32 = 1 << 28;
const HAS_VLAN: u32 = 1 << 29;
const HAS_FLAGS: u32 = 1 << 30;
/// What no packet has, for places without a rule.
pub(super) const NOTHING: u32 = 1 << 31;

/// A rule. Of the ports, `values` has the least and `masks` the greatest; of other words, `masks` has the bits that count, and
/// `values` what they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<const W: usize> {
    pub(super) values: [u32; W],
    pub(super) masks: [u32; W],
    /// What is before it has less.
    pub(super) rank: u64,
}

#[inline]
fn ports(source: u16, destination: u16) -> u32 {
    u32::from(source) << 16 | u32::from(destination)
}

/// The words that addresses are not in.
#[inline]
fn first_words(key: &Key) -> (u32, u32) {
    let (source, destination) = key.ports.unwrap_or_default();
    let mut short = u32::from(key.protocol);
    short |= if key.ports.is_some() { HAS_PORTS } else { 0 };
    short |= key.vlan.map_or(0, |vlan| HAS_VLAN | u32::from(vlan & VLAN_MAX) << VLAN);
    short |= key.tcp_flags.map_or(0, |flags| HAS_FLAGS | u32::from(flags) << FLAGS);
    (ports(source, destination), short)
}

/// Those of an IPv4 packet: ports, what is short, source, destination.
#[inline]
pub(super) fn v4(key: &Key, source: u32, destination: u32) -> [u32; V4] {
    let (ports, short) = first_words(key);
    [ports, short, source, destination]
}

/// Those of an IPv6 packet: as of IPv4, each address in four words.
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
    /// `None`: it matches no packet of IPv4.
    pub(super) fn v4(&self, rank: u64) -> Option<Entry<V4>> {
        let address = |prefix: Option<IpNet>| match prefix {
            None => Some([0, 0]),
            Some(IpNet::V4(net)) => Some([net.network().into(), net.netmask().into()]),
            Some(IpNet::V6(_)) => None,
        };
        let (source, destination) = (address(self.source)?, address(self.destination)?);
        let [ports, short] = self.first_words()?;
        let words = [ports, short, source, destination];
        Some(Entry { values: words.map(|word| word[0]), masks: words.map(|word| word[1]), rank })
    }

    /// `None`: it matches no packet of IPv6.
    pub(super) fn v6(&self, rank: u64) -> Option<Entry<V6>> {
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
        Some(Entry { values: words(0), masks: words(1), rank })
    }

    /// Those that addresses are not in. `None`: it matches no packet.
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
