//! Every call into libibverbs. What comes out of here is plain data.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use ibverbs_sys::{
    ibv_close_device, ibv_context, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_free_device_list,
    ibv_get_device_list, ibv_get_device_name, ibv_open_device, ibv_query_device,
};

use crate::error::VerbError;

/// A device of the list.
pub(super) struct Found {
    pub(super) name: String,
    /// Whether it speaks InfiniBand or RoCE, and not iWARP or something of its vendor.
    pub(super) infiniband: bool,
    pub(super) answer: Result<Answer, VerbError>,
}

/// What an opened device says of itself.
pub(super) struct Answer {
    pub(super) basic: ibv_device_attr,
    /// `None`: its driver knows no extended query.
    pub(super) extended: Option<ibv_device_attr_ex>,
    pub(super) extended_cq: bool,
    pub(super) completion_vectors: u32,
}

fn failed(verb: &'static str) -> VerbError {
    VerbError::new(verb, io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// Lists the devices of the host, and asks each what it can do.
pub(super) fn devices() -> Result<Vec<Found>, VerbError> {
    let mut count: c_int = 0;
    // SAFETY: the count is written before the call returns; the result is checked below.
    let list = unsafe { ibv_get_device_list(&mut count) };
    if list.is_null() {
        return Err(failed("ibv_get_device_list"));
    }
    // SAFETY: the list has `count` devices, ended by a null pointer, and stays as it is until it is freed below.
    let found = unsafe { slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
    // SAFETY: each device is valid while the list is.
    let found = found.iter().map(|&device| unsafe { look_at(device) }).collect();
    // SAFETY: the list came from `ibv_get_device_list` and nothing borrows from it any more.
    unsafe { ibv_free_device_list(list) };
    Ok(found)
}

/// # Safety
/// `device` is of a list that was not freed.
unsafe fn look_at(device: *mut ibv_device) -> Found {
    // SAFETY: the caller's promise; the name is a C string inside the device.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned();
    // SAFETY: the caller's promise. The transport is read as the number that it is: IBV_TRANSPORT_IB is 0.
    let transport = unsafe { ptr::addr_of!((*device).transport_type).cast::<c_int>().read() };
    // SAFETY: the caller's promise; the result is checked.
    let context = unsafe { ibv_open_device(device) };
    if context.is_null() {
        return Found { name, infiniband: transport == 0, answer: Err(failed("ibv_open_device")) };
    }
    // SAFETY: the context is open until it is closed in the next line, and the answer borrows nothing from it.
    let answer = unsafe { ask(context) };
    // SAFETY: the context was opened above, has no children, and is not used again.
    unsafe { ibv_close_device(context) };
    Found { name, infiniband: transport == 0, answer }
}

/// # Safety
/// `context` is open.
unsafe fn ask(context: *mut ibv_context) -> Result<Answer, VerbError> {
    let mut basic = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: the context is open, and the structure is there to be written.
    let status = unsafe { ibv_query_device(context, basic.as_mut_ptr()) };
    if status != 0 {
        return Err(VerbError::new("ibv_query_device", status.abs()));
    }
    // SAFETY: the structure holds numbers alone, for which zeros are valid, and the call has filled it.
    let basic = unsafe { basic.assume_init() };
    // SAFETY: the caller's promise.
    let operations = unsafe { Operations::of(context) };
    // SAFETY: the pointer was checked by `Operations::get`, and verbs.h declares `query_device_ex` with this signature.
    let query = operations.get(QUERY_DEVICE_EX).map(|at| unsafe { std::mem::transmute::<usize, QueryDeviceEx>(at) });
    let extended = query.and_then(|query| {
        let mut extended = MaybeUninit::<ibv_device_attr_ex>::zeroed();
        // SAFETY: the context is open; no input means no input mask; the size is that of the structure.
        let status = unsafe { query(context, ptr::null(), extended.as_mut_ptr(), size_of::<ibv_device_attr_ex>()) };
        // SAFETY: as above: numbers alone, zeros where the driver wrote nothing.
        (status == 0).then(|| unsafe { extended.assume_init() })
    });
    // SAFETY: the context is open.
    let vectors = unsafe { ptr::addr_of!((*context).num_comp_vectors).read() };
    let completion_vectors = u32::try_from(vectors).unwrap_or(0);
    Ok(Answer { basic, extended, extended_cq: operations.get(CREATE_CQ_EX).is_some(), completion_vectors })
}

type QueryDeviceEx =
    unsafe extern "C" fn(*mut ibv_context, *const std::ffi::c_void, *mut ibv_device_attr_ex, usize) -> c_int;

/// Places in `struct verbs_context` (verbs.h), which ends in the `ibv_context` that programs see. New members are put in
/// front, so places are counted from the end; `SIZE` is that of libibverbs 44 to 55.
const SIZE: usize = 648;
const CONTEXT: usize = 320;
const SIZE_FIELD: usize = 312;
const QUERY_DEVICE_EX: usize = 216;
const CREATE_CQ_EX: usize = 200;

/// The extended operations of a context.
struct Operations {
    /// The start of the `verbs_context`; null: the driver has none.
    start: *const u8,
    /// How much of it the driver has.
    size: usize,
}

impl Operations {
    /// # Safety
    /// `context` is open, and stays so as long as this is used.
    unsafe fn of(context: *mut ibv_context) -> Self {
        // SAFETY: the caller's promise.
        let compat = unsafe { ptr::addr_of!((*context).abi_compat).read() };
        if compat.addr() != usize::MAX {
            return Self { start: ptr::null(), size: 0 };
        }
        // SAFETY: this mark means that the context is the last member of a `verbs_context`.
        let start = unsafe { context.cast::<u8>().cast_const().sub(CONTEXT) };
        // SAFETY: the size is a member right before the context.
        let size = unsafe { start.add(SIZE_FIELD).cast::<usize>().read() };
        Self { start, size }
    }

    /// The function at a place, if the driver has one.
    fn get(&self, place: usize) -> Option<usize> {
        if self.start.is_null() || self.size < SIZE - place {
            return None;
        }
        // SAFETY: the driver's structure is large enough to have this member, a pointer to a function or null.
        let function = unsafe { self.start.add(place).cast::<usize>().read() };
        (function != 0).then_some(function)
    }
}
