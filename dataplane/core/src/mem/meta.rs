//! The metadata of a packet, which stages write for later stages.

use bitflags::bitflags;

bitflags! {
    /// Protocols and headers that the stage `parse` found in a packet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MetaFlags: u8 {
        /// An IPv4 header at `l3`.
        const IPV4 = 1;
        /// An IPv6 header at `l3`.
        const IPV6 = 1 << 1;
        /// An ARP packet at `l3`.
        const ARP = 1 << 2;
        /// The packet is a fragment, the first or a later one.
        const FRAGMENT = 1 << 3;
        /// The packet is the first fragment of a datagram.
        const FIRST_FRAGMENT = 1 << 4;
        /// The complete TCP, UDP, ICMP or ICMPv6 header is at `l4`.
        const L4 = 1 << 5;
        /// One or more VLAN tags.
        const VLAN = 1 << 6;
        /// Two VLAN tags.
        const QINQ = 1 << 7;
    }
}

/// The colour that a meter gave a packet (RFC 2697, RFC 2698).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Colour {
    /// Within the committed rate.
    #[default]
    Green,
    /// Above the committed rate, but within the excess burst or the peak rate.
    Yellow,
    /// Above all limits.
    Red,
}

/// Properties of a packet that stages write for later stages. A field is valid only after a stage has set the field.
/// Each stage declares with `Facts` which fields it sets and needs. `Program::check` verifies the order of the stages.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Meta {
    /// Offset of the network header from the start of the packet, in bytes.
    pub l3: u16,
    /// Offset of the transport header from the start of the packet, in bytes. 0 if no transport header was found.
    pub l4: u16,
    /// EtherType after all VLAN tags.
    pub ether_type: u16,
    /// Tag control information of the outer VLAN tag. Valid if [`MetaFlags::VLAN`] is set.
    pub vlan: u16,
    /// Offset of the end of the IP datagram from the start of the packet, in bytes. All bytes after the datagram are
    /// padding.
    pub end: u16,
    /// Protocols and headers that were found.
    pub flags: MetaFlags,
    /// IP protocol after all extension headers.
    pub protocol: u8,
    /// The index of the port that sends the packet.
    pub egress: u8,
    /// Colour that a meter gave the packet.
    pub colour: Colour,
    /// Free for use by the stages of an app.
    pub user: u16,
    /// Next hop: a number from `Setup::next_hops`. 0 means that the destination itself is the next hop.
    pub next_hop: u32,
    /// Hash of addresses and ports. The hash is equal for all packets of a flow.
    pub flow_hash: u32,
}

/// The length of an Ethernet header without tags, in bytes.
const ETHERNET_LEN: u16 = 14;

impl Meta {
    /// Returns `true` if an IPv4 header directly follows the Ethernet header.
    #[inline]
    pub fn is_untagged_ipv4(&self) -> bool {
        self.l3 == ETHERNET_LEN && self.flags.contains(MetaFlags::IPV4)
    }
}
