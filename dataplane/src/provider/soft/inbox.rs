//! What comes into a completion queue from other threads: the completions of connections and datagrams.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::provider::WcStatus;
use crate::provider::soft::channel::SoftChannel;
use crate::provider::soft::cq::{Cqe, Stamps};
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

    /// What is told of entries.
    pub(super) fn channel(&self) -> Option<&SoftChannel> {
        self.channel.as_ref()
    }

    /// Lets the next entry be an event.
    pub(super) fn arm(&self, solicited_only: bool) {
        // To be told of any entry includes to be told of a solicited one.
        let mut entries = self.entries();
        entries.armed = Some(solicited_only && entries.armed.unwrap_or(true));
    }
}
