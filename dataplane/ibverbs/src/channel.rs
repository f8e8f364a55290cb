//! Completion channels, which wake a thread when a completion arrives.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ibverbs_sys::{ibv_comp_channel, ibv_cq};

use super::context::{Context, check_destroyed};
use super::ffi;
use super::os::{deadline, nonblocking, wait_readable};
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{CompletionChannel, CqEvent};

/// The number of events of a queue that are acknowledged together. Each acknowledgement takes a lock, so one
/// acknowledgement per event is expensive.
const BATCH: u32 = 32;

/// A completion channel of a device. All clones share one channel.
#[derive(Clone)]
pub struct VerbsChannel(Arc<ChannelHandle>);

struct ChannelHandle {
    raw: NonNull<ibv_comp_channel>,
    fd: c_int,
    /// Locked while a thread takes and counts an event, and while [`VerbsChannel::forget`] marks a completion queue for
    /// destruction. From then on, each event of the marked queue is acknowledged immediately, because the destruction
    /// of a queue waits until all its events are acknowledged.
    taking: Mutex<()>,
    context: Arc<Context>,
}

// SAFETY: the library locks the parts of a channel that change. The file descriptor is a plain number.
unsafe impl Send for ChannelHandle {}
// SAFETY: same as above.
unsafe impl Sync for ChannelHandle {}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        // SAFETY: every completion queue of the channel holds a clone, so no completion queue uses the channel any
        // more.
        check_destroyed(unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) }, &self.context.name);
    }
}

impl fmt::Debug for VerbsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsChannel").field("fd", &self.0.fd).finish_non_exhaustive()
    }
}

/// The `cq_context` of a completion queue in the library. With each event of the completion queue, the library returns
/// a pointer to this tag.
#[derive(Debug)]
pub(super) struct CqTag {
    pub(super) number: u32,
    /// The program's value: `CqSpec::context`.
    pub(super) context: u64,
    /// The event counts. The counts change only while `taking` is locked.
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    /// The number of events that were taken but are not acknowledged yet.
    due: u32,
    /// Whether the destruction of the queue has begun.
    ends: bool,
}

impl CqTag {
    pub(super) fn new(number: u32, context: u64) -> Box<Self> {
        Box::new(Self { number, context, events: Mutex::default() })
    }
}

impl VerbsChannel {
    pub(super) fn create(context: &Arc<Context>) -> Result<Self, VerbError> {
        // SAFETY: the context is open. The descriptor does not change.
        let (raw, fd) = unsafe {
            let raw = ffi::ibv_create_comp_channel(context.raw())?;
            (raw, (*raw.as_ptr()).fd)
        };
        let channel = Self(Arc::new(ChannelHandle { raw, fd, taking: Mutex::new(()), context: context.clone() }));
        nonblocking(fd).map_err(|errno| VerbError::new("ibv_create_comp_channel", errno))?;
        Ok(channel)
    }

    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.0.raw.as_ptr()
    }

    /// Returns the device of the channel.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Takes the next event and counts it for the acknowledgement. Returns `None` if there is no event. Does not block.
    fn take(&self) -> Result<Option<CqEvent>, VerbError> {
        let _taking = self.0.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut cq, mut tag) = (ptr::null_mut::<ibv_cq>(), ptr::null_mut());
        // SAFETY: the channel is valid, and its descriptor is non-blocking.
        match unsafe { ffi::ibv_get_cq_event(self.raw(), &mut cq, &mut tag) } {
            Ok(()) => {}
            Err(VerbError { errno: libc::EAGAIN | libc::EINTR, .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: every queue of a channel has a tag as its user context. The queue and its tag are valid here: the
        // destruction of the queue waits for the acknowledgement of this event, and the tag is freed after the queue.
        let tag: &CqTag = unsafe { &*tag.cast::<CqTag>() };
        let event = CqEvent { queue: tag.number, context: tag.context };
        let mut events = tag.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.due += 1;
        let due = if events.ends || events.due >= BATCH { std::mem::take(&mut events.due) } else { 0 };
        drop(events);
        if due > 0 {
            // SAFETY: same as above. `due` events were taken. Nothing accesses the tag after this call.
            unsafe { ffi::ibv_ack_cq_events(cq, due) };
        }
        Ok(Some(event))
    }

    /// Prepares the destruction of a completion queue: acknowledges all events that were taken. Later events of the
    /// queue are acknowledged as soon as they are taken.
    ///
    /// # Safety
    /// The queue must have been created with this channel and this tag, and must not have been destroyed.
    pub(super) unsafe fn forget(&self, cq: *mut ibv_cq, tag: &CqTag) {
        let _taking = self.0.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = tag.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.ends = true;
        if events.due > 0 {
            // SAFETY: the caller upholds the safety contract. `due` events were taken.
            unsafe { ffi::ibv_ack_cq_events(cq, std::mem::take(&mut events.due)) };
        }
    }
}

impl CompletionChannel for VerbsChannel {
    fn wait_event(&self, timeout: Duration) -> Result<Option<CqEvent>, VerbError> {
        let until = deadline(timeout);
        loop {
            // Several threads may wait, and another thread may take the event first. Then this thread waits again.
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            if !wait_readable(self.0.fd, until) {
                return Ok(None);
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open as long as the channel exists.
        Some(unsafe { BorrowedFd::borrow_raw(self.0.fd) })
    }
}
