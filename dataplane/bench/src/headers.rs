//! The headers of a stream: the bytes of a frame, its fields with several values, and its checksums.

use std::net::IpAddr;

use dataplane::header::build::{Frame, MAX_TAGS};
use dataplane::header::{MacAddr, ether_type, protocol, tunnel};

use crate::config::{Protocol, StreamConfig, TagConfig, TunnelConfig, TunnelKind};
use crate::template::{Checksums, Field, Sums};
use crate::values::{Cycle, Values};

/// The length of an Ethernet header without VLAN tags.
const ETHERNET: usize = 14;
/// The length of a VLAN tag.
const TAG: usize = 4;
/// The length of a UDP header.
const UDP: usize = 8;
/// The default source port of VXLAN: the first dynamic port.
const VXLAN_SOURCE: u16 = 49152;
/// The default MAC addresses of the frame inside a VXLAN tunnel: source and destination.
const INNER_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

/// The checked headers of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Headers<'a> {
    config: &'a StreamConfig,
    src_mac: Values<MacAddr>,
    dst_mac: Values<MacAddr>,
    /// The VLAN tags, from the outermost to the innermost tag.
    tags: Vec<TagConfig>,
}

/// The offsets of the headers in a frame.
#[derive(Clone, Copy, Debug)]
struct Offsets {
    /// The outer IP header, if there is a tunnel.
    outer: usize,
    /// The header after the outer IP header.
    tunnel: usize,
    /// The inner or only IP header.
    ip: usize,
    /// The header after the inner or only IP header.
    l4: usize,
}

impl<'a> Headers<'a> {
    /// Checks the values of all headers. `src_mac` and `dst_mac` are the addresses of the Ethernet header.
    ///
    /// # Errors
    /// Returns the reason, and how to fix the config.
    pub(crate) fn new(
        config: &'a StreamConfig,
        src_mac: Values<MacAddr>,
        dst_mac: Values<MacAddr>,
    ) -> Result<Self, String> {
        for (key, values) in [("src_mac", &src_mac), ("dst_mac", &dst_mac)] {
            values.check(key, MAC_MAX)?;
        }
        for (key, values) in [("src_port", &config.src_port), ("dst_port", &config.dst_port)] {
            values.check(key, u16::MAX.into())?;
        }
        if config.dscp > 63 {
            return Err(format!("`dscp` is {}; help: use a value up to 63", config.dscp));
        }
        check_addresses("", &config.src_ip, &config.dst_ip)?;
        let tags = check_tags(config)?;
        if let Some(tunnel) = &config.tunnel {
            check_tunnel(tunnel)?;
        }
        check_raw(config)?;
        Ok(Self { config, src_mac, dst_mac, tags })
    }

    /// Returns the source and destination MAC address of each frame, or `None` if the addresses differ between packets.
    pub(crate) fn macs(&self) -> Option<(MacAddr, MacAddr)> {
        match &self.config.raw {
            None => self.src_mac.constant().zip(self.dst_mac.constant()),
            Some(raw) if self.config.fields.iter().all(|field| field.offset >= 12) => {
                let mac = |at: usize| raw.0.get(at..)?.first_chunk().copied().map(MacAddr);
                mac(6).zip(mac(0))
            }
            Some(_) => None,
        }
    }

    /// Returns the length of the VLAN tags in bytes.
    pub(crate) fn tags_len(&self) -> usize {
        TAG * self.tags.len()
    }

    /// Returns the offset of the header after the inner or only IP header.
    pub(crate) fn l4(&self) -> usize {
        self.offsets().l4
    }

    /// Returns a frame with the payload. Fields with several values are 0.
    pub(crate) fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let config = self.config;
        if let Some(raw) = &config.raw {
            return [&raw.0, payload].concat();
        }
        let mut frame = Frame::new().ethernet(mac(&self.src_mac), mac(&self.dst_mac));
        for tag in &self.tags {
            frame = frame.tag(tag.tpid, priority(tag) as u16 | tag.id.constant().unwrap_or(0));
        }
        let Some(outer) = &config.tunnel else { return self.packet(frame, payload) };
        let [source, destination] = INNER_MACS.map(Values::One);
        match outer.kind {
            TunnelKind::Gre => {
                let mut content = gre_header(outer, is_v6(&config.dst_ip));
                content.extend(self.packet(Frame::new(), payload).drain(ETHERNET..));
                let frame = ip(frame, &outer.src_ip, &outer.dst_ip).ttl(outer.ttl);
                frame.protocol(protocol::GRE).payload(&content).build()
            }
            TunnelKind::Vxlan => {
                let inner = Frame::new().ethernet(
                    mac(outer.src_mac.as_ref().unwrap_or(&source)),
                    mac(outer.dst_mac.as_ref().unwrap_or(&destination)),
                );
                // The flag in the first byte means that the network identifier is valid.
                let vni = outer.vni.as_ref().map_or(1, |vni| vni.constant().unwrap_or(0));
                let mut content = vec![8, 0, 0, 0];
                content.extend((vni << 8).to_be_bytes());
                content.extend(self.packet(inner, payload));
                let source = outer.src_port.as_ref().map_or(VXLAN_SOURCE, |port| port.constant().unwrap_or(0));
                let frame = ip(frame, &outer.src_ip, &outer.dst_ip).ttl(outer.ttl);
                let frame = frame.udp(source, outer.dst_port.unwrap_or(tunnel::VXLAN_PORT)).payload(&content);
                let mut bytes = frame.build();
                // The outer UDP checksum should be 0 (RFC 7348, section 5).
                let checksum = self.offsets().tunnel + 6;
                bytes[checksum..checksum + 2].fill(0);
                bytes
            }
        }
    }

    /// Returns the packet inside the tunnel, or the whole frame if there is no tunnel.
    fn packet<'b>(&self, frame: Frame<'b>, payload: &'b [u8]) -> Vec<u8> {
        let config = self.config;
        let frame = ip(frame, &config.src_ip, &config.dst_ip).ttl(config.ttl).tos(config.dscp << 2);
        let (source, destination) = (config.src_port.constant().unwrap_or(0), config.dst_port.constant().unwrap_or(0));
        let frame = match config.protocol {
            Protocol::Udp => frame.udp(source, destination),
            Protocol::Tcp => frame.tcp(source, destination),
            Protocol::Icmp => frame.echo_request(source, destination),
        };
        frame.payload(payload).build()
    }

    fn offsets(&self) -> Offsets {
        let outer = ETHERNET + self.tags_len();
        let (tunnel, ip) = match &self.config.tunnel {
            None => (outer, outer),
            Some(config) => {
                let tunnel = outer + ip_len(&config.dst_ip);
                let header = match config.kind {
                    TunnelKind::Gre => {
                        if config.key.is_some() {
                            8
                        } else {
                            4
                        }
                    }
                    TunnelKind::Vxlan => UDP + 8 + ETHERNET,
                };
                (tunnel, tunnel + header)
            }
        };
        Offsets { outer, tunnel, ip, l4: ip + ip_len(&self.config.dst_ip) }
    }

    /// Returns the offsets of the checksums that are written in each packet.
    pub(crate) fn checksums(&self) -> Checksums {
        let config = self.config;
        if config.raw.is_some() {
            return Checksums::default();
        }
        let Offsets { outer, ip, l4, .. } = self.offsets();
        let in_l4 = match config.protocol {
            Protocol::Udp => 6,
            Protocol::Tcp => 16,
            Protocol::Icmp => 2,
        };
        Checksums {
            outer: config.tunnel.as_ref().filter(|it| !is_v6(&it.dst_ip)).map(|_| outer + 10),
            ip: (!is_v6(&config.dst_ip)).then_some(ip + 10),
            l4: Some(l4 + in_l4),
            is_udp: config.protocol == Protocol::Udp,
        }
    }

    /// Returns the fields with several values. `seed` is the seed of random values.
    pub(crate) fn fields(&self, seed: u64) -> Vec<Field> {
        let config = self.config;
        let mut list = FieldList { seed, fields: Vec::new() };
        if config.raw.is_some() {
            for field in &config.fields {
                list.add(field.offset, field.bytes, Sums::default(), &field.values);
            }
            return list.fields;
        }
        let Offsets { outer, tunnel, ip, l4 } = self.offsets();
        let none = Sums::default();
        list.add(0, 6, none, &self.dst_mac);
        list.add(6, 6, none, &self.src_mac);
        for (number, tag) in self.tags.iter().enumerate() {
            list.add_to(ETHERNET + TAG * number, 2, none, &tag.id, priority(tag));
        }
        if let Some(config) = &config.tunnel {
            let sums = Sums { outer: !is_v6(&config.dst_ip), ..none };
            list.add_addresses(outer, sums, &config.src_ip, &config.dst_ip);
            if let Some(port) = &config.src_port {
                list.add(tunnel, 2, none, port);
            }
            if let Some(vni) = &config.vni {
                list.add(tunnel + UDP + 4, 3, none, vni);
            }
            if let Some(key) = &config.key {
                list.add(tunnel + 4, 4, none, key);
            }
            for (offset, values) in [(6, &config.src_mac), (0, &config.dst_mac)] {
                if let Some(values) = values {
                    list.add(tunnel + UDP + 8 + offset, 6, none, values);
                }
            }
        }
        let v6 = is_v6(&config.dst_ip);
        // The checksum of ICMP over IPv4 has no pseudo header.
        let sums = Sums { ip: !v6, l4: v6 || config.protocol != Protocol::Icmp, ..none };
        list.add_addresses(ip, sums, &config.src_ip, &config.dst_ip);
        let ports = if config.protocol == Protocol::Icmp { l4 + 4 } else { l4 };
        let sums = Sums { l4: true, ..none };
        list.add(ports, 2, sums, &config.src_port);
        list.add(ports + 2, 2, sums, &config.dst_port);
        list.fields
    }
}

/// The fields with several values that were found so far.
struct FieldList {
    seed: u64,
    fields: Vec<Field>,
}

impl FieldList {
    fn add<T: crate::values::FieldValue>(&mut self, offset: usize, width: usize, sums: Sums, values: &Values<T>) {
        self.add_to(offset, width, sums, values, 0);
    }

    /// Adds a field whose values are added to `base`.
    fn add_to<T: crate::values::FieldValue>(
        &mut self,
        offset: usize,
        width: usize,
        sums: Sums,
        values: &Values<T>,
        base: u128,
    ) {
        if values.constant().is_none() {
            // Each field has its own random numbers.
            let cycle: Cycle = values.cycle(self.seed ^ ((offset as u64 + 1) << 48)).plus(base);
            self.fields.push(Field { offset, width, sums, cycle });
        }
    }

    /// Adds the addresses of an IP header at `ip`.
    fn add_addresses(&mut self, ip: usize, sums: Sums, source: &Values<IpAddr>, destination: &Values<IpAddr>) {
        let (offset, width) = if is_v6(destination) { (ip + 8, 16) } else { (ip + 12, 4) };
        self.add(offset, width, sums, source);
        self.add(offset + width, width, sums, destination);
    }
}

const MAC_MAX: u128 = (1 << 48) - 1;

fn is_v6(values: &Values<IpAddr>) -> bool {
    values.sample().is_some_and(|address| address.is_ipv6())
}

fn ip_len(values: &Values<IpAddr>) -> usize {
    if is_v6(values) { 40 } else { 20 }
}

fn mac(values: &Values<MacAddr>) -> MacAddr {
    values.constant().unwrap_or(MacAddr::ZERO)
}

fn priority(tag: &TagConfig) -> u128 {
    u128::from(tag.priority) << 13
}

/// Adds an IP header. Addresses with several values are 0.
fn ip<'b>(frame: Frame<'b>, source: &Values<IpAddr>, destination: &Values<IpAddr>) -> Frame<'b> {
    let zero = if is_v6(destination) { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) };
    let address = |values: &Values<IpAddr>| values.constant().unwrap_or(zero);
    match (address(source), address(destination)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => frame.ipv4(source, destination),
        (IpAddr::V6(source), IpAddr::V6(destination)) => frame.ipv6(source, destination),
        // `check_addresses` has refused addresses of different families.
        _ => frame,
    }
}

fn gre_header(config: &TunnelConfig, has_v6: bool) -> Vec<u8> {
    let flags = if config.key.is_some() { tunnel::GRE_KEY } else { 0 };
    let content = if has_v6 { ether_type::IPV6 } else { ether_type::IPV4 };
    let mut header = [flags.to_be_bytes(), content.to_be_bytes()].concat();
    if let Some(key) = &config.key {
        header.extend(key.constant().unwrap_or(0).to_be_bytes());
    }
    header
}

/// Checks the addresses of an IP header. `prefix` precedes the names of the keys in messages.
fn check_addresses(prefix: &str, source: &Values<IpAddr>, destination: &Values<IpAddr>) -> Result<(), String> {
    for (key, values) in [("src_ip", source), ("dst_ip", destination)] {
        values.check(&format!("{prefix}{key}"), if is_v6(values) { u128::MAX } else { u32::MAX.into() })?;
    }
    if is_v6(source) != is_v6(destination) {
        let key = if is_v6(destination) { "src_ip" } else { "dst_ip" };
        return Err(format!(
            "one of `{prefix}src_ip` and `{prefix}dst_ip` is IPv4 and the other IPv6; help: set `{prefix}{key}` to the same \
             family"
        ));
    }
    Ok(())
}

/// Checks the VLAN tags. Returns the tags of `tags`, or the tag of `vlan`.
fn check_tags(config: &StreamConfig) -> Result<Vec<TagConfig>, String> {
    let priority = |key: &str, priority: u8| match priority {
        0..=7 => Ok(()),
        _ => Err(format!("`{key}` is {priority}; help: use a value up to 7")),
    };
    priority("vlan_priority", config.vlan_priority)?;
    if let Some(id) = &config.vlan {
        if !config.tags.is_empty() {
            return Err("`vlan` and `tags` both add VLAN tags; help: move the tag of `vlan` into `tags`".to_owned());
        }
        id.check("vlan", 4094)?;
        return Ok(vec![TagConfig { id: id.clone(), priority: config.vlan_priority, tpid: ether_type::VLAN }]);
    }
    if config.tags.len() > MAX_TAGS {
        return Err(format!("`tags` has {} tags; help: use at most {MAX_TAGS} tags", config.tags.len()));
    }
    for tag in &config.tags {
        tag.id.check("tags.id", 4094)?;
        priority("tags.priority", tag.priority)?;
        if tag.tpid < ether_type::FIRST {
            return Err(format!(
                "`tags.type` is {:#06x}; help: use 0x8100 for a customer tag, or 0x88a8 for a service tag",
                tag.tpid
            ));
        }
    }
    Ok(config.tags.clone())
}

fn check_tunnel(config: &TunnelConfig) -> Result<(), String> {
    check_addresses("tunnel.", &config.src_ip, &config.dst_ip)?;
    if let Some(key) = &config.key {
        key.check("tunnel.key", u32::MAX.into())?;
    }
    if let Some(vni) = &config.vni {
        vni.check("tunnel.vni", (1 << 24) - 1)?;
    }
    if let Some(port) = &config.src_port {
        port.check("tunnel.src_port", u16::MAX.into())?;
    }
    for (key, values) in [("tunnel.src_mac", &config.src_mac), ("tunnel.dst_mac", &config.dst_mac)] {
        if let Some(values) = values {
            values.check(key, MAC_MAX)?;
        }
    }
    let (kind, other, wrong): (_, _, &[(&str, bool)]) = match config.kind {
        TunnelKind::Gre => (
            "gre",
            "vxlan",
            &[
                ("vni", config.vni.is_some()),
                ("src_port", config.src_port.is_some()),
                ("dst_port", config.dst_port.is_some()),
                ("src_mac", config.src_mac.is_some()),
                ("dst_mac", config.dst_mac.is_some()),
            ],
        ),
        TunnelKind::Vxlan => ("vxlan", "gre", &[("key", config.key.is_some())]),
    };
    match wrong.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "`tunnel.{key}` belongs to a tunnel with `kind = \"{other}\"`, but the kind is \"{kind}\"; help: remove \
             `{key}`, or set `kind = \"{other}\"`"
        )),
    }
}

/// Checks the keys `raw` and `fields`.
fn check_raw(config: &StreamConfig) -> Result<(), String> {
    let Some(raw) = &config.raw else {
        return match config.fields.is_empty() {
            true => Ok(()),
            false => {
                Err("`fields` changes bytes of `raw`; help: add `raw`, or give `src_ip`, `dst_port` and other keys \
                          several values"
                    .to_owned())
            }
        };
    };
    let standard = StreamConfig::default();
    let unused = [
        ("src_mac", config.src_mac.is_some()),
        ("dst_mac", config.dst_mac.is_some()),
        ("vlan", config.vlan.is_some()),
        ("vlan_priority", config.vlan_priority != standard.vlan_priority),
        ("tags", !config.tags.is_empty()),
        ("tunnel", config.tunnel.is_some()),
        ("src_ip", config.src_ip != standard.src_ip),
        ("dst_ip", config.dst_ip != standard.dst_ip),
        ("ttl", config.ttl != standard.ttl),
        ("dscp", config.dscp != standard.dscp),
        ("protocol", config.protocol != standard.protocol),
        ("src_port", config.src_port != standard.src_port),
        ("dst_port", config.dst_port != standard.dst_port),
    ];
    if let Some((key, _)) = unused.iter().find(|(_, is_set)| *is_set) {
        return Err(format!("`raw` has all headers, so `{key}` has no effect; help: remove `{key}`, and change `raw`"));
    }
    let length = raw.0.len();
    if length < ETHERNET {
        return Err(format!("`raw` has {length} bytes; help: start with an Ethernet header of {ETHERNET} bytes"));
    }
    for field in &config.fields {
        let (offset, bytes) = (field.offset, field.bytes);
        if !(1..=8).contains(&bytes) {
            return Err(format!("`fields.bytes` is {bytes}; help: use 1 to 8 bytes"));
        }
        if offset.saturating_add(bytes) > length {
            return Err(format!(
                "the field of {bytes} bytes at offset {offset} does not fit into the {length} bytes of `raw`; help: use an \
                 offset up to {}",
                length.saturating_sub(bytes)
            ));
        }
        field.values.check("fields.values", (1u128 << (8 * bytes)) - 1)?;
    }
    Ok(())
}
