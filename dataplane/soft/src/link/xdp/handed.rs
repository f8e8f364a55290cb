//! The sockets that one program passes to another program.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::socket::{Refused, XdpSocket};
use super::statistics::{Reading, increase, read_counters};
use crate::SoftCounters;
use dataplane_core::mem::Region;

/// The sockets of queues that stop, because another program takes the queues over.
#[derive(Debug)]
pub(super) struct Detaching {
    /// The number of sockets to wait for.
    pub(super) expected: usize,
    pub(super) sockets: Vec<DetachedSocket>,
    /// Whether the interface of a socket was deleted, so that another program cannot use the socket.
    pub(super) is_stale: bool,
}

/// The socket of a queue that has stopped.
#[derive(Debug)]
pub(super) struct DetachedSocket {
    pub(super) queue: u32,
    pub(super) socket: XdpSocket,
    /// Whether the queue has tried to let the XDP program redirect its frames to the socket.
    pub(super) redirected: bool,
    /// The last reading of the kernel's counters. The counters of this program contain this reading.
    pub(super) counted: Reading,
    /// The slots of posted receives, in the order in which the kernel returns the slots.
    pub(super) posted: Vec<u32>,
}

impl DetachedSocket {
    /// Closes this descriptor of the socket. Returns the losses since the last reading of the counters.
    pub(super) fn close(self) -> SoftCounters {
        let dropped = increase(read_counters(self.socket.raw(), self.counted), self.counted);
        SoftCounters { rx_missed: self.socket.close().into(), ..dropped }
    }
}

/// A socket of another program, for a queue pair that waits for the socket.
#[derive(Debug)]
pub(super) struct HandedSocket {
    pub(super) queue: u32,
    pub(super) descriptor: OwnedFd,
    /// The number of entries of the receive ring and of the send ring.
    pub(super) entries: (u32, u32),
    /// Whether a frame may use several buffers.
    pub(super) several: bool,
    pub(super) redirected: bool,
    /// The last reading of the kernel's counters. The counters of the other program contain this reading.
    pub(super) counted: Reading,
    /// The number of posted receives.
    pub(super) posted: usize,
}

impl HandedSocket {
    /// Maps the rings of the socket, whose memory is `region`.
    pub(super) fn open(self, region: &Arc<Region>) -> Result<XdpSocket, Refused> {
        XdpSocket::adopt(region, self.descriptor, self.entries, self.several)
    }
}
