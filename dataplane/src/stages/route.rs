//! Longest-prefix-match routing.

pub(super) mod paths;
mod table;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::MacAddr;
use crate::mem::BATCH;
use crate::prelude::*;
use crate::stages::forwarding::{Forwarding, Kind as Fate, Reader};
use crate::stages::parameter::{Origin, Prefix};
use crate::stages::table::MISS;
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
/// Packets for which there is no route leave by `no_route`. What is neither IPv4 nor IPv6 is dropped as `unsupported`.
///
/// With `source = "kernel"` the routes are those of the kernel, and follow it: the main table, or that of the VRF that
/// the interface of the port belongs to which a packet came in by. Packets for this host leave by `local`, as do those
/// for groups and all stations, and those that the kernel routes by an interface that is no port. What the kernel's
/// routes refuse leaves by `unreachable` and `prohibited`. Frames for other stations and packets whose source cannot be
/// are dropped.
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
    /// A file with more of them, relative to the config.
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

/// The addresses of a batch, collected so that their lookups can wait for memory together.
struct Scratch {
    kinds: [Kind; BATCH],
    v4: [u32; BATCH],
    v6: [u128; BATCH],
    found_v4: [u32; BATCH],
    found_v6: [u32; BATCH],
}

#[derive(Clone, Copy)]
enum Kind {
    V4,
    V6,
    Other,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            kinds: [Kind::Other; BATCH],
            v4: [0; BATCH],
            v6: [0; BATCH],
            found_v4: [MISS; BATCH],
            found_v6: [MISS; BATCH],
        }
    }
}

/// The destination of an IPv4 packet.
#[inline]
fn destination_v4(packet: &Packet<'_>) -> Option<u32> {
    let bytes = packet.data().get(usize::from(packet.meta().l3) + 16..)?;
    bytes.first_chunk().map(|address| u32::from_be_bytes(*address))
}

/// The destination of an IPv6 packet.
#[inline]
fn destination_v6(packet: &Packet<'_>) -> Option<u128> {
    let bytes = packet.data().get(usize::from(packet.meta().l3) + 24..)?;
    bytes.first_chunk().map(|address| u128::from_be_bytes(*address))
}

impl Scratch {
    /// Collects the destinations and looks them up.
    #[inline]
    fn look_up(
        &mut self,
        batch: &mut Batch,
        look_up_v4: impl FnOnce(&[u32], &mut [u32]),
        look_up_v6: impl FnOnce(&[u128], &mut [u32]),
    ) {
        let (mut v4, mut v6) = (0, 0);
        for (packet, kind) in batch.iter_mut().zip(&mut self.kinds) {
            let flags = packet.meta().flags;
            let address_v4 = if flags.contains(MetaFlags::IPV4) { destination_v4(&packet) } else { None };
            let address_v6 = if flags.contains(MetaFlags::IPV6) { destination_v6(&packet) } else { None };
            *kind = match (address_v4, address_v6) {
                (Some(address), _) => {
                    self.v4[v4 % BATCH] = address;
                    v4 += 1;
                    Kind::V4
                }
                (None, Some(address)) => {
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
    }
}

impl Stage for Route {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Some(routes) = &self.routes else { return self.follow(batch) };
        self.scratch.look_up(
            batch,
            |v4, out| routes.v4.lookup_batch(v4, out),
            |v6, out| routes.v6.lookup_batch(v6, out),
        );
        let (mut v4, mut v6) = (self.scratch.found_v4.iter(), self.scratch.found_v6.iter());
        for (mut packet, kind) in batch.iter_mut().zip(&self.scratch.kinds) {
            let found = match kind {
                Kind::V4 => v4.next(),
                Kind::V6 => v6.next(),
                Kind::Other => None,
            };
            let Some(found) = found else {
                packet.drop(Reason::Unsupported);
                continue;
            };
            match routes.paths.choose(*found, packet.meta().flow_hash) {
                Some(path) if path.drop => packet.drop(BLACKHOLE),
                Some(path) => {
                    let meta = packet.meta_mut();
                    (meta.egress, meta.next_hop) = (path.egress, path.next_hop);
                }
                None => packet.steer(NO_ROUTE),
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[
            ("no_route", "no prefix covers the destination"),
            ("local", "for this host, says the kernel"),
            ("unreachable", "the kernel's route says that it cannot be reached"),
            ("prohibited", "the kernel's route says that it is forbidden"),
        ]
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[
            ("blackhole", "the route says drop"),
            ("not_for_us", "the frame is for another station; with the kernel's routes alone"),
            ("martian", "the source is no address that may be sent on; with the kernel's routes alone"),
        ]
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS | Facts::FLOW_HASH
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
            IpAddr::V4(destination_v4(packet)?.into())
        } else if flags.contains(MetaFlags::IPV6) {
            IpAddr::V6(destination_v6(packet)?.into())
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
        let Some(ingress) = batch.get_mut(0).map(|packet| packet.ingress()) else { return };
        let Some(own) = reader.mac(ingress) else { return };
        match reader.routes(ingress) {
            Some((v4, v6)) => self.scratch.look_up(
                batch,
                |addresses, found| v4.lookup_batch(addresses, found),
                |addresses, found| v6.lookup_batch(addresses, found),
            ),
            None => self.scratch.look_up(batch, |_, found| found.fill(MISS), |_, found| found.fill(MISS)),
        }
        let (mut v4, mut v6) = (self.scratch.found_v4.iter(), self.scratch.found_v6.iter());
        for (mut packet, kind) in batch.iter_mut().zip(&self.scratch.kinds) {
            let found = match kind {
                Kind::V4 => v4.next(),
                Kind::V6 => v6.next(),
                Kind::Other => None,
            };
            let Some(found) = found else {
                packet.drop(Reason::Unsupported);
                continue;
            };
            let station = packet.data().first_chunk().map_or(MacAddr::ZERO, |mac| MacAddr(*mac));
            if station != own {
                // To a group of stations (RFC 1812, section 5.3.4): for this host perhaps, but not to be sent on.
                if station.is_multicast() {
                    packet.steer(LOCAL)
                } else {
                    packet.drop(NOT_FOR_US)
                }
                continue;
            }
            let path = reader.path(*found, packet.meta().flow_hash);
            match path.map(|path| path.kind) {
                Some(Fate::Forward) if is_martian(&packet, *kind) => packet.drop(MARTIAN),
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

/// Whether the source is none that may be sent on (RFC 1812, section 5.3.7; RFC 4291, section 2.5).
#[inline]
fn is_martian(packet: &Packet<'_>, kind: Kind) -> bool {
    let l3 = usize::from(packet.meta().l3);
    let header = packet.data().get(l3..).unwrap_or_default();
    match kind {
        Kind::V4 => header.get(12..).and_then(|bytes| bytes.first_chunk::<4>()).is_none_or(|source| {
            // "This network", the host itself, groups and what is reserved.
            source[0] == 0 || source[0] == 127 || source[0] >= 224
        }),
        Kind::V6 => header.get(8..).and_then(|bytes| bytes.first_chunk::<16>()).is_none_or(|source| {
            let of_link = source[0] == 0xfe && source[1] & 0xc0 == 0x80;
            // The unspecified address and the host itself differ in the last bit.
            let of_host = source[..15] == [0; 15] && source[15] <= 1;
            of_link || of_host || source[0] == 0xff
        }),
        Kind::Other => true,
    }
}

#[cfg(test)]
mod tests;
