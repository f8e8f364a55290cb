//! `parse`: finds the headers of a frame, once for all stages.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::checksum::header_fits;
use crate::header::parse::{
    Dissection, Flags, Malformed, USUAL, dissect, dissect_head, dissect_usual, verify_ipv4_checksum,
};
use crate::header::protocol;
use crate::mem::{Batch, Edge, Head, Meta, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Problem, Setup, Stage};

/// Finds the headers of every packet, and drops malformed ones.
///
/// It follows Ethernet, up to two VLAN tags, and ARP, IPv4 with options or IPv6 with up to eight extension headers to
/// TCP, UDP, ICMP or ICMPv6. IPv4 and IPv6 go on to the next stage.
///
/// It also hashes the flow: addresses, protocol and the ports of TCP and UDP, the same in both directions. Fragments,
/// the first included, are hashed without ports, so that all fragments of a datagram are alike. The hash is the same on
/// every machine and in every run; it is no defence against traffic that was made to collide. Where no stage of the pipeline
/// needs the hash it stays 0.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "parse"
/// use = "parse"
/// verify_checksum = true
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parse {
    /// Whether IPv4 headers with a wrong checksum are dropped.
    #[serde(default = "yes")]
    pub verify_checksum: bool,
    /// Whether nobody needs the hash of the flow.
    #[serde(skip)]
    #[schemars(skip)]
    unhashed: bool,
}

const fn yes() -> bool {
    true
}

impl Default for Parse {
    fn default() -> Self {
        Self { verify_checksum: yes(), unhashed: false }
    }
}

const ARP: Edge = Edge::new(0);
const OTHER: Edge = Edge::new(1);
const BAD_EXTENSION: Reason = Reason::own(0);

impl Stage for Parse {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        // A loop of its own for each: what is the same for all packets is not asked of each.
        match (self.verify_checksum, self.unhashed) {
            (true, true) => self.find::<true, false>(batch),
            (true, false) => self.find::<true, true>(batch),
            (false, true) => self.find::<false, false>(batch),
            (false, false) => self.find::<false, true>(batch),
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("arp", "ARP messages"), ("other", "frames that are neither ARP nor IPv4 nor IPv6, such as LLDP")]
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[(
            "bad_extension",
            "IPv6 hop-by-hop options that are not first, or an authentication header that is too short",
        )]
    }

    fn sets(&self) -> Facts {
        if self.unhashed { Facts::HEADERS } else { Facts::HEADERS | Facts::FLOW_HASH }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        self.unhashed = !setup.wants(Facts::FLOW_HASH);
        Ok(())
    }
}

impl Parse {
    #[inline]
    fn find<const VERIFY: bool, const HASH: bool>(&self, batch: &mut Batch) {
        let usual = batch.located_heads().map_while(find_usual::<VERIFY, HASH>).count();
        if usual == batch.len() {
            return batch.set_plain();
        }
        for mut packet in batch.iter_mut_from(usual) {
            // Of a frame of the usual kind the compiler knows where everything is.
            if let Some(found) = dissect_usual(packet.data()) {
                self.settle::<HASH>(&mut packet, &found);
                continue;
            }
            match dissect(packet.data()) {
                Ok(found) => self.settle::<HASH>(&mut packet, &found),
                Err(flaw) => packet.drop(reason(flaw)),
            }
        }
    }

    /// Writes down what was found, and says where the packet goes.
    #[inline(always)]
    fn settle<const HASH: bool>(&self, packet: &mut Packet<'_>, found: &Dissection) {
        if self.verify_checksum && !checksum_fits(packet.data(), found) {
            return packet.drop(Reason::BadChecksum);
        }
        let flow_hash = if HASH { flow_hash(packet.data(), found) } else { 0 };
        note(packet.meta_mut(), found, flow_hash);
        if !found.flags.intersects(Flags::IPV4 | Flags::IPV6) {
            packet.steer(if found.flags.contains(Flags::ARP) { ARP } else { OTHER });
        }
    }
}

/// Writes down what is found of a frame of the usual kind. `None`: it is of another, or its checksum is wrong.
#[inline(always)]
fn find_usual<const VERIFY: bool, const HASH: bool>(head: Head<'_, USUAL>) -> Option<()> {
    let found = dissect_head(head.bytes, head.len.into())?;
    if VERIFY && !checksum_fits(head.bytes, &found) {
        return None;
    }
    note(head.meta, &found, if HASH { flow_hash(head.bytes, &found) } else { 0 });
    Some(())
}

/// Finds the headers anew of a packet that a stage has made another of.
pub(super) fn again(packet: &mut Packet<'_>) -> Result<(), Malformed> {
    let found = dissect(packet.data())?;
    let flow_hash = flow_hash(packet.data(), &found);
    note(packet.meta_mut(), &found, flow_hash);
    Ok(())
}

/// The reason that a flaw is counted under.
fn reason(flaw: Malformed) -> Reason {
    match flaw {
        Malformed::Runt => Reason::Runt,
        Malformed::Oversize => Reason::TooLong,
        Malformed::TruncatedVlan
        | Malformed::TruncatedArp
        | Malformed::TruncatedIpv4
        | Malformed::Ipv4LengthAboveFrame
        | Malformed::TruncatedIpv6
        | Malformed::Ipv6LengthAboveFrame
        | Malformed::TruncatedIpv6Extension
        | Malformed::TruncatedTcp
        | Malformed::TruncatedUdp
        | Malformed::TruncatedIcmp => Reason::Truncated,
        Malformed::TooManyVlanTags | Malformed::TooManyIpv6Extensions => Reason::TooManyHeaders,
        Malformed::BadIpv4Version | Malformed::BadIpv6Version => Reason::BadVersion,
        Malformed::BadIpv4HeaderLength | Malformed::BadTcpDataOffset => Reason::BadHeaderLength,
        Malformed::Ipv4LengthBelowHeader | Malformed::BadUdpLength => Reason::BadLength,
        Malformed::BadIpv4Checksum => Reason::BadChecksum,
        Malformed::BadIpv6Extension => BAD_EXTENSION,
    }
}

/// Whether the IPv4 header, if there is one, has its right checksum.
#[inline(always)]
fn checksum_fits(frame: &[u8], found: &Dissection) -> bool {
    if found.flags.intersection(Flags::IPV4 | Flags::IP_OPTIONS) == Flags::IPV4 {
        // Nearly all headers have no options: of a known length the sum is a handful of additions.
        let header = frame.get(usize::from(found.l3)..).and_then(|ip| ip.first_chunk::<20>());
        return header.is_some_and(header_fits);
    }
    verify_ipv4_checksum(frame, found).is_ok()
}

/// Writes down what was found, and leaves what others have.
#[inline(always)]
fn note(meta: &mut Meta, found: &Dissection, flow_hash: u32) {
    const SAME: Flags =
        Flags::IPV4.union(Flags::IPV6).union(Flags::ARP).union(Flags::FRAGMENT).union(Flags::FIRST_FRAGMENT);
    const {
        assert!(MetaFlags::IPV4.bits() == Flags::IPV4.bits() && MetaFlags::IPV6.bits() == Flags::IPV6.bits());
        assert!(MetaFlags::ARP.bits() == Flags::ARP.bits() && MetaFlags::FRAGMENT.bits() == Flags::FRAGMENT.bits());
        assert!(MetaFlags::FIRST_FRAGMENT.bits() == Flags::FIRST_FRAGMENT.bits());
    }
    let mut flags = MetaFlags::from_bits_retain(found.flags.intersection(SAME).bits());
    flags.set(MetaFlags::L4, found.flags.contains(Flags::L4_OK));
    flags.set(MetaFlags::VLAN, found.vlan_tags > 0);
    flags.set(MetaFlags::QINQ, found.vlan_tags > 1);
    meta.l3 = found.l3;
    meta.l4 = found.l4;
    meta.end = found.end;
    meta.ether_type = found.ether_type;
    meta.vlan = found.outer_tci;
    meta.flags = flags;
    meta.protocol = found.protocol;
    meta.flow_hash = flow_hash;
}

/// Two odd numbers without a pattern: the fractional parts of the square roots of 2 and 3.
const SEEDS: [u64; 2] = [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b];

/// The flow of a packet: both ends, however they are told apart, and what they speak.
#[inline(always)]
fn flow_hash(frame: &[u8], found: &Dissection) -> u32 {
    let ports = if matches!(found.protocol, protocol::TCP | protocol::UDP)
        && found.flags.intersection(Flags::L4_OK | Flags::FRAGMENT) == Flags::L4_OK
    {
        frame.get(usize::from(found.l4)..).and_then(|l4| l4.first_chunk::<4>())
    } else {
        None
    };
    let [a, b, c, d] = ports.copied().unwrap_or_default();
    let (source, destination) = (u64::from(u16::from_be_bytes([a, b])), u64::from(u16::from_be_bytes([c, d])));
    let l3 = frame.get(usize::from(found.l3)..).unwrap_or_default();
    let ends = if found.flags.contains(Flags::IPV4) {
        let Some((_, [a, b, c, d, e, f, g, h])) = l3.first_chunk::<20>().and_then(|ip| ip.split_last_chunk()) else {
            return 0;
        };
        let end = |address: [u8; 4], port| mix(u64::from(u32::from_be_bytes(address)) << 16 | port, 0);
        end([*a, *b, *c, *d], source).wrapping_add(end([*e, *f, *g, *h], destination))
    } else if found.flags.contains(Flags::IPV6) {
        let Some((_, addresses)) = l3.first_chunk::<40>().and_then(|ip| ip.split_last_chunk::<32>()) else { return 0 };
        let word = |at: usize| u64::from_be_bytes(addresses.as_chunks().0[at]);
        // A port is spread over the word, lest it undo the difference of two neighbouring networks.
        let end = |at: usize, port: u64| mix(word(at) ^ port.wrapping_mul(SEEDS[1]), word(at + 1));
        end(0, source).wrapping_add(end(2, destination))
    } else {
        let Some([a, b, c, d, e, f, g, h, i, j, k, l]) = frame.first_chunk() else { return 0 };
        let end = |mac: [u8; 6]| {
            let [a, b, c, d, e, f] = mac;
            mix(u64::from_be_bytes([0, 0, a, b, c, d, e, f]), 0)
        };
        end([*a, *b, *c, *d, *e, *f]).wrapping_add(end([*g, *h, *i, *j, *k, *l]))
    };
    let hash = mix(ends, u64::from(found.ether_type) << 8 | u64::from(found.protocol));
    (hash >> 32) as u32
}

/// One number of two, every bit of which depends on all of theirs: both halves of their product.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ SEEDS[0]) * u128::from(b ^ SEEDS[1]);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::header::build::{Extension, Frame};
    use crate::header::{ether_type, ipv4};
    use crate::testing::{Fate, Harness, frame};

    /// With the hash of the flow.
    fn hashing() -> Harness {
        Harness::builder().wanting(Facts::FLOW_HASH).build::<Parse>("").unwrap()
    }

    fn parse(bytes: &[u8]) -> crate::testing::Outcome {
        hashing().run_one(bytes)
    }

    fn v4() -> Frame<'static> {
        frame().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 2].into())
    }

    fn v6() -> Frame<'static> {
        frame().ipv6("2001:db8::1".parse().unwrap(), "2001:db8:1::2".parse().unwrap())
    }

    #[test]
    fn what_is_found_is_written_down() {
        let bytes = v4().tag(ether_type::QINQ, 0x6007).vlan(9).options(&[7; 8]).udp(53, 1000).pad_to(90).build();
        let outcome = parse(&bytes);
        assert_eq!((outcome.fate, &outcome.bytes), (Fate::Next, &bytes));
        let meta = outcome.meta;
        assert_eq!((meta.l3, meta.l4, meta.end), (22, 50, 58));
        assert_eq!((meta.ether_type, meta.vlan, meta.protocol), (ether_type::IPV4, 0x6007, protocol::UDP));
        assert_eq!(meta.flags, MetaFlags::IPV4 | MetaFlags::L4 | MetaFlags::VLAN | MetaFlags::QINQ);

        let meta = parse(&v6().extensions(&[Extension::Fragment(0, true, 1)]).udp(1, 2).payload(&[0; 8]).build()).meta;
        let fragment = MetaFlags::FRAGMENT | MetaFlags::FIRST_FRAGMENT;
        assert_eq!((meta.l3, meta.l4, meta.flags), (14, 62, MetaFlags::IPV6 | MetaFlags::L4 | fragment));
        let meta = parse(&v4().vlan(5).fragment(3).protocol(protocol::TCP).payload(&[0; 8]).build()).meta;
        assert_eq!((meta.l4, meta.flags), (0, MetaFlags::IPV4 | MetaFlags::VLAN | MetaFlags::FRAGMENT));
    }

    /// Marks the packets of a batch that is known to be plain.
    #[derive(Default, Deserialize, JsonSchema)]
    struct Marks {}

    impl Stage for Marks {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            let mark = u16::from(batch.is_plain());
            batch.iter_mut().for_each(|mut packet| packet.meta_mut().user = mark);
        }
    }

    #[test]
    fn a_batch_of_plain_packets_is_known_as_such_and_no_other() {
        let marks = |frames: &[Vec<u8>]| -> Vec<u16> {
            let mut harness = Harness::builder().after(Parse::default()).build::<Marks>("").unwrap();
            harness.run(frames).iter().map(|outcome| outcome.meta.user).collect()
        };
        let plain = v4().udp(1, 2).pad_to(60).build();
        assert_eq!(marks(&[plain.clone(), v4().tcp(1, 2).build()]), [1, 1]);
        for other in [v6().udp(1, 2).build(), v4().vlan(7).udp(1, 2).build(), v4().options(&[1; 4]).udp(1, 2).build()] {
            assert_eq!(marks(&[plain.clone(), other.clone()]), [0, 0]);
            assert_eq!(marks(&[other, plain.clone()]), [0, 0]);
        }
    }

    #[test]
    fn arp_and_other_frames_have_outputs() {
        let arp = parse(&frame().arp(1, ([1; 6].into(), [1; 4].into()), ([0; 6].into(), [2; 4].into())).build());
        assert_eq!((arp.fate, arp.meta.flags), (Fate::Output("arp".to_owned()), MetaFlags::ARP));
        let lldp = parse(&frame().ether_type(0x88cc).payload(b"lldp").build());
        assert_eq!((lldp.fate, lldp.meta.flags), (Fate::Output("other".to_owned()), MetaFlags::empty()));
        assert_eq!((lldp.meta.ether_type, lldp.meta.l3, lldp.meta.end), (0x88cc, 14, 18));
    }

    #[test]
    fn malformed_frames_are_dropped_with_their_reason() {
        let mut wrong_sum = v4().udp(1, 2).build();
        wrong_sum[24] ^= 1;
        let mut wrong_sum_of_options = v4().options(&[1; 4]).udp(1, 2).build();
        wrong_sum_of_options[35] ^= 1;
        let hop = [Extension::HopByHop(&[]), Extension::HopByHop(&[])];
        for (bytes, reason) in [
            (&[][..], "runt"),
            (&v4().udp(1, 2).build()[..33], "truncated"),
            (&v4().udp(1, 2).build()[..40], "truncated"),
            (&v4().vlan(1).vlan(2).vlan(3).udp(1, 2).build(), "too_many_headers"),
            (&frame().ether_type(ether_type::IPV6).payload(&[0x45; 60]).build(), "bad_version"),
            (&frame().ether_type(ether_type::IPV4).payload(&[0x44; 60]).build(), "bad_header_length"),
            (&frame().ether_type(ether_type::IPV4).payload(&[0x45, 0, 0, 19, 0]).pad_to(60).build(), "bad_length"),
            (&wrong_sum, "bad_checksum"),
            (&wrong_sum_of_options, "bad_checksum"),
            (&v6().extensions(&hop).udp(1, 2).build(), "bad_extension"),
        ] {
            assert_eq!(parse(bytes).fate, Fate::Dropped(reason.to_owned()), "{bytes:02x?}");
        }
        for bytes in [wrong_sum, wrong_sum_of_options] {
            let mut trusting = Harness::from_toml::<Parse>("verify_checksum = false").unwrap();
            assert_eq!(trusting.run_one(&bytes).fate, Fate::Next);
        }
    }

    #[test]
    fn every_flaw_has_a_reason_that_is_named() {
        let own: Vec<&str> = Parse::reasons().iter().map(|(name, _)| *name).collect();
        for flaw in Malformed::ALL {
            assert!(!reason(*flaw).name(&own).starts_with("reason_"), "{flaw}");
        }
    }

    #[test]
    fn what_other_stages_know_is_left_alone() {
        struct Before;
        impl Stage for Before {
            fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
                for mut packet in batch.iter_mut() {
                    *packet.meta_mut() = Meta { egress: 3, user: 4, next_hop: 5, ..Meta::default() };
                }
            }
        }
        let mut harness = Harness::builder().after(Before).build::<Parse>("").unwrap();
        let meta = harness.run_one(&v4().udp(1, 2).build()).meta;
        assert_eq!((meta.egress, meta.user, meta.next_hop), (3, 4, 5));
    }

    #[test]
    fn a_hash_that_nobody_needs_is_not_made_and_not_promised() {
        let bytes = v4().udp(1, 2).build();
        assert_eq!(Harness::from_toml::<Parse>("").unwrap().run_one(&bytes).meta.flow_hash, 0);
        assert_ne!(parse(&bytes).meta.flow_hash, 0);
        let unhashed = Parse { unhashed: true, ..Parse::default() };
        assert_eq!((unhashed.sets(), Parse::default().sets()), (Facts::HEADERS, Facts::HEADERS | Facts::FLOW_HASH));
    }

    #[test]
    fn flows_spread() {
        let mut harness = hashing();
        let hash = |harness: &mut Harness, bytes: &[u8]| harness.run_one(bytes).meta.flow_hash;
        // Neighbouring addresses and ports, whose sums are equal, and the same numbers in another place.
        let mut hashes = HashSet::new();
        for n in 0..64u8 {
            let (source, destination) = ([10, 0, 0, n].into(), [10, 0, 1, 63 - n].into());
            for port in [1000 + u16::from(n), 2000] {
                let frames = [frame().ipv4(source, destination).udp(port, 3000 - port)];
                hashes.extend(frames.map(|frame| hash(&mut harness, &frame.build())));
                hashes.insert(hash(&mut harness, &frame().ipv4(source, destination).tcp(port, 3000 - port).build()));
            }
        }
        assert_eq!(hashes.len(), 256);
        // Every bit takes part.
        let ones = hashes.iter().fold([0; 32], |mut ones, hash| {
            ones.iter_mut().enumerate().for_each(|(bit, count)| *count += hash >> bit & 1);
            ones
        });
        assert!(ones.iter().all(|count| (85..=171).contains(count)), "{ones:?}");
    }

    proptest! {
        #[test]
        fn a_flow_keeps_its_hash_both_ways(
            (a, b) in any::<([u8; 16], [u8; 16])>(),
            (p, q) in any::<(u16, u16)>(),
            (ttl, payload) in (1u8..255, prop::collection::vec(any::<u8>(), 0..40)),
            (v6, tcp) in any::<(bool, bool)>(),
        ) {
            let four = |bytes: [u8; 16]| std::net::Ipv4Addr::from([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let build = |(a, p): ([u8; 16], u16), (b, q): ([u8; 16], u16)| {
                let frame = if v6 { frame().ipv6(a.into(), b.into()) } else { frame().ipv4(four(a), four(b)) };
                if tcp { frame.tcp(p, q) } else { frame.udp(p, q) }
            };
            let hash = |frame: Frame<'_>| parse(&frame.build()).meta.flow_hash;
            let forth = hash(build((a, p), (b, q)));
            prop_assert_eq!(forth, hash(build((a, p), (b, q)).vlan(3).ttl(ttl).payload(&payload)));
            prop_assert_eq!(forth, hash(build((b, q), (a, p)).ttl(ttl)));
            prop_assert_ne!(forth, hash(build((a, p ^ 1), (b, q))));
        }

        #[test]
        fn the_fragments_of_a_datagram_share_a_hash(a in any::<[u8; 4]>(), b in any::<[u8; 4]>(), offset in 1u16..500) {
            let ip = frame().ipv4(a.into(), b.into()).udp(5, 6).payload(&[9; 16]);
            let first = parse(&ip.fragment(ipv4::MORE_FRAGMENTS).build()).meta;
            let later = parse(&ip.protocol(protocol::UDP).fragment(offset).build()).meta;
            prop_assert!(first.flags.contains(MetaFlags::FIRST_FRAGMENT) && later.flags.contains(MetaFlags::FRAGMENT));
            prop_assert_eq!(first.flow_hash, later.flow_hash);
        }

        #[test]
        fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..4) {
            let mut bytes = bytes;
            let kinds = [ether_type::IPV4, ether_type::IPV6, ether_type::ARP, ether_type::VLAN];
            if let Some(at) = bytes.get_mut(12..14) {
                at.copy_from_slice(&kinds[kind].to_be_bytes());
            }
            let outcome = parse(&bytes);
            let expected = match dissect(&bytes) {
                Err(_) => false,
                Ok(found) => verify_ipv4_checksum(&bytes, &found).is_ok(),
            };
            prop_assert_eq!(!matches!(outcome.fate, Fate::Dropped(_)), expected);
            prop_assert_eq!(outcome.bytes, bytes);
        }
    }
}
