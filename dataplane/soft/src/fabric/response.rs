//! The responder: the part of a connection that processes the peer's requests.

use super::context::FabricContext;
use super::packet::{AtomicOp, Body, Nak, PSN, Packet, Part, psn_after, psn_distance};
use super::qp::Qp;
use super::receive::Receive;
use super::responder::{Message, PendingResponse};
use crate::completion::Outcome;
use crate::memory::RemoteMemory;
use crate::profile::Profile;
use dataplane_core::verbs::CompletionValues;
use dataplane_core::verbs::{Access, EventKind, PollFields, QpState, QpType, Remote, WcFlags, WcOpcode, WcStatus};

/// The number of atomic results that are kept. If a response is lost, the stored result is sent again.
const MAX_ATOMIC_RESULTS: usize = 256;

/// A refused request: the response to the requester, and the receive that completes with an error, if any.
struct Refusal {
    nak: Nak,
    receive: Option<(Receive, WcStatus)>,
}

impl From<Nak> for Refusal {
    fn from(nak: Nak) -> Self {
        Self { nak, receive: None }
    }
}

impl Qp {
    /// Sends the next packet of the first pending response. Returns `false` if no response is pending.
    pub(super) fn answer(&mut self, ctx: &mut FabricContext<'_>) -> bool {
        let mtu = self.mtu();
        let Some(job) = self.responder.pending.front_mut() else { return false };
        let (psn, body, more) = match job {
            PendingResponse::Ack(psn) => (*psn, Body::Ack, false),
            PendingResponse::Nak(psn, nak) => (*psn, Body::Nak(*nak), false),
            PendingResponse::Value(psn, value) => (*psn, Body::AtomicData(*value), false),
            PendingResponse::Read { psn, place, at, length } => {
                let mut payload = ctx.net.buffer();
                let now = (*length - *at).min(mtu);
                if let Some(place) = place {
                    place.read(*at, now as usize, &mut payload);
                }
                let current = *psn;
                (*psn, *at) = (psn_after(*psn, 1), *at + now);
                let more = *at < *length;
                (current, Body::ReadData(payload, !more), more)
            }
        };
        if !more {
            self.responder.pending.pop_front();
            self.responder.finish_operation(psn);
        }
        self.send_to_peer(psn, body, ctx);
        true
    }

    /// Returns whether a packet has the expected packet sequence number. Counts a packet with an earlier number as a
    /// duplicate. For the first packet after a gap, queues a sequence error (NAK) to the peer.
    fn in_turn(&mut self, psn: u32) -> bool {
        if self.state() == QpState::Rtr && !std::mem::replace(&mut self.responder.established, true) {
            self.raise(EventKind::CommEst);
        }
        let gap = psn_distance(psn, self.responder.expected);
        if gap > 0 && !std::mem::replace(&mut self.responder.nak_sent, true) {
            self.responder.pending.push_back(PendingResponse::Nak(self.responder.expected, Nak::Sequence));
        }
        if gap < 0 {
            self.shared.counts.rx_duplicates.add(1);
        }
        if gap == 0 {
            self.responder.nak_sent = false;
        }
        gap == 0
    }

    /// Processes a part of a message.
    pub(super) fn on_part(&mut self, packet: &Packet, part: &Part, ctx: &mut FabricContext<'_>) {
        if self.kind() == QpType::Uc {
            return self.on_unacknowledged(packet, part, ctx);
        }
        if !self.in_turn(packet.psn) {
            if psn_distance(packet.psn, self.responder.expected) < 0 && part.last {
                let last = self.responder.expected.wrapping_sub(1) & PSN;
                self.responder.pending.push_back(PendingResponse::Ack(last));
            }
            return;
        }
        match self.take_part(part, ctx) {
            Ok(()) => {
                self.responder.expected = psn_after(packet.psn, 1);
                if part.last {
                    self.responder.pending.push_back(PendingResponse::Ack(packet.psn));
                }
            }
            Err(refusal) => self.refuse(packet.psn, refusal, ctx),
        }
    }

    /// Processes a part of a message on an unreliable connection. If a part is missing, drops the whole message.
    fn on_unacknowledged(&mut self, packet: &Packet, part: &Part, ctx: &mut FabricContext<'_>) {
        if part.first && self.state() == QpState::Rtr && !std::mem::replace(&mut self.responder.established, true) {
            self.raise(EventKind::CommEst);
        }
        let in_turn = packet.psn == self.responder.expected;
        self.responder.expected = psn_after(packet.psn, 1);
        if (part.first || !in_turn)
            && let Some(receive) = self.responder.abandon()
        {
            match self.srq {
                // The receive cannot be put back at its position in the shared receive queue, so it completes with an
                // error.
                Some(_) if !self.is_rxe() => {
                    self.complete_receive(&receive, Outcome::failure(WcStatus::RemAbortErr), false, ctx);
                }
                _ => self.put_back(receive, ctx),
            }
        }
        if !part.first && (!in_turn || self.responder.message.is_none()) {
            self.responder.message = None;
            return;
        }
        if let Err(refusal) = self.take_part(part, ctx) {
            self.responder.message = None;
            // A refused request without a receive is dropped. A receive that fails moves the queue pair to ERR.
            if let Some((receive, status)) = refusal.receive {
                self.complete_receive(&receive, Outcome::failure(status), part.solicited, ctx);
                self.fail(ctx);
            }
        }
    }

    /// Processes a part of a message. The caller has checked the packet sequence number.
    fn take_part(&mut self, part: &Part, ctx: &mut FabricContext<'_>) -> Result<(), Refusal> {
        if part.first {
            let message = self.open(part, ctx)?;
            self.responder.message = Some(message);
        }
        // The last part of a write with immediate data uses a receive. Without a posted receive, this part must not be
        // written.
        let imm_receive = match part.write.filter(|_| part.last && part.imm.is_some()) {
            Some(_) => Some(self.take_receive(ctx).ok_or_else(|| self.not_ready())?),
            None => None,
        };
        match &mut self.responder.message {
            None => return Err(Nak::InvalidRequest.into()),
            Some(Message::Written { place, at, .. }) => {
                if let Some(place) = place {
                    place.write(*at, &part.payload);
                }
                *at += part.payload.len() as u64;
            }
            Some(Message::Sent { receive, at }) => {
                let from = *at;
                *at += part.payload.len() as u64;
                let fits = *at <= receive.capacity();
                let written = fits && self.keys.scatter_part(&receive.sges, from, &part.payload).is_ok();
                self.shared.counts.rx_too_long.add(u64::from(!fits));
                if !written {
                    // rxe (the kernel's software RoCE driver) reports the same status for every error of a receive.
                    let (nak, status) = match (self.profile, fits) {
                        (Profile::Rxe, _) => (Nak::RemoteOperation, WcStatus::LocQpOpErr),
                        (Profile::Spec, true) => (Nak::RemoteOperation, WcStatus::LocProtErr),
                        (Profile::Spec, false) => (Nak::InvalidRequest, WcStatus::LocLenErr),
                    };
                    let receive = self.responder.abandon().map(|receive| (receive, status));
                    return Err(Refusal { nak, receive });
                }
            }
        }
        if part.last { self.finish(part, imm_receive, ctx) } else { Ok(()) }
    }

    fn not_ready(&self) -> Refusal {
        self.shared.counts.rx_out_of_buffer.add(1);
        Nak::NotReady(self.attributes.min_rnr_timer).into()
    }

    /// Processes the first part of a message, and returns the target of the message: a posted receive or memory.
    fn open(&mut self, part: &Part, ctx: &mut FabricContext<'_>) -> Result<Message, Refusal> {
        let Some((remote, length)) = part.write else {
            let receive = self.take_receive(ctx).ok_or_else(|| self.not_ready())?;
            let failed = ctx.net.faults.get_mut(&self.shared.device.id()).and_then(|faults| faults.receive_fails());
            if let Some(status) = failed {
                self.shared.counts.faults.add(1);
                return Err(Refusal { nak: Nak::RemoteOperation, receive: Some((receive, status)) });
            }
            return Ok(Message::Sent { receive, at: 0 });
        };
        if !self.attributes.access.contains(Access::REMOTE_WRITE) {
            return Err(Nak::InvalidRequest.into());
        }
        match self.reach_memory(remote, length, Access::REMOTE_WRITE) {
            Some(place) => Ok(Message::Written { place, at: 0, length }),
            None => {
                let nak = Nak::RemoteAccess;
                let status = if self.is_rxe() { WcStatus::RemAccessErr } else { WcStatus::LocAccessErr };
                let imm = part.imm.is_some() && self.kind() == QpType::Rc;
                let receive = if imm { self.take_receive(ctx) } else { None };
                // rxe checks for a posted receive before it checks the memory.
                if self.is_rxe() && imm && part.last && receive.is_none() {
                    return Err(self.not_ready());
                }
                Err(Refusal { nak, receive: receive.map(|receive| (receive, status)) })
            }
        }
    }

    /// Returns the memory at a remote address, or `None` if the access is not permitted. If `length` is 0, the key is
    /// not checked and the result is `Some(None)`.
    fn reach_memory(&mut self, remote: Remote, length: u64, access: Access) -> Option<Option<RemoteMemory>> {
        let qp = self.shared.identity;
        if length == 0 { Some(None) } else { self.keys.remote(remote, length, access, qp).map(Some) }
    }

    /// Completes a message after its last part.
    fn finish(
        &mut self,
        part: &Part,
        imm_receive: Option<Receive>,
        ctx: &mut FabricContext<'_>,
    ) -> Result<(), Refusal> {
        let Some(message) = self.responder.message.take() else { return Ok(()) };
        let (receive, length, opcode) = match message {
            Message::Sent { receive, at } => (Some(receive), at, WcOpcode::Recv),
            Message::Written { length, .. } => (imm_receive, length, WcOpcode::RecvRdmaWithImm),
        };
        let Some(receive) = receive else { return Ok(()) };
        let rxe = self.is_rxe();
        let mut flags = if rxe { WcFlags::GRH } else { WcFlags::empty() };
        if part.imm.is_some() {
            flags |= WcFlags::WITH_IMM;
        }
        if let Some(rkey) = part.invalidate {
            if !self.keys.keys().windows.invalidate(rkey, self.shared.identity) {
                let refusal = Refusal { nak: Nak::RemoteAccess, receive: Some((receive, WcStatus::RemInvReqErr)) };
                return Err(refusal);
            }
            flags |= WcFlags::WITH_INV;
        }
        let values = CompletionValues {
            opcode: opcode.raw(),
            flags,
            byte_len: length.min(u64::from(u32::MAX)) as u32,
            imm: part.imm.or(part.invalidate.map(|rkey| rkey.0)).unwrap_or(0),
            ..CompletionValues::default()
        };
        self.shared.counts.rx_packets.add(1);
        self.shared.counts.rx_bytes.add(length);
        let outcome = Outcome::success(PollFields::BYTE_LEN | PollFields::IMM, values);
        self.complete_receive(&receive, outcome, part.solicited, ctx);
        Ok(())
    }

    /// Refuses a request that is invalid or has no posted receive.
    fn refuse(&mut self, psn: u32, refusal: Refusal, ctx: &mut FabricContext<'_>) {
        let Refusal { nak, receive } = refusal;
        if let Nak::NotReady(_) = nak {
            // The requester sends the later packets again after this request. The standard therefore has no sequence
            // error for these packets. rxe reports a sequence error, which uses a retry of the requester.
            self.responder.nak_sent = !self.is_rxe();
            return self.responder.pending.push_back(PendingResponse::Nak(psn, nak));
        }
        let reported = receive.is_some();
        // rxe detects an invalid key of a send with invalidate only after it has received the message, and reports no
        // error to the requester.
        let quiet = self.is_rxe() && receive.as_ref().is_some_and(|(_, status)| *status == WcStatus::RemInvReqErr);
        self.responder.pending.push_back(if quiet {
            PendingResponse::Ack(psn)
        } else {
            PendingResponse::Nak(psn, nak)
        });
        if let Some((receive, status)) = receive {
            self.complete_receive(&receive, Outcome::failure(status), true, ctx);
        }
        if !reported {
            match nak {
                Nak::RemoteAccess => self.raise(EventKind::QpAccessErr),
                Nak::InvalidRequest => self.raise(EventKind::QpReqErr),
                _ => {}
            }
        }
        self.fail(ctx);
    }

    /// Processes a read request.
    pub(super) fn on_read(&mut self, psn: u32, remote: Remote, length: u64, ctx: &mut FabricContext<'_>) {
        let in_turn = self.in_turn(psn);
        let again = !in_turn && psn_distance(psn, self.responder.expected) < 0;
        if !in_turn && !again {
            return;
        }
        match self
            .check_access(Access::REMOTE_READ, again)
            .and_then(|()| self.reach_memory(remote, length, Access::REMOTE_READ).ok_or(Nak::RemoteAccess))
            .and_then(|place| {
                // The standard and rxe do not check the key of a read without bytes. If the requester sends the read
                // again, rxe looks the key up (`rxe_recheck_mr` in Linux 6.1).
                let denied = again && length == 0 && self.is_rxe() && !self.keys.is_known(remote.rkey);
                if denied { Err(Nak::RemoteAccess) } else { Ok(place) }
            }) {
            Ok(place) => {
                if again {
                    // The requester repeats this request and all later requests, so drop their pending responses.
                    self.responder.pending.retain(|job| psn_distance(job.psn(), psn) < 0);
                } else {
                    let packets = length.div_ceil(self.mtu()).max(1) as u32;
                    self.responder.expected = psn_after(psn, packets);
                    self.responder.operations.push_back(psn_after(psn, packets - 1));
                }
                self.responder.pending.push_back(PendingResponse::Read { psn, place, at: 0, length });
                // rxe sends the whole response before it processes the next request. If the requester sets no fence,
                // other devices may process later requests before the response is complete.
                while self.is_rxe() && self.answer(ctx) {}
            }
            Err(nak) => self.refuse(psn, nak.into(), ctx),
        }
    }

    /// Processes an atomic request.
    pub(super) fn on_atomic(&mut self, psn: u32, remote: Remote, change: AtomicOp, ctx: &mut FabricContext<'_>) {
        if !self.in_turn(psn) {
            // An operation is performed only once. A repeated request gets the stored result.
            let atomic_results = self.responder.atomic_results.iter().find(|(of, _)| *of == psn).copied();
            self.responder.pending.extend(atomic_results.map(|(psn, value)| PendingResponse::Value(psn, value)));
            return;
        }
        let aligned = remote.addr.is_multiple_of(8);
        let changed = self.check_access(Access::REMOTE_ATOMIC, false).and_then(|()| {
            let place = self.reach_memory(remote, 8, Access::REMOTE_ATOMIC).ok_or(Nak::RemoteAccess)?;
            let place = place.filter(|_| aligned).ok_or(Nak::InvalidRequest)?;
            let old = place.update(|was| match change {
                AtomicOp::Swap { compare, swap } => (was == compare).then_some(swap),
                AtomicOp::Add(more) => Some(was.wrapping_add(more)),
            });
            old.ok_or(Nak::InvalidRequest)
        });
        match changed {
            Ok(old) => {
                self.responder.expected = psn_after(psn, 1);
                self.responder.operations.push_back(psn);
                if self.responder.atomic_results.len() == MAX_ATOMIC_RESULTS {
                    self.responder.atomic_results.pop_front();
                }
                self.responder.atomic_results.push_back((psn, old));
                self.responder.pending.push_back(PendingResponse::Value(psn, old));
            }
            Err(nak) => self.refuse(psn, nak.into(), ctx),
        }
    }

    /// Checks whether the peer may send a read or an atomic, depending on `access`. `again` is `true` for a request
    /// that the peer repeats. A repeated request does not count as an additional operation.
    fn check_access(&self, access: Access, again: bool) -> Result<(), Nak> {
        let limit = usize::from(self.attributes.max_dest_rd_atomic);
        // rxe enforces only a limit of 0. With more operations than the limit, rxe forgets the oldest results.
        let fits = if again || self.is_rxe() { limit > 0 } else { self.responder.operations.len() < limit };
        if self.attributes.access.contains(access) && fits { Ok(()) } else { Err(Nak::InvalidRequest) }
    }
}
