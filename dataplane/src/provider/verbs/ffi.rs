//! Every call into libibverbs. What comes out of here is plain data.
//!
//! Functions have the names of their man pages and their arguments. Three kinds of them: symbols that the library
//! exports, members of the `verbs_context` of a driver, and members of the context, CQ, QP and WQ that a driver made.
//! C headers have the last two kinds as inline functions, so no binding has them. None is called before it was looked
//! at: drivers leave out what they cannot do, or mark it with a small number.
//!
//! Answers follow the man pages: a pointer, or null and `errno`; or 0, or the error itself, or -1 and `errno`. Numbers
//! that C has as enumerations are read as integers, so an unknown one is a number like any other.
#![allow(unsafe_code)]
// The interface is here as a whole: what nothing uses yet is no less a verb.
#![allow(dead_code)]

#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::slice;

use ibverbs_sys::*;

use crate::error::VerbError;

// The symbols of the library. In tests objects of the fake device go to the fake.
#[cfg(test)]
use super::fake::library;
#[cfg(not(test))]
use ibverbs_sys as library;

/// What a driver has beyond [`ibv_context_ops`]: the structure in front of every context (verbs.h, `struct
/// verbs_context`). Libraries put new members in front of these, so places count from the end.
#[repr(C)]
#[allow(non_snake_case)]
pub(super) struct VerbsContext {
    pub(super) query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub(super) advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
    pub(super) alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub(super) read_counters: Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int>,
    pub(super) attach_counters_point_flow:
        Option<unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int>,
    pub(super) create_counters:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters>,
    pub(super) destroy_counters: Option<unsafe extern "C" fn(*mut ibv_counters) -> c_int>,
    pub(super) reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub(super) alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub(super) free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub(super) modify_flow_action_esp:
        Option<unsafe extern "C" fn(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int>,
    pub(super) destroy_flow_action: Option<unsafe extern "C" fn(*mut ibv_flow_action) -> c_int>,
    pub(super) create_flow_action_esp:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action>,
    pub(super) modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int>,
    pub(super) alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub(super) dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub(super) alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub(super) modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub(super) post_srq_ops: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int>,
    pub(super) destroy_rwq_ind_table: Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int>,
    pub(super) create_rwq_ind_table:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table>,
    pub(super) destroy_wq: Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int>,
    pub(super) modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>,
    pub(super) create_wq: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq>,
    pub(super) query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub(super) create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    /// The library's own.
    pub(super) r#priv: *mut c_void,
    pub(super) query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub(super) ibv_destroy_flow: Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int>,
    pub(super) ABI_placeholder2: Option<unsafe extern "C" fn()>,
    pub(super) ibv_create_flow: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
    pub(super) ABI_placeholder1: Option<unsafe extern "C" fn()>,
    pub(super) open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub(super) create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub(super) get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub(super) create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub(super) open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub(super) close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub(super) _ABI_placeholder3: u64,
    /// How many bytes of this the driver has, counted from the end.
    pub(super) sz: usize,
    /// What programs see.
    pub(super) context: ibv_context,
}

/// A work completion (`struct ibv_wc`). The binding's own type hides some of its members.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network order. With the flag `IBV_WC_WITH_INV` the key that was invalidated, in host order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// The layout that libibverbs has had since its first private ABI 34: versions 44 to 55 agree in all of it.
const _: () = {
    macro_rules! places {
        ($($place:literal $member:ident),+ $(,)?) => { $(assert!(offset_of!(VerbsContext, $member) == $place);)+ };
    }
    places!(
        0 query_port, 8 advise_mr, 16 alloc_null_mr, 24 read_counters, 32 attach_counters_point_flow,
        40 create_counters, 48 destroy_counters, 56 reg_dm_mr, 64 alloc_dm, 72 free_dm, 80 modify_flow_action_esp,
        88 destroy_flow_action, 96 create_flow_action_esp, 104 modify_qp_rate_limit, 112 alloc_parent_domain,
        120 dealloc_td, 128 alloc_td, 136 modify_cq, 144 post_srq_ops, 152 destroy_rwq_ind_table,
        160 create_rwq_ind_table, 168 destroy_wq, 176 modify_wq, 184 create_wq, 192 query_rt_values,
        200 create_cq_ex, 208 r#priv, 216 query_device_ex, 224 ibv_destroy_flow, 232 ABI_placeholder2,
        240 ibv_create_flow, 248 ABI_placeholder1, 256 open_qp, 264 create_qp_ex, 272 get_srq_num,
        280 create_srq_ex, 288 open_xrcd, 296 close_xrcd, 304 _ABI_placeholder3, 312 sz, 320 context,
    );
    macro_rules! sizes {
        ($($size:literal $type:ty),+ $(,)?) => { $(assert!(size_of::<$type>() == $size);)+ };
    }
    sizes!(
        48 ibv_wc, 48 Wc, 56 ibv_cq_init_attr_ex, 232 ibv_device_attr, 400 ibv_device_attr_ex,
        136 ibv_qp_init_attr_ex, 128 ibv_send_wr, 32 ibv_recv_wr, 16 ibv_sge, 144 ibv_qp_attr, 40 ibv_grh,
        24 ibv_rx_hash_conf, 32 ibv_ah_attr, 24 ibv_values_ex, 16 ibv_async_event, 20 ibv_flow_attr,
        40 ibv_flow_spec_eth, 24 ibv_flow_spec_ipv4, 32 ibv_flow_spec_ipv4_ext, 88 ibv_flow_spec_ipv6,
        16 ibv_flow_spec_tcp_udp, 16 ibv_flow_spec_tunnel, 24 ibv_flow_spec_gre, 16 ibv_flow_spec_mpls,
        12 ibv_flow_spec_action_tag, 8 ibv_flow_spec_action_drop, 16 ibv_flow_spec_counter_action,
        8 Option<unsafe extern "C" fn()>,
    );
    // These have a mutex of the C library, which differs between processors.
    if cfg!(target_arch = "x86_64") {
        sizes!(328 ibv_context, 648 VerbsContext, 288 ibv_cq_ex, 152 ibv_wq);
    }
    // Newer versions add members to the end of these. The places up to there are what counts.
    assert!(size_of::<ibv_port_attr>() >= 52 && offset_of!(ibv_port_attr, port_cap_flags2) == 48);
    assert!(offset_of!(ibv_qp_ex, wr_atomic_write) == offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) + 20 * 8);
    assert!(align_of::<Wc>() == align_of::<ibv_wc>());
};

/// What the library answers, as a result.
pub(super) trait Answer {
    /// What it is on success.
    type Value;
    /// The value, or the verb and its error.
    fn value(self, verb: &'static str) -> Result<Self::Value, VerbError>;
}

/// An object, or null and `errno`.
impl<T> Answer for *mut T {
    type Value = NonNull<T>;

    fn value(self, verb: &'static str) -> Result<NonNull<T>, VerbError> {
        NonNull::new(self).ok_or_else(|| last(verb))
    }
}

/// 0, or the error itself, or -1 and `errno`. Some drivers negate the error.
impl Answer for c_int {
    type Value = ();

    fn value(self, verb: &'static str) -> Result<(), VerbError> {
        match self {
            0 => Ok(()),
            -1 => Err(last(verb)),
            error => Err(VerbError::new(verb, error.saturating_abs())),
        }
    }
}

/// The error that `errno` has.
#[cold]
fn last(verb: &'static str) -> VerbError {
    VerbError::new(verb, io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cold]
const fn unsupported(verb: &'static str) -> VerbError {
    VerbError::new(verb, libc::EOPNOTSUPP)
}

/// The function at a place of a driver's structure. No function starts in the first page: drivers mark what they lack
/// with null or with a small number.
///
/// # Safety
/// The place may be read, and is that of a pointer to a function.
#[inline]
unsafe fn function<F: Copy>(place: *const Option<F>) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    // SAFETY: the caller's promise. As a number the pointer may have any value; as a function it is read only if it is
    // one, and never a null.
    unsafe { if place.cast::<usize>().read() < 4096 { None } else { place.read() } }
}

/// The `verbs_context` around a context, if its driver has that much of it, counted from the end.
///
/// # Safety
/// The context is open.
unsafe fn around(context: *mut ibv_context, need: usize) -> Option<*const VerbsContext> {
    // SAFETY: the caller's promise.
    let compat = unsafe { (&raw const (*context).abi_compat).read() };
    if compat.addr() != usize::MAX {
        return None;
    }
    // SAFETY: this mark means that the context is the last member of a `verbs_context`, and `sz` is right before it.
    // Members further in front are there only as far as `sz` says.
    unsafe {
        let around = context.cast::<u8>().sub(offset_of!(VerbsContext, context)).cast::<VerbsContext>().cast_const();
        ((&raw const (*around).sz).read() >= need).then_some(around)
    }
}

/// A member of the `verbs_context` around a context, if the driver has it.
macro_rules! member {
    ($context:expr, $member:ident) => {
        around($context, size_of::<VerbsContext>() - offset_of!(VerbsContext, $member))
            .and_then(|around| function(&raw const (*around).$member))
    };
}

/// Declares verbs that the library exports.
macro_rules! exported {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Every object is alive, and of one device; every structure is what the man page wants.
        pub(super) unsafe fn $verb($($argument: $type),*) -> Result<<$answer as Answer>::Value, VerbError> {
            // SAFETY: the caller's promise.
            unsafe { library::$verb($($argument),*) }.value(stringify!($verb))
        }
    )+};
}

exported! {
    /// Opens a device of the list.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    /// Closes a device that has no objects any more.
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    /// What the device can do.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    /// An entry of the GID table.
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    /// An entry of the table of partition keys, in network order.
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    /// Waits for an event of the device, unless its descriptor does not block.
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    /// Allocates a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    /// Frees a protection domain, or a parent domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    /// Registers memory that a descriptor of the dma-buf kind stands for.
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int)
        -> *mut ibv_mr;
    /// Ends a registration.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    /// Creates a channel of completion events.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    /// Destroys a channel that no CQ uses.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    /// Takes an event from a channel. It is to be acknowledged.
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, context: *mut *mut c_void) -> c_int;
    /// Creates a CQ for `ibv_poll_cq`.
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
        vector: c_int) -> *mut ibv_cq;
    /// Makes a CQ larger or smaller.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    /// Destroys a CQ of either kind. Waits until its events are acknowledged.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    /// Creates a shared receive queue.
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    /// Changes the size of an SRQ, or arms its limit.
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    /// The size and limit of an SRQ.
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    /// Destroys an SRQ that no QP uses.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    /// Creates a QP.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes attributes of a QP, and its state.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    /// Attributes of a QP, and its state.
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    /// Destroys a QP. Waits until its events are acknowledged.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    /// Creates an address handle.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    /// The address of who sent a completed receive.
    fn ibv_init_ah_from_wc(context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh,
        attr: *mut ibv_ah_attr) -> c_int;
    /// Destroys an address handle.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    /// Joins a QP to a multicast group.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// Takes a QP out of a multicast group.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// Makes forks safe. Comes before any registration.
    fn ibv_fork_init() -> c_int;
    /// The QP as one that builds work requests. Null: it was not created so.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
}

/// Gives an event back. Until then the object that it is of cannot be destroyed.
///
/// # Safety
/// The event came from [`ibv_get_async_event`], and is given back once.
pub(super) unsafe fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's promise.
    unsafe { library::ibv_ack_async_event(event) }
}

/// Gives events of a CQ back. Takes a lock, so many at a time.
///
/// # Safety
/// The CQ is alive and had as many events that were not given back.
pub(super) unsafe fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: the caller's promise.
    unsafe { library::ibv_ack_cq_events(cq, events) }
}

/// Whether forks are safe: 0 no, 1 yes, 2 always on this kernel.
pub(super) fn ibv_is_fork_initialized() -> u32 {
    // SAFETY: it takes nothing.
    unsafe { library::ibv_is_fork_initialized() }
}

/// Registers memory, at its own address. The bits 20 to 29 of `access` are optional: a device that does not know one
/// goes without it. Only `ibv_reg_mr_iova2` knows of such.
///
/// # Safety
/// The domain is alive, and the memory stays mapped for as long as it is registered.
pub(super) unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<NonNull<ibv_mr>, VerbError> {
    const OPTIONAL: c_uint = 0x3ff << 20;
    // SAFETY: the caller's promise.
    let mr = unsafe {
        if access & OPTIONAL == 0 {
            library::ibv_reg_mr(pd, address, length, access.cast_signed())
        } else {
            library::ibv_reg_mr_iova2(pd, address, length, address.addr() as u64, access)
        }
    };
    mr.value("ibv_reg_mr")
}

/// An entry of the GID table with its type.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
) -> Result<ibv_gid_entry, VerbError> {
    let mut entry = ibv_gid_entry::default();
    // SAFETY: the caller's promise; the entry has the size that is told.
    let answer = unsafe { library::_ibv_query_gid_ex(context, port, index, &mut entry, 0, size_of::<ibv_gid_entry>()) };
    answer.value("ibv_query_gid_ex").map(|()| entry)
}

/// Fills `entries` with those of the GID tables of all ports that are in use; how many there are.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: &mut [ibv_gid_entry],
) -> Result<usize, VerbError> {
    let (start, length) = (entries.as_mut_ptr(), entries.len());
    // SAFETY: the caller's promise; the entries have the number and size that are told.
    let count = unsafe { library::_ibv_query_gid_table(context, start, length, 0, size_of::<ibv_gid_entry>()) };
    let error = |_| VerbError::new("ibv_query_gid_table", c_int::try_from(count.unsigned_abs()).unwrap_or(0));
    usize::try_from(count).map(|count| count.min(length)).map_err(error)
}

/// Declares verbs of the `verbs_context`: the man page's name, the member's, whose context it is.
macro_rules! extended {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty
        = $member:ident of $context:expr;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// `EOPNOTSUPP`: the driver has no such verb. Else what the verb answered.
            ///
            /// # Safety
            /// Every object is alive, and of one device; every structure is what the man page wants.
            pub(super) unsafe fn $verb($($argument: $type),*) -> Result<<$answer as Answer>::Value, VerbError> {
                // SAFETY: the caller's promise. `verbs.h` declares the member with these arguments.
                unsafe {
                    let verb = member!($context, $member).ok_or(unsupported(stringify!($verb)))?;
                    verb($($argument),*).value(stringify!($verb))
                }
            }
        )+

        /// The extended verbs that the driver of a context does not have.
        ///
        /// # Safety
        /// The context is open.
        pub(super) unsafe fn missing_verbs(context: *mut ibv_context) -> Vec<&'static str> {
            // SAFETY: the caller's promise.
            let there = unsafe { [$((member!(context, $member).is_some(), stringify!($verb)),)+
                (member!(context, query_device_ex).is_some(), "ibv_query_device_ex"),
                (member!(context, create_qp_ex).is_some(), "ibv_create_qp_ex"),
                (member!(context, create_wq).is_some(), "ibv_create_wq")] };
            there.into_iter().filter(|(there, _)| !there).map(|(_, verb)| verb).collect()
        }
    };
}

extended! {
    /// Creates a CQ for `ibv_start_poll`.
    fn ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = create_cq_ex of context;
    /// Sets how many completions, and how much time, an event of a CQ waits for.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = modify_cq of (*cq).context;
    /// Reads the clock of a device.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query_rt_values of context;
    /// Makes a flow rule for the packets of a QP.
    fn ibv_create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow = ibv_create_flow of (*qp).context;
    /// Takes a flow rule away.
    fn ibv_destroy_flow(flow: *mut ibv_flow) -> c_int = ibv_destroy_flow of (*flow).context;
    /// Changes the state or flags of a WQ.
    fn ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int = modify_wq of (*wq).context;
    /// Destroys a WQ that no table uses.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = destroy_wq of (*wq).context;
    /// Creates an indirection table of WQs.
    fn ibv_create_rwq_ind_table(context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr)
        -> *mut ibv_rwq_ind_table = create_rwq_ind_table of context;
    /// Destroys an indirection table that no QP uses.
    fn ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int
        = destroy_rwq_ind_table of (*table).context;
    /// Allocates a thread domain: a promise that one thread alone uses what is in it.
    fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = alloc_td of context;
    /// Frees a thread domain.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = dealloc_td of (*td).context;
    /// Allocates a parent domain: a protection domain with a thread domain. `ibv_dealloc_pd` frees it.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = alloc_parent_domain of context;
    /// Sets the rate of a QP, its bursts and its typical packet.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = modify_qp_rate_limit of (*qp).context;
    /// Fetches pages of registered memory ahead.
    fn ibv_advise_mr(pd: *mut ibv_pd, advice: c_uint, flags: u32, list: *mut ibv_sge, count: u32) -> c_int
        = advise_mr of (*pd).context;
    /// Creates a set of counters.
    fn ibv_create_counters(context: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        = create_counters of context;
    /// Destroys a set of counters that no flow uses.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = destroy_counters of (*counters).context;
    /// Says what an entry of a set counts. The flow may be null: the set is for one that is still to be made.
    fn ibv_attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow) -> c_int = attach_counters_point_flow of (*counters).context;
    /// Reads the first entries of a set.
    fn ibv_read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32) -> c_int
        = read_counters of (*counters).context;
    /// Creates an SRQ of any kind.
    fn ibv_create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
        = create_srq_ex of context;
}

/// Creates a QP with more than a protection domain to say.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no such verb. Else what the verb answered.
///
/// # Safety
/// As for [`ibv_create_cq_ex`].
pub(super) unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<NonNull<ibv_qp>, VerbError> {
    // SAFETY: the caller's promise. Without anything extended, the structure begins as that of the plain verb does.
    unsafe {
        if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
            return ibv_create_qp((*attr).pd, attr.cast());
        }
        let verb = member!(context, create_qp_ex).ok_or(unsupported("ibv_create_qp_ex"))?;
        verb(context, attr).value("ibv_create_qp_ex")
    }
}

/// Creates a WQ.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no such verb. Else what the verb answered.
///
/// # Safety
/// As for [`ibv_create_cq_ex`].
pub(super) unsafe fn ibv_create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> Result<NonNull<ibv_wq>, VerbError> {
    // SAFETY: the caller's promise. What drivers leave to the header is the user's pointer, the count of events and
    // the lock around them.
    unsafe {
        let verb = member!(context, create_wq).ok_or(unsupported("ibv_create_wq"))?;
        let wq = verb(context, attr).value("ibv_create_wq")?;
        let at = wq.as_ptr();
        (*at).wq_context = (*attr).wq_context;
        (*at).events_completed = 0;
        libc::pthread_mutex_init((&raw mut (*at).mutex).cast(), ptr::null());
        libc::pthread_cond_init((&raw mut (*at).cond).cast(), ptr::null());
        Ok(wq)
    }
}

/// What the device can do, with all that is known beyond [`ibv_query_device`]; zeros where the driver knows nothing.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn ibv_query_device_ex(context: *mut ibv_context) -> Result<ibv_device_attr_ex, VerbError> {
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the caller's promise; no input means no input mask; the size is that of the structure.
    unsafe {
        if let Some(verb) = member!(context, query_device_ex) {
            match verb(context, ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>()) {
                libc::EOPNOTSUPP | libc::ENOSYS => attr = ibv_device_attr_ex::default(),
                answer => return answer.value("ibv_query_device_ex").map(|()| attr),
            }
        }
        ibv_query_device(context, &mut attr.orig_attr).map(|()| attr)
    }
}

/// What a port is and does. An old library leaves the last members zero.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn ibv_query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, VerbError> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: the caller's promise; the size is that of the structure. The exported verb writes the first 48 bytes.
    let answer = unsafe {
        match member!(context, query_port) {
            Some(verb) => verb(context, port, &mut attr, size_of::<ibv_port_attr>()),
            None => library::ibv_query_port(context, port, (&raw mut attr).cast()),
        }
    };
    answer.value("ibv_query_port").map(|()| attr)
}

/// A member of the operations of an object's context, if the driver has it.
macro_rules! operation {
    ($context:expr, $member:ident) => {
        function(&raw const (*$context).ops.$member)
    };
}

/// Takes completions from a CQ; how many.
///
/// # Errors
/// `errno` 0: the driver says that the CQ is broken.
///
/// # Safety
/// The CQ is alive. With the flag "single threaded", no other thread uses it.
#[inline]
pub(super) unsafe fn ibv_poll_cq(cq: *mut ibv_cq, into: &mut [Wc]) -> Result<usize, VerbError> {
    let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise; there is as much room as is told, in the layout of `ibv_wc`.
    let count = unsafe {
        let verb = operation!((*cq).context, poll_cq).ok_or(unsupported("ibv_poll_cq"))?;
        verb(cq, room, into.as_mut_ptr().cast())
    };
    let broken = VerbError::new("ibv_poll_cq", 0);
    usize::try_from(count).ok().filter(|count| *count <= into.len()).ok_or(broken)
}

/// Declares verbs of the operations of a context.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty
        = $member:ident of $context:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// `EOPNOTSUPP`: the driver has no such verb. Else what the verb answered.
        ///
        /// # Safety
        /// Every object is alive, and of one device; every structure is what the man page wants.
        #[inline]
        pub(super) unsafe fn $verb($($argument: $type),*) -> Result<<$answer as Answer>::Value, VerbError> {
            // SAFETY: the caller's promise. `verbs.h` declares the member with these arguments.
            unsafe {
                let verb = operation!($context, $member).ok_or(unsupported(stringify!($verb)))?;
                verb($($argument),*).value(stringify!($verb))
            }
        }
    )+};
}

operations! {
    /// Asks for one event at the next completion, or the next solicited one.
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int = req_notify_cq of (*cq).context;
    /// Posts a list of sends. On an error `bad` is the first that was not taken; null: nobody knows.
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int
        = post_send of (*qp).context;
    /// Posts a list of receives. On an error `bad` is the first that was not taken; null: nobody knows.
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        = post_recv of (*qp).context;
    /// Posts a list of receives to an SRQ. On an error `bad` is the first that was not taken.
    fn ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        = post_srq_recv of (*srq).context;
    /// Allocates a memory window of a type.
    fn ibv_alloc_mw(pd: *mut ibv_pd, of_type: c_uint) -> *mut ibv_mw = alloc_mw of (*pd).context;
    /// Frees a memory window.
    fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int = dealloc_mw of (*mw).context;
}

/// Binds a memory window of type 1.
///
/// # Errors
/// `EINVAL`: the window is of type 2, or there is a range without a region. `EPERM`: window and region are of different
/// domains. Else what the verb answered.
///
/// # Safety
/// Every object is alive, and of one device.
pub(super) unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> Result<(), VerbError> {
    const VERB: &str = "ibv_bind_mw";
    // SAFETY: the caller's promise.
    unsafe {
        let info = (*bind).bind_info;
        if (*mw).type_ != IBV_MW_TYPE_1 || (info.mr.is_null() && (info.addr != 0 || info.length != 0)) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        if !info.mr.is_null() && (*mw).pd != (*info.mr).pd {
            return Err(VerbError::new(VERB, libc::EPERM));
        }
        let verb = operation!((*mw).context, bind_mw).ok_or(unsupported(VERB))?;
        verb(qp, mw, bind).value(VERB)
    }
}

/// Posts a list of receives to a WQ. On an error `bad` is the first that was not taken.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no such verb. Else what the verb answered.
///
/// # Safety
/// The WQ is alive, and so is the memory of the list.
#[inline]
pub(super) unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Result<(), VerbError> {
    // SAFETY: the caller's promise.
    unsafe {
        let verb = function(&raw const (*wq).post_recv).ok_or(unsupported("ibv_post_wq_recv"))?;
        verb(wq, wr, bad).value("ibv_post_wq_recv")
    }
}

/// Calls members of a CQ that [`check_readers`] has seen. A driver sets them when it makes the CQ and leaves them
/// (rdma-core, as of version 55), so they are not looked at again for each completion.
macro_rules! seen {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? = $member:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The CQ is alive, in the state that the man page wants, and was created with what this reads;
        /// [`check_readers`] has seen that its driver has this.
        #[inline]
        pub(super) unsafe fn $verb(cq: *mut ibv_cq_ex $(, $argument: $type)*) $(-> $answer)? {
            // SAFETY: the caller's promise.
            unsafe { (&raw const (*cq).$member).read().unwrap_unchecked()(cq $(, $argument)*) }
        }
    )+};
}

seen! {
    /// Starts a poll. 0: there is a completion, and only then [`ibv_end_poll`] is to be called; `ENOENT`: there is none;
    /// less than 0: the CQ is broken; else an error.
    fn ibv_start_poll(attr: *mut ibv_poll_cq_attr) -> c_int = start_poll;
    /// Goes to the next completion; answers as [`ibv_start_poll`]. Whatever it answers, [`ibv_end_poll`] is to be called.
    fn ibv_next_poll() -> c_int = next_poll;
    /// Ends a poll.
    fn ibv_end_poll() = end_poll;
    /// Bytes that came.
    fn wc_byte_len() -> u32 = read_byte_len;
    /// The time of the completion in ticks of the device.
    fn wc_completion_ts() -> u64 = read_completion_ts;
}

/// The `wr_id` and the status of the completion that a poll is at.
///
/// # Safety
/// A poll of the CQ is under way, and has a completion.
#[inline]
pub(super) unsafe fn wc_id_and_status(cq: *mut ibv_cq_ex) -> (u64, u32) {
    // SAFETY: the caller's promise.
    unsafe { ((&raw const (*cq).wr_id).read(), (&raw const (*cq).status).read()) }
}

/// Sets the `wr_id` and the flags of the work request that is built next. Flags stay for all that follow.
///
/// # Safety
/// The QP is alive, and between [`ibv_wr_start`] and its end.
#[inline]
pub(super) unsafe fn wr_set_id_and_flags(qp: *mut ibv_qp_ex, wr_id: u64, flags: c_uint) {
    // SAFETY: the caller's promise.
    unsafe {
        (&raw mut (*qp).wr_id).write(wr_id);
        (&raw mut (*qp).wr_flags).write(flags);
    }
}

/// Declares members of a CQ or QP. They answer `None`, and do nothing, where the driver has none.
macro_rules! members {
    ($object:ty: $($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)? = $member:ident;)+)
    => {$(
        $(#[$doc])*
        ///
        /// `None`: the driver has no such function, and nothing was done.
        ///
        /// # Safety
        /// The object is alive and in the state that the man page wants, and so is everything that is given.
        #[inline]
        #[must_use]
        pub(super) unsafe fn $verb(object: *mut $object $(, $argument: $type)*) -> Option<members!(@ $($answer)?)> {
            // SAFETY: the caller's promise. `verbs.h` declares the member with these arguments.
            unsafe { Some(function(&raw const (*object).$member)?(object $(, $argument)*)) }
        }
    )+};
    (@ $answer:ty) => { $answer };
    (@) => { () };
}

members! {
    ibv_cq_ex:
    /// What kind of work is complete. Not valid after an error.
    fn ibv_wc_read_opcode() -> u32 = read_opcode;
    /// The vendor's reason of an error.
    fn ibv_wc_read_vendor_err() -> u32 = read_vendor_err;
    /// Bytes that came.
    fn ibv_wc_read_byte_len() -> u32 = read_byte_len;
    /// Immediate data, in network order.
    fn ibv_wc_read_imm_data() -> u32 = read_imm_data;
    /// The key that the peer invalidated. It shares its place with the immediate data.
    fn ibv_wc_read_invalidated_rkey() -> u32 = read_imm_data;
    /// The QP that the completion is of.
    fn ibv_wc_read_qp_num() -> u32 = read_qp_num;
    /// The QP that sent.
    fn ibv_wc_read_src_qp() -> u32 = read_src_qp;
    /// The flags of the completion.
    fn ibv_wc_read_wc_flags() -> u32 = read_wc_flags;
    /// The local identifier of the sender.
    fn ibv_wc_read_slid() -> u32 = read_slid;
    /// The service level.
    fn ibv_wc_read_sl() -> u8 = read_sl;
    /// Path bits of the destination.
    fn ibv_wc_read_dlid_path_bits() -> u8 = read_dlid_path_bits;
    /// The time of the completion in ticks of the device.
    fn ibv_wc_read_completion_ts() -> u64 = read_completion_ts;
    /// The time of the completion in nanoseconds since 1970.
    fn ibv_wc_read_completion_wallclock_ns() -> u64 = read_completion_wallclock_ns;
    /// The VLAN tag that was taken out of the frame.
    fn ibv_wc_read_cvlan() -> u16 = read_cvlan;
    /// The tag of the flow rule that matched; 0: of none.
    fn ibv_wc_read_flow_tag() -> u32 = read_flow_tag;
    /// Tag and private data of a matched message.
    fn ibv_wc_read_tm_info(info: *mut ibv_wc_tm_info) = read_tm_info;
}

members! {
    ibv_qp_ex:
    /// Starts a list of work requests.
    fn ibv_wr_start() = wr_start;
    /// Gives the list up.
    fn ibv_wr_abort() = wr_abort;
    /// Compares and swaps 8 bytes.
    fn ibv_wr_atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) = wr_atomic_cmp_swp;
    /// Adds to 8 bytes.
    fn ibv_wr_atomic_fetch_add(rkey: u32, address: u64, add: u64) = wr_atomic_fetch_add;
    /// Writes 8 bytes at once.
    fn ibv_wr_atomic_write(rkey: u32, address: u64, value: *const c_void) = wr_atomic_write;
    /// Binds a memory window of type 2.
    fn ibv_wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = wr_bind_mw;
    /// Invalidates a key of this side.
    fn ibv_wr_local_inv(rkey: u32) = wr_local_inv;
    /// Reads from the peer's memory.
    fn ibv_wr_rdma_read(rkey: u32, address: u64) = wr_rdma_read;
    /// Writes to the peer's memory.
    fn ibv_wr_rdma_write(rkey: u32, address: u64) = wr_rdma_write;
    /// Writes to the peer's memory, with immediate data in network order.
    fn ibv_wr_rdma_write_imm(rkey: u32, address: u64, imm_data: u32) = wr_rdma_write_imm;
    /// Sends.
    fn ibv_wr_send() = wr_send;
    /// Sends, with immediate data in network order.
    fn ibv_wr_send_imm(imm_data: u32) = wr_send_imm;
    /// Sends, and invalidates a key of the peer.
    fn ibv_wr_send_inv(rkey: u32) = wr_send_inv;
    /// Sends segments of at most `mss` bytes, each with the header.
    fn ibv_wr_send_tso(header: *mut c_void, length: u16, mss: u16) = wr_send_tso;
    /// Says where a datagram goes.
    fn ibv_wr_set_ud_addr(ah: *mut ibv_ah, qpn: u32, qkey: u32) = wr_set_ud_addr;
    /// Says which SRQ of an XRC peer receives.
    fn ibv_wr_set_xrc_srqn(srqn: u32) = wr_set_xrc_srqn;
    /// Copies the data now.
    fn ibv_wr_set_inline_data(address: *mut c_void, length: usize) = wr_set_inline_data;
    /// Copies the data of several places now.
    fn ibv_wr_set_inline_data_list(count: usize, list: *const ibv_data_buf) = wr_set_inline_data_list;
    /// Names the data.
    fn ibv_wr_set_sge(lkey: u32, address: u64, length: u32) = wr_set_sge;
    /// Names the data in several places.
    fn ibv_wr_set_sge_list(count: usize, list: *const ibv_sge) = wr_set_sge_list;
}

/// Posts the list of work requests.
///
/// # Errors
/// `EOPNOTSUPP`: the QP was not created to build work requests. Else what the driver answered: nothing was posted.
///
/// # Safety
/// The QP is alive, and after [`ibv_wr_start`].
#[inline]
pub(super) unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> Result<(), VerbError> {
    // SAFETY: the caller's promise.
    unsafe {
        let verb = function(&raw const (*qp).wr_complete).ok_or(unsupported("ibv_wr_complete"))?;
        verb(qp).value("ibv_wr_complete")
    }
}

/// Checks that a driver made all the readers that a CQ was created for, so that none is missing later.
///
/// # Errors
/// `EOPNOTSUPP` and the first that is missing.
///
/// # Safety
/// The CQ is alive.
pub(super) unsafe fn check_readers(cq: *mut ibv_cq_ex, wc_flags: u64) -> Result<(), VerbError> {
    macro_rules! check {
        ($($bits:expr => $verb:literal $member:ident),+ $(,)?) => {$(
            let wanted = $bits == 0 || wc_flags & u64::from($bits) != 0;
            // SAFETY: the caller's promise.
            if wanted && unsafe { function(&raw const (*cq).$member) }.is_none() {
                return Err(unsupported($verb));
            }
        )+};
    }
    const ALWAYS: u32 = 0;
    check!(
        ALWAYS => "ibv_start_poll" start_poll,
        ALWAYS => "ibv_next_poll" next_poll,
        ALWAYS => "ibv_end_poll" end_poll,
        ALWAYS => "ibv_wc_read_opcode" read_opcode,
        ALWAYS => "ibv_wc_read_vendor_err" read_vendor_err,
        ALWAYS => "ibv_wc_read_wc_flags" read_wc_flags,
        IBV_WC_EX_WITH_BYTE_LEN => "ibv_wc_read_byte_len" read_byte_len,
        IBV_WC_EX_WITH_IMM => "ibv_wc_read_imm_data" read_imm_data,
        IBV_WC_EX_WITH_QP_NUM => "ibv_wc_read_qp_num" read_qp_num,
        IBV_WC_EX_WITH_SRC_QP => "ibv_wc_read_src_qp" read_src_qp,
        IBV_WC_EX_WITH_SLID => "ibv_wc_read_slid" read_slid,
        IBV_WC_EX_WITH_SL => "ibv_wc_read_sl" read_sl,
        IBV_WC_EX_WITH_DLID_PATH_BITS => "ibv_wc_read_dlid_path_bits" read_dlid_path_bits,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP => "ibv_wc_read_completion_ts" read_completion_ts,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
            => "ibv_wc_read_completion_wallclock_ns" read_completion_wallclock_ns,
        IBV_WC_EX_WITH_CVLAN => "ibv_wc_read_cvlan" read_cvlan,
        IBV_WC_EX_WITH_FLOW_TAG => "ibv_wc_read_flow_tag" read_flow_tag,
        IBV_WC_EX_WITH_TM_INFO => "ibv_wc_read_tm_info" read_tm_info,
    );
    Ok(())
}

/// Checks that a driver made all the builders that a QP was created for (`send_ops_flags`), and those that all need.
///
/// # Errors
/// `EOPNOTSUPP` and the first that is missing.
///
/// # Safety
/// The QP is alive.
pub(super) unsafe fn check_builders(qp: *mut ibv_qp_ex, send_ops: u64) -> Result<(), VerbError> {
    macro_rules! check {
        ($($bits:expr => $verb:literal $member:ident),+ $(,)?) => {$(
            let wanted = $bits == 0 || send_ops & u64::from($bits) != 0;
            // SAFETY: the caller's promise.
            if wanted && unsafe { function(&raw const (*qp).$member) }.is_none() {
                return Err(unsupported($verb));
            }
        )+};
    }
    const ALWAYS: u32 = 0;
    check!(
        ALWAYS => "ibv_wr_start" wr_start,
        ALWAYS => "ibv_wr_complete" wr_complete,
        ALWAYS => "ibv_wr_abort" wr_abort,
        ALWAYS => "ibv_wr_set_sge" wr_set_sge,
        ALWAYS => "ibv_wr_set_sge_list" wr_set_sge_list,
        IBV_QP_EX_WITH_RDMA_WRITE => "ibv_wr_rdma_write" wr_rdma_write,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM => "ibv_wr_rdma_write_imm" wr_rdma_write_imm,
        IBV_QP_EX_WITH_SEND => "ibv_wr_send" wr_send,
        IBV_QP_EX_WITH_SEND_WITH_IMM => "ibv_wr_send_imm" wr_send_imm,
        IBV_QP_EX_WITH_RDMA_READ => "ibv_wr_rdma_read" wr_rdma_read,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP => "ibv_wr_atomic_cmp_swp" wr_atomic_cmp_swp,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD => "ibv_wr_atomic_fetch_add" wr_atomic_fetch_add,
        IBV_QP_EX_WITH_LOCAL_INV => "ibv_wr_local_inv" wr_local_inv,
        IBV_QP_EX_WITH_BIND_MW => "ibv_wr_bind_mw" wr_bind_mw,
        IBV_QP_EX_WITH_SEND_WITH_INV => "ibv_wr_send_inv" wr_send_inv,
        IBV_QP_EX_WITH_TSO => "ibv_wr_send_tso" wr_send_tso,
        IBV_QP_EX_WITH_ATOMIC_WRITE => "ibv_wr_atomic_write" wr_atomic_write,
    );
    Ok(())
}

/// Lets `work` look at the devices of the host; they are valid until it is done.
pub(super) fn with_devices<R>(work: impl FnOnce(&[*mut ibv_device]) -> R) -> Result<R, VerbError> {
    let mut count: c_int = 0;
    // SAFETY: the count is written before the call returns.
    let list = unsafe { library::ibv_get_device_list(&mut count) }.value("ibv_get_device_list")?.as_ptr();
    // SAFETY: the list has `count` devices, ended by a null pointer, and stays as it is until it is freed below.
    let found = work(unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) });
    // SAFETY: the list came from `ibv_get_device_list` and nothing borrows from it any more.
    unsafe { library::ibv_free_device_list(list) };
    Ok(found)
}

/// The name of a device.
///
/// # Safety
/// It is of a list that was not freed.
pub(super) unsafe fn ibv_get_device_name(device: *mut ibv_device) -> String {
    // SAFETY: the caller's promise; the name is a C string inside the device.
    unsafe { CStr::from_ptr(library::ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}
