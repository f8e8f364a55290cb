//! The names that a stage and an app need.

pub use crate::app::App;
pub use dataplane_core::prelude::*;
