//! Bindings for all calls into libibverbs. The functions return plain data.
//!
//! Most functions have the name and the arguments of their man page. A function calls one of the following:
//!
//! - a symbol that libibverbs exports
//! - a member of the `verbs_context` of the driver
//! - a member of a context, CQ, QP or WQ that the driver created
//!
//! In the C headers, the functions that call a member are inline functions, for which bindgen produces no bindings.
//! Drivers set the pointer of an unsupported function to null or to a small number. This module therefore checks each
//! function pointer before the call. The pointers that are used for every completion are checked once, by
//! [`check_readers`].
//!
//! Return values follow the man pages. Some verbs return a pointer, or null with `errno` set. Other verbs return 0, an
//! error number, or -1 with `errno` set. C enumerations are read as integers, so an unknown value is allowed.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::io;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::slice;

use ibverbs_sys::*;

use dataplane_core::error::VerbError;

// The symbols of libibverbs. In test builds, calls on objects of the fake device go to the fake device.
#[cfg(test)]
use super::fake::library;
#[cfg(not(test))]
use ibverbs_sys as library;

/// `struct verbs_context` of verbs.h: the driver operations that are not in [`ibv_context_ops`]. The last member of
/// this structure is the `ibv_context` itself. New versions of libibverbs add members at the front, so offsets are
/// counted from the end.
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
    /// Private data of libibverbs.
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
    /// The size of the part of this structure that the driver provides, in bytes, counted from the end.
    pub(super) sz: usize,
    /// The context that `ibv_open_device` returns.
    pub(super) context: ibv_context,
}

/// A work completion (`struct ibv_wc`). The type in `ibverbs_sys` has some private fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// The immediate data in network order. With the flag `IBV_WC_WITH_INV`: the invalidated key in host order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: u32,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// Checks at compile time that the structures have the layout that libibverbs uses. The layout has not changed since
/// private ABI 34. Versions 44 to 55 of rdma-core use this layout.
const _: () = {
    macro_rules! offsets {
        ($($offset:literal $member:ident),+ $(,)?) => { $(assert!(offset_of!(VerbsContext, $member) == $offset);)+ };
    }
    offsets!(
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
    // These structures contain a pthread mutex. The size of the mutex differs between architectures.
    if cfg!(target_arch = "x86_64") {
        sizes!(328 ibv_context, 648 VerbsContext, 288 ibv_cq_ex, 152 ibv_wq);
    }
    // Newer versions of libibverbs add members at the end of `ibv_port_attr` and `ibv_qp_ex`, so the exact sizes of
    // these structures differ. The offset of one member of each structure is checked instead.
    assert!(size_of::<ibv_port_attr>() >= 52 && offset_of!(ibv_port_attr, port_cap_flags2) == 48);
    assert!(offset_of!(ibv_qp_ex, wr_atomic_write) == offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) + 20 * 8);
    assert!(align_of::<Wc>() == align_of::<ibv_wc>());
};

/// A raw return value of a verb, which can be converted to a `Result`.
pub(super) trait VerbReturn {
    /// The type of the value on success.
    type Value;
    /// Prepares the call of a verb with this return type. Only a verb that returns a pointer needs preparation.
    #[inline]
    fn prepare() {}
    /// Returns the value, or an error that names `verb`.
    fn value(self, verb: &'static str) -> Result<Self::Value, VerbError>;
}

/// The verb returns an object, or null with `errno` set. Some drivers return null without an error number if the device
/// does not support the object: `hns_roce_u_create_ah` on HIP08, and `pvrdma_create_ah`. The error is then
/// `EOPNOTSUPP`, if the caller has called [`VerbReturn::prepare`] before the verb.
impl<T> VerbReturn for *mut T {
    type Value = NonNull<T>;

    fn prepare() {
        clear_errno();
    }

    fn value(self, verb: &'static str) -> Result<NonNull<T>, VerbError> {
        NonNull::new(self).ok_or_else(|| match last_os_error(verb) {
            VerbError { errno: 0, .. } => unsupported(verb),
            error => error,
        })
    }
}

/// The verb returns 0, an error number, or -1 with `errno` set. Some drivers return negative error numbers.
impl VerbReturn for c_int {
    type Value = ();

    fn value(self, verb: &'static str) -> Result<(), VerbError> {
        match self {
            0 => Ok(()),
            -1 => Err(last_os_error(verb)),
            error => Err(VerbError::new(verb, error.saturating_abs())),
        }
    }
}

/// Sets `errno` to 0. Without this call, a verb that returns null and does not set `errno` would seem to fail with the
/// error of an earlier call.
fn clear_errno() {
    // SAFETY: the pointer refers to the `errno` of this thread.
    unsafe { *libc::__errno_location() = 0 };
}

/// Returns an error with the current `errno`.
#[cold]
fn last_os_error(verb: &'static str) -> VerbError {
    VerbError::new(verb, io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cold]
const fn unsupported(verb: &'static str) -> VerbError {
    VerbError::new(verb, libc::EOPNOTSUPP)
}

/// Reads a function pointer from a structure of the driver. Drivers set the pointer of an unsupported function to null
/// or to a small number. No function is in the first page of memory, so `None` is returned for pointers into that page.
///
/// # Safety
/// `place` must be readable and must point to a field that holds a function pointer.
#[inline]
unsafe fn function_pointer<F: Copy>(place: *const Option<F>) -> Option<F> {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    // SAFETY: the caller upholds the safety contract. The pointer is first read as an integer, for which every value is
    // valid. The pointer is read as a function pointer only if the integer is not in the first page.
    unsafe { if place.cast::<usize>().read() < 4096 { None } else { place.read() } }
}

/// Returns the `verbs_context` that contains a context, if the driver provides the last `need` bytes of the structure.
///
/// # Safety
/// The context must be open.
unsafe fn extended(context: *mut ibv_context, need: usize) -> Option<*const VerbsContext> {
    // SAFETY: the caller upholds the safety contract.
    let compat = unsafe { (&raw const (*context).abi_compat).read() };
    if compat.addr() != usize::MAX {
        return None;
    }
    // SAFETY: this value of `abi_compat` means that the context is the last member of a `verbs_context`. The member
    // `sz` precedes the context. Only the last `sz` bytes of the structure are accessed.
    unsafe {
        let extended = context.cast::<u8>().sub(offset_of!(VerbsContext, context)).cast::<VerbsContext>().cast_const();
        ((&raw const (*extended).sz).read() >= need).then_some(extended)
    }
}

/// Reads a member of the `verbs_context` that contains a context. Returns `None` if the driver lacks the member.
macro_rules! member {
    ($context:expr, $member:ident) => {
        extended($context, size_of::<VerbsContext>() - offset_of!(VerbsContext, $member))
            .and_then(|extended| function_pointer(&raw const (*extended).$member))
    };
}

/// Declares functions that libibverbs exports.
macro_rules! exported {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),* $(,)?) -> $returned:ty;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Every object must be valid, and all objects must belong to the same device. Every structure must be filled
        /// in as the man page requires.
        pub(super) unsafe fn $verb($($argument: $type),*) -> Result<<$returned as VerbReturn>::Value, VerbError> {
            clear_errno();
            // SAFETY: the caller upholds the safety contract.
            unsafe { library::$verb($($argument),*) }.value(stringify!($verb))
        }
    )+};
}

exported! {
    /// Opens a device that is in the device list.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    /// Closes a device. All objects of the device must have been destroyed.
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    /// Queries the device attributes.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    /// Queries an entry of the partition key table. The key is in network order.
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    /// Takes an asynchronous event of the device. Waits for an event unless the file descriptor is non-blocking.
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    /// Allocates a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    /// Frees a protection domain, or a parent domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    /// Registers the memory of a dma-buf file descriptor.
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int)
        -> *mut ibv_mr;
    /// Deregisters a memory region.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    /// Creates a completion channel.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    /// Destroys a completion channel that no CQ uses.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    /// Takes a completion event from a channel. The caller must acknowledge the event.
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, context: *mut *mut c_void) -> c_int;
    /// Creates a CQ for `ibv_poll_cq`.
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
        vector: c_int) -> *mut ibv_cq;
    /// Changes the capacity of a CQ.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    /// Destroys a CQ that `ibv_create_cq` or `ibv_create_cq_ex` created. Waits until all events of the CQ are
    /// acknowledged.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    /// Queries the options for enhanced connection establishment of a QP.
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    /// Sets the options for enhanced connection establishment of a QP.
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    /// Creates a shared receive queue.
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    /// Changes the size of an SRQ or arms its limit. An armed limit raises an event when fewer receives than the limit
    /// are left.
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    /// Queries the size and the limit of an SRQ.
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    /// Destroys an SRQ that no QP uses.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    /// Creates a QP.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Changes the attributes and the state of a QP.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    /// Queries the attributes and the state of a QP.
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    /// Destroys a QP. Waits until all events of the QP are acknowledged.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    /// Creates an address handle.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    /// Destroys an address handle.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    /// Joins a QP to a multicast group.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// Removes a QP from a multicast group.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    /// Enables fork support. Must be called before the first memory registration.
    fn ibv_fork_init() -> c_int;
    /// Returns the extended interface of a QP. Fails if the QP was created without the extended send API.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
}

/// Acknowledges an asynchronous event. The object of the event can be destroyed only after the acknowledgement.
///
/// # Safety
/// The event must come from [`ibv_get_async_event`] and must be acknowledged only once.
pub(super) unsafe fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller upholds the safety contract.
    unsafe { library::ibv_ack_async_event(event) }
}

/// Acknowledges completion events of a CQ. The call takes a lock, so acknowledge several events in one call.
///
/// # Safety
/// The CQ must be valid and must have at least `events` unacknowledged events.
pub(super) unsafe fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: the caller upholds the safety contract.
    unsafe { library::ibv_ack_cq_events(cq, events) }
}

/// Returns the state of fork support: 0 for disabled, 1 for enabled, 2 for not needed on this kernel.
pub(super) fn ibv_is_fork_initialized() -> u32 {
    // SAFETY: the function has no arguments and no preconditions.
    unsafe { library::ibv_is_fork_initialized() }
}

/// Registers memory. The device uses the virtual addresses of the memory. Bits 20 to 29 of `access` are optional flags.
/// A device ignores the optional flags that it does not support. With optional flags, this function calls
/// `ibv_reg_mr_iova2`, because the exported `ibv_reg_mr` does not accept these flags.
///
/// # Safety
/// The protection domain must be valid. The memory must stay mapped until the region is deregistered.
pub(super) unsafe fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<NonNull<ibv_mr>, VerbError> {
    const OPTIONAL: c_uint = 0x3ff << 20;
    // SAFETY: the caller upholds the safety contract.
    let mr = unsafe {
        if access & OPTIONAL == 0 {
            library::ibv_reg_mr(pd, address, length, access.cast_signed())
        } else {
            library::ibv_reg_mr_iova2(pd, address, length, address.addr() as u64, access)
        }
    };
    mr.value("ibv_reg_mr")
}

/// Writes the used entries of the GID tables of all ports to `entries`. Returns the number of written entries.
///
/// # Safety
/// The context must be open.
pub(super) unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: &mut [ibv_gid_entry],
) -> Result<usize, VerbError> {
    let (start, length) = (entries.as_mut_ptr(), entries.len());
    // SAFETY: the caller upholds the safety contract. The arguments contain the length of `entries` and the size of an
    // entry.
    let count = unsafe { library::_ibv_query_gid_table(context, start, length, 0, size_of::<ibv_gid_entry>()) };
    let error = |_| VerbError::new("ibv_query_gid_table", c_int::try_from(count.unsigned_abs()).unwrap_or(0));
    usize::try_from(count).map(|count| count.min(length)).map_err(error)
}

/// Queries an entry of the GID table of a port.
///
/// # Safety
/// The context must be open.
pub(super) unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u8,
    index: u32,
) -> Result<ibv_gid_entry, VerbError> {
    let mut entry = ibv_gid_entry::default();
    // SAFETY: the caller upholds the safety contract. The arguments contain the size of the entry.
    unsafe {
        let size = size_of::<ibv_gid_entry>();
        library::_ibv_query_gid_ex(context, port.into(), index, &mut entry, 0, size).value("ibv_query_gid_ex")?;
    }
    Ok(entry)
}

/// Declares functions of the `verbs_context`. Each declaration has the name in the man page, the name of the member and
/// the context to use.
macro_rules! extended {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),* $(,)?) -> $returned:ty
        = $member:ident of $context:expr;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// `EOPNOTSUPP` if the driver does not implement the verb. Otherwise the error of the verb.
            ///
            /// # Safety
            /// Every object must be valid, and all objects must belong to the same device. Every structure must be
            /// filled in as the man page requires.
            pub(super) unsafe fn $verb($($argument: $type),*) -> Result<<$returned as VerbReturn>::Value, VerbError> {
                // SAFETY: the caller upholds the safety contract. `verbs.h` declares the member with these arguments.
                unsafe {
                    let verb = member!($context, $member).ok_or(unsupported(stringify!($verb)))?;
                    clear_errno();
                    verb($($argument),*).value(stringify!($verb))
                }
            }
        )+
    };
}

extended! {
    /// Creates a CQ for `ibv_start_poll`.
    fn ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = create_cq_ex of context;
    /// Reads the clock of a device.
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query_rt_values of context;
    /// Creates a flow rule for a QP.
    fn ibv_create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow = ibv_create_flow of (*qp).context;
    /// Destroys a flow rule.
    fn ibv_destroy_flow(flow: *mut ibv_flow) -> c_int = ibv_destroy_flow of (*flow).context;
    /// Changes the state or the flags of a WQ.
    fn ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int = modify_wq of (*wq).context;
    /// Destroys a WQ that no indirection table uses.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = destroy_wq of (*wq).context;
    /// Creates an indirection table of WQs.
    fn ibv_create_rwq_ind_table(context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr)
        -> *mut ibv_rwq_ind_table = create_rwq_ind_table of context;
    /// Destroys an indirection table that no QP uses.
    fn ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int
        = destroy_rwq_ind_table of (*table).context;
    /// Moderates the completion events of a CQ.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = modify_cq of (*cq).context;
    /// Allocates a thread domain. The program promises that only one thread uses the objects in the domain.
    fn ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = alloc_td of context;
    /// Frees a thread domain.
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = dealloc_td of (*td).context;
    /// Allocates a parent domain, which combines a protection domain with a thread domain. `ibv_dealloc_pd` frees the
    /// parent domain.
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = alloc_parent_domain of context;
    /// Sets the rate limit, the maximum burst and the typical packet size of a QP.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = modify_qp_rate_limit of (*qp).context;
    /// Creates a set of counters.
    fn ibv_create_counters(context: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        = create_counters of context;
    /// Destroys a set of counters that no flow uses.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = destroy_counters of (*counters).context;
    /// Defines what one entry of a counter set counts. With a null flow, the counters apply to a flow rule that is
    /// created later.
    fn ibv_attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr,
        flow: *mut ibv_flow) -> c_int = attach_counters_point_flow of (*counters).context;
    /// Reads the first entries of a counter set.
    fn ibv_read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32) -> c_int
        = read_counters of (*counters).context;
}

/// Creates a QP with extended attributes.
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not implement the verb. Otherwise the error of the verb.
///
/// # Safety
/// See [`ibv_create_cq_ex`].
pub(super) unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<NonNull<ibv_qp>, VerbError> {
    // SAFETY: the caller upholds the safety contract. If no extended attribute is set, `ibv_create_qp` reads only the
    // start of the structure. The start has the layout of `ibv_qp_init_attr`.
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
/// `EOPNOTSUPP` if the driver does not implement the verb. Otherwise the error of the verb.
///
/// # Safety
/// See [`ibv_create_cq_ex`].
pub(super) unsafe fn ibv_create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> Result<NonNull<ibv_wq>, VerbError> {
    // SAFETY: the caller upholds the safety contract. After the call of the driver, this function sets the same fields
    // as the inline function in verbs.h: the user context, the event count, the mutex and the condition variable.
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

/// Queries the extended attributes of a device. If the driver provides only [`ibv_query_device`], the extended fields
/// are zero.
///
/// # Safety
/// The context must be open.
pub(super) unsafe fn ibv_query_device_ex(context: *mut ibv_context) -> Result<ibv_device_attr_ex, VerbError> {
    let mut attr = ibv_device_attr_ex::default();
    // SAFETY: the caller upholds the safety contract. The input may be null. The size argument is the size of `attr`.
    unsafe {
        if let Some(verb) = member!(context, query_device_ex) {
            match verb(context, ptr::null(), &mut attr, size_of::<ibv_device_attr_ex>()) {
                libc::EOPNOTSUPP | libc::ENOSYS => attr = ibv_device_attr_ex::default(),
                returned => return returned.value("ibv_query_device_ex").map(|()| attr),
            }
        }
        ibv_query_device(context, &mut attr.orig_attr).map(|()| attr)
    }
}

/// Queries the attributes of a port. Old versions of libibverbs do not fill in the last members, which are then zero.
///
/// # Safety
/// The context must be open.
pub(super) unsafe fn ibv_query_port(context: *mut ibv_context, port: u8) -> Result<ibv_port_attr, VerbError> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: the caller upholds the safety contract. The size argument is the size of `attr`. The exported function
    // writes only the first 48 bytes of `attr`.
    let returned = unsafe {
        match member!(context, query_port) {
            Some(verb) => verb(context, port, &mut attr, size_of::<ibv_port_attr>()),
            None => library::ibv_query_port(context, port, (&raw mut attr).cast()),
        }
    };
    returned.value("ibv_query_port").map(|()| attr)
}

/// Reads a member of the context operations (`ibv_context_ops`). Returns `None` if the driver lacks the member.
macro_rules! operation {
    ($context:expr, $member:ident) => {
        function_pointer(&raw const (*$context).ops.$member)
    };
}

/// Polls completions from a CQ. Returns the number of completions.
///
/// # Errors
/// An error with `errno` 0 if the driver returns a negative count, which means that the CQ is broken.
///
/// # Safety
/// The CQ must be valid. If the CQ was created as single-threaded, no other thread may use it.
#[inline]
pub(super) unsafe fn ibv_poll_cq(cq: *mut ibv_cq, into: &mut [Wc]) -> Result<usize, VerbError> {
    let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
    // SAFETY: the caller upholds the safety contract. `into` has room for `room` completions, in the layout of
    // `ibv_wc`.
    let count = unsafe {
        let verb = operation!((*cq).context, poll_cq).ok_or(unsupported("ibv_poll_cq"))?;
        verb(cq, room, into.as_mut_ptr().cast())
    };
    let broken = VerbError::new("ibv_poll_cq", 0);
    usize::try_from(count).ok().filter(|count| *count <= into.len()).ok_or(broken)
}

/// Declares functions that call a member of the context operations.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),* $(,)?) -> $returned:ty
        = $member:ident of $context:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// `EOPNOTSUPP` if the driver does not implement the verb. Otherwise the error of the verb.
        ///
        /// # Safety
        /// Every object must be valid, and all objects must belong to the same device. Every structure must be filled
        /// in as the man page requires.
        #[inline]
        pub(super) unsafe fn $verb($($argument: $type),*) -> Result<<$returned as VerbReturn>::Value, VerbError> {
            // SAFETY: the caller upholds the safety contract. `verbs.h` declares the member with these arguments.
            unsafe {
                let verb = operation!($context, $member).ok_or(unsupported(stringify!($verb)))?;
                <$returned as VerbReturn>::prepare();
                verb($($argument),*).value(stringify!($verb))
            }
        }
    )+};
}

operations! {
    /// Requests one event for the next completion. With `solicited`, only a solicited completion or an error raises the
    /// event.
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int = req_notify_cq of (*cq).context;
    /// Posts a list of send requests. On an error, `bad` is the first request that was not posted, or null if the
    /// driver does not report the request.
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int
        = post_send of (*qp).context;
    /// Posts a list of receive requests. On an error, `bad` is the first request that was not posted, or null if the
    /// driver does not report the request.
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        = post_recv of (*qp).context;
    /// Posts a list of receive requests to an SRQ. On an error, `bad` is the first request that was not posted.
    fn ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int
        = post_srq_recv of (*srq).context;
    /// Allocates a memory window of the given type.
    fn ibv_alloc_mw(pd: *mut ibv_pd, of_type: c_uint) -> *mut ibv_mw = alloc_mw of (*pd).context;
    /// Frees a memory window.
    fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int = dealloc_mw of (*mw).context;
}

/// Binds a memory window of type 1.
///
/// # Errors
/// `EINVAL` if the window is of type 2, or if the address range has no memory region. `EPERM` if the window and the
/// memory region belong to different protection domains. Otherwise the error of the verb.
///
/// # Safety
/// Every object must be valid, and all objects must belong to the same device.
pub(super) unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> Result<(), VerbError> {
    const VERB: &str = "ibv_bind_mw";
    // SAFETY: the caller upholds the safety contract.
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

/// Posts a list of receive requests to a WQ. On an error, `bad` is the first request that was not posted.
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not implement the verb. Otherwise the error of the verb.
///
/// # Safety
/// The WQ and the memory of the list must be valid.
#[inline]
pub(super) unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Result<(), VerbError> {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let verb = function_pointer(&raw const (*wq).post_recv).ok_or(unsupported("ibv_post_wq_recv"))?;
        verb(wq, wr, bad).value("ibv_post_wq_recv")
    }
}

/// Declares functions that call a member of a CQ without a check of the function pointer. [`check_readers`] has already
/// checked the pointer. In rdma-core up to version 55, drivers set these members when they create the CQ and never
/// change them, so one check is enough.
macro_rules! checked_readers {
    ($($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)? = $member:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The CQ must be valid and in the state that the man page requires, and [`check_readers`] must have succeeded
        /// for the CQ. If the function reads a field of the completion, the CQ must have been created with the flag of
        /// this field.
        #[inline]
        pub(super) unsafe fn $verb(cq: *mut ibv_cq_ex $(, $argument: $type)*) $(-> $returned)? {
            // SAFETY: the caller upholds the safety contract.
            unsafe { (&raw const (*cq).$member).read().unwrap_unchecked()(cq $(, $argument)*) }
        }
    )+};
}

checked_readers! {
    /// Starts a poll. Returns 0 if the CQ has a completion, `ENOENT` if the CQ is empty, a negative number if the CQ is
    /// broken, and another error number otherwise. [`ibv_end_poll`] must be called only if the return value is 0.
    fn ibv_start_poll(attr: *mut ibv_poll_cq_attr) -> c_int = start_poll;
    /// Moves to the next completion. The return values are the same as for [`ibv_start_poll`]. Whatever this function
    /// returns, the caller must still call [`ibv_end_poll`].
    fn ibv_next_poll() -> c_int = next_poll;
    /// Ends a poll.
    fn ibv_end_poll() = end_poll;
    /// Returns the number of bytes received.
    fn wc_byte_len() -> u32 = read_byte_len;
    /// Returns the completion timestamp in ticks of the device clock.
    fn wc_completion_ts() -> u64 = read_completion_ts;
}

/// Returns the `wr_id` and the status of the current completion of a poll.
///
/// # Safety
/// A poll of the CQ must be active and must have a current completion.
#[inline]
pub(super) unsafe fn wc_id_and_status(cq: *mut ibv_cq_ex) -> (u64, u32) {
    // SAFETY: the caller upholds the safety contract.
    unsafe { ((&raw const (*cq).wr_id).read(), (&raw const (*cq).status).read()) }
}

/// Sets the `wr_id` and the flags of the next work request. Later requests keep the flags until they are set again.
///
/// # Safety
/// The QP must be valid. The call must be between [`ibv_wr_start`] and the end of the list.
#[inline]
pub(super) unsafe fn wr_set_id_and_flags(qp: *mut ibv_qp_ex, wr_id: u64, flags: c_uint) {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        (&raw mut (*qp).wr_id).write(wr_id);
        (&raw mut (*qp).wr_flags).write(flags);
    }
}

/// Declares functions that call a member of a CQ or QP. If the driver lacks the member, the functions do nothing and
/// return `None`.
macro_rules! members {
    ($object:ty: $($(#[$doc:meta])* fn $verb:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)? = $member:ident;)+)
    => {$(
        $(#[$doc])*
        ///
        /// Returns `None` and does nothing if the driver lacks the function.
        ///
        /// # Safety
        /// The object must be valid and in the state that the man page requires. All arguments must be valid.
        #[inline]
        #[must_use]
        pub(super) unsafe fn $verb(object: *mut $object $(, $argument: $type)*) -> Option<members!(@ $($returned)?)> {
            // SAFETY: the caller upholds the safety contract. `verbs.h` declares the member with these arguments.
            unsafe { Some(function_pointer(&raw const (*object).$member)?(object $(, $argument)*)) }
        }
    )+};
    (@ $returned:ty) => { $returned };
    (@) => { () };
}

members! {
    ibv_cq_ex:
    /// Returns the opcode. The opcode of a failed completion is not valid.
    fn ibv_wc_read_opcode() -> u32 = read_opcode;
    /// Returns the vendor error code.
    fn ibv_wc_read_vendor_err() -> u32 = read_vendor_err;
    /// Returns the number of bytes received.
    fn ibv_wc_read_byte_len() -> u32 = read_byte_len;
    /// Returns the immediate data, in network order.
    fn ibv_wc_read_imm_data() -> u32 = read_imm_data;
    /// Returns the remote key (rkey) of local memory that the peer invalidated. Drivers return this key through the
    /// reader of the immediate data.
    fn ibv_wc_read_invalidated_rkey() -> u32 = read_imm_data;
    /// Returns the number of the local QP.
    fn ibv_wc_read_qp_num() -> u32 = read_qp_num;
    /// Returns the number of the sending QP.
    fn ibv_wc_read_src_qp() -> u32 = read_src_qp;
    /// Returns the flags of the completion.
    fn ibv_wc_read_wc_flags() -> u32 = read_wc_flags;
    /// Returns the local identifier of the sender.
    fn ibv_wc_read_slid() -> u32 = read_slid;
    /// Returns the service level.
    fn ibv_wc_read_sl() -> u8 = read_sl;
    /// Returns the low bits of the destination's local identifier (LID), which select a path.
    fn ibv_wc_read_dlid_path_bits() -> u8 = read_dlid_path_bits;
    /// Returns the completion timestamp in ticks of the device clock.
    fn ibv_wc_read_completion_ts() -> u64 = read_completion_ts;
    /// Returns the completion time in nanoseconds since 1970.
    fn ibv_wc_read_completion_wallclock_ns() -> u64 = read_completion_wallclock_ns;
    /// Returns the VLAN tag that the device removed from the frame.
    fn ibv_wc_read_cvlan() -> u16 = read_cvlan;
    /// Returns the tag of the flow rule that matched, or 0 if no rule with a tag matched.
    fn ibv_wc_read_flow_tag() -> u32 = read_flow_tag;
    /// Returns the tag and the private data of a matched message.
    fn ibv_wc_read_tm_info(info: *mut ibv_wc_tm_info) = read_tm_info;
}

members! {
    ibv_qp_ex:
    /// Starts a list of work requests.
    fn ibv_wr_start() = wr_start;
    /// Discards the list of work requests.
    fn ibv_wr_abort() = wr_abort;
    /// Adds an 8-byte atomic compare-and-swap.
    fn ibv_wr_atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) = wr_atomic_cmp_swp;
    /// Adds an 8-byte atomic fetch-and-add.
    fn ibv_wr_atomic_fetch_add(rkey: u32, address: u64, add: u64) = wr_atomic_fetch_add;
    /// Adds an invalidation of a remote key (rkey) of local memory.
    fn ibv_wr_local_inv(rkey: u32) = wr_local_inv;
    /// Adds an RDMA read from the peer's memory.
    fn ibv_wr_rdma_read(rkey: u32, address: u64) = wr_rdma_read;
    /// Adds an RDMA write to the peer's memory.
    fn ibv_wr_rdma_write(rkey: u32, address: u64) = wr_rdma_write;
    /// Adds an RDMA write to the peer's memory with immediate data in network order.
    fn ibv_wr_rdma_write_imm(rkey: u32, address: u64, imm_data: u32) = wr_rdma_write_imm;
    /// Adds a send.
    fn ibv_wr_send() = wr_send;
    /// Adds a send with immediate data in network order.
    fn ibv_wr_send_imm(imm_data: u32) = wr_send_imm;
    /// Adds a send that invalidates a remote key (rkey) of the peer's memory.
    fn ibv_wr_send_inv(rkey: u32) = wr_send_inv;
    /// Adds a segmented send. Each segment has a copy of the header and at most `mss` bytes of payload.
    fn ibv_wr_send_tso(header: *mut c_void, length: u16, mss: u16) = wr_send_tso;
    /// Sets the destination of a datagram.
    fn ibv_wr_set_ud_addr(ah: *mut ibv_ah, qpn: u32, qkey: u32) = wr_set_ud_addr;
    /// Copies the data into the work request.
    fn ibv_wr_set_inline_data(address: *mut c_void, length: usize) = wr_set_inline_data;
    /// Copies the data of several buffers into the work request.
    fn ibv_wr_set_inline_data_list(count: usize, list: *const ibv_data_buf) = wr_set_inline_data_list;
    /// Sets the single buffer of the work request.
    fn ibv_wr_set_sge(lkey: u32, address: u64, length: u32) = wr_set_sge;
    /// Sets the buffers of the work request.
    fn ibv_wr_set_sge_list(count: usize, list: *const ibv_sge) = wr_set_sge_list;
}

/// Posts the list of work requests.
///
/// # Errors
/// `EOPNOTSUPP` if the QP was created without the extended send API. Otherwise the error of the driver. On an error, no
/// request was posted.
///
/// # Safety
/// The QP must be valid, and [`ibv_wr_start`] must have been called.
#[inline]
pub(super) unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> Result<(), VerbError> {
    // SAFETY: the caller upholds the safety contract.
    unsafe {
        let verb = function_pointer(&raw const (*qp).wr_complete).ok_or(unsupported("ibv_wr_complete"))?;
        verb(qp).value("ibv_wr_complete")
    }
}

/// Checks that the driver provides the reader function of every field in `wc_flags`. Later calls of the readers need no
/// check.
///
/// # Errors
/// `EOPNOTSUPP` with the name of the first missing function.
///
/// # Safety
/// The CQ must be valid.
pub(super) unsafe fn check_readers(cq: *mut ibv_cq_ex, wc_flags: u64) -> Result<(), VerbError> {
    macro_rules! check {
        ($($bits:expr => $verb:literal $member:ident),+ $(,)?) => {$(
            let wanted = $bits == 0 || wc_flags & u64::from($bits) != 0;
            // SAFETY: the caller upholds the safety contract.
            if wanted && unsafe { function_pointer(&raw const (*cq).$member) }.is_none() {
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

/// Checks that the driver provides the builder functions that every QP needs, and the builder functions for `send_ops`.
///
/// # Errors
/// `EOPNOTSUPP` with the name of the first missing function.
///
/// # Safety
/// The QP must be valid.
pub(super) unsafe fn check_builders(qp: *mut ibv_qp_ex, send_ops: u64) -> Result<(), VerbError> {
    macro_rules! check {
        ($($bits:expr => $verb:literal $member:ident),+ $(,)?) => {$(
            let wanted = $bits == 0 || send_ops & u64::from($bits) != 0;
            // SAFETY: the caller upholds the safety contract.
            if wanted && unsafe { function_pointer(&raw const (*qp).$member) }.is_none() {
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

/// Calls `work` with the list of the devices of the host. The device pointers are valid until `work` returns.
pub(super) fn with_devices<R>(work: impl FnOnce(&[*mut ibv_device]) -> R) -> Result<R, VerbError> {
    let mut count: c_int = 0;
    // SAFETY: `count` is a valid location for the number of devices.
    let list = unsafe { library::ibv_get_device_list(&mut count) }.value("ibv_get_device_list")?.as_ptr();
    // SAFETY: the list contains `count` devices followed by a null pointer, and the list does not change until the call
    // below frees the list.
    let found = work(unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) });
    // SAFETY: `ibv_get_device_list` returned the list, and nothing borrows from the list any longer.
    unsafe { library::ibv_free_device_list(list) };
    Ok(found)
}

/// Returns the name of a device.
///
/// # Safety
/// The device must belong to a device list that has not been freed.
pub(super) unsafe fn ibv_get_device_name(device: *mut ibv_device) -> String {
    // SAFETY: the caller upholds the safety contract. The name is a C string inside the device.
    unsafe { CStr::from_ptr(library::ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}
