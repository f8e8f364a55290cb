//! `show`: prints a list of a running program as a table.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::console::{self, CommandError};
use super::{args, stats};
use dataplane_control::rows::ConfigRow;
use dataplane_control::{Client, Get, MAX_LIMIT, Page, Show, printable, printable_lines};
use dataplane_core::telemetry::{BitsPerSecond, Duration, PacketsPerSecond, Size};

pub(super) fn show(args: &args::Show) -> Result<(), CommandError> {
    let connect = || stats::connect(args.socket.as_deref(), args.process, "dataplane show WHAT --process PROCESS");
    let words: Vec<&str> = args.what.iter().map(String::as_str).collect();
    match words[..] {
        [what] => list(&mut connect()?, plural(what), args),
        [what, "get", key] => get(&mut connect()?, plural(what), key, args),
        _ => {
            let help = "help: write `show WHAT`, or `show route get ADDRESS`";
            Err(CommandError::Usage(format!("cannot show `{}`; {help}", words.join(" "))))
        }
    }
}

/// Returns the name of a list. Also accepts the singular.
fn plural(what: &str) -> &str {
    match what {
        "limit" => "limits",
        "link" => "links",
        "neighbor" => "neighbors",
        "port" => "ports",
        "route" => "routes",
        "stage" => "stages",
        "worker" => "workers",
        what => what,
    }
}

fn get(client: &mut Client, what: &str, key: &str, args: &args::Show) -> Result<(), CommandError> {
    let get = Get { what: what.to_owned(), key: key.to_owned(), stage: args.stage.clone() };
    let found = client.get(get).map_err(|error| stats::failed(error, ""))?;
    match &found.row {
        _ if args.json => console::print(&json_line(&found)),
        Some(row) => console::print(&table(&[fields(row)?])),
        None => Err(CommandError::Failed(format!("stage `{}` has no row for {key} in `{what}`", found.stage))),
    }
}

fn list(client: &mut Client, what: &str, args: &args::Show) -> Result<(), CommandError> {
    let (mut left, mut cursor) = (args.limit.unwrap_or(usize::MAX), None);
    let mut rows: Vec<(Option<String>, Vec<Fields>)> = Vec::new();
    while left > 0 {
        let limit = Some(left.min(MAX_LIMIT as usize) as u32);
        let show = Show { what: what.to_owned(), stage: args.stage.clone(), limit, cursor };
        let Some(page) = client.show(show).next() else { break };
        let page: Page = page.map_err(|error| stats::failed(error, ""))?;
        left -= page.rows.len().min(left);
        if args.json {
            console::print(&json_line(&page))?;
        } else if what == "config" {
            page.rows.iter().try_for_each(|row| print_config(row))?;
        } else {
            let new: Vec<Fields> = page.rows.iter().map(|row| fields(row)).collect::<Result<_, _>>()?;
            match rows.last_mut().filter(|(stage, _)| *stage == page.stage) {
                Some((_, rows)) => rows.extend(new),
                None => rows.push((page.stage, new)),
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if rows.iter().all(|(_, rows)| rows.is_empty()) {
        return Ok(());
    }
    let has_headings = rows.len() > 1;
    let tables = rows.iter().map(|(stage, rows)| match stage {
        Some(stage) if has_headings => format!("{what} of stage {}\n{}", printable(stage), table(rows)),
        _ => table(rows),
    });
    console::print(&tables.collect::<Vec<_>>().join("\n"))
}

/// Prints the text of the config and the values that override it.
fn print_config(row: &RawValue) -> Result<(), CommandError> {
    let ConfigRow { path, settings, text, .. } = serde_json::from_str(row.get()).map_err(foreign)?;
    let text = printable_lines(&text);
    let settings: String = settings.iter().map(|setting| format!("# --set {}\n", printable(setting))).collect();
    console::print(&format!("# {}\n{settings}{text}", printable(&path)))
}

fn foreign(error: serde_json::Error) -> CommandError {
    CommandError::Failed(format!(
        "cannot parse the answer: {error}; help: the program may have another version, so use --json"
    ))
}

fn json_line(value: &impl serde::Serialize) -> String {
    // The values come from JSON, so they always serialize to JSON.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

fn fields(row: &RawValue) -> Result<Fields, CommandError> {
    serde_json::from_str(row.get()).map_err(foreign)
}

/// The fields of a row, in their order.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The units at the ends of the names of fields.
const UNITS: [&str; 7] = ["_bytes", "_ns", "_percent", "_pps", "_bps", "_per_s", "_s"];

/// Returns the heading of a column: its name without the unit, unless another column has this heading.
fn heading(field: &str, columns: &[&str]) -> String {
    let name = UNITS.iter().find_map(|unit| field.strip_suffix(unit)).filter(|name| !columns.contains(name));
    printable(name.unwrap_or(field)).replace('_', " ")
}

/// Returns the text of a value, with a unit that fits.
fn cell(field: &str, value: &Value) -> String {
    let unit = UNITS.iter().find(|unit| field.ends_with(*unit)).copied().unwrap_or_default();
    match value {
        Value::Null => "–".to_owned(),
        Value::Bool(is_true) => if *is_true { "yes" } else { "no" }.to_owned(),
        Value::String(text) => printable(text),
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or_default();
            match unit {
                "_bytes" => Size(float).to_string(),
                "_ns" => Duration(float).to_string(),
                "_pps" => PacketsPerSecond(float).to_string(),
                "_bps" => BitsPerSecond(float).to_string(),
                "_percent" => format!("{float:.1} %"),
                "_per_s" => format!("{number}/s"),
                "_s" => format!("{number} s"),
                _ if number.is_f64() => format!("{float:.1}"),
                _ => number.to_string(),
            }
        }
        Value::Array(values) if values.is_empty() => "–".to_owned(),
        Value::Array(values) => values.iter().map(|value| cell("", value)).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            let words = fields.iter().filter(|(_, value)| !value.is_null());
            words
                .map(|(name, value)| format!("{} {}", printable(name), cell(name, value)))
                .collect::<Vec<_>>()
                .join(" ")
        }
    }
}

/// Returns the rows as a table with aligned columns. A field that is an object follows its row, with one line for each
/// entry.
fn table(rows: &[Fields]) -> String {
    let mut columns: Vec<&str> = Vec::new();
    for (name, value) in rows.iter().flat_map(|Fields(fields)| fields) {
        if !value.is_object() && !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    let value = |Fields(fields): &Fields, column: &str| {
        fields.iter().find(|(name, _)| name == column).map_or(Value::Null, |(_, value)| value.clone())
    };
    let is_right = |column: &&str| {
        let mut values = rows.iter().map(|row| value(row, column)).filter(|value| !value.is_null()).peekable();
        values.peek().is_some() && values.all(|value| value.is_number())
    };
    let right: Vec<bool> = columns.iter().map(is_right).collect();
    let cells = |row: &Fields| columns.iter().map(|column| cell(column, &value(row, column))).collect::<Vec<String>>();
    let mut lines: Vec<Vec<String>> = vec![columns.iter().map(|column| heading(column, &columns)).collect()];
    lines.extend(rows.iter().map(cells));
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let padded = line.iter().zip(&widths).zip(&right).map(|((cell, width), right)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
        let Some(Fields(fields)) = number.checked_sub(1).and_then(|at| rows.get(at)) else { continue };
        for (name, value) in fields.iter().filter_map(|(_, value)| value.as_object()).flatten() {
            text.push_str(&format!("    {} {}\n", printable(name), cell(name, value)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(json: &str) -> Vec<Fields> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn columns_are_aligned_and_have_fitting_units() {
        let rows = rows(
            r#"[{"name": "a", "rx": 5, "size_bytes": 1536, "cost_ns": 12.34, "via": null},
                {"name": "long", "rx": 12345, "size_bytes": 0, "cost_ns": null, "via": "::1\u001b\u202e"}]"#,
        );
        let expected = "name     rx      size     cost  via\n\
                        a         5  1.50 KiB  12.3 ns  –\n\
                        long  12345       0 B        –  ::1\u{fffd}\u{fffd}\n";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn no_two_columns_have_the_same_heading() {
        assert_eq!(table(&rows(r#"[{"rx": 5, "rx_bytes": 320}]"#)), "rx  rx bytes\n 5     320 B\n");
    }

    #[test]
    fn objects_follow_their_row_and_lists_are_in_one_cell() {
        let rows = rows(
            r#"[{"prefix": "::/0", "paths": [{"port": "a", "via": null}, {"port": "b", "weight": 2}]},
                {"prefix": "10.0.0.0/8", "paths": [], "counters": {"hits": 3}}]"#,
        );
        let expected = "prefix      paths\n::/0        port a, port b weight 2\n10.0.0.0/8  –\n    hits 3\n";
        assert_eq!(table(&rows), expected);
    }
}
