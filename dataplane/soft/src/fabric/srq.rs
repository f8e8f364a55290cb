//! The state of a shared receive queue (SRQ) of the software device.

use std::collections::VecDeque;
use std::sync::Arc;

use super::receive::Receive;
use crate::shared::Shared;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{EventKind, PostError, RecvRequest};

/// The state of a shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) number: u32,
    pub(super) device: Arc<Shared>,
    pub(super) queue: VecDeque<Receive>,
    pub(super) capacity: usize,
    pub(super) sges: usize,
    /// The limit of the event `SRQ_LIMIT_REACHED`. 0 while the limit is not armed.
    pub(super) limit: u32,
}

impl Srq {
    /// Removes the oldest receive. If fewer than `limit` receives are left, raises `SRQ_LIMIT_REACHED` and disarms the
    /// limit.
    pub(super) fn take(&mut self) -> Option<Receive> {
        let receive = self.queue.pop_front()?;
        if self.queue.len() < self.limit as usize {
            self.limit = 0;
            self.device.raise(EventKind::SrqLimitReached, self.number);
        }
        Some(receive)
    }

    /// Puts back a receive that was not used.
    pub(super) fn put_back(&mut self, receive: Receive) {
        self.queue.push_front(receive);
    }

    pub(super) fn post(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        for (accepted, request) in requests.iter().enumerate() {
            let errno = if request.sges.len() > self.sges {
                libc::EINVAL
            } else if self.queue.len() >= self.capacity {
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
