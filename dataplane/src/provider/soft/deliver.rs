//! How a queue pair of raw packets receives: frames off the wire into posted receives.

use crate::mem::vector;
use crate::provider::soft::cq::{Entry, Now};
use crate::provider::soft::engine::QpCore;
use crate::provider::soft::fault::{Faults, Flap};
use crate::provider::soft::link::{Queue, Received, Wire};
use crate::provider::soft::memory::{KeyCache, Slots};
use crate::provider::soft::qp::QpShared;
use crate::provider::soft::recv::{Posted, RecvQueue};
use crate::provider::soft::ring::Ring;
use crate::provider::{Completions, EventKind, QpState, RUN, WcStatus};
use crate::units::Ticks;

/// Frames taken off a wire in one poll, most of which may be lost on the way.
const MOST_FRAMES: usize = 4096;

impl QpCore {
    /// Whether more has come in, for receives that are posted, than there is `room` for completions: on hardware it
    /// would all have been received by now.
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

    /// Receives straight into `run`, until it has `limit` entries; `in_order` if that has none, and no other queue pair
    /// reports where this one does. `false`: this needs [`QpCore::receive`].
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
        if let Wire::Xdp(queue) = wire {
            return receive_lent(shared, queue, run, limit, now, running);
        }
        if !running || !recv.is_slots() || !shared.device.is_up() {
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

    /// Receives up to `most` frames; in state ERR flushes as many receives. `now` is the stamp of what has none of its own.
    pub(super) fn receive(&mut self, shared: &QpShared, ring: &mut Ring<Entry>, most: usize, now: Now) {
        let Now { ticks, by_wall } = now;
        let enough = ring.len().saturating_add(most);
        if let Wire::Xdp(queue) = &mut self.wire {
            return lent(shared, queue, ring, enough, now);
        }
        let Self { recv, slots, keys, wire, faults, mute, .. } = self;
        if matches!(shared.state(), QpState::Rtr | QpState::Rts | QpState::Sqd) {
            shared.counts.rx_missed.add(wire.missed());
            if !shared.device.is_up() {
                (0..MOST_FRAMES).take_while(|_| !wire.waits() && wire.take(&shared.counts, |_, _| {})).for_each(drop);
                return;
            }
            let lost = wire.skip_beyond(recv.len() as u64);
            shared.counts.rx_out_of_buffer.add(lost);
            let mut receiver = Receiver { recv, slots: slots.as_ref(), keys, shared, ticks };
            // A source without end whose every frame is lost must not keep the poll for ever.
            let mut patience = MOST_FRAMES;
            while ring.len() < enough && (receiver.recv.len() > 0 || !wire.waits()) && shared.state() != QpState::Err {
                if patience == 0 {
                    break;
                }
                patience -= 1;
                let more = match faults {
                    None => wire.take(&shared.counts, |frame, came| {
                        receiver.ticks = came.filter(|_| by_wall).map_or(ticks, |came| Ticks(came.0));
                        receiver.deliver(frame, None).into_iter().for_each(|entry| ring.push(entry));
                    }),
                    Some(faults) => {
                        let more = faults.take(wire, &shared.counts, |faults, frame| {
                            let fails = (receiver.recv.len() > 0).then(|| faults.receive_fails()).flatten();
                            receiver.deliver(frame, fails).into_iter().for_each(|entry| ring.push(entry));
                        });
                        report(faults, shared);
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
            while ring.len() < enough {
                let Some(posted) = recv.pop() else { return };
                let wr_id = wr_id(&posted, slots.as_ref());
                ring.push(entry(shared, wr_id, WcStatus::WrFlushErr, Ticks(0)));
            }
        }
    }
}

/// Receives from a queue that slots are lent to, straight into `run`. `false`: it has stopped.
#[inline]
fn receive_lent(
    shared: &QpShared,
    queue: &mut Queue,
    run: &mut Completions,
    limit: usize,
    now: Now,
    running: bool,
) -> bool {
    if queue.is_stale() {
        shared.fail();
        return false;
    }
    if running {
        let received = queue.receive(run, limit, now);
        count(shared, &received);
    }
    running
}

/// Receives from, or flushes, a queue that slots are lent to, until `ring` has `enough`. For cursors and failures.
#[cold]
fn lent(shared: &QpShared, queue: &mut Queue, ring: &mut Ring<Entry>, enough: usize, now: Now) {
    match shared.state() {
        QpState::Rtr | QpState::Rts | QpState::Sqd => {
            let mut run = Completions::new();
            let received = queue.receive(&mut run, RUN.min(enough - ring.len()), now);
            count(shared, &received);
            for at in 0..run.len {
                let status = if run.failed { run.status[at] } else { WcStatus::Success };
                let entry = entry(shared, run.wr_id[at], status, run.ticks[at]);
                ring.push(Entry { byte_len: run.byte_len[at], ..entry });
            }
        }
        QpState::Err => {
            while ring.len() < enough
                && let Some(wr_id) = queue.flush_receive()
            {
                ring.push(entry(shared, wr_id, WcStatus::WrFlushErr, Ticks(0)));
            }
        }
        _ => {}
    }
}

/// Counts what a queue received that slots are lent to.
#[inline]
fn count(shared: &QpShared, received: &Received) {
    shared.counts.rx_packets.add(received.frames);
    shared.counts.rx_bytes.add(received.bytes);
    if received.too_long > 0 {
        shared.counts.rx_too_long.add(received.too_long);
    }
}

/// Counts faults, and tells of the link.
fn report(faults: &mut Faults<Vec<u8>>, shared: &QpShared) {
    shared.counts.faults.set(faults.injected);
    if let Some(flap) = faults.flapped() {
        shared.device.raise(if flap == Flap::Down { EventKind::PortErr } else { EventKind::PortActive }, 1);
    }
}

fn wr_id(posted: &Posted<'_>, slots: Option<&Slots>) -> u64 {
    match posted {
        Posted::Slot(slot) => slots.map_or(0, |slots| slots.recv_wr_id).wrapping_add(u64::from(*slot)),
        Posted::General { wr_id, .. } => *wr_id,
    }
}

/// The entry of a receive.
fn entry(shared: &QpShared, wr_id: u64, status: WcStatus, ticks: Ticks) -> Entry {
    Entry { wr_id, ticks, release: 0, byte_len: 0, qp: shared.number, status }
}

/// What it takes to receive a frame.
struct Receiver<'a> {
    recv: &'a mut RecvQueue,
    slots: Option<&'a Slots>,
    keys: &'a mut KeyCache,
    shared: &'a QpShared,
    ticks: Ticks,
}

impl Receiver<'_> {
    /// Receives a frame, or loses it. With `fails` the receive ends so, whatever the frame.
    fn deliver(&mut self, bytes: &[u8], fails: Option<WcStatus>) -> Option<Entry> {
        let counts = &self.shared.counts;
        let Some(posted) = self.recv.pop() else {
            counts.rx_out_of_buffer.add(1);
            return None;
        };
        let wr_id = wr_id(&posted, self.slots);
        let written = match (fails, posted) {
            (Some(status), _) => Err(status),
            (None, Posted::Slot(slot)) => {
                self.slots.map_or(Err(WcStatus::LocProtErr), |slots| slots.write(slot, bytes))
            }
            (None, Posted::General { sges, .. }) => self.keys.scatter(sges, bytes),
        };
        let mut entry = entry(self.shared, wr_id, WcStatus::Success, self.ticks);
        match written {
            Ok(()) => {
                counts.rx_packets.add(1);
                counts.rx_bytes.add(bytes.len() as u64);
                entry.byte_len = bytes.len() as u32;
            }
            Err(status) => {
                entry.status = status;
                let too_long = status == WcStatus::LocLenErr;
                counts.rx_too_long.add(u64::from(too_long));
                // A frame that is too long for its receive is the sender's doing: the queue pair goes on.
                if !too_long {
                    self.shared.fail();
                }
            }
        }
        Some(entry)
    }
}
