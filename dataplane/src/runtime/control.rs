//! How workers are told to stop, and what they let others see.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::telemetry::{Board, Progress};
use crate::units::Ticks;

/// Shared by the workers of a run and whoever watches them.
#[derive(Debug)]
pub(crate) struct Control {
    stop: AtomicBool,
    /// The tick after which workers stop.
    deadline: AtomicU64,
    /// How many packets are received at most; `None`: any number.
    budget: Option<Budget>,
    boards: Box<[Board]>,
}

/// A number of packets that workers receive together.
#[derive(Debug)]
struct Budget {
    /// Not claimed by any worker.
    left: AtomicU64,
    /// Not received yet: what is claimed may still be put back for another worker to receive.
    open: AtomicU64,
}

impl Control {
    pub(crate) fn new(workers: usize, packets: Option<u64>) -> Self {
        Self {
            stop: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            budget: packets.map(|packets| Budget { left: AtomicU64::new(packets), open: AtomicU64::new(packets) }),
            boards: (0..workers).map(|_| Board::default()).collect(),
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether workers were told to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn stop_at(&self, deadline: Ticks) {
        self.deadline.store(deadline.0, Ordering::Relaxed);
    }

    /// Whether a worker is to stop now.
    pub(crate) fn is_over(&self, now: Ticks) -> bool {
        self.is_stopped()
            || now.0 >= self.deadline.load(Ordering::Relaxed)
            || self.budget.as_ref().is_some_and(|budget| budget.open.load(Ordering::Relaxed) == 0)
    }

    /// Takes up to `wanted` packets out of the budget.
    #[inline]
    pub(crate) fn claim(&self, wanted: usize) -> usize {
        let Some(budget) = &self.budget else { return wanted };
        let take = |left: u64| Some(left.saturating_sub(wanted as u64));
        // The closure never refuses.
        let left = budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        (wanted as u64).min(left) as usize
    }

    /// Settles a claim: so many were received, and the rest is put back.
    #[inline]
    pub(crate) fn settle(&self, claimed: usize, received: usize) {
        if let Some(budget) = &self.budget {
            budget.left.fetch_add((claimed - received) as u64, Ordering::Relaxed);
            budget.open.fetch_sub(received as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn board(&self, worker: usize) -> &Board {
        &self.boards[worker]
    }

    /// The sum over all workers.
    pub(crate) fn progress(&self) -> Progress {
        self.boards.iter().map(Board::read).fold(Progress::default(), |sum, one| Progress {
            rx: sum.rx + one.rx,
            tx: sum.tx + one.tx,
            dropped: sum.dropped + one.dropped,
            loops: sum.loops + one.loops,
        })
    }
}
