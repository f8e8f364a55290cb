//! Copies.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::prelude::*;

/// Copies every packet to its output `copy`; the packet itself goes on.
///
/// A copy takes a buffer of its own. Where none is free the copy is left out and counted as missed; the packet goes on
/// all the same.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "tap"
/// use     = "mirror"
/// outputs = { copy = "to_monitor" }
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mirror {}

const COPY: Edge = Edge::new(0);

impl Stage for Mirror {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            packet.copy_to(COPY);
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("copy", "a copy of every packet")]
    }

    fn copies(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fate, Harness, frame};

    #[test]
    fn every_packet_is_copied_and_goes_on() {
        let mut harness = Harness::from_toml::<Mirror>("").unwrap();
        assert!(harness.stage().copies());
        for outcome in harness.run(&vec![frame().build(); 256]) {
            assert_eq!((outcome.fate, outcome.copy.as_deref()), (Fate::Next, Some("copy")));
        }
    }
}
