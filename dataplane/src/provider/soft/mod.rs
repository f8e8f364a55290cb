//! The software device: the verbs contract in process, without privilege and without hardware.
//!
//! It is no mock. It moves bytes between posted requests, has capacity, fails as hardware fails, and keeps time. It has
//! no engine of its own: sends are carried out when they are posted, and receives when a completion queue is polled.
//!
//! It is two machines. Raw packets are the data plane's own path: no lock, no allocation, a run at a time (`engine`,
//! `deliver`). Connections and datagrams are a state machine that all devices on a [`LoopbackLink`] share, behind one
//! lock (`fabric`).
//!
//! - What a device is made of: [`SoftSpec`]. What its wire is: [`LinkSpec`].
//! - A completion queue and the queue pairs of raw packets that report to it belong to the thread that first polls it.
//!   From any other thread verbs on them fail with `EBUSY`. Until then any thread may set them up.
//! - Where hardware differs, it is as strict as any: a send queue's entries are free only after a completion of the same
//!   or a later request was polled, completion queues overrun, keys are checked.
//! - Where the standard and the kernel's software device differ, [`Profile`] says which it follows.
//! - On an AF_XDP link the slots of runs are lent to the kernel, and a send ends when the kernel gives its slot back.
//!   Requests that name memory piece by piece fail there with `EOPNOTSUPP`, and slots are bound anew after RESET.
//! - A raw frame longer than its posted receive completes it with [`WcStatus::LocLenErr`](super::WcStatus) and the queue
//!   pair goes on; a datagram that is too long takes its queue pair to ERR.
//! - Memory that a peer may use is read and written byte by byte through atomics ([`std::sync::atomic::AtomicU8`]): its
//!   owner may look at it at any time, and does so through atomics as well. Atomic operations are one step for all peers,
//!   and not for the owner (`IBV_ATOMIC_HCA`).
#![allow(unsafe_code)]

mod channel;
mod counter;
mod counters;
mod cq;
mod deliver;
mod device;
mod engine;
mod fabric;
mod fault;
mod handle;
mod home;
mod inbox;
mod line;
mod link;
mod memory;
mod pd;
mod qp;
mod recv;
mod ring;
mod rss;
mod spec;
mod status;
mod window;

pub use crate::provider::{RssFields, RssSpec};
pub use channel::SoftChannel;
pub use counter::{CounterEvent, CounterSpec};
pub use counters::SoftCounters;
pub use cq::{SoftCq, SoftCursor};
pub use device::{SoftDevice, SoftProvider};
pub use fabric::SoftSrq;
pub use fault::FaultSpec;
pub use handle::SoftAh;
#[cfg(test)]
pub(crate) use link::XdpSupport;
pub use link::{
    BusyPoll, Copying, Filter, FrameKind, GeneratorSpec, LinkSpec, LoopbackLink, Mode, Pace, PacketSpec, PcapSpec,
    Selector, TapSpec, XDP_HEADROOM, XdpSpec,
};
pub(crate) use link::{Capture, InterfaceFacts, XdpProgram, mac_of};
pub use memory::SoftMr;
pub use pd::SoftPd;
pub use qp::SoftQp;
pub use spec::{Profile, SoftLimits, SoftSpec};
pub use window::SoftMw;

#[cfg(test)]
mod tests;
