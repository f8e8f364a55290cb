//! Shared receive queues.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::VerbError;
use crate::provider::soft::device::Shared;
use crate::provider::soft::fabric::{Fabric, Receive};
use crate::provider::{EventKind, PostError, RecvRequest, SharedReceiveQueue, SrqSpec};

/// A shared receive queue, as its fabric has it.
#[derive(Debug)]
pub(super) struct Srq {
    number: u32,
    device: Arc<Shared>,
    queue: VecDeque<Receive>,
    room: usize,
    sges: usize,
    limit: u32,
}

impl Srq {
    /// Takes the oldest receive off, and tells when few are left.
    pub(super) fn take(&mut self) -> Option<Receive> {
        let receive = self.queue.pop_front()?;
        if self.queue.len() < self.limit as usize {
            self.limit = 0;
            self.device.raise(EventKind::SrqLimitReached, self.number);
        }
        Some(receive)
    }

    /// Puts one back that was not used after all.
    pub(super) fn put_back(&mut self, receive: Receive) {
        self.queue.push_front(receive);
    }

    fn post(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        for (accepted, request) in requests.iter().enumerate() {
            let errno = if request.sges.len() > self.sges {
                libc::EINVAL
            } else if self.queue.len() >= self.room {
                libc::ENOMEM
            } else {
                self.queue.push_back(Receive::of(request));
                continue;
            };
            return Err(PostError { accepted, error: VerbError::new("ibv_post_srq_recv", errno) });
        }
        Ok(())
    }
}

/// The queue on its fabric: goes with its last handle.
#[derive(Debug)]
struct Handle {
    number: u32,
    device: Arc<Shared>,
    fabric: Arc<Fabric>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.fabric.lock().srqs.remove(&self.number);
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
    /// Makes one of a checked size.
    pub(in crate::provider::soft) fn new(device: &Arc<Shared>, fabric: &Arc<Fabric>, spec: &SrqSpec) -> Self {
        let number = device.number();
        let srq = Srq {
            number,
            device: device.clone(),
            queue: VecDeque::new(),
            room: device.spec.profile.slots(spec.depth) as usize,
            sges: spec.sges as usize,
            limit: 0,
        };
        fabric.lock().srqs.insert(number, srq);
        let handle = Handle { number, device: device.clone(), fabric: fabric.clone() };
        Self { handle: Arc::new(handle), depth: spec.depth }
    }

    /// Whether it is of this device.
    pub(in crate::provider::soft) fn is_of(&self, device: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.handle.device, device)
    }

    fn with<R>(&self, verb: &'static str, work: impl FnOnce(&mut Srq) -> Result<R, i32>) -> Result<R, VerbError> {
        let done = match self.handle.fabric.lock().srqs.get_mut(&self.handle.number) {
            Some(srq) if !self.handle.device.is_gone() => work(srq),
            _ => Err(libc::EIO),
        };
        done.map_err(|errno| VerbError::new(verb, errno))
    }
}

#[allow(unsafe_code, reason = "the trait's")]
impl SharedReceiveQueue for SoftSrq {
    fn number(&self) -> u32 {
        self.handle.number
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
            if limit as usize > srq.room {
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
            let most = srq.device.spec.limits.max_qp_wr;
            let room = srq.device.spec.profile.slots(depth) as usize;
            if depth == 0 || depth > most || room < srq.queue.len() || (depth < srq.limit) {
                return Err(libc::EINVAL);
            }
            srq.room = room;
            Ok(())
        })?;
        self.depth = depth;
        Ok(())
    }
}
