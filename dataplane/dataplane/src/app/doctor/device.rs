//! Checks that the RDMA devices of a plan exist.

use super::section::Section;
use crate::config::Plan;
use dataplane_soft::doctor::{Finding, Roots, Severity};

/// Checks the RDMA devices that ports name. The kernel lists RDMA devices in `/sys/class/infiniband`
/// (`sysfs-class-infiniband` in the kernel's ABI documentation).
pub(super) fn of_plan(roots: &Roots, plan: &Plan) -> Vec<Section> {
    let known = roots.sys_names("class/infiniband");
    let named = plan.ports.iter().enumerate().filter(|(_, port)| port.config.is_verbs());
    let section = |(place, port): (usize, &crate::config::PortPlan)| {
        let device = &port.config.device;
        let finding = (!known.contains(device)).then(|| {
            let fix = match known.is_empty() {
                true => String::from(
                    "load the driver of the RDMA NIC, or set device = \"host\" or \"soft\" and add a `link`",
                ),
                false => format!("use one of the existing devices: {}", known.join(", ")),
            };
            let what = format!("this host has no RDMA device `{device}`");
            Finding::new(Severity::Fails, what, "the run fails at its start", fix)
        });
        let subject = format!("port `{}`, device `{device}`", port.config.name);
        Section { subject, key: format!("port[{place}].device"), findings: finding.into_iter().collect() }
    };
    named.map(section).collect()
}
