//! Tests that parse the errors with the independent parser `etherparse`.

use std::net::Ipv4Addr;

use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::parse::Parse;
use dataplane_core::harness::{Fate, Frame, Harness, Outcome, frame, port};
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::PortInfo;
use dataplane_testing::strategies;

const OURS: &str = "addresses = [{ port = 'b', address = '192.0.2.254' }, { port = 'b', address = '2001:db8::fe' }]";

/// Sets the first port as egress port.
struct ToFirstPort;

impl Stage for ToFirstPort {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        batch.iter_mut().for_each(|mut packet| packet.meta_mut().egress = 0);
    }
}

fn bench(kind: &str, more: &str) -> Harness {
    let parameters = format!("kind = '{kind}'\n{OURS}\n{more}");
    Harness::builder().after(Parse::default()).after(ToFirstPort).ingress(1).build::<IcmpError>(&parameters).unwrap()
}

fn v4() -> Frame<'static> {
    frame().ipv4([198, 51, 100, 7].into(), [203, 0, 113, 9].into())
}

fn v6() -> Frame<'static> {
    frame().ipv6("2001:db8:7::7".parse().unwrap(), "2001:db8:9::9".parse().unwrap())
}

/// Returns whether the stage has turned the packet into an error, which leaves by the output `reply`.
fn is_reply(outcome: &Outcome) -> bool {
    outcome.fate == Fate::Output("reply".to_owned())
}

/// Returns the drop reason of a packet, which must have been dropped.
fn reason(outcome: Outcome) -> String {
    match outcome.fate {
        Fate::Dropped(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ipv4_sender_gets_a_valid_error() {
    for (kind, expected) in [
        ("time_exceeded", (11, 0, 0)),
        ("net_unreachable", (3, 0, 0)),
        ("host_unreachable", (3, 1, 0)),
        ("prohibited", (3, 13, 0)),
        ("too_big", (3, 4, 1500)),
    ] {
        for tags in 0..3 {
            let sent = (0..tags).fold(v4(), |frame, tag| frame.vlan(tag + 5)).udp(1, 2).payload(&[7; 900]).build();
            let outcome = bench(kind, "").run_one(&sent);
            assert!(is_reply(&outcome), "{kind}");
            assert_eq!((outcome.meta.egress, outcome.meta.next_hop), (1, 0));
            assert_eq!(outcome.bytes[..6], sent[6..12]);
            assert_eq!(outcome.bytes[6..12], sent[..6]);
            let l3 = 14 + 4 * usize::from(tags);
            assert_eq!(outcome.bytes.len(), l3 + MOST_V4);
            assert_eq!((usize::from(outcome.meta.l3), usize::from(outcome.meta.l4)), (l3, l3 + 20));
            let parsed = SlicedPacket::from_ethernet(&outcome.bytes).unwrap();
            let Some(NetSlice::Ipv4(ip)) = &parsed.net else { panic!("{parsed:?}") };
            let header = ip.header();
            assert_eq!(header.source_addr(), Ipv4Addr::new(192, 0, 2, 254));
            assert_eq!(header.destination_addr(), Ipv4Addr::new(198, 51, 100, 7));
            assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
            let Some(TransportSlice::Icmpv4(icmp)) = &parsed.transport else { panic!("{parsed:?}") };
            let payload = icmp.payload();
            assert_eq!(icmp.checksum(), icmp.header().icmp_type.calc_checksum(payload));
            let five = icmp.bytes5to8();
            let mtu = u16::from_be_bytes([five[2], five[3]]);
            assert_eq!((icmp.type_u8(), icmp.code_u8(), mtu), expected);
            assert_eq!(payload, &sent[l3..l3 + payload.len()]);
        }
    }
}

#[test]
fn ipv6_sender_gets_a_valid_error() {
    for (kind, expected) in [
        ("time_exceeded", (3, 0, 0)),
        ("net_unreachable", (1, 0, 0)),
        ("host_unreachable", (1, 3, 0)),
        ("prohibited", (1, 1, 0)),
        ("too_big", (2, 0, 1500)),
    ] {
        let sent = v6().udp(1, 2).payload(&[7; 2000]).build();
        let outcome = bench(kind, "").run_one(&sent);
        assert!(is_reply(&outcome), "{kind}");
        assert_eq!(outcome.bytes.len(), 14 + MOST_V6);
        let parsed = SlicedPacket::from_ethernet(&outcome.bytes).unwrap();
        let Some(NetSlice::Ipv6(ip)) = &parsed.net else { panic!("{parsed:?}") };
        let (from, to) = (ip.header().source(), ip.header().destination());
        assert_eq!(ip.header().source_addr(), "2001:db8::fe".parse::<std::net::Ipv6Addr>().unwrap());
        assert_eq!(ip.header().destination_addr(), "2001:db8:7::7".parse::<std::net::Ipv6Addr>().unwrap());
        let Some(TransportSlice::Icmpv6(icmp)) = &parsed.transport else { panic!("{parsed:?}") };
        assert!(icmp.is_checksum_valid(from, to));
        assert_eq!((icmp.type_u8(), icmp.code_u8(), u32::from_be_bytes(icmp.bytes5to8())), expected);
        assert_eq!(icmp.payload(), &sent[14..14 + icmp.payload().len()]);
    }
}

/// Returns a harness whose second port has addresses in the config.
fn own_bench(kind: &str) -> Harness {
    let addresses = ["192.0.2.254/24", "2001:db8::fe/64"].map(|text| text.parse().unwrap());
    let ports = [port("a"), PortInfo { addresses: addresses.to_vec(), ..port("b") }];
    let builder = Harness::builder().ports(&ports).after(Parse::default()).after(ToFirstPort).ingress(1);
    builder.build::<IcmpError>(&format!("kind = '{kind}'")).unwrap()
}

#[test]
fn packet_to_this_host_gets_port_or_protocol_unreachable() {
    let to = |source: [u8; 4], to: [u8; 4]| frame().ipv4(source.into(), to.into());
    let (peer, here) = ([198, 51, 100, 7], [192, 0, 2, 254]);
    let to_v6 = |to: &str| frame().ipv6("2001:db8:7::7".parse().unwrap(), to.parse().unwrap());
    let mut bench = own_bench("port_unreachable");
    for (sent, expected) in [
        (to(peer, here).udp(1, 9), (1, 3, 3, 0)),
        (to(peer, here).tcp(1, 179), (1, 3, 3, 0)),
        (to(peer, here).protocol(89).payload(&[0; 24]), (1, 3, 2, 0)),
        (to_v6("2001:db8::fe").udp(1, 9), (6, 1, 4, 0)),
        (to_v6("2001:db8::fe").protocol(89).payload(&[0; 24]), (6, 4, 1, 6)),
    ] {
        let outcome = bench.run_one(&sent.build());
        assert!(is_reply(&outcome), "{expected:?}: {:?}", outcome.fate);
        let at = if expected.0 == 1 { 34 } else { 54 };
        let error = &outcome.bytes[at..at + 8];
        let rest = u32::from_be_bytes(error[4..].try_into().unwrap());
        assert_eq!((error[0], error[1], rest), (expected.1, expected.2, expected.3));
    }
    for without_error in [
        to(peer, here).icmp(0, 0, [0; 4]).build(),
        to(peer, here).icmp(8, 0, [0; 4]).build(),
        to_v6("2001:db8::fe").icmp(129, 0, [0; 4]).build(),
        to(peer, [192, 0, 2, 9]).udp(1, 9).build(),
        to(peer, [192, 0, 2, 255]).udp(1, 9).build(),
        to([192, 0, 2, 255], here).udp(1, 9).build(),
        to(here, here).udp(1, 9).build(),
        to_v6("2001:db8::9").udp(1, 9).build(),
    ] {
        assert_eq!(reason(bench.run_one(&without_error)), "no_error_allowed");
    }
    // With `time_exceeded`, packets from an address of this host or from a broadcast address get no error.
    let mut bench = own_bench("time_exceeded");
    assert!(is_reply(&bench.run_one(&to(peer, [203, 0, 113, 9]).udp(1, 2).build())));
    for source in [here, [192, 0, 2, 255], [192, 0, 2, 0]] {
        assert_eq!(reason(bench.run_one(&to(source, [203, 0, 113, 9]).udp(1, 2).build())), "no_error_allowed");
    }
}

#[test]
fn short_packet_is_quoted_without_its_padding() {
    let sent = v4().udp(1, 2).payload(&[1, 2, 3]).pad_to(60).build();
    let outcome = bench("time_exceeded", "").run_one(&sent);
    assert_eq!(outcome.bytes.len(), 14 + 28 + 31);
    assert_eq!(outcome.bytes[14 + 28..], sent[14..14 + 31]);
}

#[test]
fn no_error_is_sent_for_icmp_errors_multicast_packets_and_later_fragments() {
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let from = MacAddr([2, 0, 0, 0, 0, 1]);
    let (a, b) = ([198, 51, 100, 7], [203, 0, 113, 9]);
    let without_error = [
        v4().icmp(11, 0, [0; 4]).build(),
        v4().icmp(3, 1, [0; 4]).build(),
        v4().icmp(5, 0, [0; 4]).build(),
        v4().icmp(12, 0, [0; 4]).build(),
        v6().icmp(1, 0, [0; 4]).build(),
        v6().icmp(2, 0, [0; 4]).build(),
        v6().icmp(137, 0, [0; 4]).build(),
        v4().fragment(100).udp(1, 2).payload(&[0; 16]).build(),
        v4().ethernet(from, group).udp(1, 2).build(),
        v4().ethernet(group, from).udp(1, 2).build(),
        frame().ipv4(a.into(), [224, 0, 0, 5].into()).udp(1, 2).build(),
        frame().ipv4(a.into(), [255; 4].into()).udp(1, 2).build(),
        frame().ipv4([0; 4].into(), b.into()).udp(1, 2).build(),
        frame().ipv4([127, 0, 0, 1].into(), b.into()).udp(1, 2).build(),
        frame().ipv4([240, 0, 0, 1].into(), b.into()).udp(1, 2).build(),
        frame().ipv4([224, 0, 0, 1].into(), b.into()).udp(1, 2).build(),
        frame().ipv6("::".parse().unwrap(), "2001:db8:9::9".parse().unwrap()).udp(1, 2).build(),
        frame().ipv6("2001:db8:7::7".parse().unwrap(), "ff02::5".parse().unwrap()).udp(1, 2).build(),
        frame().arp(1, ([1; 6].into(), a.into()), ([0; 6].into(), b.into())).build(),
    ];
    let mut bench = bench("time_exceeded", "");
    for (place, frame) in without_error.iter().enumerate() {
        assert_eq!(reason(bench.run_one(frame)), "no_error_allowed", "{place}");
    }
    assert!(is_reply(&bench.run_one(&v4().echo_request(1, 2).build())));
    assert!(is_reply(&bench.run_one(&v4().fragment(0x2000).udp(1, 2).payload(&[0; 16]).build())));
    assert!(is_reply(&bench.run_one(&v6().echo_request(1, 2).build())));
}

#[test]
fn ipv6_multicast_packet_gets_too_big_error() {
    let to_group = frame().ipv6("2001:db8:7::7".parse().unwrap(), "ff0e::5".parse().unwrap()).udp(1, 2).build();
    assert!(is_reply(&bench("too_big", "").run_one(&to_group)));
    assert_eq!(reason(bench("prohibited", "").run_one(&to_group)), "no_error_allowed");
}

/// One host sends 5,000 packets per second that are too big, and another host sends 10 such packets per second.
#[test]
fn flood_of_one_host_does_not_use_up_the_errors_of_other_hosts() {
    let mut bench = bench("too_big", "");
    let from = |host: u8| frame().ipv4([198, 51, 100, host].into(), [203, 0, 113, 9].into()).udp(1, 2).build();
    let (flood, other) = (vec![from(1); 50], from(2));
    let (mut sent, mut flooded) = (0, 0);
    for round in 0..300 {
        bench.advance(10_000_000);
        flooded += bench.run(&flood).iter().filter(|outcome| is_reply(outcome)).count();
        if round % 10 == 0 {
            sent += usize::from(is_reply(&bench.run_one(&other)));
        }
    }
    assert_eq!(sent, 30);
    // A burst of 10 errors, and 50 errors per second for three seconds.
    assert!((150..=160).contains(&flooded), "{flooded}");
    assert_eq!(reason(bench.run_one(&flood[0])), "host_rate_exceeded");
}

/// If there are more hosts than entries in the table of host limits, the hosts share the total rate.
#[test]
fn errors_to_many_hosts_have_a_total_limit() {
    for v6 in [false, true] {
        let mut bench = bench("time_exceeded", "per_second = 100\nburst = 20");
        let mut replies = 0;
        for number in 0..20_000u32 {
            let [_, a, b, c] = number.to_be_bytes();
            let packet = match v6 {
                false => frame().ipv4([10, a, b, c].into(), [203, 0, 113, 9].into()),
                true => {
                    frame().ipv6([0x2001, 0xdb8, number as u16, 0, 0, 0, 0, 1].into(), "2001:db8::9".parse().unwrap())
                }
            };
            replies += usize::from(is_reply(&bench.run_one(&packet.udp(1, 2).build())));
        }
        assert_eq!(replies, 20);
    }
}

/// All hosts of an IPv6 network with a 64-bit prefix share a limit, because one host can use all addresses of the
/// network.
#[test]
fn ipv6_hosts_of_one_network_share_a_limit() {
    let mut bench = bench("time_exceeded", "per_host = 4\nburst = 20");
    let packets = (0..9u16).map(|host| {
        let source = [0x2001, 0xdb8, 0, 7, 0, 0, 0, host + 1].into();
        frame().ipv6(source, "2001:db8::9".parse().unwrap()).udp(1, 2).build()
    });
    let fates: Vec<String> = packets
        .map(|packet| match bench.run_one(&packet).fate {
            Fate::Dropped(reason) => reason,
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(fates[4..], ["host_rate_exceeded"; 5], "{fates:?}");
}

#[test]
fn error_rate_is_limited() {
    let mut bench = bench("time_exceeded", "per_second = 10\nburst = 3");
    let hosts = (1..9u8).map(|host| frame().ipv4([198, 51, 100, host].into(), [203, 0, 113, 9].into()));
    let frames: Vec<Vec<u8>> = hosts.map(|frame| frame.udp(1, 2).build()).collect();
    let count_replies = |outcomes: Vec<Outcome>| outcomes.iter().filter(|outcome| is_reply(outcome)).count();
    assert_eq!(count_replies(bench.run(&frames)), 3);
    assert_eq!(reason(bench.run_one(&frames[7])), "rate_exceeded");
    bench.advance(200_000_000);
    assert_eq!(count_replies(bench.run(&frames)), 2);
}

#[test]
fn rate_limits_move_to_another_program_and_to_another_graph() {
    let parameters = "per_second = 10\nper_host = 1\nburst = 10";
    let from = |host: u8| frame().ipv4([198, 51, 100, host].into(), [203, 0, 113, 9].into()).udp(1, 2).build();
    let count_replies = |outcomes: Vec<Outcome>| outcomes.iter().filter(|outcome| is_reply(outcome)).count();
    fn stage(bench: &mut Harness) -> &mut IcmpError {
        bench.stage().downcast().unwrap()
    }
    let used = || {
        let mut old = bench("time_exceeded", parameters);
        old.advance(1_000_000_000);
        // A fifth of the burst goes to one host.
        assert_eq!(count_replies(old.run(&[from(1), from(1), from(1)])), 2);
        old
    };
    let check = |new: &mut Harness| {
        assert_eq!(reason(new.run_one(&from(1))), "host_rate_exceeded");
        let others: Vec<_> = (2..15).map(from).collect();
        assert_eq!(count_replies(new.run(&others)), 8);
    };
    let (mut old, mut new) = (used(), bench("time_exceeded", parameters));
    let state = stage(&mut old).save_state().unwrap();
    stage(&mut new).load_state(&state).unwrap();
    check(&mut new);
    // A host gets its tokens back at the rate of its limit.
    new.advance(1_000_000_000);
    assert!(is_reply(&new.run_one(&from(1))));
    assert_eq!(reason(new.run_one(&from(1))), "host_rate_exceeded");
    for wrong in [&state[..state.len() - 1], &[], &[1], &[&[9], &state[1..]].concat()] {
        assert!(stage(&mut new).load_state(wrong).is_err(), "{wrong:?}");
    }
    let (mut old, mut new) = (used(), bench("time_exceeded", parameters));
    new.advance(1_000_000_000);
    stage(&mut new).adopt(stage(&mut old));
    check(&mut new);
}

#[test]
fn port_without_an_address_sends_no_error() {
    let parameters = "kind = 'time_exceeded'\naddresses = [{ port = 'a', address = '192.0.2.1' }]";
    let mut bench = Harness::builder().after(Parse::default()).ingress(1).build::<IcmpError>(parameters).unwrap();
    assert_eq!(reason(bench.run_one(&v4().udp(1, 2).build())), "no_address");
}

#[test]
fn invalid_parameters_are_refused_with_their_key() {
    for (parameters, message) in [
        ("", "addresses: no port has an address, so errors have no source address"),
        ("per_second = 0", "per_second: 0 allows no error"),
        ("addresses = [{ port = 'c', address = '192.0.2.1' }]", "addresses[0].port: there is no port `c`"),
        ("addresses = [{ port = 'a', address = '224.0.0.1' }]", "addresses[0].address: 224.0.0.1 is not the address"),
        (
            "addresses = [{ port = 'a', address = '192.0.2.1' }, { port = 'a', address = '192.0.2.2' }]",
            "addresses[1].address: port `a` already has the address 192.0.2.1",
        ),
        (
            "source = 'kernel'\naddresses = [{ port = 'a', address = '192.0.2.1' }]",
            "source: the addresses come from the kernel or",
        ),
    ] {
        let error = Harness::from_toml::<IcmpError>(&format!("kind = 'too_big'\n{parameters}")).err().unwrap();
        assert!(error.starts_with(message), "{error}");
    }
}

proptest! {
    #[test]
    fn any_frame_gets_a_valid_error_or_none(
        frames in prop::collection::vec(strategies::any_frame(), 1..30),
        kind in prop::sample::select(vec!["time_exceeded", "too_big", "prohibited"]),
    ) {
        for outcome in bench(kind, "").run(&frames) {
            if !is_reply(&outcome) {
                continue;
            }
            let parsed = SlicedPacket::from_ethernet(&outcome.bytes).unwrap();
            match (&parsed.net, &parsed.transport) {
                (Some(NetSlice::Ipv4(_)), Some(TransportSlice::Icmpv4(icmp))) => {
                    prop_assert_eq!(icmp.checksum(), icmp.header().icmp_type.calc_checksum(icmp.payload()));
                    prop_assert!(!matches!(icmp.icmp_type(), Icmpv4Type::EchoRequest(_)));
                }
                (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(icmp))) => {
                    prop_assert!(icmp.is_checksum_valid(ip.header().source(), ip.header().destination()));
                    prop_assert!(!matches!(icmp.icmp_type(), Icmpv6Type::EchoRequest(_)));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
