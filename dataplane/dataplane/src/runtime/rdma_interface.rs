//! The network interfaces of RDMA devices.

use std::fs;
use std::path::Path;

use crate::config::{Port, Qp};
use dataplane_soft::{mac_of, mtu_of};

/// Returns the MAC address of the interface of a raw-packet port on an RDMA device, like [`of_port`].
///
/// The switch in a NIC delivers to an untrusted virtual function only the unicast frames to this address.
pub(super) fn mac(sysfs: &Path, port: &Port) -> Option<[u8; 6]> {
    mac_of(&of_port(sysfs, port)?)
}

/// Returns the MTU of the interface of an RDMA port whose default MTU depends on the interface: a port for raw packets,
/// or a port for datagrams in Ethernet frames (RoCE). On InfiniBand, the path MTU does not depend on an interface.
pub(super) fn mtu(sysfs: &Path, port: &Port) -> Option<u32> {
    let layer = || {
        let folder = sysfs.join("class/infiniband").join(&port.device).join("ports").join(port.device_port.to_string());
        fs::read_to_string(folder.join("link_layer")).unwrap_or_default()
    };
    let follows = match port.qp {
        Qp::RawPacket => port.is_rdma(),
        Qp::Ud => port.is_rdma() && layer().trim() == "Ethernet",
        _ => false,
    };
    if follows { mtu_of(&find(sysfs, &port.device, port.device_port)?) } else { None }
}

/// Returns the network interface of a raw-packet port on an RDMA device. `sysfs` is the folder at which sysfs is mounted.
/// `None` for all other ports, and if the network namespace of the program does not have the interface.
pub(crate) fn of_port(sysfs: &Path, port: &Port) -> Option<String> {
    let has_frames = port.is_rdma() && port.qp == Qp::RawPacket;
    if has_frames { find(sysfs, &port.device, port.device_port) } else { None }
}

/// Returns the network interface of a port of an RDMA device, in the network namespace of the program.
pub(crate) fn find(sysfs: &Path, device: &str, number: u8) -> Option<String> {
    let read = |interface: &str, file: &str| {
        fs::read_to_string(sysfs.join("class/net").join(interface).join(file)).unwrap_or_default()
    };
    let folder = sysfs.join("class/infiniband").join(device);
    let Ok(listed) = fs::read_dir(folder.join("device/net")) else {
        // The software device rxe has no PCI device. The file has the name of its interface.
        return Some(fs::read_to_string(folder.join("parent")).ok()?.trim().to_owned());
    };
    let mut interfaces: Vec<String> = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    // In switchdev mode, the interfaces of a physical function include the representors of other functions. The port names
    // of representors are for example `pf0vf0` and `pf0sf1`, and on the Arm cores of a BlueField also `c1pf0` or `pf0hpf`.
    // The port name of the function itself is for example `p0`.
    interfaces.retain(|interface| !read(interface, "phys_port_name").contains("pf"));
    // The two ports of an mlx4 device have one folder. A device with one port may have any number in `dev_port`.
    if let ([_], 1) = (&interfaces[..], number) {
        return interfaces.pop();
    }
    // The config may name port 0, which no device has.
    let index = number.checked_sub(1)?;
    interfaces.into_iter().find(|interface| read(interface, "dev_port").trim().parse() == Ok(index))
}

#[cfg(feature = "ibverbs")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::raw::tests::plan;
    use dataplane_testing::Folder;
    use dataplane_testing::namespace::{in_namespace, ip};

    #[test]
    fn port_has_the_mac_address_and_the_mtu_of_its_interface() {
        in_namespace(|| {
            ip("link add va address 0e:42:a1:00:00:07 mtu 1400 type veth peer name vb");
            let sysfs = Folder::new();
            let of_interface = |keys: &str| {
                let port = plan(keys, true).config;
                (mac(sysfs.path(), &port), mtu(sysfs.path(), &port))
            };
            assert_eq!(of_interface(""), (None, None));
            sysfs.write("class/infiniband/mlx5_0/device/net/va/mtu", "");
            assert_eq!(of_interface(""), (Some([0x0e, 0x42, 0xa1, 0, 0, 7]), Some(1400)));
            let connected = |qp: &str| of_interface(&format!("qp = '{qp}'\nconnection = {{ to = '127.0.0.1:18515' }}"));
            assert_eq!(connected("ud"), (None, None), "the link layer is not Ethernet");
            sysfs.write("class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n");
            assert_eq!([connected("ud"), connected("rc")], [(None, Some(1400)), (None, None)]);
        });
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
        add("mlx5_1", "pf0hpf", "0\n", "c1pf0\n");
        add("mlx5_1", "pf0sf88", "0\n", "pf0sf88\n");
        add("mlx5_1", "p0", "0\n", "p0\n");
        add("mlx5_2", "p1", "0\n", "p1\n");
        add("mlx5_2", "pf1hpf", "0\n", "pf1hpf\n");
        add("bnxt_re1", "eth3", "1\n", "");
        let found = |device, number| find(sysfs.path(), device, number);
        assert_eq!([found("mlx4_0", 1), found("mlx4_0", 2)], ["eth0", "eth1"].map(|name| Some(name.to_owned())));
        assert_eq!([found("mlx5_0", 1), found("mlx5_0", 2)], [Some("eth2".to_owned()), None]);
        assert_eq!([found("mlx5_1", 1), found("mlx5_2", 1)], ["p0", "p1"].map(|name| Some(name.to_owned())));
        assert_eq!(found("mlx4_0", 0), None);
        assert_eq!(found("bnxt_re1", 1), Some("eth3".to_owned()));
        sysfs.write("class/infiniband/rxe0/parent", "eth4\n");
        assert_eq!(found("rxe0", 1), Some("eth4".to_owned()));
    }
}
