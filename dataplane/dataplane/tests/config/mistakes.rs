//! Tests that every set of independent mistakes is reported completely, each mistake at its line and column.

use dataplane::config::{Diagnostics, Source};
use dataplane::runtime::assemble_offline;
use dataplane::stages;
use proptest::prelude::*;

/// The position at which a mistake is reported.
enum At {
    /// The first occurrence of this text in the line with the mistake.
    Text(&'static str),
    /// For a missing key: the nearest table header with this text above the line of the key.
    Above(&'static str),
}

use At::{Above, Text};

/// A line with a mistake, the position of the mistake in this line, and the message. The line is empty if a key is
/// missing.
type Wrong = (&'static str, At, &'static str);

/// The correct lines of a config. Each line has a list of lines with a mistake that can replace the correct line.
const LINES: &[(&str, &[Wrong])] = &[
    ("[runtime]", &[]),
    (
        "burst = 32",
        &[
            ("burst = \"many\"", Text("\"many\""), "expected a whole number from 1 to 256, found the string \"many\""),
            ("burst = 0", Text("0"), "expected a whole number from 1 to 256, found 0"),
            ("brst = 32", Text("brst"), "unknown key `brst`"),
        ],
    ),
    ("idle = \"spin\"", &[("idle = \"spim\"", Text("\"spim\""), "unknown value `spim`")]),
    (
        "strict = false",
        &[("strict = 1", Text("1"), "expected true or false, found 1"), ("x = 1", Text("x"), "unknown key `x`")],
    ),
    ("[[port]]", &[]),
    ("name = \"wan\"", &[("", Above("[[port]]"), "the key `name` is missing")]),
    (
        "device = \"soft\"",
        &[
            ("", Above("[[port]]"), "the key `device` is missing"),
            ("device = [1]", Text("[1]"), "expected a string, found an array"),
        ],
    ),
    (
        "mtu = 1500",
        &[
            ("mtu = \"9x\"", Text("\"9x\""), "`9x` is not a number of bytes"),
            ("mtuu = 1500", Text("mtuu"), "unknown key `mtuu`"),
        ],
    ),
    (
        "faults = { loss = 0.5 }",
        &[("faults = { loss = 2 }", Text("2"), "expected a probability from 0.0 to 1.0, found 2")],
    ),
    (
        "link = { kind = \"generator\", size = 64, sizes = [] }",
        &[
            ("link = { kind = \"generator\", sise = 64 }", Text("sise"), "unknown key `sise`"),
            ("link = { size = 64 }", Text("{ size"), "the key `kind` is missing"),
            ("link = { kind = \"rope\" }", Text("\"rope\""), "unknown value `rope`"),
            ("link = { kind = 7 }", Text("7"), "`kind` must be a string"),
            ("link = { kind = \"packet\", ring = 64 }", Text("{ kind"), "the key `interface` is missing"),
            (
                "link = { kind = \"generator\", sizes = [{ weight = 2 }] }",
                Text("{ weight"),
                "the key `size` is missing",
            ),
        ],
    ),
    ("[pipeline]", &[]),
    ("input = [\"wan\"]", &[("input = [7]", Text("7"), "expected a string, found 7")]),
    ("[[pipeline.stage]]", &[]),
    ("use = \"parse\"", &[]),
    ("[[pipeline.stage]]", &[]),
    ("name = \"edge\"", &[("name = 1.5", Text("1.5"), "expected a string, found 1.5")]),
    ("use = \"acl\"", &[]),
    (
        "default = \"deny\"",
        &[
            ("", Above("[[pipeline.stage]]"), "the key `default` is missing"),
            ("default = \"dany\"", Text("\"dany\""), "unknown value `dany`"),
        ],
    ),
    ("fragments = \"deny\"", &[("fragmets = \"deny\"", Text("fragmets"), "unknown key `fragmets`")]),
    ("rules = [", &[]),
    (
        "{ action = \"permit\", src = \"10.0.0.0/8\" },",
        &[
            ("{ src = \"10.0.0.0/8\" },", Text("{ src"), "the key `action` is missing"),
            ("{ action = \"permit\", src = 10 },", Text("10"), "expected a string, found 10"),
            ("{ action = \"permit\", sorc = \"::/0\" },", Text("sorc"), "unknown key `sorc`"),
        ],
    ),
    ("{ action = \"deny\" },", &[("{ action = 2 },", Text("2"), "")]),
    ("]", &[]),
    ("[[pipeline.stage]]", &[]),
    ("use = \"limit\"", &[]),
    ("packets_per_second = 1000", &[("packets_per_second = \"1x\"", Text("\"1x\""), "`1x` is not a packet rate")]),
    ("burst = 10", &[("", Above("[[pipeline.stage]]"), "the key `burst` is missing")]),
    ("red = \"drop\"", &[("red = true", Text("true"), "")]),
    ("[[pipeline.stage]]", &[]),
    ("use = \"drop\"", &[("", Above("[[pipeline.stage]]"), "the key `use` is missing")]),
];

fn check(text: &str) -> Vec<(usize, usize, String)> {
    let source = Source::new("x.toml", text, &[]);
    let mut diagnostics = Diagnostics::new(&source);
    assemble_offline(&source, &stages::registry(), &mut diagnostics).unwrap();
    diagnostics.records().into_iter().map(|record| (record.line, record.column, record.message)).collect()
}

/// Builds a config with one choice for each line: 0 selects the correct line, and n selects the n-th wrong line. Also
/// returns the expected mistakes.
fn config(choices: &[usize]) -> (String, Vec<(usize, usize, &'static str)>) {
    let mut lines: Vec<&str> = Vec::new();
    let mut expected = Vec::new();
    for ((right, wrong), choice) in LINES.iter().zip(choices) {
        let number = lines.len() + 1;
        let Some((line, at, message)) = choice.checked_sub(1).map(|mistake| &wrong[mistake]) else {
            lines.push(right);
            continue;
        };
        lines.push(line);
        expected.push(match at {
            Text(text) => (number, line.find(text).unwrap() + 1, *message),
            Above(text) => {
                let above = lines.iter().rposition(|line| line.contains(text)).unwrap();
                (above + 1, lines[above].find(text).unwrap() + 1, *message)
            }
        });
    }
    (lines.join("\n"), expected)
}

/// If a port has no readable name, this port may be the port that a stage names. So the reference in the stage is not
/// reported as a mistake.
#[test]
fn reference_to_an_unreadable_port_is_not_reported() {
    let text = |port: &str| {
        format!("{port}\n[pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"wan\"\n")
    };
    for (port, message) in [
        ("port = [7]", "entry 0 of `port` must be a table"),
        ("[[port]]\nname = 7\ndevice = \"soft\"\nlink = { kind = \"loopback\" }", "expected a string, found 7"),
    ] {
        let messages: Vec<String> = check(&text(port)).into_iter().map(|mistake| mistake.2).collect();
        assert_eq!(messages, [message]);
    }
}

/// A mistake in another key of a port does not hide the addresses of the port.
#[test]
fn port_with_a_mistake_keeps_its_addresses() {
    let text = "[[port]]\nname = \"wan\"\ndevice = \"soft\"\naddresses = [\"192.0.2.1/24\"]\nlink = { kind = \"rope\" }\n\
                [pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"arp\"\nnext = \"drop\"\n";
    // The stage `arp` needs the address of the port, so it must not report that no port has an address.
    assert_eq!(check(text), [(5, 17, "unknown value `rope`".to_owned())]);
    let wrong = text.replace("2.1/24", "2.1/99");
    let mistakes =
        [(4, 14, "`192.0.2.1/99` is not an IP address".to_owned()), (5, 17, "unknown value `rope`".to_owned())];
    assert_eq!(check(&wrong), mistakes);
    let none = text.replace("addresses = [\"192.0.2.1/24\"]", "addresses = []");
    let lacking = "stage `arp`: no port has an address, so the stage cannot answer".to_owned();
    assert_eq!(check(&none), [(5, 17, "unknown value `rope`".to_owned()), (8, 1, lacking)]);
}

#[test]
fn repeated_section_is_one_mistake() {
    let port = "[port]\nname = \"wan\"\ndevice = \"soft\"\nlink = { kind = \"generator\" }\n";
    let rest = "[pipeline]\ninput = [\"wan\"]\n[[pipeline.stage]]\nuse = \"drop\"\n";
    assert_eq!(check(&format!("{port}{port}{rest}")), [(5, 2, "the section [port] occurs twice".to_owned())]);
    let runtime = "[runtime]\nburst = 32\n";
    let port = port.replace("[port]", "[[port]]");
    let text = format!("{runtime}{port}{runtime}burts = 1\n{rest}");
    assert_eq!(check(&text), [(7, 2, "the section [runtime] occurs twice".to_owned())]);
    // A key that occurs twice in one section is still reported with its name.
    let text = format!("{port}{rest}").replace("device", "name = 1\ndevice");
    assert_eq!(check(&text), [(3, 1, "the key `name` is set twice".to_owned())]);
}

/// A repeated section or key is one mistake on the last line too, with and without a line break at the end of the file.
#[test]
fn repetition_in_the_last_line_is_one_mistake() {
    for end in ["\n", ""] {
        let repeated = |text: &str| check(&format!("{text}{end}")).into_iter().next();
        let key = repeated("[runtime]\nburst = 32\nburst = 33");
        assert_eq!(key, Some((3, 1, "the key `burst` is set twice".to_owned())), "{end:?}");
        let section = repeated("[runtime]\nburst = 32\n[runtime]");
        assert_eq!(section, Some((3, 2, "the section [runtime] occurs twice".to_owned())), "{end:?}");
    }
}

/// The message for an unknown port shortens a long name. If no port has a similar name, the help lists the ports.
#[test]
fn long_name_of_an_unknown_port_is_shortened() {
    let text = "[[port]]\nname = \"wan\"\ndevice = \"soft\"\nlink = { kind = \"loopback\" }\n[pipeline]\ninput = \
                [\"wan\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"NAME\"\n";
    let source = Source::new("x.toml", text.replace("NAME", &"g".repeat(900_000)), &[]);
    let mut diagnostics = Diagnostics::new(&source);
    assemble_offline(&source, &stages::registry(), &mut diagnostics).unwrap();
    let mistake = diagnostics.records().remove(0);
    assert_eq!(mistake.message, format!("stage `tx`: there is no port `{}…`", "g".repeat(64)));
    assert_eq!(mistake.help.as_deref(), Some("the ports are wan"));
}

#[test]
fn too_deep_nesting_is_reported_with_help() {
    // The parser accepts this text: it has at most 80 open brackets, and each key has at most 80 parts.
    let keys = "a.".repeat(78) + "a";
    let mixed =
        format!("[[pipeline.stage]]\nuse = \"count\"\n{}a = 1{}\n", format!("{keys} = {{ ").repeat(78), "}".repeat(78));
    for text in [
        format!("x = {}{}\n", "[".repeat(1000), "]".repeat(1000)),
        format!("{}b = 1\n", "a.".repeat(1000)),
        format!("[{}b]\nc = 1\n", "a.".repeat(60)),
        mixed.clone(),
        // Commas and wrong brackets do not reset the depth.
        mixed.replace(" = {", " , = {"),
        mixed.replace("{", "{ ]"),
    ] {
        let source = Source::new("x.toml", text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        assemble_offline(&source, &stages::registry(), &mut diagnostics).unwrap();
        let nested = |message: &str| message == "the arrays and tables are nested too deeply";
        let mistake = diagnostics.records().into_iter().find(|mistake| nested(&mistake.message));
        assert!(mistake.is_some_and(|mistake| mistake.help.is_some()), "{}", diagnostics.render(false));
    }
}

#[test]
fn flat_text_with_many_dots_is_not_nested_too_deeply() {
    let sections = "[a.b.c]\nx.y = 1.5\nz = [[1.5, 2.5], { p.q.r = 1, s = { t.u = 2.5 } }]\n".repeat(100);
    let rates = "r = [0.1, 0.2, 0.3,\n0.4]\n";
    let found = check(&format!("{rates}{sections}"));
    assert!(found.iter().all(|(_, _, message)| !message.contains("nested")), "{found:?}");
}

/// Without a bound on the time for each error, this test takes minutes.
#[test]
fn many_mistakes_on_one_line_or_between_many_keys_are_read_in_linear_time() {
    let found = check(&format!("x = [{}]", "=".repeat(200_000)));
    assert_eq!(found.iter().map(|mistake| (mistake.0, mistake.1)).collect::<Vec<_>>(), [(1, 6)]);
    // A bracket that is never closed, before and after the other mistakes of its line.
    let found = check(&format!("x = [{}", "=".repeat(200_000)));
    assert_eq!(found, [(1, 5, "this `[` is never closed".to_owned())]);
    let found = check(&format!("x = [{}] [\ny = 1\n", "=".repeat(200_000)));
    assert!(found.len() <= 2, "{found:?}");
    let keys: String = (0..20_000).map(|number| format!("a{number}=1\n=\n")).collect();
    let found = check(&keys);
    assert_eq!(found.len(), 201);
}

#[test]
fn large_text_is_reported_up_to_its_first_syntax_mistake() {
    let comment = "# comment\n".repeat(30_000);
    let found = check(&format!("{comment}x =\n[[port]]\ny =\n"));
    assert_eq!(found, [(30_001, 4, "there is no value after `=`".to_owned())]);
    let found = check(&format!("{comment}x = [\n[[port]]\ny =\n"));
    assert_eq!(found, [(30_001, 5, "this `[` is never closed".to_owned())]);
    let found = check(&format!("{comment}x = [{}]", "=".repeat(2 << 20)));
    assert_eq!(found.iter().map(|mistake| (mistake.0, mistake.1)).collect::<Vec<_>>(), [(30_001, 6)]);
}

#[test]
fn config_without_mistakes_is_accepted() {
    assert_eq!(check(&config(&vec![0; LINES.len()]).0), []);
}

#[test]
fn single_mistake_is_reported() {
    for (at, (_, wrong)) in LINES.iter().enumerate() {
        for mistake in 1..=wrong.len() {
            let mut choices = vec![0; LINES.len()];
            choices[at] = mistake;
            let (text, expected) = config(&choices);
            let found = check(&text);
            let (line, column, message) = expected[0];
            assert!(
                found.iter().any(|it| (it.0, it.1) == (line, column) && it.2.contains(message)),
                "{message}: {found:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn all_mistakes_are_reported_together(
        choices in LINES.iter().map(|(_, wrong)| 0..=wrong.len()).collect::<Vec<_>>(),
    ) {
        let (text, expected) = config(&choices);
        let found = check(&text);
        for (line, column, message) in &expected {
            let is_found = found.iter().any(|it| (it.0, it.1) == (*line, *column) && it.2.contains(message));
            prop_assert!(is_found, "{}:{}: {} is not in {:#?}\n{}", line, column, message, found, text);
        }
        // A stage of an unknown kind or without a name causes further mistakes. These further mistakes are not about
        // unknown or missing keys, so the number of mistakes about such keys is exact.
        let keys = |message: &str| message.contains("unknown key") || message.contains("is missing");
        let found = found.iter().filter(|it| keys(&it.2)).count();
        prop_assert_eq!(found, expected.iter().filter(|it| keys(it.2)).count(), "{}", text);
    }
}
