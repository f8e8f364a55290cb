//! RDMA devices: whether those that a plan names are there.

use super::{Finding, Roots, Section, Severity};
use crate::config::{Plan, SOFT};

/// Looks at the devices of the ports that name one, each with the place of its port. The kernel lists them in
/// `class/infiniband` (`sysfs-class-infiniband` of its ABI).
pub(super) fn of_plan(roots: &Roots, plan: &Plan) -> Vec<(usize, Section)> {
    let known = roots.sys_names("class/infiniband");
    let named = plan.ports.iter().enumerate().filter(|(_, port)| port.config.device != SOFT);
    let section = |(place, port): (usize, &crate::config::PortPlan)| {
        let device = &port.config.device;
        let finding = (!known.contains(device)).then(|| {
            let fix = match known.is_empty() {
                true => format!("load the driver of the RDMA NIC, or write device = \"{SOFT}\" and a `link`"),
                false => format!("in the config: one of those that there are, {}", known.join(", ")),
            };
            let what = format!("this host has no RDMA device `{device}`");
            Finding::new(Severity::Fails, what, "the run ends at its start", fix)
        });
        let subject = format!("port `{}`, device `{device}`", port.config.name);
        (place, Section { subject, findings: finding.into_iter().collect() })
    };
    named.map(section).collect()
}
