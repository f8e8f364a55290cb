//! Asynchronous events of a device.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ibverbs_sys::ibv_async_event;

use super::channel::CqTag;
use super::context::Context;
use super::ffi;
use super::os::{deadline, wait_readable};
use super::srq::SrqTag;
use dataplane_core::verbs::{AsyncEvent, EventKind, EventSubject};

/// Returns the next event and acknowledges the event. Returns `None` after `timeout`. The removal of the device is the
/// last event, and is returned once.
pub(super) fn wait(context: &Context, timeout: Duration) -> Option<AsyncEvent> {
    let until = deadline(timeout);
    loop {
        if context.gone.load(Ordering::Relaxed) {
            // The file descriptor of a removed device may stay readable, so wait for the timeout without the
            // descriptor.
            wait_readable(-1, until);
            return None;
        }
        match take(context) {
            Ok(event) => return Some(event),
            Err(libc::EAGAIN | libc::EINTR) => {}
            Err(errno) => {
                let news = !context.gone.swap(true, Ordering::Relaxed);
                tracing::error!(device = context.name, errno, "cannot read events; the device was removed");
                return news.then_some(AsyncEvent { kind: EventKind::DeviceFatal, element: 0 });
            }
        }
        if !wait_readable(context.async_fd(), until) {
            return None;
        }
    }
}

/// Takes the next event without blocking. Returns the `errno` on failure.
fn take(context: &Context) -> Result<AsyncEvent, c_int> {
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the context is open, its descriptor is non-blocking, and the structure is writable.
    unsafe { ffi::ibv_get_async_event(context.raw(), event.as_mut_ptr()) }.map_err(|error| error.errno)?;
    // SAFETY: the structure contains a pointer or a number, for which zeros are valid, and the call has filled it in.
    let mut event = unsafe { event.assume_init() };
    let kind = EventKind::from_raw(event.event_type);
    // SAFETY: the event type determines the valid member of the union. An object is not destroyed before its events are
    // acknowledged. Every completion queue and every shared receive queue has a tag of this crate as its user context.
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
    // SAFETY: the event came from the call above and is acknowledged once.
    unsafe { ffi::ibv_ack_async_event(&mut event) };
    if kind == EventKind::DeviceFatal {
        context.gone.store(true, Ordering::Relaxed);
    }
    Ok(AsyncEvent { kind, element })
}
