//! `icmp`: answers for this host: echo, and who has an IPv6 address.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use zerocopy::FromBytes;

use crate::header::checksum::{Sum, checksum, update_u16};
use crate::header::ethernet::Ethernet;
use crate::header::icmp::{self, Icmp as Message};
use crate::header::ipv4::Ipv4;
use crate::header::ipv6::Ipv6;
use crate::header::ndp::ALL_NODES;
use crate::header::{Header, MacAddr, protocol};
use crate::mem::{Batch, Edge, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Problem, Setup, Stage};
use crate::stages::resolution::Ear;
use crate::stages::responder::{Responder, is_host};

mod discovery;

/// Answers echo requests over IPv4 and IPv6 (RFC 792, RFC 4443), and neighbour solicitations of IPv6 (RFC 4861), for
/// addresses of this host.
///
/// A request becomes its answer and leaves by `reply`, to go out by the port that it came in by. Not answered, and let
/// go on, are fragments, requests with IP options or extension headers, those that come from or were sent to a group of
/// stations, and whatever is not for these addresses. Requests for them with a wrong checksum are dropped.
///
/// Without `addresses` it answers for those that the ports have in the config: solicitations for an address on its own port
/// alone, echo requests on any. Where a `neighbor` stage has `source = "resolve"`, what neighbours advertise ends here,
/// and is told to it.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "ping"
/// use = "icmp"
/// addresses = ["192.0.2.1", "2001:db8::1"]
/// ttl = 255
/// outputs = { reply = "out" }
///
/// [[pipeline.stage]]
/// name = "out"
/// use = "tx"
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Icmp {
    /// The addresses to answer for; without any, those that the ports have in the config.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The port whose requests are answered; without one, those of all ports.
    #[serde(default)]
    pub port: Option<String>,
    /// The link address that is made known to neighbours; without one, that of the port that they ask by.
    #[serde(default)]
    pub mac: Option<MacAddr>,
    /// The TTL or hop limit of an echo reply.
    #[serde(default = "ttl")]
    pub ttl: u8,
    /// Whether neighbours are told that this host is a router.
    #[serde(default = "router")]
    pub router: bool,
    #[serde(skip)]
    #[schemars(skip)]
    own: Responder,
    #[serde(skip)]
    #[schemars(skip)]
    ear: Ear,
}

const fn ttl() -> u8 {
    64
}

const fn router() -> bool {
    true
}

const REPLY: Edge = Edge::new(0);
const BAD_SOLICITATION: Reason = Reason::own(0);
const NO_TAILROOM: Reason = Reason::own(1);
const BAD_ADVERTISEMENT: Reason = Reason::own(2);

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Answered,
    /// It was for this host, and has been heard.
    Heard,
    NotOurs,
    Refused(Reason),
}

impl Stage for Icmp {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match self.answer(&mut packet, ctx) {
                Verdict::Answered => {
                    packet.meta_mut().egress = packet.ingress();
                    packet.steer(REPLY);
                }
                Verdict::Heard => packet.consume(),
                Verdict::NotOurs => {}
                Verdict::Refused(reason) => packet.drop(reason),
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("reply", "answers, for the port that the request came in by")]
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[
            ("bad_solicitation", "a neighbour solicitation that RFC 4861, section 7.1.1, says to discard"),
            ("no_tailroom", "no room behind a neighbour solicitation for what its answer has in addition"),
            ("bad_advertisement", "a neighbour advertisement that RFC 4861, section 7.1.2, says to discard"),
        ]
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS
    }

    fn sets_on(&self, _output: usize) -> Facts {
        Facts::EGRESS
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.ttl == 0 {
            return Err(Problem::at("ttl", "an answer with a TTL of 0 goes nowhere").help("1 to 255"));
        }
        self.own = Responder::new(&self.addresses, |_| true, self.port.as_deref(), self.mac, setup)?;
        self.ear = Ear::new(setup, IpAddr::is_ipv6).of_router(self.router);
        Ok(())
    }
}

impl Icmp {
    #[inline]
    fn answer(&mut self, packet: &mut Packet<'_>, ctx: &Ctx) -> Verdict {
        let meta = packet.meta();
        if !meta.flags.contains(MetaFlags::L4) || meta.flags.contains(MetaFlags::FRAGMENT) {
            return Verdict::NotOurs;
        }
        let Some(mac) = self.own.mac(packet.ingress()) else { return Verdict::NotOurs };
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
        answer.unwrap_or(Verdict::NotOurs)
    }

    fn echo_v4(&self, packet: &mut Packet<'_>) -> Option<Verdict> {
        let (link, ip, bytes) = layers::<Ipv4>(packet)?;
        let message = Message::view(bytes).ok()?;
        let wanted = (message.kind, message.code) == (icmp::ECHO_REQUEST, 0)
            && self.own.has_v4(&ip.destination)
            && self.own.may_ask_v4(ip.source_addr())
            && between_stations(link);
        if !wanted {
            return Some(Verdict::NotOurs);
        }
        if checksum(bytes) != 0 {
            return Some(Verdict::Refused(Reason::BadChecksum));
        }
        echo(bytes, icmp::ECHO_REPLY)?;
        // The sum does not change when the addresses change places.
        std::mem::swap(&mut ip.source, &mut ip.destination);
        let old = u16::from_be_bytes([ip.ttl, ip.protocol]);
        let new = u16::from_be_bytes([self.ttl, ip.protocol]);
        ip.ttl = self.ttl;
        ip.checksum.set(update_u16(ip.checksum.get(), old, new));
        std::mem::swap(&mut link.source, &mut link.destination);
        Some(Verdict::Answered)
    }

    fn icmpv6(&mut self, packet: &mut Packet<'_>, mac: MacAddr, ctx: &Ctx) -> Option<Verdict> {
        let (ingress, flags) = (packet.ingress(), packet.meta().flags);
        let (link, ip, bytes) = layers::<Ipv6>(packet)?;
        let message = Message::view(bytes).ok()?;
        let wanted = match message.kind {
            icmp::V6_NEIGHBOR_SOLICITATION => {
                // What follows the front of the message begins with the address that is asked for.
                let target = bytes.get(Message::LEN..).and_then(|content| content.first_chunk());
                target.is_none_or(|target| self.own.is_on_v6(ingress, target)) && !link.source.is_multicast()
            }
            icmp::V6_NEIGHBOR_ADVERTISEMENT => {
                let ours = self.own.is_on_v6(ingress, &ip.destination) || ip.destination == ALL_NODES;
                ours && !link.source.is_multicast() && self.ear.is_open()
            }
            icmp::V6_ECHO_REQUEST => {
                message.code == 0
                    && self.own.has_v6(&ip.destination)
                    && is_host(ip.source_addr().into())
                    && between_stations(link)
            }
            _ => false,
        };
        if !wanted {
            return Some(Verdict::NotOurs);
        }
        let pseudo = Sum::default().pseudo_ipv6(&ip.source, &ip.destination, protocol::ICMPV6, bytes.len() as u32);
        if pseudo.bytes(bytes).checksum() != 0 {
            return Some(Verdict::Refused(Reason::BadChecksum));
        }
        match message.kind {
            icmp::V6_NEIGHBOR_SOLICITATION => {
                let Some(word) = discovery::solicitation(ip, bytes) else {
                    return Some(Verdict::Refused(BAD_SOLICITATION));
                };
                if let Some(word) = word {
                    self.ear.hear(ingress, flags, word, ctx);
                }
                discovery::advertise(packet, mac, self.router)
            }
            icmp::V6_NEIGHBOR_ADVERTISEMENT => {
                let Some(word) = discovery::advertisement(ip, bytes) else {
                    return Some(Verdict::Refused(BAD_ADVERTISEMENT));
                };
                self.ear.hear(ingress, flags, word, ctx);
                Some(Verdict::Heard)
            }
            _ => {
                echo(bytes, icmp::V6_ECHO_REPLY)?;
                std::mem::swap(&mut ip.source, &mut ip.destination);
                ip.hop_limit = self.ttl;
                std::mem::swap(&mut link.source, &mut link.destination);
                Some(Verdict::Answered)
            }
        }
    }
}

/// The link header, the IP header, and the ICMP message to the end of the datagram. IP has no options.
fn layers<'p, Ip: Header>(packet: &'p mut Packet<'_>) -> Option<(&'p mut Ethernet, &'p mut Ip, &'p mut [u8])> {
    let (l3, end) = (usize::from(packet.meta().l3), usize::from(packet.meta().end));
    let (link, datagram) = packet.data_mut().get_mut(..end)?.split_at_mut_checked(l3)?;
    let (ethernet, _) = Ethernet::mut_from_prefix(link).ok()?;
    let (ip, message) = Ip::mut_from_prefix(datagram).ok()?;
    Some((ethernet, ip, message))
}

/// Whether neither side is a group (RFC 1122, section 3.2.2): an answer would be multiplied, or be one of many.
fn between_stations(link: &Ethernet) -> bool {
    !link.source.is_multicast() && !link.destination.is_multicast()
}

/// Makes an echo request an echo reply.
fn echo(message: &mut [u8], kind: u8) -> Option<()> {
    let (message, _) = Message::mut_from_prefix(message).ok()?;
    let (old, new) = (u16::from_be_bytes([message.kind, 0]), u16::from_be_bytes([kind, 0]));
    message.kind = kind;
    message.checksum.set(update_u16(message.checksum.get(), old, new));
    Some(())
}

#[cfg(test)]
mod tests;
