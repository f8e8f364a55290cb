//! Checks of workers: their cores are there, near the devices, and have memory.

use std::collections::BTreeMap;

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::plan::PortPlan;
use super::port::SOFT;
use crate::topology::{Topology, Workers};
use crate::units::{CoreId, NumaNode};

/// Gives each port the node that it is on: the one that the config names, else that of its device.
pub(super) fn nodes(
    loaded: &Loaded<'_>,
    ports: &mut [Option<PortPlan>],
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) {
    for (index, port) in ports.iter_mut().enumerate() {
        let Some(port) = port else { continue };
        let device = &port.config.device;
        let known = if device == SOFT { None } else { topology.node_of_device(device) };
        let given = port.config.numa_node.map(NumaNode);
        port.node = given.or(known);
        let Some(given) = given else { continue };
        let span = loaded.locate(&format!("port[{index}].numa_node"));
        // A plan for no machine in particular has no nodes.
        if !topology.nodes().is_empty() && topology.node(given).is_none() {
            let list = Topology::list(topology.nodes().iter().map(|node| CoreId(node.id.0)));
            let mistake = Mistake::error(span, format!("there is no NUMA node {given}"));
            diagnostics.push(mistake.help(format!("this machine has the nodes {list}")));
        } else if let Some(known) = known.filter(|known| *known != given) {
            let mistake = Mistake::warning(span, format!("the kernel says that `{device}` is on node {known}"));
            diagnostics.push(mistake.help("take `numa_node` out, unless the kernel is wrong"));
        }
    }
}

/// The cores of the workers.
pub(super) fn cores(
    loaded: &Loaded<'_>,
    ports: &[Option<PortPlan>],
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Vec<CoreId>> {
    let runtime = loaded.runtime.as_ref()?;
    let mut placing = Placing { loaded, topology, workers: &runtime.workers, diagnostics };
    placing.given();
    let homes: Vec<Home<'_>> = ports
        .iter()
        .enumerate()
        .filter_map(|(index, port)| port.as_ref().and_then(|port| Some(Home { index, port, node: port.node? })))
        .collect();
    let near: Vec<NumaNode> = homes.iter().map(|home| home.node).collect();
    match topology.place(&runtime.workers, &near) {
        Ok(cores) => {
            placing.apart(&homes);
            placing.far(&homes, &cores);
            placing.memory(&cores, runtime.strict);
            Some(cores)
        }
        Err(error) => {
            // Given cores were each looked at before, with their own places.
            if !matches!(runtime.workers, Workers::Cores(_)) {
                let mistake = Mistake::error(loaded.locate("runtime.workers"), error.to_string());
                diagnostics.push(mistake.help("ask for fewer workers, or widen the affinity mask of the process"));
            }
            None
        }
    }
}

/// A port whose node is known.
struct Home<'a> {
    index: usize,
    port: &'a PortPlan,
    node: NumaNode,
}

struct Placing<'a, 's> {
    loaded: &'a Loaded<'s>,
    topology: &'a Topology,
    workers: &'a Workers,
    diagnostics: &'a mut Diagnostics,
}

impl Placing<'_, '_> {
    /// The place of a worker in the file: its core's, where the config gives it.
    fn path(&self, worker: usize) -> String {
        match self.workers {
            Workers::Cores(_) => format!("runtime.workers[{worker}]"),
            _ => "runtime.workers".to_owned(),
        }
    }

    fn warn(&mut self, path: &str, message: String, help: impl Into<String>) {
        self.diagnostics.push(Mistake::warning(self.loaded.locate(path), message).help(help));
    }

    fn node_of(&self, core: CoreId) -> Option<NumaNode> {
        self.topology.core(core).map(|core| core.node)
    }

    /// Given cores that cannot be had.
    fn given(&mut self) {
        let Workers::Cores(cores) = self.workers else { return };
        for (at, &id) in cores.iter().enumerate() {
            let (message, help) = match self.topology.core(id) {
                None if self.topology.offline().contains(&id) => (
                    format!("core {id} is offline"),
                    format!("to change it: echo 1 | sudo tee /sys/devices/system/cpu/cpu{id}/online"),
                ),
                None => {
                    let exist = Topology::list(self.topology.cores().iter().map(|core| core.id));
                    (format!("core {id} doesn't exist"), format!("this machine has the cores {exist}"))
                }
                Some(core) if !core.allowed => (
                    format!("core {id} is outside the affinity mask of this process"),
                    format!("this process may use the cores {}", self.topology.allowed_list()),
                ),
                Some(_) if cores[..at].contains(&id) => {
                    (format!("core {id} is given to two workers"), "give each worker a core of its own".to_owned())
                }
                Some(_) => continue,
            };
            let span = self.loaded.locate(&self.path(at));
            self.diagnostics.push(Mistake::error(span, message).help(help));
        }
    }

    /// Ports on different nodes.
    fn apart(&mut self, homes: &[Home<'_>]) {
        let Some(first) = homes.first() else { return };
        let Some(other) = homes.iter().find(|home| home.node != first.node) else { return };
        let key = if other.port.config.numa_node.is_some() { "numa_node" } else { "device" };
        let message = format!(
            "`{}` is on node {} and `{}` on node {}: a packet from one to the other crosses nodes",
            other.port.config.name, other.node, first.port.config.name, first.node
        );
        let help = "use devices of one node where speed matters";
        self.warn(&format!("port[{}].{key}", other.index), message, help);
    }

    /// Workers that are on the node of no port.
    fn far(&mut self, homes: &[Home<'_>], cores: &[CoreId]) {
        let near = |node: Option<NumaNode>| homes.iter().any(|home| Some(home.node) == node);
        let far: Vec<usize> = (0..cores.len()).filter(|&worker| !near(self.node_of(cores[worker]))).collect();
        if homes.is_empty() || far.is_empty() {
            return;
        }
        let ports = describe(homes);
        let usable: Vec<CoreId> =
            self.topology.allowed().filter(|core| near(Some(core.node))).map(|core| core.id).collect();
        let list = Topology::list(usable.iter().copied());
        let none = "this process may use no core there: widen its affinity mask, or use a device on another node";
        if let Workers::Cores(_) = self.workers {
            let help = if usable.is_empty() { none.to_owned() } else { format!("near are the cores {list}") };
            for worker in far {
                let core = cores[worker];
                let node = self.node_of(core).unwrap_or_default();
                let message = format!("core {core} is on node {node}, far from {ports}");
                self.warn(&self.path(worker), message, help.as_str());
            }
        } else {
            let help = match usable.len() {
                0 => none.to_owned(),
                count => format!("near are the cores {list}, enough for {count}"),
            };
            let who = match cores.len() {
                1 => "the worker".to_owned(),
                all => format!("{} of {all} workers", far.len()),
            };
            self.warn("runtime.workers", format!("{who} must be far from {ports}"), help);
        }
    }

    /// Workers on nodes that give no memory.
    fn memory(&mut self, cores: &[CoreId], strict: bool) {
        for (worker, &core) in cores.iter().enumerate() {
            let Some(node) = self.node_of(core).filter(|&node| !self.topology.has_memory(node)) else { continue };
            let why = match self.topology.node(node) {
                Some(node) if !node.allowed => "whose memory is not for this process",
                _ => "which has no memory",
            };
            let message = format!("core {core} is on node {node}, {why}: its packets are in that of another");
            let nodes = self.topology.nodes().iter().map(|node| node.id).filter(|&id| self.topology.has_memory(id));
            let with = format!("nodes with memory are {}", Topology::list(nodes.map(|id| CoreId(id.0))));
            let span = self.loaded.locate(&self.path(worker));
            self.diagnostics.push(if strict {
                Mistake::error(span, message).help(format!("{with}; strict = true refuses others"))
            } else {
                Mistake::warning(span, message).help(with)
            });
        }
    }
}

/// Ports with their nodes, such as `` `wan` (node 0) ``, in a few words however many there are.
fn describe(homes: &[Home<'_>]) -> String {
    let mut nodes: BTreeMap<NumaNode, Vec<&str>> = BTreeMap::new();
    for home in homes {
        nodes.entry(home.node).or_default().push(&home.port.config.name);
    }
    let words = nodes.iter().map(|(node, names)| match names.as_slice() {
        [name] => format!("`{name}` (node {node})"),
        [name, more @ ..] => format!("`{name}` and {} more (node {node})", more.len()),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(" and ")
}
