//! The open ports of a run, and the ports and lanes that a change adds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::Plan;
use crate::runtime::devices::{self, PortDevice};
use crate::runtime::lanes;
use crate::runtime::memory::prefer_node_of;
use crate::runtime::sample::PostedBuffers;
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::lane::Lane;
use dataplane_core::mem::BatchMemory;
use dataplane_core::pipeline::{PortChange, PortInfo, RunStop};
use dataplane_core::topology::Topology;
use dataplane_soft::upgrade::HandedQueue;

/// The number of a port that the pipeline does not use: a new port before the switch, or a removed port.
const NO_NUMBER: usize = usize::MAX;

/// The number of a port. A change of the pipeline may change the number.
#[derive(Debug)]
pub(crate) struct PortNumber(AtomicUsize);

impl PortNumber {
    /// Returns the number, or `None` if the pipeline does not use the port.
    pub(crate) fn get(&self) -> Option<u8> {
        u8::try_from(self.0.load(Ordering::Acquire)).ok()
    }

    fn set(&self, number: usize) {
        self.0.store(number, Ordering::Release);
    }
}

/// A function that is called at each change of the state of a port. A change of the pipeline replaces the numbers of
/// the ports and the list of the stages' port handlers under one lock. The function must take this lock before it reads
/// the number of the port. Otherwise, the new handlers could get an old number.
pub(crate) type OnPortChange = Arc<dyn Fn(&PortNumber, PortChange) + Send + Sync>;

/// An open port of a run.
#[derive(Clone)]
pub(crate) struct LivePort {
    /// The name of the port in the config.
    pub(crate) name: String,
    pub(crate) device: Arc<dyn PortDevice>,
    number: Arc<PortNumber>,
}

impl LivePort {
    fn new(name: &str, device: Arc<dyn PortDevice>, on_change: &OnPortChange) -> Self {
        let number = Arc::new(PortNumber(AtomicUsize::new(NO_NUMBER)));
        let (now, on_change) = (number.clone(), on_change.clone());
        device.on_change(Box::new(move |change| on_change(&now, change)));
        Self { name: name.to_owned(), device, number }
    }

    /// Removes the number of the port. The stages get no more changes of the port.
    pub(crate) fn forget_number(&self) {
        self.number.set(NO_NUMBER);
    }
}

/// Sets the number of each port to the index of the port in `ports`.
pub(crate) fn number(ports: &[LivePort]) {
    ports.iter().enumerate().for_each(|(number, port)| port.number.set(number));
}

/// The objects of a run that are necessary to open ports and their lanes.
#[derive(Clone, Copy)]
pub(crate) struct PortOpener<'a> {
    pub(crate) clock: &'a HostClock,
    pub(crate) topology: &'a Topology,
    pub(crate) stop: &'a RunStop,
    pub(crate) on_change: &'a OnPortChange,
    /// Whether the ports take over the queues of another program.
    pub(crate) takes_over: bool,
}

/// Lanes of one worker, each with the name of its port.
pub(crate) type NamedLanes = Vec<(String, Box<dyn Lane>)>;

/// The ports of a run after a change, and the lanes of the added ports.
pub(crate) struct ChangedPorts {
    /// The ports, in the order of the new config.
    pub(crate) ports: Vec<LivePort>,
    pub(crate) removed: Vec<LivePort>,
    /// For each worker that continues, the lane of each added port, with the name of the port.
    pub(crate) lanes: Vec<NamedLanes>,
}

impl PortOpener<'_> {
    /// Opens all ports of a plan.
    ///
    /// # Errors
    /// Returns the errors of [`devices::open`].
    pub(crate) fn open_all(self, plan: &Plan, infos: &[PortInfo]) -> Result<Vec<LivePort>> {
        let devices = devices::open(plan, infos, |_| true, (self.clock, self.takes_over), self.stop)?;
        let ports: Vec<LivePort> =
            devices.into_iter().map(|(at, device)| LivePort::new(&infos[at].name, device, self.on_change)).collect();
        number(&ports);
        Ok(ports)
    }

    /// Opens the ports of a plan that are not in `before`, and their lanes for each worker that continues. `memories`
    /// has the packet memory of each worker. The ports have no numbers yet.
    ///
    /// # Errors
    /// Returns an error if a device or memory is not available. The ports in `before` are not affected.
    pub(crate) fn open_added(
        self,
        plan: &Plan,
        infos: &[PortInfo],
        before: &[LivePort],
        memories: &[BatchMemory],
    ) -> Result<ChangedPorts> {
        let known = |name: &str| before.iter().find(|port| port.name == name);
        let devices = devices::open(plan, infos, |name| known(name).is_none(), (self.clock, false), self.stop)?;
        let mut lanes = Vec::new();
        for (worker, memory) in memories.iter().enumerate().take(plan.cores.len()) {
            // Allocate the memory of the queues on the NUMA node of the worker.
            let _preference = plan.cores.get(worker).and_then(|core| prefer_node_of(self.topology, *core));
            lanes.push(lanes::open_added(plan, &devices, memory, (worker, plan.cores.len()))?);
        }
        let mut added: Vec<LivePort> =
            devices.into_iter().map(|(at, device)| LivePort::new(&infos[at].name, device, self.on_change)).collect();
        let mut port = |info: &PortInfo| {
            let at = added.iter().position(|port| port.name == info.name);
            known(&info.name).cloned().or_else(|| Some(added.remove(at?)))
        };
        let ports = infos.iter().filter_map(&mut port).collect();
        let is_removed = |port: &&LivePort| !infos.iter().any(|info| info.name == port.name);
        Ok(ChangedPorts { ports, removed: before.iter().filter(is_removed).cloned().collect(), lanes })
    }
}

/// The ports of a run that takes over the ports of another program. The value exists while the workers are ready, but
/// do not run yet.
pub(crate) struct Gate<'a> {
    ports: &'a [LivePort],
}

impl<'a> Gate<'a> {
    pub(crate) fn new(ports: &'a [LivePort]) -> Self {
        Self { ports }
    }

    /// Takes over the queues of all ports. Returns the posted buffers of each worker, with the index of the port.
    ///
    /// # Errors
    /// Fails if the queues do not fit the ports.
    pub(crate) fn attach(&self, mut queues: Vec<(String, HandedQueue)>) -> Result<Vec<PostedBuffers>> {
        let mut posted: Vec<PostedBuffers> = Vec::new();
        for (at, port) in self.ports.iter().enumerate() {
            let failed = |why: String| Error::Wire(format!("port `{}`: {why}", port.name));
            let own = queues.extract_if(.., |(name, _)| *name == port.name).map(|(_, queue)| queue);
            let own: Vec<HandedQueue> = own.collect();
            for queue in own.iter().filter(|queue| !queue.posted.is_empty()) {
                let worker = usize::from(queue.queue);
                posted.resize_with(posted.len().max(worker + 1), Vec::new);
                posted[worker].push((at, queue.posted.clone()));
            }
            let device = port.device.hand_over().ok_or_else(|| failed("cannot take over queues".to_owned()))?;
            device.attach(own).map_err(|error| failed(error.to_string()))?;
        }
        match queues.first() {
            Some((name, _)) => Err(Error::Wire(format!("there is no port `{name}`"))),
            None => Ok(posted),
        }
    }
}
