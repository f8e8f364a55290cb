//! The tables of the book, held to the code: what they list is all there is, and what they name is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use dataplane::provider::soft::{GeneratorSpec, LinkSpec, LoopbackLink, Profile, SoftDevice, SoftSpec};
use dataplane::provider::{Capability, Device, EventKind, PollFields, WcStatus};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn page(name: &str) -> String {
    let path = Path::new(CRATE).join("../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of a table, without its head.
type Table = Vec<Vec<String>>;

/// The tables of a page, each with the heading that it is under.
fn tables(page: &str) -> Vec<(String, Table)> {
    let mut found: Vec<(String, Table)> = Vec::new();
    let (mut heading, mut inside) = (String::new(), false);
    for line in page.lines() {
        if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim().to_owned();
        }
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            // A row that is none, as one with an empty cell at its end, must not end the table unseen.
            assert!(!line.starts_with('|'), "`{line}` is no row");
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

/// The table under a heading whose first row begins so.
fn table(page: &str, heading: &str, first: &str) -> Table {
    let of_heading = |(title, table): &(String, Table)| title == heading && table[0][0] == first;
    let found = tables(page).into_iter().find(of_heading);
    found.unwrap_or_else(|| panic!("no table that begins with {first} under `{heading}`")).1
}

/// The code in a text.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_status_is_told_as_the_code_tells_it() {
    let rows: Vec<Vec<String>> = table(&page("verbs.md"), "Statuses", "0")
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
fn every_event_and_every_capability_is_told() {
    let verbs = page("verbs.md");
    let first = |table: Table| -> Vec<String> { table.into_iter().map(|row| row[0].clone()).collect() };
    let events: Vec<String> = EventKind::NAMED.iter().map(|event| format!("`{event}`")).collect();
    assert_eq!(first(table(&verbs, "Asynchronous events", "`IBV_EVENT_CQ_ERR`")), events);
    let told = table(&verbs, "What a device may have", "`raw_packet`");
    let capabilities: Vec<String> = Capability::ALL.iter().map(|capability| format!("`{capability}`")).collect();
    assert_eq!(first(told.clone()), capabilities);
    // What the software device has, it is asked itself.
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
    for (row, capability) in told.iter().zip(Capability::ALL) {
        let has = match devices.each_ref().map(|has| has.contains(&capability)) {
            [true, true, true] => "yes",
            [true, true, false] => "on `loopback`",
            [true, false, true] => "profile `spec`",
            [false, false, false] => "no",
            other => panic!("{capability}: no word for {other:?}"),
        };
        assert_eq!(row[2], has, "{capability}");
    }
}

/// The config reference is made of the code, so it knows the keys and their defaults.
#[test]
fn every_parameter_of_a_connection_is_told_with_its_default() {
    let reference = page("config-reference.md");
    let mut keys: BTreeMap<String, String> = table(&reference, "`connection` of a port", "`access`")
        .into_iter()
        .map(|row| (row[0].clone(), row[2].clone()))
        .collect();
    keys.insert("`device_port`".to_owned(), "`1`".to_owned());
    let told = table(&page("verbs.md"), "Parameters of a connection", "`listen`");
    let names: BTreeSet<&String> = told.iter().map(|row| &row[0]).collect();
    assert_eq!(names, keys.keys().collect());
    for row in &told {
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        let default = &keys[&row[0]];
        assert!(default == "–" || *default == row[4], "{}: {} and not {default}", row[0], row[4]);
    }
}

/// What a file of Rust defines.
#[derive(Default)]
struct Source {
    path: PathBuf,
    /// Functions, constants and types.
    items: BTreeSet<String>,
    /// Functions, constants, fields and variants.
    members: BTreeSet<String>,
    /// It has tests inside.
    tests: bool,
    /// It has the macro that enums of numbers are made by: what that gives to each of them is here.
    gives: bool,
}

impl Source {
    fn new(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let mut source = Self {
            path,
            tests: text.contains("mod tests {"),
            gives: text.contains("macro_rules! codes"),
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

    /// The crate's files, its tests among them.
    fn all() -> Vec<Self> {
        let mut folders = vec![Path::new(CRATE).join("src"), Path::new(CRATE).join("tests")];
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

/// Looks up a path of modules, an item, and a member of it.
fn look_up(path: &str, sources: &[Source]) -> Result<(), String> {
    let mut rest: Vec<&str> = path.split("::").collect();
    let root = if rest[0] == "tests" { rest.remove(0) } else { "src" };
    let mut place = Path::new(CRATE).join(root);
    let mut found: Vec<&Source> = Vec::new();
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
    // A module of tests may be in the file itself.
    if rest.first() == Some(&"tests") {
        found.retain(|source| source.tests);
        rest.remove(0);
    }
    let mut of_item = found.iter().filter(|source| rest.first().is_some_and(|item| source.items.contains(*item)));
    let there = match rest[..] {
        [_] => of_item.next().is_some(),
        [item, member] => {
            let near = |source: &&&Source| source.items.contains(item) || source.gives;
            of_item.next().is_some() && found.iter().filter(near).any(|source| source.members.contains(member))
        }
        _ => false,
    };
    if there { Ok(()) } else { Err(format!("`{path}` is not there")) }
}

#[test]
fn every_name_has_its_place_and_every_place_is_there() {
    let coverage = page("coverage.md");
    let (tables, sources) = (tables(&coverage), Source::all());
    let rows: usize = tables.iter().map(|(_, table)| table.len()).sum();
    assert!(rows > 120, "{rows} rows");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (heading, table) in &tables {
        for row in table {
            let empty = |cell: &String| cell.is_empty() || cell == "–" || cell == "-";
            if row.iter().any(empty) || code(&row[2]).next().is_none() {
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
    let fields = PollFields::all().iter_names().map(|(name, _)| format!("`provider::PollFields::{name}`"));
    let untold = statuses.chain(fields).filter(|name| !coverage.contains(name));
    wrong.extend(untold.map(|name| format!("{name} is not told of")));
    assert!(wrong.is_empty(), "{} mistakes in coverage.md:\n{}", wrong.len(), wrong.join("\n"));
}

/// The guide names what it speaks of as `Type::member`.
#[test]
fn what_the_guide_names_is_there() {
    let sources = Source::all();
    let guide = page("verbs.md");
    // A block of text is between three marks, which are odd in number.
    let prose: String = guide.lines().filter(|line| !line.starts_with("```")).collect::<Vec<_>>().join("\n");
    let named: BTreeSet<&str> = code(&prose)
        .filter(|it| it.contains("::") && it.starts_with(char::is_uppercase))
        .map(|it| it.split('(').next().unwrap())
        .collect();
    assert!(named.len() > 20, "{named:?}");
    let wrong: Vec<String> =
        named.iter().filter_map(|it| look_up(&format!("provider::{it}"), &sources).err()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What is not there is noticed: or the test above proves nothing.
#[test]
fn a_place_that_is_not_there_is_noticed() {
    let sources = Source::all();
    for path in [
        "provider::Completion::byte_len",
        "provider::WcStatus::LocLenErr",
        "provider::WcStatus::NAMED",
        "provider::PollFields::CVLAN",
        "lane::in_flight::InFlight::reclaim",
        "provider::code::tests::conversions_are_total",
        "tests::docs::a_place_that_is_not_there_is_noticed",
    ] {
        assert_eq!(look_up(path, &sources), Ok(()));
    }
    for path in [
        "provider",
        "nothing::Completion",
        "provider::Completions::byte_length",
        "provider::Completion::length",
        "provider::Completion::Values",
        "provider::WcStatus::LocLen",
        "provider::NoCompletion",
        "provider::code::tests::conversions_are_partial",
        "tests::nothing::here",
    ] {
        assert!(look_up(path, &sources).is_err(), "{path}");
    }
}
