//! Whole runs: a config in, a report out, and nothing in between but the public interface.

mod captures;
mod common;
mod conservation;
mod workers;
