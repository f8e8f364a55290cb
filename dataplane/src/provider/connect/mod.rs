//! How two queue pairs become each other's peers.
//!
//! # The way
//!
//! ```text
//!           this side                                        the peer
//! PreparedQueuePair (RESET)
//!   initialise → INIT, receives are posted
//!   endpoint                   → exchange over TCP →           its endpoint
//!   handshake  → RTR → RTS
//!                              → confirm, both ways →
//! ConnectedQueuePair (RTS)
//!   reset      → RESET, the next generation
//! ```
//!
//! [`EndpointParameters`] has every attribute that is not the peer's to say, and checks them against a device.
//! [`Listener`] and [`connect()`] exchange endpoints between programs: whoever comes to a listener is taken as hostile,
//! and nobody is waited for without end. [`join`] connects two queue pairs of one process. [`Connector`] does the changes
//! of state for who owns the queue pair otherwise.
//!
//! The exchange proves nothing about who the peer is: it is for networks whose hosts are trusted, as RDMA itself is.

mod alternate;
mod connector;
mod endpoint;
mod exchange;
mod parameters;
mod prepared;
mod wire;

use std::io;
use std::net::SocketAddr;

pub use alternate::{AlternatePath, PathMigration};
pub use connector::{Agreed, Change, Connector};
pub use endpoint::{EndpointError, QueuePairEndpoint, RemoteBuffer, VERSION};
pub use exchange::{Exchanged, Lifeline, Listener, MAX_QUEUES, Offer, Patience, connect};
pub use parameters::{EndpointParameters, GidChoice, LocalPort, mtu_bytes, mtu_code};
pub use prepared::{ConnectedQueuePair, PreparedQueuePair, join};
pub use wire::{Fault, Refusal};

use crate::error::Error;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The device refuses.
    #[error(transparent)]
    Device(#[from] Error),
    /// What the peer tells is refused.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The exchange with the peer failed.
    #[error("{0}")]
    Peer(Fault),
    /// No peer in time.
    #[error("no peer within the deadline{}", .last.as_ref().map(|last| format!("; the last that was tried: {last}")).unwrap_or_default())]
    Deadline {
        /// The last that came or was gone to, and what was wrong with it.
        last: Option<String>,
    },
    /// Waiting was cancelled.
    #[error("waiting for the peer was cancelled")]
    Cancelled,
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {error}; name an address of this host and a port that is free")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// More queue pairs than an exchange can have, or none.
    #[error("an exchange is of 1 to {MAX_QUEUES} queue pairs, not {0}")]
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
