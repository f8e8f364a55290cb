//! The parameters of a run.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use dataplane::connect::EndpointParameters;
use dataplane::verbs::{Access, QpType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the software device.
pub(crate) const SOFT: &str = "soft";

/// A test, with the name of the tool of perftest that runs the same test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Test {
    /// The bandwidth of SEND
    SendBw,
    /// The bandwidth of RDMA WRITE
    WriteBw,
    /// The bandwidth of RDMA READ
    ReadBw,
    /// The rate of atomic operations
    AtomicBw,
    /// The latency of SEND
    SendLat,
    /// The latency of RDMA WRITE
    WriteLat,
    /// The latency of RDMA READ
    ReadLat,
    /// The latency of atomic operations
    AtomicLat,
}

impl Test {
    /// Returns the number of the test in the identity that this program sends to its peer.
    pub(super) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the test with this number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::value_variants().iter().copied().find(|test| test.number() == number)
    }

    /// Whether the test measures latency instead of bandwidth.
    pub fn is_latency(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat)
    }

    /// Whether the test sends messages to posted receives.
    pub(super) fn is_send(self) -> bool {
        matches!(self, Self::SendBw | Self::SendLat)
    }

    /// Whether the test is about RDMA WRITE.
    pub(super) fn is_write(self) -> bool {
        matches!(self, Self::WriteBw | Self::WriteLat)
    }

    /// Whether the test is about atomic operations.
    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicBw | Self::AtomicLat)
    }

    /// Whether the requests of the test return data, as RDMA READ and atomic operations do.
    pub(super) fn fetches(self) -> bool {
        matches!(self, Self::ReadBw | Self::ReadLat) || self.is_atomic()
    }

    /// Whether the test measures the bandwidth of requests that cause no completion at the peer.
    pub(super) fn is_one_sided_bandwidth(self) -> bool {
        matches!(self, Self::WriteBw | Self::ReadBw | Self::AtomicBw)
    }

    /// Returns the access that the peer needs to the memory of this side.
    pub(super) fn access(self) -> Access {
        match self {
            Self::SendBw | Self::SendLat => Access::empty(),
            Self::WriteBw | Self::WriteLat => Access::REMOTE_WRITE,
            Self::ReadBw | Self::ReadLat => Access::REMOTE_READ,
            Self::AtomicBw | Self::AtomicLat => Access::REMOTE_ATOMIC,
        }
    }

    /// Returns the name of the operation for the title of the text report.
    pub(super) fn title(self) -> &'static str {
        if self.is_atomic() { "Atomic" } else { self.operation() }
    }

    /// Returns the name of the operation for people.
    pub(super) fn operation(self) -> &'static str {
        match self {
            Self::SendBw | Self::SendLat => "SEND",
            Self::WriteBw | Self::WriteLat => "RDMA WRITE",
            Self::ReadBw | Self::ReadLat => "RDMA READ",
            Self::AtomicBw | Self::AtomicLat => "atomic operations",
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendBw => "send_bw",
            Self::WriteBw => "write_bw",
            Self::ReadBw => "read_bw",
            Self::AtomicBw => "atomic_bw",
            Self::SendLat => "send_lat",
            Self::WriteLat => "write_lat",
            Self::ReadLat => "read_lat",
            Self::AtomicLat => "atomic_lat",
        })
    }
}

/// The type of the queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagrams
    Ud,
}

impl Transport {
    /// Returns the type of the queue pairs.
    pub fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Returns the number of the transport in the identity that this program sends to its peer.
    pub(super) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the transport with this number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::value_variants().iter().copied().find(|transport| transport.number() == number)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        })
    }
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Atomic {
    /// Add a number to the memory of the peer
    FetchAdd,
    /// Replace the memory of the peer if its value is as expected
    CompareSwap,
}

/// The role of a side in the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The side that waits for a connection.
    Server,
    /// The side that connects.
    Client,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Server { "server" } else { "client" })
    }
}

/// The sizes of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// One size in bytes.
    One(u32),
    /// The powers of two from 2 bytes to 8 MiB. With datagrams, the sizes end at the path MTU.
    All,
}

impl Sizes {
    /// Returns the sizes in bytes. `most` is the largest size that the transport permits.
    pub(super) fn list(self, most: u32) -> Vec<u32> {
        match self {
            Self::One(size) => vec![size],
            Self::All => (1..24).map(|power| 1 << power).filter(|size| *size <= most).collect(),
        }
    }
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The test.
    pub test: Test,
    /// The type of the queue pairs.
    pub transport: Transport,
    /// The atomic operation of the atomic tests.
    pub atomic: Atomic,
    /// The sizes of the messages.
    pub sizes: Sizes,
    /// The number of messages of each size and queue pair. `usize::MAX` with a duration.
    pub iterations: usize,
    /// The time after which a bandwidth test ends, instead of a number of messages.
    pub duration: Option<Duration>,
    /// The number of queue pairs of each side.
    pub queue_pairs: usize,
    /// Whether both sides send requests at once.
    pub bidirectional: bool,
    /// The maximum number of outstanding sends of each queue pair.
    pub tx_depth: u32,
    /// The maximum number of posted receives of each queue pair.
    pub rx_depth: u32,
    /// The number of sends for each completion.
    pub cq_mod: u32,
    /// The maximum number of bytes of an inline message.
    pub inline: u32,
    /// Whether to sleep until a completion arrives, instead of polling.
    pub events: bool,
    /// The maximum number of outstanding reads and atomics. `None`: the maximum of the device.
    pub outstanding: Option<u8>,
    /// The parameters of the connection.
    pub parameters: EndpointParameters,
    /// The maximum time of a step of the exchange, and of the wait for a message that can be lost.
    pub timeout: Duration,
    /// Whether rates are in Gb/s instead of MB/s.
    pub gbits: bool,
    /// Whether a thread that finds no completion yields its core. The software device needs the core for the other side.
    pub yields: bool,
}

impl Plan {
    /// Returns the number of messages of each size on all queue pairs.
    pub(super) fn messages(&self) -> usize {
        self.iterations.saturating_mul(self.queue_pairs)
    }

    /// Whether the transport can lose messages.
    pub(super) fn loses_messages(&self) -> bool {
        self.transport != Transport::Rc
    }
}
