//! Stages, and the graph that they form.
//!
//! A [`Stage`] takes a batch and labels packets; the graph moves them. A packet that was not labelled goes on to the next
//! stage, and where none was labelled the batch is handed over whole. A stage says what it needs to know of a packet and
//! what it finds out ([`Facts`]); [`Program::check`] holds the graph to that.

mod graph;
mod headers;
mod held;
mod problem;
mod program;
mod registry;
mod reload;
mod setup;

use bitflags::bitflags;

pub use graph::{Graph, NoObserver, NodeCounters, Observer, Part, Step};
pub use headers::Headers;
pub use problem::Problem;
pub use program::{NodeSpec, Program, Target};
pub use registry::{Kind, Registry};
pub use reload::Reload;
pub(crate) use reload::Reloads;
pub(crate) use setup::{Files, Resources};
pub use setup::{NextHop, NextHops, PortInfo, Setup};

use crate::clock::Stamp;
use crate::mem::{Batch, Packet};
use crate::units::Nanos;

/// What is the same for all packets of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Ctx {
    /// When the run began, on the line of time that stamps are on.
    pub start: Nanos,
    /// What the wall clock said at the start: nanoseconds since 1970.
    pub epoch: Nanos,
    /// About when it is, on the line of time that stamps are on: as of the last [`Stage::tick`].
    pub now: Nanos,
    /// Which worker this is, from 0.
    pub worker: usize,
}

impl Ctx {
    /// Nanoseconds from the start of the run to a stamp, whichever clock it is of. Stamps that were not taken are 0.
    #[inline]
    pub fn nanos(&self, stamp: Stamp) -> u64 {
        stamp.nanos().0.saturating_sub(self.start.0)
    }
}

bitflags! {
    /// What is known of a packet: the contract between stages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Facts: u16 {
        /// The header offsets and protocol fields of `Meta`.
        const HEADERS = 1;
        /// `Meta::egress`: the port to send it on.
        const EGRESS = 1 << 1;
        /// `Meta::next_hop`.
        const NEXT_HOP = 1 << 2;
        /// `Meta::colour`.
        const COLOUR = 1 << 3;
        /// `Packet::stamp`: when it was received.
        const STAMP = 1 << 4;
        /// `Meta::flow_hash`.
        const FLOW_HASH = 1 << 5;
    }
}

impl Facts {
    /// What the facts are, in words.
    pub fn describe(self) -> String {
        let words: Vec<&str> = self
            .iter()
            .map(|fact| match fact {
                Self::HEADERS => "parsed headers",
                Self::EGRESS => "an egress port",
                Self::NEXT_HOP => "a next hop",
                Self::COLOUR => "a colour",
                Self::STAMP => "a receive time stamp",
                _ => "a flow hash",
            })
            .collect();
        words.join(" and ")
    }
}

/// Why a packet was dropped, in the two words by which the ledger counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause<'a> {
    /// The name of the stage in the config.
    pub stage: &'a str,
    /// The reason, or the output that leads nowhere.
    pub reason: &'a str,
}

/// Where unlabelled packets go when the stage is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// To the next stage.
    Next,
    /// Out by this port.
    Port(u8),
    /// Out by the port that `Meta::egress` names.
    Egress,
    /// Nowhere: they are dropped, as the config asks.
    Drop,
}

/// A step of the pipeline. Every worker has its own.
///
/// A stage is made from its table of the config by `serde`, so its fields are its parameters; what it works out for
/// itself it keeps in fields marked `#[serde(skip)]` and fills in [`Stage::prepare`].
pub trait Stage: Send {
    /// Handles a batch: reads and writes packets, and labels those that do not go on to the next stage.
    ///
    /// It runs on the worker: it must not allocate, lock, wait, or panic.
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch);

    /// Looks at slow things: called between batches, every 256 loops of the worker and after every sleep.
    ///
    /// As [`Stage::process`], it runs on the worker.
    fn tick(&mut self, ctx: &Ctx) {
        let _ = ctx;
    }

    /// Its outputs beside the next stage: names and meanings. [`crate::mem::Edge`] is an index into these.
    fn outputs() -> &'static [(&'static str, &'static str)]
    where
        Self: Sized,
    {
        &[]
    }

    /// Its own reasons to drop a packet: names and meanings. [`crate::mem::Reason::own`] is an index into these.
    fn reasons() -> &'static [(&'static str, &'static str)]
    where
        Self: Sized,
    {
        &[]
    }

    /// Whether no packet goes on from it to a next stage.
    fn is_terminal() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Whether it takes [`Stage::observe_drop`]: a config may name it as the `drops` of other stages.
    fn observes_drops() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Sees a packet that another stage dropped, and why, before its memory is freed. The packet was never in a batch of
    /// this stage, and nothing about it is counted here: it is a drop of the stage that dropped it.
    ///
    /// As [`Stage::process`], it runs on the worker.
    fn observe_drop(&mut self, ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>) {
        let _ = (ctx, packet, cause);
    }

    /// What must be known of every packet that it gets. Before it is prepared: whatever it may come to need.
    fn needs(&self) -> Facts {
        Facts::empty()
    }

    /// What is known of every packet that it has handled.
    fn sets(&self) -> Facts {
        Facts::empty()
    }

    /// What is known of the packets that leave by an output, as an index: where that is not what it [sets](Self::sets)
    /// on those that go on to the next stage.
    fn sets_on(&self, output: usize) -> Facts {
        let _ = output;
        self.sets()
    }

    /// What is no longer known of a packet that it has handled.
    fn spoils(&self) -> Facts {
        Facts::empty()
    }

    /// Whether it asks for copies of packets.
    fn copies(&self) -> bool {
        false
    }

    /// The most packets that it makes of one ([`Batch::make_from`]).
    fn makes(&self) -> usize {
        0
    }

    /// The most packets that it makes of nothing between two batches ([`Stage::emit`]).
    fn emits(&self) -> usize {
        0
    }

    /// Makes packets of nothing ([`Batch::make`]), which then leave as those of [`Stage::process`] do: called after every
    /// [`Stage::tick`], with an empty batch. They count as received on the first port, or on that of [`Batch::set_ingress`].
    ///
    /// As [`Stage::process`], it runs on the worker.
    fn emit(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let _ = (ctx, batch);
    }

    /// Whether it lets packets wait ([`Packet::hold`]), and how long: what has waited longer comes back as overdue. At most
    /// [`crate::mem::BATCH`] packets wait in a stage of a worker.
    fn holds(&self) -> Option<Nanos> {
        None
    }

    /// Where unlabelled packets go.
    fn exit(&self) -> Exit {
        Exit::Next
    }

    /// Loads tables, looks up ports: once, before the run, on the control thread. No device is touched.
    ///
    /// # Errors
    /// A parameter that does not fit, with its place in the config.
    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let _ = setup;
        Ok(())
    }

    /// Reports its own counters, such as the hits of each rule.
    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        let _ = report;
    }

    /// Says what its tables hold for a packet that is about to be processed. Offline only, for `dataplane explain`.
    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let _ = packet;
        None
    }

    /// Writes out what it keeps: once, after the run, also after one that failed.
    ///
    /// # Errors
    /// What could not be written.
    fn finish(&mut self) -> crate::error::Result<()> {
        Ok(())
    }
}
