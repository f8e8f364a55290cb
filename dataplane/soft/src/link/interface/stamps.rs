//! Receive timestamps of frames, and the clocks of these timestamps (`Documentation/networking/timestamping.rst` of the
//! kernel).

use std::io;

use rustix::time::{ClockId, clock_gettime};

use super::request::Request;

/// The filter with which the NIC adds a timestamp to every received frame (`HWTSTAMP_FILTER_ALL` of
/// `linux/net_tstamp.h`).
const ALL: libc::c_int = 1;

/// Requests a NIC timestamp for every received frame. Keeps all other timestamp settings of the NIC.
///
/// # Errors
/// Fails if the NIC does not add a timestamp to every received frame.
pub(in crate::link) fn enable_nic_stamps(interface: &str) -> io::Result<()> {
    // SAFETY: zero is a valid value of every field.
    let mut config: libc::hwtstamp_config = unsafe { std::mem::zeroed() };
    let mut request = Request::new(interface).ok_or(io::ErrorKind::InvalidInput)?;
    request.ifreq.ifr_ifru.ifru_data = (&raw mut config).cast();
    // Read the current settings first, so that the settings of other programs are kept. Not every driver supports the
    // query, so ignore its error.
    let _ = request.ask(libc::SIOCGHWTSTAMP);
    if config.rx_filter == ALL {
        return Ok(());
    }
    config.rx_filter = ALL;
    request.ask(libc::SIOCSHWTSTAMP)?;
    // The driver writes the setting that it applied, which may be weaker than the request.
    if config.rx_filter == ALL { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Logs a warning: because of `error`, frames have timestamps of the kernel, not of the NIC.
pub(in crate::link) fn warn_kernel_stamps(interface: &str, error: &io::Error) {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM) => "give the program CAP_NET_ADMIN",
        _ => "remove `stamps`, or use an interface for which `ethtool -T` lists hardware receive timestamps",
    };
    tracing::warn!(
        "interface `{interface}`: NIC timestamps are not available ({error}), using kernel timestamps; help: {remedy}"
    );
}

/// Returns the wall-clock time minus the time of `CLOCK_MONOTONIC`, in nanoseconds. XDP programs read
/// `CLOCK_MONOTONIC`. The result changes when the wall clock is set.
pub(in crate::link) fn wall_ahead() -> i64 {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    // Keep the reading that took the shortest time, because its error is smallest.
    let readings = (0..5).map(|_| {
        let (before, wall, after) = (read(ClockId::Monotonic), read(ClockId::Realtime), read(ClockId::Monotonic));
        (after - before, wall - (before + (after - before) / 2))
    });
    readings.min().map_or(0, |(_, ahead)| ahead)
}
