//! `checksum`: makes the checksums of a packet right.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::checksum::Sum;
use crate::header::ipv4::{self, Ipv4};
use crate::header::ipv6::Ipv6;
use crate::header::udp::Udp;
use crate::header::{Header, protocol};
use crate::mem::{Batch, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Stage};

/// Writes the checksums of the IPv4 header, of TCP and of UDP anew, whatever they were.
///
/// A UDP checksum of 0 on IPv4 stays, as it says that there is none. The transport is left as it is where its checksum
/// cannot be told from this packet alone: in fragments, behind IPv6 extension headers, and where UDP says that it is
/// longer than the packet.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "sums"
/// use = "checksum"
/// ```
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checksum {}

/// Where the checksum of TCP lies in its header, and that of UDP.
const TCP_AT: usize = 16;
const UDP_AT: usize = 6;

impl Stage for Checksum {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if rewrite(&mut packet).is_none() {
                packet.drop(Reason::Truncated);
            }
        }
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS
    }
}

/// `None`: the packet was cut after it was parsed.
#[inline]
fn rewrite(packet: &mut Packet<'_>) -> Option<()> {
    let meta = *packet.meta();
    let (l3, l4) = (usize::from(meta.l3), usize::from(meta.l4));
    let datagram = packet.data_mut().get_mut(l3..)?;
    if meta.flags.contains(MetaFlags::IPV4) {
        ipv4::write_checksum(datagram).ok()?;
    } else if !meta.flags.contains(MetaFlags::IPV6) {
        return Some(());
    }
    if !meta.flags.contains(MetaFlags::L4) || meta.flags.contains(MetaFlags::FRAGMENT) {
        return Some(());
    }
    let datagram = datagram.get_mut(..usize::from(meta.end).checked_sub(l3)?)?;
    let (network, transport) = datagram.split_at_mut_checked(l4.checked_sub(l3)?)?;
    let (at, len) = match meta.protocol {
        protocol::TCP => (TCP_AT, transport.len()),
        protocol::UDP => (UDP_AT, usize::from(Udp::view(transport).ok()?.length.get())),
        _ => return Some(()),
    };
    // What is longer than the packet has no checksum here.
    let Some(transport) = transport.get_mut(..len) else { return Some(()) };
    let pseudo = if meta.flags.contains(MetaFlags::IPV4) {
        let ip = Ipv4::view(network).ok()?;
        Sum::default().pseudo_ipv4(ip.source, ip.destination, meta.protocol, len as u16)
    } else {
        let ip = Ipv6::view(network).ok()?;
        if ip.next_header != meta.protocol {
            return Some(());
        }
        Sum::default().pseudo_ipv6(&ip.source, &ip.destination, meta.protocol, len as u32)
    };
    // A length of UDP that has no room for its own header.
    let Some(old) = transport.get(at..at + 2) else { return Some(()) };
    let old = u16::from_be_bytes([old[0], old[1]]);
    let is_udp = meta.protocol == protocol::UDP;
    if old == 0 && is_udp && meta.flags.contains(MetaFlags::IPV4) {
        return Some(());
    }
    // The protocol is in the sum: it is not 0.
    let sum = pseudo.bytes(transport).without(old);
    let sum = if is_udp { sum.udp_checksum() } else { sum.checksum() };
    transport.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::header::parse::{Flags, dissect};
    use crate::stages::parse::Parse;
    use crate::testing::{Fate, Harness, strategies};

    /// Where the checksum of the transport lies, and whether the frame has one.
    fn transport_at(frame: &[u8]) -> Option<usize> {
        let found = dissect(frame).unwrap();
        let at = usize::from(found.l4) + if found.protocol == protocol::TCP { TCP_AT } else { UDP_AT };
        let direct = !found.flags.intersects(Flags::FRAGMENT | Flags::IP_OPTIONS) && found.flags.contains(Flags::L4_OK);
        let has = direct && [protocol::TCP, protocol::UDP].contains(&found.protocol);
        has.then_some(at).filter(|at| frame[*at..*at + 2] != [0, 0])
    }

    proptest! {
        #[test]
        fn what_was_spoilt_is_right_again(frames in prop::collection::vec(strategies::valid_frame(), 1..20), by in 1u8..) {
            let mut harness = Harness::builder().after(Parse::default()).build::<Checksum>("").unwrap();
            let spoilt = frames.iter().map(|frame| {
                let mut bytes = frame.clone();
                // 0 would be a UDP packet without one.
                if let Some(at) = transport_at(frame).filter(|at| bytes[at + 1] ^ by != 0) {
                    bytes[at + 1] ^= by;
                }
                bytes
            });
            let spoilt: Vec<_> = spoilt.collect();
            for (outcome, frame) in harness.run(&spoilt).into_iter().zip(frames) {
                prop_assert_eq!((outcome.bytes, outcome.fate), (frame, Fate::Next));
            }
        }
    }

    #[test]
    fn a_udp_packet_without_one_stays_without() {
        let mut frame = crate::testing::frame()
            .ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
            .udp(1, 2)
            .payload(&[7; 22])
            .build();
        frame[14 + 20 + UDP_AT..][..2].fill(0);
        let mut harness = Harness::builder().after(Parse::default()).build::<Checksum>("").unwrap();
        assert_eq!(harness.run_one(&frame).bytes, frame);
    }

    #[test]
    fn a_packet_that_was_cut_is_dropped() {
        let bytes = crate::testing::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).build();
        let outcome = crate::stages::bench::cut::<Checksum>().run_one(&bytes);
        assert_eq!(outcome.fate, Fate::Dropped("truncated".to_owned()));
    }
}
