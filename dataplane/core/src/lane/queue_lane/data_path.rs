//! The data path of a lane: receive, transmit, reap and refill. Reaping returns the buffers of completed sends to the
//! pool. Refilling posts free buffers to the receive queue.
//!
//! The data path only moves buffers and counts packets. It does not change the state of the queue pair. If a completion
//! queue fails, the data path returns an error. If a completion has an error, the data path sets the flag `has_error`.
//! [`Recovery`](super::recovery::Recovery) then handles the error.

use std::sync::Arc;
use std::time::Instant;

use super::queues::Queues;
use crate::clock::{Stamp, Stamper};
use crate::error::VerbError;
use crate::lane::in_flight::InFlight;
use crate::lane::posted::PostedReceives;
use crate::lane::{LaneCounters, LatencySink};
use crate::mem::{Batch, Pool, Region, SlotState, Stamps, vector};
use crate::verbs::{
    CompletionQueue, Completions, Device, MAX_RUN, ProtectionDomain, QueuePair, WcStatus, WrId, WrKind,
};

/// The memory region type of a device.
pub(super) type MrOf<D> = <<D as Device>::Pd as ProtectionDomain>::Mr;

/// Upper bound on `reap_at` and `refill_at`. While the lane keeps sending, it reaps only when `reap_at` sends are
/// outstanding. While the lane keeps receiving, it refills only when `refill_at` receives are missing. One call then
/// handles many slots.
const MAX_DEFERRED: usize = 256;

/// The queues of a lane, and the buffers that the device owns.
pub(super) struct DataPath<D: Device> {
    // Declared first: the queues must be dropped before the memory that they use.
    pub(super) queues: Queues<D>,
    mr: MrOf<D>,
    /// The memory of the lane's pool.
    region: Arc<Region>,
    pub(super) posted: PostedReceives,
    pub(super) in_flight: InFlight,
    /// The number of restarts, modulo 2^16. Each request id contains this number, so that the lane recognises late
    /// completions of earlier requests.
    pub(super) generation: u16,
    /// The number of bytes that the device writes before a received packet, such as the GRH.
    pub(super) prefix: u16,
    /// Maximum length of a packet to send.
    pub(super) longest: u16,
    pub(super) run: Box<Completions>,
    /// Stamps of the completions in `run`.
    pub(super) stamps: Box<[Stamp; MAX_RUN]>,
    pub(super) recv_stamper: Stamper,
    pub(super) send_stamper: Stamper,
    /// Buffer for a contiguous copy of slots that wrap around the end of the ring.
    contiguous: Box<[u32; MAX_RUN]>,
    /// While the lane posts new sends, it reaps only when at least this many sends are outstanding. 0 unless each send
    /// completes in the call that posts it ([`QueuePair::sends_complete_immediately`]).
    reap_at: usize,
    /// Value of `in_flight.next()` at the previous call of `is_reap_due`.
    next_at_reap: u64,
    /// While packets arrive, the lane posts receives only when at least this many receives are missing.
    refill_at: usize,
    /// The number of received packets at the previous call of `is_refill_due`.
    rx_at_refill: u64,
    /// The time at which the lane posted the oldest send that no completion will report. No completion reports a send
    /// if the send is unsignalled and no signalled send follows the send. `None` if there is no such send.
    pub(super) unsignalled_since: Option<Instant>,
    /// Whether the worker has stopped the lane. Flushed requests then do not count as errors.
    pub(super) stopping: bool,
    /// Whether a completion had an error that recovery has not examined yet.
    pub(super) has_error: bool,
    /// Whether a request was flushed since the queue pair was last started.
    pub(super) was_flushed: bool,
    pub(super) counters: LaneCounters,
}

/// Returns the stamp that all completions of a run share. If the stamps may differ, writes each stamp to `stamps` and
/// returns `None`.
#[inline(always)]
fn stamp_run(stamper: &mut Stamper, run: &Completions, stamps: &mut [Stamp]) -> Option<Stamp> {
    if run.failed {
        stamp_successful(stamper, run, stamps);
        return None;
    }
    if run.in_order || stamps.len() == 1 {
        return Some(stamper.stamp_all(run.ticks[0], stamps.len()));
    }
    stamper.stamp(&run.ticks[..stamps.len()], stamps);
    None
}

/// Stamps only the successful completions of a run. A completion with an error has no ticks.
#[cold]
fn stamp_successful(stamper: &mut Stamper, run: &Completions, stamps: &mut [Stamp]) {
    stamps.fill(Stamp::NONE);
    for at in (0..stamps.len()).filter(|at| run.status[*at] == WcStatus::Success) {
        stamper.stamp(&run.ticks[at..=at], &mut stamps[at..=at]);
    }
}

impl<D: Device> DataPath<D> {
    /// Creates the data path on new queues. At most `depths` receives and sends are outstanding at a time.
    pub(super) fn new(
        queues: Queues<D>,
        mr: MrOf<D>,
        pool: &Pool,
        depths: (u32, u32),
        (prefix, longest): (u16, u16),
        stamper: Stamper,
    ) -> Self {
        // The lane bounds its outstanding requests by these depths, so the completion queues cannot overrun.
        let caps = queues.qp.caps();
        let recv_depth = depths.0.min(caps.recv_depth).min(queues.recv_cq.depth()) as usize;
        let send_depth = depths.1.min(caps.send_depth).min(queues.send_cq.depth());
        Self {
            queues,
            mr,
            region: pool.region().clone(),
            posted: PostedReceives::new(recv_depth),
            in_flight: InFlight::new(send_depth),
            generation: 0,
            prefix,
            longest,
            run: Completions::new(),
            stamps: Box::new([Stamp::NONE; MAX_RUN]),
            recv_stamper: stamper.clone(),
            send_stamper: stamper,
            contiguous: Box::new([0; MAX_RUN]),
            reap_at: 0,
            next_at_reap: 0,
            refill_at: (recv_depth / 4).min(MAX_DEFERRED),
            rx_at_refill: 0,
            unsignalled_since: None,
            stopping: false,
            has_error: false,
            was_flushed: false,
            counters: LaneCounters::default(),
        }
    }

    /// Binds the slots to the queue pair, which is in RESET.
    pub(super) fn bind(&mut self, pool: &Pool) -> Result<(), VerbError> {
        self.queues.qp.bind_slots(&self.mr, pool.layout(), self.tag(WrKind::Receive))?;
        let reap_at = (self.in_flight.space() / 4).min(MAX_DEFERRED);
        self.reap_at = if self.queues.qp.sends_complete_immediately() { reap_at } else { 0 };
        Ok(())
    }

    /// Returns the part of the request id that all requests of this kind and generation share.
    pub(super) fn tag(&self, kind: WrKind) -> u64 {
        WrId::new(kind, self.generation, 0).0
    }

    /// Checks that the pool is the pool that the lane was opened with. Runs before slots move between the pool and the
    /// device.
    ///
    /// # Panics
    /// Panics if the lane was opened with another pool.
    #[inline]
    pub(super) fn check_pool(&self, pool: &Pool) {
        assert!(Arc::ptr_eq(&self.region, pool.region()), "the lane was opened with another pool");
    }

    /// Polls the receive completion queue and adds the successfully received packets to the batch. Returns the number
    /// of added packets. With `INFO`, also stores the receive information of the packets.
    #[inline]
    pub(super) fn receive<const INFO: bool>(
        &mut self,
        pool: &mut Pool,
        batch: &mut Batch,
        limit: usize,
    ) -> Result<usize, VerbError> {
        let n = self.queues.recv_cq.poll_run(&mut self.run, limit.min(batch.space()).min(MAX_RUN))?;
        if n == 0 {
            return Ok(0);
        }
        // With a wrong pool or batch, which is a bug of the caller, these checks panic. The buffers of the completions
        // are then lost.
        self.check_pool(pool);
        batch.check_pool(pool);
        let run = &*self.run;
        let alike = stamp_run(&mut self.recv_stamper, run, &mut self.stamps[..n]);
        if run.failed || n > self.posted.len() {
            return Ok(self.sort_receives(pool, batch, n, alike));
        }
        let tag = self.tag(WrKind::Receive);
        let offset = pool.layout().headroom + self.prefix;
        let stamps = alike.map_or(Stamps::Each(&self.stamps[..n]), Stamps::Alike);
        let before = batch.len();
        let slots = match self.posted.oldest(n) {
            [slots, []] => slots,
            [slots, rest] => {
                self.contiguous[..slots.len()].copy_from_slice(slots);
                self.contiguous[slots.len()..n].copy_from_slice(rest);
                &self.contiguous[..n]
            }
        };
        let are_expected = run.in_order || vector::are_ids(&run.wr_id[..n], slots, tag);
        let received = are_expected.then(|| batch.receive(slots, &run.byte_len[..n], self.prefix, offset, stamps));
        let Some(bytes) = received.flatten() else {
            return Ok(self.sort_receives(pool, batch, n, alike));
        };
        pool.moved_descs(&batch.descs()[before..], SlotState::Posted, SlotState::Batched);
        self.posted.advance(n);
        self.counters.rx += n as u64;
        self.counters.rx_bytes += bytes;
        if INFO {
            pool.set_received(&batch.descs()[before..], self.run.infos());
        }
        Ok(n)
    }

    /// Sends the batch and leaves it empty. The queue pair must be in RTS.
    // Both types of `QueueLane` (with and without `INFO`) use this function, so the compiler would not inline it
    // without `always`.
    #[inline(always)]
    pub(super) fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        self.check_pool(pool);
        batch.check_pool(pool);
        let (mut run, mut stamps) = batch.run();
        if run.bounds().longest > u32::from(self.longest) || run.len() > self.in_flight.space() {
            self.drop_unsendable(pool, batch);
            (run, stamps) = batch.run();
        }
        let n = run.len();
        if n == 0 {
            return;
        }
        let first = WrId::new(WrKind::Send, self.generation, self.in_flight.next()).0;
        pool.moved_descs(run.descs(), SlotState::Batched, SlotState::Sending);
        // SAFETY: the slots leave the batch below. `in_flight` returns the slots to the pool only after this request or
        // a later request has completed, or after the queue pair was reset or destroyed. The batch, the pool and `mr`
        // have the same region (checked above). `mr` keeps the region alive and is dropped after the queue pair.
        let posted = unsafe { self.queues.qp.post_send_run(&run, first) };
        let taken = match posted {
            Ok(()) => n,
            Err(refused) => refused.accepted.min(n),
        };
        if taken < n {
            return self.keep_accepted(pool, batch, taken);
        }
        // The last send of a run is signalled (on efa, every send). The completion of the last send covers all earlier
        // sends.
        self.unsignalled_since = None;
        self.in_flight.extend(&run, stamps);
        batch.forget();
    }

    /// Returns whether it is time to poll for completed sends. Call this function once per loop.
    #[inline]
    pub(super) fn is_reap_due(&mut self) -> bool {
        let (sending, next) = (self.in_flight.len(), self.in_flight.next());
        let more_came = next != std::mem::replace(&mut self.next_at_reap, next);
        sending > 0 && !(more_came && sending < self.reap_at)
    }

    /// Polls the send completion queue and returns the slots of completed sends to the pool. Returns the number of
    /// completions.
    #[inline]
    pub(super) fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<usize, VerbError> {
        let n = self.queues.send_cq.poll_run(&mut self.run, MAX_RUN)?;
        let tag = self.tag(WrKind::Send);
        if n == 0 {
            return Ok(0);
        }
        self.check_pool(pool);
        let alike = stamp_run(&mut self.send_stamper, &self.run, &mut self.stamps[..n]);
        for i in 0..n {
            let id = WrId(self.run.wr_id[i]);
            let status = if self.run.failed { self.run.status[i] } else { WcStatus::Success };
            let Some(earlier) = self.in_flight.position(id.number()).filter(|_| id.tag() == tag) else {
                self.counters.unmatched_completions += u64::from(!self.handle_marker(id, pool));
                continue;
            };
            // Completions are in order, and a failed send always generates a completion. All sends before the send of
            // this completion therefore succeeded.
            let sent = earlier + usize::from(status == WcStatus::Success);
            self.counters.tx += sent as u64;
            self.counters.tx_bytes += self.in_flight.complete(sent, alike.unwrap_or(self.stamps[i]), latency);
            if status != WcStatus::Success {
                self.fail_oldest_send(pool, status);
            }
        }
        self.in_flight.reclaim(pool);
        Ok(n)
    }

    /// Returns whether it is time to post receives. Call this function once per loop.
    #[inline]
    pub(super) fn is_refill_due(&mut self) -> bool {
        let received = self.counters.rx;
        let more_came = received != std::mem::replace(&mut self.rx_at_refill, received);
        !(more_came && self.posted.space() < self.refill_at)
    }

    /// Posts free slots until the receive queue is full.
    #[inline(never)]
    pub(super) fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        self.check_pool(pool);
        loop {
            let slots = pool.take(self.posted.space().min(MAX_RUN), SlotState::Posted);
            if slots.is_empty() {
                return Ok(());
            }
            // SAFETY: the slots have just left the pool. The lane reuses these slots only after their completions, or
            // after the queue pair was reset or destroyed. `mr` has the pool's region (checked above), keeps it alive,
            // and is dropped after the queue pair.
            if let Err(refused) = unsafe { self.queues.qp.post_recv_run(slots) } {
                let (accepted, rest) = slots.split_at(refused.accepted.min(slots.len()));
                self.posted.extend(accepted);
                let rest = rest.to_vec();
                pool.put(&rest, SlotState::Posted);
                return Err(refused.error);
            }
            self.posted.extend(slots);
            if slots.len() < MAX_RUN {
                return Ok(());
            }
        }
    }

    /// Returns the number of requests that the device still owns.
    pub(super) fn outstanding(&self) -> usize {
        self.posted.len() + self.in_flight.len()
    }
}
