//! Cores, caches, NUMA nodes and the devices near them; where workers go, and pinning them there.
//!
//! A [`Topology`] is plain data. [`Topology::discover`] reads it from hwloc and sysfs; tests and what-if questions
//! build one with [`Topology::from_parts`] or [`Topology::uniform`], so placement needs no machine of a given shape.

mod discover;
mod pin;
mod place;

use std::fmt;

use serde::Serialize;

use crate::units::{Bytes, CoreId, NumaNode};

pub use pin::pin_current_thread;
pub use place::Workers;

/// A logical processor: what the operating system calls a CPU and a worker runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Its number.
    pub id: CoreId,
    /// The physical core that it belongs to. Hyperthreads of one core share this number.
    pub physical: u32,
    /// The socket.
    pub package: u32,
    /// The NUMA node whose memory is local to it.
    pub node: NumaNode,
    /// Whether this process may run on it (its affinity mask, `sched_getaffinity(2)`).
    pub allowed: bool,
}

/// A data or unified cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1, 2 or 3.
    pub level: u8,
    /// Its size.
    pub size: Bytes,
    /// The cores that share it.
    pub cores: Vec<CoreId>,
}

/// Huge pages of one size on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// The size of a page.
    pub size: Bytes,
    /// How many are reserved.
    pub total: u64,
    /// How many of those are free.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: NumaNode,
    /// The memory on it.
    pub memory: Bytes,
    /// The huge pages reserved on it, one entry for each page size.
    pub hugepages: Vec<HugePages>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A verbs device (`/sys/class/infiniband`).
    Verbs,
    /// A network interface (`/sys/class/net`).
    Net,
}

/// A device, and the node that it is plugged into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// The kernel's name for it.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its node; absent for a virtual device and on a machine of one node.
    pub node: Option<NumaNode>,
}

/// The shape of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    cores: Vec<Core>,
    caches: Vec<Cache>,
    nodes: Vec<Node>,
    devices: Vec<Device>,
}

impl Topology {
    /// A topology of these parts, put in the order of their numbers.
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
        Self { cores, caches, nodes, devices }
    }

    /// A machine of `cores` cores without hyperthreads on one node, all of them allowed.
    pub fn uniform(cores: u32) -> Self {
        let node = NumaNode(0);
        let core = |id| Core { id: CoreId(id), physical: id, package: 0, node, allowed: true };
        let nodes = vec![Node { id: node, memory: Bytes(1 << 30), hugepages: Vec::new() }];
        Self::from_parts((0..cores).map(core).collect(), Vec::new(), nodes, Vec::new())
    }

    /// The cores, by number.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The caches, by level.
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// The NUMA nodes, by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The verbs devices, then the network interfaces, by name.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The core of this number.
    pub fn core(&self, id: CoreId) -> Option<&Core> {
        self.cores.iter().find(|core| core.id == id)
    }

    /// The node that a device of this name is plugged into, if it is known.
    pub fn node_of_device(&self, name: &str) -> Option<NumaNode> {
        self.devices.iter().find(|device| device.name == name)?.node
    }

    /// The cores that this process may run on, by number.
    pub fn allowed(&self) -> impl Iterator<Item = &Core> {
        self.cores.iter().filter(|core| core.allowed)
    }

    /// The allowed cores as a short list for messages, such as `0-3, 8`.
    pub fn allowed_list(&self) -> String {
        Self::list(self.allowed().map(|core| core.id))
    }

    /// Cores in ascending order as a short list for messages, such as `0-3, 8`.
    pub fn list(cores: impl IntoIterator<Item = CoreId>) -> String {
        ranges(cores.into_iter().map(|core| core.0))
    }

    fn caches_of(&self, core: CoreId, level: u8) -> Option<&Cache> {
        self.caches.iter().find(|cache| cache.level == level && cache.cores.contains(&core))
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "core  physical  socket  node  L1     L2     L3     shares L3 with   allowed")?;
        for core in &self.cores {
            write!(f, "{:<6}{:<10}{:<8}{:<6}", core.id.0, core.physical, core.package, core.node.0)?;
            for level in 1..=3 {
                let size = self.caches_of(core.id, level).map_or("-".to_owned(), |cache| cache.size.to_string());
                write!(f, "{size:<7}")?;
            }
            let mates = self.caches_of(core.id, 3).map_or(String::new(), |cache| {
                ranges(cache.cores.iter().filter(|&&other| other != core.id).map(|other| other.0))
            });
            let mates = if mates.is_empty() { "-" } else { mates.as_str() };
            writeln!(f, "{mates:<17}{}", if core.allowed { "yes" } else { "no" })?;
        }
        writeln!(f, "\nnode  memory     huge pages (free of total)")?;
        for node in &self.nodes {
            let pages: Vec<String> = node
                .hugepages
                .iter()
                .map(|pages| format!("{}: {} of {}", pages.size, pages.free, pages.total))
                .collect();
            let pages = if pages.is_empty() { "-".to_owned() } else { pages.join(", ") };
            writeln!(f, "{:<6}{:<11}{pages}", node.id.0, format!("{} MiB", node.memory.0 >> 20))?;
        }
        writeln!(f, "\ndevice           kind   node")?;
        for device in &self.devices {
            let kind = match device.kind {
                DeviceKind::Verbs => "verbs",
                DeviceKind::Net => "net",
            };
            let node = device.node.map_or("-".to_owned(), |node| node.to_string());
            writeln!(f, "{:<17}{kind:<7}{node}", device.name)?;
        }
        Ok(())
    }
}

/// Numbers in ascending order as a list of ranges: `0-3, 8`.
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

/// The reverse of [`ranges`], as the kernel writes it: `0-3,8`. What is no number is skipped.
fn parse_ranges(text: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            numbers.extend(first..=last);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_print_and_parse_alike() {
        for (numbers, text) in [(vec![], ""), (vec![4], "4"), (vec![0, 1, 2, 3, 8, 10, 11], "0-3, 8, 10-11")] {
            assert_eq!(ranges(numbers.iter().copied()), text);
            assert_eq!(parse_ranges(text), numbers);
        }
        assert_eq!(parse_ranges("0-1,x,7\n"), [0, 1, 7]);
    }

    #[test]
    fn the_table_names_every_core_node_and_device() {
        let mut topology = Topology::uniform(2);
        topology.caches = vec![Cache { level: 3, size: Bytes(32 << 20), cores: vec![CoreId(0), CoreId(1)] }];
        topology.devices = vec![Device { name: "mlx5_0".into(), kind: DeviceKind::Verbs, node: Some(NumaNode(0)) }];
        let text = topology.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["0", "0", "0", "0", "-", "-", "32M", "1", "yes"]);
        assert_eq!(lines[2], ["1", "1", "0", "0", "-", "-", "32M", "0", "yes"]);
        assert!(lines.contains(&vec!["0", "1024", "MiB", "-"]));
        assert!(lines.contains(&vec!["mlx5_0", "verbs", "0"]));
    }
}
