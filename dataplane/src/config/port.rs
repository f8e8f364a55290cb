//! `[[port]]`: devices, queues and the links of software devices.

use std::net::IpAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::connection::Connection;
use super::raw::{Flow, Offload, RateLimit};
use super::types::{Address, Mac, Period, Repeat, RssKey, probability, within, within_signed, within_some};
use super::xdp::Xdp;

/// The `device` of a port that is the software device.
pub const SOFT: &str = "soft";

/// The kinds of links, as a help names them.
pub(super) const LINKS: &str = "\"loopback\", \"generator\", \"pcap\", \"packet\", \"tap\" or \"xdp\"";

/// The type of the queue pairs of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Qp {
    /// Whole Ethernet frames.
    #[default]
    RawPacket,
    /// Unreliable datagrams that carry a frame each, behind 40 bytes of global route header.
    Ud,
    /// A reliable connection whose messages carry a frame each.
    Rc,
    /// An unreliable connection whose messages carry a frame each.
    Uc,
}

impl Qp {
    /// The name that configs and tools use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawPacket => "raw_packet",
            Self::Ud => "ud",
            Self::Rc => "rc",
            Self::Uc => "uc",
        }
    }
}

/// A field that RSS hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RssField {
    /// The addresses of an IPv4 packet.
    Ipv4,
    /// The addresses of an IPv6 packet.
    Ipv6,
    /// The ports of a TCP segment.
    Tcp,
    /// The ports of a UDP datagram.
    Udp,
}

/// How packets are spread over workers. All packets of a flow go to one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rss {
    /// The key of the Toeplitz hash: `"default"`, `"symmetric"` (both directions of a flow go to one worker) or 80
    /// hexadecimal digits.
    #[schemars(with = "String")]
    pub key: RssKey,
    /// What is hashed. Packets that have none of it go to the first worker.
    pub fields: Vec<RssField>,
}

impl Default for Rss {
    fn default() -> Self {
        let fields = vec![RssField::Ipv4, RssField::Ipv6, RssField::Tcp, RssField::Udp];
        Self { key: RssKey::default(), fields }
    }
}

/// Faults of a software device. Those of one seed are the same in every run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// The seed of all random choices.
    pub seed: u64,
    /// The probability that a packet is lost on the wire.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub loss: f64,
    /// The probability that a packet comes twice.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub duplicate: f64,
    /// The probability that a packet changes places with the next.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub reorder: f64,
    /// The probability that one bit of a packet is turned.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub corrupt: f64,
    /// The probability that a packet is late.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub delay: f64,
    /// How late a late packet is.
    #[schemars(with = "String")]
    pub delay_by: Period,
    /// The probability that a receive fails. All that waits in its queue fails with it, and the queue starts anew.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub rx_error: f64,
    /// The probability that a send fails, with the same consequence.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub tx_error: f64,
    /// The probability that the link goes down as a packet comes. That packet and the next eight are lost.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub flap: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            seed: 0,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: 0.0,
            delay_by: Period(std::time::Duration::from_millis(1)),
            rx_error: 0.0,
            tx_error: 0.0,
            flap: 0.0,
        }
    }
}

/// The clock of a software device: a counter with a crystal of its own, and what is wrong with it. The counter stamps
/// completions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Clock {
    /// Thousand ticks a second, as is written on the crystal.
    #[serde(deserialize_with = "within::<_, u64, 1, 10000000>")]
    #[schemars(range(min = 1, max = 10000000))]
    pub khz: u64,
    /// Whether the device says so. If not it says 0, and its counter is of no use.
    pub says_khz: bool,
    /// The bits of the counter: it wraps after them.
    #[serde(deserialize_with = "within::<_, u32, 1, 64>")]
    #[schemars(range(min = 1, max = 64))]
    pub bits: u32,
    /// How much faster the counter really is, in parts in a billion.
    #[serde(deserialize_with = "within_signed::<_, -1000000, 1000000>")]
    #[schemars(range(min = -1000000, max = 1000000))]
    pub drift_ppb: i64,
    /// What the counter shows when the run begins.
    pub start: u64,
    /// How far the device's wall clock is ahead of the host's, in nanoseconds.
    pub wall_ahead: i64,
    /// What happens to the counter.
    pub events: Vec<ClockEvent>,
}

impl Default for Clock {
    fn default() -> Self {
        Self { khz: 1_000_000, says_khz: true, bits: 64, drift_ppb: 0, start: 0, wall_ahead: 0, events: Vec::new() }
    }
}

/// Something that happens to the counter of a software device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockEvent {
    /// When: so long after the device was opened.
    #[schemars(with = "String")]
    pub at: Period,
    /// What: it jumps by `value` ticks, is set to `value`, freezes, resumes, drifts by `value` parts in a billion, cannot
    /// be read any more, for the errno `value`, or can be read again.
    pub kind: ClockEventKind,
    /// See `kind`.
    #[serde(default)]
    pub value: i64,
}

/// What happens to the counter of a software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClockEventKind {
    /// It shows so many ticks more.
    Jump,
    /// It starts anew from there.
    Set,
    /// It stands still.
    Freeze,
    /// It goes on from where it stands.
    Resume,
    /// It is so much faster from now on.
    Drift,
    /// It cannot be read any more.
    Mute,
    /// It can be read again.
    Speak,
}

/// A capability that a software device can be made to lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Queue pairs of whole Ethernet frames, which a port has unless its `qp` says otherwise.
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
    /// Completion queues that are polled by cursor, which completion timestamps need.
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
    /// Posting by the extended interface.
    ExtendedSend,
}

/// What the wire of a software device is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Link {
    /// Joins two ports, or reflects what a port sends to itself.
    Loopback(Loopback),
    /// Makes frames and counts what is sent.
    Generator(Generator),
    /// Plays a capture file and writes one.
    Pcap(Pcap),
    /// An interface of the kernel, by AF_PACKET.
    Packet(Packet),
    /// A TAP interface, with the host at the other end.
    Tap(Tap),
    /// An interface of the kernel, by AF_XDP.
    Xdp(Xdp),
}

impl Link {
    /// The `kind` of the link.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Loopback(_) => "loopback",
            Self::Generator(_) => "generator",
            Self::Pcap(_) => "pcap",
            Self::Packet(_) => "packet",
            Self::Tap(_) => "tap",
            Self::Xdp(_) => "xdp",
        }
    }

    /// The interface of the kernel that it is.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Packet(link) => Some(&link.interface),
            Self::Tap(link) => Some(&link.name),
            Self::Xdp(link) => Some(&link.interface),
            Self::Loopback(_) | Self::Generator(_) | Self::Pcap(_) => None,
        }
    }
}

/// A tree is read with `kind` outside of the rest, so that serde keeps the places of what is inside it.
impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Outside {
            Loopback(Loopback),
            Generator(Generator),
            Pcap(Pcap),
            Packet(Packet),
            Tap(Tap),
            Xdp(Xdp),
        }
        Ok(match Outside::deserialize(deserializer)? {
            Outside::Loopback(link) => Self::Loopback(link),
            Outside::Generator(link) => Self::Generator(link),
            Outside::Pcap(link) => Self::Pcap(link),
            Outside::Packet(link) => Self::Packet(link),
            Outside::Tap(link) => Self::Tap(link),
            Outside::Xdp(link) => Self::Xdp(link),
        })
    }
}

/// Joins two ports, or reflects what a port sends to itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Loopback {
    /// The port at the other end, which names this one in turn. Absent: what is sent comes back to this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// The packets of a generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// UDP on IPv4.
    #[default]
    Udp4,
    /// TCP on IPv4.
    Tcp4,
    /// UDP on IPv6.
    Udp6,
}

/// One size of a mix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// The size of the frame in bytes, without the checksum at its end.
    #[serde(deserialize_with = "within::<_, u16, 42, 65022>")]
    #[schemars(range(min = 42, max = 65022))]
    pub size: u16,
    /// How often it comes, in relation to the others.
    #[serde(default = "one", deserialize_with = "within::<_, u16, 1, 1000>")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

/// Makes frames and counts what is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Generator {
    /// The size of a frame in bytes, without the checksum at its end. It fits the `mtu` of the port. Absent: 64, where
    /// there are no `sizes`.
    #[serde(deserialize_with = "within_some::<_, u16, 42, 65022>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 42, max = 65022))]
    pub size: Option<u16>,
    /// Several sizes in turn, instead of `size`.
    pub sizes: Vec<Size>,
    /// How many flows the frames belong to, in turn. The source port and, past 65,536 flows, the source address count
    /// them. Different frames have at most 64 MiB together: each flow has a frame of each size as often as its weight.
    #[serde(deserialize_with = "within::<_, u32, 1, 1048576>")]
    #[schemars(range(min = 1, max = 1048576))]
    pub flows: u32,
    /// Frames in a second. Absent: as many as are taken.
    #[serde(deserialize_with = "within_some::<_, u64, 1, 1000000000000>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000000000000u64))]
    pub rate: Option<u64>,
    /// Frames in all. Absent: until the run ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// What the frames carry.
    pub protocol: Protocol,
    /// Whether every frame is written whole into its buffer. Without, a buffer is written on its first use alone, as a
    /// null device does, and a frame that comes back in it is what the pipeline made of it.
    pub copy: bool,
    /// Whether every frame that is sent is copied out of its buffer, as a device reads it. Without, it is only counted.
    pub copy_out: bool,
    /// The source MAC address.
    #[schemars(with = "String")]
    pub src_mac: Mac,
    /// The destination MAC address.
    #[schemars(with = "String")]
    pub dst_mac: Mac,
    /// The first source address. Absent: 198.18.0.1 or 2001:2::1 (RFC 2544, RFC 5180).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_ip: Option<IpAddr>,
    /// The destination address. Absent: 198.19.0.1 or 2001:2:0:8000::1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_ip: Option<IpAddr>,
    /// The first source port.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
    /// The id of a VLAN that the frames are tagged with.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 4094>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: Option<u16>,
    /// The seed of the payload, which is random.
    pub seed: u64,
}

impl Generator {
    /// The sizes in turn, each with its weight.
    pub fn mix(&self) -> Vec<Size> {
        if self.sizes.is_empty() {
            vec![Size { size: self.size.unwrap_or(DEFAULT_SIZE), weight: 1 }]
        } else {
            self.sizes.clone()
        }
    }
}

/// The size of a frame where nothing else is said.
const DEFAULT_SIZE: u16 = 64;

impl Default for Generator {
    fn default() -> Self {
        Self {
            size: None,
            sizes: Vec::new(),
            flows: 1,
            rate: None,
            count: None,
            protocol: Protocol::default(),
            copy: true,
            copy_out: false,
            src_mac: Mac([0x02, 0, 0, 0, 0, 0x01]),
            dst_mac: Mac([0x02, 0, 0, 0, 0, 0x02]),
            src_ip: None,
            dst_ip: None,
            src_port: 1024,
            dst_port: 9,
            vlan: None,
            seed: 0,
        }
    }
}

/// When the packets of a capture come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As fast as they are taken.
    #[default]
    Fast,
    /// At the times that the file gives.
    File,
}

/// Plays a capture file and writes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pcap {
    /// The capture that is received, in pcap or pcapng: a regular file, of 64 GiB at most, which is held in memory. A relative
    /// path starts from the folder of the config.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<PathBuf>,
    /// The capture that what is sent is written to: a regular file, or a device that takes all, such as `/dev/null`. It is made,
    /// with its folders; what was in it goes. While the run goes on, no other part of it, and no other run, may write or
    /// read it, by whatever name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// How often `input` is played: `false` once, `true` until the run ends, or a number.
    #[serde(rename = "loop")]
    #[schemars(schema_with = "repeat_schema")]
    pub repeat: Repeat,
    /// When the packets come.
    pub pace: Pace,
    /// The most bytes of a packet that `output` keeps. Of a longer one it keeps the length too.
    #[serde(deserialize_with = "within::<_, u32, 1, 262144>")]
    #[schemars(range(min = 1, max = 262144))]
    pub snaplen: u32,
}

/// More than any packet has.
const SNAPLEN: u32 = 262_144;

impl Default for Pcap {
    fn default() -> Self {
        Self { input: None, output: None, repeat: Repeat::default(), pace: Pace::default(), snaplen: SNAPLEN }
    }
}

fn repeat_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "oneOf": [{ "type": "boolean" }, { "type": "integer", "minimum": 1 }] })
}

/// An interface of the kernel, by AF_PACKET. The interface stays the kernel's: its own stack sees what comes in as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// The name of the interface.
    pub interface: String,
    /// Frames that wait for the worker, for each queue: a power of two.
    #[serde(default = "packet_ring", deserialize_with = "within::<_, u32, 64, 65536>")]
    #[schemars(range(min = 64, max = 65536))]
    pub ring: u32,
    /// Whether frames to any address are received, and not only those to the interface's own.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Whether what is sent goes to the driver directly: not through the queueing discipline of the interface, and past
    /// `tcpdump`.
    #[serde(default = "yes")]
    pub qdisc_bypass: bool,
    /// Whether frames that the host itself sends by the interface are received as well: for a program that only looks on.
    #[serde(default)]
    pub outgoing: bool,
    /// Who says when a frame came in, with `timestamps = "wallclock"`: `kernel`, or `hardware`, the NIC.
    #[serde(default)]
    pub stamps: FrameStamps,
}

/// Who says when a frame came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameStamps {
    /// The kernel, when it got the frame from the driver.
    #[default]
    Kernel,
    /// The NIC, where it can; otherwise the kernel, with a warning.
    Hardware,
}

/// A TAP interface, with the host at the other end. One that is there is attached to; otherwise it is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// The name of the interface.
    pub name: String,
    /// The MAC address of the host's end, which is another than the port's. Absent: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub mac: Option<Mac>,
    /// The MTU of the host's end. Absent: as it is, and of one that is made that of the port.
    #[serde(default, deserialize_with = "within_some::<_, u32, 68, 65000>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 68, max = 65000))]
    pub mtu: Option<u32>,
    /// Whether it is set up.
    #[serde(default = "yes")]
    pub up: bool,
    /// Whether it stays when the program is gone.
    #[serde(default)]
    pub persistent: bool,
}

fn packet_ring() -> u32 {
    2048
}

fn yes() -> bool {
    true
}

/// A port: one device, and how it is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// What the config calls it.
    pub name: String,
    /// `"soft"`: the software device, whose wire is its `link`. Any other name is that of a verbs device.
    pub device: String,
    /// The port of the verbs device.
    #[serde(default = "first_port", deserialize_with = "within::<_, u8, 1, 255>")]
    #[schemars(range(min = 1, max = 255))]
    pub device_port: u8,
    /// The NUMA node that its workers and their memory should be on. Absent: that of the device, where the kernel tells.
    #[serde(default, deserialize_with = "within_some::<_, u32, 0, 1023>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1023))]
    pub numa_node: Option<u32>,
    /// The type of its queue pairs.
    #[serde(default)]
    pub qp: Qp,
    /// Buffers that wait for packets, for each worker.
    #[serde(default = "depth", deserialize_with = "within::<_, u32, 1, 32768>")]
    #[schemars(range(min = 1, max = 32768))]
    pub rx_depth: u32,
    /// Packets that are being sent, for each worker.
    #[serde(default = "depth", deserialize_with = "within::<_, u32, 1, 32768>")]
    #[schemars(range(min = 1, max = 32768))]
    pub tx_depth: u32,
    /// The largest packet in bytes, without its Ethernet header and VLAN tags.
    #[serde(default = "mtu", deserialize_with = "within::<_, u32, 68, 65000>")]
    #[schemars(range(min = 68, max = 65000))]
    pub mtu: u32,
    /// Its MAC address. Absent: that of the interface of a `packet` or `xdp` link, else one of its own, 02:00:00:00:00:01
    /// for the first port and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub mac: Option<Mac>,
    /// The interface of the kernel that stands for this port to a routing daemon: its addresses, neighbours and routes are
    /// those of the port (`source = "kernel"`). Absent: that of its link, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The addresses of this host on it, such as `"192.0.2.1/24"`: stages answer for them (`arp`, `icmp`), speak with them
    /// (`icmp_error`) and ask for neighbours with them (`neighbor`), where they are told of no others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<Address>,
    /// How its queue pairs find their peers, and with what attributes they are connected: of `"ud"`, `"rc"` and `"uc"`,
    /// which need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// How packets are spread over workers.
    #[serde(default)]
    pub rss: Rss,
    /// Which frames come to a port of raw packets of a verbs device, and what becomes of them: rules of the device. Absent:
    /// every frame is received, where the port is an input of the pipeline. Not run on hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<Vec<Flow>>,
    /// What a verbs device does to raw packets. `"checksum"`: it computes the checksums of IPv4 and of TCP or UDP of what
    /// is sent. `"vlan_strip"`: it takes the outer VLAN tag off what is received, and which it was is not kept. `"fcs"`: it
    /// leaves the frame check sequence, 4 bytes, at the end of what is received, for captures. `"delay_drop"`: it lets a
    /// frame wait for a buffer, of ports that several workers share. Not run on hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<Offload>,
    /// What a verbs device slows the sends of each worker down to; of raw packets. Absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// What the wire of a software device is made of, which every software device needs; its other keys depend on its `kind`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Faults of a software device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<Faults>,
    /// The clock of a software device. Absent: the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// Capabilities that a software device is made to lack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refuse: Vec<Capability>,
}

impl Port {
    /// What `mtu` may be.
    pub(crate) const MTU: std::ops::RangeInclusive<u32> = 68..=65_000;

    /// The interface of the kernel that the port is, if it is one.
    pub fn kernel_interface(&self) -> Option<&str> {
        // The interface of a TAP is the host's end of the wire, not the port.
        let link = self.link.as_ref().filter(|link| !matches!(link, Link::Tap(_)));
        self.interface.as_deref().or_else(|| link?.interface())
    }
}

fn first_port() -> u8 {
    1
}

fn depth() -> u32 {
    1024
}

fn mtu() -> u32 {
    1500
}
