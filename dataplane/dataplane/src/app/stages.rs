//! `stages`: lists and describes the kinds of stages.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::args;
use super::console::{self, CommandError};
use crate::config::{Row, schema_table, suggest};
use dataplane_core::mem::Reason;
use dataplane_core::pipeline::{Registry, StageKind};

/// The description of a kind of stage, for JSON output.
#[derive(Serialize)]
struct Description<'a> {
    name: &'a str,
    summary: &'a str,
    terminal: bool,
    /// `None` if the stage has no schema.
    parameters: Option<Vec<Row>>,
    outputs: BTreeMap<&'a str, &'a str>,
    reasons: BTreeMap<Cow<'static, str>, &'a str>,
}

impl<'a> Description<'a> {
    fn of(kind: &'a StageKind) -> Self {
        Self {
            name: &kind.name,
            summary: &kind.summary,
            terminal: kind.info.terminal,
            parameters: kind.schema.as_ref().map(schema_table),
            outputs: kind.info.outputs.iter().copied().collect(),
            reasons: reasons(kind).into_iter().collect(),
        }
    }
}

/// Returns the names and meanings of the drop reasons that the stage defines, and of the built-in reasons that the stage
/// uses.
fn reasons(kind: &StageKind) -> Vec<(Cow<'static, str>, &'static str)> {
    let own = kind.info.reasons.iter().map(|(name, meaning)| (Cow::Borrowed(*name), *meaning));
    let built_in = kind.info.drops.iter().filter_map(|reason| {
        let name = reason.to_string();
        Reason::meaning(&name).map(|meaning| (Cow::Owned(name), meaning))
    });
    own.chain(built_in).collect()
}

pub(super) fn stages(registry: &Registry, args: &args::Stages) -> Result<(), CommandError> {
    let Some(name) = &args.name else {
        if args.json {
            return console::print_json(&registry.kinds().map(Description::of).collect::<Vec<_>>());
        }
        let width = registry.kinds().map(|kind| kind.name.len()).max().unwrap_or(0);
        let lines = registry.kinds().map(|kind| format!("{:<width$}  {}\n", kind.name, kind.summary));
        return console::print(&lines.collect::<String>());
    };
    let Some(kind) = registry.get(name) else {
        let names: Vec<&str> = registry.kinds().map(|kind| kind.name.as_str()).collect();
        let help = suggest("stages", name, &names);
        return Err(CommandError::Usage(format!("there is no stage `{name}`: {help}")));
    };
    if args.json { console::print_json(&Description::of(kind)) } else { console::print(&describe(kind)) }
}

fn describe(kind: &StageKind) -> String {
    let mut text = format!("{}: {}\n", kind.name, kind.summary);
    // Writing to a string cannot fail.
    match kind.schema.as_ref().map(schema_table) {
        None => text.push_str("\nthe parameters are not documented\n"),
        Some(rows) if rows.is_empty() => text.push_str("\nno parameters\n"),
        Some(rows) => {
            text.push_str("\nparameters\n");
            for row in rows {
                let default = match (&row.default, row.required) {
                    (_, true) => ", required".to_owned(),
                    (Some(default), false) => format!(", default {default}"),
                    (None, false) => String::new(),
                };
                let _ = writeln!(text, "  {}: {}{default}\n      {}", row.key, row.kind, row.description);
            }
        }
    }
    if kind.info.terminal {
        text.push_str("\npackets end here\n");
    }
    let outputs = kind.info.outputs.iter().map(|(name, meaning)| (Cow::Borrowed(*name), *meaning)).collect();
    for (title, rows) in [("outputs, in addition to the next stage", outputs), ("drop reasons", reasons(kind))] {
        if !rows.is_empty() {
            let _ = writeln!(text, "\n{title}");
            let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            rows.iter().for_each(|(name, meaning)| {
                let _ = writeln!(text, "  {name:<width$}  {meaning}");
            });
        }
    }
    text
}
