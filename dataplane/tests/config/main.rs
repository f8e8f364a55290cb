//! Configs with mistakes: what is said of each, and where.

mod connection;
mod numa;
mod ports;
mod raw;

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
    check_on(&Topology::uniform(4), text, overrides)
}

fn check_on(topology: &Topology, text: &str, overrides: &[(&str, &str)]) -> (Option<Plan>, Diagnostics) {
    let overrides: Vec<(String, String)> = overrides.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    let source = Source::new("etc/x.toml", text, &overrides);
    let mut diagnostics = Diagnostics::new(&source);
    let loaded = config::load(&source, &mut diagnostics);
    let plan = config::plan(&loaded, &Kinds, topology, &mut diagnostics);
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

/// The buffers of a worker with a port on AF_XDP are what that takes, and the plan says so.
#[test]
fn buffers_of_xdp_ports_are_half_a_page_or_whole_ones() {
    let text = |runtime: &str, mtu: u32| {
        format!(
            "[runtime]\n{runtime}\n[[port]]\nname = \"wan\"\ndevice = \"soft\"\nmtu = {mtu}\nlink = {{ kind = \"xdp\", interface = \
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
    assert_eq!((long[0].2.contains("61121 bytes"), long[0].3.as_str()), (true, "make it at most 61098"), "{long:?}");
    let headroom = records(&text("headroom = 2049\nbuffer_size = 4096", 1500));
    assert_eq!(headroom[0].3, "make it at most 2048", "{headroom:?}");
}

/// A line of the good config.
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
fn a_right_config_becomes_a_plan() {
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
fn a_mistake_is_shown_with_its_place_and_what_would_be_right() {
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
   = help: a packet could go round for ever: send it from `late` to another stage or to `drop`

error: no packet can reach the stage `out`
  --> etc/x.toml:40:1
   |
40 | [[pipeline.stage]]
   | ^^^^^^^^^^^^^^^^^^
   |
   = help: send packets to it by `outputs` or `next` of a stage that is reached, or take it out

"#
    );
    let colour = check(&text, &[]).1.render(true);
    assert!(colour.contains("\u{1b}["));
}

/// What replaces a part of the good config makes exactly these mistakes, each by its line, message and help.
#[track_caller]
fn replaced(from: &str, to: &str, expected: &[(usize, &str, &str)]) {
    let text = GOOD.replacen(from, to, 1);
    assert_ne!(text, GOOD, "{from} is not in the config");
    let found: Vec<_> = records(&text).into_iter().map(|(line, _, message, help)| (line, message, help)).collect();
    let expected: Vec<_> =
        expected.iter().map(|&(line, message, help)| (line, message.to_owned(), help.to_owned())).collect();
    assert_eq!(found, expected, "{to}");
}

#[test]
fn typical_mistakes_get_exact_messages() {
    let generator = GENERATOR;
    for (from, to, expected) in [
        ("workers = [1, 3]", "workers = [1, 9]", &[(3, "core 9 doesn't exist", "this machine has the cores 0-3")][..]),
        ("[1, 3]", "[1, 1]", &[(3, "core 1 is given to two workers", "give each worker a core of its own")]),
        (
            "[1, 3]",
            "5",
            &[(
                3,
                "5 workers cannot be placed: this process may use 4 cores (0-3)",
                "ask for fewer workers, or widen the affinity mask of the process",
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
                "make it at least 32, or the burst of [runtime] smaller",
            )],
        ),
        ("burst = 32", "buffer_size = 65409", &[(4, "expected a whole number from 256 to 65408, found 65409", "")]),
        (
            "burst = 32",
            "buffer_size = 256\nheadroom = 193",
            &[(5, "a headroom of 193 leaves 63 bytes of a buffer", "make it at most 192, or the buffer_size larger")],
        ),
        (
            "burst = 32",
            "buffers = 2000",
            &[(
                4,
                "2000 buffers are fewer than rings and bursts of a worker hold, 2496",
                "make it at least 2496, or take the key out",
            )],
        ),
        (
            "rx_depth = 256",
            "mtu = 9000",
            &[(
                9,
                "a packet of `wan` has up to 9022 bytes, and a buffer has room for 1920",
                "make buffer_size of [runtime] at least 9150",
            )],
        ),
        (
            "device = \"soft\"\nrx_depth",
            "device = \"soft\"\nqp = \"rc\"\nrx_depth",
            &[
                (
                    9,
                    "rc queue pairs need to know their peer",
                    "add connection = { listen = \"address:port\" }, or `to`, or `peer`",
                ),
                (
                    12,
                    "a generator link has whole frames, and no rc queue pair at the other end",
                    "write link = { kind = \"loopback\" }, or qp = \"raw_packet\"",
                ),
            ],
        ),
        (
            generator,
            "link = { kind = \"packet\", interface = \"a name too long\", ring = 100 }",
            &[
                (
                    11,
                    "no interface can have the name `a name too long`",
                    "it has 1 to 15 bytes, no space, slash, colon or percent sign: `ip link` lists those there are",
                ),
                (11, "a ring of 100 frames is no power of two", "make it 128, for example"),
            ],
        ),
        (
            generator,
            "faults = { loss = 0.1 }\nlink = { kind = \"xdp\", interface = \"eth 1\", mode = \"fast\" }",
            &[(12, "unknown value `fast`", "the values are `auto`, `generic`, `native`")],
        ),
        (
            generator,
            "faults = { loss = 0.1 }\nlink = { kind = \"xdp\", interface = \"eth 1\" }",
            &[
                (
                    11,
                    "frames of `wan` are in the kernel's hands, where no faults are made",
                    "take `faults` out, or write link = { kind = \"packet\" }",
                ),
                (
                    12,
                    "no interface can have the name `eth 1`",
                    "it has 1 to 15 bytes, no space, slash, colon or percent sign: `ip link` lists those there are",
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
            &[(
                6,
                "the software device of `wan` has no link",
                "add link = { kind = \"loopback\", \"generator\", \"pcap\", \"packet\", \"tap\" or \"xdp\" }",
            )],
        ),
        (
            generator,
            "link = { kind = \"generator\", size = 4000 }",
            &[(
                11,
                "a frame of 4000 bytes is longer than the mtu of `wan` allows, 1522",
                "make it at most 1522, or the mtu at least 3978",
            )],
        ),
        (
            generator,
            "link = { kind = \"loopback\", peer = \"lan\" }",
            &[(
                11,
                "`wan` names `lan` as its peer, but `lan` doesn't name `wan`",
                "give `lan` link = { kind = \"loopback\", peer = \"wan\" }",
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
            &[(25, "`parse` cannot see its own drops", "name another stage, such as a `capture`")],
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
                (14, "two ports have the name `wan`", "the other one is on line 6"),
                (21, "there is no port `lan`", "did you mean `wan`?"),
            ],
        ),
        (
            "input = [\"wan\", \"lan\"]",
            "input = [\"wan\", \"lann\"]",
            &[(21, "there is no port `lann`", "did you mean `lan`?")],
        ),
        ("use = \"parse\"", "use = \"prase\"", &[(24, "there is no stage `prase`", "did you mean `parse`?")]),
        ("arp = \"late\"", "apr = \"late\"", &[(25, "the stage `parse` has no output `apr`", "did you mean `arp`?")]),
        (
            "other = \"drop\"",
            "other = \"lan\"",
            &[(25, "no stage has the name `lan`", "`lan` is a port: send to a `tx` stage with port = \"lan\"")],
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
                    "send packets to it by `outputs` or `next` of a stage that is reached, or take it out",
                ),
                (41, "two stages have the name `late`", "the other one is on line 35: give this one another `name`"),
            ],
        ),
        (
            "name = \"out\"\nuse = \"tx\"",
            "name = \"out\"\nuse = \"count\"",
            &[(
                40,
                "`out` is the last stage, and its packets go nowhere",
                "add a `tx` or `drop` stage after it, or next = \"…\" to it",
            )],
        ),
        ("via = \"192.0.2.1\", ", "vai = \"192.0.2.1\", ", &[(30, "unknown key `vai`", "did you mean `via`?")]),
        ("via = \"192.0.2.1\", ", "", &[(30, "the key `via` is missing", "add `via = …` to this table")]),
        ("use = \"route\"", "use = \"route\"\nouputs = {}", &[(30, "unknown key `ouputs`", "did you mean `outputs`?")]),
        ("[pipeline]\n", "[pipline]\n", &[(20, "unknown key `pipline`", "did you mean `pipeline`?")]),
        ("burst = 32", "burst = 32\nburst = 33", &[(5, "the key `burst` is given twice", "keep one of them")]),
        ("burst = 32", "burst =", &[(4, "there is no value after `=`", "write a value, or take the line out")]),
        ("burst = 32", "idle = spin", &[(4, "a string must be in quotes", "quote it: \"spin\"")]),
        ("burst = 32", "idle = \"spin", &[(4, "this string has no closing quote", "add the quote that it began with")]),
        ("workers = [1, 3]", "workers = [1, 3", &[(3, "this `[` is never closed", "add the `]` that belongs to it")]),
        ("rate = 1000 }", "rate = 1000", &[(11, "this `{` is never closed", "add the `}` that belongs to it")]),
    ] {
        replaced(from, to, expected);
    }
}

#[test]
fn drops_reach_a_stage_and_close_no_loop() {
    // Nothing but the drops of the last stage comes to the one that sees them, which is listed before.
    let text =
        GOOD.replace("arp = \"late\", ", "").replace("use = \"tx\"\nport", "use = \"tx\"\ndrops = \"late\"\nport");
    let text = text.replace("use = \"tx\"\n\n", "use = \"tx\"\ndrops = \"late\"\n\n");
    let (plan, diagnostics) = check(&text, &[]);
    assert_eq!(diagnostics.render(false), "");
    let plan = plan.unwrap();
    let late = plan.node("late");
    assert_eq!(plan.nodes.iter().map(|node| node.drops).collect::<Vec<_>>(), [None, None, late, None, late]);
    assert!(plan.to_string().contains("drops seen by late"));
    let records = check(&text.replace("drops = \"late\"\n\n", "\n"), &[]).1.records();
    let unreached = "no packet can reach the stage `late`";
    assert!(records.iter().any(|record| record.message == unreached), "{records:?}");
}

#[test]
fn an_empty_config_lacks_ports_and_a_pipeline() {
    let messages: Vec<String> = records("").into_iter().map(|record| record.2).collect();
    assert_eq!(messages, ["the config has no port", "the config has no pipeline"]);
    assert_eq!(records("[pipeline]\n").len(), 3);
}

#[test]
fn a_setting_of_the_command_line_replaces_that_of_the_file() {
    let overrides = [
        ("runtime.burst", "16"),
        ("runtime.idle", "\"sleep\""),
        ("port.lan.mtu", "1400"),
        ("port.0.rx_depth", "64"),
        ("pipeline.stage.routes.next", "\"out\""),
    ];
    let (plan, diagnostics) = check(GOOD, &overrides);
    // The stage that was next is not reached any more.
    assert_eq!(diagnostics.records().len(), 1);
    assert!(plan.is_none());
    let (plan, diagnostics) = check(GOOD, &overrides[..4]);
    assert_eq!(diagnostics.render(false), "");
    let plan = plan.unwrap();
    assert_eq!((plan.runtime.burst, plan.ports[1].config.mtu, plan.ports[0].config.rx_depth), (16, 1400, 64));
}

/// A table in braces is a value: nothing of the old one stays.
#[test]
fn a_table_of_the_command_line_replaces_that_of_the_file() {
    let text = "[[port]]\nname = 'a'\ndevice = 'soft'\nlink = { kind = 'generator', rate = 5 }\n\
        [pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'drop'\n";
    for (key, value) in
        [("port.a.link", "{ kind = \"tap\", name = \"dp0\" }"), ("port.a", "{ link.kind = \"loopback\" }")]
    {
        let (_, diagnostics) = check(text, &[(key, value)]);
        let records = diagnostics.records();
        assert!(records.iter().all(|record| !record.message.contains("rate")), "{records:?}");
        assert_eq!(records.is_empty(), key == "port.a.link", "{records:?}");
    }
    let records = check(text, &[("port.a.link.kind", "\"tap\"")]).1.records();
    assert!(records.iter().any(|record| record.message == "unknown key `rate`"), "{records:?}");
}

#[test]
fn a_mistake_in_a_setting_of_the_command_line_names_the_flag() {
    for (key, value, column, message) in [
        ("runtime.burst", "400", 15, "expected a whole number from 1 to 256, found 400"),
        ("runtime.brst", "40", 9, "unknown key `brst`"),
        ("runtime.idle", "sleep", 14, "a string must be in quotes"),
        ("port.wam.mtu", "1400", 6, "there is no `port` of the name or index `wam`"),
        ("runtime.workers", "[7]", 18, "core 7 doesn't exist"),
    ] {
        let records = check(GOOD, &[("runtime.strict", "true"), (key, value)]).1.records();
        assert_eq!(records.len(), 1, "{key}: {records:?}");
        let record = &records[0];
        assert_eq!(record.file, format!("--set {key}={value}"));
        assert_eq!((record.line, record.column, record.message.as_str()), (1, column, message));
    }
}

#[test]
fn a_hundred_mistakes_get_a_hundred_messages() {
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
fn a_later_mistake_of_a_stage_can_be_shown_at_its_place() {
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

#[test]
fn a_table_of_mistakes_ends() {
    let entries = "{ prefix = 1 }, ".repeat(2000);
    let text = GOOD.replace("table = [{ ", &format!("table = [{entries}{{ "));
    let found = records(&text);
    assert!(found.len() > 200 && found.len() < 300, "{}", found.len());
    assert!(found.iter().any(|record| record.2 == "this table has more mistakes than are shown"));
}

#[test]
fn a_misspelt_section_is_read_on() {
    let text = GOOD.replace("[pipeline]", "[pipline]").replace("\"lan\"]", "\"lam\"]");
    let lines: Vec<usize> = records(&text).into_iter().map(|record| record.0).collect();
    assert_eq!(lines, [20, 21]);
    let text = GOOD.replacen("[[port]]", "[[prot]]", 1);
    let lines: Vec<usize> = records(&text).into_iter().map(|record| record.0).collect();
    assert_eq!(lines, [6]);
}

#[test]
fn every_loop_is_named_once() {
    let stages = "[[port]]\nname = \"p\"\ndevice = \"soft\"\nlink = { kind = \"loopback\" }\n[pipeline]\ninput = [\"p\"]\n\
        [[pipeline.stage]]\nname = \"a\"\nuse = \"parse\"\noutputs = { arp = \"a\", ipv4 = \"c\" }\n\
        [[pipeline.stage]]\nname = \"b\"\nuse = \"route\"\noutputs = { missing = \"a\" }\n\
        [[pipeline.stage]]\nname = \"c\"\nuse = \"drop\"\n";
    let messages: Vec<String> = records(stages).into_iter().map(|record| record.2).collect();
    assert_eq!(messages, ["the stages form a loop: a → a", "the stages form a loop: a → b → a"]);
}

proptest! {
    /// No text makes reading, planning or showing panic, and every message has a place in the text.
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
