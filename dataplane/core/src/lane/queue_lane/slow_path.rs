//! The slow path of a lane: completions with errors, posts that the queue pair refuses, and the return of all slots
//! after the queue pair was reset or destroyed.

use std::time::Instant;

use super::data_path::DataPath;
use crate::clock::Stamp;
use crate::lane::NoSink;
use crate::mem::{Batch, Desc, Pool, RunSource, SlotState};
use crate::verbs::{Device, QpState, QueuePair, WcStatus, WrId, WrKind};

impl<D: Device> DataPath<D> {
    /// Handles each completion of a poll separately. The lane calls this function if a completion has an error or does
    /// not match the posted receives. Returns the number of received packets.
    #[cold]
    pub(super) fn sort_receives(
        &mut self,
        pool: &mut Pool,
        batch: &mut Batch,
        n: usize,
        alike: Option<Stamp>,
    ) -> usize {
        let layout = pool.layout();
        let room = layout.room() - u32::from(self.prefix);
        let mut good = 0;
        for i in 0..n {
            let Some(slot) = self.completed_receive(i) else { continue };
            let status = if self.run.failed { self.run.status[i] } else { WcStatus::Success };
            let len = self.run.byte_len[i].checked_sub(u32::from(self.prefix)).filter(|len| *len <= room);
            match (status, len.and_then(|len| u16::try_from(len).ok())) {
                (WcStatus::Success, Some(len)) => {
                    let desc = Desc { slot, offset: layout.headroom + self.prefix, len };
                    pool.moved(&[slot], SlotState::Posted, SlotState::Batched);
                    // This push should not fail: the poll was limited to the space of the batch, and the length was
                    // checked against the room of the buffer.
                    if !batch.push(desc, alike.unwrap_or(self.stamps[i])) {
                        pool.put_one(slot, SlotState::Batched);
                        self.counters.rx_errors += 1;
                        continue;
                    }
                    if pool.keeps_received() {
                        pool.set_received(&[desc], self.run.infos().get(i..).unwrap_or_default());
                    }
                    self.counters.rx += 1;
                    self.counters.rx_bytes += u64::from(len);
                    good += 1;
                }
                (status, _) => {
                    pool.put_one(slot, SlotState::Posted);
                    self.note_status(status);
                    if status != WcStatus::WrFlushErr {
                        self.counters.rx_errors += 1;
                    }
                }
            }
        }
        good
    }

    /// Frees the slots of the polled receives and discards their packets. Used while the lane stops.
    pub(super) fn discard_receives(&mut self, pool: &mut Pool, n: usize) {
        self.check_pool(pool);
        for i in 0..n {
            if let Some(slot) = self.completed_receive(i) {
                pool.put_one(slot, SlotState::Posted);
            }
        }
    }

    /// Returns the slot of the receive that completion `i` belongs to. Counts a completion that matches no posted
    /// receive in `unmatched_completions`.
    fn completed_receive(&mut self, i: usize) -> Option<u32> {
        let slot = match self.run.in_order {
            true => self.posted.pop(),
            false => self.posted.remove(WrId(self.run.wr_id[i]), self.tag(WrKind::Receive)),
        };
        self.counters.unmatched_completions += u64::from(slot.is_none());
        slot
    }

    /// Records the status of a failed request. Ignores flushed requests while the lane stops.
    fn note_status(&mut self, status: WcStatus) {
        if status == WcStatus::Success || (self.stopping && status == WcStatus::WrFlushErr) {
            return;
        }
        self.counters.first_error.get_or_insert(status);
        self.has_error = true;
        self.was_flushed |= status == WcStatus::WrFlushErr;
    }

    /// Completes the oldest send as failed, counts it and frees its slot.
    #[cold]
    pub(super) fn fail_oldest_send(&mut self, pool: &mut Pool, status: WcStatus) {
        self.in_flight.complete(1, Stamp::NONE, &mut NoSink);
        self.in_flight.reclaim(pool);
        match self.stopping && status == WcStatus::WrFlushErr {
            true => self.counters.dropped_at_stop += 1,
            false => self.counters.tx_errors += 1,
        }
        self.note_status(status);
    }

    /// Drops packets that are too long for the connection, then packets that do not fit into the send queue.
    #[cold]
    pub(super) fn drop_unsendable(&mut self, pool: &mut Pool, batch: &mut Batch) {
        let (longest, space) = (self.longest, self.in_flight.space());
        if longest == 0 {
            self.counters.tx_not_connected += batch.len() as u64;
            batch.truncate(0, pool);
            return;
        }
        self.counters.tx_too_long += batch.retain_into(pool, |desc| desc.len <= longest) as u64;
        self.counters.tx_full += batch.len().saturating_sub(space) as u64;
        batch.truncate(space, pool);
    }

    /// Handles a partly accepted send run: the queue pair accepted only the first `taken` packets. Drops the remaining
    /// packets.
    #[cold]
    pub(super) fn keep_accepted(&mut self, pool: &mut Pool, batch: &mut Batch, taken: usize) {
        // If no send is in flight, the unsignalled sends of earlier batches have completed. This can happen on a device
        // that signals every send, such as efa.
        if self.in_flight.len() == 0 {
            self.unsignalled_since = None;
        }
        if taken > 0 {
            self.unsignalled_since.get_or_insert_with(Instant::now);
        }
        self.counters.tx_errors += (batch.len() - taken) as u64;
        pool.moved_descs(&batch.descs()[taken..], SlotState::Sending, SlotState::Batched);
        batch.truncate(taken, pool);
        let (run, stamps) = batch.run();
        self.in_flight.extend(&run, stamps);
        batch.forget();
    }

    /// Posts a marker request after unsignalled sends if the queue pair is in state ERR. Successful unsignalled sends
    /// have no completion of their own. The flush of the marker shows that all earlier sends have completed. If the
    /// device refuses the marker, the slots of these sends come back at the flush deadline.
    #[cold]
    pub(super) fn post_marker(&mut self) {
        let newest = self.in_flight.last().filter(|_| self.unsignalled_since.is_some() && self.in_flight.space() > 0);
        let Some(newest) = newest.filter(|_| self.queues.qp.state() == QpState::Err) else { return };
        let id = WrId::new(WrKind::Marker, self.generation, self.in_flight.next());
        // SAFETY: the marker uses the slot of the newest send, which the device already owns. The lane reclaims the
        // slot of that send only after the marker has completed, or after a reset. In state ERR, the device does not
        // read the memory.
        let _ = unsafe { self.queues.qp.post_send_run(&RunSource::new(&[newest]).run(), id.0) };
    }

    /// Handles the flush completion of a marker. At this point, all outstanding sends have completed. None of these
    /// sends failed, because a failed send always generates a completion. Returns `false` if `id` is not the id of the
    /// marker.
    #[cold]
    pub(super) fn handle_marker(&mut self, id: WrId, pool: &mut Pool) -> bool {
        let is_marker = id == WrId::new(WrKind::Marker, self.generation, self.in_flight.next());
        if is_marker {
            self.in_flight.reclaim(pool);
            let sent = self.in_flight.len();
            self.counters.tx += sent as u64;
            self.counters.tx_bytes += self.in_flight.complete(sent, Stamp::NONE, &mut NoSink);
            self.in_flight.reclaim(pool);
            self.unsignalled_since = None;
        }
        is_marker
    }

    /// Returns the slots of all outstanding receives and sends to the pool, and starts a new generation of request ids.
    /// The caller must have reset or destroyed the queue pair, so that the device no longer accesses the slots.
    #[cold]
    pub(super) fn reclaim_all(&mut self, pool: &mut Pool) {
        self.check_pool(pool);
        // After a panic of the latency sink, some completed sends are not reclaimed yet.
        self.in_flight.reclaim(pool);
        let sending = self.in_flight.len();
        self.in_flight.complete(sending, Stamp::NONE, &mut NoSink);
        self.in_flight.reclaim(pool);
        self.unsignalled_since = None;
        self.was_flushed = false;
        while let Some(slot) = self.posted.pop() {
            pool.put_one(slot, SlotState::Posted);
        }
        match self.stopping {
            true => self.counters.dropped_at_stop += sending as u64,
            false => self.counters.tx_errors += sending as u64,
        }
        self.generation = self.generation.wrapping_add(1);
    }
}
