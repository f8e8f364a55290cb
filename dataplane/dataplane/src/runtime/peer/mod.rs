//! Connects the lanes of a port to a peer, monitors the connections and restores them. A lane is one worker's queue
//! pair and completion queues on the port. The queue pairs have the type rc, uc or ud.
//!
//! A lane moves its queue pair to INIT, posts receives, and registers its endpoint at the [`Rendezvous`] of the port.
//! When all lanes of the port have registered, the thread of the [`PeerExchange`] exchanges all endpoints with the peer
//! in one message. The lanes then move their queue pairs to RTS, and both sides confirm.
//!
//! The TCP connection of the exchange stays open. When this TCP connection ends, the peer has disconnected or is
//! connecting again. The lanes of the port then connect again too. Lanes of the types uc and ud also connect again when
//! the next hop to the peer has another MAC address.

mod addresses;
mod exchange;
mod late;
mod messages;
mod next_hop;
mod paths;
mod rendezvous;
mod wiring;

pub(crate) use addresses::PortAddresses;
pub(crate) use exchange::{ExchangeOptions, PeerExchange, PeerLocation};
pub(crate) use late::LateWiring;
pub(crate) use messages::PortMessages;
pub(crate) use next_hop::{NextHopLookup, kernel_lookup};
pub(crate) use paths::PathCache;
pub(crate) use rendezvous::Rendezvous;
