//! Counters of the host and of its interfaces, and pauses of the thread.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use dataplane::config::Idle;
use dataplane::lane::{Lane, LaneCounters};
use dataplane::runtime::PortLanes;

use super::outcome::PortOutcome;
use crate::sender::Sender;
use crate::series::{Cursor, Intervals};

/// The names of the counters of received frames that were lost because the tester was too slow. The names with `kernel`
/// are the counters of an AF_XDP socket. `kernel_rx_no_buffer` counts events, not frames, so the list does not have it.
const OVERRUNS: [&str; 6] =
    ["rx_out_of_buffer", "rx_missed", "kernel_rx_dropped", "kernel_rx_ring_full", INTERFACE_MISSED, INTERFACE_DROPPED];
/// The result uses this name for the counter `rx_missed_errors` that the kernel has for an interface. The counter counts
/// frames for which the NIC had no buffer.
const INTERFACE_MISSED: &str = "interface_rx_missed_errors";
/// The result uses this name for the counter `rx_dropped` that the kernel has for an interface. The kernel drops a
/// received frame if the queue of the core (`net.core.netdev_max_backlog`) is full. The socket of a `packet` link
/// receives all other frames.
const INTERFACE_DROPPED: &str = "interface_rx_dropped";
/// The result uses this name for the counter `carrier_down_count` that the kernel has for an interface. The counter
/// counts how often the link went down.
pub(super) const CARRIER_DOWN: &str = "interface_carrier_down_count";

/// Returns the counters of each port.
pub(super) fn counters(lanes: &PortLanes) -> Vec<BTreeMap<String, u64>> {
    let of = |(port, plan): (usize, &dataplane::config::PortPlan)| {
        let mut counters = lanes.counters(port);
        let interface = plan.config.kernel_interface();
        // Do not count missed frames twice: if an RDMA device has the counter `rx_out_of_buffer`, this counter already
        // includes the frames that the interface missed.
        if !counters.contains_key("rx_out_of_buffer") || plan.config.link.is_some() {
            let missed = interface.and_then(|name| interface_counter(name, "statistics/rx_missed_errors"));
            counters.extend(missed.map(|missed| (INTERFACE_MISSED.to_owned(), missed)));
        }
        // Count `rx_dropped` only for `packet` links. On an `xdp` link, `rx_dropped` can contain frames that were not
        // for the port. For `tap` links, `kernel_interface` returns `None`.
        if plan.config.link.as_ref().is_some_and(|link| link.copies_frames()) {
            let dropped = interface.and_then(|name| interface_counter(name, "statistics/rx_dropped"));
            counters.extend(dropped.map(|dropped| (INTERFACE_DROPPED.to_owned(), dropped)));
        }
        let downs = interface.and_then(|name| interface_counter(name, "carrier_down_count"));
        counters.extend(downs.map(|downs| (CARRIER_DOWN.to_owned(), downs)));
        counters
    };
    lanes.plan().ports.iter().enumerate().map(of).collect()
}

/// Returns the number of frames that were lost because the tester was too slow. `changes` are the changes of the
/// counters.
pub(super) fn overrun(changes: &BTreeMap<String, u64>) -> u64 {
    OVERRUNS.iter().filter_map(|name| changes.get(*name)).sum()
}

/// Returns a counter of an interface from sysfs, or `None` if the kernel does not have the counter.
fn interface_counter(interface: &str, counter: &str) -> Option<u64> {
    fs::read_to_string(Path::new("/sys/class/net").join(interface).join(counter)).ok()?.trim().parse().ok()
}

/// Returns the number of packets that the lane did not send.
#[inline]
fn failed(counters: &LaneCounters) -> u64 {
    let LaneCounters { tx_full, tx_errors, tx_too_long, tx_not_connected, dropped_at_stop, .. } = counters;
    tx_full + tx_errors + tx_too_long + tx_not_connected + dropped_at_stop
}

/// The packets that a port did not send, by interval.
pub(super) struct Failures {
    cursor: Cursor,
    counted: u64,
    intervals: Vec<u64>,
}

impl Failures {
    pub(super) fn new(lane: &dyn Lane, intervals: Intervals) -> Self {
        let counted = failed(lane.counters());
        Self { cursor: Cursor::new(intervals), counted, intervals: vec![0; intervals.count] }
    }

    /// Counts the packets that failed since the last call, in the interval of the time `at`.
    #[inline]
    pub(super) fn count(&mut self, lane: &dyn Lane, at: u64) {
        let now = failed(lane.counters());
        if now != self.counted
            && let Some(count) = self.intervals.get_mut(self.cursor.at(at))
        {
            *count += now - self.counted;
            self.counted = now;
        }
    }

    /// Counts `packets` more packets in an interval.
    pub(super) fn add(&mut self, index: usize, packets: u64) {
        if let Some(count) = self.intervals.get_mut(index) {
            *count += packets;
        }
    }

    /// Returns the number of packets that failed in an interval.
    pub(super) fn in_interval(&self, index: usize) -> u64 {
        self.intervals.get(index).copied().unwrap_or(0)
    }
}

/// Sets the counts of a port from the counters of its lane. `waiting` is the number of packets of earlier trials that were
/// in the send queue at the start of the trial.
pub(super) fn account(lane: &dyn Lane, before: &LaneCounters, waiting: u64, port: &mut PortOutcome) {
    let now = lane.counters();
    let (tx, failed) = (now.tx - before.tx, failed(now) - failed(before));
    // The send queue is in order, so the packets of earlier trials leave the queue first.
    let earlier = waiting.min(tx);
    port.tx = tx - earlier;
    // Packets that are still in the send queue count as failed. For example, an AF_XDP socket sends nothing while the
    // link is down.
    port.tx_failed = (failed + lane.sending() as u64).saturating_sub(waiting - earlier);
    port.rx = now.rx - before.rx;
}

/// Waits for a short time after an iteration without packets, as the key `idle` of the config requests.
#[inline]
pub(super) fn pause(idle: Idle, senders: &[Sender], elapsed: u64, sending: bool) {
    /// The longest sleep, in nanoseconds. A packet that arrives may wait this long.
    const LONGEST: u64 = 50_000;
    /// The shortest sleep, in nanoseconds. A shorter sleep would take longer than requested, so the thread yields
    /// instead.
    const SHORTEST: u64 = 10_000;
    match idle {
        Idle::Spin => {}
        Idle::Pause => (0..16).for_each(|_| std::hint::spin_loop()),
        Idle::Sleep | Idle::Adaptive => {
            let next = senders.iter().filter_map(Sender::next_due).min().filter(|_| sending);
            match next.map_or(LONGEST, |next| next.saturating_sub(elapsed)).min(LONGEST) {
                left @ SHORTEST.. => thread::sleep(Duration::from_nanos(left)),
                _ => thread::yield_now(),
            }
        }
    }
}

/// Returns the time in nanoseconds in which this thread was ready to run but had no core (proc_pid_schedstat(5)).
/// Returns 0 if the kernel does not report this time.
pub(super) fn cpu_wait() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_an_af_xdp_socket_of_the_nic_and_of_the_kernel_count_as_overrun() {
        let changes = [
            ("rx_packets", 100),
            ("kernel_rx_dropped", 1),
            ("kernel_rx_ring_full", 2),
            ("kernel_rx_no_buffer", 4),
            ("interface_rx_missed_errors", 8),
            ("interface_rx_dropped", 16),
        ];
        let changes = changes.map(|(name, count)| (name.to_owned(), count)).into();
        assert_eq!(overrun(&changes), 27);
    }

    #[test]
    fn counter_of_an_unknown_interface_is_none() {
        assert_eq!(interface_counter("lo", "statistics/rx_missed_errors"), Some(0));
        assert_eq!(interface_counter("no such interface", "carrier_down_count"), None);
    }
}
