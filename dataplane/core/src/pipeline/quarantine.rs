//! What happens if a stage panics: the worker ends, or the graph replaces the stage and continues.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mem::{Batch, Reason};
use crate::pipeline::{Contract, CounterReport, Ctx, Stage};

/// What happens if a stage panics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnPanic {
    /// The run stops.
    #[default]
    Stop,
    /// The stage is quarantined, and drops all further packets.
    Drop,
    /// The stage is quarantined, and passes all further packets on to the next stage.
    Bypass,
}

/// The stage that a worker runs or ran last, and the stage whose code panicked. The worker writes both marks, and any
/// thread can read the first mark ([`StageMarker::stage`]). The padding keeps the markers of different workers in
/// different cache lines, because each worker writes once per batch and stage.
#[derive(Debug, Default)]
pub struct StageMarker(CachePadded<Marks>);

#[derive(Debug, Default)]
struct Marks {
    /// The index plus 1 of the stage that the worker runs. The bit [`StageMarker::OBSERVES`] is also set while the
    /// stage observes a drop of another stage. The mark stays until another stage runs, or until
    /// [`StageMarker::leave`] sets the mark to 0.
    running: AtomicU32,
    /// The mark `running` of the stage whose code panicked, or 0 without a panic.
    panicked: AtomicU32,
}

const _: () = assert!(align_of::<StageMarker>() >= 64);

/// Records the stage whose code panics. The destructor runs only while the thread unwinds, so code that does not panic
/// executes no instruction for this record.
struct PanicRecord<'a>(&'a Marks);

impl Drop for PanicRecord<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.panicked.store(self.0.running.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl StageMarker {
    /// The bit that marks a stage that observes the drops of another stage.
    const OBSERVES: u32 = 1 << 31;

    /// Runs code of the stage with this index. The mark stays until the code of another stage runs, or until
    /// [`StageMarker::leave`].
    #[inline(always)]
    pub(super) fn run<R>(&self, place: usize, code: impl FnOnce() -> R) -> R {
        self.0.running.store(place as u32 + 1, Ordering::Relaxed);
        self.run_marked(code)
    }

    /// Runs code of the stage with this index, which observes a drop of the stage that is marked now.
    pub(super) fn run_observer(&self, place: usize, code: impl FnOnce()) {
        let observed = self.0.running.swap((place as u32 + 1) | Self::OBSERVES, Ordering::Relaxed);
        self.run_marked(code);
        self.0.running.store(observed, Ordering::Relaxed);
    }

    #[inline(always)]
    fn run_marked<R>(&self, code: impl FnOnce() -> R) -> R {
        let record = PanicRecord(&self.0);
        let result = code();
        std::mem::forget(record);
        result
    }

    /// Marks that the worker runs no stage.
    #[inline]
    pub(super) fn leave(&self) {
        self.0.running.store(0, Ordering::Relaxed);
    }

    /// Returns the index of the stage that the worker runs, or ran last in the current walk through the graph.
    pub fn stage(&self) -> Option<usize> {
        Self::index(self.0.running.load(Ordering::Relaxed))
    }

    /// Returns the index of the stage whose code panicked, and whether the stage was observing a drop of another stage.
    pub(super) fn panicked(&self) -> Option<(usize, bool)> {
        let mark = self.0.panicked.load(Ordering::Relaxed);
        Some((Self::index(mark)?, mark & Self::OBSERVES != 0))
    }

    /// Clears both marks, because the worker continues after the panic.
    pub(super) fn clear(&self) {
        self.0.panicked.store(0, Ordering::Relaxed);
        self.leave();
    }

    fn index(mark: u32) -> Option<usize> {
        (mark & !Self::OBSERVES).checked_sub(1).map(|place| place as usize)
    }
}

/// A stage that panicked, and that does not end the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Name of the stage in the config.
    pub stage: String,
    /// What the stage does with further packets. [`OnPanic::Stop`]: the stage continues.
    pub on_panic: OnPanic,
    /// The number of packets that the stage was processing when it panicked. These packets were dropped as `panicked`.
    pub packets: usize,
    /// The first bytes of the first of these packets.
    pub first: Option<Vec<u8>>,
}

/// Takes the place of a stage that panicked.
pub(super) struct Substitute {
    contract: Contract,
    /// Whether the substitute drops all packets, or passes them on.
    pub(super) drops: bool,
    /// The last counters of the stage.
    counters: LastCounters,
}

/// The last counters of a stage that panicked, in the order of the stage. The items of a counter are the name, whether
/// the config chose the name, and the value. The second item is `None` unless the counter belongs to an entry of a table.
#[derive(Default)]
struct LastCounters(Vec<(String, Option<bool>, u64)>);

impl CounterReport for LastCounters {
    fn add(&mut self, name: &str, value: u64) {
        self.0.push((name.to_owned(), None, value));
    }

    fn add_entry(&mut self, name: &str, is_named: bool, value: u64) {
        self.0.push((name.to_owned(), Some(is_named), value));
    }
}

impl Substitute {
    /// Creates a substitute for a stage, with the counters of the stage.
    pub(super) fn new(stage: &dyn Stage, drops: bool) -> Self {
        let mut counters = LastCounters::default();
        // The stage may panic again. The substitute then has the counters that the stage reported before the panic.
        let _ = catch_unwind(AssertUnwindSafe(|| stage.counters(&mut counters)));
        Self { contract: stage.contract(), drops, counters }
    }
}

impl Stage for Substitute {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        if self.drops {
            batch.iter_mut().for_each(|mut packet| packet.drop(Reason::Quarantined));
        }
    }

    fn contract(&self) -> Contract {
        self.contract
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        // The stage may have reported only some of its counters, so the version must differ from the version of the
        // stage.
        report.set_version(u64::MAX);
        for (name, is_named, value) in &self.counters.0 {
            match is_named {
                Some(is_named) => report.add_entry(name, *is_named, *value),
                None => report.add(name, *value),
            }
        }
    }
}
