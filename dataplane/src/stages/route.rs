//! Longest-prefix-match routing.

mod paths;
mod table;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::mem::BATCH;
use crate::prelude::*;
use crate::stages::parameter::Prefix;
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
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Routes, in any order.
    #[serde(default)]
    table: Vec<Entry>,
    /// A file with more of them, relative to the config.
    file: Option<PathBuf>,
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
const BLACKHOLE: Reason = Reason::own(0);

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
    fn look_up(&mut self, routes: &Routes, batch: &mut Batch) {
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
        routes.v4.lookup_batch(&self.v4[..v4], &mut self.found_v4[..v4]);
        routes.v6.lookup_batch(&self.v6[..v6], &mut self.found_v6[..v6]);
    }
}

impl Stage for Route {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Some(routes) = &self.routes else { return };
        self.scratch.look_up(routes, batch);
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
        &[("no_route", "no prefix covers the destination")]
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[("blackhole", "the route says drop")]
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS | Facts::FLOW_HASH
    }

    fn sets(&self) -> Facts {
        Facts::EGRESS | Facts::NEXT_HOP
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (table, file) = (std::mem::take(&mut self.table), self.file.as_deref());
        self.routes = Some(setup.shared(|setup| Routes::load(&table, file, setup))?);
        Ok(())
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
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

#[cfg(test)]
mod tests;
