//! Packet memory: huge-page regions, the pool of slots cut from one, and the batches and packets that stages see.
//!
//! A region is cut into equal **slots**; a slot holds one packet. Every slot is in exactly one state: free in its
//! [`Pool`], posted to a receive queue, in a [`Batch`], or sending. The pool belongs to one worker, whose lanes share
//! it without atomics. In debug builds a table checks every change of state.
//!
//! `unsafe` is allowed here because a packet's bytes are reached through the region's base pointer. What makes it
//! sound is kept in one place each: [`Pool`] hands out every slot once, [`Batch`] admits only descriptors that lie in
//! their slot, and nothing outside this crate can make a batch.
#![allow(unsafe_code)]

mod advise;
mod batch;
mod head;
mod memlock;
mod node;
mod packet;
mod pool;
mod reason;
mod region;
mod run;
pub(crate) mod shared;
pub(crate) mod vector;

pub(crate) use advise::{advise_huge_pages, prefetch, prefetch_afar};
pub(crate) use batch::Fate;
pub use batch::{BATCH, Batch, Desc};
pub use head::{Head, Heads};
pub use memlock::{Memlock, Shortage};
pub use node::Preference;
pub use packet::{Colour, Edge, Meta, MetaFlags, Packet, Packets, Wait};
pub use pool::{GUARD, Pool, SlotLayout, SlotState};
pub use reason::Reason;
pub use region::{Notice, PageKind, Region, RegionSpec};
pub(crate) use run::Stamps;
pub use run::{Loose, Run};
