//! A connection or datagram queue pair on a fabric: its state, its queues and its completions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::context::FabricContext;
use super::packet::{Body, PSN, Packet, Route, is_multicast};
use super::receive::Receive;
use super::requester::Requester;
use super::responder::Responder;
use super::send::Send;
use crate::completion::{FabricCqe, Outcome, syndrome};
use crate::fault::PostFaults;
use crate::inbox::Inbox;
use crate::memory::KeyCache;
use crate::numbers::Identity;
use crate::port::pkeys_match;
use crate::profile::Profile;
use crate::qp_shared::QpShared;
use crate::quirk::SoftQuirk;
use dataplane_core::clock::ClockSource;
use dataplane_core::units::{Gid, Nanos, Ticks};
use dataplane_core::verbs::CompletionValues;
use dataplane_core::verbs::{
    Access, AttributeMask, Completion, EventKind, Path, QpAttributes, QpCaps, QpState, QpType, WcStatus,
    check_transition,
};

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) shared: Arc<QpShared>,
    pub(super) profile: Profile,
    pub(super) pd: Identity,
    pub(super) caps: QpCaps,
    pub(super) signal_all: bool,
    pub(super) keys: KeyCache,
    pub(super) attributes: QpAttributes,
    /// The source GID of the queue pair's packets.
    pub(super) source: Gid,
    pub(super) send_cq: Arc<Inbox>,
    pub(super) recv_cq: Arc<Inbox>,
    pub(super) srq: Option<u32>,
    pub(super) receives: VecDeque<Receive>,
    /// The number of receives posted since RESET.
    pub(super) receives_posted: u64,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// The injected faults that refuse posts: index 0 for receives, index 1 for sends.
    pub(super) refused: [Option<PostFaults>; 2],
    /// Whether to raise `SQ_DRAINED` when all started sends are complete.
    pub(super) draining: bool,
    /// Whether the queue pair was reset.
    pub(super) was_reset: bool,
    /// Whether the queue pair is in the fabric's list of queue pairs that may have packets to send.
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
        self.shared.device.clock.now()
    }

    /// Returns the time `nanos` nanoseconds from now.
    pub(super) fn later(&self, nanos: u64) -> Ticks {
        let clock = &self.shared.device.clock;
        Ticks(clock.now().0.saturating_add(clock.timebase().ticks(Nanos(nanos)).0))
    }

    /// Returns the maximum payload of a packet in bytes.
    pub(super) fn mtu(&self) -> u64 {
        128 << self.attributes.path_mtu
    }

    /// Returns the time at which the next timer expires.
    pub(super) fn deadline(&self) -> Option<Ticks> {
        self.requester.deadline()
    }

    /// Returns the time until the next timer expires. `None` without a timer, or with a virtual clock.
    pub(super) fn time_left(&self) -> Option<Nanos> {
        let (clock, deadline) = (&self.shared.device.clock, self.deadline()?);
        let timebase = clock.timebase();
        (timebase.source != ClockSource::Virtual).then(|| timebase.between(clock.now(), deadline))
    }

    pub(super) fn is_due(&self) -> bool {
        self.deadline().is_some_and(|at| at <= self.now())
    }

    /// Sends one pending response or, if there is none, one packet of a request. Returns `false` if there is nothing to
    /// send.
    pub(super) fn step(&mut self, ctx: &mut FabricContext<'_>) -> bool {
        !self.shared.device.is_gone() && (self.answer(ctx) || self.send_one(ctx))
    }

    /// Sends a packet to the connected peer.
    pub(super) fn send_to_peer(&self, psn: u32, body: Body, ctx: &mut FabricContext<'_>) {
        let QpAttributes { dest_qp: to, path, .. } = self.attributes;
        let (from, route) = (self.shared.number, self.route(&path));
        self.put(Packet { to, to_gid: path.gid, from, from_gid: self.source, route, psn, body }, ctx);
    }

    /// Returns the packet fields whose values depend on the path.
    pub(super) fn route(&self, path: &Path) -> Route {
        let device = &self.shared.device;
        let slid = device.port.source_lid(path.source_path_bits);
        Route { global: path.global, slid, dlid: path.dlid, pkey: device.pkey(self.attributes.pkey_index) }
    }

    /// Sends a packet. The packet is lost if the link is down or if the port no longer has the source address.
    pub(super) fn put(&self, packet: Packet, ctx: &mut FabricContext<'_>) {
        let device = &self.shared.device;
        if device.is_up() && (!packet.route.global || device.owns(packet.from_gid)) {
            ctx.net.wire.push_back(packet);
        }
    }

    /// Processes a received packet.
    pub(super) fn receive(&mut self, packet: Packet, ctx: &mut FabricContext<'_>) {
        let receives = matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let datagram = matches!(packet.body, Body::Datagram(_));
        // A connection accepts packets only from the address of its peer, and with a GRH only if its own packets have a
        // GRH.
        let path = &self.attributes.path;
        let from_peer = if path.global { packet.from_gid == path.gid } else { packet.route.slid == path.dlid };
        let known = datagram || (from_peer && packet.route.global == path.global);
        if receives && !pkeys_match(packet.route.pkey, self.shared.device.pkey(self.attributes.pkey_index)) {
            return self.shared.counts.pkey_violations.add(1);
        }
        if receives && known && datagram == (self.kind() == QpType::Ud) {
            match &packet.body {
                Body::Part(part) => self.on_part(&packet, part, ctx),
                Body::Read(remote, length) => self.on_read(packet.psn, *remote, *length, ctx),
                Body::Atomic(remote, change) => self.on_atomic(packet.psn, *remote, *change, ctx),
                Body::Ack => self.on_ack(packet.psn, ctx),
                Body::Nak(nak) => self.on_nak(packet.psn, *nak, ctx),
                Body::ReadData(payload, last) => self.on_data(packet.psn, payload, *last, ctx),
                Body::AtomicData(value) => self.on_data(packet.psn, &value.to_ne_bytes(), true, ctx),
                Body::Datagram(datagram) => self.on_datagram(&packet, datagram, ctx),
            }
        }
        if let Some(payload) = packet.into_payload() {
            ctx.net.give_back(payload);
        }
    }

    /// Removes and returns the oldest posted receive.
    pub(super) fn take_receive(&mut self, ctx: &mut FabricContext<'_>) -> Option<Receive> {
        match self.srq {
            Some(srq) => ctx.srqs.get_mut(&srq)?.take(),
            None => self.receives.pop_front(),
        }
    }

    /// Puts back a receive that was not used.
    pub(super) fn put_back(&mut self, receive: Receive, ctx: &mut FabricContext<'_>) {
        match self.srq.and_then(|srq| ctx.srqs.get_mut(&srq)) {
            Some(srq) => srq.put_back(receive),
            None => self.receives.push_front(receive),
        }
    }

    /// Completes a receive.
    pub(super) fn complete_receive(
        &mut self,
        receive: &Receive,
        outcome: Outcome,
        solicited: bool,
        ctx: &mut FabricContext<'_>,
    ) {
        let cq = self.recv_cq.clone();
        let fits = self.report(&cq, receive.wr_id, outcome, 0, solicited, ctx);
        if !fits && self.is_rxe() {
            // The completion queue stays usable, but the lost completion moves the queue pair to ERR.
            self.fail(ctx);
        }
    }

    /// Adds a completion to a completion queue. Returns `false` if the completion did not fit.
    pub(super) fn report(
        &self,
        cq: &Inbox,
        wr_id: u64,
        outcome: Outcome,
        release: u64,
        solicited: bool,
        ctx: &mut FabricContext<'_>,
    ) -> bool {
        let (qp, Outcome { status, fields, values }) = (self.shared.number, outcome);
        if status == WcStatus::WrFlushErr && self.shared.device.faults.no_flush {
            return true;
        }
        let vendor_err = if self.is_rxe() { 0 } else { syndrome(status) };
        let completion = Completion::new(wr_id, status, vendor_err, fields, CompletionValues { qp_num: qp, ..values });
        let was_dead = cq.is_dead();
        let fits = cq.push(FabricCqe { completion, qp, release }, solicited);
        if !fits && !was_dead {
            self.shared.device.raise(EventKind::CqErr, cq.number);
            if cq.is_dead() {
                ctx.net.overrun.push(cq.number);
            }
        }
        fits
    }

    /// Raises an event about this queue pair. rxe (the kernel's software RoCE driver) raises only `SQ_DRAINED`.
    pub(super) fn raise(&self, kind: EventKind) {
        if !self.is_rxe() || kind == EventKind::SqDrained {
            self.shared.device.raise(kind, self.shared.number.0);
        }
    }

    /// Moves the queue pair to ERR and flushes all outstanding requests. Pending responses are still sent.
    pub(super) fn fail(&mut self, ctx: &mut FabricContext<'_>) {
        if matches!(self.state(), QpState::Reset | QpState::Err) {
            return;
        }
        self.shared.set_state(QpState::Err);
        self.draining = false;
        self.flush_sends(ctx);
        if let Some(receive) = self.responder.abandon() {
            self.complete_receive(&receive, Outcome::failure(WcStatus::WrFlushErr), false, ctx);
        }
        self.flush_receives(ctx);
        if self.srq.is_some() && !self.shared.device.faults.no_flush {
            self.raise(EventKind::QpLastWqeReached);
        }
    }

    /// Moves the queue pair to ERR because one of its completion queues overran.
    pub(super) fn fail_by_overrun(&mut self, ctx: &mut FabricContext<'_>) {
        if !matches!(self.state(), QpState::Reset | QpState::Err) {
            self.raise(EventKind::QpFatal);
            self.fail(ctx);
        }
    }

    pub(super) fn flush_receives(&mut self, ctx: &mut FabricContext<'_>) {
        while let Some(receive) = self.receives.pop_front() {
            self.complete_receive(&receive, Outcome::failure(WcStatus::WrFlushErr), false, ctx);
        }
    }

    /// Resets all state.
    fn reset(&mut self) {
        self.receives.clear();
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.draining = false;
        self.receives_posted = 0;
        // Purge the completions before the counters are reset. A thread that polls at the same time then either counts
        // a completion before the purge, or does not find the completion.
        if !self.is_rxe() {
            self.send_cq.purge(self.shared.number);
            self.recv_cq.purge(self.shared.number);
        }
        self.shared.released.store(0, Ordering::Relaxed);
        self.shared.polled.store(0, Ordering::Relaxed);
    }

    /// Changes attributes. On an error, returns the `errno` and changes nothing.
    pub(super) fn modify(
        &mut self,
        to: &QpAttributes,
        mask: AttributeMask,
        ctx: &mut FabricContext<'_>,
    ) -> Result<(), i32> {
        let from = self.state();
        let state = if mask.contains(AttributeMask::STATE) { to.state } else { from };
        self.check(to, from, state, mask)?;
        self.apply(to, mask);
        match (from, state) {
            (_, QpState::Reset) => {
                self.shared.set_state(state);
                self.reset();
                self.was_reset = true;
            }
            (_, QpState::Err) => {
                self.fail(ctx);
                self.responder.pending.clear();
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
                self.report_drained();
            }
            _ => self.shared.set_state(state),
        }
        Ok(())
    }

    /// Raises `SQ_DRAINED` if the event was requested and all started sends are complete.
    pub(super) fn report_drained(&mut self) {
        if self.draining && !self.requester.is_under_way() {
            self.draining = false;
            self.raise(EventKind::SqDrained);
        }
    }

    fn check(&self, to: &QpAttributes, from: QpState, state: QpState, mask: AttributeMask) -> Result<(), i32> {
        let (device, limits) = (&self.shared.device, self.shared.device.limits);
        check_transition(self.kind(), from, state, mask).map_err(|_| libc::EINVAL)?;
        let ended = device.has_quirk(SoftQuirk::ResetIsFinal) && self.was_reset && state == QpState::Init;
        if device.refused_change == Some((from, state)) || ended {
            return Err(libc::EINVAL);
        }
        let max_rd_atomic = u32::from(limits.max_rd_atomic);
        let path_is_good = |path: &Path| device.is_valid_path(path) && !(path.global && is_multicast(path.gid));
        let known = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let rules = [
            (AttributeMask::CUR_STATE, to.current_state == from),
            (AttributeMask::PORT, to.port == 1),
            (AttributeMask::PKEY_INDEX, device.port.pkey(to.pkey_index).is_some() || self.is_rxe()),
            (AttributeMask::ACCESS_FLAGS, (known | Access::MW_BIND).contains(to.access)),
            (AttributeMask::AV, path_is_good(&to.path)),
            (AttributeMask::PATH_MTU, (1..=5).contains(&to.path_mtu) && 128 << to.path_mtu <= device.path_mtu()),
            (AttributeMask::DEST_QPN, to.dest_qp.0 <= 0xff_ffff),
            (AttributeMask::RQ_PSN, to.rq_psn <= PSN),
            (AttributeMask::SQ_PSN, to.sq_psn <= PSN),
            (AttributeMask::MAX_QP_RD_ATOMIC, u32::from(to.max_rd_atomic) <= max_rd_atomic),
            (AttributeMask::MAX_DEST_RD_ATOMIC, u32::from(to.max_dest_rd_atomic) <= max_rd_atomic),
            (AttributeMask::TIMEOUT, to.timeout < 32),
            (AttributeMask::MIN_RNR_TIMER, to.min_rnr_timer < 32),
            (AttributeMask::RETRY_CNT, to.retry_count < 8),
            (AttributeMask::RNR_RETRY, to.rnr_retry < 8),
            // Alternate paths are not supported.
            (AttributeMask::ALT_PATH, false),
            (AttributeMask::PATH_MIG_STATE, false),
        ];
        if rules.iter().any(|(of, holds)| mask.contains(*of) && !holds) {
            return Err(libc::EINVAL);
        }
        // Q_Keys with the top bit set are privileged.
        let privileged = mask.contains(AttributeMask::QKEY) && to.qkey >> 31 == 1;
        if privileged && device.faults.no_net_raw { Err(libc::EPERM) } else { Ok(()) }
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

    /// Posts receives. An error contains the number of accepted receives and the `errno`.
    pub(super) fn post_receives(
        &mut self,
        receives: impl Iterator<Item = Receive>,
        ctx: &mut FabricContext<'_>,
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
                self.flush_receives(ctx);
            }
        }
        Ok(())
    }

    /// Returns the number of used entries of the receive queue. With rxe, an entry becomes free when a message takes
    /// the receive. Otherwise, an entry becomes free when the receive's completion is polled.
    fn receives_outstanding(&self) -> usize {
        match self.is_rxe() {
            true => self.receives.len(),
            false => (self.receives_posted - self.shared.polled.load(Ordering::Relaxed)) as usize,
        }
    }

    /// Adds a send that [`super::connection`] has checked.
    pub(super) fn push_send(&mut self, mut send: Send, ctx: &mut FabricContext<'_>) {
        self.requester.posted += 1;
        send.number = self.requester.posted;
        self.requester.queue.push_back(send);
        if matches!(self.state(), QpState::Err | QpState::Sqe) {
            self.flush_sends(ctx);
        }
    }
}
