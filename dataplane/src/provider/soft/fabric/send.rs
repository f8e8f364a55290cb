//! A posted send: what it asks for, and how far it has come.

use super::packet::ahead;
use super::qp::Target;
use crate::provider::soft::window::Binding;
use crate::provider::{QpType, Remote, SendFlags, SendOp, Sge, WcOpcode, WcStatus, WrOpcode};
use crate::units::Rkey;

/// What a posted send asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// One of the operations of a send request.
    Op(SendOp<'static>),
    /// The binding of a window.
    Bind(Binding),
}

impl Work {
    pub(super) fn opcode(&self) -> WrOpcode {
        match self {
            Self::Op(op) => op.opcode(),
            Self::Bind(_) => WrOpcode::BindMw,
        }
    }

    /// Whether it is a read or an atomic, which the peer answers with data.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.opcode(), WrOpcode::RdmaRead | WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd)
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.opcode(), WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd)
    }

    /// Whether the peer has no part in it.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.opcode(), WrOpcode::LocalInv | WrOpcode::BindMw)
    }

    /// Whether queue pairs of this type have it.
    pub(super) fn is_of(&self, kind: QpType, rxe: bool) -> bool {
        use WrOpcode::{BindMw, LocalInv, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, SendWithInv};
        match self.opcode() {
            Send | SendWithImm => true,
            RdmaWrite | RdmaWriteWithImm | BindMw => kind != QpType::Ud,
            // The kernel's device has them of reliable connections alone.
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
    pub(super) work: Work,
    pub(super) flags: SendFlags,
    pub(super) sges: Vec<Sge>,
    /// The bytes, where they were copied when it was posted.
    pub(super) inline: Option<Vec<u8>>,
    pub(super) to: Option<Target>,
    pub(super) length: u64,
    /// Which send of the queue pair it is, counted from 1.
    pub(super) number: u64,
    /// Whether it has begun: it has its packets.
    pub(super) begun: bool,
    /// The number of its first packet, and how many it has; of what is answered, those of the answer.
    pub(super) first: u32,
    pub(super) packets: u32,
    /// Of its packets, how many are on the wire or need not be any more.
    pub(super) sent: u32,
    /// Of its packets, or of those of its answer, how many have arrived.
    pub(super) done: u32,
    /// How it failed, which is told when those before it are over.
    pub(super) failed: Option<WcStatus>,
}

impl Send {
    pub(super) fn new(wr_id: u64, work: Work, flags: SendFlags, sges: &[Sge], to: Option<Target>) -> Self {
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
            failed: None,
        }
    }

    /// Whether it is a read or an atomic whose answer is under way.
    pub(super) fn is_awaited(&self) -> bool {
        self.begun && self.work.is_answered() && self.done < self.packets
    }

    /// Whether this is one of its packets.
    pub(super) fn has(&self, psn: u32) -> bool {
        let at = ahead(psn, self.first);
        self.begun && at >= 0 && (at as u32) < self.packets
    }
}
