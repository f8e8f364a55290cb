//! `[runtime]`: workers, memory and the loop.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::types::{Control, Period, within, within_some};
use crate::topology::Workers;
use crate::units::CoreId;

/// What packet memory is made of. Where a kind cannot be had the next one is taken, with a warning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Hugepages {
    /// Pages of 1 GiB.
    #[serde(rename = "1G")]
    Gigabyte,
    /// Pages of 2 MiB.
    #[default]
    #[serde(rename = "2M")]
    Megabyte,
    /// Normal pages that the kernel joins where it can.
    #[serde(rename = "transparent")]
    Transparent,
    /// Normal pages.
    #[serde(rename = "none")]
    None,
}

/// What a worker does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Polls on: the lowest latency.
    #[default]
    Spin,
    /// Polls on with pauses, which leaves more of the physical core to its other thread.
    Pause,
    /// Sleeps until a packet comes, where the device can tell, else for short times: leaves the core to others, costs latency.
    Sleep,
}

/// Where the time of a packet comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Timestamps {
    /// From the device's counter where it gives completion timestamps and can be followed, else from the processor, once
    /// a burst.
    #[default]
    Device,
    /// From the device's wall clock; where it has none, as `"device"`.
    Wallclock,
    /// From the processor, once a burst.
    Software,
    /// No packet is timed, and there is no latency in the report.
    None,
}

/// Workers, memory and the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// `"auto"`: one worker on the core that suits it best, near the devices of the ports. A number: so many. An array of
    /// core ids: one on each.
    #[schemars(schema_with = "workers_schema")]
    #[serde(serialize_with = "write_workers", deserialize_with = "read_workers")]
    pub workers: Workers,
    /// The most packets that are taken from a port at a time.
    #[serde(deserialize_with = "within::<_, u32, 1, 256>")]
    #[schemars(range(min = 1, max = 256))]
    pub burst: u32,
    /// Bytes of one packet buffer, headroom included.
    #[serde(deserialize_with = "within::<_, u32, 256, 65408>")]
    #[schemars(range(min = 256, max = 65408))]
    pub buffer_size: u32,
    /// Bytes kept free before a received packet, for headers to be put before it. It leaves at least 64 bytes of a
    /// buffer.
    #[serde(deserialize_with = "within::<_, u32, 0, 4096>")]
    #[schemars(range(min = 0, max = 4096))]
    pub headroom: u32,
    /// Packet buffers of each worker. Absent: what the rings of its ports and its bursts need, and an eighth more. A
    /// port that is no `input` has no receive ring.
    #[serde(deserialize_with = "within_some::<_, u32, 1, 16777216>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16777216))]
    pub buffers: Option<u32>,
    /// What packet memory is made of.
    pub hugepages: Hugepages,
    /// Whether taking less than what was asked for (smaller pages, another node's memory) is an error, not a warning.
    pub strict: bool,
    /// What a worker does when there is nothing to do.
    pub idle: Idle,
    /// Where the time of a packet comes from.
    pub timestamps: Timestamps,
    /// How long a run that is stopped waits for the packets on their way.
    #[schemars(with = "String")]
    pub drain_timeout: Period,
    /// Where `dataplane stats` can ask what the program is doing. `"auto"`: at a socket that it finds by itself. `"none"`:
    /// nowhere. A path, of at most 107 bytes: at a socket there, which is made, with rights for its owner alone, and removed
    /// at the end.
    #[schemars(with = "String")]
    pub control: Control,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            workers: Workers::Auto,
            burst: 64,
            buffer_size: 2048,
            headroom: 128,
            buffers: None,
            hugepages: Hugepages::default(),
            strict: false,
            idle: Idle::default(),
            timestamps: Timestamps::default(),
            drain_timeout: Period(Duration::from_secs(5)),
            control: Control::Auto,
        }
    }
}

/// The most workers that one process runs.
const MAX_WORKERS: i64 = 1024;

fn workers_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "oneOf": [
            { "const": "auto" },
            { "type": "integer", "minimum": 1, "maximum": MAX_WORKERS },
            { "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 },
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
            }
            if cores.is_empty() {
                return Err(serde::de::Error::custom(
                    "there are no cores in this array\nname one core for each worker, such as [2, 3]",
                ));
            }
            Ok(Workers::Cores(cores))
        }
    }
    deserializer.deserialize_any(Choice)
}
