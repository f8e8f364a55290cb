//! Completion channels.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ibverbs_sys::{ibv_comp_channel, ibv_cq};

use super::context::{Context, deadline, ended, nonblocking, wait_readable};
use super::ffi;
use crate::error::VerbError;
use crate::provider::CompletionChannel;

/// How many events of a queue are acknowledged at once: each time takes a lock.
const BATCH: u32 = 32;

/// A completion channel of a device. Clones are the same channel.
#[derive(Clone)]
pub struct VerbsChannel(Arc<Handle>);

struct Handle {
    raw: NonNull<ibv_comp_channel>,
    fd: c_int,
    /// Held from taking an event to counting it, and while a queue says that it ends: an event of a queue that ends is
    /// acknowledged at once, since the queue's destruction waits for it.
    taking: Mutex<()>,
    context: Arc<Context>,
}

// SAFETY: the library locks what it changes of a channel; the descriptor is a number.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the queues that use the channel hold it, so there are none.
        ended(unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) }, &self.context.name);
    }
}

impl fmt::Debug for VerbsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsChannel").field("fd", &self.0.fd).finish_non_exhaustive()
    }
}

/// What a channel and the device's events know of a completion queue: the library gives its place back with each event,
/// as the user's own word.
#[derive(Debug)]
pub(super) struct CqTag {
    pub(super) number: u32,
    /// Changed with `taking` held.
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    /// Taken, and not acknowledged.
    due: u32,
    /// The queue is about to be destroyed.
    ends: bool,
}

impl CqTag {
    pub(super) fn new(number: u32) -> Box<Self> {
        Box::new(Self { number, events: Mutex::default() })
    }
}

impl VerbsChannel {
    pub(super) fn create(context: &Arc<Context>) -> Result<Self, VerbError> {
        // SAFETY: the context is open. The descriptor does not change.
        let (raw, fd) = unsafe {
            let raw = ffi::ibv_create_comp_channel(context.raw())?;
            (raw, (*raw.as_ptr()).fd)
        };
        let channel = Self(Arc::new(Handle { raw, fd, taking: Mutex::new(()), context: context.clone() }));
        nonblocking(fd).map_err(|errno| VerbError::new("ibv_create_comp_channel", errno))?;
        Ok(channel)
    }

    pub(super) fn raw(&self) -> *mut ibv_comp_channel {
        self.0.raw.as_ptr()
    }

    /// The device that it is of.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Takes the next event that is there and notes it for acknowledgement. `None`: there is none.
    fn take(&self) -> Result<Option<u32>, VerbError> {
        let _taking = self.0.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut cq, mut tag) = (ptr::null_mut::<ibv_cq>(), ptr::null_mut());
        // SAFETY: the channel is alive, and its descriptor does not block.
        match unsafe { ffi::ibv_get_cq_event(self.raw(), &mut cq, &mut tag) } {
            Ok(()) => {}
            Err(VerbError { errno: libc::EAGAIN | libc::EINTR, .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: every queue of a channel was created with a tag. Neither goes before the event is acknowledged, for the
        // destruction of the queue waits for that and the tag goes after it.
        let tag: &CqTag = unsafe { &*tag.cast::<CqTag>() };
        let number = tag.number;
        let mut events = tag.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.due += 1;
        let due = if events.ends || events.due >= BATCH { std::mem::take(&mut events.due) } else { 0 };
        drop(events);
        if due > 0 {
            // SAFETY: as above; so many events were taken. The tag is not touched any more.
            unsafe { ffi::ibv_ack_cq_events(cq, due) };
        }
        Ok(Some(number))
    }

    /// Acknowledges what was taken of a queue. From now on its events are acknowledged when they are taken.
    ///
    /// # Safety
    /// The queue was created with this channel and tag, and was not destroyed.
    pub(super) unsafe fn forget(&self, cq: *mut ibv_cq, tag: &CqTag) {
        let _taking = self.0.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = tag.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.ends = true;
        if events.due > 0 {
            // SAFETY: the caller's promise; so many events were taken.
            unsafe { ffi::ibv_ack_cq_events(cq, std::mem::take(&mut events.due)) };
        }
    }
}

impl CompletionChannel for VerbsChannel {
    fn wait(&self, patience: Duration) -> Result<Option<u32>, VerbError> {
        let until = deadline(patience);
        loop {
            // Several threads may wait: whoever comes late waits on.
            if let Some(number) = self.take()? {
                return Ok(Some(number));
            }
            if !wait_readable(self.0.fd, until) {
                return Ok(None);
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open as long as the channel is.
        Some(unsafe { BorrowedFd::borrow_raw(self.0.fd) })
    }
}
