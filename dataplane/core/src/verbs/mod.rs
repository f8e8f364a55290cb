//! The verbs contract: devices, protection domains, memory regions, completion queues and queue pairs as traits.
//!
//! Two providers implement the contract: `soft`, a device in software, and `verbs`, which calls libibverbs. The code
//! above this layer ([`crate::lane`]) is generic over the provider. A lane is one worker's queue pair and completion
//! queues on one port. [`crate::connect`] connects queue pairs to each other on any provider.
//!
//! A completion returns the ownership of a packet buffer from the device to the lane. The traits that lanes rely on are
//! therefore `unsafe` to implement, and each trait lists the guarantees that an implementation must give. No `unsafe`
//! code relies on the safe traits. No `unsafe` code relies on a [`Completion`] either, because safe code can create a
//! `Completion`.
//!
//! Control objects (device, protection domain, memory region) are shared, and each object holds a reference to the
//! object that created it. Data-path objects (completion queue, queue pair) belong to one worker. Data-path objects are
//! `Send`, not `Sync` and not `Clone`. Polls and posts need `&mut`.
//!
//! The data path has two forms. The general form follows the C interface: work requests with scatter/gather lists, and
//! a cursor over completions. The **run** form moves many packets per call, and lanes use this form. One call posts a
//! run of slots, or polls a run of completions into fixed arrays. A program may mix both forms on one queue. The order
//! of the requests is preserved.

mod ah_cache;
mod attributes;
mod code;
mod completion;
mod event;
mod flags;
mod owner;
mod raw;
mod request;
mod rss;
mod spec;
mod status;
mod wr_id;

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub use crate::mem::{RecvFlags, RecvInfo};
pub use ah_cache::AhCache;
pub use attributes::{AttributeMask, Path, QpAttributes, QpState, QpType, TransitionError, check_transition};
pub use completion::{Completion, CompletionValues, Completions, Cursor, MAX_RUN, TagInfo};
pub use event::{AsyncEvent, CqEvent, EventKind, EventSubject};
pub use flags::{Access, CqFlags, PollFields, SendFlags, WcFlags, WcOpcode, WrOpcode};
pub use owner::{Claim, ClaimGuard, QueueOwner};
pub use raw::{
    EthernetMatch, FlowCount, FlowCounters, FlowError, FlowLimits, FlowRule, FlowTraffic, HeaderMatch, IpMatch,
    Ipv4Match, Ipv6Match, MaskedValue, MatchedField, PortsMatch, RateLimit, RawDevice, RawError, RawPacketCaps,
    RawReceive, RawSpec, RssCaps, TransportMatch, TunnelMatch, checksum_covers_payload, frame_length,
};
pub use request::{Destination, MwBind, PostError, RecvRequest, Remote, SendOp, SendRequest, Sge};
pub use rss::{RssFields, RssKey, RssSpec};
pub use spec::{
    Capabilities, Capability, CqApi, CqGranted, CqSpec, DeviceInfo, Ece, GidEntry, GidKind, LinkLayer, Missing, MwKind,
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
    /// The device type that the provider opens.
    type Device: Device;

    /// Lists the available devices.
    ///
    /// # Errors
    /// The devices cannot be listed.
    fn devices(&self) -> Result<Vec<DeviceInfo>>;

    /// Opens the device `name`.
    ///
    /// # Errors
    /// No device has that name, or the process is not permitted to open the device.
    fn open(&self, name: &str) -> Result<Self::Device>;
}

/// An open device: `ibv_open_device(3)`. Clones refer to the same device.
///
/// # Safety
/// [`Device::alloc_pd`] returns a new protection domain: no registration of another domain is valid in the new domain.
/// [`Device::checks_every_key`] returns `true` only if the device checks keys as the method describes.
#[allow(unsafe_code, reason = "safe code of higher layers relies on the guarantees of an implementation")]
pub unsafe trait Device: Clone + Send + Sync + 'static {
    /// The device's protection domains.
    type Pd: ProtectionDomain<Cq = Self::Cq>;
    /// The device's completion queues.
    type Cq: CompletionQueue;
    /// The device's completion channels.
    type Channel: CompletionChannel;

    /// Returns the device's name.
    fn name(&self) -> &str;

    /// Returns the capabilities, which are queried once when the device is opened.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the reason why the device lacks a capability. Returns `None` if the device has the capability or the
    /// reason is not known.
    fn missing_reason(&self, _: Capability) -> Option<&str> {
        None
    }

    /// Returns `true` if the device checks the memory key of each scatter/gather element before it accesses the memory
    /// of the element. The read of inline bytes in `ibv_post_send` is an exception. Returns `false` if the library of
    /// the device accesses memory in user space without this check. For example, libmlx5 copies a short message from
    /// the completion to the memory of the receive.
    fn checks_every_key(&self) -> bool;

    /// Returns the attributes of a port. The first port has the number 1. `ibv_query_port(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the port does not exist.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbError>;

    /// Returns the entries of a port's GID table that are set: `ibv_query_gid_table(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the port does not exist.
    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbError>;

    /// Returns an entry of a port's GID table: `ibv_query_gid_ex(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the port does not exist. `ENODATA`: the entry is not set, or the table has no such index.
    fn gid(&self, port: u8, index: u32) -> Result<GidEntry, VerbError> {
        let entry = self.gids(port)?.into_iter().find(|entry| entry.index == index);
        entry.ok_or(VerbError::new("ibv_query_gid_ex", libc::ENODATA))
    }

    /// Returns a partition key of a port: `ibv_query_pkey(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the port does not exist, or its table has no such index.
    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbError>;

    /// Returns the timebase of completion timestamps: `completion_timestamp_mask` and `hca_core_clock` (in kHz) of
    /// `ibv_query_device_ex(3)`.
    fn timebase(&self) -> Timebase;

    /// Returns whether wall-clock timestamps come from the system's wall clock instead of a clock of the device.
    fn wallclock_is_system(&self) -> bool {
        false
    }

    /// Reads the device clock now: `ibv_query_rt_values_ex(3)`, whose `raw_clock.tv_nsec` is in ticks.
    ///
    /// A read takes about a microsecond on the bus, so workers do not call this function. If the device is gone, the
    /// function returns an error without accessing the device.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the clock cannot be read. `EIO`: the device is gone.
    fn raw_clock(&self) -> Result<Ticks, VerbError>;

    /// Allocates a protection domain: `ibv_alloc_pd(3)`.
    ///
    /// # Errors
    /// The errors of the verb.
    fn alloc_pd(&self) -> Result<Self::Pd, VerbError>;

    /// Creates a completion channel: `ibv_create_comp_channel(3)`.
    ///
    /// # Errors
    /// The errors of the verb.
    fn create_channel(&self) -> Result<Self::Channel, VerbError>;

    /// Creates a completion queue: `ibv_create_cq_ex(3)`, or `ibv_create_cq(3)`.
    ///
    /// The provider leaves out requested features that the device lacks, and lists them in the returned [`CqGranted`].
    /// With a channel, an armed queue raises its completion events on that channel.
    ///
    /// # Errors
    /// `EINVAL`: a depth of 0, a depth above the device's limit, or a completion vector that does not exist.
    fn create_cq(&self, spec: &CqSpec, channel: Option<&Self::Channel>) -> Result<(Self::Cq, CqGranted), VerbError>;

    /// Creates a completion queue in a parent domain: `ibv_create_cq_ex(3)` with `parent_domain`. See
    /// [`ProtectionDomain::alloc_parent`] and [`Device::create_cq`].
    ///
    /// # Errors
    /// See [`Device::create_cq`]. `EINVAL`: `domain` is not a parent domain, or belongs to another device.
    /// `EOPNOTSUPP`: the polling interface is [`CqApi::Classic`], which has no parent domains.
    fn create_cq_in(
        &self,
        domain: &Self::Pd,
        spec: &CqSpec,
        channel: Option<&Self::Channel>,
    ) -> Result<(Self::Cq, CqGranted), VerbError> {
        let _ = (domain, spec, channel);
        Err(VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP))
    }

    /// Waits for the next asynchronous event: `ibv_get_async_event(3)` and `ibv_ack_async_event(3)`. Returns `None` if
    /// there was no event within `timeout`. A device that is gone reports [`EventKind::DeviceFatal`].
    fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent>;

    /// Returns the next asynchronous event, or `None` if none is pending.
    fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.wait_async_event(Duration::ZERO)
    }
}

/// A completion channel, on which a thread sleeps until an armed completion queue has a completion. Clones refer to the
/// same channel. The provider acknowledges events in batches, and always before it destroys the completion queue of the
/// events.
pub trait CompletionChannel: Clone + Send + Sync + 'static {
    /// Waits for an event: `ibv_get_cq_event(3)`. The completion queue of the event is no longer armed. Returns `None`
    /// if there was no event within `timeout`.
    ///
    /// # Errors
    /// The device is gone.
    fn wait_event(&self, timeout: Duration) -> Result<Option<CqEvent>, VerbError>;

    /// Waits for an event, and returns the number of its completion queue. See [`CompletionChannel::wait_event`].
    ///
    /// # Errors
    /// The device is gone.
    fn wait(&self, timeout: Duration) -> Result<Option<u32>, VerbError> {
        Ok(self.wait_event(timeout)?.map(|event| event.queue))
    }

    /// Returns the descriptor that is readable while an event is pending, for waiting on several channels at once.
    /// `None`: this channel can only be waited for with [`CompletionChannel::wait`].
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A protection domain. Clones refer to the same domain.
///
/// # Safety
/// [`ProtectionDomain::register_part`] registers the region of the caller, and [`MemoryRegion::region`] of the
/// registration returns this region. A registration holds its [`Region`], so the memory stays mapped while the device
/// may access it. The device resolves every key, from a request or from a peer, in the protection domain of the queue
/// pair. The device accesses only the registered part, and only as the access rights allow.
#[allow(unsafe_code, reason = "safe code of higher layers relies on the guarantees of an implementation")]
pub unsafe trait ProtectionDomain: Clone + Send + Sync + 'static {
    /// The domain's memory regions. Each memory region holds its [`Region`], so registered memory is never unmapped.
    type Mr: MemoryRegion;
    /// The domain's queue pairs.
    type Qp: QueuePair<Mr = Self::Mr, Ah = Self::Ah, Mw = Self::Mw>;
    /// The completion queues of the queue pairs.
    type Cq: CompletionQueue;
    /// The domain's shared receive queues.
    type Srq: SharedReceiveQueue;
    /// The domain's address handles.
    type Ah: AddressHandle;
    /// The domain's memory windows.
    type Mw: MemoryWindow;

    /// Registers the bytes `part` of a region: `ibv_reg_mr(3)`.
    ///
    /// # Errors
    /// `EINVAL`: remote write or atomic access without local write access, or a part that is empty or outside the
    /// region. `ENOMEM`: the part exceeds `RLIMIT_MEMLOCK`. `EPERM`: `RLIMIT_MEMLOCK` is 0. [`register_error`] adds the
    /// limit, and how to raise the limit, to the message.
    fn register_part(&self, region: Arc<Region>, part: Range<usize>, access: Access) -> Result<Self::Mr, VerbError>;

    /// Registers a whole region.
    ///
    /// # Errors
    /// See [`ProtectionDomain::register_part`].
    fn register(&self, region: Arc<Region>, access: Access) -> Result<Self::Mr, VerbError> {
        let all = 0..region.len();
        self.register_part(region, all, access)
    }

    /// Keeps a region mapped until this domain ends. The domain ends after all its queue pairs. A provider whose
    /// [`Device::checks_every_key`] returns `true` may ignore the call.
    fn keep_mapped(&self, region: Arc<Region>);

    /// Allocates a parent domain that extends this domain: `ibv_alloc_parent_domain(3)`. The parent domain can
    /// be used in place of this domain. A key of either domain is valid in both domains. [`Device::create_cq_in`]
    /// creates completion queues in the parent domain. The parent domain has no thread domain, so any thread may use
    /// its objects. For completion queues without a lock, use [`CqFlags::SINGLE_THREADED`].
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device does not support parent domains. `EINVAL`: this domain is a parent domain.
    fn alloc_parent(&self) -> Result<Self, VerbError> {
        Err(VerbError::new("ibv_alloc_parent_domain", libc::EOPNOTSUPP))
    }

    /// Allocates a memory window: `ibv_alloc_mw(3)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device does not support windows of this kind.
    fn alloc_mw(&self, kind: MwKind) -> Result<Self::Mw, VerbError>;

    /// Creates an address handle: `ibv_create_ah(3)`. The call may resolve addresses and block, so the worker loop must
    /// not make this call.
    ///
    /// # Errors
    /// `EINVAL`: the port or the source address does not exist. `EHOSTUNREACH`, `ETIMEDOUT`: the peer cannot be
    /// resolved.
    fn create_ah(&self, path: &Path) -> Result<Self::Ah, VerbError>;

    /// Creates a shared receive queue: `ibv_create_srq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: a size above the device's limit. `EOPNOTSUPP`: the device does not support shared receive queues.
    fn create_srq(&self, spec: &SrqSpec) -> Result<Self::Srq, VerbError>;

    /// Creates a queue pair in state RESET: `ibv_create_qp(3)`. `send` and `recv` may be the same completion queue.
    /// With `srq`, the queue pair takes its receives from that shared receive queue.
    ///
    /// # Errors
    /// `EINVAL`: a size above the device's limit. `EOPNOTSUPP`: the device does not support this type. `EPERM`: raw
    /// packets without `CAP_NET_RAW`.
    fn create_qp(
        &self,
        spec: &QpSpec,
        send: &Self::Cq,
        recv: &Self::Cq,
        srq: Option<&Self::Srq>,
    ) -> Result<Self::Qp, VerbError>;
}

/// Returns the error for a failed registration of `bytes` bytes. If a limit of this process is the cause, the message
/// has the limit's value and every way to raise the limit.
pub fn register_error(error: VerbError, device: &str, bytes: usize) -> Error {
    let limited = matches!(error.errno, libc::ENOMEM | libc::EPERM);
    match limited.then(|| Memlock::of_this_process().shortage(bytes as u64)).flatten() {
        Some(shortage) => Error::Memory(format!("{device}: {error}: {shortage}")),
        None => error.on(device),
    }
}

/// Returns an error if the provider registered another region than `region`. Such a provider breaks the contract of
/// [`ProtectionDomain`]. Its device would write to memory that the caller does not own.
pub(crate) fn check_registered(mr: &impl MemoryRegion, region: &Arc<Region>, device: &str) -> Result<(), Error> {
    match Arc::ptr_eq(mr.region(), region) {
        true => Ok(()),
        false => Err(Error::Memory(format!("{device}: the provider registered another region than requested"))),
    }
}

/// A memory registration. Clones refer to the same registration; dropping the last clone ends the registration.
///
/// # Safety
/// [`MemoryRegion::region`] returns the region that was registered, for every clone and as long as the registration
/// exists.
#[allow(unsafe_code, reason = "safe code of higher layers relies on the guarantees of an implementation")]
pub unsafe trait MemoryRegion: Clone + fmt::Debug + Send + Sync + 'static {
    /// Returns the local key, which scatter/gather elements use.
    fn lkey(&self) -> Lkey;

    /// Returns the remote key, which the peer uses.
    fn rkey(&self) -> Rkey;

    /// Returns the memory that contains the registered part.
    fn region(&self) -> &Arc<Region>;
}

/// A memory window: a part of a region that work requests open to the peer and close again.
pub trait MemoryWindow: fmt::Debug + Send + 'static {
    /// Returns the kind, which decides whether binding uses `ibv_bind_mw(3)` (type 1) or a send request (type 2).
    fn kind(&self) -> MwKind;

    /// Returns the remote key of the latest binding.
    fn rkey(&self) -> Rkey;
}

/// A resolved path to a peer, for use in requests. Clones refer to the same handle.
pub trait AddressHandle: Clone + fmt::Debug + Send + Sync + 'static {
    /// Returns the path that the handle was created from.
    fn path(&self) -> &Path;
}

/// A completion queue, polled by one worker.
///
/// # Safety
/// A completion that names a posted request is reported once, after the device has finished with the memory of that
/// request. A completion of a send is reported after the device has finished with all earlier sends of the queue pair.
/// The completion of a receive has the number of bytes that were written.
///
/// [`CompletionQueue::poll_run`] returns at most `limit` completions. The function fills in all arrays that the flags
/// of the run mark as valid.
#[allow(unsafe_code, reason = "safe code of higher layers relies on the guarantees of an implementation")]
pub unsafe trait CompletionQueue: Send {
    /// The cursor over completions. Dropping the cursor ends the poll.
    type Cursor<'cq>: Cursor
    where
        Self: 'cq;

    /// Returns the queue's number, which asynchronous events use.
    fn number(&self) -> u32;

    /// Returns the value of [`CqSpec::context`].
    fn context(&self) -> u64;

    /// Returns the number of entries, which is at least the requested depth.
    fn depth(&self) -> u32;

    /// Starts a poll: `ibv_start_poll(3)`. Returns `None` if the queue is empty (`ENOENT`) or busy for a moment
    /// (`EBUSY`).
    ///
    /// # Errors
    /// The queue is unusable, because the queue overran or the device is gone.
    fn start_poll(&mut self) -> Result<Option<Self::Cursor<'_>>, VerbError>;

    /// Replaces the content of `run` with up to `limit` completions (at most [`MAX_RUN`]), and returns their number.
    /// The flags [`Completions::failed`] and [`Completions::in_order`] define which arrays of `run` are valid.
    ///
    /// # Errors
    /// See [`CompletionQueue::start_poll`]; `run` is then empty.
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError>;

    /// Ends the claim of this thread on the queue and on its queue pairs, so that another thread can use all of these
    /// objects. A queue without a lock can only be used by the thread that polls the queue, until this thread calls this
    /// function.
    fn release_claim(&self);

    /// Arms the queue: `ibv_req_notify_cq(3)`. The next completion raises an event on the queue's channel. With
    /// `solicited_only`, only solicited receives and errors raise an event. Earlier completions raise no event, so poll
    /// once more after arming, before waiting.
    ///
    /// # Errors
    /// The queue has no channel.
    fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError>;

    /// Resizes the queue to at least `depth` entries, and returns the new depth: `ibv_resize_cq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: a depth above the device's limit, or below the number of queued completions. `EOPNOTSUPP`: the device
    /// cannot resize queues.
    fn resize(&mut self, depth: u32) -> Result<u32, VerbError>;

    /// Moderates completion events: `ibv_modify_cq(3)`. An armed queue raises an event after `count` completions, or
    /// `period` microseconds after the first of these completions. If both are 0, each completion raises an event.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device cannot moderate events. `EINVAL`: a value above the device's limit.
    fn moderate(&mut self, count: u16, period: u16) -> Result<(), VerbError> {
        let _ = (count, period);
        Err(VerbError::new("ibv_modify_cq", libc::EOPNOTSUPP))
    }
}

/// A receive queue that several queue pairs share. Only one thread at a time posts to the queue. Clones refer to the
/// same queue.
///
/// # Safety
/// The device writes only the memory of accepted receives. The device writes no memory after the queue and all its
/// queue pairs are dropped. [`PostError::accepted`] counts all receives that the device may write.
#[allow(unsafe_code, reason = "safe code of higher layers relies on the guarantees of an implementation")]
pub unsafe trait SharedReceiveQueue: Clone + Send {
    /// Returns the queue's number, which asynchronous events use.
    fn number(&self) -> u32;

    /// Returns the number of receives that fit in the queue, which is at least the requested depth.
    fn depth(&self) -> u32;

    /// Posts receives: `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The device may write the memory of accepted requests until their completions are polled, or until the queue and
    /// all its queue pairs are dropped. Until then no other code may read or write this memory, except with atomic byte
    /// accesses.
    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Arms the limit: the queue raises [`EventKind::SrqLimitReached`] once when fewer than `limit` receives are left.
    /// A `limit` of 0 disarms the limit. `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: a limit above the queue's depth.
    fn arm_limit(&mut self, limit: u32) -> Result<(), VerbError>;

    /// Returns the armed limit: `ibv_query_srq(3)`. 0: no limit is armed, or the event was already raised.
    ///
    /// # Errors
    /// The errors of the verb.
    fn limit(&self) -> Result<u32, VerbError>;

    /// Resizes the queue to hold at least `depth` receives: `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// `EINVAL`: a depth above the device's limit. `EOPNOTSUPP`: the device cannot resize shared receive queues.
    fn resize(&mut self, depth: u32) -> Result<(), VerbError>;
}

/// A queue pair. Only one worker posts to the queue pair.
///
/// # Safety
/// The device accesses only the memory of accepted requests: it writes the memory of receives and reads the memory of
/// sends. A run is a list of slots that one call posts. The call posts only these slots, in the region of
/// [`QueuePair::bind_slots`]. [`PostError::accepted`] counts all requests that the device may access.
///
/// After a change to RESET, a successful [`QueuePair::destroy`] or a drop, the device accesses no memory of the
/// requests that were posted before. A queue pair that cannot be destroyed when it is dropped keeps its registrations.
#[allow(unsafe_code, reason = "safe code of higher layers relies on the guarantees of an implementation")]
pub unsafe trait QueuePair: Send {
    /// The memory regions that requests refer to.
    type Mr: MemoryRegion;
    /// The address handles of datagrams.
    type Ah: AddressHandle;
    /// The memory windows that the queue pair binds.
    type Mw: MemoryWindow;

    /// Returns the queue pair's number.
    fn number(&self) -> QpNum;

    /// Returns the queue pair's type.
    fn kind(&self) -> QpType;

    /// Returns the granted sizes, which are at least the requested sizes.
    fn caps(&self) -> QpCaps;

    /// Returns the number of the work queue that receives for the queue pair. Asynchronous events of the work queue
    /// contain this number. `None` if the queue pair has its own receive queue. Only the queue pairs of a raw-packet
    /// port with several queues have work queues.
    fn work_queue(&self) -> Option<u32> {
        None
    }

    /// Returns the state as this process knows it: the last state that was set, or ERR after an error completion.
    fn state(&self) -> QpState;

    /// Returns the state and attributes that the device reports: `ibv_query_qp(3)`. For a raw-packet queue pair, a
    /// provider may return the state that this process knows, because mlx5 does not report the failure of a raw-packet
    /// queue.
    ///
    /// # Errors
    /// The errors of the verb.
    fn query(&self) -> Result<QpAttributes, VerbError>;

    /// Returns the connection options that the queue pair supports: `ibv_query_ece(3)`. After the change to RTR, returns
    /// the accepted options.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device has no connection options.
    fn ece(&self) -> Result<Ece, VerbError> {
        Err(VerbError::new("ibv_query_ece", libc::EOPNOTSUPP))
    }

    /// Sets the connection options that later state changes apply, and returns the accepted options: `ibv_set_ece(3)`.
    /// The passive side sets the options of the peer, and the active side sets the options that the passive side
    /// accepted.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device has no connection options. `EINVAL`: invalid options.
    fn set_ece(&mut self, ece: Ece) -> Result<Ece, VerbError> {
        let _ = ece;
        Err(VerbError::new("ibv_set_ece", libc::EOPNOTSUPP))
    }

    /// Changes the attributes in `mask`, which may include the state: `ibv_modify_qp(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the transition does not exist, or needs other attributes. Nothing has changed.
    fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError>;

    /// Binds the slots of `layout` in `mr` for the functions that post runs. The `wr_id` of a receive that is posted in a
    /// run is `recv_wr_id + slot`.
    ///
    /// # Errors
    /// `EINVAL`: the layout does not fit the region. `EBUSY`: runs were posted since RESET and may be outstanding.
    fn bind_slots(&mut self, mr: &Self::Mr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError>;

    /// Posts receives: `ibv_post_recv(3)`, with one doorbell for all.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The device may write the memory of accepted requests until their completions are polled, or until the queue pair
    /// is reset or dropped. Until then no other code may read or write this memory, except with atomic byte accesses.
    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError>;

    /// Posts a run of slots as receives. Each receive starts after the layout's headroom and uses the rest of the slot.
    /// Queue pairs with a shared receive queue do not support this function.
    ///
    /// # Errors
    /// See [`PostError`]. `EINVAL`: a slot that is not in the layout.
    ///
    /// # Safety
    /// See [`QueuePair::post_recv`].
    unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError>;

    /// Posts sends: `ibv_post_send(3)`, with one doorbell for all.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// These rules apply to the memory of accepted requests that are not inline. No code may write this memory, except
    /// with atomic byte accesses. No code may read memory that an RDMA read or an atomic operation writes. The rules
    /// end when a completion of the request or of a later request is polled, or when the queue pair is reset or
    /// dropped.
    unsafe fn post_send(&mut self, requests: &[SendRequest<'_, Self::Ah>]) -> Result<(), PostError>;

    /// Binds a window to a part of a region, with `ibv_bind_mw(3)` or a send request, depending on the window's kind.
    /// The window has its new key on return. The peer may use the window after the request completes.
    ///
    /// # Errors
    /// See [`PostError`].
    fn bind_mw(&mut self, mw: &mut Self::Mw, bind: &MwBind<'_, Self::Mr>) -> Result<(), PostError>;

    /// Destroys the queue pair: `ibv_destroy_qp(3)`. The drop of a queue pair also destroys it, but can only log a
    /// failure.
    ///
    /// # Errors
    /// After an error, the device still has the queue pair and all requests that were posted to it. `EBUSY`: another
    /// thread polls a completion queue of the queue pair. The end of that poll destroys the queue pair.
    fn destroy(self) -> Result<(), VerbError>
    where
        Self: Sized;

    /// Sets the destination of [`QueuePair::post_send_run`]. Only for unreliable datagrams.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair has another type.
    fn bind_peer(&mut self, to: Destination<'_, Self::Ah>) -> Result<(), VerbError>;

    /// Joins a multicast group: `ibv_attach_mcast(3)`. Only for unreliable datagrams.
    ///
    /// # Errors
    /// `EINVAL`: `group` is not a multicast address, or the queue pair has another type.
    fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>;

    /// Leaves a multicast group: `ibv_detach_mcast(3)`.
    ///
    /// # Errors
    /// `EINVAL`: the queue pair is not a member of the group.
    fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError>;

    /// Sends a run of packets from their slots. Datagrams go to the destination of [`QueuePair::bind_peer`]. Packet `i`
    /// has the `wr_id` `first_wr_id + i`, and only the last packet is signalled.
    ///
    /// # Errors
    /// See [`PostError`]. If the device accepted only a part of the run, the last accepted packet may be unsignalled.
    /// The accepted part is then complete when a later send completes.
    ///
    /// # Safety
    /// See [`QueuePair::post_send`]. In addition, no code may write the memory, not even atomically.
    unsafe fn post_send_run(&mut self, run: &Run<'_>, first_wr_id: u64) -> Result<(), PostError>;

    /// Returns whether each send completes in the call that posts it. If so, a poll directly after the post finds the
    /// completion, and later polls are unnecessary.
    fn sends_complete_immediately(&self) -> bool {
        false
    }

    /// Returns whether the queue pair will receive nothing more, because a capture file was replayed to its end. Always
    /// `false` for a network.
    fn source_ended(&self) -> bool {
        false
    }
}
