//! The options of the command line.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use dataplane::connect::EndpointParameters;
use dataplane::units::{Gid, Period};
use dataplane::{Error, Result};

use super::plan::{Atomic, Plan, SOFT, Sizes, Test, Transport};

/// The messages up to this size request a completion only for some of the sends, as in perftest.
const CQ_MOD_LIMIT: u32 = 8192;
const DEFAULT_CQ_MOD: u32 = 100;
const DEFAULT_TX_DEPTH: u32 = 128;
const DEFAULT_RX_DEPTH: u32 = 512;
/// The default number of posted receives if the transport can lose messages.
const LOSSY_RX_DEPTH: u32 = 16_000;
const MIN_ITERATIONS: u64 = 5;
/// The times of all messages are stored, with 8 bytes each.
const MAX_ITERATIONS: u64 = 10_000_000;
/// The highest number of queue pairs fits in the identity that this program sends to its peer.
const MAX_QUEUE_PAIRS: u16 = 512;
/// The shortest and the longest `--duration`.
const DURATIONS: RangeInclusive<Period> = Period(Duration::from_millis(100))..=Period(Duration::from_secs(4 * 3600));
const MAX_SIZE: u32 = 1 << 30;
const ATOMIC_SIZE: u32 = 8;

/// The options of `bench verbs`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The peer is this program or the tool of perftest with the name ib_TEST. Both sides need the same \
                        TEST and the same options --type, --size or --all, and --iterations or --duration, \
                        --queue-pairs, and --bidirectional."
)]
pub struct VerbsArgs {
    /// The test
    #[arg(value_enum)]
    pub test: Test,
    /// The host of the server. Without HOST, this program is the server
    pub host: Option<String>,
    /// The RDMA device, such as mlx5_0. With `soft`, both sides run in this process, on two software devices
    #[arg(short, long, value_name = "NAME")]
    pub device: String,
    /// The type of the queue pairs
    #[arg(short = 't', long = "type", value_name = "TYPE", value_enum, default_value = "rc")]
    pub transport: Transport,
    /// The size of the messages in bytes. Default: 65536 for bandwidth, 2 for latency, 8 for atomics
    #[arg(short, long, value_name = "BYTES", conflicts_with = "all")]
    pub size: Option<u32>,
    /// Run the test for each power of two from 2 bytes to 8 MiB. With `ud`, the sizes end at the path MTU
    #[arg(short, long)]
    pub all: bool,
    /// The number of messages of each size. Default: 5000 for `write_bw`, otherwise 1000
    #[arg(short = 'n', long, value_name = "N")]
    pub iterations: Option<u64>,
    /// Run a bandwidth test for this time, instead of a number of messages. The first and the last quarter do not count
    #[arg(short = 'D', long, value_name = "TIME", conflicts_with_all = ["iterations", "all"])]
    pub duration: Option<Period>,
    /// The number of queue pairs of a bandwidth test. --iterations, --tx-depth and --rx-depth are per queue pair. Default: 1
    #[arg(short, long, value_name = "N")]
    pub queue_pairs: Option<u16>,
    /// Let both sides send requests at once. The result is the sum of both sides
    #[arg(short, long)]
    pub bidirectional: bool,
    /// The maximum number of outstanding sends of a bandwidth test. Default: 128
    #[arg(long, value_name = "N")]
    pub tx_depth: Option<u32>,
    /// The maximum number of posted receives of a test of SEND. Default: 512, or 16000 with `uc` and `ud`
    #[arg(long, value_name = "N")]
    pub rx_depth: Option<u32>,
    /// Request one completion for N sends of a bandwidth test. Default: 100, or 1 for messages above 8192 bytes
    #[arg(long, value_name = "N")]
    pub cq_mod: Option<u32>,
    /// Send messages of at most this size inline
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub inline: u32,
    /// Sleep until a completion arrives, instead of polling
    #[arg(short, long)]
    pub events: bool,
    /// The atomic operation of the atomic tests
    #[arg(long, value_enum, value_name = "OPERATION", default_value = "fetch_add")]
    pub atomic: Atomic,
    /// The maximum number of outstanding reads and atomics. Default: the maximum of the device
    #[arg(short, long, value_name = "N")]
    pub outstanding: Option<u8>,
    /// The path MTU in bytes. Default: the largest path MTU that both ports permit
    #[arg(short, long, value_name = "BYTES")]
    pub mtu: Option<u16>,
    /// The port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value_t = 1)]
    pub device_port: u8,
    /// The index of the local GID. Default: the first GID of RoCE v2 with an IPv4 address, otherwise with an IPv6
    /// address, otherwise a link-local GID of RoCE v2. On InfiniBand, the default is no GID, unless
    /// the port requires a global route header
    #[arg(short, long, value_name = "INDEX", conflicts_with = "gid")]
    pub gid_index: Option<u8>,
    /// The local GID, as an IPv6 or IPv4 address
    #[arg(long, value_name = "ADDRESS")]
    pub gid: Option<Gid>,
    /// The service level
    #[arg(short = 'l', long, value_name = "SL", default_value_t = 0)]
    pub service_level: u8,
    /// The TCP port of the server
    #[arg(short, long, default_value_t = 18515)]
    pub port: u16,
    /// The maximum time of a step of the exchange, and with `uc` and `ud` the maximum wait for a message
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub timeout: Period,
    /// Report rates in Gb/s instead of MB/s (2^20 bytes)
    #[arg(long)]
    pub gbits: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A mistake: whether the mistake exists, and its message.
type Rule = (bool, String);

impl VerbsArgs {
    /// Returns the parameters of the run.
    ///
    /// # Errors
    /// Returns [`Error::Config`] with one line for each wrong option.
    pub fn plan(&self) -> Result<Plan> {
        let rules = self.transport_rules().into_iter().chain(self.option_rules()).chain(self.range_rules());
        let mistakes: Vec<String> = rules.filter_map(|(is, message)| is.then_some(message)).collect();
        if !mistakes.is_empty() {
            return Err(Error::Config(mistakes.join("\n")));
        }
        let iterations = if self.duration.is_some() { usize::MAX } else { self.iterations() as usize };
        let tx_depth = if self.test.is_latency() { 1 } else { self.tx_depth.unwrap_or(DEFAULT_TX_DEPTH) };
        let lossy = self.transport != Transport::Rc;
        let rx_depth = self.rx_depth.unwrap_or(if lossy { LOSSY_RX_DEPTH } else { DEFAULT_RX_DEPTH });
        let most = u32::try_from(iterations).unwrap_or(u32::MAX);
        let tx_depth = tx_depth.min(most);
        let sizes = if self.all { Sizes::All } else { Sizes::One(self.size()) };
        let every = self.transport != Transport::Ud && !self.all && !self.events && self.size() > CQ_MOD_LIMIT;
        let cq_mod = self.cq_mod.unwrap_or(if every { 1 } else { DEFAULT_CQ_MOD.min(tx_depth) });
        let parameters = EndpointParameters {
            port: self.device_port,
            gid: self.gid,
            gid_index: self.gid_index,
            access: self.test.access(),
            path_mtu: self.mtu,
            service_level: self.service_level,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            ..EndpointParameters::default()
        };
        Ok(Plan {
            test: self.test,
            transport: self.transport,
            atomic: self.atomic,
            sizes,
            iterations,
            queue_pairs: self.queue_pairs.unwrap_or(1).into(),
            bidirectional: self.bidirectional,
            duration: self.duration.map(|duration| duration.0),
            tx_depth,
            rx_depth: rx_depth.min(most),
            cq_mod,
            inline: self.inline,
            events: self.events,
            outstanding: self.outstanding,
            parameters,
            timeout: self.timeout.0,
            gbits: self.gbits,
            yields: self.device == SOFT,
        })
    }

    fn iterations(&self) -> u64 {
        self.iterations.unwrap_or(if self.test == Test::WriteBw { 5000 } else { 1000 })
    }

    fn size(&self) -> u32 {
        self.size.unwrap_or(match self.test {
            test if test.is_atomic() => ATOMIC_SIZE,
            test if test.is_latency() => 2,
            _ => 65536,
        })
    }

    /// The rules about the transport and the operation.
    fn transport_rules(&self) -> [Rule; 3] {
        let Self { test, transport, .. } = self;
        let operation = test.operation();
        [
            (
                test.fetches() && *transport != Transport::Rc,
                format!("--type {transport}: only reliable connections have {operation}; help: use --type rc"),
            ),
            (
                test.is_write() && *transport == Transport::Ud,
                format!("--type ud: datagrams have no {operation}; help: use --type rc or --type uc"),
            ),
            (
                test.is_atomic() && (self.all || self.size() != ATOMIC_SIZE),
                format!(
                    "{}: {operation} have exactly {ATOMIC_SIZE} bytes; help: remove this option",
                    if self.all { "--all".to_owned() } else { format!("--size {}", self.size()) }
                ),
            ),
        ]
    }

    /// The rules about options that the test does not use.
    fn option_rules(&self) -> [Rule; 11] {
        let test = self.test;
        let unused = |given: bool, option: &str, users: &str| {
            (given, format!("{option}: the test {test} does not use this option; help: remove {option} ({users})"))
        };
        [
            (
                self.device == SOFT && self.host.is_some(),
                "HOST: with --device soft, both sides run in this process; help: remove HOST".to_owned(),
            ),
            unused(self.duration.is_some() && test.is_latency(), "--duration", "for tests of bandwidth"),
            unused(
                self.bidirectional && !test.is_one_sided_bandwidth(),
                "--bidirectional",
                "for write_bw, read_bw and atomic_bw",
            ),
            unused(self.queue_pairs.is_some() && test.is_latency(), "--queue-pairs", "for tests of bandwidth"),
            unused(self.tx_depth.is_some() && test.is_latency(), "--tx-depth", "for tests of bandwidth"),
            unused(self.cq_mod.is_some() && test.is_latency(), "--cq-mod", "for tests of bandwidth"),
            unused(self.rx_depth.is_some() && !test.is_send(), "--rx-depth", "for send_bw and send_lat"),
            unused(self.outstanding.is_some() && !test.fetches(), "--outstanding", "for tests of READ and atomics"),
            unused(self.inline > 0 && test.fetches(), "--inline", "for tests of SEND and WRITE"),
            unused(self.gbits && test.is_latency(), "--gbits", "for tests of bandwidth"),
            (
                self.events && test == Test::WriteLat,
                "--events: write_lat polls memory, because a write causes no completion at the peer; help: remove \
                 --events"
                    .to_owned(),
            ),
        ]
    }

    fn range_rules(&self) -> [Rule; 10] {
        let zero = |option: &str, value: Option<u32>| {
            (value == Some(0), format!("{option} 0: the minimum is 1; help: use 1 or more"))
        };
        let (size, iterations) = (self.size(), self.iterations());
        let tx_depth = self.tx_depth.unwrap_or(DEFAULT_TX_DEPTH);
        let cq_mod = self.cq_mod.unwrap_or(1);
        let duration = self.duration.unwrap_or(*DURATIONS.start());
        let queue_pairs = self.queue_pairs.unwrap_or(1);
        let most = MAX_ITERATIONS / u64::from(queue_pairs.max(1));
        [
            (
                !(1..=MAX_SIZE).contains(&size),
                format!("--size {size}: the range is 1 to {MAX_SIZE}; help: use a size in this range"),
            ),
            (
                !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations),
                format!(
                    "--iterations {iterations}: the range is {MIN_ITERATIONS} to {MAX_ITERATIONS}; help: use a number \
                     in this range"
                ),
            ),
            (
                !DURATIONS.contains(&duration),
                format!(
                    "--duration {duration}: the range is {} to {}; help: use a time in this range",
                    DURATIONS.start(),
                    DURATIONS.end()
                ),
            ),
            (
                !(1..=MAX_QUEUE_PAIRS).contains(&queue_pairs),
                format!(
                    "--queue-pairs {queue_pairs}: the range is 1 to {MAX_QUEUE_PAIRS}; help: use a number in this range"
                ),
            ),
            (
                (most + 1..=MAX_ITERATIONS).contains(&iterations) && self.duration.is_none(),
                format!(
                    "--iterations {iterations}: all queue pairs together have at most {MAX_ITERATIONS} messages; help: \
                     use at most --iterations {most}, or use --duration"
                ),
            ),
            zero("--tx-depth", self.tx_depth),
            zero("--rx-depth", self.rx_depth),
            zero("--cq-mod", self.cq_mod),
            zero("--outstanding", self.outstanding.map(u32::from)),
            (
                cq_mod > tx_depth,
                format!(
                    "--cq-mod {cq_mod}: a queue with {tx_depth} sends would never request a completion; help: use at \
                     most {tx_depth}, or raise --tx-depth"
                ),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: VerbsArgs,
    }

    fn plan(line: &str) -> Result<Plan> {
        Program::parse_from(["verbs"].into_iter().chain(line.split_whitespace())).args.plan()
    }

    #[test]
    fn defaults_are_the_defaults_of_perftest() {
        let plan = |line| plan(line).unwrap();
        let write = plan("write_bw -d rxe0");
        assert_eq!((write.sizes, write.iterations, write.tx_depth, write.cq_mod), (Sizes::One(65536), 5000, 128, 1));
        let send = plan("send_bw -d rxe0 -s 64");
        assert_eq!((send.iterations, send.rx_depth, send.cq_mod), (1000, 512, 100));
        let latency = plan("send_lat -d rxe0");
        assert_eq!((latency.sizes, latency.tx_depth, latency.cq_mod), (Sizes::One(2), 1, 1));
        assert_eq!(plan("send_bw -d rxe0 -t ud -s 1024 -n 20").rx_depth, 20);
        assert_eq!(plan("send_bw -d rxe0 -t ud -s 1024 -n 100000").rx_depth, 16_000);
        assert_eq!(plan("atomic_lat -d rxe0").sizes, Sizes::One(8));
        assert_eq!(plan("send_bw -d rxe0 -n 7 -s 8").cq_mod, 7);
    }

    #[test]
    fn all_sizes_end_at_the_largest_message() {
        assert_eq!(Sizes::All.list(1024), [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
        assert_eq!(Sizes::All.list(u32::MAX).last(), Some(&(8 << 20)));
    }
}
