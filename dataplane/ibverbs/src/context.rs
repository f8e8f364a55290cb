//! An open device, which is shared by all objects of the device.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ibverbs_sys::{IBV_TRANSPORT_IWARP, ibv_context, ibv_device_attr_ex};

use super::ffi;
use super::held_log;
use super::os::{nonblocking, object_of};
use super::quirk::{Library, Quirks};
use dataplane_core::error::VerbError;
use dataplane_core::verbs::LinkLayer;

/// An open device. The device is closed when its last object is dropped.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<ibv_context>,
    pub(super) name: String,
    /// The name of the user-space driver, such as `mlx5`.
    pub(super) driver: String,
    /// Whether the device uses iWARP: RDMA over TCP.
    pub(super) is_iwarp: bool,
    /// Whether all ports of the device are Ethernet ports.
    pub(super) is_ethernet: bool,
    pub(super) library: Option<Library>,
    pub(super) quirks: Quirks,
    pub(super) limits: Limits,
    /// The last number that was given to a completion queue or a shared receive queue. Verbs do not number these
    /// objects, so this crate does.
    numbers: AtomicU32,
    /// Whether the device has reported its removal.
    pub(super) gone: AtomicBool,
}

// SAFETY: verbs may be called from any thread (rdma-core, "thread safety"). The types of this crate restrict the few
// calls that are not thread-safe. The other fields are numbers and names.
unsafe impl Send for Context {}
// SAFETY: same as above.
unsafe impl Sync for Context {}

/// The limits that a device reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) attr: ibv_device_attr_ex,
    pub(super) vectors: u32,
}

impl Limits {
    /// Converts a count of the C interface. Converts a negative count to 0.
    pub(super) fn count(number: c_int) -> u32 {
        u32::try_from(number).unwrap_or(0)
    }

    pub(super) fn max_cqe(&self) -> u32 {
        Self::count(self.attr.orig_attr.max_cqe)
    }
}

impl Context {
    /// Takes ownership of an open context.
    ///
    /// # Errors
    /// The device does not report its attributes, or its event descriptor cannot be made non-blocking. This function
    /// then closes the context.
    ///
    /// # Safety
    /// The context must be open, and nothing else may close it.
    pub(super) unsafe fn new(raw: NonNull<ibv_context>, name: String) -> Result<Self, VerbError> {
        // SAFETY: the caller upholds the safety contract. The address of the poll function identifies the driver
        // library. The address is not called, so it may be null.
        let polls = unsafe { (&raw const (*raw.as_ptr()).ops.poll_cq).cast::<*const c_void>().read() };
        let driver = object_of(polls).map_or_else(|| "unknown".to_owned(), |path| driver_name(&path));
        // SAFETY: the caller upholds the safety contract.
        unsafe { Self::with_driver(raw, name, driver) }
    }

    /// Takes ownership of an open context. `driver` is the name of the user-space driver of the device.
    ///
    /// # Errors
    /// Same as [`Context::new`].
    ///
    /// # Safety
    /// Same as [`Context::new`].
    pub(super) unsafe fn with_driver(
        raw: NonNull<ibv_context>,
        name: String,
        driver: String,
    ) -> Result<Self, VerbError> {
        // SAFETY: the caller upholds the safety contract.
        let (vectors, async_fd) = unsafe { ((*raw.as_ptr()).num_comp_vectors, (*raw.as_ptr()).async_fd) };
        // SAFETY: a context belongs to a device, which exists as long as the context.
        let transport = unsafe { (&raw const (*(*raw.as_ptr()).device).transport_type).read() };
        let library = Library::of_this_process();
        let mut context = Self {
            raw,
            quirks: Quirks::of(&driver, library),
            name,
            driver,
            is_iwarp: transport == IBV_TRANSPORT_IWARP,
            is_ethernet: false,
            library,
            limits: Limits { attr: ibv_device_attr_ex::default(), vectors: Limits::count(vectors) },
            numbers: AtomicU32::new(0),
            gone: AtomicBool::new(false),
        };
        // SAFETY: the context is open.
        context.limits.attr = unsafe { ffi::ibv_query_device_ex(raw.as_ptr()) }?;
        let ports = context.limits.attr.orig_attr.phys_port_cnt;
        let is_ethernet = |port| {
            // SAFETY: the context is open.
            let attr = unsafe { ffi::ibv_query_port(raw.as_ptr(), port) };
            attr.is_ok_and(|attr| LinkLayer::from_raw(attr.link_layer.into()) == LinkLayer::Ethernet)
        };
        context.is_ethernet = ports > 0 && (1..=ports).all(is_ethernet);
        nonblocking(async_fd).map_err(|errno| VerbError::new("ibv_open_device", errno))?;
        Ok(context)
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Returns a new number for an object that verbs do not number.
    pub(super) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Returns the file descriptor for the asynchronous events of the device.
    pub(super) fn async_fd(&self) -> c_int {
        // SAFETY: the context is open.
        unsafe { (*self.raw()).async_fd }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of the device holds the context. The context is being dropped, so no object exists any
        // more.
        check_destroyed(unsafe { ffi::ibv_close_device(self.raw()) }, &self.name);
    }
}

/// Logs a warning if an object could not be destroyed. The object then leaks, and the program continues. Returns
/// whether the object was destroyed.
pub(super) fn check_destroyed(result: Result<(), VerbError>, of: &str) -> bool {
    if let Err(error) = result {
        let of = of.to_owned();
        held_log::emit(move || tracing::warn!(device = of, "{error}; the object leaks until the process ends"));
    }
    result.is_ok()
}

/// Returns the driver name from the path of a driver library: `mlx5` for `libmlx5.so.1.24.44.0`, and `rxe` for
/// `librxe-rdmav34.so`.
fn driver_name(path: &Path) -> String {
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = file.strip_prefix("lib").unwrap_or(&file);
    let end = name.find(".so").unwrap_or(name.len());
    let name = &name[..end];
    name.rsplit_once("-rdmav").map_or(name, |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_name_is_taken_from_the_library_file() {
        let name = |path: &str| driver_name(Path::new(path));
        assert_eq!(name("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"), "rxe");
        assert_eq!(name("/usr/lib/libmlx5.so.1.24.44.0"), "mlx5");
        assert_eq!(name("libbnxt_re-rdmav59.so"), "bnxt_re");
        assert_eq!(name("/"), "");
    }
}
