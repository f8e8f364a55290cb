//! `bridge`: a switch that learns where stations are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::header::Header;
use crate::header::MacAddr;
use crate::header::ethernet::Ethernet;
use crate::header::vlan::{VlanTag, is_tag};
use crate::mem::{Batch, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Problem, Setup, Stage};

/// Sends frames to the port behind which their station was last heard, for every VLAN apart; where that is not known, and
/// to groups, to all other ports (IEEE 802.1Q).
///
/// All workers learn into one table of 65,536 stations. One that was not heard for `ageing` seconds is forgotten; where
/// many share a place of the table the one that was heard longest ago makes room. Frames to the reserved addresses
/// 01:80:c2:00:00:00 to ..0f, which no bridge sends on, and frames whose source is a group or all zeros are dropped, and so is what came
/// by the port that it would leave by.
///
/// A frame that goes to several ports takes a buffer for each: a burst is at most 256 packets divided by the number of
/// ports. Frames without a tag are of VLAN 0.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "switch"
/// use     = "bridge"
/// ports   = ["a", "b", "c"]
/// members = [{ port = "c", vlans = [0, 10, 20] }]
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// The ports that are joined; without it, all.
    #[serde(default)]
    ports: Vec<String>,
    /// Ports that are in some VLANs alone: frames of others neither come in nor leave by them.
    #[serde(default)]
    members: Vec<Member>,
    /// After how many seconds a station is forgotten that was not heard: 1 to 3,600.
    #[serde(default = "ageing")]
    ageing: u16,
    #[serde(skip)]
    #[schemars(skip)]
    joined: Vec<Joined>,
    #[serde(skip)]
    #[schemars(skip)]
    table: Option<Arc<Table>>,
    /// The bucket that is looked through next for what has aged.
    #[serde(skip)]
    #[schemars(skip)]
    sweep: usize,
    #[serde(skip)]
    #[schemars(skip)]
    flooded: u64,
    /// Copies for which there was no buffer.
    #[serde(skip)]
    #[schemars(skip)]
    missed: u64,
    /// The worker and how many there are.
    #[serde(skip)]
    #[schemars(skip)]
    place: (usize, usize),
}

fn ageing() -> u16 {
    300
}

/// A port that is in some VLANs alone.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Member {
    /// The port.
    port: String,
    /// The ids of its VLANs; 0: frames without a tag.
    vlans: Vec<u16>,
}

/// A port of the bridge.
#[derive(Debug)]
struct Joined {
    number: u8,
    /// One bit for each VLAN; `None`: all.
    vlans: Option<Box<[u64; 64]>>,
}

impl Joined {
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

/// Stations, shared by all workers: buckets of four words.
///
/// Address and VLAN are 60 bits, mixed so that none is lost. 14 of them are the number of the bucket; the other 46 are in
/// the word, with the port in 7 bits and the time in 11, in units of four seconds. So one word says all, and is read and written at
/// once: what two workers write at the same time is one or the other.
struct Table(Box<[AtomicU64]>);

const BUCKET_BITS: u32 = 14;
const WAYS: usize = 4;
const KEY_BITS: u32 = 60;
const KEY: u64 = (1 << KEY_BITS) - 1;
const TIME_BITS: u32 = 11;
const TIME: u64 = (1 << TIME_BITS) - 1;
const PORT_BITS: u32 = 7;
/// So many seconds are one unit of time in a word: times come again after more than two hours.
const UNIT: u64 = 4;
/// Buckets that are looked through at a time.
const SWEPT: usize = 16;

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl Table {
    fn new() -> Self {
        Self((0..WAYS << BUCKET_BITS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Where a station lies, and what tells it from others there.
    #[inline]
    fn place(&self, mac: MacAddr, vlan: u16) -> (&[AtomicU64], u64) {
        let [a, b, c, d, e, f] = mac.0;
        let key = u64::from_be_bytes([0, 0, a, b, c, d, e, f]) << 12 | u64::from(vlan & 0xfff);
        // Each step has an inverse: an odd factor, and a shift by half the width or more.
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) & KEY;
        let key = key ^ key >> 31;
        let bucket = (key & ((1 << BUCKET_BITS) - 1)) as usize * WAYS;
        (self.0.get(bucket..bucket + WAYS).unwrap_or_default(), key >> BUCKET_BITS)
    }

    /// The port of a station that was heard.
    #[inline]
    fn find(&self, mac: MacAddr, vlan: u16, now: u64, ageing: u64) -> Option<u8> {
        let (ways, tag) = self.place(mac, vlan);
        let words = ways.iter().map(|way| way.load(Ordering::Relaxed));
        let word = words.into_iter().find(|word| *word != 0 && word >> (PORT_BITS + TIME_BITS) == tag)?;
        (age(word, now) <= ageing).then_some(((word >> TIME_BITS) as u8 & 0x7f) - 1)
    }

    /// A station was heard. It writes only what is not there yet, so that workers do not fight over its memory.
    #[inline]
    fn learn(&self, mac: MacAddr, vlan: u16, port: u8, now: u64) {
        let (ways, tag) = self.place(mac, vlan);
        let word = tag << (PORT_BITS + TIME_BITS) | u64::from(port + 1) << TIME_BITS | now & TIME;
        let mut oldest: Option<(u64, &AtomicU64)> = None;
        for way in ways {
            let known = way.load(Ordering::Relaxed);
            if known == word {
                return;
            }
            if known != 0 && known >> (PORT_BITS + TIME_BITS) == tag {
                return way.store(word, Ordering::Relaxed);
            }
            let rank = if known == 0 { u64::MAX } else { age(known, now) };
            if oldest.is_none_or(|(age, _)| rank > age) {
                oldest = Some((rank, way));
            }
        }
        if let Some((_, way)) = oldest {
            way.store(word, Ordering::Relaxed);
        }
    }

    /// Forgets what was not heard for long, in some buckets from one on.
    fn sweep(&self, from: usize, now: u64, ageing: u64) {
        for way in self.0.iter().skip(from * WAYS).take(SWEPT * WAYS) {
            let word = way.load(Ordering::Relaxed);
            if word != 0 && age(word, now) > ageing {
                // Unless it was heard in this moment.
                let _ = way.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// How long ago the station of a word was heard, in units of time.
#[inline]
fn age(word: u64, now: u64) -> u64 {
    now.wrapping_sub(word & TIME) & TIME
}

impl Stage for Bridge {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let (now, ageing) = (time(ctx), self.longest());
        // Copies of a flood come behind those that are here now.
        for index in 0..batch.len() {
            let Some(mut packet) = batch.get_mut(index) else { return };
            match self.decide(&packet, now, ageing) {
                Ok(Some(port)) => packet.meta_mut().egress = port,
                Ok(None) => self.flood(batch, index),
                Err(reason) => packet.drop(reason),
            }
        }
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[
            ("alone", "there is no other port in its VLAN"),
            ("reserved", "an address that no bridge sends on"),
            ("bad_source", "the source is a group of stations, or no station"),
            ("same_port", "its station is behind the port that it came by"),
            ("not_a_member", "the port that it came by, or its station's, is not in its VLAN"),
        ]
    }

    fn sets(&self) -> Facts {
        Facts::EGRESS
    }

    fn makes(&self) -> usize {
        // To all but the one that it came by, which takes the frame itself.
        self.joined.len().saturating_sub(2)
    }

    fn tick(&mut self, ctx: &Ctx) {
        let (worker, workers) = self.place;
        if let Some(table) = &self.table {
            // Each worker has its share of the buckets.
            table.sweep(self.sweep * SWEPT * workers.max(1) + worker * SWEPT, time(ctx), self.longest());
            self.sweep = (self.sweep + 1) % ((1 << BUCKET_BITS) / (SWEPT * workers.max(1)) + 1);
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if !(1..=3600).contains(&self.ageing) {
            return Err(Problem::at("ageing", format!("{} seconds are not to be had", self.ageing)).help("1 to 3600"));
        }
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
            let problem = Problem::at("ports", format!("a bridge of {} ports", numbers.len()));
            return Err(problem.help("2 to 64 are joined, of the first 127 of the config"));
        }
        self.joined = numbers.into_iter().map(|number| Joined { number, vlans: None }).collect();
        for (place, member) in self.members.iter().enumerate() {
            let key = |key: &str| format!("members[{place}].{key}");
            let number = setup.port(&member.port, &key("port"))?;
            let Some(joined) = self.joined.iter_mut().find(|joined| joined.number == number) else {
                return Err(Problem::at(key("port"), format!("`{}` is no port of this bridge", member.port)));
            };
            let vlans = joined.vlans.get_or_insert_with(|| Box::new([0; 64]));
            for vlan in &member.vlans {
                if *vlan > 4094 {
                    return Err(Problem::at(key("vlans"), format!("{vlan} is no VLAN id")).help("0 to 4094"));
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
    }
}

/// The time in units of the table.
fn time(ctx: &Ctx) -> u64 {
    (ctx.now.0.saturating_sub(ctx.start.0) / (UNIT * 1_000_000_000)) & TIME
}

/// The VLAN of a frame. A bridge looks at nothing behind the tag: what is there is not its business.
#[inline]
fn vlan_of(packet: &Packet<'_>) -> u16 {
    let Some((header, rest)) = packet.data().split_at_checked(size_of::<Ethernet>()) else { return 0 };
    let is_tagged = Ethernet::view(header).is_ok_and(|link| is_tag(link.ether_type.get()));
    if is_tagged { VlanTag::view(rest).map_or(0, |tag| tag.id()) } else { 0 }
}

impl Bridge {
    /// After how many units of time a station is forgotten: the full ones, and the one that has begun.
    fn longest(&self) -> u64 {
        u64::from(self.ageing).div_ceil(UNIT)
    }

    fn joined(&self, number: u8) -> Option<&Joined> {
        self.joined.iter().find(|joined| joined.number == number)
    }

    /// Learns from a frame. The port that it goes to; `None`: all others.
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

    /// Sends a frame to all ports of its VLAN but its own.
    fn flood(&mut self, batch: &mut Batch, index: usize) {
        let Some(packet) = batch.get_mut(index) else { return };
        let (ingress, vlan, len, mut first) = (packet.ingress(), vlan_of(&packet), packet.len(), true);
        let mut missed = 0;
        for port in self.joined.iter().filter(|port| port.number != ingress && port.has(vlan)) {
            let copy =
                if std::mem::take(&mut first) { batch.get_mut(index) } else { batch.make_from(index, [0..len, 0..0]) };
            match copy {
                Some(mut copy) => copy.meta_mut().egress = port.number,
                None => missed += 1,
            }
        }
        self.flooded += 1;
        // What did not get a buffer is lost on that port alone.
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
    use crate::testing::{Fate, Harness, frame, port};

    fn station(number: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 1, number])
    }

    fn bench(ingress: u8, parameters: &str) -> Result<Harness, String> {
        let ports = ["a", "b", "c", "d"].map(port);
        Harness::builder().ports(&ports).ingress(ingress).build::<Bridge>(parameters)
    }

    /// Sends one frame in by a port; the ports that it leaves by, or why it does not.
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
        fn stations_are_where_they_were_last_heard(
            frames in prop::collection::vec((0..4u8, 0..6u8, 0..6u8, 0..3u16, 0..200u64), 1..60),
        ) {
            let mut bench = bench(0, "ageing = 100").unwrap();
            let mut heard: HashMap<(u8, u16), (u8, u64)> = HashMap::new();
            let mut now = 0;
            for (ingress, from, to, vlan, later) in frames {
                // In units that the table tells apart, so that the model need not round.
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
                prop_assert_eq!(send(&mut bench, station(from), station(to), vlan), expected);
            }
        }
    }

    #[test]
    fn groups_go_everywhere_and_reserved_ones_nowhere() {
        let mut bench = bench(1, "").unwrap();
        assert_eq!(send(&mut bench, station(1), MacAddr::BROADCAST, 0), Ok(vec![0, 2, 3]));
        assert_eq!(send(&mut bench, station(1), MacAddr([1, 0, 0x5e, 0, 0, 5]), 0), Ok(vec![0, 2, 3]));
        assert_eq!(send(&mut bench, station(1), MacAddr([1, 0x80, 0xc2, 0, 0, 0xe]), 0), Err("reserved".to_owned()));
        assert_eq!(send(&mut bench, MacAddr([3; 6]), station(1), 0), Err("bad_source".to_owned()));
        assert_eq!(send(&mut bench, MacAddr::ZERO, station(1), 0), Err("bad_source".to_owned()));
    }

    /// Whatever is behind the addresses and the tag.
    #[test]
    fn a_frame_is_switched_whatever_it_carries() {
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
    fn vlans_are_apart_and_ports_are_in_theirs() {
        let members =
            "ports = ['a', 'b', 'c']\nmembers = [{ port = 'b', vlans = [0, 10] }, { port = 'c', vlans = [20] }]";
        let mut bench = bench(0, members).unwrap();
        let mut to = |ingress, vlan| {
            bench.set_ingress(ingress);
            send(&mut bench, station(ingress), MacAddr::BROADCAST, vlan)
        };
        assert_eq!((to(0, 0), to(0, 10), to(0, 20)), (Ok(vec![1]), Ok(vec![1]), Ok(vec![2])));
        assert_eq!(to(0, 30), Err("alone".to_owned()));
        assert_eq!((to(1, 20), to(3, 0)), (Err("not_a_member".to_owned()), Err("not_a_member".to_owned())));
    }

    /// A flood of made-up stations fills the table, and never more.
    #[test]
    fn a_flood_of_stations_leaves_room_for_those_that_speak() {
        let table = Table::new();
        for number in 0..200_000u32 {
            let [a, b, c, d] = number.to_be_bytes();
            table.learn(MacAddr([2, 9, a, b, c, d]), 0, 1, 1);
        }
        assert_eq!(table.0.len(), 1 << 16);
        table.learn(station(1), 0, 2, 2);
        assert_eq!(table.find(station(1), 0, 2, 75), Some(2));
        let left = |table: &Table| table.0.iter().filter(|way| way.load(Ordering::Relaxed) != 0).count();
        assert!(left(&table) > 60_000);
        for from in (0..1 << BUCKET_BITS).step_by(SWEPT) {
            table.sweep(from, 78, 76);
        }
        assert_eq!(left(&table), 1);
    }

    #[test]
    fn parameters_that_do_not_fit_are_named() {
        for (parameters, message) in [
            ("ageing = 0", "ageing: 0 seconds"),
            ("ports = ['a']", "ports: a bridge of 1 ports"),
            ("ports = ['a', 'b', 'a']", "ports[2]: `a` is listed twice"),
            ("ports = ['a', 'x']", "ports[1]: there is no port `x`"),
            ("ports = ['a', 'b']\nmembers = [{ port = 'c', vlans = [] }]", "members[0].port: `c` is no port of this"),
            ("members = [{ port = 'c', vlans = [4095] }]", "members[0].vlans: 4095 is no VLAN id"),
        ] {
            let error = bench(0, parameters).err().unwrap();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
