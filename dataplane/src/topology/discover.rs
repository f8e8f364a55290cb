//! Reads the machine: cores and caches from hwloc, nodes and devices from sysfs.
//!
//! hwloc 2 keeps NUMA nodes at a negative depth that its Rust binding cannot ask for, so a core's node comes from the
//! core's node set, and what a node has from `/sys/devices/system/node`.

use std::fs;
use std::path::Path;

use hwloc2::{ObjectType, TopologyObject};

use super::{Cache, Core, Device, DeviceKind, HugePages, Node, Topology};
use crate::error::{Error, Result};
use crate::units::{Bytes, CoreId, NumaNode};

impl Topology {
    /// Reads the topology of this machine, with the affinity mask of the calling thread as what is allowed.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] when hwloc cannot load the topology or finds no processor.
    pub fn discover() -> Result<Self> {
        let machine = hwloc2::Topology::new()
            .ok_or_else(|| Error::Topology("hwloc could not read the topology of this machine from /sys".to_owned()))?;
        let cores = cores(&machine);
        if cores.is_empty() {
            return Err(Error::Topology("hwloc found no processor on this machine: is /sys mounted?".to_owned()));
        }
        let caches = caches(&machine, &cores);
        let sysfs = Path::new("/sys");
        Ok(Self::from_parts(cores, caches, nodes(sysfs), devices(sysfs)))
    }
}

fn cores(machine: &hwloc2::Topology) -> Vec<Core> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let units = machine.objects_with_type(&ObjectType::PU).unwrap_or_default();
    let core = |unit: &&TopologyObject| Core {
        id: CoreId(unit.os_index()),
        // The logical index is unique on the machine; the kernel's core id starts again on each socket.
        physical: ancestor(unit, &ObjectType::Core).map_or(unit.logical_index(), TopologyObject::logical_index),
        package: ancestor(unit, &ObjectType::Package).map_or(0, TopologyObject::logical_index),
        node: NumaNode(unit.nodeset().and_then(|set| u32::try_from(set.first()).ok()).unwrap_or(0)),
        allowed: allowed.iter().any(|core| core.id == unit.os_index() as usize),
    };
    units.iter().map(core).collect()
}

fn ancestor<'a>(object: &'a TopologyObject, kind: &ObjectType) -> Option<&'a TopologyObject> {
    std::iter::successors(object.parent(), |object| object.parent()).find(|object| object.object_type() == *kind)
}

fn caches(machine: &hwloc2::Topology, cores: &[Core]) -> Vec<Cache> {
    let levels = [(1, ObjectType::L1Cache), (2, ObjectType::L2Cache), (3, ObjectType::L3Cache)];
    let mut caches = Vec::new();
    for (level, kind) in levels {
        for object in machine.objects_with_type(&kind).unwrap_or_default() {
            if let (Some(attributes), Some(set)) = (object.cache_attributes(), object.cpuset()) {
                let sharing = cores.iter().map(|core| core.id).filter(|id| set.is_set(id.0)).collect();
                caches.push(Cache { level, size: Bytes(attributes.size()), cores: sharing });
            }
        }
    }
    caches
}

/// The entries of a folder by name; none when the folder is not there.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn nodes(sysfs: &Path) -> Vec<Node> {
    let folder = sysfs.join("devices/system/node");
    let mut nodes: Vec<Node> = names(&folder)
        .iter()
        .filter_map(|name| {
            let id = name.strip_prefix("node")?.parse().ok()?;
            let folder = folder.join(name);
            Some(Node { id: NumaNode(id), memory: memory(&folder), hugepages: hugepages(&folder.join("hugepages")) })
        })
        .collect();
    if nodes.is_empty() {
        // A kernel built without NUMA support shows no nodes: all its memory is node 0.
        let hugepages = hugepages(&sysfs.join("kernel/mm/hugepages"));
        nodes.push(Node { id: NumaNode(0), memory: Bytes(0), hugepages });
    }
    nodes
}

/// `Node 0 MemTotal:  8052420 kB`
fn memory(node: &Path) -> Bytes {
    let text = fs::read_to_string(node.join("meminfo")).unwrap_or_default();
    let line = text.lines().find(|line| line.contains("MemTotal:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    Bytes(kibibytes.unwrap_or(0).saturating_mul(1024))
}

fn hugepages(folder: &Path) -> Vec<HugePages> {
    let mut pages: Vec<HugePages> = names(folder)
        .iter()
        .filter_map(|name| {
            let kibibytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some(HugePages {
                size: Bytes(kibibytes.checked_mul(1024)?),
                total: number(&folder.join(name).join("nr_hugepages"))?,
                free: number(&folder.join(name).join("free_hugepages"))?,
            })
        })
        .collect();
    pages.sort_by_key(|pages| pages.size);
    pages
}

fn devices(sysfs: &Path) -> Vec<Device> {
    let classes = [("infiniband", DeviceKind::Verbs), ("net", DeviceKind::Net)];
    let mut devices = Vec::new();
    for (class, kind) in classes {
        let folder = sysfs.join("class").join(class);
        for name in names(&folder) {
            // The kernel writes -1 where it doesn't know the node.
            let node = number(&folder.join(&name).join("device/numa_node"));
            let node = node.and_then(|node| u32::try_from(node).ok()).map(NumaNode);
            devices.push(Device { name, kind, node });
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own under the build's, gone with the value.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("dataplane-topology-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn nodes_and_devices_come_from_sysfs() {
        let tree = Tree::new(
            "sysfs",
            &[
                ("devices/system/node/node1/meminfo", "Node 1 MemTotal:       2048 kB\nNode 1 MemFree: 1 kB\n"),
                ("devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "4\n"),
                ("devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "3\n"),
                ("devices/system/node/possible", "1\n"),
                ("class/infiniband/mlx5_0/device/numa_node", "1\n"),
                ("class/net/eth0/device/numa_node", "-1\n"),
                ("class/net/lo/mtu", "65536\n"),
            ],
        );
        let hugepages = vec![HugePages { size: Bytes(2 << 20), total: 4, free: 3 }];
        assert_eq!(nodes(&tree.0), [Node { id: NumaNode(1), memory: Bytes(2 << 20), hugepages }]);
        let topology = Topology::from_parts(Vec::new(), Vec::new(), Vec::new(), devices(&tree.0));
        let found: Vec<_> = topology.devices().iter().map(|device| (device.name.as_str(), device.node)).collect();
        assert_eq!(found, [("mlx5_0", Some(NumaNode(1))), ("eth0", None), ("lo", None)]);
        assert_eq!(topology.node_of_device("mlx5_0"), Some(NumaNode(1)));
        assert_eq!(topology.node_of_device("lo"), None);
    }

    #[test]
    fn a_kernel_without_nodes_has_one() {
        let tree = Tree::new("flat", &[("kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")]);
        assert_eq!(nodes(&tree.0).len(), 1);
        assert!(devices(&tree.0).is_empty());
    }

    #[test]
    fn this_machine_has_a_core_that_may_be_used() {
        let topology = Topology::discover().unwrap();
        let core = topology.allowed().next().unwrap();
        assert!(topology.nodes().iter().any(|node| node.id == core.node));
        for cache in topology.caches() {
            assert!(cache.cores.iter().all(|&id| topology.core(id).is_some()));
        }
    }
}
