//! Streams: the config of a stream, and the frames that it consists of.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use dataplane::header::build::Frame;
use dataplane::header::{MacAddr, ether_type};
use serde::{Deserialize, Deserializer};

use crate::rate::Rate;
use crate::replay::{Replay, Rewrite};
use crate::signature::{LENGTH, MAX_SIZES, ones_sum};
use crate::template::{Checksums, Field, Template};
use crate::values::{Cycle, Random, Values};

/// The frames of the mix `imix`, without the frame check sequence, with their weights: 7 frames of 64 bytes, 4 frames of
/// 594 bytes and 1 frame of 1518 bytes, with the frame check sequence.
pub const IMIX: [(u16, u16); 3] = [(60, 7), (590, 4), (1514, 1)];
/// The shortest Ethernet frame, without the frame check sequence.
pub const SHORTEST: u16 = 60;
/// The maximum sum of the weights of the sizes of a stream.
const MAX_WEIGHTS: usize = 4096;

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

/// The config of a stream: a table `[[stream]]`, or the option `--stream`.
#[derive(Clone, Debug, Deserialize)]
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
    /// The seed of random values, of random spacing, and of the filler.
    pub seed: u64,
    /// A capture file. The frames of the file are sent in order, and then again from the first frame.
    pub capture: Option<PathBuf>,
    /// The factor by which the rate of the capture is multiplied.
    pub speed: f64,
    /// For each prefix of addresses in the capture, the prefix that replaces it.
    pub rewrite: Rewrite,
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
            size: None,
            src_mac: None,
            dst_mac: None,
            vlan: None,
            vlan_priority: 0,
            // The addresses for benchmarks (RFC 2544, appendix C.2.2).
            src_ip: Values::One(IpAddr::from([198, 18, 0, 1])),
            dst_ip: Values::One(IpAddr::from([198, 19, 0, 1])),
            ttl: 64,
            dscp: 0,
            protocol: Protocol::Udp,
            src_port: Values::One(1024),
            // The port of the service `discard`.
            dst_port: Values::One(9),
            seed: 0,
            capture: None,
            speed: 1.0,
            rewrite: Rewrite::new(),
        }
    }
}

/// A port of the tester, as a stream sees it.
#[derive(Clone, Debug)]
pub struct StreamPort {
    /// The name.
    pub name: String,
    /// The MAC address.
    pub mac: MacAddr,
    /// The longest packet that the port can send and receive, without the Ethernet header.
    pub mtu: u32,
}

/// A checked stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The name.
    pub name: String,
    /// The index of the port that sends.
    pub from: usize,
    /// The index of the port that receives.
    pub to: usize,
    /// The mean length of the frames in bytes, without the frame check sequence.
    pub mean_size: f64,
    /// The times between packets.
    pub spacing: Spacing,
    pub(crate) rate: Option<Rate>,
    pub(crate) weight: f64,
    pub(crate) templates: Box<[Template]>,
    /// The indexes of the templates, in the order of the packets. After the last index, the order starts again.
    pub(crate) order: Box<[u8]>,
    pub(crate) fields: Vec<Field>,
    /// The offset of the IPv4 header checksum.
    ip_checksum: Option<usize>,
    /// The offset of the checksum after the IP header.
    l4_checksum: usize,
    is_udp: bool,
    /// For a capture, the indexes of the templates with a signature. Empty for other streams.
    signed: Box<[u32]>,
    pub(crate) seed: u64,
    /// The source and destination MAC address of the learning frame, if the MAC addresses of the stream are constant.
    learning: Option<(MacAddr, MacAddr)>,
    /// Whether the frames are the frames of a capture, in their order.
    is_capture: bool,
    /// The values of the keys of the config that define the packets.
    keys: BTreeMap<String, String>,
}

impl Stream {
    /// Checks the config of a stream and builds its frames. `number` is the position of the stream.
    ///
    /// # Errors
    /// Returns the reason, and how to fix the config.
    pub fn new(config: &StreamConfig, number: usize, ports: &[StreamPort]) -> Result<Self, String> {
        let name = config.name.clone().unwrap_or_else(|| format!("stream-{number}"));
        let port = |key: &str, wanted: &Option<String>, default: usize| match wanted {
            None => Ok(default),
            Some(wanted) => ports.iter().position(|port| port.name == *wanted).ok_or_else(|| {
                let names: Vec<_> = ports.iter().map(|port| format!("`{}`", port.name)).collect();
                format!("`{key}` names the unknown port `{wanted}`; help: use one of {}", names.join(", "))
            }),
        };
        let from = port("from", &config.from, 0)?;
        let to = port("to", &config.to, if ports.len() < 2 { from } else { usize::from(from == 0) })?;
        let (Some(sender), Some(receiver)) = (ports.get(from), ports.get(to)) else {
            return Err("there is no port; help: add --ports A,B or [[port]] sections".to_owned());
        };
        if !(config.weight > 0.0 && config.weight.is_finite()) {
            return Err(format!("`weight` is {}; help: use a weight above 0", config.weight));
        }
        let src_mac = config.src_mac.clone().unwrap_or(Values::One(sender.mac));
        let dst_mac = config.dst_mac.clone().unwrap_or(Values::One(receiver.mac));
        for (key, values) in [("src_mac", &src_mac), ("dst_mac", &dst_mac)] {
            values.check(key, (1 << 48) - 1)?;
        }
        if let Some(vlan) = &config.vlan {
            vlan.check("vlan", 4094)?;
        }
        for (key, values) in [("src_port", &config.src_port), ("dst_port", &config.dst_port)] {
            values.check(key, u16::MAX.into())?;
        }
        for (key, value, most) in [("vlan_priority", config.vlan_priority, 7), ("dscp", config.dscp, 63)] {
            if value > most {
                return Err(format!("`{key}` is {value}; help: use a value up to {most}"));
            }
        }
        let is_v6 = |values: &Values<IpAddr>| values.sample().is_some_and(|address| address.is_ipv6());
        for (key, values) in [("src_ip", &config.src_ip), ("dst_ip", &config.dst_ip)] {
            values.check(key, if is_v6(values) { u128::MAX } else { u32::MAX.into() })?;
        }
        let v6 = is_v6(&config.dst_ip);
        if is_v6(&config.src_ip) != v6 {
            let key = if v6 { "src_ip" } else { "dst_ip" };
            return Err(format!(
                "one of `src_ip` and `dst_ip` is IPv4 and the other IPv6; help: set `{key}` to the same family"
            ));
        }
        let mut stream = Self {
            name,
            from,
            to,
            mean_size: 0.0,
            spacing: config.spacing.unwrap_or_default(),
            rate: config.rate,
            weight: config.weight,
            templates: Box::default(),
            order: Box::default(),
            fields: Vec::new(),
            ip_checksum: None,
            l4_checksum: 0,
            is_udp: config.protocol == Protocol::Udp,
            signed: Box::default(),
            seed: config.seed.wrapping_add((number as u64) << 32),
            is_capture: false,
            learning: dst_mac.constant().zip(src_mac.constant()),
            keys: BTreeMap::new(),
        };
        let mtu = sender.mtu.min(receiver.mtu);
        if let Some(path) = &config.capture {
            stream.add_capture(config, path, &src_mac, &dst_mac, mtu)?;
        } else if stream.spacing == Spacing::File || config.speed != 1.0 || !config.rewrite.is_empty() {
            return Err(
                "`spacing = \"file\"`, `speed` and `rewrite` need a capture; help: add `capture = FILE`".to_owned()
            );
        } else {
            stream.add_fields(config, &src_mac, &dst_mac, v6);
            stream.add_templates(config, &src_mac, &dst_mac, mtu)?;
        }
        stream.keys = stream.describe(config);
        Ok(stream)
    }

    /// Reads the frames of a capture.
    fn add_capture(
        &mut self,
        config: &StreamConfig,
        path: &Path,
        src_mac: &Values<MacAddr>,
        dst_mac: &Values<MacAddr>,
        mtu: u32,
    ) -> Result<(), String> {
        if config.size.is_some() || config.vlan.is_some() {
            return Err("`size` and `vlan` do not change the frames of a capture; help: remove these keys".to_owned());
        }
        let Some(macs) = src_mac.constant().zip(dst_mac.constant()) else {
            return Err(
                "the frames of a capture have one `src_mac` and one `dst_mac`; help: use one address".to_owned()
            );
        };
        if !(config.speed > 0.0 && config.speed.is_finite()) {
            return Err(format!("`speed` is {}; help: use a factor above 0", config.speed));
        }
        // A frame can have a VLAN tag.
        let replay = Replay::load(path, &config.rewrite, macs, mtu as usize + 18)?;
        self.spacing = config.spacing.unwrap_or(Spacing::File);
        if self.rate.is_none() {
            self.rate = replay.rate.map(|rate| Rate::Packets(rate * config.speed));
        }
        let bytes: usize = replay.templates.iter().map(|template| template.frame.len()).sum();
        self.mean_size = bytes as f64 / replay.templates.len().max(1) as f64;
        self.signed = replay.signed.into();
        self.templates = replay.templates.into();
        self.is_capture = true;
        Ok(())
    }

    /// Returns the values of the keys that define the packets, for results. Default MAC addresses depend on the host, so
    /// they are not included.
    fn describe(&self, config: &StreamConfig) -> BTreeMap<String, String> {
        let mut keys = BTreeMap::new();
        let mut add = |key: &str, value: String| keys.insert(key.to_owned(), value);
        add("spacing", format!("{:?}", self.spacing).to_lowercase());
        if let Some(path) = &config.capture {
            let bytes: usize = self.templates.iter().map(|template| template.frame.len()).sum();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            add("capture", format!("{name}, {} frames, {bytes} bytes", self.templates.len()));
            add("signed_frames", self.signed.len().to_string());
            add("speed", config.speed.to_string());
            for (from, to) in &config.rewrite {
                add(&format!("rewrite {from}"), to.to_string());
            }
            return keys;
        }
        let frame = |at: &u8| self.templates.get(usize::from(*at)).map_or(0, |template| template.frame.len());
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        self.order.iter().for_each(|at| *sizes.entry(frame(at)).or_default() += 1);
        let sizes: Vec<_> = match sizes.len() {
            1 => sizes.keys().map(ToString::to_string).collect(),
            _ => sizes.iter().map(|(size, weight)| format!("{weight} x {size}")).collect(),
        };
        add("size", sizes.join(", "));
        add("protocol", format!("{:?}", config.protocol).to_lowercase());
        add("src_ip", config.src_ip.to_string());
        add("dst_ip", config.dst_ip.to_string());
        add("src_port", config.src_port.to_string());
        add("dst_port", config.dst_port.to_string());
        add("ttl", config.ttl.to_string());
        add("dscp", config.dscp.to_string());
        add("seed", config.seed.to_string());
        if let Some(vlan) = &config.vlan {
            add("vlan", vlan.to_string());
            add("vlan_priority", config.vlan_priority.to_string());
        }
        for (key, values) in [("src_mac", &config.src_mac), ("dst_mac", &config.dst_mac)] {
            if let Some(values) = values {
                add(key, values.to_string());
            }
        }
        keys
    }

    /// Returns the values of the keys of the config that define the packets.
    pub fn keys(&self) -> &BTreeMap<String, String> {
        &self.keys
    }

    /// Returns the source and destination MAC address of a frame that teaches a bridge the address of the receiving port.
    pub(crate) fn learning_addresses(&self) -> Option<(MacAddr, MacAddr)> {
        self.learning
    }

    /// Finds the offsets of the checksums, and of the fields with several values.
    fn add_fields(&mut self, config: &StreamConfig, src_mac: &Values<MacAddr>, dst_mac: &Values<MacAddr>, v6: bool) {
        let ip = if config.vlan.is_some() { 18 } else { 14 };
        let l4 = ip + if v6 { 40 } else { 20 };
        let (seed, fields) = (self.seed, &mut self.fields);
        let mut add = |offset, width, in_ip, in_l4, cycle: &dyn Fn(u64) -> Cycle, is_constant: bool| {
            if !is_constant {
                // Each field has its own random numbers.
                let cycle = cycle(seed ^ (offset as u64 + 1) << 48);
                fields.push(Field { offset, width, in_ip, in_l4, cycle });
            }
        };
        add(0, 6, false, false, &|seed| dst_mac.cycle(seed), dst_mac.constant().is_some());
        add(6, 6, false, false, &|seed| src_mac.cycle(seed), src_mac.constant().is_some());
        if let Some(vlan) = &config.vlan {
            let priority = u128::from(config.vlan_priority) << 13;
            let tagged = |seed| match vlan.cycle(seed) {
                Cycle::List { values, at } => {
                    Cycle::List { values: values.iter().map(|id| id | priority).collect(), at }
                }
                Cycle::Count { first, step, count, at } => Cycle::Count { first: first | priority, step, count, at },
                Cycle::Random { first, step, count, random } => {
                    Cycle::Random { first: first | priority, step, count, random }
                }
            };
            add(14, 2, false, false, &tagged, vlan.constant().is_some());
        }
        let (source, width) = if v6 { (ip + 8, 16) } else { (ip + 12, 4) };
        // The checksum of ICMP over IPv4 has no pseudo header.
        let has_pseudo = v6 || config.protocol != Protocol::Icmp;
        for (offset, values) in [(source, &config.src_ip), (source + width, &config.dst_ip)] {
            add(offset, width, !v6, has_pseudo, &|seed| values.cycle(seed), values.constant().is_some());
        }
        let ports = if config.protocol == Protocol::Icmp { l4 + 4 } else { l4 };
        for (offset, values) in [(ports, &config.src_port), (ports + 2, &config.dst_port)] {
            add(offset, 2, false, true, &|seed| values.cycle(seed), values.constant().is_some());
        }
        self.ip_checksum = (!v6).then_some(ip + 10);
        self.l4_checksum = l4
            + match config.protocol {
                Protocol::Udp => 6,
                Protocol::Tcp => 16,
                Protocol::Icmp => 2,
            };
    }

    fn add_templates(
        &mut self,
        config: &StreamConfig,
        src_mac: &Values<MacAddr>,
        dst_mac: &Values<MacAddr>,
        mtu: u32,
    ) -> Result<(), String> {
        let longest = mtu + if config.vlan.is_some() { 18 } else { 14 };
        let zero = |values: &Values<IpAddr>, is_v6: bool| {
            values.constant().unwrap_or(if is_v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) })
        };
        let v6 = self.ip_checksum.is_none();
        let (source, destination) = (zero(&config.src_ip, v6), zero(&config.dst_ip, v6));
        let (src_port, dst_port) = (config.src_port.constant().unwrap_or(0), config.dst_port.constant().unwrap_or(0));
        let frame = |payload: &[u8]| {
            let mut frame = Frame::new()
                .ethernet(src_mac.constant().unwrap_or(MacAddr::ZERO), dst_mac.constant().unwrap_or(MacAddr::ZERO));
            if let Some(vlan) = &config.vlan {
                let id = vlan.constant().unwrap_or(0);
                frame = frame.tag(ether_type::VLAN, u16::from(config.vlan_priority) << 13 | id);
            }
            frame = match (source, destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => frame.ipv4(source, destination),
                (IpAddr::V6(source), IpAddr::V6(destination)) => frame.ipv6(source, destination),
                // The families are equal.
                _ => frame,
            };
            frame = frame.ttl(config.ttl).tos(config.dscp << 2);
            frame = match config.protocol {
                Protocol::Udp => frame.udp(src_port, dst_port),
                Protocol::Tcp => frame.tcp(src_port, dst_port),
                Protocol::Icmp => frame.echo_request(src_port, dst_port),
            };
            frame.payload(payload).build()
        };
        let headers = frame(&[]).len();
        let l4 = headers
            - match config.protocol {
                Protocol::Udp | Protocol::Icmp => 8,
                Protocol::Tcp => 20,
            };
        let least = (headers + LENGTH).max(SHORTEST.into());
        let shortest = Sizes(vec![(least as u16, 1)]);
        let sizes = &config.size.as_ref().unwrap_or(&shortest).0;
        let weights: usize = sizes.iter().map(|(_, weight)| usize::from(*weight)).sum();
        if sizes.is_empty() || sizes.len() > MAX_SIZES || weights == 0 || weights > MAX_WEIGHTS {
            return Err(format!(
                "`size` has {} sizes with a total weight of {weights}; help: use 1 to {MAX_SIZES} sizes with a total \
                 weight of 1 to {MAX_WEIGHTS}",
                sizes.len()
            ));
        }
        let mut templates = Vec::new();
        for &(size, _) in sizes {
            let size = usize::from(size);
            if size < least || size > longest as usize {
                return Err(format!(
                    "`size` {size} does not fit: the headers have {headers} bytes, the signature has {LENGTH} bytes, and \
                     the ports send frames of {SHORTEST} to {longest} bytes; help: use sizes of {least} to {longest}"
                ));
            }
            let filler = size - headers - LENGTH;
            let mut random = Random::new(config.seed);
            let mut payload: Vec<u8> = (0..filler).map(|_| random.next() as u8).collect();
            let filler_sum = !ones_sum(&payload);
            payload.extend([0; LENGTH]);
            let frame = frame(&payload);
            let checksum = |offset: usize| frame.get(offset..).and_then(|rest| rest.first_chunk()).copied();
            let sum = |offset| checksum(offset).map_or(0, |bytes| !u16::from_be_bytes(bytes));
            templates.push(Template {
                ip_sum: self.ip_checksum.map_or(0, sum),
                l4_sum: sum(self.l4_checksum),
                filler_sum,
                filler,
                signature: Some(size - LENGTH),
                checksums: Checksums { ip: self.ip_checksum, l4: Some(self.l4_checksum), is_udp: self.is_udp },
                gap: 1.0,
                odd: (size - LENGTH - l4) % 2 == 1,
                frame: frame.into(),
            });
        }
        let total: f64 = sizes.iter().map(|(size, weight)| f64::from(*size) * f64::from(*weight)).sum();
        self.mean_size = total / weights as f64;
        self.order = interleave(sizes, weights);
        self.templates = templates.into();
        Ok(())
    }

    /// Returns the length of the filler of a packet. `size` is the index of the frame size. Returns `None` if the
    /// stream has no such packet.
    #[inline]
    pub(crate) fn filler(&self, size: u8, sequence: u64) -> Option<usize> {
        let index = match self.is_capture {
            false => usize::from(size),
            true => {
                let place = sequence.checked_rem(self.signed.len() as u64)?;
                *self.signed.get(usize::try_from(place).ok()?)? as usize
            }
        };
        self.templates.get(index).map(|template| template.filler)
    }

    /// Returns whether the frames are the frames of a capture, in their order.
    pub(crate) fn is_capture(&self) -> bool {
        self.is_capture
    }
}

/// Returns the order of the sizes in one round. The frames of a size are spread over the round.
fn interleave(sizes: &[(u16, u16)], total: usize) -> Box<[u8]> {
    let mut credits = vec![0i64; sizes.len()];
    let next = |_| {
        for (credit, (_, weight)) in credits.iter_mut().zip(sizes) {
            *credit += i64::from(*weight);
        }
        let most = (0..sizes.len()).rev().max_by_key(|index| credits[*index]).unwrap_or(0);
        credits[most] -= total as i64;
        most as u8
    };
    (0..total).map(next).collect()
}
