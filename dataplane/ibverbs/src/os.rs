//! File descriptors and shared objects of this process.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};
use std::{fs, io};

/// Makes a file descriptor non-blocking. Does nothing for a negative value, which means that a device has no
/// descriptor. Returns the `errno` on failure.
pub(super) fn nonblocking(fd: c_int) -> Result<(), c_int> {
    // SAFETY: these calls access no memory. With an invalid descriptor, they return an error.
    let done = fd < 0
        || unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
        };
    if done { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EBADF)) }
}

/// Returns the time at which a wait ends, or `None` if the wait never ends.
pub(super) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Waits until a file descriptor is readable or has an error: poll(2). Returns `false` at the deadline. The descriptor
/// -1 is never readable.
pub(super) fn wait_readable(fd: c_int, deadline: Option<Instant>) -> bool {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the structures are valid, and the call sets no signal mask.
        let answer =
            unsafe { libc::ppoll(&mut poll, 1, time.as_ref().map_or(ptr::null(), ptr::from_ref), ptr::null()) };
        match answer {
            0 => return false,
            // The call failed, and no time is left.
            -1 if left.is_some_and(|left| left.is_zero()) => return false,
            // A signal interrupted the call, or the kernel had no memory. Wait for the remaining time.
            -1 => {}
            _ => return true,
        }
    }
}

/// Returns the path of the shared object that contains an address: dladdr(3). Returns `None` if no shared object
/// contains the address.
pub(super) fn object_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` accepts any address. The structure contains only pointers, for which zeros are valid. The name
    // is valid while the shared object is loaded, and the address belongs to a loaded object.
    let name = unsafe {
        (libc::dladdr(address, info.as_mut_ptr()) != 0)
            .then(|| info.assume_init().dli_fname)
            .filter(|name| !name.is_null())
            .map(|name| CStr::from_ptr(name).to_string_lossy().into_owned())?
    };
    Some(fs::canonicalize(&name).unwrap_or_else(|_| name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_an_idle_descriptor_ends_at_the_deadline() {
        let (reader, writer) = io::pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let timeout = Duration::from_millis(20);
        let before = Instant::now();
        assert!(!wait_readable(fd, deadline(timeout)));
        assert!(before.elapsed() >= timeout);
        io::Write::write_all(&mut &writer, b"x").unwrap();
        assert!(wait_readable(fd, deadline(Duration::MAX)));
    }
}
