//! The losses of a socket, as the kernel counts them.

use std::os::fd::RawFd;

use super::socket::statistics;
use crate::SoftCounters;

/// The kernel's counters of a socket since the socket was opened: `rx_dropped`, `rx_ring_full`,
/// `rx_fill_ring_empty_descs`, `rx_invalid_descs` and `tx_invalid_descs` of `struct xdp_statistics`.
pub(super) type Reading = [u64; 5];

/// Reads the kernel's counters of a socket. Returns `before` if the kernel returns an error.
pub(super) fn read_counters(fd: RawFd, before: Reading) -> Reading {
    statistics(fd).map_or(before, |now| {
        [now.rx_dropped, now.rx_ring_full, now.rx_fill_ring_empty_descs, now.rx_invalid_descs, now.tx_invalid_descs]
    })
}

/// Returns the counters since an earlier reading.
pub(super) fn increase(now: Reading, before: Reading) -> SoftCounters {
    let [dropped, ring_full, no_buffer, rx_invalid, tx_invalid] =
        std::array::from_fn(|at| now[at].saturating_sub(before[at]));
    SoftCounters {
        kernel_rx_dropped: dropped,
        kernel_rx_ring_full: ring_full,
        kernel_rx_no_buffer: no_buffer,
        kernel_rx_invalid: rx_invalid,
        kernel_tx_invalid: tx_invalid,
        ..SoftCounters::default()
    }
}
