//! Requests to the kernel that read or change an interface (`netdevice(7)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Maximum length of an interface name, in bytes: `IFNAMSIZ` without the terminating zero.
pub(crate) const LONGEST_NAME: usize = libc::IFNAMSIZ - 1;

/// The argument of an ioctl that reads or changes an interface.
pub(crate) struct Request {
    pub(crate) ifreq: libc::ifreq,
}

impl Request {
    /// Creates a request. Returns `None` if `name` is not a valid interface name.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if !is_name(name) {
            return None;
        }
        // SAFETY: zero is a valid value of every field.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        // The name is at least one byte shorter than the field, so the last byte stays zero.
        ifreq.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
        Some(Self { ifreq })
    }

    /// Executes the ioctl `code` with this argument on a temporary socket.
    pub(crate) fn ask(&mut self, code: libc::c_ulong) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        self.ask_by(&socket, code)
    }

    /// Executes the ioctl `code` with this argument on the file descriptor `by`, such as a queue of a TAP interface.
    pub(crate) fn ask_by(&mut self, by: impl AsFd, code: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the requests of interfaces and of tun(4) read and write one `ifreq`, which this function borrows
        // exclusively.
        let done = unsafe { libc::ioctl(by.as_fd().as_raw_fd(), code as _, &raw mut self.ifreq) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns whether `name` is a valid interface name (`dev_valid_name` in the kernel). A name with a percent sign is not
/// valid, because the kernel replaces `%d` in the name of a new interface by a number.
pub(crate) fn is_name(name: &str) -> bool {
    let odd = |byte: u8| byte == 0 || b"/:%".contains(&byte) || byte.is_ascii_whitespace();
    (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != ".." && !name.bytes().any(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_interface_names_are_refused() {
        for name in ["", ".", "..", "sixteen-bytes-16", "a/b", "a b", "a:b", "tap%d", "a\0"] {
            assert!(!is_name(name), "{name:?}");
            assert!(Request::new(name).is_none());
        }
        assert!(is_name("fifteen-bytes15") && is_name("eth0.10"));
    }
}
