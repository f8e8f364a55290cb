//! A posted send: its operation and its progress.

use super::packet::psn_distance;
use crate::numbers::Identity;
use crate::window::BindRequest;
use dataplane_core::units::{QpNum, Rkey};
use dataplane_core::verbs::{Path, QpType, Remote, SendFlags, SendOp, Sge, WcOpcode, WcStatus, WrOpcode};

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramTarget {
    pub(super) path: Path,
    pub(super) qp: QpNum,
    pub(super) qkey: u32,
    /// The protection domain of the address handle.
    pub(super) pd: Identity,
}

/// The operation of a posted send.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendWork {
    /// The operation of a work request.
    Op(SendOp<'static>),
    /// A bind request for a window.
    Bind(BindRequest),
}

impl SendWork {
    pub(super) fn opcode(&self) -> WrOpcode {
        match self {
            Self::Op(op) => op.opcode(),
            Self::Bind(_) => WrOpcode::BindMw,
        }
    }

    /// Returns whether the operation is a read or an atomic, for which the peer returns data.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.opcode(), WrOpcode::RdmaRead | WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd)
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.opcode(), WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd)
    }

    /// Returns whether the operation does not involve the peer.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.opcode(), WrOpcode::LocalInv | WrOpcode::BindMw)
    }

    /// Returns whether queue pairs of this type support the operation.
    pub(super) fn is_supported_by(&self, kind: QpType, rxe: bool) -> bool {
        use WrOpcode::{BindMw, LocalInv, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, SendWithInv};
        match self.opcode() {
            Send | SendWithImm => true,
            RdmaWrite | RdmaWriteWithImm | BindMw => kind != QpType::Ud,
            // rxe supports these operations only for reliable connections.
            SendWithInv | LocalInv => kind == QpType::Rc || (kind == QpType::Uc && !rxe),
            _ => kind == QpType::Rc && self.is_answered(),
        }
    }

    pub(super) const fn completes_as(opcode: WrOpcode) -> WcOpcode {
        match opcode {
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
            WrOpcode::RdmaRead => WcOpcode::RdmaRead,
            WrOpcode::AtomicCmpAndSwp => WcOpcode::CompSwap,
            WrOpcode::AtomicFetchAndAdd => WcOpcode::FetchAdd,
            WrOpcode::LocalInv => WcOpcode::LocalInv,
            WrOpcode::BindMw => WcOpcode::BindMw,
            _ => WcOpcode::Send,
        }
    }

    pub(super) fn write(&self, length: u64) -> Option<(Remote, u64)> {
        match self {
            Self::Op(SendOp::RdmaWrite(remote) | SendOp::RdmaWriteWithImm(remote, _)) => Some((*remote, length)),
            _ => None,
        }
    }

    pub(super) fn imm(&self) -> Option<u32> {
        match self {
            Self::Op(SendOp::SendWithImm(imm) | SendOp::RdmaWriteWithImm(_, imm)) => Some(*imm),
            _ => None,
        }
    }

    pub(super) fn invalidate(&self) -> Option<Rkey> {
        if let Self::Op(SendOp::SendWithInv(rkey)) = self { Some(*rkey) } else { None }
    }
}

/// A posted send.
#[derive(Clone, Debug)]
pub(super) struct Send {
    pub(super) wr_id: u64,
    pub(super) work: SendWork,
    pub(super) flags: SendFlags,
    pub(super) sges: Vec<Sge>,
    /// The inline bytes, which were copied when the send was posted. `None` for sends without the inline flag.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) to: Option<DatagramTarget>,
    pub(super) length: u64,
    /// The number of the send on its queue pair, from 1.
    pub(super) number: u64,
    /// Whether processing of the send has started. Packet sequence numbers are assigned at that time.
    pub(super) begun: bool,
    /// The packet sequence number of the first packet. For reads and atomics, the first packet of the response.
    pub(super) first: u32,
    /// The number of packets. For reads and atomics, the number of packets of the response.
    pub(super) packets: u32,
    /// The number of packets that were sent or need not be sent.
    pub(super) sent: u32,
    /// The number of packets (or response packets) that have arrived.
    pub(super) done: u32,
    /// The number of bytes of the response that have arrived.
    pub(super) received: u64,
    /// The error of the send, which is reported after the earlier sends have completed.
    pub(super) failed: Option<WcStatus>,
}

impl Send {
    pub(super) fn new(wr_id: u64, work: SendWork, flags: SendFlags, sges: &[Sge], to: Option<DatagramTarget>) -> Self {
        let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
        Self {
            wr_id,
            work,
            flags,
            sges: sges.to_vec(),
            inline: None,
            to,
            length,
            number: 0,
            begun: false,
            first: 0,
            packets: 0,
            sent: 0,
            done: 0,
            received: 0,
            failed: None,
        }
    }

    /// Returns whether the send is a read or an atomic whose response is incomplete.
    pub(super) fn is_awaited(&self) -> bool {
        self.begun && self.work.is_answered() && self.done < self.packets
    }

    /// Returns whether `psn` is the packet sequence number of one of the send's packets.
    pub(super) fn has(&self, psn: u32) -> bool {
        let at = psn_distance(psn, self.first);
        self.begun && at >= 0 && (at as u32) < self.packets
    }
}
