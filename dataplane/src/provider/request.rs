//! Work requests: what is posted to a queue.

use std::fmt;

use crate::error::VerbError;
use crate::provider::{Access, SendFlags, WrOpcode};
use crate::units::{Lkey, QpNum, Rkey};

/// A scatter/gather element, laid out as `struct ibv_sge` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// The first byte, as an address of this process.
    pub addr: u64,
    /// How many bytes.
    pub length: u32,
    /// The region that they are in.
    pub lkey: Lkey,
}

/// A receive work request: `struct ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Where the message goes, in order.
    pub sges: &'a [Sge],
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The first byte, as an address of the peer's process.
    pub addr: u64,
    /// The peer's region or window that it is in.
    pub rkey: Rkey,
}

/// What a send request asks for, with what it needs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp<'a> {
    /// Sends a message.
    Send,
    /// Sends a message with four bytes of immediate data, in network order.
    SendWithImm(u32),
    /// Sends a message and ends the life of one of the peer's keys.
    SendWithInv(Rkey),
    /// Writes the peer's memory.
    RdmaWrite(Remote),
    /// Writes the peer's memory and completes one of its receives, with immediate data in network order.
    RdmaWriteWithImm(Remote, u32),
    /// Reads the peer's memory into the elements.
    RdmaRead(Remote),
    /// Writes `swap` to eight bytes of the peer's memory if they are `compare`; what they were goes to the element.
    CompareSwap {
        /// Eight bytes, aligned.
        remote: Remote,
        /// What they must be.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// Adds to eight bytes of the peer's memory; what they were goes to the element.
    FetchAdd {
        /// Eight bytes, aligned.
        remote: Remote,
        /// What is added, modulo 2^64.
        add: u64,
    },
    /// Ends the life of one of the own keys.
    LocalInv(Rkey),
    /// Sends a TCP stream that the device cuts into segments of `mss` bytes, each behind a copy of `header`.
    Tso {
        /// Ethernet, IP and TCP header.
        header: &'a [u8],
        /// Payload of a segment in bytes.
        mss: u16,
    },
}

impl SendOp<'_> {
    /// Its opcode in the C interface.
    #[inline]
    pub const fn opcode(&self) -> WrOpcode {
        match self {
            Self::Send => WrOpcode::Send,
            Self::SendWithImm(_) => WrOpcode::SendWithImm,
            Self::SendWithInv(_) => WrOpcode::SendWithInv,
            Self::RdmaWrite(_) => WrOpcode::RdmaWrite,
            Self::RdmaWriteWithImm(..) => WrOpcode::RdmaWriteWithImm,
            Self::RdmaRead(_) => WrOpcode::RdmaRead,
            Self::CompareSwap { .. } => WrOpcode::AtomicCmpAndSwp,
            Self::FetchAdd { .. } => WrOpcode::AtomicFetchAndAdd,
            Self::LocalInv(_) => WrOpcode::LocalInv,
            Self::Tso { .. } => WrOpcode::Tso,
        }
    }
}

/// Where a datagram of an unreliable-datagram queue pair goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Destination<'a, A> {
    /// The way there.
    pub ah: &'a A,
    /// The queue pair there.
    pub qp: QpNum,
    /// What it must have as its `qkey`. With the top bit set the sender's own is sent instead.
    pub qkey: u32,
}

impl<A> Clone for Destination<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Destination<'_, A> {}

/// A send work request: `struct ibv_send_wr`. `A` is the provider's address handle.
#[derive(Debug)]
pub struct SendRequest<'a, A> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp<'a>,
    /// Signalled, inline, and so on.
    pub flags: SendFlags,
    /// The local memory, in order: what is sent, or where what is read goes.
    pub sges: &'a [Sge],
    /// Where to; for unreliable datagrams only.
    pub to: Option<Destination<'a, A>>,
}

impl<A> Clone for SendRequest<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for SendRequest<'_, A> {}

/// What a memory window is bound to: `struct ibv_mw_bind`.
#[derive(Clone, Copy, Debug)]
pub struct MwBind<'a, M> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Signalled, fenced.
    pub flags: SendFlags,
    /// The region that it opens a part of, registered with [`Access::MW_BIND`].
    pub mr: &'a M,
    /// The first byte of the part.
    pub addr: u64,
    /// Bytes; 0 takes the window off its region (type 1 only).
    pub length: u64,
    /// What the peer may do there.
    pub access: Access,
}

/// A post that failed: those before it were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// How many requests of the call the device now owns. They will complete.
    pub accepted: usize,
    /// Why the next was refused: `ENOMEM`, the queue is full; `EINVAL`, the request or the queue pair's state;
    /// `EOPNOTSUPP`, the device has no such operation.
    pub error: VerbError,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after {} accepted)", self.error, self.accepted)
    }
}

impl std::error::Error for PostError {}
