//! The threads of the workers.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::thread::{gettid, set_current_timer_slack};

use crate::config;
use crate::runtime::control::RunControl;
use crate::runtime::devices::PortDevice;
use crate::runtime::idle::IdlePolicy;
use crate::runtime::lanes::{self, OpenLanes, SharedMemory};
use crate::runtime::report::Outcome;
use crate::runtime::sample::{self, HandedWorker, LoopCounters, Sample, Scope, Times, WorkerEnd};
use crate::runtime::stopwatch::{self, Stopwatch};
use crate::runtime::worker::{ClosingLanes, LatencyRecorder, Worker};
use crate::runtime::worker_info::{ReportedStage, WorkerInfo};
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result, THREAD_REMEDY};
use dataplane_core::mem::{BatchMemory, PageKind};
use dataplane_core::pipeline::{Graph, Program, panic_message};
use dataplane_core::topology::pin_current_thread;
use dataplane_core::units::{CoreId, NumaNode};

/// The results of a worker. `None` if the worker did not start.
pub(crate) type WorkerResult = Result<Option<(Outcome, Times)>>;

/// The thread of a worker.
pub(crate) type Thread = JoinHandle<WorkerResult>;

/// The parts from which a worker is built. Each worker is built on its own thread, which allocates its memory.
pub(crate) struct WorkerBuilder {
    pub(crate) number: usize,
    pub(crate) node: Option<NumaNode>,
    pub(crate) program: Program,
    pub(crate) plan: Arc<config::Plan>,
    pub(crate) ports: Vec<Arc<dyn PortDevice>>,
    pub(crate) control: Arc<RunControl>,
    pub(crate) clock: HostClock,
    pub(crate) reply: WorkerEnd,
    /// The digest of the config.
    pub(crate) digest: String,
    /// Whether each packet buffer has room for the results of receive offloads.
    pub(crate) keeps_recv_info: bool,
    /// Whether a change adds the worker to a run. If this worker cannot be built, the run continues.
    pub(crate) joins: bool,
    /// In an upgrade, the packet memory of the worker with the same number in the old program.
    pub(crate) memory: Option<SharedMemory>,
}

/// A worker that waits for its start.
pub(crate) struct StartingWorker {
    number: usize,
    go: Sender<HandedWorker>,
    thread: Thread,
}

impl StartingWorker {
    /// Starts the loop of the worker. In an upgrade, `handed` has the parts that the worker takes over from the old
    /// program.
    pub(crate) fn start(self, control: &RunControl, handed: HandedWorker) -> WorkerHandle {
        let Self { number, go, thread } = self;
        control.begin(number);
        // The worker waits for this message, so sending cannot fail.
        let _ = go.send(handed);
        WorkerHandle { number, thread }
    }
}

/// A worker of a run.
pub(crate) struct WorkerHandle {
    pub(crate) number: usize,
    pub(crate) thread: Thread,
}

impl WorkerHandle {
    /// Waits until the worker has ended, and returns its results.
    ///
    /// # Errors
    /// Returns an error if the thread of the worker panicked.
    pub(crate) fn join(self) -> WorkerResult {
        let Self { number, thread } = self;
        thread.join().unwrap_or_else(|panic| {
            let message = format!("panicked: {}", panic_message(&*panic));
            Err(Error::Worker { worker: number, message })
        })
    }
}

/// Ends the workers that are ready, and returns the first error of the workers that failed.
pub(crate) fn first_error(workers: Vec<StartingWorker>) -> Option<Error> {
    let mut error = None;
    for StartingWorker { number, go, thread } in workers {
        drop(go);
        match thread.join() {
            Ok(Err(failed)) => error = error.or(Some(failed)),
            Ok(Ok(_)) => {}
            Err(_) => {
                let message = "panicked during set-up".to_owned();
                error = error.or(Some(Error::Worker { worker: number, message }));
            }
        }
    }
    error
}

/// Stops the run if the thread of a worker panics, because nobody serves the queues of that worker any more.
struct StopOnPanic(Arc<RunControl>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// The message that a worker sends when it is ready: the worker's number, its properties, an empty sample for
/// statistics requests, and the memory of its packet buffers.
pub(crate) type Ready = (usize, Arc<WorkerInfo>, Box<Sample>, BatchMemory);

impl WorkerBuilder {
    /// Starts the thread of the worker. The worker sends a message to `ready` when it can start.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(crate) fn spawn(self, ready: &Sender<Ready>) -> Result<StartingWorker> {
        let (number, ready) = (self.number, ready.clone());
        let (go, started) = mpsc::channel();
        let thread = thread::Builder::new().name(format!("worker-{number}"));
        match thread.spawn(move || self.run(ready, &started)) {
            Ok(thread) => Ok(StartingWorker { number, go, thread }),
            Err(error) => {
                let message = format!("cannot start the worker thread: {error}; help: {THREAD_REMEDY}");
                Err(Error::Worker { worker: number, message })
            }
        }
    }

    /// Returns the core of the worker.
    fn core(&self) -> CoreId {
        self.plan.cores[self.number]
    }

    /// Runs the worker on this thread: sets up the worker, waits for the start, runs the loop, and returns the outcome.
    fn run(self, ready: Sender<Ready>, started: &Receiver<HandedWorker>) -> WorkerResult {
        let (clock, core, plan) = (self.clock.clone(), self.core(), self.plan.clone());
        let guard = (!self.joins).then(|| StopOnPanic(self.control.clone()));
        let stages_info = ReportedStage::of(&self.program);
        let (control, digest) = (self.control.clone(), self.digest.clone());
        let joins = self.joins;
        // If a worker fails at the start of the run, the run does not start. `stop` ends the wait of the other workers
        // for their peers.
        let set_up = self.set_up().inspect_err(|_| {
            if !joins {
                control.stop()
            }
        })?;
        let Some((mut worker, pages)) = set_up else { return Ok(None) };
        let ports: Vec<String> = plan.ports.iter().map(|port| port.config.name.clone()).collect();
        let granted = sample::granted(&ports, &worker.lanes);
        let slots = worker.pool.layout().count();
        let info = Arc::new(WorkerInfo { core, slots, pages, granted, ports, stages_info, digest });
        // `start` waits until every worker has sent this message or dropped its sender.
        let sample = worker.first_sample(&info);
        let _ = ready.send((worker.number, info.clone(), sample, worker.pool.batch_memory()));
        worker.recorder = control.black_box().map(|black_box| black_box.recorder(worker.number, &info));
        worker.info = Some(info.clone());
        drop(ready);
        let Ok(handed) = started.recv() else { return Ok(None) };
        let _guard = guard.unwrap_or_else(|| StopOnPanic(control));
        let number = worker.number;
        let log = |error: &Error| tracing::error!(worker = number, "worker {number}: {error}");
        worker.take_over(&handed).inspect_err(log)?;
        let panic = catch_unwind(AssertUnwindSafe(|| worker.run(&clock))).err();
        let panic = panic.map(|panic| worker.end_after_panic(&*panic, &clock));
        // A change of the pipeline may have replaced the graph and the properties of the worker.
        let info = worker.info.clone().unwrap_or(info);
        Ok(Some(collect_outcome(worker, &info, panic)))
    }

    /// Builds the worker. Returns `None` if the run was stopped during the wait for peers.
    fn set_up(self) -> Result<Option<(Worker, PageKind)>> {
        pin_current_thread(self.core())?;
        let runtime = &self.plan.runtime;
        if matches!(runtime.idle, config::Idle::Sleep | config::Idle::Adaptive) {
            // By default, the kernel ends a sleep up to 50 µs late, to wake several threads together. If this call
            // fails, sleeps are longer.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        let place = (self.number, self.plan.cores.len());
        let (keeps, memory) = (self.keeps_recv_info, self.memory);
        let mut open = lanes::open(&self.plan, &self.ports, self.node, place, keeps, memory)?;
        // The lanes of a port connect only when all workers have a lane on the port. The other workers get their lanes
        // on added ports after this worker is ready. So a worker that joins a run does not wait here: its loop connects
        // the lanes.
        let is_stopped = || self.control.is_stopped();
        if !self.joins && !lanes::await_peers(&self.plan, &self.ports, self.number, &mut open, is_stopped)? {
            return Ok(None);
        }
        let OpenLanes { lanes, pool, pages } = open;
        let inputs = self.plan.ports.iter().enumerate().filter(|(_, port)| port.input).map(|(at, _)| at).collect();
        let mut graph = Graph::new(self.program, lanes.len(), &pool);
        let thread = self.control.thread(self.number);
        thread.id.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        graph.set_marker(thread.marker.clone());
        let worker = Worker {
            number: self.number,
            latency: LatencyRecorder::default(),
            is_paused: false,
            timed: stopwatch::FIRST,
            stopwatch: Some(Box::new(Stopwatch::new(&self.clock, graph.counters().count()))),
            inputs,
            retiring: Vec::new(),
            closing: ClosingLanes::default(),
            configured_burst: runtime.burst as usize,
            burst: (runtime.burst as usize).min(graph.burst()),
            dropped_before: 0,
            leave_by: None,
            info: None,
            lanes,
            graph,
            pool,
            idle: IdlePolicy::new(runtime.idle),
            drain_timeout: runtime.drain_timeout.0,
            control: self.control,
            counts: LoopCounters::default(),
            reply: self.reply,
            observer: None,
            recorder: None,
        };
        Ok(Some((worker, pages)))
    }
}

/// Converts the counters of a worker that has ended to the worker's part of the report. `panic` is the message about a
/// panic of the worker.
fn collect_outcome(mut worker: Worker, info: &WorkerInfo, panic: Option<String>) -> (Outcome, Times) {
    let mut sample = Sample::new(info);
    // The loop below collects the counters of the stages, because a stage may panic while it returns its counters.
    sample.scope = Scope::Health;
    let ended = worker.counts.ended;
    worker.fill(&mut sample, ended);
    let mut outcome = Outcome::new(info, &sample.counters, Scope::All);
    for ((name, stage), report) in worker.graph.stages().zip(&mut outcome.stages) {
        let finish = || {
            outcome.errors.extend(stage.finish().err());
            report.counters.clear();
            stage.counters(&mut |name: &str, value: u64| *report.counters.entry(name.to_owned()).or_default() += value);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(finish)) {
            let message = format!("stage `{name}` panicked at its end: {}", panic_message(&*panic));
            outcome.errors.push(Error::Worker { worker: worker.number, message });
        }
    }
    // Another program has taken over the posted buffers of a paused worker.
    let handed = if worker.is_paused { sample.counters.posted } else { 0 };
    outcome.report.slots_missing = sample.counters.out.saturating_sub(handed) as u64;
    // A queue that was created again may have other properties than the first queue.
    outcome.report.granted = sample::granted(&info.ports, &worker.lanes);
    outcome.report.error = worker.counts.fault.map(|(lane, error)| {
        let name = info.ports.get(lane).map_or("?", String::as_str);
        format!("worker {} stopped: port {name}: {error}", worker.number)
    });
    let number = worker.number;
    outcome.report.error = outcome.report.error.or_else(|| Some(format!("worker {number} stopped: {}", panic?)));
    (outcome, sample.times)
}
