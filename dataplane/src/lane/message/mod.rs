//! Messages: the verbs as they are, without `unsafe`.
//!
//! A lane moves packets in slots that safe code holds references to, so its posts must be kept in step with who has
//! which slot. Here it is the memory that is special instead: a [`Buffer`] is registered memory that nobody ever gets a
//! reference to. It is copied to and from, a byte at a time and atomically, so it does not matter what a device, a peer
//! or another thread does to it meanwhile. Any request may therefore be posted, with wrong keys and wrong addresses too,
//! and the device says what it thinks of it. It is what messages between programs, and tests of devices, are made of.
//!
//! What makes it sound:
//!
//! - A [`MessageDomain`] has a protection domain of its own and registers nothing in it but the memory of its buffers.
//!   A device looks at every key, of the requests of a queue pair and of its peer, in the protection domain of that
//!   queue pair. So whatever a request names, the device touches buffers or refuses.
//! - Registration ends before the memory goes: a buffer's region is owned by its registration.
//! - Bytes that are sent inline are read by the library, which looks at no key. They are looked up among the buffers and
//!   copied out before the library sees them.
//!
//! Neither the protection domain nor a registration nor the queue pair inside is handed out: with them safe code could
//! register other memory there, or put another queue pair in its place.

mod buffer;
mod queue;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use buffer::Buffer;
pub use queue::{Binding, MessageQueuePair, MessageSharedQueue};

use buffer::Memory;

use crate::error::{Result, VerbError};
use crate::mem::{PageKind, Region, RegionSpec};
use crate::provider::{
    Access, Completion, CompletionChannel, CompletionQueue, Cursor, Device, MwKind, Path, ProtectionDomain, QpSpec,
    SrqSpec,
};

/// The address handles of a device.
pub type Ah<D> = <<D as Device>::Pd as ProtectionDomain>::Ah;
/// The memory windows of a device.
pub type Mw<D> = <<D as Device>::Pd as ProtectionDomain>::Mw;
type Mr<D> = <<D as Device>::Pd as ProtectionDomain>::Mr;
type Qp<D> = <<D as Device>::Pd as ProtectionDomain>::Qp;
type Srq<D> = <<D as Device>::Pd as ProtectionDomain>::Srq;

/// A protection domain whose memory is that of [`Buffer`]s alone. Clones are the same domain.
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
    /// Makes a domain on a device.
    ///
    /// # Errors
    /// As `ibv_alloc_pd(3)`.
    pub fn new(device: &D) -> Result<Self, VerbError> {
        Ok(Self { device: device.clone(), pd: device.alloc_pd()?, memories: Arc::default() })
    }

    /// The device that it is on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Registers new memory of this many bytes, all 0, in pages of the base size.
    ///
    /// # Errors
    /// As [`MessageDomain::allocate`].
    pub fn buffer(&self, bytes: usize, access: Access) -> Result<Buffer<D>> {
        self.allocate(RegionSpec { bytes, pages: PageKind::Normal, strict: false, node: None }, access)
    }

    /// Registers new memory, all 0: `ibv_reg_mr(3)`. The buffer has as many bytes as were asked for, whatever the pages
    /// round them up to.
    ///
    /// # Errors
    /// The memory is not to be had, or cannot be registered: see [`ProtectionDomain::register_part`].
    pub fn allocate(&self, spec: RegionSpec, access: Access) -> Result<Buffer<D>> {
        let region = Arc::new(Region::allocate(spec)?.0);
        let registered = self.pd.register_part(region, 0..spec.bytes, access);
        let mr = registered.map_err(|refused| refused.on(self.device.name()))?;
        let memory = Arc::new(Memory::new(mr, spec.bytes));
        self.memories.add(&memory);
        Ok(Buffer::new(memory))
    }

    /// Resolves the way to a peer: `ibv_create_ah(3)`.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_ah`].
    pub fn create_ah(&self, path: &Path) -> Result<Ah<D>, VerbError> {
        self.pd.create_ah(path)
    }

    /// `ibv_alloc_mw(3)`.
    ///
    /// # Errors
    /// See [`ProtectionDomain::alloc_mw`].
    pub fn alloc_mw(&self, kind: MwKind) -> Result<Mw<D>, VerbError> {
        self.pd.alloc_mw(kind)
    }

    /// `ibv_create_srq(3)`.
    ///
    /// # Errors
    /// See [`ProtectionDomain::create_srq`].
    pub fn create_srq(&self, spec: &SrqSpec) -> Result<MessageSharedQueue<D>, VerbError> {
        Ok(MessageSharedQueue::new(self.pd.create_srq(spec)?))
    }

    /// Makes a queue pair in state RESET: `ibv_create_qp(3)`. The completion queues are the device's
    /// ([`Device::create_cq`]), and may be one.
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

/// The memory of the buffers of a domain that are still registered.
#[derive(Debug)]
struct Memories<D: Device>(Mutex<Vec<Weak<Memory<D>>>>);

impl<D: Device> Default for Memories<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Device> Memories<D> {
    fn add(&self, memory: &Arc<Memory<D>>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(memory));
    }

    /// The memory that has all of these bytes, and where in it they begin.
    fn find(&self, addr: u64, length: usize) -> Option<(Arc<Memory<D>>, usize)> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter_map(Weak::upgrade).find_map(|memory| {
            let offset = usize::try_from(addr.checked_sub(memory.addr())?).ok()?;
            (offset.checked_add(length)? <= memory.len()).then_some((memory, offset))
        })
    }
}

/// Polls up to `limit` completions by cursor and appends them. Returns how many.
///
/// # Errors
/// The queue cannot be used any more.
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

/// Polls as [`poll`] does, and sleeps on the channel of the queue until there is something or this time is over. Events
/// of other queues on that channel are taken as a reason to look again, so it is best had alone.
///
/// # Errors
/// As [`poll`], [`CompletionQueue::arm`] and [`CompletionChannel::wait`].
pub fn poll_or_sleep<C: CompletionQueue, W: CompletionChannel>(
    cq: &mut C,
    channel: &W,
    into: &mut Vec<Completion>,
    limit: usize,
    patience: Duration,
) -> Result<usize, VerbError> {
    let begin = Instant::now();
    loop {
        let polled = poll(cq, into, limit)?;
        let left = patience.saturating_sub(begin.elapsed());
        if polled > 0 || left.is_zero() {
            return Ok(polled);
        }
        cq.arm(false)?;
        // What came between the look and the arming is no event.
        let polled = poll(cq, into, limit)?;
        if polled > 0 {
            return Ok(polled);
        }
        channel.wait(left)?;
    }
}
