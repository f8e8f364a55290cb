//! The cores, caches, NUMA nodes and devices of a machine, the placement of workers on cores, and pinning.
//!
//! A [`Topology`] is plain data. [`Topology::discover`] reads the topology of this machine from hwloc and sysfs. Tests
//! and simulations build a topology with [`Topology::from_parts`] or [`Topology::uniform`], so they do not depend on
//! the machine that runs them.

mod core_time;
mod discover;
mod pin;
mod place;

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::units::{Bytes, CoreId, NumaNode};

pub use core_time::CoreTime;
pub use pin::pin_current_thread;
pub use place::Workers;

/// A logical processor: a CPU of the operating system, on which a worker runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// The CPU number.
    pub id: CoreId,
    /// The physical core. Hyperthreads of one core share this number.
    pub physical: u32,
    /// The socket number.
    pub package: u32,
    /// The NUMA node whose memory is local to the core.
    pub node: NumaNode,
    /// Whether this process may run on the core (affinity mask, `sched_getaffinity(2)`).
    pub allowed: bool,
}

/// A data or unified cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// The level: 1, 2 or 3.
    pub level: u8,
    /// The size.
    pub size: Bytes,
    /// The cores that share the cache.
    pub cores: Vec<CoreId>,
}

/// The huge pages of one size on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// The size of a page.
    pub size: Bytes,
    /// The number of reserved pages.
    pub total: u64,
    /// The number of free reserved pages.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The node number.
    pub id: NumaNode,
    /// The memory of the node. 0 if the size is unknown, or if the node has cores but no memory.
    pub memory: Bytes,
    /// Whether this process may allocate memory on the node (`cpuset.mems`, see `cpuset(7)`).
    pub allowed: bool,
    /// The reserved huge pages, one entry per page size.
    pub hugepages: Vec<HugePages>,
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A verbs device (`/sys/class/infiniband`).
    Verbs,
    /// A network interface (`/sys/class/net`).
    Net,
}

/// A device with its NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// The kernel's name of the device.
    pub name: String,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The underlying network interfaces of a virtual device, for example of a VLAN or an rxe device.
    #[serde(rename = "on")]
    pub lower_interfaces: Vec<String>,
    /// The node of the device, or the common node of the underlying interfaces of a virtual device. `None` if the node
    /// is unknown or the nodes of the interfaces differ.
    pub node: Option<NumaNode>,
}

/// The topology of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    cores: Vec<Core>,
    /// Cores that exist but are offline.
    offline: Vec<CoreId>,
    caches: Vec<Cache>,
    nodes: Vec<Node>,
    devices: Vec<Device>,
}

impl Topology {
    /// Creates a topology from its parts, without offline cores. Sorts each list in the order that its getter
    /// documents.
    pub fn from_parts(
        mut cores: Vec<Core>,
        mut caches: Vec<Cache>,
        mut nodes: Vec<Node>,
        mut devices: Vec<Device>,
    ) -> Self {
        cores.sort_by_key(|core| core.id);
        caches.sort_by_key(|cache| (cache.level, cache.cores.first().copied()));
        nodes.sort_by_key(|node| node.id);
        devices.sort_by(|a, b| (a.kind as u8, &a.name).cmp(&(b.kind as u8, &b.name)));
        Self { cores, offline: Vec::new(), caches, nodes, devices }
    }

    /// Returns the topology with these offline cores, which replace earlier offline cores. The offline cores must not
    /// be in [`Topology::cores`].
    #[must_use]
    pub fn with_offline(mut self, mut cores: Vec<CoreId>) -> Self {
        cores.sort();
        self.offline = cores;
        self
    }

    /// Returns the topology of a machine with one node and `cores` cores without hyperthreads. All cores are allowed.
    pub fn uniform(cores: u32) -> Self {
        let node = NumaNode(0);
        let core = |id| Core { id: CoreId(id), physical: id, package: 0, node, allowed: true };
        let nodes = vec![Node { id: node, memory: Bytes(1 << 30), allowed: true, hugepages: Vec::new() }];
        Self::from_parts((0..cores).map(core).collect(), Vec::new(), nodes, Vec::new())
    }

    /// Returns the cores, sorted by number.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Returns the offline cores, sorted by number.
    pub fn offline(&self) -> &[CoreId] {
        &self.offline
    }

    /// Returns the caches, sorted by level.
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// Returns the NUMA nodes, sorted by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the verbs devices, then the network interfaces, each sorted by name.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the core with this number.
    pub fn core(&self, id: CoreId) -> Option<&Core> {
        self.cores.iter().find(|core| core.id == id)
    }

    /// Returns the node with this number.
    pub fn node(&self, id: NumaNode) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// Returns whether a worker on a core of this node can allocate local memory. `true` for an unknown node.
    pub fn has_memory(&self, id: NumaNode) -> bool {
        // A kernel without NUMA support appears as one node with unknown memory, so a single node always counts as
        // having memory.
        self.node(id).is_none_or(|node| node.allowed && (node.memory.0 != 0 || self.nodes.len() == 1))
    }

    /// Returns the node of a device, if known.
    pub fn node_of_device(&self, name: &str) -> Option<NumaNode> {
        self.devices.iter().find(|device| device.name == name)?.node
    }

    /// Returns the allowed cores of a node, sorted by number.
    pub fn near(&self, node: NumaNode) -> impl Iterator<Item = CoreId> {
        self.allowed().filter(move |core| core.node == node).map(|core| core.id)
    }

    /// Returns the allowed cores, sorted by number.
    pub fn allowed(&self) -> impl Iterator<Item = &Core> {
        self.cores.iter().filter(|core| core.allowed)
    }

    /// Formats the allowed cores as a list of ranges for messages, for example `0-3, 8`.
    pub fn allowed_list(&self) -> String {
        Self::format_cores(self.allowed().map(|core| core.id))
    }

    /// Formats cores as a list of ranges for messages, for example `0-3, 8`. The cores must be in ascending order.
    pub fn format_cores(cores: impl IntoIterator<Item = CoreId>) -> String {
        ranges(cores.into_iter().map(|core| core.0))
    }

    fn cache_of(&self, core: CoreId, level: u8) -> Option<&Cache> {
        self.caches.iter().find(|cache| cache.level == level && cache.cores.contains(&core))
    }

    fn core_rows(&self) -> Vec<Vec<String>> {
        let heading =
            ["core", "node", "socket", "physical", "threads", "L1", "L2", "L3", "L2 cores", "L3 cores", "allowed"];
        let row = |core: &Core| {
            let threads = self.cores.iter().filter(|other| other.physical == core.physical).map(|other| other.id);
            let cache = |level| self.cache_of(core.id, level);
            let size = |level| cache(level).map_or("-".to_owned(), |cache| cache.size.to_string());
            let shared =
                |level| cache(level).map_or("-".to_owned(), |cache| Self::format_cores(cache.cores.iter().copied()));
            vec![
                core.id.to_string(),
                core.node.to_string(),
                core.package.to_string(),
                core.physical.to_string(),
                Self::format_cores(threads),
                size(1),
                size(2),
                size(3),
                shared(2),
                shared(3),
                yes_or_no(core.allowed),
            ]
        };
        [heading.map(str::to_owned).to_vec()].into_iter().chain(self.cores.iter().map(row)).collect()
    }

    fn node_rows(&self) -> Vec<Vec<String>> {
        let heading = ["node", "memory", "cores", "huge pages (free of total)", "allowed"];
        let row = |node: &Node| {
            let pages = |pages: &HugePages| format!("{}: {} of {}", pages.size, pages.free, pages.total);
            let cores = self.cores.iter().filter(|core| core.node == node.id).map(|core| core.id);
            vec![
                node.id.to_string(),
                format!("{} MiB", node.memory.0 >> 20),
                or_dash(Self::format_cores(cores)),
                or_dash(node.hugepages.iter().map(pages).collect::<Vec<_>>().join(", ")),
                yes_or_no(node.allowed),
            ]
        };
        [heading.map(str::to_owned).to_vec()].into_iter().chain(self.nodes.iter().map(row)).collect()
    }

    fn device_rows(&self) -> Vec<Vec<String>> {
        let heading = ["device", "kind", "interfaces", "node", "near cores"];
        let row = |device: &Device| {
            let kind = match device.kind {
                DeviceKind::Verbs => "verbs",
                DeviceKind::Net => "net",
            };
            vec![
                device.name.clone(),
                kind.to_owned(),
                or_dash(device.lower_interfaces.join(", ")),
                device.node.map_or("-".to_owned(), |node| node.to_string()),
                or_dash(device.node.map_or(String::new(), |node| Self::format_cores(self.near(node)))),
            ]
        };
        [heading.map(str::to_owned).to_vec()].into_iter().chain(self.devices.iter().map(row)).collect()
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table(f, &self.core_rows())?;
        if !self.offline.is_empty() {
            writeln!(f, "offline: {}", Self::format_cores(self.offline.iter().copied()))?;
        }
        writeln!(f)?;
        table(f, &self.node_rows())?;
        writeln!(f)?;
        table(f, &self.device_rows())
    }
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Writes rows as a table with aligned columns.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        writeln!(f, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Formats numbers as a list of ranges: `0-3, 8`. The numbers must be in ascending order.
fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text: Vec<String> = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    text.join(", ")
}

/// Parses a list of ranges in the kernel's format: `0-3,8`. Invalid parts are skipped.
pub fn parse_ranges(text: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            numbers.extend(first..=last);
        }
    }
    numbers
}

/// Reads a list of numbers from the status of the calling thread, `proc_pid_status(5)`.
fn status_list(field: &str) -> Option<Vec<u32>> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(parse_ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_round_trip_through_text() {
        for (numbers, text) in [(vec![], ""), (vec![4], "4"), (vec![0, 1, 2, 3, 8, 10, 11], "0-3, 8, 10-11")] {
            assert_eq!(ranges(numbers.iter().copied()), text);
            assert_eq!(parse_ranges(text), numbers);
        }
        assert_eq!(parse_ranges("0-1,x,7\n"), [0, 1, 7]);
    }

    #[test]
    fn tables_list_every_core_node_and_device() {
        let mut topology = Topology::uniform(2).with_offline(vec![CoreId(3), CoreId(2)]);
        topology.caches = vec![Cache { level: 3, size: Bytes(32 << 20), cores: vec![CoreId(0), CoreId(1)] }];
        let device = |name: &str, on: &[&str], node: Option<u32>| Device {
            name: name.into(),
            kind: DeviceKind::Verbs,
            lower_interfaces: on.iter().map(|&name| name.to_owned()).collect(),
            node: node.map(NumaNode),
        };
        topology.devices = vec![device("mlx5_0", &[], Some(0)), device("rxe0", &["eth0"], None)];
        let text = topology.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["0", "0", "0", "0", "0", "-", "-", "32MiB", "-", "0-1", "yes"]);
        assert_eq!(lines[2], ["1", "0", "0", "1", "1", "-", "-", "32MiB", "-", "0-1", "yes"]);
        for line in [
            &["offline:", "2-3"][..],
            &["0", "1024", "MiB", "0-1", "-", "yes"],
            &["mlx5_0", "verbs", "-", "0", "0-1"],
            &["rxe0", "verbs", "eth0", "-", "-"],
        ] {
            assert!(lines.iter().any(|found| found == line), "{line:?}: {text}");
        }
    }

    #[test]
    fn node_without_allowed_memory_cannot_allocate() {
        let node =
            |id, memory, allowed| Node { id: NumaNode(id), memory: Bytes(memory), allowed, hugepages: Vec::new() };
        let nodes = vec![node(0, 1 << 30, true), node(1, 0, true), node(2, 1 << 30, false)];
        let topology = Topology::from_parts(Vec::new(), Vec::new(), nodes, Vec::new());
        assert_eq!([0, 1, 2, 3].map(|id| topology.has_memory(NumaNode(id))), [true, false, false, true]);
        let flat = Topology::from_parts(Vec::new(), Vec::new(), vec![node(0, 0, true)], Vec::new());
        assert!(flat.has_memory(NumaNode(0)), "a kernel without NUMA reports no memory");
    }
}
