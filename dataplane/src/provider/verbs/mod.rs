//! The system's libibverbs: thin, and without a policy of its own.
//!
//! All calls into the library are in `ffi`; the rest gives them types, lifetimes and the rules of the man pages. What
//! devices do differently is known by trying (`capabilities`, `selftest`) or by a table (`quirk`).
//!
//! Opening a device needs no capability, but read and write access to its file in `/dev/infiniband`. To find out what it
//! can do, a few small objects are created and destroyed; nobody who uses the device is disturbed.
//!
//! # Raw packets
//!
//! No frame arrives at a queue pair of raw packets before a flow rule is there. [`RawSpec`] has the rules, how frames are
//! spread over the queues of a port, and what the device does to them; without one every frame is received as it is. Rules
//! and queue pairs need `CAP_NET_RAW` in the first user namespace. On a device with several queues to a port, receives go to
//! work queues behind one indirection table, with a hashing queue pair for each IP version and transport.
//!
//! None of this was run on hardware: no device of the test bed has it. What the driver is asked for is compared byte by
//! byte with what the man pages and verbs.h want.

mod ah;
mod attr;
mod builder;
mod capabilities;
mod channel;
mod context;
mod cq;
mod device;
mod domain;
mod event;
#[cfg(test)]
mod fake;
mod ffi;
mod flow;
mod owner;
mod poll;
mod post;
mod qp;
mod quirk;
mod raw;
mod rss;
mod selftest;
mod srq;
#[cfg(test)]
mod tests;
mod window;

use std::fs;
use std::path::Path;

pub use ah::VerbsAh;
pub use channel::VerbsChannel;
pub use cq::VerbsCq;
pub use device::VerbsDevice;
pub use domain::{VerbsDmabuf, VerbsMr, VerbsPd};
pub use flow::{
    Bits, EthernetMatch, FlowCount, FlowCounters, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match,
    Ipv6Match, PortsMatch, TransportMatch, TunnelMatch,
};
pub use poll::VerbsCursor;
pub use qp::VerbsQp;
pub use raw::{RateLimit, RawPacketCaps, RawReceive, RawSpec, RssCaps, frame_length};
pub use selftest::SelfTest;
pub use srq::VerbsSrq;
pub use window::VerbsMw;

use crate::error::{Error, Result, VerbError};
use crate::provider::{Device, DeviceInfo, Provider};
use crate::units::NumaNode;

/// The libibverbs of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsProvider;

impl Provider for VerbsProvider {
    type Device = VerbsDevice;

    /// The devices of the host. A device that cannot be opened is there, with the reason. A kernel without RDMA is no
    /// error: there are none.
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(names()?.into_iter().map(|name| info(self, name)).collect())
    }

    fn open(&self, name: &str) -> Result<VerbsDevice> {
        let failed = |error: VerbError| error.on(name);
        domain::make_forks_safe().map_err(failed)?;
        // SAFETY: the devices are of a list that is not freed before this is over.
        #[allow(unsafe_code, reason = "the list's devices are raw")]
        let opened = ffi::with_devices(|devices| unsafe {
            let device = devices.iter().find(|device| ffi::ibv_get_device_name(**device) == name)?;
            Some(ffi::ibv_open_device(*device))
        });
        let none = || {
            let known = names().unwrap_or_default();
            let known =
                if known.is_empty() { "there is none".to_owned() } else { format!("there are {}", known.join(", ")) };
            Error::Topology(format!("{name}: no verbs device has this name; {known}"))
        };
        let raw = match opened {
            Ok(raw) => raw.ok_or_else(none)?.map_err(failed)?,
            Err(VerbError { errno: libc::ENOSYS, .. }) => return Err(none()),
            Err(error) => return Err(failed(error)),
        };
        // SAFETY: the context was just opened, and nobody else knows of it.
        #[allow(unsafe_code, reason = "the context is raw")]
        unsafe { VerbsDevice::new(raw, name.to_owned()) }.map_err(failed)
    }
}

fn names() -> Result<Vec<String>> {
    #[allow(unsafe_code, reason = "the list's devices are raw")]
    let names = ffi::with_devices(|devices| {
        // SAFETY: the devices are of a list that is not freed before this is over.
        devices.iter().map(|device| unsafe { ffi::ibv_get_device_name(*device) }).collect()
    });
    match names {
        // A kernel that has no RDMA.
        Err(VerbError { errno: libc::ENOSYS, .. }) => Ok(Vec::new()),
        names => names.map_err(|error| error.on("libibverbs")),
    }
}

fn info(provider: &VerbsProvider, name: String) -> DeviceInfo {
    let node = node(&name);
    match provider.open(&name) {
        Ok(device) => {
            let (context, about) = (device.context(), device.about());
            let library =
                context.library.map_or_else(|| "of unknown version".to_owned(), |version| version.to_string());
            DeviceInfo {
                name,
                driver: context.driver.clone(),
                node,
                capabilities: Ok(device.capabilities().clone()),
                missing: about.missing.clone(),
                queue: about.queue.clone(),
                library: Some(library),
                quirks: context.quirks.all().map(str::to_owned).collect(),
            }
        }
        Err(error) => DeviceInfo { node, ..DeviceInfo::unusable(name, error.to_string()) },
    }
}

/// The node of a device in the PCI tree; of one in software, that of the network device below it.
fn node(name: &str) -> Option<NumaNode> {
    let of =
        |folder: &Path| fs::read_to_string(folder.join("device/numa_node")).ok()?.trim().parse().ok().map(NumaNode);
    let folder = Path::new("/sys/class/infiniband").join(name);
    let below = || {
        let parent = fs::read_to_string(folder.join("parent")).ok()?;
        of(&Path::new("/sys/class/net").join(parent.trim()))
    };
    of(&folder).or_else(below)
}
