//! A device that is a `verbs_context` in memory. Its functions write down what they got and answer what a test told
//! them to: so encodings are compared byte by byte with what the man pages want, and drivers that lack verbs, refuse
//! them or answer garbage are there to be met. It moves no data.
//!
//! ```ignore
//! let fake = Fake::new(|verbs| verbs.create_cq_ex = None);      // take verbs away
//! fake.refuse("ibv_create_wq", libc::ENOMEM);                   // let one fail
//! fake.polls(1, [Poll::wc(7, 0), Poll::Answer(libc::ENOENT)]);  // what its first CQ answers
//! let context = fake.context();                                 // to give to the functions of `ffi`
//! assert_eq!(fake.calls(), [Call::StartPoll { cq: 1, answer: 0 }]);
//! ```
#![allow(unsafe_code)]
// What one test does not use another will.
#![allow(dead_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ibverbs_sys::*;

use super::ffi::{VerbsContext, Wc};

mod cq;
mod domain;
mod events;
pub(super) mod library;
mod qp;
mod raw;

use cq::{create_cq_ex, modify_cq, poll_cq, req_notify_cq};
pub(super) use domain::with_domains;
use qp::{create_qp_ex, modify_qp_rate_limit, post_recv, post_send, post_srq_recv};
use raw::{
    attach_counters, create_counters, create_flow, create_rwq_ind_table, create_wq, destroy_counters, destroy_flow,
    destroy_rwq_ind_table, destroy_wq, modify_wq, read_counters,
};

/// A call that came to the device. Objects are named by their numbers: each kind counts from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider::verbs) enum Call {
    CreateCq {
        cqe: u32,
    },
    CreateCqEx {
        cqe: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        vector: u32,
    },
    DestroyCq(u32),
    /// So many events of a CQ were acknowledged.
    AckCq {
        cq: u32,
        events: u32,
    },
    AckAsync,
    RegMr {
        access: u32,
        /// Whether it was by the function that knows of optional bits.
        iova2: bool,
    },
    ReqNotify {
        cq: u32,
        solicited: bool,
    },
    ModifyCq {
        cq: u32,
        count: u16,
        period: u16,
    },
    StartPoll {
        cq: u32,
        answer: c_int,
    },
    NextPoll {
        cq: u32,
        answer: c_int,
    },
    EndPoll {
        cq: u32,
    },
    PollCq {
        cq: u32,
        room: c_int,
        answer: c_int,
    },
    /// Something that the man pages forbid.
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
    /// The attributes and all specs, as they lie in memory.
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
    /// A builder with `wr_id` and `wr_flags` as they were then.
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

/// A receive of a list: its elements are address, length and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider::verbs) struct Recv {
    pub(in crate::provider::verbs) wr_id: u64,
    pub(in crate::provider::verbs) sges: Vec<(u64, u32, u32)>,
}

/// A send of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider::verbs) struct Send {
    pub(in crate::provider::verbs) wr_id: u64,
    pub(in crate::provider::verbs) opcode: u32,
    pub(in crate::provider::verbs) flags: u32,
    pub(in crate::provider::verbs) sges: Vec<(u64, u32, u32)>,
}

/// What a builder was called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::provider::verbs) enum Op {
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

/// A completion with all that the extended readers can say.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::provider::verbs) struct Completion {
    pub(in crate::provider::verbs) wc: Wc,
    pub(in crate::provider::verbs) ticks: u64,
    pub(in crate::provider::verbs) wallclock: u64,
    pub(in crate::provider::verbs) cvlan: u16,
    pub(in crate::provider::verbs) flow_tag: u32,
    pub(in crate::provider::verbs) tag: u64,
    pub(in crate::provider::verbs) private: u32,
}

/// What a poll meets next.
#[derive(Clone, Copy, Debug)]
pub(in crate::provider::verbs) enum Poll {
    /// A completion.
    Wc(Completion),
    /// An answer instead of one: of start and next as it is, of `ibv_poll_cq` as its count.
    Answer(c_int),
}

impl Poll {
    /// A completion of a request.
    pub(in crate::provider::verbs) fn wc(wr_id: u64, status: u32) -> Self {
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
    /// Receives that were posted to a queue pair, by its number.
    posted: HashMap<u32, Vec<u64>>,
    live: isize,
    /// Fields and flags that no CQ can be created with, and what that answers.
    lacks: Option<(u64, u32, c_int)>,
    tags: bool,
    /// Which request of a list a refused post says that it is; `None`: it does not say.
    bad: HashMap<&'static str, Option<usize>>,
    events: events::Events,
}

/// The `verbs_context` with what it remembers behind it.
#[repr(C)]
struct Inside {
    around: VerbsContext,
    pd: ibv_pd,
    attr: ibv_device_attr_ex,
    state: Mutex<State>,
}

/// The device. It goes last.
pub(in crate::provider::verbs) struct Fake(NonNull<Inside>);

/// The place that a fake's context has as its device.
static MARK: u8 = 0;

impl Fake {
    /// A device with all verbs but those that `change` takes away.
    pub(in crate::provider::verbs) fn new(change: impl FnOnce(&mut VerbsContext)) -> Self {
        Self::with_attributes(ibv_device_attr_ex::default(), change)
    }

    /// The same, that says this of itself.
    pub(in crate::provider::verbs) fn with_attributes(
        attr: ibv_device_attr_ex,
        change: impl FnOnce(&mut VerbsContext),
    ) -> Self {
        // SAFETY: all members are pointers and numbers, for which zeros are valid.
        let mut around: VerbsContext = unsafe { zeroed() };
        around.sz = size_of::<VerbsContext>();
        around.query_port = Some(query_port);
        around.query_device_ex = Some(query_device_ex);
        around.create_cq_ex = Some(create_cq_ex);
        around.modify_cq = Some(modify_cq);
        around.create_qp_ex = Some(create_qp_ex);
        around.modify_qp_rate_limit = Some(modify_qp_rate_limit);
        around.create_wq = Some(create_wq);
        around.modify_wq = Some(modify_wq);
        around.destroy_wq = Some(destroy_wq);
        around.create_rwq_ind_table = Some(create_rwq_ind_table);
        around.destroy_rwq_ind_table = Some(destroy_rwq_ind_table);
        around.ibv_create_flow = Some(create_flow);
        around.ibv_destroy_flow = Some(destroy_flow);
        around.create_counters = Some(create_counters);
        around.attach_counters_point_flow = Some(attach_counters);
        around.read_counters = Some(read_counters);
        around.destroy_counters = Some(destroy_counters);
        around.context.ops.poll_cq = Some(poll_cq);
        around.context.ops.req_notify_cq = Some(req_notify_cq);
        around.context.ops.post_send = Some(post_send);
        around.context.ops.post_recv = Some(post_recv);
        around.context.ops.post_srq_recv = Some(post_srq_recv);
        around.context.num_comp_vectors = 1;
        // No files: whoever uses these fails and hits nothing.
        around.context.cmd_fd = -1;
        around.context.async_fd = -1;
        around.context.device = (&raw const MARK).cast::<ibv_device>().cast_mut();
        around.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        change(&mut around);
        let inside = Box::new(Inside { around, pd: ibv_pd::default(), attr, state: Mutex::default() });
        Self(NonNull::from(Box::leak(inside)))
    }

    /// The context that programs see.
    pub(in crate::provider::verbs) fn context(&self) -> *mut ibv_context {
        // SAFETY: it is alive as long as this is.
        unsafe { &raw mut (*self.0.as_ptr()).around.context }
    }

    /// A protection domain of it, which ends with it.
    pub(in crate::provider::verbs) fn pd(&self) -> NonNull<ibv_pd> {
        // SAFETY: it is alive as long as this is.
        unsafe {
            let pd = &raw mut (*self.0.as_ptr()).pd;
            (*pd).context = self.context();
            NonNull::new_unchecked(pd)
        }
    }

    /// Lets a verb fail with an error from now on; 0: no longer.
    pub(in crate::provider::verbs) fn refuse(&self, verb: &'static str, errno: c_int) {
        self.state().refused.insert(verb, errno);
    }

    /// What the polls of a CQ meet, in order, after what they were told before. After the last it is empty.
    pub(in crate::provider::verbs) fn polls(&self, cq: u32, polls: impl IntoIterator<Item = Poll>) {
        self.state().polls.entry(cq).or_default().extend(polls);
    }

    /// Lets no CQ be created with any of these.
    pub(in crate::provider::verbs) fn lacks(&self, wc_flags: u64, flags: u32, errno: c_int) {
        self.state().lacks = Some((wc_flags, flags, errno));
    }

    /// Gives its completion queues a reader of tag-matching information, which they lack otherwise.
    pub(in crate::provider::verbs) fn matches_tags(&self) {
        self.state().tags = true;
    }

    /// Lets a post fail at a request of its list; at `None` it does not say where.
    pub(in crate::provider::verbs) fn refuse_at(&self, verb: &'static str, errno: c_int, at: Option<usize>) {
        self.refuse(verb, errno);
        self.state().bad.insert(verb, at);
    }

    /// The number of the last object of a kind: `cq`, `qp`, `wq`, `pd`, `mr`.
    pub(in crate::provider::verbs) fn last(&self, kind: &'static str) -> u32 {
        self.state().numbers.get(kind).copied().unwrap_or(0)
    }

    /// What counters read.
    pub(in crate::provider::verbs) fn counts(&self, values: &[u64]) {
        self.state().counters = values.to_vec();
    }

    /// The calls since this was last asked.
    pub(in crate::provider::verbs) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls)
    }

    /// Objects that were created and not destroyed.
    pub(in crate::provider::verbs) fn live(&self) -> isize {
        self.state().live
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // SAFETY: it is alive as long as this is.
        unsafe { state(self.context()) }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // SAFETY: it came out of a box, and this is the only owner.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// # Safety
/// The context is that of a fake, which lives on.
unsafe fn inside<'a>(context: *mut ibv_context) -> &'a Inside {
    // SAFETY: the caller's promise: the context is inside.
    unsafe { &*context.cast::<u8>().sub(offset_of!(Inside, around) + offset_of!(VerbsContext, context)).cast() }
}

/// # Safety
/// As of [`inside`].
unsafe fn state<'a>(context: *mut ibv_context) -> MutexGuard<'a, State> {
    // SAFETY: the caller's promise.
    unsafe { inside(context) }.state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Notes a call; its error if it is to fail.
    fn note(&mut self, verb: &'static str, call: Call) -> c_int {
        self.calls.push(call);
        self.refused.get(verb).copied().unwrap_or(0)
    }

    /// The request that a refused post says is the first that was not taken.
    fn bad<T>(&self, verb: &str, first: *mut T, next: impl Fn(*mut T) -> *mut T) -> *mut T {
        match self.bad.get(verb).copied().unwrap_or(Some(0)) {
            None => ptr::null_mut(),
            Some(at) => (0..at).fold(first, |wr, _| next(wr)),
        }
    }

    /// What a queue pair does with its receives in a state: in ERR they are flushed, in RESET forgotten.
    ///
    /// # Safety
    /// A fake's queue pair.
    unsafe fn flush(&mut self, qp: *const ibv_qp, to: u32) {
        use ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RESET};
        if to != IBV_QPS_ERR && to != IBV_QPS_RESET {
            return;
        }
        // SAFETY: the caller's promise.
        let (number, cq) = unsafe { ((*qp).qp_num, (*(*qp).recv_cq).handle) };
        let posted = self.posted.remove(&number).unwrap_or_default();
        if to == IBV_QPS_ERR {
            let flushed = posted.into_iter().map(|wr_id| Poll::wc(wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR));
            self.polls.entry(cq).or_default().extend(flushed);
        }
    }

    /// The number of a new object.
    fn number(&mut self, kind: &'static str) -> u32 {
        self.live += 1;
        let number = self.numbers.entry(kind).or_default();
        *number += 1;
        *number
    }
}

fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: the place of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int {
    if port != 1 || size < 52 {
        return libc::EINVAL;
    }
    let ethernet = 2;
    let active = ibv_port_attr { state: 4, max_mtu: 5, active_mtu: 3, link_layer: ethernet, ..Default::default() };
    let active = ibv_port_attr { pkey_tbl_len: 1, max_msg_sz: 1 << 20, ..active };
    // SAFETY: the caller's attributes.
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
    // SAFETY: the caller's attributes, and a fake's context.
    unsafe { attr.write(inside(context).attr) };
    0
}
