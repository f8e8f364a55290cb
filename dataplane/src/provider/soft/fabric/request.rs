//! The requester: what a queue pair sends, and what it makes of the answers.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::Reach;
use super::packet::{Body, Change, Nak, PSN, Part, after, ahead, not_ready_nanos};
use super::qp::Qp;
use super::send::{Send, Work};
use crate::provider::completion::Values;
use crate::provider::soft::memory::Denied;
use crate::provider::soft::window::Windows;
use crate::provider::{Access, QpAttributes, QpState, QpType, Remote, SendFlags, SendOp, WcFlags, WcStatus, WrOpcode};
use crate::units::Ticks;

/// "For ever", of retries of a receiver that is not ready.
const FOR_EVER: u8 = 7;

/// The sending side of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Sends that are not over.
    pub(super) queue: VecDeque<Send>,
    /// The first of them that is not wholly on the wire.
    next: usize,
    /// Sends posted since RESET.
    pub(super) posted: u64,
    /// Number of the next packet.
    psn: u32,
    /// Retries left without an answer, and with the answer that the receiver is not ready.
    retries: u8,
    patience: u8,
    /// When the peer's silence has lasted too long.
    timeout: Option<Ticks>,
    /// When a receiver that was not ready is tried again.
    pause: Option<Ticks>,
    /// Whether it has begun anew since the last progress.
    rewound: bool,
}

impl Requester {
    pub(super) fn start(&mut self, attributes: &QpAttributes) {
        self.psn = attributes.sq_psn;
        (self.retries, self.patience) = (attributes.retry_count, attributes.rnr_retry);
    }

    pub(super) fn deadline(&self) -> Option<Ticks> {
        self.pause.or(self.timeout)
    }

    /// Whether something has begun and is not over.
    pub(super) fn is_under_way(&self) -> bool {
        self.queue.front().is_some_and(|send| send.begun)
    }

    /// Finds the first send again that is not wholly on the wire.
    fn seek(&mut self) {
        let over = |send: &Send| send.begun && send.failed.is_none() && send.sent == send.packets;
        self.next = self.queue.iter().take_while(|send| over(send)).count();
    }
}

impl Qp {
    /// How many sends may be posted now.
    pub(super) fn space(&self) -> usize {
        let depth = self.profile.slots(self.caps.send_depth) as usize;
        let used = match self.is_rxe() {
            // A slot is free as soon as its request is over.
            true => self.requester.queue.len(),
            // A slot is free when a completion of it, or of a later one, was polled.
            false => (self.requester.posted - self.shared.released.load(Ordering::Relaxed)) as usize,
        };
        depth.saturating_sub(used)
    }

    /// Sends one packet, or carries out one request that needs none. `false`: nothing can be sent now.
    pub(super) fn send_one(&mut self, reach: &mut Reach<'_>) -> bool {
        let at = self.requester.next;
        if self.requester.pause.is_some() || at >= self.requester.queue.len() {
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
            if let Err(status) = self.begin(at, reach) {
                let send = &mut self.requester.queue[at];
                (send.begun, send.failed) = (true, Some(status));
            }
        }
        if self.requester.queue[at].failed.is_none()
            && self.requester.queue[at].sent < self.requester.queue[at].packets
            && let Err(status) = self.send_packet(at, reach)
        {
            self.requester.queue[at].failed = Some(status);
        }
        if self.kind() != QpType::Rc {
            // Nobody answers: what is on the wire is over.
            let send = &mut self.requester.queue[at];
            send.done = send.sent;
        }
        if let (0, Some(status)) = (at, self.requester.queue[at].failed) {
            self.fail_send(status, reach);
            return true;
        }
        let waits = self.requester.queue[at].failed.is_some();
        self.requester.seek();
        self.retire(reach);
        !waits
    }

    /// Whether a request must wait for those before it.
    fn must_wait(&self, at: usize) -> bool {
        let send = &self.requester.queue[at];
        let awaited = self.requester.queue.iter().take(at).filter(|other| other.is_awaited()).count();
        let limit = usize::from(self.attributes.max_rd_atomic);
        let fenced = send.flags.contains(SendFlags::FENCE) && awaited > 0;
        // With none allowed the kernel's device waits for ever; hardware finds the request wrong.
        let full = send.work.is_answered() && awaited >= limit && (limit > 0 || self.is_rxe());
        self.kind() == QpType::Rc && (fenced || full)
    }

    /// Begins a request: looks whether it can be carried out at all, and gives it its packets.
    fn begin(&mut self, at: usize, reach: &mut Reach<'_>) -> Result<(), WcStatus> {
        let (rxe, kind) = (self.is_rxe(), self.kind());
        if let Some(faults) = reach.net.faults.get_mut(&self.shared.device.id)
            && let Some(status) = faults.send_fails()
        {
            self.shared.counts.faults.add(1);
            return Err(status);
        }
        let send = &self.requester.queue[at];
        let none_allowed = kind == QpType::Rc && send.work.is_answered() && self.attributes.max_rd_atomic == 0;
        if !send.work.is_of(kind, rxe)
            || none_allowed
            || (kind == QpType::Ud && send.to.is_none_or(|to| to.pd != self.pd))
        {
            return Err(WcStatus::LocQpOpErr);
        }
        if send.work.is_local() {
            self.requester.queue[at].begun = true;
            return self.carry_out(at);
        }
        let longest = if kind == QpType::Ud { self.shared.device.path_mtu() } else { self.shared.device.max_message() };
        let wrong_atomic = send.work.is_atomic() && send.length != 8 && !rxe;
        let too_long = send.length > u64::from(longest);
        // The kernel's device takes a datagram that is too long for sent, and sends nothing.
        if wrong_atomic || (too_long && !(rxe && kind == QpType::Ud)) {
            return Err(if rxe { WcStatus::LocQpOpErr } else { WcStatus::LocLenErr });
        }
        // Memory that an answer goes to is looked at when it comes.
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
        requester.psn = after(first, packets);
        Ok(())
    }

    /// Carries out a request that the peer has no part in.
    fn carry_out(&mut self, at: usize) -> Result<(), WcStatus> {
        let (qp, keys) = (self.shared.number, self.keys.keys());
        match self.requester.queue[at].work {
            Work::Bind(binding) => match Windows::bind(keys, &binding, self.pd, qp) {
                true => Ok(()),
                false => Err(WcStatus::MwBindErr),
            },
            Work::Op(SendOp::LocalInv(rkey)) if keys.windows.invalidate(rkey, qp) => Ok(()),
            _ if self.is_rxe() => Err(WcStatus::LocQpOpErr),
            _ => Err(WcStatus::MwBindErr),
        }
    }

    /// Sends the next packet of a request that has begun.
    fn send_packet(&mut self, at: usize, reach: &mut Reach<'_>) -> Result<(), WcStatus> {
        if self.kind() == QpType::Ud {
            return self.send_datagram(at, reach);
        }
        let mtu = self.mtu();
        let send = &self.requester.queue[at];
        let (work, length, packets) = (send.work, send.length, send.packets);
        let index = if work.is_answered() { send.done } else { send.sent };
        let (psn, from) = (after(send.first, index), u64::from(index) * mtu);
        let further = |remote: Remote| Remote { addr: remote.addr.wrapping_add(from), ..remote };
        let (body, sent) = match work {
            Work::Op(SendOp::RdmaRead(remote)) => (Body::Read(further(remote), length - from), packets),
            Work::Op(SendOp::CompareSwap { remote, compare, swap }) => {
                (Body::Atomic(remote, Change::Swap { compare, swap }), packets)
            }
            Work::Op(SendOp::FetchAdd { remote, add }) => (Body::Atomic(remote, Change::Add(add)), packets),
            _ => {
                let (first, last) = (index == 0, index + 1 == packets);
                let payload = self.payload(at, from, (length - from).min(mtu) as usize, reach)?;
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
        self.emit(psn, body, reach);
        Ok(())
    }

    /// So many bytes of what a request sends.
    pub(super) fn payload(
        &mut self,
        at: usize,
        from: u64,
        length: usize,
        reach: &mut Reach<'_>,
    ) -> Result<Vec<u8>, WcStatus> {
        let mut payload = reach.net.buffer();
        let send = &self.requester.queue[at];
        match &send.inline {
            Some(bytes) => payload.extend(bytes.iter().skip(from as usize).take(length)),
            None => self.keys.gather_part(&send.sges, from, length, &mut payload)?,
        }
        Ok(payload)
    }

    /// Begins to wait for an answer.
    fn watch(&mut self) {
        let code = self.attributes.timeout;
        self.requester.timeout = (code > 0).then(|| self.later(4_096 << code));
    }

    /// Completes, in order, what is over.
    fn retire(&mut self, reach: &mut Reach<'_>) {
        while let Some(send) = self.requester.queue.front()
            && send.begun
            && send.failed.is_none()
            && send.done == send.packets
        {
            let Some(send) = self.requester.queue.pop_front() else { break };
            self.requester.next = self.requester.next.saturating_sub(1);
            self.complete_send(&send, WcStatus::Success, reach);
        }
        if let Some(send) = self.requester.queue.front()
            && let Some(status) = send.failed
        {
            return self.fail_send(status, reach);
        }
        if self.requester.queue.front().is_none_or(|send| send.sent == send.done) {
            self.requester.timeout = None;
        }
        self.tell_drained();
    }

    fn complete_send(&mut self, send: &Send, status: WcStatus, reach: &mut Reach<'_>) {
        let signalled = self.signal_all || send.flags.contains(SendFlags::SIGNALED);
        if status == WcStatus::Success && !signalled {
            return;
        }
        let (opcode, rxe) = (send.work.opcode(), self.is_rxe());
        let length = send.length.min(u64::from(u32::MAX)) as u32;
        let values = Values {
            opcode: Work::completes_as(opcode).raw(),
            byte_len: match opcode {
                _ if rxe => length,
                WrOpcode::RdmaRead => length,
                WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => 8,
                _ => 0,
            },
            flags: if rxe && send.work.imm().is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() },
            ..Values::default()
        };
        let cq = self.send_cq.clone();
        self.report(&cq, send.wr_id, status, values, send.number, false, reach);
    }

    /// The oldest send fails, and those after it are flushed.
    fn fail_send(&mut self, status: WcStatus, reach: &mut Reach<'_>) {
        if let Some(send) = self.requester.queue.pop_front() {
            self.complete_send(&send, status, reach);
        }
        if self.kind() == QpType::Rc || self.is_rxe() {
            return self.fail(reach);
        }
        self.shared.set_state(QpState::Sqe);
        self.flush_sends(reach);
    }

    /// Flushes all sends.
    pub(super) fn flush_sends(&mut self, reach: &mut Reach<'_>) {
        while let Some(send) = self.requester.queue.pop_front() {
            self.complete_send(&send, WcStatus::WrFlushErr, reach);
        }
        let requester = &mut self.requester;
        (requester.next, requester.timeout, requester.pause) = (0, None, None);
    }

    /// Begins anew with what has not arrived.
    fn rewind(&mut self) {
        let requester = &mut self.requester;
        for send in requester.queue.iter_mut().filter(|send| send.begun && send.failed.is_none()) {
            send.sent = if send.work.is_answered() && send.done < send.packets { 0 } else { send.done };
        }
        requester.rewound = true;
        requester.timeout = None;
        requester.seek();
    }

    /// Something is lost: tries again, unless that was tried too often.
    fn retry(&mut self, reach: &mut Reach<'_>) {
        let endless = self.is_rxe() && self.attributes.retry_count == FOR_EVER;
        if self.requester.retries == 0 && !endless {
            return self.fail_send(WcStatus::RetryExcErr, reach);
        }
        self.shared.counts.tx_retries.add(1);
        self.requester.retries = self.requester.retries.saturating_sub(1);
        self.rewind();
    }

    /// A time has come.
    pub(super) fn expire(&mut self, reach: &mut Reach<'_>) {
        let now = self.now();
        if self.requester.pause.is_some_and(|at| at <= now) {
            self.requester.pause = None;
        } else if self.requester.timeout.is_some_and(|at| at <= now) {
            self.requester.timeout = None;
            if matches!(self.state(), QpState::Rts | QpState::Sqd) && self.requester.is_under_way() {
                self.retry(reach);
            }
        }
    }

    /// The peer answers: the connection is well.
    fn progress(&mut self, reach: &mut Reach<'_>) {
        self.requester.start_retries(&self.attributes);
        self.requester.seek();
        self.watch();
        self.retire(reach);
    }

    /// Takes note that everything up to `psn` has arrived. Returns whether that is news; an answer that was passed over
    /// is lost, and asked for again.
    fn arrived(&mut self, psn: u32, reach: &mut Reach<'_>) -> bool {
        let mut news = false;
        let mut missing = false;
        for send in self.requester.queue.iter_mut().take_while(|send| send.begun && send.failed.is_none()) {
            let upto = ahead(psn, send.first) + 1;
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
            news |= upto > send.done;
            send.done = send.done.max(upto);
            send.sent = send.sent.max(upto);
        }
        if news {
            self.progress(reach);
        }
        if missing && !self.requester.rewound && matches!(self.state(), QpState::Rts | QpState::Sqd) {
            self.retry(reach);
        }
        news
    }

    /// Whether a packet with this number has been sent.
    fn was_sent(&self, psn: u32) -> bool {
        matches!(self.state(), QpState::Rts | QpState::Sqd) && ahead(psn, self.requester.psn) < 0
    }

    pub(super) fn on_ack(&mut self, psn: u32, reach: &mut Reach<'_>) {
        if self.was_sent(psn) {
            self.arrived(psn, reach);
        }
    }

    pub(super) fn on_nak(&mut self, psn: u32, nak: Nak, reach: &mut Reach<'_>) {
        if !self.was_sent(psn) {
            return;
        }
        self.arrived(psn.wrapping_sub(1) & PSN, reach);
        // An answer to something that is over says nothing.
        let current = self.requester.queue.iter().find(|send| send.begun && send.packets > 0);
        let answers = |send: &Send| send.has(psn) && ahead(psn, after(send.first, send.done)) >= 0;
        if !self.was_sent(psn) || !current.is_some_and(answers) {
            return;
        }
        let status = match nak {
            Nak::Sequence => return self.retry(reach),
            Nak::NotReady(code) => {
                self.shared.counts.rnr_naks.add(1);
                if self.requester.patience > 0 {
                    if self.attributes.rnr_retry != FOR_EVER {
                        self.requester.patience -= 1;
                    }
                    self.rewind();
                    self.requester.pause = Some(self.later(not_ready_nanos(code)));
                    return;
                }
                WcStatus::RnrRetryExcErr
            }
            Nak::InvalidRequest => WcStatus::RemInvReqErr,
            Nak::RemoteAccess => WcStatus::RemAccessErr,
            Nak::RemoteOperation => WcStatus::RemOpErr,
        };
        self.fail_send(status, reach);
    }

    /// Takes in a part of an answer.
    pub(super) fn on_data(&mut self, psn: u32, bytes: &[u8], reach: &mut Reach<'_>) {
        if !self.was_sent(psn) {
            return;
        }
        self.arrived(psn.wrapping_sub(1) & PSN, reach);
        let Some(at) = self.requester.queue.iter().position(|send| send.has(psn) && send.is_awaited()) else { return };
        let send = &self.requester.queue[at];
        let gap = ahead(psn, after(send.first, send.done));
        if gap > 0 && !self.requester.rewound {
            return self.retry(reach);
        }
        if gap != 0 || at > 0 {
            return;
        }
        let send = &self.requester.queue[at];
        let from = u64::from(send.done) * self.mtu();
        let written = self.keys.scatter_part(&send.sges, from, bytes);
        let send = &mut self.requester.queue[at];
        match written {
            Ok(()) => {
                send.done += 1;
                send.sent = send.packets;
                self.progress(reach);
            }
            Err(_) => self.fail_send(WcStatus::LocProtErr, reach),
        }
    }
}

impl Requester {
    fn start_retries(&mut self, attributes: &QpAttributes) {
        (self.retries, self.patience) = (attributes.retry_count, attributes.rnr_retry);
        self.rewound = false;
    }
}
