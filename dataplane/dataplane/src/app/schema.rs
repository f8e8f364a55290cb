//! `schema`: prints the JSON schema of a config.

use super::console::{self, CommandError};
use crate::config;
use dataplane_core::pipeline::Registry;

pub(super) fn schema(registry: &Registry) -> Result<(), CommandError> {
    console::print_json(&config::schema(registry.kinds()))
}
