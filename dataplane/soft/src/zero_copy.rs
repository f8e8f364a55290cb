//! Zero-copy queue pairs for raw packets. The kernel owns the posted slots until the kernel returns them. Such a queue
//! pair accepts only runs of slots (`post_recv_run`, `post_send_run`), not lists of work requests.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::completion::{Now, RawCqe, Stamps};
use crate::counters::Counting;
use crate::cq_core::CqCore;
use crate::engine::PartialPost;
use crate::fault::PostFaults;
use crate::link::{CompletedSend, Received, ZeroCopyQueue};
use crate::memory::{Slots, SoftMr};
use crate::numbers::Identity;
use crate::qp_shared::QpShared;
use crate::ring::Ring;
use crate::shared::Shared;
use dataplane_core::mem::{Desc, SlotLayout};
use dataplane_core::units::Ticks;
use dataplane_core::verbs::{Completions, MAX_RUN, MemoryRegion, QpSpec, QpState, RecvRequest, WcStatus};

/// The part of a zero-copy queue pair's state that only its worker accesses.
#[derive(Debug)]
pub(super) struct ZeroCopyQp {
    queue: ZeroCopyQueue,
    slots: Option<Slots>,
    /// The injected faults that refuse posts: index 0 for receives, index 1 for sends.
    refused: [Option<PostFaults>; 2],
    pd: Identity,
    /// The depth of the send queue.
    depth: u64,
    /// The number of sends posted since RESET.
    posted: u64,
    signal_all: bool,
    /// The maximum number of elements of a receive request.
    recv_sges: usize,
}

impl ZeroCopyQp {
    pub(super) fn new(device: &Shared, queue: ZeroCopyQueue, pd: Identity, spec: &QpSpec) -> Self {
        let faults = device.faults;
        Self {
            queue,
            slots: None,
            refused: [1, 2].map(|salt| PostFaults::new(&faults, u64::from(spec.queue.0) << 32 | salt)),
            pd,
            depth: u64::from(spec.caps.send_depth),
            posted: 0,
            signal_all: spec.signal_all,
            recv_sges: spec.caps.recv_sges as usize,
        }
    }

    /// Closes the queue and drops all requests.
    ///
    /// # Errors
    /// Returns `EBUSY` if the hardware may still write to the slots.
    pub(super) fn reset(&mut self, counts: &Counting) -> Result<(), i32> {
        counts.rx_missed.add(self.queue.close());
        if !self.queue.is_released() {
            return Err(libc::EBUSY);
        }
        self.queue.clear();
        self.posted = 0;
        Ok(())
    }

    pub(super) fn open(&mut self) -> Result<(), i32> {
        self.queue.open()
    }

    /// Closes the queue and flushes all sends.
    pub(super) fn fail(&mut self, shared: &QpShared, cq: &mut CqCore) {
        while let Some(cqe) = self.flush_one(shared) {
            cq.push(cqe);
        }
    }

    /// Closes the queue and flushes sends, oldest first, up to the next send with a completion. Returns this
    /// completion, or `None` if no send has a completion.
    pub(super) fn flush_one(&mut self, shared: &QpShared) -> Option<RawCqe> {
        shared.counts.rx_missed.add(self.queue.close());
        std::iter::from_fn(|| self.queue.pop_sent()).find_map(|sent| reclaimed_entry(shared, &sent, || Ticks(0)))
    }

    pub(super) fn bind(&mut self, mr: &SoftMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), i32> {
        if self.queue.posted() > 0 || self.queue.sends() {
            return Err(libc::EBUSY);
        }
        let slots = Slots::new(mr.clone(), layout, recv_wr_id, self.pd).filter(|slots| slots.writable);
        let slots = slots.ok_or(libc::EINVAL)?;
        self.queue.bind(mr.region(), layout, recv_wr_id)?;
        self.slots = Some(slots);
        Ok(())
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.queue.descriptor()
    }

    /// Refuses all requests, because only runs are supported.
    pub(super) fn post_recv(&mut self, shared: &QpShared, requests: &[RecvRequest<'_>]) -> Result<(), PartialPost> {
        let Some(request) = requests.first() else { return Ok(()) };
        let is_wrong = shared.state() == QpState::Reset || request.sges.len() > self.recv_sges;
        Err(PartialPost::none_accepted(if is_wrong { libc::EINVAL } else { libc::EOPNOTSUPP }))
    }

    /// Hands slots to the kernel for receives. Accepts fewer slots if the queue has less space.
    #[inline]
    pub(super) fn post_recv_run(&mut self, shared: &QpShared, slots: &[u32]) -> Result<(), PartialPost> {
        let bound = self.slots.as_ref().filter(|_| shared.state() != QpState::Reset);
        let count = bound.map_or(0, |bound| bound.layout.count());
        let valid = slots.iter().take_while(|&&slot| slot < count).count();
        let space = self.queue.space();
        let (n, errno) = self.accept(0, valid, space);
        self.queue.post(&slots[..n]);
        partial(n, slots.len(), errno)
    }

    /// Hands packets to the kernel to be sent. The kernel owns the slots of the packets until it returns the slots. A
    /// frame with an invalid length completes with an error and does not affect the other frames.
    #[inline(never)]
    pub(super) fn post_send_run(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        run: &[Desc],
        first_wr_id: u64,
    ) -> Result<(), PartialPost> {
        let Some(slots) = &self.slots else { return Err(PartialPost::none_accepted(libc::EINVAL)) };
        let layout = slots.layout;
        let space = self.depth - (self.posted - shared.released.load(Ordering::Relaxed)).min(self.depth);
        if self.queue.is_stale() {
            shared.fail();
        }
        let state = shared.state();
        if state == QpState::Err {
            // No send may be transmitted in state ERR. `fail` flushes the earlier sends and closes the queue. The
            // closed queue then flushes the new sends.
            self.fail(shared, cq);
        }
        let valid = match state {
            QpState::Rts | QpState::Err => run.iter().take_while(|&&desc| layout.admits(desc)).count(),
            _ => 0,
        };
        let (n, errno) = self.accept(1, valid, space as usize);
        self.posted += n as u64;
        let lost = self.queue.send(&run[..n], first_wr_id, self.signal_all);
        if lost > 0 {
            shared.counts.tx_link_down.add(lost as u64);
        }
        partial(n, run.len(), errno)
    }

    /// Returns how many requests are accepted, and the `errno` for the first request that is refused. `valid` is the
    /// number of valid requests before the first invalid request, and `space` is the free space of the queue. `side` is
    /// the index in `refused`.
    #[inline]
    fn accept(&mut self, side: usize, valid: usize, space: usize) -> (usize, i32) {
        let (n, errno) = (valid.min(space), if valid <= space { libc::EINVAL } else { libc::ENOMEM });
        let Some(faults) = &mut self.refused[side] else { return (n, errno) };
        (0..n).find_map(|at| faults.refuses().map(|errno| (at, errno))).unwrap_or((n, errno))
    }

    /// Adds entries for the sends that the kernel has returned, while `ring` has fewer than `max_entries` entries.
    #[inline]
    pub(super) fn reap(&mut self, shared: &QpShared, ring: &mut Ring<RawCqe>, max_entries: usize, stamps: &Stamps) {
        let queue = &mut self.queue;
        if !queue.sends() {
            return;
        }
        if queue.is_stale() {
            shared.fail();
        }
        queue.look();
        let (mut packets, mut bytes, mut ticks) = (0, 0, None);
        while ring.len() < max_entries
            && let Some(sent) = queue.pop_sent()
        {
            if sent.status == WcStatus::Success {
                packets += 1;
                bytes += u64::from(sent.len);
            }
            let entry = reclaimed_entry(shared, &sent, || *ticks.get_or_insert_with(|| stamps.now()));
            entry.into_iter().for_each(|entry| ring.push(entry));
        }
        shared.counts.tx_packets.add(packets);
        shared.counts.tx_bytes.add(bytes);
    }

    /// Receives directly into `run`. Returns `false` if no slots are bound, or if the queue pair is not in a state that
    /// receives.
    #[inline]
    pub(super) fn receive_run(&mut self, shared: &QpShared, run: &mut Completions, limit: usize, now: Now) -> bool {
        if self.slots.is_none() {
            return false;
        }
        if self.queue.is_stale() {
            shared.fail();
            return false;
        }
        let running = is_running(shared);
        if running {
            let received = self.queue.receive(run, limit, now);
            count(shared, &received);
        }
        running
    }

    /// Receives up to `max_frames` frames, or in state ERR flushes up to `max_frames` receives. Used for polls with a
    /// cursor (`start_poll`) and after failures.
    #[cold]
    pub(super) fn receive(&mut self, shared: &QpShared, ring: &mut Ring<RawCqe>, max_frames: usize, now: Now) {
        let queue = &mut self.queue;
        let target_len = ring.len().saturating_add(max_frames);
        if is_running(shared) {
            let mut run = Completions::new();
            let received = queue.receive(&mut run, MAX_RUN.min(target_len - ring.len()), now);
            count(shared, &received);
            for at in 0..run.len {
                let status = if run.failed { run.status[at] } else { WcStatus::Success };
                let entry = RawCqe::of_receive(shared.number, run.wr_id[at], status, run.ticks[at]);
                ring.push(RawCqe { byte_len: run.byte_len[at], ..entry });
            }
        } else if shared.state() == QpState::Err {
            shared.counts.rx_missed.add(queue.close());
            while ring.len() < target_len
                && let Some(wr_id) = queue.flush_receive()
            {
                ring.push(RawCqe::of_receive(shared.number, wr_id, WcStatus::WrFlushErr, Ticks(0)));
            }
        }
    }
}

/// Returns whether the state of a queue pair allows receiving.
#[inline]
fn is_running(shared: &QpShared) -> bool {
    matches!(shared.state(), QpState::Rtr | QpState::Rts | QpState::Sqd)
}

/// Returns the result of a post that accepted the first `n` requests. `all` is the number of requests in the post.
#[inline]
fn partial(n: usize, all: usize, errno: i32) -> Result<(), PartialPost> {
    if n == all { Ok(()) } else { Err(PartialPost { accepted: n as u32, errno }) }
}

/// Counts received frames.
#[inline]
fn count(shared: &QpShared, received: &Received) {
    shared.counts.rx_packets.add(received.frames);
    shared.counts.rx_bytes.add(received.bytes);
    if received.too_long > 0 {
        shared.counts.rx_too_long.add(received.too_long);
    }
}

/// Returns the completion of a send, or `None` if the send succeeded and was not posted as signaled.
#[inline]
fn reclaimed_entry(shared: &QpShared, sent: &CompletedSend, ticks: impl FnOnce() -> Ticks) -> Option<RawCqe> {
    let ticks = || if sent.status == WcStatus::Success { ticks() } else { Ticks(0) };
    sent.has_completion.then(|| RawCqe::of_send(shared.number, sent.wr_id, sent.status, sent.count, ticks()))
}
