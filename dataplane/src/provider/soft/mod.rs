//! The software device: the verbs contract in process, without privilege and without hardware.
//!
//! It is no mock. It moves bytes between posted requests, has capacity, fails as hardware fails, and keeps time. It has
//! no engine of its own: sends are carried out when they are posted, and receives when their completion queue is polled.
//!
//! - What a device is made of: [`SoftSpec`]. What its wire is: [`LinkSpec`].
//! - A completion queue and the queue pairs that report to it belong to the thread that first polls it. From any other
//!   thread verbs on them fail with `EBUSY`. Until then any thread may set them up.
//! - Where hardware differs, it is as strict as any: a send queue's entries are free only after a completion of the same
//!   or a later request was polled, completion queues overrun, keys are checked.
//! - A raw frame longer than its posted receive completes it with [`WcStatus::LocLenErr`](super::WcStatus) and the queue
//!   pair goes on; a datagram that is too long takes its queue pair to ERR.
#![allow(unsafe_code)]

mod counter;
mod counters;
mod cq;
mod deliver;
mod device;
mod engine;
mod fault;
mod handle;
mod home;
mod link;
mod memory;
mod qp;
mod recv;
mod rss;
mod spec;

pub use crate::provider::{RssFields, RssSpec};
pub use counter::{CounterEvent, CounterSpec};
pub use counters::SoftCounters;
pub use cq::{SoftCq, SoftCursor};
pub use device::{SoftDevice, SoftPd, SoftProvider};
pub use fault::FaultSpec;
pub use handle::{SoftAh, SoftChannel, SoftMw, SoftSrq};
pub(crate) use link::Capture;
pub use link::{FrameKind, GeneratorSpec, LinkSpec, LoopbackLink, Pace, PcapSpec};
pub use memory::SoftMr;
pub use qp::SoftQp;
pub use spec::{SoftLimits, SoftSpec};

#[cfg(test)]
mod tests;
