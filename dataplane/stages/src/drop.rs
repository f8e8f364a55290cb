//! `drop`: discards packets.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::mem::Batch;
use dataplane_core::pipeline::{Contract, Ctx, DefaultTarget, Stage, StageInfo};

/// Drops every packet. The ledger counts the packets as `NAME.requested`, where `NAME` is the name of the stage.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "unwanted"
/// use = "drop"
/// ```
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drop {}

impl Stage for Drop {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {
        // The stage sets no output or drop reason on single packets, so the whole batch is released to the pool in one
        // step.
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().terminal()
    }

    fn contract(&self) -> Contract {
        Contract::new().exit(DefaultTarget::Drop).ignores_checksums()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame};

    #[test]
    fn drop_stage_is_terminal_and_does_not_change_packets() {
        assert_eq!(Drop {}.contract().exit, DefaultTarget::Drop);
        assert!(Drop::info().terminal);
        let bytes = frame().build();
        let outcome = Harness::from_toml::<Drop>("").unwrap().run_one(&bytes);
        assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, bytes));
    }

    #[test]
    fn unknown_parameters_are_refused() {
        let error = Harness::from_toml::<Drop>("reason = \"denied\"").err().unwrap();
        assert!(error.contains("unknown field `reason`"), "{error}");
    }
}
