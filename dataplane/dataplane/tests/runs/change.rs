//! Tests that a running pipeline changes to another config without loss.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::config::Source;
use dataplane::control::change::{Applied, ChangeState, Operation, OperationKind};
use dataplane::control::{ErrorCode, Refusal};
use dataplane::pipeline::{Problem, Registry, Setup, StageInfo};
use dataplane::prelude::*;
use dataplane::runtime::{ApplyOptions, Changer, Options, Run, Snapshot, WorkerState};
use dataplane::telemetry::Report;
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;

use crate::common::{Folder, Latch, assembled_with, assert_good, drops, stage};

/// A stage that numbers its packets, and takes over the number from the stage that it replaces.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    #[serde(default)]
    step: u64,
    #[serde(skip)]
    seen: u64,
}

impl Stage for Numbers {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        self.seen += batch.len() as u64;
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        if let Some(earlier) = earlier.downcast::<Self>() {
            self.seen = earlier.seen;
        }
        HeldPackets::Keep
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("seen", self.seen);
        report.add("step", self.step);
    }

    fn info() -> StageInfo {
        StageInfo::new().keeps("the number of packets")
    }
}

/// A stage that counts its packets, and loses the count if its parameters change.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Forgets {
    #[serde(default)]
    _step: u64,
    #[serde(skip)]
    seen: u64,
}

impl Stage for Forgets {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        self.seen += batch.len() as u64;
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("seen", self.seen);
    }
}

/// A stage that holds each packet once.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Holds {
    #[serde(default)]
    _step: u64,
    /// Whether the stage drops the packets that a replaced stage holds.
    #[serde(default)]
    refuses: bool,
}

impl Stage for Holds {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if packet.hold_state() == dataplane::mem::HoldState::Fresh {
                packet.hold();
            }
        }
    }

    fn adopt(&mut self, _earlier: &mut dyn Stage) -> HeldPackets {
        if self.refuses { HeldPackets::Drop } else { HeldPackets::Keep }
    }

    fn contract(&self) -> Contract {
        Contract::new().holds(Some(dataplane::units::Nanos(1_000_000_000)))
    }
}

/// A stage that shares the list of its users with all stages of this kind.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Shares {
    #[serde(skip)]
    users: Arc<Mutex<Vec<String>>>,
}

impl Stage for Shares {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        self.users = setup.shared_by_stages(|_| Arc::new(Mutex::new(Vec::new())));
        self.users.lock().unwrap().push(setup.stage().to_owned());
        Ok(())
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("users", self.users.lock().unwrap().len() as u64);
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<Numbers>("numbers");
    registry.add::<Forgets>("forgets");
    registry.add::<Holds>("holds");
    registry.add::<Shares>("shares");
    registry
}

/// Returns a config with a generator, whose packets pass through `stages` and return to the generator.
fn config(workers: usize, stages: &[(&str, &str)]) -> String {
    let config = Config::new().workers(workers).runtime("burst = 64").port("wire", "kind = 'generator', flows = 64");
    let config = stages.iter().fold(config.stage("parse", ""), |config, (kind, lines)| config.stage(kind, lines));
    config.stage("tx", "name = 'out'\nport = 'wire'").to_string()
}

/// A running pipeline that a test changes.
pub(crate) struct Changing {
    pub(crate) folder: Folder,
    pub(crate) registry: Registry,
    pub(crate) run: Run,
}

impl Changing {
    pub(crate) fn start(text: &str) -> Self {
        Self::start_in(Folder::new(), text)
    }

    pub(crate) fn start_in(folder: Folder, text: &str) -> Self {
        Self::start_with(folder, registry(), text)
    }

    pub(crate) fn start_with(folder: Folder, registry: Registry, text: &str) -> Self {
        let source = Source::new(folder.write("test.toml", text), text, &[]);
        let run = Run::start(assembled_with(&source, &registry).unwrap(), Options::default()).unwrap();
        Self { folder, registry, run }
    }

    pub(crate) fn changer(&self) -> Changer {
        self.run.changer()
    }

    pub(crate) fn apply_with(&self, text: &str, options: &ApplyOptions) -> Result<Applied, Refusal> {
        let source = self.changer().source("new.toml", text);
        self.changer().apply(&self.registry, &source, options)
    }

    pub(crate) fn apply(&self, text: &str) -> Applied {
        self.apply_with(text, &ApplyOptions::default()).unwrap_or_else(|refusal| panic!("{refusal}: {refusal:#?}"))
    }

    /// Applies a config that reverts after 10 minutes, unless the test confirms the config.
    pub(crate) fn apply_unconfirmed(&self, text: &str) -> Applied {
        let options = ApplyOptions { confirm: Some(Duration::from_secs(600)), ..ApplyOptions::default() };
        self.apply_with(text, &options).unwrap_or_else(|refusal| panic!("{refusal}: {refusal:#?}"))
    }

    /// Reverts the unconfirmed change. If no change is unconfirmed, applies the config from before the last change.
    pub(crate) fn rollback(&self) -> Applied {
        self.changer().rollback(&self.registry).unwrap_or_else(|refusal| panic!("{refusal}: {refusal:#?}"))
    }

    pub(crate) fn refused(&self, text: &str) -> Refusal {
        self.apply_with(text, &ApplyOptions::default()).unwrap_err()
    }

    pub(crate) fn plan(&self, text: &str) -> Vec<Operation> {
        let source = self.changer().source("new.toml", text);
        self.changer().plan(&self.registry, &source).unwrap().operations
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        loop {
            if let Some(snapshot) = self.run.snapshot() {
                return snapshot;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn wait_for_traffic(&self) {
        let begin = self.run.progress().tx;
        wait_until("traffic", || {
            assert!(!self.run.is_finished(), "no traffic");
            self.run.progress().tx >= begin + 2_000
        });
    }

    /// Ends the run. Checks that the packet accounting balances, and that the run has no errors.
    pub(crate) fn end(self) -> Report {
        self.run.stop();
        let report = self.run.join().unwrap();
        assert_good(&report);
        report
    }
}

pub(crate) fn kinds(operations: &[Operation]) -> Vec<(OperationKind, &str)> {
    operations.iter().map(|operation| (operation.operation, operation.name.as_str())).collect()
}

#[test]
fn stages_are_added_replaced_connected_and_removed_without_loss() {
    for workers in [1, 2] {
        let first = config(workers, &[("numbers", "step = 1"), ("count", "")]);
        let second = config(workers, &[("count", ""), ("numbers", "step = 2"), ("forgets", "")]);
        let run = Changing::start(&first);
        run.wait_for_traffic();
        let applied = run.apply(&second);
        let expected = [
            (OperationKind::ConnectStage, "parse"),
            (OperationKind::ConnectStage, "count"),
            (OperationKind::ReplaceStage, "numbers"),
            (OperationKind::ConnectStage, "numbers"),
            (OperationKind::AddStage, "forgets"),
        ];
        assert_eq!(kinds(&applied.operations), expected);
        assert_eq!(applied.operations[2].keys, ["step"]);
        assert_eq!(
            applied.operations[2].state.as_deref(),
            Some("the stage keeps its counters and the number of packets")
        );
        run.wait_for_traffic();
        let snapshot = run.snapshot();
        let report = snapshot.report();
        assert_eq!(report.ledger.unaccounted, 0, "{report}");
        let names: Vec<&str> = report.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["parse", "count", "numbers", "forgets", "out"]);
        let numbers = stage(report, "numbers");
        assert_eq!((numbers.counters["seen"], numbers.counters["step"]), (numbers.packets, 2 * workers as u64));
        assert!(stage(report, "forgets").packets < numbers.packets);
        wait_until("costs of the new stages", || {
            let snapshot = run.snapshot();
            let costs = snapshot.since(None).costs;
            costs.iter().filter(|cost| names.contains(&cost.part.as_str()) && cost.bursts > 0).count() == 5
        });
        let applied = run.apply(&first);
        assert!(kinds(&applied.operations).contains(&(OperationKind::RemoveStage, "forgets")), "{applied:?}");
        run.wait_for_traffic();
        let report = run.end();
        let numbers = stage(&report, "numbers");
        // The packets of both pipelines are counted once, although the stage was replaced twice.
        assert_eq!((numbers.counters["seen"], numbers.packets), (numbers.packets, report.packets.rx), "{report}");
        assert_eq!((stage(&report, "count").packets, report.packets.tx), (report.packets.rx, report.packets.rx));
    }
}

#[test]
fn state_is_lost_without_adopt_and_the_plan_reports_it() {
    let run = Changing::start(&config(1, &[("forgets", "_step = 1")]));
    run.wait_for_traffic();
    let text = config(1, &[("forgets", "_step = 2")]);
    let plan = run.plan(&text);
    assert_eq!(kinds(&plan), [(OperationKind::ReplaceStage, "forgets")]);
    let lost = "the stage keeps the counters of its packets, and loses its other state";
    assert_eq!((plan[0].hitless, plan[0].state.as_deref()), (true, Some(lost)));
    run.apply(&text);
    let report = run.end();
    let forgets = stage(&report, "forgets");
    assert!(forgets.counters["seen"] < forgets.packets, "{report}");
    assert_eq!(forgets.packets, report.packets.rx);
}

#[test]
fn many_exchanges_lose_no_packet() {
    const ROUNDS: u64 = if cfg!(debug_assertions) { 300 } else { 5_000 };
    let texts = [
        config(2, &[("numbers", "step = 1"), ("holds", ""), ("count", "")]),
        config(2, &[("count", ""), ("numbers", "step = 2"), ("holds", "_step = 2"), ("mac_swap", "")]),
        config(2, &[("holds", "_step = 3"), ("numbers", "step = 2")]),
    ];
    let run = Changing::start(&texts[0]);
    for round in 1..=ROUNDS {
        run.apply(&texts[round as usize % 3]);
        if round % 100 == 0 {
            run.wait_for_traffic();
            let snapshot = run.snapshot();
            assert_eq!(snapshot.report().ledger.unaccounted, 0, "{}", snapshot.report());
        }
    }
    let report = run.end();
    let numbers = stage(&report, "numbers");
    assert_eq!(numbers.counters["seen"], numbers.packets, "{report}");
    // Only packets above the limit of held packets, and packets that were held at the end, were dropped.
    let dropped = drops(&report, "holds.queue_full") + drops(&report, "holds.stopped");
    assert_eq!(report.packets.rx, report.packets.tx + dropped, "{report}");
}

#[test]
fn held_packets_stay_held_if_their_stage_stays_and_are_counted_otherwise() {
    let run = Changing::start(&config(1, &[("holds", "")]));
    run.wait_for_traffic();
    run.apply(&config(1, &[("holds", "_step = 1"), ("count", "")]));
    run.wait_for_traffic();
    let snapshot = run.snapshot();
    assert_eq!(drops(snapshot.report(), "holds.stopped"), 0, "{}", snapshot.report());
    run.apply(&config(1, &[("count", "")]));
    run.wait_for_traffic();
    let report = run.end();
    assert!(report.ledger.drops.keys().all(|reason| reason.starts_with("holds.")), "{report}");
    assert!(report.stages.iter().all(|stage| stage.name != "holds"), "{report}");
}

#[test]
fn held_packets_that_the_new_stage_refuses_are_dropped_and_counted() {
    let run = Changing::start(&config(1, &[("holds", "")]));
    run.wait_for_traffic();
    // The generator reuses the buffers of sent packets, so the stage holds packets at any time.
    run.apply(&config(1, &[("holds", "refuses = true")]));
    run.wait_for_traffic();
    let report = run.end();
    assert!(drops(&report, "holds.stopped") > 0, "{report}");
    let dropped = drops(&report, "holds.queue_full") + drops(&report, "holds.stopped");
    assert_eq!(report.packets.rx, report.packets.tx + dropped, "{report}");
}

#[test]
fn plan_leaves_the_shared_objects_of_the_running_stages_unchanged() {
    let run = Changing::start(&config(1, &[("shares", "name = 'a'")]));
    let more = config(1, &[("shares", "name = 'a'"), ("shares", "name = 'b'")]);
    let plan = run.plan(&more);
    assert_eq!(kinds(&plan)[0], (OperationKind::RenewStage, "a"), "{plan:?}");
    assert_eq!(stage(run.snapshot().report(), "a").counters["users"], 1);
    run.apply(&more);
    assert_eq!(stage(run.snapshot().report(), "a").counters["users"], 2);
    run.end();
}

#[test]
fn removed_stage_finishes_and_the_report_has_its_error() {
    static LATCH: Latch = Latch::new();

    /// A stage whose end waits until `LATCH` is open, and then fails.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fails {}
    impl Stage for Fails {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
        fn finish(&mut self) -> dataplane::Result<()> {
            LATCH.wait();
            Err(dataplane::Error::Kernel("no answer".to_owned()))
        }
    }
    let mut registry = registry();
    registry.add::<Fails>("fails");
    let run = Changing::start_with(Folder::new(), registry, &config(1, &[("fails", "")]));
    run.wait_for_traffic();
    // The changes do not wait for the removed stage.
    run.apply(&config(1, &[("count", "")]));
    run.apply(&config(1, &[]));
    LATCH.open();
    run.run.stop();
    let report = run.run.join().unwrap();
    assert_eq!(report.errors, ["kernel: no answer"], "{report}");
}

#[test]
fn write_error_of_a_removed_capture_is_in_the_report() {
    let run = Changing::start(&config(1, &[("capture", "file = '/dev/full'")]));
    run.wait_for_traffic();
    run.apply(&config(1, &[]));
    run.run.stop();
    let report = run.run.join().unwrap();
    assert!(matches!(&report.errors[..], [error] if error.contains("/dev/full")), "{report}");
}

#[test]
fn second_capture_of_a_file_in_use_needs_a_restart() {
    let run = Changing::start(&config(1, &[("capture", "name = 'a'\nfile = 'out.pcapng'")]));
    run.wait_for_traffic();
    let renamed = config(1, &[("capture", "name = 'b'\nfile = 'out.pcapng'")]);
    let refusal = run.refused(&renamed);
    assert_eq!(refusal.code, ErrorCode::NeedsRestart, "{refusal:?}");
    assert!(refusal.message.contains("the running stage still writes"), "{refusal}");
    run.end();
}

#[test]
fn file_that_a_removed_stage_still_writes_is_refused() {
    static LATCH: Latch = Latch::new();

    /// A stage whose end waits until `LATCH` is open.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct EndsLate {}
    impl Stage for EndsLate {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
        fn finish(&mut self) -> dataplane::Result<()> {
            LATCH.wait();
            Ok(())
        }
    }
    let mut registry = registry();
    registry.add::<EndsLate>("ends_late");
    let capture = ("capture", "file = 'out.pcapng'");
    let run = Changing::start_with(Folder::new(), registry, &config(1, &[("ends_late", ""), capture]));
    run.wait_for_traffic();
    run.apply(&config(1, &[]));
    let text = config(1, &[capture]);
    let refusal = run.refused(&text);
    assert!(refusal.code == ErrorCode::Busy && refusal.message.contains("still writes"), "{refusal}");
    // A change that does not write the file is accepted.
    run.apply(&config(1, &[("count", "")]));
    LATCH.open();
    wait_until("the end of the removed stage", || run.apply_with(&text, &ApplyOptions::default()).is_ok());
    run.wait_for_traffic();
    run.end();
}

#[test]
fn capture_continues_after_the_revert_of_its_removal() {
    let text = config(1, &[("capture", "file = 'out.pcapng'")]);
    let run = Changing::start(&text);
    let file = run.folder.file("out.pcapng");
    // Another thread creates and writes the file.
    wait_until("packets in the file", || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0));
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    run.apply_with(&config(1, &[]), &options).unwrap();
    run.wait_for_traffic();
    let length = std::fs::metadata(&file).unwrap().len();
    run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    run.wait_for_traffic();
    wait_until("more packets in the file", || std::fs::metadata(&file).unwrap().len() > length);
    // Confirm another removal. The program completes the file.
    run.apply_with(&config(1, &[]), &options).unwrap();
    run.changer().confirm().unwrap();
    run.end();
}

#[test]
fn revert_uses_the_earlier_content_of_files_that_do_not_exist_any_more() {
    let folder = Folder::new();
    folder.write("rules.toml", "rules = []");
    folder.write("routes.txt", "0.0.0.0/0 port wire\n");
    let stages = [("acl", "default = 'permit'\nfile = 'rules.toml'"), ("route", "file = 'routes.txt'")];
    let text = config(1, &stages).replace("name = 'out'\nport = 'wire'", "name = 'out'");
    let run = Changing::start_in(folder, &text);
    run.wait_for_traffic();
    run.folder.write("rules.toml", "rules = [{ action = 'deny', name = 'all' }]");
    run.folder.write("routes.txt", "0.0.0.0/0 drop\n");
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    let applied = run.apply_with(&text, &options).unwrap();
    assert_eq!(applied.operations.len(), 2, "{applied:?}");
    wait_until("denied packets", || drops(run.snapshot().report(), "acl.denied") > 0);
    for file in ["rules.toml", "routes.txt"] {
        std::fs::remove_file(run.folder.file(file)).unwrap();
    }
    let reverted = run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    assert_eq!(kinds(&reverted.operations), kinds(&applied.operations));
    run.wait_for_traffic();
    let report = run.end();
    let dropped = drops(&report, "acl.denied");
    assert!(dropped > 0 && report.packets.rx == report.packets.tx + dropped, "{report}");
}

#[test]
fn numbers_of_a_stage_continue_after_the_revert_of_its_removal() {
    let run = Changing::start(&config(2, &[("count", "")]));
    run.wait_for_traffic();
    let before = stage(run.snapshot().report(), "count").packets;
    assert!(before > 0);
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    run.apply_with(&config(2, &[]), &options).unwrap();
    run.wait_for_traffic();
    run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    assert!(stage(run.snapshot().report(), "count").packets >= before);
    run.end();
}

#[test]
fn identical_config_changes_nothing_and_files_cannot_be_rolled_back() {
    let folder = Folder::new();
    folder.write("rules.toml", "rules = []");
    let text = config(1, &[("acl", "default = 'permit'\nfile = 'rules.toml'")]);
    let run = Changing::start_in(folder, &text);
    let applied = run.apply(&text);
    assert_eq!((applied.number, applied.operations), (0, Vec::new()));
    assert_eq!(run.changer().history().changes.len(), 1);
    run.apply(&config(1, &[]));
    run.apply(&text);
    run.folder.write("rules.toml", "rules = [{ action = 'deny', name = 'all' }]");
    assert_eq!(kinds(&run.apply(&text).operations), [(OperationKind::RenewStage, "acl")]);
    let refusal = run.changer().rollback(&run.registry).unwrap_err();
    assert!(refusal.message.contains("change 3 has only read files again"), "{refusal}");
    // Each rollback goes one change further back.
    run.apply(&config(1, &[("count", "")]));
    run.apply(&config(1, &[("mac_swap", "")]));
    run.rollback();
    assert_eq!(run.run.source().text(), config(1, &[("count", "")]));
    run.rollback();
    assert_eq!(run.run.source().text(), text);
    run.end();
}

#[test]
fn rollback_does_not_apply_a_config_that_was_rolled_back() {
    let start = config(1, &[]);
    let [first, second, third] = ["numbers", "count", "mac_swap"].map(|kind| config(1, &[(kind, "")]));
    let run = Changing::start(&start);
    run.apply(&first);
    run.apply(&second);
    for expected in [&first, &start] {
        run.rollback();
        assert_eq!(run.run.source().text(), *expected);
    }
    run.apply(&third);
    run.rollback();
    assert_eq!(run.run.source().text(), start);
    let refusal = run.changer().rollback(&run.registry).unwrap_err();
    assert_eq!(refusal.message, "there is no earlier config to roll back to");
    // The revert of an unconfirmed change does not count as a change.
    run.apply(&first);
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    run.apply_with(&second, &options).unwrap();
    run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    assert_eq!(run.run.source().text(), first);
    run.rollback();
    assert_eq!(run.run.source().text(), start);
    run.end();
}

#[test]
fn wrong_config_changes_nothing_and_all_mistakes_are_reported() {
    let text = config(1, &[("count", "")]);
    let run = Changing::start(&text);
    let wrong = text.replace("use = 'parse'", "use = 'prase'").replace("use = 'count'", "use = 'count'\nsize = 1");
    assert_ne!(wrong, text);
    let refusal = run.refused(&wrong);
    assert_eq!(refusal.code, ErrorCode::WrongConfig, "{refusal:?}");
    let places: Vec<(&str, bool)> = refusal
        .mistakes
        .iter()
        .map(|mistake| (mistake.file.as_str(), mistake.line > 0 && mistake.column > 0))
        .collect();
    assert_eq!(places, [("new.toml", true), ("new.toml", true)], "{refusal:#?}");
    let file = "[{ prefix = '10.0.0.0/8', port = 'nowhere' }]";
    let refusal = run.refused(&config(1, &[("route", &format!("table = {file}"))]));
    assert!(refusal.mistakes[0].message.contains("no port `nowhere`"), "{refusal:#?}");
    assert_eq!(run.run.source().text(), text);
    assert_eq!(run.changer().history().changes.len(), 1);
    run.end();
}

#[test]
fn change_that_needs_a_restart_is_refused_by_the_name_of_its_operation() {
    let text = config(1, &[]);
    let run = Changing::start(&text);
    for (new, kind, name) in [
        (text.replace("burst = 64", "burst = 32"), OperationKind::ChangeRuntime, "burst"),
        (text.replace("flows = 64", "flows = 65"), OperationKind::ChangePort, "wire"),
        (text.replace("workers = 1", "workers = 2"), OperationKind::RestartWorkers, "workers"),
    ] {
        assert_ne!(new, text);
        let plan = run.plan(&new);
        let found = plan.iter().find(|operation| operation.operation == kind && operation.name == name);
        assert!(found.is_some_and(|operation| !operation.hitless), "{plan:#?}");
        let refusal = run.refused(&new);
        assert_eq!(refusal.code, ErrorCode::NeedsRestart);
        assert!(refusal.message.contains("needs a restart") && refusal.help.contains("restart"), "{refusal}");
        assert_eq!(refusal.operations, plan.into());
    }
    run.end();
}

/// A device can compute checksums for the stage `checksum`. If a change removes the stage, the device must stop
/// computing checksums, because otherwise a packet with a wrong checksum would leave with a correct checksum.
#[test]
fn removal_of_the_checksum_stage_needs_a_restart_if_the_device_computes_checksums() {
    let text = |keys: &str, stages: &[&str]| {
        let config = Config::new().workers(1).port_with("wire", "kind = 'generator', flows = 64", keys);
        let config = stages.iter().fold(config.stage("parse", ""), |config, kind| config.stage(kind, ""));
        config.stage("tx", "name = 'out'\nport = 'wire'").to_string()
    };
    for (keys, is_refused) in [
        ("offload = ['auto']", true),
        ("offload = ['checksum']", false),
        ("offload = ['auto']\nrefuse = ['tx_checksum']", false),
        ("offload = []", false),
    ] {
        let run = Changing::start(&text(keys, &["count", "checksum"]));
        run.apply(&text(keys, &["checksum"]));
        let without = text(keys, &["count"]);
        if is_refused {
            let refusal = run.refused(&without);
            assert_eq!(refusal.code, ErrorCode::NeedsRestart, "{keys}");
            assert!(kinds(&refusal.operations).contains(&(OperationKind::ChangePort, "wire")), "{keys}: {refusal:#?}");
            assert!(refusal.message.ends_with("because some packets pass no `checksum` stage"), "{refusal}");
            let after = run.refused(&text(keys, &["checksum", "ttl", "count"]));
            assert!(after.message.ends_with("put stage `ttl` before the `checksum` stage"), "{after}");
        } else {
            run.apply(&without);
        }
        // Packets that the port does not send keep their checksums.
        let unsent = without.replace("use = 'tx'\nname = 'out'\nport = 'wire'", "use = 'drop'");
        assert_ne!(unsent, without);
        run.apply(&unsent);
        run.end();
    }
}

#[test]
fn unconfirmed_change_reverts_with_its_state_and_a_confirmed_change_stays() {
    let first = config(2, &[("numbers", "step = 1"), ("holds", "")]);
    let second = config(2, &[("numbers", "step = 2"), ("count", "")]);
    let run = Changing::start(&first);
    run.wait_for_traffic();
    let confirm = |seconds| ApplyOptions { confirm: Some(Duration::from_secs(seconds)), ..ApplyOptions::default() };
    let applied = run.apply_with(&second, &confirm(0)).unwrap();
    assert_eq!(run.run.source().text(), second);
    run.wait_for_traffic();
    assert!(run.changer().is_overdue());
    let reverted = run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    assert_eq!(run.run.source().text(), first);
    assert!(run.changer().revert_overdue(&run.registry).is_none());
    let states: Vec<ChangeState> = run.changer().history().changes.iter().map(|row| row.state).collect();
    assert_eq!(states, [ChangeState::Replaced, ChangeState::Reverted, ChangeState::InForce]);
    assert_eq!((applied.number, reverted.number), (1, 2));
    run.wait_for_traffic();
    let snapshot = run.snapshot();
    let numbers = stage(snapshot.report(), "numbers");
    assert_eq!((numbers.counters["seen"], numbers.counters["step"]), (numbers.packets, 2));
    // The program refuses a second change until the first change is confirmed.
    run.apply_with(&second, &confirm(3600)).unwrap();
    let refusal = run.refused(&first);
    assert!(refusal.code == ErrorCode::Busy && refusal.message.contains("waits for its confirmation"), "{refusal}");
    run.changer().confirm().unwrap();
    assert_eq!(run.changer().confirm().unwrap_err().code, ErrorCode::Failed);
    assert_eq!(run.run.source().text(), second);
    run.rollback();
    assert_eq!(run.run.source().text(), first);
    let report = run.end();
    assert_eq!(stage(&report, "numbers").counters["seen"], report.packets.rx, "{report}");
}

#[test]
fn panic_during_a_revert_leaves_the_change_unconfirmed() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static PANICS: AtomicBool = AtomicBool::new(false);

    /// A stage whose preparation panics while `PANICS` is set.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Panics {
        #[serde(rename = "step")]
        _step: u64,
    }
    impl Stage for Panics {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
        fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
            assert!(!PANICS.load(Ordering::Relaxed), "no second preparation");
            Ok(())
        }
    }
    let [first, second] = ["step = 1", "step = 2"].map(|lines| config(1, &[("panics", lines)]));
    let mut registry = registry();
    registry.add::<Panics>("panics");
    let run = Changing::start_with(Folder::new(), registry, &first);
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    run.apply_with(&second, &options).unwrap();
    PANICS.store(true, Ordering::Relaxed);
    let refusal = run.changer().revert_overdue(&run.registry).unwrap().unwrap_err();
    assert_eq!(refusal.message, "change 1 cannot be reverted: a stage panicked: no second preparation");
    assert!(run.changer().is_unconfirmed());
    assert_eq!(run.run.source().text(), second);
    PANICS.store(false, Ordering::Relaxed);
    run.rollback();
    assert_eq!(run.run.source().text(), first);
    run.end();
}

#[test]
fn plan_for_another_config_and_a_second_client_are_refused() {
    let texts = [config(1, &[]), config(1, &[("count", "")]), config(1, &[("numbers", "")])];
    let run = Changing::start(&texts[0]);
    let source = run.changer().source("new.toml", &texts[1]);
    let base = run.changer().plan(&run.registry, &source).unwrap().base;
    run.apply(&texts[2]);
    let options = ApplyOptions { base: Some(base.clone()), ..ApplyOptions::default() };
    let refusal = run.apply_with(&texts[1], &options).unwrap_err();
    assert!(refusal.code == ErrorCode::OtherBase && refusal.message.contains(&base), "{refusal}");
    // Many clients send changes at the same time. The program carries out each change, or refuses the change because
    // another change is in progress.
    let run = Arc::new(run);
    let threads: Vec<_> = (0..8)
        .map(|client| {
            let (run, text) = (run.clone(), texts[client % 3].clone());
            std::thread::spawn(move || run.apply_with(&text, &ApplyOptions::default()).map_err(|refusal| refusal.code))
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(results.iter().any(Result::is_ok));
    assert!(
        results.iter().all(|result| result.as_ref().err().is_none_or(|code| *code == ErrorCode::Busy)),
        "{results:?}"
    );
    Arc::into_inner(run).unwrap().end();
}

#[test]
fn table_that_does_not_fit_memory_changes_nothing() {
    let text = config(1, &[]);
    let run = Changing::start(&text);
    // 1,000 stages need more memory than any test machine has.
    let stages: Vec<String> =
        (0..1000).map(|at| format!("name = 'r{at}'\ndatagrams = 1024\nlargest = 65515")).collect();
    let stages: Vec<(&str, &str)> = stages.iter().map(|lines| ("reassemble", lines.as_str())).collect();
    let refusal = run.refused(&config(1, &stages));
    assert!(refusal.to_string().contains("memory") || refusal.mistakes[0].message.contains("memory"), "{refusal:?}");
    assert_eq!(run.run.source().text(), text);
    run.end();
}

#[test]
fn changed_file_is_read_again_and_a_wrong_file_changes_nothing() {
    let folder = Folder::new();
    folder.write("rules.toml", "rules = []");
    folder.write("routes.txt", "0.0.0.0/0 port wire\n");
    let stages = [("acl", "default = 'permit'\nfile = 'rules.toml'"), ("route", "file = 'routes.txt'")];
    let text = config(1, &stages).replace("name = 'out'\nport = 'wire'", "name = 'out'");
    let run = Changing::start_in(folder, &text);
    assert_eq!(run.plan(&text), []);
    run.wait_for_traffic();
    let reload = |run: &Changing| {
        let options = ApplyOptions { cause: "reload", reads_all_files: true, ..ApplyOptions::default() };
        let source = run.changer().file_of_run()?;
        run.changer().apply(&run.registry, &source, &options)
    };
    run.folder.write("routes.txt", "0.0.0.0/0 drop\n");
    run.folder.write("rules.toml", "rules = [{ action = 'deny', protocol = 'tcp' }]");
    // The plan lists the files that the change reads again.
    assert_eq!(kinds(&run.plan(&text)), [(OperationKind::RenewStage, "acl"), (OperationKind::RenewStage, "route")]);
    let applied = reload(&run).unwrap();
    assert_eq!(kinds(&applied.operations), [(OperationKind::RenewStage, "acl"), (OperationKind::RenewStage, "route")]);
    assert!(applied.operations.iter().all(|operation| operation.why.contains(" again")), "{applied:?}");
    wait_until("dropped packets", || drops(run.snapshot().report(), "route.blackhole") > 0);
    run.folder.write("routes.txt", "0.0.0.0/0 nowhere\n");
    let refusal = reload(&run).unwrap_err();
    assert!(refusal.code == ErrorCode::WrongConfig && !refusal.mistakes.is_empty(), "{refusal:?}");
    run.folder.write("routes.txt", "0.0.0.0/0 port wire\n");
    run.folder.write("rules.toml", "rules = 1");
    assert_eq!(reload(&run).unwrap_err().code, ErrorCode::WrongConfig);
    run.folder.write("test.toml", "[runtime");
    assert_eq!(reload(&run).unwrap_err().mistakes[0].line, 1);
    run.end();
}

#[test]
fn wrong_file_of_one_stage_leaves_the_rules_of_the_other_stages() {
    let folder = Folder::new();
    for file in ["first.toml", "second.toml"] {
        folder.write(file, "rules = []");
    }
    let stages = [
        ("acl", "name = 'first'\ndefault = 'permit'\nfile = 'first.toml'"),
        ("acl", "name = 'second'\ndefault = 'permit'\nfile = 'second.toml'"),
    ];
    let run = Changing::start_in(folder, &config(1, &stages));
    run.wait_for_traffic();
    let reload = || {
        let options = ApplyOptions { cause: "reload", reads_all_files: true, ..ApplyOptions::default() };
        let source = run.changer().file_of_run()?;
        run.changer().apply(&run.registry, &source, &options)
    };
    for (good, bad) in [("first", "second"), ("second", "first")] {
        run.folder.write(&format!("{good}.toml"), "rules = [{ action = 'deny' }]");
        run.folder.write(&format!("{bad}.toml"), "rules = 1");
        let refusal = reload().unwrap_err();
        let is_bad = refusal.mistakes[0].message.starts_with(&format!("stage `{bad}`"));
        assert!(refusal.code == ErrorCode::WrongConfig && is_bad, "{refusal:?}");
        run.wait_for_traffic();
        // A busy machine may delay the answer of the worker, so a snapshot may lack the counters of the stage.
        let mut rules = None;
        wait_until("the worker reports its rules", || {
            rules = stage(run.snapshot().report(), good).counters.get("rules").copied();
            rules.is_some()
        });
        assert_eq!(rules, Some(0));
        run.folder.write(&format!("{good}.toml"), "rules = []");
        run.folder.write(&format!("{bad}.toml"), "rules = []");
    }
    assert_eq!(reload().unwrap().operations.len(), 2);
    let report = run.end();
    assert_eq!(report.ledger.drops.get("first.deny"), None, "{report}");
}

#[test]
fn override_of_the_command_line_stays_in_force() {
    let text = config(1, &[("numbers", "step = 1")]);
    let registry = registry();
    let overrides = [("pipeline.stage.numbers.step".to_owned(), "7".to_owned())];
    let source = Source::new(Path::new("test.toml"), text.as_str(), &overrides);
    let run = Run::start(assembled_with(&source, &registry).unwrap(), Options::default()).unwrap();
    let new = run.changer().source("new.toml", &text.replace("step = 1", "step = 2"));
    let plan = run.changer().plan(&registry, &new).unwrap();
    assert_eq!(plan.operations, []);
    assert_ne!(plan.base, plan.digest);
    run.stop();
    run.join().unwrap();
}

/// Returns the counters of a stage, summed over all workers.
fn counters(report: &Report, name: &str) -> std::collections::BTreeMap<String, u64> {
    stage(report, name).counters.clone()
}

#[test]
fn hits_of_rules_stay_with_their_names_also_after_a_revert() {
    let acl = |rules: &str| config(2, &[("acl", &format!("default = 'permit'\nrules = [{rules}]"))]);
    let rule =
        |name: &str, port: u16| format!("{{ action = 'deny', protocol = 'udp', src_port = {port}, name = '{name}' }},");
    let first = acl(&(rule("a", 1024) + &rule("b", 1025) + &rule("c", 1026)));
    // Remove rule `b`, add rule `d` before all other rules, and move rule `c` before rule `a`.
    let second = acl(&(rule("d", 1027) + &rule("c", 1026) + &rule("a", 1024)));
    let run = Changing::start(&first);
    run.wait_for_traffic();
    wait_until("hits", || counters(run.snapshot().report(), "acl").get("b").is_some_and(|hits| *hits > 0));
    let before = counters(run.snapshot().report(), "acl");
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    let applied = run.apply_with(&second, &options).unwrap();
    assert_eq!(kinds(&applied.operations), [(OperationKind::ReplaceStage, "acl")]);
    run.wait_for_traffic();
    let now = counters(run.snapshot().report(), "acl");
    assert!(["a", "c"].iter().all(|name| now[*name] > before[*name]) && now["d"] > 0, "{before:?} {now:?}");
    assert!(now["gone"] >= before["b"] && !now.contains_key("b"), "{before:?} {now:?}");
    run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    run.wait_for_traffic();
    let report = run.end();
    let hits = counters(&report, "acl");
    assert!(["a", "c"].iter().all(|name| hits[*name] > now[*name]) && hits["b"] > 0, "{report}");
    // The hits of the removed rules stay in `gone`.
    assert!(hits["gone"] >= now["gone"] + now["d"], "{report}");
    let sum: u64 = ["a", "b", "c", "gone"].iter().map(|name| hits[*name]).sum();
    assert_eq!(sum, drops(&report, "acl.denied"), "{report}");
    assert_eq!(sum + hits["default"], stage(&report, "acl").packets, "{report}");
}

#[test]
fn limit_keeps_its_tokens_and_colours() {
    let limit = |burst: u64| config(1, &[("limit", &format!("packets_per_second = 1\nburst = {burst}"))]);
    let run = Changing::start(&limit(1000));
    // The first snapshot may be older than the counters.
    let red = || counters(run.snapshot().report(), "limit").get("red").copied();
    wait_until("red packets", || red().is_some_and(|red| red > 1000));
    let green = counters(run.snapshot().report(), "limit")["green"];
    run.apply(&limit(2000));
    let red = counters(run.snapshot().report(), "limit")["red"];
    wait_until("more red packets", || counters(run.snapshot().report(), "limit")["red"] > red + 10_000);
    let report = run.end();
    let limit = counters(&report, "limit");
    // With a full bucket, 2000 more packets would pass. The bucket gets one token each second.
    assert!(limit["green"] < green + 1000, "{report}");
    assert_eq!(limit["green"] + limit["red"], stage(&report, "limit").packets);
}

#[test]
fn bridge_keeps_its_learned_addresses() {
    let bridge = |ageing: &str| {
        let config = Config::new().port("a", "kind = 'generator', flows = 4").port("b", "kind = 'loopback'");
        config.input(&["a"]).stage("bridge", &format!("ageing = '{ageing}'")).stage("tx", "name = 'out'").to_string()
    };
    let run = Changing::start(&bridge("5m"));
    run.wait_for_traffic();
    let rows = |run: &Changing| {
        let tables = run.run.tables();
        let none = std::collections::BTreeMap::new();
        let query = dataplane::pipeline::TableQuery::new(None, 100, &none);
        tables[0].page(&query).unwrap().rows.len()
    };
    let learned = rows(&run);
    assert!(learned > 0);
    let applied = run.apply(&bridge("10m"));
    assert_eq!(kinds(&applied.operations), [(OperationKind::ReplaceStage, "bridge")]);
    assert_eq!(rows(&run), learned);
    run.end();
}

#[test]
fn route_with_a_new_gateway_renews_the_stages_that_use_next_hops() {
    let router = |gateway: &str| {
        let table = format!("table = [{{ prefix = '0.0.0.0/0', via = '{gateway}', port = 'wire' }}]");
        let known = "table = [{ address = '192.0.2.1', mac = '02:00:00:00:00:01' }, \
                     { address = '192.0.2.2', mac = '02:00:00:00:00:02' }]";
        config(1, &[("route", &table), ("count", ""), ("neighbor", known)])
            .replace("name = 'out'\nport = 'wire'", "name = 'out'")
    };
    let run = Changing::start(&router("192.0.2.1"));
    run.wait_for_traffic();
    let applied = run.apply(&router("192.0.2.2"));
    let expected = [(OperationKind::ReplaceStage, "route"), (OperationKind::RenewStage, "neighbor")];
    assert_eq!(kinds(&applied.operations), expected);
    run.wait_for_traffic();
    let report = run.end();
    assert_eq!(report.packets.rx, report.packets.tx, "{report}");
}

#[test]
fn worker_that_does_not_answer_leaves_all_workers_with_the_earlier_pipeline() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static IS_CLOSED: AtomicBool = AtomicBool::new(false);

    /// A stage that blocks the second worker while `IS_CLOSED` is set.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Gate {}
    impl Stage for Gate {
        fn process(&mut self, ctx: &Ctx, _: &mut Batch) {
            while ctx.worker == 1 && IS_CLOSED.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    }
    let text = config(2, &[("gate", ""), ("numbers", "step = 1")]);
    let mut registry = registry();
    registry.add::<Gate>("gate");
    let run = Changing::start_with(Folder::new(), registry, &text);
    run.wait_for_traffic();
    IS_CLOSED.store(true, Ordering::Relaxed);
    let refusal = run.refused(&config(2, &[("gate", ""), ("numbers", "step = 2")]));
    IS_CLOSED.store(false, Ordering::Relaxed);
    assert!(refusal.message.contains("worker 1 does not answer"), "{refusal}");
    assert_eq!(run.run.source().text(), text);
    run.wait_for_traffic();
    // A revert does not wait for a late worker. The worker must switch to the pipeline of the revert before the next
    // change.
    run.apply_unconfirmed(&config(2, &[("gate", ""), ("count", ""), ("numbers", "step = 3")]));
    IS_CLOSED.store(true, Ordering::Relaxed);
    let reverted = run.rollback();
    assert_eq!(reverted.warnings[0].file, "worker 1", "{reverted:?}");
    // The statistics name the worker, and have the numbers of the other worker.
    let snapshot = run.snapshot();
    assert_eq!(snapshot.workers(), [WorkerState::Running, WorkerState::Late]);
    let sent = snapshot.report().packets.tx;
    wait_until("packets of the other worker", || run.snapshot().report().packets.tx > sent);
    let last = config(2, &[("gate", ""), ("numbers", "step = 4")]);
    let refusal = run.refused(&last);
    assert!(refusal.message.contains("worker 1 has not yet taken the pipeline"), "{refusal}");
    IS_CLOSED.store(false, Ordering::Relaxed);
    wait_until("the worker answers", || run.apply_with(&last, &ApplyOptions::default()).is_ok());
    run.wait_for_traffic();
    let report = run.end();
    let numbers = stage(&report, "numbers");
    assert_eq!((numbers.counters["seen"], numbers.counters["step"]), (report.packets.rx, 2 * 4), "{report}");
}

#[test]
fn revert_does_not_wait_for_a_worker_that_has_not_taken_the_reverted_pipeline() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static BLOCKS: AtomicBool = AtomicBool::new(true);
    static LATCH: Latch = Latch::new();
    static ENDED_EARLY: AtomicBool = AtomicBool::new(false);

    /// A stage that blocks the first worker that takes over its state. The task of the stage records whether the task
    /// ended before the worker could continue.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Late {
        #[serde(rename = "step")]
        _step: u64,
    }
    impl Stage for Late {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
        fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
            setup.task("late", LateTask);
            Ok(())
        }
        fn adopt(&mut self, _earlier: &mut dyn Stage) -> HeldPackets {
            if BLOCKS.swap(false, Ordering::Relaxed) {
                LATCH.wait();
            }
            HeldPackets::Keep
        }
    }
    struct LateTask;
    impl Task for LateTask {
        fn run(&mut self, stop: &StopSignal) -> dataplane::Result<()> {
            while !stop.wait(Duration::from_secs(1)) {}
            ENDED_EARLY.fetch_or(!LATCH.is_open(), Ordering::Relaxed);
            Ok(())
        }
    }
    let text = |late: u64, more: &[(&str, &str)]| {
        let (late, numbers) = (format!("step = {late}"), format!("step = {late}"));
        config(2, &[&[("late", late.as_str()), ("numbers", numbers.as_str())], more].concat())
    };
    let first = text(1, &[]);
    let mut registry = registry();
    registry.add::<Late>("late");
    let run = Changing::start_with(Folder::new(), registry, &first);
    run.wait_for_traffic();
    let options = ApplyOptions { confirm: Some(Duration::ZERO), ..ApplyOptions::default() };
    let applied = run.apply_with(&text(2, &[("count", "")]), &options).unwrap();
    let late: Vec<&str> = applied.warnings.iter().map(|warning| warning.file.as_str()).collect();
    assert_eq!(late.len(), 1, "{applied:?}");
    run.wait_for_traffic();
    let reverted = run.changer().revert_overdue(&run.registry).unwrap().unwrap();
    assert_eq!(reverted.warnings.iter().map(|warning| warning.file.as_str()).collect::<Vec<_>>(), late);
    assert_eq!(run.run.source().text(), first);
    run.wait_for_traffic();
    let snapshot = run.snapshot();
    assert_eq!(snapshot.workers().iter().filter(|state| **state == WorkerState::Late).count(), 1);
    // The late worker still uses the pipeline from before the change, so the tasks of this pipeline still run.
    assert!(!ENDED_EARLY.load(Ordering::Relaxed));
    LATCH.open();
    let last = text(3, &[]);
    wait_until("the worker answers", || run.apply_with(&last, &ApplyOptions::default()).is_ok());
    run.wait_for_traffic();
    let report = run.end();
    let numbers = stage(&report, "numbers");
    assert_eq!((numbers.counters["seen"], numbers.counters["step"]), (report.packets.rx, 2 * 3), "{report}");
}

#[test]
fn panic_at_the_end_of_a_stage_leaves_later_changes_possible() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static BLOCKS: AtomicBool = AtomicBool::new(true);
    static LATCH: Latch = Latch::new();
    static PANICS: AtomicBool = AtomicBool::new(false);

    /// A stage that blocks the first worker that takes over its state. The next stage that is dropped while `PANICS` is
    /// set panics.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Panics {
        #[serde(rename = "step")]
        _step: u64,
    }
    impl Stage for Panics {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
        fn adopt(&mut self, _earlier: &mut dyn Stage) -> HeldPackets {
            let is_blocked = BLOCKS.swap(false, Ordering::Relaxed);
            PANICS.fetch_or(is_blocked, Ordering::Relaxed);
            if is_blocked {
                LATCH.wait();
            }
            HeldPackets::Keep
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(!PANICS.swap(false, Ordering::Relaxed), "no end");
        }
    }
    let [first, second, third] = ["step = 1", "step = 2", "step = 3"].map(|lines| config(2, &[("panics", lines)]));
    let mut registry = registry();
    registry.add::<Panics>("panics");
    let run = Changing::start_with(Folder::new(), registry, &first);
    run.wait_for_traffic();
    let applied = run.apply(&second);
    assert_eq!(applied.warnings.len(), 1, "{applied:?}");
    wait_until("the end of the stage of the other worker", || !PANICS.load(Ordering::Relaxed));
    let refusal = run.refused(&third);
    assert!(refusal.message.contains("has not yet taken the pipeline"), "{refusal}");
    LATCH.open();
    wait_until("the worker answers", || run.apply_with(&third, &ApplyOptions::default()).is_ok());
    run.wait_for_traffic();
    run.run.stop();
    let report = run.run.join().unwrap();
    assert_eq!(report.errors, ["a removed stage panicked at its end: no end"], "{report}");
}
