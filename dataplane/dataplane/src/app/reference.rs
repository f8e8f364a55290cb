//! `reference`: writes the config reference as Markdown: an index, and one page for each section and kind of stage.

use std::fmt::Write;
use std::fs;

use schemars::Schema;

use super::args;
use super::console::CommandError;
use crate::config::{Row, schema_table, sections};
use dataplane_core::pipeline::{Registry, StageKind, summary};

const HEAD: &str = r##"# Config reference

These pages describe all keys of a config file. Each page describes one section, or one kind of stage, and has an
example for every key. Most examples are only a part of a config: the example of a stage, for instance, leaves out the
ports. The command `dataplane reference` generates these pages.

A config is one TOML file. Unknown keys are errors. `dataplane check` reports all mistakes at once, each with its line
and a suggested fix. A check that depends on a wrong value runs only after you fix the value. For example, `dataplane
check` checks the order of the stages only if the parameters of all stages are valid.

Values with a unit are strings. Rates and sizes can also be integers:
- A duration, such as `"5s"`, `"250us"` or `"1h30m"`, is at most `"365d"`.
- A size is a number of bytes, such as `9000`, `"9k"` or `"2MiB"`. The units `k`, `M` and `G` are powers of 1,000. The
  units `Ki`, `Mi` and `Gi` are powers of 1,024. The letter `B` after the unit is optional.
- A packet rate is a number of packets per second, such as `1000`, `"500kpps"` or `"1Mpps"`.
- A bit rate is a number of bits per second, such as `1000000`, `"500kbps"` or `"5Gbps"`.

Editors with a TOML language server (Taplo, Even Better TOML) complete keys and underline mistakes if the first line of
the config names a schema:

```toml
#:schema ../docs/config.schema.json
```

`docs/config.schema.json` describes all built-in stages. An app with its own stages has the command `schema`, which
prints the schema of the app. For example, run `mark-dns schema > config.schema.json` for the example app `mark-dns`.
The schema of an app also describes the parameters of the stages that the app adds with `described_stage`.
"##;

/// The guides of sections: the page of the section, and the file and title of the guide.
const GUIDES: [(&str, &str, &str); 6] = [
    ("link-packet", "links.md", "Links to interfaces"),
    ("link-xdp", "links.md", "Links to interfaces"),
    ("link-tap", "links.md", "Links to interfaces"),
    ("connection", "handshake.md", "Handshake"),
    ("flow", "verbs/raw-packets.md", "Raw packets"),
    ("clock", "clocks.md", "Clocks and timestamps"),
];

/// Writes the index `config-reference.md`, and the pages below `config/`.
pub(super) fn reference(registry: &Registry, args: &args::Reference) -> Result<(), CommandError> {
    let pages = args.output.join("config");
    let (index, files) = markdown(registry);
    let written = fs::create_dir_all(&pages)
        .and_then(|()| fs::write(args.output.join("config-reference.md"), index))
        .and_then(|()| files.into_iter().try_for_each(|page| fs::write(pages.join(page.file), page.text)));
    written.map_err(|error| CommandError::Failed(format!("{}: {error}", args.output.display())))
}

/// A page of the reference.
struct ReferencePage {
    file: String,
    /// The name of the page in the index.
    name: String,
    /// The first paragraph, on one line.
    summary: String,
    text: String,
}

impl ReferencePage {
    /// Starts a page with its title and description.
    fn new(file: String, name: String, title: &str, summary: String, description: &str) -> Self {
        let text = format!("# {title}\n\n{description}\n\n");
        Self { file, name, summary, text }
    }
}

/// Returns the index and the pages.
fn markdown(registry: &Registry) -> (String, Vec<ReferencePage>) {
    let mut index = String::from(HEAD);
    let mut pages: Vec<ReferencePage> = Vec::new();
    let sections = sections();
    for section in &sections {
        let file = format!("{}.md", section.page);
        match pages.last_mut().filter(|page| page.file == file) {
            Some(page) => _ = write!(page.text, "\n## {}\n\n{}\n\n", section.title, description(&section.schema)),
            None => {
                let (title, schema) = (section.title.as_str(), &section.schema);
                let mut page = ReferencePage::new(file, title.to_owned(), title, summary(schema), description(schema));
                for (_, file, title) in GUIDES.iter().filter(|(name, ..)| *name == section.page) {
                    let _ = write!(page.text, "Guide: [{title}](../{file}).\n\n");
                }
                pages.push(page);
            }
        }
        if let Some(page) = pages.last_mut() {
            add_table(&section.rows(&sections), &mut page.text);
        }
    }
    list("Sections", &pages, &mut index);
    let stages: Vec<ReferencePage> = registry.kinds().map(stage).collect();
    list("Stages", &stages, &mut index);
    pages.extend(stages);
    (index, pages)
}

/// Adds a list of links to pages.
fn list(title: &str, pages: &[ReferencePage], index: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(index, "\n## {title}\n\n");
    for ReferencePage { file, name, summary, .. } in pages {
        let _ = writeln!(index, "- [{name}](config/{file}): {summary}");
    }
}

/// Returns the page of a kind of stage.
fn stage(kind: &StageKind) -> ReferencePage {
    let description = kind.schema.as_ref().map_or(kind.summary.as_str(), description);
    let title = format!("`[[pipeline.stage]]` with `use = \"{}\"`", kind.name);
    let (file, name) = (format!("stage-{}.md", kind.name), format!("`{}`", kind.name));
    let mut page = ReferencePage::new(file, name, &title, kind.summary.clone(), description);
    let text = &mut page.text;
    match kind.schema.as_ref().map(schema_table) {
        Some(rows) if !rows.is_empty() => add_table(&rows, text),
        _ => text.push_str("This stage has no parameters.\n"),
    }
    for (title, rows) in [("output", kind.info.outputs), ("drop reason", kind.info.reasons)] {
        if !rows.is_empty() {
            let _ = writeln!(text, "\n| {title} | meaning |\n| --- | --- |");
            rows.iter().for_each(|(name, meaning)| {
                let _ = writeln!(text, "| `{name}` | {} |", escape(meaning));
            });
        }
    }
    page
}

/// Returns the documentation of a table.
fn description(schema: &Schema) -> &str {
    schema.get("description").and_then(|text| text.as_str()).unwrap_or_default()
}

/// Adds the keys of a table.
fn add_table(rows: &[Row], text: &mut String) {
    text.push_str("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    for row in rows {
        let default = match (&row.default, row.required) {
            (_, true) => "required".to_owned(),
            (Some(default), false) => format!("`{default}`"),
            (None, false) => "–".to_owned(),
        };
        let cells = (escape(&row.kind), escape(&default), escape(&row.description));
        let _ = writeln!(text, "| `{}` | {} | {} | {} |", row.key, cells.0, cells.1, cells.2);
    }
}

/// Escapes the separator of cells.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}
