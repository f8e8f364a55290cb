use etherparse::{LinkExtSlice, NetSlice, SlicedPacket};
use proptest::prelude::*;

use super::*;
use crate::header::build::{Extension, Frame};
use crate::header::checksum::Sum;
use crate::header::{Header, MacAddr, arp, ethernet::Ethernet, tcp::Tcp};

/// The fields from which the frame builder creates a valid frame. The fields are owned values, so that proptest can
/// shrink them.
#[derive(Clone, Debug)]
struct Recipe {
    tags: Vec<(u16, u16)>,
    layer3: u8,
    source: [u8; 16],
    destination: [u8; 16],
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    fragment: (u16, bool),
    layer4: u8,
    ports: (u16, u16),
    payload: Vec<u8>,
    pad_to: usize,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let tpid = prop::sample::select(vec![ether_type::VLAN, ether_type::QINQ, ether_type::QINQ_OLD]);
    let fragment = prop_oneof![4 => Just((0, false)), 1 => (0u16..200, any::<bool>())];
    (
        (prop::collection::vec((tpid, any::<u16>()), 0..3), 0u8..4, any::<[u8; 16]>(), any::<[u8; 16]>()),
        (
            prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(any::<u8>(), 0..40)],
            prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..30)), 0..4),
            fragment,
        ),
        (0u8..4, any::<(u16, u16)>(), prop::collection::vec(any::<u8>(), 0..80), 0usize..120),
    )
        .prop_map(|((tags, layer3, source, destination), (options, extensions, fragment), rest)| {
            let (layer4, ports, payload, pad_to) = rest;
            Recipe { tags, layer3, source, destination, options, extensions, fragment, layer4, ports, payload, pad_to }
        })
}

impl Recipe {
    fn build(&self) -> Vec<u8> {
        let four = |bytes: [u8; 16]| [bytes[0], bytes[1], bytes[2], bytes[3]].into();
        let mut extensions: Vec<Extension<'_>> = self
            .extensions
            .iter()
            .map(|(kind, content)| match kind {
                0 => Extension::DestinationOptions(content),
                1 => Extension::Routing(content),
                _ => Extension::Authentication(content),
            })
            .collect();
        if self.layer3 == 3 {
            // After a fragment header with a nonzero offset, all bytes are payload, so leave out the other headers.
            extensions.truncate(if self.fragment.0 == 0 { usize::MAX } else { 0 });
            extensions.insert(0, Extension::HopByHop(&self.options));
            extensions.insert(1, Extension::Fragment(self.fragment.0, self.fragment.1, 7));
        }
        let mut frame = Frame::new().payload(&self.payload).pad_to(self.pad_to);
        for (tpid, tci) in &self.tags {
            frame = frame.tag(*tpid, *tci);
        }
        frame = match self.layer4 {
            0 => frame.udp(self.ports.0, self.ports.1),
            1 => frame.tcp(self.ports.0, self.ports.1).tcp_options(&self.options),
            2 => frame.echo_request(self.ports.0, self.ports.1),
            _ => frame.protocol(89),
        };
        let mac = (MacAddr::ZERO, four(self.source));
        frame = match self.layer3 {
            0 => frame.arp(arp::REQUEST, mac, mac),
            1 => frame
                .ipv4(four(self.source), four(self.destination))
                .options(&self.options)
                .fragment(self.fragment.0 | if self.fragment.1 { ipv4::MORE_FRAGMENTS } else { 0 }),
            _ => frame.ipv6(self.source.into(), self.destination.into()).extensions(&extensions),
        };
        frame.build()
    }
}

/// Checks that the positions in `found` are inside the frame and in order.
fn check_sane(frame: &[u8], found: &Dissection) {
    assert!(found.l3 >= 14 && found.l3 <= found.end && usize::from(found.end) <= frame.len(), "{found:?}");
    assert!(found.l4 == 0 || (found.l3 < found.l4 && found.l4 <= found.end), "{found:?}");
    if found.flags.contains(Flags::L4_OK) {
        assert!(found.l4 + 8 <= found.end, "{found:?}");
    }
}

/// Compares `dissect` with the independent parser `etherparse` on a valid frame.
fn check_against_etherparse(frame: &[u8]) {
    let found = dissect(frame).expect("a built frame is valid");
    check_sane(frame, &found);
    // RFC 8200 allows an IPv6 payload length of 0. etherparse treats this value as an unknown length, so skip the
    // comparison.
    let empty = frame.get(usize::from(found.l3) + 4..usize::from(found.l3) + 6) == Some(&[0, 0]);
    if found.flags.contains(Flags::IPV6) && empty {
        assert_eq!(usize::from(found.end), usize::from(found.l3) + 40);
        return;
    }
    let reference = SlicedPacket::from_ethernet(frame).expect("etherparse accepts a built frame");
    let tags: Vec<u16> = reference
        .link_exts
        .iter()
        .map(|tag| match tag {
            LinkExtSlice::Vlan(tag) => tag.vlan_identifier().value(),
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    let ours = [found.outer_tci, found.inner_tci].map(vlan::id);
    assert_eq!(ours[..usize::from(found.vlan_tags)], tags);
    assert_eq!(found.vlan(), tags.first().copied());
    let offset = |slice: &[u8]| slice.as_ptr() as usize - frame.as_ptr() as usize;
    let (l3, payload) = match reference.net.as_ref().expect("every frame has a layer 3") {
        NetSlice::Arp(arp) => {
            assert_eq!(found.flags, Flags::ARP);
            assert_eq!(usize::from(found.l3), offset(arp.slice()));
            assert_eq!(usize::from(found.end), offset(arp.slice()) + arp.slice().len());
            assert_eq!((found.l4, found.protocol), (0, 0));
            return;
        }
        NetSlice::Ipv4(ip) => {
            assert!(found.flags.contains(Flags::IPV4));
            assert_eq!(found.flags.contains(Flags::IP_OPTIONS), !ip.header().options().is_empty());
            assert_eq!(verify_ipv4_checksum(frame, &found), Ok(()));
            (offset(ip.header().slice()), ip.payload())
        }
        NetSlice::Ipv6(ip) => {
            assert!(found.flags.contains(Flags::IPV6));
            assert_eq!(found.flags.contains(Flags::IP_OPTIONS), !ip.extensions().is_empty());
            (offset(ip.header().slice()), ip.payload())
        }
    };
    assert_eq!(usize::from(found.l3), l3);
    assert_eq!(usize::from(found.end), offset(payload.payload) + payload.payload.len());
    assert_eq!(found.protocol, payload.ip_number.0);
    assert_eq!(found.flags.contains(Flags::FRAGMENT), payload.fragmented);
    if !payload.fragmented {
        assert_eq!(found.flags.contains(Flags::L4_OK), reference.transport.is_some());
    }
    if !payload.fragmented || found.flags.contains(Flags::FIRST_FRAGMENT) {
        assert_eq!(usize::from(found.l4), offset(payload.payload));
    } else {
        assert_eq!(found.l4, 0);
    }
}

proptest! {
    #[test]
    fn dissect_matches_etherparse(recipe in recipe()) {
        check_against_etherparse(&recipe.build());
    }

    /// Compares `dissect_usual` with `dissect` on common frames. Some frames have one changed byte or are truncated.
    #[test]
    fn dissect_usual_matches_dissect(
        (tcp, payload, pad_to) in (any::<bool>(), prop::collection::vec(any::<u8>(), 0..30), 0usize..90),
        (at, to, cut) in (0usize..60, any::<u8>(), 0usize..4),
    ) {
        let ip = Frame::new().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 2].into());
        let ip = if tcp { ip.tcp(1000, 80) } else { ip.udp(1000, 53) };
        let whole = ip.payload(&payload).pad_to(pad_to).build();
        prop_assert_eq!(dissect_usual(&whole), dissect(&whole).ok().filter(|_| whole.len() >= 54));
        let mut changed = whole.clone();
        if let Some(byte) = changed.get_mut(at) {
            *byte = to;
        }
        for frame in [&changed[..], &whole[..whole.len() - cut]] {
            if let Some(found) = dissect_usual(frame) {
                prop_assert_eq!(Ok(found), dissect(frame));
            }
        }
    }

    #[test]
    fn frame_truncated_before_its_padding_is_malformed(recipe in recipe()) {
        let frame = recipe.build();
        let whole = dissect(&frame).unwrap();
        for cut in 0..frame.len() {
            match dissect(&frame[..cut]) {
                Ok(found) => prop_assert!(cut >= usize::from(whole.end) && found == whole),
                Err(_) => prop_assert!(cut < usize::from(whole.end)),
            }
        }
    }

    #[test]
    fn damaged_frames_never_panic(
        recipe in recipe(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut frame = recipe.build();
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
            if let Ok(found) = dissect(&frame) {
                check_sane(&frame, &found);
                let _ = verify_ipv4_checksum(&frame, &found);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in prop::sample::select(vec![ether_type::IPV4, ether_type::IPV6, ether_type::ARP, ether_type::VLAN]),
        version in prop::sample::select(vec![0x45, 0x4f, 0x60]),
    ) {
        for with_header in [false, true] {
            if with_header && bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&kind.to_be_bytes());
                bytes[14] = version;
            }
            if let Ok(found) = dissect(&bytes) {
                check_sane(&bytes, &found);
            }
        }
    }
}

const V4: ([u8; 4], [u8; 4]) = ([192, 0, 2, 1], [198, 51, 100, 2]);

fn v4<'a>() -> Frame<'a> {
    Frame::new().ipv4(V4.0.into(), V4.1.into())
}

fn v6<'a>() -> Frame<'a> {
    Frame::new().ipv6("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap())
}

/// Returns the frame with one byte replaced.
fn with(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame
}

#[test]
fn every_malformed_frame_has_its_reason() {
    let udp4 = v4().udp(1, 2).payload(b"data").build();
    let tcp4 = v4().tcp(1, 2).build();
    let udp6 = v6().udp(1, 2).build();
    let hop = [Extension::HopByHop(&[])];
    let hop6 = v6().extensions(&hop).udp(1, 2).build();
    let hop_by_hop_second = [Extension::DestinationOptions(&[]), Extension::HopByHop(&[])];
    let auth = [Extension::Authentication(&[])];
    let nine = [Extension::DestinationOptions(&[]); 9];
    let tags = Frame::new().tag(ether_type::QINQ, 1).vlan(2).vlan(3).ipv4(V4.0.into(), V4.1.into());
    let arp = Frame::new().arp(arp::REQUEST, (MacAddr::ZERO, V4.0.into()), (MacAddr::ZERO, V4.1.into())).build();
    let cases = [
        (udp4[..13].to_vec(), Malformed::Runt),
        (vec![0; 65_536], Malformed::Oversize),
        (Frame::new().vlan(1).build()[..17].to_vec(), Malformed::TruncatedVlan),
        (tags.build(), Malformed::TooManyVlanTags),
        (arp[..21].to_vec(), Malformed::TruncatedArp),
        (arp[..41].to_vec(), Malformed::TruncatedArp),
        (udp4[..33].to_vec(), Malformed::TruncatedIpv4),
        (with(tcp4[..34].to_vec(), 14, 0x46), Malformed::TruncatedIpv4),
        (with(udp4.clone(), 14, 0x65), Malformed::BadIpv4Version),
        (with(udp4.clone(), 14, 0x44), Malformed::BadIpv4HeaderLength),
        (with(udp4.clone(), 16, 1), Malformed::Ipv4LengthAboveFrame),
        (with(udp4.clone(), 17, 19), Malformed::Ipv4LengthBelowHeader),
        (udp6[..53].to_vec(), Malformed::TruncatedIpv6),
        (with(udp6.clone(), 14, 0x40), Malformed::BadIpv6Version),
        (with(udp6.clone(), 19, 9), Malformed::Ipv6LengthAboveFrame),
        (with(with(hop6.clone(), 55, 2), 19, 16), Malformed::TruncatedIpv6Extension),
        (with(hop6, 19, 7), Malformed::TruncatedIpv6Extension),
        (v6().extensions(&nine).udp(1, 2).build(), Malformed::TooManyIpv6Extensions),
        (v6().extensions(&hop_by_hop_second).udp(1, 2).build(), Malformed::BadIpv6Extension),
        (with(v6().extensions(&auth).udp(1, 2).build(), 55, 0), Malformed::BadIpv6Extension),
        (with(tcp4.clone(), 17, 39), Malformed::TruncatedTcp),
        (with(tcp4.clone(), 46, 0x40), Malformed::BadTcpDataOffset),
        (with(tcp4, 46, 0x60), Malformed::BadTcpDataOffset),
        (with(udp4.clone(), 17, 27), Malformed::TruncatedUdp),
        (with(udp4.clone(), 39, 7), Malformed::BadUdpLength),
        (with(udp4, 39, 13), Malformed::BadUdpLength),
        (with(v4().echo_request(1, 2).build(), 17, 27), Malformed::TruncatedIcmp),
        (with(v6().echo_reply(1, 2).build(), 19, 7), Malformed::TruncatedIcmp),
    ];
    for (frame, reason) in &cases {
        assert_eq!(dissect(frame), Err(*reason));
    }
    for reason in Malformed::ALL {
        let found = *reason == Malformed::BadIpv4Checksum || cases.iter().any(|case| case.1 == *reason);
        assert!(found, "{reason} has no case");
    }
}

#[test]
fn wrong_ipv4_checksum_is_found_by_verification() {
    let frame = v4().udp(1, 2).build();
    let found = dissect(&frame).unwrap();
    assert_eq!(verify_ipv4_checksum(&frame, &found), Ok(()));
    let frame = with(frame, 22, 63);
    assert_eq!(dissect(&frame), Ok(found));
    assert_eq!(verify_ipv4_checksum(&frame, &found), Err(Malformed::BadIpv4Checksum));
    assert_eq!(Malformed::BadIpv4Checksum.to_string(), "bad_ipv4_checksum");
}

#[test]
fn fragments_are_classified() {
    let first = dissect(&v4().fragment(ipv4::MORE_FRAGMENTS).udp(1, 2).payload(&[0; 24]).build()).unwrap();
    assert!(first.flags.contains(Flags::FRAGMENT | Flags::FIRST_FRAGMENT | Flags::L4_OK));
    let later = dissect(&v4().fragment(4).udp(1, 2).payload(&[0; 24]).build()).unwrap();
    assert_eq!((later.flags, later.l4, later.protocol), (Flags::IPV4 | Flags::FRAGMENT, 0, protocol::UDP));
    let tiny = dissect(&v4().fragment(ipv4::MORE_FRAGMENTS).protocol(protocol::TCP).payload(&[0; 8]).build()).unwrap();
    assert!(tiny.flags.contains(Flags::FIRST_FRAGMENT) && !tiny.flags.contains(Flags::L4_OK));
    let atomic = [Extension::Fragment(0, false, 9)];
    let atomic = dissect(&v6().extensions(&atomic).udp(1, 2).build()).unwrap();
    assert_eq!(atomic.flags, Flags::IPV6 | Flags::IP_OPTIONS | Flags::L4_OK);
}

#[test]
fn parsing_stops_at_an_unsupported_protocol_without_an_error() {
    let frame = Frame::new().ether_type(0x88cc).payload(b"lldp").build();
    let found = dissect(&frame).unwrap();
    assert_eq!((found.ether_type, found.l3, found.end, found.flags), (0x88cc, 14, 18, Flags::empty()));
    let none = dissect(&v6().build()).unwrap();
    assert_eq!((none.protocol, none.l4, none.end), (protocol::NO_NEXT_HEADER, 0, 54));
}

#[test]
fn frame_builder_writes_correct_checksums() {
    for payload in [&b""[..], b"odd", b"even"] {
        for (frame, protocol) in [
            (v4().tcp(80, 4000).tcp_options(&[2, 4, 5, 180, 1]).payload(payload).build(), protocol::TCP),
            (v4().udp(80, 4000).payload(payload).build(), protocol::UDP),
            (v6().tcp(80, 4000).payload(payload).build(), protocol::TCP),
            (v6().udp(80, 4000).payload(payload).build(), protocol::UDP),
            (v6().echo_request(1, 2).payload(payload).build(), protocol::ICMPV6),
            (v4().echo_reply(1, 2).payload(payload).build(), protocol::ICMP),
        ] {
            let found = dissect(&frame).unwrap();
            assert_eq!(found.protocol, protocol);
            let segment = &frame[usize::from(found.l4)..usize::from(found.end)];
            let pseudo = match frame.len() - segment.len() {
                _ if protocol == protocol::ICMP => Sum::default(),
                34 => Sum::default().pseudo_ipv4(V4.0, V4.1, protocol, segment.len() as u16),
                _ => {
                    let ip = crate::header::ipv6::Ipv6::view(&frame[14..]).unwrap();
                    Sum::default().pseudo_ipv6(&ip.source, &ip.destination, protocol, segment.len() as u32)
                }
            };
            assert_eq!(pseudo.bytes(segment).checksum(), 0);
        }
    }
}

#[test]
fn frame_builder_writes_all_settings() {
    let (a, b) = (MacAddr([2, 1, 1, 1, 1, 1]), MacAddr([2, 2, 2, 2, 2, 2]));
    let frame = v4()
        .ethernet(a, b)
        .tag(ether_type::QINQ, 0x2005)
        .vlan(7)
        .ttl(9)
        .tos(0xb8)
        .tcp(5, 6)
        .tcp_flags(0x12)
        .tcp_numbers(1, 2)
        .tcp_window(3)
        .pad_to(100);
    let bytes = frame.build();
    assert_eq!(bytes.len(), 100);
    let ethernet = Ethernet::view(&bytes).unwrap();
    assert_eq!((ethernet.source, ethernet.destination, ethernet.ether_type.get()), (a, b, ether_type::QINQ));
    let found = dissect(&bytes).unwrap();
    assert_eq!((found.outer_tci, found.inner_tci, found.vlan(), found.end), (0x2005, 7, Some(5), 62));
    let ip = ipv4::Ipv4::view(&bytes[usize::from(found.l3)..]).unwrap();
    assert_eq!((ip.ttl, ip.tos), (9, 0xb8));
    let tcp = Tcp::view(&bytes[usize::from(found.l4)..]).unwrap();
    assert_eq!((tcp.source.get(), tcp.destination.get(), tcp.flags), (5, 6, 0x12));
    assert_eq!((tcp.sequence.get(), tcp.acknowledgement.get(), tcp.window.get()), (1, 2, 3));

    let mut buffer = [0xee; 101];
    assert_eq!(frame.write(&mut buffer), Some(100));
    assert_eq!((&buffer[..100], buffer[100]), (&bytes[..], 0xee));
    let mut small = [0xee; 99];
    assert_eq!(frame.write(&mut small), None);
    assert_eq!(small, [0xee; 99]);
}

#[test]
fn frame_builder_clips_and_pads_options() {
    let long: Vec<u8> = (1..=50).collect();
    for (options, padded) in [(&long[..0], 0), (&long[..5], 8), (&long[..40], 40), (&long[..], 40)] {
        let mut expected = options[..options.len().min(padded)].to_vec();
        expected.resize(padded, 0);
        let ip = v4().options(options).udp(1, 2).build();
        assert_eq!((ip[14], &ip[34..34 + padded]), (0x45 + padded as u8 / 4, &expected[..]));
        assert!(ipv4::checksum_ok(&ip[14..]));
        let tcp = v4().tcp(1, 2).tcp_options(options).build();
        assert_eq!((tcp[46] >> 4, &tcp[54..]), (5 + padded as u8 / 4, &expected[..]));
    }
}

#[test]
fn frame_builder_pads_ipv6_extensions() {
    // The header starts with the next header and the length. The options of the three cases need no padding, Pad1, and
    // PadN with one zero (RFC 8200, section 4.2).
    for (content, padding) in [(&[5, 2, 0, 0, 5, 0][..], &[][..]), (&[5, 1, 9, 5, 0], &[0]), (&[5, 1, 9], &[1, 1, 0])] {
        let frame = v6().extensions(&[Extension::HopByHop(content)]).udp(1, 2).build();
        assert_eq!(frame[54..62], [&[protocol::UDP, 0], content, padding].concat());
    }
}

#[test]
fn frame_builder_writes_the_first_word_of_ipv6() {
    let frame = v6().tos(0xff).flow_label(0xf_0f0f).udp(1, 2).build();
    assert_eq!(frame[14..18], [0x6f, 0xff, 0x0f, 0x0f]);
}

#[test]
fn dissect_usual_refuses_each_length_that_dissect_refuses() {
    let udp = v4().udp(1, 2).payload(&[0; 20]).build();
    let tcp = v4().tcp(1, 2).payload(&[0; 20]).build();
    // Frame length 62: IPv4 length 48, UDP length 28. Frame length 74: IPv4 length 60, TCP data offset 5.
    for (frame, at, values) in [(&udp, 17, 0..=255), (&udp, 39, 0..=255), (&tcp, 17, 0..=255), (&tcp, 46, 0..=255)] {
        for value in values {
            let frame = with(frame.clone(), at, value);
            assert_eq!(dissect_usual(&frame), dissect(&frame).ok(), "byte {at} is {value}");
        }
    }
    let long = v4().udp(1, 2).pad_to(usize::from(u16::MAX)).build();
    assert_eq!(dissect_usual(&long), dissect(&long).ok());
    assert!(dissect_usual(&long).is_some());
    let longer = [&long[..], &[0]].concat();
    assert_eq!((dissect_usual(&longer), dissect(&longer)), (None, Err(Malformed::Oversize)));
}

#[test]
fn checksum_covers_the_segment_and_its_pseudo_header() {
    let hop = [Extension::HopByHop(&[])];
    let more = v4().fragment(ipv4::MORE_FRAGMENTS).udp(1, 2).payload(&[0; 24]).build();
    let no_checksum = with(with(v4().udp(1, 2).payload(b"data").build(), 40, 0), 41, 0);
    let low_byte = with(no_checksum.clone(), 41, 1);
    for (frame, covered) in [
        (v4().udp(1, 2).payload(b"data").build(), Some((12, true))),
        (v4().options(&[1, 1, 1, 1]).udp(1, 2).payload(b"data").build(), Some((12, true))),
        (v6().tcp(1, 2).payload(b"data").build(), Some((24, true))),
        // The UDP datagram ends before the end of the IP payload.
        (with(v4().udp(1, 2).payload(b"data").build(), 39, 10), Some((10, false))),
        (low_byte, Some((12, false))),
        (no_checksum, None),
        (more, None),
        (v6().extensions(&hop).udp(1, 2).build(), None),
        (v4().echo_request(1, 2).build(), None),
    ] {
        let found = dissect(&frame).unwrap();
        let got = checksummed(&frame, &found).map(|(sum, bytes)| (bytes.len(), sum.bytes(bytes).checksum() == 0));
        assert_eq!(got, covered, "{frame:02x?}");
    }
}
