//! Snapshots: the statistics of a run up to one point in time, collected from the workers.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::runtime::lane_swap::{RetiredLane, ReturnedSlots};
use crate::runtime::packet_observer::PacketObserver;
use crate::runtime::removed_workers::RemovedWorkers;
use crate::runtime::report::{self, EarlierCounts, LateSlots, Outcome};
use crate::runtime::sample::{Graphs, Message, PausedWorker, RequesterEnd, Sample, Scope, Swap, Times, WorkerCounters};
use crate::runtime::stopwatch::Stopwatch;
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::clock::Timebase;
use dataplane_core::lane::LaneCounters;
use dataplane_core::telemetry::{CostSum, Latency, Recent, Report, StageReport};
use dataplane_core::units::Ticks;

/// The maximum time that the sampler waits for the workers. A worker answers within 256 iterations, or when it wakes
/// up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The statistics of a run up to one point in time.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) report: Report,
    pub(crate) times: Times,
    pub(crate) timebase: Timebase,
    pub(crate) workers: Vec<WorkerState>,
    /// For each worker that did not answer, the stage that the worker runs. `None` for the other workers, and if the
    /// worker runs no stage.
    pub(crate) at_work: Vec<Option<String>>,
    /// For each worker, the number of times that the watchdog reported the worker.
    pub(crate) stalls: Vec<u64>,
    pub(crate) ports: Vec<SnapshotPort>,
    /// The drop reasons and the outputs of each stage in the report.
    pub(crate) stages: Vec<SnapshotStage>,
    /// The memory of the tables of each stage in bytes.
    pub(crate) stage_memory: Vec<(String, u64)>,
}

/// The facts about a port that are not in the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotPort {
    /// Whether the pipeline receives packets from the port or sends packets on the port.
    pub(crate) is_used: bool,
    /// Whether the run is ready only while the link of the port is up.
    pub(crate) is_required: bool,
    /// The number of lanes that are not connected to their peer.
    pub(crate) unconnected: u64,
    /// The names of all counters of the device.
    pub(crate) counters: Vec<&'static str>,
}

/// The names of the counters of a stage. The names are known before the first packet.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotStage {
    pub(crate) drops: BTreeSet<String>,
    pub(crate) outputs: BTreeSet<String>,
}

/// Whether a worker answered the request for a snapshot. A worker answers between two iterations of its loop, so an
/// answer proves that the worker makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// The worker answered.
    Running,
    /// The worker did not answer within a second.
    Late,
    /// The worker has ended.
    Ended,
}

impl Snapshot {
    /// Returns the statistics since the start of the run, in the form of the final report. `held` of the ledger also
    /// counts packets that wait for a send completion.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the latency of the packets that were sent since the start of the run.
    pub fn latency(&self) -> &Latency {
        &self.times.latency
    }

    /// Returns the state of each worker.
    pub fn workers(&self) -> &[WorkerState] {
        &self.workers
    }

    /// Creates a snapshot with a report, latencies, and the ticks and packets of the parts of one measured loop. A tick
    /// is a nanosecond.
    #[cfg(test)]
    pub(crate) fn of_report(report: Report, latency: Latency, received: u64, parts: &[(u64, u64)]) -> Self {
        let mut times = Times::new(report.stages.len());
        times.latency = latency;
        times.costs.record(received, parts);
        let timebase = dataplane_core::clock::HostClock::manual().timebase();
        let (workers, ports) = (vec![WorkerState::Running; report.workers.len()], report.ports.len());
        let port = SnapshotPort { is_used: true, is_required: true, ..SnapshotPort::default() };
        let stages = vec![SnapshotStage::default(); report.stages.len()];
        let (at_work, stalls) = (vec![None; workers.len()], vec![0; workers.len()]);
        let (ports, stage_memory) = (vec![port; ports], Vec::new());
        Self { report, times, timebase, workers, at_work, stalls, ports, stages, stage_memory }
    }

    /// Returns a copy without the counters that stages define. These counters may need much memory, and
    /// [`Snapshot::since`] does not read them in the earlier snapshot.
    pub(crate) fn without_stage_counters(&self) -> Self {
        let stage = |stage: &StageReport| StageReport {
            name: stage.name.clone(),
            kind: stage.kind.clone(),
            ..StageReport::default()
        };
        let Report { ports, removed_ports, stages, workers, ledger, errors, .. } = &self.report;
        let report = Report {
            ledger: ledger.clone(),
            latency_ns: self.report.latency_ns.clone(),
            costs: Vec::new(),
            ports: ports.clone(),
            removed_ports: removed_ports.clone(),
            stages: stages.iter().map(stage).collect(),
            workers: workers.clone(),
            errors: errors.clone(),
            removed_workers: self.report.removed_workers.clone(),
            ..self.report
        };
        Self {
            report,
            times: self.times.clone(),
            timebase: self.timebase,
            workers: self.workers.clone(),
            at_work: self.at_work.clone(),
            stalls: self.stalls.clone(),
            ports: self.ports.clone(),
            stages: Vec::new(),
            stage_memory: Vec::new(),
        }
    }

    /// Sets the number of log messages that were lost.
    pub(crate) fn set_logs_lost(&mut self, lost: u64) {
        self.report.logs_lost = lost;
    }

    /// Returns the costs of each part of the loop since the start: the name of the part, whether the part is a stage,
    /// the sums, and the sum of the times in seconds.
    pub(crate) fn cost_sums(&self) -> Vec<(&str, bool, CostSum, f64)> {
        let parts = Stopwatch::parts(report::measured_stages(&self.times.costs, &self.report.stages));
        let sums = self.times.costs.sums().into_iter();
        parts
            .zip(sums)
            .map(|((part, is_stage), sum)| (part, is_stage, sum, self.timebase.nanos(Ticks(sum.ticks)).0 as f64 / 1e9))
            .collect()
    }

    /// Returns the names of the stages whose costs are in `times`.
    fn measured_stages(&self) -> Vec<String> {
        report::measured_stages(&self.times.costs, &self.report.stages).map(str::to_owned).collect()
    }

    /// Returns the changes since an earlier snapshot of the same run. With `None`, returns the changes since the start.
    pub fn since(&self, earlier: Option<&Self>) -> Recent {
        let times = match earlier {
            None => self.times.clone(),
            Some(earlier) => {
                self.times.since(&earlier.times.for_stages(&earlier.measured_stages(), &self.measured_stages()))
            }
        };
        let mut recent = Recent::between(earlier.map(Self::report), &self.report);
        recent.latency_ns = times.latency.report();
        recent.costs = report::costs(&times.costs, &self.report.stages, &self.timebase);
        recent
    }
}

/// Collects statistics from the workers of a run, and exchanges graphs with the workers.
pub(crate) struct Sampler {
    workers: Vec<SampledWorker>,
    removed: RemovedWorkers,
    /// The sum of the times of removed workers, and the names of the stages to which these times belong.
    removed_times: (Vec<String>, Times),
    /// The time at which the sampler sent the current requests. `None` if no request is in progress.
    since: Option<Instant>,
    /// The scope of the current requests.
    scope: Scope,
    /// The number of exchanges so far.
    exchanges: u64,
}

/// The answers of all workers.
pub(crate) struct Polled {
    /// The outcome of each worker. If a worker did not answer, its outcome has the values of its last answer.
    pub(crate) outcomes: Vec<Outcome>,
    /// The state of each worker.
    pub(crate) states: Vec<WorkerState>,
    /// A message for each worker that did not answer in time and has not ended.
    pub(crate) errors: Vec<String>,
    /// The scope of the answers.
    pub(crate) scope: Scope,
}

struct SampledWorker {
    info: Arc<WorkerInfo>,
    request: RequesterEnd,
    /// The sample for the next request. `None` while a request is in progress.
    empty: Option<Box<Sample>>,
    counters: Option<WorkerCounters>,
    /// The sum of the times of all samples so far.
    times: Times,
    earlier: EarlierCounts,
    /// The number of answers so far.
    answers: u64,
    /// The exchange in progress.
    sent: Option<Sent>,
    /// The graph of a revert, which the worker gets after the exchange in progress.
    queued: Option<Box<Swap>>,
    /// The earlier graphs that the worker has handed back.
    returned: Graphs,
    retiring: RetiringLanes,
    observer: ObserverExchange,
    /// The answer to the last request for the states of the stages.
    paused: Option<PausedWorker>,
    /// The number of messages about a pause that the worker has not answered yet.
    pausing: usize,
}

/// The exchange of the observer of a worker. The worker gets one observer at a time.
#[derive(Default)]
struct ObserverExchange {
    /// Whether a message with an observer was sent, and the worker has not answered yet.
    is_sent: bool,
    /// The observer to send after the worker has answered the message in progress. The inner `None` removes the
    /// observer of the worker.
    next: Option<Option<Box<PacketObserver>>>,
}

/// The lanes of a worker on removed ports.
#[derive(Default)]
struct RetiringLanes {
    /// The number of lanes whose buffers have not returned to the worker yet.
    open: usize,
    /// Whether a request for retired lanes is in progress.
    is_asked: bool,
    /// The lanes that the worker has handed over, and that no control thread has taken yet.
    retired: Vec<RetiredLane>,
    /// The counts of the lane whose buffers a message in progress returns to the worker.
    returning: Option<ClosedLane>,
    /// The buffers of closed lanes that wait until the message in progress is answered.
    returns: VecDeque<Box<ReturnedSlots>>,
    /// The counts of lanes that were handed over or closed after the last sample of the worker. The last sample may
    /// still include a lane that was handed over, so the counts are added with the next sample.
    unsettled: Vec<ClosedLane>,
}

/// The counts of a lane that was handed over or closed.
struct ClosedLane {
    /// The name of the port.
    port: Arc<str>,
    /// The counters of the lane that the sums already contain.
    before: LaneCounters,
    /// The counters of the lane that the sums must contain.
    last: LaneCounters,
    /// The buffers that came back after the hand-over.
    slots: LateSlots,
}

impl ClosedLane {
    fn new(slots: &ReturnedSlots) -> Self {
        Self {
            port: slots.name.clone(),
            before: slots.before.clone(),
            last: slots.last.clone(),
            slots: LateSlots { receives: slots.receives as u64, sends: slots.sends as u64 },
        }
    }
}

/// An exchange in progress: the worker has a message with a new graph, and switches at its next housekeeping. A worker
/// exchanges one graph at a time.
struct Sent {
    exchange: u64,
    /// The properties of the worker with the new graph.
    info: Arc<WorkerInfo>,
}

impl Sampler {
    /// Creates a sampler. `workers` has, for each worker, the worker's properties, an empty sample, and the requester's
    /// end of the worker's channel.
    pub(crate) fn new(workers: impl IntoIterator<Item = (Arc<WorkerInfo>, Box<Sample>, RequesterEnd)>) -> Self {
        let workers =
            workers.into_iter().map(|(info, empty, request)| SampledWorker::new(info, empty, request)).collect();
        let (removed, removed_times) = (RemovedWorkers::default(), (Vec::new(), Times::new(0)));
        Self { workers, removed, removed_times, since: None, scope: Scope::All, exchanges: 0 }
    }

    /// Adds a worker. The arguments are the same as for a worker in [`Sampler::new`].
    pub(crate) fn add(&mut self, info: Arc<WorkerInfo>, empty: Box<Sample>, request: RequesterEnd) {
        self.workers.push(SampledWorker::new(info, empty, request));
    }

    /// Removes the last worker, which has ended, and keeps its counters. `result` has the results of the worker, or is
    /// `None` if the worker has no result.
    pub(crate) fn remove_last(&mut self, result: Option<(Outcome, Times)>) {
        let Some(mut worker) = self.workers.pop() else { return };
        worker.take();
        let outcome = match result {
            Some((mut outcome, times)) => {
                worker.settle();
                outcome.add_earlier(&worker.earlier);
                worker.times.add(&times);
                outcome
            }
            None => worker.outcome(Scope::All),
        };
        let lanes = outcome.lanes.iter().map(|lane| (&*lane.port, &lane.counters));
        self.removed.add(&worker.info, &outcome.report, lanes, &outcome.stages);
        let names = worker.info.stage_names();
        let (before, times) = &self.removed_times;
        let mut times = times.for_stages(before, &names);
        times.add(&worker.times);
        self.removed_times = (names, times);
    }

    /// Returns the counters of the workers that were removed.
    pub(crate) fn removed(&self) -> &RemovedWorkers {
        &self.removed
    }

    /// Sends a request to every worker, unless requests are already in progress. Returns `None` until all workers have
    /// answered or the timeout has passed. A worker that is switching to a new graph answers after the switch.
    ///
    /// `scope` is the scope of new requests. If requests are already in progress, the answers have the scope of these
    /// requests ([`Polled::scope`]).
    pub(crate) fn poll(&mut self, scope: Scope) -> Option<Polled> {
        self.pump();
        let since = *self.since.get_or_insert_with(|| {
            self.workers.iter_mut().for_each(|worker| worker.ask(scope));
            self.scope = scope;
            Instant::now()
        });
        let is_open = self.workers.iter().any(|worker| worker.state() == WorkerState::Late);
        if is_open && since.elapsed() < ANSWER_TIMEOUT {
            return None;
        }
        self.since = None;
        let states: Vec<WorkerState> = self.workers.iter().map(SampledWorker::state).collect();
        let late = |(number, worker): (usize, &SampledWorker)| {
            let shown = match worker.counters {
                Some(_) => "its statistics are from its last answer",
                None => "it has no statistics yet",
            };
            (states[number] == WorkerState::Late).then(|| format!("worker {number} does not answer, so {shown}"))
        };
        let errors = self.workers.iter().enumerate().filter_map(late).collect();
        let outcomes = self.workers.iter().map(|worker| worker.outcome(self.scope)).collect();
        Some(Polled { outcomes, states, errors, scope: self.scope })
    }

    /// Returns the counts of the earlier graphs and lanes of a worker that has ended.
    pub(crate) fn earlier(&mut self, worker: usize) -> Option<&EarlierCounts> {
        let worker = self.workers.get_mut(worker)?;
        worker.settle();
        Some(&worker.earlier)
    }

    /// Returns the sum of the times of all samples so far, for the stages of the first worker.
    pub(crate) fn times(&self) -> Times {
        self.times_of(&self.workers.first().map(|first| first.info.stage_names()).unwrap_or_default())
    }

    /// Returns the sum of the times of all samples so far, for these stages.
    pub(crate) fn times_of(&self, stages: &[String]) -> Times {
        let mut sum = Times::new(stages.len());
        for worker in &self.workers {
            sum.add(&worker.times.for_stages(&worker.info.stage_names(), stages));
        }
        let (names, times) = &self.removed_times;
        sum.add(&times.for_stages(names, stages));
        sum
    }

    /// Takes all answers.
    pub(crate) fn pump(&mut self) {
        self.workers.iter_mut().for_each(SampledWorker::take);
    }

    /// Sends a request to each worker. Returns, for each worker, the number of answers so far.
    pub(crate) fn ask(&mut self) -> Vec<u64> {
        self.pump();
        self.workers.iter_mut().for_each(|worker| worker.ask(Scope::All));
        self.workers.iter().map(|worker| worker.answers).collect()
    }

    /// Returns the first worker that has neither ended nor answered since `answers` ([`Sampler::ask`]).
    pub(crate) fn silent(&mut self, answers: &[u64]) -> Option<usize> {
        self.pump();
        let is_silent =
            |(worker, before): (&SampledWorker, &u64)| !worker.request.is_over() && worker.answers == *before;
        self.workers.iter().zip(answers).position(is_silent)
    }

    /// Returns the properties of a worker.
    pub(crate) fn info(&self, worker: usize) -> Option<&Arc<WorkerInfo>> {
        self.workers.get(worker).map(|worker| &worker.info)
    }

    /// Returns the properties of a worker after the exchange in progress.
    pub(crate) fn next_info(&self, worker: usize) -> Option<&Arc<WorkerInfo>> {
        let worker = self.workers.get(worker)?;
        Some(worker.sent.as_ref().map_or(&worker.info, |sent| &sent.info))
    }

    /// Returns the number of a new exchange.
    pub(crate) fn begin_exchange(&mut self) -> u64 {
        self.exchanges += 1;
        self.exchanges
    }

    /// Returns the number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends an observer to a worker, or removes the observer of the worker. If the worker has not answered an earlier
    /// message of this kind yet, the worker gets the new message after its answer. Returns `false` if the worker has
    /// ended.
    pub(crate) fn observer(&mut self, worker: usize, observer: Option<Box<PacketObserver>>) -> bool {
        let Some(worker) = self.workers.get_mut(worker) else { return false };
        worker.observer.next = Some(observer);
        worker.take();
        !worker.request.is_over()
    }

    /// Sends a graph to a worker. If another exchange of the worker is in progress, sends the graph after this
    /// exchange. A worker that has ended gets no graph.
    pub(crate) fn swap(&mut self, worker: usize, swap: Box<Swap>) {
        let Some(worker) = self.workers.get_mut(worker) else { return };
        worker.take();
        if !worker.request.is_over() {
            worker.retiring.open += swap.lanes.as_ref().map_or(0, |lanes| lanes.removed());
        }
        match &worker.sent {
            _ if worker.request.is_over() => {}
            Some(_) => worker.queued = Some(swap),
            None => worker.send(swap),
        }
    }

    /// Returns the workers that have not switched to their new graphs of an exchange yet.
    pub(crate) fn exchanging(&mut self, exchange: u64) -> Vec<usize> {
        self.pump();
        let is_late = |(_, worker): &(usize, &SampledWorker)| {
            worker.sent.as_ref().is_some_and(|sent| sent.exchange == exchange)
                || worker.queued.as_ref().is_some_and(|swap| swap.exchange == exchange)
        };
        self.workers.iter().enumerate().filter(is_late).map(|(number, _)| number).collect()
    }

    /// Returns a worker whose last exchange is not finished: the worker has not switched yet, or nobody has taken its
    /// earlier graph.
    pub(crate) fn unfinished(&mut self) -> Option<usize> {
        self.pump();
        self.workers.iter().position(|worker| worker.sent.is_some() || !worker.returned.is_empty())
    }

    /// Asks a worker for the lanes on removed ports that can be stopped. Returns the lanes of earlier answers, or
    /// `None` if the worker has no lanes on removed ports any more.
    pub(crate) fn retired(&mut self, worker: usize) -> Option<Vec<RetiredLane>> {
        let worker = self.workers.get_mut(worker)?;
        worker.take();
        let RetiringLanes { open, is_asked, retired, .. } = &mut worker.retiring;
        if *open == 0 {
            return None;
        }
        if !*is_asked && worker.sent.is_none() && !worker.request.is_over() {
            *is_asked = true;
            worker.request.ask(Message::Retired(Vec::with_capacity(*open)));
        }
        Some(std::mem::take(retired))
    }

    /// Returns `true` if a running worker has not answered a message about a pause yet. The channel has no room for the
    /// messages of another pause then.
    pub(crate) fn is_pausing(&mut self) -> bool {
        self.pump();
        self.workers.iter().any(|worker| worker.pausing > 0 && !worker.request.is_over())
    }

    /// Requests a pause and the states of the stages from each worker. The caller must have waited for the end of an
    /// earlier pause ([`Self::is_pausing`]).
    pub(crate) fn ask_pause(&mut self) {
        self.pump();
        for worker in &mut self.workers {
            worker.paused = None;
            worker.ask_about_pause(Message::Pause(PausedWorker::default()));
        }
    }

    /// Asks each paused worker to stop its queues on the ports with these indices.
    pub(crate) fn ask_release(&mut self, ports: &[usize]) {
        self.pump();
        self.workers.iter_mut().for_each(|worker| worker.ask_about_pause(Message::Release(ports.to_vec())));
    }

    /// Asks each paused worker to continue. `is_touched` is whether another program may have changed the packet memory.
    pub(crate) fn ask_resume(&mut self, is_touched: bool) {
        self.pump();
        self.workers.iter_mut().for_each(|worker| worker.ask_about_pause(Message::Resume(is_touched)));
    }

    /// Returns the answers of the workers to [`Self::ask_pause`], or `None` while a worker has not answered. A worker
    /// that has ended has no states.
    pub(crate) fn paused(&mut self) -> Option<Vec<PausedWorker>> {
        self.pump();
        let is_open = |worker: &SampledWorker| worker.paused.is_none() && !worker.request.is_over();
        if self.workers.iter().any(is_open) {
            return None;
        }
        Some(self.workers.iter_mut().map(|worker| worker.paused.take().unwrap_or_default()).collect())
    }

    /// Returns the number of lanes of a worker on removed ports that are not closed yet.
    pub(crate) fn retiring(&self, worker: usize) -> usize {
        self.workers.get(worker).map_or(0, |worker| worker.retiring.open)
    }

    /// Returns the buffers of a closed lane to the worker.
    pub(crate) fn return_slots(&mut self, worker: usize, slots: Box<ReturnedSlots>) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.retiring.returns.push_back(slots);
            worker.take();
        }
    }

    /// Takes the earlier graphs that workers have handed back in an exchange.
    pub(crate) fn returned(&mut self, exchange: u64) -> Graphs {
        let graphs =
            self.workers.iter_mut().flat_map(|worker| worker.returned.extract_if(.., |swap| swap.exchange == exchange));
        graphs.collect()
    }
}

impl SampledWorker {
    fn new(info: Arc<WorkerInfo>, empty: Box<Sample>, request: RequesterEnd) -> Self {
        Self {
            times: Times::new(info.stages_info.len()),
            info,
            request,
            empty: Some(empty),
            counters: None,
            earlier: EarlierCounts::default(),
            answers: 0,
            sent: None,
            queued: None,
            returned: Graphs::new(),
            retiring: RetiringLanes::default(),
            observer: ObserverExchange::default(),
            paused: None,
            pausing: 0,
        }
    }

    fn ask(&mut self, scope: Scope) {
        // During an exchange, the sample has the size for the earlier graph, so send no request.
        if self.sent.is_some() {
            return;
        }
        if let Some(mut sample) = self.empty.take() {
            sample.scope = scope;
            self.request.ask(Message::Sample(sample));
        }
    }

    fn ask_about_pause(&mut self, message: Message) {
        self.pausing += 1;
        self.request.ask(message);
    }

    /// Takes the answers.
    fn take(&mut self) {
        // Before reading the answer, check whether the worker has ended. In the opposite order, a last answer that the
        // worker sends between the two steps would be missed.
        let is_over = self.request.is_over();
        while let Some(answer) = self.request.answer() {
            self.answers += 1;
            match answer {
                Message::Sample(sample) => self.update(sample),
                Message::Swap(swap) => self.take_graph(swap),
                // The worker frees no memory, so the earlier observer is freed here.
                Message::Observer(observer) => {
                    self.observer.is_sent = false;
                    drop(observer);
                }
                Message::Retired(lanes) => self.take_lanes(lanes),
                Message::Pause(paused) => {
                    self.pausing -= 1;
                    self.paused = Some(paused);
                }
                Message::Release(_) | Message::Resume(_) => self.pausing -= 1,
                Message::Slots(_) => {
                    if let Some(lane) = self.retiring.returning.take() {
                        self.finish_lane(ClosedLane { slots: LateSlots::default(), ..lane });
                    }
                }
            }
        }
        if is_over {
            // At its end, the worker has closed the lanes that it had not handed over.
            self.retiring.open = self.retiring.retired.len();
            // A worker that has ended takes no buffers any more, not even the buffers of the message in progress.
            let returns = std::mem::take(&mut self.retiring.returns);
            let lanes = self.retiring.returning.take().into_iter();
            lanes.chain(returns.iter().map(|slots| ClosedLane::new(slots))).for_each(|lane| self.finish_lane(lane));
            (self.sent, self.queued, self.observer.next) = (None, None, None);
            return;
        }
        if self.retiring.returning.is_none()
            && let Some(slots) = self.retiring.returns.pop_front()
        {
            self.retiring.returning = Some(ClosedLane::new(&slots));
            self.request.ask(Message::Slots(slots));
        }
        if self.sent.is_none()
            && let Some(swap) = self.queued.take()
        {
            self.send(swap);
        }
        if !self.observer.is_sent
            && let Some(observer) = self.observer.next.take()
        {
            self.observer.is_sent = true;
            self.request.ask(Message::Observer(observer));
        }
    }

    fn send(&mut self, mut swap: Box<Swap>) {
        if let Some(before) = &self.counters {
            swap.sample.expect(&swap.successions, before);
        }
        swap.sample.counters.retiring.reserve(self.retiring.open);
        self.sent = Some(Sent { exchange: swap.exchange, info: swap.info.clone() });
        self.request.ask(Message::Swap(swap));
    }

    fn update(&mut self, mut sample: Box<Sample>) {
        self.settle();
        self.times.add(&sample.times);
        sample.clear();
        match &mut self.counters {
            Some(counters) => counters.update(&sample.counters),
            none => *none = Some(sample.counters.clone()),
        }
        self.empty = Some(sample);
    }

    /// Takes lanes on removed ports that the worker has handed over.
    fn take_lanes(&mut self, lanes: Vec<RetiredLane>) {
        self.retiring.is_asked = false;
        let counts = |lane: &RetiredLane| ClosedLane {
            port: lane.name.clone(),
            before: LaneCounters::default(),
            last: lane.counters.clone(),
            slots: LateSlots::default(),
        };
        self.retiring.unsettled.extend(lanes.iter().map(counts));
        self.retiring.retired.extend(lanes);
    }

    /// Counts the packets of a closed lane. `slots` of the lane has the buffers that the worker has not taken.
    fn finish_lane(&mut self, lane: ClosedLane) {
        self.retiring.open = self.retiring.open.saturating_sub(1);
        self.retiring.unsettled.push(lane);
    }

    /// Adds the counts of retired lanes to the counts of earlier lanes. The caller must replace the counters of the
    /// worker by counters that do not include these lanes.
    fn settle(&mut self) {
        for ClosedLane { port, before, last, slots } in self.retiring.unsettled.drain(..) {
            self.earlier.add_lane(&port, &before, &last);
            self.earlier.late.receives += slots.receives;
            self.earlier.late.sends += slots.sends;
        }
    }

    /// Takes the earlier graph of the worker, and adds its counters to the counts of earlier graphs.
    fn take_graph(&mut self, mut swap: Box<Swap>) {
        let Some(Sent { info, .. }) = self.sent.take() else { return };
        let before = std::mem::replace(&mut self.info, info);
        self.earlier.add(&before, swap.graph.take_counters(), &self.info);
        let mut last = Times::new(before.stages_info.len());
        if let Some(watch) = &mut swap.stopwatch {
            std::mem::swap(&mut last.costs, watch.costs());
        }
        self.times.add(&last);
        self.times = self.times.for_stages(&before.stage_names(), &self.info.stage_names());
        self.counters = None;
        let sample = std::mem::replace(&mut swap.sample, Box::new(Sample::new(&before)));
        self.update(sample);
        self.returned.push(swap);
    }

    /// Returns the state of the worker at the end of a request.
    fn state(&self) -> WorkerState {
        match (self.request.is_over(), &self.empty, &self.sent) {
            (true, ..) => WorkerState::Ended,
            (false, Some(_), None) => WorkerState::Running,
            (false, ..) => WorkerState::Late,
        }
    }

    fn outcome(&self, scope: Scope) -> Outcome {
        let mut outcome = match &self.counters {
            Some(counters) => Outcome::new(&self.info, counters, scope),
            None => Outcome::new(&self.info, &Sample::new(&self.info).counters, scope),
        };
        outcome.add_earlier(&self.earlier);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::runtime::packet_observer::CapturePoint;
    use crate::runtime::sample;
    use dataplane_core::mem::{BatchMemory, PageKind, Pool, Region, RegionSpec, SlotLayout};
    use dataplane_core::units::CoreId;

    fn info() -> Arc<WorkerInfo> {
        let (ports, stages_info) = (Vec::new(), Vec::new());
        let granted = BTreeMap::new();
        Arc::new(WorkerInfo {
            core: CoreId(0),
            slots: 0,
            pages: PageKind::Huge2M,
            granted,
            ports,
            stages_info,
            digest: String::new(),
        })
    }

    #[test]
    fn worker_gets_its_own_sample_back_for_each_request() {
        let (info, (request, mut reply)) = (info(), sample::channel());
        let own = Box::new(Sample::new(&info));
        let address = &raw const *own;
        let mut sampler = Sampler::new([(info, own, request)]);
        for _ in 0..3 {
            assert!(sampler.poll(Scope::All).is_none());
            let Some(Message::Sample(asked)) = reply.asked() else { panic!("no request") };
            assert_eq!(&raw const *asked, address);
            reply.give(Message::Sample(asked));
            assert_eq!(sampler.poll(Scope::All).unwrap().states, [WorkerState::Running]);
        }
    }

    #[test]
    fn worker_that_answers_late_gets_only_the_last_observer() {
        let (info, (request, mut reply)) = (info(), sample::channel());
        let mut sampler = Sampler::new([(info.clone(), Box::new(Sample::new(&info)), request)]);
        let capture = || Some(PacketObserver::capture(&info, None, (CapturePoint::AllPorts, false), 64).0);
        let next = |reply: &mut sample::WorkerEnd| match reply.asked() {
            Some(Message::Observer(observer)) => Some(observer),
            None => None,
            Some(_) => panic!("no observer"),
        };
        // More messages than the channel has room for.
        for _ in 0..20 {
            assert!(sampler.observer(0, capture()) && sampler.observer(0, None));
        }
        assert!(sampler.observer(0, capture()));
        let first = next(&mut reply).unwrap();
        assert!(first.is_some() && next(&mut reply).is_none());
        reply.give(Message::Observer(None));
        sampler.pump();
        assert!(next(&mut reply).unwrap().is_some());
        reply.give(Message::Observer(first));
        sampler.pump();
        assert!(next(&mut reply).is_none());
        drop(reply);
        assert!(!sampler.observer(0, None));
    }

    #[test]
    fn sampler_does_not_wait_for_an_ended_worker() {
        let (info, (request, reply)) = (info(), sample::channel());
        let own = Box::new(Sample::new(&info));
        let mut sampler = Sampler::new([(info, own, request)]);
        assert!(sampler.poll(Scope::All).is_none());
        drop(reply);
        let Polled { outcomes, states, errors, .. } = sampler.poll(Scope::All).unwrap();
        assert_eq!((outcomes.len(), states, errors), (1, vec![WorkerState::Ended], Vec::new()));
    }

    #[test]
    fn costs_have_the_stages_of_the_first_worker_while_another_worker_has_more_stages() {
        let timebase = dataplane_core::clock::HostClock::manual().timebase();
        let snapshot = |loops: u64| {
            let outcome = |names: &[&str]| {
                let stage = |name: &&str| StageReport { name: (*name).to_owned(), ..StageReport::default() };
                let info = info();
                let outcome = Outcome::new(&info, &Sample::new(&info).counters, Scope::All);
                Outcome { stages: names.iter().map(stage).collect(), ..outcome }
            };
            let mut times = Times::new(1);
            let parts: Vec<(u64, u64)> = (1..=5).map(|part| (part * 100, 10)).collect();
            (0..loops).for_each(|_| times.costs.record(10, &parts));
            let (outcomes, removed) = (vec![outcome(&["acl"]), outcome(&["acl", "old"])], RemovedWorkers::default());
            let report = report::report(outcomes, &removed, &times, Vec::new(), Vec::new(), Vec::new(), &timebase);
            assert_eq!(report.stages.len(), 2);
            Snapshot { times, ..Snapshot::of_report(report, Latency::new(), 0, &[]) }
        };
        let (earlier, later) = (snapshot(1), snapshot(3));
        let ticks = [10.0, 20.0, 30.0, 40.0, 50.0, 150.0];
        let names = ["reap", "receive", "acl", "transmit", "refill", "all"];
        for (costs, loops) in [(&later.report.costs, 3), (&later.since(Some(&earlier)).costs, 2)] {
            let shown: Vec<_> = costs.iter().map(|cost| (cost.part.as_str(), cost.ticks, cost.bursts)).collect();
            let expected: Vec<_> = names.into_iter().zip(ticks).map(|(name, ticks)| (name, ticks, loops)).collect();
            assert_eq!(shown, expected);
        }
        let sums: Vec<_> = later.cost_sums().iter().map(|(name, _, sum, _)| (*name, sum.ticks)).collect();
        assert_eq!(sums, names.into_iter().zip([300, 600, 900, 1200, 1500, 4500]).collect::<Vec<_>>());
    }

    /// Returns the buffers of a closed lane: three receives, and two sends that the device did not complete.
    fn closed(name: &str, memory: &BatchMemory) -> Box<ReturnedSlots> {
        let before = LaneCounters { rx: 9, tx: 7, ..LaneCounters::default() };
        let last = LaneCounters { dropped_at_stop: 2, ..before.clone() };
        Box::new(ReturnedSlots { name: name.into(), pool: Pool::detached(memory), receives: 3, sends: 2, before, last })
    }

    #[test]
    fn lanes_that_close_after_the_end_of_their_worker_are_counted() {
        let layout = SlotLayout::new(64, 2048, 16).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let memory = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap().batch_memory();
        let (info, (request, mut reply)) = (info(), sample::channel());
        let own = Box::new(Sample::new(&info));
        let mut sampler = Sampler::new([(info, own, request)]);
        for name in ["taken", "in_progress", "waiting"] {
            sampler.return_slots(0, closed(name, &memory));
        }
        // The worker takes the buffers of one lane, and ends while the next message waits in the channel.
        let Some(Message::Slots(slots)) = reply.asked() else { panic!("no buffers") };
        reply.give(Message::Slots(slots));
        sampler.pump();
        drop(reply);
        sampler.return_slots(0, closed("later", &memory));
        let earlier = sampler.earlier(0).unwrap();
        assert_eq!(earlier.ports().collect::<Vec<_>>(), ["in_progress", "later", "taken", "waiting"]);
        assert_eq!((earlier.late.receives, earlier.late.sends), (9, 6));
        // The last counters of the worker include five buffers of each of the last three lanes. Two buffers of each
        // lane contain packets.
        let counters = WorkerCounters { out: 15, posted: 9, ..Sample::new(&sampler.workers[0].info).counters };
        let mut outcome = Outcome::new(&sampler.workers[0].info, &counters, Scope::All);
        outcome.report.slots_missing = 15;
        assert_eq!(outcome.report.ledger.held, 6);
        outcome.add_earlier(&sampler.workers[0].earlier);
        assert_eq!((outcome.report.ledger.held, outcome.report.slots_missing), (0, 0));
    }
}
