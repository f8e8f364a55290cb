//! Completion channels: what a thread sleeps on until an armed queue has something.
//!
//! Entries of connections and datagrams come from other threads, which tell the channel of them. Raw packets come in only
//! when their queue is polled: there the channel watches the descriptors that they wait behind, or, where a wire has none,
//! lets a short time pass.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::error::VerbError;
use crate::provider::CompletionChannel;
use crate::provider::soft::device::Shared;

/// How long a thread sleeps before it looks whether a fabric has something to do: nobody else may.
const GLANCE: Duration = Duration::from_micros(500);
/// The same where there is no fabric: the device may be gone.
const REMOVAL: Duration = Duration::from_millis(20);

// What an event of the channel's own descriptors says. Those of others say the number of their queue, of 24 bits.
const TOLD: u64 = 1 << 32;
const TIMER: u64 = 2 << 32;

#[derive(Debug)]
struct Channel {
    device: Weak<Shared>,
    /// Is readable when there is an event, and has in it what makes it so: the two below, and what is watched.
    epoll: OwnedFd,
    /// Is readable while there are queues in `ready`.
    told: OwnedFd,
    /// Is readable once the first queue of `due` is.
    timer: OwnedFd,
    events: Mutex<Events>,
}

#[derive(Debug, Default)]
struct Events {
    ready: VecDeque<u32>,
    /// Armed queues of which nothing would tell: they are told of then, whether something came or not.
    due: BTreeMap<u32, Instant>,
    /// What is in the epoll, and for which armed queue. A descriptor that was closed has left the epoll by itself.
    watched: Vec<(u32, RawFd)>,
}

/// A completion channel of a software device.
///
/// An armed queue of raw packets is told of when its interface has a frame. Where the wire is no interface, or the queue is
/// told of sends whose end the kernel does not announce, and while the link is down, it is told of after a short sleep in any
/// case.
#[derive(Clone, Debug)]
pub struct SoftChannel(Arc<Channel>);

impl SoftChannel {
    /// # Errors
    /// The process, or the system, has too many descriptors.
    pub(super) fn new(device: &Arc<Shared>) -> Result<Self, VerbError> {
        let made = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            epoll::add(&epoll, &told, EventData::new_u64(TOLD), EventFlags::IN)?;
            epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
            Ok(Channel { device: Arc::downgrade(device), epoll, told, timer, events: Mutex::default() })
        };
        let channel = made().map_err(|error: Errno| VerbError::new("ibv_create_comp_channel", error.raw_os_error()))?;
        Ok(Self(Arc::new(channel)))
    }

    /// Whether it is of this device.
    pub(super) fn is_of(&self, device: &Arc<Shared>) -> bool {
        std::ptr::eq(self.0.device.as_ptr(), &**device)
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something in this queue.
    pub(super) fn tell(&self, cq: u32) {
        self.0.ready(&mut self.events(), cq);
    }

    /// Tells of this queue when there is something behind a descriptor, which may be so already.
    pub(super) fn tell_by(&self, cq: u32, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut events = self.events();
        let number = descriptor.as_raw_fd();
        match epoll::add(&self.0.epoll, descriptor, EventData::new_u64(cq.into()), EventFlags::IN) {
            // It is armed already.
            Err(Errno::EXIST) => return Ok(()),
            added => added?,
        }
        // Of a descriptor of the same number, which was closed.
        events.watched.retain(|(_, other)| *other != number);
        events.watched.push((cq, number));
        Ok(())
    }

    /// Tells of this queue when so much time has passed.
    pub(super) fn tell_after(&self, cq: u32, time: Duration) {
        let mut events = self.events();
        events.due.insert(cq, Instant::now() + time);
        self.0.set_timer(&events);
    }
}

impl Channel {
    /// A queue is ready, and not armed any more.
    fn ready(&self, events: &mut Events, cq: u32) {
        events.due.remove(&cq);
        events.watched.retain(|(queue, number)| {
            if *queue == cq {
                // SAFETY: no memory is named. A number that is closed, or another's by now, is not in the epoll: refused.
                unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, *number, std::ptr::null_mut()) };
            }
            *queue != cq
        });
        if events.ready.is_empty() {
            // Adding to the counter cannot fail: it is 0.
            let _ = rustix::io::write(&self.told, &1u64.to_ne_bytes());
        }
        events.ready.push_back(cq);
    }

    /// Lets the timer run out when the first queue is due.
    fn set_timer(&self, events: &Events) {
        let first = events.due.values().min().map(|at| at.saturating_duration_since(Instant::now()));
        // A time of 0 would stop it.
        let time = first.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: zero, it_value: Timespec::try_from(time).unwrap_or(zero) };
        // Refused only times that are none.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }

    /// Takes the next event.
    fn take(&self) -> Option<u32> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.ready.is_empty() {
            self.look(&mut events);
        }
        let cq = events.ready.pop_front()?;
        if events.ready.is_empty() {
            let _ = rustix::io::read(&self.told, &mut [0; 8]);
        }
        Some(cq)
    }

    /// Looks which queues are ready by now.
    fn look(&self, events: &mut Events) {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let (mut list, at_once) = ([none; 16], Timespec { tv_sec: 0, tv_nsec: 0 });
        // What does not fit is found the next time.
        let count = epoll::wait(&self.epoll, &mut list, Some(&at_once)).unwrap_or(0);
        for event in &list[..count] {
            match { event.data }.u64() {
                TOLD => {}
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0; 8]);
                    let now = Instant::now();
                    while let Some(cq) = events.due.iter().find(|(_, at)| **at <= now).map(|(cq, _)| *cq) {
                        self.ready(events, cq);
                    }
                    self.set_timer(events);
                }
                // Two descriptors of a queue make one event.
                cq if events.watched.iter().any(|(queue, _)| u64::from(*queue) == cq) => self.ready(events, cq as u32),
                _ => {}
            }
        }
    }
}

impl CompletionChannel for SoftChannel {
    fn wait(&self, patience: Duration) -> Result<Option<u32>, VerbError> {
        let end = Instant::now().checked_add(patience);
        loop {
            let gone = || VerbError::new("ibv_get_cq_event", libc::EIO);
            let device = self.0.device.upgrade().filter(|device| !device.is_gone()).ok_or_else(gone)?;
            // Time passes for connections too, while all who use them sleep.
            if let Some(fabric) = device.link.fabric() {
                fabric.drive();
            }
            if let Some(cq) = self.0.take() {
                return Ok(Some(cq));
            }
            let left = end.map_or(GLANCE, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            let glance = if device.link.fabric().is_some() { GLANCE } else { REMOVAL };
            drop(device);
            let time = Timespec::try_from(left.min(glance)).ok();
            // An interrupted wait is a look more.
            let _ = poll(&mut [PollFd::new(&self.0.epoll, PollFlags::IN)], time.as_ref());
        }
    }

    /// `None` where connections are, which need somebody to let time pass.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.device.upgrade().filter(|device| device.link.is_interface()).map(|_| self.0.epoll.as_fd())
    }
}
