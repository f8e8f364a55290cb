//! The preallocated request lists that a queue pair posts, and the memory of the packet slots. A run is a burst of
//! packets that the caller passes as slot indices instead of as work requests.
#![allow(unsafe_code)]

use ibverbs_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge};

use super::ah::VerbsAh;
use super::domain::VerbsMr;
use super::request::{RequestList, ud};
use dataplane_core::error::VerbError;
use dataplane_core::mem::SlotLayout;
use dataplane_core::verbs::{Destination, MAX_RUN, MemoryRegion, QpCaps, SendFlags, WrOpcode};

/// The memory that contains the packet slots.
pub(super) struct SlotMemory {
    /// Keeps the memory registered while posted requests may refer to it.
    pub(super) mr: VerbsMr,
    pub(super) layout: SlotLayout,
    pub(super) base: u64,
    pub(super) recv_wr_id: u64,
}

/// The preallocated lists of a queue pair. Posting them needs no allocation.
pub(super) struct PostLists {
    pub(super) recvs: RequestList<ibv_recv_wr>,
    pub(super) recv_sges: RequestList<ibv_sge>,
    pub(super) sends: RequestList<ibv_send_wr>,
    pub(super) send_sges: RequestList<ibv_sge>,
    /// The lists for general requests, whose scatter/gather elements belong to the caller.
    pub(super) recv_list: RequestList<ibv_recv_wr>,
    pub(super) send_list: RequestList<ibv_send_wr>,
    pub(super) slots: Option<SlotMemory>,
    pub(super) peer: Option<(VerbsAh, u32, u32)>,
    /// Whether a run was posted since the queue pair was last in RESET.
    pub(super) posted: bool,
    /// The flags of each send of a run, besides the flags that depend on the packet.
    pub(super) run_flags: SendFlags,
}

impl PostLists {
    /// Creates the lists. The length of a list is the depth of its queue, but at least 1 and at most [`MAX_RUN`].
    /// `run_flags` are the flags that each send of a run has.
    pub(super) fn new(caps: &QpCaps, run_flags: SendFlags) -> Self {
        let len = |depth: u32| (depth as usize).clamp(1, MAX_RUN);
        let (sends, recvs) = (len(caps.send_depth), len(caps.recv_depth));
        let send = ibv_send_wr { opcode: WrOpcode::Send.raw(), num_sge: 1, ..Default::default() };
        let send_of_run = ibv_send_wr { send_flags: run_flags.bits(), ..send };
        let recv = ibv_recv_wr { num_sge: 1, ..Default::default() };
        let post_lists = Self {
            recvs: RequestList::new(recvs, recv),
            recv_sges: RequestList::new(recvs, ibv_sge::default()),
            sends: RequestList::new(sends, send_of_run),

            send_sges: RequestList::new(sends, ibv_sge::default()),
            recv_list: RequestList::new(recvs, recv),
            send_list: RequestList::new(sends, send),
            slots: None,
            peer: None,
            posted: false,
            run_flags,
        };
        // SAFETY: all pointers point into the lists, and nothing else refers to the lists.
        unsafe {
            for at in 0..recvs {
                (*post_lists.recvs.at(at)).sg_list = post_lists.recv_sges.at(at);
                (*post_lists.recvs.at(at)).next = post_lists.recvs.after(at);
                (*post_lists.recv_list.at(at)).next = post_lists.recv_list.after(at);
            }
            for at in 0..sends {
                (*post_lists.sends.at(at)).sg_list = post_lists.send_sges.at(at);
                (*post_lists.sends.at(at)).next = post_lists.sends.after(at);
                (*post_lists.send_list.at(at)).next = post_lists.send_list.after(at);
            }
        }
        post_lists
    }

    /// Records that the queue pair was reset, so no request of a run is outstanding.
    pub(super) fn forget(&mut self) {
        self.posted = false;
    }

    pub(super) fn bind_slots(&mut self, mr: &VerbsMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError> {
        let refuse = |errno| Err(VerbError::new("bind_slots", errno));
        let base = mr.region().base().as_ptr().addr() as u64;
        let registered = mr.range();
        if self.posted {
            return refuse(libc::EBUSY);
        }
        if base < registered.start || base + layout.bytes() as u64 > registered.end {
            return refuse(libc::EINVAL);
        }
        let lkey = mr.lkey().0;
        // SAFETY: all pointers point into the lists, and nothing else accesses the lists between posts.
        unsafe {
            for at in 0..self.recv_sges.len {
                *self.recv_sges.at(at) = ibv_sge { addr: 0, length: layout.room(), lkey };
            }
            for at in 0..self.send_sges.len {
                *self.send_sges.at(at) = ibv_sge { addr: 0, length: 0, lkey };
            }
        }
        self.slots = Some(SlotMemory { mr: mr.clone(), layout, base, recv_wr_id });
        Ok(())
    }

    pub(super) fn bind_peer(&mut self, to: Destination<'_, VerbsAh>) {
        let ud = ud(&to);
        // SAFETY: same as in `bind_slots`.
        unsafe {
            for at in 0..self.sends.len {
                (*self.sends.at(at)).wr = ud;
            }
        }
        self.peer = Some((to.ah.clone(), to.qp.0, to.qkey));
    }
}
