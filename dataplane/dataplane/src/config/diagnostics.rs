//! Collects the mistakes of a config, and shows each mistake with its position.

use std::collections::HashMap;

use annotate_snippets::{AnnotationKind, Group, Level as Style, Renderer, Snippet, normalize_untrusted_str};
use serde::Serialize;

use super::source::{Source, Span};
use dataplane_core::error::{Error, Result};
use dataplane_core::parse_errors::missing;

/// The severity of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The config cannot be run.
    Error,
    /// The config can be run, but probably does not do what was intended.
    Warning,
}

/// A mistake in a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The severity.
    pub level: Level,
    /// The position.
    pub span: Span,
    /// The problem.
    pub message: String,
    /// The suggested fix.
    pub help: Option<String>,
    /// Whether this host lacks a resource, such as file descriptors. The config may then be valid.
    pub is_host_problem: bool,
}

impl Mistake {
    /// Creates a mistake that prevents a run.
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        Self { level: Level::Error, span, message: message.into(), help: None, is_host_problem: false }
    }

    /// Creates a problem of this host, such as too few file descriptors, that prevents a run.
    pub fn host_problem(span: Span, message: impl Into<String>) -> Self {
        Self { is_host_problem: true, ..Self::error(span, message) }
    }

    /// Creates a mistake that does not prevent a run.
    pub fn warning(span: Span, message: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::error(span, message) }
    }

    /// Adds a suggested fix.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A mistake, for JSON output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// The severity.
    pub level: Level,
    /// The path of the file, or an override on the command line, such as `--set runtime.burst=32`.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The problem.
    pub message: String,
    /// The suggested fix.
    pub help: Option<String>,
}

/// The maximum number of reported mistakes.
pub(super) const MOST: usize = 200;

/// All mistakes of one config.
#[derive(Clone, Debug)]
pub struct Diagnostics {
    source: Source,
    mistakes: Vec<Mistake>,
    /// The spans of tables with unreadable parts. A key that seems to be missing may be in such a part.
    damaged: Vec<Span>,
    /// The spans of misspelt keys, each with the correct name of the key. The key was read under this name.
    renamed: HashMap<Span, String>,
}

impl Diagnostics {
    /// Creates an empty collection.
    pub fn new(source: &Source) -> Self {
        Self { source: source.clone(), mistakes: Vec::new(), damaged: Vec::new(), renamed: HashMap::new() }
    }

    /// Returns the source of the config.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Adds a mistake, unless the same mistake is already present.
    pub fn push(&mut self, mistake: Mistake) {
        let known = self.mistakes.len();
        if self.is_full() || self.mistakes.contains(&mistake) {
            return;
        }
        self.mistakes.push(match known {
            MOST => {
                Mistake::error(mistake.span, format!("there are more than {MOST} mistakes, and the rest is not shown"))
            }
            _ => mistake,
        });
    }

    /// Returns `true` if further mistakes are not shown.
    pub(super) fn is_full(&self) -> bool {
        self.mistakes.len() > MOST
    }

    pub(super) fn count(&self) -> usize {
        self.mistakes.len()
    }

    /// Returns `true` if one of the mistakes prevents a run.
    pub fn has_errors(&self) -> bool {
        self.mistakes.iter().any(|mistake| mistake.level == Level::Error)
    }

    /// Returns `true` if one of the mistakes is a problem of this host.
    pub fn has_host_problem(&self) -> bool {
        self.mistakes.iter().any(|mistake| mistake.is_host_problem)
    }

    /// Returns the mistakes in the order of their positions.
    pub fn mistakes(&self) -> Vec<&Mistake> {
        let mut mistakes: Vec<&Mistake> = self.mistakes.iter().collect();
        mistakes.sort_by_key(|mistake| (mistake.span.start, mistake.span.end));
        mistakes
    }

    /// Returns the mistakes for JSON output, in the order of their positions.
    pub fn records(&self) -> Vec<Record> {
        let record = |mistake: &Mistake| {
            let at = self.source.position(&mistake.span);
            Record {
                level: mistake.level,
                file: at.name,
                line: at.line,
                column: at.column,
                message: mistake.message.clone(),
                help: mistake.help.clone(),
            }
        };
        self.mistakes().into_iter().map(record).collect()
    }

    /// Renders the mistakes for people: message, position, underlined excerpt and suggested fix. An empty line follows
    /// each mistake. With `colour`, the text contains ANSI escape sequences.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for mistake in self.mistakes() {
            text.push_str(&self.render_one(&renderer, mistake));
            text.push_str("\n\n");
        }
        text
    }

    fn render_one(&self, renderer: &Renderer, mistake: &Mistake) -> String {
        let excerpt = self.source.excerpt(&mistake.span);
        let style = match mistake.level {
            Level::Error => Style::ERROR,
            Level::Warning => Style::WARNING,
        };
        // Pass only the line of the mistake to the renderer, which would otherwise scan the whole file for each
        // mistake.
        let name = normalize_untrusted_str(&excerpt.position.name);
        let snippet = Snippet::source(excerpt.line)
            .path(name.as_str())
            .line_start(excerpt.position.line)
            .annotation(AnnotationKind::Primary.span(excerpt.span));
        let mut group: Group<'_> = style.primary_title(mistake.message.as_str()).element(snippet);
        if let Some(help) = &mistake.help {
            group = group.element(Style::HELP.message(normalize_untrusted_str(help)));
        }
        renderer.render(&[group])
    }

    /// Converts the mistakes into one error, rendered without colour.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Config`] if one of the mistakes is an error.
    pub fn into_result(self) -> Result<()> {
        if self.has_errors() { Err(self.into_error()) } else { Ok(()) }
    }

    /// Converts the mistakes into [`Error::Config`], rendered without colour.
    pub fn into_error(self) -> Error {
        Error::Config(self.render(false).trim_end().to_owned())
    }

    /// Reports a key that is missing in a table. If the table has no header of its own, such as `[pipeline]` if only
    /// `[[pipeline.stage]]` exists, the help names the table.
    pub(super) fn push_missing_key(&mut self, table: Span, key: &str) {
        let (message, mut help) = missing(key);
        let excerpt = self.source.excerpt(&table);
        let name = excerpt.line.get(excerpt.span).unwrap_or_default();
        if !name.is_empty() && name.chars().all(|it| it.is_ascii_alphanumeric() || "_-".contains(it)) {
            help = Some(format!("add `{key} = …` to the table [{name}]"));
        }
        self.push(Mistake { help, ..Mistake::error(table, message) });
    }

    pub(super) fn damage(&mut self, table: Span) {
        self.damaged.push(table);
    }

    pub(super) fn rename(&mut self, key: Span, name: &str) {
        self.renamed.insert(key, name.to_owned());
    }

    pub(super) fn renamed(&self) -> &HashMap<Span, String> {
        &self.renamed
    }

    pub(super) fn is_damaged(&self, table: &Span) -> bool {
        self.damaged.contains(table)
    }
}
