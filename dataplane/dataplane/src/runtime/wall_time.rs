//! Converts timestamps of packets to the wall clock.

use dataplane_core::clock::{ClockSource, Stamp};
use dataplane_core::pipeline::Ctx;

/// Returns the time of a timestamp in nanoseconds since 1970. Without a timestamp, returns the time of the last
/// housekeeping of the worker.
pub(crate) fn wall_time(ctx: &Ctx, stamp: Stamp) -> u64 {
    let nanos = match stamp.source() {
        ClockSource::None => ctx.now.0.saturating_sub(ctx.start.0),
        _ => ctx.nanos(stamp),
    };
    ctx.start_wallclock.0.saturating_add(nanos)
}
