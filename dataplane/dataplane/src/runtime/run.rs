//! A run: starts the workers on their cores, and collects the report at the end.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{gettid, set_current_timer_slack};

use crate::config::{self, Source};
use crate::runtime::Assembly;
use crate::runtime::black_box::{BlackBox, BlackBoxEvent, BlackBoxWriter};
use crate::runtime::change::{Changer, Changes, PipelineVersion, RunState, digest, lock, start_tasks};
use crate::runtime::control::RunControl;
use crate::runtime::devices::PortDevice;
use crate::runtime::idle::IdlePolicy;
use crate::runtime::lanes::{self, OpenLanes};
use crate::runtime::observation::Observation;
use crate::runtime::packet_observer::PacketFilter;
use crate::runtime::ports::{LivePort, OnPortChange, PortOpener};
use crate::runtime::report::{self, Outcome};
use crate::runtime::sample::{self, LoopCounters, Sample, Scope, Times, WorkerEnd};
use crate::runtime::snapshot::{Polled, Sampler, Snapshot, SnapshotPort, SnapshotStage, WorkerState};
use crate::runtime::stopwatch::{self, Stopwatch};
use crate::runtime::watchdog::{Watchdog, WatchdogEvent};
use crate::runtime::worker::{ClosingLanes, LatencyRecorder, Worker};
use crate::runtime::worker_info::{ReportedStage, WorkerInfo};
use dataplane_control::Refusal;
use dataplane_control::observe::{Capture, TracePackets};
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::mem::{BatchMemory, PageKind};
use dataplane_core::pipeline::{Graph, PortInfo, Program, StageTable, Target, panic_message};
use dataplane_core::telemetry::{Progress, Report};
use dataplane_core::topology::pin_current_thread;
use dataplane_core::units::{CoreId, Nanos, NumaNode, Period};

/// The interval between two checks for a cancelled start.
const START_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The limits that end a run. A run can also be stopped at any time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The maximum duration of the run.
    pub duration: Option<Duration>,
    /// The maximum number of received packets, summed over all workers.
    pub packets: Option<u64>,
}

/// The thread of a worker. The result of the thread is `None` if the run did not start.
type Thread = JoinHandle<Result<Option<(Outcome, Times)>>>;

/// A running data plane.
pub struct Run {
    state: Arc<RunState>,
    workers: Vec<Thread>,
    watchdog: Mutex<Watchdog>,
    /// The thread that writes the files of the black box. `None` if the config has no black box.
    black_box: Option<BlackBoxWriter>,
}

/// The parts from which a worker is built. Each worker is built on its own thread, which allocates its memory.
struct WorkerBuilder {
    number: usize,
    workers: usize,
    core: CoreId,
    node: Option<NumaNode>,
    program: Program,
    plan: Arc<config::Plan>,
    ports: Vec<Arc<dyn PortDevice>>,
    control: Arc<RunControl>,
    clock: HostClock,
    reply: WorkerEnd,
    /// The digest of the config.
    digest: String,
}

impl Run {
    /// Opens the devices and starts the workers, each on its core. Returns when all workers are about to enter their
    /// loops.
    ///
    /// # Errors
    /// Returns an error if a device, a core or memory is not available. All threads have ended when this function
    /// returns an error.
    pub fn start(assembly: Assembly, options: Options) -> Result<Self> {
        Self::start_unless(assembly, options, || false)
    }

    /// Starts a run like [`Run::start`], but the caller can cancel the start, because the wait for peers may be long.
    /// Calls `cancelled` several times a second, and cancels the start if `cancelled` returns `true`.
    ///
    /// # Errors
    /// Returns the errors of [`Run::start`], or an error if the start was cancelled.
    pub fn start_unless(assembly: Assembly, options: Options, mut cancelled: impl FnMut() -> bool) -> Result<Self> {
        let Assembly { plan, ports: port_infos, topology, mut programs, stand_ins, resources, source, .. } = assembly;
        let written = resources.files.written().map(Path::to_owned).collect();
        let (objects, services) = resources.into_parts();
        let clock = HostClock::new();
        // Read the list of handlers at each port change, because a change of the pipeline replaces the handlers.
        let handlers = Arc::new(Mutex::new(services.port_handlers));
        let current_handlers = handlers.clone();
        let on_port_change: OnPortChange = Arc::new(move |port, change| {
            // A change of the pipeline replaces the numbers of the ports under the same lock.
            let (number, handlers) = {
                let handlers = lock(&current_handlers);
                (port.get(), handlers.iter().map(|(_, handler)| handler.clone()).collect::<Vec<_>>())
            };
            let Some(number) = number else { return };
            handlers.iter().for_each(|handler| handler(number, change));
        });
        let opener =
            PortOpener { clock: &clock, topology: &topology, stop: &services.stop, on_change: &on_port_change };
        let ports = opener.open_all(&plan, &port_infos)?;
        let devices: Vec<Arc<dyn PortDevice>> = ports.iter().map(|port| port.device.clone()).collect();
        let computes: Vec<bool> = devices.iter().map(|port| port.computes_checksums()).collect();
        let left: Vec<Vec<String>> = programs.iter_mut().map(|program| program.offload_checksums(&computes)).collect();
        // All workers have the same stages.
        if let Some(stages) = left.first().filter(|stages| !stages.is_empty()) {
            tracing::info!(
                "the devices compute the TCP and UDP checksums instead of these stages: {}",
                stages.join(", ")
            );
        }
        services.starts.into_iter().for_each(|start| start());
        // Start the tasks before the workers, because tasks such as the kernel mirror fill tables that the first packet
        // needs.
        let tasks = start_tasks(services.tasks, &services.stop)?;
        let stop = services.stop.clone();
        let settings = plan.runtime.black_box.as_ref();
        let black_box =
            settings.map(|settings| BlackBox::new(settings, &source, plan.runtime.burst as usize, programs.len()));
        let (black_box, messages) = black_box.unzip();
        let control = Arc::new(RunControl::new(programs.len(), options.packets, services.stop, black_box));
        let plan = Arc::new(plan);
        let workers = programs.len();
        let (ready, readiness) = mpsc::channel();
        let (mut threads, mut requests) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (number, program) in programs.into_iter().enumerate() {
            let core = plan.cores[number];
            let (request, reply) = sample::channel();
            requests.push(request);
            let builder = WorkerBuilder {
                number,
                workers,
                core,
                node: topology.core(core).map(|core| core.node),
                program,
                plan: plan.clone(),
                ports: devices.clone(),
                control: control.clone(),
                clock: clock.clone(),
                reply,
                digest: digest(&source),
            };
            let ready = ready.clone();
            let (go, started) = mpsc::channel();
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            match thread.spawn(move || builder.run(ready, &started)) {
                Ok(thread) => threads.push((go, thread)),
                Err(error) => {
                    let message = format!("cannot start the worker thread: {error}");
                    failure = Some(Error::Worker { worker: number, message });
                    break;
                }
            }
        }
        drop(ready);
        // This loop ends when every worker has sent its [`Ready`] message or dropped its sender. A worker that fails or
        // panics during set-up drops its sender without a message.
        let (mut ready_workers, mut is_cancelled) = (vec![], false);
        loop {
            match readiness.recv_timeout(START_POLL_INTERVAL) {
                Ok(worker) => ready_workers.push(worker),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if is_cancelled || !cancelled() => {}
                Err(RecvTimeoutError::Timeout) => {
                    is_cancelled = true;
                    control.stop();
                }
            }
        }
        if ready_workers.len() < workers || is_cancelled {
            // Other workers may still be waiting for their peers. `stop` ends that wait.
            control.stop();
            let cancelled = || {
                // The threads of the workers have ended, so all lanes are closed.
                let mut failures: Vec<String> = tasks.iter().flat_map(|(_, tasks)| tasks.failures()).collect();
                failures.extend(devices.iter().flat_map(|port| port.finish()).map(|error| error.to_string()));
                match &failures[..] {
                    [] => Error::Topology("stopped before all workers were ready".to_owned()),
                    failures => Error::Topology(failures.join("\nerror: ")),
                }
            };
            return Err(first_error(threads).or(failure).unwrap_or_else(cancelled));
        }
        if let Some(duration) = options.duration {
            let ticks = clock.timebase().ticks(Nanos(Period(duration).min(Period::MAX).as_nanos()));
            control.stop_at(dataplane_core::units::Ticks(clock.now().0.saturating_add(ticks.0)));
        }
        let black_box = control.black_box().zip(messages);
        let black_box = match black_box.map(|(black_box, messages)| BlackBoxWriter::start(black_box, messages)) {
            Some(Err(error)) => {
                control.stop();
                return Err(first_error(threads).unwrap_or(error));
            }
            started => started.and_then(Result::ok),
        };
        let start = |(go, thread): (Sender<()>, JoinHandle<_>)| {
            // The worker waits for this message, so sending cannot fail.
            let _ = go.send(());
            thread
        };
        ready_workers.sort_unstable_by_key(|(number, ..)| *number);
        let memories = ready_workers.iter().map(|(.., memory)| memory.clone()).collect();
        let asked =
            ready_workers.into_iter().zip(requests).map(|((_, info, sample, _), request)| (info, sample, request));
        let sampler = Mutex::new(Sampler::new(asked));
        let workers = threads.into_iter().map(start).collect();
        let version = PipelineVersion {
            plan,
            source,
            objects,
            tables: services.tables,
            tasks,
            handlers: lock(&handlers).clone(),
            stand_ins,
            left: left.into_iter().next().unwrap_or_default(),
        };
        let (path, watchdog) = (version.source.path(), version.plan.runtime.watchdog.0);
        let config_file = (path.as_os_str() != "-").then(|| std::path::absolute(path).ok()).flatten();
        let changes = Changes::new(&version.source);
        let keeps_received = lanes::keeps_received(&version.plan);
        let state = RunState {
            control,
            ports: Mutex::new(ports),
            removed_ports: Mutex::default(),
            on_port_change,
            stop,
            keeps_received,
            clock,
            topology,
            config_file,
            memories,
            handlers,
            sampler,
            current: Mutex::new(Arc::new(version)),
            capabilities: services.capabilities,
            written,
            failures: Mutex::default(),
            changes: Mutex::new(changes),
            is_observed: Arc::default(),
            retiring: Mutex::default(),
        };
        let watchdog = Mutex::new(Watchdog::new(watchdog, state.control.loops().count(), Instant::now()));
        Ok(Self { state: Arc::new(state), workers, watchdog, black_box })
    }

    /// Returns the plan of the run.
    pub fn plan(&self) -> Arc<config::Plan> {
        self.state.current().plan.clone()
    }

    /// Returns the config of the run.
    pub fn source(&self) -> Source {
        self.state.current().source.clone()
    }

    /// Returns the absolute path of the config file with which the run started. Returns `None` if the config came from
    /// standard input.
    pub fn config_file(&self) -> Option<&Path> {
        self.state.config_file.as_deref()
    }

    /// Returns the properties of the ports that stages can read.
    pub fn port_infos(&self) -> Vec<PortInfo> {
        self.state.current().objects.ports().to_vec()
    }

    /// Returns the tables that the stages registered, in the order of the pipeline.
    pub fn tables(&self) -> Vec<Arc<StageTable>> {
        self.state.current().tables.clone()
    }

    /// Returns a handle to change the pipeline of the run. Any thread can use the handle. [`Run::join`] does not wait
    /// until a change is complete.
    pub fn changer(&self) -> Changer {
        Changer(self.state.clone())
    }

    /// Starts to capture packets.
    ///
    /// # Errors
    /// Fails if another client captures or traces, if there is no such stage or port, or if a worker does not answer.
    pub(crate) fn capture(
        &self,
        request: &Capture,
        filter: Option<PacketFilter>,
    ) -> std::result::Result<Observation, Refusal> {
        Observation::capture(&self.state, request, filter)
    }

    /// Starts to trace packets.
    ///
    /// # Errors
    /// Fails if another client captures or traces, or if a worker does not answer.
    pub(crate) fn trace(
        &self,
        request: &TracePackets,
        filter: Option<PacketFilter>,
    ) -> std::result::Result<Observation, Refusal> {
        Observation::trace(&self.state, request, filter)
    }

    /// Returns the sums over all workers. The sums may be a few milliseconds old.
    pub fn progress(&self) -> Progress {
        self.state.control.progress()
    }

    /// Returns the number of loop iterations of each worker, or `None` for a worker that has ended. A worker publishes
    /// the number at its housekeeping, so a number that does not change for a second belongs to a worker that makes no
    /// progress.
    pub fn loops(&self) -> Vec<Option<u64>> {
        let workers = self.workers.iter().enumerate();
        let loops = workers.map(|(number, thread)| match thread.is_finished() {
            true => None,
            false => Some(self.state.control.board(number).read().loops),
        });
        loops.collect()
    }

    /// Returns a snapshot of the run, or `None` while the workers have not answered yet. Call this function repeatedly
    /// until it returns a snapshot. The first call after that starts a new request. A worker answers at its next
    /// housekeeping, and the answer takes a few microseconds. If a worker does not answer within a second, the snapshot
    /// contains the values of the worker's last answer, and an error names the worker.
    pub fn snapshot(&self) -> Option<Snapshot> {
        // If requests without the counters of the stages are in progress, the next requests have these counters.
        self.snapshot_of(Scope::All).filter(|(_, scope)| *scope == Scope::All).map(|(snapshot, _)| snapshot)
    }

    /// Returns a snapshot and its scope, like [`Run::snapshot`]. If requests with another scope are in progress, the
    /// snapshot has the scope of these requests.
    pub(crate) fn snapshot_of(&self, scope: Scope) -> Option<(Snapshot, Scope)> {
        let state = &self.state;
        let mut sampler = lock(&state.sampler);
        let Polled { outcomes, states: workers, mut errors, scope } = sampler.poll(scope)?;
        errors.extend(state.task_failures());
        errors.extend(state.control.failures());
        let (current, open_ports) = state.current_ports();
        errors.extend(open_ports.iter().filter_map(|port| port.device.error()).map(|error| error.to_string()));
        let info = sampler.info(0).cloned();
        let at_work = |(worker, late): (usize, &WorkerState)| {
            let control = &state.control;
            let stage = (*late == WorkerState::Late).then(|| control.thread(worker).marker.stage()).flatten()?;
            Some(sampler.info(worker)?.stages_info.get(stage)?.name.clone())
        };
        let at_work = workers.iter().enumerate().map(at_work).collect();
        let stalls = (0..workers.len()).map(|at| state.control.thread(at).stalls.load(Ordering::Relaxed)).collect();
        let (times, timebase, plan) = (sampler.times(), state.clock.timebase(), current.plan.clone());
        drop(sampler);
        let sends = info.as_ref().map(|info| info.sends()).unwrap_or_default();
        let is_sent = |name: &str| {
            let at = info.as_ref().and_then(|info| info.ports.iter().position(|port| port == name));
            at.and_then(|at| sends.get(at)).copied().unwrap_or_default()
        };
        let lanes = || outcomes.iter().flat_map(|worker| &worker.lanes);
        let port = |(port, live): (&config::PortPlan, &LivePort)| SnapshotPort {
            is_used: port.input || is_sent(&live.name),
            is_required: port.config.required,
            unconnected: lanes().filter(|lane| !lane.is_connected && lane.port == live.name).count() as u64,
            counters: live.device.counter_names(),
        };
        let ports = plan.ports.iter().zip(&open_ports).map(port).collect();
        let stage = |stage: &ReportedStage| SnapshotStage {
            drops: stage.drop_reasons(),
            outputs: stage.outputs.iter().filter(|(_, to)| *to != Target::Drop).map(|(name, _)| name.clone()).collect(),
        };
        let stages = info.iter().flat_map(|info| &info.stages_info).map(stage).collect();
        let stage_memory = plan.stage_memory.iter().map(|(stage, bytes)| (stage.clone(), *bytes)).collect();
        let (reports, removed) = state.port_reports();
        let report = report::report(outcomes, &times, reports, removed, errors, &timebase);
        Some((Snapshot { report, times, timebase, workers, at_work, stalls, ports, stages, stage_memory }, scope))
    }

    /// Returns `true` if the run is stopping or has stopped.
    pub fn is_stopped(&self) -> bool {
        self.state.control.is_stopped()
    }

    /// Stops the run. The workers stop receiving, finish the packets in progress, and end.
    pub fn stop(&self) {
        self.state.control.stop();
    }

    /// Returns a function that stops the run. Any thread can call the function, such as the thread that handles
    /// signals.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let control = self.state.control.clone();
        move || control.stop()
    }

    /// Returns `true` if every worker has ended.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Returns a message for each worker that has made no progress for `runtime.watchdog`, and for each such worker that
    /// makes progress again. Each message is returned once. Call this function several times per second.
    pub fn stalls(&self) -> Vec<String> {
        if self.is_stopped() {
            return Vec::new();
        }
        let control = &self.state.control;
        let thread = |worker: usize| control.thread(worker).id.load(Ordering::Relaxed);
        let mut watchdog = lock(&self.watchdog);
        let events = watchdog.check(Instant::now(), control.loops(), thread);
        let message = |event| match event {
            WatchdogEvent::Stalled(worker, waited) => {
                control.thread(worker).stalls.fetch_add(1, Ordering::Relaxed);
                let stage = self.state.stage_of(worker);
                let outside = || "outside the stages".to_owned();
                let place = stage.as_ref().map_or_else(outside, |stage| format!("in stage `{stage}`"));
                let (waited, does) = (waited.as_secs_f64(), watchdog.describe(worker, thread(worker)));
                let message = format!("worker {worker} makes no progress for {waited:.1} s: {place}; {does}");
                if let Some(black_box) = control.black_box() {
                    black_box.write_after(BlackBoxEvent::stall(worker, stage, &message));
                }
                message
            }
            WatchdogEvent::Resumed(worker, waited) => {
                format!("worker {worker} makes progress again after {:.1} s", waited.as_secs_f64())
            }
        };
        events.into_iter().map(message).collect()
    }

    /// Returns a file with the last bursts of all workers. Returns `None` if the config has no black box.
    pub(crate) fn black_box(&self) -> Option<Vec<u8>> {
        Some(self.state.control.black_box()?.file(BlackBoxEvent::request()))
    }

    /// Returns the messages about devices that were added since the last call. Examples are links that went down and
    /// queues that failed.
    pub fn events(&self) -> Vec<String> {
        let ports = lock(&self.state.ports).clone();
        let events = |port: &LivePort| {
            let name = port.name.clone();
            port.device.events().into_iter().map(move |event| format!("{name}: {event}"))
        };
        ports.iter().flat_map(events).collect()
    }

    /// Waits for the workers to end and returns the report. The report contains the errors of workers and ports. If a
    /// stage panicked, the error names the stage, its packets and the lost buffers. If a worker failed before its loop,
    /// the report contains the error of this worker, but not its counters.
    ///
    /// # Errors
    /// Returns an error if no worker has a result. The text contains all errors of workers and ports.
    pub fn join(mut self) -> Result<Report> {
        let mut outcomes = Vec::new();
        let mut errors = Vec::new();
        for (number, worker) in std::mem::take(&mut self.workers).into_iter().enumerate() {
            match worker.join() {
                Ok(Ok(outcome)) => outcomes.extend(outcome.map(|(outcome, times)| (number, outcome, times))),
                Ok(Err(error)) => errors.push(error.to_string()),
                Err(panic) => {
                    let message = format!("panicked: {}", panic_message(&*panic));
                    errors.push(Error::Worker { worker: number, message }.to_string());
                    self.state.control.stop();
                }
            }
        }
        // Wait until the files of the black box are complete.
        self.black_box = None;
        let state = &self.state;
        state.stop_tasks();
        errors.extend(state.task_failures());
        errors.extend(state.control.failures());
        let ports = lock(&state.ports).clone();
        errors.extend(ports.iter().flat_map(|port| port.device.finish()).map(|error| error.to_string()));
        if outcomes.is_empty() && !errors.is_empty() {
            return Err(Error::Topology(errors.join("\nerror: ")));
        }
        let ((ports, removed), timebase) = (state.port_reports(), state.clock.timebase());
        // If the run was stopped during a change, the workers may have different stages. The report has the stages of
        // the first worker first.
        let mut sampler = lock(&state.sampler);
        sampler.pump();
        let names = |outcome: &Outcome| outcome.stages.iter().map(|stage| stage.name.clone()).collect::<Vec<_>>();
        let all = outcomes.first().map(|(_, outcome, _)| names(outcome)).unwrap_or_default();
        let mut times = sampler.times_of(&all);
        let add = |(number, mut outcome, last): (usize, Outcome, Times)| {
            times.add(&last.for_stages(&names(&outcome), &all));
            sampler.earlier(number).into_iter().for_each(|earlier| outcome.add_earlier(earlier));
            outcome
        };
        let outcomes = outcomes.into_iter().map(add).collect();
        Ok(report::report(outcomes, &times, ports, removed, errors, &timebase))
    }
}

/// Ends the workers that are ready, and returns the first error of the workers that failed.
fn first_error(threads: Vec<(Sender<()>, Thread)>) -> Option<Error> {
    let mut error = None;
    for (number, (go, thread)) in threads.into_iter().enumerate() {
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
type Ready = (usize, Arc<WorkerInfo>, Box<Sample>, BatchMemory);

impl WorkerBuilder {
    /// The body of the worker's thread: sets up the worker, waits for the start, runs the loop, and returns the
    /// outcome.
    fn run(self, ready: Sender<Ready>, started: &Receiver<()>) -> Result<Option<(Outcome, Times)>> {
        let (clock, core, plan) = (self.clock.clone(), self.core, self.plan.clone());
        let _guard = StopOnPanic(self.control.clone());
        let stages_info = ReportedStage::of(&self.program);
        let (control, digest) = (self.control.clone(), self.digest.clone());
        // If this worker fails, the run does not start. `stop` ends the wait of the other workers for their peers.
        let set_up = self.set_up().inspect_err(|_| control.stop())?;
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
        if started.recv().is_err() {
            return Ok(None);
        }
        let panic = catch_unwind(AssertUnwindSafe(|| worker.run(&clock))).err();
        let panic = panic.map(|panic| worker.end_after_panic(&*panic, &clock));
        // A change of the pipeline may have replaced the graph and the properties of the worker.
        let info = worker.info.clone().unwrap_or(info);
        Ok(Some(collect_outcome(worker, &info, panic)))
    }

    /// Builds the worker. Returns `None` if the run was stopped during the wait for peers.
    fn set_up(self) -> Result<Option<(Worker, PageKind)>> {
        pin_current_thread(self.core)?;
        let runtime = &self.plan.runtime;
        if matches!(runtime.idle, config::Idle::Sleep | config::Idle::Adaptive) {
            // By default, the kernel ends a sleep up to 50 µs late, to wake several threads together. If this call
            // fails, sleeps are longer.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        let mut open = lanes::open(&self.plan, &self.ports, self.node, (self.number, self.workers))?;
        if !lanes::await_peers(&self.plan, &self.ports, self.number, &mut open, || self.control.is_stopped())? {
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
            timed: stopwatch::FIRST,
            stopwatch: Some(Box::new(Stopwatch::new(&self.clock, graph.counters().count()))),
            inputs,
            retiring: Vec::new(),
            closing: ClosingLanes::default(),
            configured_burst: runtime.burst as usize,
            burst: (runtime.burst as usize).min(graph.burst()),
            dropped_before: 0,
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
            stage.all_counters(&mut |name, value| *report.counters.entry(name.to_owned()).or_default() += value);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(finish)) {
            let message = format!("stage `{name}` panicked at its end: {}", panic_message(&*panic));
            outcome.errors.push(Error::Worker { worker: worker.number, message });
        }
    }
    outcome.report.slots_missing = sample.counters.out as u64;
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
