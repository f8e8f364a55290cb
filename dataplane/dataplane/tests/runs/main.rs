//! Tests of whole runs through the public API, from a config to a report.

mod captures;
mod change;
mod clocks;
mod common;
mod configs;
mod conservation;
mod differential;
mod files;
mod filter;
mod hostile;
mod interfaces;
mod metrics;
mod nic;
mod panics;
mod peers;
mod ports;
mod reload;
mod snapshot;
mod tables;
mod tasks;
mod watchdog;
mod wire;
mod worker_count;
mod workers;
