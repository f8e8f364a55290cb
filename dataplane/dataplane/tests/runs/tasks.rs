//! Tests of the background tasks of stages.

use dataplane::config::Source;
use dataplane::error::Error;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};
use dataplane::stages;
use dataplane_testing::config::Config;

use crate::common::{Folder, assembled_with};

/// A stage that passes all packets and has a task that fails.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Failing {
    panics: bool,
}

impl Stage for Failing {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        setup.task("fails", FailingTask { panics: self.panics });
        Ok(())
    }
}

struct FailingTask {
    panics: bool,
}

impl Task for FailingTask {
    fn run(&mut self, _stop: &StopSignal) -> dataplane::Result<()> {
        assert!(!self.panics, "the task panics");
        Err(Error::Kernel("no answer".to_owned()))
    }
}

#[test]
fn failed_task_is_reported_and_packets_still_flow() {
    for (panics, expected) in [(false, "kernel: no answer"), (true, "panicked: the task panics")] {
        let folder = Folder::new();
        let text = Config::new()
            .port("a", "kind = 'generator'")
            .stage("failing", &format!("panics = {panics}"))
            .stage("tx", "port = 'a'")
            .to_string();
        let mut registry = stages::registry();
        registry.add::<Failing>("failing");
        let assembly = assembled_with(&Source::new(folder.file("test.toml"), text, &[]), &registry).unwrap();
        let run = Run::start(assembly, Options { packets: Some(100_000), ..Options::default() }).unwrap();
        let report = run.join().unwrap();
        assert_eq!(report.errors, [format!("background task `fails` ended: {expected}")]);
        assert!(!report.is_good());
        assert_eq!((report.packets.tx, report.ledger.unaccounted), (100_000, 0));
    }
}
