//! Fuzz targets: functions that take any bytes. A target panics if the parser breaks a rule. The tests run each target
//! on the stored inputs (the corpus) of the target.

use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};

use crate::connect;
use crate::header::parse::{Dissection, Flags, Malformed, dissect_usual, verify_ipv4_checksum};
use crate::header::{self, Header, ndp, protocol, vlan};

/// Parses a frame with [`header::parse::dissect`] and compares the result with the results of `dissect_usual` and of
/// the crate `etherparse`. Also parses the frame as each kind of header.
pub fn dissect(frame: &[u8]) {
    let found = header::parse::dissect(frame);
    if let Some(usual) = dissect_usual(frame) {
        assert_eq!(Ok(usual), found, "dissect_usual differs");
    }
    if let Ok(found) = found {
        check_positions(frame, &found);
    }
    compare(frame, found);
    check_views(frame);
}

/// Receives the messages of a connecting peer, whose bytes arrive in two pieces. The first byte of the input is the
/// length of the first piece.
pub fn peer(input: &[u8]) {
    connect::fuzz(input);
}

/// Checks that the header positions are inside the frame and in order.
fn check_positions(frame: &[u8], found: &Dissection) {
    assert!(found.l3 >= 14 && found.l3 <= found.end && usize::from(found.end) <= frame.len(), "{found:?}");
    assert!(found.l4 == 0 || (found.l3 < found.l4 && found.l4 <= found.end), "{found:?}");
    assert!(!found.flags.contains(Flags::L4_OK) || found.l4 + 8 <= found.end, "{found:?}");
    let _ = verify_ipv4_checksum(frame, found);
}

/// Compares the result of `dissect` with the result of `etherparse`, if both parsers follow the same rules for the
/// frame.
fn compare(frame: &[u8], found: Result<Dissection, Malformed>) {
    let reference = SlicedPacket::from_ethernet(frame);
    let (found, reference) = match (found, &reference) {
        (Ok(found), Ok(reference)) => (found, reference),
        (Err(_), Err(_)) => return,
        (Err(reason), Ok(reference)) => {
            return assert!(only_ours_refuses(reason, reference), "{reason}: {reference:?}");
        }
        (Ok(found), Err(error)) => return assert!(only_theirs_refuses(frame, &found), "{found:?}: {error:?}"),
    };
    if theirs_has_other_rules(frame, &found) {
        return;
    }
    let mut tags = Vec::new();
    for extension in &reference.link_exts {
        match extension {
            LinkExtSlice::Vlan(tag) => tags.push(tag.vlan_identifier().value()),
            LinkExtSlice::Macsec(_) => return,
        }
    }
    let ours = [found.outer_tci, found.inner_tci].map(vlan::id);
    assert_eq!(ours[..usize::from(found.vlan_tags)], tags);
    let offset = |slice: &[u8]| slice.as_ptr() as usize - frame.as_ptr() as usize;
    let (l3, has_options, payload) = match &reference.net {
        None => return assert!(!found.flags.intersects(Flags::IPV4 | Flags::IPV6 | Flags::ARP), "{found:?}"),
        Some(NetSlice::Arp(arp)) => {
            assert_eq!(found.flags, Flags::ARP);
            assert_eq!(usize::from(found.l3), offset(arp.slice()));
            return assert_eq!(usize::from(found.end), offset(arp.slice()) + arp.slice().len());
        }
        Some(NetSlice::Ipv4(ip)) => {
            assert!(found.flags.contains(Flags::IPV4));
            (offset(ip.header().slice()), !ip.header().options().is_empty(), ip.payload())
        }
        Some(NetSlice::Ipv6(ip)) => {
            assert!(found.flags.contains(Flags::IPV6));
            (offset(ip.header().slice()), !ip.extensions().is_empty(), ip.payload())
        }
    };
    assert_eq!(usize::from(found.l3), l3);
    assert_eq!(found.flags.contains(Flags::IP_OPTIONS), has_options);
    assert_eq!(usize::from(found.end), offset(payload.payload) + payload.payload.len());
    assert_eq!(found.protocol, payload.ip_number.0);
    assert_eq!(found.flags.contains(Flags::FRAGMENT), payload.fragmented);
    if payload.fragmented && !found.flags.contains(Flags::FIRST_FRAGMENT) {
        assert_eq!(found.l4, 0);
    } else if found.protocol != protocol::NO_NEXT_HEADER {
        assert_eq!(usize::from(found.l4), offset(payload.payload));
    }
    if !payload.fragmented {
        let has_transport =
            matches!(&reference.transport, Some(transport) if !matches!(transport, TransportSlice::Igmp(_)));
        assert_eq!(found.flags.contains(Flags::L4_OK), has_transport, "{found:?}");
    }
}

/// Returns whether `dissect` may refuse a frame for this reason although `etherparse` accepts the frame.
fn only_ours_refuses(reason: Malformed, reference: &SlicedPacket<'_>) -> bool {
    match reason {
        Malformed::Oversize
        | Malformed::TooManyVlanTags
        | Malformed::TooManyIpv6Extensions
        | Malformed::BadIpv6Extension
        | Malformed::BadUdpLength => true,
        // `etherparse` accepts some frames without parsing a transport header, such as encrypted MACsec frames. If the
        // payload length of IPv6 is 0, `etherparse` takes the whole frame as the payload.
        _ => {
            let is_empty = matches!(&reference.net, Some(NetSlice::Ipv6(ip)) if ip.header().payload_length() == 0);
            is_empty || reference.transport.is_none()
        }
    }
}

/// Returns whether `etherparse` may refuse a frame that `dissect` accepts. `etherparse` parses IGMP, and requires 20 bytes
/// for a timestamp message of ICMPv4.
fn only_theirs_refuses(frame: &[u8], found: &Dissection) -> bool {
    const IGMP: u8 = 2;
    /// Timestamp and timestamp reply.
    const TIMESTAMPS: [u8; 2] = [13, 14];
    let kind = frame.get(usize::from(found.l4));
    let is_timestamp = found.protocol == protocol::ICMP && kind.is_some_and(|kind| TIMESTAMPS.contains(kind));
    theirs_has_other_rules(frame, found) || found.protocol == IGMP || is_timestamp
}

/// Returns whether `etherparse` parses a frame by other rules: it follows more kinds of tags and of extension headers,
/// and treats an IPv6 payload length of 0 as unknown. `etherparse` also parses the payload of a later fragment as
/// extension headers.
fn theirs_has_other_rules(frame: &[u8], found: &Dissection) -> bool {
    const MACSEC: u16 = 0x88e5;
    /// Mobility, HIP and Shim6.
    const MORE_EXTENSIONS: [u8; 3] = [135, 139, 140];
    let l3 = usize::from(found.l3);
    let is_empty = found.flags.contains(Flags::IPV6) && frame.get(l3 + 4..l3 + 6) == Some(&[0, 0]);
    let is_ipv4_ah = found.flags.contains(Flags::IPV4) && found.protocol == protocol::AH;
    let has_more = found.flags.contains(Flags::IPV6) && MORE_EXTENSIONS.contains(&found.protocol);
    let is_later_fragment = found.flags.contains(Flags::FRAGMENT) && !found.flags.contains(Flags::FIRST_FRAGMENT);
    let has_headers_of_payload = is_later_fragment && header::ipv6::is_extension(found.protocol);
    found.ether_type == MACSEC || is_empty || is_ipv4_ah || has_more || has_headers_of_payload
}

/// Parses the bytes as each kind of header. For each kind, `view` and `parts` must agree.
fn check_views(bytes: &[u8]) {
    fn check<H: Header>(bytes: &[u8]) {
        let view = H::view(bytes);
        let parts = H::parts(bytes);
        assert_eq!(view.as_ref().err(), parts.as_ref().err());
        if let (Ok(view), Ok(parts)) = (view, parts) {
            assert!(std::ptr::eq(view, parts.header));
            assert_eq!(H::LEN + parts.options.len() + parts.rest.len(), bytes.len());
            assert_eq!(H::LEN + parts.options.len(), view.header_len().max(H::LEN));
        }
    }
    check::<header::ethernet::Ethernet>(bytes);
    check::<header::vlan::VlanTag>(bytes);
    check::<header::arp::Arp>(bytes);
    check::<header::ipv4::Ipv4>(bytes);
    check::<header::ipv6::Ipv6>(bytes);
    check::<header::ipv6::Extension>(bytes);
    check::<header::ipv6::Fragment>(bytes);
    check::<header::ipv6::Authentication>(bytes);
    check::<header::tcp::Tcp>(bytes);
    check::<header::udp::Udp>(bytes);
    check::<header::icmp::Icmp>(bytes);
    check::<header::tunnel::Vxlan>(bytes);
    check::<header::tunnel::Gre>(bytes);
    check::<header::grh::Grh>(bytes);
    let _ = header::ipv4::checksum_ok(bytes);
    for kind in [1, 2] {
        let _ = ndp::link_address(bytes, kind);
    }
}

#[cfg(test)]
mod tests {
    use dataplane_testing::corpus;

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn targets_accept_their_corpora() {
        corpus::replay("dissect", super::dissect);
        corpus::replay("peer", super::peer);
    }
}
