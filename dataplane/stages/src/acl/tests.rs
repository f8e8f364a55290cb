use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use proptest::prelude::*;

use super::*;
use crate::bench;
use dataplane_core::harness::{Fate, Frame, Harness, frame};
use dataplane_core::header::{ipv4, tcp};
use dataplane_testing::Folder;

const RULES: &str = r#"
default = "deny"
rules = [
    { action = "deny", dst = "10.0.0.0/8", protocol = "tcp", dst_port = 22, name = "no_ssh" },
    { action = "deny", protocol = "tcp", tcp_flags = "syn,!ack", vlan = 7 },
    { action = "permit", src = "192.0.2.0/24" },
    { action = "permit", src = "2001:db8::/32", protocol = "icmpv6" },
    { action = "permit", protocol = 17, src_port = "1024-2048" },
]
"#;

fn v4<'a>(source: [u8; 4], destination: [u8; 4]) -> Frame<'a> {
    frame().ipv4(source.into(), destination.into())
}

fn denied() -> Fate {
    Fate::Dropped("denied".to_owned())
}

#[test]
fn first_matching_rule_decides_and_is_counted() {
    let mut harness = bench::parsed::<Acl>(RULES).unwrap();
    let (inside, outside, ten) = ([192, 0, 2, 1], [198, 51, 100, 1], [10, 1, 1, 1]);
    let v6 = |source: &str| frame().ipv6(source.parse().unwrap(), Ipv6Addr::LOCALHOST);
    let expected = [
        (v4(inside, ten).tcp(4000, 22), denied(), "no_ssh: deny tcp dst 10.0.0.0/8 dst_port 22"),
        (v4(inside, ten).tcp(4000, 23), Fate::Next, "rules[2]: permit any src 192.0.2.0/24"),
        (
            v4(inside, ten).vlan(0x2007).tcp(1, 2).tcp_flags(tcp::SYN),
            denied(),
            "rules[1]: deny tcp tcp_flags syn,!ack vlan 7",
        ),
        (
            v4(inside, ten).vlan(7).tcp(1, 2).tcp_flags(tcp::SYN | tcp::ACK),
            Fate::Next,
            "rules[2]: permit any src 192.0.2.0/24",
        ),
        (v4(outside, ten).tcp(4000, 80), denied(), "no rule matches: deny"),
        (v4(outside, ten).udp(1024, 80), Fate::Next, "rules[4]: permit udp src_port 1024-2048"),
        (v4(outside, ten).udp(2049, 80), denied(), "no rule matches: deny"),
        (v6("2001:db8::9").echo_request(1, 1), Fate::Next, "rules[3]: permit icmpv6 src 2001:db8::/32"),
        (v6("2001:db9::9").echo_request(1, 1), denied(), "no rule matches: deny"),
        (frame().ether_type(0x88cc).payload(&[0; 46]), denied(), "no rule matches: deny"),
    ];
    for (packet, fate, text) in expected {
        assert_eq!(harness.explain_one(&packet.build()).as_deref(), Some(text));
        assert_eq!(harness.run_one(&packet.build()).fate, fate, "{text}");
    }
    let counters = harness.counters();
    let counters: Vec<(&str, u64)> = counters.iter().map(|(name, hits)| (name.as_str(), *hits)).collect();
    let expected = [
        ("no_ssh", 1),
        ("deny tcp tcp_flags syn,!ack vlan 7", 1),
        ("permit any src 192.0.2.0/24", 2),
        ("permit icmpv6 src 2001:db8::/32", 1),
        ("permit udp src_port 1024-2048", 1),
        ("default", 4),
    ];
    assert_eq!(counters, expected);
}

#[test]
fn fragments_without_ports_match_no_port_rules() {
    let rules = "default = \"permit\"\nrules = [{ action = \"deny\", protocol = \"udp\", dst_port = 53 }]";
    let first = v4([1, 1, 1, 1], [2, 2, 2, 2]).udp(9, 53).payload(&[0; 32]).fragment(ipv4::MORE_FRAGMENTS);
    let second = first.fragment(5);
    let whole = first.fragment(0);
    for (more, expected) in [
        ("", [denied(), Fate::Next, denied()]),
        ("\nfragments = \"match_l3\"", [denied(), Fate::Next, denied()]),
        ("\nfragments = \"deny\"", [denied(), denied(), denied()]),
    ] {
        let mut harness = bench::parsed::<Acl>(&format!("{rules}{more}")).unwrap();
        let passed =
            harness.run(&[first.build(), second.build(), whole.build()]).into_iter().map(|outcome| outcome.fate);
        assert_eq!(passed.collect::<Vec<_>>(), expected, "{more}");
        let counted = harness.counters().iter().map(|(_, hits)| hits).sum::<u64>();
        assert_eq!(counted, 3);
    }
    let mut harness = bench::parsed::<Acl>(&format!("{rules}\nfragments = \"deny\"")).unwrap();
    let text = harness.explain_one(&second.build()).unwrap();
    assert_eq!(text, "a fragment without a complete TCP, UDP or ICMP header: deny");
}

#[test]
fn rules_of_a_file_come_after_the_rules_of_the_config() {
    let folder = Folder::new();
    let build = |text: &str| {
        folder.write("rules.toml", text);
        let rules =
            "default = \"permit\"\nfile = \"rules.toml\"\nrules = [{ action = \"permit\", src = \"10.1.0.0/16\" }]";
        bench::builder().folder(folder.path()).build::<Acl>(rules)
    };
    let mut harness = build("rules = [{ action = \"deny\", src = \"10.0.0.0/8\" }]").unwrap();
    let passed = harness.run(&[v4([10, 1, 0, 1], [1; 4]).build(), v4([10, 2, 0, 1], [1; 4]).build()]);
    assert_eq!([&passed[0].fate, &passed[1].fate], [&Fate::Next, &denied()]);
    let bad = build("rules = [\n  { action = \"deny\", src = \"10.0.0/8\" },\n]").err().unwrap();
    assert!(bad.contains("rules.toml:2:28: `10.0.0/8` is not a prefix"), "{bad}");
    let place = build("rules = [{ action = \"deny\", vlan = 4095 }]").err().unwrap();
    assert!(
        place.ends_with("rules.toml:1:10: rules[0].vlan: 4095 is not a VLAN id; help: set a VLAN id from 0 to 4094"),
        "{place}"
    );
    let missing = bench::parsed::<Acl>("default = \"deny\"\nfile = \"nowhere.toml\"").err().unwrap();
    assert!(missing.starts_with("file: nowhere.toml: No such file"), "{missing}");
}

/// The parameters of a stage with a rule of the config and the rules of the file `rules.toml`.
const WITH_FILE: &str = "default = 'permit'\nfile = 'rules.toml'\n\
                         rules = [{ action = 'permit', src = '10.1.0.0/16', name = 'own' }]";

fn build(folder: &Folder) -> Harness {
    bench::builder().folder(folder.path()).build::<Acl>(WITH_FILE).unwrap()
}

/// Replaces the stage by a stage with the same parameters, which reads the file again.
fn reload(harness: &mut Harness) -> Result<(), Vec<Problem>> {
    harness.change::<Acl>(WITH_FILE)
}

fn counted(harness: &Harness) -> Vec<(String, u64)> {
    harness.counters().into_iter().filter(|(_, count)| *count > 0).collect()
}

fn counts(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn changed_file_is_read_again_on_reload() {
    let folder = Folder::new();
    folder.write(
        "rules.toml",
        "rules = [{ action = \"deny\", src = \"10.2.0.0/16\" }, { action = \"deny\", vlan = 7, name = \"seven\" }]",
    );
    let mut harness = build(&folder);
    let from = |second, vlan: Option<u16>| {
        let packet = v4([10, second, 0, 1], [1; 4]);
        vlan.map_or(packet, |vlan| packet.vlan(vlan)).build()
    };
    let packets = [from(1, None), from(2, None), from(3, None), from(3, Some(7))];
    let passed = |harness: &mut Harness| {
        let permitted = harness.run(&packets).into_iter().map(|outcome| outcome.fate == Fate::Next);
        permitted.collect::<Vec<_>>()
    };
    assert_eq!(passed(&mut harness), [true, false, true, false]);
    folder.write("rules.toml", "rules = [{ action = \"deny\", src = \"10.3.0.0/16\", name = \"seven\" }]");
    harness.tick();
    assert_eq!(passed(&mut harness), [true, false, true, false], "the stage read the changed file without a reload");
    reload(&mut harness).unwrap();
    assert_eq!(passed(&mut harness), [true, true, false, false]);
    // The rule `seven` keeps its hits, although its properties changed. The hits of the removed rule count as `gone`.
    let expected = [("own", 3), ("seven", 2 + 2), ("default", 2 + 1), ("gone", 2), ("rules", 2)];
    assert_eq!(counted(&harness), counts(&expected));
    // The file changes twice before the worker processes a batch. The worker then uses the latest rules.
    folder.write("rules.toml", "rules = [{ action = \"deny\" }]");
    reload(&mut harness).unwrap();
    folder.write("rules.toml", "rules = []");
    reload(&mut harness).unwrap();
    assert_eq!(passed(&mut harness), [true; 4]);
    let expected = [("own", 4), ("default", 2 + 1 + 3), ("gone", 2 + 4), ("rules", 1)];
    assert_eq!(counted(&harness), counts(&expected));
}

#[test]
fn hits_of_unnamed_rules_stay_with_their_rule_when_another_rule_is_inserted() {
    let folder = Folder::new();
    let [two, three] = [2, 3].map(|net| format!("{{ action = \"deny\", src = \"10.{net}.0.0/16\" }}"));
    folder.write("rules.toml", format!("rules = [{two}, {three}, {three}]"));
    let mut harness = build(&folder);
    let packets = [2, 3, 3].map(|net| v4([10, net, 0, 1], [1; 4]).build());
    harness.run(&packets);
    folder.write("rules.toml", format!("rules = [{{ action = \"deny\", vlan = 9 }}, {three}, {two}]"));
    reload(&mut harness).unwrap();
    harness.run(&packets);
    let expected = [
        ("own", 0),
        ("deny any vlan 9", 0),
        ("deny any src 10.3.0.0/16", 4),
        ("deny any src 10.2.0.0/16", 2),
        ("default", 0),
        ("gone", 0),
        ("rules", 4),
    ];
    assert_eq!(harness.counters(), counts(&expected));
}

#[test]
fn equal_rules_without_a_name_have_numbered_counters() {
    let rule = "{ action = 'deny', src = '10.2.0.0/16' }";
    let named = "{ action = 'permit', vlan = 3, name = 'deny any src 10.2.0.0/16 #2' }";
    let harness = Harness::from_toml::<Acl>(&format!("default = 'permit'\nrules = [{rule}, {rule}, {named}]")).unwrap();
    let names: Vec<String> = harness.counters().into_iter().map(|(name, _)| name).collect();
    let expected =
        ["deny any src 10.2.0.0/16", "deny any src 10.2.0.0/16 #3", "deny any src 10.2.0.0/16 #2", "default"];
    assert_eq!(names, expected);
}

#[test]
fn invalid_file_keeps_the_old_rules() {
    let folder = Folder::new();
    let path = folder.file("rules.toml");
    folder.write("rules.toml", "rules = [{ action = \"deny\", src = \"10.2.0.0/16\", name = \"two\" }]");
    let mut harness = build(&folder);
    let denied_one = v4([10, 2, 0, 1], [1; 4]).build();
    let many = format!("rules = [\n{}]", "{ action = \"deny\" },\n".repeat(100_000));
    let cases: [(&[u8], &str); 11] = [
        (b"rules = [\n  { action = \"deny\", src = \"10.2.0.0/16\" },\n  { action = \"de", "rules.toml:3:"),
        (b"", "the key `rules` is missing; help: add `rules = …`"),
        (
            b"rules = [{ action = \"deny\", scr = \"10.2.0.0/16\" }]",
            "rules.toml:1:29: unknown key `scr`; help: did you mean `src`?",
        ),
        (b"rules = [{ action = \"denny\" }]", "rules.toml:1:21: unknown value `denny`; help: did you mean `deny`?"),
        (
            b"rules = [\n{ action = \"deny\" },\n  { action = \"deny\", vlan = 9999 }]",
            "rules.toml:3:3: rules[1].vlan: 9999",
        ),
        (
            b"rules = [{ action = \"deny\", name = \"own\" }]",
            "rules.toml:1:10: rules[0].name: there is already a counter `own`",
        ),
        (b"rules = [{ action = \"deny\", name = \"gone\" }]", "there is already a counter `gone`"),
        (b"rules = [] # \n\xff", "rules.toml:2:1: invalid UTF-8"),
        (many.as_bytes(), "100001 rules exceed the maximum of 100000; help: aggregate"),
        (&vec![b'#'; (32 << 20) + 1], "the file is larger than 32 MiB"),
        (b"# [[\nrules = [[[[[[[[[[[[[[[[[[[[", "rules.toml:2:25: the brackets are nested too deeply"),
    ];
    let mut refused = 0;
    let mut refuses = |harness: &mut Harness, expected: &str| {
        let problems = reload(harness).unwrap_err();
        let reported = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(reported.contains(expected) && reported.contains("; help: "), "{expected}: {reported}");
        harness.tick();
        assert_eq!(harness.run_one(&denied_one).fate, denied());
        refused += 1;
        assert_eq!(counted(harness), counts(&[("two", refused), ("rules", 2)]));
    };
    for (text, expected) in cases {
        folder.write("rules.toml", text);
        refuses(&mut harness, expected);
    }
    std::fs::remove_file(&path).unwrap();
    refuses(&mut harness, "No such file");
    std::fs::create_dir(&path).unwrap();
    refuses(&mut harness, "not a regular file");
    // All errors are reported, not only the first error.
    std::fs::remove_dir(&path).unwrap();
    folder.write("rules.toml", format!("rules = [{}]", "{ action = \"deny\", vlan = 5000 },".repeat(30)));
    assert_eq!(reload(&mut harness).unwrap_err().len(), 20);
    folder.write("rules.toml", format!("rules = [{}]", "{ action = \"deny\", vlan = \"x\" },".repeat(30)));
    assert_eq!(reload(&mut harness).unwrap_err().len(), 20);
    let reported = |harness: &mut Harness, expected: &[&str]| {
        let problems = reload(harness).unwrap_err();
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.to_string().contains(expected), "{expected}: {problem}");
        }
    };
    folder.write(
        "rules.toml",
        "rules = [\n{ action = \"deny\", scr = 1 },\n{ action = \"deny\" },\n{ action = \"deny\", vlan = 5000 },\n\
         { action = \"dny\" },\n{ action = \"deny\", src = \"10.0.0.0/33\" },\n]\nrule = 1",
    );
    reported(
        &mut harness,
        &["toml:2:20: unknown", "toml:4:1: rules[2].vlan: 5000", "toml:5:12:", "toml:6:26:", "toml:8:1:"],
    );
    folder
        .write("rules.toml", "[[rules]]\naction = 7\n[[rules]]\naction = \"deny\"\nvlan = 4095\n[[rules]]\nvlan = 1\n");
    reported(&mut harness, &["toml:2:10:", "rules[1].vlan: 4095", "the key `action` is missing"]);
    folder.write("rules.toml", "rules = [\n{ action = },\n{ action = \"deny\", vlan = },\n]");
    let problems = reload(&mut harness).unwrap_err();
    for line in ["toml:2:", "toml:3:"] {
        assert!(problems.iter().any(|problem| problem.to_string().contains(line)), "{line} {problems:?}");
    }
    // In a file of more than 256 KiB, only the first syntax error is reported.
    let comment = "# comment\n".repeat(30_000);
    folder.write("rules.toml", format!("{comment}rules = [\n{{ action = }},\n{{ action = \"deny\", vlan = }},\n]"));
    reported(&mut harness, &["toml:30002:"]);
    folder.write("rules.toml", "rules = []");
    reload(&mut harness).unwrap();
    assert_eq!(harness.run_one(&denied_one).fate, Fate::Next);
}

#[test]
fn largest_number_of_rules_can_be_loaded() {
    let folder = Folder::new();
    let rule = |at: u32| {
        let [_, a, b, c] = (at << 4).to_be_bytes();
        format!("{{ action = \"deny\", src = \"10.{a}.{b}.{c}/28\", dst = \"172.16.{}.0/24\" }},\n", at % 256)
    };
    folder.write("rules.toml", "rules = []");
    let mut harness = build(&folder);
    folder.write("rules.toml", format!("rules = [\n{}]", (0..99_999).map(rule).collect::<String>()));
    reload(&mut harness).unwrap();
    for at in (0..99_999u32).step_by(4_999) {
        let [_, a, b, c] = (at << 4).to_be_bytes();
        let packet = |net: u32| v4([10, a, b, c | 5], [172, 16, (net % 256) as u8, 9]).build();
        let passed = harness.run(&[packet(at), packet(at + 1)]);
        let expected = if a == 1 { Fate::Next } else { denied() };
        assert_eq!((&passed[0].fate, &passed[1].fate), (&expected, &Fate::Next), "{at}");
    }
}

/// Each reload changes a few of 500 rules. Afterwards, lookups and hit counters match the rules of the new file.
#[test]
fn reload_applies_a_few_changes_to_many_rules() {
    let folder = Folder::new();
    let rule =
        |at: u32| format!("{{ action = \"deny\", dst = \"172.16.{}.{}/32\", name = \"{at}\" }},\n", at / 250, at % 250);
    let mut order: Vec<u32> = (0..500).collect();
    let write = |order: &[u32]| {
        folder.write("rules.toml", format!("rules = [\n{}]", order.iter().map(|at| rule(*at)).collect::<String>()));
    };
    write(&order);
    let mut harness = build(&folder);
    let packets: Vec<Vec<u8>> =
        (0..520u32).map(|at| v4([10, 2, 0, 1], [172, 16, (at / 250) as u8, (at % 250) as u8]).build()).collect();
    for round in 1..=20u64 {
        // Remove one rule, add a new rule, and move a third rule.
        order.remove(round as usize * 11);
        order.insert(round as usize * 3, 499 + round as u32);
        let moved = order.remove(400);
        order.insert(round as usize, moved);
        write(&order);
        reload(&mut harness).unwrap();
        let before = harness.counters();
        let outcomes = packets.chunks(200).flat_map(|some| harness.run(some));
        for (at, outcome) in (0..).zip(outcomes.collect::<Vec<_>>()) {
            assert_eq!(outcome.fate, if order.contains(&at) { denied() } else { Fate::Next }, "{at} in round {round}");
        }
        let hits = |counters: &[(String, u64)], at: u32| {
            counters.iter().find(|(name, _)| *name == at.to_string()).map(|(_, hits)| *hits)
        };
        let after = harness.counters();
        for at in &order {
            assert_eq!(hits(&after, *at), hits(&before, *at).map(|hits| hits + 1), "{at} in round {round}");
        }
    }
}

#[test]
fn invalid_rule_is_reported_with_its_key() {
    let refused = |rule: &str| {
        bench::parsed::<Acl>(&format!(
            "default = \"deny\"\nrules = [{{ action = \"deny\" }}, {{ action = \"deny\", {rule} }}]"
        ))
        .err()
        .unwrap()
    };
    for (rule, expected) in [
        ("protocol = \"icmp\", dst_port = 1", "rules[1].dst_port: protocol icmp has no ports"),
        ("protocol = 47, src_port = 1", "rules[1].src_port: protocol 47 has no ports"),
        ("protocol = \"udp\", tcp_flags = \"syn\"", "rules[1].tcp_flags: protocol udp has no TCP flags"),
        ("vlan = 4096", "rules[1].vlan: 4096 is not a VLAN id"),
        ("src = \"10.0.0.0/8\", dst = \"::/0\"", "rules[1].dst: 10.0.0.0/8 and ::/0 are of different address families"),
        ("name = \"default\"", "rules[1].name: there is already a counter `default`"),
    ] {
        assert!(refused(rule).starts_with(expected), "{}", refused(rule));
    }
    for (rule, expected) in [
        ("tcp_flags = \"syn,akc\"", "`akc` is not a TCP flag; help: use fin, syn"),
        ("tcp_flags = \"syn,!syn\"", "`syn` occurs twice in `syn,!syn`"),
        ("tcp_flags = \"\"", "`` is not a TCP flag"),
        ("dst_prot = 5", "unknown field `dst_prot`"),
        ("dst_port = \"5-1\"", "did you mean 1-5?"),
    ] {
        assert!(refused(rule).contains(expected), "{}", refused(rule));
    }
    assert!(bench::parsed::<Acl>("").err().unwrap().contains("missing field `default`"));
}

/// A model of a rule, which can be written as text and matched directly.
#[derive(Clone, Debug)]
struct Model {
    permit: bool,
    src: Option<IpNet>,
    protocol: Option<u8>,
    dst_port: Option<(u16, u16)>,
    syn: Option<bool>,
    vlan: Option<u16>,
}

#[derive(Clone, Debug)]
struct Sent {
    src: Ipv4Addr,
    protocol: u8,
    dst_port: u16,
    syn: bool,
    vlan: Option<u16>,
}

impl Model {
    fn write(&self) -> String {
        let mut text = format!("{{ action = \"{}\"", if self.permit { "permit" } else { "deny" });
        self.src.iter().for_each(|src| text += &format!(", src = \"{src}\""));
        self.protocol.iter().for_each(|protocol| text += &format!(", protocol = {protocol}"));
        self.dst_port.iter().for_each(|(first, last)| text += &format!(", dst_port = \"{first}-{last}\""));
        self.syn.iter().for_each(|syn| text += &format!(", tcp_flags = \"{}syn\"", if *syn { "" } else { "!" }));
        self.vlan.iter().for_each(|vlan| text += &format!(", vlan = {vlan}"));
        text + " }"
    }

    fn matches(&self, sent: &Sent) -> bool {
        self.src.is_none_or(|net| net.contains(&IpAddr::V4(sent.src)))
            && self.protocol.is_none_or(|protocol| protocol == sent.protocol)
            && self
                .dst_port
                .is_none_or(|(first, last)| [6, 17].contains(&sent.protocol) && (first..=last).contains(&sent.dst_port))
            && self.syn.is_none_or(|syn| sent.protocol == 6 && syn == sent.syn)
            && self.vlan.is_none_or(|vlan| sent.vlan == Some(vlan))
    }
}

impl Sent {
    fn build(&self) -> Vec<u8> {
        // The payload makes the frame long enough for the fast path.
        let packet = frame().ipv4(self.src, [9, 9, 9, 9].into()).payload(&[0; 18]);
        let packet = self.vlan.map_or(packet, |vlan| packet.vlan(vlan | 0x6000));
        match self.protocol {
            6 => packet.tcp(1, self.dst_port).tcp_flags(if self.syn { tcp::SYN } else { tcp::ACK }).build(),
            17 => packet.udp(1, self.dst_port).build(),
            _ => packet.echo_request(1, self.dst_port).build(),
        }
    }
}

fn models() -> impl Strategy<Value = Vec<Model>> {
    let net = (0u32..8, 28u8..=32).prop_map(|(low, len)| Ipv4Net::new_assert(low.into(), len).trunc().into());
    let rule = (
        any::<bool>(),
        prop::option::of(net),
        prop::option::of(prop::sample::select(vec![6u8, 17])),
        prop::option::of((0u16..4, 0u16..4).prop_map(|(first, more)| (first, first + more))),
        prop::option::weighted(0.2, any::<bool>()),
        prop::option::weighted(0.2, 0u16..3),
    );
    let rule = rule.prop_map(|(permit, src, protocol, dst_port, syn, vlan)| Model {
        permit,
        src,
        protocol,
        dst_port,
        // A UDP rule with TCP flags would be refused.
        syn: syn.filter(|_| protocol != Some(17)),
        vlan,
    });
    prop::collection::vec(rule, 0..20)
}

/// Generates packets that qualify for the fast path, followed by packets of all kinds.
fn traffic() -> impl Strategy<Value = Vec<Sent>> {
    let usual = sent().prop_map(|sent| Sent { protocol: sent.protocol.max(6), vlan: None, ..sent });
    let (usual, mixed) = (prop::collection::vec(usual, 0..80), prop::collection::vec(sent(), 0..40));
    (usual, mixed).prop_map(|(usual, mixed)| [usual, mixed].concat())
}

fn sent() -> impl Strategy<Value = Sent> {
    let protocol = prop::sample::select(vec![1u8, 6, 17]);
    (0u32..20, protocol, 0u16..8, any::<bool>(), prop::option::of(0u16..3))
        .prop_map(|(src, protocol, dst_port, syn, vlan)| Sent { src: src.into(), protocol, dst_port, syn, vlan })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares the lookup with a linear search over the rules.
    #[test]
    fn lookup_agrees_with_linear_search(
        rules in models(),
        permit in any::<bool>(),
        sent in traffic(),
    ) {
        let texts: Vec<String> = rules.iter().map(Model::write).collect();
        let default = if permit { "permit" } else { "deny" };
        let parameters = format!("default = \"{default}\"\nrules = [{}]", texts.join(", "));
        let mut harness: Harness = bench::parsed::<Acl>(&parameters).unwrap();
        let mut hits = vec![0; rules.len() + 1];
        let packets: Vec<Vec<u8>> = sent.iter().map(Sent::build).collect();
        for (sent, outcome) in sent.iter().zip(harness.run(&packets)) {
            let first = rules.iter().position(|rule| rule.matches(sent));
            hits[first.unwrap_or(rules.len())] += 1;
            let permitted = first.map_or(permit, |rule| rules[rule].permit);
            prop_assert_eq!(outcome.fate, if permitted { Fate::Next } else { denied() });
        }
        let counted: Vec<u64> = harness.counters().into_iter().map(|(_, hits)| hits).collect();
        prop_assert_eq!(counted, hits);
    }
}

/// Each change replaces the only rule. The number of counters stays the same.
#[test]
fn hits_of_removed_rules_use_constant_memory() {
    let parameters = |round: u64| format!("default = 'permit'\nrules = [{{ action = 'permit', name = '{round}' }}]");
    let mut harness = bench::builder().build::<Acl>(&parameters(0)).unwrap();
    let packet = v4([10, 2, 0, 1], [1; 4]).build();
    for round in 1..=50 {
        harness.run(&vec![&packet; round as usize]);
        harness.change::<Acl>(&parameters(round)).unwrap();
    }
    assert_eq!(counted(&harness), counts(&[("gone", 50 * 51 / 2)]));
    let stage = harness.stage().downcast::<Acl>().unwrap();
    assert_eq!(stage.rule_set.as_ref().unwrap().hits.len(), 1);
}
