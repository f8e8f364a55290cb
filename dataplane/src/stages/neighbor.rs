//! `neighbor`: from a next hop to its link address.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

use crate::header::MacAddr;
use crate::header::ipv4::Ipv4;
use crate::header::ipv6::Ipv6;
use crate::mem::{Batch, Edge, Meta, MetaFlags, Packet, Reason, Wait};
use crate::pipeline::{Ctx, Facts, NextHop, Problem, Setup, Stage};
use crate::stages::forwarding::{Forwarding, Reader, Resolved};
use crate::stages::resolution::{Asker, Resolution, Wishes};
use crate::stages::table::bucket::TokenBucket;
use crate::units::Nanos;

/// Writes the link addresses of packets that were routed: from the port that they leave by to their next hop.
///
/// The next hop is the gateway that a stage before has chosen, or else the destination itself. Packets to one that is
/// not in the table leave by `unresolved`, unchanged; where it leads nowhere they are dropped.
///
/// With `source = "kernel"` the neighbours are those of the kernel, and follow it. For one that is not known the kernel
/// is asked to find it, and packets wait meanwhile: 16 for one neighbour, 256 for all, of each worker, and four seconds.
/// Those that have waited so long leave by `unresolved`, those to one that does not answer by `unreachable`.
///
/// With `source = "resolve"` it finds them itself, by ARP (RFC 826) and neighbour solicitations (RFC 4861), with the addresses
/// that the ports have in the config; packets wait in the same way. Stages `arp` and `icmp`, which answer for these addresses,
/// hear the answers. Questions leave it as packets to neighbours do. Who does not answer three times in three seconds cannot
/// be reached for three more.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "neighbors"
/// use = "neighbor"
/// table = [
///     { address = "192.0.2.1", mac = "02:00:00:00:00:01", port = "wan" },
///     { address = "2001:db8::1", mac = "02:00:00:00:00:01" },
/// ]
///
/// [[pipeline.stage]]
/// name = "follow"
/// use = "neighbor"
/// source = "kernel"
///
/// [[pipeline.stage]]
/// name = "find"
/// use = "neighbor"
/// source = "resolve"
/// reachable = 30
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Neighbor {
    /// The neighbours that are known.
    #[serde(default)]
    pub table: Vec<Entry>,
    /// Where the neighbours come from: `config`, `kernel` or `resolve`.
    #[serde(default)]
    pub source: Source,
    /// The most neighbours that are known at a time, of `resolve`: 16 to 16,384, and 4,096 if nothing is said. Where there are
    /// as many, the oldest that never answered makes room.
    #[serde(default)]
    pub most: Option<u16>,
    /// About how many seconds an answer is believed, of `resolve`: 1 to 3,600, and 30 if nothing is said. After that a
    /// neighbour that is used is asked again, five seconds later.
    #[serde(default)]
    pub reachable: Option<u16>,
    /// After how many seconds a neighbour is forgotten that nobody uses, of `resolve`: 1 to 86,400, and 600 if nothing is
    /// said.
    #[serde(default)]
    pub ageing: Option<u32>,
    #[serde(skip)]
    #[schemars(skip)]
    live: Option<Live>,
    /// Where next hops are, by number less 1.
    #[serde(skip)]
    #[schemars(skip)]
    hops: Vec<Hop>,
    #[serde(skip)]
    #[schemars(skip)]
    macs: HashMap<Key, MacAddr, BuildHasherDefault<Mix>>,
    /// The link addresses of the ports, by number.
    #[serde(skip)]
    #[schemars(skip)]
    ports: Vec<MacAddr>,
    /// Next hops, by number less 1, and the names of the ports: to explain.
    #[serde(skip)]
    #[schemars(skip)]
    gateways: Vec<NextHop>,
    #[serde(skip)]
    #[schemars(skip)]
    names: Vec<String>,
}

/// Where neighbours come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The config.
    #[default]
    Config,
    /// The kernel, whose table it follows.
    Kernel,
    /// The neighbours themselves, which are asked.
    Resolve,
}

/// Neighbours that come and go.
#[derive(Debug)]
struct Live {
    known: Known,
    /// How often it asks for neighbours of which nothing is known at all.
    asks: TokenBucket,
    /// How many packets wait, by a hash of their next hop.
    waiting: [u8; QUEUES],
}

/// Who knows them.
#[derive(Debug)]
enum Known {
    Kernel(Reader),
    Resolution(Asker),
}

impl Known {
    #[inline]
    fn reader(&self) -> &Reader {
        match self {
            Self::Kernel(reader) => reader,
            Self::Resolution(asker) => &asker.reader,
        }
    }

    /// What is known of a next hop by its number.
    #[inline]
    fn numbered(&self, number: u32) -> Resolved {
        match self {
            Self::Kernel(reader) => reader.numbered(number),
            Self::Resolution(asker) => {
                let place = number.checked_sub(1).and_then(|place| asker.numbers.get(place as usize));
                place.map_or(Resolved::Unknown, |number| asker.reader.numbered(*number))
            }
        }
    }
}

/// A neighbour.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its IPv4 or IPv6 address.
    pub address: IpAddr,
    /// Its link address.
    pub mac: MacAddr,
    /// The port behind which it is; without one, every port for which the table does not say otherwise.
    #[serde(default)]
    pub port: Option<String>,
}

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(16))]
struct Hop {
    /// Both addresses of the link header.
    link: [u8; 12],
    /// The port, and 256 where the address is not known.
    port: u16,
}

/// An address on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: u128,
    /// The port, and in bit 8 whether the address is one of IPv6.
    place: u16,
}

impl Key {
    #[inline]
    fn v4(address: [u8; 4], port: u8) -> Self {
        Self { address: u128::from(u32::from_be_bytes(address)), place: u16::from(port) }
    }

    #[inline]
    fn v6(address: [u8; 16], port: u8) -> Self {
        Self { address: u128::from_be_bytes(address), place: 1 << 8 | u16::from(port) }
    }

    fn new(address: IpAddr, port: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self::v4(address.octets(), port),
            IpAddr::V6(address) => Self::v6(address.octets(), port),
        }
    }
}

/// Hashes a [`Key`]. The table is written by the config alone, so nobody can fill it with keys that collide.
#[derive(Clone, Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        // The fractional part of the golden ratio: an odd number without a pattern.
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    #[inline]
    fn write_u128(&mut self, value: u128) {
        self.write_u64((value >> 64) as u64 ^ 0x2545_f491_4f6c_dd1d);
        self.write_u64(value as u64);
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
}

const UNRESOLVED: Edge = Edge::new(0);
const UNREACHABLE: Edge = Edge::new(1);

/// How many packets wait for one neighbour, and by how many hashes neighbours are told apart.
const WAIT_FOR_ONE: u8 = 16;
const QUEUES: usize = 256;
/// How long a packet waits: a little longer than the kernel asks with its own defaults, three times in three seconds.
const LONGEST: Nanos = Nanos(4_000_000_000);

/// Unknown neighbours that a worker asks for in a second, and at once.
const ASKS: (u64, u64) = (1000, 256);

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
        let usual = batch.located_heads().map_while(|head| hop(head.meta).map(|hop| *head.bytes = hop.link)).count();
        for mut packet in batch.iter_mut_from(usual) {
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

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[
            ("unresolved", "packets whose next hop is not in the table"),
            ("unreachable", "packets whose next hop does not answer"),
        ]
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS | Facts::EGRESS | Facts::NEXT_HOP
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let Some(live) = &mut self.live {
            live.known.reader().pass();
            // Those that wait are counted anew as they come through again.
            live.waiting = [0; QUEUES];
        }
    }

    fn emits(&self) -> usize {
        if self.asker().is_some() { Asker::FRAMES } else { 0 }
    }

    fn emit(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        if let Some(asker) = self.asker() {
            asker.emit(batch);
        }
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        if let Some(asker) = self.asker() {
            asker.counters(report);
        }
    }

    fn holds(&self) -> Option<Nanos> {
        self.live.as_ref().map(|_| LONGEST)
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let known = match self.source {
            Source::Config => None,
            Source::Kernel => Some(Known::Kernel(Forwarding::of(setup).join())),
            Source::Resolve => Some(Known::Resolution(Resolution::want(setup, self.wishes()?)?)),
        };
        let given =
            [("most", self.most.is_some()), ("reachable", self.reachable.is_some()), ("ageing", self.ageing.is_some())];
        for (key, _) in given.into_iter().filter(|(_, given)| *given && self.source != Source::Resolve) {
            let problem = Problem::at(key, format!("`{key}` is of neighbours that it finds itself"));
            setup.reject(problem.help("set source = \"resolve\", or take it out"));
        }
        if let Some(known) = known {
            if !self.table.is_empty() {
                let problem = Problem::at("source", "the neighbours of the config alone, or others");
                return Err(problem.help("take table out, or source"));
            }
            self.live = Some(Live { known, asks: TokenBucket::new(ASKS.0, ASKS.1, 0), waiting: [0; QUEUES] });
            return Ok(());
        }
        self.ports = setup.ports().iter().map(|port| MacAddr(port.mac)).collect();
        self.macs.clear();
        let mut listed: HashMap<(IpAddr, Option<u8>), usize> = HashMap::new();
        let mut of_all_ports = Vec::new();
        for (place, entry) in self.table.iter().enumerate() {
            let problem = |key: &str, message| Problem::at(format!("table[{place}].{key}"), message);
            if entry.mac.is_multicast() || entry.mac == MacAddr::ZERO {
                let message = format!("{} is not the address of a single station", entry.mac);
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
                setup.reject(problem("address", message).help("leave one out, or name another port"));
            }
            match port {
                Some(port) => _ = self.macs.insert(Key::new(entry.address, port), entry.mac),
                None => of_all_ports.push(entry),
            }
        }
        for entry in of_all_ports {
            for port in (0..=u8::MAX).take(self.ports.len()) {
                self.macs.entry(Key::new(entry.address, port)).or_insert(entry.mac);
            }
        }
        setup.next_hops().all().clone_into(&mut self.gateways);
        let hop = |hop: &NextHop| {
            let to = self.macs.get(&Key::new(hop.address, hop.port)).zip(self.ports.get(usize::from(hop.port)));
            let mut link = [0; 12];
            if let Some((MacAddr(to), MacAddr(from))) = to {
                link[..6].copy_from_slice(to);
                link[6..].copy_from_slice(from);
            }
            Hop { link, port: u16::from(hop.port) | if to.is_some() { 0 } else { 256 } }
        };
        self.hops = self.gateways.iter().map(hop).collect();
        self.names = setup.ports().iter().map(|port| port.name.clone()).collect();
        Ok(())
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        if self.live.is_some() {
            return Some("neighbours are found in a run alone".to_owned());
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
            number => self.known.numbered(number),
        };
        match resolved {
            Resolved::At(to) => {
                let (destination, source) = packet.ethernet_addresses_mut();
                (*destination, *source) = (to.0, from.0);
            }
            Resolved::Unknown if packet.wait() == Wait::Overdue => packet.steer(UNRESOLVED),
            Resolved::Unknown => self.hold(packet),
            Resolved::Failed => packet.steer(UNREACHABLE),
        }
    }

    /// Lets a packet wait until its neighbour is found.
    #[cold]
    fn hold(&mut self, mut packet: Packet<'_>) {
        let hop = match packet.meta().next_hop {
            0 => destination(&packet).map_or(0, |key| (key.address as u64 ^ (key.address >> 64) as u64) as u32),
            number => number,
        };
        // Neighbours of one hash share a queue: each of them waits for fewer, none for more.
        let queue = &mut self.waiting[(hop.wrapping_mul(0x9e37_79b1) >> 24) as usize % QUEUES];
        if *queue >= WAIT_FOR_ONE {
            packet.drop(Reason::QueueFull);
            return;
        }
        *queue += 1;
        packet.hold();
    }

    /// The destination itself, as a neighbour.
    #[inline]
    fn neighbor(&mut self, packet: &Packet<'_>, now: u64) -> Resolved {
        let Some(key) = destination(packet) else { return Resolved::Unknown };
        let hop = NextHop { address: key.address(), port: packet.meta().egress };
        let known = self.known.reader().neighbor(hop);
        // It was asked for when it came.
        if known.is_none() && packet.wait() == Wait::Fresh && self.asks.take(now, 1) {
            self.known.reader().ask(hop);
        }
        known.unwrap_or(Resolved::Unknown)
    }
}

impl Neighbor {
    /// By which it asks, if it finds neighbours itself.
    fn asker(&self) -> Option<&Asker> {
        match &self.live.as_ref()?.known {
            Known::Kernel(_) => None,
            Known::Resolution(asker) => Some(asker),
        }
    }

    /// The parameters of finding neighbours.
    fn wishes(&self) -> Result<Wishes, Problem> {
        let wishes = Wishes {
            most: self.most.unwrap_or(4096),
            reachable: self.reachable.unwrap_or(30),
            ageing: self.ageing.unwrap_or(600),
        };
        let given = [
            ("most", u32::from(wishes.most), 16..=16_384),
            ("reachable", u32::from(wishes.reachable), 1..=3600),
            ("ageing", wishes.ageing, 1..=86_400),
        ];
        for (key, value, range) in given {
            if !range.contains(&value) {
                let help = format!("{} to {}", range.start(), range.end());
                return Err(Problem::at(key, format!("{value} is not to be had")).help(help));
            }
        }
        Ok(wishes)
    }

    #[inline]
    fn resolve(&self, packet: &Packet<'_>) -> Option<MacAddr> {
        match packet.meta().next_hop.checked_sub(1) {
            Some(place) => {
                let hop = self.gateways.get(place as usize)?;
                self.macs.get(&Key::new(hop.address, hop.port)).copied()
            }
            None => self.macs.get(&destination(packet)?).copied(),
        }
    }
}

impl Key {
    fn address(self) -> IpAddr {
        match self.place >> 8 {
            0 => IpAddr::V4((self.address as u32).into()),
            _ => IpAddr::V6(self.address.into()),
        }
    }
}

/// Where a packet goes, on the port that it leaves by.
#[inline]
fn destination(packet: &Packet<'_>) -> Option<Key> {
    let meta = packet.meta();
    let header = packet.data().get(usize::from(meta.l3)..)?;
    if meta.flags.contains(MetaFlags::IPV4) {
        Ipv4::ref_from_prefix(header).ok().map(|(ip, _)| Key::v4(ip.destination, meta.egress))
    } else if meta.flags.contains(MetaFlags::IPV6) {
        Ipv6::ref_from_prefix(header).ok().map(|(ip, _)| Key::v6(ip.destination, meta.egress))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stages::parse::Parse;
    use crate::testing::{Fate, Harness, Outcome, frame, strategies};

    /// Chooses ports and next hops as told: those of the first packet, of the second, and so on.
    #[derive(Default)]
    struct Route {
        hops: Vec<NextHop>,
        choices: Vec<(u8, u32)>,
    }

    impl Stage for Route {
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

    fn run(table: &str, route: Route, frames: &[Vec<u8>]) -> Vec<Outcome> {
        let harness = Harness::builder().after(Parse::default()).after(route);
        harness.build::<Neighbor>(&format!("table = [{table}]")).unwrap().run(frames)
    }

    /// The last bytes of the new destination and source.
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
        let outcomes = run(table, Route { hops, choices }, &frames);
        let found: Vec<_> = outcomes.iter().map(macs).collect();
        assert_eq!(found, [Some((2, 10)), Some((1, 11)), None, Some((3, 11)), None, None]);
        for (outcome, frame) in outcomes.iter().zip(&frames) {
            let unchanged = if macs(outcome).is_some() { 12 } else { 0 };
            assert_eq!(outcome.bytes[unchanged..], frame[unchanged..]);
        }
    }

    #[test]
    fn what_is_not_ip_has_no_destination_and_a_port_must_exist() {
        let arp = frame().arp(1, ([1; 6].into(), [1; 4].into()), ([0; 6].into(), [2; 4].into())).build();
        let choices = vec![(0, 0), (7, 0)];
        let outcomes = run("", Route { choices, ..Route::default() }, &[arp.clone(), arp]);
        assert_eq!(macs(&outcomes[0]), None);
        assert_eq!(outcomes[1].fate, Fate::Dropped("no_port".to_owned()));
    }

    #[test]
    fn parameters_that_do_not_fit_are_named() {
        let one = "{ address = '10.0.0.1', mac = '02:00:00:00:00:01' }";
        for (table, message) in [
            (format!("{one}, {one}"), "table[1].address: 10.0.0.1 is already in table[0] (leave one out"),
            (one.replace("02:", "ff:"), "table[0].mac: ff:00:00:00:00:01 is not the address of a single station"),
            (one.replace(" }", ", port = 'c' }"), "table[0].port: there is no port `c`"),
            (one.replace("10.0.0.1", "10.0.0"), "TOML parse error at line 1"),
        ] {
            let error = Harness::from_toml::<Neighbor>(&format!("table = [{table}]")).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn destinations_are_resolved_as_the_table_reads(
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
            let outcomes = run(&text.join(","), Route { choices: choices.clone(), ..Route::default() }, &frames);
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
