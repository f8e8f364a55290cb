//! Compares tables with the JSON schemas of their types, to find every unknown and every missing key. Serde alone stops
//! at the first mistake.

use schemars::Schema;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::diagnostics::{Diagnostics, Mistake};
use super::source::Span;
use dataplane_core::error::shorten;
use dataplane_core::parse_errors::{nearest, suggest};

/// What a table may contain.
#[derive(Clone, Copy)]
pub(super) struct Expected<'s> {
    /// The JSON schema of the table, or `null` if the keys of the table are not known.
    pub(super) schema: &'s Value,
    /// Valid keys that were removed from the table before this check, such as `outputs` of a stage. The help for a
    /// similar unknown key suggests these keys.
    pub(super) extra_keys: &'static [&'static str],
}

impl<'s> Expected<'s> {
    /// A table that may have any keys.
    pub(super) const ANY: Self = Self { schema: &Value::Null, extra_keys: &[] };

    pub(super) fn of(schema: &'s Schema) -> Self {
        Self { schema: schema.as_value(), extra_keys: &[] }
    }
}

/// Reports and removes the unknown keys of a table. If an unknown key is similar to a known key, the value of the
/// unknown key becomes the value of the known key. If the known key already has a table or an array, this function
/// merges the value of the unknown key into that table or array.
pub(super) fn remove_unknown(
    table: &mut DeTable<'_>,
    known: &[&str],
    extra_keys: &[&str],
    diagnostics: &mut Diagnostics,
) {
    let unknown = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
    for key in unknown.cloned().collect::<Vec<_>>() {
        let name = key.get_ref().as_ref();
        // If this mistake will not be shown, skip the slow search for a suggestion.
        if diagnostics.is_full() {
            table.remove(name);
            continue;
        }
        let mistake = Mistake::error(key.span(), format!("unknown key `{}`", shorten(name)));
        diagnostics.push(mistake.help(suggest("keys", name, &[known, extra_keys].concat())));
        let Some(value) = table.remove(name) else { continue };
        let Some(meant) = nearest(name, known.iter().copied()) else { continue };
        match table.get_mut(meant).map(|there| there.get_mut()) {
            None => {
                diagnostics.rename(key.span(), meant);
                table.insert(Spanned::new(key.span(), meant.to_owned().into()), value);
            }
            Some(there) => join(there, value.into_inner()),
        }
    }
}

/// Merges a section with a misspelt name into the section with the correct name. Existing entries are kept.
fn join<'s>(into: &mut DeValue<'s>, from: DeValue<'s>) {
    match (into, from) {
        (DeValue::Table(into), DeValue::Table(from)) => {
            for (key, value) in from {
                if !into.contains_key(key.get_ref().as_ref()) {
                    into.insert(key, value);
                }
            }
        }
        (DeValue::Array(into), DeValue::Array(from)) => from.into_iter().for_each(|value| into.push(value)),
        _ => {}
    }
}

/// Checks the keys of a table, and the keys of the tables inside the table. Stops early if the diagnostics have `limit`
/// mistakes.
pub(super) struct KeyCheck<'d> {
    pub(super) diagnostics: &'d mut Diagnostics,
    pub(super) limit: usize,
    /// The removed entries: the span of the table or array that contained each entry, and the key of the entry (empty
    /// in an array).
    pub(super) removed: Vec<(Span, String)>,
    /// Whether a value is missing or was removed.
    pub(super) has_lost_values: bool,
}

impl KeyCheck<'_> {
    /// Reports the unknown and the missing keys of a table. Removes unknown keys, and tables of an unknown kind.
    pub(super) fn check(&mut self, span: &Span, table: &mut DeTable<'_>, expected: Expected<'_>) {
        let schema = expected.schema;
        let no_properties = serde_json::Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&no_properties);
        for (key, value) in properties {
            if let Some(previous) = value["x-previous-name"].as_str() {
                self.renamed(span, table, previous, key, value);
            }
        }
        if schema["additionalProperties"] == false {
            let known: Vec<&str> = properties.keys().map(String::as_str).collect();
            remove_unknown(table, &known, expected.extra_keys, self.diagnostics);
        }
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for key in required.filter(|key| !table.contains_key(*key)) {
            self.has_lost_values = true;
            let is_renamed = self.removed.iter().any(|(table, name)| table == span && name == key);
            if !is_renamed && !self.diagnostics.is_damaged(span) {
                self.diagnostics.push_missing_key(span.clone(), key);
            }
        }
        let from = self.removed.len();
        for (key, value) in table.iter_mut() {
            let name = key.get_ref().as_ref();
            if !self.value(value, properties.get(name).unwrap_or(&schema["additionalProperties"])) {
                self.removed.push((span.clone(), name.to_owned()));
            }
        }
        let removed = self.removed[from..].iter().filter(|(of, _)| of == span);
        removed.for_each(|(_, key)| _ = table.remove(key.as_str()));
    }

    /// Reports and removes the old key `previous`, whose name is now `key`. The value is not used, because the new key
    /// expects another kind of value.
    fn renamed(&mut self, span: &Span, table: &mut DeTable<'_>, previous: &str, key: &str, schema: &Value) {
        let Some(at) = table.get_key_value(previous).map(|(key, _)| key.span()) else { return };
        table.remove(previous);
        self.removed.push((span.clone(), key.to_owned()));
        let example = schema["examples"].as_array().and_then(|examples| examples.last());
        let example = example.map_or_else(String::new, |example| format!(", as in {key} = {example}"));
        let mistake = Mistake::error(at, format!("unknown key `{previous}`"));
        self.diagnostics.push(mistake.help(format!("the key is now `{key}`{example}")));
    }

    /// Checks the tables in a value. Returns `false` if the value is a table of an unknown kind, or not a table although
    /// the schema requires a table.
    fn value(&mut self, value: &mut Spanned<DeValue<'_>>, schema: &Value) -> bool {
        if self.diagnostics.count() >= self.limit {
            return true;
        }
        let span = value.span();
        let items = alternatives(schema).find_map(|schema| schema.get("items"));
        match (value.get_mut(), items) {
            (DeValue::Table(table), _) => self.table(&span, table, schema),
            (DeValue::Array(array), Some(items)) => {
                let count = array.len();
                let values = std::mem::replace(array, DeArray::new()).into_iter();
                let values = values.filter_map(|mut value| self.value(&mut value, items).then_some(value));
                *array = values.collect();
                if array.len() < count {
                    self.removed.push((span, String::new()));
                }
                true
            }
            (found, _) => self.not_a_table(&span, found, schema),
        }
    }

    /// If the schema requires a table, reports any other value and returns `false`. Serde alone is not enough: serde
    /// accepts an array instead of a table. If the table needs a tag, such as `kind`, the error message of serde for a
    /// value that is not a table is unclear.
    fn not_a_table(&mut self, span: &Span, found: &DeValue<'_>, schema: &Value) -> bool {
        let is_table = |schema: &&Value| schema.get("properties").is_some();
        let Some(first) = alternatives(schema).find(is_table) else { return true };
        let tag = constant(first).filter(|_| alternatives(schema).all(|schema| is_table(&schema)));
        let (wanted, help) = match tag {
            Some((tag, _)) => {
                let mut kinds = alternatives(schema).filter_map(|schema| Some(constant(schema)?.1));
                let kind = kinds.find(|kind| found.as_str() == Some(kind)).unwrap_or("…");
                (format!("a table with the key `{tag}`"), format!("write {{ {tag} = \"{kind}\", … }}"))
            }
            None if found.is_array() => {
                let required = first["required"].as_array().and_then(|keys| keys.first()?.as_str());
                let key = required.or_else(|| properties(first).next().map(|(key, _)| key));
                let key = key.map_or_else(String::new, |key| format!("{key} = …, "));
                ("a table".to_owned(), format!("write {{ {key}… }}"))
            }
            None => return true,
        };
        let found = match found {
            DeValue::Array(_) => "an array",
            DeValue::String(_) => "a string",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date",
            _ => "a number",
        };
        self.diagnostics.push(Mistake::error(span.clone(), format!("expected {wanted}, found {found}")).help(help));
        self.has_lost_values = true;
        false
    }

    fn table(&mut self, span: &Span, table: &mut DeTable<'_>, schema: &Value) -> bool {
        let tables: Vec<&Value> = alternatives(schema).filter(|schema| schema.get("properties").is_some()).collect();
        let expected = match tables[..] {
            // Without properties in the schema, any key may be in the table.
            [] => schema,
            [only] => only,
            [first, ..] => match constant(first) {
                Some((tag, _)) => match self.tagged(span, table, tag, &tables) {
                    Some(schema) => schema,
                    None => return false,
                },
                // The table has no tag, so one key of the table is the name of the kind.
                None => {
                    let has_key = |schema: &&&Value| properties(schema).any(|(key, _)| table.contains_key(key));
                    let Some(schema) = tables.iter().find(has_key) else { return true };
                    schema
                }
            },
        };
        self.check(span, table, Expected { schema: expected, ..Expected::ANY });
        true
    }

    /// Returns the schema for the kind of a table. `tag` is the name of the key whose value is the kind.
    fn tagged<'s>(&mut self, span: &Span, table: &DeTable<'_>, tag: &str, tables: &[&'s Value]) -> Option<&'s Value> {
        let kinds: Vec<&str> = tables.iter().filter_map(|schema| Some(constant(schema)?.1)).collect();
        let mistake = match table.get(tag) {
            None => {
                if self.diagnostics.is_damaged(span) {
                    self.has_lost_values = true;
                    return None;
                }
                Mistake::error(span.clone(), format!("the key `{tag}` is missing"))
            }
            Some(kind) => match kind.get_ref().as_str() {
                None => Mistake::error(kind.span(), format!("`{tag}` must be a string")),
                Some(name) => match kinds.iter().position(|kind| *kind == name) {
                    Some(at) => return Some(tables[at]),
                    None => {
                        let mistake = Mistake::error(kind.span(), format!("unknown value `{}`", shorten(name)));
                        mistake.help(suggest("values", name, &kinds))
                    }
                },
            },
        };
        let kinds: Vec<String> = kinds.iter().map(|kind| format!("\"{kind}\"")).collect();
        let kinds = match kinds.split_last() {
            Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => kinds.concat(),
        };
        let help = mistake.help.clone().unwrap_or_else(|| format!("write {tag} = {kinds}"));
        self.diagnostics.push(mistake.help(help));
        self.has_lost_values = true;
        None
    }
}

/// Returns the alternatives of a schema. A value must match one of the alternatives.
fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let choices = ["oneOf", "anyOf"].into_iter().find_map(|key| schema.get(key)?.as_array());
    choices.map_or(std::slice::from_ref(schema), Vec::as_slice).iter()
}

fn properties(schema: &Value) -> impl Iterator<Item = (&str, &Value)> {
    schema["properties"].as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// Returns the key for which the schema allows only one constant string, and this string. The key is the tag of the
/// table.
fn constant(schema: &Value) -> Option<(&str, &str)> {
    properties(schema).find_map(|(key, value)| Some((key, value.get("const")?.as_str()?)))
}
