//! Tests of `dataplane::testing::Pipeline`, which runs packets through the pipeline of a config without devices.

use dataplane::config::Source;
use dataplane::prelude::*;
use dataplane::stages;
use dataplane::testing::{PathEnd, Pipeline, frame};

/// A stage that counts packets, and drops packets of at most `than` bytes.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MinimumLength {
    than: usize,
    #[serde(skip)]
    seen: u64,
}

impl Stage for MinimumLength {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            self.seen += 1;
            if packet.len() <= self.than {
                packet.drop(Reason::of_stage(0));
            }
        }
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("seen", self.seen);
    }

    fn info() -> StageInfo {
        StageInfo::new().reasons(&[("too_short", "not long enough")])
    }
}

const PORTS: &str = r#"
[[port]]
name = "a"
device = "soft"
link = { kind = "generator" }

[[port]]
name = "b"
device = "soft"
link = { kind = "generator" }

[pipeline]
input = ["a", "b"]
"#;

fn packet(payload: usize) -> Vec<u8> {
    frame().ipv4([192, 0, 2, 1].into(), [198, 51, 100, 1].into()).udp(1, 2).payload(&vec![7; payload]).build()
}

fn own(stages: &str) -> dataplane::Result<Pipeline> {
    let mut registry = stages::registry();
    registry.add::<MinimumLength>("longer");
    Pipeline::new(&Source::new("own.toml", format!("{PORTS}{stages}"), &[]), &registry)
}

#[test]
fn app_stage_is_part_of_the_pipeline() {
    let stages = r#"
        [[pipeline.stage]]
        name = "keep"
        use = "longer"
        than = 60

        [[pipeline.stage]]
        use = "mac_swap"

        [[pipeline.stage]]
        use = "tx"
        port = "b"
    "#;
    let mut pipeline = own(stages).unwrap();
    let traces = pipeline.run("a", &[packet(0), packet(100)]).unwrap();
    assert_eq!(traces.len(), 2);
    assert_eq!((&traces[0].end, traces[0].path()), (&PathEnd::Dropped("keep.too_short".to_owned()), vec!["keep"]));
    assert_eq!((&traces[1].end, traces[1].path()), (&PathEnd::Sent("b".to_owned()), vec!["keep", "mac_swap", "tx"]));
    let (sent, given) = (&traces[1].bytes, packet(100));
    assert_eq!((&sent[..6], &sent[6..12], &sent[12..]), (&given[6..12], &given[..6], &given[12..]));
    assert_eq!(pipeline.counter("keep", "seen"), Some(2));
    assert_eq!(pipeline.counter("keep", "unseen"), None);
}

/// A copy may enter the same stage as its original. The packet and each copy have separate traces.
#[test]
fn each_copy_has_its_own_trace() {
    let stages = r#"
        [[pipeline.stage]]
        use = "mirror"
        outputs = { copy = "again" }

        [[pipeline.stage]]
        name = "again"
        use = "mirror"
        outputs = { copy = "b" }

        [[pipeline.stage]]
        name = "a"
        use = "tx"
        port = "a"

        [[pipeline.stage]]
        name = "b"
        use = "tx"
        port = "b"
    "#;
    let mut pipeline = own(stages).unwrap();
    for _ in 0..600 {
        let traces = pipeline.run("a", &[packet(10)]).unwrap();
        let mut found: Vec<(bool, Vec<&str>, &PathEnd)> =
            traces.iter().map(|trace| (trace.copy, trace.path(), &trace.end)).collect();
        found.sort_by_key(|(copy, path, _)| (*copy, path.clone()));
        let (a, b) = (PathEnd::Sent("a".to_owned()), PathEnd::Sent("b".to_owned()));
        let expected: [(bool, Vec<&str>, &PathEnd); 4] = [
            (false, vec!["mirror", "again", "a"], &a),
            (true, vec!["again", "b"], &b),
            (true, vec!["again", "b"], &b),
            (true, vec!["mirror", "again", "a"], &a),
        ];
        assert_eq!(found, expected);
        assert!(traces.iter().all(|trace| trace.bytes == packet(10)));
    }
}

#[test]
fn oversized_frame_is_not_received() {
    let stages = "[[pipeline.stage]]\nuse = \"drop\"\n[runtime]\nbuffer_size = 1728\nheadroom = 128\n";
    let mut pipeline = own(stages).unwrap();
    let traces = pipeline.run("b", &[packet(1600), packet(10)]).unwrap();
    assert_eq!(traces[0].end, PathEnd::TooLong(1600));
    assert_eq!(traces[1].end, PathEnd::Dropped("drop.requested".to_owned()));
}

#[test]
fn config_mistakes_are_errors() {
    let error = own("[[pipeline.stage]]\nuse = \"longer\"\nthan = 1\n").err().unwrap().to_string();
    assert!(error.contains("packets of the last stage `longer` have no target"), "{error}");
    let mut pipeline = own("[[pipeline.stage]]\nuse = \"drop\"\n").unwrap();
    assert!(pipeline.run("c", &[packet(1)]).unwrap_err().to_string().contains("no port `c`"));
}
