//! Parses the file and the overrides of a source into one tree. Reports every syntax mistake, and removes the entries
//! on lines with a mistake.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};
use toml_parser::lexer::TokenKind;

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
    for (text, span) in source.override_spans() {
        let (table, wrong) = parse_text(text, span.start, diagnostics);
        damaged |= wrong;
        Override { text, diagnostics }.merge(&mut root, table);
    }
    Parsed { root, damaged }
}

fn parse_text<'s>(text: &'s str, start: usize, diagnostics: &mut Diagnostics) -> (DeTable<'s>, bool) {
    let Nesting { too_deep, unclosed } = nesting(text);
    if let Some(at) = too_deep {
        diagnostics.push(unclosed.map_or_else(|| nested_too_deeply(at), |bracket| never_closed(text, bracket)));
        return (DeTable::new(), true);
    }
    let is_large = text.len() - start > MAX_RECOVERED;
    let (root, errors) = match is_large {
        false => DeTable::parse_recoverable(text),
        true => match DeTable::parse(text) {
            Ok(root) => (root, Vec::new()),
            Err(first) => (Spanned::new(0..0, DeTable::new()), vec![first]),
        },
    };
    let mut root = root.into_inner();
    if errors.is_empty() {
        return (root, false);
    }
    // The parser misreads every line after an unclosed bracket. So report the bracket, and no mistakes after the
    // bracket.
    let is_unclosed = is_large || errors.iter().any(|error| error.message().starts_with("unclosed"));
    let cut = if is_unclosed { unclosed } else { None };
    if let Some(cut) = cut {
        diagnostics.push(never_closed(text, cut));
    }
    let mut errors: Vec<(Span, &str)> =
        errors.iter().map(|error| (error.span().unwrap_or(start..start), error.message())).collect();
    errors.sort_by_key(|(span, _)| (span.start, span.end));
    let mut spoilt: Vec<Span> = Vec::new();
    let mut end_of_line = 0;
    for (span, message) in errors {
        if cut.is_some_and(|cut| span.start >= cut) {
            break;
        }
        // The parser continues after a mistake. Further errors on the same line are consequences of the first error.
        // Skip these errors before the search for the ends of their line. Otherwise, a long line with an error at every
        // byte would take quadratic time.
        if span.start < end_of_line {
            continue;
        }
        // The parser adds the keys of a repeated section to the first section of that name, so all lines of the
        // repeated section are unreliable.
        let line = match is_repeated_section(text, &span, message) {
            true => section_of(text, span.start, start),
            false => line_of(text, span.start, start),
        };
        end_of_line = line.end;
        if cut.is_none_or(|cut| !line.contains(&cut)) {
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

/// The largest text, in bytes, whose syntax mistakes are all reported. The parser can find one mistake per byte, and
/// needs more than 100 bytes of memory for each mistake. In a larger text, only the first syntax mistake is reported.
const MAX_RECOVERED: usize = 256 << 10;

/// The maximum nesting depth of brackets and parts of dotted keys. All code that reads a tree is recursive, so this
/// limit bounds the stack. The parser limits brackets and the parts of each key separately, so the parser accepts trees
/// that are much deeper.
const MAX_DEPTH: usize = 32;

/// The nesting of brackets and dotted keys in a text.
struct Nesting {
    /// The span of the first bracket or dot that exceeds [`MAX_DEPTH`].
    too_deep: Option<Span>,
    /// The offset of the first bracket that is still open at the end of the text.
    unclosed: Option<usize>,
}

fn nesting(text: &str) -> Nesting {
    /// The inside of an open bracket, or the whole text.
    struct Level {
        /// The offset of the bracket.
        at: usize,
        closed_by: TokenKind,
        /// The number of dots in the current key.
        dots: usize,
        /// Whether the current key has ended: the next word does not continue the key, but is a value or starts a new
        /// key.
        is_key_complete: bool,
    }
    let mut levels = vec![Level { at: 0, closed_by: TokenKind::Eof, dots: 0, is_key_complete: false }];
    let (mut depth, mut too_deep) = (0, None);
    for token in toml_parser::Source::new(text).lex() {
        let (kind, span) = (token.kind(), token.span());
        let Some(level) = levels.last_mut() else { break };
        match kind {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => {
                let is_square = kind == TokenKind::LeftSquareBracket;
                let closed_by = if is_square { TokenKind::RightSquareBracket } else { TokenKind::RightCurlyBracket };
                levels.push(Level { at: span.start(), closed_by, dots: 0, is_key_complete: false });
                depth += 1;
            }
            // A closing bracket that does not match the open bracket closes nothing. This function may therefore count
            // too many levels, but never too few.
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket if kind == level.closed_by => {
                depth -= 1 + level.dots;
                levels.pop();
            }
            TokenKind::Equals | TokenKind::Comma | TokenKind::Newline => level.is_key_complete = true,
            TokenKind::Dot
            | TokenKind::Atom
            | TokenKind::BasicString
            | TokenKind::LiteralString
            | TokenKind::MlBasicString
            | TokenKind::MlLiteralString => {
                if std::mem::take(&mut level.is_key_complete) {
                    depth -= std::mem::take(&mut level.dots);
                }
                if kind == TokenKind::Dot {
                    level.dots += 1;
                    depth += 1;
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH && too_deep.is_none() {
            too_deep = Some(span.start()..span.end());
        }
    }
    Nesting { too_deep, unclosed: levels.get(1).map(|level| level.at) }
}

fn nested_too_deeply(span: Span) -> Mistake {
    let help = "remove nested arrays and tables: a config needs at most a few levels";
    Mistake::error(span, "the arrays and tables are nested too deeply").help(help)
}

fn never_closed(text: &str, bracket: usize) -> Mistake {
    let span = bracket..bracket + 1;
    let bracket = &text[span.clone()];
    let closing = if bracket == "{" { "}" } else { "]" };
    Mistake::error(span, format!("this `{bracket}` is never closed")).help(format!("add the matching `{closing}`"))
}

/// Returns the span of a line, including the line break. If the last line has no line break, the span ends one byte
/// after the text, so that a mistake at the end of the text is on this line.
fn line_of(text: &str, at: usize, start: usize) -> Span {
    let at = at.min(text.len());
    let from = text.as_bytes()[..at].iter().rposition(|&byte| byte == b'\n').map_or(start, |at| at + 1);
    let to = text.as_bytes()[at..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |end| at + end);
    from..to + 1
}

/// Returns the text of a line.
fn line_text(text: &str, at: usize) -> &str {
    let line = line_of(text, at, 0);
    &text[line.start..line.end.min(text.len())]
}

/// Returns `true` if an error is about the header of a section that occurs twice, such as `[port]`.
fn is_repeated_section(text: &str, span: &Span, message: &str) -> bool {
    message.starts_with("duplicate key") && line_text(text, span.start).trim_start().starts_with('[')
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
        let line = line_text(text, span.start).trim();
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
    Mistake::error(span, message)
}

/// Returns `true` if one of the spans contains this byte. The spans must be in ascending order.
fn is_within(spans: &[Span], at: usize) -> bool {
    let after = spans.partition_point(|span| span.start <= at);
    after > 0 && spans[after - 1].contains(&at)
}

/// Removes entries on lines with a mistake, because their values are not reliable.
fn prune_table(table: &mut DeTable<'_>, span: &Span, spoilt: &[Span], diagnostics: &mut Diagnostics) {
    let hit = |span: &Span| is_within(spoilt, span.start);
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
