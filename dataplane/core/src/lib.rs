//! The core of Dataplane: packet memory, the verbs contract, lanes, the stage graph and telemetry.
//!
//! Apps depend on the crate `dataplane`, which re-exports the parts of this crate that apps need. The memory safety of
//! apps and stages depends on this crate: [`mem`], [`lane`] and [`pipeline`] share the invariant that each packet
//! buffer is in exactly one state.
//!
//! # Modules
//!
//! The modules, lowest first. Each module may use the modules in the column "uses" of its row.
//!
//! | module | responsibility | uses |
//! | --- | --- | --- |
//! | [`units`] | newtypes for core, NUMA node, memory key, tick, nanosecond, byte | – |
//! | [`error`] | the error type of set-up code | – |
//! | [`sync`] | atomics and locks; tests with the model checker loom use the atomics and locks of loom | – |
//! | [`file`](mod@file) | opens and locks the files that a config names | error |
//! | [`parse_errors`] | turns the errors of serde into messages for people | error |
//! | [`pcapng`] | encodes the blocks of pcapng files | – |
//! | [`stderr`] | writes to standard error, with and without waiting | – |
//! | [`topology`] | cores, caches, NUMA nodes, device locality; thread pinning | units, error |
//! | [`clock`] | the system clock, device clocks, and timestamps with their source | units, error, sync |
//! | [`mem`] | huge-page regions, the buffer pool, batches and packets | units, error, topology, clock, sync |
//! | [`header`] | checked views of protocol headers | – |
//! | [`verbs`] | the verbs contract as traits, which every provider implements | units, error, mem, header, clock, sync |
//! | [`connect`] | connects queue pairs: parameters, the handshake, the peer exchange | units, error, verbs |
//! | [`lane`] | one worker's queue pair on one port: receive, transmit, refill, reclaim. With this module, apps can also send and receive messages without `unsafe` code | units, error, verbs, mem, clock |
//! | [`pipeline`] | the `Stage` trait, the registry, the graph that moves packets from stage to stage | units, error, mem, header, clock, file, sync |
//! | [`harness`] | runs one stage on packets without a device | units, error, pipeline, mem, header, clock |
//! | [`telemetry`] | the ledger, histograms, snapshots, the report | clock |
//! | [`prelude`] | re-exports for stages | mem, pipeline |
//! | [`upgrade`] | the packet memory that another program takes over | error, mem |

pub mod clock;
pub mod connect;
pub mod error;
pub mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod harness;
pub mod header;
pub mod lane;
pub mod mem;
pub mod parse_errors;
pub mod pcapng;
pub mod pipeline;
pub mod prelude;
pub mod stderr;
pub mod sync;
pub mod telemetry;
pub mod topology;
pub mod units;
pub mod upgrade;
pub mod verbs;

pub use error::{Error, Result};

/// Examples of misuse of packet memory. The compiler rejects each example.
///
/// A stage cannot exchange its batch for another batch:
///
/// ```compile_fail,E0277
/// fn swap(mine: &mut dataplane_core::mem::Batch, other: &mut dataplane_core::mem::Batch) {
///     std::mem::swap(mine, other);
/// }
/// ```
///
/// A stage cannot keep a packet:
///
/// ```compile_fail,E0621
/// use dataplane_core::mem::{Batch, Packet};
///
/// struct Keep<'a>(Option<Packet<'a>>);
///
/// impl<'a> Keep<'a> {
///     fn process(&mut self, batch: &mut Batch) {
///         self.0 = batch.get_mut(0);
///     }
/// }
/// ```
///
/// A stage cannot borrow the same packet twice at the same time:
///
/// ```compile_fail,E0499
/// fn twice(batch: &mut dataplane_core::mem::Batch) {
///     let (first, again) = (batch.get_mut(0), batch.get_mut(0));
///     drop((first, again));
/// }
/// ```
///
/// Two pools cannot use the same region:
///
/// ```compile_fail,E0308
/// use dataplane_core::mem::{Pool, Region, SlotLayout};
///
/// fn cut(region: std::sync::Arc<Region>, layout: SlotLayout) {
///     let pools = (Pool::new(region.clone(), layout), Pool::new(region, layout));
/// }
/// ```
///
/// The memory of a pool cannot be registered for a peer:
///
/// ```compile_fail,E0624
/// use dataplane_core::verbs::{Access, ProtectionDomain};
///
/// fn open<P: ProtectionDomain>(pd: &P, pool: &dataplane_core::mem::Pool) {
///     let _ = pd.register(pool.region().clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
/// }
/// ```
///
/// Only a lane and the graph take slots from a pool:
///
/// ```compile_fail,E0624
/// fn take(pool: &mut dataplane_core::mem::Pool) {
///     pool.take(1, dataplane_core::mem::SlotState::Batched);
/// }
/// ```
///
/// Only a lane and the graph remove packets from a batch:
///
/// ```compile_fail,E0624
/// fn forget(batch: &mut dataplane_core::mem::Batch) {
///     batch.forget();
/// }
/// ```
///
/// A packet cannot outlive its batch:
///
/// ```compile_fail,E0505
/// use dataplane_core::mem::Batch;
///
/// fn outlive(mut batch: Box<Batch>) -> usize {
///     let packet = batch.get_mut(0);
///     drop(batch);
///     packet.map_or(0, |packet| packet.len())
/// }
/// ```
///
/// A batch cannot be duplicated:
///
/// ```compile_fail,E0277
/// fn cloned<T: Clone>() {}
/// fn main() {
///     cloned::<dataplane_core::mem::Batch>();
/// }
/// ```
///
/// A pool cannot be duplicated:
///
/// ```compile_fail,E0277
/// fn cloned<T: Clone>() {}
/// fn main() {
///     cloned::<dataplane_core::mem::Pool>();
/// }
/// ```
///
/// A packet cannot be duplicated:
///
/// ```compile_fail,E0277
/// fn cloned<T: Clone>() {}
/// fn main() {
///     cloned::<dataplane_core::mem::Packet<'static>>();
/// }
/// ```
///
/// Only a lane and the graph return slots to a pool:
///
/// ```compile_fail,E0624
/// fn put(pool: &mut dataplane_core::mem::Pool) {
///     pool.put(&[0], dataplane_core::mem::SlotState::Batched);
/// }
/// ```
///
/// A wiring, which connects the queue pair of a lane to its peer, cannot exchange this queue pair:
///
/// ```compile_fail,E0616
/// use dataplane_core::lane::{LaneQueuePair, QpOf};
///
/// fn swap<D: dataplane_core::verbs::Device>(lane: &mut LaneQueuePair<'_, D>, other: &mut QpOf<D>) {
///     std::mem::swap(lane.0, other);
/// }
/// ```
///
/// A provider cannot implement a memory region without `unsafe`, because lanes rely on the properties of the region:
///
/// ```compile_fail,E0200
/// use std::sync::Arc;
///
/// use dataplane_core::mem::Region;
/// use dataplane_core::units::{Lkey, Rkey};
///
/// #[derive(Clone, Debug)]
/// struct Mine(Arc<Region>);
///
/// impl dataplane_core::verbs::MemoryRegion for Mine {
///     fn lkey(&self) -> Lkey {
///         Lkey(0)
///     }
///     fn rkey(&self) -> Rkey {
///         Rkey(0)
///     }
///     fn region(&self) -> &Arc<Region> {
///         &self.0
///     }
/// }
/// ```
#[cfg(doctest)]
mod misuse {}
