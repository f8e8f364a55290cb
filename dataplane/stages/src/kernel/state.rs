//! The known state of the kernel, and the code that writes this state to the tables of the stages.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::messages::{self, KernelAddress, KernelLink, KernelNeighbor, KernelTarget, Update};
use super::rib::{LOCAL, MAIN, Rib};
use super::socket::{DumpStep, Message, Requests};
use crate::forwarding::{
    Forwarding, ForwardingWriter, MAX_TABLES, Refused, ReportedEvent, ResolutionState, RouteHop, RouteKind,
    RouteTarget, TableCount,
};
use crate::parameter::MEMORY_HELP;
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{NextHop, PortInfo};
use dataplane_tables::TableError;

/// The maximum number of neighbour requests that are handled at a time.
const MAX_REQUESTS_AT_ONCE: usize = 32;
/// The number of routes that a resync processes before each call of `serve_neighbors`.
const ROUTES_PER_PART: usize = 256;

/// The state of the thread that mirrors the kernel's routes and neighbours.
pub(super) struct MirrorState {
    tables: Arc<Forwarding>,
    writer: Box<ForwardingWriter>,
    ports: Vec<PortInfo>,
    links: HashMap<u32, KernelLink>,
    /// Port numbers by the index of their interface.
    numbers: HashMap<u32, u8>,
    /// The port numbers at the last time that all routes were written.
    written_numbers: HashMap<u32, u8>,
    /// The prefixes of the local table that cover more than one address ([`Rib::wide`]), at the time when all routes
    /// were last written.
    written_wide: Vec<IpNet>,
    /// For each table of [`Forwarding`], the number that the kernel uses for the table.
    kernel_tables: Vec<u32>,
    rib: Rib,
    addresses: Vec<KernelAddress>,
    /// Whether a resync is needed, because the kernel has possibly not reported all changes.
    resync_needed: bool,
    /// Two counts at the last refusal of a neighbour: the known neighbours, and the slots freed so far. The tables can
    /// refuse a neighbour before they are full, because an entry must lie near the slot that its hash selects.
    at_refusal: Option<(usize, u64)>,
    /// Prefixes whose route the tables refused.
    refused: HashSet<(usize, IpNet)>,
    /// Whether workers may be running.
    workers_running: bool,
    warned: HashSet<&'static str>,
}

impl MirrorState {
    /// Creates the state with an empty main table.
    ///
    /// # Errors
    /// There is not enough memory for the main table.
    pub(super) fn new(
        tables: Arc<Forwarding>,
        mut writer: Box<ForwardingWriter>,
        ports: &[PortInfo],
    ) -> Result<Self, TableError> {
        writer.open(&tables, 0)?;
        Ok(Self {
            tables,
            writer,
            ports: ports.to_vec(),
            links: HashMap::new(),
            numbers: HashMap::new(),
            written_numbers: HashMap::new(),
            written_wide: Vec::new(),
            kernel_tables: vec![MAIN],
            rib: Rib::default(),
            addresses: Vec::new(),
            resync_needed: false,
            at_refusal: None,
            refused: HashSet::new(),
            workers_running: false,
            warned: HashSet::new(),
        })
    }

    pub(super) fn tables(&self) -> &Forwarding {
        &self.tables
    }

    /// Returns whether a resync is needed, and clears `resync_needed`.
    pub(super) fn take_resync_needed(&mut self) -> bool {
        std::mem::take(&mut self.resync_needed)
    }

    /// Logs the first error of the sockets for neighbours.
    pub(super) fn warn_about_neighbors(&mut self, error: &io::Error) {
        self.warn("neighbor-events", format!("cannot read neighbours: {error}; the program tries again every second"));
    }

    /// Returns `true` once if neighbours were refused and the tables may have room now. The caller must then read the
    /// neighbours again.
    pub(super) fn take_neighbors_to_retry(&mut self) -> bool {
        let (known, freed) = (self.writer.neighbors_known(), self.writer.neighbor_slots_freed());
        self.at_refusal.take_if(|then| known < then.0 || freed > then.1).is_some()
    }

    /// Counts a refused neighbour, and logs the first refusal of each kind.
    fn refuse_neighbor(&mut self, hop: NextHop, refused: Refused) {
        self.tables.add(TableCount::Refused, 1);
        let (what, retry) = match refused {
            Refused::Full => ("neighbors", ""),
            Refused::Retired => ("retired", "; the program tries again in a few seconds"),
        };
        self.warn(what, format!("cannot add the neighbour {}: {refused}{retry}", hop.address));
    }

    pub(super) fn publish(&mut self) {
        match self.workers_running {
            true => self.writer.publish(&self.tables),
            false => self.writer.publish_without_readers(&self.tables),
        }
    }

    /// Records that workers may run from now on.
    pub(super) fn set_workers_running(&mut self) {
        self.workers_running = true;
    }

    /// Lets workers request unresolved neighbours again.
    pub(super) fn retry_unresolved(&self) {
        self.writer.allow_requests_again();
    }

    /// Ends the replay of the events that were queued during the last resync ([`Rib::start_replay`]). All later events
    /// are newer than the resync.
    pub(super) fn end_replay(&mut self) {
        self.rib.end_replay();
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, message: Message) {
        let flags = message.flags;
        let Some(update) = messages::read(message.content) else { return };
        match update {
            Update::Link(link) => {
                if self.links.get(&link.index) != Some(&link) {
                    let is_relevant = self.is_relevant(&link);
                    let up = link.up;
                    let changes_state = self.links.insert(link.index, link).is_some_and(|known| known.up != up);
                    if is_relevant {
                        self.update_ports();
                    }
                    // The kernel does not report the IPv4 routes that disappear with an interface, or with its carrier.
                    self.resync_needed |= is_relevant || changes_state;
                }
            }
            Update::LinkRemoved(index) => {
                if let Some(link) = self.links.remove(&index)
                    && self.is_relevant(&link)
                {
                    self.update_ports();
                    self.resync_needed = true;
                }
            }
            Update::Address(address) => {
                self.addresses.retain(|known| (known.index, known.address) != (address.index, address.address));
                self.addresses.push(address);
                self.update_addresses();
            }
            Update::AddressRemoved(address) => {
                self.addresses.retain(|known| (known.index, known.address) != (address.index, address.address));
                self.update_addresses();
                // The kernel does not report removed routes that used the address as their source.
                self.resync_needed = true;
            }
            // The kernel does not report that it removes the IPv4 routes of the object. Nor does it report the routes whose
            // group loses the object.
            Update::NexthopRemoved => self.resync_needed = true,
            Update::Neighbor(neighbor) => self.set_neighbor(&neighbor),
            Update::NeighborRemoved(neighbor) => {
                if let Some(hop) = self.hop(&neighbor) {
                    self.writer.unset_neighbor(hop);
                    self.tables.add(TableCount::Changes, 1);
                }
            }
            Update::Route(route) => {
                let key = (route.table, route.prefix);
                if self.table(key.0).is_some() {
                    let wide = self.rib.wide().len();
                    self.rib.add(route, flags);
                    self.route_changed(key, wide);
                }
            }
            Update::RouteRemoved(route) => {
                let wide = self.rib.wide().len();
                self.rib.remove(&route);
                self.route_changed((route.table, route.prefix), wide);
            }
        }
    }

    fn route_changed(&mut self, (table, prefix): (u32, IpNet), wide: usize) {
        // If a prefix of the local table covers more than one address (`Rib::wide`), longer routes of the main table
        // inside this prefix are not used. If such a prefix is added or removed, these routes must be removed or
        // written again.
        self.resync_needed |= self.rib.wide().len() != wide || self.rib.take_in_doubt();
        if let Some(table) = self.table(table) {
            self.write(table, prefix);
        }
    }

    /// Returns whether a link is the interface of a port, or a VRF.
    fn is_relevant(&self, link: &KernelLink) -> bool {
        let is_port = |name: &str| self.ports.iter().any(|port| port.interface.as_deref() == Some(name));
        let was = self.links.get(&link.index).is_some_and(|known| is_port(&known.name));
        is_port(&link.name) || was || link.table.is_some()
    }

    /// Returns the number that [`Forwarding`] uses for a table of the kernel.
    fn table(&self, table: u32) -> Option<usize> {
        let table = if table == LOCAL { MAIN } else { table };
        self.kernel_tables.iter().position(|known| *known == table)
    }

    /// Finds the interface of each port, and updates MAC address, MTU and table of the port.
    fn update_ports(&mut self) {
        self.numbers.clear();
        for number in 0..self.ports.len() {
            let port = &self.ports[number];
            let Some(name) = &port.interface else { continue };
            let Some(link) = self.links.values().find(|link| link.name == *name) else { continue };
            let number = number as u8;
            self.numbers.insert(link.index, number);
            let mtu = link.mtu.min(u32::from(port.mtu));
            self.tables.set_link(number, link.mac.unwrap_or(MacAddr(port.mac)), mtu);
            let vrf = link.master.and_then(|master| self.links.get(&master)?.table);
            let table = match vrf {
                None => 0,
                Some(table) => self.table(table).unwrap_or_else(|| self.open(table)),
            };
            self.tables.set_table(number, table);
        }
    }

    /// Starts to mirror a table.
    fn open(&mut self, table: u32) -> usize {
        let number = self.kernel_tables.len();
        let reason = match self.writer.open(&self.tables, number) {
            Ok(true) => {
                self.kernel_tables.push(table);
                self.resync_needed = true;
                return number;
            }
            Ok(false) => format!("at most {MAX_TABLES} tables are possible"),
            Err(error) => format!("{error}; help: {MEMORY_HELP}"),
        };
        self.tables.add(TableCount::Refused, 1);
        self.warn("tables", format!("table {table} is not mirrored: {reason}"));
        number
    }

    fn warn(&mut self, what: &'static str, message: String) {
        if self.warned.insert(what) {
            tracing::warn!("kernel: {message}");
        }
    }

    /// Selects the source addresses of each port.
    fn update_addresses(&mut self) {
        for (index, number) in &self.numbers {
            let (mut v4, mut v6, mut v6_of_link) = (None, None, None);
            for address in self.addresses.iter().filter(|address| address.index == *index) {
                match address.address {
                    IpAddr::V4(address4) if !address.secondary => v4 = v4.or(Some(address4)),
                    IpAddr::V6(address6) if address.global => v6 = v6.or(Some(address6)),
                    IpAddr::V6(address6) => v6_of_link = v6_of_link.or(Some(address6)),
                    IpAddr::V4(_) => {}
                }
            }
            let v6 = v6.or(v6_of_link).unwrap_or(Ipv6Addr::UNSPECIFIED);
            self.tables.set_addresses(*number, v4.unwrap_or(Ipv4Addr::UNSPECIFIED), v6);
        }
    }

    fn hop(&self, neighbor: &KernelNeighbor) -> Option<NextHop> {
        let port = *self.numbers.get(&neighbor.index)?;
        Some(NextHop { address: neighbor.address, port })
    }

    fn set_neighbor(&mut self, neighbor: &KernelNeighbor) {
        let Some(hop) = self.hop(neighbor) else { return };
        let event = if neighbor.stale { ReportedEvent::NextUse } else { ReportedEvent::None };
        let known = self.tables.neighbor_state(hop);
        if let (Some((ResolutionState::At(old), _)), ResolutionState::At(new)) = (known, neighbor.resolved)
            && old != new
        {
            self.warn(
                "moved",
                format!(
                    "the MAC address of the neighbour {} changed from {old} to {new}; the kernel accepts such changes \
                     from any host of the link, so a forged ARP message can interrupt traffic (only the first change is \
                     logged); help: add a permanent entry with `ip neigh replace`, or use source = \"resolve\"",
                    neighbor.address
                ),
            );
        }
        match self.writer.set_neighbor(hop, neighbor.resolved, event) {
            Ok(()) => self.tables.add(TableCount::Changes, 1),
            Err(refused) => {
                self.at_refusal = Some((self.writer.neighbors_known(), self.writer.neighbor_slots_freed()));
                self.refuse_neighbor(hop, refused);
            }
        }
    }

    /// Converts the target of a route. Returns `None` if the route has no usable next hop.
    fn target(&self, target: &KernelTarget) -> Option<RouteTarget> {
        let hops = match target {
            KernelTarget::Special(kind) => return Some(RouteTarget::Special(*kind)),
            // If any next hop adds an encapsulation, the host forwards all packets of the route.
            KernelTarget::Hops(hops) if hops.iter().any(|hop| hop.encapsulated) => {
                return Some(RouteTarget::Special(RouteKind::Local));
            }
            KernelTarget::Hops(hops) => hops,
        };
        let ours = hops.iter().filter_map(|hop| {
            let port = *self.numbers.get(&hop.index)?;
            Some(RouteHop { port, via: hop.via, weight: hop.weight })
        });
        let ours: Vec<RouteHop> = ours.collect();
        match (hops.is_empty(), ours.is_empty()) {
            (true, _) => None,
            // The route leads to an interface that is not a port of this program, so the host forwards the packet.
            (_, true) => Some(RouteTarget::Special(RouteKind::Local)),
            _ => Some(RouteTarget::Paths(ours)),
        }
    }

    /// Writes the best route of a prefix to the tables.
    fn write(&mut self, table: usize, prefix: IpNet) {
        let target = self.rib.best(self.kernel_tables[table], prefix).and_then(|target| self.target(target));
        self.tables.add(TableCount::Changes, 1);
        self.refused.remove(&(table, prefix));
        match target {
            Some(target) => {
                let mut written = self.writer.set_route(table, prefix, &target);
                if written.is_err() {
                    // Publishing frees retired memory that no worker uses any more. Publish, and try once more.
                    self.publish();
                    written = self.writer.set_route(table, prefix, &target);
                }
                if let Err(refused) = written {
                    self.refused.insert((table, prefix));
                    self.tables.add(TableCount::Refused, 1);
                    self.warn(
                        "routes",
                        format!("cannot set the route to {prefix}: {refused}; an older route, if any, stays in use"),
                    );
                }
            }
            None => {
                self.writer.remove_route(table, prefix);
            }
        }
        // Publish regularly during a long series of changes, so that retired memory can be reused.
        if self.tables.count(TableCount::Changes).is_multiple_of(1024) {
            self.publish();
        }
    }

    /// Reads the whole state from the kernel, and writes the differences. A resync of many routes takes long, so the
    /// function calls `serve_neighbors` after each part of the routes.
    pub(super) fn resync(
        &mut self,
        requests: &mut Requests,
        serve_neighbors: &mut dyn FnMut(&mut Self),
    ) -> io::Result<()> {
        // Read the links first, because links name the VRF tables, which must be open when the routes are read. The
        // kernel may report a change, such as a removed route, before the kernel has finished the change. The kernel
        // holds its lock for network configuration (RTNL) until then. Reading the links also takes this lock. All
        // reported changes are therefore finished before the routes are read.
        let links = dump(requests, RouteNetlinkMessage::GetLink(LinkMessage::default()), |update| match update {
            Update::Link(link) => Some(link),
            _ => None,
        })?;
        self.links = links.into_iter().map(|link| (link.index, link)).collect();
        self.update_ports();
        self.resync_needed = false;
        self.read_neighbors(requests)?;
        let what = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.addresses = dump(requests, what, |update| match update {
            Update::Address(address) => Some(address),
            _ => None,
        })?;
        self.update_addresses();
        let other_ports = self.written_numbers != self.numbers;
        self.read_routes(requests, other_ports, serve_neighbors)?;
        self.written_numbers.clone_from(&self.numbers);
        self.publish();
        Ok(())
    }

    fn read_routes(
        &mut self,
        requests: &mut Requests,
        other_ports: bool,
        serve_neighbors: &mut dyn FnMut(&mut Self),
    ) -> io::Result<()> {
        let mut rib = Rib::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut what = RouteMessage::default();
            what.header.address_family = family;
            requests.dump(&RouteNetlinkMessage::GetRoute(what), |step| match step {
                DumpStep::Entry(message) => {
                    if let Some(Update::Route(route)) = messages::read(message.content)
                        && self.table(route.table).is_some()
                    {
                        // Among routes of equal metric, the first route takes precedence, and the other routes are
                        // added after it.
                        rib.add(route, netlink_packet_core::NLM_F_APPEND);
                    }
                }
                DumpStep::Pause => serve_neighbors(self),
                // The routes that were already read stay in `rib`. Adding a known route again has no effect.
                DumpStep::Restart => {}
            })?;
        }
        // Compare with `written_wide` and not with `self.rib.wide()`, which an event may have changed since the routes
        // were written.
        let all = other_ports || rib.wide() != self.written_wide;
        self.written_wide = rib.wide().to_vec();
        rib.start_replay();
        let mut handled = 0usize;
        let mut end_part = |state: &mut Self| {
            handled += 1;
            if handled.is_multiple_of(ROUTES_PER_PART) {
                serve_neighbors(state);
            }
        };
        let old = std::mem::take(&mut self.rib);
        let mut changed = std::mem::take(&mut self.refused);
        for (table, prefix) in old.prefixes().chain(rib.prefixes()) {
            end_part(self);
            let Some(table) = self.table(table) else { continue };
            let number = self.kernel_tables[table];
            if all || old.best(number, prefix) != rib.best(number, prefix) {
                changed.insert((table, prefix));
            }
        }
        self.rib = rib;
        for routes in old.into_routes() {
            drop(routes);
            end_part(self);
        }
        for (table, prefix) in changed {
            self.write(table, prefix);
            end_part(self);
        }
        if self.rib.refused > 0 {
            let refused = std::mem::take(&mut self.rib.refused);
            self.tables.add(TableCount::Refused, refused);
            self.warn("routes", format!("{refused} routes are ignored, because the table is full"));
        }
        Ok(())
    }

    pub(super) fn read_neighbors(&mut self, requests: &mut Requests) -> io::Result<()> {
        let what = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let neighbors = dump(requests, what, |update| match update {
            Update::Neighbor(neighbor) => Some(neighbor),
            _ => None,
        })?;
        let present: HashSet<NextHop> = neighbors.iter().filter_map(|neighbor| self.hop(neighbor)).collect();
        for hop in self.writer.listed_neighbors() {
            if !present.contains(&hop) {
                self.writer.unset_neighbor(hop);
            }
        }
        neighbors.iter().for_each(|neighbor| self.set_neighbor(neighbor));
        Ok(())
    }

    /// Asks the kernel to resolve the neighbours that workers requested.
    pub(super) fn request_neighbors(&mut self, requests: &mut Requests) {
        for _ in 0..MAX_REQUESTS_AT_ONCE {
            let Some(hop) = self.tables.next_request() else { return };
            let index = self.numbers.iter().find(|(_, number)| **number == hop.port).map(|(index, _)| *index);
            let Some(index) = index else { continue };
            // While the interface is down, a request gets no answer, and the kernel repeats the request only after a
            // second. Workers request the neighbour again with the next packet.
            if self.links.get(&index).is_some_and(|link| link.up != (true, true)) {
                continue;
            }
            // The new entry stops workers from requesting the neighbour again before the kernel had time for the
            // resolution.
            if let Err(refused) = self.writer.add_neighbor(hop) {
                self.refuse_neighbor(hop, refused);
                continue;
            }
            self.tables.add(TableCount::Asked, 1);
            let mut message = NeighbourMessage::default();
            let (family, address) = match hop.address {
                IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
                IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
            };
            message.header.family = family;
            message.header.ifindex = index;
            // `NTF_USE` makes the kernel resolve the neighbour as if the host had a packet for the neighbour.
            message.header.flags = NeighbourFlags::Use;
            message.attributes.push(NeighbourAttribute::Destination(address));
            if let Err(error) = requests.execute(RouteNetlinkMessage::NewNeighbour(message)) {
                self.writer.unset_neighbor(hop);
                self.warn("asking", failed_request(hop.address, &error));
            }
        }
    }
}

/// Returns the message about a failed request to resolve a neighbour.
pub(super) fn failed_request(address: IpAddr, error: &io::Error) -> String {
    let hint = if error.kind() == io::ErrorKind::PermissionDenied { " (this needs CAP_NET_ADMIN)" } else { "" };
    format!("cannot ask the kernel to resolve {address}: {error}{hint}")
}

/// Reads all entries of one type.
fn dump<T>(
    requests: &mut Requests,
    what: RouteNetlinkMessage,
    want: impl Fn(Update) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut found = Vec::new();
    requests.dump(&what, |step| match step {
        DumpStep::Entry(message) => found.extend(messages::read(message.content).and_then(&want)),
        DumpStep::Restart => found.clear(),
        DumpStep::Pause => {}
    })?;
    Ok(found)
}
