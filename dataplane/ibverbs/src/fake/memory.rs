//! Memory registrations and memory windows of the fake device. As with rxe, the deregistration of memory fails while a
//! window is bound to the memory.

use std::ffi::{c_int, c_uint};

use ibverbs_sys::*;

use super::{Fake, VerbsContext, fail, state};

/// Makes a device support memory windows.
pub(crate) fn with_windows(verbs: &mut VerbsContext) {
    verbs.context.ops.alloc_mw = Some(alloc_mw);
    verbs.context.ops.dealloc_mw = Some(dealloc_mw);
    verbs.context.ops.bind_mw = Some(bind_mw);
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, type_: c_uint) -> *mut ibv_mw {
    // SAFETY: the protection domain belongs to a fake.
    unsafe {
        let context = (*pd).context;
        let mut state = state(context);
        match state.refused("ibv_alloc_mw") {
            0 => {
                let handle = state.number("mw");
                Box::into_raw(Box::new(ibv_mw { context, pd, rkey: handle << 8, handle, type_ }))
            }
            errno => fail(errno),
        }
    }
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the window belongs to a fake, and nothing uses it any more.
    unsafe {
        let mut state = state((*mw).context);
        state.live -= 1;
        state.bound.remove(&(*mw).handle);
        drop(Box::from_raw(mw));
    }
    0
}

/// Binds a window at once if the queue pair is in RTS. In any other state, the window keeps its previous binding, as
/// after a flushed request.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the objects belong to a fake, and the caller provides the binding.
    unsafe {
        let mut state = state((*mw).context);
        let info = (*bind).bind_info;
        if (*qp).state == ibv_qp_state::IBV_QPS_RTS {
            match info.length {
                0 => drop(state.bound.remove(&(*mw).handle)),
                _ => drop(state.bound.insert((*mw).handle, (*info.mr).handle)),
            }
        }
    }
    0
}

/// # Safety
/// The registration must belong to a fake, and nothing may use the registration after its deregistration.
pub(super) unsafe fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let mut state = state((*mr).context);
        if state.bound.values().any(|bound| *bound == (*mr).handle) {
            return libc::EINVAL;
        }
        match state.refused.get("ibv_dereg_mr") {
            Some(errno) if *errno != 0 => return *errno,
            _ => {}
        }
        state.live -= 1;
        drop(Box::from_raw(mr));
    }
    0
}

/// # Safety
/// The protection domain must belong to a fake.
pub(super) unsafe fn create_srq(pd: *mut ibv_pd, srq_context: *mut std::ffi::c_void) -> *mut ibv_srq {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let context = (*pd).context;
        if super::fake_device(context).attr.orig_attr.max_srq == 0 {
            return fail(libc::EOPNOTSUPP);
        }
        let handle = state(context).number("srq");
        Box::into_raw(Box::new(ibv_srq { context, srq_context, pd, handle, ..Default::default() }))
    }
}

impl Fake {
    /// Returns a pair for each bound window: the handle of the window, and the handle of the registration to which the
    /// window is bound.
    pub(crate) fn bindings(&self) -> Vec<(u32, u32)> {
        self.state().bound.iter().map(|(window, region)| (*window, *region)).collect()
    }
}
