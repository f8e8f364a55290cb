//! The lane on the queues of one provider.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::in_flight::InFlight;
use super::posted::Posted;
use super::wiring::{QpOf, Wiring};
use super::{ACCESS, Alarms, Lane, LaneCounters, LaneSpec, LatencySink, NoSink, Stamping};
use crate::clock::{Clocks, Stamp, Stamper};
use crate::error::{Result, VerbError};
use crate::mem::{Batch, Desc, Loose, Pool, SlotState, Stamps, vector};
use crate::provider::{
    Capability, CompletionChannel, CompletionQueue, Completions, CqFlags, CqGranted, CqSpec, Device, EventKind,
    PollFields, ProtectionDomain, QpAttributes, QpCaps, QpSpec, QpState, QueuePair, RUN, WcStatus, WrId, WrKind,
    register_error,
};

type MrOf<D> = <<D as Device>::Pd as ProtectionDomain>::Mr;

/// While packets come, the sends that are over are taken back, and receives are posted, so many at a time.
const MANY: usize = 256;

/// How long a queue pair in state ERR has to give back what was posted.
const FLUSH_DEADLINE: Duration = Duration::from_millis(500);

/// Where a lane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// In INIT: receives are posted, and the peer is waited for.
    Waiting,
    /// In RTS.
    Live,
    /// In ERR since then: what is outstanding comes back flushed.
    Failed(Instant),
}

/// A lane on the queue pair and completion queues of one device.
pub(crate) struct VerbsLane<D: Device> {
    // The queues go before the memory that they were given.
    queues: Queues<D>,
    mr: MrOf<D>,
    pd: D::Pd,
    device: D,
    spec: LaneSpec,
    wiring: Box<dyn Wiring<D>>,
    phase: Phase,
    generation: u16,
    posted: Posted,
    in_flight: InFlight,
    prefix: u16,
    longest: u16,
    run: Box<Completions>,
    stopping: bool,
    /// A queue pair could not be ended: the device has what was posted to it for ever.
    lost: bool,
    /// Since when the newest sends will never report, for none of them is signalled.
    silent: Option<Instant>,
    alarms: Arc<Alarms>,
    /// The alarms that were looked at.
    heard: u32,
    counters: LaneCounters,
    recv_stamper: Stamper,
    send_stamper: Stamper,
    /// The stamps of `run`.
    stamps: Box<[Stamp; RUN]>,
    /// Since the queue pair stopped its time is over, and nothing has come back in the last of it.
    overdue: bool,
    /// Slots from both ends of a ring.
    joined: Box<[u32; RUN]>,
    /// As long as packets come, sends are taken back when there are so many.
    reap_at: usize,
    /// The next send, when sends were last to be taken back.
    reaped: u64,
    /// As long as packets come, receives are posted when so many are missing.
    refill_at: usize,
    /// What was received, when receives were last to be posted.
    refilled: u64,
    granted: CqGranted,
}

/// What is made anew when a completion queue is lost.
struct Queues<D: Device> {
    // The queue pair goes before the queues that it reports to.
    qp: QpOf<D>,
    send_cq: D::Cq,
    recv_cq: D::Cq,
    /// Where the worker sleeps.
    channel: Option<D::Channel>,
}

/// The stamp of all of a run; `None`: they may differ, and are in `stamps`.
#[inline(always)]
fn stamp(stamper: &mut Stamper, run: &Completions, stamps: &mut [Stamp]) -> Option<Stamp> {
    if run.failed {
        stamp_good(stamper, run, stamps);
        return None;
    }
    if run.in_order || stamps.len() == 1 {
        return Some(stamper.stamp_all(run.ticks[0], stamps.len()));
    }
    stamper.stamp(&run.ticks[..stamps.len()], stamps);
    None
}

/// After an error a completion has no ticks.
#[cold]
fn stamp_good(stamper: &mut Stamper, run: &Completions, stamps: &mut [Stamp]) {
    stamps.fill(Stamp::NONE);
    for at in (0..stamps.len()).filter(|at| run.status[*at] == WcStatus::Success) {
        stamper.stamp(&run.ticks[at..=at], &mut stamps[at..=at]);
    }
}

impl<D: Device> Queues<D> {
    fn make(device: &D, pd: &D::Pd, spec: &LaneSpec) -> Result<(Self, CqGranted), VerbError> {
        let fields = PollFields::BYTE_LEN | spec.stamps.fields();
        // A channel whose descriptor cannot be waited for with those of other lanes is of no use to a worker.
        let channel = match spec.sleeps && device.capabilities().has.contains(&Capability::Events) {
            true => Some(device.create_channel()?).filter(|channel| channel.descriptor().is_some()),
            false => None,
        };
        let cq = |depth, channel| {
            let spec = CqSpec { depth, fields, flags: CqFlags::SINGLE_THREADED, ..CqSpec::default() };
            device.create_cq(&spec, channel)
        };
        let (send_cq, _) = cq(spec.send_depth, None)?;
        // A lane that only sends has receive queues too: of the least size, and nothing is posted to them.
        let (recv_cq, granted) = cq(spec.recv_depth.max(1), channel.as_ref())?;
        let caps = QpCaps {
            send_depth: spec.send_depth,
            recv_depth: spec.recv_depth.max(1),
            send_sges: 1,
            recv_sges: 1,
            inline: 0,
        };
        let spec = QpSpec { queue: spec.queue, ..QpSpec::new(spec.kind, caps) };
        let qp = pd.create_qp(&spec, &send_cq, &recv_cq, None)?;
        Ok((Self { qp, send_cq, recv_cq, channel }, granted))
    }
}

impl<D: Device> VerbsLane<D> {
    /// Makes the queues on a device, posts receives and brings them to RTS, as far as the peer lets it. The pool's memory
    /// is registered for it.
    ///
    /// # Errors
    /// A verb failed; the error names it and the device.
    pub(crate) fn open(
        device: &D,
        pd: &D::Pd,
        pool: &mut Pool,
        spec: LaneSpec,
        wiring: Box<dyn Wiring<D>>,
        alarms: Arc<Alarms>,
        clocks: &Clocks,
    ) -> Result<Self> {
        let named = |error: VerbError| error.on(device.name());
        let refused = |error| register_error(error, device.name(), pool.region().len());
        let mr = pd.register(pool.region().clone(), ACCESS).map_err(refused)?;
        let (queues, granted) = Queues::make(device, pd, &spec).map_err(named)?;
        let stamper = match spec.stamps {
            Stamping::None => Stamper::none(),
            _ => clocks.stamper(granted.stamps),
        };
        let caps = queues.qp.caps();
        let recv_depth = spec.recv_depth.min(caps.recv_depth).min(queues.recv_cq.depth());
        let mut lane = Self {
            // Own accounting bounds what is outstanding, so the completion queues cannot overrun.
            in_flight: InFlight::new(spec.send_depth.min(caps.send_depth).min(queues.send_cq.depth())),
            posted: Posted::new(recv_depth as usize),
            queues,
            mr,
            pd: pd.clone(),
            device: device.clone(),
            spec,
            prefix: wiring.prefix(),
            longest: wiring.longest(),
            wiring,
            phase: Phase::Waiting,
            generation: 0,
            run: Completions::new(),
            stopping: false,
            lost: false,
            silent: None,
            alarms,
            heard: 0,
            counters: LaneCounters::default(),
            recv_stamper: stamper.clone(),
            send_stamper: stamper,
            stamps: Box::new([Stamp::NONE; RUN]),
            overdue: false,
            joined: Box::new([0; RUN]),
            reap_at: 0,
            reaped: 0,
            refill_at: (recv_depth as usize / 4).min(MANY),
            refilled: 0,
            granted,
        };
        lane.begin(pool).map_err(named)?;
        Ok(lane)
    }

    /// From RESET to INIT, and on to RTS if the peer is there already. Receives are posted before the peer hears of it.
    fn begin(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        self.phase = Phase::Waiting;
        self.queues.qp.bind_slots(&self.mr, pool.layout(), self.tag(WrKind::Receive))?;
        let some = (self.in_flight.space() / 4).min(MANY);
        self.reap_at = if self.queues.qp.sends_at_once() { some } else { 0 };
        self.wiring.initialise(&mut self.queues.qp)?;
        self.post_receives(pool)?;
        self.proceed()
    }

    fn proceed(&mut self) -> Result<(), VerbError> {
        if self.wiring.connect(&mut self.queues.qp)? {
            self.longest = self.wiring.longest();
            self.phase = Phase::Live;
        }
        Ok(())
    }

    fn tag(&self, kind: WrKind) -> u64 {
        WrId::new(kind, self.generation, 0).0
    }

    /// Polls the receive queue and sorts what came: good packets into the batch.
    #[inline]
    fn poll_receives(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError> {
        let polled = self.queues.recv_cq.poll_run(&mut self.run, limit.min(batch.space()).min(RUN));
        let n = match polled {
            Ok(0) => return Ok(0),
            Ok(n) => n,
            Err(lost) => return self.rebuild(pool, lost).map(|()| 0),
        };
        if self.phase != Phase::Live {
            self.more_comes_back();
        }
        let run = &*self.run;
        let alike = stamp(&mut self.recv_stamper, run, &mut self.stamps[..n]);
        if run.failed || n > self.posted.len() {
            return Ok(self.sort_receives(pool, batch, n, alike));
        }
        let tag = self.tag(WrKind::Receive);
        let offset = pool.layout().headroom + self.prefix;
        let stamps = alike.map_or(Stamps::Each(&self.stamps[..n]), Stamps::Alike);
        let before = batch.len();
        let slots = match self.posted.front(n) {
            [slots, []] => slots,
            [slots, rest] => {
                self.joined[..slots.len()].copy_from_slice(slots);
                self.joined[slots.len()..n].copy_from_slice(rest);
                &self.joined[..n]
            }
        };
        let are_those = run.in_order || vector::are_ids(&run.wr_id[..n], slots, tag);
        let received = are_those.then(|| batch.receive(slots, &run.byte_len[..n], self.prefix, offset, stamps));
        let Some(bytes) = received.flatten() else {
            return Ok(self.sort_receives(pool, batch, n, alike));
        };
        pool.moved_descs(&batch.descs()[before..], SlotState::Posted, SlotState::Batched);
        self.posted.advance(n);
        self.counters.rx += n as u64;
        self.counters.rx_bytes += bytes;
        Ok(n)
    }

    /// The same, one completion at a time: some of them are not as they should be.
    #[cold]
    fn sort_receives(&mut self, pool: &mut Pool, batch: &mut Batch, n: usize, alike: Option<Stamp>) -> usize {
        let layout = pool.layout();
        let tag = self.tag(WrKind::Receive);
        let room = layout.room() - u32::from(self.prefix);
        let in_order = self.run.in_order;
        let mut good = 0;
        for i in 0..n {
            let slot = match in_order {
                true => self.posted.pop(),
                false => self.posted.remove(WrId(self.run.wr_id[i]), tag),
            };
            let Some(slot) = slot else {
                self.counters.stale += 1;
                continue;
            };
            let status = if self.run.failed { self.run.status[i] } else { WcStatus::Success };
            let len = self.run.byte_len[i].checked_sub(u32::from(self.prefix)).filter(|len| *len <= room);
            match (status, len.and_then(|len| u16::try_from(len).ok())) {
                (WcStatus::Success, Some(len)) => {
                    pool.moved(&[slot], SlotState::Posted, SlotState::Batched);
                    let desc = Desc { slot, offset: layout.headroom + self.prefix, len };
                    batch.push(desc, alike.unwrap_or(self.stamps[i]));
                    self.counters.rx += 1;
                    self.counters.rx_bytes += u64::from(len);
                    good += 1;
                }
                (status, _) => {
                    pool.put_one(slot, SlotState::Posted);
                    self.note(status);
                    if status != WcStatus::WrFlushErr {
                        self.counters.rx_errors += 1;
                    }
                }
            }
        }
        good
    }

    /// Everything is over: what is still received is not, and its slots are free.
    fn discard_receives(&mut self, pool: &mut Pool, n: usize) {
        let tag = self.tag(WrKind::Receive);
        for i in 0..n {
            let slot = match self.run.in_order {
                true => self.posted.pop(),
                false => self.posted.remove(WrId(self.run.wr_id[i]), tag),
            };
            match slot {
                Some(slot) => pool.put_one(slot, SlotState::Posted),
                None => self.counters.stale += 1,
            }
        }
    }

    /// Takes note of how a request ended: after an error the queue pair is asked whether it goes on.
    #[cold]
    fn note(&mut self, status: WcStatus) {
        if status == WcStatus::Success || (self.stopping && status == WcStatus::WrFlushErr) {
            return;
        }
        self.counters.first_error.get_or_insert(status);
        if self.phase == Phase::Live {
            // A device that cannot be asked has lost the queue pair too.
            let state = self.queues.qp.query().map_or(QpState::Err, |attributes| attributes.state);
            if !matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
                self.fail();
            }
        }
    }

    /// To ERR, so that everything outstanding is flushed.
    #[cold]
    fn fail(&mut self) {
        if self.queues.qp.state() != QpState::Err {
            let (attributes, mask) = QpAttributes::to(QpState::Err);
            // Refused by a device that is gone: its requests are taken back at the deadline.
            let _ = self.queues.qp.modify(&attributes, mask);
        }
        self.phase = Phase::Failed(Instant::now());
        self.overdue = false;
        self.mark();
    }

    /// In state ERR, with sends outstanding of which no completion will tell: posts a marker behind them, whose flush
    /// tells that they are over. Where it is refused they come back at the deadline.
    #[cold]
    fn mark(&mut self) {
        let newest = self.in_flight.last().filter(|_| self.silent.is_some() && self.in_flight.space() > 0);
        let Some(newest) = newest.filter(|_| self.queues.qp.state() == QpState::Err) else { return };
        let id = WrId::new(WrKind::Marker, self.generation, self.in_flight.next());
        // SAFETY: the slot is the device's already, as that of the newest send, which comes back no earlier than this
        // request; and in state ERR nothing is read.
        let _ = unsafe { self.queues.qp.post_send_run(&Loose::new(&[newest]).run(), id.0) };
    }

    /// The flush of a marker: what is outstanding is over, and of that no send failed, or it would have told.
    #[cold]
    fn marked(&mut self, id: WrId, pool: &mut Pool) -> bool {
        let is_marker = id == WrId::new(WrKind::Marker, self.generation, self.in_flight.next());
        if is_marker {
            self.in_flight.reclaim(pool);
            let sent = self.in_flight.len();
            self.counters.tx += sent as u64;
            self.counters.tx_bytes += self.in_flight.complete(sent, Stamp::NONE, &mut NoSink);
            self.in_flight.reclaim(pool);
            self.silent = None;
        }
        is_marker
    }

    /// Takes back what has been sent, or makes the queues anew. Apart from [`Lane::reap`], which most often has nothing to do.
    #[inline(never)]
    fn reap_some(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError> {
        match self.poll_sends(pool, latency) {
            Ok(_) => Ok(()),
            Err(lost) => self.rebuild(pool, lost),
        }
    }

    /// Polls the send queue and takes back what has completed.
    #[inline]
    fn poll_sends(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<usize, VerbError> {
        let n = self.queues.send_cq.poll_run(&mut self.run, RUN)?;
        let tag = self.tag(WrKind::Send);
        if n == 0 {
            return Ok(0);
        }
        if self.phase != Phase::Live {
            self.more_comes_back();
        }
        let alike = stamp(&mut self.send_stamper, &self.run, &mut self.stamps[..n]);
        for i in 0..n {
            let id = WrId(self.run.wr_id[i]);
            let status = if self.run.failed { self.run.status[i] } else { WcStatus::Success };
            let Some(behind) = self.in_flight.position(id.number()).filter(|_| id.tag() == tag) else {
                self.counters.stale += u64::from(!self.marked(id, pool));
                continue;
            };
            // Completions come in order and errors always complete, so all before this one were sent.
            let sent = behind + usize::from(status == WcStatus::Success);
            self.counters.tx += sent as u64;
            self.counters.tx_bytes += self.in_flight.complete(sent, alike.unwrap_or(self.stamps[i]), latency);
            if status != WcStatus::Success {
                self.lose_send(pool, status);
            }
        }
        self.in_flight.reclaim(pool);
        Ok(n)
    }

    /// The oldest send ended with an error.
    #[cold]
    fn lose_send(&mut self, pool: &mut Pool, status: WcStatus) {
        self.in_flight.complete(1, Stamp::NONE, &mut NoSink);
        self.in_flight.reclaim(pool);
        match self.stopping && status == WcStatus::WrFlushErr {
            true => self.counters.stopped += 1,
            false => self.counters.tx_errors += 1,
        }
        self.note(status);
    }

    /// There are alarms: acts on those about this lane.
    #[cold]
    fn listen(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if self.alarms.is_gone() {
            return Err(VerbError::new("ibv_get_async_event", libc::EIO));
        }
        let Queues { qp, send_cq, recv_cq, .. } = &self.queues;
        let (queue_pair, queues) = (qp.number().0, [send_cq.number(), recv_cq.number()]);
        if self.alarms.hear(&[EventKind::CqErr], &queues) {
            return self.rebuild(pool, VerbError::new("IBV_EVENT_CQ_ERR", libc::EIO));
        }
        let failed = [EventKind::QpFatal, EventKind::QpReqErr, EventKind::QpAccessErr, EventKind::PathMigErr];
        if self.alarms.hear(&failed, &[queue_pair]) && self.phase == Phase::Live {
            self.fail();
        }
        Ok(())
    }

    /// A completion queue is lost: all queues are made anew. A device that is gone makes none, and that is the error; so is
    /// one that does not let go of the old ones.
    #[cold]
    fn rebuild(&mut self, pool: &mut Pool, lost: VerbError) -> Result<(), VerbError> {
        if self.stopping || self.lost {
            return Err(lost);
        }
        tracing::warn!("{}: {lost}: a completion queue is lost, its queues are made anew", self.device.name());
        let (queues, granted) = Queues::make(&self.device, &self.pd, &self.spec)?;
        let old = std::mem::replace(&mut self.queues, queues);
        self.granted = granted;
        let (queue_pair, queues) = (old.qp.number().0, [old.send_cq.number(), old.recv_cq.number()]);
        if let Err(error) = old.qp.destroy() {
            // The device may still write to their memory: nobody else gets it.
            self.lost = true;
            return Err(error);
        }
        self.alarms.forget(queue_pair, &queues);
        self.counters.abandoned += self.outstanding() as u64;
        self.take_back(pool);
        self.counters.rebuilds += 1;
        self.generation = self.generation.wrapping_add(1);
        self.begin(pool)
    }

    /// The requests that the device still has.
    fn outstanding(&self) -> usize {
        self.posted.len() + self.in_flight.len()
    }

    /// Frees all slots that are posted or being sent. The queue pair was reset or has ended: the device has let go.
    #[cold]
    fn take_back(&mut self, pool: &mut Pool) {
        let sending = self.in_flight.len();
        self.in_flight.complete(sending, Stamp::NONE, &mut NoSink);
        self.in_flight.reclaim(pool);
        self.silent = None;
        while let Some(slot) = self.posted.pop() {
            pool.put_one(slot, SlotState::Posted);
        }
        match self.stopping {
            true => self.counters.stopped += sending as u64,
            false => self.counters.tx_errors += sending as u64,
        }
    }

    /// Something has come back of a queue pair that has stopped: the rest gets as much time again.
    #[cold]
    fn more_comes_back(&mut self) {
        if let Phase::Failed(since) = &mut self.phase {
            *since = Instant::now();
            self.overdue = false;
        }
    }

    /// Of a queue pair that stopped then: whether its time is over. Both queues are looked at once more before that counts:
    /// this thread may have been kept from it till now.
    #[cold]
    fn look_at_deadline(&mut self, since: Instant) {
        self.overdue = since.elapsed() >= FLUSH_DEADLINE;
    }

    /// A queue pair that has stopped: once everything has come back, or its time is over, it is reset and begins anew.
    #[cold]
    fn recover(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if self.outstanding() > 0 && !self.overdue {
            return Ok(());
        }
        self.counters.abandoned += self.outstanding() as u64;
        self.begin_anew(pool)
    }

    /// From whatever state to RESET, with all that is posted, and on from there.
    #[cold]
    fn begin_anew(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        let (attributes, mask) = QpAttributes::to(QpState::Reset);
        self.queues.qp.modify(&attributes, mask)?;
        self.take_back(pool);
        self.generation = self.generation.wrapping_add(1);
        self.counters.recoveries += 1;
        self.begin(pool)
    }

    /// What is not as usual: a queue pair that has failed, or waits for its peer.
    #[cold]
    fn attend_to(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if !matches!(self.phase, Phase::Failed(_)) && self.queues.qp.state() == QpState::Err {
            self.fail();
        }
        match self.phase {
            Phase::Live => Ok(()),
            Phase::Waiting => self.proceed(),
            Phase::Failed(_) => self.recover(pool),
        }
    }

    /// Whether something is not as usual.
    #[inline]
    fn is_troubled(&self) -> bool {
        self.phase != Phase::Live || self.queues.qp.state() == QpState::Err
    }

    #[inline(never)]
    fn post_receives(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        loop {
            let slots = pool.take(self.posted.space().min(RUN), SlotState::Posted);
            if slots.is_empty() {
                return Ok(());
            }
            // SAFETY: the slots have just left the pool and come back only by their completions, or when the queue pair
            // was reset or has ended. The pool's region is kept by `mr`, which is dropped after the queue pair.
            if let Err(refused) = unsafe { self.queues.qp.post_recv_run(slots) } {
                let (accepted, rest) = slots.split_at(refused.accepted.min(slots.len()));
                self.posted.extend(accepted);
                let rest = rest.to_vec();
                pool.put(&rest, SlotState::Posted);
                return Err(refused.error);
            }
            self.posted.extend(slots);
            if slots.len() < RUN {
                return Ok(());
            }
        }
    }

    /// Drops what a message of the connection has no room for, and of the others what the send queue has none for.
    #[cold]
    fn refuse_some(&mut self, pool: &mut Pool, batch: &mut Batch) {
        let (longest, space) = (self.longest, self.in_flight.space());
        self.counters.tx_too_long += batch.retain_into(pool, |desc| desc.len <= longest) as u64;
        self.counters.tx_full += batch.len().saturating_sub(space) as u64;
        batch.truncate(space, pool);
    }

    /// Of a batch that was posted the queue pair has taken the first alone: drops the others.
    #[cold]
    fn keep_first(&mut self, pool: &mut Pool, batch: &mut Batch, taken: usize) {
        if taken > 0 {
            self.silent.get_or_insert_with(Instant::now);
        }
        self.counters.tx_errors += (batch.len() - taken) as u64;
        pool.moved_descs(&batch.descs()[taken..], SlotState::Sending, SlotState::Batched);
        batch.truncate(taken, pool);
        let (run, stamps) = batch.run();
        self.in_flight.extend(&run, stamps);
        batch.forget();
    }

    /// Drops what is to be sent by a queue pair that has stopped. Posted, it would only be flushed, and while there is
    /// something to be flushed the queue pair cannot be reset.
    #[cold]
    fn refuse(&mut self, pool: &mut Pool, batch: &mut Batch) {
        match self.phase {
            Phase::Waiting => self.counters.tx_not_connected += batch.len() as u64,
            _ => self.counters.tx_errors += batch.len() as u64,
        }
        batch.free_into(pool);
    }
}

impl<D: Device> Lane for VerbsLane<D> {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError> {
        self.poll_receives(pool, batch, limit)
    }

    #[inline]
    fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        if self.is_troubled() {
            // What a failed reset has to say it says again at the next refill.
            let _ = self.attend_to(pool);
            if self.is_troubled() {
                return self.refuse(pool, batch);
            }
        }
        if batch.extent().longest > u32::from(self.longest) || batch.len() > self.in_flight.space() {
            self.refuse_some(pool, batch);
        }
        let (run, stamps) = batch.run();
        let n = run.len();
        if n == 0 {
            return;
        }
        let first = WrId::new(WrKind::Send, self.generation, self.in_flight.next()).0;
        pool.moved_descs(run.descs(), SlotState::Batched, SlotState::Sending);
        // SAFETY: the slots leave the batch below, and `in_flight` gives them back to the pool only when this request or
        // a later one has completed, or when the queue pair was reset or has ended. The region is kept as for receives.
        let posted = unsafe { self.queues.qp.post_send_run(&run, first) };
        let taken = match posted {
            Ok(()) => n,
            Err(refused) => refused.accepted.min(n),
        };
        if taken < n {
            return self.keep_first(pool, batch, taken);
        }
        // The last of a run is signalled, and says of all before it that they are over.
        self.silent = None;
        self.in_flight.extend(&run, stamps);
        batch.forget();
    }

    #[inline]
    fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError> {
        if let Phase::Failed(since) = self.phase {
            self.look_at_deadline(since);
        }
        let (sending, next) = (self.in_flight.len(), self.in_flight.next());
        let more_came = next != std::mem::replace(&mut self.reaped, next);
        if sending == 0 || (more_came && sending < self.reap_at) {
            return Ok(());
        }
        self.reap_some(pool, latency)
    }

    #[inline]
    fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if self.is_troubled() {
            self.attend_to(pool)?;
            if matches!(self.phase, Phase::Failed(_)) {
                return Ok(());
            }
        }
        let received = self.counters.rx;
        let more_came = received != std::mem::replace(&mut self.refilled, received);
        if more_came && self.posted.space() < self.refill_at {
            return Ok(());
        }
        self.post_receives(pool)
    }

    fn is_connected(&self) -> bool {
        self.phase == Phase::Live
    }

    fn attend(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if self.wiring.is_stale() {
            match self.phase {
                Phase::Live => self.fail(),
                // What it waits for has gone. Nothing is under way that is worth waiting for.
                Phase::Waiting => self.begin_anew(pool)?,
                Phase::Failed(_) => {}
            }
        }
        if self.silent.is_some_and(|since| since.elapsed() > FLUSH_DEADLINE) && self.phase == Phase::Live {
            // No send came after them that would have told: by a reset they come back.
            self.fail();
        }
        if self.alarms.rang_since(&mut self.heard) { self.listen(pool) } else { Ok(()) }
    }

    fn stop(&mut self) -> Result<(), VerbError> {
        self.stopping = true;
        let (attributes, mask) = QpAttributes::to(QpState::Err);
        self.queues.qp.modify(&attributes, mask)?;
        self.mark();
        Ok(())
    }

    fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError> {
        if self.lost {
            return Ok(0);
        }
        while self.in_flight.len() > 0 && self.poll_sends(pool, &mut NoSink)? > 0 {}
        while self.posted.len() > 0 {
            let n = self.queues.recv_cq.poll_run(&mut self.run, RUN)?;
            if n == 0 {
                break;
            }
            self.discard_receives(pool, n);
        }
        Ok(self.outstanding())
    }

    fn abandon(&mut self, pool: &mut Pool) {
        if self.outstanding() == 0 || self.lost {
            return;
        }
        let (attributes, mask) = QpAttributes::to(QpState::Reset);
        // A device that is gone lets go of nothing: its slots stay away, and the report says so.
        if self.queues.qp.modify(&attributes, mask).is_ok() {
            self.counters.abandoned += self.outstanding() as u64;
            self.take_back(pool);
        }
    }

    fn arm(&mut self) -> bool {
        let Queues { recv_cq, channel, .. } = &mut self.queues;
        channel.is_some() && recv_cq.arm(false).is_ok()
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.queues.channel.as_ref()?.descriptor()
    }

    fn woken(&mut self) {
        // An error is said by the next poll.
        while let Some(Ok(Some(_))) = self.queues.channel.as_ref().map(|channel| channel.wait(Duration::ZERO)) {}
    }

    fn posted(&self) -> usize {
        self.posted.len()
    }

    fn sending(&self) -> usize {
        self.in_flight.len()
    }

    fn source_ended(&self) -> bool {
        self.queues.qp.source_ended()
    }

    fn counters(&self) -> &LaneCounters {
        &self.counters
    }

    fn stampers(&self) -> [&Stamper; 2] {
        [&self.recv_stamper, &self.send_stamper]
    }

    fn granted(&self) -> &CqGranted {
        &self.granted
    }
}
