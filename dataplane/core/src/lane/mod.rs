//! A lane: one worker's queue pair and completion queues on one port.
//!
//! A lane tracks whether the program or the device owns each slot (packet buffer). The lane posts receives in advance
//! and refills the receive queue. The lane posts sends in runs (several requests with one call) and requests a
//! completion only for the last send of a run. When the last send completes, the lane reclaims the slots of the whole
//! run. After a failure, the device completes all outstanding requests with a flush error, and the lane reclaims their
//! slots. The code is generic over the traits of [`crate::verbs`] and runs on every provider (implementation of these
//! traits).
//!
//! `unsafe` is allowed here because a posted request gives memory to the device, which reads or writes the memory. The
//! lane posts a slot only when the slot leaves the pool or a batch. The lane reuses the slot only after the slot's
//! request has completed, or after the queue pair was reset or destroyed.
#![allow(unsafe_code)]

mod in_flight;
pub mod message;
mod pending_events;
mod posted;
mod queue_lane;
mod wiring;

pub use pending_events::PendingEvents;
pub use queue_lane::open;
pub use wiring::{AhOf, LaneQueuePair, QpOf, RawWiring, Wiring};

use std::os::fd::BorrowedFd;

use crate::clock::{Stamp, Stamper};
use crate::error::VerbError;
use crate::mem::{Batch, Pool, RecvFields};
use crate::verbs::{Access, CqGranted, PollFields, QpType, WcStatus};

/// Counters of a lane, in packets unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Received packets.
    pub rx: u64,
    /// Bytes of the received packets.
    pub rx_bytes: u64,
    /// Receives that completed with an error, without a packet.
    pub rx_errors: u64,
    /// Sent packets that the device has completed.
    pub tx: u64,
    /// Bytes of the sent packets.
    pub tx_bytes: u64,
    /// Packets dropped because the send queue was full.
    pub tx_full: u64,
    /// Packets dropped because sending failed.
    pub tx_errors: u64,
    /// Packets dropped because they exceed the maximum message length of the connection.
    pub tx_too_long: u64,
    /// Packets dropped because no peer was connected.
    pub tx_not_connected: u64,
    /// Packets dropped because the worker stopped before they were sent.
    pub dropped_at_stop: u64,
    /// Completions that match no outstanding request of this lane. The request was posted before the last reset, or the
    /// device is faulty.
    pub unmatched_completions: u64,
    /// The number of queue pair resets after an error or after a restart of the peer.
    pub recoveries: u64,
    /// The number of times that the lane created all its queues again, because a completion queue or the reset of the
    /// queue pair failed.
    pub rebuilds: u64,
    /// Requests that a queue pair did not complete in time. Resetting or destroying the queue pair returned their
    /// slots.
    pub timed_out: u64,
    /// The first error status that a completion reported.
    pub first_error: Option<WcStatus>,
}

/// Receives latency records. A latency is the time from the receive timestamp to the send completion timestamp.
pub trait LatencySink {
    /// Records `packets` packets that share both timestamps.
    fn record(&mut self, from: Stamp, to: Stamp, packets: u64);
}

/// A lane of any provider. Dynamic dispatch happens once per burst, not per packet.
pub trait Lane: Send {
    /// Receives up to `limit` packets into the batch. Returns the number of received packets.
    ///
    /// # Errors
    /// Fails if the completion queue has failed and cannot be created again.
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError>;

    /// Posts the packets of the batch for sending and leaves the batch empty. The lane drops and counts packets that it
    /// cannot send.
    fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch);

    /// Returns the slots of completed sends to the pool.
    ///
    /// # Errors
    /// Fails if the completion queue has failed and cannot be created again.
    fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError>;

    /// Posts free slots to the receive queue until the queue is full. Also resets a queue pair that an error has
    /// stopped, and continues a pending connection setup.
    ///
    /// # Errors
    /// Fails if the device refuses receives or cannot be reset.
    fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError>;

    /// Returns whether the queue pair is connected, so that packets can be sent.
    fn is_connected(&self) -> bool;

    /// Does the housekeeping of the lane: handles asynchronous device events, and restarts the connection if the peer
    /// restarted. The worker calls this method once in a few hundred loops.
    ///
    /// # Errors
    /// Fails if the device is gone, or if a failed queue cannot be created again.
    fn housekeep(&mut self, pool: &mut Pool) -> Result<(), VerbError>;

    /// Moves the queue pair to the error state, so that all outstanding requests are flushed.
    ///
    /// # Errors
    /// Fails like `ibv_modify_qp(3)`.
    fn stop(&mut self) -> Result<(), VerbError>;

    /// Gives the slots of flushed requests back to the pool. Returns the number of slots that the device still owns.
    ///
    /// # Errors
    /// Fails if a completion queue has failed. A lane that stops does not create its queues again.
    fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError>;

    /// Resets the queue pair and returns the slots of all outstanding requests to the pool. If the reset fails, the
    /// device keeps the slots.
    fn reset_and_reclaim(&mut self, pool: &mut Pool);

    /// Hands the lane over: ends the claim of this thread on the queues, so that another thread can stop and drain the
    /// lane. The other thread uses a detached pool ([`Pool::detached`]).
    fn release_claim(&mut self);

    /// Requests a wake-up at [`Lane::waker`] for the next receive completion. Completions that have already arrived
    /// cause no wake-up. Returns `false` if this lane does not support wake-ups.
    fn arm(&mut self) -> bool;

    /// Returns the file descriptor that becomes readable when an armed lane has a completion.
    fn waker(&self) -> Option<BorrowedFd<'_>>;

    /// Consumes pending wake-ups.
    fn clear_wakeups(&mut self);

    /// Returns the number of slots posted to the receive queue.
    fn posted(&self) -> usize;

    /// Returns the number of packets in the send queue whose slots are not yet reclaimed.
    fn sending(&self) -> usize;

    /// Returns `true` if no more packets will arrive, because the packet source (such as a capture file) has ended.
    fn source_ended(&self) -> bool;

    /// Returns the counters.
    fn counters(&self) -> &LaneCounters;

    /// Returns the timestamp sources of receive completions and of send completions.
    fn stampers(&self) -> [&Stamper; 2];

    /// Returns the granted properties of the receive completion queue.
    fn granted(&self) -> &CqGranted;
}

/// The requested properties of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneSpec {
    /// Type of the queue pair.
    pub kind: QpType,
    /// The index of the worker, and the number of workers of the port. For raw packets, these numbers are also the index
    /// of the queue on the port, and the number of queues of the port.
    pub queue: (u16, u16),
    /// The number of receives posted in advance. 0 for a lane that only sends.
    pub recv_depth: u32,
    /// Maximum number of outstanding sends.
    pub send_depth: u32,
    /// Source of the packet timestamps.
    pub stamps: Stamping,
    /// The receive information that stages need. The device may refuse parts of it.
    pub recv_fields: RecvFields,
    /// Whether the worker sleeps while there is nothing to receive.
    pub sleeps: bool,
}

/// Source of packet timestamps. If the device does not support a source, the lane uses an earlier source of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamping {
    /// No timestamps.
    None,
    /// The system clock, read once per burst.
    Host,
    /// The counter of the device.
    Device,
    /// The wall clock of the device.
    Wallclock,
}

impl Stamping {
    /// Returns the completion fields that this source needs.
    pub fn fields(self) -> PollFields {
        match self {
            Self::None | Self::Host => PollFields::empty(),
            Self::Device => PollFields::TIMESTAMP,
            Self::Wallclock => PollFields::TIMESTAMP | PollFields::WALLCLOCK,
        }
    }
}

/// A latency sink that ignores all records.
pub struct NoSink;

impl LatencySink for NoSink {
    fn record(&mut self, _: Stamp, _: Stamp, _: u64) {}
}

/// Access rights of a lane to the memory that it registers. With relaxed ordering, the writes of packets may pass each
/// other on the bus. The program reads a packet only after the packet's completion, and the write of the completion
/// does not pass the writes of the packet.
pub const ACCESS: Access = Access::LOCAL_WRITE.union(Access::RELAXED_ORDERING);
