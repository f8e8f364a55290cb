//! Work requests, which are posted to a queue.

use std::fmt;

use crate::error::VerbError;
use crate::units::{Lkey, QpNum, Rkey};
use crate::verbs::{Access, SendFlags, WrOpcode};

/// A scatter/gather element with the memory layout of `struct ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// The address of the first byte in this process.
    pub addr: u64,
    /// The number of bytes.
    pub length: u32,
    /// The local key of the region that contains the bytes.
    pub lkey: Lkey,
}

/// A receive work request: `struct ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The identifier that the completion returns.
    pub wr_id: u64,
    /// The buffers for the message, filled in order.
    pub sges: &'a [Sge],
}

/// A location in the peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address of the first byte in the peer's process.
    pub addr: u64,
    /// The key of the peer's region or window that contains the bytes.
    pub rkey: Rkey,
}

/// The operation of a send request with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp<'a> {
    /// Sends a message.
    Send,
    /// Sends a message with four bytes of immediate data, in network order.
    SendWithImm(u32),
    /// Sends a message and invalidates one of the peer's keys.
    SendWithInv(Rkey),
    /// Writes the peer's memory.
    RdmaWrite(Remote),
    /// Writes the peer's memory and completes one receive of the peer, with immediate data in network order.
    RdmaWriteWithImm(Remote, u32),
    /// Reads the peer's memory into the request's buffers.
    RdmaRead(Remote),
    /// Writes `swap` to eight bytes of the peer's memory if their value is `compare`. The old value goes to the
    /// request's buffer.
    CompareSwap {
        /// The eight bytes, which must be aligned.
        remote: Remote,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Adds a number to eight bytes of the peer's memory. The old value goes to the request's buffer.
    FetchAdd {
        /// The eight bytes, which must be aligned.
        remote: Remote,
        /// The number to add. The sum wraps at 2^64.
        add: u64,
    },
    /// Invalidates a remote key (rkey) of local memory.
    LocalInv(Rkey),
    /// Sends a TCP stream. The device splits the stream into segments of `mss` bytes, and each segment starts with a
    /// copy of `header`.
    Tso {
        /// The Ethernet, IP and TCP headers.
        header: &'a [u8],
        /// The maximum payload of a segment, in bytes.
        mss: u16,
    },
}

impl SendOp<'_> {
    /// Returns the operation's opcode in the C interface.
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

/// The destination of an unreliable datagram.
#[derive(Debug, PartialEq, Eq)]
pub struct Destination<'a, A> {
    /// The address handle of the path.
    pub ah: &'a A,
    /// The peer's queue pair.
    pub qp: QpNum,
    /// The Q_Key of the peer's queue pair. If the top bit is set, the device sends the Q_Key of the sending queue pair
    /// instead.
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
    /// The identifier that the completion returns.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp<'a>,
    /// The options, for example signalled or inline.
    pub flags: SendFlags,
    /// The local buffers, in order: the source of a send or write, or the target of a read.
    pub sges: &'a [Sge],
    /// The destination. Only for unreliable datagrams.
    pub to: Option<Destination<'a, A>>,
}

impl<A> Clone for SendRequest<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for SendRequest<'_, A> {}

/// The parameters of binding a memory window: `struct ibv_mw_bind`.
#[derive(Clone, Copy, Debug)]
pub struct MwBind<'a, M> {
    /// The identifier that the completion returns.
    pub wr_id: u64,
    /// The options: only signalled and fenced.
    pub flags: SendFlags,
    /// The region that contains the window. The region must be registered with [`Access::MW_BIND`].
    pub mr: &'a M,
    /// The address of the first byte of the window.
    pub addr: u64,
    /// The number of bytes of the window. 0 unbinds the window (type 1 only).
    pub length: u64,
    /// The access that the peer gets.
    pub access: Access,
}

/// A failed post. The requests before the failed request were accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// The number of requests of this call that the device has accepted. The accepted requests will complete.
    pub accepted: usize,
    /// The error of the first refused request. `ENOMEM`: the queue is full. `EINVAL`: the request is invalid, or the
    /// queue pair's state does not allow it. `EOPNOTSUPP`: the device does not support the operation.
    pub error: VerbError,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after {} accepted requests)", self.error, self.accepted)
    }
}

impl std::error::Error for PostError {}
