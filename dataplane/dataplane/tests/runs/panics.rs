//! Tests of stages that panic while the run continues (`on_panic`).

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};
use dataplane::telemetry::Report;
use dataplane::units::Nanos;
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;

use crate::common::{assembled_with, assert_conserved, drops, stage};

/// A stage that panics on worker 1: in its fifth batch, in its housekeeping, or when it reports its counters.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Faulty {
    place: String,
    #[serde(default)]
    batches: u32,
    #[serde(skip)]
    is_on_worker_1: bool,
}

impl Stage for Faulty {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        self.batches += 1;
        self.is_on_worker_1 = ctx.worker == 1;
        for (number, mut packet) in batch.iter_mut().enumerate() {
            match self.place.as_str() {
                // The stage has labelled some packets of the batch before the panic.
                "batch" if self.is_on_worker_1 && self.batches >= 5 => {
                    assert!(number != 1, "panic of the test");
                    packet.consume();
                }
                "held" => packet.hold(),
                _ => {}
            }
        }
    }

    fn tick(&mut self, _: &Ctx) {
        let is_due = self.is_on_worker_1 && self.batches >= 5;
        assert!(!is_due || !["tick", "held"].contains(&self.place.as_str()), "panic of the test");
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("batches", self.batches.into());
        let is_due = self.is_on_worker_1 && self.place == "counters";
        assert!(!is_due, "panic of the test");
    }

    fn contract(&self) -> Contract {
        Contract::new().holds((self.place == "held").then_some(Nanos(1_000_000)))
    }
}

/// Starts two workers with the stage [`Faulty`].
fn start(place: &str, on_panic: &str) -> Run {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<Faulty>("faulty");
    let text = Config::new()
        .workers(2)
        .runtime("buffers = 4096\nburst = 32")
        .port("p", "kind = 'generator', flows = 100, size = 100")
        .stage("faulty", &format!("place = '{place}'\non_panic = '{on_panic}'"))
        .stage("tx", "port = 'p'")
        .to_string();
    let assembly = assembled_with(&Source::new("faulty.toml", text, &[]), &registry).unwrap();
    Run::start(assembly, Options::default()).unwrap()
}

/// Runs two workers with the stage [`Faulty`]. Stops the run after the quarantined stage has received further packets.
fn run(place: &str, on_panic: &str) -> Report {
    let run = start(place, on_panic);
    let mut quarantined = None;
    wait_until("the quarantined stage receives packets", || {
        let Some(snapshot) = run.snapshot() else { return false };
        let report = snapshot.report();
        let faulty = stage(report, "faulty");
        let worker = report.workers[1].ledger.rx;
        if faulty.quarantined == 1 {
            // The error is visible while the run continues.
            assert!(report.errors.iter().any(|error| error.contains("stage `faulty` panicked")), "{report}");
        }
        let first = *(quarantined.get_or_insert(worker));
        if faulty.quarantined == 0 {
            quarantined = None;
        }
        faulty.quarantined == 1 && worker > first + 10_000
    });
    run.stop();
    let report = run.join().unwrap();
    assert_conserved(&report);
    let faulty = stage(&report, "faulty");
    assert_eq!((faulty.panics, faulty.quarantined), (1, 1), "{report}");
    assert!(!report.is_good() && report.workers.iter().all(|worker| worker.error.is_none()), "{report}");
    let effect = if on_panic == "bypass" { "is now bypassed" } else { "now drops all its packets" };
    let [error] = &report.errors[..] else { panic!("{report}") };
    assert!(error.starts_with("worker 1: stage `faulty` panicked (packets in the batch: "), "{error}");
    assert!(
        error.contains("): panic of the test") && error.ends_with(&format!("; the stage {effect} (on_panic)")),
        "{error}"
    );
    report
}

#[test]
fn run_continues_after_the_panic_of_a_stage() {
    for (place, on_panic) in [
        ("batch", "drop"),
        ("batch", "bypass"),
        ("tick", "drop"),
        ("tick", "bypass"),
        ("counters", "drop"),
        ("counters", "bypass"),
    ] {
        let report = run(place, on_panic);
        let panicked = drops(&report, "faulty.panicked");
        assert_eq!(panicked > 0, place == "batch", "{place}: {report}");
        assert!(panicked <= 32, "{place}: {report}");
        assert_eq!(drops(&report, "faulty.quarantined") > 10_000, on_panic == "drop", "{place}: {report}");
        // Worker 0 and, with `bypass`, worker 1 have sent their packets.
        assert!(report.workers[0].ledger.tx > 0, "{report}");
        assert!(on_panic == "drop" || report.workers[1].ledger.tx > 10_000, "{report}");
    }
}

#[test]
fn panic_of_the_counters_at_the_end_loses_no_report() {
    for on_panic in ["stop", "drop"] {
        let run = start("counters", on_panic);
        wait_until("both workers receive packets", || {
            run.progress().rx > 0 && run.loops().iter().all(|loops| *loops > Some(1000))
        });
        run.stop();
        let report = run.join().unwrap();
        assert_eq!(report.workers.len(), 2, "{report}");
        assert!(report.workers.iter().all(|worker| worker.ledger.rx > 0), "{report}");
        let [error] = &report.errors[..] else { panic!("{report}") };
        assert!(error.contains("worker 1: stage `faulty` panicked at its end: panic of the test"), "{error}");
    }
}

#[test]
fn packets_that_a_quarantined_stage_held_are_counted() {
    let report = run("held", "drop");
    // The packets that worker 1 held are dropped like all later packets of the stage.
    assert!(drops(&report, "faulty.quarantined") > 10_000 && drops(&report, "faulty.panicked") == 0, "{report}");
    let report = run("held", "bypass");
    assert!(report.workers[1].ledger.tx > 10_000, "{report}");
}

#[test]
fn stage_whose_results_are_needed_cannot_be_bypassed() {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    let check = |on_panic: &str| {
        let text = Config::new()
            .port("p", "kind = 'generator'")
            .stage("parse", &format!("on_panic = '{on_panic}'"))
            .stage("acl", "default = 'permit'\non_panic = 'bypass'")
            .stage("tx", "port = 'p'")
            .to_string();
        assembled_with(&Source::new("x.toml", text, &[]), &registry).map(drop)
    };
    assert_eq!(check("drop"), Ok(()));
    assert_eq!(check("stop"), Ok(()));
    let error = check("bypass").unwrap_err();
    assert!(
        error.contains("stage `parse`: the stage cannot be bypassed, because `acl` needs its results: "),
        "{error}"
    );
    assert!(
        error.contains("set on_panic = \"drop\" or on_panic = \"stop\"") && error.contains("on_panic = 'bypass'"),
        "{error}"
    );
    let error = check("ignore").unwrap_err();
    assert!(error.contains("ignore") && error.contains("bypass"), "{error}");
}
