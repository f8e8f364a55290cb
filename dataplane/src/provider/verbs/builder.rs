//! Posting sends by `ibv_wr_start(3)`, builders and `ibv_wr_complete(3)`. All of a call is taken, or nothing.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_LOCAL_INV,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO, ibv_data_buf, ibv_qp, ibv_qp_ex,
    ibv_qp_init_attr_ex, ibv_send_wr, ibv_sge,
};

use super::ah::VerbsAh;
use super::context::{Context, ended};
use super::ffi;
use super::post::full;
use super::qp::VerbsQp;
use super::quirk::Quirk;
use crate::error::VerbError;
use crate::provider::{PostError, QpType, SendFlags, SendOp, SendRequest, Sge, WrOpcode};

const VERB: &str = "ibv_wr_complete";

/// The operations that every driver of this interface has for a type, and those that some have.
fn operations(kind: QpType) -> (u32, u32) {
    let send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let atomic = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let keys = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
    match kind {
        QpType::Rc => (send | write | IBV_QP_EX_WITH_RDMA_READ, atomic | keys),
        QpType::Uc => (send | write, keys),
        QpType::RawPacket => (IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_TSO),
        _ => (send, IBV_QP_EX_WITH_TSO),
    }
}

/// The operation of an opcode among those that a queue pair was created for.
fn operation(opcode: WrOpcode) -> u64 {
    // The bits are in the order of the opcodes up to this one.
    if opcode.raw() <= WrOpcode::Tso.raw() {
        // IBV_QP_EX_WITH_*: writes, sends, read, atomics, LOCAL_INV, BIND_MW, SEND_WITH_INV, TSO.
        1 << opcode.raw()
    } else {
        0
    }
}

/// A queue pair that builds requests, and the operations that it was created for.
pub(super) type Builder = (NonNull<ibv_qp_ex>, u64);

/// Creates a queue pair for as many operations as the driver can build.
///
/// # Safety
/// The attributes name what is alive and of one device.
pub(super) unsafe fn create(
    context: &Arc<Context>,
    attr: &mut ibv_qp_init_attr_ex,
    kind: QpType,
) -> Result<(NonNull<ibv_qp>, Builder), VerbError> {
    let (least, more) = operations(kind);
    let caps = attr.cap;
    let mut last = VerbError::new("ibv_create_qp_ex", libc::EOPNOTSUPP);
    for wanted in [least | more, least] {
        attr.send_ops_flags = wanted.into();
        attr.cap = caps;
        // SAFETY: the caller's promise. A queue pair that lacks a builder that it was created for is destroyed at once.
        unsafe {
            match ffi::ibv_create_qp_ex(context.raw(), attr) {
                Ok(qp) => {
                    let made = ffi::ibv_qp_to_qp_ex(qp.as_ptr())
                        .and_then(|builder| ffi::check_builders(builder.as_ptr(), wanted.into()).map(|()| builder));
                    match made {
                        Ok(builder) => return Ok((qp, (builder, wanted.into()))),
                        Err(error) => last = error,
                    }
                    ended(ffi::ibv_destroy_qp(qp.as_ptr()), &context.name);
                }
                Err(error) if matches!(error.errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => last = error,
                Err(error) => return Err(error),
            }
        }
    }
    Err(last)
}

/// One element, or several.
///
/// # Safety
/// A request is being built, and the elements name memory that the caller lends.
unsafe fn set_data(qp: *mut ibv_qp_ex, sges: &[Sge], inline: bool) -> Option<()> {
    // SAFETY: the caller's promise. Inline data is copied before the call returns.
    unsafe {
        match sges {
            [one] if inline => {
                let place = std::ptr::with_exposed_provenance_mut(one.addr as usize);
                ffi::ibv_wr_set_inline_data(qp, place, one.length as usize)
            }
            [one] => ffi::ibv_wr_set_sge(qp, one.lkey.0, one.addr, one.length),
            list if inline => {
                const MOST: usize = 64;
                let mut bufs = [ibv_data_buf::default(); MOST];
                let bufs = bufs.get_mut(..list.len())?;
                for (buf, sge) in bufs.iter_mut().zip(list) {
                    buf.addr = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
                    buf.length = sge.length as usize;
                }
                ffi::ibv_wr_set_inline_data_list(qp, bufs.len(), bufs.as_ptr())
            }
            list => ffi::ibv_wr_set_sge_list(qp, list.len(), list.as_ptr().cast::<ibv_sge>()),
        }
    }
}

/// Builds one request. `None`: the driver has no function for a part of it.
///
/// # Safety
/// Between start and complete, and as of [`set_data`].
unsafe fn build(qp: *mut ibv_qp_ex, request: &SendRequest<'_, VerbsAh>) -> Option<()> {
    // SAFETY: the caller's promise; every builder was asked for when the queue pair was created.
    unsafe {
        // The flags stay from one request to the next: they are set for each.
        ffi::wr_set_id_and_flags(qp, request.wr_id, request.flags.bits());
        match request.op {
            SendOp::Send => ffi::ibv_wr_send(qp),
            SendOp::SendWithImm(imm) => ffi::ibv_wr_send_imm(qp, imm),
            SendOp::SendWithInv(rkey) => ffi::ibv_wr_send_inv(qp, rkey.0),
            SendOp::RdmaWrite(to) => ffi::ibv_wr_rdma_write(qp, to.rkey.0, to.addr),
            SendOp::RdmaWriteWithImm(to, imm) => ffi::ibv_wr_rdma_write_imm(qp, to.rkey.0, to.addr, imm),
            SendOp::RdmaRead(from) => ffi::ibv_wr_rdma_read(qp, from.rkey.0, from.addr),
            SendOp::CompareSwap { remote, compare, swap } => {
                ffi::ibv_wr_atomic_cmp_swp(qp, remote.rkey.0, remote.addr, compare, swap)
            }
            SendOp::FetchAdd { remote, add } => ffi::ibv_wr_atomic_fetch_add(qp, remote.rkey.0, remote.addr, add),
            // It has no data.
            SendOp::LocalInv(rkey) => return ffi::ibv_wr_local_inv(qp, rkey.0),
            SendOp::Tso { header, mss } => {
                ffi::ibv_wr_send_tso(qp, header.as_ptr().cast_mut().cast(), header.len() as u16, mss)
            }
        }?;
        if let Some(to) = &request.to {
            ffi::ibv_wr_set_ud_addr(qp, to.ah.raw(), to.qp.0, to.qkey)?;
        }
        set_data(qp, request.sges, request.flags.contains(SendFlags::INLINE))
    }
}

/// Starts, builds, completes.
///
/// # Safety
/// The queue pair is alive, and `build` builds whole requests.
unsafe fn post(
    of: &VerbsQp,
    qp: *mut ibv_qp_ex,
    build: impl FnOnce(*mut ibv_qp_ex) -> Option<()>,
) -> Result<(), PostError> {
    let refuse = |error| PostError { accepted: 0, error };
    let Some(_visit) = of.send_queue().owner.visit() else {
        return Err(refuse(VerbError::new(VERB, libc::EBUSY)));
    };
    // SAFETY: the caller's promise; what was started is completed or given up.
    unsafe {
        let missing = refuse(VerbError::new(VERB, libc::EOPNOTSUPP));
        ffi::ibv_wr_start(qp).ok_or(missing)?;
        if build(qp).is_none() {
            let _ = ffi::ibv_wr_abort(qp);
            return Err(missing);
        }
        ffi::ibv_wr_complete(qp).map_err(|error| refuse(full(error)))
    }
}

/// Posts a list. `None`: this queue pair, or something in the list, takes the classic way.
///
/// # Errors
/// `EOPNOTSUPP`: an operation that the queue pair was not created for.
pub(super) fn send_list(of: &mut VerbsQp, requests: &[SendRequest<'_, VerbsAh>]) -> Option<Result<(), PostError>> {
    let (qp, operations) = of.builder?;
    let several = requests.iter().any(|request| request.sges.len() > 1);
    if several && of.body().pd.context().quirks.why(Quirk::BuilderLists).is_some() {
        return None;
    }
    let known = |request: &SendRequest<'_, VerbsAh>| operations & operation(request.op.opcode()) != 0;
    let good = requests.iter().position(|request| !known(request)).unwrap_or(requests.len());
    let build = |qp| {
        // SAFETY: between start and complete; the caller of the post lends the memory.
        requests[..good].iter().try_for_each(|request| unsafe { build(qp, request) })
    };
    // SAFETY: the queue pair is alive, and each request is built whole.
    let posted = if good > 0 { unsafe { post(of, qp.as_ptr(), build) } } else { Ok(()) };
    let unknown = PostError { accepted: good, error: VerbError::new(VERB, libc::EOPNOTSUPP) };
    Some(posted.and(if good < requests.len() { Err(unknown) } else { Ok(()) }))
}

/// Posts a list of sends with one element each. `None`: this queue pair takes the classic way.
///
/// # Safety
/// A list of so many, and the caller lends the memory.
#[inline]
pub(super) unsafe fn send_run(
    of: &mut VerbsQp,
    first: *mut ibv_send_wr,
    count: usize,
) -> Option<Result<(), PostError>> {
    let (qp, _) = of.builder?;
    let peer = of.scratch.peer.as_ref().filter(|_| of.kind == QpType::Ud);
    let build = |qp: *mut ibv_qp_ex| {
        for at in 0..count {
            // SAFETY: the caller's promise; every queue pair for building was created for sends.
            unsafe {
                let wr = &*first.add(at);
                ffi::wr_set_id_and_flags(qp, wr.wr_id, wr.send_flags);
                ffi::ibv_wr_send(qp)?;
                if let Some((ah, number, qkey)) = peer {
                    ffi::ibv_wr_set_ud_addr(qp, ah.raw(), *number, *qkey)?;
                }
                let sge = &*wr.sg_list;
                ffi::ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length)?;
            }
        }
        Some(())
    };
    // SAFETY: the queue pair is alive, and each request is built whole.
    Some(unsafe { post(of, qp.as_ptr(), build) })
}
