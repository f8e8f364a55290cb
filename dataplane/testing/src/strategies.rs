//! Proptest strategies that generate frames: valid frames of every kind, mutated frames and random bytes.
//!
//! ```
//! use dataplane_stages::parse::Parse;
//! use dataplane_core::harness::{Fate, Harness};
//! use dataplane_testing::strategies;
//! use proptest::prelude::*;
//!
//! # fn main() {
//! proptest!(ProptestConfig::with_cases(16), |(frame in strategies::valid_frame())| {
//!     let outcome = Harness::from_toml::<Parse>("").unwrap().run_one(&frame);
//!     prop_assert!(!matches!(outcome.fate, Fate::Dropped(_)));
//! });
//! # }
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use dataplane_core::header::build::{Extension, Frame};
use dataplane_core::header::{MacAddr, ether_type, ipv4, protocol};

/// Generates unicast MAC addresses.
pub fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(|[first, rest @ ..]| {
        let [b, c, d, e, f] = rest;
        MacAddr([first & !1, b, c, d, e, f])
    })
}

/// Generates unicast IPv4 addresses. Many of the addresses are from a small set, so that table lookups find entries.
pub fn ipv4() -> impl Strategy<Value = Ipv4Addr> {
    let few = (0..3u8, 1..5u8).prop_map(|(net, host)| Ipv4Addr::new(10, 0, net, host));
    let all = (1..224u8, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d));
    prop_oneof![few, all]
}

/// Generates unicast IPv6 addresses. Many of the addresses are from a small set, so that table lookups find entries.
pub fn ipv6() -> impl Strategy<Value = Ipv6Addr> {
    let few = (0..3u16, 1..5u16).prop_map(|(net, host)| Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host));
    let all = any::<[u16; 8]>().prop_map(|mut words| {
        words[0] = 0x2000 | words[0] & 0x1fff;
        Ipv6Addr::from(words)
    });
    prop_oneof![few, all]
}

/// The headers after Ethernet and the VLAN tags.
#[derive(Clone, Debug)]
enum Network {
    Arp(u16, (MacAddr, Ipv4Addr), (MacAddr, Ipv4Addr)),
    Ipv4 { ends: (Ipv4Addr, Ipv4Addr), options: Vec<u8>, fragment: u16 },
    Ipv6 { ends: (Ipv6Addr, Ipv6Addr), extensions: Vec<u8>, fragment: Option<(u16, bool)> },
    Other(u16),
}

/// The headers after IP.
#[derive(Clone, Debug)]
enum Transport {
    Tcp(u16, u16, u8, Vec<u8>),
    Udp(u16, u16),
    Echo(bool, u16, u16),
    Icmp(u8, u8, [u8; 4]),
    Other(u8),
}

fn network() -> impl Strategy<Value = Network> {
    let arp = (1..3u16, (mac(), ipv4()), (mac(), ipv4())).prop_map(|(op, from, to)| Network::Arp(op, from, to));
    let offset = prop_oneof![
        6 => Just(0),
        2 => Just(ipv4::DONT_FRAGMENT),
        1 => Just(ipv4::MORE_FRAGMENTS),
        1 => (1..8000u16, any::<bool>()).prop_map(|(at, more)| at | if more { ipv4::MORE_FRAGMENTS } else { 0 }),
    ];
    let options = prop_oneof![3 => Just(Vec::new()), 1 => vec(any::<u8>(), 1..41)];
    let v4 = ((ipv4(), ipv4()), options, offset).prop_map(|(ends, options, fragment)| Network::Ipv4 {
        ends,
        options,
        fragment,
    });
    let fragment = prop_oneof![4 => Just(None), 1 => (0..8000u16, any::<bool>()).prop_map(Some)];
    let extensions = prop_oneof![3 => Just(Vec::new()), 1 => vec(0..4u8, 1..5)];
    let v6 = ((ipv6(), ipv6()), extensions, fragment).prop_map(|(ends, extensions, fragment)| Network::Ipv6 {
        ends,
        extensions,
        fragment,
    });
    let other = select(vec![0x88cc, 0x8847, 0x8863, 0x88f7, 100]).prop_map(Network::Other);
    prop_oneof![1 => arp, 4 => v4, 4 => v6, 1 => other]
}

fn transport() -> impl Strategy<Value = Transport> {
    let port = || prop_oneof![select(vec![22, 53, 80, 443]), any::<u16>()];
    let options = prop_oneof![2 => Just(Vec::new()), 1 => vec(any::<u8>(), 1..41)];
    prop_oneof![
        (port(), port(), any::<u8>(), options)
            .prop_map(|(from, to, flags, options)| Transport::Tcp(from, to, flags, options)),
        (port(), port()).prop_map(|(from, to)| Transport::Udp(from, to)),
        (any::<bool>(), any::<u16>(), any::<u16>()).prop_map(|(reply, id, at)| Transport::Echo(reply, id, at)),
        any::<(u8, u8, [u8; 4])>().prop_map(|(kind, code, rest)| Transport::Icmp(kind, code, rest)),
        select(vec![protocol::GRE, protocol::ESP, 89, 132]).prop_map(Transport::Other),
    ]
}

/// Generates valid frames with up to two VLAN tags and up to 200 bytes of payload. Layer 3 is ARP, IPv4 with options
/// and fragments, IPv6 with extension headers and fragments, or another EtherType. Layer 4 is TCP with options, UDP,
/// ICMP, ICMPv6 or another protocol. Lengths and checksums are correct.
pub fn valid_frame() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop_oneof![2 => vec(any::<u16>(), 0..1), 1 => vec(any::<u16>(), 1..3)];
    let tag = select(vec![ether_type::VLAN, ether_type::QINQ, ether_type::QINQ_OLD]);
    let ttl = prop_oneof![1 => 0..3u8, 3 => any::<u8>()];
    let payload = vec(any::<u8>(), 0..200);
    let pad = prop_oneof![Just(0), Just(60usize)];
    ((mac(), mac()), (tag, tags), network(), transport(), (ttl, any::<u8>()), payload, pad).prop_map(
        |(macs, (tag, tags), network, transport, (ttl, tos), payload, pad)| {
            let mut frame = Frame::new().ethernet(macs.0, macs.1).ttl(ttl).tos(tos).payload(&payload).pad_to(pad);
            for tci in tags {
                frame = frame.tag(tag, tci);
            }
            with_transport(frame, &transport, |frame| with_network(frame, &network, |frame| frame.build()))
        },
    )
}

/// Generates mutated frames: valid frames in which some bytes are changed, and which may be truncated or extended.
pub fn mutated_frame() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    // Change bytes in the headers more often, because most checks concern the headers.
    let early = vec((0..64usize, any::<u8>()), 0..4);
    (valid_frame(), changes, early, proptest::option::of(any::<Index>()), vec(any::<u8>(), 0..9)).prop_map(
        |(mut frame, changes, early, cut, tail)| {
            for (at, byte) in changes {
                *at.get_mut(&mut frame) = byte;
            }
            for (at, byte) in early {
                if let Some(place) = frame.get_mut(at) {
                    *place = byte;
                }
            }
            match cut {
                Some(at) => frame.truncate(at.index(frame.len())),
                None => frame.extend(tail),
            }
            frame
        },
    )
}

/// Generates up to 199 random bytes, possibly none.
pub fn noise() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..200)
}

/// Generates any input that a port may receive: [`valid_frame`], [`mutated_frame`] or [`noise`].
pub fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![2 => valid_frame(), 2 => mutated_frame(), 1 => noise()]
}

/// Adds the transport layer and passes the frame to `then`.
fn with_transport<T>(frame: Frame<'_>, transport: &Transport, then: impl FnOnce(Frame<'_>) -> T) -> T {
    then(match transport {
        Transport::Tcp(from, to, flags, options) => frame.tcp(*from, *to).tcp_flags(*flags).tcp_options(options),
        Transport::Udp(from, to) => frame.udp(*from, *to),
        Transport::Echo(false, id, at) => frame.echo_request(*id, *at),
        Transport::Echo(true, id, at) => frame.echo_reply(*id, *at),
        Transport::Icmp(kind, code, rest) => frame.icmp(*kind, *code, *rest),
        Transport::Other(protocol) => frame.protocol(*protocol),
    })
}

fn with_network<T>(frame: Frame<'_>, network: &Network, then: impl FnOnce(&Frame<'_>) -> T) -> T {
    match network {
        Network::Arp(operation, from, to) => then(&frame.arp(*operation, *from, *to)),
        Network::Ipv4 { ends: (from, to), options, fragment } => {
            then(&frame.ipv4(*from, *to).options(options).fragment(*fragment))
        }
        Network::Ipv6 { ends: (from, to), extensions, fragment } => {
            // Hop-by-hop options must be the first extension header.
            let extensions = extensions.iter().enumerate().map(|(place, kind)| match kind {
                0 if place == 0 => Extension::HopByHop(&[5, 2, 0, 0]),
                1 => Extension::Routing(&[4, 0, 0, 0]),
                2 => Extension::Authentication(&[7; 12]),
                _ => Extension::DestinationOptions(&[]),
            });
            let fragment = fragment.map(|(offset, more)| Extension::Fragment(offset, more, 77));
            let extensions: Vec<Extension<'_>> = extensions.chain(fragment).collect();
            then(&frame.ipv6(*from, *to).extensions(&extensions))
        }
        Network::Other(ether_type) => then(&frame.ether_type(*ether_type)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;
    use dataplane_core::header::parse::{Flags, dissect, verify_ipv4_checksum};

    fn samples(strategy: impl Strategy<Value = Vec<u8>>) -> Vec<Vec<u8>> {
        let mut runner = TestRunner::deterministic();
        let sample = |_| strategy.new_tree(&mut runner).expect("these strategies never reject").current();
        (0..2000).map(sample).collect()
    }

    #[test]
    fn valid_frames_are_valid_and_cover_every_kind() {
        let (mut flags, mut protocols) = (Flags::empty(), std::collections::BTreeSet::new());
        for frame in samples(valid_frame()) {
            let found = dissect(&frame).unwrap();
            assert_eq!(verify_ipv4_checksum(&frame, &found), Ok(()));
            flags |= found.flags;
            protocols.insert(found.protocol);
        }
        assert_eq!(flags, Flags::all());
        let all = [protocol::TCP, protocol::UDP, protocol::ICMP, protocol::ICMPV6, protocol::GRE, protocol::ESP];
        assert!(all.iter().all(|protocol| protocols.contains(protocol)), "{protocols:?}");
    }

    #[test]
    fn mutated_frames_have_many_kinds_of_errors_and_some_are_valid() {
        let found: Vec<_> = samples(mutated_frame()).iter().map(|frame| dissect(frame)).collect();
        let flaws: std::collections::HashSet<_> = found.iter().filter_map(|found| found.err()).collect();
        assert!(flaws.len() >= 12, "{flaws:?}");
        assert!(found.iter().any(Result::is_ok));
    }
}
