//! Targets of the fuzzer in `tools/fuzz`. A target panics if the code violates an invariant. The tests run each target
//! on the inputs of its corpus.

use std::sync::LazyLock;

use crate::app;
use crate::config::{self, Diagnostics, Level, Source};
use crate::runtime::{Tracer, assemble_offline};
use dataplane_core::pipeline::Registry;
use dataplane_core::topology::Topology;

static REGISTRY: LazyLock<Registry> = LazyLock::new(dataplane_stages::registry);
static TOPOLOGY: LazyLock<Topology> = LazyLock::new(|| Topology::uniform(4));

/// The configs of [`pipeline`], each with its path.
static CONFIGS: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let example = |name: &str, text: &str| Source::new(format!("{folder}/{name}"), text, &[]);
    vec![
        example("firewall.toml", include_str!("../../../configs/firewall.toml")),
        example("bridge.toml", include_str!("../../../configs/bridge.toml")),
        example("router-static.toml", include_str!("../../../configs/router-static.toml")),
        example("fuzzed.toml", FUZZED),
    ]
});

/// A pipeline of stages that hold, copy, split, tag and rewrite packets.
const FUZZED: &str = r#"
[[port]]
name = "a"
device = "soft"
link = { kind = "generator" }

[[port]]
name = "b"
device = "soft"
link = { kind = "generator" }

[runtime]
burst = 8

[pipeline]
input = ["a", "b"]

[[pipeline.stage]]
use = "mirror"
outputs = { copy = "tag" }

[[pipeline.stage]]
use = "parse"

[[pipeline.stage]]
use = "filter"
expression = "not udp port 53"
outputs = { other = "count" }

[[pipeline.stage]]
use = "reassemble"

[[pipeline.stage]]
use = "count"

[[pipeline.stage]]
use = "limit"
packets_per_second = 1000
burst = 50

[[pipeline.stage]]
use = "route"
table = [{ prefix = "0.0.0.0/0", port = "b" }, { prefix = "::/0", port = "a" }]

[[pipeline.stage]]
use = "ttl"

[[pipeline.stage]]
use = "fragment"

[[pipeline.stage]]
use = "checksum"
next = "out"

[[pipeline.stage]]
name = "tag"
use = "vlan"
op = "push"
id = 9

[[pipeline.stage]]
use = "mac_swap"

[[pipeline.stage]]
name = "out"
use = "tx"
port = "a"
"#;

/// Passes bursts of frames through all stages of a config. The first byte of the input selects the config. A header of
/// 3 bytes precedes each frame: one byte with the port and with the flag that ends a burst, and two bytes with the
/// length of the frame. All packets must be accounted for.
pub fn pipeline(input: &[u8]) {
    let Some((&config, mut rest)) = input.split_first() else { return };
    let source = &CONFIGS[usize::from(config) % CONFIGS.len()];
    let mut diagnostics = Diagnostics::new(source);
    let assembly = assemble_offline(source, &REGISTRY, &mut diagnostics).expect("memory for the stages");
    let mut tracer = Tracer::new(assembly.unwrap_or_else(|| panic!("{}", diagnostics.render(false))))
        .expect("memory for the packets");
    let mut frames = Vec::new();
    while let Some((&[port, high, low], behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([high & 0x3f, low]));
        let (frame, behind) = behind.split_at(length.min(behind.len()));
        frames.push((usize::from(port & 0x0f), port & 0x80 != 0, frame));
        rest = behind;
    }
    tracer.run_bursts(&frames);
}

/// Checks a config. A zero byte separates the text of the config from the text of an override.
pub fn config(input: &[u8]) {
    let mut parts = input.splitn(2, |byte| *byte == 0).map(String::from_utf8_lossy);
    let text = parts.next().unwrap_or_default();
    let setting = parts.next();
    let setting = setting.as_deref().and_then(|setting| setting.split_once('='));
    let settings: Vec<_> = setting.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let source = Source::new("fuzzed.toml", text, &settings);
    let mut diagnostics = Diagnostics::new(&source);
    let loaded = config::load(&source, &mut diagnostics);
    let plan = config::plan(&loaded, &*REGISTRY, &TOPOLOGY, &mut diagnostics);
    for stage in 0..loaded.stage_count() {
        let Some(kind) = loaded.stage_kind(stage).and_then(|kind| REGISTRY.get(kind)) else { continue };
        let read = |table| kind.make(toml::de::Deserializer::from(table));
        let _ = loaded.read_stage(stage, kind.schema.as_ref(), read, &mut diagnostics);
    }
    let records = diagnostics.records();
    assert!(
        plan.is_some() || records.iter().any(|record| record.level == Level::Error),
        "the config is refused, but no error is reported"
    );
    assert!(records.iter().all(|record| record.line > 0 && record.column > 0 && !record.message.is_empty()));
    assert_eq!(records.is_empty(), diagnostics.render(false).is_empty());
    plan.inspect(|plan| drop(plan.to_string()));
}

/// Sends the requests of a client to the control socket. The first byte of the input is the number of bytes that arrive
/// first.
pub fn control(input: &[u8]) {
    app::fuzz_control(input);
}

/// Sends a request to the metrics server. The first byte of the input is the number of bytes that arrive first.
pub fn metrics(input: &[u8]) {
    app::fuzz_metrics(input);
}

#[cfg(test)]
mod tests {
    use dataplane_testing::corpus;

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn targets_accept_their_corpora() {
        corpus::replay("pipeline", super::pipeline);
        corpus::replay("config", super::config);
        corpus::replay("control", super::control);
        corpus::replay("metrics", super::metrics);
    }
}
