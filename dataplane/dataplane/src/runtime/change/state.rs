//! The part of the state of a run that no worker owns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::history::ChangeHistory;
use crate::config::{Plan, PortPlan, Qp, Source};
use crate::runtime::control::RunControl;
use crate::runtime::ports::{LivePort, OnPortChange, PortOpener};
use crate::runtime::snapshot::Sampler;
use crate::runtime::worker_thread::WorkerHandle;
use dataplane_core::clock::HostClock;
use dataplane_core::error::Result;
use dataplane_core::mem::BatchMemory;
use dataplane_core::pipeline::{
    CapabilitySet, Objects, Owner, PortHandler, RunStop, StageTable, StandIn, TaskSpec, Tasks,
};
use dataplane_core::telemetry::PortReport;
use dataplane_core::topology::Topology;

/// The maximum time that a change waits for the answers of the workers. A worker that sleeps, or waits in a stage,
/// answers late.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait between two checks for the answers of the workers.
pub(super) const ANSWER_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// The wait between two checks of a condition, such as whether a pipeline is still in use.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owner, and the tasks of this owner.
pub(crate) type OwnedTasks = (Owner, Arc<Tasks>);

/// Starts tasks, grouped by their owners.
///
/// # Errors
/// Returns the error of the first task that cannot be started. In this case, the tasks that were already
/// started are stopped.
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

/// A version of the pipeline of a run, in use between two changes: the config, and the objects that the stages share.
pub(crate) struct PipelineVersion {
    pub(crate) plan: Arc<Plan>,
    pub(crate) source: Source,
    pub(crate) objects: Objects,
    pub(crate) tables: Vec<Arc<StageTable>>,
    pub(crate) tasks: Vec<OwnedTasks>,
    pub(crate) handlers: Vec<(Owner, PortHandler)>,
    pub(crate) stand_ins: Vec<BTreeMap<String, StandIn>>,
    /// The stages that leave the computation of checksums to the devices ([`Program::offload_checksums`]).
    ///
    /// [`Program::offload_checksums`]: dataplane_core::pipeline::Program::offload_checksums
    pub(crate) left: Vec<String>,
}

/// The part of the state of a run that no worker owns.
pub(crate) struct RunState {
    pub(crate) control: Arc<RunControl>,
    /// The open ports, in the order of the config.
    pub(crate) ports: Mutex<Vec<LivePort>>,
    /// The ports that were removed by a change.
    pub(crate) removed_ports: Mutex<RemovedPorts>,
    pub(crate) on_port_change: OnPortChange,
    pub(crate) stop: RunStop,
    /// Whether each packet buffer has room for the receive information of a packet: the results of receive offloads,
    /// such as the checksum status or the removed VLAN tag.
    pub(crate) keeps_recv_info: bool,
    pub(crate) clock: HostClock,
    pub(crate) topology: Topology,
    /// The absolute path of the config file with which the run started.
    pub(crate) config_file: Option<PathBuf>,
    /// The packet memory of each worker.
    pub(crate) memories: Mutex<Vec<BatchMemory>>,
    /// The workers, in the order of their numbers. Removed workers that have not ended are last.
    pub(crate) workers: Mutex<Vec<WorkerHandle>>,
    /// The functions to call when a port changes.
    pub(crate) handlers: Arc<Mutex<Vec<(Owner, PortHandler)>>>,
    pub(crate) sampler: Mutex<Sampler>,
    pub(crate) current: Mutex<Arc<PipelineVersion>>,
    /// The capabilities that the stages declared at the start of the run.
    pub(crate) capabilities: Vec<CapabilitySet>,
    /// The files that the config named as outputs at the start of the run.
    pub(crate) written: BTreeSet<PathBuf>,
    /// The failures of those tasks and stages that were ended by a change.
    pub(crate) failures: Mutex<Vec<String>>,
    pub(crate) changes: Mutex<Changes>,
    /// Whether a client captures or traces packets.
    pub(crate) is_observed: Arc<AtomicBool>,
    /// The threads that free earlier pipelines.
    pub(crate) retiring: Mutex<Vec<Retiring>>,
}

/// The ports that changes have removed.
#[derive(Default)]
pub(crate) struct RemovedPorts {
    /// The ports whose devices are not closed yet.
    closing: Vec<(PortPlan, LivePort)>,
    /// The reports of the closed ports, by the name of the port.
    closed: BTreeMap<String, PortReport>,
}

/// A thread that frees an earlier pipeline.
pub(crate) struct Retiring {
    pub(super) thread: JoinHandle<()>,
    /// The files that the earlier pipeline writes until the thread ends.
    pub(super) written: Vec<PathBuf>,
    /// Whether the thread closes ports.
    pub(super) closes_ports: bool,
}

/// The changes of a run.
pub(crate) struct Changes {
    /// Whether a change is in progress.
    pub(super) is_busy: bool,
    /// A description of the client whose upgrade is in progress.
    pub(super) upgrader: Option<String>,
    /// Whether the run has ended, so that the pipeline cannot change any more.
    pub(super) is_over: bool,
    pub(super) unconfirmed: Option<Unconfirmed>,
    pub(super) history: ChangeHistory,
    /// The path of the config with which the run started.
    pub(super) first_path: PathBuf,
}

/// Marks a change as in progress, until the value is dropped.
pub(super) struct Busy {
    pub(super) state: Arc<RunState>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.state.changes).is_busy = false;
    }
}

/// A change that reverts at its deadline, unless a client confirms the change.
pub(super) struct Unconfirmed {
    pub(super) number: u64,
    /// The number of the earlier change whose config the revert restores.
    pub(super) restores: u64,
    pub(super) earlier: Arc<PipelineVersion>,
    /// The stages that the change has not replaced.
    pub(super) kept: BTreeSet<String>,
    pub(super) deadline: Instant,
}

impl Changes {
    pub(crate) fn new(source: &Source) -> Self {
        let (history, first_path) = (ChangeHistory::new(source), source.path().to_owned());
        Self { is_busy: false, upgrader: None, is_over: false, unconfirmed: None, history, first_path }
    }
}

impl RunState {
    /// Returns the name of the stage that a worker runs.
    pub(crate) fn stage_of(&self, worker: usize) -> Option<String> {
        let stage = self.control.thread(worker).marker.stage()?;
        let info = lock(&self.sampler).info(worker)?.clone();
        info.stages_info.get(stage).map(|stage| stage.name.clone())
    }

    pub(crate) fn current(&self) -> Arc<PipelineVersion> {
        lock(&self.current).clone()
    }

    /// Returns the current version and its open ports, in the order of the config.
    pub(crate) fn current_ports(&self) -> (Arc<PipelineVersion>, Vec<LivePort>) {
        let current = lock(&self.current);
        (current.clone(), lock(&self.ports).clone())
    }

    /// Returns the objects that are necessary to open ports.
    pub(crate) fn port_opener(&self) -> PortOpener<'_> {
        let Self { clock, topology, stop, on_port_change: on_change, .. } = self;
        PortOpener { clock, topology, stop, on_change, takes_over: false }
    }

    /// Makes the version `next` the current version, and then calls `update`. Holds the lock of the changes during both
    /// steps. `ports` has the ports of `next`, or is `None` if the ports have not changed. `removed` has the removed
    /// ports.
    pub(super) fn install<T>(
        &self,
        next: &Arc<PipelineVersion>,
        ports: Option<Vec<LivePort>>,
        removed: Vec<(PortPlan, LivePort)>,
        update: impl FnOnce(&mut Changes) -> T,
    ) -> T {
        let mut changes = lock(&self.changes);
        {
            let mut current = lock(&self.current);
            *current = next.clone();
            ports.into_iter().for_each(|ports| *lock(&self.ports) = ports);
            lock(&self.removed_ports).closing.extend(removed);
        }
        if changes.is_over {
            next.tasks.iter().for_each(|(_, tasks)| tasks.stop());
        }
        update(&mut changes)
    }

    /// Returns a message for each task that has failed.
    pub(crate) fn task_failures(&self) -> Vec<String> {
        let mut failures = lock(&self.failures).clone();
        failures.extend(self.current().tasks.iter().flat_map(|(_, tasks)| tasks.failures()));
        failures
    }

    /// Returns the name, the device and the device counters of each port. The first list has the open ports, and the
    /// second list has the removed ports.
    pub(crate) fn port_reports(&self) -> (Vec<PortReport>, Vec<PortReport>) {
        let (current, ports, closing, mut closed) = {
            let current = lock(&self.current);
            let removed = lock(&self.removed_ports);
            (current.clone(), lock(&self.ports).clone(), removed.closing.clone(), removed.closed.clone())
        };
        let mut reports: Vec<_> =
            current.plan.ports.iter().zip(&ports).map(|(plan, port)| port_report(plan, port)).collect();
        closing.iter().for_each(|(plan, port)| add_removed(&mut closed, port_report(plan, port)));
        let mut removed = Vec::new();
        for earlier in closed.into_values() {
            match reports.iter_mut().find(|port| port.name == earlier.name) {
                // A later change has added a port with this name again.
                Some(port) => {
                    port.rx_lost += earlier.rx_lost;
                    port.tx_lost += earlier.tx_lost;
                }
                None => removed.push(earlier),
            }
        }
        (reports, removed)
    }

    /// Stores the last report of a removed port whose device is closed.
    pub(super) fn add_closed_port(&self, plan: &PortPlan, port: &LivePort) {
        let report = port_report(plan, port);
        let mut removed = lock(&self.removed_ports);
        removed.closing.retain(|(_, closing)| !Arc::ptr_eq(&closing.device, &port.device));
        add_removed(&mut removed.closed, report);
    }
}

/// Adds the report of a removed port. If a port with this name was removed before, adds the lost packets of the earlier
/// port to the lost packets of this port.
fn add_removed(removed: &mut BTreeMap<String, PortReport>, report: PortReport) {
    let (rx_lost, tx_lost) = removed.get(&report.name).map_or((0, 0), |known| (known.rx_lost, known.tx_lost));
    let report = PortReport {
        rx_lost: report.rx_lost + rx_lost,
        tx_lost: report.tx_lost + tx_lost,
        link_up: None,
        clocks: Vec::new(),
        ..report
    };
    removed.insert(report.name.clone(), report);
}

/// Returns the name, the device and the device counters of a port.
fn port_report(plan: &PortPlan, port: &LivePort) -> PortReport {
    let device_counters = port.device.counters();
    PortReport {
        name: plan.config.name.clone(),
        device: port.device.describe(),
        link_up: port.device.is_link_up(),
        rx_lost: rx_lost(plan, &device_counters),
        tx_lost: device_counters.get("tx_lost").copied().unwrap_or_default(),
        device_counters,
        clocks: port.device.clocks(),
        ..PortReport::default()
    }
}

/// Returns the packets that a port has lost before the pipeline, from the counters of its device.
fn rx_lost(plan: &PortPlan, counters: &BTreeMap<String, u64>) -> u64 {
    // A port that is not an input receives no packets, so it has no losses. Do not count losses on a reliable
    // connection, because the peer sends lost packets again.
    let can_lose = plan.input && plan.config.qp != Qp::Rc;
    PortReport::LOSSES.iter().filter(|_| can_lose).filter_map(|name| counters.get(*name)).sum()
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
