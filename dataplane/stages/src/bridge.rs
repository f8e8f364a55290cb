//! `bridge`: an Ethernet switch that learns MAC addresses.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::parameter::check_period;
use dataplane_core::header::Header;
use dataplane_core::header::MacAddr;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::vlan::{VlanTag, is_tag};
use dataplane_core::mem::{Batch, Packet, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Facts, Problem, Setup, Stage, StageInfo};
use dataplane_core::units::Period;

/// Forwards each frame to the port on which its destination MAC address was last seen (IEEE 802.1Q). Each VLAN has
/// its own MAC addresses. Frames to unknown, multicast and broadcast addresses are flooded to all other ports of the
/// VLAN.
///
/// All workers share one table of 65,536 MAC addresses. An address is removed if no frame with this source address
/// arrives for the time `ageing`. The table has buckets of four entries. In a full bucket, a new address replaces the
/// address of the same port that was not seen for the longest time. If the port has no address in the bucket, the new
/// address replaces the address that was not seen for the longest time. The counter `evicted` counts replaced addresses.
///
/// The stage drops these frames:
/// - frames to the reserved addresses 01:80:c2:00:00:00 to ..0f, which no bridge forwards;
/// - frames whose source address is multicast or all zeros;
/// - frames whose destination is behind the ingress port.
///
/// A flooded frame takes one buffer for each port that sends it. Therefore, `runtime.burst` must be at most 256 divided
/// by the number of these ports. Untagged frames belong to VLAN 0.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "switch"
/// use     = "bridge"
/// ports   = ["wan", "lan", "left"]
/// members = [{ port = "left", vlans = [0, 10, 20] }]
/// ageing  = "10m"
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// The names of the ports that the bridge joins. Default: all ports.
    #[serde(default)]
    ports: Vec<String>,
    /// The ports that carry only some VLANs, and their VLANs. Frames of other VLANs neither enter nor leave by such a
    /// port. Default: each port is a member of all VLANs.
    #[serde(default)]
    members: Vec<Member>,
    /// The time after which a MAC address that was not seen is removed: `"1s"` to `"1h"`. Default: `"5m"`.
    #[serde(default = "ageing")]
    ageing: Period,
    #[serde(skip)]
    #[schemars(skip)]
    joined: Vec<BridgePort>,
    #[serde(skip)]
    #[schemars(skip)]
    table: Option<Arc<Table>>,
    /// The next bucket group to search for aged entries.
    #[serde(skip)]
    #[schemars(skip)]
    sweep: usize,
    #[serde(skip)]
    #[schemars(skip)]
    flooded: u64,
    /// Flood copies that were not made because no buffer was free.
    #[serde(skip)]
    #[schemars(skip)]
    missed: u64,
    /// The index of this worker, and the number of workers.
    #[serde(skip)]
    #[schemars(skip)]
    place: (usize, usize),
}

fn ageing() -> Period {
    Period::from_secs(300)
}

/// A port that is a member of some VLANs only.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Member {
    /// The name of the port.
    port: String,
    /// The VLAN ids of the port: 0 to 4094. 0 stands for untagged frames.
    vlans: Vec<u16>,
}

/// A port of the bridge.
#[derive(Debug)]
struct BridgePort {
    number: u8,
    /// One bit for each VLAN, or `None` for all VLANs.
    vlans: Option<Box<[u64; 64]>>,
}

impl BridgePort {
    #[inline]
    fn has(&self, vlan: u16) -> bool {
        self.vlans.as_ref().is_none_or(|vlans| vlans[usize::from(vlan >> 6) & 63] >> (vlan & 63) & 1 == 1)
    }
}

const ALONE: Reason = Reason::own(0);
const RESERVED: Reason = Reason::own(1);
const BAD_SOURCE: Reason = Reason::own(2);
const SAME_PORT: Reason = Reason::own(3);
const NOT_A_MEMBER: Reason = Reason::own(4);

/// The MAC addresses that all workers share, in buckets of four 64-bit words.
///
/// The MAC address and the VLAN id make a 60-bit key. The upper 46 bits of the key are stored in the word as a tag,
/// together with the port in 7 bits and the time in 11 bits, in units of four seconds. The bucket number is the lower
/// 14 bits of the key, XORed with a hash of the tag. So the bucket number and the tag identify the key. The hash is
/// random for each table and strongly universal: any two addresses that a host chooses share a bucket with a
/// probability of 2^-14 (Dietzfelbinger, "Universal hashing and k-wise independent random variables via integer
/// arithmetic without primes", 1996).
///
/// One word holds a complete entry, so each load and store is atomic: after two concurrent stores, the entry is one of
/// the two stored entries. The exact-match table of `dataplane-tables` is not used, because only one thread can change
/// it.
struct Table {
    words: Box<[AtomicU64]>,
    /// The random factor and summand of the hash.
    seeds: [u64; 2],
    /// Entries that made room for the address of another host.
    evicted: AtomicU64,
}

const BUCKET_BITS: u32 = 14;
const WAYS: usize = 4;
const TIME_BITS: u32 = 11;
const TIME: u64 = (1 << TIME_BITS) - 1;
const PORT_BITS: u32 = 7;
/// The length of one unit of time in seconds. The time in a word wraps after more than two hours.
const UNIT: u64 = 4;
/// The number of buckets that one call of `sweep` searches.
const SWEPT: usize = 16;

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl Table {
    fn new() -> Self {
        let random = RandomState::new();
        let words = (0..WAYS << BUCKET_BITS).map(|_| AtomicU64::new(0)).collect();
        Self { words, seeds: [0, 1].map(|seed| random.hash_one(seed)), evicted: AtomicU64::new(0) }
    }

    /// Returns the bucket of a MAC address, and the tag that identifies the address in the bucket.
    #[inline]
    fn place(&self, mac: MacAddr, vlan: u16) -> (&[AtomicU64], u64) {
        let [a, b, c, d, e, f] = mac.0;
        let key = u64::from_be_bytes([0, 0, a, b, c, d, e, f]) << 12 | u64::from(vlan & 0xfff);
        let [factor, summand] = self.seeds;
        let tag = key >> BUCKET_BITS;
        let hash = tag.wrapping_mul(factor).wrapping_add(summand) >> (u64::BITS - BUCKET_BITS);
        let bucket = ((key ^ hash) & ((1 << BUCKET_BITS) - 1)) as usize * WAYS;
        (self.words.get(bucket..bucket + WAYS).unwrap_or_default(), tag)
    }

    /// Returns the port of a known MAC address.
    #[inline]
    fn find(&self, mac: MacAddr, vlan: u16, now: u64, ageing: u64) -> Option<u8> {
        let (ways, tag) = self.place(mac, vlan);
        let words = ways.iter().map(|way| way.load(Ordering::Relaxed));
        let word = words.into_iter().find(|word| *word != 0 && word >> (PORT_BITS + TIME_BITS) == tag)?;
        (age(word, now) <= ageing).then_some(((word >> TIME_BITS) as u8 & 0x7f) - 1)
    }

    /// Records that a MAC address was seen. Stores a word only if it changed, so that workers do not contend for the
    /// cache line.
    #[inline]
    fn learn(&self, mac: MacAddr, vlan: u16, port: u8, now: u64) {
        let (ways, tag) = self.place(mac, vlan);
        let word = tag << (PORT_BITS + TIME_BITS) | u64::from(port + 1) << TIME_BITS | now & TIME;
        for way in ways {
            let known = way.load(Ordering::Relaxed);
            if known == word {
                return;
            }
            if known != 0 && known >> (PORT_BITS + TIME_BITS) == tag {
                return way.store(word, Ordering::Relaxed);
            }
        }
        self.add(ways, word, now);
    }

    /// Adds an entry to a bucket. In a full bucket, the entry replaces the oldest entry of its own port. If its port
    /// has no entry in the bucket, the entry replaces the oldest entry. So a host that invents addresses evicts at most
    /// one entry of other ports per bucket.
    #[cold]
    fn add(&self, ways: &[AtomicU64], word: u64, now: u64) {
        let port = |word: u64| word >> TIME_BITS & ((1 << PORT_BITS) - 1);
        let rank = |way: &&AtomicU64| match way.load(Ordering::Relaxed) {
            0 => (2, 0),
            known => (u64::from(port(known) == port(word)), age(known, now)),
        };
        if let Some(way) = ways.iter().max_by_key(rank)
            && way.swap(word, Ordering::Relaxed) != 0
        {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the aged entries of `SWEPT` buckets, starting at bucket `from`.
    fn sweep(&self, from: usize, now: u64, ageing: u64) {
        for way in self.words.iter().skip(from * WAYS).take(SWEPT * WAYS) {
            let word = way.load(Ordering::Relaxed);
            if word != 0 && age(word, now) > ageing {
                // The exchange fails if another worker has just updated the entry.
                let _ = way.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// Returns the age of an entry in units of time.
#[inline]
fn age(word: u64, now: u64) -> u64 {
    now.wrapping_sub(word & TIME) & TIME
}

impl Stage for Bridge {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let (now, ageing) = (time(ctx), self.max_age());
        // Flood copies are appended to the batch, after the packets that are in it now.
        for index in 0..batch.len() {
            let Some(mut packet) = batch.get_mut(index) else { return };
            match self.decide(&packet, now, ageing) {
                Ok(Some(port)) => packet.meta_mut().egress = port,
                Ok(None) => self.flood(batch, index),
                Err(reason) => packet.drop(reason),
            }
        }
    }

    fn tick(&mut self, ctx: &Ctx) {
        let (worker, workers) = self.place;
        if let Some(table) = &self.table {
            // Each worker sweeps its share of the buckets.
            table.sweep(self.sweep * SWEPT * workers.max(1) + worker * SWEPT, time(ctx), self.max_age());
            self.sweep = (self.sweep + 1) % ((1 << BUCKET_BITS) / (SWEPT * workers.max(1)) + 1);
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        check_period("ageing", self.ageing, Period::from_secs(1)..=Period::from_secs(3600))?;
        let mut numbers = Vec::new();
        for (place, name) in self.ports.iter().enumerate() {
            let number = setup.port(name, &format!("ports[{place}]"))?;
            if numbers.contains(&number) {
                return Err(Problem::at(format!("ports[{place}]"), format!("`{name}` is listed twice")));
            }
            numbers.push(number);
        }
        if self.ports.is_empty() {
            numbers = (0..setup.ports().len() as u8).collect();
        }
        // A word of the table has seven bits for the port.
        if !(2..=64).contains(&numbers.len()) || numbers.iter().any(|number| *number > 126) {
            let problem = Problem::at("ports", format!("a bridge cannot have {} ports", numbers.len()));
            return Err(problem.help("list 2 to 64 ports, out of the first 127 ports of the config"));
        }
        self.joined = numbers.into_iter().map(|number| BridgePort { number, vlans: None }).collect();
        for (place, member) in self.members.iter().enumerate() {
            let key = |key: &str| format!("members[{place}].{key}");
            let number = setup.port(&member.port, &key("port"))?;
            let Some(joined) = self.joined.iter_mut().find(|joined| joined.number == number) else {
                return Err(Problem::at(key("port"), format!("`{}` is not a port of this bridge", member.port)));
            };
            let vlans = joined.vlans.get_or_insert_with(|| Box::new([0; 64]));
            for vlan in &member.vlans {
                if *vlan > 4094 {
                    return Err(Problem::at(key("vlans"), format!("{vlan} is not a VLAN id"))
                        .help("set a VLAN id from 0 to 4094"));
                }
                vlans[usize::from(vlan >> 6)] |= 1 << (vlan & 63);
            }
        }
        self.place = setup.worker();
        self.table = Some(setup.shared(|_| Ok(Table::new()))?);
        Ok(())
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        report("flooded", self.flooded);
        report("flood_copies_missed", self.missed);
        // All workers share the table, so only one worker reports its counter.
        let table = self.table.as_ref().filter(|_| self.place.0 == 0);
        report("evicted", table.map_or(0, |table| table.evicted.load(Ordering::Relaxed)));
    }

    fn info() -> StageInfo {
        StageInfo::new().reasons(&[
            ("alone", "the VLAN has no other port"),
            ("reserved", "the destination is a reserved address that no bridge forwards"),
            ("bad_source", "the source MAC address is multicast or all zeros"),
            ("same_port", "the destination is behind the ingress port"),
            ("not_a_member", "the ingress port or the destination's port is not a member of the VLAN"),
        ])
    }

    fn contract(&self) -> Contract {
        // A flood goes to all ports except the ingress port. One of these ports sends the original frame, and the
        // others send copies.
        Contract::new().sets(Facts::EGRESS).splits(self.joined.len().saturating_sub(2))
    }
}

/// Returns the time since the start of the run in units of the table, modulo the range of a word.
fn time(ctx: &Ctx) -> u64 {
    (ctx.now.0.saturating_sub(ctx.start.0) / (UNIT * 1_000_000_000)) & TIME
}

/// Returns the VLAN id of a frame: the outermost tag, or 0. Reads only the Ethernet header and the first tag.
#[inline]
fn vlan_of(packet: &Packet<'_>) -> u16 {
    let Some((header, rest)) = packet.data().split_at_checked(size_of::<Ethernet>()) else { return 0 };
    let is_tagged = Ethernet::view(header).is_ok_and(|link| is_tag(link.ether_type.get()));
    if is_tagged { VlanTag::view(rest).map_or(0, |tag| tag.id()) } else { 0 }
}

impl Bridge {
    /// Returns the ageing time in units of time, rounded up.
    fn max_age(&self) -> u64 {
        self.ageing.as_nanos().div_ceil(UNIT * 1_000_000_000)
    }

    fn joined(&self, number: u8) -> Option<&BridgePort> {
        self.joined.iter().find(|joined| joined.number == number)
    }

    /// Learns the source address of a frame. Returns the egress port, or `None` to flood the frame.
    #[inline]
    fn decide(&self, packet: &Packet<'_>, now: u64, ageing: u64) -> Result<Option<u8>, Reason> {
        let (ingress, vlan) = (packet.ingress(), vlan_of(packet));
        let link = Ethernet::view(packet.data()).map_err(|_| Reason::Truncated)?;
        let Some(table) = self.table.as_ref().filter(|_| self.joined(ingress).is_some_and(|port| port.has(vlan)))
        else {
            return Err(NOT_A_MEMBER);
        };
        if link.source.is_multicast() || link.source == MacAddr::ZERO {
            return Err(BAD_SOURCE);
        }
        if link.destination.0[..5] == [1, 0x80, 0xc2, 0, 0] && link.destination.0[5] < 16 {
            return Err(RESERVED);
        }
        table.learn(link.source, vlan, ingress, now);
        if link.destination.is_multicast() {
            return Ok(None);
        }
        match table.find(link.destination, vlan, now, ageing) {
            None => Ok(None),
            Some(port) if port == ingress => Err(SAME_PORT),
            Some(port) if self.joined(port).is_some_and(|port| port.has(vlan)) => Ok(Some(port)),
            Some(_) => Err(NOT_A_MEMBER),
        }
    }

    /// Sends a frame to all ports of its VLAN except the ingress port.
    fn flood(&mut self, batch: &mut Batch, index: usize) {
        let Some(packet) = batch.get_mut(index) else { return };
        let (ingress, vlan, len, mut first) = (packet.ingress(), vlan_of(&packet), packet.len(), true);
        let mut missed = 0;
        for port in self.joined.iter().filter(|port| port.number != ingress && port.has(vlan)) {
            let copy =
                if std::mem::take(&mut first) { batch.get_mut(index) } else { batch.split_from(index, [0..len, 0..0]) };
            match copy {
                Some(mut copy) => copy.meta_mut().egress = port.number,
                None => missed += 1,
            }
        }
        self.flooded += 1;
        // If no buffer is free for a copy, only the port of that copy misses the frame.
        self.missed += missed;
        if first && let Some(mut packet) = batch.get_mut(index) {
            packet.drop(ALONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame, port};

    fn host_mac(number: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 1, number])
    }

    fn bench(ingress: u8, parameters: &str) -> Result<Harness, String> {
        let ports = ["a", "b", "c", "d"].map(port);
        Harness::builder().ports(&ports).ingress(ingress).build::<Bridge>(parameters)
    }

    /// Sends one frame through the bridge. Returns the egress ports of the frame, or the drop reason.
    fn send(bench: &mut Harness, from: MacAddr, to: MacAddr, vlan: u16) -> Result<Vec<u8>, String> {
        let sent = frame().ethernet(from, to);
        let sent = if vlan == 0 { sent } else { sent.vlan(vlan) };
        let sent = sent.ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1, 2).payload(&[9; 50]).build();
        let mut ports = Vec::new();
        for outcome in bench.run(&[&sent]) {
            match outcome.fate {
                Fate::Next => {
                    assert_eq!(outcome.bytes, sent);
                    ports.push(outcome.meta.egress);
                }
                Fate::Dropped(reason) => return Err(reason),
                other => panic!("{other:?}"),
            }
        }
        ports.sort_unstable();
        Ok(ports)
    }

    proptest! {
        #[test]
        fn frames_go_to_the_port_where_the_address_was_last_seen(
            frames in prop::collection::vec((0..4u8, 0..6u8, 0..6u8, 0..3u16, 0..200u64), 1..60),
        ) {
            let mut bench = bench(0, "ageing = \"100s\"").unwrap();
            let mut heard: HashMap<(u8, u16), (u8, u64)> = HashMap::new();
            let mut now = 0;
            for (ingress, from, to, vlan, later) in frames {
                // The steps are multiples of the table's unit of time, so that the model does not have to round.
                now += later / 4 * 4;
                bench.advance(later / 4 * 4_000_000_000);
                bench.set_ingress(ingress);
                heard.insert((from, vlan), (ingress, now));
                let known = heard.get(&(to, vlan)).filter(|(_, at)| now - at <= 100).map(|(port, _)| *port);
                let expected = match known {
                    Some(port) if port == ingress => Err("same_port".to_owned()),
                    Some(port) => Ok(vec![port]),
                    None => Ok((0..4).filter(|port| *port != ingress).collect()),
                };
                prop_assert_eq!(send(&mut bench, host_mac(from), host_mac(to), vlan), expected);
            }
        }
    }

    #[test]
    fn multicast_is_flooded_and_reserved_addresses_are_dropped() {
        let mut bench = bench(1, "").unwrap();
        assert_eq!(send(&mut bench, host_mac(1), MacAddr::BROADCAST, 0), Ok(vec![0, 2, 3]));
        assert_eq!(send(&mut bench, host_mac(1), MacAddr([1, 0, 0x5e, 0, 0, 5]), 0), Ok(vec![0, 2, 3]));
        assert_eq!(send(&mut bench, host_mac(1), MacAddr([1, 0x80, 0xc2, 0, 0, 0xe]), 0), Err("reserved".to_owned()));
        assert_eq!(send(&mut bench, MacAddr([3; 6]), host_mac(1), 0), Err("bad_source".to_owned()));
        assert_eq!(send(&mut bench, MacAddr::ZERO, host_mac(1), 0), Err("bad_source".to_owned()));
    }

    /// The payload after the addresses and the tag can be anything.
    #[test]
    fn frame_with_any_payload_is_forwarded() {
        let mut bench = bench(0, "ports = ['a', 'b']").unwrap();
        for behind in
            [&[8, 0, 0x45][..], &[8, 0, 0xff, 0xff], &[0x86, 0xdd], &[0x81, 0, 0, 7, 0x81, 0, 0, 9, 8, 0], &[0x81, 0]]
        {
            let sent: Vec<u8> = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], behind].concat();
            let outcome = bench.run_one(&sent);
            assert_eq!((outcome.fate, outcome.bytes, outcome.meta.egress), (Fate::Next, sent, 1));
        }
    }

    #[test]
    fn vlans_are_separate_and_ports_only_carry_their_vlans() {
        let members =
            "ports = ['a', 'b', 'c']\nmembers = [{ port = 'b', vlans = [0, 10] }, { port = 'c', vlans = [20] }]";
        let mut bench = bench(0, members).unwrap();
        let mut to = |ingress, vlan| {
            bench.set_ingress(ingress);
            send(&mut bench, host_mac(ingress), MacAddr::BROADCAST, vlan)
        };
        assert_eq!((to(0, 0), to(0, 10), to(0, 20)), (Ok(vec![1]), Ok(vec![1]), Ok(vec![2])));
        assert_eq!(to(0, 30), Err("alone".to_owned()));
        assert_eq!((to(1, 20), to(3, 0)), (Err("not_a_member".to_owned()), Err("not_a_member".to_owned())));
    }

    /// Many random addresses fill the table, which does not grow.
    #[test]
    fn active_address_stays_in_the_table_when_random_addresses_fill_it() {
        let table = Table::new();
        for number in 0..200_000u32 {
            let [a, b, c, d] = number.to_be_bytes();
            table.learn(MacAddr([2, 9, a, b, c, d]), 0, 1, 1);
        }
        assert_eq!(table.words.len(), 1 << 16);
        table.learn(host_mac(1), 0, 2, 2);
        assert_eq!(table.find(host_mac(1), 0, 2, 75), Some(2));
        let left = |table: &Table| table.words.iter().filter(|way| way.load(Ordering::Relaxed) != 0).count();
        assert!(left(&table) > 60_000);
        for from in (0..1 << BUCKET_BITS).step_by(SWEPT) {
            table.sweep(from, 78, 76);
        }
        assert_eq!(left(&table), 1);
    }

    /// An attacker who knows the buckets sends from four addresses that share the bucket of a host on another port.
    #[test]
    fn four_addresses_of_one_bucket_do_not_evict_a_host_of_another_port() {
        let table = Table::new();
        let bucket = |mac| table.place(mac, 0).0.as_ptr();
        let addresses = (0u32..).map(|number| {
            let [a, b, c, d] = number.to_be_bytes();
            MacAddr([2, 9, a, b, c, d])
        });
        let host = host_mac(1);
        let chosen: Vec<MacAddr> = addresses.filter(|mac| bucket(*mac) == bucket(host)).take(4).collect();
        table.learn(host, 0, 2, 1);
        for mac in &chosen {
            table.learn(*mac, 0, 1, 2);
        }
        assert_eq!(table.find(host, 0, 2, 75), Some(2), "seeds {:?}", table.seeds);
        // The last address replaced the first one, and the counter has it.
        let found: Vec<Option<u8>> = chosen.iter().map(|mac| table.find(*mac, 0, 2, 75)).collect();
        assert_eq!((found.iter().flatten().count(), table.evicted.load(Ordering::Relaxed)), (3, 1));
    }

    #[test]
    fn evictions_are_counted() {
        let mut bench = bench(0, "").unwrap();
        let evicted = |bench: &Harness| bench.counters().into_iter().find(|(name, _)| name == "evicted").unwrap().1;
        assert_eq!(evicted(&bench), 0);
        // 65,536 entries cannot hold 66,000 addresses.
        for first in (0..66_000u32).step_by(80) {
            let frames = (first..first + 80).map(|number| {
                let [_, a, b, c] = number.to_be_bytes();
                frame().ethernet(MacAddr([2, 1, 1, a, b, c]), host_mac(1)).build()
            });
            let frames: Vec<Vec<u8>> = frames.collect();
            bench.run(&frames);
        }
        assert!(evicted(&bench) >= 464, "{}", evicted(&bench));
    }

    /// Addresses that differ only in their first bits are spread over the buckets, and differently in each table.
    #[test]
    fn buckets_of_addresses_differ_between_tables() {
        let buckets = || {
            let table = Table::new();
            let start = table.words.as_ptr().addr();
            let bucket = |number: u16| {
                let [a, b] = number.to_be_bytes();
                table.place(MacAddr([a, b & 0xfe, 7, 7, 7, 7]), 0).0.as_ptr().addr() - start
            };
            (0..1000).map(|number| bucket(number << 1)).collect::<Vec<_>>()
        };
        let (one, other) = (buckets(), buckets());
        let shared = one.iter().zip(&other).filter(|(one, other)| one == other).count();
        let different = one.into_iter().collect::<std::collections::HashSet<_>>().len();
        assert!(different > 500 && shared < 100, "{different} buckets, {shared} shared");
    }

    #[test]
    fn invalid_parameters_are_refused_with_their_key() {
        for (parameters, message) in [
            ("ageing = \"0s\"", "ageing: 0s is out of range"),
            ("ports = ['a']", "ports: a bridge cannot have 1 ports"),
            ("ports = ['a', 'b', 'a']", "ports[2]: `a` is listed twice"),
            ("ports = ['a', 'x']", "ports[1]: there is no port `x`"),
            (
                "ports = ['a', 'b']\nmembers = [{ port = 'c', vlans = [] }]",
                "members[0].port: `c` is not a port of this",
            ),
            ("members = [{ port = 'c', vlans = [4095] }]", "members[0].vlans: 4095 is not a VLAN id"),
        ] {
            let error = bench(0, parameters).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
