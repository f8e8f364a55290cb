//! Tests of the background tasks of stages.

use std::sync::Mutex;
use std::time::Duration;

use dataplane::config::Source;
use dataplane::error::Error;
use dataplane::pipeline::HoldTime;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};
use dataplane::stages;
use dataplane::telemetry::Report;
use dataplane::units::Nanos;
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

/// The hold time that [`Setup::hold_time`] returned to the last [`Holding`] stage.
static HOLD_TIME: Mutex<Option<HoldTime>> = Mutex::new(None);

/// A stage that may hold packets for a number of seconds.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Holding {
    seconds: u64,
}

impl Stage for Holding {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        *HOLD_TIME.lock().unwrap() = Some(setup.hold_time());
        Ok(())
    }

    fn contract(&self) -> Contract {
        Contract::new().holds(Some(Nanos(self.seconds * 1_000_000_000)))
    }
}

#[test]
fn hold_time_is_the_sum_of_all_stages_of_a_worker() {
    let config = Config::new().workers(2).port("a", "kind = 'generator'");
    let config = config.stage("holding", "name = 'one'\nseconds = 4").stage("holding", "name = 'two'\nseconds = 30");
    let mut registry = stages::registry();
    registry.add::<Holding>("holding");
    let folder = Folder::new();
    let text = config.stage("tx", "port = 'a'").to_string();
    assembled_with(&Source::new(folder.file("test.toml"), text, &[]), &registry).unwrap();
    assert_eq!(HOLD_TIME.lock().unwrap().take().unwrap().get(), Duration::from_secs(34));
}

/// Runs a pipeline whose task fails.
fn run(panics: bool, options: Options) -> Report {
    let folder = Folder::new();
    let text = Config::new()
        .port("a", "kind = 'generator'")
        .stage("failing", &format!("panics = {panics}"))
        .stage("tx", "port = 'a'")
        .to_string();
    let mut registry = stages::registry();
    registry.add::<Failing>("failing");
    let assembly = assembled_with(&Source::new(folder.file("test.toml"), text, &[]), &registry).unwrap();
    Run::start(assembly, options).unwrap().join().unwrap()
}

#[test]
fn failed_task_is_reported_and_packets_still_flow() {
    let report = run(false, Options { packets: Some(100_000), ..Options::default() });
    assert_eq!(report.errors, ["background task `fails` ended: kernel: no answer"]);
    assert!(!report.is_good());
    assert_eq!((report.packets.tx, report.ledger.unaccounted), (100_000, 0));
}

/// The run has no packet limit and no duration, so only the panic ends the run.
#[test]
fn panic_of_a_task_ends_the_run() {
    let report = run(true, Options::default());
    assert_eq!(report.errors, ["background task `fails` ended: panicked: the task panics"]);
    assert!(!report.is_good());
    assert_eq!(report.ledger.unaccounted, 0);
}
