//! Compares the pages of `docs/` with the code. Tables must be complete: for example, the table of events must list
//! every event. Every path such as `Type::member` in `coverage.md` and in the verbs guide must exist in the code. The
//! examples of the config reference must be valid configs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use dataplane::config::{self, Diagnostics};
use dataplane::pipeline::Registry;
use dataplane::runtime::assemble_offline;
use dataplane::soft::{GeneratorSpec, LinkSpec, LoopbackLink, Profile, SoftDevice, SoftSpec};
use dataplane::verbs::{Capability, Device, EventKind, PollFields, WcStatus};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn page(name: &str) -> String {
    let path = Path::new(CRATE).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of a Markdown table, without the header row.
type Table = Vec<Vec<String>>;

/// Returns the tables of a page, each with the nearest heading above the table.
fn tables(page: &str) -> Vec<(String, Table)> {
    let mut found: Vec<(String, Table)> = Vec::new();
    let (mut heading, mut inside, mut code) = (String::new(), false, false);
    for line in page.lines() {
        code ^= line.starts_with("```");
        if let Some(title) = line.strip_prefix('#').filter(|_| !code) {
            heading = title.trim_start_matches('#').trim().to_owned();
        }
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            // A malformed row, such as a row with an empty last cell, must not silently end the table.
            assert!(!line.starts_with('|'), "the line `{line}` is not a valid table row");
            inside = false;
            continue;
        };
        let cells: Vec<String> = row.split(" | ").map(|cell| cell.trim().to_owned()).collect();
        if !inside {
            found.push((heading.clone(), Vec::new()));
            inside = true;
        }
        found.last_mut().unwrap().1.push(cells);
    }
    for (heading, table) in &mut found {
        let columns = table[0].len();
        for row in table.iter() {
            assert_eq!(row.len(), columns, "`{heading}`: {row:?}");
        }
        table.drain(..2);
    }
    found
}

/// Returns the table under the heading `heading` whose first cell is `first`.
fn table(page: &str, heading: &str, first: &str) -> Table {
    let of_heading = |(title, table): &(String, Table)| title == heading && table[0][0] == first;
    let found = tables(page).into_iter().find(of_heading);
    found.unwrap_or_else(|| panic!("no table that begins with {first} under `{heading}`")).1
}

/// Returns the code spans (text in back quotes) of a text.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn status_table_matches_the_code() {
    let rows: Vec<Vec<String>> = table(&page("verbs/statuses.md"), "All statuses", "0")
        .into_iter()
        .map(|row| {
            assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
            row[..4].to_vec()
        })
        .collect();
    let named: Vec<Vec<String>> = WcStatus::NAMED
        .iter()
        .map(|status| {
            let name = format!("`{status}`");
            vec![status.raw().to_string(), name, status.description().to_owned(), status.likely_cause().to_owned()]
        })
        .collect();
    assert_eq!(rows, named);
}

#[test]
fn tables_list_every_event_and_every_capability() {
    let first = |table: Table| -> Vec<String> { table.into_iter().map(|row| row[0].clone()).collect() };
    let events: Vec<String> = EventKind::NAMED.iter().map(|event| format!("`{event}`")).collect();
    assert_eq!(first(table(&page("verbs/recovery.md"), "Asynchronous events", "`IBV_EVENT_CQ_ERR`")), events);
    let documented = table(&page("verbs/device-capabilities.md"), "All capabilities", "`raw_packet`");
    let capabilities: Vec<String> = Capability::ALL.iter().map(|capability| format!("`{capability}`")).collect();
    assert_eq!(first(documented.clone()), capabilities);
    // Query the software device for its capabilities.
    let device = |profile, link| {
        let device = SoftDevice::new(SoftSpec { profile, ..SoftSpec::new("s", link) }).unwrap();
        device.capabilities().has.clone()
    };
    let cable = || LinkSpec::Loopback(LoopbackLink::reflect());
    let devices = [
        device(Profile::Spec, cable()),
        device(Profile::Rxe, cable()),
        device(Profile::Spec, LinkSpec::Generator(GeneratorSpec::default())),
    ];
    for (row, capability) in documented.iter().zip(Capability::ALL) {
        let has = match devices.each_ref().map(|has| has.contains(&capability)) {
            [true, true, true] => "yes",
            [true, true, false] => "on `loopback`",
            [true, false, true] => "profile `spec`",
            [false, false, false] => "no",
            other => panic!("{capability}: the table has no word for {other:?}"),
        };
        assert_eq!(row[2], has, "{capability}");
    }
}

/// Returns the example configs (`toml` blocks) of a page.
fn examples(page: &str) -> Vec<toml::Table> {
    let blocks = page.split("\n```toml\n").skip(1);
    let text = blocks.map(|rest| rest.split_once("\n```").expect("the block has an end").0);
    text.map(|text| text.parse().unwrap_or_else(|error| panic!("{error}:\n{text}"))).collect()
}

/// The ports and stages that `complete` adds to examples.
const REST: &str = r#"
port = [
    { name = "wan", device = "host", mtu = 1500, link = { kind = "packet", interface = "lo" }, addresses = ["192.0.2.1/24"] },
    { name = "lan", device = "soft", link = { kind = "loopback" } },
    { name = "left", device = "soft", link = { kind = "loopback" } },
    { name = "right", device = "soft", link = { kind = "loopback" } },
]
first = { name = "first", use = "parse" }
last = { name = "last", use = "drop" }
"#;

/// Returns the config of an example, completed with the ports, inputs and stages that the example leaves out.
fn complete(mut example: toml::Table, registry: &Registry) -> toml::Table {
    let rest: toml::Table = REST.parse().unwrap();
    let ports = example.entry("port").or_insert_with(|| rest["port"].clone());
    let names: Vec<toml::Value> = ports.as_array().unwrap().iter().map(|port| port["name"].clone()).collect();
    let pipeline = example.entry("pipeline").or_insert(toml::Table::new().into()).as_table_mut().unwrap();
    if !pipeline.contains_key("input") {
        pipeline.insert("input".to_owned(), names.into());
        let stages = pipeline.entry("stage").or_insert(toml::Value::Array(Vec::new())).as_array_mut().unwrap();
        stages.insert(0, rest["first"].clone());
        let last = stages.last().and_then(|stage| registry.get(stage["use"].as_str()?));
        if !last.is_some_and(|kind| kind.info.terminal) {
            stages.push(rest["last"].clone());
        }
    }
    example
}

/// Returns the values at a path of keys. If a value on the path is an array, the path continues in each element.
fn values_at<'a>(value: &'a toml::Value, path: &[&str]) -> Vec<&'a toml::Value> {
    match (value, path) {
        (toml::Value::Array(all), path) => all.iter().flat_map(|value| values_at(value, path)).collect(),
        (value, []) => vec![value],
        (value, [key, rest @ ..]) => value.get(key).map_or(Vec::new(), |value| values_at(value, rest)),
    }
}

/// Returns `true` if an example sets the key `key` in the config table that `heading` names, such as "`[port.link]`
/// with `kind = "tap"`".
fn sets(example: &toml::Table, heading: &str, key: &str) -> bool {
    let mut parts = code(heading);
    let path: Vec<&str> = parts.next().unwrap().trim_matches(['[', ']']).split('.').collect();
    let condition = parts.next().and_then(|condition| condition.split_once(" = "));
    let keys: Vec<&str> = key.split("[].").collect();
    let example = toml::Value::Table(example.clone());
    let is_meant = |table: &&toml::Value| match condition {
        Some((key, value)) => table.get(key).is_some_and(|given| given.as_str() == Some(value.trim_matches('"'))),
        None => true,
    };
    values_at(&example, &path).into_iter().filter(is_meant).any(|table| !values_at(table, &keys).is_empty())
}

#[test]
fn every_key_has_an_example_that_loads() {
    let folder = Path::new(CRATE).join("../../docs/config");
    let files = tempfile::tempdir().unwrap();
    let captures = Path::new(CRATE).join("../testing/captures");
    fs::copy(captures.join("mixed.pcap"), files.path().join("traffic.pcap")).unwrap();
    fs::write(files.path().join("firewall.rules"), "rules = []\n").unwrap();
    fs::write(files.path().join("routes.txt"), "198.51.100.0/24 port lan\n").unwrap();
    let summary = page("SUMMARY.md");
    let index = page("config-reference.md");
    let registry = dataplane::stages::registry();
    let (mut wrong, mut keys) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("config/{}", path.file_name().unwrap().to_str().unwrap());
        let text = page(&name);
        for (list, listed) in [("SUMMARY.md", &summary), ("config-reference.md", &index)] {
            if !listed.contains(&format!("]({name})")) {
                wrong.push(format!("{name} is not listed in {list}"));
            }
        }
        let examples = examples(&text);
        for example in &examples {
            let text = complete(example.clone(), &registry).to_string();
            let source = config::Source::new(files.path().join("example.toml"), text.as_str(), &[]);
            let mut diagnostics = Diagnostics::new(&source);
            if assemble_offline(&source, &registry, &mut diagnostics).unwrap().is_none() {
                wrong.push(format!("{name}: an example is wrong:\n{}", diagnostics.render(false)));
            }
        }
        let tables = tables(&text).into_iter().filter(|(_, table)| table[0].len() == 4);
        for (heading, row) in
            tables.flat_map(|(heading, table)| table.into_iter().map(move |row| (heading.clone(), row)))
        {
            keys += 1;
            let key = row[0].trim_matches('`');
            if !examples.iter().any(|example| sets(example, &heading, key)) {
                wrong.push(format!("{name}: no example for `{key}` of {heading}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} mistakes in the examples:\n{}", wrong.len(), wrong.join("\n"));
    assert!(keys > 200, "{keys} keys");
}

/// Compares the table in `verbs/connection.md` with the config reference, which is generated from the code and has all
/// keys and defaults.
#[test]
fn connection_table_lists_every_key_with_its_default() {
    let reference = page("config/connection.md");
    let mut keys: BTreeMap<String, String> = table(&reference, "`[port.connection]`", "`access`")
        .into_iter()
        .map(|row| (row[0].clone(), row[2].clone()))
        .collect();
    keys.insert("`device_port`".to_owned(), "`1`".to_owned());
    let documented = table(&page("verbs/connection.md"), "All parameters", "`listen`");
    let names: BTreeSet<&String> = documented.iter().map(|row| &row[0]).collect();
    assert_eq!(names, keys.keys().collect());
    for row in &documented {
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        let default = &keys[&row[0]];
        assert!(default == "–" || *default == row[4], "{}: the default is {default}, not {}", row[0], row[4]);
    }
}

/// The names that a Rust source file defines.
#[derive(Default)]
struct Source {
    path: PathBuf,
    /// The names of functions, constants and types.
    items: BTreeSet<String>,
    /// The names of functions, constants, fields and variants.
    members: BTreeSet<String>,
    /// Whether the file contains a module `tests`.
    tests: bool,
    /// Whether the file defines the macro `codes!`, which defines enums of numbers. Every enum that the macro defines
    /// has the functions and constants of the macro as members.
    defines_codes: bool,
}

impl Source {
    fn new(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let mut source = Self {
            path,
            tests: text.contains("mod tests {"),
            defines_codes: text.contains("macro_rules! codes"),
            ..Self::default()
        };
        let makes_codes = text.contains("codes! {");
        for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let words: Vec<&str> = line.split(|c: char| !is_word(c)).collect();
            for pair in words.windows(2).filter(|pair| !pair[1].is_empty()) {
                if ["fn", "const", "static"].contains(&pair[0]) {
                    source.members.insert(pair[1].to_owned());
                }
                if ["fn", "const", "static", "struct", "enum", "trait", "type"].contains(&pair[0]) {
                    source.items.insert(pair[1].to_owned());
                }
            }
            let rest = line.strip_prefix("pub").and_then(|rest| rest.split_once(' ')).map_or(line, |(_, rest)| rest);
            let (name, after) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
            let after = after.trim_start();
            let variant = name.starts_with(char::is_uppercase) && after.starts_with([',', '=', '{', '(']);
            if after.starts_with(':') || variant {
                source.members.insert(name.to_owned());
            }
            if makes_codes && variant && after.starts_with('{') {
                source.items.insert(name.to_owned());
            }
        }
        source
    }

    /// Returns the source files of all crates, including their tests.
    fn all() -> Vec<Self> {
        let mut folders = vec![crates()];
        let mut all = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    all.push(Self::new(path));
                }
            }
        }
        all
    }
}

/// Returns the folder that contains the crates.
fn crates() -> PathBuf {
    Path::new(CRATE).parent().unwrap().to_owned()
}

/// The starting points of lookups: the first name of a path such as `soft::SoftDevice`, and the folder that this name
/// stands for. The first name is empty for modules of the crates `dataplane-core` and `dataplane`, because their paths
/// have no crate name.
const ROOTS: [(&str, &str); 8] = [
    ("soft", "soft/src"),
    ("ibverbs", "ibverbs/src"),
    ("tables", "tables/src"),
    ("stages", "stages/src"),
    ("tests", "dataplane/tests"),
    ("tests", "core/tests"),
    ("", "core/src"),
    ("", "dataplane/src"),
];

/// Looks up a path that consists of modules, an item, and optionally a member of the item.
fn look_up(path: &str, sources: &[Source]) -> Result<(), String> {
    let names: Vec<&str> = path.split("::").collect();
    let is_there = |&(name, folder): &(&str, &str)| match name {
        "" => look_up_in(crates().join(folder), &names, Vec::new(), sources),
        name if name == names[0] => {
            let folder = crates().join(folder);
            let inside = sources.iter().filter(|source| source.path.starts_with(&folder)).collect();
            look_up_in(folder, &names[1..], inside, sources)
        }
        _ => false,
    };
    if ROOTS.iter().any(is_there) { Ok(()) } else { Err(format!("`{path}` does not exist")) }
}

fn look_up_in<'a>(mut place: PathBuf, names: &[&str], mut found: Vec<&'a Source>, sources: &'a [Source]) -> bool {
    let mut rest = names.to_vec();
    while let Some(module) = rest.first() {
        let (folder, file) = (place.join(module), place.join(format!("{module}.rs")));
        let is_inside = |source: &&Source| source.path.starts_with(&folder) || source.path == file;
        let inside: Vec<&Source> = sources.iter().filter(is_inside).collect();
        if inside.is_empty() {
            break;
        }
        (place, found) = (folder, inside);
        rest.remove(0);
    }
    // The module `tests` may be inside the file.
    if rest.first() == Some(&"tests") {
        found.retain(|source| source.tests);
        rest.remove(0);
    }
    let mut of_item = found.iter().filter(|source| rest.first().is_some_and(|item| source.items.contains(*item)));
    match rest[..] {
        [_] => of_item.next().is_some(),
        [item, member] => {
            let near = |source: &&&Source| source.items.contains(item) || source.defines_codes;
            of_item.next().is_some() && found.iter().filter(near).any(|source| source.members.contains(member))
        }
        _ => false,
    }
}

#[test]
fn coverage_page_is_complete_and_names_only_existing_items() {
    let coverage = page("coverage.md");
    let (tables, sources) = (tables(&coverage), Source::all());
    let rows: usize = tables.iter().map(|(_, table)| table.len()).sum();
    assert!(rows > 120, "{rows} rows");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (heading, table) in &tables {
        for row in table {
            let empty = |cell: &String| cell.is_empty() || cell == "–" || cell == "-";
            if row[..3].iter().any(empty) || code(&row[2]).next().is_none() {
                wrong.push(format!("`{heading}`: an empty cell: {row:?}"));
            }
        }
    }
    let prose: String = coverage.lines().filter(|line| !line.starts_with('|')).collect::<Vec<_>>().join("\n");
    let cells = tables.iter().flat_map(|(_, table)| table.iter().flatten());
    for path in cells.map(String::as_str).chain([prose.as_str()]).flat_map(code).filter(|it| it.contains("::")) {
        seen += 1;
        wrong.extend(look_up(path, &sources).err());
    }
    assert!(seen > 250, "{seen} paths");
    let statuses = WcStatus::NAMED.iter().map(|status| format!("`{status}`"));
    let fields = PollFields::all().iter_names().map(|(name, _)| format!("`verbs::PollFields::{name}`"));
    let undocumented = statuses.chain(fields).filter(|name| !coverage.contains(name));
    wrong.extend(undocumented.map(|name| format!("{name} is not mentioned")));
    assert!(wrong.is_empty(), "{} mistakes in coverage.md:\n{}", wrong.len(), wrong.join("\n"));
}

/// Checks that every name of the form `Type::member` in `verbs.md` and the pages below `verbs/` exists in the code.
#[test]
fn every_name_in_the_verbs_guide_exists() {
    let sources = Source::all();
    let folder = Path::new(CRATE).join("../../docs/verbs");
    let mut guide = page("verbs.md");
    for entry in fs::read_dir(folder).unwrap() {
        guide += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    // Remove the lines with three back quotes, because their odd number of back quotes would confuse `code`.
    let prose: String = guide.lines().filter(|line| !line.starts_with("```")).collect::<Vec<_>>().join("\n");
    let named: BTreeSet<&str> = code(&prose)
        .filter(|it| it.contains("::") && it.starts_with(char::is_uppercase))
        .map(|it| it.split('(').next().unwrap())
        .collect();
    assert!(named.len() > 20, "{named:?}");
    let is_in = |root: &str, it: &str| look_up(&format!("{root}::{it}"), &sources).is_ok();
    let is_known = |it: &str| ["verbs", "connect", "soft", "ibverbs"].iter().any(|root| is_in(root, it));
    let wrong: Vec<&&str> = named.iter().filter(|it| !is_known(it)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Checks that `look_up` finds existing names and rejects missing names. If `look_up` accepted every name, the other
/// tests of this file would prove nothing.
#[test]
fn look_up_rejects_missing_names() {
    let sources = Source::all();
    for path in [
        "verbs::Completion::byte_len",
        "verbs::WcStatus::LocLenErr",
        "verbs::WcStatus::NAMED",
        "verbs::PollFields::CVLAN",
        "lane::in_flight::InFlight::reclaim",
        "verbs::code::tests::conversions_round_trip_for_every_value",
        "tests::docs::look_up_rejects_missing_names",
    ] {
        assert_eq!(look_up(path, &sources), Ok(()));
    }
    for path in [
        "verbs",
        "nothing::Completion",
        "verbs::Completions::byte_length",
        "verbs::Completion::length",
        "verbs::Completion::Values",
        "verbs::WcStatus::LocLen",
        "verbs::NoCompletion",
        "verbs::code::tests::conversions_are_partial",
        "tests::nothing::here",
    ] {
        assert!(look_up(path, &sources).is_err(), "{path}");
    }
}
