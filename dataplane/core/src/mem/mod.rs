//! Packet memory: huge-page regions, the pool of slots cut from a region, and the batches and packets that stages use.
//!
//! A region is divided into **slots** of equal size. A slot holds one packet. Every slot is in exactly one state: free
//! in its [`Pool`], posted to a receive queue, in a [`Batch`], or posted to a send queue. The pool belongs to one
//! worker. The lanes of this worker (its queues on each port) share the pool without atomics. In debug builds, a table
//! checks every change of state.
//!
//! `unsafe` is allowed here because packet bytes are accessed through the base pointer of the region. Three invariants
//! make this sound. First, [`Pool`] owns its region and hands out every slot once. Second, [`Batch`] accepts only
//! descriptors whose bytes are inside their slot. Third, only this crate moves slots between a pool, a batch and a
//! device. The only mistake that other code can make is to pass the wrong pool. Batches, graphs and lanes then panic.
#![allow(unsafe_code)]

mod advise;
mod atomic_box;
mod batch;
mod create;
mod desc;
mod head;
mod label;
mod memlock;
mod meta;
mod node;
mod packet;
mod pool;
mod reason;
mod received;
mod region;
mod run;
pub mod shared;
pub mod vector;

pub(crate) use atomic_box::AtomicBox;

pub use advise::{advise_huge_pages, prefetch, prefetch_l2};
pub use batch::{BATCH, Batch};
pub use desc::Desc;
pub use head::{Head, Heads};
pub use label::{Edge, HoldState, Verdict};
pub use memlock::{Memlock, Shortage};
pub use meta::{Colour, Meta, MetaFlags};
pub use node::PreferredNumaNode;
pub use packet::{Packet, Packets};
pub use pool::{BatchMemory, GUARD, Pool, SlotLayout, SlotState};
pub use reason::Reason;
pub use received::{RecvFields, RecvFlags, RecvInfo};
pub use region::{Notice, PageKind, Region, RegionSpec};
pub use run::{Run, RunSource, Stamps};
