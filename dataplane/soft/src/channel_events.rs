//! The events of a completion channel: completion queues raise events, and the channel takes them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use dataplane_core::verbs::CqEvent;

// Epoll data of the channel's own descriptors. The data of a watched descriptor is the number of its completion queue.
// This number has at most 24 bits, so it differs from these values.
const READY: u64 = 1 << 32;
const TIMER: u64 = 2 << 32;

/// The events of a completion channel.
#[derive(Debug)]
pub(super) struct ChannelEvents {
    /// The epoll instance, which watches `ready_fd`, `timer` and the descriptors in `PendingEvents::watched`. The epoll
    /// instance is readable when one of these descriptors is readable.
    epoll: OwnedFd,
    /// An eventfd that is readable while `PendingEvents::ready` is not empty.
    ready_fd: OwnedFd,
    /// A timerfd that is readable when the earliest time in `PendingEvents::due` has passed.
    timer: OwnedFd,
    pending: Mutex<PendingEvents>,
}

#[derive(Debug, Default)]
struct PendingEvents {
    /// The values that the program gave the existing completion queues (`CqSpec::context`), by queue number.
    contexts: BTreeMap<u32, u64>,
    /// The completion queues whose events have not been taken.
    ready: VecDeque<u32>,
    /// Armed queues that raise an event at the given time, whether or not they have a completion.
    due: BTreeMap<u32, Instant>,
    /// Pairs of an armed queue and a descriptor that the epoll instance watches for this queue. The kernel removes a
    /// closed descriptor from the epoll instance.
    watched: Vec<(u32, RawFd)>,
}

impl ChannelEvents {
    /// Creates the events of a channel.
    ///
    /// # Errors
    /// The process or the system has too many open descriptors.
    pub(super) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let ready_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&epoll, &ready_fd, EventData::new_u64(READY), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        Ok(Self { epoll, ready_fd, timer, pending: Mutex::default() })
    }

    /// Returns the descriptor that is readable when an event is pending.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn pending(&self) -> MutexGuard<'_, PendingEvents> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a completion queue to the channel.
    pub(super) fn attach(&self, cq: u32, context: u64) {
        self.pending().contexts.insert(cq, context);
    }

    /// Removes a completion queue, and its events that were not taken.
    pub(super) fn detach(&self, cq: u32) {
        let mut events = self.pending();
        events.contexts.remove(&cq);
        events.due.remove(&cq);
        self.unwatch(&mut events, cq);
    }

    /// Raises an event for a completion queue.
    pub(super) fn notify(&self, cq: u32) {
        self.mark_ready(&mut self.pending(), cq);
    }

    /// Raises an event for a completion queue when a descriptor is readable, possibly immediately.
    pub(super) fn notify_when_readable(&self, cq: u32, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut events = self.pending();
        let number = descriptor.as_raw_fd();
        match epoll::add(&self.epoll, descriptor, EventData::new_u64(cq.into()), EventFlags::IN) {
            // The queue is already armed.
            Err(Errno::EXIST) => return Ok(()),
            added => added?,
        }
        // Remove the entry of a closed descriptor that had the same number.
        events.watched.retain(|(_, other)| *other != number);
        events.watched.push((cq, number));
        Ok(())
    }

    /// Raises an event for a completion queue after `time`.
    pub(super) fn notify_after(&self, cq: u32, time: Duration) {
        let mut events = self.pending();
        events.due.insert(cq, Instant::now() + time);
        self.set_timer(&events);
    }

    /// Marks a queue as ready and disarms it.
    fn mark_ready(&self, events: &mut PendingEvents, cq: u32) {
        events.due.remove(&cq);
        self.unwatch(events, cq);
        if events.ready.is_empty() {
            // The write cannot fail, because the counter is 0.
            let _ = rustix::io::write(&self.ready_fd, &1u64.to_ne_bytes());
        }
        events.ready.push_back(cq);
    }

    /// Stops watching the descriptors of a queue.
    fn unwatch(&self, events: &mut PendingEvents, cq: u32) {
        events.watched.retain(|(queue, number)| {
            if *queue == cq {
                // SAFETY: the call accesses no memory. If the descriptor is closed or reused, it is not in the epoll
                // instance, and the call fails harmlessly.
                unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, *number, std::ptr::null_mut()) };
            }
            *queue != cq
        });
    }

    /// Sets the timer to the time at which the first queue is due.
    fn set_timer(&self, events: &PendingEvents) {
        let first = events.due.values().min().map(|at| at.saturating_duration_since(Instant::now()));
        // A time of 0 would disarm the timer.
        let time = first.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: zero, it_value: Timespec::try_from(time).unwrap_or(zero) };
        // The call fails only for invalid times.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }

    /// Removes and returns the next event of an existing completion queue. `None` if there is no event.
    pub(super) fn take(&self) -> Option<CqEvent> {
        let mut events = self.pending();
        if events.ready.is_empty() {
            self.check_ready(&mut events);
        }
        while let Some(queue) = events.ready.pop_front() {
            if events.ready.is_empty() {
                let _ = rustix::io::read(&self.ready_fd, &mut [0; 8]);
            }
            if let Some(context) = events.contexts.get(&queue).copied() {
                return Some(CqEvent { queue, context });
            }
        }
        None
    }

    /// Checks which queues are ready now.
    fn check_ready(&self, events: &mut PendingEvents) {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let (mut list, at_once) = ([none; 16], Timespec { tv_sec: 0, tv_nsec: 0 });
        // The next call returns the events that do not fit in the list.
        let count = epoll::wait(&self.epoll, &mut list, Some(&at_once)).unwrap_or(0);
        for event in &list[..count] {
            match { event.data }.u64() {
                READY => {}
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                    let now = Instant::now();
                    while let Some(cq) = events.due.iter().find(|(_, at)| **at <= now).map(|(cq, _)| *cq) {
                        self.mark_ready(events, cq);
                    }
                    self.set_timer(events);
                }
                // A queue raises a single event, even if several of its descriptors are readable.
                cq if events.watched.iter().any(|(queue, _)| u64::from(*queue) == cq) => {
                    self.mark_ready(events, cq as u32)
                }
                _ => {}
            }
        }
    }
}
