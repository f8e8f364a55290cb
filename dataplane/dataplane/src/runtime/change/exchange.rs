//! The exchange of the graphs of all workers.
//!
//! Before an exchange, all workers must answer a request. Only the exchange of a revert needs no answers. Then each
//! worker gets a message with its new graph, and switches at its next housekeeping. After these messages, nothing can
//! cancel the exchange. If a worker blocks after its answer, it switches later, when it continues.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::history::digest;
use super::refusal::{busy, ending, failed, silent};
use super::state::{ANSWER_POLL_INTERVAL, ANSWER_TIMEOUT, PipelineVersion, RunState, lock, start_tasks};
use super::workers::AddedWorkers;
use crate::config::Plan;
use crate::runtime::Assembly;
use crate::runtime::lane_swap::{LaneSource, LaneSwap};
use crate::runtime::memory::prefer_node_of;
use crate::runtime::ports::{self, ChangedPorts, LivePort, NamedLanes};
use crate::runtime::sample::{Graphs, Sample, Swap};
use crate::runtime::stopwatch::Stopwatch;
use crate::runtime::worker_info::{ReportedStage, WorkerInfo};
use dataplane_control::Refusal;
use dataplane_core::pipeline::{Graph, Owner, Program, StageTable, Succession};
use dataplane_core::units::Nanos;

/// The parameters of an exchange.
pub(super) struct Exchange<'a> {
    pub(super) current: &'a PipelineVersion,
    /// In a revert, the pipeline from before the reverted change. The new pipeline uses the objects of this pipeline
    /// again. Otherwise `None`.
    pub(super) held: Option<&'a PipelineVersion>,
    /// The names of the stages that continue.
    pub(super) kept: &'a BTreeSet<String>,
    /// Whether all workers must answer before the exchange, and must already use the graphs of the previous exchange.
    /// A revert does not wait for a worker, because the change that is reverted may be the reason why the worker does
    /// not answer. A worker that has not switched yet then gets both graphs, one after the other.
    pub(super) must_answer: bool,
    /// The ports after the exchange, and the lanes of the added ports. `None` if the ports stay the same.
    pub(super) ports: Option<&'a mut ChangedPorts>,
    /// The added workers, which start together with the exchange.
    pub(super) added: AddedWorkers,
}

/// The result of an exchange.
pub(super) struct Exchanged {
    pub(super) next: Arc<PipelineVersion>,
    pub(super) graphs: ReturnedGraphs,
    /// The workers that have not switched yet.
    pub(super) late: Vec<usize>,
}

/// The earlier graphs of the workers.
#[derive(Default)]
pub(super) struct ReturnedGraphs {
    /// The graphs of the workers that have switched.
    pub(super) graphs: Graphs,
    /// The number of the exchange, if workers have not switched yet.
    pub(super) late: Option<u64>,
    /// The number of another exchange that must be complete before the tasks of the earlier pipeline end.
    pub(super) awaited: Option<u64>,
}

impl RunState {
    /// Starts the new tasks and the added workers, and switches the other workers to their new graphs. The caller must
    /// then install the new version ([`RunState::install`]).
    ///
    /// # Errors
    /// Fails if a task cannot be started, if a worker does not answer, or if the run is stopping. The workers then keep
    /// their graphs.
    pub(super) fn exchange(
        &self,
        exchange: Exchange<'_>,
        assembly: Assembly,
        left: Vec<String>,
    ) -> Result<Exchanged, Refusal> {
        let Exchange { current, held, kept, must_answer, mut ports, added } = exchange;
        if must_answer {
            self.check_workers()?;
        }
        let Assembly { plan, source, programs, stand_ins, resources, .. } = assembly;
        let plan = Arc::new(plan);
        let (objects, services) = resources.into_parts();
        // The new hold time is at least the earlier hold time, because the packets that the earlier pipeline holds may
        // stay held for the earlier hold time.
        let holds = programs.iter().take(1).flat_map(Program::nodes).filter_map(|node| node.stage.contract().holds);
        let hold = holds.fold(0u64, |sum, hold| sum.saturating_add(hold.0));
        let number = lock(&self.sampler).begin_exchange();
        let digest = digest(&source);
        let swaps = programs.into_iter().enumerate();
        let swaps = swaps.map(|(worker, program)| {
            let lanes = ports.as_mut().and_then(|ports| ports.lanes.get_mut(worker)).map(std::mem::take);
            self.swap_of(number, worker, program, kept, (&plan, &digest, lanes))
        });
        let swaps = swaps.collect::<Option<Graphs>>().ok_or_else(ending)?;
        let mut tasks = start_tasks(services.tasks, &services.stop).map_err(|error| failed(&error))?;
        if must_answer {
            self.await_answers()?;
        }
        // The tasks and the port handlers of a stage continue if the stage continues. The tasks and the port handlers
        // of a shared object continue if the object continues.
        let continues = |from: &PipelineVersion, owner: &Owner| match owner {
            Owner::Stage(stage) => std::ptr::eq(from, current) && kept.contains(stage),
            Owner::Object(stage, kind) => objects.shares_object_with(&from.objects, stage, *kind),
        };
        let mut handlers = services.port_handlers;
        let mut tables = services.tables;
        for from in [Some(current), held].into_iter().flatten() {
            let known: Vec<_> = tasks.iter().map(|(_, tasks)| Arc::as_ptr(tasks)).collect();
            let is_new = |(owner, tasks): &&(Owner, _)| continues(from, owner) && !known.contains(&Arc::as_ptr(tasks));
            tasks.extend(from.tasks.iter().filter(is_new).cloned());
            let known: Vec<_> = handlers.iter().map(|(_, handler)| Arc::as_ptr(handler)).collect();
            let is_new = |(owner, handler): &&(Owner, _)| {
                continues(from, owner) && !known.iter().any(|known| std::ptr::addr_eq(*known, Arc::as_ptr(handler)))
            };
            handlers.extend(from.handlers.iter().filter(is_new).cloned());
        }
        tables.extend(current.tables.iter().filter(|table| kept.contains(table.stage())).cloned());
        let place =
            |stage: &str| plan.order.iter().position(|&at| plan.nodes.get(at).is_some_and(|node| node.name == stage));
        tables.sort_by_key(|table: &Arc<StageTable>| place(table.stage()));
        let next = Arc::new(PipelineVersion { plan, source, objects, tables, tasks, handlers, stand_ins, left });
        {
            let changes = lock(&self.changes);
            if changes.is_over || self.control.is_stopped() {
                return Err(ending());
            }
            services.hold.set([Nanos(hold.max(services.hold.get().as_nanos() as u64))]);
            services.starts.into_iter().for_each(|start| start());
            {
                let mut handlers = lock(&self.handlers);
                handlers.clone_from(&next.handlers);
                if let Some(ports) = ports {
                    ports.removed.iter().for_each(LivePort::forget_number);
                    ports::number(&ports.ports);
                }
            }
            let mut workers = lock(&self.workers);
            let mut sampler = lock(&self.sampler);
            swaps.into_iter().enumerate().for_each(|(worker, swap)| sampler.swap(worker, swap));
            self.start_workers(added, &mut workers, &mut sampler);
        }
        let late = self.await_exchange(number);
        let graphs = lock(&self.sampler).returned(number);
        let graphs = ReturnedGraphs { graphs, late: (!late.is_empty()).then_some(number), awaited: None };
        Ok(Exchanged { next, graphs, late })
    }

    /// Refuses a change while a worker still has to switch to the graph of an earlier change.
    fn check_workers(&self) -> Result<(), Refusal> {
        let unfinished = lock(&self.sampler).unfinished();
        unfinished.map_or(Ok(()), |worker| {
            let message = format!("worker {worker} has not yet taken the pipeline of an earlier change");
            let help = "try again; if the worker never answers, a stage waits or blocks, so restart the program";
            Err(busy(message, help))
        })
    }

    /// Waits until all workers have answered a request. A worker that answers makes progress.
    fn await_answers(&self) -> Result<(), Refusal> {
        let answers = lock(&self.sampler).ask();
        let begin = Instant::now();
        loop {
            let silent_worker = lock(&self.sampler).silent(&answers);
            let Some(worker) = silent_worker else { return Ok(()) };
            if self.control.is_stopped() {
                return Err(ending());
            }
            if begin.elapsed() >= ANSWER_TIMEOUT {
                return Err(silent(worker));
            }
            thread::sleep(ANSWER_POLL_INTERVAL);
        }
    }

    /// Waits until all workers have switched to their new graphs, but at most [`ANSWER_TIMEOUT`]. Returns the workers
    /// that have not switched.
    fn await_exchange(&self, exchange: u64) -> Vec<usize> {
        let begin = Instant::now();
        loop {
            let late = lock(&self.sampler).exchanging(exchange);
            if late.is_empty() {
                return late;
            }
            if begin.elapsed() >= ANSWER_TIMEOUT {
                for worker in &late {
                    tracing::warn!(worker, "worker {worker} does not answer, and still uses the earlier pipeline");
                }
                return late;
            }
            thread::sleep(ANSWER_POLL_INTERVAL);
        }
    }

    /// Builds the new graph of a worker. `digest` is the digest of the new config. `lanes` has the lanes of added
    /// ports, or `None` if the ports stay the same. Returns `None` if no worker has the number `worker`.
    fn swap_of(
        &self,
        exchange: u64,
        worker: usize,
        program: Program,
        kept: &BTreeSet<String>,
        (plan, digest, lanes): (&Plan, &str, Option<NamedLanes>),
    ) -> Option<Box<Swap>> {
        let (before, retiring) = {
            let sampler = lock(&self.sampler);
            (sampler.next_info(worker)?.clone(), sampler.retiring(worker))
        };
        let new_core = plan.cores.get(worker).copied().unwrap_or(before.core);
        let _near = prefer_node_of(&self.topology, new_core);
        let (mut ports, mut granted) = (before.ports.clone(), before.granted.clone());
        let lanes = lanes.map(|mut lanes| {
            ports = plan.ports.iter().map(|port| port.config.name.clone()).collect();
            granted.retain(|port, _| ports.contains(port));
            granted.extend(lanes.iter().map(|(port, lane)| (port.clone(), lane.granted().to_string())));
            let source = |port: &String| match before.ports.iter().position(|known| known == port) {
                Some(kept) => LaneSource::Kept(kept),
                None => {
                    let at = lanes.iter().position(|(name, _)| name == port);
                    LaneSource::Added(at.map(|at| lanes.swap_remove(at).1))
                }
            };
            let sources = ports.iter().map(source).collect();
            let inputs = plan.ports.iter().enumerate().filter(|(_, port)| port.input).map(|(at, _)| at).collect();
            Box::new(LaneSwap::new(&before.ports, sources, inputs, retiring))
        });
        let info = Arc::new(WorkerInfo {
            core: new_core,
            slots: before.slots,
            pages: before.pages,
            granted,
            ports,
            stages_info: ReportedStage::of(&program),
            digest: digest.to_owned(),
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
            exchange,
            graph: Graph::in_memory(program, info.ports.len(), lock(&self.memories).get(worker)?),
            stopwatch: Some(Box::new(Stopwatch::new(&self.clock, stages))),
            info,
            successions,
            lanes,
            sample,
        }))
    }
}
