//! Work queues, indirection tables, flow rules and flow counters of the fake device.

use std::ffi::c_int;
use std::slice;

use ibverbs_sys::*;

use super::flow::FakeFlow;
use super::qp::recvs;
use super::{Call, fail, state};

pub(super) unsafe extern "C" fn create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: the context belongs to a fake, and the caller provides the attributes.
    unsafe {
        let ibv_wq_init_attr { wq_type: kind, max_wr, max_sge, pd, cq, comp_mask, create_flags: flags, .. } = *attr;
        let cq_number = (*cq).handle;
        let call = Call::CreateWq { kind, max_wr, max_sge, cq: cq_number, comp_mask, flags };
        match state(context).note("ibv_create_wq", call) {
            0 => {}
            errno => return fail(errno),
        }
        match state(context).refused_queue([cq]) {
            0 => {}
            errno => return fail(errno),
        }
        // Like a real driver, round the size up.
        (*attr).max_wr = max_wr.next_power_of_two();
        let number = state(context).number("wq");
        let wq = ibv_wq {
            context,
            pd,
            cq,
            wq_num: number,
            handle: number,
            wq_type: kind,
            post_recv: Some(post_wq_recv),
            ..Default::default()
        };
        Box::into_raw(Box::new(wq))
    }
}

pub(super) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    // SAFETY: the WQ belongs to a fake, and the caller provides the attributes.
    unsafe {
        let ibv_wq_attr { attr_mask: mask, wq_state, curr_wq_state: current, flags, flags_mask } = *attr;
        let number = (*wq).wq_num;
        let call = Call::ModifyWq { wq: number, mask, state: wq_state, current, flags, flags_mask };
        let mut state = state((*wq).context);
        let error = state.note("ibv_modify_wq", call);
        if error != 0 {
            return error;
        }
        // The caller may pass the current state. Otherwise the kernel passes the state that was set last. The device
        // refuses the change if the passed state is not the actual state.
        let names_error = mask & IBV_WQ_ATTR_CURR_STATE != 0 && current == IBV_WQS_ERR;
        if state.failed_wqs.contains(&number) && !names_error {
            return libc::EINVAL;
        }
        state.failed_wqs.remove(&number);
        (*wq).state = wq_state;
        match wq_state {
            IBV_WQS_ERR => state.flush_wq(number, (*(*wq).cq).handle),
            IBV_WQS_RESET => drop(state.wq_posted.remove(&number)),
            _ => {}
        }
        0
    }
}

pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: the WQ belongs to a fake, and nothing uses it any more.
    unsafe {
        let mut state = state((*wq).context);
        state.live -= 1;
        let error = state.note("ibv_destroy_wq", Call::DestroyWq((*wq).wq_num));
        drop(Box::from_raw(wq));
        error
    }
}

pub(super) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    // SAFETY: the context belongs to a fake. The attributes contain the number of WQs in their list.
    unsafe {
        let ibv_rwq_ind_table_init_attr { log_ind_tbl_size: log_size, ind_tbl, comp_mask } = *attr;
        let wqs = slice::from_raw_parts(ind_tbl, 1 << log_size).iter().map(|wq| (**wq).wq_num).collect();
        let mut state = state(context);
        match state.note("ibv_create_rwq_ind_table", Call::CreateTable { log_size, wqs, comp_mask }) {
            0 => {}
            errno => return fail(errno),
        }
        let number = state.number("table").cast_signed();
        Box::into_raw(Box::new(ibv_rwq_ind_table {
            context,
            ind_tbl_handle: number,
            ind_tbl_num: number,
            comp_mask: 0,
        }))
    }
}

pub(super) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: the table belongs to a fake, and nothing uses it any more.
    unsafe {
        let mut state = state((*table).context);
        state.live -= 1;
        let call = Call::DestroyTable((*table).ind_tbl_num.cast_unsigned());
        let error = state.note("ibv_destroy_rwq_ind_table", call);
        drop(Box::from_raw(table));
        error
    }
}

pub(super) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    // SAFETY: the QP belongs to a fake. The attributes contain their own length.
    unsafe {
        let context = (*qp).context;
        let bytes = slice::from_raw_parts(attr.cast::<u8>(), usize::from((*attr).size)).to_vec();
        let mut state = state(context);
        let flow = FakeFlow::new(&bytes);
        let flow = match (state.note("ibv_create_flow", Call::CreateFlow { qp: (*qp).qp_num, bytes }), flow) {
            (0, Ok(flow)) => flow,
            (0, Err(errno)) | (errno, _) => return fail(errno),
        };
        let handle = state.number("flow");
        state.flows.push((handle, flow));
        Box::into_raw(Box::new(ibv_flow { comp_mask: 0, context, handle }))
    }
}

pub(super) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    // SAFETY: the flow rule belongs to a fake, and nothing uses it any more.
    unsafe {
        let mut state = state((*flow).context);
        state.live -= 1;
        let handle = (*flow).handle;
        state.flows.retain(|(number, _)| *number != handle);
        let error = state.note("ibv_destroy_flow", Call::DestroyFlow(handle));
        drop(Box::from_raw(flow));
        error
    }
}

pub(super) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    _: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    // SAFETY: the context belongs to a fake.
    let mut state = unsafe { state(context) };
    match state.note("ibv_create_counters", Call::CreateCounters) {
        0 => {}
        errno => return fail(errno),
    }
    state.number("counters");
    Box::into_raw(Box::new(ibv_counters { context }))
}

pub(super) unsafe extern "C" fn attach_counters(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    // SAFETY: the counters belong to a fake, and the caller provides the attributes.
    unsafe {
        let ibv_counter_attach_attr { counter_desc: description, index, .. } = *attr;
        let call = Call::AttachCounters { description, index, flow: !flow.is_null() };
        state((*counters).context).note("ibv_attach_counters_point_flow", call)
    }
}

pub(super) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the counters belong to a fake, and there is space for the requested values.
    unsafe {
        let mut state = state((*counters).context);
        for (at, value) in state.counters.iter().take(count as usize).enumerate() {
            values.add(at).write(*value);
        }
        match state.note("ibv_read_counters", Call::ReadCounters { count, flags }) {
            // The kernel refuses to read counters that no flow rule uses.
            0 if state.counter_uses(counters) == 0 => libc::EINVAL,
            errno => errno,
        }
    }
}

pub(super) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    // SAFETY: the counters belong to a fake, and nothing uses them any more.
    unsafe {
        let mut state = state((*counters).context);
        if state.counter_uses(counters) > 0 {
            return libc::EBUSY;
        }
        state.live -= 1;
        let error = state.note("ibv_destroy_counters", Call::DestroyCounters);
        drop(Box::from_raw(counters));
        error
    }
}

unsafe extern "C" fn post_wq_recv(wq: *mut ibv_wq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the WQ belongs to a fake, and the caller provides the list.
    unsafe {
        let list = recvs(wr);
        let wr_ids = list.iter().map(|recv| recv.wr_id).collect::<Vec<_>>();
        let mut state = state((*wq).context);
        let error = state.note("ibv_post_wq_recv", Call::PostWqRecv { wq: (*wq).wq_num, list });
        if error != 0 {
            bad.write(wr);
        } else {
            state.wq_posted.entry((*wq).wq_num).or_default().extend(wr_ids);
            if (*wq).state == IBV_WQS_ERR || state.failed_wqs.contains(&(*wq).wq_num) {
                state.flush_wq((*wq).wq_num, (*(*wq).cq).handle);
            }
        }
        error
    }
}
