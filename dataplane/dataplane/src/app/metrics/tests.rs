//! Compares the list of metrics in the documentation with the code.

use std::fmt::Write;
use std::path::Path;

use super::families::{FAMILIES, Family};

/// The lines around the list in `docs/metrics.md`.
const MARKS: [&str; 2] = ["<!-- begin metrics -->\n\n", "\n<!-- end metrics -->"];

fn table() -> String {
    let mut text = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for family in FAMILIES {
        let Family { kind, labels, help, .. } = family;
        let labels = match labels {
            [] => "–".to_owned(),
            labels => labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", "),
        };
        let help = help.trim_end_matches('.');
        writeln!(text, "| `{}` | {} | {labels} | {help} |", family.full_name(), kind.name()).unwrap();
    }
    text
}

/// To write the list, run the test with `DATAPLANE_UPDATE=1`.
#[test]
fn list_of_metrics_in_the_documentation_is_complete() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (list, after) = rest.split_once(MARKS[1]).unwrap();
    if std::env::var_os("DATAPLANE_UPDATE").is_some() {
        std::fs::write(&path, [before, MARKS[0], &table(), MARKS[1], after].concat()).unwrap();
        return;
    }
    assert_eq!(list, table(), "help: DATAPLANE_UPDATE=1 cargo test --package dataplane --lib metrics");
}

#[test]
fn names_are_unique_and_follow_the_conventions() {
    let names: std::collections::BTreeSet<String> = FAMILIES.iter().map(Family::full_name).collect();
    assert_eq!(names.len(), FAMILIES.len());
    for family in FAMILIES {
        assert!(!family.name.ends_with("_total") && family.help.len() <= 100, "{}", family.name);
    }
}
