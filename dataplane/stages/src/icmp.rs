//! `icmp`: answers echo requests and IPv6 neighbor solicitations for this host.

mod answer;
mod discovery;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use zerocopy::FromBytes;

use crate::resolution::NeighborListener;
use crate::responder::{Responder, is_host};
use answer::{BAD_ADVERTISEMENT, BAD_SOLICITATION, IcmpVerdict, layers};
use dataplane_core::header::checksum::{Sum, checksum, update_u16};
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::icmp::{self, Icmp as Message};
use dataplane_core::header::ipv4::Ipv4;
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::header::ndp::ALL_NODES;
use dataplane_core::header::{Header, MacAddr, protocol};
use dataplane_core::mem::{Batch, Edge, MetaFlags, Packet, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Facts, Problem, Setup, Stage, StageInfo};

/// Answers echo requests over IPv4 and IPv6 (RFC 792, RFC 4443) and IPv6 neighbor solicitations (RFC 4861) for
/// addresses of this host.
///
/// The stage overwrites a request with the reply, in the same buffer. The reply leaves the stage by the output `reply`.
/// The egress port of the reply is the port that received the request. If a request for an address of this host has a
/// wrong checksum, the stage drops the request. The stage does not answer the requests in the following list. These
/// requests go to the next stage, like packets of other protocols:
/// - requests in fragments, and requests with IP options or extension headers;
/// - echo requests from or to multicast or broadcast addresses;
/// - requests for addresses of other hosts.
///
/// The stage answers requests on all ports, or only on the port in the key `port`. With `addresses`, the stage answers
/// echo requests and neighbor solicitations for each of these addresses on each of these ports. Without `addresses`,
/// the stage uses the addresses that the config gives to these ports. In this case, the stage answers echo requests for
/// each address on each of these ports, but answers neighbor solicitations for an address only on the port that has the
/// address.
///
/// If a `neighbor` stage has `source = "resolve"`, the `icmp` stage consumes neighbor advertisements and passes their
/// content to the `neighbor` stage.
///
/// ```toml
/// [[pipeline.stage]]
/// name      = "ping"
/// use       = "icmp"
/// addresses = ["192.0.2.1", "2001:db8::1"]
/// mac       = "02:00:00:00:00:01"
/// port      = "wan"
/// router    = false
/// ttl       = 255
/// outputs   = { reply = "out" }
/// next      = "drop"
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Icmp {
    /// The IPv4 and IPv6 addresses to answer for. Default: the addresses that the config gives to the ports on which
    /// the stage answers.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The name of the port on which the stage answers requests. Default: all ports.
    #[serde(default)]
    pub port: Option<String>,
    /// The MAC address in neighbor advertisements. Default: the MAC address of the port that received the
    /// solicitation.
    #[serde(default)]
    pub mac: Option<MacAddr>,
    /// The TTL or hop limit of an echo reply: 1 to 255. Default: 64.
    #[serde(default = "ttl")]
    #[schemars(range(min = 1, max = 255))]
    pub ttl: u8,
    /// Whether neighbor advertisements have the router flag. Default: `true`.
    #[serde(default = "router")]
    pub router: bool,
    #[serde(skip)]
    #[schemars(skip)]
    own: Responder,
    #[serde(skip)]
    #[schemars(skip)]
    resolver: NeighborListener,
}

const fn ttl() -> u8 {
    64
}

const fn router() -> bool {
    true
}

const REPLY: Edge = Edge::new(0);
impl Stage for Icmp {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match self.answer(&mut packet, ctx) {
                IcmpVerdict::Answered => {
                    packet.meta_mut().egress = packet.ingress();
                    packet.steer(REPLY);
                }
                IcmpVerdict::Consumed => packet.consume(),
                IcmpVerdict::NotOurs => {}
                IcmpVerdict::Refused(reason) => packet.drop(reason),
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.ttl == 0 {
            return Err(
                Problem::at("ttl", "a reply with a TTL of 0 cannot be forwarded").help("set a TTL from 1 to 255")
            );
        }
        self.own = Responder::new(&self.addresses, |_| true, self.port.as_deref(), self.mac, setup)?;
        self.resolver = NeighborListener::new(setup, IpAddr::is_ipv6).with_router_flag(setup, self.router);
        Ok(())
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .stateless()
            .outputs(&[("reply", "replies, which leave by the port that received the request")])
            .reasons(&[
                ("bad_solicitation", "an invalid neighbor solicitation (RFC 4861, section 7.1.1)"),
                ("no_tailroom", "no tailroom in the buffer for the option that the advertisement adds"),
                ("bad_advertisement", "an invalid neighbor advertisement (RFC 4861, section 7.1.2)"),
            ])
            .drops(&[Reason::BadChecksum])
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS).sets_on_outputs(Facts::EGRESS)
    }
}

impl Icmp {
    #[inline]
    fn answer(&mut self, packet: &mut Packet<'_>, ctx: &Ctx) -> IcmpVerdict {
        let meta = packet.meta();
        if !meta.flags.contains(MetaFlags::L4) || meta.flags.contains(MetaFlags::FRAGMENT) {
            return IcmpVerdict::NotOurs;
        }
        let Some(mac) = self.own.mac(packet.ingress()) else { return IcmpVerdict::NotOurs };
        let ip_len = meta.l4.saturating_sub(meta.l3);
        let answer = match meta.protocol {
            protocol::ICMP if meta.flags.contains(MetaFlags::IPV4) && usize::from(ip_len) == Ipv4::LEN => {
                self.echo_v4(packet)
            }
            protocol::ICMPV6 if meta.flags.contains(MetaFlags::IPV6) && usize::from(ip_len) == Ipv6::LEN => {
                self.icmpv6(packet, mac, ctx)
            }
            _ => None,
        };
        answer.unwrap_or(IcmpVerdict::NotOurs)
    }

    fn echo_v4(&self, packet: &mut Packet<'_>) -> Option<IcmpVerdict> {
        let (link, ip, bytes) = layers::<Ipv4>(packet)?;
        let message = Message::view(bytes).ok()?;
        let wanted = (message.kind, message.code) == (icmp::ECHO_REQUEST, 0)
            && self.own.has_v4(&ip.destination)
            && self.own.is_host_v4(ip.source_addr())
            && is_unicast(link);
        if !wanted {
            return Some(IcmpVerdict::NotOurs);
        }
        if checksum(bytes) != 0 {
            return Some(IcmpVerdict::Refused(Reason::BadChecksum));
        }
        echo(bytes, icmp::ECHO_REPLY)?;
        // Swapping the addresses does not change the checksum.
        std::mem::swap(&mut ip.source, &mut ip.destination);
        let old = u16::from_be_bytes([ip.ttl, ip.protocol]);
        let new = u16::from_be_bytes([self.ttl, ip.protocol]);
        ip.ttl = self.ttl;
        ip.checksum.set(update_u16(ip.checksum.get(), old, new));
        std::mem::swap(&mut link.source, &mut link.destination);
        Some(IcmpVerdict::Answered)
    }

    fn icmpv6(&mut self, packet: &mut Packet<'_>, mac: MacAddr, ctx: &Ctx) -> Option<IcmpVerdict> {
        let (ingress, flags) = (packet.ingress(), packet.meta().flags);
        let (link, ip, bytes) = layers::<Ipv6>(packet)?;
        let message = Message::view(bytes).ok()?;
        let wanted = match message.kind {
            icmp::V6_NEIGHBOR_SOLICITATION => {
                // The target address follows the fixed header of the message.
                let target = bytes.get(Message::LEN..).and_then(|content| content.first_chunk());
                target.is_none_or(|target| self.own.is_on_v6(ingress, target)) && !link.source.is_multicast()
            }
            icmp::V6_NEIGHBOR_ADVERTISEMENT => {
                let ours = self.own.is_on_v6(ingress, &ip.destination) || ip.destination == ALL_NODES;
                ours && !link.source.is_multicast() && self.resolver.is_open()
            }
            icmp::V6_ECHO_REQUEST => {
                message.code == 0
                    && self.own.has_v6(&ip.destination)
                    && is_host(ip.source_addr().into())
                    && is_unicast(link)
            }
            _ => false,
        };
        if !wanted {
            return Some(IcmpVerdict::NotOurs);
        }
        let pseudo = Sum::default().pseudo_ipv6(&ip.source, &ip.destination, protocol::ICMPV6, bytes.len() as u32);
        if pseudo.bytes(bytes).checksum() != 0 {
            return Some(IcmpVerdict::Refused(Reason::BadChecksum));
        }
        match message.kind {
            icmp::V6_NEIGHBOR_SOLICITATION => {
                let Some(observation) = discovery::solicitation(ip, bytes) else {
                    return Some(IcmpVerdict::Refused(BAD_SOLICITATION));
                };
                if let Some(observation) = observation {
                    self.resolver.receive(ingress, flags, observation, ctx);
                }
                discovery::advertise(packet, mac, self.router)
            }
            icmp::V6_NEIGHBOR_ADVERTISEMENT => {
                let Some(observation) = discovery::advertisement(ip, bytes) else {
                    return Some(IcmpVerdict::Refused(BAD_ADVERTISEMENT));
                };
                self.resolver.receive(ingress, flags, observation, ctx);
                Some(IcmpVerdict::Consumed)
            }
            _ => {
                echo(bytes, icmp::V6_ECHO_REPLY)?;
                std::mem::swap(&mut ip.source, &mut ip.destination);
                ip.hop_limit = self.ttl;
                std::mem::swap(&mut link.source, &mut link.destination);
                Some(IcmpVerdict::Answered)
            }
        }
    }
}

/// Returns whether source and destination are unicast addresses (RFC 1122, section 3.2.2). A reply to a multicast
/// address would be multiplied, and a multicast request would get many replies.
fn is_unicast(link: &Ethernet) -> bool {
    !link.source.is_multicast() && !link.destination.is_multicast()
}

/// Turns an echo request into an echo reply.
fn echo(message: &mut [u8], kind: u8) -> Option<()> {
    let (message, _) = Message::mut_from_prefix(message).ok()?;
    let (old, new) = (u16::from_be_bytes([message.kind, 0]), u16::from_be_bytes([kind, 0]));
    message.kind = kind;
    message.checksum.set(update_u16(message.checksum.get(), old, new));
    Some(())
}

#[cfg(test)]
mod tests;
