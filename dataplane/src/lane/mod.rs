//! A lane: one worker's queue pair and completion queues on one port.
//!
//! It owns the hard part of a data plane on verbs: who has which slot. Receives are posted ahead and refilled; sends are
//! posted in runs of which the last alone is signalled, and reclaimed up to it when it completes; what a failure flushes
//! comes back the same way. It is written once, over the traits of [`crate::provider`], and runs on every provider.
//!
//! `unsafe` is allowed here because posting is: the device gets memory to read and write. A slot is posted only in the
//! moment that it leaves the pool or a batch, and comes back only by its completion.
#![allow(unsafe_code)]

mod in_flight;
pub mod message;
#[cfg(test)]
mod tests;

use in_flight::InFlight;

use crate::clock::Timebase;
use crate::error::{Result, VerbError};
use crate::mem::{Batch, Desc, Pool, SlotState};
use crate::provider::{
    Access, AttributeMask, CompletionQueue, Completions, CqFlags, CqGranted, CqSpec, Device, PollFields,
    ProtectionDomain, QpAttributes, QpCaps, QpSpec, QpState, QpType, QueuePair, RUN, WcStatus, WrId, WrKind,
};
use crate::units::Ticks;

/// What a lane has done. Packets, unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Received.
    pub rx: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Receives that completed with an error: nothing was received.
    pub rx_errors: u64,
    /// Sent: the device has said so.
    pub tx: u64,
    /// Bytes of those.
    pub tx_bytes: u64,
    /// Dropped because the send queue was full.
    pub tx_full: u64,
    /// Dropped because sending failed.
    pub tx_errors: u64,
    /// Dropped because the worker stopped before they were sent.
    pub stopped: u64,
    /// Completions of no request of this lane: of an older generation, or of a broken device.
    pub stale: u64,
    /// How often the queue pair was reset after an error.
    pub recoveries: u64,
    /// The first error status that was seen.
    pub first_error: Option<WcStatus>,
}

/// Takes the time from receive stamp to send completion stamp.
pub(crate) trait LatencySink {
    /// So many packets that share both stamps.
    fn record(&mut self, from: Ticks, to: Ticks, packets: u64);
}

/// A lane, whatever its provider: one dynamic call a burst.
pub(crate) trait Lane: Send {
    /// Receives up to `limit` packets into the batch. Returns how many.
    ///
    /// # Errors
    /// The completion queue cannot be used any more.
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError>;

    /// Sends the batch, which is empty afterwards: what cannot be sent is a counted drop.
    fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch);

    /// Takes back the slots of sends that have completed.
    ///
    /// # Errors
    /// The completion queue cannot be used any more.
    fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError>;

    /// Posts free slots to the receive queue until it is full. Resets a queue pair that an error has stopped.
    ///
    /// # Errors
    /// The device takes no receives, or cannot be reset.
    fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError>;

    /// Moves the queue pair to the error state, so that everything outstanding is flushed.
    ///
    /// # Errors
    /// As `ibv_modify_qp(3)`.
    fn stop(&mut self) -> Result<(), VerbError>;

    /// Takes back what is flushed. Returns how many slots the device still has.
    ///
    /// # Errors
    /// As [`Lane::reap`].
    fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError>;

    /// Slots that wait to be received into.
    fn posted(&self) -> usize;

    /// Packets that are being sent.
    fn sending(&self) -> usize;

    /// Whether nothing will be received any more.
    fn source_ended(&self) -> bool;

    /// What it has done.
    fn counters(&self) -> &LaneCounters;

    /// How its stamps become nanoseconds.
    fn timebase(&self) -> Timebase;

    /// What the receive completion queue was granted.
    fn granted(&self) -> &CqGranted;
}

/// What a lane asks of its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSpec {
    /// The port of the device, from 1.
    pub(crate) port: u8,
    /// The queue of that port: which of how many.
    pub(crate) queue: (u16, u16),
    /// Receives posted ahead; 0 for a lane that only sends.
    pub(crate) recv_depth: u32,
    /// Sends outstanding.
    pub(crate) send_depth: u32,
    /// Whether completions are stamped.
    pub(crate) stamps: bool,
}

/// A lane of raw packets on the queue pairs and completion queues of one provider.
#[derive(Debug)]
pub(crate) struct VerbsLane<Q: QueuePair, C> {
    // The queue pair goes before the queues it reports to, and before the memory it was given.
    qp: Q,
    send_cq: C,
    recv_cq: C,
    mr: Q::Mr,
    port: u8,
    generation: u16,
    posted: usize,
    recv_depth: usize,
    in_flight: InFlight,
    run: Box<Completions>,
    stopping: bool,
    counters: LaneCounters,
    timebase: Timebase,
    granted: CqGranted,
}

type OpenLane<P> = VerbsLane<<P as ProtectionDomain>::Qp, <P as ProtectionDomain>::Cq>;

impl<Q: QueuePair, C: CompletionQueue> VerbsLane<Q, C> {
    /// Makes the queues on a device and brings them to RTS. The pool's memory must be that of `mr`.
    ///
    /// # Errors
    /// A verb failed; the error names it and the device.
    pub(crate) fn open<D>(device: &D, pd: &D::Pd, mr: Q::Mr, pool: &Pool, spec: LaneSpec) -> Result<OpenLane<D::Pd>>
    where
        D: Device<Cq = C>,
        D::Pd: ProtectionDomain<Qp = Q, Cq = C>,
    {
        let named = |error: VerbError| error.on(device.name());
        let mut fields = PollFields::BYTE_LEN;
        if spec.stamps {
            fields |= PollFields::TIMESTAMP;
        }
        let cq = |depth| {
            let spec = CqSpec { depth, fields, flags: CqFlags::SINGLE_THREADED, ..CqSpec::default() };
            device.create_cq(&spec, None).map_err(named)
        };
        let (send_cq, _) = cq(spec.send_depth)?;
        // A lane that only sends has receive queues too: of the least size, and nothing is posted to them.
        let (recv_cq, granted) = cq(spec.recv_depth.max(1))?;
        let caps = QpCaps {
            send_depth: spec.send_depth,
            recv_depth: spec.recv_depth.max(1),
            send_sges: 1,
            recv_sges: 1,
            inline: 0,
        };
        let qp_spec = QpSpec { queue: spec.queue, ..QpSpec::new(QpType::RawPacket, caps) };
        let qp = pd.create_qp(&qp_spec, &send_cq, &recv_cq, None).map_err(named)?;
        let timebase = if spec.stamps { device.timebase() } else { Timebase::NONE };
        let mut lane = VerbsLane {
            // Own accounting bounds what is outstanding, so the completion queues cannot overrun.
            in_flight: InFlight::new(spec.send_depth.min(qp.caps().send_depth).min(send_cq.depth())),
            recv_depth: spec.recv_depth.min(qp.caps().recv_depth).min(recv_cq.depth()) as usize,
            qp,
            send_cq,
            recv_cq,
            mr,
            port: spec.port,
            generation: 0,
            posted: 0,
            run: Completions::new(),
            stopping: false,
            counters: LaneCounters::default(),
            timebase: if granted.stamps == crate::clock::ClockSource::None { Timebase::NONE } else { timebase },
            granted,
        };
        lane.connect(pool).map_err(named)?;
        Ok(lane)
    }

    /// RESET to RTS.
    fn connect(&mut self, pool: &Pool) -> Result<(), VerbError> {
        self.qp.bind_slots(&self.mr, pool.layout(), self.tag(WrKind::Receive))?;
        let mut attributes = QpAttributes { state: QpState::Init, port: self.port, ..QpAttributes::default() };
        self.qp.modify(&attributes, AttributeMask::STATE | AttributeMask::PORT)?;
        for state in [QpState::Rtr, QpState::Rts] {
            attributes.state = state;
            self.qp.modify(&attributes, AttributeMask::STATE)?;
        }
        Ok(())
    }

    fn tag(&self, kind: WrKind) -> u64 {
        WrId::new(kind, self.generation, 0).0
    }

    /// Polls the receive queue and sorts what came: good packets into the batch.
    #[inline]
    fn poll_receives(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError> {
        let n = self.recv_cq.poll_run(&mut self.run, limit.min(batch.space()).min(RUN))?;
        if n == 0 {
            return Ok(0);
        }
        let tag = self.tag(WrKind::Receive);
        let run = &*self.run;
        // What is left of an id of ours is a slot; whether there is such a slot the batch finds out.
        let foreign = run.wr_id[..n].iter().fold(0, |bits, wr_id| bits | (wr_id ^ tag)) >> 32;
        if run.failed || foreign != 0 {
            return Ok(self.sort_receives(pool, batch, n));
        }
        let offset = pool.layout().headroom;
        let before = batch.len();
        let descs = run.wr_id[..n].iter().zip(&run.byte_len[..n]).map(|(wr_id, byte_len)| {
            // A length that does not fit 16 bits does not fit the slot: the batch refuses it.
            Desc { slot: *wr_id as u32, offset, len: (*byte_len).min(u32::from(u16::MAX)) as u16 }
        });
        let (good, bytes) = batch.extend(descs, &run.ticks[..n]);
        pool.moved_descs(&batch.descs()[before..], SlotState::Posted, SlotState::Batched);
        self.posted -= good;
        self.counters.rx += good as u64;
        self.counters.rx_bytes += bytes;
        if good < n {
            self.run.wr_id.copy_within(good..n, 0);
            self.run.byte_len.copy_within(good..n, 0);
            self.run.ticks.copy_within(good..n, 0);
            return Ok(good + self.sort_receives(pool, batch, n - good));
        }
        Ok(good)
    }

    /// The same, one completion at a time: some of them are not as they should be.
    #[cold]
    fn sort_receives(&mut self, pool: &mut Pool, batch: &mut Batch, n: usize) -> usize {
        let layout = pool.layout();
        let tag = self.tag(WrKind::Receive);
        let mut good = 0;
        for i in 0..n {
            let id = WrId(self.run.wr_id[i]);
            if id.tag() != tag || id.number() >= u64::from(layout.count) {
                self.counters.stale += 1;
                continue;
            }
            let slot = id.number() as u32;
            let status = if self.run.failed { self.run.status[i] } else { WcStatus::Success };
            let len = u16::try_from(self.run.byte_len[i]).ok().filter(|len| u32::from(*len) <= layout.room());
            self.posted -= 1;
            match (status, len) {
                (WcStatus::Success, Some(len)) => {
                    pool.moved(&[slot], SlotState::Posted, SlotState::Batched);
                    let desc = Desc { slot, offset: layout.headroom, len };
                    batch.extend([desc].into_iter(), &[self.run.ticks[i]]);
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
        let (tag, count) = (self.tag(WrKind::Receive), u64::from(pool.layout().count));
        for wr_id in &self.run.wr_id[..n] {
            match wr_id ^ tag {
                slot if slot < count => {
                    pool.put_one(slot as u32, SlotState::Posted);
                    self.posted -= 1;
                }
                _ => self.counters.stale += 1,
            }
        }
    }

    fn note(&mut self, status: WcStatus) {
        if status != WcStatus::Success && !(self.stopping && status == WcStatus::WrFlushErr) {
            self.counters.first_error.get_or_insert(status);
        }
    }

    /// Polls the send queue and takes back what has completed.
    #[inline]
    fn poll_sends(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<usize, VerbError> {
        let n = self.send_cq.poll_run(&mut self.run, RUN)?;
        let tag = self.tag(WrKind::Send);
        for i in 0..n {
            let id = WrId(self.run.wr_id[i]);
            let status = if self.run.failed { self.run.status[i] } else { WcStatus::Success };
            let Some(behind) = self.in_flight.position(id.number()).filter(|_| id.tag() == tag) else {
                self.counters.stale += 1;
                continue;
            };
            // Completions come in order and errors always complete, so all before this one were sent.
            let sent = behind + usize::from(status == WcStatus::Success);
            self.counters.tx += sent as u64;
            let ticks = (self.timebase.source != crate::clock::ClockSource::None).then_some(self.run.ticks[i]);
            self.counters.tx_bytes += self.in_flight.reclaim(sent, pool, ticks, latency);
            if status != WcStatus::Success {
                self.in_flight.reclaim(1, pool, None, latency);
                self.note(status);
                match self.stopping && status == WcStatus::WrFlushErr {
                    true => self.counters.stopped += 1,
                    false => self.counters.tx_errors += 1,
                }
            }
        }
        Ok(n)
    }

    /// Everything has come back from a queue pair that an error has stopped: RESET and up again, as a new generation.
    #[cold]
    fn recover(&mut self, pool: &Pool) -> Result<(), VerbError> {
        if self.posted > 0 || self.in_flight.len() > 0 {
            return Ok(());
        }
        let attributes = QpAttributes { state: QpState::Reset, ..QpAttributes::default() };
        self.qp.modify(&attributes, AttributeMask::STATE)?;
        self.generation = self.generation.wrapping_add(1);
        self.counters.recoveries += 1;
        self.connect(pool)
    }

    /// Whether a queue pair that was stopped can send again.
    #[cold]
    fn is_back(&mut self, pool: &Pool) -> bool {
        // What a failed reset has to say it says again at the next refill.
        self.recover(pool).is_ok() && self.qp.state() != QpState::Err
    }

    /// Drops what is to be sent by a queue pair that has stopped. Posted, it would only be flushed, and while there is
    /// something to be flushed the queue pair cannot be reset.
    #[cold]
    fn refuse(&mut self, pool: &mut Pool, batch: &mut Batch) {
        self.counters.tx_errors += batch.len() as u64;
        batch.free_into(pool);
    }
}

impl<Q: QueuePair, C: CompletionQueue> Lane for VerbsLane<Q, C> {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError> {
        self.poll_receives(pool, batch, limit)
    }

    #[inline]
    fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        if self.qp.state() == QpState::Err && !self.is_back(pool) {
            return self.refuse(pool, batch);
        }
        let n = batch.len().min(self.in_flight.space());
        let first = WrId::new(WrKind::Send, self.generation, self.in_flight.next()).0;
        pool.moved_descs(&batch.descs()[..n], SlotState::Batched, SlotState::Sending);
        // SAFETY: the slots leave the batch below, and `in_flight` gives them back to the pool only when this request or
        // a later one has completed. The pool's region is kept by `mr`, which is dropped after the queue pair.
        let posted = unsafe { self.qp.post_send_run(&batch.descs()[..n], first) };
        let taken = match posted {
            Ok(()) => n,
            Err(refused) => refused.accepted.min(n),
        };
        self.in_flight.extend(&batch.descs()[..taken], &batch.stamps()[..taken]);
        if taken < batch.len() {
            pool.moved_descs(&batch.descs()[taken..n], SlotState::Sending, SlotState::Batched);
            self.counters.tx_errors += (n - taken) as u64;
            self.counters.tx_full += (batch.len() - n) as u64;
            batch.free_from(taken, pool);
        }
        batch.forget();
    }

    #[inline]
    fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError> {
        if self.in_flight.len() > 0 {
            self.poll_sends(pool, latency)?;
        }
        Ok(())
    }

    #[inline]
    fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError> {
        if self.qp.state() == QpState::Err {
            return self.recover(pool);
        }
        let mut slots = [0; RUN];
        while self.posted < self.recv_depth {
            let want = (self.recv_depth - self.posted).min(RUN);
            let n = pool.take(&mut slots[..want], SlotState::Posted);
            if n == 0 {
                break;
            }
            // SAFETY: the slots have just left the pool and come back only by their completions. The region is kept as
            // in `transmit`.
            match unsafe { self.qp.post_recv_run(&slots[..n]) } {
                Ok(()) => self.posted += n,
                Err(refused) => {
                    let accepted = refused.accepted.min(n);
                    self.posted += accepted;
                    pool.put(&slots[accepted..n], SlotState::Posted);
                    return Err(refused.error);
                }
            }
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), VerbError> {
        self.stopping = true;
        let attributes = QpAttributes { state: QpState::Err, ..QpAttributes::default() };
        self.qp.modify(&attributes, AttributeMask::STATE)
    }

    fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError> {
        while self.in_flight.len() > 0 && self.poll_sends(pool, &mut NoSink)? > 0 {}
        while self.posted > 0 {
            let n = self.recv_cq.poll_run(&mut self.run, RUN)?;
            if n == 0 {
                break;
            }
            self.discard_receives(pool, n);
        }
        Ok(self.posted + self.in_flight.len())
    }

    fn posted(&self) -> usize {
        self.posted
    }

    fn sending(&self) -> usize {
        self.in_flight.len()
    }

    fn source_ended(&self) -> bool {
        self.qp.source_ended()
    }

    fn counters(&self) -> &LaneCounters {
        &self.counters
    }

    fn timebase(&self) -> Timebase {
        self.timebase
    }

    fn granted(&self) -> &CqGranted {
        &self.granted
    }
}

struct NoSink;

impl LatencySink for NoSink {
    fn record(&mut self, _: Ticks, _: Ticks, _: u64) {}
}

/// What a lane may do with the memory that it registers.
pub(crate) const ACCESS: Access = Access::LOCAL_WRITE;
