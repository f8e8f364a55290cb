//! The verbs contract: devices, protection domains, memory regions, completion queues and queue pairs as traits.
//!
//! [`soft`], a device in software, implements it; `verbs`, the system's libibverbs, lists devices so far and asks what
//! they can do. What is above this line ([`crate::lane`]) is written once, for any provider.
//!
//! Control objects (device, protection domain, memory region) are shared: children hold their parents. Data-path objects
//! (completion queue, queue pair) belong to one worker: `Send`, not `Sync`, not `Clone`, and polled and posted to by
//! `&mut`.
//!
//! The data path has two forms. The general one follows the C interface: work requests with scatter/gather lists, a
//! cursor over completions. The **run** form moves many packets at once and is what lanes use: a run of slots is posted
//! in one call, a run of completions is polled into fixed arrays. Both may be mixed on one queue; order is kept.

mod attributes;
mod code;
mod completion;
mod event;
mod flags;
pub mod soft;
mod spec;
mod status;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wr_id;

use std::fmt;
use std::sync::Arc;

pub use attributes::{AttributeMask, Path, QpAttributes, QpState, QpType, TransitionError, check_transition};
pub use completion::{Completion, Completions, Cursor, RUN};
pub use event::{AsyncEvent, EventKind, EventSubject};
pub use flags::{Access, CqFlags, PollFields, SendFlags, WcFlags, WcOpcode, WrOpcode};
pub use spec::{Capabilities, Capability, CqGranted, CqSpec, DeviceInfo, PortAttributes, QpCaps, QpSpec};
pub use status::WcStatus;
pub use wr_id::{WrId, WrKind};

use crate::clock::Timebase;
use crate::error::{Result, VerbError};
use crate::mem::{Desc, Region, SlotLayout};
use crate::units::{Lkey, QpNum};

/// A source of devices.
pub trait Provider: 'static {
    /// What it opens.
    type Device: Device;

    /// The devices that there are.
    ///
    /// # Errors
    /// They could not be listed.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Opens one.
    ///
    /// # Errors
    /// There is no device of that name, or it may not be opened.
    fn open(&self, name: &str) -> Result<Self::Device>;
}

/// An open device: `ibv_open_device(3)`. Clones are the same device.
pub trait Device: Clone + Send + Sync + 'static {
    /// Its protection domains.
    type Pd: ProtectionDomain<Cq = Self::Cq>;
    /// Its completion queues.
    type Cq: CompletionQueue;

    /// Its name.
    fn name(&self) -> &str;

    /// What it can do: asked for once, when it was opened.
    fn capabilities(&self) -> &Capabilities;

    /// The state of a port, from 1.
    ///
    /// # Errors
    /// `EINVAL`: no such port.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbError>;

    /// The clock that completion stamps count.
    fn timebase(&self) -> Timebase;

    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    /// As the verb.
    fn alloc_pd(&self) -> Result<Self::Pd, VerbError>;

    /// `ibv_create_cq_ex(3)`. What is not to be had of the wishes is left out, by name, in the answer.
    ///
    /// # Errors
    /// `EINVAL`: no entries, or more than the device has.
    fn create_cq(&self, spec: &CqSpec) -> Result<(Self::Cq, CqGranted), VerbError>;

    /// The next asynchronous event, or `None`: `ibv_get_async_event(3)` on a descriptor that does not block, and
    /// `ibv_ack_async_event(3)`.
    fn poll_async_event(&self) -> Option<AsyncEvent>;
}

/// A protection domain. Clones are the same domain.
pub trait ProtectionDomain: Clone + Send + Sync + 'static {
    /// Its memory regions. Each shares the [`Region`], so registered memory is not unmapped.
    type Mr: MemoryRegion;
    /// Its queue pairs.
    type Qp: QueuePair<Mr = Self::Mr>;
    /// The completion queues they report to.
    type Cq: CompletionQueue;

    /// Registers a whole region: `ibv_reg_mr(3)`.
    ///
    /// # Errors
    /// `EINVAL`: remote writing without local writing. `ENOMEM`: over `RLIMIT_MEMLOCK`.
    fn register(&self, region: Arc<Region>, access: Access) -> Result<Self::Mr, VerbError>;

    /// Makes a queue pair in state RESET: `ibv_create_qp(3)`. It reports to the two completion queues, which may be one.
    ///
    /// # Errors
    /// `EINVAL`: more of something than the device has. `EOPNOTSUPP`: not this type. `EPERM`: raw packets without
    /// `CAP_NET_RAW`.
    fn create_qp(&self, spec: &QpSpec, send: &Self::Cq, recv: &Self::Cq) -> Result<Self::Qp, VerbError>;
}

/// Registered memory. Clones are the same registration; the last one dropped ends it.
pub trait MemoryRegion: Clone + fmt::Debug + Send + Sync + 'static {
    /// The key that names it in a scatter/gather element.
    fn lkey(&self) -> Lkey;

    /// The memory.
    fn region(&self) -> &Arc<Region>;
}

/// A completion queue, polled by one worker.
pub trait CompletionQueue: Send {
    /// The completion under the cursor, and the way to the next: dropping it ends the poll.
    type Cursor<'cq>: Cursor
    where
        Self: 'cq;

    /// Its number, by which asynchronous events name it.
    fn number(&self) -> u32;

    /// How many entries it has; at least what was asked for.
    fn depth(&self) -> u32;

    /// Starts to poll: `ibv_start_poll(3)`. `None`: it is empty (`ENOENT`), or busy for a moment (`EBUSY`).
    ///
    /// # Errors
    /// It cannot be used any more: it overran, or the device is gone.
    fn start_poll(&mut self) -> Result<Option<Self::Cursor<'_>>, VerbError>;

    /// Polls up to `limit` completions (at most [`RUN`]) into `run`, whose former content is gone. Returns how many.
    ///
    /// # Errors
    /// As [`CompletionQueue::start_poll`]; `run` is then empty.
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError>;
}

/// A scatter/gather element: `struct ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The first byte, as an address of this process.
    pub addr: u64,
    /// How many bytes.
    pub length: u32,
    /// The region that they are in.
    pub lkey: Lkey,
}

/// A receive work request: `struct ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// Where the message goes, in order.
    pub sges: &'a [Sge],
}

/// Where a datagram of an unreliable-datagram queue pair goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address handle's GID.
    pub gid: [u8; 16],
    /// The queue pair there.
    pub qp: QpNum,
    /// What it must have as its `qkey`.
    pub qkey: u32,
}

/// A send work request: `struct ibv_send_wr`.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub opcode: WrOpcode,
    /// Signalled, inline, and so on.
    pub flags: SendFlags,
    /// What to send, in order.
    pub sges: &'a [Sge],
    /// Immediate data, in network order; sent by the opcodes `..WITH_IMM`.
    pub imm: u32,
    /// Where to; for unreliable datagrams only.
    pub to: Option<Destination>,
}

/// A post that failed: those before it were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// How many requests of the call the device now owns. They will complete.
    pub accepted: usize,
    /// Why the next was refused: `ENOMEM`, the queue is full; `EINVAL`, the request or the queue pair's state.
    pub error: VerbError,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after {} accepted)", self.error, self.accepted)
    }
}

impl std::error::Error for PostError {}

/// A queue pair, posted to by one worker.
#[allow(unsafe_code, reason = "what is posted is lent to the device, and who posts must keep to that")]
pub trait QueuePair: Send {
    /// The memory that its requests name.
    type Mr: MemoryRegion;

    /// Its number.
    fn number(&self) -> QpNum;

    /// What was granted; at least what was asked for.
    fn caps(&self) -> QpCaps;

    /// Its state.
    fn state(&self) -> QpState;

    /// Changes attributes, the state among them: `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the transition does not exist, or wants other attributes; nothing has changed.
    fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError>;

    /// Says what the slots of runs are: those of `layout` in `mr`. The `wr_id` of a receive posted in a run is
    /// `recv_wr_id + slot`.
    ///
    /// # Errors
    /// `EINVAL`: the layout does not fit the region. `EBUSY`: runs are outstanding.
    fn bind_slots(&mut self, mr: &Self::Mr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError>;

    /// Posts receives: `ibv_post_recv(3)`, one doorbell for all.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The memory of accepted requests is the device's to write until their completions have been polled, or the queue
    /// pair was reset or dropped: nobody else may read or write it.
    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Posts a run of slots to receive into: each from the layout's headroom on, with all its room.
    ///
    /// # Errors
    /// See [`PostError`]; `EINVAL` for a slot that the layout does not have.
    ///
    /// # Safety
    /// As [`QueuePair::post_recv`].
    unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError>;

    /// Posts sends: `ibv_post_send(3)`, one doorbell for all.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The memory of accepted requests that are not inline must not be written until a completion of it, or of a later
    /// request, has been polled, or the queue pair was reset or dropped.
    unsafe fn post_send(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts a run of packets to send, as they are in their slots. The i-th has `wr_id` `first_wr_id + i`; the last
    /// alone is signalled.
    ///
    /// # Errors
    /// See [`PostError`]. Where only a part was accepted its last is signalled.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`].
    unsafe fn post_send_run(&mut self, run: &[Desc], first_wr_id: u64) -> Result<(), PostError>;

    /// Whether nothing will be received any more: a capture that is played to its end. A wire never ends.
    fn source_ended(&self) -> bool {
        false
    }
}
