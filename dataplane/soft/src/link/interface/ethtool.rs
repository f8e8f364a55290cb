//! Settings of an interface that its driver reports: the ioctls of `ethtool(8)` (`linux/ethtool.h`).

use super::request::Request;

const ETHTOOL: libc::c_ulong = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_LINK: u32 = 0x0a;
const GET_RINGS: u32 = 0x10;
const GET_FLAGS: u32 = 0x25;
const GET_GRO: u32 = 0x2b;
const GET_CHANNELS: u32 = 0x3c;
const FLAG_RXVLAN: u32 = 1 << 8;
const FLAG_LRO: u32 = 1 << 15;

/// Sends an ethtool command. `N` is the size of the command's structure in 32-bit words, and the first word is the
/// command. Returns the structure with the driver's values, or `None` if the driver does not support the command.
fn ethtool<const N: usize>(name: &str, command: u32) -> Option<[u32; N]> {
    const {
        assert!(N >= 2, "every ethtool command has at least two words");
    }
    let mut words = [0; N];
    words[0] = command;
    let mut request = Request::new(name)?;
    // The kernel writes the whole structure of the command. Every caller passes the size of that structure as `N`.
    request.ifreq.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    request.ask(ETHTOOL).ok()?;
    Some(words)
}

/// Returns the value of a command whose structure is `struct ethtool_value`.
fn value(name: &str, command: u32) -> Option<u32> {
    ethtool::<2>(name, command).map(|it| it[1])
}

/// Returns the name of the driver and the version of the firmware, from `struct ethtool_drvinfo`. The structure has 196
/// bytes. After the command, the structure has the name, the version of the driver and the version of the firmware,
/// with 32 bytes each.
pub(in crate::link) fn driver_and_firmware(name: &str) -> [Option<String>; 2] {
    let Some(words) = ethtool::<49>(name, GET_DRIVER) else { return [None, None] };
    [1, 17].map(|first| {
        let bytes = words[first..first + 8].iter().flat_map(|word| word.to_ne_bytes());
        let text = String::from_utf8(bytes.take_while(|byte| *byte != 0).collect()).ok()?;
        // Drivers without firmware report `N/A`.
        Some(text).filter(|text| !text.is_empty() && text != "N/A")
    })
}

/// Returns the number of receive queues of an interface, from `struct ethtool_channels`. Returns `None` if the driver
/// does not report this number.
pub(in crate::link) fn receive_queues(name: &str) -> Option<u32> {
    let channels = ethtool::<9>(name, GET_CHANNELS)?;
    let [receive, combined] = [channels[5], channels[8]];
    Some(receive + combined).filter(|queues| *queues > 0)
}

/// Returns the current and the maximum number of entries of the receive ring, from `struct ethtool_ringparam`.
pub(in crate::link) fn receive_ring(name: &str) -> Option<(u32, u32)> {
    ethtool::<9>(name, GET_RINGS).map(|it| (it[5], it[1])).filter(|(_, most)| *most > 0)
}

/// Returns whether the interface has a carrier. Returns `None` if the driver does not report the carrier.
pub(super) fn link_detected(name: &str) -> Option<bool> {
    value(name, GET_LINK).map(|it| it != 0)
}

/// Returns whether the hardware merges received packets.
pub(in crate::link) fn lro(name: &str) -> Option<bool> {
    value(name, GET_FLAGS).map(|flags| flags & FLAG_LRO != 0)
}

/// Returns whether the kernel merges received packets.
pub(in crate::link) fn gro(name: &str) -> Option<bool> {
    value(name, GET_GRO).map(|it| it != 0)
}

/// Returns whether the hardware strips VLAN tags.
pub(in crate::link) fn strips_vlan_tags(name: &str) -> Option<bool> {
    value(name, GET_FLAGS).map(|flags| flags & FLAG_RXVLAN != 0)
}
