//! Longest-prefix-match routing.

pub(super) mod paths;
mod table;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::ethernet::Ethernet;
use crate::header::ipv4::Ipv4;
use crate::header::{Header, MacAddr};
use crate::mem::BATCH;
use crate::pipeline::PortInfo;
use crate::prelude::*;
use crate::stages::forwarding::{Forwarding, Kind as Fate, Reader};
use crate::stages::parameter::{Origin, Prefix};
use crate::stages::table::{MAX_VALUE, MISS};
use paths::Fate as End;
use table::Routes;

/// Chooses egress port and next hop by the longest prefix of the destination address.
///
/// Several entries for one prefix are equal-cost paths: a flow keeps to one of them, and when a path is added or taken
/// out only the flows move that must. Every host that has the same paths chooses alike. `weight` gives a path a larger
/// share.
///
/// A file of routes has one a line; what follows `#` is a comment:
///
/// ```text
/// 10.0.0.0/8   via 192.0.2.1 port wan
/// 10.0.0.0/8   via 192.0.2.2 port wan weight 2
/// 10.1.0.0/16  port lan
/// 10.2.0.0/16  drop
/// ```
///
/// Packets for which there is no route leave by `no_route`, those for the `addresses` of the ports, and for all hosts of their
/// networks, by `local`, where no route for that very address says otherwise. What is neither IPv4 nor IPv6 is dropped as `unsupported`.
///
/// A packet whose source cannot be is not sent on (RFC 1812, section 5.3.7; RFC 4291, section 2.5), nor is a frame to
/// another station, to a group or to all stations (RFC 1812, section 5.3.4): where a port has `addresses` or is an interface
/// of the kernel. Other ports, such as those of captures, take frames to every station.
///
/// A port is one network. A frame of a VLAN is of another, and is dropped as `tagged`, or leaves by `local` with the kernel's
/// routes: put `vlan` in front, which takes the tag off, where it is to be routed all the same.
///
/// With `source = "kernel"` the routes are those of the kernel, and follow it: the main table, or that of the VRF that
/// the interface of the port belongs to which a packet came in by. Packets for this host leave by `local`, as do those
/// for groups and all stations, and those that the kernel routes by an interface that is no port. What the kernel's
/// routes refuse leaves by `unreachable` and `prohibited`. Frames to groups and to all stations leave by `local`, those to
/// other stations are dropped.
///
/// ```toml
/// [[pipeline.stage]]
/// name  = "routes"
/// use   = "route"
/// file  = "routes.txt"
/// table = [
///     { prefix = "0.0.0.0/0", via = "192.0.2.1", port = "wan" },
///     { prefix = "10.0.0.0/8", port = "lan" },
///     { prefix = "10.66.0.0/16", drop = true },
///     { prefix = "2001:db8::/32", via = "2001:db8::1", port = "wan", weight = 3 },
///     { prefix = "2001:db8::/32", via = "2001:db8::2", port = "wan" },
/// ]
///
/// [[pipeline.stage]]
/// name    = "follow"
/// use     = "route"
/// source  = "kernel"
/// outputs = { local = "punt" }
///
/// [[pipeline.stage]]
/// name = "punt"
/// use  = "drop"
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Routes, in any order.
    #[serde(default)]
    table: Vec<Entry>,
    /// A file with more of them, relative to the config: a regular file of 1 GiB at most.
    file: Option<PathBuf>,
    /// Where the routes come from: `config` or `kernel`.
    #[serde(default)]
    source: Origin,
    #[serde(skip)]
    #[schemars(skip)]
    reader: Option<Reader>,
    /// Whether it tells the numbers that all workers share.
    #[serde(skip)]
    #[schemars(skip)]
    tells: bool,
    #[serde(skip)]
    #[schemars(skip)]
    routes: Option<Arc<Routes>>,
    /// The station that each port is to be spoken to as, where it is told apart.
    #[serde(skip)]
    #[schemars(skip)]
    stations: Box<[Option<MacAddr>]>,
    #[serde(skip)]
    #[schemars(skip)]
    scratch: Scratch,
}

/// A route.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The destinations, such as `"10.0.0.0/8"`.
    prefix: Prefix,
    /// The address of the gateway. Without one the destinations are neighbours on the port. IPv4 may go by an IPv6
    /// gateway (RFC 8950), not the other way.
    via: Option<IpAddr>,
    /// The port behind which the gateway or the destinations are.
    port: Option<String>,
    /// The share of this path among all of the prefix: 1 to 64.
    #[serde(default = "one")]
    weight: u16,
    /// Drop what goes there, with the reason `blackhole`.
    #[serde(default)]
    drop: bool,
}

/// Whether a prefix has several paths.
fn has_twins(table: &[Entry]) -> bool {
    let mut seen = HashSet::new();
    !table.iter().all(|entry| seen.insert(entry.prefix.0))
}

fn one() -> u16 {
    1
}

const NO_ROUTE: Edge = Edge::new(0);
const LOCAL: Edge = Edge::new(1);
const UNREACHABLE: Edge = Edge::new(2);
const PROHIBITED: Edge = Edge::new(3);
const BLACKHOLE: Reason = Reason::own(0);
const NOT_FOR_US: Reason = Reason::own(1);
const MARTIAN: Reason = Reason::own(2);
const TAGGED: Reason = Reason::own(3);

/// What was found for the packets of a batch, collected so that their lookups can wait for memory together.
struct Scratch {
    /// By packet: its route, or [`NOT_IP`].
    found: [u32; BATCH],
    /// How many packets, from the first on, may be sent on as they mostly may: of them `martian` says nothing.
    usual: usize,
    /// Whether the source is none that may be sent on.
    martian: [bool; BATCH],
    v4: [u32; BATCH],
    v6: [u128; BATCH],
    /// Where packets of both kinds are among each other: the kind of each, and what was found for each kind.
    kinds: [Kind; BATCH],
    found_v4: [u32; BATCH],
    found_v6: [u32; BATCH],
}

/// There is no address to look up. No table has such a value.
const NOT_IP: u32 = MISS - 1;

#[derive(Clone, Copy)]
enum Kind {
    V4,
    V6,
    Other,
}

impl Default for Scratch {
    fn default() -> Self {
        const { assert!(MAX_VALUE < NOT_IP) };
        Self {
            found: [NOT_IP; BATCH],
            usual: 0,
            martian: [false; BATCH],
            v4: [0; BATCH],
            v6: [0; BATCH],
            kinds: [Kind::Other; BATCH],
            found_v4: [MISS; BATCH],
            found_v6: [MISS; BATCH],
        }
    }
}

/// Source and destination of an IPv4 packet.
#[inline]
fn addresses_v4(packet: &Packet<'_>) -> Option<[u32; 2]> {
    let bytes = packet.data().get(usize::from(packet.meta().l3) + 12..)?.first_chunk()?;
    let both = u64::from_be_bytes(*bytes);
    Some([(both >> 32) as u32, both as u32])
}

/// Source and destination of an IPv6 packet.
#[inline]
fn addresses_v6(packet: &Packet<'_>) -> Option<[u128; 2]> {
    let bytes = packet.data().get(usize::from(packet.meta().l3) + 8..)?;
    let (source, rest) = bytes.split_first_chunk()?;
    Some([u128::from_be_bytes(*source), u128::from_be_bytes(*rest.first_chunk()?)])
}

/// Whether a source is none that may be sent on (RFC 1812, section 5.3.7): of "this network", the host itself, a group or
/// what is reserved.
#[inline]
fn is_martian_v4(source: u32) -> bool {
    let first = (source >> 24) as u8;
    first == 127 || first.wrapping_sub(1) >= 223
}

/// The same (RFC 4291, section 2.5): unspecified, the host itself, of one link or a group.
#[inline]
fn is_martian_v6(source: u128) -> bool {
    source <= 1 || source >> 118 == 0xfe80 >> 6 || source >> 120 == 0xff
}

impl Scratch {
    /// What was found for the packets from an index on, and whether they are martians.
    #[inline]
    fn from(&self, index: usize) -> impl Iterator<Item = (u32, bool)> {
        let all = self.found.iter().zip(&self.martian).enumerate().skip(index);
        all.map(|(index, (found, martian))| (*found, *martian && index >= self.usual))
    }

    /// Has `send` send on packets that may be as they mostly may, up to one that it cannot. Gives how many.
    #[inline]
    fn send(&self, batch: &mut Batch, send: impl FnMut((Head<'_, 0>, &u32)) -> Option<()>) -> usize {
        let (all, heads) = (self.usual == batch.len(), batch.heads_keeping_plain().zip(&self.found));
        // Mostly all: the loop over all has one end less to look for.
        if all { heads.map_while(send).count() } else { heads.take(self.usual).map_while(send).count() }
    }

    /// Collects the destinations and looks them up: first of packets that may be sent on as they mostly may, up to one that may
    /// not; then of those from there on, whatever they are.
    #[inline]
    fn look_up(
        &mut self,
        batch: &mut Batch,
        own: Option<MacAddr>,
        look_up_v4: impl Fn(&[u32], &mut [u32]),
        look_up_v6: impl Fn(&[u128], &mut [u32]),
    ) {
        let n = batch.len().min(BATCH);
        let usual = self.collect_usual(batch, own).min(n);
        self.usual = usual;
        look_up_v4(&self.v4[..usual], &mut self.found[..usual]);
        if usual == n {
            return;
        }
        let (mut v4, mut v6) = (0, 0);
        for ((packet, kind), martian) in batch.iter_mut_from(usual).zip(&mut self.kinds).zip(&mut self.martian[usual..])
        {
            let flags = packet.meta().flags;
            let of_v4 = if flags.contains(MetaFlags::IPV4) { addresses_v4(&packet) } else { None };
            let of_v6 = if flags.contains(MetaFlags::IPV6) { addresses_v6(&packet) } else { None };
            *kind = match (of_v4, of_v6) {
                (Some([source, address]), _) => {
                    *martian = is_martian_v4(source);
                    self.v4[v4 % BATCH] = address;
                    v4 += 1;
                    Kind::V4
                }
                (None, Some([source, address])) => {
                    *martian = is_martian_v6(source);
                    self.v6[v6 % BATCH] = address;
                    v6 += 1;
                    Kind::V6
                }
                (None, None) => Kind::Other,
            };
        }
        // At most a batch of each: the cut only says so.
        let (v4, v6) = (v4.min(BATCH), v6.min(BATCH));
        look_up_v4(&self.v4[..v4], &mut self.found_v4[..v4]);
        look_up_v6(&self.v6[..v6], &mut self.found_v6[..v6]);
        let (mut v4, mut v6) = (self.found_v4.iter(), self.found_v6.iter());
        for (found, kind) in self.found[usual..n].iter_mut().zip(&self.kinds) {
            let of_kind = match kind {
                Kind::V4 => v4.next(),
                Kind::V6 => v6.next(),
                Kind::Other => None,
            };
            *found = of_kind.copied().unwrap_or(NOT_IP);
        }
    }

    /// Collects the destinations of packets that may be sent on as they mostly may, up to the first that may not: of IPv4 without a
    /// tag, to this station if that is told apart, and of no martian. Gives how many.
    #[inline]
    fn collect_usual(&mut self, batch: &mut Batch, own: Option<MacAddr>) -> usize {
        let plain = batch.is_plain();
        let heads = batch.located_heads::<{ Ethernet::LEN + Ipv4::LEN }>();
        let collect = |(head, address): (Head<'_, _>, &mut u32)| {
            let is_plain = || {
                head.meta.flags.intersection(MetaFlags::IPV4 | MetaFlags::VLAN) == MetaFlags::IPV4
                    && usize::from(head.meta.l3) == Ethernet::LEN
            };
            let both = u64::from_be_bytes(*head.bytes.last_chunk()?);
            *address = both as u32;
            let is_usual = (plain || is_plain())
                && !is_martian_v4((both >> 32) as u32)
                && own.is_none_or(|own| head.bytes.first_chunk() == Some(&own.0));
            is_usual.then_some(())
        };
        heads.zip(&mut self.v4).map_while(collect).count()
    }
}

impl Stage for Route {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Some(routes) = &self.routes else { return self.follow(batch) };
        // All packets of a batch came in by one port.
        let station = self.stations.get(usize::from(batch.ingress())).copied().flatten();
        self.scratch.look_up(
            batch,
            station,
            |v4, out| routes.v4.lookup_batch(v4, out),
            |v6, out| routes.v6.lookup_batch(v6, out),
        );
        // By value: that metadata are written does not change them, which the compiler would not know of what is behind `routes`.
        let (groups, paths) = (routes.paths.groups(), &routes.paths);
        let send = |(head, found): (Head<'_, 0>, &u32)| {
            let path = match groups.get(*found as usize)?.sends() {
                Some(path) => *path,
                None => paths.choose(*found, head.meta.flow_hash).filter(|path| path.fate == End::Forward)?,
            };
            (head.meta.egress, head.meta.next_hop) = (path.egress, path.next_hop);
            Some(())
        };
        let sent = self.scratch.send(batch, send);
        for (mut packet, (found, martian)) in batch.iter_mut_from(sent).zip(self.scratch.from(sent)) {
            if found == NOT_IP {
                packet.drop(Reason::Unsupported);
                continue;
            }
            if station.is_some_and(|own| station_of(&packet) != own) {
                packet.drop(NOT_FOR_US);
                continue;
            }
            if is_tagged(&packet) {
                packet.drop(TAGGED);
                continue;
            }
            match routes.paths.choose(found, packet.meta().flow_hash) {
                Some(path) => match path.fate {
                    End::Forward if martian => packet.drop(MARTIAN),
                    End::Forward => {
                        let meta = packet.meta_mut();
                        (meta.egress, meta.next_hop) = (path.egress, path.next_hop);
                    }
                    End::Drop => packet.drop(BLACKHOLE),
                    End::Local => packet.steer(LOCAL),
                },
                None => packet.steer(NO_ROUTE),
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[
            ("no_route", "no prefix covers the destination"),
            ("local", "for this host, says the kernel or an address of a port"),
            ("unreachable", "the kernel's route says that it cannot be reached"),
            ("prohibited", "the kernel's route says that it is forbidden"),
        ]
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[
            ("blackhole", "the route says drop"),
            ("not_for_us", "the frame is for another station, or with routes of the config for several"),
            ("martian", "the source is no address that may be sent on"),
            ("tagged", "the frame is of a VLAN; with routes of the config"),
        ]
    }

    fn needs(&self) -> Facts {
        let splits = match &self.routes {
            Some(routes) => routes.paths.split(),
            // Not prepared: what there may be.
            None => self.source == Origin::Kernel || self.file.is_some() || has_twins(&self.table),
        };
        if splits { Facts::HEADERS | Facts::FLOW_HASH } else { Facts::HEADERS }
    }

    fn sets(&self) -> Facts {
        Facts::EGRESS | Facts::NEXT_HOP
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.source == Origin::Kernel {
            if !self.table.is_empty() || self.file.is_some() {
                let problem = Problem::at("source", "the kernel's routes alone, or those of the config");
                return Err(problem.help("take table and file out, or source"));
            }
            if !setup.is_offline() && setup.ports().iter().all(|port| port.interface.is_none()) {
                let problem = Problem::at("source", "no port is an interface of the kernel");
                return Err(problem.help("set interface = \"eth1\" in a [[port]]"));
            }
            self.reader = Some(Forwarding::of(setup).join());
            self.tells = setup.worker().0 == 0;
            return Ok(());
        }
        let (table, file) = (std::mem::take(&mut self.table), self.file.as_deref());
        let speaks = |port: &PortInfo| port.interface.is_some() || !port.addresses.is_empty();
        self.stations = setup.ports().iter().map(|port| speaks(port).then_some(MacAddr(port.mac))).collect();
        self.routes = Some(setup.shared(|setup| Routes::load(&table, file, setup))?);
        Ok(())
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(reader) = &self.reader {
            reader.pass();
        }
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        if let Some(reader) = self.reader.as_ref().filter(|_| self.tells) {
            reader.counters(report);
        }
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        if self.reader.is_some() {
            return Some("the kernel's routes are followed in a run alone".to_owned());
        }
        let routes = self.routes.as_ref()?;
        let flags = packet.meta().flags;
        let destination: IpAddr = if flags.contains(MetaFlags::IPV4) {
            IpAddr::V4(addresses_v4(packet)?[1].into())
        } else if flags.contains(MetaFlags::IPV6) {
            IpAddr::V6(addresses_v6(packet)?[1].into())
        } else {
            return None;
        };
        Some(routes.explain(destination, packet.meta().flow_hash))
    }
}

impl Route {
    /// Looks up in the tables that follow the kernel.
    fn follow(&mut self, batch: &mut Batch) {
        let Some(reader) = &self.reader else { return };
        // All packets of a batch came in by one port.
        let ingress = batch.ingress();
        let Some(own) = reader.mac(ingress) else { return };
        match reader.routes(ingress) {
            Some((v4, v6)) => self.scratch.look_up(
                batch,
                Some(own),
                |addresses, found| v4.lookup_batch(addresses, found),
                |addresses, found| v6.lookup_batch(addresses, found),
            ),
            None => self.scratch.look_up(batch, Some(own), |_, found| found.fill(MISS), |_, found| found.fill(MISS)),
        }
        let send = |(head, found): (Head<'_, 0>, &u32)| {
            let path = reader.path(*found, head.meta.flow_hash).filter(|path| path.kind == Fate::Forward)?;
            (head.meta.egress, head.meta.next_hop) = (path.egress, path.next_hop);
            Some(())
        };
        let sent = self.scratch.send(batch, send);
        for (mut packet, (found, martian)) in batch.iter_mut_from(sent).zip(self.scratch.from(sent)) {
            if found == NOT_IP {
                packet.drop(Reason::Unsupported);
                continue;
            }
            let station = station_of(&packet);
            if station != own {
                // To a group of stations (RFC 1812, section 5.3.4): for this host perhaps, but not to be sent on.
                if station.is_multicast() {
                    packet.steer(LOCAL)
                } else {
                    packet.drop(NOT_FOR_US)
                }
                continue;
            }
            // It came by another interface, on top of the port.
            if is_tagged(&packet) {
                packet.steer(LOCAL);
                continue;
            }
            let path = reader.path(found, packet.meta().flow_hash);
            match path.map(|path| path.kind) {
                Some(Fate::Forward) if martian => packet.drop(MARTIAN),
                Some(Fate::Forward) => {
                    let meta = packet.meta_mut();
                    (meta.egress, meta.next_hop) = path.map_or((0, 0), |path| (path.egress, path.next_hop));
                }
                Some(Fate::Local) => packet.steer(LOCAL),
                Some(Fate::Blackhole) => packet.drop(BLACKHOLE),
                Some(Fate::Unreachable) => packet.steer(UNREACHABLE),
                Some(Fate::Prohibit) => packet.steer(PROHIBITED),
                Some(Fate::Throw) | None => packet.steer(NO_ROUTE),
            }
        }
    }
}

/// Whether a frame is of a VLAN. A tag that says a priority alone is none (IEEE 802.1Q, section 9.6).
#[inline]
fn is_tagged(packet: &Packet<'_>) -> bool {
    let Meta { flags, vlan, .. } = packet.meta();
    flags.contains(MetaFlags::VLAN) && (vlan & 0xfff != 0 || flags.contains(MetaFlags::QINQ))
}

/// The station that a frame is for.
#[inline]
fn station_of(packet: &Packet<'_>) -> MacAddr {
    packet.data().first_chunk().map_or(MacAddr::ZERO, |mac| MacAddr(*mac))
}

#[cfg(test)]
mod tests;
