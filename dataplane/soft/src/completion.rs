//! Completions in the queues of the device, and their timestamps.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::counter::Counter;
use dataplane_core::clock::{HostClock, Timebase};
use dataplane_core::units::{Nanos, QpNum, Ticks};
use dataplane_core::verbs::{
    Completion, CompletionValues, PollFields, RecvFlags, RecvInfo, WcFlags, WcOpcode, WcStatus,
};

/// The source of a queue's timestamps.
#[derive(Clone, Debug)]
pub(super) enum Stamps {
    None,
    /// The device's counter, in ticks.
    Ticks(Arc<Counter>),
    /// Nanoseconds of a simulated wall clock. The fields are the virtual clock of the device, its timebase, and a pair
    /// of matching values: wall-clock nanoseconds, and ticks of the virtual clock at that moment.
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

    /// Returns whether the stamps are nanoseconds of a wall clock.
    #[inline(always)]
    pub(super) fn by_wall(&self) -> bool {
        matches!(self, Self::Wallclock(..) | Self::HostWallclock(_))
    }

    /// Sets the timestamps of a completion whose stamp is in the field `ticks`. If the stamps are wall-clock times,
    /// moves the stamp to the field `wallclock`, and sets `ticks` to the value that `counter` had at this time. mlx5
    /// does the opposite: the device stamps with ticks, and the library computes the wall-clock time.
    pub(super) fn set_times(&self, completion: &mut Completion, counter: &Counter) {
        if self.by_wall() && completion.status == WcStatus::Success {
            let (now, values) = (self.now(), completion.values_mut());
            values.wallclock = Nanos(values.ticks.0);
            values.ticks = counter.before(Nanos(now.0.saturating_sub(values.wallclock.0)));
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
    /// See [`Stamps::by_wall`].
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
    /// What the device found out about a received frame.
    pub(super) info: RecvInfo,
}

impl RawCqe {
    pub(super) const NONE: Self = Self {
        wr_id: 0,
        ticks: Ticks(0),
        release: 0,
        byte_len: 0,
        qp: QpNum(0),
        status: WcStatus::Success,
        info: RecvInfo { flags: RecvFlags::empty(), vlan: 0, flow_tag: 0, hash: 0 },
    };

    /// Returns the completion of a send. `release` is the position of this send among all sends since the queue pair's
    /// start, from 1.
    #[inline]
    pub(super) fn of_send(qp: QpNum, wr_id: u64, status: WcStatus, release: u64, ticks: Ticks) -> Self {
        Self { wr_id, ticks, release, qp, status, ..Self::NONE }
    }

    /// Returns the completion of a receive, with a length of 0 bytes.
    pub(super) fn of_receive(qp: QpNum, wr_id: u64, status: WcStatus, ticks: Ticks) -> Self {
        Self { wr_id, ticks, qp, status, ..Self::NONE }
    }

    /// Converts to a [`Completion`], which a [`Cursor`](dataplane_core::verbs::Cursor) returns.
    pub(super) fn completion(&self) -> Completion {
        let Self { wr_id, ticks, release, byte_len, qp: qp_num, status, info } = *self;
        let (opcode, fields) = match release > 0 {
            true => (WcOpcode::Send, ALWAYS),
            false => (WcOpcode::Recv, ALWAYS | PollFields::BYTE_LEN | PollFields::RECV_INFO),
        };
        let mut values =
            CompletionValues { opcode: opcode.raw(), byte_len, qp_num, ticks, ..CompletionValues::default() };
        values.flags.set(WcFlags::IP_CSUM_OK, info.flags.contains(RecvFlags::CHECKSUM_OK));
        values.rss_hash = info.flags.contains(RecvFlags::HASH).then_some(info.hash);
        (values.cvlan, values.flow_tag) = (info.vlan, info.flow_tag);
        Completion::new(wr_id, status, syndrome(status), fields, values)
    }
}

/// The result of a request of a connected or datagram queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) status: WcStatus,
    /// The fields of `values` that are valid for this completion.
    pub(super) fields: PollFields,
    pub(super) values: CompletionValues,
}

impl Outcome {
    pub(super) fn success(fields: PollFields, values: CompletionValues) -> Self {
        Self { status: WcStatus::Success, fields: ALWAYS | fields, values }
    }

    pub(super) fn failure(status: WcStatus) -> Self {
        Self { status, fields: ALWAYS, values: CompletionValues::default() }
    }
}

/// The fields that are valid for every completion.
const ALWAYS: PollFields = PollFields::QP_NUM.union(PollFields::TIMESTAMP).union(PollFields::WALLCLOCK);

/// Returns the device-specific code of a status: the syndrome that an mlx5 device reports (`MLX5_CQE_SYNDROME_*` of
/// rdma-core's providers/mlx5/mlx5dv.h). Statuses that mlx5 devices do not report have codes from 0x100. 0 for success.
pub(super) fn syndrome(status: WcStatus) -> u32 {
    match status {
        WcStatus::Success => 0,
        WcStatus::LocLenErr => 0x01,
        WcStatus::LocQpOpErr => 0x02,
        WcStatus::LocProtErr => 0x04,
        WcStatus::WrFlushErr => 0x05,
        WcStatus::MwBindErr => 0x06,
        WcStatus::BadRespErr => 0x10,
        WcStatus::LocAccessErr => 0x11,
        WcStatus::RemInvReqErr => 0x12,
        WcStatus::RemAccessErr => 0x13,
        WcStatus::RemOpErr => 0x14,
        WcStatus::RetryExcErr => 0x15,
        WcStatus::RnrRetryExcErr => 0x16,
        WcStatus::RemAbortErr => 0x22,
        other => 0x100 + other.raw(),
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
