//! `[runtime]`: the workers, their memory and the worker loop.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::types::{Control, Metrics};
use dataplane_core::mem::PageKind;
use dataplane_core::topology::Workers;
use dataplane_core::units::{Bytes, CoreId, Period, bytes_within, within, within_some};
use dataplane_soft::config::Buffers;

/// The behaviour of a worker that receives nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Continues to poll, for the lowest latency.
    #[default]
    Spin,
    /// Continues to poll, with pauses that leave more of the physical core to its other hardware thread.
    Pause,
    /// After 10,000 polls without a packet, sleeps until a packet arrives, or for short periods if the device has no
    /// wake-ups. Sleeping leaves the core to other programs, and increases latency.
    Sleep,
    /// Polls while packets arrive in intervals of less than about 100 µs. Otherwise, sleeps until a packet arrives.
    Adaptive,
}

/// The counters of table entries in the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MetricsRules {
    /// No counters of entries.
    None,
    /// The counters of entries whose name the config chooses.
    #[default]
    Named,
    /// The counters of all entries. The label of an entry without a name is its text.
    All,
}

/// The source of packet timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Timestamps {
    /// The device's counter, if the device supports completion timestamps and its counter can be converted to the time
    /// of the system clock. Otherwise the system clock, read once per burst.
    #[default]
    Device,
    /// The device's wall clock. For a device without a wall clock, the same as `"device"`.
    Wallclock,
    /// The system clock, read once per burst.
    Software,
    /// No timestamps. The report then has no latency.
    None,
}

/// The black box: a memory of the last bursts of each worker. The program writes the black box to a file in three
/// cases: a stage panics, a worker fails, or a worker makes no progress for the time in the key `watchdog` of
/// `[runtime]`. The command `dataplane black-box` writes a file at any time.
///
/// ```toml
/// [runtime.black_box]
/// folder = "/var/lib/dataplane/edge"
/// bursts = 128
/// bytes  = 256
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlackBox {
    /// The folder for the files of the black box. A relative path starts from the folder of the config. If the folder
    /// does not exist, the program creates the folder with the first file.
    pub folder: PathBuf,
    /// The number of bursts that each worker keeps.
    #[serde(default = "default_bursts", deserialize_with = "within::<_, u32, 1, 256>")]
    #[schemars(range(min = 1, max = 256))]
    pub bursts: u32,
    /// The number of bytes of each packet that a worker keeps, rounded up to a multiple of 8.
    #[serde(default = "default_bytes", deserialize_with = "bytes_within::<_, u32, 16, 512>")]
    #[schemars(with = "Bytes", range(min = 16, max = 512))]
    pub bytes: u32,
}

fn default_bursts() -> u32 {
    64
}

fn default_bytes() -> u32 {
    128
}

/// The workers, their memory and the worker loop. All keys are optional.
///
/// ```toml
/// [runtime]
/// workers       = [2, 3]
/// burst         = 32
/// buffer_size   = "4KiB"
/// headroom      = 256
/// buffers       = 16_384
/// hugepages     = "1G"
/// strict        = true
/// idle          = "pause"
/// timestamps    = "software"
/// drain_timeout = "10s"
/// watchdog      = "2s"
/// control       = "/run/router.sock"
/// control_group = "root"
/// metrics       = "127.0.0.1:9464"
/// metrics_rules = "all"
/// sandbox       = false
/// black_box     = { folder = "black-box", bursts = 128, bytes = 256 }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// The workers: `"auto"`, a number of workers, or an array of core ids. An array starts one worker on each core.
    /// `"auto"` starts one worker on the most suitable core near the devices of the ports.
    #[schemars(schema_with = "workers_schema")]
    #[serde(serialize_with = "write_workers", deserialize_with = "read_workers")]
    pub workers: Workers,
    /// The maximum number of packets that a worker receives from a port in one poll.
    #[serde(deserialize_with = "within::<_, u32, 1, 256>")]
    #[schemars(range(min = 1, max = 256))]
    pub burst: u32,
    /// The size of a packet buffer in bytes, headroom included.
    #[serde(deserialize_with = "bytes_within::<_, u32, 256, 65408>")]
    #[schemars(with = "Bytes", range(min = 256, max = 65408))]
    pub buffer_size: u32,
    /// The free space before a received packet, in bytes. Stages add headers in this space. At least 64 bytes of the
    /// buffer must remain for the packet.
    #[serde(deserialize_with = "bytes_within::<_, u32, 0, 4096>")]
    #[schemars(with = "Bytes", range(min = 0, max = 4096))]
    pub headroom: u32,
    /// The number of packet buffers of each worker. The minimum is the sum of three values: `burst`; `tx_depth` of all
    /// ports; and `rx_depth` of the ports that are in `input`, or that are `xdp` ports without `copy = "copy"`. The
    /// default is the minimum multiplied by 9/8, rounded up to a multiple of 64.
    #[serde(deserialize_with = "within_some::<_, u32, 1, 16777216>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16777216))]
    pub buffers: Option<u32>,
    /// The kind of pages for packet memory: `"1G"` for 1 GiB, `"2M"` for 2 MiB, `"transparent"` for transparent huge
    /// pages, or `"none"` for normal pages. If a kind is not available, the program uses the next kind in this list.
    pub hugepages: PageKind,
    /// Whether the run fails if the requested memory is not available. If `false`, the run logs a warning and uses
    /// smaller pages or memory of another NUMA node.
    #[serde(rename = "strict")]
    pub strict_memory: bool,
    /// The behaviour of a worker that receives nothing: `"spin"` polls without pauses, `"pause"` polls with pauses,
    /// `"sleep"` polls 10,000 times without a packet and then sleeps until a packet arrives, and `"adaptive"` polls under
    /// load and sleeps under little load.
    pub idle: Idle,
    /// The source of packet timestamps: `"device"` for the device's counter, `"wallclock"` for the device's wall clock,
    /// `"software"` for the system clock, or `"none"` for no timestamps. If the device has no wall clock, `"wallclock"`
    /// uses the device's counter. If the device has no usable clock at all, the program uses the system clock.
    pub timestamps: Timestamps,
    /// The maximum time to wait for packets in progress when the run stops, such as `"5s"`. The release of the packet
    /// buffers may take up to 0.2 s longer. At most `"365d"`.
    pub drain_timeout: Period,
    /// A time limit for the progress of workers, such as `"10s"`. At least `"100ms"`. If a worker makes no progress for
    /// this time, the program logs a message with the current stage of the worker and the state of the worker's thread.
    #[serde(deserialize_with = "watchdog")]
    pub watchdog: Period,
    /// The control socket, to which commands such as `dataplane stats` connect: `"auto"` for a socket in a default
    /// folder, `"none"` for no socket, or a path of at most 107 bytes. Without `control_group`, only root and the user
    /// of the program can connect. The program removes the socket at the end of the run.
    #[schemars(with = "String")]
    pub control: Control,
    /// A group whose members can connect to the control socket and to the Unix socket of `metrics`: a name in
    /// `/etc/group`, or a number in quotes. The sockets then have mode 0660. Through the control socket, members can
    /// also change the config of the running program. Default: no group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_group: Option<String>,
    /// The address of the metrics server: `"none"` for no server, an IP address and a TCP port such as
    /// `"127.0.0.1:9464"`, or a Unix socket such as `"unix:/run/metrics.sock"`. The server needs no password, so every
    /// client that reaches a TCP address can read the metrics. A Unix socket has the permissions of the control socket.
    #[schemars(with = "String")]
    pub metrics: Metrics,
    /// The table entries, such as `acl` rules, whose counters the metrics contain: `"none"`, `"named"` for entries
    /// whose name the config chooses, or `"all"`. The label of an entry without a name is the text of the entry, so
    /// with `"all"`, every client can read the rules. For each stage, the metrics contain at most 1000 entries.
    pub metrics_rules: MetricsRules,
    /// Whether the program gives up privileges before it opens its devices. With `true`, the program keeps only the
    /// capabilities that its links and stages need. The program can then write only to device files, and to the files
    /// and folders that the config names for writing, such as capture files. The program can neither start programs nor
    /// change the system. The page "Capabilities and limits" lists the remaining privileges.
    pub sandbox: bool,
    /// The black box, a memory of the last bursts of each worker. Default: no black box.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub black_box: Option<BlackBox>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            workers: Workers::Auto,
            burst: 64,
            buffer_size: 2048,
            headroom: 128,
            buffers: None,
            hugepages: PageKind::Huge2M,
            strict_memory: false,
            idle: Idle::default(),
            timestamps: Timestamps::default(),
            drain_timeout: Period::from_secs(5),
            watchdog: Period::from_secs(10),
            control: Control::Auto,
            control_group: None,
            metrics: Metrics::None,
            metrics_rules: MetricsRules::default(),
            sandbox: true,
            black_box: None,
        }
    }
}

impl Runtime {
    /// Returns the layout of the packet buffers.
    pub(crate) fn layout(&self) -> Buffers {
        Buffers { size: self.buffer_size, headroom: self.headroom }
    }
}

/// The minimum of `watchdog`. The minimum is longer than the longest sleep of a worker, because a worker publishes its
/// progress only after each sleep.
const MIN_WATCHDOG: Duration = Duration::from_millis(100);

fn watchdog<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
    let period = Period::deserialize(deserializer)?;
    if period.0 < MIN_WATCHDOG {
        return Err(serde::de::Error::custom(format!("{period} is too short; help: write a time from 100ms to 365d")));
    }
    Ok(period)
}

/// The maximum number of workers of one process.
const MAX_WORKERS: i64 = 1024;

fn workers_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "oneOf": [
            { "const": "auto" },
            { "type": "integer", "minimum": 1, "maximum": MAX_WORKERS },
            { "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1, "maxItems": MAX_WORKERS },
        ]
    })
}

fn write_workers<S: serde::Serializer>(workers: &Workers, serializer: S) -> Result<S::Ok, S::Error> {
    match workers {
        Workers::Auto => "auto".serialize(serializer),
        Workers::Count(count) => count.serialize(serializer),
        Workers::Cores(cores) => cores.serialize(serializer),
    }
}

fn read_workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Workers, D::Error> {
    struct Choice;
    impl<'de> Visitor<'de> for Choice {
        type Value = Workers;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("\"auto\", a number of workers from 1 to 1024, or an array of core ids such as [2, 3]")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Workers, E> {
            if text == "auto" { Ok(Workers::Auto) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
        }
        fn visit_i64<E: serde::de::Error>(self, count: i64) -> Result<Workers, E> {
            let valid = usize::try_from(count).ok().filter(|_| (1..=MAX_WORKERS).contains(&count));
            valid.map(Workers::Count).ok_or_else(|| E::invalid_value(Unexpected::Signed(count), &self))
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Workers, A::Error> {
            let mut cores: Vec<CoreId> = Vec::new();
            while let Some(core) = array.next_element()? {
                cores.push(core);
                if cores.len() > MAX_WORKERS as usize {
                    return Err(serde::de::Error::custom(format!(
                        "this array has more than {MAX_WORKERS} cores; help: name at most {MAX_WORKERS} cores, one for \
                         each worker"
                    )));
                }
            }
            if cores.is_empty() {
                return Err(serde::de::Error::custom(
                    "this array of cores is empty; help: name one core for each worker, such as [2, 3]",
                ));
            }
            Ok(Workers::Cores(cores))
        }
    }
    deserializer.deserialize_any(Choice)
}
