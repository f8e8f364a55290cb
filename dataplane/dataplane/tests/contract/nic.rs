//! The tests on real devices. The environment variable `DATAPLANE_NIC` names the devices, and `tools/nic-day` sets this
//! variable.

use super::*;
use dataplane::connect::{default_gid, same_host_gid};
use dataplane::ibverbs::{VerbsDevice, VerbsProvider};
use dataplane::verbs::{Device, Provider};

/// The environment variable. Its value is `DEVICE[,DEVICE[,GID_INDEX]]`. If the value names only one device, this
/// device loops back to itself. Without a GID index, each endpoint uses the default GID of a connection between the two
/// devices, or GID 0.
const VARIABLE: &str = "DATAPLANE_NIC";

struct Named {
    a: String,
    b: String,
    gid_index: Option<u32>,
    /// Whether the driver is rxe, whose differences from the standard are known.
    is_rxe: bool,
}

fn named() -> Option<Named> {
    let value = std::env::var(VARIABLE).ok()?;
    let mut parts = value.split(',').map(str::trim);
    let a = parts.next().filter(|name| !name.is_empty())?.to_owned();
    let b = parts.next().filter(|name| !name.is_empty()).unwrap_or(&a).to_owned();
    let gid_index = parts.next().and_then(|index| index.parse().ok());
    let driver = std::fs::read_link(format!("/sys/class/infiniband/{a}/device/driver"));
    let is_rxe = driver.is_err() && std::path::Path::new(&format!("/sys/class/infiniband/{a}/parent")).exists();
    Some(Named { a, b, gid_index, is_rxe })
}

fn bed(name: &'static str) -> TestBed<VerbsDevice> {
    let Named { a, b, gid_index, is_rxe } = named().expect("DATAPLANE_NIC is set");
    let open = |name: &str| VerbsProvider.open(name).expect("a device that can be opened");
    let a_device = open(&a);
    let b_device = if a == b { a_device.clone() } else { open(&b) };
    // The two devices may have different GID tables.
    let default = |device: &VerbsDevice| {
        let gids = device.gids(1).expect("the GIDs of the port");
        let choose = if a == b { default_gid } else { same_host_gid };
        choose(&gids, None).map_or(0, |entry| entry.index)
    };
    let gid_index = [&a_device, &b_device].map(|device| gid_index.unwrap_or_else(|| default(device)));
    let profile = if is_rxe { Profile::Rxe } else { Profile::Spec };
    TestBed { name, profile, kernel: true, a: a_device, b: b_device, gid_index }
}

/// Returns the tests on the named devices. A case is skipped if a device lacks a capability, and the reason names the
/// capability.
pub(crate) fn tests() -> Vec<Test> {
    if named().is_none() {
        return Vec::new();
    }
    tests_of("nic", bed, skips::ANY).collect()
}
