//! The config of a stream: the keys of a table `[[stream]]`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use dataplane::header::{MacAddr, ether_type};
use dataplane::units::Period;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use crate::rate::Rate;
use crate::replay::Rewrite;
use crate::values::Values;

/// The frame sizes and weights of the mix `imix`. The sizes are without the frame check sequence. With the sequence,
/// the mix is 7 frames of 64 bytes, 4 frames of 594 bytes and 1 frame of 1518 bytes.
pub const IMIX: [(u16, u16); 3] = [(60, 7), (590, 4), (1514, 1)];

/// The protocol after the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// UDP.
    #[default]
    Udp,
    /// TCP segments of one connection, without a handshake.
    Tcp,
    /// ICMP echo requests. `src_port` is the identifier, and `dst_port` is the sequence number.
    Icmp,
}

/// The times between the packets of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    /// Equal times.
    #[default]
    Constant,
    /// Random times with an exponential distribution. The packets are a Poisson process.
    Poisson,
    /// The times of the capture, scaled to the rate of the stream.
    File,
}

/// The frame sizes of a stream with their weights, in bytes without the frame check sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<(u16, u16)>);

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Weighted {
            size: u16,
            #[serde(default = "one")]
            weight: u16,
        }
        fn one() -> u16 {
            1
        }
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected a size in bytes, \"imix\", or a list such as [{ size = 60, weight = 7 }]"
        )]
        enum Any {
            Size(u16),
            Mix(String),
            List(Vec<Weighted>),
        }
        match Any::deserialize(deserializer)? {
            Any::Size(size) => Ok(Self(vec![(size, 1)])),
            Any::Mix(name) if name == "imix" => Ok(Self(IMIX.to_vec())),
            Any::Mix(name) => Err(serde::de::Error::custom(format!(
                "`{name}` is not a mix of sizes; help: write \"imix\", a size in bytes, or a list of sizes"
            ))),
            Any::List(list) => Ok(Self(list.into_iter().map(|it| (it.size, it.weight)).collect())),
        }
    }
}

/// A VLAN tag of `tags`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagConfig {
    /// The VLAN IDs.
    pub id: Values<u16>,
    /// The priority.
    #[serde(default)]
    pub priority: u8,
    /// The tag protocol identifier: 0x8100 for a customer tag, or 0x88a8 for a service tag.
    #[serde(default = "customer_tag", rename = "type")]
    pub tpid: u16,
}

const fn customer_tag() -> u16 {
    ether_type::VLAN
}

/// The kind of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TunnelKind {
    /// GRE with an IP packet inside (RFC 2784).
    Gre,
    /// VXLAN with an Ethernet frame inside (RFC 7348).
    Vxlan,
}

/// The tunnel of a stream: the outer IP header and the header of the tunnel.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunnelConfig {
    /// The kind.
    pub kind: TunnelKind,
    /// The source addresses of the outer IP header.
    pub src_ip: Values<IpAddr>,
    /// The destination addresses of the outer IP header.
    pub dst_ip: Values<IpAddr>,
    /// The time to live, or hop limit, of the outer IP header.
    #[serde(default = "outer_ttl")]
    pub ttl: u8,
    /// GRE: the keys (RFC 2890). Default: no key.
    pub key: Option<Values<u32>>,
    /// VXLAN: the network identifiers. Default: 1.
    pub vni: Option<Values<u32>>,
    /// VXLAN: the source ports of the outer UDP header. Default: 49152.
    pub src_port: Option<Values<u16>>,
    /// VXLAN: the destination port of the outer UDP header. Default: 4789.
    pub dst_port: Option<u16>,
    /// VXLAN: the source MAC addresses of the inner frame.
    pub src_mac: Option<Values<MacAddr>>,
    /// VXLAN: the destination MAC addresses of the inner frame.
    pub dst_mac: Option<Values<MacAddr>>,
}

impl fmt::Display for TunnelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, src_ip, dst_ip, ttl, key, vni, src_port, dst_port, src_mac, dst_mac } = self;
        write!(f, "{} {src_ip} to {dst_ip}, ttl {ttl}", format!("{kind:?}").to_lowercase())?;
        for (name, values) in [("key", key), ("vni", vni)] {
            values.as_ref().map_or(Ok(()), |values| write!(f, ", {name} {values}"))?;
        }
        src_port.as_ref().map_or(Ok(()), |port| write!(f, ", src_port {port}"))?;
        dst_port.map_or(Ok(()), |port| write!(f, ", dst_port {port}"))?;
        for (name, values) in [("src_mac", src_mac), ("dst_mac", dst_mac)] {
            values.as_ref().map_or(Ok(()), |values| write!(f, ", {name} {values}"))?;
        }
        Ok(())
    }
}

const fn outer_ttl() -> u8 {
    64
}

/// Bytes of `raw` that differ between packets.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawField {
    /// The offset of the first byte in the frame.
    pub offset: usize,
    /// The number of bytes, from 1 to 8.
    pub bytes: usize,
    /// The values, in network byte order.
    pub values: Values<u64>,
}

/// Bytes, written as hexadecimal digits. Spaces and colons between the bytes are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hex(pub Vec<u8>);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits: String = text.chars().filter(|it| !it.is_whitespace() && *it != ':').collect();
        hex::decode(&digits).map(Self).map_err(|why| {
            let help = "write two hexadecimal digits for each byte, such as \"0200 0000 0002\"";
            serde::de::Error::custom(format!("`{text}` is not a list of bytes: {why}; help: {help}"))
        })
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// The config of a stream: a table `[[stream]]`, or the option `--stream`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamConfig {
    /// The name in the results.
    pub name: Option<String>,
    /// The port that sends. Default: the first port.
    pub from: Option<String>,
    /// The port that receives. Default: the first port that is not `from`, or `from` if there is only one port.
    pub to: Option<String>,
    /// The rate of the stream. With the option `--rate`, only the ratio to the other streams matters.
    pub rate: Option<Rate>,
    /// The weight of the stream among the streams without a rate.
    pub weight: f64,
    /// The times between packets. Default: the times of the capture, or equal times.
    pub spacing: Option<Spacing>,
    /// The number of packets that are sent back to back. The times between bursts are longer, so the mean rate stays the
    /// rate of the stream.
    pub burst: u32,
    /// The time of the first packet, from the start of the trial.
    pub start: Period,
    /// The time after which the stream sends no packet, from the start of the trial. Default: the end of the trial.
    pub stop: Option<Period>,
    /// The sizes of the frames. Default: the shortest frame with room for the headers and the signature.
    pub size: Option<Sizes>,
    /// The source MAC addresses. Default: the MAC address of the port that sends.
    pub src_mac: Option<Values<MacAddr>>,
    /// The destination MAC addresses. Default: the MAC address of the port that receives.
    pub dst_mac: Option<Values<MacAddr>>,
    /// The VLAN IDs. Default: no VLAN tag.
    pub vlan: Option<Values<u16>>,
    /// The priority of the VLAN tag.
    pub vlan_priority: u8,
    /// Several VLAN tags, from the outermost to the innermost tag.
    pub tags: Vec<TagConfig>,
    /// The tunnel that carries the packets. The other keys of the IP packet define the packet inside the tunnel.
    pub tunnel: Option<TunnelConfig>,
    /// The source addresses.
    pub src_ip: Values<IpAddr>,
    /// The destination addresses.
    pub dst_ip: Values<IpAddr>,
    /// The time to live, or hop limit.
    pub ttl: u8,
    /// The differentiated services code point.
    pub dscp: u8,
    /// The protocol after the IP header.
    pub protocol: Protocol,
    /// The source ports.
    pub src_port: Values<u16>,
    /// The destination ports.
    pub dst_port: Values<u16>,
    /// The start of the payload.
    pub payload: Hex,
    /// The bytes of all headers. The payload and the signature follow.
    pub raw: Option<Hex>,
    /// The bytes of `raw` that differ between packets.
    pub fields: Vec<RawField>,
    /// The seed of random values, of random spacing, and of the payload.
    pub seed: u64,
    /// A capture file. The frames of the file are sent in order, and then again from the first frame.
    pub capture: Option<PathBuf>,
    /// The factor by which the rate of the capture is multiplied.
    pub speed: f64,
    /// For each prefix of addresses in the capture, the prefix that replaces it.
    pub rewrite: Rewrite,
    /// The prefixes of the clients in the capture. `from` sends the frames of the clients, and `to` sends the frames of
    /// the servers.
    pub clients: Vec<IpNet>,
    /// The destination MAC address of the frames that `to` sends. Default: the MAC address of `from`.
    pub reply_mac: Option<MacAddr>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            name: None,
            from: None,
            to: None,
            rate: None,
            weight: 1.0,
            spacing: None,
            burst: 1,
            start: Period::default(),
            stop: None,
            size: None,
            src_mac: None,
            dst_mac: None,
            vlan: None,
            vlan_priority: 0,
            tags: Vec::new(),
            tunnel: None,
            // The addresses for benchmarks (RFC 2544, appendix C.2.2).
            src_ip: Values::One(IpAddr::from([198, 18, 0, 1])),
            dst_ip: Values::One(IpAddr::from([198, 19, 0, 1])),
            ttl: 64,
            dscp: 0,
            protocol: Protocol::Udp,
            src_port: Values::One(1024),
            // The port of the service `discard`.
            dst_port: Values::One(9),
            payload: Hex::default(),
            raw: None,
            fields: Vec::new(),
            seed: 0,
            capture: None,
            speed: 1.0,
            rewrite: Rewrite::new(),
            clients: Vec::new(),
            reply_mac: None,
        }
    }
}
