//! Requested and granted properties of devices, queues and queue pairs.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::ClockSource;
use crate::units::{Gid, NumaNode};
use crate::verbs::code::codes;
use crate::verbs::{CqFlags, PollFields, QpType};

/// A device in a device list.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceInfo {
    /// The device's name.
    pub name: String,
    /// The implementation: `soft`, or the kernel driver.
    pub driver: String,
    /// The NUMA node of the device, if known.
    pub node: Option<NumaNode>,
    /// The capabilities, or why they could not be queried.
    pub capabilities: Result<Capabilities, String>,
    /// The capabilities that the device lacks, and why.
    pub missing: Vec<Missing>,
    /// The granted properties of a completion queue that requests every feature.
    pub queue: Option<CqGranted>,
    /// The version of the library that drives the device.
    pub library: Option<String>,
    /// Known faults of the driver. The affected features are not used.
    pub quirks: Vec<String>,
}

impl DeviceInfo {
    /// Returns the description of a device that cannot be opened.
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

/// A capability that a device lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The missing capability.
    pub capability: Capability,
    /// Why the capability is missing, and how to enable the capability if that is possible.
    pub why: String,
}

/// A capability that a device may have or lack. A config can remove a capability from a software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Queue pairs for whole Ethernet frames.
    RawPacket,
    /// Queue pairs for unreliable datagrams.
    Datagram,
    /// Queue pairs for reliable connections.
    Rc,
    /// Queue pairs for unreliable connections.
    Uc,
    /// Shared receive queues.
    Srq,
    /// Memory windows.
    MemoryWindow,
    /// Compare-and-swap and fetch-and-add on the peer's memory.
    Atomic,
    /// Multicast groups.
    Multicast,
    /// Completion channels, for sleeping until a completion.
    Events,
    /// Completion queues that are polled with a cursor: `ibv_create_cq_ex(3)`.
    ExtendedCq,
    /// Completion timestamps in device ticks.
    Timestamps,
    /// Completion timestamps in wall-clock nanoseconds.
    WallclockTimestamps,
    /// Completion queues without a lock.
    SingleThreaded,
    /// Completion queues that do not check for overrun.
    IgnoreOverrun,
    /// Inline sends.
    Inline,
    /// Several queues on a port, selected by a hash of the packet headers.
    Rss,
    /// The tag of the matching flow rule in each completion.
    FlowTag,
    /// The stripped VLAN tag in each completion.
    Cvlan,
    /// Flow rules, which select the received frames.
    FlowRules,
    /// The check of the IPv4, TCP and UDP checksums of received frames.
    RxChecksum,
    /// The computation of the IPv4, TCP and UDP checksums of sent frames.
    TxChecksum,
    /// The removal of the VLAN tag of received frames.
    VlanStrip,
    /// The delivery of the frame check sequence after the frame.
    Fcs,
    /// The delay of received frames while no receive is posted.
    DelayDrop,
    /// The RSS hash of the frame in each completion.
    RssHash,
    /// The split of a TCP send into many frames.
    Tso,
    /// A limit of the send rate of a queue.
    Pacing,
    /// Tag-matching information in each completion.
    TagMatching,
    /// Posting with the `ibv_wr_*(3)` functions.
    ExtendedSend,
    /// Parent domains, which completion queues may be created in: `ibv_alloc_parent_domain(3)`.
    ParentDomain,
}

impl Capability {
    /// All capabilities, in the order that tools list them.
    pub const ALL: [Self; 30] = [
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
        Self::FlowRules,
        Self::RxChecksum,
        Self::TxChecksum,
        Self::VlanStrip,
        Self::Fcs,
        Self::DelayDrop,
        Self::RssHash,
        Self::Tso,
        Self::Pacing,
        Self::TagMatching,
        Self::ExtendedSend,
        Self::ParentDomain,
    ];

    /// Returns the name that configs and tools use.
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
            Self::FlowRules => "flow_rules",
            Self::RxChecksum => "rx_checksum",
            Self::TxChecksum => "tx_checksum",
            Self::VlanStrip => "vlan_strip",
            Self::Fcs => "fcs",
            Self::DelayDrop => "delay_drop",
            Self::RssHash => "rss_hash",
            Self::Tso => "tso",
            Self::Pacing => "pacing",
            Self::TagMatching => "tag_matching",
            Self::ExtendedSend => "extended_send",
            Self::ParentDomain => "parent_domain",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The capabilities of a device: `ibv_query_device_ex(3)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The firmware version, as the device reports it.
    pub firmware: String,
    /// The number of ports. The first port has the number 1.
    pub ports: u8,
    /// The maximum number of queue pairs.
    pub max_qp: u32,
    /// The maximum number of outstanding requests on a queue.
    pub max_qp_wr: u32,
    /// The maximum number of scatter/gather elements per request.
    pub max_sge: u32,
    /// The maximum number of completion queues.
    pub max_cq: u32,
    /// The maximum number of entries of a completion queue.
    pub max_cqe: u32,
    /// The maximum number of memory regions.
    pub max_mr: u32,
    /// The maximum size of a memory region in bytes.
    pub max_mr_size: u64,
    /// The valid bits of a completion timestamp; 0: the device has no timestamps.
    pub timestamp_mask: u64,
    /// The frequency of the device clock in kHz; 0: unknown.
    pub clock_khz: u64,
    /// The maximum number of shared receive queues.
    pub max_srq: u32,
    /// The maximum number of receives on a shared receive queue.
    pub max_srq_wr: u32,
    /// The maximum number of outstanding reads and atomics per queue pair as responder.
    pub max_rd_atomic: u32,
    /// The maximum number of outstanding reads and atomics per queue pair as requester.
    pub max_init_rd_atomic: u32,
    /// Whether the device reports automatic path migration, a feature of InfiniBand.
    pub path_migration: bool,
    /// The number of completion vectors: interrupts that can signal completion events.
    pub completion_vectors: u32,
    /// The optional capabilities.
    pub has: Vec<Capability>,
}

codes! {
    /// The state of a port: `enum ibv_port_state`.
    PortState {
        /// The device does not report the state.
        Nop = 0 "IBV_PORT_NOP",
        /// No link.
        Down = 1 "IBV_PORT_DOWN",
        /// There is a link, but it is not configured yet.
        Init = 2 "IBV_PORT_INIT",
        /// The link is configured, but does not carry traffic yet.
        Armed = 3 "IBV_PORT_ARMED",
        /// The port carries traffic.
        Active = 4 "IBV_PORT_ACTIVE",
        /// The port was active, and waits for the link to come back.
        ActiveDefer = 5 "IBV_PORT_ACTIVE_DEFER",
    }
}

codes! {
    /// The link layer of a port: `IBV_LINK_LAYER_*`.
    LinkLayer {
        /// The device does not report the link layer. By convention this means InfiniBand.
        Unspecified = 0 "IBV_LINK_LAYER_UNSPECIFIED",
        /// InfiniBand.
        InfiniBand = 1 "IBV_LINK_LAYER_INFINIBAND",
        /// Ethernet: RoCE, iWARP, raw packets.
        Ethernet = 2 "IBV_LINK_LAYER_ETHERNET",
    }
}

/// The attributes of a port: `ibv_query_port(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// The port's state.
    pub state: PortState,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The largest payload of a packet in bytes that the port supports.
    pub max_mtu: u32,
    /// The largest payload of a packet in bytes at the current MTU. For RDMA, the value is 256 to 4,096. For a software
    /// device, the value is the largest payload of its Ethernet frames.
    pub active_mtu: u32,
    /// The largest message in bytes.
    pub max_message: u32,
    /// The size of the GID table.
    pub gids: u32,
    /// The size of the partition key table.
    pub pkeys: u16,
    /// The local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The number of low bits of the local identifier that are path bits.
    pub lmc: u8,
    /// Whether an InfiniBand port requires a global route header (GRH) in each packet: `IBV_QPF_GRH_REQUIRED`. For
    /// example, ports of virtual functions require the GRH, because the fabric routes their packets by GID. RoCE ports
    /// always need the GRH, and Linux sets this flag on each RoCE port.
    pub grh_required: bool,
    /// The number of lanes of the link: `active_width`; 0: unknown.
    pub lanes: u8,
    /// The nominal data rate of a lane in bits per second: `active_speed`; 0: unknown.
    pub lane_speed: u64,
}

impl PortAttributes {
    /// Returns the nominal data rate of the link in bits per second; 0: unknown.
    pub fn speed(&self) -> u64 {
        u64::from(self.lanes) * self.lane_speed
    }

    /// Returns whether the port carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == PortState::Active
    }
}

codes! {
    /// The type of a GID: `enum ibv_gid_type`.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    GidKind unknown = #[serde(skip)] {
        /// An InfiniBand GID. Some kernel interfaces use the same code for GIDs of RoCE version 1.
        #[serde(rename = "infiniband")]
        InfiniBand = 0 "IBV_GID_TYPE_IB",
        /// A RoCE version 1 GID: RDMA in Ethernet frames with their own EtherType, without IP.
        RoceV1 = 1 "IBV_GID_TYPE_ROCE_V1",
        /// A RoCE version 2 GID: RDMA over UDP.
        RoceV2 = 2 "IBV_GID_TYPE_ROCE_V2",
    }
}

/// The options of enhanced connection establishment (ECE): `struct ibv_ece`. With ECE, both ends of a connection agree
/// on extensions of their vendor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The identifier of the vendor that defines the options.
    pub vendor: u32,
    /// The options; 0: none.
    pub options: u32,
}

/// An entry of a port's GID table: `struct ibv_gid_entry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index in the table. The index may change when addresses change, so look entries up by GID and type.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// The type of the address.
    pub kind: GidKind,
    /// The index of the network interface that has the address; 0: none.
    pub interface: u32,
}

/// The interface that creates and polls a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CqApi {
    /// The provider selects the best interface that works reliably. Only for [`CqSpec`], never in [`CqGranted`].
    #[default]
    Auto,
    /// `ibv_poll_cq(3)`.
    Classic,
    /// `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll` of `ibv_create_cq_ex(3)`.
    Extended,
    /// The extended interface with one completion per start and end, for libraries whose `ibv_next_poll` is faulty.
    ExtendedSingle,
}

/// The interface that posts sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SendApi {
    /// `ibv_post_send(3)`, which every device supports.
    #[default]
    Classic,
    /// `ibv_wr_start(3)` and the related functions.
    Extended,
}

/// The requested properties of a completion queue: `struct ibv_cq_init_attr_ex`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqSpec {
    /// The minimum number of entries.
    pub depth: u32,
    /// The completion fields to read. The provider leaves out fields that the device lacks, and lists them in
    /// [`CqGranted::refused`].
    pub fields: PollFields,
    /// The flags, which omit a lock or a check. The provider leaves out flags that the device lacks, and lists them in
    /// [`CqGranted::refused`].
    pub flags: CqFlags,
    /// The completion vector of the queue's events, which must be below [`Capabilities::completion_vectors`].
    pub vector: u32,
    /// The polling interface.
    pub api: CqApi,
    /// A value of the program, such as an index in its tables: `cq_context`. [`CompletionQueue::context`] and each
    /// completion event of the queue return this value.
    ///
    /// [`CompletionQueue::context`]: crate::verbs::CompletionQueue::context
    pub context: u64,
}

/// The granted properties of a completion queue. Tools print these properties and store them with every measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CqGranted {
    /// The number of entries.
    pub depth: u32,
    /// The completion fields that can be read.
    #[serde(skip)]
    pub fields: PollFields,
    /// The flags in effect.
    #[serde(skip)]
    pub flags: CqFlags,
    /// The polling interface.
    pub api: CqApi,
    /// The clock of the timestamps.
    pub stamps: ClockSource,
    /// The requested capabilities that were not granted.
    pub refused: Vec<Capability>,
    /// Why the capabilities were not granted, one reason per line.
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
    /// The maximum number of outstanding send requests.
    pub send_depth: u32,
    /// The maximum number of outstanding receive requests.
    pub recv_depth: u32,
    /// The maximum number of scatter/gather elements per send request.
    pub send_sges: u32,
    /// The maximum number of scatter/gather elements per receive request.
    pub recv_sges: u32,
    /// The maximum number of bytes of an inline send. If a raw-packet queue pair requests inline sends, the provider
    /// may also send short packets of `post_send_run` inline.
    pub inline: u32,
}

/// The requested properties of a queue pair: `struct ibv_qp_init_attr_ex`.
#[derive(Clone, Copy, Debug)]
pub struct QpSpec {
    /// The queue pair's type.
    pub kind: QpType,
    /// The minimum sizes.
    pub caps: QpCaps,
    /// Whether every send generates a completion, even a send that is not signalled.
    pub signal_all: bool,
    /// The interface that posts sends.
    pub send_api: SendApi,
    /// The index of this queue on its port, and the number of queues. A hash of the headers selects the queue of a
    /// packet, so packets of one flow stay on one queue. Only for raw packets. All other types use (0, 1).
    pub queue: (u16, u16),
}

impl QpSpec {
    /// Returns the request for a queue pair of these sizes that is the only queue of its port.
    pub fn new(kind: QpType, caps: QpCaps) -> Self {
        Self { kind, caps, signal_all: false, send_api: SendApi::Classic, queue: (0, 1) }
    }
}

/// The requested properties of a shared receive queue: `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqSpec {
    /// The minimum number of receives that fit in the queue.
    pub depth: u32,
    /// The maximum number of scatter/gather elements per receive.
    pub sges: u32,
}

/// The kind of a memory window: `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MwKind {
    /// Bound with `ibv_bind_mw(3)`. Any peer that knows the key may use the window.
    Type1 = 1,
    /// Bound by a send request and tied to the queue pair of the request. Either side can invalidate the window.
    Type2 = 2,
}
