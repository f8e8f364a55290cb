//! The events that a test adds to the fake device, the acknowledgement of events, and registered memory.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ibverbs_sys::*;

use super::{Call, Fake, fail, state};

#[derive(Default)]
pub(super) struct Events {
    completions: VecDeque<NonNull<ibv_cq>>,
    /// The number of events that were taken but not acknowledged, for each CQ number.
    due: HashMap<u32, u32>,
    asynchronous: VecDeque<Result<ibv_async_event, c_int>>,
}

// SAFETY: the objects that events refer to are not bound to a thread.
unsafe impl Send for Events {}

impl Events {
    pub(super) fn due(&self, cq: u32) -> u32 {
        self.due.get(&cq).copied().unwrap_or(0)
    }

    pub(super) fn take(&mut self) -> Option<NonNull<ibv_cq>> {
        let cq = self.completions.pop_front()?;
        // SAFETY: tests create events only for valid objects.
        *self.due.entry(unsafe { cq.as_ref() }.handle).or_default() += 1;
        Some(cq)
    }

    pub(super) fn acknowledge(&mut self, cq: u32, events: u32) {
        let due = self.due.entry(cq).or_default();
        *due = due.checked_sub(events).expect("more events were acknowledged than were taken");
    }

    pub(super) fn take_async(&mut self) -> Result<ibv_async_event, c_int> {
        self.asynchronous.pop_front().unwrap_or(Err(libc::EAGAIN))
    }
}

/// Returns the context of the object that an event refers to, or `None` if the event refers to no object.
///
/// # Safety
/// The object must be valid.
pub(super) unsafe fn context_of(event: &ibv_async_event) -> Option<*mut ibv_context> {
    // SAFETY: the caller upholds the safety contract. The event type determines the valid member of the union.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => Some((*event.element.cq).context),
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                Some((*event.element.qp).context)
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => Some((*event.element.srq).context),
            IBV_EVENT_WQ_FATAL => Some((*event.element.wq).context),
            _ => None,
        }
    }
}

/// # Safety
/// The protection domain must belong to a fake.
pub(super) unsafe fn new_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
    iova2: bool,
) -> *mut ibv_mr {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let context = (*pd).context;
        let error = state(context).note("ibv_reg_mr", Call::RegMr { access, iova2 });
        if error != 0 {
            return fail(error);
        }
        let key = state(context).number("mr");
        Box::into_raw(Box::new(ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key + 1000 }))
    }
}

impl Fake {
    /// Adds `times` completion events for a CQ to the channel of the CQ.
    pub(crate) fn completes(&self, cq: NonNull<ibv_cq>, times: usize) {
        self.state().events.completions.extend(std::iter::repeat_n(cq, times));
    }

    /// Adds an asynchronous event, or an error (`errno`) that `ibv_get_async_event` returns instead of an event.
    pub(crate) fn happens(&self, event: Result<ibv_async_event, c_int>) {
        self.state().events.asynchronous.push_back(event);
    }
}
