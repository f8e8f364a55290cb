//! Connecting two queue pairs with each other.
//!
//! # Sequence
//!
//! ```text
//!           local side                                       peer
//! PreparedQueuePair (RESET)
//!   initialise → INIT, receives are posted
//!   endpoint                   ← exchange over TCP →         endpoint
//!   handshake with the endpoint of the peer → RTR → RTS
//!                              → confirm, both ways →
//! ConnectedQueuePair (RTS)
//!   reset      → RESET, starts the next generation
//! ```
//!
//! [`EndpointParameters`] contains every attribute that the local side chooses, and checks the attributes against a
//! device. [`Listener`] and [`connect()`] exchange endpoints between programs over TCP. The listener treats every
//! incoming connection as hostile, and every wait has a deadline. [`connect_pair`] connects two queue pairs of one process.
//! [`Connector`] performs the state changes on a queue pair that the caller owns. A generation is one connection of a
//! queue pair. Each generation has its own packet sequence numbers.
//!
//! The exchange does not authenticate the peer. Use the exchange, like RDMA itself, only on networks whose hosts are
//! trusted.

mod access;
mod alternate;
mod connector;
mod endpoint;
mod exchange;
mod gids;
mod mistakes;
mod parameters;
mod prepared;
mod wire;

use std::io;
use std::net::SocketAddr;

pub use alternate::{AlternatePath, PathMigration};
pub use connector::{Connector, NegotiatedParameters, QpModification};
pub use endpoint::{EndpointError, QueuePairEndpoint, RemoteBuffer, VERSION};
pub use exchange::{Exchanged, Listener, MAX_QUEUES, Offer, PeerConnection, WaitLimits, connect};
pub use gids::{default_gid, same_host_gid};
pub use parameters::{EndpointParameters, LocalPort, mtu_bytes, mtu_code};
pub use prepared::{ConnectedQueuePair, PreparedQueuePair, connect_pair};
#[cfg(any(test, fuzzing))]
pub(crate) use wire::fuzz;
pub use wire::{ExchangeError, Refusal};

use crate::error::Error;

/// The reason why a connection could not be established.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The device returned an error.
    #[error(transparent)]
    Device(#[from] Error),
    /// The peer's endpoint is not acceptable.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The exchange with the peer failed.
    #[error("{0}")]
    Peer(ExchangeError),
    /// No peer connected before the deadline.
    #[error("no peer within the deadline{}", .last.as_ref().map(|last| format!("; last attempt: {last}")).unwrap_or_default())]
    Deadline {
        /// The last peer that was tried, and why it failed.
        last: Option<String>,
    },
    /// The wait was cancelled.
    #[error("waiting for the peer was cancelled")]
    Cancelled,
    /// The program cannot listen on the address.
    #[error("cannot listen on {address}: {error}; help: use an address of this host and a free port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the socket.
        error: io::Error,
    },
    /// The number of queue pairs is 0 or larger than [`MAX_QUEUES`].
    #[error("an exchange has 1 to {MAX_QUEUES} queue pairs, not {0}")]
    Count(usize),
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Device(error) => error,
            other => Self::Peer(other.to_string()),
        }
    }
}
