//! The state of the receiving side of a connection.

use std::collections::VecDeque;

use super::packet::{Nak, psn_distance};
use super::receive::Receive;
use crate::memory::RemoteMemory;

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// The packet sequence number of the next expected packet.
    pub(super) expected: u32,
    /// Whether the current gap in the packet sequence numbers was reported to the peer.
    pub(super) nak_sent: bool,
    /// The message that is partly received, if any.
    pub(super) message: Option<Message>,
    /// The responses that must still be sent, in order.
    pub(super) pending: VecDeque<PendingResponse>,
    /// The reads and atomics whose response is not completely sent. Each entry is the packet sequence number of the
    /// response's last packet. `max_dest_rd_atomic` limits the number of entries.
    pub(super) operations: VecDeque<u32>,
    /// Pairs of the packet sequence number and the result (the old value) of recent atomic operations.
    pub(super) atomic_results: VecDeque<(u32, u64)>,
    /// Whether the first packet has arrived.
    pub(super) established: bool,
}

/// A partly received message.
#[derive(Debug)]
pub(super) enum Message {
    /// The message is received into a posted receive. `at` is the next byte.
    Sent { receive: Receive, at: u64 },
    /// The message is written to memory. `place` is `None` if the message has no bytes. `at` is the next byte.
    Written { place: Option<RemoteMemory>, at: u64, length: u64 },
}

/// A response that must still be sent.
#[derive(Debug)]
pub(super) enum PendingResponse {
    Ack(u32),
    Nak(u32, Nak),
    Value(u32, u64),
    /// The response to a read, from byte `at` on. `place` is `None` if the read has no bytes.
    Read {
        psn: u32,
        place: Option<RemoteMemory>,
        at: u64,
        length: u64,
    },
}

impl PendingResponse {
    /// Returns the packet sequence number of the response's next packet.
    pub(super) fn psn(&self) -> u32 {
        match self {
            Self::Ack(psn) | Self::Nak(psn, _) | Self::Value(psn, _) | Self::Read { psn, .. } => *psn,
        }
    }
}

impl Responder {
    /// Removes the reads and atomics whose responses end at or before a packet sequence number.
    pub(super) fn finish_operation(&mut self, psn: u32) {
        while self.operations.front().is_some_and(|last| psn_distance(*last, psn) <= 0) {
            self.operations.pop_front();
        }
    }

    /// Drops a partly received message, and returns its receive if it had one.
    pub(super) fn abandon(&mut self) -> Option<Receive> {
        match self.message.take()? {
            Message::Sent { receive, .. } => Some(receive),
            Message::Written { .. } => None,
        }
    }
}
