//! Rules and the lookup keys of packets.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// A rule. All fields that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Prefix of the source address. Only matches addresses of the same family.
    pub source: Option<IpNet>,
    /// Prefix of the destination address. Only matches addresses of the same family.
    pub destination: Option<IpNet>,
    /// Protocol above IP.
    pub protocol: Option<u8>,
    /// Range of source ports. Only matches packets with ports.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Range of destination ports. Only matches packets with ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// VLAN identifier of the outer tag. Only matches tagged packets.
    pub vlan: Option<u16>,
    /// TCP flags. Only matches TCP packets.
    pub tcp_flags: Option<FlagMatch>,
}

/// TCP flags that must be set or clear. The flags of the packet that are in `mask` must equal `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlagMatch {
    /// The flags that are compared.
    pub mask: u8,
    /// The required state of the flags.
    pub value: u8,
}

/// Source and destination address of a packet, as numbers.
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

/// The lookup key of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Source and destination address.
    pub addresses: Addresses,
    /// Protocol above IP.
    pub protocol: u8,
    /// Source and destination port, or `None` if the packet has none.
    pub ports: Option<(u16, u16)>,
    /// VLAN identifier of the outer tag, 12 bits.
    pub vlan: Option<u16>,
    /// TCP flags, or `None` for other protocols.
    pub tcp_flags: Option<u8>,
}
