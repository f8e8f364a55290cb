//! Posts sends with `ibv_wr_start(3)`, the builder functions (`ibv_wr_send` and similar) and `ibv_wr_complete(3)`. The
//! driver accepts either all requests of a started list or none.
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
use super::context::{Context, check_destroyed};
use super::ffi;
use super::request::full;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{Claim, PostError, QpType, QueueOwner, SendFlags, SendOp, SendRequest, Sge, WrOpcode};

const VERB: &str = "ibv_wr_complete";

/// Returns two sets of operations (`IBV_QP_EX_WITH_*`) for a queue pair type: the operations that every driver with
/// this interface supports, and the optional operations.
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

/// Returns the flag `IBV_QP_EX_WITH_*` of an opcode, or 0 if the opcode has no flag.
fn operation(opcode: WrOpcode) -> u64 {
    // Up to `Tso`, the bits have the same order as the opcodes.
    if opcode.raw() <= WrOpcode::Tso.raw() {
        // IBV_QP_EX_WITH_*: writes, sends, read, atomics, LOCAL_INV, BIND_MW, SEND_WITH_INV, TSO.
        1 << opcode.raw()
    } else {
        0
    }
}

/// The extended send interface of a queue pair. Valid until the queue pair is destroyed.
#[derive(Clone, Copy)]
pub(super) struct Builder {
    qp: NonNull<ibv_qp_ex>,
    /// The operations that the queue pair was created with.
    operations: u64,
}

/// Creates a queue pair with all operations of its type. If the driver refuses, tries again without the optional
/// operations.
///
/// # Safety
/// The attributes must refer to valid objects of the same device.
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
        // SAFETY: the caller upholds the safety contract. If the driver lacks a required builder function, the queue
        // pair is destroyed immediately.
        unsafe {
            match ffi::ibv_create_qp_ex(context.raw(), attr) {
                Ok(qp) => {
                    let checked = ffi::ibv_qp_to_qp_ex(qp.as_ptr())
                        .and_then(|builder| ffi::check_builders(builder.as_ptr(), wanted.into()).map(|()| builder));
                    match checked {
                        Ok(builder) => return Ok((qp, Builder { qp: builder, operations: wanted.into() })),
                        Err(error) => last = error,
                    }
                    check_destroyed(ffi::ibv_destroy_qp(qp.as_ptr()), &context.name);
                }
                Err(error) if matches!(error.errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => last = error,
                Err(error) => return Err(error),
            }
        }
    }
    Err(last)
}

/// Sets the scatter/gather elements of the current request. Returns `None` if the driver lacks a required function, or
/// if an inline request has more than 64 elements.
///
/// # Safety
/// A request must be under construction. The caller must keep the memory of the elements valid.
unsafe fn set_data(qp: *mut ibv_qp_ex, sges: &[Sge], inline: bool) -> Option<()> {
    // SAFETY: the caller upholds the safety contract. Inline data is copied before the call returns.
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

/// Builds one request. Returns `None` if the driver lacks a required function, or if an inline request has more than 64
/// elements.
///
/// # Safety
/// The call must be between `ibv_wr_start` and `ibv_wr_complete`. The conditions of [`set_data`] apply.
unsafe fn build(qp: *mut ibv_qp_ex, request: &SendRequest<'_, VerbsAh>) -> Option<()> {
    // SAFETY: the caller upholds the safety contract. The wrappers in `ffi` return `None` if the driver lacks a builder
    // function.
    unsafe {
        // The driver keeps the flags for later requests, so every request sets its own flags.
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
            // An invalidation has no data.
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

impl Builder {
    /// Starts a list, calls `build` and completes the list. `owner` controls the access to the send completion queue.
    ///
    /// # Safety
    /// The queue pair must be valid, and `build` must build complete requests.
    #[inline]
    unsafe fn post(
        self,
        owner: &QueueOwner,
        build: impl FnOnce(*mut ibv_qp_ex) -> Option<()>,
    ) -> Result<(), PostError> {
        let qp = self.qp.as_ptr();
        let refuse = |error| PostError { accepted: 0, error };
        let Some(_guard) = owner.claim(Claim::Temporary) else {
            return Err(refuse(VerbError::new(VERB, libc::EBUSY)));
        };
        // SAFETY: the caller upholds the safety contract. Every started list is completed or aborted.
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

    /// Posts a list of requests. `owner` controls the access to the send completion queue.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the queue pair was created without the operation that a request needs. The requests before that
    /// request are posted.
    ///
    /// # Safety
    /// The queue pair must be valid. The caller must keep the memory of the requests valid.
    pub(super) unsafe fn send_list(
        self,
        owner: &QueueOwner,
        requests: &[SendRequest<'_, VerbsAh>],
    ) -> Result<(), PostError> {
        let known = |request: &SendRequest<'_, VerbsAh>| self.operations & operation(request.op.opcode()) != 0;
        let good = requests.iter().position(|request| !known(request)).unwrap_or(requests.len());
        let build = |qp| {
            // SAFETY: the call is between `ibv_wr_start` and `ibv_wr_complete`. The caller keeps the memory of the
            // requests valid.
            requests[..good].iter().try_for_each(|request| unsafe { build(qp, request) })
        };
        if good > 0 {
            // SAFETY: the caller upholds the safety contract, and each request is built completely.
            unsafe { self.post(owner, build) }?;
        }
        match good < requests.len() {
            true => Err(PostError { accepted: good, error: VerbError::new(VERB, libc::EOPNOTSUPP) }),
            false => Ok(()),
        }
    }

    /// Posts a run: a list of sends with one scatter/gather element each. `owner` controls the access to the send
    /// completion queue. `peer` is the destination of datagrams: the address handle, the queue pair number and the
    /// Q_Key.
    ///
    /// # Safety
    /// The queue pair must be valid. `first` must point to `count` requests, whose memory the caller must keep valid.
    #[inline]
    pub(super) unsafe fn send_run(
        self,
        owner: &QueueOwner,
        peer: Option<&(VerbsAh, u32, u32)>,
        first: *mut ibv_send_wr,
        count: usize,
    ) -> Result<(), PostError> {
        let build = |qp: *mut ibv_qp_ex| {
            for at in 0..count {
                // SAFETY: the caller upholds the safety contract. A queue pair with this interface always supports
                // sends.
                unsafe {
                    let wr = &*first.add(at);
                    ffi::wr_set_id_and_flags(qp, wr.wr_id, wr.send_flags);
                    ffi::ibv_wr_send(qp)?;
                    if let Some((ah, number, qkey)) = peer {
                        ffi::ibv_wr_set_ud_addr(qp, ah.raw(), *number, *qkey)?;
                    }
                    let sge = &*wr.sg_list;
                    if wr.send_flags & SendFlags::INLINE.bits() == 0 {
                        ffi::ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length)?;
                    } else {
                        let place = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
                        ffi::ibv_wr_set_inline_data(qp, place, sge.length as usize)?;
                    }
                }
            }
            Some(())
        };
        // SAFETY: the caller upholds the safety contract, and each request is built completely.
        unsafe { self.post(owner, build) }
    }
}
