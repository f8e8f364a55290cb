//! Queue pairs: making them, changing their state, ending them. [`super::post`] posts to them.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_wq,
};

use super::ah::VerbsAh;
use super::attr::{mtu_bytes, qp_attr, qp_attributes};
use super::builder::{self, Builder};
use super::context::{Context, Limits, ended};
use super::cq::{Handle as CqHandle, SUSPECT, VerbsCq};
use super::domain::{VerbsMr, VerbsPd};
use super::ffi;
use super::post::Scratch;
use super::quirk::Quirk;
use super::raw::{Offload, RateLimit, RawQueue};
use super::rss::WorkQueue;
use super::srq::VerbsSrq;
use super::window::VerbsMw;
use crate::error::VerbError;
use crate::mem::{Run, SlotLayout};
use crate::provider::{
    AttributeMask, Destination, MwBind, PostError, QpAttributes, QpCaps, QpSpec, QpState, QpType, QueuePair,
    RecvRequest, SendApi, SendRequest, check_transition,
};
use crate::units::{Gid, QpNum};

/// A queue pair of a device.
pub struct VerbsQp {
    /// Taken out only when it is dropped.
    body: Option<QpBody>,
    pub(super) kind: QpType,
    pub(super) caps: QpCaps,
    /// What is known of the state, and whether that is in doubt.
    state: Arc<AtomicU32>,
    /// The same queue pair as one that builds requests, and for which operations.
    pub(super) builder: Option<Builder>,
    /// The port that it is on, once that is set.
    port: u8,
    /// The longest message in bytes, once the port is known.
    pub(super) most: u32,
    /// Whether reads and atomics may be under way.
    pub(super) may_read: bool,
    /// Of raw packets: what sends may ask of the device.
    pub(super) offload: Offload,
    /// Where receives of raw packets are posted, if not to the queue pair itself.
    pub(super) wq: Option<NonNull<ibv_wq>>,
    pub(super) scratch: Scratch,
    /// One worker's: not to be shared.
    alone: PhantomData<Cell<()>>,
}

// SAFETY: the queue pair is used by its owner alone, by `&mut`; the lists that it posts from are its own. Where its
// completion queues have no lock, their owner is asked before each call.
unsafe impl Send for VerbsQp {}

/// The queue pair itself, with all that must outlive it.
pub(super) struct QpBody {
    raw: NonNull<ibv_qp>,
    state: Arc<AtomicU32>,
    send: Arc<CqHandle>,
    recv: Arc<CqHandle>,
    srq: Option<VerbsSrq>,
    /// The domain that it was created in: that for one thread where there is one.
    pub(super) pd: VerbsPd,
    /// The groups of multicast that it is in: it cannot end before it has left them.
    groups: Vec<(Gid, u16)>,
    /// Of raw packets: the rules that bring frames here, and where those are received.
    pub(super) raw_queue: Option<RawQueue>,
}

// SAFETY: as of `VerbsQp`.
unsafe impl Send for QpBody {}

impl QpBody {
    fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Destroys the queue pair. If another thread polls one of its queues, and that has no lock, it is stopped, and
    /// destroyed when that queue is polled no more.
    ///
    /// # Errors
    /// As the verb, which is in the log; `EBUSY`: it is not destroyed yet.
    pub(super) fn end(mut self) -> Result<(), VerbError> {
        let queues = [self.send.clone(), self.recv.clone()];
        let mut visits = Vec::new();
        for queue in &queues {
            // The list is locked so that polling does not end in between.
            let mut graves = queue.graves();
            match queue.owner.visit() {
                Some(visit) => visits.push(visit),
                None => {
                    let mut attr = ibv_qp_attr { qp_state: QpState::Err.raw(), ..Default::default() };
                    // SAFETY: the queue pair is alive. Going to ERR concerns no completion queue on this side.
                    let stopped = unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &mut attr, STATE) };
                    if let Err(error) = stopped.and_then(|()| self.follow(0, QpState::Err)) {
                        tracing::warn!(device = self.context().name, "{error}");
                    }
                    graves.push(self);
                    return Err(VerbError::new("ibv_destroy_qp", libc::EBUSY));
                }
            }
        }
        self.destroy()
    }

    /// Takes what receives raw packets along into a state, once the queue pair is there.
    fn follow(&mut self, port: u8, state: QpState) -> Result<(), VerbError> {
        let Some(raw_queue) = &mut self.raw_queue else { return Ok(()) };
        // SAFETY: it is of this queue pair, which is alive.
        let followed = unsafe { raw_queue.follow(self.raw, port, state) };
        followed.map_err(|error| error.into_verb_error(&self.pd.context().name))
    }

    /// The queues let this thread in.
    fn destroy(mut self) -> Result<(), VerbError> {
        // Nothing may come any more before the end.
        drop(self.raw_queue.take());
        let name = &self.context().name;
        for (group, lid) in &self.groups {
            let gid = ibv_gid { raw: group.0 };
            // SAFETY: the queue pair is alive, and in that group.
            ended(unsafe { ffi::ibv_detach_mcast(self.raw.as_ptr(), &gid, *lid) }, name);
        }
        for queue in [&self.send, &self.recv] {
            queue.detach(&self.state);
        }
        // SAFETY: this is the only owner. Its events are acknowledged as soon as they are taken.
        let destroyed = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
        ended(destroyed, name);
        destroyed
    }
}

const STATE: c_int = AttributeMask::STATE.bits().cast_signed();

impl Drop for VerbsQp {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            // What failed is in the log.
            let _ = body.end();
        }
    }
}

impl fmt::Debug for VerbsQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsQp").field("number", &self.number()).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl VerbsQp {
    pub(super) fn create(
        pd: &VerbsPd,
        spec: &QpSpec,
        send: &VerbsCq,
        recv: &VerbsCq,
        srq: Option<&VerbsSrq>,
    ) -> Result<Self, VerbError> {
        const VERB: &str = "ibv_create_qp";
        let context = pd.context();
        let refuse = |errno| Err(VerbError::new(VERB, errno));
        if !matches!(spec.kind, QpType::Rc | QpType::Uc | QpType::Ud | QpType::RawPacket) {
            return refuse(libc::EOPNOTSUPP);
        }
        if spec.queue != (0, 1) && (spec.kind != QpType::RawPacket || srq.is_some()) {
            return refuse(libc::EOPNOTSUPP);
        }
        let limits = &context.limits.attr.orig_attr;
        let (most_wr, most_sge) = (Limits::count(limits.max_qp_wr), Limits::count(limits.max_sge));
        let caps = spec.caps;
        let ours = Arc::ptr_eq(send.handle.context(), context)
            && Arc::ptr_eq(recv.handle.context(), context)
            && srq.is_none_or(|srq| srq.pd().is(pd));
        if caps.send_depth.max(caps.recv_depth) > most_wr || caps.send_sges.max(caps.recv_sges) > most_sge || !ours {
            return refuse(libc::EINVAL);
        }
        // Who asked for a queue without a lock said that one thread uses it, and so its queue pairs.
        let alone = send.is_single_threaded() && recv.is_single_threaded();
        let own = if alone { pd.for_one_thread().ok() } else { None };
        let pd = own.as_ref().unwrap_or(pd);
        let visits = (send.handle.owner.visit(), recv.handle.owner.visit());
        if visits.0.is_none() || visits.1.is_none() {
            return refuse(libc::EBUSY);
        }
        let raw_queue = match spec.kind {
            QpType::RawPacket => Some(raw_queue(pd, recv, spec)?),
            _ => None,
        };
        let wq = raw_queue.as_ref().and_then(RawQueue::work_queue);
        // Receives go elsewhere.
        let elsewhere = srq.is_some() || wq.is_some();
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: ptr::null_mut(),
            send_cq: send.handle.raw(),
            recv_cq: recv.handle.raw(),
            srq: srq.map_or(ptr::null_mut(), VerbsSrq::raw),
            cap: ibv_qp_cap {
                max_send_wr: caps.send_depth,
                max_recv_wr: if elsewhere { 0 } else { caps.recv_depth },
                max_send_sge: caps.send_sges,
                max_recv_sge: if elsewhere { 0 } else { caps.recv_sges },
                max_inline_data: caps.inline,
            },
            qp_type: spec.kind.raw(),
            sq_sig_all: spec.signal_all.into(),
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd: pd.raw(),
            ..Default::default()
        };
        if let Some(raw_queue) = &raw_queue {
            raw_queue.prepare(&mut attr);
        }
        let (raw, builder) = match spec.send_api {
            // SAFETY: domain and queues are alive, and of one device.
            SendApi::Classic => (unsafe { ffi::ibv_create_qp_ex(context.raw(), &mut attr) }?, None),
            SendApi::Extended => {
                attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
                // SAFETY: as above.
                let (raw, builder) = unsafe { builder::create(context, &mut attr, spec.kind) }?;
                (raw, Some(builder))
            }
        };
        let (recv_depth, recv_sges) = match wq {
            Some(wq) => (wq.spec().depth, wq.spec().sges),
            None => (attr.cap.max_recv_wr, attr.cap.max_recv_sge),
        };
        let offload = raw_queue.as_ref().map(RawQueue::offload).unwrap_or_default();
        let receives = wq.map(WorkQueue::as_ptr);
        let caps = QpCaps {
            send_depth: attr.cap.max_send_wr.max(caps.send_depth),
            recv_depth: if srq.is_some() { 0 } else { recv_depth.max(caps.recv_depth) },
            send_sges: attr.cap.max_send_sge.max(caps.send_sges),
            recv_sges: if srq.is_some() { 0 } else { recv_sges.max(caps.recv_sges) },
            inline: attr.cap.max_inline_data.max(caps.inline),
        };
        let state = Arc::new(AtomicU32::new(QpState::Reset.raw()));
        let body = QpBody {
            raw,
            state: state.clone(),
            send: send.handle.clone(),
            recv: recv.handle.clone(),
            srq: srq.cloned(),
            pd: pd.clone(),
            groups: Vec::new(),
            raw_queue,
        };
        let qp = Self {
            body: Some(body),
            kind: spec.kind,
            caps,
            state,
            builder,
            port: 0,
            most: 0,
            may_read: false,
            offload,
            wq: receives,
            scratch: Scratch::new(&caps, offload.run_flags),
            alone: PhantomData,
        };
        send.handle.attach(qp.number(), &qp.state);
        if !Arc::ptr_eq(&send.handle, &recv.handle) {
            recv.handle.attach(qp.number(), &qp.state);
        }
        Ok(qp)
    }

    pub(super) fn body(&self) -> &QpBody {
        self.body.as_ref().expect("it is taken out only when the queue pair is dropped")
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.body().raw.as_ptr()
    }

    /// Whether it takes its receives from a shared queue.
    #[inline]
    pub(super) fn shares_receives(&self) -> bool {
        self.body().srq.is_some()
    }

    /// Lets this thread at the driver's structures of the sends, or says why not.
    #[inline]
    pub(super) fn send_queue(&self) -> &CqHandle {
        &self.body().send
    }

    /// The same of the receives.
    #[inline]
    pub(super) fn recv_queue(&self) -> &CqHandle {
        &self.body().recv
    }

    /// The state that was set last, whatever has come of it since.
    #[inline]
    pub(super) fn known_state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Relaxed) & !SUSPECT)
    }

    fn set_state(&self, state: QpState) {
        self.state.store(state.raw(), Ordering::Relaxed);
    }

    /// Nobody knows what the driver holds: everything is flushed.
    #[cold]
    pub(super) fn give_up(&mut self) {
        let mut attr = ibv_qp_attr { qp_state: QpState::Err.raw(), ..Default::default() };
        // SAFETY: the queue pair is alive.
        if let Err(error) = unsafe { ffi::ibv_modify_qp(self.raw(), &mut attr, STATE) } {
            tracing::error!(device = self.body().context().name, qp = self.number().0, "{error}");
        }
        if let Err(error) = self.body_mut().follow(0, QpState::Err) {
            tracing::error!(device = self.body().context().name, qp = self.number().0, "{error}");
        }
        self.set_state(QpState::Err);
    }

    /// Has receives flushed that were posted to a queue pair in ERR, where the driver does not look at them by itself.
    #[cold]
    pub(super) fn remind(&self) {
        if self.body().context().quirks.why(Quirk::SilentFlush).is_none() {
            return;
        }
        let mut attr = ibv_qp_attr { qp_state: QpState::Err.raw(), ..Default::default() };
        // SAFETY: the queue pair is alive, and stays in the state that it is in.
        if let Err(error) = unsafe { ffi::ibv_modify_qp(self.raw(), &mut attr, STATE) } {
            tracing::warn!(device = self.body().context().name, qp = self.number().0, "{error}");
        }
    }

    fn ask(&self) -> Result<QpAttributes, VerbError> {
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        let all = AttributeMask::all() - AttributeMask::RATE_LIMIT;
        // SAFETY: the queue pair is alive; the structures are there to be written.
        unsafe { ffi::ibv_query_qp(self.raw(), &mut attr, all.bits().cast_signed(), &mut init) }?;
        Ok(qp_attributes(&attr))
    }

    /// What the device would only find out later, or never: values that have no such number, and places of tables that do
    /// not exist. rxe takes a partition key's index unseen.
    fn check_attributes(&self, attributes: &QpAttributes, mask: AttributeMask) -> bool {
        let limits = &self.body().context().limits.attr.orig_attr;
        let with = |bit, good: bool| !mask.contains(bit) || good;
        const BITS_24: u32 = 0xff_ffff;
        with(AttributeMask::PORT, (1..=limits.phys_port_cnt).contains(&attributes.port))
            && with(AttributeMask::AV, attributes.path.flow_label >> 20 == 0)
            && with(
                AttributeMask::ALT_PATH,
                (1..=limits.phys_port_cnt).contains(&attributes.alternate_path.port)
                    && attributes.alternate_path.flow_label >> 20 == 0
                    && attributes.alternate_timeout < 32,
            )
            && with(AttributeMask::PATH_MIG_STATE, attributes.path_migration <= 2)
            && with(AttributeMask::PATH_MTU, mtu_bytes(attributes.path_mtu.into()).is_some())
            && with(AttributeMask::DEST_QPN, attributes.dest_qp.0 <= BITS_24)
            && with(AttributeMask::RQ_PSN, attributes.rq_psn <= BITS_24)
            && with(AttributeMask::SQ_PSN, attributes.sq_psn <= BITS_24)
            && with(AttributeMask::TIMEOUT, attributes.timeout < 32)
            && with(AttributeMask::MIN_RNR_TIMER, attributes.min_rnr_timer < 32)
            && with(AttributeMask::RETRY_CNT, attributes.retry_count < 8)
            && with(AttributeMask::RNR_RETRY, attributes.rnr_retry < 8)
            && with(
                AttributeMask::MAX_QP_RD_ATOMIC,
                u32::from(attributes.max_rd_atomic) <= Limits::count(limits.max_qp_init_rd_atom),
            )
            && with(
                AttributeMask::MAX_DEST_RD_ATOMIC,
                u32::from(attributes.max_dest_rd_atomic) <= Limits::count(limits.max_qp_rd_atom),
            )
    }

    /// What the port says that the queue pair is on or comes on, where that is to be known.
    fn ask_port(&self, attributes: &QpAttributes, mask: AttributeMask) -> Result<Option<u32>, VerbError> {
        let port = if mask.contains(AttributeMask::PORT) { attributes.port } else { self.port };
        let new_place = mask.intersects(AttributeMask::PORT | AttributeMask::PKEY_INDEX);
        let connects = mask.contains(AttributeMask::STATE) && attributes.state == QpState::Rtr;
        if port == 0 || !(new_place || connects) {
            return Ok(None);
        }
        // SAFETY: the context is open.
        let attr = unsafe { ffi::ibv_query_port(self.body().context().raw(), port) }?;
        if mask.contains(AttributeMask::PKEY_INDEX) && attributes.pkey_index >= attr.pkey_tbl_len {
            return Err(VerbError::new("ibv_modify_qp", libc::EINVAL));
        }
        Ok(Some(match self.kind {
            QpType::Ud => mtu_bytes(attr.active_mtu).unwrap_or(0),
            // A frame may be as long as its network device lets it be; the device says so when it is longer.
            QpType::RawPacket => u32::MAX,
            _ => attr.max_msg_sz,
        }))
    }
}

#[allow(unsafe_code)]
impl QueuePair for VerbsQp {
    type Mr = VerbsMr;
    type Ah = VerbsAh;
    type Mw = VerbsMw;

    fn number(&self) -> QpNum {
        // SAFETY: the queue pair is alive, and its number does not change.
        QpNum(unsafe { (*self.raw()).qp_num })
    }

    fn kind(&self) -> QpType {
        self.kind
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    #[inline]
    fn state(&self) -> QpState {
        let known = self.state.load(Ordering::Relaxed);
        if known & SUSPECT == 0 {
            return QpState::from_raw(known);
        }
        // A completion failed. Not every failure stops a queue pair, and some stop only its sends.
        let state = self.ask().map_or(QpState::Err, |attributes| attributes.state);
        self.set_state(state);
        if state == QpState::Err {
            self.remind();
        }
        state
    }

    fn query(&self) -> Result<QpAttributes, VerbError> {
        let attributes = self.ask()?;
        self.set_state(attributes.state);
        Ok(attributes)
    }

    fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError> {
        const VERB: &str = "ibv_modify_qp";
        let from = self.state();
        let to = if mask.contains(AttributeMask::STATE) { attributes.state } else { from };
        if check_transition(self.kind, from, to, mask).is_err() || !self.check_attributes(attributes, mask) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        let most = self.ask_port(attributes, mask)?;
        let queues = [self.body().send.clone(), self.body().recv.clone()];
        let visits = queues.each_ref().map(|queue| queue.owner.visit());
        if visits.iter().any(Option::is_none) {
            return Err(VerbError::new(VERB, libc::EBUSY));
        }
        // SAFETY: the queue pair is alive, and its queues let this thread in.
        unsafe { ffi::ibv_modify_qp(self.raw(), &mut qp_attr(attributes), mask.bits().cast_signed()) }?;
        if mask.contains(AttributeMask::PORT) {
            self.port = attributes.port;
        }
        let port = self.port;
        let followed = self.body_mut().follow(port, to);
        drop(visits);
        self.most = most.unwrap_or(self.most);
        if mask.contains(AttributeMask::MAX_QP_RD_ATOMIC) {
            self.may_read = attributes.max_rd_atomic > 0;
        }
        if to == QpState::Reset {
            self.may_read = false;
            self.scratch.forget();
        }
        self.set_state(to);
        followed
    }

    fn destroy(mut self) -> Result<(), VerbError> {
        self.body.take().map_or(Ok(()), QpBody::end)
    }

    fn bind_slots(&mut self, mr: &VerbsMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError> {
        self.scratch.bind_slots(mr, layout, recv_wr_id)
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.recv_list(requests) }
    }

    #[inline]
    unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.recv_run(slots) }
    }

    unsafe fn post_send(&mut self, requests: &[SendRequest<'_, VerbsAh>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.send_list(requests) }
    }

    fn bind_mw(&mut self, mw: &mut VerbsMw, bind: &MwBind<'_, VerbsMr>) -> Result<(), PostError> {
        self.bind_window(mw, bind)
    }

    fn bind_peer(&mut self, to: Destination<'_, VerbsAh>) -> Result<(), VerbError> {
        if self.kind != QpType::Ud || !to.ah.pd().is(&self.body().pd) {
            return Err(VerbError::new("bind_peer", libc::EINVAL));
        }
        self.scratch.bind_peer(to);
        Ok(())
    }

    fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        if self.kind != QpType::Ud {
            return Err(VerbError::new("ibv_attach_mcast", libc::EINVAL));
        }
        // SAFETY: the queue pair is alive.
        unsafe { ffi::ibv_attach_mcast(self.raw(), &ibv_gid { raw: group.0 }, lid) }?;
        self.groups().push((group, lid));
        Ok(())
    }

    fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        let place = self.groups().iter().position(|other| *other == (group, lid));
        let place = place.ok_or(VerbError::new("ibv_detach_mcast", libc::EINVAL))?;
        // SAFETY: the queue pair is alive.
        unsafe { ffi::ibv_detach_mcast(self.raw(), &ibv_gid { raw: group.0 }, lid) }?;
        self.groups().swap_remove(place);
        Ok(())
    }

    #[inline]
    unsafe fn post_send_run(&mut self, run: &Run<'_>, first_wr_id: u64) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.send_run(run.descs(), first_wr_id) }
    }
}

impl VerbsQp {
    fn body_mut(&mut self) -> &mut QpBody {
        self.body.as_mut().expect("it is taken out only when the queue pair is dropped")
    }

    fn groups(&mut self) -> &mut Vec<(Gid, u16)> {
        &mut self.body_mut().groups
    }

    /// Lets the device keep sends to a rate. Of raw packets, in state RTS.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it cannot. `EINVAL`: not to this rate, or not in this state.
    pub fn set_rate_limit(&mut self, limit: RateLimit) -> Result<(), VerbError> {
        if self.kind != QpType::RawPacket || self.state() != QpState::Rts {
            return Err(VerbError::new("ibv_modify_qp_rate_limit", libc::EINVAL));
        }
        let context = self.body().context();
        // SAFETY: the queue pair is alive.
        let set = unsafe { limit.set(self.raw(), &context.raw_caps()) };
        set.map_err(|error| error.into_verb_error(&context.name))
    }
}

/// How a queue pair of raw packets is going to receive.
fn raw_queue(pd: &VerbsPd, recv: &VerbsCq, spec: &QpSpec) -> Result<RawQueue, VerbError> {
    let context = pd.context();
    let sizes = (spec.caps.recv_depth, spec.caps.recv_sges);
    let (ports, raw) = (&context.raw_ports, (pd.raw_spec(), context.raw_caps()));
    // SAFETY: domain and completion queue are alive and of the context; the queue pair holds them until it is gone.
    let made = unsafe { RawQueue::create(context.raw(), pd.raw(), recv.handle.raw(), ports, raw, spec.queue, sizes) };
    made.map_err(|error| error.into_verb_error(&context.name))
}
