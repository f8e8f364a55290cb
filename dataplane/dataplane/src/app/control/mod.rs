//! The control socket of a running program: a Unix stream socket. The crate [`dataplane_control`] defines the requests
//! and the answers.

mod lists;
mod server;
mod socket;

pub(super) use server::Server;
#[cfg(any(test, fuzzing))]
pub(crate) use server::fuzz;
pub(super) use socket::{group_problem, in_use, problem};
