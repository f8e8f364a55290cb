//! What a device has to say outside any completion.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ibverbs_sys::ibv_async_event;

use super::channel::CqTag;
use super::context::{Context, deadline, wait_readable};
use super::ffi;
use super::srq::SrqTag;
use crate::provider::{AsyncEvent, EventKind, EventSubject};

/// Waits for the next event and acknowledges it. A device that is gone says so once; after that nothing comes any more.
pub(super) fn wait(context: &Context, patience: Duration) -> Option<AsyncEvent> {
    let until = deadline(patience);
    loop {
        if context.gone.load(Ordering::Relaxed) {
            // Its descriptor may be readable for ever.
            wait_readable(-1, until);
            return None;
        }
        match take(context) {
            Ok(event) => return Some(event),
            Err(libc::EAGAIN | libc::EINTR) => {}
            Err(errno) => {
                let news = !context.gone.swap(true, Ordering::Relaxed);
                tracing::error!(device = context.name, errno, "no more events can be had: the device is gone");
                return news.then_some(AsyncEvent { kind: EventKind::DeviceFatal, element: 0 });
            }
        }
        if !wait_readable(context.async_fd(), until) {
            return None;
        }
    }
}

/// The next event that is there, or an `errno`.
fn take(context: &Context) -> Result<AsyncEvent, c_int> {
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the context is open and its descriptor does not block; the structure is there to be written.
    unsafe { ffi::ibv_get_async_event(context.raw(), event.as_mut_ptr()) }.map_err(|error| error.errno)?;
    // SAFETY: the structure holds a pointer or a number, for which zeros are valid, and the call has filled it.
    let mut event = unsafe { event.assume_init() };
    let kind = EventKind::from_raw(event.event_type);
    // SAFETY: which member of the union holds is told by the kind. What an event is of is not destroyed before it is
    // acknowledged. Completion queues and shared receive queues were all created with a tag of ours.
    let element = unsafe {
        match kind.subject() {
            EventSubject::QueuePair => event.element.qp.as_ref().map_or(0, |qp| qp.qp_num),
            EventSubject::WorkQueue => event.element.wq.as_ref().map_or(0, |wq| wq.wq_num),
            EventSubject::CompletionQueue => event
                .element
                .cq
                .as_ref()
                .and_then(|cq| cq.cq_context.cast::<CqTag>().as_ref())
                .map_or(0, |tag| tag.number),
            EventSubject::SharedReceiveQueue => event
                .element
                .srq
                .as_ref()
                .and_then(|srq| srq.srq_context.cast::<SrqTag>().as_ref())
                .map_or(0, |tag| tag.0),
            EventSubject::Port => u32::try_from(event.element.port_num).unwrap_or(0),
            EventSubject::Device => 0,
        }
    };
    // SAFETY: the event came from the call above, and is given back once.
    unsafe { ffi::ibv_ack_async_event(&mut event) };
    if kind == EventKind::DeviceFatal {
        context.gone.store(true, Ordering::Relaxed);
    }
    Ok(AsyncEvent { kind, element })
}
