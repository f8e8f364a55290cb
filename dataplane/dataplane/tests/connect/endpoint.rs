//! Tests of the wire format of endpoints, and of endpoints that are rejected. An endpoint is the address that a queue
//! pair sends to its peer.

use dataplane::connect::{EndpointError, QueuePairEndpoint, RemoteBuffer, VERSION};
use dataplane::units::{Gid, QpNum, Rkey};
use dataplane::verbs::{GidKind, LinkLayer, QpType};
use proptest::prelude::*;

use super::endpoint;

fn any_endpoint() -> impl Strategy<Value = QueuePairEndpoint> {
    let kinds = (
        prop::sample::select(vec![QpType::Rc, QpType::Uc, QpType::Ud]),
        prop::sample::select(LinkLayer::NAMED.to_vec()),
        prop::sample::select(GidKind::NAMED.to_vec()),
    );
    let addresses = (any::<u16>(), any::<[u8; 16]>(), 2u32..1 << 24, 0u32..1 << 24);
    let sizes = (1u8..=5, any::<u8>(), any::<u32>(), any::<u32>());
    let rest = (any::<u32>(), any::<u16>(), any::<u32>());
    let buffer = prop::option::of((0u64..1 << 63, any::<u32>(), 0u64..1 << 63));
    (kinds, addresses, sizes, rest, buffer).prop_map(|(kinds, addresses, sizes, rest, buffer)| {
        let mut gid = Gid(addresses.1);
        gid.0[0] |= 1;
        QueuePairEndpoint {
            version: VERSION,
            transport: kinds.0,
            link_layer: kinds.1,
            gid_kind: kinds.2,
            lid: addresses.0,
            gid,
            qpn: QpNum(addresses.2),
            psn: addresses.3,
            path_mtu: sizes.0,
            max_dest_rd_atomic: sizes.1,
            max_message: sizes.2,
            qkey: sizes.3,
            generation: rest.0,
            queue: rest.1,
            receive_depth: rest.2,
            buffer: buffer.map(|(addr, rkey, len)| RemoteBuffer { addr, rkey: Rkey(rkey), len }),
        }
    })
}

proptest! {
    /// Decoding an encoded endpoint returns the same endpoint.
    #[test]
    fn endpoint_survives_encoding(endpoint in any_endpoint()) {
        prop_assert_eq!(QueuePairEndpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
    }

    /// Arbitrary bytes are decoded or rejected. A decoded endpoint encodes to the same bytes.
    #[test]
    fn random_bytes_are_decoded_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
        if let Ok(endpoint) = QueuePairEndpoint::from_bytes(&bytes) {
            prop_assert_eq!(&endpoint.to_bytes()[..], &bytes[..]);
        }
    }

    /// An encoded endpoint with one changed byte is decoded or rejected. A decoded endpoint is valid and encodes to the
    /// same bytes.
    #[test]
    fn nearly_valid_bytes_are_decoded_or_rejected(
        endpoint in any_endpoint(),
        at in 0..QueuePairEndpoint::SIZE,
        value in any::<u8>(),
    ) {
        let mut bytes = endpoint.to_bytes();
        bytes[at] = value;
        if let Ok(decoded) = QueuePairEndpoint::from_bytes(&bytes) {
            prop_assert_eq!(decoded.to_bytes(), bytes);
            prop_assert_eq!(decoded.validate(), Ok(()));
        }
    }

    /// An encoded endpoint has a fixed length.
    #[test]
    fn wrong_length_is_rejected(endpoint in any_endpoint(), length in 0usize..200) {
        let mut bytes = endpoint.to_bytes().to_vec();
        bytes.resize(length, 0);
        if length != QueuePairEndpoint::SIZE {
            prop_assert_eq!(QueuePairEndpoint::from_bytes(&bytes), Err(EndpointError::Length(length)));
        }
    }
}

/// Version 1 has the byte layout of `docs/handshake.md`. Other programs may implement that page.
#[test]
fn byte_layout_matches_the_handshake_page() {
    let mut endpoint = endpoint(0x0a_bcde);
    endpoint.lid = 0x0102;
    endpoint.queue = 3;
    endpoint.psn = 0x12_3456;
    endpoint.qkey = 0x1111_1111;
    endpoint.max_message = 0x0080_0000;
    endpoint.generation = 7;
    endpoint.receive_depth = 0x40;
    endpoint.buffer = Some(RemoteBuffer { addr: 0x0011_2233_4455_6677, rkey: Rkey(0x8899_aabb), len: 0x1000 });
    let hex: String = endpoint.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = "0001 02 02 02 03 01 01 0102 0003 000abcde 00123456 11111111 00800000 00000007 00000040 8899aabb \
                    fe800000000000000000000000000001 0011223344556677 0000000000001000";
    assert_eq!(hex, expected.replace(' ', ""));
    assert_eq!(QueuePairEndpoint::SIZE, 72);
}

#[test]
fn invalid_endpoint_is_rejected() {
    let own = endpoint(17);
    type Change = fn(&mut QueuePairEndpoint);
    let cases: [(Change, EndpointError); 15] = [
        (|it| it.version = 2, EndpointError::Version(2)),
        (|it| it.transport = QpType::RawPacket, EndpointError::Unknown { field: "queue pair type", value: 8 }),
        (|it| it.link_layer = LinkLayer::Unknown(9), EndpointError::Unknown { field: "link layer", value: 9 }),
        (|it| it.gid_kind = GidKind::Unknown(7), EndpointError::Unknown { field: "address kind", value: 7 }),
        (|it| it.qpn = QpNum(0), EndpointError::QpNumber(0)),
        (|it| it.qpn = QpNum(1), EndpointError::QpNumber(1)),
        (|it| it.qpn = QpNum(1 << 24), EndpointError::QpNumber(1 << 24)),
        (|it| it.psn = 1 << 24, EndpointError::PacketNumber(1 << 24)),
        (|it| it.path_mtu = 0, EndpointError::PathMtu(0)),
        (|it| it.path_mtu = 6, EndpointError::PathMtu(6)),
        (|it| it.gid = Gid::default(), EndpointError::NoAddress),
        (|it| (it.link_layer, it.gid) = (LinkLayer::InfiniBand, Gid::default()), EndpointError::NoRoute),
        (|it| it.buffer = Some(RemoteBuffer { addr: u64::MAX, rkey: Rkey(1), len: 2 }), EndpointError::Buffer),
        (|it| it.transport = QpType::Uc, EndpointError::Transport { own: QpType::Rc, peer: QpType::Uc }),
        (|it| it.queue = 1, EndpointError::Queue { own: 0, peer: 1 }),
    ];
    for (change, expected) in cases {
        let mut peer = endpoint(18);
        assert_eq!(peer.check_peer(&own, false), Ok(()));
        change(&mut peer);
        assert_eq!(peer.check_peer(&own, false), Err(expected));
        // Decoding and checking the encoded endpoint returns the same error.
        let decoded =
            QueuePairEndpoint::from_bytes(&peer.to_bytes()).and_then(|decoded| decoded.check_peer(&own, false));
        assert_eq!(decoded, Err(expected));
    }
    let infiniband = QueuePairEndpoint { link_layer: LinkLayer::InfiniBand, lid: 5, ..endpoint(18) };
    let layers = EndpointError::LinkLayer { own: LinkLayer::Ethernet, peer: LinkLayer::InfiniBand };
    assert_eq!(infiniband.check_peer(&own, false), Err(layers));
    let other = QueuePairEndpoint { gid_kind: GidKind::RoceV1, ..endpoint(18) };
    let kinds = EndpointError::GidKind { own: GidKind::RoceV2, peer: GidKind::RoceV1 };
    assert_eq!(other.check_peer(&own, false), Err(kinds));
    // An IPv4 address and an IPv6 address cannot reach each other. Two IPv4 addresses can.
    let ipv4 = QueuePairEndpoint { gid: super::gid("192.0.2.1"), ..endpoint(18) };
    let families = EndpointError::AddressFamily { own: own.gid, peer: ipv4.gid };
    assert!(families.to_string().contains("help: set `gid` on both sides"), "{families}");
    assert_eq!(ipv4.check_peer(&own, false), Err(families));
    assert!(own.check_peer(&ipv4, false).is_err());
    let other = QueuePairEndpoint { gid: super::gid("192.0.2.2"), ..endpoint(17) };
    assert_eq!(ipv4.check_peer(&other, false), Ok(()));
    let unspecified = |it| QueuePairEndpoint { link_layer: LinkLayer::Unspecified, ..it };
    assert_eq!(unspecified(ipv4).check_peer(&unspecified(own), false), Ok(()));
}

#[test]
fn own_endpoint_is_a_peer_only_with_allow_self() {
    let own = endpoint(17);
    assert_eq!(own.check_peer(&own, false), Err(EndpointError::PeerIsSelf));
    assert_eq!(own.check_peer(&own, true), Ok(()));
    let elsewhere = QueuePairEndpoint { gid: super::gid("fe80::2"), ..own };
    assert_eq!(
        elsewhere.check_peer(&own, false),
        Ok(()),
        "a queue pair of another port may have the same number as the own queue pair"
    );
}
