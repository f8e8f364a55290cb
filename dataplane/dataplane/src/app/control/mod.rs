//! The control socket of a running program: a Unix stream socket. The crate [`dataplane_control`] defines the requests
//! and the answers.

mod black_box;
mod feed;
mod jobs;
mod lists;
mod observe;
mod server;
mod socket;
mod upgrade;

pub(super) use feed::{Feed, Phase};
pub(super) use jobs::{Job, Jobs};
pub(super) use server::ControlServer;
#[cfg(any(test, fuzzing))]
pub(crate) use server::fuzz;
pub(super) use socket::{Socket, group_problem, has_listener, in_use, path_problem, problem};
pub(super) use upgrade::{ENVIRONMENT, SharedListener, TAKE_OVER_OPTION};
