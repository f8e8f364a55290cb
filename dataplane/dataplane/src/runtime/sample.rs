//! Samples: the statistics of a worker up to one point in time. The worker fills a sample on its own thread, between
//! two loop iterations, so that the ledger balances.
//!
//! The requester passes an empty sample to the worker, and the worker returns the filled sample. The worker allocates
//! no memory for an answer. The worker checks for a request once in 256 iterations, and after each sleep.
//!
//! To fill the histograms of a sample, the worker exchanges its own histograms for the empty histograms of the sample.
//! After the exchange, the worker records into the histograms that came with the sample. The memory of a sample must
//! therefore be on the worker's NUMA node. A worker has one sample, which the requester sends with each request. A new
//! graph comes with a new sample.
//!
//! A change of the pipeline uses the same channel to send new graphs to the workers. See [`Swap`].
//!
//! A lane is one worker's queue pair and completion queues on one port.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::runtime::lane_swap::{LaneSwap, RetiredLane, ReturnedSlots};
use crate::runtime::packet_observer::PacketObserver;
use crate::runtime::stopwatch::Stopwatch;
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::clock::{ClockSource, StampCounts, Stamper};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{Lane, LaneCounters};
use dataplane_core::pipeline::{CounterReport, Graph, NodeCounters, Stage, Succession};
use dataplane_core::telemetry::{Costs, CounterKind, Latency};
use dataplane_core::units::Ticks;

/// Returns the properties of a worker's completion queues, by port.
pub(crate) fn granted(ports: &[String], lanes: &[Box<dyn Lane>]) -> BTreeMap<String, String> {
    ports.iter().cloned().zip(lanes.iter().map(|lane| lane.granted().to_string())).collect()
}

/// The sources of the timestamps on one lane, and the number of timestamps from each source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    pub(crate) source: ClockSource,
    pub(crate) host: ClockSource,
    pub(crate) counts: StampCounts,
}

impl Stamps {
    const NONE: Self = Self {
        source: ClockSource::None,
        host: ClockSource::None,
        counts: StampCounts { device: 0, host: 0, implausible: 0 },
    };

    pub(crate) fn of(stamper: &Stamper) -> Self {
        Self { source: stamper.source(), host: stamper.host_source(), counts: stamper.counts() }
    }
}

/// The index of a lane, and the error of the verb that failed on the lane.
pub(crate) type LaneError = (usize, VerbError);

/// The counters of the loop itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoopCounters {
    pub(crate) loops: u64,
    pub(crate) idle_loops: u64,
    pub(crate) started: Ticks,
    pub(crate) ended: Ticks,
    pub(crate) fault: Option<LaneError>,
    pub(crate) sleeps: SleepCounters,
}

/// The sleeps of a worker that receives nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SleepCounters {
    pub(crate) sleeps: u64,
    pub(crate) slept: Duration,
    /// The number of measured wake-ups, the sum of their times, and the longest time.
    pub(crate) wakeups: u64,
    pub(crate) wakeup_sum: Duration,
    pub(crate) wakeup_max: Duration,
}

impl SleepCounters {
    pub(crate) fn count(&mut self, time: Duration) {
        self.sleeps += 1;
        self.slept += time;
    }

    /// Counts a wake-up that took this time: from the end of the requested sleep until the worker ran.
    pub(crate) fn measure(&mut self, time: Duration) {
        self.wakeups += 1;
        self.wakeup_sum += time;
        self.wakeup_max = self.wakeup_max.max(time);
    }
}

/// The counters of a worker at one point in time.
#[derive(Clone)]
pub(crate) struct WorkerCounters {
    pub(crate) at: Ticks,
    pub(crate) counts: LoopCounters,
    pub(crate) lanes: Vec<LaneCounters>,
    /// The lanes of removed ports that are still on the worker: the name of the port, and the counters of each lane.
    pub(crate) retiring: Vec<(Arc<str>, LaneCounters)>,
    pub(crate) stamps: Vec<[Stamps; 2]>,
    pub(crate) nodes: Vec<NodeCounters>,
    pub(crate) stages: Vec<StageCounters>,
    /// Whether each lane is connected.
    pub(crate) connected: Vec<bool>,
    /// The number of slots that are not free.
    pub(crate) out: usize,
    /// The number of slots that are posted for receive.
    pub(crate) posted: usize,
}

/// The counters that a stage itself keeps, with their names. The worker fills this value without allocating memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageCounters {
    /// The version of the names. `None` if the names or the values are incomplete, because the memory was too small.
    version: Option<u64>,
    values: Vec<u64>,
    /// All names together, and the end and the kind of each name.
    names: String,
    ends: Vec<(usize, CounterKind)>,
    /// The number of counters, and the total length of their names.
    needed: (usize, usize),
}

impl StageCounters {
    /// Copies the counters of a stage. Copies the names only if they have changed.
    pub(crate) fn fill(&mut self, stage: &dyn Stage) {
        self.values.clear();
        let mut copy = ValueCopy { values: &mut self.values, needed: (0, 0), version: 0 };
        stage.counters(&mut copy);
        let (needed, version) = (copy.needed, copy.version);
        if self.version != Some(version) {
            self.names.clear();
            self.ends.clear();
            stage.counters(&mut NameCopy { names: &mut self.names, ends: &mut self.ends });
        }
        self.needed = needed;
        self.version = (self.values.len() == needed.0 && self.ends.len() == needed.0).then_some(version);
    }

    /// Allocates the memory that the last call of [`StageCounters::fill`] lacked.
    pub(crate) fn grow(&mut self) {
        let (count, length) = self.needed;
        self.values.reserve(count.saturating_sub(self.values.len()));
        self.ends.reserve(count.saturating_sub(self.ends.len()));
        self.names.reserve(length.saturating_sub(self.names.len()));
    }

    /// Returns `true` if the last call of [`StageCounters::fill`] had enough memory.
    pub(crate) fn is_complete(&self) -> bool {
        self.version.is_some()
    }

    /// Copies the counters of a later answer. `other` must be complete. Copies the names only if they have changed.
    fn update(&mut self, other: &Self) {
        if self.version == other.version {
            self.values.clone_from(&other.values);
        } else {
            self.clone_from(other);
        }
    }

    /// Returns the name, the kind and the value of each counter.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, CounterKind, u64)> {
        let mut start = 0;
        let name = move |(end, kind): &(usize, CounterKind)| {
            (self.names.get(std::mem::replace(&mut start, *end)..*end).unwrap_or_default(), *kind)
        };
        self.ends.iter().map(name).zip(&self.values).map(|((name, kind), value)| (name, kind, *value))
    }
}

/// Copies the values of counters into memory that is already allocated.
struct ValueCopy<'a> {
    values: &'a mut Vec<u64>,
    /// The number of counters, and the total length of their names.
    needed: (usize, usize),
    version: u64,
}

impl CounterReport for ValueCopy<'_> {
    fn add(&mut self, name: &str, value: u64) {
        self.needed = (self.needed.0 + 1, self.needed.1 + name.len());
        if self.values.len() < self.values.capacity() {
            self.values.push(value);
        }
    }

    fn set_version(&mut self, version: u64) {
        self.version = version;
    }
}

/// Copies the names and the kinds of counters into memory that is already allocated.
struct NameCopy<'a> {
    names: &'a mut String,
    ends: &'a mut Vec<(usize, CounterKind)>,
}

impl NameCopy<'_> {
    fn add_kind(&mut self, name: &str, kind: CounterKind) {
        let fits = self.names.len() + name.len() <= self.names.capacity();
        if fits && self.ends.len() < self.ends.capacity() {
            self.names.push_str(name);
            self.ends.push((self.names.len(), kind));
        }
    }
}

impl CounterReport for NameCopy<'_> {
    fn add(&mut self, name: &str, _value: u64) {
        self.add_kind(name, CounterKind::Total);
    }

    fn add_entry(&mut self, name: &str, is_named: bool, _value: u64) {
        self.add_kind(name, if is_named { CounterKind::NamedEntry } else { CounterKind::Entry });
    }
}

/// Histograms of packet latency, and the costs of the parts of the loop.
#[derive(Clone)]
pub(crate) struct Times {
    pub(crate) latency: Latency,
    pub(crate) costs: Costs,
}

impl Times {
    /// Creates empty histograms for this number of stages.
    pub(crate) fn new(stages: usize) -> Self {
        Self { latency: Latency::new(), costs: Stopwatch::empty_costs(stages) }
    }

    /// Writes to all memory of the histograms, because the first write decides the NUMA node of a page.
    pub(crate) fn touch(&mut self) {
        std::hint::black_box(&mut *self).clear();
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        self.costs.add(&other.costs);
    }

    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self { latency: self.latency.since(&earlier.latency), costs: self.costs.since(&earlier.costs) }
    }

    /// Converts the times of a graph to the times of another graph. `from` names the stages of the first graph, and
    /// `to` names the stages of the other graph. A stage in `to` gets the costs of the stage in `from` that has the
    /// same name.
    pub(crate) fn for_stages(&self, from: &[String], to: &[String]) -> Self {
        if from == to {
            return self.clone();
        }
        let parts = |stages: &[String]| {
            let parts = Stopwatch::parts(stages.iter().map(String::as_str));
            let mut parts: Vec<(String, bool)> = parts.map(|(name, is_stage)| (name.to_owned(), is_stage)).collect();
            // The last part is the whole iteration, which has no stage.
            parts.pop();
            parts
        };
        let before = parts(from);
        let from: Vec<_> = parts(to).iter().map(|part| before.iter().position(|before| before == part)).collect();
        Self { latency: self.latency.clone(), costs: self.costs.with_parts(&from) }
    }

    fn clear(&mut self) {
        self.latency.clear();
        self.costs.clear();
    }
}

/// Which values of a sample the worker fills in, in ascending order: `Health` < `All`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// All values except the counters that stages define. The sample keeps the earlier values of these counters.
    Health,
    /// All values.
    All,
}

/// The storage for one set of statistics.
pub(crate) struct Sample {
    /// The values that the worker must fill in.
    pub(crate) scope: Scope,
    /// The counters since the start of the worker.
    pub(crate) counters: WorkerCounters,
    /// The times since the previous sample. The worker swaps these histograms with its own histograms, because a copy
    /// would take long.
    pub(crate) times: Times,
}

impl Sample {
    /// Creates an empty sample for a worker. The memory must be on the worker's NUMA node.
    pub(crate) fn new(info: &WorkerInfo) -> Self {
        let (lanes, stages) = (info.ports.len(), info.stages_info.len());
        let counters = WorkerCounters {
            at: Ticks(0),
            counts: LoopCounters::default(),
            lanes: vec![LaneCounters::default(); lanes],
            retiring: Vec::new(),
            stamps: vec![[Stamps::NONE; 2]; lanes],
            nodes: vec![NodeCounters::default(); stages],
            stages: vec![StageCounters::default(); stages],
            connected: vec![true; lanes],
            out: 0,
            posted: 0,
        };
        Self { scope: Scope::All, counters, times: Times::new(stages) }
    }

    /// Prepares the sample for a new graph, so that the sample has room for all counters of the stages that continue or
    /// are replaced. The first answer is then complete. `before` has the last counters of the earlier graph.
    pub(crate) fn expect(&mut self, successions: &[Succession], before: &WorkerCounters) {
        for succession in successions {
            let stages = &mut self.counters.stages;
            let both = stages.get_mut(succession.later).zip(before.stages.get(succession.earlier));
            let Some((stage, before)) = both else { continue };
            if succession.moves {
                stage.clone_from(before);
            } else {
                // The new stage may have more counters than the earlier stage, so double the room.
                stage.needed = (2 * before.needed.0 + 16, 2 * before.needed.1 + 512);
                stage.grow();
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.times.clear();
        self.counters.stages.iter_mut().filter(|stage| !stage.is_complete()).for_each(StageCounters::grow);
    }
}

impl WorkerCounters {
    /// Takes over the counters of a later answer. If the counters of a stage are incomplete, the earlier counters of
    /// this stage remain.
    pub(crate) fn update(&mut self, later: &Self) {
        let mut stages = std::mem::take(&mut self.stages);
        for (stage, later) in stages.iter_mut().zip(&later.stages).filter(|(_, later)| later.is_complete()) {
            stage.update(later);
        }
        *self = Self {
            lanes: later.lanes.clone(),
            retiring: later.retiring.clone(),
            stamps: later.stamps.clone(),
            nodes: later.nodes.clone(),
            stages,
            connected: later.connected.clone(),
            ..*later
        };
    }
}

/// A new graph for a worker. Between two bursts, the worker switches to this graph, stores its earlier graph in this
/// value, and sends the value back. Other threads allocate and free the graphs.
pub(crate) struct Swap {
    /// The number of this exchange of graphs. The first exchange of a run has the number 1.
    pub(crate) exchange: u64,
    pub(crate) graph: Graph,
    pub(crate) stopwatch: Option<Box<Stopwatch>>,
    /// The properties of the worker with the new graph. The worker stores its earlier properties here.
    pub(crate) info: Arc<WorkerInfo>,
    /// The stages of the graph that continue the work of stages of the earlier graph.
    pub(crate) successions: Vec<Succession>,
    /// The new lanes of the worker. `None` if the ports stay the same.
    pub(crate) lanes: Option<Box<LaneSwap>>,
    /// An empty sample for the new graph. The worker fills the sample after the switch.
    pub(crate) sample: Box<Sample>,
}

/// Graphs of workers, in the boxes that the control thread and the workers send to each other.
pub(crate) type Graphs = Vec<Box<Swap>>;

/// The saved states of the stages of one worker, with the names of the stages.
pub(crate) type SavedStates = Vec<(String, Vec<u8>)>;

/// The posted buffers of the queues of one worker, each with the index of the port.
pub(crate) type PostedBuffers = Vec<(usize, Vec<u32>)>;

/// The answer of a worker that has paused.
#[derive(Debug, Default)]
pub(crate) struct PausedWorker {
    /// Whether a stage has panicked while it saved its state. The worker then does not pause.
    pub(crate) has_failed: bool,
    /// The states of the stages.
    pub(crate) states: SavedStates,
    /// The index of a port on which sends have not completed in time.
    pub(crate) sending: Option<usize>,
}

/// The parts of a worker that another program takes over. The worker with the same number in that program gets these
/// parts.
#[derive(Debug, Default)]
pub(crate) struct HandedWorker {
    pub(crate) states: SavedStates,
    /// Only for ports that share the packet memory.
    pub(crate) posted: PostedBuffers,
}

/// A message to a worker. The worker sends the message back as the answer.
pub(crate) enum Message {
    /// An empty sample that the worker fills.
    Sample(Box<Sample>),
    /// A new graph for the worker. In the answer, the value contains the earlier graph.
    Swap(Box<Swap>),
    /// A new observer for the worker, or `None` to remove the observer. In the answer, the value contains the earlier
    /// observer.
    Observer(Option<Box<PacketObserver>>),
    /// An empty list with room for the retired lanes of the worker. In the answer, the list contains the lanes that can
    /// be stopped: their sends have completed, have failed, or have taken too long.
    Retired(Vec<RetiredLane>),
    /// The buffers of a closed lane. In the answer, the value contains no buffers.
    Slots(Box<ReturnedSlots>),
    /// A request to pause and to save the states of the stages. After the answer, the worker processes no packets.
    Pause(PausedWorker),
    /// A request to a paused worker to stop the queues of the ports with these indices, so that another program can
    /// take over the queues ([`dataplane_soft::upgrade::HandOver::detach`]).
    Release(Vec<usize>),
    /// A request to a paused worker to continue. The value is whether another program may have changed the packet
    /// memory.
    Resume(bool),
}

/// The capacity of each direction of the channel. At most eight messages are in progress: a sample, a new graph, an
/// observer, a list of retired lanes, the buffers of a lane, and three messages about a pause.
const MESSAGES: usize = 8;

/// The worker's end of the channel: receives requests, and sends a reply to each request.
pub(crate) struct WorkerEnd {
    asked: Consumer<Message>,
    filled: Producer<Message>,
}

/// The requester's end of the channel: sends requests, and receives the replies. After this end is dropped, the worker
/// gets no more requests.
pub(crate) struct RequesterEnd {
    empty: Producer<Message>,
    answers: Consumer<Message>,
}

/// Creates a channel. Empty samples and new graphs go to the worker. Filled samples and earlier graphs come back.
pub(crate) fn channel() -> (RequesterEnd, WorkerEnd) {
    let (empty, asked) = RingBuffer::new(MESSAGES);
    let (filled, answers) = RingBuffer::new(MESSAGES);
    (RequesterEnd { empty, answers }, WorkerEnd { asked, filled })
}

impl WorkerEnd {
    /// Returns the next request.
    #[inline]
    pub(crate) fn asked(&mut self) -> Option<Message> {
        self.asked.pop().ok()
    }

    /// Answers a request.
    pub(crate) fn give(&mut self, answer: Message) {
        // The ring has room for the answers to all requests.
        let _ = self.filled.push(answer);
    }
}

impl RequesterEnd {
    /// Sends a request. A worker that has ended gets no request.
    pub(crate) fn ask(&mut self, request: Message) {
        // The ring has room for all requests in progress, so a full ring is a bug.
        if self.empty.push(request).is_err() && !self.is_over() {
            tracing::error!("a request to a worker is lost, because the ring of the worker is full");
        }
    }

    /// Returns the next answer, or `None` if there is no answer yet.
    pub(crate) fn answer(&mut self) -> Option<Message> {
        self.answers.pop().ok()
    }

    /// Returns `true` if the worker has ended and will not answer any more.
    pub(crate) fn is_over(&self) -> bool {
        self.empty.is_abandoned()
    }
}
