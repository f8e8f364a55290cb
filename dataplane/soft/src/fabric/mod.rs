//! Connections and datagrams: a state machine that all devices of one loopback link share.
//!
//! The fabric exchanges RoCE packets in memory, without encoding them as bytes. The requester splits a request into
//! numbered packets of at most the path MTU. On a reliable connection, the peer acknowledges or refuses the packets,
//! and the requester repeats packets after a timeout. Every post and every poll of any queue runs the state machine
//! until nothing more can happen at that time. A program whose queue pair only provides memory for RDMA reads and
//! writes therefore does not have to post or poll. Timers use the clock of the device. A thread ([`timer`]) also runs
//! the state machine when a timer of the system clock expires, or when a delayed packet is due. With a virtual clock
//! and seeded faults, every run is reproducible.
//!
//! One lock protects the whole fabric. Raw packets do not use the fabric. Their path is in [`super::engine`] and
//! [`super::zero_copy`].

mod connection;
mod context;
mod datagram;
mod network;
mod packet;
mod qp;
mod receive;
mod request;
mod requester;
mod responder;
mod response;
mod send;
mod shared_receive;
mod srq;
mod state;
mod timer;

pub(super) use connection::Connection;
pub(super) use network::Fabric;
pub use shared_receive::SoftSrq;
