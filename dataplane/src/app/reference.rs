//! `reference`: everything that a config may say, as Markdown.

use std::fmt::Write;

use crate::config::{markdown_table, reference_markdown, schema_table};
use crate::pipeline::{Kind, Registry};

const HEAD: &str = "# Config reference

Everything that a config may say. This page is made of the code by `dataplane reference`.

A config is one TOML file. Keys that are not listed here are mistakes. `dataplane check` shows the mistakes of a file
together, each with its place: of syntax and keys, of names and of what they lead to, of parameters and the files that they
name. What rests on those is checked once they are mended, such as what a stage needs of the stages before it.

";

pub(super) fn markdown(registry: &Registry) -> String {
    let mut text = String::from(HEAD);
    text.push_str(&reference_markdown());
    text.push_str("## Stages\n\nThe keys of each kind of stage, beside those that every stage has.\n\n");
    for kind in registry.kinds() {
        describe(kind, &mut text);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn describe(kind: &Kind, text: &mut String) {
    // A string takes any amount of writing.
    let _ = write!(text, "### `use = \"{}\"`\n\n{}\n\n", kind.name, kind.summary);
    match kind.schema.as_ref().map(|schema| markdown_table(&schema_table(schema))) {
        Some(table) if !table.is_empty() => {
            let _ = writeln!(text, "{table}");
        }
        _ => text.push_str("It has no keys of its own.\n\n"),
    }
    for (title, rows) in [("output", kind.outputs), ("reason to drop", kind.reasons)] {
        if !rows.is_empty() {
            let _ = writeln!(text, "| {title} | of what |\n| --- | --- |");
            rows.iter().for_each(|(name, meaning)| {
                let _ = writeln!(text, "| `{name}` | {} |", meaning.replace('|', "\\|"));
            });
            text.push('\n');
        }
    }
}
