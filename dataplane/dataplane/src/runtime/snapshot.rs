//! Snapshots: the statistics of a run up to one point in time, collected from the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::runtime::report::{self, EarlierCounts, Outcome};
use crate::runtime::sample::{Counters, Message, Request, Sample, Swap, SwapTicket, Times, WorkerInfo};
use dataplane_core::clock::Timebase;
use dataplane_core::telemetry::{Latency, Recent, Report};

/// The maximum time that the sampler waits for the workers. A worker answers within 256 iterations, or when it wakes
/// up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The statistics of a run up to one point in time.
#[derive(Clone)]
pub struct Snapshot {
    report: Report,
    times: Times,
    timebase: Timebase,
    workers: Vec<WorkerState>,
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
    pub(crate) fn new(report: Report, times: Times, timebase: Timebase, workers: Vec<WorkerState>) -> Self {
        Self { report, times, timebase, workers }
    }

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

    fn stage_names(&self) -> Vec<String> {
        self.report.stages.iter().map(|stage| stage.name.clone()).collect()
    }

    /// Returns the changes since an earlier snapshot of the same run. With `None`, returns the changes since the start.
    pub fn since(&self, earlier: Option<&Self>) -> Recent {
        let times = match earlier {
            None => self.times.clone(),
            Some(earlier) => self.times.since(&earlier.times.for_stages(&earlier.stage_names(), &self.stage_names())),
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
    /// The time at which the sampler sent the current requests. `None` if no request is in progress.
    since: Option<Instant>,
}

/// The answers of all workers.
pub(crate) struct Polled {
    /// The outcome of each worker. If a worker did not answer, its outcome has the values of its last answer.
    pub(crate) outcomes: Vec<Outcome>,
    /// The state of each worker.
    pub(crate) states: Vec<WorkerState>,
    /// A message for each worker that did not answer in time and has not ended.
    pub(crate) errors: Vec<String>,
}

struct SampledWorker {
    info: Arc<WorkerInfo>,
    request: Request,
    /// The sample for the next request. `None` while a request is in progress.
    empty: Option<Box<Sample>>,
    counters: Option<Counters>,
    /// The sum of the times of all samples so far.
    times: Times,
    earlier: EarlierCounts,
    /// The ticket of the graph exchange that is in progress.
    swap: Option<Arc<SwapTicket>>,
    /// The earlier graph, which the worker has handed back.
    returned: Option<Box<Swap>>,
}

impl Sampler {
    /// Creates a sampler. `workers` has, for each worker, the worker's properties, an empty sample, and the requester's
    /// end of the worker's channel.
    pub(crate) fn new(workers: impl IntoIterator<Item = (Arc<WorkerInfo>, Box<Sample>, Request)>) -> Self {
        let asked = |(info, empty, request): (Arc<WorkerInfo>, _, _)| SampledWorker {
            times: Times::new(info.stages_info.len()),
            info,
            request,
            empty: Some(empty),
            counters: None,
            earlier: EarlierCounts::default(),
            swap: None,
            returned: None,
        };
        Self { workers: workers.into_iter().map(asked).collect(), since: None }
    }

    /// Sends a request to every worker, unless requests are already in progress. Returns `None` until all workers have
    /// answered or the timeout has passed.
    pub(crate) fn poll(&mut self) -> Option<Polled> {
        self.pump();
        // While workers switch to new graphs, the workers have different stages, so their counters do not match.
        if self.workers.iter().any(|worker| worker.swap.is_some()) {
            return None;
        }
        let since = *self.since.get_or_insert_with(|| {
            self.workers.iter_mut().for_each(SampledWorker::ask);
            Instant::now()
        });
        let open = self.workers.iter_mut().fold(false, |open, worker| open | !worker.take());
        if open && since.elapsed() < ANSWER_TIMEOUT {
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
        Some(Polled { outcomes: self.workers.iter().map(SampledWorker::outcome).collect(), states, errors })
    }

    /// Returns the counts of the earlier graphs of a worker.
    pub(crate) fn earlier(&self, worker: usize) -> Option<&EarlierCounts> {
        self.workers.get(worker).map(|worker| &worker.earlier)
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
        sum
    }

    /// Takes all answers.
    pub(crate) fn pump(&mut self) {
        self.workers.iter_mut().for_each(|worker| _ = worker.take());
    }

    /// Returns the properties of a worker.
    pub(crate) fn info(&self, worker: usize) -> Option<&Arc<WorkerInfo>> {
        self.workers.get(worker).map(|worker| &worker.info)
    }

    /// Prepares the sample in `swap` for the stages that continue, with the last counters of the worker.
    pub(crate) fn expect(&self, worker: usize, swap: &mut Swap) {
        if let Some(Some(before)) = self.workers.get(worker).map(|worker| &worker.counters) {
            swap.sample.expect(&swap.successions, before);
        }
    }

    /// Sends a graph to a worker.
    ///
    /// # Errors
    /// Returns the graph if the worker has ended, or if too many messages to the worker are unanswered.
    pub(crate) fn swap(&mut self, worker: usize, swap: Box<Swap>) -> Result<(), Box<Swap>> {
        let Some(worker) = self.workers.get_mut(worker) else { return Err(swap) };
        if worker.request.is_over() || worker.request.is_full() {
            return Err(swap);
        }
        worker.swap = Some(swap.ticket.clone());
        worker.returned = None;
        worker.request.ask(Message::Swap(swap));
        Ok(())
    }

    /// Returns `true` if a worker has not answered the message with its new graph yet.
    pub(crate) fn is_swapping(&self, worker: usize) -> bool {
        self.workers.get(worker).is_some_and(|worker| worker.swap.is_some())
    }

    /// Returns `true` if a worker has ended.
    pub(crate) fn is_over(&self, worker: usize) -> bool {
        self.workers.get(worker).is_none_or(|worker| worker.request.is_over())
    }

    /// Cancels the switch of a worker to its new graph. Returns `false` if the worker is switching or has switched.
    pub(crate) fn cancel(&mut self, worker: usize) -> bool {
        let Some(worker) = self.workers.get_mut(worker) else { return true };
        match &worker.swap {
            Some(ticket) if ticket.cancel() => {
                worker.swap = None;
                true
            }
            // The worker is switching. It answers soon, or ends.
            Some(_) => false,
            None => worker.returned.is_none(),
        }
    }

    /// Takes the earlier graph that a worker has handed back.
    pub(crate) fn returned(&mut self, worker: usize) -> Option<Box<Swap>> {
        self.workers.get_mut(worker)?.returned.take()
    }
}

impl SampledWorker {
    fn ask(&mut self) {
        if let Some(sample) = self.empty.take() {
            self.request.ask(Message::Sample(sample));
        }
    }

    /// Takes the answers. Returns `true` if no request is in progress any more.
    fn take(&mut self) -> bool {
        // Before reading the answer, check whether the worker has ended. In the opposite order, a last answer that the
        // worker sends between the two steps would be missed.
        let is_over = self.request.is_over();
        while let Some(answer) = self.request.answer() {
            match answer {
                Message::Sample(sample) => self.update(sample),
                // The switch was cancelled, so the worker returns the new graph unused.
                Message::Swap(swap) if !swap.ticket.is_taken() => drop(swap),
                Message::Swap(swap) => self.take_graph(swap),
            }
        }
        if is_over {
            self.swap = None;
        }
        self.empty.is_some() || is_over
    }

    fn update(&mut self, mut sample: Box<Sample>) {
        self.times.add(&sample.times);
        sample.clear();
        match &mut self.counters {
            Some(counters) => counters.update(&sample.counters),
            none => *none = Some(sample.counters.clone()),
        }
        self.empty = Some(sample);
    }

    /// Takes the earlier graph of the worker, and adds its counters to the counts of earlier graphs.
    fn take_graph(&mut self, mut swap: Box<Swap>) {
        let before = std::mem::replace(&mut self.info, swap.next_info.clone());
        self.earlier.add(&before, swap.graph.take_counters(), &self.info);
        let mut last = Times::new(before.stages_info.len());
        if let Some(watch) = &mut swap.stopwatch {
            std::mem::swap(&mut last.costs, watch.costs());
        }
        self.times.add(&last);
        self.times = self.times.for_stages(&before.stage_names(), &self.info.stage_names());
        self.counters = None;
        self.swap = None;
        let sample = std::mem::replace(&mut swap.sample, Box::new(Sample::new(&before)));
        self.update(sample);
        self.returned = Some(swap);
    }

    /// Returns the state of the worker at the end of a request.
    fn state(&self) -> WorkerState {
        match (self.request.is_over(), &self.empty) {
            (true, _) => WorkerState::Ended,
            (false, Some(_)) => WorkerState::Running,
            (false, None) => WorkerState::Late,
        }
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = match &self.counters {
            Some(counters) => Outcome::new(&self.info, counters),
            None => Outcome::new(&self.info, &Sample::new(&self.info).counters),
        };
        outcome.add_earlier(&self.earlier);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::runtime::sample;
    use dataplane_core::mem::PageKind;
    use dataplane_core::units::CoreId;

    fn info() -> Arc<WorkerInfo> {
        let (ports, stages_info) = (Vec::new(), Vec::new());
        let granted = BTreeMap::new();
        Arc::new(WorkerInfo { core: CoreId(0), slots: 0, pages: PageKind::Huge2M, granted, ports, stages_info })
    }

    #[test]
    fn worker_gets_its_own_sample_back_for_each_request() {
        let (info, (request, mut reply)) = (info(), sample::channel());
        let own = Box::new(Sample::new(&info));
        let address = &raw const *own;
        let mut sampler = Sampler::new([(info, own, request)]);
        for _ in 0..3 {
            assert!(sampler.poll().is_none());
            let Some(Message::Sample(asked)) = reply.asked() else { panic!("no request") };
            assert_eq!(&raw const *asked, address);
            reply.give(Message::Sample(asked));
            assert_eq!(sampler.poll().unwrap().states, [WorkerState::Running]);
        }
    }

    #[test]
    fn sampler_does_not_wait_for_an_ended_worker() {
        let (info, (request, reply)) = (info(), sample::channel());
        let own = Box::new(Sample::new(&info));
        let mut sampler = Sampler::new([(info, own, request)]);
        assert!(sampler.poll().is_none());
        drop(reply);
        let Polled { outcomes, states, errors } = sampler.poll().unwrap();
        assert_eq!((outcomes.len(), states, errors), (1, vec![WorkerState::Ended], Vec::new()));
    }
}
