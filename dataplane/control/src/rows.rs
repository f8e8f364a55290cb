//! The rows of the lists that every program has.
//!
//! The end of a field's name is its unit: `_s` seconds, `_ns` nanoseconds, `_bytes` bytes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A row of the list `ports`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortRow {
    /// The name of the port in the config.
    pub name: String,
    /// The device.
    pub device: String,
    /// Whether packets from this port enter the pipeline.
    pub input: bool,
    /// Whether the link is up. `null` if the device does not report the state of the link.
    #[serde(default)]
    pub link_up: Option<bool>,
    /// Packets received per second, in the last 0.5 s or more. `null` on later pages of the list.
    #[serde(default)]
    pub rx_pps: Option<f64>,
    /// Packets sent per second.
    #[serde(default)]
    pub tx_pps: Option<f64>,
    /// Bits received per second, without preamble and frame check sequence.
    #[serde(default)]
    pub rx_bps: Option<f64>,
    /// Bits sent per second, without preamble and frame check sequence.
    #[serde(default)]
    pub tx_bps: Option<f64>,
    /// Received packets.
    pub rx: u64,
    /// Sent packets.
    pub tx: u64,
    /// Received bytes, without preamble and frame check sequence.
    pub rx_bytes: u64,
    /// Sent bytes, without preamble and frame check sequence.
    pub tx_bytes: u64,
    /// Packets that were lost before the program received them.
    pub rx_lost: u64,
    /// Receive requests that completed with an error.
    pub rx_errors: u64,
    /// Packets that were dropped instead of sent: the send queue was full, sending failed, the packet was too long, or
    /// no peer was connected.
    pub tx_dropped: u64,
}

/// A row of the list `links`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkRow {
    /// The name of the port in the config.
    pub port: String,
    /// The device, as in the config.
    pub device: String,
    /// The number of the port of the RDMA device, counted from 1. `null` if the device is not an RDMA device.
    pub device_port: Option<u8>,
    /// The kernel interface behind the port.
    pub interface: Option<String>,
    /// The MAC address.
    pub mac: String,
    /// The largest payload of a frame, in bytes.
    pub mtu: u16,
    /// The addresses of this host on the link.
    pub addresses: Vec<String>,
}

/// A row of the list `stages`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRow {
    /// The name of the stage in the config.
    pub name: String,
    /// The kind of the stage.
    #[serde(rename = "use")]
    pub kind: String,
    /// Packets that entered the stage.
    pub packets: u64,
    /// The average number of packets in a batch.
    pub burst: f64,
    /// The average time per packet in nanoseconds. `null` if no loop was measured.
    pub cost_ns: Option<f64>,
    /// Packets that left by an output.
    pub steered: u64,
    /// Packets that the stage dropped.
    pub dropped: u64,
    /// Packets that the stage consumed.
    pub consumed: u64,
    /// The number of workers on which the stage is quarantined after a panic.
    #[serde(default)]
    pub quarantined: u64,
    /// The counters that the stage defines.
    pub counters: BTreeMap<String, u64>,
}

/// A row of the list `workers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerRow {
    /// The number of the worker.
    pub worker: usize,
    /// The core that the worker is pinned to.
    pub core: u32,
    /// Loops executed.
    pub loops: u64,
    /// The share of the loops in which no packet was received, in percent.
    pub idle_percent: f64,
    /// Received packets.
    pub rx: u64,
    /// Sent packets.
    pub tx: u64,
    /// Dropped packets.
    pub dropped: u64,
    /// Packets that the worker has not yet sent, dropped or consumed.
    pub held: u64,
    /// The difference between the two sides of the ledger, which must be 0.
    pub unaccounted: i64,
    /// The error that stopped the worker.
    pub error: Option<String>,
}

/// A row of the list `memory`: the packet buffers of a worker, or the memory of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// The owner, such as `worker 0` or `stage routes`.
    pub owner: String,
    /// The number of packet buffers. `null` for a stage.
    pub buffers: Option<u64>,
    /// The size of the memory.
    pub size_bytes: u64,
    /// The page size and kind of the memory. `null` for a stage.
    pub pages: Option<String>,
}

/// The row of the list `config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigRow {
    /// The path of the config, or the name in [`Apply::path`](crate::Apply::path).
    pub path: String,
    /// The absolute path of the config file of the run, or `null` if the config came from standard input.
    #[serde(default)]
    pub file: Option<String>,
    /// Whether the config waits for its confirmation, and reverts without a confirmation.
    #[serde(default)]
    pub unconfirmed: bool,
    /// The values that override the config, as `KEY=VALUE`.
    pub settings: Vec<String>,
    /// The text of the config.
    pub text: String,
}
