//! The exported symbols of the library in tests: those that would end in a driver go to the fake for its objects, and
//! to the library for all others.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::cq::{FakeCq, new_cq};
use super::qp::{FakeQp, new_qp};
use super::{Call, MARK, fail, state};

pub(in crate::provider::verbs) use ibverbs_sys::*;

/// # Safety
/// The context is alive.
unsafe fn is_fake(context: *mut ibv_context) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*context).device.cast_const().cast() == &raw const MARK }
}

macro_rules! symbols {
    ($(fn $verb:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)*) -> $answer:ty,
        $context:expr => $fake:expr;)+) => {$(
        pub(in crate::provider::verbs) unsafe fn $verb($first: $first_type $(, $argument: $type)*) -> $answer {
            // SAFETY: the caller's promise: objects are alive, and structures what the verb wants.
            unsafe {
                if is_fake($context) { $fake } else { ibverbs_sys::$verb($first $(, $argument)*) }
            }
        }
    )+};
}

symbols! {
    fn ibv_close_device(context: *mut ibv_context) -> c_int, context => 0;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, context => Box::into_raw(Box::new(ibv_pd { context, handle: state(context).number("pd") }));
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, (*pd).context => {
        state((*pd).context).live -= 1;
        drop(Box::from_raw(pd));
        0
    };
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, user: *mut c_void, channel: *mut ibv_comp_channel,
        vector: c_int) -> *mut ibv_cq, context => {
            let error = state(context).note("ibv_create_cq", Call::CreateCq { cqe: cqe.cast_unsigned() });
            if error == 0 { new_cq(context, cqe.cast_unsigned(), 0, user).cast() } else { fail(error) }
        };
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, (*cq).context => {
        let fake = cq.cast::<FakeCq>();
        let mut state = state((*cq).context);
        if (*fake).polling {
            state.calls.push(Call::Misuse("ibv_destroy_cq inside a poll"));
        }
        state.live -= 1;
        let error = state.note("ibv_destroy_cq", Call::DestroyCq((*cq).handle));
        drop(Box::from_raw(fake));
        error
    };
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, (*pd).context => {
        let plain = *attr;
        let extended = ibv_qp_init_attr_ex {
            qp_context: plain.qp_context,
            send_cq: plain.send_cq,
            recv_cq: plain.recv_cq,
            srq: plain.srq,
            cap: plain.cap,
            qp_type: plain.qp_type,
            sq_sig_all: plain.sq_sig_all,
            pd,
            ..Default::default()
        };
        let call = Call::CreateQp {
            kind: plain.qp_type,
            send: plain.cap.max_send_wr,
            recv: plain.cap.max_recv_wr,
            comp_mask: 0,
            flags: 0,
            send_ops: 0,
            max_tso_header: 0,
        };
        let error = state((*pd).context).note("ibv_create_qp", call);
        if error == 0 { new_qp((*pd).context, &extended) } else { fail(error) }
    };
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, (*qp).context => {
        let ibv_qp_attr { qp_state, port_num: port, rate_limit, .. } = *attr;
        let mask = mask.cast_unsigned();
        let call = Call::ModifyQp { qp: (*qp).qp_num, mask, state: qp_state, port, rate_limit };
        let error = state((*qp).context).note("ibv_modify_qp", call);
        if error == 0 && mask & 1 != 0 {
            (*qp).state = qp_state;
        }
        error
    };
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, (*qp).context => {
        let mut state = state((*qp).context);
        state.live -= 1;
        let error = state.note("ibv_destroy_qp", Call::DestroyQp((*qp).qp_num));
        drop(Box::from_raw(qp.cast::<FakeQp>()));
        error
    };
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, (*qp).context => if (*qp.cast::<FakeQp>()).extended { qp.cast() } else { ptr::null_mut() };
}
