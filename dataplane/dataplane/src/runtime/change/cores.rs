//! Moves workers to other cores.
//!
//! The kernel can move a thread between any two instructions of the thread. The code of the worker does nothing for the
//! move.

use std::sync::atomic::Ordering;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::refusal::not_moved;
use super::state::{RunState, lock};
use crate::config::Plan;
use crate::runtime::difference;
use dataplane_control::Refusal;
use dataplane_control::change::Operation;
use dataplane_core::units::CoreId;

/// Workers that have moved to other cores. Unless [`MovedWorkers::keep`] is called, the workers move back when the
/// value is dropped.
pub(super) struct MovedWorkers<'a> {
    state: &'a RunState,
    /// The workers, each with its earlier core.
    moved: Vec<(usize, CoreId)>,
}

impl MovedWorkers<'_> {
    /// Leaves the workers on their new cores.
    pub(super) fn keep(mut self) {
        self.moved.clear();
    }
}

impl Drop for MovedWorkers<'_> {
    fn drop(&mut self) {
        for (worker, core) in self.moved.drain(..) {
            if let Err(error) = self.state.move_worker(worker, core) {
                tracing::error!(worker, "worker {worker} cannot move back to core {core}: {error}");
            }
        }
    }
}

impl RunState {
    /// Moves the workers to the cores of a plan.
    ///
    /// # Errors
    /// Fails if a worker cannot run on its new core. All workers then run on their earlier cores.
    pub(super) fn move_workers(&self, plan: &Plan) -> Result<MovedWorkers<'_>, Refusal> {
        let mut moved = MovedWorkers { state: self, moved: Vec::new() };
        for (worker, core) in plan.cores.iter().enumerate() {
            let before = lock(&self.sampler).next_info(worker).map(|info| info.core);
            let Some(before) = before.filter(|before| before != core) else { continue };
            self.move_worker(worker, *core).map_err(|error| not_moved(worker, *core, &error))?;
            moved.moved.push((worker, before));
        }
        Ok(moved)
    }

    fn move_worker(&self, worker: usize, core: CoreId) -> rustix::io::Result<()> {
        let thread = self.control.thread(worker);
        if thread.has_left.load(Ordering::Relaxed) {
            return Ok(());
        }
        if core.0 as usize >= CpuSet::MAX_CPU {
            return Err(rustix::io::Errno::INVAL);
        }
        let mut cores = CpuSet::new();
        cores.set(core.0 as usize);
        sched_setaffinity(Pid::from_raw(thread.id.load(Ordering::Relaxed)), &cores)
    }

    /// For each worker whose packet memory is not on the NUMA node of its new core, returns an operation that needs a
    /// restart.
    pub(super) fn core_operations(&self, before: &Plan, after: &Plan) -> Vec<Operation> {
        let node = |core: &CoreId| self.topology.core(*core).map(|core| core.node);
        let moves = before.cores.iter().zip(&after.cores).enumerate();
        let is_far = |(_, (from, to)): &(usize, (&CoreId, &CoreId))| node(from) != node(to);
        let operation = |(worker, (from, to)): (usize, (&CoreId, &CoreId))| {
            let words = |core| node(core).map_or("an unknown NUMA node".to_owned(), |node| format!("NUMA node {node}"));
            let (memory, there) = (words(from), words(to));
            difference::far_core(worker, &format!("the packet memory is on {memory}, and core {to} is on {there}"))
        };
        moves.filter(is_far).map(operation).collect()
    }
}
