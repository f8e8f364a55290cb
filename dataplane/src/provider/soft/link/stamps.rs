//! When a frame came in: the clocks that say it (`Documentation/networking/timestamping.rst` of the kernel).

use std::io;

use rustix::time::{ClockId, clock_gettime};

use super::interface::Request;

/// Every frame (`HWTSTAMP_FILTER_ALL` of `linux/net_tstamp.h`).
const ALL: libc::c_int = 1;

/// Has the NIC stamp every frame that it receives, and leaves its other settings.
///
/// # Errors
/// It does not.
pub(super) fn ask_nic(interface: &str) -> io::Result<()> {
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

/// Says that the kernel stamps frames, and not the NIC that was asked to.
pub(super) fn warn_of_kernel(interface: &str, error: &io::Error) {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => "give the program CAP_NET_ADMIN",
        _ => "leave out `stamps`, or use an interface that `ethtool -T` says it of",
    };
    tracing::warn!(
        "interface `{interface}`: the NIC stamps nothing ({error}), the kernel does; to change it: {remedy}"
    );
}

/// How many nanoseconds the wall clock is ahead of the clock of XDP programs, `CLOCK_MONOTONIC`: the same until somebody sets
/// the wall clock.
pub(super) fn wall_ahead() -> i64 {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    // The reading that took the shortest is the most exact.
    let readings = (0..5).map(|_| {
        let (before, wall, after) = (read(ClockId::Monotonic), read(ClockId::Realtime), read(ClockId::Monotonic));
        (after - before, wall - (before + (after - before) / 2))
    });
    readings.min().map_or(0, |(_, ahead)| ahead)
}
