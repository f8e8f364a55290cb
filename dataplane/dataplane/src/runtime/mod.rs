//! Turns a config into a running data plane.
//!
//! ```text
//! Source → assemble → Assembly (checked, no device opened) → Run::start → Run (workers) → Run::join → Report
//! ```

mod assemble;
mod black_box;
mod change;
mod control;
mod devices;
mod difference;
mod follow;
mod hand_over;
#[cfg(feature = "ibverbs")]
mod hw_counters;
mod idle;
mod lane_swap;
mod lanes;
mod memory;
mod observation;
mod offload;
mod packet_observer;
mod peer;
mod ports;
#[cfg(feature = "ibverbs")]
mod promiscuous;
mod raw;
pub(crate) mod rdma_interface;
mod removed_workers;
mod report;
mod run;
mod sample;
mod snapshot;
mod soft;
mod stopwatch;
#[cfg(test)]
mod stub_lane;
mod sums;
mod trace;
mod wall_time;
mod watch;
mod watchdog;
mod worker;
mod worker_info;
mod worker_thread;

pub use assemble::{Assembly, assemble, assemble_offline};
pub(crate) use black_box::{BlackBoxFile, Cause, CauseKind, PROGRAM, PacketPlace, RecordedPacket};
pub(crate) use change::digest;
pub use change::digest_of;
pub use change::{ApplyOptions, Changer};
pub(crate) use change::{RESTART_HELP, UpgradeHold};
pub(crate) use difference::operations;
pub(crate) use hand_over::HandedRun;
#[cfg(feature = "ibverbs")]
pub(crate) use hw_counters::{can_lose, in_another_namespace, out_of_buffer_file};
pub use lanes::PortLanes;
pub(crate) use lanes::SharedMemory;
pub(crate) use observation::Observation;
pub(crate) use packet_observer::PacketFilter;
pub(crate) use ports::Gate;
pub(crate) use run::Predecessor;
pub use run::{Options, Run, RunEvent};
pub(crate) use sample::{HandedWorker, SavedStates, Scope};
pub(crate) use snapshot::SnapshotStage;
pub use snapshot::{Snapshot, WorkerState};
pub use trace::{Hop, PathEnd, Trace, Tracer};
