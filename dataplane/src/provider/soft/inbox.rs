//! What comes into a completion queue from other threads: the completions of connections and datagrams, and the channel
//! that is told of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::VerbError;
use crate::provider::soft::cq::{Cqe, Stamps};
use crate::provider::soft::device::Shared;
use crate::provider::{CompletionChannel, WcStatus};
use crate::units::QpNum;

/// The entries that a [`Fabric`](super::fabric::Fabric) has made and nobody has polled.
#[derive(Debug)]
pub(super) struct Inbox {
    /// That of its completion queue.
    pub(super) number: u32,
    state: Mutex<Entries>,
    channel: Option<SoftChannel>,
}

#[derive(Debug)]
struct Entries {
    ring: VecDeque<Cqe>,
    depth: usize,
    ignore_overrun: bool,
    /// Whether what finds no room is lost, and the queue lives on.
    forgiving: bool,
    /// Whether it overran.
    dead: bool,
    stamps: Stamps,
    /// Whether the next entry is an event; or only the next that was sent solicited, or failed.
    armed: Option<bool>,
}

impl Inbox {
    pub(super) fn new(
        number: u32,
        depth: usize,
        ignore_overrun: bool,
        forgiving: bool,
        stamps: Stamps,
        channel: Option<SoftChannel>,
    ) -> Self {
        let state = Entries {
            ring: VecDeque::with_capacity(depth.min(1024)),
            depth,
            ignore_overrun,
            forgiving,
            dead: false,
            stamps,
            armed: None,
        };
        Self { number, state: Mutex::new(state), channel }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, and stamps it. `false`: there was no room.
    pub(super) fn push(&self, mut cqe: Cqe, solicited: bool) -> bool {
        let mut entries = self.entries();
        if entries.ring.len() >= entries.depth || entries.dead {
            if !entries.ignore_overrun || entries.dead {
                entries.dead |= !entries.forgiving;
                return false;
            }
            entries.ring.pop_front();
        }
        let failed = cqe.completion.status != WcStatus::Success;
        if !failed {
            cqe.completion.values().ticks = entries.stamps.now();
        }
        entries.ring.push_back(cqe);
        let tells = entries.armed.is_some_and(|only| !only || solicited || failed);
        if tells {
            entries.armed = None;
        }
        drop(entries);
        if let Some(channel) = self.channel.as_ref().filter(|_| tells) {
            channel.tell(self.number);
        }
        true
    }

    /// Hands entries over, oldest first, while `take` wants more. `false`: the queue cannot be used any more.
    pub(super) fn drain(&self, mut take: impl FnMut(&Cqe) -> bool) -> bool {
        let mut entries = self.entries();
        if entries.dead {
            return false;
        }
        while entries.ring.front().is_some_and(&mut take) {
            entries.ring.pop_front();
        }
        true
    }

    /// The oldest entry.
    pub(super) fn pop(&self) -> Option<Cqe> {
        self.entries().ring.pop_front()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.entries().dead
    }

    /// The queue cannot be used any more.
    pub(super) fn kill(&self) {
        self.entries().dead = true;
    }

    /// Forgets the entries of a queue pair.
    pub(super) fn purge(&self, qp: QpNum) {
        self.entries().ring.retain(|cqe| cqe.qp != qp);
    }

    /// Changes the room. `false`: more entries than that are in it.
    pub(super) fn resize(&self, depth: usize) -> bool {
        let mut entries = self.entries();
        let fits = entries.ring.len() <= depth;
        if fits {
            entries.depth = depth;
        }
        fits
    }

    /// Lets the next entry be an event. `polled`: entries come in only by polling, so none would ever tell.
    pub(super) fn arm(&self, solicited_only: bool, polled: bool) -> Result<(), i32> {
        let channel = self.channel.as_ref().ok_or(libc::EINVAL)?;
        if polled {
            channel.tell_soon(self.number);
        } else {
            // To be told of any entry includes to be told of a solicited one.
            let mut entries = self.entries();
            entries.armed = Some(solicited_only && entries.armed.unwrap_or(true));
        }
        Ok(())
    }
}

/// How long a thread sleeps before it looks whether the device has something to do: nobody else may.
const NAP: Duration = Duration::from_micros(500);

#[derive(Debug)]
struct Channel {
    device: Weak<Shared>,
    events: Mutex<Events>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Events {
    ready: VecDeque<u32>,
    /// Of queues that only polling fills: told after a nap, whether something came or not.
    soon: BTreeMap<u32, Instant>,
}

/// A completion channel of a software device.
///
/// An armed queue of raw packets, which receives only when it is polled, is told of after a short sleep in any case.
#[derive(Clone, Debug)]
pub struct SoftChannel(Arc<Channel>);

impl SoftChannel {
    pub(super) fn new(device: &Arc<Shared>) -> Self {
        let device = Arc::downgrade(device);
        Self(Arc::new(Channel { device, events: Mutex::default(), told: Condvar::new() }))
    }

    /// Whether it is of this device.
    pub(super) fn is_of(&self, device: &Arc<Shared>) -> bool {
        std::ptr::eq(self.0.device.as_ptr(), &**device)
    }

    fn tell(&self, cq: u32) {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).ready.push_back(cq);
        self.0.told.notify_one();
    }

    fn tell_soon(&self, cq: u32) {
        let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.soon.insert(cq, Instant::now() + NAP);
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
            let mut events = self.0.events.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let due = events.soon.iter().find(|(_, at)| **at <= now).map(|(cq, _)| *cq);
            if let Some(cq) = due {
                events.soon.remove(&cq);
                events.ready.push_back(cq);
            }
            if let Some(cq) = events.ready.pop_front() {
                return Ok(Some(cq));
            }
            let left = end.map_or(NAP, |end| end.saturating_duration_since(now));
            if left.is_zero() {
                return Ok(None);
            }
            drop(self.0.told.wait_timeout(events, left.min(NAP)).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
