//! Tests of config checks: the message and the location of each mistake.

mod connection;
mod mistakes;
mod numa;
mod ports;
mod raw;

use dataplane::config::{self, Catalog, Diagnostics, Plan, Source, StageShape, Target};
use dataplane::pipeline::parameter_schema;
use dataplane::topology::Topology;
use proptest::prelude::*;
use schemars::JsonSchema;

/// A catalog with a few kinds of stages.
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

/// The parameters of a `route` stage.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the field is only deserialized")]
struct Route {
    #[serde(default)]
    table: Vec<RouteParameter>,
}

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the field is only deserialized")]
struct RouteParameter {
    #[schemars(with = "String")]
    prefix: ipnet::IpNet,
    #[schemars(with = "String")]
    via: std::net::IpAddr,
    port: String,
}

fn check(text: &str, overrides: &[(&str, &str)]) -> (Option<Plan>, Diagnostics) {
    check_on(&Topology::uniform(4), text, overrides)
}

fn check_on(topology: &Topology, text: &str, overrides: &[(&str, &str)]) -> (Option<Plan>, Diagnostics) {
    let overrides: Vec<(String, String)> = overrides.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    let source = Source::new("etc/x.toml", text, &overrides);
    let mut diagnostics = Diagnostics::new(&source);
    let loaded = config::load(&source, &mut diagnostics);
    let plan = config::plan(&loaded, &Kinds, topology, &mut diagnostics);
    let schema = parameter_schema::<Route>();
    for stage in 0..loaded.stage_count() {
        let read = |table| <Route as serde::Deserialize>::deserialize(toml::de::Deserializer::from(table));
        if loaded.stage_kind(stage) == Some("route") {
            loaded.read_stage(stage, Some(&schema), read, &mut diagnostics);
        }
    }
    (plan.filter(|_| !diagnostics.has_errors()), diagnostics)
}

fn rendered(text: &str) -> String {
    check(text, &[]).1.render(false)
}

/// Returns the line, column, message and help of each mistake.
fn records(text: &str) -> Vec<(usize, usize, String, String)> {
    let records = check(text, &[]).1.records();
    records
        .into_iter()
        .map(|record| (record.line, record.column, record.message, record.help.unwrap_or_default()))
        .collect()
}

/// If a config has an AF_XDP port, the plan changes the buffer size and the headroom, so that each buffer is a valid
/// AF_XDP chunk.
#[test]
fn xdp_buffers_are_half_a_page_or_whole_pages() {
    let text = |runtime: &str, mtu: u32| {
        format!(
            "[runtime]\n{runtime}\n[[port]]\nname = \"wan\"\ndevice = \"host\"\nmtu = {mtu}\nlink = {{ kind = \"xdp\", interface = \
             \"eth0\" }}\n[pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"drop\"\n"
        )
    };
    for (runtime, mtu, size, headroom) in [
        ("", 1500, 1984, 256),
        ("", 1706, 1984, 256),
        ("", 1707, 4032, 256),
        ("headroom = 300", 1662, 1984, 300),
        ("headroom = 300", 1663, 4032, 300),
        ("buffer_size = 2049", 1500, 4032, 256),
        ("", 9000, 12_224, 256),
        ("", 61_098, 61_376, 256),
    ] {
        let (plan, diagnostics) = check(&text(runtime, mtu), &[]);
        let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)));
        assert_eq!((plan.runtime.buffer_size, plan.runtime.headroom), (size, headroom), "{runtime}, mtu {mtu}");
    }
    let long = records(&text("", 61_099));
    assert_eq!((long[0].2.contains("61121 bytes"), long[0].3.as_str()), (true, "set mtu to at most 61098"), "{long:?}");
    let headroom = records(&text("headroom = 2049\nbuffer_size = 4096", 1500));
    assert_eq!(headroom[0].3, "set headroom to at most 2048", "{headroom:?}");
}

#[test]
fn quantities_are_read_with_their_units() {
    let text = |runtime: &str, port: &str| {
        format!(
            "[runtime]\n{runtime}\n[[port]]\nname = \"wan\"\ndevice = \"soft\"\n{port}\n[pipeline]\ninput = \
             [\"wan\"]\n[[pipeline.stage]]\nuse = \"drop\"\n"
        )
    };
    let runtime = "buffer_size = \"16KiB\"\ndrain_timeout = \"1m30s\"";
    let port = "mtu = \"9k\"\nlink = { kind = \"generator\", size = \"1.5kB\", rate = \"1.5Mpps\" }";
    let (plan, diagnostics) = check(&text(runtime, port), &[("runtime.headroom", "\"1Ki\"")]);
    let plan = plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)));
    assert_eq!((plan.runtime.buffer_size, plan.runtime.headroom), (16_384, 1024));
    assert_eq!(plan.runtime.drain_timeout.0.as_secs(), 90);
    let Some(config::LinkConfig::Generator(link)) = &plan.ports[0].config.link else {
        panic!("the link is a generator")
    };
    assert_eq!((plan.ports[0].config.mtu, link.size, link.rate), (Some(9000), Some(1500), Some(1_500_000)));

    let wrong = records(&text(
        "buffer_size = \"1MiB\"\ndrain_timeout = 300",
        "mtu = \"9x\"\nlink = { kind = \"generator\", rate = \"1M\" }",
    ));
    let expected = [
        (2, "expected a size from 256 to 65408 bytes, found 1048576", ""),
        (3, "the duration 300 has no unit", "write \"300s\" for seconds"),
        (7, "`9x` is not a number of bytes", "write a number, or text with a unit: 2048, \"9k\" or \"2MiB\""),
        (8, "`1M` is not a packet rate", "write a number, or text with a unit: 1000, \"500kpps\" or \"1Mpps\""),
    ];
    let found: Vec<(usize, &str, &str)> =
        wrong.iter().map(|(line, _, message, help)| (*line, message.as_str(), help.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn unknown_key_does_not_hide_other_mistakes_of_its_table() {
    let text = "[runtime]\nzz = 1\nworkres = [9]\n[[port]]\nname = \"wan\"\ndevice = \"soft\"\ncolour = 1\nmtuu = 9000\nlink = { \
                kind = \"generator\", sizee = 60 }\n[pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"drop\"\n";
    let found: Vec<(usize, String)> = records(text).into_iter().map(|(line, _, message, _)| (line, message)).collect();
    for (line, message) in [
        (2, "unknown key `zz`"),
        (3, "unknown key `workres`"),
        (3, "core 9 does not exist"),
        (7, "unknown key `colour`"),
        (8, "unknown key `mtuu`"),
        (8, "a packet of `wan` has up to 9022 bytes, but a buffer holds only 1920"),
        (9, "unknown key `sizee`"),
    ] {
        assert!(found.contains(&(line, message.to_owned())), "{message}: {found:#?}");
    }
}

/// The generator link of `GOOD`.
const GENERATOR: &str = "link = { kind = \"generator\", flows = 16, rate = 1000 }";

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
fn valid_config_becomes_a_plan() {
    let (plan, diagnostics) = check(GOOD, &[]);
    assert_eq!(diagnostics.render(false), "");
    let plan = plan.unwrap();
    let cores: Vec<u32> = plan.cores.iter().map(|core| core.0).collect();
    assert_eq!(cores, [1, 3]);
    assert_eq!((plan.runtime.burst, plan.runtime.buffer_size), (32, 2048));
    assert!(plan.buffers >= 256 + 128 + 1024 + 1024 + 32);
    assert_eq!(plan.ports.iter().map(|port| port.input).collect::<Vec<_>>(), [true, true]);
    let parse = &plan.nodes[plan.node("parse").unwrap()];
    assert_eq!(parse.next, Some(Target::Stage(1)));
    let outputs = [("arp", Target::Stage(3)), ("ipv4", Target::Drop), ("ipv6", Target::Drop), ("other", Target::Drop)];
    assert_eq!(parse.outputs, outputs.map(|(label, target)| (label.to_owned(), target)));
    let next: Vec<_> = plan.nodes.iter().map(|node| node.next).collect();
    assert_eq!(next[1..], [Some(Target::Stage(2)), None, Some(Target::Stage(4)), None]);
    assert_eq!(plan.nodes[1].parameters["table"][0]["via"].as_str(), Some("192.0.2.1"));
    assert_eq!(plan.order, [0, 1, 2, 3, 4]);
    let text = plan.to_string();
    for part in ["cores 1, 3", "wan: soft generator", "late (count): → out", "arp → late"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["ports"][1]["link"]["kind"], "pcap");
    assert_eq!(json["ports"][1]["link"]["input"], "etc/in.pcap");
    assert_eq!(json["ports"][1]["link"]["output"], "/tmp/out.pcap");
    assert_eq!(json["nodes"][0]["use"], "parse");
}

#[test]
fn mistake_is_shown_with_its_location_and_fix() {
    let text = GOOD.replace("burst = 32", "brst = 32");
    assert_eq!(
        rendered(&text),
        r#"error: unknown key `brst`
 --> etc/x.toml:4:1
  |
4 | brst = 32
  | ^^^^
  |
  = help: did you mean `burst`?

"#
    );
    let text = GOOD.replace("next = \"out\"", "next = \"parse\"");
    assert_eq!(
        rendered(&text),
        r#"error: the stages form a loop: parse → late → parse
  --> etc/x.toml:38:8
   |
38 | next = "parse"
   |        ^^^^^^^
   |
   = help: packets could loop indefinitely: change the target of `late` to another stage or to `drop`

error: no packet can reach the stage `out`
  --> etc/x.toml:40:1
   |
40 | [[pipeline.stage]]
   | ^^^^^^^^^^^^^^^^^^
   |
   = help: name the stage in `outputs` or `next` of a reachable stage, or remove the stage

"#
    );
    let colour = check(&text, &[]).1.render(true);
    assert!(colour.contains("\u{1b}["));
}

/// Checks that replacing `from` with `to` in `GOOD` causes exactly the `expected` mistakes: line, message and help.
#[track_caller]
fn replaced(from: &str, to: &str, expected: &[(usize, &str, &str)]) {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "{from} is not in `GOOD`");
    let found: Vec<_> = records(&text).into_iter().map(|(line, _, message, help)| (line, message, help)).collect();
    let expected: Vec<_> =
        expected.iter().map(|&(line, message, help)| (line, message.to_owned(), help.to_owned())).collect();
    assert_eq!(found, expected, "{to}");
}

#[test]
fn typical_mistakes_get_exact_messages() {
    let generator = GENERATOR;
    for (from, to, expected) in [
        ("workers = [1, 3]", "workers = [1, 9]", &[(3, "core 9 does not exist", "this host has the cores 0-3")][..]),
        ("[1, 3]", "[1, 1]", &[(3, "core 1 is listed for two workers", "name a different core for each worker")]),
        (
            "[1, 3]",
            "5",
            &[(
                3,
                "5 workers cannot be placed: this process may use 4 cores (0-3)",
                "reduce `workers`, or extend the affinity mask of the process",
            )],
        ),
        ("burst = 32", "burst = 257", &[(4, "expected a whole number from 1 to 256, found 257", "")]),
        (
            "burst = 32",
            "burst = \"32\"",
            &[(
                4,
                "expected a whole number from 1 to 256, found the string \"32\"",
                "write the number without quotes: 32",
            )],
        ),
        (
            "rx_depth = 256",
            "rx_depth = 16",
            &[(
                9,
                "the rx_depth of `wan` is 16, less than a burst of 32",
                "set rx_depth to at least 32, or reduce `burst` in [runtime]",
            )],
        ),
        ("burst = 32", "buffer_size = 65409", &[(4, "expected a size from 256 to 65408 bytes, found 65409", "")]),
        (
            "burst = 32",
            "buffer_size = 256\nheadroom = 193",
            &[(
                5,
                "a headroom of 193 leaves only 63 bytes of a buffer",
                "set headroom to at most 192, or increase `buffer_size`",
            )],
        ),
        (
            "burst = 32",
            "buffers = 2000",
            &[(
                4,
                "`buffers` is 2000, but the rings and one burst of a worker need 2496 buffers",
                "set buffers to at least 2496, or remove the key",
            )],
        ),
        (
            "rx_depth = 256",
            "mtu = 9000",
            &[(
                9,
                "a packet of `wan` has up to 9022 bytes, but a buffer holds only 1920",
                "set buffer_size in [runtime] to at least 9150, or mtu to at most 1898",
            )],
        ),
        (
            "device = \"soft\"\nrx_depth",
            "device = \"soft\"\nqp = \"rc\"\nrx_depth",
            &[
                (
                    9,
                    "rc queue pairs need a connection to a peer",
                    "add `connection` with `listen`, `to` or `peer`, such as connection = { listen = \"address:port\" }",
                ),
                (
                    12,
                    "a generator link supports only raw packets, not rc queue pairs",
                    "write link = { kind = \"loopback\" }, or qp = \"raw_packet\"",
                ),
            ],
        ),
        (
            generator,
            "link = { kind = \"packet\", interface = \"a name too long\", ring = 100 }",
            &[
                (8, "a link of kind `packet` needs the device `host`, not `soft`", "write device = \"host\""),
                (
                    11,
                    "`a name too long` is not a valid interface name",
                    "use 1 to 15 bytes without space, slash, colon or percent sign: `ip link` lists the interfaces",
                ),
                (11, "a ring of 100 frames is not a power of two", "set `ring` to 128, for example"),
            ],
        ),
        (
            generator,
            "link = { kind = \"packet\", interface = \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\" }",
            &[
                (8, "a link of kind `packet` needs the device `host`, not `soft`", "write device = \"host\""),
                (
                    11,
                    "`xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` is not a valid interface name",
                    "use 1 to 15 bytes without space, slash, colon or percent sign: `ip link` lists the interfaces",
                ),
            ],
        ),
        (
            generator,
            "faults = { loss = 0.1 }\nlink = { kind = \"xdp\", interface = \"eth 1\", mode = \"fast\" }",
            &[(12, "unknown value `fast`", "the values are `auto`, `generic`, `native`")],
        ),
        (
            generator,
            "link = { kind = \"xdp\", interface = \"eth1\", busy_poll = { micros = 20 } }",
            &[
                (8, "a link of kind `xdp` needs the device `host`, not `soft`", "write device = \"host\""),
                (11, "unknown key `micros`", "the key is now `duration`, as in duration = \"20us\""),
            ],
        ),
        (
            generator,
            "link = { kind = \"xdp\", interface = \"eth1\", busy_poll = { duration = \"1s\" } }",
            &[
                (8, "a link of kind `xdp` needs the device `host`, not `soft`", "write device = \"host\""),
                (11, "1s is out of range", "set `duration` to a time from \"1us\" to \"100ms\""),
            ],
        ),
        (
            generator,
            "faults = { loss = 0.1 }\nlink = { kind = \"xdp\", interface = \"eth 1\" }",
            &[
                (8, "a link of kind `xdp` needs the device `host`, not `soft`", "write device = \"host\""),
                (
                    11,
                    "`faults` do not work on `wan`, because xdp links have no fault injection",
                    "remove `faults`, or write link = { kind = \"packet\" }",
                ),
                (
                    12,
                    "`eth 1` is not a valid interface name",
                    "use 1 to 15 bytes without space, slash, colon or percent sign: `ip link` lists the interfaces",
                ),
            ],
        ),
        (
            generator,
            "link = { kind = \"xdp\", interface = \"e\", except = [{ protocol = \"ssh\" }] }",
            &[(
                11,
                "expected \"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number from 0 to 255, found the string \"ssh\"",
                "",
            )],
        ),
        (
            generator,
            "link = { kind = \"rope\" }",
            &[(11, "unknown value `rope`", "the values are `generator`, `loopback`, `packet`, `pcap`, `tap`, `xdp`")],
        ),
        (
            generator,
            "link = { flows = 16 }",
            &[(
                11,
                "the key `kind` is missing",
                "write kind = \"loopback\", \"generator\", \"pcap\", \"packet\", \"tap\" or \"xdp\"",
            )],
        ),
        (
            generator,
            "",
            &[(6, "the port `wan` has no link", "add link = { kind = \"loopback\", \"generator\" or \"pcap\" }")],
        ),
        (
            generator,
            "link = { kind = \"generator\", size = 4000 }",
            &[(
                11,
                "a frame of 4000 bytes is longer than the mtu of `wan` allows (1522 bytes)",
                "set `size` to at most 1522, or the mtu to at least 3978",
            )],
        ),
        (
            generator,
            "link = { kind = \"loopback\", peer = \"lan\" }",
            &[(
                11,
                "port `wan` has the peer `lan`, but `lan` does not have the peer `wan`",
                "add to `lan`: link = { kind = \"loopback\", peer = \"wan\" }",
            )],
        ),
        (
            generator,
            "link = { kind = \"loopback\", peer = \"lam\" }",
            &[(11, "there is no port `lam`", "did you mean `lan`?")],
        ),
        (
            "use = \"parse\"",
            "use = \"parse\"\ndrops = \"parse\"",
            &[(25, "`parse` cannot observe its own drops", "name another stage, such as a `capture`")],
        ),
        (
            "use = \"parse\"",
            "use = \"parse\"\ndrops = \"routs\"",
            &[(25, "no stage has the name `routs`", "did you mean `routes`?")],
        ),
        (
            "use = \"parse\"",
            "use = \"parse\"\ndrops = \"drop\"",
            &[(
                25,
                "no stage has the name `drop`",
                "the stages of this pipeline are `late`, `out`, `parse`, `routes`, `tx`",
            )],
        ),
        ("loss = 0.5", "loss = 1.5", &[(17, "expected a probability from 0.0 to 1.0, found 1.5", "")]),
        ("\"timestamps\"", "\"time\"", &[(18, "unknown value `time`", "did you mean `timestamps`?")]),
        (
            "name = \"lan\"",
            "name = \"wan\"",
            &[
                (14, "two ports have the name `wan`", "the other port is on line 6; rename one of the two ports"),
                (21, "there is no port `lan`", "did you mean `wan`?"),
            ],
        ),
        (
            "input = [\"wan\", \"lan\"]",
            "input = [\"wan\", \"lann\"]",
            &[(21, "there is no port `lann`", "did you mean `lan`?")],
        ),
        ("use = \"parse\"", "use = \"prase\"", &[(24, "unknown stage kind `prase`", "did you mean `parse`?")]),
        ("arp = \"late\"", "apr = \"late\"", &[(25, "the stage `parse` has no output `apr`", "did you mean `arp`?")]),
        (
            "other = \"drop\"",
            "other = \"lan\"",
            &[(
                25,
                "no stage has the name `lan`",
                "`lan` is a port, not a stage: use a `tx` stage with port = \"lan\"",
            )],
        ),
        ("other = \"drop\"", "other = \"routs\"", &[(25, "no stage has the name `routs`", "did you mean `routes`?")]),
        (
            "name = \"out\"",
            "name = \"late\"",
            &[
                (
                    38,
                    "no stage has the name `out`",
                    "the stages of this pipeline are `drop`, `late`, `parse`, `routes`, `tx`",
                ),
                (
                    40,
                    "no packet can reach the stage `late`",
                    "name the stage in `outputs` or `next` of a reachable stage, or remove the stage",
                ),
                (41, "two stages have the name `late`", "the other stage is on line 35; rename one of the two stages"),
            ],
        ),
        (
            "name = \"out\"\nuse = \"tx\"",
            "name = \"out\"\nuse = \"count\"",
            &[(
                40,
                "packets of the last stage `out` have no target",
                "add a `tx` or `drop` stage after this stage, or set next = \"…\"",
            )],
        ),
        ("via = \"192.0.2.1\", ", "vai = \"192.0.2.1\", ", &[(30, "unknown key `vai`", "did you mean `via`?")]),
        ("via = \"192.0.2.1\", ", "", &[(30, "the key `via` is missing", "add `via = …` to this table")]),
        (
            "[pipeline]\ninput = [\"wan\", \"lan\"]\n",
            "",
            &[(21, "the key `input` is missing", "add `input = …` to the table [pipeline]")],
        ),
        ("use = \"route\"", "use = \"route\"\nouputs = {}", &[(30, "unknown key `ouputs`", "did you mean `outputs`?")]),
        ("[pipeline]\n", "[pipline]\n", &[(20, "unknown key `pipline`", "did you mean `pipeline`?")]),
        ("burst = 32", "burst = 32\nburst = 33", &[(5, "the key `burst` is set twice", "remove one of the two")]),
        ("burst = 32", "burst =", &[(4, "there is no value after `=`", "write a value, or remove the line")]),
        ("burst = 32", "idle = spin", &[(4, "a string must be in quotes", "write the value in quotes: \"spin\"")]),
        ("burst = 32", "idle = \"spin", &[(4, "this string has no closing quote", "add the closing quote")]),
        ("workers = [1, 3]", "workers = [1, 3", &[(3, "this `[` is never closed", "add the matching `]`")]),
        ("rate = 1000 }", "rate = 1000", &[(11, "this `{` is never closed", "add the matching `}`")]),
    ] {
        replaced(from, to, expected);
    }
}

#[test]
fn observed_drops_make_a_stage_reachable_and_form_no_loop() {
    // Packets reach the stage `late` only through the key `drops` of the two `tx` stages. The second `tx` stage
    // receives the packets of `late`, but this is not a loop: `late` only observes packets that end.
    let text =
        GOOD.replace("arp = \"late\", ", "").replace("use = \"tx\"\nport", "use = \"tx\"\ndrops = \"late\"\nport");
    let text = text.replace("use = \"tx\"\n\n", "use = \"tx\"\ndrops = \"late\"\n\n");
    let (plan, diagnostics) = check(&text, &[]);
    assert_eq!(diagnostics.render(false), "");
    let plan = plan.unwrap();
    let late = plan.node("late");
    assert_eq!(plan.nodes.iter().map(|node| node.drop_observer).collect::<Vec<_>>(), [None, None, late, None, late]);
    assert!(plan.to_string().contains("drops observed by late"));
    let records = check(&text.replace("drops = \"late\"\n\n", "\n"), &[]).1.records();
    let unreached = "no packet can reach the stage `late`";
    assert!(records.iter().any(|record| record.message == unreached), "{records:?}");
}

#[test]
fn empty_config_lacks_ports_and_pipeline() {
    let messages: Vec<String> = records("").into_iter().map(|record| record.2).collect();
    assert_eq!(messages, ["the config has no port", "the config has no pipeline"]);
    assert_eq!(records("[pipeline]\n").len(), 3);
}

#[test]
fn override_replaces_a_value_of_the_file() {
    let overrides = [
        ("runtime.burst", "16"),
        ("runtime.idle", "\"sleep\""),
        ("port.lan.mtu", "1400"),
        ("port.0.rx_depth", "64"),
        ("pipeline.stage.routes.next", "\"out\""),
    ];
    let (plan, diagnostics) = check(GOOD, &overrides);
    // The last override skips the stage `tx`, so that stage is now unreachable.
    assert_eq!(diagnostics.records().len(), 1);
    assert!(plan.is_none());
    let (plan, diagnostics) = check(GOOD, &overrides[..4]);
    assert_eq!(diagnostics.render(false), "");
    let plan = plan.unwrap();
    assert_eq!((plan.runtime.burst, plan.ports[1].config.mtu, plan.ports[0].config.rx_depth), (16, Some(1400), 64));
}

/// An override with an inline table replaces the whole table of the file.
#[test]
fn override_with_a_table_replaces_the_whole_table() {
    let text = "[[port]]\nname = 'a'\ndevice = 'soft'\nlink = { kind = 'generator', rate = 5 }\n\
        [pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'drop'\n";
    for (key, value) in
        [("port.a.link", "{ kind = \"tap\", name = \"dp0\" }"), ("port.a", "{ link.kind = \"loopback\" }")]
    {
        let device = if value.contains("tap") { "\"host\"" } else { "\"soft\"" };
        let (_, diagnostics) = check(text, &[(key, value), ("port.a.device", device)]);
        let records = diagnostics.records();
        assert!(records.iter().all(|record| !record.message.contains("rate")), "{records:?}");
        assert_eq!(records.is_empty(), key == "port.a.link", "{records:?}");
    }
    let records = check(text, &[("port.a.link.kind", "\"tap\"")]).1.records();
    assert!(records.iter().any(|record| record.message == "unknown key `rate`"), "{records:?}");
}

#[test]
fn mistake_in_an_override_is_reported_with_its_command_line_flag() {
    for (key, value, column, message) in [
        ("runtime.burst", "400", 15, "expected a whole number from 1 to 256, found 400"),
        ("runtime.brst", "40", 9, "unknown key `brst`"),
        ("runtime.idle", "sleep", 14, "a string must be in quotes"),
        ("port.wam.mtu", "1400", 6, "there is no `port` with the name or index `wam`"),
        ("runtime.workers", "[7]", 18, "core 7 does not exist"),
    ] {
        let records = check(GOOD, &[("runtime.strict", "true"), (key, value)]).1.records();
        assert_eq!(records.len(), 1, "{key}: {records:?}");
        let record = &records[0];
        assert_eq!(record.file, format!("--set {key}={value}"));
        assert_eq!((record.line, record.column, record.message.as_str()), (1, column, message));
    }
}

#[test]
fn hundred_mistakes_get_hundred_messages() {
    let mut text =
        String::from("[runtime]\nbrst = 1\nworkers = \"x\"\nidle = 1\nstrict = \"no\"\nhugepages = \"3M\"\n");
    let mut lines = vec![2, 3, 4, 5, 6];
    let mut line = 6;
    let mut add = |text: &mut String, part: &str, wrong: bool| {
        text.push_str(part);
        text.push('\n');
        line += 1;
        if wrong {
            lines.push(line);
        }
    };
    for port in 0..15 {
        add(&mut text, "[[port]]", false);
        add(&mut text, &format!("name = \"p{port}\""), false);
        add(&mut text, "device = \"soft\"", false);
        add(&mut text, "rx_depht = 5", true);
        add(&mut text, "mtu = -1", true);
        add(&mut text, "link = { kind = \"generator\", flows = 0 }", true);
    }
    add(&mut text, "[pipeline]", false);
    add(&mut text, "input = [\"p0\"]", false);
    add(&mut text, "inputs = 3", true);
    for stage in 0..12 {
        add(&mut text, "[[pipeline.stage]]", false);
        add(&mut text, &format!("name = \"s{stage}\""), false);
        add(&mut text, "use = \"route\"", false);
        add(&mut text, "outputs = { mising = \"drop\" }", true);
        add(&mut text, "table = [", false);
        add(&mut text, "  { prefix = \"10.0.0.0/8\", via = \"192.0.2.1\" },", true);
        add(&mut text, "  { prefix = \"10.0.0.0/33\", via = \"192.0.2.1\", port = \"p0\" },", true);
        add(&mut text, "  { prefix = \"10.0.0.0/8\", via = \"192.0.2.1\", port = \"p0\" },", false);
        add(&mut text, "]", false);
        add(&mut text, "speed = 3", true);
    }
    add(&mut text, "[[pipeline.stage]]", true);
    add(&mut text, "use = \"count\"", false);
    let found: Vec<usize> = records(&text).into_iter().map(|record| record.0).collect();
    lines.sort_unstable();
    assert_eq!(found, lines);
    assert_eq!(found.len(), 100);
}

#[test]
fn stage_parameters_can_be_located_after_loading() {
    let source = Source::new("x.toml", GOOD, &[]);
    let mut diagnostics = Diagnostics::new(&source);
    let loaded = config::load(&source, &mut diagnostics);
    let text = |span: std::ops::Range<usize>| &GOOD[span];
    assert_eq!(text(loaded.locate_stage(1, "table[0].via")), "\"192.0.2.1\"");
    assert_eq!(text(loaded.locate_stage(1, "table[7].via")).get(..3), Some("[{ "));
    assert_eq!(text(loaded.locate_stage(1, "file")), "[[pipeline.stage]]");
    assert_eq!(text(loaded.locate("port[0].rx_depth")), "256");
    assert_eq!(text(loaded.locate("port[1].link.input")), "\"in.pcap\"");
    assert_eq!(loaded.stage_kind(1), Some("route"));
    let keys: Vec<&str> =
        loaded.stage_parameters(4).unwrap().get_ref().keys().map(|key| key.get_ref().as_ref()).collect();
    assert_eq!(keys, ["port"]);
    assert!(loaded.stage_parameters(5).is_none());
}

/// The MTU of an interface may have changed since the start of the program.
#[test]
fn default_mtu_of_a_running_port_stays_the_same() {
    let source = Source::new("x.toml", GOOD, &[]);
    let mut diagnostics = Diagnostics::new(&source);
    let mut loaded = config::load(&source, &mut diagnostics);
    loaded.set_default_mtus(None, |_| None);
    let mut running = config::plan(&loaded, &Kinds, &Topology::uniform(4), &mut diagnostics).unwrap();
    let is_default: Vec<bool> = running.ports.iter().map(|port| port.has_default_mtu).collect();
    assert!(is_default.contains(&true), "{GOOD}");
    running.ports.iter_mut().for_each(|port| port.config.mtu = Some(1300));
    let mut loaded = config::load(&source, &mut diagnostics);
    loaded.set_default_mtus(Some(&running), |_| None);
    let mtus: Vec<bool> = loaded.ports().map(|port| port.mtu == Some(1300)).collect();
    assert_eq!(mtus, is_default);
}

#[test]
fn default_mtu_of_an_rdma_port_is_the_mtu_of_its_interface() {
    let text = "[[port]]\nname = 'a'\ndevice = 'mlx5_0'\n[[port]]\nname = 'b'\ndevice = 'mlx5_1'\nmtu = 1400\n";
    let source = Source::new("x.toml", text, &[]);
    for (of_interface, default) in [(None, 1500), (Some(4200), 4200), (Some(60), 1500), (Some(70_000), 65_000)] {
        let mut loaded = config::load(&source, &mut Diagnostics::new(&source));
        loaded.set_default_mtus(None, |_| of_interface);
        let mtus: Vec<Option<u32>> = loaded.ports().map(|port| port.mtu).collect();
        assert_eq!(mtus, [Some(default), Some(1400)]);
    }
}

/// A packet and its Ethernet header must fit into a datagram, whose length is the path MTU.
#[test]
fn default_mtu_of_datagrams_fits_into_the_path_mtu() {
    for (device, keys, of_interface, default) in [
        ("mlx5_0", "", None, 1500),
        ("mlx5_0", "", Some(1500), 1002),
        ("mlx5_0", "", Some(1000), 490),
        ("mlx5_0", "", Some(2143), 1002),
        ("mlx5_0", "", Some(2144), 1500),
        ("mlx5_0", "", Some(9000), 1500),
        ("mlx5_0", ", path_mtu = 512", Some(9000), 490),
        ("soft", "", None, 1500),
    ] {
        let link = if device == "soft" { "link = { kind = 'loopback' }" } else { "" };
        let text = format!(
            "[[port]]\nname = 'a'\ndevice = '{device}'\nqp = 'ud'\n{link}\nconnection = {{ to = '127.0.0.1:1'{keys} }}\n"
        );
        let source = Source::new("x.toml", &text, &[]);
        let mut loaded = config::load(&source, &mut Diagnostics::new(&source));
        loaded.set_default_mtus(None, |_| of_interface);
        let mtus: Vec<Option<u32>> = loaded.ports().map(|port| port.mtu).collect();
        assert_eq!(mtus, [Some(default)], "{device}{keys}, {of_interface:?}");
    }
}

#[test]
fn mtu_above_the_longest_datagram_is_refused() {
    let port = "[[port]]\nname = 'a'\ndevice = 'mlx5_0'\nqp = 'ud'\nmtu = 1011\nconnection = { to = '127.0.0.1:1', path_mtu = 1024 }\n";
    let text = format!("{port}[pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'drop'\n");
    let found = records(&text);
    let message = "a packet of `a` needs datagrams of 1025 bytes, but the path MTU is at most 1024";
    let expected = (5, message.to_owned(), "set mtu to at most 1002".to_owned());
    let found: Vec<_> = found.into_iter().map(|(line, _, message, help)| (line, message, help)).collect();
    assert_eq!(found, [expected]);
    assert!(records(&text.replace("1011", "1010")).is_empty());
}

#[test]
fn mistakes_of_one_table_are_limited() {
    let entries = "{ prefix = 1 }, ".repeat(2000);
    let text = GOOD.replace("table = [{ ", &format!("table = [{entries}{{ "));
    let found = records(&text);
    assert!(found.len() > 50 && found.len() < 60, "{}", found.len());
    assert!(found.iter().any(|record| record.2 == "this table may have more mistakes than are shown"));
}

#[test]
fn mistakes_of_all_tables_are_limited() {
    let entries = "{ prefix = 1 }, ".repeat(500);
    let stage = format!("[[pipeline.stage]]\nuse = \"route\"\ntable = [{entries}]\n");
    assert_eq!(records(&stage.repeat(8)).len(), 201);
}

#[test]
fn mistakes_beyond_the_limit_are_summed_up() {
    let stage = |at| format!("[[pipeline.stage]]\nname = \"stage{at}\"\nuse = \"count\"\nnext = \"stge{at}\"\n");
    let stages: String = (0..500).map(stage).collect();
    let found = records(&format!("[pipeline]\ninput = []\n{stages}"));
    assert_eq!(found.len(), 201);
    let more = "there are more than 200 mistakes, and the rest is not shown";
    assert_eq!(found.iter().filter(|record| record.2 == more).count(), 1);
}

#[test]
fn control_characters_in_names_are_refused() {
    for (old, new, line, what) in [
        ("name = \"wan\"", "name = \"w\\u0000an\"", 7, "port"),
        ("use = \"parse\"", "use = \"parse\"\nname = \"p\\na\"", 25, "stage"),
    ] {
        let found = records(&GOOD.replacen(old, new, 1));
        let message = format!("the name of the {what} contains a control character");
        assert!(found.iter().any(|record| (record.0, &record.2) == (line, &message)), "{found:?}");
    }
}

#[test]
fn numbers_of_stages_and_workers_are_limited() {
    let stage = |at| format!("[[pipeline.stage]]\nname = \"s{at}\"\nuse = \"count\"\n");
    let stages = |count: usize| format!("{GOOD}{}", (5..count).map(stage).collect::<String>());
    let limit = |text: &str, message: &str| records(text).iter().filter(|record| record.2 == message).count();
    let message = "stage 1025 exceeds the maximum of 1024 stages";
    assert_eq!((limit(&stages(1024), message), limit(&stages(5000), message)), (0, 1));
    let workers = |count: usize| format!("[runtime]\nworkers = [{}]\n", "1, ".repeat(count));
    let message = "this array has more than 1024 cores";
    assert_eq!((limit(&workers(1024), message), limit(&workers(300_000), message)), (0, 1));
}

#[test]
fn misspelt_section_is_still_checked() {
    let text = GOOD.replace("[pipeline]", "[pipline]").replace("\"lan\"]", "\"lam\"]");
    let lines: Vec<usize> = records(&text).into_iter().map(|record| record.0).collect();
    assert_eq!(lines, [20, 21]);
    let text = GOOD.replacen("[[port]]", "[[prot]]", 1);
    let lines: Vec<usize> = records(&text).into_iter().map(|record| record.0).collect();
    assert_eq!(lines, [6]);
}

#[test]
fn every_loop_is_reported_once() {
    let stages = "[[port]]\nname = \"p\"\ndevice = \"soft\"\nlink = { kind = \"loopback\" }\n[pipeline]\ninput = [\"p\"]\n\
        [[pipeline.stage]]\nname = \"a\"\nuse = \"parse\"\noutputs = { arp = \"a\", ipv4 = \"c\" }\n\
        [[pipeline.stage]]\nname = \"b\"\nuse = \"route\"\noutputs = { missing = \"a\" }\n\
        [[pipeline.stage]]\nname = \"c\"\nuse = \"drop\"\n";
    let messages: Vec<String> = records(stages).into_iter().map(|record| record.2).collect();
    assert_eq!(messages, ["the stages form a loop: a → a", "the stages form a loop: a → b → a"]);
}

proptest! {
    /// Random edits of a config never cause a panic in reading, planning or rendering. Every message has a location in
    /// the text.
    #[test]
    fn nothing_in_a_config_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, "[\\PC\n\"'\\[\\]{}=,.#\\\\]{0,4}"), 1..8),
    ) {
        let mut text = GOOD.to_owned();
        for (at, length, new) in edits {
            let boundaries: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let from = at.index(boundaries.len());
            let to = (from + length).min(boundaries.len() - 1);
            text.replace_range(boundaries[from]..boundaries[to], &new);
        }
        let (plan, diagnostics) = check(&text, &[("runtime.burst", "8"), ("port.0.mtu", "1400")]);
        prop_assert_eq!(plan.is_none(), diagnostics.has_errors());
        let lines = text.split('\n').count();
        for record in diagnostics.records() {
            prop_assert!(record.line >= 1 && record.line <= lines && record.column >= 1);
            prop_assert!(!record.message.is_empty());
        }
        prop_assert_eq!(diagnostics.render(false).matches("-->").count() >= diagnostics.records().len(), true);
    }
}
