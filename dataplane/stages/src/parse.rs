//! `parse`: finds the headers of a frame, once for all stages.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::header::checksum::header_checksum_ok;
use dataplane_core::header::parse::{
    Dissection, Flags, Malformed, USUAL_HEADERS_LEN, checksummed, dissect, dissect_head, dissect_usual,
    verify_ipv4_checksum,
};
use dataplane_core::header::protocol;
use dataplane_core::mem::{Batch, Edge, Head, Meta, MetaFlags, Packet, Reason, RecvFields, RecvFlags};
use dataplane_core::pipeline::{Contract, Ctx, Facts, Problem, Setup, Stage, StageInfo};

/// Finds the headers of every packet, and drops malformed packets.
///
/// The stage parses Ethernet, up to two VLAN tags, ARP, IPv4 with options, IPv6 with up to eight extension headers,
/// TCP, UDP, ICMP and ICMPv6. IPv4 and IPv6 packets go to the next stage.
///
/// The stage also computes a flow hash of the addresses, the protocol and the ports of TCP and UDP. Both directions of
/// a flow have the same hash. The hash of a fragment excludes the ports, even if the fragment is the first fragment.
/// All fragments of a datagram therefore have the same hash. The hash of a flow is the same on every machine and in
/// every run. A sender can therefore create many flows with equal hashes. If no stage of the pipeline needs the hash,
/// the hash is always 0.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "parse"
/// use = "parse"
/// verify_checksum = true
/// verify_transport = true
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parse {
    /// Whether to drop packets with a wrong IPv4 header checksum.
    #[serde(default = "yes")]
    pub verify_checksum: bool,
    /// Whether to also drop TCP and UDP packets with a wrong TCP or UDP checksum. The stage reads the whole packet,
    /// unless the device of the port has verified the checksum. Fragments, packets with IPv6 extension headers and UDP
    /// packets without a checksum are not verified. Default: `false`.
    #[serde(default)]
    pub verify_transport: bool,
    /// Whether no stage needs the flow hash.
    #[serde(skip)]
    #[schemars(skip)]
    no_flow_hash: bool,
}

const fn yes() -> bool {
    true
}

impl Default for Parse {
    fn default() -> Self {
        Self { verify_checksum: yes(), verify_transport: false, no_flow_hash: false }
    }
}

const ARP: Edge = Edge::new(0);
const OTHER: Edge = Edge::new(1);
const BAD_EXTENSION: Reason = Reason::of_stage(0);

impl Stage for Parse {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        if self.verify_transport {
            return if self.no_flow_hash { self.verify::<false>(batch) } else { self.verify::<true>(batch) };
        }
        // Each combination of the settings has its own loop, so that the loop does not check the settings for each
        // packet.
        match (self.verify_checksum, self.no_flow_hash) {
            (true, true) => self.find::<true, false>(batch),
            (true, false) => self.find::<true, true>(batch),
            (false, true) => self.find::<false, false>(batch),
            (false, false) => self.find::<false, true>(batch),
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        self.no_flow_hash = !setup.any_stage_needs(Facts::FLOW_HASH);
        Ok(())
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .stateless()
            .outputs(&[
                ("arp", "ARP messages"),
                ("other", "frames that are neither ARP nor IPv4 nor IPv6, such as LLDP"),
            ])
            .reasons(&[(
                "bad_extension",
                "IPv6 hop-by-hop options are not the first extension header, or the authentication header is too short",
            )])
            .drops(&[
                Reason::Runt,
                Reason::TooLong,
                Reason::Truncated,
                Reason::TooManyHeaders,
                Reason::BadVersion,
                Reason::BadHeaderLength,
                Reason::BadLength,
                Reason::BadChecksum,
            ])
    }

    fn contract(&self) -> Contract {
        let sets = if self.no_flow_hash { Facts::HEADERS } else { Facts::HEADERS | Facts::FLOW_HASH };
        let receives = if self.verify_transport { RecvFields::CHECKSUM } else { RecvFields::empty() };
        Contract::new().sets(sets).receives(receives)
    }
}

impl Parse {
    #[inline]
    fn find<const VERIFY: bool, const HASH: bool>(&self, batch: &mut Batch) {
        let plain_packets = batch.located_heads().map_while(find_usual::<VERIFY, HASH>).count();
        if plain_packets == batch.len() {
            return batch.set_plain_ipv4();
        }
        for mut packet in batch.iter_mut_from(plain_packets) {
            // For the usual header layout (see `dissect_usual`), all offsets are constants.
            if let Some(found) = dissect_usual(packet.data()) {
                self.apply::<HASH>(&mut packet, &found);
                continue;
            }
            match dissect(packet.data()) {
                Ok(found) => self.apply::<HASH>(&mut packet, &found),
                Err(flaw) => packet.drop(reason(flaw)),
            }
        }
    }

    /// Finds the headers like [`Parse::find`], and verifies TCP and UDP checksums that the device has not verified.
    fn verify<const HASH: bool>(&self, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match dissect(packet.data()) {
                Ok(found) if is_transport_wrong(&packet, &found) => packet.drop(Reason::BadChecksum),
                Ok(found) => self.apply::<HASH>(&mut packet, &found),
                Err(flaw) => packet.drop(reason(flaw)),
            }
        }
    }

    /// Stores the headers that were found, and sets the output or the drop reason of the packet.
    #[inline(always)]
    fn apply<const HASH: bool>(&self, packet: &mut Packet<'_>, found: &Dissection) {
        if self.verify_checksum && !checksum_fits(packet.data(), found) {
            return packet.drop(Reason::BadChecksum);
        }
        let flow_hash = if HASH { flow_hash(packet.data(), found) } else { 0 };
        store_headers(packet.meta_mut(), found, flow_hash);
        if !found.flags.intersects(Flags::IPV4 | Flags::IPV6) {
            packet.steer(if found.flags.contains(Flags::ARP) { ARP } else { OTHER });
        }
    }
}

/// Parses a frame with the usual header layout: untagged, IPv4 without options, and TCP or UDP. Returns `None` if the
/// layout differs or the checksum is wrong.
#[inline(always)]
fn find_usual<const VERIFY: bool, const HASH: bool>(head: Head<'_, USUAL_HEADERS_LEN>) -> Option<()> {
    let found = dissect_head(head.bytes, head.len.into())?;
    if VERIFY && !checksum_fits(head.bytes, &found) {
        return None;
    }
    store_headers(head.meta, &found, if HASH { flow_hash(head.bytes, &found) } else { 0 });
    Some(())
}

/// Parses the headers again after a stage has changed the packet.
pub(super) fn parse_again(packet: &mut Packet<'_>) -> Result<(), Malformed> {
    let found = dissect(packet.data())?;
    let flow_hash = flow_hash(packet.data(), &found);
    store_headers(packet.meta_mut(), &found, flow_hash);
    Ok(())
}

/// Returns the drop reason for a malformed packet.
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

/// Returns whether the checksum of the IPv4 header is correct. `true` for frames without an IPv4 header.
#[inline(always)]
fn checksum_fits(frame: &[u8], found: &Dissection) -> bool {
    if found.flags.intersection(Flags::IPV4 | Flags::IP_OPTIONS) == Flags::IPV4 {
        // Nearly all headers have no options. For a header of fixed length, the compiler turns the sum into a few
        // additions.
        let header = frame.get(usize::from(found.l3)..).and_then(|ip| ip.first_chunk::<20>());
        return header.is_some_and(header_checksum_ok);
    }
    verify_ipv4_checksum(frame, found).is_ok()
}

/// Returns whether the TCP or UDP checksum of a packet is wrong.
fn is_transport_wrong(packet: &Packet<'_>, found: &Dissection) -> bool {
    !packet.recv_info().flags.contains(RecvFlags::CHECKSUM_OK)
        && checksummed(packet.data(), found).is_some_and(|(pseudo, bytes)| pseudo.bytes(bytes).checksum() != 0)
}

/// Stores the headers that were found. The other fields of `Meta` stay unchanged.
#[inline(always)]
fn store_headers(meta: &mut Meta, found: &Dissection, flow_hash: u32) {
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

/// Two odd numbers without a regular pattern: the fractional parts of the square roots of 2 and 3.
const SEEDS: [u64; 2] = [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b];

/// Returns the flow hash of a packet. The hash covers the protocol and the two endpoints. The order of the endpoints
/// does not change the hash.
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
        // The multiplication spreads the port over the whole word. Otherwise, the difference of two ports could cancel
        // the difference of two addresses.
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

/// Hashes two numbers to one number. Multiplies the numbers, each XORed with its seed, and XORs both halves of the
/// product.
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
    use dataplane_core::harness::{Fate, Harness, frame};
    use dataplane_core::header::build::{Extension, Frame};
    use dataplane_core::header::{ether_type, ipv4};

    /// Returns a harness that needs the flow hash.
    fn hashing() -> Harness {
        Harness::builder().needed_facts(Facts::FLOW_HASH).build::<Parse>("").unwrap()
    }

    fn parse(bytes: &[u8]) -> dataplane_core::harness::Outcome {
        hashing().run_one(bytes)
    }

    fn v4() -> Frame<'static> {
        frame().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 2].into())
    }

    fn v6() -> Frame<'static> {
        frame().ipv6("2001:db8::1".parse().unwrap(), "2001:db8:1::2".parse().unwrap())
    }

    #[test]
    fn parsed_headers_are_stored_in_meta() {
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

    /// Marks the packets of a batch if [`Batch::is_plain_ipv4`] returns `true` for the batch.
    #[derive(Default, Deserialize, JsonSchema)]
    struct MarkPlain {}

    impl Stage for MarkPlain {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            let mark = u16::from(batch.is_plain_ipv4());
            batch.iter_mut().for_each(|mut packet| packet.meta_mut().user = mark);
        }
    }

    #[test]
    fn only_a_batch_of_plain_packets_is_marked_plain() {
        let marks = |frames: &[Vec<u8>]| -> Vec<u16> {
            let mut harness = Harness::builder().after(Parse::default()).build::<MarkPlain>("").unwrap();
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
    fn arp_frames_go_to_output_arp_and_unknown_frames_to_output_other() {
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
    fn wrong_transport_checksum_is_dropped_if_requested() {
        let mut harness = Harness::from_toml::<Parse>("verify_transport = true").unwrap();
        let fate = |harness: &mut Harness, bytes: &[u8]| harness.run_one(bytes).fate;
        let wrong = Fate::Dropped("bad_checksum".to_owned());
        for bytes in [v4().udp(1, 2).payload(b"abcd").build(), v4().tcp(1, 2).build(), v6().udp(1, 2).build()] {
            assert_eq!(fate(&mut harness, &bytes), Fate::Next);
            let mut changed = bytes.clone();
            let port = changed.len() - if bytes[12] == 0x86 { 8 } else { 1 };
            changed[port] ^= 1;
            assert_eq!(fate(&mut harness, &changed), wrong, "{changed:02x?}");
        }
        // The IP payload is longer than the UDP length, and the checksum covers only the UDP length.
        let mut longer = v4().udp(1, 2).payload(b"abcdefgh").build();
        let short = v4().udp(1, 2).payload(b"abcd").build();
        longer[34..46].copy_from_slice(&short[34..46]);
        assert_eq!(fate(&mut harness, &longer), Fate::Next);
        longer[43] ^= 1;
        assert_eq!(fate(&mut harness, &longer), wrong);
    }

    #[test]
    fn every_malformed_packet_has_a_named_drop_reason() {
        let own: Vec<&str> = Parse::info().reasons.iter().map(|(name, _)| *name).collect();
        for flaw in Malformed::ALL {
            assert!(!reason(*flaw).name(&own).starts_with("reason_"), "{flaw}");
        }
    }

    #[test]
    fn metadata_of_other_stages_is_kept() {
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
    fn unneeded_flow_hash_is_not_computed_and_not_set() {
        let bytes = v4().udp(1, 2).build();
        assert_eq!(Harness::from_toml::<Parse>("").unwrap().run_one(&bytes).meta.flow_hash, 0);
        assert_ne!(parse(&bytes).meta.flow_hash, 0);
        let no_flow_hash = Parse { no_flow_hash: true, ..Parse::default() };
        assert_eq!(
            (no_flow_hash.contract().sets, Parse::default().contract().sets),
            (Facts::HEADERS, Facts::HEADERS | Facts::FLOW_HASH)
        );
    }

    #[test]
    fn flow_hashes_are_spread_evenly() {
        let mut harness = hashing();
        let hash = |harness: &mut Harness, bytes: &[u8]| harness.run_one(bytes).meta.flow_hash;
        // Successive packets have consecutive addresses and ports. The sum of source and destination is the same for
        // all packets. UDP and TCP packets have the same ports.
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
        // Every bit of the hash varies.
        let ones = hashes.iter().fold([0; 32], |mut ones, hash| {
            ones.iter_mut().enumerate().for_each(|(bit, count)| *count += hash >> bit & 1);
            ones
        });
        assert!(ones.iter().all(|count| (85..=171).contains(count)), "{ones:?}");
    }

    proptest! {
        #[test]
        fn flow_hash_is_equal_in_both_directions(
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
        fn fragments_of_a_datagram_share_a_hash(a in any::<[u8; 4]>(), b in any::<[u8; 4]>(), offset in 1u16..500) {
            let ip = frame().ipv4(a.into(), b.into()).udp(5, 6).payload(&[9; 16]);
            let first = parse(&ip.fragment(ipv4::MORE_FRAGMENTS).build()).meta;
            let later = parse(&ip.protocol(protocol::UDP).fragment(offset).build()).meta;
            prop_assert!(first.flags.contains(MetaFlags::FIRST_FRAGMENT) && later.flags.contains(MetaFlags::FRAGMENT));
            prop_assert_eq!(first.flow_hash, later.flow_hash);
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..4) {
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
