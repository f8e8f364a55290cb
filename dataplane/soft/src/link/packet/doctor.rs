//! Problems of the host for a packet link.

use crate::link::doctor::{Finding, LinkCase, Severity};

/// Returns the settings of the host and the interface that break or slow down a packet link.
pub(super) fn problems(case: &LinkCase<'_>) -> Vec<Finding> {
    let (name, facts) = (case.name, case.facts);
    let mut found = forwarding(case);
    if facts.gro == Some(true) && facts.driver.as_deref() != Some("veth") {
        found.push(Finding::new(
            Severity::Slow,
            "the kernel merges received packets (GRO)",
            "a packet link splits each merged packet again in software, with an extra system call",
            format!("ethtool -K {name} gro off"),
        ));
    }
    found
}

/// Checks whether the kernel also forwards the packets that an AF_PACKET port receives.
fn forwarding(case: &LinkCase<'_>) -> Vec<Finding> {
    let (roots, name) = (case.roots, case.name);
    let on = |version: &&str| roots.proc(&format!("sys/net/{version}/conf/{name}/forwarding")).as_deref() == Some("1");
    let finding = |version: &str| {
        Finding::new(
            Severity::Breaks,
            format!("the kernel also forwards packets that this interface receives ({version})"),
            "a packet link receives copies, so packets with a route in the kernel are forwarded twice",
            format!("sysctl -w net.{version}.conf.{name}.forwarding=0"),
        )
    };
    ["ipv4", "ipv6"].into_iter().filter(on).map(finding).collect()
}
