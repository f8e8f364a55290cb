//! Packets that a stage holds for later.

use std::mem;

use crate::mem::{BATCH, Batch, BatchMemory, HoldState, Pool};
use crate::units::Nanos;

/// The number that replaces the egress port of a packet if a change has removed this port. A config has at most 255
/// ports, so no port has this number.
const NO_PORT: u8 = u8::MAX;

/// What happens to the packets that a replaced stage holds ([`Stage::adopt`](super::Stage::adopt)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldPackets {
    /// The new stage continues to hold the packets, if its contract declares that the stage holds packets.
    Keep,
    /// The program drops the packets with the reason `stopped`.
    Drop,
}

/// Held packets. `since` has the time when the stage first held each packet.
struct HeldBatch {
    batch: Box<Batch>,
    since: [Nanos; BATCH],
    /// Ingress port of each packet. All packets of a batch share one ingress port, but held packets can come from
    /// several ports.
    ingress: [u8; BATCH],
}

impl HeldBatch {
    fn new(memory: &BatchMemory) -> Box<Self> {
        Box::new(Self { batch: Batch::in_memory(memory), since: [Nanos(0); BATCH], ingress: [0; BATCH] })
    }
}

/// The packets that a stage holds, in the order in which they arrived.
pub(super) struct Held {
    /// Maximum time that a packet may wait.
    longest: Nanos,
    waiting: Box<HeldBatch>,
    /// Packets that pass through the stage again. The packets before index `next` have already left.
    leaving: Box<HeldBatch>,
    next: usize,
    /// For each packet in the inbox of the stage: the time when the stage first held the packet. Valid only if the
    /// inbox contains packets that were held before.
    inbox_since: Box<[Nanos; BATCH]>,
}

impl Held {
    pub(super) fn new(longest: Nanos, memory: &BatchMemory) -> Self {
        let (waiting, leaving) = (HeldBatch::new(memory), HeldBatch::new(memory));
        Self { longest, waiting, leaving, next: 0, inbox_since: Box::new([Nanos(0); BATCH]) }
    }

    /// Returns the number of held packets.
    pub(super) fn len(&self) -> usize {
        self.waiting.batch.len() + (self.leaving.batch.len() - self.next)
    }

    /// Returns whether the stage may hold one more packet.
    pub(super) fn has_room(&self) -> bool {
        self.len() < BATCH
    }

    /// Returns whether the stage holds no packet.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.batch.is_empty() && self.next == self.leaving.batch.len()
    }

    /// Adds one packet of the batch `from` to the held packets. Returns `false` if this fails. The caller must check
    /// [`Held::has_room`] first. After a success, the caller must remove the packet from `from`.
    pub(super) fn take(&mut self, from: &Batch, index: usize, now: Nanos) -> bool {
        let at = self.waiting.batch.len();
        let since = if from.hold_state() == HoldState::Fresh { now } else { self.inbox_since[index % BATCH] };
        let taken = self.waiting.batch.push_from(from, index);
        if taken {
            (self.waiting.since[at], self.waiting.ingress[at]) = (since, from.ingress());
        }
        taken
    }

    /// Schedules the waiting packets to pass through the stage again, if all previously scheduled packets have left.
    pub(super) fn begin(&mut self) {
        if self.next == self.leaving.batch.len() && !self.waiting.batch.is_empty() {
            self.leaving.batch.forget();
            self.next = 0;
            mem::swap(&mut self.waiting, &mut self.leaving);
        }
    }

    /// Moves up to `most` of the scheduled packets into the empty inbox of the stage and returns their number. The
    /// moved packets have the same ingress port, and either all or none of them are overdue.
    pub(super) fn fill(&mut self, inbox: &mut Batch, most: usize, now: Nanos) -> usize {
        let leaving = &self.leaving;
        let state = |at: usize| {
            let waited = now.0.saturating_sub(leaving.since[at].0);
            (leaving.ingress[at], if waited >= self.longest.0 { HoldState::Overdue } else { HoldState::Held })
        };
        let (start, all) = (self.next, leaving.batch.len());
        let mut count = 0;
        while start + count < all && count < most && state(start + count) == state(start) {
            if !inbox.push_from(&leaving.batch, start + count) {
                break;
            }
            self.inbox_since[count] = leaving.since[start + count];
            count += 1;
        }
        if count > 0 {
            let (ingress, hold_state) = state(start);
            inbox.set_ingress(ingress);
            inbox.set_hold_state(hold_state);
        }
        self.next += count;
        count
    }

    /// Exchanges the held packets with the held packets of another stage. Each stage keeps its own maximum hold time.
    pub(super) fn exchange(&mut self, other: &mut Self) {
        mem::swap(self, other);
        mem::swap(&mut self.longest, &mut other.longest);
    }

    /// Replaces the port numbers of the held packets after a change, and frees the packets whose ingress port was
    /// removed. `ports[n]` is the new number of the port that had the number n, or `None` if the change removed the
    /// port. Returns the number of freed packets.
    pub(super) fn renumber_ports(&mut self, ports: &[Option<u8>], pool: &mut Pool) -> usize {
        let number = |port: u8| ports.get(usize::from(port)).copied().flatten();
        let mut freed = 0;
        for (held, first) in [(&mut self.leaving, self.next), (&mut self.waiting, 0)] {
            let HeldBatch { batch, since, ingress } = &mut **held;
            let mut kept = first;
            for at in first..batch.len() {
                let Some(port) = number(ingress[at]) else {
                    batch.free_one(at, pool);
                    freed += 1;
                    continue;
                };
                // If the egress port was removed, a later stage may still choose another port. If no stage chooses
                // another port, the packet is dropped and counted at its exit, because no port has the number
                // `NO_PORT`.
                batch.set_egress(at, number(batch.egress(at)).unwrap_or(NO_PORT));
                batch.move_within(at, kept);
                (ingress[kept], since[kept]) = (port, since[at]);
                kept += 1;
            }
            batch.forget_from(kept);
        }
        freed
    }

    /// Frees all held packets and returns their number.
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
