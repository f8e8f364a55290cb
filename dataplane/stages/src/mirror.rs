//! `mirror`: copies packets.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::prelude::*;

/// Copies every packet to the output `copy`. The packet itself goes to the next stage.
///
/// Each copy takes a buffer. If no buffer is free, the stage makes no copy, and the report counts the copy as
/// `copies_missed`. The packet still goes to the next stage.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "tap"
/// use     = "mirror"
/// outputs = { copy = "to_monitor" }
/// next    = "drop"
///
/// [[pipeline.stage]]
/// name = "to_monitor"
/// use  = "tx"
/// port = "left"
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

    fn info() -> StageInfo {
        StageInfo::new().stateless().outputs(&[("copy", "a copy of every packet")])
    }

    fn contract(&self) -> Contract {
        Contract::new().copies().ignores_checksums()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame};

    #[test]
    fn every_packet_is_copied_and_goes_to_the_next_stage() {
        let mut harness = Harness::from_toml::<Mirror>("").unwrap();
        assert!(harness.stage().contract().copies);
        for outcome in harness.run(&vec![frame().build(); 256]) {
            assert_eq!((outcome.fate, outcome.copy.as_deref()), (Fate::Next, Some("copy")));
        }
    }
}
