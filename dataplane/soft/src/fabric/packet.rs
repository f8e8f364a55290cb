//! Packets of a fabric. The packets correspond to RoCE packets, but are not encoded as bytes.

use crate::fault::{Corruptible, Random};
use dataplane_core::units::{Gid, QpNum, Rkey};
use dataplane_core::verbs::{Path, Remote};

/// The destination queue pair of multicast datagrams.
pub(super) const MULTICAST_QP: QpNum = QpNum(0xff_ffff);

/// The mask of packet sequence numbers, which have 24 bits.
pub(super) const PSN: u32 = 0xff_ffff;

/// Returns the signed distance from `b` to `a`. The distance is negative if `a` precedes `b`.
pub(super) const fn psn_distance(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

/// Returns the packet sequence number that is `n` steps after `psn`.
pub(super) const fn psn_after(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & PSN
}

/// A packet of the fabric, with its addresses, its packet sequence number and its content.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: QpNum,
    pub(super) to_gid: Gid,
    pub(super) from: QpNum,
    pub(super) from_gid: Gid,
    pub(super) route: Route,
    pub(super) psn: u32,
    pub(super) body: Body,
}

/// The header fields of a packet that depend on the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// Whether the packet has a GRH. Without a GRH, the local identifiers are the only addresses.
    pub(super) global: bool,
    /// The local identifier of the source. 0 on Ethernet.
    pub(super) slid: u16,
    /// The local identifier of the destination. 0 on Ethernet.
    pub(super) dlid: u16,
    pub(super) pkey: u16,
}

/// The content of a packet.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A part of a send, or of a write to the peer's memory.
    Part(Part),
    /// A request to read this number of bytes.
    Read(Remote, u64),
    /// A request for an atomic operation on eight bytes.
    Atomic(Remote, AtomicOp),
    /// An acknowledgement of all packets up to and including the number in [`Packet::psn`].
    Ack,
    /// A negative acknowledgement: all earlier packets have arrived, but the packet with the number in [`Packet::psn`]
    /// is missing or was refused.
    Nak(Nak),
    /// The payload of a packet of a read response, and whether the packet is the last packet of the response.
    ReadData(Vec<u8>, bool),
    /// The old value of an atomic operation.
    AtomicData(u64),
    /// An unreliable datagram.
    Datagram(Datagram),
}

/// A part of a message.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) first: bool,
    pub(super) last: bool,
    /// The target address and the total length of an RDMA write. `None` for a send.
    pub(super) write: Option<(Remote, u64)>,
    pub(super) imm: Option<u32>,
    pub(super) invalidate: Option<Rkey>,
    pub(super) solicited: bool,
    pub(super) payload: Vec<u8>,
}

/// An unreliable datagram.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) qkey: u32,
    pub(super) imm: Option<u32>,
    pub(super) solicited: bool,
    /// The sender's path to the receiver. The GRH that the receiver gets is made from the fields of this path.
    pub(super) path: Path,
    pub(super) payload: Vec<u8>,
}

/// The operation of an atomic request.
#[derive(Clone, Copy, Debug)]
pub(super) enum AtomicOp {
    Swap { compare: u64, swap: u64 },
    Add(u64),
}

/// The reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nak {
    /// The packet with the number in [`Packet::psn`] is missing, but a later packet has arrived.
    Sequence,
    /// No receive is posted. The requester retries after the time of this timer code ([`not_ready_nanos`]).
    NotReady(u8),
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
}

impl Packet {
    /// Returns the payload buffer.
    pub(super) fn into_payload(self) -> Option<Vec<u8>> {
        match self.body {
            Body::Part(part) => Some(part.payload),
            Body::ReadData(payload, _) => Some(payload),
            Body::Datagram(datagram) => Some(datagram.payload),
            _ => None,
        }
    }
}

/// Returns whether an address is an IPv6 multicast address, or an IPv4 multicast address in `::ffff:224.0.0.0/100`.
pub(super) fn is_multicast(gid: Gid) -> bool {
    let v4_mapped = gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    gid.0[0] == 0xff || (v4_mapped && gid.0[12] >> 4 == 0xe)
}

impl Corruptible for Packet {
    /// Changes nothing and returns `false`. The packet is then lost, like a corrupt packet whose checksum is wrong.
    fn flip_bit(&mut self, _: &mut Random) -> bool {
        false
    }
}

/// Returns the nanoseconds of a "receiver not ready" timer code (InfiniBand Architecture Specification, volume 1, table
/// 45).
pub(super) const fn not_ready_nanos(code: u8) -> u64 {
    /// The times in units of 10 µs, indexed by the timer code.
    const UNITS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072,
        4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    UNITS[code as usize % 32] * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sequence_numbers_wrap_at_24_bits() {
        assert_eq!((psn_distance(1, PSN), psn_distance(PSN, 1), psn_distance(7, 7)), (2, -2, 0));
        assert_eq!((psn_after(PSN, 1), psn_after(5, PSN)), (0, 4));
    }

    #[test]
    fn not_ready_times_match_the_specification() {
        let ms = [(0, 655.36), (1, 0.01), (12, 0.64), (14, 1.28), (31, 491.52)];
        assert!(ms.iter().all(|(code, ms)| not_ready_nanos(*code) as f64 == ms * 1e6));
    }
}
