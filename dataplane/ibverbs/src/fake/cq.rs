//! Completion queues of the fake device. The queues return results that a test has set, and they check the order of
//! calls.

use std::ffi::{c_int, c_void};

use ibverbs_sys::*;

use super::{Call, Completion, Poll, Wc, fail, state};

#[repr(C)]
pub(super) struct FakeCq {
    cq: ibv_cq_ex,
    at: Completion,
    pub(super) polling: bool,
    /// The fields that the creation requested.
    wc_flags: u64,
}

/// Returns the fields that the creation of a CQ requested. Returns 0 if `cq` is null.
///
/// # Safety
/// The CQ must belong to a fake, or be null.
pub(super) unsafe fn fields(cq: *const ibv_cq) -> u64 {
    // SAFETY: the caller upholds the safety contract.
    if cq.is_null() { 0 } else { unsafe { (*cq.cast::<FakeCq>()).wc_flags } }
}

/// # Safety
/// The context must belong to a fake.
pub(super) unsafe fn new_cq(context: *mut ibv_context, cqe: u32, wc_flags: u64, user: *mut c_void) -> *mut FakeCq {
    let mut cq = ibv_cq_ex { context, cq_context: user, ..Default::default() };
    // SAFETY: the caller upholds the safety contract.
    cq.handle = unsafe { state(context) }.number("cq");
    cq.cqe = c_int::try_from(cqe).unwrap();
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    /// Sets the reader function of each completion field. The reader of a field that was not requested is an invalid
    /// pointer, as with some drivers.
    macro_rules! readers {
        ($($bit:literal $member:ident $reader:ident),+ $(,)?) => {$(
            if wc_flags & (1 << $bit) != 0 {
                cq.$member = Some($reader);
            } else {
                // SAFETY: the field holds a function pointer. The invalid value is written as an integer and is only
                // read as an integer.
                unsafe { (&raw mut cq.$member).cast::<usize>().write(1) };
            }
        )+};
    }
    readers!(
        0 read_byte_len read_byte_len, 1 read_imm_data read_imm_data, 2 read_qp_num read_qp_num,
        3 read_src_qp read_src_qp, 4 read_slid read_slid, 5 read_sl read_sl,
        6 read_dlid_path_bits read_dlid_path_bits, 7 read_completion_ts read_ticks, 8 read_cvlan read_cvlan,
        9 read_flow_tag read_flow_tag, 11 read_completion_wallclock_ns read_wallclock,
    );
    // SAFETY: the caller upholds the safety contract.
    if wc_flags & 1 << 10 != 0 && unsafe { state(context) }.tags {
        cq.read_tm_info = Some(read_tm_info);
    }
    Box::into_raw(Box::new(FakeCq { cq, at: Completion::default(), polling: false, wc_flags }))
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the context belongs to a fake, and the caller provides the attributes.
    unsafe {
        let ibv_cq_init_attr_ex { cqe, wc_flags, comp_mask, flags, comp_vector, cq_context, parent_domain, .. } = *attr;
        if (comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0) == parent_domain.is_null() {
            state(context)
                .calls
                .push(Call::Misuse("a parent domain without its mask bit, or the mask bit without a parent domain"));
        }
        let parent_domain = parent_domain.as_ref().map_or(0, |pd| pd.handle);
        let call = Call::CreateCqEx { cqe, wc_flags, comp_mask, flags, vector: comp_vector, parent_domain };
        let mut error = state(context).note("ibv_create_cq_ex", call);
        if let Some((fields, other, errno)) = state(context).lacks
            && (wc_flags & fields != 0 || flags & other != 0)
        {
            error = errno;
        }
        if let Some((first, second, errno)) = state(context).lacks_together
            && wc_flags & first != 0
            && wc_flags & second != 0
        {
            error = errno;
        }
        if !(*attr).channel.is_null() && state(context).refuses_channels {
            error = libc::EOPNOTSUPP;
        }
        if error == 0 { new_cq(context, cqe, wc_flags, cq_context).cast() } else { fail(error) }
    }
}

pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the CQ belongs to a fake, and the caller provides the attributes.
    unsafe {
        let ibv_modify_cq_attr { attr_mask: mask, moderate } = *attr;
        let ibv_moderate_cq { cq_count: count, cq_period: period } = moderate;
        state((*cq).context).note("ibv_modify_cq", Call::ModerateCq { cq: (*cq).handle, mask, count, period })
    }
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    // SAFETY: the CQ belongs to a fake.
    unsafe {
        let call = Call::ReqNotify { cq: (*cq).handle, solicited: solicited != 0 };
        state((*cq).context).note("ibv_req_notify_cq", call)
    }
}

/// Implements `ibv_start_poll` and `ibv_next_poll`. Takes the next result of the queue. A completion becomes the
/// current completion of the queue.
///
/// # Safety
/// The queue must belong to a fake.
unsafe fn advance(cq: *mut FakeCq) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let (context, number) = ((*cq).cq.context, (*cq).cq.handle);
        match state(context).polls.entry(number).or_default().pop_front() {
            None => libc::ENOENT,
            Some(Poll::ReturnCode(returned)) => returned,
            Some(Poll::Wc(completion)) => {
                (*cq).at = completion;
                (*cq).cq.wr_id = completion.wc.wr_id;
                (*cq).cq.status = completion.wc.status;
                0
            }
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the CQ belongs to a fake.
    unsafe {
        if attr.is_null() || (*attr).comp_mask != 0 {
            state((*cq).context).calls.push(Call::Misuse("ibv_start_poll without zeroed attributes"));
        }
        let fake = cq.cast::<FakeCq>();
        if (*fake).polling {
            state((*cq).context).calls.push(Call::Misuse("ibv_start_poll inside a poll"));
        }
        let returned = advance(fake);
        (*fake).polling = returned == 0;
        state((*cq).context).calls.push(Call::StartPoll { cq: (*cq).handle, returned });
        returned
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the CQ belongs to a fake.
    unsafe {
        let fake = cq.cast::<FakeCq>();
        if !(*fake).polling {
            state((*cq).context).calls.push(Call::Misuse("ibv_next_poll outside a poll"));
        }
        let returned = advance(fake);
        state((*cq).context).calls.push(Call::NextPoll { cq: (*cq).handle, returned });
        returned
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the CQ belongs to a fake.
    unsafe {
        let fake = cq.cast::<FakeCq>();
        if !(*fake).polling {
            state((*cq).context).calls.push(Call::Misuse("ibv_end_poll outside a poll"));
        }
        (*fake).polling = false;
        state((*cq).context).calls.push(Call::EndPoll { cq: (*cq).handle });
    }
}

macro_rules! readers {
    ($($name:ident -> $type:ty = $($member:ident).+;)+) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the CQ belongs to a fake.
            unsafe {
                if !(*cq.cast::<FakeCq>()).polling {
                    state((*cq).context).calls.push(Call::Misuse("a reader outside a poll"));
                }
                (*cq.cast::<FakeCq>()).at.$($member).+
            }
        }
    )+};
}

readers! {
    read_opcode -> u32 = wc.opcode;
    read_vendor_err -> u32 = wc.vendor_err;
    read_wc_flags -> u32 = wc.wc_flags;
    read_byte_len -> u32 = wc.byte_len;
    read_imm_data -> u32 = wc.imm_data;
    read_qp_num -> u32 = wc.qp_num;
    read_src_qp -> u32 = wc.src_qp;
    read_sl -> u8 = wc.sl;
    read_dlid_path_bits -> u8 = wc.dlid_path_bits;
    read_ticks -> u64 = ticks;
    read_wallclock -> u64 = wallclock;
    read_cvlan -> u16 = cvlan;
    read_flow_tag -> u32 = flow_tag;
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the CQ belongs to a fake.
    u32::from(unsafe { (*cq.cast::<FakeCq>()).at.wc.slid })
}

unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the CQ belongs to a fake, and the caller provides the structure.
    unsafe {
        let Completion { tag, private: priv_, .. } = (*cq.cast::<FakeCq>()).at;
        info.write(ibv_wc_tm_info { tag, priv_ });
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: the queue belongs to a fake, and the caller provides space for `room` completions.
    unsafe {
        let mut state = state((*cq).context);
        let polls = state.polls.entry((*cq).handle).or_default();
        let mut returned = 0;
        while returned < room {
            match polls.front().copied() {
                Some(Poll::Wc(completion)) => into.cast::<Wc>().add(returned as usize).write(completion.wc),
                Some(Poll::ReturnCode(instead)) if returned == 0 => {
                    polls.pop_front();
                    returned = instead;
                    break;
                }
                _ => break,
            }
            polls.pop_front();
            returned += 1;
        }
        state.calls.push(Call::PollCq { cq: (*cq).handle, room, returned });
        returned
    }
}
