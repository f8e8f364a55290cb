//! Options of sockets.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sets an option of a socket (`setsockopt(2)`).
pub(crate) fn set_option<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value has the given size, and the kernel copies it.
    let done = unsafe {
        let (value, size) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), level, option, value, size)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
