//! A polling-mode packet data plane that speaks RDMA verbs.
//!
//! Worker cores run to completion. Each owns, alone, a queue pair and its completion queues on every port it
//! serves, all on one huge-page-backed region of registered memory. It polls completions in batches, hands each
//! batch to a graph of stages that a TOML file describes, and posts what comes out.
//!
//! # Map
//!
//! The modules, lowest first. Each may use only those named beside it, and `units` and `error`; a test holds them to
//! it. `unsafe` is allowed in `mem`, `lane` and the two providers alone.
//!
//! | module | does | uses |
//! | --- | --- | --- |
//! | [`units`] | newtypes for core, node, key, tick, nanosecond, byte | – |
//! | [`error`] | the one error of everything that is set up | – |
//! | [`file`] | files that a config names: opened without waiting, and each kept for one who writes it | – |
//! | [`topology`] | cores, caches, NUMA nodes, device locality; pinning | – |
//! | [`clock`] | the host's clock, those of devices, and stamps that say which they are of | – |
//! | [`mem`] | huge-page regions, the buffer pool, batches and packets | topology, clock |
//! | [`header`] | checked views of protocol headers | – |
//! | [`provider`] | the verbs contract as traits; `soft` implements it in process, `verbs` by libibverbs | mem, header, clock, file |
//! | [`lane`] | one worker's queue pair on one port: receive, transmit, refill, reclaim; messages without `unsafe` | provider, mem, clock |
//! | [`pipeline`] | the `Stage` trait, the registry, graph compilation and the walk | mem, header, clock, file |
//! | [`stages`] | one file per built-in stage | pipeline, header, mem, clock, file, prelude |
//! | [`kernel`] | follows routes and neighbours of the kernel, for the tables of stages | stages, pipeline, header |
//! | [`telemetry`] | the ledger, histograms, snapshots, the report | clock |
//! | [`config`] | TOML to a checked plan; touches no device | topology |
//! | [`runtime`] | a plan becomes objects; the worker loop; control | all of the above |
//! | [`testing`] | packets in, packets out, no device: for tests of stages and apps | all of the above |
//! | [`app`] | the command line that every app has | all of the above |
//!
//! Not here: TCP termination, a control plane of its own, drivers that take the device from the kernel.

// The map has the module that is for this crate alone as well.
#![allow(rustdoc::private_intra_doc_links)]

pub mod app;
pub mod clock;
pub mod config;
pub mod error;
mod file;
pub mod header;
pub mod kernel;
pub mod lane;
pub mod mem;
pub mod pipeline;
pub mod prelude;
pub mod provider;
pub mod runtime;
pub mod stages;
pub mod telemetry;
pub mod testing;
pub mod topology;
pub mod units;

pub use error::{Error, Result};

/// The examples of the book, compiled and run as tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/writing-a-stage.md")]
    mod writing_a_stage {}
}
