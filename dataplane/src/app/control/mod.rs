//! How a program that runs is asked what it is doing: by a Unix stream socket, a line in, a line of JSON back.
//!
//! The one request is `stats`. A connection may ask again, and what it is told is recent is then what came since. What
//! is no request, or of a client too many, is answered with `{"error": "…"}`, and the end of the connection.

mod client;
mod server;
mod socket;

pub(super) use client::{Answer, Connection, Found};
pub(super) use server::Server;
pub(super) use socket::{flaw, folders};

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The request.
const STATS: &str = "stats";
/// How long either side waits for the other to go on.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer to what is not done.
#[derive(Serialize, Deserialize)]
struct Refusal {
    error: String,
}
