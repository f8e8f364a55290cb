//! The state and the send path of raw-packet queue pairs that copy frames. The device processes a send during the post,
//! except in state SQD.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::completion::RawCqe;
use crate::counters::Counting;
use crate::cq_core::CqCore;
use crate::fault::{Faults, PostFaults};
use crate::handle::SoftAh;
use crate::link::{AnyWire, BURST, Sent, Wire};
use crate::memory::{KeyCache, Slots, SoftMr, copy_inline};
use crate::nic::{MAX_TSO, Pacer, RawSettings, Receiving, Sending, write_checksums, write_segment};
use crate::numbers::Identity;
use crate::qp_shared::QpShared;
use crate::quirk::SoftQuirk;
use crate::recv::RecvQueue;
use crate::shared::Shared;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Desc, Run, SlotLayout};
use dataplane_core::units::Ticks;
use dataplane_core::verbs::{
    Capability, PollFields, PostError, QpSpec, QpState, RecvRequest, SendApi, SendFlags, SendOp, SendRequest, Sge,
    WcStatus, WrOpcode, checksum_covers_payload,
};

/// The length of the shortest frame: an Ethernet header.
const LEAST_FRAME: usize = 14;

/// The error of a post: the number of requests that were accepted before the first refused request, and the `errno` of
/// the refusal. The type is small enough to be returned in registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialPost {
    pub(super) accepted: u32,
    pub(super) errno: i32,
}

impl PartialPost {
    /// Returns the error of a post in which no request was accepted.
    pub(super) fn none_accepted(errno: i32) -> Self {
        Self { accepted: 0, errno }
    }

    /// Converts to the error of `verb`.
    #[cold]
    pub(super) fn into_error(self, verb: &'static str) -> PostError {
        PostError { accepted: self.accepted as usize, error: VerbError::new(verb, self.errno) }
    }
}

/// The part of a queue pair's state that only its worker accesses.
#[derive(Debug)]
pub(super) struct CopyingQp {
    pub(super) recv: RecvQueue,
    /// The bound packet buffers (slots) of the pool.
    pub(super) slots: Option<Slots>,
    /// Whether receives into slots can be processed in runs (many slots in one call).
    pub(super) runs: bool,
    /// Slots whose index is below this value can be posted without further checks.
    unchecked_below: u32,
    /// Whether the wire discards sent frames. The device then only counts the frames, a whole run at a time.
    discards: bool,
    /// Whether sent frames are also copied to the wire's buffer.
    copies_out: bool,
    pub(super) keys: KeyCache,
    pub(super) wire: AnyWire,
    pub(super) faults: Option<Faults<Vec<u8>>>,
    /// The flow rules, the receive offloads and the receive information, if there are any.
    pub(super) receiving: Option<Box<Receiving>>,
    /// The send offloads, if there are any.
    sending: Option<Box<Sending>>,
    /// Whether sends may request checksums.
    has_checksums: bool,
    /// The buffer for the gathered bytes of a request.
    scratch: Vec<u8>,
    /// The buffer for a segment of a segmented send.
    segment: Vec<u8>,
    /// The injected faults that refuse posts: index 0 for receives, index 1 for sends.
    refused: [Option<PostFaults>; 2],
    /// Whether the requests of a queue pair in ERR are never flushed (an injected fault).
    pub(super) mute: bool,
    /// Whether a post of several sends is accepted or refused as a whole.
    all_or_nothing: bool,
    pd: Identity,
    depth: u64,
    /// The number of sends posted since RESET.
    posted: u64,
    /// Sends that were posted in state SQD (send queue drained), and sends that wait for the rate limit. The device
    /// processes these sends in RTS, when the rate limit admits them.
    deferred: VecDeque<DeferredSend>,
    /// Sends whose frames are queued at the wire for a batched system call. Every post transmits these frames before
    /// the post returns.
    batched: Vec<BatchedSend>,
    signal_all: bool,
    send_sges: usize,
    recv_sges: usize,
    inline: u64,
    /// The maximum length of a sent frame.
    max_frame: usize,
}

/// A send that is deferred until the queue pair is in RTS again, or until the rate limit admits it.
#[derive(Debug)]
struct DeferredSend {
    wr_id: u64,
    opcode: WrOpcode,
    flags: SendFlags,
    sges: DeferredSges,
    /// The inline bytes, which were copied when the send was posted.
    bytes: Vec<u8>,
    /// For a segmented send (TSO): the headers, and the maximum payload of each segment.
    tso: Option<(Vec<u8>, u16)>,
    /// The position of this send among all sends since RESET, from 1.
    count: u64,
}

/// The elements of a deferred send. A send with one element, such as a send of a slot, needs no allocation.
#[derive(Debug)]
enum DeferredSges {
    One(Sge),
    Any(Vec<Sge>),
}

impl DeferredSges {
    fn new(sges: &[Sge]) -> Self {
        match sges {
            [one] => Self::One(*one),
            any => Self::Any(any.to_vec()),
        }
    }

    fn as_slice(&self) -> &[Sge] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Any(any) => any,
        }
    }
}

/// A send whose frame is part of a batch.
#[derive(Clone, Copy, Debug)]
struct BatchedSend {
    wr_id: u64,
    is_signaled: bool,
    /// The position of this send among all sends since RESET, from 1. 0 for a segment of a send, except for the last
    /// segment.
    count: u64,
}

/// The fields of a send request that this device uses.
#[derive(Clone, Copy)]
struct Outgoing<'a> {
    wr_id: u64,
    opcode: WrOpcode,
    flags: SendFlags,
    sges: &'a [Sge],
    /// For a segmented send (TSO): the headers, and the maximum payload of each segment.
    tso: Option<(&'a [u8], u16)>,
}

impl Outgoing<'_> {
    /// Returns the number of bytes on the wire. Each segment of a segmented send has its own headers.
    fn bytes(&self) -> u64 {
        let payload = bytes_of(self.sges);
        payload + self.tso.map_or(0, |(header, mss)| header.len() as u64 * payload.div_ceil(mss.into()))
    }
}

/// Returns the headers and the maximum payload of each segment, if the send is a segmented send (TSO).
fn tso<'a>(op: &SendOp<'a>) -> Option<(&'a [u8], u16)> {
    match *op {
        SendOp::Tso { header, mss } => Some((header, mss)),
        _ => None,
    }
}

fn bytes_of(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

impl CopyingQp {
    /// Creates the state of a queue pair. `fields` are the completion fields that were granted to the receive
    /// completion queue.
    pub(super) fn new(
        device: &Shared,
        wire: AnyWire,
        pd: Identity,
        spec: &QpSpec,
        raw: &RawSettings,
        fields: PollFields,
    ) -> Self {
        let faults = device.faults;
        let sending = Sending::new(&raw.spec, &device.clock);
        let paced = sending.as_ref().is_some_and(|sending| sending.pacer.is_some());
        let (caps, clock) = (spec.caps, &device.clock);
        let inline = if device.has(Capability::Inline) { u64::from(caps.inline) } else { 0 };
        let max_frame = device.max_frame as usize;
        Self {
            recv: RecvQueue::new(caps.recv_depth, caps.recv_sges),
            slots: None,
            runs: false,
            unchecked_below: 0,
            discards: wire.discards() && faults.no_queue_faults() && sending.is_none(),
            copies_out: wire.copies_out(),
            keys: KeyCache::new(device.keys.clone(), pd),
            wire,
            faults: (!faults.no_queue_faults() || device.has_quirk(SoftQuirk::BehindSwitch))
                .then(|| Faults::new(faults, spec.queue.0, clock.clone())),
            receiving: Receiving::new(raw, fields, max_frame),
            sending,
            has_checksums: device.has(Capability::TxChecksum),
            scratch: Vec::with_capacity(max_frame + 64),
            segment: Vec::new(),
            refused: [1, 2].map(|salt| PostFaults::new(&faults, u64::from(spec.queue.0) << 32 | salt)),
            mute: faults.no_flush,
            all_or_nothing: spec.send_api == SendApi::Extended,
            pd,
            depth: u64::from(caps.send_depth),
            posted: 0,
            deferred: VecDeque::with_capacity(if paced { caps.send_depth as usize } else { 0 }),
            batched: Vec::with_capacity(BURST),
            signal_all: spec.signal_all,
            send_sges: caps.send_sges as usize,
            recv_sges: caps.recv_sges as usize,
            inline,
            max_frame,
        }
    }

    /// Drops all requests and all pending frames. The pending frames count as missed. Always succeeds.
    pub(super) fn reset(&mut self, counts: &Counting) -> Result<(), i32> {
        let mut lost = self.wire.close();
        self.recv.clear();
        self.deferred.clear();
        self.posted = 0;
        if let Some(faults) = &mut self.faults {
            lost += faults.clear();
        }
        counts.rx_missed.add(lost);
        Ok(())
    }

    /// Starts receiving.
    ///
    /// # Errors
    /// See [`Wire::open`].
    pub(super) fn open(&mut self) -> Result<(), i32> {
        self.wire.open()
    }

    /// Returns whether the rate of sends is limited.
    pub(super) fn is_paced(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| sending.pacer.is_some())
    }

    fn pacer(&mut self) -> Option<&mut Pacer> {
        self.sending.as_mut()?.pacer.as_mut()
    }

    /// Removes and returns the oldest deferred send, if the rate limit admits this send now.
    fn pop_admitted(&mut self) -> Option<DeferredSend> {
        let bytes = request(self.deferred.front()?).bytes();
        let admitted = self.pacer().is_none_or(|pacer| pacer.admits(bytes as usize));
        if admitted { self.deferred.pop_front() } else { None }
    }

    /// Processes the deferred sends that the rate limit admits now.
    pub(super) fn resume(&mut self, shared: &QpShared, cq: &mut CqCore) {
        while shared.state() == QpState::Rts
            && let Some(it) = self.pop_admitted()
        {
            let inline = it.flags.contains(SendFlags::INLINE).then_some(&*it.bytes);
            let wr = request(&it);
            self.carry_out(shared, cq, &wr, inline, it.count);
        }
        self.flush(shared, cq);
    }

    /// Flushes the deferred sends. Receives are flushed when their completions are polled.
    pub(super) fn fail(&mut self, shared: &QpShared, cq: &mut CqCore) {
        self.wire.close();
        while let Some(cqe) = self.flush_one(shared) {
            cq.push(cqe);
        }
    }

    /// Flushes the oldest deferred send.
    pub(super) fn flush_one(&mut self, shared: &QpShared) -> Option<RawCqe> {
        let it = self.deferred.pop_front_if(|_| !self.mute)?;
        Some(RawCqe::of_send(shared.number, it.wr_id, WcStatus::WrFlushErr, it.count, Ticks(0)))
    }

    pub(super) fn bind(&mut self, mr: &SoftMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), i32> {
        if self.recv.len() > 0 {
            return Err(libc::EBUSY);
        }
        let slots = Slots::new(mr.clone(), layout, recv_wr_id, self.pd).ok_or(libc::EINVAL)?;
        self.runs = self.wire.bind(layout) && slots.writable && self.faults.is_none() && self.receiving.is_none();
        self.slots = Some(slots);
        self.update_unchecked();
        Ok(())
    }

    /// Returns the file descriptor that is readable when a frame has arrived, or `None` if only polling finds new
    /// frames.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // Injected faults may delay frames. The descriptor does not signal the end of such a delay.
        self.wire.descriptor().filter(|_| self.faults.is_none())
    }

    pub(super) fn ended(&self) -> bool {
        self.wire.ended() && !self.faults.as_ref().is_some_and(|faults| faults.holds_any())
    }

    pub(super) fn post_recv(&mut self, shared: &QpShared, requests: &[RecvRequest<'_>]) -> Result<(), PartialPost> {
        for (accepted, request) in (0..).zip(requests) {
            let errno = if shared.state() == QpState::Reset || request.sges.len() > self.recv_sges {
                libc::EINVAL
            } else if self.recv.space() == 0 {
                libc::ENOMEM
            } else if let Some(errno) = self.refused[0].as_mut().and_then(PostFaults::refuses) {
                errno
            } else {
                self.recv.push(request);
                continue;
            };
            return Err(PartialPost { accepted, errno });
        }
        Ok(())
    }

    #[inline]
    pub(super) fn post_recv_run(&mut self, shared: &QpShared, slots: &[u32]) -> Result<(), PartialPost> {
        // Slots below this index are valid in the layout and need no preparation by the wire.
        let below = if shared.state() == QpState::Reset { 0 } else { self.unchecked_below };
        match self.recv.push_slots(slots, below) {
            true => Ok(()),
            false => self.post_recv_checked(shared, slots),
        }
    }

    /// Posts a run of slots with all checks. If only the first slots are accepted, the error contains their number.
    #[inline(never)]
    fn post_recv_checked(&mut self, shared: &QpShared, slots: &[u32]) -> Result<(), PartialPost> {
        let bound = self.slots.as_ref().filter(|_| shared.state() != QpState::Reset);
        let count = bound.map_or(0, |bound| bound.layout.count());
        let space = self.recv.space();
        let valid = slots.iter().take_while(|&&slot| slot < count).count();
        let (mut accepted, mut errno) = (valid.min(space), if valid <= space { libc::EINVAL } else { libc::ENOMEM });
        if let Some(faults) = &mut self.refused[0] {
            let refused = (0..accepted).find_map(|at| faults.refuses().map(|errno| (at, errno)));
            (accepted, errno) = refused.unwrap_or((accepted, errno));
        }
        let taken = &slots[..accepted];
        if let Some(bound) = &self.slots {
            if self.runs {
                self.wire.prepare(bound, taken);
            }
            self.recv.push_slots(taken, count);
            self.update_unchecked();
        }
        match accepted == slots.len() {
            true => Ok(()),
            false => Err(PartialPost { accepted: accepted as u32, errno }),
        }
    }

    /// Recomputes `unchecked_below`.
    fn update_unchecked(&mut self) {
        self.unchecked_below = match &self.slots {
            None => 0,
            _ if self.refused[0].is_some() => 0,
            Some(bound) if self.runs => self.wire.prepared().unwrap_or(bound.layout.count()),
            Some(bound) => bound.layout.count(),
        };
    }

    pub(super) fn post_send(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        requests: &[SendRequest<'_, SoftAh>],
    ) -> Result<(), PostError> {
        if self.all_or_nothing {
            self.check_all(shared, requests)
                .map_err(|errno| PostError { accepted: 0, error: VerbError::new("ibv_wr_complete", errno) })?;
        }
        let posted = requests.iter().enumerate().try_for_each(|(accepted, wr)| {
            let tso = tso(&wr.op);
            let wr = Outgoing { wr_id: wr.wr_id, opcode: wr.op.opcode(), flags: wr.flags, sges: wr.sges, tso };
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
    ) -> Result<(), PartialPost> {
        let Some(slots) = &self.slots else { return Err(PartialPost::none_accepted(libc::EINVAL)) };
        let (n, bounds, layout) = (run.len() as u64, run.bounds(), slots.layout);
        let counted = self.discards
            && (1..=self.space(shared)).contains(&n)
            && bounds.last < layout.count()
            && bounds.end <= layout.limit()
            && bounds.shortest >= LEAST_FRAME as u32
            && bounds.longest <= self.max_frame as u32
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
            shared.counts.tx_bytes.add(u64::from(bounds.bytes));
        }
        for before in (1..n).rev().filter(|_| self.signal_all) {
            let id = first_wr_id.wrapping_add(n - 1 - before);
            cq.push(RawCqe::of_send(shared.number, id, WcStatus::Success, self.posted - before, cq.stamps.now()));
        }
        let id = first_wr_id.wrapping_add(n - 1);
        cq.push(RawCqe::of_send(shared.number, id, WcStatus::Success, self.posted, cq.stamps.now()));
        Ok(())
    }

    /// Posts a run of sends with a check for each send.
    #[inline(never)]
    fn post_each(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        run: &[Desc],
        first_wr_id: u64,
    ) -> Result<(), PartialPost> {
        let Some(slots) = &self.slots else { return Ok(()) };
        let layout = slots.layout;
        let valid = run.iter().take_while(|&&desc| layout.admits(desc)).count();
        let n = (self.space(shared) as usize).min(valid);
        let mut errno = if n < run.len() { Some(if n == valid { libc::EINVAL } else { libc::ENOMEM }) } else { None };
        let mut accepted = 0;
        let no_faults = self.faults.is_none() && self.refused[1].is_none() && self.sending.is_none();
        let checksums = self.sending.as_ref().is_some_and(|sending| sending.checksums_of_runs);
        for (i, &desc) in run[..n].iter().enumerate() {
            let Some(slots) = &self.slots else { break };
            let wr_id = first_wr_id.wrapping_add(i as u64);
            let can_send = no_faults && shared.state() == QpState::Rts && shared.device.is_up();
            if can_send && (LEAST_FRAME..=self.max_frame).contains(&usize::from(desc.len)) {
                self.send_slot(shared, cq, desc, wr_id, i + 1 == n || self.signal_all);
                accepted += 1;
                continue;
            }
            let sges = [slots.sge(desc)];
            let mut flags = if i + 1 == n { SendFlags::SIGNALED } else { SendFlags::empty() };
            flags.set(SendFlags::IP_CSUM, checksums && slots.bytes(desc).is_some_and(checksum_covers_payload));
            let wr = Outgoing { wr_id, opcode: WrOpcode::Send, flags, sges: &sges, tso: None };
            if let Err(refused) = self.post_one(shared, cq, &wr) {
                errno = Some(refused);
                break;
            }
            accepted += 1;
        }
        self.flush(shared, cq);
        match errno {
            None => Ok(()),
            Some(errno) => Err(PartialPost { accepted, errno }),
        }
    }

    /// Sends a packet from its slot. The queue pair must be in RTS, the length must be valid, and the link must be up.
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
            Ok(Sent::Waits) => self.batched.push(BatchedSend { wr_id, is_signaled, count }),
            Err(status) => {
                // Completions must keep the order of the sends.
                self.flush(shared, cq);
                self.complete(shared, cq, wr_id, status, count);
            }
        }
    }

    /// Returns whether a request may be posted now.
    fn admits(&self, shared: &QpShared, sges: &[Sge], flags: SendFlags, tso: Option<(&[u8], u16)>) -> bool {
        let bytes = bytes_of(sges);
        let most_headers = self.sending.as_ref().map_or(0, |sending| sending.tso_header);
        let segments = tso.is_none_or(|(header, mss)| {
            (1..=most_headers).contains(&header.len()) && mss > 0 && (1..=u64::from(MAX_TSO)).contains(&bytes)
        });
        segments
            && matches!(shared.state(), QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
            && sges.len() <= self.send_sges
            && (!flags.contains(SendFlags::IP_CSUM) || self.has_checksums)
            && (!flags.contains(SendFlags::INLINE) || bytes <= self.inline)
    }

    /// Checks whether all requests may be posted now. `ibv_wr_complete(3)` accepts either all requests or none.
    fn check_all(&mut self, shared: &QpShared, requests: &[SendRequest<'_, SoftAh>]) -> Result<(), i32> {
        let admits = |wr: &SendRequest<'_, SoftAh>| self.admits(shared, wr.sges, wr.flags, tso(&wr.op));
        if !requests.iter().all(admits) {
            return Err(libc::EINVAL);
        }
        if self.space(shared) < requests.len() as u64 {
            return Err(libc::ENOMEM);
        }
        requests.iter().try_for_each(|_| self.refusal())
    }

    /// Returns an error if an injected fault refuses the next send.
    fn refusal(&mut self) -> Result<(), i32> {
        self.refused[1].as_mut().and_then(PostFaults::refuses).map_or(Ok(()), Err)
    }

    fn post_one(&mut self, shared: &QpShared, cq: &mut CqCore, wr: &Outgoing<'_>) -> Result<(), i32> {
        let state = shared.state();
        if !self.admits(shared, wr.sges, wr.flags, wr.tso) {
            return Err(libc::EINVAL);
        }
        if self.space(shared) == 0 {
            return Err(libc::ENOMEM);
        }
        if !self.all_or_nothing {
            self.refusal()?;
        }
        let inline = wr.flags.contains(SendFlags::INLINE);
        if state == QpState::Err {
            // An error in the receive path may have moved the queue pair to ERR. Flush its earlier sends first.
            self.fail(shared, cq);
        }
        self.posted += 1;
        let count = self.posted;
        let mut copied = Vec::new();
        let waits = state == QpState::Rts && self.is_paced() && {
            let bytes = wr.bytes() as usize;
            !self.deferred.is_empty() || self.pacer().is_some_and(|pacer| !pacer.admits(bytes))
        };
        if state != QpState::Sqd && !waits {
            self.carry_out(shared, cq, wr, None, count);
            return Ok(());
        }
        if inline {
            copy_inline(wr.sges, &mut copied);
        }
        self.deferred.push_back(DeferredSend {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.flags,
            sges: DeferredSges::new(wr.sges),
            bytes: copied,
            tso: wr.tso.map(|(header, mss)| (header.to_vec(), mss)),
            count,
        });
        Ok(())
    }

    /// Processes and completes a send, or flushes the send if the queue pair is in ERR. `inline` holds the inline bytes
    /// if they were copied earlier.
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
        match self.send(shared, cq, wr, inline) {
            Ok(Sent::Gone) if is_signaled => self.complete(shared, cq, wr.wr_id, WcStatus::Success, count),
            Ok(Sent::Gone) => {}
            Ok(Sent::Waits) => self.batched.push(BatchedSend { wr_id: wr.wr_id, is_signaled, count }),
            Err(Failure { status, of_wire }) => {
                // Completions must keep the order of the sends.
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

    /// Sends the frames that are queued at the wire, and completes their sends.
    #[inline]
    fn flush(&mut self, shared: &QpShared, cq: &mut CqCore) {
        if self.batched.is_empty() {
            return;
        }
        let mut batched = self.batched.drain(..);
        let mut stamp = None;
        self.wire.flush(&shared.counts, |sent| {
            let Some(BatchedSend { wr_id, is_signaled, count }) = batched.next() else { return };
            match sent {
                Ok(length) => {
                    shared.counts.tx_packets.add(1);
                    shared.counts.tx_bytes.add(length as u64);
                    if is_signaled {
                        let ticks = *stamp.get_or_insert_with(|| cq.stamps.now());
                        cq.push(RawCqe::of_send(shared.number, wr_id, WcStatus::Success, count, ticks));
                    }
                }
                // A segment before the last segment of a send has no completion.
                Err(_) if count == 0 => {}
                Err(status) => cq.push(RawCqe::of_send(shared.number, wr_id, status, count, Ticks(0))),
            }
        });
    }

    fn send(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        wr: &Outgoing<'_>,
        inline: Option<&[u8]>,
    ) -> Result<Sent, Failure> {
        if let Some(faults) = &mut self.faults {
            let failed = faults.send_fails();
            shared.counts.faults.set(faults.injected);
            failed.map_or(Ok(()), |status| Err(Failure::from(status)))?;
            if shared.device.has_quirk(SoftQuirk::BehindSwitch) && self.gather(wr, inline).is_ok() {
                shared.device.switch.learn_sent(wr.tso.map_or(&self.scratch, |(header, _)| header));
            }
        }
        if wr.opcode != WrOpcode::Send && wr.tso.is_none() {
            return Err(WcStatus::LocQpOpErr.into());
        }
        if wr.tso.is_none() && bytes_of(wr.sges) > self.max_frame as u64 {
            return Err(WcStatus::LocLenErr.into());
        }
        self.gather(wr, inline)?;
        if wr.tso.is_none() && self.scratch.len() < LEAST_FRAME {
            return Err(WcStatus::LocLenErr.into());
        }
        let failed = |status| Failure { status, of_wire: true };
        if !shared.device.is_up() {
            shared.counts.tx_link_down.add(1);
            return if self.wire.is_interface() { Err(failed(WcStatus::GeneralErr)) } else { Ok(Sent::Gone) };
        }
        if let Some(tso) = wr.tso {
            return self.send_segments(shared, cq, tso);
        }
        if wr.flags.contains(SendFlags::IP_CSUM) {
            write_checksums(&mut self.scratch);
        }
        let sent = self.wire.send(&self.scratch, &shared.counts).map_err(failed)?;
        if sent == Sent::Gone {
            shared.counts.tx_packets.add(1);
            shared.counts.tx_bytes.add(self.scratch.len() as u64);
        }
        Ok(sent)
    }

    /// Replaces the gathered bytes with the bytes of a request.
    #[inline]
    fn gather(&mut self, wr: &Outgoing<'_>, inline: Option<&[u8]>) -> Result<(), WcStatus> {
        self.scratch.clear();
        match inline {
            Some(bytes) => self.scratch.extend_from_slice(bytes),
            None if wr.flags.contains(SendFlags::INLINE) => copy_inline(wr.sges, &mut self.scratch),
            None => self.keys.gather(wr.sges, &mut self.scratch)?,
        }
        Ok(())
    }

    /// Sends the gathered bytes as the segments of a TCP stream. Returns whether the wire has sent or queued the last
    /// segment.
    fn send_segments(&mut self, shared: &QpShared, cq: &mut CqCore, tso: (&[u8], u16)) -> Result<Sent, Failure> {
        let (header, mss) = tso;
        let segments = self.scratch.len().div_ceil(usize::from(mss));
        let mut last = Sent::Gone;
        for nth in 0..segments {
            let from = nth * usize::from(mss);
            if !write_segment(&mut self.segment, header, &self.scratch, from, mss) {
                return Err(WcStatus::LocQpOpErr.into());
            }
            if self.segment.len() > self.max_frame {
                return Err(WcStatus::LocLenErr.into());
            }
            if self.wire.is_full() {
                self.flush(shared, cq);
            }
            let sent = self.wire.send(&self.segment, &shared.counts);
            last = sent.map_err(|status| Failure { status, of_wire: true })?;
            match last {
                Sent::Gone => {
                    shared.counts.tx_packets.add(1);
                    shared.counts.tx_bytes.add(self.segment.len() as u64);
                }
                // The last segment completes the send, so the caller adds the entry of this segment to `batched`.
                Sent::Waits if nth + 1 < segments => {
                    self.batched.push(BatchedSend { wr_id: 0, is_signaled: false, count: 0 });
                }
                Sent::Waits => {}
            }
        }
        Ok(last)
    }

    /// Adds the completion of a send.
    #[inline]
    fn complete(&mut self, shared: &QpShared, cq: &mut CqCore, wr_id: u64, status: WcStatus, release: u64) {
        let ticks = if status == WcStatus::Success { cq.stamps.now() } else { Ticks(0) };
        cq.push(RawCqe::of_send(shared.number, wr_id, status, release, ticks));
    }
}

fn request(it: &DeferredSend) -> Outgoing<'_> {
    let tso = it.tso.as_ref().map(|(header, mss)| (&**header, *mss));
    Outgoing { wr_id: it.wr_id, opcode: it.opcode, flags: it.flags, sges: it.sges.as_slice(), tso }
}

/// The reason why a send failed.
struct Failure {
    status: WcStatus,
    /// Whether the wire caused the failure. If `true`, the queue pair keeps its state.
    of_wire: bool,
}

impl From<WcStatus> for Failure {
    fn from(status: WcStatus) -> Self {
        Self { status, of_wire: false }
    }
}
