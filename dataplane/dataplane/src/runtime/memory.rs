//! The memory that the host can give to this process, and the preferred NUMA node of this memory.

use std::fs;
use std::path::{Path, PathBuf};

use dataplane_core::mem::PreferredNumaNode;
use dataplane_core::topology::Topology;
use dataplane_core::units::CoreId;

/// Prefers the NUMA node of a core for the memory that the calling thread allocates, until the result is dropped. Returns
/// `None` if the host has only one NUMA node, if the core does not exist, or if the kernel refuses the preference.
pub(super) fn prefer_node_of(topology: &Topology, core: CoreId) -> Option<PreferredNumaNode> {
    let core = topology.core(core).filter(|_| topology.nodes().len() > 1)?;
    PreferredNumaNode::new(core.node)
}

/// Returns the memory that this process can allocate without swapping, in bytes. The result is the smaller of two
/// values: the available memory of the host (proc_meminfo(5)), and the unused memory below the limits of the control
/// groups of the process (cgroups(7)). Returns `None` if neither value is known.
pub(super) fn available() -> Option<u64> {
    available_below(Path::new("/"))
}

/// Returns the available memory according to the files below the folder `root`.
fn available_below(root: &Path) -> Option<u64> {
    let host = field(&root.join("proc/meminfo"), "MemAvailable:").map(|kib| kib << 10);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let unused = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let v2 = ["sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"];
        let v1 = ["sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
        let [mount, limit, usage, cache] = match controllers {
            "" => v2,
            _ if controllers.split(',').any(|controller| controller == "memory") => v1,
            _ => return None,
        };
        // Each ancestor of the group may have a limit too. In a container, it is possible that the folder of the group
        // is not mounted. The folder at the mount point then belongs to the group of the container.
        let folders = Path::new(group).ancestors().map(|group| {
            let below: PathBuf = group.components().skip(1).collect();
            root.join(mount).join(below)
        });
        let unused = folders.filter_map(|folder| {
            // The kernel drops cached file pages before it refuses memory.
            let cache = field(&folder.join("memory.stat"), cache).unwrap_or(0);
            let used = number(&folder.join(usage))?.saturating_sub(cache);
            Some(number(&folder.join(limit))?.saturating_sub(used))
        });
        unused.min()
    });
    host.into_iter().chain(unused).min()
}

/// Reads a file that contains one number. Returns `None` for the text `max`, which means no limit.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads the number after the word `name` at the start of a line.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_testing::Folder;

    #[test]
    fn smallest_control_group_limit_is_used() {
        let folder = Folder::new();
        let available = |files: &[(&str, &str)]| {
            for (name, text) in files {
                folder.write(name, text);
            }
            available_below(folder.path()).map(|bytes| bytes >> 20)
        };
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    4194304 kB\n")]), Some(4096));
        let group = ("proc/self/cgroup", "9:cpu:/\n4:memory:/pod/app\n0::/\n");
        let v1 = "sys/fs/cgroup/memory/pod";
        let v1_files = [
            (format!("{v1}/memory.limit_in_bytes"), "2147483648\n"),
            (format!("{v1}/memory.usage_in_bytes"), "1073741824\n"),
            (format!("{v1}/memory.stat"), "cache 7\ntotal_inactive_file 536870912\n"),
            // The value for a group without a limit.
            (format!("{v1}/app/memory.limit_in_bytes"), "9223372036854771712\n"),
            (format!("{v1}/app/memory.usage_in_bytes"), "1073741824\n"),
        ];
        let mut files = vec![group];
        files.extend(v1_files.iter().map(|(name, text)| (name.as_str(), *text)));
        assert_eq!(available(&files), Some(1536));
        // In a container, the mount point of version 2 is the folder of the container's group.
        let v2 = [
            ("proc/self/cgroup", "0::/host/pod\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.current", "104857600\n"),
        ];
        assert_eq!(available(&v2), Some(924));
        assert_eq!(available(&[("sys/fs/cgroup/memory.max", "max\n")]), Some(4096));
    }
}
