//! Completion channels: a thread sleeps on a channel until an armed completion queue has a completion.
//!
//! Completions of connections and datagrams come from other threads, which notify the channel. Raw packets complete
//! only when their queue is polled. For raw packets, the channel therefore watches the file descriptors (sockets, TAP
//! devices) on which frames arrive. For a wire without a descriptor, the channel raises an event after a short time.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel_events::ChannelEvents;
use crate::open_device::OpenDevice;
use dataplane_core::clock::ClockSource;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{CompletionChannel, CqEvent};

/// The interval at which a waiting thread runs the fabric (the shared state machine of connections and datagrams), if
/// the device has a virtual clock. Another thread may advance this clock, and no event signals the change.
const FABRIC_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// The interval at which a waiting thread checks whether the device was removed.
const REMOVAL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A completion channel of a software device.
///
/// An armed completion queue of raw packets raises an event when its interface has a frame. In the following cases, the
/// queue raises the event after a short time instead:
/// - The wire is not an interface.
/// - The link is down.
/// - The kernel does not signal the end of the queue's sends.
#[derive(Clone, Debug)]
pub struct SoftChannel {
    device: Weak<OpenDevice>,
    events: Arc<ChannelEvents>,
}

impl SoftChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// The process or the system has too many open descriptors.
    pub(super) fn new(device: &Arc<OpenDevice>) -> Result<Self, VerbError> {
        let events =
            ChannelEvents::new().map_err(|error| VerbError::new("ibv_create_comp_channel", error.raw_os_error()))?;
        Ok(Self { device: Arc::downgrade(device), events: Arc::new(events) })
    }

    /// Returns whether the channel belongs to this device.
    pub(super) fn is_of(&self, device: &Arc<OpenDevice>) -> bool {
        std::ptr::eq(self.device.as_ptr(), &**device)
    }

    /// Returns the events, which completion queues raise.
    pub(super) fn events(&self) -> &Arc<ChannelEvents> {
        &self.events
    }
}

impl CompletionChannel for SoftChannel {
    fn wait_event(&self, timeout: Duration) -> Result<Option<CqEvent>, VerbError> {
        let end = Instant::now().checked_add(timeout);
        loop {
            let gone = || VerbError::new("ibv_get_cq_event", libc::EIO);
            let device = self.device.upgrade().filter(|device| !device.shared.is_gone()).ok_or_else(gone)?;
            // Timers of a virtual clock may have expired.
            if let Some(fabric) = device.link.fabric() {
                fabric.drive();
            }
            if let Some(event) = self.events.take() {
                return Ok(Some(event));
            }
            let left = end.map_or(REMOVAL_POLL_INTERVAL, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            let is_virtual = device.shared.clock.timebase().source == ClockSource::Virtual;
            let interval = if is_virtual { FABRIC_POLL_INTERVAL } else { REMOVAL_POLL_INTERVAL };
            drop(device);
            let time = Timespec::try_from(left.min(interval)).ok();
            // An interrupted wait only causes an additional check.
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.events.descriptor(), PollFlags::IN)], time.as_ref());
        }
    }

    /// Returns `None` if the link is not an interface. The raw packets of such a link and the timers of a virtual clock
    /// need a thread that polls.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.device.upgrade().filter(|device| device.link.is_interface()).map(|_| self.events.descriptor())
    }
}
