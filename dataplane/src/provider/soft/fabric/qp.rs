//! A queue pair on a fabric: its states, its queues, its completions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::packet::{Body, PSN, Packet};
use super::request::Requester;
use super::response::Responder;
use super::send::Send;
use super::{Reach, is_multicast};
use crate::provider::completion::Values;
use crate::provider::soft::cq::Cqe;
use crate::provider::soft::fault::PostFaults;
use crate::provider::soft::inbox::Inbox;
use crate::provider::soft::memory::KeyCache;
use crate::provider::soft::qp::QpShared;
use crate::provider::soft::spec::Profile;
use crate::provider::{
    Access, AttributeMask, Completion, EventKind, Path, PollFields, QpAttributes, QpCaps, QpState, QpType, RecvRequest,
    Sge, WcStatus, check_transition,
};
use crate::units::{Gid, QpNum, Ticks};

/// A posted receive.
#[derive(Clone, Debug)]
pub(in crate::provider::soft) struct Receive {
    pub(super) wr_id: u64,
    pub(super) sges: Vec<Sge>,
}

impl Receive {
    pub(super) fn of(request: &RecvRequest<'_>) -> Self {
        Self { wr_id: request.wr_id, sges: request.sges.to_vec() }
    }

    /// How many bytes it takes.
    pub(super) fn room(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider::soft) struct Target {
    pub(super) path: Path,
    pub(super) qp: QpNum,
    pub(super) qkey: u32,
    /// The protection domain of the address handle.
    pub(super) pd: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) shared: Arc<QpShared>,
    pub(super) profile: Profile,
    pub(super) pd: u32,
    pub(super) caps: QpCaps,
    pub(super) signal_all: bool,
    pub(super) keys: KeyCache,
    pub(super) attributes: QpAttributes,
    /// The address that its packets come from.
    pub(super) source: Gid,
    pub(super) send_cq: Arc<Inbox>,
    pub(super) recv_cq: Arc<Inbox>,
    pub(super) srq: Option<u32>,
    pub(super) receives: VecDeque<Receive>,
    /// Receives posted since RESET.
    pub(super) receives_posted: u64,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// Which posts are refused: receives, sends.
    pub(super) refused: [Option<PostFaults>; 2],
    /// Whether an event is owed when what is under way is done.
    pub(super) draining: bool,
    /// Whether it is among those that may have something to send.
    pub(super) busy: bool,
}

impl Qp {
    pub(super) fn kind(&self) -> QpType {
        self.shared.kind
    }

    pub(super) fn state(&self) -> QpState {
        self.shared.state()
    }

    pub(super) fn is_rxe(&self) -> bool {
        self.profile == Profile::Rxe
    }

    pub(super) fn now(&self) -> Ticks {
        self.shared.device.spec.clock.now()
    }

    /// So many nanoseconds from now.
    pub(super) fn later(&self, nanos: u64) -> Ticks {
        let clock = &self.shared.device.spec.clock;
        Ticks(clock.now().0.saturating_add(clock.timebase().ticks(crate::units::Nanos(nanos)).0))
    }

    /// The largest payload of a packet, in bytes.
    pub(super) fn mtu(&self) -> u64 {
        128 << self.attributes.path_mtu
    }

    /// When something is to happen by itself.
    pub(super) fn deadline(&self) -> Option<Ticks> {
        self.requester.deadline()
    }

    pub(super) fn is_due(&self) -> bool {
        self.deadline().is_some_and(|at| at <= self.now())
    }

    /// Does one thing of what there is to do: answers go first. `false`: there is nothing.
    pub(super) fn step(&mut self, reach: &mut Reach<'_>) -> bool {
        !self.shared.device.is_gone() && (self.answer(reach) || self.send_one(reach))
    }

    /// Puts a packet on the wire to the peer.
    pub(super) fn emit(&self, psn: u32, body: Body, reach: &mut Reach<'_>) {
        let (to, to_gid) = (self.attributes.dest_qp, self.attributes.path.gid);
        self.put(Packet { to, to_gid, from: self.shared.number, from_gid: self.source, psn, body }, reach);
    }

    /// Puts a packet on the wire. While the link is down, or without the address that it comes from, it is lost.
    pub(super) fn put(&self, packet: Packet, reach: &mut Reach<'_>) {
        let device = &self.shared.device;
        if device.is_up() && device.owns(packet.from_gid) {
            reach.net.wire.push_back(packet);
        }
    }

    /// Takes a packet in.
    pub(super) fn receive(&mut self, packet: Packet, reach: &mut Reach<'_>) {
        let receives = matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let datagram = matches!(packet.body, Body::Datagram(_));
        // Of connections: only from the peer's address.
        let known = datagram || packet.from_gid == self.attributes.path.gid;
        if receives && known && datagram == (self.kind() == QpType::Ud) {
            match &packet.body {
                Body::Part(part) => self.on_part(&packet, part, reach),
                Body::Read(remote, length) => self.on_read(packet.psn, *remote, *length, reach),
                Body::Atomic(remote, change) => self.on_atomic(packet.psn, *remote, *change, reach),
                Body::Ack => self.on_ack(packet.psn, reach),
                Body::Nak(nak) => self.on_nak(packet.psn, *nak, reach),
                Body::ReadData(payload) => self.on_data(packet.psn, payload, reach),
                Body::AtomicData(value) => self.on_data(packet.psn, &value.to_ne_bytes(), reach),
                Body::Datagram(datagram) => self.on_datagram(&packet, datagram, reach),
            }
        }
        if let Some(payload) = packet.into_payload() {
            reach.net.give_back(payload);
        }
    }

    /// Takes the oldest receive that is posted.
    pub(super) fn take_receive(&mut self, reach: &mut Reach<'_>) -> Option<Receive> {
        match self.srq {
            Some(srq) => reach.srqs.get_mut(&srq)?.take(),
            None => self.receives.pop_front(),
        }
    }

    /// Puts a receive back that was not used after all.
    pub(super) fn put_back(&mut self, receive: Receive, reach: &mut Reach<'_>) {
        match self.srq.and_then(|srq| reach.srqs.get_mut(&srq)) {
            Some(srq) => srq.put_back(receive),
            None => self.receives.push_front(receive),
        }
    }

    /// Completes a receive.
    pub(super) fn complete_receive(
        &mut self,
        receive: &Receive,
        status: WcStatus,
        values: Values,
        solicited: bool,
        reach: &mut Reach<'_>,
    ) {
        let cq = self.recv_cq.clone();
        let fits = self.report(&cq, receive.wr_id, status, values, 0, solicited, reach);
        if !fits && self.is_rxe() {
            // The queue lives on, but a receive that is lost ends the queue pair.
            self.fail(reach);
        }
    }

    /// Makes an entry. `false`: its queue has overrun.
    #[allow(clippy::too_many_arguments, reason = "the parts of an entry")]
    pub(super) fn report(
        &self,
        cq: &Inbox,
        wr_id: u64,
        status: WcStatus,
        values: Values,
        release: u64,
        solicited: bool,
        reach: &mut Reach<'_>,
    ) -> bool {
        let qp = self.shared.number;
        if status == WcStatus::WrFlushErr && self.shared.device.spec.faults.mute {
            return true;
        }
        let values = match status {
            WcStatus::Success => Values { qp_num: qp, ..values },
            _ => Values { qp_num: qp, ..Values::default() },
        };
        let completion = Completion::new(wr_id, status, 0, PollFields::all(), values);
        let was_dead = cq.is_dead();
        let fits = cq.push(Cqe { completion, qp, release }, solicited);
        if !fits && !was_dead {
            self.shared.device.raise(EventKind::CqErr, cq.number);
            if cq.is_dead() {
                reach.net.overrun.push(cq.number);
            }
        }
        fits
    }

    /// Raises an event about this queue pair; of the kernel's software device there are few.
    pub(super) fn raise(&self, kind: EventKind) {
        if !self.is_rxe() || kind == EventKind::SqDrained {
            self.shared.device.raise(kind, self.shared.number.0);
        }
    }

    /// To ERR, and everything outstanding is flushed. Answers that are owed are still given.
    pub(super) fn fail(&mut self, reach: &mut Reach<'_>) {
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return;
        }
        self.shared.set_state(QpState::Err);
        self.draining = false;
        self.flush_sends(reach);
        if let Some(receive) = self.responder.abandon() {
            self.complete_receive(&receive, WcStatus::WrFlushErr, Values::default(), false, reach);
        }
        self.flush_receives(reach);
        if self.srq.is_some() && !self.shared.device.spec.faults.mute {
            self.raise(EventKind::QpLastWqeReached);
        }
    }

    /// To ERR because a completion queue has overrun.
    pub(super) fn die(&mut self, reach: &mut Reach<'_>) {
        if !matches!(self.state(), QpState::Reset | QpState::Err) {
            self.raise(EventKind::QpFatal);
            self.fail(reach);
        }
    }

    pub(super) fn flush_receives(&mut self, reach: &mut Reach<'_>) {
        while let Some(receive) = self.receives.pop_front() {
            self.complete_receive(&receive, WcStatus::WrFlushErr, Values::default(), false, reach);
        }
    }

    /// Forgets everything.
    fn reset(&mut self) {
        self.receives.clear();
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.draining = false;
        self.receives_posted = 0;
        self.shared.released.store(0, Ordering::Relaxed);
        self.shared.polled.store(0, Ordering::Relaxed);
        if !self.is_rxe() {
            self.send_cq.purge(self.shared.number);
            self.recv_cq.purge(self.shared.number);
        }
    }

    /// Changes attributes; `Err`: the errno, and nothing has changed.
    pub(super) fn modify(&mut self, to: &QpAttributes, mask: AttributeMask, reach: &mut Reach<'_>) -> Result<(), i32> {
        let from = self.state();
        let state = if mask.contains(AttributeMask::STATE) { to.state } else { from };
        self.check(to, from, state, mask)?;
        self.apply(to, mask);
        match (from, state) {
            (_, QpState::Reset) => {
                self.shared.set_state(state);
                self.reset();
            }
            (_, QpState::Err) => {
                self.fail(reach);
                self.responder.jobs.clear();
            }
            (_, QpState::Rtr) => {
                let index = self.attributes.path.source_gid_index;
                if self.kind() != QpType::Ud {
                    self.source = self.shared.device.gid_at(index).unwrap_or_default();
                }
                self.responder.expected = self.attributes.rq_psn;
                self.shared.set_state(state);
            }
            (QpState::Rtr, QpState::Rts) => {
                self.requester.start(&self.attributes);
                self.shared.set_state(state);
            }
            (_, QpState::Sqd) => {
                self.shared.set_state(state);
                self.draining = to.notify_drained && mask.contains(AttributeMask::EN_SQD_ASYNC_NOTIFY);
                self.tell_drained();
            }
            _ => self.shared.set_state(state),
        }
        Ok(())
    }

    /// Says that a stopped send queue has finished what was under way, once it has.
    pub(super) fn tell_drained(&mut self) {
        if self.draining && !self.requester.is_under_way() {
            self.draining = false;
            self.raise(EventKind::SqDrained);
        }
    }

    fn check(&self, to: &QpAttributes, from: QpState, state: QpState, mask: AttributeMask) -> Result<(), i32> {
        let (device, limits) = (&self.shared.device, self.shared.device.spec.limits);
        check_transition(self.kind(), from, state, mask).map_err(|_| libc::EINVAL)?;
        let most = u32::from(limits.max_rd_atomic);
        let path_is_good = |path: &Path| {
            path.port == 1
                && path.global
                && !path.gid.is_zero()
                && !is_multicast(path.gid)
                && device.gid_at(path.source_gid_index).is_some()
        };
        let known = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let rules = [
            (AttributeMask::CUR_STATE, to.current_state == from),
            (AttributeMask::PORT, to.port == 1),
            (AttributeMask::PKEY_INDEX, to.pkey_index == 0 || self.is_rxe()),
            (AttributeMask::ACCESS_FLAGS, (known | Access::MW_BIND).contains(to.access)),
            (AttributeMask::AV, path_is_good(&to.path)),
            (AttributeMask::PATH_MTU, (1..=5).contains(&to.path_mtu) && 128 << to.path_mtu <= device.path_mtu()),
            (AttributeMask::DEST_QPN, to.dest_qp.0 <= 0xff_ffff),
            (AttributeMask::RQ_PSN, to.rq_psn <= PSN),
            (AttributeMask::SQ_PSN, to.sq_psn <= PSN),
            (AttributeMask::MAX_QP_RD_ATOMIC, u32::from(to.max_rd_atomic) <= most),
            (AttributeMask::MAX_DEST_RD_ATOMIC, u32::from(to.max_dest_rd_atomic) <= most),
            (AttributeMask::TIMEOUT, to.timeout < 32),
            (AttributeMask::MIN_RNR_TIMER, to.min_rnr_timer < 32),
            (AttributeMask::RETRY_CNT, to.retry_count < 8),
            (AttributeMask::RNR_RETRY, to.rnr_retry < 8),
            // No other path is ever taken.
            (AttributeMask::ALT_PATH, false),
            (AttributeMask::PATH_MIG_STATE, false),
        ];
        if rules.iter().any(|(of, holds)| mask.contains(*of) && !holds) {
            return Err(libc::EINVAL);
        }
        // Keys with the top bit are the administrator's.
        let privileged = mask.contains(AttributeMask::QKEY) && to.qkey >> 31 == 1;
        if privileged && device.spec.faults.no_net_raw { Err(libc::EPERM) } else { Ok(()) }
    }

    fn apply(&mut self, to: &QpAttributes, mask: AttributeMask) {
        let own = &mut self.attributes;
        macro_rules! take {
            ($($bit:ident $field:ident,)*) => {
                $(if mask.contains(AttributeMask::$bit) { own.$field = to.$field; })*
            };
        }
        take! {
            ACCESS_FLAGS access, PKEY_INDEX pkey_index, PORT port, QKEY qkey, AV path, PATH_MTU path_mtu,
            TIMEOUT timeout, RETRY_CNT retry_count, RNR_RETRY rnr_retry, RQ_PSN rq_psn, SQ_PSN sq_psn,
            MAX_QP_RD_ATOMIC max_rd_atomic, MAX_DEST_RD_ATOMIC max_dest_rd_atomic, MIN_RNR_TIMER min_rnr_timer,
            DEST_QPN dest_qp, EN_SQD_ASYNC_NOTIFY notify_drained,
        }
    }

    /// Posts receives; `Err`: how many were taken before the one that was refused, and why.
    pub(super) fn post_receives(
        &mut self,
        receives: impl Iterator<Item = Receive>,
        reach: &mut Reach<'_>,
    ) -> Result<(), (usize, i32)> {
        for (accepted, receive) in receives.enumerate() {
            let refused = if self.state() == QpState::Reset
                || self.srq.is_some()
                || receive.sges.len() > self.caps.recv_sges as usize
            {
                Some(libc::EINVAL)
            } else if self.receives_outstanding() >= self.profile.slots(self.caps.recv_depth) as usize {
                Some(libc::ENOMEM)
            } else {
                self.refused[0].as_mut().and_then(PostFaults::refuses)
            };
            if let Some(errno) = refused {
                return Err((accepted, errno));
            }
            self.receives.push_back(receive);
            self.receives_posted += 1;
            if self.state() == QpState::Err {
                self.flush_receives(reach);
            }
        }
        Ok(())
    }

    /// Receives that take up room: of the kernel's device those that are not used, of hardware also those whose
    /// completion nobody has polled.
    fn receives_outstanding(&self) -> usize {
        match self.is_rxe() {
            true => self.receives.len(),
            false => (self.receives_posted - self.shared.polled.load(Ordering::Relaxed)) as usize,
        }
    }

    /// Takes a send in that was checked.
    pub(super) fn push_send(&mut self, mut send: Send, reach: &mut Reach<'_>) {
        self.requester.posted += 1;
        send.number = self.requester.posted;
        self.requester.queue.push_back(send);
        if matches!(self.state(), QpState::Err | QpState::Sqe) {
            self.flush_sends(reach);
        }
    }
}
