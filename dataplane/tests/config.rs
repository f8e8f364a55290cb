//! Configs with mistakes: what is said of each, and where.

use dataplane::config::{self, Catalog, Diagnostics, Plan, Source, StageShape, Target};
use dataplane::topology::Topology;
use proptest::prelude::*;

/// A few kinds of stages.
struct Kinds;

impl Catalog for Kinds {
    fn names(&self) -> Vec<String> {
        ["parse", "route", "count", "tx", "drop"].map(str::to_owned).into()
    }

    fn shape(&self, kind: &str) -> Option<StageShape> {
        let (outputs, terminal): (&[&str], bool) = match kind {
            "parse" => (&["arp", "ipv4", "ipv6", "other"], false),
            "route" => (&["missing"], false),
            "count" => (&[], false),
            "tx" | "drop" => (&[], true),
            _ => return None,
        };
        Some(StageShape { outputs: outputs.iter().map(|&label| label.to_owned()).collect(), terminal })
    }
}

/// The parameters of `route`, as a stage would have them.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is only read")]
struct Route {
    #[serde(default)]
    table: Vec<Entry>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is only read")]
struct Entry {
    prefix: ipnet::IpNet,
    via: std::net::IpAddr,
    port: String,
}

fn check(text: &str, overrides: &[(&str, &str)]) -> (Option<Plan>, Diagnostics) {
    let overrides: Vec<(String, String)> = overrides.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    let source = Source::new("etc/x.toml", text, &overrides);
    let mut diagnostics = Diagnostics::new(&source);
    let loaded = config::load(&source, &mut diagnostics);
    let plan = config::plan(&loaded, &Kinds, &Topology::uniform(4), &mut diagnostics);
    for stage in 0..loaded.stage_count() {
        let read = |table| <Route as serde::Deserialize>::deserialize(toml::de::Deserializer::from(table));
        if loaded.stage_kind(stage) == Some("route") {
            loaded.read_stage(stage, read, &mut diagnostics);
        }
    }
    (plan.filter(|_| !diagnostics.has_errors()), diagnostics)
}

fn rendered(text: &str) -> String {
    check(text, &[]).1.render(false)
}

/// Line, column, message and help of each mistake.
fn records(text: &str) -> Vec<(usize, usize, String, String)> {
    let records = check(text, &[]).1.records();
    records
        .into_iter()
        .map(|record| (record.line, record.column, record.message, record.help.unwrap_or_default()))
        .collect()
}

const GOOD: &str = r#"
[runtime]
workers = [1, 3]
burst = 32

[[port]]
name = "wan"
device = "soft"
rx_depth = 256
tx_depth = 128
link = { kind = "generator", flows = 16, rate = 1000 }

[[port]]
name = "lan"
device = "soft"
link = { kind = "pcap", input = "in.pcap", output = "/tmp/out.pcap", loop = 3 }
faults = { seed = 7, loss = 0.5 }
refuse = ["timestamps"]

[pipeline]
input = ["wan", "lan"]

[[pipeline.stage]]
use = "parse"
outputs = { arp = "late", other = "drop" }

[[pipeline.stage]]
name = "routes"
use = "route"
table = [{ prefix = "10.0.0.0/8", via = "192.0.2.1", port = "wan" }]

[[pipeline.stage]]
use = "tx"

[[pipeline.stage]]
name = "late"
use = "count"
next = "out"

[[pipeline.stage]]
name = "out"
use = "tx"
port = "lan"
"#;

#[test]
fn x() {
    let bad = r#"
[runtime]
brst = 64
workers = "many"
idle = "spn"
strict = "yes"
drain_timeout = "5 minutes"

[[port]]
nme = "wan"
device = "soft"
rx_depth = 0
link = { kind = "genrator", size = "64" }

[[port]]
name = "lan"
device = "soft"
link = { kind = "generator", siez = 64, src_ip = "1.2.3" }
refuse = ["timestamp", "rss"]

[pipeline]
input = ["wan", "lan"]

[[pipeline.stage]]
use = "prase"
ouputs = { arp = "x" }

[[pipeline.stage]]
use = "route"
table = [{ prefix = "10.0.0.0/99", port = "wan" }, {}, { prefix = 3, via = 4, port = 5, x = 6 }]
"#;
    println!("{}", rendered(bad));
    println!("{}", rendered("a=\n[runtime]\nburst=\nidle='x'\ny=\"abc\nz=08\nburst=4\n[[port]]\nname\nname=3\n"));
    println!("{}", rendered("[runtime]\nburst=400\n[[port]]\nname='a'\nlink={ kind='x'\n[[port]]\nname='b'"));
    let (plan, d) = check(GOOD, &[]);
    println!("{}", d.render(false));
    println!("{}", plan.unwrap());
    println!("{}", dataplane::config::reference_markdown());
}
