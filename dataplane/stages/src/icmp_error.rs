//! `icmp_error`: sends an ICMP error to the sender of a packet.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;
use zerocopy::FromBytes;

mod host_limit;

use crate::forwarding::ForwardingReader;
use crate::kernel;
use crate::parameter::{Origin, rate_share};
use crate::responder::{Responder, is_host};
use dataplane_core::header::checksum::Sum;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::ipv4::{Ipv4, write_checksum};
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::header::{Header, icmp, protocol};
use dataplane_core::mem::{Batch, Edge, MetaFlags, Packet, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Facts, HeldPackets, Problem, Setup, Stage, StageInfo, StateTransfer};
use dataplane_tables::bucket::TokenBucket;
use host_limit::HostLimit;

/// Turns a packet into the ICMP or ICMPv6 error for its sender (RFC 792, RFC 1812 section 4.3, RFC 4443).
///
/// The error leaves by the output `reply`. The stage sets the ingress port as egress port and swaps the MAC addresses,
/// so that a later `tx` stage sends the error back to the sender. The source address of the error is the address of the
/// ingress port. The error quotes the start of the packet. An IPv4 error has at most 576 bytes, and an IPv6 error has
/// at most 1,280 bytes.
///
/// The stage sends no error for these packets, and drops them as `no_error_allowed`: ICMP errors, fragments other than
/// the first, packets whose source address does not identify a single host, and packets to a multicast or broadcast
/// address. Only a stage with the kind `too_big` sends errors for IPv6 packets to a multicast address.
///
/// Two rates limit the errors. `per_host` limits the errors to each IPv4 host and to each IPv6 network with a 64-bit
/// prefix. Errors above this rate are dropped as `host_rate_exceeded`. A host that causes many errors therefore does
/// not reduce the errors to other hosts. `per_second` limits the errors to all hosts together. Errors above this rate
/// are dropped as `rate_exceeded`. With several workers, each worker gets an equal share of `per_second`, but at least
/// one error per second. `per_host` is not divided, so each worker can send `per_host` errors per second to a host. A
/// worker tracks 4,096 hosts. With more hosts, a host may get more errors than `per_host` allows, up to `per_second`.
///
/// ```toml
/// [[pipeline.stage]]
/// use     = "ttl"
/// outputs = { expired = "expired" }
///
/// [[pipeline.stage]]
/// name  = "routes"
/// use   = "route"
/// table = [{ prefix = "0.0.0.0/0", port = "wan" }]
///
/// [[pipeline.stage]]
/// use     = "fragment"
/// outputs = { too_big = "too_big" }
/// next    = "out"
///
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
/// per_host   = 20
/// burst      = 100
/// outputs    = { reply = "out" }
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IcmpError {
    /// The reason for the error: `time_exceeded`, `reassembly_timeout`, `net_unreachable`, `host_unreachable`,
    /// `prohibited`, `too_big` or `port_unreachable`. `too_big` reports the MTU of the packet's egress port.
    /// `port_unreachable` is for packets to this host that no earlier stage handled. With `port_unreachable`, packets
    /// other than UDP and TCP get the error for an unreachable protocol. No default.
    kind: ErrorKind,
    /// Where the addresses and MTUs of the ports come from: `config` or `kernel`. Default: `config`.
    #[serde(default)]
    source: Origin,
    /// The addresses to send errors from, at most one IPv4 and one IPv6 address for each port. Default: for each port,
    /// the first IPv4 address and the first IPv6 address of the key `addresses` in `[[port]]`. A link-local IPv6
    /// address is used only if the port has no other IPv6 address.
    #[serde(default)]
    addresses: Vec<PortAddress>,
    /// The maximum number of errors per second, for all workers together. At least 1. Default: 1,000.
    #[serde(default = "per_second")]
    per_second: u64,
    /// The maximum number of errors per second to one host, for each worker. At least 1. Default: 50.
    #[serde(default = "per_host")]
    per_host: u64,
    /// The maximum number of errors that each worker can send in one burst, even if the burst exceeds `per_second`. At
    /// least 1. At most a fifth of a burst goes to one host. Default: 50.
    #[serde(default = "burst")]
    burst: u64,
    #[serde(skip)]
    #[schemars(skip)]
    bucket: Option<TokenBucket>,
    #[serde(skip)]
    #[schemars(skip)]
    host_limit: Option<HostLimit>,
    #[serde(skip)]
    #[schemars(skip)]
    ports: Vec<Port>,
    #[serde(skip)]
    #[schemars(skip)]
    reader: Option<ForwardingReader>,
    /// The addresses of this host, from the config.
    #[serde(skip)]
    #[schemars(skip)]
    hosts: Option<Responder>,
    /// The IPv4 identification of the latest error.
    #[serde(skip)]
    #[schemars(skip)]
    identification: u16,
}

fn per_second() -> u64 {
    1000
}

fn per_host() -> u64 {
    50
}

fn burst() -> u64 {
    50
}

/// The reason for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ErrorKind {
    /// The TTL or hop limit of the packet is used up.
    TimeExceeded,
    /// Some fragments did not arrive in time.
    ReassemblyTimeout,
    /// There is no route.
    NetUnreachable,
    /// The last router on the path cannot reach the host.
    HostUnreachable,
    /// An administrator forbids the packet.
    Prohibited,
    /// The packet exceeds the MTU of the next link.
    TooBig,
    /// Nothing on this host accepts the packet.
    PortUnreachable,
}

impl ErrorKind {
    /// Returns the ICMP type and code (RFC 792, RFC 1812 section 5.2.7.1).
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

    /// Returns the ICMPv6 type and code (RFC 4443).
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
struct PortAddress {
    /// The name of the port.
    port: String,
    /// The IPv4 or IPv6 address of the port, which must be the address of a single host.
    address: IpAddr,
}

/// The MTU and the addresses of a port.
#[derive(Clone, Copy, Debug)]
struct Port {
    mtu: u32,
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
}

impl Port {
    /// Selects the first IPv4 address and the first IPv6 address. Prefers an IPv6 address that is not link-local.
    fn set_addresses(&mut self, addresses: &[IpNet]) {
        let of = |wanted: fn(&IpAddr) -> bool| addresses.iter().map(IpNet::addr).find(wanted);
        self.v4 = of(IpAddr::is_ipv4);
        let beyond = of(|address| matches!(address, IpAddr::V6(address) if !address.is_unicast_link_local()));
        self.v6 = beyond.or_else(|| of(IpAddr::is_ipv6));
    }
}

const REPLY: Edge = Edge::new(0);
const NO_ERROR_ALLOWED: Reason = Reason::of_stage(0);
const NO_ADDRESS: Reason = Reason::of_stage(1);
const HOST_RATE_EXCEEDED: Reason = Reason::of_stage(2);

/// The maximum length of an error in bytes, including its IP header (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4
/// c).
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;
/// The burst size for all hosts divided by the burst size for one host.
const HOST_SHARE: u64 = 5;
/// The TTL or hop limit of errors.
const TTL: u8 = 64;
/// The type of service of errors: internetwork control (RFC 1812, section 4.3.2.5), which is class selector 6 of RFC
/// 2474.
const TOS: u8 = 0xc0;

impl Stage for IcmpError {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let now = ctx.now.0.saturating_sub(ctx.start.0);
        for mut packet in batch.iter_mut() {
            match self.build_error(&mut packet, now) {
                Ok(()) => packet.steer(REPLY),
                Err(reason) => packet.drop(reason),
            }
        }
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(reader) = &self.reader {
            reader.mark_quiescent();
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let ports = setup.ports().iter().map(|port| Port { mtu: u32::from(port.mtu), v4: None, v6: None });
        self.ports = ports.collect();
        let limits = [("burst", self.burst), ("per_second", self.per_second), ("per_host", self.per_host)];
        if let Some((key, _)) = limits.into_iter().find(|(_, limit)| *limit == 0) {
            return Err(Problem::at(key, "0 allows no error").help("use a `drop` stage instead"));
        }
        self.bucket = Some(TokenBucket::new(rate_share(self.per_second, setup.worker_and_count()), self.burst, 0));
        self.host_limit = Some(HostLimit::new(self.per_host, (self.burst / HOST_SHARE).max(1)));
        match self.source {
            Origin::Kernel if !self.addresses.is_empty() => {
                let problem =
                    Problem::at("source", "the addresses come from the kernel or from `addresses`, not from both");
                return Err(problem.help("remove addresses or source"));
            }
            Origin::Kernel => self.reader = Some(kernel::tables(setup).register_reader()),
            Origin::Config if self.addresses.is_empty() => {
                for (port, info) in self.ports.iter_mut().zip(setup.ports()) {
                    port.set_addresses(&info.addresses);
                }
                if self.ports.iter().all(|port| port.v4.is_none() && port.v6.is_none()) {
                    let problem = Problem::at("addresses", "no port has an address, so errors have no source address");
                    return Err(problem.help(
                        "list an address for each port, in this stage or in the [[port]], or set source = \"kernel\"",
                    ));
                }
            }
            Origin::Config => {}
        }
        self.hosts = Responder::new(&[], |_| true, None, None, setup).ok();
        if self.kind == ErrorKind::PortUnreachable && (self.reader.is_some() || self.hosts.is_none()) {
            let problem =
                Problem::at("kind", "port_unreachable needs a port with an address in the config, not from the kernel");
            return Err(problem.help("add addresses = [\"192.0.2.1/24\"] to a [[port]], and remove source"));
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
                let message = format!("port `{}` already has the address {known}", entry.port);
                return Err(problem(message).help("list at most one IPv4 and one IPv6 address for each port"));
            }
        }
        Ok(())
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        let Some(earlier) = earlier.downcast::<Self>() else { return HeldPackets::Keep };
        self.identification = earlier.identification;
        if let (Some(bucket), Some(earlier)) = (&mut self.bucket, &earlier.bucket) {
            bucket.take_over_tokens(earlier);
        }
        if let (Some(limit), Some(earlier)) = (&mut self.host_limit, &mut earlier.host_limit) {
            limit.take_over(earlier);
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("the tokens of its rate limit, and the limits per host if `per_host` and `burst` do not change")
            .outputs(&[("reply", "errors, which leave by the port that received the packet")])
            .reasons(&[
                (
                    "no_error_allowed",
                    "the RFCs forbid an error for this packet (RFC 1812, section 4.3.2.7; RFC 4443, section 2.4 e)",
                ),
                ("no_address", "the ingress port has no address to send the error from"),
                ("host_rate_exceeded", "the host has received too many errors in a short time"),
            ])
            .drops(&[Reason::RateExceeded, Reason::NoHeadroom])
            .terminal()
    }

    fn contract(&self) -> Contract {
        let egress = if self.kind == ErrorKind::TooBig { Facts::EGRESS } else { Facts::empty() };
        Contract::new().needs(Facts::HEADERS | egress).sets_on_outputs(Facts::EGRESS).transfers_state::<Self>()
    }
}

/// The version of the saved state.
const STATE_VERSION: u8 = 1;

/// The state has the version, the level of the bucket, and two numbers for each host (`HostLimit::save`).
impl StateTransfer for IcmpError {
    fn save_state(&mut self) -> Option<Vec<u8>> {
        let (bucket, limit) = (self.bucket.as_ref()?, self.host_limit.as_ref()?);
        let mut state = vec![STATE_VERSION];
        state.extend(bucket.level().to_be_bytes());
        limit.save().flatten().for_each(|number| state.extend(number.to_be_bytes()));
        Some(state)
    }

    /// Time starts at 0 in a new program, so the limits earn no tokens for the duration of the upgrade.
    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        let state = state.strip_prefix(&[STATE_VERSION]).ok_or("the saved limits have another version")?;
        let damaged = "the saved limits are damaged";
        let (level, hosts) = state.split_first_chunk().ok_or(damaged)?;
        let (hosts, []) = hosts.as_chunks::<16>() else { return Err(damaged.to_owned()) };
        if let (Some(bucket), Some(limit)) = (&mut self.bucket, &mut self.host_limit) {
            bucket.set_level(u128::from_be_bytes(*level));
            for host in hosts {
                let [key, time] = [0, 8].map(|at| host[at..].first_chunk().map_or(0, |part| u64::from_be_bytes(*part)));
                limit.load([key, time]);
            }
        }
        Ok(())
    }
}

impl IcmpError {
    /// Turns a packet into an error for its sender.
    fn build_error(&mut self, packet: &mut Packet<'_>, now: u64) -> Result<(), Reason> {
        let v6 = packet.meta().flags.contains(MetaFlags::IPV6);
        if !may_cause_error(packet, self.kind, self.hosts.as_ref()) {
            return Err(NO_ERROR_ALLOWED);
        }
        let (ingress, egress) = (packet.ingress(), packet.meta().egress);
        let of = |port: u8| self.ports.get(usize::from(port));
        let address = match &self.reader {
            Some(reader) => reader.address(ingress, v6),
            None => of(ingress).and_then(|port| if v6 { port.v6 } else { port.v4 }),
        };
        let own = address.ok_or(NO_ADDRESS)?;
        let rest = match (self.kind, &self.reader) {
            (ErrorKind::TooBig, Some(reader)) => reader.mtu(egress).unwrap_or(0),
            (ErrorKind::TooBig, None) => of(egress).map_or(0, |port| port.mtu),
            _ => 0,
        };
        // Check the limit of the host first, so that a host above its limit takes no tokens from the bucket of all
        // hosts.
        let limit = self.host_limit.as_mut();
        let permit = limit.and_then(|limit| limit.permit(v6, host(packet, v6), now)).ok_or(HOST_RATE_EXCEEDED)?;
        if !self.bucket.as_mut().is_some_and(|bucket| bucket.take(now, 1)) {
            return Err(Reason::RateExceeded);
        }
        permit.count();
        let (kind, code) = if v6 { self.kind.v6() } else { self.kind.v4() };
        let (kind, code, rest) = match self.kind {
            ErrorKind::PortUnreachable if !matches!(packet.meta().protocol, protocol::UDP | protocol::TCP) => {
                // The pointer 6 is the offset of the next header field in the IPv6 header (RFC 4443, section 3.4).
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

/// Returns the host that gets the error for a packet: the IPv4 source address, or the first 64 bits of the IPv6 source
/// address.
fn host(packet: &Packet<'_>, v6: bool) -> u64 {
    let datagram = packet.data().get(usize::from(packet.meta().l3)..).unwrap_or_default();
    if v6 {
        let first_half = Ipv6::view(datagram).ok().and_then(|ip| ip.source.first_chunk().copied());
        first_half.map_or(0, u64::from_be_bytes)
    } else {
        Ipv4::view(datagram).map_or(0, |ip| u32::from_be_bytes(ip.source).into())
    }
}

/// The first eight bytes of an ICMP error.
struct IcmpHead {
    kind: u8,
    code: u8,
    /// The MTU, the pointer of a parameter problem, or 0.
    rest: u32,
}

impl IcmpHead {
    const LEN: usize = 8;

    fn bytes(&self, checksum: u16) -> [u8; Self::LEN] {
        let ([high, low], [a, b, c, d]) = (checksum.to_be_bytes(), self.rest.to_be_bytes());
        [self.kind, self.code, high, low, a, b, c, d]
    }
}

/// Returns whether the RFCs allow an error for a packet.
fn may_cause_error(packet: &Packet<'_>, kind: ErrorKind, hosts: Option<&Responder>) -> bool {
    let meta = packet.meta();
    let flags = meta.flags;
    if flags.contains(MetaFlags::FRAGMENT) && !flags.contains(MetaFlags::FIRST_FRAGMENT) {
        return false;
    }
    let Ok(link) = Ethernet::view(packet.data()) else { return false };
    let Some(datagram) = packet.data().get(usize::from(meta.l3)..usize::from(meta.end)) else { return false };
    let message = packet.data().get(usize::from(meta.l4)..).and_then(|bytes| bytes.first());
    let message = message.filter(|_| meta.l4 != 0).copied();
    // An IPv6 multicast packet may cause a "too big" error (RFC 4443, section 2.4 e.3), because path MTU discovery
    // needs this error.
    let multicast_allowed = kind == ErrorKind::TooBig && flags.contains(MetaFlags::IPV6);
    if link.source.is_multicast() || link.destination.is_multicast() && !multicast_allowed {
        return false;
    }
    if flags.contains(MetaFlags::IPV4) {
        let Ok(ip) = Ipv4::view(datagram) else { return false };
        // A truncated ICMP message may be an error, so it counts as an error.
        let error = || message.is_none_or(|kind| !matches!(kind, icmp::ECHO_REQUEST | icmp::ECHO_REPLY | 13..=18));
        let source = ip.source_addr();
        let host = is_host(source.into()) && source.octets()[0] < 240;
        let known = hosts.is_none_or(|hosts| {
            let here = hosts.has_v4(&ip.destination) || kind != ErrorKind::PortUnreachable;
            let both = hosts.is_host_v4(source) && hosts.is_host_v4(ip.destination_addr());
            here && both && !hosts.has_v4(&ip.source)
        });
        let message = ip.protocol == protocol::ICMP && (error() || kind == ErrorKind::PortUnreachable);
        host && known && is_host(ip.destination_addr().into()) && !message
    } else if flags.contains(MetaFlags::IPV6) {
        let Ok(ip) = Ipv6::view(datagram) else { return false };
        // Types below 128 are errors (RFC 4443, section 2.1). A redirect (137) must not cause an error either.
        let error = || message.is_none_or(|kind| kind < 128 || kind == 137);
        let source = ip.source_addr();
        let known = hosts.is_none_or(|hosts| {
            // With `port_unreachable`, packets with extension headers cause no error. The error for an unreachable
            // protocol needs the offset of the last next header field, and the stage does not search for this field.
            let here = hosts.has_v6(&ip.destination) && (ip.next_header == meta.protocol);
            (here || kind != ErrorKind::PortUnreachable) && !hosts.has_v6(&ip.source)
        });
        let to = multicast_allowed || !ip.destination_addr().is_multicast();
        let message = meta.protocol == protocol::ICMPV6 && (error() || kind == ErrorKind::PortUnreachable);
        is_host(source.into()) && known && to && !message
    } else {
        false
    }
}

/// Truncates the datagram and inserts space for the headers of an error between the link header and the datagram.
/// Swaps the MAC addresses. Returns the bytes from the IP header of the error on.
fn insert_headers<'p>(packet: &'p mut Packet<'_>, headers: usize, most: usize) -> Option<&'p mut [u8]> {
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

/// Turns an IPv4 packet into an ICMP error from the address `own`. Returns `None` without enough headroom.
fn wrap_v4(packet: &mut Packet<'_>, own: [u8; 4], head: IcmpHead, identification: u16) -> Option<()> {
    const HEADERS: usize = Ipv4::LEN + IcmpHead::LEN;
    let bytes = insert_headers(packet, HEADERS, MOST_V4)?;
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

/// Turns an IPv6 packet into an ICMPv6 error from the address `own`. Returns `None` without enough headroom.
fn wrap_v6(packet: &mut Packet<'_>, own: [u8; 16], head: IcmpHead) -> Option<()> {
    const HEADERS: usize = Ipv6::LEN + IcmpHead::LEN;
    let bytes = insert_headers(packet, HEADERS, MOST_V6)?;
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
