//! Longest-prefix-match routing.

pub(super) mod paths;
mod rows;
mod table;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::forwarding::{ForwardingReader, RouteKind};
use crate::kernel;
use crate::parameter::Origin;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::ipv4::Ipv4;
use dataplane_core::header::{Header, MacAddr};
use dataplane_core::mem::BATCH;
use dataplane_core::pipeline::PortInfo;
use dataplane_core::prelude::*;
use dataplane_tables::{MAX_VALUE, MISS};
use paths::PathAction;
use rows::{ConfigRoutes, KernelRoutes};
#[cfg(any(test, fuzzing))]
pub(crate) use table::fuzz;
use table::{RouteEntry, SharedRoutes, has_equal_cost_paths};

/// Chooses egress port and next hop by the longest prefix that matches the destination address.
///
/// If several routes have the same prefix, the routes are equal-cost paths. Each flow stays on one path. When a path is
/// removed, only the flows of this path move to other paths. When a path is added, flows move only to the new path. All
/// hosts that run this stage with the same paths choose the same path for a flow. `weight` gives a path a larger share
/// of the flows.
///
/// A route file has one route per line. Text after `#` is a comment:
///
/// ```text
/// 10.0.0.0/8   via 192.0.2.1 port wan
/// 10.0.0.0/8   via 192.0.2.2 port wan weight 2
/// 10.1.0.0/16  port lan
/// 10.2.0.0/16  drop
/// ```
///
/// Packets without a route leave by `no_route`. Packets that are neither IPv4 nor IPv6 are dropped as `unsupported`.
///
/// The stage does not forward packets with an invalid source address, such as a multicast address. If a route would
/// send such a packet to a port, the stage drops the packet as `martian` (RFC 1812, section 5.3.7; RFC 4291, section
/// 2.5).
///
/// With `source = "config"`, packets for the `addresses` of the ports, and for the broadcast addresses of their
/// networks, leave by `local`. If the config has a host route for one of these addresses, packets to this address take
/// the host route instead.
///
/// With `source = "config"`, a port with `addresses` or with a kernel interface accepts only frames to the MAC address
/// of the port. All other frames, including multicast and broadcast frames, are dropped as `not_for_us` (RFC 1812,
/// section 5.3.4). A port without `addresses` and without a kernel interface, such as a port that reads a capture file,
/// accepts frames to every MAC address. The stage also drops frames with a VLAN tag as `tagged`, because tagged frames
/// belong to another network than the port. To route the frames of a VLAN, remove the tag first: put a `vlan` stage
/// with `op = "pop"` before this stage.
///
/// With `source = "kernel"`, the stage uses the kernel's routes and follows their changes. The stage uses the main
/// table, or the table of the VRF that the interface of the ingress port belongs to. Packets that the kernel's routes
/// reject leave by `unreachable` or `prohibited`. If a unicast frame has a destination MAC address other than the
/// address of the port, the stage drops the frame as `not_for_us`. With `source = "kernel"`, these IP packets leave by
/// `local`:
/// - packets for this host, and packets to multicast, broadcast and IPv6 link-local addresses;
/// - packets that the kernel routes to an interface without a port;
/// - packets in multicast and broadcast frames;
/// - packets in frames with a VLAN tag.
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
/// outputs = { local = "host" }
///
/// # On `packet` ports, the kernel has its own copy of the packets for this host.
/// [[pipeline.stage]]
/// name = "host"
/// use  = "drop"
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Routes, in any order.
    #[serde(default)]
    table: Vec<RouteEntry>,
    /// A file with more routes. A relative path starts from the folder of the config. The file must be a regular file
    /// of at most 1 GiB.
    file: Option<PathBuf>,
    /// The source of the routes: `config` or `kernel`.
    #[serde(default)]
    source: Origin,
    #[serde(skip)]
    #[schemars(skip)]
    reader: Option<ForwardingReader>,
    /// Whether this worker's stage reports the counters that all workers share.
    #[serde(skip)]
    #[schemars(skip)]
    reports_counters: bool,
    #[serde(skip)]
    #[schemars(skip)]
    routes: Option<Arc<SharedRoutes>>,
    /// For each port, the MAC address that frames must be sent to, or `None` if every MAC address is accepted.
    #[serde(skip)]
    #[schemars(skip)]
    own_macs: Box<[Option<MacAddr>]>,
    /// For `explain` during a run: the names of the ports.
    #[serde(skip)]
    #[schemars(skip)]
    port_names: Vec<String>,
    #[serde(skip)]
    #[schemars(skip)]
    scratch: RouteScratch,
}

const NO_ROUTE: Edge = Edge::new(0);
const LOCAL: Edge = Edge::new(1);
const UNREACHABLE: Edge = Edge::new(2);
const PROHIBITED: Edge = Edge::new(3);
const BLACKHOLE: Reason = Reason::of_stage(0);
const NOT_FOR_US: Reason = Reason::of_stage(1);
const MARTIAN: Reason = Reason::of_stage(2);
const TAGGED: Reason = Reason::of_stage(3);

/// The lookup results of a batch. All lookups are made before any packet is handled, so that their memory accesses
/// overlap.
struct RouteScratch {
    /// The lookup result of each packet, or [`NOT_IP`].
    found: [u32; BATCH],
    /// The number of leading packets on the fast path. `martian` has no values for these packets.
    fast: usize,
    /// For each packet that is not on the fast path: whether the source address is invalid.
    martian: [bool; BATCH],
    v4: [u32; BATCH],
    v6: [u128; BATCH],
    /// For a mixed batch: the address family of each packet, and the lookup results of each family.
    families: [AddressFamily; BATCH],
    found_v4: [u32; BATCH],
    found_v6: [u32; BATCH],
}

/// The value in [`RouteScratch::found`] for a packet that is neither IPv4 nor IPv6. No table contains this value.
const NOT_IP: u32 = MISS - 1;

#[derive(Clone, Copy)]
enum AddressFamily {
    V4,
    V6,
    Other,
}

impl Default for RouteScratch {
    fn default() -> Self {
        const { assert!(MAX_VALUE < NOT_IP) };
        Self {
            found: [NOT_IP; BATCH],
            fast: 0,
            martian: [false; BATCH],
            v4: [0; BATCH],
            v6: [0; BATCH],
            families: [AddressFamily::Other; BATCH],
            found_v4: [MISS; BATCH],
            found_v6: [MISS; BATCH],
        }
    }
}

/// Returns the source and destination address of an IPv4 packet.
#[inline]
fn addresses_v4(packet: &Packet<'_>) -> Option<[u32; 2]> {
    let bytes = packet.data().get(usize::from(packet.meta().l3) + 12..)?.first_chunk()?;
    let both = u64::from_be_bytes(*bytes);
    Some([(both >> 32) as u32, both as u32])
}

/// Returns the source and destination address of an IPv6 packet.
#[inline]
fn addresses_v6(packet: &Packet<'_>) -> Option<[u128; 2]> {
    let bytes = packet.data().get(usize::from(packet.meta().l3) + 8..)?;
    let (source, rest) = bytes.split_first_chunk()?;
    Some([u128::from_be_bytes(*source), u128::from_be_bytes(*rest.first_chunk()?)])
}

/// Returns whether a packet with this source address must not be forwarded (RFC 1812, section 5.3.7). Such an address
/// is "this network", loopback, multicast or reserved.
#[inline]
fn is_martian_v4(source: u32) -> bool {
    let first = (source >> 24) as u8;
    first == 127 || first.wrapping_sub(1) >= 223
}

/// Returns whether a packet with this source address must not be forwarded (RFC 4291, section 2.5). Such an address is
/// unspecified, loopback, link-local or multicast.
#[inline]
fn is_martian_v6(source: u128) -> bool {
    source <= 1 || source >> 118 == 0xfe80 >> 6 || source >> 120 == 0xff
}

impl RouteScratch {
    /// Returns the results for the packet `index` and each later packet: the lookup result, and whether the packet's
    /// source address is invalid.
    #[inline]
    fn results_from(&self, index: usize) -> impl Iterator<Item = (u32, bool)> {
        let all = self.found.iter().zip(&self.martian).enumerate().skip(index);
        all.map(|(index, (found, martian))| (*found, *martian && index >= self.fast))
    }

    /// Calls `send` for each packet on the fast path until `send` returns `None`. Returns the number of packets sent. A
    /// plain packet is untagged IPv4 (see [`Batch::is_plain_ipv4`]). A packet that is plain before `send` must also be
    /// plain after `send`.
    #[inline]
    fn send(&self, batch: &mut Batch, send: impl FnMut((Head<'_, 0>, &u32)) -> Option<()>) -> usize {
        let (all, heads) = (self.fast == batch.len(), batch.heads_keeping_plain_ipv4().zip(&self.found));
        // In most batches, all packets are on the fast path. The loop without `take` then needs one condition fewer.
        if all { heads.map_while(send).count() } else { heads.take(self.fast).map_while(send).count() }
    }

    /// Looks up the destinations in two steps: the destinations of the leading packets on the fast path, then the
    /// destinations of the remaining packets. `own` is the MAC address of the ingress port, or `None` if the port
    /// accepts every MAC address.
    #[inline]
    fn look_up(
        &mut self,
        batch: &mut Batch,
        own: Option<MacAddr>,
        look_up_v4: impl Fn(&[u32], &mut [u32]),
        look_up_v6: impl Fn(&[u128], &mut [u32]),
    ) {
        let n = batch.len().min(BATCH);
        let fast = self.collect_fast(batch, own).min(n);
        self.fast = fast;
        look_up_v4(&self.v4[..fast], &mut self.found[..fast]);
        if fast == n {
            return;
        }
        let (mut v4, mut v6) = (0, 0);
        for ((packet, family), martian) in
            batch.iter_mut_from(fast).zip(&mut self.families).zip(&mut self.martian[fast..])
        {
            let flags = packet.meta().flags;
            let of_v4 = if flags.contains(MetaFlags::IPV4) { addresses_v4(&packet) } else { None };
            let of_v6 = if flags.contains(MetaFlags::IPV6) { addresses_v6(&packet) } else { None };
            *family = match (of_v4, of_v6) {
                (Some([source, address]), _) => {
                    *martian = is_martian_v4(source);
                    self.v4[v4 % BATCH] = address;
                    v4 += 1;
                    AddressFamily::V4
                }
                (None, Some([source, address])) => {
                    *martian = is_martian_v6(source);
                    self.v6[v6 % BATCH] = address;
                    v6 += 1;
                    AddressFamily::V6
                }
                (None, None) => AddressFamily::Other,
            };
        }
        // Each count is at most `BATCH`. With this `min`, the compiler can remove bounds checks.
        let (v4, v6) = (v4.min(BATCH), v6.min(BATCH));
        look_up_v4(&self.v4[..v4], &mut self.found_v4[..v4]);
        look_up_v6(&self.v6[..v6], &mut self.found_v6[..v6]);
        let (mut v4, mut v6) = (self.found_v4.iter(), self.found_v6.iter());
        for (found, family) in self.found[fast..n].iter_mut().zip(&self.families) {
            let of_family = match family {
                AddressFamily::V4 => v4.next(),
                AddressFamily::V6 => v6.next(),
                AddressFamily::Other => None,
            };
            *found = of_family.copied().unwrap_or(NOT_IP);
        }
    }

    /// Collects the destinations of the leading packets that qualify for the fast path, and returns the number of these
    /// packets. A packet qualifies if it is IPv4, has no VLAN tag, and has a valid source address. If `own` is set, the
    /// destination MAC address must also equal `own`.
    #[inline]
    fn collect_fast(&mut self, batch: &mut Batch, own: Option<MacAddr>) -> usize {
        // If the whole batch is plain (untagged IPv4, see `Batch::is_plain_ipv4`), `is_ipv4_without_vlan` is not
        // called.
        let plain = batch.is_plain_ipv4();
        let heads = batch.located_heads::<{ Ethernet::LEN + Ipv4::LEN }>();
        let collect = |(head, address): (Head<'_, _>, &mut u32)| {
            let is_ipv4_without_vlan = || {
                head.meta.flags.intersection(MetaFlags::IPV4 | MetaFlags::VLAN) == MetaFlags::IPV4
                    && usize::from(head.meta.l3) == Ethernet::LEN
            };
            let both = u64::from_be_bytes(*head.bytes.last_chunk()?);
            *address = both as u32;
            let is_fast = (plain || is_ipv4_without_vlan())
                && !is_martian_v4((both >> 32) as u32)
                && own.is_none_or(|own| head.bytes.first_chunk() == Some(&own.0));
            is_fast.then_some(())
        };
        heads.zip(&mut self.v4).map_while(collect).count()
    }
}

impl Stage for Route {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Some(routes) = &self.routes else { return self.process_kernel_routes(batch) };
        // All packets of a batch have the same ingress port.
        let own_mac = self.own_macs.get(usize::from(batch.ingress())).copied().flatten();
        self.scratch.look_up(
            batch,
            own_mac,
            |v4, out| routes.v4.lookup_batch(v4, out),
            |v6, out| routes.v6.lookup_batch(v6, out),
        );
        // These references are local copies, so the compiler knows that writing metadata does not change them.
        let (groups, paths) = (routes.paths.groups(), &routes.paths);
        let send = |(head, found): (Head<'_, 0>, &u32)| {
            let path = match groups.get(*found as usize)?.forwarding_path() {
                Some(path) => *path,
                None => paths.choose(*found, head.meta.flow_hash).filter(|path| path.action == PathAction::Forward)?,
            };
            (head.meta.egress, head.meta.next_hop) = (path.egress, path.next_hop);
            Some(())
        };
        let sent = self.scratch.send(batch, send);
        for (mut packet, (found, martian)) in batch.iter_mut_from(sent).zip(self.scratch.results_from(sent)) {
            if found == NOT_IP {
                packet.drop(Reason::Unsupported);
                continue;
            }
            if own_mac.is_some_and(|own| destination_mac(&packet) != own) {
                packet.drop(NOT_FOR_US);
                continue;
            }
            if is_tagged(&packet) {
                packet.drop(TAGGED);
                continue;
            }
            match routes.paths.choose(found, packet.meta().flow_hash) {
                Some(path) => match path.action {
                    PathAction::Forward if martian => packet.drop(MARTIAN),
                    PathAction::Forward => {
                        let meta = packet.meta_mut();
                        (meta.egress, meta.next_hop) = (path.egress, path.next_hop);
                    }
                    PathAction::Drop => packet.drop(BLACKHOLE),
                    PathAction::Local => packet.steer(LOCAL),
                },
                None => packet.steer(NO_ROUTE),
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        self.reports_counters = setup.worker_number() == 0;
        if self.source == Origin::Kernel {
            if !self.table.is_empty() || self.file.is_some() {
                let problem = Problem::at("source", "routes cannot come from both the kernel and the config");
                return Err(problem.help("remove table and file, or remove source"));
            }
            if !setup.is_offline() && setup.ports().iter().all(|port| port.interface.is_none()) {
                let problem = Problem::at("source", "no port has a kernel interface");
                return Err(problem.help("set interface = \"eth1\" in a [[port]]"));
            }
            let tables = kernel::tables(setup);
            self.reader = Some(tables.register_reader());
            if !setup.is_offline() {
                self.port_names = setup.ports().iter().map(|port| port.name.clone()).collect();
            }
            if self.reports_counters {
                let ports = setup.ports().iter().map(|port| port.name.clone()).collect();
                setup.table("routes", KernelRoutes { tables, ports });
            }
            return Ok(());
        }
        let (table, file) = (std::mem::take(&mut self.table), self.file.as_deref());
        let is_addressed = |port: &PortInfo| port.interface.is_some() || !port.addresses.is_empty();
        self.own_macs = setup.ports().iter().map(|port| is_addressed(port).then_some(MacAddr(port.mac))).collect();
        let routes = setup.shared_by_workers(|setup| SharedRoutes::load(&table, file, setup))?;
        if self.reports_counters {
            let ports = setup.ports().iter().map(|port| port.name.clone()).collect();
            let next_hops = setup.next_hops().all().to_vec();
            setup.table("routes", ConfigRoutes { routes: routes.clone(), ports, next_hops });
        }
        self.routes = Some(routes);
        Ok(())
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(reader) = &self.reader {
            reader.mark_quiescent();
        }
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        // All workers share the tables, so only one worker reports their counters.
        if !self.reports_counters {
            return;
        }
        match (&self.reader, &self.routes) {
            (Some(reader), _) => reader.counters(report),
            (None, Some(routes)) => report.add("routes", routes.listed.len() as u64),
            (None, None) => {}
        }
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let flags = packet.meta().flags;
        let destination: IpAddr = if flags.contains(MetaFlags::IPV4) {
            IpAddr::V4(addresses_v4(packet)?[1].into())
        } else if flags.contains(MetaFlags::IPV6) {
            IpAddr::V6(addresses_v6(packet)?[1].into())
        } else {
            return None;
        };
        match &self.reader {
            Some(reader) => Some(self.explain_kernel_route(reader, destination, packet)),
            None => Some(self.routes.as_ref()?.explain(destination, packet.meta().flow_hash)),
        }
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless()
            .outputs(&[
                ("no_route", "packets whose destination matches no prefix"),
                (
                    "local",
                    "packets for this host, according to the kernel or the addresses of a port. With kernel routes, also packets that only the kernel can handle, such as packets in frames with a VLAN tag",
                ),
                ("unreachable", "packets to a destination that the kernel's route marks as unreachable"),
                ("prohibited", "packets to a destination that the kernel's route prohibits"),
            ])
            .reasons(&[
                ("blackhole", "the route has `drop = true`, or is a blackhole route of the kernel"),
                (
                    "not_for_us",
                    "the frame is for another MAC address. With kernel routes, multicast and broadcast frames are accepted",
                ),
                ("martian", "the source address is invalid, so a router must not forward the packet"),
                ("tagged", "the frame has a VLAN tag (only with routes from the config)"),
            ])
            .drops(&[Reason::Unsupported])
            .gauges(&["routes", "neighbors", "neighbors_max"])
            .tables(const { &[TableInfo::of::<KernelRoutes>("routes")] })
    }

    fn contract(&self) -> Contract {
        let needs_hash = match &self.routes {
            Some(routes) => routes.paths.splits_flows(),
            // The routes are not loaded yet, so return whether they may need the flow hash.
            None => self.source == Origin::Kernel || self.file.is_some() || has_equal_cost_paths(&self.table),
        };
        let needs = if needs_hash { Facts::HEADERS | Facts::FLOW_HASH } else { Facts::HEADERS };
        Contract::new().needs(needs).sets(Facts::EGRESS | Facts::NEXT_HOP)
    }
}

impl Route {
    /// Describes the route of the kernel for a packet.
    fn explain_kernel_route(&self, reader: &ForwardingReader, destination: IpAddr, packet: &Packet<'_>) -> String {
        if self.port_names.is_empty() {
            return "the kernel's routes are only available during a run".to_owned();
        }
        let mut found = [MISS];
        match (reader.routes(packet.ingress()), destination) {
            (Some((v4, _)), IpAddr::V4(address)) => v4.lookup_batch(&[address.into()], &mut found),
            (Some((_, v6)), IpAddr::V6(address)) => v6.lookup_batch(&[address.into()], &mut found),
            (None, _) => {}
        }
        let Some(path) = reader.path(found[0], packet.meta().flow_hash) else {
            return format!("no route to {destination}");
        };
        let via = path.next_hop.checked_sub(1).and_then(|place| reader.shared().next_hop_at(place as usize));
        let via = via.map_or(String::new(), |hop| format!("via {} ", hop.address));
        let port = self.port_names.get(usize::from(path.egress)).map_or("?", String::as_str);
        match path.kind {
            RouteKind::Forward => format!("{via}on {port}"),
            RouteKind::Local => format!("the host handles packets to {destination}"),
            RouteKind::Blackhole => "blackhole".to_owned(),
            RouteKind::Unreachable => "unreachable".to_owned(),
            RouteKind::Prohibit => "prohibit".to_owned(),
            RouteKind::Throw => "throw".to_owned(),
        }
    }

    /// Routes a batch with the tables that mirror the kernel's routes.
    fn process_kernel_routes(&mut self, batch: &mut Batch) {
        let Some(reader) = &self.reader else { return };
        // All packets of a batch have the same ingress port.
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
            let path = reader.path(*found, head.meta.flow_hash).filter(|path| path.kind == RouteKind::Forward)?;
            (head.meta.egress, head.meta.next_hop) = (path.egress, path.next_hop);
            Some(())
        };
        let sent = self.scratch.send(batch, send);
        for (mut packet, (found, martian)) in batch.iter_mut_from(sent).zip(self.scratch.results_from(sent)) {
            if found == NOT_IP {
                packet.drop(Reason::Unsupported);
                continue;
            }
            let destination = destination_mac(&packet);
            if destination != own {
                // Multicast and broadcast frames (RFC 1812, section 5.3.4) may be for this host, but must not be
                // forwarded.
                if destination.is_multicast() {
                    packet.steer(LOCAL)
                } else {
                    packet.drop(NOT_FOR_US)
                }
                continue;
            }
            // For the kernel, the frame belongs to a VLAN interface on top of the port.
            if is_tagged(&packet) {
                packet.steer(LOCAL);
                continue;
            }
            let path = reader.path(found, packet.meta().flow_hash);
            match path.map(|path| path.kind) {
                Some(RouteKind::Forward) if martian => packet.drop(MARTIAN),
                Some(RouteKind::Forward) => {
                    let meta = packet.meta_mut();
                    (meta.egress, meta.next_hop) = path.map_or((0, 0), |path| (path.egress, path.next_hop));
                }
                Some(RouteKind::Local) => packet.steer(LOCAL),
                Some(RouteKind::Blackhole) => packet.drop(BLACKHOLE),
                Some(RouteKind::Unreachable) => packet.steer(UNREACHABLE),
                Some(RouteKind::Prohibit) => packet.steer(PROHIBITED),
                Some(RouteKind::Throw) | None => packet.steer(NO_ROUTE),
            }
        }
    }
}

/// Returns whether a frame belongs to a VLAN. A tag with only a priority does not count (IEEE 802.1Q, section 9.6).
#[inline]
fn is_tagged(packet: &Packet<'_>) -> bool {
    let Meta { flags, vlan, .. } = packet.meta();
    flags.contains(MetaFlags::VLAN) && (vlan & 0xfff != 0 || flags.contains(MetaFlags::QINQ))
}

/// Returns the destination MAC address of a frame.
#[inline]
fn destination_mac(packet: &Packet<'_>) -> MacAddr {
    packet.data().first_chunk().map_or(MacAddr::ZERO, |mac| MacAddr(*mac))
}

#[cfg(test)]
mod tests;
