//! Messages: the verbs API without `unsafe`.
//!
//! A lane (one worker's queues on one port) moves packets in buffers to which safe code has references. A lane is safe
//! because of a rule about requests: the lane posts only buffers that it owns. This module is safe because of a rule
//! about memory: a [`Buffer`] is registered memory to which no code ever gets a reference. All copies are atomic, one
//! byte at a time, so a device, a peer or another thread may access the memory at the same time. Safe code may
//! therefore post any request, even with wrong keys and addresses. The device then reports the error. Use this module
//! in programs that exchange messages and in tests of devices.
//!
//! Why this is sound:
//!
//! - A [`MessageDomain`] has its own protection domain, in which only the memory of its buffers is registered. Requests
//!   come from the queue pair or from its peer. For every request, the device looks up the key in the protection domain
//!   of the queue pair. If the key is wrong, the device therefore accesses another buffer or refuses the request.
//! - The registration owns the region that contains the buffer, so the registration ends before the memory is freed.
//! - For an inline send, the verbs library reads the bytes itself and does not check the key. This module first finds
//!   these bytes in its buffers and passes a copy to the library.
//! - The libraries of some devices also access the memory of requests that are not inline, without a check of the key.
//!   For example, libmlx5 copies a short message from the completion to the buffer when the program polls, and copies
//!   the first bytes of a raw packet when the program posts the packet. For these devices,
//!   [`Device::checks_every_key`] is `false`. This module then accepts only addresses inside buffers, and the memory of
//!   dropped buffers stays mapped as long as the protection domain exists.
//!
//! The protection domain, the registrations and the inner queue pair are private. If they were public, safe code could
//! register other memory in the domain, or replace the queue pair.

mod buffer;
mod memory;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use buffer::Buffer;
pub use queue::{Ah, Binding, MessageQueuePair, MessageSharedQueue, Mw};

use memory::{Memories, Memory};

use crate::error::{Result, VerbError};
use crate::mem::{PageKind, Region, RegionSpec};
use crate::verbs::{
    Access, Completion, CompletionChannel, CompletionQueue, CqGranted, CqSpec, Cursor, Device, MwKind, Path,
    ProtectionDomain, QpSpec, SrqSpec, check_registered,
};

/// A protection domain in which only the memory of [`Buffer`]s is registered. Clones refer to the same domain.
#[derive(Debug)]
pub struct MessageDomain<D: Device> {
    device: D,
    pd: D::Pd,
    memories: Arc<Memories<D>>,
}

impl<D: Device> Clone for MessageDomain<D> {
    fn clone(&self) -> Self {
        Self { device: self.device.clone(), pd: self.pd.clone(), memories: self.memories.clone() }
    }
}

impl<D: Device> MessageDomain<D> {
    /// Creates a domain on a device.
    ///
    /// # Errors
    /// Fails like `ibv_alloc_pd(3)`.
    pub fn new(device: &D) -> Result<Self, VerbError> {
        Ok(Self { device: device.clone(), pd: device.alloc_pd()?, memories: Arc::new(Memories::new(device)) })
    }

    /// Creates a message domain whose protection domain is a new parent domain, which extends the protection domain of
    /// this message domain. The two message domains share their buffers. See [`ProtectionDomain::alloc_parent`].
    ///
    /// # Errors
    /// Fails like `ibv_alloc_parent_domain(3)`.
    pub fn alloc_parent(&self) -> Result<Self, VerbError> {
        Ok(Self { pd: self.pd.alloc_parent()?, ..self.clone() })
    }

    /// Creates a completion queue in this domain, which must be a parent domain. See [`Device::create_cq_in`].
    ///
    /// # Errors
    /// Fails like [`Device::create_cq_in`].
    pub fn create_cq(&self, spec: &CqSpec, channel: Option<&D::Channel>) -> Result<(D::Cq, CqGranted), VerbError> {
        self.device.create_cq_in(&self.pd, spec, channel)
    }

    /// Returns the device of the domain.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Allocates zeroed memory in pages of the normal size and registers it.
    ///
    /// # Errors
    /// Fails like [`MessageDomain::allocate`].
    pub fn buffer(&self, bytes: usize, access: Access) -> Result<Buffer<D>> {
        self.allocate(RegionSpec { bytes, pages: PageKind::Normal, strict: false, node: None }, access)
    }

    /// Allocates zeroed memory and registers it: `ibv_reg_mr(3)`. The buffer has exactly the requested length. Only the
    /// region is rounded up to whole pages.
    ///
    /// # Errors
    /// Fails if the memory cannot be allocated or registered. See [`ProtectionDomain::register_part`].
    pub fn allocate(&self, spec: RegionSpec, access: Access) -> Result<Buffer<D>> {
        let region = Arc::new(Region::allocate(spec)?.0);
        let registered = self.pd.register_part(region.clone(), 0..spec.bytes, access);
        let mr = registered.map_err(|refused| refused.on(self.device.name()))?;
        check_registered(&mr, &region, self.device.name())?;
        // This call comes after the registration. Otherwise, the memory of a refused registration would stay mapped.
        if !self.memories.checks_every_key() {
            self.pd.keep_mapped(region.clone());
        }
        let memory = Arc::new(Memory::new(mr, region, spec.bytes));
        self.memories.add(&memory);
        Ok(Buffer::new(memory))
    }

    /// Creates an address handle for the path to a peer: `ibv_create_ah(3)`.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_ah`].
    pub fn create_ah(&self, path: &Path) -> Result<Ah<D>, VerbError> {
        self.pd.create_ah(path)
    }

    /// Allocates a memory window: `ibv_alloc_mw(3)`.
    ///
    /// # Errors
    /// See [`ProtectionDomain::alloc_mw`].
    pub fn alloc_mw(&self, kind: MwKind) -> Result<Mw<D>, VerbError> {
        self.pd.alloc_mw(kind)
    }

    /// Creates a shared receive queue: `ibv_create_srq(3)`.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_srq`].
    pub fn create_srq(&self, spec: &SrqSpec) -> Result<MessageSharedQueue<D>, VerbError> {
        Ok(MessageSharedQueue::new(self.pd.create_srq(spec)?, self.memories.clone()))
    }

    /// Creates a queue pair in state RESET: `ibv_create_qp(3)`. Create the completion queues with
    /// [`Device::create_cq`]. `send` and `recv` may be the same queue.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_qp`].
    pub fn create_qp(
        &self,
        spec: &QpSpec,
        send: &D::Cq,
        recv: &D::Cq,
        srq: Option<&MessageSharedQueue<D>>,
    ) -> Result<MessageQueuePair<D>, VerbError> {
        let qp = self.pd.create_qp(spec, send, recv, srq.map(MessageSharedQueue::inner))?;
        Ok(MessageQueuePair::new(qp, self.memories.clone()))
    }
}

/// Polls up to `limit` completions and appends them to `into`. Returns the number of completions.
///
/// # Errors
/// Fails if the queue is no longer usable.
pub fn poll<C: CompletionQueue>(cq: &mut C, into: &mut Vec<Completion>, limit: usize) -> Result<usize, VerbError> {
    if limit == 0 {
        return Ok(0);
    }
    let Some(mut cursor) = cq.start_poll()? else { return Ok(0) };
    let mut polled = 1;
    into.push(cursor.get());
    while polled < limit && cursor.advance()? {
        into.push(cursor.get());
        polled += 1;
    }
    Ok(polled)
}

/// Polls like [`poll`]. If there is no completion, sleeps on the channel of the queue until a completion arrives or
/// `timeout` has passed. Give each queue its own channel, because an event of any queue on the channel ends the sleep.
///
/// # Errors
/// Fails like [`poll`], [`CompletionQueue::arm`] and [`CompletionChannel::wait`].
pub fn poll_or_sleep<C: CompletionQueue, W: CompletionChannel>(
    cq: &mut C,
    channel: &W,
    into: &mut Vec<Completion>,
    limit: usize,
    timeout: Duration,
) -> Result<usize, VerbError> {
    let begin = Instant::now();
    loop {
        let polled = poll(cq, into, limit)?;
        let left = timeout.saturating_sub(begin.elapsed());
        if polled > 0 || left.is_zero() {
            return Ok(polled);
        }
        cq.arm(false)?;
        // A completion that arrived after the poll and before the arming generates no event, so poll again.
        let polled = poll(cq, into, limit)?;
        if polled > 0 {
            return Ok(polled);
        }
        channel.wait(left)?;
    }
}
