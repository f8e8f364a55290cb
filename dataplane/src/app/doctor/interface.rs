//! Interfaces: what a link to one will meet.

use std::io;

use super::{Finding, Roots, Section, Severity, numbers};
use crate::config::{Link, NodePlan, Plan, Port, PortPlan, Xdp, XdpCopy, XdpMode};
use crate::provider::soft::{InterfaceFacts, XdpProgram};
use crate::units::CoreId;

/// What an interface is used as.
#[derive(Clone, Copy, Debug)]
pub(super) enum Used<'a> {
    /// By nothing yet: what each kind of link would meet.
    Not,
    Packet,
    Tap,
    Xdp(&'a Xdp),
}

/// An interface, how it is used, and by whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) name: &'a str,
    pub(super) used: Used<'a>,
    /// Those of the workers.
    pub(super) cores: &'a [CoreId],
    pub(super) port: Option<&'a PortPlan>,
}

/// Capabilities by their bits (`capabilities(7)`).
const NET_ADMIN: (u32, &str) = (12, "cap_net_admin");
const NET_RAW: (u32, &str) = (13, "cap_net_raw");
const BPF: (u32, &str) = (39, "cap_bpf");

/// Looks at the interfaces of a plan.
pub(super) fn of_plan(roots: &Roots, plan: &Plan) -> Vec<Section> {
    let mut sections = Vec::new();
    for port in &plan.ports {
        let used = match &port.config.link {
            Some(Link::Packet(_)) => Used::Packet,
            Some(Link::Tap(_)) => Used::Tap,
            Some(Link::Xdp(link)) => Used::Xdp(link),
            _ => continue,
        };
        let Some(name) = port.config.link.as_ref().and_then(Link::interface) else { continue };
        let case = Case { name, used, cores: &plan.cores, port: Some(port) };
        let mut findings = findings(roots, &case, &InterfaceFacts::of(name));
        findings.extend(starved_kernel(plan, &case));
        sections.push(Section { subject: format!("port `{}`, interface `{name}`", port.config.name), findings });
    }
    sections
}

/// Looks at all interfaces that a link could be.
pub(super) fn all(roots: &Roots) -> Vec<Section> {
    let mut sections = Vec::new();
    for name in roots.sys_names("class/net").iter().filter(|name| *name != "lo") {
        let facts = InterfaceFacts::of(name);
        if !matches!(&facts, Ok(Some(facts)) if facts.is_ethernet) {
            continue;
        }
        let driver = facts.as_ref().ok().and_then(|facts| facts.as_ref()?.driver.clone());
        let driver = driver.map_or(String::new(), |driver| format!(", driver {driver}"));
        let case = Case { name, used: Used::Not, cores: &[], port: None };
        sections
            .push(Section { subject: format!("interface `{name}`{driver}"), findings: findings(roots, &case, &facts) });
    }
    sections
}

/// What was found of one interface.
pub(super) fn findings(roots: &Roots, case: &Case<'_>, facts: &io::Result<Option<InterfaceFacts>>) -> Vec<Finding> {
    let name = case.name;
    let mut found: Vec<Finding> = capabilities(roots, case).into_iter().collect();
    let facts = match facts {
        Ok(Some(facts)) => facts,
        // One that is not there is made.
        Ok(None) if matches!(case.used, Used::Tap) => return found,
        Ok(None) => {
            found.push(Finding::new(
                Severity::Fails,
                "there is no such interface in this network namespace",
                "the run ends at its start",
                "ip link shows those that there are",
            ));
            return found;
        }
        Err(error) => {
            found.push(Finding::new(Severity::Fails, error.to_string(), "nothing is known of it", "ip link"));
            return found;
        }
    };
    if !facts.is_ethernet {
        let what = "it does not carry Ethernet frames";
        found.push(Finding::new(Severity::Fails, what, "the run ends at its start", "ip -details link show"));
        return found;
    }
    if !facts.is_up && !matches!(case.used, Used::Tap | Used::Not) {
        let fix = format!("ip link set dev {name} up");
        found.push(Finding::new(Severity::Breaks, "it is down", "nothing is received or sent", fix));
    }
    found.extend(master(roots, name));
    found.extend(wireless(roots, name));
    found.extend(xdp(case, facts));
    found.extend(merging(case, facts));
    found.extend(ring(case, facts));
    found.extend(queues(case, facts));
    found.extend(interrupts(roots, case));
    found.extend(node(roots, case));
    found.extend(forwarding(roots, case));
    found.extend(reverse_path(roots, case));
    found.extend(mtu(case, facts));
    found
}

fn capabilities(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    let needed: &[(u32, &str)] = match case.used {
        Used::Not => return None,
        Used::Packet => &[NET_RAW],
        Used::Tap => &[NET_ADMIN],
        Used::Xdp(_) => &[NET_ADMIN, BPF, NET_RAW],
    };
    let missing: Vec<&str> =
        needed.iter().filter(|(bit, _)| !roots.has_capability(*bit)).map(|(_, name)| *name).collect();
    let list = missing.join(",");
    (!missing.is_empty()).then(|| {
        let fix = format!("setcap {list}+ep on the program, or run it as root");
        Finding::new(Severity::Fails, format!("{list} is missing here"), "the link is refused", fix)
    })
}

/// It belongs to a bridge or a bond.
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
        format!("it is {of} of the kernel"),
        "the kernel passes the same frames on: they come twice, or an XDP program takes them from it",
        format!("ip link set dev {name} nomaster"),
    ))
}

fn wireless(roots: &Roots, name: &str) -> Option<Finding> {
    let folder = roots.sys_names(&format!("class/net/{name}"));
    folder.iter().any(|entry| entry == "wireless" || entry == "phy80211").then(|| {
        Finding::new(
            Severity::Breaks,
            "it is wireless",
            "an access point drops frames whose source is not the interface itself; no driver of these has XDP",
            "name a wired interface, or send by its own address alone",
        )
    })
}

fn xdp(case: &Case<'_>, facts: &InterfaceFacts) -> Vec<Finding> {
    let name = case.name;
    let driver = facts.driver.as_deref().unwrap_or("of unknown name");
    let mut found = Vec::new();
    let link = match case.used {
        Used::Xdp(link) => Some(link),
        Used::Not => None,
        Used::Packet | Used::Tap => return found,
    };
    if let Some(XdpProgram { program, link: held }) = facts.program {
        let what = format!("it has an XDP program already (number {program})");
        let fix = match held {
            Some(held) => format!("bpftool link detach id {held}, or end the process that holds it"),
            None => format!("ip link set dev {name} xdp off, or xdpgeneric off if that is its mode"),
        };
        let severity = if link.is_some() { Severity::Fails } else { Severity::Slow };
        found.push(Finding::new(severity, what, "a link of kind `xdp` is refused", fix));
    }
    // A kernel that does not say is asked by the run itself, which tells.
    let Some(support) = facts.xdp else { return found };
    let mode = link.map_or(XdpMode::Auto, |link| link.mode);
    let copy = link.map_or(XdpCopy::Auto, |link| link.copy);
    if !support.native && mode != XdpMode::Generic {
        let severity = if mode == XdpMode::Native { Severity::Fails } else { Severity::Slow };
        found.push(Finding::new(
            severity,
            format!("its driver ({driver}) runs no XDP programs, or not as it is set up now"),
            "link `xdp`: the kernel runs the program, after a socket buffer was made of the frame (generic mode)",
            "an interface whose driver has native XDP; or write mode = \"generic\" to accept it",
        ));
    } else if !support.zero_copy && copy != XdpCopy::Copy {
        let severity = if copy == XdpCopy::Zero { Severity::Fails } else { Severity::Slow };
        found.push(Finding::new(
            severity,
            format!("its driver ({driver}) has no zero-copy AF_XDP"),
            "link `xdp`: the kernel copies every frame, both ways",
            "an interface whose driver has it; or write copy = \"copy\" to accept it",
        ));
    }
    if facts.takes_tags == Some(true) && facts.driver.as_deref() != Some("veth") {
        let fix = format!("ethtool -K {name} rxvlan off");
        let costs = "link `xdp`: AF_XDP has no words for a tag that was taken off: it is lost";
        found.push(Finding::new(Severity::Breaks, "the hardware takes VLAN tags off", costs, fix));
    }
    if facts.driver.as_deref() == Some("veth") && link.is_some() {
        found.push(Finding::new(
            Severity::Unseen,
            "it is one end of a veth pair, whose other end may leave checksums and VLAN tags to hardware that is not there",
            "link `xdp`: AF_XDP has no words for either: what the peer's own programs send comes without them",
            "at the other end: ethtool -K PEER tx off txvlan off",
        ));
    }
    found
}

/// What merges packets before they come here.
fn merging(case: &Case<'_>, facts: &InterfaceFacts) -> Vec<Finding> {
    let name = case.name;
    let mut found = Vec::new();
    if facts.lro == Some(true) {
        found.push(Finding::new(
            Severity::Breaks,
            "the hardware merges packets that it receives (LRO)",
            "merged packets are longer than the MTU of the next hop, and cannot be taken apart as they were; native XDP is refused",
            format!("ethtool -K {name} lro off"),
        ));
    }
    if facts.gro == Some(true) && matches!(case.used, Used::Packet) && facts.driver.as_deref() != Some("veth") {
        found.push(Finding::new(
            Severity::Slow,
            "the kernel merges packets that it receives (GRO)",
            "link `packet`: each merged one is split again in software, with a system call more",
            format!("ethtool -K {name} gro off"),
        ));
    }
    found
}

fn ring(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let (entries, most) = facts.receive_ring?;
    (entries < most).then(|| {
        let fix = format!("ethtool -G {} rx {most}", case.name);
        let what = format!("its receive ring has {entries} entries, and could have {most}");
        Finding::new(Severity::Slow, what, "the hardware drops what comes in a burst while the core is away", fix)
    })
}

fn queues(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let (Used::Xdp(_), Some(queues)) = (case.used, facts.receive_queues) else { return None };
    let workers = case.cores.len() as u32;
    let fix = format!("ethtool -L {} combined {workers}", case.name);
    let what = format!("it has {queues} receive queues, and there are {workers} workers");
    if queues < workers {
        return Some(Finding::new(Severity::Fails, what, "a worker without a queue: the run ends at its start", fix));
    }
    let costs = "frames of the queues that no worker has go to the kernel";
    (queues > workers).then(|| Finding::new(Severity::Breaks, what, costs, fix))
}

/// Interrupts of the interface that come to the core of a worker.
fn interrupts(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    // Polled from the worker, the driver's work is where it belongs.
    if matches!(case.used, Used::Xdp(link) if link.busy_poll.is_some()) || case.cores.is_empty() {
        return None;
    }
    let lands = |irq: &String| {
        let effective = roots.proc(&format!("irq/{irq}/effective_affinity_list"));
        let list = effective
            .filter(|list| !list.is_empty())
            .or_else(|| roots.proc(&format!("irq/{irq}/smp_affinity_list")))?;
        let on = numbers(&list);
        case.cores.iter().copied().find(|core| on.contains(&core.0))
    };
    let irqs = roots.sys_names(&format!("class/net/{}/device/msi_irqs", case.name));
    // virtio keeps them with its parent.
    let irqs =
        if irqs.is_empty() { roots.sys_names(&format!("class/net/{}/device/../msi_irqs", case.name)) } else { irqs };
    let here: Vec<(String, CoreId)> = irqs.into_iter().filter_map(|irq| lands(&irq).map(|core| (irq, core))).collect();
    let (first, core) = here.first()?;
    let list: Vec<&str> = here.iter().map(|(irq, _)| irq.as_str()).collect();
    Some(Finding::new(
        Severity::Slow,
        format!("its interrupts {} come to core {core}, which a worker has", list.join(", ")),
        "the kernel's half of receiving takes turns with the worker",
        format!("echo CORE > /proc/irq/{first}/smp_affinity_list, with a core on the same node that no worker has"),
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
        format!("it is on NUMA node {of_interface}, and core {far} of a worker is not"),
        "every descriptor and frame crosses between sockets",
        format!("in the config: workers = [..] with cores out of {near}"),
    ))
}

/// The kernel forwards the same packets beside an AF_PACKET port.
fn forwarding(roots: &Roots, case: &Case<'_>) -> Vec<Finding> {
    if !matches!(case.used, Used::Packet) {
        return Vec::new();
    }
    let name = case.name;
    let on = |version: &&str| roots.proc(&format!("sys/net/{version}/conf/{name}/forwarding")).as_deref() == Some("1");
    let finding = |version: &str| {
        Finding::new(
            Severity::Breaks,
            format!("the kernel forwards what comes in by it as well ({version})"),
            "link `packet` copies: what has a route in the kernel is forwarded twice",
            format!("sysctl -w net.{version}.conf.{name}.forwarding=0"),
        )
    };
    ["ipv4", "ipv6"].into_iter().filter(on).map(finding).collect()
}

/// The kernel, which finds the neighbours and answers for the addresses, gets nothing to hear.
fn starved_kernel(plan: &Plan, case: &Case<'_>) -> Option<Finding> {
    let Used::Xdp(link) = case.used else { return None };
    let source = |node: &NodePlan| node.parameters.get("source").and_then(|source| source.as_str()) == Some("kernel");
    let all = link.filter.is_empty() && link.except.is_empty();
    // What stands for the port may be handed to the kernel by another.
    let itself = case.port.is_some_and(|port| port.config.interface.is_none());
    (all && itself && plan.nodes.iter().any(source)).then(|| {
        Finding::new(
            Severity::Breaks,
            "it takes every frame, and stages follow the kernel (`source = \"kernel\"`)",
            "the kernel sees no ARP, no neighbour discovery and nothing that is for its own addresses",
            "except = [{ ether_type = 0x0806 }, { prefix = \"ff00::/8\" }, ..] in the link, as docs/router.md has it",
        )
    })
}

/// The kernel drops what is handed to it by an interface that it would not send the answer by.
fn reverse_path(roots: &Roots, case: &Case<'_>) -> Option<Finding> {
    let Used::Tap = case.used else { return None };
    let mode =
        |of: &str| roots.proc(&format!("sys/net/ipv4/conf/{of}/rp_filter")).and_then(|mode| mode.parse::<u8>().ok());
    // The larger of both holds (`ip-sysctl.rst` of the kernel). An interface that is made has the default.
    let strict = mode("all").max(mode(case.name).or_else(|| mode("default"))) == Some(1);
    strict.then(|| {
        Finding::new(
            Severity::Breaks,
            "the kernel filters by the reverse path, strictly",
            "it drops what the port hands to it from sources that it has no route to by this interface",
            format!("sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{}.rp_filter=2", case.name),
        )
    })
}

fn mtu(case: &Case<'_>, facts: &InterfaceFacts) -> Option<Finding> {
    let wanted = case.port?.config.mtu;
    let name = case.name;
    (facts.mtu != wanted && !matches!(case.used, Used::Tap)).then(|| {
        let of_interface = format!("ip link set dev {name} mtu {wanted}");
        // That of `lo` is 65536.
        let fix = match Port::MTU.contains(&facts.mtu) {
            true => format!("{of_interface}, or mtu = {} in the config", facts.mtu),
            false => format!("{of_interface}; that of a port is {} to {}", Port::MTU.start(), Port::MTU.end()),
        };
        Finding::new(
            Severity::Breaks,
            format!("its MTU is {}, and that of the port {wanted}", facts.mtu),
            "packets that the one takes and the other does not are dropped, and counted",
            fix,
        )
    })
}
