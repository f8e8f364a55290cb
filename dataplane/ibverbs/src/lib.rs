//! The `verbs` provider: an implementation of the verbs contract that calls the system's libibverbs.
//!
//! Only the module `ffi` calls libibverbs. The other modules add safe types and check the rules of the man pages. The
//! modules `capabilities` and `selftest` test what a device supports. The module `quirk` has a table of known driver
//! defects.
//!
//! A program that opens a device needs read and write access to the device file in `/dev/infiniband`, but no Linux
//! capability. To detect the capabilities of the device, the provider creates and destroys a few small objects. These
//! objects do not affect other users of the device.
//!
//! # Raw packets
//!
//! A raw-packet queue pair receives no frames until a flow rule exists. [`RawSpec`](dataplane_core::verbs::RawSpec)
//! contains the flow rules, the RSS settings and the receive offloads of a port. With the default `RawSpec`, the queue
//! pairs of a port receive every frame unchanged. Flow rules and raw-packet queue pairs need `CAP_NET_RAW` in the
//! initial user namespace.
//!
//! If a port has several queues, the provider posts receives to work queues. An indirection table lists the work
//! queues. For each combination of IP version and transport protocol, a hashing queue pair selects a work queue from
//! the table.
//!
//! Raw packets have not been tested on hardware, because no test device supports them. The tests compare, byte by byte,
//! the structures that the driver receives with the layouts in the man pages and in verbs.h.

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
mod held_log;
mod lists;
mod objects;
mod os;
mod poll;
mod post;
mod qp;
mod queue_pair;
mod queues;
mod quirk;
mod raw;
mod raw_queue;
mod request;
mod rss;
mod selftest;
mod srq;
#[cfg(test)]
mod tests;
mod unlisted;
mod window;

use std::fs;
use std::path::Path;

pub use ah::VerbsAh;
pub use channel::VerbsChannel;
pub use cq::VerbsCq;
pub use device::VerbsDevice;
pub use domain::{VerbsDmabuf, VerbsMr, VerbsPd};
pub use flow::encode_flow_rule;
pub use poll::VerbsCursor;
pub use qp::VerbsQp;
pub use selftest::SelfTest;
pub use srq::VerbsSrq;
pub use unlisted::UnlistedDevice;
pub use window::VerbsMw;

use dataplane_core::error::{Error, Result, VerbError};
use dataplane_core::units::NumaNode;
use dataplane_core::verbs::{Device, DeviceInfo, Provider};

/// The provider that calls the system's libibverbs.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsProvider;

impl Provider for VerbsProvider {
    type Device = VerbsDevice;

    /// Returns the devices of the host. A device that cannot be opened, or that only the kernel knows, is listed with
    /// the reason. On a kernel without RDMA support, the list is empty.
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        let names = names()?;
        let unlisted = unlisted(&names).into_iter().map(|device| {
            let why = device.to_string();
            DeviceInfo { node: node(&device.name), ..DeviceInfo::unusable(device.name, why) }
        });
        Ok(names.into_iter().map(|name| info(self, name)).chain(unlisted).collect())
    }

    fn open(&self, name: &str) -> Result<VerbsDevice> {
        let failed = |error: VerbError| error.on(name);
        domain::make_forks_safe().map_err(failed)?;
        // SAFETY: the device list is not freed until the closure returns.
        #[allow(unsafe_code, reason = "the device list contains raw pointers")]
        let opened = ffi::with_devices(|devices| unsafe {
            let device = devices.iter().find(|device| ffi::ibv_get_device_name(**device) == name)?;
            Some(ffi::ibv_open_device(*device))
        });
        let none = || {
            let listed = names().unwrap_or_default();
            no_device(name, &listed, &unlisted(&listed))
        };
        let raw = match opened {
            Ok(raw) => raw.ok_or_else(none)?.map_err(failed)?,
            Err(VerbError { errno: libc::ENOSYS, .. }) => return Err(none()),
            Err(error) => return Err(failed(error)),
        };
        // SAFETY: the context was just opened, and this is the only pointer to it.
        #[allow(unsafe_code, reason = "the context is a raw pointer")]
        unsafe { VerbsDevice::new(raw, name.to_owned()) }.map_err(failed)
    }
}

impl VerbsProvider {
    /// Returns the RDMA devices of the kernel that libibverbs does not list, with the reasons.
    ///
    /// # Errors
    /// libibverbs cannot list its devices.
    pub fn unlisted(&self) -> Result<Vec<UnlistedDevice>> {
        Ok(unlisted(&names()?))
    }
}

fn unlisted(listed: &[String]) -> Vec<UnlistedDevice> {
    UnlistedDevice::all(Path::new("/sys"), Path::new("/dev"), listed)
}

/// Returns the error for a device that libibverbs does not list. `listed` are the devices that libibverbs lists, and
/// `unlisted` the other devices of the kernel.
fn no_device(name: &str, listed: &[String], unlisted: &[UnlistedDevice]) -> Error {
    let why = match unlisted.iter().find(|device| device.name == name) {
        Some(device) => device.to_string(),
        None if listed.is_empty() && unlisted.is_empty() => "this host has no verbs devices".to_owned(),
        None => {
            let unlisted = unlisted.iter().map(|device| device.name.as_str());
            let known: Vec<&str> = listed.iter().map(String::as_str).chain(unlisted).collect();
            format!("devices: {}", known.join(", "))
        }
    };
    Error::Topology(format!("{name}: no verbs device with this name; {why}"))
}

fn names() -> Result<Vec<String>> {
    #[allow(unsafe_code, reason = "the device list contains raw pointers")]
    let names = ffi::with_devices(|devices| {
        // SAFETY: the device list is not freed until the closure returns.
        devices.iter().map(|device| unsafe { ffi::ibv_get_device_name(*device) }).collect()
    });
    match names {
        // The kernel has no RDMA support, so the list is empty.
        Err(VerbError { errno: libc::ENOSYS, .. }) => Ok(Vec::new()),
        names => names.map_err(|error| error.on("libibverbs")),
    }
}

fn info(provider: &VerbsProvider, name: String) -> DeviceInfo {
    let node = node(&name);
    match provider.open(&name) {
        Ok(device) => {
            let (context, probed) = (device.context(), device.probed());
            let library = context.library.map_or_else(|| "unknown version".to_owned(), |version| version.to_string());
            DeviceInfo {
                name,
                driver: context.driver.clone(),
                node,
                capabilities: Ok(device.capabilities().clone()),
                missing: probed.missing.clone(),
                queue: probed.queue.clone(),
                library: Some(library),
                quirks: context.quirks.all().map(str::to_owned).collect(),
            }
        }
        Err(error) => DeviceInfo { node, ..DeviceInfo::unusable(name, error.to_string()) },
    }
}

/// Returns the NUMA node of a device. For a software RDMA device, returns the node of its network device.
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
