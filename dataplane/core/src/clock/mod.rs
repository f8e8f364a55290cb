//! Clocks: tick sources, their conversion to nanoseconds, and timestamps.
//!
//! All times are nanoseconds since the start of the machine. [`HostClock`] measures these times with the TSC or with
//! `CLOCK_MONOTONIC`. In this crate, "system clock" means this clock, not the wall clock. A [`Stamp`] is a time
//! together with the clock that measured the time. A device clock stamps the completion of a packet, and the system
//! clock stamps the poll that returned a burst of completions. These are different events, so stamps of different
//! clocks are never compared.
//!
//! [`ClockSync`] periodically reads the counter of a device and the system clock, and publishes a [`Mapping`] from the
//! counter to the system clock. The [`Stamper`]s of the workers read the mapping and convert the ticks of a burst to
//! stamps. If the device's clock cannot be trusted, a stamper uses the system clock, and the stamps name the system
//! clock as their source.

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
