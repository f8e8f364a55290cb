//! Shared receive queues.
#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ibverbs_sys::{
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
};

use super::context::{Limits, check_destroyed};
use super::domain::VerbsPd;
use super::ffi;
use super::request::{CHUNK, accepted, recv_wr};
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{PostError, RecvRequest, SharedReceiveQueue, SrqSpec};

/// A shared receive queue (SRQ) of a device. All clones share one queue, and the library locks the queue.
#[derive(Clone)]
pub struct VerbsSrq(Arc<SrqHandle>);

struct SrqHandle {
    raw: NonNull<ibv_srq>,
    tag: Box<SrqTag>,
    depth: AtomicU32,
    sges: u32,
    pd: VerbsPd,
}

/// The user context of a shared receive queue: the number that identifies the queue in device events.
#[derive(Debug)]
pub(super) struct SrqTag(pub(super) u32);

// SAFETY: the library locks the parts of a queue that change.
unsafe impl Send for SrqHandle {}
// SAFETY: same as above.
unsafe impl Sync for SrqHandle {}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        // SAFETY: every queue pair of the shared receive queue shares the ownership of this handle, so all these queue
        // pairs are destroyed before the handle is dropped. Events of the queue are acknowledged when they are taken.
        if !check_destroyed(unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) }, &self.pd.context().name) {
            // The tag is leaked, because events may still refer to it.
            mem::forget(mem::replace(&mut self.tag, Box::new(SrqTag(0))));
        }
    }
}

impl fmt::Debug for VerbsSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsSrq").field("number", &self.number()).field("depth", &self.depth()).finish_non_exhaustive()
    }
}

impl VerbsSrq {
    pub(super) fn create(pd: &VerbsPd, spec: &SrqSpec) -> Result<Self, VerbError> {
        let context = pd.context();
        let attr = &context.limits.attr.orig_attr;
        let most = (Limits::count(attr.max_srq_wr), Limits::count(attr.max_srq_sge));
        if attr.max_srq <= 0 {
            return Err(VerbError::new("ibv_create_srq", libc::EOPNOTSUPP));
        }
        if !(1..=most.0).contains(&spec.depth) || spec.sges > most.1 {
            return Err(VerbError::new("ibv_create_srq", libc::EINVAL));
        }
        let tag = Box::new(SrqTag(context.number()));
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::from_ref(&*tag).cast_mut().cast(),
            attr: ibv_srq_attr { max_wr: spec.depth, max_sge: spec.sges, srq_limit: 0 },
        };
        // SAFETY: the protection domain is valid, and the tag stays valid until the queue is destroyed.
        let raw = unsafe { ffi::ibv_create_srq(pd.raw(), &mut init) }?;
        let depth = AtomicU32::new(init.attr.max_wr.max(spec.depth));
        Ok(Self(Arc::new(SrqHandle { raw, tag, depth, sges: init.attr.max_sge.max(spec.sges), pd: pd.clone() })))
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.0.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &VerbsPd {
        &self.0.pd
    }

    fn query(&self) -> Result<ibv_srq_attr, VerbError> {
        let mut attr = ibv_srq_attr::default();
        // SAFETY: the queue is valid, and the structure is writable.
        unsafe { ffi::ibv_query_srq(self.raw(), &mut attr) }?;
        Ok(attr)
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: ibv_srq_attr_mask) -> Result<(), VerbError> {
        // SAFETY: the queue is valid, and the structure contains the members that the mask selects.
        unsafe { ffi::ibv_modify_srq(self.raw(), &mut attr, mask.cast_signed()) }
    }
}

#[allow(unsafe_code)]
// SAFETY: receives are passed to libibverbs unchanged. The device no longer accesses their memory after the queue was
// destroyed.
unsafe impl SharedReceiveQueue for VerbsSrq {
    fn number(&self) -> u32 {
        self.0.tag.0
    }

    fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        const VERB: &str = "ibv_post_srq_recv";
        let most = self.0.sges as usize;
        let good = requests.iter().position(|request| request.sges.len() > most).unwrap_or(requests.len());
        let mut done = 0;
        for chunk in requests[..good].chunks(CHUNK) {
            let mut list = [ibv_recv_wr::default(); CHUNK];
            for (wr, request) in list.iter_mut().zip(chunk) {
                *wr = recv_wr(request);
            }
            let first = list.as_mut_ptr();
            for at in 1..chunk.len() {
                // SAFETY: both items are in the list.
                unsafe { (*first.add(at - 1)).next = first.add(at) };
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the queue is valid. The list and its elements stay valid during the call. The caller keeps the
            // memory of the requests valid.
            if let Err(error) = unsafe { ffi::ibv_post_srq_recv(self.raw(), first, &mut bad) } {
                // Without a valid `bad`, the driver may hold any of the receives and write to their memory later. An SRQ
                // cannot be flushed, so all receives of the list count as posted.
                let taken = accepted(first, chunk.len(), bad).unwrap_or(chunk.len());
                return Err(PostError { accepted: done + taken, error });
            }
            done += chunk.len();
        }
        match good < requests.len() {
            true => Err(PostError { accepted: good, error: VerbError::new(VERB, libc::EINVAL) }),
            false => Ok(()),
        }
    }

    fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError> {
        if limit > self.depth() {
            return Err(VerbError::new("ibv_modify_srq", libc::EINVAL));
        }
        self.modify(ibv_srq_attr { srq_limit: limit, ..Default::default() }, IBV_SRQ_LIMIT)
    }

    fn limit(&self) -> Result<u32, VerbError> {
        Ok(self.query()?.srq_limit)
    }

    fn resize(&mut self, depth: u32) -> Result<(), VerbError> {
        let most = Limits::count(self.0.pd.context().limits.attr.orig_attr.max_srq_wr);
        if !(1..=most).contains(&depth) {
            return Err(VerbError::new("ibv_modify_srq", libc::EINVAL));
        }
        self.modify(ibv_srq_attr { max_wr: depth, ..Default::default() }, IBV_SRQ_MAX_WR)?;
        let now = self.query().map_or(depth, |attr| attr.max_wr.max(depth));
        self.0.depth.store(now, Ordering::Relaxed);
        Ok(())
    }
}
