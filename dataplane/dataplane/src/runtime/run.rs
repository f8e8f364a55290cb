//! A run: starts the workers on their cores, and collects the report at the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::config::{self, Source};
use crate::runtime::Assembly;
use crate::runtime::control::RunControl;
use crate::runtime::devices::{self, PortDevice};
use crate::runtime::idle::IdlePolicy;
use crate::runtime::offload;
use crate::runtime::report::{self, Outcome};
use crate::runtime::sample::{self, LoopCounters, Reply, ReportedStage, Sample, Times, WorkerInfo};
use crate::runtime::snapshot::{Polled, Sampler, Snapshot};
use crate::runtime::stopwatch::{self, Stopwatch};
use crate::runtime::worker::{LatencyRecorder, Worker};
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::lane::{Lane, LaneSpec};
use dataplane_core::mem::{PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane_core::pipeline::{Graph, PortInfo, Problem, Program, Reloads, StageTable, Tasks, panic_message};
use dataplane_core::telemetry::{PortReport, Progress, Report};
use dataplane_core::topology::pin_current_thread;
use dataplane_core::units::{CoreId, Nanos, NumaNode, Period};

/// The interval between two checks for a cancelled start.
const START_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum time that a reload waits until all workers use the new data. After that time, or when the run is
/// stopped, the reload is reported as [`ReloadOutcome::Pending`].
const RELOAD_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits that end a run. A run can also be stopped at any time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The maximum duration of the run.
    pub duration: Option<Duration>,
    /// The maximum number of received packets, summed over all workers.
    pub packets: Option<u64>,
}

/// The result of a reload of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// All workers use the new data, which the text describes.
    Done(String),
    /// The new data was published, but at least one worker still uses the old data. This worker switches to the new
    /// data at its next housekeeping. The text describes the new data.
    Pending(String),
    /// The new data has these problems, and the old data stays in use.
    Rejected(Vec<Problem>),
}

/// The thread of a worker. The result of the thread is `None` if the run did not start.
type Thread = JoinHandle<Result<Option<(Outcome, Times)>>>;

/// A running data plane.
pub struct Run {
    control: Arc<RunControl>,
    ports: Vec<Arc<dyn PortDevice>>,
    plan: Arc<config::Plan>,
    workers: Vec<Thread>,
    clock: HostClock,
    tasks: Tasks,
    reloads: Arc<Mutex<Reloads>>,
    tables: Vec<StageTable>,
    port_infos: Vec<PortInfo>,
    source: Source,
    sampler: Mutex<Sampler>,
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
    reply: Reply,
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
        let Assembly { plan, ports: port_infos, topology, mut programs, services, source, .. } = assembly;
        let clock = HostClock::new();
        let ports = devices::open(&plan, &port_infos, &clock, &services.stop)?;
        let computes: Vec<bool> = ports.iter().map(|port| port.computes_checksums()).collect();
        let left: Vec<Vec<String>> = programs.iter_mut().map(|program| program.leave_checksums(&computes)).collect();
        // All workers have the same stages.
        if let Some(stages) = left.first().filter(|stages| !stages.is_empty()) {
            tracing::info!(
                "the devices compute the TCP and UDP checksums instead of these stages: {}",
                stages.join(", ")
            );
        }
        for handler in &services.port_handlers {
            for (number, port) in (0..=u8::MAX).zip(&ports) {
                let handler = handler.clone();
                port.on_change(Box::new(move |change| handler(number, change)));
            }
        }
        // Start the tasks before the workers, because tasks such as the kernel mirror fill tables that the first packet
        // needs.
        let tasks = Tasks::start(services.tasks, &services.stop)?;
        let control = Arc::new(RunControl::new(programs.len(), options.packets, services.stop));
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
                ports: ports.clone(),
                control: control.clone(),
                clock: clock.clone(),
                reply,
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
                // The threads of the workers have ended, and with them all lanes.
                let mut failures = tasks.failures();
                failures.extend(ports.iter().flat_map(|port| port.finish()).map(|error| error.to_string()));
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
        let start = |(go, thread): (Sender<()>, JoinHandle<_>)| {
            // The worker waits for this message, so sending cannot fail.
            let _ = go.send(());
            thread
        };
        ready_workers.sort_unstable_by_key(|(number, ..)| *number);
        let asked = ready_workers.into_iter().zip(requests).map(|((_, info, sample), request)| (info, sample, request));
        let sampler = Sampler::new(asked).into();
        let threads = threads.into_iter().map(start).collect();
        let reloads = Arc::new(services.reloads.into());
        let tables = services.tables;
        Ok(Self { control, ports, plan, workers: threads, clock, tasks, reloads, tables, port_infos, source, sampler })
    }

    /// Returns the plan of the run.
    pub fn plan(&self) -> &config::Plan {
        &self.plan
    }

    /// Returns the config of the run.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the properties of the ports that stages can read.
    pub fn port_infos(&self) -> &[PortInfo] {
        &self.port_infos
    }

    /// Returns the tables that the stages registered, in the order of the pipeline.
    pub fn tables(&self) -> &[StageTable] {
        &self.tables
    }

    /// Returns the sums over all workers. The sums may be a few milliseconds old.
    pub fn progress(&self) -> Progress {
        self.control.progress()
    }

    /// Returns a snapshot of the run, or `None` while the workers have not answered yet. Call this function repeatedly
    /// until it returns a snapshot. The first call after that starts a new request. A worker answers at its next
    /// housekeeping, and the answer takes a few microseconds. If a worker does not answer within a second, the snapshot
    /// contains the values of the worker's last answer, and an error names the worker.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        let Polled { outcomes, states, mut errors } = sampler.poll()?;
        errors.extend(self.tasks.failures());
        let (times, timebase) = (sampler.times().clone(), self.clock.timebase());
        let report = report::report(outcomes, &times, self.port_reports(), errors, &timebase);
        Some(Snapshot::new(report, times, timebase, states))
    }

    /// Returns the name, the device and the device counters of each port.
    fn port_reports(&self) -> Vec<PortReport> {
        let named = self.plan.ports.iter().zip(&self.ports);
        let report = |(plan, port): (&config::PortPlan, &Arc<dyn PortDevice>)| {
            let device_counters = port.counters();
            // A port that is not an input receives no packets, so it has no losses. Do not count losses on a reliable
            // connection, because the peer sends lost packets again.
            let can_lose = plan.input && plan.config.qp != config::Qp::Rc;
            let losses = PortReport::LOSSES.iter().filter(|_| can_lose).filter_map(|name| device_counters.get(*name));
            PortReport {
                name: plan.config.name.clone(),
                device: port.describe(),
                link_up: port.is_link_up(),
                rx_lost: losses.sum(),
                tx_lost: device_counters.get("tx_lost").copied().unwrap_or_default(),
                device_counters,
                clocks: port.clocks(),
                ..PortReport::default()
            }
        };
        named.map(report).collect()
    }

    /// Returns `true` if the run was stopped, so that its workers are about to end.
    pub fn is_stopped(&self) -> bool {
        self.control.is_stopped()
    }

    /// Stops the run. The workers stop receiving, finish the packets in progress, and end.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Returns a function that stops the run. Any thread can call the function, such as the thread that handles
    /// signals.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let control = self.control.clone();
        move || control.stop()
    }

    /// Returns `true` if a stage has data that can be reloaded.
    pub fn can_reload(&self) -> bool {
        !self.reloads.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Reloads the external data of stages, such as files of rules. Returns when the workers use the new data, or after
    /// a second. The workers keep running. The result has one entry for each stage with external data.
    pub fn reload(&self) -> Vec<(String, ReloadOutcome)> {
        self.reloader()()
    }

    /// Returns a function that does the same as [`Run::reload`]. Any thread can call the function. [`Run::join`] does
    /// not wait for the function.
    pub fn reloader(&self) -> impl Fn() -> Vec<(String, ReloadOutcome)> + Send + 'static {
        let (reloads, control) = (self.reloads.clone(), self.control.clone());
        move || {
            let mut reloads = reloads.lock().unwrap_or_else(PoisonError::into_inner);
            let results: Vec<_> = reloads.iter_mut().map(|(_, reload)| reload.reload()).collect();
            let begin = Instant::now();
            let settled = loop {
                let settled: Vec<bool> = reloads.iter_mut().map(|(_, reload)| reload.settle()).collect();
                if !settled.contains(&false) || begin.elapsed() >= RELOAD_TIMEOUT || control.is_stopped() {
                    break settled;
                }
                thread::sleep(Duration::from_millis(1));
            };
            let outcome = |(result, is_settled)| match (result, is_settled) {
                (Ok(now), true) => ReloadOutcome::Done(now),
                (Ok(now), false) => ReloadOutcome::Pending(now),
                (Err(problems), _) => ReloadOutcome::Rejected(problems),
            };
            let stages = reloads.iter().map(|(stage, _)| stage.clone());
            stages.zip(results.into_iter().zip(settled).map(outcome)).collect()
        }
    }

    /// Returns `true` if every worker has ended.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Returns the messages about devices that were added since the last call. Examples are links that went down and
    /// queues that failed.
    pub fn events(&self) -> Vec<String> {
        let named = self.plan.ports.iter().map(|plan| &plan.config.name).zip(&self.ports);
        named.flat_map(|(name, port)| port.events().into_iter().map(move |event| format!("{name}: {event}"))).collect()
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
                Ok(Ok(outcome)) => outcomes.extend(outcome),
                Ok(Err(error)) => errors.push(error.to_string()),
                Err(panic) => {
                    let message = format!("panicked: {}", panic_message(&*panic));
                    errors.push(Error::Worker { worker: number, message }.to_string());
                    self.control.stop();
                }
            }
        }
        self.tasks.stop();
        errors.extend(self.tasks.failures());
        errors.extend(self.ports.iter().flat_map(|port| port.finish()).map(|error| error.to_string()));
        if outcomes.is_empty() && !errors.is_empty() {
            return Err(Error::Topology(errors.join("\nerror: ")));
        }
        let (ports, timebase) = (self.port_reports(), self.clock.timebase());
        let mut times = self.sampler.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
        let add = |(outcome, last): (Outcome, Times)| {
            times.add(&last);
            outcome
        };
        let outcomes = outcomes.into_iter().map(add).collect();
        Ok(report::report(outcomes, &times, ports, errors, &timebase))
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

/// The message that a worker sends when it is ready: the worker's number, its properties, and an empty sample for
/// statistics requests.
type Ready = (usize, Arc<WorkerInfo>, Box<Sample>);

impl WorkerBuilder {
    /// The body of the worker's thread: sets up the worker, waits for the start, runs the loop, and returns the
    /// outcome.
    fn run(self, ready: Sender<Ready>, started: &Receiver<()>) -> Result<Option<(Outcome, Times)>> {
        let (clock, core, plan) = (self.clock.clone(), self.core, self.plan.clone());
        let _guard = StopOnPanic(self.control.clone());
        let stages_info = ReportedStage::of(&self.program);
        let control = self.control.clone();
        // If this worker fails, the run does not start. `stop` ends the wait of the other workers for their peers.
        let set_up = self.set_up().inspect_err(|_| control.stop())?;
        let Some((mut worker, pages)) = set_up else { return Ok(None) };
        let ports: Vec<String> = plan.ports.iter().map(|port| port.config.name.clone()).collect();
        let granted = sample::granted(&ports, &worker.lanes);
        let info =
            Arc::new(WorkerInfo { core, slots: worker.pool.layout().count(), pages, granted, ports, stages_info });
        // `start` waits until every worker has sent this message or dropped its sender.
        let sample = worker.first_sample(&info);
        let _ = ready.send((worker.number, info.clone(), sample));
        drop(ready);
        if started.recv().is_err() {
            return Ok(None);
        }
        let panic = catch_unwind(AssertUnwindSafe(|| worker.run(&clock))).err();
        let panic = panic.map(|panic| worker.end_after_panic(&*panic, &clock));
        Ok(Some(collect_outcome(worker, &info, panic)))
    }

    /// Builds the worker. Returns `None` if the run was stopped during the wait for peers.
    fn set_up(self) -> Result<Option<(Worker, PageKind)>> {
        pin_current_thread(self.core)?;
        let runtime = &self.plan.runtime;
        let room = runtime.buffer_size.saturating_sub(runtime.headroom) as usize;
        let layout = SlotLayout::new(runtime.headroom as usize, room, self.plan.buffers as usize)?;
        let spec =
            RegionSpec { bytes: layout.bytes(), pages: runtime.hugepages, strict: runtime.strict, node: self.node };
        let (region, notices) = Region::allocate(spec)?;
        for notice in notices {
            tracing::warn!("worker {}: {notice}", self.number);
        }
        let pages = region.pages();
        let mut pool = Pool::new(region, layout)?;
        if self.plan.ports.iter().any(|port| !offload::received(port).is_empty()) {
            pool = pool.keeping_received();
        }
        let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
        for (port, device) in self.plan.ports.iter().zip(&self.ports) {
            let spec = LaneSpec {
                kind: devices::kind(port.config.qp),
                queue: (self.number as u16, self.workers as u16),
                recv_depth: if port.input { port.config.rx_depth } else { 0 },
                send_depth: port.config.tx_depth,
                stamps: devices::stamping(&self.plan),
                received: offload::received(port),
                sleeps: runtime.idle == config::Idle::Sleep,
            };
            lanes.push(device.open_lane(&mut pool, spec)?);
        }
        if !self.await_peers(&mut lanes, &mut pool)? {
            return Ok(None);
        }
        let inputs = self.plan.ports.iter().enumerate().filter(|(_, port)| port.input).map(|(at, _)| at).collect();
        let graph = Graph::new(self.program, lanes.len(), &pool);
        let worker = Worker {
            number: self.number,
            latency: LatencyRecorder::default(),
            timed: stopwatch::FIRST,
            stopwatch: Some(Box::new(Stopwatch::new(&self.clock, graph.counters().count()))),
            inputs,
            burst: (runtime.burst as usize).min(graph.burst()),
            lanes,
            graph,
            pool,
            idle: match runtime.idle {
                config::Idle::Spin => IdlePolicy::Spin,
                config::Idle::Pause => IdlePolicy::Pause,
                config::Idle::Sleep => IdlePolicy::Sleep { empty: 0, armed: false },
            },
            drain_timeout: runtime.drain_timeout.0,
            control: self.control,
            counts: LoopCounters::default(),
            reply: self.reply,
        };
        Ok(Some((worker, pages)))
    }
}

impl WorkerBuilder {
    /// Waits until every lane is connected. Raw-packet lanes need no peer. Other lanes exchange parameters with their
    /// peer during the wait. Returns `false` if the run was stopped during the wait.
    fn await_peers(&self, lanes: &mut [Box<dyn Lane>], pool: &mut Pool) -> Result<bool> {
        /// The interval between two checks. No packet can arrive before the lanes are connected.
        const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(1);
        let begin = Instant::now();
        loop {
            let mut unconnected = None;
            // Advance all lanes in each round, because the peer of one lane may be another lane of this worker.
            for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| !lane.is_connected()) {
                let port = &self.plan.ports[index].config;
                lane.refill(pool).and_then(|()| lane.housekeep(pool)).map_err(|error| error.on(&port.name))?;
                unconnected = unconnected.or((!lane.is_connected()).then_some(index));
            }
            let Some(index) = unconnected else { return Ok(true) };
            if self.control.is_stopped() {
                return Ok(false);
            }
            let device = &self.ports[index];
            if begin.elapsed() > device.connect_timeout() {
                let message = device.connect_error();
                return Err(Error::Worker { worker: self.number, message });
            }
            thread::sleep(CONNECT_POLL_INTERVAL);
        }
    }
}

/// Converts the counters of a worker that has ended to the worker's part of the report. `panic` is the message about a
/// panic of the worker.
fn collect_outcome(mut worker: Worker, info: &WorkerInfo, panic: Option<String>) -> (Outcome, Times) {
    let mut sample = Sample::new(info);
    let ended = worker.counts.ended;
    worker.fill(&mut sample, ended);
    let mut outcome = Outcome::new(info, &sample.counters);
    for ((name, stage), report) in worker.graph.stages().zip(&mut outcome.stages) {
        let finish = || {
            outcome.errors.extend(stage.finish().err());
            report.counters.clear();
            stage.counters(&mut |name, value| *report.counters.entry(name.to_owned()).or_default() += value);
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
