//! End-to-end tests of the commands that connect to a running program, and of the control socket of the program.

mod change;
mod common;
mod log;
mod metrics;
mod observe;
mod protocol;
mod service;
mod show;
mod stats;
mod top;
mod watch;
mod why;
mod why_interfaces;
