//! What a device counts, as hardware does.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a queue pair, or of all those of a device.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SoftCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl SoftCounters {
            /// All of them, by name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds those of another.
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }

        /// The same, counted by one thread and read by any.
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
    /// Frames, datagrams or messages received well.
    rx_packets,
    /// Their bytes; of datagrams without the GRH.
    rx_bytes,
    /// Lost because no receive was posted.
    rx_out_of_buffer,
    /// Longer than the posted receive.
    rx_too_long,
    /// Lost because nobody polled in time.
    rx_missed,
    /// Frames whose checksum the kernel had left to the hardware, and which were completed here.
    rx_completed,
    /// Frames that the kernel handed up as one and that were several, which is what they became here.
    rx_split,
    /// Frames, datagrams or messages sent.
    tx_packets,
    /// Their bytes.
    tx_bytes,
    /// Lost because the link was down.
    tx_link_down,
    /// Lost because the kernel had no room for them.
    tx_queue_full,
    /// Lost because the kernel would not send them, such as for their length.
    tx_refused,
    /// Sent, and then not written: the capture file that they were for has failed.
    tx_lost,
    /// Datagrams that did not carry the right key.
    qkey_violations,
    /// Times that a connection began anew because an answer did not come, or said that something is missing.
    tx_retries,
    /// Answers that the peer had no receive posted.
    rnr_naks,
    /// Packets that had come in before.
    rx_duplicates,
    /// Frames that the kernel lost before they reached a queue of an interface: none was posted in time, or they were too
    /// long.
    kernel_rx_dropped,
    /// Frames that the kernel lost because what had come in was not fetched.
    kernel_rx_ring_full,
    /// Times that the kernel found no posted receive.
    kernel_rx_no_buffer,
    /// Posted receives that the kernel could not use.
    kernel_rx_invalid,
    /// Sends that the kernel could not carry out.
    kernel_tx_invalid,
    /// Faults that were injected.
    faults,
}

/// A counter with one writer: no locked instruction is wanted.
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
