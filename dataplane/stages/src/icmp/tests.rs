use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::parse::Parse;
use dataplane_core::harness::{Fate, Harness, Outcome, frame};
use dataplane_core::header::build::{Extension, Frame};
use dataplane_core::header::ipv4;
use dataplane_core::header::parse::{dissect, verify_ipv4_checksum};
use dataplane_testing::strategies;

const ASKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The MAC address of the second port of the test harness.
const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 11]);
const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2)];
/// The solicited-node multicast address of the second IPv6 address.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 2);
const GROUP_MAC: MacAddr = MacAddr([0x33, 0x33, 0xff, 0, 0, 2]);

fn harness(more: &str) -> Result<Harness, String> {
    let parameters = format!("addresses = ['10.0.0.2', '2001:db8::2']\n{more}");
    Harness::builder().after(Parse::default()).ingress(1).build::<Icmp>(&parameters)
}

fn run(bytes: &[u8]) -> Outcome {
    harness("").unwrap().run_one(bytes)
}

fn from_asker() -> Frame<'static> {
    frame().ethernet(ASKER, OURS)
}

fn reply_output() -> Fate {
    Fate::Output("reply".to_owned())
}

proptest! {
    #[test]
    fn echo_request_becomes_echo_reply(
        v6 in any::<bool>(),
        (id, sequence, tos, ttl) in any::<(u16, u16, u8, u8)>(),
        tags in prop::collection::vec(any::<u16>(), 0..3),
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let between = |macs: (MacAddr, MacAddr), from: usize, to: usize| {
            let frame = tags.iter().fold(frame().ethernet(macs.0, macs.1), |frame, tag| frame.vlan(*tag));
            let frame = frame.tos(tos).payload(&payload).pad_to(60);
            if v6 { frame.ipv6(V6[from], V6[to]) } else { frame.ipv4(V4[from], V4[to]).identification(id) }
        };
        let request = between((ASKER, OURS), 0, 1).ttl(ttl).echo_request(id, sequence).build();
        let reply = between((OURS, ASKER), 1, 0).ttl(64).echo_reply(id, sequence).build();
        let outcome = run(&request);
        prop_assert_eq!((outcome.fate, outcome.meta.egress), (reply_output(), 1));
        prop_assert_eq!(outcome.bytes, reply);
    }

    #[test]
    fn replies_are_valid_and_other_frames_are_unchanged(frame in strategies::any_frame()) {
        let parameters = "addresses = ['10.0.0.1', '10.0.1.1', '10.0.2.2', '2001:db8::1', '2001:db8:1::2']";
        let mut harness = Harness::builder().after(Parse::default()).build::<Icmp>(parameters).unwrap();
        let outcome = harness.run_one(&frame);
        if outcome.fate == reply_output() {
            let found = dissect(&outcome.bytes).unwrap();
            prop_assert_eq!(verify_ipv4_checksum(&outcome.bytes, &found), Ok(()));
            prop_assert!(outcome.bytes[..6] == frame[6..12]);
        } else {
            prop_assert_eq!(outcome.bytes, frame);
        }
    }
}

#[test]
fn request_with_wrong_checksum_is_dropped_if_it_is_for_this_host() {
    for (ours, others) in [
        (from_asker().ipv4(V4[0], V4[1]), from_asker().ipv4(V4[0], V4[0])),
        (from_asker().ipv6(V6[0], V6[1]), from_asker().ipv6(V6[0], V6[0])),
    ] {
        let corrupted = |frame: Frame<'_>| {
            let mut bytes = frame.echo_request(1, 2).payload(b"payload").build();
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        };
        assert_eq!(run(&corrupted(ours)).fate, Fate::Dropped("bad_checksum".to_owned()));
        assert_eq!(run(&corrupted(others)).fate, Fate::Next);
    }
}

#[test]
fn packets_that_must_not_be_answered_go_to_the_next_stage() {
    let v4 = |from: [u8; 4]| from_asker().ipv4(from.into(), V4[1]).echo_request(1, 2);
    let v6 = |from: &str| from_asker().ipv6(from.parse().unwrap(), V6[1]).echo_request(1, 2);
    let group = MacAddr([3, 0, 0, 0, 0, 1]);
    let options = [Extension::DestinationOptions(&[])];
    for (what, bytes) in [
        ("another address", from_asker().ipv4(V4[1], V4[0]).echo_request(1, 2).build()),
        ("a reply", from_asker().ipv4(V4[0], V4[1]).echo_reply(1, 2).build()),
        ("an IPv6 reply", from_asker().ipv6(V6[0], V6[1]).echo_reply(1, 2).build()),
        ("another code", from_asker().ipv4(V4[0], V4[1]).icmp(8, 1, [0; 4]).build()),
        ("a datagram", from_asker().ipv4(V4[0], V4[1]).udp(1, 2).build()),
        (
            "ICMPv6 in IPv4",
            from_asker().ipv4(V4[0], V4[1]).protocol(58).payload(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]).build(),
        ),
        ("a fragment", v4([10, 0, 0, 1]).fragment(ipv4::MORE_FRAGMENTS).build()),
        ("options", v4([10, 0, 0, 1]).options(&[1; 4]).build()),
        ("extension headers", v6("2001:db8::1").extensions(&options).build()),
        ("from a multicast address", v4([224, 0, 0, 1]).build()),
        ("from the broadcast address", v4([255; 4]).build()),
        ("from the unspecified address", v4([0; 4]).build()),
        ("from an IPv6 multicast address", v6("ff02::1").build()),
        ("from the unspecified IPv6 address", v6("::").build()),
        ("from a multicast MAC address", v4([10, 0, 0, 1]).ethernet(group, OURS).build()),
        ("to the broadcast MAC address", v4([10, 0, 0, 1]).ethernet(ASKER, MacAddr::BROADCAST).build()),
        ("to a multicast MAC address", v6("2001:db8::1").ethernet(ASKER, group).build()),
    ] {
        let outcome = run(&bytes);
        assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, bytes), "{what}");
    }
    let mut elsewhere = harness("port = 'a'").unwrap();
    assert_eq!(elsewhere.run_one(&v4([10, 0, 0, 1]).build()).fate, Fate::Next);
}

/// Returns the bytes of a target address followed by options.
fn ask(target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
    [&target.octets()[..], options].concat()
}

/// Returns a neighbor solicitation with this content.
fn solicitation<'a>(from: Ipv6Addr, content: &'a [u8]) -> Frame<'a> {
    let frame = Frame::new().ethernet(ASKER, GROUP_MAC).ipv6(from, GROUP).ttl(255);
    frame.icmp(icmp::V6_NEIGHBOR_SOLICITATION, 0, [0; 4]).payload(content)
}

const SOURCE: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 1];
const NONCE: [u8; 16] = [14, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

fn advertisement(to: (MacAddr, Ipv6Addr), flags: u8, tags: &[u16]) -> Vec<u8> {
    let content = ask(V6[1], &[2, 1, 2, 0, 0, 0, 0, 11]);
    let frame = tags.iter().fold(Frame::new().ethernet(OURS, to.0), |frame, tag| frame.vlan(*tag));
    let frame = frame.ipv6(V6[1], to.1).ttl(255);
    frame.icmp(icmp::V6_NEIGHBOR_ADVERTISEMENT, 0, [flags, 0, 0, 0]).payload(&content).build()
}

#[test]
fn solicitation_becomes_advertisement() {
    for options in [&[][..], &SOURCE, &[SOURCE.as_slice(), &NONCE].concat()] {
        for tags in [&[][..], &[7]] {
            let content = ask(V6[1], options);
            let asked = tags.iter().fold(solicitation(V6[0], &content), |frame, tag| frame.vlan(*tag));
            let outcome = run(&asked.build());
            assert_eq!((outcome.fate, outcome.meta.egress), (reply_output(), 1));
            assert_eq!(outcome.bytes, advertisement((ASKER, V6[0]), 0xe0, tags));
            assert_eq!(usize::from(outcome.meta.end), outcome.bytes.len());
        }
    }
    let content = ask(V6[1], &SOURCE);
    let mut host = harness("router = false\nmac = '02:00:00:00:00:0b'\nport = 'b'").unwrap();
    let outcome = host.run_one(&solicitation(V6[0], &content).build());
    assert_eq!(outcome.bytes, advertisement((ASKER, V6[0]), 0x60, &[]));
}

#[test]
fn duplicate_address_check_is_answered_by_multicast_to_all_nodes() {
    let content = ask(V6[1], &NONCE);
    let outcome = run(&solicitation(Ipv6Addr::UNSPECIFIED, &content).build());
    let all = (MacAddr([0x33, 0x33, 0, 0, 0, 1]), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    assert_eq!((outcome.fate, outcome.bytes), (reply_output(), advertisement(all, 0xa0, &[])));
}

#[test]
fn invalid_solicitations_are_dropped_and_solicitations_for_other_hosts_pass() {
    let (plain, source) = (ask(V6[1], &[]), ask(V6[1], &SOURCE));
    let other = ask(V6[0], &[]);
    let (empty, long, odd) =
        (ask(V6[1], &[1, 0, 0, 0, 0, 0, 0, 0]), ask(V6[1], &[1, 2, 0, 0, 0, 0, 0, 0]), ask(V6[1], &[1]));
    for (what, frame) in [
        ("hop limit below 255", solicitation(V6[0], &plain).ttl(254)),
        ("another code", solicitation(V6[0], &plain).icmp(icmp::V6_NEIGHBOR_SOLICITATION, 1, [0; 4])),
        ("from a multicast address", solicitation(GROUP, &plain)),
        ("too short", solicitation(V6[0], &plain[..15])),
        ("an empty option", solicitation(V6[0], &empty)),
        ("an option that is too long", solicitation(V6[0], &long)),
        ("half an option", solicitation(V6[0], &odd)),
        ("from the unspecified address, with a source option", solicitation(Ipv6Addr::UNSPECIFIED, &source)),
        (
            "from the unspecified address, to a unicast address",
            solicitation(Ipv6Addr::UNSPECIFIED, &plain).ipv6(Ipv6Addr::UNSPECIFIED, V6[1]),
        ),
    ] {
        assert_eq!(run(&frame.build()).fate, Fate::Dropped("bad_solicitation".to_owned()), "{what}");
    }
    let mut corrupted = solicitation(V6[0], &plain).build();
    corrupted[56] ^= 1;
    assert_eq!(run(&corrupted).fate, Fate::Dropped("bad_checksum".to_owned()));
    assert_eq!(run(&solicitation(V6[0], &other).build()).fate, Fate::Next);
}

#[test]
fn reply_can_use_the_space_of_the_padding() {
    let content = ask(V6[1], &[]);
    let asked = solicitation(V6[0], &content).pad_to(200).build();
    let outcome = run(&asked);
    assert_eq!((outcome.fate, outcome.bytes), (reply_output(), advertisement((ASKER, V6[0]), 0xe0, &[])));
}

#[test]
fn reply_without_tailroom_is_dropped() {
    /// Moves the packet to the end of its slot, so that there is no tailroom.
    struct MoveToEnd;
    impl Stage for MoveToEnd {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            for mut packet in batch.iter_mut() {
                let (len, bytes, meta) = (packet.len(), packet.data().to_vec(), *packet.meta());
                let room = packet.tailroom();
                packet.append(room).expect("the tailroom was measured before").fill(0);
                assert!(packet.trim_front(room));
                packet.data_mut()[..len].copy_from_slice(&bytes);
                *packet.meta_mut() = meta;
            }
        }
    }
    let content = ask(V6[1], &[]);
    let asked = solicitation(V6[0], &content).build();
    let builder = Harness::builder().after(Parse::default()).ingress(1).after(MoveToEnd);
    let outcome = builder.build::<Icmp>("addresses = ['2001:db8::2']").unwrap().run_one(&asked);
    assert_eq!((outcome.fate, outcome.bytes), (Fate::Dropped("no_tailroom".to_owned()), asked));
}

#[test]
fn reply_output_sets_egress_and_a_ttl_of_zero_is_refused() {
    let mut stage = harness("").unwrap();
    assert_eq!(
        (stage.stage().contract().sets, stage.stage().contract().sets_on_outputs),
        (Facts::empty(), Facts::EGRESS)
    );
    let error = harness("ttl = 0").err().unwrap();
    assert_eq!(error, "ttl: a reply with a TTL of 0 cannot be forwarded; help: set a TTL from 1 to 255");
}
