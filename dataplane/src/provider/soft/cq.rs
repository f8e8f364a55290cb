//! Completion queues. Polling one is what makes the device receive: it has no engine of its own.

use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{HostClock, Timebase};
use crate::error::VerbError;
use crate::provider::soft::counter::Counter;
use crate::provider::soft::device::Shared;
use crate::provider::soft::fault::Random;
use crate::provider::soft::home::{Home, Use};
use crate::provider::soft::qp::QpShared;
use crate::provider::{Completion, CompletionQueue, Completions, Cursor, EventKind, PollFields, QpState, RUN};
use crate::units::{QpNum, Ticks};

/// What the stamps of a queue are.
#[derive(Clone, Debug)]
pub(super) enum Stamps {
    None,
    /// The device's counter.
    Ticks(Arc<Counter>),
    /// Nanoseconds: what they were when the clock showed those ticks, and how ticks become nanoseconds.
    Wallclock(HostClock, Timebase, u64, Ticks),
}

impl Stamps {
    #[inline]
    pub(super) fn now(&self) -> Ticks {
        match self {
            Self::None => Ticks(0),
            Self::Ticks(counter) => counter.now(),
            Self::Wallclock(clock, timebase, nanos, since) => {
                Ticks(nanos.wrapping_add(timebase.between(*since, clock.now()).0))
            }
        }
    }
}

/// An entry.
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
    pub(super) depth: u32,
    /// The fields that can be read of a completion.
    fields: PollFields,
    pub(super) attachments: Arc<Attachments>,
    pub(super) home: Home<CqCore>,
    pub(super) device: Arc<Shared>,
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
    ring: VecDeque<Cqe>,
    ignore_overrun: bool,
    /// Whether it overran.
    dead: bool,
    pub(super) stamps: Stamps,
    busy: Option<(Random, f64)>,
    attachments: Arc<Attachments>,
    attached: Vec<Attached>,
    /// Whether any of them receives here.
    receivers: bool,
    generation: u64,
    /// The first to be driven by the next poll, so that none starves.
    turn: usize,
    device: Arc<Shared>,
}

impl CqCore {
    /// Adds an entry; where there is no room the queue overruns.
    pub(super) fn push(&mut self, cqe: Cqe) {
        if self.ring.len() >= self.depth {
            if !self.ignore_overrun {
                return self.overrun();
            }
            self.ring.pop_front();
        }
        self.ring.push_back(cqe);
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
        self.device.raise(EventKind::CqErr, self.number);
        self.refresh();
        for attached in &self.attached {
            if attached.qp.fail() {
                self.device.raise(EventKind::QpFatal, attached.qp.number.0);
            }
        }
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
        self.receivers = self.attached.iter().any(|attached| attached.receives);
        self.generation = generation;
        let attached = &self.attached;
        self.ring.retain(|cqe| attached.iter().any(|other| other.qp.number == cqe.qp));
    }

    /// Gets ready to poll. `false`: the queue is busy.
    #[inline]
    fn begin(&mut self) -> Result<bool, i32> {
        if self.dead || self.device.is_gone() {
            return Err(libc::EIO);
        }
        self.refresh();
        if self.attached.iter().any(|attached| attached.sends && attached.qp.state() == QpState::Err) {
            self.flush_sends();
        }
        Ok(!self.busy.as_mut().is_some_and(|(random, odds)| random.happens(*odds)))
    }

    /// Flushes the sends that wait at queue pairs that failed while they received.
    #[cold]
    fn flush_sends(&mut self) {
        for index in 0..self.attached.len() {
            let Attached { qp, sends, .. } = self.attached[index].clone();
            if sends && qp.state() == QpState::Err {
                while let Some(cqe) = qp.home.with(Use::Visit, |core| core.flush_one(&qp)).flatten() {
                    self.push(cqe);
                }
            }
        }
    }

    /// Takes the oldest entry off.
    #[inline]
    fn pop(&mut self) -> Option<Completion> {
        let cqe = self.ring.pop_front()?;
        if cqe.release > 0
            && let Some(attached) = self.attached.iter().find(|attached| attached.qp.number == cqe.qp)
        {
            attached.qp.released.store(cqe.release, Ordering::Relaxed);
        }
        Some(cqe.completion)
    }

    #[inline]
    fn pop_into(&mut self, run: &mut Completions, limit: usize) {
        while run.len < limit && !self.ring.is_empty() {
            let Some(it) = self.pop() else { return };
            run.push(it.wr_id, it.status, it.byte_len().unwrap_or(0), it.raw_ticks());
        }
    }

    #[inline]
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, i32> {
        run.clear();
        if !self.begin()? {
            return Ok(0);
        }
        let limit = limit.min(RUN);
        self.pop_into(run, limit);
        if run.len < limit && self.receivers {
            self.drive(limit, Some(run));
            if self.dead {
                run.clear();
                return Err(libc::EIO);
            }
        }
        Ok(run.len)
    }

    /// Lets the queue pairs receive: into `run` until it has `limit` entries, or into the ring until that has.
    fn drive(&mut self, limit: usize, mut run: Option<&mut Completions>) {
        // Here alone does a poll look at the clock, and once.
        let ticks = self.stamps.now();
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
            let overran = qp.home.with(Use::MoveIn, |core| {
                if core.overruns(qp, room) {
                    if *ignore_overrun {
                        core.receive(qp, ring, usize::MAX, ticks);
                    }
                    return true;
                }
                let direct = run.as_deref_mut().is_some_and(|run| core.receive_run(qp, run, limit, ticks));
                if !direct {
                    core.receive(qp, ring, room.min(limit - has), ticks);
                }
                false
            });
            if overran == Some(true) {
                if !self.ignore_overrun {
                    return self.overrun();
                }
                // Entries over entries: the oldest are lost, and with them the receives that they tell of.
                let excess = self.ring.len().saturating_sub(self.depth);
                self.ring.drain(..excess);
            }
            if let Some(run) = run.as_deref_mut() {
                self.pop_into(run, limit);
            }
        }
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
    }

    /// The next entry, with everything in it.
    fn next(&mut self) -> Result<Option<Completion>, i32> {
        if self.ring.is_empty() && self.receivers {
            self.drive(CURSOR_RUN, None);
            if self.dead {
                return Err(libc::EIO);
            }
        }
        Ok(self.pop())
    }
}

/// How many entries a cursor lets come in at a time.
const CURSOR_RUN: usize = 64;

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
        busy: Option<(Random, f64)>,
    ) -> Self {
        let number = device.number();
        let attachments = Arc::new(Attachments::new());
        let core = CqCore {
            number,
            depth: depth as usize,
            ring: VecDeque::with_capacity(depth as usize),
            ignore_overrun,
            dead: false,
            stamps,
            busy,
            attachments: attachments.clone(),
            attached: Vec::new(),
            receivers: false,
            generation: 0,
            turn: 0,
            device: device.clone(),
        };
        let shared = CqShared { number, depth, fields, attachments, home: Home::new(core), device: device.clone() };
        Self(Arc::new(shared), PhantomData)
    }

    #[inline]
    fn with<R>(&self, verb: &'static str, work: impl FnOnce(&mut CqCore) -> Result<R, i32>) -> Result<R, VerbError> {
        // EBUSY: another thread lives here.
        self.0.home.with(Use::MoveIn, work).unwrap_or(Err(libc::EBUSY)).map_err(|errno| VerbError::new(verb, errno))
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
        let next = self.cq.with("ibv_next_poll", CqCore::next)?;
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
        self.0.depth
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

    fn arm(&mut self, _solicited_only: bool) -> Result<(), VerbError> {
        Err(VerbError::new("ibv_req_notify_cq", libc::EOPNOTSUPP))
    }

    fn resize(&mut self, _depth: u32) -> Result<u32, VerbError> {
        Err(VerbError::new("ibv_resize_cq", libc::EOPNOTSUPP))
    }
}
