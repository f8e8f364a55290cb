//! The architecture, held to what the crate's documentation says: who may use whom, and where `unsafe` may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Modules that stand beside the layers.
const BESIDE: [&str; 1] = ["prelude"];
/// Declares methods that are unsafe to call, and calls none.
const DECLARES_UNSAFE: &str = "provider/mod.rs";
/// Modules in which `unsafe` may be allowed.
const MAY_BE_UNSAFE: [&str; 4] = ["mem", "lane", "provider/verbs", "provider/soft"];

/// The table of the crate's documentation: every module, and those that it may use.
fn layers() -> BTreeMap<String, BTreeSet<String>> {
    let root = fs::read_to_string(format!("{SOURCES}/lib.rs")).unwrap();
    let mut layers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in root.lines().filter_map(|line| line.strip_prefix("//! | [`")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = cells[0].trim_end_matches("`]").to_owned();
        let uses = cells[2].trim_end_matches(" |");
        let mut may: BTreeSet<String> = match uses {
            "–" => BTreeSet::new(),
            "all of the above" => layers.keys().cloned().collect(),
            some => some.split(", ").map(str::to_owned).collect(),
        };
        // For every module: its own, and the two that are for all.
        may.extend([name.clone(), "units".to_owned(), "error".to_owned()]);
        layers.insert(name, may);
    }
    layers
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

/// Files that a `#[cfg(test)] mod name;` brings in: what tests name is no arrow.
fn test_files(all: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for path in all {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let parent = path.parent().unwrap();
        let folder = if ["mod", "lib"].contains(&stem) { parent.to_owned() } else { parent.join(stem) };
        let text = fs::read_to_string(path).unwrap();
        for after in text.split("#[cfg(test)]\n").skip(1) {
            if let Some(name) = after.strip_prefix("mod ").and_then(|rest| rest.lines().next()?.strip_suffix(';')) {
                found.insert(folder.join(format!("{name}.rs")));
                found.extend(all.iter().filter(|path| path.starts_with(folder.join(name))).cloned());
            }
        }
    }
    found
}

/// The files of the library that are part of a module, with the module's name.
fn sources() -> Vec<(String, PathBuf)> {
    let root = Path::new(SOURCES);
    let all = files(root);
    let tests = test_files(&all);
    assert!(tests.len() > 5, "the files of tests were not found: {tests:?}");
    all.into_iter()
        .filter(|path| !tests.contains(path))
        .filter_map(|path| {
            let inside = path.strip_prefix(root).unwrap().to_str().unwrap();
            let module = inside.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
            (module != "lib").then_some((module, path))
        })
        .collect()
}

/// Code only: what tests and comments name is no arrow.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The modules that a text names as `crate::module`, also in `use crate::{a::…, b}`.
fn named(text: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut names = BTreeSet::new();
    for after in text.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            None => drop(names.insert(word(after))),
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && c.is_alphabetic() => {
                            names.insert(word(&group[at..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

#[test]
fn every_module_uses_only_those_below_it() {
    let layers = layers();
    assert!(layers.len() >= 14, "the table of lib.rs was not understood: {layers:?}");
    let mut wrong = Vec::new();
    for (module, path) in sources() {
        if BESIDE.contains(&module.as_str()) {
            continue;
        }
        let may = layers.get(&module).unwrap_or_else(|| panic!("`{module}` is not in the table of lib.rs"));
        let names = named(&code(&fs::read_to_string(&path).unwrap()));
        let known = names.iter().filter(|name| layers.contains_key(*name));
        wrong.extend(known.filter(|name| !may.contains(*name)).map(|name| format!("{} uses {name}", path.display())));
    }
    assert!(wrong.is_empty(), "arrows that the table of lib.rs does not have:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_is_allowed_only_where_it_may_be() {
    for (_, path) in sources() {
        let inside = path.strip_prefix(SOURCES).unwrap().to_str().unwrap().to_owned();
        let may = MAY_BE_UNSAFE
            .iter()
            .any(|folder| inside.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/') || rest == ".rs"));
        let text = code(&fs::read_to_string(&path).unwrap());
        if inside == DECLARES_UNSAFE {
            assert!(!text.contains("unsafe {"), "{inside} has unsafe blocks");
            continue;
        }
        assert!(may || !text.contains("unsafe_code"), "{inside} allows unsafe code");
    }
}

#[test]
fn arrows_are_found_in_all_their_forms() {
    let text =
        "use crate::mem::{Batch};\nuse crate::{clock::Stamp, units::{self, Ticks}, error};\nfn f() -> crate::lane::X";
    let names: Vec<String> = named(text).into_iter().collect();
    assert_eq!(names, ["clock", "error", "lane", "mem", "units"]);
}
