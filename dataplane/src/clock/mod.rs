//! Clocks: what a tick is, where it comes from, and what it is in nanoseconds.
//!
//! There is one line of time: that of the [`HostClock`]. A [`Stamp`] is a moment on it, together with the clock that said
//! so; stamps of different clocks do not compare. A counter of a device is brought onto the line by [`ClockSync`], which
//! reads it now and then beside the host's clock and publishes a [`Mapping`]; the workers' [`Stamper`]s take that up and
//! turn the ticks of a burst into stamps. Where the device's clock cannot be trusted they stamp by the host's, and say so.

mod host;
mod mapping;
mod stamp;
mod stamper;
mod sync;
#[cfg(test)]
mod tests;
mod timebase;

pub use host::HostClock;
pub use mapping::{ClockState, DeviceClock, Mapping};
pub use stamp::{ClockSource, Stamp};
pub use stamper::{Clocks, StampCounts, Stamper};
pub use sync::{ClockFault, ClockReport, ClockSync, Reading};
pub use timebase::Timebase;
