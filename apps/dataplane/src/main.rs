//! The `dataplane` program.

fn main() {}
