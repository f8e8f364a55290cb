//! The control socket of a running program: a Unix stream socket. A client sends a line with a request, and the program
//! answers with a line of JSON.
//!
//! The only request is `stats`. A client may repeat the request on one connection. The `recent` part of the answer then
//! covers the time since the previous answer on this connection. If a request is unknown, or the program has too many
//! clients, the program answers with `{"error": "…"}` and closes the connection.

mod client;
mod server;
mod socket;

pub(super) use client::{Answer, Connection, Found};
pub(super) use server::Server;
#[cfg(any(test, fuzzing))]
pub(crate) use server::fuzz;
pub(super) use socket::{folders, group_problem, in_use, problem};

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The text of the only request.
const STATS: &str = "stats";
/// The maximum time that the client and the program wait for each other.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to a refused request.
#[derive(Serialize, Deserialize)]
struct Refusal {
    error: String,
}
