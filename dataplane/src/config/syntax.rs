//! Parses the texts of a source into one tree, with every syntax mistake, and cuts out what a mistake spoilt.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::diagnostics::{Diagnostics, Mistake};
use super::explain::suggest;
use super::source::{Source, Span};

/// What could be parsed.
pub(super) struct Parsed<'s> {
    pub(super) root: DeTable<'s>,
    /// Whether something could not.
    pub(super) damaged: bool,
}

pub(super) fn parse<'s>(source: &'s Source, diagnostics: &mut Diagnostics) -> Parsed<'s> {
    let (mut root, mut damaged) = parse_text(source.file(), 0, diagnostics);
    for (text, span) in source.overrides() {
        let (table, wrong) = parse_text(text, span.start, diagnostics);
        damaged |= wrong;
        Override { text, diagnostics }.merge(&mut root, table);
    }
    Parsed { root, damaged }
}

fn parse_text<'s>(text: &'s str, start: usize, diagnostics: &mut Diagnostics) -> (DeTable<'s>, bool) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut root = root.into_inner();
    if errors.is_empty() {
        return (root, false);
    }
    // Within brackets that are never closed, every line is misread: only the bracket is the mistake.
    let unclosed = errors.iter().any(|error| error.message().starts_with("unclosed"));
    let cut = if unclosed { first_unclosed(text) } else { None };
    if let Some(cut) = cut {
        let at = cut..cut + 1;
        let bracket = &text[at.clone()];
        let closing = if bracket == "{" { "}" } else { "]" };
        let mistake = Mistake::error(at, format!("this `{bracket}` is never closed"));
        diagnostics.push(mistake.help(format!("add the `{closing}` that belongs to it")));
    }
    let mut errors: Vec<(Span, &str)> =
        errors.iter().map(|error| (error.span().unwrap_or(start..start), error.message())).collect();
    errors.sort_by_key(|(span, _)| (span.start, span.end));
    let mut spoilt: Vec<Span> = Vec::new();
    for (span, message) in errors {
        // The parser reads on after a mistake, and what else it then says of the line follows from the first.
        let line = line_of(text, span.start, start);
        let follows = spoilt.last().is_some_and(|spoilt| line.start < spoilt.end);
        if !follows && cut.is_none_or(|cut| span.start < cut && !line.contains(&cut)) {
            diagnostics.push(explain(text, span, message));
            spoilt.push(line);
        }
    }
    if let Some(cut) = cut {
        spoilt.push(cut..usize::MAX);
    }
    prune_table(&mut root, &(0..0), &spoilt, diagnostics);
    (root, true)
}

/// The bytes of a line, its end included.
fn line_of(text: &str, at: usize, start: usize) -> Span {
    let at = at.min(text.len());
    let from = text.as_bytes()[..at].iter().rposition(|&byte| byte == b'\n').map_or(start, |at| at + 1);
    let to = text.as_bytes()[at..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| at + end);
    from..to + 1
}

fn explain(text: &str, span: Span, message: &str) -> Mistake {
    let found = text.get(span.clone()).unwrap_or("");
    if message.starts_with("string values must be quoted") {
        return if found.is_empty() {
            Mistake::error(span, "there is no value after `=`").help("write a value, or take the line out")
        } else {
            let help = format!("quote it: \"{found}\"");
            Mistake::error(span, "a string must be in quotes").help(help)
        };
    }
    if message.starts_with("duplicate key") {
        return Mistake::error(span, format!("the key `{found}` is given twice")).help("keep one of them");
    }
    if message.starts_with("invalid basic string, expected") || message.starts_with("invalid literal string, expected")
    {
        return Mistake::error(span, "this string has no closing quote").help("add the quote that it began with");
    }
    Mistake::error(span, message)
}

/// Where the first bracket is that is open at the end of the text.
fn first_unclosed(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open: Vec<(usize, u8)> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'#' => at += bytes[at..].iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len() - at),
            b'"' | b'\'' => at = string_end(bytes, at),
            b'[' | b'{' => open.push((at, byte)),
            // The opening brackets of ASCII are two before the closing ones.
            b']' | b'}' if open.last().is_some_and(|(_, open)| open + 2 == byte) => {
                open.pop();
            }
            _ => {}
        }
        at += 1;
    }
    open.first().map(|(at, _)| *at)
}

/// Where a string ends that starts at `at`: its last quote, or the end of its line or text when there is none.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let long = bytes[at..].starts_with(&[quote; 3]);
    let mut end = if long { at + 3 } else { at + 1 };
    while let Some(&byte) = bytes.get(end) {
        match byte {
            b'\\' if quote == b'"' => end += 1,
            b'\n' if !long => return end,
            _ if long && bytes[end..].starts_with(&[quote; 3]) => return end + 2,
            _ if byte == quote && !long => return end,
            _ => {}
        }
        end += 1;
    }
    bytes.len()
}

/// Whether one of the spans, which are in ascending order, has this byte.
fn is_within(spans: &[Span], at: usize) -> bool {
    let after = spans.partition_point(|span| span.start <= at);
    after > 0 && spans[after - 1].contains(&at)
}

/// Takes out what is on a line with a mistake: it isn't what was meant.
fn prune_table(table: &mut DeTable<'_>, span: &Span, spoilt: &[Span], diagnostics: &mut Diagnostics) {
    let hit = |span: &Span| spoilt.iter().any(|spoilt| spoilt.contains(&span.start));
    let before = table.len();
    let lost = table.iter().filter(|(key, value)| hit(&key.span()) || hit(&value.span()));
    for key in lost.map(|(key, _)| key.get_ref().clone()).collect::<Vec<_>>() {
        table.remove(key.as_ref());
    }
    if table.len() != before {
        diagnostics.damage(span.clone());
    }
    for (_, value) in table.iter_mut() {
        let span = value.span();
        match value.get_mut() {
            DeValue::Table(table) => prune_table(table, &span, spoilt, diagnostics),
            DeValue::Array(array) => prune_array(array, spoilt, diagnostics),
            _ => {}
        }
    }
    // A mistake in a line of a table that left no entry behind.
    if !span.is_empty() && spoilt.last().is_some_and(|spoilt| spoilt.start > span.start) {
        diagnostics.damage(span.clone());
    }
}

fn prune_array(array: &mut DeArray<'_>, spoilt: &[Span], diagnostics: &mut Diagnostics) {
    let hit = |span: &Span| is_within(spoilt, span.start);
    *array = std::mem::replace(array, DeArray::new()).into_iter().filter(|value| !hit(&value.span())).collect();
    for value in array.iter_mut() {
        let span = value.span();
        match value.get_mut() {
            DeValue::Table(table) => prune_table(table, &span, spoilt, diagnostics),
            DeValue::Array(array) => prune_array(array, spoilt, diagnostics),
            _ => {}
        }
    }
}

/// Puts the entries of an override in place of those of the file.
struct Override<'t, 'd> {
    text: &'t str,
    diagnostics: &'d mut Diagnostics,
}

impl Override<'_, '_> {
    /// A table of dotted keys says where; one in braces is a value, and takes the place of the old one.
    fn is_path(&self, value: &Spanned<DeValue<'_>>) -> bool {
        value.get_ref().is_table() && !self.text[value.span().start..].starts_with('{')
    }

    fn merge<'s>(&mut self, into: &mut DeTable<'s>, from: DeTable<'s>) {
        for (key, value) in from {
            let merged = into.get_mut(key.get_ref().as_ref()).map(|old| (old.get_mut(), self.is_path(&value)));
            match (merged, value) {
                (Some((DeValue::Table(old), true)), value) => {
                    if let DeValue::Table(new) = value.into_inner() {
                        self.merge(old, new);
                    }
                }
                (Some((DeValue::Array(old), true)), value) => {
                    if let DeValue::Table(new) = value.into_inner() {
                        self.merge_array(key.get_ref(), old, new);
                    }
                }
                (_, value) => {
                    // The place of the new key counts, which an insert alone would not take over.
                    into.remove(key.get_ref().as_ref());
                    into.insert(key, value);
                }
            }
        }
    }

    /// Elements of an array go by their index or, tables, by their name.
    fn merge_array<'s>(&mut self, what: &str, into: &mut DeArray<'s>, from: DeTable<'s>) {
        for (key, value) in from {
            let name = key.get_ref().as_ref();
            let name_of = |value: &Spanned<DeValue<'_>>| {
                let field = |key| value.get_ref().get(key).and_then(|value| value.get_ref().as_str());
                field("name").or_else(|| field("use")).map(str::to_owned)
            };
            let named = |value: &Spanned<DeValue<'_>>| name_of(value).as_deref() == Some(name);
            let index = into.iter().position(named).or_else(|| name.parse().ok());
            let Some(old) = index.and_then(|index| into.get_mut(index)) else {
                let message = format!("there is no `{what}` of the name or index `{name}`");
                let names: Vec<String> = into.iter().filter_map(name_of).collect();
                let names = suggest("names", name, &names.iter().map(String::as_str).collect::<Vec<_>>());
                let help = format!("there are {}, counted from 0; {names}", into.len());
                self.diagnostics.push(Mistake::error(key.span(), message).help(help));
                continue;
            };
            match (old.get_mut(), self.is_path(&value), value) {
                (DeValue::Table(old), true, value) => {
                    if let DeValue::Table(new) = value.into_inner() {
                        self.merge(old, new);
                    }
                }
                (_, _, value) => *old = value,
            }
        }
    }
}
