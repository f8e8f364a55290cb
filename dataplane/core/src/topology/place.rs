//! Placement of workers on cores.

use std::collections::HashSet;

use serde::Serialize;

use super::Topology;
use crate::error::{Error, Result};
use crate::units::{CoreId, NumaNode};

/// The number of workers and their cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workers {
    /// One worker on the best core.
    #[default]
    Auto,
    /// This number of workers on the best cores.
    Count(usize),
    /// One worker on each of these cores.
    Cores(Vec<CoreId>),
}

impl Topology {
    /// Returns the cores of the workers, in the order of the workers.
    ///
    /// If `workers` does not list cores, this function selects the best allowed cores. The criteria, most important
    /// first:
    ///
    /// 1. The core is on one of the nodes in `near`. If `near` is empty, this criterion does not apply.
    /// 2. The node of the core has memory.
    /// 3. The core is not core 0, which the kernel uses for much of its own work.
    /// 4. The core is the first thread of its physical core. Core 0 is never the first thread if another thread of its
    ///    physical core is allowed.
    /// 5. The core has a lower number.
    ///
    /// # Errors
    ///
    /// [`Error::Topology`] if the number of workers is 0 or above the number of allowed cores. Also [`Error::Topology`]
    /// if a listed core does not exist, is offline, is not allowed or is listed twice. The message lists the allowed
    /// cores.
    pub fn place(&self, workers: &Workers, near: &[NumaNode]) -> Result<Vec<CoreId>> {
        let count = match workers {
            Workers::Auto => 1,
            Workers::Count(count) => *count,
            Workers::Cores(cores) => return self.check(cores).map(|()| cores.clone()),
        };
        let ranked = self.ranked(near);
        if count == 0 || ranked.len() < count {
            return Err(Error::Topology(format!(
                "{count} workers cannot be placed: this process may use {} cores ({})",
                ranked.len(),
                self.allowed_list()
            )));
        }
        Ok(ranked.into_iter().take(count).collect())
    }

    /// Returns all allowed cores, best first.
    fn ranked(&self, near: &[NumaNode]) -> Vec<CoreId> {
        let mut taken = HashSet::new();
        // Core 0 is sorted last. The hyperthread that shares a physical core with core 0 therefore counts as the first
        // thread of this physical core.
        let mut cores: Vec<_> = self.allowed().collect();
        cores.sort_by_key(|core| (core.id == CoreId(0), core.id));
        let mut ranked: Vec<_> = cores
            .into_iter()
            .map(|core| {
                let remote = !near.is_empty() && !near.contains(&core.node);
                let sibling = !taken.insert(core.physical);
                (remote, !self.has_memory(core.node), core.id == CoreId(0), sibling, core.id)
            })
            .collect();
        ranked.sort();
        ranked.into_iter().map(|(.., id)| id).collect()
    }

    fn check(&self, cores: &[CoreId]) -> Result<()> {
        let mut seen = HashSet::new();
        for &id in cores {
            let wrong = match self.core(id) {
                None if self.offline.contains(&id) => "is offline",
                None => "does not exist",
                Some(core) if !core.allowed => "is outside the affinity mask of this process",
                Some(_) if !seen.insert(id) => "is listed for two workers",
                Some(_) => continue,
            };
            return Err(Error::Topology(format!("core {id} {wrong}: this process may use {}", self.allowed_list())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Core, Node};
    use super::*;
    use crate::units::Bytes;

    /// Returns a machine with two nodes. Each node has two physical cores, and each physical core has two threads. The
    /// two threads of the physical core n have the numbers n and n + 4, as on Linux.
    fn two_nodes() -> Topology {
        let core = |id: u32| Core {
            id: CoreId(id),
            physical: id % 4,
            package: id % 4 / 2,
            node: NumaNode(id % 4 / 2),
            allowed: true,
        };
        let node = |id| Node { id: NumaNode(id), memory: Bytes(1 << 30), allowed: true, hugepages: Vec::new() };
        Topology::from_parts((0..8).map(core).collect(), Vec::new(), (0..2).map(node).collect(), Vec::new())
    }

    fn placed(topology: &Topology, count: usize, near: &[u32]) -> Vec<u32> {
        let near: Vec<NumaNode> = near.iter().copied().map(NumaNode).collect();
        topology.place(&Workers::Count(count), &near).unwrap().into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn near_cores_come_first_and_core_0_is_last_on_its_node() {
        let topology = two_nodes();
        assert_eq!(placed(&topology, 8, &[1]), [2, 3, 6, 7, 1, 4, 5, 0]);
        assert_eq!(placed(&topology, 8, &[0]), [1, 4, 5, 0, 2, 3, 6, 7]);
        assert_eq!(placed(&topology, 8, &[]), [1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(placed(&topology, 8, &[0, 1]), [1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(topology.place(&Workers::Auto, &[NumaNode(1)]).unwrap(), [CoreId(2)]);
    }

    #[test]
    fn cores_without_local_memory_rank_lower() {
        let mut topology = two_nodes();
        topology.nodes[0].memory = Bytes(0);
        assert_eq!(placed(&topology, 8, &[]), [2, 3, 6, 7, 1, 4, 5, 0]);
        assert_eq!(placed(&topology, 3, &[0]), [1, 4, 5], "cores near the device still come first");
        topology.nodes[0].memory = Bytes(1 << 30);
        topology.nodes[1].allowed = false;
        assert_eq!(placed(&topology, 4, &[]), [1, 4, 5, 0]);
    }

    #[test]
    fn core_0_is_used_if_it_is_the_only_core() {
        assert_eq!(Topology::uniform(1).place(&Workers::Auto, &[]).unwrap(), [CoreId(0)]);
        assert_eq!(Topology::uniform(2).place(&Workers::Auto, &[]).unwrap(), [CoreId(1)]);
    }

    #[test]
    fn disallowed_cores_are_not_used() {
        let mut cores = two_nodes().cores;
        cores[2].allowed = false;
        cores[3].allowed = false;
        let topology = Topology { cores, ..two_nodes() };
        assert_eq!(placed(&topology, 3, &[1]), [6, 7, 1]);
        let error = topology.place(&Workers::Cores(vec![CoreId(2)]), &[]).unwrap_err().to_string();
        assert_eq!(error, "core 2 is outside the affinity mask of this process: this process may use 0-1, 4-7");
    }

    #[test]
    fn placement_errors_name_the_core_and_the_allowed_cores() {
        let topology = Topology::uniform(2).with_offline(vec![CoreId(2)]);
        for (workers, part) in [
            (Workers::Count(3), "3 workers cannot be placed: this process may use 2 cores (0-1)"),
            (Workers::Count(0), "0 workers"),
            (Workers::Cores(vec![CoreId(64)]), "core 64 does not exist: this process may use 0-1"),
            (Workers::Cores(vec![CoreId(2)]), "core 2 is offline"),
            (Workers::Cores(vec![CoreId(1), CoreId(1)]), "core 1 is listed for two workers"),
        ] {
            let error = topology.place(&workers, &[]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let cores = vec![CoreId(1), CoreId(0)];
        assert_eq!(topology.place(&Workers::Cores(cores.clone()), &[]).unwrap(), cores);
    }
}
