//! `neighbor`: resolves next hops to MAC addresses.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

use crate::forwarding::{ConfigNeighbors, ForwardingReader, NeighborTable, ResolutionState};
use crate::kernel;
use crate::parameter::{check_period, table_problem};
use crate::resolution::{Resolution, ResolutionClient, ResolveParameters};
use dataplane_core::header::MacAddr;
use dataplane_core::header::ipv4::Ipv4;
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::mem::{Batch, Edge, HoldState, Meta, MetaFlags, Packet, Reason};
use dataplane_core::pipeline::{
    Contract, CounterReport, Ctx, Facts, Generator, HeldPackets, NextHop, Problem, Setup, Stage, StageInfo,
    StateTransfer, TableInfo,
};
use dataplane_core::units::{Nanos, Period};
use dataplane_tables::TableError;
use dataplane_tables::bucket::TokenBucket;
use dataplane_tables::exact::Exact;

/// Writes the MAC addresses of routed packets: the address of the egress port as source, and the address of the next
/// hop as destination.
///
/// The next hop is the gateway that an earlier stage selected, or the destination of the packet if there is no gateway.
/// With `source = "config"`, the stage uses the neighbours in `table`. Packets whose next hop is not in `table` leave
/// by `unresolved`, unchanged. Packets whose egress port does not exist are dropped.
///
/// With `source = "kernel"`, the stage uses the kernel's neighbours and follows their changes. If a neighbour is
/// unknown, the stage asks the kernel to resolve the neighbour, and holds the packets until the kernel reports the
/// result. Each worker holds up to 16 packets for one neighbour and 256 packets in total, for up to four seconds. If
/// the kernel reports that the neighbour does not answer, the packets to this neighbour leave by `unreachable`. If the
/// kernel reports no result within four seconds, the held packets leave by `unresolved`.
///
/// With `source = "resolve"`, the stage resolves neighbours by ARP (RFC 826) and neighbour solicitations (RFC 4861),
/// without the kernel. The stage sends requests from the addresses that the ports have in the config. The limits for
/// held packets are the same as with `source = "kernel"`. The requests of the stage go to the next stage, like the
/// packets with a known neighbour. The stages `arp` and `icmp` receive the answers of the neighbours, and also answer
/// requests for the addresses of the ports. A neighbour that does not answer three requests in three seconds counts as
/// unreachable for three more seconds.
///
/// ```toml
/// [[pipeline.stage]]
/// use     = "arp"
/// outputs = { reply = "out" }
///
/// [[pipeline.stage]]
/// name    = "ping"
/// use     = "icmp"
/// outputs = { reply = "out" }
///
/// [[pipeline.stage]]
/// name  = "routes"
/// use   = "route"
/// table = [{ prefix = "0.0.0.0/0", via = "192.0.2.2", port = "wan" }]
///
/// [[pipeline.stage]]
/// name    = "known"
/// use     = "neighbor"
/// table   = [
///     { address = "192.0.2.2", mac = "02:00:00:00:00:02", port = "wan" },
///     { address = "2001:db8::2", mac = "02:00:00:00:00:02" },
/// ]
/// outputs = { unresolved = "find" }
/// next    = "out"
///
/// [[pipeline.stage]]
/// name      = "find"
/// use       = "neighbor"
/// source    = "resolve"
/// reachable = "1m"
/// ageing    = "5m"
/// most      = 1024
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Neighbor {
    /// The known neighbours, with `source = "config"`.
    #[serde(default)]
    pub table: Vec<NeighborEntry>,
    /// The source of the neighbours: `config`, `kernel` or `resolve`.
    #[serde(default)]
    pub source: Source,
    /// Only with `source = "resolve"`: the maximum number of neighbours of each port, 16 to 16,384. A missing key means
    /// 4,096. In a config with n ports, each port has at most 16,384 / n neighbours, even if `most` is larger.
    /// Neighbours that have not answered count too. If a port has reached its maximum, the stage makes room for a new
    /// neighbour. One sixteenth of the maximum is reserved for neighbours that have never answered. If this part is
    /// full, the stage removes the oldest of these neighbours. Otherwise, the stage removes the oldest neighbour that
    /// has answered before and is now stale or no longer answers.
    #[serde(rename = "most", default)]
    #[schemars(range(min = 16, max = 16384))]
    pub max_neighbors: Option<u16>,
    /// Only with `source = "resolve"`: the approximate time for which an answer is valid, `"1s"` to `"1h"`. A missing
    /// key means `"30s"`. After this time, the stage still sends packets to the known MAC address. Five seconds after
    /// the first of these packets, the stage asks the neighbour again.
    #[serde(default)]
    pub reachable: Option<Period>,
    /// Only with `source = "resolve"`: the time after which an unused neighbour is removed, `"1s"` to `"1d"`. A missing
    /// key means `"10m"`.
    #[serde(default)]
    pub ageing: Option<Period>,
    #[serde(skip)]
    #[schemars(skip)]
    live: Option<Live>,
    /// The link headers of next hops, indexed by next-hop number minus 1.
    #[serde(skip)]
    #[schemars(skip)]
    hops: Vec<LinkHeader>,
    #[serde(skip)]
    #[schemars(skip)]
    macs: MacTable,
    /// MAC addresses of the ports, by number.
    #[serde(skip)]
    #[schemars(skip)]
    ports: Vec<MacAddr>,
    /// For `explain`: the next hops, indexed by next-hop number minus 1.
    #[serde(skip)]
    #[schemars(skip)]
    gateways: Vec<NextHop>,
    /// For `explain`: the names of the ports, by number.
    #[serde(skip)]
    #[schemars(skip)]
    names: Vec<String>,
}

/// The source of the neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The config.
    #[default]
    Config,
    /// The kernel, whose table the stage follows.
    Kernel,
    /// ARP and neighbour solicitations that the stage sends itself.
    Resolve,
}

/// The state for neighbours that change during the run.
#[derive(Debug)]
struct Live {
    known: NeighborSource,
    /// Rate limit of requests for neighbours without an entry.
    request_limit: TokenBucket,
    /// The secret of the hash that assigns next hops to queues. With a known hash, a sender could fill the queue of a
    /// gateway with packets to other hosts.
    hash: RandomState,
    /// For each queue, the number of held packets.
    held: [u8; QUEUES],
    /// The number of held packets of all queues.
    held_packets: u64,
    /// The largest number of held packets so far.
    held_max: u64,
    /// For each queue, the time of the last request, in nanoseconds since start.
    asked: [u64; QUEUES],
}

/// The source of neighbours that change during the run.
#[derive(Debug)]
enum NeighborSource {
    Kernel(ForwardingReader),
    Resolution(ResolutionClient),
}

impl NeighborSource {
    #[inline]
    fn reader(&self) -> &ForwardingReader {
        match self {
            Self::Kernel(reader) => reader,
            Self::Resolution(client) => &client.reader,
        }
    }

    /// Returns the state of a next hop, given its number.
    #[inline]
    fn next_hop_state(&self, number: u32) -> ResolutionState {
        match self {
            Self::Kernel(reader) => reader.next_hop_state(number),
            Self::Resolution(client) => {
                let place = number.checked_sub(1).and_then(|place| client.numbers.get(place as usize));
                place.map_or(ResolutionState::Unknown, |number| client.reader.next_hop_state(*number))
            }
        }
    }
}

/// A neighbour of the config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeighborEntry {
    /// IPv4 or IPv6 address of the neighbour.
    pub address: IpAddr,
    /// MAC address of the neighbour.
    pub mac: MacAddr,
    /// Port that the neighbour is reached through. An entry without `port` applies to every port. An entry with `port`
    /// takes precedence on its port.
    #[serde(default)]
    pub port: Option<String>,
}

/// The link header of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(16))]
struct LinkHeader {
    /// Destination and source MAC address.
    link: [u8; 12],
    /// The number of the port. Bit 8 is set if the MAC address is unknown.
    port: u16,
}

/// An address on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NeighborKey {
    address: u128,
    /// The number of the port. Bit 8 is set for IPv6.
    place: u16,
}

impl NeighborKey {
    #[inline]
    fn v4(address: [u8; 4], port: u8) -> Self {
        Self { address: u128::from(u32::from_be_bytes(address)), place: u16::from(port) }
    }

    #[inline]
    fn v6(address: [u8; 16], port: u8) -> Self {
        Self { address: u128::from_be_bytes(address), place: 1 << 8 | u16::from(port) }
    }

    /// Returns the key for [`MacTable`].
    #[inline]
    fn words(self) -> [u32; 5] {
        let word = |shift: u32| (self.address >> shift) as u32;
        [word(0), word(32), word(64), word(96), self.place.into()]
    }

    fn new(address: IpAddr, port: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self::v4(address.octets(), port),
            IpAddr::V6(address) => Self::v6(address.octets(), port),
        }
    }
}

/// The MAC addresses of the config.
#[derive(Debug, Default)]
struct MacTable {
    /// For each key, its index in `macs`.
    places: Exact<5>,
    macs: Vec<MacAddr>,
}

impl MacTable {
    /// Creates a table for at most `most` neighbours.
    fn new(most: usize) -> Result<Self, TableError> {
        Ok(Self { places: Exact::new(most)?, macs: Vec::with_capacity(most) })
    }

    /// Adds a neighbour, unless the table already has its key.
    fn add(&mut self, key: NeighborKey, mac: MacAddr) -> Result<(), TableError> {
        if self.get(key).is_none() {
            self.places.insert(key.words(), self.macs.len() as u32)?;
            self.macs.push(mac);
        }
        Ok(())
    }

    #[inline]
    fn get(&self, key: NeighborKey) -> Option<MacAddr> {
        self.macs.get(self.places.lookup(&key.words())? as usize).copied()
    }
}

const UNRESOLVED: Edge = Edge::new(0);
const UNREACHABLE: Edge = Edge::new(1);

/// The maximum number of packets held for one neighbour. Neighbours are hashed into [`QUEUES`] buckets, and neighbours
/// in one bucket share this limit.
const MAX_HELD_PER_QUEUE: u8 = 16;
const QUEUES: usize = 256;
/// How long a packet is held. The kernel, with its defaults, sends three requests in three seconds, so the hold time is
/// a little longer.
const HOLD_TIME: Nanos = Nanos(4_000_000_000);

/// The limit of requests for unknown neighbours, for each worker: requests per second, and burst size.
const REQUEST_LIMIT: (u64, u64) = (1000, 256);
/// The minimum time between two requests that the held packets of one queue cause, in nanoseconds. Within this time,
/// the thread that resolves neighbours creates an entry for the requested neighbour. The stage sends no further
/// requests for a neighbour with an entry.
const REPEAT_INTERVAL: u64 = 100_000_000;

impl Stage for Neighbor {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        if let Some(live) = &mut self.live {
            let now = ctx.now.0.saturating_sub(ctx.start.0);
            return batch.iter_mut().for_each(|packet| live.handle(packet, now));
        }
        let hop = |meta: &Meta| {
            let hop = self.hops.get((meta.next_hop as usize).wrapping_sub(1));
            hop.filter(|hop| hop.port == u16::from(meta.egress))
        };
        let resolved = batch.located_heads().map_while(|head| hop(head.meta).map(|hop| *head.bytes = hop.link)).count();
        for mut packet in batch.iter_mut_from(resolved) {
            if let Some(hop) = hop(packet.meta()) {
                packet.set_ethernet_addresses(hop.link);
                continue;
            }
            let Some(from) = self.ports.get(usize::from(packet.meta().egress)).copied() else {
                packet.drop(Reason::NoPort);
                continue;
            };
            let Some(to) = self.resolve(&packet) else {
                packet.steer(UNRESOLVED);
                continue;
            };
            let (destination, source) = packet.ethernet_addresses_mut();
            (*destination, *source) = (to.0, from.0);
        }
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(live) = &mut self.live {
            live.known.reader().mark_quiescent();
            // Held packets are counted again when they come back to this stage.
            (live.held, live.held_packets) = ([0; QUEUES], 0);
        }
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        if let Some(client) = self.client() {
            client.counters(report);
        }
        if let Some(live) = &self.live {
            report.add("held", live.held_packets);
            report.add("held_max", live.held_max);
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let known = match self.source {
            Source::Config => None,
            Source::Kernel => Some(NeighborSource::Kernel(kernel::tables(setup).register_reader())),
            Source::Resolve => Some(NeighborSource::Resolution(Resolution::enable(setup, self.resolve_parameters()?)?)),
        };
        let given = [
            ("most", self.max_neighbors.is_some()),
            ("reachable", self.reachable.is_some()),
            ("ageing", self.ageing.is_some()),
        ];
        for (key, _) in given.into_iter().filter(|(_, given)| *given && self.source != Source::Resolve) {
            let problem = Problem::at(key, format!("`{key}` only applies with source = \"resolve\""));
            setup.reject(problem.help("set source = \"resolve\", or remove the key"));
        }
        if let Some(known) = &known
            && setup.worker_number() == 0
        {
            let tables = match known {
                NeighborSource::Kernel(reader) => reader.shared().clone(),
                NeighborSource::Resolution(client) => client.reader.shared().clone(),
            };
            let ports = setup.ports().iter().map(|port| port.name.clone()).collect();
            setup.table("neighbors", NeighborTable { tables, ports });
        }
        if let Some(known) = known {
            if !setup.is_offline() {
                self.names = setup.ports().iter().map(|port| port.name.clone()).collect();
            }
            if !self.table.is_empty() {
                let problem = Problem::at("source", "neighbours cannot come from both the table and another source");
                return Err(problem.help("remove table, or remove source"));
            }
            self.live = Some(Live {
                known,
                request_limit: TokenBucket::new(REQUEST_LIMIT.0, REQUEST_LIMIT.1, 0),
                hash: RandomState::new(),
                held: [0; QUEUES],
                held_packets: 0,
                held_max: 0,
                asked: [0; QUEUES],
            });
            return Ok(());
        }
        self.ports = setup.ports().iter().map(|port| MacAddr(port.mac)).collect();
        let mut listed: HashMap<(IpAddr, Option<u8>), usize> = HashMap::new();
        let (mut of_one_port, mut of_all_ports) = (Vec::new(), Vec::new());
        for (place, entry) in self.table.iter().enumerate() {
            let problem = |key: &str, message| Problem::at(format!("table[{place}].{key}"), message);
            if entry.mac.is_multicast() || entry.mac == MacAddr::ZERO {
                let message = format!("{} is not a unicast MAC address", entry.mac);
                setup.reject(problem("mac", message));
            }
            let named = entry.port.as_ref().map(|name| setup.port(name, &format!("table[{place}].port")));
            let port = match named.transpose() {
                Ok(port) => port,
                Err(unknown) => {
                    setup.reject(unknown);
                    continue;
                }
            };
            if let Some(before) = listed.insert((entry.address, port), place) {
                let message = format!("{} is already in table[{before}]", entry.address);
                setup.reject(problem("address", message).help("remove one of the two entries, or set another port"));
            }
            match port {
                Some(port) => of_one_port.push((NeighborKey::new(entry.address, port), entry.mac)),
                None => {
                    let ports = (0..=u8::MAX).take(self.ports.len());
                    of_all_ports.extend(ports.map(|port| (NeighborKey::new(entry.address, port), entry.mac)));
                }
            }
        }
        if setup.worker_number() == 0 {
            let row = |entry: &NeighborEntry| (entry.address, entry.port.clone(), entry.mac.to_string());
            setup.table("neighbors", ConfigNeighbors(self.table.iter().map(row).collect()));
        }
        // The table keeps the first entry of each key. Entries for one port are added first, so they take precedence
        // over entries for all ports.
        let refused = |error| table_problem("table", error);
        let mut macs = MacTable::new(of_one_port.len() + of_all_ports.len()).map_err(refused)?;
        for (key, mac) in of_one_port.into_iter().chain(of_all_ports) {
            macs.add(key, mac).map_err(refused)?;
        }
        setup.next_hops().all().clone_into(&mut self.gateways);
        let hop = |hop: &NextHop| {
            let to = macs.get(NeighborKey::new(hop.address, hop.port)).zip(self.ports.get(usize::from(hop.port)));
            let mut link = [0; 12];
            if let Some((MacAddr(to), MacAddr(from))) = to {
                link[..6].copy_from_slice(&to);
                link[6..].copy_from_slice(from);
            }
            LinkHeader { link, port: u16::from(hop.port) | if to.is_some() { 0 } else { 256 } }
        };
        self.hops = self.gateways.iter().map(hop).collect();
        self.macs = macs;
        self.names = setup.ports().iter().map(|port| port.name.clone()).collect();
        Ok(())
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        if let Some(live) = &self.live {
            return self.explain_live(live, packet);
        }
        let hop = match packet.meta().next_hop.checked_sub(1) {
            Some(place) => *self.gateways.get(place as usize)?,
            None => NextHop { address: destination(packet)?.address(), port: packet.meta().egress },
        };
        let port = self.names.get(usize::from(hop.port))?;
        Some(match self.resolve(packet) {
            Some(mac) => format!("{} on {port} is at {mac}", hop.address),
            None => format!("{} on {port} is not in the table", hop.address),
        })
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        let earlier = earlier.downcast::<Self>().and_then(|earlier| earlier.live.as_ref());
        let Some((live, earlier)) = self.live.as_mut().zip(earlier) else { return HeldPackets::Keep };
        live.request_limit.take_over_tokens(&earlier.request_limit);
        live.held_max = earlier.held_max;
        let are_numbers_valid = match (&live.known, &earlier.known) {
            // Held packets have the numbers of next hops in these tables, so both stages must use the same tables.
            (NeighborSource::Kernel(now), NeighborSource::Kernel(before)) => Arc::ptr_eq(now.shared(), before.shared()),
            // Held packets have the numbers of next hops in the config, so each number must keep its next hop.
            (NeighborSource::Resolution(now), NeighborSource::Resolution(before)) => now.hops.starts_with(&before.hops),
            _ => false,
        };
        if are_numbers_valid { HeldPackets::Keep } else { HeldPackets::Drop }
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("its resolved neighbours, unless `most`, `reachable` or `ageing` changes")
            .outputs(&[
                ("unresolved", "packets whose next hop is not in `table`, or was not resolved within four seconds"),
                ("unreachable", "packets whose next hop does not answer"),
            ])
            .drops(&[Reason::NoPort, Reason::QueueFull])
            .gauges(&["neighbors", "neighbors_max", "held", "held_max"])
            .tables(const { &[TableInfo::of::<NeighborTable>("neighbors")] })
    }

    fn contract(&self) -> Contract {
        let contract = Contract::new()
            .needs(Facts::HEADERS | Facts::EGRESS | Facts::NEXT_HOP)
            .holds(self.live.as_ref().map(|_| HOLD_TIME))
            .ignores_checksums();
        match self.client() {
            Some(_) => contract.generates::<Self>(ResolutionClient::FRAMES).transfers_state::<Self>(),
            None => contract,
        }
    }
}

impl StateTransfer for Neighbor {
    fn save_state(&mut self) -> Option<Vec<u8>> {
        self.client().and_then(ResolutionClient::save)
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        self.client().map_or(Ok(()), |client| client.load(state))
    }
}

impl Generator for Neighbor {
    fn generate(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        if let Some(Live { known: NeighborSource::Resolution(client), .. }) = &mut self.live {
            client.generate(batch);
        }
    }
}

impl Live {
    #[inline]
    fn handle(&mut self, mut packet: Packet<'_>, now: u64) {
        let Some(from) = self.known.reader().mac(packet.meta().egress) else {
            packet.drop(Reason::NoPort);
            return;
        };
        let resolved = match packet.meta().next_hop {
            0 => self.neighbor(&packet, now),
            number => self.known.next_hop_state(number),
        };
        match resolved {
            ResolutionState::At(to) => {
                let (destination, source) = packet.ethernet_addresses_mut();
                (*destination, *source) = (to.0, from.0);
            }
            ResolutionState::Unknown if packet.hold_state() == HoldState::Overdue => packet.steer(UNRESOLVED),
            ResolutionState::Unknown => self.hold(packet),
            ResolutionState::Failed => packet.steer(UNREACHABLE),
        }
    }

    /// Holds a packet until its neighbour is resolved.
    #[cold]
    fn hold(&mut self, mut packet: Packet<'_>) {
        // Neighbours with the same hash share a limit, so the stage may hold fewer packets for a neighbour than the
        // limit, but never more.
        let queue = self.queue(&packet);
        let queue = &mut self.held[queue];
        if *queue >= MAX_HELD_PER_QUEUE {
            packet.drop(Reason::QueueFull);
            return;
        }
        *queue += 1;
        self.held_packets += 1;
        self.held_max = self.held_max.max(self.held_packets);
        packet.hold();
    }

    /// Returns the queue of a packet.
    #[cold]
    fn queue(&self, packet: &Packet<'_>) -> usize {
        let next_hop = packet.meta().next_hop;
        let address = if next_hop == 0 { destination(packet).map(|key| (key.address, key.place)) } else { None };
        self.hash.hash_one((next_hop, address)) as usize % QUEUES
    }

    /// Returns the state of a packet's destination, which is a neighbour on the link of the egress port.
    #[inline]
    fn neighbor(&mut self, packet: &Packet<'_>, now: u64) -> ResolutionState {
        let Some(key) = destination(packet) else { return ResolutionState::Unknown };
        let hop = NextHop { address: key.address(), port: packet.meta().egress };
        let known = self.known.reader().neighbor(hop);
        if known.is_none() {
            self.ask(packet, hop, now);
        }
        known.unwrap_or(ResolutionState::Unknown)
    }

    /// Requests a neighbour without an entry, if the rate limit permits.
    #[cold]
    fn ask(&mut self, packet: &Packet<'_>, hop: NextHop, now: u64) {
        let queue = self.queue(packet);
        // Usually, the packet has caused a request before the stage held the packet. That request may have exceeded
        // the limit, so held packets repeat the request.
        let is_due =
            packet.hold_state() == HoldState::Fresh || now.saturating_sub(self.asked[queue]) >= REPEAT_INTERVAL;
        if is_due && self.request_limit.take(now, 1) {
            self.asked[queue] = now;
            self.known.reader().request_resolution(hop);
        }
    }
}

impl Neighbor {
    /// Returns the resolution client, if the stage resolves neighbours itself.
    fn client(&self) -> Option<&ResolutionClient> {
        match &self.live.as_ref()?.known {
            NeighborSource::Kernel(_) => None,
            NeighborSource::Resolution(client) => Some(client),
        }
    }

    /// Describes the neighbour of a packet during a run. Requests no neighbour.
    fn explain_live(&self, live: &Live, packet: &Packet<'_>) -> Option<String> {
        if self.names.is_empty() {
            return Some("neighbours are only resolved during a run".to_owned());
        }
        let meta = packet.meta();
        let tables = live.known.reader().shared();
        let hop = match (meta.next_hop.checked_sub(1), &live.known) {
            (None, _) => NextHop { address: destination(packet)?.address(), port: meta.egress },
            (Some(place), NeighborSource::Kernel(_)) => tables.next_hop_at(place as usize)?,
            (Some(place), NeighborSource::Resolution(client)) => {
                let number = client.numbers.get(place as usize)?.checked_sub(1)?;
                tables.next_hop_at(number as usize)?
            }
        };
        let (address, port) = (hop.address, self.names.get(usize::from(hop.port))?);
        Some(match tables.neighbor_state(hop) {
            Some((ResolutionState::At(mac), _)) => format!("{address} on {port} is at {mac}"),
            Some((ResolutionState::Failed, _)) => format!("{address} on {port} does not answer"),
            Some((ResolutionState::Unknown, _)) | None => format!("{address} on {port} is not resolved yet"),
        })
    }

    /// Returns the parameters of neighbour resolution.
    fn resolve_parameters(&self) -> Result<ResolveParameters, Problem> {
        let parameters = ResolveParameters {
            max_neighbors: self.max_neighbors.unwrap_or(4096),
            reachable: self.reachable.unwrap_or(Period::from_secs(30)),
            ageing: self.ageing.unwrap_or(Period::from_secs(600)),
        };
        if !(16..=16_384).contains(&parameters.max_neighbors) {
            let problem = Problem::at("most", format!("{} is out of range", parameters.max_neighbors));
            return Err(problem.help("set `most` to a value from 16 to 16384"));
        }
        let second = Period::from_secs(1);
        check_period("reachable", parameters.reachable, second..=Period::from_secs(3600))?;
        check_period("ageing", parameters.ageing, second..=Period::from_secs(86_400))?;
        Ok(parameters)
    }

    #[inline]
    fn resolve(&self, packet: &Packet<'_>) -> Option<MacAddr> {
        match packet.meta().next_hop.checked_sub(1) {
            Some(place) => {
                let hop = self.gateways.get(place as usize)?;
                self.macs.get(NeighborKey::new(hop.address, hop.port))
            }
            None => self.macs.get(destination(packet)?),
        }
    }
}

impl NeighborKey {
    fn address(self) -> IpAddr {
        match self.place >> 8 {
            0 => IpAddr::V4((self.address as u32).into()),
            _ => IpAddr::V6(self.address.into()),
        }
    }
}

/// Returns the destination address and the egress port of a packet as a key.
#[inline]
fn destination(packet: &Packet<'_>) -> Option<NeighborKey> {
    let meta = packet.meta();
    let header = packet.data().get(usize::from(meta.l3)..)?;
    if meta.flags.contains(MetaFlags::IPV4) {
        Ipv4::ref_from_prefix(header).ok().map(|(ip, _)| NeighborKey::v4(ip.destination, meta.egress))
    } else if meta.flags.contains(MetaFlags::IPV6) {
        Ipv6::ref_from_prefix(header).ok().map(|(ip, _)| NeighborKey::v6(ip.destination, meta.egress))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::Parse;
    use dataplane_core::harness::{Fate, Harness, Outcome, frame};
    use dataplane_testing::strategies;

    /// Sets egress port and next hop of each packet: the first choice on the first packet, the second choice on the
    /// second packet, and so on.
    #[derive(Default)]
    struct FixedRoute {
        hops: Vec<NextHop>,
        choices: Vec<(u8, u32)>,
    }

    impl Stage for FixedRoute {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            for (mut packet, choice) in batch.iter_mut().zip(&self.choices) {
                (packet.meta_mut().egress, packet.meta_mut().next_hop) = *choice;
            }
        }

        fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
            for hop in &self.hops {
                setup.next_hops().number(*hop);
            }
            Ok(())
        }
    }

    fn run(table: &str, route: FixedRoute, frames: &[Vec<u8>]) -> Vec<Outcome> {
        let harness = Harness::builder().after(Parse::default()).after(route);
        harness.build::<Neighbor>(&format!("table = [{table}]")).unwrap().run(frames)
    }

    /// Returns the last byte of the destination MAC address and the last byte of the source MAC address.
    fn macs(outcome: &Outcome) -> Option<(u8, u8)> {
        let unresolved = Fate::Output("unresolved".to_owned());
        (outcome.fate != unresolved).then(|| (outcome.bytes[5], outcome.bytes[11]))
    }

    #[test]
    fn numbered_next_hops_are_resolved_on_their_port() {
        let table = "{ address = '10.0.0.1', mac = '02:00:00:00:00:01', port = 'b' },
            { address = '10.0.0.1', mac = '02:00:00:00:00:02' }, { address = 'fe80::1', mac = '02:00:00:00:00:03' }";
        let hop = |address: &str, port| NextHop { address: address.parse().unwrap(), port };
        let hops = vec![hop("10.0.0.1", 0), hop("10.0.0.1", 1), hop("10.0.0.2", 0), hop("fe80::1", 1)];
        let choices = vec![(0, 1), (1, 2), (0, 3), (1, 4), (0, 5), (0, u32::MAX)];
        let frames = vec![frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, 1].into()).build(); choices.len()];
        let outcomes = run(table, FixedRoute { hops, choices }, &frames);
        let found: Vec<_> = outcomes.iter().map(macs).collect();
        assert_eq!(found, [Some((2, 10)), Some((1, 11)), None, Some((3, 11)), None, None]);
        for (outcome, frame) in outcomes.iter().zip(&frames) {
            let unchanged = if macs(outcome).is_some() { 12 } else { 0 };
            assert_eq!(outcome.bytes[unchanged..], frame[unchanged..]);
        }
    }

    #[test]
    fn non_ip_packet_is_not_resolved_and_packet_to_an_unknown_port_is_dropped() {
        let arp = frame().arp(1, ([1; 6].into(), [1; 4].into()), ([0; 6].into(), [2; 4].into())).build();
        let choices = vec![(0, 0), (7, 0)];
        let outcomes = run("", FixedRoute { choices, ..FixedRoute::default() }, &[arp.clone(), arp]);
        assert_eq!(macs(&outcomes[0]), None);
        assert_eq!(outcomes[1].fate, Fate::Dropped("no_port".to_owned()));
    }

    #[test]
    fn invalid_parameters_are_refused_with_their_key() {
        let one = "{ address = '10.0.0.1', mac = '02:00:00:00:00:01' }";
        for (table, message) in [
            (
                format!("{one}, {one}"),
                "table[1].address: 10.0.0.1 is already in table[0]; help: remove one of the two entries",
            ),
            (one.replace("02:", "ff:"), "table[0].mac: ff:00:00:00:00:01 is not a unicast MAC address"),
            (one.replace(" }", ", port = 'c' }"), "table[0].port: there is no port `c`"),
            (one.replace("10.0.0.1", "10.0.0"), "TOML parse error at line 1"),
        ] {
            let error = Harness::from_toml::<Neighbor>(&format!("table = [{table}]")).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn destinations_are_resolved_by_the_table(
            table in prop::collection::vec((prop_oneof![
                strategies::ipv4().prop_map(IpAddr::from), strategies::ipv6().prop_map(IpAddr::from),
            ], prop::option::of(0..2u8), 1..250u8), 0..30),
            frames in prop::collection::vec((strategies::valid_frame(), 0..2u8), 1..30),
        ) {
            let mut table = table;
            table.sort();
            table.dedup_by_key(|(address, port, _)| (*address, *port));
            let entry = |(address, port, mac): &(IpAddr, Option<u8>, u8)| {
                let port = port.map(|port| format!(", port = '{}'", ["a", "b"][usize::from(port)])).unwrap_or_default();
                format!("{{ address = '{address}', mac = '02:00:00:00:00:{mac:02x}'{port} }}")
            };
            let text: Vec<String> = table.iter().map(entry).collect();
            let (frames, choices): (Vec<_>, Vec<_>) = frames.into_iter().map(|(f, port)| (f, (port, 0))).unzip();
            let outcomes = run(&text.join(","), FixedRoute { choices: choices.clone(), ..FixedRoute::default() }, &frames);
            for ((outcome, (port, _)), frame) in outcomes.iter().zip(choices).zip(&frames) {
                let l3 = usize::from(outcome.meta.l3);
                let address: Option<IpAddr> = match outcome.meta.flags {
                    flags if flags.contains(MetaFlags::IPV4) => Some(<[u8; 4]>::try_from(&frame[l3 + 16..l3 + 20]).unwrap().into()),
                    flags if flags.contains(MetaFlags::IPV6) => Some(<[u8; 16]>::try_from(&frame[l3 + 24..l3 + 40]).unwrap().into()),
                    _ => None,
                };
                let on = |wanted| table.iter().find(|(a, p, _)| Some(*a) == address && *p == wanted).map(|(_, _, mac)| *mac);
                let expected = on(Some(port)).or(on(None)).map(|mac| (mac, 10 + port));
                prop_assert_eq!(macs(outcome), expected);
            }
        }
    }
}
