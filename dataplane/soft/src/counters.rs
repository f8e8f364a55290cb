//! Packet and error counters of a software device. Hardware devices have similar counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a queue pair, or the sums over all queue pairs of a device.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SoftCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl SoftCounters {
            /// Returns all counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds the values of `other`.
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        /// The counters in a form that one thread updates and any thread reads.
        #[derive(Debug, Default)]
        pub(super) struct Counting {
            $(pub(super) $name: Count,)*
        }

        impl Counting {
            pub(super) fn read(&self) -> SoftCounters {
                SoftCounters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames, datagrams or messages that were received successfully.
    rx_packets,
    /// Bytes of `rx_packets`. The GRH of datagrams is not counted.
    rx_bytes,
    /// Frames that were lost because no receive was posted.
    rx_out_of_buffer,
    /// Frames that were longer than the posted receive.
    rx_too_long,
    /// GSO packets that were lost because they were longer than the link accepts.
    rx_gso_too_long,
    /// Frames that no flow rule delivered to the queue pair.
    rx_unmatched,
    /// Frames that were lost because the queue was not polled in time.
    rx_missed,
    /// Frames whose checksum this device completed, because the kernel had left the checksum to the hardware.
    rx_completed,
    /// Frames that the kernel had merged from several frames, and that this device split again.
    rx_split,
    /// Frames, datagrams or messages that were sent.
    tx_packets,
    /// Bytes of `tx_packets`.
    tx_bytes,
    /// Frames that were lost because the link was down.
    tx_link_down,
    /// Frames that were lost because the kernel's queue was full.
    tx_queue_full,
    /// Frames that were lost because the kernel refused to send them, for example because of their length.
    tx_refused,
    /// Frames that were sent but not written, because writing the capture file failed.
    tx_lost,
    /// Datagrams that were dropped because of a wrong Q_Key.
    qkey_violations,
    /// Packets that were dropped because their partition key does not match the key of the queue pair.
    pkey_violations,
    /// Retransmissions of a connection, because no acknowledgement came or because the peer reported a missing packet.
    tx_retries,
    /// Receiver-not-ready answers from the peer.
    rnr_naks,
    /// Packets of connections that had already been received.
    rx_duplicates,
    /// Frames that the kernel dropped instead of passing them to the AF_XDP socket, because no receive was posted in
    /// time or the frame was too long.
    kernel_rx_dropped,
    /// Frames that the kernel dropped because received frames were not fetched in time.
    kernel_rx_ring_full,
    /// The number of times that the kernel found no posted receive.
    kernel_rx_no_buffer,
    /// Posted receives that the kernel rejected.
    kernel_rx_invalid,
    /// Sends that the kernel rejected.
    kernel_tx_invalid,
    /// Injected faults.
    faults,
}

/// A counter with a single writer, so that no locked instruction is needed.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(super) fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }
}
