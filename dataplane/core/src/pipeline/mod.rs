//! Stages, and the graph that connects them.
//!
//! A [`Stage`] processes a batch and labels packets. A label is the decision of the stage about a packet, such as an
//! output or a drop reason. The graph then moves the packets. A packet without a label goes to the next stage. If no
//! packet of a batch is labelled, the graph moves the whole batch at once. A stage declares which [`Facts`] (known
//! properties of a packet) it needs and sets. [`Program::check`] verifies that every stage gets the facts that it
//! needs.

mod context;
mod contract;
mod counters;
mod facts;
mod graph;
mod headers;
mod held;
mod hops;
mod live;
mod problem;
mod program;
mod quarantine;
mod record;
mod registry;
mod setup;
mod table;
mod task;

pub use context::{Cause, Ctx, DefaultTarget};
pub use contract::{ChecksumOffload, Contract, DropObserver, Generator, StageInfo, StageState, StateTransfer};
pub use counters::CounterReport;
pub use facts::Facts;
pub use graph::{Graph, NoObserver, NodeCounters, Observer, PacketFate, Part, Succession};
pub use headers::Headers;
pub use held::HeldPackets;
pub use hops::{NextHop, NextHops};
pub use live::{Live, LiveReader, LiveTable};
pub use problem::Problem;
pub use program::{ChecksumState, NodeSpec, Program, StandIn, Target};
pub use quarantine::{OnPanic, Quarantined, StageMarker};
pub use record::{Fingerprint, StageRecord};
pub use registry::{Registry, StageKind, parameter_schema, summary};
pub use rustix::thread::CapabilitySet;
pub use setup::{
    ContinuingParts, Files, HoldTime, Objects, PortChange, PortHandler, PortInfo, Resources, Services, Setup,
    StageMemory, new_port_numbers,
};
pub use table::{StageTable, Table, TableInfo, TablePage, TableQuery};
pub use task::{Owner, RunStop, StopSignal, Task, TaskSpec, Tasks, panic_message, thread_name};

use std::any::Any;

use crate::mem::{Batch, Packet};

/// A step of the pipeline. Every worker has its own instance of each stage.
///
/// `serde` builds a stage from its table in the config, so the fields of the stage are its parameters. Mark a field
/// that the stage computes itself with `#[serde(skip)]`, and set the field in [`Stage::prepare`].
pub trait Stage: Any + Send {
    /// Processes a batch: reads and writes packets, and labels the packets that do not go to the next stage.
    ///
    /// This method runs on the worker. It must not allocate, lock, wait, or panic.
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch);

    /// Does housekeeping. The worker calls this method between two batches, every 256 loops and after every sleep.
    ///
    /// Like [`Stage::process`], this method runs on the worker.
    fn tick(&mut self, ctx: &Ctx) {
        let _ = ctx;
    }

    /// Loads tables and looks up ports. This method runs once for each instance of a stage, before the instance
    /// processes its first packet: before the run, or for a change of the running pipeline. This method runs on a
    /// control thread, never on a worker. This method must not access devices.
    ///
    /// # Errors
    /// Fails if a parameter is not valid. The problem names the position of the parameter in the config.
    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let _ = setup;
        Ok(())
    }

    /// Takes over the state of `earlier`, the stage that this stage replaces. Both stages have the same name and kind,
    /// but usually different parameters. The method `downcast` returns `earlier` with its type. If a kind of stage does
    /// not implement this method, the state of `earlier` is lost. [`StageInfo::keeps`] declares the state that this
    /// method keeps, and `dataplane plan` prints the declaration.
    ///
    /// Returns whether this stage continues to hold the packets that `earlier` holds. [`HeldPackets::Drop`] is
    /// necessary if, for example, the metadata of the packets refers to a table that this stage does not use.
    ///
    /// This method runs on the worker between two batches. It must not allocate, free memory, lock, wait, or panic.
    /// Exchange large values with `std::mem::swap`.
    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        let _ = earlier;
        HeldPackets::Keep
    }

    /// Returns the outputs and drop reasons that all stages of this kind have.
    fn info() -> StageInfo
    where
        Self: Sized,
    {
        StageInfo::new()
    }

    /// Returns the facts that the stage needs and sets, its other effects on packets, and its optional capabilities,
    /// such as [`Generator`]. Called before and after [`Stage::prepare`].
    fn contract(&self) -> Contract {
        Contract::new()
    }

    /// Reports the counters that the stage itself keeps, such as the number of bytes. No two counters of a stage may
    /// have the same name.
    ///
    /// This method runs on the worker between two batches, when a snapshot of the run is taken, and once after the run.
    /// It must not allocate, lock, wait, or panic. The names must stay the same, in the same order, until the stage
    /// reports another version of the names ([`CounterReport::set_version`]).
    fn counters(&self, report: &mut dyn CounterReport) {
        let _ = report;
    }

    /// Describes the table entries that apply to a packet, which the stage is about to process. Returns `None` if there
    /// is nothing to describe. `dataplane explain` calls this method without a device, and `dataplane trace` calls this
    /// method on a worker. The method may allocate memory, because only few packets are traced, but must not lock, wait
    /// or panic.
    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let _ = packet;
        None
    }

    /// Writes out data that the stage has collected. Runs once after the run, even if the run failed, or after a change
    /// that removes or replaces the stage. If the change is not confirmed yet, this method does not run for a stage
    /// with shared objects ([`Setup::shared_by_workers`]), because a revert uses the objects again.
    ///
    /// # Errors
    /// Fails if the data cannot be written. The report contains the error.
    fn finish(&mut self) -> crate::error::Result<()> {
        Ok(())
    }
}

impl dyn Stage {
    /// Returns the stage as an `S`. Returns `None` if the stage has another type.
    pub fn downcast<S: Stage>(&mut self) -> Option<&mut S> {
        (self as &mut dyn Any).downcast_mut()
    }
}

impl Setup<'_> {
    /// Prepares a stage. Returns all problems with its parameters.
    pub fn prepare(mut self, stage: &mut dyn Stage) -> Vec<Problem> {
        let last = stage.prepare(&mut self).err();
        self.complete();
        self.rejected.into_iter().chain(last).collect()
    }
}
