//! `reassemble`: reassembles fragmented datagrams.

mod assembly;
mod index;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::parameter::check_period;
use crate::parse;
use crate::responder::Responder;
use assembly::{Assembly, Flaw, Key, Piece};
use dataplane_core::mem::{Batch, Edge, MetaFlags, Packet, Reason};
use dataplane_core::pipeline::{
    Contract, CounterReport, Ctx, Facts, Generator, HeldPackets, Problem, Setup, Stage, StageInfo,
};
use dataplane_core::units::{Bytes, Period};
use index::Index;

/// Reassembles fragmented IPv4 and IPv6 datagrams (RFC 791, RFC 8200 section 4.5).
///
/// The stage copies the fragments of a datagram into its own memory, and consumes their packets. When the last missing
/// fragment arrives, the stage does not consume the packet of this fragment. Instead, the stage writes the complete
/// datagram into the packet and parses the packet again. The packet then goes to the next stage. If an IPv6 packet has
/// a fragment header but is not fragmented, the stage removes this header (RFC 6946), and the packet goes to the next
/// stage. All other packets go to the next stage unchanged.
///
/// Two fragments conflict if they overlap or disagree about the end of the datagram. After a conflict, the stage
/// discards the whole datagram, including fragments that arrive later (RFC 5722). If a fragment arrives twice, the
/// stage drops only the second copy. If a datagram is incomplete after `timeout`, the counter `expired` counts the
/// datagram. If the fragment with offset 0 has arrived, this fragment leaves by the output `expired`. To notify the
/// sender, connect an `icmp_error` stage with `kind = "reassembly_timeout"` to this output. If an earlier stage made
/// the fragment longer than a received packet can be, no packet leaves.
///
/// Each worker needs `datagrams` times `largest` bytes of memory. If the limit `datagrams` is reached, a new datagram
/// replaces the oldest incomplete datagram. If a source reaches the limit `per_source`, a new datagram of this source
/// replaces the oldest incomplete datagram of this source. All fragments of a datagram must arrive on the same port, in
/// the same VLAN and at the same worker. With `own = true`, the stage reassembles only datagrams for this host. On a
/// router, set `own = true`: a router must not fragment IPv6 packets, so a reassembled IPv6 packet may be too long to
/// forward.
///
/// ```toml
/// [[pipeline.stage]]
/// name       = "whole"
/// use        = "reassemble"
/// timeout    = "10s"
/// datagrams  = 256
/// per_source = 32
/// largest    = 65_515
/// own        = true
/// outputs    = { expired = "tell_expired" }
///
/// [[pipeline.stage]]
/// name      = "tell_expired"
/// use       = "icmp_error"
/// kind      = "reassembly_timeout"
/// addresses = [{ port = "wan", address = "192.0.2.1" }]
/// outputs   = { reply = "out" }
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reassemble {
    /// The maximum number of datagrams in reassembly, for each worker: 1 to 1,024. Default: 64.
    #[serde(default = "datagrams")]
    #[schemars(range(min = 1, max = 1024))]
    datagrams: u16,
    /// The maximum size of a datagram in bytes, without its headers: 1,280 to 65,515. The datagram must also fit into
    /// a packet buffer (`buffer_size` of `[runtime]`). Default: 9,216.
    #[serde(default = "largest")]
    largest: Bytes,
    /// The maximum time from the arrival of the earliest fragment of a datagram until the datagram is complete: `"1s"`
    /// to `"1m"`. Default: `"30s"`.
    #[serde(default = "timeout")]
    timeout: Period,
    /// The maximum number of datagrams in reassembly from one source, for each worker: 1 to 1,024. Default: 16.
    #[serde(default = "per_source")]
    #[schemars(range(min = 1, max = 1024))]
    per_source: u16,
    /// Whether to reassemble only datagrams for addresses that the config gives to the ports. Default: `false`.
    #[serde(default)]
    own: bool,
    /// Whether all ports of the replaced stage exist and have unchanged numbers.
    #[serde(skip)]
    #[schemars(skip)]
    keeps_ports: bool,
    #[serde(skip)]
    #[schemars(skip)]
    hosts: Option<Responder>,
    #[serde(skip)]
    #[schemars(skip)]
    slots: Vec<DatagramSlot>,
    #[serde(skip)]
    #[schemars(skip)]
    index: Index,
    #[serde(skip)]
    #[schemars(skip)]
    counts: Counts,
}

fn datagrams() -> u16 {
    64
}

fn largest() -> Bytes {
    Bytes(9216)
}

fn timeout() -> Period {
    Period::from_secs(30)
}

fn per_source() -> u16 {
    16
}

/// The memory for one datagram, and the state of its reassembly.
#[derive(Debug)]
struct DatagramSlot {
    state: DatagramState,
    key: Key,
    /// The arrival time of the first received fragment, in nanoseconds since start.
    since: u64,
    assembly: Assembly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DatagramState {
    Open,
    /// The datagram was discarded. Later fragments are dropped for this reason.
    GivenUp(Reason),
    /// The timeout has passed, and the first fragment has not left by `expired` yet.
    Expired,
}

#[derive(Debug, Default)]
struct Counts {
    opened: u64,
    completed: u64,
    expired: u64,
    evicted: u64,
    /// Datagrams that were discarded, for example because of an overlap.
    given_up: u64,
    /// The largest number of open datagrams so far.
    open_max: u64,
}

impl Counts {
    /// Returns the number of open datagrams.
    fn open(&self) -> u64 {
        self.opened - (self.completed + self.expired + self.evicted + self.given_up)
    }
}

const EXPIRED: Edge = Edge::new(0);
const BAD_FRAGMENT: Reason = Reason::of_stage(0);
const DUPLICATE: Reason = Reason::of_stage(1);
const OVERLAP: Reason = Reason::of_stage(2);
const TOO_LARGE: Reason = Reason::of_stage(3);
const TOO_MANY: Reason = Reason::of_stage(4);
const BAD_ECN: Reason = Reason::of_stage(5);

/// The maximum number of expired datagrams that one call of `generate` handles.
const EXPIRING: usize = 16;

impl Stage for Reassemble {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let meta = packet.meta();
            let flags = meta.flags;
            if flags.contains(MetaFlags::FRAGMENT) {
                if self.wants(&packet) {
                    self.take(&mut packet, ctx.now.0.saturating_sub(ctx.start.0));
                }
            } else if flags.contains(MetaFlags::IPV6)
                && meta.l4 > meta.l3 + 40
                && self.wants(&packet)
                && assembly::strip_atomic(&mut packet)
                && parse::parse_again(&mut packet).is_err()
            {
                packet.drop(BAD_FRAGMENT);
            }
        }
    }

    fn tick(&mut self, ctx: &Ctx) {
        let now = ctx.now.0.saturating_sub(ctx.start.0);
        let timeout = self.timeout.as_nanos();
        let mut next = self.index.oldest();
        while let Some(at) = next {
            next = self.index.after(at);
            let slot = &mut self.slots[at];
            match slot.state {
                // The datagram waits for `generate`.
                DatagramState::Expired => continue,
                // All following datagrams are younger, so none of them has expired.
                _ if now.saturating_sub(slot.since) < timeout => return,
                DatagramState::Open => self.counts.expired += 1,
                DatagramState::GivenUp(_) => {}
            }
            if slot.state == DatagramState::Open && slot.assembly.first().is_some() {
                slot.state = DatagramState::Expired;
                self.index.forget(&slot.key, at);
            } else {
                self.index.close(&slot.key, at);
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let given = [
            ("datagrams", u64::from(self.datagrams), 1..=1024),
            ("largest", self.largest.0, 1280..=65_515),
            ("per_source", u64::from(self.per_source), 1..=1024),
        ];
        for (key, value, range) in given {
            if !range.contains(&value) {
                let help = format!("set `{key}` to a value from {} to {}", range.start(), range.end());
                return Err(Problem::at(key, format!("{value} is out of range")).help(help));
            }
        }
        check_period("timeout", self.timeout, Period::from_secs(1)..=Period::from_secs(60))?;
        // The datagrams in reassembly contain the numbers of their ports. Because of this call, the program prepares
        // the stage again if the ports change.
        let _ = setup.ports();
        self.keeps_ports = setup.has_unchanged_port_numbers();
        if self.own {
            let hosts = Responder::new(&[], |_| true, None, None, setup);
            let problem = |_| {
                let problem = Problem::at("own", "no port has an address, so no datagram is for this host");
                problem.help("add addresses = [\"192.0.2.1/24\"] to a [[port]]")
            };
            self.hosts = Some(hosts.map_err(problem)?);
        }
        if !setup.is_offline() {
            let bytes = u64::from(self.datagrams) * self.largest.0;
            setup.declare_worker_memory(bytes, "datagrams", "reduce `datagrams` or `largest`")?;
        }
        let slot = |_| DatagramSlot {
            state: DatagramState::Open,
            key: Key::default(),
            since: 0,
            assembly: Assembly::new(self.largest.0 as usize),
        };
        self.slots = (0..self.datagrams).map(slot).collect();
        self.index = Index::new(self.datagrams);
        Ok(())
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("open", self.counts.open());
        report.add("open_max", self.counts.open_max);
        report.add("completed", self.counts.completed);
        report.add("expired", self.counts.expired);
        report.add("evicted", self.counts.evicted);
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        let Some(earlier) = earlier.downcast::<Self>() else { return HeldPackets::Keep };
        std::mem::swap(&mut self.counts, &mut earlier.counts);
        if self.keeps_ports && (self.datagrams, self.largest) == (earlier.datagrams, earlier.largest) {
            std::mem::swap(&mut self.slots, &mut earlier.slots);
            std::mem::swap(&mut self.index, &mut earlier.index);
        } else {
            // The open datagrams of the earlier stage are lost.
            self.counts.opened -= self.counts.open();
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("the datagrams in reassembly, unless `datagrams` or `largest` changes, or a port is removed or gets another number")
            .outputs(&[("expired", "fragments with offset 0 of datagrams that were not complete in time")])
            .reasons(&[
                (
                    "bad_fragment",
                    "the fragment has no payload, an invalid length or offset, or more than 256 bytes of headers",
                ),
                ("duplicate", "the same fragment was received before"),
                ("overlap", "the fragment conflicts with another fragment of its datagram"),
                ("too_large", "the datagram is larger than `largest` or than a packet buffer"),
                ("too_many", "the datagram has more than 128 fragments"),
                (
                    "bad_ecn",
                    "some fragments of the datagram are marked CE (congestion experienced), others Not-ECT (RFC 3168, \
                     section 5.3)",
                ),
            ])
            .gauges(&["open", "open_max"])
    }

    fn contract(&self) -> Contract {
        Contract::new()
            .needs(Facts::HEADERS)
            .sets_on_outputs(Facts::HEADERS | Facts::FLOW_HASH)
            .generates::<Self>(EXPIRING)
    }
}

impl Generator for Reassemble {
    fn generate(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        // All packets of a batch have one ingress port. Datagrams of other ports wait for the next call.
        let (mut next, mut port, mut made) = (self.index.oldest(), None, 0);
        while let Some(at) = next.filter(|at| made < EXPIRING && self.slots[*at].state == DatagramState::Expired) {
            next = self.index.after(at);
            let slot = &self.slots[at];
            if *port.get_or_insert(slot.key.port) != slot.key.port {
                continue;
            }
            batch.set_ingress(slot.key.port);
            // A fragment that grew into the headroom of its buffer may be too long for a new packet. The stage then
            // generates no packet. The counter `expired` already counts the datagram.
            if let Some(first) = slot.assembly.first().filter(|first| first.len() <= batch.max_generated_len()) {
                let Some(mut packet) = batch.generate(first) else { return };
                match parse::parse_again(&mut packet) {
                    Ok(()) => packet.steer(EXPIRED),
                    Err(_) => packet.drop(BAD_FRAGMENT),
                }
                made += 1;
            }
            self.index.close(&slot.key, at);
        }
    }
}

impl Reassemble {
    /// Returns whether the stage reassembles datagrams for the destination address of a packet.
    #[inline]
    fn wants(&self, packet: &Packet<'_>) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let l3 = usize::from(packet.meta().l3);
        let at = |from: usize| packet.data().get(l3 + from..).unwrap_or_default();
        match packet.meta().flags.contains(MetaFlags::IPV4) {
            true => at(16).first_chunk().is_some_and(|address| hosts.has_v4(address)),
            false => at(24).first_chunk().is_some_and(|address| hosts.has_v6(address)),
        }
    }

    /// Adds a fragment. If no fragment is missing any more, the packet becomes the complete datagram.
    fn take(&mut self, packet: &mut Packet<'_>, now: u64) {
        let Some(piece) = assembly::locate(packet) else { return packet.drop(BAD_FRAGMENT) };
        let Some(at) = self.slot(&piece, now) else { return packet.drop(BAD_FRAGMENT) };
        let slot = &mut self.slots[at];
        if let DatagramState::GivenUp(reason) = slot.state {
            return packet.drop(reason);
        }
        let flaw = match slot.assembly.add(&piece, packet.data()) {
            Ok(false) => return packet.consume(),
            Ok(true) => slot.assembly.finish(packet).err(),
            Err(flaw) => Some(flaw),
        };
        let reason = match flaw {
            None => {
                self.index.close(&slot.key, at);
                self.counts.completed += 1;
                if parse::parse_again(packet).is_err() {
                    packet.drop(BAD_FRAGMENT);
                }
                return;
            }
            Some(Flaw::Duplicate) => return packet.drop(DUPLICATE),
            Some(Flaw::Overlap) => OVERLAP,
            Some(Flaw::TooLarge) => TOO_LARGE,
            Some(Flaw::TooMany) => TOO_MANY,
            Some(Flaw::Congestion) => BAD_ECN,
        };
        slot.state = DatagramState::GivenUp(reason);
        self.counts.given_up += 1;
        packet.drop(reason);
    }

    /// Returns the slot of a fragment's datagram. Assigns a slot if the datagram is new, and evicts an older datagram
    /// if necessary.
    fn slot(&mut self, piece: &Piece, now: u64) -> Option<usize> {
        if let Some(known) = self.index.find(&piece.key) {
            return Some(known);
        }
        let own = self.index.oldest_of_source(&piece.key).filter(|(_, open)| *open >= self.per_source);
        let gone = match own {
            Some((own, _)) => Some(own),
            None if self.index.is_full() => self.index.oldest(),
            None => None,
        };
        if let Some(gone) = gone {
            let slot = &self.slots[gone];
            self.counts.evicted += u64::from(slot.state == DatagramState::Open);
            self.index.close(&slot.key, gone);
        }
        let at = self.index.open(piece.key)?;
        let slot = &mut self.slots[at];
        (slot.state, slot.key, slot.since) = (DatagramState::Open, piece.key, now);
        slot.assembly.clear();
        self.counts.opened += 1;
        self.counts.open_max = self.counts.open_max.max(self.counts.open());
        Some(at)
    }
}
