//! `bridge`: an Ethernet switch that learns MAC addresses.

mod loops;
mod rows;
mod storm;
mod table;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::parameter::check_period;
use dataplane_core::header::Header;
use dataplane_core::header::MacAddr;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::vlan::{VlanTag, is_tag};
use dataplane_core::mem::{Batch, Packet, Reason};
use dataplane_core::pipeline::{
    Contract, CounterReport, Ctx, Facts, Generator, HeldPackets, Problem, Setup, Stage, StageInfo, StateTransfer,
    TableInfo,
};
use dataplane_core::units::Period;
use loops::{LoopGuard, Loops};
use rows::LearnedMacs;
use storm::{StormControl, StormMeter};
use table::{BUCKET_BITS, BridgeTable, SWEPT, TIME, UNIT};

/// Forwards each frame to the port that last received a frame from the destination MAC address (IEEE 802.1Q). The
/// bridge learns MAC addresses separately for each VLAN. If the destination address is unknown, multicast or broadcast,
/// the bridge floods the frame to all other ports of the VLAN.
///
/// Untagged frames belong to VLAN 0. All workers share one table of 65,536 MAC addresses. The bridge removes an address
/// if no frame with this source address arrives for the time `ageing`. The table has buckets of four entries. If the
/// bucket of a new address is full, the new address replaces another address in the bucket: the least recently seen
/// address of the ingress port. If the bucket has no address of the ingress port, the new address replaces the least
/// recently seen address in the bucket. The counter `evicted` counts replaced addresses. The counter `learned` is the
/// number of addresses in the table, and `learned_max` is the largest number so far.
///
/// The stage drops these frames:
/// - frames to the reserved addresses 01:80:c2:00:00:00 to 01:80:c2:00:00:0f, which no bridge forwards;
/// - frames whose source address is multicast or all zeros;
/// - frames whose destination was last seen on the ingress port.
///
/// A bridge of N ports floods a frame to up to N - 1 egress ports. Each flooded frame takes one buffer for each egress
/// port, and a batch has at most 256 packets. Therefore, `runtime.burst` must be at most 256 / (N - 1).
///
/// The bridge has no spanning tree protocol, so the ports must not form a loop. In a loop, each flooded frame
/// circulates indefinitely. Two keys limit the damage:
/// - `storm_control` limits, for each ingress port, the rate of the frames that the bridge floods. The bridge drops
///   frames above the rate. The drop reason states the kind of the frame, such as `broadcast_storm`.
/// - `loop_shut` enables loop detection. Each second, the bridge sends a probe through each port. A probe is a
///   multicast frame of 60 bytes with the EtherType 0x88b5 and an authentication code that nobody can forge. If a probe
///   returns to the bridge by another port, two ports are part of a loop: the port that sent the probe and the port
///   that received the probe. Of these two ports, the bridge shuts the port that is later in the config. A shut port
///   neither receives nor sends frames, except for probes. The port opens again when no probe has returned for the time
///   `loop_shut`. The program logs each change, and the counter `shut_PORT` counts how often a port was shut. On a port
///   that is listed in `members`, the probes belong to the lowest VLAN of the port. On all other ports, the probes are
///   untagged. The bridge therefore does not detect a loop that exists only in a VLAN without probes.
///
/// ```toml
/// [[pipeline.stage]]
/// name          = "switch"
/// use           = "bridge"
/// ports         = ["wan", "lan", "left"]
/// members       = [{ port = "left", vlans = [0, 10, 20] }]
/// ageing        = "10m"
/// loop_shut     = "5m"
/// storm_control = { broadcast = "1kpps", multicast = "10kpps", unknown_unicast = "1kpps", burst = 200 }
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
    /// The ports that carry only some VLANs. Each entry lists the VLANs of one port. Frames of other VLANs neither
    /// enter nor leave by this port. Default: each port is a member of all VLANs.
    #[serde(default)]
    members: Vec<Member>,
    /// The bridge removes a MAC address if no frame from this address has arrived for this time: `"1s"` to `"1h"`.
    /// Default: `"5m"`.
    #[serde(default = "ageing")]
    ageing: Period,
    /// For each ingress port, the limits of the frames that the bridge floods. `broadcast`, `multicast` and
    /// `unknown_unicast` are rates in packets per second, for all workers together. `burst` applies to each worker: it
    /// is the number of frames of one kind from one port that the worker can flood at once, before the rate limits the
    /// frames. The default of `burst` is 100. At least one rate is required. Default: no limits.
    storm_control: Option<StormControl>,
    /// The time for which a looped port stays shut after the last probe returned: `"3s"` to `"1h"`. Default: no loop
    /// detection.
    loop_shut: Option<Period>,
    #[serde(skip)]
    #[schemars(skip)]
    joined: Vec<BridgePort>,
    #[serde(skip)]
    #[schemars(skip)]
    table: Option<Arc<BridgeTable>>,
    /// The index of the next group of buckets in which `tick` searches for aged entries.
    #[serde(skip)]
    #[schemars(skip)]
    sweep: usize,
    #[serde(skip)]
    #[schemars(skip)]
    storm: Option<StormMeter>,
    #[serde(skip)]
    #[schemars(skip)]
    guard: Option<LoopGuard>,
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
    /// One bit for each VLAN, or `None` for all VLANs. A shut port has no VLANs, so that the code for each packet needs
    /// no further check.
    vlans: Option<VlanSet>,
    /// The VLANs that replace `vlans` when the port is shut or opened.
    other_vlans: Option<VlanSet>,
    is_shut: bool,
}

type VlanSet = Box<[u64; 64]>;

impl BridgePort {
    fn new(number: u8) -> Self {
        Self { number, vlans: None, other_vlans: Some(Box::new([0; 64])), is_shut: false }
    }

    #[inline]
    fn has(&self, vlan: u16) -> bool {
        self.vlans.as_ref().is_none_or(|vlans| vlans[usize::from(vlan >> 6) & 63] >> (vlan & 63) & 1 == 1)
    }

    /// Returns the lowest VLAN of the port, or `None` if the port has no VLAN.
    fn lowest_vlan(&self) -> Option<u16> {
        (0..4095).find(|vlan| self.has(*vlan))
    }

    /// Shuts or opens the port.
    fn set_shut(&mut self, shut: bool) {
        if self.is_shut != shut {
            std::mem::swap(&mut self.vlans, &mut self.other_vlans);
            self.is_shut = shut;
        }
    }
}

const ALONE: Reason = Reason::of_stage(0);
const RESERVED: Reason = Reason::of_stage(1);
const BAD_SOURCE: Reason = Reason::of_stage(2);
const SAME_PORT: Reason = Reason::of_stage(3);
const NOT_A_MEMBER: Reason = Reason::of_stage(4);
// The storm control has the reasons 5 to 7.
const PROBE: Reason = Reason::of_stage(8);
const SHUT: Reason = Reason::of_stage(9);

impl Stage for Bridge {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let (now, ageing) = (time(ctx), self.max_age());
        // Flood copies are appended to the batch. The loop visits only the packets that are in the batch now.
        for index in 0..batch.len() {
            let Some(mut packet) = batch.get_mut(index) else { return };
            match self.decide(&packet, now, ageing) {
                Ok(Some(port)) => packet.meta_mut().egress = port,
                Ok(None) => self.flood(ctx, batch, index),
                Err(reason) => {
                    let reason = self.refuse(ctx, &packet, reason);
                    packet.drop(reason);
                }
            }
        }
    }

    fn tick(&mut self, ctx: &Ctx) {
        let (worker, workers) = self.place;
        if let Some(table) = &self.table {
            table.now.store(time(ctx), Ordering::Relaxed);
            // Each worker sweeps its share of the buckets.
            table.sweep(self.sweep * SWEPT * workers.max(1) + worker * SWEPT, time(ctx), self.max_age());
            self.sweep = (self.sweep + 1) % ((1 << BUCKET_BITS) / (SWEPT * workers.max(1)) + 1);
        }
        if let Some(guard) = &mut self.guard {
            let now = run_time(ctx);
            for port in &mut self.joined {
                let shut = guard.is_looped(port.number, now);
                if shut != port.is_shut {
                    port.set_shut(shut);
                    guard.log_change(port.number, shut);
                }
            }
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
        if !(2..=64).contains(&numbers.len()) {
            let message = format!("a bridge needs 2 to 64 ports, but this bridge has {}", numbers.len());
            return Err(Problem::at("ports", message).help("list 2 to 64 ports"));
        }
        // An entry of the table of MAC addresses stores the port number in seven bits.
        if let Some(number) = numbers.iter().find(|number| **number > 126) {
            let name = setup.ports().get(usize::from(*number)).map_or("?", |port| port.name.as_str());
            let message = format!("`{name}` is not one of the first 127 ports of the config");
            return Err(Problem::at("ports", message).help("list only ports of the first 127 [[port]] tables"));
        }
        self.joined = numbers.into_iter().map(BridgePort::new).collect();
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
        self.place = setup.worker_and_count();
        self.storm = match &self.storm_control {
            Some(limits) => Some(StormMeter::new(limits, self.joined.iter().map(|port| port.number), self.place)?),
            None => None,
        };
        if let Some(time) = self.loop_shut {
            check_period("loop_shut", time, Period::from_secs(3)..=Period::from_secs(3600))?;
            let ports: Vec<(u8, Option<u16>)> =
                self.joined.iter().map(|port| (port.number, port.lowest_vlan())).collect();
            share_earlier(setup, Loops::new);
            let loops = setup.shared_by_workers(|_| Ok(Loops::new()))?;
            self.guard = Some(LoopGuard::new(setup, loops, &ports, time));
        }
        share_earlier(setup, BridgeTable::new);
        let table = setup.shared_by_workers(|_| Ok(BridgeTable::new()))?;
        if setup.worker_number() == 0 {
            let ports = setup.ports().iter().map(|port| port.name.clone()).collect();
            setup.table("bridge", LearnedMacs { table: table.clone(), ports });
        }
        self.table = Some(table);
        Ok(())
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("flooded", self.flooded);
        report.add("flood_copies_missed", self.missed);
        // All workers share the table, so only one worker reports the counters of the table.
        let table = self.table.as_ref().filter(|_| self.place.0 == 0);
        report.add("evicted", table.map_or(0, |table| table.evicted.load(Ordering::Relaxed)));
        let (learned, learned_max) = table.map_or((0, 0), |table| table.learned());
        report.add("learned", learned);
        report.add("learned_max", learned_max);
        if let Some(guard) = &self.guard {
            guard.counters(report);
        }
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        if let Some(earlier) = earlier.downcast::<Self>() {
            (self.flooded, self.missed, self.sweep) = (earlier.flooded, earlier.missed, earlier.sweep);
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("its learned MAC addresses and detected loops, unless a port is removed or gets another number")
            .reasons(&[
                ("alone", "the VLAN has no other port"),
                ("reserved", "the destination is a reserved address that no bridge forwards"),
                ("bad_source", "the source MAC address is multicast or all zeros"),
                ("same_port", "the destination was last seen on the ingress port"),
                ("not_a_member", "the ingress port or the destination's port is not a member of the VLAN"),
                ("broadcast_storm", "a broadcast frame above the rate of `storm_control`"),
                ("multicast_storm", "a multicast frame above the rate of `storm_control`"),
                ("unknown_storm", "a frame to an unknown unicast address above the rate of `storm_control`"),
                ("probe", "a probe of this bridge returned"),
                ("shut", "the ingress port is shut because of a loop"),
            ])
            .drops(&[Reason::Truncated])
            .gauges(&["learned", "learned_max"])
            .tables(const { &[TableInfo::of::<LearnedMacs>("bridge")] })
    }

    fn contract(&self) -> Contract {
        // A flood goes to all ports except the ingress port. One of these ports sends the original frame, and the
        // others send copies.
        let contract = Contract::new().sets(Facts::EGRESS).splits(self.joined.len().saturating_sub(2));
        let contract = contract.transfers_state::<Self>();
        let sends_probes = self.guard.as_ref().is_some_and(LoopGuard::sends_probes);
        if sends_probes { contract.generates::<Self>(self.joined.len()) } else { contract }
    }
}

impl StateTransfer for Bridge {
    fn save_state(&mut self) -> Option<Vec<u8>> {
        // All workers share the table.
        self.table.as_ref().filter(|_| self.place.0 == 0).map(|table| table.save())
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        let is_port = |port: u8| self.joined(port).is_some();
        self.table.as_ref().map_or(Ok(()), |table| table.load(state, is_port))
    }
}

/// Shares an object of the replaced bridge, such as its table, with the new bridge. If a change has removed or
/// renumbered a port, the port numbers in that object are invalid, so the new bridge gets a new object. With an empty
/// table, the bridge floods frames until it has learned the addresses again, and loses no packets. A revert also gets a
/// new object, because the old object may contain addresses of a port that the revert removes.
fn share_earlier<T: Send + Sync + 'static>(setup: &mut Setup<'_>, make: impl FnOnce() -> T) {
    if setup.has_unchanged_port_numbers() {
        setup.earlier::<T>().into_iter().for_each(|earlier| setup.share(earlier));
    } else if setup.worker_number() == 0 {
        // The bridges of the other workers use this object too.
        setup.share(Arc::new(make()));
    }
}

impl Generator for Bridge {
    fn generate(&mut self, ctx: &Ctx, batch: &mut Batch) {
        if let Some(guard) = &mut self.guard {
            guard.send_probes(batch, run_time(ctx));
        }
    }
}

/// Returns the time since the start of the run in nanoseconds.
fn run_time(ctx: &Ctx) -> u64 {
    ctx.now.0.saturating_sub(ctx.start.0)
}

/// Returns the time since the start of the run, in units of [`UNIT`] seconds. The result wraps, because an entry of the
/// table of MAC addresses stores only the low bits of the time.
fn time(ctx: &Ctx) -> u64 {
    (run_time(ctx) / (UNIT * 1_000_000_000)) & TIME
}

/// Returns the VLAN id in the outermost tag of a frame, or 0 for an untagged frame. Reads only the Ethernet header and
/// the first tag.
#[inline]
fn vlan_of(packet: &Packet<'_>) -> u16 {
    let Some((header, rest)) = packet.data().split_at_checked(size_of::<Ethernet>()) else { return 0 };
    let is_tagged = Ethernet::view(header).is_ok_and(|link| is_tag(link.ether_type.get()));
    if is_tagged { VlanTag::view(rest).map_or(0, |tag| tag.id()) } else { 0 }
}

impl Bridge {
    /// Returns the ageing time in units of [`UNIT`] seconds, rounded up.
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
            // The hosts behind a shut port may be reachable through the other port of the loop.
            Some(port) if self.joined(port).is_some_and(|port| port.is_shut) => Ok(None),
            Some(_) => Err(NOT_A_MEMBER),
        }
    }

    /// Returns the drop reason of a refused frame. For a frame from a shut port, `reason` is `NOT_A_MEMBER`, because a
    /// shut port has no VLANs. This function returns `PROBE` for a probe, and `SHUT` for any other frame from a shut
    /// port.
    #[cold]
    fn refuse(&self, ctx: &Ctx, packet: &Packet<'_>, reason: Reason) -> Reason {
        let Some(guard) = self.guard.as_ref().filter(|_| reason == NOT_A_MEMBER) else { return reason };
        match guard.receives(packet, run_time(ctx)) {
            true => PROBE,
            false if self.joined(packet.ingress()).is_some_and(|port| port.is_shut) => SHUT,
            false => reason,
        }
    }

    /// Decides whether a frame may be flooded.
    fn admit(&mut self, ctx: &Ctx, packet: &Packet<'_>) -> Result<(), Reason> {
        let now = run_time(ctx);
        if self.guard.as_ref().is_some_and(|guard| guard.receives(packet, now)) {
            return Err(PROBE);
        }
        self.storm.as_mut().map_or(Ok(()), |storm| storm.admit(packet, now))
    }

    /// Sends a frame to all ports of its VLAN except the ingress port.
    fn flood(&mut self, ctx: &Ctx, batch: &mut Batch, index: usize) {
        let Some(mut packet) = batch.get_mut(index) else { return };
        if (self.guard.is_some() || self.storm.is_some())
            && let Err(reason) = self.admit(ctx, &packet)
        {
            return packet.drop(reason);
        }
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
mod tests;
