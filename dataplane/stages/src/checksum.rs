//! `checksum`: recomputes the checksums of a packet.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::header::checksum::Sum;
use dataplane_core::header::ipv4::{self, Ipv4};
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::header::udp::Udp;
use dataplane_core::header::{Header, protocol};
use dataplane_core::mem::{Batch, MetaFlags, Packet, Reason};
use dataplane_core::pipeline::{ChecksumOffload, Contract, Ctx, Facts, Stage, StageInfo};
use dataplane_core::verbs::checksum_covers_payload;

/// Recomputes the checksums of the IPv4 header, of TCP and of UDP, even if the old checksums were wrong.
///
/// A UDP checksum of 0 over IPv4 stays 0, because 0 means that the sender computed no checksum. The stage leaves the
/// TCP or UDP checksum unchanged in three cases: the packet is a fragment, the packet has IPv6 extension headers, or
/// the UDP length exceeds the packet.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "sums"
/// use = "checksum"
/// ```
///
/// If the conditions below hold, the sending devices compute the checksums of complete TCP and UDP packets. The stage
/// then computes only the checksums of all other packets. The conditions are:
/// - Every port that sends packets of the stage uses checksum offload. See the key `offload` of the port.
/// - All later stages ignore checksums, as `tx` does.
/// - Every packet that such a port sends has passed a `checksum` stage.
/// - Neither this stage nor a later stage has the key `drops`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checksum {
    /// Whether devices compute the checksums of packets with [`checksum_covers_payload`].
    #[serde(skip)]
    #[schemars(skip)]
    devices_compute: bool,
}

/// The offset of the checksum in the TCP header and in the UDP header.
const TCP_AT: usize = 16;
const UDP_AT: usize = 6;

impl Stage for Checksum {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if self.devices_compute && checksum_covers_payload(packet.data()) {
                continue;
            }
            if rewrite(&mut packet).is_none() {
                packet.drop(Reason::Truncated);
            }
        }
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().drops(&[Reason::Truncated])
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS).computes_checksums::<Self>()
    }
}

impl ChecksumOffload for Checksum {
    fn offload_checksums(&mut self) {
        self.devices_compute = true;
    }
}

/// Recomputes the checksums of a packet. Returns `None` if the packet was truncated after `parse`.
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
    // If the UDP length exceeds the packet, the checksum covers bytes that are not in this packet.
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
    // The checksum field is missing if the UDP length is too small for the UDP header.
    let Some(old) = transport.get(at..at + 2) else { return Some(()) };
    let old = u16::from_be_bytes([old[0], old[1]]);
    let is_udp = meta.protocol == protocol::UDP;
    if old == 0 && is_udp && meta.flags.contains(MetaFlags::IPV4) {
        return Some(());
    }
    // The pseudo header contains the protocol number, so the sum of all words is not 0.
    let sum = pseudo.bytes(transport).without(old);
    let sum = if is_udp { sum.udp_checksum() } else { sum.checksum() };
    transport.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::Parse;
    use dataplane_core::harness::{Fate, Harness};
    use dataplane_core::header::parse::{Flags, dissect};
    use dataplane_testing::strategies;

    /// Returns the offset of the transport checksum, or `None` if the frame has none.
    fn transport_at(frame: &[u8]) -> Option<usize> {
        let found = dissect(frame).unwrap();
        let at = usize::from(found.l4) + if found.protocol == protocol::TCP { TCP_AT } else { UDP_AT };
        let direct = !found.flags.intersects(Flags::FRAGMENT | Flags::IP_OPTIONS) && found.flags.contains(Flags::L4_OK);
        let has = direct && [protocol::TCP, protocol::UDP].contains(&found.protocol);
        has.then_some(at).filter(|at| frame[*at..*at + 2] != [0, 0])
    }

    proptest! {
        #[test]
        fn wrong_checksums_are_corrected(frames in prop::collection::vec(strategies::valid_frame(), 1..20), by in 1u8..) {
            let mut harness = Harness::builder().after(Parse::default()).build::<Checksum>("").unwrap();
            let corrupted = frames.iter().map(|frame| {
                let mut bytes = frame.clone();
                // Keep the checksum if the change could make it 0, because 0 means that a UDP packet has no checksum.
                if let Some(at) = transport_at(frame).filter(|at| bytes[at + 1] ^ by != 0) {
                    bytes[at + 1] ^= by;
                }
                bytes
            });
            let corrupted: Vec<_> = corrupted.collect();
            for (outcome, frame) in harness.run(&corrupted).into_iter().zip(frames) {
                prop_assert_eq!((outcome.bytes, outcome.fate), (frame, Fate::Next));
            }
        }
    }

    #[test]
    fn udp_checksum_of_zero_stays_zero() {
        let mut frame = dataplane_core::harness::frame()
            .ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
            .udp(1, 2)
            .payload(&[7; 22])
            .build();
        frame[14 + 20 + UDP_AT..][..2].fill(0);
        let mut harness = Harness::builder().after(Parse::default()).build::<Checksum>("").unwrap();
        assert_eq!(harness.run_one(&frame).bytes, frame);
    }

    #[test]
    fn truncated_packet_is_dropped() {
        let bytes = dataplane_core::harness::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).build();
        let outcome = crate::bench::cut::<Checksum>().run_one(&bytes);
        assert_eq!(outcome.fate, Fate::Dropped("truncated".to_owned()));
    }
}
