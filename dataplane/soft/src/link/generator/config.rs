//! The parameters of a generator.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use super::{FrameKind, GeneratorSpec, MOST_BYTES, headers};
use crate::link::parameters::{LinkKind, LinkMistake, LinkParameters, MAX_HEADER, PortLimits, SOFT};
use crate::link::{LinkSpec, LoopbackLink};
use dataplane_core::error::Result;
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::parameter_schema;
use dataplane_core::units::{Bytes, PacketRate, bytes_within, bytes_within_some, within, within_some};

/// A frame size of a mix, with its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// The frame size in bytes, without the frame check sequence.
    #[serde(deserialize_with = "bytes_within::<_, u16, 42, 65022>")]
    #[schemars(with = "Bytes", range(min = 42, max = 65022))]
    pub size: u16,
    /// The number of frames of this size in one cycle through `sizes`.
    #[serde(default = "one", deserialize_with = "within::<_, u16, 1, 1000>")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

/// Generates the frames that the port receives, and counts the frames that the port sends.
///
/// A million frames of one size:
///
/// ```toml
/// [[port]]
/// name   = "gen"
/// device = "soft"
/// link   = { kind = "generator", size = 64, count = 1_000_000, copy = false, copy_out = true }
/// ```
///
/// A mix of sizes, in many flows, at a fixed rate:
///
/// ```toml
/// [[port]]
/// name   = "gen"
/// device = "soft"
///
/// [port.link]
/// kind     = "generator"
/// sizes    = [{ size = 64, weight = 7 }, { size = 590, weight = 4 }, { size = 1514, weight = 1 }]
/// rate     = "1Mpps"
/// flows    = 1000
/// protocol = "tcp4"
/// src_mac  = "02:00:00:00:00:0a"
/// dst_mac  = "02:00:00:00:00:0b"
/// src_ip   = "10.0.0.1"
/// dst_ip   = "10.0.1.1"
/// src_port = 4000
/// dst_port = 443
/// vlan     = 7
/// seed     = 1
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GeneratorConfig {
    /// The frame size in bytes, without the frame check sequence. The frame must fit the `mtu` of the port. Default:
    /// 64, if there are no `sizes`.
    #[serde(deserialize_with = "bytes_within_some::<_, u16, 42, 65022>", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Bytes", range(min = 42, max = 65022))]
    pub size: Option<u16>,
    /// A mix of frame sizes, instead of `size`. The generator cycles through the sizes.
    pub sizes: Vec<Size>,
    /// The number of flows, which the generator cycles through. Flows differ in the source port and, beyond 65,536
    /// flows, in the source address. For each flow, the generator prepares `weight` frames of each size, or one frame
    /// if `sizes` is not set. All prepared frames together must not exceed 64 MiB.
    #[serde(deserialize_with = "within::<_, u32, 1, 1048576>")]
    #[schemars(range(min = 1, max = 1048576))]
    pub flows: u32,
    /// The rate in frames per second for all workers together, such as `"1Mpps"`. If no receive buffer is free when a
    /// frame is due, the frame is lost. Default: as fast as the workers receive frames.
    #[serde(deserialize_with = "rate", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PacketRate", range(min = 1, max = 1000000000000u64))]
    pub rate: Option<u64>,
    /// The number of frames for all workers together. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The protocols of the frames: UDP over IPv4, TCP over IPv4 or UDP over IPv6.
    pub protocol: FrameKind,
    /// Whether the generator writes the whole frame into the buffer at every receive. If `false`, the generator writes
    /// a frame into each buffer only once. When the port receives again in this buffer, the frame still has the changes
    /// that the pipeline made.
    #[serde(rename = "copy")]
    pub rewrite: bool,
    /// Whether the link copies every sent frame out of its buffer, as a NIC does by DMA. If `false`, sent frames are
    /// only counted.
    pub copy_out: bool,
    /// The source MAC address.
    pub src_mac: MacAddr,
    /// The destination MAC address.
    pub dst_mac: MacAddr,
    /// The source IP address of the first flow. Default: 198.18.0.1 for IPv4 (RFC 2544), 2001:2::1 for IPv6 (RFC 5180).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_ip: Option<IpAddr>,
    /// The destination IP address. Default: 198.19.0.1 for IPv4, 2001:2:0:8000::1 for IPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_ip: Option<IpAddr>,
    /// The source port of the first flow.
    pub src_port: u16,
    /// The destination port.
    pub dst_port: u16,
    /// The VLAN ID of the frames. Default: no VLAN tag.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 4094>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: Option<u16>,
    /// The seed of the random payload.
    pub seed: u64,
}

impl GeneratorConfig {
    /// Returns the frame sizes with their weights.
    pub fn mix(&self) -> Vec<Size> {
        if self.sizes.is_empty() {
            vec![Size { size: self.size.unwrap_or(DEFAULT_SIZE), weight: 1 }]
        } else {
            self.sizes.clone()
        }
    }
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    const RANGE: RangeInclusive<u64> = 1..=1_000_000_000_000;
    let PacketRate(rate) = PacketRate::deserialize(deserializer)?;
    let expected = format!("a rate from {} to {} packets per second", RANGE.start(), RANGE.end());
    let wrong = || D::Error::invalid_value(Unexpected::Unsigned(rate), &expected.as_str());
    if RANGE.contains(&rate) { Ok(Some(rate)) } else { Err(wrong()) }
}

/// The default frame size in bytes.
const DEFAULT_SIZE: u16 = 64;

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            size: None,
            sizes: Vec::new(),
            flows: 1,
            rate: None,
            count: None,
            protocol: FrameKind::default(),
            rewrite: true,
            copy_out: false,
            src_mac: MacAddr([0x02, 0, 0, 0, 0, 0x01]),
            dst_mac: MacAddr([0x02, 0, 0, 0, 0, 0x02]),
            src_ip: None,
            dst_ip: None,
            src_port: 1024,
            dst_port: 9,
            vlan: None,
            seed: 0,
        }
    }
}

/// Returns the name, the device and the parameter schema of this link kind.
pub(in crate::link) fn kind() -> LinkKind {
    LinkKind { name: "generator", device: SOFT, schema: parameter_schema::<GeneratorConfig>(), tables: Vec::new() }
}

impl LinkParameters for GeneratorConfig {
    fn kind(&self) -> &'static str {
        "generator"
    }

    fn divides_when_opened(&self) -> bool {
        true
    }

    /// Checks the addresses, and the sizes against the headers and the MTU of the port. Other checks ensure that a
    /// buffer has room for a frame of MTU size.
    fn check(&self, port: &PortLimits<'_>, mistakes: &mut Vec<LinkMistake>) {
        let mut error = |key: &str, message: String, help: String| mistakes.push(LinkMistake::at(key, message, help));
        let v6 = self.protocol == FrameKind::Udp6;
        for (key, address) in [("src_ip", self.src_ip), ("dst_ip", self.dst_ip)] {
            if address.is_some_and(|address| matches!(address, IpAddr::V6(_)) != v6) {
                let version = if v6 { "IPv6" } else { "IPv4" };
                let message = format!("the packets are {version}, but `{key}` is not an {version} address");
                error(key, message, "change the address or `protocol`".to_owned());
            }
        }
        if self.size.is_some() && !self.sizes.is_empty() {
            error("size", "`size` and `sizes` cannot be used together".to_owned(), "remove one of the two".to_owned());
        }
        let headers = headers(self.protocol, self.vlan) as u32;
        let most = port.mtu.saturating_add(MAX_HEADER);
        let mix = self.mix();
        for (at, size) in mix.iter().map(|entry| u32::from(entry.size)).enumerate() {
            let key = if self.sizes.is_empty() { "size".to_owned() } else { format!("sizes[{at}].size") };
            if size < headers {
                let message = format!("a frame of {size} bytes is shorter than its headers of {headers} bytes");
                error(&key, message, format!("set `size` to at least {headers}"));
            } else if size > most {
                let message =
                    format!("a frame of {size} bytes is longer than the mtu of `{}` allows ({most} bytes)", port.name);
                error(
                    &key,
                    message,
                    format!("set `size` to at most {most}, or the mtu to at least {}", size - MAX_HEADER),
                );
            }
        }
        let round: u64 = mix.iter().map(|entry| u64::from(entry.size) * u64::from(entry.weight)).sum();
        let (bytes, limit) = (round * u64::from(self.flows), MOST_BYTES as u64);
        if bytes > limit {
            let message = format!(
                "the frames of {} flows have {bytes} bytes in total, more than the maximum of {limit}",
                self.flows
            );
            let help = match limit / round {
                0 => "reduce the sizes or weights".to_owned(),
                most => format!("set `flows` to at most {most}, or reduce the sizes or weights"),
            };
            error("flows", message, help);
        }
    }

    fn spec(&self, _: u16, _: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec> {
        Ok(LinkSpec::Generator(GeneratorSpec {
            sizes: self.mix().iter().map(|entry| (entry.size, entry.weight)).collect(),
            flows: self.flows,
            kind: self.protocol,
            vlan: self.vlan,
            src_mac: self.src_mac.0,
            dst_mac: self.dst_mac.0,
            src_ip: self.src_ip,
            dst_ip: self.dst_ip,
            src_port: self.src_port,
            dst_port: self.dst_port,
            seed: self.seed,
            count: self.count,
            rate: self.rate,
            rewrite: self.rewrite,
            copy_out: self.copy_out,
        }))
    }
}
