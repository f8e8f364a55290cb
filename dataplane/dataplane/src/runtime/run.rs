//! A run: starts the workers on their cores, and collects the report at the end.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::config::{self, Source};
use crate::runtime::Assembly;
use crate::runtime::black_box::{BlackBox, BlackBoxEvent, BlackBoxWriter};
use crate::runtime::change::{Changer, Changes, PipelineVersion, RunState, digest, lock, start_tasks};
use crate::runtime::control::RunControl;
use crate::runtime::devices::PortDevice;
use crate::runtime::lanes::{self, SharedMemory};
use crate::runtime::observation::Observation;
use crate::runtime::packet_observer::PacketFilter;
use crate::runtime::ports::{Gate, LivePort, OnPortChange, PortOpener};
use crate::runtime::report::{self, Outcome};
use crate::runtime::sample::{self, HandedWorker, Scope, Times};
use crate::runtime::snapshot::{Polled, Sampler, Snapshot, SnapshotPort, SnapshotStage, WorkerState};
use crate::runtime::watchdog::{Watchdog, WatchdogEvent};
use crate::runtime::worker_info::ReportedStage;
use crate::runtime::worker_thread::{WorkerBuilder, WorkerHandle, first_error};
use dataplane_control::Refusal;
use dataplane_control::observe::{Capture, TracePackets};
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::pipeline::{PortInfo, StageTable, Target};
use dataplane_core::telemetry::{Progress, Report};
use dataplane_core::units::{Nanos, Period};

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

/// A message of a run for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEvent {
    /// The number of the worker, if the message is about a worker.
    pub worker: Option<usize>,
    /// The name of the stage, if the message is about a stage.
    pub stage: Option<String>,
    /// The name of the port, if the message is about a port.
    pub port: Option<String>,
    /// The text, which also names the worker, the stage and the port.
    pub message: String,
}

/// A function that takes over the ports of another program. Returns the parts that each worker takes over.
pub(crate) type OpenGate<'a> = &'a mut dyn FnMut(&Gate<'_>) -> Result<Vec<HandedWorker>>;

/// The parts that a new run takes over from another program.
pub(crate) struct Predecessor<'a> {
    /// The packet memory of each worker. Empty if no port shares the packet memory.
    pub(crate) memories: Vec<SharedMemory>,
    pub(crate) gate: OpenGate<'a>,
}

/// A running data plane.
pub struct Run {
    pub(super) state: Arc<RunState>,
    watchdog: Mutex<Watchdog>,
    /// The thread that writes the files of the black box. `None` if the config has no black box.
    black_box: Option<BlackBoxWriter>,
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
    pub fn start_unless(assembly: Assembly, options: Options, cancelled: impl FnMut() -> bool) -> Result<Self> {
        Self::start_after(assembly, options, cancelled, None)
    }

    /// Starts a run like [`Run::start_unless`]. With `predecessor`, the run takes over the ports of another program:
    /// this method calls the function `gate` of the predecessor after all workers are ready, and before they start to
    /// run.
    ///
    /// # Errors
    /// Returns the errors of [`Run::start_unless`], and the error of the function `gate`.
    pub(crate) fn start_after(
        assembly: Assembly,
        options: Options,
        mut cancelled: impl FnMut() -> bool,
        predecessor: Option<Predecessor<'_>>,
    ) -> Result<Self> {
        let (memories, gate) =
            predecessor.map_or((Vec::new(), None), |Predecessor { memories, gate }| (memories, Some(gate)));
        let mut memories = memories.into_iter();
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
        let (stop, takes_over) = (&services.stop, gate.is_some());
        let opener = PortOpener { clock: &clock, topology: &topology, stop, on_change: &on_port_change, takes_over };
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
        // A change may add a worker on each core.
        let most = programs.len().max(topology.cores().len());
        let keeps_recv_info = lanes::keeps_recv_info(&plan);
        let settings = plan.runtime.black_box.as_ref();
        let black_box = settings.map(|settings| BlackBox::new(settings, &source, plan.runtime.burst as usize, most));
        let (black_box, messages) = black_box.unzip();
        let control = Arc::new(RunControl::new(most, options.packets, services.stop, black_box));
        let plan = Arc::new(plan);
        let workers = programs.len();
        let digest = digest(&source);
        let (ready, readiness) = mpsc::channel();
        let (mut threads, mut requests) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (number, program) in programs.into_iter().enumerate() {
            let (request, reply) = sample::channel();
            requests.push(request);
            let builder = WorkerBuilder {
                number,
                node: topology.core(plan.cores[number]).map(|core| core.node),
                program,
                plan: plan.clone(),
                ports: devices.clone(),
                control: control.clone(),
                clock: clock.clone(),
                reply,
                digest: digest.clone(),
                keeps_recv_info,
                joins: false,
                memory: memories.next(),
            };
            match builder.spawn(&ready) {
                Ok(worker) => threads.push(worker),
                Err(error) => {
                    failure = Some(error);
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
        let mut handed = match gate.map(|gate| gate(&Gate::new(&ports))).transpose() {
            Ok(handed) => handed.unwrap_or_default().into_iter(),
            Err(error) => {
                control.stop();
                return Err(first_error(threads).unwrap_or(error));
            }
        };
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
        ready_workers.sort_unstable_by_key(|(number, ..)| *number);
        let memories = ready_workers.iter().map(|(.., memory)| memory.clone()).collect();
        let asked =
            ready_workers.into_iter().zip(requests).map(|((_, info, sample, _), request)| (info, sample, request));
        let sampler = Mutex::new(Sampler::new(asked));
        let workers =
            threads.into_iter().map(|worker| worker.start(&control, handed.next().unwrap_or_default())).collect();
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
        let state = RunState {
            control,
            ports: Mutex::new(ports),
            removed_ports: Mutex::default(),
            on_port_change,
            stop,
            keeps_recv_info,
            clock,
            topology,
            config_file,
            memories: Mutex::new(memories),
            workers: Mutex::new(workers),
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
        Ok(Self { state: Arc::new(state), watchdog, black_box })
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

    /// Returns the progress of the run: counters that are summed over all workers. The counters may be a few
    /// milliseconds old.
    pub fn progress(&self) -> Progress {
        self.state.control.progress()
    }

    /// Returns the number of loop iterations of each worker, or `None` for a worker that has ended. A worker publishes
    /// the number at its housekeeping, so a number that does not change for a second belongs to a worker that makes no
    /// progress.
    pub fn loops(&self) -> Vec<Option<u64>> {
        let loops = |worker: &WorkerHandle| match worker.thread.is_finished() {
            true => None,
            false => Some(self.state.control.board(worker.number).read().loops),
        };
        lock(&self.state.workers).iter().map(loops).collect()
    }

    /// Returns a snapshot of the run, or `None` while the workers have not answered yet. Call this function repeatedly
    /// until it returns a snapshot. The first call after that starts a new request. A worker answers at its next
    /// housekeeping, and the answer takes a few microseconds. If a worker does not answer within a second, the snapshot
    /// contains the values of the worker's last answer, and an error names the worker.
    pub fn snapshot(&self) -> Option<Snapshot> {
        // If the requests in progress do not ask for the counters of the stages, ignore their answers. The next
        // requests ask for these counters.
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
        let removed_workers = sampler.removed().clone();
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
        let report = report::report(outcomes, &removed_workers, &times, reports, removed, errors, &timebase);
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
        lock(&self.state.workers).iter().all(|worker| worker.thread.is_finished())
    }

    /// Returns a message for each worker that has made no progress for `runtime.watchdog`, and for each such worker
    /// that makes progress again. Each message is returned once. Call this function several times per second.
    pub fn stalls(&self) -> Vec<RunEvent> {
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
                    black_box.write_after(BlackBoxEvent::stall(worker, stage.clone(), &message));
                }
                RunEvent { worker: Some(worker), stage, port: None, message }
            }
            WatchdogEvent::Resumed(worker, waited) => {
                let message = format!("worker {worker} makes progress again after {:.1} s", waited.as_secs_f64());
                RunEvent { worker: Some(worker), stage: None, port: None, message }
            }
        };
        events.into_iter().map(message).collect()
    }

    /// Returns a file with the last bursts of all workers. Returns `None` if the config has no black box.
    pub(crate) fn black_box(&self) -> Option<Vec<u8>> {
        Some(self.state.control.black_box()?.file(BlackBoxEvent::request()))
    }

    /// Returns the new messages about devices, since the last call. Examples are links that went down and queues that
    /// failed.
    pub fn events(&self) -> Vec<RunEvent> {
        let ports = lock(&self.state.ports).clone();
        let events = |port: &LivePort| {
            let name = port.name.clone();
            port.device.events().into_iter().map(move |event| RunEvent {
                worker: None,
                stage: None,
                message: format!("{name}: {event}"),
                port: Some(name.clone()),
            })
        };
        ports.iter().flat_map(events).collect()
    }

    /// Waits for the workers to end and returns the report. The report contains the errors of workers and ports. If a
    /// stage panicked, the error names the stage, its packets and the lost buffers. If a worker failed before its loop,
    /// the report contains the error of this worker, but not its counters.
    ///
    /// # Errors
    /// Returns an error if no worker has a result. The text contains all errors of workers and ports.
    pub fn join(self) -> Result<Report> {
        let mut outcomes = Vec::new();
        let mut errors = Vec::new();
        let state = &self.state;
        let mut join_workers = || {
            let workers = std::mem::take(&mut *lock(&state.workers));
            for worker in workers {
                let number = worker.number;
                match worker.join() {
                    Ok(outcome) => outcomes.extend(outcome.map(|(outcome, times)| (number, outcome, times))),
                    // The thread of the worker panicked, or in an upgrade, the worker could not take over the queues of
                    // the old program.
                    Err(error) => {
                        errors.push(error.to_string());
                        state.control.stop();
                    }
                }
            }
        };
        join_workers();
        state.stop_tasks();
        // A change may have added a worker while the other workers ended. After `stop_tasks`, no change adds a worker.
        join_workers();
        // Wait until the files of the black box are complete.
        drop(self.black_box);
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
        Ok(report::report(outcomes, sampler.removed(), &times, ports, removed, errors, &timebase))
    }
}
