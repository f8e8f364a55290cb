//! The responder: what a queue pair of a connection makes of the peer's requests.

use std::collections::VecDeque;

use super::Reach;
use super::packet::{Body, Change, Nak, PSN, Packet, Part, after, ahead};
use super::qp::{Qp, Receive};
use crate::provider::completion::Values;
use crate::provider::soft::memory::Place;
use crate::provider::soft::spec::Profile;
use crate::provider::{Access, EventKind, QpState, QpType, Remote, WcFlags, WcOpcode, WcStatus};

/// Answers to atomics that are kept, in case one is lost.
const MOST_KEPT: usize = 256;

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// Number of the next packet.
    pub(super) expected: u32,
    /// Whether the peer has been told that one is missing.
    complained: bool,
    message: Option<Message>,
    /// Answers that are owed, in order.
    pub(super) jobs: VecDeque<Job>,
    /// What eight bytes were, by the packet that changed them.
    kept: VecDeque<(u32, u64)>,
    /// Whether the first packet has come in.
    established: bool,
}

/// A message of which a part has come in.
#[derive(Debug)]
enum Message {
    /// It goes into a posted receive.
    Sent { receive: Receive, at: u64 },
    /// It goes to memory; `None`: it has no bytes.
    Written { place: Option<Place>, at: u64, length: u64 },
}

/// An answer that is owed.
#[derive(Debug)]
pub(super) enum Job {
    Ack(u32),
    Nak(u32, Nak),
    Value(u32, u64),
    /// Bytes that were asked for, from the `at`-th on; `None`: there are none.
    Read {
        psn: u32,
        place: Option<Place>,
        at: u64,
        length: u64,
    },
}

impl Job {
    /// The packet that is answered next.
    fn psn(&self) -> u32 {
        match self {
            Self::Ack(psn) | Self::Nak(psn, _) | Self::Value(psn, _) | Self::Read { psn, .. } => *psn,
        }
    }
}

impl Responder {
    /// Gives up a message that is half in. Returns the receive that it was to go into.
    pub(super) fn abandon(&mut self) -> Option<Receive> {
        match self.message.take()? {
            Message::Sent { receive, .. } => Some(receive),
            Message::Written { .. } => None,
        }
    }
}

/// What is wrong with a request: what the requester is told, and how the receive ends that it was for.
struct Refusal {
    nak: Nak,
    receive: Option<(Receive, WcStatus)>,
}

impl From<Nak> for Refusal {
    fn from(nak: Nak) -> Self {
        Self { nak, receive: None }
    }
}

impl Qp {
    /// Gives the next answer that is owed. `false`: there is none.
    pub(super) fn answer(&mut self, reach: &mut Reach<'_>) -> bool {
        let mtu = self.mtu();
        let Some(job) = self.responder.jobs.front_mut() else { return false };
        let (psn, body, more) = match job {
            Job::Ack(psn) => (*psn, Body::Ack, false),
            Job::Nak(psn, nak) => (*psn, Body::Nak(*nak), false),
            Job::Value(psn, value) => (*psn, Body::AtomicData(*value), false),
            Job::Read { psn, place, at, length } => {
                let mut payload = reach.net.buffer();
                let now = (*length - *at).min(mtu);
                if let Some(place) = place {
                    place.read(*at, now as usize, &mut payload);
                }
                let current = *psn;
                (*psn, *at) = (after(*psn, 1), *at + now);
                (current, Body::ReadData(payload), *at < *length)
            }
        };
        if !more {
            self.responder.jobs.pop_front();
        }
        self.emit(psn, body, reach);
        true
    }

    /// Whether a request of so many packets comes in its turn. What came before is answered again, what is missing is
    /// asked for.
    fn in_turn(&mut self, psn: u32) -> bool {
        if self.state() == QpState::Rtr && !std::mem::replace(&mut self.responder.established, true) {
            self.raise(EventKind::CommEst);
        }
        let gap = ahead(psn, self.responder.expected);
        if gap > 0 && !std::mem::replace(&mut self.responder.complained, true) {
            self.responder.jobs.push_back(Job::Nak(self.responder.expected, Nak::Sequence));
        }
        if gap < 0 {
            self.shared.counts.rx_duplicates.add(1);
        }
        if gap == 0 {
            self.responder.complained = false;
        }
        gap == 0
    }

    /// A part of a message comes in.
    pub(super) fn on_part(&mut self, packet: &Packet, part: &Part, reach: &mut Reach<'_>) {
        if self.kind() == QpType::Uc {
            return self.on_unacknowledged(packet, part, reach);
        }
        if !self.in_turn(packet.psn) {
            if ahead(packet.psn, self.responder.expected) < 0 && part.last {
                let last = self.responder.expected.wrapping_sub(1) & PSN;
                self.responder.jobs.push_back(Job::Ack(last));
            }
            return;
        }
        match self.take_part(part, reach) {
            Ok(()) => {
                self.responder.expected = after(packet.psn, 1);
                if part.last {
                    self.responder.jobs.push_back(Job::Ack(packet.psn));
                }
            }
            Err(refusal) => self.refuse(packet.psn, refusal, reach),
        }
    }

    /// A part of a message that nobody acknowledges: where one is missing the whole message is dropped.
    fn on_unacknowledged(&mut self, packet: &Packet, part: &Part, reach: &mut Reach<'_>) {
        if part.first && self.state() == QpState::Rtr && !std::mem::replace(&mut self.responder.established, true) {
            self.raise(EventKind::CommEst);
        }
        let in_turn = packet.psn == self.responder.expected;
        self.responder.expected = after(packet.psn, 1);
        if (part.first || !in_turn)
            && let Some(receive) = self.responder.abandon()
        {
            match self.srq {
                // The place of a receive in a shared queue is gone.
                Some(_) if !self.is_rxe() => {
                    self.complete_receive(&receive, WcStatus::RemAbortErr, Values::default(), false, reach);
                }
                _ => self.put_back(receive, reach),
            }
        }
        if !part.first && (!in_turn || self.responder.message.is_none()) {
            self.responder.message = None;
            return;
        }
        if let Err(refusal) = self.take_part(part, reach) {
            self.responder.message = None;
            // A request that nobody is told of is dropped; a receive that failed ends the queue pair.
            if let Some((receive, status)) = refusal.receive {
                self.complete_receive(&receive, status, Values::default(), part.solicited, reach);
                self.fail(reach);
            }
        }
    }

    /// Takes in a part of a message that comes in its turn.
    fn take_part(&mut self, part: &Part, reach: &mut Reach<'_>) -> Result<(), Refusal> {
        if part.first {
            let message = self.open(part, reach)?;
            self.responder.message = Some(message);
        }
        // A written message with immediate data takes a receive at its end, and needs one before anything is written.
        let finisher = match part.write.filter(|_| part.last && part.imm.is_some()) {
            Some(_) => Some(self.take_receive(reach).ok_or_else(|| self.not_ready())?),
            None => None,
        };
        match &mut self.responder.message {
            None => return Err(Nak::InvalidRequest.into()),
            Some(Message::Written { place, at, .. }) => {
                if let Some(place) = place {
                    place.write(*at, &part.payload);
                }
                *at += part.payload.len() as u64;
            }
            Some(Message::Sent { receive, at }) => {
                let from = *at;
                *at += part.payload.len() as u64;
                let fits = *at <= receive.room();
                let written = fits && self.keys.scatter_part(&receive.sges, from, &part.payload).is_ok();
                self.shared.counts.rx_too_long.add(u64::from(!fits));
                if !written {
                    // The kernel's device has one word for whatever is wrong with a receive.
                    let (nak, status) = match (self.profile, fits) {
                        (Profile::Rxe, _) => (Nak::RemoteOperation, WcStatus::LocQpOpErr),
                        (Profile::Spec, true) => (Nak::RemoteOperation, WcStatus::LocProtErr),
                        (Profile::Spec, false) => (Nak::InvalidRequest, WcStatus::LocLenErr),
                    };
                    let receive = self.responder.abandon().map(|receive| (receive, status));
                    return Err(Refusal { nak, receive });
                }
            }
        }
        if part.last { self.finish(part, finisher, reach) } else { Ok(()) }
    }

    fn not_ready(&self) -> Refusal {
        self.shared.counts.rx_out_of_buffer.add(1);
        Nak::NotReady(self.attributes.min_rnr_timer).into()
    }

    /// The first part of a message: where does it go?
    fn open(&mut self, part: &Part, reach: &mut Reach<'_>) -> Result<Message, Refusal> {
        let Some((remote, length)) = part.write else {
            let receive = self.take_receive(reach).ok_or_else(|| self.not_ready())?;
            let failed = reach.net.faults.get_mut(&self.shared.device.id).and_then(|faults| faults.receive_fails());
            if let Some(status) = failed {
                self.shared.counts.faults.add(1);
                return Err(Refusal { nak: Nak::RemoteOperation, receive: Some((receive, status)) });
            }
            return Ok(Message::Sent { receive, at: 0 });
        };
        if !self.attributes.access.contains(Access::REMOTE_WRITE) {
            return Err(Nak::InvalidRequest.into());
        }
        match self.reach_memory(remote, length, Access::REMOTE_WRITE) {
            Some(place) => Ok(Message::Written { place, at: 0, length }),
            None => {
                let nak = Nak::RemoteAccess;
                let status = if self.is_rxe() { WcStatus::RemAccessErr } else { WcStatus::LocAccessErr };
                let imm = part.imm.is_some() && self.kind() == QpType::Rc;
                let receive = if imm { self.take_receive(reach) } else { None };
                // The kernel's device looks for the receive first.
                if self.is_rxe() && imm && part.last && receive.is_none() {
                    return Err(self.not_ready());
                }
                Err(Refusal { nak, receive: receive.map(|receive| (receive, status)) })
            }
        }
    }

    /// The memory that a request names; of no bytes there is none, and no key is looked at. `None`: it may not be used.
    fn reach_memory(&mut self, remote: Remote, length: u64, access: Access) -> Option<Option<Place>> {
        let qp = self.shared.number;
        if length == 0 { Some(None) } else { self.keys.remote(remote, length, access, qp).map(Some) }
    }

    /// The last part of a message is in.
    fn finish(&mut self, part: &Part, finisher: Option<Receive>, reach: &mut Reach<'_>) -> Result<(), Refusal> {
        let Some(message) = self.responder.message.take() else { return Ok(()) };
        let (receive, length, opcode) = match message {
            Message::Sent { receive, at } => (Some(receive), at, WcOpcode::Recv),
            Message::Written { length, .. } => (finisher, length, WcOpcode::RecvRdmaWithImm),
        };
        let Some(receive) = receive else { return Ok(()) };
        let rxe = self.is_rxe();
        let mut flags = if rxe { WcFlags::GRH } else { WcFlags::empty() };
        if part.imm.is_some() {
            flags |= WcFlags::WITH_IMM;
        }
        if let Some(rkey) = part.invalidate {
            if !self.keys.keys().windows.invalidate(rkey, self.shared.number) {
                let refusal = Refusal { nak: Nak::RemoteAccess, receive: Some((receive, WcStatus::RemInvReqErr)) };
                return Err(refusal);
            }
            flags |= WcFlags::WITH_INV;
        }
        let values = Values {
            opcode: opcode.raw(),
            flags,
            byte_len: length.min(u64::from(u32::MAX)) as u32,
            imm: part.imm.or(part.invalidate.map(|rkey| rkey.0)).unwrap_or(0),
            ..Values::default()
        };
        self.shared.counts.rx_packets.add(1);
        self.shared.counts.rx_bytes.add(length);
        self.complete_receive(&receive, WcStatus::Success, values, part.solicited, reach);
        Ok(())
    }

    /// A request is wrong, or there is no receive for it.
    fn refuse(&mut self, psn: u32, refusal: Refusal, reach: &mut Reach<'_>) {
        let Refusal { nak, receive } = refusal;
        if let Nak::NotReady(_) = nak {
            return self.responder.jobs.push_back(Job::Nak(psn, nak));
        }
        let told = receive.is_some();
        // What the kernel's device finds wrong after the message is in, the requester is never told of.
        let quiet = self.is_rxe() && receive.as_ref().is_some_and(|(_, status)| *status == WcStatus::RemInvReqErr);
        self.responder.jobs.push_back(if quiet { Job::Ack(psn) } else { Job::Nak(psn, nak) });
        if let Some((receive, status)) = receive {
            self.complete_receive(&receive, status, Values::default(), true, reach);
        }
        if !told {
            match nak {
                Nak::RemoteAccess => self.raise(EventKind::QpAccessErr),
                Nak::InvalidRequest => self.raise(EventKind::QpReqErr),
                _ => {}
            }
        }
        self.fail(reach);
    }

    /// The peer asks for bytes.
    pub(super) fn on_read(&mut self, psn: u32, remote: Remote, length: u64, reach: &mut Reach<'_>) {
        let in_turn = self.in_turn(psn);
        let again = !in_turn && ahead(psn, self.responder.expected) < 0;
        if !in_turn && !again {
            return;
        }
        match self
            .answerable(Access::REMOTE_READ)
            .and_then(|()| self.reach_memory(remote, length, Access::REMOTE_READ).ok_or(Nak::RemoteAccess))
        {
            Ok(place) => {
                if again {
                    // Whatever was being answered from there on is asked for again, and all after it.
                    self.responder.jobs.retain(|job| ahead(job.psn(), psn) < 0);
                } else {
                    let packets = length.div_ceil(self.mtu()).max(1) as u32;
                    self.responder.expected = after(psn, packets);
                }
                self.responder.jobs.push_back(Job::Read { psn, place, at: 0, length });
            }
            Err(nak) => self.refuse(psn, nak.into(), reach),
        }
    }

    /// The peer changes eight bytes.
    pub(super) fn on_atomic(&mut self, psn: u32, remote: Remote, change: Change, reach: &mut Reach<'_>) {
        if !self.in_turn(psn) {
            // Once is enough: the answer is given again.
            let kept = self.responder.kept.iter().find(|(of, _)| *of == psn).copied();
            self.responder.jobs.extend(kept.map(|(psn, value)| Job::Value(psn, value)));
            return;
        }
        let aligned = remote.addr.is_multiple_of(8);
        let changed = self.answerable(Access::REMOTE_ATOMIC).and_then(|()| {
            let place = self.reach_memory(remote, 8, Access::REMOTE_ATOMIC).ok_or(Nak::RemoteAccess)?;
            let place = place.filter(|_| aligned).ok_or(Nak::InvalidRequest)?;
            let old = place.update(|was| match change {
                Change::Swap { compare, swap } => (was == compare).then_some(swap),
                Change::Add(more) => Some(was.wrapping_add(more)),
            });
            old.ok_or(Nak::InvalidRequest)
        });
        match changed {
            Ok(old) => {
                self.responder.expected = after(psn, 1);
                if self.responder.kept.len() == MOST_KEPT {
                    self.responder.kept.pop_front();
                }
                self.responder.kept.push_back((psn, old));
                self.responder.jobs.push_back(Job::Value(psn, old));
            }
            Err(nak) => self.refuse(psn, nak.into(), reach),
        }
    }

    /// Whether the peer may ask for what wants an answer.
    fn answerable(&self, access: Access) -> Result<(), Nak> {
        let allowed = self.attributes.access.contains(access) && self.attributes.max_dest_rd_atomic > 0;
        if allowed { Ok(()) } else { Err(Nak::InvalidRequest) }
    }
}
