//! Queue pairs: the handle that a worker holds.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::counters::Counting;
use crate::cq::{CqShared, SoftCq};
use crate::cq_core::{Attached, CqCore};
use crate::engine::PartialPost;
use crate::fabric::{Connection, Fabric, SoftSrq};
use crate::handle::SoftAh;
use crate::inbox::Inbox;
use crate::memory::SoftMr;
use crate::mw::SoftMw;
use crate::nic::RawSettings;
use crate::numbers::Identity;
use crate::open_device::OpenDevice;
use crate::qp_shared::QpShared;
use crate::quirk::SoftQuirk;
use crate::raw::QpCore;
use crate::thread_cell::ThreadCell;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Run, SlotLayout};
use dataplane_core::units::{Gid, QpNum};
use dataplane_core::verbs::{
    AttributeMask, Capability, Claim, Destination, MwBind, PostError, QpAttributes, QpCaps, QpSpec, QpState, QpType,
    QueuePair, RecvRequest, SendFlags, SendOp, SendRequest, check_transition,
};

/// A queue pair of a software device.
#[derive(Debug)]
pub struct SoftQp {
    device: Arc<OpenDevice>,
    pub(super) shared: Arc<QpShared>,
    /// The state of a raw-packet queue pair. `None` for connections and datagrams, which use the fabric.
    core: Option<Arc<ThreadCell<QpCore>>>,
    /// The state on the fabric (the shared state machine of connections and datagrams). `None` for a raw-packet queue
    /// pair.
    connection: Option<Connection>,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    caps: QpCaps,
    /// Makes the type `!Sync`: only one worker uses the queue pair.
    not_sync: PhantomData<Cell<()>>,
}

impl SoftQp {
    /// Returns `true` if the post of a request fails because of an unusual property of the device.
    fn refuses(&self, request: &SendRequest<'_, SoftAh>) -> bool {
        if self.kind() != QpType::Ud {
            return false;
        }
        let has = |quirk| self.shared.device.has_quirk(quirk);
        let is_send = matches!(request.op, SendOp::Send | SendOp::SendWithImm(_));
        has(SoftQuirk::RefusesUdOperations) && !is_send
            || has(SoftQuirk::RefusesUnsignalled) && !request.flags.contains(SendFlags::SIGNALED)
    }

    /// Creates a queue pair. The caller has checked `spec`. A raw-packet queue pair has no `fabric`.
    pub(super) fn new(
        device: &Arc<OpenDevice>,
        pd: Identity,
        spec: &QpSpec,
        [send, recv]: [&SoftCq; 2],
        fabric: Option<&Arc<Fabric>>,
        srq: Option<&SoftSrq>,
        raw: &RawSettings,
    ) -> Self {
        let number = device.shared.number();
        let shared = Arc::new(QpShared {
            number: QpNum(number.get()),
            _number: number,
            identity: Identity::new(),
            kind: spec.kind,
            state: AtomicU32::new(QpState::Reset.raw()),
            released: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            paced: fabric.is_none() && raw.spec.rate.is_some_and(|rate| rate.kbps > 0),
            counts: Counting::default(),
            device: device.shared.clone(),
        });
        let core =
            fabric.is_none().then(|| Arc::new(ThreadCell::new(QpCore::new(device, pd, spec, raw, recv.0.fields))));
        let inboxes: [&Arc<Inbox>; 2] = [&send.0.inbox, &recv.0.inbox];
        let connection = fabric.map(|fabric| Connection::new(fabric, &shared, pd, spec, inboxes, srq));
        let (send_cq, recv_cq) = (send.0.clone(), recv.0.clone());
        let (device, caps) = (device.clone(), spec.caps);
        let qp = Self { device, shared, core, connection, send_cq, recv_cq, caps, not_sync: PhantomData };
        let one = Arc::ptr_eq(&qp.send_cq, &qp.recv_cq);
        let attach = |receives, sends| Attached { qp: qp.shared.clone(), core: qp.core.clone(), receives, sends };
        qp.recv_cq.attach(attach(true, one));
        if !one {
            qp.send_cq.attach(attach(false, true));
        }
        qp
    }

    /// Runs `work` on the queue pair and its send completion queue.
    #[inline]
    fn with<R>(
        &self,
        work: impl FnOnce(&QpShared, &mut QpCore, &mut CqCore) -> Result<R, PartialPost>,
    ) -> Result<R, PartialPost> {
        let shared = &*self.shared;
        if shared.device.is_gone() {
            return Err(PartialPost::none_accepted(libc::EIO));
        }
        let inside = |core: &mut QpCore| self.send_cq.core.with(Claim::Temporary, |cq| work(shared, core, cq));
        match self.claim(inside) {
            Some(Some(result)) => result,
            // Another thread owns the queue pair or the completion queue.
            _ => Err(PartialPost::none_accepted(libc::EBUSY)),
        }
    }

    /// Runs `work` on the queue pair, without its completion queue.
    #[inline]
    fn with_core<R>(
        &self,
        work: impl FnOnce(&QpShared, &mut QpCore) -> Result<R, PartialPost>,
    ) -> Result<R, PartialPost> {
        if self.shared.device.is_gone() {
            return Err(PartialPost::none_accepted(libc::EIO));
        }
        self.claim(|core| work(&self.shared, core)).unwrap_or(Err(PartialPost::none_accepted(libc::EBUSY)))
    }

    /// Runs `work` on the state of a raw-packet queue pair. Returns `None` if the queue pair is not for raw packets, or
    /// if another thread owns the state.
    #[inline]
    fn claim<R>(&self, work: impl FnOnce(&mut QpCore) -> R) -> Option<R> {
        self.core.as_ref()?.with(Claim::Temporary, work)
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.attachments.change(|list| list.retain(|other| !Arc::ptr_eq(&other.qp, &self.shared)));
        }
        // Close the wire, so that no more frames are delivered to this queue pair. If another thread owns the state,
        // the claim fails, and the wire is closed when the last reference to the state is dropped. `reset` fails if
        // hardware may still write to the slots. The state then keeps the memory of the slots mapped.
        let _ = self.claim(|core| core.reset(&self.shared.counts));
        self.device.queues.retire(&self.shared);
    }
}

// SAFETY: this process executes the requests in the queues of the queue pair. RESET and `destroy` empty these queues or
// return an error. `drop` empties these queues, or the state keeps the memory mapped until the last reference to the
// state is dropped. Each request holds or looks up the registration of its memory, and the registration checks the
// bounds.
unsafe impl QueuePair for SoftQp {
    type Mr = SoftMr;
    type Ah = SoftAh;
    type Mw = SoftMw;

    fn number(&self) -> QpNum {
        self.shared.number
    }

    fn kind(&self) -> QpType {
        self.shared.kind
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    fn state(&self) -> QpState {
        self.shared.state()
    }

    fn query(&self) -> Result<QpAttributes, VerbError> {
        if let Some(connection) = &self.connection {
            return connection.query().map_err(|errno| VerbError::new("ibv_query_qp", errno));
        }
        let state = self.shared.state();
        Ok(QpAttributes { state, current_state: state, ..QpAttributes::default() })
    }

    fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError> {
        const VERB: &str = "ibv_modify_qp";
        if let Some(connection) = &self.connection {
            return connection.modify(attributes, mask).map_err(|errno| VerbError::new(VERB, errno));
        }
        let changed = self.with(|shared, core, cq| {
            let from = shared.state();
            let to = if mask.contains(AttributeMask::STATE) { attributes.state } else { from };
            let valid = check_transition(shared.kind, from, to, mask).is_ok()
                && (!mask.contains(AttributeMask::CUR_STATE) || attributes.current_state == from)
                && (!mask.contains(AttributeMask::PORT) || attributes.port == 1);
            if !valid {
                return Err(PartialPost::none_accepted(libc::EINVAL));
            }
            shared.set_state(to);
            match to {
                QpState::Reset => {
                    if let Err(errno) = core.reset(&shared.counts) {
                        shared.set_state(from);
                        return Err(PartialPost::none_accepted(errno));
                    }
                    shared.released.store(0, Ordering::Relaxed);
                    cq.purge(shared.number);
                }
                QpState::Rtr if from != QpState::Rtr => {
                    let refused = shared.device.has_quirk(SoftQuirk::RefusesFlowRules);
                    let opened = if refused { Err(libc::EOPNOTSUPP) } else { core.open() };
                    if let Err(errno) = opened {
                        shared.set_state(from);
                        return Err(PartialPost::none_accepted(errno));
                    }
                }
                QpState::Rts => core.resume(shared, cq),
                QpState::Err => core.fail(shared, cq),
                _ => {}
            }
            Ok(to)
        });
        let to = changed.map_err(|refused| VerbError::new(VERB, refused.errno))?;
        if to == QpState::Reset && !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            let purged = self.recv_cq.core.with(Claim::Temporary, |cq| cq.purge(self.shared.number));
            return purged.ok_or(VerbError::new(VERB, libc::EBUSY));
        }
        Ok(())
    }

    /// Destroys the queue pair. The software device accesses the memory of a raw-packet queue pair only while a thread
    /// posts or polls. A thread that polls may still have this queue pair in its list, so the call succeeds only if no
    /// other thread owns the queue pair. On a zero-copy link, hardware may access the memory at any time. The call
    /// fails if hardware may still write to the memory.
    fn destroy(self) -> Result<(), VerbError> {
        let reset = match self.core {
            Some(_) => self.claim(|core| core.reset(&self.shared.counts)).unwrap_or(Err(libc::EBUSY)),
            None => Ok(()),
        };
        reset.map_err(|errno| VerbError::new("ibv_destroy_qp", errno))
    }

    fn bind_slots(&mut self, mr: &SoftMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError> {
        if let Some(connection) = &mut self.connection {
            return connection.bind(mr, layout, recv_wr_id).map_err(|errno| VerbError::new("bind_slots", errno));
        }
        let bound = self.with_core(|_, core| core.bind(mr, layout, recv_wr_id).map_err(PartialPost::none_accepted));
        bound.map_err(|refused| VerbError::new("bind_slots", refused.errno))
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_recv(requests);
        }
        self.with_core(|shared, core| core.post_recv(shared, requests))
            .map_err(|short| short.into_error("ibv_post_recv"))
    }

    #[inline]
    unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_recv_run(slots);
        }
        self.with_core(|shared, core| core.post_recv_run(shared, slots))
            .map_err(|short| short.into_error("ibv_post_recv"))
    }

    unsafe fn post_send(&mut self, requests: &[SendRequest<'_, SoftAh>]) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            let Some(at) = requests.iter().position(|request| self.refuses(request)) else {
                return connection.post_send(requests);
            };
            connection.post_send(&requests[..at])?;
            return Err(PostError { accepted: at, error: VerbError::new("ibv_post_send", libc::EINVAL) });
        }
        self.with(|shared, core, cq| Ok(core.post_send(shared, cq, requests)))
            .unwrap_or_else(|short| Err(short.into_error("ibv_post_send")))
    }

    #[inline]
    unsafe fn post_send_run(&mut self, run: &Run<'_>, first_wr_id: u64) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_send_run(run.descs(), first_wr_id);
        }
        self.with(|shared, core, cq| core.post_send_run(shared, cq, run, first_wr_id))
            .map_err(|short| short.into_error("ibv_post_send"))
    }

    fn bind_mw(&mut self, mw: &mut SoftMw, bind: &MwBind<'_, SoftMr>) -> Result<(), PostError> {
        match &self.connection {
            Some(connection) => connection.bind_mw(mw, bind),
            None => Err(PostError { accepted: 0, error: VerbError::new("ibv_bind_mw", libc::EINVAL) }),
        }
    }

    fn bind_peer(&mut self, to: Destination<'_, SoftAh>) -> Result<(), VerbError> {
        let bound = self.connection.as_mut().map_or(Err(libc::EINVAL), |connection| connection.bind_peer(to));
        bound.map_err(|errno| VerbError::new("bind_peer", errno))
    }

    fn attach_multicast(&mut self, group: Gid, _: u16) -> Result<(), VerbError> {
        let unsupported = !self.shared.device.has(Capability::Multicast);
        let attached = match &self.connection {
            _ if unsupported => Err(libc::EOPNOTSUPP),
            Some(connection) => connection.attach(group),
            None => Err(libc::EINVAL),
        };
        attached.map_err(|errno| VerbError::new("ibv_attach_mcast", errno))
    }

    fn detach_multicast(&mut self, group: Gid, _: u16) -> Result<(), VerbError> {
        let detached = self.connection.as_ref().map_or(Err(libc::EINVAL), |connection| connection.detach(group));
        detached.map_err(|errno| VerbError::new("ibv_detach_mcast", errno))
    }

    fn sends_complete_immediately(&self) -> bool {
        self.connection.is_none() && !self.device.link.is_zero_copy() && !self.shared.paced
    }

    fn source_ended(&self) -> bool {
        self.claim(|core| core.ended()).unwrap_or(false)
    }
}
