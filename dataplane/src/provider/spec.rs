//! What is asked of a device, and what it grants.

use std::fmt;

use serde::Serialize;

use crate::clock::ClockSource;
use crate::provider::{CqFlags, PollFields, QpType};
use crate::units::NumaNode;

/// A device as a list shows it.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// What implements it: `soft`, or the kernel driver.
    pub driver: String,
    /// The node it is attached to, where that is known.
    pub node: Option<NumaNode>,
    /// What it can do; or why it cannot be asked.
    pub capabilities: Result<Capabilities, String>,
}

/// Something that a device may have or lack. A software device can be told to lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Queue pairs of whole Ethernet frames.
    RawPacket,
    /// Queue pairs of unreliable datagrams.
    Datagram,
    /// Completion queues that are polled by cursor: `ibv_create_cq_ex(3)`.
    ExtendedCq,
    /// Completion stamps in device ticks.
    Timestamps,
    /// Completion stamps in wall-clock nanoseconds.
    WallclockTimestamps,
    /// Completion queues without a lock.
    SingleThreaded,
    /// Completion queues that do not watch for overrun.
    IgnoreOverrun,
    /// Inline sends.
    Inline,
    /// Several queues on a port, fed by a hash of the headers.
    Rss,
}

impl Capability {
    /// All of them, in the order that tools list them.
    pub const ALL: [Self; 9] = [
        Self::RawPacket,
        Self::Datagram,
        Self::ExtendedCq,
        Self::Timestamps,
        Self::WallclockTimestamps,
        Self::SingleThreaded,
        Self::IgnoreOverrun,
        Self::Inline,
        Self::Rss,
    ];

    /// The name that configs and tools use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawPacket => "raw_packet",
            Self::Datagram => "datagram",
            Self::ExtendedCq => "extended_cq",
            Self::Timestamps => "timestamps",
            Self::WallclockTimestamps => "wallclock_timestamps",
            Self::SingleThreaded => "single_threaded",
            Self::IgnoreOverrun => "ignore_overrun",
            Self::Inline => "inline",
            Self::Rss => "rss",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a device can do: `ibv_query_device_ex(3)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The firmware's version, as the device words it.
    pub firmware: String,
    /// Ports, counted from 1.
    pub ports: u8,
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most requests outstanding on a queue.
    pub max_qp_wr: u32,
    /// The most scatter/gather elements of a request.
    pub max_sge: u32,
    /// The most completion queues.
    pub max_cq: u32,
    /// The most entries of a completion queue.
    pub max_cqe: u32,
    /// The most memory regions.
    pub max_mr: u32,
    /// The largest memory region in bytes.
    pub max_mr_size: u64,
    /// The bits of a completion stamp; 0: none are to be had.
    pub timestamp_mask: u64,
    /// Thousand ticks a second of the device's clock; 0: unknown.
    pub clock_khz: u64,
    /// What else it has.
    pub has: Vec<Capability>,
}

/// The state of a port: `ibv_query_port(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Whether it carries traffic.
    pub active: bool,
    /// The largest payload of a frame, in bytes.
    pub mtu: u32,
    /// Whether frames are Ethernet.
    pub ethernet: bool,
}

/// A completion queue as it is asked for: `struct ibv_cq_init_attr_ex`.
#[derive(Clone, Copy, Debug)]
pub struct CqSpec {
    /// The least number of entries.
    pub depth: u32,
    /// The fields of a completion that will be read. Those that are not to be had are left out by name.
    pub fields: PollFields,
    /// What it need not do. What is not to be had is left out by name.
    pub flags: CqFlags,
}

/// What was granted, to be printed by tools and stored beside every measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CqGranted {
    /// Entries.
    pub depth: u32,
    /// Fields that can be read.
    #[serde(skip)]
    pub fields: PollFields,
    /// Flags that hold.
    #[serde(skip)]
    pub flags: CqFlags,
    /// What the stamps count.
    pub stamps: ClockSource,
    /// What was asked for and is not to be had.
    pub refused: Vec<Capability>,
}

impl fmt::Display for CqGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "depth {}, stamps {}", self.depth, self.stamps)?;
        for capability in &self.refused {
            write!(f, ", no {capability}")?;
        }
        Ok(())
    }
}

/// The sizes of a queue pair: `struct ibv_qp_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QpCaps {
    /// Send requests outstanding.
    pub send_depth: u32,
    /// Receive requests outstanding.
    pub recv_depth: u32,
    /// Elements of a send request.
    pub send_sges: u32,
    /// Elements of a receive request.
    pub recv_sges: u32,
    /// Bytes that can be sent inline.
    pub inline: u32,
}

/// A queue pair as it is asked for: `struct ibv_qp_init_attr_ex`.
#[derive(Clone, Copy, Debug)]
pub struct QpSpec {
    /// Its type.
    pub kind: QpType,
    /// The least sizes.
    pub caps: QpCaps,
    /// Whether every send completes with an entry, asked for or not.
    pub signal_all: bool,
    /// The queue of the port that this is: which of how many. Packets are spread over the queues of a port by a hash of
    /// their headers, so that those of a flow stay together.
    pub queue: (u16, u16),
}
