//! Receive-side scaling: selects the queue of a frame with a Toeplitz hash of addresses and ports.
//!
//! The hash and its verification suite are defined in "Receive Side Scaling" in the Windows network driver
//! documentation.

use dataplane_core::verbs::{RssFields, RssSpec};

/// The length of the longest input: two IPv6 addresses and two ports.
const INPUT: usize = 36;
/// The number of entries of the indirection table. The low bits of the hash are the index into the table.
pub(super) const TABLE: u32 = 128;

/// The hash function, as a table. The hash of an input is the XOR of precomputed values, one for each input byte. The
/// precomputed value depends on the value and the position of the byte.
#[derive(Debug)]
pub(super) struct Rss {
    contributions: Box<[[u32; 256]; INPUT]>,
    fields: RssFields,
}

impl Rss {
    pub(super) fn new(spec: &RssSpec) -> Self {
        let mut contributions = Box::new([[0; 256]; INPUT]);
        for (at, bytes) in contributions.iter_mut().enumerate() {
            // The low 40 bits of `window` are the bits of the key that apply to this byte.
            let window = spec.key.0[at..at + 5].iter().fold(0u64, |window, byte| window << 8 | u64::from(*byte));
            // The value of a byte is the value of its lowest set bit, XOR the value of the byte without this bit.
            for byte in 1..bytes.len() {
                bytes[byte] = bytes[byte & (byte - 1)] ^ (window >> (1 + byte.trailing_zeros())) as u32;
            }
        }
        Self { contributions, fields: spec.fields }
    }

    fn extend(&self, input: &[u8], from: u32, at: usize) -> u32 {
        self.contributions[at.min(INPUT)..]
            .iter()
            .zip(input)
            .fold(from, |hash, (contributions, byte)| hash ^ contributions[usize::from(*byte)])
    }

    /// Returns the index of the queue for a frame, less than `queues`. Frames that are truncated, or that are neither
    /// IPv4 nor IPv6, go to queue 0.
    pub(super) fn queue(&self, frame: &[u8], queues: u16) -> u16 {
        match queues {
            0 | 1 => 0,
            queues => (self.hash(frame).unwrap_or(0) % TABLE % u32::from(queues)) as u16,
        }
    }

    /// Returns the hash of the fields of a frame that `fields` selects. Ports are hashed only for TCP and UDP,
    /// and not for fragments, because only the first fragment has ports. Returns `None` if the frame is truncated, or
    /// is neither IPv4 nor IPv6.
    pub(super) fn hash(&self, frame: &[u8]) -> Option<u32> {
        let mut at = 12;
        let mut kind = be16(frame, at)?;
        for _ in 0..2 {
            if matches!(kind, 0x8100 | 0x88a8 | 0x9100) {
                at += 4;
                kind = be16(frame, at)?;
            }
        }
        let packet = frame.get(at + 2..)?;
        let (addresses, wanted, protocol, ports) = match kind {
            0x0800 => {
                let header = usize::from(*packet.first()? & 0xf) * 4;
                let fragment = be16(packet, 6)? & 0x3fff != 0;
                let ports = if fragment || header < 20 { None } else { packet.get(header..header + 4) };
                (packet.get(12..20)?, self.fields.ipv4, *packet.get(9)?, ports)
            }
            0x86dd => (packet.get(8..40)?, self.fields.ipv6, *packet.get(6)?, packet.get(40..44)),
            _ => return None,
        };
        let addresses = if wanted { addresses } else { &[] };
        let has_ports = (protocol == 6 && self.fields.tcp) || (protocol == 17 && self.fields.udp);
        let hash = self.extend(addresses, 0, 0);
        Some(ports.filter(|_| has_ports).map_or(hash, |ports| self.extend(ports, hash, addresses.len())))
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn v4(source: &str, target: &str, ports: Option<(u16, u16)>, protocol: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
        frame.extend(source.parse::<Ipv4Addr>().unwrap().octets());
        frame.extend(target.parse::<Ipv4Addr>().unwrap().octets());
        if let Some((a, b)) = ports {
            frame.extend(a.to_be_bytes());
            frame.extend(b.to_be_bytes());
        }
        frame
    }

    fn v6(source: &str, target: &str, ports: (u16, u16), protocol: u8) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, protocol, 64]);
        frame.extend(source.parse::<Ipv6Addr>().unwrap().octets());
        frame.extend(target.parse::<Ipv6Addr>().unwrap().octets());
        frame.extend(ports.0.to_be_bytes());
        frame.extend(ports.1.to_be_bytes());
        frame
    }

    #[test]
    fn hash_matches_the_published_verification_suite() {
        let rss = Rss::new(&RssSpec::STANDARD);
        for (source, target, ports, with_ports, without) in [
            ("66.9.149.187", "161.142.100.80", (2794, 1766), 0x51cc_c178, 0x323e_8fc2),
            ("199.92.111.2", "65.69.140.83", (14230, 4739), 0xc626_b0ea, 0xd718_262a),
            ("24.19.198.95", "12.22.207.184", (12898, 38024), 0x5c2b_394a, 0xd2d0_a5de),
            ("38.27.205.30", "209.142.163.6", (48228, 2217), 0xafc7_327f, 0x8298_9176),
            ("153.39.163.191", "202.188.127.2", (44251, 1303), 0x10e8_28a2, 0x5d18_09c5),
        ] {
            for protocol in [6, 17] {
                assert_eq!(rss.hash(&v4(source, target, Some(ports), protocol)), Some(with_ports));
            }
            assert_eq!(rss.hash(&v4(source, target, Some(ports), 1)), Some(without));
        }
        let (source, target) = ("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1");
        assert_eq!(rss.hash(&v6(source, target, (2794, 1766), 6)), Some(0x4020_7d3d));
        assert_eq!(rss.hash(&v6(source, target, (2794, 1766), 59)), Some(0x2cc1_8cd5));
    }

    #[test]
    fn only_selected_fields_change_the_hash() {
        let none = RssFields::NONE;
        let (tcp, udp) = (6, 17);
        for fields in (0..16).map(|bits: u8| RssFields {
            ipv4: bits & 1 != 0,
            ipv6: bits & 2 != 0,
            tcp: bits & 4 != 0,
            udp: bits & 8 != 0,
        }) {
            let rss = Rss::new(&RssSpec { fields, ..RssSpec::STANDARD });
            for (protocol, ports) in [(tcp, fields.tcp), (udp, fields.udp)] {
                let four = |source, port| rss.hash(&v4(source, "10.0.0.9", Some((port, 2)), protocol));
                let six = |source, port| rss.hash(&v6(source, "fd00::9", (port, 2), protocol));
                let base = (four("10.0.0.1", 1), six("fd00::1", 1));
                assert_eq!(base.0 != four("10.0.0.2", 1), fields.ipv4, "{fields:?}");
                assert_eq!(base.1 != six("fd00::2", 1), fields.ipv6, "{fields:?}");
                assert_eq!((base.0 != four("10.0.0.1", 3), base.1 != six("fd00::1", 3)), (ports, ports), "{fields:?}");
            }
        }
        let rss = Rss::new(&RssSpec { fields: none, ..RssSpec::STANDARD });
        assert_eq!(rss.queue(&v4("10.0.0.1", "10.0.0.9", Some((1, 2)), tcp), 4), 0);
        let ports = Rss::new(&RssSpec { fields: RssFields { tcp: true, ..none }, ..RssSpec::STANDARD });
        let key = RssSpec::STANDARD.key.0;
        assert_eq!(ports.hash(&v4("10.0.0.1", "10.0.0.9", Some((1, 2)), tcp)), Some(plain(&key, &[0, 1, 0, 2])));
    }

    #[test]
    fn vlan_tags_are_skipped_and_fragments_are_hashed_without_ports() {
        let rss = Rss::new(&RssSpec::STANDARD);
        let plain = v4("66.9.149.187", "161.142.100.80", Some((2794, 1766)), 6);
        let mut tagged = plain.clone();
        tagged.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 7]);
        assert_eq!(rss.hash(&tagged), rss.hash(&plain));
        for fragment in [[0x20, 0], [0, 9]] {
            let mut frame = plain.clone();
            frame[20..22].copy_from_slice(&fragment);
            assert_eq!(rss.hash(&frame), Some(0x323e_8fc2));
        }
        let mut arp = plain;
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!((rss.hash(&arp), rss.queue(&arp, 4)), (None, 0));
    }

    /// Computes the hash by its definition: for each set bit of the input, XORs the 32 bits of the key that start at
    /// the position of the bit.
    fn plain(key: &[u8; 40], input: &[u8]) -> u32 {
        let bit = |at: usize| u32::from(key[at / 8] >> (7 - at % 8) & 1);
        let window = |at: usize| (at..at + 32).fold(0, |window, at| window << 1 | bit(at));
        (0..input.len() * 8).filter(|at| input[at / 8] & (0x80 >> (at % 8)) != 0).fold(0, |hash, at| hash ^ window(at))
    }

    proptest! {
        #[test]
        fn hash_equals_its_definition(key: [u8; 32], input in prop::collection::vec(any::<u8>(), 0..=36)) {
            let mut spec = RssSpec::STANDARD;
            spec.key.0[..32].copy_from_slice(&key);
            prop_assert_eq!(Rss::new(&spec).extend(&input, 0, 0), plain(&spec.key.0, &input));
        }

        #[test]
        fn symmetric_key_maps_both_directions_to_one_queue(a: u32, b: u32, p: u16, q: u16, queues in 1u16..=16) {
            let (a, b) = (Ipv4Addr::from(a).to_string(), Ipv4Addr::from(b).to_string());
            let rss = Rss::new(&RssSpec::SYMMETRIC);
            let forth = rss.queue(&v4(&a, &b, Some((p, q)), 17), queues);
            prop_assert!(forth < queues);
            prop_assert_eq!(forth, rss.queue(&v4(&b, &a, Some((q, p)), 17), queues));
        }

        #[test]
        fn any_frame_maps_to_a_valid_queue(frame in prop::collection::vec(any::<u8>(), 0..80), queues: u16) {
            prop_assert!(Rss::new(&RssSpec::STANDARD).queue(&frame, queues) < queues.max(1));
        }
    }
}
