//! The part of a completion queue that only its worker accesses. A poll also takes frames from the link, and fills the
//! posted receives of the queue pairs that report to the queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::channel_events::ChannelEvents;
use crate::completion::{FabricCqe, Now, RawCqe, Stamps};
use crate::counter::Counter;
use crate::fabric::Fabric;
use crate::fault::{FaultSpec, Random};
use crate::inbox::Inbox;
use crate::open_device::OpenDevice;
use crate::qp_shared::QpShared;
use crate::raw::QpCore;
use crate::ring::Ring;
use crate::shared::Shared;
use crate::thread_cell::ThreadCell;
use dataplane_core::units::{QpNum, Ticks};
use dataplane_core::verbs::CompletionValues;
use dataplane_core::verbs::{
    Claim, Completion, Completions, CqApi, CqFlags, CqGranted, EventKind, MAX_RUN, PollFields, QpState, RecvInfo,
    WcStatus,
};

/// A queue pair that reports to this completion queue.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) qp: Arc<QpShared>,
    /// The state of a raw-packet queue pair. `None` for connections and datagrams, which use the fabric (a shared state
    /// machine).
    pub(super) core: Option<Arc<ThreadCell<QpCore>>>,
    /// Whether the queue pair's receives complete in this completion queue.
    pub(super) receives: bool,
    /// Whether the queue pair's sends complete in this completion queue.
    pub(super) sends: bool,
}

impl Attached {
    /// Runs `work` on the state of a raw-packet queue pair. Returns `None` for other queue pairs, or if another thread
    /// owns the state.
    #[inline]
    fn with<R>(&self, kind: Claim, work: impl FnOnce(&QpShared, &mut QpCore) -> R) -> Option<R> {
        self.core.as_ref()?.with(kind, |core| work(&self.qp, core))
    }
}

/// Injected faults of polls.
#[derive(Debug)]
pub(super) struct PollFaults {
    random: Random,
    spec: FaultSpec,
    /// Whether polls may return nothing, as if the wall clock could not be read (`EBUSY`). Devices report this error
    /// only for queues with wall-clock timestamps.
    can_be_busy: bool,
}

impl PollFaults {
    /// Returns `None` if no faults of polls are configured.
    pub(super) fn new(spec: &FaultSpec, can_be_busy: bool) -> Option<Self> {
        let random = Random::new(!spec.seed);
        (!spec.no_poll_faults()).then_some(Self { random, spec: *spec, can_be_busy })
    }

    /// Returns a completion that belongs to no request, if this fault is injected now.
    fn garbage(&mut self) -> Option<Completion> {
        if !self.random.happens(self.spec.bogus_completion) {
            return None;
        }
        let (status, opcode) = [(99, 0), (0, 200), (0, 128), (0, 0)][self.random.below(4)];
        let qp_num = QpNum(self.random.next() as u32 & 0xff_ffff);
        let values = CompletionValues { opcode, qp_num, byte_len: u32::MAX, ..CompletionValues::default() };
        Some(Completion::new(self.random.next(), WcStatus::from_raw(status), 0xbad, PollFields::all(), values))
    }
}

/// The queue pairs that report to a completion queue. The thread that creates or drops a queue pair changes the list.
#[derive(Debug)]
pub(super) struct Attachments {
    list: Mutex<Vec<Attached>>,
    /// Incremented after every change of the list.
    generation: AtomicU64,
}

impl Attachments {
    pub(super) fn new() -> Self {
        Self { list: Mutex::new(Vec::new()), generation: AtomicU64::new(1) }
    }

    pub(super) fn change(&self, with: impl FnOnce(&mut Vec<Attached>)) {
        with(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// The part of a completion queue's state that only its worker accesses.
#[derive(Debug)]
pub(super) struct CqCore {
    number: u32,
    depth: usize,
    /// The completions of raw-packet queue pairs.
    ring: Ring<RawCqe>,
    ignore_overrun: bool,
    /// Whether the queue is unusable, because it overran or because of an injected fault.
    dead: bool,
    pub(super) stamps: Stamps,
    api: CqApi,
    /// The completions that a classic poll (`ibv_poll_cq`) has taken from the queue, and that the cursor of this poll
    /// has not returned.
    copied: VecDeque<Completion>,
    faults: Option<PollFaults>,
    attachments: Arc<Attachments>,
    attached: Vec<Attached>,
    /// Whether raw-packet receives of an attached queue pair complete in this completion queue.
    has_receivers: bool,
    /// Whether a queue pair on the fabric was ever attached.
    had_fabric_qp: bool,
    /// Whether the link is zero-copy, so that sends complete some time after they are posted.
    zero_copy: bool,
    /// Whether the completion queue has receive information.
    has_info: bool,
    /// Whether sends of an attached queue pair wait for a rate limit.
    has_paced: bool,
    /// Whether only raw-packet queue pairs were ever attached, and the queue has none of these properties: zero-copy
    /// sends, sends with a rate limit, receive information, injected faults, the classic interface. A poll of such a
    /// queue needs the preparation in [`CqCore::begin`] only in rare cases (see [`CqCore::can_skip_begin`]).
    raw_only: bool,
    /// Whether sends of an attached queue pair complete in this completion queue.
    has_senders: bool,
    inbox: Arc<Inbox>,
    generation: u64,
    /// The index of the queue pair that receives first in the next poll. The index rotates so that no queue pair
    /// starves.
    turn: usize,
    device: Arc<Shared>,
    counter: Arc<Counter>,
    /// The fabric of the device, if its link has one.
    fabric: Option<Arc<Fabric>>,
}

impl CqCore {
    /// Creates the core of a queue with this inbox.
    pub(super) fn new(
        device: &OpenDevice,
        granted: &CqGranted,
        stamps: Stamps,
        faults: Option<PollFaults>,
        attachments: &Arc<Attachments>,
        inbox: &Arc<Inbox>,
    ) -> Self {
        let depth = granted.depth as usize;
        Self {
            number: inbox.number,
            depth,
            ring: Ring::new(depth, RawCqe::NONE),
            ignore_overrun: granted.flags.contains(CqFlags::IGNORE_OVERRUN),
            dead: false,
            stamps,
            api: granted.api,
            copied: VecDeque::new(),
            faults,
            attachments: attachments.clone(),
            attached: Vec::new(),
            has_receivers: false,
            had_fabric_qp: false,
            zero_copy: device.link.is_zero_copy(),
            has_info: granted.fields.intersects(PollFields::RECV_INFO),
            has_paced: false,
            raw_only: false,
            has_senders: false,
            inbox: inbox.clone(),
            generation: 0,
            turn: 0,
            device: device.shared.clone(),
            counter: device.counter.clone(),
            fabric: device.link.fabric().cloned(),
        }
    }

    /// Changes the capacity. Returns `false` if the queue holds more than `depth` completions.
    pub(super) fn resize(&mut self, depth: usize) -> bool {
        let fits = self.ring.len() <= depth && self.inbox.resize(depth);
        if fits {
            self.depth = depth;
        }
        fits
    }

    /// Adds a completion. If there is no room, the queue overruns. With [`CqFlags::IGNORE_OVERRUN`], the new completion
    /// replaces the oldest completion instead.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: RawCqe) {
        if self.ring.len() >= self.depth {
            if !self.ignore_overrun {
                return self.overrun();
            }
            self.ring.pop();
        }
        self.ring.push(entry);
    }

    /// Removes the completions of a queue pair.
    pub(super) fn purge(&mut self, number: QpNum) {
        self.ring.retain(|cqe| cqe.qp != number);
    }

    #[cold]
    fn overrun(&mut self) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        self.inbox.kill();
        self.device.raise(EventKind::CqErr, self.number);
        self.fail_all();
    }

    /// Moves all attached queue pairs to ERR after an overrun.
    #[cold]
    fn fail_all(&mut self) {
        self.refresh();
        for Attached { qp, core, .. } in &self.attached {
            match &self.fabric {
                Some(fabric) if core.is_none() => fabric.fail(qp.number),
                _ if qp.fail() => self.device.raise(EventKind::QpFatal, qp.number.0),
                _ => {}
            }
        }
    }

    /// Lets a channel watch the descriptors on which frames for this queue arrive. Returns `false` if some completions
    /// of this queue come from sources without a descriptor.
    #[cold]
    pub(super) fn watch(&mut self, channel: &ChannelEvents) -> bool {
        self.refresh();
        let Self { attached, number, zero_copy, .. } = self;
        attached.iter().all(|attached| {
            let watch = |_: &QpShared, core: &mut QpCore| {
                core.descriptor().is_some_and(|fd| channel.notify_when_readable(*number, fd).is_ok())
            };
            // Neither the kernel nor a rate limit announces the end of a send.
            !(attached.sends && (*zero_copy || attached.qp.paced))
                && (!attached.receives || attached.with(Claim::Temporary, watch).unwrap_or(false))
        })
    }

    /// Lets the fabric process messages. If the inbox is unusable, for example after an overrun, marks this queue as
    /// unusable and moves the queue pairs to ERR.
    #[cold]
    fn fetch(&mut self) {
        if let Some(fabric) = &self.fabric {
            fabric.drive();
        }
        if self.inbox.is_dead() {
            self.dead = true;
            self.fail_all();
        }
    }

    /// Frees the send queue entries of the first `release` sends since the start of a queue pair.
    #[inline]
    fn release(&self, qp: QpNum, release: u64) {
        if release > 0
            && let Some(attached) = self.attached.iter().find(|attached| attached.qp.number == qp)
        {
            attached.qp.released.store(release, Ordering::Relaxed);
        }
    }

    /// Frees the queue entry of a completed request on a fabric.
    fn release_message(&self, cqe: &FabricCqe) {
        if cqe.release > 0 {
            self.release(cqe.qp, cqe.release);
        } else if let Some(attached) = self.attached.iter().find(|attached| attached.qp.number == cqe.qp) {
            attached.qp.polled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves completions from the inbox into `run`, until `run` has `limit` completions.
    #[cold]
    fn collect(&mut self, run: &mut Completions, limit: usize) {
        let inbox = self.inbox.clone();
        inbox.drain(|cqe| {
            let it = &cqe.completion;
            let fits = run.len < limit && run.push(it.wr_id, it.status, it.byte_len().unwrap_or(0), it.raw_ticks());
            if fits {
                self.release_message(cqe);
            }
            fits
        });
    }

    /// Ends the claim of this thread on the attached queue pairs.
    pub(super) fn release_queue_pairs(&self) {
        self.attached.iter().filter_map(|attached| attached.core.as_ref()).for_each(|core| core.release());
    }

    /// Reloads the list of attached queue pairs if it has changed.
    #[inline]
    fn refresh(&mut self) {
        let now = self.attachments.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.reload(now);
        }
    }

    /// Reloads the list, and removes the completions of queue pairs that no longer exist.
    #[cold]
    fn reload(&mut self, generation: u64) {
        self.attached.clone_from(&self.attachments.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.has_receivers = self.attached.iter().any(|attached| attached.receives && attached.core.is_some());
        self.had_fabric_qp |= self.attached.iter().any(|attached| attached.core.is_none());
        self.has_senders = self.attached.iter().any(|attached| attached.sends);
        let extended = self.api != CqApi::Classic;
        self.has_paced = self.attached.iter().any(|attached| attached.sends && attached.qp.paced);
        let plain = !self.zero_copy && !self.has_paced && !self.has_info && self.faults.is_none();
        self.raw_only = !self.had_fabric_qp && plain && extended;
        self.generation = generation;
        let attached = &self.attached;
        self.ring.retain(|cqe| attached.iter().any(|other| other.qp.number == cqe.qp));
    }

    /// Returns whether [`CqCore::begin`] has nothing to do.
    #[inline]
    fn can_skip_begin(&self) -> bool {
        self.raw_only
            && !self.dead
            && self.attachments.generation.load(Ordering::Acquire) == self.generation
            && !self.device.is_gone()
            && !(self.has_senders && self.has_failed_senders())
    }

    #[inline]
    fn has_failed_senders(&self) -> bool {
        self.attached.iter().any(|attached| attached.sends && attached.qp.state() == QpState::Err)
    }

    /// Prepares a poll. Returns `false` if an injected fault makes the poll return nothing.
    #[inline(never)]
    pub(super) fn begin(&mut self) -> Result<bool, i32> {
        if self.dead || self.device.is_gone() {
            return Err(libc::EIO);
        }
        self.refresh();
        if self.had_fabric_qp {
            self.fetch();
            if self.dead {
                return Err(libc::EIO);
            }
        }
        if self.zero_copy {
            self.reap();
        }
        if self.has_failed_senders() {
            self.flush_sends();
        }
        if self.has_paced {
            self.resume_paced();
        }
        if self.faults.is_some() { self.inject_poll_faults() } else { Ok(true) }
    }

    /// Adds completions for the sends that have ended since the last poll.
    #[inline]
    fn reap(&mut self) {
        let Self { attached, ring, depth, stamps, .. } = self;
        for attached in attached.iter().filter(|attached| attached.sends) {
            attached.with(Claim::Temporary, |qp, core| core.reap(qp, ring, *depth, stamps));
        }
    }

    /// Injects the faults of polls. Returns `false` if the poll must return nothing.
    #[cold]
    fn inject_poll_faults(&mut self) -> Result<bool, i32> {
        let Some(PollFaults { random, spec, can_be_busy }) = &mut self.faults else { return Ok(true) };
        if random.happens(spec.poll_error) {
            self.dead = true;
            self.inbox.kill();
            return Err(libc::EIO);
        }
        if random.happens(spec.poll_invalid) {
            return Err(libc::EINVAL);
        }
        Ok(!(*can_be_busy && random.happens(spec.clock_busy)))
    }

    /// Flushes the sends of queue pairs that are in ERR. The receive path may have moved a queue pair to ERR.
    #[cold]
    fn flush_sends(&mut self) {
        for index in 0..self.attached.len() {
            let attached = self.attached[index].clone();
            if attached.sends && attached.qp.state() == QpState::Err {
                while let Some(cqe) = attached.with(Claim::Temporary, |qp, core| core.flush_one(qp)).flatten() {
                    self.push(cqe);
                }
            }
        }
    }

    /// Processes the sends that a rate limit admits now.
    #[cold]
    fn resume_paced(&mut self) {
        for index in 0..self.attached.len() {
            let attached = self.attached[index].clone();
            if attached.sends && attached.qp.paced {
                attached.with(Claim::Temporary, |qp, core| core.resume(qp, self));
            }
        }
    }

    /// Copies the receive information of the oldest `n` completions to `run`. [`CqCore::pop_into`] then moves the
    /// completions themselves to `run`.
    #[inline(never)]
    fn copy_info(&self, run: &mut Completions, n: usize) {
        let to = run.info[run.len..][..n].iter_mut();
        let from = self.ring.front(n).into_iter().flatten();
        to.zip(from).for_each(|(to, from)| *to = from.info);
    }

    /// Removes and returns the oldest completion.
    #[inline]
    fn pop(&mut self) -> Option<RawCqe> {
        let entry = self.ring.pop()?;
        self.release(entry.qp, entry.release);
        Some(entry)
    }

    #[inline]
    fn pop_into(&mut self, run: &mut Completions, limit: usize) {
        let n = self.ring.len().min(limit.saturating_sub(run.len));
        if n == 0 {
            return;
        }
        if self.has_info {
            self.copy_info(run, n);
        }
        // Consecutive sends mostly belong to one queue pair. The last completion frees the entries of all these sends.
        let (mut qp, mut release) = (QpNum(0), 0);
        for part in self.ring.front(n) {
            for it in part {
                run.push(it.wr_id, it.status, it.byte_len, it.ticks);
                if it.release > 0 {
                    if it.qp != qp {
                        self.release(qp, release);
                    }
                    (qp, release) = (it.qp, it.release);
                }
            }
        }
        self.release(qp, release);
        self.ring.advance(n);
    }

    #[inline]
    pub(super) fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, i32> {
        run.clear();
        let limit = limit.min(MAX_RUN);
        if !self.can_skip_begin() && !self.begin()? {
            return Ok(0);
        }
        if self.raw_only {
            if !self.ring.is_empty() {
                self.pop_into(run, limit);
            }
            if run.len == 0 && self.has_receivers && limit > 0 {
                let now = self.now();
                if !self.receive_single(run, limit, now) {
                    self.drive(limit, Some(run), now);
                }
            } else if run.len < limit && self.has_receivers {
                let now = self.now();
                self.drive(limit, Some(run), now);
            }
        } else {
            self.poll_general(run, limit);
        }
        if self.dead {
            run.clear();
            return Err(libc::EIO);
        }
        Ok(run.len)
    }

    /// Polls a run of a queue for which `raw_only` is `false`.
    fn poll_general(&mut self, run: &mut Completions, limit: usize) {
        if self.has_info {
            run.has_info = true;
            run.info[..limit].fill(RecvInfo::default());
        }
        if let Some(it) = self.faults.as_mut().and_then(PollFaults::garbage).filter(|_| limit > 0) {
            run.push(it.wr_id, it.status, it.byte_len().unwrap_or(0), it.raw_ticks());
        }
        while run.len < limit
            && let Some(it) = self.copied.pop_front()
        {
            run.info[run.len] = it.recv_info();
            let ticks = if self.stamps.by_wall() { it.wallclock().map(|nanos| Ticks(nanos.0)) } else { it.ticks() };
            run.push(it.wr_id, it.status, it.byte_len().unwrap_or(0), ticks.unwrap_or(Ticks(0)));
        }
        self.pop_into(run, limit);
        if self.had_fabric_qp && run.len < limit {
            self.collect(run, limit);
        }
        if run.len < limit && self.has_receivers {
            let now = self.now();
            self.drive(limit, Some(run), now);
        }
    }

    /// Returns the current time. A poll reads the clock at most once, and only if queue pairs may receive.
    #[inline]
    fn now(&self) -> Now {
        Now { ticks: self.stamps.now(), by_wall: self.stamps.by_wall() }
    }

    /// Receives into an empty run if only one queue pair reports to this completion queue. The ring must be empty.
    /// Returns `false` if there are other queue pairs, or if [`CqCore::drive`] is needed.
    #[inline]
    fn receive_single(&mut self, run: &mut Completions, limit: usize, now: Now) -> bool {
        let [attached @ Attached { receives: true, .. }] = &*self.attached else { return false };
        let depth = self.depth;
        let received = attached.with(Claim::Permanent, |qp, core| {
            !core.overruns(qp, depth) && core.receive_run(qp, run, limit, now, true)
        });
        received == Some(true)
    }

    /// Lets the queue pairs receive until `run` has `limit` completions. Without `run`, the completions go to the ring,
    /// until the ring has `limit` completions.
    #[inline(never)]
    fn drive(&mut self, limit: usize, mut run: Option<&mut Completions>, now: Now) {
        let count = self.attached.len();
        for step in 0..count {
            let turn = if self.turn + step < count { self.turn + step } else { self.turn + step - count };
            let has = run.as_ref().map_or(self.ring.len(), |run| run.len);
            let room = self.depth - self.ring.len();
            let Self { attached, ring, ignore_overrun, .. } = &mut *self;
            let attached @ Attached { receives: true, .. } = &attached[turn] else { continue };
            if has >= limit {
                break;
            }
            let overran = attached.with(Claim::Permanent, |qp, core| {
                if core.overruns(qp, room) {
                    if *ignore_overrun {
                        core.receive(qp, ring, usize::MAX, now);
                    }
                    return true;
                }
                let direct = run.as_deref_mut().is_some_and(|run| core.receive_run(qp, run, limit, now, false));
                if !direct {
                    core.receive(qp, ring, room.min(limit - has), now);
                }
                false
            });
            if overran == Some(true) {
                if !self.ignore_overrun {
                    return self.overrun();
                }
                // The newest completions overwrite the oldest completions, whose receives are lost.
                let excess = self.ring.len().saturating_sub(self.depth);
                self.ring.advance(excess);
            }
            if let Some(run) = run.as_deref_mut() {
                self.pop_into(run, limit);
            }
        }
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
    }

    /// Starts a poll with a cursor, and returns the first completion.
    pub(super) fn start_poll(&mut self) -> Result<Option<Completion>, i32> {
        if !self.begin()? {
            return Ok(None);
        }
        if self.api != CqApi::Classic {
            return self.next();
        }
        // `ibv_poll_cq` copies several completions at once.
        while self.copied.len() < CURSOR_RUN
            && let Some(it) = self.next()?
        {
            self.copied.push_back(it);
        }
        Ok(self.copied.pop_front())
    }

    /// Returns the next completion of a poll that has started.
    pub(super) fn continue_poll(&mut self) -> Result<Option<Completion>, i32> {
        match self.api {
            CqApi::Classic => return Ok(self.copied.pop_front()),
            CqApi::ExtendedSingle => return Ok(None),
            CqApi::Auto | CqApi::Extended => {}
        }
        if let Some(PollFaults { random, spec, .. }) = &mut self.faults
            && random.happens(spec.poll_error)
        {
            self.dead = true;
            self.inbox.kill();
        }
        self.next()
    }

    /// Returns the next completion with all fields.
    fn next(&mut self) -> Result<Option<Completion>, i32> {
        if self.dead {
            return Err(libc::EIO);
        }
        if let Some(it) = self.faults.as_mut().and_then(PollFaults::garbage) {
            return Ok(Some(it));
        }
        if self.had_fabric_qp
            && let Some(cqe) = self.inbox.pop(|cqe| self.release_message(cqe))
        {
            return Ok(Some(self.with_fields_of_queue(cqe.completion)));
        }
        if self.ring.is_empty() && self.has_receivers {
            let now = self.now();
            self.drive(CURSOR_RUN, None, now);
            if self.dead {
                return Err(libc::EIO);
            }
        }
        Ok(self.pop().map(|entry| self.with_fields_of_queue(entry.completion())))
    }

    /// Returns a completion with the fields that depend on the queue. See [`Stamps::set_times`].
    fn with_fields_of_queue(&self, mut completion: Completion) -> Completion {
        self.stamps.set_times(&mut completion, &self.counter);
        if self.api != CqApi::Classic {
            // The extended interface has no reader for this field.
            completion.values_mut().pkey_index = None;
        }
        completion
    }
}

/// The maximum number of packets that one call of [`CqCore::next`] receives, and the maximum number of completions that
/// a classic poll copies.
const CURSOR_RUN: usize = 64;
