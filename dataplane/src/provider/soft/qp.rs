//! Queue pairs: the handle that a worker holds, and what it shares with its completion queues.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crate::error::VerbError;
use crate::mem::{Run, SlotLayout};
use crate::provider::soft::counters::Counting;
use crate::provider::soft::cq::{Attached, CqCore, CqShared, SoftCq};
use crate::provider::soft::device::Shared;
use crate::provider::soft::engine::{QpCore, Short};
use crate::provider::soft::fabric::{Connection, Fabric, SoftSrq};
use crate::provider::soft::handle::SoftAh;
use crate::provider::soft::home::{Home, Use};
use crate::provider::soft::inbox::Inbox;
use crate::provider::soft::memory::SoftMr;
use crate::provider::soft::window::SoftMw;
use crate::provider::{
    AttributeMask, Capability, Destination, MwBind, PostError, QpAttributes, QpCaps, QpSpec, QpState, QpType,
    QueuePair, RecvRequest, SendRequest, check_transition,
};
use crate::units::{Gid, QpNum};

/// What the owner of a queue pair and its completion queues share.
#[derive(Debug)]
pub(super) struct QpShared {
    pub(super) number: QpNum,
    pub(super) kind: QpType,
    state: AtomicU32,
    /// Sends that are over and whose completion, or a later one, was polled; counted from RESET.
    pub(super) released: AtomicU64,
    /// Receives on a fabric whose completion was polled; counted from RESET.
    pub(super) polled: AtomicU64,
    pub(super) counts: Counting,
    pub(super) device: Arc<Shared>,
    /// What carries raw packets; `None`: it is on a fabric.
    pub(super) home: Option<Home<QpCore>>,
}

impl QpShared {
    #[inline]
    pub(super) fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Relaxed))
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state.raw(), Ordering::Relaxed);
    }

    /// Works at what carries raw packets. `None`: it has none, or it is another thread's.
    #[inline]
    pub(super) fn with<R>(&self, kind: Use, work: impl FnOnce(&mut QpCore) -> R) -> Option<R> {
        self.home.as_ref()?.with(kind, work)
    }

    /// Goes to ERR, from any state but RESET. Returns whether that is news.
    pub(super) fn fail(&self) -> bool {
        let changes = !matches!(self.state(), QpState::Reset | QpState::Err);
        if changes {
            self.set_state(QpState::Err);
        }
        changes
    }
}

/// A queue pair of a software device.
#[derive(Debug)]
pub struct SoftQp {
    pub(super) shared: Arc<QpShared>,
    /// `None`: it carries raw packets.
    connection: Option<Connection>,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    caps: QpCaps,
    /// One worker's: not to be shared.
    alone: PhantomData<Cell<()>>,
}

impl SoftQp {
    /// Makes one of a checked spec: of raw packets without a fabric, of anything else on one.
    pub(super) fn new(
        device: &Arc<Shared>,
        pd: u32,
        spec: &QpSpec,
        [send, recv]: [&SoftCq; 2],
        fabric: Option<&Arc<Fabric>>,
        srq: Option<&SoftSrq>,
    ) -> Self {
        let number = QpNum(device.number());
        let shared = Arc::new(QpShared {
            number,
            kind: spec.kind,
            state: AtomicU32::new(QpState::Reset.raw()),
            released: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            counts: Counting::default(),
            device: device.clone(),
            home: fabric.is_none().then(|| Home::new(QpCore::new(device, pd, spec))),
        });
        let inboxes: [&Arc<Inbox>; 2] = [&send.0.inbox, &recv.0.inbox];
        let connection = fabric.map(|fabric| Connection::new(fabric, &shared, pd, spec, inboxes, srq));
        let (send_cq, recv_cq) = (send.0.clone(), recv.0.clone());
        let qp = Self { shared, connection, send_cq, recv_cq, caps: spec.caps, alone: PhantomData };
        let one = Arc::ptr_eq(&qp.send_cq, &qp.recv_cq);
        let attach = |receives, sends| Attached { qp: qp.shared.clone(), receives, sends };
        qp.recv_cq.attach(attach(true, one));
        if !one {
            qp.send_cq.attach(attach(false, true));
        }
        qp
    }

    /// Works at the queue pair and its send queue's completions.
    #[inline]
    fn with<R>(&self, work: impl FnOnce(&QpShared, &mut QpCore, &mut CqCore) -> Result<R, Short>) -> Result<R, Short> {
        let shared = &*self.shared;
        if shared.device.is_gone() {
            return Err(Short::by_all(libc::EIO));
        }
        let inside = |core: &mut QpCore| self.send_cq.home.with(Use::Visit, |cq| work(shared, core, cq));
        match shared.with(Use::Visit, inside) {
            Some(Some(result)) => result,
            // Another thread lives there.
            _ => Err(Short::by_all(libc::EBUSY)),
        }
    }

    /// Works at the queue pair alone.
    #[inline]
    fn with_core<R>(&self, work: impl FnOnce(&QpShared, &mut QpCore) -> Result<R, Short>) -> Result<R, Short> {
        if self.shared.device.is_gone() {
            return Err(Short::by_all(libc::EIO));
        }
        self.shared.with(Use::Visit, |core| work(&self.shared, core)).unwrap_or(Err(Short::by_all(libc::EBUSY)))
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.attachments.change(|list| list.retain(|other| !Arc::ptr_eq(&other.qp, &self.shared)));
        }
        // No frame is for it any more. If it is another thread's, its wire closes when that thread lets go.
        self.shared.with(Use::Visit, |core| core.reset(&self.shared.counts));
        let mut queues = self.shared.device.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.live.retain(|qp| !std::ptr::eq(qp.as_ptr(), &*self.shared));
        queues.retired.add(&self.shared.counts.read());
    }
}

impl QueuePair for SoftQp {
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
                return Err(Short::by_all(libc::EINVAL));
            }
            shared.set_state(to);
            match to {
                QpState::Reset => {
                    core.reset(&shared.counts);
                    shared.released.store(0, Ordering::Relaxed);
                    cq.purge(shared.number);
                }
                QpState::Rtr if from != QpState::Rtr => {
                    if let Err(errno) = core.open() {
                        shared.set_state(from);
                        return Err(Short::by_all(errno));
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
            let purged = self.recv_cq.home.with(Use::Visit, |cq| cq.purge(self.shared.number));
            return purged.ok_or(VerbError::new(VERB, libc::EBUSY));
        }
        Ok(())
    }

    /// Memory is touched by who posts and polls alone: without the queue pair nobody has it.
    fn destroy(self) -> Result<(), VerbError> {
        Ok(())
    }

    fn bind_slots(&mut self, mr: &SoftMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError> {
        if let Some(connection) = &mut self.connection {
            return connection.bind(mr, layout, recv_wr_id).map_err(|errno| VerbError::new("bind_slots", errno));
        }
        let bound = self.with_core(|_, core| core.bind(mr, layout, recv_wr_id).map_err(Short::by_all));
        bound.map_err(|refused| VerbError::new("bind_slots", refused.errno))
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_recv(requests);
        }
        self.with_core(|shared, core| core.post_recv(shared, requests)).map_err(|short| short.of("ibv_post_recv"))
    }

    #[inline]
    unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_recv_run(slots);
        }
        self.with_core(|shared, core| core.post_recv_run(shared, slots)).map_err(|short| short.of("ibv_post_recv"))
    }

    unsafe fn post_send(&mut self, requests: &[SendRequest<'_, SoftAh>]) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_send(requests);
        }
        self.with(|shared, core, cq| Ok(core.post_send(shared, cq, requests)))
            .unwrap_or_else(|short| Err(short.of("ibv_post_send")))
    }

    #[inline]
    unsafe fn post_send_run(&mut self, run: &Run<'_>, first_wr_id: u64) -> Result<(), PostError> {
        if let Some(connection) = &self.connection {
            return connection.post_send_run(run.descs(), first_wr_id);
        }
        self.with(|shared, core, cq| core.post_send_run(shared, cq, run, first_wr_id))
            .map_err(|short| short.of("ibv_post_send"))
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
        let lacks = !self.shared.device.has(Capability::Multicast);
        let attached = match &self.connection {
            _ if lacks => Err(libc::EOPNOTSUPP),
            Some(connection) => connection.attach(group),
            None => Err(libc::EINVAL),
        };
        attached.map_err(|errno| VerbError::new("ibv_attach_mcast", errno))
    }

    fn detach_multicast(&mut self, group: Gid, _: u16) -> Result<(), VerbError> {
        let detached = self.connection.as_ref().map_or(Err(libc::EINVAL), |connection| connection.detach(group));
        detached.map_err(|errno| VerbError::new("ibv_detach_mcast", errno))
    }

    fn sends_at_once(&self) -> bool {
        self.connection.is_none() && !self.shared.device.link.lends()
    }

    fn source_ended(&self) -> bool {
        self.shared.with(Use::Visit, |core| core.ended()).unwrap_or(false)
    }
}
