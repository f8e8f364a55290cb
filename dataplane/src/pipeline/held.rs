//! Packets that wait in a stage.

use std::mem;

use crate::mem::{BATCH, Batch, Pool, Wait};
use crate::units::Nanos;

/// What waits, with what must not be forgotten of each packet.
struct Queue {
    batch: Box<Batch>,
    since: [Nanos; BATCH],
    /// All packets of a batch came in by one port; those that wait came by any.
    ingress: [u8; BATCH],
}

impl Queue {
    fn new(pool: &Pool) -> Box<Self> {
        Box::new(Self { batch: Batch::new(pool), since: [Nanos(0); BATCH], ingress: [0; BATCH] })
    }
}

/// The packets that wait in a stage, in the order in which they came.
pub(super) struct Held {
    /// How long a packet may wait.
    longest: Nanos,
    waiting: Box<Queue>,
    /// Those that go through the stage again, from the next one on.
    leaving: Box<Queue>,
    next: usize,
    /// Since when those wait that are in the stage now.
    now: Box<[Nanos; BATCH]>,
}

impl Held {
    pub(super) fn new(longest: Nanos, pool: &Pool) -> Self {
        let (waiting, leaving) = (Queue::new(pool), Queue::new(pool));
        Self { longest, waiting, leaving, next: 0, now: Box::new([Nanos(0); BATCH]) }
    }

    /// Whether one more may wait.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.batch.len() + (self.leaving.batch.len() - self.next) < BATCH
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.batch.is_empty() && self.next == self.leaving.batch.len()
    }

    /// Takes one packet of the stage's batch, which forgets it. There is room.
    pub(super) fn take(&mut self, from: &Batch, index: usize, now: Nanos) -> bool {
        let at = self.waiting.batch.len();
        let since = if from.wait() == Wait::Fresh { now } else { self.now[index % BATCH] };
        let taken = self.waiting.batch.push_from(from, index);
        if taken {
            (self.waiting.since[at], self.waiting.ingress[at]) = (since, from.ingress());
        }
        taken
    }

    /// All that wait are to go through the stage again.
    pub(super) fn begin(&mut self) {
        if self.next == self.leaving.batch.len() && !self.waiting.batch.is_empty() {
            self.leaving.batch.forget();
            self.next = 0;
            mem::swap(&mut self.waiting, &mut self.leaving);
        }
    }

    /// Fills the stage's empty batch with some that go through it again, at most so many. They are of one port, and all of
    /// them have waited too long or none has.
    pub(super) fn fill(&mut self, inbox: &mut Batch, most: usize, now: Nanos) -> usize {
        let leaving = &self.leaving;
        let kind = |at: usize| {
            let waited = now.0.saturating_sub(leaving.since[at].0);
            (leaving.ingress[at], if waited >= self.longest.0 { Wait::Overdue } else { Wait::Held })
        };
        let (first, all) = (self.next, leaving.batch.len());
        let mut count = 0;
        while first + count < all && count < most && kind(first + count) == kind(first) {
            if !inbox.push_from(&leaving.batch, first + count) {
                break;
            }
            self.now[count] = leaving.since[first + count];
            count += 1;
        }
        if count > 0 {
            let (ingress, wait) = kind(first);
            inbox.set_ingress(ingress);
            inbox.set_wait(wait);
        }
        self.next += count;
        count
    }

    /// Frees all that wait. Returns how many they were.
    pub(super) fn free(&mut self, pool: &mut Pool) -> usize {
        let left = self.leaving.batch.len() - self.next;
        self.leaving.batch.free_from(self.next, pool);
        self.leaving.batch.forget();
        self.next = 0;
        let waiting = self.waiting.batch.len();
        self.waiting.batch.free_into(pool);
        left + waiting
    }
}
