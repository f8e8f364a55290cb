//! Parses the file and the overrides of a source into one tree. Reports every syntax mistake, and removes the entries
//! on lines with a mistake.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::diagnostics::{Diagnostics, Mistake};
use super::source::{Source, Span};
use dataplane_core::parse_errors::suggest;

/// The result of parsing.
pub(super) struct Parsed<'s> {
    pub(super) root: DeTable<'s>,
    /// Whether a part could not be parsed.
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
    // The parser misreads every line after an unclosed bracket. So report the bracket, and no mistakes after the
    // bracket.
    let unclosed = errors.iter().any(|error| error.message().starts_with("unclosed"));
    let cut = if unclosed { first_unclosed(text) } else { None };
    if let Some(cut) = cut {
        let at = cut..cut + 1;
        let bracket = &text[at.clone()];
        let closing = if bracket == "{" { "}" } else { "]" };
        let mistake = Mistake::error(at, format!("this `{bracket}` is never closed"));
        diagnostics.push(mistake.help(format!("add the matching `{closing}`")));
    }
    let mut errors: Vec<(Span, &str)> =
        errors.iter().map(|error| (error.span().unwrap_or(start..start), error.message())).collect();
    errors.sort_by_key(|(span, _)| (span.start, span.end));
    let mut spoilt: Vec<Span> = Vec::new();
    for (span, message) in errors {
        // The parser continues after a mistake. Further errors on the same line are consequences of the first error.
        // The parser also adds the keys of a repeated section to the first section of that name.
        let line = match is_repeated_section(text, &span, message) {
            true => section_of(text, span.start, start),
            false => line_of(text, span.start, start),
        };
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

/// Returns the span of a line, including the line break.
fn line_of(text: &str, at: usize, start: usize) -> Span {
    let at = at.min(text.len());
    let from = text.as_bytes()[..at].iter().rposition(|&byte| byte == b'\n').map_or(start, |at| at + 1);
    let to = text.as_bytes()[at..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| at + end);
    from..to + 1
}

/// Returns `true` if an error is about the header of a section that occurs twice, such as `[port]`.
fn is_repeated_section(text: &str, span: &Span, message: &str) -> bool {
    message.starts_with("duplicate key") && text[line_of(text, span.start, 0)].trim_start().starts_with('[')
}

/// Returns the span from a section header to the next section header.
fn section_of(text: &str, at: usize, start: usize) -> Span {
    let header = line_of(text, at, start);
    let mut end = header.end.min(text.len());
    while end < text.len() && !text[end..].trim_start_matches([' ', '\t']).starts_with('[') {
        end = line_of(text, end, start).end.min(text.len());
    }
    header.start..end
}

fn explain(text: &str, span: Span, message: &str) -> Mistake {
    let found = text.get(span.clone()).unwrap_or("");
    if is_repeated_section(text, &span, message) {
        let line = text[line_of(text, span.start, 0)].trim();
        let help = match found {
            "port" | "stage" => format!("write two brackets on each side of every such header: [{line}]"),
            _ => "move the keys of both sections into one section".to_owned(),
        };
        return Mistake::error(span, format!("the section {line} occurs twice")).help(help);
    }
    if message.starts_with("string values must be quoted") {
        return if found.is_empty() {
            Mistake::error(span, "there is no value after `=`").help("write a value, or remove the line")
        } else {
            let help = format!("write the value in quotes: \"{found}\"");
            Mistake::error(span, "a string must be in quotes").help(help)
        };
    }
    if message.starts_with("duplicate key") {
        return Mistake::error(span, format!("the key `{found}` is set twice")).help("remove one of the two");
    }
    if message.starts_with("invalid basic string, expected") || message.starts_with("invalid literal string, expected")
    {
        return Mistake::error(span, "this string has no closing quote").help("add the closing quote");
    }
    if message == "recursion limit" || message.starts_with("cannot recurse further") {
        let help = "remove nested arrays and tables: a config needs at most a few levels";
        return Mistake::error(span, "the arrays and tables are nested too deeply").help(help);
    }
    Mistake::error(span, message)
}

/// Returns the offset of the first bracket that is still open at the end of the text.
fn first_unclosed(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open: Vec<(usize, u8)> = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'#' => at += bytes[at..].iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len() - at),
            b'"' | b'\'' => at = string_end(bytes, at),
            b'[' | b'{' => open.push((at, byte)),
            // The ASCII code of each of these closing brackets is the code of the opening bracket plus 2.
            b']' | b'}' if open.last().is_some_and(|(_, open)| open + 2 == byte) => {
                open.pop();
            }
            _ => {}
        }
        at += 1;
    }
    open.first().map(|(at, _)| *at)
}

/// Returns the offset of the closing quote of a string that starts at `at`. If the quote is missing, returns the end of
/// the line or text.
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

/// Returns `true` if one of the spans contains this byte. The spans must be in ascending order.
fn is_within(spans: &[Span], at: usize) -> bool {
    let after = spans.partition_point(|span| span.start <= at);
    after > 0 && spans[after - 1].contains(&at)
}

/// Removes entries on lines with a mistake, because their values are not reliable.
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
    // The parser may have skipped a line of this table without creating an entry, so the table may lack a key.
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

/// Merges the entries of an override into the tree of the file.
struct Override<'t, 'd> {
    text: &'t str,
    diagnostics: &'d mut Diagnostics,
}

impl Override<'_, '_> {
    /// Returns `true` for a table that comes from a dotted key. Such a table is merged into the old table. A table in
    /// braces is a value, and replaces the old value.
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
                    // Remove the key first, because an insert alone would keep the old span of the key.
                    into.remove(key.get_ref().as_ref());
                    into.insert(key, value);
                }
            }
        }
    }

    /// Merges a table into an array. Each key of the table is the index of an array element, or the name of a table in
    /// the array.
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
                let message = format!("there is no `{what}` with the name or index `{name}`");
                let names: Vec<String> = into.iter().filter_map(name_of).collect();
                let names = suggest("names", name, &names.iter().map(String::as_str).collect::<Vec<_>>());
                let help = format!("indices start at 0, and the length of the array is {}; {names}", into.len());
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
