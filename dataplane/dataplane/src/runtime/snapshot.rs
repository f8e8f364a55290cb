//! Snapshots: the statistics of a run up to one point in time, collected from the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::runtime::report::{self, Outcome};
use crate::runtime::sample::{Counters, Request, Sample, Times, WorkerInfo};
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

    /// Returns the changes since an earlier snapshot of the same run. With `None`, returns the changes since the start.
    pub fn since(&self, earlier: Option<&Self>) -> Recent {
        let times = earlier.map_or_else(|| self.times.clone(), |earlier| self.times.since(&earlier.times));
        let mut recent = Recent::between(earlier.map(Self::report), &self.report);
        recent.latency_ns = times.latency.report();
        recent.costs = report::costs(&times.costs, &self.report.stages, &self.timebase);
        recent
    }
}

/// Collects statistics from the workers of a run.
pub(crate) struct Sampler {
    workers: Vec<SampledWorker>,
    /// The sum of the times of all samples so far.
    times: Times,
    /// The time at which the sampler sent the current requests. `None` if no request is in progress.
    since: Option<Instant>,
}

/// The answers of all workers.
pub(crate) struct Polled {
    /// The outcome of each worker. The outcome of a worker that did not answer comes from its last answer.
    pub(crate) outcomes: Vec<Outcome>,
    /// The state of each worker.
    pub(crate) states: Vec<WorkerState>,
    /// An error for each running worker that did not answer.
    pub(crate) errors: Vec<String>,
}

struct SampledWorker {
    info: Arc<WorkerInfo>,
    request: Request,
    /// The sample for the next request. `None` while a request is in progress.
    empty: Option<Box<Sample>>,
    counters: Option<Counters>,
}

impl Sampler {
    /// Creates a sampler. `workers` has, for each worker, the worker's properties, an empty sample, and the requester's
    /// end of the worker's channel.
    pub(crate) fn new(workers: impl IntoIterator<Item = (Arc<WorkerInfo>, Box<Sample>, Request)>) -> Self {
        let asked = |(info, empty, request)| SampledWorker { info, request, empty: Some(empty), counters: None };
        let workers: Vec<SampledWorker> = workers.into_iter().map(asked).collect();
        let stages = workers.first().map_or(0, |worker| worker.info.stages_info.len());
        Self { workers, times: Times::new(stages), since: None }
    }

    /// Sends a request to every worker, unless requests are already in progress. Returns `None` until all workers have
    /// answered or the timeout has passed.
    pub(crate) fn poll(&mut self) -> Option<Polled> {
        let since = *self.since.get_or_insert_with(|| {
            self.workers.iter_mut().for_each(SampledWorker::ask);
            Instant::now()
        });
        let times = &mut self.times;
        let open = self.workers.iter_mut().fold(false, |open, worker| open | !worker.take(times));
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

    /// Takes the last answers, after all workers have ended.
    pub(crate) fn finish(mut self) -> Times {
        for worker in &mut self.workers {
            worker.take(&mut self.times);
        }
        self.times
    }

    pub(crate) fn times(&self) -> &Times {
        &self.times
    }
}

impl SampledWorker {
    fn ask(&mut self) {
        if let Some(sample) = self.empty.take() {
            self.request.ask(sample);
        }
    }

    /// Takes the answer, if there is an answer. Returns `true` if no request is in progress any more.
    fn take(&mut self, times: &mut Times) -> bool {
        if self.empty.is_some() {
            return true;
        }
        // Before reading the answer, check whether the worker has ended. In the opposite order, a last answer that the
        // worker sends between the two steps would be missed.
        let is_over = self.request.is_over();
        let Some(mut sample) = self.request.answer() else { return is_over };
        times.add(&sample.times);
        sample.clear();
        match &mut self.counters {
            Some(counters) => counters.update(&sample.counters),
            none => *none = Some(sample.counters.clone()),
        }
        self.empty = Some(sample);
        true
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
        match &self.counters {
            Some(counters) => Outcome::new(&self.info, counters),
            None => Outcome::new(&self.info, &Sample::new(&self.info).counters),
        }
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
            let asked = reply.asked().unwrap();
            assert_eq!(&raw const *asked, address);
            reply.give(asked);
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
