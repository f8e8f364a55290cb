//! `arp`: answers ARP requests for the IPv4 addresses of this host.

use std::net::{IpAddr, Ipv4Addr};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::resolution::{NeighborInfo, NeighborListener, NeighborMessageKind};
use crate::responder::Responder;
use dataplane_core::header::arp::{Arp as Message, REPLY as ANSWER, REQUEST};
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::{Header, MacAddr};
use dataplane_core::mem::{Batch, Edge, MetaFlags, Packet};
use dataplane_core::pipeline::{Contract, CounterReport, Ctx, Facts, HeldPackets, Problem, Setup, Stage, StageInfo};

/// Answers ARP requests for IPv4 addresses of this host (RFC 826).
///
/// The stage overwrites a request with the reply, in the same buffer. The reply leaves the stage by the output `reply`.
/// The egress port of the reply is the port that received the request. VLAN tags stay unchanged. All other packets go
/// to the next stage, for example ARP replies, announcements, and requests for addresses of other hosts.
///
/// Without `addresses`, the stage answers for the addresses that the config gives to the ingress port. If a `neighbor`
/// stage has `source = "resolve"`, the `arp` stage passes the sender addresses of ARP messages to the `neighbor` stage.
///
/// ```toml
/// [[pipeline.stage]]
/// name      = "arp"
/// use       = "arp"
/// addresses = ["192.0.2.1"]
/// mac       = "02:00:00:00:00:01"
/// port      = "wan"
/// outputs   = { reply = "out" }
/// next      = "drop"
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arp {
    /// The IPv4 addresses to answer for. Default: for each port, the IPv4 addresses that the config gives to this port.
    #[serde(default)]
    pub addresses: Vec<Ipv4Addr>,
    /// The name of the port on which the stage answers requests. Default: all ports.
    #[serde(default)]
    pub port: Option<String>,
    /// The MAC address to answer with. Default: the MAC address of the port that received the request.
    #[serde(default)]
    pub mac: Option<MacAddr>,
    #[serde(skip)]
    #[schemars(skip)]
    own: Responder,
    #[serde(skip)]
    #[schemars(skip)]
    resolver: NeighborListener,
    #[serde(skip)]
    #[schemars(skip)]
    conflicts: u64,
}

const REPLY: Edge = Edge::new(0);

/// How this host classifies an ARP message.
enum Meaning {
    /// A request that this host answers with this MAC address.
    Asked(MacAddr),
    /// Another host uses an address of this host.
    Conflict,
    /// A message that needs no action.
    Other,
}

impl Stage for Arp {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if self.resolver.is_open()
                && let Some(observation) = self.observation(&packet)
            {
                self.resolver.receive(packet.ingress(), packet.meta().flags, observation, ctx);
            }
            match self.meaning(&packet) {
                Meaning::Asked(mac) => {
                    if answer(&mut packet, mac) {
                        packet.meta_mut().egress = packet.ingress();
                        packet.steer(REPLY);
                    }
                }
                Meaning::Conflict => self.conflicts += 1,
                Meaning::Other => {}
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let addresses: Vec<IpAddr> = self.addresses.iter().copied().map(IpAddr::V4).collect();
        self.own = Responder::new(&addresses, IpAddr::is_ipv4, self.port.as_deref(), self.mac, setup)?;
        self.resolver = NeighborListener::new(setup, IpAddr::is_ipv4);
        Ok(())
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        // Messages in which another host claims an address of this host (RFC 5227).
        report.add("conflicts", self.conflicts);
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let asked = Ipv4Addr::from(message(packet)?.target_ip);
        Some(match self.meaning(packet) {
            Meaning::Asked(mac) => format!("{asked} is at {mac}"),
            Meaning::Conflict => "another host uses an address of this router".to_owned(),
            Meaning::Other => format!("does not answer for {asked}"),
        })
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        if let Some(earlier) = earlier.downcast::<Self>() {
            self.conflicts = earlier.conflicts;
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("its number of address conflicts")
            .outputs(&[("reply", "replies, which leave by the port that received the request")])
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS).sets_on_outputs(Facts::EGRESS)
    }
}

impl Arp {
    #[inline]
    fn meaning(&self, packet: &Packet<'_>) -> Meaning {
        let (Some(message), Ok(ethernet)) = (message(packet), Ethernet::view(packet.data())) else {
            return Meaning::Other;
        };
        let ingress = packet.ingress();
        let Some(mac) = self.own.mac(ingress) else { return Meaning::Other };
        if self.own.is_on_v4(ingress, &message.sender_ip) {
            return if message.sender_mac == mac { Meaning::Other } else { Meaning::Conflict };
        }
        let asked = message.operation.get() == REQUEST && self.own.is_on_v4(ingress, &message.target_ip);
        let to_us = ethernet.destination == mac || ethernet.destination.is_multicast();
        // A reply to a multicast address would reach hosts that sent no request.
        let from_single_host = !message.sender_mac.is_multicast() && message.sender_mac != MacAddr::ZERO;
        let sender = Ipv4Addr::from(message.sender_ip);
        let from_single_host = from_single_host && (sender.is_unspecified() || self.own.is_host_v4(sender));
        if asked && to_us && from_single_host { Meaning::Asked(mac) } else { Meaning::Other }
    }
}

impl Arp {
    /// Returns the information about the sender of a message, or `None` if this host must not learn from the message.
    fn observation(&self, packet: &Packet<'_>) -> Option<NeighborInfo> {
        let (message, ethernet) = (message(packet)?, Ethernet::view(packet.data()).ok()?);
        let mac = self.own.mac(packet.ingress())?;
        let to_us = ethernet.destination == mac || ethernet.destination.is_multicast();
        let for_us = self.own.is_on_v4(packet.ingress(), &message.target_ip);
        let kind = match message.operation.get() {
            REQUEST if for_us => NeighborMessageKind::Request,
            ANSWER if for_us && ethernet.destination == mac => NeighborMessageKind::Reply,
            // An announcement, or a request or reply between other hosts.
            REQUEST | ANSWER => NeighborMessageKind::Announcement,
            _ => return None,
        };
        let address = IpAddr::V4(message.sender_ip.into());
        to_us.then_some(NeighborInfo { address, mac: Some(message.sender_mac), kind, overrides: true })
    }
}

/// Returns the ARP message of a packet, or `None` if the packet is not ARP for IPv4 on Ethernet.
#[inline]
fn message<'p>(packet: &'p Packet<'_>) -> Option<&'p Message> {
    if !packet.meta().flags.contains(MetaFlags::ARP) {
        return None;
    }
    packet.data().get(usize::from(packet.meta().l3)..).and_then(|bytes| Message::view(bytes).ok())
}

/// Turns a request into its reply. Returns `false`, with the packet unchanged, if the packet is too short.
#[inline]
fn answer(packet: &mut Packet<'_>, mac: MacAddr) -> bool {
    let l3 = usize::from(packet.meta().l3);
    let Some((link, bytes)) = packet.data_mut().split_at_mut_checked(l3) else { return false };
    let (Ok(ethernet), Ok(message)) = (Ethernet::view_mut(link), Message::view_mut(bytes)) else { return false };
    ethernet.destination = message.sender_mac;
    ethernet.source = mac;
    message.answer(mac);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::Parse;
    use dataplane_core::harness::{Fate, Harness, frame};
    use dataplane_testing::strategies;

    const ASKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    /// The MAC address of the second port of the test harness.
    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 11]);
    const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

    fn harness(parameters: &str) -> Result<Harness, String> {
        Harness::builder().after(Parse::default()).ingress(1).build::<Arp>(parameters)
    }

    fn request(to: MacAddr, from: Ipv4Addr, asked: Ipv4Addr) -> Vec<u8> {
        frame().ethernet(ASKER, to).arp(REQUEST, (ASKER, from), (MacAddr::ZERO, asked)).pad_to(60).build()
    }

    #[test]
    fn request_is_turned_into_its_reply() {
        let mut harness = harness("addresses = ['10.0.1.1', '10.0.0.1']").unwrap();
        for tags in 0..3u16 {
            let tagged = |frame: dataplane_core::harness::Frame<'static>| {
                (0..tags).fold(frame, |frame, tag| frame.vlan(7 + tag))
            };
            let asked = tagged(frame().ethernet(ASKER, MacAddr::BROADCAST));
            let asked = asked.arp(REQUEST, (ASKER, OTHER), (MacAddr::ZERO, FIRST)).pad_to(60).build();
            let outcome = harness.run_one(&asked);
            let answer = tagged(frame().ethernet(OURS, ASKER)).arp(ANSWER, (OURS, FIRST), (ASKER, OTHER));
            assert_eq!(outcome.fate, Fate::Output("reply".to_owned()));
            assert_eq!(outcome.bytes, answer.pad_to(60).build());
            assert_eq!(outcome.meta.egress, 1);
        }
        // An address probe has the sender address 0.0.0.0 (RFC 5227). Some hosts repeat a request as unicast.
        for bytes in [request(MacAddr::BROADCAST, [0; 4].into(), FIRST), request(OURS, OTHER, FIRST)] {
            assert_eq!(harness.run_one(&bytes).fate, Fate::Output("reply".to_owned()));
        }
    }

    #[test]
    fn messages_that_need_no_reply_go_to_the_next_stage() {
        let mut harness = harness("addresses = ['10.0.0.1']").unwrap();
        let group = MacAddr([3, 0, 0, 0, 0, 1]);
        for bytes in [
            request(MacAddr::BROADCAST, OTHER, OTHER),
            request(MacAddr([2, 9, 9, 9, 9, 9]), OTHER, FIRST),
            frame().arp(ANSWER, (ASKER, OTHER), (OURS, FIRST)).build(),
            frame().ethernet(ASKER, OURS).arp(REQUEST, (group, OTHER), (MacAddr::ZERO, FIRST)).build(),
            frame().ipv4(OTHER, FIRST).udp(1, 2).build(),
        ] {
            let outcome = harness.run_one(&bytes);
            assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, bytes));
        }
        assert_eq!(harness.counters(), [("conflicts".to_owned(), 0)]);
    }

    #[test]
    fn address_conflict_is_counted() {
        let mut harness = harness("addresses = ['10.0.0.1']").unwrap();
        let announced = request(MacAddr::BROADCAST, FIRST, FIRST);
        assert_eq!(harness.run_one(&announced).fate, Fate::Next);
        let own = frame().ethernet(OURS, MacAddr::BROADCAST).arp(REQUEST, (OURS, FIRST), (MacAddr::ZERO, FIRST));
        assert_eq!(harness.run_one(&own.build()).fate, Fate::Next);
        assert_eq!(harness.counters(), [("conflicts".to_owned(), 1)]);
    }

    #[test]
    fn port_and_mac_parameters_are_used() {
        let asked = request(MacAddr::BROADCAST, OTHER, FIRST);
        let mut elsewhere = harness("addresses = ['10.0.0.1']\nport = 'a'").unwrap();
        assert_eq!(elsewhere.run_one(&asked).fate, Fate::Next);
        let mut named = harness("addresses = ['10.0.0.1']\nport = 'b'\nmac = '02:00:00:00:00:77'").unwrap();
        assert_eq!(named.run_one(&asked).bytes[6..12], [2, 0, 0, 0, 0, 0x77]);
        assert_eq!(
            (named.stage().contract().sets, named.stage().contract().sets_on_outputs),
            (Facts::empty(), Facts::EGRESS)
        );
    }

    #[test]
    fn invalid_parameters_are_refused_with_their_key() {
        for (parameters, message) in [
            ("addresses = []", "addresses: no port has an address, so the stage cannot answer"),
            ("addresses = ['10.0.0.1', '224.0.0.1']", "addresses[1]: 224.0.0.1 is not the address of a single host"),
            ("addresses = ['10.0.0.1', '10.0.0.1']", "addresses[1]: 10.0.0.1 is listed twice"),
            ("addresses = ['10.0.0.1']\nport = 'c'", "port: there is no port `c`"),
            ("addresses = ['10.0.0.1']\nmac = 'ff:ff:ff:ff:ff:ff'", "mac: a multicast MAC address cannot answer"),
        ] {
            let error = harness(parameters).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn only_requests_for_our_addresses_are_answered(frame in strategies::any_frame()) {
            let outcome = harness("addresses = ['10.0.0.1', '10.0.1.2']").unwrap().run_one(&frame);
            match outcome.fate {
                Fate::Output(_) => {
                    let l3 = usize::from(outcome.meta.l3);
                    let asked = Message::view(&frame[l3..]).unwrap();
                    prop_assert!(asked.operation.get() == REQUEST);
                    prop_assert!([[10, 0, 0, 1], [10, 0, 1, 2]].contains(&asked.target_ip));
                }
                fate => prop_assert_eq!((fate, outcome.bytes), (Fate::Next, frame)),
            }
        }
    }
}
