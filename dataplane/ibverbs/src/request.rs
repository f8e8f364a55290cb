//! Converts work requests to the structures of the C interface.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use ibverbs_sys::{
    ibv_recv_wr, ibv_send_wr, ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_3, ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
    ibv_sge,
};

use super::ah::VerbsAh;
use dataplane_core::error::VerbError;
use dataplane_core::units::Lkey;
use dataplane_core::verbs::{Destination, RecvRequest, SendOp, SendRequest, Sge};

/// The number of requests per call of `ibv_post_srq_recv`, which has no preallocated list.
pub(super) const CHUNK: usize = 32;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// A preallocated list of requests or scatter/gather elements. libibverbs follows the pointers between requests, so
/// this type accesses the list only through raw pointers.
pub(super) struct RequestList<T> {
    start: NonNull<T>,
    pub(super) len: usize,
}

impl<T: Copy> RequestList<T> {
    pub(super) fn new(len: usize, item: T) -> Self {
        let list = Box::leak(vec![item; len.max(1)].into_boxed_slice());
        Self { len: list.len(), start: NonNull::from(list).cast() }
    }

    /// Returns a pointer to the item at `index`. The caller must ensure that `index` is less than `len`.
    #[inline]
    pub(super) fn at(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len);
        self.start.as_ptr().wrapping_add(index)
    }

    /// Returns a pointer to the item after `index`, or null if `index` is the last item.
    pub(super) fn after(&self, index: usize) -> *mut T {
        if index + 1 < self.len { self.at(index + 1) } else { ptr::null_mut() }
    }
}

impl<T> Drop for RequestList<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated as a boxed slice of this length. Its only owner is being dropped.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len)) });
    }
}

/// The element that an empty list of elements points to.
static NO_ELEMENT: Sge = Sge { addr: 0, length: 0, lkey: Lkey(0) };

/// Returns a pointer to the elements of a request. Some libraries read the first element of a request without elements:
/// irdma for atomics, erdma for reads and atomics, cxgb4 for writes and sends. The pointer therefore always refers to an
/// element.
fn elements(sges: &[Sge]) -> *mut ibv_sge {
    let first = sges.first().map_or(&raw const NO_ELEMENT, |_| sges.as_ptr());
    first.cast_mut().cast()
}

/// Returns the number of requests that were posted before the failed request `bad`. Returns `None` if `bad` is not one
/// of the `count` requests from `first`.
pub(super) fn accepted<T>(first: *const T, count: usize, bad: *const T) -> Option<usize> {
    if bad.is_null() {
        return None;
    }
    let at = bad.addr().wrapping_sub(first.addr()) / size_of::<T>();
    (at < count).then_some(at)
}

/// Converts a receive request. The result refers to the scatter/gather elements of the caller.
pub(super) fn recv_wr(request: &RecvRequest<'_>) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: request.wr_id,
        next: ptr::null_mut(),
        sg_list: elements(request.sges),
        num_sge: request.sges.len() as c_int,
    }
}

pub(super) fn ud(to: &Destination<'_, VerbsAh>) -> ibv_send_wr__bindgen_ty_2 {
    let ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: to.ah.raw(), remote_qpn: to.qp.0, remote_qkey: to.qkey };
    ibv_send_wr__bindgen_ty_2 { ud }
}

/// Writes a send request to a list item. Does not change the link to the next item. The item refers to the
/// scatter/gather elements of the caller.
pub(super) fn write_send(wr: &mut ibv_send_wr, request: &SendRequest<'_, VerbsAh>) {
    wr.wr_id = request.wr_id;
    wr.sg_list = elements(request.sges);
    wr.num_sge = request.sges.len() as c_int;
    wr.opcode = request.op.opcode().raw();
    wr.send_flags = request.flags.bits();
    let rdma = |remote_addr, rkey| ibv_send_wr__bindgen_ty_2 {
        rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
    };
    let atomic = |remote_addr, rkey, compare_add, swap| ibv_send_wr__bindgen_ty_2 {
        atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey },
    };
    match request.op {
        SendOp::Send => {}
        SendOp::SendWithImm(imm_data) => wr.__bindgen_anon_1.imm_data = imm_data,
        SendOp::SendWithInv(rkey) | SendOp::LocalInv(rkey) => wr.__bindgen_anon_1.invalidate_rkey = rkey.0,
        SendOp::RdmaWrite(to) | SendOp::RdmaRead(to) => wr.wr = rdma(to.addr, to.rkey.0),
        SendOp::RdmaWriteWithImm(to, imm_data) => {
            wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data };
            wr.wr = rdma(to.addr, to.rkey.0);
        }
        SendOp::CompareSwap { remote, compare, swap } => wr.wr = atomic(remote.addr, remote.rkey.0, compare, swap),
        SendOp::FetchAdd { remote, add } => wr.wr = atomic(remote.addr, remote.rkey.0, add, 0),
        SendOp::Tso { header, mss } => {
            wr.__bindgen_anon_2 = ibv_send_wr__bindgen_ty_4 {
                tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
                    hdr: header.as_ptr().cast_mut().cast(),
                    hdr_sz: header.len() as u16,
                    mss,
                },
            };
        }
    }
    if let Some(to) = &request.to {
        wr.wr = ud(to);
    }
}

/// Maps the errors with which drivers report a full queue to `ENOMEM`.
pub(super) fn full(error: VerbError) -> VerbError {
    match error.errno {
        libc::ENOSPC | libc::EAGAIN => VerbError { errno: libc::ENOMEM, ..error },
        _ => error,
    }
}
