//! `icmp_error`: tells the sender of a packet why it goes no further.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;
use zerocopy::FromBytes;

use crate::header::checksum::Sum;
use crate::header::ethernet::Ethernet;
use crate::header::ipv4::{Ipv4, write_checksum};
use crate::header::ipv6::Ipv6;
use crate::header::{Header, icmp, protocol};
use crate::mem::{Batch, Edge, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Problem, Setup, Stage};
use crate::stages::forwarding::{Forwarding, Reader};
use crate::stages::parameter::Origin;
use crate::stages::responder::{Responder, is_host};
use crate::stages::table::bucket::TokenBucket;

/// Makes of a packet the ICMP or ICMPv6 error that tells its sender why it goes no further (RFC 792, RFC 1812 section
/// 4.3, RFC 4443).
///
/// The error leaves by `reply`, to go back by the port and to the station that the packet came from: it has those as egress
/// port and link address, for a `tx` stage. It comes from the address of that port. It holds as much of the packet as makes 576
/// bytes of IPv4 or 1,280 of IPv6.
///
/// No error is made about an ICMP error, about any fragment but the first, about what came to a group of stations or
/// addresses, nor to a source that is no single host; such packets are dropped as `not_told`. What is too much in a
/// second is dropped as `rate_exceeded`. With several workers each takes an equal share of the rate.
///
/// ```toml
/// [[pipeline.stage]]
/// name      = "expired"
/// use       = "icmp_error"
/// kind      = "time_exceeded"
/// outputs   = { reply = "out" }
/// addresses = [{ port = "wan", address = "192.0.2.1" }, { port = "wan", address = "2001:db8::1" }]
///
/// [[pipeline.stage]]
/// name       = "too_big"
/// use        = "icmp_error"
/// kind       = "too_big"
/// source     = "kernel"
/// per_second = 1_000
/// outputs    = { reply = "out" }
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IcmpError {
    /// Why the packet goes no further: `time_exceeded`, `reassembly_timeout`, `net_unreachable`, `host_unreachable`,
    /// `prohibited`, `too_big`, which tells the MTU of the port that the packet was to leave by, or `port_unreachable`, which
    /// is for packets to this host that nothing has taken: those that are neither UDP nor TCP have a protocol that cannot be
    /// reached.
    kind: Kind,
    /// Where the addresses of the ports come from: `config` or `kernel`.
    #[serde(default)]
    source: Origin,
    /// The addresses of the ports; without any, those that their `[[port]]` names.
    #[serde(default)]
    addresses: Vec<Address>,
    /// Errors in a second, over all workers.
    #[serde(default = "per_second")]
    per_second: u64,
    /// Errors at once, of each worker.
    #[serde(default = "burst")]
    burst: u64,
    #[serde(skip)]
    #[schemars(skip)]
    bucket: Option<TokenBucket>,
    #[serde(skip)]
    #[schemars(skip)]
    ports: Vec<Port>,
    #[serde(skip)]
    #[schemars(skip)]
    reader: Option<Reader>,
    /// This host, as far as the config knows it.
    #[serde(skip)]
    #[schemars(skip)]
    hosts: Option<Responder>,
    /// Tells errors of IPv4 apart.
    #[serde(skip)]
    #[schemars(skip)]
    identification: u16,
}

fn per_second() -> u64 {
    1000
}

fn burst() -> u64 {
    50
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// It has no hop left.
    TimeExceeded,
    /// Its other fragments did not come in time.
    ReassemblyTimeout,
    /// There is no route.
    NetUnreachable,
    /// The last router cannot reach the host.
    HostUnreachable,
    /// An administrator forbids it.
    Prohibited,
    /// It does not fit on the next link.
    TooBig,
    /// Nobody on this host takes it.
    PortUnreachable,
}

impl Kind {
    /// Type and code of ICMP (RFC 792, RFC 1812 section 5.2.7.1).
    const fn v4(self) -> (u8, u8) {
        match self {
            Self::TimeExceeded => (icmp::TIME_EXCEEDED, 0),
            Self::ReassemblyTimeout => (icmp::TIME_EXCEEDED, 1),
            Self::NetUnreachable => (icmp::UNREACHABLE, 0),
            Self::HostUnreachable => (icmp::UNREACHABLE, 1),
            Self::Prohibited => (icmp::UNREACHABLE, 13),
            Self::TooBig => (icmp::UNREACHABLE, 4),
            Self::PortUnreachable => (icmp::UNREACHABLE, 3),
        }
    }

    /// Type and code of ICMPv6 (RFC 4443).
    const fn v6(self) -> (u8, u8) {
        match self {
            Self::TimeExceeded => (icmp::V6_TIME_EXCEEDED, 0),
            Self::ReassemblyTimeout => (icmp::V6_TIME_EXCEEDED, 1),
            Self::NetUnreachable => (icmp::V6_UNREACHABLE, 0),
            Self::HostUnreachable => (icmp::V6_UNREACHABLE, 3),
            Self::Prohibited => (icmp::V6_UNREACHABLE, 1),
            Self::TooBig => (icmp::V6_PACKET_TOO_BIG, 0),
            Self::PortUnreachable => (icmp::V6_UNREACHABLE, 4),
        }
    }
}

/// An address of a port.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Address {
    /// The port.
    port: String,
    /// Its IPv4 or IPv6 address.
    address: IpAddr,
}

/// What is known of a port.
#[derive(Clone, Copy, Debug)]
struct Port {
    mtu: u32,
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Port {
    /// Takes the first address of each kind; of IPv6 one that is known beyond the link, if there is one.
    fn speak_with(&mut self, addresses: &[IpNet]) {
        let of = |wanted: fn(&IpAddr) -> bool| addresses.iter().map(IpNet::addr).find(wanted);
        self.v4 = of(IpAddr::is_ipv4);
        let beyond = of(|address| matches!(address, IpAddr::V6(address) if !address.is_unicast_link_local()));
        self.v6 = beyond.or_else(|| of(IpAddr::is_ipv6));
    }
}

const REPLY: Edge = Edge::new(0);
const NOT_TOLD: Reason = Reason::own(0);
const NO_ADDRESS: Reason = Reason::own(1);

/// The most of an error (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4 c), in bytes from its IP header on.
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;
/// The hop limit of what this host sends.
const TTL: u8 = 64;
/// Internetwork control (RFC 1812, section 4.3.2.5), as class selector 6 of RFC 2474.
const TOS: u8 = 0xc0;

impl Stage for IcmpError {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let now = ctx.now.0.saturating_sub(ctx.start.0);
        for mut packet in batch.iter_mut() {
            match self.tell(&mut packet, now) {
                Ok(()) => packet.steer(REPLY),
                Err(reason) => packet.drop(reason),
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("reply", "errors, for the port that the packet came in by")]
    }

    fn is_terminal() -> bool {
        true
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[
            ("not_told", "no error is made about such a packet (RFC 1812, section 4.3.2.7; RFC 4443, section 2.4 e)"),
            ("no_address", "the port that it came in by has no address to tell it from"),
        ]
    }

    fn needs(&self) -> Facts {
        let egress = if self.kind == Kind::TooBig { Facts::EGRESS } else { Facts::empty() };
        Facts::HEADERS | egress
    }

    fn sets_on(&self, _output: usize) -> Facts {
        Facts::EGRESS
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(reader) = &self.reader {
            reader.pass();
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let ports = setup.ports().iter().map(|port| Port { mtu: u32::from(port.mtu), v4: None, v6: None });
        self.ports = ports.collect();
        if self.per_second == 0 || self.burst == 0 {
            let key = if self.burst == 0 { "burst" } else { "per_second" };
            return Err(Problem::at(key, "0 lets no error through").help("let the packets end in a drop instead"));
        }
        let (worker, workers) = setup.worker();
        // The remainder goes to the first workers, one each.
        let share = self.per_second / workers as u64 + u64::from((worker as u64) < self.per_second % workers as u64);
        self.bucket = Some(TokenBucket::new(share, self.burst, 0));
        match self.source {
            Origin::Kernel if !self.addresses.is_empty() => {
                let problem = Problem::at("source", "the kernel's addresses alone, or those of the config");
                return Err(problem.help("take addresses out, or source"));
            }
            Origin::Kernel => self.reader = Some(Forwarding::of(setup).join()),
            Origin::Config if self.addresses.is_empty() => {
                for (port, info) in self.ports.iter_mut().zip(setup.ports()) {
                    port.speak_with(&info.addresses);
                }
                if self.ports.iter().all(|port| port.v4.is_none() && port.v6.is_none()) {
                    let problem = Problem::at("addresses", "there is none to tell errors from");
                    return Err(
                        problem.help("list one of each port, here or in its [[port]], or set source = \"kernel\"")
                    );
                }
            }
            Origin::Config => {}
        }
        self.hosts = Responder::new(&[], |_| true, None, None, setup).ok();
        if self.kind == Kind::PortUnreachable && (self.reader.is_some() || self.hosts.is_none()) {
            let problem = Problem::at("kind", "packets for this host are the kernel's, or no port has an address");
            return Err(problem.help("add addresses = [\"192.0.2.1/24\"] to a [[port]], and take source out"));
        }
        for (place, entry) in self.addresses.iter().enumerate() {
            let port = setup.port(&entry.port, &format!("addresses[{place}].port"))?;
            let problem = |message| Problem::at(format!("addresses[{place}].address"), message);
            if !is_host(entry.address) {
                return Err(problem(format!("{} is not the address of a single host", entry.address)));
            }
            let Some(port) = self.ports.get_mut(usize::from(port)) else { continue };
            let known = if entry.address.is_ipv4() { &mut port.v4 } else { &mut port.v6 };
            if let Some(known) = known.replace(entry.address) {
                let message = format!("`{}` speaks with {known} already", entry.port);
                return Err(problem(message).help("name one of IPv4 and one of IPv6 for a port"));
            }
        }
        Ok(())
    }
}

impl IcmpError {
    /// Makes an error of a packet.
    fn tell(&mut self, packet: &mut Packet<'_>, now: u64) -> Result<(), Reason> {
        let v6 = packet.meta().flags.contains(MetaFlags::IPV6);
        if !may_be_told(packet, self.kind, self.hosts.as_ref()) {
            return Err(NOT_TOLD);
        }
        let (ingress, egress) = (packet.ingress(), packet.meta().egress);
        let of = |port: u8| self.ports.get(usize::from(port));
        let address = match &self.reader {
            Some(reader) => reader.address(ingress, v6),
            None => of(ingress).and_then(|port| if v6 { port.v6 } else { port.v4 }),
        };
        let own = address.ok_or(NO_ADDRESS)?;
        let rest = match (self.kind, &self.reader) {
            (Kind::TooBig, Some(reader)) => reader.mtu(egress).unwrap_or(0),
            (Kind::TooBig, None) => of(egress).map_or(0, |port| port.mtu),
            _ => 0,
        };
        if !self.bucket.as_mut().is_some_and(|bucket| bucket.take(now, 1)) {
            return Err(Reason::RateExceeded);
        }
        let (kind, code) = if v6 { self.kind.v6() } else { self.kind.v4() };
        let (kind, code, rest) = match self.kind {
            Kind::PortUnreachable if !matches!(packet.meta().protocol, protocol::UDP | protocol::TCP) => {
                // RFC 4443, section 3.4: where the protocol is named, in bytes from the IP header on.
                if v6 { (icmp::V6_PARAMETER_PROBLEM, 1, 6) } else { (icmp::UNREACHABLE, 2, 0) }
            }
            _ => (kind, code, rest),
        };
        let head = IcmpHead { kind, code, rest };
        match own {
            IpAddr::V4(own) => {
                self.identification = self.identification.wrapping_add(1);
                wrap_v4(packet, own.octets(), head, self.identification)
            }
            IpAddr::V6(own) => wrap_v6(packet, own.octets(), head),
        }
        .ok_or(Reason::NoHeadroom)?;
        let meta = packet.meta_mut();
        (meta.egress, meta.next_hop) = (ingress, 0);
        Ok(())
    }
}

/// The first eight bytes of an error.
struct IcmpHead {
    kind: u8,
    code: u8,
    /// The MTU, or 0.
    rest: u32,
}

impl IcmpHead {
    const LEN: usize = 8;

    fn bytes(&self, checksum: u16) -> [u8; Self::LEN] {
        let ([high, low], [a, b, c, d]) = (checksum.to_be_bytes(), self.rest.to_be_bytes());
        [self.kind, self.code, high, low, a, b, c, d]
    }
}

/// Whether the sender of a packet is to be told anything.
fn may_be_told(packet: &Packet<'_>, kind: Kind, hosts: Option<&Responder>) -> bool {
    let meta = packet.meta();
    let flags = meta.flags;
    if flags.contains(MetaFlags::FRAGMENT) && !flags.contains(MetaFlags::FIRST_FRAGMENT) {
        return false;
    }
    let Ok(link) = Ethernet::view(packet.data()) else { return false };
    let Some(datagram) = packet.data().get(usize::from(meta.l3)..usize::from(meta.end)) else { return false };
    let message = packet.data().get(usize::from(meta.l4)..).and_then(|bytes| bytes.first());
    let message = message.filter(|_| meta.l4 != 0).copied();
    // A group may be told that it is too big for (RFC 4443, section 2.4 e.3): path MTU discovery needs it.
    let groups = kind == Kind::TooBig && flags.contains(MetaFlags::IPV6);
    if link.source.is_multicast() || link.destination.is_multicast() && !groups {
        return false;
    }
    if flags.contains(MetaFlags::IPV4) {
        let Ok(ip) = Ipv4::view(datagram) else { return false };
        // Of an ICMP message that was cut off nobody knows whether it is an error.
        let error = || message.is_none_or(|kind| !matches!(kind, icmp::ECHO_REQUEST | icmp::ECHO_REPLY | 13..=18));
        let source = ip.source_addr();
        let host = is_host(source.into()) && source.octets()[0] < 240;
        let known = hosts.is_none_or(|hosts| {
            let here = hosts.has_v4(&ip.destination) || kind != Kind::PortUnreachable;
            let both = hosts.may_ask_v4(source) && hosts.may_ask_v4(ip.destination_addr());
            here && both && !hosts.has_v4(&ip.source)
        });
        let message = ip.protocol == protocol::ICMP && (error() || kind == Kind::PortUnreachable);
        host && known && is_host(ip.destination_addr().into()) && !message
    } else if flags.contains(MetaFlags::IPV6) {
        let Ok(ip) = Ipv6::view(datagram) else { return false };
        // Types below 128 are errors (RFC 4443, section 2.1); a redirect is as good as one.
        let error = || message.is_none_or(|kind| kind < 128 || kind == 137);
        let source = ip.source_addr();
        let known = hosts.is_none_or(|hosts| {
            // Where an extension header names the protocol is not looked for.
            let here = hosts.has_v6(&ip.destination) && (ip.next_header == meta.protocol);
            (here || kind != Kind::PortUnreachable) && !hosts.has_v6(&ip.source)
        });
        let to = groups || !ip.destination_addr().is_multicast();
        let message = meta.protocol == protocol::ICMPV6 && (error() || kind == Kind::PortUnreachable);
        is_host(source.into()) && known && to && !message
    } else {
        false
    }
}

/// Puts the headers of an error in front of the datagram, which is cut, and the link header in front of those. Gives the
/// source of the datagram back, with the bytes from the error's IP header on.
fn open<'p>(packet: &'p mut Packet<'_>, headers: usize, most: usize) -> Option<&'p mut [u8]> {
    let (l3, end) = (usize::from(packet.meta().l3), usize::from(packet.meta().end));
    packet.truncate(end.min(l3 + most - headers));
    packet.prepend(headers)?;
    let bytes = packet.data_mut();
    bytes.copy_within(headers..headers + l3, 0);
    let link = Ethernet::mut_from_prefix(bytes).ok()?.0;
    std::mem::swap(&mut link.source, &mut link.destination);
    let len = packet.len();
    let meta = packet.meta_mut();
    (meta.l3, meta.l4, meta.end) = (l3 as u16, (l3 + headers - IcmpHead::LEN) as u16, len as u16);
    meta.flags -= MetaFlags::FRAGMENT | MetaFlags::FIRST_FRAGMENT;
    meta.flags |= MetaFlags::L4;
    packet.data_mut().get_mut(l3..)
}

fn wrap_v4(packet: &mut Packet<'_>, own: [u8; 4], head: IcmpHead, identification: u16) -> Option<()> {
    const HEADERS: usize = Ipv4::LEN + IcmpHead::LEN;
    let bytes = open(packet, HEADERS, MOST_V4)?;
    let total = bytes.len() as u16;
    let (ip, message) = bytes.split_at_mut_checked(Ipv4::LEN)?;
    let (error, datagram) = message.split_at_mut_checked(IcmpHead::LEN)?;
    let source = Ipv4::view(datagram).ok()?.source;
    let sum = Sum::default().bytes(&head.bytes(0)).bytes(datagram).checksum();
    error.copy_from_slice(&head.bytes(sum));
    let ip = Ipv4::mut_from_prefix(ip).ok()?.0;
    (ip.version_ihl, ip.tos, ip.ttl, ip.protocol) = (0x45, TOS, TTL, protocol::ICMP);
    (ip.source, ip.destination) = (own, source);
    ip.total_length.set(total);
    ip.identification.set(identification);
    ip.fragment.set(0);
    write_checksum(bytes).ok()?;
    packet.meta_mut().protocol = protocol::ICMP;
    Some(())
}

fn wrap_v6(packet: &mut Packet<'_>, own: [u8; 16], head: IcmpHead) -> Option<()> {
    const HEADERS: usize = Ipv6::LEN + IcmpHead::LEN;
    let bytes = open(packet, HEADERS, MOST_V6)?;
    let (ip, message) = bytes.split_at_mut_checked(Ipv6::LEN)?;
    let length = message.len();
    let (error, datagram) = message.split_at_mut_checked(IcmpHead::LEN)?;
    let source = Ipv6::view(datagram).ok()?.source;
    let sum = Sum::default().pseudo_ipv6(&own, &source, protocol::ICMPV6, length as u32);
    let sum = sum.bytes(&head.bytes(0)).bytes(datagram).checksum();
    error.copy_from_slice(&head.bytes(sum));
    let ip = Ipv6::mut_from_prefix(ip).ok()?.0;
    ip.version_class_flow.set(6 << 28 | u32::from(TOS) << 20);
    ip.payload_length.set(length as u16);
    (ip.next_header, ip.hop_limit) = (protocol::ICMPV6, TTL);
    (ip.source, ip.destination) = (own, source);
    packet.meta_mut().protocol = protocol::ICMPV6;
    Some(())
}

#[cfg(test)]
mod tests;
