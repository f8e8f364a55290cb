//! Checks network interfaces for problems that affect every kind of link. Each kind of link adds its own checks.

use std::{fs, io};

use super::super::privileges::names;
use super::section::Section;
use crate::config::{
    ETHERNET_HEADER, FlowRuleConfig, NodePlan, Plan, Port, PortPlan, Qp, ROCE_HEADERS, interface_mtu_for_datagrams,
    path_mtu_of_interface,
};
use crate::runtime::rdma_interface;
use dataplane_core::topology::parse_ranges;
use dataplane_core::units::CoreId;
use dataplane_soft::config::{LinkParameters, MAX_HEADER};
use dataplane_soft::doctor::{Finding, LinkCase, Roots, Severity};
use dataplane_soft::{InterfaceFacts, of_unused_interface};

/// Flow rules for the frames that most pipelines need, without the LACP frames of a bond.
const WITHOUT_LACP: &str =
    "[{ match = { ethernet = { type = 0x0806 } } }, { match = { ipv4 = {} } }, { match = { ipv6 = {} } }]";

/// An interface to check, with the link, the workers and the port that use the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) name: &'a str,
    /// The link that uses the interface. `None` for the interface of an RDMA port, and if no port uses the interface.
    pub(super) link: Option<&'a dyn LinkParameters>,
    /// The cores of the workers.
    pub(super) cores: &'a [CoreId],
    pub(super) port: Option<&'a PortPlan>,
}

impl Case<'_> {
    /// Returns `true` if the port is at the opposite end of the interface, as with a TAP link.
    fn is_host_end(&self) -> bool {
        self.link.is_some_and(|link| link.is_host_end())
    }
}

/// Checks the interfaces of a plan.
pub(super) fn of_plan(roots: &Roots, plan: &Plan) -> Vec<Section> {
    let mut sections = Vec::new();
    for (place, port) in plan.ports.iter().enumerate() {
        let Some(link) = port.config.link.as_deref() else {
            sections.extend(of_rdma(roots, plan, place, port));
            continue;
        };
        let Some(name) = link.interface() else { continue };
        let source =
            |node: &NodePlan| node.parameters.get("source").and_then(|source| source.as_str()) == Some("kernel");
        // Stages with `source = "kernel"` need the kernel, and the kernel needs some frames of the port's kernel
        // interface, such as ARP messages. The link may take these frames. If the key `interface` of the port is set,
        // the kernel needs the frames of that interface, and not the frames that the link takes.
        let follows_kernel = port.config.interface.is_none() && plan.nodes.iter().any(source);
        let case = Case { name, link: Some(link), cores: &plan.cores, port: Some(port) };
        let interface = InterfaceFacts::of(name);
        let mut findings = findings(roots, &case, &interface);
        findings.extend(link.starved_kernel().filter(|_| follows_kernel));
        let subject = format!("port `{}`, interface `{name}`", port.config.name);
        let section = Section::new(subject, format!("port[{place}].link"), findings);
        let facts = interface.ok().flatten().filter(|_| port.input).and_then(|facts| link.uncounted_losses(&facts));
        sections.push(Section { facts: facts.into_iter().collect(), ..section });
    }
    sections
}

/// Checks the interface of a port for raw packets or datagrams on an RDMA device. The frames of the port bypass the
/// kernel, so only some checks apply.
fn of_rdma(roots: &Roots, plan: &Plan, place: usize, port: &PortPlan) -> Option<Section> {
    let config = &port.config;
    let name = rdma_interface::find(&roots.sys, &config.device, config.device_port)?;
    let facts = InterfaceFacts::of(&name).ok()??;
    let case = Case { name: &name, link: None, cores: &plan.cores, port: Some(port) };
    let findings = match config.qp {
        Qp::RawPacket => vec![down(&case, &facts), lacp(roots, &case), node(roots, &case), mtu(&case, &facts)],
        Qp::Ud => vec![path_mtu(&case, &facts)],
        Qp::Rc | Qp::Uc => return None,
    };
    let subject = format!("port `{}`, interface `{name}`", port.config.name);
    Some(Section::new(subject, format!("port[{place}].device"), findings.into_iter().flatten().collect()))
}

/// Checks whether the flow rules of a raw-packet port take the LACP frames of a bond of the kernel.
fn lacp(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    let (name, port) = (case.name, case.port.filter(|port| port.input)?);
    let master = format!("class/net/{name}/master");
    let mode = roots.sys(&format!("{master}/bonding/mode"))?;
    let rules = port.config.flow.as_deref();
    if !mode.starts_with("802.3ad") || rules.is_some_and(|rules| !rules.iter().any(FlowRuleConfig::takes_lacp)) {
        return None;
    }
    let bond = fs::read_link(roots.sys.join(&master)).ok();
    let bond = bond.and_then(|path| Some(format!("`{}`", path.file_name()?.to_str()?)));
    let bond = bond.unwrap_or_else(|| "a bond".to_owned());
    Some(Finding::new(
        Severity::Breaks,
        format!("the interface is part of {bond} (802.3ad), and the port takes the LACP frames of the bond"),
        "the kernel gets no LACP frames, and the switch removes the link from the aggregate",
        format!("flow = {WITHOUT_LACP} for the port, or `ip link set dev {name} nomaster`"),
    ))
}

/// Checks whether the datagrams of a port can carry the packets of the port.
fn path_mtu(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let (name, mtu) = (case.name, case.port?.config.max_packet());
    let (needed, path_mtu) = (mtu + ETHERNET_HEADER, path_mtu_of_interface(facts.mtu));
    (facts.is_ethernet && needed > path_mtu).then(|| {
        let of_interface = interface_mtu_for_datagrams(mtu)
            .map_or_else(String::new, |mtu| format!(", or `ip link set dev {name} mtu {mtu}`"));
        // Some drivers, such as irdma, do not subtract the RoCE headers from the MTU of the interface.
        let can_run = needed <= path_mtu_of_interface(facts.mtu + ROCE_HEADERS);
        let (severity, effect) = match can_run {
            true => (
                Severity::Unseen,
                "the run fails at its start, unless the driver subtracts fewer header bytes, as irdma does",
            ),
            false => (Severity::Fails, "the run fails at its start"),
        };
        Finding::new(
            severity,
            format!(
                "the MTU of the interface is {}, so the path MTU is {path_mtu}, but mtu {mtu} of the port needs datagrams \
                 of {needed} bytes",
                facts.mtu
            ),
            effect,
            format!("mtu = {} in the config{of_interface}", path_mtu - MAX_HEADER),
        )
    })
}

/// Checks all interfaces that a link could use.
pub(super) fn all(roots: &Roots) -> Vec<Section> {
    let mut sections = Vec::new();
    for name in roots.sys_names("class/net").iter().filter(|name| *name != "lo") {
        let facts = InterfaceFacts::of(name);
        if !matches!(&facts, Ok(Some(facts)) if facts.is_ethernet) {
            continue;
        }
        let driver = facts.as_ref().ok().and_then(|facts| facts.as_ref()?.driver.clone());
        let driver = driver.map_or(String::new(), |driver| format!(", driver {driver}"));
        let case = Case { name, link: None, cores: &[], port: None };
        let subject = format!("interface `{name}`{driver}");
        sections.push(Section::new(subject, "", findings(roots, &case, &facts)));
    }
    sections
}

/// Returns the findings for one interface. Without a link, the checks of all kinds of links run.
pub(super) fn findings(roots: &Roots, case: &Case<'_>, facts: &io::Result<Option<InterfaceFacts>>) -> Vec<Finding> {
    let name = case.name;
    let mut found: Vec<Finding> = capabilities(roots, case).into_iter().collect();
    let facts = match facts {
        Ok(Some(facts)) => facts,
        // The run creates a missing TAP interface.
        Ok(None) if case.is_host_end() => return found,
        Ok(None) => {
            found.push(Finding::new(
                Severity::Fails,
                format!("there is no interface `{name}` in this network namespace"),
                "the run fails at its start",
                "run `ip link` to list the interfaces",
            ));
            return found;
        }
        Err(error) => {
            found.push(Finding::new(
                Severity::Fails,
                error.to_string(),
                "the interface cannot be checked",
                "run `ip link` to list the interfaces",
            ));
            return found;
        }
    };
    if !facts.is_ethernet {
        let what = "the interface does not carry Ethernet frames";
        found.push(Finding::new(
            Severity::Fails,
            what,
            "the run fails at its start",
            "run `ip -details link show` to find an Ethernet interface",
        ));
        return found;
    }
    found.extend(down(case, facts));
    found.extend(master(roots, name));
    found.extend(wireless(roots, name));
    let link_case = LinkCase { roots, name, facts, workers: case.cores.len() };
    found.extend(match case.link {
        Some(link) => link.host_problems(&link_case),
        None => of_unused_interface(&link_case),
    });
    found.extend(merging(case, facts));
    found.extend(ring(case, facts));
    found.extend(interrupts(roots, case));
    found.extend(node(roots, case));
    found.extend(mtu(case, facts));
    found
}

/// Checks whether an interface that a port uses is down.
fn down(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let is_used = case.link.is_some() || case.port.is_some();
    (is_used && !facts.is_up && !case.is_host_end()).then(|| {
        let fix = format!("ip link set dev {} up", case.name);
        Finding::new(Severity::Breaks, "the interface is down", "nothing is received or sent", fix)
    })
}

fn capabilities(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    let missing = case.link?.capabilities() - roots.capabilities();
    let list = names(missing).join(",");
    (!missing.is_empty()).then(|| {
        let fix = format!("setcap {list}+ep PROGRAM, or run the program as root");
        Finding::new(Severity::Fails, format!("this process lacks {list}"), "the link cannot be opened", fix)
    })
}

/// Checks whether the interface belongs to a bridge or a bond of the kernel.
fn master(roots: &Roots, name: &str) -> Option<Finding> {
    let folder = roots.sys_names(&format!("class/net/{name}"));
    let has = |entry: &str| folder.iter().any(|it| it == entry);
    let of = match (has("brport"), has("master")) {
        (true, _) => "a port of a bridge",
        (_, true) => "part of another interface, such as a bond",
        _ => return None,
    };
    Some(Finding::new(
        Severity::Breaks,
        format!("the interface is {of} of the kernel"),
        "with a `packet` link, the kernel also forwards the frames; with an `xdp` link, the kernel gets no frames",
        format!("ip link set dev {name} nomaster"),
    ))
}

fn wireless(roots: &Roots, name: &str) -> Option<Finding> {
    let folder = roots.sys_names(&format!("class/net/{name}"));
    folder.iter().any(|entry| entry == "wireless" || entry == "phy80211").then(|| {
        Finding::new(
            Severity::Breaks,
            "the interface is wireless",
            "access points drop frames whose source is not the address of the interface, and wireless drivers have no XDP",
            "use a wired interface, or send only with the interface's own address",
        )
    })
}

/// Checks whether the hardware merges received packets.
fn merging(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let name = case.name;
    (facts.lro == Some(true)).then(|| {
        Finding::new(
            Severity::Breaks,
            "the hardware merges received packets (LRO)",
            "merged packets may exceed the MTU of the next hop and cannot be split into the original \
             packets, and native XDP fails",
            format!("ethtool -K {name} lro off"),
        )
    })
}

fn ring(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let (entries, most) = facts.receive_ring?;
    (entries < most).then(|| {
        let fix = format!("ethtool -G {} rx {most}", case.name);
        let what = format!("the receive ring has {entries} entries, but supports {most}");
        Finding::new(Severity::Slow, what, "the hardware drops packets if the core is busy during a burst", fix)
    })
}

/// Checks for interrupts of the interface on the core of a worker.
fn interrupts(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    // With busy polling, the driver's work belongs on the worker's core.
    if case.link.is_some_and(|link| link.polls_driver()) || case.cores.is_empty() {
        return None;
    }
    let lands = |irq: &String| {
        let effective = roots.proc(&format!("irq/{irq}/effective_affinity_list"));
        let list = effective
            .filter(|list| !list.is_empty())
            .or_else(|| roots.proc(&format!("irq/{irq}/smp_affinity_list")))?;
        let on = parse_ranges(&list);
        case.cores.iter().copied().find(|core| on.contains(&core.0))
    };
    let irqs = roots.sys_names(&format!("class/net/{}/device/msi_irqs", case.name));
    // For a virtio interface, the parent device lists the interrupts.
    let irqs =
        if irqs.is_empty() { roots.sys_names(&format!("class/net/{}/device/../msi_irqs", case.name)) } else { irqs };
    let here: Vec<(String, CoreId)> = irqs.into_iter().filter_map(|irq| lands(&irq).map(|core| (irq, core))).collect();
    let (first, core) = here.first()?;
    let list: Vec<&str> = here.iter().map(|(irq, _)| irq.as_str()).collect();
    Some(Finding::new(
        Severity::Slow,
        format!("the interrupts {} of the interface are handled on core {core} of a worker", list.join(", ")),
        "the kernel's receive processing interrupts the worker",
        format!("echo CORE > /proc/irq/{first}/smp_affinity_list, where CORE is on the same node and has no worker"),
    ))
}

fn node(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    let of_interface = roots.sys(&format!("class/net/{}/device/numa_node", case.name))?.parse::<u32>().ok()?;
    let of_core = |core: &CoreId| {
        let entries = roots.sys_names(&format!("devices/system/cpu/cpu{core}"));
        entries.iter().find_map(|entry| entry.strip_prefix("node")?.parse::<u32>().ok())
    };
    let far = case.cores.iter().find(|core| of_core(core).is_some_and(|node| node != of_interface))?;
    let near = roots.sys(&format!("devices/system/node/node{of_interface}/cpulist")).unwrap_or_default();
    Some(Finding::new(
        Severity::Slow,
        format!("the interface is on NUMA node {of_interface}, but core {far} of a worker is not"),
        "every descriptor and frame crosses NUMA nodes",
        format!("set workers = [..] in the config to cores of {near}"),
    ))
}

fn mtu(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let wanted = case.port?.config.max_packet();
    let name = case.name;
    (facts.mtu != wanted && !case.is_host_end()).then(|| {
        let of_interface = format!("ip link set dev {name} mtu {wanted}");
        // The MTU of an interface may be outside the range of `mtu`. For example, the MTU of `lo` is 65536.
        let fix = match Port::MTU.contains(&facts.mtu) {
            true => format!("{of_interface}, or mtu = {} in the config", facts.mtu),
            false => format!("{of_interface} (the mtu of a port is {} to {})", Port::MTU.start(), Port::MTU.end()),
        };
        let effect = match case.link {
            Some(_) => "packets longer than the smaller MTU are dropped and counted".to_owned(),
            // The driver of an RDMA NIC sets the MTU of the NIC's port, also for the frames that bypass the kernel
            // (`mlx5e_set_mtu`).
            None if facts.mtu < wanted => {
                format!("the NIC drops longer frames, and counts them only in `rx_errors` of `{name}`")
            }
            None => "received frames that do not fit into a packet buffer are dropped, and counted in `rx_errors` of \
                     the port"
                .to_owned(),
        };
        Finding::new(
            Severity::Breaks,
            format!("the MTU of the interface is {}, but the mtu of the port is {wanted}", facts.mtu),
            effect,
            fix,
        )
    })
}
