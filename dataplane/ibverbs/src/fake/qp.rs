//! Queue pairs of the fake device: their creation, posts, and the building of requests.

use std::ffi::{c_int, c_void};
use std::slice;

use ibverbs_sys::*;

use super::{Call, Op, Recv, Send, fail, state};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

#[repr(C)]
pub(super) struct FakeQp {
    qp: ibv_qp_ex,
    pub(super) extended: bool,
    /// Whether each send creates a completion: `sq_sig_all` of the creation.
    signal_all: bool,
}

/// # Safety
/// `list` must be null, or point to `count` elements, and to at least one element.
unsafe fn sges(list: *const ibv_sge, count: c_int) -> Vec<(u64, u32, u32)> {
    if count == 0 {
        // Some libraries read the first element of a request without elements.
        // SAFETY: the caller upholds the safety contract: a pointer that is not null refers to an element.
        let _ = unsafe { list.as_ref() }.map(|sge| std::hint::black_box(sge.addr));
        return Vec::new();
    }
    // SAFETY: the caller upholds the safety contract.
    let list = unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap()) };
    list.iter().map(|sge| (sge.addr, sge.length, sge.lkey)).collect()
}

/// # Safety
/// `wr` must point to a list of receives.
pub(super) unsafe fn recvs(mut wr: *const ibv_recv_wr) -> Vec<Recv> {
    let mut list = Vec::new();
    // SAFETY: the caller upholds the safety contract.
    while let Some(recv) = unsafe { wr.as_ref() } {
        // SAFETY: the caller upholds the safety contract.
        list.push(Recv { wr_id: recv.wr_id, sges: unsafe { sges(recv.sg_list, recv.num_sge) } });
        wr = recv.next;
    }
    list
}

/// # Safety
/// The context must belong to a fake, and the attributes must be valid.
pub(super) unsafe fn new_qp(context: *mut ibv_context, attr: &ibv_qp_init_attr_ex) -> *mut ibv_qp {
    let send_ops = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    let mut qp = ibv_qp_ex::default();
    // SAFETY: the caller upholds the safety contract.
    let number = unsafe { state(context) }.number("qp");
    qp.qp_base = ibv_qp {
        context,
        qp_context: attr.qp_context,
        pd: attr.pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: number,
        qp_num: number,
        qp_type: attr.qp_type,
        ..Default::default()
    };
    if send_ops {
        qp.wr_start = Some(wr_start);
        qp.wr_complete = Some(wr_complete);
        qp.wr_abort = Some(wr_abort);
        qp.wr_set_sge = Some(wr_set_sge);
        qp.wr_set_sge_list = Some(wr_set_sge_list);
        qp.wr_set_inline_data = Some(wr_set_inline_data);
        qp.wr_set_ud_addr = Some(wr_set_ud_addr);
        let asked = |bit: u32| attr.send_ops_flags & u64::from(bit) != 0;
        qp.wr_send = asked(IBV_QP_EX_WITH_SEND).then_some(wr_send as _);
        qp.wr_send_imm = asked(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
        qp.wr_send_inv = asked(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv as _);
        qp.wr_send_tso = asked(IBV_QP_EX_WITH_TSO).then_some(wr_send_tso as _);
        qp.wr_rdma_write = asked(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
        qp.wr_rdma_write_imm = asked(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm as _);
        qp.wr_rdma_read = asked(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read as _);
        qp.wr_atomic_cmp_swp = asked(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_compare_swap as _);
        qp.wr_atomic_fetch_add = asked(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_fetch_add as _);
        qp.wr_local_inv = asked(IBV_QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv as _);
    }
    let signal_all = attr.sq_sig_all != 0;
    Box::into_raw(Box::new(FakeQp { qp, extended: send_ops, signal_all })).cast()
}

pub(super) unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the context belongs to a fake, and the caller provides the attributes. The key has the given length.
    unsafe {
        let attr = &mut *attr;
        attr.cap.max_inline_data = state(context).granted_inline(attr.cap.max_inline_data);
        let attr = &*attr;
        let call = if attr.comp_mask & IBV_QP_INIT_ATTR_RX_HASH != 0 {
            let hash = attr.rx_hash_conf;
            Call::CreateHashQp {
                kind: attr.qp_type,
                comp_mask: attr.comp_mask,
                table: (*attr.rwq_ind_tbl).ind_tbl_num.cast_unsigned(),
                function: hash.rx_hash_function,
                key: slice::from_raw_parts(hash.rx_hash_key, usize::from(hash.rx_hash_key_len)).to_vec(),
                fields: hash.rx_hash_fields_mask,
            }
        } else {
            Call::CreateQp {
                kind: attr.qp_type,
                send: attr.cap.max_send_wr,
                recv: attr.cap.max_recv_wr,
                comp_mask: attr.comp_mask,
                flags: attr.create_flags,
                send_ops: attr.send_ops_flags,
                max_tso_header: attr.max_tso_header,
            }
        };
        let mut error = state(context).note("ibv_create_qp_ex", call);
        if error == 0 {
            error = state(context).refused_queue([attr.send_cq, attr.recv_cq]);
        }
        if attr.cap.max_inline_data > 0 && state(context).no_inline {
            return fail(libc::EINVAL);
        }
        if error == 0 { new_qp(context, attr) } else { fail(error) }
    }
}

pub(super) unsafe extern "C" fn modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int {
    // SAFETY: the QP belongs to a fake, and the caller provides the attributes.
    unsafe {
        let ibv_qp_rate_limit_attr { rate_limit, max_burst_sz: burst, typical_pkt_sz: packet, comp_mask } = *attr;
        let call = Call::RateLimit { qp: (*qp).qp_num, rate_limit, burst, packet, comp_mask };
        state((*qp).context).note("ibv_modify_qp_rate_limit", call)
    }
}

pub(super) unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the QP belongs to a fake, and the caller provides the list.
    unsafe {
        let list = recvs(wr);
        let mut state = state((*qp).context);
        let ignored = state.ignored_receives;
        let seen = list.iter().filter(|recv| ignored.is_none_or(|most| recv.sges.len() > most));
        let wr_ids = seen.map(|recv| recv.wr_id).collect::<Vec<_>>();
        let error = state.note("ibv_post_recv", Call::PostRecv(list));
        if error != 0 {
            bad.write(state.bad("ibv_post_recv", wr, |wr| (*wr).next));
        } else {
            state.posted.entry((*qp).qp_num).or_default().extend(wr_ids);
        }
        error
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the SRQ belongs to a fake, and the caller provides the list.
    unsafe {
        let error = state((*srq).context).note("ibv_post_srq_recv", Call::PostSrqRecv(recvs(wr)));
        if error != 0 {
            bad.write(state((*srq).context).bad("ibv_post_srq_recv", wr, |wr| (*wr).next));
        }
        error
    }
}

pub(super) unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the QP belongs to a fake, and the caller provides the list.
    unsafe {
        let mut list = Vec::new();
        let mut at = wr.cast_const();
        while let Some(send) = at.as_ref() {
            let sges = sges(send.sg_list, send.num_sge);
            list.push(Send { wr_id: send.wr_id, opcode: send.opcode, flags: send.send_flags, sges });
            at = send.next;
        }
        let refuses = state((*qp).context).refuses_unsignalled && !(*qp.cast::<FakeQp>()).signal_all;
        let unsignalled = list.iter().position(|send| refuses && send.flags & SIGNALED == 0);
        let error = state((*qp).context).note("ibv_post_send", Call::PostSend(list));
        if let Some(at) = unsignalled {
            bad.write((0..at).fold(wr, |wr, _| (*wr).next));
            return libc::EINVAL;
        }
        if error != 0 {
            bad.write(state((*qp).context).bad("ibv_post_send", wr, |wr| (*wr).next));
        }
        error
    }
}

/// Records a call of a builder function.
///
/// # Safety
/// The queue pair must belong to a fake.
unsafe fn build(qp: *mut ibv_qp_ex, op: Op) {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let call = Call::Wr { wr_id: (*qp).wr_id, flags: (*qp).wr_flags, op };
        state((*qp).qp_base.context).calls.push(call);
    }
}

macro_rules! builders {
    ($($name:ident($($argument:ident: $type:ty),*) = $op:expr;)+) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the QP belongs to a fake.
            unsafe { build(qp, $op) }
        }
    )+};
}

builders! {
    wr_send() = Op::Send;
    wr_send_imm(imm: u32) = Op::SendImm(imm);
    wr_send_inv(rkey: u32) = Op::SendInv(rkey);
    wr_rdma_write(rkey: u32, addr: u64) = Op::Write { rkey, addr };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = Op::WriteImm { rkey, addr, imm };
    wr_rdma_read(rkey: u32, addr: u64) = Op::Read { rkey, addr };
    wr_compare_swap(rkey: u32, addr: u64, compare: u64, swap: u64) = Op::CompareSwap { rkey, addr, compare, swap };
    wr_fetch_add(rkey: u32, addr: u64, add: u64) = Op::FetchAdd { rkey, addr, add };
    wr_local_inv(rkey: u32) = Op::LocalInv(rkey);
    wr_send_tso(header: *mut c_void, length: u16, mss: u16)
        = Op::Tso { header: slice::from_raw_parts(header.cast::<u8>(), usize::from(length)).to_vec(), mss };
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the QP belongs to a fake.
    unsafe { state((*qp).qp_base.context).calls.push(Call::WrStart) };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the QP belongs to a fake.
    unsafe { state((*qp).qp_base.context).note("ibv_wr_complete", Call::WrComplete) }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the QP belongs to a fake.
    unsafe { state((*qp).qp_base.context).calls.push(Call::WrAbort) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the QP belongs to a fake.
    unsafe { state((*qp).qp_base.context).calls.push(Call::WrSges(vec![(addr, length, lkey)])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the QP belongs to a fake, and the caller provides the list.
    unsafe { state((*qp).qp_base.context).calls.push(Call::WrSges(sges(list, c_int::try_from(count).unwrap()))) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, data: *mut c_void, length: usize) {
    // SAFETY: the QP belongs to a fake, and the caller provides the bytes.
    unsafe {
        let bytes = slice::from_raw_parts(data.cast::<u8>(), length).to_vec();
        state((*qp).qp_base.context).calls.push(Call::WrInline(bytes));
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, _: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the QP belongs to a fake.
    unsafe { state((*qp).qp_base.context).calls.push(Call::WrUdAddr { qpn, qkey }) };
}
