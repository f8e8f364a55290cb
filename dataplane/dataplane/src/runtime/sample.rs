//! Samples: the statistics of a worker up to one point in time. The worker fills a sample on its own thread, between
//! two loop iterations, so that the ledger balances.
//!
//! The requester passes an empty sample to the worker, and the worker returns the filled sample. The worker allocates
//! no memory for an answer. The worker checks for a request once in 256 iterations, and after each sleep.
//!
//! To fill the histograms of a sample, the worker exchanges its own histograms for the empty histograms of the sample.
//! After the exchange, the worker records into the histograms that came with the sample. The memory of a sample must
//! therefore be on the worker's NUMA node. The worker's thread allocates the only sample once, before the loop starts.
//! The requester sends this sample again with each request.
//!
//! A lane is one worker's queue pair and completion queues on one port.

use std::collections::BTreeMap;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::runtime::stopwatch::Stopwatch;
use dataplane_core::clock::{ClockSource, StampCounts, Stamper};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{Lane, LaneCounters};
use dataplane_core::mem::PageKind;
use dataplane_core::pipeline::{NodeCounters, Program, Stage, Target};
use dataplane_core::telemetry::{Costs, Latency};
use dataplane_core::units::{CoreId, Ticks};

/// The properties of a worker that do not change while it runs.
pub(crate) struct WorkerInfo {
    pub(crate) core: CoreId,
    pub(crate) slots: u32,
    pub(crate) pages: PageKind,
    /// The properties of the completion queues, by port.
    pub(crate) granted: BTreeMap<String, String>,
    pub(crate) ports: Vec<String>,
    pub(crate) stages_info: Vec<ReportedStage>,
}

/// The properties of a stage that the report needs. The runtime copies these properties before the program moves into
/// the worker.
pub(crate) struct ReportedStage {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) outputs: Vec<(String, Target)>,
    pub(crate) reasons: Vec<&'static str>,
}

impl ReportedStage {
    pub(crate) fn of(program: &Program) -> Vec<Self> {
        let shape = |node: &dataplane_core::pipeline::NodeSpec| Self {
            name: node.name.clone(),
            kind: node.kind.clone(),
            outputs: node.outputs.clone(),
            reasons: node.reasons.clone(),
        };
        program.nodes().iter().map(shape).collect()
    }
}

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
}

/// The counters of a worker at one point in time.
#[derive(Clone)]
pub(crate) struct Counters {
    pub(crate) at: Ticks,
    pub(crate) counts: LoopCounters,
    pub(crate) lanes: Vec<LaneCounters>,
    pub(crate) stamps: Vec<[Stamps; 2]>,
    pub(crate) nodes: Vec<NodeCounters>,
    pub(crate) stages: Vec<StageCounters>,
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
    /// All names together, and the end of each name.
    names: String,
    ends: Vec<usize>,
    /// The number of counters, and the total length of their names.
    needed: (usize, usize),
}

impl StageCounters {
    /// Copies the counters of a stage. Copies the names only if they have changed.
    pub(crate) fn fill(&mut self, stage: &dyn Stage) {
        let version = stage.counters_version();
        let Self { values, names, ends, .. } = self;
        let is_named = self.version == Some(version);
        values.clear();
        if !is_named {
            names.clear();
            ends.clear();
        }
        let (mut count, mut length) = (0, 0);
        stage.counters(&mut |name, value| {
            (count, length) = (count + 1, length + name.len());
            if values.len() < values.capacity() {
                values.push(value);
            }
            if !is_named && ends.len() < ends.capacity() && names.len() + name.len() <= names.capacity() {
                names.push_str(name);
                ends.push(names.len());
            }
        });
        self.needed = (count, length);
        self.version = (values.len() == count && ends.len() == count).then_some(version);
    }

    /// Allocates the memory that the last call of [`StageCounters::fill`] lacked.
    pub(crate) fn grow(&mut self) {
        let (count, length) = self.needed;
        self.values.reserve(count.saturating_sub(self.values.len()));
        self.ends.reserve(count.saturating_sub(self.ends.len()));
        self.names.reserve(length.saturating_sub(self.names.len()));
    }

    /// Whether the last call of [`StageCounters::fill`] had enough memory.
    pub(crate) fn is_complete(&self) -> bool {
        self.version.is_some()
    }

    /// Takes over complete counters.
    fn update(&mut self, other: &Self) {
        if self.version == other.version {
            self.values.clone_from(&other.values);
        } else {
            self.clone_from(other);
        }
    }

    /// Returns the name and the value of each counter.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let mut start = 0;
        let name = move |end: &usize| self.names.get(std::mem::replace(&mut start, *end)..*end).unwrap_or_default();
        self.ends.iter().map(name).zip(self.values.iter().copied())
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

    fn clear(&mut self) {
        self.latency.clear();
        self.costs.clear();
    }
}

/// The storage for one set of statistics.
pub(crate) struct Sample {
    /// The counters since the start of the worker.
    pub(crate) counters: Counters,
    /// The times since the previous sample. The worker swaps these histograms with its own histograms, because a copy
    /// would take long.
    pub(crate) times: Times,
}

impl Sample {
    /// Creates an empty sample for a worker. Must be called on the worker's thread.
    pub(crate) fn new(info: &WorkerInfo) -> Self {
        let (lanes, stages) = (info.ports.len(), info.stages_info.len());
        let counters = Counters {
            at: Ticks(0),
            counts: LoopCounters::default(),
            lanes: vec![LaneCounters::default(); lanes],
            stamps: vec![[Stamps::NONE; 2]; lanes],
            nodes: vec![NodeCounters::default(); stages],
            stages: vec![StageCounters::default(); stages],
            out: 0,
            posted: 0,
        };
        Self { counters, times: Times::new(stages) }
    }

    pub(crate) fn clear(&mut self) {
        self.times.clear();
        self.counters.stages.iter_mut().filter(|stage| !stage.is_complete()).for_each(StageCounters::grow);
    }
}

impl Counters {
    /// Takes over the counters of a later answer. If the counters of a stage are incomplete, the earlier counters of
    /// this stage remain.
    pub(crate) fn update(&mut self, later: &Self) {
        let mut stages = std::mem::take(&mut self.stages);
        for (stage, later) in stages.iter_mut().zip(&later.stages).filter(|(_, later)| later.is_complete()) {
            stage.update(later);
        }
        *self = Self {
            lanes: later.lanes.clone(),
            stamps: later.stamps.clone(),
            nodes: later.nodes.clone(),
            stages,
            ..*later
        };
    }
}

/// The worker's end of the channel for samples.
pub(crate) struct Reply {
    asked: Consumer<Box<Sample>>,
    filled: Producer<Box<Sample>>,
}

/// The requester's end of the channel for samples. After this end is dropped, the worker gets no more requests.
pub(crate) struct Request {
    empty: Producer<Box<Sample>>,
    answers: Consumer<Box<Sample>>,
}

/// Creates a channel for samples. Empty samples go to the worker, and filled samples come back.
pub(crate) fn channel() -> (Request, Reply) {
    let (empty, asked) = RingBuffer::new(1);
    let (filled, answers) = RingBuffer::new(1);
    (Request { empty, answers }, Reply { asked, filled })
}

impl Reply {
    /// Returns the sample to fill, if there is a request.
    #[inline]
    pub(crate) fn asked(&mut self) -> Option<Box<Sample>> {
        self.asked.pop().ok()
    }

    /// Returns the filled sample to the requester.
    pub(crate) fn give(&mut self, sample: Box<Sample>) {
        // Only one sample is in circulation, so the ring has room.
        let _ = self.filled.push(sample);
    }
}

impl Request {
    /// Sends a request. No other request may be in progress.
    pub(crate) fn ask(&mut self, empty: Box<Sample>) {
        let _ = self.empty.push(empty);
    }

    /// Returns the answer, if there is one.
    pub(crate) fn answer(&mut self) -> Option<Box<Sample>> {
        self.answers.pop().ok()
    }

    /// Returns `true` if the worker has ended and will not answer any more.
    pub(crate) fn is_over(&self) -> bool {
        self.empty.is_abandoned()
    }
}
