//! Changes of a running pipeline.
//!
//! A change is a transaction. A control thread checks the new config, prepares the stages that the config adds or
//! replaces, and builds a new graph for each worker. Each worker switches to its new graph between two bursts, and
//! hands its earlier graph back. A stage whose name, kind and parameters stay the same moves to the new graph with its
//! state. A replaced stage hands its state over to the new stage
//! ([`Stage::adopt`](dataplane_core::pipeline::Stage::adopt)). If a worker does not switch in time, the other workers
//! switch back to their earlier graphs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::config::{Diagnostics, Level, Plan, PortPlan, Qp, Record, Source, StageOffload};
use crate::runtime::assemble::{RunningPipeline, assemble_change};
use crate::runtime::control::RunControl;
use crate::runtime::devices::PortDevice;
use crate::runtime::difference;
use crate::runtime::sample::{Sample, Swap, SwapTicket};
use crate::runtime::snapshot::Sampler;
use crate::runtime::stopwatch::Stopwatch;
use crate::runtime::worker_info::{ReportedStage, WorkerInfo};
use crate::runtime::{Assembly, assemble, offload};
use dataplane_control::change::{Applied, ChangePlan, ChangeState, ConfigMistake, History, HistoryRow, Operation};
use dataplane_control::{ErrorCode, Refusal};
use dataplane_core::clock::HostClock;
use dataplane_core::error::Result;
use dataplane_core::mem::{BatchMemory, Preference};
use dataplane_core::pipeline::{
    CapabilitySet, Graph, Owner, PortHandler, PortInfo, Problem, Program, Registry, Reloads, Resources, RunStop,
    StageTable, StandIn, Succession, TaskSpec, Tasks,
};
use dataplane_core::telemetry::PortReport;
use dataplane_core::topology::Topology;
use dataplane_core::units::Nanos;

/// The maximum time that a change waits until all workers use their new graphs. A worker that sleeps, or waits in a
/// stage, answers late.
const SWAP_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time that a reload waits until all workers use the new data. After that time, or when the run is
/// stopped, the reload is reported as [`ReloadOutcome::Pending`].
const RELOAD_TIMEOUT: Duration = Duration::from_secs(1);
/// The wait between two checks for the answers of the workers.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The maximum number of rows in the history. The start of the run is a row too.
const HISTORY: usize = 32;
/// The end of the reason why a change needs privileges that the sandbox has removed.
const WITHOUT_SANDBOX: &str = "; with sandbox = false in [runtime], such a change needs no restart";

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A graph for each worker, in the box that the control thread and the worker send to each other.
type Graphs = Vec<Box<Swap>>;

/// An owner, and the tasks of this owner.
pub(crate) type OwnedTasks = (Owner, Arc<Tasks>);

/// Starts tasks, grouped by their owners.
///
/// # Errors
/// Returns the error of the first task that cannot be started. The tasks that are already running end.
pub(crate) fn start_tasks(specs: Vec<TaskSpec>, stop: &RunStop) -> Result<Vec<OwnedTasks>> {
    let mut groups: Vec<(Owner, Vec<TaskSpec>)> = Vec::new();
    for spec in specs {
        match groups.iter_mut().find(|(owner, _)| *owner == spec.owner) {
            Some((_, group)) => group.push(spec),
            None => groups.push((spec.owner.clone(), vec![spec])),
        }
    }
    groups.into_iter().map(|(owner, group)| Ok((owner, Arc::new(Tasks::start(group, stop)?)))).collect()
}

/// The pipeline of a run between two changes: the config, and the objects that the stages share.
pub(crate) struct Generation {
    pub(crate) plan: Arc<Plan>,
    pub(crate) source: Source,
    pub(crate) resources: Mutex<Resources>,
    pub(crate) tables: Vec<Arc<StageTable>>,
    pub(crate) reloads: Reloads,
    pub(crate) tasks: Vec<OwnedTasks>,
    pub(crate) handlers: Vec<(Owner, PortHandler)>,
    pub(crate) stand_ins: Vec<BTreeMap<String, StandIn>>,
    /// The stages that leave checksums to the devices ([`Program::leave_checksums`]).
    pub(crate) left: Vec<String>,
}

/// The state of a run that the workers do not own.
pub(crate) struct RunState {
    pub(crate) control: Arc<RunControl>,
    pub(crate) ports: Vec<Arc<dyn PortDevice>>,
    pub(crate) clock: HostClock,
    pub(crate) topology: Topology,
    pub(crate) port_infos: Vec<PortInfo>,
    /// The absolute path of the config file with which the run started.
    pub(crate) config_file: Option<PathBuf>,
    /// The packet memory of each worker.
    pub(crate) memories: Vec<BatchMemory>,
    /// The functions to call when a port changes.
    pub(crate) handlers: Arc<Mutex<Vec<(Owner, PortHandler)>>>,
    pub(crate) sampler: Mutex<Sampler>,
    pub(crate) current: Mutex<Arc<Generation>>,
    /// The capabilities that the stages declared at the start of the run.
    pub(crate) capabilities: Vec<CapabilitySet>,
    /// The files that the config named as outputs at the start of the run.
    pub(crate) written: BTreeSet<PathBuf>,
    /// The failures of tasks that have ended.
    pub(crate) failures: Mutex<Vec<String>>,
    pub(crate) changes: Mutex<Changes>,
    /// Whether a client captures or traces packets.
    pub(crate) is_observed: Arc<AtomicBool>,
}

/// The changes of a run.
pub(crate) struct Changes {
    /// Whether a change is in progress.
    is_busy: bool,
    unconfirmed: Option<Unconfirmed>,
    history: VecDeque<(HistoryRow, Source)>,
    /// The path of the config with which the run started.
    first_path: PathBuf,
}

/// A change that reverts at its deadline, unless a client confirms the change.
struct Unconfirmed {
    number: u64,
    earlier: Arc<Generation>,
    /// The graphs that the workers used before the change.
    graphs: Graphs,
    deadline: Instant,
}

impl Changes {
    pub(crate) fn new(source: &Source) -> Self {
        let row = HistoryRow {
            number: 0,
            time_s: seconds_since_1970(),
            digest: digest(source),
            operations: 0,
            cause: "start".to_owned(),
            state: ChangeState::InForce,
        };
        let history = VecDeque::from([(row, source.clone())]);
        Self { is_busy: false, unconfirmed: None, history, first_path: source.path().to_owned() }
    }

    fn number(&self) -> u64 {
        self.history.back().map_or(0, |(row, _)| row.number)
    }

    fn add(&mut self, source: &Source, operations: usize, cause: &str, state: ChangeState) -> u64 {
        for (row, _) in &mut self.history {
            if matches!(row.state, ChangeState::InForce | ChangeState::Unconfirmed) {
                row.state = ChangeState::Replaced;
            }
        }
        let number = self.number() + 1;
        let (time_s, digest, operations) = (seconds_since_1970(), digest(source), operations as u64);
        let row = HistoryRow { number, time_s, digest, operations, cause: cause.to_owned(), state };
        self.history.push_back((row, source.clone()));
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
        number
    }

    fn set_state(&mut self, number: u64, state: ChangeState) {
        if let Some((row, _)) = self.history.iter_mut().find(|(row, _)| row.number == number) {
            row.state = state;
        }
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the digest of a config: a hash of the text of the config, and of the values that override the text.
pub(crate) fn digest(source: &Source) -> String {
    let settings: Vec<&str> = source.settings().collect();
    format!("{:016x}", BuildHasherDefault::<DefaultHasher>::default().hash_one((source.text(), settings)))
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

/// A checked change that is ready for the workers.
struct Prepared {
    operations: Vec<Operation>,
    warnings: Vec<ConfigMistake>,
    /// `None` if the change needs a restart.
    assembly: Option<Assembly>,
    left: Vec<String>,
}

/// The options of a change.
#[derive(Clone, Debug, Default)]
pub struct ApplyOptions {
    /// The digest of the config that the change starts from. `None` accepts any config.
    pub base: Option<String>,
    /// The time after which the change reverts, unless [`Changer::confirm`] is called. `None` for a change that does
    /// not revert.
    pub confirm: Option<Duration>,
    /// The origin of the change in the history.
    pub cause: &'static str,
    /// Whether the stages that continue read all their files again. If `false`, these stages read only files that have
    /// changed.
    pub reads_all_files: bool,
}

/// Changes the pipeline of a run.
#[derive(Clone)]
pub struct Changer(pub(crate) Arc<RunState>);

impl Changer {
    /// Returns a config with this text. The overrides and the folder are the overrides and the folder of the config
    /// that the run uses. `path` is the name of the new config in messages.
    pub fn source(&self, path: &str, text: &str) -> Source {
        self.0.current().source.with_file(path, text)
    }

    /// Reads the config file with which the run started. If the config came from standard input, returns the config
    /// that the run uses.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn file_of_run(&self) -> std::result::Result<Source, Refusal> {
        let current = self.0.current().source.clone();
        let Some(file) = &self.0.config_file else { return Ok(current) };
        let read = Source::read(file, &[]).map_err(|diagnostics| wrong_config(&diagnostics))?;
        // Use the path of the command line in messages, not the absolute path.
        let path = lock(&self.0.changes).first_path.clone();
        Ok(current.with_file(path, read.text()))
    }

    /// Returns the operations that would change the run to another config. Changes nothing.
    ///
    /// # Errors
    /// Fails if the config has mistakes.
    pub fn plan(&self, registry: &Registry, source: &Source) -> std::result::Result<ChangePlan, Refusal> {
        let current = self.0.current();
        let Prepared { operations, warnings, .. } = self.0.prepare(&current, registry, source)?;
        Ok(ChangePlan { base: digest(&current.source), digest: digest(source), operations, warnings })
    }

    /// Changes the run to another config. Returns when all workers use the new pipeline.
    ///
    /// # Errors
    /// Fails if the config has mistakes, if a change is in progress or unconfirmed, if the change needs a restart, or
    /// if a worker does not answer. After an error, the run uses the pipeline from before the change. Files that stages
    /// have read again ([`Setup::reloads`](dataplane_core::pipeline::Setup::reloads)) stay in use.
    pub fn apply(
        &self,
        registry: &Registry,
        source: &Source,
        options: &ApplyOptions,
    ) -> std::result::Result<Applied, Refusal> {
        let _busy = self.0.begin(options.base.as_deref())?;
        self.0.apply(registry, source, options)
    }

    /// Confirms the last change.
    ///
    /// # Errors
    /// Fails if no change waits for a confirmation.
    pub fn confirm(&self) -> std::result::Result<Applied, Refusal> {
        let unconfirmed = {
            let mut changes = lock(&self.0.changes);
            let unconfirmed = changes.unconfirmed.take().ok_or_else(nothing_unconfirmed)?;
            changes.set_state(unconfirmed.number, ChangeState::InForce);
            unconfirmed
        };
        let number = unconfirmed.number;
        self.0.free(unconfirmed.earlier, unconfirmed.graphs);
        let digest = digest(&self.0.current().source);
        Ok(Applied {
            number,
            digest,
            operations: Vec::new(),
            confirm_s: None,
            reloaded: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Reverts an unconfirmed change. Otherwise, applies the config from before the last change.
    ///
    /// # Errors
    /// Fails if there is no earlier config, or with the errors of [`Changer::apply`].
    pub fn rollback(&self, registry: &Registry) -> std::result::Result<Applied, Refusal> {
        if let Some(unconfirmed) = self.0.take_unconfirmed(|_| true) {
            return self.0.revert(unconfirmed);
        }
        let _busy = self.0.begin(None)?;
        let (number, source) = self.0.earlier_config().ok_or_else(|| {
            let help = "`dataplane history` lists the changes of the run";
            Refusal::new(ErrorCode::Failed, "there is no earlier config to roll back to", help)
        })?;
        let options = ApplyOptions { cause: "rollback", ..ApplyOptions::default() };
        let applied = self.0.apply(registry, &source, &options)?;
        lock(&self.0.changes).set_state(number, ChangeState::Reverted);
        Ok(applied)
    }

    /// Reverts an unconfirmed change whose deadline has passed. Returns `None` if there is no such change.
    pub fn revert_overdue(&self) -> Option<std::result::Result<Applied, Refusal>> {
        let now = Instant::now();
        let unconfirmed = self.0.take_unconfirmed(|unconfirmed| unconfirmed.deadline <= now)?;
        Some(self.0.revert(unconfirmed))
    }

    /// Returns `true` if the deadline of an unconfirmed change has passed.
    pub fn is_overdue(&self) -> bool {
        let changes = lock(&self.0.changes);
        changes.unconfirmed.as_ref().is_some_and(|unconfirmed| unconfirmed.deadline <= Instant::now())
    }

    /// Returns the rows of the start and of the last changes, at most 32 rows.
    pub fn history(&self) -> History {
        History { changes: lock(&self.0.changes).history.iter().map(|(row, _)| row.clone()).collect() }
    }
}

fn nothing_unconfirmed() -> Refusal {
    let help = "`dataplane history` lists the changes of the run";
    Refusal::new(ErrorCode::Failed, "no change waits for a confirmation", help)
}

/// Marks a change as in progress, until the value is dropped.
struct Busy<'a>(&'a RunState);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(&self.0.changes).is_busy = false;
    }
}

impl RunState {
    pub(crate) fn current(&self) -> Arc<Generation> {
        lock(&self.current).clone()
    }

    /// Returns a message for each task that has failed.
    pub(crate) fn task_failures(&self) -> Vec<String> {
        let mut failures = lock(&self.failures).clone();
        failures.extend(self.current().tasks.iter().flat_map(|(_, tasks)| tasks.failures()));
        failures
    }

    /// Ends all tasks.
    pub(crate) fn stop_tasks(&self) {
        let unconfirmed = lock(&self.changes).unconfirmed.take();
        let earlier = unconfirmed.map(|unconfirmed| unconfirmed.earlier);
        for generation in earlier.into_iter().chain([self.current()]) {
            generation.tasks.iter().for_each(|(_, tasks)| tasks.stop());
        }
    }

    /// Returns the name, the device and the device counters of each port.
    pub(crate) fn port_reports(&self) -> Vec<PortReport> {
        let plan = self.current().plan.clone();
        let report = |(plan, port): (&PortPlan, &Arc<dyn PortDevice>)| {
            let device_counters = port.counters();
            PortReport {
                name: plan.config.name.clone(),
                device: port.describe(),
                link_up: port.is_link_up(),
                rx_lost: rx_lost(plan, &device_counters),
                tx_lost: device_counters.get("tx_lost").copied().unwrap_or_default(),
                device_counters,
                clocks: port.clocks(),
                ..PortReport::default()
            }
        };
        plan.ports.iter().zip(&self.ports).map(report).collect()
    }

    /// Marks a change as in progress.
    fn begin(&self, base: Option<&str>) -> std::result::Result<Busy<'_>, Refusal> {
        let mut changes = lock(&self.changes);
        let busy = |message: String, help| Err(Refusal::new(ErrorCode::Busy, message, help));
        if changes.is_busy {
            return busy("another change is in progress".to_owned(), "try again when the other change is complete");
        }
        if let Some(Unconfirmed { number, deadline, .. }) = &changes.unconfirmed {
            let left = deadline.saturating_duration_since(Instant::now()).as_secs();
            let message = format!("change {number} waits for its confirmation, and reverts in {left} s");
            return busy(message, "run `dataplane confirm` or `dataplane rollback` first");
        }
        let current = digest(&self.current().source);
        if let Some(base) = base.filter(|base| *base != current) {
            let message = format!("the plan was made for the config {base}, but the program runs the config {current}");
            return Err(Refusal::new(ErrorCode::OtherBase, message, "run `dataplane plan` again"));
        }
        changes.is_busy = true;
        drop(changes);
        let busy = Busy(self);
        self.check_workers()?;
        Ok(busy)
    }

    /// Refuses a change while a worker still has to take the pipeline of an earlier change. The stages of the worker are
    /// then unknown.
    fn check_workers(&self) -> std::result::Result<(), Refusal> {
        let mut sampler = lock(&self.sampler);
        sampler.pump();
        let workers = 0..self.memories.len();
        if let Some(worker) = workers.clone().find(|worker| sampler.is_swapping(*worker)) {
            let message = format!("worker {worker} has not yet taken the pipeline of an earlier change");
            let help = "try again; if the worker never answers, a stage waits or blocks, so restart the program";
            return Err(Refusal::new(ErrorCode::Busy, message, help));
        }
        // Free the graphs that workers handed back too late.
        workers.for_each(|worker| drop(sampler.returned(worker)));
        Ok(())
    }

    fn take_unconfirmed(&self, is_wanted: impl FnOnce(&Unconfirmed) -> bool) -> Option<Unconfirmed> {
        let mut changes = lock(&self.changes);
        if !changes.unconfirmed.as_ref().is_some_and(is_wanted) {
            return None;
        }
        changes.is_busy = true;
        changes.unconfirmed.take()
    }

    /// Returns the config that [`Changer::rollback`] applies, and the number of the change that the rollback reverts.
    /// Skips reverted changes.
    fn earlier_config(&self) -> Option<(u64, Source)> {
        let changes = lock(&self.changes);
        let current = digest(&self.current().source);
        let last = changes.history.iter().rev().find(|(row, _)| row.digest == current)?;
        let before = changes.history.iter().rev().filter(|(row, _)| row.number < last.0.number);
        let (_, source) =
            before.into_iter().find(|(row, _)| row.state != ChangeState::Reverted && row.digest != current)?;
        Some((last.0.number, source.clone()))
    }

    /// Checks a config, and prepares the stages that the config adds or replaces.
    fn prepare(
        &self,
        current: &Generation,
        registry: &Registry,
        source: &Source,
    ) -> std::result::Result<Prepared, Refusal> {
        let mut renewed = BTreeSet::new();
        let resources = lock(&current.resources);
        let reloads: BTreeSet<String> = current.reloads.iter().map(|(stage, _)| stage.clone()).collect();
        let computes: Vec<bool> = self.ports.iter().map(|port| port.computes_checksums()).collect();
        loop {
            let mut diagnostics = Diagnostics::new(source);
            let running = RunningPipeline {
                plan: &current.plan,
                resources: &resources,
                reloads: &reloads,
                stand_ins: &current.stand_ins,
                renewed: &renewed,
            };
            // A change of ports or workers needs a restart, so the whole config is checked as for a start.
            let restart = difference::needs_restart(&current.plan, source, registry, &self.topology);
            let topology = self.topology.clone();
            let assembly = match restart {
                true => assemble(source, registry, topology, &mut diagnostics),
                false => assemble_change(source, registry, topology, running, &mut diagnostics),
            };
            let assembly = assembly.map_err(|error| {
                Refusal::new(ErrorCode::Failed, error.to_string(), "the program runs the same config as before")
            })?;
            let Some(mut assembly) = assembly.filter(|_| !diagnostics.has_errors()) else {
                return Err(wrong_config(&diagnostics));
            };
            let warnings = diagnostics.records().into_iter().map(mistake).collect();
            let mut operations =
                difference::operations(&current.plan, &assembly.plan, registry, (!restart).then_some(&assembly.kept));
            if restart {
                return Ok(Prepared { operations, warnings, assembly: None, left: Vec::new() });
            }
            operations.extend(self.offload_operations(&current.plan, &mut assembly));
            operations.extend(self.privilege_operations(current, &resources, &assembly));
            let left: Vec<Vec<String>> =
                assembly.programs.iter_mut().map(|program| program.leave_checksums(&computes)).collect();
            let left = left.into_iter().next().unwrap_or_default();
            // A running stage cannot switch between leaving checksums to the devices and computing checksums, so
            // prepare such a stage again.
            let changed: BTreeSet<String> = assembly
                .kept
                .iter()
                .filter(|stage| left.contains(stage) != current.left.contains(stage))
                .cloned()
                .collect();
            if changed.is_empty() {
                return Ok(Prepared { operations, warnings, assembly: Some(assembly), left });
            }
            renewed.extend(changed);
        }
    }

    /// Keeps the offloads that the program has requested from the devices, because the devices are already open.
    /// Returns an operation that needs a restart for each missing offload.
    fn offload_operations(&self, before: &Plan, assembly: &mut Assembly) -> Vec<Operation> {
        let mut wanted = assembly.plan.clone();
        wanted.ports.iter_mut().for_each(|port| {
            port.requests.clear();
            port.verifiers.clear();
        });
        if let Some(program) = assembly.programs.first() {
            offload::request(&mut wanted, program);
        }
        let mut operations = Vec::new();
        for ((port, wanted), before) in assembly.plan.ports.iter_mut().zip(&wanted.ports).zip(&before.ports) {
            port.requests.clone_from(&before.requests);
            port.verifiers.clone_from(&before.verifiers);
            // Without these offloads, the information does not exist. Without checksum offloads, the stages compute and
            // verify the checksums.
            let is_needed =
                |offload| matches!(offload, StageOffload::VlanTag | StageOffload::FlowTag | StageOffload::RssHash);
            let lacks = |offload| {
                is_needed(offload) && offload::is_requested(wanted, offload) && !offload::is_requested(before, offload)
            };
            for request in wanted.requests.iter().filter(|request| lacks(request.offload)) {
                let why = format!("the device must report {}, which is requested at the start", request.offload);
                operations.push(difference::port_operation(&port.config.name, Vec::new(), &why));
            }
        }
        operations
    }

    /// Returns an operation that needs a restart for each stage that writes a file in use, or needs a privilege that
    /// the program has given up.
    fn privilege_operations(&self, current: &Generation, running: &Resources, assembly: &Assembly) -> Vec<Operation> {
        let mut operations = Vec::new();
        let claimed = |resources: &Resources, stage: &str| {
            resources.records.get(stage).map(|record| record.written.clone()).unwrap_or_default()
        };
        for (stage, record) in &assembly.resources.records {
            if assembly.kept.contains(stage) {
                continue;
            }
            let still_written = claimed(running, stage);
            if let Some(file) = record.written.intersection(&still_written).next() {
                let why = format!("the running stage still writes {}", file.display());
                operations.push(difference::stage_restart(stage, &why, ", or name another file"));
            } else if current.plan.runtime.sandbox
                && let Some(file) = record.written.iter().find(|file| !self.written.contains(*file))
            {
                let why = format!("the program has given up the right to write {}", file.display());
                operations.push(difference::stage_restart(stage, &why, WITHOUT_SANDBOX));
            }
        }
        let kept = self.capabilities.iter().copied().collect::<CapabilitySet>();
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |held| held.effective);
        let needed = assembly.resources.services.capabilities.iter().copied().collect::<CapabilitySet>();
        if current.plan.runtime.sandbox && !(kept | held).contains(needed) {
            let added = assembly.plan.nodes.iter().map(|node| &node.name).filter(|name| !assembly.kept.contains(*name));
            let names = added.cloned().collect::<Vec<_>>().join(", ");
            let why = "the program has given up a capability that the stage needs";
            operations.push(difference::stage_restart(&names, why, WITHOUT_SANDBOX));
        }
        operations
    }

    fn apply(
        &self,
        registry: &Registry,
        source: &Source,
        options: &ApplyOptions,
    ) -> std::result::Result<Applied, Refusal> {
        let current = self.current();
        let Prepared { operations, mut warnings, assembly, left } = self.prepare(&current, registry, source)?;
        if let Some(operation) = operations.iter().find(|operation| !operation.hitless) {
            let (words, name) = (operation.operation.words(), &operation.name);
            let message = format!("the change needs a restart: {words} {name}: {}", operation.why);
            let help = "save the config and restart the program; `dataplane plan` lists all operations";
            let mut refusal = Refusal::new(ErrorCode::NeedsRestart, message, help);
            refusal.operations = operations.into();
            return Err(refusal);
        }
        let Some(mut assembly) = assembly else { return Err(ending()) };
        let due = due_files(&mut assembly, options.reads_all_files);
        // Check the files before the exchange, because a wrong file refuses the whole change.
        self.check_files(&current, &due)?;
        let (next, graphs) = self.exchange(&current, assembly, left)?;
        let mut reloaded = Vec::new();
        for (stage, outcome) in self.reload_stages(&next, |stage| due.contains(stage)) {
            match outcome {
                ReloadOutcome::Done(now) => reloaded.push(format!("{stage}: reloaded: {now}")),
                ReloadOutcome::Pending(now) => {
                    reloaded.push(format!("{stage}: published: {now} (at least one worker still uses the old data)"))
                }
                // The file has changed since the check, or the stage cannot check its file.
                ReloadOutcome::Rejected(problems) => {
                    let of = |problem| file_mistake("warning", &format!("{stage}: not reloaded: "), problem);
                    warnings.extend(problems.iter().map(of));
                }
            }
        }
        let confirm = options.confirm;
        let mut changes = lock(&self.changes);
        let state = if confirm.is_some() { ChangeState::Unconfirmed } else { ChangeState::InForce };
        let number = changes.add(source, operations.len(), options.cause, state);
        let unneeded = match confirm.and_then(|time| Instant::now().checked_add(time)) {
            Some(deadline) => {
                changes.unconfirmed = Some(Unconfirmed { number, earlier: current, graphs, deadline });
                None
            }
            None => Some((current, graphs)),
        };
        drop(changes);
        if let Some((earlier, graphs)) = unneeded {
            self.free(earlier, graphs);
        }
        let confirm_s = confirm.map(|time| time.as_secs());
        Ok(Applied { number, digest: digest(&next.source), operations, confirm_s, reloaded, warnings })
    }

    /// Checks the files of these stages.
    fn check_files(&self, current: &Generation, due: &BTreeSet<String>) -> std::result::Result<(), Refusal> {
        for (stage, reload) in current.reloads.iter().filter(|(stage, _)| due.contains(stage)) {
            let Err(problems) = lock(reload).check() else { continue };
            let message = format!("{stage}: not reloaded, the old data stays in use");
            let mut refusal = Refusal::new(ErrorCode::WrongConfig, message, "fix the file and try again");
            refusal.mistakes = problems.iter().map(|problem| file_mistake("error", "", problem)).collect();
            return Err(refusal);
        }
        Ok(())
    }

    /// Lets all stages read their files again. With `changed_only`, reads no files.
    pub(crate) fn reload_files(&self, current: &Generation, changed_only: bool) -> Vec<(String, ReloadOutcome)> {
        self.reload_stages(current, |_| !changed_only)
    }

    fn reload_stages(&self, current: &Generation, is_due: impl Fn(&String) -> bool) -> Vec<(String, ReloadOutcome)> {
        let due: Vec<_> = current.reloads.iter().filter(|(stage, _)| is_due(stage)).collect();
        let results: Vec<_> = due.iter().map(|(_, reload)| lock(reload).reload()).collect();
        let begin = Instant::now();
        let settled = loop {
            let settled: Vec<bool> = due.iter().map(|(_, reload)| lock(reload).settle()).collect();
            if !settled.contains(&false) || begin.elapsed() >= RELOAD_TIMEOUT || self.control.is_stopped() {
                break settled;
            }
            thread::sleep(Duration::from_millis(1));
        };
        let outcome = |(result, is_settled)| match (result, is_settled) {
            (Ok(now), true) => ReloadOutcome::Done(now),
            (Ok(now), false) => ReloadOutcome::Pending(now),
            (Err(problems), _) => ReloadOutcome::Rejected(problems),
        };
        let stages = due.iter().map(|(stage, _)| stage.clone());
        stages.zip(results.into_iter().zip(settled).map(outcome)).collect()
    }

    /// Starts the new tasks, and switches all workers to their new graphs. Returns the new generation and the earlier
    /// graphs.
    fn exchange(
        &self,
        current: &Arc<Generation>,
        assembly: Assembly,
        left: Vec<String>,
    ) -> std::result::Result<(Arc<Generation>, Graphs), Refusal> {
        let Assembly { plan, source, programs, stand_ins, mut resources, kept, carried, .. } = assembly;
        let services = std::mem::take(&mut resources.services);
        (resources.services.stop, resources.services.hold) = (services.stop.clone(), services.hold.clone());
        let failed = |error: dataplane_core::error::Error| {
            Refusal::new(ErrorCode::Failed, error.to_string(), "the program runs the same config as before")
        };
        let mut tasks = start_tasks(services.tasks, &services.stop).map_err(failed)?;
        let continues = |owner: &Owner| match owner {
            Owner::Stage(stage) => kept.contains(stage),
            Owner::Common(kind) => carried.contains(kind),
        };
        tasks.extend(current.tasks.iter().filter(|(owner, _)| continues(owner)).cloned());
        let mut handlers = services.port_handlers;
        handlers.extend(current.handlers.iter().filter(|(owner, _)| continues(owner)).cloned());
        let place =
            |stage: &str| plan.order.iter().position(|&at| plan.nodes.get(at).is_some_and(|node| node.name == stage));
        let mut tables = services.tables;
        tables.extend(current.tables.iter().filter(|table| kept.contains(table.stage())).cloned());
        tables.sort_by_key(|table| place(table.stage()));
        let mut reloads = services.reloads;
        reloads.extend(current.reloads.iter().filter(|(stage, _)| kept.contains(stage)).cloned());
        reloads.sort_by_key(|(stage, _)| place(stage));
        // Held packets of the earlier pipeline may stay held for the hold time of the earlier config.
        let holds = programs.iter().take(1).flat_map(Program::nodes).filter_map(|node| node.stage.contract().holds);
        let hold = holds.fold(0u64, |sum, hold| sum.saturating_add(hold.0));
        services.hold.set([Nanos(hold.max(services.hold.get().as_nanos() as u64))]);
        let swaps = programs.into_iter().enumerate().map(|(worker, program)| self.swap_of(worker, program, &kept));
        let swaps = swaps.collect::<Option<Vec<_>>>().ok_or_else(ending)?;
        let plan = Arc::new(plan);
        lock(&self.handlers).clone_from(&handlers);
        let graphs = match self.swap_all(swaps) {
            Ok(graphs) => graphs,
            Err(refusal) => {
                lock(&self.handlers).clone_from(&current.handlers);
                return Err(refusal);
            }
        };
        let resources = Mutex::new(resources);
        let next = Arc::new(Generation { plan, source, resources, tables, reloads, tasks, handlers, stand_ins, left });
        *lock(&self.current) = next.clone();
        Ok((next, graphs))
    }

    /// Builds the new graph of a worker. Returns `None` if there is no such worker.
    fn swap_of(&self, worker: usize, program: Program, kept: &BTreeSet<String>) -> Option<Box<Swap>> {
        let before = lock(&self.sampler).info(worker)?.clone();
        let core = self.topology.core(before.core);
        let _near = core.filter(|_| self.topology.nodes().len() > 1).and_then(|core| Preference::new(core.node));
        let info = Arc::new(WorkerInfo {
            core: before.core,
            slots: before.slots,
            pages: before.pages,
            granted: before.granted.clone(),
            ports: before.ports.clone(),
            stages_info: ReportedStage::of(&program),
        });
        let successions = info.stages_info.iter().enumerate().filter_map(|(later, stage)| {
            let is_same = |earlier: &ReportedStage| (&earlier.name, &earlier.kind) == (&stage.name, &stage.kind);
            let earlier = before.stages_info.iter().position(is_same)?;
            Some(Succession { earlier, later, moves: kept.contains(&stage.name) })
        });
        let successions = successions.collect();
        let stages = info.stages_info.len();
        let mut sample = Box::new(Sample::new(&info));
        sample.times.touch();
        Some(Box::new(Swap {
            graph: Graph::within(program, info.ports.len(), self.memories.get(worker)?),
            stopwatch: Some(Box::new(Stopwatch::new(&self.clock, stages))),
            next_info: info.clone(),
            info,
            successions,
            sample,
            ticket: Arc::default(),
        }))
    }

    /// Switches all workers to their new graphs. Returns the earlier graphs. If a worker does not answer in time,
    /// switches the other workers back to their earlier graphs.
    ///
    /// # Errors
    /// Fails if a worker does not answer, or if the run is stopping.
    fn swap_all(&self, swaps: Graphs) -> std::result::Result<Graphs, Refusal> {
        let workers = swaps.len();
        let mut missing = Vec::new();
        {
            let mut sampler = lock(&self.sampler);
            for (worker, mut swap) in swaps.into_iter().enumerate() {
                sampler.expect(worker, &mut swap);
                if sampler.swap(worker, swap).is_err() {
                    missing.push(worker);
                    break;
                }
            }
        }
        if missing.is_empty() {
            self.wait_for_swaps(workers);
        }
        let mut graphs: Vec<(usize, Box<Swap>)> = Vec::new();
        {
            let mut sampler = lock(&self.sampler);
            missing.extend((0..workers).filter(|worker| sampler.is_swapping(*worker) && sampler.cancel(*worker)));
        }
        // If the exchange of a worker could not be cancelled, the worker is switching to its new graph. Wait for its
        // answer.
        self.wait_for_swaps(workers);
        {
            let mut sampler = lock(&self.sampler);
            graphs.extend((0..workers).filter_map(|worker| Some((worker, sampler.returned(worker)?))));
        }
        if graphs.len() == workers {
            return Ok(graphs.into_iter().map(|(_, graph)| graph).collect());
        }
        self.swap_back(graphs);
        let is_over = (0..workers).any(|worker| lock(&self.sampler).is_over(worker));
        match missing.first().filter(|_| !is_over && !self.control.is_stopped()) {
            Some(worker) => {
                let message = format!("worker {worker} does not answer, so nothing has changed");
                let help = "try again; if the worker never answers, a stage waits or blocks, so restart the program";
                Err(Refusal::new(ErrorCode::Failed, message, help))
            }
            None => Err(ending()),
        }
    }

    /// Waits until all workers have answered, but at most [`SWAP_TIMEOUT`].
    fn wait_for_swaps(&self, workers: usize) {
        let begin = Instant::now();
        loop {
            let mut sampler = lock(&self.sampler);
            sampler.pump();
            let is_open = (0..workers).any(|worker| sampler.is_swapping(worker));
            drop(sampler);
            if !is_open || begin.elapsed() >= SWAP_TIMEOUT {
                return;
            }
            thread::sleep(ANSWER_POLL_INTERVAL);
        }
    }

    /// Switches workers back to their earlier graphs. Frees the graphs that the workers return.
    fn swap_back(&self, graphs: Vec<(usize, Box<Swap>)>) {
        let workers = self.memories.len();
        {
            let mut sampler = lock(&self.sampler);
            for (worker, mut swap) in graphs {
                swap.successions.iter_mut().for_each(|succession| *succession = succession.reversed());
                swap.next_info = swap.info.clone();
                swap.sample = Box::new(Sample::new(&swap.info));
                swap.sample.times.touch();
                swap.ticket = Arc::new(SwapTicket::default());
                sampler.expect(worker, &mut swap);
                // The ring has room. A worker that has ended needs no graph, so the error is ignored.
                let _ = sampler.swap(worker, swap);
            }
        }
        self.wait_for_swaps(workers);
        let mut sampler = lock(&self.sampler);
        for worker in 0..workers {
            if sampler.is_swapping(worker) && !sampler.is_over(worker) {
                tracing::error!(
                    "worker {worker} does not answer, so it still uses the pipeline of the reverted change; the worker \
                     takes the earlier pipeline as soon as its current stage ends"
                );
            }
            drop(sampler.returned(worker));
        }
    }

    /// Reverts an unconfirmed change.
    fn revert(&self, unconfirmed: Unconfirmed) -> std::result::Result<Applied, Refusal> {
        let _busy = Busy(self);
        let Unconfirmed { number, earlier, graphs, .. } = unconfirmed;
        lock(&self.handlers).clone_from(&earlier.handlers);
        self.swap_back(graphs.into_iter().enumerate().collect());
        let reverted = std::mem::replace(&mut *lock(&self.current), earlier.clone());
        self.free(reverted, Graphs::new());
        let mut changes = lock(&self.changes);
        let change = changes.add(&earlier.source, 0, "revert", ChangeState::InForce);
        changes.set_state(number, ChangeState::Reverted);
        let digest = digest(&earlier.source);
        Ok(Applied {
            number: change,
            digest,
            operations: Vec::new(),
            confirm_s: None,
            reloaded: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Frees an earlier pipeline. Ends the tasks that do not continue in the current pipeline, and stores their
    /// failures.
    fn free(&self, earlier: Arc<Generation>, graphs: Graphs) {
        drop(graphs);
        let current = self.current();
        let continues = |tasks: &Arc<Tasks>| current.tasks.iter().any(|(_, kept)| Arc::ptr_eq(kept, tasks));
        for (_, tasks) in earlier.tasks.iter().filter(|(_, tasks)| !continues(tasks)) {
            tasks.stop();
            lock(&self.failures).extend(tasks.failures());
        }
    }
}

/// Returns the packets that a port has lost before the pipeline, from the counters of its device.
fn rx_lost(plan: &PortPlan, counters: &BTreeMap<String, u64>) -> u64 {
    // A port that is not an input receives no packets, so it has no losses. Do not count losses on a reliable
    // connection, because the peer sends lost packets again.
    let can_lose = plan.input && plan.config.qp != Qp::Rc;
    PortReport::LOSSES.iter().filter(|_| can_lose).filter_map(|name| counters.get(*name)).sum()
}

/// Returns the stages that continue and whose files must be read again: all with `all`, otherwise only if a file has
/// changed.
fn due_files(assembly: &mut Assembly, all: bool) -> BTreeSet<String> {
    let Assembly { kept, resources, .. } = assembly;
    let records = &mut resources.records;
    let is_changed = |stage: &String| records.get(stage).is_some_and(|record| record.changed_file().is_some());
    let due: BTreeSet<String> = kept.iter().filter(|stage| all || is_changed(stage)).cloned().collect();
    // A later change of a file is then noticed, even if it happens while the stages read their files.
    records.iter_mut().filter(|(stage, _)| due.contains(*stage)).for_each(|(_, record)| record.renew_files());
    due
}

/// Returns the record of a problem in the file of a stage.
fn file_mistake(level: &str, stage: &str, problem: &Problem) -> ConfigMistake {
    ConfigMistake {
        level: level.to_owned(),
        file: problem.key.clone(),
        line: 0,
        column: 0,
        message: format!("{stage}{}", problem.message),
        help: problem.help.clone(),
    }
}

/// Returns the refusal of a config with mistakes.
fn wrong_config(diagnostics: &Diagnostics) -> Refusal {
    let mistakes: Vec<ConfigMistake> = diagnostics.records().into_iter().map(mistake).collect();
    let errors = mistakes.iter().filter(|mistake| mistake.level == "error").count();
    let words = if errors == 1 { "1 mistake".to_owned() } else { format!("{errors} mistakes") };
    let message = format!("{words} in {}", diagnostics.source().path().display());
    let mut refusal = Refusal::new(ErrorCode::WrongConfig, message, "fix the config; nothing has changed");
    refusal.mistakes = mistakes.into();
    refusal
}

fn ending() -> Refusal {
    Refusal::new(ErrorCode::Failed, "the run is stopping", "start the program with the new config")
}

fn mistake(record: Record) -> ConfigMistake {
    let Record { level, file, line, column, message, help } = record;
    let level = if level == Level::Error { "error" } else { "warning" };
    ConfigMistake { level: level.to_owned(), file, line, column, message, help }
}

#[cfg(feature = "ibverbs")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::raw::tests::plan;

    #[test]
    fn packets_without_a_receive_are_lost_unless_the_peer_sends_them_again() {
        let counters = BTreeMap::from([("rx_out_of_buffer".to_owned(), 16), ("rx_unmatched".to_owned(), 5)]);
        let connection = "connection = { listen = '127.0.0.1:1' }";
        let lost = |keys: &str, input| rx_lost(&plan(keys, input), &counters);
        assert_eq!(lost("", true), 16);
        assert_eq!(lost("", false), 0);
        assert_eq!(lost(&format!("qp = 'ud'\n{connection}"), true), 16);
        assert_eq!(lost(&format!("qp = 'rc'\n{connection}"), true), 0);
        assert_eq!(rx_lost(&plan("", true), &BTreeMap::new()), 0);
    }
}
