//! Problems of the host for an xdp link.

use super::facts::XdpProgram;
use super::spec::{Copying, Mode};
use crate::link::InterfaceFacts;
use crate::link::doctor::{Finding, LinkCase, Severity};

/// Returns the problems that an xdp link would have on an interface that no port of the config uses.
pub fn of_unused(case: &LinkCase<'_>) -> Vec<Finding> {
    programs(None, case)
}

/// Returns the problems that an xdp link has on its interface.
pub(super) fn problems(mode: Mode, copy: Copying, case: &LinkCase<'_>) -> Vec<Finding> {
    let mut found = programs(Some((mode, copy)), case);
    found.extend(queues(case));
    found
}

/// Checks the XDP program and the XDP features of the interface.
fn programs(link: Option<(Mode, Copying)>, case: &LinkCase<'_>) -> Vec<Finding> {
    let (name, facts) = (case.name, case.facts);
    let driver = facts.driver.as_deref().unwrap_or("of unknown name");
    let mut found = Vec::new();
    if let Some(XdpProgram { program, link: held }) = facts.xdp.program {
        let what = format!("the interface already has an XDP program (id {program})");
        let fix = match held {
            Some(held) => format!("bpftool link detach id {held}, or end the process that holds this bpf_link"),
            None => format!("ip link set dev {name} xdp off (in generic mode: xdpgeneric off)"),
        };
        let severity = if link.is_some() { Severity::Fails } else { Severity::Slow };
        found.push(Finding::new(severity, what, "a link of kind `xdp` cannot be opened", fix));
    }
    // If the kernel does not report the XDP features, only a run can find out whether XDP works.
    let Some(support) = facts.xdp.support else { return found };
    let (mode, copy) = link.unwrap_or_default();
    if !support.native && mode != Mode::Generic {
        let (severity, effect) = match mode {
            Mode::Native => {
                (Severity::Fails, "the link cannot be opened, because mode = \"native\" excludes generic mode")
            }
            _ => (
                Severity::Slow,
                "an xdp link uses generic mode: the kernel first creates a socket buffer for each frame",
            ),
        };
        found.push(Finding::new(
            severity,
            format!("the driver ({driver}) has no native XDP, or has none with its current settings"),
            effect,
            "use an interface whose driver has native XDP, or set mode = \"generic\" to accept generic mode",
        ));
    } else if !support.zero_copy && copy != Copying::Copy {
        let (severity, effect) = match copy {
            Copying::Zero => (Severity::Fails, "the run fails at its start, because copy = \"zero\" excludes copies"),
            _ => (Severity::Slow, "with an xdp link, the kernel copies every received and every sent frame"),
        };
        found.push(Finding::new(
            severity,
            format!("the driver ({driver}) has no zero-copy AF_XDP"),
            effect,
            "use an interface whose driver has zero-copy AF_XDP, or set copy = \"copy\" to accept copies",
        ));
    }
    if facts.strips_vlan_tags == Some(true) && facts.driver.as_deref() != Some("veth") {
        let fix = format!("ethtool -K {name} rxvlan off");
        let costs = "with an xdp link, the VLAN tags are lost, because AF_XDP does not pass removed tags";
        found.push(Finding::new(Severity::Breaks, "the hardware removes VLAN tags", costs, fix));
    }
    if facts.driver.as_deref() == Some("veth") && link.is_some() {
        found.push(Finding::new(
            Severity::Unseen,
            "the interface is one end of a veth pair, and the other end may offload checksums and VLAN tags",
            "frames from programs at the other end may arrive without checksums and VLAN tags, because AF_XDP does not pass them",
            "run at the other end: ethtool -K PEER tx off txvlan off",
        ));
    }
    found
}

/// Checks that the interface has a receive queue for each worker.
fn queues(case: &LinkCase<'_>) -> Option<Finding> {
    let (queues, workers) = (case.facts.receive_queues?, case.workers as u32);
    let fix = format!("ethtool -L {} combined {workers}", case.name);
    let noun = if queues == 1 { "queue" } else { "queues" };
    let what = format!("the interface has {queues} receive {noun}, but there are {workers} workers");
    if queues < workers {
        return Some(Finding::new(Severity::Fails, what, "a worker has no queue, so the run fails at its start", fix));
    }
    let costs = "frames of queues without a worker go to the kernel";
    (queues > workers).then(|| Finding::new(Severity::Breaks, what, costs, fix))
}

/// Returns a fact in zero-copy mode. In copy mode, the socket counts the frames that find no posted buffer. In zero-copy
/// mode, only the NIC counts these frames.
pub(super) fn uncounted_losses(name: &str, mode: Mode, copy: Copying, facts: &InterfaceFacts) -> Option<String> {
    let is_zero_copy = match copy {
        Copying::Zero => true,
        Copying::Auto => mode != Mode::Generic && facts.xdp.support.is_some_and(|support| support.zero_copy),
        Copying::Copy => false,
    };
    is_zero_copy.then(|| {
        format!(
            "in zero-copy mode, only the NIC counts frames that find no posted buffer, so `lost` of the port does not \
             include these frames; see rx_missed_errors in /sys/class/net/{name}/statistics"
        )
    })
}

/// Returns the finding for a link that takes all frames from the kernel, on a port whose stages use the kernel's
/// neighbours and addresses.
pub(super) fn starved_kernel() -> Finding {
    Finding::new(
        Severity::Breaks,
        "the xdp link takes every frame, but stages use neighbours and addresses of the kernel (`source = \"kernel\"`)",
        "the kernel receives no ARP, no neighbour discovery and no packets for its own addresses",
        "set except = [{ ether_type = 0x0806 }, { prefix = \"ff00::/8\" }, ..] in the link (see docs/router.md)",
    )
}
