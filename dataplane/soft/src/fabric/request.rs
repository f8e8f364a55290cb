//! The requester: the part of a queue pair that sends requests and processes responses.

use std::sync::atomic::Ordering;

use super::context::FabricContext;
use super::packet::{AtomicOp, Body, Nak, PSN, Part, not_ready_nanos, psn_after, psn_distance};
use super::qp::Qp;
use super::send::{Send, SendWork};
use crate::completion::Outcome;
use crate::memory::Denied;
use dataplane_core::verbs::CompletionValues;
use dataplane_core::verbs::{Access, PollFields, QpState, QpType, Remote, SendFlags, SendOp, WcFlags, WcStatus};

/// The value of `rnr_retry` that means unlimited retries.
const UNLIMITED_RETRIES: u8 = 7;

impl Qp {
    /// Returns the number of sends that may be posted now.
    pub(super) fn space(&self) -> usize {
        let depth = self.profile.slots(self.caps.send_depth) as usize;
        let used = match self.is_rxe() {
            // With rxe, an entry becomes free when its request is complete.
            true => self.requester.queue.len(),
            // An entry becomes free when the completion of its request or of a later request is polled.
            false => (self.requester.posted - self.shared.released.load(Ordering::Relaxed)) as usize,
        };
        depth.saturating_sub(used)
    }

    /// Sends one packet, or performs one local request (one that does not involve the peer). Returns `false` if the
    /// requester can do nothing now.
    pub(super) fn send_one(&mut self, ctx: &mut FabricContext<'_>) -> bool {
        let at = self.requester.next;
        if self.requester.rnr_until.is_some() || at >= self.requester.queue.len() {
            return false;
        }
        let begun = self.requester.queue[at].begun;
        if !(self.state() == QpState::Rts || (self.state() == QpState::Sqd && begun)) {
            return false;
        }
        if !begun {
            if self.must_wait(at) {
                return false;
            }
            if let Err(status) = self.begin(at, ctx) {
                let send = &mut self.requester.queue[at];
                (send.begun, send.failed) = (true, Some(status));
            }
        }
        if self.requester.queue[at].failed.is_none()
            && self.requester.queue[at].sent < self.requester.queue[at].packets
            && let Err(status) = self.send_packet(at, ctx)
        {
            self.requester.queue[at].failed = Some(status);
        }
        if self.kind() != QpType::Rc {
            // Unreliable transports have no acknowledgements, so a sent packet counts as done.
            let send = &mut self.requester.queue[at];
            send.done = send.sent;
        }
        if let (0, Some(status)) = (at, self.requester.queue[at].failed) {
            self.fail_send(status, ctx);
            return true;
        }
        let waits = self.requester.queue[at].failed.is_some();
        self.requester.seek();
        self.retire(ctx);
        !waits
    }

    /// Returns whether a request must wait for earlier requests.
    fn must_wait(&self, at: usize) -> bool {
        let send = &self.requester.queue[at];
        let awaited = self.requester.queue.iter().take(at).filter(|other| other.is_awaited()).count();
        let limit = usize::from(self.attributes.max_rd_atomic);
        let fenced = send.flags.contains(SendFlags::FENCE) && awaited > 0;
        // With a limit of 0, rxe waits indefinitely, while hardware fails the request.
        let full = send.work.is_answered() && awaited >= limit && (limit > 0 || self.is_rxe());
        self.kind() == QpType::Rc && (fenced || full)
    }

    /// Starts a request: checks whether it is valid, and assigns packet numbers.
    fn begin(&mut self, at: usize, ctx: &mut FabricContext<'_>) -> Result<(), WcStatus> {
        let (rxe, kind) = (self.is_rxe(), self.kind());
        if let Some(faults) = ctx.net.faults.get_mut(&self.shared.device.id())
            && let Some(status) = faults.send_fails()
        {
            self.shared.counts.faults.add(1);
            return Err(status);
        }
        let send = &self.requester.queue[at];
        let none_allowed = kind == QpType::Rc && send.work.is_answered() && self.attributes.max_rd_atomic == 0;
        if !send.work.is_supported_by(kind, rxe)
            || none_allowed
            || (kind == QpType::Ud && send.to.is_none_or(|to| to.pd != self.pd))
        {
            return Err(WcStatus::LocQpOpErr);
        }
        if send.work.is_local() {
            self.requester.queue[at].begun = true;
            return self.perform_local(at);
        }
        let max_length =
            if kind == QpType::Ud { self.shared.device.path_mtu() } else { self.shared.device.max_message() };
        let wrong_atomic = send.work.is_atomic() && send.length != 8 && !rxe;
        let too_long = send.length > u64::from(max_length);
        // rxe reports success for a datagram that is too long, and sends nothing.
        if wrong_atomic || (too_long && !(rxe && kind == QpType::Ud)) {
            return Err(if rxe { WcStatus::LocQpOpErr } else { WcStatus::LocLenErr });
        }
        // For reads and atomics, `on_data` checks the local memory when the response arrives.
        let sends = !send.work.is_answered() && send.inline.is_none();
        if sends && let Err(denied) = self.keys.check(&self.requester.queue[at].sges, Access::empty()) {
            return Err(if rxe && denied == Denied::Key { WcStatus::LocQpOpErr } else { WcStatus::LocProtErr });
        }
        let mtu = if kind == QpType::Ud { u64::MAX } else { self.mtu() };
        let (first, requester) = (self.requester.psn, &mut self.requester);
        let send = &mut requester.queue[at];
        let packets = if send.work.is_atomic() { 1 } else { send.length.div_ceil(mtu).max(1) as u32 };
        (send.begun, send.first, send.packets) = (true, first, packets);
        if too_long {
            send.sent = packets;
        }
        requester.psn = psn_after(first, packets);
        Ok(())
    }

    /// Binds or invalidates a memory window.
    fn perform_local(&mut self, at: usize) -> Result<(), WcStatus> {
        let (qp, keys) = (self.shared.identity, self.keys.keys());
        match self.requester.queue[at].work {
            SendWork::Bind(binding) => match keys.bind(&binding, self.pd, qp) {
                true => Ok(()),
                false => Err(WcStatus::MwBindErr),
            },
            SendWork::Op(SendOp::LocalInv(rkey)) if keys.windows.invalidate(rkey, qp) => Ok(()),
            _ if self.is_rxe() => Err(WcStatus::LocQpOpErr),
            _ => Err(WcStatus::MwBindErr),
        }
    }

    /// Sends the next packet of a started request.
    fn send_packet(&mut self, at: usize, ctx: &mut FabricContext<'_>) -> Result<(), WcStatus> {
        if self.kind() == QpType::Ud {
            return self.send_datagram(at, ctx);
        }
        let mtu = self.mtu();
        let send = &self.requester.queue[at];
        let (work, length, packets) = (send.work, send.length, send.packets);
        let index = if work.is_answered() { send.done } else { send.sent };
        let (psn, from) = (psn_after(send.first, index), u64::from(index) * mtu);
        let further = |remote: Remote| Remote { addr: remote.addr.wrapping_add(from), ..remote };
        let (body, sent) = match work {
            SendWork::Op(SendOp::RdmaRead(remote)) => (Body::Read(further(remote), length - from), packets),
            SendWork::Op(SendOp::CompareSwap { remote, compare, swap }) => {
                (Body::Atomic(remote, AtomicOp::Swap { compare, swap }), packets)
            }
            SendWork::Op(SendOp::FetchAdd { remote, add }) => (Body::Atomic(remote, AtomicOp::Add(add)), packets),
            _ => {
                let (first, last) = (index == 0, index + 1 == packets);
                let payload = self.payload(at, from, (length - from).min(mtu) as usize, ctx)?;
                let send = &self.requester.queue[at];
                let part = Part {
                    first,
                    last,
                    write: work.write(length),
                    imm: work.imm(),
                    invalidate: work.invalidate(),
                    solicited: send.flags.contains(SendFlags::SOLICITED),
                    payload,
                };
                (Body::Part(part), index + 1)
            }
        };
        self.requester.queue[at].sent = sent;
        if self.kind() == QpType::Rc && self.requester.timeout.is_none() {
            self.watch();
        }
        if index == 0 && self.shared.device.is_up() {
            self.shared.counts.tx_packets.add(1);
            self.shared.counts.tx_bytes.add(if work.is_answered() { 0 } else { length });
        }
        self.send_to_peer(psn, body, ctx);
        Ok(())
    }

    /// Copies `length` bytes of the request's data, starting at byte `from`, into a buffer.
    pub(super) fn payload(
        &mut self,
        at: usize,
        from: u64,
        length: usize,
        ctx: &mut FabricContext<'_>,
    ) -> Result<Vec<u8>, WcStatus> {
        let mut payload = ctx.net.buffer();
        let send = &self.requester.queue[at];
        match &send.inline {
            Some(bytes) => payload.extend(bytes.iter().skip(from as usize).take(length)),
            None => self.keys.gather_part(&send.sges, from, length, &mut payload)?,
        }
        Ok(payload)
    }

    /// Starts the timer for the next acknowledgement. With a timeout code of 0, no timer runs.
    fn watch(&mut self) {
        let code = self.attributes.timeout;
        self.requester.timeout = (code > 0).then(|| self.later(4_096 << code));
    }

    /// Completes finished sends in order.
    fn retire(&mut self, ctx: &mut FabricContext<'_>) {
        while let Some(send) = self.requester.queue.front()
            && send.begun
            && send.failed.is_none()
            && send.done == send.packets
        {
            let Some(send) = self.requester.queue.pop_front() else { break };
            self.requester.next = self.requester.next.saturating_sub(1);
            self.complete_send(&send, WcStatus::Success, ctx);
        }
        if let Some(send) = self.requester.queue.front()
            && let Some(status) = send.failed
        {
            return self.fail_send(status, ctx);
        }
        if self.requester.queue.front().is_none_or(|send| send.sent == send.done) {
            self.requester.timeout = None;
        }
        self.report_drained();
    }

    fn complete_send(&mut self, send: &Send, status: WcStatus, ctx: &mut FabricContext<'_>) {
        let signalled = self.signal_all || send.flags.contains(SendFlags::SIGNALED);
        if status == WcStatus::Success && !signalled {
            return;
        }
        let (opcode, rxe) = (send.work.opcode(), self.is_rxe());
        let values = CompletionValues {
            opcode: SendWork::completes_as(opcode).raw(),
            // The field is valid only for reads and atomics. For an atomic, rxe reports the length of the local buffers
            // instead of 8 bytes.
            byte_len: if send.work.is_atomic() && !rxe { 8 } else { send.length.min(u64::from(u32::MAX)) as u32 },
            flags: if rxe && send.work.imm().is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() },
            ..CompletionValues::default()
        };
        let outcome = match status {
            WcStatus::Success if send.work.is_answered() => Outcome::success(PollFields::BYTE_LEN, values),
            WcStatus::Success => Outcome::success(PollFields::empty(), values),
            _ => Outcome::failure(status),
        };
        let cq = self.send_cq.clone();
        self.report(&cq, send.wr_id, outcome, send.number, false, ctx);
    }

    /// Fails the oldest send, flushes the later sends, and moves the queue pair to ERR or SQE.
    fn fail_send(&mut self, status: WcStatus, ctx: &mut FabricContext<'_>) {
        if let Some(send) = self.requester.queue.pop_front() {
            self.complete_send(&send, status, ctx);
        }
        if self.kind() == QpType::Rc || self.is_rxe() {
            return self.fail(ctx);
        }
        self.shared.set_state(QpState::Sqe);
        self.flush_sends(ctx);
    }

    /// Flushes all sends.
    pub(super) fn flush_sends(&mut self, ctx: &mut FabricContext<'_>) {
        while let Some(send) = self.requester.queue.pop_front() {
            self.complete_send(&send, WcStatus::WrFlushErr, ctx);
        }
        let requester = &mut self.requester;
        (requester.next, requester.timeout, requester.rnr_until) = (0, None, None);
    }

    /// Marks all packets that were not acknowledged as unsent, so that they are sent again.
    fn rewind(&mut self) {
        let requester = &mut self.requester;
        for send in requester.queue.iter_mut().filter(|send| send.begun && send.failed.is_none()) {
            send.sent = if send.work.is_answered() && send.done < send.packets { 0 } else { send.done };
        }
        requester.rewound = true;
        requester.timeout = None;
        requester.seek();
    }

    /// Sends the unacknowledged packets again after a loss, or fails the oldest send if no retries are left.
    fn retry(&mut self, ctx: &mut FabricContext<'_>) {
        let endless = self.is_rxe() && self.attributes.retry_count == UNLIMITED_RETRIES;
        if self.requester.retries == 0 && !endless {
            return self.fail_send(WcStatus::RetryExcErr, ctx);
        }
        self.shared.counts.tx_retries.add(1);
        self.requester.retries = self.requester.retries.saturating_sub(1);
        self.rewind();
    }

    /// Handles an expired timer.
    pub(super) fn expire(&mut self, ctx: &mut FabricContext<'_>) {
        let now = self.now();
        if self.requester.rnr_until.is_some_and(|at| at <= now) {
            self.requester.rnr_until = None;
        } else if self.requester.timeout.is_some_and(|at| at <= now) {
            self.requester.timeout = None;
            if matches!(self.state(), QpState::Rts | QpState::Sqd) && self.requester.is_under_way() {
                self.retry(ctx);
            }
        }
    }

    /// Handles a response that shows progress: resets the retry counters.
    fn progress(&mut self, ctx: &mut FabricContext<'_>) {
        self.requester.start_retries(&self.attributes);
        self.requester.seek();
        self.watch();
        self.retire(ctx);
    }

    /// Records that all packets up to `psn` have arrived. Returns whether any of these packets was not recorded before.
    /// If the response to an earlier read or atomic has not arrived, the response is lost, and the requester repeats
    /// the request.
    fn arrived(&mut self, psn: u32, ctx: &mut FabricContext<'_>) -> bool {
        let mut advanced = false;
        let mut missing = false;
        for send in self.requester.queue.iter_mut().take_while(|send| send.begun && send.failed.is_none()) {
            let upto = psn_distance(psn, send.first) + 1;
            if send.packets == 0 {
                continue;
            }
            if upto <= 0 {
                break;
            }
            if send.work.is_answered() {
                if send.done < send.packets {
                    missing = true;
                    break;
                }
                continue;
            }
            let upto = (upto as u32).min(send.packets);
            advanced |= upto > send.done;
            send.done = send.done.max(upto);
            send.sent = send.sent.max(upto);
        }
        if advanced {
            self.progress(ctx);
        }
        if missing && !self.requester.rewound && matches!(self.state(), QpState::Rts | QpState::Sqd) {
            self.retry(ctx);
        }
        advanced
    }

    /// Returns whether a packet with this number has been sent.
    fn was_sent(&self, psn: u32) -> bool {
        matches!(self.state(), QpState::Rts | QpState::Sqd) && psn_distance(psn, self.requester.psn) < 0
    }

    pub(super) fn on_ack(&mut self, psn: u32, ctx: &mut FabricContext<'_>) {
        if self.was_sent(psn) {
            self.arrived(psn, ctx);
        }
    }

    pub(super) fn on_nak(&mut self, psn: u32, nak: Nak, ctx: &mut FabricContext<'_>) {
        if !self.was_sent(psn) {
            return;
        }
        self.arrived(psn.wrapping_sub(1) & PSN, ctx);
        // Process a NAK only if it refers to the oldest incomplete request.
        let current = self.requester.queue.iter().find(|send| send.begun && send.packets > 0);
        let answers = |send: &Send| send.has(psn) && psn_distance(psn, psn_after(send.first, send.done)) >= 0;
        if !self.was_sent(psn) || !current.is_some_and(answers) {
            return;
        }
        let status = match nak {
            Nak::Sequence => return self.retry(ctx),
            Nak::NotReady(code) => {
                self.shared.counts.rnr_naks.add(1);
                if self.requester.rnr_retries > 0 {
                    if self.attributes.rnr_retry != UNLIMITED_RETRIES {
                        self.requester.rnr_retries -= 1;
                    }
                    self.rewind();
                    self.requester.rnr_until = Some(self.later(not_ready_nanos(code)));
                    return;
                }
                WcStatus::RnrRetryExcErr
            }
            Nak::InvalidRequest => WcStatus::RemInvReqErr,
            Nak::RemoteAccess => WcStatus::RemAccessErr,
            Nak::RemoteOperation => WcStatus::RemOpErr,
        };
        self.fail_send(status, ctx);
    }

    /// Processes a packet of a response.
    pub(super) fn on_data(&mut self, psn: u32, bytes: &[u8], last: bool, ctx: &mut FabricContext<'_>) {
        if !self.was_sent(psn) {
            return;
        }
        self.arrived(psn.wrapping_sub(1) & PSN, ctx);
        let Some(at) = self.requester.queue.iter().position(|send| send.has(psn) && send.is_awaited()) else { return };
        let send = &self.requester.queue[at];
        let gap = psn_distance(psn, psn_after(send.first, send.done));
        if gap > 0 && !self.requester.rewound {
            return self.retry(ctx);
        }
        if gap != 0 || at > 0 {
            return;
        }
        let (mtu, rxe, send) = (self.mtu(), self.is_rxe(), &self.requester.queue[at]);
        // A peer with a different path MTU splits its response into packets of a different size. rxe detects only a
        // response with more packets than expected, because the packet at the last expected position is not marked as
        // last.
        let splits_alike = send.work.is_atomic() || bytes.len() as u64 == (send.length - send.received).min(mtu);
        match rxe {
            true if !last && send.done + 1 == send.packets => return self.retry(ctx),
            false if !splits_alike => return self.fail_send(WcStatus::BadRespErr, ctx),
            _ => {}
        }
        let written = self.keys.scatter_part(&send.sges, send.received, bytes);
        let send = &mut self.requester.queue[at];
        match written {
            Ok(()) => {
                send.received += bytes.len() as u64;
                send.done = if last { send.packets } else { send.done + 1 };
                send.sent = send.packets;
                self.progress(ctx);
            }
            Err(_) => self.fail_send(WcStatus::LocProtErr, ctx),
        }
    }
}
