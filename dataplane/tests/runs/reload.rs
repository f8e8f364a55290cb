//! Rules that change under traffic.

use std::time::{Duration, Instant};

use dataplane::config::Source;
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run};

use crate::common::{Folder, assembled_with, assert_good, drops, stage};

/// The generator's flows, by their source ports: even ones and odd ones take turns.
const FIRST: u16 = 1024;
const FLOWS: u16 = 100;
const EVEN: u16 = 0;
const ODD: u16 = 1;

/// Counts batches that have both even and odd packets.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Witness {
    #[serde(skip)]
    mixed: u64,
    #[serde(skip)]
    seen: [u64; 2],
}

impl Stage for Witness {
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

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        report("mixed", self.mixed);
        report("even", self.seen[0]);
        report("odd", self.seen[1]);
    }
}

/// Permits some of the ports, each by a rule of its own, and denies the others.
fn rules(permitted: u16) -> String {
    let rule = |port: u16| {
        let action = if port % 2 == permitted { "permit" } else { "deny" };
        format!("  {{ action = \"{action}\", protocol = \"udp\", src_port = {port} }},\n")
    };
    format!("rules = [\n{}]\n", (FIRST..FIRST + FLOWS).map(rule).collect::<String>())
}

/// What was received when a moment is over in which something was.
fn some_traffic(run: &Run) {
    let (begin, patience) = (run.progress().rx, Instant::now() + Duration::from_secs(60));
    while run.progress().rx < begin + 2_000 {
        assert!(Instant::now() < patience && !run.is_finished(), "no traffic");
        std::thread::yield_now();
    }
}

/// Every batch is judged by one set of rules, and every packet by one: whatever is read anew, and when.
#[test]
fn no_packet_is_lost_or_judged_by_a_mixture() {
    for workers in [1, 2] {
        let folder = Folder::new();
        let text = format!(
            r#"
            [runtime]
            workers = {workers}
            burst = 64
            hugepages = "none"
            [[port]]
            name = "in"
            device = "soft"
            link = {{ kind = "generator", flows = {FLOWS}, size = 64 }}
            [pipeline]
            input = ["in"]
            [[pipeline.stage]]
            use = "parse"
            [[pipeline.stage]]
            use = "acl"
            default = "deny"
            file = "rules.toml"
            [[pipeline.stage]]
            use = "witness"
            [[pipeline.stage]]
            use = "tx"
            port = "in"
            "#
        );
        let replace = |text: &str| {
            folder.write("new.toml", text);
            std::fs::rename(folder.file("new.toml"), folder.file("rules.toml")).unwrap();
        };
        replace(&rules(EVEN));
        let mut registry = Registry::new();
        dataplane::stages::register(&mut registry);
        registry.add::<Witness>("witness");
        let assembly = assembled_with(&Source::new(folder.file("test.toml"), text, &[]), &registry).unwrap();
        assert!(assembly.can_reload());
        let run = Run::start(assembly, Options::default()).unwrap();
        assert!(run.can_reload());
        const ROUNDS: u64 = 20;
        for round in 0..ROUNDS {
            let wrong = round % 4 == 3;
            match round % 2 {
                _ if wrong => replace(&rules(ODD)[..1000]),
                0 => replace(&rules(ODD)),
                _ => replace(&rules(EVEN)),
            }
            let told = run.reload();
            assert_eq!((told.len(), told[0].0.as_str(), told[0].1.is_err()), (1, "acl", wrong), "{told:?}");
            some_traffic(&run);
        }
        run.stop();
        let report = run.join().unwrap();
        assert_good(&report);
        let (acl, witness) = (stage(&report, "acl"), stage(&report, "witness"));
        assert_eq!(witness.counters["mixed"], 0, "{report}");
        assert!(witness.counters["even"] > 0 && witness.counters["odd"] > 0, "{report}");
        assert_eq!(report.packets.rx, report.packets.tx + drops(&report, "acl.denied"), "{report}");
        assert_eq!((acl.counters["reloads"], acl.counters["refused"]), (ROUNDS * 3 / 4, ROUNDS / 4));
        // Every packet was found by one rule, of the last set or of one before it.
        let hits: u64 = acl
            .counters
            .iter()
            .filter(|(name, _)| name.starts_with("rules[") || *name == "gone")
            .map(|(_, hits)| hits)
            .sum();
        assert_eq!((hits, acl.counters["default"]), (report.packets.rx, 0), "{report}");
    }
}
