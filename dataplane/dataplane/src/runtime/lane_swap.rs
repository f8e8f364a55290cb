//! The exchange of the lanes of a worker, when a change adds or removes ports.
//!
//! A control thread opens the lanes of added ports, with a detached pool, so these lanes have posted no receives. The
//! worker switches to its new lanes together with its new graph, between two bursts. The lanes of removed ports retire
//! in three steps, so that the worker never waits for a device:
//!
//! 1. The worker does not receive from a retiring lane any more. At each housekeeping, the worker reclaims completed
//!    sends. The lane can be stopped when no send is in progress, after an error, or after `drain_timeout`.
//! 2. The worker hands the lane over to a control thread ([`RetiredLane`]). This thread stops the lane and takes back
//!    its buffers, because a stop may take milliseconds.
//! 3. The worker gets the buffers back ([`ReturnedSlots`]).

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dataplane_core::lane::{Lane, LaneCounters, LatencySink};
use dataplane_core::mem::{BatchMemory, Pool};
use dataplane_core::units::Period;

/// The wait between two checks whether a device has returned the buffers of a stopped lane.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The lane of a worker on a port after a change.
pub(crate) enum LaneSource {
    /// The lane with this index continues.
    Kept(usize),
    /// A new lane. `None` after the worker has taken the lane.
    Added(Option<Box<dyn Lane>>),
}

/// The lanes of a worker after a change of the ports. The control thread has allocated all memory, so that the worker
/// neither allocates nor frees memory.
pub(crate) struct LaneSwap {
    /// The lane of each port.
    sources: Vec<LaneSource>,
    /// The indices of the lanes that receive packets.
    inputs: Vec<usize>,
    /// The new number of each earlier port, or `None` for a removed port.
    numbers: Vec<Option<u8>>,
    /// The names of the earlier ports.
    names: Vec<Arc<str>>,
    /// An empty list with room for the lanes after the change.
    lanes: Vec<Box<dyn Lane>>,
    /// An empty list with room for the lanes before the change.
    earlier: Vec<Option<Box<dyn Lane>>>,
    /// An empty list with room for the retiring lanes of this change and of earlier changes.
    retiring: Vec<RetiringLane>,
}

impl LaneSwap {
    /// Prepares an exchange. `names` has the names of the earlier ports, and `sources` and `inputs` describe the new
    /// lanes. At most `retiring` lanes of earlier changes are still retiring.
    pub(crate) fn new(names: &[String], sources: Vec<LaneSource>, inputs: Vec<usize>, retiring: usize) -> Self {
        let is_of = |source: &LaneSource, port: usize| matches!(source, LaneSource::Kept(kept) if *kept == port);
        let number = |port: usize| {
            let number = sources.iter().position(|source| is_of(source, port))?;
            u8::try_from(number).ok()
        };
        let numbers: Vec<Option<u8>> = (0..names.len()).map(number).collect();
        let removed = numbers.iter().filter(|number| number.is_none()).count();
        Self {
            lanes: Vec::with_capacity(sources.len()),
            earlier: Vec::with_capacity(names.len()),
            retiring: Vec::with_capacity(retiring + removed),
            sources,
            inputs,
            numbers,
            names: names.iter().map(|name| name.as_str().into()).collect(),
        }
    }

    /// Returns the new number of each earlier port, or `None` for a removed port.
    pub(crate) fn numbers(&self) -> &[Option<u8>] {
        &self.numbers
    }

    /// Returns the number of lanes that retire.
    pub(crate) fn removed(&self) -> usize {
        self.numbers.iter().filter(|number| number.is_none()).count()
    }

    /// Replaces the lanes of a worker. A removed lane retires for at most `drain_timeout`.
    pub(crate) fn exchange(
        &mut self,
        lanes: &mut Vec<Box<dyn Lane>>,
        inputs: &mut Vec<usize>,
        retiring: &mut Vec<RetiringLane>,
        drain_timeout: Duration,
    ) {
        let Self { sources, earlier, lanes: next, names, .. } = self;
        earlier.extend(lanes.drain(..).map(Some));
        next.extend(sources.iter_mut().filter_map(|source| match source {
            LaneSource::Kept(lane) => earlier.get_mut(*lane)?.take(),
            LaneSource::Added(lane) => lane.take(),
        }));
        std::mem::swap(lanes, next);
        std::mem::swap(inputs, &mut self.inputs);
        self.retiring.append(retiring);
        let deadline = Period(drain_timeout).after_now();
        for (name, lane) in names.iter().zip(earlier) {
            self.retiring.extend(lane.take().map(|lane| RetiringLane { name: name.clone(), lane, deadline }));
        }
        std::mem::swap(retiring, &mut self.retiring);
    }
}

/// A lane of a removed port that is not stopped yet, because sends may be in progress.
pub(crate) struct RetiringLane {
    /// The name of the port.
    pub(crate) name: Arc<str>,
    pub(crate) lane: Box<dyn Lane>,
    /// The time at which the lane is stopped even if sends are in progress. The packets of these sends count as
    /// dropped.
    deadline: Instant,
}

impl RetiringLane {
    #[cfg(test)]
    pub(crate) fn new(name: &str, lane: Box<dyn Lane>) -> Self {
        Self { name: name.into(), lane, deadline: Instant::now() }
    }

    /// Reclaims completed sends. Returns `true` if the lane can be stopped.
    pub(crate) fn advance(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> bool {
        self.lane.reap(pool, latency).is_err() || self.lane.sending() == 0 || Instant::now() >= self.deadline
    }

    /// Hands the lane over to a control thread.
    pub(crate) fn into_retired(mut self) -> RetiredLane {
        self.lane.release_claim();
        let (posted, counters) = (self.lane.posted(), self.lane.counters().clone());
        RetiredLane { name: self.name, lane: self.lane, posted, counters }
    }
}

/// A lane that a worker has handed over to a control thread.
pub(crate) struct RetiredLane {
    pub(crate) name: Arc<str>,
    lane: Box<dyn Lane>,
    /// The number of posted receives at the time of the hand-over.
    pub(crate) posted: usize,
    /// The counters at the time of the hand-over.
    pub(crate) counters: LaneCounters,
}

impl RetiredLane {
    /// Stops the lane, and takes back its buffers. `memory` is the memory of the worker. Waits for the device at most
    /// `drain_timeout`.
    pub(crate) fn close(self, memory: &BatchMemory, drain_timeout: Duration) -> ReturnedSlots {
        let Self { name, mut lane, posted, counters } = self;
        let mut pool = Pool::detached(memory);
        let deadline = Period(drain_timeout).after_now();
        let sending = lane.sending();
        // `stop` fails only if the queue pair is already stopped.
        let _ = lane.stop();
        while lane.drain(&mut pool).is_ok_and(|left| left > 0) && Instant::now() < deadline {
            thread::sleep(DRAIN_POLL_INTERVAL);
        }
        lane.reset_and_reclaim(&mut pool);
        let (left, sends_left) = (lane.posted(), lane.sending());
        if left + sends_left > 0 {
            tracing::error!(
                port = &*name,
                "the device of the removed port `{name}` keeps {} buffers of a worker, so the worker has fewer buffers \
                 until the end of the run; help: restart the program if ports lose packets because buffers are missing",
                left + sends_left
            );
        }
        let last = lane.counters().clone();
        drop(lane);
        let (receives, sends) = (posted.saturating_sub(left), sending.saturating_sub(sends_left));
        ReturnedSlots { name, pool, receives, sends, before: counters, last }
    }
}

/// The buffers of a closed lane, which return to their worker.
pub(crate) struct ReturnedSlots {
    pub(crate) name: Arc<str>,
    pub(crate) pool: Pool,
    /// The number of posted receives whose buffers the device has returned.
    pub(crate) receives: usize,
    /// The number of sends that have ended since the hand-over.
    pub(crate) sends: usize,
    /// The counters of the lane at the time of the hand-over.
    pub(crate) before: LaneCounters,
    /// The counters of the lane when it was closed.
    pub(crate) last: LaneCounters,
}
