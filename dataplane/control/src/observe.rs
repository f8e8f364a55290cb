//! Captures and traces of live packets.
//!
//! A client starts a capture with [`Call::Capture`](crate::Call::Capture), or a trace with
//! [`Call::Trace`](crate::Call::Trace). Then the client requests the packets with
//! [`Call::Packets`](crate::Call::Packets), again and again. The capture or trace ends when the client closes the
//! connection or starts another capture or trace. Only one client at a time can capture or trace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The parameters of [`Call::Capture`](crate::Call::Capture).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The name of a stage, an output such as `STAGE.OUTPUT`, or the name of a port. With `stage:NAME` and `port:NAME`,
    /// a stage and a port can have the same name. Default: all ports.
    ///
    /// At a stage, the program captures the packets that enter the stage. At an output, the program captures the
    /// packets that leave the stage by this output. At a port, the program captures the packets that the port receives,
    /// and the packets that the stages send on the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Whether to capture only the packets that stages drop: at the stage or output, or all dropped packets that the
    /// port has received. Default: `false`.
    #[serde(default)]
    pub drops: bool,
    /// A filter: the output of `tcpdump -ddd -y EN10MB EXPRESSION`, in which spaces or commas can replace the line
    /// breaks. Default: all packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The maximum number of captured bytes of each packet. Default: all bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// The number of packets after which the capture ends. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
}

/// The parameters of [`Call::Trace`](crate::Call::Trace).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracePackets {
    /// A filter for received packets. See [`Capture::filter`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The number of packets after which the trace ends: 1 to 1000. Default: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub packets: Option<u64>,
    /// A drop, as `STAGE.REASON`. The program then traces only packets that end with this drop. The program examines
    /// only a few packets of each batch, so the trace may miss rare drops. Default: all packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

impl TracePackets {
    /// The default number of packets.
    pub const DEFAULT: u64 = 20;
    /// The maximum number of packets.
    pub const MAX: u64 = 1000;
}

/// The result of [`Call::Capture`](crate::Call::Capture) and [`Call::Trace`](crate::Call::Trace): the program has
/// started to capture or trace packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// The number of workers.
    pub workers: u32,
}

/// The result of [`Call::Packets`](crate::Call::Packets) during a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Captured {
    /// The packets since the last answer, in the order of their times.
    pub packets: Vec<CapturedPacket>,
    /// The number of packets that are missing, because the client was too slow. The count starts at the start of the
    /// capture.
    pub lost: u64,
    /// Whether the capture has ended. There are no further packets.
    pub is_over: bool,
    /// The reason why the capture has ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapturedPacket {
    /// The time at which a port received the packet, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The clock of `time_ns`: `device_ticks`, `device_wallclock`, `software`, `virtual` or `none`.
    pub clock: String,
    /// The number of the worker.
    pub worker: u32,
    /// The position of the packet in the pipeline.
    pub position: Position,
    /// The name of the port, the stage, or the output as `STAGE.OUTPUT`.
    pub name: String,
    /// The reason why the stage dropped the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The length of the packet in bytes.
    pub length: u32,
    /// The captured bytes as hexadecimal digits.
    pub bytes: String,
}

/// The position of a captured packet in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// A port received the packet.
    Received,
    /// The stages send the packet on a port.
    Sent,
    /// The packet entered a stage.
    Entered,
    /// The packet left a stage by an output.
    Left,
    /// A stage dropped the packet.
    Dropped,
    /// A position of a later version.
    #[serde(other)]
    Other,
}

/// The result of [`Call::Packets`](crate::Call::Packets) during a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traced {
    /// The packets since the last answer, in the order of their times.
    pub packets: Vec<TracedPacket>,
    /// Whether the trace has ended. There are no further packets.
    pub is_over: bool,
    /// The reason why the trace has ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A received packet, and its path through the stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracedPacket {
    /// The time at which the port received the packet, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The number of the worker.
    pub worker: u32,
    /// The port that received the packet.
    pub port: String,
    /// The bytes of the received packet as hexadecimal digits.
    pub bytes: String,
    /// The path of the packet, followed by the paths of its copies.
    pub paths: Vec<TracePath>,
}

/// The path of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracePath {
    /// The stages, in order. The path of a copy begins with the stage that made the copy.
    pub stages: Vec<TraceHop>,
    /// How the path ends.
    pub fate: TraceFate,
    /// The port on which the packet is sent, or the drop as `STAGE.REASON`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The bytes of the packet at the end of the path as hexadecimal digits.
    pub bytes: String,
}

/// A stage on the path of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceHop {
    /// The name of the stage.
    pub stage: String,
    /// The stage's description of the table entry that matched the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit: Option<String>,
    /// The output by which the packet left the stage. Missing if the stage chose no output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// How the path of a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceFate {
    /// The stages send the packet on a port.
    Sent,
    /// A stage dropped the packet.
    Dropped,
    /// A stage consumed the packet.
    Consumed,
    /// A stage holds the packet. The trace does not show what happens to the packet afterwards.
    Held,
    /// A fate of a later version.
    #[serde(other)]
    Other,
}

/// The parameters of [`Call::BlackBox`](crate::Call::BlackBox).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlackBox {
    /// The offset of the part in the file, in bytes. For the offset 0, the program makes a new file for this
    /// connection. Default: 0.
    #[serde(default)]
    pub offset: u64,
}

/// The result of [`Call::BlackBox`](crate::Call::BlackBox). After the last part, the program forgets the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlackBoxPart {
    /// The size of the whole file in bytes.
    pub size: u64,
    /// The bytes of the part, as hexadecimal digits.
    pub bytes: String,
}
