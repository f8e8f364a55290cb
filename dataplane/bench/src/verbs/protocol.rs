//! The messages of the exchange, in the format of perftest (version 5.70 and later).
//!
//! ```text
//! 16 bytes      version as text, then zeros
//! 4 bytes       size of the area that a peer writes in turn ("cycle buffer"), big-endian
//! 4 bytes       size of a cache line, big-endian
//! 2 bytes       code of the path MTU as a digit, then a NUL
//! 108 bytes     destination with a GID, as hexadecimal text, then a NUL
//! 59 bytes      destination without a GID
//! 8 bytes each  result: message size, iterations, peak, average, message rate; big-endian
//! ```
//!
//! perftest sends zeros after its version. This program sends its test there, so that two of these programs detect
//! different options.

use std::fmt::Write;
use std::time::Duration;

use dataplane::units::{Gid, Period};

use super::plan::{Test, Transport};

/// The version of perftest whose exchange this program uses.
pub(super) const VERSION: &str = "6.06";
/// The oldest version of perftest with this exchange.
pub(super) const OLDEST: f64 = 5.7;
/// The version of perftest with another message between the path MTU and the destinations. Later versions send this message
/// only to peers that have the message too.
pub(super) const INCOMPATIBLE: &str = "6.28";
/// The number of bytes of the version message.
pub(super) const VERSION_BYTES: usize = 16;
/// The number of bytes of a destination with a GID, and without a GID.
const DESTINATION_BYTES: [usize; 2] = [108, 59];
/// The bytes after the version that mark this program.
const MARK: [u8; 2] = *b"dp";
/// The first bits of the parts of the number after the mark. The lowest bits are the number of the test.
const TRANSPORT_AT: u32 = 3;
const DURATION_AT: u32 = 5;
const BIDIRECTIONAL_AT: u32 = 6;
const QUEUE_PAIRS_AT: u32 = 7;
const MARK_AT: usize = VERSION.len() + 1;

/// The options that both sides must share. Two of these programs compare their identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) test: Test,
    pub(super) transport: Transport,
    pub(super) bidirectional: bool,
    /// The number of queue pairs, 1 to 512.
    pub(super) queue_pairs: u16,
    /// The size of the messages, or 0 for all sizes.
    pub(super) size: u32,
    /// The number of messages of each size, below 2^24. 0 with a duration.
    pub(super) iterations: u32,
    /// The duration in milliseconds, below 2^24. 0 without a duration.
    pub(super) duration: u32,
}

impl Identity {
    /// Returns the name and the two values of the first option that differs.
    pub(super) fn difference(&self, peer: &Self) -> Option<(&'static str, String, String)> {
        let size = |size: u32| if size == 0 { "all".to_owned() } else { size.to_string() };
        let yes_or_no = |is_set: bool| if is_set { "yes" } else { "no" }.to_owned();
        let duration = |millis: u32| match millis {
            0 => "none".to_owned(),
            millis => Period(Duration::from_millis(millis.into())).to_string(),
        };
        let options = [
            ("TEST", self.test.to_string(), peer.test.to_string()),
            ("--type", self.transport.to_string(), peer.transport.to_string()),
            ("--bidirectional", yes_or_no(self.bidirectional), yes_or_no(peer.bidirectional)),
            ("--queue-pairs", self.queue_pairs.to_string(), peer.queue_pairs.to_string()),
            ("--size", size(self.size), size(peer.size)),
            ("--duration", duration(self.duration), duration(peer.duration)),
            ("--iterations", self.iterations.to_string(), peer.iterations.to_string()),
        ];
        options.into_iter().find(|(_, own, peer)| own != peer)
    }
}

/// The version of a peer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PeerVersion {
    pub(super) text: String,
    pub(super) number: f64,
    /// The test of the peer, if the peer is this program.
    pub(super) identity: Option<Identity>,
}

/// Returns the version message.
pub(super) fn encode_version(identity: &Identity) -> [u8; VERSION_BYTES] {
    let mut bytes = [0; VERSION_BYTES];
    bytes[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
    let mark = &mut bytes[MARK_AT..];
    mark[..2].copy_from_slice(&MARK);
    let parts = u16::from(identity.test.number())
        | u16::from(identity.transport.number()) << TRANSPORT_AT
        | u16::from(identity.duration > 0) << DURATION_AT
        | u16::from(identity.bidirectional) << BIDIRECTIONAL_AT
        | (identity.queue_pairs - 1) << QUEUE_PAIRS_AT;
    mark[2..4].copy_from_slice(&parts.to_be_bytes());
    mark[4..8].copy_from_slice(&identity.size.to_be_bytes());
    mark[8..].copy_from_slice(&identity.iterations.max(identity.duration).to_be_bytes()[1..]);
    bytes
}

/// Parses a version message. Returns `None` if the bytes do not start with a version.
pub(super) fn decode_version(bytes: &[u8]) -> Option<PeerVersion> {
    let bytes: &[u8; VERSION_BYTES] = bytes.try_into().ok()?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = if is_number { text.parse().ok()? } else { return None };
    let mark = bytes.get(end + 1..end + 12).filter(|mark| mark[..2] == MARK);
    let identity = mark.and_then(|mark| {
        let parts = u16::from_be_bytes([mark[2], mark[3]]);
        let part = |at: u32, bits: u32| parts >> at & ((1 << bits) - 1);
        let length = u32::from_be_bytes([0, mark[8], mark[9], mark[10]]);
        let (iterations, duration) = if part(DURATION_AT, 1) == 0 { (length, 0) } else { (0, length) };
        Some(Identity {
            test: Test::from_number(part(0, TRANSPORT_AT) as u8)?,
            transport: Transport::from_number(part(TRANSPORT_AT, DURATION_AT - TRANSPORT_AT) as u8)?,
            bidirectional: part(BIDIRECTIONAL_AT, 1) == 1,
            queue_pairs: part(QUEUE_PAIRS_AT, u16::BITS - QUEUE_PAIRS_AT) + 1,
            size: u32::from_be_bytes(mark[4..8].try_into().ok()?),
            iterations,
            duration,
        })
    });
    Some(PeerVersion { text: text.to_owned(), number, identity })
}

/// The address of a queue pair and of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// The local identifier of the port; 0 on Ethernet.
    pub(super) lid: u16,
    /// The number of reads and atomics that this side accepts at once.
    pub(super) outstanding: u16,
    /// The number of the queue pair.
    pub(super) qpn: u32,
    /// The first packet sequence number.
    pub(super) psn: u32,
    /// The key of the memory.
    pub(super) rkey: u32,
    /// The address of the memory.
    pub(super) addr: u64,
    /// The GID of the port. `None` on InfiniBand if the port does not require a global route header and the options
    /// select no GID.
    pub(super) gid: Option<Gid>,
}

impl Destination {
    /// Returns the length of a destination in bytes.
    pub(super) fn bytes(has_gid: bool) -> usize {
        DESTINATION_BYTES[usize::from(!has_gid)]
    }

    /// Returns the destination in the format of the exchange. The number of the shared receive queue is always 0.
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { lid, outstanding, qpn, psn, rkey, addr, gid } = self;
        let mut text = format!("{lid:04x}:{outstanding:04x}:{qpn:06x}:{psn:06x}:{rkey:08x}:{addr:016x}:");
        if let Some(gid) = gid {
            for byte in gid.0 {
                let _ = write!(text, "{byte:02x}:");
            }
        }
        text += if gid.is_some() { "00000000:\0" } else { "00000000\0" };
        text.into_bytes()
    }

    /// Parses a destination. Returns the reason if the bytes are no destination.
    pub(super) fn decode(bytes: &[u8], has_gid: bool) -> Result<Self, String> {
        let quoted = || format!("`{}`", bytes.escape_ascii());
        let text = bytes.split(|byte| *byte == 0).next().and_then(|text| std::str::from_utf8(text).ok());
        let fields: Vec<&str> = text.unwrap_or_default().trim_end_matches(':').split(':').collect();
        let count = if has_gid { 6 + 16 + 1 } else { 7 };
        if fields.len() != count {
            return Err(format!("{} has {} fields instead of {count}", quoted(), fields.len()));
        }
        let number = |at: usize, bits: u32| {
            let field = fields[at];
            let value = u64::from_str_radix(field, 16).ok().filter(|value| value.checked_shr(bits).unwrap_or(0) == 0);
            value.filter(|_| !field.starts_with('+')).ok_or_else(|| {
                format!(
                    "field {} of {} is `{field}`, which is not a hexadecimal number of {bits} bits",
                    at + 1,
                    quoted()
                )
            })
        };
        let mut gid = None;
        if has_gid {
            let mut octets = [0; 16];
            for (at, octet) in octets.iter_mut().enumerate() {
                *octet = number(6 + at, 8)? as u8;
            }
            gid = Some(Gid(octets));
        }
        Ok(Self {
            lid: number(0, 16)? as u16,
            outstanding: number(1, 16)? as u16,
            qpn: number(2, 24)? as u32,
            psn: number(3, 24)? as u32,
            rkey: number(4, 32)? as u32,
            addr: number(5, 64)?,
            gid,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity() -> Identity {
        let (test, transport, iterations) = (Test::AtomicLat, Transport::Uc, 10_000_000);
        Identity { test, transport, bidirectional: false, queue_pairs: 1, size: 4096, iterations, duration: 0 }
    }

    #[test]
    fn version_of_perftest_has_no_identity() {
        let peer = decode_version(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0").unwrap();
        assert_eq!(peer, PeerVersion { text: "6.06".to_owned(), number: 6.06, identity: None });
        assert_eq!(decode_version(b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(decode_version(&[0; 16]), None);
        assert_eq!(decode_version(b"6.06"), None);
    }

    #[test]
    fn identity_survives_the_version_message() {
        let peer = decode_version(&encode_version(&identity())).unwrap();
        assert_eq!((peer.text.as_str(), peer.identity), (VERSION, Some(identity())));
        for (peer, option) in [
            (Identity { test: Test::ReadBw, ..identity() }, "TEST"),
            (Identity { transport: Transport::Rc, ..identity() }, "--type"),
            (Identity { bidirectional: true, ..identity() }, "--bidirectional"),
            (Identity { queue_pairs: 512, ..identity() }, "--queue-pairs"),
            (Identity { size: 0, ..identity() }, "--size"),
            (Identity { iterations: 1, ..identity() }, "--iterations"),
            (Identity { iterations: 0, duration: 14_400_000, ..identity() }, "--duration"),
        ] {
            assert_eq!(decode_version(&encode_version(&peer)).unwrap().identity, Some(peer));
            assert_eq!(identity().difference(&peer).map(|(option, ..)| option), Some(option), "{peer:?}");
        }
        assert_eq!(identity().difference(&identity()), None);
    }

    /// The destination of a queue pair in perftest's format.
    const WITH_GID: &[u8; 108] =
        b"0000:0001:000011:2f5b5c:00000a1b:00007f0123456000:fe:80:00:00:00:00:00:00:00:00:00:ff:fe:00:00:10:00000000:\0";
    const WITHOUT_GID: &[u8; 59] = b"0007:0010:000011:2f5b5c:00000a1b:00007f0123456000:00000000\0";

    #[test]
    fn destination_has_the_format_of_perftest() {
        let with = Destination::decode(WITH_GID, true).unwrap();
        assert_eq!((with.qpn, with.psn, with.rkey), (0x11, 0x2f_5b5c, 0xa1b));
        assert_eq!((with.addr, with.gid), (0x7f01_2345_6000, Some("fe80::ff:fe00:10".parse().unwrap())));
        assert_eq!(with.encode(), WITH_GID);
        let without = Destination::decode(WITHOUT_GID, false).unwrap();
        assert_eq!((without.lid, without.outstanding, without.gid), (7, 16, None));
        assert_eq!(without.encode(), WITHOUT_GID);
        assert_eq!([WITH_GID.len(), WITHOUT_GID.len()], [Destination::bytes(true), Destination::bytes(false)]);
    }

    #[test]
    fn invalid_destination_is_refused_with_its_field() {
        let mut bytes = *WITHOUT_GID;
        bytes[5] = b'x';
        assert!(Destination::decode(&bytes, false).unwrap_err().starts_with("field 2 of `0007:x010:"));
        assert!(Destination::decode(WITHOUT_GID, true).unwrap_err().contains("has 7 fields instead of 23"));
        assert!(Destination::decode(b"", false).unwrap_err().contains("has 1 fields"));
    }

    proptest! {
        #[test]
        fn every_destination_round_trips(
            lid: u16, outstanding: u16, qpn in 0u32..1 << 24, psn in 0u32..1 << 24, rkey: u32, addr: u64,
            gid: Option<[u8; 16]>,
        ) {
            let destination = Destination { lid, outstanding, qpn, psn, rkey, addr, gid: gid.map(Gid) };
            let bytes = destination.encode();
            prop_assert_eq!(bytes.len(), Destination::bytes(gid.is_some()));
            prop_assert_eq!(Destination::decode(&bytes, gid.is_some()), Ok(destination));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), has_gid: bool) {
            let _ = Destination::decode(&bytes, has_gid);
            let _ = decode_version(&bytes);
        }
    }
}
