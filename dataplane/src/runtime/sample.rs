//! What a worker has done so far: taken on its own thread, between two turns of its loop, so that the ledger adds up.
//!
//! Whoever wants to know gives an empty sample, and the worker gives it back filled. It does not allocate for it, and a
//! loop in 256 looks whether it was asked. Samples are memory of the worker's thread, for what is in them is what it goes on to
//! write into.

use std::collections::BTreeMap;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::clock::{ClockSource, StampCounts, Stamper};
use crate::lane::{Lane, LaneCounters};
use crate::mem::PageKind;
use crate::pipeline::{NodeCounters, Program, Target};
use crate::runtime::report::{self, Outcome};
use crate::runtime::stopwatch::Stopwatch;
use crate::runtime::worker::{Counts, Worker};
use crate::telemetry::{Costs, Latency, StageReport, Totals, WorkerReport};
use crate::units::{CoreId, Ticks};

/// What of a worker stays as it is while it runs.
pub(crate) struct Facts {
    pub(crate) core: CoreId,
    pub(crate) slots: u32,
    pub(crate) pages: PageKind,
    /// By port.
    pub(crate) granted: BTreeMap<String, String>,
    pub(crate) ports: Vec<String>,
    pub(crate) shapes: Vec<Shape>,
}

/// What is to be known of a stage, kept aside when the program gets its memory.
pub(crate) struct Shape {
    name: String,
    kind: String,
    outputs: Vec<(String, Target)>,
    reasons: Vec<&'static str>,
}

impl Shape {
    pub(crate) fn of(program: &Program) -> Vec<Self> {
        let shape = |node: &crate::pipeline::NodeSpec| Self {
            name: node.name.clone(),
            kind: node.kind.clone(),
            outputs: node.outputs.clone(),
            reasons: node.reasons.clone(),
        };
        program.nodes().iter().map(shape).collect()
    }
}

/// What the completion queues of a worker were granted, by port.
pub(crate) fn granted(ports: &[String], lanes: &[Box<dyn Lane>]) -> BTreeMap<String, String> {
    ports.iter().cloned().zip(lanes.iter().map(|lane| lane.granted().to_string())).collect()
}

/// How many stamps were taken from where.
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

    fn of(stamper: &Stamper) -> Self {
        Self { source: stamper.source(), host: stamper.host_source(), counts: stamper.counts() }
    }
}

/// The counters of a worker at one time.
#[derive(Clone)]
pub(crate) struct Counters {
    pub(crate) at: Ticks,
    counts: Counts,
    lanes: Vec<LaneCounters>,
    stamps: Vec<[Stamps; 2]>,
    nodes: Vec<NodeCounters>,
    /// Slots that are not free, and of them those that wait to be received into.
    out: usize,
    posted: usize,
}

/// How long packets took, and parts of the loop.
#[derive(Clone)]
pub(crate) struct Times {
    pub(crate) latency: Latency,
    pub(crate) costs: Costs,
}

impl Times {
    /// Of nothing, with so many stages.
    pub(crate) fn new(stages: usize) -> Self {
        Self { latency: Latency::new(), costs: Stopwatch::none(stages) }
    }

    /// Writes to all of it: memory is on the node of whoever wrote first.
    fn touch(&mut self) {
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

/// Room for what a worker has done.
pub(crate) struct Sample {
    /// Since its start.
    pub(crate) counters: Counters,
    /// Since the sample before: they change hands, as it would take long to copy them.
    pub(crate) times: Times,
}

impl Sample {
    /// An empty one for such a worker, to be made on its thread.
    pub(crate) fn new(facts: &Facts) -> Self {
        let (lanes, stages) = (facts.ports.len(), facts.shapes.len());
        let counters = Counters {
            at: Ticks(0),
            counts: Counts::default(),
            lanes: vec![LaneCounters::default(); lanes],
            stamps: vec![[Stamps::NONE; 2]; lanes],
            nodes: vec![NodeCounters::default(); stages],
            out: 0,
            posted: 0,
        };
        Self { counters, times: Times::new(stages) }
    }

    pub(crate) fn clear(&mut self) {
        self.times.clear();
    }

    /// Fills it. It must be empty.
    pub(crate) fn take(&mut self, worker: &mut Worker, at: Ticks) {
        let Counters { at: taken, counts, lanes, stamps, nodes, out, posted } = &mut self.counters;
        (*taken, *counts) = (at, worker.counts);
        for ((lane, counters), stamps) in worker.lanes.iter().zip(lanes).zip(stamps) {
            counters.clone_from(lane.counters());
            *stamps = lane.stampers().map(Stamps::of);
        }
        for ((_, counters), copy) in worker.graph.counters().zip(nodes) {
            copy.clone_from(counters);
        }
        *out = worker.pool.layout().count as usize - worker.pool.available();
        *posted = worker.lanes.iter().map(|lane| lane.posted()).sum();
        std::mem::swap(&mut self.times.latency, &mut worker.latency.0);
        if let Some(watch) = &mut worker.stopwatch {
            std::mem::swap(&mut self.times.costs, watch.costs());
        }
    }
}

impl Counters {
    /// In the words of a report.
    pub(crate) fn outcome(&self, facts: &Facts) -> Outcome {
        let stage = |(shape, counters): (&Shape, &NodeCounters)| -> StageReport {
            report::stage_report((&shape.name, &shape.kind), counters, &shape.outputs, &shape.reasons)
        };
        let stages: Vec<StageReport> = facts.shapes.iter().zip(&self.nodes).map(stage).collect();
        let named: Vec<(&str, &LaneCounters)> = facts.ports.iter().map(String::as_str).zip(&self.lanes).collect();
        let ledger = report::ledger(&stages, &named, (self.out - self.posted.min(self.out)) as u64);
        let bytes = |of: fn(&LaneCounters) -> u64| self.lanes.iter().map(of).sum();
        let report = WorkerReport {
            core: facts.core.0,
            loops: self.counts.loops,
            idle_loops: self.counts.idle_loops,
            bytes: Totals { rx: bytes(|lane| lane.rx_bytes), tx: bytes(|lane| lane.tx_bytes) },
            ledger,
            slots: u64::from(facts.slots),
            slots_missing: 0,
            pages: facts.pages.to_string(),
            granted: facts.granted.clone(),
            error: None,
        };
        Outcome {
            report,
            lanes: self.lanes.clone(),
            stages,
            stamps: self.stamps.iter().map(report::stamps).collect(),
            started: self.counts.started,
            ended: self.at,
            errors: Vec::new(),
        }
    }

    /// Slots that are not free.
    pub(crate) fn out(&self) -> usize {
        self.out
    }
}

/// The worker's end.
pub(crate) struct Reply {
    asked: Consumer<Box<Sample>>,
    filled: Producer<Box<Sample>>,
}

/// The end of whoever asks. Dropping it leaves the worker unasked.
pub(crate) struct Request {
    empty: Producer<Box<Sample>>,
    answers: Consumer<Box<Sample>>,
}

/// What a worker that begins gives to whoever will ask it. To be called on its thread, by whose first write the memory of its
/// times is on its node for good.
pub(crate) fn first(worker: &mut Worker, facts: &Facts) -> Box<Sample> {
    // What the worker has changes hands with the first answer.
    let (mut sample, mut own) = (Box::new(Sample::new(facts)), Times::new(facts.shapes.len()));
    own.touch();
    sample.times.touch();
    worker.latency.0 = own.latency;
    if let Some(watch) = &mut worker.stopwatch {
        *watch.costs() = own.costs;
    }
    sample
}

/// Both ends of a way to ask.
pub(crate) fn channel() -> (Request, Reply) {
    let (empty, asked) = RingBuffer::new(1);
    let (filled, answers) = RingBuffer::new(1);
    (Request { empty, answers }, Reply { asked, filled })
}

impl Reply {
    /// What is to be filled, if somebody asks.
    #[inline]
    pub(crate) fn asked(&mut self) -> Option<Box<Sample>> {
        self.asked.pop().ok()
    }

    /// The sample that was asked for.
    pub(crate) fn give(&mut self, sample: Box<Sample>) {
        // One goes round, so there is room for it.
        let _ = self.filled.push(sample);
    }
}

impl Request {
    /// Asks. There must be no other sample on its way.
    pub(crate) fn ask(&mut self, empty: Box<Sample>) {
        let _ = self.empty.push(empty);
    }

    /// The answer, if it is there.
    pub(crate) fn answer(&mut self) -> Option<Box<Sample>> {
        self.answers.pop().ok()
    }

    /// Whether the worker has ended, and will not answer any more.
    pub(crate) fn is_over(&self) -> bool {
        self.empty.is_abandoned()
    }
}
