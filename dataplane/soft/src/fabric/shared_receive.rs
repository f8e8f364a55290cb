//! The handle of a shared receive queue.

use std::collections::VecDeque;
use std::sync::Arc;

use super::network::Fabric;
use super::srq::Srq;
use crate::numbers::Number;
use crate::shared::Shared;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{PostError, RecvRequest, SharedReceiveQueue, SrqSpec};

/// The registration of the queue on its fabric. Dropping this value removes the queue.
#[derive(Debug)]
struct Handle {
    number: Number,
    device: Arc<Shared>,
    fabric: Arc<Fabric>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.fabric.lock().srqs.remove(&self.number.get());
        self.device.srq_is_gone();
    }
}

/// A shared receive queue of a software device.
#[derive(Clone, Debug)]
pub struct SoftSrq {
    handle: Arc<Handle>,
    depth: u32,
}

impl SoftSrq {
    /// Creates a queue. The caller has checked the spec.
    pub(crate) fn new(device: &Arc<Shared>, fabric: &Arc<Fabric>, spec: &SrqSpec) -> Self {
        let number = device.number();
        let srq = Srq {
            number: number.get(),
            device: device.clone(),
            queue: VecDeque::new(),
            capacity: device.profile.slots(spec.depth) as usize,
            sges: spec.sges as usize,
            limit: 0,
        };
        fabric.lock().srqs.insert(number.get(), srq);
        let handle = Handle { number, device: device.clone(), fabric: fabric.clone() };
        Self { handle: Arc::new(handle), depth: spec.depth }
    }

    /// Returns whether the queue belongs to this device.
    pub(crate) fn is_of(&self, device: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.handle.device, device)
    }

    fn with<R>(&self, verb: &'static str, work: impl FnOnce(&mut Srq) -> Result<R, i32>) -> Result<R, VerbError> {
        let done = match self.handle.fabric.lock().srqs.get_mut(&self.handle.number.get()) {
            Some(srq) if !self.handle.device.is_gone() => work(srq),
            _ => Err(libc::EIO),
        };
        done.map_err(|errno| VerbError::new(verb, errno))
    }
}

#[allow(unsafe_code, reason = "required by the trait")]
// SAFETY: each message takes its own receive from the queue, so no receive is used twice. Dropping the queue drops its
// receives.
unsafe impl SharedReceiveQueue for SoftSrq {
    fn number(&self) -> u32 {
        self.handle.number.get()
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let posted = self.with("ibv_post_srq_recv", |srq| Ok(srq.post(requests)));
        let posted = posted.unwrap_or_else(|error| Err(PostError { accepted: 0, error }));
        self.handle.fabric.drive();
        posted
    }

    fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError> {
        self.with("ibv_modify_srq", |srq| {
            if limit as usize > srq.capacity {
                return Err(libc::EINVAL);
            }
            srq.limit = limit;
            Ok(())
        })
    }

    fn limit(&self) -> Result<u32, VerbError> {
        self.with("ibv_query_srq", |srq| Ok(srq.limit))
    }

    fn resize(&mut self, depth: u32) -> Result<(), VerbError> {
        self.with("ibv_modify_srq", |srq| {
            let max_depth = srq.device.limits.max_qp_wr;
            let capacity = srq.device.profile.slots(depth) as usize;
            if depth == 0 || depth > max_depth || capacity < srq.queue.len() || (depth < srq.limit) {
                return Err(libc::EINVAL);
            }
            srq.capacity = capacity;
            Ok(())
        })?;
        self.depth = depth;
        Ok(())
    }
}
