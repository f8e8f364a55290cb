//! Promiscuous mode of the network interfaces of RDMA devices. The switch in a NIC delivers only some frames to a virtual
//! function or subfunction. The function requests all frames by the promiscuous mode of its interface
//! (`mlx5e_vport_context_update` in the kernel's mlx5 driver).

use std::fs;
use std::path::Path;

use crate::config::PortPlan;
use dataplane_core::error::{Error, Result};
use dataplane_soft::PromiscuousMode;

/// Sets the interface of a port to promiscuous mode if the config requires this mode. The mode ends when the result is
/// dropped. `sysfs` is the folder at which sysfs is mounted. If the port has no interface in the network namespace of the
/// program, and the config has no key `promiscuous`, logs a warning and returns `None`.
///
/// # Errors
/// Returns an error if the kernel refuses the mode, or if the config has `promiscuous = true` and the port has no
/// interface.
pub(super) fn start(sysfs: &Path, plan: &PortPlan) -> Result<Option<PromiscuousMode>> {
    if !plan.is_promiscuous() {
        return Ok(None);
    }
    let (port, number) = (&plan.config, plan.config.device_port);
    let Some(interface) = interface_of(sysfs, &port.device, number) else {
        let problem = format!(
            "port `{}`: port {number} of `{}` has no interface in this network namespace, so promiscuous mode is off and \
             the NIC may filter frames to other MAC addresses; help: move the interface to this namespace (`ip link set \
             dev INTERFACE netns`), or set promiscuous = false",
            port.name, port.device
        );
        if port.promiscuous.is_some() {
            return Err(Error::Config(problem));
        }
        tracing::warn!("{problem}");
        return Ok(None);
    };
    let started = PromiscuousMode::start(&interface);
    started.map(Some).map_err(|error| Error::Config(format!("port `{}`: {error}", port.name)))
}

/// Returns the network interface of a port of an RDMA device, in the network namespace of the program.
fn interface_of(sysfs: &Path, device: &str, number: u8) -> Option<String> {
    let read = |interface: &str, file: &str| {
        fs::read_to_string(sysfs.join("class/net").join(interface).join(file)).unwrap_or_default()
    };
    let listed = fs::read_dir(sysfs.join("class/infiniband").join(device).join("device/net")).ok()?;
    let mut interfaces: Vec<String> = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    // In switchdev mode, the interfaces of a physical function include the representors of its functions, whose port
    // names are for example `pf0vf0`.
    interfaces.retain(|interface| !["vf", "sf"].iter().any(|kind| read(interface, "phys_port_name").contains(kind)));
    // The two ports of an mlx4 device have one folder. A device with one port may have any number in `dev_port`.
    if let ([_], 1) = (&interfaces[..], number) {
        return interfaces.pop();
    }
    interfaces.into_iter().find(|interface| read(interface, "dev_port").trim().parse() == Ok(number - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::raw::tests::plan;
    use dataplane_testing::Folder;
    use dataplane_testing::namespace::{in_namespace, ip};

    /// Returns whether the interface `va` is promiscuous.
    fn is_promiscuous() -> bool {
        let shown =
            std::process::Command::new("ip").args(["-details", "-json", "link", "show", "va"]).output().unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown[0]["promiscuity"] != 0
    }

    #[test]
    fn interface_is_promiscuous_while_the_port_is_open() {
        in_namespace(|| {
            ip("link add va type veth peer name vb");
            let sysfs = Folder::new();
            sysfs.write("class/infiniband/mlx5_0/device/net/va/mtu", "1500");
            let dst = "flow = [{ match = { ethernet = { dst = '02:00:00:00:00:01' } } }]";
            for (keys, input, expected) in [
                ("", true, true),
                ("", false, false),
                ("promiscuous = false", true, false),
                ("promiscuous = true", false, true),
                ("flow = [{ match = { ipv4 = {} } }]", true, true),
                ("flow = [{ frames = 'sniffer' }]", true, true),
                ("flow = [{ frames = 'multicast_default' }]", true, false),
                ("flow = [{ frames = 'all_default' }]", true, false),
                ("flow = [{ match = { ipv4 = {} } }, { frames = 'all_default' }]", true, false),
                ("flow = [{ match = { ipv4 = {} } }, { frames = 'multicast_default' }]", true, false),
                (dst, true, false),
                (&format!("{dst}\npromiscuous = true"), true, true),
                ("qp = 'ud'\nconnection = { to = '127.0.0.1:18515' }", true, false),
            ] {
                let mode = start(sysfs.path(), &plan(keys, input)).unwrap();
                assert_eq!(is_promiscuous(), expected, "{keys}");
                drop(mode);
                assert!(!is_promiscuous(), "{keys}");
            }
        });
    }

    #[test]
    fn port_without_an_interface_is_refused_only_if_the_config_has_the_key() {
        let sysfs = Folder::new();
        assert!(start(sysfs.path(), &plan("", true)).unwrap().is_none());
        let error = start(sysfs.path(), &plan("promiscuous = true", true)).unwrap_err().to_string();
        assert!(error.contains("port 1 of `mlx5_0` has no interface") && error.contains("help: "), "{error}");
    }

    #[test]
    fn interface_is_found_by_port_and_without_representors() {
        let sysfs = Folder::new();
        let add = |device: &str, name: &str, port: &str, phys: &str| {
            sysfs.write(&format!("class/infiniband/{device}/device/net/{name}/mtu"), "1500");
            sysfs.write(&format!("class/net/{name}/dev_port"), port);
            sysfs.write(&format!("class/net/{name}/phys_port_name"), phys);
        };
        add("mlx4_0", "eth0", "0\n", "");
        add("mlx4_0", "eth1", "1\n", "");
        add("mlx5_0", "eth2_0", "0\n", "pf0vf0\n");
        add("mlx5_0", "eth2", "0\n", "p0\n");
        add("bnxt_re1", "eth3", "1\n", "");
        let found = |device, number| interface_of(sysfs.path(), device, number);
        assert_eq!([found("mlx4_0", 1), found("mlx4_0", 2)], ["eth0", "eth1"].map(|name| Some(name.to_owned())));
        assert_eq!([found("mlx5_0", 1), found("mlx5_0", 2)], [Some("eth2".to_owned()), None]);
        assert_eq!(found("bnxt_re1", 1), Some("eth3".to_owned()));
    }
}
