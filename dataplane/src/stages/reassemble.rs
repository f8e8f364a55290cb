//! `reassemble`: puts fragments together again.

mod assembly;
mod index;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::mem::{Batch, Edge, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Problem, Setup, Stage};
use crate::stages::parse;
use crate::stages::responder::Responder;
use assembly::{Assembly, Flaw, Key, Piece};
use index::Index;

/// Puts the fragments of IPv4 and IPv6 datagrams together (RFC 791, RFC 8200 section 4.5).
///
/// Fragments are copied into memory of the stage and end there, as `consumed`; the one that was missing goes on as the whole
/// datagram, whose headers are then known. Everything else goes on untouched; of an IPv6 packet that is whole, and has a
/// fragment header all the same, that header is taken out (RFC 6946).
///
/// Where two fragments are at odds, by a byte that both have or by where the datagram ends, all of the datagram is given
/// up, with what is still to come of it (RFC 5722); one that comes again as it was is dropped alone. A datagram that is not whole
/// in time leaves by `expired`, as its first fragment, for an `icmp_error` stage with `kind = "reassembly_timeout"`; where
/// that has not come it is counted alone.
///
/// Of each worker, memory is `datagrams` times `largest`. Where as many are open, the oldest makes room; where one source has
/// `per_source` open, the oldest of its own. Fragments of one datagram come by one port, in one VLAN, to one worker. A router
/// cannot cut IPv6 again: let it put together what is for itself alone, by `own`.
///
/// ```toml
/// [[pipeline.stage]]
/// name     = "whole"
/// use      = "reassemble"
/// timeout  = 30
/// outputs  = { expired = "tell_expired" }
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
    /// Datagrams that are put together at a time, of each worker: 1 to 1,024.
    #[serde(default = "datagrams")]
    datagrams: u16,
    /// The largest datagram in bytes, without its headers: 1,280 to 65,515. It must fit a packet buffer as well
    /// (`buffer_size` of `[runtime]`).
    #[serde(default = "largest")]
    largest: u16,
    /// How many seconds are waited for the fragments of a datagram, from the first that came: 1 to 60.
    #[serde(default = "timeout")]
    timeout: u8,
    /// The most datagrams of one source at a time, of each worker: 1 to 1,024.
    #[serde(default = "per_source")]
    per_source: u16,
    /// Whether only datagrams for addresses that the ports have in the config are put together.
    #[serde(default)]
    own: bool,
    #[serde(skip)]
    #[schemars(skip)]
    hosts: Option<Responder>,
    #[serde(skip)]
    #[schemars(skip)]
    places: Vec<Place>,
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

fn largest() -> u16 {
    9216
}

fn timeout() -> u8 {
    30
}

fn per_source() -> u16 {
    16
}

/// Room for a datagram.
#[derive(Debug)]
struct Place {
    state: State,
    key: Key,
    /// When its first fragment came, in nanoseconds.
    since: u64,
    assembly: Assembly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// What still comes of it is dropped for this reason.
    GivenUp(Reason),
    /// Its time is over, and that is to be told.
    Expired,
}

#[derive(Debug, Default)]
struct Counts {
    completed: u64,
    expired: u64,
    evicted: u64,
}

const EXPIRED: Edge = Edge::new(0);
const BAD_FRAGMENT: Reason = Reason::own(0);
const DUPLICATE: Reason = Reason::own(1);
const OVERLAP: Reason = Reason::own(2);
const TOO_LARGE: Reason = Reason::own(3);
const TOO_MANY: Reason = Reason::own(4);
const BAD_ECN: Reason = Reason::own(5);

/// The most that expires between two batches.
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
                && parse::again(&mut packet).is_err()
            {
                packet.drop(BAD_FRAGMENT);
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("expired", "first fragments of datagrams whose others did not come in time")]
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[
            (
                "bad_fragment",
                "it has no payload, a length or an offset that cannot be, or more than 256 bytes of headers",
            ),
            ("duplicate", "it is there already"),
            ("overlap", "another fragment of its datagram says otherwise"),
            ("too_large", "the datagram is larger than `largest`, or than a packet buffer"),
            ("too_many", "the datagram has more than 128 fragments"),
            ("bad_ecn", "some fragments tell of congestion, and others say that they cannot (RFC 3168, section 5.3)"),
        ]
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS
    }

    fn sets_on(&self, output: usize) -> Facts {
        if output == EXPIRED.index() { Facts::HEADERS | Facts::FLOW_HASH } else { self.sets() }
    }

    fn emits(&self) -> usize {
        EXPIRING
    }

    fn tick(&mut self, ctx: &Ctx) {
        let now = ctx.now.0.saturating_sub(ctx.start.0);
        let timeout = u64::from(self.timeout) * 1_000_000_000;
        let mut next = self.index.oldest();
        while let Some(at) = next {
            next = self.index.after(at);
            let place = &mut self.places[at];
            match place.state {
                // It waits to be told.
                State::Expired => continue,
                // All behind it are younger.
                _ if now.saturating_sub(place.since) < timeout => return,
                State::Open => self.counts.expired += 1,
                State::GivenUp(_) => {}
            }
            if place.state == State::Open && place.assembly.first().is_some() {
                place.state = State::Expired;
                self.index.forget(&place.key, at);
            } else {
                self.index.close(&place.key, at);
            }
        }
    }

    fn emit(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        // All packets of a batch came in by one port; the others come next time.
        let (mut next, mut port, mut made) = (self.index.oldest(), None, 0);
        while let Some(at) = next.filter(|at| made < EXPIRING && self.places[*at].state == State::Expired) {
            next = self.index.after(at);
            let place = &self.places[at];
            if *port.get_or_insert(place.key.port) != place.key.port {
                continue;
            }
            batch.set_ingress(place.key.port);
            let Some(mut packet) = place.assembly.first().and_then(|first| batch.make(first)) else { return };
            match parse::again(&mut packet) {
                Ok(()) => packet.steer(EXPIRED),
                Err(_) => packet.drop(BAD_FRAGMENT),
            }
            self.index.close(&place.key, at);
            made += 1;
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let given = [
            ("datagrams", u32::from(self.datagrams), 1..=1024),
            ("largest", u32::from(self.largest), 1280..=65_515),
            ("timeout", u32::from(self.timeout), 1..=60),
            ("per_source", u32::from(self.per_source), 1..=1024),
        ];
        for (key, value, range) in given {
            if !range.contains(&value) {
                let help = format!("{} to {}", range.start(), range.end());
                return Err(Problem::at(key, format!("{value} is not to be had")).help(help));
            }
        }
        if self.own {
            let hosts = Responder::new(&[], |_| true, None, None, setup);
            let problem = |_| {
                let problem = Problem::at("own", "no port has an address");
                problem.help("add addresses = [\"192.0.2.1/24\"] to a [[port]]")
            };
            self.hosts = Some(hosts.map_err(problem)?);
        }
        let place = |_| Place {
            state: State::Open,
            key: Key::default(),
            since: 0,
            assembly: Assembly::new(usize::from(self.largest)),
        };
        self.places = (0..self.datagrams).map(place).collect();
        self.index = Index::new(self.datagrams);
        Ok(())
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        let taken = std::iter::successors(self.index.oldest(), |at| self.index.after(*at));
        let open = taken.filter(|at| self.places[*at].state == State::Open).count();
        report("open", open as u64);
        report("completed", self.counts.completed);
        report("expired", self.counts.expired);
        report("evicted", self.counts.evicted);
    }
}

impl Reassemble {
    /// Whether a packet is of those that are put together.
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

    /// Takes a fragment in. If it was the last that was missing, the packet becomes the whole.
    fn take(&mut self, packet: &mut Packet<'_>, now: u64) {
        let Some(piece) = assembly::locate(packet) else { return packet.drop(BAD_FRAGMENT) };
        let Some(at) = self.place(&piece, now) else { return packet.drop(BAD_FRAGMENT) };
        let place = &mut self.places[at];
        if let State::GivenUp(reason) = place.state {
            return packet.drop(reason);
        }
        let flaw = match place.assembly.add(&piece, packet.data()) {
            Ok(false) => return packet.consume(),
            Ok(true) => place.assembly.finish(packet).err(),
            Err(flaw) => Some(flaw),
        };
        let reason = match flaw {
            None => {
                self.index.close(&place.key, at);
                self.counts.completed += 1;
                if parse::again(packet).is_err() {
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
        place.state = State::GivenUp(reason);
        packet.drop(reason);
    }

    /// The place of a fragment's datagram, which gets one.
    fn place(&mut self, piece: &Piece, now: u64) -> Option<usize> {
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
            let place = &self.places[gone];
            self.counts.evicted += u64::from(place.state == State::Open);
            self.index.close(&place.key, gone);
        }
        let at = self.index.open(piece.key)?;
        let place = &mut self.places[at];
        (place.state, place.key, place.since) = (State::Open, piece.key, now);
        place.assembly.clear();
        Some(at)
    }
}
