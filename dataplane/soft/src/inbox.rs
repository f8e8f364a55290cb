//! The inbox of a completion queue: the completions of connections and datagrams. Any thread may add such a completion.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel_events::ChannelEvents;
use crate::completion::{FabricCqe, Stamps};
use crate::numbers::Number;
use dataplane_core::units::QpNum;
use dataplane_core::verbs::WcStatus;

/// The completions that a [`Fabric`](super::fabric::Fabric) has added and that were not polled yet.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The number of the completion queue.
    pub(super) number: u32,
    /// Reserves `number` while this value exists.
    _number: Number,
    state: Mutex<InboxState>,
    channel: Option<Arc<ChannelEvents>>,
}

#[derive(Debug)]
struct InboxState {
    ring: VecDeque<FabricCqe>,
    depth: usize,
    ignore_overrun: bool,
    /// Whether the queue stays usable after an overrun. A completion that does not fit is then dropped.
    survives_overrun: bool,
    /// Whether the queue is unusable, because it overran or because of an injected fault.
    dead: bool,
    stamps: Stamps,
    /// The arming state. `None`: the queue is not armed. `Some(false)`: the next completion raises an event.
    /// `Some(true)`: only the next solicited or failed completion raises an event.
    armed: Option<bool>,
}

impl Inbox {
    pub(super) fn new(
        number: Number,
        depth: usize,
        ignore_overrun: bool,
        survives_overrun: bool,
        stamps: Stamps,
        channel: Option<Arc<ChannelEvents>>,
    ) -> Self {
        let state = InboxState {
            ring: VecDeque::with_capacity(depth.min(1024)),
            depth,
            ignore_overrun,
            survives_overrun,
            dead: false,
            stamps,
            armed: None,
        };
        Self { number: number.get(), _number: number, state: Mutex::new(state), channel }
    }

    fn entries(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a completion, and sets its timestamp. Returns `false` if the completion did not fit.
    pub(super) fn push(&self, mut cqe: FabricCqe, solicited: bool) -> bool {
        let mut entries = self.entries();
        if entries.ring.len() >= entries.depth || entries.dead {
            if !entries.ignore_overrun || entries.dead {
                entries.dead |= !entries.survives_overrun;
                return false;
            }
            entries.ring.pop_front();
        }
        let failed = cqe.completion.status != WcStatus::Success;
        if !failed {
            cqe.completion.values_mut().ticks = entries.stamps.now();
        }
        entries.ring.push_back(cqe);
        let notifies = entries.armed.is_some_and(|only| !only || solicited || failed);
        if notifies {
            entries.armed = None;
        }
        drop(entries);
        if let Some(channel) = self.channel.as_ref().filter(|_| notifies) {
            channel.notify(self.number);
        }
        true
    }

    /// Passes completions to `take`, oldest first, and removes them while `take` returns `true`. Returns `false` if the
    /// queue is unusable. As for [`Inbox::pop`], `take` runs while the inbox is locked.
    pub(super) fn drain(&self, mut take: impl FnMut(&FabricCqe) -> bool) -> bool {
        let mut entries = self.entries();
        if entries.dead {
            return false;
        }
        while entries.ring.front().is_some_and(&mut take) {
            entries.ring.pop_front();
        }
        true
    }

    /// Removes and returns the oldest completion, and passes it to `take`.
    ///
    /// `take` runs while the inbox is locked. So after [`Inbox::purge`], no thread still works on a completion of the
    /// queue pair.
    pub(super) fn pop(&self, take: impl FnOnce(&FabricCqe)) -> Option<FabricCqe> {
        let mut entries = self.entries();
        let cqe = entries.ring.pop_front()?;
        take(&cqe);
        Some(cqe)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.entries().dead
    }

    /// Marks the queue as unusable.
    pub(super) fn kill(&self) {
        self.entries().dead = true;
    }

    /// Removes the completions of a queue pair.
    pub(super) fn purge(&self, qp: QpNum) {
        self.entries().ring.retain(|cqe| cqe.qp != qp);
    }

    /// Changes the capacity. Returns `false` and changes nothing if the inbox holds more than `depth` completions.
    pub(super) fn resize(&self, depth: usize) -> bool {
        let mut entries = self.entries();
        let fits = entries.ring.len() <= depth;
        if fits {
            entries.depth = depth;
        }
        fits
    }

    /// Returns the events of the channel, if the queue has one.
    pub(super) fn channel(&self) -> Option<&ChannelEvents> {
        self.channel.as_deref()
    }

    /// Arms the queue: the next completion raises an event. With `solicited_only`, only the next solicited or failed
    /// completion raises the event.
    pub(super) fn arm(&self, solicited_only: bool) {
        // If the queue is already armed for every completion, it stays armed for every completion.
        let mut entries = self.entries();
        entries.armed = Some(solicited_only && entries.armed.unwrap_or(true));
    }
}
