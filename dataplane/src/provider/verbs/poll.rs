//! Polling, by either interface.
//!
//! What a cursor shows was copied before: between start and end a driver holds the queue's lock, and a program that
//! posts in between would wait for itself. So a poll is started and ended here, within one call, whoever asks.
#![allow(unsafe_code)]

use std::ffi::c_int;

use ibverbs_sys::ibv_wc_status::IBV_WC_SUCCESS;
use ibverbs_sys::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info};

use super::cq::{Handle, Poller, Reads, VerbsCq};
use super::ffi::{self, Wc};
use crate::clock::ClockSource;
use crate::error::VerbError;
use crate::provider::completion::Values;
use crate::provider::{
    Completion, CompletionQueue, Completions, Cursor, PollFields, RUN, TagInfo, WcFlags, WcOpcode, WcStatus,
};
use crate::units::{Nanos, QpNum, Ticks};

/// How many completions are copied ahead for a cursor.
const AHEAD: usize = 32;

/// Completions that were copied for a cursor, and which of them is next.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    list: Vec<Completion>,
    next: usize,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.next >= self.list.len()
    }
}

/// What a walk came to.
struct Walked {
    /// How many completions there were.
    taken: usize,
    /// What the driver said when it was asked for one more; 0: it was not.
    answer: c_int,
}

impl Walked {
    /// Whether the queue broke. What was taken before holds.
    fn result(&self) -> Result<(), VerbError> {
        let verb = if self.taken == 0 { "ibv_start_poll" } else { "ibv_next_poll" };
        match self.answer {
            // A wall clock that cannot be read at once is busy: there is nothing yet.
            0 | libc::ENOENT | libc::EBUSY | libc::EAGAIN => Ok(()),
            // Less than 0: the driver says that the queue is broken.
            error => Err(VerbError::new(verb, error.max(0))),
        }
    }
}

/// Polls once: gives up to `limit` completions with their numbers to `take`, which may read what is under the cursor. A
/// start that failed is not ended; a next that failed is.
///
/// # Safety
/// The queue is alive and extended, and nobody else polls it.
#[inline]
unsafe fn walk(cq: *mut ibv_cq_ex, limit: usize, mut take: impl FnMut(usize, u64, u32)) -> Walked {
    if limit == 0 {
        return Walked { taken: 0, answer: 0 };
    }
    // SAFETY: the caller's promise; each call comes when the man page wants it. That the driver has these was seen when the
    // queue was created.
    unsafe {
        let answer = ffi::ibv_start_poll(cq, &mut ibv_poll_cq_attr::default());
        if answer != 0 {
            return Walked { taken: 0, answer };
        }
        let mut taken = 0;
        loop {
            let (wr_id, status) = ffi::wc_id_and_status(cq);
            take(taken, wr_id, status);
            taken += 1;
            if taken >= limit {
                ffi::ibv_end_poll(cq);
                return Walked { taken, answer: 0 };
            }
            let answer = ffi::ibv_next_poll(cq);
            if answer != 0 {
                end_early(cq);
                return Walked { taken, answer };
            }
        }
    }
}

/// Ends a poll that found no more. Kept apart, so that a full one does not ask twice how it ended.
///
/// # Safety
/// As of `ibv_end_poll`.
#[inline(never)]
unsafe fn end_early(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    unsafe { ffi::ibv_end_poll(cq) };
}

/// The same by walks of one completion each.
///
/// # Safety
/// As of [`walk`].
unsafe fn walk_single(cq: *mut ibv_cq_ex, limit: usize, mut take: impl FnMut(usize, u64, u32)) -> Walked {
    let mut taken = 0;
    loop {
        // SAFETY: the caller's promise.
        let one = unsafe { walk(cq, limit.min(1), |_, wr_id, status| take(taken, wr_id, status)) };
        taken += one.taken;
        if one.taken == 0 || taken == limit {
            return Walked { taken, ..one };
        }
    }
}

/// All that was asked for of the completion under the cursor.
///
/// # Safety
/// A poll of the queue has a completion, and the queue was created with these fields.
unsafe fn read(cq: *mut ibv_cq_ex, handle: &Handle, fields: PollFields, wr_id: u64, status: u32) -> Completion {
    let status = WcStatus::from_raw(status);
    let mut values = Values::default();
    let has = |field| fields.contains(field);
    // SAFETY: the caller's promise. Readers exist for every field that was granted; what has none stays 0.
    unsafe {
        if status != WcStatus::Success {
            let vendor_err = ffi::ibv_wc_read_vendor_err(cq).unwrap_or(0);
            values.qp_num = QpNum(ffi::ibv_wc_read_qp_num(cq).unwrap_or(0));
            handle.suspect(values.qp_num.0);
            return Completion::new(wr_id, status, vendor_err, fields, values);
        }
        values.opcode = ffi::ibv_wc_read_opcode(cq).unwrap_or(0);
        values.flags = handle.flags(ffi::ibv_wc_read_wc_flags(cq).unwrap_or(0));
        if has(PollFields::BYTE_LEN) {
            values.byte_len = ffi::ibv_wc_read_byte_len(cq).unwrap_or(0);
        }
        if has(PollFields::IMM) && values.flags.contains(WcFlags::WITH_INV) {
            values.imm = ffi::ibv_wc_read_invalidated_rkey(cq).unwrap_or(0);
        } else if has(PollFields::IMM) && values.flags.contains(WcFlags::WITH_IMM) {
            values.imm = ffi::ibv_wc_read_imm_data(cq).unwrap_or(0);
        }
        // The tag of a flow rule has the place of the number.
        let tagged = has(PollFields::FLOW_TAG) && WcOpcode::from_raw(values.opcode).is_receive();
        if has(PollFields::QP_NUM) && !tagged {
            values.qp_num = QpNum(ffi::ibv_wc_read_qp_num(cq).unwrap_or(0));
        }
        if has(PollFields::SRC_QP) {
            values.src_qp = QpNum(ffi::ibv_wc_read_src_qp(cq).unwrap_or(0));
        }
        if has(PollFields::SLID) {
            values.slid = ffi::ibv_wc_read_slid(cq).unwrap_or(0);
        }
        if has(PollFields::SL) {
            values.sl = ffi::ibv_wc_read_sl(cq).unwrap_or(0);
        }
        if has(PollFields::DLID_PATH_BITS) {
            values.dlid_path_bits = ffi::ibv_wc_read_dlid_path_bits(cq).unwrap_or(0);
        }
        if has(PollFields::TIMESTAMP) {
            values.ticks = Ticks(ffi::ibv_wc_read_completion_ts(cq).unwrap_or(0));
        }
        if has(PollFields::WALLCLOCK) {
            values.wallclock = Nanos(ffi::ibv_wc_read_completion_wallclock_ns(cq).unwrap_or(0));
        }
        if has(PollFields::CVLAN) {
            values.cvlan = ffi::ibv_wc_read_cvlan(cq).unwrap_or(0);
        }
        if has(PollFields::FLOW_TAG) {
            values.flow_tag = ffi::ibv_wc_read_flow_tag(cq).unwrap_or(0);
        }
        if has(PollFields::TM_INFO) {
            let mut info = ibv_wc_tm_info::default();
            let _ = ffi::ibv_wc_read_tm_info(cq, &mut info);
            values.tag = TagInfo { tag: info.tag, private: info.priv_ };
        }
    }
    Completion::new(wr_id, status, 0, fields, values)
}

/// The same of a classic completion.
fn copy(wc: &Wc, handle: &Handle, fields: PollFields) -> Completion {
    let status = WcStatus::from_raw(wc.status);
    let failed = status != WcStatus::Success;
    let mut values = Values { qp_num: QpNum(wc.qp_num), ..Values::default() };
    if failed {
        handle.suspect(wc.qp_num);
    } else {
        values = Values {
            opcode: wc.opcode,
            flags: handle.flags(wc.wc_flags),
            byte_len: wc.byte_len,
            imm: wc.imm_data,
            src_qp: QpNum(wc.src_qp),
            slid: wc.slid.into(),
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
            ..values
        };
    }
    Completion::new(wc.wr_id, status, if failed { wc.vendor_err } else { 0 }, fields, values)
}

/// Polls into a run, which is empty. `read` puts down length and time of the completion under the cursor.
///
/// # Safety
/// As of [`walk`].
#[inline]
unsafe fn walk_run(
    handle: &Handle,
    run: &mut Completions,
    limit: usize,
    read: impl Fn(*mut ibv_cq_ex, &mut u32, &mut Ticks),
) -> Walked {
    let cq = handle.raw_ex();
    // SAFETY: the caller's promise. The cursor is at a completion.
    let walked = unsafe {
        walk(cq, limit, |at, wr_id, status| {
            run.wr_id[at] = wr_id;
            match status {
                IBV_WC_SUCCESS => read(cq, &mut run.byte_len[at], &mut run.ticks[at]),
                _ => fail(cq, handle, run, at, status),
            }
        })
    };
    run.len = walked.taken;
    walked
}

/// The completion under the cursor is the number `at` of a run, and failed: it has neither length nor time.
///
/// # Safety
/// A poll of the queue has a completion.
#[cold]
unsafe fn fail(cq: *mut ibv_cq_ex, handle: &Handle, run: &mut Completions, at: usize, status: u32) {
    if !run.failed {
        run.status.fill(WcStatus::Success);
        run.failed = true;
    }
    run.status[at] = WcStatus::from_raw(status);
    run.byte_len[at] = 0;
    run.ticks[at] = Ticks(0);
    // SAFETY: the caller's promise.
    handle.suspect(unsafe { ffi::ibv_wc_read_qp_num(cq) }.unwrap_or(0));
}

impl VerbsCq {
    /// Whether it may be polled by this thread, at all.
    #[inline]
    fn begin(&self) -> Result<(), VerbError> {
        if let Poller::Broken(error) = self.poller {
            return Err(error);
        }
        // EBUSY: it has no lock, and another thread polls it.
        if self.handle.owner.claim() { Ok(()) } else { Err(VerbError::new("ibv_start_poll", libc::EBUSY)) }
    }

    /// What a poll came to. A queue that is broken stays so; what was had before it broke is given out first.
    #[inline]
    fn finish(&mut self, result: Result<(), VerbError>, taken: usize) -> Result<usize, VerbError> {
        match result {
            Ok(()) => Ok(taken),
            Err(error) => self.died(error, taken),
        }
    }

    #[cold]
    fn died(&mut self, error: VerbError, taken: usize) -> Result<usize, VerbError> {
        // A driver that says only "broken" gives no errno.
        let errno = if error.errno == 0 { libc::EIO } else { error.errno };
        let error = VerbError { errno, ..error };
        tracing::error!(device = self.handle.context().name, cq = self.handle.number(), "{error}");
        self.poller = Poller::Broken(error);
        if taken > 0 { Ok(taken) } else { Err(error) }
    }

    /// Copies what has completed, for a cursor. Whether there is something.
    fn fill(&mut self) -> Result<bool, VerbError> {
        self.begin()?;
        let Self { handle, poller, fields, waiting, .. } = self;
        waiting.list.clear();
        waiting.next = 0;
        waiting.list.reserve(AHEAD);
        let single = matches!(poller, Poller::Single);
        let result = match poller {
            Poller::Classic(wcs) => {
                // SAFETY: the queue is alive, and it is this thread's.
                let polled = unsafe { ffi::ibv_poll_cq(handle.raw(), &mut wcs[..AHEAD]) };
                polled.map(|n| waiting.list.extend(wcs[..n].iter().map(|wc| copy(wc, handle, *fields))))
            }
            Poller::Extended(_) | Poller::Single => {
                let cq = handle.raw_ex();
                let take = |_, wr_id, status| {
                    // SAFETY: the cursor is at a completion, and the fields were granted.
                    waiting.list.push(unsafe { read(cq, handle, *fields, wr_id, status) });
                };
                // SAFETY: the queue is alive, extended, and this thread's.
                unsafe { if single { walk_single(cq, AHEAD, take) } else { walk(cq, AHEAD, take) } }.result()
            }
            Poller::Broken(error) => Err(*error),
        };
        let taken = self.waiting.list.len();
        self.finish(result, taken).map(|taken| taken > 0)
    }

    /// What a cursor left, or would be shown.
    fn hand_over(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        if self.waiting.is_empty() && !self.fill()? {
            return Ok(0);
        }
        let Waiting { list, next } = &mut self.waiting;
        for completion in list.iter().skip(*next).take(limit) {
            let ticks = match self.stamps {
                ClockSource::DeviceWallclock => completion.wallclock().map(|nanos| Ticks(nanos.0)),
                _ => completion.ticks(),
            };
            let byte_len = completion.byte_len().unwrap_or(0);
            run.push(completion.wr_id, completion.status, byte_len, ticks.unwrap_or(Ticks(0)));
        }
        *next += run.len;
        Ok(run.len)
    }

    /// A walk ended before its limit: mostly as there is no more.
    #[inline(never)]
    fn ended(&mut self, taken: usize, answer: c_int) -> Result<usize, VerbError> {
        self.finish(Walked { taken, answer }.result(), taken)
    }

    /// Polls a queue that is not an extended one with nothing left by a cursor.
    #[inline(never)]
    fn run_other(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        if !self.waiting.is_empty() {
            return self.hand_over(run, limit);
        }
        self.begin()?;
        match &mut self.poller {
            Poller::Classic(wcs) => {
                let result = Self::run_classic(&self.handle, wcs, run, limit);
                self.finish(result, run.len)
            }
            _ => self.hand_over(run, limit),
        }
    }

    fn run_classic(handle: &Handle, wcs: &mut [Wc], run: &mut Completions, limit: usize) -> Result<(), VerbError> {
        // SAFETY: the queue is alive, and it is this thread's.
        let n = unsafe { ffi::ibv_poll_cq(handle.raw(), &mut wcs[..limit]) }?;
        for wc in &wcs[..n] {
            let status = WcStatus::from_raw(wc.status);
            if status == WcStatus::Success {
                run.push(wc.wr_id, status, wc.byte_len, Ticks(0));
            } else {
                handle.suspect(wc.qp_num);
                run.push(wc.wr_id, status, 0, Ticks(0));
            }
        }
        Ok(())
    }
}

impl CompletionQueue for VerbsCq {
    type Cursor<'cq> = VerbsCursor<'cq>;

    fn number(&self) -> u32 {
        self.handle.number()
    }

    fn depth(&self) -> u32 {
        // SAFETY: the queue is alive; only `resize`, by `&mut`, changes this member.
        u32::try_from(unsafe { (*self.handle.raw()).cqe }).unwrap_or(0)
    }

    fn start_poll(&mut self) -> Result<Option<VerbsCursor<'_>>, VerbError> {
        let some = !self.waiting.is_empty() || self.fill()?;
        Ok(some.then_some(VerbsCursor(self)))
    }

    #[inline]
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        run.clear();
        let limit = limit.min(RUN);
        let Poller::Extended(reads) = self.poller else { return self.run_other(run, limit) };
        if !self.waiting.is_empty() || !self.handle.owner.claim() {
            return self.run_other(run, limit);
        }
        let Self { handle, fields, .. } = self;
        let has = |field| fields.contains(field);
        // A loop of its own for what is mostly asked for.
        // SAFETY: the queue is alive, extended, and this thread's; what was granted is read, at a completion.
        let walked = unsafe {
            match reads {
                Reads::LengthAndTicks => walk_run(handle, run, limit, |cq, byte_len, ticks| {
                    *byte_len = ffi::wc_byte_len(cq);
                    *ticks = Ticks(ffi::wc_completion_ts(cq));
                }),
                Reads::Length => walk_run(handle, run, limit, |cq, byte_len, ticks| {
                    *byte_len = ffi::wc_byte_len(cq);
                    *ticks = Ticks(0);
                }),
                Reads::Other => walk_run(handle, run, limit, |cq, byte_len, ticks| {
                    *byte_len = if has(PollFields::BYTE_LEN) { ffi::wc_byte_len(cq) } else { 0 };
                    *ticks = Ticks(match () {
                        () if has(PollFields::WALLCLOCK) => ffi::ibv_wc_read_completion_wallclock_ns(cq).unwrap_or(0),
                        () if has(PollFields::TIMESTAMP) => ffi::wc_completion_ts(cq),
                        () => 0,
                    });
                }),
            }
        };
        if walked.answer == 0 { Ok(walked.taken) } else { self.ended(walked.taken, walked.answer) }
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError> {
        if self.handle.channel().is_none() {
            return Err(VerbError::new("ibv_req_notify_cq", libc::EINVAL));
        }
        self.begin()?;
        // SAFETY: the queue is alive.
        unsafe { ffi::ibv_req_notify_cq(self.handle.raw(), solicited_only.into()) }
    }

    fn resize(&mut self, depth: u32) -> Result<u32, VerbError> {
        const VERB: &str = "ibv_resize_cq";
        self.begin()?;
        let cqe = c_int::try_from(depth).ok().filter(|_| (1..=self.handle.context().limits.max_cqe()).contains(&depth));
        let cqe = cqe.ok_or(VerbError::new(VERB, libc::EINVAL))?;
        // SAFETY: the queue is alive, and it is this thread's.
        unsafe { ffi::ibv_resize_cq(self.handle.raw(), cqe) }?;
        Ok(self.depth())
    }
}

/// The cursor of a [`VerbsCq`].
#[derive(Debug)]
pub struct VerbsCursor<'cq>(&'cq mut VerbsCq);

impl Cursor for VerbsCursor<'_> {
    fn get(&self) -> Completion {
        let Waiting { list, next } = &self.0.waiting;
        // After the last it stays there.
        list[(*next).min(list.len() - 1)]
    }

    fn advance(&mut self) -> Result<bool, VerbError> {
        let waiting = &mut self.0.waiting;
        if waiting.is_empty() {
            return Ok(false);
        }
        let last = waiting.list[waiting.next];
        waiting.next += 1;
        if !waiting.is_empty() {
            return Ok(true);
        }
        let more = self.0.fill();
        if self.0.waiting.list.is_empty() {
            self.0.waiting = Waiting { list: vec![last], next: 1 };
        }
        more
    }
}

impl Drop for VerbsCursor<'_> {
    fn drop(&mut self) {
        // What was shown is over.
        let waiting = &mut self.0.waiting;
        waiting.next = (waiting.next + 1).min(waiting.list.len());
    }
}
