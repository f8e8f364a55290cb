//! The events of a completion channel: completion queues raise events, and the channel takes them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use dataplane_core::verbs::CqEvent;

// Epoll data of the channel's own descriptors. The data of a watched descriptor is its number in the upper 32 bits, and
// the number of its completion queue in the lower 24 bits, so it differs from these values.
const READY: u64 = 1 << 24;
const TIMER: u64 = 2 << 24;

/// The kernel reports a watched descriptor once, and then ignores the descriptor until its queue is armed again.
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// The events of a completion channel.
#[derive(Debug)]
pub(super) struct ChannelEvents {
    /// The epoll instance, which watches `ready_fd`, `timer` and the descriptors in `PendingEvents::watched`. The epoll
    /// instance is readable when one of these descriptors is readable.
    epoll: OwnedFd,
    /// An eventfd that is readable while `PendingEvents::ready` is not empty and no thread holds the lock.
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
    /// Whether `ChannelEvents::ready_fd` is readable.
    is_signalled: bool,
    /// Armed queues that raise an event at the given time, whether or not they have a completion.
    due: BTreeMap<u32, Instant>,
    /// Whether `ChannelEvents::timer` expires, or has expired.
    is_timer_set: bool,
    /// The descriptors that the epoll instance watches.
    watched: Vec<Watched>,
}

/// A descriptor that the epoll instance watches for a queue. The kernel removes a closed descriptor from the epoll
/// instance. Another descriptor can then have the same number.
#[derive(Debug)]
struct Watched {
    cq: u32,
    number: RawFd,
    /// Whether the queue raises an event when the descriptor is readable.
    is_armed: bool,
    /// Whether the descriptor may have a pending error. An interface that goes down leaves an error on its socket, and
    /// the error makes the socket readable.
    may_have_error: bool,
}

impl Watched {
    /// Returns the epoll data of the descriptor.
    fn data(&self) -> u64 {
        (self.number as u64) << 32 | u64::from(self.cq)
    }
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
        events.watched.retain(|watched| {
            if watched.cq == cq {
                self.control(watched, libc::EPOLL_CTL_DEL);
            }
            watched.cq != cq
        });
    }

    /// Raises an event for a completion queue.
    pub(super) fn notify(&self, cq: u32) {
        let mut events = self.pending();
        self.mark_ready(&mut events, cq, None);
        self.signal(&mut events);
    }

    /// Raises an event for a completion queue when a descriptor is readable, possibly immediately.
    pub(super) fn notify_when_readable(&self, cq: u32, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut events = self.pending();
        let watched = Watched { cq, number: descriptor.as_raw_fd(), is_armed: true, may_have_error: false };
        let data = EventData::new_u64(watched.data());
        let known = events.watched.iter_mut().find(|known| known.number == watched.number);
        if known.as_ref().is_none_or(|known| known.may_have_error) {
            // Reading the error removes the error. The watcher of the interface reports the cause.
            let _ = socket_error(descriptor);
        }
        match epoll::modify(&self.epoll, descriptor, data, ONCE) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, descriptor, data, ONCE)?,
            modified => modified?,
        }
        match known {
            Some(known) => *known = watched,
            None => events.watched.push(watched),
        }
        Ok(())
    }

    /// Raises an event for a completion queue after `time`.
    pub(super) fn notify_after(&self, cq: u32, time: Duration) {
        let mut events = self.pending();
        events.due.insert(cq, Instant::now() + time);
        self.set_timer(&mut events);
    }

    /// Marks a queue as ready and disarms it. `reported` is the descriptor that the kernel has reported, and that it
    /// ignores from now on.
    fn mark_ready(&self, events: &mut PendingEvents, cq: u32, reported: Option<RawFd>) {
        events.due.remove(&cq);
        for watched in events.watched.iter_mut().filter(|watched| watched.cq == cq && watched.is_armed) {
            watched.is_armed = false;
            if reported != Some(watched.number) {
                self.control(watched, libc::EPOLL_CTL_MOD);
            }
        }
        events.ready.push_back(cq);
    }

    /// Removes a descriptor from the epoll instance, or lets the epoll instance ignore the descriptor.
    fn control(&self, watched: &Watched, operation: i32) {
        let mut ignored = libc::epoll_event { events: 0, u64: watched.data() };
        // SAFETY: the call reads one event, which exists during the call. If the descriptor is closed or reused, it is
        // not in the epoll instance, and the call fails harmlessly.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, watched.number, &raw mut ignored) };
    }

    /// Makes `ready_fd` readable if an event is pending, and otherwise not readable.
    fn signal(&self, events: &mut PendingEvents) {
        let is_ready = !events.ready.is_empty();
        if is_ready == events.is_signalled {
            return;
        }
        // The calls cannot fail, because the counter of the eventfd is 0 before the write, and 1 before the read.
        let _ = match is_ready {
            true => rustix::io::write(&self.ready_fd, &1u64.to_ne_bytes()),
            false => rustix::io::read(&self.ready_fd, &mut [0; 8]),
        };
        events.is_signalled = is_ready;
    }

    /// Sets the timer to the time at which the first queue is due.
    fn set_timer(&self, events: &mut PendingEvents) {
        let first = events.due.values().min().map(|at| at.saturating_duration_since(Instant::now()));
        // A time of 0 would disarm the timer.
        let time = first.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: zero, it_value: Timespec::try_from(time).unwrap_or(zero) };
        // The call fails only for invalid times.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
        events.is_timer_set = first.is_some();
    }

    /// Removes and returns the next event of an existing completion queue. `None` if there is no event.
    pub(super) fn take(&self) -> Option<CqEvent> {
        let mut events = self.pending();
        if events.ready.is_empty() {
            self.check_ready(&mut events);
        }
        let mut event = None;
        while event.is_none()
            && let Some(queue) = events.ready.pop_front()
        {
            event = events.contexts.get(&queue).map(|context| CqEvent { queue, context: *context });
        }
        self.signal(&mut events);
        event
    }

    /// Checks which queues are ready now.
    fn check_ready(&self, events: &mut PendingEvents) {
        if !events.is_timer_set && !events.watched.iter().any(|watched| watched.is_armed) {
            return;
        }
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
                        self.mark_ready(events, cq, None);
                    }
                    self.set_timer(events);
                }
                data => {
                    // A queue raises a single event, even if several of its descriptors are readable.
                    let found = events.watched.iter_mut().find(|watched| watched.data() == data && watched.is_armed);
                    if let Some(Watched { cq, number, may_have_error, .. }) = found {
                        *may_have_error |= { event.flags }.contains(EventFlags::ERR);
                        let (cq, number) = (*cq, *number);
                        self.mark_ready(events, cq, Some(number));
                    }
                }
            }
        }
    }
}
