//! Changes of a running pipeline.
//!
//! A change is a transaction. A control thread checks the new config, prepares the stages that the config adds or
//! replaces ([`prepare`]), and builds a new graph for each worker. The thread then sends a request to all workers. If
//! all workers answer this request, the change takes place: each worker switches to its new graph between two bursts,
//! and hands its earlier graph back ([`exchange`]). A stage whose name, kind and parameters stay the same moves to the
//! new graph with its state. A replaced stage hands its state over to the new stage
//! ([`Stage::adopt`](dataplane_core::pipeline::Stage::adopt)). Another thread then frees the earlier graphs
//! ([`retire`]).
//!
//! The revert of a change is a change too. Until a change is confirmed, the program keeps the objects that the earlier
//! stages share, such as tables. The stages of the revert use these objects again, so the revert reads no files.

mod cores;
mod exchange;
mod history;
mod prepare;
mod refusal;
mod retire;
mod state;
mod transaction;
mod upgrade;
mod workers;

pub(crate) use history::digest;
pub use history::digest_of;
pub(crate) use state::{Changes, PipelineVersion, RunState, lock, start_tasks};
pub use transaction::{ApplyOptions, Changer};
pub(crate) use upgrade::{RESTART_HELP, UpgradeHold};
