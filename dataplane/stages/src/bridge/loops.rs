//! Loop detection of the bridge. The bridge sends a probe frame from each port. If the probe of one port comes back at
//! another port, the two ports form a loop, and the bridge shuts one of these ports.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::vlan::{VlanTag, is_tag};
use dataplane_core::header::{Header, MacAddr, ether_type};
use dataplane_core::mem::{Batch, MetaFlags, Packet};
use dataplane_core::pipeline::{CounterReport, Setup};
use dataplane_core::units::Period;

/// The destination of probes: a locally administered multicast address, which other bridges flood.
const DESTINATION: MacAddr = MacAddr([0x0b, 0x64, 0x70, 0x6c, 0x6f, 0x70]);
/// The local experimental EtherType 1 of IEEE 802.
const ETHER_TYPE: u16 = 0x88b5;
/// The time between two probes of a port, in nanoseconds.
const INTERVAL: u64 = 1_000_000_000;
/// The length of a probe in bytes: the shortest Ethernet frame, without the frame check sequence.
const LEN: usize = 60;
/// The port numbers of a bridge are below this number.
const PORTS: usize = 127;

/// The state of loop detection that all workers share.
#[derive(Debug)]
pub(super) struct Loops {
    /// The secret key of the authentication codes in the probes ([`Probe::tag`]). Without the key, a host cannot forge
    /// a probe. A host can repeat a received probe, but the bridge ignores this probe after the next round.
    secret: RandomState,
    /// For each port, the time when a loop was last detected: nanoseconds since the start of the run, plus 1. 0 means
    /// never.
    detected: [AtomicU64; PORTS],
}

impl Loops {
    pub(super) fn new() -> Self {
        Self { secret: RandomState::new(), detected: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Returns the probe of a port in a round.
    fn probe(&self, port: u8, round: u64) -> Probe {
        Probe { tag: U64::new(self.secret.hash_one((port, round))), round: U64::new(round), port }
    }
}

/// The content of a probe, after the EtherType.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Probe {
    /// The authentication code: a keyed hash of the other fields.
    tag: U64,
    /// The number of whole intervals ([`INTERVAL`]) from the start of the run to the sending of the probe.
    round: U64,
    /// The port that sent the probe.
    port: u8,
}

/// A port with loop detection.
#[derive(Debug)]
struct ProbedPort {
    number: u8,
    name: String,
    /// The name of the counter that reports `shut`.
    counter: String,
    /// How often this worker shut the port.
    shut: u64,
    frame: [u8; LEN],
    /// Offset in `frame` of the EtherType [`ETHER_TYPE`].
    ether_type: usize,
}

/// The loop detection of one worker.
#[derive(Debug)]
pub(super) struct LoopGuard {
    loops: Arc<Loops>,
    stage: String,
    ports: Vec<ProbedPort>,
    time: Period,
    /// Whether this is the first worker. Only the first worker sends probes, logs when a port is shut or opened, and
    /// counts how often each port was shut.
    is_first: bool,
    /// The index in `ports` of the port that sends the next probe. Between two rounds of probes, the index is the
    /// number of ports.
    next_port: usize,
    /// The time at which the next round of probes starts, in nanoseconds since the start of the run.
    next_round: u64,
}

impl LoopGuard {
    /// Creates the loop detection for ports, each given as its number and a VLAN. The probes of a port are tagged with
    /// this VLAN. For VLAN 0 or no VLAN, the probes are untagged.
    pub(super) fn new(setup: &Setup<'_>, loops: Arc<Loops>, ports: &[(u8, Option<u16>)], time: Period) -> Self {
        let probed = ports.iter().filter_map(|(number, vlan)| {
            let info = setup.ports().get(usize::from(*number))?;
            let vlan = vlan.unwrap_or(0);
            let mut frame = Vec::from(DESTINATION.0);
            frame.extend(info.mac);
            if vlan != 0 {
                frame.extend(ether_type::VLAN.to_be_bytes());
                frame.extend(vlan.to_be_bytes());
            }
            let at = frame.len();
            frame.extend(ETHER_TYPE.to_be_bytes());
            frame.resize(LEN, 0);
            Some(ProbedPort {
                number: *number,
                counter: format!("shut_{}", info.name),
                name: info.name.clone(),
                shut: 0,
                frame: frame.try_into().ok()?,
                ether_type: at,
            })
        });
        let ports: Vec<ProbedPort> = probed.collect();
        let (next_port, is_first) = (ports.len(), setup.worker_number() == 0);
        Self { loops, stage: setup.stage().to_owned(), ports, time, is_first, next_port, next_round: 0 }
    }

    /// Returns whether this worker sends the probes.
    pub(super) fn sends_probes(&self) -> bool {
        self.is_first
    }

    /// Sends the probes that are due. `now` is in nanoseconds since the start of the run.
    pub(super) fn send_probes(&mut self, batch: &mut Batch, now: u64) {
        if self.next_port >= self.ports.len() && now >= self.next_round {
            (self.next_port, self.next_round) = (0, now + INTERVAL);
        }
        while let Some(port) = self.ports.get_mut(self.next_port) {
            let probe = self.loops.probe(port.number, now / INTERVAL);
            let place = port.ether_type + 2..port.ether_type + 2 + size_of::<Probe>();
            if let Some(place) = port.frame.get_mut(place) {
                place.copy_from_slice(probe.as_bytes());
            }
            // Without a free slot, the next call continues with this port.
            let Some(mut packet) = batch.generate(&port.frame) else { return };
            let meta = packet.meta_mut();
            (meta.l3, meta.end) = (port.ether_type as u16 + 2, LEN as u16);
            (meta.ether_type, meta.egress) = (ETHER_TYPE, port.number);
            if port.ether_type > Ethernet::LEN {
                meta.flags = MetaFlags::VLAN;
            }
            self.next_port += 1;
        }
    }

    /// Returns `true` if the frame is a probe of this bridge. If another port sent the probe, the two ports form a
    /// loop. Records the loop for the port with the higher number. Records nothing for an old probe, or for a probe
    /// that came back at the port that sent the probe, because any host behind the port can send such a frame.
    pub(super) fn receives(&self, packet: &Packet<'_>, now: u64) -> bool {
        let Some(probe) = probe(packet.data()) else { return false };
        let (sender, round) = (probe.port, probe.round.get());
        if probe != self.loops.probe(sender, round) {
            return false;
        }
        // The clocks of two workers differ by less than an interval.
        let is_recent = round.abs_diff(now / INTERVAL) <= 1;
        let detected = self.loops.detected.get(usize::from(sender.max(packet.ingress())));
        if let Some(detected) = detected.filter(|_| is_recent && sender != packet.ingress()) {
            detected.store(now + 1, Ordering::Relaxed);
        }
        true
    }

    /// Returns whether a port must be shut at the time `now`.
    pub(super) fn is_looped(&self, port: u8, now: u64) -> bool {
        let detected = self.loops.detected.get(usize::from(port)).map_or(0, |port| port.load(Ordering::Relaxed));
        detected != 0 && now < (detected - 1).saturating_add(self.time.as_nanos())
    }

    /// On the first worker, logs that a port was shut or opened, and counts how often the port was shut. On all other
    /// workers, does nothing.
    pub(super) fn log_change(&mut self, port: u8, shut: bool) {
        let Some(port) = self.ports.iter_mut().find(|known| known.number == port && self.is_first) else { return };
        port.shut += u64::from(shut);
        let (stage, name, time) = (&self.stage, &port.name, self.time);
        match shut {
            true => tracing::warn!(
                stage,
                port = name,
                "bridge `{stage}`: port `{name}` is shut, because it forms a loop with another port; help: remove the \
                 loop, and the port opens after {time}"
            ),
            false => tracing::warn!(
                stage,
                port = name,
                "bridge `{stage}`: port `{name}` is open again, because the loop is gone"
            ),
        }
    }

    /// Reports how often each port was shut.
    pub(super) fn counters(&self, report: &mut dyn CounterReport) {
        self.ports.iter().for_each(|port| report.add(&port.counter, port.shut));
    }
}

/// Returns the content of a probe, or `None` if the frame is no probe.
fn probe(frame: &[u8]) -> Option<Probe> {
    let (header, mut rest) = frame.split_at_checked(Ethernet::LEN)?;
    let link = Ethernet::view(header).ok()?;
    if link.destination != DESTINATION {
        return None;
    }
    let mut kind = link.ether_type.get();
    if is_tag(kind) {
        kind = VlanTag::view(rest).ok()?.ether_type.get();
        rest = rest.get(VlanTag::LEN..)?;
    }
    (kind == ETHER_TYPE).then(|| Probe::read_from_prefix(rest).ok().map(|(probe, _)| probe))?
}
