//! Checksums, frame check sequences and segments of frames.

use dataplane_core::header::parse::{Flags, checksummed, dissect};
use dataplane_core::header::{ipv4, protocol};

/// The length of a frame check sequence in bytes.
pub(super) const FCS: usize = 4;

/// Returns whether the IPv4 checksum and the TCP or UDP checksum of an IPv4 packet are correct. Returns `false` for
/// every frame whose checksums the device does not check: IPv6 packets, fragments, other protocols, and UDP packets
/// without a checksum. For mlx5 devices, libibverbs reports the checksums in the same way.
pub(super) fn checksums_are_correct(frame: &[u8]) -> bool {
    let Ok(found) = dissect(frame) else { return false };
    found.flags.contains(Flags::IPV4)
        && frame.get(usize::from(found.l3)..).is_some_and(ipv4::checksum_ok)
        && checksummed(frame, &found).is_some_and(|(pseudo, bytes)| pseudo.bytes(bytes).checksum() == 0)
}

/// Writes the IPv4 header checksum, and the checksum of a TCP or UDP packet that has one.
pub(crate) fn write_checksums(frame: &mut [u8]) {
    let Ok(found) = dissect(frame) else { return };
    if found.flags.contains(Flags::IPV4) {
        // The header is complete, as `dissect` has checked.
        let _ = ipv4::write_checksum(&mut frame[usize::from(found.l3)..]);
    }
    let is_udp = found.protocol == protocol::UDP;
    let field = usize::from(found.l4) + if is_udp { 6 } else { 16 };
    if let Some((pseudo, bytes)) = checksummed(frame, &found) {
        let old = u16::from_be_bytes([frame[field], frame[field + 1]]);
        let sum = pseudo.bytes(bytes).without(old);
        let sum = if is_udp { sum.udp_checksum() } else { sum.checksum() };
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The CRC-32 of IEEE 802.3 for each value of a byte.
const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns the frame check sequence, in the order of transmission.
pub(super) fn check_sequence(frame: &[u8]) -> [u8; FCS] {
    let crc = frame.iter().fold(u32::MAX, |crc, byte| crc >> 8 ^ CRC[usize::from(crc as u8 ^ byte)]);
    (!crc).to_le_bytes()
}

/// Writes one segment of a TCP stream to `out`. The segment contains at most `mss` bytes of `payload`, starting at byte
/// `from`. `header` contains the Ethernet, IP and TCP headers of the stream. This function sets the lengths, the IPv4
/// identification, the sequence number, the TCP flags and the checksums of the segment. Returns `false` if the headers
/// are not the headers of a TCP packet.
pub(crate) fn write_segment(out: &mut Vec<u8>, header: &[u8], payload: &[u8], from: usize, mss: u16) -> bool {
    const FIN: u8 = 0x01;
    const PSH: u8 = 0x08;
    const CWR: u8 = 0x80;
    let until = payload.len().min(from + usize::from(mss));
    out.clear();
    out.extend_from_slice(header);
    out.extend_from_slice(&payload[from..until]);
    let Some((l3, is_ipv6)) = network_header(out) else { return false };
    let length = out.len() - l3 - if is_ipv6 { 40 } else { 0 };
    let Ok(length) = u16::try_from(length) else { return false };
    let at = if is_ipv6 { l3 + 4 } else { l3 + 2 };
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
    if !is_ipv6 {
        let id = u16::from_be_bytes([out[l3 + 4], out[l3 + 5]]).wrapping_add((from / usize::from(mss)) as u16);
        out[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
    }
    let Ok(found) = dissect(out) else { return false };
    let tcp = usize::from(found.l4);
    if found.protocol != protocol::TCP || !found.flags.contains(Flags::L4_OK) {
        return false;
    }
    if tcp + usize::from(out[tcp + 12] >> 4) * 4 != header.len() {
        return false;
    }
    let sequence = u32::from_be_bytes([out[tcp + 4], out[tcp + 5], out[tcp + 6], out[tcp + 7]]);
    out[tcp + 4..tcp + 8].copy_from_slice(&sequence.wrapping_add(from as u32).to_be_bytes());
    // Only the first segment keeps CWR, and only the last segment keeps FIN and PSH.
    if from > 0 {
        out[tcp + 13] &= !CWR;
    }
    if until < payload.len() {
        out[tcp + 13] &= !(FIN | PSH);
    }
    if checksummed(out, &found).is_none() {
        return false;
    }
    write_checksums(out);
    true
}

/// Returns the offset of the IP header, and whether the header is IPv6. Returns `None` without a complete IP header.
fn network_header(frame: &[u8]) -> Option<(usize, bool)> {
    use dataplane_core::header::{ether_type, vlan};
    let kind = |at: usize| Some(u16::from_be_bytes(*frame.get(at..at + 2)?.first_chunk()?));
    let mut at = 12;
    while vlan::is_tag(kind(at)?) {
        at += 4;
    }
    let (length, is_ipv6) = match kind(at)? {
        ether_type::IPV4 => (20, false),
        ether_type::IPV6 => (40, true),
        _ => return None,
    };
    (frame.len() >= at + 2 + length).then_some((at + 2, is_ipv6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    fn udp(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(7, 8);
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).unwrap();
        frame
    }

    fn tcp(is_ipv6: bool, payload: &[u8]) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        match is_ipv6 {
            true => ethernet.ipv6([1; 16], [2; 16], 9).tcp(1, 2, u32::MAX, 4).fin().psh().write(&mut frame, payload),
            false => ethernet.ipv4([1; 4], [2; 4], 9).tcp(1, 2, u32::MAX, 4).fin().psh().write(&mut frame, payload),
        }
        .unwrap();
        frame
    }

    #[test]
    fn packet_counts_as_correct_only_with_correct_ip_and_transport_checksums() {
        for frame in [udp(b"abc"), tcp(false, b"abcd")] {
            assert!(checksums_are_correct(&frame));
            for at in [14 + 8, frame.len() - 1] {
                let mut broken = frame.clone();
                broken[at] ^= 1;
                assert!(!checksums_are_correct(&broken), "{at}");
            }
        }
        assert!(!checksums_are_correct(&tcp(true, b"a")), "libibverbs does not report the checksums of IPv6 packets");
        let mut without = udp(b"abc");
        without[40..42].fill(0);
        assert!(!checksums_are_correct(&without), "a UDP packet without a checksum has no correct checksum");
        let mut fragment = udp(b"abc");
        fragment[20] = 0x20;
        write_checksums(&mut fragment);
        assert!(!checksums_are_correct(&fragment));
    }

    #[test]
    fn written_checksums_match_another_implementation() {
        for frame in [udp(b"abc"), udp(b""), tcp(false, b"abcd"), tcp(true, b"abc")] {
            let mut broken = frame.clone();
            let upper = if broken[12] == 8 { 34 } else { 54 };
            let field = upper + if broken.len() > upper + 16 { 16 } else { 6 };
            let is_tcp = frame[if upper == 34 { 23 } else { 20 }] == 6;
            let field = if is_tcp { field } else { upper + 6 };
            broken[field] ^= 0x55;
            if upper == 34 {
                broken[24] ^= 0xaa;
            }
            write_checksums(&mut broken);
            assert_eq!(broken, frame);
        }
    }

    #[test]
    fn frame_check_sequence_is_the_crc_of_ieee_802_3() {
        // The check value of CRC-32/ISO-HDLC.
        assert_eq!(check_sequence(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
    }

    #[test]
    fn segments_carry_the_whole_stream_with_correct_headers() {
        for is_ipv6 in [false, true] {
            let payload: Vec<u8> = (0..250).collect();
            let whole = tcp(is_ipv6, &payload);
            let header = &whole[..whole.len() - payload.len()];
            let (mut out, mut stream) = (Vec::new(), Vec::new());
            for from in (0..payload.len()).step_by(100) {
                assert!(write_segment(&mut out, header, &payload, from, 100));
                let part = &payload[from..payload.len().min(from + 100)];
                let mut expected = tcp(is_ipv6, part);
                let l4 = header.len() - 20;
                expected[l4 + 4..l4 + 8].copy_from_slice(&u32::MAX.wrapping_add(from as u32).to_be_bytes());
                if from + 100 < payload.len() {
                    expected[l4 + 13] &= !0x09;
                }
                if !is_ipv6 {
                    expected[18..20].copy_from_slice(&((from / 100) as u16).to_be_bytes());
                }
                write_checksums(&mut expected);
                assert_eq!(out, expected);
                stream.extend_from_slice(&out[header.len()..]);
            }
            assert_eq!(stream, payload);
        }
        let mut out = Vec::new();
        assert!(!write_segment(&mut out, &udp(b"")[..42], b"abc", 0, 2), "UDP headers");
        assert!(!write_segment(&mut out, &[0; 14], b"abc", 0, 2), "no IP header");
    }
}
