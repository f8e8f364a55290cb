//! Queue pairs and shared receive queues that may be posted anything to.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::VerbError;
use crate::lane::message::{Ah, Buffer, Memories, Mw, Qp, Srq};
use crate::provider::{
    Access, AttributeMask, Device, MwBind, PostError, QpAttributes, QpCaps, QpState, QpType, QueuePair, RecvRequest,
    SendFlags, SendRequest, Sge, SharedReceiveQueue,
};
use crate::units::{Gid, QpNum};

/// A queue pair of a [`MessageDomain`](super::MessageDomain). One worker's.
pub struct MessageQueuePair<D: Device> {
    qp: Qp<D>,
    memories: Arc<Memories<D>>,
    /// What is sent inline, and its elements: kept so that no post allocates once they have grown.
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

/// What a memory window is bound to: as [`MwBind`], of a buffer.
#[derive(Clone, Debug)]
pub struct Binding<'a, D: Device> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Signalled, fenced.
    pub flags: SendFlags,
    /// Whose part is opened; registered with [`Access::MW_BIND`].
    pub buffer: &'a Buffer<D>,
    /// The part. It is not looked at whether the buffer has it. An empty one takes the window off (type 1 only).
    pub part: Range<usize>,
    /// What the peer may do there.
    pub access: Access,
}

impl<D: Device> MessageQueuePair<D> {
    pub(super) fn new(qp: Qp<D>, memories: Arc<Memories<D>>) -> Self {
        Self { qp, memories, inline: Vec::new(), elements: Vec::new() }
    }

    /// Its number.
    pub fn number(&self) -> QpNum {
        self.qp.number()
    }

    /// Its type.
    pub fn kind(&self) -> QpType {
        self.qp.kind()
    }

    /// What was granted.
    pub fn caps(&self) -> QpCaps {
        self.qp.caps()
    }

    /// Its state as far as this side knows.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Its state and attributes as the device has them: `ibv_query_qp(3)`.
    ///
    /// # Errors
    /// As the verb.
    pub fn query(&self) -> Result<QpAttributes, VerbError> {
        self.qp.query()
    }

    /// Changes attributes, the state among them: `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::modify`].
    pub fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError> {
        self.qp.modify(attributes, mask)
    }

    /// Posts receives: `ibv_post_recv(3)`.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the keys of this queue pair's protection domain are those of buffers, which are touched atomically a
        // byte at a time. The device refuses every other key. A buffer's memory is there as long as its key is.
        unsafe { self.qp.post_recv(requests) }
    }

    /// Posts sends: `ibv_post_send(3)`. A doorbell for each run of requests that are not inline, and for each that is.
    ///
    /// # Errors
    /// See [`PostError`]; `EINVAL`: more bytes to send inline than were granted; `EFAULT`: they are in no buffer of the
    /// domain.
    pub fn post_send(&mut self, requests: &[SendRequest<'_, Ah<D>>]) -> Result<(), PostError> {
        let inline = |request: &SendRequest<'_, Ah<D>>| request.flags.contains(SendFlags::INLINE);
        let mut accepted = 0;
        for some in requests.chunk_by(|a, b| !inline(a) && !inline(b)) {
            let posted = match some {
                [one] if inline(one) => self.post_inline(one),
                // SAFETY: as in `post_recv`.
                some => unsafe { self.qp.post_send(some) },
            };
            posted.map_err(|refused| PostError { accepted: accepted + refused.accepted, ..refused })?;
            accepted += some.len();
        }
        Ok(())
    }

    /// Posts a request whose bytes the library reads: those of a copy.
    fn post_inline(&mut self, request: &SendRequest<'_, Ah<D>>) -> Result<(), PostError> {
        let refuse = |errno| Err(PostError { accepted: 0, error: VerbError::new("ibv_post_send", errno) });
        let length: u64 = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if length > u64::from(self.qp.caps().inline) {
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
        // SAFETY: the elements name the bytes of `inline`, which are read before this returns. Where the library does
        // not copy, as of a read, the device has them, and no key of this protection domain has them inside.
        unsafe { self.qp.post_send(&[copied]) }
    }

    /// Binds a window: `ibv_bind_mw(3)`, or a send request, as its kind wants it.
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

    /// Takes in what is sent to a group of multicast: `ibv_attach_mcast(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::attach_multicast`].
    pub fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.qp.attach_multicast(group, lid)
    }

    /// Ends it: `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    /// See [`QueuePair::detach_multicast`].
    pub fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        self.qp.detach_multicast(group, lid)
    }
}

/// A shared receive queue of a [`MessageDomain`](super::MessageDomain).
pub struct MessageSharedQueue<D: Device>(Srq<D>);

impl<D: Device> fmt::Debug for MessageSharedQueue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSharedQueue").field("number", &self.0.number()).finish_non_exhaustive()
    }
}

impl<D: Device> MessageSharedQueue<D> {
    pub(super) fn new(srq: Srq<D>) -> Self {
        Self(srq)
    }

    pub(super) fn inner(&self) -> &Srq<D> {
        &self.0
    }

    /// Its number, by which asynchronous events name it.
    pub fn number(&self) -> u32 {
        self.0.number()
    }

    /// How many receives it has room for.
    pub fn depth(&self) -> u32 {
        self.0.depth()
    }

    /// Posts receives: `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: as of `MessageQueuePair::post_recv`. The queue is not handed out, so only queue pairs of such domains
        // can be made on it, whichever protection domain the device looks in.
        unsafe { self.0.post_recv(requests) }
    }

    /// Watches for fewer receives than this: `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// See [`SharedReceiveQueue::arm_limit`].
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError> {
        self.0.arm_limit(limit)
    }

    /// The limit that is watched for: `ibv_query_srq(3)`.
    ///
    /// # Errors
    /// As the verb.
    pub fn limit(&self) -> Result<u32, VerbError> {
        self.0.limit()
    }

    /// Gives it room for at least this many: `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// See [`SharedReceiveQueue::resize`].
    pub fn resize(&mut self, depth: u32) -> Result<(), VerbError> {
        self.0.resize(depth)
    }
}
