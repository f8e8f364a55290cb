//! The command line, and what it stands for once it is known to make sense.

use std::fmt;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use dataplane::provider::QpType;
use dataplane::provider::connect::{EndpointParameters, GidChoice};
use dataplane::units::Gid;
use serde::Serialize;

use crate::check;

/// The name of the device that is in this program.
pub(crate) const SOFT: &str = "soft";
/// Addresses that a program with a shared receive queue tells, whatever the number of its queue pairs.
pub(crate) const SHARED_ADDRESSES: usize = 256;

/// What the messages go over.
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
    /// The type of its queue pairs.
    pub(crate) fn kind(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// How many addresses each side tells.
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

/// Sends messages to and fro between two queue pairs, and measures how long they take. Talks with the same program, and
/// with ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong of rdma-core.
#[derive(Clone, Debug, Parser)]
#[command(name = "pingpong", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Host where the server runs; without one, this is the server
    pub(crate) host: Option<String>,
    /// Device, such as rxe0 or mlx5_0; "soft": both sides in this process, on two devices in software
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    pub(crate) device: String,
    /// What the messages go over, the same on both sides
    #[arg(short = 't', long = "type", value_enum, default_value = "rc")]
    pub(crate) kind: Type,
    /// TCP port at which the server is found
    #[arg(short, long, default_value_t = 18515)]
    pub(crate) port: u16,
    /// Port of the device
    #[arg(short = 'i', long, visible_alias = "ib-port", default_value_t = 1, value_name = "PORT")]
    pub(crate) device_port: u8,
    /// Place of the own address in the port's table. Without this and --gid: the first of RoCE over UDP
    #[arg(short, long, visible_alias = "gid-idx", conflicts_with = "gid", value_name = "INDEX")]
    pub(crate) gid_index: Option<u8>,
    /// Own address, as IPv6 or IPv4
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gid: Option<Gid>,
    /// Bytes of a message, the same on both sides [default: 4096, of ud 1024]
    #[arg(short, long, value_name = "BYTES")]
    pub(crate) size: Option<u32>,
    /// Messages that each side sends, the same on both sides
    #[arg(short = 'n', long, visible_alias = "iters", default_value_t = 1000, value_name = "N")]
    pub(crate) iterations: u64,
    /// Receives that are posted
    #[arg(short, long, default_value_t = 500, value_name = "N")]
    pub(crate) rx_depth: u32,
    /// Largest payload of a packet, the same on both sides; of rc, uc and srq
    #[arg(short, long, default_value_t = 1024, value_name = "BYTES")]
    pub(crate) mtu: u16,
    /// Queue pairs that share the receive queue; of srq
    #[arg(short, long, visible_alias = "num-qp", default_value_t = 16, value_name = "N")]
    pub(crate) queue_pairs: u32,
    /// Messages of a queue pair under way; more than 1 with this program on both sides alone
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    pub(crate) window: u32,
    /// Sleep until something has completed, instead of polling
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Number each message and check every byte; with this program, and this flag, on both sides alone
    #[arg(short, long)]
    pub(crate) check: bool,
    /// Service level
    #[arg(short = 'l', long, default_value_t = 0, value_name = "SL")]
    pub(crate) service_level: u8,
    /// Seconds after which it ends, whatever is missing
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) deadline: u64,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What both sides do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// What the messages go over.
    pub(crate) kind: Type,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Messages that each side sends, over all queue pairs.
    pub(crate) iterations: u64,
    /// Receives that are posted.
    pub(crate) rx_depth: u32,
    /// Queue pairs.
    pub(crate) queue_pairs: u32,
    /// Messages of a queue pair under way.
    pub(crate) window: u32,
    /// Whether to sleep instead of polling.
    pub(crate) events: bool,
    /// Whether messages are numbered and checked.
    pub(crate) check: bool,
    /// How long all may take.
    pub(crate) deadline: Duration,
    /// How the queue pairs are connected: as the programs of rdma-core do it.
    pub(crate) parameters: EndpointParameters,
}

impl Args {
    /// What is to be done; or every mistake, one a line.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        let size = self.size.unwrap_or(if self.kind == Type::Ud { 1024 } else { 4096 });
        let queue_pairs = if self.kind == Type::Srq { self.queue_pairs } else { 1 };
        let in_flight = u64::from(self.window) * u64::from(queue_pairs);
        let least = if self.check { check::LEAST as u32 } else { 1 };
        let mistakes = [
            (self.device == SOFT && self.host.is_some(), "--device soft has both sides: leave the host out".to_owned()),
            (size < least, format!("--size {size}: a message has at least {least} bytes here")),
            (size > 1 << 30, format!("--size {size}: a message has at most 2^30 bytes")),
            (self.iterations == 0, "--iterations 0: name 1 or more".to_owned()),
            (self.iterations > 1 << 32, format!("--iterations {}: at most 2^32", self.iterations)),
            (self.window == 0, "--window 0: name 1 or more".to_owned()),
            (
                !(1..=SHARED_ADDRESSES as u32).contains(&queue_pairs),
                format!("--queue-pairs {queue_pairs}: 1 to {SHARED_ADDRESSES}"),
            ),
            (
                in_flight > u64::from(self.rx_depth),
                format!("--rx-depth {}: {in_flight} messages may be under way, so as many at least", self.rx_depth),
            ),
            // The stock program goes on while it has completed less, and has then up to one a queue pair more to send.
            (
                self.kind == Type::Srq && self.iterations < u64::from(queue_pairs),
                format!("--iterations {}: at least one for each of {queue_pairs} queue pairs", self.iterations),
            ),
        ];
        let mistakes: Vec<String> = mistakes.into_iter().filter_map(|(is, why)| is.then_some(why)).collect();
        if !mistakes.is_empty() {
            return Err(mistakes.join("\n"));
        }
        let gid = match self.gid_index {
            Some(index) => GidChoice::At(index),
            None => GidChoice::Is { gid: self.gid, kind: None },
        };
        let parameters = EndpointParameters {
            port: self.device_port,
            gid,
            // Of datagrams it is the port's, as it is of the stock program.
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
