//! The command line, and the validated plan that is made from its options.

use std::fmt;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use dataplane::connect::EndpointParameters;
use dataplane::units::Gid;
use dataplane::verbs::QpType;
use serde::Serialize;

use crate::check;

/// The name of the built-in software device.
pub(crate) const SOFT: &str = "soft";
/// The number of addresses that each side sends if its queue pairs share a receive queue. Unused entries are zero.
pub(crate) const SHARED_ADDRESSES: usize = 256;

/// The transport type of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Type {
    /// Reliable connection: ibv_rc_pingpong.
    Rc,
    /// Unreliable connection: ibv_uc_pingpong.
    Uc,
    /// Unreliable datagrams: ibv_ud_pingpong.
    Ud,
    /// Reliable connections that share a receive queue: ibv_srq_pingpong.
    Srq,
}

impl Type {
    /// Returns the type of the queue pairs.
    pub(crate) fn kind(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Returns the number of address entries that each side sends.
    pub(crate) fn addresses(self) -> usize {
        if self == Self::Srq { SHARED_ADDRESSES } else { 1 }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
        })
    }
}

/// Sends messages back and forth between two queue pairs and measures the round-trip time. Compatible with
/// ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong of rdma-core.
#[derive(Clone, Debug, Parser)]
#[command(name = "pingpong", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Host where the server runs; without it, this program is the server
    pub(crate) host: Option<String>,
    /// Device, such as rxe0 or mlx5_0; "soft": both sides in this process, on two software devices
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    pub(crate) device: String,
    /// Transport type, the same on both sides
    #[arg(short = 't', long = "type", value_enum, default_value = "rc")]
    pub(crate) kind: Type,
    /// TCP port of the server
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,
    /// Port of the device
    #[arg(short = 'i', long, visible_alias = "ib-port", default_value_t = 1, value_name = "PORT")]
    pub(crate) device_port: u8,
    /// Index of the local GID in the port's GID table; default: the first RoCE v2 GID with an IPv4
    /// address, otherwise with an IPv6 address, otherwise a link-local RoCE v2 GID; on InfiniBand: no GID, unless the
    /// port requires a global route header
    #[arg(short, long, visible_alias = "gid-idx", conflicts_with = "gid", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
    /// Local GID, as an IPv6 or IPv4 address
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gid: Option<Gid>,
    /// Message size in bytes, the same on both sides [default: 4096, for ud 1024]
    #[arg(short, long, value_name = "BYTES")]
    pub(crate) size: Option<u32>,
    /// Messages that each side sends, the same on both sides
    #[arg(short = 'n', long, visible_alias = "iters", default_value_t = 1000, value_name = "N")]
    pub(crate) iterations: u64,
    /// Number of posted receive requests
    #[arg(short, long, default_value_t = 500, value_name = "N")]
    pub(crate) rx_depth: u32,
    /// Path MTU in bytes, the same on both sides; for rc, uc and srq
    #[arg(short, long, default_value_t = 1024, value_name = "BYTES")]
    pub(crate) mtu: u16,
    /// Number of queue pairs that share the receive queue; for srq
    #[arg(short, long, visible_alias = "num-qp", default_value_t = 16, value_name = "N")]
    pub(crate) queue_pairs: u32,
    /// Messages in flight on each queue pair; more than 1 requires this program on both sides
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    pub(crate) window: u32,
    /// Sleep until a request completes, instead of polling
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Number each message and check every byte; requires this program and this flag on both sides
    #[arg(short, long)]
    pub(crate) check: bool,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0, value_name = "SL")]
    pub(crate) service_level: u8,
    /// Seconds after which the run ends, even if messages are missing
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) deadline: u64,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The validated parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The transport type.
    pub(crate) kind: Type,
    /// The message size in bytes.
    pub(crate) size: u32,
    /// The number of messages that each side sends, over all queue pairs.
    pub(crate) iterations: u64,
    /// The number of posted receive requests.
    pub(crate) rx_depth: u32,
    /// The number of queue pairs.
    pub(crate) queue_pairs: u32,
    /// The number of messages in flight on each queue pair.
    pub(crate) window: u32,
    /// Whether to sleep instead of polling.
    pub(crate) events: bool,
    /// Whether messages are numbered and checked.
    pub(crate) check: bool,
    /// The maximum duration of the run.
    pub(crate) deadline: Duration,
    /// The connection parameters, which match the rdma-core programs.
    pub(crate) parameters: EndpointParameters,
}

impl Args {
    /// Returns the plan, or one line for each invalid option.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        let size = self.size.unwrap_or(if self.kind == Type::Ud { 1024 } else { 4096 });
        let queue_pairs = if self.kind == Type::Srq { self.queue_pairs } else { 1 };
        let in_flight = u64::from(self.window) * u64::from(queue_pairs);
        let least = if self.check { check::MIN_LENGTH as u32 } else { 1 };
        let mistakes = [
            (
                self.device == SOFT && self.host.is_some(),
                "--device soft runs both sides in this process; help: remove HOST".to_owned(),
            ),
            (size < least, format!("--size {size}: must be at least {least} bytes")),
            (size > 1 << 30, format!("--size {size}: must be at most 2^30 bytes")),
            (self.iterations == 0, "--iterations 0: must be 1 or more".to_owned()),
            (self.iterations > 1 << 32, format!("--iterations {}: must be at most 2^32", self.iterations)),
            (self.window == 0, "--window 0: must be 1 or more".to_owned()),
            (
                !(1..=SHARED_ADDRESSES as u32).contains(&queue_pairs),
                format!("--queue-pairs {queue_pairs}: must be 1 to {SHARED_ADDRESSES}"),
            ),
            (
                in_flight > u64::from(self.rx_depth),
                format!("--rx-depth {}: must be at least {in_flight}, the number of messages in flight", self.rx_depth),
            ),
            // At its start, the rdma-core client posts one send on each queue pair, even if `--iterations` is smaller.
            (
                self.kind == Type::Srq && self.iterations < u64::from(queue_pairs),
                format!("--iterations {}: must be at least {queue_pairs}, one for each queue pair", self.iterations),
            ),
        ];
        let mistakes: Vec<String> = mistakes.into_iter().filter_map(|(is, why)| is.then_some(why)).collect();
        if !mistakes.is_empty() {
            return Err(mistakes.join("\n"));
        }
        let parameters = EndpointParameters {
            port: self.device_port,
            gid: self.gid,
            gid_index: self.gid_index,
            // For datagrams, the path MTU is the MTU of the port, as in the rdma-core program.
            path_mtu: (self.kind != Type::Ud).then_some(self.mtu),
            hop_limit: 1,
            service_level: self.service_level,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            ..EndpointParameters::default()
        };
        Ok(Plan {
            kind: self.kind,
            size,
            iterations: self.iterations,
            rx_depth: self.rx_depth,
            queue_pairs,
            window: self.window,
            events: self.events,
            check: self.check,
            deadline: Duration::from_secs(self.deadline),
            parameters,
        })
    }
}
