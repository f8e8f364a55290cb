//! An open device, as its objects share it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, io};

use ibverbs_sys::{ibv_context, ibv_device_attr_ex};

use super::ffi;
use super::quirk::{Library, Quirks};
use super::raw::{RawPacketCaps, RawPorts};
use super::selftest::SelfTest;
use crate::error::VerbError;

/// An open device. It is closed when the last of its objects is gone.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<ibv_context>,
    pub(super) name: String,
    /// The driver in user space, such as `mlx5`.
    pub(super) driver: String,
    pub(super) library: Option<Library>,
    pub(super) quirks: Quirks,
    pub(super) limits: Limits,
    /// What it does with raw packets.
    pub(super) raw_ports: Arc<RawPorts>,
    /// The last number that a completion queue or shared receive queue was given: verbs number none of them.
    numbers: AtomicU32,
    /// Whether the device has said that it is gone.
    pub(super) gone: AtomicBool,
    /// What became of the self-test.
    pub(super) tested: OnceLock<SelfTest>,
}

// SAFETY: verbs may be called from any thread (rdma-core, "thread safety"); what is not so is kept apart by the types of
// this module. The rest are numbers and names.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device has, as it says itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) attr: ibv_device_attr_ex,
    pub(super) vectors: u32,
}

impl Limits {
    /// A count of the C interface; what is negative is none.
    pub(super) fn count(number: c_int) -> u32 {
        u32::try_from(number).unwrap_or(0)
    }

    pub(super) fn max_cqe(&self) -> u32 {
        Self::count(self.attr.orig_attr.max_cqe)
    }
}

impl Context {
    /// Takes over an open context.
    ///
    /// # Errors
    /// It does not say what it can do; it is closed.
    ///
    /// # Safety
    /// The context is open, and nobody else closes it.
    pub(super) unsafe fn new(raw: NonNull<ibv_context>, name: String) -> Result<Self, VerbError> {
        // SAFETY: the caller's promise. The place of the function that polls tells which library the driver is; whether
        // there is such a function does not matter.
        let (polls, vectors, async_fd) = unsafe {
            let context = raw.as_ptr();
            (
                (&raw const (*context).ops.poll_cq).cast::<*const c_void>().read(),
                (*context).num_comp_vectors,
                (*context).async_fd,
            )
        };
        let driver = object_of(polls).map_or_else(|| "unknown".to_owned(), |path| driver_name(&path));
        let library = Library::of_this_process();
        let mut context = Self {
            raw,
            quirks: Quirks::of(&driver, library),
            name,
            driver,
            library,
            limits: Limits { attr: ibv_device_attr_ex::default(), vectors: Limits::count(vectors) },
            raw_ports: Arc::default(),
            numbers: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            tested: OnceLock::new(),
        };
        // SAFETY: the context is open.
        context.limits.attr = unsafe { ffi::ibv_query_device_ex(raw.as_ptr()) }?;
        nonblocking(async_fd).map_err(|errno| VerbError::new("ibv_open_device", errno))?;
        Ok(context)
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn raw_caps(&self) -> RawPacketCaps {
        RawPacketCaps::from(&self.limits.attr)
    }

    /// A number for an object that verbs do not number.
    pub(super) fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The descriptor of the device's events.
    pub(super) fn async_fd(&self) -> c_int {
        // SAFETY: the context is open.
        unsafe { (*self.raw()).async_fd }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object holds the context, so there is none any more, and this is the only owner.
        ended(unsafe { ffi::ibv_close_device(self.raw()) }, &self.name);
    }
}

/// An object's end that failed is no reason to stop: it is told, and what the object holds stays as it is.
/// Whether it ended.
pub(super) fn ended(result: Result<(), VerbError>, of: &str) -> bool {
    if let Err(error) = &result {
        tracing::warn!(device = of, "{error}; it is left to the end of the process");
    }
    result.is_ok()
}

/// Lets a descriptor answer at once. A device without one has -1.
pub(super) fn nonblocking(fd: c_int) -> Result<(), c_int> {
    // SAFETY: these calls look at no memory; a wrong descriptor is an error.
    let done = fd < 0
        || unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
        };
    if done { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EBADF)) }
}

/// The end of a time; `None`: never.
pub(super) fn deadline(patience: Duration) -> Option<Instant> {
    Instant::now().checked_add(patience)
}

/// Waits until a descriptor can be read, or has failed: poll(2). `false`: not before the deadline. A descriptor of -1 can
/// never be read.
pub(super) fn wait_readable(fd: c_int, deadline: Option<Instant>) -> bool {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the structures are alive; no signal mask is given.
        let answer =
            unsafe { libc::ppoll(&mut poll, 1, time.as_ref().map_or(ptr::null(), ptr::from_ref), ptr::null()) };
        match answer {
            0 => return false,
            // A signal, or no memory for a moment: the time that is left is known.
            -1 if left.is_some_and(|left| left.is_zero()) => return false,
            -1 => {}
            _ => return true,
        }
    }
}

/// The file of the shared object that an address is in: dladdr(3).
pub(super) fn object_of(address: *const c_void) -> Option<std::path::PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for. The structure holds pointers alone, for which zeros are valid; the name stays
    // as long as the object is loaded, which the caller's code is.
    let name = unsafe {
        (libc::dladdr(address, info.as_mut_ptr()) != 0)
            .then(|| info.assume_init().dli_fname)
            .filter(|name| !name.is_null())
            .map(|name| CStr::from_ptr(name).to_string_lossy().into_owned())?
    };
    Some(fs::canonicalize(&name).unwrap_or_else(|_| name.into()))
}

/// `libmlx5.so.1.24.44.0` and `librxe-rdmav34.so` are the drivers `mlx5` and `rxe`.
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
    fn a_driver_is_named_by_its_library() {
        let name = |path: &str| driver_name(Path::new(path));
        assert_eq!(name("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"), "rxe");
        assert_eq!(name("/usr/lib/libmlx5.so.1.24.44.0"), "mlx5");
        assert_eq!(name("libbnxt_re-rdmav59.so"), "bnxt_re");
        assert_eq!(name("/"), "");
    }

    #[test]
    fn a_descriptor_that_says_nothing_is_waited_for_as_long_as_was_said() {
        let (reader, writer) = io::pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let patience = Duration::from_millis(20);
        let before = Instant::now();
        assert!(!wait_readable(fd, deadline(patience)));
        assert!(before.elapsed() >= patience);
        io::Write::write_all(&mut &writer, b"x").unwrap();
        assert!(wait_readable(fd, deadline(Duration::MAX)));
    }
}
