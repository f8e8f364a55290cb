//! Completions in the queues of the device, and their timestamps.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::counter::Counter;
use dataplane_core::clock::{HostClock, Timebase};
use dataplane_core::units::{QpNum, Ticks};
use dataplane_core::verbs::{Completion, CompletionValues, PollFields, WcOpcode, WcStatus};

/// The source of a queue's timestamps.
#[derive(Clone, Debug)]
pub(super) enum Stamps {
    None,
    /// The device's counter, in ticks.
    Ticks(Arc<Counter>),
    /// Nanoseconds of a simulated wall clock. The fields are the system clock, its timebase, and a pair of matching
    /// values: wall-clock nanoseconds, and clock ticks at that moment.
    Wallclock(HostClock, Timebase, u64, Ticks),
    /// Nanoseconds of the system's wall clock plus an offset. The clock is read without a system call (vdso(7)). NTP
    /// adjusts this clock, as it adjusts the clock of the kernel's frame timestamps.
    HostWallclock(i64),
}

impl Stamps {
    #[inline(always)]
    pub(super) fn now(&self) -> Ticks {
        match self {
            Self::None => Ticks(0),
            Self::Ticks(counter) => counter.now(),
            Self::Wallclock(clock, timebase, nanos, since) => wallclock(clock, timebase, *nanos, *since),
            Self::HostWallclock(offset) => host_wallclock(*offset),
        }
    }
}

#[inline(never)]
fn wallclock(clock: &HostClock, timebase: &Timebase, nanos: u64, since: Ticks) -> Ticks {
    Ticks(nanos.wrapping_add(timebase.between(since, clock.now()).0))
}

#[inline(never)]
fn host_wallclock(offset: i64) -> Ticks {
    let time = clock_gettime(ClockId::Realtime);
    Ticks((time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).wrapping_add_signed(offset))
}

/// The time of a poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) ticks: Ticks,
    /// Whether the ticks are nanoseconds of the wall clock.
    pub(super) by_wall: bool,
}

/// A completion of a raw-packet queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawCqe {
    pub(super) wr_id: u64,
    pub(super) ticks: Ticks,
    /// The number of sends since the queue pair's start, up to and including this send. When this completion is polled,
    /// the queue entries of these sends become free. 0 for receives.
    pub(super) release: u64,
    /// The number of received bytes.
    pub(super) byte_len: u32,
    /// The number of the queue pair.
    pub(super) qp: QpNum,
    pub(super) status: WcStatus,
}

impl RawCqe {
    pub(super) const NONE: Self =
        Self { wr_id: 0, ticks: Ticks(0), release: 0, byte_len: 0, qp: QpNum(0), status: WcStatus::Success };

    /// Returns the completion of a send. `release` is the position of this send among all sends since the queue pair's
    /// start, from 1.
    #[inline]
    pub(super) fn of_send(qp: QpNum, wr_id: u64, status: WcStatus, release: u64, ticks: Ticks) -> Self {
        Self { wr_id, ticks, release, byte_len: 0, qp, status }
    }

    /// Returns the completion of a receive, with a length of 0 bytes.
    pub(super) fn of_receive(qp: QpNum, wr_id: u64, status: WcStatus, ticks: Ticks) -> Self {
        Self { wr_id, ticks, release: 0, byte_len: 0, qp, status }
    }

    /// Converts to a [`Completion`], which a [`Cursor`](dataplane_core::verbs::Cursor) returns.
    pub(super) fn completion(&self) -> Completion {
        let Self { wr_id, ticks, release, byte_len, qp: qp_num, status } = *self;
        let opcode = if release > 0 { WcOpcode::Send } else { WcOpcode::Recv };
        let values = CompletionValues { opcode: opcode.raw(), byte_len, qp_num, ticks, ..CompletionValues::default() };
        Completion::new(wr_id, status, 0, PollFields::all(), values)
    }
}

/// A completion of a connected or datagram queue pair (a queue pair on a fabric).
#[derive(Clone, Copy, Debug)]
pub(super) struct FabricCqe {
    pub(super) completion: Completion,
    /// The number of the queue pair.
    pub(super) qp: QpNum,
    /// The number of sends since the queue pair's start, up to and including this send. When this completion is polled,
    /// the queue entries of these sends become free. 0 for receives.
    pub(super) release: u64,
}
