//! What is asked of a device, and what it grants.

use std::fmt;

use serde::Serialize;

use crate::clock::ClockSource;
use crate::provider::code::codes;
use crate::provider::{CqFlags, PollFields, QpType};
use crate::units::{Gid, NumaNode};

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
    /// What it cannot do, and why.
    pub missing: Vec<Missing>,
    /// What is granted to who asks for all that a completion queue can have.
    pub queue: Option<CqGranted>,
    /// The version of the library that drives it.
    pub library: Option<String>,
    /// What the driver is known to do wrong, and is therefore not asked to do.
    pub quirks: Vec<String>,
}

impl DeviceInfo {
    /// A device that cannot be opened.
    pub fn unusable(name: String, why: String) -> Self {
        let driver = "unknown".to_owned();
        Self {
            name,
            driver,
            node: None,
            capabilities: Err(why),
            missing: Vec::new(),
            queue: None,
            library: None,
            quirks: Vec::new(),
        }
    }
}

/// Something that a device has not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// What.
    pub capability: Capability,
    /// Why, and what to do about it where something can be done.
    pub why: String,
}

/// Something that a device may have or lack. A software device can be told to lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Queue pairs of whole Ethernet frames.
    RawPacket,
    /// Queue pairs of unreliable datagrams.
    Datagram,
    /// Queue pairs of reliable connections.
    Rc,
    /// Queue pairs of unreliable connections.
    Uc,
    /// Receive queues that several queue pairs share.
    Srq,
    /// Memory windows.
    MemoryWindow,
    /// Compare-and-swap and fetch-and-add on the peer's memory.
    Atomic,
    /// Groups of multicast.
    Multicast,
    /// Completion channels, to sleep on.
    Events,
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
    /// The tag of the matching flow rule with each completion.
    FlowTag,
    /// The VLAN tag that was taken off with each completion.
    Cvlan,
    /// Tag-matching information with each completion.
    TagMatching,
    /// Posting by the functions `ibv_wr_*(3)`.
    ExtendedSend,
}

impl Capability {
    /// All of them, in the order that tools list them.
    pub const ALL: [Self; 20] = [
        Self::RawPacket,
        Self::Datagram,
        Self::Rc,
        Self::Uc,
        Self::Srq,
        Self::MemoryWindow,
        Self::Atomic,
        Self::Multicast,
        Self::Events,
        Self::ExtendedCq,
        Self::Timestamps,
        Self::WallclockTimestamps,
        Self::SingleThreaded,
        Self::IgnoreOverrun,
        Self::Inline,
        Self::Rss,
        Self::FlowTag,
        Self::Cvlan,
        Self::TagMatching,
        Self::ExtendedSend,
    ];

    /// The name that configs and tools use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawPacket => "raw_packet",
            Self::Datagram => "datagram",
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Srq => "srq",
            Self::MemoryWindow => "memory_window",
            Self::Atomic => "atomic",
            Self::Multicast => "multicast",
            Self::Events => "events",
            Self::ExtendedCq => "extended_cq",
            Self::Timestamps => "timestamps",
            Self::WallclockTimestamps => "wallclock_timestamps",
            Self::SingleThreaded => "single_threaded",
            Self::IgnoreOverrun => "ignore_overrun",
            Self::Inline => "inline",
            Self::Rss => "rss",
            Self::FlowTag => "flow_tag",
            Self::Cvlan => "cvlan",
            Self::TagMatching => "tag_matching",
            Self::ExtendedSend => "extended_send",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a device can do: `ibv_query_device_ex(3)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// The most shared receive queues.
    pub max_srq: u32,
    /// The most receives on a shared receive queue.
    pub max_srq_wr: u32,
    /// The most reads and atomics under way at a queue pair, as responder.
    pub max_rd_atomic: u32,
    /// The same, as requester.
    pub max_init_rd_atomic: u32,
    /// Whether it moves a connection to an alternate path by itself, as it says; of InfiniBand.
    pub path_migration: bool,
    /// Interrupts that completion events can come by.
    pub completion_vectors: u32,
    /// What else it has.
    pub has: Vec<Capability>,
}

codes! {
    /// The state of a port: `enum ibv_port_state`.
    PortState {
        /// The device does not say.
        Nop = 0 "IBV_PORT_NOP",
        /// No link.
        Down = 1 "IBV_PORT_DOWN",
        /// A link, and not yet configured.
        Init = 2 "IBV_PORT_INIT",
        /// Configured, and not yet carrying traffic.
        Armed = 3 "IBV_PORT_ARMED",
        /// Carries traffic.
        Active = 4 "IBV_PORT_ACTIVE",
        /// Was active, and waits for the link to come back.
        ActiveDefer = 5 "IBV_PORT_ACTIVE_DEFER",
    }
}

codes! {
    /// What a port speaks: `IBV_LINK_LAYER_*`.
    LinkLayer {
        /// The device does not say: InfiniBand, by tradition.
        Unspecified = 0 "IBV_LINK_LAYER_UNSPECIFIED",
        /// InfiniBand.
        InfiniBand = 1 "IBV_LINK_LAYER_INFINIBAND",
        /// Ethernet: RoCE, iWARP, raw packets.
        Ethernet = 2 "IBV_LINK_LAYER_ETHERNET",
    }
}

/// A port: `ibv_query_port(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Its state.
    pub state: PortState,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// The largest payload of a packet that it could carry, in bytes.
    pub max_mtu: u32,
    /// The largest payload of a packet that it carries now, in bytes: of RDMA 256 to 4,096, of the software device that of
    /// its frames.
    pub active_mtu: u32,
    /// The largest message in bytes.
    pub max_message: u32,
    /// Places in its table of addresses.
    pub gids: u32,
    /// Places in its table of partition keys.
    pub pkeys: u16,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// How many low bits of the local identifier are path bits.
    pub lmc: u8,
}

impl PortAttributes {
    /// Whether it carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == PortState::Active
    }
}

codes! {
    /// What kind of address a GID is: `enum ibv_gid_type`.
    GidKind {
        /// Of InfiniBand; of RoCE that of version 1 has the same number in some interfaces.
        InfiniBand = 0 "IBV_GID_TYPE_IB",
        /// RoCE without IP: Ethernet frames of a type of their own.
        RoceV1 = 1 "IBV_GID_TYPE_ROCE_V1",
        /// RoCE over UDP.
        RoceV2 = 2 "IBV_GID_TYPE_ROCE_V2",
    }
}

/// An address of a port: `struct ibv_gid_entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table. It may move when addresses change: resolve it by value and kind.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// The network interface that it is of, by its index; 0: none.
    pub interface: u32,
}

/// Which of the two interfaces a completion queue is made and polled by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CqApi {
    /// As a wish: the extended one where it is to be had and works. Granted, it is never this.
    #[default]
    Auto,
    /// `ibv_poll_cq(3)`.
    Classic,
    /// `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` of `ibv_create_cq_ex(3)`.
    Extended,
    /// The same, one completion between start and end: for a library whose `ibv_next_poll` cannot be trusted.
    ExtendedSingle,
}

/// Which of the two interfaces sends are posted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SendApi {
    /// `ibv_post_send(3)`, which every device has.
    #[default]
    Classic,
    /// `ibv_wr_start(3)` and so on.
    Extended,
}

/// A completion queue as it is asked for: `struct ibv_cq_init_attr_ex`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqSpec {
    /// The least number of entries.
    pub depth: u32,
    /// The fields of a completion that will be read. Those that are not to be had are left out by name.
    pub fields: PollFields,
    /// What it need not do. What is not to be had is left out by name.
    pub flags: CqFlags,
    /// The interrupt that its events come by: below the device's number of completion vectors.
    pub vector: u32,
    /// How it is polled.
    pub api: CqApi,
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
    /// How it is polled.
    pub api: CqApi,
    /// What the stamps count.
    pub stamps: ClockSource,
    /// What was asked for and is not to be had.
    pub refused: Vec<Capability>,
    /// Why not: a line for each reason.
    pub why: Vec<String>,
}

impl fmt::Display for CqGranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let api = match self.api {
            CqApi::Classic => ", classic polling",
            CqApi::ExtendedSingle => ", polled one at a time",
            CqApi::Auto | CqApi::Extended => "",
        };
        write!(f, "depth {}, stamps {}{api}", self.depth, self.stamps)?;
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
    /// How sends are posted.
    pub send_api: SendApi,
    /// The queue of the port that this is: which of how many. Packets are spread over the queues of a port by a hash of
    /// their headers, so that those of a flow stay together. Of raw packets; (0, 1) of the others.
    pub queue: (u16, u16),
}

impl QpSpec {
    /// A queue pair of these sizes, alone on its port.
    pub fn new(kind: QpType, caps: QpCaps) -> Self {
        Self { kind, caps, signal_all: false, send_api: SendApi::Classic, queue: (0, 1) }
    }
}

/// A shared receive queue as it is asked for: `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqSpec {
    /// The least number of receives that it has room for.
    pub depth: u32,
    /// Elements of a receive.
    pub sges: u32,
}

/// The kind of a memory window: `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MwKind {
    /// Bound by `ibv_bind_mw(3)`; whoever knows the key may use it.
    Type1 = 1,
    /// Bound by a send request; tied to that queue pair, and invalidated by either side.
    Type2 = 2,
}
