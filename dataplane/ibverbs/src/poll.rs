//! Polling of completion queues, with the classic and the extended poll interface of verbs.
//!
//! Between the start and the end of a poll, the driver holds the lock of the queue. A program that posted a request
//! during this time would deadlock. Each function of this module therefore starts and ends its poll within one call. A
//! cursor returns copies of completions.
#![allow(unsafe_code)]

use std::ffi::c_int;

use ibverbs_sys::ibv_wc_status::IBV_WC_SUCCESS;
use ibverbs_sys::{
    IBV_CQ_ATTR_MODERATE, ibv_cq_ex, ibv_moderate_cq, ibv_modify_cq_attr, ibv_poll_cq_attr, ibv_wc_tm_info,
};

use super::cq::{CopiedCompletions, Poller, RunFields, VerbsCq};
use super::ffi::{self, Wc};
use super::queues::CqHandle;
use dataplane_core::clock::ClockSource;
use dataplane_core::error::VerbError;
use dataplane_core::units::{Nanos, QpNum, Ticks};
use dataplane_core::verbs::CompletionValues;
use dataplane_core::verbs::{
    Completion, CompletionQueue, Completions, Cursor, MAX_RUN, PollFields, RecvInfo, TagInfo, WcFlags, WcOpcode,
    WcStatus,
};

/// The number of completions that are copied in one poll for a cursor.
const COPY_BATCH: usize = 32;

/// The result of one poll.
struct PollOutcome {
    /// The number of completions that were polled.
    taken: usize,
    /// The return code of the `ibv_start_poll` or `ibv_next_poll` call that ended the poll. 0 if the poll reached its
    /// limit.
    end_code: c_int,
}

impl PollOutcome {
    /// Returns an error if the queue is broken. The completions that were polled before the error are still valid.
    fn result(&self) -> Result<(), VerbError> {
        let verb = if self.taken == 0 { "ibv_start_poll" } else { "ibv_next_poll" };
        match self.end_code {
            // `EBUSY` means that the wall clock cannot be read at the moment. The caller sees an empty queue and polls
            // again.
            0 | libc::ENOENT | libc::EBUSY | libc::EAGAIN => Ok(()),
            // A negative number means that the driver considers the queue broken.
            error => Err(VerbError::new(verb, error.max(0))),
        }
    }
}

/// Polls up to `limit` completions in one poll. Calls `take` with the index, the `wr_id` and the status of each
/// completion. `take` may read other fields of the current completion.
///
/// # Safety
/// The queue must be valid and extended, and nothing else may poll it.
#[inline]
unsafe fn poll_batch(cq: *mut ibv_cq_ex, limit: usize, mut take: impl FnMut(usize, u64, u32)) -> PollOutcome {
    if limit == 0 {
        return PollOutcome { taken: 0, end_code: 0 };
    }
    // SAFETY: the caller upholds the safety contract. The order of the calls follows the man page: `ibv_end_poll` must
    // not follow a failed `ibv_start_poll`, but must follow a failed `ibv_next_poll`. The creation of the queue checked
    // that the driver has these functions.
    unsafe {
        let end_code = ffi::ibv_start_poll(cq, &mut ibv_poll_cq_attr::default());
        if end_code != 0 {
            return PollOutcome { taken: 0, end_code };
        }
        let mut taken = 0;
        loop {
            let (wr_id, status) = ffi::wc_id_and_status(cq);
            take(taken, wr_id, status);
            taken += 1;
            if taken >= limit {
                ffi::ibv_end_poll(cq);
                return PollOutcome { taken, end_code: 0 };
            }
            let end_code = ffi::ibv_next_poll(cq);
            if end_code != 0 {
                end_early(cq);
                return PollOutcome { taken, end_code };
            }
        }
    }
}

/// Ends a poll that found fewer completions than its limit. A separate function keeps this rare case out of the loop of
/// [`poll_batch`].
///
/// # Safety
/// Same as `ibv_end_poll`.
#[inline(never)]
unsafe fn end_early(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller upholds the safety contract.
    unsafe { ffi::ibv_end_poll(cq) };
}

/// Polls up to `limit` completions with one poll for each completion.
///
/// # Safety
/// Same as [`poll_batch`].
unsafe fn poll_one_by_one(cq: *mut ibv_cq_ex, limit: usize, mut take: impl FnMut(usize, u64, u32)) -> PollOutcome {
    let mut taken = 0;
    loop {
        // SAFETY: the caller upholds the safety contract.
        let one = unsafe { poll_batch(cq, limit.min(1), |_, wr_id, status| take(taken, wr_id, status)) };
        taken += one.taken;
        if one.taken == 0 || taken == limit {
            return PollOutcome { taken, ..one };
        }
    }
}

/// Reads all fields of the current completion that the driver granted.
///
/// # Safety
/// The queue must be in a poll that has a current completion, and must have been created with `fields`.
unsafe fn read(cq: *mut ibv_cq_ex, handle: &CqHandle, mut fields: PollFields, wr_id: u64, status: u32) -> Completion {
    let status = WcStatus::from_raw(status);
    let mut values = CompletionValues::default();
    let granted = fields;
    let has = |field| granted.contains(field);
    // SAFETY: the caller upholds the safety contract. The creation of the queue checked that the driver has a read
    // function for every granted field. If a function is missing nevertheless, its field stays 0.
    unsafe {
        if status != WcStatus::Success {
            let vendor_err = ffi::ibv_wc_read_vendor_err(cq).unwrap_or(0);
            values.qp_num = QpNum(ffi::ibv_wc_read_qp_num(cq).unwrap_or(0));
            handle.mark_failed(values.qp_num.0, status);
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
        // If the queue reports flow tags, the field of the QP number contains the flow tag of a received packet.
        if has(PollFields::FLOW_TAG) && WcOpcode::from_raw(values.opcode).is_receive() {
            fields -= PollFields::QP_NUM;
        } else if has(PollFields::QP_NUM) {
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

/// Converts a completion that `ibv_poll_cq` returned.
fn copy(wc: &Wc, handle: &CqHandle, fields: PollFields) -> Completion {
    let status = WcStatus::from_raw(wc.status);
    let failed = status != WcStatus::Success;
    let mut values = CompletionValues { qp_num: QpNum(wc.qp_num), ..CompletionValues::default() };
    if failed {
        handle.mark_failed(wc.qp_num, status);
    } else {
        values = CompletionValues {
            opcode: wc.opcode,
            flags: handle.flags(wc.wc_flags),
            byte_len: wc.byte_len,
            imm: wc.imm_data,
            src_qp: QpNum(wc.src_qp),
            slid: wc.slid.into(),
            pkey_index: Some(wc.pkey_index),
            sl: wc.sl,
            dlid_path_bits: wc.dlid_path_bits,
            ..values
        };
    }
    Completion::new(wc.wr_id, status, if failed { wc.vendor_err } else { 0 }, fields, values)
}

/// Polls up to `limit` completions into an empty run (the arrays for the completions of one burst). `read` stores the
/// length and the timestamp of the current completion in the arrays.
///
/// # Safety
/// Same as [`poll_batch`].
#[inline]
unsafe fn poll_into_run(
    handle: &CqHandle,
    run: &mut Completions,
    limit: usize,
    read: impl Fn(*mut ibv_cq_ex, &mut u32, &mut Ticks),
) -> PollOutcome {
    let cq = handle.raw_ex();
    // SAFETY: the caller upholds the safety contract. The closure runs only while the poll has a current completion.
    let outcome = unsafe {
        poll_batch(cq, limit, |at, wr_id, status| {
            run.wr_id[at] = wr_id;
            match status {
                IBV_WC_SUCCESS => read(cq, &mut run.byte_len[at], &mut run.ticks[at]),
                _ => record_failure(cq, handle, run, at, status),
            }
        })
    };
    run.len = outcome.taken;
    outcome
}

/// Polls up to `limit` completions into an empty run, with the receive information that the driver granted. For each
/// completion, this function checks which fields were granted. Only queues that requested receive information pay for
/// these checks.
///
/// # Safety
/// Same as [`poll_batch`], and the queue must have been created with `fields`.
unsafe fn poll_with_info(
    handle: &CqHandle,
    run: &mut Completions,
    limit: usize,
    stamps: ClockSource,
    fields: PollFields,
) -> PollOutcome {
    let cq = handle.raw_ex();
    run.has_info = true;
    // SAFETY: the caller upholds the safety contract. The closure runs only while the poll has a current completion.
    let outcome = unsafe {
        poll_batch(cq, limit, |at, wr_id, status| {
            run.wr_id[at] = wr_id;
            if status != IBV_WC_SUCCESS {
                record_failure(cq, handle, run, at, status);
                run.info[at] = RecvInfo::default();
                return;
            }
            let completion = read(cq, handle, fields, wr_id, status);
            run.byte_len[at] = completion.byte_len().unwrap_or(0);
            run.ticks[at] = stamp(&completion, stamps);
            run.info[at] = completion.recv_info();
        })
    };
    run.len = outcome.taken;
    outcome
}

/// Returns the timestamp of a completion, from the clock that the queue uses for runs.
fn stamp(completion: &Completion, stamps: ClockSource) -> Ticks {
    let ticks = match stamps {
        ClockSource::DeviceWallclock => completion.wallclock().map(|nanos| Ticks(nanos.0)),
        _ => completion.ticks(),
    };
    ticks.unwrap_or(Ticks(0))
}

/// Stores the current completion, which reports a failed request, at index `at` of a run. Sets the length and the
/// timestamp to 0.
///
/// # Safety
/// The queue must be in a poll that has a current completion.
#[cold]
unsafe fn record_failure(cq: *mut ibv_cq_ex, handle: &CqHandle, run: &mut Completions, at: usize, status: u32) {
    if !run.failed {
        run.status.fill(WcStatus::Success);
        run.failed = true;
    }
    run.status[at] = WcStatus::from_raw(status);
    run.byte_len[at] = 0;
    run.ticks[at] = Ticks(0);
    // SAFETY: the caller upholds the safety contract.
    handle.mark_failed(unsafe { ffi::ibv_wc_read_qp_num(cq) }.unwrap_or(0), run.status[at]);
}

impl VerbsCq {
    /// Returns an error if the queue is broken, or if this thread must not poll the queue.
    #[inline]
    fn begin(&self) -> Result<(), VerbError> {
        if let Poller::Broken(error) = self.poller {
            return Err(error);
        }
        // `EBUSY` means that the queue has no lock and another thread polls the queue.
        if self.handle.owner.claim_permanently() { Ok(()) } else { Err(VerbError::new("ibv_start_poll", libc::EBUSY)) }
    }

    /// Returns the number of polled completions (`taken`) or the error of a poll. After an error, the queue stays
    /// broken. If the poll returned completions before the error, this call returns their number, and the next poll
    /// returns the error.
    #[inline]
    fn finish(&mut self, result: Result<(), VerbError>, taken: usize) -> Result<usize, VerbError> {
        match result {
            Ok(()) => Ok(taken),
            Err(error) => self.mark_broken(error, taken),
        }
    }

    #[cold]
    fn mark_broken(&mut self, error: VerbError, taken: usize) -> Result<usize, VerbError> {
        // A driver that reports a broken queue with a negative number sets no `errno`.
        let errno = if error.errno == 0 { libc::EIO } else { error.errno };
        let error = VerbError { errno, ..error };
        tracing::error!(device = self.handle.context().name, cq = self.handle.number(), "{error}");
        self.poller = Poller::Broken(error);
        if taken > 0 { Ok(taken) } else { Err(error) }
    }

    /// Polls and copies completions for a cursor. Returns `true` if the poll found completions.
    fn fill(&mut self) -> Result<bool, VerbError> {
        self.begin()?;
        let Self { handle, poller, fields, copied, .. } = self;
        copied.list.clear();
        copied.next = 0;
        copied.list.reserve(COPY_BATCH);
        let single = matches!(poller, Poller::Single);
        let result = match poller {
            Poller::Classic(wcs) => {
                // SAFETY: the queue is valid, and this thread owns it.
                let polled = unsafe { ffi::ibv_poll_cq(handle.raw(), &mut wcs[..COPY_BATCH]) };
                polled.map(|n| copied.list.extend(wcs[..n].iter().map(|wc| copy(wc, handle, *fields))))
            }
            Poller::Extended(_) | Poller::WithInfo | Poller::Single => {
                let cq = handle.raw_ex();
                let take = |_, wr_id, status| {
                    // SAFETY: the poll has a current completion, and the fields were granted.
                    copied.list.push(unsafe { read(cq, handle, *fields, wr_id, status) });
                };
                // SAFETY: the queue is valid and extended, and this thread owns it.
                unsafe { if single { poll_one_by_one(cq, COPY_BATCH, take) } else { poll_batch(cq, COPY_BATCH, take) } }
                    .result()
            }
            Poller::Broken(error) => Err(*error),
        };
        let taken = self.copied.list.len();
        self.finish(result, taken).map(|taken| taken > 0)
    }

    /// Fills a run with the copied completions that no cursor has consumed. If no copies are left, polls the queue and
    /// copies new completions.
    fn take_copied(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        if self.copied.is_empty() && !self.fill()? {
            return Ok(0);
        }
        let has_info = self.fields.intersects(PollFields::RECV_INFO);
        run.has_info = has_info;
        let CopiedCompletions { list, next } = &mut self.copied;
        for completion in list.iter().skip(*next).take(limit) {
            if has_info {
                run.info[run.len] = completion.recv_info();
            }
            let byte_len = completion.byte_len().unwrap_or(0);
            run.push(completion.wr_id, completion.status, byte_len, stamp(completion, self.stamps));
        }
        *next += run.len;
        Ok(run.len)
    }

    /// Handles a poll that ended before its limit. In most cases, the queue has no further completions.
    #[inline(never)]
    fn finish_early(&mut self, taken: usize, end_code: c_int) -> Result<usize, VerbError> {
        self.finish(PollOutcome { taken, end_code }.result(), taken)
    }

    /// Polls completions if the queue does not support batch polling, if the queue has receive information, or if a
    /// cursor has left copied completions. Returns an error if this thread must not poll the queue.
    #[inline(never)]
    fn poll_run_slow(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        run.clear();
        if !self.copied.is_empty() {
            return self.take_copied(run, limit);
        }
        self.begin()?;
        match &mut self.poller {
            Poller::Classic(wcs) => {
                let result = Self::run_classic(&self.handle, wcs, run, limit, self.fields);
                self.finish(result, run.len)
            }
            Poller::WithInfo => {
                // SAFETY: the queue is valid and extended, this thread owns it, and the driver granted the fields.
                let outcome = unsafe { poll_with_info(&self.handle, run, limit, self.stamps, self.fields) };
                self.finish(outcome.result(), outcome.taken)
            }
            _ => self.take_copied(run, limit),
        }
    }

    /// Polls completions with a limit that is 0 or above [`MAX_RUN`].
    #[cold]
    fn poll_run_limited(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        if limit > MAX_RUN {
            return self.poll_run(run, MAX_RUN);
        }
        run.clear();
        self.begin()?;
        Ok(0)
    }

    fn run_classic(
        handle: &CqHandle,
        wcs: &mut [Wc],
        run: &mut Completions,
        limit: usize,
        fields: PollFields,
    ) -> Result<(), VerbError> {
        // `ibv_poll_cq` returns the flags of completions, but no other receive information.
        run.has_info = fields.contains(PollFields::CHECKSUM);
        // SAFETY: the queue is valid, and this thread owns it.
        let n = unsafe { ffi::ibv_poll_cq(handle.raw(), &mut wcs[..limit]) }?;
        for wc in &wcs[..n] {
            let status = WcStatus::from_raw(wc.status);
            if run.has_info {
                run.info[run.len] = copy(wc, handle, fields).recv_info();
            }
            if status == WcStatus::Success {
                run.push(wc.wr_id, status, wc.byte_len, Ticks(0));
            } else {
                handle.mark_failed(wc.qp_num, status);
                run.push(wc.wr_id, status, 0, Ticks(0));
            }
        }
        Ok(())
    }
}

#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: the completions come from libibverbs, which returns a completion only after the device has finished the
// request. The receives and the sends of a queue pair complete in order.
unsafe impl CompletionQueue for VerbsCq {
    type Cursor<'cq> = VerbsCursor<'cq>;

    fn number(&self) -> u32 {
        self.handle.number()
    }

    fn context(&self) -> u64 {
        self.handle.tag.context
    }

    fn depth(&self) -> u32 {
        // SAFETY: the queue is valid. Only `resize`, which takes `&mut self`, changes this member.
        u32::try_from(unsafe { (*self.handle.raw()).cqe }).unwrap_or(0)
    }

    fn release_claim(&self) {
        // If another running thread owns the queue, the result is `false`, and the other thread stays the owner.
        let _ = self.handle.owner.release();
    }

    fn start_poll(&mut self) -> Result<Option<VerbsCursor<'_>>, VerbError> {
        let some = !self.copied.is_empty() || self.fill()?;
        Ok(some.then_some(VerbsCursor(self)))
    }

    #[inline]
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        // One comparison excludes both 0 and a limit above `MAX_RUN`.
        if limit.wrapping_sub(1) >= MAX_RUN {
            return self.poll_run_limited(run, limit);
        }
        let Poller::Extended(reads) = self.poller else { return self.poll_run_slow(run, limit) };
        if !self.copied.is_empty() || !self.handle.owner.claim_permanently() {
            return self.poll_run_slow(run, limit);
        }
        // The loops below set the length of the run, so the run is not cleared as a whole.
        (run.failed, run.in_order, run.has_info) = (false, false, false);
        let Self { handle, fields, .. } = self;
        let has = |field| fields.contains(field);
        // Each common combination of granted fields has its own loop, which need not check the granted fields for each
        // completion.
        // SAFETY: the queue is valid and extended, and this thread owns it. Only granted fields are read, and only of a
        // current completion.
        let outcome = unsafe {
            match reads {
                RunFields::LengthAndTicks => poll_into_run(handle, run, limit, |cq, byte_len, ticks| {
                    *byte_len = ffi::wc_byte_len(cq);
                    *ticks = Ticks(ffi::wc_completion_ts(cq));
                }),
                RunFields::Length => poll_into_run(handle, run, limit, |cq, byte_len, ticks| {
                    *byte_len = ffi::wc_byte_len(cq);
                    *ticks = Ticks(0);
                }),
                RunFields::Other => poll_into_run(handle, run, limit, |cq, byte_len, ticks| {
                    *byte_len = if has(PollFields::BYTE_LEN) { ffi::wc_byte_len(cq) } else { 0 };
                    *ticks = Ticks(match () {
                        () if has(PollFields::WALLCLOCK) => ffi::ibv_wc_read_completion_wallclock_ns(cq).unwrap_or(0),
                        () if has(PollFields::TIMESTAMP) => ffi::wc_completion_ts(cq),
                        () => 0,
                    });
                }),
            }
        };
        if outcome.end_code == 0 { Ok(outcome.taken) } else { self.finish_early(outcome.taken, outcome.end_code) }
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError> {
        if self.handle.channel().is_none() {
            return Err(VerbError::new("ibv_req_notify_cq", libc::EINVAL));
        }
        self.begin()?;
        // SAFETY: the queue is valid.
        unsafe { ffi::ibv_req_notify_cq(self.handle.raw(), solicited_only.into()) }
    }

    fn moderate(&mut self, count: u16, period: u16) -> Result<(), VerbError> {
        let moderate = ibv_moderate_cq { cq_count: count, cq_period: period };
        let mut attr = ibv_modify_cq_attr { attr_mask: IBV_CQ_ATTR_MODERATE, moderate };
        // SAFETY: the queue is valid, and the attributes are filled in as the man page requires.
        unsafe { ffi::ibv_modify_cq(self.handle.raw(), &mut attr) }
    }

    fn resize(&mut self, depth: u32) -> Result<u32, VerbError> {
        const VERB: &str = "ibv_resize_cq";
        self.begin()?;
        let cqe = c_int::try_from(depth).ok().filter(|_| (1..=self.handle.context().limits.max_cqe()).contains(&depth));
        let cqe = cqe.ok_or(VerbError::new(VERB, libc::EINVAL))?;
        // SAFETY: the queue is valid, and this thread owns it.
        unsafe { ffi::ibv_resize_cq(self.handle.raw(), cqe) }?;
        Ok(self.depth())
    }
}

/// The cursor over the completions of a [`VerbsCq`].
#[derive(Debug)]
pub struct VerbsCursor<'cq>(&'cq mut VerbsCq);

impl Cursor for VerbsCursor<'_> {
    fn get(&self) -> Completion {
        let CopiedCompletions { list, next } = &self.0.copied;
        // After the end, the cursor still returns the last completion.
        list[(*next).min(list.len() - 1)]
    }

    fn advance(&mut self) -> Result<bool, VerbError> {
        let copied = &mut self.0.copied;
        if copied.is_empty() {
            return Ok(false);
        }
        let last = copied.list[copied.next];
        copied.next += 1;
        if !copied.is_empty() {
            return Ok(true);
        }
        let more = self.0.fill();
        if self.0.copied.list.is_empty() {
            self.0.copied = CopiedCompletions { list: vec![last], next: 1 };
        }
        more
    }
}

impl Drop for VerbsCursor<'_> {
    fn drop(&mut self) {
        // The current completion of the cursor counts as consumed.
        let copied = &mut self.0.copied;
        copied.next = (copied.next + 1).min(copied.list.len());
    }
}
