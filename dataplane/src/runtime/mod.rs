//! A config becomes a running data plane.
//!
//! ```text
//! Source → assemble → Assembly (checked; no device touched) → Run::start → Run (workers) → Run::join → Report
//! ```

mod assemble;
mod control;
mod devices;
mod idle;
mod report;
mod run;
mod worker;

pub use assemble::{Assembly, assemble};
pub use run::{Options, Run};
