//! Queue pairs of a worker: their creation, their last known state, and their destruction.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr_ex, ibv_wq,
};

use super::builder::{self, Builder};
use super::context::Limits;
use super::cq::VerbsCq;
use super::domain::VerbsPd;
use super::ffi;
use super::held_log;
use super::lists::PostLists;
use super::queues::{CqHandle, QpBody, STATE, STATE_UNKNOWN};
use super::quirk::Quirk;
use super::raw::{self, Offload};
use super::raw_queue::RawQueue;
use super::rss::WorkQueue;
use super::srq::VerbsSrq;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{Claim, QpCaps, QpSpec, QpState, QpType, SendApi, SendFlags};

/// A queue pair of a device.
pub struct VerbsQp {
    /// `Some` until the queue pair is dropped.
    pub(super) body: Option<QpBody>,
    pub(super) kind: QpType,
    pub(super) caps: QpCaps,
    /// The last known state, with the flag `STATE_UNKNOWN` if the state must be queried again.
    pub(super) state: Arc<AtomicU32>,
    /// The extended send interface, if the queue pair was created with it.
    pub(super) builder: Option<Builder>,
    /// The port of the queue pair. 0 until the port is set.
    pub(super) port: u8,
    /// The maximum message size in bytes. 0 until the port is set.
    pub(super) max_message: u32,
    /// Whether the queue pair may have outstanding reads and atomics.
    pub(super) may_read: bool,
    /// The send offloads of a raw-packet queue pair.
    pub(super) offload: Offload,
    /// The work queue to which receives of raw packets are posted, if the queue pair itself does not receive.
    pub(super) wq: Option<NonNull<ibv_wq>>,
    /// The maximum length in bytes of a packet that a run sends inline. A run is a burst of packets that the caller
    /// passes as slot indices. 0: a run sends no packet inline. Only raw-packet queue pairs have a value above 0.
    pub(super) inline_runs: u32,
    pub(super) post_lists: PostLists,
    /// Makes this type not `Sync`, because a queue pair belongs to one worker.
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: only the owner uses the queue pair, through `&mut`. The posted lists belong to the queue pair. If a
// completion queue has no lock, each call first checks that this thread may use the completion queue.
unsafe impl Send for VerbsQp {}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            // `end` has already logged the error.
            let _ = body.end();
        }
    }
}

impl fmt::Debug for VerbsQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsQp")
            .field("number", &self.body().number())
            .field("kind", &self.kind)
            .finish_non_exhaustive()
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
        // Only one thread may use a completion queue without a lock, and the queue pairs of that completion queue. If
        // neither completion queue has a lock, the queue pair is therefore created without locks too.
        let alone = send.is_single_threaded() && recv.is_single_threaded();
        let own = if alone { pd.for_one_thread().ok() } else { None };
        let pd = own.as_ref().unwrap_or(pd);
        let _hold = held_log::hold();
        let guards = (send.handle.owner.claim(Claim::Temporary), recv.handle.owner.claim(Claim::Temporary));
        if guards.0.is_none() || guards.1.is_none() {
            return refuse(libc::EBUSY);
        }
        let raw_queue = match spec.kind {
            QpType::RawPacket => Some(raw_queue(pd, recv, spec)?),
            _ => None,
        };
        let wq = raw_queue.as_ref().and_then(RawQueue::work_queue);
        // The queue pair has no receive queue if receives are posted to a shared receive queue or to a work queue.
        let separate_receives = srq.is_some() || wq.is_some();
        let mut attr = ibv_qp_init_attr_ex {
            qp_context: ptr::null_mut(),
            send_cq: send.handle.raw(),
            recv_cq: recv.handle.raw(),
            srq: srq.map_or(ptr::null_mut(), VerbsSrq::raw),
            cap: ibv_qp_cap {
                max_send_wr: caps.send_depth,
                max_recv_wr: if separate_receives { 0 } else { caps.recv_depth },
                max_send_sge: caps.send_sges,
                max_recv_sge: if separate_receives { 0 } else { caps.recv_sges },
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
            // SAFETY: the protection domain and the queues are valid and belong to the same device.
            SendApi::Classic => (unsafe { ffi::ibv_create_qp_ex(context.raw(), &mut attr) }?, None),
            SendApi::Extended => {
                attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
                // SAFETY: same as above.
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
            // Some drivers leave this value at 0. hns returns fewer bytes than requested (`get_max_inline_data`).
            inline: match attr.cap.max_inline_data {
                0 => caps.inline,
                granted => granted,
            },
        };
        // If the driver refuses unsignalled sends, signal the sends of runs, which lanes post. All other sends keep the
        // flags of the program, because its completion queue may have no space for more completions.
        let signals_runs = context.quirks.why(Quirk::UnsignalledSends).is_some();
        let run_flags = if signals_runs { SendFlags::SIGNALED } else { SendFlags::empty() };
        let state = Arc::new(AtomicU32::new(QpState::Reset.raw()));
        let raw_packet = spec.kind == QpType::RawPacket;
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
            max_message: 0,
            may_read: false,
            offload,
            wq: receives,
            // A device may grant inline sends that the caller did not request.
            inline_runs: if raw_packet && spec.caps.inline > 0 { caps.inline } else { 0 },
            post_lists: PostLists::new(&caps, run_flags),
            not_sync: PhantomData,
        };
        let number = qp.body().number();
        send.handle.attach(number, raw_packet, true, &qp.state);
        if !Arc::ptr_eq(&send.handle, &recv.handle) {
            recv.handle.attach(number, raw_packet, false, &qp.state);
        }
        Ok(qp)
    }

    pub(super) fn body(&self) -> &QpBody {
        self.body.as_ref().expect("the body exists until the queue pair is dropped")
    }

    pub(super) fn body_mut(&mut self) -> &mut QpBody {
        self.body.as_mut().expect("the body exists until the queue pair is dropped")
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.body().raw.as_ptr()
    }

    /// Returns whether the queue pair receives from a shared receive queue (SRQ).
    #[inline]
    pub(super) fn shares_receives(&self) -> bool {
        self.body().srq.is_some()
    }

    /// Returns the completion queue of the sends. A caller must claim [`CqHandle::owner`] before each send. The claim
    /// also protects the driver's send queue.
    #[inline]
    pub(super) fn send_queue(&self) -> &CqHandle {
        &self.body().send
    }

    /// Returns the completion queue of the receives. A caller must claim [`CqHandle::owner`] before it posts receives.
    /// The claim also protects the driver's receive queue.
    #[inline]
    pub(super) fn recv_queue(&self) -> &CqHandle {
        &self.body().recv
    }

    /// Returns the state that was set last. The device may have changed the state on its own since then.
    #[inline]
    pub(super) fn known_state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Relaxed) & !STATE_UNKNOWN)
    }

    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state.raw(), Ordering::Relaxed);
    }

    /// Moves the queue pair to ERR, which flushes all requests. Called after a failed post if the driver does not
    /// report which requests were posted. Returns whether the device changed the state of the queue pair and of its
    /// work queue, if the queue pair has one.
    #[cold]
    pub(super) fn stop_and_flush(&mut self) -> bool {
        let mut attr = ibv_qp_attr { qp_state: QpState::Err.raw(), ..Default::default() };
        // SAFETY: the queue pair is valid.
        let changed = unsafe { ffi::ibv_modify_qp(self.raw(), &mut attr, STATE) };
        let changes = [changed, self.body_mut().apply_state(0, QpState::Err)];
        for error in changes.iter().filter_map(|change| change.as_ref().err()) {
            tracing::error!(device = self.body().context().name, qp = self.body().number().0, "{error}");
        }
        // Store ERR even if the device refused the change, so that the caller recovers the queue pair.
        self.set_state(QpState::Err);
        changes.iter().all(Result::is_ok)
    }

    /// Flushes receives that were posted in state ERR, by setting the state to ERR again. Does nothing if the driver
    /// flushes such receives itself.
    #[cold]
    pub(super) fn flush_late_receives(&self) {
        if self.body().context().quirks.why(Quirk::SilentFlush).is_none() {
            return;
        }
        let mut attr = ibv_qp_attr { qp_state: QpState::Err.raw(), ..Default::default() };
        // SAFETY: the queue pair is valid and already in this state.
        if let Err(error) = unsafe { ffi::ibv_modify_qp(self.raw(), &mut attr, STATE) } {
            tracing::warn!(device = self.body().context().name, qp = self.body().number().0, "{error}");
        }
    }
}

/// Creates the receive side of a raw-packet queue pair.
fn raw_queue(pd: &VerbsPd, recv: &VerbsCq, spec: &QpSpec) -> Result<RawQueue, VerbError> {
    let context = pd.context();
    let sizes = (spec.caps.recv_depth, spec.caps.recv_sges);
    let (setup, caps) = (pd.raw_setup(), raw::caps(context));
    // SAFETY: the protection domain and the completion queue are valid and belong to the context. The queue pair holds
    // these objects until its destruction.
    let made = unsafe { RawQueue::create(context.raw(), pd.raw(), recv.handle.raw(), setup, caps, spec.queue, sizes) };
    made.map_err(|error| raw::verb_error(&error, &context.name))
}
