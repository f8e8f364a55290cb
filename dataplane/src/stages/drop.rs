//! `drop`: where packets end that are not wanted.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::mem::Batch;
use crate::pipeline::{Ctx, Exit, Stage};

/// Drops every packet that it gets; the ledger counts them as `NAME.requested`.
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
        // Nothing is labelled: the batch is handed over whole, and its slots go back to the pool in one step.
    }

    fn is_terminal() -> bool {
        true
    }

    fn exit(&self) -> Exit {
        Exit::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fate, Harness, frame};

    #[test]
    fn packets_go_where_the_config_wants_them() {
        assert_eq!(Drop {}.exit(), Exit::Drop);
        assert!(Drop::is_terminal());
        let bytes = frame().build();
        let outcome = Harness::from_toml::<Drop>("").unwrap().run_one(&bytes);
        assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, bytes));
    }

    #[test]
    fn it_has_no_parameters() {
        let error = Harness::from_toml::<Drop>("reason = \"denied\"").err().unwrap();
        assert!(error.contains("unknown field `reason`"), "{error}");
    }
}
