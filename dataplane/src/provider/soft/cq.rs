//! Completion queues. Polling one is what makes the device receive: it has no engine of its own.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::clock::{HostClock, Timebase};
use crate::error::VerbError;
use crate::provider::completion::Values;
use crate::provider::soft::channel::SoftChannel;
use crate::provider::soft::counter::Counter;
use crate::provider::soft::device::Shared;
use crate::provider::soft::engine::QpCore;
use crate::provider::soft::fault::{FaultSpec, Random};
use crate::provider::soft::home::{Home, Use};
use crate::provider::soft::inbox::Inbox;
use crate::provider::soft::qp::QpShared;
use crate::provider::soft::ring::Ring;
use crate::provider::soft::spec::Profile;
use crate::provider::{
    Completion, CompletionQueue, Completions, Cursor, EventKind, PollFields, QpState, RUN, WcOpcode, WcStatus,
};
use crate::units::{QpNum, Ticks};

/// What the stamps of a queue are.
#[derive(Clone, Debug)]
pub(super) enum Stamps {
    None,
    /// The device's counter.
    Ticks(Arc<Counter>),
    /// Nanoseconds: what they were when the clock showed those ticks, and how ticks become nanoseconds.
    Wallclock(HostClock, Timebase, u64, Ticks),
    /// Nanoseconds of the host's wall clock and so many more. It is read without a system call (vdso(7)), and follows what
    /// disciplines it, as the kernel's stamps of frames do.
    HostWallclock(i64),
}

impl Stamps {
    #[inline(always)]
    pub(super) fn now(&self) -> Ticks {
        match self {
            Self::None => Ticks(0),
            Self::Ticks(counter) => counter.now(),
            Self::Wallclock(clock, timebase, nanos, since) => wallclock(clock, timebase, *nanos, *since),
            Self::HostWallclock(ahead) => host_wallclock(*ahead),
        }
    }
}

#[inline(never)]
fn wallclock(clock: &HostClock, timebase: &Timebase, nanos: u64, since: Ticks) -> Ticks {
    Ticks(nanos.wrapping_add(timebase.between(since, clock.now()).0))
}

#[inline(never)]
fn host_wallclock(ahead: i64) -> Ticks {
    let time = clock_gettime(ClockId::Realtime);
    Ticks((time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).wrapping_add_signed(ahead))
}

/// The moment of a poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) ticks: Ticks,
    /// The ticks are nanoseconds of the wall clock.
    pub(super) by_wall: bool,
}

/// An entry of a queue pair of raw packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) ticks: Ticks,
    /// Sends that are over when this has been polled, counted from the queue pair's start; 0 for receives.
    pub(super) release: u64,
    /// Bytes received.
    pub(super) byte_len: u32,
    /// The queue pair whose request it was.
    pub(super) qp: QpNum,
    pub(super) status: WcStatus,
}

impl Entry {
    const NONE: Self =
        Self { wr_id: 0, ticks: Ticks(0), release: 0, byte_len: 0, qp: QpNum(0), status: WcStatus::Success };

    /// The same, as a cursor shows it.
    fn completion(&self) -> Completion {
        let Self { wr_id, ticks, release, byte_len, qp: qp_num, status } = *self;
        let opcode = if release > 0 { WcOpcode::Send } else { WcOpcode::Recv };
        let values = Values { opcode: opcode.raw(), byte_len, qp_num, ticks, ..Values::default() };
        Completion::new(wr_id, status, 0, PollFields::all(), values)
    }
}

/// An entry of a queue pair on a fabric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) completion: Completion,
    /// The queue pair whose request it was.
    pub(super) qp: QpNum,
    /// Sends that are over when this has been polled, counted from the queue pair's start; 0 for receives.
    pub(super) release: u64,
}

/// A queue pair that reports here.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) qp: Arc<QpShared>,
    /// Whether its receives do.
    pub(super) receives: bool,
    /// Whether its sends do.
    pub(super) sends: bool,
}

/// What goes wrong with polls.
#[derive(Debug)]
pub(super) struct PollFaults {
    random: Random,
    spec: FaultSpec,
    /// Whether polls can find the queue busy: with wall-clock stamps.
    can_be_busy: bool,
}

impl PollFaults {
    /// `None`: nothing does.
    pub(super) fn new(spec: &FaultSpec, can_be_busy: bool) -> Option<Self> {
        let random = Random::new(!spec.seed);
        (!spec.spares_polls()).then_some(Self { random, spec: *spec, can_be_busy })
    }

    /// An entry of no request.
    fn garbage(&mut self) -> Option<Completion> {
        if !self.random.happens(self.spec.garbage) {
            return None;
        }
        let (status, opcode) = [(99, 0), (0, 200), (0, 128), (0, 0)][self.random.below(4)];
        let qp_num = QpNum(self.random.next() as u32 & 0xff_ffff);
        let values = Values { opcode, qp_num, byte_len: u32::MAX, ..Values::default() };
        Some(Completion::new(self.random.next(), WcStatus::from_raw(status), 0xbad, PollFields::all(), values))
    }
}

/// Which queue pairs report here. Changed by whoever makes or drops one.
#[derive(Debug)]
pub(super) struct Attachments {
    list: Mutex<Vec<Attached>>,
    /// Changes with every change of the list, after it.
    generation: AtomicU64,
}

impl Attachments {
    fn new() -> Self {
        Self { list: Mutex::new(Vec::new()), generation: AtomicU64::new(1) }
    }

    pub(super) fn change(&self, with: impl FnOnce(&mut Vec<Attached>)) {
        with(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// What the owner of the queue and the queue pairs that report to it share.
#[derive(Debug)]
pub(super) struct CqShared {
    pub(super) number: u32,
    depth: AtomicU32,
    /// The fields that can be read of a completion.
    fields: PollFields,
    pub(super) attachments: Arc<Attachments>,
    /// Whether any queue pair of raw packets ever reported here: then the queue is one thread's.
    raw: AtomicBool,
    pub(super) inbox: Arc<Inbox>,
    pub(super) home: Home<CqCore>,
    pub(super) device: Arc<Shared>,
}

impl CqShared {
    /// Lets a queue pair report here.
    pub(super) fn attach(&self, attached: Attached) {
        self.raw.fetch_or(attached.qp.home.is_some(), Ordering::Relaxed);
        self.attachments.change(|list| list.push(attached));
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.device.cqs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The queue itself.
#[derive(Debug)]
pub(super) struct CqCore {
    number: u32,
    depth: usize,
    /// Those of raw packets.
    ring: Ring<Entry>,
    ignore_overrun: bool,
    /// Whether it overran.
    dead: bool,
    pub(super) stamps: Stamps,
    faults: Option<PollFaults>,
    attachments: Arc<Attachments>,
    attached: Vec<Attached>,
    /// Whether any of them receives raw packets here.
    receivers: bool,
    /// Whether any that is on a fabric ever reported here.
    messages: bool,
    /// Whether sends end here some time after they were posted.
    lends: bool,
    /// Whether a poll has nothing to do before it looks at the ring, unless something has happened.
    plain: bool,
    /// Whether any of them sends here.
    senders: bool,
    inbox: Arc<Inbox>,
    generation: u64,
    /// The first to be driven by the next poll, so that none starves.
    turn: usize,
    device: Arc<Shared>,
}

impl CqCore {
    /// Adds an entry; where there is no room the queue overruns.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: Entry) {
        if self.ring.len() >= self.depth {
            if !self.ignore_overrun {
                return self.overrun();
            }
            self.ring.pop();
        }
        self.ring.push(entry);
    }

    /// Forgets the entries of a queue pair.
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

    /// The queue pairs that report to a queue that overran fail with it.
    #[cold]
    fn fail_all(&mut self) {
        self.refresh();
        for Attached { qp, .. } in &self.attached {
            match self.device.link.fabric() {
                Some(fabric) if qp.home.is_none() => fabric.fail(qp.number),
                _ if qp.fail() => self.device.raise(EventKind::QpFatal, qp.number.0),
                _ => {}
            }
        }
    }

    /// Lets a channel watch what the receives of this queue come from. `false`: not all that ends here comes from what can be
    /// watched.
    #[cold]
    fn watch(&mut self, channel: &SoftChannel) -> bool {
        self.refresh();
        let Self { attached, number, lends, .. } = self;
        attached.iter().all(|Attached { qp, receives, sends }| {
            let watch = |core: &mut QpCore| core.descriptor().is_some_and(|fd| channel.tell_by(*number, fd).is_ok());
            // What the kernel gives back after a send it does not announce.
            !(*sends && *lends) && (!receives || qp.with(Use::Visit, watch).unwrap_or(false))
        })
    }

    /// Lets connections and datagrams come in.
    #[cold]
    fn fetch(&mut self) {
        if let Some(fabric) = self.device.link.fabric() {
            fabric.drive();
        }
        if self.inbox.is_dead() {
            self.dead = true;
            self.fail_all();
        }
    }

    /// Sends up to this one are over at a queue pair.
    #[inline]
    fn release(&self, qp: QpNum, release: u64) {
        if release > 0
            && let Some(attached) = self.attached.iter().find(|attached| attached.qp.number == qp)
        {
            attached.qp.released.store(release, Ordering::Relaxed);
        }
    }

    /// A request on a fabric is over, and its place in its queue free.
    fn release_message(&self, cqe: &Cqe) {
        if cqe.release > 0 {
            self.release(cqe.qp, cqe.release);
        } else if let Some(attached) = self.attached.iter().find(|attached| attached.qp.number == cqe.qp) {
            attached.qp.polled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes entries out of the inbox, into `run` until it has `limit`.
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

    /// Brings the list of queue pairs up to date.
    #[inline]
    fn refresh(&mut self) {
        let now = self.attachments.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.reload(now);
        }
    }

    /// Copies the list, and forgets the entries of queue pairs that are gone.
    #[cold]
    fn reload(&mut self, generation: u64) {
        self.attached.clone_from(&self.attachments.list.lock().unwrap_or_else(PoisonError::into_inner));
        self.receivers = self.attached.iter().any(|attached| attached.receives && attached.qp.home.is_some());
        self.messages |= self.attached.iter().any(|attached| attached.qp.home.is_none());
        self.senders = self.attached.iter().any(|attached| attached.sends);
        self.plain = !self.messages && !self.lends && self.faults.is_none();
        self.generation = generation;
        let attached = &self.attached;
        self.ring.retain(|cqe| attached.iter().any(|other| other.qp.number == cqe.qp));
    }

    /// Whether [`CqCore::begin`] has nothing to do.
    #[inline]
    fn is_calm(&self) -> bool {
        self.plain
            && !self.dead
            && self.attachments.generation.load(Ordering::Acquire) == self.generation
            && !self.device.is_gone()
            && !(self.senders && self.has_failed_senders())
    }

    #[inline]
    fn has_failed_senders(&self) -> bool {
        self.attached.iter().any(|attached| attached.sends && attached.qp.state() == QpState::Err)
    }

    /// Gets ready to poll. `false`: the queue is busy.
    #[inline(never)]
    fn begin(&mut self) -> Result<bool, i32> {
        if self.dead || self.device.is_gone() {
            return Err(libc::EIO);
        }
        self.refresh();
        if self.messages {
            self.fetch();
            if self.dead {
                return Err(libc::EIO);
            }
        }
        if self.lends {
            self.reap();
        }
        if self.has_failed_senders() {
            self.flush_sends();
        }
        if self.faults.is_some() { self.stumble() } else { Ok(true) }
    }

    /// Takes note of the sends that are over by now.
    #[inline]
    fn reap(&mut self) {
        let Self { attached, ring, depth, stamps, .. } = self;
        for Attached { qp, .. } in attached.iter().filter(|attached| attached.sends) {
            qp.with(Use::Visit, |core| core.reap(qp, ring, *depth, stamps));
        }
    }

    /// Whether this poll goes wrong.
    #[cold]
    fn stumble(&mut self) -> Result<bool, i32> {
        let Some(PollFaults { random, spec, can_be_busy }) = &mut self.faults else { return Ok(true) };
        if random.happens(spec.poll_error) {
            self.dead = true;
            self.inbox.kill();
            return Err(libc::EIO);
        }
        if random.happens(spec.poll_invalid) {
            return Err(libc::EINVAL);
        }
        Ok(!(*can_be_busy && random.happens(spec.busy)))
    }

    /// Flushes the sends that wait at queue pairs that failed while they received.
    #[cold]
    fn flush_sends(&mut self) {
        for index in 0..self.attached.len() {
            let Attached { qp, sends, .. } = self.attached[index].clone();
            if sends && qp.state() == QpState::Err {
                while let Some(cqe) = qp.with(Use::Visit, |core| core.flush_one(&qp)).flatten() {
                    self.push(cqe);
                }
            }
        }
    }

    /// Takes the oldest entry off.
    #[inline]
    fn pop(&mut self) -> Option<Entry> {
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
        // Sends come mostly of one queue pair: the last of its entries says of all of them what is over.
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
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, i32> {
        run.clear();
        let limit = limit.min(RUN);
        if !self.is_calm() && !self.begin()? {
            return Ok(0);
        }
        if self.plain {
            if !self.ring.is_empty() {
                self.pop_into(run, limit);
            }
            if run.len == 0 && self.receivers && limit > 0 {
                let now = self.now();
                if !self.receive_alone(run, limit, now) {
                    self.drive(limit, Some(run), now);
                }
            } else if run.len < limit && self.receivers {
                let now = self.now();
                self.drive(limit, Some(run), now);
            }
        } else {
            self.poll_specially(run, limit);
        }
        if self.dead {
            run.clear();
            return Err(libc::EIO);
        }
        Ok(run.len)
    }

    /// A run of a queue that has more than raw packets of its own, or faults.
    fn poll_specially(&mut self, run: &mut Completions, limit: usize) {
        if let Some(it) = self.faults.as_mut().and_then(PollFaults::garbage).filter(|_| limit > 0) {
            run.push(it.wr_id, it.status, it.byte_len().unwrap_or(0), it.raw_ticks());
        }
        self.pop_into(run, limit);
        if self.messages && run.len < limit {
            self.collect(run, limit);
        }
        if run.len < limit && self.receivers {
            let now = self.now();
            self.drive(limit, Some(run), now);
        }
    }

    /// The clock. A poll looks at it when it lets queue pairs receive, and once.
    #[inline]
    fn now(&self) -> Now {
        Now {
            ticks: self.stamps.now(),
            by_wall: matches!(self.stamps, Stamps::Wallclock(..) | Stamps::HostWallclock(_)),
        }
    }

    /// Lets the one queue pair that reports here receive into an empty run. `false`: there are others, or it needs
    /// [`CqCore::drive`]. Nothing is in the ring.
    #[inline]
    fn receive_alone(&mut self, run: &mut Completions, limit: usize, now: Now) -> bool {
        let [Attached { qp, receives: true, .. }] = &*self.attached else { return false };
        let depth = self.depth;
        let received =
            qp.with(Use::MoveIn, |core| !core.overruns(qp, depth) && core.receive_run(qp, run, limit, now, true));
        received == Some(true)
    }

    /// Lets the queue pairs receive: into `run` until it has `limit` entries, or into the ring until that has.
    #[inline(never)]
    fn drive(&mut self, limit: usize, mut run: Option<&mut Completions>, now: Now) {
        let count = self.attached.len();
        for step in 0..count {
            let turn = if self.turn + step < count { self.turn + step } else { self.turn + step - count };
            let has = run.as_ref().map_or(self.ring.len(), |run| run.len);
            let room = self.depth - self.ring.len();
            let Self { attached, ring, ignore_overrun, .. } = &mut *self;
            let Attached { qp, receives: true, .. } = &attached[turn] else { continue };
            if has >= limit {
                break;
            }
            let overran = qp.with(Use::MoveIn, |core| {
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
                // Entries over entries: the oldest are lost, and with them the receives that they tell of.
                let excess = self.ring.len().saturating_sub(self.depth);
                self.ring.advance(excess);
            }
            if let Some(run) = run.as_deref_mut() {
                self.pop_into(run, limit);
            }
        }
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
    }

    /// The next entry, with everything in it.
    fn next(&mut self) -> Result<Option<Completion>, i32> {
        if self.dead {
            return Err(libc::EIO);
        }
        if let Some(it) = self.faults.as_mut().and_then(PollFaults::garbage) {
            return Ok(Some(it));
        }
        if self.messages
            && let Some(cqe) = self.inbox.pop()
        {
            self.release_message(&cqe);
            return Ok(Some(cqe.completion));
        }
        if self.ring.is_empty() && self.receivers {
            let now = self.now();
            self.drive(CURSOR_RUN, None, now);
            if self.dead {
                return Err(libc::EIO);
            }
        }
        Ok(self.pop().map(|entry| entry.completion()))
    }
}

impl CqCore {
    /// The next entry of a poll that goes on.
    fn go_on(&mut self) -> Result<Option<Completion>, i32> {
        if let Some(PollFaults { random, spec, .. }) = &mut self.faults
            && random.happens(spec.poll_error)
        {
            self.dead = true;
            self.inbox.kill();
        }
        self.next()
    }
}

/// How many entries a cursor lets come in at a time.
const CURSOR_RUN: usize = 64;

/// When an armed queue is told of that cannot be watched: as long as a packet may wait.
const NAP: Duration = Duration::from_micros(50);
/// When an armed queue is told of while the link is down. One that comes up again may have other descriptors.
const DOWN: Duration = Duration::from_millis(20);

/// A completion queue of the software device.
#[derive(Debug)]
pub struct SoftCq(pub(super) Arc<CqShared>, PhantomData<Cell<()>>);

impl SoftCq {
    /// Makes one of a checked size.
    pub(super) fn new(
        device: &Arc<Shared>,
        depth: u32,
        fields: PollFields,
        ignore_overrun: bool,
        stamps: Stamps,
        faults: Option<PollFaults>,
        channel: Option<SoftChannel>,
    ) -> Self {
        let number = device.number();
        let attachments = Arc::new(Attachments::new());
        let forgiving = device.spec.profile == Profile::Rxe;
        let inbox = Inbox::new(number, depth as usize, ignore_overrun, forgiving, stamps.clone(), channel);
        let inbox = Arc::new(inbox);
        let core = CqCore {
            number,
            depth: depth as usize,
            ring: Ring::new(depth as usize, Entry::NONE),
            ignore_overrun,
            dead: false,
            stamps,
            faults,
            attachments: attachments.clone(),
            attached: Vec::new(),
            receivers: false,
            messages: false,
            lends: device.link.lends(),
            plain: false,
            senders: false,
            inbox: inbox.clone(),
            generation: 0,
            turn: 0,
            device: device.clone(),
        };
        let shared = CqShared {
            number,
            depth: AtomicU32::new(depth),
            fields,
            attachments,
            raw: AtomicBool::new(false),
            inbox,
            home: Home::new(core),
            device: device.clone(),
        };
        Self(Arc::new(shared), PhantomData)
    }

    #[inline]
    fn with<R>(&self, verb: &'static str, work: impl FnOnce(&mut CqCore) -> Result<R, i32>) -> Result<R, VerbError> {
        let kind = if self.0.raw.load(Ordering::Relaxed) { Use::MoveIn } else { Use::Visit };
        // EBUSY: another thread lives here.
        self.0.home.with(kind, work).unwrap_or(Err(libc::EBUSY)).map_err(|errno| VerbError::new(verb, errno))
    }
}

/// The cursor of a [`SoftCq`].
#[derive(Debug)]
pub struct SoftCursor<'cq> {
    cq: &'cq mut SoftCq,
    current: Completion,
}

impl Cursor for SoftCursor<'_> {
    fn get(&self) -> Completion {
        self.current.only(self.cq.0.fields)
    }

    fn advance(&mut self) -> Result<bool, VerbError> {
        let next = self.cq.with("ibv_next_poll", CqCore::go_on)?;
        self.current = next.unwrap_or(self.current);
        Ok(next.is_some())
    }
}

impl CompletionQueue for SoftCq {
    type Cursor<'cq> = SoftCursor<'cq>;

    fn number(&self) -> u32 {
        self.0.number
    }

    fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    fn start_poll(&mut self) -> Result<Option<SoftCursor<'_>>, VerbError> {
        let first = self.with("ibv_start_poll", |core| if core.begin()? { core.next() } else { Ok(None) })?;
        Ok(first.map(|current| SoftCursor { cq: self, current }))
    }

    #[inline]
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        let polled = self.with("ibv_start_poll", |core| core.poll_run(run, limit));
        if polled.is_err() {
            run.clear();
        }
        polled
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError> {
        let refused = |errno| VerbError::new("ibv_req_notify_cq", errno);
        if self.0.device.is_gone() {
            return Err(refused(libc::EIO));
        }
        let channel = self.0.inbox.channel().ok_or(refused(libc::EINVAL))?;
        if !self.0.raw.load(Ordering::Relaxed) {
            self.0.inbox.arm(solicited_only);
            return Ok(());
        }
        // Entries come in only by polling.
        let watched = self.0.home.with(Use::Visit, |core| core.watch(channel)).unwrap_or(false);
        match (self.0.device.is_up(), watched) {
            (true, true) => {}
            (true, false) => channel.tell_after(self.0.number, NAP),
            (false, _) => channel.tell_after(self.0.number, DOWN),
        }
        Ok(())
    }

    fn resize(&mut self, depth: u32) -> Result<u32, VerbError> {
        let (device, inbox) = (&self.0.device, &self.0.inbox);
        let most = device.spec.limits.max_cqe;
        let rounded = device.spec.profile.slots(depth);
        let resized = self.with("ibv_resize_cq", |core| {
            if device.is_gone() {
                return Err(libc::EIO);
            }
            let fits = (1..=most).contains(&depth) && core.ring.len() <= rounded as usize;
            if !fits || !inbox.resize(rounded as usize) {
                return Err(libc::EINVAL);
            }
            core.depth = rounded as usize;
            Ok(rounded)
        })?;
        self.0.depth.store(resized, Ordering::Relaxed);
        Ok(resized)
    }
}
