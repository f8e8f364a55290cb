//! Checks the RDMA devices of a plan: the devices and their ports exist, libibverbs knows the devices, the switch in the
//! NIC does not filter their frames, and the devices have a known counter of lost packets.

use super::section::Section;
use crate::config::{FlowRuleConfig, Plan, PortPlan, Qp};
use dataplane_soft::doctor::{Finding, Roots, Severity};

/// Checks the RDMA devices that ports name. The kernel lists RDMA devices in `/sys/class/infiniband`
/// (`sysfs-class-infiniband` in the kernel's ABI documentation). `unlisted` returns the reason and the fix if the
/// kernel has a device, but libibverbs does not list the device.
pub(super) fn of_plan(roots: &Roots, plan: &Plan, unlisted: impl Fn(&str) -> Option<(String, String)>) -> Vec<Section> {
    let known = roots.sys_names("class/infiniband");
    let named = plan.ports.iter().enumerate().filter(|(_, port)| port.config.is_rdma());
    let section = |(place, port): (usize, &PortPlan)| {
        let device = &port.config.device;
        let missing = (!known.contains(device)).then(|| {
            let fix = match known.is_empty() {
                true => String::from(
                    "load the driver of the RDMA NIC, or set device = \"host\" or \"soft\" and add a `link`",
                ),
                false => format!("use one of the existing devices: {}", known.join(", ")),
            };
            let what = format!("this host has no RDMA device `{device}`");
            Finding::new(Severity::Fails, what, "the run fails at its start", fix)
        });
        let missing = missing.or_else(|| {
            let (why, fix) = unlisted(device)?;
            let what = format!("the kernel has the RDMA device `{device}`, but {why}");
            Some(Finding::new(Severity::Fails, what, "the run fails at its start", fix))
        });
        let (missing, key) = match missing {
            Some(missing) => (Some(missing), "device"),
            None => (missing_port(roots, port, &known), "device_port"),
        };
        let subject = format!("port `{}`, device `{device}`", port.config.name);
        let facts = if missing.is_none() { uncounted_losses(roots, port) } else { None };
        let findings = missing.or_else(|| filtered(roots, port)).into_iter().collect();
        let section = Section::new(subject, format!("port[{place}].{key}"), findings);
        Section { facts: facts.into_iter().collect(), ..section }
    };
    named.map(section).collect()
}

/// Returns a finding if the device has no port with the number of the config. `known` has the names of all devices.
fn missing_port(roots: &Roots, port: &PortPlan, known: &[String]) -> Option<Finding> {
    let (device, number) = (&port.config.device, port.config.device_port.to_string());
    let ports = roots.sys_names(&format!("class/infiniband/{device}/ports"));
    if ports.is_empty() || ports.contains(&number) {
        return None;
    }
    let others: Vec<&str> = known.iter().filter(|other| *other != device).map(String::as_str).collect();
    let other = match others[..] {
        [] => String::new(),
        _ => format!(", or device to the RDMA device of the other port: {}", others.join(", ")),
    };
    let what = format!("the RDMA device `{device}` has no port {number}");
    let fix = format!("set device_port to {}{other}", ports.join(" or "));
    Some(Finding::new(Severity::Fails, what, "the run fails at its start", fix))
}

/// Returns the reason and the fix if the kernel of this host has a device that libibverbs does not list.
#[cfg(feature = "ibverbs")]
pub(super) fn unlisted(device: &str) -> Option<(String, String)> {
    let unlisted = dataplane_ibverbs::VerbsProvider.unlisted().ok()?;
    unlisted.into_iter().find(|found| found.name == device).map(|found| (found.why, found.fix))
}

/// Returns the reason and the fix, because this program cannot open RDMA devices.
#[cfg(not(feature = "ibverbs"))]
pub(super) fn unlisted(_: &str) -> Option<(String, String)> {
    Some((
        "this program was built without the feature `ibverbs`".to_owned(),
        "build the program with the feature, or set device = \"host\" or \"soft\" and add a `link`".to_owned(),
    ))
}

/// Returns a finding if the switch in the NIC may filter the frames for a raw-packet port. This is the case if the device
/// is a subfunction, a virtual function without trust, or a virtual function whose interface the run does not set to
/// promiscuous mode. The kernel's mlx5 driver ignores the promiscuous mode of a virtual function without trust
/// (`esw_update_vport_rx_mode`), and only the host of the virtual function can read this setting. A subfunction exists only
/// in switchdev mode (`mlx5_devlink_sf_port_new`), in which the driver ignores promiscuous mode.
fn filtered(roots: &Roots, port: &PortPlan) -> Option<Finding> {
    let (device, name) = (&port.config.device, &port.config.name);
    let files = roots.sys_names(&format!("class/infiniband/{device}/device"));
    let has = |name: &str| files.iter().any(|file| file == name);
    let has_default_mode = port.config.qp == Qp::RawPacket && port.config.promiscuous.is_none();
    let may_need_other_frames = port.is_promiscuous() || (port.input && has_default_mode);
    if !may_need_other_frames {
        return None;
    }
    let finding = |what, effect, fix| Some(Finding::new(Severity::Unseen, what, effect, fix));
    if has("sfnum") {
        return finding(
            format!("`{device}` is a subfunction, so the flow rules of its host select the frames for `{name}`"),
            "the port receives only the frames that these rules send to the subfunction",
            "on the host of the subfunction, let the rules of `tc` or Open vSwitch send the frames to its representor"
                .to_owned(),
        );
    }
    if !has("physfn") {
        return None;
    }
    let effect = "the NIC delivers only frames to the MAC address of the interface, broadcast frames and joined multicast \
                  groups";
    let trust = "on the host of the virtual function, `ip link set dev PF vf N trust on`";
    if port.is_promiscuous() {
        finding(
            format!("`{device}` is a virtual function, and only its host can read whether the function is trusted"),
            effect,
            format!("if the port needs other frames: {trust}"),
        )
    } else if port.config.flow.iter().flatten().any(FlowRuleConfig::follows_interface) {
        finding(
            format!(
                "`{device}` is a virtual function, and `{name}` has a rule with `all_default` or `multicast_default`"
            ),
            "the NIC delivers only frames that the network interface takes, so the rule receives no frame",
            format!(
                "replace the rule by a rule without `match` and with a larger `priority`: {{ priority = 1 }}, and {trust}"
            ),
        )
    } else {
        finding(
            format!("`{device}` is a virtual function, and the flow rules of `{name}` match destination MAC addresses"),
            effect,
            format!("if these are not the address of the interface: promiscuous = true for the port, and {trust}"),
        )
    }
}

/// Returns a note if no known counter counts the packets that are lost because no receive buffer is posted.
#[cfg(feature = "ibverbs")]
fn uncounted_losses(roots: &Roots, port: &PortPlan) -> Option<String> {
    let (device, number) = (&port.config.device, port.config.device_port);
    let counted = crate::runtime::out_of_buffer_file(&roots.sys, device, number).is_some();
    (crate::runtime::can_lose(port) && !counted).then(|| {
        crate::runtime::in_another_namespace(&roots.sys, device, number).unwrap_or_else(|| {
            format!(
                "Dataplane knows no counter of `{device}` for packets that find no receive buffer, so `lost` of the port \
                 is always 0"
            )
        })
    })
}

/// Returns `None`, because this program cannot open RDMA devices.
#[cfg(not(feature = "ibverbs"))]
fn uncounted_losses(_: &Roots, _: &PortPlan) -> Option<String> {
    None
}
