//! Checks that each crate and module has only the dependencies that the tables in the crate documentation list. Also
//! checks that only the allowed files contain `unsafe` code.

mod census;
mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders and files in which `unsafe` code is allowed.
const MAY_BE_UNSAFE: [&str; 4] = ["core/src/mem", "core/src/lane", "soft/src", "ibverbs/src"];
/// A file outside these folders that may declare unsafe methods, but must not have an unsafe block.
const DECLARES_UNSAFE: &str = "core/src/verbs/mod.rs";

/// The allowed circles of imports: the folder of the crate, and the files that may import each other. In `soft`, the
/// queue pair and the completion queue use each other.
const CIRCLES: &[(&str, &[&str])] = &[("soft", &["cq_core.rs", "engine.rs", "raw.rs", "zero_copy.rs"])];

/// Returns the folder of the crates.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = crates().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the rows of the tables in the documentation of the file `root`. A row has the name of a crate or module, and
/// the names of the crates or modules that it may use.
fn table(root: &str, is_row: impl Fn(&str) -> Option<String>) -> BTreeMap<String, BTreeSet<String>> {
    let rows = read(root);
    let rows = rows.lines().filter_map(|line| line.strip_prefix("//! | "));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let name = is_row(cells[0])?;
        let uses = cells[2].trim_end_matches(" |");
        let uses = uses.split(", ").filter(|name| *name != "–").map(str::to_owned).collect();
        Some((name, uses))
    })
    .collect()
}

/// Returns the modules of a crate, each with the modules that it may use.
fn modules(crate_folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let name = |cell: &str| Some(cell.strip_prefix("[`")?.split('`').next()?.to_owned());
    table(&format!("{crate_folder}/src/lib.rs"), name)
}

/// Returns the crates, each with the crates that it may depend on. The names have no prefix `dataplane-`.
fn layers() -> BTreeMap<String, BTreeSet<String>> {
    let name = |cell: &str| {
        let name = cell.strip_prefix("`dataplane")?.strip_suffix('`')?;
        Some(name.strip_prefix('-').unwrap_or("dataplane").to_owned())
    };
    table("dataplane/src/lib.rs", name)
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

/// Returns the files of the modules whose declaration has `#[cfg(test)]` or `#[cfg(any(test, fuzzing))]`. The checks
/// ignore these files.
fn test_files(all: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for path in all {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let parent = path.parent().unwrap();
        let folder = if ["mod", "lib"].contains(&stem) { parent.to_owned() } else { parent.join(stem) };
        let text = fs::read_to_string(path).unwrap();
        for after in ["#[cfg(test)]\n", "#[cfg(any(test, fuzzing))]\n"].iter().flat_map(|cfg| text.split(cfg).skip(1)) {
            let line = after.lines().next().unwrap_or_default();
            let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
            if let Some(name) = line.strip_prefix("mod ").and_then(|line| line.strip_suffix(';')) {
                found.insert(folder.join(format!("{name}.rs")));
                found.extend(all.iter().filter(|path| path.starts_with(folder.join(name))).cloned());
            }
        }
    }
    found
}

/// Returns the source files of a crate, without its tests.
fn sources(crate_folder: &str) -> Vec<PathBuf> {
    let all = files(&crates().join(crate_folder).join("src"));
    let tests = test_files(&all);
    all.into_iter().filter(|path| !tests.contains(path)).collect()
}

/// Returns the code of a file, without tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Returns the modules that a text names as `crate::module`, or in a group such as `use crate::{a::…, b}`.
fn named(text: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut names = BTreeSet::new();
    for after in text.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            names.insert(word(after));
            continue;
        };
        let (mut depth, mut is_start) = (0, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_start = true,
                c if is_start && c.is_alphabetic() => {
                    names.insert(word(&group[at..]));
                    is_start = false;
                }
                _ => {}
            }
        }
    }
    names
}

#[test]
fn crates_depend_only_on_the_crates_in_their_row() {
    let layers = layers();
    let folders: BTreeSet<String> =
        fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(layers.keys().cloned().collect::<BTreeSet<_>>(), folders, "the table of crates must list every crate");
    for (name, may) in &layers {
        let manifest: toml::Table = read(format!("{name}/Cargo.toml")).parse().unwrap();
        let dependencies = manifest["dependencies"].as_table().unwrap().keys();
        let uses = dependencies.filter_map(|key| match key.strip_prefix("dataplane")? {
            "" => Some("dataplane"),
            rest => rest.strip_prefix('-'),
        });
        let uses: BTreeSet<String> = uses.map(str::to_owned).collect();
        assert_eq!(&uses, may, "the dependencies of {name}");
    }
}

#[test]
fn architecture_page_has_the_same_tables_as_the_crates() {
    let page = read("../docs/architecture.md");
    let page = page.split("<!-- begin modules -->").nth(1).and_then(|rest| rest.split("<!-- end modules -->").next());
    let page = page.expect("the page has the markers of the table of crates");
    let root = read("dataplane/src/lib.rs");
    let core = read("core/src/lib.rs");
    let rows = |text: &str, prefix: &str| -> Vec<String> {
        let rows = text.lines().filter_map(|line| line.strip_prefix(prefix)).filter(|row| row.starts_with("| "));
        rows.map(|row| row.replace("[`", "`").replace("`](mod@file)", "`").replace("`]", "`")).collect()
    };
    let expected = [rows(&root, "//! "), rows(&core, "//! ")].concat();
    assert_eq!(rows(page, ""), expected, "copy the tables of the crate documentation into docs/architecture.md");
}

/// Returns the module of a file. `file` is relative to the source folder of its crate.
fn module_of(file: &str) -> String {
    file.split('/').next().unwrap().trim_end_matches(".rs").to_owned()
}

/// Returns the modules of a crate, each with the other modules that it uses. The module `lib` is the root file.
fn uses(crate_folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = crates().join(crate_folder).join("src");
    let mut uses = BTreeMap::<String, BTreeSet<String>>::new();
    for path in sources(crate_folder) {
        let module = module_of(path.strip_prefix(&root).unwrap().to_str().unwrap());
        uses.entry(module).or_default().extend(named(&code(&path)));
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (file, imports) in circles::imports(crate_folder) {
        uses.entry(module_of(&file)).or_default().extend(imports.iter().map(|import| module_of(import)));
    }
    for (module, used) in &mut uses {
        used.retain(|name| name != module && modules.contains(name));
    }
    uses
}

/// The crates whose documentation has a table of modules.
const HAVE_TABLES: [&str; 2] = ["core", "dataplane"];

#[test]
fn modules_use_only_the_modules_in_their_row() {
    for crate_folder in HAVE_TABLES {
        let layers = modules(crate_folder);
        assert!(layers.len() >= 4, "too few rows in the table of modules of {crate_folder}: {layers:?}");
        let mut wrong = Vec::new();
        for (module, used) in uses(crate_folder) {
            // The root file has no row, so the root file may use no module. Re-exports are not uses.
            let may = match layers.get(&module) {
                Some(may) => may.clone(),
                None if module == "lib" => BTreeSet::new(),
                None => panic!("`{module}` is not in the table of {crate_folder}"),
            };
            wrong.extend(used.difference(&may).map(|name| format!("{module} uses {name}")));
        }
        assert!(
            wrong.is_empty(),
            "modules use modules that their row in the table of {crate_folder} does not list:\n{}",
            wrong.join("\n")
        );
    }
}

/// The listing `modules.toml` has a table for each crate without a table in its documentation. A review shows each new
/// use of a module.
#[test]
fn modules_of_the_other_crates_use_the_modules_in_the_listing() {
    let mut listing =
        "# The modules of each crate, each with the other modules that it uses. `lib` is the root file.\n# To update: \
         DATAPLANE_UPDATE=1 cargo test --package dataplane --test layering\n"
            .to_owned();
    for crate_folder in layers().into_keys().filter(|name| !HAVE_TABLES.contains(&name.as_str())) {
        listing += &format!("\n[{crate_folder}]\n");
        for (module, used) in uses(&crate_folder) {
            let used: Vec<String> = used.iter().map(|name| format!("\"{name}\"")).collect();
            listing += &format!("{module} = [{}]\n", used.join(", "));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layering/modules.toml");
    if std::env::var_os("DATAPLANE_UPDATE").is_some() {
        fs::write(&path, &listing).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        known == listing,
        "modules use other modules than modules.toml lists:\n{}\nhelp: DATAPLANE_UPDATE=1 cargo test --package dataplane \
         --test layering",
        changes(&known, &listing)
    );
}

/// Returns the lines that `new` has no longer, with `-`, and the lines that only `new` has, with `+`.
fn changes(old: &str, new: &str) -> String {
    let mut removed: Vec<&str> = old.lines().collect();
    let mut added = Vec::new();
    for line in new.lines() {
        match removed.iter().position(|other| *other == line) {
            Some(at) => _ = removed.remove(at),
            None => added.push(line),
        }
    }
    let removed = removed.iter().map(|line| format!("- {line}"));
    removed.chain(added.iter().map(|line| format!("+ {line}"))).collect::<Vec<_>>().join("\n")
}

#[test]
fn changes_show_removed_and_added_lines() {
    assert_eq!(changes("a\nb\nb\nc", "b\nc\nd"), "- a\n- b\n+ d");
    assert_eq!(changes("a", "a"), "");
}

/// The methods of batches and pools that move, duplicate or free packet buffers without a check of the state of the
/// buffer.
const BUFFER_METHODS: [&str; 11] = [
    "append",
    "forget",
    "forget_first",
    "forget_from",
    "free_from",
    "free_one",
    "push_from",
    "put",
    "put_descs",
    "put_one",
    "take",
];

/// The modules that call [`BUFFER_METHODS`] without `unsafe`. A wrong call puts a buffer into two places.
const MOVES_BUFFERS: [&str; 2] = ["lane", "pipeline"];

#[test]
fn only_lanes_and_the_pipeline_move_packet_buffers() {
    // A module without `mem` in its row cannot name a batch or a pool.
    let names_batches: BTreeSet<String> =
        modules("core").into_iter().filter(|(_, uses)| uses.contains("mem")).map(|(name, _)| name).collect();
    for name in MOVES_BUFFERS {
        assert!(names_batches.contains(name), "`{name}` is not in the table of core");
    }
    for path in sources("core") {
        let inside = path.strip_prefix(crates().join("core/src")).unwrap().to_str().unwrap();
        let module = module_of(inside);
        if !names_batches.contains(&module) || MOVES_BUFFERS.contains(&module.as_str()) {
            continue;
        }
        let text = code(&path);
        let is_called =
            |name: &&str| [".", "Batch::", "Pool::"].iter().any(|prefix| text.contains(&format!("{prefix}{name}(")));
        let called: Vec<&str> = BUFFER_METHODS.into_iter().filter(is_called).collect();
        assert!(called.is_empty(), "{inside} calls {called:?}, and only {MOVES_BUFFERS:?} may call these methods");
    }
}

/// The modules with functions that are safe only if their callers follow the protocol of an upgrade. Apps use only the crate
/// `dataplane`, which does not re-export these modules.
const UPGRADE_MODULES: [&str; 2] = ["dataplane_core::upgrade", "dataplane_soft::upgrade"];

#[test]
fn only_the_runtime_uses_the_functions_of_an_upgrade() {
    for crate_folder in layers().into_keys() {
        for path in sources(&crate_folder) {
            let inside = path.strip_prefix(crates()).unwrap().to_str().unwrap();
            let may = ["dataplane/src/app/", "dataplane/src/runtime/"].iter().any(|folder| inside.starts_with(folder));
            let text = code(&path);
            let named = UPGRADE_MODULES.iter().find(|module| text.contains(**module));
            assert!(may || named.is_none(), "{inside} names {named:?}");
        }
    }
}

/// Stages register their tasks and handlers through `Setup`, so the runtime does not depend on the crate of the stages.
#[test]
fn runtime_does_not_name_any_stage() {
    for path in sources("dataplane").iter().filter(|path| path.starts_with(crates().join("dataplane/src/runtime"))) {
        assert!(!code(path).contains("dataplane_stages"), "{}", path.display());
    }
}

/// The files that list all kinds of links. The links `loopback` and `generator` are not checked, because other code
/// uses them: the config connects the two ports of a loopback cable, and `devices` opens a generator to query the
/// capabilities of the software device.
const LISTS_OF_LINKS: [&str; 2] = ["soft/src/link/mod.rs", "soft/src/link/config.rs"];

#[test]
fn links_are_named_only_in_their_folders_and_the_lists() {
    for crate_folder in ["soft", "dataplane"] {
        for path in sources(crate_folder) {
            let inside = path.strip_prefix(crates()).unwrap().to_str().unwrap().to_owned();
            if LISTS_OF_LINKS.contains(&inside.as_str()) {
                continue;
            }
            let text = code(&path);
            for (kind, names) in [
                ("pcap", ["PcapConfig", "PcapSpec", "::Pcap("]),
                ("packet", ["PacketConfig", "PacketSpec", "::Packet("]),
                ("tap", ["TapConfig", "TapSpec", "::Tap("]),
                ("xdp", ["XdpConfig", "XdpSpec", "::Xdp("]),
            ] {
                let is_own = inside.starts_with(&format!("soft/src/link/{kind}/"));
                let named: Vec<String> = names
                    .map(str::to_owned)
                    .into_iter()
                    .chain(["==", "!="].map(|operator| format!("kind() {operator} \"{kind}\"")))
                    .filter(|name| text.contains(name))
                    .collect();
                assert!(is_own || named.is_empty(), "{inside} names {named:?}");
            }
        }
    }
}

#[test]
fn unsafe_code_is_only_in_the_allowed_folders() {
    for crate_folder in layers().into_keys() {
        for path in sources(&crate_folder) {
            let inside = path.strip_prefix(crates()).unwrap().to_str().unwrap().to_owned();
            let may = MAY_BE_UNSAFE
                .iter()
                .any(|part| inside.strip_prefix(part).is_some_and(|rest| rest.starts_with('/') || rest == ".rs"));
            let text = code(&path);
            if inside == DECLARES_UNSAFE {
                assert!(!text.contains("unsafe {"), "{inside} has unsafe blocks");
                continue;
            }
            assert!(may || !text.contains("unsafe_code"), "{inside} allows unsafe code");
        }
    }
}

#[test]
fn dependencies_are_found_in_all_their_forms() {
    let text =
        "use crate::mem::{Batch};\nuse crate::{clock::Stamp, units::{self, Ticks}, error};\nfn f() -> crate::lane::X";
    let names: Vec<String> = named(text).into_iter().collect();
    assert_eq!(names, ["clock", "error", "lane", "mem", "units"]);
}

#[test]
fn files_import_each_other_only_in_the_allowed_circles() {
    let is_within =
        |circle: &circles::Circle, allowed: &[&str]| circle.keys().all(|file| allowed.contains(&file.as_str()));
    let (mut refused, mut unused) = (Vec::new(), CIRCLES.to_vec());
    for crate_folder in layers().into_keys() {
        for circle in circles::circles(&crate_folder) {
            let may = |(of, files): &(&str, &[&str])| *of == crate_folder && is_within(&circle, files);
            if CIRCLES.iter().any(may) {
                unused.retain(|allowed| !may(allowed));
            } else {
                let imports = circle.iter().map(|(file, imports)| format!("{file} imports {}", imports.join(", ")));
                refused.push(format!("{crate_folder}:\n    {}", imports.collect::<Vec<_>>().join("\n    ")));
            }
        }
    }
    assert!(refused.is_empty(), "files that import each other:\n{}", refused.join("\n"));
    assert!(unused.is_empty(), "circles that no longer exist, to be removed from CIRCLES: {unused:?}");
}
