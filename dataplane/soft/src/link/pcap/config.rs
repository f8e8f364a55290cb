//! The parameters of a pcap link.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Pace, PcapSpec};
use crate::link::parameters::{LinkKind, LinkMistake, LinkParameters, PortLimits, SOFT};
use crate::link::{LinkSpec, LoopbackLink};
use dataplane_core::error::{Error, Result};
use dataplane_core::file::{self, Readers};
use dataplane_core::pipeline::parameter_schema;
use dataplane_core::units::{Bytes, bytes_within};

/// Receives the packets of a capture file, and writes sent packets to another capture file.
///
/// ```toml
/// [[port]]
/// name   = "replay"
/// device = "soft"
///
/// [port.link]
/// kind    = "pcap"
/// input   = "traffic.pcap"
/// output  = "sent.pcap"
/// group   = "root"
/// loop    = 10
/// pace    = "file"
/// snaplen = 128
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PcapConfig {
    /// The capture file whose packets the port receives: a regular file of at most 64 GiB, in pcap or pcapng format.
    /// The program loads the file into memory. Relative paths start from the folder of the config. Default: the port
    /// receives nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<PathBuf>,
    /// The capture file for sent packets: a regular file, or a character device such as `/dev/null`. The program
    /// creates the file and its folders, and overwrites an existing file. During the run, the file is locked against
    /// other ports, stages and dataplane programs. Default: sent packets are only counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// The group that may read `output`: its name from `/etc/group`, or its number in quotes. The file then has mode
    /// 0640, even if the file existed before the run. Default: a new file has mode 0600, so only the user of the
    /// program can read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How often the port receives the packets of `input`: once (`false`), a given number of times (an integer), or
    /// until the run ends (`true`).
    #[serde(rename = "loop")]
    #[schemars(schema_with = "repeat_schema")]
    pub repeat: Repeat,
    /// When the port receives the packets: `"fast"` as fast as the worker polls, `"file"` with the time intervals
    /// between the timestamps in the file.
    pub pace: Pace,
    /// The maximum number of bytes of a packet that are written to `output`, such as `128` or `"2KiB"`. The original
    /// length is always written.
    #[serde(deserialize_with = "bytes_within::<_, u32, 1, 262144>")]
    #[schemars(with = "Bytes", range(min = 1, max = 262144))]
    pub snaplen: u32,
}

/// The default of `snaplen`, in bytes. No packet is longer.
const SNAPLEN: u32 = 262_144;

impl Default for PcapConfig {
    fn default() -> Self {
        let (repeat, pace) = (Repeat::default(), Pace::default());
        Self { input: None, output: None, group: None, repeat, pace, snaplen: SNAPLEN }
    }
}

/// How often a capture file is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// A number of times.
    Times(u64),
    /// Until the run ends.
    Forever,
}

impl Default for Repeat {
    fn default() -> Self {
        Self::Times(1)
    }
}

impl Serialize for Repeat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Times(1) => serializer.serialize_bool(false),
            Self::Times(times) => serializer.serialize_u64(*times),
            Self::Forever => serializer.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for Repeat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choice;
        impl Visitor<'_> for Choice {
            type Value = Repeat;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or an integer of at least 1")
            }
            fn visit_bool<E>(self, forever: bool) -> Result<Repeat, E> {
                Ok(if forever { Repeat::Forever } else { Repeat::Times(1) })
            }
            fn visit_i64<E: serde::de::Error>(self, times: i64) -> Result<Repeat, E> {
                let valid = u64::try_from(times).ok().filter(|&times| times > 0);
                valid.map(Repeat::Times).ok_or_else(|| E::invalid_value(Unexpected::Signed(times), &self))
            }
        }
        deserializer.deserialize_any(Choice)
    }
}

fn repeat_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "oneOf": [{ "type": "boolean" }, { "type": "integer", "minimum": 1 }] })
}

/// Returns the name, the device and the parameter schema of this link kind.
pub(in crate::link) fn kind() -> LinkKind {
    LinkKind { name: "pcap", device: SOFT, schema: parameter_schema::<PcapConfig>(), tables: Vec::new() }
}

impl LinkParameters for PcapConfig {
    fn kind(&self) -> &'static str {
        "pcap"
    }

    fn divides_when_opened(&self) -> bool {
        true
    }

    /// Checks that the link has an input or an output. The keys for the input may be set only if there is an input, and
    /// the keys for the output only if there is an output.
    fn check(&self, port: &PortLimits<'_>, mistakes: &mut Vec<LinkMistake>) {
        // The lines that could not be read may contain `input` or `output`.
        if port.is_damaged {
            return;
        }
        if self.input.is_none() && self.output.is_none() {
            let help = "add `input` to receive from a file, `output` to write to a file, or both";
            mistakes.push(LinkMistake::at("", "this pcap link names no file", help));
            return;
        }
        let default = Self::default();
        for (key, file, has_no_effect) in [
            ("loop", "input", self.input.is_none() && self.repeat != Repeat::default()),
            ("pace", "input", self.input.is_none() && self.pace != Pace::default()),
            ("group", "output", self.output.is_none() && self.group.is_some()),
            ("snaplen", "output", self.output.is_none() && self.snaplen != default.snaplen),
        ] {
            if has_no_effect {
                let message = format!("`{key}` needs `{file}`, which is missing");
                mistakes.push(LinkMistake::at(key, message, format!("add `{file}`, or remove `{key}`")));
            }
        }
    }

    fn input(&self) -> Option<&Path> {
        self.input.as_deref()
    }

    fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    fn resolve_paths(&mut self, resolve: &dyn Fn(&Path) -> PathBuf) {
        for path in [&mut self.input, &mut self.output].into_iter().flatten() {
            *path = resolve(path);
        }
    }

    fn spec(&self, _: u16, _: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec> {
        if let Some(output) = &self.output {
            file::create_folders(output).map_err(|source| Error::File { path: output.clone(), source })?;
        }
        let readers = Readers::owner_and(self.group.as_deref());
        let readers = readers.map_err(|error| Error::Config(format!("group: {error}")))?;
        Ok(LinkSpec::Pcap(PcapSpec {
            readers,
            input: self.input.clone(),
            output: self.output.clone(),
            times: match self.repeat {
                Repeat::Times(times) => Some(times),
                Repeat::Forever => None,
            },
            pace: self.pace,
            snaplen: self.snaplen,
        }))
    }
}
