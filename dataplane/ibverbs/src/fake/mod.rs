//! A fake device for tests: a `verbs_context` in memory. Its functions record their arguments and return the results
//! that a test has set. Tests compare the recorded bytes with the man pages. Tests can also simulate drivers that lack
//! verbs, refuse calls or return garbage. The device moves no data.
//!
//! ```ignore
//! let fake = Fake::new(|verbs| verbs.create_cq_ex = None);      // remove verbs
//! fake.refuse("ibv_create_wq", libc::ENOMEM);                   // make a verb fail
//! fake.polls(1, [Poll::wc(7, 0), Poll::ReturnCode(libc::ENOENT)]);  // results of the first CQ
//! let context = fake.context();                                 // for the functions of `ffi`
//! assert_eq!(fake.calls(), [Call::StartPoll { cq: 1, returned: 0 }]);
//! ```
#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ibverbs_sys::*;

use super::ffi::{VerbsContext, Wc};

mod cq;
mod domain;
mod events;
pub(super) mod flow;
pub(super) mod library;
mod memory;
mod qp;
mod raw;

use cq::{create_cq_ex, fields, modify_cq, poll_cq, req_notify_cq};
pub(super) use domain::with_domains;
use flow::FakeFlow;
pub(super) use memory::with_windows;
use qp::{create_qp_ex, modify_qp_rate_limit, post_recv, post_send, post_srq_recv};
use raw::{
    attach_counters, create_counters, create_flow, create_rwq_ind_table, create_wq, destroy_counters, destroy_flow,
    destroy_rwq_ind_table, destroy_wq, modify_wq, read_counters,
};

/// A call that the device received. A number identifies each object. The objects of each kind are numbered from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    CreateCq {
        cqe: u32,
    },
    CreateCqEx {
        cqe: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        vector: u32,
        /// The number of the parent domain; 0: none.
        parent_domain: u32,
    },
    DestroyCq(u32),
    /// The acknowledgement of `events` completion events of a CQ.
    AckCq {
        cq: u32,
        events: u32,
    },
    AckAsync,
    RegMr {
        access: u32,
        /// Whether the call was `ibv_reg_mr_iova2` and not `ibv_reg_mr`.
        iova2: bool,
    },
    ReqNotify {
        cq: u32,
        solicited: bool,
    },
    StartPoll {
        cq: u32,
        returned: c_int,
    },
    NextPoll {
        cq: u32,
        returned: c_int,
    },
    EndPoll {
        cq: u32,
    },
    PollCq {
        cq: u32,
        room: c_int,
        returned: c_int,
    },
    ModerateCq {
        cq: u32,
        mask: u32,
        count: u16,
        period: u16,
    },
    SetEce {
        qp: u32,
        vendor: u32,
        options: u32,
        comp_mask: u32,
    },
    /// A call in an order or with arguments that the man pages do not allow.
    Misuse(&'static str),
    CreateQp {
        kind: u32,
        send: u32,
        recv: u32,
        comp_mask: u32,
        flags: u32,
        send_ops: u64,
        max_tso_header: u16,
    },
    CreateHashQp {
        kind: u32,
        comp_mask: u32,
        table: u32,
        function: u8,
        key: Vec<u8>,
        fields: u64,
    },
    ModifyQp {
        qp: u32,
        mask: u32,
        state: u32,
        port: u8,
        rate_limit: u32,
    },
    RateLimit {
        qp: u32,
        rate_limit: u32,
        burst: u32,
        packet: u16,
        comp_mask: u32,
    },
    DestroyQp(u32),
    CreateWq {
        kind: u32,
        max_wr: u32,
        max_sge: u32,
        cq: u32,
        comp_mask: u32,
        flags: u32,
    },
    ModifyWq {
        wq: u32,
        mask: u32,
        state: u32,
        current: u32,
        flags: u32,
        flags_mask: u32,
    },
    DestroyWq(u32),
    CreateTable {
        log_size: u32,
        wqs: Vec<u32>,
        comp_mask: u32,
    },
    DestroyTable(u32),
    /// The attributes and all match specifications of a flow rule, with the bytes that the driver receives.
    CreateFlow {
        qp: u32,
        bytes: Vec<u8>,
    },
    DestroyFlow(u32),
    CreateCounters,
    AttachCounters {
        description: u32,
        index: u32,
        flow: bool,
    },
    ReadCounters {
        count: u32,
        flags: u32,
    },
    DestroyCounters,
    PostRecv(Vec<Recv>),
    PostSrqRecv(Vec<Recv>),
    PostWqRecv {
        wq: u32,
        list: Vec<Recv>,
    },
    PostSend(Vec<Send>),
    WrStart,
    /// A call of a builder function, with the `wr_id` and the `wr_flags` of the queue pair at the time of the call.
    Wr {
        wr_id: u64,
        flags: u32,
        op: Op,
    },
    WrInline(Vec<u8>),
    WrSges(Vec<(u64, u32, u32)>),
    WrUdAddr {
        qpn: u32,
        qkey: u32,
    },
    WrComplete,
    WrAbort,
}

/// A receive request of a posted list. Each element consists of address, length and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<(u64, u32, u32)>,
}

/// A send request of a posted list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Send {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) sges: Vec<(u64, u32, u32)>,
}

/// The operation that a builder function adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write { rkey: u32, addr: u64 },
    WriteImm { rkey: u32, addr: u64, imm: u32 },
    Read { rkey: u32, addr: u64 },
    CompareSwap { rkey: u32, addr: u64, compare: u64, swap: u64 },
    FetchAdd { rkey: u32, addr: u64, add: u64 },
    LocalInv(u32),
    Tso { header: Vec<u8>, mss: u16 },
}

/// A completion with values for all extended fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) wc: Wc,
    pub(crate) ticks: u64,
    pub(crate) wallclock: u64,
    pub(crate) cvlan: u16,
    pub(crate) flow_tag: u32,
    pub(crate) tag: u64,
    pub(crate) private: u32,
}

/// The next result of a poll.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Poll {
    /// A completion.
    Wc(Completion),
    /// A return code instead of a completion. `ibv_start_poll` and `ibv_next_poll` return this code unchanged.
    /// `ibv_poll_cq` returns the code as the number of completions.
    ReturnCode(c_int),
}

impl Poll {
    /// Returns a completion of the request `wr_id` with a status.
    pub(crate) fn wc(wr_id: u64, status: u32) -> Self {
        Self::Wc(Completion { wc: Wc { wr_id, status, ..Wc::default() }, ..Completion::default() })
    }
}

#[derive(Default)]
pub(super) struct State {
    calls: Vec<Call>,
    refused: HashMap<&'static str, c_int>,
    polls: HashMap<u32, VecDeque<Poll>>,
    numbers: HashMap<&'static str, u32>,
    counters: Vec<u64>,
    /// The flow rules that exist, in the order of their creation, with their numbers.
    flows: Vec<(u32, FakeFlow)>,
    /// The `wr_id`s of the posted receives, for each queue pair number.
    posted: HashMap<u32, Vec<u64>>,
    /// The `wr_id`s of the posted receives, for each work queue number.
    wq_posted: HashMap<u32, Vec<u64>>,
    /// The work queues that the device itself has moved to ERR.
    failed_wqs: HashSet<u32>,
    /// The state changes of queue pairs that the device refuses: queue pair number and state.
    refused_states: Vec<(u32, u32)>,
    no_inline: bool,
    /// The largest number of inline bytes that the device grants. `None` if the device grants every requested number.
    most_inline: Option<u32>,
    /// Whether the port of the device is an Ethernet port. Otherwise, the port is an InfiniBand port.
    is_ethernet: bool,
    /// The attributes of a queue pair that the device can return. `None`: all.
    known_attributes: Option<u32>,
    /// Whether the device refuses unsignalled sends, except on queue pairs that signal all sends.
    refuses_unsignalled: bool,
    /// If `Some`, the device accepts a receive with at most this number of elements, but never completes the receive.
    ignored_receives: Option<usize>,
    /// Whether queue pairs stay in ERR after a reset, as on irdma.
    reset_is_final: bool,
    /// The numbers of the queue pairs that were reset or moved to ERR while `reset_is_final` was set.
    ended_qps: HashSet<u32>,
    live: isize,
    /// For the number of each bound memory window, the number of the registration to which the window is bound.
    bound: HashMap<u32, u32>,
    /// The fields and flags with which the creation of a CQ fails, and the error.
    lacks: Option<(u64, u32, c_int)>,
    /// Two sets of fields and an error. The creation of a CQ fails with the error if the CQ requests a field of each
    /// set.
    lacks_together: Option<(u64, u64, c_int)>,
    tags: bool,
    /// The file descriptor of completion channels. `None`: channels have no descriptor.
    channel_fd: Option<c_int>,
    /// Whether the device refuses CQs with a completion channel.
    refuses_channels: bool,
    /// The fields with which a CQ cannot be used: the device refuses queue pairs and work queues on a CQ that requests
    /// any of these fields.
    refused_queue_fields: u64,
    /// For each verb, the index of the request that a refused post reports. `None`: the post does not report an index.
    bad: HashMap<&'static str, Option<usize>>,
    events: events::Events,
}

/// The `verbs_context`, followed by the state of the fake.
#[repr(C)]
struct FakeDevice {
    verbs: VerbsContext,
    pd: ibv_pd,
    attr: ibv_device_attr_ex,
    state: Mutex<State>,
}

/// The fake device. Drop the objects of the device before the device.
pub(crate) struct Fake(NonNull<FakeDevice>);

/// The devices of fake contexts: a device with RoCE, and a device with iWARP. A fake context can be recognised by its
/// pointer to one of these devices.
static DEVICES: [ibv_device; 2] = {
    // SAFETY: all members are optional functions and numbers, for which zeros are valid. 0 is `IBV_TRANSPORT_IB`.
    let roce: ibv_device = unsafe { zeroed() };
    [roce, ibv_device { transport_type: IBV_TRANSPORT_IWARP, ..roce }]
};

impl Fake {
    /// Creates a device with all verbs except the verbs that `change` removes.
    pub(crate) fn new(change: impl FnOnce(&mut VerbsContext)) -> Self {
        Self::with_attributes(ibv_device_attr_ex::default(), change)
    }

    /// Creates a device that reports these attributes.
    pub(crate) fn with_attributes(attr: ibv_device_attr_ex, change: impl FnOnce(&mut VerbsContext)) -> Self {
        // SAFETY: all members are pointers and numbers, for which zeros are valid.
        let mut verbs: VerbsContext = unsafe { zeroed() };
        verbs.sz = size_of::<VerbsContext>();
        verbs.query_port = Some(query_port);
        verbs.query_device_ex = Some(query_device_ex);
        verbs.create_cq_ex = Some(create_cq_ex);
        verbs.modify_cq = Some(modify_cq);
        verbs.create_qp_ex = Some(create_qp_ex);
        verbs.modify_qp_rate_limit = Some(modify_qp_rate_limit);
        verbs.create_wq = Some(create_wq);
        verbs.modify_wq = Some(modify_wq);
        verbs.destroy_wq = Some(destroy_wq);
        verbs.create_rwq_ind_table = Some(create_rwq_ind_table);
        verbs.destroy_rwq_ind_table = Some(destroy_rwq_ind_table);
        verbs.ibv_create_flow = Some(create_flow);
        verbs.ibv_destroy_flow = Some(destroy_flow);
        verbs.create_counters = Some(create_counters);
        verbs.attach_counters_point_flow = Some(attach_counters);
        verbs.read_counters = Some(read_counters);
        verbs.destroy_counters = Some(destroy_counters);
        verbs.context.ops.poll_cq = Some(poll_cq);
        verbs.context.ops.req_notify_cq = Some(req_notify_cq);
        verbs.context.ops.post_send = Some(post_send);
        verbs.context.ops.post_recv = Some(post_recv);
        verbs.context.ops.post_srq_recv = Some(post_srq_recv);
        verbs.context.num_comp_vectors = 1;
        // The device has no file descriptors. System calls on -1 fail without an effect.
        verbs.context.cmd_fd = -1;
        verbs.context.async_fd = -1;
        verbs.context.device = (&raw const DEVICES[0]).cast_mut();
        verbs.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        change(&mut verbs);
        let fake_device = Box::new(FakeDevice { verbs, pd: ibv_pd::default(), attr, state: Mutex::default() });
        Self(NonNull::from(Box::leak(fake_device)))
    }

    /// Returns the context, which is what `ibv_open_device` returns for a real device.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the structure exists as long as `self`.
        unsafe { &raw mut (*self.0.as_ptr()).verbs.context }
    }

    /// Returns the protection domain of the device. The domain is freed together with the device.
    pub(crate) fn pd(&self) -> NonNull<ibv_pd> {
        // SAFETY: the structure exists as long as `self`.
        unsafe {
            let pd = &raw mut (*self.0.as_ptr()).pd;
            (*pd).context = self.context();
            NonNull::new_unchecked(pd)
        }
    }

    /// Makes a verb fail with an error from this call on. The error 0 makes the verb succeed again.
    pub(crate) fn refuse(&self, verb: &'static str, errno: c_int) {
        self.state().refused.insert(verb, errno);
    }

    /// Makes the device an iWARP device.
    pub(crate) fn uses_iwarp(&self) {
        // SAFETY: the context is valid, and nothing else accesses it during this call.
        unsafe { (*self.context()).device = (&raw const DEVICES[1]).cast_mut() };
    }

    /// Makes the device refuse to change a queue pair to a state.
    pub(crate) fn refuse_qp_state(&self, qp: u32, to: u32) {
        self.state().refused_states.push((qp, to));
    }

    /// Makes the device accept the change of a queue pair to RESET, but keep the queue pair in ERR. The device then
    /// refuses the change to INIT. The irdma driver of the kernel does this (`irdma_modify_qp_roce`).
    pub(crate) fn keeps_reset_qps_in_err(&self) {
        self.state().reset_is_final = true;
    }

    /// Makes the device accept receives without elements, but never complete them, as efa does: `efa_post_recv` writes
    /// a descriptor only for each element.
    pub(crate) fn ignores_empty_receives(&self) {
        self.state().ignored_receives = Some(0);
    }

    /// Makes the device accept receives, but never complete them.
    pub(crate) fn ignores_receives(&self) {
        self.state().ignored_receives = Some(usize::MAX);
    }

    /// Makes the device refuse unsignalled sends, as efa does (`efa_post_send_validate`).
    pub(crate) fn refuses_unsignalled_sends(&self) {
        self.state().refuses_unsignalled = true;
    }

    /// Makes the device refuse a query of a queue pair that asks for an attribute outside `mask`, as efa does
    /// (`efa_query_qp`).
    pub(crate) fn knows_attributes(&self, mask: u32) {
        self.state().known_attributes = Some(mask);
    }

    /// Makes the device refuse queue pairs with inline sends.
    pub(crate) fn refuse_inline(&self, refused: bool) {
        self.state().no_inline = refused;
    }

    /// Makes the device grant at most `most` inline bytes, without an error, as hns does (`get_max_inline_data`).
    pub(crate) fn grants_inline(&self, most: u32) {
        self.state().most_inline = Some(most);
    }

    /// Makes the port of the device an Ethernet port.
    pub(crate) fn has_ethernet_port(&self) {
        self.state().is_ethernet = true;
    }

    /// Appends results of polls of a CQ. The CQ returns the results in order and is empty afterwards.
    pub(crate) fn polls(&self, cq: u32, polls: impl IntoIterator<Item = Poll>) {
        self.state().polls.entry(cq).or_default().extend(polls);
    }

    /// Makes the creation of a CQ fail if it requests any of these fields or flags.
    pub(crate) fn lacks(&self, wc_flags: u64, flags: u32, errno: c_int) {
        self.state().lacks = Some((wc_flags, flags, errno));
    }

    /// Makes the creation of a CQ fail if it requests a field of `first` together with a field of `second`.
    pub(crate) fn lacks_together(&self, first: u64, second: u64, errno: c_int) {
        self.state().lacks_together = Some((first, second, errno));
    }

    /// Sets the file descriptor of completion channels and the number of completion vectors. The descriptor must stay open
    /// while the device is used.
    pub(crate) fn has_channels(&self, fd: c_int, vectors: c_int) {
        self.state().channel_fd = Some(fd);
        // SAFETY: the context is valid, and nothing else accesses it during this call.
        unsafe { (*self.context()).num_comp_vectors = vectors };
    }

    /// Makes the creation of a CQ with a completion channel fail, as efa does on some devices (`efa_create_cq_ex`).
    pub(crate) fn refuses_channels(&self) {
        self.state().refuses_channels = true;
    }

    /// Makes the creation of queue pairs and work queues fail if one of their CQs has timestamps, as mlx5 does in
    /// real-time mode (`get_ts_format`). The creation of the CQs succeeds.
    pub(crate) fn refuses_timestamped_queues(&self) {
        self.state().refused_queue_fields =
            u64::from(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    }

    /// Makes the creation of queue pairs and work queues fail if one of their CQs has timestamps of the counter, as
    /// mlx5 does in real-time mode from libibverbs 65 on.
    pub(crate) fn refuses_queues_with_ticks(&self) {
        self.state().refused_queue_fields = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.into();
    }

    /// Provides a reader for tag-matching data on completion queues. Without this call, the reader is missing.
    pub(crate) fn matches_tags(&self) {
        self.state().tags = true;
    }

    /// Makes a post fail at the request with index `at`. With `None`, the post does not report which request failed.
    pub(crate) fn refuse_at(&self, verb: &'static str, errno: c_int, at: Option<usize>) {
        self.refuse(verb, errno);
        self.state().bad.insert(verb, at);
    }

    /// Returns the number of the object of a kind that was created last. The kinds are `cq`, `qp`, `wq`, `pd` and `mr`.
    pub(crate) fn last(&self, kind: &'static str) -> u32 {
        self.state().numbers.get(kind).copied().unwrap_or(0)
    }

    /// Sets the values that the flow counters return.
    pub(crate) fn counts(&self, values: &[u64]) {
        self.state().counters = values.to_vec();
    }

    /// Returns the table of each flow rule that matches headers, in the order of creation. A frame passes the tables in
    /// ascending order.
    pub(crate) fn flow_tables(&self) -> Vec<u16> {
        self.state().flows.iter().filter_map(|(_, flow)| flow.table).collect()
    }

    /// Makes the device move a work queue to ERR: the oldest receive completes with `status`, and the other receives
    /// are flushed. The completions go to the completion queue `cq`.
    pub(crate) fn fail_wq(&self, wq: u32, cq: u32, status: u32) {
        let mut state = self.state();
        state.failed_wqs.insert(wq);
        let posted = state.wq_posted.entry(wq).or_default();
        if !posted.is_empty() {
            let oldest = Poll::wc(posted.remove(0), status);
            state.polls.entry(cq).or_default().push_back(oldest);
        }
        state.flush_wq(wq, cq);
    }

    /// Makes the device receive a frame that is longer than the oldest receive of a queue pair or of a work queue
    /// (`kind`). The receive completes with an error on the completion queue `cq`. The queue continues to receive, as
    /// on mlx5.
    pub(crate) fn receives_long_frame(&self, kind: &str, number: u32, cq: u32) {
        self.polls(cq, [Poll::wc(self.take_posted(kind, number), ibv_wc_status::IBV_WC_LOC_LEN_ERR)]);
    }

    /// Removes the oldest receive that is posted to a queue pair or to a work queue (`kind`), and returns its `wr_id`.
    pub(crate) fn take_posted(&self, kind: &str, number: u32) -> u64 {
        let mut state = self.state();
        let State { wq_posted, posted, .. } = &mut *state;
        let posted = if kind == "wq" { wq_posted } else { posted };
        posted.get_mut(&number).unwrap().remove(0)
    }

    /// Returns the `wr_id`s of the receives that are posted to a queue pair or to a work queue (`kind`), oldest first.
    pub(crate) fn posted(&self, kind: &str, number: u32) -> Vec<u64> {
        let state = self.state();
        let posted = if kind == "wq" { &state.wq_posted } else { &state.posted };
        posted.get(&number).cloned().unwrap_or_default()
    }

    /// Returns the calls since the previous use of this function.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls)
    }

    /// Returns the number of objects that have not been destroyed.
    pub(crate) fn live(&self) -> isize {
        self.state().live
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // SAFETY: the context exists as long as `self`.
        unsafe { state(self.context()) }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated as a box. The owner of the box is being dropped.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// # Safety
/// The context must belong to a fake that outlives the result.
unsafe fn fake_device<'a>(context: *mut ibv_context) -> &'a FakeDevice {
    // SAFETY: the caller upholds the safety contract. The context is a part of the structure.
    unsafe { &*context.cast::<u8>().sub(offset_of!(FakeDevice, verbs) + offset_of!(VerbsContext, context)).cast() }
}

/// # Safety
/// Same as [`fake_device`].
unsafe fn state<'a>(context: *mut ibv_context) -> MutexGuard<'a, State> {
    // SAFETY: the caller upholds the safety contract.
    unsafe { fake_device(context) }.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Records a call. Returns the error that a test has set for the verb, or 0.
    fn note(&mut self, verb: &'static str, call: Call) -> c_int {
        self.calls.push(call);
        self.refused(verb)
    }

    /// Returns the error that a test has set for the verb, or 0.
    fn refused(&self, verb: &str) -> c_int {
        self.refused.get(verb).copied().unwrap_or(0)
    }

    /// Returns the error of the creation of a queue on these CQs, or 0.
    ///
    /// # Safety
    /// The CQs must belong to a fake, or be null.
    unsafe fn refused_queue<const N: usize>(&self, cqs: [*mut ibv_cq; N]) -> c_int {
        // SAFETY: the caller upholds the safety contract.
        let is_refused = |cq: *mut ibv_cq| unsafe { fields(cq) } & self.refused_queue_fields != 0;
        if cqs.into_iter().any(is_refused) { libc::EOPNOTSUPP } else { 0 }
    }

    /// Returns the error of a query of the attributes in `mask`, or 0.
    fn refused_query(&self, mask: u32) -> c_int {
        let known = self.known_attributes.unwrap_or(u32::MAX);
        if mask & !known == 0 { self.refused("ibv_query_qp") } else { libc::EOPNOTSUPP }
    }

    /// Returns the request that a refused post reports as the first request that was not posted.
    fn bad<T>(&self, verb: &str, first: *mut T, next: impl Fn(*mut T) -> *mut T) -> *mut T {
        match self.bad.get(verb).copied().unwrap_or(Some(0)) {
            None => ptr::null_mut(),
            Some(at) => (0..at).fold(first, |wr, _| next(wr)),
        }
    }

    /// Returns `true` if the change of a queue pair to the state `to` fails, because the queue pair can never leave
    /// ERR.
    fn is_final(&mut self, qp: u32, to: u32) -> bool {
        use ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RESET};
        let ends = to == IBV_QPS_ERR || to == IBV_QPS_RESET;
        if ends && self.reset_is_final {
            self.ended_qps.insert(qp);
        }
        !ends && self.ended_qps.contains(&qp)
    }

    /// Handles the posted receives of a queue pair at a state change to `to`. ERR flushes the receives, and RESET
    /// discards them.
    ///
    /// # Safety
    /// The queue pair must belong to a fake.
    unsafe fn flush(&mut self, qp: *const ibv_qp, to: u32) {
        use ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RESET};
        if to != IBV_QPS_ERR && to != IBV_QPS_RESET {
            return;
        }
        // SAFETY: the caller upholds the safety contract.
        let (number, cq) = unsafe { ((*qp).qp_num, (*(*qp).recv_cq).handle) };
        let posted = self.posted.remove(&number).unwrap_or_default();
        if to == IBV_QPS_ERR {
            let flushed = posted.into_iter().map(|wr_id| Poll::wc(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
            self.polls.entry(cq).or_default().extend(flushed);
        }
    }

    /// Flushes the posted receives of a work queue to its completion queue.
    fn flush_wq(&mut self, wq: u32, cq: u32) {
        let flushed = self.wq_posted.remove(&wq).unwrap_or_default();
        let flushed = flushed.into_iter().map(|wr_id| Poll::wc(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
        self.polls.entry(cq).or_default().extend(flushed);
    }

    /// Returns the number of flow rules that use these counters.
    fn counter_uses(&self, counters: *const ibv_counters) -> usize {
        self.flows.iter().flat_map(|(_, flow)| &flow.counters).filter(|used| **used == counters.addr()).count()
    }

    /// Returns the number of inline bytes that the device grants for a request of `wanted` bytes.
    fn granted_inline(&self, wanted: u32) -> u32 {
        self.most_inline.map_or(wanted, |most| most.min(wanted))
    }

    /// Counts a new object and returns its number.
    fn number(&mut self, kind: &'static str) -> u32 {
        self.live += 1;
        let number = self.numbers.entry(kind).or_default();
        *number += 1;
        *number
    }
}

/// The error for [`Fake::refuse`] with which a verb returns null and leaves `errno` unchanged.
pub(crate) const NO_ERRNO: c_int = -1;

fn fail<T>(errno: c_int) -> *mut T {
    if errno != NO_ERRNO {
        // SAFETY: the pointer refers to the `errno` of this thread.
        unsafe { *libc::__errno_location() = errno };
    }
    ptr::null_mut()
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int {
    if port != 1 || size < 52 {
        return libc::EINVAL;
    }
    let (infiniband, ethernet) = (1, 2);
    // SAFETY: the context belongs to a fake.
    let link_layer = if unsafe { state(context) }.is_ethernet { ethernet } else { infiniband };
    let active = ibv_port_attr { state: 4, max_mtu: 5, active_mtu: 3, link_layer, ..Default::default() };
    // EDR on 4 lanes.
    let active = ibv_port_attr { active_speed: 32, active_width: 2, ..active };
    let flags = u8::from(link_layer == infiniband); // IBV_QPF_GRH_REQUIRED
    let active = ibv_port_attr { flags, pkey_tbl_len: 1, max_msg_sz: 1 << 20, ..active };
    // SAFETY: the caller provides the attributes.
    unsafe { attr.write(active) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ibv_device_attr_ex>());
    // SAFETY: the caller provides the attributes, and the context belongs to a fake.
    unsafe { attr.write(fake_device(context).attr) };
    0
}
