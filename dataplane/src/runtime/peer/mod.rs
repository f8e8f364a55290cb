//! Peers: how the lanes of a port with queue pairs of type rc, uc or ud are connected, stay connected, and are connected
//! again.
//!
//! A lane brings its queue pair to INIT, posts receives and makes its offer at the [`Meeting`] of the port. When all lanes
//! of the port have, the [`Introducer`]'s thread exchanges all endpoints with the peer at once, the lanes go to RTS, and
//! both sides confirm. The TCP connection of the exchange stays: when it ends, the peer has gone or begins anew, and so
//! does this side.

mod introduce;
mod meeting;
mod parameters;
mod ways;
mod wiring;

pub(crate) use introduce::{Introducer, Terms, Way};
pub(crate) use meeting::Meeting;
pub(crate) use parameters::parameters;
pub(crate) use ways::Ways;
pub(crate) use wiring::PeerWiring;
