//! The host: pages, the limit on locked memory, and the cores of the workers.

use super::{Finding, Roots, Severity, numbers};
use crate::config::{self, Hugepages, Idle, Link, Plan, PortPlan};
use crate::mem::{Memlock, PageKind};
use crate::topology::Topology;
use crate::units::CoreId;

/// What a plan on 2 MiB pages would like to find where there is no plan.
const SOME_PAGES: u64 = 64;
const MEGABYTE_PAGE: u64 = 2 << 20;
const GIGABYTE_PAGE: u64 = 1 << 30;

pub(super) fn findings(roots: &Roots, topology: &Topology, plan: Option<&Plan>) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(huge_pages(topology, plan));
    found.extend(locked_memory(plan, Memlock::of_this_process()));
    let Some(plan) = plan else { return found };
    found.extend(governor(roots, &plan.cores));
    if plan.runtime.idle == Idle::Spin {
        found.extend(isolation(roots, &plan.cores));
    }
    found.extend(siblings(topology, &plan.cores));
    found
}

/// Bytes of packet memory that all workers take.
fn bytes(plan: &Plan) -> u64 {
    u64::from(plan.buffers) * u64::from(plan.runtime.buffer_size) * plan.cores.len() as u64
}

fn huge_pages(topology: &Topology, plan: Option<&Plan>) -> Option<Finding> {
    let size = match plan.map(|plan| plan.runtime.hugepages) {
        None | Some(Hugepages::Megabyte) => MEGABYTE_PAGE,
        Some(Hugepages::Gigabyte) => GIGABYTE_PAGE,
        Some(Hugepages::Transparent | Hugepages::None) => return None,
    };
    let pages = topology.nodes().iter().flat_map(|node| &node.hugepages).filter(|pages| pages.size.0 == size);
    let (free, total) = pages.fold((0, 0), |(free, total), pages| (free + pages.free, total + pages.total));
    // Every worker has a region of its own.
    let needed = plan.map_or(SOME_PAGES, |plan| {
        let workers = plan.cores.len().max(1) as u64;
        (bytes(plan) / workers).div_ceil(size) * workers
    });
    let name = if size == MEGABYTE_PAGE { "2 MiB" } else { "1 GiB" };
    let severity = if plan.is_some_and(|plan| plan.runtime.strict) { Severity::Fails } else { Severity::Slow };
    let kind = if size == MEGABYTE_PAGE { PageKind::Huge2M } else { PageKind::Huge1G };
    let fix = kind.reserve((total + needed - free.min(needed)) as usize, None);
    (free < needed).then(|| {
        let what = format!("{free} huge pages of {name} are free, and {needed} are wanted");
        Finding::new(severity, what, "packet memory on smaller pages: address translations for every packet", fix)
    })
}

/// Only what is registered is locked: for verbs devices and AF_XDP sockets.
fn locked_memory(plan: Option<&Plan>, limit: Memlock) -> Option<Finding> {
    let registers =
        |port: &PortPlan| port.config.device != config::SOFT || matches!(port.config.link, Some(Link::Xdp(_)));
    let severity = match plan {
        Some(plan) if plan.ports.iter().any(registers) => Severity::Fails,
        Some(_) => return None,
        None => Severity::Unseen,
    };
    let shortage = limit.shortage(plan.map_or(SOME_PAGES * MEGABYTE_PAGE, bytes))?;
    let what = format!("{} bytes may be locked, and {} are wanted", shortage.limit, shortage.needed);
    let costs = "memory cannot be registered with a verbs device or an AF_XDP socket";
    Some(Finding::new(severity, what, costs, "ulimit -l unlimited, or setcap cap_ipc_lock+ep on the program"))
}

fn governor(roots: &Roots, cores: &[CoreId]) -> Option<Finding> {
    let governor = |core: &CoreId| roots.sys(&format!("devices/system/cpu/cpu{core}/cpufreq/scaling_governor"));
    let slow: Vec<(&CoreId, String)> = cores.iter().filter_map(|core| Some((core, governor(core)?))).collect();
    let (core, governor) = slow.into_iter().find(|(_, governor)| governor != "performance")?;
    Some(Finding::new(
        Severity::Slow,
        format!("core {core} of a worker has the frequency governor `{governor}`"),
        "a lower clock, and time until it rises",
        format!("echo performance > /sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"),
    ))
}

fn isolation(roots: &Roots, cores: &[CoreId]) -> Option<Finding> {
    let isolated = numbers(&roots.sys("devices/system/cpu/isolated")?);
    let shared: Vec<String> = cores.iter().filter(|core| !isolated.contains(&core.0)).map(CoreId::to_string).collect();
    let list = shared.join(",");
    (!shared.is_empty()).then(|| {
        Finding::new(
            Severity::Slow,
            format!("the kernel runs other work on cores {list}, where workers spin"),
            "pauses of milliseconds, in which rings overflow",
            format!(
                "on the kernel's command line: isolcpus=managed_irq,domain,{list} nohz_full={list} rcu_nocbs={list}"
            ),
        )
    })
}

/// Two workers on one physical core.
fn siblings(topology: &Topology, cores: &[CoreId]) -> Option<Finding> {
    let physical = |core: &CoreId| topology.core(*core).map(|core| core.physical);
    let (at, core) = cores.iter().enumerate().find(|(at, core)| {
        cores[..*at].iter().any(|other| physical(other).is_some() && physical(other) == physical(core))
    })?;
    Some(Finding::new(
        Severity::Slow,
        format!("worker {at} on core {core} shares a physical core with another worker"),
        "each has about half of it",
        "name cores in `workers` that `dataplane topology` shows on different physical cores",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_on_locked_memory_that_is_too_low_is_told() {
        let limit = |limit, privileged| Memlock { limit, locked: 0, privileged };
        assert_eq!(locked_memory(None, limit(u64::MAX, false)), None);
        assert_eq!(locked_memory(None, limit(8 << 20, true)), None);
        let found = locked_memory(None, limit(8 << 20, false)).unwrap();
        assert!(found.severity == Severity::Unseen && found.fix.contains("ulimit -l unlimited"), "{found:?}");
    }
}
