//! Connections and datagrams: a state machine that all devices of one loopback link share.
//!
//! The fabric exchanges RoCE packets in memory, without encoding them as bytes. Requests are split by the path MTU,
//! numbered, acknowledged, refused, and repeated after a timeout. A call that posts to or polls one of the queues runs
//! the state machine until nothing more can happen at that time. So a peer whose memory is only read or written remotely
//! needs no calls. Timers use the clock of the device. If nobody calls, a thread ([`timer`]) runs the state machine when
//! a timer of the system clock expires. With a virtual clock and seeded faults, every run is reproducible.
//!
//! One lock protects the whole fabric. Raw packets do not use the fabric, but the path in [`super::engine`].

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
