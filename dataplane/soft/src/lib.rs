//! The software device: an implementation of the verbs contract in this process. The device needs no RDMA hardware.
//! Only links on network interfaces need privileges.
//!
//! The software device is not a mock. It moves bytes between posted requests, has queues of limited capacity, can
//! inject the failures of hardware, and has a clock. No background thread processes raw packets. The device sends
//! packets during a post, and receives packets during a poll of a completion queue.
//!
//! The device has two separate implementations. Raw packets use the fast path (`raw`), which processes whole runs of
//! packets (the packets of one post or poll). The fast path itself takes no lock and allocates nothing, but some links
//! lock or allocate. For example, a pcap link locks its capture file. A raw-packet queue pair either copies frames
//! (`engine`, `deliver`) or is zero-copy (`zero_copy`). Connections and datagrams use a state machine behind one lock.
//! All devices on one [`LoopbackLink`] share this state machine (`fabric`).
//!
//! Raw-packet queue pairs and the core of completion queues (`cq_core`) import each other: a post adds completions to
//! the queue, and a poll of the queue fills the posted receives of the queue pairs. No other files of the crate import
//! each other.
//!
//! - [`SoftSpec`] describes a device, and [`LinkSpec`] describes its wire.
//! - A completion queue and its raw-packet queue pairs belong to the thread that first polls the completion queue.
//!   Verbs from any other thread fail with `EBUSY`. Before the first poll, any thread may set up the queues.
//! - Where hardware devices differ, the software device behaves like the strictest device. A send queue entry becomes
//!   free only when the completion of its request or of a later request is polled. A completion queue without space
//!   overruns. Memory keys, bounds and access rights are checked.
//! - Where the standard and rxe (the kernel's software RoCE driver) differ, [`Profile`] selects the behaviour.
//! - On a zero-copy link the kernel owns the posted slots (packet buffers). A send completes when the kernel returns
//!   its slot. Such a link accepts only runs of slots (`post_recv_run`, `post_send_run`). Requests with scatter/gather
//!   elements fail with `EOPNOTSUPP`. After RESET, call `bind_slots` again before you post slots.
//! - A raw frame that is longer than its posted receive completes that receive with
//!   [`WcStatus::LocLenErr`](dataplane_core::verbs::WcStatus), and the queue pair continues. A datagram that is longer
//!   than its receive moves the queue pair to ERR.
//! - The device uses byte atomics ([`std::sync::atomic::AtomicU8`]) for memory that a peer may access. The owner of
//!   this memory may access the memory at any time, but must also use byte atomics. RDMA atomic operations are atomic
//!   among peers, but not with respect to accesses of the owner (`IBV_ATOMIC_HCA`).
#![allow(unsafe_code)]

mod channel;
mod channel_events;
mod completion;
mod counter;
mod counters;
mod cq;
mod cq_core;
mod deliver;
mod device;
mod engine;
mod fabric;
mod fault;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hand_over;
mod handle;
mod inbox;
mod line;
mod link;
mod memory;
mod mw;
mod nic;
mod numbers;
mod open_device;
mod pd;
mod port;
mod profile;
mod qp;
mod qp_shared;
mod queues;
mod quirk;
mod raw;
mod recv;
mod ring;
mod rss;
mod shared;
mod spec;
mod status;
mod switch;
mod thread_cell;
pub mod upgrade;
mod window;
mod zero_copy;

pub use channel::SoftChannel;
pub use counter::{CounterEvent, CounterEventKind, CounterSpec};
pub use counters::SoftCounters;
pub use cq::{SoftCq, SoftCursor};
pub use dataplane_core::verbs::{RssFields, RssKey, RssSpec};
pub use device::{SoftDevice, SoftProvider};
pub use fabric::SoftSrq;
pub use fault::FaultSpec;
pub use handle::SoftAh;
pub use link::*;
pub use memory::SoftMr;
pub use mw::SoftMw;
pub use pd::SoftPd;
pub use port::PortSpec;
pub use profile::{Profile, SoftLimits};
pub use qp::SoftQp;
pub use quirk::SoftQuirk;
pub use spec::SoftSpec;

#[cfg(test)]
mod tests;
