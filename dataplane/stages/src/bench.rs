//! Test harnesses for stages that need parsed headers.

use serde::de::DeserializeOwned;

use crate::parse::Parse;
use dataplane_core::harness::{Harness, HarnessBuilder};
use dataplane_core::mem::Batch;
use dataplane_core::pipeline::{Ctx, Stage};

/// Returns a harness builder that parses packets before they reach the stage.
pub(super) fn builder() -> HarnessBuilder {
    Harness::builder().after(Parse::default())
}

/// Returns a harness in which packets pass `parse` before the stage.
pub(super) fn parsed<S: Stage + DeserializeOwned + 'static>(parameters: &str) -> Result<Harness, String> {
    builder().build::<S>(parameters)
}

/// Truncates every packet within its network header.
struct Truncate;

impl Stage for Truncate {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        batch.iter_mut().for_each(|mut packet| packet.truncate(20));
    }
}

/// Returns a harness in which packets are truncated between `parse` and the stage.
pub(super) fn cut<S: Stage + DeserializeOwned + 'static>() -> Harness {
    builder().after(Truncate).build::<S>("").unwrap()
}
