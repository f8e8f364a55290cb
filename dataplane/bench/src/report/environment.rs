//! The host, the ports and the program of a result.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;

use dataplane::mem::PageKind;
use dataplane::runtime::PortLanes;
use dataplane::soft::InterfaceFacts;
use dataplane::soft::doctor::Roots;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::times::Times;

/// The host and the program of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// The version of the program.
    pub version: String,
    /// The profile of the build: `release` or `debug`.
    #[serde(default)]
    pub profile: String,
    /// The CRC-32 of the file of the program. Builds of different sources or with different options have different
    /// checksums. Empty if the program cannot read its own file.
    #[serde(default)]
    pub build: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The vendor and the product of the machine (DMI), and whether the machine is a virtual machine. Empty if the
    /// firmware does not report the product.
    #[serde(default)]
    pub machine: String,
    /// The model of the processor.
    pub processor: String,
    /// The number of online cores.
    pub cores: u32,
    /// The core of the tester.
    pub core: Option<u32>,
    /// The pages of the packet memory.
    #[serde(default)]
    pub pages: Option<Pages>,
    /// The digest of the config or of `--ports`, of the streams, and of the values of `--set`. Empty for `verbs`.
    #[serde(default)]
    pub config_digest: String,
    /// The ports.
    #[serde(default)]
    pub ports: Vec<PortEnvironment>,
    /// The limits of the tester, from the file of `--calibration`. `null` if the tester is not calibrated.
    #[serde(default)]
    pub calibration: Option<Calibration>,
}

/// The pages of the packet memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pages {
    /// The kind of the pages.
    pub kind: PageKind,
    /// The size of a page in bytes. For the kind `transparent`, the kernel may use smaller pages.
    pub bytes: usize,
    /// The number of pages.
    pub count: usize,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pages of {} KiB", self.count, self.bytes >> 10)?;
        if self.kind == PageKind::Transparent { f.write_str(" (transparent)") } else { Ok(()) }
    }
}

/// The limits of the tester, from `bench calibrate`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// The highest rate that the tester sends and judges between directly connected ports, in packets per second.
    pub max_pps: f64,
    /// The relative difference between the requested and the actual rate, at half of the highest rate.
    pub rate_error: f64,
    /// The loss ratio at half of the highest rate.
    pub loss_ratio: f64,
    /// The latency between directly connected ports, at half of the highest rate.
    pub latency_ns: Times,
    /// The time from the planned to the actual transmission, at half of the highest rate.
    #[serde(default)]
    pub pacing_ns: Times,
}

/// A port, its device, and the settings of the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortEnvironment {
    /// The name.
    pub name: String,
    /// The device and the link.
    pub device: String,
    /// The driver. Absent if the port has no NIC, or if the driver is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The version of the firmware. Absent if the driver does not report the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The offloads that the port requests from the device.
    pub offloads: Vec<String>,
    /// The receive offloads that are on in the interface: `gro`, `lro` and `rxvlan` (ethtool(8)).
    pub interface_offloads: Vec<String>,
}

/// Returns the properties of this host.
pub fn environment(core: Option<u32>) -> Environment {
    host_environment(&Roots::real(), core)
}

/// Returns the properties of a host.
fn host_environment(roots: &Roots, core: Option<u32>) -> Environment {
    let cpuinfo = roots.proc("cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let is_virtual = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("flags")?.split_once(": "))
        .is_some_and(|(_, flags)| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    let dmi = ["sys_vendor", "product_name"].map(|name| roots.sys(&format!("class/dmi/id/{name}")));
    let hypervisor = roots.sys("hypervisor/type").or(is_virtual.then(|| "virtual machine".to_owned()));
    let machine: Vec<String> = dmi.into_iter().chain([hypervisor]).flatten().filter(|text| !text.is_empty()).collect();
    Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        build: build().to_owned(),
        kernel: roots.proc("sys/kernel/osrelease").unwrap_or_default(),
        machine: machine.join(", "),
        processor: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.to_owned()),
        cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count() as u32,
        core,
        ..Environment::default()
    }
}

/// Returns the checksum of the file of this program.
fn build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let checksum = File::open("/proc/self/exe").and_then(checksum);
        checksum.map_or_else(|_| String::new(), |checksum| format!("{checksum:08x}"))
    })
}

fn checksum(mut file: File) -> io::Result<u32> {
    let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hasher.finalize()),
            read => hasher.update(&bytes[..read]),
        }
    }
}

impl Environment {
    /// Returns the properties of this host, and of the open ports.
    pub fn of(lanes: &PortLanes) -> Self {
        let core = lanes.plan().cores.first().map(|core| core.0);
        let (kind, count) = lanes.pages();
        let ports = (0..lanes.plan().ports.len()).filter_map(|port| PortEnvironment::of(lanes, port));
        Self { pages: Some(Pages { kind, bytes: kind.size(), count }), ports: ports.collect(), ..environment(core) }
    }

    /// Writes that the tester is not calibrated, if this is the case.
    pub(super) fn note_calibration(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.calibration {
            Some(_) => Ok(()),
            None => writeln!(f, "not calibrated: results near the limits of the tester have no mark (--calibration)"),
        }
    }
}

impl fmt::Display for PortEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device)?;
        self.driver.iter().try_for_each(|driver| write!(f, ", driver {driver}"))?;
        self.firmware.iter().try_for_each(|firmware| write!(f, ", firmware {firmware}"))?;
        write!(f, ", MTU {}", self.mtu)?;
        let offloads = self.offloads.iter().chain(&self.interface_offloads);
        offloads.into_iter().try_for_each(|offload| write!(f, ", {offload}"))
    }
}

impl PortEnvironment {
    fn of(lanes: &PortLanes, port: usize) -> Option<Self> {
        let plan = lanes.plan().ports.get(port)?;
        let interface = plan.config.kernel_interface();
        let facts = interface.and_then(|name| InterfaceFacts::of(name).ok().flatten()).unwrap_or_default();
        let roots = Roots::real();
        // An RDMA device without an interface of the kernel.
        let rdma = format!("class/infiniband/{}", plan.config.device);
        let driver = || {
            let link = std::fs::read_link(roots.sys.join(&rdma).join("device/driver")).ok()?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        };
        let requested = plan.requests.iter().map(|request| request.offload.to_string());
        let listed = plan.config.offloads().iter().map(|offload| offload.name().to_owned());
        let on = [("gro", facts.gro), ("lro", facts.lro), ("rxvlan", facts.strips_vlan_tags)];
        Some(Self {
            name: plan.config.name.clone(),
            device: lanes.describe(port),
            driver: facts.driver.or_else(driver),
            firmware: facts.firmware.or_else(|| roots.sys(&format!("{rdma}/fw_ver"))).filter(|text| !text.is_empty()),
            mtu: plan.config.max_packet(),
            offloads: listed.chain(requested).collect(),
            interface_offloads: on
                .into_iter()
                .filter(|(_, on)| *on == Some(true))
                .map(|(name, _)| name.to_owned())
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use dataplane_testing::Folder;

    use super::*;

    #[test]
    fn machine_has_the_product_and_the_hypervisor() {
        let folder = Folder::new();
        let roots = Roots { sys: folder.file("sys"), proc: folder.file("proc") };
        assert_eq!(host_environment(&roots, None).machine, "");
        folder.write(
            "proc/cpuinfo",
            "processor : 0\nmodel name : X: 9\nflags\t\t: fpu hypervisor sse\n\nprocessor : 1\n",
        );
        let host = host_environment(&roots, Some(1));
        assert_eq!((host.machine.as_str(), host.processor.as_str(), host.cores), ("virtual machine", "X: 9", 2));
        folder.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
        folder.write("sys/class/dmi/id/product_name", "Standard PC\n");
        folder.write("sys/hypervisor/type", "xen\n");
        assert_eq!(host_environment(&roots, None).machine, "QEMU, Standard PC, xen");
    }
}
