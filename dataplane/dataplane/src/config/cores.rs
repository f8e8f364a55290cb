//! Chooses the cores of the workers. Checks that the cores exist, are on the NUMA nodes of the devices, and have local
//! memory.

use std::collections::BTreeMap;

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::plan::PortPlan;
use dataplane_core::topology::{Topology, Workers};
use dataplane_core::units::{CoreId, NumaNode};

/// Sets the NUMA node of each port: the node that the config names, or otherwise the node of the device.
pub(super) fn nodes(
    loaded: &Loaded<'_>,
    ports: &mut [Option<PortPlan>],
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) {
    for (index, port) in ports.iter_mut().enumerate() {
        let Some(port) = port else { continue };
        let device = &port.config.device;
        let known = if port.config.is_rdma() { topology.node_of_device(device) } else { None };
        let given = port.config.numa_node.map(NumaNode);
        port.node = given.or(known);
        let Some(given) = given else { continue };
        let span = loaded.locate(&format!("port[{index}].numa_node"));
        // The topology of an offline check has no NUMA nodes. Such a check accepts any node.
        if !topology.nodes().is_empty() && topology.node(given).is_none() {
            let list = Topology::format_cores(topology.nodes().iter().map(|node| CoreId(node.id.0)));
            let mistake = Mistake::error(span, format!("there is no NUMA node {given}"));
            diagnostics.push(mistake.help(format!("this host has the nodes {list}")));
        } else if let Some(known) = known.filter(|known| *known != given) {
            let mistake = Mistake::warning(span, format!("the kernel reports `{device}` on node {known}"));
            diagnostics.push(mistake.help("remove `numa_node`, unless the kernel is wrong"));
        }
    }
}

/// Returns the cores of the workers.
pub(super) fn cores(
    loaded: &Loaded<'_>,
    ports: &[Option<PortPlan>],
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Vec<CoreId>> {
    let runtime = loaded.runtime.as_ref()?;
    let mut placement = CorePlacement { loaded, topology, workers: &runtime.workers, diagnostics };
    placement.given();
    let port_nodes: Vec<PortNode<'_>> = ports
        .iter()
        .enumerate()
        .filter_map(|(index, port)| port.as_ref().and_then(|port| Some(PortNode { index, port, node: port.node? })))
        .collect();
    let near: Vec<NumaNode> = port_nodes.iter().map(|port| port.node).collect();
    match topology.place(&runtime.workers, &near) {
        Ok(cores) => {
            placement.apart(&port_nodes);
            placement.far(&port_nodes, &cores);
            placement.memory(&cores, runtime.strict_memory);
            Some(cores)
        }
        Err(error) => {
            // If the config names the cores, `given` has already reported each unusable core.
            if !matches!(runtime.workers, Workers::Cores(_)) {
                let mistake = Mistake::error(loaded.locate("runtime.workers"), error.to_string());
                diagnostics.push(mistake.help("reduce `workers`, or extend the affinity mask of the process"));
            }
            None
        }
    }
}

/// A port with a known NUMA node.
struct PortNode<'a> {
    index: usize,
    port: &'a PortPlan,
    node: NumaNode,
}

struct CorePlacement<'a, 's> {
    loaded: &'a Loaded<'s>,
    topology: &'a Topology,
    workers: &'a Workers,
    diagnostics: &'a mut Diagnostics,
}

impl CorePlacement<'_, '_> {
    /// Returns the path of the config value that decides on which core a worker runs: the worker's entry in the array
    /// of cores, or otherwise the key `workers`.
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

    /// Checks that the cores that the config names are available.
    fn given(&mut self) {
        let Workers::Cores(cores) = self.workers else { return };
        for (at, &id) in cores.iter().enumerate() {
            let (message, help) = match self.topology.core(id) {
                None if self.topology.offline().contains(&id) => (
                    format!("core {id} is offline"),
                    format!("run `echo 1 | sudo tee /sys/devices/system/cpu/cpu{id}/online`"),
                ),
                None => {
                    let exist = Topology::format_cores(self.topology.cores().iter().map(|core| core.id));
                    (format!("core {id} does not exist"), format!("this host has the cores {exist}"))
                }
                Some(core) if !core.allowed => (
                    format!("core {id} is outside the affinity mask of this process"),
                    format!("this process may use the cores {}", self.topology.allowed_list()),
                ),
                Some(_) if cores[..at].contains(&id) => {
                    (format!("core {id} is listed for two workers"), "name a different core for each worker".to_owned())
                }
                Some(_) => continue,
            };
            let span = self.loaded.locate(&self.path(at));
            self.diagnostics.push(Mistake::error(span, message).help(help));
        }
    }

    /// Warns about ports on different NUMA nodes.
    fn apart(&mut self, port_nodes: &[PortNode<'_>]) {
        let Some(first) = port_nodes.first() else { return };
        let Some(other) = port_nodes.iter().find(|port| port.node != first.node) else { return };
        let key = if other.port.config.numa_node.is_some() { "numa_node" } else { "device" };
        let message = format!(
            "`{}` is on node {} and `{}` on node {}: packets between the two ports cross NUMA nodes",
            other.port.config.name, other.node, first.port.config.name, first.node
        );
        let help = "for full speed, use devices on one node";
        self.warn(&format!("port[{}].{key}", other.index), message, help);
    }

    /// Warns about workers whose NUMA node has no port.
    fn far(&mut self, port_nodes: &[PortNode<'_>], cores: &[CoreId]) {
        let near = |node: Option<NumaNode>| port_nodes.iter().any(|port| Some(port.node) == node);
        let far: Vec<usize> = (0..cores.len()).filter(|&worker| !near(self.node_of(cores[worker]))).collect();
        if port_nodes.is_empty() || far.is_empty() {
            return;
        }
        let ports = describe(port_nodes);
        let usable: Vec<CoreId> =
            self.topology.allowed().filter(|core| near(Some(core.node))).map(|core| core.id).collect();
        let list = Topology::format_cores(usable.iter().copied());
        let none = "extend the affinity mask to a core on the node of a port, or use a device on another node";
        if let Workers::Cores(_) = self.workers {
            let help =
                if usable.is_empty() { none.to_owned() } else { format!("use cores on the node of a port: {list}") };
            for worker in far {
                let core = cores[worker];
                let node = self.node_of(core).unwrap_or_default();
                let message = format!("core {core} is on node {node}, not on the node of a port: {ports}");
                self.warn(&self.path(worker), message, help.as_str());
            }
        } else {
            let help = match usable.len() {
                0 => none.to_owned(),
                count => format!("set workers = {count} to use only the cores {list} on the node of a port"),
            };
            let workers = match cores.len() {
                1 => "the worker".to_owned(),
                all => format!("{} of {all} workers", far.len()),
            };
            self.warn("runtime.workers", format!("{workers} cannot run on the node of a port: {ports}"), help);
        }
    }

    /// Reports workers on nodes without usable memory.
    fn memory(&mut self, cores: &[CoreId], strict: bool) {
        for (worker, &core) in cores.iter().enumerate() {
            let Some(node) = self.node_of(core).filter(|&node| !self.topology.has_memory(node)) else { continue };
            let why = match self.topology.node(node) {
                Some(node) if !node.allowed => "whose memory the cpuset of this process excludes",
                _ => "which has no memory",
            };
            let message = format!("core {core} is on node {node}, {why}, so its packets use memory of another node");
            let nodes = self.topology.nodes().iter().map(|node| node.id).filter(|&id| self.topology.has_memory(id));
            let with =
                format!("use a core on a node with memory ({})", Topology::format_cores(nodes.map(|id| CoreId(id.0))));
            let span = self.loaded.locate(&self.path(worker));
            self.diagnostics.push(if strict {
                Mistake::error(span, message).help(format!("{with}, or set strict = false"))
            } else {
                Mistake::warning(span, message).help(with)
            });
        }
    }
}

/// Returns a short list of the nodes and their ports, such as `` node 0 (`wan`) ``. For each node, the list names one
/// port and counts the other ports.
fn describe(port_nodes: &[PortNode<'_>]) -> String {
    let mut nodes: BTreeMap<NumaNode, Vec<&str>> = BTreeMap::new();
    for port in port_nodes {
        nodes.entry(port.node).or_default().push(&port.port.config.name);
    }
    let words = nodes.iter().map(|(node, names)| match names.as_slice() {
        [name] => format!("node {node} (`{name}`)"),
        [name, _] => format!("node {node} (`{name}` and 1 other port)"),
        [name, more @ ..] => format!("node {node} (`{name}` and {} other ports)", more.len()),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(", ")
}
