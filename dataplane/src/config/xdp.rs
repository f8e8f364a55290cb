//! Links of kind `xdp`, and what they ask of the memory of a worker.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::plan::PortPlan;
use super::port::{FrameStamps, Link};
use super::types::{within, within_some};

/// Who runs the XDP program of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// The driver; where it cannot, the kernel, with a warning.
    #[default]
    Auto,
    /// The driver.
    Native,
    /// The kernel, after the driver has made a socket buffer of the frame: on any interface, and slower.
    Generic,
}

/// Who puts the frames of an interface into packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum XdpCopy {
    /// The hardware; where it cannot, the kernel, with a warning.
    #[default]
    Auto,
    /// The hardware. Not run on hardware.
    Zero,
    /// The kernel.
    Copy,
}

/// Frames of an interface: those that have all of what is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct XdpSelect {
    /// The EtherType after up to two VLAN tags, such as 0x0806.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ether_type: Option<u16>,
    /// The id of the outer VLAN tag, where the interface leaves tags in the frame.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 4094>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: Option<u16>,
    /// The protocol of an IP packet, after the extension headers of IPv6: `"tcp"`, `"udp"`, `"icmp"`, `"icmpv6"` or its
    /// number.
    #[serde(deserialize_with = "read_protocol", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "protocol_schema")]
    pub protocol: Option<u8>,
    /// The port at either end, of TCP, UDP, DCCP, SCTP and UDP-Lite. Of a packet in fragments the first alone has ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What the address at either end is in, such as `"10.0.0.0/8"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prefix: Option<IpNet>,
}

/// The protocols that have names here (IANA, protocol numbers).
const PROTOCOLS: [(&str, u8); 4] = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58)];

fn protocol_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let names = PROTOCOLS.map(|(name, _)| name);
    schemars::json_schema!({ "oneOf": [{ "enum": names }, { "type": "integer", "minimum": 0, "maximum": 255 }] })
}

fn read_protocol<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    struct Protocol;
    impl serde::de::Visitor<'_> for Protocol {
        type Value = u8;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("\"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number from 0 to 255")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<u8, E> {
            let known = PROTOCOLS.into_iter().find(|(name, _)| *name == text);
            known.map(|(_, number)| number).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
        }
        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u8, E> {
            u8::try_from(number).map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
        }
    }
    deserializer.deserialize_any(Protocol).map(Some)
}

/// How the driver is polled from the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct XdpBusyPoll {
    /// How long the kernel polls at a time, in microseconds.
    #[serde(deserialize_with = "within::<_, u32, 1, 100000>")]
    #[schemars(range(min = 1, max = 100000))]
    pub micros: u32,
    /// Frames that the driver handles at a time.
    #[serde(deserialize_with = "within::<_, u32, 1, 512>")]
    #[schemars(range(min = 1, max = 512))]
    pub budget: u32,
}

impl Default for XdpBusyPoll {
    fn default() -> Self {
        Self { micros: 20, budget: 64 }
    }
}

/// An interface of the kernel, by AF_XDP: its frames are in the worker's own memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Xdp {
    /// The name of the interface. Each worker has one of its receive queues, from the first on.
    pub interface: String,
    /// Who runs the XDP program.
    #[serde(default)]
    pub mode: XdpMode,
    /// Who puts frames into packet memory.
    #[serde(default)]
    pub copy: XdpCopy,
    /// Frames that are taken; all others go on to the kernel. Absent: every frame.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<XdpSelect>,
    /// Frames that go on to the kernel whatever `filter` says, such as `[{ protocol = "tcp", port = 22 }]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<XdpSelect>,
    /// Whether frames to any address are received, and not only those to the interface's own.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Who says when a frame came in, with `timestamps = "wallclock"`: `kernel`, or `hardware`, the NIC.
    #[serde(default)]
    pub stamps: FrameStamps,
    /// Lets the driver be polled from the worker, and keeps its interrupts off. Absent: interrupts as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<XdpBusyPoll>,
}

fn yes() -> bool {
    true
}

/// How the buffers of a worker are cut, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffers {
    /// Of one, headroom included.
    pub(super) size: u32,
    pub(super) headroom: u32,
}

/// What AF_XDP keeps before every frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// What a buffer of AF_XDP may have before a frame at the most: the rest of its first page holds the frame's beginning.
pub(super) const MOST_HEADROOM: u32 = 2048;
/// The sizes that AF_XDP takes memory in: half a page, or whole ones.
const SMALL: u32 = 2048;
const PAGE: u32 = 4096;
/// What a slot has behind a packet.
const GUARD: u32 = 64;
/// The most that a slot of whole pages has room for: offsets have 16 bits.
pub(super) const MOST_SIZE: u32 = (1 << 16) - PAGE - GUARD;

/// What the buffers of a worker become that serves an xdp port: half a page where that is asked for and a frame of
/// `longest` bytes fits, else whole pages.
pub(super) fn buffers(asked: Buffers, longest: u32, ports: &[Option<PortPlan>]) -> Buffers {
    let has = |port: &PortPlan| matches!(port.config.link, Some(Link::Xdp(_)));
    if !ports.iter().flatten().any(has) {
        return asked;
    }
    let headroom = asked.headroom.max(HEADROOM);
    let small = asked.size <= SMALL && headroom.saturating_add(longest) <= SMALL - GUARD;
    let whole = asked.size.max(headroom.saturating_add(longest)).saturating_add(GUARD).next_multiple_of(PAGE);
    let size = if small { SMALL - GUARD } else { (whole - GUARD).min(MOST_SIZE) };
    Buffers { size, headroom }
}
