//! Checks the RDMA devices of a plan: the devices exist, libibverbs knows the devices, the switch in the NIC does not
//! filter their frames, and the devices have a known counter of lost packets.

use super::section::Section;
use crate::config::{Plan, PortPlan, Qp};
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
        let subject = format!("port `{}`, device `{device}`", port.config.name);
        let facts = if missing.is_none() { uncounted_losses(roots, port) } else { None };
        let findings = missing.or_else(|| filtered(roots, port)).into_iter().collect();
        let section = Section::new(subject, format!("port[{place}].device"), findings);
        Section { facts: facts.into_iter().collect(), ..section }
    };
    named.map(section).collect()
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

/// Returns a finding if the switch in the NIC may filter the frames for a raw-packet port. This is the case if the
/// device is a virtual function or a subfunction, and its interface is not promiscuous. DPDK's mlx5 driver therefore
/// sets such interfaces to promiscuous mode. A physical function that is not promiscuous gets no frames to unknown
/// addresses if one of its virtual functions is promiscuous and trusted (`esw_fdb_set_vport_promisc_rule` in the
/// kernel's mlx5 driver).
fn filtered(roots: &Roots, port: &PortPlan) -> Option<Finding> {
    /// `IFF_PROMISC` of `netdevice(7)`.
    const PROMISCUOUS: u32 = 0x100;
    let device = &port.config.device;
    let folder = format!("class/infiniband/{device}/device");
    let files = roots.sys_names(&folder);
    let has = |name: &str| files.iter().any(|file| file == name);
    let has_functions = roots.sys(&format!("{folder}/sriov_numvfs")).is_some_and(|number| number != "0");
    let unknown = "the NIC delivers only frames to the MAC address of the interface, broadcast frames and joined multicast \
                   groups";
    let taken = "if a virtual function is promiscuous and trusted, the NIC delivers frames to unknown addresses only to this \
                 virtual function";
    let (kind, effect, trust) = match (has("physfn"), has("sfnum")) {
        (true, _) => ("a virtual function", unknown, " and, on its host, `ip link set dev PF vf N trust on`"),
        (_, true) => ("a subfunction", unknown, ""),
        _ if has_functions => ("a physical function with virtual functions", taken, ""),
        _ => return None,
    };
    if !port.input || port.config.qp != Qp::RawPacket {
        return None;
    }
    let is_promiscuous = |interface: &String| {
        let flags = roots.sys(&format!("class/net/{interface}/flags")).unwrap_or_default();
        flags
            .strip_prefix("0x")
            .and_then(|flags| u32::from_str_radix(flags, 16).ok())
            .is_some_and(|flags| flags & PROMISCUOUS != 0)
    };
    let interfaces = roots.sys_names(&format!("{folder}/net"));
    // In switchdev mode, the flow rules of the host decide which function gets a frame. The interfaces of the physical
    // function then include the representors of its virtual functions. The port name of a representor is for example
    // `pf0vf0`.
    let is_representor = |interface: &String| {
        let name = roots.sys(&format!("class/net/{interface}/phys_port_name"));
        name.is_some_and(|name| name.contains("vf") || name.contains("sf"))
    };
    if has_functions && !has("physfn") && interfaces.iter().any(is_representor) {
        return None;
    }
    let interface = interfaces.iter().find(|interface| !is_promiscuous(interface))?;
    Some(Finding::new(
        Severity::Unseen,
        format!("`{device}` is {kind}, and its interface `{interface}` is not promiscuous"),
        effect,
        format!("if the port needs other frames: `ip link set dev {interface} promisc on`{trust}"),
    ))
}

/// Returns a fact if no known counter has the packets that are lost because no receive buffer is posted. A reliable
/// connection loses no packets.
#[cfg(feature = "ibverbs")]
fn uncounted_losses(roots: &Roots, port: &PortPlan) -> Option<String> {
    let (device, number) = (&port.config.device, port.config.device_port);
    let counted = crate::runtime::out_of_buffer_file(&roots.sys, device, number).is_some();
    let can_lose = port.input && port.config.qp != Qp::Rc;
    (can_lose && !counted).then(|| {
        format!(
            "Dataplane knows no counter of `{device}` for packets that find no receive buffer, so `lost` of the port is \
             always 0"
        )
    })
}

/// Returns `None`, because this program cannot open RDMA devices.
#[cfg(not(feature = "ibverbs"))]
fn uncounted_losses(_: &Roots, _: &PortPlan) -> Option<String> {
    None
}
