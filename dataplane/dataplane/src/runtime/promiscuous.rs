//! Promiscuous mode of the network interfaces of RDMA devices. The switch in a NIC delivers only some frames to a virtual
//! function or subfunction. The function requests all frames by the promiscuous mode of its interface
//! (`mlx5e_vport_context_update` in the kernel's mlx5 driver).

use std::path::Path;

use crate::config::PortPlan;
use crate::runtime::rdma_interface;
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
    let Some(interface) = rdma_interface::find(sysfs, &port.device, number) else {
        let problem = format!(
            "port `{}`: port {number} of `{}` has no interface in this network namespace, so promiscuous mode is off and \
             the NIC may filter frames to other MAC addresses; help: move the interface to this namespace (`ip link set \
             dev INTERFACE netns`), or set promiscuous = false",
            port.name, port.device
        );
        if port.promiscuous.is_some() {
            return Err(Error::Config(problem));
        }
        tracing::warn!(port = port.name, "{problem}");
        return Ok(None);
    };
    let started = PromiscuousMode::start(&interface);
    started.map(Some).map_err(|error| Error::Config(format!("port `{}`: {error}", port.name)))
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
}
