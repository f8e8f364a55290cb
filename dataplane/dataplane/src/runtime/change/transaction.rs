//! Changes as transactions: apply, confirm, revert and roll back.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::exchange::{Exchange, Exchanged, ReturnedGraphs};
use super::history::digest;
use super::prepare::{PreparedChange, Reverts};
use super::refusal;
use super::retire::ClosingPort;
use super::state::{Busy, Changes, POLL_INTERVAL, PipelineVersion, Retiring, RunState, Unconfirmed, lock};
use super::upgrade::UpgradeHold;
use crate::config::Source;
use crate::runtime::ports::{ChangedPorts, LivePort};
use crate::runtime::{Assembly, difference};
use dataplane_control::change::{Applied, ChangePlan, ChangeState, ConfigMistake, History, Operation};
use dataplane_control::{ErrorCode, Refusal};
use dataplane_core::pipeline::{Registry, panic_message};

/// The time after which the program tries again to revert a change.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum time that a change waits for the ports that earlier changes have removed. The wait ends when these ports
/// are closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Whether the stages that the change does not replace also read all their files again. If `false`, these stages
    /// read only files that have changed.
    pub reads_all_files: bool,
}

/// Changes the pipeline of a run.
#[derive(Clone)]
pub struct Changer(pub(crate) Arc<RunState>);

impl Changer {
    /// Returns a config with this text. The new config takes its overrides, and the folder for relative paths, from the
    /// config that the run uses. `path` is the name of the new config in messages.
    pub fn source(&self, path: &str, text: &str) -> Source {
        self.0.current().source.with_file(path, text)
    }

    /// Reads the config file with which the run started. If the config came from standard input, returns the config
    /// that the run uses.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn file_of_run(&self) -> Result<Source, Refusal> {
        let current = self.0.current().source.clone();
        let Some(file) = &self.0.config_file else { return Ok(current) };
        let read = Source::read(file, &[]).map_err(|diagnostics| refusal::wrong_config(&diagnostics))?;
        // Use the path of the command line in messages, not the absolute path.
        let path = lock(&self.0.changes).first_path.clone();
        Ok(current.with_file(path, read.text()))
    }

    /// Returns the operations that would change the run to another config. Changes nothing.
    ///
    /// # Errors
    /// Fails if the config has mistakes.
    pub fn plan(&self, registry: &Registry, source: &Source) -> Result<ChangePlan, Refusal> {
        let current = self.0.current();
        let PreparedChange { operations, warnings, .. } = self.0.prepare(&current, registry, source, false, None)?;
        Ok(ChangePlan { base: digest(&current.source), digest: digest(source), operations, warnings })
    }

    /// Changes the run to another config. Returns when all workers use the new pipeline. If a worker stops answering
    /// after the switch has begun, returns after five seconds with a warning, and the worker switches as soon as it
    /// continues. If the config and all files are the same as before, changes nothing.
    ///
    /// # Errors
    /// Fails if the config has mistakes, if a change is in progress or unconfirmed, if the change needs a restart, or
    /// if a worker does not answer before the switch begins. After an error, the run uses the pipeline from before the
    /// change.
    pub fn apply(&self, registry: &Registry, source: &Source, options: &ApplyOptions) -> Result<Applied, Refusal> {
        let state = &self.0;
        let _busy = state.occupy(|changes| {
            check_confirmed(changes)?;
            let current = digest(&state.current().source);
            match &options.base {
                Some(base) if *base != current => {
                    let message =
                        format!("the plan was made for the config {base}, but the program runs the config {current}");
                    Err(Refusal::new(ErrorCode::OtherBase, message, "run `dataplane plan` again"))
                }
                _ => Ok(()),
            }
        })?;
        state.apply(registry, source, options, None)
    }

    /// Confirms the last change.
    ///
    /// # Errors
    /// Fails if no change waits for a confirmation, or if the change is being reverted.
    pub fn confirm(&self) -> Result<Applied, Refusal> {
        let state = &self.0;
        let _busy = state.occupy(|changes| match changes.unconfirmed {
            Some(_) => Ok(()),
            None => Err(refusal::nothing_unconfirmed()),
        })?;
        let unconfirmed = {
            let mut changes = lock(&state.changes);
            let unconfirmed = changes.unconfirmed.take().ok_or_else(refusal::nothing_unconfirmed)?;
            changes.history.set_state(unconfirmed.number, ChangeState::InForce);
            unconfirmed
        };
        let current = state.current();
        state.retire(unconfirmed.earlier, &current, ReturnedGraphs::default(), Vec::new(), false);
        Ok(applied(unconfirmed.number, &current.source))
    }

    /// Reverts the unconfirmed change. If no change is unconfirmed, applies the config from before the last change.
    ///
    /// # Errors
    /// Fails if there is no earlier config, or with the errors of [`Changer::apply`].
    pub fn rollback(&self, registry: &Registry) -> Result<Applied, Refusal> {
        let state = &self.0;
        let _busy = state.occupy(|_| Ok(()))?;
        let unconfirmed = lock(&state.changes).unconfirmed.take();
        if let Some(unconfirmed) = unconfirmed {
            return state.revert(registry, unconfirmed);
        }
        let (number, restores, source) = lock(&state.changes).history.before_last()?;
        let options = ApplyOptions { cause: "rollback", ..ApplyOptions::default() };
        let applied = state.apply(registry, &source, &options, Some(restores))?;
        lock(&state.changes).history.set_state(number, ChangeState::Reverted);
        Ok(applied)
    }

    /// Reverts an unconfirmed change whose deadline has passed. Returns `None` if there is no such change, or if a
    /// client is just confirming or reverting the change.
    pub fn revert_overdue(&self, registry: &Registry) -> Option<Result<Applied, Refusal>> {
        let _busy = self.0.occupy(|_| Ok(())).ok()?;
        let is_overdue = |unconfirmed: &mut Unconfirmed| unconfirmed.deadline <= Instant::now();
        let unconfirmed = lock(&self.0.changes).unconfirmed.take_if(is_overdue)?;
        Some(self.0.revert(registry, unconfirmed))
    }

    /// Returns `true` if the deadline of an unconfirmed change has passed.
    pub fn is_overdue(&self) -> bool {
        let changes = lock(&self.0.changes);
        changes.unconfirmed.as_ref().is_some_and(|unconfirmed| unconfirmed.deadline <= Instant::now())
    }

    /// Returns `true` if a change waits for its confirmation.
    pub fn is_unconfirmed(&self) -> bool {
        lock(&self.0.changes).unconfirmed.is_some()
    }

    /// Refuses changes until the returned value is dropped, so that another program can take over the run. `client`
    /// describes the client of the upgrade in these refusals.
    ///
    /// # Errors
    /// Fails if a change is in progress or unconfirmed, if a removed port is still closing, if another upgrade is in
    /// progress, if the run is stopping, or if another program cannot take over the run.
    pub(crate) fn begin_upgrade(&self, client: String) -> Result<UpgradeHold, Refusal> {
        let state = &self.0;
        let busy = state.occupy(check_confirmed)?;
        if state.control.is_stopped() {
            return Err(refusal::ending());
        }
        // A closing port still has buffers of the packet memory. The other program would use these buffers.
        if state.closes_ports() {
            return Err(refusal::busy("a removed port is still closing", "try again"));
        }
        state.check_upgrade()?;
        Ok(UpgradeHold::new(busy, client))
    }

    /// Returns the history: a row for the start of the run, and rows for the last changes, at most 32 rows in total.
    pub fn history(&self) -> History {
        History { changes: lock(&self.0.changes).history.rows() }
    }
}

/// Returns the result of a change that carried out no operation.
fn applied(number: u64, source: &Source) -> Applied {
    let digest = digest(source);
    Applied { number, digest, operations: Vec::new(), confirm_s: None, warnings: Vec::new() }
}

/// The result of a switch to a new pipeline.
struct Switched {
    next: Arc<PipelineVersion>,
    graphs: ReturnedGraphs,
    /// The ports after the change. `None` if the ports stay the same.
    ports: Option<Vec<LivePort>>,
    closing: Vec<ClosingPort>,
    /// The warnings about workers that have not switched yet, and about the distribution of the packets.
    warnings: Vec<ConfigMistake>,
}

impl RunState {
    /// Marks a change as in progress, if `check` accepts the state of the changes.
    fn occupy(self: &Arc<Self>, check: impl FnOnce(&Changes) -> Result<(), Refusal>) -> Result<Busy, Refusal> {
        let mut changes = lock(&self.changes);
        check(&changes)?;
        if changes.is_busy {
            let upgrader = changes.upgrader.as_ref().map(|client| format!(": an upgrade by {client}"));
            let message = format!("another change or an upgrade is in progress{}", upgrader.unwrap_or_default());
            return Err(refusal::busy(message, "try again when it is complete"));
        }
        changes.is_busy = true;
        Ok(Busy { state: self.clone() })
    }

    /// Changes the run to another config. If this change restores the config of an earlier change, `restores` is the
    /// number of the earlier change.
    fn apply(
        self: &Arc<Self>,
        registry: &Registry,
        source: &Source,
        options: &ApplyOptions,
        restores: Option<u64>,
    ) -> Result<Applied, Refusal> {
        let current = self.current();
        let prepared = self.prepare(&current, registry, source, options.reads_all_files, None)?;
        let PreparedChange { operations, mut warnings, assembly, left } = prepared;
        if operations.is_empty() && digest(source) == digest(&current.source) {
            let number = lock(&self.changes).history.number();
            return Ok(Applied { warnings, ..applied(number, source) });
        }
        let restart = operations.iter().find(|operation| !operation.hitless);
        let Some((assembly, kept)) = assembly.filter(|_| restart.is_none()) else {
            return Err(needs_restart(operations));
        };
        self.await_closed_ports(&current, &assembly)?;
        self.await_files(&assembly, &kept)?;
        let switched = self.switch(&current, None, &kept, assembly, left)?;
        let Switched { next, graphs, ports, closing, warnings: of_workers } = switched;
        warnings.extend(of_workers);
        let removed = closing.iter().map(ClosingPort::port).collect();
        let deadline = options.confirm.map(|time| Instant::now().checked_add(time).unwrap_or_else(far));
        let number = self.install(&next, ports, removed, |changes| {
            let before = changes.history.number();
            let state = if deadline.is_some() { ChangeState::Unconfirmed } else { ChangeState::InForce };
            let number = changes.history.add(source, operations.len(), options.cause, state, restores);
            changes.unconfirmed = deadline.map(|deadline| {
                let earlier = current.clone();
                Unconfirmed { number, restores: before, earlier, kept, deadline }
            });
            number
        });
        self.retire(current, &next, graphs, closing, deadline.is_some());
        let confirm_s = options.confirm.map(|time| time.as_secs());
        Ok(Applied { operations, confirm_s, warnings, ..applied(number, source) })
    }

    /// Opens the added ports, moves and builds workers, switches all workers to the new pipeline, and distributes the
    /// packets among the workers. After this call, the caller must install the new version ([`RunState::install`]).
    ///
    /// For a revert, `held` is the pipeline from before the reverted change. For any other change, `held` is `None`.
    fn switch(
        &self,
        current: &PipelineVersion,
        held: Option<&PipelineVersion>,
        kept: &BTreeSet<String>,
        mut assembly: Assembly,
        left: Vec<String>,
    ) -> Result<Switched, Refusal> {
        let before = lock(&self.ports).clone();
        let mut ports = self.open_ports(current, &assembly)?;
        let moved = self.move_workers(&assembly.plan)?;
        let after = ports.as_ref().map_or(&before, |ports| &ports.ports);
        let added = self.build_workers(current, &mut assembly, after)?;
        let must_answer = held.is_none();
        let exchange = Exchange { current, held, kept, must_answer, ports: ports.as_mut(), added };
        let Exchanged { next, graphs, late } = self.exchange(exchange, assembly, left)?;
        moved.keep();
        let mut warnings: Vec<ConfigMistake> = late.into_iter().map(late_worker).collect();
        // Redistribute the packets of removed ports too. A removed port stays open until it is retired, and would
        // otherwise still pass packets to removed workers.
        warnings.extend(self.distribute(&current.plan, &next.plan, &before).into_iter().map(warning));
        let (ports, removed) = ports.map(|ports| (ports.ports, ports.removed)).unzip();
        let closing = ClosingPort::of(&current.plan, removed.unwrap_or_default());
        Ok(Switched { next, graphs, ports, closing, warnings })
    }

    /// Waits until all ports that earlier changes removed are closed, for two reasons:
    ///
    /// - The change may add one of these ports again.
    /// - The thread that closes the ports finds the memory and the lanes of a worker by the number of the worker. No
    ///   other worker may get this number before the ports are closed.
    ///
    /// Returns at once if the ports and the number of workers stay the same.
    fn await_closed_ports(&self, current: &PipelineVersion, assembly: &Assembly) -> Result<(), Refusal> {
        let has_same_workers = current.plan.cores.len() == assembly.plan.cores.len();
        if difference::has_same_ports(&current.plan, &assembly.plan) && has_same_workers {
            return Ok(());
        }
        let begin = Instant::now();
        while self.closes_ports() {
            if begin.elapsed() >= CLOSE_TIMEOUT {
                let message = "a port that an earlier change removed is still closing";
                return Err(refusal::busy(message, "try again"));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns `true` if a port that an earlier change removed is not closed yet.
    fn closes_ports(&self) -> bool {
        let is_closing = |retiring: &Retiring| retiring.closes_ports && !retiring.thread.is_finished();
        lock(&self.retiring).iter().any(is_closing)
    }

    /// Opens the ports that a change adds, and their lanes. Returns `None` if the ports stay the same.
    fn open_ports(&self, current: &PipelineVersion, assembly: &Assembly) -> Result<Option<ChangedPorts>, Refusal> {
        if difference::has_same_ports(&current.plan, &assembly.plan) {
            return Ok(None);
        }
        let opener = self.port_opener();
        let (before, memories) = (lock(&self.ports).clone(), lock(&self.memories).clone());
        let opened = opener.open_added(&assembly.plan, &assembly.ports, &before, &memories);
        opened.map(Some).map_err(|error| refusal::not_opened(&error))
    }

    /// Reverts an unconfirmed change. If the revert fails or a stage panics, the change stays unconfirmed, and the program
    /// tries the revert again after [`RETRY_INTERVAL`].
    fn revert(self: &Arc<Self>, registry: &Registry, unconfirmed: Unconfirmed) -> Result<Applied, Refusal> {
        // The preparation of a stage may panic.
        let reverted = catch_unwind(AssertUnwindSafe(|| self.try_revert(registry, &unconfirmed)));
        let reverted = reverted.unwrap_or_else(|panic| Err(refusal::panicked(panic_message(&*panic))));
        reverted.map_err(|mut refusal| {
            refusal.message = format!("change {} cannot be reverted: {}", unconfirmed.number, refusal.message);
            "the program tries again every 5 seconds".clone_into(&mut refusal.help);
            let mut changes = lock(&self.changes);
            let deadline = Instant::now() + RETRY_INTERVAL;
            changes.unconfirmed = (!changes.is_over).then_some(Unconfirmed { deadline, ..unconfirmed });
            refusal
        })
    }

    fn try_revert(self: &Arc<Self>, registry: &Registry, unconfirmed: &Unconfirmed) -> Result<Applied, Refusal> {
        let Unconfirmed { earlier, kept, .. } = unconfirmed;
        let current = self.current();
        let reverts = Reverts { objects: &earlier.objects, kept };
        let PreparedChange { operations, warnings: _, assembly, left } =
            self.prepare(&current, registry, &earlier.source, false, Some(reverts))?;
        let Some((assembly, kept)) = assembly else { return Err(needs_restart(operations)) };
        self.await_closed_ports(&current, &assembly)?;
        let switched = self.switch(&current, Some(earlier), &kept, assembly, left)?;
        let Switched { next, graphs, ports, closing, warnings } = switched;
        let removed = closing.iter().map(ClosingPort::port).collect();
        let number = self.install(&next, ports, removed, |changes| {
            let (source, restores) = (&earlier.source, Some(unconfirmed.restores));
            let number = changes.history.add(source, operations.len(), "revert", ChangeState::InForce, restores);
            changes.history.set_state(unconfirmed.number, ChangeState::Reverted);
            number
        });
        // A late worker may still use the graph of `earlier`, from before the reverted change. The background tasks of
        // `earlier` therefore run until all workers use `next`.
        let of_earlier = ReturnedGraphs { awaited: graphs.late, ..ReturnedGraphs::default() };
        self.retire(current, &next, graphs, closing, false);
        self.retire(earlier.clone(), &next, of_earlier, Vec::new(), false);
        Ok(Applied { operations, warnings, ..applied(number, &earlier.source) })
    }
}

/// A time that is later than the end of the run.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(u64::from(u32::MAX))
}

fn needs_restart(operations: Vec<Operation>) -> Refusal {
    let message = match operations.iter().find(|operation| !operation.hitless) {
        Some(operation) => {
            let (words, name) = (operation.operation.words(), &operation.name);
            format!("the change needs a restart: {words} {name}: {}", operation.why)
        }
        None => "the change needs a restart".to_owned(),
    };
    let help =
        "write the new config to the config file, and restart the program; `dataplane plan` lists all operations";
    let mut refusal = Refusal::new(ErrorCode::NeedsRestart, message, help);
    refusal.operations = operations.into();
    refusal
}

/// Returns the warning about a worker that has not switched to its new graph in time.
fn late_worker(worker: usize) -> ConfigMistake {
    ConfigMistake {
        level: "warning".to_owned(),
        file: format!("worker {worker}"),
        line: 0,
        column: 0,
        message: "does not answer, and still uses the earlier pipeline; the worker switches as soon as it continues"
            .to_owned(),
        help: None,
    }
}

/// Returns a warning about the workers.
fn warning(message: String) -> ConfigMistake {
    let (level, file) = ("warning".to_owned(), "workers".to_owned());
    ConfigMistake { level, file, line: 0, column: 0, message, help: None }
}

/// Refuses a change while another change is unconfirmed.
fn check_confirmed(changes: &Changes) -> Result<(), Refusal> {
    let Some(Unconfirmed { number, deadline, .. }) = &changes.unconfirmed else { return Ok(()) };
    let left = deadline.saturating_duration_since(Instant::now()).as_secs();
    let message = format!("change {number} waits for its confirmation, and reverts in {left} s");
    Err(refusal::busy(message, "run `dataplane confirm` or `dataplane rollback` first"))
}
