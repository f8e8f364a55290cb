//! Discovery of the machine: cores and caches from hwloc, nodes and devices from sysfs.
//!
//! The Rust binding of hwloc 2 cannot query NUMA nodes, because hwloc gives NUMA nodes a negative depth. The node of a
//! core therefore comes from the core's node set, and the properties of a node come from `/sys/devices/system/node`.

use std::fs;
use std::path::Path;

use hwloc2::{ObjectType, TopologyFlag, TopologyObject};

use super::{Cache, Core, Device, DeviceKind, HugePages, Node, Topology, parse_ranges, status_list};
use crate::error::{Error, Result};
use crate::units::{Bytes, CoreId, NumaNode};

impl Topology {
    /// Reads the topology of this machine. The affinity mask of the calling thread determines the allowed cores, and
    /// the cpuset of the thread determines the allowed nodes.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] if hwloc cannot load the topology or finds no processor.
    pub fn discover() -> Result<Self> {
        // Without the flag, hwloc omits the cores that the cpuset of a container excludes.
        let machine = hwloc2::Topology::with_flags(vec![TopologyFlag::IncludeDisallowed])
            .ok_or_else(|| Error::Topology("hwloc could not read the topology of this machine from /sys".to_owned()))?;
        let cores = cores(&machine);
        if cores.is_empty() {
            return Err(Error::Topology("hwloc found no processor on this machine; help: mount /sys".to_owned()));
        }
        let caches = caches(&machine, &cores);
        let sysfs = Path::new("/sys");
        let nodes = nodes(sysfs, status_list("Mems_allowed_list").as_deref());
        let offline = offline(sysfs, &cores);
        Ok(Self::from_parts(cores, caches, nodes, devices(sysfs)).with_offline(offline))
    }
}

fn cores(machine: &hwloc2::Topology) -> Vec<Core> {
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let units = machine.objects_with_type(&ObjectType::PU).unwrap_or_default();
    let core = |unit: &&TopologyObject| Core {
        id: CoreId(unit.os_index()),
        // The logical index is unique on the machine. The kernel's core id is unique only within a socket.
        physical: ancestor(unit, &ObjectType::Core).map_or(unit.logical_index(), TopologyObject::logical_index),
        package: ancestor(unit, &ObjectType::Package).map_or(0, TopologyObject::logical_index),
        node: NumaNode(unit.nodeset().and_then(|set| u32::try_from(set.first()).ok()).unwrap_or(0)),
        allowed: allowed.iter().any(|core| core.id == unit.os_index() as usize),
    };
    units.iter().map(core).collect()
}

/// Returns the cores that are present but unknown to hwloc, which lists only online cores.
fn offline(sysfs: &Path, cores: &[Core]) -> Vec<CoreId> {
    let present = fs::read_to_string(sysfs.join("devices/system/cpu/present")).unwrap_or_default();
    let known = |id: &CoreId| cores.iter().any(|core| core.id == *id);
    parse_ranges(&present).into_iter().map(CoreId).filter(|id| !known(id)).collect()
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

/// Returns the names of a directory's entries, or an empty list if the directory does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the nodes. `allowed` lists the nodes on which memory may be allocated. `None` means all nodes.
fn nodes(sysfs: &Path, allowed: Option<&[u32]>) -> Vec<Node> {
    let folder = sysfs.join("devices/system/node");
    let mut nodes: Vec<Node> = names(&folder)
        .iter()
        .filter_map(|name| {
            let id = name.strip_prefix("node")?.parse().ok()?;
            let folder = folder.join(name);
            Some(Node {
                id: NumaNode(id),
                memory: memory(&folder),
                allowed: allowed.is_none_or(|allowed| allowed.contains(&id)),
                hugepages: hugepages(&folder.join("hugepages")),
            })
        })
        .collect();
    if nodes.is_empty() {
        // A kernel without NUMA support shows no nodes, so all memory belongs to node 0.
        let hugepages = hugepages(&sysfs.join("kernel/mm/hugepages"));
        nodes.push(Node { id: NumaNode(0), memory: Bytes(0), allowed: true, hugepages });
    }
    nodes
}

/// Reads the memory from a line such as `Node 0 MemTotal: 8052420 kB`.
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
            let on = match kind {
                DeviceKind::Verbs => below_verbs(&folder.join(&name)),
                DeviceKind::Net => below_net(&folder.join(&name)),
            };
            let node = own_node(&folder.join(&name)).or_else(|| node_below(sysfs, &on, LAYERS));
            devices.push(Device { name, kind, lower_interfaces: on, node });
        }
    }
    devices
}

/// Returns the node of a device's hardware. The kernel writes -1 if the node is unknown.
fn own_node(device: &Path) -> Option<NumaNode> {
    number(&device.join("device/numa_node")).and_then(|node| u32::try_from(node).ok()).map(NumaNode)
}

/// The maximum nesting depth of interfaces (`MAX_NEST_DEV` of Linux).
const LAYERS: u32 = 8;

/// Returns the common node of the underlying interfaces of a virtual device, or `None` if no node is known or the known
/// nodes differ. `layers` limits the depth of the search.
fn node_below(sysfs: &Path, interfaces: &[String], layers: u32) -> Option<NumaNode> {
    let layers = layers.checked_sub(1)?;
    let node = |name: &String| {
        let folder = sysfs.join("class/net").join(name);
        own_node(&folder).or_else(|| node_below(sysfs, &below_net(&folder), layers))
    };
    let mut nodes = interfaces.iter().filter_map(node);
    let first = nodes.next()?;
    nodes.all(|node| node == first).then_some(first)
}

/// Returns the underlying interface of a verbs device without its own hardware. For rxe (Soft-RoCE), the file `parent`
/// contains the name of the interface. For other software devices, the result is the interface of the first GID.
fn below_verbs(device: &Path) -> Vec<String> {
    if device.join("device").exists() {
        return Vec::new();
    }
    let files = ["parent", "ports/1/gid_attrs/ndevs/0"].map(|file| fs::read_to_string(device.join(file)));
    let name = files.into_iter().flatten().map(|name| name.trim().to_owned()).find(|name| !name.is_empty());
    name.into_iter().collect()
}

/// Returns the underlying interfaces of a VLAN, a bond or a similar interface.
fn below_net(interface: &Path) -> Vec<String> {
    let mut below: Vec<String> =
        names(interface).iter().filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned())).collect();
    below.sort();
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_testing::Folder;

    /// Returns a folder with these files.
    fn tree(files: &[(&str, &str)]) -> Folder {
        let folder = Folder::new();
        for (path, text) in files {
            folder.write(path, text);
        }
        folder
    }

    #[test]
    fn nodes_and_devices_are_read_from_sysfs() {
        let tree = tree(&[
            ("devices/system/node/node1/meminfo", "Node 1 MemTotal:       2048 kB\nNode 1 MemFree: 1 kB\n"),
            ("devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "4\n"),
            ("devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "3\n"),
            ("devices/system/node/possible", "1\n"),
            ("class/infiniband/mlx5_0/device/numa_node", "1\n"),
            ("class/net/eth0/device/numa_node", "-1\n"),
            ("class/net/lo/mtu", "65536\n"),
            ("devices/system/cpu/present", "0-2\n"),
        ]);
        let hugepages = vec![HugePages { size: Bytes(2 << 20), total: 4, free: 3 }];
        let node = |allowed| Node { id: NumaNode(1), memory: Bytes(2 << 20), allowed, hugepages: hugepages.clone() };
        assert_eq!(nodes(tree.path(), None), [node(true)]);
        assert_eq!(nodes(tree.path(), Some(&[1])), [node(true)]);
        assert_eq!(nodes(tree.path(), Some(&[0])), [node(false)]);
        assert_eq!(offline(tree.path(), Topology::uniform(2).cores()), [CoreId(2)]);
        let topology = Topology::from_parts(Vec::new(), Vec::new(), Vec::new(), devices(tree.path()));
        let found: Vec<_> = topology.devices().iter().map(|device| (device.name.as_str(), device.node)).collect();
        assert_eq!(found, [("mlx5_0", Some(NumaNode(1))), ("eth0", None), ("lo", None)]);
        assert_eq!(topology.node_of_device("mlx5_0"), Some(NumaNode(1)));
        assert_eq!(topology.node_of_device("lo"), None);
    }

    #[test]
    fn virtual_device_has_the_node_of_its_interface() {
        let tree = tree(&[
            ("class/net/nic0/device/numa_node", "0\n"),
            ("class/net/nic1/device/numa_node", "1\n"),
            ("class/net/vlan1/lower_nic1/mtu", ""),
            ("class/net/bond0/lower_nic0/mtu", ""),
            ("class/net/bond0/lower_nic1/mtu", ""),
            ("class/net/tun0/mtu", ""),
            ("class/net/bridge1/lower_tun0/mtu", ""),
            ("class/net/bridge1/lower_vlan1/mtu", ""),
            ("class/net/ring/lower_ring/mtu", ""),
            ("class/infiniband/rxe0/parent", "nic0\n"),
            ("class/infiniband/rxe1/parent", "vlan1\n"),
            ("class/infiniband/siw1/ports/1/gid_attrs/ndevs/0", "nic1\n"),
            ("class/infiniband/lost/parent", "gone\n"),
            ("class/infiniband/bare/parent", "\n"),
        ]);
        let topology = Topology::from_parts(Vec::new(), Vec::new(), Vec::new(), devices(tree.path()));
        for (name, on, node) in [
            ("nic1", &[][..], Some(1)),
            ("vlan1", &["nic1"], Some(1)),
            ("bond0", &["nic0", "nic1"], None),
            ("bridge1", &["tun0", "vlan1"], Some(1)),
            ("ring", &["ring"], None),
            ("rxe0", &["nic0"], Some(0)),
            ("rxe1", &["vlan1"], Some(1)),
            ("siw1", &["nic1"], Some(1)),
            ("lost", &["gone"], None),
            ("bare", &[], None),
        ] {
            let device = topology.devices().iter().find(|device| device.name == name).unwrap();
            assert_eq!(
                (device.lower_interfaces.as_slice(), device.node),
                (&on.iter().map(|&on| on.to_owned()).collect::<Vec<_>>()[..], node.map(NumaNode)),
                "{name}"
            );
        }
    }

    #[test]
    fn kernel_without_numa_has_one_node() {
        let tree = tree(&[("kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")]);
        assert_eq!(nodes(tree.path(), Some(&[])).len(), 1);
        assert!(devices(tree.path()).is_empty());
    }

    #[test]
    fn this_machine_has_an_allowed_core() {
        let topology = Topology::discover().unwrap();
        let core = topology.allowed().next().unwrap();
        assert!(topology.nodes().iter().any(|node| node.id == core.node));
        for cache in topology.caches() {
            assert!(cache.cores.iter().all(|&id| topology.core(id).is_some()));
        }
    }
}
