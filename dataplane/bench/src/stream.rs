//! The checked streams and their frames.

use std::collections::BTreeMap;
use std::path::Path;

use dataplane::header::MacAddr;
use dataplane::units::Period;

pub use crate::config::{IMIX, Protocol, Sizes, Spacing, StreamConfig};
use crate::config::{RawField, TagConfig};
use crate::headers::Headers;
use crate::rate::Rate;
use crate::replay::{Replay, Side};
use crate::signature::{LENGTH, MAX_SIZES, ones_sum};
use crate::template::{Field, Template};
use crate::values::{Random, Values};

/// The shortest Ethernet frame, without the frame check sequence.
pub const SHORTEST: u16 = 60;
/// The highest weight and the highest speed. With much larger values, sums and rates would not be finite.
const MAX_FACTOR: f64 = 1e9;
/// The maximum sum of the weights of the sizes of a stream.
const MAX_WEIGHTS: usize = 4096;

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
    /// The number of packets that are sent back to back.
    pub(crate) burst: u64,
    /// The first and the last time at which the stream sends, in nanoseconds from the start of the trial.
    pub(crate) active: (u64, u64),
    /// The place of the stream in the config, or on the command line.
    pub(crate) place: String,
    /// For a capture, the indexes of the templates with a signature. Empty for other streams.
    signed: Box<[u32]>,
    pub(crate) seed: u64,
    /// The source and destination MAC address of the learning frame, if the MAC addresses of the stream are constant.
    learning: Option<(MacAddr, MacAddr)>,
    /// Whether the frames are the frames of a capture, in their order.
    is_capture: bool,
    /// The time of the first frame as a multiple of the mean time between frames. `None` unless the stream sends one
    /// side of the conversations of a capture (`clients`).
    pub(crate) first: Option<f64>,
    /// The values of the keys of the config that define the packets.
    keys: BTreeMap<String, String>,
}

impl Stream {
    /// Checks the config of a stream and builds its frames. A capture with `clients` has two streams: the frames of the
    /// clients, and the frames of the servers. `number` is the position of the stream.
    ///
    /// # Errors
    /// Returns the reason, and how to fix the config.
    pub fn all(config: &StreamConfig, number: usize, ports: &[StreamPort]) -> Result<Vec<Self>, String> {
        if config.clients.is_empty() {
            return match config.reply_mac {
                None => Self::new(config, number, ports).map(|stream| vec![stream]),
                Some(_) => Err("`reply_mac` needs `clients`; help: add the prefixes of the clients".to_owned()),
            };
        }
        let unused = [
            ("capture", config.capture.is_none(), "add `capture = FILE`"),
            ("rate", config.rate.is_some(), "use `speed` instead of `rate`"),
            ("spacing", config.spacing.is_some_and(|spacing| spacing != Spacing::File), "remove `spacing`"),
        ];
        if let Some((key, _, help)) = unused.iter().find(|(_, is_wrong, _)| *is_wrong) {
            return Err(format!(
                "`clients` needs a capture that is sent with its own times, but `{key}` does not fit; help: {help}"
            ));
        }
        let name = config.name.clone().unwrap_or_else(|| format!("stream-{number}"));
        let client = StreamConfig { name: Some(format!("{name}-clients")), ..config.clone() };
        let client = Self::build(&client, number, ports, Some(Side::Client))?;
        let port = |index: usize| ports.get(index).map(|port| port.name.clone());
        let server = StreamConfig {
            name: Some(format!("{name}-servers")),
            from: port(client.to),
            to: port(client.from),
            src_mac: None,
            dst_mac: config.reply_mac.map(Values::One),
            ..config.clone()
        };
        let server = Self::build(&server, number, ports, Some(Side::Server))?;
        Ok(vec![client, server])
    }

    /// Checks the config of a stream and builds its frames. `number` is the position of the stream.
    ///
    /// # Errors
    /// Returns the reason, and how to fix the config.
    pub fn new(config: &StreamConfig, number: usize, ports: &[StreamPort]) -> Result<Self, String> {
        Self::build(config, number, ports, None)
    }

    fn build(config: &StreamConfig, number: usize, ports: &[StreamPort], side: Option<Side>) -> Result<Self, String> {
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
        if !(config.weight > 0.0 && config.weight <= MAX_FACTOR) {
            return Err(format!(
                "`weight` is {:?}; help: use a weight above 0, and at most {MAX_FACTOR:e}",
                config.weight
            ));
        }
        if config.burst == 0 {
            return Err("`burst` is 0; help: use a burst of at least 1 packet".to_owned());
        }
        let active = (config.start.as_nanos(), config.stop.map_or(u64::MAX, Period::as_nanos));
        if active.1 <= active.0 {
            let stop = config.stop.unwrap_or_default();
            return Err(format!("`stop` {stop} is not after `start` {}; help: use a later `stop`", config.start));
        }
        let src_mac = config.src_mac.clone().unwrap_or(Values::One(sender.mac));
        let dst_mac = config.dst_mac.clone().unwrap_or(Values::One(receiver.mac));
        let headers = Headers::new(config, src_mac, dst_mac)?;
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
            burst: config.burst.into(),
            active,
            place: String::new(),
            signed: Box::default(),
            seed: config.seed.wrapping_add((number as u64) << 32),
            is_capture: false,
            first: None,
            learning: headers.macs().map(|(source, destination)| (destination, source)),
            keys: BTreeMap::new(),
        };
        let mtu = sender.mtu.min(receiver.mtu);
        if let Some(path) = &config.capture {
            stream.add_capture(config, path, headers.macs(), mtu, side)?;
        } else if stream.spacing == Spacing::File || config.speed != 1.0 || !config.rewrite.is_empty() {
            return Err(
                "`spacing = \"file\"`, `speed` and `rewrite` need a capture; help: add `capture = FILE`".to_owned()
            );
        } else {
            stream.fields = headers.fields(stream.seed);
            stream.add_templates(config, &headers, mtu)?;
        }
        stream.keys = stream.describe(config);
        Ok(stream)
    }

    /// Reads the frames of a capture.
    fn add_capture(
        &mut self,
        config: &StreamConfig,
        path: &Path,
        macs: Option<(MacAddr, MacAddr)>,
        mtu: u32,
        side: Option<Side>,
    ) -> Result<(), String> {
        let unused = [
            ("size", config.size.is_some()),
            ("vlan", config.vlan.is_some()),
            ("tags", !config.tags.is_empty()),
            ("tunnel", config.tunnel.is_some()),
            ("payload", !config.payload.0.is_empty()),
            ("raw", config.raw.is_some()),
        ];
        if let Some((key, _)) = unused.iter().find(|(_, is_set)| *is_set) {
            return Err(format!("`{key}` does not change the frames of a capture; help: remove `{key}`"));
        }
        let Some(macs) = macs else {
            return Err(
                "the frames of a capture have one `src_mac` and one `dst_mac`; help: use one address".to_owned()
            );
        };
        if !(config.speed > 0.0 && config.speed <= MAX_FACTOR) {
            return Err(format!(
                "`speed` is {:?}; help: use a factor above 0, and at most {MAX_FACTOR:e}",
                config.speed
            ));
        }
        // A frame can have a VLAN tag.
        let side = side.map(|side| (&config.clients[..], side));
        let replay = Replay::load(path, &config.rewrite, macs, mtu as usize + 18, side)?;
        self.first = side.map(|_| replay.first);
        self.spacing = config.spacing.unwrap_or(Spacing::File);
        if self.spacing == Spacing::File && self.burst > 1 {
            return Err("`burst` and the times of the capture exclude each other; help: add `spacing = \"constant\"`"
                .to_owned());
        }
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
        if config.burst > 1 {
            add("burst", config.burst.to_string());
        }
        if config.start != Period::default() {
            add("start", config.start.to_string());
        }
        if let Some(stop) = config.stop {
            add("stop", stop.to_string());
        }
        if let Some(path) = &config.capture {
            let bytes: usize = self.templates.iter().map(|template| template.frame.len()).sum();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            add("capture", format!("{name}, {} frames, {bytes} bytes", self.templates.len()));
            add("signed_frames", self.signed.len().to_string());
            add("speed", config.speed.to_string());
            for net in &config.clients {
                add(&format!("clients {net}"), String::new());
            }
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
        add("seed", config.seed.to_string());
        if !config.payload.0.is_empty() {
            add("payload", config.payload.to_string());
        }
        if let Some(raw) = &config.raw {
            add("raw", raw.to_string());
            for RawField { offset, bytes, values } in &config.fields {
                add(&format!("field of {bytes} bytes at {offset}"), values.to_string());
            }
            return keys;
        }
        add("protocol", format!("{:?}", config.protocol).to_lowercase());
        add("src_ip", config.src_ip.to_string());
        add("dst_ip", config.dst_ip.to_string());
        add("src_port", config.src_port.to_string());
        add("dst_port", config.dst_port.to_string());
        add("ttl", config.ttl.to_string());
        add("dscp", config.dscp.to_string());
        if let Some(vlan) = &config.vlan {
            add("vlan", vlan.to_string());
            add("vlan_priority", config.vlan_priority.to_string());
        }
        for (number, TagConfig { id, priority, tpid }) in config.tags.iter().enumerate() {
            add(&format!("tag {number}"), format!("{id}, priority {priority}, type {tpid:#06x}"));
        }
        if let Some(tunnel) = &config.tunnel {
            add("tunnel", tunnel.to_string());
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

    /// Returns the number of flows: the number of packets after which the headers repeat.
    ///
    /// # Errors
    /// Returns the reason if a field has random values, or if the stream sends a capture.
    pub fn flows(&self) -> Result<u64, String> {
        if self.is_capture {
            return Err("the frames of a capture have no new flows; help: remove `capture`".to_owned());
        }
        let common = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a.max(1)
        };
        self.fields.iter().try_fold(1u64, |flows, field| match field.cycle.period() {
            Some(period) => Ok((flows / common(flows, period)).saturating_mul(period)),
            None => Err("random values repeat flows; help: remove `random` and `zipf`".to_owned()),
        })
    }

    /// Returns the source and destination MAC address of a frame that teaches a bridge the address of the receiving port.
    pub(crate) fn learning_addresses(&self) -> Option<(MacAddr, MacAddr)> {
        self.learning
    }

    fn add_templates(&mut self, config: &StreamConfig, headers: &Headers<'_>, mtu: u32) -> Result<(), String> {
        let longest = mtu as usize + 14 + headers.tags_len();
        let start = headers.frame(&[]).len();
        let before = start + config.payload.0.len();
        let least = (before + LENGTH).max(SHORTEST.into());
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
            if size < least || size > longest {
                let own = match config.payload.0.len() {
                    0 => String::new(),
                    length => format!("`payload` has {length} bytes, "),
                };
                return Err(format!(
                    "`size` {size} does not fit: the headers have {start} bytes, {own}the signature has {LENGTH} bytes, and \
                     the ports send frames of {SHORTEST} to {longest} bytes; help: {}",
                    match least <= longest {
                        true => format!("use sizes of {least} to {longest}"),
                        false => "remove headers, or increase `mtu` of the ports".to_owned(),
                    }
                ));
            }
            let filler = size - start - LENGTH;
            let mut random = Random::new(config.seed);
            let mut payload = config.payload.0.clone();
            payload.extend((before..size - LENGTH).map(|_| random.next() as u8));
            let filler_sum = !ones_sum(&payload);
            payload.extend([0; LENGTH]);
            let frame = headers.frame(&payload);
            let sum = |offset: Option<usize>| {
                let bytes = offset.and_then(|offset| frame.get(offset..)?.first_chunk());
                bytes.map_or(0, |bytes| !u16::from_be_bytes(*bytes))
            };
            let checksums = headers.checksums();
            templates.push(Template {
                outer_sum: sum(checksums.outer),
                ip_sum: sum(checksums.ip),
                l4_sum: sum(checksums.l4),
                filler_sum,
                filler,
                signature: Some(size - LENGTH),
                checksums,
                gap: 1.0,
                odd: (size - LENGTH).wrapping_sub(headers.l4()) % 2 == 1,
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
