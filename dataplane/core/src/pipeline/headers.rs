//! Access to the headers of a parsed packet.

use crate::header::ethernet::Ethernet;
use crate::header::icmp::Icmp;
use crate::header::ipv4::Ipv4;
use crate::header::ipv6::Ipv6;
use crate::header::tcp::Tcp;
use crate::header::udp::Udp;
use crate::header::{Header, protocol};
use crate::mem::{MetaFlags, Packet};

/// Access to the headers of a packet that went through the stage `parse` ([`crate::pipeline::Facts::HEADERS`]). A
/// method returns `None` if the packet does not have the header.
pub trait Headers {
    /// Returns the Ethernet header. The packet need not be parsed.
    fn ethernet(&self) -> Option<&Ethernet>;
    /// Returns the Ethernet header for writing.
    fn ethernet_mut(&mut self) -> Option<&mut Ethernet>;
    /// Returns the IPv4 header, without options.
    fn ipv4(&self) -> Option<&Ipv4>;
    /// Returns the IPv4 header for writing. The caller must keep the checksum correct.
    fn ipv4_mut(&mut self) -> Option<&mut Ipv4>;
    /// Returns the IPv6 header, without extension headers.
    fn ipv6(&self) -> Option<&Ipv6>;
    /// Returns the IPv6 header for writing.
    fn ipv6_mut(&mut self) -> Option<&mut Ipv6>;
    /// Returns the TCP header, without options. If a datagram is fragmented, only the first fragment has this header.
    fn tcp(&self) -> Option<&Tcp>;
    /// Returns the UDP header. If a datagram is fragmented, only the first fragment has this header.
    fn udp(&self) -> Option<&Udp>;
    /// Returns the ICMP or ICMPv6 header. If a datagram is fragmented, only the first fragment has this header.
    fn icmp(&self) -> Option<&Icmp>;
}

impl Headers for Packet<'_> {
    #[inline]
    fn ethernet(&self) -> Option<&Ethernet> {
        Ethernet::view(self.data()).ok()
    }

    #[inline]
    fn ethernet_mut(&mut self) -> Option<&mut Ethernet> {
        Ethernet::view_mut(self.data_mut()).ok()
    }

    #[inline]
    fn ipv4(&self) -> Option<&Ipv4> {
        network(self, MetaFlags::IPV4)
    }

    #[inline]
    fn ipv4_mut(&mut self) -> Option<&mut Ipv4> {
        network_mut(self, MetaFlags::IPV4)
    }

    #[inline]
    fn ipv6(&self) -> Option<&Ipv6> {
        network(self, MetaFlags::IPV6)
    }

    #[inline]
    fn ipv6_mut(&mut self) -> Option<&mut Ipv6> {
        network_mut(self, MetaFlags::IPV6)
    }

    #[inline]
    fn tcp(&self) -> Option<&Tcp> {
        transport(self, &[protocol::TCP])
    }

    #[inline]
    fn udp(&self) -> Option<&Udp> {
        transport(self, &[protocol::UDP])
    }

    #[inline]
    fn icmp(&self) -> Option<&Icmp> {
        transport(self, &[protocol::ICMP, protocol::ICMPV6])
    }
}

#[inline]
fn network<'p, H: Header>(packet: &'p Packet<'_>, flag: MetaFlags) -> Option<&'p H> {
    let at = packet.meta().flags.contains(flag).then_some(usize::from(packet.meta().l3))?;
    H::view(packet.data().get(at..)?).ok()
}

#[inline]
fn network_mut<'p, H: Header>(packet: &'p mut Packet<'_>, flag: MetaFlags) -> Option<&'p mut H> {
    let at = packet.meta().flags.contains(flag).then_some(usize::from(packet.meta().l3))?;
    H::view_mut(packet.data_mut().get_mut(at..)?).ok()
}

#[inline]
fn transport<'p, H: Header>(packet: &'p Packet<'_>, protocols: &[u8]) -> Option<&'p H> {
    let meta = packet.meta();
    let present = meta.flags.contains(MetaFlags::L4) && protocols.contains(&meta.protocol);
    H::view(packet.data().get(usize::from(meta.l4)..).filter(|_| present)?).ok()
}
