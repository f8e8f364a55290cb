//! Properties of an interface that the kernel and the driver of the interface report. The command `doctor` reads these
//! properties and changes no setting.

use std::io;

use super::interface::{Interface, ethtool};
use super::xdp::XdpFacts;

/// Properties of an interface. A field is `None` if neither the kernel nor the driver reports the property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Whether the interface is up (`IFF_UP`).
    pub is_up: bool,
    /// Whether frames on the interface have Ethernet headers (`ARPHRD_ETHER`).
    pub is_ethernet: bool,
    /// Maximum packet length without the Ethernet header, in bytes.
    pub mtu: u32,
    /// The name of the driver.
    pub driver: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// Current and maximum number of entries of the receive ring.
    pub receive_ring: Option<(u32, u32)>,
    /// The number of receive queues.
    pub receive_queues: Option<u32>,
    /// Whether the hardware merges received packets (LRO).
    pub lro: Option<bool>,
    /// Whether the kernel merges received packets (GRO).
    pub gro: Option<bool>,
    /// Whether the hardware strips VLAN tags.
    pub strips_vlan_tags: Option<bool>,
    /// The XDP properties.
    pub xdp: XdpFacts,
}

impl InterfaceFacts {
    /// Reads the properties of an interface. Returns `None` if the interface does not exist in this network namespace.
    ///
    /// # Errors
    /// Fails if the kernel does not report whether the interface exists.
    pub fn of(name: &str) -> io::Result<Option<Self>> {
        let Some(interface) = Interface::find(name)? else { return Ok(None) };
        let [driver, firmware] = ethtool::driver_and_firmware(name);
        Ok(Some(Self {
            is_up: interface.is_set_up,
            is_ethernet: interface.is_ethernet,
            mtu: interface.mtu,
            driver,
            firmware,
            receive_ring: ethtool::receive_ring(name),
            receive_queues: ethtool::receive_queues(name),
            lro: ethtool::lro(name),
            gro: ethtool::gro(name),
            strips_vlan_tags: ethtool::strips_vlan_tags(name),
            xdp: XdpFacts::of(&interface),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_has_facts_and_missing_interface_has_none() {
        let facts = InterfaceFacts::of("lo").unwrap().unwrap();
        assert!(facts.is_ethernet && facts.mtu >= 68, "{facts:?}");
        assert_eq!(InterfaceFacts::of("no-such").unwrap(), None);
    }
}
