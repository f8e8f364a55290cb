//! Adds and removes workers.
//!
//! An added worker is built on its own thread before the other workers switch to their new graphs. This thread allocates
//! the packet memory, and opens a lane on each port. The devices pass no packets to these lanes until the
//! worker runs.
//!
//! A removed worker keeps its graph. The devices stop passing packets to the worker. The worker then processes the
//! packets in its queues, and ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::history::digest;
use super::refusal::{busy, not_started};
use super::state::{ANSWER_POLL_INTERVAL, ANSWER_TIMEOUT, POLL_INTERVAL, PipelineVersion, RunState, lock};
use crate::config::Plan;
use crate::runtime::Assembly;
use crate::runtime::ports::LivePort;
use crate::runtime::report::Outcome;
use crate::runtime::sample::HandedWorker;
use crate::runtime::sample::{self, RequesterEnd, Times};
use crate::runtime::snapshot::Sampler;
use crate::runtime::worker_thread::{Ready, StartingWorker, WorkerBuilder, WorkerHandle, WorkerResult, first_error};
use dataplane_control::Refusal;
use dataplane_core::error::Error;

/// The maximum time that a change waits for the end of a removed worker, in addition to [`WAITS`] × `drain_timeout`.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The multiple of `drain_timeout` that a change waits for the end of a removed worker. The worker needs at most two: one
/// for its last packets, and one for its sends, the buffers of the devices, and the lanes of removed ports. The others
/// are a margin.
const WAITS: u32 = 4;

/// Workers that a change adds, and that wait for their start. If this value is dropped before the workers are started,
/// the workers end.
#[derive(Default)]
pub(super) struct AddedWorkers {
    starting: Vec<StartingWorker>,
    ready: Vec<Ready>,
    requests: Vec<RequesterEnd>,
}

impl Drop for AddedWorkers {
    fn drop(&mut self) {
        // The workers were built, so they have no errors.
        let _ = first_error(std::mem::take(&mut self.starting));
    }
}

impl RunState {
    /// Builds the workers that a change adds, and takes their pipelines ([`Assembly::programs`]) out of `assembly`.
    /// `ports` has the ports after the change.
    ///
    /// # Errors
    /// Fails if a thread, a core, memory or a queue of a port is not available. No worker is added then.
    pub(super) fn build_workers(
        &self,
        current: &PipelineVersion,
        assembly: &mut Assembly,
        ports: &[LivePort],
    ) -> Result<AddedWorkers, Refusal> {
        let running = current.plan.cores.len();
        if self.end_removed() > 0 {
            let message = "a worker that an earlier change removed has not ended";
            return Err(busy(message, "try again; if the worker never ends, restart the program"));
        }
        let mut added = AddedWorkers::default();
        if assembly.programs.len() <= running {
            return Ok(added);
        }
        let programs = assembly.programs.split_off(running);
        let plan = Arc::new(assembly.plan.clone());
        for port in ports {
            port.device.check_workers(plan.cores.len()).map_err(|error| not_started(&error))?;
        }
        let digest = digest(&assembly.source);
        let (ready, readiness) = mpsc::channel();
        for (number, program) in (running..).zip(programs) {
            if number >= self.control.capacity() {
                let message = format!("the host has only {} cores", self.control.capacity());
                return Err(not_started(&Error::Worker { worker: number, message }));
            }
            let (request, reply) = sample::channel();
            added.requests.push(request);
            let builder = WorkerBuilder {
                number,
                node: self.topology.core(plan.cores[number]).map(|core| core.node),
                program,
                plan: plan.clone(),
                ports: ports.iter().map(|port| port.device.clone()).collect(),
                control: self.control.clone(),
                clock: self.clock.clone(),
                reply,
                digest: digest.clone(),
                keeps_recv_info: self.keeps_recv_info,
                joins: true,
                memory: None,
            };
            added.starting.push(builder.spawn(&ready).map_err(|error| not_started(&error))?);
        }
        drop(ready);
        // The iteration ends when every worker has sent its message or dropped its sender.
        added.ready.extend(readiness.iter());
        if added.ready.len() < added.starting.len() {
            let error = first_error(std::mem::take(&mut added.starting));
            let message = "the worker ended during its set-up".to_owned();
            return Err(not_started(&error.unwrap_or(Error::Worker { worker: running, message })));
        }
        added.ready.sort_unstable_by_key(|(number, ..)| *number);
        Ok(added)
    }

    /// Starts the added workers. `workers` and `sampler` are from the run, and the caller holds their locks.
    pub(super) fn start_workers(
        &self,
        mut added: AddedWorkers,
        workers: &mut Vec<WorkerHandle>,
        sampler: &mut Sampler,
    ) {
        let mut memories = lock(&self.memories);
        for ((_, info, sample, memory), request) in added.ready.drain(..).zip(added.requests.drain(..)) {
            memories.push(memory);
            sampler.add(info, sample, request);
        }
        workers.extend(added.starting.drain(..).map(|worker| worker.start(&self.control, HandedWorker::default())));
    }

    /// Completes a change of the number of workers: distributes the packets of the ports among the workers of `plan`, and
    /// ends the removed workers. `before` is the plan before the change. Returns warnings.
    pub(super) fn distribute(&self, before: &Plan, plan: &Plan, ports: &[LivePort]) -> Vec<String> {
        let (running, workers) = (before.cores.len(), plan.cores.len());
        if running == workers {
            return Vec::new();
        }
        // After the first iteration of its loop, a worker has posted receives, so the devices may pass packets to it.
        let is_running = |worker: usize| {
            let has_left = self.control.thread(worker).has_left.load(Ordering::Relaxed);
            has_left || self.control.board(worker).read().loops > 0
        };
        wait(ANSWER_TIMEOUT, || (running..workers).all(is_running));
        let mut warnings = Vec::new();
        for port in ports {
            if let Err(error) = port.device.distribute(workers) {
                warnings.push(format!("the packets of port {} do not reach all workers: {error}", port.name));
            }
        }
        (workers..running).for_each(|worker| self.control.remove(worker));
        let timeout = plan.runtime.drain_timeout.0.saturating_mul(WAITS).saturating_add(END_TIMEOUT);
        let mut left = 0;
        wait(timeout, || {
            left = self.end_removed();
            left == 0
        });
        if left > 0 {
            warnings
                .push(format!("removed workers that have not ended: {left}; each worker ends as soon as it continues"));
        }
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        warnings
    }

    /// Waits until the removed workers have ended, or the run has ended.
    pub(super) fn await_removed_workers(&self) {
        let is_over = || lock(&self.changes).is_over;
        while self.end_removed() > 0 && !is_over() {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Collects the results of the removed workers that have ended. Returns the number of removed workers that have not
    /// ended.
    fn end_removed(&self) -> usize {
        let mut running = lock(&self.workers);
        let is_removed = |worker: &WorkerHandle| self.control.is_leaving(worker.number);
        while let Some(worker) = running.pop_if(|worker| is_removed(worker) && worker.thread.is_finished()) {
            let number = worker.number;
            let result = self.note_failures(number, worker.join());
            self.control.end(number);
            if let Some(black_box) = self.control.black_box() {
                black_box.remove(number);
            }
            lock(&self.memories).truncate(number);
            lock(&self.sampler).remove_last(result);
        }
        running.iter().filter(|worker| is_removed(worker)).count()
    }

    /// Adds the errors of a removed worker to the failures of the run. Returns the results of the worker.
    fn note_failures(&self, worker: usize, result: WorkerResult) -> Option<(Outcome, Times)> {
        let (result, mut errors) = match result {
            Ok(Some((outcome, times))) => {
                let mut errors: Vec<String> = outcome.errors.iter().map(ToString::to_string).collect();
                errors.extend(outcome.report.error.clone());
                let missing = outcome.report.slots_missing;
                errors.extend((missing > 0).then(|| format!("worker {worker}: {missing} packet buffers are missing")));
                (Some((outcome, times)), errors)
            }
            Ok(None) => (None, Vec::new()),
            Err(error) => (None, vec![error.to_string()]),
        };
        errors.iter().for_each(|error| tracing::error!("{error}"));
        lock(&self.failures).append(&mut errors);
        result
    }
}

/// Waits until a condition holds, but at most `timeout`.
fn wait(timeout: Duration, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() && begin.elapsed() < timeout {
        thread::sleep(ANSWER_POLL_INTERVAL);
    }
}
