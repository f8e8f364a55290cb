//! The exported functions of libibverbs in test builds. A call on an object of the fake device goes to the fake device.
//! All other calls go to libibverbs.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::cq::{FakeCq, new_cq};
use super::events::new_mr;
use super::memory::{create_srq, dereg_mr};
use super::qp::{FakeQp, new_qp};
use super::{Call, DEVICES, fail, fake_device, state};

pub(crate) use ibverbs_sys::*;

/// # Safety
/// The context must be valid.
unsafe fn is_fake(context: *mut ibv_context) -> bool {
    // SAFETY: the caller upholds the safety contract.
    DEVICES.as_ptr_range().contains(&unsafe { (*context).device.cast_const() })
}

macro_rules! symbols {
    ($(fn $verb:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)*) -> $returned:ty,
        $context:expr => $fake:expr;)+) => {$(
        pub(crate) unsafe fn $verb($first: $first_type $(, $argument: $type)*) -> $returned {
            // SAFETY: the caller upholds the safety contract: objects are valid, and structures contain what the man
            // page requires.
            unsafe {
                if is_fake($context) { $fake } else { ibverbs_sys::$verb($first $(, $argument)*) }
            }
        }
    )+};
}

symbols! {
    fn ibv_close_device(context: *mut ibv_context) -> c_int, context => 0;
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int, context => {
        attr.write(fake_device(context).attr.orig_attr);
        0
    };
    fn _ibv_query_gid_table(context: *mut ibv_context, _entries: *mut ibv_gid_entry, _most: usize, _flags: u32,
        _size: usize) -> isize, context => 0;
    fn _ibv_query_gid_ex(context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, _flags: u32,
        _size: usize) -> c_int, context => match (port, index) {
            (1, 3) => {
                let mut raw = [0; 16];
                raw[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
                let gid = ibv_gid { raw };
                entry.write(ibv_gid_entry { gid, gid_index: 3, port_num: 1, gid_type: 2, ndev_ifindex: 7 });
                0
            }
            (1, _) => libc::ENODATA,
            _ => libc::EINVAL,
        };
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, (*qp).context => {
        ece.write(ibv_ece { vendor_id: 0x15b3, options: 0x3000_0002, comp_mask: 0 });
        0
    };
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, (*qp).context => {
        let ibv_ece { vendor_id: vendor, options, comp_mask } = *ece;
        // The device accepts only the low 16 option bits.
        (*ece).options &= 0xffff;
        state((*qp).context).note("ibv_set_ece", Call::SetEce { qp: (*qp).qp_num, vendor, options, comp_mask })
    };
    fn ibv_query_pkey(context: *mut ibv_context, _port: u8, _index: c_int, pkey: *mut u16) -> c_int, context => {
        pkey.write(0xffff);
        0
    };
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq, (*pd).context
        => create_srq(pd, (*attr).srq_context);
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int, (*srq).context => {
        state((*srq).context).live -= 1;
        drop(Box::from_raw(srq));
        0
    };
    fn ibv_create_ah(pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah, (*pd).context => {
        let mut state = state((*pd).context);
        match state.refused("ibv_create_ah") {
            0 => Box::into_raw(Box::new(ibv_ah { context: (*pd).context, pd, handle: state.number("ah") })),
            errno => fail(errno),
        }
    };
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int, (*ah).context => {
        state((*ah).context).live -= 1;
        drop(Box::from_raw(ah));
        0
    };
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, context => Box::into_raw(Box::new(ibv_pd { context, handle: state(context).number("pd") }));
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, (*pd).context => {
        state((*pd).context).live -= 1;
        drop(Box::from_raw(pd));
        0
    };
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, user: *mut c_void, channel: *mut ibv_comp_channel,
        vector: c_int) -> *mut ibv_cq, context => {
            let mut error = state(context).note("ibv_create_cq", Call::CreateCq { cqe: cqe.cast_unsigned() });
            if !channel.is_null() && state(context).refuses_channels {
                error = libc::EOPNOTSUPP;
            }
            if error == 0 { new_cq(context, cqe.cast_unsigned(), 0, user).cast() } else { fail(error) }
        };
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, (*cq).context => {
        let fake = cq.cast::<FakeCq>();
        let mut state = state((*cq).context);
        if (*fake).polling {
            state.calls.push(Call::Misuse("ibv_destroy_cq inside a poll"));
        }
        if state.events.due((*cq).handle) > 0 {
            state.calls.push(Call::Misuse("ibv_destroy_cq of a queue with unacknowledged events never returns"));
        }
        state.live -= 1;
        let error = state.note("ibv_destroy_cq", Call::DestroyCq((*cq).handle));
        drop(Box::from_raw(fake));
        error
    };
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, (*pd).context => {
        (*attr).cap.max_inline_data = state((*pd).context).granted_inline((*attr).cap.max_inline_data);
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
        let mut error = state((*pd).context).note("ibv_create_qp", call);
        if error == 0 {
            error = state((*pd).context).refused_queue([plain.send_cq, plain.recv_cq]);
        }
        if plain.cap.max_inline_data > 0 && state((*pd).context).no_inline {
            return fail(libc::EINVAL);
        }
        if error == 0 { new_qp((*pd).context, &extended) } else { fail(error) }
    };
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, (*qp).context => {
        let ibv_qp_attr { qp_state, port_num: port, rate_limit, .. } = *attr;
        let mask = mask.cast_unsigned();
        let call = Call::ModifyQp { qp: (*qp).qp_num, mask, state: qp_state, port, rate_limit };
        let mut state = state((*qp).context);
        let error = state.note("ibv_modify_qp", call);
        if mask & 1 != 0 && state.refused_states.contains(&((*qp).qp_num, qp_state)) {
            return libc::EINVAL;
        }
        if mask & 1 != 0 && state.is_final((*qp).qp_num, qp_state) {
            return libc::EINVAL;
        }
        if error == 0 && mask & 1 != 0 {
            (*qp).state = qp_state;
            state.flush(qp, qp_state);
        }
        error
    };
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, _init: *mut ibv_qp_init_attr) -> c_int,
        (*qp).context => {
        let error = state((*qp).context).refused_query(mask.cast_unsigned());
        if error != 0 {
            return error;
        }
        if (*qp).qp_type == ibv_qp_type::IBV_QPT_RAW_PACKET {
            // With mlx5, this query returns a state that the driver has stored, or it fails and the kernel logs a
            // warning.
            state((*qp).context).calls.push(Call::Misuse("ibv_query_qp of a raw-packet queue pair"));
        }
        attr.write(ibv_qp_attr { qp_state: (*qp).state, ..Default::default() });
        0
    };
    fn ibv_attach_mcast(qp: *mut ibv_qp, _group: *const ibv_gid, _lid: u16) -> c_int, (*qp).context =>
        state((*qp).context).refused("ibv_attach_mcast");
    fn ibv_detach_mcast(qp: *mut ibv_qp, _group: *const ibv_gid, _lid: u16) -> c_int, (*qp).context =>
        state((*qp).context).refused("ibv_detach_mcast");
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, (*qp).context => {
        let mut state = state((*qp).context);
        state.live -= 1;
        let error = state.note("ibv_destroy_qp", Call::DestroyQp((*qp).qp_num));
        drop(Box::from_raw(qp.cast::<FakeQp>()));
        error
    };
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, (*qp).context => if (*qp.cast::<FakeQp>()).extended { qp.cast() } else { ptr::null_mut() };
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel, context => {
        state(context).number("channel");
        let fd = state(context).channel_fd.unwrap_or(-1);
        Box::into_raw(Box::new(ibv_comp_channel { context, fd, refcnt: 0 }))
    };
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int, (*channel).context => {
        state((*channel).context).live -= 1;
        drop(Box::from_raw(channel));
        0
    };
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, user: *mut *mut c_void) -> c_int,
        (*channel).context => match state((*channel).context).events.take() {
            Some(of) => {
                cq.write(of.as_ptr());
                user.write((*of.as_ptr()).cq_context);
                0
            }
            None => {
                fail::<u8>(libc::EAGAIN);
                -1
            }
        };
    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) -> (), (*cq).context => {
        let mut state = state((*cq).context);
        state.events.acknowledge((*cq).handle, events);
        state.calls.push(Call::AckCq { cq: (*cq).handle, events });
    };
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, context => {
        match state(context).events.take_async() {
            Ok(next) => {
                event.write(next);
                0
            }
            Err(errno) => {
                fail::<u8>(errno);
                -1
            }
        }
    };
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr, (*pd).context =>
        new_mr(pd, addr, length, access.cast_unsigned(), false);
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr,
        (*pd).context => new_mr(pd, addr, length, access, true);
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, (*mr).context => dereg_mr(mr);
}

/// # Safety
/// Same as the verb: the object of the event must be valid.
pub(crate) unsafe fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        match super::events::context_of(&*event) {
            Some(context) if is_fake(context) => state(context).calls.push(Call::AckAsync),
            // An event of a port or of the whole device refers to no object. libibverbs does nothing for such an event.
            _ => ibverbs_sys::ibv_ack_async_event(event),
        }
    }
}
