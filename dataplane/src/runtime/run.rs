//! A run: workers on their cores from start to report.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::clock::HostClock;
use crate::config;
use crate::error::{Error, Result};
use crate::kernel::Mirror;
use crate::lane::{Lane, LaneSpec};
use crate::mem::{PageKind, Pool, Region, RegionSpec, SlotLayout};
use crate::pipeline::{Graph, Problem, Program, Reloads};
use crate::runtime::Assembly;
use crate::runtime::control::Control;
use crate::runtime::devices::{self, PortDevice};
use crate::runtime::idle::Idle;
use crate::runtime::report::{self, Outcome};
use crate::runtime::sample::{self, Facts, Reply, Sample, Shape, Times};
use crate::runtime::snapshot::{Sampler, Snapshot};
use crate::runtime::stopwatch::{self, Stopwatch};
use crate::runtime::worker::{Counts, Spans, Worker};
use crate::stages::resolution::Resolver;
use crate::telemetry::{PortReport, Progress, Report};
use crate::topology::pin_current_thread;
use crate::units::{CoreId, Nanos, NumaNode};

/// How often it is looked whether a start is still wished.
const GLANCE: Duration = Duration::from_millis(50);
/// How long it is waited until workers have taken up what was read anew. One that has not by then does so later.
const UPTAKE: Duration = Duration::from_secs(1);

/// When a run ends, beside being told to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// After this time.
    pub duration: Option<Duration>,
    /// After so many packets received, over all workers.
    pub packets: Option<u64>,
}

/// A worker's thread. It leaves nothing behind when it was never told to go.
type Thread = JoinHandle<Result<Option<(Outcome, Times)>>>;

/// A running data plane.
pub struct Run {
    control: Arc<Control>,
    ports: Vec<Arc<dyn PortDevice>>,
    plan: Arc<config::Plan>,
    workers: Vec<Thread>,
    clock: HostClock,
    /// Ends when it is dropped.
    _mirror: Option<Mirror>,
    /// The same.
    _resolver: Option<Resolver>,
    reloads: Arc<Mutex<Reloads>>,
    sampler: Mutex<Sampler>,
}

/// What a worker is made from, on its own thread.
struct Seed {
    number: usize,
    workers: usize,
    core: CoreId,
    node: Option<NumaNode>,
    program: Program,
    plan: Arc<config::Plan>,
    ports: Vec<Arc<dyn PortDevice>>,
    control: Arc<Control>,
    clock: HostClock,
    reply: Reply,
}

impl Run {
    /// Opens the devices and starts the workers, each on its core. It returns when all of them are about to enter their
    /// loops, or when one could not.
    ///
    /// # Errors
    /// A device, a core or memory is not to be had; nothing is left running.
    pub fn start(assembly: Assembly, options: Options) -> Result<Self> {
        Self::start_unless(assembly, options, || false)
    }

    /// As [`Run::start`], and asks some times in a second whether that is not wished any more: peers may be waited for
    /// long.
    ///
    /// # Errors
    /// As [`Run::start`]; or it was not wished any more.
    pub fn start_unless(assembly: Assembly, options: Options, mut cancelled: impl FnMut() -> bool) -> Result<Self> {
        let Assembly { plan, ports: infos, topology, programs, forwarding, resolution, reloads, .. } = assembly;
        let clock = HostClock::new();
        let ports = devices::open(&plan, &infos, &clock)?;
        // Before there are workers: what the kernel knows already, they know from their first packet on.
        let mirror = forwarding.map(|tables| Mirror::start(tables, &infos)).transpose()?;
        if let Some(resolution) = &resolution {
            for (number, port) in (0..=u8::MAX).zip(&ports) {
                let resolution = resolution.clone();
                port.on_change(Box::new(move || resolution.announce(number)));
            }
        }
        let resolver = resolution.map(Resolver::start).transpose()?.flatten();
        let control = Arc::new(Control::new(programs.len(), options.packets));
        let plan = Arc::new(plan);
        let workers = programs.len();
        let (ready, readiness) = mpsc::channel();
        let (mut threads, mut requests) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (number, program) in programs.into_iter().enumerate() {
            let core = plan.cores[number];
            let (request, reply) = sample::channel();
            requests.push(request);
            let seed = Seed {
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
            let (go, told) = mpsc::channel();
            let thread = thread::Builder::new().name(format!("worker-{number}"));
            match thread.spawn(move || seed.grow(ready, &told)) {
                Ok(thread) => threads.push((go, thread)),
                Err(error) => {
                    let message = format!("its thread cannot be started: {error}");
                    failure = Some(Error::Worker { worker: number, message });
                    break;
                }
            }
        }
        drop(ready);
        // A worker that cannot be set up, or panics, drops its sender without a word.
        let (mut there, mut unwanted) = (vec![], false);
        loop {
            match readiness.recv_timeout(GLANCE) {
                Ok(worker) => there.push(worker),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if unwanted || !cancelled() => {}
                Err(RecvTimeoutError::Timeout) => {
                    unwanted = true;
                    control.stop();
                }
            }
        }
        if there.len() < workers || unwanted {
            // Those that wait for their peers wait for no run any more.
            control.stop();
            let told = || Error::Topology("stopped before all workers were ready".to_owned());
            return Err(first_error(threads).or(failure).unwrap_or_else(told));
        }
        if let Some(duration) = options.duration {
            let ticks = clock.timebase().ticks(Nanos(duration.as_nanos() as u64));
            control.stop_at(crate::units::Ticks(clock.now().0.saturating_add(ticks.0)));
        }
        let tell = |(go, thread): (Sender<()>, JoinHandle<_>)| {
            // It waits for this word, so it hears it.
            let _ = go.send(());
            thread
        };
        there.sort_unstable_by_key(|(number, ..)| *number);
        let asked = there.into_iter().zip(requests).map(|((_, facts, sample), request)| (facts, sample, request));
        let sampler = Sampler::new(asked).into();
        let threads = threads.into_iter().map(tell).collect();
        let (_mirror, _resolver, reloads) = (mirror, resolver, Arc::new(reloads.into()));
        Ok(Self { control, ports, plan, workers: threads, clock, _mirror, _resolver, reloads, sampler })
    }

    /// The sums over all workers, as of a moment ago.
    pub fn progress(&self) -> Progress {
        self.control.progress()
    }

    /// What the run has done so far: the workers are asked, and asked anew once it was told. To be called until it is:
    /// they answer when they have gone some hundred times round their loops, which costs them a few microseconds. What is
    /// told of one that does not within a second is what it said before, and its silence is among the errors.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcomes, late) = sampler.poll()?;
        let (times, timebase) = (sampler.times().clone(), self.clock.timebase());
        let report = report::report(outcomes, &times, self.port_reports(), late, &timebase);
        Some(Snapshot::new(report, times, timebase))
    }

    /// Name, device and what the device says of itself.
    fn port_reports(&self) -> Vec<PortReport> {
        let named = self.plan.ports.iter().zip(&self.ports);
        let report = |(plan, port): (&config::PortPlan, &Arc<dyn PortDevice>)| {
            let device_counters = port.counters();
            // Where nothing is to be received, nothing is lost; of a reliable connection the peer sends it again.
            let can_lose = plan.input && plan.config.qp != config::Qp::Rc;
            let losses = PortReport::LOSSES.iter().filter(|_| can_lose).filter_map(|name| device_counters.get(*name));
            PortReport {
                name: plan.config.name.clone(),
                device: port.describe(),
                rx_lost: losses.sum(),
                tx_lost: device_counters.get("tx_lost").copied().unwrap_or_default(),
                device_counters,
                clocks: port.clocks(),
                ..PortReport::default()
            }
        };
        named.map(report).collect()
    }

    /// Tells the workers to stop taking packets in, send what they have, and end.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// A handle that tells the workers to stop, for a signal handler's thread.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        let control = self.control.clone();
        move || control.stop()
    }

    /// Whether a stage has something to read anew.
    pub fn can_reload(&self) -> bool {
        !self.reloads.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Has the stages read anew what they take from outside, such as files of rules, and returns when the workers have
    /// taken it up. They are not stopped. Says for each such stage, by its name, what there is now, or all that is wrong
    /// and left as it was.
    pub fn reload(&self) -> Vec<(String, Result<String, Vec<Problem>>)> {
        self.reloader()()
    }

    /// [`Run::reload`] for another thread, which the end of the run does not wait for.
    pub fn reloader(&self) -> impl Fn() -> Vec<(String, Result<String, Vec<Problem>>)> + Send + 'static {
        let (reloads, control) = (self.reloads.clone(), self.control.clone());
        move || {
            let mut reloads = reloads.lock().unwrap_or_else(PoisonError::into_inner);
            let told = reloads.iter_mut().map(|(stage, reload)| (stage.clone(), reload.reload())).collect();
            let begin = Instant::now();
            while !reloads.iter_mut().fold(true, |all, (_, reload)| all & reload.settle())
                && begin.elapsed() < UPTAKE
                && !control.is_stopped()
            {
                thread::sleep(Duration::from_millis(1));
            }
            told
        }
    }

    /// Whether every worker has ended.
    pub fn is_finished(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// What devices have to say since the last call: links that went down, queues that failed.
    pub fn events(&self) -> Vec<String> {
        let named = self.plan.ports.iter().map(|plan| &plan.config.name).zip(&self.ports);
        named.flat_map(|(name, port)| port.events().into_iter().map(move |event| format!("{name}: {event}"))).collect()
    }

    /// Waits for the workers and adds up what they did.
    ///
    /// # Errors
    /// A worker panicked: that is a bug.
    pub fn join(mut self) -> Result<Report> {
        let mut outcomes = Vec::new();
        let mut failure = None;
        for (number, worker) in std::mem::take(&mut self.workers).into_iter().enumerate() {
            match worker.join() {
                Ok(Ok(outcome)) => outcomes.extend(outcome),
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                    failure = Some(Error::Worker { worker: number, message: format!("panicked: {text}") });
                    self.control.stop();
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        let errors: Vec<String> =
            self.ports.iter().flat_map(|port| port.finish()).map(|error| error.to_string()).collect();
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

/// Not all workers are ready: ends those that are, and says why the others are not.
fn first_error(threads: Vec<(Sender<()>, Thread)>) -> Option<Error> {
    let mut error = None;
    for (number, (go, thread)) in threads.into_iter().enumerate() {
        drop(go);
        match thread.join() {
            Ok(Err(failed)) => error = error.or(Some(failed)),
            Ok(Ok(_)) => {}
            Err(_) => {
                let message = "panicked while it was set up".to_owned();
                error = error.or(Some(Error::Worker { worker: number, message }));
            }
        }
    }
    error
}

/// Stops the other workers when this one panics: nobody serves its share any more.
struct StopOnPanic(Arc<Control>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

/// What a worker says when it is ready: its number, what it is, and what it is to be asked with.
type Ready = (usize, Arc<Facts>, Box<Sample>);

impl Seed {
    /// The life of a worker's thread.
    fn grow(self, ready: Sender<Ready>, told: &Receiver<()>) -> Result<Option<(Outcome, Times)>> {
        let (clock, core, plan) = (self.clock.clone(), self.core, self.plan.clone());
        let _guard = StopOnPanic(self.control.clone());
        let shapes = Shape::of(&self.program);
        let control = self.control.clone();
        // The others need not wait for their peers any longer: there will be no run.
        let set_up = self.set_up().inspect_err(|_| control.stop())?;
        let Some((mut worker, pages)) = set_up else { return Ok(None) };
        let ports: Vec<String> = plan.ports.iter().map(|port| port.config.name.clone()).collect();
        let granted = sample::granted(&ports, &worker.lanes);
        let facts = Arc::new(Facts { core, slots: worker.pool.layout().count, pages, granted, ports, shapes });
        // The other side waits until every worker has said a word or let go of its sender.
        let sample = sample::first(&mut worker, &facts);
        let _ = ready.send((worker.number, facts.clone(), sample));
        drop(ready);
        if told.recv().is_err() {
            return Ok(None);
        }
        worker.run(&clock);
        Ok(Some(harvest(worker, &facts)))
    }

    /// `None`: there will be no run.
    fn set_up(self) -> Result<Option<(Worker, PageKind)>> {
        pin_current_thread(self.core)?;
        let runtime = &self.plan.runtime;
        let room = runtime.buffer_size.saturating_sub(runtime.headroom) as usize;
        let layout = SlotLayout::new(runtime.headroom as usize, room, self.plan.buffers as usize)?;
        let pages = match runtime.hugepages {
            config::Hugepages::Gigabyte => PageKind::Huge1G,
            config::Hugepages::Megabyte => PageKind::Huge2M,
            config::Hugepages::Transparent => PageKind::Transparent,
            config::Hugepages::None => PageKind::Normal,
        };
        let spec = RegionSpec { bytes: layout.bytes(), pages, strict: runtime.strict, node: self.node };
        let (region, notices) = Region::allocate(spec)?;
        for notice in notices {
            tracing::warn!("worker {}: {notice}", self.number);
        }
        let pages = region.pages();
        let mut pool = Pool::new(Arc::new(region), layout)?;
        let mut lanes: Vec<Box<dyn Lane>> = Vec::new();
        for (port, device) in self.plan.ports.iter().zip(&self.ports) {
            let spec = LaneSpec {
                kind: devices::kind(port.config.qp),
                queue: (self.number as u16, self.workers as u16),
                recv_depth: if port.input { port.config.rx_depth } else { 0 },
                send_depth: port.config.tx_depth,
                stamps: devices::stamping(&self.plan),
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
            latency: Spans::default(),
            timed: stopwatch::FIRST,
            stopwatch: Some(Box::new(Stopwatch::new(&self.clock, graph.counters().count()))),
            inputs,
            burst: (runtime.burst as usize).min(graph.burst()),
            lanes,
            graph,
            pool,
            idle: match runtime.idle {
                config::Idle::Spin => Idle::Spin,
                config::Idle::Pause => Idle::Pause,
                config::Idle::Sleep => Idle::Sleep { empty: 0, armed: false },
            },
            drain_timeout: runtime.drain_timeout.0,
            control: self.control,
            counts: Counts::default(),
            reply: self.reply,
        };
        Ok(Some((worker, pages)))
    }
}

impl Seed {
    /// Waits until every lane is connected. Raw packets need no peer; of the others the exchange goes on meanwhile.
    /// `false`: told to stop before that.
    fn await_peers(&self, lanes: &mut [Box<dyn Lane>], pool: &mut Pool) -> Result<bool> {
        /// Between two looks. Nothing is received yet that could be missed.
        const NAP: Duration = Duration::from_millis(1);
        let begin = Instant::now();
        loop {
            let mut alone = None;
            // All of them each time round: the peer of one may be another.
            for (index, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| !lane.is_connected()) {
                let port = &self.plan.ports[index].config;
                lane.refill(pool).and_then(|()| lane.attend(pool)).map_err(|error| error.on(&port.name))?;
                alone = alone.or((!lane.is_connected()).then_some(index));
            }
            let Some(index) = alone else { return Ok(true) };
            if self.control.is_stopped() {
                return Ok(false);
            }
            let device = &self.ports[index];
            if begin.elapsed() > device.patience() {
                let message = device.why_alone();
                return Err(Error::Worker { worker: self.number, message });
            }
            thread::sleep(NAP);
        }
    }
}

/// A worker has ended: its counters become its part of the report.
fn harvest(mut worker: Worker, facts: &Facts) -> (Outcome, Times) {
    let mut sample = Sample::new(facts);
    let ended = worker.counts.ended;
    sample.take(&mut worker, ended);
    let mut outcome = sample.counters.outcome(facts);
    for ((_, stage), report) in worker.graph.stages().zip(&mut outcome.stages) {
        outcome.errors.extend(stage.finish().err());
        stage.counters(&mut |name, value| *report.counters.entry(name.to_owned()).or_default() += value);
    }
    outcome.report.slots_missing = sample.counters.out() as u64;
    // Queues that were made anew may have been granted something else.
    outcome.report.granted = sample::granted(&facts.ports, &worker.lanes);
    outcome.report.error = worker.counts.fault.map(|(lane, error)| {
        let name = facts.ports.get(lane).map_or("?", String::as_str);
        format!("worker {} stopped: port {name}: {error}", worker.number)
    });
    (outcome, sample.times)
}
