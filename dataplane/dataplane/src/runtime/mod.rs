//! Turns a config into a running data plane.
//!
//! ```text
//! Source → assemble → Assembly (checked, no device opened) → Run::start → Run (workers) → Run::join → Report
//! ```

mod assemble;
mod change;
mod control;
mod devices;
mod difference;
mod follow;
#[cfg(feature = "ibverbs")]
mod hw_counters;
mod idle;
mod lanes;
mod memory;
mod offload;
mod peer;
mod raw;
mod report;
mod run;
mod sample;
mod snapshot;
mod soft;
mod stopwatch;
mod trace;
mod watch;
mod worker;

pub use assemble::{Assembly, assemble, assemble_offline};
pub(crate) use change::digest;
pub use change::{ApplyOptions, Changer, ReloadOutcome};
pub(crate) use difference::operations;
pub use lanes::PortLanes;
pub use run::{Options, Run};
pub(crate) use sample::Scope;
pub(crate) use snapshot::SnapshotStage;
pub use snapshot::{Snapshot, WorkerState};
pub use trace::{End, Hop, Trace, Tracer};
