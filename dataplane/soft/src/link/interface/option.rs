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

/// Returns the value of an option of a socket that is a number (`getsockopt(2)`).
pub(crate) fn number_option(socket: &OwnedFd, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
    let (mut value, mut size) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `size` bytes.
    let done = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut size)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
