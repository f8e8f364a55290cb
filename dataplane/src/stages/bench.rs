//! A bench for stages that need parsed headers.

use serde::de::DeserializeOwned;

use crate::mem::Batch;
use crate::pipeline::{Ctx, Stage};
use crate::stages::parse::Parse;
use crate::testing::{Harness, HarnessBuilder};

/// A bench on which packets are parsed before they reach the stage.
pub(super) fn builder() -> HarnessBuilder {
    Harness::builder().after(Parse::default())
}

/// The stage on that bench.
pub(super) fn parsed<S: Stage + DeserializeOwned + 'static>(parameters: &str) -> Result<Harness, String> {
    builder().build::<S>(parameters)
}

/// Cuts every packet within its network header.
struct Cut;

impl Stage for Cut {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        batch.iter_mut().for_each(|mut packet| packet.truncate(20));
    }
}

/// The stage on a bench on which packets were cut after they were parsed.
pub(super) fn cut<S: Stage + DeserializeOwned + 'static>() -> Harness {
    builder().after(Cut).build::<S>("").unwrap()
}
