//! Polling, by either interface.
//!
//! What a cursor shows was copied before: between start and end a driver holds the queue's lock, and a program that
//! posts in between would wait for itself. So a poll is started and ended here, within one call, whoever asks.
#![allow(unsafe_code)]

use std::ffi::c_int;

use ibverbs_sys::{ibv_cq_ex, ibv_wc_tm_info};

use super::cq::{Handle, Poller, VerbsCq};
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

/// Starts a poll; whether there is something. A wall clock that cannot be read at once is busy: there is nothing yet.
///
/// # Safety
/// As of `ibv_start_poll`.
#[inline]
unsafe fn start(cq: *mut ibv_cq_ex) -> Result<bool, VerbError> {
    // SAFETY: the caller's promise.
    match unsafe { ffi::ibv_start_poll(cq) } {
        Err(VerbError { errno: libc::EBUSY | libc::EAGAIN, .. }) => Ok(false),
        answer => answer,
    }
}

/// Gives up to `limit` completions to `take`, which may read what is under the cursor. `single`: one between each start
/// and end. A start that failed is not ended; a next that failed is.
///
/// # Errors
/// The queue is broken. What was taken before holds.
///
/// # Safety
/// The queue is alive, extended, and nobody else polls it.
#[inline]
unsafe fn walk(
    cq: *mut ibv_cq_ex,
    single: bool,
    limit: usize,
    mut take: impl FnMut(*mut ibv_cq_ex, u64, u32),
) -> Result<(), VerbError> {
    // SAFETY: the caller's promise; each call comes when the man page wants it.
    unsafe {
        if limit == 0 || !start(cq)? {
            return Ok(());
        }
        for taken in 1.. {
            let (wr_id, status) = ffi::wc_id_and_status(cq);
            take(cq, wr_id, status);
            if taken == limit {
                break;
            }
            if single {
                let _ = ffi::ibv_end_poll(cq);
                if !start(cq)? {
                    return Ok(());
                }
                continue;
            }
            match ffi::ibv_next_poll(cq) {
                Ok(true) => {}
                Ok(false) | Err(VerbError { errno: libc::EBUSY | libc::EAGAIN, .. }) => break,
                Err(error) => {
                    let _ = ffi::ibv_end_poll(cq);
                    return Err(error);
                }
            }
        }
        // A queue without this function has no start either.
        let _ = ffi::ibv_end_poll(cq);
    }
    Ok(())
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

impl VerbsCq {
    /// Whether it may be polled by this thread, at all.
    #[inline]
    fn begin(&self) -> Result<(), VerbError> {
        if let Some(error) = self.dead {
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
        self.dead = Some(error);
        if taken > 0 { Ok(taken) } else { Err(error) }
    }

    /// Copies what has completed, for a cursor. Whether there is something.
    fn fill(&mut self) -> Result<bool, VerbError> {
        self.begin()?;
        let Self { handle, poller, fields, waiting, .. } = self;
        waiting.list.clear();
        waiting.next = 0;
        waiting.list.reserve(AHEAD);
        let result = match poller {
            Poller::Classic(wcs) => {
                // SAFETY: the queue is alive, and it is this thread's.
                let polled = unsafe { ffi::ibv_poll_cq(handle.raw(), &mut wcs[..AHEAD]) };
                polled.map(|n| waiting.list.extend(wcs[..n].iter().map(|wc| copy(wc, handle, *fields))))
            }
            Poller::Extended { single } => {
                let take = |cq: *mut ibv_cq_ex, wr_id, status| {
                    // SAFETY: the cursor is at a completion, and the fields were granted.
                    waiting.list.push(unsafe { read(cq, handle, *fields, wr_id, status) });
                };
                // SAFETY: the queue is alive, extended, and this thread's.
                unsafe { walk(handle.raw_ex(), *single, AHEAD, take) }
            }
        };
        let taken = self.waiting.list.len();
        self.finish(result, taken).map(|taken| taken > 0)
    }

    /// What a cursor left.
    #[cold]
    fn hand_over(&mut self, run: &mut Completions, limit: usize) -> usize {
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
        run.len
    }

    #[inline]
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
        if !self.waiting.is_empty() {
            return Ok(self.hand_over(run, limit));
        }
        self.begin()?;
        let Self { handle, poller, fields, stamps, .. } = self;
        let result = match poller {
            Poller::Classic(wcs) => Self::run_classic(handle, wcs, run, limit),
            Poller::Extended { single } => {
                let (lengths, stamps) = (fields.contains(PollFields::BYTE_LEN), *stamps);
                let take = |cq: *mut ibv_cq_ex, wr_id, status| {
                    let status = WcStatus::from_raw(status);
                    // SAFETY: the cursor is at a completion, and the fields were granted.
                    unsafe {
                        if status != WcStatus::Success {
                            handle.suspect(ffi::ibv_wc_read_qp_num(cq).unwrap_or(0));
                            run.push(wr_id, status, 0, Ticks(0));
                            return;
                        }
                        let byte_len = if lengths { ffi::ibv_wc_read_byte_len(cq).unwrap_or(0) } else { 0 };
                        let ticks = match stamps {
                            ClockSource::DeviceTicks => ffi::ibv_wc_read_completion_ts(cq).unwrap_or(0),
                            ClockSource::DeviceWallclock => ffi::ibv_wc_read_completion_wallclock_ns(cq).unwrap_or(0),
                            _ => 0,
                        };
                        run.push(wr_id, status, byte_len, Ticks(ticks));
                    }
                };
                // SAFETY: the queue is alive, extended, and this thread's.
                unsafe { walk(handle.raw_ex(), *single, limit, take) }
            }
        };
        self.finish(result, run.len)
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
