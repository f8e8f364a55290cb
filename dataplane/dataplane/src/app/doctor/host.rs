//! Checks the host: huge pages, the limit on locked memory, and the cores of the workers.

use crate::config::{Idle, NodePlan, Plan};
use dataplane_core::mem::{Memlock, PageKind};
use dataplane_core::topology::{Topology, parse_ranges};
use dataplane_core::units::CoreId;
use dataplane_soft::doctor::{Finding, Roots, Severity};

/// The number of free 2 MiB pages that the check requires without a plan.
const SOME_PAGES: u64 = 64;
const MEGABYTE_PAGE: u64 = 2 << 20;
/// The number of entries that each neighbour table of the kernel should have. Linux has 1024 by default.
const MIN_NEIGHBORS: u32 = 8192;

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
    if follows_the_kernel(plan) {
        found.extend(neighbor_tables(roots));
    }
    found
}

/// Returns `true` if a stage of the plan uses the kernel's neighbours.
fn follows_the_kernel(plan: &Plan) -> bool {
    let source = |node: &NodePlan| node.parameters.get("source").and_then(toml::Value::as_str) == Some("kernel");
    plan.nodes.iter().any(|node| node.kind == "neighbor" && source(node))
}

/// Checks the limits of the kernel's neighbour tables. The settings exist only in the initial network namespace, but
/// the limits apply to all namespaces.
fn neighbor_tables(roots: &Roots) -> Vec<Finding> {
    if roots.proc("sys/net/ipv4/neigh/default/gc_thresh3").is_none() {
        return vec![Finding::new(
            Severity::Unseen,
            "the limits of the kernel's neighbour tables are not visible in this network namespace",
            "if a table is small, a scan or a flood fills the table, and new neighbours are not resolved",
            format!(
                "in the initial network namespace, run `sysctl -w net.ipv4.neigh.default.gc_thresh3={MIN_NEIGHBORS} \
                 net.ipv6.neigh.default.gc_thresh3={MIN_NEIGHBORS}`"
            ),
        )];
    }
    let finding = |family| {
        let setting = format!("net.{family}.neigh.default.gc_thresh3");
        let limit: u32 = roots.proc(&format!("sys/{}", setting.replace('.', "/")))?.parse().ok()?;
        (limit < MIN_NEIGHBORS).then(|| {
            Finding::new(
                Severity::Slow,
                format!("the kernel's neighbour table has room for {limit} entries ({setting})"),
                "a scan or a flood of ARP or neighbour messages fills the table, and new neighbours are not resolved",
                format!("sysctl -w {setting}={MIN_NEIGHBORS}"),
            )
        })
    };
    ["ipv4", "ipv6"].into_iter().filter_map(finding).collect()
}

fn huge_pages(topology: &Topology, plan: Option<&Plan>) -> Option<Finding> {
    let kind = plan.map_or(PageKind::Huge2M, |plan| plan.runtime.hugepages);
    let name = match kind {
        PageKind::Huge2M => "2 MiB",
        PageKind::Huge1G => "1 GiB",
        PageKind::Transparent | PageKind::Normal => return None,
    };
    let size = kind.size() as u64;
    let pages = topology.nodes().iter().flat_map(|node| &node.hugepages).filter(|pages| pages.size.0 == size);
    let (free, total) = pages.fold((0, 0), |(free, total), pages| (free + pages.free, total + pages.total));
    // Every worker has its own region.
    let needed = plan.map_or(SOME_PAGES, |plan| {
        let workers = plan.cores.len().max(1) as u64;
        (plan.packet_memory() / workers).div_ceil(size) * workers
    });
    let severity = if plan.is_some_and(|plan| plan.runtime.strict_memory) { Severity::Fails } else { Severity::Slow };
    let fix = kind.reserve_command((total + needed - free.min(needed)) as usize, None);
    (free < needed).then(|| {
        let what = format!("{free} huge pages of {name} are free, but {needed} are needed");
        Finding::new(severity, what, "packet memory uses smaller pages, which causes TLB misses for every packet", fix)
    })
}

/// Checks the limit on locked memory. Only verbs devices and AF_XDP sockets lock packet memory, so a plan without such
/// ports has no finding.
fn locked_memory(plan: Option<&Plan>, limit: Memlock) -> Option<Finding> {
    let severity = match plan {
        Some(plan) if plan.ports.iter().any(|port| port.config.locks_memory()) => Severity::Fails,
        Some(_) => return None,
        None => Severity::Unseen,
    };
    let needed = plan.map_or(SOME_PAGES * MEGABYTE_PAGE, |plan| {
        let locked = plan.locked_memory(&plan.ports, plan.cores.len());
        locked.rdma.max(locked.xdp)
    });
    let shortage = limit.shortage(needed)?;
    let what = format!("the limit on locked memory is {} bytes, but {} are needed", shortage.limit, shortage.needed);
    let effect = "registering memory with a verbs device or an AF_XDP socket fails";
    Some(Finding::new(
        severity,
        what,
        effect,
        "run `ulimit -l unlimited` before the program, or `setcap cap_ipc_lock+ep PROGRAM`",
    ))
}

fn governor(roots: &Roots, cores: &[CoreId]) -> Option<Finding> {
    let governor = |core: &CoreId| roots.sys(&format!("devices/system/cpu/cpu{core}/cpufreq/scaling_governor"));
    let slow: Vec<(&CoreId, String)> = cores.iter().filter_map(|core| Some((core, governor(core)?))).collect();
    let (core, governor) = slow.into_iter().find(|(_, governor)| governor != "performance")?;
    Some(Finding::new(
        Severity::Slow,
        format!("core {core} of a worker uses the frequency governor `{governor}`"),
        "the core runs at a lower frequency and needs time to reach the full frequency",
        format!("echo performance > /sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"),
    ))
}

fn isolation(roots: &Roots, cores: &[CoreId]) -> Option<Finding> {
    let isolated = parse_ranges(&roots.sys("devices/system/cpu/isolated")?);
    let shared: Vec<String> = cores.iter().filter(|core| !isolated.contains(&core.0)).map(CoreId::to_string).collect();
    let list = shared.join(",");
    (!shared.is_empty()).then(|| {
        Finding::new(
            Severity::Slow,
            format!("the kernel runs other work on the following cores of workers: {list}"),
            "the kernel may stop a worker for milliseconds, and the receive rings overflow",
            format!(
                "add to the kernel command line: isolcpus=managed_irq,domain,{list} nohz_full={list} rcu_nocbs={list}"
            ),
        )
    })
}

/// Checks whether two workers share a physical core.
fn siblings(topology: &Topology, cores: &[CoreId]) -> Option<Finding> {
    let physical = |core: &CoreId| topology.core(*core).map(|core| core.physical);
    let (at, core) = cores.iter().enumerate().find(|(at, core)| {
        cores[..*at].iter().any(|other| physical(other).is_some() && physical(other) == physical(core))
    })?;
    Some(Finding::new(
        Severity::Slow,
        format!("worker {at} on core {core} shares a physical core with another worker"),
        "each worker gets about half of the core",
        "set `workers` to cores that do not share a physical core, as listed by `dataplane topology`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::doctor::tests::plan;

    #[test]
    fn small_neighbour_table_of_the_kernel_is_reported() {
        let proc = tempfile::tempdir().unwrap();
        let roots = Roots { sys: "/nothing".into(), proc: proc.path().to_owned() };
        let [hidden] = &neighbor_tables(&roots)[..] else { panic!("one finding") };
        assert!(hidden.severity == Severity::Unseen && hidden.fix.contains("initial network namespace"), "{hidden:?}");
        for (family, limit) in [("ipv4", "1024\n"), ("ipv6", "16384\n")] {
            let folder = proc.path().join(format!("sys/net/{family}/neigh/default"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("gc_thresh3"), limit).unwrap();
        }
        let [found] = &neighbor_tables(&roots)[..] else { panic!("one finding") };
        assert!(found.what.contains("1024 entries") && found.fix == "sysctl -w net.ipv4.neigh.default.gc_thresh3=8192");
    }

    #[test]
    fn low_memlock_limit_is_reported_with_its_fix() {
        let limit = |limit, privileged| Memlock { limit, locked: 0, privileged };
        assert_eq!(locked_memory(None, limit(u64::MAX, false)), None);
        assert_eq!(locked_memory(None, limit(8 << 20, true)), None);
        let found = locked_memory(None, limit(8 << 20, false)).unwrap();
        assert!(found.severity == Severity::Unseen && found.fix.contains("ulimit -l unlimited"), "{found:?}");
    }

    #[test]
    fn each_port_locks_the_packet_memory() {
        let port = |name| {
            format!(
                "[[port]]\nname = '{name}'\ndevice = 'host'\nmtu = 1500\nlink = {{ kind = 'xdp', interface = '{name}' }}\n"
            )
        };
        let plan = |ports: &str| {
            plan(&format!(
                "[runtime]\nworkers = 1\nbuffers = 16384\n{ports}[pipeline]\ninput = ['a']\n[[pipeline.stage]]\n\
                 use = 'drop'\n"
            ))
        };
        let (one, two) = (plan(&port("a")), plan(&(port("a") + &port("b"))));
        // The limit allows the packet memory of one port, but not of two ports.
        let limit = Memlock { limit: one.packet_memory() * 3 / 2, locked: 0, privileged: false };
        assert_eq!(locked_memory(Some(&one), limit), None);
        assert_eq!(locked_memory(Some(&two), limit).map(|found| found.severity), Some(Severity::Fails));
    }
}
