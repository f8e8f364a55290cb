//! A poll-mode packet data plane in Rust on RDMA verbs.
//!
//! A worker is a thread on its own core that processes every packet to completion. Each worker owns a queue pair and
//! its completion queues on every port. All packet memory is registered and backed by huge pages. A worker polls
//! completions in batches, passes each batch through a graph of stages from a TOML file, and posts the results.
//!
//! An app depends only on this crate. The crate contains the config, the runtime and the command line, and re-exports
//! the crates below it.
//!
//! # Crates
//!
//! The table lists the crates, lowest layer first. A crate may depend only on the crates in the column `uses` of its
//! row. A test compares the table with the `Cargo.toml` files. Blocks of `unsafe` code are allowed in `mem` and `lane`
//! of `dataplane-core`, in `dataplane-soft`, and in `dataplane-ibverbs`. The module `verbs` of `dataplane-core` only
//! declares `unsafe` traits and functions.
//!
//! | crate | responsibility | uses |
//! | --- | --- | --- |
//! | `dataplane-control` | the control protocol of a running program, and a client | – |
//! | `dataplane-core` | memory, the verbs contract, lanes, the stage graph, telemetry | – |
//! | `dataplane-tables` | longest prefix match, packet classifier, exact match | core |
//! | `dataplane-soft` | the software device and its links | core |
//! | `dataplane-ibverbs` | the libibverbs provider | core |
//! | `dataplane-stages` | the built-in stages; a thread that copies routes and neighbours from the kernel | core, tables |
//! | `dataplane` | config, runtime, command line; the crate that apps depend on | control, core, tables, soft, ibverbs, stages |
//! | `dataplane-bench` | the tester: streams of packets, their judgement, the search for the throughput of a device | core, dataplane |
//! | `dataplane-testing` | support for tests. Other crates use this crate only in tests | core |
//!
//! # Modules of this crate
//!
//! | module | responsibility | uses |
//! | --- | --- | --- |
//! | [`config`] | reads TOML into a checked plan; opens no device | – |
//! | [`runtime`] | creates the objects of a plan; the worker loop; the control thread | config |
//! | [`testing`] | runs packets through a stage or a whole config without a device | runtime, config |
//! | [`app`] | the command line that every app has | runtime, config, testing |
//! | [`prelude`] | re-exports for apps | app |
//!
//! This project does not include TCP termination, a control plane, or drivers that take the device from the kernel.

pub mod app;
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod prelude;
pub mod runtime;
pub mod testing;

pub use dataplane_control as control;
pub use dataplane_core::{Error, Result};
pub use dataplane_core::{clock, connect, error, header, lane, mem, pipeline, telemetry, topology, units, verbs};
#[cfg(feature = "ibverbs")]
pub use dataplane_ibverbs as ibverbs;
pub use dataplane_stages as stages;
pub use dataplane_tables as tables;

/// The software device.
pub mod soft {
    pub use dataplane_soft::*;

    /// Hides the functions of an upgrade from apps, because wrong calls break the memory safety of the program.
    #[expect(hidden_glob_reexports, reason = "only the runtime uses these functions")]
    mod upgrade {}
}

/// The functions of an upgrade are not for apps:
///
/// ```compile_fail,E0603
/// use dataplane::soft::upgrade::HandOver;
/// ```
///
/// ```compile_fail,E0432
/// use dataplane::upgrade::region_descriptor;
/// ```
#[cfg(doctest)]
mod hidden {}

/// The examples in the documentation pages, compiled and run as tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/writing-a-stage.md")]
    mod writing_a_stage {}
    #[doc = include_str!("../../../docs/control.md")]
    mod control {}
}
