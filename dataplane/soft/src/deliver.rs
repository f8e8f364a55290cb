//! The receive path of raw-packet queue pairs that copy frames: copies frames from the wire into posted receives.

use crate::completion::{Now, RawCqe};
use crate::engine::CopyingQp;
use crate::fault::{Faults, Flap};
use crate::link::{AnyWire, Wire};
use crate::memory::{KeyCache, Slots};
use crate::nic::Receiving;
use crate::qp_shared::QpShared;
use crate::quirk::SoftQuirk;
use crate::recv::{PostedRecv, RecvQueue};
use crate::ring::Ring;
use dataplane_core::mem::vector;
use dataplane_core::units::Ticks;
use dataplane_core::verbs::{Completions, EventKind, QpState, RecvInfo, WcStatus};

/// The maximum number of frames taken from the wire in one poll. Without this limit, a poll might never end, because
/// injected faults or a link that is down may drop every frame.
const MAX_FRAMES_PER_POLL: usize = 4096;

impl CopyingQp {
    /// Returns whether the completion queue overruns. `room` is the number of completions that still fit. The queue
    /// overruns if more than `room` frames have arrived for posted receives, or if the queue pair is in ERR and flushes
    /// more than `room` receives. Hardware would already have written all these completions.
    #[inline]
    pub(super) fn overruns(&mut self, shared: &QpShared, room: usize) -> bool {
        if self.recv.len() <= room {
            return false;
        }
        match shared.state() {
            QpState::Rtr | QpState::Rts | QpState::Sqd => self.wire.backlog() > room as u64,
            QpState::Err => !self.mute,
            _ => false,
        }
    }

    /// Receives directly into the completion list `run` until the list has `limit` entries. `in_order` may be `true`
    /// only if the list is empty and the completion queue serves only this queue pair. The function then does not write
    /// the `wr_id` fields. Returns `false` without receiving if the caller must use [`CopyingQp::receive`].
    #[inline(always)]
    pub(super) fn receive_run(
        &mut self,
        shared: &QpShared,
        run: &mut Completions,
        limit: usize,
        now: Now,
        in_order: bool,
    ) -> bool {
        let running = matches!(shared.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        let Some(slots) = self.slots.as_ref().filter(|_| self.runs) else { return false };
        let (recv, wire) = (&mut self.recv, &mut self.wire);
        if !running || !recv.is_slots() || !(shared.device.is_up() || wire.is_interface()) {
            return false;
        }
        let lost = wire.skip_beyond(recv.len() as u64);
        let due = usize::try_from(wire.backlog()).unwrap_or(usize::MAX);
        let (from, n) = (run.len, recv.len().min(limit - run.len).min(due));
        let until = from + n;
        let [first, rest] = recv.front(n);
        let (lengths, more) = run.byte_len[from..until].split_at_mut(first.len());
        let mut bytes = wire.write(slots, first, lengths);
        if !rest.is_empty() {
            bytes += wire.write(slots, rest, more);
        }
        if !in_order {
            let (ids, more) = run.wr_id[from..until].split_at_mut(first.len());
            vector::write_ids(ids, first, slots.recv_wr_id);
            vector::write_ids(more, rest, slots.recv_wr_id);
        }
        recv.advance(n);
        run.len = until;
        run.in_order = in_order;
        match in_order {
            true => run.ticks[0] = now.ticks,
            false => run.ticks[from..until].fill(now.ticks),
        }
        if run.failed {
            run.status[from..until].fill(WcStatus::Success);
        }
        shared.counts.rx_packets.add(n as u64);
        shared.counts.rx_bytes.add(bytes);
        if lost > 0 {
            shared.counts.rx_out_of_buffer.add(lost);
        }
        true
    }

    /// Receives frames until `ring` has `max_frames` more completions. In state ERR, flushes up to `max_frames`
    /// receives instead. A frame without a timestamp gets the time `now`.
    pub(super) fn receive(&mut self, shared: &QpShared, ring: &mut Ring<RawCqe>, max_frames: usize, now: Now) {
        let Now { ticks, by_wall } = now;
        let target_len = ring.len().saturating_add(max_frames);
        let Self { recv, slots, keys, wire, faults, mute, receiving, .. } = self;
        if matches!(shared.state(), QpState::Rtr | QpState::Rts | QpState::Sqd) {
            shared.counts.rx_missed.add(wire.missed());
            // Receive the frames of a kernel interface even if the device regards the link as down. The frames arrived
            // while the interface was up, and the device learns the state of the interface later.
            if !shared.device.is_up() && !wire.is_interface() {
                (0..MAX_FRAMES_PER_POLL)
                    .take_while(|_| !wire.waits() && wire.take(&shared.counts, |_, _| {}))
                    .for_each(drop);
                return;
            }
            let lost = wire.skip_beyond(recv.len() as u64);
            shared.counts.rx_out_of_buffer.add(lost);
            let mut receiver = Receiver { recv, slots: slots.as_ref(), keys, shared, ticks };
            // A generator may generate frames without end. If all these frames are lost, this limit ends the poll.
            let mut frames_left = MAX_FRAMES_PER_POLL;
            while ring.len() < target_len
                && (receiver.recv.len() > 0 || !wire.waits())
                && shared.state() != QpState::Err
            {
                if frames_left == 0 {
                    break;
                }
                frames_left -= 1;
                let more = match faults {
                    None => wire.take(&shared.counts, |frame, arrived_at| {
                        receiver.ticks = arrived_at.filter(|_| by_wall).map_or(ticks, |arrived_at| Ticks(arrived_at.0));
                        receiver.receive(receiving, ring, frame, None);
                    }),
                    Some(faults) => {
                        let more = take_with_faults(faults, wire, shared, |faults, frame| {
                            let fails = (receiver.recv.len() > 0).then(|| faults.receive_fails()).flatten();
                            receiver.receive(receiving, ring, frame, fails);
                        });
                        report_faults(faults, shared);
                        more
                    }
                };
                if !more {
                    break;
                }
            }
            if shared.state() == QpState::Err {
                wire.close();
            }
        }
        if shared.state() == QpState::Err && !*mute {
            while ring.len() < target_len {
                let Some(posted) = recv.pop() else { return };
                let wr_id = wr_id(&posted, slots.as_ref());
                ring.push(RawCqe::of_receive(shared.number, wr_id, WcStatus::WrFlushErr, Ticks(0)));
            }
        }
    }
}

/// Counts injected faults, raises the events of link changes, and removes the device.
fn report_faults(faults: &mut Faults<Vec<u8>>, shared: &QpShared) {
    shared.counts.faults.set(faults.injected);
    if let Some(flap) = faults.flapped() {
        shared.device.raise(if flap == Flap::Down { EventKind::PortErr } else { EventKind::PortActive }, 1);
    }
    if faults.removes_device {
        shared.device.remove();
    }
}

fn wr_id(posted: &PostedRecv<'_>, slots: Option<&Slots>) -> u64 {
    match posted {
        PostedRecv::Slot(slot) => slots.map_or(0, |slots| slots.recv_wr_id).wrapping_add(u64::from(*slot)),
        PostedRecv::General { wr_id, .. } => *wr_id,
    }
}

/// The state that is needed to receive a frame.
struct Receiver<'a> {
    recv: &'a mut RecvQueue,
    slots: Option<&'a Slots>,
    keys: &'a mut KeyCache,
    shared: &'a QpShared,
    ticks: Ticks,
}

impl Receiver<'_> {
    /// Receives a frame once for each copy that the flow rules of the queue pair request, and adds the completions to
    /// `ring`.
    #[inline]
    fn receive(
        &mut self,
        receiving: &mut Option<Box<Receiving>>,
        ring: &mut Ring<RawCqe>,
        frame: &[u8],
        fails: Option<WcStatus>,
    ) {
        let Some(receiving) = receiving else {
            return self.deliver(frame, fails, RecvInfo::default()).into_iter().for_each(|entry| ring.push(entry));
        };
        let mut delivered = false;
        receiving.receive(frame, |bytes, info| {
            delivered = true;
            self.deliver(bytes, fails, info).into_iter().for_each(|entry| ring.push(entry));
        });
        self.shared.counts.rx_unmatched.add(u64::from(!delivered));
    }

    /// Receives a frame, or drops it if no receive is posted. If `fails` is `Some`, the receive completes with that
    /// error.
    fn deliver(&mut self, bytes: &[u8], fails: Option<WcStatus>, info: RecvInfo) -> Option<RawCqe> {
        let counts = &self.shared.counts;
        let Some(posted) = self.recv.pop() else {
            counts.rx_out_of_buffer.add(1);
            return None;
        };
        let wr_id = wr_id(&posted, self.slots);
        let written = match (fails, posted) {
            (Some(status), _) => Err(status),
            (None, PostedRecv::Slot(slot)) => {
                self.slots.map_or(Err(WcStatus::LocProtErr), |slots| slots.write(slot, bytes))
            }
            (None, PostedRecv::General { sges, .. }) => self.keys.scatter(sges, bytes),
        };
        let mut entry = RawCqe::of_receive(self.shared.number, wr_id, WcStatus::Success, self.ticks);
        match written {
            Ok(()) => {
                counts.rx_packets.add(1);
                counts.rx_bytes.add(bytes.len() as u64);
                entry.byte_len = bytes.len() as u32;
                entry.info = info;
            }
            Err(status) => {
                entry.status = status;
                let too_long = status == WcStatus::LocLenErr;
                counts.rx_too_long.add(u64::from(too_long));
                // A frame that is too long is the sender's fault, so the queue pair continues.
                if !too_long {
                    self.shared.fail();
                }
            }
        }
        Some(entry)
    }
}

/// Takes the next frame: a frame that the faults have released or, if there is none, a frame from the wire. Passes the
/// frame to `deliver` if no fault drops or holds the frame. Returns `false` if there is no frame.
fn take_with_faults(
    faults: &mut Faults<Vec<u8>>,
    wire: &mut AnyWire,
    shared: &QpShared,
    deliver: impl FnOnce(&mut Faults<Vec<u8>>, &[u8]),
) -> bool {
    faults.release_delayed();
    let arrive = |faults: &mut Faults<Vec<u8>>, frame: &[u8]| {
        if !shared.device.has_quirk(SoftQuirk::BehindSwitch) || shared.device.switch.passes(frame) {
            faults.arrive(frame.to_vec());
        }
    };
    if !faults.is_ready() && !wire.take(&shared.counts, |frame, _| arrive(faults, frame)) {
        faults.idle_poll();
        if !faults.is_ready() {
            return false;
        }
    }
    if let Some(held) = faults.next() {
        deliver(faults, &held);
    }
    true
}
