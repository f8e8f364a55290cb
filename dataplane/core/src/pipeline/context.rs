//! The data about the worker that every stage gets ([`Ctx`]), the causes of drops ([`Cause`]), and the default
//! destination of the packets of a stage ([`DefaultTarget`]).

use crate::clock::Stamp;
use crate::units::Nanos;

/// Data that is the same for all packets of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Ctx {
    /// Start of the run, on the system clock (the TSC or `CLOCK_MONOTONIC`, not the wall clock). All timestamps are
    /// converted to the system clock.
    pub start: Nanos,
    /// Start of the run, on the wall clock, in nanoseconds since 1970. The worker measures the offset of the wall clock
    /// again during the run, so this value can change.
    pub start_wallclock: Nanos,
    /// Approximate current time, on the system clock. The worker updates the value before each
    /// [`Stage::tick`](crate::pipeline::Stage::tick).
    pub now: Nanos,
    /// The number of this worker, from 0.
    pub worker: usize,
}

impl Ctx {
    /// Returns the nanoseconds from the start of the run to a timestamp of any clock. Returns 0 for a missing
    /// timestamp.
    #[inline]
    pub fn nanos(&self, stamp: Stamp) -> u64 {
        stamp.nanos().0.saturating_sub(self.start.0)
    }
}

/// The cause of a drop: the two names under which the ledger (the packet accounting) counts the drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause<'a> {
    /// The name of the stage in the config.
    pub stage: &'a str,
    /// The drop reason, or the name of the output that is not connected.
    pub reason: &'a str,
}

/// The default destination of the packets of a stage. Instead, the stage may send a packet to an output, or drop,
/// consume or hold the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultTarget {
    /// To the next stage.
    Next,
    /// To this port, for sending.
    Port(u8),
    /// To the port in `Meta::egress`, for sending.
    Egress,
    /// The packets are dropped, as the config requests.
    Drop,
}
