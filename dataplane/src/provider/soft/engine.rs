//! What a queue pair of raw packets does: its states, its sends. Sends are carried out when they are posted.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::VerbError;
use crate::mem::{Desc, Run, SlotLayout};
use crate::provider::soft::counters::Counting;
use crate::provider::soft::cq::{CqCore, Entry, Stamps};
use crate::provider::soft::device::Shared;
use crate::provider::soft::fault::{Faults, PostFaults};
use crate::provider::soft::handle::SoftAh;
use crate::provider::soft::link::{BURST, Over, Sent, Wire};
use crate::provider::soft::memory::{KeyCache, Slots, SoftMr, copy_inline};
use crate::provider::soft::qp::QpShared;
use crate::provider::soft::recv::RecvQueue;
use crate::provider::soft::ring::Ring;
use crate::provider::{
    Capability, MemoryRegion, PostError, QpSpec, QpState, RecvRequest, SendApi, SendFlags, SendRequest, Sge, WcStatus,
    WrOpcode,
};
use crate::units::Ticks;

/// The shortest frame: an Ethernet header.
const LEAST_FRAME: usize = 14;

/// Of a post the first so many were taken. It fits registers, as what comes back from every post should.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    accepted: u32,
    pub(super) errno: i32,
}

impl Short {
    /// None was taken.
    pub(super) fn by_all(errno: i32) -> Self {
        Self { accepted: 0, errno }
    }

    /// The same, as the verb says it.
    #[cold]
    pub(super) fn of(self, verb: &'static str) -> PostError {
        PostError { accepted: self.accepted as usize, error: VerbError::new(verb, self.errno) }
    }
}

/// The state of a queue pair that belongs to its worker.
#[derive(Debug)]
pub(super) struct QpCore {
    pub(super) recv: RecvQueue,
    pub(super) slots: Option<Slots>,
    /// Whether receives into the slots can be carried out a run at a time.
    pub(super) runs: bool,
    /// Slots below can be posted without a closer look.
    settled: u32,
    /// Whether sends are only counted, a run at a time.
    swallows: bool,
    /// Whether they are copied too.
    copies_out: bool,
    pub(super) keys: KeyCache,
    pub(super) wire: Wire,
    pub(super) faults: Option<Faults<Vec<u8>>>,
    /// The gathered bytes of a request.
    scratch: Vec<u8>,
    /// Which posts are refused: receives, sends.
    refused: [Option<PostFaults>; 2],
    /// Whether nothing is flushed.
    pub(super) mute: bool,
    /// Whether posts of several sends fail whole.
    whole: bool,
    pd: u32,
    depth: u64,
    /// Sends posted since RESET.
    posted: u64,
    /// Sends posted in SQD.
    waiting: VecDeque<Waiting>,
    /// Sends whose frames are with the wire, which sends them together; none between two verbs.
    together: Vec<Together>,
    signal_all: bool,
    send_sges: usize,
    recv_sges: usize,
    inline: u64,
    /// The longest frame that is sent.
    longest: usize,
}

/// A send that waits for the queue to run again.
#[derive(Debug)]
struct Waiting {
    wr_id: u64,
    opcode: WrOpcode,
    flags: SendFlags,
    sges: Vec<Sge>,
    /// What was inline: it was copied when it was posted.
    bytes: Vec<u8>,
    count: u64,
}

/// A send that goes with others.
#[derive(Clone, Copy, Debug)]
struct Together {
    wr_id: u64,
    is_signaled: bool,
    count: u64,
}

/// A send, as far as this device carries it out.
#[derive(Clone, Copy)]
struct Outgoing<'a> {
    wr_id: u64,
    opcode: WrOpcode,
    flags: SendFlags,
    sges: &'a [Sge],
}

impl QpCore {
    pub(super) fn new(device: &Arc<Shared>, pd: u32, spec: &QpSpec) -> Self {
        let faults = device.spec.faults;
        let (caps, clock) = (spec.caps, &device.spec.clock);
        let inline = if device.has(Capability::Inline) { u64::from(caps.inline) } else { 0 };
        let longest = device.spec.max_frame() as usize;
        let wire = device.link.wire(spec, &device.rss, clock);
        Self {
            recv: RecvQueue::new(caps.recv_depth, caps.recv_sges),
            slots: None,
            runs: false,
            settled: 0,
            swallows: wire.swallows() && faults.spares_queues(),
            copies_out: wire.copies_out(),
            keys: KeyCache::new(device.keys.clone(), pd),
            wire,
            faults: (!faults.spares_queues()).then(|| Faults::new(faults, spec.queue.0, clock.clone())),
            scratch: Vec::with_capacity(longest + 64),
            refused: [1, 2].map(|salt| PostFaults::new(&faults, u64::from(spec.queue.0) << 32 | salt)),
            mute: faults.mute,
            whole: spec.send_api == SendApi::Extended,
            pd,
            depth: u64::from(caps.send_depth),
            posted: 0,
            waiting: VecDeque::new(),
            together: Vec::with_capacity(BURST),
            signal_all: spec.signal_all,
            send_sges: caps.send_sges as usize,
            recv_sges: caps.recv_sges as usize,
            inline,
            longest,
        }
    }

    /// Forgets all requests, and the frames that were under way: those count as missed.
    pub(super) fn reset(&mut self, counts: &Counting) {
        let mut lost = self.wire.close();
        self.recv.clear();
        if let Wire::Xdp(queue) = &mut self.wire {
            queue.clear();
        }
        self.waiting.clear();
        self.posted = 0;
        if let Some(faults) = &mut self.faults {
            lost += faults.clear();
        }
        counts.rx_missed.add(lost);
    }

    /// Begins to receive.
    ///
    /// # Errors
    /// As [`Wire::open`].
    pub(super) fn open(&mut self) -> Result<(), i32> {
        self.wire.open()
    }

    /// Carries out what was posted while the queue was stopped.
    pub(super) fn resume(&mut self, shared: &QpShared, cq: &mut CqCore) {
        while let Some(it) = self.waiting.pop_front() {
            let inline = it.flags.contains(SendFlags::INLINE).then_some(&*it.bytes);
            let wr = request(&it);
            self.carry_out(shared, cq, &wr, inline, it.count);
        }
        self.flush(shared, cq);
    }

    /// Flushes the sends that wait. Receives are flushed when their completions are polled.
    pub(super) fn fail(&mut self, shared: &QpShared, cq: &mut CqCore) {
        self.wire.close();
        while let Some(cqe) = self.flush_one(shared) {
            cq.push(cqe);
        }
    }

    /// Flushes the oldest send that waits.
    pub(super) fn flush_one(&mut self, shared: &QpShared) -> Option<Entry> {
        if let Wire::Xdp(queue) = &mut self.wire {
            queue.close();
            return std::iter::from_fn(|| queue.pop_sent()).find_map(|over| over_entry(shared, &over, || Ticks(0)));
        }
        let it = self.waiting.pop_front_if(|_| !self.mute)?;
        Some(entry(shared, it.wr_id, WcStatus::WrFlushErr, it.count, Ticks(0)))
    }

    pub(super) fn bind(&mut self, mr: &SoftMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), i32> {
        let lent = matches!(&self.wire, Wire::Xdp(queue) if queue.posted() > 0 || queue.sends());
        if self.recv.len() > 0 || lent {
            return Err(libc::EBUSY);
        }
        let slots = Slots::new(mr.clone(), layout, recv_wr_id, self.pd).ok_or(libc::EINVAL)?;
        self.runs = match &mut self.wire {
            Wire::Generator(generator) => generator.bind(layout) && slots.writable && self.faults.is_none(),
            Wire::Pcap(player) => player.bind(layout) && slots.writable && self.faults.is_none(),
            Wire::Loopback(_) | Wire::Packet(_) | Wire::Tap(_) => false,
            Wire::Xdp(_) if !slots.writable => return Err(libc::EINVAL),
            Wire::Xdp(queue) => queue.bind(mr.region(), layout, recv_wr_id).map(|()| true)?,
        };
        self.slots = Some(slots);
        self.settle();
        Ok(())
    }

    /// What is readable when something has come in. `None`: that is found out by polling alone.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // Faults hold frames back.
        self.wire.descriptor().filter(|_| self.faults.is_none())
    }

    pub(super) fn ended(&self) -> bool {
        self.wire.ended() && !self.faults.as_ref().is_some_and(|faults| faults.holds_any())
    }

    pub(super) fn post_recv(&mut self, shared: &QpShared, requests: &[RecvRequest<'_>]) -> Result<(), Short> {
        for (accepted, request) in (0..).zip(requests) {
            let errno = if shared.state() == QpState::Reset || request.sges.len() > self.recv_sges {
                libc::EINVAL
            } else if self.lends() {
                libc::EOPNOTSUPP
            } else if self.recv.space() == 0 {
                libc::ENOMEM
            } else if let Some(errno) = self.refused[0].as_mut().and_then(PostFaults::refuses) {
                errno
            } else {
                self.recv.push(request);
                continue;
            };
            return Err(Short { accepted, errno });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn post_recv_run(&mut self, shared: &QpShared, slots: &[u32]) -> Result<(), Short> {
        // Slots below are of the layout, and nothing has to be done to them.
        let below = if shared.state() == QpState::Reset { 0 } else { self.settled };
        match self.recv.push_slots(slots, below) {
            true => Ok(()),
            false => self.post_recv_some(shared, slots),
        }
    }

    /// The same, where it may be that not all are taken.
    #[inline(never)]
    fn post_recv_some(&mut self, shared: &QpShared, slots: &[u32]) -> Result<(), Short> {
        let bound = self.slots.as_ref().filter(|_| shared.state() != QpState::Reset);
        let count = bound.map_or(0, |bound| bound.layout.count);
        let space = match &self.wire {
            Wire::Xdp(queue) => queue.space(),
            _ => self.recv.space(),
        };
        let valid = slots.iter().take_while(|&&slot| slot < count).count();
        let (mut accepted, mut errno) = (valid.min(space), if valid <= space { libc::EINVAL } else { libc::ENOMEM });
        if let Some(faults) = &mut self.refused[0] {
            let refused = (0..accepted).find_map(|at| faults.refuses().map(|errno| (at, errno)));
            (accepted, errno) = refused.unwrap_or((accepted, errno));
        }
        let taken = &slots[..accepted];
        match (&mut self.wire, &self.slots) {
            (Wire::Xdp(queue), _) => queue.post(taken),
            (wire, Some(bound)) => {
                if self.runs {
                    wire.prepare(bound, taken);
                }
                self.recv.push_slots(taken, count);
                self.settle();
            }
            _ => {}
        }
        match accepted == slots.len() {
            true => Ok(()),
            false => Err(Short { accepted: accepted as u32, errno }),
        }
    }

    /// Finds out which slots can be posted without more ado.
    fn settle(&mut self) {
        self.settled = match (&self.wire, &self.slots) {
            (Wire::Xdp(_), _) | (_, None) => 0,
            _ if self.refused[0].is_some() => 0,
            (wire, Some(bound)) if self.runs => wire.prepared().unwrap_or(bound.layout.count),
            (_, Some(bound)) => bound.layout.count,
        };
    }

    pub(super) fn post_send(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        requests: &[SendRequest<'_, SoftAh>],
    ) -> Result<(), PostError> {
        if self.lends() {
            return Err(PostError { accepted: 0, error: VerbError::new("ibv_post_send", libc::EOPNOTSUPP) });
        }
        if self.whole {
            self.check_all(shared, requests)
                .map_err(|errno| PostError { accepted: 0, error: VerbError::new("ibv_wr_complete", errno) })?;
        }
        let posted = requests.iter().enumerate().try_for_each(|(accepted, wr)| {
            let wr = Outgoing { wr_id: wr.wr_id, opcode: wr.op.opcode(), flags: wr.flags, sges: wr.sges };
            self.post_one(shared, cq, &wr)
                .map_err(|errno| PostError { accepted, error: VerbError::new("ibv_post_send", errno) })
        });
        self.flush(shared, cq);
        posted
    }

    #[inline]
    fn space(&self, shared: &QpShared) -> u64 {
        self.depth - (self.posted - shared.released.load(Ordering::Relaxed)).min(self.depth)
    }

    #[inline]
    pub(super) fn post_send_run(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        run: &Run<'_>,
        first_wr_id: u64,
    ) -> Result<(), Short> {
        let Some(slots) = &self.slots else { return Err(Short::by_all(libc::EINVAL)) };
        if self.lends() {
            return self.lend(shared, cq, run.descs(), first_wr_id);
        }
        let (n, extent, layout) = (run.len() as u64, run.extent(), slots.layout);
        let counted = self.swallows
            && (1..=self.space(shared)).contains(&n)
            && extent.last < layout.count
            && extent.end <= layout.limit()
            && extent.shortest >= LEAST_FRAME as u32
            && extent.longest <= self.longest as u32
            && shared.state() == QpState::Rts;
        if !counted {
            return self.post_each(shared, cq, run.descs(), first_wr_id);
        }
        self.posted += n;
        if self.copies_out {
            self.wire.copy_out(slots, run);
        }
        if shared.device.is_up() {
            shared.counts.tx_packets.add(n);
            shared.counts.tx_bytes.add(u64::from(extent.bytes));
        }
        for before in (1..n).rev().filter(|_| self.signal_all) {
            let id = first_wr_id.wrapping_add(n - 1 - before);
            cq.push(entry(shared, id, WcStatus::Success, self.posted - before, cq.stamps.now()));
        }
        let id = first_wr_id.wrapping_add(n - 1);
        cq.push(entry(shared, id, WcStatus::Success, self.posted, cq.stamps.now()));
        Ok(())
    }

    /// Whether slots are lent to the kernel, and nothing else is sent or received.
    #[inline]
    fn lends(&self) -> bool {
        matches!(self.wire, Wire::Xdp(_))
    }

    /// A run of sends whose slots are lent to the kernel. What a frame cannot be as long as ends by itself, with an error,
    /// and is nothing to the others.
    #[inline(never)]
    fn lend(&mut self, shared: &QpShared, cq: &mut CqCore, run: &[Desc], first_wr_id: u64) -> Result<(), Short> {
        let space = self.space(shared) as usize;
        let Some(slots) = &self.slots else { return Ok(()) };
        let layout = slots.layout;
        if matches!(&self.wire, Wire::Xdp(queue) if queue.is_stale()) {
            shared.fail();
        }
        let state = shared.state();
        if state == QpState::Err {
            // Before the run: what is posted now goes nowhere.
            self.fail(shared, cq);
        }
        let valid = match state {
            QpState::Rts | QpState::Err => run.iter().take_while(|&&desc| layout.admits(desc)).count(),
            _ => 0,
        };
        let mut n = valid.min(space);
        let mut errno = if n == valid { libc::EINVAL } else { libc::ENOMEM };
        if let Some(faults) = &mut self.refused[1] {
            (n, errno) = (0..n).find_map(|at| faults.refuses().map(|errno| (at, errno))).unwrap_or((n, errno));
        }
        self.posted += n as u64;
        if let Wire::Xdp(queue) = &mut self.wire {
            queue.send(&run[..n], first_wr_id, self.signal_all);
        }
        match n == run.len() {
            true => Ok(()),
            false => Err(Short { accepted: n as u32, errno }),
        }
    }

    /// Takes note of the sends that the kernel has given back, while `ring` has fewer than `most` entries.
    #[inline]
    pub(super) fn reap(&mut self, shared: &QpShared, ring: &mut Ring<Entry>, most: usize, stamps: &Stamps) {
        let Wire::Xdp(queue) = &mut self.wire else { return };
        if !queue.sends() {
            return;
        }
        if queue.is_stale() {
            shared.fail();
        }
        queue.look();
        let (mut packets, mut bytes, mut ticks) = (0, 0, None);
        while ring.len() < most
            && let Some(over) = queue.pop_sent()
        {
            if over.status == WcStatus::Success {
                packets += 1;
                bytes += u64::from(over.len);
            }
            let entry = over_entry(shared, &over, || *ticks.get_or_insert_with(|| stamps.now()));
            entry.into_iter().for_each(|entry| ring.push(entry));
        }
        shared.counts.tx_packets.add(packets);
        shared.counts.tx_bytes.add(bytes);
    }

    /// A run of sends that need to be looked at one by one.
    #[inline(never)]
    fn post_each(&mut self, shared: &QpShared, cq: &mut CqCore, run: &[Desc], first_wr_id: u64) -> Result<(), Short> {
        let Some(slots) = &self.slots else { return Ok(()) };
        let layout = slots.layout;
        let valid = run.iter().take_while(|&&desc| layout.admits(desc)).count();
        let n = (self.space(shared) as usize).min(valid);
        let mut errno = if n < run.len() { Some(if n == valid { libc::EINVAL } else { libc::ENOMEM }) } else { None };
        let mut accepted = 0;
        // Whether no fault is to be injected.
        let spared = self.faults.is_none() && self.refused[1].is_none();
        for (i, &desc) in run[..n].iter().enumerate() {
            let Some(slots) = &self.slots else { break };
            let wr_id = first_wr_id.wrapping_add(i as u64);
            let can_go = spared && shared.state() == QpState::Rts && shared.device.is_up();
            if can_go && (LEAST_FRAME..=self.longest).contains(&usize::from(desc.len)) {
                self.send_slot(shared, cq, desc, wr_id, i + 1 == n || self.signal_all);
                accepted += 1;
                continue;
            }
            let sges = [slots.sge(desc)];
            let flags = if i + 1 == n { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = Outgoing { wr_id, opcode: WrOpcode::Send, flags, sges: &sges };
            if let Err(refused) = self.post_one(shared, cq, &wr) {
                errno = Some(refused);
                break;
            }
            accepted += 1;
        }
        self.flush(shared, cq);
        match errno {
            None => Ok(()),
            Some(errno) => Err(Short { accepted, errno }),
        }
    }

    /// Sends a packet out of its slot, in state RTS. It is neither too short nor too long, and the link is up.
    #[inline]
    fn send_slot(&mut self, shared: &QpShared, cq: &mut CqCore, desc: Desc, wr_id: u64, is_signaled: bool) {
        self.posted += 1;
        let count = self.posted;
        if self.wire.is_full() {
            self.flush(shared, cq);
        }
        let sent = match self.slots.as_ref().and_then(|slots| slots.bytes(desc)) {
            Some(bytes) => self.wire.send(bytes, &shared.counts),
            None => Err(WcStatus::LocProtErr),
        };
        match sent {
            Ok(Sent::Gone) => {
                shared.counts.tx_packets.add(1);
                shared.counts.tx_bytes.add(u64::from(desc.len));
                if is_signaled {
                    self.complete(shared, cq, wr_id, WcStatus::Success, count);
                }
            }
            Ok(Sent::Waits) => self.together.push(Together { wr_id, is_signaled, count }),
            Err(status) => {
                // In order.
                self.flush(shared, cq);
                self.complete(shared, cq, wr_id, status, count);
            }
        }
    }

    /// Whether a request may be posted now.
    fn admits(&self, shared: &QpShared, sges: &[Sge], flags: SendFlags) -> bool {
        let bytes: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        matches!(shared.state(), QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
            && sges.len() <= self.send_sges
            && !flags.contains(SendFlags::IP_CSUM)
            && (!flags.contains(SendFlags::INLINE) || bytes <= self.inline)
    }

    /// Whether all requests may be posted now: `ibv_wr_complete(3)` takes all or none.
    fn check_all(&mut self, shared: &QpShared, requests: &[SendRequest<'_, SoftAh>]) -> Result<(), i32> {
        if !requests.iter().all(|wr| self.admits(shared, wr.sges, wr.flags)) {
            return Err(libc::EINVAL);
        }
        if self.space(shared) < requests.len() as u64 {
            return Err(libc::ENOMEM);
        }
        requests.iter().try_for_each(|_| self.refusal())
    }

    /// Whether the next send is refused without a reason.
    fn refusal(&mut self) -> Result<(), i32> {
        self.refused[1].as_mut().and_then(PostFaults::refuses).map_or(Ok(()), Err)
    }

    fn post_one(&mut self, shared: &QpShared, cq: &mut CqCore, wr: &Outgoing<'_>) -> Result<(), i32> {
        let state = shared.state();
        if !self.admits(shared, wr.sges, wr.flags) {
            return Err(libc::EINVAL);
        }
        if self.space(shared) == 0 {
            return Err(libc::ENOMEM);
        }
        if !self.whole {
            self.refusal()?;
        }
        let inline = wr.flags.contains(SendFlags::INLINE);
        if state == QpState::Err {
            // It may have failed while it received.
            self.fail(shared, cq);
        }
        self.posted += 1;
        let count = self.posted;
        let mut copied = Vec::new();
        match state {
            QpState::Sqd => {
                if inline {
                    copy_inline(wr.sges, &mut copied);
                }
                self.waiting.push_back(Waiting {
                    wr_id: wr.wr_id,
                    opcode: wr.opcode,
                    flags: wr.flags,
                    sges: wr.sges.to_vec(),
                    bytes: copied,
                    count,
                });
            }
            _ => self.carry_out(shared, cq, wr, None, count),
        }
        Ok(())
    }

    /// Carries out a send, unless the queue pair has failed, and completes it. `inline` has its bytes where they were
    /// copied before.
    fn carry_out(&mut self, shared: &QpShared, cq: &mut CqCore, wr: &Outgoing<'_>, inline: Option<&[u8]>, count: u64) {
        if shared.state() == QpState::Err {
            if self.mute {
                return;
            }
            return self.complete(shared, cq, wr.wr_id, WcStatus::WrFlushErr, count);
        }
        if self.wire.is_full() {
            self.flush(shared, cq);
        }
        let is_signaled = wr.flags.contains(SendFlags::SIGNALED) || self.signal_all;
        match self.send(shared, wr, inline) {
            Ok(Sent::Gone) if is_signaled => self.complete(shared, cq, wr.wr_id, WcStatus::Success, count),
            Ok(Sent::Gone) => {}
            Ok(Sent::Waits) => self.together.push(Together { wr_id: wr.wr_id, is_signaled, count }),
            Err(Failure { status, of_wire }) => {
                // In order.
                self.flush(shared, cq);
                self.complete(shared, cq, wr.wr_id, status, count);
                if of_wire {
                    return;
                }
                shared.set_state(QpState::Err);
                self.wire.close();
            }
        }
    }

    /// Sends the frames that are with the wire, and completes them.
    #[inline]
    fn flush(&mut self, shared: &QpShared, cq: &mut CqCore) {
        if self.together.is_empty() {
            return;
        }
        let mut together = self.together.drain(..);
        let mut stamp = None;
        self.wire.flush(&shared.counts, |sent| {
            let Some(Together { wr_id, is_signaled, count }) = together.next() else { return };
            match sent {
                Ok(length) => {
                    shared.counts.tx_packets.add(1);
                    shared.counts.tx_bytes.add(length as u64);
                    if is_signaled {
                        let ticks = *stamp.get_or_insert_with(|| cq.stamps.now());
                        cq.push(entry(shared, wr_id, WcStatus::Success, count, ticks));
                    }
                }
                Err(status) => cq.push(entry(shared, wr_id, status, count, Ticks(0))),
            }
        });
    }

    fn send(&mut self, shared: &QpShared, wr: &Outgoing<'_>, inline: Option<&[u8]>) -> Result<Sent, Failure> {
        if let Some(faults) = &mut self.faults {
            let failed = faults.send_fails();
            shared.counts.faults.set(faults.injected);
            failed.map_or(Ok(()), |status| Err(Failure::from(status)))?;
        }
        if wr.opcode != WrOpcode::Send {
            return Err(WcStatus::LocQpOpErr.into());
        }
        self.scratch.clear();
        if wr.sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>() > self.longest as u64 {
            return Err(WcStatus::LocLenErr.into());
        }
        match inline {
            Some(bytes) => self.scratch.extend_from_slice(bytes),
            None if wr.flags.contains(SendFlags::INLINE) => copy_inline(wr.sges, &mut self.scratch),
            None => self.keys.gather(wr.sges, &mut self.scratch)?,
        }
        if self.scratch.len() < LEAST_FRAME {
            return Err(WcStatus::LocLenErr.into());
        }
        let failed = |status| Failure { status, of_wire: true };
        if !shared.device.is_up() {
            shared.counts.tx_link_down.add(1);
            return if self.wire.is_interface() { Err(failed(WcStatus::GeneralErr)) } else { Ok(Sent::Gone) };
        }
        let sent = self.wire.send(&self.scratch, &shared.counts).map_err(failed)?;
        if sent == Sent::Gone {
            shared.counts.tx_packets.add(1);
            shared.counts.tx_bytes.add(self.scratch.len() as u64);
        }
        Ok(sent)
    }

    /// Makes the entry of a send.
    #[inline]
    fn complete(&mut self, shared: &QpShared, cq: &mut CqCore, wr_id: u64, status: WcStatus, release: u64) {
        let ticks = if status == WcStatus::Success { cq.stamps.now() } else { Ticks(0) };
        cq.push(entry(shared, wr_id, status, release, ticks));
    }
}

/// The entry of a send that was lent, if it has one.
#[inline]
fn over_entry(shared: &QpShared, over: &Over, ticks: impl FnOnce() -> Ticks) -> Option<Entry> {
    let ticks = || if over.status == WcStatus::Success { ticks() } else { Ticks(0) };
    over.signaled.then(|| entry(shared, over.wr_id, over.status, over.count, ticks()))
}

/// The entry of a send.
#[inline]
fn entry(shared: &QpShared, wr_id: u64, status: WcStatus, release: u64, ticks: Ticks) -> Entry {
    Entry { wr_id, ticks, release, byte_len: 0, qp: shared.number, status }
}

fn request(it: &Waiting) -> Outgoing<'_> {
    Outgoing { wr_id: it.wr_id, opcode: it.opcode, flags: it.flags, sges: &it.sges }
}

/// Why a send failed.
struct Failure {
    status: WcStatus,
    /// The wire is at fault: the queue pair itself is well.
    of_wire: bool,
}

impl From<WcStatus> for Failure {
    fn from(status: WcStatus) -> Self {
        Self { status, of_wire: false }
    }
}
