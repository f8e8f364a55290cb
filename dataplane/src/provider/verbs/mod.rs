//! The devices of the system's libibverbs: which there are, and what they can do.
//!
//! Listing asks nothing of a device that would disturb who uses it. It needs no capability, but read and write access to
//! the device's file in `/dev/infiniband`.

#[cfg(test)]
mod fake;
mod ffi;
#[allow(dead_code)]
mod flow;
#[allow(dead_code)]
mod raw;
#[allow(dead_code)]
mod rss;

pub use flow::{
    Bits, EthernetMatch, FlowCount, FlowCounters, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match,
    Ipv6Match, PortsMatch, TransportMatch, TunnelMatch,
};
pub use raw::{RateLimit, RawError, RawPacketCaps, RawReceive, RawSpec, RssCaps, Tso, check_checksum, frame_length};
pub use rss::{TrafficClass, WorkQueueSpec};

use std::ffi::CStr;
use std::fs;
use std::path::Path;

use crate::error::{Error, Result, VerbError};
use crate::provider::{Capabilities, Capability, DeviceInfo};
use crate::units::NumaNode;

/// The libibverbs of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsProvider;

impl VerbsProvider {
    /// The devices of the host. A device that cannot be opened is there, with the reason.
    ///
    /// # Errors
    /// They could not be listed. A kernel without RDMA is no error: there are no devices.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        match ffi::devices() {
            Ok(found) => Ok(found.into_iter().map(info).collect()),
            Err(VerbError { errno: libc::ENOSYS, .. }) => Ok(Vec::new()),
            Err(error) => Err(error.on("libibverbs")),
        }
    }
}

fn info(found: ffi::Found) -> DeviceInfo {
    let folder = Path::new("/sys/class/infiniband").join(&found.name).join("device");
    let driver = fs::read_link(folder.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let node = fs::read_to_string(folder.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    let infiniband = found.infiniband;
    let asked = found.answer.map_err(|error| hint(error, &found.name));
    DeviceInfo {
        driver: driver.unwrap_or_else(|| "unknown".to_owned()),
        node: node.map(NumaNode),
        capabilities: asked.map(|answer| capabilities(&answer, infiniband)),
        name: found.name,
    }
}

fn hint(error: VerbError, device: &str) -> String {
    let text = Error::to_string(&error.on(device));
    match error.errno {
        libc::EACCES | libc::EPERM => {
            format!("{text}: give this user read and write access to /dev/infiniband/uverbs*")
        }
        _ => text,
    }
}

fn capabilities(answer: &ffi::Answered, infiniband: bool) -> Capabilities {
    let extended = &answer.attr;
    let basic = &extended.orig_attr;
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let firmware: Vec<u8> = basic.fw_ver.iter().map(|&byte| byte as u8).chain([0]).collect();
    let firmware = CStr::from_bytes_until_nul(&firmware).map(|text| text.to_string_lossy().into_owned());
    let stamps = extended.completion_timestamp_mask;
    let spreads = extended.rss_caps.supported_qpts;
    /// The bit of `IBV_QPT_RAW_PACKET` among queue pair types.
    const RAW_PACKET: u32 = 1 << 8;
    let raw = basic.max_raw_ethy_qp > 0 || spreads & RAW_PACKET != 0 || extended.raw_packet_caps != 0;
    let has = [
        (Capability::RawPacket, raw),
        (Capability::Datagram, infiniband),
        (Capability::ExtendedCq, answer.extended_cq),
        (Capability::Timestamps, stamps != 0),
        (Capability::Rss, spreads & RAW_PACKET != 0),
    ];
    Capabilities {
        firmware: firmware.unwrap_or_default(),
        ports: basic.phys_port_cnt,
        max_qp: count(basic.max_qp),
        max_qp_wr: count(basic.max_qp_wr),
        max_sge: count(basic.max_sge),
        max_cq: count(basic.max_cq),
        max_cqe: count(basic.max_cqe),
        max_mr: count(basic.max_mr),
        max_mr_size: basic.max_mr_size,
        max_srq: count(basic.max_srq),
        max_srq_wr: count(basic.max_srq_wr),
        max_rd_atomic: count(basic.max_qp_rd_atom),
        max_init_rd_atomic: count(basic.max_qp_init_rd_atom),
        completion_vectors: answer.completion_vectors,
        timestamp_mask: stamps,
        clock_khz: extended.hca_core_clock,
        has: has.into_iter().filter(|(_, has)| *has).map(|(capability, _)| capability).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the host has: the list is that of the kernel, and each device is described or says why not.
    #[test]
    fn the_list_is_that_of_the_kernel() {
        let mut known: Vec<String> = fs::read_dir("/sys/class/infiniband")
            .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        let devices = VerbsProvider.devices().unwrap();
        let mut listed: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        known.sort();
        listed.sort();
        assert_eq!(listed, known);
        for device in devices {
            match device.capabilities {
                Ok(capabilities) => assert!(capabilities.ports > 0, "{}", device.name),
                Err(reason) => assert!(reason.contains(&device.name), "{reason}"),
            }
        }
    }
}
