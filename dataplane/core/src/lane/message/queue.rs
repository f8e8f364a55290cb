//! Queue pairs and shared receive queues that accept any request from safe code.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::VerbError;
use crate::lane::message::buffer::Buffer;
use crate::lane::message::memory::Memories;
use crate::units::{Gid, QpNum};
use crate::verbs::{
    Access, AttributeMask, Device, MwBind, PostError, ProtectionDomain, QpAttributes, QpCaps, QpState, QpType,
    QueuePair, RecvRequest, SendFlags, SendOp, SendRequest, Sge, SharedReceiveQueue,
};

/// The address handle type of a device.
pub type Ah<D> = <<D as Device>::Pd as ProtectionDomain>::Ah;
/// The memory window type of a device.
pub type Mw<D> = <<D as Device>::Pd as ProtectionDomain>::Mw;
type Qp<D> = <<D as Device>::Pd as ProtectionDomain>::Qp;
type Srq<D> = <<D as Device>::Pd as ProtectionDomain>::Srq;

/// A queue pair of a [`MessageDomain`](super::MessageDomain), owned by one worker.
pub struct MessageQueuePair<D: Device> {
    // Declared before `memories`, so that the queue pair is destroyed before its memory is unmapped. Otherwise, a poll
    // could access unmapped memory.
    qp: Qp<D>,
    memories: Arc<Memories<D>>,
    /// The bytes of the current inline send. `inline` and `elements` are fields so that each send reuses their
    /// allocations.
    inline: Vec<u8>,
    elements: Vec<Sge>,
}

impl<D: Device> fmt::Debug for MessageQueuePair<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageQueuePair")
            .field("kind", &self.kind())
            .field("number", &self.number())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// The parameters of a memory window binding, like [`MwBind`], but with a [`Buffer`].
#[derive(Clone, Debug)]
pub struct Binding<'a, D: Device> {
    /// The id that the completion returns.
    pub wr_id: u64,
    /// Flags of the request: signalled, fenced.
    pub flags: SendFlags,
    /// The buffer that a peer can access through the window. The buffer must be registered with [`Access::MW_BIND`].
    pub buffer: &'a Buffer<D>,
    /// The byte range of the buffer. The range is not checked against the length of the buffer. An empty range unbinds
    /// the window (type 1 only).
    pub part: Range<usize>,
    /// The peer's access rights.
    pub access: Access,
}

impl<D: Device> MessageQueuePair<D> {
    pub(super) fn new(qp: Qp<D>, memories: Arc<Memories<D>>) -> Self {
        Self { qp, memories, inline: Vec::new(), elements: Vec::new() }
    }

    /// Returns the queue pair number.
    pub fn number(&self) -> QpNum {
        self.qp.number()
    }

    /// Returns the type of the queue pair.
    pub fn kind(&self) -> QpType {
        self.qp.kind()
    }

    /// Returns the granted capacities.
    pub fn caps(&self) -> QpCaps {
        self.qp.caps()
    }

    /// Returns the state as this process knows it: the last state that was set, or ERR after an error completion.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Queries the state and the attributes from the device: `ibv_query_qp(3)`.
    ///
    /// # Errors
    /// Fails like the verb.
    pub fn query(&self) -> Result<QpAttributes, VerbError> {
        self.qp.query()
    }

    /// Changes attributes, including the state: `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::modify`].
    pub fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError> {
        self.qp.modify(attributes, mask)
    }

    /// Posts receives: `ibv_post_recv(3)`.
    ///
    /// # Errors
    /// See [`PostError`]. Returns `EFAULT` if an element is not inside a buffer of the domain and the library of the
    /// device does not check every key. No request is then posted.
    pub fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if !self.memories.permits(requests.iter().map(|request| request.sges)) {
            return Err(refused("ibv_post_recv", libc::EFAULT));
        }
        // SAFETY: in the protection domain of this queue pair, only buffers have keys. The program accesses the bytes
        // of a buffer only atomically, one byte at a time. The memory of a buffer lives as long as its key is valid.
        // The device refuses every other key. If the library accesses memory without a check of the key, the code above
        // refuses elements outside buffers, and the memory of dropped buffers stays mapped as long as this queue pair
        // exists.
        unsafe { self.qp.post_recv(requests) }
    }

    /// Posts sends: `ibv_post_send(3)`. Rings the doorbell once for each inline request, and once for each group of
    /// consecutive requests that are not inline.
    ///
    /// # Errors
    /// See [`PostError`]. Returns `EINVAL` if a request has more inline bytes than were granted. If the library of the
    /// device does not check every key, also returns `EINVAL` for an inline RDMA read and for an inline atomic. Returns
    /// `EFAULT` if inline bytes are not in a buffer of the domain. Also returns `EFAULT` for the reason in the
    /// documentation of [`MessageQueuePair::post_recv`].
    pub fn post_send(&mut self, requests: &[SendRequest<'_, Ah<D>>]) -> Result<(), PostError> {
        let inline = |request: &SendRequest<'_, Ah<D>>| request.flags.contains(SendFlags::INLINE);
        let mut accepted = 0;
        for some in requests.chunk_by(|a, b| !inline(a) && !inline(b)) {
            let posted = match some {
                [one] if inline(one) => self.post_inline(one),
                some if !self.memories.permits(some.iter().map(|request| request.sges)) => {
                    Err(refused("ibv_post_send", libc::EFAULT))
                }
                // SAFETY: as in `post_recv`. A library may read bytes from the first element of a send without a check of
                // its length. The provider refuses a send whose first element does not contain these bytes. The code
                // above checks the address of every element that has bytes.
                some => unsafe { self.qp.post_send(some) },
            };
            posted.map_err(|refused| PostError { accepted: accepted + refused.accepted, ..refused })?;
            accepted += some.len();
        }
        Ok(())
    }

    /// Posts an inline request. Copies the inline bytes first, and the verbs library reads the copy.
    fn post_inline(&mut self, request: &SendRequest<'_, Ah<D>>) -> Result<(), PostError> {
        let refuse = |errno| Err(refused("ibv_post_send", errno));
        let length: u64 = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let reads = matches!(request.op, SendOp::RdmaRead(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if length > u64::from(self.qp.caps().inline) || (reads && !self.memories.checks_every_key()) {
            return refuse(libc::EINVAL);
        }
        self.inline.clear();
        for sge in request.sges {
            let begin = self.inline.len();
            self.inline.resize(begin + sge.length as usize, 0);
            if sge.length > 0 {
                let Some((memory, offset)) = self.memories.find(sge.addr, sge.length as usize) else {
                    return refuse(libc::EFAULT);
                };
                memory.read(offset, &mut self.inline[begin..]);
            }
        }
        let mut addr = self.inline.as_mut_ptr().expose_provenance() as u64;
        self.elements.clear();
        self.elements.extend(request.sges.iter().map(|sge| {
            let copied = Sge { addr, ..*sge };
            addr += u64::from(sge.length);
            copied
        }));
        let copied = SendRequest { sges: &self.elements, ..*request };
        // SAFETY: the elements describe the bytes of `inline`, which the library reads before this call returns. For
        // some requests, such as an RDMA read, the library does not copy the bytes, and the device resolves the
        // elements. No key of this protection domain covers these addresses, so the device refuses the request.
        // If the library accesses memory without a check of the key, the code above refuses these requests.
        unsafe { self.qp.post_send(&[copied]) }
    }

    /// Binds a memory window. Uses `ibv_bind_mw(3)` or a send request, depending on the type of the window.
    ///
    /// # Errors
    /// See [`QueuePair::bind_mw`].
    pub fn bind_mw(&mut self, mw: &mut Mw<D>, binding: &Binding<'_, D>) -> Result<(), PostError> {
        let Binding { wr_id, flags, buffer, part, access } = binding;
        let bind = MwBind {
            wr_id: *wr_id,
            flags: *flags,
            mr: buffer.mr(),
            addr: buffer.addr().wrapping_add(part.start as u64),
            length: part.end.saturating_sub(part.start) as u64,
            access: *access,
        };
        self.qp.bind_mw(mw, &bind)
    }

    /// Joins a multicast group: `ibv_attach_mcast(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::attach_multicast`].
    pub fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.qp.attach_multicast(group, lid)
    }

    /// Leaves a multicast group: `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::detach_multicast`].
    pub fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.qp.detach_multicast(group, lid)
    }
}

/// A shared receive queue of a [`MessageDomain`](super::MessageDomain).
pub struct MessageSharedQueue<D: Device> {
    srq: Srq<D>,
    memories: Arc<Memories<D>>,
}

/// Returns the error for a request that this module refuses.
fn refused(verb: &'static str, errno: i32) -> PostError {
    PostError { accepted: 0, error: VerbError::new(verb, errno) }
}

impl<D: Device> fmt::Debug for MessageSharedQueue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSharedQueue").field("number", &self.srq.number()).finish_non_exhaustive()
    }
}

impl<D: Device> MessageSharedQueue<D> {
    pub(super) fn new(srq: Srq<D>, memories: Arc<Memories<D>>) -> Self {
        Self { srq, memories }
    }

    pub(super) fn inner(&self) -> &Srq<D> {
        &self.srq
    }

    /// Returns the number that identifies the queue in asynchronous events.
    pub fn number(&self) -> u32 {
        self.srq.number()
    }

    /// Returns the maximum number of posted receives.
    pub fn depth(&self) -> u32 {
        self.srq.depth()
    }

    /// Posts receives: `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    /// See [`PostError`], and [`MessageQueuePair::post_recv`] for `EFAULT`.
    pub fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        if !self.memories.permits(requests.iter().map(|request| request.sges)) {
            return Err(refused("ibv_post_srq_recv", libc::EFAULT));
        }
        // SAFETY: as in `MessageQueuePair::post_recv`. The inner queue is private, so only queue pairs of message
        // domains can use it. The device therefore checks the keys in the protection domain of a message domain.
        unsafe { self.srq.post_recv(requests) }
    }

    /// Requests an event when fewer receives than `limit` are posted: `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// See [`SharedReceiveQueue::arm_limit`].
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError> {
        self.srq.arm_limit(limit)
    }

    /// Returns the limit from the device: `ibv_query_srq(3)`.
    ///
    /// # Errors
    /// Fails like the verb.
    pub fn limit(&self) -> Result<u32, VerbError> {
        self.srq.limit()
    }

    /// Resizes the queue to hold at least `depth` receives: `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// See [`SharedReceiveQueue::resize`].
    pub fn resize(&mut self, depth: u32) -> Result<(), VerbError> {
        self.srq.resize(depth)
    }
}
