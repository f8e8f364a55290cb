//! Parses the texts of a source into one tree, with every syntax mistake, and cuts out what a mistake spoilt.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::diagnostics::{Diagnostics, Mistake};
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
        merge(&mut root, table, diagnostics);
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
    let cut = if unclosed { first_unclosed(&root, text.trim_end().len()) } else { None };
    let mut spoilt: Vec<Span> = Vec::new();
    if let Some(cut) = &cut {
        let at = cut.start..cut.start + 1;
        let bracket = &text[at.clone()];
        let closing = if bracket == "{" { "}" } else { "]" };
        let mistake = Mistake::error(at, format!("this `{bracket}` is never closed"));
        diagnostics.push(mistake.help(format!("add the `{closing}` that belongs to it")));
        spoilt.push(cut.start..usize::MAX);
    }
    let mut errors: Vec<(Span, &str)> =
        errors.iter().map(|error| (error.span().unwrap_or(start..start), error.message())).collect();
    errors.sort_by_key(|(span, _)| (span.start, span.end));
    for (span, message) in errors {
        // The parser reads on after a mistake, and what else it then says of the line follows from the first.
        let line = line_of(text, span.start, start);
        if spoilt.iter().any(|spoilt| spoilt.contains(&span.start) || spoilt.contains(&line.start)) {
            continue;
        }
        diagnostics.push(explain(text, span, message));
        spoilt.push(line);
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
    Mistake::error(span, message)
}

/// The first array or inline table that goes on to the end of the text.
fn first_unclosed(table: &DeTable<'_>, end: usize) -> Option<Span> {
    fn walk(value: &Spanned<DeValue<'_>>, end: usize, first: &mut Option<Span>) {
        let span = value.span();
        let open = span.end >= end && span.start < end;
        match value.get_ref() {
            DeValue::Array(array) => {
                if open && first.as_ref().is_none_or(|first| span.start < first.start) {
                    *first = Some(span);
                }
                array.iter().for_each(|value| walk(value, end, first));
            }
            DeValue::Table(table) => {
                if open && first.as_ref().is_none_or(|first| span.start < first.start) {
                    *first = Some(span);
                }
                table.values().for_each(|value| walk(value, end, first));
            }
            _ => {}
        }
    }
    let mut first = None;
    table.values().for_each(|value| walk(value, end, &mut first));
    first
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
    if spoilt.iter().any(|spoilt| !span.is_empty() && spoilt.start > span.start) {
        diagnostics.damage(span.clone());
    }
}

fn prune_array(array: &mut DeArray<'_>, spoilt: &[Span], diagnostics: &mut Diagnostics) {
    let hit = |span: &Span| spoilt.iter().any(|spoilt| spoilt.contains(&span.start));
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
fn merge<'s>(into: &mut DeTable<'s>, from: DeTable<'s>, diagnostics: &mut Diagnostics) {
    for (key, value) in from {
        let merged = into.get_mut(key.get_ref().as_ref()).map(|old| (old.get_mut(), value.get_ref().is_table()));
        match (merged, value) {
            (Some((DeValue::Table(old), true)), value) => {
                if let DeValue::Table(new) = value.into_inner() {
                    merge(old, new, diagnostics);
                }
            }
            (Some((DeValue::Array(old), true)), value) => {
                if let DeValue::Table(new) = value.into_inner() {
                    merge_array(key.get_ref(), old, new, diagnostics);
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
fn merge_array<'s>(what: &str, into: &mut DeArray<'s>, from: DeTable<'s>, diagnostics: &mut Diagnostics) {
    for (key, value) in from {
        let name = key.get_ref().as_ref();
        let named = |value: &Spanned<DeValue<'_>>| {
            let field = |key| value.get_ref().get(key).and_then(|value| value.get_ref().as_str());
            field("name").or_else(|| field("use")) == Some(name)
        };
        let index = into.iter().position(named).or_else(|| name.parse().ok());
        let Some(old) = index.and_then(|index| into.iter_mut().nth(index)) else {
            let message = format!("there is no `{what}` of the name or index `{name}`");
            let count = into.len();
            diagnostics.push(Mistake::error(key.span(), message).help(format!("there are {count}, counted from 0")));
            continue;
        };
        match (old.get_mut(), value) {
            (DeValue::Table(old), value) if value.get_ref().is_table() => {
                if let DeValue::Table(new) = value.into_inner() {
                    merge(old, new, diagnostics);
                }
            }
            (_, value) => *old = value,
        }
    }
}
