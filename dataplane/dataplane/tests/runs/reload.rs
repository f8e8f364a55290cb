//! Tests that ACL rules can be reloaded while packets flow.

use dataplane::config::Source;
use dataplane::control::change::OperationKind;
use dataplane::control::{ErrorCode, Refusal};
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{ApplyOptions, Options, Run};
use dataplane_testing::config::Config;
use dataplane_testing::wait_until;

use crate::common::{Folder, assembled_with, assert_good, drops, stage};

/// The source ports of the generator's flows: `FLOWS` ports from `FIRST`. The rules treat even and odd ports
/// differently.
const FIRST: u16 = 1024;
const FLOWS: u16 = 100;
const EVEN: u16 = 0;
const ODD: u16 = 1;

/// A stage that counts mixed batches. A mixed batch contains packets with even and packets with odd source ports.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MixedBatchCounter {
    #[serde(skip)]
    mixed: u64,
    #[serde(skip)]
    seen: [u64; 2],
}

impl Stage for MixedBatchCounter {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let mut seen = [0; 2];
        for packet in batch.iter_mut() {
            let port = u16::from_be_bytes([packet.data()[34], packet.data()[35]]);
            seen[usize::from(port % 2)] += 1;
        }
        self.mixed += u64::from(!seen.contains(&0));
        self.seen[0] += seen[0];
        self.seen[1] += seen[1];
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("mixed", self.mixed);
        report.add("even", self.seen[0]);
        report.add("odd", self.seen[1]);
    }
}

/// Returns one rule for each source port. The rules permit either the even or the odd ports (`permitted` is the
/// remainder of the port divided by 2).
fn rules(permitted: u16) -> String {
    let rule = |port: u16| {
        let action = if port % 2 == permitted { "permit" } else { "deny" };
        format!("  {{ action = \"{action}\", protocol = \"udp\", src_port = {port} }},\n")
    };
    format!("rules = [\n{}]\n", (FIRST..FIRST + FLOWS).map(rule).collect::<String>())
}

/// Waits until the run has received 2,000 more packets.
fn wait_for_traffic(run: &Run) {
    let begin = run.progress().rx;
    wait_until("traffic", || {
        assert!(!run.is_finished(), "no traffic");
        run.progress().rx >= begin + 2_000
    });
}

/// All packets of a batch are matched against the same set of rules, even if a reload happens at that time.
#[test]
fn reload_loses_no_packet_and_each_batch_uses_one_rule_set() {
    for workers in [1, 2] {
        let folder = Folder::new();
        let text = Config::new()
            .workers(workers)
            .runtime("burst = 64")
            .port("in", &format!("kind = 'generator', flows = {FLOWS}, size = 64"))
            .stage("parse", "")
            .stage("acl", "default = 'deny'\nfile = 'rules.toml'")
            .stage("witness", "")
            .stage("tx", "port = 'in'")
            .to_string();
        let replace = |text: &str| {
            folder.write("new.toml", text);
            std::fs::rename(folder.file("new.toml"), folder.file("rules.toml")).unwrap();
        };
        replace(&rules(EVEN));
        let mut registry = Registry::new();
        dataplane::stages::register(&mut registry);
        registry.add::<MixedBatchCounter>("witness");
        let assembly = assembled_with(&Source::new(folder.file("test.toml"), text, &[]), &registry).unwrap();
        assert!(assembly.reads_files());
        let run = Run::start(assembly, Options::default()).unwrap();
        let changer = run.changer();
        const ROUNDS: u64 = 20;
        for round in 0..ROUNDS {
            let wrong = round % 4 == 3;
            match round % 2 {
                _ if wrong => replace(&rules(ODD)[..1000]),
                0 => replace(&rules(ODD)),
                _ => replace(&rules(EVEN)),
            }
            let options = ApplyOptions { reads_all_files: true, ..ApplyOptions::default() };
            match changer.apply(&registry, &run.source(), &options) {
                Ok(applied) => {
                    assert!(!wrong, "{applied:?}");
                    let operations: Vec<_> = applied.operations.iter().map(|it| (it.operation, &it.name[..])).collect();
                    assert_eq!(operations, [(OperationKind::RenewStage, "acl")]);
                }
                Err(Refusal { code, mistakes, .. }) => {
                    assert!(wrong && code == ErrorCode::WrongConfig && !mistakes.is_empty(), "{mistakes:?}");
                }
            }
            wait_for_traffic(&run);
        }
        run.stop();
        let report = run.join().unwrap();
        assert_good(&report);
        let (acl, witness) = (stage(&report, "acl"), stage(&report, "witness"));
        assert_eq!(witness.counters["mixed"], 0, "{report}");
        assert!(witness.counters["even"] > 0 && witness.counters["odd"] > 0, "{report}");
        assert_eq!(report.packets.rx, report.packets.tx + drops(&report, "acl.denied"), "{report}");
        // Every packet matched one rule. The hits of rules that a reload removed are counted as `gone`.
        let hits: u64 = acl
            .counters
            .iter()
            .filter(|(name, _)| name.starts_with("deny ") || name.starts_with("permit ") || *name == "gone")
            .map(|(_, hits)| hits)
            .sum();
        assert_eq!((hits, acl.counters["default"]), (report.packets.rx, 0), "{report}");
    }
}
