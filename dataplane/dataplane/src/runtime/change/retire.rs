//! Frees the earlier pipeline after a change, and closes the ports that the change has removed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::exchange::ReturnedGraphs;
use super::state::{POLL_INTERVAL, PipelineVersion, Retiring, RunState, lock};
use crate::config::{Plan, PortPlan};
use crate::runtime::ports::LivePort;
use crate::runtime::sample::Graphs;
use dataplane_core::pipeline::{Owner, Tasks, panic_message};

/// A port that a change has removed.
pub(super) struct ClosingPort {
    plan: PortPlan,
    port: LivePort,
    drain_timeout: Duration,
}

impl ClosingPort {
    /// Returns the removed ports of a plan.
    pub(super) fn of(plan: &Plan, removed: Vec<LivePort>) -> Vec<Self> {
        let closing = |port: LivePort| {
            let plan_of_port = plan.ports.iter().find(|known| known.config.name == port.name)?.clone();
            Some(Self { plan: plan_of_port, port, drain_timeout: plan.runtime.drain_timeout.0 })
        };
        removed.into_iter().filter_map(closing).collect()
    }

    /// Returns the port and its plan.
    pub(super) fn port(&self) -> (PortPlan, LivePort) {
        (self.plan.clone(), self.port.clone())
    }
}

impl RunState {
    /// Frees an earlier pipeline on another thread, because large tables take long to free, and a file may take long to
    /// write. Ends the stages and tasks that do not continue in the pipeline `next`. If the change is unconfirmed, keeps
    /// the shared objects and their tasks for a revert. The thread also waits for workers that have not switched yet, and
    /// closes the ports `closing`. If the thread cannot be started, does this work before the function returns.
    pub(super) fn retire(
        self: &Arc<Self>,
        earlier: Arc<PipelineVersion>,
        next: &Arc<PipelineVersion>,
        graphs: ReturnedGraphs,
        closing: Vec<ClosingPort>,
        is_unconfirmed: bool,
    ) {
        let ReturnedGraphs { graphs, late, awaited } = graphs;
        let is_kept = |owner: &Owner| match owner {
            Owner::Stage(_) => false,
            Owner::Object(stage, _) => is_unconfirmed && !stage.is_empty(),
        };
        let continues = |tasks: &Arc<Tasks>| next.tasks.iter().any(|(_, kept)| Arc::ptr_eq(kept, tasks));
        let ending = earlier.tasks.iter().filter(|(owner, tasks)| !is_kept(owner) && !continues(tasks));
        let ending: Vec<Arc<Tasks>> = ending.map(|(_, tasks)| tasks.clone()).collect();
        let written = |version: &PipelineVersion| -> BTreeSet<PathBuf> {
            version.objects.records.values().flat_map(|record| record.written.iter().cloned()).collect()
        };
        let mut written: Vec<PathBuf> = written(&earlier).difference(&written(next)).cloned().collect();
        let outputs = closing.iter().filter_map(|port| port.plan.config.link.as_ref()?.output());
        written.extend(outputs.map(Path::to_owned));
        let closes_ports = !closing.is_empty();
        let state = self.clone();
        let work = move |is_own_thread: bool| {
            state.end_stages(&earlier, graphs, is_unconfirmed);
            if let Some(exchange) = late {
                state.await_late_workers(exchange);
                let graphs = lock(&state.sampler).returned(exchange);
                state.end_stages(&earlier, graphs, is_unconfirmed);
            }
            awaited.into_iter().for_each(|exchange| state.await_late_workers(exchange));
            state.await_removed_workers();
            state.close_ports(closing);
            for tasks in ending {
                tasks.stop();
                lock(&state.failures).extend(tasks.failures());
            }
            // Another thread, such as the thread that answers clients, may still use the pipeline. The last user frees
            // the pipeline, so this thread waits until there is no other user. At the end of the run, any thread may free
            // the pipeline. If `work` runs on the thread of the caller, do not wait, because the caller itself may use
            // the pipeline.
            let is_used = || Arc::strong_count(&earlier) > 1 && !lock(&state.changes).is_over;
            while is_own_thread && !is_unconfirmed && is_used() {
                thread::sleep(POLL_INTERVAL);
            }
        };
        let thread = run_on_thread(thread::Builder::new().name("change-end".to_owned()), work);
        let mut retiring = lock(&self.retiring);
        retiring.retain(|retiring| !retiring.thread.is_finished());
        retiring.extend(thread.map(|thread| Retiring { thread, written, closes_ports }));
    }

    /// Waits until all workers have switched to their new graphs. `exchange` is the number of this exchange of graphs.
    fn await_late_workers(&self, exchange: u64) {
        while !lock(&self.sampler).exchanging(exchange).is_empty() {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Closes each lane of the removed ports when its sends have completed or have taken too long. Then closes the
    /// devices of the ports.
    fn close_ports(&self, ports: Vec<ClosingPort>) {
        let Some(drain_timeout) = ports.first().map(|port| port.drain_timeout) else { return };
        let mut is_open = true;
        while std::mem::take(&mut is_open) {
            let memories = lock(&self.memories).clone();
            for (worker, memory) in memories.iter().enumerate() {
                let retired = lock(&self.sampler).retired(worker);
                is_open |= retired.is_some();
                for lane in retired.into_iter().flatten() {
                    let slots = Box::new(lane.close(memory, drain_timeout));
                    lock(&self.sampler).return_slots(worker, slots);
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
        for ClosingPort { plan, port, .. } in ports {
            let errors: Vec<String> = port.device.finish().iter().map(ToString::to_string).collect();
            errors.iter().for_each(|error| tracing::error!("{error}"));
            lock(&self.failures).extend(errors);
            self.add_closed_port(&plan, &port);
        }
    }

    /// Ends all changes and tasks. The workers must have ended.
    pub(crate) fn stop_tasks(self: &Arc<Self>) {
        let unconfirmed = {
            let mut changes = lock(&self.changes);
            changes.is_over = true;
            changes.unconfirmed.take()
        };
        let current = self.current();
        current.tasks.iter().for_each(|(_, tasks)| tasks.stop());
        if let Some(unconfirmed) = unconfirmed {
            self.retire(unconfirmed.earlier, &current, ReturnedGraphs::default(), Vec::new(), false);
        }
        // A thread that frees an earlier pipeline may still write a file.
        let retiring = std::mem::take(&mut *lock(&self.retiring));
        retiring.into_iter().for_each(|retiring| _ = retiring.thread.join());
    }

    /// Finishes the stages that have not moved to later graphs, and frees the graphs.
    fn end_stages(&self, earlier: &PipelineVersion, graphs: Graphs, is_unconfirmed: bool) {
        for mut swap in graphs {
            let is_finished = |stage: &str| !(is_unconfirmed && earlier.objects.has_shared(stage));
            let finished = catch_unwind(AssertUnwindSafe(|| swap.graph.finish(is_finished)));
            // A stage may also panic when it is dropped.
            let dropped = catch_unwind(AssertUnwindSafe(move || drop(swap)));
            let panics = [finished.as_ref().err(), dropped.as_ref().err()];
            let panics = panics.into_iter().flatten().map(|panic| {
                let message = panic_message(&**panic);
                format!("a removed stage panicked at its end: {message}")
            });
            let errors = finished.iter().flatten().map(ToString::to_string);
            let errors: Vec<String> = errors.chain(panics).collect();
            errors.iter().for_each(|error| tracing::error!("{error}"));
            lock(&self.failures).extend(errors);
        }
    }
}

/// Runs `work` on a new thread, and returns the thread. If the thread cannot be started, runs `work` on the calling
/// thread, and returns `None`. The argument of `work` is whether `work` runs on a new thread.
fn run_on_thread(builder: thread::Builder, work: impl FnOnce(bool) + Send + 'static) -> Option<JoinHandle<()>> {
    // If the start fails, the closure of the new thread is dropped. So share `work` with the closure instead of moving
    // `work` into the closure.
    let own = Arc::new(Mutex::new(Some(work)));
    let shared = own.clone();
    let started = builder.spawn(move || {
        let work = lock(&shared).take();
        work.into_iter().for_each(|work| work(true));
    });
    let error = match started {
        Ok(thread) => return Some(thread),
        Err(error) => error,
    };
    tracing::warn!("cannot start a thread that frees the earlier pipeline, so the change takes longer: {error}");
    let work = lock(&own).take();
    work.into_iter().for_each(|work| work(false));
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Sender};

    use super::*;

    impl RunState {
        /// Adds a thread that closes ports. The thread ends when the caller drops the returned value.
        pub(crate) fn add_closing_thread(&self) -> Sender<()> {
            let (sender, receiver) = mpsc::channel();
            let thread = thread::spawn(move || _ = receiver.recv());
            lock(&self.retiring).push(Retiring { thread, written: Vec::new(), closes_ports: true });
            sender
        }
    }

    #[test]
    fn work_of_a_thread_that_cannot_be_started_is_done_by_the_caller() {
        // No address space has room for this stack.
        let too_large = usize::MAX / 4;
        for (builder, is_started) in
            [(thread::Builder::new(), true), (thread::Builder::new().stack_size(too_large), false)]
        {
            let (sender, receiver) = mpsc::channel();
            let thread = run_on_thread(builder, move |is_own_thread| sender.send(is_own_thread).unwrap());
            assert_eq!(thread.map(|thread| thread.join().unwrap()).is_some(), is_started);
            assert_eq!(receiver.recv(), Ok(is_started));
        }
    }
}
