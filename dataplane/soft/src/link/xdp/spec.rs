//! The settings of an xdp link. The config of the link contains some of these types.

use std::time::Duration;

use ipnet::IpNet;
use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use dataplane_core::units::{Period, within, within_some};

/// Parameters of an `xdp` link.
#[derive(Clone, Debug)]
pub struct XdpSpec {
    /// The name of the interface.
    pub interface: String,
    /// Where the XDP program runs.
    pub mode: Mode,
    /// How frames get into packet memory.
    pub copying: Copying,
    /// The frames that the sockets take. All other frames go to the kernel.
    pub filter: Filter,
    /// Whether to receive frames to any MAC address, not only to the interface's own address.
    pub promiscuous: bool,
    /// Whether received frames have timestamps of the NIC instead of the kernel. Only used if completions have
    /// wall-clock timestamps.
    pub hardware_stamps: bool,
    /// Parameters of busy polling. `None` disables busy polling.
    pub busy_poll: Option<BusyPoll>,
    /// The number of queue pairs. Queue pair n uses queue n of the interface.
    pub queues: u16,
    /// Whether the queue pairs receive nothing until they take over the queues of another program.
    pub takes_over: bool,
}

impl XdpSpec {
    /// Creates a spec that takes all frames of queue 0 of the interface.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            mode: Mode::Auto,
            copying: Copying::Auto,
            filter: Filter::default(),
            promiscuous: true,
            hardware_stamps: false,
            busy_poll: None,
            queues: 1,
            takes_over: false,
        }
    }
}

/// Selects the frames that the sockets take. All other frames go to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// A socket takes a frame that matches one of these selectors. If the list is empty, every frame matches.
    pub take: Vec<Selector>,
    /// A frame that matches one of these selectors goes to the kernel, even if it matches `take`.
    pub except: Vec<Selector>,
}

impl Filter {
    /// Returns the capabilities to load and attach the XDP program of this filter. A program with selectors moves its
    /// packet pointer by lengths that it reads from the packet. The kernel's verifier accepts such a program only from
    /// a process with CAP_PERFMON (capabilities(7)).
    pub(super) fn capabilities(&self) -> CapabilitySet {
        let parses = !self.take.is_empty() || !self.except.is_empty();
        let perfmon = if parses { CapabilitySet::PERFMON } else { CapabilitySet::empty() };
        CapabilitySet::NET_ADMIN | CapabilitySet::BPF | perfmon
    }
}

/// Where the XDP program of an interface runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the driver. If the driver does not support XDP, the program runs in the kernel, and a warning is logged.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the kernel, after the driver has created a socket buffer for the frame. Generic mode works on any interface,
    /// but is slower.
    Generic,
}

/// How frames get into packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Copying {
    /// The hardware writes frames into packet memory (zero-copy). If the driver does not support zero-copy, the kernel
    /// copies frames, and a warning is logged.
    #[default]
    Auto,
    /// The hardware writes frames into packet memory (zero-copy). This mode is not tested on hardware.
    Zero,
    /// The kernel copies frames.
    Copy,
}

/// A filter for frames. A frame must match all given keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Selector {
    /// The EtherType after up to two VLAN tags, such as 0x0806.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ether_type: Option<u16>,
    /// The VLAN ID of the outer tag. Only works if the interface leaves VLAN tags in the frames.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 4094>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: Option<u16>,
    /// The IP protocol (for IPv6, the protocol after the extension headers): `"tcp"`, `"udp"`, `"icmp"`, `"icmpv6"` or
    /// a number.
    #[serde(deserialize_with = "read_protocol", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "protocol_schema")]
    pub protocol: Option<u8>,
    /// The source or destination port of TCP, UDP, DCCP, SCTP or UDP-Lite. Only the first fragment of a packet has
    /// ports, so later fragments do not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The prefix of the source or destination address, such as `"10.0.0.0/8"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prefix: Option<IpNet>,
}

/// The protocols with names (IANA protocol numbers).
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

/// How the kernel polls the driver on the core of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BusyPoll {
    /// The maximum time of one busy poll: `"1us"` to `"100ms"`.
    #[schemars(extend("examples" = ["20us"], "x-previous-name" = "micros"))]
    pub duration: Period,
    /// The maximum number of frames that the driver handles in one busy poll.
    #[serde(deserialize_with = "within::<_, u32, 1, 512>")]
    #[schemars(range(min = 1, max = 512))]
    pub budget: u32,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self { duration: Period(Duration::from_micros(20)), budget: 64 }
    }
}
