//! Whole runs: a config in, a report out, and nothing in between but the public interface.

mod captures;
mod clocks;
mod common;
mod configs;
mod conservation;
mod differential;
mod files;
mod filter;
mod hostile;
mod peers;
mod reload;
mod snapshot;
mod tables;
mod wire;
mod workers;
