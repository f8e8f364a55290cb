//! The verbs contract: devices, protection domains, memory regions, completion queues and queue pairs as traits.
//!
//! [`soft`], a device in software, implements it, and `verbs`, by the system's libibverbs. What is above this line
//! ([`crate::lane`]) is written once, for any provider.
//! [`connect`] makes queue pairs each other's peers, on any provider.
//!
//! Control objects (device, protection domain, memory region) are shared: children hold their parents. Data-path objects
//! (completion queue, queue pair) belong to one worker: `Send`, not `Sync`, not `Clone`, and polled and posted to by
//! `&mut`.
//!
//! The data path has two forms. The general one follows the C interface: work requests with scatter/gather lists, a
//! cursor over completions. The **run** form moves many packets at once and is what lanes use: a run of slots is posted
//! in one call, a run of completions is polled into fixed arrays. Both may be mixed on one queue; order is kept.

mod ah_cache;
mod attributes;
mod code;
mod completion;
pub mod connect;
mod event;
mod flags;
mod request;
mod rss;
pub mod soft;
mod spec;
mod status;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wr_id;

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use ah_cache::AhCache;
pub use attributes::{AttributeMask, Path, QpAttributes, QpState, QpType, TransitionError, check_transition};
pub use completion::{Completion, Completions, Cursor, RUN, TagInfo};
pub use event::{AsyncEvent, EventKind, EventSubject};
pub use flags::{Access, CqFlags, PollFields, SendFlags, WcFlags, WcOpcode, WrOpcode};
pub use request::{Destination, MwBind, PostError, RecvRequest, Remote, SendOp, SendRequest, Sge};
pub use rss::{RssFields, RssSpec};
pub use spec::{
    Capabilities, Capability, CqApi, CqGranted, CqSpec, DeviceInfo, GidEntry, GidKind, LinkLayer, Missing, MwKind,
    PortAttributes, PortState, QpCaps, QpSpec, SendApi, SrqSpec,
};
pub use status::WcStatus;
pub use wr_id::{WrId, WrKind};

use crate::clock::Timebase;
use crate::error::{Error, Result, VerbError};
use crate::mem::{Memlock, Region, Run, SlotLayout};
use crate::units::{Gid, Lkey, QpNum, Rkey, Ticks};

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
    /// Its completion channels.
    type Channel: CompletionChannel;

    /// Its name.
    fn name(&self) -> &str;

    /// What it can do: asked for once, when it was opened.
    fn capabilities(&self) -> &Capabilities;

    /// The state of a port, from 1: `ibv_query_port(3)`.
    ///
    /// # Errors
    /// `EINVAL`: no such port.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbError>;

    /// The addresses of a port, those that are set: `ibv_query_gid_table(3)`.
    ///
    /// # Errors
    /// `EINVAL`: no such port.
    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError>;

    /// A partition key of a port: `ibv_query_pkey(3)`.
    ///
    /// # Errors
    /// `EINVAL`: no such port, or no such place in its table.
    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError>;

    /// The clock that completion stamps count, as the device describes it: `completion_timestamp_mask` and
    /// `hca_core_clock` (in kHz) of `ibv_query_device_ex(3)`.
    fn timebase(&self) -> Timebase;

    /// Whether wall-clock stamps are of the host's own clock, and not of one of the device.
    fn wallclock_is_hosts(&self) -> bool {
        false
    }

    /// What that clock shows now: `ibv_query_rt_values_ex(3)`, whose `raw_clock.tv_nsec` is ticks. It takes about a
    /// microsecond of the bus, so it is not for workers; and a device that is gone is not asked, only answered for.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: it cannot be read. `EIO`: the device is gone.
    fn raw_clock(&self) -> Result<Ticks, VerbError>;

    /// `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    /// As the verb.
    fn alloc_pd(&self) -> Result<Self::Pd, VerbError>;

    /// `ibv_create_comp_channel(3)`.
    ///
    /// # Errors
    /// As the verb.
    fn create_channel(&self) -> Result<Self::Channel, VerbError>;

    /// `ibv_create_cq_ex(3)`, or `ibv_create_cq(3)`. What is not to be had of the wishes is left out, by name, in the
    /// answer. With a channel, armed completions come out of it.
    ///
    /// # Errors
    /// `EINVAL`: no entries, more than the device has, or no such completion vector.
    fn create_cq(&self, spec: &CqSpec, channel: Option<&Self::Channel>) -> Result<(Self::Cq, CqGranted), VerbError>;

    /// Waits for the next asynchronous event: `ibv_get_async_event(3)`, and `ibv_ack_async_event(3)`. `None`: there was
    /// none in this time. A device that is gone says [`EventKind::DeviceFatal`].
    fn wait_async_event(&self, patience: Duration) -> Option<AsyncEvent>;

    /// The next asynchronous event, if there is one now.
    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.wait_async_event(Duration::ZERO)
    }
}

/// A completion channel: where a thread sleeps until an armed completion queue has something. Clones are the same
/// channel. Its events are acknowledged in batches, and before their queue is destroyed.
pub trait CompletionChannel: Clone + Send + Sync + 'static {
    /// Waits for an event: `ibv_get_cq_event(3)`. The number of the queue that it is of, which is not armed any more;
    /// `None`: there was none in this time.
    ///
    /// # Errors
    /// The device is gone.
    fn wait(&self, patience: Duration) -> Result<Option<u32>, VerbError>;

    /// What is readable when there is an event, to wait for several channels at once. `None`: this one is waited for
    /// alone.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A protection domain. Clones are the same domain.
pub trait ProtectionDomain: Clone + Send + Sync + 'static {
    /// Its memory regions. Each shares the [`Region`], so registered memory is not unmapped.
    type Mr: MemoryRegion;
    /// Its queue pairs.
    type Qp: QueuePair<Mr = Self::Mr, Ah = Self::Ah, Mw = Self::Mw>;
    /// The completion queues they report to.
    type Cq: CompletionQueue;
    /// Its shared receive queues.
    type Srq: SharedReceiveQueue;
    /// Its address handles.
    type Ah: AddressHandle;
    /// Its memory windows.
    type Mw: MemoryWindow;

    /// Registers a part of a region, or all of it (`..`): `ibv_reg_mr(3)`.
    ///
    /// # Errors
    /// `EINVAL`: remote writing or atomics without local writing, or a part that is empty or not in the region.
    /// `ENOMEM`: over `RLIMIT_MEMLOCK`; `EPERM`: that is 0. [`register_error`] tells more.
    fn register_part(&self, region: Arc<Region>, part: Range<usize>, access: Access) -> Result<Self::Mr, VerbError>;

    /// Registers a whole region.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register_part`].
    fn register(&self, region: Arc<Region>, access: Access) -> Result<Self::Mr, VerbError> {
        let all = 0..region.len();
        self.register_part(region, all, access)
    }

    /// `ibv_alloc_mw(3)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device has no such windows.
    fn alloc_mw(&self, kind: MwKind) -> Result<Self::Mw, VerbError>;

    /// `ibv_create_ah(3)`. May resolve addresses, and so take time: not for a worker's loop.
    ///
    /// # Errors
    /// `EINVAL`: no such port or source address. `EHOSTUNREACH`, `ETIMEDOUT`: the peer is not to be found.
    fn create_ah(&self, path: &Path) -> Result<Self::Ah, VerbError>;

    /// `ibv_create_srq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: more of something than the device has. `EOPNOTSUPP`: it has no such queues.
    fn create_srq(&self, spec: &SrqSpec) -> Result<Self::Srq, VerbError>;

    /// Makes a queue pair in state RESET: `ibv_create_qp(3)`. It reports to the two completion queues, which may be one,
    /// and takes its receives from the shared queue where one is given.
    ///
    /// # Errors
    /// `EINVAL`: more of something than the device has. `EOPNOTSUPP`: not this type. `EPERM`: raw packets without
    /// `CAP_NET_RAW`.
    fn create_qp(
        &self,
        spec: &QpSpec,
        send: &Self::Cq,
        recv: &Self::Cq,
        srq: Option<&Self::Srq>,
    ) -> Result<Self::Qp, VerbError>;
}

/// Says why memory could not be registered: where a limit of this process is the reason, with its numbers and every way
/// to change it.
pub fn register_error(error: VerbError, device: &str, bytes: usize) -> Error {
    let limited = matches!(error.errno, libc::ENOMEM | libc::EPERM);
    match limited.then(|| Memlock::of_this_process().shortage(bytes as u64)).flatten() {
        Some(shortage) => Error::Memory(format!("{device}: {error}: {shortage}")),
        None => error.on(device),
    }
}

/// Registered memory. Clones are the same registration; the last one dropped ends it.
pub trait MemoryRegion: Clone + fmt::Debug + Send + Sync + 'static {
    /// The key that names it in a scatter/gather element.
    fn lkey(&self) -> Lkey;

    /// The key by which a peer names it.
    fn rkey(&self) -> Rkey;

    /// The memory that it is in.
    fn region(&self) -> &Arc<Region>;
}

/// A memory window: a part of a region that is opened to the peer, and closed again, by work requests.
pub trait MemoryWindow: fmt::Debug + Send + 'static {
    /// Whether binding takes a request of its own (type 1) or a send request (type 2).
    fn kind(&self) -> MwKind;

    /// The key by which the peer names it: of the last binding.
    fn rkey(&self) -> Rkey;
}

/// The way to a peer, ready for use in requests. Clones are the same handle.
pub trait AddressHandle: Clone + fmt::Debug + Send + Sync + 'static {
    /// What it was made of.
    fn path(&self) -> &Path;
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

    /// Polls up to `limit` completions (at most [`RUN`]) into `run`, whose former content is gone. Returns how many. What
    /// there is of each [`Completions::failed`] and [`Completions::in_order`] say.
    ///
    /// # Errors
    /// As [`CompletionQueue::start_poll`]; `run` is then empty.
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError>;

    /// Lets the next completion (or, of receives, the next that was sent solicited, and any error) be an event of its
    /// channel: `ibv_req_notify_cq(3)`. What came before is none: poll once more before waiting.
    ///
    /// # Errors
    /// It has no channel.
    fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError>;

    /// Gives it at least this many entries: `ibv_resize_cq(3)`. Returns how many it has then.
    ///
    /// # Errors
    /// `EINVAL`: more than the device has, or fewer than are in it. `EOPNOTSUPP`: not by this device.
    fn resize(&mut self, depth: u32) -> Result<u32, VerbError>;
}

/// A receive queue that several queue pairs take from. Posted to by one thread at a time; clones are the same queue.
#[allow(unsafe_code, reason = "what is posted is lent to the device, and who posts must keep to that")]
pub trait SharedReceiveQueue: Clone + Send {
    /// Its number, by which asynchronous events name it.
    fn number(&self) -> u32;

    /// How many receives it has room for; at least what was asked for.
    fn depth(&self) -> u32;

    /// Posts receives: `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The memory of accepted requests is the device's to write until their completions have been polled, or the queue
    /// and the queue pairs on it were dropped: nobody else may read or write it, unless atomically a byte at a time.
    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Lets it raise [`EventKind::SrqLimitReached`] once when fewer than this many receives are left:
    /// `ibv_modify_srq(3)`. 0 takes the watch off.
    ///
    /// # Errors
    /// `EINVAL`: more than it has room for.
    fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError>;

    /// The limit that is watched for; 0: none, or it was reached. `ibv_query_srq(3)`.
    ///
    /// # Errors
    /// As the verb.
    fn limit(&self) -> Result<u32, VerbError>;

    /// Gives it room for at least this many receives: `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: more than the device has. `EOPNOTSUPP`: not by this device.
    fn resize(&mut self, depth: u32) -> Result<(), VerbError>;
}

/// A queue pair, posted to by one worker.
#[allow(unsafe_code, reason = "what is posted is lent to the device, and who posts must keep to that")]
pub trait QueuePair: Send {
    /// The memory that its requests name.
    type Mr: MemoryRegion;
    /// The ways that its datagrams go.
    type Ah: AddressHandle;
    /// The windows that it binds.
    type Mw: MemoryWindow;

    /// Its number.
    fn number(&self) -> QpNum;

    /// Its type.
    fn kind(&self) -> QpType;

    /// What was granted; at least what was asked for.
    fn caps(&self) -> QpCaps;

    /// Its state, as far as this side knows: the last that was set, or ERR once a completion has said so.
    fn state(&self) -> QpState;

    /// Its state and attributes as the device has them: `ibv_query_qp(3)`.
    ///
    /// # Errors
    /// As the verb.
    fn query(&self) -> Result<QpAttributes, VerbError>;

    /// Changes attributes, the state among them: `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the transition does not exist, or wants other attributes; nothing has changed.
    fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError>;

    /// Says what the slots of runs are: those of `layout` in `mr`. The `wr_id` of a receive posted in a run is
    /// `recv_wr_id + slot`.
    ///
    /// # Errors
    /// `EINVAL`: the layout does not fit the region. `EBUSY`: runs were posted since RESET, and may be outstanding.
    fn bind_slots(&mut self, mr: &Self::Mr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError>;

    /// Posts receives: `ibv_post_recv(3)`, one doorbell for all.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The memory of accepted requests is the device's to write until their completions have been polled, or the queue
    /// pair was reset or dropped: nobody else may read or write it, unless atomically a byte at a time.
    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Posts a run of slots to receive into: each from the layout's headroom on, with all its room. Not of a queue pair
    /// that takes its receives from a shared queue.
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
    /// The memory of accepted requests that are not inline must not be written, unless atomically a byte at a time, until
    /// a completion of it, or of a later request, has been polled, or the queue pair was reset or dropped. Memory that a
    /// read or an atomic writes must not be read either.
    unsafe fn post_send(&mut self, requests: &[SendRequest<'_, Self::Ah>]) -> Result<(), PostError>;

    /// Binds a window to a part of a region, by `ibv_bind_mw(3)` or a send request as its kind wants it. The window has
    /// its new key at return; the peer may use it when the request has completed.
    ///
    /// # Errors
    /// See [`PostError`].
    fn bind_mw(&mut self, mw: &mut Self::Mw, bind: &MwBind<'_, Self::Mr>) -> Result<(), PostError>;

    /// Ends it: `ibv_destroy_qp(3)`. Dropping it does the same, and can tell nobody but the log that it failed.
    ///
    /// # Errors
    /// The device still has it, and all that was posted to it. `EBUSY`, among others: another thread polls a queue of it;
    /// it ends when that is over.
    fn destroy(self) -> Result<(), VerbError>
    where
        Self: Sized;

    /// Says where runs are sent to; for unreliable datagrams only.
    ///
    /// # Errors
    /// `EINVAL`: another type of queue pair.
    fn bind_peer(&mut self, to: Destination<'_, Self::Ah>) -> Result<(), VerbError>;

    /// Takes in what is sent to a group of multicast: `ibv_attach_mcast(3)`. Of unreliable datagrams.
    ///
    /// # Errors
    /// `EINVAL`: no multicast address, or not this type.
    fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>;

    /// Ends it: `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    /// `EINVAL`: it takes in nothing of that group.
    fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>;

    /// Posts a run of packets to send, as they are in their slots: to where [`QueuePair::bind_peer`] said, for datagrams.
    /// The i-th has `wr_id` `first_wr_id + i`; the last alone is signalled.
    ///
    /// # Errors
    /// See [`PostError`]. Where only a part was accepted its last may not be signalled: it is over when a later one is.
    ///
    /// # Safety
    /// As [`QueuePair::post_send`]; and nobody may write to the memory, atomically or not.
    unsafe fn post_send_run(&mut self, run: &Run<'_>, first_wr_id: u64) -> Result<(), PostError>;

    /// Whether sends complete in the moment in which they are posted: a later poll finds of them what an earlier one does.
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Whether nothing will be received any more: a capture that is played to its end. A wire never ends.
    fn source_ended(&self) -> bool {
        false
    }
}
