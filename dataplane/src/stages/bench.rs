//! A bench for stages that need parsed headers.

use serde::de::DeserializeOwned;

use crate::pipeline::Stage;
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
