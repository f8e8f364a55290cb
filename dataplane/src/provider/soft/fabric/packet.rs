//! What travels on a fabric: packets as RoCE has them, without their bytes.

use crate::provider::soft::fault::{Carried, Random};
use crate::provider::{Path, Remote};
use crate::units::{Gid, QpNum, Rkey};

/// The queue pair that datagrams to a group of multicast are sent to.
pub(super) const MULTICAST_QP: QpNum = QpNum(0xff_ffff);

/// Packet sequence numbers have 24 bits.
pub(super) const PSN: u32 = 0xff_ffff;

/// How far `a` is ahead of `b`, which may be behind.
pub(super) const fn ahead(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

/// The packet sequence number `n` after this one.
pub(super) const fn after(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & PSN
}

/// A packet.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) to: QpNum,
    pub(super) to_gid: Gid,
    pub(super) from: QpNum,
    pub(super) from_gid: Gid,
    pub(super) psn: u32,
    pub(super) body: Body,
}

/// What is in it.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A part of a message that is sent, or written to the peer's memory.
    Part(Part),
    /// Asks for so many bytes.
    Read(Remote, u64),
    /// Changes eight bytes.
    Atomic(Remote, Change),
    /// Everything up to here has come in.
    Ack,
    /// Everything before has come in; this has not, and why.
    Nak(Nak),
    /// Bytes that were asked for.
    ReadData(Vec<u8>),
    /// What eight bytes were.
    AtomicData(u64),
    /// An unreliable datagram.
    Datagram(Datagram),
}

/// A part of a message.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) first: bool,
    pub(super) last: bool,
    /// Where the message is written, and how long it is; `None`: it is sent.
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
    /// For the header that the receiver sees.
    pub(super) path: Path,
    pub(super) payload: Vec<u8>,
}

/// What an atomic does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Swap { compare: u64, swap: u64 },
    Add(u64),
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nak {
    /// One before it is missing.
    Sequence,
    /// No receive is posted: try again after the time with this code.
    NotReady(u8),
    InvalidRequest,
    RemoteAccess,
    RemoteOperation,
}

impl Carried for Packet {
    /// The check at the end of a packet tells: it is as good as lost.
    fn spoil(&mut self, _: &mut Random) -> bool {
        false
    }
}

/// The nanoseconds that a code of the "receiver not ready" timer stands for (InfiniBand Architecture Specification,
/// volume 1, table 45).
pub(super) const fn not_ready_nanos(code: u8) -> u64 {
    /// In units of 10 µs.
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
    fn sequence_numbers_wrap() {
        assert_eq!((ahead(1, PSN), ahead(PSN, 1), ahead(7, 7)), (2, -2, 0));
        assert_eq!((after(PSN, 1), after(5, PSN)), (0, 4));
    }

    #[test]
    fn not_ready_times_are_those_of_the_table() {
        let ms = [(0, 655.36), (1, 0.01), (12, 0.64), (14, 1.28), (31, 491.52)];
        assert!(ms.iter().all(|(code, ms)| not_ready_nanos(*code) as f64 == ms * 1e6));
    }
}
