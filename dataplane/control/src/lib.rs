//! The control protocol of a running program, and a client.
//!
//! A running program listens on a Unix stream socket. A client sends requests, and the program answers each request.
//! Requests and answers are JSON objects, one per line. The [`Client`] connects to a program by the path of its socket
//! or by its process id. If only one program runs, [`Client::only`] finds that program.
//!
//! ```no_run
//! use dataplane_control::{Call, Client};
//!
//! let mut client = Client::only()?;
//! let hello = client.hello()?;
//! println!("process {} runs {}", hello.pid, hello.config);
//! let stats: serde_json::Value = client.call(&Call::Stats {})?.parse()?;
//! println!("{}", stats["packets"]["rx"]);
//! # Ok::<(), dataplane_control::Error>(())
//! ```

pub mod change;
mod client;
mod error;
pub mod observe;
mod printable;
mod protocol;
pub mod rows;
pub mod socket;
pub mod upgrade;

pub use client::{Answer, Client, Pages};
pub use error::Error;
pub use printable::{is_terminal_control, printable, printable_lines};
pub use protocol::{
    Apply, Call, DEFAULT_LIMIT, ErrorCode, Get, GetResult, Hello, LISTS, Log, LogLevel, MAX_LIMIT, MAX_PATH,
    MAX_REQUEST, MalformedRequest, NewConfig, Page, Refusal, Request, Response, Show, TIMEOUT, VERSION,
};
