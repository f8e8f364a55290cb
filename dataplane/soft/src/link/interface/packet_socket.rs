//! AF_PACKET sockets and promiscuous mode (`packet(7)`).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::{Interface, refused, set_option};
use dataplane_core::error::Result;

/// Opens a non-blocking AF_PACKET socket that receives no frames until `bind(2)`.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call passes no memory.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an interface to promiscuous mode until an AF_PACKET socket is closed.
pub(crate) fn set_promiscuous(socket: &OwnedFd, index: u32) -> io::Result<()> {
    let member = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)
}

/// An interface in promiscuous mode. Dropping the value, or the end of the process, ends the promiscuous mode. The kernel
/// counts the users of promiscuous mode, so the interface stays promiscuous while another user needs this mode.
#[derive(Debug)]
pub struct PromiscuousMode {
    _socket: OwnedFd,
}

impl PromiscuousMode {
    /// Sets an Ethernet interface to promiscuous mode. The process needs CAP_NET_RAW.
    ///
    /// # Errors
    /// Fails with a suggested fix if the interface does not exist, is not Ethernet, or if the kernel refuses.
    pub fn start(name: &str) -> Result<Self> {
        let interface = Interface::need(name)?;
        Self::of(interface.index).map_err(|error| refused(name, "setting promiscuous mode", "CAP_NET_RAW", &error))
    }

    /// Sets the interface with this index to promiscuous mode.
    pub(crate) fn of(index: u32) -> io::Result<Self> {
        let socket = packet_socket()?;
        set_promiscuous(&socket, index)?;
        Ok(Self { _socket: socket })
    }
}
