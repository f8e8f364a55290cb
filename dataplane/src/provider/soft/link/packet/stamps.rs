//! The clock of a NIC, which stamps what it receives (`Documentation/networking/timestamping.rst` of the kernel).

use std::io;

use crate::provider::soft::link::interface::Request;

/// Every frame (`HWTSTAMP_FILTER_ALL` of `linux/net_tstamp.h`).
const ALL: libc::c_int = 1;

/// Has the NIC stamp every frame that it receives, and leaves its other settings. Whether it does; otherwise says why not.
pub(super) fn by_nic(interface: &str) -> bool {
    let done = ask(interface);
    if let Err(error) = &done {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM) => "give the program CAP_NET_ADMIN",
            _ => "leave out `stamps`, or use an interface that `ethtool -T` says it of",
        };
        tracing::warn!(
            "interface `{interface}`: the NIC stamps nothing ({error}), the kernel does; to change it: {remedy}"
        );
    }
    done.is_ok()
}

fn ask(interface: &str) -> io::Result<()> {
    // SAFETY: zero is a value of every field.
    let mut config: libc::hwtstamp_config = unsafe { std::mem::zeroed() };
    let mut request = Request::new(interface).ok_or(io::ErrorKind::InvalidInput)?;
    request.ifreq.ifr_ifru.ifru_data = (&raw mut config).cast();
    // What it does for others stays. A driver that cannot say does not have to.
    let _ = request.ask(libc::SIOCGHWTSTAMP);
    if config.rx_filter == ALL {
        return Ok(());
    }
    config.rx_filter = ALL;
    request.ask(libc::SIOCSHWTSTAMP)?;
    // It may do less than it was asked for, and says so.
    if config.rx_filter == ALL { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}
