//! A lane: one worker's queue pair and completion queues on one port.
//!
//! It owns the hard part of a data plane on verbs: who has which slot. Receives are posted ahead and refilled; sends are
//! posted in runs of which the last alone is signalled, and reclaimed up to it when it completes; what a failure flushes
//! comes back the same way. It is written once, over the traits of [`crate::provider`], and runs on every provider.
//!
//! `unsafe` is allowed here because posting is: the device gets memory to read and write. A slot is posted only in the
//! moment that it leaves the pool or a batch, and comes back only by its completion.
#![allow(unsafe_code)]

mod alarm;
mod in_flight;
pub mod message;
mod posted;
#[cfg(test)]
mod tests;
mod verbs;
mod wiring;

pub(crate) use alarm::Alarms;
pub(crate) use verbs::VerbsLane;
pub(crate) use wiring::{QpOf, RawWiring, Wiring};

use std::os::fd::BorrowedFd;

use crate::clock::{Stamp, Stamper};
use crate::error::VerbError;
use crate::mem::{Batch, Pool};
use crate::provider::{Access, CqGranted, PollFields, QpType, WcStatus};

/// What a lane has done. Packets, unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneCounters {
    /// Received.
    pub rx: u64,
    /// Bytes of those.
    pub rx_bytes: u64,
    /// Receives that completed with an error: nothing was received.
    pub rx_errors: u64,
    /// Sent: the device has said so.
    pub tx: u64,
    /// Bytes of those.
    pub tx_bytes: u64,
    /// Dropped because the send queue was full.
    pub tx_full: u64,
    /// Dropped because sending failed.
    pub tx_errors: u64,
    /// Dropped because they are longer than a message of the connection may be.
    pub tx_too_long: u64,
    /// Dropped because there is no connection to a peer at the moment.
    pub tx_not_connected: u64,
    /// Dropped because the worker stopped before they were sent.
    pub stopped: u64,
    /// Completions of no request of this lane: of an older generation, or of a broken device.
    pub stale: u64,
    /// How often the queue pair was reset after an error, or because its peer began anew.
    pub recoveries: u64,
    /// How often all queues were made anew because a completion queue was lost.
    pub rebuilds: u64,
    /// Requests that a queue pair did not give back in time, and that its reset or end took from it.
    pub abandoned: u64,
    /// The first error status that was seen.
    pub first_error: Option<WcStatus>,
}

/// Takes the time from receive stamp to send completion stamp.
pub(crate) trait LatencySink {
    /// So many packets that share both stamps.
    fn record(&mut self, from: Stamp, to: Stamp, packets: u64);
}

/// A lane, whatever its provider: one dynamic call a burst.
pub(crate) trait Lane: Send {
    /// Receives up to `limit` packets into the batch. Returns how many.
    ///
    /// # Errors
    /// The completion queue cannot be used any more.
    fn receive(&mut self, pool: &mut Pool, batch: &mut Batch, limit: usize) -> Result<usize, VerbError>;

    /// Sends the batch, which is empty afterwards: what cannot be sent is a counted drop.
    fn transmit(&mut self, pool: &mut Pool, batch: &mut Batch);

    /// Takes back the slots of sends that have completed.
    ///
    /// # Errors
    /// The completion queue cannot be used any more.
    fn reap(&mut self, pool: &mut Pool, latency: &mut dyn LatencySink) -> Result<(), VerbError>;

    /// Posts free slots to the receive queue until it is full. Resets a queue pair that an error has stopped, and brings
    /// a connection forward.
    ///
    /// # Errors
    /// The device takes no receives, or cannot be reset.
    fn refill(&mut self, pool: &mut Pool) -> Result<(), VerbError>;

    /// Whether packets can be sent: the queue pair is connected.
    fn is_connected(&self) -> bool;

    /// Acts on what the device said outside any completion, and begins the connection anew if its peer did. For every
    /// few hundred loops.
    ///
    /// # Errors
    /// The device is gone, or lost queues cannot be made anew.
    fn attend(&mut self, pool: &mut Pool) -> Result<(), VerbError>;

    /// Moves the queue pair to the error state, so that everything outstanding is flushed.
    ///
    /// # Errors
    /// As `ibv_modify_qp(3)`.
    fn stop(&mut self) -> Result<(), VerbError>;

    /// Takes back what is flushed. Returns how many slots the device still has.
    ///
    /// # Errors
    /// As [`Lane::reap`].
    fn drain(&mut self, pool: &mut Pool) -> Result<usize, VerbError>;

    /// Ends the queues, and takes from them what they have not given back.
    fn abandon(&mut self, pool: &mut Pool);

    /// Lets the next completion of a receive wake whoever waits at [`Lane::waker`]. What has completed before does not.
    /// `false`: this lane wakes nobody.
    fn arm(&mut self) -> bool;

    /// What is readable once an armed lane has something.
    fn waker(&self) -> Option<BorrowedFd<'_>>;

    /// Takes the wake-ups off.
    fn woken(&mut self);

    /// Slots that wait to be received into.
    fn posted(&self) -> usize;

    /// Packets that are being sent.
    fn sending(&self) -> usize;

    /// Whether nothing will be received any more.
    fn source_ended(&self) -> bool;

    /// What it has done.
    fn counters(&self) -> &LaneCounters;

    /// What stamps the completions of its receives, and those of its sends.
    fn stampers(&self) -> [&Stamper; 2];

    /// What the receive completion queue was granted.
    fn granted(&self) -> &CqGranted;
}

/// What a lane asks of its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSpec {
    /// What its queue pair carries.
    pub(crate) kind: QpType,
    /// The queue of the port: which of how many.
    pub(crate) queue: (u16, u16),
    /// Receives posted ahead; 0 for a lane that only sends.
    pub(crate) recv_depth: u32,
    /// Sends outstanding.
    pub(crate) send_depth: u32,
    /// What packets are stamped by.
    pub(crate) stamps: Stamping,
    /// Whether the worker sleeps until there is something to receive.
    pub(crate) sleeps: bool,
}

/// What packets are stamped by, where the device has it. What it has not is left out, from the bottom up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamping {
    /// Nothing.
    None,
    /// The host's clock, once a burst.
    Host,
    /// The counter of the device.
    Device,
    /// The wall clock of the device.
    Wallclock,
}

impl Stamping {
    /// What is asked of completions.
    pub(crate) fn fields(self) -> PollFields {
        match self {
            Self::None | Self::Host => PollFields::empty(),
            Self::Device => PollFields::TIMESTAMP,
            Self::Wallclock => PollFields::TIMESTAMP | PollFields::WALLCLOCK,
        }
    }
}

/// Takes no notice.
pub(crate) struct NoSink;

impl LatencySink for NoSink {
    fn record(&mut self, _: Stamp, _: Stamp, _: u64) {}
}

/// What a lane may do with the memory that it registers.
pub(crate) const ACCESS: Access = Access::LOCAL_WRITE;
