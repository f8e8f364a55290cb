//! Stops the workers of a run, and collects the progress that workers publish.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::black_box::BlackBox;
use dataplane_core::pipeline::{RunStop, StageMarker};
use dataplane_core::telemetry::{Progress, SharedProgress};
use dataplane_core::units::Ticks;

/// The state shared by the workers of a run and the threads that control them.
#[derive(Debug)]
pub(crate) struct RunControl {
    stop: RunStop,
    /// The tick at which workers stop.
    deadline: AtomicU64,
    /// Whether another program is about to take over the run.
    is_upgrading: AtomicBool,
    /// The packet limit. `None` if there is no limit.
    budget: Option<Budget>,
    /// The boards of all workers that the run can have. A worker that has not started has published nothing.
    boards: Box<[SharedProgress]>,
    threads: Box<[WorkerThread]>,
    /// The progress of the workers that were removed.
    removed: Mutex<Progress>,
    /// The panics of stages after which the run continues.
    failures: Mutex<Vec<String>>,
    /// The rings with the last bursts of the workers. `None` if the config has no black box.
    black_box: Option<Arc<BlackBox>>,
}

/// The thread of a worker, and the state of the thread.
#[derive(Debug)]
pub(crate) struct WorkerThread {
    /// The number of the thread. 0 before the worker has started.
    pub(crate) id: AtomicI32,
    /// The stage that the worker runs.
    pub(crate) marker: Arc<StageMarker>,
    /// The number of times that the watchdog reported the worker.
    pub(crate) stalls: AtomicU64,
    /// Whether the worker is not in its loop: the worker has not started, or has ended. The worker then publishes no
    /// progress.
    pub(crate) has_left: AtomicBool,
    /// Whether a change removes the worker.
    is_leaving: AtomicBool,
}

impl Default for WorkerThread {
    fn default() -> Self {
        Self {
            id: AtomicI32::default(),
            marker: Arc::default(),
            stalls: AtomicU64::default(),
            has_left: AtomicBool::new(true),
            is_leaving: AtomicBool::default(),
        }
    }
}

/// The number of packets that all workers together may still receive.
#[derive(Debug)]
struct Budget {
    /// The number of packets that no worker has claimed. A worker claims packets before it polls.
    left: AtomicU64,
    /// The number of packets that are not received yet, whether claimed or not.
    open: AtomicU64,
}

impl RunControl {
    /// Creates the state of a run that can have up to `workers` workers.
    pub(crate) fn new(workers: usize, packets: Option<u64>, stop: RunStop, black_box: Option<Arc<BlackBox>>) -> Self {
        Self {
            stop,
            deadline: AtomicU64::new(u64::MAX),
            is_upgrading: AtomicBool::default(),
            budget: packets.map(|packets| Budget { left: AtomicU64::new(packets), open: AtomicU64::new(packets) }),
            boards: (0..workers).map(|_| SharedProgress::default()).collect(),
            threads: (0..workers).map(|_| WorkerThread::default()).collect(),
            removed: Mutex::default(),
            failures: Mutex::default(),
            black_box,
        }
    }

    pub(crate) fn black_box(&self) -> Option<&Arc<BlackBox>> {
        self.black_box.as_ref()
    }

    /// Adds a failure after which the run continues. Only called after a panic, because the call takes a lock.
    #[cold]
    pub(crate) fn add_failure(&self, message: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    /// Returns the failures after which the run continued.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn stop(&self) {
        self.stop.set();
    }

    /// Returns `true` if the run was stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// Returns whether another program is about to take over the run.
    pub(crate) fn is_upgrading(&self) -> bool {
        self.is_upgrading.load(Ordering::Relaxed)
    }

    /// Sets whether another program is about to take over the run.
    pub(crate) fn set_upgrading(&self, is_upgrading: bool) {
        self.is_upgrading.store(is_upgrading, Ordering::Relaxed);
    }

    /// Returns `true` if the run has a packet limit.
    pub(crate) fn has_packet_limit(&self) -> bool {
        self.budget.is_some()
    }

    pub(crate) fn stop_at(&self, deadline: Ticks) {
        self.deadline.store(deadline.0, Ordering::Relaxed);
    }

    /// Returns `true` if a worker must stop now: the run was stopped, or a limit is reached.
    pub(crate) fn is_over(&self, now: Ticks) -> bool {
        self.is_stopped()
            || now.0 >= self.deadline.load(Ordering::Relaxed)
            || self.budget.as_ref().is_some_and(|budget| budget.open.load(Ordering::Relaxed) == 0)
    }

    /// Claims up to `wanted` packets from the budget. Returns the number of claimed packets.
    #[inline]
    pub(crate) fn claim(&self, wanted: usize) -> usize {
        let Some(budget) = &self.budget else { return wanted };
        let take = |left: u64| Some(left.saturating_sub(wanted as u64));
        // The closure always returns `Some`.
        let left = budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or(0);
        (wanted as u64).min(left) as usize
    }

    /// Ends a claim: counts the received packets against the packet limit, and returns the unused part of the claim to
    /// the budget.
    #[inline]
    pub(crate) fn settle(&self, claimed: usize, received: usize) {
        if let Some(budget) = &self.budget {
            budget.left.fetch_add((claimed - received) as u64, Ordering::Relaxed);
            budget.open.fetch_sub(received as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn thread(&self, worker: usize) -> &WorkerThread {
        &self.threads[worker]
    }

    /// Returns the maximum number of workers of the run.
    pub(crate) fn capacity(&self) -> usize {
        self.threads.len()
    }

    /// Marks a worker as running. Called before the worker starts its loop.
    pub(crate) fn begin(&self, worker: usize) {
        let thread = self.thread(worker);
        thread.is_leaving.store(false, Ordering::Relaxed);
        thread.has_left.store(false, Ordering::Relaxed);
    }

    /// Requests that a worker ends after it has processed the packets in its queues.
    pub(crate) fn remove(&self, worker: usize) {
        self.thread(worker).is_leaving.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a change removes the worker.
    pub(crate) fn is_leaving(&self, worker: usize) -> bool {
        self.thread(worker).is_leaving.load(Ordering::Relaxed)
    }

    /// Adds the progress of a removed worker to the progress of all removed workers. The worker must have ended.
    pub(crate) fn end(&self, worker: usize) {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        *removed = sum(*removed, self.board(worker).read());
        self.board(worker).publish(Progress::default());
        self.thread(worker).id.store(0, Ordering::Relaxed);
    }

    /// Returns the number of loops that each worker has published, or `None` for a worker that is
    /// not in its loop.
    pub(crate) fn loops(&self) -> impl Iterator<Item = Option<u64>> {
        let workers = self.boards.iter().zip(&self.threads);
        workers.map(|(board, thread)| (!thread.has_left.load(Ordering::Relaxed)).then(|| board.read().loops))
    }

    pub(crate) fn board(&self, worker: usize) -> &SharedProgress {
        &self.boards[worker]
    }

    /// Returns the sums over all workers.
    pub(crate) fn progress(&self) -> Progress {
        let removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        self.boards.iter().map(SharedProgress::read).fold(*removed, sum)
    }
}

fn sum(one: Progress, other: Progress) -> Progress {
    Progress {
        rx: one.rx + other.rx,
        tx: one.tx + other.tx,
        dropped: one.dropped + other.dropped,
        loops: one.loops + other.loops,
    }
}
